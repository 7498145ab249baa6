//! Tables of typed keys and values, over [`Table`]s of bytes: each call encodes its arguments, makes the call of the same name on bytes,
//! and decodes the answer. [`crate::typed`] has the encodings, `table_types` the comparison of types when a table is opened.
//!
//! Reads are written once, for each [`View`] of a table: as it is now, in a snapshot, in a transaction.

use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};
use std::time::SystemTime;

use super::batch::Batch;
use super::schema::{self, TableTypes};
use super::snapshot::{Range, Snapshot};
use super::table::Table;
use super::transaction_handle::{Transaction, TransactionRange};
use super::typed_entries::{AsyncEntries, Entries as _, TypedEntries, TypedRange};
use super::watch::Watch;
use super::writes;
use crate::btree::KeyRange;
use crate::db::calls::bounds::{range_of, range_of_prefix};
use crate::db::calls::bulk::BulkEntry;
use crate::db::calls::thread;
use crate::db::open::handle::Db;
use crate::error::{Error, Result};
use crate::pages::Durability;
use crate::typed::{
    AsKey, AsPrefix, AsValue, Key, Value, key_bytes, prefix_bytes, read_entry, read_key, read_value, value_bytes,
};

impl Db {
    /// Creates an empty table of typed keys and values. See [`TypedTable`]. Durable when it returns.
    ///
    /// # Errors
    /// As [`Db::create_table`]; `InvalidCall` when the names of the types together take more than about a quarter of a
    /// page: the table is there then, without types.
    pub async fn create_typed_table<K: Key, V: Value>(&self, name: &str) -> Result<TypedTable<K, V>> {
        TypedTable::open(self.create_table(name).await?).await
    }

    /// Opens a table by its name, with the types of its keys and values. A table without types yet, because it was
    /// filled through [`Db::table`], gets these, durably; entries in it that are not of these types are errors of the
    /// calls that meet them. The first table of a database that gets types costs a checkpoint: from then on builds that
    /// do not know types refuse the database.
    ///
    /// # Errors
    /// `WrongType` when the table has other types; `NotFound` when there is no such table; otherwise as [`Db::write`].
    pub async fn typed_table<K: Key, V: Value>(&self, name: &str) -> Result<TypedTable<K, V>> {
        TypedTable::open(self.table(name).await?).await
    }

    /// Opens a table by its name as [`Db::typed_table`] does, or creates it.
    ///
    /// # Errors
    /// As [`Db::typed_table`], but for `NotFound`, and as [`Db::create_typed_table`], but for `AlreadyExists`.
    pub async fn open_or_create_typed_table<K: Key, V: Value>(&self, name: &str) -> Result<TypedTable<K, V>> {
        TypedTable::open(self.open_or_create_table(name).await?).await
    }
}

/// A table of bytes in one state: what the reads of a typed one are made of.
pub trait View: Sync {
    /// Its ranges.
    type Range: AsyncEntries;

    /// The table.
    fn table(&self) -> &Table;

    /// As [`Table::get`].
    fn get(&self, key: &[u8]) -> impl Future<Output = Result<Option<Vec<u8>>>> + Send;

    /// As [`Table::contains_key`].
    fn contains_key(&self, key: &[u8]) -> impl Future<Output = Result<bool>> + Send;

    /// As [`Table::expiry`].
    fn expiry(&self, key: &[u8]) -> impl Future<Output = Result<Option<SystemTime>>> + Send;

    /// As [`Table::get_many`].
    fn get_many(&self, keys: &[Vec<u8>]) -> impl Future<Output = Result<Vec<Option<Vec<u8>>>>> + Send;

    /// As [`Table::range`].
    fn scan(&self, range: KeyRange) -> Result<Self::Range>;
}

/// The newest state of a table, given as one of either face.
impl<T: AsRef<Table> + Sync> View for T {
    type Range = Range;

