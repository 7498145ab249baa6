//! The page table: where each version of each page is – in a frame, on disk, or being read – and every change of that.
//!
//! The newest version of a page stands in an array of words, which readers load without a lock. Older versions and in-flight reads
//! stand in shards by page id. Both change only here, under the lock of the page's shard.
//!
//! **Locks**: shard, then metadata, a waiter's, or the free list of frames. While a shard's lock is held, no epoch guard is pinned or
//! dropped, no waker is called, and no device is waited for.

mod block_map;
mod leaves;
mod metadata;
mod page_ids;
mod shard;
mod word_array;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

pub(crate) use self::block_map::BlockMap;
use self::leaves::LockedLeaf;
pub(super) use self::leaves::{LeafClock, LeafEviction, LeafPlace};
pub(crate) use self::metadata::Metadata;
pub(super) use self::metadata::PageChange;
pub(crate) use self::page_ids::PageIds;
use self::shard::{Load, Place, Version};
pub(super) use self::shard::{ReadId, Shard};
use self::word_array::WordArray;
pub(super) use self::word_array::{Entry, leaf_read_as, page_of_leaf};
use super::compressed_tier::{CompressedTier, Need};
use super::frames::{Frame, FrameFacts, FrameWaitQueue, Frames, OwnedFrame, Waiter};
use crate::error::{Error, ErrorKind};
use crate::format::{BlockId, CommitSeq, Location, PageId, node_entries, page_commit};
use crate::pages::Missing;
use crate::settings::TierUse;

const SHARDS: usize = 64;
/// Stands for the frame of a leaf of the page table, which a waiter has pinned as it pins pages.
const NO_FRAME: u32 = u32::MAX;

/// A page version that a later commit has superseded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SupersededVersion {
    pub(crate) page: PageId,
    pub(crate) from: CommitSeq,
    pub(crate) until: CommitSeq,
    /// No reader of this commit or a later one reaches the page: `until`, if no earlier commit is known.
    pub(crate) unread_from: CommitSeq,
}

/// The state of a page after a request to read it.
#[derive(Debug, Clone, Copy)]
pub(super) enum ReadRequest {
    /// The page is now marked as being read by this request: the caller must carry the read out.
    New(ReadId),
    /// Another request is already reading the page; the waiter was added to it.
    Joined,
    /// The page is in memory, and pinned for the waiter.
    InMemory,
    /// The page does not exist.
    Absent,
}

/// A page that was read and checked.
pub(super) struct CheckedPage {
    pub(super) page: OwnedFrame,
    /// The block in which the page lies compressed, if it is to stay in memory as well.
    pub(super) block: Option<OwnedFrame>,
}

/// The result of a read for its page.
pub(super) enum ReadEnd {
    /// The page is in this frame.
    Installed {
        frame: u32,
        /// The frame of the block, to be retired, if the compressed tier had no room for it.
        rejected: Option<u32>,
    },
    /// The read did not bring the page into memory.
    NotInstalled {
        /// The frames of the read, unless the read failed and returned no frame.
        unused: Vec<OwnedFrame>,
        /// The error given to the waiters, if any.
        error: Option<Error>,
    },
    /// A leaf of the table was read: the memory of the read, the error given to the waiters, if any, and the
    /// reads of pages that begin now that their places are known.
    Leaf { unused: Option<OwnedFrame>, error: Option<Error>, next: Vec<ReadId> },
}

/// The result of giving a page a new version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Replacement {
    /// This version was superseded.
    Superseded(SupersededVersion),
    /// The page did not exist before.
    Added,
    /// The page, which was to be freed, does not exist.
    Absent,
    /// The page is freed once the leaf with its entry is in memory: see `Metadata::take_cold_frees`.
    Later,
}

/// The place of a page in the version that a view sees.
pub(super) enum Lookup {
    /// The page is in this frame.
    Frame(u32),
    /// The page is on disk, or being read.
    NotInMemory,
    /// The page does not exist as of the view's commit.
    Absent,
}

/// A dirty page in its frame, pinned for the code that writes it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DirtyPage {
    pub(crate) page: PageId,
    pub(crate) frame: u32,
}

