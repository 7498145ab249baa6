//! The facts that a commit gathers about the pages it will touch, outside of the section, so other commits proceed at
//! the same time.
//!
//! Invariant: a gathered fact is only used where it still holds. A commit may wait long and come back often, and holds
//! no snapshot that would keep pages from being freed. The pages of the value that it will replace may be parts of
//! other values when it comes back, and the root may even belong to the next value of the same key.

use std::collections::HashMap;

use crate::btree::overflow::is_one_page;
use crate::btree::{Position, Tree, ValueRef, packed};
use crate::format::cell::{OverflowRef, SpreadRef};
use crate::format::{CommitSeq, PageId};
use crate::pages::{Attempt, Versions, Wait};

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

/// The value that a change replaces, as far as pages other than its leaf are concerned.
enum OldValue {
    Short,
    Spread(SpreadRef),
    Overflow(OverflowRef),
}

impl OldValue {
    /// Creates it from what a lookup of the key has found.
    fn of(held: Option<ValueRef<'_>>) -> Self {
        match held {
            Some(ValueRef::Overflow(value)) => Self::Overflow(value),
            Some(ValueRef::Spread(at)) => Self::Spread(at.into()),
            Some(ValueRef::Here(_)) | None => Self::Short,
        }
    }
}

impl CommitContext {
    /// Looks up the pages other than the leaf that a change of this key needs, from the leaf on. Returns the old value if the list of its
    /// pages is not known or no longer right. After a `Wait`, `waits` may name another page that is needed, as long as it
    /// has fewer than `pages_max`.
    pub(super) fn unlisted<P: Versions>(
        &self,
        latest: &P,
        (tree, mut leaf): (Tree, Position),
        key: &[u8],
        pages_max: usize,
        waits: &mut Vec<Wait>,
    ) -> Attempt<Option<OverflowRef>> {
        match tree.get_from(latest, key, &mut leaf, OldValue::of)? {
            OldValue::Short => Ok(None),
            OldValue::Spread(value) => {
                let ends = value.cell().shared_pages();
                let mut missing = ends.into_iter().flatten().filter_map(|page| latest.page(page).err());
                if let (Some(first), Some(last)) = (missing.next(), missing.next())
                    && waits.len() + 1 < pages_max
                {
                    // Both are read together.
                    waits.push(first);
                    return Err(last);
                }
                packed::check_spread(latest, value.cell())?;
                Ok(None)
            }
            OldValue::Overflow(value) => {
                let is_known = self.pages_of(latest, &value)?.is_some();
                Ok((!is_known).then_some(value))
            }
        }
    }

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
