//! Tails: the durable commits of a database from a position on, for copies that follow it. `wal::tail` keeps the log and
//! reads it; here its records become changes.
//!
//! A tail gives changes, not the bytes of the log: those are sealed with the number and the place of their file, and name
//! tables and dictionaries that only this database has. What the database keeps for itself (dictionaries, the index of
//! expiry, pages to be freed) is left out: a copy makes its own.
//!
//! Kept true by: only groups that are durable together with all before them are read, so no power cut takes back what a
//! tail has returned. The snapshot that a tail begins with is durable before it is returned, too.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::SystemTime;

use super::schema::TableTypes;
use super::snapshot::Snapshot;
use super::table::Table;
use super::watch::Change;
use crate::btree::{Direction, KeyRange};
use crate::buffer_pool::BufferPool;
use crate::codec::Compression;
use crate::db::calls::scan::Scan;
use crate::db::calls::thread;
use crate::db::open::handle::Db;
use crate::db::open::owner::OwnerHandle;
use crate::error::{Error, ErrorKind, Result};
use crate::format::catalog::{is_name, loaded_table};
use crate::format::{CommitSeq, Moment, TableId, record};
use crate::pages::{Snapshot as _, Store as _};
use crate::wal::{Anchor, LogHold, TailReader, TailRecord};

/// Bytes of log that a tail keeps until its owner sets another limit.
const BYTES_MAX: u64 = 1 << 30;
/// Bytes of a [`Position`].
const POSITION_BYTES: usize = 56;

/// A place in the history of one database: behind a commit. A tail continues there, also after the database was closed and
/// opened again, as long as the log has the commits that follow.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
/// use nofault::db::Position;
///
/// let (snapshot, tail) = db.begin_tail()?;
/// let position = tail.reached();
/// assert_eq!(position.commit(), snapshot.commit());
/// assert_eq!(Position::from_bytes(&position.to_bytes())?, position);
/// assert!(Position::from_bytes(b"something else").is_err());
/// # Ok::<(), nofault::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    file_id: u64,
    /// A group of the log after which the records of all later commits begin.
    anchor: Anchor,
    commit: CommitSeq,
    /// Sequence number and checksum of a group not before the end of the commit's record. As each group names the one before by its
    /// checksum, a log that has this group has the same history up to there.
    group: (u64, u64),
}

impl Position {
    /// The commit behind which the place is.
    pub fn commit(&self) -> CommitSeq {
        self.commit
    }

    /// A number that the database has had since it was created, and no other has but copies of its files.
    pub fn database(&self) -> u64 {
        self.file_id
    }

    /// Returns the place as bytes.
    pub fn to_bytes(&self) -> [u8; POSITION_BYTES] {
        let Anchor { position, sequence, checksum } = self.anchor;
        let mut bytes = [0; POSITION_BYTES];
        let numbers = [self.file_id, position, sequence, checksum, self.commit.0, self.group.0, self.group.1];
        bytes.chunks_exact_mut(8).zip(numbers).for_each(|(place, number)| place.copy_from_slice(&number.to_le_bytes()));
        bytes
    }

    /// Returns the place that [`Position::to_bytes`] gave as these bytes.
    ///
    /// # Errors
    /// `InvalidCall` for a wrong number of bytes. Wrong bytes are a place that no log has.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let wrong = || Error::new(ErrorKind::InvalidCall, format!("a position has {POSITION_BYTES} bytes"));
        let bytes: &[u8; POSITION_BYTES] = bytes.try_into().map_err(|_| wrong())?;
        let mut numbers = bytes.as_chunks::<8>().0.iter().map(|number| u64::from_le_bytes(*number));
        let mut next = || numbers.next().ok_or_else(wrong);
        let file_id = next()?;
        let anchor = Anchor { position: next()?, sequence: next()?, checksum: next()? };
        Ok(Self { file_id, anchor, commit: CommitSeq(next()?), group: (next()?, next()?) })
    }
}

