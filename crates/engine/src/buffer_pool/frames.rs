//! The memory of the pool: frames in huge pages, and the rules of access to them.
//!
//! A frame is in one of three states, and its memory has one kind of holder in each:
//! - **free**: its buffer rests in the frame, and its number is among the free ones and nowhere else;
//! - **owned**: an in-flight read or a private copy has its [`OwnedFrame`], and may write to it;
//! - **published**: its buffer rests in the frame and is never written to. Any reader that is protected may read it: by an
//!   epoch guard pinned while the frame could be found, or by a pin.
//!
//! A published frame holds a version of a page, or a block of the compressed tier ([`Frames::publish_block`]).
//!
//! [`Frames::publish`] makes an owned frame published. [`Frames::recycle`] makes a published frame free, and is called only
//! when no protected reader can be left: either an epoch has passed since the frame was removed from every place where it
//! could be found, or it never was in any.
//!
//! **Free frames** are tracked so that neighbours can be taken together: one read then fills many frames without a copy.
//! One bit for each frame, in groups of sixty-four. A request for a single frame is served from a group that is broken already,
//! so the frames that are kept free in any case (the writers' reserve) come to be whole groups, and a long range scan that takes
//! them returns whole groups: its pages are evicted in the order in which they came.
//!
//! Invariant: a group with some frames free is listed in `broken`, one with all of them in `whole`. Lists may name groups that
//! have changed since; a search that meets such a group removes it. Nothing here takes time that grows with the pool.
//!
//! The kernel gives a frame memory, and fills it with zeroes, when it is written to first. For a load into a new pool that
//! is a sixth of its time, which a background thread takes over ([`MemoryAhead`]): it is always a part of the pool ahead. That part is no
//! larger than the part in use, so a small database does not take the memory of a large one.

mod usage;
mod waits;

use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nofault_io::aligned::{IoBuf, PageKind, Region};
use nofault_io::prefetch::prefetch_read;

pub(super) use self::usage::Ghosts;
use self::usage::{LeafExpiries, UsageCounts};
pub(super) use self::waits::{FrameWaitQueue, Waiter};
use crate::buffer_pool::PAGES_MAX;
use crate::error::{Error, Result};
use crate::format::{BlockId, CommitSeq, Location, PageId, Tag};

/// Number of frames that are kept free for batches of reads, as a divisor of all frames; at most `STOCK_MAX`.
const STOCK_SHARE: usize = 64;
const STOCK_MAX: usize = 256;
/// The page id of a frame holding a block: no page has it, and no leaf of the page table is read as it.
const NO_PAGE: PageId = PageId(PAGES_MAX);

/// A frame, and the metadata of the page version in it. A hit does not touch this struct: the page's address follows from the
/// frame's number, its commit stands in its header, and its usage count is in a separate array.
///
/// Every field is changed only while the frame is owned or under the lock of its page's shard.
#[repr(align(64))]
pub(crate) struct Frame {
    buffer: UnsafeCell<Option<IoBuf>>,
    page: AtomicU64,
    commit: AtomicU64,
    /// The location of this page version on disk, encoded as a word; zero while the frame is dirty.
    disk: AtomicU64,
    /// The block near which the dirty page should be written, plus one; zero when any block will do.
    near: AtomicU64,
    pins: AtomicU32,
    /// Set when the frame was removed from the page table and the version lists; it is retired when its last pin ends.
    doomed: AtomicBool,
    published: AtomicBool,
}

// SAFETY: `buffer` is the only field that is not `Sync` by itself. It is touched only by code that alone can reach the frame
// at that moment (module header): its owner in `Frames::publish` and `Frames::give_back`, and the caller of `Frames::own`,
// which has just taken its number from among the free ones.
unsafe impl Sync for Frame {}

impl Frame {
    /// Prefetches the metadata into the CPU caches.
    pub(crate) fn prefetch(&self) {
        prefetch_read(self);
    }

    pub(crate) fn page(&self) -> PageId {
        PageId(self.page.load(Ordering::Relaxed))
    }

    pub(crate) fn commit(&self) -> CommitSeq {
        CommitSeq(self.commit.load(Ordering::Relaxed))
    }

