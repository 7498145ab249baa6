//! Replicas: databases that follow a shipped one and serve reads all the while.
//!
//! A replica looks at the manifest again and again, and applies the pieces of the log that it names to the replica's database ([`copy`]).
//! Where the log does not lead on – another epoch began, or the replica was away for longer than the log is kept – it makes another
//! copy from the newest base, next to the one in use, and changes over to it when it is complete ([`home`]).
//!
//! It writes nothing to the store until it is promoted. Then it takes the name over as any shipper does, which fences the one before,
//! and only after that reads the manifest for the last time: so it has all that the older one has promised, and nothing follows.

mod copy;
mod home;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nofault::db::UnfinishedDb;
use nofault::settings::Settings;
use nofault::{CommitSeq, Db, Snapshot, Table};
use object_store::{ObjectStore, UpdateVersion};
use tokio::sync::{RwLock, watch};
use tokio::task::JoinHandle;

use self::copy::{Copy, CopyReader, Progress, STATE_TABLE};
use self::home::Home;
use crate::error::{Error, ErrorKind, Result};
use crate::fetch::Fetcher;
use crate::manifest::{Current, Epoch, EpochName, Manifest, way_out};
use crate::names::MANIFEST;
use crate::newest::{self, Age};
use crate::object::{commit_time, take_commit};
use crate::options::{READING, ShipOptions};
use crate::remote::Remote;
use crate::restore::fill_bases;
use crate::shipper::{Ship, Takeover};

/// The options of a [`Replica`]. A name alone is one with the others as they are by default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaOptions {
    /// The name under which the source is shipped.
    pub name: String,
    /// Time between two looks at the manifest: one small request each, while there is nothing new.
    pub every: Duration,
}

impl ReplicaOptions {
    /// Returns the default options for a name: a look each second.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), every: Duration::from_secs(1) }
    }
}

impl From<&str> for ReplicaOptions {
    fn from(name: &str) -> Self {
        Self::new(name)
    }
}

impl From<String> for ReplicaOptions {
    fn from(name: String) -> Self {
        Self::new(name)
    }
}

/// How far a replica is behind its source. Times of commits are by the source's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lag {
    /// The commit of the source whose state the replica has.
    pub commit: CommitSeq,
    /// Its time.
    pub time: SystemTime,
    /// The newest commit in the store when the replica looked last.
    pub newest: CommitSeq,
    /// Its time.
    pub newest_time: SystemTime,
    /// The time at which it looked last, by the clock of this machine; `None` when it has not reached the store since it began.
    pub looked_at: Option<SystemTime>,
    /// Whether the two commits are of one history. Not between a look that has found another database, or a bulk load, under the name and the
    /// moment in which the copy of that is complete.
    pub is_comparable: bool,
}

impl Lag {
    /// Returns whether the replica has all that was in the store when it looked last.
    pub fn is_caught_up(&self) -> bool {
        self.looked_at.is_some() && self.is_comparable && self.commit >= self.newest
    }
}

/// A state of the source: everything up to a commit, and nothing behind it.
#[derive(Debug, Clone)]
pub struct ReplicaSnapshot {
    /// The tables, as of that commit, and one of the replica's own.
    pub snapshot: Snapshot,
    /// The commit, by its number in the source.
    pub commit: CommitSeq,
    /// Its time, by the clock of the source.
    pub time: SystemTime,
}

impl ReplicaSnapshot {
    /// Returns the names of the source's tables, sorted.
    ///
    /// # Errors
    /// `Database` when the catalog cannot be read.
    pub async fn table_names(&self) -> Result<Vec<String>> {
        let mut names = self.snapshot.table_names().await?;
        names.retain(|name| name != STATE_TABLE);
        Ok(names)
    }

    /// Returns a table of the source as of this snapshot, for its calls `get`, `range` and the like.
    ///
    /// # Errors
    /// `NotFound` when the source had no such table; `Database` otherwise.
    pub async fn table(&self, name: &str) -> Result<Table> {
        let missing = || Error::new(ErrorKind::NotFound, format!("the source had no table {name:?}"));
        if name == STATE_TABLE {
            return Err(missing());
        }
        self.snapshot.table(name).await.map_err(|error| match error.kind() {
            nofault::ErrorKind::NotFound => missing(),
            _ => error.into(),
        })
    }
}