    fn table(&self) -> &Table {
        self.as_ref()
    }

    fn get(&self, key: &[u8]) -> impl Future<Output = Result<Option<Vec<u8>>>> + Send {
        self.as_ref().get(key)
    }

    fn contains_key(&self, key: &[u8]) -> impl Future<Output = Result<bool>> + Send {
        self.as_ref().contains_key(key)
    }

    fn expiry(&self, key: &[u8]) -> impl Future<Output = Result<Option<SystemTime>>> + Send {
        self.as_ref().expiry(key)
    }

    fn get_many(&self, keys: &[Vec<u8>]) -> impl Future<Output = Result<Vec<Option<Vec<u8>>>>> + Send {
        self.as_ref().get_many(keys)
    }

    fn scan(&self, range: KeyRange) -> Result<Range> {
        Ok(self.as_ref().scan(range))
    }
}

/// A table as a snapshot or a transaction has it.
#[derive(Debug)]
pub struct In<'t, S> {
    state: &'t S,
    table: &'t Table,
}

macro_rules! view_in {
    ($state:ty, $range:ty) => {
        impl View for In<'_, $state> {
            type Range = $range;

            fn table(&self) -> &Table {
                self.table
            }

            fn get(&self, key: &[u8]) -> impl Future<Output = Result<Option<Vec<u8>>>> + Send {
                self.state.get(self.table, key)
            }

            fn contains_key(&self, key: &[u8]) -> impl Future<Output = Result<bool>> + Send {
                self.state.contains_key(self.table, key)
            }

            fn expiry(&self, key: &[u8]) -> impl Future<Output = Result<Option<SystemTime>>> + Send {
                self.state.expiry(self.table, key)
            }

            fn get_many(&self, keys: &[Vec<u8>]) -> impl Future<Output = Result<Vec<Option<Vec<u8>>>>> + Send {
                self.state.get_many(self.table, keys)
            }

            fn scan(&self, range: KeyRange) -> Result<$range> {
                self.state.scan(self.table, range)
            }
        }
    };
}

view_in!(Snapshot, Range);
view_in!(Transaction, TransactionRange);

type Types<K, V> = PhantomData<fn() -> (K, V)>;

/// A table with keys of type `K`, in their order, and values of type `V`, in the state of `S`: a [`TypedTable`] as it is now, one in a
/// snapshot ([`TypedSnapshot`]) or in a transaction ([`TypedTransaction`]).
pub struct TypedView<S, K, V> {
    view: S,
    types: Types<K, V>,
}

