//! The same database for threads: every call waits on the calling thread, which submits and reaps its own reads. The names are
//! those of [`crate::db`], without `await`.
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
//! // Both change or neither does, whatever others do meanwhile.
//! db.transact(Durability::Sync, |change| {
//!     let pears = change.get(&stock, "pears")?;
//!     change.put(&stock, "plums", pears.unwrap_or_default())?;
//!     change.delete(&stock, "pears")
//! })?;
//! let names: Vec<_> = stock.range::<&str>(..).map(|entry| entry.map(|(name, _)| name)).collect::<Result<_, _>>()?;
//! assert_eq!(names, [b"apples".to_vec(), b"plums".to_vec()]);
//! # Ok(())
//! # }
//! ```

use std::ops::RangeBounds;
use std::path::Path;
use std::sync::Arc;

use nofault_io::disk::Directory;

use crate::db::{self, Batch, Compaction, Mode, Pace, ReaderInfo, Stats, Verification};
use crate::error::Result;
use crate::format::CommitSeq;
use crate::gate::block_on;
use crate::pages::Durability;
use crate::settings::Settings;

/// A key and its value.
type Entry = (Vec<u8>, Vec<u8>);

/// A database, for threads. See [`db::Db`].
#[derive(Debug, Clone)]
pub struct Db(db::Db);

impl Db {
    /// Creates a database. See [`db::Db::create`].
    ///
    /// # Errors
    /// As there.
    pub fn create(folder: impl AsRef<Path>, settings: &Settings) -> Result<Self> {
        db::create_blocking(folder.as_ref(), settings).map(Self)
    }

    /// Opens a database. See [`db::Db::open`].
    ///
    /// # Errors
    /// As there.
    pub fn open(folder: impl AsRef<Path>, settings: &Settings) -> Result<Self> {
        db::open_blocking(folder.as_ref(), settings).map(Self)
    }

    /// Like [`Db::create`], on disks of the caller's choice. See [`db::Db::create_in`].
    ///
    /// # Errors
    /// As there.
    pub fn create_in(directory: &Arc<dyn Directory>, settings: &Settings) -> Result<Self> {
        db::Db::create_in(directory, settings).map(Self)
    }

    /// Like [`Db::open`], on disks of the caller's choice. See [`db::Db::open_in`].
    ///
    /// # Errors
    /// As there.
    pub fn open_in(directory: &Arc<dyn Directory>, settings: &Settings) -> Result<Self> {
        db::Db::open_in(directory, settings).map(Self)
    }

    /// The same database for tasks. It must have been opened with background threads.
    pub fn asynchronous(&self) -> &db::Db {
        &self.0
    }

    /// Creates an empty table. See [`db::Db::create_table`].
    ///
    /// # Errors
    /// As there.
    pub fn create_table(&self, name: &str) -> Result<Table> {
        block_on(self.0.create_table_in(Mode::Blocking, name)).map(Table)
    }

    /// Removes a table and everything in it. See [`db::Db::drop_table`].
    ///
    /// # Errors
    /// As [`db::Db::drop_table`].
    pub fn drop_table(&self, name: &str) -> Result<()> {
        block_on(self.0.drop_table_in(Mode::Blocking, name))
    }

    /// A table by its name. See [`db::Db::table`].
    ///
    /// # Errors
    /// As there.
    pub fn table(&self, name: &str) -> Result<Table> {
        block_on(self.0.table_in(Mode::Blocking, name)).map(Table)
    }

    /// The names of all tables, sorted.
    ///
    /// # Errors
    /// As [`db::Db::table_names`].
    pub fn table_names(&self) -> Result<Vec<String>> {
        block_on(self.0.snapshot().table_names_in(Mode::Blocking))
    }

    /// Applies a batch: all of it or nothing. See [`db::Db::write`].
    ///
    /// # Errors
    /// As there.
    pub fn write(&self, batch: Batch, durability: Durability) -> Result<()> {
        block_on(self.0.write_in(Mode::Blocking, batch, durability))
    }