/// A replica that was promoted: a database like any other, and its shipper.
#[derive(Debug)]
pub struct PromotedReplica {
    /// The database.
    pub db: Db,
    /// Its shipper, which has the name now. The first thing that it ships is the whole database.
    pub ship: Ship,
    /// The folder of the database, to open it from now on.
    pub folder: PathBuf,
    /// The last commit of the source that it has.
    pub commit: CommitSeq,
}

/// Shared by the handle and the task of a replica.
#[derive(Debug)]
struct Shared {
    /// The copy that is read. Locked for writing while a commit is applied that changes tables, and while another copy takes its place.
    reader: RwLock<CopyReader>,
    status: watch::Sender<Status>,
    is_ending: watch::Sender<bool>,
}

#[derive(Debug, Clone)]
struct Status {
    reached: Progress,
    newest: u64,
    newest_time_ms: u64,
    newest_epoch: EpochName,
    looked_at: Option<SystemTime>,
    /// The error of the last round, after which there is another one.
    trouble: Option<Error>,
    /// The reason why nothing more is applied.
    end: Option<Error>,
}

/// A database that follows a shipped one, and serves reads at the same time. It follows until it is dropped, closed or promoted, in a task of
/// the tokio runtime in which it was begun.
///
/// ```
/// # use std::sync::Arc;
/// # use nofault::{Db, settings::Settings};
/// # use nofault_ship::{Ship, ShipOptions};
/// # use object_store::memory::InMemory;
/// use nofault_ship::Replica;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let settings = Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Settings::default() };
/// # let db = Db::create(folder.path().join("shop"), &settings).await?;
/// # let store = Arc::new(InMemory::new());
/// # let stock = db.create_table("stock").await?;
/// let ship = Ship::start(&db, store.clone(), ShipOptions::new("shop")).await?;
/// stock.put("apples", "12").await?;
/// let shipped = ship.durable().await?;
///
/// // On another machine.
/// let replica = Replica::follow(store.clone(), "shop", folder.path().join("replica"), &settings).await?;
/// replica.wait_for(shipped).await?;
/// let state = replica.snapshot().await?;
/// let table = state.table("stock").await?;
/// assert_eq!(state.snapshot.get(&table, "apples").await?, Some(b"12".to_vec()));
///
/// // The first machine is lost, or cannot be reached.
/// let promoted = replica.promote(ShipOptions::default()).await?;
/// promoted.db.table("stock").await?.put("apples", "11").await?;
/// promoted.ship.durable().await?;
/// stock.put("apples", "10").await?;
/// assert_eq!(ship.durable().await.unwrap_err().kind(), nofault_ship::ErrorKind::Fenced);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Replica {
    shared: Arc<Shared>,
    /// `None` after it was waited for.
    task: Option<JoinHandle<Task>>,
}

impl Replica {
    /// Begins to follow, or continues with the folder's copy: then it serves reads at once, also while the store cannot be reached. In a new
    /// folder this returns when the newest copy of the whole is complete.
    ///
    /// The folder is the replica's own, and its parent must exist. `settings` apply to the database that it makes there, except for the page
    /// size, which is the source's.
    ///
    /// # Errors
    /// `NotFound` when nothing was shipped under the name yet; `InvalidCall` for a folder of another replica, for one of which the replica was
    /// promoted, and for settings with several folders; `AlreadyExists` for a folder with other content; `Store`, `Corrupt`, `Database`.
    pub async fn follow(
        store: Arc<dyn ObjectStore>,
        options: impl Into<ReplicaOptions>,
        folder: impl AsRef<Path>,
        settings: &Settings,
    ) -> Result<Self> {
        let options = options.into();
        if !settings.stripe_folders.is_empty() {
            let what = "a replica over several folders is not possible: its copies follow each other in one";
            return Err(Error::new(ErrorKind::InvalidCall, what));
        }
        let remote = Remote::new(store, &options.name, READING)?;
        let home = Home::open(folder.as_ref())?;
        let base = Follower { remote, home, settings: settings.clone() };
        base.home.remove_others()?;
        let (copy, seen) = match base.home.current()? {
            Some(number) => (base.open(number).await?, None),
            None => {
                let manifest = newest_of(&base.remote).await?.manifest;
                let missing = || Error::new(ErrorKind::NotFound, "the database was not shipped completely yet");
                let epoch = manifest.epochs.last().ok_or_else(missing)?;
                (base.copy_of(epoch).await?, Some(manifest))
            }
        };
        let reached = copy.reached().clone();
        let status = Status {
            newest: reached.commit,
            newest_time_ms: reached.time_ms,
            newest_epoch: reached.epoch.clone(),
            reached,
            looked_at: None,
            trouble: None,
            end: None,
        };
        let shared = Arc::new(Shared {
            reader: RwLock::new(copy.reader()),
            status: watch::Sender::new(status),
            is_ending: watch::Sender::new(false),
        });
        let Follower { remote, home, settings } = base;
        let base = Follower { remote: remote.with_attempts(None), home, settings };
        let task = Task { base, copy, every: options.every, version: None, seen: None, shared: Arc::clone(&shared) };
        if let Some(manifest) = &seen {
            task.note_newest(manifest);
        }
        Ok(Self { shared, task: Some(tokio::spawn(task.run())) })
    }