/// An event of a [`Tail`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TailEvent {
    /// A commit.
    Commit {
        /// Its number. Numbers ascend, and may be left out.
        commit: CommitSeq,
        /// The time at which it was about to become durable, by the clock of the database; `None` if an earlier version
        /// made it.
        time: Option<SystemTime>,
        /// Its changes, each key once, by table and key. None where only the database's own upkeep was committed.
        changes: Vec<Change>,
    },
    /// A bulk load has filled the table, or replaced its content: what it wrote is in no log. Read the table in a snapshot of this
    /// commit or a later one. In rare cases, when the load failed or a power cut stopped it, the table is as before.
    Loaded {
        /// The number of the commit.
        commit: CommitSeq,
        /// Its time, as of a commit.
        time: Option<SystemTime>,
        /// The table.
        table: TableId,
    },
}

impl TailEvent {
    /// Returns the number of the commit.
    pub fn commit(&self) -> CommitSeq {
        match self {
            Self::Commit { commit, .. } | Self::Loaded { commit, .. } => *commit,
        }
    }

    /// Returns the time of the commit, where it is known.
    pub fn time(&self) -> Option<SystemTime> {
        match self {
            Self::Commit { time, .. } | Self::Loaded { time, .. } => *time,
        }
    }
}

/// The durable commits of a database from a position on, all of them and in order. Keeps the database open.
///
/// Commits are read from the log, so they take no memory while they wait, and a tail behind costs the commits nothing. The
/// log's file keeps what follows the position released last ([`Tail::release`]), up to [`Tail::bytes_max`]. Beyond
/// that, or when a commit needs the space on a full disk, the tail ends with `TailTooOld`.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), nofault::Error> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # let db = nofault::Db::create(folder.path().join("shop"), &settings).await?;
/// # let copy = nofault::Db::create(folder.path().join("copy"), &settings).await?;
/// use nofault::db::{ChangeApplier, TailEvent};
///
/// // The snapshot is empty here; the tail has all that is committed after it.
/// let (_snapshot, mut tail) = db.begin_tail().await?;
/// let stock = db.create_table("stock").await?;
/// stock.put("apples", "12").await?;
///
/// let mut applier = ChangeApplier::new(&copy);
/// while tail.reached().commit() < db.snapshot().commit() {
///     if let TailEvent::Commit { changes, .. } = tail.next().await? {
///         applier.apply(&changes).await?;
///     }
///     let position = tail.reached();
///     tail.release(&position);
/// }
/// assert_eq!(copy.table("stock").await?.get("apples").await?, Some(b"12".to_vec()));
///
/// // Later, maybe after a restart, it continues from there.
/// let position = tail.reached();
/// drop(tail);
/// stock.put("pears", "3").await?;
/// let mut tail = db.tail(&position).await?;
/// assert!(tail.next().await?.commit() > position.commit());
/// # Ok(())
/// # }
/// ```
pub struct Tail {
    hold: Arc<LogHold>,
    shared: Arc<Shared>,
    position: Position,
    /// A thread that reads, also when the call that has started it was dropped. Behind a lock that only `&mut self` takes, so that a tail can
    /// be shared.
    reading: Mutex<Option<Reading>>,
    /// Dropped last: closing the database must find the log unused.
    db: Db,
}

/// The end of a thread that reads, which has a handle of the database until then.
type Reading = Pin<Box<dyn Future<Output = Result<Result<()>>> + Send>>;

/// The state that a tail shares with the thread reading for it.
struct Shared {
    /// The position up to which the log was read.
    read_to: AtomicU64,
    state: Mutex<State>,
}

struct State {
    reader: TailReader,
    /// Events that were read and not returned, each with the position behind it.
    ready: VecDeque<(TailEvent, Position)>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads some of the durable log, unless there are events already. Blocks.
    fn read(&self, db: &Db) -> Result<()> {
        let mut state = self.lock();
        let State { reader, ready } = &mut *state;
        if !ready.is_empty() {
            return Ok(());
        }
        let file_id = db.core.store.file_id();
        let outcome = reader.read(|found| {
            ready.push_back(event_at(db, file_id, &found)?);
            Ok(())
        });
        self.read_to.store(reader.position(), Ordering::Release);
        outcome
    }

