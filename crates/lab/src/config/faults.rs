//! Parameters of the experiments about what goes wrong with a map: `errors` and `stalls`.

use serde::{Deserialize, Serialize};

use super::Preset;

const MIB: u64 = 1 << 20;

/// Parameters of `errors`. The faults have none: each is met once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ErrorsConfig {
    /// Length of a cell that measures what checking costs.
    pub cell_s: f64,
    /// Bytes of the data, all in memory, that are accessed there.
    pub working_sets: Vec<u64>,
}

impl ErrorsConfig {
    /// The values of a preset.
    pub fn preset(preset: Preset) -> Self {
        match preset {
            Preset::Quick => Self { cell_s: 0.4, working_sets: vec![64 * MIB] },
            Preset::Standard => Self { cell_s: 2.0, working_sets: vec![MIB, 512 * MIB] },
            Preset::Paper => Self { cell_s: 20.0, working_sets: vec![MIB, 64 * MIB, 512 * MIB, 2048 * MIB] },
        }
    }
}

/// Parameters of `stalls`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StallsConfig {
    /// Length of a cell.
    pub cell_s: f64,
    /// How many pages ahead the order of accesses is known.
    pub ahead: u32,
    /// Helper threads that touch pages ahead, or fetch what is absent.
    pub helpers: Vec<u32>,
    /// Bytes of the engine's database that is walked, where no other experiment needs a larger one.
    pub scan_bytes: u64,
}

impl StallsConfig {
    /// The values of a preset.
    pub fn preset(preset: Preset) -> Self {
        match preset {
            Preset::Quick => Self { cell_s: 0.5, ahead: 32, helpers: vec![4], scan_bytes: 128 * MIB },
            Preset::Standard => Self { cell_s: 1.5, ahead: 32, helpers: vec![1, 4, 16], scan_bytes: 1024 * MIB },
            Preset::Paper => Self { cell_s: 60.0, ahead: 32, helpers: vec![1, 4, 16, 64], scan_bytes: 8192 * MIB },
        }
    }
}
