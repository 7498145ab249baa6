//! A store in plain maps, for tests: every version of every page is kept, and *residency* is a matter of policy, so
//! that all code above runs its waiting paths. It checks the contract from the store's side: one `PageCopies` at a
//! time, pages only as allocated, commits in order.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Poll, Waker};

use super::{Attempt, CommitLog, Durability, LogPosition, Missing, PageCopies, Pages, Snapshot, Store, Ticket, Wait};
use crate::error::{Error, ErrorKind, Result};
use crate::format::{CommitSeq, HEADER_BYTES, PageId};
use crate::sync::semaphore::Permit;

/// The choice of pages that the memory store treats as being in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Residency {
    /// All pages, always.
    Everything,
    /// Only pages that a live ticket holds are in memory.
    Requested,
    /// Pages that a live ticket holds, and any other page with an even chance, drawn from this seed at every access.
    Chance(u64),
}

type Versions = Vec<(CommitSeq, Option<Arc<[u8]>>)>;

/// A page store in memory, for tests. It reports some pages as missing, so that callers must load them.
#[derive(Debug, Clone)]
pub(crate) struct MemoryStore(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    page_bytes: usize,
    frames_max: usize,
    visible: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    pages: BTreeMap<PageId, Versions>,
    next_id: u64,
    reusable: Vec<(CommitSeq, PageId)>,
    last_published: CommitSeq,
    editing: bool,
    pins: HashMap<PageId, usize>,
    snapshots: BTreeMap<CommitSeq, usize>,
    /// Number of further snapshots evicted as soon as they are taken.
    give_up: usize,
    residency: Residency,
    random: u64,
    misses: u64,
    /// Number of pages that were requested and not submitted yet.
    queued: usize,
    /// The number of pages of each submission so far.
    submissions: Vec<usize>,
    /// The wakers of tickets waiting for the next submission of reads.
    wakers: Vec<Waker>,
}

/// Number of queued pages submitted together without waiting for more.
const BATCH: usize = 8;

impl MemoryStore {
    /// Creates an empty page store.
    pub(crate) fn new(page_bytes: usize, frames_max: usize, residency: Residency) -> Self {
        let random = if let Residency::Chance(seed) = residency { seed | 1 } else { 1 };
        let state = State {
            pages: BTreeMap::new(),
            next_id: 0,
            reusable: Vec::new(),
            last_published: CommitSeq(0),
            editing: false,
            pins: HashMap::new(),
            snapshots: BTreeMap::new(),
            give_up: 0,
            residency,
            random,
            misses: 0,
            queued: 0,
            submissions: Vec::new(),
            wakers: Vec::new(),
        };
        Self(Arc::new(Inner { page_bytes, frames_max, visible: AtomicU64::new(0), state: Mutex::new(state) }))
    }

    /// Returns how many page accesses have missed so far.
    pub(crate) fn misses(&self) -> u64 {
        self.lock().misses
    }

    /// Returns the number of pins of all pages, each held by a live ticket.
    pub(crate) fn pinned(&self) -> usize {
        self.lock().pins.values().sum()
    }

    /// Returns the number of pages of each submission so far.
    pub(crate) fn submissions(&self) -> Vec<usize> {
        self.lock().submissions.clone()
    }

    /// Returns the ids of the pages that exist as of the last publication.
    pub(crate) fn live_pages(&self) -> HashSet<PageId> {
        let state = self.lock();
        let live = state.pages.iter().filter(|(_, versions)| versions.last().is_some_and(|last| last.1.is_some()));
        live.map(|(id, _)| *id).collect()
    }

    /// Changes the bytes of a page's newest version, to simulate damage.
    pub(crate) fn damage(&self, id: PageId, change: impl FnOnce(&mut [u8])) {
        let mut state = self.lock();
        let last = state.pages.get_mut(&id).and_then(|versions| versions.last_mut()).expect("a page to damage");
        let mut body = last.1.as_deref().expect("a live page").to_vec();
        change(&mut body);
        last.1 = Some(body.into());
    }

