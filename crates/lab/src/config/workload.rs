//! The user's description of the database in question. It changes no measurement, only the verdict; it stands in the
//! configuration so that a result's verdict and report can be made again from its records.

use serde::{Deserialize, Serialize};

/// The answer to a yes-or-no question.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum YesNo {
    /// The user gave no answer.
    #[default]
    Nothing,
    /// The user answered yes.
    Yes,
    /// The user answered no.
    No,
}

impl YesNo {
    /// The answer as a truth value; `None` if the user gave none.
    pub fn answer(self) -> Option<bool> {
        match self {
            Self::Nothing => None,
            Self::Yes => Some(true),
            Self::No => Some(false),
        }
    }
}

impl From<bool> for YesNo {
    fn from(answer: bool) -> Self {
        if answer { Self::Yes } else { Self::No }
    }
}

/// The user's description of the workload for which the verdict of a run is made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkloadConfig {
    /// Whether the database is never written.
    pub read_only: YesNo,
    /// Whether the part of the data in use fits in memory.
    pub fits_in_memory: YesNo,
    /// Threads using the database at the same time; 0 if not given.
    pub threads: u32,
    /// Whether an occasional slow answer is a problem.
    pub latency_matters: YesNo,
    /// Whether several changes must happen together or not happen, and survive a crash.
    pub needs_transactions: YesNo,
}
