//! What is on disk, as types: ids, and the bytes each structure takes. No I/O, no memory management.
//!
//! Every number on disk is little-endian. Decoding never trusts: each accessor checks bounds and answers with an error.

pub(crate) mod catalog;
mod ids;
pub(crate) mod node;
pub(crate) mod node_mut;
mod page;
pub(crate) mod record;

pub use ids::{BlockId, CommitSeq, PageId, TableId};
pub(crate) use page::{HEADER_BYTES, PAGE_BYTES_MAX, PAGE_BYTES_MIN};
