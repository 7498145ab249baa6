//! Encodes and decodes log groups. A group is the content of one write of the log.
//!
//! A group is a whole number of blocks: a header, fragments of records, zeroes. Its header names the group before it by
//! checksum, so groups form a chain that stale bytes of a recycled segment cannot continue. It also states up to which
//! group everything was known to be durable when it was written, which is how recovery tells a torn tail from damage.
//! All groups of one opening carry a number of that opening, so that none of them is ever written a second time by a
//! later one.
//!
//! The header has a separate checksum: its statements about other groups can be believed without reading the whole
//! group, also when the rest of it was torn.

use super::CommitSeq;
use super::checksum::placed_checksum;
use super::fields::{Reader, Writer};
use crate::error::{Error, ErrorKind, Result};

/// Bytes of a log block: groups start and end at multiples of this.
pub(crate) const LOG_BLOCK_BYTES: usize = 4096;
/// Bytes of the group header, which precedes the fragments.
pub(crate) const GROUP_HEADER_BYTES: usize = 80;
/// Bytes of the header that precedes each fragment.
pub(crate) const FRAGMENT_HEADER_BYTES: usize = 16;

const MAGIC: u32 = u32::from_le_bytes(*b"NFlg");
const FRAGMENT_FIRST: u32 = 1;
const FRAGMENT_LAST: u32 = 2;

/// Offset of the time in the header: milliseconds since 1970, 0 when it is not known.
const TIME_OFFSET: usize = 72;
/// Bytes of the header that its own checksum covers.
const SUMMED_HEADER_BYTES: usize = 64;
/// Longest group in versions of the format without checksum of the header.
pub(crate) const UNSUMMED_GROUP_BYTES_MAX: usize = 128 << 10;

/// The header of a log group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GroupHeader {
    /// Number of the group, counted from 1 without gaps.
    pub(crate) sequence: u64,
    /// Position at which the group starts, in bytes since the log was created.
    pub(crate) position: u64,
    /// All groups up to this number were durable when this group was written.
    pub(crate) durable_sequence: u64,
    /// Checksum of the preceding log group.
    pub(crate) previous: u64,
    /// Number of segments for which the log file had space when this group was written.
    pub(crate) slots: u64,
    /// The opening of the log that wrote the group: a number unlike any other opening's. 0 in groups of versions
    /// without it.
    pub(crate) opening: u64,
    /// The time at which the group was built, in milliseconds since 1970; 0 in groups of versions without it.
    pub(crate) time_ms: u64,
    /// Number of bytes of fragments after the header.
    pub(crate) payload_bytes: u32,
    /// Checksum of the group, over header and fragments.
    pub(crate) checksum: u64,
}

impl GroupHeader {
    /// Returns the bytes that the group occupies in the log.
    pub(crate) fn len_bytes(&self) -> usize {
        (GROUP_HEADER_BYTES + self.payload_bytes as usize).next_multiple_of(LOG_BLOCK_BYTES)
    }
}

/// The header of a record fragment: a record that does not fit the rest of a group continues in the next group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FragmentHeader {
    pub(crate) commit: CommitSeq,
    pub(crate) len_bytes: u32,
    /// Whether a record starts with this fragment.
    pub(crate) first: bool,
    /// Whether a record ends with this fragment.
    pub(crate) last: bool,
}

impl FragmentHeader {
    /// Encodes the fragment header.
    pub(crate) fn encode(self) -> [u8; FRAGMENT_HEADER_BYTES] {
        let mut bytes = [0; FRAGMENT_HEADER_BYTES];
        let mut out = Writer { bytes: &mut bytes, at: 0 };
        out.u64(self.commit.0);
        out.u32(self.len_bytes);
        let flag = |set: bool, flag: u32| if set { flag } else { 0 };
        out.u32(flag(self.first, FRAGMENT_FIRST) | flag(self.last, FRAGMENT_LAST));
        bytes
    }
}

/// Completes a group in place: `block` holds the fragments from `GROUP_HEADER_BYTES` on and zeroes after them. Returns the
/// checksum, which is not taken from `header`.
pub(crate) fn encode_group(file_id: u64, header: &GroupHeader, block: &mut [u8]) -> u64 {
    let mut out = Writer { bytes: block, at: 8 };
    out.u32(MAGIC);
    out.u32(header.payload_bytes);
    out.u64(header.sequence);
    out.u64(header.position);
    out.u64(header.durable_sequence);
    out.u64(header.previous);
    out.u64(header.slots);
    out.u64(header.opening);
    out.put(&[0; TIME_OFFSET - SUMMED_HEADER_BYTES]);
    out.u64(header.time_ms);
    let sum = header_checksum(file_id, header.position, block);
    block[SUMMED_HEADER_BYTES..][..8].copy_from_slice(&sum.to_le_bytes());
    let end = GROUP_HEADER_BYTES + header.payload_bytes as usize;
    let sum = placed_checksum(file_id, header.position, &block[8..end]);
    block[..8].copy_from_slice(&sum.to_le_bytes());
    sum
}