/// The result of an attempt to evict a frame.
pub(super) enum EvictionOutcome {
    /// The page was clean and is evicted: its frame number was removed from the page table and cannot be reached any
    /// more.
    Clean(u32),
    /// The page is dirty and now pinned: it must be written before its frame can be evicted.
    Dirty(DirtyPage),
}

/// The way in which a checkpoint records one page.
#[derive(Debug)]
pub(crate) enum CheckpointPlace {
    /// The page is in memory only, and pinned: the checkpoint writes it.
    Dirty(DirtyPage),
    /// The page is on disk at this location, to which the checkpoint refers.
    OnDisk(Location),
    /// The page does not exist as of the checkpoint's commit, which records nothing for it.
    Absent,
    /// The leaf with the page's entry is on disk only: the page is as the last checkpoint recorded it.
    Cold,
}

/// The page table of a pool: finds the frame or the location of each page version.
pub(super) struct PageTable {
    words: WordArray,
    shards: Box<[Mutex<Shard>]>,
    frame_waits: FrameWaitQueue,
    tier: CompressedTier,
    metadata: Arc<Metadata>,
    leaf_clock: LeafClock,
}

impl PageTable {
    /// Creates the table of the pages in the block map of `metadata`, all of them on disk. `leaf_clock` bounds its
    /// leaves in memory.
    pub(super) fn new(frames: Frames, metadata: &Arc<Metadata>, leaf_clock: LeafClock, tier_use: TierUse) -> Self {
        let words = WordArray::new(frames.page_bytes());
        for (leaf, entries) in metadata.lock().map.leaves_in_memory() {
            words.add_leaf(leaf, entries);
        }
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        let (frame_waits, tier) = (FrameWaitQueue::new(frames), CompressedTier::new(tier_use));
        Self { words, shards, frame_waits, tier, metadata: Arc::clone(metadata), leaf_clock }
    }

    fn shard(&self, page: PageId) -> MutexGuard<'_, Shard> {
        let at = (self.words.leaf_of(page).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize % SHARDS;
        self.shards[at].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the shard of a leaf.
    pub(super) fn leaf(&self, leaf: u64) -> LockedLeaf<'_> {
        let shard = self.shard(page_of_leaf(leaf));
        LockedLeaf { words: &self.words, metadata: &self.metadata, shard, leaf }
    }

    /// Returns the array with the newest versions, and the clock of its leaves.
    pub(super) fn words(&self) -> (&WordArray, &LeafClock) {
        (&self.words, &self.leaf_clock)
    }

    /// Evicts the next leaf that the clock finds, if it is cold. Adds frames to `frames_free` as
    /// [`LockedLeaf::try_evict`] does, if pages are to be evicted for their leaves.
    pub(super) fn try_evict_next_leaf(&self, frames_free: &mut Vec<u32>) -> LeafEviction {
        let Some(leaf) = self.leaf_clock.next(&self.words) else { return LeafEviction::InUse };
        let frames_free = self.leaf_clock.evicts_frames(&self.words).then_some(frames_free);
        self.leaf(leaf).try_evict(self.frames(), frames_free)
    }

    /// Returns the place of a leaf that has the entry of a page and is on disk only. The caller holds the lock of the
    /// page's shard.
    fn cold_leaf(&self, page: PageId) -> Option<Location> {
        let leaf = self.words.leaf_of(page);
        if self.words.has_leaf(leaf) { None } else { self.metadata.lock().map.leaf_place(leaf) }
    }

    #[inline]
    pub(super) fn frames(&self) -> &Frames {
        self.frame_waits.frames()
    }

    pub(super) fn frame_waits(&self) -> &FrameWaitQueue {
        &self.frame_waits
    }

    /// Returns the blocks of compressed pages in memory.
    pub(super) fn tier(&self) -> &CompressedTier {
        &self.tier
    }

    pub(super) fn metadata(&self) -> &Arc<Metadata> {
        &self.metadata
    }

    /// Returns the entry of a page's newest version, with one load. A frame named there holds this page only as long as
    /// the caller holds an epoch guard.
    #[inline]
    pub(super) fn entry(&self, page: PageId) -> Entry {
        Entry::from_word(self.words.load(page))
    }

    /// Prefetches the entry of a page into the CPU caches.
    #[inline]
    pub(super) fn prefetch(&self, page: PageId) {
        self.words.prefetch(page);
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        self.words.memory_bytes()
    }

