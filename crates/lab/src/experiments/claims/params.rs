//! Parameters of `claims`, the small trials that only this experiment needs.

use serde::{Deserialize, Serialize};

use super::ID;
use crate::config::check::{counts, seconds};
use crate::config::flags::{self, Use};
use crate::config::{self, ExperimentId, Preset};

/// Parameters of `claims`, for the small trials of this experiment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Params {
    /// Length of a trial, in seconds.
    pub(crate) cell_s: f64,
    /// Bytes of one read of cached data, from the smallest unit in published claims to the largest.
    pub(crate) unit_bytes: Vec<u64>,
    /// Thread counts of `map-calls`, besides one; 0 stands for one thread for each CPU.
    pub(crate) map_threads: Vec<u32>,
    /// Numbers of pages copied in a private map before it is mapped again.
    pub(crate) copied_pages: Vec<u32>,
    /// Whether the trials that take longer are measured too: uncached buffered reads, commits through a map, growth
    /// under a reader.
    pub(crate) thorough: bool,
    /// Numbers of pages changed in one durable commit.
    pub(crate) commit_pages: Vec<u32>,
    /// Number of updates while a reader is held.
    pub(crate) reader_updates: u64,
    /// Number of keys that the updates are spread over.
    pub(crate) reader_keys: u64,
}

impl Params {
    /// The parameters of the quick preset: the trials for a first answer.
    fn quick() -> Self {
        Self {
            cell_s: 0.15,
            unit_bytes: vec![4096, 1 << 20],
            map_threads: vec![0],
            copied_pages: vec![256, 4096],
            thorough: false,
            commit_pages: vec![1, 256],
            reader_updates: 20_000,
            reader_keys: 2_000,
        }
    }

    /// The parameters of the standard preset: all trials.
    fn standard() -> Self {
        Self {
            cell_s: 0.3,
            unit_bytes: vec![4096, 16 << 10, 64 << 10, 1 << 20],
            map_threads: vec![0, 16],
            copied_pages: vec![64, 1024, 4096, 16_384],
            thorough: true,
            commit_pages: vec![1, 16, 256, 4096],
            reader_updates: 200_000,
            reader_keys: 10_000,
        }
    }

    /// The parameters of the paper preset: longer trials, and further unit sizes in between.
    fn paper() -> Self {
        Self {
            cell_s: 10.0,
            unit_bytes: vec![4096, 16 << 10, 64 << 10, 256 << 10, 1 << 20],
            reader_updates: 500_000,
            ..Self::standard()
        }
    }
}

/// The setting without which flags for the longer trials have no effect, as error messages name it.
const THOROUGH: &str = "--set claims.thorough=true beside it";

impl config::Params for Params {
    const OF: ExperimentId = ID;

    const FLAGS: &'static [Use<Self>] = &[
        Use::own(&flags::SECONDS, |params, value| value.put_seconds(&mut params.cell_s)),
        Use::shared(&flags::SIZE).only(|params, _| params.thorough, THOROUGH),
        Use::shared(&flags::MEMORY).only(|params, _| params.thorough, THOROUGH),
        Use::shared(&flags::MEMORY_METHOD).only(|params, _| params.thorough, THOROUGH),
        Use::own(&flags::THREADS, |params, value| value.put_counts(&mut params.map_threads)),
    ];

    fn preset(preset: Preset) -> Self {
        match preset {
            Preset::Quick => Self::quick(),
            Preset::Standard => Self::standard(),
            Preset::Paper => Self::paper(),
        }
    }

    fn check(&self) -> Result<(), String> {
        seconds("claims.cell_s", &[self.cell_s])?;
        let unit = |bytes: &&u64| !(bytes.is_power_of_two() && (4096..=8 << 20).contains(*bytes));
        if let Some(bytes) = self.unit_bytes.iter().find(unit) {
            return Err(format!("claims.unit_bytes = {bytes}: must be a power of two from 4096 to 8 MiB"));
        }
        if let Some(threads) = self.map_threads.iter().find(|threads| **threads > 1024) {
            return Err(format!("claims.map_threads = {threads}: must be at most 1024"));
        }
        counts("claims.copied_pages", &self.copied_pages, 1 << 20)?;
        counts("claims.commit_pages", &self.commit_pages, 1 << 20)?;
        if self.reader_keys == 0 || self.reader_keys > 1 << 24 || self.reader_updates > 1 << 32 {
            return Err("claims.reader_keys must be 1 to 2^24, and claims.reader_updates at most 2^32".into());
        }
        Ok(())
    }
}
