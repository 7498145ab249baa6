//! The protocols with a log: a commit is a record in the log, and its pages reach the file afterwards.
//!
//! | | `user_cow` | `os_cow` |
//! |---|---|---|
//! | a writer changes | copies in user memory | a private map: the system copies each page at the first store |
//! | readers see | the newest durable commit: versions outside the map, else the map | the private map, under a lock: also commits that are not durable yet, as in MMAPv1 |
//! | a durable commit reaches the file by | stores into the shared map, or `pwrite` | stores into a second, shared map |
//! | memory that accumulates | versions, until no reader needs the older pages in the map | private pages, until the map drops them all |
//!
//! `mapped_log` is `user_cow` written back by calls, but for one thing: pages reach the file in unused places
//! (`placed`), never in their old ones, and a checkpoint switches to the table that leads there.
//!
//! Kept true by:
//! 1. A version goes into the file only when its commit is durable in the log, and every reader finds it or a newer one
//!    outside the map: until it is there completely it stays among the versions.
//! 2. A checkpoint at commit C: everything up to C is in the file and synced, then the meta page names the place in the
//!    log. Records are replayed from there as byte runs, which makes torn pages whole (`record`); where pages move they
//!    are whole anyway.
//! 3. The private map drops its copies only while commits wait, and after every committed page was applied: afterwards
//!    it shows the pages of the file.
//! 4. A commit's versions and state are there before the log has all of its record: any thread waiting for the log
//!    writes all records in it. From then on the commit is visible, and a checkpoint may be at it.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nofault_io::mapped::{MappedFile, SyncMode};

use super::file::DataFile;
use super::free::{FreePages, RecordChanges, Records};
use super::free_tree;
use super::meta::{Meta, State};
use super::placed::PlacedPages;
use super::shape::Shape;
use super::versions::{NEWEST, Versions};
use super::workspace::{View, Workspace};
use super::{Batch, READS_GO_ON, apply_batch, guarded, lock, reads_after_failure, record};
use crate::error::{Error, ErrorKind, Result};
use crate::format::{CommitSeq, PageId, seal_page};
use crate::pages::{Attempt, CommitLog, Durability, Host, LogPosition, Pages, Ticket, Wait};
use crate::sync::background;
use crate::wal::Log;

#[cfg(test)]
mod tests;

/// Number of committed pages kept outside the data file at which a committer itself applies them to the file.
const WAITING_PAGES_MAX: usize = 4096;
/// Number of committed pages outside the data file at which the background thread is woken early.
const WAITING_PAGES_WAKE: usize = 512;
/// Longest time that committed pages otherwise stay outside the data file.
const APPLY_EVERY: Duration = Duration::from_millis(10);
/// Longest sleep of the background thread when nothing happens.
const IDLE_MOST: Duration = Duration::from_secs(1);
/// How long a commit waits for readers that prevent the reuse of the log.
const READERS_END_WITHIN: Duration = Duration::from_secs(1);
/// Attempts of a commit to find free space in the log before it fails.
const ATTEMPTS: usize = 100;

/// A mapped store with a log: see the module.
pub(super) struct LoggedStore {
    pub(super) shape: Shape,
    /// The root of the table. It never moves, so it is the root in every commit.
    pub(super) table: PageId,
    pub(super) data: DataFile,
    shared: MappedFile,
    /// Whether pages are applied to the file by stores into `shared`.
    through_map: bool,
    /// Where each page is; `None` for a protocol writing pages back to their own places.
    placed: Option<PlacedPages>,
    private: Option<RwLock<MappedFile>>,
    private_pages_max: usize,
    pub(super) log: Log,
    versions: Versions,
    /// The newest durable commit.
    visible: Arc<AtomicU64>,
    writer: Mutex<Writer>,
    /// Number of readers of each commit.
    readers: Mutex<BTreeMap<CommitSeq, usize>>,
    /// The states after the commits since the last checkpoint.
    states: Mutex<VecDeque<(CommitSeq, State)>>,
    /// Held by the thread that applies pages to the file.
    applying: Mutex<()>,
    meta: Mutex<Meta>,
    in_background: AtomicBool,
    signal: (Mutex<Signal>, Condvar),
    pub(super) counts: Counts,
}