    pub(crate) fn disk(&self) -> Option<Location> {
        Location::from_word(self.disk.load(Ordering::Relaxed))
    }

    fn set_disk(&self, at: Location) {
        self.disk.store(at.to_word(), Ordering::Relaxed);
    }

    /// Changes the location of a clean page after the page was moved. The caller holds the lock of the page's shard.
    pub(crate) fn set_moved(&self, at: Location) {
        debug_assert!(self.disk().is_some(), "a dirty page was moved");
        self.set_disk(at);
    }

    /// Returns the block near which the page should be written.
    pub(crate) fn near(&self) -> Option<u64> {
        self.near.load(Ordering::Relaxed).checked_sub(1)
    }

    pub(crate) fn is_published(&self) -> bool {
        self.published.load(Ordering::Relaxed)
    }

    pub(crate) fn pins(&self) -> u32 {
        self.pins.load(Ordering::Relaxed)
    }

    /// Adds `count` pins to the frame. The caller holds the lock of the page's shard.
    pub(crate) fn pin(&self, count: u32) {
        self.pins.fetch_add(count, Ordering::Relaxed);
    }

    /// Removes a pin from the frame. Returns true when the frame is doomed and this was its last pin. The caller holds
    /// the lock of the page's shard.
    pub(crate) fn unpin(&self) -> bool {
        let before = self.pins.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "unpinned a frame that is not pinned");
        before == 1 && self.doomed.load(Ordering::Relaxed)
    }

    pub(crate) fn is_doomed(&self) -> bool {
        self.doomed.load(Ordering::Relaxed)
    }

    /// Marks the frame to be retired when its last pin is removed.
    pub(crate) fn doom(&self) {
        self.doomed.store(true, Ordering::Relaxed);
    }
}

/// The metadata that a frame gets when its page version is published.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FrameFacts {
    pub(crate) page: PageId,
    pub(crate) commit: CommitSeq,
    pub(crate) disk: Option<Location>,
    pub(crate) near: Option<u64>,
    pub(crate) pins: u32,
    pub(crate) hot: bool,
}

/// The exclusive right to the memory of one frame.
#[derive(Debug)]
pub(crate) struct OwnedFrame {
    pub(crate) index: u32,
    pub(crate) buffer: IoBuf,
}

/// The exclusive right to the memory of adjacent frames.
#[derive(Debug)]
pub(crate) struct OwnedRun {
    first: u32,
    pub(crate) buffer: IoBuf,
}

impl OwnedRun {
    /// Splits the run into its frames.
    pub(crate) fn into_frames(self, page_bytes: usize) -> impl Iterator<Item = OwnedFrame> {
        let pieces = self.buffer.pieces(page_bytes).into_iter();
        (self.first..).zip(pieces).map(|(index, buffer)| OwnedFrame { index, buffer })
    }

    /// Splits the run into the number of its first frame and its memory, for one read that fills all of it.
    pub(crate) fn into_parts(self) -> (u32, IoBuf) {
        (self.first, self.buffer)
    }

    /// Rebuilds a run from the parts that [`OwnedRun::into_parts`] returned.
    pub(crate) fn from_parts(first: u32, buffer: IoBuf) -> Self {
        Self { first, buffer }
    }
}

/// Most frames taken for private copies together.
const FRAMES_AT_ONCE: usize = 16;

/// Dirty pages are written early when so few frames more may become dirty, or a quarter of those that may be. Writing
/// them later saves writes, because a page that changes again before is written once.
const DIRTY_SLACK: usize = 4096;

/// All frames of a pool.
pub(crate) struct Frames {
    all: Box<[Frame]>,
    usage: UsageCounts,
    expiries: LeafExpiries,
    free: Mutex<FreeFrames>,
    region: Region,
    ahead: MemoryAhead,
    page_bytes: usize,
    limits: FrameLimits,
}

/// How many frames are kept for writers, and how many writers may hold.
#[derive(Debug)]
pub(crate) struct FrameLimits {
    count: usize,
    /// Number of free frames that reads may not take. Without this reserve a pool full of dirty pages and readers could
    /// not commit.
    reserve: usize,
    /// Number of published frames with a page that is not on disk yet.
    dirty: AtomicUsize,
    /// Number of frames taken for private copies and neither published nor returned yet.
    private: AtomicUsize,
}

