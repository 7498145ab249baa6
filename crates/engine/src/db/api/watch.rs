//! Watching: the changes of commits from now on. `transaction::feed` passes records to the watchers; a watcher decodes
//! them here, with a budget, and leaves out the changes of other keys.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::SystemTime;

use super::schema::TableTypes;
use super::table::Table;
use crate::codec::Compression;
use crate::db::calls::wait::yield_now;
use crate::db::open::handle::Db;
use crate::error::Result;
use crate::format::catalog::is_name;
use crate::format::{CommitSeq, TableId, record};
use crate::sync::budget::Budget;
use crate::transaction::feed::{CommitRecord, LostCommits, NextCommits, WatchQueue};

/// A change, as a [`Watch`], a [`Tail`](crate::db::Tail) and [`Snapshot::changes_since`](crate::db::Snapshot::changes_since) report it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// A key was set.
    Put {
        /// The table, see [`Table::id`].
        table: TableId,
        /// The key.
        key: Vec<u8>,
        /// Its new value.
        value: Vec<u8>,
        /// The time from which it is absent, if it expires.
        expiry: Option<SystemTime>,
    },
    /// A key was removed, or was absent and is still. An entry that has expired is reported as removed when the database
    /// removes it, some time after it has expired.
    Delete {
        /// The table.
        table: TableId,
        /// The key.
        key: Vec<u8>,
    },
    /// All keys of a range were removed. [`Snapshot::changes_since`](crate::db::Snapshot::changes_since) reports it; a watch and a
    /// [`Tail`](crate::db::Tail) report the keys.
    DeleteRange {
        /// The table.
        table: TableId,
        /// The first key of the range.
        start: Vec<u8>,
        /// The first key behind the range; `None` for the end of the table.
        end: Option<Vec<u8>>,
    },
    /// A table was created.
    CreateTable {
        /// The table.
        table: TableId,
        /// Its name.
        name: String,
    },
    /// A table got another name.
    RenameTable {
        /// The table.
        table: TableId,
        /// The name that it had.
        from: String,
        /// Its name now.
        to: String,
    },
    /// A table was dropped, with all that was in it.
    DropTable {
        /// The table.
        table: TableId,
        /// The name that it had.
        name: String,
    },
    /// A table got another compression. A [`Tail`](crate::db::Tail) reports it, a watch does not.
    SetCompression {
        /// The table.
        table: TableId,
        /// Its compression from then on.
        compression: Compression,
    },
    /// A table got the types of its keys and values. A [`Tail`](crate::db::Tail) reports it, a watch does not.
    SetTypes {
        /// The table.
        table: TableId,
        /// The names of the types.
        types: TableTypes,
    },
}

/// An event of a [`Watch`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum WatchEvent {
    /// A commit has changed watched keys.
    Commit {
        /// The number of the commit.
        commit: CommitSeq,
        /// All changes of watched keys in it, each key once, by table and key.
        changes: Vec<Change>,
    },
    /// Changes of the commits from `first` to `last` are not known: read the keys again, in a snapshot taken from now on.
    /// The watcher was slower than the commits, or a table was filled by a bulk load.
    Lost {
        /// The first of these commits.
        first: CommitSeq,
        /// The last of them.
        last: CommitSeq,
    },
}