    /// Returns the newest state that the replica has. No request to the store.
    ///
    /// # Errors
    /// `Database` when its database fails.
    pub async fn snapshot(&self) -> Result<ReplicaSnapshot> {
        let reader = self.shared.reader.read().await;
        let (snapshot, Progress { commit, time_ms, .. }) = reader.snapshot().await?;
        Ok(ReplicaSnapshot { snapshot, commit: CommitSeq(commit), time: commit_time(time_ms) })
    }

    /// Returns how far the replica is behind.
    pub fn lag(&self) -> Lag {
        let status = self.shared.status.borrow();
        Lag {
            commit: CommitSeq(status.reached.commit),
            time: commit_time(status.reached.time_ms),
            newest: CommitSeq(status.newest),
            newest_time: commit_time(status.newest_time_ms),
            looked_at: status.looked_at,
            is_comparable: status.reached.epoch == status.newest_epoch,
        }
    }

    /// Waits until the replica has a commit of the source: one that [`Ship::durable`] has returned there, or any before it. A
    /// promoted database counts its commits from the beginning again, so a commit of it is only waited for after the replica has
    /// looked ([`Lag`]).
    ///
    /// # Errors
    /// The error with which the replica has ended.
    pub async fn wait_for(&self, commit: CommitSeq) -> Result<()> {
        let mut status = self.shared.status.subscribe();
        let has = |status: &Status| {
            status.reached.commit >= commit.0 && status.reached.epoch.is_of_database(&status.newest_epoch)
        };
        let found = status.wait_for(|status| has(status) || status.end.is_some()).await;
        match found.map_err(|_| ended())? {
            status if has(&status) => Ok(()),
            status => Err(status.end.clone().unwrap_or_else(ended)),
        }
    }

    /// Returns the reason why the replica does not get on, if there is one: `Database` is final, after others it tries again.
    pub fn failure(&self) -> Option<Error> {
        let status = self.shared.status.borrow();
        status.end.clone().or_else(|| status.trouble.clone())
    }

    /// Ends the replica. Its folder can be followed on later.
    ///
    /// # Errors
    /// `Database` when its database cannot be closed well; it continues all the same when it is followed again.
    pub async fn close(mut self) -> Result<()> {
        let Task { base, copy, .. } = self.stopped().await?;
        drop(self);
        let db = copy.db().clone();
        drop(copy);
        let closed = db.close().await;
        drop(base);
        Ok(closed?)
    }

    /// Makes the replica the database shipped under the name: takes the name over, so that the shipper before is fenced and its calls
    /// end with `Fenced`; applies all that it has shipped until then; and begins to ship. Nothing of the other database appears after that.
    ///
    /// `options` are the shipper's, but for the name, which stays. On a store with `single_writer` end the other shipper
    /// first: two that write in the same moment are not kept apart. The database's settings must have background threads.
    ///
    /// # Errors
    /// As [`Ship::start`], and the replica's errors. The folder can be followed again then, and promoted, unless the
    /// error came from the shipper's beginning with a database that is complete: then it is a database like any other.
    pub async fn promote(mut self, options: ShipOptions) -> Result<PromotedReplica> {
        let mut task = self.stopped().await?;
        let (store, name) = task.base.remote.place();
        let options = ShipOptions { name, ..options };
        // The name is the other database's until now: a promotion is for this.
        let options = ShipOptions { take_over: true, ..options };
        let takeover = Takeover::begin(task.copy.db(), store, options).await?;
        // The older shipper will never name more than it has named by now.
        task.base.remote = task.base.remote.with_attempts(READING.attempts);
        _ = self.shared.is_ending.send_replace(false);
        task.catch_up(takeover.manifest()).await?;
        let Task { base, copy, .. } = task;
        let (commit, number) = (CommitSeq(copy.reached().commit), base.home.current()?);
        let folder = base.home.path(number.ok_or_else(ended)?);
        // Its handle of the copy is the last but ours.
        drop(self);
        let db = copy.into_database().await?;
        let ship = Ship::begin(&db, takeover).await?;
        Ok(PromotedReplica { db, ship, folder, commit })
    }

