//! The page table: an array of eight-byte words indexed by page id. A translation loads one word that is not in
//! every core's cache.
//!
//! The array grows in chunks that never move, so readers need no lock: they go from the top of a small tree to the chunk. Words
//! are changed only under the lock of the page's shard; they are read without it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use nofault_io::prefetch::prefetch_read;

use crate::format::{Location, PageId};

/// The end of the page ids: every id is below it. The largest page table takes 32 GiB of memory, for 16 TiB of pages of
/// 4 KiB.
pub(crate) const PAGES_MAX: u64 = 1 << 32;

/// The state of a page's newest version, as the table stores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry {
    /// There is no page under this id.
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

/// Number of words in a chunk.
const CHUNK_WORDS: usize = 1 << 10;
/// Number of chunks below a node of the lowest level; `MIDDLE` and `HIGH` are the numbers of nodes below a node of the
/// levels above.
const LOW: usize = 1 << 8;
const MIDDLE: usize = 1 << 7;
const HIGH: usize = 1 << 7;

type Chunk = [AtomicU64; CHUNK_WORDS];
type Children<T, const COUNT: usize> = [OnceLock<Box<T>>; COUNT];
type LowNode = Children<Chunk, LOW>;
type MiddleNode = Children<LowNode, MIDDLE>;

/// An array of words that grows without moving. Missing words read as zero.
///
/// A radix tree with chunks of 8 KiB as leaves, so that it takes memory for the chunks in which a word was stored,
/// however far apart they lie: a page table that names one page with a large number costs one chunk and the path to it.
/// The nodes above the chunks are few and hot: a table of a million pages has 4 KiB of them for each 262,144 pages.
#[derive(Debug)]
pub(crate) struct WordArray {
    top: Box<Children<MiddleNode, HIGH>>,
    bytes: AtomicU64,
}

impl WordArray {
    pub(crate) fn new() -> Self {
        Self {
            top: Box::new([const { OnceLock::new() }; HIGH]),
            bytes: AtomicU64::new(size_of::<Children<MiddleNode, HIGH>>() as u64),
        }
    }

    fn low(&self, page: u64) -> Option<&LowNode> {
        self.top.get((page >> 25) as usize)?.get()?[(page >> 18) as usize % MIDDLE].get().map(|low| &**low)
    }

    fn chunk(&self, page: u64) -> Option<&Chunk> {
        self.low(page)?[(page >> 10) as usize % LOW].get().map(|chunk| &**chunk)
    }

    /// Returns the word of a page; zero where none was ever stored.
    pub(crate) fn load(&self, page: PageId) -> u64 {
        // Acquire: a thread that sees a frame number also sees the frame's content and metadata.
        self.chunk(page.0).map_or(0, |words| words[page.0 as usize % CHUNK_WORDS].load(Ordering::Acquire))
    }

    /// Prefetches the word of a page into the CPU caches.
    pub(crate) fn prefetch(&self, page: PageId) {
        if let Some(words) = self.chunk(page.0) {
            prefetch_read(&raw const words[page.0 as usize % CHUNK_WORDS]);
        }
    }

    /// Stores the word of a page, which must be below `PAGES_MAX`. The caller holds the lock that guards this word.
    pub(crate) fn store(&self, page: PageId, word: u64) {
        let middle = self.child(&self.top[(page.0 >> 25) as usize], || [const { OnceLock::new() }; MIDDLE]);
        let low = self.child(&middle[(page.0 >> 18) as usize % MIDDLE], || [const { OnceLock::new() }; LOW]);
        let words = self.child(&low[(page.0 >> 10) as usize % LOW], || [const { AtomicU64::new(0) }; CHUNK_WORDS]);
        words[page.0 as usize % CHUNK_WORDS].store(word, Ordering::Release);
    }

