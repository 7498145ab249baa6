//! Parameters of `access`, with their presets.

use serde::{Deserialize, Serialize};

use super::ID;
use crate::config::check::{counts, positive, seconds};
use crate::config::flags::{self, Use};
use crate::config::{self, ExperimentId, Preset};

/// Parameters of `access`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Params {
    /// Length of a trial, in seconds.
    pub(crate) cell_s: f64,
    /// Batch sizes of the ring method.
    pub(crate) batches: Vec<u32>,
    /// Number of overwrites between two syncs.
    pub(crate) writes_per_sync: u32,
    /// Rates of the open-loop trials, as shares of the closed-loop rate of the same method.
    pub(crate) open_loop_shares: Vec<f64>,
    /// Whether ring set-ups are measured too: registered buffers, DEFER_TASKRUN, SQPOLL.
    pub(crate) ring_setups: bool,
}

impl config::Params for Params {
    const OF: ExperimentId = ID;

    const SHARED: &'static [&'static flags::Flag] =
        &[&flags::SIZE, &flags::MEMORY, &flags::MEMORY_METHOD, &flags::RAM_DEVICE, &flags::RAM_SIZE, &flags::DEVICE];

    const FLAGS: &'static [Use<Self>] = &[
        Use::own(&flags::SECONDS, |params, value| value.put_seconds(&mut params.cell_s)),
        Use::own(&flags::DEPTHS, |params: &mut Self, value| value.put_counts(&mut params.batches))
            .noted("; in access the sizes of their batches"),
    ];

    fn preset(preset: Preset) -> Self {
        let quick = Self {
            cell_s: 0.3,
            batches: vec![8, 64],
            writes_per_sync: 64,
            open_loop_shares: vec![0.5],
            ring_setups: false,
        };
        let standard = |quick| Self {
            cell_s: 0.5,
            batches: vec![1, 4, 16, 64, 128],
            open_loop_shares: vec![0.5, 0.8],
            ring_setups: true,
            ..quick
        };
        match preset {
            Preset::Quick => quick,
            Preset::Standard => standard(quick),
            Preset::Paper => Self { cell_s: 60.0, batches: vec![1, 2, 4, 8, 16, 32, 64, 128], ..standard(quick) },
        }
    }

    fn check(&self) -> Result<(), String> {
        seconds("access.cell_s", &[self.cell_s])?;
        counts("access.batches", &self.batches, 4096)?;
        counts("access.writes_per_sync", &[self.writes_per_sync], 1 << 20)?;
        positive("access.open_loop_shares", &self.open_loop_shares)
    }
}
