//! Nodes of the durable page table: a radix tree from page id to [`Location`].
//!
//! A node is one block: a header and as many entries as fit (507 in 4 KiB). Leaves name pages, inner nodes name nodes,
//! with the full checksum of a node in its header and its tag in the parent's entry. Nodes are never overwritten.

use super::checksum::{Tag, placed_checksum};
use super::fields::{Reader, Writer, u64_at};
use super::location::Location;
use crate::error::{Error, ErrorKind, Result};
use crate::format::BlockId;

/// Bytes before the entries: checksum, magic, level, index, reserved.
pub(crate) const NODE_HEADER_BYTES: usize = 40;
const MAGIC: u32 = u32::from_le_bytes(*b"NFpt");

/// Returns the number of entries in a node of this many bytes.
pub(crate) fn entries_per_node(page_bytes: usize) -> u64 {
    ((page_bytes - NODE_HEADER_BYTES) / 8) as u64
}

/// Returns the number of levels that this many pages need.
pub(crate) fn levels_for(page_count: u64, page_bytes: usize) -> u32 {
    let entries = entries_per_node(page_bytes);
    let (mut levels, mut nodes) = (0, page_count);
    while nodes > 0 && (levels == 0 || nodes > 1) {
        nodes = nodes.div_ceil(entries);
        levels += 1;
    }
    levels
}

/// Returns the number of nodes on a level (0 are the leaves) of a table for this many pages.
pub(crate) fn nodes_on_level(page_count: u64, level: u32, page_bytes: usize) -> u64 {
    let entries = entries_per_node(page_bytes);
    (0..=level).fold(page_count, |count, _| count.div_ceil(entries))
}

/// Identifies a node: its level (0 are the leaves) and its index on that level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NodeId {
    pub(crate) level: u32,
    pub(crate) index: u64,
}

impl NodeId {
    /// Returns the position that enters the node's checksum. It differs from every page id, because page ids are below
    /// 2^48.
    fn place(self) -> u64 {
        1 << 63 | u64::from(self.level) << 56 | self.index
    }
}

/// Encodes a node into `block`; missing entries are empty. Returns its checksum.
pub(crate) fn encode_node(file_id: u64, node: NodeId, entries: impl Iterator<Item = u64>, block: &mut [u8]) -> u64 {
    block.fill(0);
    let mut out = Writer { bytes: block, at: 8 };
    out.u32(MAGIC);
    out.u32(node.level);
    out.u64(node.index);
    out.at = NODE_HEADER_BYTES;
    for entry in entries {
        out.u64(entry);
    }
    let sum = placed_checksum(file_id, node.place(), &block[8..]);
    block[..8].copy_from_slice(&sum.to_le_bytes());
    sum
}

/// Checks a node read from `at`, and returns its entries as words.
///
/// # Errors
/// `Corrupt` when the bytes are not the node that belongs there, in the version that its parent names, or when an
/// entry is neither empty nor a location.
pub(crate) fn decode_node(file_id: u64, node: NodeId, at: Location, block: &[u8]) -> Result<Vec<u64>> {
    let broken = |what: &str| {
        let NodeId { level, index } = node;
        let position = u128::from(at.block.0) * block.len() as u128;
        Error::new(ErrorKind::Corrupt, format!("page-table node {index} of level {level} at {position}: {what}"))
    };
    if block.len() < NODE_HEADER_BYTES {
        return Err(broken("too short"));
    }
    let sum = placed_checksum(file_id, node.place(), &block[8..]);
    let mut from = Reader { bytes: block, at: 0 };
    if from.u64() != sum {
        return Err(broken("checksum does not match"));
    }
    if Tag::of(sum) != at.tag {
        return Err(broken("an older or a newer version than the one named"));
    }
    if (from.u32(), from.u32(), from.u64()) != (MAGIC, node.level, node.index) {
        return Err(broken("another node"));
    }
    let entries = node_entries(block);
    // Only pages lie compressed, and they are named by leaves.
    let is_location = |word| Location::from_word(word).is_some_and(|at| node.level == 0 || !at.is_compressed);
    match entries.iter().find(|word| **word != 0 && !is_location(**word)) {
        Some(word) => Err(broken(&format!("entry {word:#x} is not a location"))),
        None => Ok(entries),
    }
}

/// Returns the entries of a node that was checked, as words.
pub(crate) fn node_entries(block: &[u8]) -> Vec<u64> {
    block[NODE_HEADER_BYTES..].chunks_exact(8).map(|word| u64_at(word, 0)).collect()
}

/// Returns the location of a node with this checksum.
pub(crate) fn node_location(block: BlockId, checksum: u64) -> Location {
    Location::of_whole(block, Tag::of(checksum))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId { level: 1, index: 5 };

    #[test]
    fn a_node_is_read_back_where_it_belongs_and_nowhere_else() {
        let mut block = vec![0; 4096];
        let entries = [0, Location::of_whole(BlockId(9), Tag::from_bits(3)).to_word()];
        let sum = encode_node(1, NODE, entries.into_iter(), &mut block);
        let at = node_location(BlockId(77), sum);
        let read = decode_node(1, NODE, at, &block).unwrap();
        assert_eq!((read.len() as u64, &read[..2], read[2]), (entries_per_node(4096), &entries[..], 0));
        assert!(decode_node(2, NODE, at, &block).is_err(), "another file");
        assert!(decode_node(1, NodeId { level: 1, index: 6 }, at, &block).is_err(), "another place");
        let stale = Location { tag: Tag::from_bits(at.tag.bits() ^ 1), ..at };
        assert!(decode_node(1, NODE, stale, &block).unwrap_err().to_string().contains("older"));
        block[100] ^= 4;
        assert!(decode_node(1, NODE, at, &block).unwrap_err().to_string().contains("checksum"));
    }

    #[test]
    fn levels_grow_with_pages() {
        let entries = entries_per_node(4096);
        assert_eq!(entries, 507);
        assert_eq!(levels_for(0, 4096), 0);
        assert_eq!(levels_for(1, 4096), 1);
        assert_eq!(levels_for(entries, 4096), 1);
        assert_eq!(levels_for(entries + 1, 4096), 2);
        assert_eq!(levels_for(entries * entries + 1, 4096), 3);
        assert_eq!(nodes_on_level(entries + 1, 0, 4096), 2);
        assert_eq!(nodes_on_level(entries + 1, 1, 4096), 1);
        assert!(levels_for(1 << 48, 512) <= 16);
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..1024), sealed: bool) {
            let mut bytes = bytes;
            let mut sum = 0;
            if sealed && bytes.len() >= 512 {
                sum = placed_checksum(1, NODE.place(), &bytes[8..]);
                bytes[..8].copy_from_slice(&sum.to_le_bytes());
            }
            let _ = decode_node(1, NODE, node_location(BlockId(1), sum), &bytes);
        }
    }
}
