//! The writes of a transaction or a batch before they are committed.

use std::collections::{BTreeMap, btree_map};
use std::ops::Bound;

use super::expiry_rows::row_of;
use super::write_key::{KeyParts, LentKey, WriteKey};
use crate::btree::{Direction, KeyRange, Tree};
use crate::format::{Moment, TableId};
use crate::transaction::Op;

/// The uncommitted writes of a transaction, by table and key.
#[derive(Debug, Default, Clone)]
pub(crate) struct WriteSet {
    tables: BTreeMap<TableId, TableWrites>,
    /// The rows that the index of expiry gets for these writes. Rows of replaced writes stay: a row without its entry does
    /// no harm.
    rows: BTreeMap<WriteKey, Option<NewValue>>,
    /// Length of the longest key of an entry that expires.
    expiring_key_bytes: usize,
}

/// A value that a write sets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NewValue {
    pub(crate) value: Vec<u8>,
    /// The moment at which the entry expires.
    pub(crate) expiry: Moment,
    /// The moment of the write.
    now: Moment,
}

impl NewValue {
    /// Creates a value that does not expire.
    pub(crate) fn lasting(value: Vec<u8>) -> Self {
        Self { value, expiry: Moment::NEVER, now: Moment::NEVER }
    }

    /// Creates a value that expires at `expiry`, of a write at the moment `now`.
    pub(crate) fn until(value: Vec<u8>, expiry: Moment, now: Moment) -> Self {
        Self { value, expiry, now }
    }
}

/// A key and its new value, or `None` when it was removed.
type Write<'w> = (&'w Vec<u8>, &'w Option<NewValue>);

#[derive(Debug, Clone)]
struct TableWrites {
    tree: Tree,
    keys: BTreeMap<WriteKey, Option<NewValue>>,
}

impl WriteSet {
    /// Sets or removes a key, replacing an earlier write to it.
    pub(crate) fn set(&mut self, tree: Tree, key: Vec<u8>, value: Option<NewValue>) {
        self.replace(tree, key, value);
    }

    /// Sets or removes a key, and returns the earlier write to it that this one replaces.
    pub(in crate::db) fn replace(
        &mut self,
        tree: Tree,
        key: Vec<u8>,
        value: Option<NewValue>,
    ) -> Option<Option<NewValue>> {
        if let Some(NewValue { expiry, now, .. }) = value
            && expiry != Moment::NEVER
        {
            self.add_row(tree, &key, expiry, now);
        }
        let of_table = self.tables.entry(tree.table).or_insert_with(|| TableWrites { tree, keys: BTreeMap::new() });
        of_table.keys.insert(key.into(), value)
    }

    /// Forgets a write.
    pub(in crate::db) fn remove(&mut self, tree: Tree, key: &[u8]) {
        if let btree_map::Entry::Occupied(mut of_table) = self.tables.entry(tree.table) {
            of_table.get_mut().keys.remove(&LentKey::new(key) as &dyn KeyParts);
            if of_table.get().keys.is_empty() {
                of_table.remove();
            }
        }
    }

    /// Returns whether nothing was set or removed.
    pub(crate) fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// Returns the number of keys that were set or removed.
    pub(crate) fn len(&self) -> usize {
        self.tables.values().map(|writes| writes.keys.len()).sum()
    }

    /// Adds a row for the index of expiry without its entry.
    pub(in crate::db) fn add_row(&mut self, tree: Tree, key: &[u8], expiry: Moment, now: Moment) {
        self.rows.insert(row_of(tree.table, key, expiry, now).into(), Some(NewValue::lasting(Vec::new())));
        self.expiring_key_bytes = self.expiring_key_bytes.max(key.len());
    }

    /// Returns the number of rows for the index of expiry.
    pub(in crate::db) fn row_count(&self) -> usize {
        self.rows.len()
    }

    /// Returns the length of the longest key of an entry that expires; `None` if none does.
    pub(in crate::db) fn expiring_key_bytes(&self) -> Option<usize> {
        (!self.rows.is_empty()).then_some(self.expiring_key_bytes)
    }

    /// Adds the rows for the entries that expire to the writes, as writes to the index of expiry.
    pub(in crate::db) fn add_rows(&mut self, index: Tree) {
        let keys = std::mem::take(&mut self.rows);
        self.tables.insert(index.table, TableWrites { tree: index, keys });
    }

    pub(in crate::db) fn get(&self, tree: Tree, key: &[u8]) -> Option<&Option<NewValue>> {
        self.tables.get(&tree.table)?.keys.get(&LentKey::new(key) as &dyn KeyParts)
    }

    /// Returns the first key in a range that was set or removed, in the order of a scan.
    pub(in crate::db) fn next_in(&self, tree: Tree, range: &KeyRange, direction: Direction) -> Option<Write<'_>> {
        let TableWrites { keys, .. } = self.tables.get(&tree.table).filter(|_| !range.is_empty())?;
        let start = LentKey::new(&range.start);
        let end = range.end.as_deref().map(LentKey::new);
        let end = end.as_ref().map_or(Bound::Unbounded, |end| Bound::Excluded(end as &dyn KeyParts));
        let mut found = keys.range::<dyn KeyParts, _>((Bound::Included(&start as &dyn KeyParts), end));
        let (key, value) = match direction {
            Direction::Forward => found.next(),
            Direction::Reverse => found.next_back(),
        }?;
        Some((&key.bytes, value))
    }

    /// Turns the set into changes for a commit, by table and key. They are made one at a time, because there may be
    /// many.
    pub(crate) fn into_ops(self) -> impl Iterator<Item = Op> + Send {
        let op = |tree, (key, value): (WriteKey, Option<NewValue>)| match value {
            Some(NewValue { value, expiry, .. }) => Op::Put { tree, key: key.bytes, value, expiry },
            None => Op::Delete { tree, key: key.bytes },
        };
        let of_table = move |writes: TableWrites| writes.keys.into_iter().map(move |entry| op(writes.tree, entry));
        self.tables.into_values().flat_map(of_table)
    }
}
