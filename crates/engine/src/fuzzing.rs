//! The entry points of the fuzzer: each function takes arbitrary bytes, and panics or hangs only when nofault is wrong.
//!
//! They are here and not in `fuzz/`, because most of them need private items of the crate, and because the ordinary
//! tests run the same bodies for a moment, from a seed. They are not part of the library: built for tests, and with the
//! feature `fuzzing`.
//!
//! | body | its input |
//! |---|---|
//! | [`page`] | a page, as read from disk, and as a node of a tree |
//! | [`tree()`] | a handful of pages that call themselves a tree, which is read and changed |
//! | [`values`] | a handful of pages that call themselves parts of long values, or values side by side |
//! | [`log_group`] | a group of the log, with the records in it |
//! | [`metadata`] | superblock, page-table node, catalog entries |
//! | [`compressed()`] | a block of compressed pages, with forged dictionaries |
//! | [`stripes`] | the list of folders of a striped database |
//! | [`mapped`] (feature `mmap`) | the meta page and a record of a mapped store |
//! | [`open`] | both files, arbitrary, as they were with changes here and there, or forged: with checksums that are right |
//! | [`operations`] | operations on a database, checked against a map |

mod compressed;
mod database;
mod tree;

#[cfg(test)]
mod tests;

pub use self::compressed::compressed;
pub use self::database::{open, operations};
pub use self::tree::{page, tree, values};
use crate::db::parse_stripes;
use crate::format::catalog::{decode_dictionary, decode_table, encode_dictionary, encode_table};
use crate::format::record::Change;
use crate::format::{
    BlockId, GROUP_HEADER_BYTES, LOG_BLOCK_BYTES, Location, NodeId, SUPERBLOCK_BYTES, Superblock, Tag, decode_group,
    decode_node, encode_group, encode_node, payload_of, peek_group, take_fragment,
};

/// The file id of every fuzzed file, so that valid checksums can be computed.
const FILE_ID: u64 = 0xF022;

/// Takes numbers off the front of the fuzzer's input; zeroes once it is exhausted.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn u8(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or(0)
    }

    fn u16(&mut self) -> u16 {
        u16::from(self.u8()) | u16::from(self.u8()) << 8
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Decodes a log group: as it is, and with a valid header and checksum, so that its fragments are decoded.
pub fn log_group(bytes: &[u8]) {
    const SEGMENT: u64 = 1 << 20;
    if let Some(header) = decode_group(FILE_ID, SEGMENT, bytes) {
        let mut rest = payload_of(&header, bytes).unwrap_or_default();
        while let Ok(Some(_)) = take_fragment(&header, &mut rest) {}
    }
    let mut block = bytes.to_vec();
    block.resize(block.len().max(GROUP_HEADER_BYTES).next_multiple_of(LOG_BLOCK_BYTES), 0);
    let Some(header) = peek_group(&block, SEGMENT).or_else(|| {
        let payload_bytes = bytes.len().saturating_sub(GROUP_HEADER_BYTES) as u32;
        Some(crate::format::GroupHeader {
            sequence: 1,
            position: 0,
            durable_sequence: 0,
            previous: 0,
            slots: 2,
            opening: 0,
            time_ms: 0,
            payload_bytes,
            checksum: 0,
        })
    }) else {
        return;
    };
    if GROUP_HEADER_BYTES + header.payload_bytes as usize > block.len() || header.len_bytes() as u64 > SEGMENT {
        return;
    }
    encode_group(FILE_ID, &header, &mut block);
    let Some(found) = decode_group(FILE_ID, SEGMENT, &block) else {
        assert!(
            header.position % SEGMENT + header.len_bytes() as u64 > SEGMENT,
            "a sealed group is refused: {header:?}"
        );
        return;
    };
    let mut rest = payload_of(&found, &block).unwrap_or_default();
    while let Ok(Some((_, mut record))) = take_fragment(&found, &mut rest) {
        while let Ok(Some(change)) = Change::decode(&mut record) {
            let mut again = Vec::new();
            let value = change.encode_head(&mut again);
            again.extend_from_slice(value);
            let read_again = Change::decode(&mut again.as_slice());
            assert_eq!(read_again.ok().flatten(), Some(change), "a change does not come back as it was written");
        }
    }
}

/// Decodes a superblock, a page-table node and a catalog entry: as they are, and with valid checksums.
pub fn metadata(bytes: &[u8]) {
    for slot in 0..2 {
        let Ok(superblock) = Superblock::decode(slot, bytes) else { continue };
        let mut sector = vec![0; SUPERBLOCK_BYTES];
        superblock.encode(slot, &mut sector);
        assert_eq!(Superblock::decode(slot, &sector).ok(), Some(superblock), "a superblock changes when it is written");
    }
    let node = NodeId { level: u32::from(bytes.first().copied().unwrap_or(0) % 4), index: 3 };
    let _ = decode_node(FILE_ID, node, Location::of_whole(BlockId(9), Tag::of(0)), bytes);
    let mut block = vec![0; 512];
    let words = bytes.chunks_exact(8).take(crate::format::entries_per_node(block.len()) as usize);
    let entries = words.map(|word| word.iter().fold(0u64, |word, byte| word << 8 | u64::from(*byte)));
    let checksum = encode_node(FILE_ID, node, entries, &mut block);
    let at = crate::format::node_location(BlockId(9), checksum);
    if let Ok(words) = decode_node(FILE_ID, node, at, &block) {
        for word in words {
            let _ = Location::from_word(word);
        }
    }
    if let Some((origin, dictionary)) = decode_dictionary(bytes) {
        let again = encode_dictionary(origin, dictionary);
        assert_eq!(decode_dictionary(&again), Some((origin, dictionary)), "the entry of a dictionary changes");
    }
    if let Ok((table, root, compression)) = decode_table(b"t", bytes) {
        let again = encode_table(table, root, compression);
        assert_eq!(
            decode_table(b"t", &again).ok(),
            Some((table, root, compression)),
            "an entry of the catalog changes"
        );
    }
}

/// Parses the list of folders of a striped database: as it is, and after a valid beginning.
pub fn stripes(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let begun = format!("nofault stripes 1\n{text}");
    let folders = format!("nofault stripes 1\n00000000000000ff\n1048576\n{text}\nend\n");
    for text in [&*text, &begun, &folders] {
        if let Some((id, stripe_bytes, folders)) = parse_stripes(text) {
            assert!(
                id.len() == 16 && stripe_bytes > 0 && !folders.is_empty(),
                "half a list is taken for one: {text:?}"
            );
        }
    }
}

/// Decodes the beginning of a mapped store's file, and a record of its log.
#[cfg(feature = "mmap")]
pub fn mapped(bytes: &[u8]) {
    crate::mmap::decode_anything(bytes);
}
