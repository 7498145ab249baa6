//! The reads of the three views of a table's bytes: its newest state ([`Table`]), a [`Snapshot`], and a [`Transaction`], in which what is read
//! counts as read. A call of one kind stands in each of them.

use std::ops::RangeBounds;
use std::sync::Arc;
use std::time::SystemTime;

use super::snapshot::{Range, Snapshot};
use super::table::Table;
use super::transaction_handle::{Transaction, TransactionRange};
use crate::btree::{Direction, KeyRange};
use crate::db::calls::bounds::{range_of, range_of_prefix};
use crate::db::calls::many::{get_many, get_many_at};
use crate::db::calls::reader::GetResult;
use crate::db::calls::wait::Call;
use crate::error::Result;
use crate::format::Moment;
use crate::pages::{Snapshot as _, Store as _};

impl Table {
    /// Returns the newest visible value of a key. Reads at most one page for each level of the tree; all levels but the
    /// last are nearly always in memory.
    ///
    /// # Errors
    /// `Corrupt` when a page fails its checksum (the page is named); `Io` when the disk fails the read.
    pub async fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        self.look(key.as_ref()).finish().await
    }

    /// Whether a key has a value in the newest visible commit. As [`Table::get`], but the value is not copied, and pages of
    /// a long value are not read.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub async fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        self.look_for(key.as_ref()).finish().await
    }

    /// Reads many keys in one snapshot; the values come in the order of `keys`. Missing pages are read side by side, up
    /// to [`crate::settings::Settings::reads_in_flight_max`] at a time, while further keys are looked up. Dropping the
    /// future is safe: reads already started still fill the pool.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub async fn get_many(&self, keys: &[impl AsRef<[u8]>]) -> Result<Vec<Option<Vec<u8>>>> {
        get_many(&self.db.core.reader, self.tree, keys).await
    }

    /// Calls `look` with the value of a key where it lies in memory, without copying it, or with `None` when the key is
    /// absent. Returns the result of `look`.
    ///
    /// While `look` runs, no database of the process reuses the memory of replaced pages: `look` should be short, and
    /// must not wait for anything.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub async fn get_with<R>(&self, key: impl AsRef<[u8]>, look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        self.look_with(key.as_ref(), look).finish().await
    }

    /// Returns the time at which a key expires; `None` when it is absent or does not expire.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub async fn expiry(&self, key: impl AsRef<[u8]>) -> Result<Option<SystemTime>> {
        Ok(self.db.core.reader.expiry(self.tree, key.as_ref()).await?.and_then(Moment::to_expiry))
    }

    /// Walks all keys, as they are now: later changes are not seen.
    pub fn iter(&self) -> Range {
        self.range::<&[u8]>(..)
    }

    /// Walks the keys in `range`, as they are now: later changes are not seen.
    pub fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Range {
        self.scan(range_of(&range))
    }

    /// Walks the keys beginning with `prefix`, as they are now.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Range {
        self.scan(range_of_prefix(prefix.as_ref()))
    }

    /// Returns the entry with the first key, as it is now.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub async fn first(&self) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        self.range::<&[u8]>(..).read_ahead_max(0).next().await
    }

    /// Returns the entry with the last key, as it is now.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub async fn last(&self) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        self.range::<&[u8]>(..).rev().read_ahead_max(0).next().await
    }

    /// Returns the exact number of entries at one moment. Counts them: reads every leaf of the table, and no values that
    /// lie outside of the leaves.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub async fn len(&self) -> Result<u64> {
        self.range::<&[u8]>(..).count_entries().await
    }

    /// Returns whether the table has no entry.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub async fn is_empty(&self) -> Result<bool> {
        Ok(self.first().await?.is_none())
    }

    /// Estimates the number of entries in `range` from a sample of its pages: at most 128 of each level of the tree, which
    /// are read side by side where they are not in memory. Exact where the range lies in no more leaves than that.
    /// Otherwise it is right within some 4 % as a rule (the standard deviation), in whatever order the entries were written
    /// and removed, and within a quarter practically always. Where neighbouring leaves hold very different numbers of
    /// entries, in no order, the standard deviation is an eighth of theirs for each level that is sampled. Entries count
    /// that have expired and were not removed yet. [`Table::len`] counts.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub async fn approximate_len<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<u64> {
        let range = range_of(&range);
        Ok(self.db.core.reader.estimate(self.tree, &range).await?.entries.round() as u64)
    }

    /// Estimates the bytes of the leaves that hold `range`, as [`Table::approximate_len`] estimates the entries; of a leaf at
    /// either end the share that its entries in the range have. Values that lie outside of the leaves, and compression, are left out.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub async fn approximate_bytes<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<u64> {
        let range = range_of(&range);
        let leaves = self.db.core.reader.estimate(self.tree, &range).await?.leaves;
        Ok((leaves * self.db.page_bytes() as f64).round() as u64)
    }

    pub(in crate::db) fn scan(&self, range: KeyRange) -> Range {
        Range::new(&self.db, Arc::new(self.db.core.store.snapshot()), self.tree, range)
    }

    /// Looks up the newest visible value of a key.
    #[inline]
    pub(crate) fn look(&self, key: &[u8]) -> Call<GetResult, impl Future<Output = GetResult>> {
        self.db.core.reader.get(self.tree, key)
    }

    /// Looks up whether a key has a newest visible value.
    #[inline]
    pub(crate) fn look_for(&self, key: &[u8]) -> Call<Result<bool>, impl Future<Output = Result<bool>>> {
        self.db.core.reader.contains(self.tree, key)
    }

    /// Shows the newest visible value of a key to `look`.
    #[inline]
    pub(crate) fn look_with<R>(
        &self,
        key: &[u8],
        look: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Call<Result<R>, impl Future<Output = Result<R>>> {
        self.db.core.reader.get_with(self.tree, key, look)
    }
}