/// A request to the background thread.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Signal {
    /// Whether something was committed to be applied soon.
    work: bool,
    /// Whether the thread is to begin at once instead of waiting for more work.
    hurry: bool,
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) remaps: AtomicU64,
    pub(super) remap_ns_max: AtomicU64,
    pub(super) private_pages: AtomicU64,
    pub(super) checkpoints: AtomicU64,
}

struct Writer {
    commit: CommitSeq,
    state: State,
    records: Records,
    /// Pages of the private map that are private copies.
    copied: HashSet<PageId>,
}

/// A commit whose record is ready to be appended to the log.
struct PreparedCommit {
    record: Vec<u8>,
    pages: Vec<(PageId, Arc<[u8]>)>,
    state: State,
    changes: RecordChanges,
}

/// A commit whose record is in the log.
struct LoggedCommit {
    position: LogPosition,
    state: State,
    changes: RecordChanges,
}

/// The parts from which a logged store is opened.
pub(super) struct Parts {
    pub(super) shape: Shape,
    pub(super) data: DataFile,
    pub(super) shared: MappedFile,
    pub(super) through_map: bool,
    pub(super) private: Option<MappedFile>,
    pub(super) placed: Option<PlacedPages>,
    pub(super) private_bytes_max: u64,
    pub(super) log: Log,
    pub(super) meta: Meta,
}

/// The newest durable commit, which readers see.
struct VisibleCommit(Arc<AtomicU64>);

impl Host for VisibleCommit {
    fn commits_durable(&self, newest: CommitSeq) {
        self.0.fetch_max(newest.0, Ordering::SeqCst);
    }
}

impl LoggedStore {
    /// Opens a store. `state` and `commit` belong to the newest record, which the file already contains.
    pub(super) fn open(parts: Parts, commit: CommitSeq, state: State) -> Result<Self> {
        let Parts { shape, data, shared, through_map, private, placed, private_bytes_max, log, meta } = parts;
        let view = View { shape, map: &shared, versions: None, placed: placed.as_ref() };
        let records = guarded(&shared, || free_tree::load(&view, state))?;
        let visible = Arc::new(AtomicU64::new(commit.0));
        log.set_host(Arc::new(VisibleCommit(Arc::clone(&visible))));
        let store = Self {
            shape,
            table: state.table,
            data,
            shared,
            through_map,
            placed,
            private: private.map(RwLock::new),
            private_pages_max: usize::try_from(private_bytes_max / shape.page_bytes as u64)
                .unwrap_or(usize::MAX)
                .max(1),
            log,
            versions: Versions::default(),
            visible,
            writer: Mutex::new(Writer { commit, state, records, copied: HashSet::new() }),
            readers: Mutex::default(),
            states: Mutex::new(VecDeque::from([(commit, state)])),
            applying: Mutex::default(),
            meta: Mutex::new(meta),
            in_background: AtomicBool::new(false),
            signal: (Mutex::default(), Condvar::new()),
            counts: Counts::default(),
        };
        // Replayed records are in the file now: they need not be replayed again.
        store.checkpoint()?;
        Ok(store)
    }

    /// Registers a reader of the newest durable commit. [`LoggedStore::end`] ends the registration.
    pub(super) fn begin(&self) -> CommitSeq {
        let mut readers = lock(&self.readers);
        // Read under the lock, which is also held to decide which versions may go into the map.
        let now = CommitSeq(self.visible.load(Ordering::SeqCst));
        if self.private.is_none() {
            *readers.entry(now).or_default() += 1;
        }
        now
    }

    pub(super) fn end(&self, commit: CommitSeq) {
        let mut readers = lock(&self.readers);
        if let Some(count) = readers.get_mut(&commit) {
            *count -= 1;
            if *count == 0 {
                readers.remove(&commit);
            }
        }
    }

    pub(super) fn accounts(&self) -> (State, Records) {
        let writer = lock(&self.writer);
        (writer.state, writer.records.clone())
    }

