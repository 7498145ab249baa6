//! The database with blocking calls, for threads: a call waits on the calling thread, which submits and reaps its own
//! reads. Each call runs the future of the call of the same name in [`crate::db`] to its end with `driver::block_on`.
//!
//! ```
//! use nofault::{Durability, blocking::Db, settings::Settings};
//! # fn main() -> Result<(), nofault::error::Error> {
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("shop");
//! let db = Db::create(&path, &Settings::default())?;
//! let stock = db.create_table("stock")?;
//! stock.put("apples", "12")?;
//! stock.put("pears", "3")?;
//! assert_eq!(stock.get("apples")?, Some(b"12".to_vec()));
//!
//! // Both change or neither does, and no other commit comes in between.
//! db.transact(Durability::Sync, |change| {
//!     let pears = change.get(&stock, "pears")?;
//!     change.put(&stock, "plums", pears.unwrap_or_default())?;
//!     change.delete(&stock, "pears")
//! })?;
//! let names: Vec<_> = stock.iter().map(|entry| entry.map(|(name, _)| name)).collect::<Result<_, _>>()?;
//! assert_eq!(names, [b"apples".to_vec(), b"plums".to_vec()]);
//! # Ok(())
//! # }
//! ```

mod faces;
mod following;
mod range;

use std::ops::RangeBounds;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use nofault_io::disk::Directory;

use self::faces::blocking;
pub use self::following::{ChangeApplier, ChangesSince, Tail, Watch};
use self::range::{Entry, one_ended, two_ended};
pub use self::range::{Range, TransactionRange, TypedRange, TypedTransactionRange};
use crate::db::{
    self, Batch, BulkEntry, Compaction, CompressionEstimate, In, Pace, Position, ReaderInfo, Savepoint, Stats,
    TableList, TableTypes, TransactOptions, TypedBatch, Verification, View,
};
use crate::error::{Error, ErrorKind, Result};
use crate::format::{CommitSeq, TableId};
use crate::pages::Durability;
use crate::settings::{Compression, Settings};
use crate::sync::driver::block_on;
use crate::typed::{AsKey, AsPrefix, AsValue, Key, Value};

/// Puts the face on a result.
fn ok<T, F>(face: impl FnOnce(T) -> F) -> impl FnOnce(Result<T>) -> Result<F> {
    |result| result.map(face)
}

/// A database handle with blocking calls. See [`db::Db`], and the example of the module. Dropping the last handle, and
/// the last value obtained from one, waits until the database is closed: deferred commits are written then, and a
/// checkpoint is made.
#[derive(Debug, Clone)]
pub struct Db(pub(crate) db::Db);

