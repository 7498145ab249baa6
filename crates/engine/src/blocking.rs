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

mod changes_since;
mod indexed_table;
mod maintenance;
mod read_only;
mod table;
mod tail;
mod transaction;
mod typed_table;
mod unfinished;
mod views;
mod watch;

use std::path::Path;
use std::sync::Arc;

use nofault_io::disk::Directory;

pub use self::changes_since::ChangesSince;
pub use self::indexed_table::IndexedTable;
pub use self::table::Table;
pub use self::tail::{ChangeApplier, Tail};
pub use self::transaction::{Transaction, TransactionRange};
pub use self::typed_table::{TypedRange, TypedSnapshot, TypedTable, TypedTransaction, TypedTransactionRange};
pub use self::unfinished::UnfinishedDb;
pub use self::views::{Range, Snapshot};
pub use self::watch::Watch;
use crate::db::{self, Batch, ReaderInfo, Stats, TableList, TransactOptions};
use crate::driver::block_on;
use crate::error::{Error, Result};
use crate::pages::Durability;
use crate::settings::{Compression, Settings};

/// A database handle with blocking calls. See [`db::Db`], and the example of the module. Dropping the last handle, and
/// the last value obtained from one, waits until the database is closed: deferred commits are written then, and a
/// checkpoint is made.
#[derive(Debug, Clone)]
pub struct Db(pub(crate) db::Db);

impl Db {
    fn new(db: db::Db) -> Self {
        Self(db.with_waiting_drop(true))
    }