    pub(super) fn waiting_pages(&self) -> usize {
        self.versions.pages()
    }

    pub(super) fn look<R>(&self, at: CommitSeq, look: impl FnOnce(&View<'_>) -> Attempt<R>) -> Result<R> {
        match &self.private {
            Some(private) => {
                let map = private.read().unwrap_or_else(PoisonError::into_inner);
                guarded(&map, || look(&View { shape: self.shape, map: &map, versions: None, placed: None }))
            }
            None => guarded(&self.shared, || look(&self.view(at))),
        }
    }

    fn view(&self, at: CommitSeq) -> View<'_> {
        View {
            shape: self.shape,
            map: &self.shared,
            versions: Some((&self.versions, at)),
            placed: self.placed.as_ref(),
        }
    }

    /// Makes a batch durable.
    pub(super) fn commit(&self, batch: &Batch) -> Result<()> {
        // First, because with a failed map the errors of this batch would be misleading.
        self.log.check()?;
        for _ in 0..ATTEMPTS {
            if let Some(position) = self.try_commit(batch)? {
                self.log.durable(position).wait()?;
                // The batch is committed even if its pages cannot be applied: the next commit reports that error.
                self.tidy_up().unwrap_or_else(|error| self.poison(&error));
                return Ok(());
            }
            self.make_space()?;
        }
        Err(Error::new(ErrorKind::NoSpace, "the log stays full although checkpoints are made; allow it more bytes"))
    }

    /// Publishes a batch and appends its record. Returns `None`, with nothing changed, when the log has no free space.
    fn try_commit(&self, batch: &Batch) -> Result<Option<LogPosition>> {
        let mut writer = lock(&self.writer);
        let commit = writer.commit.next();
        let mut stored = BTreeSet::new();
        let published = match &self.private {
            None => guarded(&self.shared, || self.prepare(batch, commit, &writer, None, &mut stored))
                .and_then(|prepared| self.publish(commit, prepared)),
            Some(private) => {
                // Readers wait for the changes to the map, not for the log.
                let map = private.write().unwrap_or_else(PoisonError::into_inner);
                let outcome = guarded(&map, || {
                    Ok(guarded(&self.shared, || self.prepare(batch, commit, &writer, Some(&map), &mut stored)))
                });
                let published = outcome.and_then(|prepared| self.publish(commit, prepared?));
                if !matches!(published, Ok(Some(_))) {
                    self.restore(&map, &stored)?;
                }
                published
            }
        };
        writer.copied.extend(stored);
        let Some(LoggedCommit { position, state, changes }) = published? else { return Ok(None) };
        changes.apply(&mut writer.records);
        (writer.commit, writer.state) = (commit, state);
        self.counts.private_pages.store(writer.copied.len() as u64, Ordering::Relaxed);
        Ok(Some(position))
    }

    /// Makes the commit's record, without appending it. `stored` gets the pages changed in the private map, in any case.
    fn prepare(
        &self,
        batch: &Batch,
        commit: CommitSeq,
        writer: &Writer,
        private: Option<&MappedFile>,
        stored: &mut BTreeSet<PageId>,
    ) -> Attempt<PreparedCommit> {
        let free = FreePages::new(&writer.records, NEWEST);
        let mut work = match private {
            // SAFETY: the caller holds the lock of the private map for writing.
            Some(map) => unsafe { Workspace::in_private(self.shape, map, writer.state, free) },
            None => Workspace::copying(self.view(NEWEST), writer.state, free),
        };
        let prepared = self.prepare_in(&mut work, batch, commit);
        stored.append(&mut work.into_stored_to());
        prepared
    }

