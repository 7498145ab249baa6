//! The versions of pages over time: which commit is visible, which snapshots live, and when a version or frame is
//! recycled that no reader can reach any more.
//!
//! A version is dropped in three steps: `registry` finds that no view will request it; `reclamation` waits until the views that may
//! have found it are gone; `Versions::sweep` removes it and recycles its frame. A frame that was evicted takes the last two.
//!
//! **Locks**: `registry` and the lists of `reclamation` are leaves.
//!
//! A [`View`] has the pages that one attempt of one read sees; a hit costs one load of the table, one of the usage count, and the page. A
//! [`Snapshot`] keeps the pages of its commit readable.

mod chunked_queue;
mod history;
mod leaf_loads;
mod private_copies;
mod registry;
mod writer_signal;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use crossbeam_epoch::Guard;
use nofault_io::prefetch::{prefetch_bytes, prefetch_read};
use nofault_io::process::Process;

use self::history::History;
pub(super) use self::leaf_loads::LeafLoads;
pub(crate) use self::private_copies::PrivateCopies;
pub use self::registry::ReaderInfo;
pub(super) use self::writer_signal::{PAUSE_MAX, WriterSignal};
use super::frames::{FrameWaitQueue, Frames};
use super::page_table::{Entry, LeafEviction, Lookup, Metadata, PageTable, SupersededVersion};
use super::stats::{Counters, HitTally};
use crate::clock::GuardedClock;
use crate::codec::Dictionaries;
use crate::error::{Error, ErrorKind};
use crate::format::compressed::FileCodec;
use crate::format::{BlockId, CommitSeq, HEADER_BYTES, Moment, PageId, page_commit, page_id};
use crate::pages::{self, Attempt, Missing, Pages, Wait};
use crate::sync::budget::Budget;

/// The commit number of a view that wants the newest version of everything.
pub(super) const NEWEST: CommitSeq = CommitSeq(u64::MAX);
/// Number of frames recycled together; commits can take frames between two such groups.
const RECYCLED_AT_ONCE: usize = 64;
/// Most leaves of the page table that one call looks at in search of cold ones: so many, and further ones for each that is
/// to go, up to a limit.
const LOOKS_MIN: u64 = 16;
const LOOKS_A_LEAF: u64 = 8;
const LOOKS_MAX: u64 = 64;

/// The pages of a pool in all their versions.
pub(crate) struct Versions {
    pages: PageTable,
    history: History,
    counters: Counters,
    /// Wakes the background writer when frames can be evicted or must be.
    signal: Arc<WriterSignal>,
    /// The random number of the database file, which enters every checksum.
    file_id: u64,
    /// The dictionaries that compressed pages name.
    dictionaries: Dictionaries,
    /// The clock by which entries expire.
    clock: GuardedClock,
    /// The error of every view, once the database is closed.
    ended: OnceLock<Error>,
    /// The process with the frames. A forked child does not, and a thread that is not there may hold its locks.
    process: Process,
    /// The error of every view in a forked child.
    forked: Error,
}

impl Versions {
    /// Creates the versions of the pages in `pages` as of `commit`. `kept_max` is the most versions that evictable
    /// snapshots may keep.
    pub(super) fn new(
        pages: PageTable,
        commit: CommitSeq,
        (file_id, kept_max): (u64, usize),
        clock: GuardedClock,
        signal: &Arc<WriterSignal>,
    ) -> Self {
        let process = Process::current();
        Self {
            history: History::new(commit, (kept_max, pages.frames().page_bytes()), process),
            pages,
            counters: Counters::default(),
            signal: Arc::clone(signal),
            file_id,
            dictionaries: Dictionaries::default(),
            clock,
            ended: OnceLock::new(),
            process,
            forked: Error::forked(),
        }
    }

    /// Returns the process with the frames.
    #[inline]
    pub(super) fn process(&self) -> Process {
        self.process
    }

    /// Ends all views made from now on with this error.
    pub(super) fn end(&self, why: &Error) {
        let _ = self.ended.set(why.clone());
    }

    /// Returns the error of every view, if there is one: the database is closed, or this is a forked process.
    #[inline]
    pub(super) fn ended(&self) -> Option<&Error> {
        if self.process.is_here() { self.ended.get() } else { Some(&self.forked) }
    }

    /// Returns the clock by which entries expire.
    pub(super) fn clock(&self) -> &GuardedClock {
        &self.clock
    }

    /// Returns which commits can be read, and what no reader reaches any more.
    #[inline]
    pub(super) fn history(&self) -> &History {
        &self.history
    }

    #[inline]
    pub(super) fn pages(&self) -> &PageTable {
        &self.pages
    }