    /// What is visible now, for as long as the answer lives.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.0.snapshot())
    }

    /// Begins a serializable transaction. Dropping it undoes everything.
    pub fn begin(&self) -> Transaction {
        Transaction(self.0.begin())
    }

    /// Runs `work` in a transaction and commits it; again for as long as others change what it read. See [`db::Db::transact`].
    ///
    /// # Errors
    /// As there.
    pub fn transact<R>(
        &self,
        durability: Durability,
        mut work: impl FnMut(&mut Transaction) -> Result<R>,
    ) -> Result<R> {
        loop {
            let mut transaction = self.begin();
            let result = work(&mut transaction)?;
            if block_on(transaction.0.commit_or_wait(Mode::Blocking, durability))? {
                return Ok(result);
            }
        }
    }

    /// Makes every commit so far durable. See [`db::Db::sync`].
    ///
    /// # Errors
    /// As there.
    pub fn sync(&self) -> Result<()> {
        block_on(self.0.sync_in(Mode::Blocking))
    }

    /// Writes what has changed to the data file. See [`db::Db::checkpoint`].
    ///
    /// # Errors
    /// As there.
    pub fn checkpoint(&self) -> Result<()> {
        self.0.checkpoint_blocking()
    }

    /// Puts pages back together that random writes have scattered; `go_on` hears of it and may end it. See [`db::Db::compact`].
    ///
    /// # Errors
    /// As there.
    pub fn compact(&self, pace: Pace, mut go_on: impl FnMut(&Compaction) -> bool) -> Result<Compaction> {
        self.0.compact_blocking(pace, &mut go_on)
    }

    /// Reads everything and reports what is broken. See [`db::Db::verify`].
    ///
    /// # Errors
    /// As there.
    pub fn verify(&self) -> Result<Verification> {
        self.0.verify_blocking()
    }

    /// Writes a copy as a new database. See [`db::Db::backup`].
    ///
    /// # Errors
    /// As there.
    pub fn backup(&self, folder: impl AsRef<Path>) -> Result<()> {
        db::backup_blocking(&self.0, folder.as_ref())
    }

    /// What it did and holds.
    pub fn stats(&self) -> Stats {
        self.0.stats()
    }

    /// The snapshots alive, oldest first.
    pub fn readers(&self) -> Vec<ReaderInfo> {
        self.0.readers()
    }

    /// Bytes of a page of this database.
    pub fn page_bytes(&self) -> usize {
        self.0.page_bytes()
    }

    /// Longest key.
    pub fn key_bytes_max(&self) -> usize {
        self.0.key_bytes_max()
    }
}

/// A table, for threads. A [`Batch`] takes it as it takes a [`db::Table`].
#[derive(Debug, Clone)]
pub struct Table(db::Table);

impl AsRef<db::Table> for Table {
    fn as_ref(&self) -> &db::Table {
        &self.0
    }
}

impl Table {
    /// Its name.
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// The visible value of a key. See [`db::Table::get`].
    ///
    /// # Errors
    /// As there.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        self.0.get_blocking(key.as_ref())
    }

    /// Shows the value of a key to `look` where it lies in memory, without copying it. See [`db::Table::get_with`].
    ///
    /// # Errors
    /// As there.
    pub fn get_with<R>(&self, key: impl AsRef<[u8]>, look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        self.0.get_with_blocking(key.as_ref(), look)
    }

    /// Reads many keys at one moment. See [`db::Table::get_many`].
    ///
    /// # Errors
    /// As there.
    pub fn get_many(&self, keys: &[impl AsRef<[u8]>]) -> Result<Vec<Option<Vec<u8>>>> {
        block_on(self.0.get_many_in(Mode::Blocking, keys))
    }

    /// Sets the value of a key. Durable when it returns.
    ///
    /// # Errors
    /// As [`db::Db::write`].
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        block_on(self.0.put_in(Mode::Blocking, key.as_ref(), value.as_ref(), Durability::Sync))
    }

    /// Removes a key; nothing happens if it is not there. Durable when it returns.
    ///
    /// # Errors
    /// As [`db::Db::write`].
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<()> {
        block_on(self.0.delete_in(Mode::Blocking, key.as_ref(), Durability::Sync))
    }

    /// Walks the keys in `range`, as they are now.
    pub fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Range {
        Range(self.0.range(range))
    }

    /// Walks the keys that begin with `prefix`, as they are now.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Range {
        Range(self.0.prefix(prefix))
    }

    /// Fills an empty table with entries in ascending order of their keys. See [`db::Table::bulk_load`].
    ///
    /// # Errors
    /// As there.
    pub fn bulk_load<K, V>(&self, entries: impl IntoIterator<Item = (K, V)>) -> Result<u64>
    where
        K: AsRef<[u8]>,
        V: AsRef<[u8]>,
    {
        self.0.bulk_load_blocking(entries)
    }
}

/// The database as it was at one moment, for threads. See [`db::Snapshot`].
#[derive(Clone)]
pub struct Snapshot(db::Snapshot);

impl Snapshot {
    /// The commit it shows.
    pub fn commit(&self) -> CommitSeq {
        self.0.commit()
    }

    /// A table by its name, as of this snapshot. See [`db::Snapshot::table`].
    ///
    /// # Errors
    /// As [`db::Snapshot::table`].
    pub fn table(&self, name: &str) -> Result<Table> {
        block_on(self.0.table_in(Mode::Blocking, name)).map(Table)
    }

    /// The value of a key as of this snapshot.
    ///
    /// # Errors
    /// As [`db::Snapshot::get`].
    pub fn get(&self, table: &Table, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        block_on(self.0.get_in(Mode::Blocking, &table.0, key.as_ref()))
    }

