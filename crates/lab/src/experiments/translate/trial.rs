//! The measurement of a trial of `translate`, method by method.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use nofault_io::aligned::{IoBuf, PageKind};
use nofault_io::mapped::{Advice, MappedFile, Protection};
use rustix::fs::{MemfdFlags, memfd_create};

use crate::error::{LabError, LabErrorKind, Result};
use crate::machine::content::tag;
use crate::measure::Worker;
use crate::measure::workload::PAGE_BYTES;

// The ways to get from a page's id to its bytes. References in pages are ids; only swizzled references are addresses.
//
// Kept true by: a pool's frames are a permutation of the ids, so that no method gains from frames and ids in the same
// order.

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
fn lost() -> LabError {
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

// Memory accessed as pages: the frames of a buffer pool, or a mapped file.

/// Number of 8-byte words in a page.
pub(super) const PAGE_WORDS: usize = PAGE_BYTES / 8;
/// A page, as an array of words.
pub(super) type Page = [u64; PAGE_WORDS];

/// Bytes of a huge page, and the alignment that a map needs to use huge pages.
const HUGE_BYTES: usize = 2 << 20;

/// The memory of a buffer pool, as page-sized frames.
#[derive(Debug)]
pub(super) struct Frames(IoBuf);

impl Frames {
    /// Allocates frames in huge pages, where the system provides them.
    pub(super) fn in_huge_pages(count: usize) -> Result<Self> {
        Ok(Self(IoBuf::zeroed(count * PAGE_BYTES, PageKind::Huge)?))
    }

    /// Allocates frames in small pages.
    pub(super) fn in_small_pages(count: usize) -> Result<Self> {
        Ok(Self(IoBuf::zeroed(count * PAGE_BYTES, PageKind::Small)?))
    }

    /// Returns all frames as pages.
    #[inline]
    pub(super) fn pages(&self) -> &[Page] {
        as_pages(&self.0)
    }

    /// Returns the address of a frame, which stays valid while the frames live.
    fn address(&self, frame: usize) -> *const Page {
        debug_assert!(frame < self.pages().len());
        self.0.address().cast::<Page>().wrapping_add(frame)
    }

    /// Returns all frames for writing.
    fn pages_mut(&mut self) -> &mut [Page] {
        // SAFETY: words of any value are words; the buffer begins at a page, so the middle is all of it.
        let (before, pages, after) = unsafe { self.0.align_to_mut::<Page>() };
        debug_assert!(before.is_empty() && after.is_empty());
        pages
    }
}

/// A file in memory accessed through a map: no disk takes part, and the kernel maps its pages as it maps any
/// cached file.
#[derive(Debug)]
struct MappedPages {
    file: File,
    map: Option<MappedFile>,
    count: usize,
    huge: bool,
}

impl MappedPages {
    /// Makes a file of `count` pages in memory, which [`Self::map`] maps later.
    pub(super) fn new(count: usize, huge: bool) -> Result<Self> {
        let failed = |error: std::io::Error| LabError::system("make a file in memory", &error);
        let file = File::from(memfd_create("nofault-lab", MemfdFlags::CLOEXEC).map_err(|errno| failed(errno.into()))?);
        file.set_len((count * PAGE_BYTES).next_multiple_of(HUGE_BYTES) as u64).map_err(failed)?;
        Ok(Self { file, map: None, count, huge })
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Writes a page of the file.
    pub(super) fn write(&self, number: usize, page: &Page) -> Result<()> {
        // SAFETY: the bytes of a word may have any value.
        let (_, bytes, _) = unsafe { page.align_to::<u8>() };
        self.file
            .write_all_at(bytes, (number * PAGE_BYTES) as u64)
            .map_err(|error| LabError::system("write a file in memory", &error))
    }

    /// Maps the file and faults every page in.
    pub(super) fn map(&mut self) -> Result<()> {
        let len = (self.count * PAGE_BYTES).next_multiple_of(HUGE_BYTES);
        // SAFETY: the file belongs to this process alone, and is not written or cut while it is mapped.
        let map = unsafe { MappedFile::map_aligned(&self.file, Protection::ReadOnly, 0..len as u64, HUGE_BYTES) }?;
        let advice = if self.huge { Advice::HugePage } else { Advice::NoHugePage };
        // Kernels without huge pages do not know the advice; all pages are then small.
        let advised = map.advise(advice, 0..len);
        if self.huge {
            advised?;
            map.advise(Advice::Collapse, 0..len).map_err(|error| {
                LabError::new(LabErrorKind::Unsupported, format!("no huge pages for a mapped file here: {error}"))
            })?;
        }
        map.populate(0..len)?;
        self.map = Some(map);
        Ok(())
    }

    /// Returns the pages of the map.
    #[inline]
    pub(super) fn pages(&self) -> &[Page] {
        self.map.as_ref().map_or(&[], |map| as_pages(map.bytes()))
    }
}

#[inline]
fn as_pages(bytes: &[u8]) -> &[Page] {
    // SAFETY: words of any value are words; buffers and maps begin at a page, so the middle is all of it.
    let (_, pages, _) = unsafe { bytes.align_to::<Page>() };
    pages
}

// The work of `translate`: following a random cycle through all pages, and lookups in a B+tree. Both build their pages
// first and check every value that they read.

/// Number of operations between two checks whether the trial's time is over.
const BATCH: u64 = 256;
/// Number of words in a cache line; a page has 64 lines.
const LINE_WORDS: usize = 8;

/// A position in the cycle: the reference of a page, the word at which its record begins, and the tag expected there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    reference: u64,
    word: usize,
    tag: u64,
}

/// A random cycle through all pages. The record of a page lies in a random cache line of it: if it were always the
/// first, all records would compete for the same sets of the CPU's caches.
pub(super) struct Cycle {
    order: Vec<u32>,
    seed: u64,
    references: Vec<u64>,
}

impl Cycle {
    /// Writes a record into each page: the page's tag, and reference, tag and word of the next page in the cycle.
    pub(super) fn build<P: Place>(place: &mut P, seed: u64) -> Result<Self> {
        let count = place.page_count();
        let mut order: Vec<u32> = (0..count as u32).collect();
        fastrand::Rng::with_seed(seed ^ 0x6379_636c).shuffle(&mut order);
        let references = (0..count).map(|id| place.reference(id)).collect();
        let cycle = Self { order, seed, references };
        for at in 0..count {
            let (own, next) = (cycle.step(at), cycle.step(at + 1));
            let mut page: Page = [0; PAGE_WORDS];
            page[own.word..own.word + 4].copy_from_slice(&[own.tag, next.reference, next.tag, next.word as u64]);
            place.write(cycle.order[at] as usize, &page)?;
        }
        place.seal()?;
        Ok(cycle)
    }

    /// Returns the position at which a thread starts: the threads are spread evenly over the cycle.
    pub(super) fn start(&self, thread: u32, threads: u32) -> Step {
        self.step(self.order.len() * thread as usize / threads.max(1) as usize)
    }

    fn step(&self, at: usize) -> Step {
        let id = self.order[at % self.order.len()] as usize;
        let tag = tag(self.seed, id as u64);
        let word = (tag >> 8) as usize % (PAGE_WORDS / LINE_WORDS) * LINE_WORDS;
        Step { reference: self.references[id], word, tag }
    }
}

/// Follows references from page to page until the trial's time is over.
pub(super) fn follow<P: Place>(worker: &mut Worker<'_>, place: &P, start: Step) -> Result<()> {
    let mut at = start;
    worker.start();
    while worker.running() {
        let mut wrong = 0;
        for _ in 0..BATCH {
            let look = |page: &Page| match page.get(at.word..at.word + 4) {
                Some(&[own, reference, tag, word]) => (own, Step { reference, tag, word: word as usize % PAGE_WORDS }),
                _ => (0, start),
            };
            let (own, next) = place.with(at.reference, look).ok_or_else(lost)?;
            wrong += u64::from(own != at.tag);
            at = next;
        }
        worker.done(BATCH, BATCH * PAGE_BYTES as u64);
        worker.verified_many(BATCH, wrong);
    }
    Ok(())
}

/// Number of entries in a leaf, with keys of 8 bytes and values of 120 as in the vmcache paper.
const LEAF_ENTRIES: usize = 31;
const VALUE_WORDS: usize = 15;
/// Word of a leaf at which its values begin, after the head and the keys.
const VALUES_AT: usize = 32;
/// Largest number of children of an inner node, and the word at which their references begin.
const CHILDREN: usize = 255;
const CHILDREN_AT: usize = 256;

/// A B+tree with the odd keys 1, 3, 5, …; the value of key 2i + 1 begins with the tag of i. A node's first word is its
/// level and, in the upper half, its number of keys.
pub(super) struct Tree {
    root: u64,
    levels: u32,
    entries: u64,
}

/// The result of searching a node: the reference of a child, or the first word of a value.
enum Answer {
    Child(u64),
    Value(u64),
}

impl Tree {
    /// Builds the tree in all pages of a place, filling nodes from left to right.
    pub(super) fn build<P: Place>(place: &mut P, seed: u64) -> Result<Self> {
        let inner_of = |leaves: usize| {
            let mut level = leaves;
            let mut inner = 0;
            while level > 1 {
                level = level.div_ceil(CHILDREN);
                inner += level;
            }
            inner
        };
        let mut leaves = place.page_count();
        while leaves > 1 && leaves + inner_of(leaves) > place.page_count() {
            leaves -= (leaves + inner_of(leaves) - place.page_count()).div_ceil(2).max(1);
        }
        let mut level: Vec<(u64, u64)> = Vec::with_capacity(leaves);
        for leaf in 0..leaves {
            let mut page: Page = [0; PAGE_WORDS];
            page[0] = (LEAF_ENTRIES as u64) << 32;
            for entry in 0..LEAF_ENTRIES {
                let number = (leaf * LEAF_ENTRIES + entry) as u64;
                page[1 + entry] = number * 2 + 1;
                page[VALUES_AT + entry * VALUE_WORDS..][..VALUE_WORDS].fill(tag(seed, number));
            }
            place.write(leaf, &page)?;
            level.push((page[1], place.reference(leaf)));
        }
        let (mut next_id, mut height) = (leaves, 1);
        while level.len() > 1 {
            let mut above = Vec::with_capacity(level.len() / CHILDREN + 1);
            for children in level.chunks(CHILDREN) {
                let mut page: Page = [0; PAGE_WORDS];
                page[0] = height | (children.len() as u64) << 32;
                for (at, (key, reference)) in children.iter().enumerate() {
                    page[1 + at] = *key;
                    page[CHILDREN_AT + at] = *reference;
                }
                place.write(next_id, &page)?;
                above.push((page[1], place.reference(next_id)));
                next_id += 1;
            }
            level = above;
            height += 1;
        }
        place.seal()?;
        let root = level.first().map_or(0, |(_, reference)| *reference);
        Ok(Self { root, levels: height as u32, entries: (leaves * LEAF_ENTRIES) as u64 })
    }

    /// Returns the number of levels, leaves included.
    pub(super) fn levels(&self) -> u32 {
        self.levels
    }

    /// Looks up random keys until the trial's time is over.
    pub(super) fn look_up<P: Place>(&self, worker: &mut Worker<'_>, place: &P, seed: u64, thread: u32) -> Result<()> {
        let mut random = fastrand::Rng::with_seed(tag(seed, u64::from(thread)));
        // `last` stays zero as long as every value is right, but the CPU knows this only after it has loaded the value:
        // so each lookup waits for the one before.
        let mut last = 0;
        worker.start();
        while worker.running() {
            let mut wrong = 0;
            for _ in 0..BATCH {
                let number = ((u128::from(random.u64(..) ^ last) * u128::from(self.entries)) >> 64) as u64;
                last = self.find(place, number * 2 + 1)?.unwrap_or(0) ^ tag(seed, number);
                wrong += u64::from(last != 0);
            }
            worker.done(BATCH, BATCH * PAGE_BYTES as u64);
            worker.verified_many(BATCH, wrong);
        }
        Ok(())
    }

    /// Returns the first word of a key's value; `None` when the key is absent or a node is malformed.
    #[inline]
    pub(super) fn find<P: Place>(&self, place: &P, key: u64) -> Result<Option<u64>> {
        let mut reference = self.root;
        for _ in 0..self.levels {
            match place.with(reference, |page| answer(page, key)).ok_or_else(lost)? {
                Some(Answer::Child(child)) => reference = child,
                Some(Answer::Value(value)) => return Ok(Some(value)),
                None => return Ok(None),
            }
        }
        Ok(None)
    }
}

#[inline]
fn answer(page: &Page, key: u64) -> Option<Answer> {
    let (level, count) = (page[0] as u32, (page[0] >> 32) as usize);
    let keys = page.get(1..1 + count)?;
    if level > 0 {
        let at = keys.partition_point(|lower| *lower <= key).checked_sub(1)?;
        return Some(Answer::Child(*page.get(CHILDREN_AT + at)?));
    }
    let at = keys.partition_point(|other| *other < key);
    (keys.get(at) == Some(&key)).then_some(())?;
    Some(Answer::Value(*page.get(VALUES_AT + at * VALUE_WORDS)?))
}
