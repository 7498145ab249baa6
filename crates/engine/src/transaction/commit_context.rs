//! The facts that a commit gathers about the pages it will touch, outside of the section, so other commits proceed
//! meanwhile.
//!
//! Invariant: a gathered fact is only used where it still holds. A commit may wait long and come back often, and holds
//! no snapshot that would keep pages from being freed. The pages of the value that it will replace may be parts of
//! other values when it comes back, and the root may even be that of the next value of the same key.

use std::collections::HashMap;

use crate::btree::overflow::is_one_page;
use crate::format::node::OverflowRef;
use crate::format::{CommitSeq, PageId};
use crate::pages::{Attempt, Versions};

/// The pages and values that a commit needs, as gathered before the commit section: see the module.
#[derive(Debug, Default)]
pub(crate) struct CommitContext {
    /// The long values that will be replaced, by their root pages.
    pub(crate) replaced: HashMap<PageId, OverflowPages>,
    /// Pages that could not be read: no node is merged with one of them.
    pub(crate) unreadable: Vec<PageId>,
}

/// A long value and the list of its pages.
#[derive(Debug)]
pub(crate) struct OverflowPages {
    pub(crate) value: OverflowRef,
    /// The commit that wrote its root, looked up before the pages were listed. Pages of a value are written once and freed together: as
    /// long as the root is of this commit, the list is right.
    pub(crate) written_in: CommitSeq,
    pub(crate) pages: Vec<PageId>,
}

impl CommitContext {
    /// Returns the current pages of a long value; `None` when they must be listed first, or listed again.
    pub(super) fn pages_of<'k, P: Versions>(
        &'k self,
        pages: &P,
        value: &'k OverflowRef,
    ) -> Attempt<Option<&'k [PageId]>> {
        if is_one_page(pages.page_bytes(), *value) {
            return Ok(Some(std::slice::from_ref(&value.root)));
        }
        let Some(listed) = self.replaced.get(&value.root).filter(|listed| listed.value == *value) else {
            return Ok(None);
        };
        let is_same = pages.written_in(value.root)? == listed.written_in;
        Ok(is_same.then_some(listed.pages.as_slice()))
    }
}
