//! The page table: words of eight bytes, found by page id. A translation loads one word that is not in every core's
//! cache.
//!
//! The words of one leaf of the durable page table lie together in a slot of memory ([`super::leaf_slots`]), and a radix
//! tree of a few hot nodes has the address of the slot: finding the slot by its number would cost each translation some
//! 10 ns. A leaf without a slot is not in memory; its words read as zero, which sends a reader to the lock of the page's
//! shard, where it learns more.
//!
//! Words are changed, and leaves come and go, only under the lock of the page's shard; words are read without it. **A
//! reader without the lock may read the word of another page**, when the leaf goes while the slot's address is in the
//! reader's hand and another leaf takes the slot. Such a word can only be of use to it when it names a frame, or a block that a scan
//! reads for itself alone. So the reader compares the page id in the frame's header, or in the block, with its own; no entry that
//! names a frame is in a leaf that goes, so a frame found in the page's own leaf is always right.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use nofault_io::prefetch::prefetch_read;

use crate::buffer_pool::PAGES_MAX;
use crate::format::{Location, PageId, entries_per_node};

/// Set in the number under which a leaf of the page table is read, as pages are under their ids; the rest is the leaf's
/// index. No page has such an id.
const LEAF_FLAG: u64 = 1 << 62;

/// Returns the number under which a leaf of the page table is read.
pub(crate) fn page_of_leaf(leaf: u64) -> PageId {
    PageId(LEAF_FLAG | leaf)
}

/// Returns the leaf of the page table read under this number; `None` when it is the id of a page.
pub(crate) fn leaf_read_as(page: PageId) -> Option<u64> {
    (page.0 & LEAF_FLAG != 0).then_some(page.0 & !LEAF_FLAG)
}

/// The state of a page's newest version, as the table stores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry {
    /// There is no page under this id, or its entry is not in memory.
    Free,
    /// The page is on disk only.
    OnDisk(Location),
    /// The page is on disk, and being read.
    Loading(Location),
    /// The page is in this frame.
    Resident(u32),
}

const STATE: u64 = 0b11 << 62;
const ON_DISK: u64 = 0b01 << 62;
const LOADING: u64 = 0b10 << 62;
const RESIDENT: u64 = 0b11 << 62;
/// Set in the words of pages in a frame, or being read.
const HELD: u64 = LOADING & RESIDENT;

impl Entry {
    pub(crate) fn from_word(word: u64) -> Self {
        let located = |word| Location::from_word(word & !STATE | ON_DISK);
        match word & STATE {
            RESIDENT => Self::Resident(word as u32),
            LOADING => located(word).map_or(Self::Free, Self::Loading),
            ON_DISK => located(word).map_or(Self::Free, Self::OnDisk),
            _ => Self::Free,
        }
    }

    pub(crate) fn to_word(self) -> u64 {
        match self {
            Self::Free => 0,
            Self::OnDisk(at) => at.to_word(),
            Self::Loading(at) => at.to_word() & !STATE | LOADING,
            Self::Resident(frame) => RESIDENT | u64::from(frame),
        }
    }
}

/// Divides page ids by the number of entries of a leaf, with a multiplication.
#[derive(Debug, Clone, Copy)]
struct LeafDivisor {
    entries: u64,
    /// 2^64 divided by `entries`, rounded up. Exact for numbers below 2^32 and divisors below 2^32: the error of the
    /// product is below 2^64 then.
    reciprocal: u64,
}

impl LeafDivisor {
    fn new(entries: u64) -> Self {
        let entries = entries.max(2);
        Self { entries, reciprocal: u64::MAX / entries + 1 }
    }

    #[inline]
    fn divide(self, page: u64) -> u64 {
        debug_assert!(page < PAGES_MAX);
        ((u128::from(page) * u128::from(self.reciprocal)) >> 64) as u64
    }
}

/// Numbers of children of a node of each level; together they reach the leaves of the smallest pages.
const LOW: usize = 1 << 9;
const MIDDLE: usize = 1 << 9;
const HIGH: usize = 1 << 9;
/// Stands for no slot.
const NO_SLOT: u32 = u32::MAX;

