//! Looking up several keys side by side.
//!
//! A lookup is a chain of places in memory, each known only from the one before, and out of core hardly any of them is in a cache.
//! So all keys go down together, a level at a time: what each will look at next is asked for before the first of them looks.

use std::ops::{ControlFlow, Range};

use super::{Found, SEARCHED_BYTES, Tree, packed};
use crate::format::PageId;
use crate::format::node::{Cell, PackedRef};
use crate::pages::{Attempt, Pages};

/// Keys that should go side by side: what is asked for them fits the first cache.
pub(crate) const SIDE_BY_SIDE: usize = 16;

/// Where a key is on its way.
#[derive(Debug, Clone, Copy)]
enum Next {
    /// At this node, of this level unless it is the root.
    Node(PageId, Option<u8>),
    /// At its value.
    Value(PackedRef),
}

impl Next {
    /// The page it will look at, and which bytes.
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
    /// Looks up each of these keys, a few at best ([`SIDE_BY_SIDE`]), as [`Tree::get`] does. Each answer is given with the place of
    /// its key among them, in no order.
    pub(crate) fn get_each<'k, P: Pages>(
        &self,
        pages: &P,
        keys: impl Iterator<Item = &'k [u8]>,
        mut answer: impl FnMut(usize, Attempt<Option<Found>>),
    ) {
        let begin = |(at, key)| (at, key, Next::Node(self.root, None));
        let mut under_way: Vec<(usize, &[u8], Next)> = keys.enumerate().map(begin).collect();
        while !under_way.is_empty() {
            under_way.iter().for_each(|(.., next)| pages.expect(next.place().0));
            for (.., next) in &under_way {
                let (page, bytes) = next.place();
                pages.fetch(page, bytes);
            }
            under_way.retain_mut(|(at, key, next)| match self.step(pages, key, *next) {
                Ok(ControlFlow::Continue(to)) => {
                    *next = to;
                    true
                }
                Ok(ControlFlow::Break(found)) => {
                    answer(*at, Ok(found));
                    false
                }
                Err(wait) => {
                    answer(*at, Err(wait));
                    false
                }
            });
        }
    }

    fn step<P: Pages>(&self, pages: &P, key: &[u8], next: Next) -> Attempt<ControlFlow<Option<Found>, Next>> {
        let (id, level) = match next {
            Next::Node(id, level) => (id, level),
            Next::Value(at) => {
                let value = packed::value(at, &pages.page(at.page)?)?.to_vec();
                return Ok(ControlFlow::Break(Some(Found::Inline(value))));
            }
        };
        let page = pages.page(id)?;
        let node = self.open(id, &page, level)?;
        if node.level() > 0 {
            let child = node.child(node.child_index(key)?)?;
            return Ok(ControlFlow::Continue(Next::Node(child, Some(node.level() - 1))));
        }
        let Ok(index) = node.search(key)? else { return Ok(ControlFlow::Break(None)) };
        Ok(match node.cell(index)? {
            Cell::Inline(value) => ControlFlow::Break(Some(Found::Inline(value.to_vec()))),
            Cell::Overflow(to) => ControlFlow::Break(Some(Found::Overflow(to))),
            Cell::Packed(at) => ControlFlow::Continue(Next::Value(at)),
        })
    }
}
