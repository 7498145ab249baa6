//! Scans of typed tables, over the scans of bytes of either face: up to the first entry of other types, with which a scan ends.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::SystemTime;

use super::snapshot::Range;
use super::transaction_handle::TransactionRange;
use crate::error::{Error, Result};
use crate::typed::{AsKey, Key, Value, key_bytes, read_entry};

type Types<K, V> = PhantomData<fn() -> (K, V)>;

/// A scan of bytes, of either face.
pub trait Entries: Sized {
    /// As [`Range::rev`].
    fn rev(self) -> Self;

    /// As [`Range::read_ahead_max`].
    fn read_ahead_max(self, leaves: usize) -> Self;

    /// As [`Range::after`].
    fn after(self, key: &[u8]) -> Self;

    /// As [`Range::limit`].
    fn limit(self, entries: u64) -> Self;

    /// As [`Range::expiry`].
    fn expiry(&self) -> Option<SystemTime>;
}

/// Makes a scan that has the calls of [`Entries`] one.
macro_rules! entries {
    ($range:ty) => {
        impl crate::db::Entries for $range {
            fn rev(self) -> Self {
                self.rev()
            }

            fn read_ahead_max(self, leaves: usize) -> Self {
                self.read_ahead_max(leaves)
            }

            fn after(self, key: &[u8]) -> Self {
                self.after(key)
            }

            fn limit(self, entries: u64) -> Self {
                self.limit(entries)
            }

            fn expiry(&self) -> Option<std::time::SystemTime> {
                self.expiry()
            }
        }
    };
}
pub(crate) use entries;

/// A scan of bytes that a task waits for.
pub trait AsyncEntries: Entries + Send {
    /// As [`Range::next_ref`].
    fn next_ref(&mut self) -> impl Future<Output = Result<Option<(&[u8], &[u8])>>> + Send;
}

entries!(Range);
entries!(TransactionRange);

impl AsyncEntries for Range {
    fn next_ref(&mut self) -> impl Future<Output = Result<Option<(&[u8], &[u8])>>> + Send {
        self.next_ref()
    }
}

impl AsyncEntries for TransactionRange {
    fn next_ref(&mut self) -> impl Future<Output = Result<Option<(&[u8], &[u8])>>> + Send {
        self.next_ref()
    }
}

/// A scan of the entries of a typed table, over a scan of bytes of either face: a [`TypedRange`] or [`TypedTransactionRange`]. It ends with
/// the first entry that is not of these types.
pub struct TypedEntries<R, K, V> {
    range: R,
    /// The name of the table.
    table: Arc<str>,
    /// The error behind the entries that a batch has returned: the next call returns it.
    failed: Option<Error>,
    is_over: bool,
    types: Types<K, V>,
}

/// A scan of the entries of a [`TypedTable`](crate::db::TypedTable). See [`Range`].
pub type TypedRange<K, V> = TypedEntries<Range, K, V>;

/// A scan of the entries of a [`TypedTable`](crate::db::TypedTable) as a transaction sees them. See [`TransactionRange`].
pub type TypedTransactionRange<K, V> = TypedEntries<TransactionRange, K, V>;

impl<R, K, V> TypedEntries<R, K, V> {
    pub(in crate::db) fn new(table: &Arc<str>, range: R) -> Self {
        Self { range, table: table.clone(), failed: None, is_over: false, types: PhantomData }
    }

    /// Puts the scan over another scan of bytes.
    pub(crate) fn map<S>(self, over: impl FnOnce(R) -> S) -> TypedEntries<S, K, V> {
        let Self { range, table, failed, is_over, types } = self;
        TypedEntries { range: over(range), table, failed, is_over, types }
    }

    /// Notes that an error ends the scan.
    fn note_end<T>(&mut self, read: Result<T>) -> Result<T> {
        read.inspect_err(|_| self.is_over = true)
    }

    /// Returns whether an error has ended the scan; or that error, once, where it was met behind entries that were returned.
    fn is_over(&mut self) -> Result<bool> {
        self.failed.take().map_or(Ok(self.is_over), Err)
    }
}