    /// Looks a page up in the version that a view at commit `at` sees. The caller holds the view's epoch guard.
    pub(super) fn lookup(&self, id: PageId, at: CommitSeq) -> Lookup {
        let mut shard = self.shard(id);
        if let Some(version) = shard.version_at(id, at) {
            return match version.place {
                Place::Frame(frame) => {
                    self.frames().usage().touch(frame);
                    Lookup::Frame(frame)
                }
                Place::Disk(_) | Place::Loading(_) => Lookup::NotInMemory,
            };
        }
        match self.entry(id) {
            Entry::Resident(frame) if self.frames().frame(frame).commit() <= at => Lookup::Frame(frame),
            Entry::OnDisk(_) | Entry::Loading(_) => Lookup::NotInMemory,
            Entry::Free if self.cold_leaf(id).is_some() => Lookup::NotInMemory,
            Entry::Resident(_) | Entry::Free => Lookup::Absent,
        }
    }

    /// Returns the block near which a neighbour of this page should be written.
    pub(super) fn block_of(&self, page: PageId) -> Option<u64> {
        match self.entry(page) {
            Entry::OnDisk(at) | Entry::Loading(at) => Some(at.block.0),
            // The frame may hold another page by now; its block is only a hint.
            Entry::Resident(frame) => {
                let frame = self.frames().frame(frame);
                frame.disk().map(|at| at.block.0).or_else(|| frame.near())
            }
            Entry::Free => None,
        }
    }

    /// Marks a page as being read, in the version that a view at commit `missing.at` sees, unless that version is in
    /// memory or marked already. If it is in memory, it is pinned for the waiter, if there is one. If the leaf with the
    /// page's entry is not in memory, that leaf is marked instead, and the page once the leaf is there.
    pub(super) fn request_read(&self, missing: Missing, waiter: Option<&Arc<Waiter>>) -> ReadRequest {
        self.request_in(&mut self.shard(missing.page), missing, waiter)
    }

    fn request_in(&self, shard: &mut Shard, missing: Missing, waiter: Option<&Arc<Waiter>>) -> ReadRequest {
        let page = missing.page;
        let (at, request) = if let Some(version) = shard.version_at(page, missing.at) {
            match version.place {
                Place::Frame(frame) => return self.pin_for(page, frame, waiter),
                Place::Loading(at) => (at, ReadRequest::Joined),
                Place::Disk(at) => {
                    version.place = Place::Loading(at);
                    (at, ReadRequest::New(shard.begin_load(page, at)))
                }
            }
        } else {
            match self.entry(page) {
                Entry::Free => return self.request_leaf(shard, missing, waiter),
                Entry::Resident(frame) => return self.pin_for(page, frame, waiter),
                Entry::Loading(at) => (at, ReadRequest::Joined),
                Entry::OnDisk(at) => {
                    self.words.store(page, Entry::Loading(at).to_word());
                    (at, ReadRequest::New(shard.begin_load(page, at)))
                }
            }
        };
        self.words.touch_leaf_of(page);
        if let (Some(waiter), Some(load)) = (waiter, shard.load(page, at.block)) {
            waiter.expect_read(page);
            load.add_waiter(Arc::clone(waiter));
        }
        request
    }

    /// Marks the leaf with the entry of a page as being read, if it is on disk only.
    fn request_leaf(&self, shard: &mut Shard, missing: Missing, waiter: Option<&Arc<Waiter>>) -> ReadRequest {
        let read_as = page_of_leaf(self.words.leaf_of(missing.page));
        let Some(at) = self.cold_leaf(missing.page) else {
            let state = self.words.state(self.words.leaf_of(missing.page));
            let Some(state) = state.filter(|_| missing.page == read_as) else { return ReadRequest::Absent };
            if waiter.is_some_and(|waiter| waiter.pinned(read_as, NO_FRAME)) {
                state.pin();
            }
            return ReadRequest::InMemory;
        };
        let request = match shard.load(read_as, at.block) {
            Some(_) => ReadRequest::Joined,
            None => ReadRequest::New(shard.begin_load(read_as, at)),
        };
        if let Some(waiter) = waiter {
            waiter.expect_read(read_as);
        }
        if let Some(load) = shard.load(read_as, at.block) {
            match waiter {
                Some(waiter) if missing.page == read_as => load.add_waiter(Arc::clone(waiter)),
                waiter if missing.page != read_as => load.add_follower(missing, waiter.cloned()),
                _ => {}
            }
        }
        request
    }