    /// Reads until this group of the log was passed, which has this sequence number and this checksum. Blocks.
    fn read_beyond(&self, db: &Db, (sequence, checksum): (u64, u64)) -> Result<()> {
        let mut state = self.lock();
        let State { reader, ready } = &mut *state;
        let file_id = db.core.store.file_id();
        let outcome = reader.read_beyond(sequence, checksum, |found| {
            ready.push_back(event_at(db, file_id, &found)?);
            Ok(())
        });
        self.read_to.store(reader.position(), Ordering::Release);
        outcome
    }
}

impl Db {
    /// Begins to follow the commits: returns a snapshot, and the tail of all commits after it. Everything in the snapshot is durable. It
    /// is never given up for the memory of others ([`Settings::snapshot_bytes_max`](crate::settings::Settings::snapshot_bytes_max)):
    /// drop it when it is copied.
    ///
    /// # Errors
    /// `Poisoned` after a failure of the log; `Unsupported` where the log cannot be read while it is written; `ReadOnly` for a
    /// database opened to be read only, whose log is another process's.
    pub async fn begin_tail(&self) -> Result<(Snapshot, Tail)> {
        self.owner.refuse_read_only()?;
        // The log is kept before the snapshot is taken, so that it has all that follows the snapshot.
        let (hold, anchor) = self.core.log.hold_newest(self.core.store.visible(), BYTES_MAX);
        let snapshot = Snapshot { db: self.clone(), pages: Arc::new(self.core.store.essential_snapshot()) };
        self.sync().await?;
        let last = self.core.log.last_group();
        let (file_id, commit) = (self.core.store.file_id(), snapshot.pages.seq());
        let position = Position { file_id, anchor, commit, group: (last.sequence, last.checksum) };
        Ok((snapshot, Tail::new(self, hold, position)?))
    }

    /// Continues to follow the commits behind a position of this database.
    ///
    /// # Errors
    /// `TailTooOld` when the log does not have all commits behind it any more, or the position is one of another database, or of a
    /// copy of its files that has other commits: begin with a snapshot ([`Db::begin_tail`]). `NoSpace` when the disk is full; otherwise
    /// as [`Db::begin_tail`] and [`Tail::next`].
    pub async fn tail(&self, from: &Position) -> Result<Tail> {
        self.owner.refuse_read_only()?;
        if from.file_id != self.core.store.file_id() {
            return Err(Error::new(ErrorKind::TailTooOld, "the position is one of another database"));
        }
        let (db, from) = (self.clone(), *from);
        let begin = move || {
            let tail = Tail::new(&db, db.core.log.hold(from.anchor, BYTES_MAX)?, from)?;
            tail.shared.read_beyond(&db, from.group)?;
            Ok(tail)
        };
        thread::run("nofault-tail", begin).await?
    }
}

impl Tail {
    fn new(db: &Db, hold: LogHold, position: Position) -> Result<Self> {
        let hold = Arc::new(hold);
        let reader = TailReader::new(&db.core.log, Arc::clone(&hold), position.anchor, position.commit)?;
        let read_to = AtomicU64::new(reader.position());
        let state = Mutex::new(State { reader, ready: VecDeque::new() });
        let shared = Arc::new(Shared { read_to, state });
        Ok(Self { hold, shared, position, reading: Mutex::default(), db: db.clone() })
    }

    /// Limits the bytes of log that are kept for this tail; 1 GiB without a call.
    #[must_use]
    pub fn bytes_max(self, bytes: u64) -> Self {
        self.hold.set_bytes_max(bytes);
        self
    }

    /// The place behind the last event that was returned.
    pub fn reached(&self) -> Position {
        self.position
    }

    /// Allows the log to be used again before a position that this tail has had: no tail will continue from an earlier one. The
    /// rest is kept, also after a crash, if a tail continues there soon after the database was opened. Closing the database
    /// shortens the log, and keeps only its end for a tail to continue from: the segment of the last commits, and the one before.
    pub fn release(&self, position: &Position) {
        let is_here = self.db.owner.check_process().is_ok();
        if is_here && position.file_id == self.position.file_id && position.commit <= self.position.commit {
            self.hold.advance(position.anchor.position);
        }
    }

    /// Returns the bytes of log that are kept for this tail.
    pub fn kept_bytes(&self) -> u64 {
        self.db.owner.check_process().map_or(0, |()| self.hold.bytes())
    }

