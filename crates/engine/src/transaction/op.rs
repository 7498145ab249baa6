//! The changes of a commit, as the commit path passes them on.

use super::CATALOG;
use crate::btree::Tree;
use crate::btree::overflow::data_bytes;
use crate::codec::Compression;
use crate::format::Moment;
use crate::format::cell::inline_value_bytes_max;
use crate::format::record::Change;

/// One change of a commit.
#[derive(Debug, Clone)]
pub(crate) enum Op {
    /// Sets the value of a key, and the moment at which it expires.
    Put { tree: Tree, key: Vec<u8>, value: Vec<u8>, expiry: Moment },
    /// Removes a key.
    Delete { tree: Tree, key: Vec<u8> },
    /// Creates an empty table. The table's id is the number of the commit.
    CreateTable { name: Vec<u8>, compression: Compression },
    /// Removes a table from the catalog. Its pages are freed later (`db::deferred_free`). It must be the only change of
    /// its commit.
    DropTable { tree: Tree, name: Vec<u8> },
    /// Sets the compression of a table in the catalog. The pages of the table stay as they are.
    SetCompression { tree: Tree, name: Vec<u8>, compression: Compression },
    /// Gives a table another name in the catalog.
    RenameTable { tree: Tree, name: Vec<u8>, to: Vec<u8> },
    /// Sets the names of the types of a table's keys and values in the catalog, which has none of them yet.
    SetTypes { tree: Tree, name: Vec<u8>, key: String, value: String },
}

impl Op {
    /// Returns the tree and the key that the change concerns.
    pub(crate) fn target(&self) -> (Tree, &[u8]) {
        match self {
            Self::Put { tree, key, .. } | Self::Delete { tree, key } => (*tree, key),
            Self::CreateTable { name, .. }
            | Self::DropTable { name, .. }
            | Self::SetCompression { name, .. }
            | Self::RenameTable { name, .. }
            | Self::SetTypes { name, .. } => (CATALOG, name),
        }
    }

    pub(super) fn change(&self) -> Change<'_> {
        match self {
            Self::Put { tree, key, value, expiry } => Change::Put { table: tree.table, key, value, expiry: *expiry },
            Self::Delete { tree, key } => Change::Delete { table: tree.table, key },
            Self::CreateTable { name, compression } => Change::CreateTable { name, compression: *compression },
            Self::DropTable { tree, name } => Change::DropTable { table: tree.table, name },
            Self::SetCompression { tree, name, compression } => {
                Change::SetCompression { table: tree.table, name, compression: *compression }
            }
            Self::RenameTable { tree, name, to } => Change::RenameTable { table: tree.table, name, to },
            Self::SetTypes { tree, name, key, value } => {
                Change::SetTypes { table: tree.table, name, key: key.as_bytes(), value: value.as_bytes() }
            }
        }
    }

    /// Returns an upper estimate of the frames needed to apply the change.
    pub(crate) fn frames(&self, page_bytes: usize) -> usize {
        match self {
            Self::Put { value, .. } if value.len() > inline_value_bytes_max(page_bytes) => {
                2 + value.len() / data_bytes(page_bytes) * 65 / 64 + 3
            }
            // The leaf, and the pages in which the old value begins and ends.
            Self::Delete { .. } => 3,
            // The leaves of both names.
            Self::RenameTable { .. } => 5,
            _ => 2,
        }
    }
}