/// The changes of commits from now on, in the order of the commits. Keeps the database open.
///
/// A watch reports each commit after [`Watch::since`] as soon as readers see it: a commit of `Durability::Sync` once it
/// is durable. [`Table::watch`] and [`Db::watch`] return when all commits up to `since` are visible, so a snapshot taken
/// then, together with the commits of the watch behind [`Snapshot::commit`](crate::db::Snapshot::commit), leaves nothing out.
///
/// Commits that were not read yet wait in memory, outside the cache, up to [`Watch::bytes_max`]. When there are more,
/// all that wait are given up and reported as [`WatchEvent::Lost`]. While anyone watches, each commit copies its
/// changes once.
///
/// After a failure of the log, and of anything else after which commits fail until the database is reopened, a watch reports the
/// commits that are visible and ends with the error.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), nofault::error::Error> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # let db = nofault::Db::create(folder.path().join("shop"), &settings).await?;
/// # let stock = db.create_table("stock").await?;
/// use nofault::db::{Change, WatchEvent};
///
/// let mut watch = stock.watch("app").await?.bytes_max(1 << 20);
/// stock.put("pears", "3").await?;
/// stock.put("apples", "12").await?;
/// let Some(WatchEvent::Commit { commit, changes }) = watch.next().await? else { panic!("a commit") };
/// assert!(commit > watch.since());
/// let (key, value) = (b"apples".to_vec(), b"12".to_vec());
/// assert_eq!(changes, [Change::Put { table: stock.id(), key, value, expiry: None }]);
/// assert!(watch.try_next()?.is_none(), "nothing more has happened");
///
/// db.drop_table("stock").await?;
/// assert!(matches!(watch.next().await?, Some(WatchEvent::Commit { .. })), "the table was dropped");
/// assert!(watch.next().await?.is_none(), "nothing more can happen");
/// # Ok(())
/// # }
/// ```
pub struct Watch {
    db: Db,
    queue: Arc<WatchQueue>,
    table: Option<TableId>,
    prefix: Vec<u8>,
    /// The record that is being decoded.
    reading: Option<Reading>,
    /// Whether nothing can follow: the watched table was dropped, or the database has failed.
    is_over: bool,
}

/// A record, decoded up to `offset`.
struct Reading {
    record: Arc<CommitRecord>,
    offset: usize,
    changes: Vec<Change>,
}

impl Table {
    /// Watches the keys beginning with `prefix`: reports the commits from now on that change some of them. See
    /// [`Watch`]. Returns when the newest commit is visible, at the latest when it is durable.
    ///
    /// # Errors
    /// `Poisoned` after a failure of the log.
    pub async fn watch(&self, prefix: impl AsRef<[u8]>) -> Result<Watch> {
        Watch::begin(&self.db, Some(self.tree.table), prefix.as_ref()).await
    }

    /// The number of the table: no other table of the database ever had it or will have it. It stays when the table is
    /// renamed.
    pub fn id(&self) -> TableId {
        self.tree.table
    }
}

impl Db {
    /// Watches all tables: reports all commits from now on, also those that create, rename or drop tables; their
    /// compression and their types are not reported. See [`Watch`].
    ///
    /// # Errors
    /// As [`Table::watch`].
    pub async fn watch(&self) -> Result<Watch> {
        Watch::begin(self, None, &[]).await
    }
}

impl Watch {
    async fn begin(db: &Db, table: Option<TableId>, prefix: &[u8]) -> Result<Self> {
        db.owner.check_process()?;
        db.core.commits.check_poison()?;
        db.core.log.check()?;
        let queue = db.core.commits.watch(table);
        let watch = Self { db: db.clone(), queue, table, prefix: prefix.to_vec(), reading: None, is_over: false };
        if let Some(position) = db.core.commits.held_up_by(watch.since()) {
            db.core.waits.durable(position).await?;
        }
        Ok(watch)
    }

    /// Limits the memory of commits waiting to be read; 4 MiB without a call. A commit larger is lost.
    #[must_use]
    pub fn bytes_max(self, bytes: usize) -> Self {
        self.queue.set_bytes_max(bytes);
        self
    }

    /// The last commit that is not reported: those after it are.
    pub fn since(&self) -> CommitSeq {
        self.queue.since()
    }

    /// Waits for the next event. `None` once the watched table was dropped. Dropping the future loses no event.
    ///
    /// # Errors
    /// `Poisoned`, once, after a failure of the log: no commits follow until the database is reopened, and later calls
    /// return `None`. A commit that became visible in the moment of the failure may not have been reported: a snapshot
    /// shows it.
    pub async fn next(&mut self) -> Result<Option<WatchEvent>> {
        self.db.owner.check_process()?;
        loop {
            let mut budget = Budget::new();
            while !budget.is_spent() {
                if self.reading.is_none() {
                    if self.is_over {
                        return Ok(None);
                    }
                    let watched = poll_fn(|context| self.queue.poll_next(context.waker())).await;
                    if let Some(lost) = self.begin_reading(watched)? {
                        return Ok(Some(lost));
                    }
                }
                if let Some(event) = self.read(&mut budget)? {
                    return Ok(Some(event));
                }
            }
            drop(budget);
            yield_now().await;
        }
    }

