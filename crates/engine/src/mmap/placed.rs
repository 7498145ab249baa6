//! The places of pages in a file that is never overwritten (`MappedLog`): a table from page to block, and the free
//! blocks.
//!
//! The table is the engine's: the same words, the same nodes on disk. In memory all of it is one array, which readers
//! load from without a lock. A checkpoint writes the nodes that changed and returns the root, which the meta page
//! names.
//!
//! Kept true by:
//! 1. A block is written only while no durable checkpoint and no reader can reach it. A block of the checkpoint before
//!    is *retired* when its page is written elsewhere, and free once the next checkpoint is durable. No reader has it
//!    then: a version is placed only when every reader finds it, or a newer one, outside the map, until the table leads
//!    to it (`logged`).
//! 2. Blocks never run out before pages do: a page has at most one block in the durable checkpoint, one in the
//!    checkpoint that is being made and a newer one. The file is long enough for that, and the unused part takes no
//!    space.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::file::DataFile;
use super::lock;
use super::meta::META_PAGES;
use super::shape::Shape;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{
    BlockId, CommitSeq, HEADER_BYTES, Location, NodeId, PAGE_BYTES_MAX, PageId, Tag, decode_node, encode_node,
    entries_per_node, levels_for, node_location, nodes_on_level,
};

/// Most pages in one write.
const RUN_PAGES_MAX: usize = 64;

/// The locations of pages in a file where pages move: see the module.
pub(super) struct PlacedPages {
    shape: Shape,
    /// The location of each page, by page id; zero for a page that was never written.
    words: Box<[AtomicU64]>,
    accounts: Mutex<BlockAccounts>,
}

/// Block accounting: the free, fresh and retired blocks, and the nodes of the table.
#[derive(Debug, Default)]
struct BlockAccounts {
    /// Unused blocks below `end`.
    free: BTreeSet<u64>,
    /// End of the used blocks: no block from here on was ever used.
    end: u64,
    /// Number of blocks in the file.
    limit: u64,
    /// Blocks written since the last checkpoint began: no durable table refers to them.
    fresh: HashSet<u64>,
    /// Blocks replaced since the last checkpoint began: that checkpoint still needs them.
    retired: Vec<u64>,
    /// Leaves of the table that changed since the last checkpoint began.
    changed: BTreeSet<u64>,
    /// The locations of the table's nodes.
    nodes: BTreeMap<NodeId, Location>,
}

/// A page table that was written and is not durable yet.
#[derive(Debug)]
#[must_use = "to be given to `PlacedPages::made_durable` when its meta page is"]
pub(super) struct Snapshot {
    /// The location of the table's root as a word, for the meta page.
    pub(super) root: u64,
    /// Blocks that only the previous checkpoint needs.
    retired: Vec<u64>,
}

impl BlockAccounts {
    /// Takes the `count` lowest unused blocks, in order.
    fn take(&mut self, count: usize) -> Result<Vec<u64>> {
        let mut taken = Vec::with_capacity(count);
        while taken.len() < count {
            taken.push(match self.free.pop_first() {
                Some(block) => block,
                None if self.end < self.limit => {
                    self.end += 1;
                    self.end - 1
                }
                None => return Err(Error::new(ErrorKind::Bug, "the file has fewer blocks than its pages need")),
            });
        }
        Ok(taken)
    }

    fn release(&mut self, block: u64) {
        if self.fresh.remove(&block) {
            self.free.insert(block);
        } else {
            self.retired.push(block);
        }
    }
}

/// Returns the file size for so many bytes of pages: see the module.
pub(super) fn file_bytes(page_bytes: usize, map_bytes: u64) -> u64 {
    let pages = map_bytes / page_bytes as u64;
    let nodes: u64 = (0..levels_for(pages, page_bytes)).map(|level| nodes_on_level(pages, level, page_bytes)).sum();
    let blocks = META_PAGES + 3 * (pages + nodes) + RUN_PAGES_MAX as u64;
    (blocks * page_bytes as u64).next_multiple_of(PAGE_BYTES_MAX as u64)
}

impl PlacedPages {
    /// Creates the locations of a file without pages.
    pub(super) fn empty(shape: Shape) -> Self {
        let limit = file_bytes(shape.page_bytes, shape.pages_max * shape.page_bytes as u64) / shape.page_bytes as u64;
        let accounts = BlockAccounts { end: META_PAGES, limit, ..BlockAccounts::default() };
        Self { shape, words: (0..shape.pages_max).map(|_| AtomicU64::new(0)).collect(), accounts: Mutex::new(accounts) }
    }

