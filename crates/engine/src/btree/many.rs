//! Looks up several keys side by side.
//!
//! A lookup is a chain of places in memory, each known only from the one before, and out of core hardly any of them
//! is in a cache. So all keys descend together, one level at a time: the next place of each is prefetched before the
//! first of them is looked at.

use std::ops::{ControlFlow, Range};

use super::{FoundValue, Position, SEARCHED_BYTES, Tree, ValueRef, packed};
use crate::format::PageId;
use crate::format::cell::Cell;
use crate::pages::{Attempt, Pages};

/// Number of keys that are looked up together: few enough that the lines prefetched for them fit the first-level cache.
pub(crate) const SIDE_BY_SIDE: usize = 16;

/// The state of the lookup of one key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lookup<'k> {
    /// The caller's number for the key, to tell which result belongs to which key.
    pub(crate) number: usize,
    pub(crate) key: &'k [u8],
    /// The position that the lookup has reached: see [`Position`].
    pub(crate) position: Position,
}

impl Position {
    /// Returns the page that the lookup reads next.
    pub(crate) fn page(self) -> PageId {
        self.place().0
    }

    /// Returns the page that the lookup reads next, and the range of bytes to prefetch in it.
    fn place(self) -> (PageId, Range<usize>) {
        match self {
            Self::Node(page, _) => (page, 0..SEARCHED_BYTES),
            Self::Value(at) => {
                let start = usize::from(at.offset);
                (at.page, start..start + usize::from(at.len_bytes))
            }
        }
    }
}

impl Tree {
    /// Looks up each of these keys together, as [`Tree::get_from`] does each one; it is best to pass a few at a time
    /// ([`SIDE_BY_SIDE`]). Returns each result with its lookup and the position that the lookup has reached, in no
    /// particular order.
    pub(crate) fn get_each<'k, P: Pages>(
        &self,
        pages: &P,
        mut under_way: Vec<Lookup<'k>>,
        mut answer: impl FnMut(Lookup<'k>, Attempt<Option<FoundValue>>),
    ) {
        while !under_way.is_empty() {
            under_way.iter().for_each(|lookup| pages.expect(lookup.position.place().0));
            for lookup in &under_way {
                let (page, bytes) = lookup.position.place();
                pages.fetch(page, bytes);
            }
            under_way.retain_mut(|lookup| {
                let answered = match self.step(pages, lookup.key, lookup.position) {
                    Ok(ControlFlow::Continue(to)) => {
                        lookup.position = to;
                        return true;
                    }
                    Ok(ControlFlow::Break(found)) => Ok(found),
                    Err(wait) => Err(wait),
                };
                answer(*lookup, answered);
                false
            });
        }
    }

    fn step<P: Pages>(
        &self,
        pages: &P,
        key: &[u8],
        position: Position,
    ) -> Attempt<ControlFlow<Option<FoundValue>, Position>> {
        let (id, level) = match position {
            Position::Node(id, level) => (id, level),
            Position::Value(at) => {
                let value = packed::value(at, &pages.page(at.page)?)?.to_vec();
                return Ok(ControlFlow::Break(Some(FoundValue::Inline(value))));
            }
        };
        let page = pages.page(id)?;
        let node = self.open(id, &page, level)?;
        if node.level() > 0 {
            let child = node.child(node.child_index(key)?)?;
            return Ok(ControlFlow::Continue(Position::Node(child, Some(node.level() - 1))));
        }
        let Ok(index) = node.search(key)? else { return Ok(ControlFlow::Break(None)) };
        let (expiry, cell) = node.entry(index)?;
        if pages.has_expired(expiry) {
            return Ok(ControlFlow::Break(None));
        }
        Ok(match cell {
            Cell::Inline(value) => ControlFlow::Break(Some(FoundValue::Inline(value.to_vec()))),
            Cell::Overflow(to) => ControlFlow::Break(Some(ValueRef::Overflow(to).into())),
            Cell::Spread(to) => ControlFlow::Break(Some(ValueRef::Spread(to).into())),
            Cell::Packed(at) => ControlFlow::Continue(Position::Value(at)),
        })
    }
}