    /// Waits for the next commit to be durable, and returns it. Dropping the future loses no event. Where a task calls it, the log is
    /// read on a thread, up to a megabyte at a time.
    ///
    /// # Errors
    /// `TailTooOld` when the log is not there any more: begin with a snapshot. `Poisoned` after a failure of the log, when all durable
    /// commits were returned. `Closed` after [`Db::close`]: a position is valid again after the next opening. `Corrupt` or `Io` when the log cannot be read; the next call tries again.
    pub async fn next(&mut self) -> Result<TailEvent> {
        self.db.owner.check_process()?;
        loop {
            // A call whose future was dropped may have started the thread.
            if let Some(event) = self.try_next() {
                return Ok(event);
            }
            self.db.owner.check_open()?;
            if self.await_reading().await?.is_some() {
                continue;
            }
            let (hold, shared) = (&self.hold, &self.shared);
            let read_to = || shared.read_to.load(Ordering::Acquire);
            poll_fn(|context| hold.poll_durable(read_to(), context.waker())).await?;
            let (shared, db) = (Arc::clone(&self.shared), self.db.clone());
            let read = move || {
                let outcome = shared.read(&db);
                // Before the database, of which this may be the last handle by now.
                drop(shared);
                outcome
            };
            *self.reading() = Some(Box::pin(thread::run("nofault-tail", read)));
        }
    }

    /// Ends the tail, and waits for the thread reading for it, if there is one: after that this tail has no handle of the
    /// database. Dropping a tail does not wait.
    pub async fn close(mut self) {
        // Its events are not wanted any more, so its error is no loss.
        drop(self.await_reading().await);
    }

    /// Waits for the thread that reads. `None` when there is none.
    async fn await_reading(&mut self) -> Result<Option<()>> {
        let reading = self.reading();
        let Some(running) = reading else { return Ok(None) };
        let outcome = running.await;
        *reading = None;
        outcome?.map(Some)
    }

    fn reading(&mut self) -> &mut Option<Reading> {
        self.reading.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the next commit if it was read from the log already, as those are that become durable together.
    pub fn try_next(&mut self) -> Option<TailEvent> {
        let mut state = match self.shared.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(state)) => state.into_inner(),
            // A thread is reading.
            Err(TryLockError::WouldBlock) => return None,
        };
        let (event, position) = state.ready.pop_front()?;
        drop(state);
        self.position = position;
        Some(event)
    }
}

impl std::fmt::Debug for Tail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tail(behind commit {})", self.position.commit)
    }
}

/// Decodes a record, and returns the position behind it as well.
fn event_at(db: &Db, file_id: u64, found: &TailRecord) -> Result<(TailEvent, Position)> {
    let group = (found.within.sequence, found.within.checksum);
    let position = Position { file_id, anchor: found.after, commit: found.commit, group };
    Ok((event_of(db, found)?, position))
}

/// Decodes a record.
fn event_of(db: &Db, found: &TailRecord) -> Result<TailEvent> {
    let (commit, time) = (found.commit, (found.time_ms > 0).then(|| Moment(found.time_ms).to_time()));
    let is_internal = |table| table == TableId::CATALOG || db.core.expiries.is_index(table);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut changes = Vec::new();
    let mut rest = &found.bytes[..];
    while let Some(change) = record::Change::decode(&mut rest)? {
        match change {
            record::Change::Delete { table: TableId::CATALOG, key } => {
                if let Some(table) = loaded_table(key) {
                    return Ok(TailEvent::Loaded { commit, time, table });
                }
            }
            record::Change::Put { table, .. } | record::Change::Delete { table, .. } if is_internal(table) => {}
            record::Change::Put { table, key, value, expiry } => {
                let expiry = expiry.to_expiry();
                changes.push(Change::Put { table, key: key.to_vec(), value: value.to_vec(), expiry });
            }
            record::Change::Delete { table, key } => changes.push(Change::Delete { table, key: key.to_vec() }),
            record::Change::CreateTable { name, compression } => {
                if is_name(name) {
                    let table = TableId(commit.0);
                    changes.push(Change::CreateTable { table, name: text(name) });
                    if compression != Compression::None {
                        changes.push(Change::SetCompression { table, compression });
                    }
                }
            }
            record::Change::DropTable { table, name } => changes.push(Change::DropTable { table, name: text(name) }),
            record::Change::SetCompression { table, compression, .. } => {
                changes.push(Change::SetCompression { table, compression });
            }
            record::Change::RenameTable { table, name, to } => {
                changes.push(Change::RenameTable { table, from: text(name), to: text(to) });
            }
            record::Change::SetTypes { table, key, value, .. } => {
                let types = TableTypes { key: text(key), value: text(value) };
                changes.push(Change::SetTypes { table, types });
            }
        }
    }
    Ok(TailEvent::Commit { commit, time, changes })
}