    /// Pins a page for the waiter, if there is one, because the page came into memory before its read was begun.
    /// Returns [`ReadRequest::InMemory`]. The caller holds the lock of the page's shard.
    fn pin_for(&self, page: PageId, frame: u32, waiter: Option<&Arc<Waiter>>) -> ReadRequest {
        if let Some(waiter) = waiter
            && waiter.pinned(page, frame)
        {
            self.frames().frame(frame).pin(1);
        }
        ReadRequest::InMemory
    }

    /// Ends a read: installs the page from `good`, its checked bytes, and adds its block to the compressed tier; or gives
    /// `error` to the waiters. Adds to `wake` the wakers of waiters that have nothing left to wait for. Changes nothing
    /// when the read was abandoned, or its page was freed or replaced.
    pub(super) fn end_read(
        &self,
        id: ReadId,
        good: Option<CheckedPage>,
        error: Option<Error>,
        wake: &mut Vec<Waker>,
    ) -> ReadEnd {
        let ReadId { page, at, .. } = id;
        if leaf_read_as(page).is_some() {
            return self.end_leaf_read(id, good.map(|good| good.page), error, wake);
        }
        let frames_of = |good: CheckedPage| [Some(good.page), good.block].into_iter().flatten().collect();
        let mut shard = self.shard(page);
        let Some(load) = shard.end_load(id) else {
            return ReadEnd::NotInstalled { unused: good.map(frames_of).unwrap_or_default(), error: None };
        };
        let newest = self.entry(page) == Entry::Loading(at);
        let version = shard.version_loading(page, at);
        let wanted = newest || version.is_some();
        let mut unused = Vec::new();
        match good {
            Some(CheckedPage { page: owned, block }) if wanted => {
                let commit = page_commit(&owned.buffer);
                let facts = FrameFacts { page, commit, disk: Some(at), near: None, pins: 0, hot: false };
                let index = self.frames().publish(owned, facts);
                match version {
                    Some(version) if !newest => version.place = Place::Frame(index),
                    _ => self.words.store(page, Entry::Resident(index).to_word()),
                }
                let mut pins = 0;
                for waiter in load.waiters() {
                    let (pinned, waker) = waiter.arrived(page, index);
                    pins += u32::from(pinned);
                    wake.extend(waker);
                }
                self.frames().frame(index).pin(pins);
                // The lock still protects the version, so the block is not free, and nothing else can be written there.
                let rejected = block.and_then(|owned| self.tier.add(self.frames(), at.block, owned));
                return ReadEnd::Installed { frame: index, rejected };
            }
            // The version died while it was read: its remaining waiters request the page again.
            Some(good) => unused = frames_of(good),
            None if newest => self.words.store(page, Entry::OnDisk(at).to_word()),
            None => {
                if let Some(version) = version {
                    version.place = Place::Disk(at);
                }
            }
        }
        let error = error.filter(|_| wanted);
        wake.extend(load.waiters().filter_map(|waiter| waiter.read_over(error.clone())));
        ReadEnd::NotInstalled { unused, error }
    }