    /// Returns the next event if it has happened already; `None` otherwise, and once the watched table was dropped.
    ///
    /// # Errors
    /// As [`Watch::next`].
    pub fn try_next(&mut self) -> Result<Option<WatchEvent>> {
        self.db.owner.check_process()?;
        loop {
            if self.reading.is_none() {
                let Some(watched) = self.queue.take().filter(|_| !self.is_over) else { return Ok(None) };
                if let Some(lost) = self.begin_reading(watched)? {
                    return Ok(Some(lost));
                }
            }
            if let Some(event) = self.read(&mut Budget::new())? {
                return Ok(Some(event));
            }
        }
    }

    /// Begins to decode a record, or returns the event of lost commits.
    ///
    /// # Errors
    /// The error that ends the watch.
    fn begin_reading(&mut self, watched: NextCommits) -> Result<Option<WatchEvent>> {
        match watched {
            NextCommits::Record(record) => self.reading = Some(Reading { record, offset: 0, changes: Vec::new() }),
            NextCommits::Lost(LostCommits { first, last }) => return Ok(Some(WatchEvent::Lost { first, last })),
            NextCommits::End(error) => {
                self.is_over = true;
                return Err(error);
            }
        }
        Ok(None)
    }

    /// Decodes the record to its end, or until the budget is spent. Returns the event of the commit, if there is one. The watch
    /// is over after an error.
    fn read(&mut self, budget: &mut Budget) -> Result<Option<WatchEvent>> {
        let Some(Reading { record, offset, changes }) = &mut self.reading else { return Ok(None) };
        let mut rest = &record.bytes[*offset..];
        while !budget.is_spent() {
            let decoded = match record::Change::decode(&mut rest) {
                Ok(decoded) => decoded,
                Err(error) => {
                    (self.reading, self.is_over) = (None, true);
                    return Err(error);
                }
            };
            let Some(change) = decoded else {
                let (commit, changes) = (record.seq, std::mem::take(changes));
                self.reading = None;
                return Ok((!changes.is_empty()).then_some(WatchEvent::Commit { commit, changes }));
            };
            *offset = record.bytes.len() - rest.len();
            let is_internal = |table| table == TableId::CATALOG || self.db.core.expiries.is_index(table);
            let is_watched = |table| self.table.is_none_or(|watched| watched == table) && !is_internal(table);
            let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
            budget.spend(4);
            changes.extend(match change {
                record::Change::Put { table, key, value, expiry }
                    if is_watched(table) && key.starts_with(&self.prefix) =>
                {
                    // Half a kilobyte is copied in about a step.
                    budget.spend(value.len() / 512);
                    let expiry = expiry.to_expiry();
                    Some(Change::Put { table, key: key.to_vec(), value: value.to_vec(), expiry })
                }
                record::Change::Delete { table, key } if is_watched(table) && key.starts_with(&self.prefix) => {
                    Some(Change::Delete { table, key: key.to_vec() })
                }
                record::Change::CreateTable { name, .. } if self.table.is_none() && is_name(name) => {
                    Some(Change::CreateTable { table: TableId(record.seq.0), name: text(name) })
                }
                record::Change::RenameTable { table, name, to } if is_watched(table) => {
                    Some(Change::RenameTable { table, from: text(name), to: text(to) })
                }
                record::Change::DropTable { table, name } if is_watched(table) => {
                    self.is_over = self.table.is_some();
                    Some(Change::DropTable { table, name: text(name) })
                }
                _ => None,
            });
        }
        Ok(None)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.db.core.commits.end_watch(&self.queue);
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Watch(since commit {})", self.since())
    }
}
