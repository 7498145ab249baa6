//! [`Transaction`]s and their range scans: the public face of `transaction`.

use std::sync::Arc;
use std::time::SystemTime;

use crate::btree::Direction;
use crate::buffer_pool::BufferPool;
use crate::db::calls::transaction::{SavepointId, TransactionScan, TransactionState};
use crate::db::open::handle::Db;
use crate::error::{Error, ErrorKind, Result};
use crate::pages::Durability;
use crate::wal::Log;

/// A serializable transaction: it reads a snapshot of its beginning and its own writes, and commits only if nothing
/// that it read was changed since. A table created later is empty for it. Dropping it undoes everything.
///
/// Entries that expire are seen as of the moment at which the transaction began. That an entry expires, or is removed
/// afterwards, is no change that it could conflict with.
///
/// All calls but `commit` take `&self`, so several reads of one transaction may wait for the disk side by side.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), nofault::error::Error> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # let db = nofault::Db::create(folder.path().join("shop"), &settings).await?;
/// # let stock = db.create_table("stock").await?;
/// # stock.put("apples", "12").await?;
/// # stock.put("pears", "3").await?;
/// use nofault::{Durability, error::ErrorKind};
///
/// let change = db.begin();
/// let (apples, pears) = tokio::try_join!(change.get(&stock, "apples"), change.get(&stock, "pears"))?;
/// assert_eq!((apples.as_deref(), pears.as_deref()), (Some(&b"12"[..]), Some(&b"3"[..])));
/// change.put(&stock, "plums", apples.unwrap_or_default())?;
/// change.delete(&stock, "apples")?;
/// assert_eq!(change.get_many(&stock, &["apples", "pears"]).await?, [None, Some(b"3".to_vec())]);
/// assert_eq!(change.get_with(&stock, "plums", |count| count.map(<[u8]>::len)).await?, Some(2));
/// assert_eq!(change.iter(&stock)?.rev().next().await?, Some((b"plums".to_vec(), b"12".to_vec())));
/// assert!(change.prefix(&stock, "app")?.next().await?.is_none());
///
/// // Another commit changes data that it read: it must run again, which `Db::transact` does by itself.
/// stock.put("apples", "11").await?;
/// let error = change.commit(Durability::Sync).await.unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::Conflict);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Transaction {
    pub(in crate::db) db: Db,
    pub(in crate::db) inner: Arc<TransactionState<BufferPool, Log>>,
    /// Whether `transact` commits the transaction, and not the owner of this handle.
    is_lent: bool,
}

impl Transaction {
    pub(in crate::db) fn new(db: &Db, inner: Arc<TransactionState<BufferPool, Log>>) -> Self {
        Self { db: db.clone(), inner, is_lent: false }
    }

    /// Returns a handle for the closure of `transact`, through which the transaction cannot be committed.
    pub(in crate::db) fn lent(&self) -> Self {
        Self { db: self.db.clone(), inner: self.inner.clone(), is_lent: true }
    }

    /// The database of the transaction.
    pub fn db(&self) -> &Db {
        &self.db
    }

    /// Notes this moment, so that the writes after it can be undone while the writes before it stay. From the first
    /// savepoint on the transaction keeps each write that another replaces, in extra memory.
    ///
    /// # Errors
    /// `InvalidCall` when the transaction was committed.
    pub fn savepoint(&self) -> Result<Savepoint> {
        self.inner.savepoint().map(Savepoint)
    }

    /// Undoes the writes since a savepoint, which stands and can be gone back to again; later ones do not. What was read
    /// stays read, so the commit may conflict over it. Takes as long as the writes that it undoes took.
    ///
    /// # Errors
    /// `InvalidCall` when the savepoint is another transaction's, or the transaction has gone back to an earlier one
    /// since; when the transaction was committed.
    pub fn roll_back_to(&self, savepoint: Savepoint) -> Result<()> {
        self.inner.roll_back_to(savepoint.0)
    }

    /// Commits the transaction: all of it or nothing, also when the future is dropped (see
    /// [Dropped futures](Db#dropped-futures)).
    ///
    /// # Errors
    /// `Conflict` when another commit changed data that it read: nothing was written, run it again after
    /// [`Db::after_conflict`]. `InvalidCall` for the transaction of [`Db::transact`], which commits it by itself; nothing
    /// was written. Otherwise as [`Db::write`].
    pub async fn commit(self, durability: Durability) -> Result<()> {
        if self.is_lent {
            let what = "transact commits its transaction when the closure returns Ok: the closure must not do so";
            return Err(Error::new(ErrorKind::InvalidCall, what));
        }
        Ok(self.inner.commit(durability).await?)
    }
}

