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

mod free_frames;
mod usage;
mod waits;

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nofault_io::aligned::{IoBuf, PageKind, Region};
use nofault_io::prefetch::prefetch_read;

use self::free_frames::{FreeFrames, MemoryAhead};
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
    /// Number of free frames that reads may not take. Without this reserve a pool full of dirty pages and readers could
    /// not commit.
    reserve: usize,
    /// Number of published frames with a page that is not on disk yet.
    dirty: AtomicUsize,
    /// Number of frames taken for private copies and neither published nor returned yet.
    private: AtomicUsize,
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
        (0..count as u32).rev().for_each(|index| free.put(index));
        Ok(Self {
            all,
            usage: UsageCounts::new(count),
            expiries: LeafExpiries::new(count),
            free: Mutex::new(free),
            region,
            ahead: MemoryAhead::default(),
            page_bytes,
            reserve: (count / 16).max(4),
            dirty: AtomicUsize::new(0),
            private: AtomicUsize::new(0),
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

    pub(crate) fn reserve(&self) -> usize {
        self.reserve
    }

    /// Returns the number of frames that are kept free: the writers' reserve, and a stock for batches of reads.
    pub(crate) fn kept_free(&self) -> usize {
        self.reserve + self.stock()
    }

    /// Returns the number of frames that are kept free for batches of reads.
    pub(crate) fn stock(&self) -> usize {
        (self.count() / STOCK_SHARE).min(STOCK_MAX)
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

    /// Prefetches the metadata of a frame into the CPU caches.
    pub(crate) fn prefetch_facts(&self, index: u32) {
        prefetch_read(&raw const self.all[index as usize]);
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
            if free.len() > self.reserve { free.take() } else { None }
        };
        index.map(|index| self.own(index))
    }

    /// Takes up to `most` frames for pages to be read, under the same limit as [`Frames::take_for_read`].
    pub(crate) fn take_some_for_read(&self, most: usize, into: &mut Vec<OwnedFrame>) {
        let mut free = self.free();
        let count = free.len().saturating_sub(self.reserve).min(most);
        let taken: Vec<u32> = (0..count).map_while(|_| free.take()).collect();
        drop(free);
        into.extend(taken.into_iter().map(|index| self.own(index)));
    }

    /// Takes up to `most` adjacent frames, but at least `least`, for pages to be read together, under the same limit as
    /// [`Frames::take_for_read`].
    pub(crate) fn take_run_for_read(&self, least: usize, most: usize) -> Option<OwnedRun> {
        let (first, count) = {
            let mut free = self.free();
            let spare = free.len().saturating_sub(self.reserve);
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

    /// Takes a frame for a private copy. Returns `None` also while too many frames are dirty: so readers always find frames that
    /// can be evicted without a write, even when the disk is full.
    pub(crate) fn take_for_write(&self) -> Option<OwnedFrame> {
        let mut taken = Vec::new();
        self.take_some_for_write(1, &mut taken);
        taken.pop()
    }

    /// Takes up to `most` frames for private copies, and a few at most, under the same limit as [`Frames::take_for_write`].
    pub(crate) fn take_some_for_write(&self, most: usize, into: &mut Vec<OwnedFrame>) {
        let mut indices = [0; FRAMES_AT_ONCE];
        let mut taken = 0;
        let mut free = self.free();
        // Counted under the lock, so that threads that take several at a time do not pass the limit together.
        let count = self.dirty_max().saturating_sub(self.changed_count()).min(most);
        for place in indices.iter_mut().take(count) {
            let Some(index) = free.take() else { break };
            *place = index;
            taken += 1;
        }
        self.private.fetch_add(taken, Ordering::Relaxed);
        drop(free);
        indices[..taken].iter().for_each(|index| self.prefetch_facts(*index));
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

    /// Returns the most frames that may be dirty or private copies at a time.
    pub(crate) fn dirty_max(&self) -> usize {
        self.count() - self.reserve - (self.count() / 8).max(8)
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

    /// Marks a dirty frame as written to `at`. The caller holds the lock of the page's shard.
    pub(crate) fn set_clean(&self, index: u32, at: Location) {
        self.frame(index).set_disk(at);
        self.dirty.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns frames taken for private copies.
    pub(crate) fn give_back_private(&self, frames: Vec<OwnedFrame>) {
        self.private.fetch_sub(frames.len(), Ordering::Relaxed);
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
        self.set_free(indices);
    }

    /// Adds frames to the free list. Their buffers must be in place, and their numbers stored nowhere else.
    fn set_free(&self, frames: impl IntoIterator<Item = u32>) {
        let mut free = self.free();
        frames.into_iter().for_each(|index| free.put(index));
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
            self.dirty.fetch_add(1, Ordering::Relaxed);
            self.private.fetch_sub(1, Ordering::Relaxed);
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
                self.dirty.fetch_sub(1, Ordering::Relaxed);
            }
        }
        self.set_free(frames.iter().copied());
    }

    /// Returns the bytes of memory that the frames take.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let frames = (self.all.len() * size_of::<Frame>()) as u64;
        self.region.len_bytes() as u64 + frames + self.expiries.memory_bytes()
    }
}

const _: () = assert!(size_of::<Frame>() <= 128, "a hit should touch one line, at most two");
