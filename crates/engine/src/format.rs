//! The structures on disk, as types: ids, and the bytes of each structure. No I/O, no memory management.
//!
//! Every number on disk is little-endian. Decoding never trusts: each accessor checks bounds and answers with an error.
//! `docs/format.md` shows the same bytes as pictures.

pub(crate) mod catalog;
pub(crate) mod cell;
mod checksum;
pub(crate) mod compressed;
mod fields;
mod location;
mod log_group;
pub(crate) mod node;
pub(crate) mod node_mut;
mod page;
mod reader_record;
pub(crate) mod record;
mod superblock;
mod table_node;

pub(crate) use crate::clock::Moment;
pub(crate) use crate::ids::{BlockId, CommitSeq, PageId, TableId};
#[cfg(test)]
pub(crate) use checksum::SUMMED_BYTES;
pub(crate) use checksum::{Tag, page_checksum};
pub(crate) use location::{BLOCK_LIMIT, Location};
pub(crate) use log_group::{
    FRAGMENT_HEADER_BYTES, FragmentHeader, GROUP_HEADER_BYTES, GroupHeader, LOG_BLOCK_BYTES, UNSUMMED_GROUP_BYTES_MAX,
    decode_group, encode_group, has_header_checksum, is_header_intact, payload_of, peek_group, take_fragment,
};
pub(crate) use page::{
    HEADER_BYTES, PAGE_BYTES_MAX, PAGE_BYTES_MIN, check_page, page_commit, page_id, seal_page, whole_page,
};
pub(crate) use reader_record::ReaderRecord;
#[cfg(test)]
pub(crate) use superblock::tests::{seal, set_version};
pub(crate) use superblock::{
    CONVERSION_OFFSET, CONVERSION_SLOT, COUNTED_MAX, FEATURES_COMPATIBLE, LateFeature, PAGES_START_BYTES,
    SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, Superblock, VERSION_MIRRORED, version_of,
};
pub(crate) use table_node::{
    NodeId, decode_node, encode_node, entries_per_node, levels_for, node_entries, node_location, nodes_on_level,
};
