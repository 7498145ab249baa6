//! The page table: where each version of each page is – in a frame, on disk, or being read – and every change of that.
//!
//! The newest version of a page stands in an array of words, which readers load without a lock. Older versions and in-flight reads
//! stand in shards by the leaf of the page table with the page's entry ([`Shard`]). Both change only here and in [`places`], under the lock of
//! the page's shard.
//!
//! Invariants, under the shard's lock:
//! 1. The ranges `from..until` of a page's versions do not overlap, and all lie before the newest version's commit.
//! 2. A version that any view can request is here until no view can (`registry` decides, an epoch delays).
//! 3. Each read has a number that no other read of the shard has. The read that brings a page from a block is in `loads` with
//!    its number, from the moment at which the page's word, or one of its versions, says *loading*, until the read ends or is
//!    given up. The completion of a read that is not in `loads` under its number changes nothing: its page was dropped, and
//!    another page has the same id and block by now, or the read was given up and its page is perhaps being read again.
//! 4. A page's versions stand in the order in which they were superseded.
//!
//! **Locks**: shard, then metadata, a waiter's, or the free list of frames. While a shard's lock is held, no epoch guard is pinned or
//! dropped, no waker is called, and no device is waited for.

mod block_map;
mod leaves;
mod metadata;
mod page_ids;
mod places;
mod word_array;

use std::collections::hash_map;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use rustc_hash::FxHashMap;

pub(crate) use self::block_map::BlockMap;
use self::leaves::LockedLeaf;
pub(super) use self::leaves::{LeafClock, LeafEviction, LeafPlace};
pub(crate) use self::metadata::Metadata;
pub(super) use self::metadata::PageChange;
pub(crate) use self::page_ids::PageIds;
use self::places::Places;
use self::word_array::WordArray;
pub(super) use self::word_array::{Entry, leaf_read_as, page_of_leaf};
use super::compressed_tier::{CompressedTier, Need};
use super::frames::{FrameFacts, FrameWaitQueue, Frames, OwnedFrame, Waiter};
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

    /// Returns the places of page versions, for writers, moves and checkpoints.
    pub(super) fn places(&self) -> Places<'_> {
        Places(self)
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
    /// later, it changes nothing (see [`Shard`]).
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
}

/// One old version of a page, superseded by a newer one: visible to views at commits `from ..= until - 1`.
#[derive(Debug)]
pub(crate) struct Version {
    pub(crate) from: CommitSeq,
    pub(crate) until: CommitSeq,
    pub(crate) place: Place,
    /// True when commit `until` freed the page: the page's id can be reused once this version is dropped.
    pub(crate) frees_id: bool,
}

impl Version {
    fn shows(&self, at: CommitSeq) -> bool {
        self.from <= at && at < self.until
    }
}

/// The location of an old version: in a frame, or on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Frame(u32),
    Disk(Location),
    Loading(Location),
}

/// A read in progress, and its waiters, which are nearly always none or one.
#[derive(Debug, Default)]
pub(crate) struct Load {
    number: u64,
    first: Option<Arc<Waiter>>,
    more: Vec<Arc<Waiter>>,
    /// The pages to be read after this leaf of the page table, each with its waiter, if there is one.
    followers: Vec<Follower>,
}

/// A page to be read after the leaf of the page table with its entry, and its waiter, if there is one.
pub(crate) type Follower = (Missing, Option<Arc<Waiter>>);

impl Load {
    pub(crate) fn add_waiter(&mut self, waiter: Arc<Waiter>) {
        match &self.first {
            None => self.first = Some(waiter),
            Some(_) => self.more.push(waiter),
        }
    }

    /// Adds a page to be read once this leaf of the page table is in memory.
    pub(crate) fn add_follower(&mut self, missing: Missing, waiter: Option<Arc<Waiter>>) {
        self.followers.push((missing, waiter));
    }

    /// Returns the waiters for what is read itself, and the pages to be read next.
    pub(crate) fn into_parts(self) -> (impl Iterator<Item = Arc<Waiter>>, Vec<Follower>) {
        (self.first.into_iter().chain(self.more), self.followers)
    }

    /// Returns all waiters.
    pub(crate) fn waiters(&self) -> impl Iterator<Item = &Waiter> {
        let of_followers = self.followers.iter().filter_map(|(_, waiter)| waiter.as_ref());
        self.first.iter().chain(&self.more).chain(of_followers).map(|waiter| &**waiter)
    }
}

/// The old versions of a page, of which there is nearly always one.
#[derive(Debug)]
struct OldVersions {
    first: Version,
    more: Vec<Version>,
}

impl OldVersions {
    fn iter(&self) -> impl Iterator<Item = &Version> {
        std::iter::once(&self.first).chain(&self.more)
    }