    /// Reads many keys as of this snapshot.
    ///
    /// # Errors
    /// As [`db::Snapshot::get`].
    pub fn get_many(&self, table: &Table, keys: &[impl AsRef<[u8]>]) -> Result<Vec<Option<Vec<u8>>>> {
        block_on(self.0.get_many_in(Mode::Blocking, &table.0, keys))
    }

    /// Walks the keys in `range` as of this snapshot.
    ///
    /// # Errors
    /// `InvalidCall` for a table of another database.
    pub fn range<K: AsRef<[u8]>>(&self, table: &Table, range: impl RangeBounds<K>) -> Result<Range> {
        self.0.range(&table.0, range).map(Range)
    }

    /// Walks the keys that begin with `prefix` as of this snapshot.
    ///
    /// # Errors
    /// `InvalidCall` for a table of another database.
    pub fn prefix(&self, table: &Table, prefix: impl AsRef<[u8]>) -> Result<Range> {
        self.0.prefix(&table.0, prefix).map(Range)
    }
}

/// A walk through keys in order, for threads. After an error it may be asked again.
pub struct Range(db::Range);

impl Range {
    /// The same keys from the last to the first. To be said before the first `next`.
    #[must_use]
    pub fn rev(self) -> Self {
        Self(self.0.rev())
    }

    /// At most so many leaves are asked for before they are needed. See [`db::Range::read_ahead_max`].
    #[must_use]
    pub fn read_ahead_max(self, leaves: usize) -> Self {
        Self(self.0.read_ahead_max(leaves))
    }

    /// Like `next`, and shows the entry where the walk keeps it instead of giving it away. See [`db::Range::next_ref`].
    ///
    /// ```
    /// # use nofault::{blocking::Db, settings::Settings};
    /// # fn main() -> Result<(), nofault::error::Error> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let stock = Db::create(folder.path().join("shop"), &Settings::default())?.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// let (mut range, mut bytes) = (stock.range::<&str>(..), 0);
    /// while let Some((name, count)) = range.next_ref()? {
    ///     bytes += name.len() + count.len();
    /// }
    /// assert_eq!(bytes, 14);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As there.
    pub fn next_ref(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        self.0.next_ref_blocking()
    }
}

impl Iterator for Range {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Result<Entry>> {
        self.0.next_blocking().transpose()
    }
}

/// A serializable transaction, for threads. See [`db::Transaction`].
pub struct Transaction(db::Transaction);

impl Transaction {
    /// The value of a key, which then counts as read.
    ///
    /// # Errors
    /// As [`db::Snapshot::get`].
    pub fn get(&mut self, table: &Table, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        block_on(self.0.get_in(Mode::Blocking, &table.0, key.as_ref()))
    }

    /// Sets the value of a key, for this transaction only until it commits.
    ///
    /// # Errors
    /// `InvalidCall` for a table of another database.
    pub fn put(&mut self, table: &Table, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.0.put(&table.0, key, value)
    }

    /// Removes a key, for this transaction only until it commits.
    ///
    /// # Errors
    /// `InvalidCall` for a table of another database.
    pub fn delete(&mut self, table: &Table, key: impl AsRef<[u8]>) -> Result<()> {
        self.0.delete(&table.0, key)
    }

    /// Walks the keys in `range`; what is walked over counts as read.
    ///
    /// # Errors
    /// `InvalidCall` for a table of another database.
    pub fn range<K: AsRef<[u8]>>(&mut self, table: &Table, range: impl RangeBounds<K>) -> Result<TransactionRange<'_>> {
        self.0.range(&table.0, range).map(TransactionRange)
    }

    /// Walks the keys in `range` from the last to the first.
    ///
    /// # Errors
    /// `InvalidCall` for a table of another database.
    pub fn range_rev<K: AsRef<[u8]>>(
        &mut self,
        table: &Table,
        range: impl RangeBounds<K>,
    ) -> Result<TransactionRange<'_>> {
        self.0.range_rev(&table.0, range).map(TransactionRange)
    }

    /// Commits.
    ///
    /// # Errors
    /// As [`db::Transaction::commit`].
    pub fn commit(self, durability: Durability) -> Result<()> {
        block_on(self.0.commit_in(Mode::Blocking, durability))
    }
}

/// A walk through keys as a transaction sees them, for threads.
pub struct TransactionRange<'t>(db::TransactionRange<'t>);

impl TransactionRange<'_> {
    /// Like `next`, and shows the entry where it lies instead of giving it away. See [`db::TransactionRange::next_ref`].
    ///
    /// # Errors
    /// As there.
    pub fn next_ref(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        block_on(self.0.next_ref_in(Mode::Blocking))
    }
}

impl Iterator for TransactionRange<'_> {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Result<Entry>> {
        block_on(self.0.next_in(Mode::Blocking)).transpose()
    }
}
