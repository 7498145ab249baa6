//! Tables: the calls on one ordered map of a database.

use std::cell::Cell;
use std::ops::RangeBounds;
use std::sync::Arc;
use std::time::SystemTime;

use super::bounds::{range_of, range_of_prefix};
use super::bulk::{BulkEntry, Present};
use super::load_entries::{IterEntries, LoadEntry, SortedEntries};
use super::many::get_many;
use super::reader::GetResult;
use super::tables::NEWEST;
use super::views::Range;
use super::wait::Call;
use super::{Batch, Db, bulk, merged_load, read_modify_write, thread};
use crate::btree::{KeyRange, Tree};
use crate::driver::block_on;
use crate::error::{Error, ErrorKind, Result};
use crate::format::Moment;
use crate::pages::{Durability, Store as _};
use crate::transaction::Op;

/// A table: an ordered map from keys to values. Cheap to clone.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), nofault::error::Error> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # let db = nofault::Db::create(folder.path().join("shop"), &settings).await?;
/// # let stock = db.create_table("stock").await?;
/// assert_eq!(stock.bulk_load([("apples", "12"), ("pears", "3")]).await?, 2);
/// stock.put("plums", "7").await?;
/// stock.delete("pears").await?;
/// assert_eq!(stock.get("plums").await?, Some(b"7".to_vec()));
/// assert!(stock.contains_key("plums").await? && !stock.contains_key("pears").await?);
/// assert_eq!(stock.get_many(&["pears", "apples"]).await?, [None, Some(b"12".to_vec())]);
/// assert_eq!(stock.get_with("apples", |count| count.map_or(0, <[u8]>::len)).await?, 2);
///
/// let mut range = stock.range("b"..);
/// assert_eq!(range.next().await?, Some((b"plums".to_vec(), b"7".to_vec())));
/// assert!(range.next().await?.is_none());
/// assert!(stock.prefix("app").next().await?.is_some() && stock.iter().next().await?.is_some());
///
/// // Read and written in one transaction.
/// let one_more = |count: Option<&[u8]>| Some([count.unwrap_or_default(), b"0"].concat());
/// assert_eq!(stock.update("plums", one_more).await?, Some(b"70".to_vec()));
/// assert_eq!(stock.get_or_insert_with("nuts", || b"500".to_vec()).await?, b"500");
/// assert_eq!((stock.len().await?, stock.is_empty().await?), (3, false));
/// assert_eq!((stock.approximate_len("b"..).await?, stock.approximate_bytes("b"..).await?), (2, 2731));
/// assert_eq!(stock.last().await?, Some((b"plums".to_vec(), b"70".to_vec())));
/// assert_eq!(stock.pop_first().await?, Some((b"apples".to_vec(), b"12".to_vec())));
/// assert_eq!(stock.first().await?, Some((b"nuts".to_vec(), b"500".to_vec())));
/// assert_eq!((stock.delete_range("o"..).await?, stock.clear().await?), (1, 1));
/// assert_eq!((stock.name(), stock.db().page_bytes()), ("stock", 4096));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Table {
    pub(super) db: Db,
    pub(super) tree: Tree,
    pub(super) name: Arc<str>,
}

impl Table {
    /// The name of the table when this handle was opened: see [`Db::rename_table`].
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The database that the table belongs to.
    pub fn db(&self) -> &Db {
        &self.db
    }

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

