//! Parameters of `random`, with their presets.

use serde::{Deserialize, Serialize};

use super::ID;
use crate::config::check::{block, counts, seconds};
use crate::config::flags::{self, Use};
use crate::config::{self, ExperimentId, Preset};

/// Parameters of `random`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Params {
    /// Length of a trial, in seconds.
    pub(crate) cell_s: f64,
    /// Length in seconds of a trial on the RAM-backed device.
    pub(crate) ram_cell_s: f64,
    /// Thread counts of the synchronous methods.
    pub(crate) threads: Vec<u32>,
    /// Queue depths of the ring methods, which use one thread.
    pub(crate) depths: Vec<u32>,
    /// Thread counts of the synchronous methods, and depths of the others, on the RAM-backed device.
    pub(crate) ram_threads: Vec<u32>,
    /// Bytes of one read.
    pub(crate) block_bytes: u64,
}

impl config::Params for Params {
    const OF: ExperimentId = ID;

    const SHARED: &'static [&'static flags::Flag] = &[
        &flags::TRACE,
        &flags::SIZE,
        &flags::MEMORY,
        &flags::MEMORY_METHOD,
        &flags::RAM_DEVICE,
        &flags::RAM_SIZE,
        &flags::DEVICE,
        &flags::FILE,
        &flags::FIO,
        &flags::POOL,
        &flags::READ_AHEAD,
    ];

    const FLAGS: &'static [Use<Self>] = &[
        Use::own(&flags::SECONDS, |params, value| {
            value.put_seconds(&mut params.cell_s);
            value.put_seconds(&mut params.ram_cell_s);
        }),
        Use::own(&flags::THREADS, |params, value| {
            value.put_counts(&mut params.threads);
            value.put_counts(&mut params.ram_threads);
        }),
        Use::own(&flags::DEPTHS, |params, value| value.put_counts(&mut params.depths)),
    ];

    fn preset(preset: Preset) -> Self {
        let quick = Self {
            cell_s: 0.5,
            ram_cell_s: 0.3,
            threads: vec![1, 4, 16, 64],
            depths: vec![1, 4, 16, 64],
            ram_threads: vec![1, 4, 16],
            block_bytes: 4096,
        };
        let standard = |quick| Self {
            cell_s: 1.0,
            ram_cell_s: 0.5,
            threads: vec![1, 2, 4, 8, 16, 32, 64, 128],
            depths: vec![1, 2, 4, 8, 16, 32, 64, 128],
            ram_threads: vec![1, 2, 4, 16],
            ..quick
        };
        match preset {
            Preset::Quick => quick,
            Preset::Standard => standard(quick),
            Preset::Paper => Self {
                cell_s: 300.0,
                threads: vec![1, 2, 4, 8, 16, 32, 64, 100, 128],
                depths: vec![1, 2, 4, 8, 16, 32, 64, 128, 256],
                ..standard(quick)
            },
        }
    }

    fn check(&self) -> Result<(), String> {
        seconds("random.cell_s", &[self.cell_s, self.ram_cell_s])?;
        counts("random.threads", &self.threads, 4096)?;
        counts("random.ram_threads", &self.ram_threads, 4096)?;
        counts("random.depths", &self.depths, 4096)?;
        block("random.block_bytes", self.block_bytes)
    }
}
