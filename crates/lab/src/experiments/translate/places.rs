//! The ways to get from a page's id to its bytes. References in pages are ids; only swizzled references are addresses.
//!
//! Kept true by: a pool's frames are a permutation of the ids, so that no method gains from frames and ids in the same
//! order.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use super::frames::{Frames, MappedPages, Page};
use crate::error::{LabError, LabErrorKind, Result};

/// Bit of a page table's word: set when the page is in memory. A pool must check it before it uses the frame.
const RESIDENT: u64 = 1 << 63;
/// Bit of a reference: set when the reference is an id, not an address.
const UNSWIZZLED: u64 = 1;
/// Number of locks over which the pinning hash table is divided.
const SHARDS: usize = 64;

/// A set of pages found by reference.
pub(super) trait Place: Sync {
    /// Returns the number of pages.
    fn page_count(&self) -> usize;
    /// Returns the reference by which other pages refer to page `id`.
    fn reference(&self, id: usize) -> u64;
    /// Writes page `id`. Not allowed after [`Self::seal`].
    fn write(&mut self, id: usize, page: &Page) -> Result<()>;
    /// Ends the writing, after all pages are written and before the first read.
    fn seal(&mut self) -> Result<()> {
        Ok(())
    }
    /// Calls `look` with the referenced page; `None` when the page is not in memory, where a pool would have to wait.
    fn with<R>(&self, reference: u64, look: impl FnOnce(&Page) -> R) -> Option<R>;
    /// Returns the memory, in bytes, of the tables that lead from a reference to its page.
    fn table_bytes(&self) -> usize;
}

/// The error for a page that is not found, which cannot happen because no page is evicted here.
pub(super) fn lost() -> LabError {
    LabError::new(LabErrorKind::System, "translate: a page that was put into memory is not found")
}

/// Returns the frame numbers below `count` in random order.
fn shuffled(count: usize, seed: u64) -> Vec<u32> {
    let mut frames: Vec<u32> = (0..count as u32).collect();
    fastrand::Rng::with_seed(seed ^ 0x6672_616d).shuffle(&mut frames);
    frames
}

/// A mapping from page ids to frames, for places whose references are ids.
trait Table: Sync {
    fn frames(&self) -> &Frames;
    fn frames_mut(&mut self) -> &mut Frames;
    /// Returns the frame of page `id`; `None` when the page is not in memory.
    fn frame(&self, id: u64) -> Option<usize>;
    fn bytes(&self) -> usize;
}

impl<T: Table> Place for T {
    fn page_count(&self) -> usize {
        self.frames().pages().len()
    }

    fn reference(&self, id: usize) -> u64 {
        id as u64
    }

    fn write(&mut self, id: usize, page: &Page) -> Result<()> {
        let frame = self.frame(id as u64).ok_or_else(lost)?;
        self.frames_mut().pages_mut()[frame] = *page;
        Ok(())
    }

    #[inline]
    fn with<R>(&self, reference: u64, look: impl FnOnce(&Page) -> R) -> Option<R> {
        Some(look(self.frames().pages().get(self.frame(reference)?)?))
    }

    fn table_bytes(&self) -> usize {
        self.bytes()
    }
}

/// A page table with one word for each page, indexed by its id.
pub(super) struct Array {
    frames: Frames,
    table: Vec<AtomicU64>,
}

impl Array {
    pub(super) fn new(frames: Frames, seed: u64) -> Self {
        let numbers = shuffled(frames.pages().len(), seed);
        let table = numbers.into_iter().map(|frame| AtomicU64::new(u64::from(frame) | RESIDENT)).collect();
        Self { frames, table }
    }
}

impl Table for Array {
    fn frames(&self) -> &Frames {
        &self.frames
    }

    fn frames_mut(&mut self) -> &mut Frames {
        &mut self.frames
    }

    #[inline]
    fn frame(&self, id: u64) -> Option<usize> {
        let word = self.table.get(id as usize)?.load(Ordering::Acquire);
        (word & RESIDENT != 0).then_some((word & !RESIDENT) as usize)
    }

    fn bytes(&self) -> usize {
        self.table.len() * 8
    }
}

/// An open-addressing hash table, half full, with id and frame of a page side by side.
pub(super) struct Hash {
    frames: Frames,
    slots: Vec<[AtomicU64; 2]>,
    shift: u32,
}

impl Hash {
    pub(super) fn new(frames: Frames, seed: u64) -> Self {
        let numbers = shuffled(frames.pages().len(), seed);
        let slots = (numbers.len() * 2).next_power_of_two();
        let made = Self {
            frames,
            slots: (0..slots).map(|_| [AtomicU64::new(0), AtomicU64::new(0)]).collect(),
            shift: 64 - slots.trailing_zeros(),
        };
        for (id, frame) in numbers.into_iter().enumerate() {
            let mut at = made.home(id as u64);
            while made.slots[at][0].load(Ordering::Relaxed) != 0 {
                at = (at + 1) & (slots - 1);
            }
            made.slots[at][1].store(u64::from(frame), Ordering::Relaxed);
            made.slots[at][0].store(id as u64 + 1, Ordering::Relaxed);
        }
        made
    }

    #[inline]
    fn home(&self, id: u64) -> usize {
        (id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize
    }
}

impl Table for Hash {
    fn frames(&self) -> &Frames {
        &self.frames
    }

