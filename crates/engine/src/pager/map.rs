//! The page table as the next checkpoint will write it: where each page was as of the last commit a checkpoint took over,
//! and where the nodes that say so are.
//!
//! The map runs behind the page-table array, which shows the newest state. It costs eight bytes a page more, and buys that
//! a checkpoint neither stops commits nor reads anything back.

use std::collections::BTreeSet;

use super::table::WordArray;
use crate::format::{Location, NodeId, PageId, entries_per_node, levels_for, nodes_on_level};

/// The durable page table in the making.
#[derive(Debug)]
pub(crate) struct Map {
    words: WordArray,
    page_count: u64,
    page_bytes: usize,
    /// Where each node is, by level and index; zero where it was never written.
    nodes: Vec<Vec<u64>>,
    dirty_leaves: BTreeSet<u64>,
}

impl Map {
    pub(crate) fn new(page_bytes: usize) -> Self {
        Self { words: WordArray::new(), page_count: 0, page_bytes, nodes: Vec::new(), dirty_leaves: BTreeSet::new() }
    }

    /// Where the page is; `None` where there is no such page.
    pub(crate) fn get(&self, page: PageId) -> Option<Location> {
        Location::from_word(self.words.load(page))
    }

    /// Notes where the page is now. Answers where it was.
    pub(crate) fn set(&mut self, page: PageId, at: Option<Location>) -> Option<Location> {
        let before = self.get(page);
        if before != at {
            self.words.store(page, at.map_or(0, Location::to_word));
            self.page_count = self.page_count.max(page.0 + 1);
            self.dirty_leaves.insert(page.0 / entries_per_node(self.page_bytes));
        }
        before
    }

    /// Takes an entry over from a node read from disk.
    pub(crate) fn load_entry(&mut self, page: PageId, at: Location) {
        self.words.store(page, at.to_word());
        self.page_count = self.page_count.max(page.0 + 1);
    }

    /// Notes where a node is. Answers where it was.
    pub(crate) fn set_node(&mut self, node: NodeId, at: Location) -> Option<Location> {
        let level = node.level as usize;
        if self.nodes.len() <= level {
            self.nodes.resize(level + 1, Vec::new());
        }
        if self.nodes[level].len() <= node.index as usize {
            self.nodes[level].resize(node.index as usize + 1, 0);
        }
        Location::from_word(std::mem::replace(&mut self.nodes[level][node.index as usize], at.to_word()))
    }

    /// Where a node is.
    pub(crate) fn node(&self, node: NodeId) -> Option<Location> {
        self.nodes.get(node.level as usize)?.get(node.index as usize).and_then(|word| Location::from_word(*word))
    }

    /// Ids below this may have pages.
    pub(crate) fn page_count(&self) -> u64 {
        self.page_count
    }

    pub(crate) fn set_page_count(&mut self, page_count: u64) {
        self.page_count = page_count;
    }

    /// Levels of the table.
    pub(crate) fn levels(&self) -> u32 {
        levels_for(self.page_count, self.page_bytes)
    }

    /// Leaves changed since the last call. The caller writes them, or gives them back with `mark_dirty`.
    pub(crate) fn take_dirty_leaves(&mut self) -> BTreeSet<u64> {
        std::mem::take(&mut self.dirty_leaves)
    }

    pub(crate) fn mark_dirty(&mut self, leaves: impl IntoIterator<Item = u64>) {
        self.dirty_leaves.extend(leaves);
    }

    /// The entries of a node, as words.
    pub(crate) fn entries(&self, node: NodeId) -> Vec<u64> {
        let per_node = entries_per_node(self.page_bytes);
        let range = node.index * per_node..(node.index + 1) * per_node;
        if node.level == 0 {
            return range.map(|page| self.words.load(PageId(page))).collect();
        }
        let below = &self.nodes[node.level as usize - 1];
        range.map(|index| below.get(index as usize).copied().unwrap_or(0)).collect()
    }

    /// Every page with its place.
    #[cfg(test)]
    pub(crate) fn pages(&self) -> impl Iterator<Item = (PageId, Location)> + '_ {
        (0..self.page_count).map(PageId).filter_map(|page| Some((page, self.get(page)?)))
    }

    /// Every node of the table with its place.
    pub(crate) fn node_places(&self) -> impl Iterator<Item = (NodeId, Location)> + '_ {
        let on_level = |level: u32| {
            let count = nodes_on_level(self.page_count, level, self.page_bytes);
            (0..count).map(move |index| NodeId { level, index })
        };
        (0..self.levels()).flat_map(on_level).filter_map(|node| Some((node, self.node(node)?)))
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        let nodes: usize = self.nodes.iter().map(|level| level.capacity() * 8).sum();
        self.words.memory_bytes() + (nodes + self.dirty_leaves.len() * 16) as u64
    }
}