/// A moment of a transaction, to which [`Transaction::roll_back_to`] goes back.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
/// # let stock = db.create_table("stock")?;
/// db.transact(nofault::Durability::Sync, |change| {
///     change.put(&stock, "apples", "12")?;
///     let without_pears = change.savepoint()?;
///     change.put(&stock, "pears", "3")?;
///     change.roll_back_to(without_pears)?;
///     change.put(&stock, "plums", "7")
/// })?;
/// assert_eq!(stock.get_many(&["apples", "pears", "plums"])?, [Some(b"12".to_vec()), None, Some(b"7".to_vec())]);
/// # Ok::<(), nofault::error::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Savepoint(SavepointId);

/// A scan of keys in order, as a transaction sees them.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), nofault::error::Error> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # let db = nofault::Db::create(folder.path().join("shop"), &settings).await?;
/// # let stock = db.create_table("stock").await?;
/// # stock.put("apples", "12").await?;
/// # stock.put("pears", "3").await?;
/// let change = db.begin();
/// change.put(&stock, "plums", "7")?;
/// let mut range = change.range(&stock, "b"..)?;
/// assert_eq!(range.next().await?, Some((b"pears".to_vec(), b"3".to_vec())));
/// // The transaction may write while it scans.
/// change.put(&stock, "plums", "8")?;
/// assert_eq!(range.next_ref().await?, Some((&b"plums"[..], &b"8"[..])));
/// // A page: only what it holds counts as read.
/// let mut page = change.prefix(&stock, "")?.after("apples").limit(1);
/// assert_eq!(page.next().await?, Some((b"pears".to_vec(), b"3".to_vec())));
/// assert!(page.next().await?.is_none());
/// # Ok(())
/// # }
/// ```
pub struct TransactionRange {
    scan: TransactionScan<BufferPool, Log>,
    /// Keeps the database open.
    _db: Db,
}

impl TransactionRange {
    pub(in crate::db) fn new(scan: TransactionScan<BufferPool, Log>, db: &Db) -> Self {
        Self { scan, _db: db.clone() }
    }

    /// Reverses the scan: from the last key to the first. Call it before the first `next`.
    #[must_use]
    pub fn rev(mut self) -> Self {
        self.scan.set_direction(Direction::Reverse);
        self
    }

    /// Limits the number of leaves requested ahead. See
    /// [`Range::read_ahead_max`](crate::db::Range::read_ahead_max).
    #[must_use]
    pub fn read_ahead_max(mut self, leaves: usize) -> Self {
        self.scan.set_read_ahead_max(leaves);
        self
    }

    /// Begins behind `key`, which need not exist. The keys before do not count as read. Call it before the first `next`, and after
    /// [`TransactionRange::rev`]. See [`Range::after`](crate::db::Range::after).
    #[must_use]
    pub fn after(mut self, key: impl AsRef<[u8]>) -> Self {
        self.scan.skip_to_after(key.as_ref());
        self
    }

    /// Ends the scan after `entries` more entries. Of what lies behind them the next entry, at most, counts as read.
    #[must_use]
    pub fn limit(mut self, entries: u64) -> Self {
        self.scan.set_limit(entries);
        self
    }

    /// Returns the time at which the entry expires that was returned last; `None` if it does not.
    pub fn expiry(&self) -> Option<SystemTime> {
        self.scan.expiry().to_expiry()
    }

    /// The next key and its value; `None` at the end. Dropping the future loses no entry.
    ///
    /// # Errors
    /// As [`Transaction::get`]. A range returns an error once, and then `None`.
    pub async fn next(&mut self) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        self.scan.next().await
    }

    /// Like [`TransactionRange::next`], but lends the entry instead of giving it away, as
    /// [`Range::next_ref`](crate::db::Range::next_ref) does.
    ///
    /// # Errors
    /// As [`TransactionRange::next`].
    pub async fn next_ref(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        self.scan.next_ref().await
    }
}

impl std::fmt::Debug for TransactionRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TransactionRange").finish_non_exhaustive()
    }
}