    /// Opens the table of a file with the root `root` in its meta page.
    ///
    /// # Errors
    /// `Corrupt` when the table is damaged, or leads twice to one block.
    pub(super) fn open(shape: Shape, data: &DataFile, root: u64) -> Result<Self> {
        let placed = Self::empty(shape);
        let damaged = |what: String| Error::new(ErrorKind::Corrupt, format!("the table of pages {what}"));
        let (page_bytes, pages) = (shape.page_bytes, shape.pages_max);
        let (levels, entries) = (levels_for(pages, page_bytes), entries_per_node(page_bytes));
        let mut accounts = lock(&placed.accounts);
        let mut used = BTreeSet::new();
        let limit = accounts.limit;
        let mut take = |word: u64| {
            let at = Location::from_word(word).filter(|at| !at.is_compressed);
            let at = at.ok_or_else(|| damaged(format!("has {word:#x} for a location")))?;
            if !(META_PAGES..limit).contains(&at.block.0) || !used.insert(at.block.0) {
                return Err(damaged(format!("leads to block {} twice, or beyond the file", at.block.0)));
            }
            Ok(at)
        };
        let mut todo = vec![(NodeId { level: levels.saturating_sub(1), index: 0 }, take(root)?)];
        let mut image = vec![0; page_bytes];
        while let Some((node, at)) = todo.pop() {
            data.read_at(&mut image, at.block.0 * page_bytes as u64)?;
            accounts.nodes.insert(node, at);
            for (word, number) in decode_node(shape.file_id, node, at, &image)?.into_iter().zip(0..) {
                if word == 0 {
                    continue;
                }
                let (below, location) = (node.index * entries + number, take(word)?);
                let below_max = if node.level == 0 { pages } else { nodes_on_level(pages, node.level - 1, page_bytes) };
                if below >= below_max {
                    return Err(damaged(format!("has an entry {below} of {below_max} below level {}", node.level)));
                }
                if node.level == 0 {
                    placed.words[below as usize].store(word, Ordering::Relaxed);
                } else {
                    todo.push((NodeId { level: node.level - 1, index: below }, location));
                }
            }
        }
        accounts.end = used.last().map_or(META_PAGES, |last| last + 1);
        accounts.free = (META_PAGES..accounts.end).filter(|block| !used.contains(block)).collect();
        drop(accounts);
        Ok(placed)
    }

    /// Returns the location of a page; `None` for a page that was never written.
    pub(super) fn find(&self, id: PageId) -> Option<Location> {
        Location::from_word(self.words.get(usize::try_from(id.0).ok()?)?.load(Ordering::Acquire))
    }

    fn place(&self, accounts: &mut BlockAccounts, id: PageId, at: Location) {
        let word = self.words[id.0 as usize].swap(at.to_word(), Ordering::AcqRel);
        accounts.fresh.insert(at.block.0);
        accounts.changed.insert(id.0 / entries_per_node(self.shape.page_bytes));
        if let Some(old) = Location::from_word(word) {
            accounts.release(old.block.0);
        }
    }

    fn tag_of(&self, image: &[u8]) -> Tag {
        // Without checksums the tag is not compared with anything.
        if self.shape.checksums { Tag::of_page(image) } else { Tag::from_bits(0) }
    }

    /// Writes versions of pages of this file, sorted by page id, to unused blocks; readers find them there when it
    /// returns. One caller at a time.
    pub(super) fn write(&self, data: &DataFile, pages: &[(PageId, CommitSeq, Arc<[u8]>)]) -> Result<()> {
        let page_bytes = self.shape.page_bytes;
        for part in pages.chunks(RUN_PAGES_MAX) {
            let blocks = lock(&self.accounts).take(part.len())?;
            let (mut run, mut start) = (Vec::new(), 0);
            for (block, (_, _, page)) in blocks.iter().zip(part) {
                if *block != start + (run.len() / page_bytes) as u64 {
                    data.write_at(&run, start * page_bytes as u64)?;
                    run.clear();
                }
                if run.is_empty() {
                    start = *block;
                }
                run.extend_from_slice(page);
            }
            data.write_at(&run, start * page_bytes as u64)?;
            let mut accounts = lock(&self.accounts);
            for (block, (id, _, page)) in blocks.into_iter().zip(part) {
                self.place(&mut accounts, *id, Location::of_whole(BlockId(block), self.tag_of(page)));
            }
        }
        Ok(())
    }