    fn find(&mut self, is_it: impl Fn(&Version) -> bool) -> Option<&mut Version> {
        std::iter::once(&mut self.first).chain(&mut self.more).find(|version| is_it(version))
    }
}

#[derive(Debug, Default)]
pub(crate) struct Shard {
    versions: FxHashMap<PageId, OldVersions>,
    loads: FxHashMap<(PageId, BlockId), Load>,
    /// The number given to the last read of this shard.
    last_read: u64,
}

/// Identifies a read in progress: its page, its location, and its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReadId {
    pub(crate) page: PageId,
    pub(crate) at: Location,
    number: u64,
}

impl Shard {
    /// Records a read that begins. If an earlier read of the same block is still in progress, for a page that was
    /// dropped, its waiters now wait for the new read and look their page up again when it ends.
    pub(crate) fn begin_load(&mut self, page: PageId, at: Location) -> ReadId {
        self.last_read += 1;
        self.loads.entry((page, at.block)).or_default().number = self.last_read;
        ReadId { page, at, number: self.last_read }
    }

    /// Returns the read in progress that loads a page from this block.
    pub(crate) fn load(&mut self, page: PageId, block: BlockId) -> Option<&mut Load> {
        self.loads.get_mut(&(page, block))
    }

    /// Removes a read that ends or is abandoned. Returns `None` when the read was abandoned before, or another read has
    /// replaced it.
    pub(crate) fn end_load(&mut self, read: ReadId) -> Option<Load> {
        let key = (read.page, read.at.block);
        if self.loads.get(&key)?.number == read.number { self.loads.remove(&key) } else { None }
    }

    /// Returns all reads in progress.
    pub(crate) fn loads(&self) -> impl Iterator<Item = &Load> {
        self.loads.values()
    }

    /// Returns the version of a page that a view at commit `at` sees, unless that is the newest version.
    pub(crate) fn version_at(&mut self, page: PageId, at: CommitSeq) -> Option<&mut Version> {
        self.versions.get_mut(&page)?.find(|version| version.shows(at))
    }

    /// Returns the old version of a page that is being read from the location `at`.
    pub(crate) fn version_loading(&mut self, page: PageId, at: Location) -> Option<&mut Version> {
        self.versions.get_mut(&page)?.find(|version| version.place == Place::Loading(at))
    }

    /// Returns the old version of a page in this frame.
    pub(crate) fn version_in_frame(&mut self, page: PageId, frame: u32) -> Option<&mut Version> {
        self.versions.get_mut(&page)?.find(|version| version.place == Place::Frame(frame))
    }

    pub(crate) fn add_version(&mut self, page: PageId, version: Version) {
        match self.versions.entry(page) {
            hash_map::Entry::Occupied(versions) => versions.into_mut().more.push(version),
            hash_map::Entry::Vacant(place) => {
                place.insert(OldVersions { first: version, more: Vec::new() });
            }
        }
    }

    /// Removes the version of a page that began at `from` and ended at `until`; if one commit published several, the
    /// version superseded first. The order in which such versions are dropped does not matter. When n of them
    /// are due, the first n may go, because each was superseded no later than a version whose epoch is over.
    pub(crate) fn remove_version(&mut self, page: PageId, from: CommitSeq, until: CommitSeq) -> Option<Version> {
        let versions = self.versions.get_mut(&page)?;
        let at = versions.iter().position(|version| version.from == from && version.until == until)?;
        if at > 0 {
            return Some(versions.more.remove(at - 1));
        }
        if versions.more.is_empty() {
            return self.versions.remove(&page).map(|versions| versions.first);
        }
        let next = versions.more.remove(0);
        Some(std::mem::replace(&mut versions.first, next))
    }

    /// Returns whether any of these pages has an old version.
    pub(crate) fn has_version_in(&self, pages: impl Iterator<Item = PageId>) -> bool {
        !self.versions.is_empty() && pages.into_iter().any(|page| self.versions.contains_key(&page))
    }

    /// Returns whether any old version of the page lies in this block on disk.
    pub(crate) fn version_uses(&self, page: PageId, block: BlockId, disk_of: impl Fn(u32) -> Option<Location>) -> bool {
        let uses = |version: &Version| match version.place {
            Place::Disk(at) | Place::Loading(at) => at.block == block,
            Place::Frame(frame) => disk_of(frame).is_some_and(|at| at.block == block),
        };
        self.versions.get(&page).is_some_and(|versions| versions.iter().any(uses))
    }

    /// Returns the commit that superseded the newest of a page's old versions; zero when the page has no old version.
    pub(crate) fn last_until(&self, page: PageId) -> CommitSeq {
        let untils = self.versions.get(&page).into_iter().flat_map(OldVersions::iter).map(|version| version.until);
        untils.max().unwrap_or_default()
    }
}