    /// Makes the store evict the next `count` snapshots as soon as they are taken.
    pub(crate) fn give_up_snapshots(&self, count: usize) {
        self.lock().give_up = count;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().expect("the memory store's lock")
    }

    fn view_at(&self, at: CommitSeq) -> MemoryView {
        MemoryView { store: self.clone(), at, too_old: false }
    }
}

impl State {
    fn version(&self, id: PageId, at: CommitSeq) -> Option<(CommitSeq, Arc<[u8]>)> {
        let versions = self.pages.get(&id)?;
        let (seq, body) = versions.iter().rev().find(|(seq, _)| *seq <= at)?;
        Some((*seq, body.clone()?))
    }

    fn resident(&mut self, id: PageId) -> bool {
        if self.pins.get(&id).is_some_and(|count| *count > 0) {
            return true;
        }
        let hit = match self.residency {
            Residency::Everything => true,
            Residency::Requested => false,
            Residency::Chance(_) => {
                self.random ^= self.random << 13;
                self.random ^= self.random >> 7;
                self.random ^= self.random << 17;
                self.random & 1 == 0
            }
        };
        self.misses += u64::from(!hit);
        hit
    }

    fn look(&mut self, id: PageId, at: CommitSeq) -> Attempt<(CommitSeq, Arc<[u8]>)> {
        if !self.resident(id) {
            return Err(Wait::Miss(Missing { page: id, at }));
        }
        self.version(id, at).ok_or_else(|| Error::corrupt_page(id, "is not allocated").into())
    }
}

/// A view of the memory store: the pages as of one commit.
pub(crate) struct MemoryView {
    store: MemoryStore,
    at: CommitSeq,
    too_old: bool,
}

impl Pages for MemoryView {
    type Page<'a> = Arc<[u8]>;

    fn page_bytes(&self) -> usize {
        self.store.0.page_bytes
    }

    fn page(&self, id: PageId) -> Attempt<Arc<[u8]>> {
        if self.too_old {
            return Err(Error::new(ErrorKind::SnapshotTooOld, "the snapshot was given up").into());
        }
        self.store.lock().look(id, self.at).map(|(_, body)| body)
    }
}

impl super::Versions for MemoryView {
    fn written_in(&self, id: PageId) -> Attempt<CommitSeq> {
        self.store.lock().look(id, self.at).map(|(seq, _)| seq)
    }
}

/// The private copies of a commit to the memory store.
pub(crate) struct MemoryCopies {
    store: MemoryStore,
    edited: RefCell<HashMap<PageId, Arc<[u8]>>>,
    freed: Vec<PageId>,
    allocated: Vec<PageId>,
    published: bool,
}

impl MemoryCopies {
    fn room(&self, frames: usize) -> Attempt<()> {
        let frames = self.edited.borrow().len() + frames;
        if frames > self.store.0.frames_max { Err(Wait::Full { frames }) } else { Ok(()) }
    }
}

impl Pages for MemoryCopies {
    type Page<'a> = Arc<[u8]>;

    fn page_bytes(&self) -> usize {
        self.store.0.page_bytes
    }

    fn page(&self, id: PageId) -> Attempt<Arc<[u8]>> {
        if let Some(body) = self.edited.borrow().get(&id) {
            return Ok(body.clone());
        }
        let mut state = self.store.lock();
        let latest = state.last_published;
        state.look(id, latest).map(|(_, body)| body)
    }
}

impl super::Versions for MemoryCopies {
    fn written_in(&self, id: PageId) -> Attempt<CommitSeq> {
        super::Versions::written_in(&self.store.latest_published(), id)
    }
}

impl PageCopies for MemoryCopies {
    fn reserve(&mut self, frames: usize) -> Attempt<()> {
        self.room(frames)
    }