/// The checksum of a header: never 0, which stands for none. It is multiplied because a CRC over bytes followed by
/// their own CRC does not depend on those bytes: the checksum of the group would be the same for every header.
fn header_checksum(file_id: u64, position: u64, block: &[u8]) -> u64 {
    placed_checksum(file_id, position, &block[8..SUMMED_HEADER_BYTES]).wrapping_mul(0x9E37_79B9_7F4A_7C15).max(1)
}

/// Returns whether a header that [`peek_group`] read at the beginning of `block` is intact. The header's own checksum
/// decides; older versions had none, so their group is summed whole, and counts as damaged when it is not all in
/// `block`.
pub(crate) fn is_header_intact(file_id: u64, segment_bytes: u64, header: &GroupHeader, block: &[u8]) -> bool {
    let stored = Reader { bytes: block, at: SUMMED_HEADER_BYTES }.u64();
    if stored != 0 {
        return stored == header_checksum(file_id, header.position, block);
    }
    header.len_bytes() <= UNSUMMED_GROUP_BYTES_MAX && decode_group(file_id, segment_bytes, block).is_some()
}

/// Returns whether the header at the beginning of `block` has a separate checksum, as all have since version 3.
pub(crate) fn has_header_checksum(block: &[u8]) -> bool {
    block.len() >= GROUP_HEADER_BYTES && Reader { bytes: block, at: SUMMED_HEADER_BYTES }.u64() != 0
}

/// Decodes the header in the first block of a group, unverified but for the magic number and a plausible length: enough
/// to know how much to read.
pub(crate) fn peek_group(block: &[u8], segment_bytes: u64) -> Option<GroupHeader> {
    if block.len() < GROUP_HEADER_BYTES {
        return None;
    }
    let mut from = Reader { bytes: block, at: 0 };
    let checksum = from.u64();
    if from.u32() != MAGIC {
        return None;
    }
    let payload_bytes = from.u32();
    let header = GroupHeader {
        sequence: from.u64(),
        position: from.u64(),
        durable_sequence: from.u64(),
        previous: from.u64(),
        slots: from.u64(),
        opening: from.u64(),
        time_ms: Reader { bytes: block, at: TIME_OFFSET }.u64(),
        payload_bytes,
        checksum,
    };
    let in_segment = header.position % segment_bytes + header.len_bytes() as u64 <= segment_bytes;
    (in_segment && header.position.is_multiple_of(LOG_BLOCK_BYTES as u64)).then_some(header)
}

/// Decodes the group at the beginning of `block`, with its fragments; `None` if it is not there completely.
pub(crate) fn decode_group(file_id: u64, segment_bytes: u64, block: &[u8]) -> Option<GroupHeader> {
    let header = peek_group(block, segment_bytes)?;
    let end = GROUP_HEADER_BYTES + header.payload_bytes as usize;
    let content = block.get(8..end)?;
    (placed_checksum(file_id, header.position, content) == header.checksum).then_some(header)
}

/// The payload of a group that [`decode_group`] accepted, as it lies in `block`: its fragments, one after another.
///
/// # Errors
/// `Corrupt` when `block` is shorter than the group.
pub(crate) fn payload_of<'a>(header: &GroupHeader, block: &'a [u8]) -> Result<&'a [u8]> {
    let end = GROUP_HEADER_BYTES + header.payload_bytes as usize;
    block.get(GROUP_HEADER_BYTES..end).ok_or_else(|| fragments_do_not_fit(header))
}

/// Takes the next fragment off the front of `rest`, the remaining payload of a group; `None` at its end.
///
/// # Errors
/// `Corrupt` when fragments do not fill the group exactly, although its checksum is right.
pub(crate) fn take_fragment<'a>(
    header: &GroupHeader,
    rest: &mut &'a [u8],
) -> Result<Option<(FragmentHeader, &'a [u8])>> {
    if rest.is_empty() {
        return Ok(None);
    }
    let broken = || fragments_do_not_fit(header);
    let (head, tail) = rest.split_at_checked(FRAGMENT_HEADER_BYTES).ok_or_else(broken)?;
    let mut from = Reader { bytes: head, at: 0 };
    let (commit, len_bytes, flags) = (CommitSeq(from.u64()), from.u32(), from.u32());
    let (content, next) = tail.split_at_checked(len_bytes as usize).ok_or_else(broken)?;
    if flags > (FRAGMENT_FIRST | FRAGMENT_LAST) {
        return Err(broken());
    }
    let (first, last) = (flags & FRAGMENT_FIRST != 0, flags & FRAGMENT_LAST != 0);
    *rest = next;
    Ok(Some((FragmentHeader { commit, len_bytes, first, last }, content)))
}

