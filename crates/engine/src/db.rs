//! The database as an application uses it: [`Db`], its [`Table`]s, [`Snapshot`]s, [`Transaction`]s and [`Batch`]es.
//!
//! Everything here is async and independent of the runtime: futures are plain, `Send`, and may be dropped at any point.
//! A call whose data is in memory completes in its first poll. [`crate::blocking`] has the same calls, under the same
//! names, without `await`.
//!
//! A database belongs to the process that opened it. In a process forked from that one every call fails with
//! [`Closed`](ErrorKind::Closed), and dropping the inherited handles does nothing; it may open databases itself. A range gives the
//! entries that it had read before the fork, then fails.
//!
//! Below this file, from the bottom up: `wait` says how a call waits, `loader` repeats an attempt until all pages that
//! it needs are in memory. `reader`, `many` and `scan` read, `commit` and `large` write, over any store and log. `core`
//! puts the parts together, `open` and `owner` open and close them. This file, `table` and `views` are the public face.

mod background_compaction;
mod backup;
mod bounds;
mod bulk;
mod catalog;
mod change_applier;
mod changes_since;
mod close;
mod closing;
mod commit;
mod commit_error;
mod commit_pages;
mod compact;
mod completions;
mod compression;
mod core;
mod deferred_free;
mod dictionaries;
mod disk_access;
mod expiry;
mod expiry_removal;
mod expiry_rows;
mod indexed_table;
mod large;
pub(crate) mod load_entries;
mod loader;
mod loads;
mod log_waits;
mod maintenance;
mod many;
pub(crate) mod merged_load;
mod node_check;
mod open;
mod order;
mod overflow;
mod owner;
mod pins;
mod prometheus;
mod read_only;
mod reader;
mod reads;
mod rename;
mod replay;
mod reservations;
mod retry;
mod scan;
mod sparse_leaves;
mod stats;
#[cfg(feature = "stream")]
mod stream;
mod stripes;
mod structure;
mod table;
mod table_counts;
mod table_types;
mod tables;
mod tail;
mod thread;
mod transaction;
mod transaction_handle;
mod typed_entries;
mod typed_table;
mod unfinished;
pub(crate) mod verify;
mod views;
mod wait;
mod watch;
mod write_key;
mod write_set;
mod writes;

#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;

use nofault_io::disk::Directory;

pub use self::backup::database_around;

pub use self::bulk::BulkEntry;
pub use self::catalog::TableList;
pub use self::change_applier::ChangeApplier;
pub use self::changes_since::ChangesSince;
pub use self::compact::{Compaction, Pace};
pub(crate) use self::compact::{compact, shrink};
pub use self::completions::Completions;
pub use self::compression::CompressionEstimate;
use self::core::Core;
pub use self::indexed_table::IndexedTable;
use self::owner::OwnerHandle;
pub use self::prometheus::write_prometheus;
pub use self::retry::TransactOptions;
pub(crate) use self::retry::transact;
pub use self::stats::{CompactionStats, Histograms, OrderStats, PackingStats, ShrinkEnding, Stats, TransactionStats};
#[cfg(feature = "stream")]
pub use self::stream::ItemStream;
pub use self::stripes::data_bytes;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use self::stripes::parse as parse_stripes;
pub use self::table::Table;
pub use self::table_types::TableTypes;
use self::tables::in_catalog;
pub use self::tail::{Position, Tail, TailEvent};
pub use self::transaction_handle::{Savepoint, Transaction, TransactionRange};
pub(crate) use self::typed_entries::{Entries, entries};
pub use self::typed_entries::{TypedEntries, TypedRange, TypedTransactionRange};
pub(crate) use self::typed_table::{In, View};
pub use self::typed_table::{TypedBatch, TypedSnapshot, TypedTable, TypedTransaction, TypedView};
pub use self::unfinished::UnfinishedDb;
pub use self::verify::{Problem, Verification};
pub use self::views::{Range, Snapshot};
pub use self::watch::{Change, Watch, WatchEvent};
pub use self::writes::Batch;
use crate::btree::Tree;
use crate::buffer_pool::BufferPool;
pub use crate::buffer_pool::{PoolStats, ReaderInfo};
use crate::codec::Compression;
use crate::error::{Error, ErrorKind, Result};
use crate::events;
pub use crate::histogram::{Bucket, Histogram};
use crate::pages::{Durability, Store};
use crate::recovery::Purpose;
use crate::settings::Settings;
use crate::transaction::Op;
use crate::wal::Log;
pub use crate::wal::LogStats;

