//! Snapshots and range scans, for threads.

use std::ops::RangeBounds;

use super::Table;
use crate::db;
use crate::driver::block_on;
use crate::error::Result;
use crate::format::CommitSeq;

/// A key and its value.
pub(super) type Entry = (Vec<u8>, Vec<u8>);

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

    /// Shows the value of a key as of this snapshot to `look`. See [`db::Snapshot::get_with`].
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
    /// assert_eq!(before.get_with(&stock, "apples", |count| count.map(<[u8]>::len))?, Some(2));
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Snapshot::get`].
    pub fn get_with<R>(
        &self,
        table: &Table,
        key: impl AsRef<[u8]>,
        look: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R> {
        block_on(self.0.get_with(table.as_ref(), key, look))
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