impl FrameLimits {
    fn new(count: usize) -> Self {
        Self { count, reserve: (count / 16).max(4), dirty: AtomicUsize::new(0), private: AtomicUsize::new(0) }
    }

    pub(crate) fn reserve(&self) -> usize {
        self.reserve
    }

    /// Returns the number of frames that are kept free: the writers' reserve, and a stock for batches of reads.
    pub(crate) fn kept_free(&self) -> usize {
        self.reserve + self.stock()
    }

    /// Returns the number of frames that are kept free for batches of reads.
    pub(crate) fn stock(&self) -> usize {
        (self.count / STOCK_SHARE).min(STOCK_MAX)
    }

    /// Returns the most frames that may be dirty or private copies at a time.
    pub(crate) fn dirty_max(&self) -> usize {
        self.count - self.reserve - (self.count / 8).max(8)
    }

    pub(crate) fn dirty_count(&self) -> usize {
        self.dirty.load(Ordering::Relaxed)
    }

    /// Returns the number of frames that cannot be evicted at once, because they are dirty or private copies.
    pub(crate) fn changed_count(&self) -> usize {
        self.dirty_count() + self.private.load(Ordering::Relaxed)
    }

    /// Returns whether there are so many dirty frames that some should be written early.
    pub(crate) fn has_many_dirty(&self) -> bool {
        let max = self.dirty_max();
        self.dirty_count() > max - (max / 4).min(DIRTY_SLACK)
    }

    /// Returns the most frames that one commit may hold as private copies: half of those that may be dirty, so that its source
    /// pages and some readers fit as well.
    pub(crate) fn private_max(&self) -> usize {
        self.dirty_max() / 2
    }
}

impl Frames {
    /// Allocates memory for `count` frames at once.
    ///
    /// # Errors
    /// `NoResources` when the system has no memory.
    pub(crate) fn new(count: usize, page_bytes: usize) -> Result<Self> {
        let memory = IoBuf::zeroed(count * page_bytes, PageKind::Huge)
            .map_err(|error| Error::from_io("take memory for the buffer pool", error))?;
        let region = memory.region().clone();
        let mut pieces = memory.pieces(page_bytes).into_iter();
        let all = (0..count).map(|_| Frame {
            buffer: UnsafeCell::new(pieces.next()),
            page: AtomicU64::new(0),
            commit: AtomicU64::new(0),
            disk: AtomicU64::new(0),
            near: AtomicU64::new(0),
            pins: AtomicU32::new(0),
            doomed: AtomicBool::new(false),
            published: AtomicBool::new(false),
        });
        let all = all.collect();
        let mut free = FreeFrames::none(count);
        free.put_all((0..count as u32).rev());
        Ok(Self {
            all,
            usage: UsageCounts::new(count),
            expiries: LeafExpiries::new(count),
            free: Mutex::new(free),
            region,
            ahead: MemoryAhead::default(),
            page_bytes,
            limits: FrameLimits::new(count),
        })
    }

    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    /// Returns the limits of what is kept for writers, and of what they may hold.
    pub(crate) fn limits(&self) -> &FrameLimits {
        &self.limits
    }

    pub(crate) fn free_count(&self) -> usize {
        self.free().len()
    }

