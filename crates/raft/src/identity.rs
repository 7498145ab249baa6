//! Random ids: of a group, of a store and its openings, of a snapshot. A file next to the database, or a message from another node, is known
//! by its id, and not by its place, its name or its position in the log.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};

use serde::{Deserialize, Serialize};

/// Returns a number that no other call, in any process, returns.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// The id of a group: the same on all of its nodes, and of no other group. An entry of the log gives it to the group: see
/// [`StateTables::name_group`](crate::StateTables::name_group).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GroupId([u8; 16]);

impl GroupId {
    /// Makes an id that no other call, in any process, returns.
    pub fn random() -> Self {
        let [first, second] = [random(), random()];
        Self((u128::from(first) << 64 | u128::from(second)).to_be_bytes())
    }

    pub(crate) fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    pub(crate) fn to_bytes(self) -> [u8; 16] {
        self.0
    }
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
