//! Counts the use of each table for the thread of compaction: changed keys, and leaves that scans have
//! read. The thread takes the counts from time to time.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;

use crate::btree::Tree;

/// Most tables that are counted; beyond that all counts start again.
const TABLES_MAX: usize = 4096;

/// A count for each table.
#[derive(Debug, Default)]
pub(super) struct TableCounts(Mutex<FxHashMap<u64, (Tree, u64)>>);

impl TableCounts {
    fn lock(&self) -> MutexGuard<'_, FxHashMap<u64, (Tree, u64)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds to the counts of some tables.
    pub(super) fn add(&self, more: impl Iterator<Item = (Tree, u64)>) {
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
    pub(super) fn take(&self, least: u64) -> Vec<(Tree, u64)> {
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
