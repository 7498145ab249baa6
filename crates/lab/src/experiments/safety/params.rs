//! Parameters of `safety`, with their presets.

use serde::{Deserialize, Serialize};

use super::ID;
use crate::config::check::seconds;
use crate::config::flags::{self, Use};
use crate::config::{self, ExperimentId, MIB, Preset};

/// Parameters of `safety`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Params {
    /// Length of a trial in seconds; filling the store, opening it again and checking it come on top.
    pub(crate) cell_s: f64,
    /// Number of keys in the store.
    pub(crate) keys: u32,
    /// Bytes of a value.
    pub(crate) value_bytes: u32,
    /// Numbers of writers that commit at the same time.
    pub(crate) writers: Vec<u32>,
    /// Bytes of log between checkpoints, for all stores with a log.
    pub(crate) log_bytes: u64,
    /// Whether to wait also until the kernel writes uncommitted pages by itself, which takes as long as the
    /// machine's `dirty_expire_centisecs` says.
    pub(crate) wait_for_kernel: bool,
}

impl config::Params for Params {
    const OF: ExperimentId = ID;

    const FLAGS: &'static [Use<Self>] = &[
        Use::own(&flags::SECONDS, |params, value| value.put_seconds(&mut params.cell_s)),
        Use::none(&flags::SIZE, "--set safety.keys=COUNT"),
        Use::own(&flags::THREADS, |params, value| value.put_counts(&mut params.writers)),
    ];

    fn check(&self) -> Result<(), String> {
        let in_range = |name: &str, value: u64, least: u64, most: u64| {
            let fine = (least..=most).contains(&value);
            if fine { Ok(()) } else { Err(format!("safety.{name} = {value}: must be {least} to {most}")) }
        };
        seconds("safety.cell_s", &[self.cell_s])?;
        if self.writers.is_empty() {
            return Err("safety.writers: at least one is needed".into());
        }
        self.writers.iter().try_for_each(|count| in_range("writers", u64::from(*count), 1, 1024))?;
        in_range("keys", self.keys.into(), 2, 1 << 30)?;
        in_range("value_bytes", self.value_bytes.into(), 8, 1 << 20)?;
        in_range("log_bytes", self.log_bytes, 1 << 20, 1 << 40)
    }

    fn preset(preset: Preset) -> Self {
        let quick = Self {
            cell_s: 0.3,
            keys: 10_000,
            value_bytes: 100,
            writers: vec![8],
            log_bytes: 16 * MIB,
            wait_for_kernel: false,
        };
        let standard = Self {
            cell_s: 1.0,
            keys: 50_000,
            writers: vec![1, 8, 64],
            log_bytes: 64 * MIB,
            wait_for_kernel: true,
            ..quick.clone()
        };
        match preset {
            Preset::Quick => quick,
            Preset::Standard => standard,
            Preset::Paper => Self { cell_s: 30.0, keys: 1_000_000, log_bytes: 256 * MIB, ..standard },
        }
    }
}
