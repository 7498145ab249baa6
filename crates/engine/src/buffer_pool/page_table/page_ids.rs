//! Allocates page ids. Ids stay dense, so that the page table stays an array without holes.
//!
//! A database from which much was deleted has many free ids. Only some are listed when it is opened; of the other leaves
//! of the page table with free ids only the numbers are kept, and checkpoints list them when the listed ids run out
//! (`leaf_loads`). Until then an id that becomes free in such a leaf is not listed either: it is found with the others.

use std::ops::Range;

use super::block_map::BlockMap;
use crate::buffer_pool::PAGES_MAX;
use crate::format::entries_per_node;
use crate::ids::PageId;

/// Number of free ids from which on no further leaves are listed.
const LISTED_ENOUGH: usize = 1 << 16;

/// The page ids that can be allocated: first ids of freed pages, then ids under which no page was ever stored, then new
/// ids.
#[derive(Debug, Default)]
pub(crate) struct PageIds {
    free: Vec<PageId>,
    /// Ranges of ids below the end of the page table under which no page was ever stored. The lowest ranges come last.
    gaps: Vec<Range<u64>>,
    next: u64,
    entries_per_leaf: u64,
    /// Leaves with free ids that are not in `free`, the lowest last. It concerns ids below `opened_end` only.
    unlisted: Vec<u64>,
    /// The end of the ids when the database was opened.
    opened_end: u64,
}

impl PageIds {
    /// Creates the ids of a page table of which nothing is known yet.
    pub(crate) fn new(page_bytes: usize) -> Self {
        Self { entries_per_leaf: entries_per_node(page_bytes), ..Self::default() }
    }

    /// Lists the free ids of the next leaf of a page table with `page_count` pages, while it is loaded: those whose entry
    /// is zero.
    pub(crate) fn load_leaf(&mut self, leaf: u64, entries: &[u64], page_count: u64) {
        let ids = (leaf * self.entries_per_leaf..page_count).zip(entries);
        let mut free = ids.filter(|(_, entry)| **entry == 0).map(|(id, _)| PageId(id)).peekable();
        if self.free.len() < LISTED_ENOUGH {
            self.free.extend(free);
        } else if free.peek().is_some() {
            self.unlisted.push(leaf);
        }
    }

    /// Ends the loading of a page table: `map` names all its leaves.
    pub(crate) fn end_loading(&mut self, map: &BlockMap) {
        self.gaps = map.gaps();
        self.next = map.page_count();
        self.opened_end = self.next;
        // Reversed, because ids are taken from the end and the lowest is to be taken first.
        self.free.reverse();
        self.gaps.reverse();
        self.unlisted.reverse();
    }

    /// Takes the next id; `None` when all are in use.
    pub(crate) fn take(&mut self) -> Option<PageId> {
        self.free.pop().or_else(|| self.take_unused())
    }

    /// Takes the next id under which no page was ever stored; `None` when there are none.
    pub(crate) fn take_unused(&mut self) -> Option<PageId> {
        while let Some(gap) = self.gaps.last_mut() {
            if let Some(id) = gap.next() {
                return Some(PageId(id));
            }
            self.gaps.pop();
        }
        (self.next < PAGES_MAX).then(|| {
            self.next += 1;
            PageId(self.next - 1)
        })
    }

    /// Returns the lowest id above all ids ever allocated.
    pub(crate) fn end(&self) -> u64 {
        self.next
    }

    /// Makes an id free that no page has any more. The caller holds the lock of the page's shard, or the id was never
    /// published.
    pub(crate) fn put_back(&mut self, id: PageId) {
        let is_unlisted = id.0 < self.opened_end && self.position_of(id.0 / self.entries_per_leaf).is_ok();
        if !is_unlisted {
            self.free.push(id);
        }
    }

    fn position_of(&self, leaf: u64) -> Result<usize, usize> {
        self.unlisted.binary_search_by(|other| leaf.cmp(other))
    }

    /// Returns the next leaf whose free ids should be listed, because few are left.
    pub(crate) fn leaf_to_list(&self) -> Option<u64> {
        self.unlisted.last().copied().filter(|_| self.free.len() < LISTED_ENOUGH / 2)
    }