fn fragments_do_not_fit(header: &GroupHeader) -> Error {
    let what = format!("log group {} at {}: fragments do not fit", header.sequence, header.position);
    Error::new(ErrorKind::Corrupt, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: u64 = 1 << 20;

    fn group() -> (GroupHeader, Vec<u8>) {
        let mut block = vec![0; LOG_BLOCK_BYTES];
        let mut at = GROUP_HEADER_BYTES;
        for (commit, content) in [(5, &b"put a"[..]), (6, b"delete b")] {
            let fragment =
                FragmentHeader { commit: CommitSeq(commit), len_bytes: content.len() as u32, first: true, last: true };
            block[at..at + FRAGMENT_HEADER_BYTES].copy_from_slice(&fragment.encode());
            at += FRAGMENT_HEADER_BYTES;
            block[at..at + content.len()].copy_from_slice(content);
            at += content.len();
        }
        let payload_bytes = (at - GROUP_HEADER_BYTES) as u32;
        let mut header = GroupHeader {
            sequence: 3,
            position: 8192,
            durable_sequence: 1,
            previous: 77,
            slots: 2,
            opening: 9,
            time_ms: 1_700_000_000_123,
            payload_bytes,
            checksum: 0,
        };
        header.checksum = encode_group(1, &header, &mut block);
        (header, block)
    }

    #[test]
    fn a_group_is_read_back_with_its_fragments() {
        let (header, block) = group();
        assert_eq!(decode_group(1, SEGMENT, &block), Some(header));
        let mut rest = payload_of(&header, &block).unwrap();
        let fragments = std::iter::from_fn(|| take_fragment(&header, &mut rest).unwrap());
        let fragments: Vec<_> = fragments.map(|(head, content)| (head.commit.0, content)).collect();
        assert_eq!(fragments, [(5, &b"put a"[..]), (6, &b"delete b"[..])]);
        assert_eq!(decode_group(2, SEGMENT, &block), None, "another file's group");
    }

    #[test]
    fn groups_that_differ_in_their_headers_alone_have_different_checksums() {
        let (header, mut block) = group();
        let others = [
            GroupHeader { opening: 10, ..header },
            GroupHeader { previous: 78, ..header },
            GroupHeader { durable_sequence: 2, ..header },
        ];
        for other in others {
            assert_ne!(encode_group(1, &other, &mut block), header.checksum, "{other:?}");
        }
    }

    #[test]
    fn a_header_is_believed_by_its_own_checksum_and_without_one_by_that_of_the_group() {
        let (header, mut block) = group();
        assert!(has_header_checksum(&block) && is_header_intact(1, SEGMENT, &header, &block));
        for bit in 12 * 8..(SUMMED_HEADER_BYTES + 8) * 8 {
            block[bit / 8] ^= 1 << (bit % 8);
            let says_so =
                peek_group(&block, SEGMENT).is_some_and(|header| is_header_intact(1, SEGMENT, &header, &block));
            assert!(!says_so, "bit {bit}");
            block[bit / 8] ^= 1 << (bit % 8);
        }
        // The rest may be torn.
        block[GROUP_HEADER_BYTES] ^= 1;
        assert!(is_header_intact(1, SEGMENT, &header, &block) && !is_header_intact(2, SEGMENT, &header, &block));
        // As earlier versions wrote it.
        let end = GROUP_HEADER_BYTES + header.payload_bytes as usize;
        block[SUMMED_HEADER_BYTES..][..8].fill(0);
        assert!(!is_header_intact(1, SEGMENT, &header, &block));
        let sum = placed_checksum(1, header.position, &block[8..end]);
        block[..8].copy_from_slice(&sum.to_le_bytes());
        let header = peek_group(&block, SEGMENT).unwrap();
        assert!(!has_header_checksum(&block) && is_header_intact(1, SEGMENT, &header, &block));
    }

    #[test]
    fn any_flipped_bit_of_header_or_fragments_is_found() {
        let (header, mut block) = group();
        for bit in 0..(GROUP_HEADER_BYTES + header.payload_bytes as usize) * 8 {
            block[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode_group(1, SEGMENT, &block), None, "bit {bit}");
            block[bit / 8] ^= 1 << (bit % 8);
        }
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..5000), payload in 0u32..6000) {
            let mut block = bytes;
            if block.len() >= GROUP_HEADER_BYTES {
                block[8..12].copy_from_slice(&MAGIC.to_le_bytes());
                block[12..16].copy_from_slice(&payload.to_le_bytes());
                let end = GROUP_HEADER_BYTES + payload as usize;
                if end <= block.len() {
                    let position = Reader { bytes: &block, at: 24 }.u64();
                    let sum = placed_checksum(1, position, &block[8..end]);
                    block[..8].copy_from_slice(&sum.to_le_bytes());
                }
            }
            if let Some(header) = peek_group(&block, SEGMENT) {
                let mut rest = payload_of(&header, &block).unwrap_or_default();
                while let Ok(Some(_)) = take_fragment(&header, &mut rest) {}
            }
            let _ = decode_group(1, SEGMENT, &block);
        }
    }
}
