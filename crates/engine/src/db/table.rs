//! Tables: the calls on one ordered map of a database.

use std::cell::Cell;
use std::sync::Arc;

use super::bulk::{BulkEntry, Present};
use super::load_entries::{IterEntries, LoadEntry, SortedEntries};
use super::tables::NEWEST;
use super::{Db, bulk, merged_load, thread};
use crate::btree::Tree;
use crate::driver::block_on;
use crate::error::{Error, ErrorKind, Result};
use crate::format::Moment;

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