/// A table with keys of type `K`, in their order, and values of type `V`. Cheap to clone.
/// **Its calls stand at [`TypedView`]**, which snapshots and transactions share.
///
/// Keys and values are given by reference, in any form with the same bytes: `str` for `String`, `(&str, u64)` for
/// `(String, u64)`. The table of bytes below is [`TypedTable::raw`]. An entry in it that is not of these types is an
/// error of kind `WrongType`, and stays as it is.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), nofault::error::Error> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # let db = nofault::Db::create(folder.path().join("shop"), &settings).await?;
/// use nofault::{Batch, Durability, TypedTable, error::ErrorKind};
///
/// // The amount of each kind of fruit in each shelf.
/// let stock: TypedTable<(String, u32), i64> = db.create_typed_table("stock").await?;
/// stock.put(&("apples", 7), &12).await?;
/// stock.put(&("apples", 300), &-1).await?;
/// stock.put(&("pears", 7), &3).await?;
/// assert_eq!(stock.get(&("apples", 300)).await?, Some(-1));
/// assert!(stock.contains_key(&("pears", 7)).await? && !stock.contains_key(&("pears", 8)).await?);
/// assert_eq!(stock.get_many(&[("apples", 7), ("plums", 7)]).await?, [Some(12), None]);
///
/// // In the order of the keys: shelf 7 before shelf 300.
/// let mut apples = stock.prefix(&("apples",));
/// assert_eq!(apples.next().await?, Some((("apples".to_string(), 7), 12)));
/// assert_eq!(apples.next_batch(10).await?, [(("apples".to_string(), 300), -1)]);
/// let mut range = stock.range(("apples", 8)..).rev().after(&("pears", 7)).limit(5);
/// assert_eq!(range.next().await?.map(|((_, shelf), _)| shelf), Some(300));
/// assert!(stock.iter().next().await?.is_some());
///
/// let more = |amount: Option<i64>| Some(amount.unwrap_or(0) + 10);
/// assert_eq!(stock.update(&("pears", 7), more).await?, Some(13));
/// assert_eq!(stock.get_or_insert_with(&("plums", 1), || 5).await?, 5);
/// assert_eq!(stock.last().await?.map(|(_, amount)| amount), Some(5));
/// assert_eq!((stock.first().await?, stock.len().await?), (Some((("apples".to_string(), 7), 12)), 4));
///
/// // Together with other tables, typed or not, in a transaction, a snapshot and a batch.
/// let before = db.snapshot();
/// db.transact(Durability::Sync, async |change| {
///     let stock = stock.in_transaction(&change);
///     let amount = stock.get(&("apples", 7)).await?.unwrap_or(0);
///     stock.put(&("apples", 300), &amount)?;
///     stock.delete(&("apples", 7))
/// })
/// .await?;
/// assert_eq!(stock.in_snapshot(&before).get(&("apples", 7)).await?, Some(12));
/// let mut batch = Batch::new();
/// stock.in_batch(&mut batch).put(&("nuts", 1), &500)?.delete(&("plums", 1));
/// db.write(batch, Durability::Sync).await?;
/// assert_eq!(stock.pop_first().await?.map(|(_, amount)| amount), Some(12));
/// assert_eq!(stock.delete_range(("nuts", 0)..=("nuts", 9)).await?, 1);
/// stock.delete(&("pears", 7)).await?;
/// assert!(stock.is_empty().await?);
/// assert_eq!(stock.bulk_load((0..3_i64).map(|n| (("figs", n as u32), n))).await?, 3);
/// assert_eq!(stock.clear().await?, 3);
///
/// let error = db.typed_table::<u64, i64>("stock").await.unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::WrongType);
/// # Ok(())
/// # }
/// ```
pub type TypedTable<K, V> = TypedView<Table, K, V>;

/// A [`TypedTable`] in a [`Snapshot`]: its calls stand at [`TypedView`].
pub type TypedSnapshot<'t, K, V> = TypedView<In<'t, Snapshot>, K, V>;

/// A [`TypedTable`] in a [`Transaction`]: its calls stand at [`TypedView`]. What is read through it counts as read: see [`Transaction::get`].
pub type TypedTransaction<'t, K, V> = TypedView<In<'t, Transaction>, K, V>;

impl<S: Clone, K, V> Clone for TypedView<S, K, V> {
    fn clone(&self) -> Self {
        Self::new(self.view.clone())
    }
}

impl<S: View, K: Key, V: Value> std::fmt::Debug for TypedView<S, K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TypedTable({:?}, {} to {})", self.name(), K::type_name(), V::type_name())
    }
}

impl<T: AsRef<Table>, K, V> AsRef<Table> for TypedView<T, K, V> {
    fn as_ref(&self) -> &Table {
        self.view.as_ref()
    }
}

/// Returns the bytes of the bounds of a range of keys.
fn byte_bounds<K, Q: AsKey<K>>(range: &impl RangeBounds<Q>) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    (range.start_bound().map(key_bytes), range.end_bound().map(key_bytes))
}

impl<S, K, V> TypedView<S, K, V> {
    pub(crate) fn new(view: S) -> Self {
        Self { view, types: PhantomData }
    }

    /// The table of bytes.
    pub fn raw(&self) -> &S
    where
        S: AsRef<Table>,
    {
        &self.view
    }
}

