//! The writes of a transaction or a batch before they are committed.

use std::collections::{BTreeMap, btree_map};
use std::ops::Bound;

use crate::btree::{Direction, KeyRange, Tree};
use crate::format::TableId;
use crate::transaction::Op;

/// The uncommitted writes of a transaction, by table and key.
#[derive(Debug, Default, Clone)]
pub(crate) struct WriteSet(BTreeMap<TableId, TableWrites>);

/// A key and its new value, or `None` when it was removed.
type Write<'w> = (&'w Vec<u8>, &'w Option<Vec<u8>>);

#[derive(Debug, Clone)]
struct TableWrites {
    tree: Tree,
    keys: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
}

impl WriteSet {
    /// Sets or removes a key, replacing an earlier write to it.
    pub(crate) fn set(&mut self, tree: Tree, key: Vec<u8>, value: Option<Vec<u8>>) {
        self.replace(tree, key, value);
    }

    /// Sets or removes a key, and returns the earlier write to it that this one replaces.
    pub(super) fn replace(&mut self, tree: Tree, key: Vec<u8>, value: Option<Vec<u8>>) -> Option<Option<Vec<u8>>> {
        let of_table = self.0.entry(tree.table).or_insert_with(|| TableWrites { tree, keys: BTreeMap::new() });
        of_table.keys.insert(key, value)
    }

    /// Forgets a write.
    pub(super) fn remove(&mut self, tree: Tree, key: &[u8]) {
        if let btree_map::Entry::Occupied(mut of_table) = self.0.entry(tree.table) {
            of_table.get_mut().keys.remove(key);
            if of_table.get().keys.is_empty() {
                of_table.remove();
            }
        }
    }

    /// Returns whether nothing was set or removed.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of keys that were set or removed.
    pub(crate) fn len(&self) -> usize {
        self.0.values().map(|writes| writes.keys.len()).sum()
    }

    pub(super) fn get(&self, tree: Tree, key: &[u8]) -> Option<&Option<Vec<u8>>> {
        self.0.get(&tree.table)?.keys.get(key)
    }

    /// Returns the first key in a range that was set or removed, in the order of a scan.
    pub(super) fn next_in(&self, tree: Tree, range: &KeyRange, direction: Direction) -> Option<Write<'_>> {
        let TableWrites { keys, .. } = self.0.get(&tree.table).filter(|_| !range.is_empty())?;
        let end = range.end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut found = keys.range::<[u8], _>((Bound::Included(range.start.as_slice()), end));
        match direction {
            Direction::Forward => found.next(),
            Direction::Reverse => found.next_back(),
        }
    }

    /// Turns the set into changes for a commit, by table and key. They are made one at a time, because there may be
    /// many.
    pub(crate) fn into_ops(self) -> impl Iterator<Item = Op> + Send {
        let op = |tree, (key, value): (Vec<u8>, Option<Vec<u8>>)| match value {
            Some(value) => Op::Put { tree, key, value },
            None => Op::Delete { tree, key },
        };
        let of_table = move |writes: TableWrites| writes.keys.into_iter().map(move |entry| op(writes.tree, entry));
        self.0.into_values().flat_map(of_table)
    }
}
