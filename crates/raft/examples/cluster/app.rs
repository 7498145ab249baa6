//! The application: values by key, of any bytes, that can be set, extended and removed.

use nofault::Transaction;
use nofault_raft::{Application, GroupId, Result, SnapshotFile, StateTables};
use serde::{Deserialize, Serialize};

openraft::declare_raft_types!(
    /// The types of this cluster: ids are numbers, a node has the address of its service.
    pub(crate) Types: D = Request, R = Response, SnapshotData = SnapshotFile,
);

/// The table of the values.
pub(crate) const VALUES: &str = "values";

/// A change of one key, or the first name of the group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Request {
    Put {
        key: String,
        #[serde(with = "bytes")]
        value: Vec<u8>,
    },
    /// Adds bytes to the end of the value.
    Append {
        key: String,
        #[serde(with = "bytes")]
        more: Vec<u8>,
    },
    Delete {
        key: String,
    },
    /// Gives the group an id, if it has none.
    Name {
        group: GroupId,
    },
}

/// Values, written in one piece: serde writes a `Vec<u8>` byte by byte, and a large value would take longer than a message may.
pub(crate) mod bytes {
    use std::fmt;

    use serde::de::Visitor;
    use serde::{Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(bytes)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        struct Bytes;

        impl Visitor<'_> for Bytes {
            type Value = Vec<u8>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
                Ok(bytes.to_vec())
            }
        }

        from.deserialize_bytes(Bytes)
    }
}

/// The value that the key had before the change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Response(pub(crate) Option<Vec<u8>>);

/// How each node applies the requests.
#[derive(Debug)]
pub(crate) struct Values;

impl Application<Types> for Values {
    async fn apply(&self, tables: &StateTables, change: &Transaction, request: &Request) -> Result<Response> {
        let table = tables.table(VALUES)?;
        let key = match request {
            Request::Put { key, .. } | Request::Append { key, .. } | Request::Delete { key } => key,
            Request::Name { group } => {
                tables.name_group(change, *group).await?;
                return Ok(Response(None));
            }
        };
        let before = change.get(table, key).await?;
        match request {
            Request::Put { value, .. } => change.put(table, key, value)?,
            Request::Append { more, .. } => {
                change.put(table, key, [before.as_deref().unwrap_or_default(), more].concat())?;
            }
            Request::Delete { .. } | Request::Name { .. } => change.delete(table, key)?,
        }
        Ok(Response(before))
    }

    fn no_answer(&self) -> Response {
        Response(None)
    }
}