    /// During replay: returns a block for the page that no checkpoint leads to, with the page's content. Later calls
    /// for the page return the same block.
    pub(super) fn own(&self, data: &DataFile, id: PageId) -> Result<u64> {
        let (mut accounts, old) = (lock(&self.accounts), self.find(id));
        if let Some(at) = old.filter(|at| accounts.fresh.contains(&at.block.0)) {
            return Ok(at.block.0);
        }
        let mut image = vec![0; self.shape.page_bytes];
        if let Some(at) = old {
            // Not verified: the checksum that comes with the record belongs to the right page.
            data.read_at(&mut image, at.block.0 * self.shape.page_bytes as u64)?;
        }
        let block = accounts.take(1)?[0];
        data.write_at(&image, block * image.len() as u64)?;
        self.place(&mut accounts, id, Location::of_whole(BlockId(block), Tag::from_bits(0)));
        Ok(block)
    }

    /// Updates the tags of the changed pages after a replay, from the page versions in the file.
    pub(super) fn retag(&self, data: &DataFile, ids: &BTreeSet<PageId>) -> Result<()> {
        for id in ids {
            let Some(Location { block, .. }) = self.find(*id) else { continue };
            let mut header = [0; HEADER_BYTES];
            data.read_at(&mut header, block.0 * self.shape.page_bytes as u64)?;
            let at = Location::of_whole(block, self.tag_of(&header));
            self.words[id.0 as usize].store(at.to_word(), Ordering::Release);
        }
        Ok(())
    }

    /// Writes the changed nodes of the table. No [`PlacedPages::write`] may run at the same time; later writes belong to the
    /// next snapshot.
    pub(super) fn snapshot(&self, data: &DataFile) -> Result<Snapshot> {
        let (page_bytes, pages) = (self.shape.page_bytes, self.shape.pages_max);
        let (levels, entries) = (levels_for(pages, page_bytes), entries_per_node(page_bytes));
        let mut accounts = lock(&self.accounts);
        let mut changed = std::mem::take(&mut accounts.changed);
        let mut image = vec![0; page_bytes];
        for level in 0..levels {
            let mut above = BTreeSet::new();
            for index in changed {
                let below = index * entries..(index + 1) * entries;
                let words: Vec<u64> = match level {
                    0 => below.take_while(|at| *at < pages).map(|at| self.word(at)).collect(),
                    _ => below.map(|index| accounts.node_word(NodeId { level: level - 1, index })).collect(),
                };
                let node = NodeId { level, index };
                let checksum = encode_node(self.shape.file_id, node, words.into_iter(), &mut image);
                let block = accounts.take(1)?[0];
                data.write_at(&image, block * page_bytes as u64)?;
                if let Some(old) = accounts.nodes.insert(node, node_location(BlockId(block), checksum)) {
                    accounts.retired.push(old.block.0);
                }
                above.insert(index / entries);
            }
            changed = above;
        }
        accounts.fresh.clear();
        let root = accounts.node_word(NodeId { level: levels.saturating_sub(1), index: 0 });
        Ok(Snapshot { root, retired: std::mem::take(&mut accounts.retired) })
    }

    fn word(&self, at: u64) -> u64 {
        self.words[at as usize].load(Ordering::Acquire)
    }

    /// Frees the retired blocks of a snapshot: the meta page naming it is durable, so the checkpoint before is not
    /// needed any more.
    pub(super) fn made_durable(&self, snapshot: Snapshot) {
        lock(&self.accounts).free.extend(snapshot.retired);
    }

    /// Checks that every block has exactly one use. No [`PlacedPages::write`] and no snapshot may run at the same time.
    ///
    /// # Errors
    /// `Bug` for a block with two uses, or with none.
    pub(super) fn check(&self) -> Result<()> {
        let accounts = lock(&self.accounts);
        let pages = (0..self.shape.pages_max).filter_map(|id| self.find(PageId(id)));
        let in_use = pages.chain(accounts.nodes.values().copied()).map(|at| at.block.0);
        let all =
            in_use.chain(accounts.free.iter().copied()).chain(accounts.retired.iter().copied()).chain(0..META_PAGES);
        let mut sorted: Vec<u64> = all.collect();
        sorted.sort_unstable();
        if sorted.iter().copied().eq(0..accounts.end) {
            return Ok(());
        }
        let wrong = sorted.iter().zip(0..).find(|(block, at)| *block != at).map_or(sorted.len() as u64, |(_, at)| at);
        Err(Error::new(ErrorKind::Bug, format!("block {wrong} of the mapped file is lost, or used twice")))
    }
}

impl BlockAccounts {
    fn node_word(&self, node: NodeId) -> u64 {
        self.nodes.get(&node).map_or(0, |at| at.to_word())
    }
}
