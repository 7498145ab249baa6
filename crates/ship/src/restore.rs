//! Restoring: the newest base before a point, and the commits after it up to that point.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use nofault::db::{Change, ChangeApplier, UnfinishedDb};
use nofault::settings::Settings;
use nofault::{CommitSeq, Db, TableId};
use object_store::ObjectStore;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::error::{Error, ErrorKind, Result};
use crate::fetch::Fetcher;
use crate::increment::IncrementApplier;
use crate::manifest::{Base, Current, Epoch, LogObject, Manifest, NamedObject};
use crate::newest::{self, Age};
use crate::object::{commit_time, take_commit, time_to_ms};
use crate::options::READING;
use crate::remote::Remote;

/// The point to which a database is restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Point {
    /// The newest commit in the store.
    Latest,
    /// The newest commit that became durable at this time or before: a deferred one follows its call by some milliseconds.
    Time(SystemTime),
    /// This commit, or the newest before it if it changed nothing. Where databases followed each other under the name, a commit of the last one.
    Commit(CommitSeq),
}

/// The point that was restored.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RestoredPoint {
    /// The commit of the source whose state the database has.
    pub commit: CommitSeq,
    /// The time of that commit, by the clock of the source.
    pub time: SystemTime,
    /// The next commit in the store, and its time; `None` when the newest one was restored, or the next one is of another span. Where
    /// the object with it cannot be read, the last commit of that object.
    pub next: Option<(CommitSeq, SystemTime)>,
    /// The warnings for a person, in sentences: objects in the store lead to newer commits than the manifest does.
    pub warnings: Vec<String>,
}

/// How far a restore is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RestoreProgress {
    /// Objects that were read and applied.
    pub objects: u64,
    /// Objects needed at the most: a restore of an earlier point may end before the last.
    pub objects_all: u64,
    /// Bytes of the objects that were read and applied, as they are in the store.
    pub bytes: u64,
    /// Bytes of all of them.
    pub bytes_all: u64,
}

type Entry = (Vec<u8>, Vec<u8>, Option<SystemTime>);

/// Restores a database into a folder, which must not exist or be empty; its parent must exist. An interrupted restore leaves nothing
/// there, but a folder next to it, with the ending `.nofault-restoring`, which the next one replaces.
///
/// `settings` apply to the restored database, except for the page size, which is the source's. For a database over several
/// folders, create one and use [`restore_into`].
///
/// # Errors
/// `NotFound` when there is nothing under the name, or nothing at that point; `AlreadyExists` when the folder is not empty; `InvalidCall`
/// for a path without a name at its end, for one in the folder of a database, and for settings with several folders; `Corrupt` when an object is damaged or gone, and when
/// an older manifest was put in place, unless a commit is asked for to which it leads; the errors of the store; `Database`.
pub async fn restore(
    store: Arc<dyn ObjectStore>,
    name: &str,
    point: Point,
    folder: impl AsRef<Path>,
    settings: &Settings,
) -> Result<RestoredPoint> {
    restore_with_progress(store, name, point, folder, settings, |_| {}).await
}

/// Restores as [`restore`] does, and calls `progress` at the beginning and after each object.
///
/// # Errors
/// As [`restore`].
pub async fn restore_with_progress(
    store: Arc<dyn ObjectStore>,
    name: &str,
    point: Point,
    folder: impl AsRef<Path>,
    settings: &Settings,
    mut progress: impl FnMut(&RestoreProgress) + Send,
) -> Result<RestoredPoint> {
    let folder = folder.as_ref();
    if folder.read_dir().is_ok_and(|mut entries| entries.next().is_some()) || folder.is_file() {
        let what = format!("{} is not empty: restore into another folder", folder.display());
        return Err(Error::new(ErrorKind::AlreadyExists, what));
    }
    if let Some(around) = nofault::db::database_around(folder) {
        let what = format!("{} lies in the database {}: restore outside", folder.display(), around.display());
        return Err(Error::new(ErrorKind::InvalidCall, what));
    }
    if !settings.stripe_folders.is_empty() {
        let what = "a database over several folders is not restored by its path: create it and restore into it";
        return Err(Error::new(ErrorKind::InvalidCall, what));
    }
    let unfinished = folder.file_name().map(|name| {
        let mut name = name.to_owned();
        name.push(".nofault-restoring");
        folder.with_file_name(name)
    });
    let unfinished = unfinished.ok_or_else(|| {
        let what = format!("{} has no name at its end: restore into a new folder", folder.display());
        Error::new(ErrorKind::InvalidCall, what)
    })?;
    let remote = Remote::new(store, name, READING)?;
    let (manifest, warnings) = read_for(&remote, point).await?;
    let page_bytes = choose(&manifest, point)?.page_bytes()? as usize;
    let failed = |error: std::io::Error| Error::of_system(folder.display(), &error, ErrorKind::Database);
    if unfinished.symlink_metadata().is_ok_and(|found| found.is_dir()) {
        std::fs::remove_dir_all(&unfinished).map_err(failed)?;
    }
    let settings = Settings { page_bytes, ..settings.clone() };
    let new = UnfinishedDb::create(&unfinished, &settings).await?;
    let removal = Removal(Some(unfinished.clone()));
    let restored = restore_from(&remote, &manifest, point, new.db(), &mut progress).await?;
    let restored = RestoredPoint { warnings, ..restored };
    new.finish().await?;
    std::fs::rename(&unfinished, folder).map_err(failed)?;
    removal.disarm();
    let parent = folder.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::File::open(parent).and_then(|parent| parent.sync_all()).map_err(failed)?;
    Ok(restored)
}

