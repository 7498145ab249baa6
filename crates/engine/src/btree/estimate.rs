//! Estimates how many entries and leaves a range has, from a sample of its nodes.
//!
//! The nodes of the range are looked at level by level from the root. As long as a level has at most [`LEVEL_MAX`] of them,
//! all are: then the number of its children is exact, and a range of so few leaves is counted. Of a larger level
//! [`SAMPLES`] nodes are chosen, one at random out of each of as many equal parts, in the order of keys; each stands for the
//! others of its part.
//!
//! So each level that is sampled adds an error, with a standard deviation of at most an eighth of that with which the
//! nodes of one part differ in their numbers of children or entries: parts that differ from each other add none. Nodes
//! that splits and deletes leave between half full and full make that some 4 % of the result.

use super::{KeyRange, Tree};
use crate::error::Result;
use crate::format::PageId;

/// Most nodes of one level that are all looked at.
const LEVEL_MAX: usize = 128;
/// Number of nodes that are chosen out of a larger level.
const SAMPLES: usize = 64;

/// The estimated size of a range.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct RangeSize {
    /// Number of entries.
    pub(crate) entries: f64,
    /// Number of leaves, or a part of one.
    pub(crate) leaves: f64,
}

/// An estimate in progress: the nodes of one level that are to be looked at.
pub(crate) struct RangeSample<'r> {
    tree: Tree,
    range: &'r KeyRange,
    /// The nodes of the level, and how many of them were looked at.
    nodes: Vec<PageId>,
    looked_at: usize,
    level: Option<u8>,
    /// The number of nodes of the level for which each of `nodes` stands.
    weight: f64,
    children: Vec<PageId>,
    found: RangeSize,
    random: u64,
}

impl<'r> RangeSample<'r> {
    /// Begins with the root. The same table and range give the same sample.
    pub(crate) fn new(tree: Tree, range: &'r KeyRange) -> Self {
        let nodes = if range.is_empty() { Vec::new() } else { vec![tree.root] };
        let found = RangeSize { entries: 0.0, leaves: 0.0 };
        let (level, children, random) = (None, Vec::new(), tree.table.0);
        Self { tree, range, nodes, looked_at: 0, level, weight: 1.0, children, found, random }
    }

    /// Returns the nodes to be looked at next, in any number from the front; none when the estimate is complete.
    pub(crate) fn wanted(&self) -> &[PageId] {
        &self.nodes[self.looked_at..]
    }

    /// Looks at the first of the wanted nodes. Returns the number of steps that it took.
    ///
    /// # Errors
    /// `Corrupt` when the page is no such node.
    pub(crate) fn look(&mut self, body: &[u8]) -> Result<usize> {
        let Some(id) = self.wanted().first().copied() else { return Ok(0) };
        let node = self.tree.open(id, body, self.level)?;
        let (start, end) = (&self.range.start, self.range.end.as_deref());
        let count = node.count();
        let steps = if node.level() == 0 {
            let index = |key: &[u8]| node.search(key).map(|found| found.unwrap_or_else(|index| index));
            let in_range = end.map_or(Ok(count), index)?.saturating_sub(index(start)?);
            self.found.entries += self.weight * in_range as f64;
            self.found.leaves += self.weight * in_range as f64 / count.max(1) as f64;
            1
        } else {
            let (first, last) = (node.child_index(start)?, end.map_or(Ok(count), |end| node.child_index(end))?);
            for index in first..=last {
                self.children.push(node.child(index)?);
            }
            1 + (last + 1).saturating_sub(first)
        };
        self.looked_at += 1;
        if self.looked_at == self.nodes.len() {
            self.descend(node.level().checked_sub(1));
        }
        Ok(steps)
    }

    /// Returns the result, once no node is wanted.
    pub(crate) fn size(&self) -> RangeSize {
        self.found
    }

    /// Descends to the level of the children.
    fn descend(&mut self, level: Option<u8>) {
        let children = std::mem::take(&mut self.children);
        (self.level, self.looked_at) = (level, 0);
        if children.len() <= LEVEL_MAX {
            self.nodes = children;
            return;
        }
        self.weight *= children.len() as f64 / SAMPLES as f64;
        self.nodes.clear();
        for part in 0..SAMPLES {
            let (from, to) = (part * children.len() / SAMPLES, (part + 1) * children.len() / SAMPLES);
            // A step of a linear congruential generator, of which the upper bits are the better ones.
            self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            self.nodes.push(children[from + (self.random >> 32) as usize % (to - from)]);
        }
    }
}