    #[inline]
    pub(super) fn frames(&self) -> &Frames {
        self.pages.frames()
    }

    pub(super) fn frame_waits(&self) -> &FrameWaitQueue {
        self.pages.frame_waits()
    }

    pub(super) fn metadata(&self) -> &Arc<Metadata> {
        self.pages.metadata()
    }

    #[inline]
    pub(super) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns what wakes the background writer.
    pub(super) fn signal(&self) -> &WriterSignal {
        &self.signal
    }

    /// Returns the properties of the data file with which pages are checked, compressed and restored.
    pub(super) fn file_codec(&self) -> FileCodec<'_> {
        FileCodec { file_id: self.file_id, dictionaries: &self.dictionaries }
    }

    /// Records a publication: the changed pages, and the versions that it superseded.
    pub(super) fn note_published(&self, seq: CommitSeq, changed: &[PageId], superseded: Vec<SupersededVersion>) {
        self.metadata().note_changed(seq, changed);
        if self.frames().limits().has_many_dirty() {
            // Evicts ahead of need, so that the next commits find frames.
            self.signal.wake();
        }
        // A version superseded by the commit that published it was never visible.
        let (same, older): (Vec<_>, Vec<_>) = superseded.into_iter().partition(|old| old.from == old.until);
        self.history.supersede(older);
        self.history.drop_later(same);
    }

    /// Evicts leaves of the page table while more of them are in memory than should be, within a budget.
    pub(super) fn trim_leaves(&self) {
        let (words, clock) = self.pages.words();
        let excess = clock.excess(words);
        if excess == 0 {
            return;
        }
        let (mut budget, mut frames) = (Budget::new(), Vec::new());
        let (mut left, mut looks) = (excess, (LOOKS_MIN + LOOKS_A_LEAF * excess).min(LOOKS_MAX));
        while left > 0 && looks > 0 && !budget.is_spent() {
            budget.spend(words.slots().steps_a_look());
            looks -= 1;
            match self.evict_next_leaf(&mut frames) {
                LeafEviction::Evicted => left -= 1,
                LeafEviction::Changed if clock.is_pressing(left) => self.metadata().note_leaf_held(),
                LeafEviction::Changed | LeafEviction::InUse => {}
            }
        }
        if !frames.is_empty() {
            self.counters.evicted.fetch_add(frames.len() as u64, Ordering::Relaxed);
            self.history.retire(frames);
        }
    }

    /// Evicts the next leaf that the clock finds, if it is cold. Adds frames to `frames_free` as
    /// [`LockedLeaf::try_evict`](super::page_table::LockedLeaf::try_evict) does, if pages are to be evicted for their leaves.
    fn evict_next_leaf(&self, frames_free: &mut Vec<u32>) -> LeafEviction {
        let (words, clock) = self.pages.words();
        let Some(leaf) = clock.next(words) else { return LeafEviction::InUse };
        let frames_free = clock.evicts_frames(words).then_some(frames_free);
        self.pages.leaf(leaf).try_evict(self.frames(), frames_free)
    }

    /// Removes one pin from the frame of a page.
    pub(super) fn unpin(&self, page: PageId, index: u32) {
        if self.pages.unpin(page, index) {
            self.history.retire(vec![index]);
        }
        self.signal.wake_if_starving();
    }

    /// Drops some retired versions if many have piled up.
    pub(super) fn clear_up(&self) {
        if self.history.has_many_retired() {
            self.sweep();
        }
    }

    /// Recycles all frames and blocks that have become unreachable. Returns how many frames became free. The work is
    /// unbounded, so no executor may wait for the calling thread.
    pub(super) fn sweep_all(&self) -> usize {
        let mut freed = self.sweep();
        while !self.history.is_swept() {
            freed += self.sweep();
        }
        freed
    }

    /// Recycles some of the frames and blocks that have become unreachable, within a budget. Returns how many frames
    /// became free.
    pub(super) fn sweep(&self) -> usize {
        let (mut frames, versions) = self.history.take_unreachable();
        frames.extend(versions.into_iter().filter_map(|version| self.pages.places().drop_version(version)));
        // A few at a time: commits take frames in between.
        for some in frames.chunks(RECYCLED_AT_ONCE) {
            // SAFETY: `History::retire` was given these frames after their numbers had been taken out of table, versions and compressed
            // tier, with no pins, and the epoch they waited for has passed; each frame is retired once. Or `drop_version` has
            // just answered them: the only place where such a frame could be found was the version; views that may have found
            // it there are gone, because the version came through `drop_later`; it has no pins, and pins are only added to
            // frames that can be found.
            unsafe { self.frames().recycle(some) };
        }
        if !frames.is_empty() {
            self.frame_waits().grant();
        }
        frames.len()
    }

    /// Calls `read` with the bytes of a block in the compressed tier, with no lock held on it. Returns
    /// `None` when the block is not there. `is_used` says whether this counts as a use of the block.
    pub(super) fn with_block<R>(&self, block: BlockId, is_used: bool, read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let guard = self.history.pin();
        let frame = self.pages.tier().find(self.frames(), block)?;
        if is_used {
            self.frames().usage().touch_block(frame);
        }
        // SAFETY: the frame's number was found in the tier under the guard, which lives until `read` has returned. A number
        // that is removed from there is retired, and its frame recycled only after every guard pinned until then is gone.
        let result = read(unsafe { self.frames().bytes(frame) });
        drop(guard);
        Some(result)
    }

    /// Removes blocks from the compressed tier because other bytes are about to be written to them.
    pub(super) fn forget_blocks(&self, blocks: impl Iterator<Item = BlockId>) {
        if self.pages.tier().block_count() == 0 {
            return;
        }
        let forgotten: Vec<u32> = blocks.flat_map(|block| self.pages.tier().forget(self.frames(), block)).collect();
        if !forgotten.is_empty() {
            self.history.retire(forgotten);
        }
    }
}

