//! Secondary indexes that are exact: a table of rows, and tables holding the keys of the rows by something else.
//!
//! Right because a change reads the row that it replaces in its transaction. The row counts as read, so no two changes
//! of it can both commit on the same old row, and all tables change in one commit, so no power cut separates them.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use super::table::Table;
use super::transaction_handle::Transaction;
use super::typed_table::TypedTable;
use crate::error::Result;
use crate::format::Moment;
use crate::pages::Durability;
use crate::typed::{AsKey, AsValue, Key, Value, key_bytes, read_entry, read_value, value_bytes};

/// The entries that a row has in an index: from its key and value, and the bytes of its key, the keys in the index.
type EntriesOf<K, V> = dyn Fn(&K, &<V as Value>::Item) -> Vec<Vec<u8>> + Send + Sync;

/// An index: its table, and the entries of a row in it.
struct Index<K, V: Value> {
    table: Table,
    entries_of: Arc<EntriesOf<K, V>>,
}

/// A typed table with indexes: each change of a row changes its entries in all of them, in the same transaction.
///
/// An index is a typed table, too: its keys are the indexed value followed by the key of the row. It is read like any
/// other table, by `prefix` and `range`, in snapshots and transactions. It stays exact for as long as all changes of
/// the rows go through an `IndexedTable` with the same indexes; a change through the [`TypedTable`] of the rows, or a
/// bulk load, does not reach it. [`IndexedTable::rebuild`] makes it exact again. A row that expires has entries that expire at
/// the same time. When the clock was set back over a restart, rows and entries that had expired and were not removed are seen
/// again until their time comes; a row put since may then have the previous row's entry next to its own.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), nofault::error::Error> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # let db = nofault::Db::create(folder.path().join("shop"), &settings).await?;
/// use nofault::{Durability, TypedTable, db::IndexedTable};
///
/// // The city of each person, the people of each city, and the people by the words of the city's name.
/// let rows: TypedTable<u64, String> = db.create_typed_table("people").await?;
/// let by_city: TypedTable<(String, u64), ()> = db.create_typed_table("people by city").await?;
/// let by_word: TypedTable<(String, u64), ()> = db.create_typed_table("people by word").await?;
/// let people = IndexedTable::new(&rows)
///     .with_index(&by_city, |_, city| [city.clone()])
///     .with_index(&by_word, |_, city| city.split(' ').map(String::from).collect::<Vec<_>>());
///
/// people.put(&1, "Ulm").await?;
/// people.put(&2, "New Ulm").await?;
/// assert_eq!(by_city.prefix(&("Ulm",)).next_batch(10).await?, [(("Ulm".to_string(), 1), ())]);
/// let of_word: Vec<_> = by_word.prefix(&("Ulm",)).next_batch(10).await?;
/// assert_eq!(of_word.iter().map(|((_, number), ())| *number).collect::<Vec<_>>(), [1, 2]);
///
/// // Together with other changes, in the caller's transaction.
/// db.transact(Durability::Sync, async |change| {
///     people.put_in(&change, &1, "Bonn").await?;
///     people.delete_in(&change, &2).await
/// })
/// .await?;
/// assert_eq!(by_city.iter().next_batch(10).await?, [(("Bonn".to_string(), 1), ())]);
/// people.delete(&1).await?;
/// assert!(by_city.is_empty().await? && by_word.is_empty().await?);
///
/// // Rows that were there before the index was.
/// rows.put(&3, "Oslo").await?;
/// assert_eq!(people.rebuild().await?, 1);
/// assert_eq!(by_word.first().await?, Some((("Oslo".to_string(), 3), ())));
/// # Ok(())
/// # }
/// ```
pub struct IndexedTable<K, V: Value> {
    rows: TypedTable<K, V>,
    indexes: Vec<Index<K, V>>,
}

