//! Parameters of `translate`, with their presets.

use serde::{Deserialize, Serialize};

use super::ID;
use crate::config::check::{at_least, counts, seconds};
use crate::config::flags::{self, Use};
use crate::config::{self, ExperimentId, MIB, Preset};

/// Parameters of `translate`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Params {
    /// Length of a trial, in seconds.
    pub(crate) cell_s: f64,
    /// Sizes in bytes of the pages that are accessed, all in memory.
    pub(crate) working_set_bytes: Vec<u64>,
    /// Thread counts; the plan leaves out counts above the number of CPUs.
    pub(crate) threads: Vec<u32>,
    /// Whether the control is measured too: a hash table with locks and pins as in the textbook.
    pub(crate) controls: bool,
}

impl Params {
    /// The parameters of the quick preset: one working set, one thread.
    fn quick() -> Self {
        Self { cell_s: 0.1, working_set_bytes: vec![128 * MIB], threads: vec![1], controls: false }
    }

    /// The parameters of the standard preset: working sets from the size of the caches to far beyond them.
    fn standard() -> Self {
        Self {
            cell_s: 0.3,
            working_set_bytes: vec![2 * MIB, 64 * MIB, 1024 * MIB],
            threads: vec![1, 2],
            controls: true,
        }
    }

    /// The parameters of the paper preset: larger working sets, longer trials, more threads.
    fn paper() -> Self {
        Self {
            cell_s: 2.0,
            working_set_bytes: vec![2 * MIB, 64 * MIB, 1024 * MIB, 8192 * MIB, 32_768 * MIB],
            threads: vec![1, 2, 4, 8, 16, 32, 64, 128],
            controls: true,
        }
    }
}

impl config::Params for Params {
    const OF: ExperimentId = ID;

    const FLAGS: &'static [Use<Self>] = &[
        Use::own(&flags::SECONDS, |params, value| value.put_seconds(&mut params.cell_s)),
        Use::none(&flags::SIZE, "--set translate.working_set_bytes=[BYTES]"),
        Use::own(&flags::THREADS, |params, value| value.put_counts(&mut params.threads)),
    ];

    fn preset(preset: Preset) -> Self {
        match preset {
            Preset::Quick => Self::quick(),
            Preset::Standard => Self::standard(),
            Preset::Paper => Self::paper(),
        }
    }

    fn check(&self) -> Result<(), String> {
        seconds("translate.cell_s", &[self.cell_s])?;
        counts("translate.threads", &self.threads, 4096)?;
        let sizes = &self.working_set_bytes;
        sizes.iter().try_for_each(|bytes| at_least("translate.working_set_bytes", *bytes, 1 << 16))
    }
}
