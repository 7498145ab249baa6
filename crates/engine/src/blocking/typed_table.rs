//! Tables of typed keys and values with blocking calls, for threads.

mod views;

use std::ops::RangeBounds;
use std::time::SystemTime;

pub use self::views::{TypedRange, TypedSnapshot, TypedTransaction, TypedTransactionRange};
use super::{Db, Snapshot, Table, Transaction, Watch};
use crate::db::{self, Batch, BulkEntry, TypedBatch, byte_bounds, entry_bytes, read_values, try_entry_bytes};
use crate::driver::block_on;
use crate::error::{Error, Result};
use crate::typed::{
    AsKey, AsPrefix, AsValue, Key, Value, key_bytes, prefix_bytes, read_entry, read_value, value_bytes,
};

impl Db {
    /// Creates an empty table of typed keys and values. See [`db::Db::create_typed_table`], and [`TypedTable`] for an
    /// example.
    ///
    /// # Errors
    /// As [`db::Db::create_typed_table`].
    pub fn create_typed_table<K: Key, V: Value>(&self, name: &str) -> Result<TypedTable<K, V>> {
        block_on(self.0.create_typed_table(name)).map(TypedTable::new)
    }

    /// Opens a table by its name, with the types of its keys and values. See [`db::Db::typed_table`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// db.create_typed_table::<u64, String>("names")?;
    /// let error = db.typed_table::<u64, u64>("names").unwrap_err();
    /// assert_eq!(error.kind(), nofault::ErrorKind::WrongType);
    /// let types = db.table_types("names")?.expect("it has types");
    /// assert_eq!((types.key.as_str(), types.value.as_str()), ("u64", "string"));
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Db::typed_table`].
    pub fn typed_table<K: Key, V: Value>(&self, name: &str) -> Result<TypedTable<K, V>> {
        block_on(self.0.typed_table(name)).map(TypedTable::new)
    }

    /// Opens a table by its name as [`Db::typed_table`] does, or creates it. See
    /// [`db::Db::open_or_create_typed_table`].
    ///
    /// # Errors
    /// As [`db::Db::open_or_create_typed_table`].
    pub fn open_or_create_typed_table<K: Key, V: Value>(&self, name: &str) -> Result<TypedTable<K, V>> {
        block_on(self.0.open_or_create_typed_table(name)).map(TypedTable::new)
    }

    /// The names of the types of a table, if it was opened with types. See [`db::Db::table_types`].
    ///
    /// # Errors
    /// As [`db::Db::table_types`].
    pub fn table_types(&self, name: &str) -> Result<Option<db::TableTypes>> {
        block_on(self.0.table_types(name))
    }
}

/// A table with keys of type `K`, in their order, and values of type `V`, for threads. See [`db::TypedTable`].
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
/// use nofault::{Batch, Durability, blocking::TypedTable};
///
/// // The amount of each kind of fruit in each shelf.
/// let stock: TypedTable<(String, u32), i64> = db.open_or_create_typed_table("stock")?;
/// stock.put(&("apples", 7), &12)?;
/// stock.put(&("apples", 300), &-1)?;
/// stock.put(&("pears", 7), &3)?;
/// assert_eq!(stock.get(&("apples", 300))?, Some(-1));
/// assert!(stock.contains_key(&("pears", 7))? && !stock.contains_key(&("pears", 8))?);
/// assert_eq!(stock.get_many(&[("apples", 7), ("plums", 7)])?, [Some(12), None]);
///
/// // In the order of the keys, from both ends.
/// let shelves: Vec<u32> = stock.prefix(&("apples",)).map(|entry| entry.map(|((_, shelf), _)| shelf)).collect::<Result<_, _>>()?;
/// assert_eq!(shelves, [7, 300]);
/// let amounts = |entry: Result<_, nofault::Error>| entry.map(|(_, amount): ((String, u32), i64)| amount);
/// assert_eq!(stock.range(("apples", 8)..).next_back().map(amounts).transpose()?, Some(3));
/// assert_eq!(stock.iter().after(&("apples", 7)).limit(1).map(amounts).collect::<Result<Vec<_>, _>>()?, [-1]);
///
/// let more = |amount: Option<i64>| Some(amount.unwrap_or(0) + 10);
/// assert_eq!(stock.update(&("pears", 7), more)?, Some(13));
/// assert_eq!(stock.get_or_insert_with(&("plums", 1), || 5)?, 5);
/// assert_eq!(stock.last()?.map(|(_, amount)| amount), Some(5));
/// assert_eq!((stock.first()?, stock.len()?), (Some((("apples".to_string(), 7), 12)), 4));
///
/// let before = db.snapshot();
/// db.transact(Durability::Sync, |change| {
///     let stock = stock.in_transaction(change);
///     let amount = stock.get(&("apples", 7))?.unwrap_or(0);
///     stock.put(&("apples", 300), &amount)?;
///     stock.delete(&("apples", 7))
/// })?;
/// assert_eq!(stock.in_snapshot(&before).get(&("apples", 7))?, Some(12));
/// let mut batch = Batch::new();
/// stock.in_batch(&mut batch).put(&("nuts", 1), &500)?.delete(&("plums", 1));
/// db.write(batch, Durability::Sync)?;
/// assert_eq!(stock.pop_first()?.map(|(_, amount)| amount), Some(12));
/// assert_eq!(stock.delete_range(("nuts", 0)..=("nuts", 9))?, 1);
/// stock.delete(&("pears", 7))?;
/// assert!(stock.is_empty()?);
/// assert_eq!(stock.bulk_load((0..3_i64).map(|n| (("figs", n as u32), n)))?, 3);
/// assert_eq!((stock.clear()?, stock.raw().name()), (3, "stock"));
/// # Ok::<(), nofault::error::Error>(())
/// ```
pub struct TypedTable<K, V> {
    table: Table,
    typed: db::TypedTable<K, V>,
}

impl<K, V> Clone for TypedTable<K, V> {
    fn clone(&self) -> Self {
        Self { table: self.table.clone(), typed: self.typed.clone() }
    }
}

impl<K: Key, V: Value> std::fmt::Debug for TypedTable<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.typed.fmt(f)
    }
}