    fn edit(&mut self, id: PageId) -> Attempt<&mut [u8]> {
        let body = self.page(id)?;
        if !self.edited.borrow().contains_key(&id) {
            self.room(1)?;
            self.edited.borrow_mut().insert(id, body.to_vec().into());
        }
        drop(body);
        Ok(Arc::get_mut(self.edited.get_mut().get_mut(&id).expect("just put there")).expect("no guard is alive"))
    }

    fn allocate(&mut self, _near: PageId) -> Attempt<(PageId, &mut [u8])> {
        self.room(1)?;
        let id = {
            let mut state = self.store.lock();
            let oldest = state.snapshots.keys().next().copied();
            let oldest = oldest.unwrap_or(self.store.visible()).min(self.store.visible());
            match state.reusable.iter().position(|(freed, _)| *freed <= oldest) {
                Some(at) => state.reusable.swap_remove(at).1,
                None => {
                    state.next_id += 1;
                    PageId(state.next_id - 1)
                }
            }
        };
        self.allocated.push(id);
        let body = vec![0; self.store.0.page_bytes - HEADER_BYTES].into();
        self.edited.get_mut().insert(id, body);
        Ok((id, Arc::get_mut(self.edited.get_mut().get_mut(&id).expect("just put there")).expect("new")))
    }

    fn free(&mut self, id: PageId) {
        self.edited.get_mut().remove(&id);
        self.freed.push(id);
    }
}

impl Drop for MemoryCopies {
    fn drop(&mut self) {
        let mut state = self.store.lock();
        state.editing = false;
        if !self.published {
            // Returned in the order in which they would be allocated again.
            for id in self.allocated.drain(..) {
                state.reusable.push((CommitSeq(0), id));
            }
        }
    }
}

/// A ticket of the memory store.
pub(crate) struct MemoryTicket {
    store: MemoryStore,
    pinned: Vec<PageId>,
    _permit: Permit,
    /// Number of submissions made before this ticket's request. The request is submitted with the next one.
    after: usize,
}

impl Ticket for MemoryTicket {
    fn poll(&mut self, waker: &Waker) -> Poll<Result<()>> {
        let mut state = self.store.lock();
        if self.pinned.is_empty() || state.submissions.len() > self.after {
            return Poll::Ready(Ok(()));
        }
        state.wakers.push(waker.clone());
        Poll::Pending
    }

    fn wait(&mut self) -> Result<()> {
        self.store.submit();
        Ok(())
    }
}

impl Drop for MemoryTicket {
    fn drop(&mut self) {
        let mut state = self.store.lock();
        for id in &self.pinned {
            *state.pins.get_mut(id).expect("pinned by this ticket") -= 1;
        }
    }
}

/// A snapshot of the memory store.
pub(crate) struct MemorySnapshot {
    store: MemoryStore,
    seq: CommitSeq,
    too_old: bool,
}

impl Snapshot for MemorySnapshot {
    fn seq(&self) -> CommitSeq {
        self.seq
    }
}

impl Drop for MemorySnapshot {
    fn drop(&mut self) {
        let mut state = self.store.lock();
        let count = state.snapshots.get_mut(&self.seq).expect("registered");
        *count -= 1;
        if *count == 0 {
            state.snapshots.remove(&self.seq);
        }
    }
}

impl Store for MemoryStore {
    type View<'a> = MemoryView;
    type Copies<'a> = MemoryCopies;
    type Snapshot = MemorySnapshot;
    type Ticket = MemoryTicket;
    type RangeScan = ();

    fn page_bytes(&self) -> usize {
        self.0.page_bytes
    }

    fn latest(&self) -> MemoryView {
        self.view_at(self.visible())
    }

    fn commit_of(view: &MemoryView) -> CommitSeq {
        view.at
    }

    fn latest_published(&self) -> MemoryView {
        self.view_at(self.lock().last_published)
    }

