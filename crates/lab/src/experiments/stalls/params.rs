//! Parameters of `stalls`, with their presets.

use serde::{Deserialize, Serialize};

use super::ID;
use crate::config::check::{at_least, counts, seconds};
use crate::config::flags::{self, Use};
use crate::config::{self, ExperimentId, MIB, Preset};

/// Parameters of `stalls`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Params {
    /// Length of a trial, in seconds.
    pub(crate) cell_s: f64,
    /// Number of pages ahead for which the order of accesses is known.
    pub(crate) ahead: u32,
    /// Numbers of helper threads, which touch pages ahead or fetch absent pages.
    pub(crate) helpers: Vec<u32>,
    /// Bytes of the engine's database to scan, where no other experiment needs a larger database.
    pub(crate) scan_bytes: u64,
}

impl config::Params for Params {
    const OF: ExperimentId = ID;

    const SHARED: &'static [&'static flags::Flag] =
        &[&flags::SIZE, &flags::MEMORY, &flags::MEMORY_METHOD, &flags::POOL];

    const FLAGS: &'static [Use<Self>] = &[
        Use::own(&flags::SECONDS, |params, value| value.put_seconds(&mut params.cell_s)),
        Use::none(&flags::THREADS, "--set stalls.helpers=[COUNT]"),
        Use::none(&flags::DEPTHS, "--set stalls.ahead=COUNT"),
    ];

    fn preset(preset: Preset) -> Self {
        match preset {
            Preset::Quick => Self { cell_s: 0.4, ahead: 32, helpers: vec![4], scan_bytes: 128 * MIB },
            Preset::Standard => Self { cell_s: 1.0, ahead: 32, helpers: vec![1, 4, 16], scan_bytes: 1024 * MIB },
            Preset::Paper => Self { cell_s: 60.0, ahead: 32, helpers: vec![1, 4, 16, 64], scan_bytes: 8192 * MIB },
        }
    }

    fn check(&self) -> Result<(), String> {
        seconds("stalls.cell_s", &[self.cell_s])?;
        counts("stalls.ahead", &[self.ahead], 4096)?;
        counts("stalls.helpers", &self.helpers, 1024)?;
        at_least("stalls.scan_bytes", self.scan_bytes, MIB)
    }
}
