//! [`Snapshot`]s, and the range scans that they and tables give out.

use std::sync::Arc;
use std::time::SystemTime;

use super::table::Table;
use crate::btree::{Direction, FoundValue, KeyRange, Tree};
use crate::buffer_pool::{self, BufferPool};
use crate::codec::Compression;
use crate::db::calls::catalog::TableList;
use crate::db::calls::scan::{Entry, Scan};
use crate::db::calls::tables::in_catalog;
use crate::db::open::handle::Db;
use crate::db::open::owner::OwnerHandle;
use crate::error::{Error, ErrorKind, Result};
use crate::format::CommitSeq;
use crate::pages::Snapshot as _;
use crate::transaction::{CATALOG, table_and_compression, table_of};

/// The database as it was at one moment. Cloning shares it. While one lives, old versions of changed pages are kept for it;
/// see [`Db::readers`]. A table created later is empty in it. Entries that expire are seen as of the moment at which it was
/// taken: those that had not expired then stay visible in it.
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
/// let before = db.snapshot();
/// stock.put("apples", "11").await?;
/// assert!(db.snapshot().commit() > before.commit());
/// assert_eq!(before.get(&stock, "apples").await?, Some(b"12".to_vec()));
/// assert_eq!(before.get_many(&stock, &["plums", "pears"]).await?, [None, Some(b"3".to_vec())]);
/// assert!(before.prefix(&stock, "p")?.next().await?.is_some());
/// let names = before.table("stock").await?;
/// let mut range = before.iter(&names)?.rev();
/// assert_eq!(range.next().await?, Some((b"pears".to_vec(), b"3".to_vec())));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Snapshot {
    pub(in crate::db) db: Db,
    pub(in crate::db) pages: Arc<buffer_pool::Snapshot>,
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Snapshot(commit {})", self.commit())
    }
}

impl Db {
    /// Begins a read-only transaction over all tables: the same as [`Db::snapshot`], by the name that other databases have for
    /// it. Reads of different tables see one state; nothing has to be ended but by dropping it. No I/O.
    #[doc(alias = "read_txn")]
    pub fn begin_read(&self) -> Snapshot {
        self.snapshot()
    }
}

impl Snapshot {
    /// Returns the number of the newest commit in this snapshot.
    pub fn commit(&self) -> CommitSeq {
        self.pages.seq()
    }

    /// The names of all tables in this snapshot, sorted.
    ///
    /// # Errors
    /// As [`Db::table_names`].
    pub async fn table_names(&self) -> Result<Vec<String>> {
        let TableList { names, damage } = self.db.core.catalog.list(&self.pages).await?;
        damage.into_iter().next().map_or(Ok(names), Err)
    }

    /// Opens a table by its name, as of this snapshot: also a table dropped since.
    ///
    /// # Errors
    /// `NotFound` when there was none; as [`Snapshot::get`].
    pub async fn table(&self, name: &str) -> Result<Table> {
        if let Some(answer) = self.db.core.tables.fixed_table(name.as_bytes()) {
            return Ok(Table { db: self.db.clone(), tree: answer?, name: name.into() });
        }
        let found = self.db.core.reader.get_at(&self.pages, CATALOG, name.as_bytes()).await.map_err(in_catalog)?;
        let missing = || Error::new(ErrorKind::NotFound, format!("there is no table {name:?} in this snapshot"));
        let tree = table_of(name.as_bytes(), &FoundValue::Inline(found.ok_or_else(missing)?))?;
        Ok(Table { db: self.db.clone(), tree, name: name.into() })
    }

    /// Returns the compression that a table has in this snapshot; none for a table that it does not have.
    ///
    /// # Errors
    /// `Corrupt` or `Io` when the catalog cannot be read.
    pub async fn compression(&self, name: &str) -> Result<Compression> {
        let found = self.db.core.reader.get_at(&self.pages, CATALOG, name.as_bytes()).await.map_err(in_catalog)?;
        let found =
            found.map(|entry| table_and_compression(name.as_bytes(), &FoundValue::Inline(entry))).transpose()?;
        Ok(found.map_or(Compression::None, |(_, compression)| compression))
    }
}

