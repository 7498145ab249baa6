//! Parameters of `async`, with their presets.

use serde::{Deserialize, Serialize};

use super::ID;
use crate::config::check::{at_least, counts};
use crate::config::flags::{self, Use};
use crate::config::{self, ExperimentId, MIB, Preset};

/// Parameters of `async`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Params {
    /// Number of files, each read by one task.
    pub(crate) files: u32,
    /// Bytes of a file.
    pub(crate) file_bytes: u64,
    /// Number of random 4 KiB touches in each file.
    pub(crate) touches: u32,
    /// Number of runs of each configuration: one dot each in the strip plot.
    pub(crate) runs: u32,
    /// Whether the published measurement's sequential sum is measured too.
    pub(crate) sequential: bool,
    /// Whether the published measurement's open questions are measured too: madvise options, read-ahead, prefetch
    /// instructions, device kinds.
    pub(crate) open_questions: bool,
}

impl Params {
    /// Bytes of all files together.
    pub(super) fn data_bytes(&self) -> u64 {
        self.file_bytes.saturating_mul(u64::from(self.files))
    }
}

/// The setting without which flags for the open questions have no effect, as error messages name it.
const ASKED: &str = "--set async.open_questions=true beside it";

impl config::Params for Params {
    const OF: ExperimentId = ID;

    const SHARED: &'static [&'static flags::Flag] = &[&flags::POOL, &flags::READ_AHEAD];

    const FLAGS: &'static [Use<Self>] = &[
        Use::own(&flags::REPEATS, |params, value| value.put_count(&mut params.runs)),
        Use::none(&flags::SECONDS, "--set async.touches=COUNT"),
        Use::none(&flags::SIZE, "--set async.file_bytes=BYTES"),
        Use::none(&flags::THREADS, "--set async.files=COUNT, each read by a task"),
        Use::shared(&flags::RAM_DEVICE).only(|params, _| params.open_questions, ASKED),
        Use::shared(&flags::RAM_SIZE).only(|params, _| params.open_questions, ASKED),
        Use::shared(&flags::DEVICE).only(|params, _| params.open_questions, ASKED),
    ];

    fn preset(preset: Preset) -> Self {
        let quick =
            Self { files: 8, file_bytes: 32 * MIB, touches: 256, runs: 3, sequential: true, open_questions: false };
        let standard =
            |quick| Self { file_bytes: 256 * MIB, touches: 2048, sequential: true, open_questions: true, ..quick };
        match preset {
            Preset::Quick => quick,
            Preset::Standard => standard(quick),
            Preset::Paper => Self { runs: 100, ..standard(quick) },
        }
    }

    fn check(&self) -> Result<(), String> {
        counts("async.files", &[self.files], 1024)?;
        counts("async.runs", &[self.runs], 10_000)?;
        counts("async.touches", &[self.touches], 1 << 24)?;
        at_least("async.file_bytes", self.file_bytes, MIB)
    }
}