    fn frames_mut(&mut self) -> &mut Frames {
        &mut self.frames
    }

    /// Probes slot after slot until the id is found; an empty slot means that the page is not in memory.
    #[inline]
    fn frame(&self, id: u64) -> Option<usize> {
        let mut at = self.home(id);
        loop {
            let [key, frame] = &self.slots[at];
            match key.load(Ordering::Acquire) {
                0 => return None,
                key if key == id + 1 => return Some(frame.load(Ordering::Relaxed) as usize),
                _ => at = (at + 1) & (self.slots.len() - 1),
            }
        }
    }

    fn bytes(&self) -> usize {
        self.slots.len() * 16
    }
}

/// The hash table behind locks, with a pin on each page in use. In the textbook's buffer pool the pin keeps a page from
/// being evicted while it is read.
pub(super) struct PinnedHash {
    hash: Hash,
    locks: Vec<Lock>,
    pins: Vec<AtomicU32>,
}

/// A lock that fills a whole cache line.
#[repr(align(128))]
struct Lock(RwLock<()>);

impl PinnedHash {
    pub(super) fn new(frames: Frames, seed: u64) -> Self {
        let pins = (0..frames.pages().len()).map(|_| AtomicU32::new(0)).collect();
        Self { hash: Hash::new(frames, seed), locks: (0..SHARDS).map(|_| Lock(RwLock::new(()))).collect(), pins }
    }
}

impl Place for PinnedHash {
    fn page_count(&self) -> usize {
        self.hash.page_count()
    }

    fn reference(&self, id: usize) -> u64 {
        id as u64
    }

    fn write(&mut self, id: usize, page: &Page) -> Result<()> {
        self.hash.write(id, page)
    }

    #[inline]
    fn with<R>(&self, reference: u64, look: impl FnOnce(&Page) -> R) -> Option<R> {
        let shard = &self.locks[reference.wrapping_mul(0xff51_afd7_ed55_8ccd) as usize >> (usize::BITS - 6)].0;
        let pinned = {
            let _held = shard.read().unwrap_or_else(PoisonError::into_inner);
            let frame = self.hash.frame(reference)?;
            self.pins.get(frame)?.fetch_add(1, Ordering::AcqRel);
            frame
        };
        let result = self.hash.frames.pages().get(pinned).map(look);
        self.pins[pinned].fetch_sub(1, Ordering::Release);
        result
    }

    fn table_bytes(&self) -> usize {
        self.hash.table_bytes() + self.pins.len() * 4 + SHARDS * size_of::<Lock>()
    }
}

/// Frames whose references are addresses in the pages themselves, so that a swizzled reference needs no table.
pub(super) struct SwizzledFrames {
    frames: Frames,
    numbers: Vec<u32>,
}

impl SwizzledFrames {
    pub(super) fn new(frames: Frames, seed: u64) -> Self {
        let numbers = shuffled(frames.pages().len(), seed);
        Self { frames, numbers }
    }
}

impl Place for SwizzledFrames {
    fn page_count(&self) -> usize {
        self.numbers.len()
    }

    fn reference(&self, id: usize) -> u64 {
        self.frames.address(self.numbers[id] as usize).expose_provenance() as u64
    }

    fn write(&mut self, id: usize, page: &Page) -> Result<()> {
        let frame = self.numbers[id] as usize;
        self.frames.pages_mut()[frame] = *page;
        Ok(())
    }

    #[inline]
    fn with<R>(&self, reference: u64, look: impl FnOnce(&Page) -> R) -> Option<R> {
        if reference & UNSWIZZLED != 0 {
            return None;
        }
        // SAFETY: every reference that is returned or stored in a page comes from `reference`, which takes the address
        // of a page of `frames`; the frames live as long as `self` and are not written once the work has begun.
        Some(look(unsafe { &*std::ptr::with_exposed_provenance::<Page>(reference as usize) }))
    }

    fn table_bytes(&self) -> usize {
        0
    }
}

/// A mapped file, for which the hardware translates a page's number to its frame.
pub(super) struct MappedArray(MappedPages);

impl MappedArray {
    pub(super) fn new(count: usize, huge: bool) -> Result<Self> {
        MappedPages::new(count, huge).map(Self)
    }
}

impl Place for MappedArray {
    fn page_count(&self) -> usize {
        self.0.count()
    }

    fn reference(&self, id: usize) -> u64 {
        id as u64
    }

    fn write(&mut self, id: usize, page: &Page) -> Result<()> {
        self.0.write(id, page)
    }

    fn seal(&mut self) -> Result<()> {
        self.0.map()
    }

    #[inline]
    fn with<R>(&self, reference: u64, look: impl FnOnce(&Page) -> R) -> Option<R> {
        Some(look(self.0.pages().get(reference as usize)?))
    }

    /// Returns the bytes of the kernel's page table: eight for each mapped page, where pages are small.
    fn table_bytes(&self) -> usize {
        self.0.count() * 8
    }
}

/// Returns the bytes of this process's memory in huge pages of any kind; `None` where the kernel gives no value.
pub(super) fn huge_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").ok()?;
    let names = ["AnonHugePages:", "ShmemPmdMapped:", "FilePmdMapped:"];
    let lines = text.lines().filter_map(|line| names.iter().find_map(|name| line.strip_prefix(name)));
    Some(lines.filter_map(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).sum::<u64>() * 1024)
}