/// The slots of the leaves below one node.
#[derive(Debug)]
struct LowNode {
    /// The first words of the slots; null where a leaf is not in memory. What is not null points to as many words as a
    /// leaf has entries, in the slots of the same array, which are freed with it only.
    words: [AtomicPtr<AtomicU64>; LOW],
    /// The numbers of the slots, under the locks of the leaves' shards.
    numbers: [AtomicU32; LOW],
}

impl LowNode {
    fn new() -> Self {
        let words = [const { AtomicPtr::new(std::ptr::null_mut()) }; LOW];
        Self { words, numbers: [const { AtomicU32::new(NO_SLOT) }; LOW] }
    }
}

type Children<T, const COUNT: usize> = [OnceLock<Box<T>>; COUNT];
type MiddleNode = Children<LowNode, MIDDLE>;

/// The words of the pages whose leaf is in memory. Missing words read as zero.
///
/// It takes memory for the leaves in memory, however far apart their pages lie: a page table that names one page with a
/// large number costs one leaf and the path to it. The nodes above are few and hot: twelve bytes a leaf, where leaves lie
/// side by side.
#[derive(Debug)]
pub(crate) struct WordArray {
    divisor: LeafDivisor,
    top: Box<Children<MiddleNode, HIGH>>,
    slots: LeafSlots,
    /// Bytes of the nodes.
    bytes: AtomicU64,
}

impl WordArray {
    pub(crate) fn new(page_bytes: usize) -> Self {
        let divisor = LeafDivisor::new(entries_per_node(page_bytes));
        Self {
            divisor,
            top: Box::new([const { OnceLock::new() }; HIGH]),
            slots: LeafSlots::new(divisor.entries as usize),
            bytes: AtomicU64::new(size_of::<Children<MiddleNode, HIGH>>() as u64),
        }
    }

    /// Returns the leaf with the entry of a page.
    pub(crate) fn leaf_of(&self, page: PageId) -> u64 {
        leaf_read_as(page).unwrap_or(page.0 / self.divisor.entries)
    }

    /// Returns the pages of a leaf.
    pub(crate) fn pages_of(&self, leaf: u64) -> impl Iterator<Item = PageId> + use<> {
        let first = leaf.saturating_mul(self.divisor.entries);
        (first..first.saturating_add(self.divisor.entries)).map(PageId)
    }

    fn low(&self, leaf: u64) -> Option<&LowNode> {
        let at = leaf as usize;
        self.top.get(at / (LOW * MIDDLE))?.get()?[at / LOW % MIDDLE].get().map(|low| &**low)
    }

    fn slot(&self, leaf: u64) -> Option<u32> {
        let slot = self.low(leaf)?.numbers[leaf as usize % LOW].load(Ordering::Acquire);
        (slot != NO_SLOT).then_some(slot)
    }

    /// Returns the word of a page and the state of its leaf.
    fn place(&self, page: PageId) -> Option<(&AtomicU64, &SlotState)> {
        let word = self.word(page)?;
        Some((word, self.state(self.leaf_of(page))?))
    }

    #[inline]
    fn word(&self, page: PageId) -> Option<&AtomicU64> {
        if page.0 >= PAGES_MAX {
            return None;
        }
        let leaf = self.divisor.divide(page.0);
        // Acquire: a thread that sees the slot also sees its words.
        let words = self.low(leaf)?.words[leaf as usize % LOW].load(Ordering::Acquire);
        if words.is_null() {
            return None;
        }
        let index = (page.0 - leaf * self.divisor.entries) as usize;
        debug_assert!(index < self.divisor.entries as usize);
        // SAFETY: `words` is not null, so it points to the words of a slot of `self.slots`: as many as a leaf has entries,
        // of which `index` is one, because it is a remainder. They are freed with `self`, which outlives the reference,
        // and only changed as the atomic numbers that they are, whatever leaf the slot has by now.
        Some(unsafe { &*words.add(index) })
    }

