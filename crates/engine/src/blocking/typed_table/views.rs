//! The calls of a [`TypedTable`] on a transaction or a snapshot, and its ranges, for threads.

use std::ops::RangeBounds;
use std::time::SystemTime;

use super::TypedTable;
use crate::blocking::views::Entry;
use crate::blocking::{Range, Snapshot, Transaction, TransactionRange};
use crate::db::{EntryReader, byte_bounds, read_values};
use crate::error::Result;
use crate::typed::{AsKey, AsPrefix, AsValue, Key, Value, key_bytes, prefix_bytes, read_value, value_bytes};

/// A scan of the entries of a [`TypedTable`]: an iterator from both ends. It returns an error once, also for an entry of
/// other types, and then `None`. See [`Range`].
pub struct TypedRange<K, V> {
    range: Range,
    reader: EntryReader<K, V>,
}

impl<K: Key, V: Value> TypedRange<K, V> {
    pub(super) fn new(table: &TypedTable<K, V>, range: Range) -> Self {
        Self { range, reader: EntryReader::new(table.raw().name()) }
    }

    fn with(self, change: impl FnOnce(Range) -> Range) -> Self {
        Self { range: change(self.range), ..self }
    }

    /// Reads the entry that `next` takes from the range.
    fn read(&mut self, next: impl FnOnce(&mut Range) -> Option<Result<Entry>>) -> Option<Result<(K, V::Item)>> {
        match self.reader.is_over() {
            Err(error) => Some(Err(error)),
            Ok(true) => None,
            Ok(false) => next(&mut self.range).map(|entry| self.reader.read(&entry?)),
        }
    }

    /// Reverses the scan. Call it before the first `next`. See [`Range::rev`].
    #[must_use]
    pub fn rev(self) -> Self {
        self.with(Range::rev)
    }

    /// Limits the number of leaves requested ahead. See [`Range::read_ahead_max`].
    #[must_use]
    pub fn read_ahead_max(self, leaves: usize) -> Self {
        self.with(|range| range.read_ahead_max(leaves))
    }

    /// Begins behind `key`, which need not exist. See [`Range::after`].
    #[must_use]
    pub fn after<Q: AsKey<K> + ?Sized>(self, key: &Q) -> Self {
        self.with(|range| range.after(key_bytes(key)))
    }

    /// Ends the scan after `entries` more entries.
    #[must_use]
    pub fn limit(self, entries: u64) -> Self {
        self.with(|range| range.limit(entries))
    }

    /// Returns the time at which the entry expires that was returned last from the front. See [`Range::expiry`].
    pub fn expiry(&self) -> Option<SystemTime> {
        self.range.expiry()
    }

    /// Returns the next entries at hand, `entries_max` at the most; none at the end. See
    /// [`Range::next_batch`].
    ///
    /// # Errors
    /// As [`Range::next_batch`]; `WrongType` for an entry of other types: the entries before it are returned first.
    pub fn next_batch(&mut self, entries_max: usize) -> Result<Vec<(K, V::Item)>> {
        if self.reader.is_over()? {
            return Ok(Vec::new());
        }
        let entries = self.range.next_batch(entries_max)?;
        self.reader.read_batch(&entries)
    }
}

impl<K: Key, V: Value> Iterator for TypedRange<K, V> {
    type Item = Result<(K, V::Item)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read(Range::next)
    }
}

impl<K: Key, V: Value> DoubleEndedIterator for TypedRange<K, V> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.read(Range::next_back)
    }
}

impl<K, V> std::fmt::Debug for TypedRange<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TypedRange({:?})", self.reader.table())
    }
}

/// A [`TypedTable`] in a [`Transaction`].
#[derive(Debug)]
pub struct TypedTransaction<'t, K: Key, V: Value> {
    pub(super) typed: &'t TypedTable<K, V>,
    pub(super) transaction: &'t Transaction,
}