/// Keeps the pages of one commit readable until it is dropped or evicted.
pub(crate) struct Snapshot {
    versions: Arc<Versions>,
    seq: CommitSeq,
    /// `None` for a snapshot that shows all entries.
    moment: Option<Moment>,
    too_old: Arc<AtomicBool>,
    essential: bool,
}

impl Snapshot {
    pub(crate) fn new(versions: &Arc<Versions>, essential: bool) -> Self {
        let (seq, too_old) = versions.history().register(essential);
        // After the commit was chosen: see `Snapshot::moment`.
        let moment = versions.clock().now();
        Self { versions: Arc::clone(versions), seq, moment: Some(moment), too_old, essential }
    }

    /// Lets the snapshot show all entries, also expired ones.
    pub(crate) fn with_expired(self) -> Self {
        let mut all = self;
        all.moment = None;
        all
    }

    /// Returns the entries that views of the snapshot show.
    pub(crate) fn shown(&self) -> ShownEntries<'_> {
        self.moment.map_or(ShownEntries::All, ShownEntries::At)
    }

    /// Returns the flag set when this snapshot has been evicted.
    pub(crate) fn too_old(&self) -> &AtomicBool {
        &self.too_old
    }
}

impl crate::pages::Snapshot for Snapshot {
    fn seq(&self) -> CommitSeq {
        self.seq
    }

    fn moment(&self) -> Moment {
        self.moment.unwrap_or(Moment(0))
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        self.versions.history().unregister(self.seq, &self.too_old, self.essential);
    }
}

/// The pages as of one commit, for as long as its epoch guard is held. Not `Send`; never kept across a wait.
pub(crate) struct View<'a> {
    pages: &'a PageTable,
    at: CommitSeq,
    too_old: Option<&'a AtomicBool>,
    /// The error of a pool that shows no page: it has ended, or its frames are in the process that forked this one.
    ended: Option<&'a Error>,
    shown: ShownEntries<'a>,
    hits: HitTally<'a>,
    /// Protects every page handed out. Declared last, so that it is dropped last.
    guard: Guard,
}

/// The entries of tables that a view shows.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ShownEntries<'a> {
    /// All of them.
    All,
    /// Entries that have not expired by the time at which the view meets them.
    Unexpired(&'a GuardedClock),
    /// Entries that have not expired at this moment.
    At(Moment),
}

impl<'a> View<'a> {
    /// Creates a view of the commit that `at` returns. `at` is called after the guard is pinned: see
    /// `History::drop_later`.
    pub(crate) fn new(
        versions: &'a Versions,
        at: impl FnOnce() -> CommitSeq,
        too_old: Option<&'a AtomicBool>,
        shown: ShownEntries<'a>,
    ) -> Self {
        let (guard, ended) = (versions.history().pin(), versions.ended());
        Self { pages: versions.pages(), at: at(), too_old, ended, shown, hits: versions.counters().hits.tally(), guard }
    }

    /// Returns the commit that this view shows.
    pub(crate) fn commit(&self) -> CommitSeq {
        self.at
    }

