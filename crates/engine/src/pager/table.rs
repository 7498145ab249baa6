//! The page table: an array of eight-byte words indexed by page id. A translation is one load.
//!
//! The array grows in chunks that double in size and never move, so readers need no lock and no indirection beyond the
//! chunk. Words are changed only under the lock of the page's shard; they are read without it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use nofault_io::prefetch::prefetch_read;

use crate::format::{Location, PageId};

/// Page ids are below this: the largest table takes 32 GiB of memory, for 16 TiB of pages of 4 KiB.
pub(crate) const PAGES_MAX: u64 = 1 << 32;
const FIRST_CHUNK: u64 = 1 << 10;
const CHUNKS: usize = 23;

/// What the table says of a page's newest version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry {
    /// There is no such page.
    Free,
    /// On disk only.
    OnDisk(Location),
    /// On disk, and being read.
    Loading(Location),
    /// In this frame.
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

/// An array of words that grows without moving. Missing words read as zero.
#[derive(Debug)]
pub(crate) struct WordArray {
    chunks: [OnceLock<Box<[AtomicU64]>>; CHUNKS],
}

impl WordArray {
    pub(crate) fn new() -> Self {
        Self { chunks: [const { OnceLock::new() }; CHUNKS] }
    }

    /// The word of a page; zero where none was ever stored.
    pub(crate) fn load(&self, page: PageId) -> u64 {
        let (chunk, at) = place(page.0);
        let word = self.chunks.get(chunk).and_then(OnceLock::get).map(|words| &words[at]);
        // Acquire: whoever sees a frame number sees the frame's content and description.
        word.map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Asks for the word of a page that will be looked at soon.
    pub(crate) fn prefetch(&self, page: PageId) {
        let (chunk, at) = place(page.0);
        if let Some(words) = self.chunks.get(chunk).and_then(OnceLock::get) {
            prefetch_read(&raw const words[at]);
        }
    }

    /// Stores the word of a page, which must be below `PAGES_MAX`. The caller holds the lock that guards this word.
    pub(crate) fn store(&self, page: PageId, word: u64) {
        let (chunk, at) = place(page.0);
        let words = self.chunks[chunk].get_or_init(|| zeroed_words(FIRST_CHUNK << chunk));
        words[at].store(word, Ordering::Release);
    }

    /// Bytes of memory it takes, counting chunks whole.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.chunks.iter().filter_map(OnceLock::get).map(|words| words.len() as u64 * 8).sum()
    }
}

/// Chunk and index in it: chunk `k` holds `FIRST_CHUNK << k` words.
fn place(index: u64) -> (usize, usize) {
    let shifted = index.saturating_add(FIRST_CHUNK);
    let chunk = shifted.ilog2() - FIRST_CHUNK.ilog2();
    (chunk as usize, (shifted - (FIRST_CHUNK << chunk)) as usize)
}

fn zeroed_words(count: u64) -> Box<[AtomicU64]> {
    // Through `u64`, because that allocation is left untouched by the standard library until it is used: the last chunk
    // is half of the table and must not take memory before pages exist.
    let words = vec![0_u64; count as usize].into_boxed_slice();
    let raw: *mut [u64] = Box::into_raw(words);
    // SAFETY: `AtomicU64` has the size and, on the 64-bit targets this crate supports, the alignment of `u64`
    // (asserted below), so the allocation is one that `Box<[AtomicU64]>` could have made.
    unsafe { Box::from_raw(raw as *mut [AtomicU64]) }
}

const _: () = assert!(align_of::<AtomicU64>() == align_of::<u64>() && size_of::<AtomicU64>() == 8);
const _: () = assert!((FIRST_CHUNK << CHUNKS) - FIRST_CHUNK >= PAGES_MAX, "the chunks reach every page id");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{BlockId, Tag};

    #[test]
    fn entries_are_words_and_back() {
        let at = Location { block: BlockId((1 << 40) - 1), tag: Tag::from_bits(u64::MAX) };
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
        assert!(place(PAGES_MAX - 1).0 < CHUNKS);
    }
}