    /// Ends the read of a leaf: brings it into memory from `good`, its checked bytes, and begins the reads of the pages
    /// for which it was read; or gives `error` to the waiters.
    fn end_leaf_read(
        &self,
        id: ReadId,
        good: Option<OwnedFrame>,
        error: Option<Error>,
        wake: &mut Vec<Waker>,
    ) -> ReadEnd {
        let entries = good.as_ref().map(|owned| node_entries(&owned.buffer));
        let mut locked = self.leaf(self.words.leaf_of(id.page));
        let Some(load) = locked.shard.end_load(id) else {
            return ReadEnd::NotInstalled { unused: good.into_iter().collect(), error: None };
        };
        // An error does not count when the leaf came into memory by another way, or was written elsewhere since.
        let error = error.filter(|_| locked.place() == LeafPlace::Cold(id.at));
        if error.as_ref().is_some_and(|error| error.kind() == ErrorKind::Corrupt) {
            self.metadata.lock().ids.avoid(self.words.pages_of(locked.leaf));
        }
        if let Some(entries) = entries {
            locked.install(id.at, entries);
        }
        let (waiters, followers) = load.into_parts();
        let mut next = Vec::new();
        for (missing, waiter) in followers {
            if error.is_none()
                && let ReadRequest::New(id) = self.request_in(&mut locked.shard, missing, waiter.as_ref())
            {
                next.push(id);
            }
            // Last, so that the waiter does not seem to have nothing left to wait for.
            wake.extend(waiter.and_then(|waiter| waiter.read_over(error.clone())));
        }
        for waiter in waiters {
            let state = self.words.state(locked.leaf).filter(|_| error.is_none());
            wake.extend(match state {
                Some(state) => {
                    let (pinned, waker) = waiter.arrived(id.page, NO_FRAME);
                    if pinned {
                        state.pin();
                    }
                    waker
                }
                None => waiter.read_over(error.clone()),
            });
        }
        ReadEnd::Leaf { unused: good, error, next }
    }

    /// Notes that an operation must wait for this read to be carried out. Returns whether the block is to stay in memory.
    pub(super) fn note_missed(&self, id: &ReadId, need: Need) -> bool {
        self.tier.note_read(self.frames(), id.page, id.at, need)
    }

    /// Abandons a read whose memory the device still uses, and gives `error` to its waiters. When the read completes
    /// later, it changes nothing (see `shard`).
    pub(super) fn abandon_read(&self, id: ReadId, error: &Error, wake: &mut Vec<Waker>) {
        let mut shard = self.shard(id.page);
        let Some(load) = shard.end_load(id) else { return };
        if self.entry(id.page) == Entry::Loading(id.at) {
            self.words.store(id.page, Entry::OnDisk(id.at).to_word());
        } else if let Some(version) = shard.version_loading(id.page, id.at) {
            version.place = Place::Disk(id.at);
        }
        wake.extend(load.waiters().filter_map(|waiter| waiter.read_over(Some(error.clone()))));
    }

