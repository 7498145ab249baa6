//! Parameters of `folios`, with their presets.

use serde::{Deserialize, Serialize};

use super::ID;
use crate::config::check::{at_least, seconds};
use crate::config::flags::{self, Use};
use crate::config::{self, ExperimentId, MIB, Preset};

/// Parameters of `folios`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Params {
    /// Length of a trial in seconds; the time for making its file comes on top.
    pub(crate) cell_s: f64,
    /// Bytes of the file, all of which is cached.
    pub(crate) file_bytes: u64,
    /// Sizes of the folios to measure, in bytes.
    pub(crate) folio_bytes: Vec<u64>,
}

impl config::Params for Params {
    const OF: ExperimentId = ID;

    const FLAGS: &'static [Use<Self>] = &[
        Use::own(&flags::SECONDS, |params, value| value.put_seconds(&mut params.cell_s)),
        Use::none(&flags::SIZE, "--set folios.file_bytes=BYTES"),
    ];

    fn preset(preset: Preset) -> Self {
        let quick = Self { cell_s: 0.3, file_bytes: 64 * MIB, folio_bytes: vec![4 << 10, 64 << 10, 2 * MIB] };
        let all = vec![4 << 10, 16 << 10, 64 << 10, 256 << 10, 512 << 10, MIB, 2 * MIB];
        match preset {
            Preset::Quick => quick,
            Preset::Standard => Self { cell_s: 0.5, folio_bytes: all, ..quick },
            Preset::Paper => Self { cell_s: 5.0, file_bytes: 1024 * MIB, folio_bytes: all },
        }
    }

    fn check(&self) -> Result<(), String> {
        seconds("folios.cell_s", &[self.cell_s])?;
        at_least("folios.file_bytes", self.file_bytes, 4 * MIB)?;
        if !self.file_bytes.is_power_of_two() {
            return Err(format!("folios.file_bytes = {}: must be a power of two", self.file_bytes));
        }
        let fine = |bytes: &u64| bytes.is_power_of_two() && (4096..=2 * MIB).contains(bytes);
        match self.folio_bytes.iter().find(|bytes| !fine(bytes)) {
            Some(bytes) => Err(format!("folios.folio_bytes = {bytes}: must be a power of two from 4096 to 2 MiB")),
            None if self.folio_bytes.is_empty() => Err("folios.folio_bytes: at least one is needed".into()),
            None => Ok(()),
        }
    }
}
