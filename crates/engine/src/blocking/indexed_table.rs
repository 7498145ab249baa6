//! Tables with secondary indexes, for threads.

use std::time::SystemTime;

use super::{Transaction, TypedTable};
use crate::db;
use crate::driver::block_on;
use crate::error::Result;
use crate::typed::{AsKey, AsValue, Key, Value};

/// A typed table with indexes that each change of a row keeps exact, for threads. See [`db::IndexedTable`].
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
/// use nofault::Durability;
/// use nofault::blocking::{IndexedTable, TypedTable};
///
/// let rows: TypedTable<u64, String> = db.create_typed_table("people")?;
/// let by_city: TypedTable<(String, u64), ()> = db.create_typed_table("people by city")?;
/// rows.put(&1, "Ulm")?; // before there was an index
/// let people = IndexedTable::new(&rows).with_index(&by_city, |_, city| [city.clone()]);
/// assert_eq!(people.rebuild()?, 1);
///
/// people.put(&2, "Ulm")?;
/// db.transact(Durability::Sync, |change| {
///     people.put_in(change, &3, "Bonn")?;
///     people.delete_in(change, &1)
/// })?;
/// let of_ulm: Vec<u64> = by_city.prefix(&("Ulm",)).map(|entry| entry.map(|((_, number), ())| number)).collect::<Result<_, _>>()?;
/// assert_eq!(of_ulm, [2]);
/// people.delete(&2)?;
/// assert_eq!((by_city.len()?, people.rows().len()?), (1, 1));
/// # Ok::<(), nofault::error::Error>(())
/// ```
pub struct IndexedTable<K, V: Value> {
    rows: TypedTable<K, V>,
    indexed: db::IndexedTable<K, V>,
}

impl<K, V: Value> Clone for IndexedTable<K, V> {
    fn clone(&self) -> Self {
        Self { rows: self.rows.clone(), indexed: self.indexed.clone() }
    }
}

impl<K: Key, V: Value> std::fmt::Debug for IndexedTable<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.indexed.fmt(f)
    }
}

impl<K: Key, V: Value> IndexedTable<K, V> {
    /// Returns a table without indexes.
    pub fn new(rows: &TypedTable<K, V>) -> Self {
        Self { rows: rows.clone(), indexed: db::IndexedTable::new(rows.asynchronous()) }
    }

    /// Adds an index: `of` returns the values under which a row is found. See [`db::IndexedTable::with_index`].
    #[must_use]
    pub fn with_index<I: Key, J: IntoIterator<Item = I>>(
        self,
        index: &TypedTable<(I, K), ()>,
        of: impl Fn(&K, &V::Item) -> J + Send + Sync + 'static,
    ) -> Self {
        Self { rows: self.rows, indexed: self.indexed.with_index(index.asynchronous(), of) }
    }

    /// The table of the rows.
    pub fn rows(&self) -> &TypedTable<K, V> {
        &self.rows
    }

    /// Sets a row, and its entries in the indexes. Durable when it returns.
    ///
    /// # Errors
    /// As [`db::IndexedTable::put`].
    pub fn put<Q: AsKey<K> + ?Sized, W: AsValue<V> + ?Sized>(&self, key: &Q, value: &W) -> Result<()> {
        block_on(self.indexed.put(key, value))
    }

    /// Sets a row until `expiry`, and its entries in the indexes. See [`db::IndexedTable::put_with_expiry`].
    ///
    /// # Errors
    /// As [`db::IndexedTable::put_with_expiry`].
    pub fn put_with_expiry<Q, W>(&self, key: &Q, value: &W, expiry: SystemTime) -> Result<()>
    where
        Q: AsKey<K> + ?Sized,
        W: AsValue<V> + ?Sized,
    {
        block_on(self.indexed.put_with_expiry(key, value, expiry))
    }

    /// Removes a row, and its entries in the indexes. Durable when it returns.
    ///
    /// # Errors
    /// As [`db::IndexedTable::delete`].
    pub fn delete<Q: AsKey<K> + ?Sized>(&self, key: &Q) -> Result<()> {
        block_on(self.indexed.delete(key))
    }

    /// Sets a row, and its entries in the indexes, in a transaction. The row counts as read.
    ///
    /// # Errors
    /// As [`db::IndexedTable::put_in`].
    pub fn put_in<Q, W>(&self, change: &Transaction, key: &Q, value: &W) -> Result<()>
    where
        Q: AsKey<K> + ?Sized,
        W: AsValue<V> + ?Sized,
    {
        block_on(self.indexed.put_in(change.asynchronous(), key, value))
    }

    /// Sets a row until `expiry`, and its entries in the indexes, in a transaction. The row counts as read.
    ///
    /// # Errors
    /// As [`db::IndexedTable::put_with_expiry_in`].
    pub fn put_with_expiry_in<Q, W>(&self, change: &Transaction, key: &Q, value: &W, expiry: SystemTime) -> Result<()>
    where
        Q: AsKey<K> + ?Sized,
        W: AsValue<V> + ?Sized,
    {
        block_on(self.indexed.put_with_expiry_in(change.asynchronous(), key, value, expiry))
    }

    /// Removes a row, and its entries in the indexes, in a transaction. The row counts as read.
    ///
    /// # Errors
    /// As [`db::IndexedTable::delete_in`].
    pub fn delete_in<Q: AsKey<K> + ?Sized>(&self, change: &Transaction, key: &Q) -> Result<()> {
        block_on(self.indexed.delete_in(change.asynchronous(), key))
    }

    /// Rebuilds the indexes from the rows, and returns the number of rows. See [`db::IndexedTable::rebuild`].
    ///
    /// # Errors
    /// As [`db::IndexedTable::rebuild`].
    pub fn rebuild(&self) -> Result<u64> {
        block_on(self.indexed.rebuild())
    }
}
