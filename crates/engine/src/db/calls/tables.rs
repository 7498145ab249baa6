//! The tables that this process has opened, dropped or renamed, so that a name or an error is resolved without reading the catalog.
//!
//! A table's id is the number of the commit that created it, so no two tables ever have the same, and every node says which
//! table it belongs to. So a handle of a table that was dropped finds pages that are not its own, or none: an error, which
//! [`Tables::explain`] turns into the right one. A snapshot from before the drop still has the table: its errors stay.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rustc_hash::FxHashMap;

use crate::btree::Tree;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{CommitSeq, TableId};
use crate::transaction::Op;

/// The commit number of a view that sees every drop, including drops that are not visible yet.
pub(in crate::db) const NEWEST: CommitSeq = CommitSeq(u64::MAX);

/// The tables that can be opened without reading the catalog, and the tables that were dropped.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    state: RwLock<TableState>,
    fixed: OnceLock<FixedTables>,
}

/// The only tables that can be opened, after a damaged page of the catalog kept records of the log from being replayed.
/// The catalog is not read any more: it might now name tables with content older than acknowledged commits.
#[derive(Debug)]
pub(in crate::db) struct FixedTables {
    /// The tables by name, after the replay of all records that change them.
    pub(in crate::db) tables: BTreeMap<Vec<u8>, Tree>,
    /// The reason why no other table can be opened.
    pub(in crate::db) error: Error,
}

#[derive(Debug, Default)]
struct TableState {
    /// Tables opened before, by name. An entry stays right because a root never moves, until the table is dropped or renamed.
    tables: HashMap<Vec<u8>, Tree>,
    /// Tables dropped since the database was opened, with the commit that dropped each. No handle refers to tables
    /// dropped earlier.
    dropped: HashMap<TableId, CommitSeq>,
    /// The names that tables got or lost by being renamed since the database was opened, with the last commit that did so.
    renamed: HashMap<Vec<u8>, CommitSeq>,
}

/// Returns whether the error reports wrong bytes on the disk.
pub(in crate::db) fn is_damage(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Io)
}

/// Returns the error for a failed access to the catalog; if it reports wrong bytes on the disk, the message names the
/// catalog.
pub(in crate::db) fn in_catalog(error: Error) -> Error {
    if is_damage(&error) { error.met_in("the catalog (the table of tables) is damaged") } else { error }
}

impl Tables {
    /// Limits the database to these tables. Called once, when the database is opened.
    pub(in crate::db) fn fix(&self, fixed: FixedTables) {
        let set = self.fixed.set(fixed);
        debug_assert!(set.is_ok(), "set once, when the database is opened");
    }

    /// Returns the only tables that can be opened, where they are limited.
    pub(in crate::db) fn fixed(&self) -> Option<&FixedTables> {
        self.fixed.get()
    }

    /// Looks up a table without reading the catalog, where the tables are limited; `None` where they are not.
    pub(in crate::db) fn fixed_table(&self, name: &[u8]) -> Option<Result<Tree>> {
        let FixedTables { tables, error } = self.fixed.get()?;
        Some(tables.get(name).copied().ok_or_else(|| error.clone()))
    }

    /// Returns the table of this name, if it was opened before.
    pub(in crate::db) fn known(&self, name: &[u8]) -> Option<Tree> {
        self.read().tables.get(name).copied()
    }

    /// Notes a table found in the catalog as of commit `seen`. It may have been dropped or renamed since it was looked up.
    pub(in crate::db) fn remember(&self, name: &[u8], tree: Tree, seen: CommitSeq) {
        let mut state = self.write();
        let is_renamed = state.renamed.get(name).is_some_and(|commit| *commit > seen);
        if !is_renamed && !state.dropped.contains_key(&tree.table) {
            state.tables.insert(name.to_vec(), tree);
        }
    }

    /// Notes the names that a commit changes by renaming a table. The commit can no longer fail.
    pub(in crate::db) fn note_renamed(&self, ops: &[Op], commit: CommitSeq) {
        for op in ops {
            // Only the first change of a commit is looked at, unless it renames a table.
            let Op::RenameTable { name, to, .. } = op else { return };
            let mut state = self.write();
            for name in [name, to] {
                state.renamed.insert(name.clone(), commit);
                state.tables.remove(name);
            }
        }
    }

    /// Notes that this commit drops the table. The commit can no longer fail.
    pub(in crate::db) fn dropped(&self, tree: Tree, name: &[u8], commit: CommitSeq) {
        let mut state = self.write();
        state.dropped.insert(tree.table, commit);
        state.tables.remove(name);
    }

    /// Returns the error of a write to this table, if it was dropped.
    pub(in crate::db) fn refusal(&self, tree: Tree) -> Option<Error> {
        self.refusal_at(tree, NEWEST)
    }

    /// Returns the error that a caller gets for `error`, met in this table as of commit `seen`. Damage in a table dropped by
    /// then is no damage: the pages belong to others.
    pub(in crate::db) fn explain(&self, tree: Tree, seen: CommitSeq, error: Error) -> Error {
        if error.kind() == ErrorKind::Corrupt { self.refusal_at(tree, seen).unwrap_or(error) } else { error }
    }

    fn refusal_at(&self, tree: Tree, seen: CommitSeq) -> Option<Error> {
        let dropped = self.read().dropped.get(&tree.table).is_some_and(|commit| *commit <= seen);
        dropped.then(|| Error::new(ErrorKind::NotFound, "the table was dropped; its handles cannot be used any more"))
    }

    fn read(&self) -> RwLockReadGuard<'_, TableState> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, TableState> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Most tables that are counted; beyond that all counts start again.
const TABLES_MAX: usize = 4096;

/// A count for each table.
#[derive(Debug, Default)]
pub(in crate::db) struct TableCounts(Mutex<FxHashMap<u64, (Tree, u64)>>);

impl TableCounts {
    fn lock(&self) -> MutexGuard<'_, FxHashMap<u64, (Tree, u64)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds to the counts of some tables.
    pub(in crate::db) fn add(&self, more: impl Iterator<Item = (Tree, u64)>) {
        let mut counts = self.lock();
        // Without the thread that takes them, tables that were dropped would stay here.
        if counts.len() > TABLES_MAX {
            counts.clear();
        }
        for (tree, count) in more {
            counts.entry(tree.table.0).or_insert((tree, 0)).1 += count;
        }
    }

    /// Takes the tables with at least this count, and their counts, which begin at zero again.
    pub(in crate::db) fn take(&self, least: u64) -> Vec<(Tree, u64)> {
        let mut taken = Vec::new();
        self.lock().retain(|_, counted| {
            let is_due = counted.1 >= least;
            if is_due {
                taken.push(*counted);
            }
            !is_due
        });
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{PageId, TableId};

    #[test]
    fn a_table_is_taken_once_its_count_is_large_enough_and_counted_anew() {
        let counts = TableCounts::default();
        let tree = |number| Tree { table: TableId(number), root: PageId(number) };
        counts.add([(tree(1), 3), (tree(2), 1), (tree(1), 2)].into_iter());
        assert_eq!(counts.take(5), [(tree(1), 5)]);
        assert_eq!(counts.take(5), []);
        counts.add([(tree(1), 4)].into_iter());
        let mut left = counts.take(0);
        left.sort_by_key(|(tree, _)| tree.table);
        assert_eq!(left, [(tree(1), 4), (tree(2), 1)]);
    }
}