    fn child<'a, T>(&self, place: &'a OnceLock<Box<T>>, new: impl FnOnce() -> T) -> &'a T {
        place.get_or_init(|| {
            self.bytes.fetch_add(size_of::<T>() as u64, Ordering::Relaxed);
            Box::new(new())
        })
    }

    /// Iterates over the nonzero words from a page on, up to `end`. Takes time for the chunks that exist, not for missing ones.
    pub(crate) fn stored(&self, from: PageId, end: u64) -> impl Iterator<Item = (PageId, u64)> + '_ {
        let mut next = from.0;
        std::iter::from_fn(move || {
            while next < end.min(PAGES_MAX) {
                let page = next;
                // A missing part of the tree is skipped as a whole.
                let step = match self.top[(page >> 25) as usize].get() {
                    None => 1 << 25,
                    Some(_) if self.low(page).is_none() => 1 << 18,
                    Some(_) if self.chunk(page).is_none() => CHUNK_WORDS as u64,
                    Some(_) => 1,
                };
                next = (page / step + 1) * step;
                let word = self.load(PageId(page));
                if word != 0 {
                    return Some((PageId(page), word));
                }
            }
            None
        })
    }

    /// Returns the bytes of memory that the array takes, counting chunks whole.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

const _: () =
    assert!(((CHUNK_WORDS * LOW * MIDDLE) as u64) * HIGH as u64 == PAGES_MAX, "the chunks reach every page id");
const _: () = assert!(CHUNK_WORDS == 1 << 10 && CHUNK_WORDS * LOW == 1 << 18 && CHUNK_WORDS * LOW * MIDDLE == 1 << 25);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{BLOCK_LIMIT, BlockId, Tag};

    #[test]
    fn entries_are_words_and_back() {
        let at = Location { block: BlockId(BLOCK_LIMIT - 1), tag: Tag::from_bits(u64::MAX), is_compressed: true };
        for entry in [Entry::Free, Entry::OnDisk(at), Entry::Loading(at), Entry::Resident(u32::MAX)] {
            assert_eq!(Entry::from_word(entry.to_word()), entry);
        }
    }

    #[test]
    fn every_index_has_a_place_of_its_own() {
        let words = WordArray::new();
        for page in (0..100_000).chain([1 << 20]) {
            assert_eq!(words.load(PageId(page)), 0);
            words.store(PageId(page), page + 1);
        }
        assert!((0..100_000).all(|page| words.load(PageId(page)) == page + 1));
        assert_eq!(words.load(PageId(u64::MAX)), 0);
        [0, 1 << 20, PAGES_MAX, u64::MAX].into_iter().for_each(|page| words.prefetch(PageId(page)));
        words.store(PageId(PAGES_MAX - 1), 7);
        assert_eq!(words.load(PageId(PAGES_MAX - 1)), 7);
    }

    #[test]
    fn words_far_apart_take_a_chunk_each_and_are_found_in_order() {
        let words = WordArray::new();
        let empty = words.memory_bytes();
        let far = [3, 4, 1023, 1024, (1 << 18) + 5, (1 << 25) + 7, (3 << 25) + (9 << 18) + 1025, PAGES_MAX - 1];
        far.iter().for_each(|page| words.store(PageId(*page), page + 1));
        words.store(PageId(100), 0);
        let chunk_and_way = (CHUNK_WORDS * 8 + (LOW + MIDDLE) * size_of::<OnceLock<Box<Chunk>>>()) as u64;
        assert!(words.memory_bytes() - empty <= far.len() as u64 * chunk_and_way, "{}", words.memory_bytes());
        let found: Vec<_> = words.stored(PageId(0), PAGES_MAX).collect();
        assert_eq!(found, far.map(|page| (PageId(page), page + 1)));
        let some: Vec<_> = words.stored(PageId(4), 1 << 25).map(|(page, _)| page.0).collect();
        assert_eq!(some, [4, 1023, 1024, (1 << 18) + 5]);
    }
}
