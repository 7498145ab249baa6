//! Parameters of `batch`, with their presets.

use serde::{Deserialize, Serialize};

use super::ID;
use crate::config::check::{counts, seconds};
use crate::config::flags::{self, Use};
use crate::config::{self, ExperimentId, Preset};

/// Parameters of `batch`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Params {
    /// Length of a trial in seconds; cold trials last for at least eight requests.
    pub(crate) cell_s: f64,
    /// Numbers of pages of a request.
    pub(crate) pages: Vec<u32>,
    /// Number of threads that share a request, for the methods with threads.
    pub(crate) helpers: u32,
}

impl config::Params for Params {
    const OF: ExperimentId = ID;

    const SHARED: &'static [&'static flags::Flag] =
        &[&flags::SIZE, &flags::MEMORY, &flags::MEMORY_METHOD, &flags::POOL];

    const FLAGS: &'static [Use<Self>] = &[
        Use::own(&flags::SECONDS, |params, value| value.put_seconds(&mut params.cell_s)),
        Use::own(&flags::DEPTHS, |params: &mut Self, value| value.put_counts(&mut params.pages))
            .noted("; in `batch` the numbers of pages of a request"),
        Use::own(&flags::THREADS, |params: &mut Self, value| value.put_count(&mut params.helpers))
            .only(|_, value| value.one().is_some(), "one count: --set batch.helpers=COUNT"),
    ];

    fn preset(preset: Preset) -> Self {
        let quick = Self { cell_s: 0.3, pages: vec![64, 512, 4096], helpers: 32 };
        match preset {
            Preset::Quick | Preset::Standard => quick,
            Preset::Paper => Self { cell_s: 10.0, helpers: 128, ..quick },
        }
    }

    fn check(&self) -> Result<(), String> {
        seconds("batch.cell_s", &[self.cell_s])?;
        // A ring takes at most 32768 requests.
        counts("batch.pages", &self.pages, 16_384)?;
        counts("batch.helpers", &[self.helpers], 4096)
    }
}