/// Reads.
impl<S: View, K: Key, V: Value> TypedView<S, K, V> {
    fn name(&self) -> &str {
        self.view.table().name()
    }

    /// Returns the value of a key. See [`Table::get`].
    ///
    /// # Errors
    /// As [`Table::get`], [`Snapshot::get`] or [`Transaction::get`]; `WrongType` when the value is not of the type `V`.
    pub async fn get(&self, key: &(impl AsKey<K> + ?Sized)) -> Result<Option<V::Item>> {
        let value = self.view.get(&key_bytes(key)).await?;
        value.map(|value| self.read_value(&value)).transpose()
    }

    /// Returns whether a key has a value. See [`Table::contains_key`].
    ///
    /// # Errors
    /// As [`TypedView::get`].
    pub async fn contains_key(&self, key: &(impl AsKey<K> + ?Sized)) -> Result<bool> {
        self.view.contains_key(&key_bytes(key)).await
    }

    /// Returns the time at which a key expires; `None` when it is absent or does not expire.
    ///
    /// # Errors
    /// As [`TypedView::get`].
    pub async fn expiry(&self, key: &(impl AsKey<K> + ?Sized)) -> Result<Option<SystemTime>> {
        self.view.expiry(&key_bytes(key)).await
    }

    /// Reads many keys at one moment; the values come in the order of `keys`. See [`Table::get_many`].
    ///
    /// # Errors
    /// As [`TypedView::get`].
    pub async fn get_many(&self, keys: &[impl AsKey<K>]) -> Result<Vec<Option<V::Item>>> {
        let keys: Vec<_> = keys.iter().map(key_bytes).collect();
        let values = self.view.get_many(&keys).await?;
        values.into_iter().map(|value| value.map(|value| self.read_value(&value)).transpose()).collect()
    }

    /// Returns the entry with the first key.
    ///
    /// # Errors
    /// As [`TypedView::get`].
    pub async fn first(&self) -> Result<Option<(K, V::Item)>> {
        self.end(false).await
    }

    /// Returns the entry with the last key.
    ///
    /// # Errors
    /// As [`TypedView::get`].
    pub async fn last(&self) -> Result<Option<(K, V::Item)>> {
        self.end(true).await
    }

    async fn end(&self, is_last: bool) -> Result<Option<(K, V::Item)>> {
        let range = self.scan(range_of::<&[u8]>(&..))?.read_ahead_max(0);
        let mut range = if is_last { range.rev() } else { range };
        range.next().await
    }

    /// Returns whether the table has no entry.
    ///
    /// # Errors
    /// As [`TypedView::get`].
    pub async fn is_empty(&self) -> Result<bool> {
        let mut range = self.view.scan(range_of::<&[u8]>(&..))?.read_ahead_max(0);
        Ok(range.next_ref().await?.is_none())
    }

    /// Reads the bytes of a key, as the table of bytes, its ranges and its watches have them.
    ///
    /// # Errors
    /// `WrongType` when the bytes are no key of the type `K`.
    pub fn read_key(&self, key: &[u8]) -> Result<K> {
        read_key::<K>(self.name(), key)
    }

    /// Reads the bytes of a value, as the table of bytes, its ranges and its watches have them.
    ///
    /// # Errors
    /// `WrongType` when the bytes are no value of the type `V`.
    pub fn read_value(&self, value: &[u8]) -> Result<V::Item> {
        read_value::<V>(self.name(), value)
    }

    fn scan(&self, range: KeyRange) -> Result<TypedEntries<S::Range, K, V>> {
        Ok(TypedEntries::new(&self.view.table().name, self.view.scan(range)?))
    }
}