type TheCore = Core<BufferPool, Log>;

/// A database. Cloning gives another handle to the same database; it is closed when the last handle, and everything
/// obtained from it, is gone, and the large commits that outlive their dropped futures have ended.
///
/// End with [`Db::close`], which reports whether closing worked. When the last handle is dropped instead, that thread
/// waits for one write of the log at most, so that commits that were [`Durability::Deferred`] are durable; a dedicated
/// thread then makes the checkpoint and closes the files. If the process ends before, the next opening replays the log.
/// Opening the folder again in this process waits until it is closed. (A handle of [`crate::blocking`] waits for
/// all of this when it is dropped as the last, except in a waker that the database has called.)
///
/// # Dropped futures
/// The future of any call may be dropped. A commit ([`Db::write`], [`Table::put`], [`Table::delete`],
/// [`Transaction::commit`], [`Db::transact`], and the calls that create, change or drop tables) then happens completely
/// or has no effect, and its caller does not learn which: a later read tells. A commit dropped before its first poll
/// does not happen. A large commit (of some hundred keys or more) that has entered the log is completed by a thread of
/// the database.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), nofault::error::Error> {
/// # let folder = tempfile::tempdir().unwrap();
/// use nofault::{Batch, Db, Durability, db::Pace, settings::Settings};
///
/// let settings = Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Settings::default() };
/// let db = Db::create(folder.path().join("shop"), &settings).await?;
/// let (stock, orders) = (db.create_table("stock").await?, db.create_table("orders").await?);
/// assert_eq!(db.table_names().await?, ["orders", "stock"]);
///
/// // All of it or nothing, and on the disk when this returns.
/// let mut batch = Batch::new();
/// batch.put(&stock, "apples", "12").put(&orders, "1", "apples");
/// db.write(batch, Durability::Sync).await?;
///
/// // No other commit comes between the read and the write.
/// db.transact(Durability::Deferred, async |change| {
///     let apples = change.get(&stock, "apples").await?;
///     change.put(&stock, "pears", apples.unwrap_or_default())
/// })
/// .await?;
/// db.sync().await?;
///
/// // A snapshot keeps showing the state at its beginning.
/// let before = db.snapshot();
/// db.drop_table("orders").await?;
/// assert!(db.table("orders").await.is_err());
/// assert_eq!(before.get(&orders, "1").await?, Some(b"apples".to_vec()));
/// drop((before, orders));
///
/// db.checkpoint().await?;
/// db.compact(Pace::Full, |so_far| so_far.pages < 1_000).await?;
/// assert!(db.verify().await?.is_clean());
/// db.backup(folder.path().join("copy")).await?;
///
/// drop((stock, db));
/// let db = Db::open(folder.path().join("copy"), &settings).await?;
/// assert_eq!(db.table("stock").await?.get("pears").await?, Some(b"12".to_vec()));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Db {
    core: Arc<TheCore>,
    owner: OwnerHandle,
    /// The compression of new tables.
    compression: Compression,
    /// The files that a database that is only read was opened from.
    view: Option<Arc<read_only::View>>,
}

impl Db {
    /// Creates a database in `folder`, and the folder itself if it is missing (its parent must exist). A creation that
    /// is cut short at any moment leaves a database, or nothing that `open` would take for one.
    ///
    /// # Errors
    /// `AlreadyExists` when the folder holds a database: open it; or a part of one: the message says which part is
    /// missing. `InvalidCall` for settings out of range, or when the folder holds files that are no part of a database.
    /// `Busy` when another process is creating a database there. Nothing in the folder has changed then.
    /// `NoPermission`, `NoSpace`, `Io` as the system reports them.
    pub async fn create(folder: impl AsRef<Path>, settings: &Settings) -> Result<Self> {
        let (folder, settings) = (folder.as_ref().to_path_buf(), settings.clone());
        let created = thread::run("nofault-create", move || open::create(&folder, &settings)).await?;
        created.map(|db| db.with_waiting_drop(false))
    }

    /// Opens the database in `folder`. After a crash this replays the log; the time is bounded by `log_bytes`.
    ///
    /// # Errors
    /// `NotFound` when there is none, nor any part of one: create it. `Busy` when it is open elsewhere, saying where.
    /// `Corrupt` when it is damaged, saying where, or when a part of it is missing, saying which. `InvalidCall` when
    /// one of its files is a link or no regular file. `Unsupported` when it was written by a later version.
    pub async fn open(folder: impl AsRef<Path>, settings: &Settings) -> Result<Self> {
        let (folder, settings) = (folder.as_ref().to_path_buf(), settings.clone());
        let opened = thread::run("nofault-open", move || open::open(&folder, &settings)).await?;
        opened.map(|db| db.with_waiting_drop(false))
    }