    fn snapshot(&self) -> MemorySnapshot {
        let mut state = self.lock();
        let seq = self.visible();
        *state.snapshots.entry(seq).or_default() += 1;
        let too_old = state.give_up > 0;
        state.give_up -= usize::from(too_old);
        MemorySnapshot { store: self.clone(), seq, too_old }
    }

    fn view(&self, snapshot: &MemorySnapshot) -> MemoryView {
        MemoryView { too_old: snapshot.too_old, ..self.view_at(snapshot.seq) }
    }

    fn copy_frames_max(&self) -> usize {
        self.0.frames_max
    }

    fn pins_max(&self) -> usize {
        64
    }

    fn copies(&self) -> MemoryCopies {
        let mut state = self.lock();
        assert!(!std::mem::replace(&mut state.editing, true), "two commits edit at once");
        drop(state);
        MemoryCopies {
            store: self.clone(),
            edited: RefCell::default(),
            freed: Vec::new(),
            allocated: Vec::new(),
            published: false,
        }
    }

    fn publish(&self, mut copies: MemoryCopies, seq: CommitSeq) {
        copies.published = true;
        let mut state = self.lock();
        assert!(seq >= state.last_published, "commit {seq} after {}", state.last_published);
        state.last_published = seq;
        for (id, body) in copies.edited.get_mut().drain() {
            state.pages.entry(id).or_default().push((seq, Some(body)));
        }
        for id in copies.freed.drain(..) {
            state.pages.entry(id).or_default().push((seq, None));
            state.reusable.push((seq, id));
        }
    }

    fn set_visible(&self, seq: CommitSeq) {
        assert!(seq <= self.lock().last_published, "commit {seq} is not published");
        self.0.visible.fetch_max(seq.0, Ordering::SeqCst);
    }

    fn visible(&self) -> CommitSeq {
        CommitSeq(self.0.visible.load(Ordering::SeqCst))
    }

    fn request(&self, waits: &[Wait], permit: Permit) -> MemoryTicket {
        let mut state = self.lock();
        let mut pinned = Vec::new();
        for wait in waits.iter().take(permit.count()) {
            match wait {
                Wait::Miss(missing) => pinned.push(missing.page),
                Wait::Full { frames } => assert!(*frames <= self.0.frames_max, "no copies can hold {frames} frames"),
                other => panic!("a store cannot wait for {other:?}"),
            }
        }
        for id in &pinned {
            *state.pins.entry(*id).or_default() += 1;
        }
        state.queued += pinned.len();
        MemoryTicket { store: self.clone(), pinned, _permit: permit, after: state.submissions.len() }
    }

    fn prefetch(&self, _pages: &[Missing]) -> usize {
        0
    }

    fn begin_range_scan(&self) {}

    fn submit_soon(&self) {
        self.submit();
    }

    fn submit(&self) {
        let mut state = self.lock();
        let queued = std::mem::take(&mut state.queued);
        if queued > 0 {
            state.submissions.push(queued);
            let wakers = std::mem::take(&mut state.wakers);
            drop(state);
            wakers.into_iter().for_each(Waker::wake);
        }
    }

    fn submit_batch(&self) -> bool {
        let is_batch = self.lock().queued >= BATCH;
        is_batch.then(|| self.submit()).is_some()
    }

    fn sent(&self) -> usize {
        self.lock().submissions.len()
    }
}

/// A commit log in memory, for tests. Each wait for a ticket makes one more record durable.
pub(crate) struct MemoryLog(Arc<LogInner>);

type Hook = Box<dyn Fn(CommitSeq) + Send + Sync>;

struct LogInner {
    hook: Hook,
    fragment_bytes_max: usize,
    state: Mutex<LogState>,
}