/// The ranges of a state that is given, which may be of another database.
impl<'t, S, K: Key, V: Value, R: AsyncEntries> TypedView<In<'t, S>, K, V>
where
    In<'t, S>: View<Range = R>,
{
    /// Walks the keys in `range`. See [`Snapshot::range`], [`Transaction::range`].
    ///
    /// # Errors
    /// As [`Snapshot::range`] or [`Transaction::range`].
    pub fn range<Q: AsKey<K>>(&self, range: impl RangeBounds<Q>) -> Result<TypedEntries<R, K, V>> {
        self.scan(range_of(&byte_bounds(&range)))
    }

    /// Walks all keys.
    ///
    /// # Errors
    /// As [`Snapshot::range`] or [`Transaction::range`].
    pub fn iter(&self) -> Result<TypedEntries<R, K, V>> {
        self.scan(range_of::<&[u8]>(&..))
    }

    /// Walks the keys beginning with `prefix`. See [`TypedTable::prefix`].
    ///
    /// # Errors
    /// As [`Snapshot::range`] or [`Transaction::range`].
    pub fn prefix(&self, prefix: &(impl AsPrefix<K> + ?Sized)) -> Result<TypedEntries<R, K, V>> {
        self.scan(range_of_prefix(&prefix_bytes(prefix)))
    }
}

impl<K: Key, V: Value> TypedSnapshot<'_, K, V> {
    /// Returns the exact number of entries as of the snapshot.
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub async fn len(&self) -> Result<u64> {
        self.view.state.len(self.view.table).await
    }
}

/// Writes of a transaction, which it alone sees until it commits.
impl<K: Key, V: Value> TypedTransaction<'_, K, V> {
    /// Sets the value of a key.
    ///
    /// # Errors
    /// As [`Transaction::put`]; `InvalidCall` when the value cannot be encoded.
    pub fn put(&self, key: &(impl AsKey<K> + ?Sized), value: &(impl AsValue<V> + ?Sized)) -> Result<()> {
        self.view.state.put(self.view.table, key_bytes(key), value_bytes(value)?)
    }

    /// Sets the value of a key until `expiry`. See [`Transaction::put_with_expiry`].
    ///
    /// # Errors
    /// As [`TypedTransaction::put`].
    pub fn put_with_expiry(
        &self,
        key: &(impl AsKey<K> + ?Sized),
        value: &(impl AsValue<V> + ?Sized),
        expiry: SystemTime,
    ) -> Result<()> {
        self.view.state.put_with_expiry(self.view.table, key_bytes(key), value_bytes(value)?, expiry)
    }

    /// Removes a key.
    ///
    /// # Errors
    /// As [`Transaction::put`].
    pub fn delete(&self, key: &(impl AsKey<K> + ?Sized)) -> Result<()> {
        self.view.state.delete(self.view.table, key_bytes(key))
    }
}

impl<K: Key, V: Value> TypedTable<K, V> {
    async fn open(table: Table) -> Result<Self> {
        schema::require(&table.db, table.tree, &table.name, &TableTypes::of::<K, V>()).await?;
        Ok(Self::new(table))
    }

    /// Loads entries in ascending order of their keys, in one commit past the log. See [`Table::bulk_load`]: an entry is a pair,
    /// or a triple with the time at which it expires, if it does.
    ///
    /// # Errors
    /// As [`Table::bulk_load`]; `InvalidCall` when a value cannot be encoded.
    pub async fn bulk_load<B, I>(&self, entries: I) -> Result<u64>
    where
        B: BulkEntry<Key: AsKey<K>, Value: AsValue<V>>,
        I: IntoIterator<Item = B> + Send + 'static,
        V: 'static,
        K: 'static,
    {
        let table = self.clone();
        thread::run("nofault-load", move || table.load(entries)).await?
    }