    /// Sets the value of a key. Durable when it returns; concurrent calls share one write of the log. When the future is
    /// dropped before, the key may be set or not (see [Dropped futures](Db#dropped-futures)).
    ///
    /// # Errors
    /// As [`Db::write`].
    pub async fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        let (key, value) = (key.as_ref().to_vec(), value.as_ref().to_vec());
        self.db.core.committer.commit_op(Op::Put { tree: self.tree, key, value, expiry: Moment::NEVER }).await
    }

    /// Sets the value of a key until `expiry`: from then on the key is absent for every read that begins, by the clock of
    /// [`Settings::clock`](crate::settings::Settings::clock), and some time later the database removes it. Durable when it
    /// returns. A snapshot or transaction that began before continues to see it.
    ///
    /// The time is kept in milliseconds, rounded up. A `put` of the same key, also one of the same value, makes the entry
    /// last; [`Table::update`] leaves the time as it is. The key may have 16 bytes fewer than others.
    ///
    /// The first call in the life of a database costs a checkpoint: from then on builds that do not know entries that expire
    /// refuse the database. Each call writes a row of some 40 bytes and the key to an index next to the table, by which the
    /// entry is found when it has expired: at the latest when an eighth of the time for which it was put has passed once
    /// more. With [`CompactionMode::Manual`](crate::settings::CompactionMode::Manual) [`Db::remove_expired`] removes it.
    ///
    /// Until then it takes space, and ranges come across it. The first that meets a leaf of which all entries have expired
    /// looks at each of them; later ones pass that leaf in some ten nanoseconds, as long as it stays in memory, and read it
    /// where it does not. Removal takes a tenth of the time of a thread in a database in use, and up to half of it while more
    /// expires than is removed.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), nofault::error::Error> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::Db::create(folder.path().join("shop"), &settings).await?;
    /// # let sessions = db.create_table("sessions").await?;
    /// use std::time::Duration;
    ///
    /// sessions.put_with_expiry("ann", "token", db.now() + Duration::from_secs(1800)).await?;
    /// assert!(sessions.contains_key("ann").await?);
    /// assert!(sessions.expiry("ann").await?.is_some_and(|expiry| expiry > db.now()));
    ///
    /// sessions.put("ann", "token").await?;
    /// assert_eq!(sessions.expiry("ann").await?, None, "it lasts now");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Db::write`].
    pub async fn put_with_expiry(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        expiry: SystemTime,
    ) -> Result<()> {
        let mut batch = Batch::new();
        batch.put_with_expiry(self, key, value, expiry);
        self.db.write(batch, Durability::Sync).await
    }

    /// Returns the time at which a key expires; `None` when it is absent or does not expire.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub async fn expiry(&self, key: impl AsRef<[u8]>) -> Result<Option<SystemTime>> {
        Ok(self.db.core.reader.expiry(self.tree, key.as_ref()).await?.and_then(Moment::to_expiry))
    }

    /// Removes a key; nothing happens if it is not there. Durable when it returns.
    ///
    /// # Errors
    /// As [`Db::write`].
    pub async fn delete(&self, key: impl AsRef<[u8]>) -> Result<()> {
        self.db.core.committer.commit_op(Op::Delete { tree: self.tree, key: key.as_ref().to_vec() }).await
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

    /// Removes the entry with the first key and returns it. Durable when it returns. Runs as a transaction, so of
    /// several callers each gets another entry.
    ///
    /// # Errors
    /// As [`Db::transact`].
    pub async fn pop_first(&self) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        read_modify_write::pop_first(self).await
    }

    /// Returns the exact number of entries at one moment. Counts them: reads every leaf of the table, and no values that
    /// lie outside of the leaves.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub async fn len(&self) -> Result<u64> {
        self.range::<&[u8]>(..).count_entries().await
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

    /// Returns whether the table has no entry.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub async fn is_empty(&self) -> Result<bool> {
        Ok(self.first().await?.is_none())
    }

    /// Replaces the value of a key by the result of `change`, which gets the value that the key has, or `None`, and
    /// returns the new value, or `None` to remove the key. Returns that result. The new value expires when the one before
    /// would have. Durable when it returns. Runs as a
    /// transaction, so no update is lost: `change` is called again when another commit changes the key.
    ///
    /// # Errors
    /// As [`Db::transact`].
    pub async fn update(
        &self,
        key: impl AsRef<[u8]>,
        mut change: impl FnMut(Option<&[u8]>) -> Option<Vec<u8>>,
    ) -> Result<Option<Vec<u8>>> {
        read_modify_write::update(self, key.as_ref(), |value| Ok(change(value))).await
    }

    /// Returns the value of a key; where it has none, sets it to the result of `make` first. Durable when it returns. Of
    /// several callers all get the value set by one of them.
    ///
    /// # Errors
    /// As [`Db::transact`].
    pub async fn get_or_insert_with(&self, key: impl AsRef<[u8]>, make: impl FnOnce() -> Vec<u8>) -> Result<Vec<u8>> {
        let (mut make, mut made) = (Some(make), Vec::new());
        let value = self.update(key, |value| {
            if let Some(value) = value {
                return Some(value.to_vec());
            }
            if let Some(make) = make.take() {
                made = make();
            }
            Some(made.clone())
        });
        Ok(value.await?.unwrap_or_default())
    }

    /// Removes all entries in `range`, in one commit, and returns their number. Durable when it returns. Reads the leaves
    /// of the range, and no values outside of them. Keeps the keys in memory until it ends, some 100 bytes each in
    /// addition to their length, up to an eighth of the cache. Where there are more, the table is rewritten without
    /// them: other commits wait until all other entries are written, as for [`Table::bulk_load`] into a table with
    /// entries. There are none when the range is the whole table, so that is fast.
    ///
    /// # Errors
    /// As [`Db::transact`].
    pub async fn delete_range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<u64> {
        let range = range_of(&range);
        read_modify_write::delete_range(self, &range).await
    }

    /// Removes all entries, as [`Table::delete_range`] does, and returns their number.
    ///
    /// # Errors
    /// As [`Table::delete_range`].
    pub async fn clear(&self) -> Result<u64> {
        self.delete_range::<&[u8]>(..).await
    }

    pub(super) fn scan(&self, range: KeyRange) -> Range {
        Range::new(&self.db, Arc::new(self.db.core.store.snapshot()), self.tree, range)
    }

    /// Loads entries in ascending order of their keys, without going through the log: nodes are written full and side by side.
    /// An entry of the table with the same key is replaced. All of the load is one commit: durable, and then visible, when it
    /// returns the number of entries loaded. Other commits wait until then.
    ///
    /// A table that holds entries is rewritten, in the order of keys, from its entries and the load's: this takes as long as reading
    /// and writing the whole table, and the disk space of both contents until the old one has been freed, which a
    /// thread of the database does afterwards. A load of at most 4,096 entries, and of 4 MiB or a 128th of the cache, is an
    /// ordinary commit instead. To add little to a large table, write batches.
    ///
    /// The entries are taken one by one, so an iterator that counts them shows how far the load is.
    ///
    /// An entry is a pair of key and value, or a triple with the time at which it expires, if it does: see [`BulkEntry`]. It
    /// is invisible from that time on, as after [`Table::put_with_expiry`]. What removes expired entries finds a load's by
    /// looking at the keys of the table once more, a few at a time.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), nofault::error::Error> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::Db::create(folder.path().join("shop"), &settings).await?;
    /// # let stock = db.create_table("stock").await?;
    /// let named = |number: u32| (format!("item {number:06}"), "0");
    /// assert_eq!(stock.bulk_load((0..10_000).map(named)).await?, 10_000);
    /// let mut loaded = 0;
    /// let more = (5_000..15_000).map(named).inspect(move |_| {
    ///     loaded += 1;
    ///     if loaded % 5_000 == 0 {
    ///         println!("{loaded} of 10000");
    ///     }
    /// });
    /// assert_eq!(stock.bulk_load(more).await?, 10_000);
    /// assert_eq!(stock.len().await?, 15_000);
    ///
    /// let today = Some(db.now() + std::time::Duration::from_secs(86_400));
    /// let prices = db.create_table("prices").await?;
    /// prices.bulk_load([("apples", "12", today), ("bags", "1", None)]).await?;
    /// assert_eq!(prices.expiry("bags").await?, None);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The work is done on a dedicated thread; dropping the future lets it finish. `entries` may read this database. A write to it from
    /// inside `entries` would wait for the load, and is refused with `InvalidCall`; one that `entries` leaves to another thread or
    /// task, and waits for, is not recognised, and waits for ever.
    ///
    /// # Errors
    /// `InvalidCall` when a key is not above the one before it, or too long (16 bytes less than usual for an entry that
    /// expires), another commit fills the empty table at the same moment, or the cache is so small (a few dozen pages) that it
    /// does not hold the pages of a tree of so many levels; `Io` or
    /// `NoSpace` as the disk says: then the table is as it was, and so it is when `entries` panics. `Poisoned` when it is not known
    /// whether the load is durable: reopen the database.
    pub async fn bulk_load<B, I>(&self, entries: I) -> Result<u64>
    where
        B: BulkEntry<Key: AsRef<[u8]>, Value: AsRef<[u8]>>,
        I: IntoIterator<Item = B> + Send + 'static,
    {
        let table = self.clone();
        thread::run("nofault-load", move || table.load(entries)).await?
    }

    /// Loads entries as [`Table::bulk_load`] does, where reading or making them can fail: the first `Err` ends the load and is
    /// returned, and the table is as it was.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), nofault::error::Error> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::Db::create(folder.path().join("shop"), &settings).await?;
    /// # let stock = db.create_table("stock").await?;
    /// use std::io::BufRead;
    ///
    /// # #[derive(Debug)]
    /// enum Refusal {
    ///     Read(std::io::Error),
    ///     Store(nofault::Error),
    /// }
    /// # impl From<nofault::Error> for Refusal {
    /// #     fn from(error: nofault::Error) -> Self {
    /// #         Self::Store(error)
    /// #     }
    /// # }
    ///
    /// let file = std::io::Cursor::new("apples\npears\nplums\n");
    /// let lines = file.lines().map(|line| line.map(|line| (line, "0")).map_err(Refusal::Read));
    /// assert_eq!(stock.try_bulk_load(lines).await.unwrap(), 3);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The first `Err` of `entries`; or, converted into that type, as [`Table::bulk_load`].
    pub async fn try_bulk_load<B, E, I>(&self, entries: I) -> std::result::Result<u64, E>
    where
        B: BulkEntry<Key: AsRef<[u8]>, Value: AsRef<[u8]>>,
        E: From<Error> + Send + 'static,
        I: IntoIterator<Item = std::result::Result<B, E>> + Send + 'static,
    {
        let table = self.clone();
        thread::run("nofault-load", move || table.try_load(entries)).await?
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

    /// Loads entries, as [`Table::bulk_load`] documents. Blocks.
    pub(crate) fn load<B>(&self, entries: impl IntoIterator<Item = B>) -> Result<u64>
    where
        B: BulkEntry<Key: AsRef<[u8]>, Value: AsRef<[u8]>>,
    {
        self.load_sorted(&mut IterEntries::new(entries.into_iter().map(|entry| Ok(with_moment(entry)))))
    }

    fn load_sorted(&self, entries: &mut dyn SortedEntries) -> Result<u64> {
        let expires = Cell::new(false);
        let mut entries = NewEntries { entries, table: self, expires: &expires };
        self.db.owner.refuse_read_only()?;
        let make_durable = |filled| merged_load::make_durable(self, filled);
        let (core, trainer) = (&self.db.core, self.db.owner.trainer());
        core.committer.check_call()?;
        if !block_on(bulk::is_empty(core, self.tree)).map_err(|error| core.tables.explain(self.tree, NEWEST, error))? {
            return merged_load::load(self, &mut entries, &expires);
        }
        if trainer.is_wanted(self.tree) {
            let mut entries = trainer.train_from(self.tree, &mut entries)?;
            return bulk::load(core, self.tree, Present::Refuse, &mut entries, &expires, &make_durable);
        }
        bulk::load(core, self.tree, Present::Refuse, &mut entries, &expires, &make_durable)
    }

    /// Loads entries, as [`Table::try_bulk_load`] documents. Blocks.
    pub(crate) fn try_load<B, E>(
        &self,
        entries: impl IntoIterator<Item = std::result::Result<B, E>>,
    ) -> std::result::Result<u64, E>
    where
        B: BulkEntry<Key: AsRef<[u8]>, Value: AsRef<[u8]>>,
        E: From<Error>,
    {
        self.try_load_until(entries.into_iter().map(|entry| entry.map(with_moment)))
    }

    /// Loads entries with the moments at which they expire, as [`Table::try_load`] does. Blocks.
    pub(crate) fn try_load_until<K, V, E>(
        &self,
        entries: impl IntoIterator<Item = std::result::Result<LoadEntry<K, V>, E>>,
    ) -> std::result::Result<u64, E>
    where
        K: AsRef<[u8]>,
        V: AsRef<[u8]>,
        E: From<Error>,
    {
        let mut failed = None;
        let mut note = |error| {
            failed = Some(error);
            Error::new(ErrorKind::InvalidCall, "the entries of a bulk load ended with an error")
        };
        let loaded = self.load_sorted(&mut IterEntries::new(entries.into_iter().map(|entry| entry.map_err(&mut note))));
        match failed {
            Some(error) => Err(error),
            None => Ok(loaded?),
        }
    }
}

/// A load's entries, each checked as a new one. Notes in `expires` whether any expires.
struct NewEntries<'e> {
    entries: &'e mut dyn SortedEntries,
    table: &'e Table,
    expires: &'e Cell<bool>,
}

impl SortedEntries for NewEntries<'_> {
    fn advance(&mut self) -> Result<bool> {
        let is_there = self.entries.advance()?;
        if let Some((key, _, expiry)) = self.entry()
            && expiry != Moment::NEVER
        {
            self.table.db.core.expiries.refuse_too_long(key.len())?;
            self.expires.set(true);
        }
        Ok(is_there)
    }

    fn entry(&self) -> Option<LoadEntry<&[u8], &[u8]>> {
        self.entries.entry()
    }
}

fn with_moment<B: BulkEntry>(entry: B) -> LoadEntry<B::Key, B::Value> {
    let (key, value, expiry) = entry.into_parts();
    (key, value, expiry.map_or(Moment::NEVER, Moment::at_or_after))
}

impl AsRef<Self> for Table {
    fn as_ref(&self) -> &Self {
        self
    }
}

/// Returns the error of a call that got a table of another database.
pub(super) fn foreign_table() -> Error {
    Error::new(ErrorKind::InvalidCall, "a table of another database was used here")
}