impl Snapshot {
    /// The value of a key as of this snapshot.
    ///
    /// # Errors
    /// As [`Table::get`]; `SnapshotTooOld` when the pool invalidated the snapshot; `InvalidCall` for a table of another database.
    pub async fn get(&self, table: &Table, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        self.db.core.reader.get_at(&self.pages, self.db.tree_of(table)?, key.as_ref()).await
    }

    /// Returns whether a key has a value as of this snapshot. See [`Table::contains_key`].
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub async fn contains_key(&self, table: &Table, key: impl AsRef<[u8]>) -> Result<bool> {
        self.db.core.reader.contains_at(&self.pages, self.db.tree_of(table)?, key.as_ref()).await
    }

    /// Returns the time at which a key expires, as of this snapshot; `None` when it is absent or does not expire.
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub async fn expiry(&self, table: &Table, key: impl AsRef<[u8]>) -> Result<Option<SystemTime>> {
        let found = self.db.core.reader.expiry_at(&self.pages, self.db.tree_of(table)?, key.as_ref()).await?;
        Ok(found.filter(|expiry| *expiry > self.pages.moment()).and_then(Moment::to_expiry))
    }

    /// Reads many keys as of this snapshot. See [`Table::get_many`].
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub async fn get_many(&self, table: &Table, keys: &[impl AsRef<[u8]>]) -> Result<Vec<Option<Vec<u8>>>> {
        get_many_at(&self.db.core.reader, &self.pages, self.db.tree_of(table)?, keys).await
    }

