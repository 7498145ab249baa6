//! Which tables there are, as far as this process has met them.
//!
//! A table's id is the number of the commit that created it, so no two tables ever have the same, and every node says which
//! table it belongs to. So a handle of a table that was dropped finds pages that are not its own, or none: an error, which
//! [`Tables::explain`] turns into the right one. A snapshot from before the drop still has the table: its errors stay.

use std::collections::{BTreeMap, HashMap};
use std::sync::{OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::error::{Error, ErrorKind, Result};
use crate::format::{CommitSeq, TableId};
use crate::tree::Tree;

/// Sees every drop, also one that is not visible yet.
pub(super) const NEWEST: CommitSeq = CommitSeq(u64::MAX);

/// The tables that are known without reading the catalog, and the tables that are dropped.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    known: RwLock<Known>,
    fixed: OnceLock<Fixed>,
}

/// The only tables that can be opened, after a damaged page of the catalog kept records of the log from being replayed.
/// The catalog is not read any more: it might now name tables with content older than acknowledged commits.
#[derive(Debug)]
pub(super) struct Fixed {
    /// By name. All records that change them were replayed.
    pub(super) tables: BTreeMap<Vec<u8>, Tree>,
    /// Why there are no others.
    pub(super) error: Error,
}

#[derive(Debug, Default)]
struct Known {
    /// By name: a root never moves.
    tables: HashMap<Vec<u8>, Tree>,
    /// Dropped since the database was opened, and by which commit: of others there are no handles.
    dropped: HashMap<TableId, CommitSeq>,
}

impl Tables {
    /// From now on there are these tables and no others. Once, when the database is opened.
    pub(super) fn fix(&self, fixed: Fixed) {
        let set = self.fixed.set(fixed);
        debug_assert!(set.is_ok(), "said once, when the database is opened");
    }

    /// The only tables that there are, if that has been said.
    pub(super) fn fixed(&self) -> Option<&Fixed> {
        self.fixed.get()
    }

    /// The answer for a name where the catalog is not to be asked.
    pub(super) fn fixed_table(&self, name: &[u8]) -> Option<Result<Tree>> {
        let Fixed { tables, error } = self.fixed.get()?;
        Some(tables.get(name).copied().ok_or_else(|| error.clone()))
    }

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

    /// Notes that this commit drops the table. The commit can no longer fail.
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
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Known> {
        self.known.write().unwrap_or_else(PoisonError::into_inner)
    }
}