impl<K, V: Value> Clone for IndexedTable<K, V> {
    fn clone(&self) -> Self {
        let copy = |index: &Index<K, V>| Index { table: index.table.clone(), entries_of: index.entries_of.clone() };
        Self { rows: self.rows.clone(), indexes: self.indexes.iter().map(copy).collect() }
    }
}

impl<K: Key, V: Value> fmt::Debug for IndexedTable<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.indexes.iter().map(|index| index.table.name()).collect();
        f.debug_struct("IndexedTable").field("rows", &self.rows).field("indexes", &names).finish()
    }
}

impl<K: Key, V: Value> IndexedTable<K, V> {
    /// Returns a table without indexes.
    pub fn new(rows: &TypedTable<K, V>) -> Self {
        Self { rows: rows.clone(), indexes: Vec::new() }
    }

    /// Adds an index: `of` returns the values under which a row is found, from none to any number. `of` must return the
    /// same for the same row whenever it is asked.
    #[must_use]
    pub fn with_index<I, J>(
        mut self,
        index: &TypedTable<(I, K), ()>,
        of: impl Fn(&K, &V::Item) -> J + Send + Sync + 'static,
    ) -> Self
    where
        I: Key,
        J: IntoIterator<Item = I>,
    {
        let entries_of = move |key: &K, value: &V::Item| {
            let entry = |indexed: I| {
                let mut bytes = Vec::new();
                indexed.encode_part(&mut bytes);
                key.encode(&mut bytes);
                bytes
            };
            of(key, value).into_iter().map(entry).collect()
        };
        self.indexes.push(Index { table: index.raw().clone(), entries_of: Arc::new(entries_of) });
        self
    }

    /// The table of the rows.
    pub fn rows(&self) -> &TypedTable<K, V> {
        &self.rows
    }

    /// Sets a row, and its entries in the indexes. Durable when it returns.
    ///
    /// # Errors
    /// As [`IndexedTable::put_in`] and [`Db::transact`](crate::db::Db::transact).
    pub async fn put(&self, key: &(impl AsKey<K> + ?Sized), value: &(impl AsValue<V> + ?Sized)) -> Result<()> {
        self.put_until(key, value, Moment::NEVER).await
    }

    /// Sets a row until `expiry`, and its entries in the indexes: from then on all of them are absent. Durable when it
    /// returns. See [`Table::put_with_expiry`].
    ///
    /// # Errors
    /// As [`IndexedTable::put`].
    pub async fn put_with_expiry(
        &self,
        key: &(impl AsKey<K> + ?Sized),
        value: &(impl AsValue<V> + ?Sized),
        expiry: SystemTime,
    ) -> Result<()> {
        self.put_until(key, value, Moment::at_or_after(expiry)).await
    }

    async fn put_until(
        &self,
        key: &(impl AsKey<K> + ?Sized),
        value: &(impl AsValue<V> + ?Sized),
        expiry: Moment,
    ) -> Result<()> {
        let (key, value) = (key_bytes(key), value_bytes(value)?);
        let change = async |change: Transaction| self.set(&change, &key, Some(&value), expiry).await;
        self.rows.raw().db().transact(Durability::Sync, change).await
    }

    /// Removes a row, and its entries in the indexes. Durable when it returns.
    ///
    /// # Errors
    /// As [`IndexedTable::delete_in`] and [`Db::transact`](crate::db::Db::transact).
    pub async fn delete(&self, key: &(impl AsKey<K> + ?Sized)) -> Result<()> {
        let key = key_bytes(key);
        let change = async |change: Transaction| self.set(&change, &key, None, Moment::NEVER).await;
        self.rows.raw().db().transact(Durability::Sync, change).await
    }

    /// Sets a row, and its entries in the indexes, in a transaction. The row counts as read.
    ///
    /// # Errors
    /// As [`Transaction::get`]; `WrongType` when the row or its key is not of the types of the table.
    pub async fn put_in(
        &self,
        change: &Transaction,
        key: &(impl AsKey<K> + ?Sized),
        value: &(impl AsValue<V> + ?Sized),
    ) -> Result<()> {
        let (key, value) = (key_bytes(key), value_bytes(value)?);
        self.set(change, &key, Some(&value), Moment::NEVER).await
    }

