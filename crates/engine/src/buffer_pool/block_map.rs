//! The page table as the next checkpoint will write it: where each page was as of the last commit a checkpoint took
//! over, and where the nodes that say so are.
//!
//! The map runs behind the page-table array, which shows the newest state. It costs eight bytes a page more, and buys
//! that a checkpoint neither stops commits nor reads anything back.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::word_array::WordArray;
use crate::format::{BlockId, Location, NodeId, PageId, entries_per_node, levels_for};

/// The page table that the next checkpoint will write: the location of each page and of each node of the table itself.
#[derive(Debug)]
pub(crate) struct BlockMap {
    words: WordArray,
    page_count: u64,
    page_bytes: usize,
    /// The location of each node that was ever written.
    nodes: BTreeMap<NodeId, Location>,
    dirty_leaves: BTreeSet<u64>,
}

impl BlockMap {
    pub(crate) fn new(page_bytes: usize) -> Self {
        Self {
            words: WordArray::new(),
            page_count: 0,
            page_bytes,
            nodes: BTreeMap::new(),
            dirty_leaves: BTreeSet::new(),
        }
    }

    /// Returns the location of a page; `None` when the page does not exist.
    pub(crate) fn get(&self, page: PageId) -> Option<Location> {
        Location::from_word(self.words.load(page))
    }

    /// Sets the location of a page. Returns the previous one.
    pub(crate) fn set(&mut self, page: PageId, at: Option<Location>) -> Option<Location> {
        let before = self.get(page);
        if before != at {
            self.words.store(page, at.map_or(0, Location::to_word));
            self.page_count = self.page_count.max(page.0 + 1);
            self.dirty_leaves.insert(page.0 / entries_per_node(self.page_bytes));
        }
        before
    }

    /// Sets an entry that was read from a node on disk, without marking its leaf as changed.
    pub(crate) fn load_entry(&mut self, page: PageId, at: Location) {
        self.words.store(page, at.to_word());
        self.page_count = self.page_count.max(page.0 + 1);
    }

    /// Sets the location of a node. Returns the previous one.
    pub(crate) fn set_node(&mut self, node: NodeId, at: Location) -> Option<Location> {
        self.nodes.insert(node, at)
    }

    /// Returns the location of a node.
    pub(crate) fn node(&self, node: NodeId) -> Option<Location> {
        self.nodes.get(&node).copied()
    }

    /// Returns the number of nodes that were ever written.
    pub(crate) fn node_count(&self) -> u64 {
        self.nodes.len() as u64
    }

    /// Returns the end of the page ids: pages exist only below it.
    pub(crate) fn page_count(&self) -> u64 {
        self.page_count
    }

    pub(crate) fn set_page_count(&mut self, page_count: u64) {
        self.page_count = page_count;
    }

    /// Returns the number of levels of the table's nodes.
    pub(crate) fn levels(&self) -> u32 {
        levels_for(self.page_count, self.page_bytes)
    }

    /// Returns the numbers of the leaf nodes changed since the last call. The caller writes them, or gives them back
    /// with `mark_dirty`.
    pub(crate) fn take_dirty_leaves(&mut self) -> BTreeSet<u64> {
        std::mem::take(&mut self.dirty_leaves)
    }

    pub(crate) fn mark_dirty(&mut self, leaves: impl IntoIterator<Item = u64>) {
        self.dirty_leaves.extend(leaves);
    }

    /// Returns the entries of a node of the table, as they are encoded on disk.
    pub(crate) fn entries(&self, node: NodeId) -> Vec<u64> {
        let per_node = entries_per_node(self.page_bytes);
        let range = node.index * per_node..(node.index + 1) * per_node;
        if node.level == 0 {
            return range.map(|page| self.words.load(PageId(page))).collect();
        }
        let level = node.level - 1;
        let mut entries = vec![0; per_node as usize];
        let (first, end) = (NodeId { level, index: range.start }, NodeId { level, index: range.end });
        for (below, at) in self.nodes.range(first..end) {
            entries[(below.index - range.start) as usize] = at.to_word();
        }
        entries
    }

    /// Returns the pages from page `from` on with their locations, in order. Takes time for the nodes that exist,
    /// however large the page ids are.
    pub(crate) fn pages_from(&self, from: PageId) -> impl Iterator<Item = (PageId, Location)> + '_ {
        let stored = self.words.stored(from, self.page_count);
        stored.filter_map(|(page, word)| Some((page, Location::from_word(word)?)))
    }

    /// Marks leaves of which, or of a node above which, the location is behind block `end`: the next checkpoint writes
    /// them anew. Looks at some nodes from `from` on. Returns the node to go on from.
    pub(crate) fn mark_nodes_behind(&mut self, end: BlockId, from: NodeId, most: usize) -> Option<NodeId> {
        let per_node = entries_per_node(self.page_bytes);
        let (mut last, mut looked_at) = (None, 0);
        let Self { nodes, dirty_leaves, .. } = self;
        for (node, at) in nodes.range(from..).take(most) {
            (last, looked_at) = (Some(*node), looked_at + 1);
            let below = node.index * per_node.pow(node.level);
            let leaf = nodes.range(NodeId { level: 0, index: below }..).next();
            if let Some((leaf, _)) = leaf.filter(|(leaf, _)| at.block >= end && leaf.level == 0) {
                dirty_leaves.insert(leaf.index);
            }
        }
        last.filter(|_| looked_at == most).map(|node| NodeId { level: node.level, index: node.index + 1 })
    }

    /// Returns every node of the table that was ever written, with its location.
    pub(crate) fn node_places(&self) -> impl Iterator<Item = (NodeId, Location)> + '_ {
        self.nodes.iter().map(|(node, at)| (*node, *at))
    }

    /// Returns, in order, the ranges of ids below the page count that no leaf of the table covers: no page was ever
    /// stored under them.
    pub(crate) fn gaps(&self) -> Vec<Range<u64>> {
        let per_node = entries_per_node(self.page_bytes);
        let (mut gaps, mut next) = (Vec::new(), 0);
        let leaves = self.nodes.keys().take_while(|node| node.level == 0).map(|node| node.index * per_node);
        for leaf in leaves.chain([self.page_count]) {
            if leaf > next {
                gaps.push(next..leaf.min(self.page_count));
            }
            next = next.max(leaf.saturating_add(per_node));
        }
        gaps
    }

    /// Returns, in order, the page ids without a page that are below the page count and lie in an existing leaf of the
    /// table.
    pub(crate) fn unused_in_leaves(&self) -> impl Iterator<Item = PageId> + '_ {
        let per_node = entries_per_node(self.page_bytes);
        let leaves = self.nodes.keys().take_while(|node| node.level == 0);
        let ids = leaves.flat_map(move |node| node.index * per_node..(node.index + 1) * per_node);
        ids.take_while(|page| *page < self.page_count).map(PageId).filter(|page| self.words.load(*page) == 0)
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        // A tree of the standard library is two thirds full as a rule.
        let node_bytes = size_of::<(NodeId, Location)>() * 3 / 2;
        self.words.memory_bytes() + (self.nodes.len() * node_bytes + self.dirty_leaves.len() * 16) as u64
    }
}