#[derive(Default)]
struct LogState {
    /// Complete records, each with the position of its end.
    records: Vec<(CommitSeq, Vec<u8>, LogPosition)>,
    open: Option<(CommitSeq, Vec<u8>)>,
    end: u64,
    durable_records: usize,
    /// Whether the first attempt to append each fragment fails with `LogFull`.
    stingy: bool,
    refused: bool,
    broken: bool,
}

impl MemoryLog {
    /// Creates an empty log. With `stingy`, the first attempt to append each fragment fails with `LogFull`.
    pub(crate) fn new(fragment_bytes_max: usize, stingy: bool, hook: Hook) -> Self {
        let state = Mutex::new(LogState { stingy, ..LogState::default() });
        Self(Arc::new(LogInner { hook, fragment_bytes_max, state }))
    }

    /// Returns all records, including those that are not durable yet.
    pub(crate) fn records(&self) -> Vec<(CommitSeq, Vec<u8>)> {
        self.0.lock().records.iter().map(|(seq, record, _)| (*seq, record.clone())).collect()
    }

    /// Makes every later append fail.
    pub(crate) fn fail(&self) {
        self.0.lock().broken = true;
    }
}

impl LogInner {
    fn lock(&self) -> MutexGuard<'_, LogState> {
        self.state.lock().expect("the memory log's lock")
    }

    /// Makes one more record durable. Returns whether `position` is durable now.
    fn step(&self, position: LogPosition) -> bool {
        let mut state = self.lock();
        let durable_at = |state: &LogState| match state.durable_records.checked_sub(1) {
            Some(last) => state.records[last].2,
            None => LogPosition(0),
        };
        if durable_at(&state) < position && state.durable_records < state.records.len() {
            state.durable_records += 1;
            let seq = state.records[state.durable_records - 1].0;
            drop(state);
            (self.hook)(seq);
            state = self.lock();
        }
        durable_at(&state) >= position
    }
}

/// A ticket of the memory log: ready when the log is durable up to the position.
pub(crate) struct LogTicket(Arc<LogInner>, LogPosition);

impl Ticket for LogTicket {
    fn poll(&mut self, waker: &Waker) -> Poll<Result<()>> {
        if self.0.step(self.1) {
            return Poll::Ready(Ok(()));
        }
        waker.wake_by_ref();
        Poll::Pending
    }

    fn wait(&mut self) -> Result<()> {
        while !self.0.step(self.1) {}
        Ok(())
    }
}

impl CommitLog for MemoryLog {
    type Ticket = LogTicket;

    fn fragment_bytes_max(&self) -> usize {
        self.0.fragment_bytes_max
    }

    fn append(&self, seq: CommitSeq, fragment: &[&[u8]], last: Option<Durability>) -> Attempt<LogPosition> {
        let mut state = self.0.lock();
        let len_bytes = fragment.iter().map(|part| part.len()).sum();
        assert!(len_bytes <= self.0.fragment_bytes_max, "a fragment of {len_bytes} bytes");
        if state.broken {
            return Err(Error::new(ErrorKind::Poisoned, "the log failed").into());
        }
        state.refused = state.stingy && !state.refused;
        if state.refused {
            return Err(Wait::LogFull { len_bytes });
        }
        let mut record = match state.open.take() {
            Some((open, record)) if open == seq => record,
            _ => Vec::new(),
        };
        record.extend(fragment.concat());
        state.end += len_bytes as u64 + 1;
        let position = LogPosition(state.end);
        if last.is_some() {
            let previous = state.records.last().map_or(CommitSeq(0), |last| last.0);
            assert!(seq > previous, "commit {seq} after {previous}");
            state.records.push((seq, record, position));
        } else {
            state.open = Some((seq, record));
        }
        Ok(position)
    }

    fn await_space(&self, _len_bytes: usize) -> LogTicket {
        LogTicket(self.0.clone(), LogPosition(0))
    }

    fn durable(&self, position: LogPosition) -> LogTicket {
        LogTicket(self.0.clone(), position)
    }
}