blocking! {
    impl Db as db::Db {
        /// Creates a database.
        async fn create(folder: impl AsRef<Path>, settings: &Settings) -> Result<Self> => ok(Self::new);
        /// Opens a database.
        async fn open(folder: impl AsRef<Path>, settings: &Settings) -> Result<Self> => ok(Self::new);
        /// Opens a database, or creates it where there is none.
        async fn open_or_create(folder: impl AsRef<Path>, settings: &Settings) -> Result<Self> => ok(Self::new);
        /// Opens a database for reading only, also while another process writes to it.
        async fn open_read_only(folder: impl AsRef<Path>, settings: &Settings) -> Result<Self> => ok(Self::new);
        /// Like [`Db::create`], on disks of the caller's choice.
        fn create_in(directory: &Arc<dyn Directory>, settings: &Settings) -> Result<Self> => ok(Self::new);
        /// Like [`Db::open`], on disks of the caller's choice.
        fn open_in(directory: &Arc<dyn Directory>, settings: &Settings) -> Result<Self> => ok(Self::new);
        /// Checks a whole database without writing a byte in its folders.
        async fn check(folder: impl AsRef<Path>, settings: &Settings) -> Result<Verification>;
        /// Closes the database, so that opening has little to do.
        async fn close(self) -> Result<()>;

        /// Creates an empty table.
        async fn create_table(&self, name: &str) -> Result<Table> => ok(Table);
        /// Opens a table by its name.
        async fn table(&self, name: &str) -> Result<Table> => ok(Table);
        /// Opens a table by its name, or creates it.
        async fn open_or_create_table(&self, name: &str) -> Result<Table> => ok(Table);
        /// Creates an empty table of typed keys and values.
        async fn create_typed_table[K: Key, V: Value](&self, name: &str) -> Result<TypedTable<K, V>> => ok(TypedTable::over);
        /// Opens a table by its name, with the types of its keys and values.
        async fn typed_table[K: Key, V: Value](&self, name: &str) -> Result<TypedTable<K, V>> => ok(TypedTable::over);
        /// Opens a table by its name as [`Db::typed_table`] does, or creates it.
        async fn open_or_create_typed_table[K: Key, V: Value](&self, name: &str) -> Result<TypedTable<K, V>> => ok(TypedTable::over);
        /// Removes a table and everything in it.
        async fn drop_table(&self, name: &str) -> Result<()>;
        /// Gives a table another name.
        async fn rename_table(&self, name: &str, to: &str) -> Result<()>;
        /// The names of all tables, sorted.
        async fn table_names(&self) -> Result<Vec<String>>;
        /// The names of the tables as far as the catalog can be read.
        async fn list_tables(&self) -> Result<TableList>;
        /// The names of the types of a table, if it was opened with types.
        async fn table_types(&self, name: &str) -> Result<Option<TableTypes>>;
        /// Sets the compression of a table.
        async fn set_compression(&self, name: &str, compression: Compression) -> Result<()>;
        /// Returns the compression of a table.
        async fn compression(&self, name: &str) -> Result<Compression>;
        /// Estimates the space that compressing a table would save.
        async fn estimate_compression(&self, name: &str) -> Result<Option<CompressionEstimate>>;

        /// Applies a batch: all of it or nothing.
        async fn write(&self, batch: Batch, durability: Durability) -> Result<()>;
        /// Makes every commit so far durable.
        async fn sync(&self) -> Result<()>;
        /// Waits until every commit made before this call is durable.
        async fn await_durable(&self) -> Result<()>;
        /// Takes a snapshot of the newest visible commit. It lasts as long as the returned value lives.
        fn snapshot(&self) -> Snapshot => Snapshot;
        /// Begins a read-only transaction over all tables: the same as [`Db::snapshot`].
        #[doc(alias = "read_txn")]
        fn begin_read(&self) -> Snapshot => Snapshot;
        /// Begins a serializable transaction. Dropping it undoes everything.
        fn begin(&self) -> Transaction => Transaction;
        /// Waits until the commit to which a transaction has lost is visible.
        async fn after_conflict(&self, error: Error) -> Result<()>;
        /// Watches all tables.
        async fn watch(&self) -> Result<Watch> => ok(Watch);
        /// Begins to follow the commits.
        async fn begin_tail(&self) -> Result<(Snapshot, Tail)> => ok(|(snapshot, tail)| (Snapshot(snapshot), Tail(tail)));
        /// Continues to follow the commits behind a position.
        async fn tail(&self, from: &Position) -> Result<Tail> => ok(Tail);

        /// Writes all changed pages to the data file.
        async fn checkpoint(&self) -> Result<()>;
        /// Removes the entries that have expired, and returns their number.
        async fn remove_expired(&self) -> Result<u64>;
        /// Reads every block, walks every table, and reports all damage.
        async fn verify(&self) -> Result<Verification>;
        /// Writes a copy of the database as a new database in `folder`.
        async fn backup(&self, folder: impl AsRef<Path>) -> Result<()>;

        /// The counters and sizes of the database.
        fn stats(&self) -> Stats;
        /// The live snapshots, oldest first.
        fn readers(&self) -> Vec<ReaderInfo>;
        /// Returns the time by which entries expire.
        fn now(&self) -> SystemTime;
        /// Returns whether this database was opened for reading only.
        fn is_read_only(&self) -> bool;
        /// Size of a page of this database, in bytes.
        fn page_bytes(&self) -> usize;
        /// Length of the longest key that a table takes, in bytes.
        fn key_bytes_max(&self) -> usize;
    }
}

impl Db {
    fn new(db: db::Db) -> Self {
        Self(db.with_waiting_drop(true))
    }

    /// Returns a handle with `async` calls for the same database, for tasks of an executor. The database must have been
    /// opened with background threads ([`Settings::background_threads`]). Dropping that handle as the last does not wait
    /// until the database is closed.
    pub fn asynchronous(&self) -> db::Db {
        self.0.clone().with_waiting_drop(false)
    }

    /// Runs `work` in a transaction and commits it when `work` returns `Ok`; runs it again for as long as other commits
    /// change data that it read. See [`db::Db::transact`].
    ///
    /// # Errors
    /// As [`db::Db::transact`].
    pub fn transact<T, E: From<Error>>(
        &self,
        options: impl Into<TransactOptions>,
        mut work: impl FnMut(&Transaction) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        let run = |transaction| std::future::ready(work(&Transaction(transaction)));
        block_on(db::transact(&self.0, options.into(), run))
    }