impl<K, V> AsRef<db::Table> for TypedTable<K, V> {
    fn as_ref(&self) -> &db::Table {
        self.table.as_ref()
    }
}

impl<K: Key, V: Value> TypedTable<K, V> {
    fn new(typed: db::TypedTable<K, V>) -> Self {
        Self { table: Table::new(typed.raw().clone()), typed }
    }

    /// The table with async calls.
    pub(super) fn asynchronous(&self) -> &db::TypedTable<K, V> {
        &self.typed
    }

    /// The table of bytes.
    pub fn raw(&self) -> &Table {
        &self.table
    }

    fn name(&self) -> &str {
        self.table.name()
    }

    /// The visible value of a key. See [`db::TypedTable::get`].
    ///
    /// # Errors
    /// As [`db::TypedTable::get`].
    pub fn get<Q: AsKey<K> + ?Sized>(&self, key: &Q) -> Result<Option<V::Item>> {
        let value = self.table.get(key_bytes(key))?;
        value.map(|value| read_value::<V>(self.name(), &value)).transpose()
    }

    /// Whether a key has a value. See [`db::TypedTable::contains_key`].
    ///
    /// # Errors
    /// As [`db::TypedTable::contains_key`].
    pub fn contains_key<Q: AsKey<K> + ?Sized>(&self, key: &Q) -> Result<bool> {
        self.table.contains_key(key_bytes(key))
    }

    /// Reads many keys at one moment. See [`db::TypedTable::get_many`].
    ///
    /// # Errors
    /// As [`db::TypedTable::get_many`].
    pub fn get_many<Q: AsKey<K>>(&self, keys: &[Q]) -> Result<Vec<Option<V::Item>>> {
        let keys: Vec<_> = keys.iter().map(key_bytes).collect();
        read_values::<V>(self.name(), self.table.get_many(&keys)?)
    }

    /// Sets the value of a key. Durable when it returns. See [`db::TypedTable::put`].
    ///
    /// # Errors
    /// As [`db::TypedTable::put`].
    pub fn put<Q: AsKey<K> + ?Sized, W: AsValue<V> + ?Sized>(&self, key: &Q, value: &W) -> Result<()> {
        self.table.put(key_bytes(key), value_bytes(value)?)
    }

    /// Sets the value of a key until `expiry`: from then on the key is absent. See [`db::TypedTable::put_with_expiry`].
    ///
    /// # Errors
    /// As [`db::TypedTable::put_with_expiry`].
    pub fn put_with_expiry<Q, W>(&self, key: &Q, value: &W, expiry: SystemTime) -> Result<()>
    where
        Q: AsKey<K> + ?Sized,
        W: AsValue<V> + ?Sized,
    {
        self.table.put_with_expiry(key_bytes(key), value_bytes(value)?, expiry)
    }

    /// Returns the time at which a key expires; `None` when it is absent or does not expire.
    ///
    /// # Errors
    /// As [`db::TypedTable::expiry`].
    pub fn expiry<Q: AsKey<K> + ?Sized>(&self, key: &Q) -> Result<Option<SystemTime>> {
        self.table.expiry(key_bytes(key))
    }

