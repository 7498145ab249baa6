//! Snapshots, transactions and their range scans, for threads.

use std::ops::RangeBounds;

use super::Table;
use crate::db;
use crate::driver::block_on;
use crate::error::Result;
use crate::format::CommitSeq;
use crate::pages::Durability;

/// A key and its value.
type Entry = (Vec<u8>, Vec<u8>);

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
#[derive(Clone)]
pub struct Snapshot(db::Snapshot);

impl Snapshot {
    pub(super) fn new(snapshot: db::Snapshot) -> Self {
        Self(snapshot)
    }

    /// The number of the newest commit in this snapshot.
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
    /// assert!(db.snapshot().commit() > before.commit());
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    pub fn commit(&self) -> CommitSeq {
        self.0.commit()
    }

    /// A table by its name, as of this snapshot. See [`db::Snapshot::table`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// let before = db.snapshot();
    /// db.drop_table("stock")?;
    /// let stock = before.table("stock")?;
    /// assert_eq!(before.get(&stock, "apples")?, Some(b"12".to_vec()));
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Snapshot::table`].
    pub fn table(&self, name: &str) -> Result<Table> {
        block_on(self.0.table(name)).map(Table::new)
    }

    /// The value of a key as of this snapshot.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// let before = db.snapshot();
    /// stock.delete("apples")?;
    /// assert_eq!(before.get(&stock, "apples")?, Some(b"12".to_vec()));
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Snapshot::get`].
    pub fn get(&self, table: &Table, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        block_on(self.0.get(table.as_ref(), key))
    }

    /// Whether a key has a value as of this snapshot. See [`db::Snapshot::contains_key`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// let before = db.snapshot();
    /// stock.delete("apples")?;
    /// assert!(before.contains_key(&stock, "apples")? && !stock.contains_key("apples")?);
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Snapshot::contains_key`].
    pub fn contains_key(&self, table: &Table, key: impl AsRef<[u8]>) -> Result<bool> {
        block_on(self.0.contains_key(table.as_ref(), key))
    }

    /// Reads many keys as of this snapshot.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// let before = db.snapshot();
    /// stock.delete("apples")?;
    /// assert_eq!(before.get_many(&stock, &["apples", "plums"])?, [Some(b"12".to_vec()), None]);
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Snapshot::get`].
    pub fn get_many(&self, table: &Table, keys: &[impl AsRef<[u8]>]) -> Result<Vec<Option<Vec<u8>>>> {
        block_on(self.0.get_many(table.as_ref(), keys))
    }

    /// Walks the keys in `range` as of this snapshot.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// let before = db.snapshot();
    /// stock.delete("apples")?;
    /// assert_eq!(before.range::<&str>(&stock, ..)?.count(), 2);
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidCall` for a table of another database.
    pub fn range<K: AsRef<[u8]>>(&self, table: &Table, range: impl RangeBounds<K>) -> Result<Range> {
        self.0.range(table.as_ref(), range).map(Range)
    }

    /// Walks the keys that begin with `prefix` as of this snapshot.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// let before = db.snapshot();
    /// stock.delete("apples")?;
    /// assert_eq!(before.prefix(&stock, "app")?.count(), 1);
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidCall` for a table of another database.
    pub fn prefix(&self, table: &Table, prefix: impl AsRef<[u8]>) -> Result<Range> {
        self.0.prefix(table.as_ref(), prefix).map(Range)
    }
}

/// A scan of keys in order, for threads. It returns an error once, and then `None`. See [`db::Range`].
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
/// # let stock = db.create_table("stock")?;
/// # stock.put("apples", "12")?;
/// # stock.put("pears", "3")?;
/// for entry in stock.range::<&str>(..).rev() {
///     let (name, count) = entry?;
///     println!("{}: {}", String::from_utf8_lossy(&name), String::from_utf8_lossy(&count));
/// }
/// # Ok::<(), nofault::error::Error>(())
/// ```
pub struct Range(db::Range);

impl Range {
    pub(super) fn new(range: db::Range) -> Self {
        Self(range)
    }

    /// Reverses the scan: from the last key to the first. Call it before the first `next`.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// let last = stock.range::<&str>(..).rev().next().transpose()?;
    /// assert_eq!(last, Some((b"pears".to_vec(), b"3".to_vec())));
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    #[must_use]
    pub fn rev(self) -> Self {
        Self(self.0.rev())
    }

    /// Limits the number of leaves that are requested ahead. See [`db::Range::read_ahead_max`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// // One entry is wanted: nothing behind it is read.
    /// let first = stock.range("a"..).read_ahead_max(0).next().transpose()?;
    /// assert_eq!(first.map(|(name, _)| name), Some(b"apples".to_vec()));
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    #[must_use]
    pub fn read_ahead_max(self, leaves: usize) -> Self {
        Self(self.0.read_ahead_max(leaves))
    }

    /// Like `next`, but lends the entry from the scan's own memory instead of giving it away. See [`db::Range::next_ref`].
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
    /// As [`db::Range::next_ref`].
    pub fn next_ref(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        if self.0.is_ready() { Ok(self.0.show()) } else { block_on(self.0.next_ref()) }
    }
}

impl Iterator for Range {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Result<Entry>> {
        self.0.take().map(Ok).or_else(|| block_on(self.0.next()).transpose())
    }
}

/// A serializable transaction, for threads. See [`db::Transaction`].
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
/// # let stock = db.create_table("stock")?;
/// # stock.put("apples", "12")?;
/// # stock.put("pears", "3")?;
/// let mut change = db.begin();
/// let apples = change.get(&stock, "apples")?.unwrap_or_default();
/// change.put(&stock, "plums", apples)?;
/// change.delete(&stock, "apples")?;
/// change.commit(nofault::Durability::Sync)?;
/// # Ok::<(), nofault::error::Error>(())
/// ```
pub struct Transaction(db::Transaction);

