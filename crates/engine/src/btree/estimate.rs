//! Estimates how many entries a range has, from one page of each level at either end of it.
//!
//! A node divides its part of the table evenly among its children, so far as the estimate goes: the position of a key is
//! the sum of these shares on the way to its leaf. Ends in one leaf give an exact number. Otherwise the error depends on
//! how evenly the nodes are filled: splits leave them between half full and full.

use super::{KeyRange, Tree};
use crate::pages::{Attempt, Pages};

/// The estimated size of a range.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct RangeSize {
    /// Number of entries.
    pub(crate) entries: f64,
    /// Number of leaves, or a part of one.
    pub(crate) leaves: f64,
}

/// The estimated position of a key.
struct KeyPosition {
    /// The share of the table that lies before the key, from 0 to 1.
    share: f64,
    /// The leaves and the entries that the table has if every node is as full as those on the way.
    leaves: f64,
    entries: f64,
}

impl Tree {
    /// Estimates the size of a range. Looks up one page of each level for each of its ends.
    pub(crate) fn estimate<P: Pages>(&self, pages: &P, range: &KeyRange) -> Attempt<RangeSize> {
        if range.is_empty() {
            return Ok(RangeSize { entries: 0.0, leaves: 0.0 });
        }
        let (start, end) = (self.locate(pages, Some(&range.start))?, self.locate(pages, range.end.as_deref())?);
        let share = (end.share - start.share).max(0.0);
        let mean = |start: f64, end: f64| share * (start + end) / 2.0;
        Ok(RangeSize { entries: mean(start.entries, end.entries), leaves: mean(start.leaves, end.leaves) })
    }

    /// Estimates the position of a key; without one, of the end of the table.
    fn locate<P: Pages>(&self, pages: &P, key: Option<&[u8]>) -> Attempt<KeyPosition> {
        let (mut id, mut level) = (self.root, None);
        let (mut share, mut width, mut leaves) = (0.0, 1.0, 1.0);
        loop {
            let page = pages.page(id)?;
            let node = self.open(id, &page, level)?;
            let count = node.count();
            if node.level() == 0 {
                let index = match key {
                    Some(key) => node.search(key)?.unwrap_or_else(|index| index),
                    None => count,
                };
                share += width * index as f64 / count.max(1) as f64;
                return Ok(KeyPosition { share, leaves, entries: leaves * count as f64 });
            }
            let index = key.map_or(Ok(count), |key| node.child_index(key))?;
            let children = (count + 1) as f64;
            share += width * index as f64 / children;
            width /= children;
            leaves *= children;
            (id, level) = (node.child(index)?, Some(node.level() - 1));
        }
    }
}
