//! Tables with blocking calls, for threads.

use std::ops::RangeBounds;
use std::time::SystemTime;

use super::views::Entry;
use super::{Db, Range};
use crate::db::{self, BulkEntry};
use crate::driver::block_on;
use crate::error::{Error, ErrorKind, Result};

/// A table, for threads. A [`Batch`](db::Batch) takes it as it takes a [`db::Table`].
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

impl Table {
    pub(super) fn new(table: db::Table) -> Self {
        Self(table)
    }

    /// The name of the table.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// assert_eq!(stock.name(), "stock");
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// A handle of the database that the table belongs to.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// assert_eq!(stock.db().table_names()?, ["stock"]);
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    pub fn db(&self) -> Db {
        Db(self.0.db().clone())
    }

    /// The visible value of a key. See [`db::Table::get`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// assert_eq!(stock.get("apples")?, Some(b"12".to_vec()));
    /// assert_eq!(stock.get("plums")?, None);
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Table::get`].
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        self.found(key.as_ref())
    }

    /// Shows the value of a key to `look` where it lies in memory, without copying it. See [`db::Table::get_with`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// let digits = stock.get_with("apples", |count| count.map_or(0, <[u8]>::len))?;
    /// assert_eq!(digits, 2);
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
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
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// assert!(stock.contains_key("apples")? && !stock.contains_key("plums")?);
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Table::contains_key`].
    pub fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        self.contains(key.as_ref())
    }

    /// Reads many keys at one moment. See [`db::Table::get_many`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// assert_eq!(stock.get_many(&["plums", "pears"])?, [None, Some(b"3".to_vec())]);
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Table::get_many`].
    pub fn get_many(&self, keys: &[impl AsRef<[u8]>]) -> Result<Vec<Option<Vec<u8>>>> {
        block_on(self.0.get_many(keys))
    }

    /// Sets the value of a key. Durable when it returns.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// stock.put("apples", "12")?;
    /// stock.put([0, 255], vec![7; 100_000])?;
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Db::write`].
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        block_on(self.0.put(key, value))
    }

    /// Sets the value of a key until `expiry`: from then on the key is absent. See [`db::Table::put_with_expiry`].
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
    /// assert_eq!(offers.get("pears")?, Some(b"2".to_vec()));
    /// offers.put_with_expiry("plums", "5", db.now())?;
    /// assert_eq!((offers.get("plums")?, offers.len()?), (None, 1));
    /// # Ok::<(), nofault::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Table::put_with_expiry`].
    pub fn put_with_expiry(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, expiry: SystemTime) -> Result<()> {
        block_on(self.0.put_with_expiry(key, value, expiry))
    }

    /// Returns the time at which a key expires; `None` when it is absent or does not expire.
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
    /// assert_eq!(offers.expiry("pears")?, Some(tomorrow));
    /// offers.put("pears", "3")?;
    /// assert_eq!(offers.expiry("pears")?, None);
    /// # Ok::<(), nofault::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Table::expiry`].
    pub fn expiry(&self, key: impl AsRef<[u8]>) -> Result<Option<SystemTime>> {
        block_on(self.0.expiry(key))
    }

    /// Removes a key; nothing happens if it is not there. Durable when it returns.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// stock.delete("apples")?;
    /// assert_eq!(stock.get("apples")?, None);
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Db::write`].
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<()> {
        block_on(self.0.delete(key))
    }

    /// Walks all keys, as they are now.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// for entry in stock.iter() {
    ///     let (name, count) = entry?;
    ///     println!("{}: {}", String::from_utf8_lossy(&name), String::from_utf8_lossy(&count));
    /// }
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    pub fn iter(&self) -> Range {
        self.range::<&[u8]>(..)
    }

    /// Walks the keys in `range`, as they are now.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// let names: Vec<_> = stock.range("b"..).map(|entry| entry.map(|(name, _)| name)).collect::<Result<_, _>>()?;
    /// assert_eq!(names, [b"pears"]);
    /// assert_eq!(stock.range::<&str>(..).count(), 2);
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    pub fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Range {
        Range::new(self.0.range(range))
    }

    /// Walks the keys beginning with `prefix`, as they are now.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// let found = stock.prefix("app").next().transpose()?;
    /// assert_eq!(found, Some((b"apples".to_vec(), b"12".to_vec())));
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Range {
        Range::new(self.0.prefix(prefix))
    }

    /// The entry with the first key. See [`db::Table::first`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// assert_eq!(stock.first()?, Some((b"apples".to_vec(), b"12".to_vec())));
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Table::first`].
    pub fn first(&self) -> Result<Option<Entry>> {
        block_on(self.0.first())
    }

    /// The entry with the last key. See [`db::Table::last`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// assert_eq!(stock.last()?, Some((b"pears".to_vec(), b"3".to_vec())));
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Table::last`].
    pub fn last(&self) -> Result<Option<Entry>> {
        block_on(self.0.last())
    }

    /// Removes the entry with the first key and returns it: a queue. See [`db::Table::pop_first`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// assert_eq!(stock.pop_first()?, Some((b"apples".to_vec(), b"12".to_vec())));
    /// assert_eq!(stock.pop_first()?, Some((b"pears".to_vec(), b"3".to_vec())));
    /// assert_eq!(stock.pop_first()?, None);
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Table::pop_first`].
    pub fn pop_first(&self) -> Result<Option<Entry>> {
        block_on(self.0.pop_first())
    }

    /// The exact number of entries, counted. See [`db::Table::len`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// assert_eq!(stock.len()?, 2);
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Table::len`].
    pub fn len(&self) -> Result<u64> {
        block_on(self.0.len())
    }

    /// An estimate of the number of entries in `range`. See [`db::Table::approximate_len`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// assert_eq!(stock.approximate_len("b"..)?, 1);
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Table::approximate_len`].
    pub fn approximate_len<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<u64> {
        block_on(self.0.approximate_len(range))
    }

    /// An estimate of the bytes of the leaves that hold `range`. See [`db::Table::approximate_bytes`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// assert_eq!(stock.approximate_bytes::<&str>(..)?, 4096);
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Table::approximate_bytes`].
    pub fn approximate_bytes<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<u64> {
        block_on(self.0.approximate_bytes(range))
    }

    /// Whether the table has no entry.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// assert!(!stock.is_empty()? && db.create_table("orders")?.is_empty()?);
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Table::is_empty`].
    pub fn is_empty(&self) -> Result<bool> {
        block_on(self.0.is_empty())
    }

    /// Replaces the value of a key by the result of `change`. See [`db::Table::update`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// let count = stock.update("visits", |count| {
    ///     let count = count.map_or(0, |count| u64::from_be_bytes(count.try_into().unwrap_or_default()));
    ///     Some((count + 1).to_be_bytes().to_vec())
    /// })?;
    /// assert_eq!(count, Some(1u64.to_be_bytes().to_vec()));
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Table::update`].
    pub fn update(
        &self,
        key: impl AsRef<[u8]>,
        change: impl FnMut(Option<&[u8]>) -> Option<Vec<u8>>,
    ) -> Result<Option<Vec<u8>>> {
        block_on(self.0.update(key, change))
    }

    /// The value of a key, which is set to the result of `make` where it has none. See [`db::Table::get_or_insert_with`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// assert_eq!(stock.get_or_insert_with("pears", || b"0".to_vec())?, b"3");
    /// assert_eq!(stock.get_or_insert_with("plums", || b"0".to_vec())?, b"0");
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Table::get_or_insert_with`].
    pub fn get_or_insert_with(&self, key: impl AsRef<[u8]>, make: impl FnOnce() -> Vec<u8>) -> Result<Vec<u8>> {
        block_on(self.0.get_or_insert_with(key, make))
    }

    /// Removes all entries in `range`, in one commit. See [`db::Table::delete_range`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// assert_eq!(stock.delete_range("a".."b")?, 1);
    /// assert_eq!(stock.first()?, Some((b"pears".to_vec(), b"3".to_vec())));
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Table::delete_range`].
    pub fn delete_range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<u64> {
        block_on(self.0.delete_range(range))
    }

    /// Removes all entries, in one commit. See [`db::Table::clear`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// assert_eq!((stock.clear()?, stock.len()?), (2, 0));
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Table::clear`].
    pub fn clear(&self) -> Result<u64> {
        block_on(self.0.clear())
    }

    /// Loads entries in ascending order of their keys, in one commit past the log. See [`db::Table::bulk_load`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// let entries = (0..10_000u32).map(|number| (number.to_be_bytes(), format!("item {number}")));
    /// assert_eq!(stock.bulk_load(entries)?, 10_000);
    ///
    /// // With the time at which an entry expires, if it does.
    /// let today = Some(db.now() + std::time::Duration::from_secs(86_400));
    /// db.create_table("prices")?.bulk_load([("apples", "12", today), ("bags", "1", None)])?;
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
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
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// let before = db.snapshot();
    /// // From another table, the reading of which may fail.
    /// let copied = db.create_table("copy")?.try_bulk_load(before.range::<&str>(&stock, ..)?)?;
    /// assert_eq!(copied, 0);
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
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
