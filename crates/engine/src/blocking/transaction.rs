//! Transactions and their range scans, for threads.

use std::ops::RangeBounds;
use std::time::SystemTime;

use super::views::Entry;
use super::{Db, Table};
use crate::db;
use crate::driver::block_on;
use crate::error::Result;
use crate::pages::Durability;

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

impl Transaction {
    pub(super) fn new(transaction: db::Transaction) -> Self {
        Self(transaction)
    }

    /// The transaction with async calls.
    pub(super) fn asynchronous(&self) -> &db::Transaction {
        &self.0
    }

    /// A handle of the database of the transaction.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let offers = db.create_table("offers")?;
    /// // By the clock of the database, in a function that gets the transaction only.
    /// db.transact(nofault::Durability::Sync, |change| {
    ///     let tomorrow = change.db().now() + std::time::Duration::from_secs(86_400);
    ///     change.put_with_expiry(&offers, "pears", "2", tomorrow)
    /// })?;
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    pub fn db(&self) -> Db {
        Db(self.0.db().clone())
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
    /// let change = db.begin();
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
    pub fn get(&self, table: &Table, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
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
    /// let change = db.begin();
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
    pub fn contains_key(&self, table: &Table, key: impl AsRef<[u8]>) -> Result<bool> {
        block_on(self.0.contains_key(table.as_ref(), key))
    }

    /// Shows the value of a key to `look`; the key then counts as read. See [`db::Transaction::get_with`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// let change = db.begin();
    /// assert_eq!(change.get_with(&stock, "apples", |count| count.map(<[u8]>::len))?, Some(2));
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Transaction::get_with`].
    pub fn get_with<R>(
        &self,
        table: &Table,
        key: impl AsRef<[u8]>,
        look: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R> {
        block_on(self.0.get_with(table.as_ref(), key, look))
    }

    /// Reads many keys, which then count as read. See [`db::Transaction::get_many`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// let change = db.begin();
    /// change.put(&stock, "plums", "7")?;
    /// assert_eq!(change.get_many(&stock, &["plums", "nuts"])?, [Some(b"7".to_vec()), None]);
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Transaction::get_many`].
    pub fn get_many(&self, table: &Table, keys: &[impl AsRef<[u8]>]) -> Result<Vec<Option<Vec<u8>>>> {
        block_on(self.0.get_many(table.as_ref(), keys))
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
    /// let change = db.begin();
    /// change.put(&stock, "apples", "11")?;
    /// assert_eq!(change.get(&stock, "apples")?, Some(b"11".to_vec()));
    /// assert_eq!(stock.get("apples")?, Some(b"12".to_vec()));
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidCall` for a table of another database.
    pub fn put(&self, table: &Table, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.0.put(table.as_ref(), key, value)
    }

    /// Sets the value of a key until `expiry`, for this transaction only until it commits. See
    /// [`db::Transaction::put_with_expiry`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let offers = db.create_table("offers")?;
    /// use std::time::Duration;
    ///
    /// let tomorrow = db.now() + Duration::from_secs(86_400);
    /// db.transact(nofault::Durability::Sync, |change| change.put_with_expiry(&offers, "pears", "2", tomorrow))?;
    /// assert_eq!(offers.expiry("pears")?, Some(tomorrow));
    /// # Ok::<(), nofault::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Transaction::put_with_expiry`].
    pub fn put_with_expiry(
        &self,
        table: &Table,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        expiry: SystemTime,
    ) -> Result<()> {
        self.0.put_with_expiry(table.as_ref(), key, value, expiry)
    }

    /// Returns the time at which a key expires; `None` when it is absent or does not expire. The key then counts as read.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let offers = db.create_table("offers")?;
    /// use std::time::Duration;
    ///
    /// let tomorrow = db.now() + Duration::from_secs(86_400);
    /// let change = db.begin();
    /// change.put_with_expiry(&offers, "pears", "2", tomorrow)?;
    /// assert_eq!(change.expiry(&offers, "pears")?, Some(tomorrow));
    /// # Ok::<(), nofault::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Transaction::expiry`].
    pub fn expiry(&self, table: &Table, key: impl AsRef<[u8]>) -> Result<Option<SystemTime>> {
        block_on(self.0.expiry(table.as_ref(), key))
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
    /// let change = db.begin();
    /// change.delete(&stock, "apples")?;
    /// change.commit(nofault::Durability::Sync)?;
    /// assert_eq!(stock.get("apples")?, None);
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidCall` for a table of another database.
    pub fn delete(&self, table: &Table, key: impl AsRef<[u8]>) -> Result<()> {
        self.0.delete(table.as_ref(), key)
    }

    /// Scans all keys of a table, which then count as read. See [`db::Transaction::iter`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// let change = db.begin();
    /// change.delete(&stock, "pears")?;
    /// assert_eq!(change.iter(&stock)?.count(), 1);
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Transaction::range`].
    pub fn iter(&self, table: &Table) -> Result<TransactionRange> {
        self.range::<&[u8]>(table, ..)
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
    /// let change = db.begin();
    /// change.put(&stock, "plums", "7")?;
    /// change.delete(&stock, "pears")?;
    /// let names: Vec<_> =
    ///     change.iter(&stock)?.map(|entry| entry.map(|(name, _)| name)).collect::<Result<_, _>>()?;
    /// assert_eq!(names, [b"apples".to_vec(), b"plums".to_vec()]);
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidCall` for a table of another database.
    pub fn range<K: AsRef<[u8]>>(&self, table: &Table, range: impl RangeBounds<K>) -> Result<TransactionRange> {
        self.0.range(table.as_ref(), range).map(TransactionRange)
    }

    /// Scans the keys beginning with `prefix`, as [`Transaction::range`] does.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// let change = db.begin();
    /// change.put(&stock, "apple pies", "7")?;
    /// assert_eq!(change.prefix(&stock, "apple")?.count(), 2);
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Transaction::range`].
    pub fn prefix(&self, table: &Table, prefix: impl AsRef<[u8]>) -> Result<TransactionRange> {
        self.0.prefix(table.as_ref(), prefix).map(TransactionRange)
    }

    /// Notes this moment, so that the writes after it can be undone. See [`db::Transaction::savepoint`].
    ///
    /// # Errors
    /// As [`db::Transaction::savepoint`].
    pub fn savepoint(&self) -> Result<db::Savepoint> {
        self.0.savepoint()
    }

    /// Undoes the writes since a savepoint. See [`db::Transaction::roll_back_to`], and [`db::Savepoint`] for an example.
    ///
    /// # Errors
    /// As [`db::Transaction::roll_back_to`].
    pub fn roll_back_to(&self, savepoint: db::Savepoint) -> Result<()> {
        self.0.roll_back_to(savepoint)
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
    /// let change = db.begin();
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
/// let change = db.begin();
/// change.put(&stock, "plums", "7")?;
/// assert_eq!(change.range(&stock, "p"..)?.count(), 2);
/// # Ok::<(), nofault::error::Error>(())
/// ```
#[derive(Debug)]
pub struct TransactionRange(db::TransactionRange);

impl TransactionRange {
    /// Reverses the scan: from the last key to the first. Call it before the first `next`.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// let change = db.begin();
    /// let last = change.iter(&stock)?.rev().next().transpose()?;
    /// assert_eq!(last, Some((b"pears".to_vec(), b"3".to_vec())));
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    #[must_use]
    pub fn rev(self) -> Self {
        Self(self.0.rev())
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
    /// let change = db.begin();
    /// let first = change.range(&stock, "a"..)?.read_ahead_max(0).next().transpose()?;
    /// assert_eq!(first.map(|(name, _)| name), Some(b"apples".to_vec()));
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    #[must_use]
    pub fn read_ahead_max(self, leaves: usize) -> Self {
        Self(self.0.read_ahead_max(leaves))
    }

    /// Begins behind `key`, which need not exist; the keys before do not count as read. See [`db::TransactionRange::after`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// let change = db.begin();
    /// let mut page = change.prefix(&stock, "")?.after("apples").limit(20);
    /// assert_eq!(page.next().transpose()?, Some((b"pears".to_vec(), b"3".to_vec())));
    /// change.put(&stock, "plums", "7")?;
    /// // Another commit changes a key that the page does not hold.
    /// stock.put("apples", "11")?;
    /// change.commit(nofault::Durability::Sync)?;
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    #[must_use]
    pub fn after(self, key: impl AsRef<[u8]>) -> Self {
        Self(self.0.after(key))
    }

    /// Ends the scan after `entries` more entries. See [`db::TransactionRange::limit`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// let change = db.begin();
    /// change.put(&stock, "nuts", "500")?;
    /// assert_eq!(change.iter(&stock)?.limit(2).count(), 2);
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    #[must_use]
    pub fn limit(self, entries: u64) -> Self {
        Self(self.0.limit(entries))
    }

    /// Returns the time at which the entry expires that was returned last; `None` if it does not.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let offers = db.create_table("offers")?;
    /// use std::time::Duration;
    ///
    /// let tomorrow = db.now() + Duration::from_secs(86_400);
    /// let change = db.begin();
    /// change.put_with_expiry(&offers, "pears", "2", tomorrow)?;
    /// let mut range = change.range::<&str>(&offers, ..)?;
    /// assert!(range.next().is_some() && range.expiry() == Some(tomorrow));
    /// # Ok::<(), nofault::Error>(())
    /// ```
    pub fn expiry(&self) -> Option<SystemTime> {
        self.0.expiry()
    }

    /// Like `next`, but lends the entry instead of giving it away. See [`db::TransactionRange::next_ref`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// let change = db.begin();
    /// change.put(&stock, "plums", "7")?;
    /// let (mut range, mut names) = (change.iter(&stock)?, 0);
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

impl Iterator for TransactionRange {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Result<Entry>> {
        block_on(self.0.next()).transpose()
    }
}
