//! Which tables there are, as far as this process has met them.
//!
//! A table's id is the number of the commit that created it, so no two tables ever have the same, and every node says which
//! table it belongs to. So a handle of a table that was dropped finds pages that are not its own, or none: an error, which
//! [`Tables::explain`] turns into the right one. A snapshot from before the drop still has the table: its errors stay.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::error::{Error, ErrorKind};
use crate::format::{CommitSeq, TableId};
use crate::tree::Tree;

/// Sees every drop, also one that is not visible yet.
pub(super) const NEWEST: CommitSeq = CommitSeq(u64::MAX);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Tables(RwLock<Known>);

#[derive(Debug, Default)]
struct Known {
    /// By name: a root never moves.
    tables: HashMap<Vec<u8>, Tree>,
    /// Dropped since the database was opened, and by which commit: of others there are no handles.
    dropped: HashMap<TableId, CommitSeq>,
}

impl Tables {
    /// The table of this name, if it was met.
    pub(super) fn known(&self, name: &[u8]) -> Option<Tree> {
        self.read().tables.get(name).copied()
    }

    /// The catalog has this table. It may have been dropped since it was looked up.
    pub(super) fn met(&self, name: &[u8], tree: Tree) {
        let mut known = self.write();
        if !known.dropped.contains_key(&tree.table) {
            known.tables.insert(name.to_vec(), tree);
        }
    }

    /// The table is being dropped by this commit, and will be whatever happens.
    pub(super) fn dropped(&self, tree: Tree, name: &[u8], commit: CommitSeq) {
        let mut known = self.write();
        known.dropped.insert(tree.table, commit);
        known.tables.remove(name);
    }

    /// Why nothing can be written to this table any more.
    pub(super) fn refusal(&self, tree: Tree) -> Option<Error> {
        self.refusal_at(tree, NEWEST)
    }

    /// Returns the error that a caller gets for `error`, met in this table as of commit `seen`. Damage in a table that was dropped by
    /// then is no damage: the pages belong to others.
    pub(super) fn explain(&self, tree: Tree, seen: CommitSeq, error: Error) -> Error {
        if error.kind() == ErrorKind::Corrupt { self.refusal_at(tree, seen).unwrap_or(error) } else { error }
    }

    fn refusal_at(&self, tree: Tree, seen: CommitSeq) -> Option<Error> {
        let dropped = self.read().dropped.get(&tree.table).is_some_and(|commit| *commit <= seen);
        dropped.then(|| Error::new(ErrorKind::NotFound, "the table was dropped; its handles are of no use any more"))
    }

    fn read(&self) -> RwLockReadGuard<'_, Known> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Known> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}