    /// Returns the word of a page; zero where the leaf is not in memory.
    #[inline]
    pub(crate) fn load(&self, page: PageId) -> u64 {
        // Acquire: a thread that sees a frame number also sees the frame's content and metadata.
        self.word(page).map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Prefetches the word of a page into the CPU caches.
    pub(crate) fn prefetch(&self, page: PageId) {
        if let Some(word) = self.word(page) {
            prefetch_read(std::ptr::from_ref(word));
        }
    }

    /// Stores the word of a page whose leaf is in memory. The caller holds the lock that guards this word.
    pub(crate) fn store(&self, page: PageId, word: u64) {
        let found = self.place(page);
        assert!(found.is_some(), "the leaf of page {page} is not in memory");
        let Some((place, state)) = found else { return };
        let before = place.load(Ordering::Relaxed);
        place.store(word, Ordering::Release);
        state.count_held(before & HELD != 0, word & HELD != 0);
    }

    /// Notes that the leaf with the entry of a page is in use, if it is in memory.
    pub(crate) fn touch_leaf_of(&self, page: PageId) {
        if let Some(state) = self.state(self.leaf_of(page)) {
            state.touch();
        }
    }

    /// Returns the state of a leaf in memory.
    pub(crate) fn state(&self, leaf: u64) -> Option<&SlotState> {
        self.slots.state(self.slot(leaf)?)
    }

    /// Removes a pin from each of these leaves.
    pub(crate) fn unpin(&self, leaves: impl Iterator<Item = u64>) {
        leaves.filter_map(|leaf| self.state(leaf)).for_each(SlotState::unpin);
    }

    /// Returns whether a leaf is in memory.
    pub(crate) fn has_leaf(&self, leaf: u64) -> bool {
        self.slot(leaf).is_some()
    }

    /// Brings a leaf into memory that is not there, with these entries; further ones are zero. Returns false when that is
    /// impossible, because no page can have such an id. The caller holds the lock of the leaf's shard.
    pub(crate) fn add_leaf(&self, leaf: u64, entries: &[u64]) -> bool {
        if leaf > self.divisor.divide(PAGES_MAX - 1) || self.has_leaf(leaf) {
            return false;
        }
        let at = leaf as usize;
        let Some(top) = self.top.get(at / (LOW * MIDDLE)) else { return false };
        let middle = self.child(top, || [const { OnceLock::new() }; MIDDLE]);
        let low = self.child(&middle[at / LOW % MIDDLE], LowNode::new);
        let Some(slot) = self.slots.take(leaf, entries) else { return false };
        let Some(words) = self.slots.words(slot) else { return false };
        low.words[at % LOW].store(words.as_ptr().cast_mut(), Ordering::Release);
        low.numbers[at % LOW].store(slot, Ordering::Release);
        true
    }

    /// Removes a leaf from memory. None of its entries names a frame or a read in progress, and the caller holds the
    /// lock of its shard.
    pub(crate) fn remove_leaf(&self, leaf: u64) {
        let (Some(low), Some(slot)) = (self.low(leaf), self.slot(leaf)) else { return };
        debug_assert!(self.slots.state(slot).is_some_and(|state| !state.is_held()), "leaf {leaf} is in use");
        low.words[leaf as usize % LOW].store(std::ptr::null_mut(), Ordering::Release);
        low.numbers[leaf as usize % LOW].store(NO_SLOT, Ordering::Release);
        self.slots.give_back(slot);
    }

    /// Returns whether a leaf in memory has just these entries, but for zeroes at its end.
    pub(crate) fn is_equal(&self, leaf: u64, entries: &[u64]) -> bool {
        let words = self.slot(leaf).and_then(|slot| self.slots.words(slot)).unwrap_or_default();
        let expected = entries.iter().copied().chain(std::iter::repeat(0));
        words.iter().zip(expected).all(|(word, entry)| word.load(Ordering::Relaxed) == entry)
    }

    fn child<'a, T>(&self, place: &'a OnceLock<Box<T>>, new: impl FnOnce() -> T) -> &'a T {
        place.get_or_init(|| {
            self.bytes.fetch_add(size_of::<T>() as u64, Ordering::Relaxed);
            Box::new(new())
        })
    }

    /// Returns the first leaf in memory from `leaf` on. Takes time for the nodes that exist, not for missing ones.
    pub(crate) fn next_leaf(&self, leaf: u64) -> Option<u64> {
        let mut next = leaf;
        while next < (LOW * MIDDLE * HIGH) as u64 {
            let step = match self.top[next as usize / (LOW * MIDDLE)].get() {
                None => (LOW * MIDDLE) as u64,
                Some(_) if self.low(next).is_none() => LOW as u64,
                Some(_) if self.has_leaf(next) => return Some(next),
                Some(_) => 1,
            };
            next = (next / step + 1) * step;
        }
        None
    }

    /// Returns the slots, for the search for leaves to evict.
    pub(crate) fn slots(&self) -> &LeafSlots {
        &self.slots
    }

    /// Returns the bytes of memory that the array takes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed) + self.slots.memory_bytes()
    }
}

