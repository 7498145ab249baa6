//! Parameters of `crossover`, with their presets.

use serde::{Deserialize, Serialize};

use super::ID;
use crate::config::check::{counts, positive, seconds};
use crate::config::flags::{self, Use};
use crate::config::{self, ExperimentId, Preset};

/// Parameters of `crossover`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Params {
    /// Length of a trial in seconds.
    pub(crate) cell_s: f64,
    /// Length in seconds of a trial with a hot set.
    pub(crate) hot_s: f64,
    /// Sizes of the data, as multiples of the memory.
    pub(crate) data_per_memory: Vec<f64>,
    /// Requests in flight: threads of a map and of read calls, depth of a ring, tasks of the pool.
    pub(crate) in_flight: Vec<u32>,
    /// How often each trial is measured.
    pub(crate) repeats: u32,
}

impl config::Params for Params {
    const OF: ExperimentId = ID;

    const SHARED: &'static [&'static flags::Flag] = &[
        &flags::SIZE,
        &flags::MEMORY,
        &flags::MEMORY_METHOD,
        &flags::RAM_DEVICE,
        &flags::RAM_SIZE,
        &flags::FILE,
        &flags::POOL,
    ];

    const FLAGS: &'static [Use<Self>] = &[
        Use::own(&flags::REPEATS, |params, value| value.put_count(&mut params.repeats)),
        Use::own(&flags::SECONDS, |params, value| {
            value.put_seconds(&mut params.cell_s);
            value.put_seconds(&mut params.hot_s);
        }),
        Use::own(&flags::THREADS, |params, value| value.put_counts(&mut params.in_flight)),
    ];

    fn preset(preset: Preset) -> Self {
        let quick =
            Self { cell_s: 0.4, hot_s: 1.0, data_per_memory: vec![0.5, 2.0, 8.0], in_flight: vec![1, 16], repeats: 3 };
        match preset {
            Preset::Quick => quick,
            Preset::Standard => Self { in_flight: vec![1, 64], ..quick },
            Preset::Paper => Self {
                cell_s: 20.0,
                hot_s: 10.0,
                data_per_memory: vec![0.5, 0.8, 1.0, 1.25, 1.5, 2.0, 4.0, 8.0],
                in_flight: vec![1, 4, 16, 64],
                repeats: 3,
            },
        }
    }

    fn check(&self) -> Result<(), String> {
        seconds("crossover.cell_s", &[self.cell_s, self.hot_s])?;
        positive("crossover.data_per_memory", &self.data_per_memory)?;
        if self.data_per_memory.is_empty() {
            return Err("crossover.data_per_memory: at least one is needed".into());
        }
        counts("crossover.in_flight", &self.in_flight, 4096)?;
        counts("crossover.repeats", &[self.repeats], 1000)
    }
}