    /// Opens the database in `folder`, or creates it where there is none, nor any part of one. An emptied or damaged
    /// database is an error and never a new beginning.
    ///
    /// # Errors
    /// As [`Db::open`], but for `NotFound`, and as [`Db::create`].
    pub async fn open_or_create(folder: impl AsRef<Path>, settings: &Settings) -> Result<Self> {
        let (folder, settings) = (folder.as_ref().to_path_buf(), settings.clone());
        let opened = thread::run("nofault-open", move || open::open_or_create(&folder, &settings)).await?;
        opened.map(|db| db.with_waiting_drop(false))
    }

    /// Like [`Db::create`], on disks of the caller's choice. Blocks. [`Directory::lock`] keeps other processes from
    /// using the disks. Dropping the last handle waits until the database is closed: nothing else keeps this process
    /// from opening the same disks in that time.
    ///
    /// # Errors
    /// As [`Db::create`].
    pub fn create_in(directory: &Arc<dyn Directory>, settings: &Settings) -> Result<Self> {
        let _span = events::database(None);
        open::create_in(directory, settings, Purpose::Use, None, None)
    }

    /// Like [`Db::open`], on disks of the caller's choice. Blocks. [`Directory::lock`] keeps other processes from using
    /// the disks. Dropping the last handle waits, as after [`Db::create_in`].
    ///
    /// # Errors
    /// As [`Db::open`].
    pub fn open_in(directory: &Arc<dyn Directory>, settings: &Settings) -> Result<Self> {
        let _span = events::database(None);
        open::open_in(directory, settings, Purpose::Use, None)
    }

    /// Creates an empty table, with the compression of
    /// [`Settings::compression`](crate::settings::Settings::compression). Durable when it returns.
    ///
    /// # Errors
    /// `AlreadyExists`, once that table is durable; `InvalidCall` when the name is empty or longer than a key may be;
    /// otherwise as [`Db::write`].
    pub async fn create_table(&self, name: &str) -> Result<Table> {
        compression::create_table(self, name, self.compression).await
    }

    /// Sets the compression of a table. Durable when it returns. Pages written from now on are compressed that
    /// way; those in the file are read as before and stay as they are until they change, or until [`Db::compact`]
    /// rewrites them; the pages of values longer than 64 KiB stay as they are.
    ///
    /// # Errors
    /// `NotFound` when there is no such table; otherwise as [`Db::write`].
    pub async fn set_compression(&self, name: &str, compression: Compression) -> Result<()> {
        compression::set(self, name, compression).await
    }

    /// Returns the compression of a table.
    ///
    /// # Errors
    /// `NotFound` when there is no such table; `Corrupt` or `Io` when the catalog cannot be read.
    pub async fn compression(&self, name: &str) -> Result<Compression> {
        let tree = self.core.catalog.table(name.as_bytes()).await?;
        self.core.catalog.compression(tree, name.as_bytes()).await
    }

    /// Removes a table and all of its entries. Durable when it returns. A thread of the database frees the pages
    /// afterwards, a few at a time (without background threads this call does so before it returns); after an
    /// interruption this continues when the database is opened. Snapshots from before still read the table; other calls
    /// on its handles fail with `NotFound`. Open transactions conflict.
    ///
    /// # Errors
    /// `NotFound` when there is no such table; `Corrupt` when its root is damaged: then the table stays; otherwise as
    /// [`Db::write`]. A failure to free pages is not an error of this call: damaged pages are left out
    /// ([`Stats::dropped_pages_unreadable`]), and after any other failure the next `drop_table` or `open` tries again.
    pub async fn drop_table(&self, name: &str) -> Result<()> {
        let tree = self.core.catalog.table(name.as_bytes()).await?;
        let op = Op::DropTable { tree, name: name.as_bytes().to_vec() };
        let is_of_table = |error: &Error| error.page() == Some(tree.root);
        let dropped = self.core.committer.commit_op(op).await;
        dropped.map_err(|error| if is_of_table(&error) { error } else { in_catalog(error) })?;
        self.core.store.writer().codecs().forget(tree.table);
        self.owner.free_dropped(&self.core.dropped);
        Ok(())
    }

