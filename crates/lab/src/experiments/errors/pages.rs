//! The pages that `errors` damages. Each contains its number and a checksum. A program with checksums can tell whether
//! a page is *whole*; only the lab, which can compute the content, can tell whether it is *right*.

use std::io::BufRead;

use crc_fast::{CrcAlgorithm, Digest};

/// Bytes of a page.
pub(super) const PAGE_BYTES: usize = 4096;
/// Bytes of the part of a page that the lab searches for in memory and on disk, because its content occurs nowhere
/// else.
pub(super) const PATTERN_BYTES: usize = 32;
/// Position of the searched part within its page, in bytes.
const PATTERN_AT: usize = 64;
const CHECKSUM_BYTES: usize = 8;

/// The checksum of a page's content, by the engine's algorithm.
pub(super) fn checksum(content: &[u8]) -> u64 {
    let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
    digest.update(content);
    digest.finalize()
}

/// Fills `page` with the content of page `number`: a checksum, then random bytes from the seed.
pub(super) fn fill(page: &mut [u8], seed: u64, number: u64) {
    let mut chance = fastrand::Rng::with_seed(crate::machine::content::tag(seed, number));
    let (sum, content) = page.split_at_mut(CHECKSUM_BYTES.min(page.len()));
    chance.fill(content);
    if let Some(first) = content.first_chunk_mut() {
        *first = number.to_le_bytes();
    }
    let of_content = checksum(content).to_le_bytes();
    sum.copy_from_slice(&of_content[..sum.len()]);
}

/// Whether a program with checksums would accept `page` as page `number`.
pub(super) fn is_whole(page: &[u8], number: u64) -> bool {
    let Some((sum, content)) = page.split_first_chunk::<CHECKSUM_BYTES>() else { return false };
    content.starts_with(&number.to_le_bytes()) && u64::from_le_bytes(*sum) == checksum(content)
}

/// Whether `page` has its original content, byte by byte.
pub(super) fn is_right(page: &[u8], seed: u64, number: u64) -> bool {
    let mut wanted = vec![0; page.len()];
    fill(&mut wanted, seed, number);
    !page.is_empty() && page == wanted
}

/// Returns the bytes by which page `number` is found in memory or on disk.
pub(super) fn pattern(seed: u64, number: u64) -> [u8; PATTERN_BYTES] {
    let mut page = [0; PATTERN_AT + PATTERN_BYTES];
    fill(&mut page, seed, number);
    let mut pattern = [0; PATTERN_BYTES];
    pattern.copy_from_slice(&page[PATTERN_AT..]);
    pattern
}

/// Returns the positions in `bytes` at which `first` begins something that `is_there` recognises.
pub(super) fn places_of(first: u8, bytes: &[u8], is_there: impl Fn(&[u8]) -> bool) -> Vec<usize> {
    let mut places = Vec::new();
    for (number, page) in bytes.chunks(PAGE_BYTES).enumerate() {
        // Zeroes fill most of a sparse file.
        if page == &[0; PAGE_BYTES][..page.len()] {
            continue;
        }
        let mut rest = page;
        // A search by the standard library is fast also in a build without optimisation.
        while rest.skip_until(first).is_ok_and(|skipped| skipped > 0) {
            let at = number * PAGE_BYTES + page.len() - rest.len() - 1;
            if bytes[at] == first && is_there(&bytes[at..]) {
                places.push(at);
            }
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_whole_and_right_until_a_bit_flips() {
        for len in [1024, PAGE_BYTES] {
            let mut page = vec![0; len];
            fill(&mut page, 7, 3);
            assert!(is_whole(&page, 3) && is_right(&page, 7, 3));
            assert!(!is_whole(&page, 4) && !is_right(&page, 7, 4) && !is_right(&page, 8, 3));
            let pattern = pattern(7, 3);
            let places = places_of(pattern[0], &page, |bytes| bytes.starts_with(&pattern));
            assert_eq!(places, [PATTERN_AT], "the same bytes at every length");
            for at in [0, 8, 64, len - 1] {
                page[at] ^= 1;
                assert!(!is_whole(&page, 3) && !is_right(&page, 7, 3), "byte {at}");
                page[at] ^= 1;
            }
        }
        assert!(!is_whole(&[0; PAGE_BYTES], 0), "zeroes are not a page");
        assert!(!is_whole(&[], 0) && !is_right(&[], 7, 0));
    }
}