    /// Loads entries as [`TypedTable::bulk_load`] does, where reading or making them can fail: the first `Err` ends the load and
    /// is returned, and the table is as it was. See [`Table::try_bulk_load`].
    ///
    /// # Errors
    /// The first `Err` of `entries`; or, converted into that type, as [`TypedTable::bulk_load`].
    pub async fn try_bulk_load<B, E, I>(&self, entries: I) -> std::result::Result<u64, E>
    where
        B: BulkEntry<Key: AsKey<K>, Value: AsValue<V>>,
        E: From<Error> + Send + 'static,
        I: IntoIterator<Item = std::result::Result<B, E>> + Send + 'static,
        V: 'static,
        K: 'static,
    {
        let table = self.clone();
        thread::run("nofault-load", move || table.try_load(entries)).await?
    }
}

/// The calls of the newest state, over a table of either face.
impl<T: View<Range = Range> + AsRef<Table>, K: Key, V: Value> TypedView<T, K, V> {
    /// Walks the keys in `range`, as they are now. See [`Table::range`].
    pub fn range<Q: AsKey<K>>(&self, range: impl RangeBounds<Q>) -> TypedRange<K, V> {
        self.walk(range_of(&byte_bounds(&range)))
    }

    /// Walks all keys, as they are now.
    pub fn iter(&self) -> TypedRange<K, V> {
        self.walk(range_of::<&[u8]>(&..))
    }

    /// Walks the keys beginning with `prefix`, as they are now: `&("apples",)` of keys of type `(String, u32)`, or
    /// `"app"` of keys of type `String`.
    pub fn prefix(&self, prefix: &(impl AsPrefix<K> + ?Sized)) -> TypedRange<K, V> {
        self.walk(range_of_prefix(&prefix_bytes(prefix)))
    }

    fn walk(&self, range: KeyRange) -> TypedRange<K, V> {
        let table = self.view.as_ref();
        TypedEntries::new(&table.name, table.scan(range))
    }

    /// Sets the value of a key. Durable when it returns. See [`Table::put`].
    ///
    /// # Errors
    /// As [`Db::write`]; `InvalidCall` when the value cannot be encoded.
    pub async fn put(&self, key: &(impl AsKey<K> + ?Sized), value: &(impl AsValue<V> + ?Sized)) -> Result<()> {
        let (key, value) = (key_bytes(key), value_bytes(value)?);
        self.view.as_ref().put(key, value).await
    }

    /// Sets the value of a key until `expiry`: from then on the key is absent. See [`Table::put_with_expiry`].
    ///
    /// # Errors
    /// As [`Db::write`]; `InvalidCall` when the value cannot be encoded.
    pub async fn put_with_expiry(
        &self,
        key: &(impl AsKey<K> + ?Sized),
        value: &(impl AsValue<V> + ?Sized),
        expiry: SystemTime,
    ) -> Result<()> {
        let (key, value) = (key_bytes(key), value_bytes(value)?);
        self.view.as_ref().put_with_expiry(key, value, expiry).await
    }

    /// Removes a key. Durable when it returns. See [`Table::delete`].
    ///
    /// # Errors
    /// As [`Db::write`].
    pub async fn delete(&self, key: &(impl AsKey<K> + ?Sized)) -> Result<()> {
        self.view.as_ref().delete(key_bytes(key)).await
    }

    /// Removes the entry with the first key and returns it. See [`Table::pop_first`].
    ///
    /// # Errors
    /// As [`Db::transact`]; `WrongType` when the entry is not of these types: then it stays.
    pub async fn pop_first(&self) -> Result<Option<(K, V::Item)>> {
        let table = self.view.as_ref();
        let pop = async |change: Transaction| {
            let first = change.range::<&[u8]>(table, ..)?.read_ahead_max(0).next().await?;
            let Some(entry) = first else { return Ok(None) };
            change.delete(table, &entry.0)?;
            read_entry::<K, V>(self.name(), &entry).map(Some)
        };
        table.db.transact(Durability::Sync, pop).await
    }

    /// Returns the exact number of entries at one moment. See [`Table::len`].
    ///
    /// # Errors
    /// As [`Table::get`].
    pub async fn len(&self) -> Result<u64> {
        self.view.as_ref().len().await
    }

