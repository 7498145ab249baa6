//! Loads a table's entries past the log. An empty table is filled (`bulk`); one that holds entries is rewritten: with the run of entries
//! merged into them, or without a range of them. A short run is an ordinary commit instead, and so is the removal of few entries (`writes`).
//!
//! Right because the entries of the table are read when the load (`bulk`) is the only commit that can change them: the
//! ranges begin when their first entry is asked for.

use std::cell::Cell;

use super::batch::Batch;
use super::table::Table;
use crate::btree::KeyRange;
use crate::db::calls::bulk::{self, BulkEntry, LoadCommit, Present};
use crate::db::calls::loads::{IterEntries, LoadEntry, MergedEntries, SortedEntries, WithFront};
use crate::db::calls::tables::NEWEST;
use crate::db::calls::thread;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{LateFeature, Moment};
use crate::pages::Durability;
use crate::sync::driver::block_on;

/// Most entries of a run that is committed as any other change.
const SHORT_RUN_ENTRIES: usize = 4096;
/// Most bytes of keys and values of such a run.
const SHORT_RUN_BYTES: usize = 4 << 20;
/// A short run takes at most one of so many bytes that a transaction may take for its read set.
const SHORT_RUN_SHARE: usize = 16;

/// Every key.
const ALL: KeyRange = KeyRange { start: Vec::new(), end: None };

#[cfg(test)]
mod tests;

impl Table {
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
        let make_durable = |filled| make_durable(self, filled);
        let (core, trainer) = (&self.db.core, &*self.db.owner.upkeep.trainer);
        core.committer.check_call()?;
        if !block_on(bulk::is_empty(core, self.tree)).map_err(|error| core.tables.explain(self.tree, NEWEST, error))? {
            return load(self, &mut entries, &expires);
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

/// Loads entries into a table that holds some, as [`Table::bulk_load`] documents. Once all were taken, `expires` tells whether
/// any of them expires. Blocks.
pub(in crate::db) fn load(table: &Table, entries: &mut dyn SortedEntries, expires: &Cell<bool>) -> Result<u64> {
    let (core, owner) = (&table.db.core, &table.db.owner);
    let bytes_max = SHORT_RUN_BYTES.min(core.read_set_bytes_max / SHORT_RUN_SHARE);
    let (mut count, mut bytes) = (0, 0);
    let mut entries = WithFront::take(entries, |key, value| {
        count += 1;
        bytes += key.len() + value.len();
        count >= SHORT_RUN_ENTRIES || bytes >= bytes_max
    })?;
    if let Some(run) = entries.all() {
        return commit(table, run);
    }
    let loaded = write_anew(table, &mut entries, expires)?;
    owner.free_dropped();
    Ok(loaded)
}

/// Rewrites a table from its entries and a run, and leaves the content before to be freed. Returns the number
/// of entries in the run. `expires` as for [`load`].
pub(crate) fn write_anew(table: &Table, run: &mut dyn SortedEntries, expires: &Cell<bool>) -> Result<u64> {
    let mut merged = MergedEntries::new(IterEntries::new(entries_of(table, ALL)), run);
    write(table, Present::Replace, &mut merged, expires)?;
    Ok(merged.of_run())
}

/// Removes a range of entries by rewriting the table without them. Returns their number. Blocks.
///
/// # Errors
/// As [`Table::delete_range`].
pub(in crate::db) fn write_without(table: &Table, removed: &KeyRange) -> Result<u64> {
    table.db.core.committer.check_call()?;
    let before = KeyRange { start: Vec::new(), end: Some(removed.start.clone()) };
    let after = removed.end.clone().map(|start| KeyRange { start, end: None });
    let present = if removed.start.is_empty() && after.is_none() { Present::Remove } else { Present::Replace };
    let count = Cell::new(0);
    let counted = std::iter::once_with(|| block_on(table.scan(removed.clone()).count_entries()));
    let counted = counted.filter_map(|found| found.map(|found| count.set(found)).err().map(Err));
    let after = after.into_iter().flat_map(|range| entries_of(table, range));
    // The entries that stay have rows already.
    let mut left = IterEntries::new(entries_of(table, before).chain(counted).chain(after));
    write(table, present, &mut left, &Cell::new(false))?;
    table.db.owner.free_dropped();
    Ok(count.get())
}

fn write(table: &Table, present: Present, entries: &mut dyn SortedEntries, expires: &Cell<bool>) -> Result<u64> {
    table.db.owner.allow(LateFeature::Properties)?;
    bulk::load(&table.db.core, table.tree, present, entries, expires, &|filled| make_durable(table, filled))
}

/// Makes a load durable, unless the database is unfinished. The superblock names the feature of entries that expire before it leads
/// to any. Blocks.
///
/// # Errors
/// As a checkpoint.
pub(in crate::db) fn make_durable(table: &Table, filled: LoadCommit) -> Result<()> {
    let owner = &table.db.owner;
    if filled.expires {
        owner.allow(LateFeature::Expiry)?;
    }
    if table.db.core.waits.is_unfinished() { Ok(()) } else { owner.checkpoint_at(filled.commit) }
}

/// Commits a short run.
fn commit(table: &Table, run: &[LoadEntry<Vec<u8>, Vec<u8>>]) -> Result<u64> {
    if run.windows(2).any(|two| two[0].0 >= two[1].0) {
        return Err(Error::new(ErrorKind::InvalidCall, "bulk load: a key is not above the key before it"));
    }
    let mut batch = Batch::new();
    run.iter().for_each(|(key, value, expiry)| _ = batch.put_until(table, key, value, *expiry));
    block_on(table.db.write(batch, Durability::Sync))?;
    Ok(run.len() as u64)
}

/// The entries of a table in a range, as of the moment when the first is asked for.
fn entries_of(table: &Table, range: KeyRange) -> impl Iterator<Item = Result<LoadEntry<Vec<u8>, Vec<u8>>>> {
    let mut scan = None;
    std::iter::from_fn(move || {
        let scan = scan.get_or_insert_with(|| table.scan(range.clone()));
        let entry = scan.take().map_or_else(|| block_on(scan.next()).transpose(), |entry| Some(Ok(entry)))?;
        let expiry = scan.expiry().map_or(Moment::NEVER, Moment::at_or_after);
        Some(entry.map(|(key, value)| (key, value, expiry)))
    })
}