    /// Opens a table by its name.
    ///
    /// # Errors
    /// `NotFound`: create it.
    pub async fn table(&self, name: &str) -> Result<Table> {
        self.owner.check_open()?;
        let tree = self.core.catalog.table(name.as_bytes()).await?;
        Ok(Table { db: self.clone(), tree, name: name.into() })
    }

    /// Opens a table by its name, or creates it as [`Db::create_table`] does. Of several calls at the same time all get
    /// the same table.
    ///
    /// # Errors
    /// As [`Db::table`], but for `NotFound`, and as [`Db::create_table`], but for `AlreadyExists`.
    pub async fn open_or_create_table(&self, name: &str) -> Result<Table> {
        loop {
            match self.table(name).await {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                opened => return opened,
            }
            match self.create_table(name).await {
                // Another call has created it, visibly, or has dropped it again: each round follows a commit of another.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                created => return created,
            }
        }
    }

    /// Returns the names of all tables, sorted.
    ///
    /// # Errors
    /// `Corrupt` or `Io` when a page of the catalog cannot be read: [`Db::list_tables`] returns the names in the
    /// others.
    pub async fn table_names(&self) -> Result<Vec<String>> {
        self.snapshot().table_names().await
    }

    /// The names of the tables in the readable part of the catalog (the table of tables), and the damage in the rest.
    /// The listed tables can be opened by their names.
    ///
    /// # Errors
    /// `Closed` and other errors that are not damage; damage is in the list.
    pub async fn list_tables(&self) -> Result<TableList> {
        self.core.catalog.list(&self.core.store.snapshot()).await
    }

    /// Applies a batch: all of it or nothing, also when the future is dropped (see [Dropped futures](Db#dropped-futures)).
    ///
    /// # Errors
    /// `InvalidCall` when a key or value is too long, or a table is another database's. `NoSpace` when the disk is
    /// full: nothing of the batch was done, and commits go on by themselves once there is free space. Deletes and
    /// dropped tables have a reserve ([`PoolStats::blocks_reserve`]), so they can free space. `Poisoned` after an
    /// earlier failure of the log.
    pub async fn write(&self, batch: Batch, durability: Durability) -> Result<()> {
        if batch.db.iter().any(|db| !Arc::ptr_eq(&db.core, &self.core)) {
            return Err(table::foreign_table());
        }
        let writes = self.core.expiries.complete(batch.writes).await?;
        Ok(self.core.committer.commit_writes(writes, None, durability, None).await?)
    }

