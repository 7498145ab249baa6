//! Merges neighbouring leaves into fewer, for compaction: deletes and random inserts leave leaves half empty.
//!
//! [`Tree::merge_leaves`] takes a run of leaves below one parent, spreads their entries over the first of them, as few as
//! hold them at 31 of 32 parts of their bodies, and frees the others. No entry changes, so nothing is logged for it.
//! Like every change it works on private copies: a caller that gets a `Wait` drops them all.

use std::ops::Range;

use super::Tree;
use super::write::Step;
use crate::error::{Error, ErrorKind};
use crate::format::cell::{CHILD_BYTES, Cell};
use crate::format::node::{HEAD_BYTES, Node, SLOT_BYTES};
use crate::format::node_mut::{self as edit, Cells, NodeSpec, child_payload, separator};
use crate::format::{HEADER_BYTES, PageId};
use crate::pages::{Attempt, PageCopies, Pages};

/// One of so many parts of the body of a merged leaf stays free, so that the next insert does not split the leaf at once.
const FREE_SHARE: usize = 32;

/// The bytes in use in some leaves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LeafUse {
    /// Number of leaves.
    pub(crate) leaves: usize,
    /// Bytes that their headers, entries and fences take.
    pub(crate) used_bytes: usize,
    /// Whether they refer to values in pages of values.
    pub(crate) has_values: bool,
}

impl LeafUse {
    /// Adds other leaves.
    pub(crate) fn add(&mut self, other: Self) {
        self.leaves += other.leaves;
        self.used_bytes += other.used_bytes;
        self.has_values |= other.has_values;
    }

    /// Returns the number of leaves that would hold the entries, about.
    pub(crate) fn needed(self, page_bytes: usize) -> usize {
        self.used_bytes.div_ceil(fill_bytes(page_bytes - HEADER_BYTES)).max(1)
    }

    /// Returns the part of the leaves that is in use, from 0 to 1.
    pub(crate) fn share(self, page_bytes: usize) -> f64 {
        self.used_bytes as f64 / (self.leaves * (page_bytes - HEADER_BYTES)).max(1) as f64
    }
}

const fn fill_bytes(body_bytes: usize) -> usize {
    body_bytes - body_bytes / FREE_SHARE
}

impl Tree {
    /// Returns the use of some neighbouring leaves of this tree, and the lower fence of the first.
    pub(crate) fn use_of<P: Pages>(&self, pages: &P, leaves: &[PageId]) -> Attempt<(LeafUse, Vec<u8>)> {
        let (mut found, mut lower) = (LeafUse::default(), Vec::new());
        for leaf in leaves {
            let page = pages.page(*leaf)?;
            let node = self.open(*leaf, &page, Some(0))?;
            if found.leaves == 0 {
                lower = node.lower().to_vec();
            }
            let has_values =
                (0..node.count()).any(|index| matches!(node.cell(index), Ok(Cell::Packed(_) | Cell::Spread(_))));
            found.add(LeafUse { leaves: 1, used_bytes: node.used_bytes(), has_values });
        }
        Ok((found, lower))
    }

    /// Returns a leaf chosen at random: every child of a node is equally likely. The same `seed` leads to the same leaf
    /// as long as the tree does not change.
    pub(crate) fn random_leaf<P: Pages>(&self, pages: &P, seed: u64) -> Attempt<PageId> {
        let mut random = seed;
        let (mut id, mut level) = (self.root, None);
        loop {
            let page = pages.page(id)?;
            let node = self.open(id, &page, level)?;
            if node.level() == 0 {
                return Ok(id);
            }
            // A step of a linear congruential generator, of which the upper bits are the better ones.
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let child = (random >> 32) as usize % (node.count() + 1);
            (id, level) = (node.child(child)?, Some(node.level() - 1));
        }
    }

