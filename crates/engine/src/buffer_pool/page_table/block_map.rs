//! The page table as the next checkpoint will write it: where each page was as of the last commit a checkpoint took
//! over, and where the nodes that say so are.
//!
//! The map runs behind the page-table array, which shows the newest state. It costs eight bytes a page more, and buys
//! that a checkpoint neither stops commits nor reads anything back. Its leaves come into memory and leave it together
//! together with the array's leaves (`page_table`); of a leaf that is not in memory it knows the place. A leaf that was
//! changed since it was written stays in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use rustc_hash::FxHashMap;

use crate::format::{BlockId, Location, NodeId, PageId, entries_per_node, levels_for};

/// Number of leaves whose places lie together.
const PLACES: u64 = 64;

/// The page table that the next checkpoint will write: the location of each page and of each node of the table itself.
#[derive(Debug)]
pub(crate) struct BlockMap {
    /// The entries of the leaves in memory.
    leaves: FxHashMap<u64, Box<[u64]>>,
    /// The places of the leaves that were ever written, as words: each entry covers `PLACES` neighbours.
    leaf_places: BTreeMap<u64, Box<[u64; PLACES as usize]>>,
    leaf_count: u64,
    /// The location of each inner node that was ever written.
    inner: BTreeMap<NodeId, Location>,
    /// Leaves changed since they were written.
    dirty_leaves: BTreeSet<u64>,
    /// Leaves to be written to another place. They need not be in memory.
    moving_leaves: BTreeSet<u64>,
    /// Leaves of both kinds that a checkpoint is writing.
    writing: (BTreeSet<u64>, BTreeSet<u64>),
    page_count: u64,
    page_bytes: usize,
}

impl BlockMap {
    pub(crate) fn new(page_bytes: usize) -> Self {
        Self {
            leaves: FxHashMap::default(),
            leaf_places: BTreeMap::new(),
            leaf_count: 0,
            inner: BTreeMap::new(),
            dirty_leaves: BTreeSet::new(),
            moving_leaves: BTreeSet::new(),
            writing: Default::default(),
            page_count: 0,
            page_bytes,
        }
    }

    /// Returns the number of entries of a leaf.
    fn per_leaf(&self) -> u64 {
        entries_per_node(self.page_bytes)
    }

    /// Returns the location of a page; `None` when the page does not exist. Its leaf must be in memory, if there is one.
    pub(crate) fn get(&self, page: PageId) -> Option<Location> {
        let leaf = page.0 / self.per_leaf();
        // Otherwise the place of the page is not known, and `None` would set its block free.
        let is_known = self.leaves.contains_key(&leaf) || self.leaf_place(leaf).is_none();
        assert!(is_known, "the leaf of page {page} is not in memory");
        self.in_memory(page)
    }

    /// Returns the location of a page, if its leaf is in memory.
    pub(crate) fn in_memory(&self, page: PageId) -> Option<Location> {
        Location::from_word(*self.leaf(page.0 / self.per_leaf())?.get((page.0 % self.per_leaf()) as usize)?)
    }

    /// Sets the location of a page, whose leaf must be in memory, if there is one. Returns the previous one.
    pub(crate) fn set(&mut self, page: PageId, at: Option<Location>) -> Option<Location> {
        let before = self.get(page);
        if before != at {
            let (per_leaf, leaf) = (self.per_leaf(), page.0 / self.per_leaf());
            let entries = self.leaves.entry(leaf).or_insert_with(|| vec![0; per_leaf as usize].into());
            entries[(page.0 % per_leaf) as usize] = at.map_or(0, Location::to_word);
            self.page_count = self.page_count.max(page.0 + 1);
            self.dirty_leaves.insert(leaf);
        }
        before
    }

    /// Brings a leaf into memory with these entries, as its node has them.
    pub(crate) fn add_leaf(&mut self, leaf: u64, entries: Vec<u64>) {
        self.leaves.insert(leaf, entries.into());
    }

    /// Removes a leaf from memory. It must be on disk as it is.
    pub(crate) fn remove_leaf(&mut self, leaf: u64) {
        let is_on_disk = self.is_written(leaf) || !self.leaves.contains_key(&leaf);
        assert!(is_on_disk, "leaf {leaf} is not on disk");
        self.leaves.remove(&leaf);
    }

