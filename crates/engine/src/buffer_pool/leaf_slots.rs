//! Memory for the leaves of the page table that are in memory: slots of equal size, which are reused and never freed.
//!
//! A reader without a lock may read a slot given to another leaf since. It then finds the entry of another
//! page, which is no unsafe read; [`super::word_array::WordArray`] says how readers notice it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Number of slots allocated together.
const SEGMENT_SLOTS: usize = 8;
/// Number of lists of segments. Each is twice as long as the one before it, and is allocated when the lists before it are
/// full, so the lists of a small table take a few bytes.
const LISTS: usize = 22;
/// Steps of a `Budget` that one look at a slot takes, for each of this many entries of its leaf.
const ENTRIES_A_STEP: usize = 64;

/// The slots of one page table.
#[derive(Debug)]
pub(super) struct LeafSlots {
    leaf_words: usize,
    lists: [OnceLock<SegmentList>; LISTS],
    free: Mutex<FreeSlots>,
    /// Number of slots with a leaf.
    used: AtomicU64,
    /// Bytes of all segments and of the lists of them.
    bytes: AtomicU64,
}

type SegmentList = Box<[OnceLock<Box<Segment>>]>;

#[derive(Debug)]
struct Segment {
    words: Box<[AtomicU64]>,
    states: [SlotState; SEGMENT_SLOTS],
}

/// A slot's state apart from its entries. Changed under the lock of the leaf's shard, except for the pins, which
/// may be removed without it.
#[derive(Debug)]
pub(super) struct SlotState {
    leaf: AtomicU64,
    /// Number of entries that name a frame, or a read in progress.
    held: AtomicU32,
    /// Number of operations needing the leaf in memory.
    pins: AtomicU32,
    /// Whether the leaf was used since the clock's hand came by.
    used: AtomicBool,
}

/// Stands for no leaf.
const NONE: u64 = u64::MAX;

impl Default for SlotState {
    fn default() -> Self {
        Self {
            leaf: AtomicU64::new(NONE),
            held: AtomicU32::new(0),
            pins: AtomicU32::new(0),
            used: AtomicBool::new(false),
        }
    }
}

impl SlotState {
    /// Returns the leaf in the slot; `None` for a free slot.
    pub(super) fn leaf(&self) -> Option<u64> {
        Some(self.leaf.load(Ordering::Acquire)).filter(|leaf| *leaf != NONE)
    }

    /// Counts an entry that names a frame or a read in progress from now on, or no more.
    #[inline]
    pub(super) fn count_held(&self, before: bool, after: bool) {
        match (before, after) {
            (false, true) => drop(self.held.fetch_add(1, Ordering::Relaxed)),
            (true, false) => drop(self.held.fetch_sub(1, Ordering::Relaxed)),
            _ => {}
        }
    }

    /// Returns whether an entry names a frame or a read in progress.
    pub(super) fn is_held(&self) -> bool {
        self.held.load(Ordering::Relaxed) > 0
    }