    /// Removes a key. Durable when it returns.
    ///
    /// # Errors
    /// As [`db::TypedTable::delete`].
    pub fn delete<Q: AsKey<K> + ?Sized>(&self, key: &Q) -> Result<()> {
        self.table.delete(key_bytes(key))
    }

    /// Walks the keys in `range`, as they are now. See [`db::TypedTable::range`].
    pub fn range<Q: AsKey<K>>(&self, range: impl RangeBounds<Q>) -> TypedRange<K, V> {
        TypedRange::new(self, self.table.range(byte_bounds(&range)))
    }

    /// Walks all keys, as they are now.
    pub fn iter(&self) -> TypedRange<K, V> {
        TypedRange::new(self, self.table.iter())
    }

    /// Walks the keys beginning with `prefix`, as they are now. See [`db::TypedTable::prefix`].
    pub fn prefix<P: AsPrefix<K> + ?Sized>(&self, prefix: &P) -> TypedRange<K, V> {
        TypedRange::new(self, self.table.prefix(prefix_bytes(prefix)))
    }

    /// Returns the entry with the first key, as it is now.
    ///
    /// # Errors
    /// As [`db::TypedTable::first`].
    pub fn first(&self) -> Result<Option<(K, V::Item)>> {
        self.table.first()?.map(|entry| read_entry::<K, V>(self.name(), &entry)).transpose()
    }

    /// Returns the entry with the last key, as it is now.
    ///
    /// # Errors
    /// As [`db::TypedTable::last`].
    pub fn last(&self) -> Result<Option<(K, V::Item)>> {
        self.table.last()?.map(|entry| read_entry::<K, V>(self.name(), &entry)).transpose()
    }

    /// Removes the entry with the first key and returns it. See [`db::TypedTable::pop_first`].
    ///
    /// # Errors
    /// As [`db::TypedTable::pop_first`].
    pub fn pop_first(&self) -> Result<Option<(K, V::Item)>> {
        block_on(self.typed.pop_first())
    }

    /// Returns the exact number of entries at one moment.
    ///
    /// # Errors
    /// As [`db::TypedTable::len`].
    pub fn len(&self) -> Result<u64> {
        self.table.len()
    }

    /// Returns whether the table has no entry.
    ///
    /// # Errors
    /// As [`db::TypedTable::is_empty`].
    pub fn is_empty(&self) -> Result<bool> {
        self.table.is_empty()
    }

    /// Replaces the value of a key by the result of `change`, and returns that. See [`db::TypedTable::update`].
    ///
    /// # Errors
    /// As [`db::TypedTable::update`].
    pub fn update<Q: AsKey<K> + ?Sized, W: AsValue<V>>(
        &self,
        key: &Q,
        change: impl FnMut(Option<V::Item>) -> Option<W>,
    ) -> Result<Option<W>> {
        block_on(self.typed.update(key, change))
    }

    /// Returns the value of a key; where it has none, sets it to the result of `make` first. See
    /// [`db::TypedTable::get_or_insert_with`].
    ///
    /// # Errors
    /// As [`db::TypedTable::get_or_insert_with`].
    pub fn get_or_insert_with<Q, W>(&self, key: &Q, make: impl FnOnce() -> W) -> Result<V::Item>
    where
        Q: AsKey<K> + ?Sized,
        W: AsValue<V>,
    {
        block_on(self.typed.get_or_insert_with(key, make))
    }

    /// Removes all entries in `range`, in one commit, and returns their number. See [`db::TypedTable::delete_range`].
    ///
    /// # Errors
    /// As [`db::TypedTable::delete_range`].
    pub fn delete_range<Q: AsKey<K>>(&self, range: impl RangeBounds<Q>) -> Result<u64> {
        self.table.delete_range(byte_bounds(&range))
    }

    /// Removes all entries, and returns their number.
    ///
    /// # Errors
    /// As [`db::TypedTable::clear`].
    pub fn clear(&self) -> Result<u64> {
        self.table.clear()
    }

