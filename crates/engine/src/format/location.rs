//! The location of a page: its block, and a tag that verifies its bytes, in eight bytes.
//!
//! The same word is an entry of the durable page table and, in memory, of the page-table array, where the two top
//! bits have further meanings.

use super::BlockId;
use super::checksum::{TAG_BITS, Tag};

/// Number of bits of a block number: 2 PiB with pages of 4 KiB.
const BLOCK_BITS: u32 = 39;
/// Block numbers are below this.
pub(crate) const BLOCK_LIMIT: u64 = 1 << BLOCK_BITS;
/// Set in the word of a page that lies compressed in its block (`format::compressed`).
const COMPRESSED: u64 = 1 << (BLOCK_BITS + TAG_BITS);
/// Set in the word of every location, so that zero is "no page".
const PRESENT: u64 = 1 << 62;

/// A block, and the tag of the page version in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Location {
    /// The block in which the page version lies.
    pub(crate) block: BlockId,
    /// The tag of the page version that belongs there.
    pub(crate) tag: Tag,
    /// Whether the page version lies compressed in the block, together with other pages.
    pub(crate) is_compressed: bool,
}

impl Location {
    /// Returns the location of a page that is alone in its block.
    pub(crate) fn of_whole(block: BlockId, tag: Tag) -> Self {
        Self { block, tag, is_compressed: false }
    }

    /// Encodes the location as a word, which is never zero.
    pub(crate) fn to_word(self) -> u64 {
        debug_assert!(self.block.0 < BLOCK_LIMIT, "{:?} is beyond the largest file", self.block);
        let compressed = if self.is_compressed { COMPRESSED } else { 0 };
        PRESENT | compressed | self.block.0 << TAG_BITS | self.tag.bits()
    }

    /// Decodes a word; `None` for zero ("no page") and for words with undefined bits set.
    pub(crate) fn from_word(word: u64) -> Option<Self> {
        if word & !(PRESENT - 1) != PRESENT {
            return None;
        }
        let block = BlockId((word & (COMPRESSED - 1)) >> TAG_BITS);
        Some(Self { block, tag: Tag::from_bits(word), is_compressed: word & COMPRESSED != 0 })
    }
}

const _: () = assert!(COMPRESSED == PRESENT >> 1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_locations_are_the_same_thing() {
        for (block, tag) in [(0, 0), (1, 7), (BLOCK_LIMIT - 1, (1 << TAG_BITS) - 1)] {
            for is_compressed in [false, true] {
                let location = Location { block: BlockId(block), tag: Tag::from_bits(tag), is_compressed };
                assert_eq!(Location::from_word(location.to_word()), Some(location));
            }
        }
        assert_eq!(Location::from_word(0), None);
        assert_eq!(Location::from_word(u64::MAX), None);
    }
}