    /// Keeps the leaf in memory until [`SlotState::unpin`] was called once for each call of this function. The caller
    /// holds the lock of the leaf's shard.
    pub(super) fn pin(&self) {
        self.pins.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn unpin(&self) {
        let before = self.pins.fetch_sub(1, Ordering::Release);
        debug_assert!(before > 0, "a leaf was unpinned that nothing pinned");
    }

    pub(super) fn is_pinned(&self) -> bool {
        self.pins.load(Ordering::Acquire) > 0
    }

    /// Notes that the leaf was used.
    #[inline]
    pub(super) fn touch(&self) {
        // Stored only when that changes something, so that the line stays in the caches of several threads.
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether the leaf was used since the last call.
    pub(super) fn take_used(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
struct FreeSlots {
    slots: Vec<u32>,
    /// Number of slots that exist.
    count: u32,
}

/// Returns the list in which the segment of a slot is, and its index there: list `n` has the segments from `2^n - 1` on.
#[inline]
fn place_of_segment(slot: u32) -> (usize, usize) {
    let number = slot as usize / SEGMENT_SLOTS + 1;
    let list = number.ilog2() as usize;
    (list, number - (1 << list))
}

impl LeafSlots {
    /// Creates slots for leaves of so many entries.
    pub(super) fn new(leaf_words: usize) -> Self {
        let lists = [const { OnceLock::new() }; LISTS];
        Self { leaf_words, lists, free: Mutex::default(), used: AtomicU64::new(0), bytes: AtomicU64::new(0) }
    }

    fn free(&self) -> MutexGuard<'_, FreeSlots> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn segment(&self, slot: u32) -> Option<&Segment> {
        let (list, index) = place_of_segment(slot);
        self.lists.get(list)?.get()?.get(index)?.get().map(|segment| &**segment)
    }

    /// Returns the entries of a slot.
    pub(super) fn words(&self, slot: u32) -> Option<&[AtomicU64]> {
        let from = slot as usize % SEGMENT_SLOTS * self.leaf_words;
        self.segment(slot)?.words.get(from..from + self.leaf_words)
    }

    /// Returns the state of a slot.
    #[inline]
    pub(super) fn state(&self, slot: u32) -> Option<&SlotState> {
        self.segment(slot).map(|segment| &segment.states[slot as usize % SEGMENT_SLOTS])
    }

    /// Takes a slot for a leaf and fills it with these entries, or with zeroes where there are none. Returns `None`
    /// when all slots that the array can have are in use.
    pub(super) fn take(&self, leaf: u64, entries: &[u64]) -> Option<u32> {
        let slot = self.take_any()?;
        let mut entries = entries.iter();
        for word in self.words(slot)? {
            word.store(entries.next().copied().unwrap_or(0), Ordering::Release);
        }
        let state = self.state(slot)?;
        state.held.store(0, Ordering::Relaxed);
        state.used.store(false, Ordering::Relaxed);
        state.leaf.store(leaf, Ordering::Release);
        self.used.fetch_add(1, Ordering::Relaxed);
        Some(slot)
    }

    fn take_any(&self) -> Option<u32> {
        let mut free = self.free();
        if let Some(slot) = free.slots.pop() {
            return Some(slot);
        }
        let slot = free.count;
        let (list, index) = place_of_segment(slot);
        let segments = self.lists.get(list)?.get_or_init(|| {
            let segments: SegmentList = std::iter::repeat_with(OnceLock::new).take(1 << list).collect();
            self.bytes.fetch_add(size_of_val(&*segments) as u64, Ordering::Relaxed);
            segments
        });
        segments.get(index)?.get_or_init(|| {
            let count = SEGMENT_SLOTS * self.leaf_words;
            self.bytes.fetch_add((count * size_of::<u64>() + size_of::<Segment>()) as u64, Ordering::Relaxed);
            let words = std::iter::repeat_with(AtomicU64::default).take(count).collect();
            Box::new(Segment { words, states: std::array::from_fn(|_| SlotState::default()) })
        });
        free.count += 1;
        Some(slot)
    }

    /// Frees a slot. The caller has taken its number out of the directory.
    pub(super) fn give_back(&self, slot: u32) {
        if let Some(state) = self.state(slot) {
            state.leaf.store(NONE, Ordering::Release);
            self.used.fetch_sub(1, Ordering::Relaxed);
            self.free().slots.push(slot);
        }
    }

    /// Returns the number of slots that exist, used or not.
    pub(super) fn count(&self) -> u32 {
        self.free().count
    }

    /// Returns the number of slots with a leaf.
    pub(super) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Returns the number of `Budget` steps for one look at all entries of a slot.
    pub(super) fn steps_a_look(&self) -> usize {
        1 + self.leaf_words / ENTRIES_A_STEP
    }

    /// Returns the bytes of memory of all slots, used or not.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_has_a_segment_of_its_own_and_the_lists_are_filled_one_after_the_other() {
        let mut next = (0, 0);
        for slot in (0..100_000).step_by(SEGMENT_SLOTS) {
            assert_eq!(place_of_segment(slot), next);
            assert_eq!(place_of_segment(slot + SEGMENT_SLOTS as u32 - 1), next);
            next = if next.1 + 1 == 1 << next.0 { (next.0 + 1, 0) } else { (next.0, next.1 + 1) };
        }
        let slots = LeafSlots::new(59);
        for leaf in 0..1000 {
            let slot = slots.take(leaf, &[leaf, leaf]).unwrap();
            assert_eq!(slots.state(slot).unwrap().leaf(), Some(leaf));
        }
        for slot in 0..1000 {
            let words = slots.words(slot).unwrap();
            assert_eq!(words[1].load(Ordering::Relaxed), slots.state(slot).unwrap().leaf().unwrap());
        }
        assert!(slots.words(1000).is_none_or(|words| words[0].load(Ordering::Relaxed) == 0));
        assert!(slots.segment(u32::MAX).is_none());
    }
}
