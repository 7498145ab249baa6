//! Parameters of `rss`, with their presets.

use serde::{Deserialize, Serialize};

use super::ID;
use crate::config::check::{counts, positive, seconds};
use crate::config::flags::{self, Use};
use crate::config::{self, ExperimentId, Preset};

/// Parameters of `rss`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Params {
    /// Length of a trial in seconds.
    pub(crate) cell_s: f64,
    /// Sizes of the data, as multiples of the memory; under pressure the largest.
    pub(crate) data_per_memory: Vec<f64>,
    /// Number of threads that read.
    pub(crate) threads: u32,
    /// How often each trial is measured.
    pub(crate) repeats: u32,
}

impl config::Params for Params {
    const OF: ExperimentId = ID;

    const SHARED: &'static [&'static flags::Flag] =
        &[&flags::SIZE, &flags::MEMORY, &flags::MEMORY_METHOD, &flags::POOL];

    const FLAGS: &'static [Use<Self>] = &[
        Use::own(&flags::REPEATS, |params, value| value.put_count(&mut params.repeats)),
        Use::own(&flags::SECONDS, |params, value| value.put_seconds(&mut params.cell_s)),
        Use::own(&flags::THREADS, |params: &mut Self, value| value.put_count(&mut params.threads))
            .only(|_, value| value.one().is_some(), "one count: --set rss.threads=COUNT"),
    ];

    fn preset(preset: Preset) -> Self {
        let quick = Self { cell_s: 0.6, data_per_memory: vec![0.5, 4.0], threads: 4, repeats: 3 };
        match preset {
            Preset::Quick | Preset::Standard => quick,
            Preset::Paper => Self { cell_s: 60.0, threads: 16, repeats: 5, ..quick },
        }
    }

    fn check(&self) -> Result<(), String> {
        seconds("rss.cell_s", &[self.cell_s])?;
        positive("rss.data_per_memory", &self.data_per_memory)?;
        if self.data_per_memory.is_empty() {
            return Err("rss.data_per_memory: at least one is needed".into());
        }
        counts("rss.threads", &[self.threads], 1024)?;
        counts("rss.repeats", &[self.repeats], 1000)
    }
}