impl Transaction {
    pub(super) fn new(transaction: db::Transaction) -> Self {
        Self(transaction)
    }

    /// The value of a key, which then counts as read.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// let mut change = db.begin();
    /// assert_eq!(change.get(&stock, "apples")?, Some(b"12".to_vec()));
    /// change.put(&stock, "plums", "7")?;
    /// // Another commit changes the key first.
    /// stock.put("apples", "11")?;
    /// let error = change.commit(nofault::Durability::Sync).unwrap_err();
    /// assert_eq!(error.kind(), nofault::error::ErrorKind::Conflict);
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Snapshot::get`].
    pub fn get(&mut self, table: &Table, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        block_on(self.0.get(table.as_ref(), key))
    }

    /// Whether a key has a value; the key then counts as read. See [`db::Transaction::contains_key`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// let mut change = db.begin();
    /// change.delete(&stock, "apples")?;
    /// assert!(change.contains_key(&stock, "pears")? && !change.contains_key(&stock, "apples")?);
    /// // Another commit changes the key first.
    /// stock.delete("pears")?;
    /// let error = change.commit(nofault::Durability::Sync).unwrap_err();
    /// assert_eq!(error.kind(), nofault::error::ErrorKind::Conflict);
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Transaction::contains_key`].
    pub fn contains_key(&mut self, table: &Table, key: impl AsRef<[u8]>) -> Result<bool> {
        block_on(self.0.contains_key(table.as_ref(), key))
    }

    /// Sets the value of a key, for this transaction only until it commits.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// let mut change = db.begin();
    /// change.put(&stock, "apples", "11")?;
    /// assert_eq!(change.get(&stock, "apples")?, Some(b"11".to_vec()));
    /// assert_eq!(stock.get("apples")?, Some(b"12".to_vec()));
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidCall` for a table of another database.
    pub fn put(&mut self, table: &Table, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.0.put(table.as_ref(), key, value)
    }

    /// Removes a key, for this transaction only until it commits.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// let mut change = db.begin();
    /// change.delete(&stock, "apples")?;
    /// change.commit(nofault::Durability::Sync)?;
    /// assert_eq!(stock.get("apples")?, None);
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidCall` for a table of another database.
    pub fn delete(&mut self, table: &Table, key: impl AsRef<[u8]>) -> Result<()> {
        self.0.delete(table.as_ref(), key)
    }

    /// Scans the keys in `range`. The part that was scanned counts as read.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// let mut change = db.begin();
    /// change.put(&stock, "plums", "7")?;
    /// change.delete(&stock, "pears")?;
    /// let names: Vec<_> =
    ///     change.range::<&str>(&stock, ..)?.map(|entry| entry.map(|(name, _)| name)).collect::<Result<_, _>>()?;
    /// assert_eq!(names, [b"apples".to_vec(), b"plums".to_vec()]);
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidCall` for a table of another database.
    pub fn range<K: AsRef<[u8]>>(&mut self, table: &Table, range: impl RangeBounds<K>) -> Result<TransactionRange<'_>> {
        self.0.range(table.as_ref(), range).map(TransactionRange)
    }

    /// Walks the keys in `range` from the last to the first.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// let mut change = db.begin();
    /// let last = change.range_rev::<&str>(&stock, ..)?.next().transpose()?;
    /// assert_eq!(last, Some((b"pears".to_vec(), b"3".to_vec())));
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidCall` for a table of another database.
    pub fn range_rev<K: AsRef<[u8]>>(
        &mut self,
        table: &Table,
        range: impl RangeBounds<K>,
    ) -> Result<TransactionRange<'_>> {
        self.0.range_rev(table.as_ref(), range).map(TransactionRange)
    }

    /// Commits the transaction.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// let mut change = db.begin();
    /// change.put(&stock, "plums", "7")?;
    /// change.commit(nofault::Durability::Sync)?;
    /// assert_eq!(stock.get("plums")?, Some(b"7".to_vec()));
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Transaction::commit`].
    pub fn commit(self, durability: Durability) -> Result<()> {
        block_on(self.0.commit(durability))
    }

    /// Returns the asynchronous transaction that this type wraps.
    pub(super) fn into_inner(self) -> db::Transaction {
        self.0
    }
}

/// A scan of keys in order, as a transaction sees them, for threads. It returns an error once, and then `None`.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
/// # let stock = db.create_table("stock")?;
/// # stock.put("apples", "12")?;
/// # stock.put("pears", "3")?;
/// let mut change = db.begin();
/// change.put(&stock, "plums", "7")?;
/// assert_eq!(change.range(&stock, "p"..)?.count(), 2);
/// # Ok::<(), nofault::error::Error>(())
/// ```
pub struct TransactionRange<'t>(db::TransactionRange<'t>);

impl TransactionRange<'_> {
    /// Like `next`, but lends the entry instead of giving it away. See [`db::TransactionRange::next_ref`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// let mut change = db.begin();
    /// change.put(&stock, "plums", "7")?;
    /// let (mut range, mut names) = (change.range::<&str>(&stock, ..)?, 0);
    /// while let Some((name, _)) = range.next_ref()? {
    ///     names += name.len();
    /// }
    /// assert_eq!(names, "applespearsplums".len());
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::TransactionRange::next_ref`].
    pub fn next_ref(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        block_on(self.0.next_ref())
    }
}

impl Iterator for TransactionRange<'_> {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Result<Entry>> {
        block_on(self.0.next()).transpose()
    }
}
