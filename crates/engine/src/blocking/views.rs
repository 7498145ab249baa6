//! Snapshots and range scans, for threads.

use std::ops::RangeBounds;
use std::time::SystemTime;

use super::{Db, Table};
use crate::db::{self, TableTypes};
use crate::driver::block_on;
use crate::error::Result;
use crate::format::CommitSeq;
use crate::settings::Compression;

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
#[derive(Debug, Clone)]
pub struct Snapshot(pub(super) db::Snapshot);

impl Db {
    /// Begins a read-only transaction over all tables: the same as [`Db::snapshot`]. See [`db::Db::begin_read`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// let (stock, orders) = (db.create_table("stock")?, db.create_table("orders")?);
    /// let read = db.begin_read();
    /// let mut batch = nofault::Batch::new();
    /// batch.put(&stock, "apples", "11").put(&orders, "1", "apples");
    /// db.write(batch, nofault::Durability::Sync)?;
    /// assert_eq!((read.get(&stock, "apples")?, read.get(&orders, "1")?), (None, None));
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    #[doc(alias = "read_txn")]
    pub fn begin_read(&self) -> Snapshot {
        self.snapshot()
    }
}

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

    /// The names of all tables in this snapshot, sorted. See [`db::Snapshot::table_names`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// db.create_table("stock")?;
    /// let before = db.snapshot();
    /// db.create_table("orders")?;
    /// assert_eq!(before.table_names()?, ["stock"]);
    /// assert_eq!((before.compression("stock")?, before.types("stock")?), (Default::default(), None));
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Snapshot::table_names`].
    pub fn table_names(&self) -> Result<Vec<String>> {
        block_on(self.0.table_names())
    }

    /// The compression that a table has in this snapshot. See [`db::Snapshot::compression`].
    ///
    /// # Errors
    /// As [`db::Snapshot::compression`].
    pub fn compression(&self, name: &str) -> Result<Compression> {
        block_on(self.0.compression(name))
    }

    /// The names of the types of a table in this snapshot. See [`db::Snapshot::types`].
    ///
    /// # Errors
    /// As [`db::Snapshot::types`].
    pub fn types(&self, name: &str) -> Result<Option<TableTypes>> {
        block_on(self.0.types(name))
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

    /// Returns the time at which a key expires, as of this snapshot; `None` when it is absent or does not expire.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let offers = db.create_table("offers")?;
    /// use std::time::Duration;
    ///
    /// let tomorrow = db.now() + Duration::from_secs(86_400);
    /// offers.put_with_expiry("pears", "2", tomorrow)?;
    /// let before = db.snapshot();
    /// offers.delete("pears")?;
    /// assert_eq!(before.expiry(&offers, "pears")?, Some(tomorrow));
    /// # Ok::<(), nofault::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Snapshot::expiry`].
    pub fn expiry(&self, table: &Table, key: impl AsRef<[u8]>) -> Result<Option<SystemTime>> {
        block_on(self.0.expiry(table.as_ref(), key))
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

    /// The exact number of entries of a table as of this snapshot. See [`db::Table::len`].
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
    /// assert_eq!((before.len(&stock)?, stock.len()?), (2, 1));
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Snapshot::get`].
    pub fn len(&self, table: &Table) -> Result<u64> {
        block_on(self.0.len(table.as_ref()))
    }

    /// Walks all keys of a table as of this snapshot.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// let before = db.snapshot();
    /// stock.clear()?;
    /// assert_eq!(before.iter(&stock)?.count(), 2);
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidCall` for a table of another database.
    pub fn iter(&self, table: &Table) -> Result<Range> {
        self.range::<&[u8]>(table, ..)
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
        self.0.range(table.as_ref(), range).map(Range::new)
    }

    /// Walks the keys beginning with `prefix` as of this snapshot.
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
        self.0.prefix(table.as_ref(), prefix).map(Range::new)
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
/// for entry in stock.iter().rev() {
///     let (name, count) = entry?;
///     println!("{}: {}", String::from_utf8_lossy(&name), String::from_utf8_lossy(&count));
/// }
/// # Ok::<(), nofault::error::Error>(())
/// ```
///
/// It may be used from both ends, which meet in the middle:
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
/// # let stock = db.create_table("stock")?;
/// # stock.put("apples", "12")?;
/// # stock.put("pears", "3")?;
/// let mut range = stock.iter();
/// assert_eq!(range.next_back().transpose()?.map(|(name, _)| name), Some(b"pears".to_vec()));
/// assert_eq!(range.next().transpose()?.map(|(name, _)| name), Some(b"apples".to_vec()));
/// assert!(range.next().is_none() && range.next_back().is_none());
/// # Ok::<(), nofault::error::Error>(())
/// ```
pub struct Range {
    front: db::Range,
    /// The scan from the other end, once it was asked for.
    back: Option<Back>,
    /// The entry that was lent last, where both ends are in use.
    shown: Entry,
}

impl std::fmt::Debug for Range {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Range").finish_non_exhaustive()
    }
}

/// The scan from the other end of a range. Each end stops at the last key of the other.
struct Back {
    range: db::Range,
    front_key: Option<Vec<u8>>,
    back_key: Option<Vec<u8>>,
    /// Whether the two ends have met, or one has failed.
    is_over: bool,
}