    /// Replaces the value of a key by the result of `change`, and returns that. See [`Table::update`].
    ///
    /// # Errors
    /// As [`Db::transact`]; `WrongType` when the value is not of the type `V`, `InvalidCall` when the new one cannot be
    /// encoded: then nothing changes.
    pub async fn update<W: AsValue<V>>(
        &self,
        key: &(impl AsKey<K> + ?Sized),
        mut change: impl FnMut(Option<V::Item>) -> Option<W>,
    ) -> Result<Option<W>> {
        let (key, mut made) = (key_bytes(key), None);
        let change = |value: Option<&[u8]>| {
            made = change(value.map(|value| self.read_value(value)).transpose()?);
            made.as_ref().map(|value| value_bytes(value)).transpose()
        };
        writes::update(self.view.as_ref(), &key, change).await?;
        Ok(made)
    }

    /// Returns the value of a key; where it has none, sets it to the result of `make` first. See
    /// [`Table::get_or_insert_with`].
    ///
    /// # Errors
    /// As [`TypedTable::update`].
    pub async fn get_or_insert_with<W: AsValue<V>>(
        &self,
        key: &(impl AsKey<K> + ?Sized),
        make: impl FnOnce() -> W,
    ) -> Result<V::Item> {
        let (key, mut make, mut made) = (key_bytes(key), Some(make), Vec::new());
        let insert = |value: Option<&[u8]>| {
            if let Some(value) = value {
                return Ok(Some(value.to_vec()));
            }
            if let Some(make) = make.take() {
                made = value_bytes(&make())?;
            }
            Ok(Some(made.clone()))
        };
        let value = writes::update(self.view.as_ref(), &key, insert).await?;
        self.read_value(&value.unwrap_or_default())
    }

    /// Removes all entries in `range`, in one commit, and returns their number. See [`Table::delete_range`].
    ///
    /// # Errors
    /// As [`Db::transact`].
    pub async fn delete_range<Q: AsKey<K>>(&self, range: impl RangeBounds<Q>) -> Result<u64> {
        let range = byte_bounds(&range);
        self.view.as_ref().delete_range(range).await
    }

    /// Removes all entries, and returns their number. See [`Table::clear`].
    ///
    /// # Errors
    /// As [`Db::transact`].
    pub async fn clear(&self) -> Result<u64> {
        self.view.as_ref().clear().await
    }

    /// Estimates the number of entries in `range`. See [`Table::approximate_len`].
    ///
    /// # Errors
    /// As [`Table::get`].
    pub async fn approximate_len<Q: AsKey<K>>(&self, range: impl RangeBounds<Q>) -> Result<u64> {
        let range = byte_bounds(&range);
        self.view.as_ref().approximate_len(range).await
    }

    /// Estimates the bytes of the leaves that hold `range`. See [`Table::approximate_bytes`].
    ///
    /// # Errors
    /// As [`Table::get`].
    pub async fn approximate_bytes<Q: AsKey<K>>(&self, range: impl RangeBounds<Q>) -> Result<u64> {
        let range = byte_bounds(&range);
        self.view.as_ref().approximate_bytes(range).await
    }

    /// Watches all keys: reports the commits from now on. The changes have the bytes of keys and values, which
    /// [`TypedTable::read_key`] and [`TypedTable::read_value`] read. See [`Table::watch`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), nofault::error::Error> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::Db::create(folder.path().join("shop"), &settings).await?;
    /// use nofault::db::{Change, WatchEvent};
    ///
    /// let stock = db.create_typed_table::<u64, String>("stock").await?;
    /// let mut watch = stock.watch().await?;
    /// stock.put(&7, "apples").await?;
    /// let Some(WatchEvent::Commit { changes, .. }) = watch.next().await? else { panic!("a commit") };
    /// let [Change::Put { key, value, .. }] = &changes[..] else { panic!("one change") };
    /// assert_eq!((stock.read_key(key)?, stock.read_value(value)?), (7, "apples".to_string()));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Table::watch`].
    pub async fn watch(&self) -> Result<Watch> {
        self.view.as_ref().watch("").await
    }

