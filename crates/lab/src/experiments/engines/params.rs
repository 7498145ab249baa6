//! Parameters of `engines`, with their presets.

use serde::{Deserialize, Serialize};

use super::ID;
use crate::config::check::seconds;
use crate::config::flags::{self, Use};
use crate::config::{self, ExperimentId, GIB, MIB, Preset};
use crate::format::bytes;
use crate::stores::{KINDS, kind_of};

/// Parameters of `engines`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Params {
    /// Length of a trial in seconds, warming up included.
    pub(crate) cell_s: f64,
    /// How often each store is measured. The lab loads the store again each time.
    pub(crate) repeats: u32,
    /// Bytes of keys and values in the data that must exceed memory.
    pub(crate) data_bytes: u64,
    /// Memory limit in bytes, page cache included, of the processes whose data must exceed memory.
    pub(crate) memory_bytes: u64,
    /// Bytes of keys and values in the data that must fit in memory.
    pub(crate) fit_data_bytes: u64,
    /// Memory limit in bytes, page cache included, of the processes whose data must fit in memory.
    pub(crate) fit_memory_bytes: u64,
    /// Bytes of a value; a key has 16.
    pub(crate) value_bytes: u32,
    /// Threads of the mixes where the data exceeds memory.
    pub(crate) threads: u32,
    /// Threads of the mixes where the data fits in memory.
    pub(crate) fit_threads: u32,
    /// Number of writers in the trials of durable commits by many writers.
    pub(crate) writers: u32,
    /// Ids of the stores to measure; all stores when empty.
    #[serde(rename = "contenders")]
    pub(crate) stores: Vec<String>,
}

impl config::Params for Params {
    const OF: ExperimentId = ID;

    const SHARED: &'static [&'static flags::Flag] = &[&flags::MEMORY_METHOD, &flags::READ_AHEAD];

    const FLAGS: &'static [Use<Self>] = &[
        Use::own(&flags::REPEATS, |params, value| value.put_count(&mut params.repeats)),
        Use::own(&flags::SECONDS, |params, value| value.put_seconds(&mut params.cell_s)),
        Use::own(&flags::SIZE, |params: &mut Self, value| value.put_bytes(&mut params.data_bytes))
            .noted(", and of the databases of engines"),
        Use::own(&flags::MEMORY, |params, value| value.put_bytes(&mut params.memory_bytes)),
        Use::own(&flags::THREADS, |params: &mut Self, value| {
            value.put_count(&mut params.threads);
            value.put_count(&mut params.fit_threads);
        })
        .only(|_, value| value.one().is_some(), "a single count for engines, as in --threads 16")
        .noted("; engines takes a single count only"),
    ];

    fn preset(preset: Preset) -> Self {
        let quick = Self {
            cell_s: 0.6,
            repeats: 2,
            data_bytes: 256 * MIB,
            memory_bytes: 96 * MIB,
            fit_data_bytes: 32 * MIB,
            fit_memory_bytes: 256 * MIB,
            value_bytes: 1000,
            threads: 16,
            fit_threads: 2,
            writers: 16,
            stores: Vec::new(),
        };
        match preset {
            Preset::Quick => quick,
            Preset::Standard => Self {
                cell_s: 0.9,
                data_bytes: 512 * MIB,
                memory_bytes: 128 * MIB,
                fit_data_bytes: 64 * MIB,
                fit_memory_bytes: 512 * MIB,
                ..quick
            },
            Preset::Paper => Self {
                cell_s: 90.0,
                repeats: 3,
                data_bytes: 64 * GIB,
                memory_bytes: 8 * GIB,
                fit_data_bytes: 4 * GIB,
                fit_memory_bytes: 16 * GIB,
                ..quick
            },
        }
    }

    fn check(&self) -> Result<(), String> {
        if let Some(id) = self.stores.iter().find(|id| kind_of(id).is_none()) {
            let all = KINDS.map(|kind| kind.id).join(", ");
            return Err(format!("engines.contenders: no store is called '{id}'; there are {all}"));
        }
        if self.data_bytes / 2 < self.memory_bytes {
            let (data, memory) = (bytes(self.data_bytes), bytes(self.memory_bytes));
            return Err(format!(
                "engines.data_bytes (--size): {data} of data must be at least twice the {memory} of memory, \
                 engines.memory_bytes (--memory)"
            ));
        }
        seconds("engines.cell_s", &[self.cell_s])?;
        let checks = [
            ((1..=1000).contains(&self.repeats), "repeats must be 1 to 1000"),
            ((8 * MIB..=1 << 50).contains(&self.data_bytes), "data_bytes must be 8 MiB to 2^50"),
            ((MIB..=1 << 50).contains(&self.fit_data_bytes), "fit_data_bytes must be 1 MiB to 2^50"),
            (self.memory_bytes >= 32 * MIB, "memory_bytes must be at least 32 MiB"),
            (
                self.fit_memory_bytes / 4 >= self.fit_data_bytes,
                "fit_memory_bytes must be at least four times fit_data_bytes",
            ),
            (self.fit_memory_bytes >= 64 * MIB, "fit_memory_bytes must be at least 64 MiB"),
            ((16..=1 << 20).contains(&self.value_bytes), "value_bytes must be 16 to 1048576"),
            ((1..=512).contains(&self.threads), "threads must be 1 to 512"),
            ((1..=512).contains(&self.fit_threads), "fit_threads must be 1 to 512"),
            ((2..=512).contains(&self.writers), "writers must be 2 to 512"),
        ];
        match checks.into_iter().find(|(fine, _)| !fine) {
            Some((_, what)) => Err(format!("engines.{what}")),
            None => Ok(()),
        }
    }
}