/// A scan of keys in order. Later leaves are read ahead; memory stays small for a range of any length.
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
/// // From the last to the first, shown where they lie.
/// let (mut range, mut bytes) = (stock.iter().rev(), 0);
/// while let Some((name, count)) = range.next_ref().await? {
///     bytes += name.len() + count.len();
/// }
/// assert_eq!(bytes, 14);
/// // Given away; and only one is wanted, so none behind it is read.
/// let mut range = stock.range("b"..).read_ahead_max(0);
/// assert_eq!(range.next().await?, Some((b"pears".to_vec(), b"3".to_vec())));
/// // Page by page.
/// let page = stock.prefix("").after("apples").limit(20).next_batch(20).await?;
/// assert_eq!(page, [(b"pears".to_vec(), b"3".to_vec())]);
/// # Ok(())
/// # }
/// ```
pub struct Range {
    scan: Scan<BufferPool>,
    _owner: OwnerHandle,
}

impl std::fmt::Debug for Range {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Range").finish_non_exhaustive()
    }
}

impl Range {
    pub(in crate::db) fn new(db: &Db, snapshot: Arc<buffer_pool::Snapshot>, tree: Tree, range: KeyRange) -> Self {
        let scan = Scan::new(db.core.reader.clone(), snapshot, tree, range, Direction::Forward);
        Self { scan, _owner: db.owner.clone() }
    }

    /// Reverses the scan: from the last key to the first. Call it before the first `next`.
    #[must_use]
    pub fn rev(mut self) -> Self {
        self.scan.set_direction(Direction::Reverse);
        self
    }

    /// Limits the number of leaves requested ahead; without a limit, as many as keep the device busy. 0 reads
    /// each leaf when the scan reaches it: for a scan that will end soon, or one that must not delay other reads.
    #[must_use]
    pub fn read_ahead_max(mut self, leaves: usize) -> Self {
        self.scan.set_read_ahead_max(leaves);
        self
    }

    /// Begins behind `key`, which need not exist: a scan that ended at `key` continues there, in this or another snapshot.
    /// Call it before the first `next`, and after [`Range::rev`]: a reversed scan begins below `key`.
    #[must_use]
    pub fn after(mut self, key: impl AsRef<[u8]>) -> Self {
        self.scan.skip_to_after(key.as_ref());
        self
    }

    /// Ends the scan after `entries` more entries.
    #[must_use]
    pub fn limit(mut self, entries: u64) -> Self {
        self.scan.set_limit(entries);
        self
    }

    /// Returns the next entries at hand, `entries_max` at the most; none at the end. Waits only when there is
    /// none. One call for many entries is faster than one for each.
    ///
    /// # Errors
    /// As [`Range::next`].
    pub async fn next_batch(&mut self, entries_max: usize) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        self.scan.next_batch(entries_max).await
    }

    /// Leaves the values of a scan out that has not begun: all values are empty.
    pub(in crate::db) fn keys_only(mut self) -> Self {
        self.scan.set_keys_only();
        self
    }

    /// Counts the entries of a scan that has not begun, without their values.
    pub(in crate::db) async fn count_entries(self) -> Result<u64> {
        self.keys_only().scan.count().await
    }

    /// Returns a scan of the entries to come in the other direction.
    pub(crate) fn reversed(&self) -> Self {
        Self { scan: self.scan.reversed(), _owner: self._owner.clone() }
    }

    /// Returns the time at which the entry expires that was returned last, of a batch the last entry; `None` if it does not.
    pub fn expiry(&self) -> Option<SystemTime> {
        self.scan.expiry().to_expiry()
    }

    /// Takes one entry off the limit, for a scan from the other end. Returns false when none is left.
    pub(crate) fn spend_limit(&mut self) -> bool {
        self.scan.spend_limit()
    }

    /// The next key and its value; `None` at the end. Dropping the future loses no entry.
    ///
    /// # Errors
    /// As [`Snapshot::get`]. A range returns an error once, and then `None`.
    pub async fn next(&mut self) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        self.scan.next().await
    }

    /// Like [`Range::next`], but lends the entry from the scan's own memory instead of giving it away: this saves an
    /// allocation and a copy. The entry stays valid until the next call.
    ///
    /// # Errors
    /// As [`Range::next`].
    pub async fn next_ref(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        self.scan.make_ready().await?;
        Ok(self.scan.show())
    }

    /// The next key and its value, if no page is missing for them. A blocking call asks for this first,
    /// because a future would cost as much as the entry.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<Entry> {
        self.scan.take()
    }

    /// Returns whether the next entry can be lent without waiting.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        self.scan.is_ready()
    }

    /// Lends the next entry, if it is ready.
    #[inline]
    pub(crate) fn show(&mut self) -> Option<(&[u8], &[u8])> {
        self.scan.show()
    }
}
