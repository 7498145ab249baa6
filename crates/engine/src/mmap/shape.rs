//! The properties that all pages of a mapped file share, and where a page lies in the map.

use std::ops::Range;

use super::meta::META_PAGES;
use crate::error::Error;
use crate::format::PageId;
use crate::pages::{Attempt, Wait};

/// The properties that all pages of a file share.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) page_bytes: usize,
    pub(super) file_id: u64,
    /// Number of pages that fit into the map.
    pub(super) pages_max: u64,
    /// Whether each access checks the page's checksum.
    pub(super) checksums: bool,
}

impl Shape {
    /// Returns the byte range of a page in the map.
    pub(super) fn range(&self, id: PageId) -> Attempt<Range<usize>> {
        if id.0 < META_PAGES || id.0 >= self.pages_max {
            return Err(Wait::Failed(Error::corrupt_page(
                id,
                "lies outside of the mapped file, though something names it",
            )));
        }
        let start = id.0 as usize * self.page_bytes;
        Ok(start..start + self.page_bytes)
    }
}