    /// Returns the entries of a leaf in memory.
    pub(crate) fn leaf(&self, leaf: u64) -> Option<&[u64]> {
        self.leaves.get(&leaf).map(|entries| &**entries)
    }

    /// Returns the pages that a leaf in memory names.
    pub(crate) fn pages_of_leaf(&self, leaf: u64) -> impl Iterator<Item = PageId> + '_ {
        let pages = (leaf * self.per_leaf()..).zip(self.leaf(leaf).unwrap_or_default());
        pages.filter(|(_, word)| **word != 0).map(|(page, _)| PageId(page))
    }

    /// Returns the pages whose leaves are in memory, in order, with their locations.
    #[cfg(test)]
    pub(crate) fn pages_in_memory(&self) -> impl Iterator<Item = (PageId, Location)> + '_ {
        let leaves: BTreeSet<u64> = self.leaves.keys().copied().collect();
        let pages = leaves.into_iter().flat_map(|leaf| self.pages_of_leaf(leaf));
        pages.filter_map(|page| Some((page, self.get(page)?)))
    }

    /// Returns every node of the table that was ever written, with its location.
    #[cfg(test)]
    pub(crate) fn all_nodes(&self) -> impl Iterator<Item = (NodeId, Location)> + '_ {
        self.nodes_from(NodeId { level: 0, index: 0 })
    }

    /// Returns whether a leaf is on disk as it is.
    pub(crate) fn is_written(&self, leaf: u64) -> bool {
        let is_changed = self.dirty_leaves.contains(&leaf) || self.writing.0.contains(&leaf);
        self.leaf_place(leaf).is_some() && !is_changed
    }

    /// Returns the leaves in memory, in any order.
    pub(crate) fn leaves_in_memory(&self) -> impl ExactSizeIterator<Item = (u64, &[u64])> {
        self.leaves.iter().map(|(leaf, entries)| (*leaf, &**entries))
    }

    /// Returns the place of a leaf; `None` when it was never written.
    pub(crate) fn leaf_place(&self, leaf: u64) -> Option<Location> {
        Location::from_word(self.leaf_places.get(&(leaf / PLACES))?[(leaf % PLACES) as usize])
    }

    /// Sets the location of a node. Returns the previous one.
    pub(crate) fn set_node(&mut self, node: NodeId, at: Location) -> Option<Location> {
        if node.level > 0 {
            return self.inner.insert(node, at);
        }
        let places = self.leaf_places.entry(node.index / PLACES).or_insert_with(|| Box::new([0; PLACES as usize]));
        let before = std::mem::replace(&mut places[(node.index % PLACES) as usize], at.to_word());
        self.leaf_count += u64::from(before == 0);
        Location::from_word(before)
    }

    /// Returns the location of a node.
    pub(crate) fn node(&self, node: NodeId) -> Option<Location> {
        if node.level == 0 { self.leaf_place(node.index) } else { self.inner.get(&node).copied() }
    }

    /// Returns the number of leaves that were ever written.
    pub(crate) fn leaf_count(&self) -> u64 {
        self.leaf_count
    }

    /// Returns the number of nodes that were ever written.
    pub(crate) fn node_count(&self) -> u64 {
        self.leaf_count + self.inner.len() as u64
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

    /// Returns the leaves that were changed, or are to be moved, since the last call, in order. The caller writes them
    /// and calls `end_writing`. Until then those that were changed stay in memory.
    pub(crate) fn begin_writing(&mut self) -> Vec<u64> {
        self.writing = (std::mem::take(&mut self.dirty_leaves), std::mem::take(&mut self.moving_leaves));
        self.writing.0.union(&self.writing.1).copied().collect()
    }

    /// Notes that the leaves of the last call of `begin_writing` were written; without success they are to be written
    /// again.
    pub(crate) fn end_writing(&mut self, is_written: bool) {
        let (mut changed, mut moving) = std::mem::take(&mut self.writing);
        if !is_written {
            self.dirty_leaves.append(&mut changed);
            self.moving_leaves.append(&mut moving);
        }
    }

    /// Returns the entries of a node of the table, as they are encoded on disk; `None` for a leaf that is not in memory.
    pub(crate) fn entries(&self, node: NodeId) -> Option<Vec<u64>> {
        let Some(level) = node.level.checked_sub(1) else { return self.leaf(node.index).map(<[u64]>::to_vec) };
        let per_node = self.per_leaf();
        let (first, end) = (NodeId { level, index: node.index * per_node }, (node.index + 1) * per_node);
        let mut entries = vec![0; per_node as usize];
        for (below, at) in self.nodes_from(first).take_while(|(below, _)| below.level == level && below.index < end) {
            entries[(below.index - first.index) as usize] = at.to_word();
        }
        Some(entries)
    }

    /// Returns the leaves that were ever written, from `leaf` on, with their places, in order.
    pub(crate) fn leaves_from(&self, leaf: u64) -> impl Iterator<Item = (u64, Location)> + '_ {
        let parts = self.leaf_places.range(leaf / PLACES..);
        let words = parts.flat_map(|(part, places)| (part * PLACES..).zip(places.iter().copied()));
        let written = words.filter_map(|(leaf, word)| Some((leaf, Location::from_word(word)?)));
        written.skip_while(move |(at, _)| *at < leaf)
    }

    /// Returns every node of the table that was ever written, from `node` on, with its location.
    pub(crate) fn nodes_from(&self, node: NodeId) -> impl Iterator<Item = (NodeId, Location)> + '_ {
        let of_level = |(index, at)| (NodeId { level: 0, index }, at);
        let leaves = (node.level == 0).then(|| self.leaves_from(node.index).map(of_level));
        leaves.into_iter().flatten().chain(self.inner.range(node..).map(|(node, at)| (*node, *at)))
    }

    /// Marks leaves whose location, or the location of a node above, is behind block `end`: the next checkpoint
    /// rewrites them. Looks at some nodes from `from` on. Returns the node to continue from.
    pub(crate) fn mark_nodes_behind(&mut self, end: BlockId, from: NodeId, most: usize) -> Option<NodeId> {
        let per_node = self.per_leaf();
        let (mut last, mut looked_at, mut behind) = (None, 0, Vec::new());
        for (node, at) in self.nodes_from(from).take(most) {
            (last, looked_at) = (Some(node), looked_at + 1);
            if at.block >= end {
                behind.extend(self.leaves_from(node.index * per_node.pow(node.level)).next());
            }
        }
        self.moving_leaves.extend(behind.into_iter().map(|(leaf, _)| leaf));
        last.filter(|_| looked_at == most).map(|node| NodeId { level: node.level, index: node.index + 1 })
    }

    /// Returns, in order, the ranges of ids below the page count that no leaf of the table covers: no page was ever
    /// stored under them.
    pub(crate) fn gaps(&self) -> Vec<Range<u64>> {
        let per_node = self.per_leaf();
        let (mut gaps, mut next) = (Vec::new(), 0);
        let leaves = self.leaves_from(0).map(|(leaf, _)| leaf * per_node);
        for leaf in leaves.chain([self.page_count]) {
            if leaf > next {
                gaps.push(next..leaf.min(self.page_count));
            }
            next = next.max(leaf.saturating_add(per_node));
        }
        gaps
    }

    /// Returns the bytes of memory of the leaves in memory.
    pub(crate) fn leaf_bytes(&self) -> u64 {
        self.leaves.len() as u64 * Self::bytes_a_leaf(self.page_bytes)
    }

    /// Returns the bytes of memory of one leaf.
    pub(crate) fn bytes_a_leaf(page_bytes: usize) -> u64 {
        entries_per_node(page_bytes) * 8 + 32
    }

    /// Returns the bytes of memory that the map takes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        // A tree of the standard library is two thirds full as a rule.
        let inner_bytes = size_of::<(NodeId, Location)>() * 3 / 2;
        let place_bytes = size_of::<[u64; PLACES as usize]>() + 24;
        let writing = self.writing.0.len() + self.writing.1.len();
        let lists = self.dirty_leaves.len() + self.moving_leaves.len() + writing;
        let fixed = self.inner.len() * inner_bytes + self.leaf_places.len() * place_bytes + lists * 16;
        self.leaf_bytes() + fixed as u64
    }
}