    fn prepare_in(&self, work: &mut Workspace<'_>, batch: &Batch, commit: CommitSeq) -> Attempt<PreparedCommit> {
        apply_batch(work, batch)?;
        let changes = free_tree::save(work, commit, |_| Ok(()))?;
        let mut record = record::begin(work.state);
        let mut pages = Vec::new();
        // A page used for the first time has no checksum yet.
        let before = View { shape: Shape { checksums: false, ..self.shape }, ..self.view(NEWEST) };
        for id in work.touched() {
            let image = work.image_mut(id)?;
            if self.shape.checksums {
                seal_page(self.shape.file_id, id, commit, image);
            }
            record::push_page(&mut record, id, before.page(id)?.image(), image);
            pages.push((id, Arc::from(&*image)));
        }
        Ok(PreparedCommit { record, pages, state: work.state, changes })
    }

    /// Restores the pages of the private map that an abandoned commit changed to the state of the last commit.
    fn restore(&self, map: &MappedFile, stored: &BTreeSet<PageId>) -> Result<()> {
        let before = View { shape: Shape { checksums: false, ..self.shape }, ..self.view(NEWEST) };
        guarded(map, || {
            Ok(guarded(&self.shared, || {
                for id in stored {
                    let page = before.page(*id)?;
                    // SAFETY: the caller holds the lock of the private map for writing.
                    let at = unsafe { map.slice_mut(self.shape.range(*id)?) };
                    at.map_err(|error| Error::from_io(format_args!("page {id}"), error))?.copy_from_slice(page.image());
                }
                Ok(())
            }))
        })?
    }

    /// Adds versions and state of a commit, then appends its record (rule 4); `None`, unchanged, if the log is full.
    fn publish(&self, commit: CommitSeq, prepared: PreparedCommit) -> Result<Option<LoggedCommit>> {
        let PreparedCommit { record, pages, state, changes } = prepared;
        let ids: Vec<PageId> = pages.iter().map(|(id, _)| *id).collect();
        self.versions.add(commit, pages);
        lock(&self.states).push_back((commit, state));
        let appended = self.append(commit, &record);
        if !matches!(appended, Ok(Some(_))) {
            // Without its whole record the commit cannot become visible, so no reader has used these.
            lock(&self.states).pop_back();
            self.versions.take_back(commit, &ids);
        }
        Ok(appended?.map(|position| LoggedCommit { position, state, changes }))
    }

    /// Appends a record. Returns `None`, with nothing appended, when the log has no free space.
    fn append(&self, commit: CommitSeq, record: &[u8]) -> Result<Option<LogPosition>> {
        let mut fragments = record.chunks(self.log.fragment_bytes_max()).peekable();
        let (mut begun, mut grown) = (false, false);
        let mut position = LogPosition::default();
        while let Some(fragment) = fragments.next() {
            let last = fragments.peek().is_none().then_some(Durability::Sync);
            position = loop {
                match self.log.append(commit, &[fragment], last) {
                    Ok(position) => break position,
                    Err(Wait::LogFull { len_bytes }) if !begun && !grown => {
                        // Where the disk is full a checkpoint may help.
                        let _ = self.log.grow_for(len_bytes);
                        grown = true;
                    }
                    Err(Wait::LogFull { .. }) if !begun => return Ok(None),
                    // A record that was begun finds room as soon as memory is free: see `wal`.
                    Err(Wait::LogFull { len_bytes }) => self.log.await_space(len_bytes).wait()?,
                    Err(Wait::Failed(error)) => return Err(error),
                    Err(other) => return Err(Error::new(ErrorKind::Bug, format!("the log met {other:?}"))),
                }
            };
            begun = true;
        }
        Ok(Some(position))
    }