impl<R: Entries, K: Key, V: Value> TypedEntries<R, K, V> {
    /// Reverses the scan. Call it before the first `next`. See [`Range::rev`].
    #[must_use]
    pub fn rev(self) -> Self {
        self.map(R::rev)
    }

    /// Limits the number of leaves requested ahead. See [`Range::read_ahead_max`].
    #[must_use]
    pub fn read_ahead_max(self, leaves: usize) -> Self {
        self.map(|range| range.read_ahead_max(leaves))
    }

    /// Begins behind `key`, which need not exist. See [`Range::after`], [`TransactionRange::after`].
    #[must_use]
    pub fn after(self, key: &(impl AsKey<K> + ?Sized)) -> Self {
        self.map(|range| range.after(&key_bytes(key)))
    }

    /// Ends the scan after `entries` more entries. See [`Range::limit`], [`TransactionRange::limit`].
    #[must_use]
    pub fn limit(self, entries: u64) -> Self {
        self.map(|range| range.limit(entries))
    }

    /// Returns the time at which the entry expires that was returned last. See [`Range::expiry`].
    pub fn expiry(&self) -> Option<SystemTime> {
        self.range.expiry()
    }

    /// Takes the next entry of the scan of bytes, and reads it.
    pub(crate) fn read_next(
        &mut self,
        next: impl FnOnce(&mut R) -> Option<Result<(Vec<u8>, Vec<u8>)>>,
    ) -> Option<Result<(K, V::Item)>> {
        match self.is_over() {
            Err(error) => Some(Err(error)),
            Ok(true) => None,
            Ok(false) => {
                let entry = next(&mut self.range)?;
                Some(entry.and_then(|entry| self.read(&entry)))
            }
        }
    }

    /// Takes the next entries of the scan of bytes, and reads them up to the first that is not of these types.
    pub(crate) fn read_next_batch(
        &mut self,
        next: impl FnOnce(&mut R) -> Result<Vec<(Vec<u8>, Vec<u8>)>>,
    ) -> Result<Vec<(K, V::Item)>> {
        if self.is_over()? {
            return Ok(Vec::new());
        }
        let entries = next(&mut self.range)?;
        self.read_batch(&entries)
    }

    fn read_batch(&mut self, entries: &[(Vec<u8>, Vec<u8>)]) -> Result<Vec<(K, V::Item)>> {
        let mut read = Vec::with_capacity(entries.len());
        for entry in entries {
            match self.read(entry) {
                Ok(entry) => read.push(entry),
                Err(error) if read.is_empty() => return Err(error),
                Err(error) => {
                    self.failed = Some(error);
                    break;
                }
            }
        }
        Ok(read)
    }

    fn read(&mut self, entry: &(impl AsRef<[u8]>, impl AsRef<[u8]>)) -> Result<(K, V::Item)> {
        let read = read_entry::<K, V>(&self.table, entry);
        self.note_end(read)
    }
}

impl<R: AsyncEntries, K: Key, V: Value> TypedEntries<R, K, V> {
    /// The next key and its value; `None` at the end. Dropping the future loses no entry.
    ///
    /// # Errors
    /// As [`Range::next`] or [`TransactionRange::next`]; `WrongType` for an entry that is not of these types. A range returns an error
    /// once, and then `None`.
    pub async fn next(&mut self) -> Result<Option<(K, V::Item)>> {
        if self.is_over()? {
            return Ok(None);
        }
        let entry = self.range.next_ref().await?;
        let read = entry.map(|entry| read_entry::<K, V>(&self.table, &entry)).transpose();
        self.note_end(read)
    }
}

impl<K: Key, V: Value> TypedRange<K, V> {
    /// Returns the next entries at hand, `entries_max` at the most; none at the end. See [`Range::next_batch`].
    ///
    /// # Errors
    /// As [`TypedRange::next`]. The entries before one that is not of these types are returned first.
    pub async fn next_batch(&mut self, entries_max: usize) -> Result<Vec<(K, V::Item)>> {
        if self.is_over()? {
            return Ok(Vec::new());
        }
        let entries = self.range.next_batch(entries_max).await?;
        self.read_batch(&entries)
    }
}

impl<R, K, V> std::fmt::Debug for TypedEntries<R, K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TypedRange({:?})", self.table)
    }
}