    /// Ends the task, and returns its parts.
    async fn stopped(&mut self) -> Result<Task> {
        _ = self.shared.is_ending.send_replace(true);
        let task = self.task.take().ok_or_else(ended)?;
        let gone = |error| Error::new(ErrorKind::Closed, format!("the task of the replica has ended: {error}"));
        let task = task.await.map_err(gone)?;
        match self.shared.status.borrow().end.clone() {
            Some(error) if error.kind() == ErrorKind::Database => Err(error),
            _ => Ok(task),
        }
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.task.iter().for_each(JoinHandle::abort);
    }
}

fn ended() -> Error {
    Error::new(ErrorKind::Closed, "the replica was ended")
}

/// Makes and opens copies.
#[derive(Debug)]
struct Follower {
    remote: Remote,
    home: Home,
    settings: Settings,
}

impl Follower {
    /// Opens a copy.
    async fn open(&self, number: u64) -> Result<Copy> {
        let path = self.home.path(number);
        let db = Db::open(&path, &self.settings).await?;
        let promoted = || {
            let what = format!("the replica was promoted: {} is a database like any other now", path.display());
            Error::new(ErrorKind::InvalidCall, what)
        };
        Copy::open(db).await?.ok_or_else(promoted)
    }

    /// Makes a copy from the newest base of an epoch, and makes it the current one.
    async fn copy_of(&self, epoch: &Epoch) -> Result<Copy> {
        let missing = || Error::new(ErrorKind::NotFound, "an epoch without a copy of the whole");
        let base = epoch.bases.last().ok_or_else(missing)?;
        let bases = epoch.chain(epoch.bases.len() - 1)?;
        // Remains of an earlier attempt.
        self.home.remove_others()?;
        let number = self.home.unused()?;
        let settings = Settings { page_bytes: base.page_bytes as usize, ..self.settings.clone() };
        let new = UnfinishedDb::create(self.home.path(number), &settings).await?;
        let applier = fill_bases(&self.remote, bases, new.db()).await?;
        let reached = Progress { epoch: EpochName::of(epoch), commit: base.commit, time_ms: base.time_ms };
        drop(Copy::begin(new.db().clone(), applier, reached).await?);
        new.finish().await?;
        let copy = self.open(number).await?;
        self.home.switch_to(number)?;
        Ok(copy)
    }
}

/// The task of a replica.
#[derive(Debug)]
struct Task {
    base: Follower,
    copy: Copy,
    every: Duration,
    /// The version of the manifest applied last.
    version: Option<UpdateVersion>,
    /// The history and the number of the last manifest that was seen.
    seen: Option<(String, u64)>,
    shared: Arc<Shared>,
}

impl Task {
    /// Follows until it is to end, and returns itself. Everything but the wait for the store is done to its end, so that the copy in memory and
    /// that on disk are the same.
    async fn run(mut self) -> Self {
        let (mut ending, every) = (self.shared.is_ending.subscribe(), self.every);
        // Wakes the waiting calls, also after a panic and when the runtime ends.
        let last_words = LastWords(Arc::clone(&self.shared));
        loop {
            match self.round().await {
                Err(error) if error.kind() == ErrorKind::Database => {
                    self.shared.status.send_modify(|status| status.end = Some(error));
                    break;
                }
                outcome => self.shared.status.send_modify(|status| status.trouble = outcome.err()),
            }
            tokio::select! {
                _ = ending.wait_for(|is_ending| *is_ending) => break,
                () = tokio::time::sleep(every) => {}
            }
        }
        drop(last_words);
        self
    }