    /// Moves this handle of a database that is only read to the newest state. See [`db::Db::refresh`].
    ///
    /// # Errors
    /// As [`db::Db::refresh`].
    pub fn refresh(&mut self) -> Result<bool> {
        let is_newer = block_on(self.0.refresh())?;
        self.0 = self.0.clone().with_waiting_drop(true);
        Ok(is_newer)
    }

    /// Moves pages that random writes have scattered next to each other again; `go_on` gets the progress and may end the
    /// compaction. See [`db::Db::compact`].
    ///
    /// # Errors
    /// As [`db::Db::compact`].
    pub fn compact(&self, pace: Pace, mut go_on: impl FnMut(&Compaction) -> bool) -> Result<Compaction> {
        db::compact(&self.0, pace, &mut go_on)
    }

    /// Makes the data file as short as its content allows. See [`db::Db::shrink`].
    ///
    /// # Errors
    /// As [`db::Db::shrink`].
    pub fn shrink(&self, pace: Pace, mut go_on: impl FnMut(&Compaction) -> bool) -> Result<Compaction> {
        db::shrink(&self.0, pace, &mut go_on)
    }
}

/// A table, for threads. A [`Batch`] takes it as it takes a [`db::Table`].
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
/// # let stock = db.create_table("stock")?;
/// stock.put("apples", "12")?;
/// assert_eq!(stock.get("apples")?, Some(b"12".to_vec()));
/// assert_eq!(stock.range("a".."b").count(), 1);
/// stock.delete("apples")?;
/// # Ok::<(), nofault::error::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Table(db::Table);

impl AsRef<db::Table> for Table {
    fn as_ref(&self) -> &db::Table {
        &self.0
    }
}

blocking! {
    impl Table as db::Table {
        /// The name of the table.
        fn name(&self) -> &str;
        /// The number of the table.
        fn id(&self) -> TableId;
        /// A handle of the database that the table belongs to.
        fn db(&self) -> Db => |db: &db::Db| Db(db.clone());
        /// Reads many keys at one moment.
        async fn get_many(&self, keys: &[impl AsRef<[u8]>]) -> Result<Vec<Option<Vec<u8>>>>;
        /// Returns the time at which a key expires; `None` when it is absent or does not expire.
        async fn expiry(&self, key: impl AsRef<[u8]>) -> Result<Option<SystemTime>>;
        /// The entry with the first key.
        async fn first(&self) -> Result<Option<Entry>>;
        /// The entry with the last key.
        async fn last(&self) -> Result<Option<Entry>>;
        /// The exact number of entries, counted.
        async fn len(&self) -> Result<u64>;
        /// Whether the table has no entry.
        async fn is_empty(&self) -> Result<bool>;
        /// An estimate of the number of entries in `range`.
        async fn approximate_len[K: AsRef<[u8]>](&self, range: impl RangeBounds<K>) -> Result<u64>;
        /// An estimate of the bytes of the leaves that hold `range`.
        async fn approximate_bytes[K: AsRef<[u8]>](&self, range: impl RangeBounds<K>) -> Result<u64>;
        /// Walks all keys, as they are now.
        fn iter(&self) -> Range => Range::new;
        /// Walks the keys in `range`, as they are now.
        fn range[K: AsRef<[u8]>](&self, range: impl RangeBounds<K>) -> Range => Range::new;
        /// Walks the keys beginning with `prefix`, as they are now.
        fn prefix(&self, prefix: impl AsRef<[u8]>) -> Range => Range::new;
        /// Watches the keys beginning with `prefix`.
        async fn watch(&self, prefix: impl AsRef<[u8]>) -> Result<Watch> => ok(Watch);

        /// Sets the value of a key. Durable when it returns.
        async fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()>;
        /// Sets the value of a key until `expiry`: from then on the key is absent.
        async fn put_with_expiry(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, expiry: SystemTime) -> Result<()>;
        /// Removes a key; nothing happens if it is not there. Durable when it returns.
        async fn delete(&self, key: impl AsRef<[u8]>) -> Result<()>;
        /// Removes the entry with the first key and returns it: a queue.
        async fn pop_first(&self) -> Result<Option<Entry>>;
        /// Replaces the value of a key by the result of `change`.
        async fn update(&self, key: impl AsRef<[u8]>, change: impl FnMut(Option<&[u8]>) -> Option<Vec<u8>>) -> Result<Option<Vec<u8>>>;
        /// The value of a key, which is set to the result of `make` where it has none.
        async fn get_or_insert_with(&self, key: impl AsRef<[u8]>, make: impl FnOnce() -> Vec<u8>) -> Result<Vec<u8>>;
        /// Removes all entries in `range`, in one commit, and returns their number.
        async fn delete_range[K: AsRef<[u8]>](&self, range: impl RangeBounds<K>) -> Result<u64>;
        /// Removes all entries, in one commit, and returns their number.
        async fn clear(&self) -> Result<u64>;
    }
}

