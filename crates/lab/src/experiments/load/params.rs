//! Parameters of `load`, with their presets.

use serde::{Deserialize, Serialize};

use super::{BLOCK_BYTES, ID};
use crate::config::check::{at_least, counts, positive, seconds};
use crate::config::flags::{self, Use};
use crate::config::{self, ExperimentId, GIB, MIB, Preset};

/// Parameters of `load`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Params {
    /// Bytes of the file loaded once, which must fit in the memory of the machine twice.
    pub(crate) file_bytes: u64,
    /// Sizes of the file read again and again, as multiples of the memory.
    pub(crate) data_per_memory: Vec<f64>,
    /// Length in seconds of a trial that reads the file again and again.
    pub(crate) cell_s: f64,
    /// How often each trial is measured.
    pub(crate) repeats: u32,
}

impl config::Params for Params {
    const OF: ExperimentId = ID;

    const SHARED: &'static [&'static flags::Flag] = &[&flags::SIZE, &flags::MEMORY, &flags::MEMORY_METHOD];

    const FLAGS: &'static [Use<Self>] = &[
        Use::own(&flags::REPEATS, |params, value| value.put_count(&mut params.repeats)),
        Use::own(&flags::SECONDS, |params, value| value.put_seconds(&mut params.cell_s)),
    ];

    fn preset(preset: Preset) -> Self {
        let quick = Self { file_bytes: 256 * MIB, data_per_memory: vec![0.75, 1.25, 2.0], cell_s: 0.6, repeats: 3 };
        match preset {
            Preset::Quick => quick,
            Preset::Standard => Self { file_bytes: 512 * MIB, ..quick },
            Preset::Paper => Self {
                file_bytes: 16 * GIB,
                data_per_memory: vec![0.75, 1.0, 1.25, 1.5, 2.0, 4.0],
                cell_s: 120.0,
                repeats: 5,
            },
        }
    }

    fn check(&self) -> Result<(), String> {
        seconds("load.cell_s", &[self.cell_s])?;
        at_least("load.file_bytes", self.file_bytes, 4 * BLOCK_BYTES)?;
        positive("load.data_per_memory", &self.data_per_memory)?;
        counts("load.repeats", &[self.repeats], 1000)
    }
}