    /// Returns a page with its header, in the version that this view shows.
    #[inline]
    fn shown(&self, id: PageId) -> Attempt<&[u8]> {
        if let Some(error) = self.ended {
            return Err(Wait::Failed(error.clone()));
        }
        if let Entry::Resident(index) = self.pages.entry(id)
            && self.is_shown(index, id)
        {
            self.pages.frames().usage().touch(index);
            self.hits.hit();
            return Ok(self.whole(index));
        }
        self.older(id)
    }

    /// Returns whether a frame, in which a page was found, holds the version of the page that this view shows.
    #[inline]
    fn is_shown(&self, frame: u32, id: PageId) -> bool {
        // The page's header names the same commit as the frame does, and its cache line is needed anyway. It names another
        // page when the entry belonged to another page: see `word_array`.
        let page = self.whole(frame);
        page_commit(page) <= self.at && page_id(page) == id
    }

    /// Returns the page in a frame, with its header.
    #[inline]
    fn whole(&self, frame: u32) -> &[u8] {
        let _protects = &self.guard;
        // SAFETY: the frame's number was found under `self.guard`, which lives as long as the slice (both are bound to
        // `&self`), and frames are recycled only after every guard pinned at that time is gone.
        unsafe { self.pages.frames().bytes(frame) }
    }

    #[cold]
    fn older(&self, id: PageId) -> Attempt<&[u8]> {
        if self.too_old.is_some_and(|flag| flag.load(Ordering::Acquire)) {
            let what = format!("the snapshot of commit {} kept too many old pages and was given up", self.at);
            return Err(Wait::Failed(Error::new(ErrorKind::SnapshotTooOld, what)));
        }
        match self.pages.lookup(id, self.at) {
            Lookup::Frame(frame) => {
                self.hits.hit();
                Ok(self.whole(frame))
            }
            Lookup::NotInMemory => Err(Wait::Miss(Missing { page: id, at: self.at })),
            Lookup::Absent => self.absent(id),
        }
    }

    fn absent(&self, id: PageId) -> Attempt<&[u8]> {
        // The snapshot was evicted between the first check and the lock: then the version was dropped, which is no damage.
        if self.too_old.is_some_and(|flag| flag.load(Ordering::Acquire)) {
            let what = format!("the snapshot of commit {} kept too many old pages and was given up", self.at);
            return Err(Wait::Failed(Error::new(ErrorKind::SnapshotTooOld, what)));
        }
        let what = format!("does not exist as of commit {}, though another page names it", self.at);
        Err(Wait::Failed(Error::corrupt_page(id, what)))
    }
}

impl Pages for View<'_> {
    type Page<'b>
        = &'b [u8]
    where
        Self: 'b;

    fn page_bytes(&self) -> usize {
        self.pages.frames().page_bytes()
    }

    #[inline]
    fn page(&self, id: PageId) -> Attempt<&[u8]> {
        self.shown(id).map(|page| &page[HEADER_BYTES..])
    }

    #[inline]
    fn has_expired(&self, expiry: Moment) -> bool {
        expiry != Moment::NEVER
            && match self.shown {
                ShownEntries::All => false,
                ShownEntries::Unexpired(clock) => expiry <= clock.now(),
                ShownEntries::At(moment) => expiry <= moment,
            }
    }

    #[inline]
    fn has_only_expired(&self, leaf: PageId) -> bool {
        let Entry::Resident(index) = self.pages.entry(leaf) else { return false };
        if self.ended.is_some() {
            return false;
        }
        // Nothing else is known of nearly all frames, and the page is not touched then.
        self.has_expired(self.pages.frames().expiries().latest(index)) && self.is_shown(index, leaf)
    }

    fn note_latest_expiry(&self, leaf: PageId, latest: Moment) {
        if self.ended.is_none()
            && let Entry::Resident(index) = self.pages.entry(leaf)
            && self.is_shown(index, leaf)
        {
            self.pages.frames().expiries().note(index, latest);
        }
    }

    #[inline]
    fn expect(&self, id: PageId) {
        if self.ended.is_none() {
            self.pages.prefetch(id);
        }
    }

    #[inline]
    fn fetch(&self, id: PageId, bytes: Range<usize>) {
        if self.ended.is_none()
            && let Entry::Resident(index) = self.pages.entry(id)
        {
            let page = self.whole(index);
            prefetch_read(page.as_ptr());
            if let Some(last) = page.last() {
                prefetch_read(last);
            }
            let end = (HEADER_BYTES + bytes.end).min(page.len());
            prefetch_bytes(page.get(HEADER_BYTES + bytes.start..end).unwrap_or_default());
        }
    }
}

impl pages::Versions for View<'_> {
    fn written_in(&self, id: PageId) -> Attempt<CommitSeq> {
        self.shown(id).map(page_commit)
    }
}
