//! Finds the random number of a database file when both superblocks are lost.
//!
//! The number is part of every checksum, and the checksum is linear: over pages of one length, flipping a bit of the
//! number flips the same bits of every checksum. The 64 bits of the number thereby turn into the 64 bits of the checksum
//! one to one, so each whole page determines the number. Two pages that agree prove it; damaged blocks give random ones.

use std::collections::HashMap;

use super::source::Source;
use crate::format::{HEADER_BYTES, PAGES_START_BYTES, PageId, page_checksum, page_id};

/// Page sizes that a database may have.
const PAGE_SIZES: [usize; 5] = [4096, 8192, 16_384, 32_768, 65_536];
/// Blocks from which the number is determined, for each page size.
const BLOCKS_MAX: u64 = 4096;

/// Returns the number of the file and its page size; `None` when no two whole pages were found.
pub(super) fn find(source: &Source) -> Option<(u64, usize)> {
    PAGE_SIZES.iter().find_map(|page_bytes| Some((find_with(source, *page_bytes)?, *page_bytes)))
}

fn find_with(source: &Source, page_bytes: usize) -> Option<u64> {
    let solver = Solver::new(page_bytes)?;
    let first = PAGES_START_BYTES / page_bytes as u64;
    let blocks = source.data_bytes() / page_bytes as u64;
    // Spread over the file, of which a part may be damaged.
    let step = (blocks.saturating_sub(first) / BLOCKS_MAX).max(1);
    let mut found: HashMap<u64, PageId> = HashMap::new();
    for block in (first..blocks).step_by(usize::try_from(step).ok()?) {
        let Ok(bytes) = source.read(block * page_bytes as u64, page_bytes) else { continue };
        let page = page_id(&bytes);
        if page.0 >= 1 << 48 || bytes[24..HEADER_BYTES].iter().any(|byte| *byte != 0) {
            continue;
        }
        let file_id = solver.file_id(page, &bytes);
        match found.get(&file_id) {
            // Two copies of one page prove nothing that one does not.
            Some(other) if *other != page => return Some(file_id),
            _ => drop(found.insert(file_id, page)),
        }
    }
    None
}

/// Solves for the number that gives a page its checksum.
struct Solver {
    /// For each bit of the checksum, the bits of the number that it turns into.
    inverse: [u64; 64],
}

impl Solver {
    /// Inverts the map from numbers to checksums of pages of this length. `None` is impossible for a checksum that takes
    /// 64 bits into 64 bits.
    fn new(page_bytes: usize) -> Option<Self> {
        let zeroes = vec![0; page_bytes - 8];
        let checksum = |file_id| page_checksum(file_id, PageId(0), &zeroes);
        let without = checksum(0);
        // Each row holds what a bit of the number turns into, and the bit itself.
        let mut rows: Vec<(u64, u64)> = (0..64).map(|bit| (checksum(1 << bit) ^ without, 1 << bit)).collect();
        for bit in 0..64 {
            let pivot = (bit..64).find(|row| rows[*row].0 >> bit & 1 == 1)?;
            rows.swap(bit, pivot);
            let (image, origin) = rows[bit];
            for (row, other) in rows.iter_mut().enumerate() {
                if row != bit && other.0 >> bit & 1 == 1 {
                    *other = (other.0 ^ image, other.1 ^ origin);
                }
            }
        }
        Some(Self { inverse: std::array::from_fn(|bit| rows[bit].1) })
    }

    fn file_id(&self, page: PageId, bytes: &[u8]) -> u64 {
        let mut stored = [0; 8];
        stored.copy_from_slice(&bytes[..8]);
        let difference = u64::from_le_bytes(stored) ^ page_checksum(0, page, &bytes[8..]);
        (0..64).filter(|bit| difference >> bit & 1 == 1).fold(0, |file_id, bit| file_id ^ self.inverse[bit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{CommitSeq, seal_page};

    #[test]
    fn a_sealed_page_determines_the_number_of_its_file() {
        for (page_bytes, file_id) in [(4096, 0), (4096, u64::MAX), (8192, 0x1234_5678_9ABC_DEF0), (65_536, 7)] {
            let solver = Solver::new(page_bytes).unwrap();
            let mut bytes: Vec<u8> = (0..page_bytes).map(|at| ((at * 7919) >> 3) as u8).collect();
            seal_page(file_id, PageId(99), CommitSeq(3), &mut bytes);
            assert_eq!(solver.file_id(PageId(99), &bytes), file_id);
            bytes[page_bytes - 1] ^= 1;
            assert_ne!(solver.file_id(PageId(99), &bytes), file_id);
        }
    }
}
