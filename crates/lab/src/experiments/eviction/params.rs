//! Parameters of `eviction`, with their presets.

use serde::{Deserialize, Serialize};

use super::ID;
use crate::config::check::{at_least, counts, seconds};
use crate::config::flags::{self, Use};
use crate::config::{self, ExperimentId, MIB, Preset};

/// Parameters of `eviction`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Params {
    /// Length in seconds of a trial under reclaim.
    pub(crate) cell_s: f64,
    /// Length in seconds of a trial that measures a single mechanism (`faults`, `shootdowns`).
    pub(crate) part_s: f64,
    /// Thread counts of the trials under reclaim.
    pub(crate) threads: Vec<u32>,
    /// Number of threads of a scan.
    pub(crate) scan_threads: u32,
    /// Bytes of memory that the cgroup leaves to page cache and process.
    pub(crate) cgroup_bytes: u64,
    /// Bytes of memory that the ballast leaves to all processes, so that kswapd reclaims; it leaves more where the
    /// machine needs more.
    pub(crate) kswapd_bytes: u64,
    /// Whether trials under kswapd are measured. They need a ballast, which takes nearly all of the machine's memory
    /// for a while.
    pub(crate) kswapd: bool,
    /// Bytes of the file in memory from which `faults` maps cached pages.
    pub(crate) fault_bytes: u64,
}

impl Params {
    /// The parameters of the quick preset: short trials, only under a cgroup.
    fn quick() -> Self {
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

    /// The parameters of the standard preset: both ways of reclaim, on one thread and on many.
    fn standard() -> Self {
        Self {
            cell_s: 0.9,
            part_s: 0.3,
            threads: vec![1, 16],
            kswapd: true,
            fault_bytes: 256 * MIB,
            cgroup_bytes: 256 * MIB,
            ..Self::quick()
        }
    }

    /// The parameters of the paper preset: longer trials, on as many threads as in the paper.
    fn paper() -> Self {
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

impl config::Params for Params {
    const OF: ExperimentId = ID;

    const SHARED: &'static [&'static flags::Flag] = &[&flags::SIZE, &flags::RAM_DEVICE, &flags::RAM_SIZE];

    const FLAGS: &'static [Use<Self>] = &[
        Use::own(&flags::SECONDS, |params, value| value.put_seconds(&mut params.cell_s)),
        Use::shared(&flags::MEMORY).and_own(|params, value| {
            value.put_bytes(&mut params.cgroup_bytes);
            value.put_bytes(&mut params.kswapd_bytes);
        }),
        Use::own(&flags::THREADS, |params, value| {
            value.put_counts(&mut params.threads);
            value.put_count(&mut params.scan_threads);
        }),
    ];

    fn preset(preset: Preset) -> Self {
        match preset {
            Preset::Quick => Self::quick(),
            Preset::Standard => Self::standard(),
            Preset::Paper => Self::paper(),
        }
    }

    fn check(&self) -> Result<(), String> {
        seconds("eviction.cell_s", &[self.cell_s, self.part_s])?;
        counts("eviction.threads", &self.threads, 4096)?;
        counts("eviction.scan_threads", &[self.scan_threads], 4096)?;
        at_least("eviction.cgroup_bytes", self.cgroup_bytes, 32 * MIB)?;
        at_least("eviction.kswapd_bytes", self.kswapd_bytes, 32 * MIB)?;
        at_least("eviction.fault_bytes", self.fault_bytes, MIB)
    }
}