    fn free(&self) -> MutexGuard<'_, FreeFrames> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn frame(&self, index: u32) -> &Frame {
        &self.all[index as usize]
    }

    /// Returns the bytes of a published frame.
    ///
    /// # Safety
    /// The frame is published and stays so for `'a`: the caller found it under an epoch guard, or holds a pin, that lasts
    /// as long.
    pub(crate) unsafe fn bytes<'a>(&self, index: u32) -> &'a [u8] {
        assert!((index as usize) < self.all.len(), "no frame has this number");
        // SAFETY: frame `i` has piece `i` of the region (`new` numbers them so, and an `OwnedFrame` keeps number and piece
        // together), so this lies within it. Its memory outlives `'a` and is not written to: it is returned to an owner only
        // by `recycle`, which the caller's protection excludes.
        unsafe { std::slice::from_raw_parts(self.region.base().add(index as usize * self.page_bytes), self.page_bytes) }
    }

    /// Returns the usage counts of the frames.
    #[inline]
    pub(crate) fn usage(&self) -> &UsageCounts {
        &self.usage
    }

    /// Returns the latest expiries of the leaves in frames.
    #[inline]
    pub(crate) fn expiries(&self) -> &LeafExpiries {
        &self.expiries
    }

    /// Takes a frame for a page to be read. `None` when only the writers' reserve is left.
    pub(crate) fn take_for_read(&self) -> Option<OwnedFrame> {
        let index = {
            let mut free = self.free();
            if free.len() > self.limits.reserve { free.take() } else { None }
        };
        index.map(|index| self.own(index))
    }

    /// Takes up to `most` frames for pages to be read, under the same limit as [`Frames::take_for_read`].
    pub(crate) fn take_some_for_read(&self, most: usize, into: &mut Vec<OwnedFrame>) {
        let mut free = self.free();
        let count = free.len().saturating_sub(self.limits.reserve).min(most);
        let taken: Vec<u32> = (0..count).map_while(|_| free.take()).collect();
        drop(free);
        into.extend(taken.into_iter().map(|index| self.own(index)));
    }

    /// Takes up to `most` adjacent frames, but at least `least`, for pages to be read together, under the same limit as
    /// [`Frames::take_for_read`].
    pub(crate) fn take_run_for_read(&self, least: usize, most: usize) -> Option<OwnedRun> {
        let (first, count) = {
            let mut free = self.free();
            let spare = free.len().saturating_sub(self.limits.reserve);
            if spare < least {
                return None;
            }
            free.take_run(least, most.min(spare))?
        };
        let OwnedFrame { mut buffer, .. } = self.own(first);
        for index in first + 1..first + count as u32 {
            // Neighbours in number are neighbours in memory.
            buffer =
                buffer.join(self.own(index).buffer).unwrap_or_else(|_| unreachable!("frames lie as they are numbered"));
        }
        Some(OwnedRun { first, buffer })
    }

    /// Takes the memory of a frame whose number the caller has just removed from the free frames.
    fn own(&self, index: u32) -> OwnedFrame {
        // SAFETY: the number was among the free ones and is nowhere now, so only its taker, the caller, can reach this cell. The
        // lock of the free ones orders this access after the one that put the buffer there.
        let buffer = unsafe { (*self.frame(index).buffer.get()).take() };
        OwnedFrame { index, buffer: buffer.unwrap_or_else(|| unreachable!("a free frame has its memory")) }
    }

    /// Takes up to `most` frames for private copies, and a few at most. Takes none also while too many frames are dirty: so readers always
    /// find frames that can be evicted without a write, even when the disk is full.
    pub(crate) fn take_some_for_write(&self, most: usize, into: &mut Vec<OwnedFrame>) {
        let mut indices = [0; FRAMES_AT_ONCE];
        let mut taken = 0;
        let mut free = self.free();
        // Counted under the lock, so that threads that take several at a time do not pass the limit together.
        let count = self.limits.dirty_max().saturating_sub(self.limits.changed_count()).min(most);
        for place in indices.iter_mut().take(count) {
            let Some(index) = free.take() else { break };
            *place = index;
            taken += 1;
        }
        self.limits.private.fetch_add(taken, Ordering::Relaxed);
        drop(free);
        indices[..taken].iter().for_each(|index| self.frame(*index).prefetch());
        into.extend(indices[..taken].iter().map(|index| self.own(*index)));
    }

    /// Notes that an owned frame is about to be written to. Returns whether the thread that calls
    /// [`Frames::take_memory_ahead`] should be woken.
    pub(crate) fn note_used(&self, owned: &OwnedFrame) -> bool {
        self.ahead.note_used(owned.index, self.count(), self.page_bytes)
    }

    /// Has the kernel give memory to frames that will be used soon. Takes some milliseconds.
    pub(crate) fn take_memory_ahead(&self) {
        if let Some(frames) = self.ahead.take() {
            let given = self.region.populate(frames.start * self.page_bytes..frames.end * self.page_bytes);
            self.ahead.set_given(if given { frames.end } else { usize::MAX });
        }
    }

    /// Marks a dirty frame as written to `at`. The caller holds the lock of the page's shard.
    pub(crate) fn set_clean(&self, index: u32, at: Location) {
        self.frame(index).set_disk(at);
        self.limits.dirty.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns frames taken for private copies.
    pub(crate) fn give_back_private(&self, frames: Vec<OwnedFrame>) {
        self.limits.private.fetch_sub(frames.len(), Ordering::Relaxed);
        self.give_back(frames);
    }

    /// Returns owned frames to the free list.
    pub(crate) fn give_back(&self, frames: impl IntoIterator<Item = OwnedFrame>) {
        let put_down = |OwnedFrame { index, buffer }| {
            // SAFETY: the caller owned the frame until now, so no other thread can reach this cell.
            unsafe { *self.frame(index).buffer.get() = Some(buffer) };
            index
        };
        let indices: Vec<u32> = frames.into_iter().map(put_down).collect();
        self.free().put_all(indices);
    }

    /// Publishes a frame with a block of compressed pages: from now on its bytes do not change. The caller then adds the
    /// returned number to the compressed tier, or retires it.
    pub(crate) fn publish_block(&self, owned: OwnedFrame, block: BlockId) -> u32 {
        let disk = Some(Location::of_whole(block, Tag::from_bits(0)));
        let facts = FrameFacts { page: NO_PAGE, commit: CommitSeq(0), disk, near: None, pins: 0, hot: false };
        let index = self.publish(owned, facts);
        self.usage.reset_for_block(index);
        index
    }

    /// Publishes a frame: from now on its bytes do not change. The caller then stores the returned number in the page
    /// table.
    pub(crate) fn publish(&self, owned: OwnedFrame, facts: FrameFacts) -> u32 {
        let frame = self.frame(owned.index);
        debug_assert!(!frame.is_published(), "published twice");
        debug_assert_eq!(
            owned.buffer.address(),
            self.region.base().wrapping_add(owned.index as usize * self.page_bytes),
            "a frame has the memory that its number says"
        );
        if facts.disk.is_none() {
            // Only private copies are new to the disk.
            self.limits.dirty.fetch_add(1, Ordering::Relaxed);
            self.limits.private.fetch_sub(1, Ordering::Relaxed);
        }
        frame.page.store(facts.page.0, Ordering::Relaxed);
        frame.commit.store(facts.commit.0, Ordering::Relaxed);
        frame.disk.store(facts.disk.map_or(0, Location::to_word), Ordering::Relaxed);
        frame.near.store(facts.near.map_or(0, |block| block + 1), Ordering::Relaxed);
        frame.pins.store(facts.pins, Ordering::Relaxed);
        self.usage.reset(owned.index, facts.hot);
        self.expiries.forget(owned.index);
        frame.doomed.store(false, Ordering::Relaxed);
        // SAFETY: the caller owned the frame until now, so no other thread can reach this cell.
        unsafe { *frame.buffer.get() = Some(owned.buffer) };
        frame.published.store(true, Ordering::Relaxed);
        owned.index
    }

    /// Frees published frames that no reader can find or read any more.
    ///
    /// # Safety
    /// For each frame: it is published, has no pins, and its number is stored nowhere. Every epoch guard that was
    /// pinned while the number was stored is gone. No other call recycles the frame.
    pub(crate) unsafe fn recycle(&self, frames: &[u32]) {
        for index in frames {
            let frame = self.frame(*index);
            debug_assert!(frame.is_published() && frame.pins() == 0, "recycled a frame in use");
            frame.published.store(false, Ordering::Relaxed);
            if frame.disk().is_none() {
                self.limits.dirty.fetch_sub(1, Ordering::Relaxed);
            }
        }
        self.free().put_all(frames.iter().copied());
    }

    /// Returns the bytes of memory that the frames take.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let frames = (self.all.len() * size_of::<Frame>()) as u64;
        self.region.len_bytes() as u64 + frames + self.expiries.memory_bytes()
    }
}