    /// Gives `error` to the waiters of all reads, which go on. Returns the wakers to be called.
    pub(super) fn fail_waiters(&self, error: &Error) -> Vec<Waker> {
        let mut wake = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let waiters = shard.loads().flat_map(Load::waiters);
            wake.extend(waiters.filter_map(|waiter| waiter.fail(error.clone())));
        }
        wake
    }

    /// Removes one pin from the frame of a page, or from a leaf of the table. Returns true when the frame is now to be
    /// retired.
    pub(super) fn unpin(&self, page: PageId, index: u32) -> bool {
        // Under the lock, because a waiter is told of a page just before the page is pinned for it.
        let _shard = self.shard(page);
        if let Some(leaf) = leaf_read_as(page) {
            self.words.unpin(std::iter::once(leaf));
            return false;
        }
        self.frames().frame(index).unpin()
    }

    /// Evicts a frame if it is clean and unpinned. With `if_unused`, its usage count must be zero as well, and is
    /// lowered otherwise. If the page must be written first, pins its frame and returns it as dirty.
    pub(super) fn try_evict(&self, index: u32, if_unused: bool) -> Option<EvictionOutcome> {
        let frame = self.frames().frame(index);
        if !frame.is_published() || frame.pins() > 0 || (if_unused && !self.frames().usage().lower(index)) {
            return None;
        }
        let page = frame.page();
        let mut shard = self.shard(page);
        // Under the shard's lock the frame cannot be pinned or moved. Before, it may have been given to another page.
        if !frame.is_published() || frame.page() != page || frame.pins() > 0 || frame.is_doomed() {
            return None;
        }
        let newest = self.entry(page) == Entry::Resident(index);
        let version = if newest { None } else { shard.version_in_frame(page, index) };
        if !newest && version.is_none() {
            return None;
        }
        let Some(at) = frame.disk() else {
            frame.pin(1);
            return Some(EvictionOutcome::Dirty(DirtyPage { page, frame: index }));
        };
        match version {
            None => self.words.store(page, Entry::OnDisk(at).to_word()),
            Some(version) => version.place = Place::Disk(at),
        }
        Some(EvictionOutcome::Clean(index))
    }

    /// Returns whether a pinned page is not on disk yet and a reader can still reach it.
    pub(super) fn must_be_written(&self, item: DirtyPage) -> bool {
        let frame = self.frames().frame(item.frame);
        let _shard = self.shard(item.page);
        frame.disk().is_none() && !frame.is_doomed()
    }

    /// Notes that a pinned page was written to location `at`.
    pub(super) fn note_written(&self, item: DirtyPage, at: Location) {
        let _shard = self.shard(item.page);
        if self.frames().frame(item.frame).is_doomed() {
            // The version died while it was written: no table or version will ever name the block.
            self.metadata.lock().allocator.release(at.block);
        } else {
            self.frames().set_clean(item.frame, at);
        }
    }

    /// Pins the frame of a page as of commit `at` if the page must still be written; otherwise returns its location on
    /// disk. The commit `at` must be registered.
    pub(super) fn checkpoint_place(&self, page: PageId, at: CommitSeq) -> CheckpointPlace {
        let place_of = |index: u32, frame: &Frame| match frame.disk() {
            Some(at) => CheckpointPlace::OnDisk(at),
            None => {
                frame.pin(1);
                CheckpointPlace::Dirty(DirtyPage { page, frame: index })
            }
        };
        let mut shard = self.shard(page);
        if let Some(version) = shard.version_at(page, at) {
            return match version.place {
                Place::Frame(index) => place_of(index, self.frames().frame(index)),
                Place::Disk(at) | Place::Loading(at) => CheckpointPlace::OnDisk(at),
            };
        }
        match self.entry(page) {
            Entry::Resident(index) if self.frames().frame(index).commit() <= at => {
                place_of(index, self.frames().frame(index))
            }
            // Changed since, and not among the versions: so it did not exist as of `at`, even if its id had a page before. Looked up
            // under this lock, because the id may have been reused since an earlier look.
            Entry::OnDisk(_) | Entry::Loading(_) if self.metadata.last_change(page) > at => CheckpointPlace::Absent,
            Entry::OnDisk(at) | Entry::Loading(at) => CheckpointPlace::OnDisk(at),
            Entry::Free if self.cold_leaf(page).is_some() => CheckpointPlace::Cold,
            Entry::Free | Entry::Resident(_) => CheckpointPlace::Absent,
        }
    }

    /// Sets the location of a page to `at` in the page table of the next checkpoint. Releases the block that this table
    /// named before, unless a version that can still be read lies there.
    pub(super) fn take_over(&self, page: PageId, at: Option<Location>) {
        let shard = self.shard(page);
        let mut metadata = self.metadata.lock();
        let before = metadata.map.set(page, at);
        if let Some(at) = at {
            metadata.allocator.note_named(at.block);
        }
        let Some(before) = before.filter(|before| at.is_none_or(|at| at.block != before.block)) else { return };
        if !self.newest_uses(page, before.block) && !shard.version_uses(page, before.block, |index| self.disk_of(index))
        {
            metadata.allocator.release(before.block);
        }
    }

    /// Returns whether the newest version of a page lies in this block. The caller holds the lock of the page's shard.
    fn newest_uses(&self, page: PageId, block: BlockId) -> bool {
        match self.entry(page) {
            Entry::OnDisk(at) | Entry::Loading(at) => at.block == block,
            Entry::Resident(index) => self.disk_of(index).is_some_and(|at| at.block == block),
            Entry::Free => false,
        }
    }

    fn disk_of(&self, index: u32) -> Option<Location> {
        self.frames().frame(index).disk()
    }

    /// Returns the location of a page's newest version, and holds its block against reuse until the caller calls
    /// `unhold`; `None`, with nothing held, when the page does not exist, is only in memory, or is being read.
    pub(super) fn hold_on_disk(&self, page: PageId) -> Option<Location> {
        let _shard = self.shard(page);
        let at = self.location(page)?;
        self.metadata.lock().allocator.hold(at.block);
        Some(at)
    }

    /// Returns the location of a page's newest version; `None` when the page does not exist, is only in memory, or is
    /// being read, or when the leaf with its entry is not in memory.
    pub(super) fn place_on_disk(&self, page: PageId) -> Option<Location> {
        let _shard = self.shard(page);
        self.location(page)
    }

    /// As `place_on_disk`, under the lock of the page's shard: the frame that the table names keeps holding this page.
    fn location(&self, page: PageId) -> Option<Location> {
        match self.entry(page) {
            Entry::OnDisk(at) => Some(at),
            Entry::Resident(index) => self.disk_of(index),
            Entry::Loading(_) | Entry::Free => None,
        }
    }

    /// Moves the newest version of a page from location `from` to location `to` in the page table. Returns false, and
    /// releases the block of `to`, when the version is no longer at `from`.
    pub(super) fn replace_place(&self, page: PageId, from: Location, to: Location) -> bool {
        let _shard = self.shard(page);
        let moves = match self.entry(page) {
            Entry::OnDisk(at) if at == from => {
                self.words.store(page, Entry::OnDisk(to).to_word());
                true
            }
            Entry::Resident(index) if self.disk_of(index) == Some(from) => {
                self.frames().frame(index).set_moved(to);
                true
            }
            _ => false,
        };
        if moves {
            // An entry of a commit that changed the page since the last checkpoint is kept. Commit 0 lies before all
            // commits.
            let mut metadata = self.metadata.lock();
            if metadata.changed.get(page).is_none() {
                metadata.changed.insert(page, CommitSeq(0));
            }
            drop(metadata);
            self.metadata.release_unless_mapped(page, from);
        } else {
            self.metadata.lock().allocator.release(to.block);
        }
        moves
    }

    /// Replaces the newest version of a page by a new one, or by none when the page is freed. The leaf with the entry of a
    /// page that gets a new version is in memory.
    pub(super) fn replace(&self, change: PageChange, new: Entry, base: Option<CommitSeq>) -> Replacement {
        let PageChange { page, seq, unread_from } = change;
        let mut shard = self.shard(page);
        // If the old version was evicted since it was copied, `base` gives its commit. Of a page freed without having
        // been edited only the block is known. Its commit is the page's last change, if that was after the last
        // checkpoint. Otherwise it is taken to begin where the version before it ended: at its real commit, or at an
        // earlier one that no view will request.
        let began = |shard: &Shard| base.unwrap_or_else(|| shard.last_until(page).max(self.metadata.last_change(page)));
        let (place, from) = match self.entry(page) {
            Entry::Free if new == Entry::Free && self.cold_leaf(page).is_some() => {
                self.metadata.lock().cold_frees.push(change);
                return Replacement::Later;
            }
            Entry::Free => {
                // A freed page may never have existed: a damaged page can name any number, and the commit is in the log by now.
                if new == Entry::Free {
                    return Replacement::Absent;
                }
                self.words.store(page, new.to_word());
                return Replacement::Added;
            }
            Entry::Resident(frame) => (Place::Frame(frame), self.frames().frame(frame).commit()),
            Entry::OnDisk(at) => (Place::Disk(at), began(&shard)),
            Entry::Loading(at) => (Place::Loading(at), began(&shard)),
        };
        // The old version can be found before the new one hides it, so no view ever misses both.
        shard.add_version(page, Version { from, until: seq, place, frees_id: new == Entry::Free });
        self.words.store(page, new.to_word());
        Replacement::Superseded(SupersededVersion { page, from, until: seq, unread_from })
    }

    /// Removes a version that no view can request any more. Returns its frame, if there is one to be recycled.
    pub(super) fn drop_version(&self, old: SupersededVersion) -> Option<u32> {
        let mut shard = self.shard(old.page);
        let version = shard.remove_version(old.page, old.from, old.until)?;
        let mut frame_free = None;
        match version.place {
            Place::Disk(at) | Place::Loading(at) => self.metadata.release_unless_mapped(old.page, at),
            Place::Frame(index) => {
                let frame = self.frames().frame(index);
                if let Some(at) = frame.disk() {
                    self.metadata.release_unless_mapped(old.page, at);
                }
                if frame.pins() > 0 { frame.doom() } else { frame_free = Some(index) }
            }
        }
        if version.frees_id {
            self.metadata.lock().ids.put_back(old.page);
        }
        frame_free
    }
}