impl Table {
    /// The newest visible value of a key. See [`db::Table::get`].
    ///
    /// # Errors
    /// As [`db::Table::get`].
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        self.found(key.as_ref())
    }

    /// Shows the value of a key to `look` where it lies in memory, without copying it. See [`db::Table::get_with`].
    ///
    /// # Errors
    /// As [`db::Table::get_with`].
    pub fn get_with<R>(&self, key: impl AsRef<[u8]>, look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        let (mut look, mut shown) = (Some(look), None);
        self.show(key.as_ref(), &mut |value| shown = look.take().map(|look| look(value)))?;
        shown.ok_or_else(|| Error::new(ErrorKind::Bug, "a value was found and not shown"))
    }

    /// Whether a key has a value. See [`db::Table::contains_key`].
    ///
    /// # Errors
    /// As [`db::Table::contains_key`].
    pub fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        self.contains(key.as_ref())
    }

    /// Loads entries in ascending order of their keys, in one commit past the log, on this thread. See [`db::Table::bulk_load`].
    ///
    /// # Errors
    /// As [`db::Table::bulk_load`].
    pub fn bulk_load<B>(&self, entries: impl IntoIterator<Item = B>) -> Result<u64>
    where
        B: BulkEntry<Key: AsRef<[u8]>, Value: AsRef<[u8]>>,
    {
        self.0.load(entries)
    }

    /// Loads entries of which any may be an error, which ends the load and leaves the table as it was. See
    /// [`db::Table::try_bulk_load`].
    ///
    /// # Errors
    /// As [`db::Table::try_bulk_load`].
    pub fn try_bulk_load<B, E: From<Error>>(
        &self,
        entries: impl IntoIterator<Item = std::result::Result<B, E>>,
    ) -> std::result::Result<u64, E>
    where
        B: BulkEntry<Key: AsRef<[u8]>, Value: AsRef<[u8]>>,
    {
        self.0.try_load(entries)
    }

    // The three lookups of one key that follow are compiled once, in this crate, where the search of a tree node is inlined into them. Their
    // public callers are generic, so they are compiled in the crate of the application, where each step of the search would be a call.

    #[inline(never)]
    fn found(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.0.look(key).block()
    }

    #[inline(never)]
    fn contains(&self, key: &[u8]) -> Result<bool> {
        self.0.look_for(key).block()
    }

    #[inline(never)]
    fn show(&self, key: &[u8], look: &mut dyn FnMut(Option<&[u8]>)) -> Result<()> {
        self.0.look_with(key, look).block()
    }
}

/// The database as it was at one moment, for threads. See [`db::Snapshot`].
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
/// # let stock = db.create_table("stock")?;
/// # stock.put("apples", "12")?;
/// # stock.put("pears", "3")?;
/// let before = db.snapshot();
/// stock.put("apples", "11")?;
/// assert_eq!(before.get(&stock, "apples")?, Some(b"12".to_vec()));
/// assert_eq!(before.range::<&str>(&stock, ..)?.count(), 2);
/// # Ok::<(), nofault::error::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Snapshot(db::Snapshot);

/// A serializable transaction, for threads. See [`db::Transaction`].
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
/// # let stock = db.create_table("stock")?;
/// # stock.put("apples", "12")?;
/// # stock.put("pears", "3")?;
/// let change = db.begin();
/// let apples = change.get(&stock, "apples")?.unwrap_or_default();
/// change.put(&stock, "plums", apples)?;
/// change.delete(&stock, "apples")?;
/// change.commit(nofault::Durability::Sync)?;
/// # Ok::<(), nofault::error::Error>(())
/// ```
#[derive(Debug)]
pub struct Transaction(db::Transaction);