    /// Merges up to `leaves_max` neighbouring leaves, from the one in which key `start` belongs on, as far as they have
    /// the same parent. Returns the number of leaves freed; zero when the entries need as many leaves as they have.
    pub(crate) fn merge_leaves<E: PageCopies>(
        &self,
        copies: &mut E,
        start: &[u8],
        leaves_max: usize,
    ) -> Attempt<usize> {
        let (mut path, ..) = self.find_leaf(copies, start)?;
        let Some(Step { page: parent, child: first }) = path.pop() else { return Ok(0) };
        let parent_body = copies.page(parent)?;
        let parent_node = Node::open(parent, &parent_body)?;
        let last = (first + leaves_max.max(1) - 1).min(parent_node.count());
        let leaves = (first..=last).map(|child| parent_node.child(child)).collect::<Result<Vec<_>, _>>()?;
        let old_fences = (first..last).map(|key| parent_node.key(key)).collect::<Result<Vec<_>, _>>()?;
        let prefix_bytes = parent_node.prefix().len();
        drop(parent_body);

        let (mut cells, mut lower, mut upper) = (Cells::default(), Vec::new(), None);
        for (number, leaf) in leaves.iter().enumerate() {
            let body = copies.page(*leaf)?;
            let node = self.open(*leaf, &body, Some(0))?;
            cells.append(&node)?;
            if number == 0 {
                lower = node.lower().to_vec();
            }
            upper = node.upper().map(<[u8]>::to_vec);
        }
        let body_bytes = copies.page_bytes() - HEADER_BYTES;
        let spec = NodeSpec { level: 0, table: self.table, lower: &lower, upper: upper.as_deref(), first_child: None };
        let runs = runs_of(&cells, &spec, fill_bytes(body_bytes));
        let fences: Vec<Vec<u8>> = runs
            .windows(2)
            .map(|pair| separator(cells.key(pair[0].end - 1), cells.key(pair[0].end)).to_vec())
            .collect();
        let cost = |fences: &[Vec<u8>]| fences.iter().map(|fence| inner_cell_bytes(fence, prefix_bytes)).sum::<usize>();
        // So the parent has room for its new fences once the old ones are gone.
        if runs.len() >= leaves.len() || cost(&fences) > cost(&old_fences) {
            return Ok(0);
        }

        for (number, (run, leaf)) in runs.iter().zip(&leaves).enumerate() {
            let spec = NodeSpec {
                lower: if number == 0 { &lower } else { &fences[number - 1] },
                upper: fences.get(number).or(upper.as_ref()).map(Vec::as_slice),
                ..spec
            };
            cells.write(run.clone(), &spec, *leaf, copies.edit(*leaf)?)?;
        }
        let body = copies.edit(parent)?;
        for key in (first..last).rev() {
            edit::remove(parent, body, key)?;
        }
        for (number, (fence, leaf)) in fences.iter().zip(&leaves[1..]).enumerate() {
            if !edit::insert(parent, body, first + number, fence, &child_payload(*leaf))? {
                return Err(Error::new(ErrorKind::Bug, "fewer children need more space in their parent").into());
            }
        }
        leaves[runs.len()..].iter().for_each(|leaf| copies.free(*leaf));
        self.merge_up(copies, &mut path, parent, &[])?;
        Ok(leaves.len() - runs.len())
    }
}

/// Returns the bytes that a fence takes in a node with a prefix of this length.
fn inner_cell_bytes(fence: &[u8], prefix_bytes: usize) -> usize {
    fence.len().saturating_sub(prefix_bytes + HEAD_BYTES) + SLOT_BYTES + CHILD_BYTES
}

/// Cuts the cells of several leaves into runs that fill `bytes` of a node each, as far as they go; a longer cell is a
/// run by itself. At least one run, which may be empty.
fn runs_of(cells: &Cells, of: &NodeSpec<'_>, bytes: usize) -> Vec<Range<usize>> {
    let (mut runs, mut start) = (Vec::new(), 0);
    let mut lower = of.lower.to_vec();
    while start < cells.len() {
        let mut end = start + 1;
        while end < cells.len() {
            let next = end + 1;
            let upper = (next < cells.len()).then(|| separator(cells.key(next - 1), cells.key(next)));
            let spec = NodeSpec { lower: &lower, upper: upper.or(of.upper), ..*of };
            if !cells.fit(start..next, &spec, bytes) {
                break;
            }
            end = next;
        }
        if end < cells.len() {
            lower = separator(cells.key(end - 1), cells.key(end)).to_vec();
        }
        runs.push(start..end);
        start = end;
    }
    if runs.is_empty() {
        runs.push(0..0);
    }
    runs
}