    /// Calls `look` with the value of a key as of this snapshot, without copying it unless it is long. See
    /// [`Table::get_with`].
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub async fn get_with<R>(
        &self,
        table: &Table,
        key: impl AsRef<[u8]>,
        look: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R> {
        self.db.core.reader.get_with_at(&self.pages, self.db.tree_of(table)?, key.as_ref(), look).await
    }

    /// Walks all keys of a table as of this snapshot.
    ///
    /// # Errors
    /// `InvalidCall` for a table of another database.
    pub fn iter(&self, table: &Table) -> Result<Range> {
        self.range::<&[u8]>(table, ..)
    }

    /// Walks the keys in `range` as of this snapshot.
    ///
    /// # Errors
    /// `InvalidCall` for a table of another database.
    pub fn range<K: AsRef<[u8]>>(&self, table: &Table, range: impl RangeBounds<K>) -> Result<Range> {
        self.scan(table, range_of(&range))
    }

    /// Walks the keys beginning with `prefix` as of this snapshot.
    ///
    /// # Errors
    /// `InvalidCall` for a table of another database.
    pub fn prefix(&self, table: &Table, prefix: impl AsRef<[u8]>) -> Result<Range> {
        self.scan(table, range_of_prefix(prefix.as_ref()))
    }

    /// Returns the exact number of entries of a table as of this snapshot. See [`Table::len`].
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub async fn len(&self, table: &Table) -> Result<u64> {
        self.range::<&[u8]>(table, ..)?.count_entries().await
    }

    pub(in crate::db) fn scan(&self, table: &Table, range: KeyRange) -> Result<Range> {
        Ok(Range::new(&self.db, self.pages.clone(), self.db.tree_of(table)?, range))
    }
}

impl Transaction {
    /// Returns the value of a key, which then counts as read. A key is remembered once, however often it is read.
    ///
    /// # Errors
    /// `TransactionTooLarge` when the keys and ranges that the transaction has read, with some 64 bytes each, would
    /// take more memory than an eighth of `cache_bytes`: the transaction continues without this read. `InvalidCall` when
    /// the transaction was committed, which can happen to a handle that is kept beyond the end of `transact`. Otherwise
    /// as [`Snapshot::get`](crate::db::Snapshot::get).
    pub async fn get(&self, table: &Table, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        self.inner.get(self.db.tree_of(table)?, key.as_ref()).await
    }

    /// Whether a key has a value. The key then counts as read.
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub async fn contains_key(&self, table: &Table, key: impl AsRef<[u8]>) -> Result<bool> {
        self.inner.contains(self.db.tree_of(table)?, key.as_ref()).await
    }

    /// Returns the time at which a key expires; `None` when it is absent or does not expire. The key then counts as read.
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub async fn expiry(&self, table: &Table, key: impl AsRef<[u8]>) -> Result<Option<SystemTime>> {
        Ok(self.inner.expiry(self.db.tree_of(table)?, key.as_ref()).await?.and_then(Moment::to_expiry))
    }

    /// Reads many keys, which then count as read; the values come in the order of `keys`. Missing pages are read side
    /// by side: see [`Table::get_many`].
    ///
    /// # Errors
    /// As [`Transaction::get`]. After `TransactionTooLarge` some of the keys count as read.
    pub async fn get_many(&self, table: &Table, keys: &[impl AsRef<[u8]>]) -> Result<Vec<Option<Vec<u8>>>> {
        self.inner.get_many(self.db.tree_of(table)?, keys).await
    }

    /// Calls `look` with the value of a key, or with `None` when it is absent, and returns the result of `look`. A value
    /// that the transaction has not set itself is not copied, unless it is long. The key then counts as read. See
    /// [`Table::get_with`].
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub async fn get_with<R>(
        &self,
        table: &Table,
        key: impl AsRef<[u8]>,
        look: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R> {
        self.inner.get_with(self.db.tree_of(table)?, key.as_ref(), look).await
    }

    /// Scans all keys of a table, as [`Transaction::range`] does.
    ///
    /// # Errors
    /// As [`Transaction::range`].
    pub fn iter(&self, table: &Table) -> Result<TransactionRange> {
        self.range::<&[u8]>(table, ..)
    }

    /// Scans the keys in `range`. The part that was scanned counts as read, the absence of keys included; it is
    /// remembered as one range, and ranges that touch as one. The scan shows the transaction's own writes as they are
    /// when it reaches their keys: writes made during the scan are seen if they are ahead of its position, and not if
    /// they are behind it.
    ///
    /// # Errors
    /// `InvalidCall` for a table of another database. `TransactionTooLarge` as [`Transaction::get`].
    pub fn range<K: AsRef<[u8]>>(&self, table: &Table, range: impl RangeBounds<K>) -> Result<TransactionRange> {
        self.scan(table, range_of(&range))
    }

    /// Scans the keys beginning with `prefix`, as [`Transaction::range`] does.
    ///
    /// # Errors
    /// As [`Transaction::range`].
    pub fn prefix(&self, table: &Table, prefix: impl AsRef<[u8]>) -> Result<TransactionRange> {
        self.scan(table, range_of_prefix(prefix.as_ref()))
    }

    pub(in crate::db) fn scan(&self, table: &Table, range: KeyRange) -> Result<TransactionRange> {
        let scan = self.inner.scan(self.db.tree_of(table)?, range, Direction::Forward)?;
        Ok(TransactionRange::new(scan, &self.db))
    }
}