blocking! {
    impl Snapshot as db::Snapshot, Transaction as db::Transaction {
        /// The value of a key.
        async fn get(&self, table: &Table; key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>>;
        /// Whether a key has a value.
        async fn contains_key(&self, table: &Table; key: impl AsRef<[u8]>) -> Result<bool>;
        /// Returns the time at which a key expires; `None` when it is absent or does not expire.
        async fn expiry(&self, table: &Table; key: impl AsRef<[u8]>) -> Result<Option<SystemTime>>;
        /// Reads many keys.
        async fn get_many(&self, table: &Table; keys: &[impl AsRef<[u8]>]) -> Result<Vec<Option<Vec<u8>>>>;
        /// Shows the value of a key to `look`.
        async fn get_with[R](&self, table: &Table; key: impl AsRef<[u8]>, look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R>;
    }
}

blocking! {
    impl Snapshot as db::Snapshot {
        /// The number of the newest commit in this snapshot.
        fn commit(&self) -> CommitSeq;
        /// A table by its name, as of this snapshot.
        async fn table(&self, name: &str) -> Result<Table> => ok(Table);
        /// The names of all tables in this snapshot, sorted.
        async fn table_names(&self) -> Result<Vec<String>>;
        /// The compression that a table has in this snapshot.
        async fn compression(&self, name: &str) -> Result<Compression>;
        /// The names of the types of a table in this snapshot.
        async fn types(&self, name: &str) -> Result<Option<TableTypes>>;
        /// The exact number of entries of a table as of this snapshot.
        async fn len(&self, table: &Table;) -> Result<u64>;
        /// Walks all keys of a table as of this snapshot.
        fn iter(&self, table: &Table;) -> Result<Range> => ok(Range::new);
        /// Walks the keys in `range` as of this snapshot.
        fn range[K: AsRef<[u8]>](&self, table: &Table; range: impl RangeBounds<K>) -> Result<Range> => ok(Range::new);
        /// Walks the keys beginning with `prefix` as of this snapshot.
        fn prefix(&self, table: &Table; prefix: impl AsRef<[u8]>) -> Result<Range> => ok(Range::new);
        /// Returns the changes of a table since a commit.
        fn changes_since(&self, table: &Table; since: CommitSeq) -> Result<ChangesSince> => ok(ChangesSince);
    }
}

blocking! {
    impl Transaction as db::Transaction {
        /// A handle of the database of the transaction.
        fn db(&self) -> Db => |db: &db::Db| Db(db.clone());
        /// Scans all keys of a table, which then count as read.
        fn iter(&self, table: &Table;) -> Result<TransactionRange> => ok(TransactionRange);
        /// Scans the keys in `range`. The part that was scanned counts as read.
        fn range[K: AsRef<[u8]>](&self, table: &Table; range: impl RangeBounds<K>) -> Result<TransactionRange> => ok(TransactionRange);
        /// Scans the keys beginning with `prefix`, as [`Transaction::range`] does.
        fn prefix(&self, table: &Table; prefix: impl AsRef<[u8]>) -> Result<TransactionRange> => ok(TransactionRange);
        /// Sets the value of a key, for this transaction only until it commits.
        fn put(&self, table: &Table; key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()>;
        /// Sets the value of a key until `expiry`, for this transaction only until it commits.
        fn put_with_expiry(&self, table: &Table; key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, expiry: SystemTime) -> Result<()>;
        /// Removes a key, for this transaction only until it commits.
        fn delete(&self, table: &Table; key: impl AsRef<[u8]>) -> Result<()>;
        /// Notes this moment, so that the writes after it can be undone.
        fn savepoint(&self) -> Result<Savepoint>;
        /// Undoes the writes since a savepoint.
        fn roll_back_to(&self, savepoint: Savepoint) -> Result<()>;
        /// Commits the transaction.
        async fn commit(self, durability: Durability) -> Result<()>;
    }
}

/// A table of typed keys and values in one state, for threads: a [`TypedTable`] as it is now, a [`TypedSnapshot`] or a [`TypedTransaction`].
/// See [`db::TypedView`].
pub struct TypedView<S, K, V>(db::TypedView<S, K, V>);

/// A table with keys of type `K`, in their order, and values of type `V`, for threads: its calls stand at [`TypedView`]. See
/// [`db::TypedTable`].
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
pub type TypedTable<K, V> = TypedView<Table, K, V>;

/// A [`TypedTable`] in a [`Snapshot`].
pub type TypedSnapshot<'t, K, V> = TypedView<In<'t, db::Snapshot>, K, V>;

/// A [`TypedTable`] in a [`Transaction`].
pub type TypedTransaction<'t, K, V> = TypedView<In<'t, db::Transaction>, K, V>;

impl<S: Clone, K, V> Clone for TypedView<S, K, V> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S: View, K: Key, V: Value> std::fmt::Debug for TypedView<S, K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl<K, V> AsRef<db::Table> for TypedTable<K, V> {
    fn as_ref(&self) -> &db::Table {
        self.0.as_ref()
    }
}

blocking! {
    impl[S: View, K: Key, V: Value] TypedView<S, K, V> as db::TypedView {
        /// The value of a key.
        async fn get(&self, key: &(impl AsKey<K> + ?Sized)) -> Result<Option<V::Item>>;
        /// Whether a key has a value.
        async fn contains_key(&self, key: &(impl AsKey<K> + ?Sized)) -> Result<bool>;
        /// Returns the time at which a key expires; `None` when it is absent or does not expire.
        async fn expiry(&self, key: &(impl AsKey<K> + ?Sized)) -> Result<Option<SystemTime>>;
        /// Reads many keys at one moment.
        async fn get_many(&self, keys: &[impl AsKey<K>]) -> Result<Vec<Option<V::Item>>>;
        /// Returns the entry with the first key.
        async fn first(&self) -> Result<Option<(K, V::Item)>>;
        /// Returns the entry with the last key.
        async fn last(&self) -> Result<Option<(K, V::Item)>>;
        /// Returns whether the table has no entry.
        async fn is_empty(&self) -> Result<bool>;
        /// Reads the bytes of a key.
        fn read_key(&self, key: &[u8]) -> Result<K>;
        /// Reads the bytes of a value.
        fn read_value(&self, value: &[u8]) -> Result<V::Item>;
    }
}

blocking! {
    impl[K: Key, V: Value] TypedTable<K, V> as db::TypedView {
        /// The table of bytes.
        fn raw(&self) -> &Table;
        /// Returns the exact number of entries at one moment.
        async fn len(&self) -> Result<u64>;
        /// Estimates the number of entries in `range`.
        async fn approximate_len[Q: AsKey<K>](&self, range: impl RangeBounds<Q>) -> Result<u64>;
        /// Estimates the bytes of the leaves that hold `range`.
        async fn approximate_bytes[Q: AsKey<K>](&self, range: impl RangeBounds<Q>) -> Result<u64>;
        /// Walks all keys, as they are now.
        fn iter(&self) -> TypedRange<K, V> => two_ended;
        /// Walks the keys in `range`, as they are now.
        fn range[Q: AsKey<K>](&self, range: impl RangeBounds<Q>) -> TypedRange<K, V> => two_ended;
        /// Walks the keys beginning with `prefix`, as they are now.
        fn prefix(&self, prefix: &(impl AsPrefix<K> + ?Sized)) -> TypedRange<K, V> => two_ended;
        /// Watches all keys.
        async fn watch(&self) -> Result<Watch> => ok(Watch);
        /// Watches the keys beginning with `prefix`.
        async fn watch_prefix(&self, prefix: &(impl AsPrefix<K> + ?Sized)) -> Result<Watch> => ok(Watch);

        /// Sets the value of a key. Durable when it returns.
        async fn put(&self, key: &(impl AsKey<K> + ?Sized), value: &(impl AsValue<V> + ?Sized)) -> Result<()>;
        /// Sets the value of a key until `expiry`: from then on the key is absent.
        async fn put_with_expiry(&self, key: &(impl AsKey<K> + ?Sized), value: &(impl AsValue<V> + ?Sized), expiry: SystemTime) -> Result<()>;
        /// Removes a key. Durable when it returns.
        async fn delete(&self, key: &(impl AsKey<K> + ?Sized)) -> Result<()>;
        /// Removes the entry with the first key and returns it.
        async fn pop_first(&self) -> Result<Option<(K, V::Item)>>;
        /// Replaces the value of a key by the result of `change`, and returns that.
        async fn update[W: AsValue<V>](&self, key: &(impl AsKey<K> + ?Sized), change: impl FnMut(Option<V::Item>) -> Option<W>) -> Result<Option<W>>;
        /// Returns the value of a key; where it has none, sets it to the result of `make` first.
        async fn get_or_insert_with[W: AsValue<V>](&self, key: &(impl AsKey<K> + ?Sized), make: impl FnOnce() -> W) -> Result<V::Item>;
        /// Removes all entries in `range`, in one commit, and returns their number.
        async fn delete_range[Q: AsKey<K>](&self, range: impl RangeBounds<Q>) -> Result<u64>;
        /// Removes all entries, and returns their number.
        async fn clear(&self) -> Result<u64>;
    }
}

impl<K: Key, V: Value> TypedTable<K, V> {
    pub(super) fn over(typed: db::TypedTable<K, V>) -> Self {
        Self(db::TypedView::new(Table(typed.raw().clone())))
    }

    fn asynchronous(&self) -> db::TypedTable<K, V> {
        db::TypedView::new(self.raw().0.clone())
    }

    /// Loads entries in ascending order of their keys, in one commit past the log, on this thread. See [`db::TypedTable::bulk_load`].
    ///
    /// # Errors
    /// As [`db::TypedTable::bulk_load`].
    pub fn bulk_load<B>(&self, entries: impl IntoIterator<Item = B>) -> Result<u64>
    where
        B: BulkEntry<Key: AsKey<K>, Value: AsValue<V>>,
    {
        self.0.load(entries)
    }

    /// Loads entries as [`TypedTable::bulk_load`] does, where reading or making them can fail. See [`db::TypedTable::try_bulk_load`].
    ///
    /// # Errors
    /// As [`db::TypedTable::try_bulk_load`].
    pub fn try_bulk_load<B, E: From<Error>>(
        &self,
        entries: impl IntoIterator<Item = std::result::Result<B, E>>,
    ) -> std::result::Result<u64, E>
    where
        B: BulkEntry<Key: AsKey<K>, Value: AsValue<V>>,
    {
        self.0.try_load(entries)
    }

    /// The calls of the table in a transaction.
    pub fn in_transaction<'t>(&'t self, transaction: &'t Transaction) -> TypedTransaction<'t, K, V> {
        TypedView(self.0.in_transaction(&transaction.0))
    }

    /// The calls of the table in a snapshot.
    pub fn in_snapshot<'t>(&'t self, snapshot: &'t Snapshot) -> TypedSnapshot<'t, K, V> {
        TypedView(self.0.in_snapshot(&snapshot.0))
    }

    /// The calls of the table in a batch.
    pub fn in_batch<'t>(&'t self, batch: &'t mut Batch) -> TypedBatch<'t, K, V> {
        self.0.in_batch(batch)
    }
}

blocking! {
    impl[K: Key, V: Value] TypedSnapshot<'_, K, V> as db::TypedView {
        /// Returns the exact number of entries as of the snapshot.
        async fn len(&self) -> Result<u64>;
        /// Walks all keys as of the snapshot.
        fn iter(&self) -> Result<TypedRange<K, V>> => ok(two_ended);
        /// Walks the keys in `range` as of the snapshot.
        fn range[Q: AsKey<K>](&self, range: impl RangeBounds<Q>) -> Result<TypedRange<K, V>> => ok(two_ended);
        /// Walks the keys beginning with `prefix` as of the snapshot.
        fn prefix(&self, prefix: &(impl AsPrefix<K> + ?Sized)) -> Result<TypedRange<K, V>> => ok(two_ended);
    }
}

blocking! {
    impl[K: Key, V: Value] TypedTransaction<'_, K, V> as db::TypedView {
        /// Scans all keys, which then count as read.
        fn iter(&self) -> Result<TypedTransactionRange<K, V>> => ok(one_ended);
        /// Scans the keys in `range`, which then counts as read.
        fn range[Q: AsKey<K>](&self, range: impl RangeBounds<Q>) -> Result<TypedTransactionRange<K, V>> => ok(one_ended);
        /// Scans the keys beginning with `prefix`, which then count as read.
        fn prefix(&self, prefix: &(impl AsPrefix<K> + ?Sized)) -> Result<TypedTransactionRange<K, V>> => ok(one_ended);
        /// Sets the value of a key, for this transaction only until it commits.
        fn put(&self, key: &(impl AsKey<K> + ?Sized), value: &(impl AsValue<V> + ?Sized)) -> Result<()>;
        /// Sets the value of a key until `expiry`, for this transaction only until it commits.
        fn put_with_expiry(&self, key: &(impl AsKey<K> + ?Sized), value: &(impl AsValue<V> + ?Sized), expiry: SystemTime) -> Result<()>;
        /// Removes a key, for this transaction only until it commits.
        fn delete(&self, key: &(impl AsKey<K> + ?Sized)) -> Result<()>;
    }
}

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
pub struct IndexedTable<K, V: Value>(db::IndexedTable<K, V>, TypedTable<K, V>);

impl<K, V: Value> Clone for IndexedTable<K, V> {
    fn clone(&self) -> Self {
        Self(self.0.clone(), self.1.clone())
    }
}

impl<K: Key, V: Value> std::fmt::Debug for IndexedTable<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl<K: Key, V: Value> IndexedTable<K, V> {
    /// Returns a table without indexes.
    pub fn new(rows: &TypedTable<K, V>) -> Self {
        Self(db::IndexedTable::new(&rows.asynchronous()), rows.clone())
    }

    /// Adds an index: `of` returns the values under which a row is found. See [`db::IndexedTable::with_index`].
    #[must_use]
    pub fn with_index<I: Key, J: IntoIterator<Item = I>>(
        self,
        index: &TypedTable<(I, K), ()>,
        of: impl Fn(&K, &V::Item) -> J + Send + Sync + 'static,
    ) -> Self {
        Self(self.0.with_index(&index.asynchronous(), of), self.1)
    }

    /// The table of the rows.
    pub fn rows(&self) -> &TypedTable<K, V> {
        &self.1
    }
}

blocking! {
    impl[K: Key, V: Value] IndexedTable<K, V> as db::IndexedTable {
        /// Sets a row, and its entries in the indexes. Durable when it returns.
        async fn put(&self, key: &(impl AsKey<K> + ?Sized), value: &(impl AsValue<V> + ?Sized)) -> Result<()>;
        /// Sets a row until `expiry`, and its entries in the indexes.
        async fn put_with_expiry(&self, key: &(impl AsKey<K> + ?Sized), value: &(impl AsValue<V> + ?Sized), expiry: SystemTime) -> Result<()>;
        /// Removes a row, and its entries in the indexes. Durable when it returns.
        async fn delete(&self, key: &(impl AsKey<K> + ?Sized)) -> Result<()>;
        /// Sets a row, and its entries in the indexes, in a transaction. The row counts as read.
        async fn put_in(&self, change: &Transaction; key: &(impl AsKey<K> + ?Sized), value: &(impl AsValue<V> + ?Sized)) -> Result<()>;
        /// Sets a row until `expiry`, and its entries in the indexes, in a transaction. The row counts as read.
        async fn put_with_expiry_in(&self, change: &Transaction; key: &(impl AsKey<K> + ?Sized), value: &(impl AsValue<V> + ?Sized), expiry: SystemTime) -> Result<()>;
        /// Removes a row, and its entries in the indexes, in a transaction. The row counts as read.
        async fn delete_in(&self, change: &Transaction; key: &(impl AsKey<K> + ?Sized)) -> Result<()>;
        /// Rebuilds the indexes from the rows, and returns the number of rows.
        async fn rebuild(&self) -> Result<u64>;
    }
}

/// A new database that is nothing until it is finished. See [`db::UnfinishedDb`]. Dropping it waits until its files are removed.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// use nofault::blocking::{Db, UnfinishedDb};
///
/// let path = folder.path().join("shop");
/// let new = UnfinishedDb::create(&path, &settings)?;
/// new.db().create_table("stock")?.put("apples", "12")?;
/// new.finish()?;
/// assert_eq!(Db::open(&path, &settings)?.table("stock")?.get("apples")?, Some(b"12".to_vec()));
/// # Ok::<(), nofault::error::Error>(())
/// ```
#[derive(Debug)]
pub struct UnfinishedDb(db::UnfinishedDb, Db);

blocking! {
    impl UnfinishedDb as db::UnfinishedDb {
        /// Creates a database to be filled.
        async fn create(folder: impl AsRef<Path>, settings: &Settings) -> Result<Self> => ok(Self::new);
        /// As [`UnfinishedDb::create`], on disks of the caller's choice.
        fn create_in(directory: &Arc<dyn Directory>, settings: &Settings) -> Result<Self> => ok(Self::new);
    }
}

impl UnfinishedDb {
    fn new(new: db::UnfinishedDb) -> Self {
        let new = new.with_waiting_drop(true);
        let db = Db::new(new.db().clone());
        Self(new, db)
    }

    /// Returns the database.
    pub fn db(&self) -> &Db {
        &self.1
    }

    /// Makes everything durable, closes the database and makes it one. See [`db::UnfinishedDb::finish`].
    ///
    /// # Errors
    /// As [`db::UnfinishedDb::finish`].
    pub fn finish(self) -> Result<()> {
        let Self(new, db) = self;
        drop(db);
        block_on(new.finish())
    }
}