impl<K: Key, V: Value> TypedTransaction<'_, K, V> {
    /// Returns the value of a key, which then counts as read. See [`Transaction::get`].
    ///
    /// # Errors
    /// As [`Transaction::get`]; `WrongType` when the value is not of the type `V`.
    pub fn get<Q: AsKey<K> + ?Sized>(&self, key: &Q) -> Result<Option<V::Item>> {
        let value = self.transaction.get(self.typed.raw(), key_bytes(key))?;
        value.map(|value| read_value::<V>(self.typed.raw().name(), &value)).transpose()
    }

    /// Whether a key has a value. The key then counts as read.
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub fn contains_key<Q: AsKey<K> + ?Sized>(&self, key: &Q) -> Result<bool> {
        self.transaction.contains_key(self.typed.raw(), key_bytes(key))
    }

    /// Reads many keys, which then count as read. See [`Transaction::get_many`].
    ///
    /// # Errors
    /// As [`TypedTransaction::get`].
    pub fn get_many<Q: AsKey<K>>(&self, keys: &[Q]) -> Result<Vec<Option<V::Item>>> {
        let keys: Vec<_> = keys.iter().map(key_bytes).collect();
        read_values::<V>(self.typed.raw().name(), self.transaction.get_many(self.typed.raw(), &keys)?)
    }

    /// Sets the value of a key, for this transaction only until it commits.
    ///
    /// # Errors
    /// As [`Transaction::put`]; `InvalidCall` when the value cannot be encoded.
    pub fn put<Q: AsKey<K> + ?Sized, W: AsValue<V> + ?Sized>(&self, key: &Q, value: &W) -> Result<()> {
        self.transaction.put(self.typed.raw(), key_bytes(key), value_bytes(value)?)
    }

    /// Sets the value of a key until `expiry`, for this transaction only until it commits. See
    /// [`Transaction::put_with_expiry`].
    ///
    /// # Errors
    /// As [`TypedTransaction::put`].
    pub fn put_with_expiry<Q, W>(&self, key: &Q, value: &W, expiry: SystemTime) -> Result<()>
    where
        Q: AsKey<K> + ?Sized,
        W: AsValue<V> + ?Sized,
    {
        self.transaction.put_with_expiry(self.typed.raw(), key_bytes(key), value_bytes(value)?, expiry)
    }

    /// Returns the time at which a key expires; `None` when it is absent or does not expire. The key then counts as read.
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub fn expiry<Q: AsKey<K> + ?Sized>(&self, key: &Q) -> Result<Option<SystemTime>> {
        self.transaction.expiry(self.typed.raw(), key_bytes(key))
    }

    /// Removes a key, for this transaction only until it commits.
    ///
    /// # Errors
    /// As [`Transaction::delete`].
    pub fn delete<Q: AsKey<K> + ?Sized>(&self, key: &Q) -> Result<()> {
        self.transaction.delete(self.typed.raw(), key_bytes(key))
    }

    /// Scans all keys, which then count as read. See [`Transaction::iter`].
    ///
    /// # Errors
    /// As [`Transaction::range`].
    pub fn iter(&self) -> Result<TypedTransactionRange<K, V>> {
        self.scan(self.transaction.iter(self.typed.raw())?)
    }

    /// Scans the keys in `range`, which then counts as read. See [`Transaction::range`].
    ///
    /// # Errors
    /// As [`Transaction::range`].
    pub fn range<Q: AsKey<K>>(&self, range: impl RangeBounds<Q>) -> Result<TypedTransactionRange<K, V>> {
        self.scan(self.transaction.range(self.typed.raw(), byte_bounds(&range))?)
    }

    /// Scans the keys beginning with `prefix`, as [`TypedTransaction::range`] does.
    ///
    /// # Errors
    /// As [`Transaction::range`].
    pub fn prefix<P: AsPrefix<K> + ?Sized>(&self, prefix: &P) -> Result<TypedTransactionRange<K, V>> {
        self.scan(self.transaction.prefix(self.typed.raw(), prefix_bytes(prefix))?)
    }

    fn scan(&self, range: TransactionRange) -> Result<TypedTransactionRange<K, V>> {
        Ok(TypedTransactionRange { range, reader: EntryReader::new(self.typed.raw().name()) })
    }
}

/// A scan of the entries of a [`TypedTable`] as a transaction sees them: an iterator, which returns an error once and then
/// `None`. See [`TransactionRange`].
pub struct TypedTransactionRange<K, V> {
    range: TransactionRange,
    reader: EntryReader<K, V>,
}

impl<K: Key, V: Value> TypedTransactionRange<K, V> {
    /// Reverses the scan. Call it before the first `next`.
    #[must_use]
    pub fn rev(self) -> Self {
        Self { range: self.range.rev(), ..self }
    }

    /// Limits the number of leaves requested ahead. See [`Range::read_ahead_max`].
    #[must_use]
    pub fn read_ahead_max(self, leaves: usize) -> Self {
        Self { range: self.range.read_ahead_max(leaves), ..self }
    }