    /// Looks at the manifest, and applies its news.
    async fn round(&mut self) -> Result<()> {
        let remote = &self.base.remote;
        let found = match &self.seen {
            Some(_) => unless_ending(&self.shared, Current::find_newer(remote, self.version.as_ref())).await?,
            // A list that is refused is no reason to wait.
            None => Some(unless_ending(&self.shared, newest_of(&remote.with_attempts(READING.attempts))).await?),
        };
        if let Some(Current { manifest, version, .. }) = found {
            let (history, sequence) = (manifest.history.clone(), manifest.sequence);
            if let Some((_, seen)) = self.seen.as_ref().filter(|(of, seen)| *of == history && *seen > sequence) {
                let what = format!("it was set back to number {sequence}, and the replica has seen number {seen}");
                return Err(way_out(&Error::corrupt(what).met_in(MANIFEST)));
            }
            self.seen = Some((history, sequence));
            self.catch_up(&manifest).await?;
            // Only now: after an error all of it is looked at again.
            self.version = version;
        } else {
            self.shared.status.send_modify(|status| status.looked_at = Some(SystemTime::now()));
        }
        Ok(())
    }

    /// Tells the handle the state of the store.
    fn note_newest(&self, manifest: &Manifest) {
        let Some(epoch) = manifest.epochs.last() else { return };
        self.shared.status.send_modify(|status| {
            (status.newest, status.newest_time_ms) = epoch.newest();
            status.newest_epoch = EpochName::of(epoch);
            status.looked_at = Some(SystemTime::now());
        });
    }

    /// Applies the pieces that a manifest names and the copy lacks.
    ///
    /// # Errors
    /// `Corrupt` when an object is damaged, or gone: the manifest may be too old by now. `Closed` when the replica is to end. `Database`.
    async fn catch_up(&mut self, manifest: &Manifest) -> Result<()> {
        let Some(epoch) = manifest.epochs.last() else { return Ok(()) };
        self.note_newest(manifest);
        if !leads_on(epoch, self.copy.reached()) {
            let copy = unless_ending(&self.shared, self.base.copy_of(epoch)).await?;
            let mut reader = self.shared.reader.write().await;
            *reader = copy.reader();
            let old = std::mem::replace(&mut self.copy, copy);
            self.report();
            drop(reader);
            drop(old);
            self.base.home.remove_others()?;
        }
        let log: Vec<_> = epoch.log.iter().filter(|log| log.last > self.copy.reached().commit).collect();
        let mut fetcher = Fetcher::new(&self.base.remote, log.iter().map(|log| log.object.clone()).collect());
        for log in log {
            let at = self.copy.reached().commit;
            if log.after > at {
                return Err(Error::corrupt(format!("commits after {at} are missing")).met_in(&log.object.name));
            }
            let raw = unless_ending(&self.shared, async { fetcher.next().await.unwrap_or(Ok(Vec::new())) }).await?;
            let mut rest = &raw[..];
            while let Some(commit) = take_commit(&mut rest).map_err(|error| error.met_in(&log.object.name))? {
                if commit.commit <= self.copy.reached().commit {
                    continue;
                }
                if Copy::changes_tables(&commit) {
                    let shared = Arc::clone(&self.shared);
                    let _no_reader = shared.reader.write().await;
                    self.copy.apply(&commit).await?;
                } else {
                    self.copy.apply(&commit).await?;
                }
                self.report();
            }
        }
        Ok(())
    }

    /// Tells the handle the progress.
    fn report(&self) {
        self.shared.status.send_modify(|status| status.reached.clone_from(self.copy.reached()));
    }
}

/// Reads the manifest.
///
/// # Errors
/// As [`Current::read`]; `Corrupt` also when an older one has replaced it.
async fn newest_of(remote: &Remote) -> Result<Current> {
    match newest::read(remote).await? {
        (_, Age::SetBack(error)) => Err(error),
        (current, _) => Ok(current),
    }
}

/// Returns whether the log of an epoch continues at a copy's position.
fn leads_on(epoch: &Epoch, reached: &Progress) -> bool {
    EpochName::of(epoch) == reached.epoch && epoch.leads_on(reached.commit)
}

/// Waits for something that the store does, unless the replica is to end.
async fn unless_ending<T>(shared: &Shared, work: impl Future<Output = Result<T>>) -> Result<T> {
    let mut ending = shared.is_ending.subscribe();
    tokio::select! {
        biased;
        _ = ending.wait_for(|is_ending| *is_ending) => Err(ended()),
        done = work => done,
    }
}

/// Tells waiting callers that the task of a replica has ended.
struct LastWords(Arc<Shared>);

impl Drop for LastWords {
    fn drop(&mut self) {
        self.0.status.send_modify(|status| _ = status.end.get_or_insert_with(ended));
    }
}
