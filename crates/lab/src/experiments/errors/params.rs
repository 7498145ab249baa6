//! Parameters of `errors`, with their presets.

use serde::{Deserialize, Serialize};

use super::ID;
use crate::config::check::{at_least, seconds};
use crate::config::flags::{self, Use};
use crate::config::{self, ExperimentId, MIB, Preset};

/// Parameters of `errors`. They concern only `checksum-cost`: each fault is made once, without parameters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Params {
    /// Length in seconds of a trial that measures the cost of checking.
    pub(crate) cell_s: f64,
    /// Sizes in bytes of the data, all in memory, whose pages `checksum-cost` accesses.
    pub(crate) working_sets: Vec<u64>,
}

impl config::Params for Params {
    const OF: ExperimentId = ID;

    const FLAGS: &'static [Use<Self>] =
        &[Use::own(&flags::SECONDS, |params, value| value.put_seconds(&mut params.cell_s)), Use::shared(&flags::SIZE)];

    fn preset(preset: Preset) -> Self {
        match preset {
            Preset::Quick => Self { cell_s: 0.4, working_sets: vec![64 * MIB] },
            Preset::Standard => Self { cell_s: 2.0, working_sets: vec![MIB, 512 * MIB] },
            Preset::Paper => Self { cell_s: 20.0, working_sets: vec![MIB, 64 * MIB, 512 * MIB, 2048 * MIB] },
        }
    }

    fn check(&self) -> Result<(), String> {
        seconds("errors.cell_s", &[self.cell_s])?;
        self.working_sets.iter().try_for_each(|bytes| at_least("errors.working_sets", *bytes, 4096))
    }
}