const _: () = assert!(size_of::<Frame>() <= 128, "a hit should touch one line, at most two");

/// Number of frames in a group: one for each bit of a word.
pub(crate) const GROUP: usize = 64;
/// Most partly free groups that one request searches for adjacent free frames.
const LOOKS: usize = 4;

/// The set of free frames.
pub(crate) struct FreeFrames {
    /// A bitmap for each group, with a set bit for each free frame.
    groups: Box<[u64]>,
    count: usize,
    whole: GroupStack,
    broken: GroupStack,
}

impl FreeFrames {
    /// Creates the set for a pool of `frames` frames, none of which is free yet.
    pub(crate) fn none(frames: usize) -> Self {
        let groups = frames.div_ceil(GROUP);
        Self {
            groups: vec![0; groups].into(),
            count: 0,
            whole: GroupStack::new(groups),
            broken: GroupStack::new(groups),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Adds a frame to the set of free frames.
    pub(crate) fn put(&mut self, frame: u32) {
        let group = frame as usize / GROUP;
        let bit = 1 << (frame as usize % GROUP);
        debug_assert_eq!(self.groups[group] & bit, 0, "freed twice");
        self.count += usize::from(self.groups[group] & bit == 0);
        self.groups[group] |= bit;
        self.list(group);
    }

    /// Adds frames to the set. Their buffers must be in place, and their numbers stored nowhere else.
    pub(crate) fn put_all(&mut self, frames: impl IntoIterator<Item = u32>) {
        frames.into_iter().for_each(|frame| self.put(frame));
    }

    /// Removes one free frame from the set and returns its number; `None` when no frame is free.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let group = self.top_broken(0).or_else(|| self.top_whole())?;
        Some(self.take_from(group, self.groups[group].trailing_zeros(), 1))
    }

    /// Removes `most` adjacent free frames from the set, or fewer but at least `least`. Returns the number of the first
    /// frame and their count.
    pub(crate) fn take_run(&mut self, least: usize, most: usize) -> Option<(u32, usize)> {
        let most = most.min(GROUP);
        let mut best: Option<(usize, u32, usize)> = None;
        for depth in 0..LOOKS {
            let Some(group) = self.top_broken(depth) else { break };
            let (at, length) = longest_run(self.groups[group], most);
            if best.is_none_or(|(_, _, longest)| longest < length) {
                best = Some((group, at, length));
            }
        }
        let enough = |length: usize| length >= least.max(1);
        let taken = match best.filter(|(_, _, length)| *length == most) {
            Some(found) => Some(found),
            None => self.top_whole().map(|group| (group, 0, most)).or(best),
        };
        let (group, at, length) = taken.filter(|(_, _, length)| enough(*length))?;
        Some((self.take_from(group, at, length), length))
    }

    fn take_from(&mut self, group: usize, at: u32, length: usize) -> u32 {
        let mask = (u64::MAX >> (GROUP - length)) << at;
        debug_assert_eq!(self.groups[group] & mask, mask, "took frames that are not free");
        self.groups[group] &= !mask;
        self.count -= length;
        self.list(group);
        (group * GROUP) as u32 + at
    }

    /// Lists a group among the completely free or the partly free groups.
    fn list(&mut self, group: usize) {
        match self.groups[group] {
            0 => {}
            u64::MAX => self.whole.add(group),
            _ => self.broken.add(group),
        }
    }

    /// Returns the partly free group at `depth` from the top of the list of such groups.
    fn top_broken(&mut self, depth: usize) -> Option<usize> {
        let groups = &self.groups;
        self.broken.top(depth, |group| !matches!(groups[group], 0 | u64::MAX))
    }

    fn top_whole(&mut self) -> Option<usize> {
        let groups = &self.groups;
        self.whole.top(0, |group| groups[group] == u64::MAX)
    }
}

/// A stack of groups that contains each group at most once.
struct GroupStack {
    stack: Vec<u32>,
    is_in: Box<[bool]>,
}

impl GroupStack {
    fn new(groups: usize) -> Self {
        Self { stack: Vec::with_capacity(groups), is_in: vec![false; groups].into() }
    }