/// Removes an unfinished database, also when the future of its restore is dropped.
struct Removal(Option<PathBuf>);

impl Removal {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for Removal {
    fn drop(&mut self) {
        if let Some(folder) = &self.0 {
            // Files that stay are replaced by the next restore.
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

/// Restores into a database that the caller has created and that has no tables. Everything is durable when it returns, each table for itself;
/// into an [`UnfinishedDb`] it is faster where there are many, and durable with its end. If it fails the database has a part of the content: throw
/// it away.
///
/// # Errors
/// As [`restore`]; `AlreadyExists` when the database has tables.
pub async fn restore_into(store: Arc<dyn ObjectStore>, name: &str, point: Point, db: &Db) -> Result<RestoredPoint> {
    if !db.table_names().await?.is_empty() {
        return Err(Error::new(ErrorKind::AlreadyExists, "the database has tables: restore into a new one"));
    }
    let remote = Remote::new(store, name, READING)?;
    let (manifest, warnings) = read_for(&remote, point).await?;
    let restored = restore_from(&remote, &manifest, point, db, &mut |_| {}).await?;
    Ok(RestoredPoint { warnings, ..restored })
}

/// Reads the manifest for a point, and returns the warnings about it.
///
/// # Errors
/// As [`Current::read`](crate::manifest::Current::read); `Corrupt` also when an older manifest has replaced it, unless the point is a commit to which it leads:
/// then later commits are not asked for.
async fn read_for(remote: &Remote, point: Point) -> Result<(Manifest, Vec<String>)> {
    let (Current { manifest, .. }, age) = newest::read(remote).await?;
    let has = |commit: CommitSeq| manifest.epochs.last().is_some_and(|epoch| commit.0 <= epoch.newest().0);
    match (age, point) {
        (Age::Newest, _) => Ok((manifest, Vec::new())),
        (Age::Unsure(warning), _) => Ok((manifest, vec![warning])),
        (Age::SetBack(error), Point::Commit(commit)) if has(commit) => Ok((manifest, vec![error.to_string()])),
        (Age::SetBack(error), _) => {
            let (commit, _) = manifest.epochs.last().map(|epoch| epoch.newest()).unwrap_or_default();
            Err(error.or(&format!("or restore a commit up to {commit}, by its number (`nofault restore --commit`)")))
        }
    }
}

/// The way to a point: an epoch, and in it the base after which its log is applied, with the bases below it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Way<'m> {
    pub(crate) epoch: &'m Epoch,
    /// The first is one of the whole. Not empty.
    pub(crate) bases: &'m [Base],
}

impl<'m> Way<'m> {
    /// Returns the base after which the log is applied.
    pub(crate) fn last_base(&self) -> Result<&'m Base> {
        self.bases.last().ok_or_else(|| Error::corrupt("an epoch without a base"))
    }

    fn page_bytes(&self) -> Result<u64> {
        Ok(self.last_base()?.page_bytes)
    }
}

/// Returns the way to a point.
///
/// # Errors
/// `NotFound` when the store has no base at or before that point; `Corrupt` when bases are missing on which others stand.
pub(crate) fn choose(manifest: &Manifest, point: Point) -> Result<Way<'_>> {
    let is_before = |base: &Base| match point {
        Point::Latest => true,
        Point::Time(time) => base.time_ms <= time_to_ms(time),
        Point::Commit(commit) => base.commit <= commit.0,
    };
    let found = manifest.epochs.iter().rev().find_map(|epoch| {
        // A base may be ahead of the log that was shipped; it counts by itself then.
        epoch.starts().rev().find(|(_, base)| is_before(base)).map(|(at, base)| (epoch, at, base))
    });
    let (epoch, at, base) = found.ok_or_else(|| {
        let first = manifest.epochs.iter().find_map(|epoch| epoch.starts().next());
        let what = match first {
            Some((_, base)) => format!(
                "nothing from before that point is in the store: it begins with commit {} of {}",
                base.commit,
                humantime::format_rfc3339_millis(commit_time(base.time_ms))
            ),
            None => "the database was not shipped completely yet".into(),
        };
        Error::new(ErrorKind::NotFound, what)
    })?;
    let last = epoch.last.max(base.commit);
    match point {
        Point::Commit(commit) if commit.0 > last => {
            Err(Error::new(ErrorKind::NotFound, format!("the store has commits up to {last}, and not {commit}")))
        }
        _ => Ok(Way { epoch, bases: epoch.chain(at)? }),
    }
}

async fn restore_from(
    remote: &Remote,
    manifest: &Manifest,
    point: Point,
    db: &Db,
    progress: &mut (dyn FnMut(&RestoreProgress) + Send),
) -> Result<RestoredPoint> {
    let way = choose(manifest, point)?;
    let (Way { epoch, bases }, base) = (way, way.last_base()?);
    let log: Vec<&LogObject> = epoch.log.iter().filter(|log| log.last > base.commit).collect();
    let objects: Vec<NamedObject> =
        bases.iter().flat_map(|base| &base.parts).chain(log.iter().map(|log| &log.object)).cloned().collect();
    let mut so_far = RestoreProgress {
        objects_all: objects.len() as u64,
        bytes_all: objects.iter().map(|object| object.bytes).sum(),
        ..RestoreProgress::default()
    };
    progress(&so_far);
    let mut applied = |object: &NamedObject| {
        so_far.objects += 1;
        so_far.bytes += object.bytes;
        progress(&so_far);
    };
    let mut fetcher = Fetcher::new(remote, objects);
    let mut applier = fill_from(&mut fetcher, bases, db, &mut applied).await?;
    let (mut at, mut time_ms) = (base.commit, base.time_ms);
    let (mut before, mut next) = (None, None);
    'log: for log in log {
        let end = before.unwrap_or(base.commit);
        // Everything that the point needs is there: this object only names the next commit, and a failure of it is no failure of the point.
        let is_reached = matches!(point, Point::Commit(commit) if commit.0 <= end);
        if !is_reached && (before.is_some_and(|before| before != log.after) || log.after > end) {
            return Err(Error::corrupt(format!("commits after {at} are missing")).met_in(&log.object.name));
        }
        before = Some(log.last);
        let raw = match fetcher.next().await.unwrap_or(Ok(Vec::new())) {
            Err(_) if is_reached => {
                next = Some((CommitSeq(log.last), commit_time(log.last_time_ms)));
                break;
            }
            raw => raw.map_err(|error| after_the_last(error, point, at, time_ms))?,
        };
        let mut rest = &raw[..];
        while let Some(found) = take_commit(&mut rest).map_err(|error| error.met_in(&log.object.name))? {
            let is_behind = match point {
                Point::Latest => false,
                Point::Time(time) => found.time_ms > time_to_ms(time),
                Point::Commit(commit) => found.commit > commit.0,
            };
            if is_behind {
                next = Some((CommitSeq(found.commit), commit_time(found.time_ms)));
                break 'log;
            }
            if found.commit > base.commit {
                applier.apply(&found.changes).await?;
                (at, time_ms) = (found.commit, found.time_ms);
            }
        }
        applied(&log.object);
    }
    db.sync().await?;
    Ok(RestoredPoint { commit: CommitSeq(at), time: commit_time(time_ms), next, warnings: Vec::new() })
}