    /// Returns the end of the ids listed with their leaf.
    pub(crate) fn opened_end(&self) -> u64 {
        self.opened_end
    }

    /// Lists the free ids of a leaf that [`PageIds::leaf_to_list`] has returned. The caller holds the lock of its shard.
    pub(crate) fn list(&mut self, leaf: u64, free: impl DoubleEndedIterator<Item = PageId>) {
        if let Ok(at) = self.position_of(leaf) {
            self.unlisted.remove(at);
            self.free.extend(free.rev());
        }
    }

    /// Takes the ids of a leaf that cannot be read out of use.
    pub(crate) fn avoid(&mut self, mut pages: impl Iterator<Item = PageId>) {
        let Some(first) = pages.next() else { return };
        let ids = first.0..first.0.saturating_add(self.entries_per_leaf);
        self.free.retain(|id| !ids.contains(&id.0));
        self.unlisted.retain(|leaf| *leaf != first.0 / self.entries_per_leaf);
        if ids.contains(&self.next) {
            self.next = ids.end;
        }
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        let lists = self.free.capacity() * size_of::<PageId>() + self.unlisted.capacity() * size_of::<u64>();
        (lists + self.gaps.capacity() * size_of::<Range<u64>>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ids of a table of whole leaves, in which every other id is free.
    fn half_free(leaves: u64) -> PageIds {
        let mut ids = PageIds::new(512);
        let per_leaf = entries_per_node(512);
        for leaf in 0..leaves {
            let entries: Vec<u64> = (leaf * per_leaf..(leaf + 1) * per_leaf).map(|id| id % 2).collect();
            ids.load_leaf(leaf, &entries, leaves * per_leaf);
        }
        let mut map = BlockMap::new(512);
        map.set_page_count(leaves * per_leaf);
        ids.end_loading(&map);
        ids.gaps.clear();
        ids
    }

    #[test]
    fn many_free_ids_take_little_memory_and_all_are_found_in_the_end() {
        let leaves = 10_000;
        let mut ids = half_free(leaves);
        assert!(ids.memory_bytes() < (2 << 20), "{}", ids.memory_bytes());
        let end = ids.end();
        let mut found = Vec::new();
        loop {
            while let Some(leaf) = ids.leaf_to_list() {
                let per_leaf = entries_per_node(512);
                let free: Vec<PageId> = (leaf * per_leaf..(leaf + 1) * per_leaf).map(PageId).collect();
                ids.list(leaf, free.into_iter().filter(|id| id.0 % 2 == 0));
            }
            let id = ids.take().unwrap();
            if id.0 >= end {
                break;
            }
            found.push(id.0);
        }
        assert_eq!(found.len() as u64, end.div_ceil(2));
        assert!(found.iter().all(|id| id % 2 == 0));
        found.sort_unstable();
        found.dedup();
        assert_eq!(found.len() as u64, end.div_ceil(2), "an id was given out twice");
    }

    #[test]
    fn an_id_that_becomes_free_in_an_unlisted_leaf_is_found_with_its_leaf() {
        let mut ids = half_free(10_000);
        let (listed, end) = (ids.free.len(), ids.end());
        let unlisted = *ids.unlisted.last().unwrap() * entries_per_node(512) + 1;
        ids.put_back(PageId(unlisted));
        assert_eq!(ids.free.len(), listed);
        ids.put_back(PageId(1));
        ids.put_back(PageId(end + 1));
        assert_eq!(ids.free.len(), listed + 2, "ids of listed leaves and new ones are free at once");
    }

    #[test]
    fn the_ids_of_a_damaged_leaf_are_not_given_out() {
        let mut ids = PageIds::new(512);
        let per_leaf = entries_per_node(512);
        ids.load_leaf(0, &[1, 0, 0, 1], 4);
        let mut map = BlockMap::new(512);
        map.set_page_count(4);
        ids.end_loading(&map);
        ids.gaps.clear();
        ids.avoid((0..per_leaf).map(PageId));
        assert_eq!(ids.take(), Some(PageId(per_leaf)));
    }
}
