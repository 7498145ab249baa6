//! Parameters of `replay`, with their presets.

use serde::{Deserialize, Serialize};

use super::ID;
use crate::config::check::seconds;
use crate::config::flags::{self, Flag, Heading, Kind, Reach, Use};
use crate::config::{self, ExperimentId, Preset};

/// The flag for a replay without the recorded times.
static NO_THINK_TIME: Flag = Flag {
    name: "no-think-time",
    value_name: "",
    help: "Replay the accesses of --trace as fast as each method can, without the recorded times between them",
    heading: Heading::What,
    kind: Kind::Switch,
    reach: Reach::Chosen,
    shared: None,
};

/// Parameters of `replay`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Params {
    /// Seconds of the trace that are replayed at their recorded times; without these the length of a trial.
    pub(crate) cell_s: f64,
    /// Whether each access is due at its recorded time.
    pub(crate) think_time: bool,
}

impl config::Params for Params {
    const OF: ExperimentId = ID;

    const SHARED: &'static [&'static flags::Flag] =
        &[&flags::TRACE, &flags::SIZE, &flags::MEMORY, &flags::MEMORY_METHOD];

    const FLAGS: &'static [Use<Self>] = &[
        Use::own(&flags::SECONDS, |params: &mut Self, value| value.put_seconds(&mut params.cell_s))
            .noted("; in replay the seconds of the trace"),
        Use::own(&NO_THINK_TIME, |params: &mut Self, _| params.think_time = false),
        Use::none(&flags::THREADS, "the trace gives the threads"),
        Use::none(&flags::DEPTHS, "a ring has a request in flight for each thread of the trace"),
    ];

    fn preset(preset: Preset) -> Self {
        let cell_s = match preset {
            Preset::Quick => 3.0,
            Preset::Standard => 10.0,
            Preset::Paper => 60.0,
        };
        Self { cell_s, think_time: true }
    }

    fn check(&self) -> Result<(), String> {
        seconds("replay.cell_s", &[self.cell_s])
    }
}
