//! The bytes that the lab reads: incompressible, and made from (seed, block index) alone, so that a reader of any block
//! can verify it. Block 0 of a file or device is a [`Header`], the lab's marker; data block `i` follows at
//! [`block_offset`]`(i)`.
//!
//! The first and the last 8 bytes of a data block are its [`tag`]: two loads find a block from the wrong place, a torn
//! one, or one that never arrived; [`check_block_fully`] compares every byte.

use crate::error::{LabError, LabErrorKind, Result};

/// Bytes of a block, header included.
pub const BLOCK_BYTES: usize = 4096;

const MAGIC: [u8; 16] = *b"nofault-lab data";
const VERSION: u64 = 1;
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Position of data block `index` in its file, in bytes.
pub fn block_offset(index: u64) -> u64 {
    (index + 1) * BLOCK_BYTES as u64
}

/// The number that data block `index` of content `seed` starts and ends with. Never zero, so that a block of zeroes
/// never passes.
#[inline]
pub fn tag(seed: u64, index: u64) -> u64 {
    mix(mix(seed ^ GOLDEN).wrapping_add(index.wrapping_mul(GOLDEN))) | 1
}

/// The finaliser of SplitMix64: a bijection that spreads every input bit over all output bits.
#[inline]
fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Word number `position` of a block's content; the first and the last word are the tag.
#[inline]
fn word(tag: u64, position: u64) -> u64 {
    match position {
        0 | WORD_LAST => tag,
        _ => mix(tag.wrapping_add(position.wrapping_mul(GOLDEN))),
    }
}

const WORD_LAST: u64 = (BLOCK_BYTES / 8 - 1) as u64;

/// Writes the content of data block `index` into `block`. Takes about half a microsecond.
///
/// # Panics
/// When `block` is not [`BLOCK_BYTES`] long.
pub fn fill_block(block: &mut [u8], seed: u64, index: u64) {
    assert_eq!(block.len(), BLOCK_BYTES, "a block has {BLOCK_BYTES} bytes");
    let tag = tag(seed, index);
    for (position, bytes) in block.chunks_exact_mut(8).enumerate() {
        bytes.copy_from_slice(&word(tag, position as u64).to_le_bytes());
    }
}

/// Whether the first and the last word of `block` are right for data block `index`. Takes a few nanoseconds.
#[inline]
pub fn check_block(block: &[u8], seed: u64, index: u64) -> bool {
    let expected = tag(seed, index).to_le_bytes();
    block.len() == BLOCK_BYTES && block.first_chunk() == Some(&expected) && block.last_chunk() == Some(&expected)
}

/// Whether every byte of `block` is right for data block `index`. Takes about half a microsecond.
pub fn check_block_fully(block: &[u8], seed: u64, index: u64) -> bool {
    let tag = tag(seed, index);
    let matches = |(position, bytes): (usize, &[u8])| bytes == word(tag, position as u64).to_le_bytes();
    block.len() == BLOCK_BYTES && block.chunks_exact(8).enumerate().all(matches)
}

/// Block 0 of a file or device: the lab's marker, and a description of the data that follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Seed of the content.
    pub seed: u64,
    /// Bytes of data after block 0; a multiple of [`BLOCK_BYTES`].
    pub data_bytes: u64,
    /// Time of the header's creation, in milliseconds since 1970 UTC.
    pub created_unix_ms: u64,
    /// Whether all data was written. False while the file is being made, and forever when the lab was killed before its
    /// end.
    pub complete: bool,
}

impl Header {
    /// Encodes the header as on disk: magic, version, seed, data bytes, time, complete, checksum; the rest zero.
    pub fn encode(&self) -> [u8; BLOCK_BYTES] {
        let mut block = [0; BLOCK_BYTES];
        block[..16].copy_from_slice(&MAGIC);
        let words = [VERSION, self.seed, self.data_bytes, self.created_unix_ms, u64::from(self.complete)];
        for (position, value) in words.into_iter().enumerate() {
            block[16 + position * 8..][..8].copy_from_slice(&value.to_le_bytes());
        }
        let sum = checksum(&block[..56]);
        block[56..64].copy_from_slice(&sum.to_le_bytes());
        block
    }

