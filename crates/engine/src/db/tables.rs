//! Which tables there are, as far as this process has met them.
//!
//! A table's id is the number of the commit that created it, so no two tables ever have the same, and every node says which
//! table it belongs to. So a handle of a table that was dropped finds pages that are not its own, or none: an error, which
//! [`Tables::explain`] turns into the right one.

use std::collections::{HashMap, HashSet};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::error::{Error, ErrorKind};
use crate::format::TableId;
use crate::tree::Tree;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Tables(RwLock<Known>);

#[derive(Debug, Default)]
struct Known {
    /// By name: a root never moves.
    tables: HashMap<Vec<u8>, Tree>,
    /// Dropped since the database was opened: of others there are no handles.
    dropped: HashSet<TableId>,
}

impl Tables {
    /// The table of this name, if it was met.
    pub(super) fn known(&self, name: &[u8]) -> Option<Tree> {
        self.read().tables.get(name).copied()
    }

    /// The catalog has this table. It may have been dropped since it was looked up.
    pub(super) fn met(&self, name: &[u8], tree: Tree) {
        let mut known = self.write();
        if !known.dropped.contains(&tree.table) {
            known.tables.insert(name.to_vec(), tree);
        }
    }

    /// The table is being dropped, and will be whatever happens.
    pub(super) fn dropped(&self, tree: Tree, name: &[u8]) {
        let mut known = self.write();
        known.dropped.insert(tree.table);
        known.tables.remove(name);
    }

    /// Why nothing can be written to this table any more.
    pub(super) fn refusal(&self, tree: Tree) -> Option<Error> {
        let dropped = self.read().dropped.contains(&tree.table);
        dropped.then(|| Error::new(ErrorKind::NotFound, "the table was dropped; its handles are of no use any more"))
    }

    /// What an error in this table means.
    pub(super) fn explain(&self, tree: Tree, error: Error) -> Error {
        if error.kind() == ErrorKind::Corrupt { self.refusal(tree).unwrap_or(error) } else { error }
    }

    fn read(&self) -> RwLockReadGuard<'_, Known> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Known> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}
