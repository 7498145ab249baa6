//! Where the pages of a damaged database lie: as the sound nodes of its page table say, and for the rest as the whole
//! pages in the file say of themselves.
//!
//! A node of the page table has a tag for each page, which tells the version that belongs to the state from older ones.
//! A page found by its own header alone may be an older version, or one that was freed: it is *unsure*.
//!
//! Memory: 8 bytes for each page that the table names, some 40 for each one that only the search found.

use std::collections::{BTreeMap, HashMap};

use super::source::Source;
use crate::error::{Error, ErrorKind, Result};
use crate::format::compressed::whole_records;
use crate::format::{
    CommitSeq, Location, NodeId, PAGES_START_BYTES, PageId, Superblock, decode_node, entries_per_node, node_location,
    nodes_on_level, whole_page,
};

/// Bytes of the file that the search reads at a time.
const WINDOW_BYTES: usize = 1 << 20;

/// The number of a database file and the size of its pages.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) file_id: u64,
    pub(super) page_bytes: usize,
}

/// A part of the page table that cannot be read, and the pages that it names.
#[derive(Debug, Clone)]
pub(super) struct LostNode {
    pub(super) pages: std::ops::Range<u64>,
    pub(super) error: Error,
}

/// A page that the search found.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    commit: CommitSeq,
    at: Location,
}

/// The places of pages.
pub(super) struct PageMap {
    per_leaf: u64,
    /// The entries of the sound leaves of the page table.
    leaves: BTreeMap<u64, Vec<u64>>,
    /// Parts of the page table that cannot be read.
    pub(super) lost: Vec<LostNode>,
    candidates: HashMap<PageId, Candidate>,
}

impl PageMap {
    /// Creates the map of a database of which no superblock is left: no page is known.
    pub(super) fn unknown(shape: Shape, error: Error) -> Self {
        let lost = vec![LostNode { pages: 0..1 << 48, error }];
        let per_leaf = entries_per_node(shape.page_bytes);
        Self { per_leaf, leaves: BTreeMap::new(), lost, candidates: HashMap::new() }
    }

    /// Reads all of the page table that can be read.
    pub(super) fn load(source: &Source, superblock: &Superblock) -> Self {
        let page_bytes = superblock.page_bytes as usize;
        let per_leaf = entries_per_node(page_bytes);
        let mut map = Self { per_leaf, leaves: BTreeMap::new(), lost: Vec::new(), candidates: HashMap::new() };
        let Some(top) = superblock.table_levels.checked_sub(1) else { return map };
        let root = node_location(superblock.table_root, superblock.table_checksum);
        let mut todo = vec![(NodeId { level: top, index: 0 }, root)];
        while let Some((node, at)) = todo.pop() {
            // The checksum of a node names its place in the table, so no node is read twice and the loop ends.
            let entries = source.decode(at.block.0.saturating_mul(page_bytes as u64), page_bytes, |block| {
                decode_node(superblock.file_id, node, at, block)
            });
            let entries = match entries {
                Ok(entries) => entries,
                Err(error) => {
                    map.lose(node, superblock, error);
                    continue;
                }
            };
            let Some(below) = node.level.checked_sub(1) else {
                map.leaves.insert(node.index, entries);
                continue;
            };
            let count = nodes_on_level(superblock.page_count, below, page_bytes);
            let children = (node.index * per_leaf..count).zip(entries);
            let named =
                children.filter_map(|(index, word)| Some((NodeId { level: below, index }, Location::from_word(word)?)));
            todo.extend(named);
        }
        map
    }

    fn lose(&mut self, node: NodeId, superblock: &Superblock, error: Error) {
        let pages = (0..=node.level).fold(1_u64, |pages, _| pages.saturating_mul(self.per_leaf));
        let first = node.index.saturating_mul(pages);
        let end = first.saturating_add(pages).min(superblock.page_count);
        self.lost.push(LostNode { pages: first..end, error });
    }

    fn is_lost(&self, page: PageId) -> bool {
        // No two nodes name one page, and `search` has sorted them.
        let next = self.lost.partition_point(|node| node.pages.start <= page.0);
        next.checked_sub(1).is_some_and(|index| self.lost[index].pages.contains(&page.0))
    }

