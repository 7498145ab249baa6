//! Checksums of everything on disk: CRC-64/NVME over the content and over *where the content belongs*.
//!
//! The checksum includes the page id and the file id, so a page written to, or read from, the wrong place does
//! not verify although its bytes are whole. A stale page (a lost write: old bytes, old and valid checksum) is found by
//! comparing with the [`Tag`] that the page table keeps.

use crc_fast::{CrcAlgorithm, Digest};

use super::PageId;

/// Identifies CRC-64/NVME in the superblock.
pub(crate) const ALGORITHM_CRC64_NVME: u32 = 1;

/// Number of checksum bits that a page-table entry has room for.
pub(crate) const TAG_BITS: u32 = 22;

/// The checksum bits kept with a block number: they name the version of the page that belongs there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Tag(u32);

impl Tag {
    /// The tag of a page with this checksum. One mixing step: neighbouring bits of a CRC are not independent enough of
    /// small changes to be simply cut off.
    pub(crate) fn of(checksum: u64) -> Self {
        Self((checksum.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - TAG_BITS)) as u32)
    }

    /// Returns the tag of a page whose header contains its checksum already.
    pub(crate) fn of_page(sealed: &[u8]) -> Self {
        Self::of(super::fields::u64_at(sealed, 0))
    }

    /// Creates a tag from the low bits of a word; higher bits are ignored.
    pub(crate) fn from_bits(bits: u64) -> Self {
        Self(bits as u32 & ((1 << TAG_BITS) - 1))
    }

    /// Returns the bits of the tag, `TAG_BITS` of them.
    pub(crate) fn bits(self) -> u64 {
        u64::from(self.0)
    }
}

/// The checksum of a page's bytes (without the checksum field) in this file and under this id. 76 ns for 4 KiB.
pub(crate) fn page_checksum(file_id: u64, page: PageId, content: &[u8]) -> u64 {
    placed_checksum(file_id, page.0, content)
}

/// The checksum of bytes belonging to position `place` of file `file_id`.
pub(crate) fn placed_checksum(file_id: u64, place: u64, content: &[u8]) -> u64 {
    let mut seed = [0; 16];
    seed[..8].copy_from_slice(&file_id.to_le_bytes());
    seed[8..].copy_from_slice(&place.to_le_bytes());
    #[cfg(test)]
    SUMMED_BYTES.with(|bytes| bytes.set(bytes.get() + content.len() as u64));
    let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
    digest.update(&seed);
    digest.update(content);
    digest.finalize()
}

#[cfg(test)]
thread_local! {
    /// Bytes that [`placed_checksum`] has summed on this thread: for tests that bound the work.
    pub(crate) static SUMMED_BYTES: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_bytes_under_another_page_or_file_have_another_checksum() {
        let bytes = [7; 4088];
        let here = page_checksum(1, PageId(4), &bytes);
        assert_ne!(here, page_checksum(1, PageId(5), &bytes));
        assert_ne!(here, page_checksum(2, PageId(4), &bytes));
        assert_eq!(here, page_checksum(1, PageId(4), &bytes));
    }

    #[test]
    fn zeroes_do_not_sum_to_zero() {
        assert_ne!(page_checksum(0, PageId(0), &[0; 4088]), 0);
    }

    #[test]
    fn tags_differ_between_versions_that_differ_in_one_bit() {
        let mut bytes = vec![0; 4088];
        let first = Tag::of(page_checksum(1, PageId(1), &bytes));
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            let other = Tag::of(page_checksum(1, PageId(1), &bytes));
            assert!(other != first || bit % 97 != 0, "a tag collides more often than chance allows");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!(Tag::from_bits(first.bits()), first);
    }
}
