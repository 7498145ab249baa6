//! The name of an experiment, as an id that is cheap to copy.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An experiment by its name on the command line and in records. The registry (`experiments`) says which names this build has; records of
/// a newer nofault may hold others, which are kept as they are.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ExperimentId(&'static str);

/// Names that were read and not written in the source. Each is kept once and never dropped: there are as many as a record file has experiments.
static INTERNED: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

impl ExperimentId {
    /// Creates the id of an experiment from a name in the source code.
    pub const fn new(name: &'static str) -> Self {
        Self(name)
    }

    /// Creates the id of an experiment from a name in a file.
    pub fn of(name: &str) -> Self {
        let mut names = INTERNED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = names.get(name) {
            return Self(known);
        }
        let kept: &'static str = Box::leak(name.into());
        names.insert(kept);
        Self(kept)
    }

    /// The name on the command line and in records.
    pub const fn name(self) -> &'static str {
        self.0
    }
}

impl fmt::Debug for ExperimentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl fmt::Display for ExperimentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl Serialize for ExperimentId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0)
    }
}

impl<'de> Deserialize<'de> for ExperimentId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::of(&String::deserialize(deserializer)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_read_is_the_name_that_is_written() {
        let read: Vec<ExperimentId> = serde_json::from_str(r#"["scan","telepathy","telepathy"]"#).unwrap();
        assert_eq!(read, [ExperimentId::new("scan"), ExperimentId::of("telepathy"), read[1]]);
        assert!(std::ptr::eq(read[1].name(), read[2].name()), "kept once");
        assert_eq!(serde_json::to_string(&read).unwrap(), r#"["scan","telepathy","telepathy"]"#);
    }
}
