//! The label of an object: a manifest's entry about it. It binds the object to its history, in any place and whatever its name
//! is, and a manifest that was lost is rebuilt from labels.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::manifest::{EpochName, Foundation};
use crate::object::{HEAD_BYTES, split_label};
use crate::remote::Remote;

/// The label of an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Label {
    /// The history whose manifest is to name the object.
    pub(crate) history: String,
    /// The manifest that was the newest when the object was written.
    pub(crate) sequence: u64,
    pub(crate) epoch: EpochName,
    pub(crate) content: Content,
}

/// The content of an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Content {
    Log(Piece),
    Base(Part),
}

/// A piece of the log: see [`LogObject`](crate::manifest::LogObject).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Piece {
    pub(crate) level: u8,
    pub(crate) after: u64,
    pub(crate) last: u64,
    pub(crate) last_time_ms: u64,
    pub(crate) raw_bytes: u64,
    /// Position at which the tail continues, if it is known.
    pub(crate) position: Option<String>,
}

/// A part of a base: see [`Base`](crate::manifest::Base).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) commit: u64,
    pub(crate) time_ms: u64,
    pub(crate) page_bytes: u64,
    pub(crate) on: Option<Foundation>,
    /// Position at which a tail continues behind the commit.
    pub(crate) position: String,
    pub(crate) number: u64,
    pub(crate) is_last: bool,
}

impl Label {
    pub(crate) fn encode(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self).map_err(|error| Error::corrupt(format!("write a label: {error}")))
    }

    /// Returns the label of an object, or of the head of one. `None` for one that earlier versions wrote.
    ///
    /// # Errors
    /// `Corrupt` when the label cannot be read.
    pub(crate) fn of(object: &[u8]) -> Result<Option<Self>> {
        let Some(label) = split_label(object)?.0 else { return Ok(None) };
        serde_json::from_slice(label).map(Some).map_err(|error| Error::corrupt(format!("its label: {error}")))
    }

    /// Reads the label of an object of a store; `None` for one without a label, or that is gone.
    ///
    /// # Errors
    /// `Store`.
    pub(crate) async fn read(remote: &Remote, name: &str, bytes: u64) -> Result<Option<Self>> {
        // A request for a part of an empty object would fail.
        let head = if bytes == 0 { None } else { remote.head(name, HEAD_BYTES).await? };
        Ok(head.and_then(|head| Self::of(&head).ok().flatten()))
    }
}