// With the smallest pages a leaf has 59 entries.
const _: () = assert!((LOW * MIDDLE * HIGH) as u64 > PAGES_MAX / 59, "the nodes reach every leaf");

/// Number of slots allocated together.
const SEGMENT_SLOTS: usize = 8;
/// Number of lists of segments. Each is twice as long as the one before it, and is allocated when the lists before it are
/// full, so the lists of a small table take a few bytes.
const LISTS: usize = 22;
/// Steps of a `Budget` that one look at a slot takes, for each of this many entries of its leaf.
const ENTRIES_A_STEP: usize = 64;

/// The slots of one page table.
#[derive(Debug)]
pub(crate) struct LeafSlots {
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
pub(crate) struct SlotState {
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
    pub(crate) fn leaf(&self) -> Option<u64> {
        Some(self.leaf.load(Ordering::Acquire)).filter(|leaf| *leaf != NONE)
    }

    /// Counts an entry that names a frame or a read in progress from now on, or no more.
    #[inline]
    pub(crate) fn count_held(&self, before: bool, after: bool) {
        match (before, after) {
            (false, true) => drop(self.held.fetch_add(1, Ordering::Relaxed)),
            (true, false) => drop(self.held.fetch_sub(1, Ordering::Relaxed)),
            _ => {}
        }
    }

    /// Returns whether an entry names a frame or a read in progress.
    pub(crate) fn is_held(&self) -> bool {
        self.held.load(Ordering::Relaxed) > 0
    }