    /// Watches the keys beginning with `prefix`, as [`TypedTable::watch`] does. See [`TypedTable::prefix`].
    ///
    /// # Errors
    /// As [`Table::watch`].
    pub async fn watch_prefix(&self, prefix: &(impl AsPrefix<K> + ?Sized)) -> Result<Watch> {
        self.view.as_ref().watch(prefix_bytes(prefix)).await
    }

    /// Loads entries, as [`TypedTable::bulk_load`] documents. Blocks.
    pub(crate) fn load<B>(&self, entries: impl IntoIterator<Item = B>) -> Result<u64>
    where
        B: BulkEntry<Key: AsKey<K>, Value: AsValue<V>>,
    {
        self.try_load(entries.into_iter().map(Ok))
    }

    /// Loads entries, as [`TypedTable::try_bulk_load`] documents. Blocks.
    pub(crate) fn try_load<B, E: From<Error>>(
        &self,
        entries: impl IntoIterator<Item = std::result::Result<B, E>>,
    ) -> std::result::Result<u64, E>
    where
        B: BulkEntry<Key: AsKey<K>, Value: AsValue<V>>,
    {
        self.view.as_ref().try_load(entries.into_iter().map(|entry| {
            let (key, value, expiry) = entry?.into_parts();
            Ok((key_bytes(&key), value_bytes(&value)?, expiry))
        }))
    }

    /// The calls of the table in a transaction.
    pub fn in_transaction<'t>(&'t self, transaction: &'t Transaction) -> TypedTransaction<'t, K, V> {
        TypedView::new(In { state: transaction, table: self.view.as_ref() })
    }

    /// The calls of the table in a snapshot.
    pub fn in_snapshot<'t>(&'t self, snapshot: &'t Snapshot) -> TypedSnapshot<'t, K, V> {
        TypedView::new(In { state: snapshot, table: self.view.as_ref() })
    }

    /// The calls of the table in a batch.
    pub fn in_batch<'t>(&'t self, batch: &'t mut Batch) -> TypedBatch<'t, K, V> {
        TypedBatch { table: self.view.as_ref(), batch, types: PhantomData }
    }
}

/// A [`TypedTable`] in a [`Batch`].
#[derive(Debug)]
pub struct TypedBatch<'t, K, V> {
    table: &'t Table,
    batch: &'t mut Batch,
    types: Types<K, V>,
}

impl<K: Key, V: Value> TypedBatch<'_, K, V> {
    /// Sets the value of a key.
    ///
    /// # Errors
    /// `InvalidCall` when the value cannot be encoded.
    pub fn put(&mut self, key: &(impl AsKey<K> + ?Sized), value: &(impl AsValue<V> + ?Sized)) -> Result<&mut Self> {
        self.batch.put(self.table, key_bytes(key), value_bytes(value)?);
        Ok(self)
    }

    /// Sets the value of a key until `expiry`. See [`Batch::put_with_expiry`].
    ///
    /// # Errors
    /// `InvalidCall` when the value cannot be encoded.
    pub fn put_with_expiry(
        &mut self,
        key: &(impl AsKey<K> + ?Sized),
        value: &(impl AsValue<V> + ?Sized),
        expiry: SystemTime,
    ) -> Result<&mut Self> {
        self.batch.put_with_expiry(self.table, key_bytes(key), value_bytes(value)?, expiry);
        Ok(self)
    }

    /// Removes a key.
    pub fn delete(&mut self, key: &(impl AsKey<K> + ?Sized)) -> &mut Self {
        self.batch.delete(self.table, key_bytes(key));
        self
    }
}