    /// Sets a row until `expiry`, and its entries in the indexes, in a transaction. The row counts as read.
    ///
    /// # Errors
    /// As [`IndexedTable::put_in`].
    pub async fn put_with_expiry_in(
        &self,
        change: &Transaction,
        key: &(impl AsKey<K> + ?Sized),
        value: &(impl AsValue<V> + ?Sized),
        expiry: SystemTime,
    ) -> Result<()> {
        let (key, value) = (key_bytes(key), value_bytes(value)?);
        self.set(change, &key, Some(&value), Moment::at_or_after(expiry)).await
    }

    /// Removes a row, and its entries in the indexes, in a transaction. The row counts as read.
    ///
    /// # Errors
    /// As [`IndexedTable::put_in`].
    pub async fn delete_in(&self, change: &Transaction, key: &(impl AsKey<K> + ?Sized)) -> Result<()> {
        let key = key_bytes(key);
        self.set(change, &key, None, Moment::NEVER).await
    }

    /// Rebuilds the indexes from the rows, in one transaction, and returns the number of rows: after an index was
    /// added to a table with rows, or after changes that did not go through the indexes. Keeps the entries of all
    /// indexes in memory while it runs.
    ///
    /// # Errors
    /// As [`Db::transact`](crate::db::Db::transact); `WrongType` when a row is not of the types of the table.
    pub async fn rebuild(&self) -> Result<u64> {
        let rebuild = async |change: Transaction| {
            for index in &self.indexes {
                let mut range = change.range::<&[u8]>(&index.table, ..)?;
                while let Some((key, _)) = range.next_ref().await? {
                    change.delete(&index.table, key)?;
                }
            }
            let (mut rows, mut count) = (change.range::<&[u8]>(self.rows.raw(), ..)?, 0);
            while let Some(entry) = rows.next_ref().await? {
                let (key, value) = read_entry::<K, V>(self.rows.raw().name(), &entry)?;
                let expiry = rows.expiry().map_or(Moment::NEVER, Moment::at_or_after);
                for index in &self.indexes {
                    for entry in (index.entries_of)(&key, &value) {
                        change.put_until(&index.table, &entry, &[], expiry)?;
                    }
                }
                count += 1;
            }
            Ok(count)
        };
        self.rows.raw().db().transact(Durability::Sync, rebuild).await
    }

    /// Sets or removes a row of these bytes, which expires at `expiry` with its entries. The entries of an expired row before
    /// it have expired with it.
    async fn set(&self, change: &Transaction, key: &[u8], value: Option<&[u8]>, expiry: Moment) -> Result<()> {
        let rows = self.rows.raw();
        let before = change.get(rows, key).await?;
        let name = rows.name();
        let read = |value: &[u8]| read_value::<V>(name, value);
        let (before, after) = (before.as_deref().map(read).transpose()?, value.map(read).transpose()?);
        let row = crate::typed::read_key::<K>(name, key)?;
        for index in &self.indexes {
            let entries = |value: &Option<V::Item>| -> BTreeSet<Vec<u8>> {
                value.iter().flat_map(|value| (index.entries_of)(&row, value)).collect()
            };
            let (old, new) = (entries(&before), entries(&after));
            for entry in old.difference(&new) {
                change.delete(&index.table, entry)?;
            }
            // Those that stay are put as well: they may expire at another time now, and a reader of the index would miss one that
            // other hands have removed.
            for entry in &new {
                change.put_until(&index.table, entry, &[], expiry)?;
            }
        }
        match value {
            Some(value) => change.put_until(rows, key, value, expiry),
            None => change.delete(rows, key),
        }
    }
}