    /// Creates a database. See [`db::Db::create`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// use nofault::{blocking::Db, settings::Settings};
    ///
    /// let settings = Settings { cache_bytes: 16 << 20, ..Settings::default() };
    /// let db = Db::create(folder.path().join("shop"), &settings)?;
    /// assert!(db.table_names()?.is_empty());
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Db::create`].
    pub fn create(folder: impl AsRef<Path>, settings: &Settings) -> Result<Self> {
        block_on(db::Db::create(folder, settings)).map(Self::new)
    }

    /// Opens a database. See [`db::Db::open`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # drop((db, stock));
    /// let db = nofault::blocking::Db::open(folder.path().join("shop"), &settings)?;
    /// assert_eq!(db.table_names()?, ["stock"]);
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Db::open`].
    pub fn open(folder: impl AsRef<Path>, settings: &Settings) -> Result<Self> {
        block_on(db::Db::open(folder, settings)).map(Self::new)
    }

    /// Opens a database, or creates it where there is none. See [`db::Db::open_or_create`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// use nofault::blocking::Db;
    ///
    /// Db::open_or_create(folder.path().join("shop"), &settings)?.create_table("stock")?;
    /// assert_eq!(Db::open_or_create(folder.path().join("shop"), &settings)?.table_names()?, ["stock"]);
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Db::open_or_create`].
    pub fn open_or_create(folder: impl AsRef<Path>, settings: &Settings) -> Result<Self> {
        block_on(db::Db::open_or_create(folder, settings)).map(Self::new)
    }

    /// Like [`Db::create`], on disks of the caller's choice. See [`db::Db::create_in`].
    ///
    /// ```
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// use nofault::blocking::Db;
    /// use nofault::io::disk::Directory;
    /// use nofault_sim::{SimOptions, SimWorld};
    ///
    /// // A disk in memory, for tests.
    /// let directory: std::sync::Arc<dyn Directory> = SimWorld::new(1, SimOptions::default()).directory();
    /// let db = Db::create_in(&directory, &settings)?;
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Db::create_in`].
    pub fn create_in(directory: &Arc<dyn Directory>, settings: &Settings) -> Result<Self> {
        db::Db::create_in(directory, settings).map(Self::new)
    }

    /// Like [`Db::open`], on disks of the caller's choice. See [`db::Db::open_in`].
    ///
    /// ```
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # use nofault::blocking::Db;
    /// use nofault::io::disk::Directory;
    /// use nofault_sim::{SimOptions, SimWorld};
    ///
    /// let world = SimWorld::new(1, SimOptions::default());
    /// let directory: std::sync::Arc<dyn Directory> = world.directory();
    /// Db::create_in(&directory, &settings)?.create_table("stock")?;
    /// // The power fails, and comes back.
    /// let directory: std::sync::Arc<dyn Directory> = world.restart(1).directory();
    /// assert_eq!(Db::open_in(&directory, &settings)?.table_names()?, ["stock"]);
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Db::open_in`].
    pub fn open_in(directory: &Arc<dyn Directory>, settings: &Settings) -> Result<Self> {
        db::Db::open_in(directory, settings).map(Self::new)
    }

    /// Returns a handle with `async` calls for the same database, for tasks of an executor. The database must have been
    /// opened with background threads ([`Settings::background_threads`]). Dropping that handle as the last does not wait
    /// until the database is closed.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    /// let names = runtime.block_on(db.asynchronous().table_names())?;
    /// assert_eq!(names, ["stock"]);
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    pub fn asynchronous(&self) -> db::Db {
        self.0.clone().with_waiting_drop(false)
    }

    /// Creates an empty table. See [`db::Db::create_table`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// let stock = db.create_table("stock")?;
    /// assert_eq!(stock.get("apples")?, None);
    /// assert!(db.create_table("stock").is_err());
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Db::create_table`].
    pub fn create_table(&self, name: &str) -> Result<Table> {
        block_on(self.0.create_table(name)).map(Table::new)
    }

    /// Sets the compression of a table. See [`db::Db::set_compression`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # db.create_table("stock")?;
    /// use nofault::settings::Compression;
    ///
    /// db.set_compression("stock", Compression::Fast)?;
    /// assert_eq!(db.compression("stock")?, Compression::Fast);
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Db::set_compression`].
    pub fn set_compression(&self, name: &str, compression: Compression) -> Result<()> {
        block_on(self.0.set_compression(name, compression))
    }

    /// Estimates the space that compressing a table would save. See [`db::Db::estimate_compression`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// let stock = db.create_table("stock")?;
    /// stock.bulk_load((0..20_000_u32).map(|number| (number.to_be_bytes(), format!("{{\"in stock\": {number}}}"))))?;
    /// let estimate = db.estimate_compression("stock")?.expect("a table with enough pages");
    /// assert!(estimate.fast < 0.8, "{estimate:?}");
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Db::estimate_compression`].
    pub fn estimate_compression(&self, name: &str) -> Result<Option<db::CompressionEstimate>> {
        block_on(self.0.estimate_compression(name))
    }

    /// Returns the compression of a table. See [`db::Db::compression`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # db.create_table("stock")?;
    /// assert_eq!(db.compression("stock")?, nofault::settings::Compression::None);
    /// assert!(db.compression("orders").is_err());
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Db::compression`].
    pub fn compression(&self, name: &str) -> Result<Compression> {
        block_on(self.0.compression(name))
    }

    /// Removes a table and everything in it. See [`db::Db::drop_table`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// db.drop_table("stock")?;
    /// assert!(db.table("stock").is_err() && stock.get("apples").is_err());
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Db::drop_table`].
    pub fn drop_table(&self, name: &str) -> Result<()> {
        block_on(self.0.drop_table(name))
    }

    /// Gives a table another name. See [`db::Db::rename_table`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # db.create_table("stock")?;
    /// db.rename_table("stock", "warehouse")?;
    /// assert_eq!(db.table_names()?, ["warehouse"]);
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Db::rename_table`].
    pub fn rename_table(&self, name: &str, to: &str) -> Result<()> {
        block_on(self.0.rename_table(name, to))
    }

    /// Opens a table by its name. See [`db::Db::table`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// let stock = db.table("stock")?;
    /// assert_eq!(stock.get("apples")?, Some(b"12".to_vec()));
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Db::table`].
    pub fn table(&self, name: &str) -> Result<Table> {
        block_on(self.0.table(name)).map(Table::new)
    }

    /// Opens a table by its name, or creates it. See [`db::Db::open_or_create_table`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// assert_eq!(db.open_or_create_table("stock")?.len()?, 2);
    /// assert_eq!(db.open_or_create_table("orders")?.len()?, 0);
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Db::open_or_create_table`].
    pub fn open_or_create_table(&self, name: &str) -> Result<Table> {
        block_on(self.0.open_or_create_table(name)).map(Table::new)
    }

    /// The names of all tables, sorted.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// db.create_table("stock")?;
    /// db.create_table("orders")?;
    /// assert_eq!(db.table_names()?, ["orders", "stock"]);
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Db::table_names`].
    pub fn table_names(&self) -> Result<Vec<String>> {
        block_on(self.0.table_names())
    }

    /// The names of the tables as far as the catalog can be read. See [`db::Db::list_tables`].
    ///
    /// # Errors
    /// As [`db::Db::list_tables`].
    pub fn list_tables(&self) -> Result<TableList> {
        block_on(self.0.list_tables())
    }

    /// Applies a batch: all of it or nothing. See [`db::Db::write`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// use nofault::{Batch, Durability};
    ///
    /// let mut batch = Batch::new();
    /// batch.put(&stock, "plums", "7").delete(&stock, "apples");
    /// db.write(batch, Durability::Sync)?;
    /// assert_eq!(stock.get_many(&["apples", "plums"])?, [None, Some(b"7".to_vec())]);
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Db::write`].
    pub fn write(&self, batch: Batch, durability: Durability) -> Result<()> {
        block_on(self.0.write(batch, durability))
    }

    /// Takes a snapshot of the newest visible commit. It lasts as long as the returned value lives.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// let before = db.snapshot();
    /// stock.put("pears", "2")?;
    /// assert_eq!(before.get(&stock, "pears")?, Some(b"3".to_vec()));
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::new(self.0.snapshot())
    }

    /// Begins a serializable transaction. Dropping it undoes everything.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// let change = db.begin();
    /// let apples = change.get(&stock, "apples")?;
    /// change.put(&stock, "pears", apples.unwrap_or_default())?;
    /// change.commit(nofault::Durability::Sync)?;
    /// assert_eq!(stock.get("pears")?, Some(b"12".to_vec()));
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    pub fn begin(&self) -> Transaction {
        Transaction::new(self.0.begin())
    }

    /// Runs `work` in a transaction and commits it when `work` returns `Ok`; runs it again for as long as other commits
    /// change data that it read. See [`db::Db::transact`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
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
    /// let sell = || {
    ///     db.transact(nofault::Durability::Sync, |change| {
    ///         let sold = change.get(&stock, "pears")?.ok_or(Refusal::SoldOut)?;
    ///         change.delete(&stock, "pears")?;
    ///         Ok(sold)
    ///     })
    /// };
    /// assert_eq!(sell().unwrap(), b"3");
    /// assert!(matches!(sell(), Err(Refusal::SoldOut)));
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Db::transact`].
    pub fn transact<T, E: From<Error>>(
        &self,
        options: impl Into<TransactOptions>,
        mut work: impl FnMut(&Transaction) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        let run = |transaction| std::future::ready(work(&Transaction::new(transaction)));
        block_on(db::transact(&self.0, options.into(), run))
    }

    /// Waits until the commit to which a transaction has lost is visible. See [`db::Db::after_conflict`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// let change = db.begin();
    /// change.put(&stock, "plums", change.get(&stock, "pears")?.unwrap_or_default())?;
    /// stock.put("pears", "2")?;
    /// let lost = change.commit(nofault::Durability::Sync).unwrap_err();
    /// db.after_conflict(lost)?; // the next run sees the 2
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Db::after_conflict`].
    pub fn after_conflict(&self, error: Error) -> Result<()> {
        block_on(self.0.after_conflict(error))
    }

    /// Makes every commit so far durable. See [`db::Db::sync`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// use nofault::{Batch, Durability};
    ///
    /// for number in 0..100u32 {
    ///     let mut batch = Batch::new();
    ///     batch.put(&stock, number.to_be_bytes(), "new");
    ///     db.write(batch, Durability::Deferred)?;
    /// }
    /// // From here on all of them survive a power cut.
    /// db.sync()?;
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Db::sync`].
    pub fn sync(&self) -> Result<()> {
        block_on(self.0.sync())
    }

    /// The counters and sizes of the database. See [`db::Db::stats`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// let stats = db.stats();
    /// println!("{} pages looked up, {} read by {}", stats.pool.hits, stats.pool.misses, stats.disk.kind);
    /// assert!(stats.pool.hits > 0);
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    pub fn stats(&self) -> Stats {
        self.0.stats()
    }

    /// The live snapshots, oldest first.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// let held = db.snapshot();
    /// stock.put("apples", "11")?;
    /// let reader = &db.readers()[0];
    /// assert_eq!(reader.commit, held.commit());
    /// println!("{} ns old, keeps {} bytes", reader.age_ns, reader.pinned_bytes);
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    pub fn readers(&self) -> Vec<ReaderInfo> {
        self.0.readers()
    }

    /// Size of a page of this database, in bytes.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// assert_eq!(db.page_bytes(), 4096);
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    pub fn page_bytes(&self) -> usize {
        self.0.page_bytes()
    }

    /// Length of the longest key that a table takes, in bytes.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// let longest = vec![b'k'; db.key_bytes_max()];
    /// stock.put(&longest, "value")?;
    /// assert!(stock.put([&longest[..], b"k"].concat(), "value").is_err());
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    pub fn key_bytes_max(&self) -> usize {
        self.0.key_bytes_max()
    }
}