    fn add(&mut self, group: usize) {
        if !std::mem::replace(&mut self.is_in[group], true) {
            self.stack.push(group as u32);
        }
    }

    /// Returns the group at `depth` from the top among the groups for which `belongs` holds. Removes other groups that
    /// lie above it.
    fn top(&mut self, depth: usize, belongs: impl Fn(usize) -> bool) -> Option<usize> {
        loop {
            let at = self.stack.len().checked_sub(1 + depth)?;
            let group = self.stack[at] as usize;
            if belongs(group) {
                return Some(group);
            }
            self.stack.swap_remove(at);
            self.is_in[group] = false;
        }
    }
}

/// Returns the start and length of the longest run of ones, or of the first run of at least `most` ones.
fn longest_run(bits: u64, most: usize) -> (u32, usize) {
    let (mut runs, mut length) = (bits, 0);
    let mut at = 0;
    // After `n` rounds a bit is set where `n + 1` ones begin.
    while runs != 0 && length < most {
        at = runs.trailing_zeros();
        length += 1;
        runs &= bits >> length.min(63);
        if length == GROUP {
            break;
        }
    }
    (at, length)
}

/// Most bytes that are ahead.
const AHEAD_BYTES: usize = 32 << 20;
/// Fewest bytes in use before any are ahead.
const USED_BYTES_MIN: usize = 4 << 20;

/// The frames with memory: the frames in use as a rule, and some ahead.
#[derive(Debug, Default)]
pub(crate) struct MemoryAhead {
    /// Number of first frames that have memory.
    given: AtomicUsize,
    /// Number of first frames in use: those that have no memory yet get it by their use.
    used: AtomicUsize,
    /// Number of first frames that are to have memory.
    wanted: AtomicUsize,
    is_asked: AtomicBool,
}

impl MemoryAhead {
    /// Notes that a frame is used, of a pool of `count` frames. Returns whether a thread should be woken that calls
    /// [`MemoryAhead::take`]: once for each such call.
    #[inline]
    pub(crate) fn note_used(&self, frame: u32, count: usize, page_bytes: usize) -> bool {
        let used = frame as usize + 1;
        let ahead = used.min(AHEAD_BYTES / page_bytes);
        let given = self.given.load(Ordering::Relaxed);
        if used + ahead / 2 <= given || given >= count || used < USED_BYTES_MIN / page_bytes {
            return false;
        }
        self.used.fetch_max(used, Ordering::Relaxed);
        self.wanted.fetch_max((used + ahead).min(count), Ordering::Relaxed);
        !self.is_asked.swap(true, Ordering::Relaxed)
    }