impl Back {
    /// Notes that an end has read this; `last` is where its key is kept, `other` the last key of the other end. Returns
    /// it unless the other end has passed it.
    fn meet(&mut self, is_front: bool, read: Result<Option<Entry>>) -> Option<Result<Entry>> {
        let Self { front_key, back_key, is_over, .. } = self;
        let (last, other) = if is_front { (front_key, back_key) } else { (back_key, front_key) };
        match read.transpose() {
            Some(Ok((key, value))) => {
                // Both ends see one snapshot, so the first key that both reach is the last of either.
                if other.as_ref().is_some_and(|other| *other == key) {
                    *is_over = true;
                    return None;
                }
                *last = Some(key.clone());
                Some(Ok((key, value)))
            }
            end => {
                *is_over = true;
                end
            }
        }
    }
}

impl Range {
    pub(super) fn new(range: db::Range) -> Self {
        Self { front: range, back: None, shown: Entry::default() }
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
    /// let last = stock.iter().rev().next().transpose()?;
    /// assert_eq!(last, Some((b"pears".to_vec(), b"3".to_vec())));
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    #[must_use]
    pub fn rev(self) -> Self {
        Self::new(self.front.rev())
    }

    /// Limits the number of leaves requested ahead. See [`db::Range::read_ahead_max`].
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
        Self::new(self.front.read_ahead_max(leaves))
    }

    /// Begins behind `key`, to go on where another scan ended. See [`db::Range::after`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// let mut page = stock.prefix("").after("apples").limit(20);
    /// assert_eq!(page.next().transpose()?, Some((b"pears".to_vec(), b"3".to_vec())));
    /// assert!(stock.iter().rev().after("apples").next().is_none());
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    #[must_use]
    pub fn after(self, key: impl AsRef<[u8]>) -> Self {
        Self::new(self.front.after(key))
    }

    /// Ends the scan after `entries` more entries, entries taken from its other end included.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// assert_eq!(stock.iter().limit(1).count(), 1);
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    #[must_use]
    pub fn limit(self, entries: u64) -> Self {
        Self::new(self.front.limit(entries))
    }

    /// The next entries at hand, `entries_max` at the most; none at the end. See [`db::Range::next_batch`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// let mut range = stock.iter();
    /// assert_eq!((range.next_batch(1)?.len(), range.next_batch(1000)?.len(), range.next_batch(1000)?.len()), (1, 1, 0));
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Range::next_batch`].
    pub fn next_batch(&mut self, entries_max: usize) -> Result<Vec<Entry>> {
        if self.back.is_some() {
            return self.by_ref().take(entries_max.min(1)).collect();
        }
        block_on(self.front.next_batch(entries_max))
    }

    /// Returns the time at which the entry expires that was returned last from the front, of a batch the last entry; `None` if
    /// it does not.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let offers = db.create_table("offers")?;
    /// use std::time::Duration;
    ///
    /// let tomorrow = db.now() + Duration::from_secs(86_400);
    /// offers.put_with_expiry("pears", "2", tomorrow)?;
    /// offers.put("plums", "5")?;
    /// let mut range = offers.iter();
    /// assert!(range.next().is_some() && range.expiry() == Some(tomorrow));
    /// assert!(range.next().is_some() && range.expiry().is_none());
    /// # Ok::<(), nofault::Error>(())
    /// ```
    pub fn expiry(&self) -> Option<SystemTime> {
        self.front.expiry()
    }

    /// Like `next`, but lends the entry from the scan's own memory instead of giving it away. See [`db::Range::next_ref`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// let (mut range, mut bytes) = (stock.iter(), 0);
    /// while let Some((name, count)) = range.next_ref()? {
    ///     bytes += name.len() + count.len();
    /// }
    /// assert_eq!(bytes, 14);
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Range::next_ref`].
    pub fn next_ref(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        if self.back.is_some() {
            let Some(entry) = self.next().transpose()? else { return Ok(None) };
            self.shown = entry;
            return Ok(Some((&self.shown.0, &self.shown.1)));
        }
        if self.front.is_ready() { Ok(self.front.show()) } else { block_on(self.front.next_ref()) }
    }
}

impl Iterator for Range {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Result<Entry>> {
        if self.back.as_ref().is_some_and(|back| back.is_over) {
            return None;
        }
        let read = match self.front.take() {
            Some(entry) => Ok(Some(entry)),
            None => block_on(self.front.next()),
        };
        match &mut self.back {
            None => read.transpose(),
            Some(back) => back.meet(true, read),
        }
    }
}

impl DoubleEndedIterator for Range {
    fn next_back(&mut self) -> Option<Result<Entry>> {
        let front = &self.front;
        let begin = || Back { range: front.reversed(), front_key: None, back_key: None, is_over: false };
        let back = self.back.get_or_insert_with(begin);
        if back.is_over || !self.front.spend_limit() {
            return None;
        }
        let read = match back.range.take() {
            Some(entry) => Ok(Some(entry)),
            None => block_on(back.range.next()),
        };
        back.meet(false, read)
    }
}
