//! Parameters of `translate`, with their presets.

use serde::{Deserialize, Serialize};

const MIB: u64 = 1 << 20;

/// Parameters of `translate`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TranslateConfig {
    /// Length of a cell.
    pub cell_s: f64,
    /// Sizes of the pages that are accessed, all in memory.
    pub working_set_bytes: Vec<u64>,
    /// Thread counts; a count above the number of CPUs is left out.
    pub threads: Vec<u32>,
    /// Also the controls: frames in small pages, and a hash table with locks and pins as the textbook has it.
    pub controls: bool,
}

impl TranslateConfig {
    /// A first look: one size, one thread.
    pub(super) fn quick() -> Self {
        Self { cell_s: 0.1, working_set_bytes: vec![128 * MIB], threads: vec![1], controls: false }
    }

    /// From what the caches hold to far beyond them.
    pub(super) fn standard() -> Self {
        Self {
            cell_s: 0.3,
            working_set_bytes: vec![2 * MIB, 64 * MIB, 1024 * MIB],
            threads: vec![1, 2],
            controls: true,
        }
    }

    /// Larger, longer, on more threads.
    pub(super) fn paper() -> Self {
        Self {
            cell_s: 2.0,
            working_set_bytes: vec![2 * MIB, 64 * MIB, 1024 * MIB, 8192 * MIB, 32_768 * MIB],
            threads: vec![1, 2, 4, 8, 16, 32, 64, 128],
            controls: true,
        }
    }
}