    /// Returns the frames that are to get memory, [`AHEAD_BYTES`] of them at most, for the one thread that asks the kernel
    /// for it; after it has asked, it calls [`MemoryAhead::set_given`].
    pub(crate) fn take(&self) -> Option<Range<usize>> {
        if !self.is_asked.swap(false, Ordering::Relaxed) {
            return None;
        }
        // Loaded in this order, so that it never exceeds the limit.
        let wanted = self.wanted.load(Ordering::Relaxed);
        let begin = self.given.load(Ordering::Relaxed).max(self.used.load(Ordering::Relaxed));
        (begin < wanted).then_some(begin..wanted)
    }

    /// Notes that the first `frames` frames have memory, or that the kernel need not be asked for it.
    pub(crate) fn set_given(&self, frames: usize) {
        self.given.fetch_max(frames, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_longest_run_is_found() {
        assert_eq!(longest_run(0, 64), (0, 0));
        assert_eq!(longest_run(u64::MAX, 64), (0, 64));
        assert_eq!(longest_run(u64::MAX << 1, 64), (1, 63));
        assert_eq!(longest_run(0b1011_0111_0001, 64), (4, 3));
        assert_eq!(longest_run(0b1011_0111_0001, 2).1, 2);
        assert_eq!(longest_run(1 << 63, 64), (63, 1));
    }

    #[test]
    fn single_frames_come_from_broken_groups_and_runs_from_whole_ones() {
        let mut free = FreeFrames::none(3 * GROUP);
        (0..3 * GROUP as u32).for_each(|frame| free.put(frame));
        let first = free.take().unwrap();
        for _ in 1..GROUP {
            assert_eq!(free.take().unwrap() as usize / GROUP, first as usize / GROUP);
        }
        let (a, b) = (free.take_run(GROUP, GROUP).unwrap(), free.take_run(GROUP, GROUP).unwrap());
        assert_eq!((a.1, b.1, free.len()), (GROUP, GROUP, 0));
        assert_eq!(free.take_run(1, GROUP), None);
        (0..40).for_each(|frame| free.put(a.0 + frame));
        assert_eq!(free.take_run(41, GROUP), None);
        assert_eq!(free.take_run(40, GROUP), Some((a.0, 40)));
    }

    proptest! {
        /// Over any sequence of takes and returns, each frame has exactly one holder, and a pool of any size hands out
        /// all its frames.
        #[test]
        fn no_frame_is_lost_and_no_frame_is_given_out_twice(
            frames in 1_usize..300,
            steps in proptest::collection::vec((0_u8..4, any::<u32>(), 1_usize..80), 0..400),
        ) {
            let mut free = FreeFrames::none(frames);
            (0..frames as u32).for_each(|frame| free.put(frame));
            let mut held = BTreeSet::new();
            for (what, which, most) in steps {
                match what {
                    0 => {
                        if let Some(frame) = free.take() {
                            prop_assert!(held.insert(frame));
                        }
                    }
                    1 => {
                        if let Some((first, length)) = free.take_run((most / 2).max(1), most) {
                            prop_assert!(length <= most && length >= (most / 2).max(1));
                            for frame in first..first + length as u32 {
                                prop_assert!(held.insert(frame));
                            }
                        }
                    }
                    _ => {
                        let from = which % frames as u32;
                        let back: Vec<u32> = held.range(from..).take(most).copied().collect();
                        for frame in back {
                            held.remove(&frame);
                            free.put(frame);
                        }
                    }
                }
                prop_assert_eq!(free.len() + held.len(), frames);
            }
            while let Some(frame) = free.take() {
                prop_assert!(held.insert(frame));
            }
            prop_assert_eq!(held, (0..frames as u32).collect::<BTreeSet<_>>());
        }
    }

    #[test]
    fn frames_get_memory_ahead_of_their_use_and_no_more_than_twice_what_is_used() {
        let (ahead, page_bytes, count) = (MemoryAhead::default(), 4096, 100_000);
        let mut calls = 0;
        for frame in 0..count as u32 {
            if ahead.note_used(frame, count, page_bytes) {
                assert!(!ahead.note_used(frame, count, page_bytes), "it was asked already");
                let frames = ahead.take().unwrap();
                assert!(frames.len() <= AHEAD_BYTES / page_bytes, "{frames:?}");
                ahead.set_given(frames.end);
                calls += 1;
            }
            let (used, given) = (frame as usize + 1, ahead.given.load(Ordering::Relaxed));
            assert!(given == 0 || used <= given, "frame {frame}");
            assert!(given <= used + used.min(AHEAD_BYTES / page_bytes), "{given} for {used}");
            assert!(used >= USED_BYTES_MIN / page_bytes || given == 0, "{given} for {used}");
        }
        assert_eq!(ahead.given.load(Ordering::Relaxed), count);
        assert!(calls < 40, "{calls}");
        assert_eq!(ahead.take(), None);
    }

    /// The frames before were used by reads, which ask for nothing.
    #[test]
    fn the_first_frame_that_asks_gets_no_memory_for_all_before_it() {
        let ahead = MemoryAhead::default();
        assert!(ahead.note_used(5_000_000, 8_000_000, 4096));
        assert_eq!(ahead.take(), Some(5_000_001..5_000_001 + AHEAD_BYTES / 4096));
    }

    #[test]
    fn a_kernel_that_gives_no_memory_is_not_asked_again() {
        let ahead = MemoryAhead::default();
        assert!(ahead.note_used(5_000, 100_000, 4096));
        assert!(ahead.take().is_some());
        ahead.set_given(usize::MAX);
        assert!((5_000..100_000).all(|frame| !ahead.note_used(frame, 100_000, 4096)));
    }
}