    /// Searches the whole file for pages that lost parts of the page table name, in versions not younger than `until`.
    /// `progress` gets the bytes done and returns whether to go on.
    ///
    /// # Errors
    /// None but the memory's.
    pub(super) fn search(
        &mut self,
        source: &Source,
        shape: Shape,
        until: CommitSeq,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<()> {
        self.lost.sort_by_key(|node| node.pages.start);
        let page_bytes = shape.page_bytes;
        let end = source.data_bytes() / page_bytes as u64 * page_bytes as u64;
        let mut offset = PAGES_START_BYTES;
        while offset < end && progress(offset) {
            let len_bytes = WINDOW_BYTES.min(usize::try_from(end - offset).unwrap_or(WINDOW_BYTES));
            match source.read(offset, len_bytes) {
                Ok(window) => {
                    for (index, block) in window.chunks_exact(page_bytes).enumerate() {
                        self.look_at(shape, offset / page_bytes as u64 + index as u64, block, until);
                    }
                }
                // One sector of them cannot be read.
                Err(_) => {
                    for at in (offset..offset + len_bytes as u64).step_by(page_bytes) {
                        if let Ok(block) = source.read(at, page_bytes) {
                            self.look_at(shape, at / page_bytes as u64, &block, until);
                        }
                    }
                }
            }
            offset += len_bytes as u64;
        }
        Ok(())
    }

    fn look_at(&mut self, shape: Shape, block: u64, bytes: &[u8], until: CommitSeq) {
        let block = crate::format::BlockId(block);
        if let Some((page, commit, tag)) = whole_page(shape.file_id, bytes) {
            self.note(page, commit, Location::of_whole(block, tag), until);
        }
        for (page, commit, tag) in whole_records(shape.file_id, bytes) {
            self.note(page, commit, Location { block, tag, is_compressed: true }, until);
        }
    }

    fn note(&mut self, page: PageId, commit: CommitSeq, at: Location, until: CommitSeq) {
        if commit > until || !self.is_lost(page) {
            return;
        }
        let candidate = Candidate { commit, at };
        let known = self.candidates.entry(page).or_insert(candidate);
        if known.commit < commit {
            *known = candidate;
        }
    }

    /// Returns the place of a page, and whether the page table says so.
    ///
    /// # Errors
    /// `Corrupt` when no place is known.
    pub(super) fn location(&self, page: PageId) -> Result<(Location, bool)> {
        let (leaf, index) = (page.0 / self.per_leaf, (page.0 % self.per_leaf) as usize);
        if let Some(entries) = self.leaves.get(&leaf) {
            let at = entries.get(index).and_then(|word| Location::from_word(*word));
            return at.map(|at| (at, true)).ok_or_else(|| Error::corrupt_page(page, "the page table has no such page"));
        }
        match self.candidates.get(&page) {
            Some(candidate) => Ok((candidate.at, false)),
            None => Err(Error::corrupt_page(
                page,
                "the node of the page table that names it is lost, and the file has no whole copy of it",
            )),
        }
    }

    /// Returns all pages of which a place is known.
    pub(super) fn pages(&self) -> impl Iterator<Item = (PageId, Location)> + '_ {
        let of_leaf = |(leaf, entries): (&u64, &'_ Vec<u64>)| {
            let first = leaf * self.per_leaf;
            let pages = entries.iter().enumerate();
            pages
                .filter_map(move |(index, word)| Some((PageId(first + index as u64), Location::from_word(*word)?)))
                .collect::<Vec<_>>()
        };
        let mut found: Vec<_> = self.candidates.iter().map(|(page, candidate)| (*page, candidate.at)).collect();
        found.sort_unstable_by_key(|(_, at)| at.block);
        self.leaves.iter().flat_map(of_leaf).chain(found)
    }

    /// Returns the number of pages of which a place is known.
    pub(super) fn page_count(&self) -> u64 {
        let named: usize = self.leaves.values().map(|entries| entries.iter().filter(|word| **word != 0).count()).sum();
        (named + self.candidates.len()) as u64
    }
}

/// Creates the error of a database without a whole superblock.
pub(super) fn no_superblock(notes: &[String]) -> Error {
    Error::new(ErrorKind::Corrupt, format!("no superblock is whole: {}", notes.join("; ")))
}
