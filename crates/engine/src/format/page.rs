//! The header every page starts with. It belongs to the pager: tree code sees only the *body*, the bytes after it.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | checksum: CRC-64/NVME over file id, page id, and bytes 8.. of the page |
//! | 8 | 8 | the page's own id |
//! | 16 | 8 | commit that changed it last |
//! | 24 | 16 | reserved for an encryption tag; zero |
//!
//! The header is sealed when the page is written, not when it is published: body slices that readers hold never cover
//! the bytes that sealing changes.

/// Bytes of the header.
pub(crate) const HEADER_BYTES: usize = 40;
/// Smallest page. Databases start at 4096; smaller ones make small trees tall in tests.
pub(crate) const PAGE_BYTES_MIN: usize = 512;
/// Largest page: offsets in a node are 16 bits.
pub(crate) const PAGE_BYTES_MAX: usize = 65536;