/// Returns the error of an object without which a time cannot be restored, with the last commit before it: whether the object has commits of that time
/// is not known, so an older state is restored only by the caller's word.
fn after_the_last(error: Error, point: Point, at: u64, time_ms: u64) -> Error {
    match point {
        Point::Commit(_) => error,
        _ => {
            let time = humantime::format_rfc3339_millis(commit_time(time_ms));
            error.or(&format!("the last commit before it is {at} of {time} (`nofault restore --commit {at}`)"))
        }
    }
}

/// Fills a new database with a base of the whole and the increments on it, in their order. Returns the applier for the log that follows.
pub(crate) async fn fill_bases(remote: &Remote, bases: &[Base], db: &Db) -> Result<ChangeApplier> {
    let parts = bases.iter().flat_map(|base| &base.parts).cloned().collect();
    fill_from(&mut Fetcher::new(remote, parts), bases, db, &mut |_| {}).await
}

async fn fill_from(
    fetcher: &mut Fetcher,
    bases: &[Base],
    db: &Db,
    applied: &mut (dyn FnMut(&NamedObject) + Send),
) -> Result<ChangeApplier> {
    let Some((whole, increments)) = bases.split_first() else { return Ok(ChangeApplier::new(db)) };
    let mut filler = Filler { applier: ChangeApplier::new(db), load: None };
    let filled = fill(&mut filler, fetcher, &whole.parts, applied).await;
    // In any case: a running load keeps the database open.
    let ended = filler.end_load().await;
    filled?;
    ended?;
    let mut applier = filler.applier;
    for increment in increments {
        let mut increment_applier = IncrementApplier::new(db, &mut applier);
        for part in &increment.parts {
            let raw = fetcher.next().await.unwrap_or(Ok(Vec::new()))?;
            let mut rest = &raw[..];
            while let Some(commit) = take_commit(&mut rest).map_err(|error| error.met_in(&part.name))? {
                let done = increment_applier.apply(&commit.changes).await;
                done.map_err(
                    |error| if error.kind() == ErrorKind::Corrupt { error.met_in(&part.name) } else { error },
                )?;
            }
            applied(part);
        }
        increment_applier.finish()?;
    }
    Ok(applier)
}