    /// Decodes a header.
    ///
    /// # Errors
    /// `Damaged` when the marker is absent, damaged or of a version that this build does not know.
    pub fn decode(block: &[u8]) -> Result<Self> {
        let not_ours = |why: &str| Err(LabError::new(LabErrorKind::Damaged, why));
        let Some(block) = block.first_chunk::<64>() else { return not_ours("too short for the lab's marker") };
        if block[..16] != MAGIC {
            return not_ours("does not carry the lab's marker");
        }
        let at = |position: usize| {
            block[16 + position * 8..].first_chunk().copied().map(u64::from_le_bytes).unwrap_or_default()
        };
        if at(5) != checksum(&block[..56]) {
            return not_ours("carries a damaged marker of the lab");
        }
        match at(0) {
            VERSION => {}
            other => return not_ours(&format!("carries a marker of version {other}, this build knows {VERSION}")),
        }
        let header = Self { seed: at(1), data_bytes: at(2), created_unix_ms: at(3), complete: at(4) == 1 };
        match header.data_bytes.is_multiple_of(BLOCK_BYTES as u64) {
            true => Ok(header),
            false => not_ours("carries a marker with an impossible size"),
        }
    }
}

/// Checksum of the header's bytes: detects damage, not forgery.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(GOLDEN, |sum, byte| mix(sum ^ u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_passes_only_as_itself() {
        let mut block = vec![0; BLOCK_BYTES];
        fill_block(&mut block, 7, 42);
        assert!(check_block(&block, 7, 42) && check_block_fully(&block, 7, 42));
        assert!(!check_block(&block, 7, 43), "another place");
        assert!(!check_block(&block, 8, 42), "another seed");
        assert!(!check_block(&block[..4095], 7, 42), "too short");
        assert!(!check_block(&vec![0; BLOCK_BYTES], 7, 42), "zeroes");
        block[2000] ^= 1;
        assert!(check_block(&block, 7, 42) && !check_block_fully(&block, 7, 42), "a flipped bit inside");
        block[4095] ^= 1;
        assert!(!check_block(&block, 7, 42), "a torn end");
    }

    #[test]
    fn tags_do_not_repeat_over_blocks_and_seeds() {
        let mut seen = std::collections::HashSet::new();
        for seed in 0..4 {
            for index in 0..10_000 {
                assert!(seen.insert(tag(seed, index)), "seed {seed} index {index}");
            }
        }
    }

    #[test]
    fn content_does_not_compress() {
        let mut blocks = vec![0; 16 * BLOCK_BYTES];
        for (index, block) in blocks.chunks_exact_mut(BLOCK_BYTES).enumerate() {
            fill_block(block, 1, index as u64);
        }
        let mut counts = [0u32; 256];
        blocks.iter().for_each(|byte| counts[usize::from(*byte)] += 1);
        let mean = blocks.len() as f64 / 256.0;
        assert!(
            counts.iter().all(|count| (f64::from(*count) - mean).abs() < mean / 2.0),
            "every byte is equally likely"
        );
    }

    #[test]
    fn a_header_survives_the_disk_and_damage_is_seen() {
        let header = Header { seed: 3, data_bytes: 1 << 20, created_unix_ms: 5, complete: true };
        let mut block = header.encode();
        assert_eq!(Header::decode(&block), Ok(header));
        for position in 0..64 {
            block[position] ^= 0x10;
            assert_eq!(Header::decode(&block).unwrap_err().kind(), LabErrorKind::Damaged, "byte {position}");
            block[position] ^= 0x10;
        }
        assert_eq!(Header::decode(&[]).unwrap_err().kind(), LabErrorKind::Damaged);
        assert_eq!(Header::decode(&[0; BLOCK_BYTES]).unwrap_err().kind(), LabErrorKind::Damaged);
    }
}
