//! Finds the frame holding a block, without a lock.
//!
//! The index is a table of sets, one cache line each, and a block's number determines its set. A word of a set names a
//! frame and the low half of its block's number; the caller compares the frame's own note of its block. There are twice
//! as many words as frames, so few sets are ever full; a block whose set is full is not added.
//!
//! Kept true by:
//! 1. A word is added after its frame was published, and a thread that loads the word sees all of that (`Release`,
//!    `Acquire`).
//! 2. A word leaves by one compare-and-exchange, so exactly one thread removes it, and retires its frame.
//!
//! Sets come in chunks, which are allocated when a block is added to them: no call does work that grows with the pool.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::format::BlockId;

/// Number of words of a set.
const WAYS: usize = 8;
/// Number of words for each frame.
const WORDS_A_FRAME: usize = 2;
/// Number of sets in a chunk, which takes 4 KiB.
const CHUNK_SETS: usize = 64;

#[repr(align(64))]
#[derive(Debug, Default)]
struct Set([AtomicU64; WAYS]);

/// The frames of blocks, by block.
#[derive(Debug)]
pub(super) struct BlockIndex {
    chunks: Box<[OnceLock<Box<[Set]>>]>,
    sets: usize,
    chunks_made: AtomicUsize,
}

/// A frame that the index names, and the word naming it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found<'a> {
    pub(super) frame: u32,
    word: u64,
    place: &'a AtomicU64,
}

impl Found<'_> {
    /// Removes the frame from the index. Returns whether this call removed it.
    pub(super) fn remove(self) -> bool {
        self.place.compare_exchange(self.word, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

impl BlockIndex {
    /// Creates the index of a pool of `frames` frames.
    pub(super) fn new(frames: usize) -> Self {
        let sets = (frames * WORDS_A_FRAME).div_ceil(WAYS).max(1);
        let chunks = (0..sets.div_ceil(CHUNK_SETS)).map(|_| OnceLock::new()).collect();
        Self { chunks, sets, chunks_made: AtomicUsize::new(0) }
    }

    fn set_of(&self, block: BlockId) -> usize {
        let spread = block.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        ((u128::from(spread) * self.sets as u128) >> 32) as usize
    }

    fn words(&self, block: BlockId) -> &[AtomicU64] {
        let set = self.set_of(block);
        let chunk = self.chunks.get(set / CHUNK_SETS).and_then(OnceLock::get);
        chunk.map_or(&[], |sets| &sets[set % CHUNK_SETS].0)
    }

    /// Returns the frames that may hold a block: frames whose set has a word with the low half of the block's number.
    pub(super) fn candidates(&self, block: BlockId) -> impl Iterator<Item = Found<'_>> {
        self.words(block).iter().filter_map(move |place| {
            let word = place.load(Ordering::Acquire);
            let frame = (word as u32).checked_sub(1)?;
            (word >> 32 == block.0 & u64::from(u32::MAX)).then_some(Found { frame, word, place })
        })
    }

    /// Returns whether a block can be added now.
    pub(super) fn has_room(&self, block: BlockId) -> bool {
        let words = self.words(block);
        words.is_empty() || words.iter().any(|word| word.load(Ordering::Relaxed) == 0)
    }

    /// Adds the published frame of a block. Returns false when the block's set is full.
    pub(super) fn insert(&self, block: BlockId, frame: u32) -> bool {
        let set = self.set_of(block);
        let first = set / CHUNK_SETS * CHUNK_SETS;
        let sets = self.chunks[set / CHUNK_SETS].get_or_init(|| {
            self.chunks_made.fetch_add(1, Ordering::Relaxed);
            (first..self.sets.min(first + CHUNK_SETS)).map(|_| Set::default()).collect()
        });
        let word = block.0 << 32 | (u64::from(frame) + 1);
        let put = |place: &AtomicU64| place.compare_exchange(0, word, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        sets[set % CHUNK_SETS].0.iter().any(put)
    }

    /// Returns about how many bytes of memory the index takes.
    pub(super) fn memory_bytes(&self) -> u64 {
        let chunks = self.chunks_made.load(Ordering::Relaxed) * CHUNK_SETS.min(self.sets) * size_of::<Set>();
        (size_of_val(&*self.chunks) + chunks) as u64
    }
}

const _: () = assert!(size_of::<Set>() == 64, "a set is one cache line");

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn found(index: &BlockIndex, block: u64) -> BTreeSet<u32> {
        index.candidates(BlockId(block)).map(|found| found.frame).collect()
    }

    proptest! {
        /// Over any additions and removals the index holds what a set of pairs holds, but for blocks whose set was full.
        #[test]
        fn the_index_agrees_with_a_model(
            frames in 1_usize..200,
            steps in prop::collection::vec((any::<bool>(), 0_u64..300, 0_u32..200), 0..500),
        ) {
            let index = BlockIndex::new(frames);
            let mut model: BTreeSet<(u64, u32)> = BTreeSet::new();
            for (adds, block, frame) in steps {
                if adds {
                    let has_room = index.has_room(BlockId(block));
                    prop_assert_eq!(index.insert(BlockId(block), frame), has_room);
                    if has_room {
                        model.insert((block, frame));
                    }
                } else {
                    for found in index.candidates(BlockId(block)) {
                        prop_assert!(found.remove() && !found.remove());
                        model.remove(&(block, found.frame));
                    }
                    prop_assert!(found(&index, block).is_empty());
                }
                let expected: BTreeSet<u32> = model.range((block, 0)..=(block, u32::MAX)).map(|(_, frame)| *frame).collect();
                prop_assert_eq!(found(&index, block), expected);
            }
        }
    }

    #[test]
    fn nearly_as_many_blocks_as_there_are_frames_find_room_and_memory_is_counted() {
        let frames = 100_000;
        let index = BlockIndex::new(frames);
        let empty = index.memory_bytes();
        assert!(empty < frames as u64, "{empty}");
        let added = (0..frames as u64).filter(|block| index.insert(BlockId(block * 3), *block as u32)).count();
        assert!(added > frames * 97 / 100, "{added} of {frames}");
        assert!(index.memory_bytes() <= 17 * frames as u64, "{}", index.memory_bytes());
        assert_eq!(found(&index, 30), BTreeSet::from([10]));
        // The highest numbers of blocks and of frames.
        assert!(index.insert(BlockId(u64::from(u32::MAX)), u32::MAX - 1));
        assert_eq!(found(&index, u64::from(u32::MAX)), BTreeSet::from([u32::MAX - 1]));
    }
}