/// The changes of a table since a commit: see [`Snapshot::changes_since`]. Keeps the database open.
pub struct ChangesSince {
    scan: Scan<BufferPool>,
    table: TableId,
    _owner: OwnerHandle,
}

impl std::fmt::Debug for ChangesSince {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChangesSince").field("table", &self.table).finish_non_exhaustive()
    }
}

impl Snapshot {
    /// Returns changes that make the content of a table as it was after commit `since` into its content in this snapshot, as an
    /// incremental backup needs them. It need not be possible to read the older state any more.
    ///
    /// The changes come in the order of the keys. They are found by pages: of each leaf written after `since`, a
    /// [`Change::DeleteRange`] of its keys and then a [`Change::Put`] of each of its entries, also of those that are as they were; of other
    /// leaves a put for each value in a page with one that was overwritten in place. Also the database's own upkeep writes
    /// pages, which makes the changes more and never fewer. Applied once more, in order, they leave the content as it is.
    ///
    /// Reads all leaves of the table, the pages of values of those that were written after `since`, and of the others only pages that several
    /// values share, as a bulk load leaves them. Memory does not grow with the table. Entries that had expired by the moment of
    /// the snapshot are left out.
    ///
    /// `since` must be a commit of this database that was durable: a power cut may take a deferred one away, and another gets its
    /// number. For a table created after it, every entry is a change; a table that this snapshot does not have has none.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), nofault::Error> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::Db::create(folder.path().join("shop"), &settings).await?;
    /// use nofault::db::Change;
    ///
    /// let stock = db.create_table("stock").await?;
    /// stock.put("apples", "12").await?;
    /// let before = db.snapshot().commit();
    /// assert_eq!(db.snapshot().changes_since(&stock, before)?.next().await?, None);
    ///
    /// stock.put("pears", "3").await?;
    /// stock.delete("apples").await?;
    /// let mut changes = db.snapshot().changes_since(&stock, before)?;
    /// let table = stock.id();
    /// assert_eq!(changes.next().await?, Some(Change::DeleteRange { table, start: Vec::new(), end: None }));
    /// let (key, value) = (b"pears".to_vec(), b"3".to_vec());
    /// assert_eq!(changes.next().await?, Some(Change::Put { table, key, value, expiry: None }));
    /// assert_eq!(changes.next().await?, None);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `InvalidCall` for a table of another database.
    pub fn changes_since(&self, table: &Table, since: CommitSeq) -> Result<ChangesSince> {
        let (tree, all) = (self.db.tree_of(table)?, KeyRange { start: Vec::new(), end: None });
        let mut scan = Scan::new(self.db.core.reader.clone(), self.pages.clone(), tree, all, Direction::Forward);
        scan.set_since(since);
        Ok(ChangesSince { scan, table: tree.table, _owner: self.db.owner.clone() })
    }
}

impl ChangesSince {
    /// Returns the next change; `None` at the end. Dropping the future loses no change.
    ///
    /// # Errors
    /// As [`Range::next`](crate::db::Range::next): an error once, and then `None`.
    pub async fn next(&mut self) -> Result<Option<Change>> {
        self.scan.make_ready().await?;
        let table = self.table;
        if let Some(KeyRange { start, end }) = self.scan.take_replaced() {
            return Ok(Some(Change::DeleteRange { table, start, end }));
        }
        let Some((key, value)) = self.scan.take() else { return Ok(None) };
        Ok(Some(Change::Put { table, key, value, expiry: self.scan.expiry().to_expiry() }))
    }
}
