//! Parameters of `eviction`, with their presets.

use serde::{Deserialize, Serialize};

const MIB: u64 = 1 << 20;

/// Parameters of `eviction`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EvictionConfig {
    /// Length of a cell under reclaim.
    pub cell_s: f64,
    /// Length of a cell that takes one mechanism apart (`faults`, `shootdowns`).
    pub part_s: f64,
    /// Thread counts under reclaim.
    pub threads: Vec<u32>,
    /// Threads of a scan.
    pub scan_threads: u32,
    /// Bytes that a cgroup leaves to page cache and process.
    pub cgroup_bytes: u64,
    /// Bytes that the ballast leaves to everyone, so that kswapd reclaims; it leaves more where the machine needs it.
    pub kswapd_bytes: u64,
    /// Whether kswapd is made to work at all: the ballast takes nearly all of the machine's memory for a while.
    pub kswapd: bool,
    /// Bytes of the file whose cached pages are faulted in.
    pub fault_bytes: u64,
}

impl EvictionConfig {
    /// Short, by a cgroup alone.
    pub(super) fn quick() -> Self {
        Self {
            cell_s: 0.6,
            part_s: 0.2,
            threads: vec![8],
            scan_threads: 4,
            cgroup_bytes: 64 * MIB,
            kswapd_bytes: 1024 * MIB,
            kswapd: false,
            fault_bytes: 64 * MIB,
        }
    }

    /// Both ways to reclaim, on one thread and on many.
    pub(super) fn standard() -> Self {
        Self {
            cell_s: 1.2,
            part_s: 0.4,
            threads: vec![1, 16],
            kswapd: true,
            fault_bytes: 256 * MIB,
            cgroup_bytes: 256 * MIB,
            ..Self::quick()
        }
    }

    /// Longer, on as many threads as the paper.
    pub(super) fn paper() -> Self {
        Self {
            cell_s: 60.0,
            part_s: 5.0,
            threads: vec![1, 16, 100],
            scan_threads: 20,
            cgroup_bytes: 4096 * MIB,
            kswapd_bytes: 102_400 * MIB,
            fault_bytes: 1024 * MIB,
            ..Self::standard()
        }
    }
}