    /// Loads entries in ascending order of their keys, in one commit past the log. See [`db::TypedTable::bulk_load`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// let sessions = db.create_typed_table::<u64, String>("sessions")?;
    /// let ends = Some(db.now() + std::time::Duration::from_secs(3600));
    /// assert_eq!(sessions.bulk_load((0..100_u64).map(|number| (number, format!("user {number}"), ends)))?, 100);
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::TypedTable::bulk_load`].
    pub fn bulk_load<B>(&self, entries: impl IntoIterator<Item = B>) -> Result<u64>
    where
        B: BulkEntry<Key: AsKey<K>, Value: AsValue<V>>,
    {
        self.table.try_bulk_load(entry_bytes::<K, V, _>(entries))
    }

    /// Loads entries as [`TypedTable::bulk_load`] does, where reading or making them can fail. See
    /// [`db::TypedTable::try_bulk_load`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// let words = db.create_typed_table::<u64, String>("words")?;
    /// let lines = ["apples", "pears", "7 plums"].into_iter().zip(0_u64..);
    /// let checked = lines.map(|(line, number)| match line.contains(' ') {
    ///     false => Ok((number, line)),
    ///     true => Err(Box::<dyn std::error::Error>::from(format!("line {number}: {line:?} is no word"))),
    /// });
    /// assert_eq!(words.try_bulk_load(checked).unwrap_err().to_string(), "line 2: \"7 plums\" is no word");
    /// assert!(words.is_empty()?);
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::TypedTable::try_bulk_load`].
    pub fn try_bulk_load<B, E>(
        &self,
        entries: impl IntoIterator<Item = std::result::Result<B, E>>,
    ) -> std::result::Result<u64, E>
    where
        B: BulkEntry<Key: AsKey<K>, Value: AsValue<V>>,
        E: From<Error>,
    {
        self.table.try_bulk_load(try_entry_bytes::<K, V, _, _>(entries))
    }

    /// Estimates the number of entries in `range`. See [`db::TypedTable::approximate_len`].
    ///
    /// # Errors
    /// As [`db::TypedTable::approximate_len`].
    pub fn approximate_len<Q: AsKey<K>>(&self, range: impl RangeBounds<Q>) -> Result<u64> {
        self.table.approximate_len(byte_bounds(&range))
    }

    /// Estimates the bytes of the leaves that hold `range`. See [`db::TypedTable::approximate_bytes`].
    ///
    /// # Errors
    /// As [`db::TypedTable::approximate_bytes`].
    pub fn approximate_bytes<Q: AsKey<K>>(&self, range: impl RangeBounds<Q>) -> Result<u64> {
        self.table.approximate_bytes(byte_bounds(&range))
    }

    /// Watches all keys. See [`db::TypedTable::watch`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// use nofault::db::{Change, WatchEvent};
    ///
    /// let stock = db.create_typed_table::<(String, u32), i64>("stock")?;
    /// let mut apples = stock.watch_prefix(&("apples",))?;
    /// stock.put(&("pears", 7), &3)?;
    /// stock.put(&("apples", 7), &12)?;
    /// let Some(WatchEvent::Commit { changes, .. }) = apples.next().transpose()? else { panic!("a commit") };
    /// let [Change::Put { key, value, .. }] = &changes[..] else { panic!("one change") };
    /// assert_eq!((stock.read_key(key)?, stock.read_value(value)?), (("apples".to_string(), 7), 12));
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::TypedTable::watch`].
    pub fn watch(&self) -> Result<Watch> {
        self.table.watch("")
    }

    /// Watches the keys beginning with `prefix`. See [`db::TypedTable::watch_prefix`], and [`TypedTable::watch`] for an
    /// example.
    ///
    /// # Errors
    /// As [`db::TypedTable::watch_prefix`].
    pub fn watch_prefix<P: AsPrefix<K> + ?Sized>(&self, prefix: &P) -> Result<Watch> {
        self.table.watch(prefix_bytes(prefix))
    }

    /// Reads the bytes of a key. See [`db::TypedTable::read_key`].
    ///
    /// # Errors
    /// As [`db::TypedTable::read_key`].
    pub fn read_key(&self, key: &[u8]) -> Result<K> {
        self.typed.read_key(key)
    }

    /// Reads the bytes of a value. See [`db::TypedTable::read_value`].
    ///
    /// # Errors
    /// As [`db::TypedTable::read_value`].
    pub fn read_value(&self, value: &[u8]) -> Result<V::Item> {
        self.typed.read_value(value)
    }

    /// The calls of the table in a transaction.
    pub fn in_transaction<'t>(&'t self, transaction: &'t Transaction) -> TypedTransaction<'t, K, V> {
        TypedTransaction { typed: self, transaction }
    }

    /// The calls of the table in a snapshot.
    pub fn in_snapshot<'t>(&'t self, snapshot: &'t Snapshot) -> TypedSnapshot<'t, K, V> {
        TypedSnapshot { typed: self, snapshot }
    }

    /// The calls of the table in a batch.
    pub fn in_batch<'t>(&'t self, batch: &'t mut Batch) -> TypedBatch<'t, K, V> {
        self.typed.in_batch(batch)
    }
}