    /// Begins behind `key`, which need not exist. See [`TransactionRange::after`].
    #[must_use]
    pub fn after<Q: AsKey<K> + ?Sized>(self, key: &Q) -> Self {
        Self { range: self.range.after(key_bytes(key)), ..self }
    }

    /// Ends the scan after `entries` more entries. See [`TransactionRange::limit`].
    #[must_use]
    pub fn limit(self, entries: u64) -> Self {
        Self { range: self.range.limit(entries), ..self }
    }

    /// Returns the time at which the entry expires that was returned last; `None` if it does not.
    pub fn expiry(&self) -> Option<SystemTime> {
        self.range.expiry()
    }
}

impl<K: Key, V: Value> Iterator for TypedTransactionRange<K, V> {
    type Item = Result<(K, V::Item)>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.reader.is_over() {
            Err(error) => Some(Err(error)),
            Ok(true) => None,
            Ok(false) => self.range.next().map(|entry| self.reader.read(&entry?)),
        }
    }
}

impl<K, V> std::fmt::Debug for TypedTransactionRange<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TypedTransactionRange({:?})", self.reader.table())
    }
}

/// A [`TypedTable`] in a [`Snapshot`].
#[derive(Debug)]
pub struct TypedSnapshot<'t, K: Key, V: Value> {
    pub(super) typed: &'t TypedTable<K, V>,
    pub(super) snapshot: &'t Snapshot,
}

impl<K: Key, V: Value> TypedSnapshot<'_, K, V> {
    /// The value of a key as of the snapshot.
    ///
    /// # Errors
    /// As [`Snapshot::get`]; `WrongType` when the value is not of the type `V`.
    pub fn get<Q: AsKey<K> + ?Sized>(&self, key: &Q) -> Result<Option<V::Item>> {
        let value = self.snapshot.get(self.typed.raw(), key_bytes(key))?;
        value.map(|value| read_value::<V>(self.typed.raw().name(), &value)).transpose()
    }

    /// Whether a key has a value as of the snapshot.
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn contains_key<Q: AsKey<K> + ?Sized>(&self, key: &Q) -> Result<bool> {
        self.snapshot.contains_key(self.typed.raw(), key_bytes(key))
    }

    /// Returns the time at which a key expires, as of the snapshot; `None` when it is absent or does not expire.
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn expiry<Q: AsKey<K> + ?Sized>(&self, key: &Q) -> Result<Option<SystemTime>> {
        self.snapshot.expiry(self.typed.raw(), key_bytes(key))
    }

    /// Reads many keys as of the snapshot.
    ///
    /// # Errors
    /// As [`TypedSnapshot::get`].
    pub fn get_many<Q: AsKey<K>>(&self, keys: &[Q]) -> Result<Vec<Option<V::Item>>> {
        let keys: Vec<_> = keys.iter().map(key_bytes).collect();
        read_values::<V>(self.typed.raw().name(), self.snapshot.get_many(self.typed.raw(), &keys)?)
    }

    /// Walks the keys in `range` as of the snapshot.
    ///
    /// # Errors
    /// As [`Snapshot::range`].
    pub fn range<Q: AsKey<K>>(&self, range: impl RangeBounds<Q>) -> Result<TypedRange<K, V>> {
        Ok(TypedRange::new(self.typed, self.snapshot.range(self.typed.raw(), byte_bounds(&range))?))
    }

    /// Walks all keys as of the snapshot.
    ///
    /// # Errors
    /// As [`Snapshot::range`].
    pub fn iter(&self) -> Result<TypedRange<K, V>> {
        Ok(TypedRange::new(self.typed, self.snapshot.range::<&[u8]>(self.typed.raw(), ..)?))
    }

    /// Walks the keys beginning with `prefix` as of the snapshot. See [`TypedTable::prefix`].
    ///
    /// # Errors
    /// As [`Snapshot::range`].
    pub fn prefix<P: AsPrefix<K> + ?Sized>(&self, prefix: &P) -> Result<TypedRange<K, V>> {
        Ok(TypedRange::new(self.typed, self.snapshot.prefix(self.typed.raw(), prefix_bytes(prefix))?))
    }

    /// Returns the exact number of entries as of the snapshot.
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn len(&self) -> Result<u64> {
        self.snapshot.len(self.typed.raw())
    }

    /// Returns whether the table has no entry as of the snapshot.
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn is_empty(&self) -> Result<bool> {
        let mut range = self.snapshot.range::<&[u8]>(self.typed.raw(), ..)?.read_ahead_max(0);
        Ok(range.next().transpose()?.is_none())
    }
}