/// Fills a database from the parts of a base.
async fn fill(
    filler: &mut Filler,
    fetcher: &mut Fetcher,
    parts: &[NamedObject],
    applied: &mut (dyn FnMut(&NamedObject) + Send),
) -> Result<()> {
    for part in parts {
        let raw = fetcher.next().await.unwrap_or(Ok(Vec::new()))?;
        let mut rest = &raw[..];
        while let Some(commit) = take_commit(&mut rest).map_err(|error| error.met_in(&part.name))? {
            filler.fill(commit.changes).await?;
        }
        applied(part);
    }
    Ok(())
}

/// Fills the tables of a base, each with one bulk load.
struct Filler {
    applier: ChangeApplier,
    load: Option<Load>,
}

/// A bulk load that takes its entries from the store.
struct Load {
    table: TableId,
    entries: mpsc::Sender<Vec<Entry>>,
    task: JoinHandle<nofault::error::Result<u64>>,
}

impl Filler {
    async fn fill(&mut self, changes: Vec<Change>) -> Result<()> {
        let mut entries = Vec::new();
        for change in changes {
            match change {
                Change::Put { table, key, value, expiry } => {
                    self.begin_load(table).await?;
                    entries.push((key, value, expiry));
                }
                other => {
                    // Only a table's first changes are not puts.
                    self.send(std::mem::take(&mut entries)).await?;
                    self.end_load().await?;
                    self.applier.apply(&[other]).await?;
                }
            }
        }
        self.send(entries).await
    }

    async fn begin_load(&mut self, table: TableId) -> Result<()> {
        if self.load.as_ref().is_some_and(|load| load.table == table) {
            return Ok(());
        }
        self.end_load().await?;
        let missing = || Error::corrupt(format!("a base fills table {table}, which it does not create"));
        let target = self.applier.table(table).ok_or_else(missing)?.clone();
        let (entries, mut received) = mpsc::channel::<Vec<Entry>>(4);
        let mut lot = Vec::new().into_iter();
        let from = std::iter::from_fn(move || {
            loop {
                match lot.next() {
                    Some(entry) => return Some(entry),
                    // On the thread of the load.
                    None => lot = received.blocking_recv()?.into_iter(),
                }
            }
        });
        let task = tokio::spawn(async move { target.bulk_load(from).await });
        self.load = Some(Load { table, entries, task });
        Ok(())
    }

    async fn send(&mut self, entries: Vec<Entry>) -> Result<()> {
        let Some(load) = &self.load else { return Ok(()) };
        if !entries.is_empty() && load.entries.send(entries).await.is_err() {
            // The load has ended early; it says why.
            self.end_load().await?;
        }
        Ok(())
    }

    async fn end_load(&mut self) -> Result<()> {
        let Some(Load { entries, task, .. }) = self.load.take() else { return Ok(()) };
        drop(entries);
        let loaded = task.await.map_err(|error| Error::new(ErrorKind::Database, format!("a load ended: {error}")))?;
        Ok(loaded.map(drop)?)
    }
}
