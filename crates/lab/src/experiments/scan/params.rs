//! Parameters of `scan`, with their presets, and the flag that only it has.

use serde::{Deserialize, Serialize};

use super::ID;
use crate::config::check::{at_least, block, counts, seconds};
use crate::config::flags::{self, Flag, Heading, Kind, Reach, Use};
use crate::config::{self, ExperimentId, MIB, Preset};

/// Parameters of `scan`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Params {
    /// Length of a trial, in seconds.
    pub(crate) cell_s: f64,
    /// Thread counts of the mapped methods; each thread scans its own stripe at a time.
    pub(crate) map_threads: Vec<u32>,
    /// Bytes of the stripe that a thread scans at a time, as in the published benchmark mmapbench.
    pub(crate) map_stripe_bytes: u64,
    /// Queue depths of the direct methods, which use one thread.
    pub(crate) depths: Vec<u32>,
    /// Bytes of one direct read.
    pub(crate) block_bytes: u64,
    /// Bytes of one stripe when the data is striped over several files or devices.
    pub(crate) raid_stripe_bytes: u64,
    /// Largest number of RAM-backed devices to stripe over: 2 adds a pair to the single device.
    pub(crate) ram_devices: u32,
}

/// The flag naming a further folder, on another file system, for the striped scan.
static STRIPE_OVER: Flag = Flag {
    name: "stripe-over",
    value_name: "FOLDER",
    help: "A further folder, on another file system, for the striped scan; may be repeated",
    heading: Heading::Where,
    kind: Kind::Paths,
    reach: Reach::Chosen,
    shared: Some(|config, value| value.put_paths(&mut config.stripe_over)),
};

impl config::Params for Params {
    const OF: ExperimentId = ID;

    const SHARED: &'static [&'static flags::Flag] = &[
        &flags::SIZE,
        &flags::MEMORY,
        &flags::MEMORY_METHOD,
        &flags::RAM_DEVICE,
        &flags::RAM_SIZE,
        &flags::DEVICE,
        &flags::FILE,
        &STRIPE_OVER,
        &flags::FIO,
        &flags::POOL,
        &flags::READ_AHEAD,
    ];

    const FLAGS: &'static [Use<Self>] = &[
        Use::own(&flags::SECONDS, |params, value| value.put_seconds(&mut params.cell_s)),
        Use::own(&flags::THREADS, |params, value| value.put_counts(&mut params.map_threads)),
        Use::own(&flags::DEPTHS, |params, value| value.put_counts(&mut params.depths)),
    ];

    fn preset(preset: Preset) -> Self {
        let quick = Self {
            cell_s: 0.45,
            map_threads: vec![4],
            map_stripe_bytes: 128 * MIB,
            depths: vec![4],
            block_bytes: MIB,
            raid_stripe_bytes: MIB,
            ram_devices: 2,
        };
        let standard = |quick| Self { cell_s: 0.8, map_threads: vec![1, 4, 20], depths: vec![4, 20], ..quick };
        match preset {
            Preset::Quick => quick,
            Preset::Standard => standard(quick),
            Preset::Paper => Self { cell_s: 200.0, ..standard(quick) },
        }
    }

    fn check(&self) -> Result<(), String> {
        seconds("scan.cell_s", &[self.cell_s])?;
        counts("scan.map_threads", &self.map_threads, 4096)?;
        counts("scan.depths", &self.depths, 4096)?;
        block("scan.block_bytes", self.block_bytes)?;
        block("scan.raid_stripe_bytes", self.raid_stripe_bytes)?;
        at_least("scan.map_stripe_bytes", self.map_stripe_bytes, MIB)
    }
}