    /// Keeps the leaf in memory until [`SlotState::unpin`] was called once for each call of this function. The caller
    /// holds the lock of the leaf's shard.
    pub(crate) fn pin(&self) {
        self.pins.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn unpin(&self) {
        let before = self.pins.fetch_sub(1, Ordering::Release);
        debug_assert!(before > 0, "a leaf was unpinned that nothing pinned");
    }

    pub(crate) fn is_pinned(&self) -> bool {
        self.pins.load(Ordering::Acquire) > 0
    }

    /// Notes that the leaf was used.
    #[inline]
    pub(crate) fn touch(&self) {
        // Stored only when that changes something, so that the line stays in the caches of several threads.
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether the leaf was used since the last call.
    pub(crate) fn take_used(&self) -> bool {
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
    pub(crate) fn new(leaf_words: usize) -> Self {
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
    pub(crate) fn words(&self, slot: u32) -> Option<&[AtomicU64]> {
        let from = slot as usize % SEGMENT_SLOTS * self.leaf_words;
        self.segment(slot)?.words.get(from..from + self.leaf_words)
    }

    /// Returns the state of a slot.
    #[inline]
    pub(crate) fn state(&self, slot: u32) -> Option<&SlotState> {
        self.segment(slot).map(|segment| &segment.states[slot as usize % SEGMENT_SLOTS])
    }

    /// Takes a slot for a leaf and fills it with these entries, or with zeroes where there are none. Returns `None`
    /// when all slots that the array can have are in use.
    pub(crate) fn take(&self, leaf: u64, entries: &[u64]) -> Option<u32> {
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
    pub(crate) fn give_back(&self, slot: u32) {
        if let Some(state) = self.state(slot) {
            state.leaf.store(NONE, Ordering::Release);
            self.used.fetch_sub(1, Ordering::Relaxed);
            self.free().slots.push(slot);
        }
    }

    /// Returns the number of slots that exist, used or not.
    pub(crate) fn count(&self) -> u32 {
        self.free().count
    }

    /// Returns the number of slots with a leaf.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Returns the number of `Budget` steps for one look at all entries of a slot.
    pub(crate) fn steps_a_look(&self) -> usize {
        1 + self.leaf_words / ENTRIES_A_STEP
    }

    /// Returns the bytes of memory of all slots, used or not.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{BLOCK_LIMIT, BlockId, Tag};

    const PAGE: usize = 4096;

    #[test]
    fn entries_are_words_and_back() {
        let at = Location { block: BlockId(BLOCK_LIMIT - 1), tag: Tag::from_bits(u64::MAX), is_compressed: true };
        for entry in [Entry::Free, Entry::OnDisk(at), Entry::Loading(at), Entry::Resident(u32::MAX)] {
            assert_eq!(Entry::from_word(entry.to_word()), entry);
        }
    }

    #[test]
    fn pages_are_divided_among_leaves_as_by_division() {
        for page_bytes in [512, 4096, 65536] {
            let entries = entries_per_node(page_bytes);
            let divisor = LeafDivisor::new(entries);
            let near = (0..2000_u64).flat_map(|leaf| (leaf * entries).saturating_sub(1)..leaf * entries + 2);
            for page in near.chain(PAGES_MAX - 2000..PAGES_MAX) {
                assert_eq!(divisor.divide(page), page / entries, "page {page} of leaves of {entries}");
            }
        }
    }

    #[test]
    fn every_index_has_a_place_of_its_own() {
        let words = WordArray::new(PAGE);
        for page in (0..100_000).chain([1 << 20, PAGES_MAX - 1]).map(PageId) {
            assert_eq!(words.load(page), 0);
            words.add_leaf(words.leaf_of(page), &[]);
            words.store(page, page.0 + 1);
        }
        assert!((0..100_000).all(|page| words.load(PageId(page)) == page + 1));
        assert_eq!(words.load(PageId(u64::MAX)), 0);
        [0, 1 << 20, PAGES_MAX, u64::MAX].into_iter().for_each(|page| words.prefetch(PageId(page)));
        assert_eq!(words.load(PageId(PAGES_MAX - 1)), PAGES_MAX);
        assert!(!words.add_leaf(words.leaf_of(PageId(PAGES_MAX + 600)), &[]), "no page has such an id");
        assert!(!words.add_leaf(u64::MAX, &[]));
    }

    #[test]
    fn leaves_far_apart_take_a_slot_each_and_are_found_in_order() {
        let words = WordArray::new(PAGE);
        let empty = words.memory_bytes();
        let far = [0, 1, 511, 512, 1 << 18, (1 << 20) + 7, PAGES_MAX / 507];
        far.iter().for_each(|leaf| assert!(words.add_leaf(*leaf, &[*leaf])));
        let nodes = (size_of::<LowNode>() + size_of::<MiddleNode>()) * far.len();
        assert!(words.memory_bytes() - empty < nodes as u64 + (64 << 10), "{}", words.memory_bytes() - empty);
        let found: Vec<_> = std::iter::successors(words.next_leaf(0), |leaf| words.next_leaf(leaf + 1)).collect();
        assert_eq!(found, far);
        assert_eq!(words.next_leaf(513), Some(1 << 18));
    }

    #[test]
    fn the_memory_of_a_removed_leaf_serves_another_one() {
        let words = WordArray::new(PAGE);
        for leaf in 0..1000 {
            assert!(words.add_leaf(leaf, &[leaf, 5]) && words.is_equal(leaf, &[leaf, 5]));
            assert!(!words.is_equal(leaf, &[leaf]));
            words.remove_leaf(leaf);
            assert!(!words.has_leaf(leaf) && words.load(PageId(leaf * 507)) == 0);
        }
        assert_eq!((words.slots().count(), words.slots().used()), (1, 0));
    }

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
