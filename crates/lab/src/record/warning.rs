//! The warnings of a trial: a sentence for people, and its kind where rules act on it.

use serde::{Deserialize, Serialize};

/// A reason to doubt a trial.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Form", into = "Form")]
pub struct Warning {
    /// The kind; `None` for a warning that is only shown.
    pub kind: Option<WarningKind>,
    /// The warning, in words for a person.
    pub text: String,
}

/// A kind of warning that rules act on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WarningKind {
    /// Other programs used the CPU.
    OtherLoad,
    /// The hypervisor took CPU time.
    Steal,
    /// Other programs read from the device of the trial.
    ForeignReads,
    /// The device moved more or fewer bytes than the trial asked for.
    DeviceTraffic,
    /// The device or the method was too slow for the planned rate of requests.
    RateNotKept,
}

/// A warning as records hold it: a text, as all were in schema 1, or a kind with a text.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Form {
    Text(String),
    OfKind { kind: WarningKind, text: String },
}

impl WarningKind {
    /// Creates a warning of this kind.
    pub(crate) fn warning(self, text: String) -> Warning {
        Warning { kind: Some(self), text }
    }

    /// Returns whether any of the warnings is of this kind.
    pub(crate) fn is_among(self, warnings: &[Warning]) -> bool {
        warnings.iter().any(|warning| warning.kind == Some(self))
    }
}

impl From<String> for Warning {
    fn from(text: String) -> Self {
        Self { kind: None, text }
    }
}

impl From<&str> for Warning {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl From<Form> for Warning {
    fn from(form: Form) -> Self {
        match form {
            Form::Text(text) => text.into(),
            Form::OfKind { kind, text } => kind.warning(text),
        }
    }
}

impl From<Warning> for Form {
    fn from(Warning { kind, text }: Warning) -> Self {
        match kind {
            Some(kind) => Self::OfKind { kind, text },
            None => Self::Text(text),
        }
    }
}