    /// Makes a checkpoint to free log space, after waiting a limited time for readers needing the log.
    fn make_space(&self) -> Result<()> {
        self.log.flush()?;
        let (started, before) = (Instant::now(), lock(&self.meta).commit);
        loop {
            self.checkpoint()?;
            let oldest = lock(&self.readers).keys().next().copied();
            let held = oldest.filter(|oldest| oldest.0 < self.visible.load(Ordering::SeqCst));
            let Some(oldest) = held.filter(|_| lock(&self.meta).commit == before) else { return Ok(()) };
            if started.elapsed() > READERS_END_WITHIN {
                let what =
                    format!("the log is full, and a reader of commit {oldest} keeps it from being used again: end it");
                return Err(Error::new(ErrorKind::NoSpace, what));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Applies pages and does due maintenance after a commit, unless a background thread does so in time.
    fn tidy_up(&self) -> Result<()> {
        let waiting = self.versions.pages();
        if self.in_background.load(Ordering::Relaxed) {
            self.tell(waiting > WAITING_PAGES_WAKE || self.wants_shrinking() || self.log.wants_checkpoint());
            return if waiting > WAITING_PAGES_MAX { self.apply().map(drop) } else { Ok(()) };
        }
        if waiting > WAITING_PAGES_WAKE {
            self.apply()?;
        }
        self.maintain()
    }

    /// Wakes the background thread: there is work for it.
    fn tell(&self, hurry: bool) {
        let mut signal = lock(&self.signal.0);
        let told = Signal { work: true, hurry: signal.hurry || hurry };
        if *signal != told {
            *signal = told;
            self.signal.1.notify_one();
        }
    }

    fn maintain(&self) -> Result<()> {
        if self.log.wants_checkpoint() {
            self.checkpoint()?;
        }
        if self.wants_shrinking() { self.shrink() } else { Ok(()) }
    }

    /// Stops all further commits, because committed pages could not be applied to the file.
    fn poison(&self, error: &Error) {
        // The readers of a private map do not look at the one that pages are stored into.
        let reads = if self.private.is_some() { READS_GO_ON } else { reads_after_failure(&self.shared) };
        let what = format!("committed pages could not be applied to the mapped file ({error}); {reads}");
        self.log.poison(&Error::new(ErrorKind::Poisoned, what));
    }

    /// Applies the versions of durable commits to the file. Returns the commit up to which the file is complete.
    fn apply(&self) -> Result<CommitSeq> {
        self.apply_in(&lock(&self.applying))
    }

    fn apply_in(&self, _one: &MutexGuard<'_, ()>) -> Result<CommitSeq> {
        let limit = {
            let readers = lock(&self.readers);
            let visible = CommitSeq(self.visible.load(Ordering::SeqCst));
            readers.keys().next().copied().unwrap_or(visible).min(visible)
        };
        let pages = self.versions.up_to(limit);
        if let Some(placed) = &self.placed {
            placed.write(&self.data, &pages).inspect_err(|error| self.poison(error))?;
        }
        for (id, _, page) in pages.iter().filter(|_| self.placed.is_none()) {
            let at = id.0 * self.shape.page_bytes as u64;
            let stored = if self.through_map {
                self.data.note_written(page.len());
                // SAFETY: readers and writers find these pages, or newer ones, among the versions (rule 1), and the
                // private map has its own copies of them (rule 3).
                unsafe { self.shared.write_at(at as usize, page) }
                    .map_err(|error| Error::from_io("store into the map", error))
            } else {
                self.data.write_at(page, at)
            };
            stored.inspect_err(|error| self.poison(error))?;
        }
        self.versions.applied(&pages);
        Ok(limit)
    }

    /// Applies all commits that are durable in the log, up to the limit that readers set, and makes them durable in the
    /// file.
    pub(super) fn checkpoint(&self) -> Result<()> {
        let mut meta = lock(&self.meta);
        self.log.check()?;
        let (commit, snapshot) = {
            let one = lock(&self.applying);
            let commit = self.apply_in(&one)?;
            // Without a later commit the log may have more to give back all the same: a record that was given up.
            if commit < meta.commit || commit == meta.commit && self.log.anchor_after(commit) == meta.anchor {
                return Ok(());
            }
            // Before any page of a later commit is placed.
            let snapshot = self.placed.as_ref().map(|placed| placed.snapshot(&self.data)).transpose();
            (commit, snapshot.inspect_err(|error| self.poison(error))?)
        };
        let state = lock(&self.states).iter().take_while(|(at, _)| *at <= commit).last().map(|(_, state)| *state);
        let next = Meta {
            sequence: meta.sequence + 1,
            commit,
            state: state.unwrap_or(meta.state),
            anchor: self.log.anchor_after(commit),
            table: snapshot.as_ref().map_or(0, |snapshot| snapshot.root),
            ..*meta
        };
        let synced = if self.through_map {
            self.data.syncs.fetch_add(1, Ordering::Relaxed);
            let all = 0..self.shared.len_bytes();
            self.shared.sync(all, SyncMode::Wait).map_err(|error| Error::from_io("sync the map", error))
        } else {
            self.data.sync()
        };
        synced.and_then(|()| self.data.write_meta(&next)).inspect_err(|error| self.poison(error))?;
        *meta = next;
        if let Some((placed, snapshot)) = self.placed.as_ref().zip(snapshot) {
            placed.made_durable(snapshot);
        }
        self.log.recycle(next.anchor);
        let mut states = lock(&self.states);
        while states.get(1).is_some_and(|(at, _)| *at <= commit) {
            states.pop_front();
        }
        self.counts.checkpoints.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Checks the accounting of all blocks, in a file where pages move.
    pub(super) fn check_places(&self) -> Result<()> {
        let _no_checkpoint = lock(&self.meta);
        let _nothing_applied = lock(&self.applying);
        self.placed.as_ref().map_or(Ok(()), PlacedPages::check)
    }

    fn wants_shrinking(&self) -> bool {
        self.private.is_some() && self.counts.private_pages.load(Ordering::Relaxed) >= self.private_pages_max as u64
    }

    /// Remaps the private map, so that it shows the file again and the memory of its copies is freed. Waits for commits
    /// and readers to finish.
    pub(super) fn shrink(&self) -> Result<()> {
        let Some(private) = &self.private else { return Ok(()) };
        let started = Instant::now();
        let mut writer = lock(&self.writer);
        self.log.flush()?;
        self.apply()?;
        if self.versions.pages() > 0 {
            return Err(Error::new(
                ErrorKind::Bug,
                "committed pages are left over while the private map is to be dropped",
            ));
        }
        let mut map = private.write().unwrap_or_else(PoisonError::into_inner);
        let all = 0..map.len_bytes();
        map.discard(all).map_err(|error| Error::from_io("drop private copies", error))?;
        drop(map);
        writer.copied.clear();
        self.counts.private_pages.store(0, Ordering::Relaxed);
        self.counts.remaps.fetch_add(1, Ordering::Relaxed);
        let took_ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.counts.remap_ns_max.fetch_max(took_ns, Ordering::Relaxed);
        Ok(())
    }
}

/// Handle of a thread that applies, checkpoints and shrinks; the thread ends when this is dropped.
pub(super) struct Background {
    store: Weak<LoggedStore>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    pub(super) fn start(store: &Arc<LoggedStore>) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (weak, stopped) = (Arc::downgrade(store), Arc::clone(&stop));
        store.in_background.store(true, Ordering::Relaxed);
        let work = move || {
            while let Some(store) = weak.upgrade() {
                let told = wait_for_work(&store.signal);
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                if !told {
                    continue;
                }
                // The next commit reports the error.
                store.apply().and_then(|_| store.maintain()).unwrap_or_else(|error| store.poison(&error));
            }
        };
        let thread = background::start("nofault-mmap", store.log.poison_in_panic(), work)?;
        Ok(Self { store: Arc::downgrade(store), stop, thread: Some(thread) })
    }
}

/// Waits until there is work, and a little longer for more. Returns false when there was none for a long time.
fn wait_for_work((told, changed): &(Mutex<Signal>, Condvar)) -> bool {
    let wait = |signal, most, quiet: fn(&mut Signal) -> bool| {
        changed.wait_timeout_while(signal, most, quiet).unwrap_or_else(PoisonError::into_inner).0
    };
    let mut signal = wait(lock(told), IDLE_MOST, |signal| !signal.work);
    if signal.work {
        signal = wait(signal, APPLY_EVERY, |signal| !signal.hurry);
    }
    std::mem::take(&mut *signal).work
}

impl Drop for Background {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(store) = self.store.upgrade() {
            store.tell(true);
        }
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed already.
            let _ = thread.join();
        }
    }
}