    /// Takes a snapshot of the newest visible commit. It lasts as long as the returned value lives. No I/O.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot { db: self.clone(), pages: Arc::new(self.core.store.snapshot()) }
    }

    /// Begins a serializable transaction. No I/O. Dropping it undoes everything.
    pub fn begin(&self) -> Transaction {
        Transaction::new(self, transaction::TransactionState::begin(&self.core))
    }

    /// Runs `work` in a transaction and commits it when `work` returns `Ok`; runs it again, from the beginning, for as
    /// long as other commits change the keys and ranges that it read. When `work` returns `Err`, nothing is committed,
    /// and the call returns that error: so the application's own errors abort a transaction.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), nofault::Error> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::Db::create(folder.path().join("shop"), &settings).await?;
    /// # let stock = db.create_table("stock").await?;
    /// # stock.put("pears", "3").await?;
    /// use nofault::Durability;
    ///
    /// #[derive(Debug)]
    /// enum Refusal {
    ///     SoldOut,
    ///     Failed(nofault::Error),
    /// }
    ///
    /// impl From<nofault::Error> for Refusal {
    ///     fn from(error: nofault::Error) -> Self {
    ///         Self::Failed(error)
    ///     }
    /// }
    ///
    /// // The closure borrows `stock`, and the future is `Send`: any executor may run it on another thread.
    /// let sold = tokio::spawn(async move {
    ///     db.transact(Durability::Sync, async |change| {
    ///         let pears = change.get(&stock, "pears").await?.ok_or(Refusal::SoldOut)?;
    ///         change.delete(&stock, "pears")?;
    ///         change.get(&stock, "plums").await?.ok_or(Refusal::SoldOut)?;
    ///         Ok(pears)
    ///     })
    ///     .await
    ///     .map_err(|refusal| (refusal, stock))
    /// });
    /// let (refusal, stock) = sold.await.unwrap().unwrap_err();
    /// assert!(matches!(refusal, Refusal::SoldOut));
    /// assert!(stock.contains_key("pears").await?, "the delete was not committed");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// `work` is called once for each run, so an `async` closure may borrow what it uses, but cannot change it: a counter
    /// that it keeps must be a `Cell`, an atomic or behind a lock. In a handler of axum:
    ///
    /// ```
    /// use axum::{Router, extract::State, http::StatusCode, routing::post};
    /// use nofault::{Db, Durability, Table};
    ///
    /// async fn visit(State((db, visits)): State<(Db, Table)>) -> Result<String, StatusCode> {
    ///     let count = db
    ///         .transact(Durability::Sync, async |change| {
    ///             let count = change.get(&visits, "all").await?.map_or(0, |count| count.len());
    ///             change.put(&visits, "all", vec![b'x'; count + 1])?;
    ///             Ok::<_, nofault::Error>(count + 1)
    ///         })
    ///         .await;
    ///     count.map(|count| count.to_string()).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)
    /// }
    ///
    /// fn service(db: Db, visits: Table) -> Router {
    ///     Router::new().route("/visits", post(visit)).with_state((db, visits))
    /// }
    /// ```
    ///
    /// A transaction that has lost three runs takes precedence over later ones, in the order in which they ask for it.
    /// Commits of others that would change the keys or ranges that its last run read wait until it has committed. After
    /// six lost runs all commits wait. So each of many tasks that want the same keys commits in turn. Precedence ends
    /// with the transaction, when the future is dropped, and at the latest after a second, or after four times the time
    /// of its longest run, up to a minute, where that is longer. So a closure that waits for ever stops no other commit
    /// for ever. A commit from inside `work`, outside the transaction, of a key that `work` has read waits that long,
    /// too.
    ///
    /// # Errors
    /// The error of `work` (then nothing is committed); or, converted into that type, the error of the commit unless it
    /// is `Conflict`, and `RetriesExhausted` when `options` limit the runs or the time.
    pub async fn transact<T, E: From<Error>, F: Future<Output = std::result::Result<T, E>>>(
        &self,
        options: impl Into<TransactOptions>,
        work: impl FnMut(Transaction) -> F,
    ) -> std::result::Result<T, E> {
        transact(self, options.into(), work).await
    }

    /// Waits until the commit to which a transaction has lost is visible, so that the next run does not lose to it
    /// again: for callers that begin and commit by hand. Without this wait a loop spins until the disk has written that
    /// commit. Such a loop has no precedence, however often it loses; [`Db::transact`] has.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), nofault::Error> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::Db::create(folder.path().join("shop"), &settings).await?;
    /// # let stock = db.create_table("stock").await?;
    /// loop {
    ///     let change = db.begin();
    ///     let count = change.get(&stock, "pears").await?.map_or(0, |count| count.len());
    ///     change.put(&stock, "pears", vec![b'x'; count + 1])?;
    ///     match change.commit(nofault::Durability::Sync).await {
    ///         Ok(()) => break,
    ///         Err(error) => db.after_conflict(error).await?,
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `error` itself, unless it is the `Conflict` of a commit. `Poisoned` after a failure of the log.
    pub async fn after_conflict(&self, error: Error) -> Result<()> {
        retry::after_conflict(self, error).await
    }

    /// Returns counters and sizes of the database.
    pub fn stats(&self) -> Stats {
        stats::stats(self)
    }

    /// The live snapshots, oldest first, with their age and the memory that they keep in use.
    pub fn readers(&self) -> Vec<ReaderInfo> {
        self.core.store.readers()
    }

    /// Returns a handle with which the caller's own poller takes the completions of reads instead of a thread of the
    /// database; `None` where the disk has no descriptor to poll. With tokio, use `complete_on_tokio`.
    pub fn completions(&self) -> Option<Completions> {
        completions::completions(self)
    }

    /// Size of a page of this database, in bytes.
    pub fn page_bytes(&self) -> usize {
        self.core.store.page_bytes()
    }

    /// Length of the longest key that a table takes, in bytes.
    pub fn key_bytes_max(&self) -> usize {
        crate::format::node::key_bytes_max(self.page_bytes())
    }

    /// Sets whether dropping this handle, and handles made from it, may wait until the database is closed.
    pub(crate) fn with_waiting_drop(mut self, may_wait: bool) -> Self {
        self.owner.set_may_wait(may_wait);
        self
    }

    fn tree_of(&self, table: &Table) -> Result<Tree> {
        self.core.commits.check_open()?;
        if Arc::ptr_eq(&self.core, &table.db.core) { Ok(table.tree) } else { Err(table::foreign_table()) }
    }
}

impl std::fmt::Debug for Db {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Db(commit {})", self.core.store.visible())
    }
}
