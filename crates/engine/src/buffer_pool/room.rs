//! Guarantees free blocks for pages in the data file: counts the promised ones, and grows the file.
//!
//! Pages are written only to allocated blocks that exist in the file (`Space` gives out no others). A commit is
//! admitted only while the free ones are at least as many as
//! 1. the dirty pages in memory, each of which takes one when it is written,
//! 2. the blocks set aside for commits under way, this one included ([`Room`]),
//! 3. the nodes of the page table, twice: for the checkpoint that may be under way, and for the next,
//! 4. and the reserve ([`RESERVE_BLOCKS`]), or where the commit makes room itself a small part of it.
//!
//! So eviction and checkpoints always find the blocks they need, also on a full disk. A checkpoint gives back the
//! blocks that the one before named and this one does not; deletes and dropped tables never make the database larger,
//! so with the reserve they can go on from checkpoint to checkpoint until there is room again.

use std::sync::Arc;

use nofault_io::aligned::{IoBuf, PageKind};
use nofault_io::completion::OpKind;
use nofault_io::error::ErrorKind as IoKind;

use super::write::WriteLane;
use super::{Books, Core};
use crate::error::{Error, Result};
use crate::format::{BlockId, entries_per_node, levels_for, nodes_on_level};
use crate::pages::{Claim, Room, RoomLedger};
use crate::space::GROUP_BLOCKS;

/// Blocks that ordinary commits leave free: 1 MiB with pages of 4 KiB. As many as compaction moves at a time, and more than a commit
/// that deletes a hundred rows changes.
pub(crate) const RESERVE_BLOCKS: u64 = GROUP_BLOCKS;
/// Blocks that nothing claims: for commits that change more pages than they claimed, as merging nodes may.
const MARGIN_BLOCKS: u64 = 32;
/// The file grows by at least this much at a time …
const GROW_BYTES: u64 = 8 << 20;
/// … and by this share of its size, up to so much: the file system does no other work for the file meanwhile, and the
/// bytes that it allocates before the disk is full stay allocated.
const GROW_SHARE: u64 = 16;
const GROW_BYTES_MAX: u64 = 64 << 20;
/// Bytes written at a time where the file system cannot allocate.
const ZERO_BYTES: usize = 1 << 20;
/// The action that errors name.
const GROW: &str = "grow the data file";

impl Core {
    /// Blocks promised to dirty pages, commits under way and page-table nodes, should there be so many more pages.
    fn promised_blocks(&self, books: &Books, more_pages: u64) -> u64 {
        self.frames.dirty_count() as u64 + books.claimed + 2 * self.nodes(books, more_pages)
    }

    /// Nodes that the page table has when there are so many more pages. Of a table with gaps only those that exist count, and as many
    /// as the pages that it does not name yet can add.
    fn nodes(&self, books: &Books, more_pages: u64) -> u64 {
        let page_bytes = self.frames.page_bytes();
        let pages = books.ids.end() + more_pages;
        let levels = levels_for(pages, page_bytes);
        let without_gaps: u64 = (0..levels).map(|level| nodes_on_level(pages, level, page_bytes)).sum();
        let unnamed = pages.saturating_sub(books.map.page_count()) + self.frames.dirty_count() as u64 + books.claimed;
        let added = unnamed.div_ceil(entries_per_node(page_bytes)) + 2 * u64::from(levels);
        without_gaps.min(books.map.node_count() + added)
    }

    /// Reserves blocks for this many pages, if there are so many. Does no I/O.
    pub(crate) fn claim_blocks(self: &Arc<Self>, pages: u64, claim: Claim) -> Option<Room> {
        let mut books = self.books();
        let kept = if claim == Claim::Ordinary { RESERVE_BLOCKS } else { MARGIN_BLOCKS };
        // Dirty pages are counted before free blocks are: one that is being written is counted twice rather than not at all.
        let promised = self.promised_blocks(&books, pages) + pages + kept;
        if promised > books.space.free_blocks() {
            return None;
        }
        books.claimed += pages;
        drop(books);
        Some(Room::of(Arc::clone(self) as Arc<dyn RoomLedger>, pages))
    }

    /// Returns the number of free blocks that are not promised. The reserve is among them.
    pub(crate) fn spare_blocks(&self) -> u64 {
        let books = self.books();
        // With the nodes for so many more pages as are moved at a time.
        let promised = self.promised_blocks(&books, GROUP_BLOCKS);
        books.space.free_blocks().saturating_sub(promised + MARGIN_BLOCKS)
    }

    /// Blocks kept free for deletes, dropped tables, compaction and the next checkpoints.
    pub(super) fn reserve_blocks(&self, books: &Books) -> u64 {
        RESERVE_BLOCKS + 2 * self.nodes(books, 0)
    }

    /// Grows the file by a step. Returns false when the disk is full, or the file is at its largest. Blocks.
    ///
    /// # Errors
    /// The error of the disk, but for being full.
    pub(crate) fn grow(&self) -> Result<bool> {
        self.grow_by(&mut self.writer())
    }

    /// Makes the blocks of the file's last, incomplete group exist, or counts them as used. Before anything is written. Blocks.
    ///
    /// # Errors
    /// As [`Core::grow`].
    pub(crate) fn complete_last_group(&self) -> Result<()> {
        let mut lane = self.writer();
        let page_bytes = self.frames.page_bytes() as u64;
        let (from, to) = (lane.file_bytes, self.books().space.end_block() * page_bytes);
        if from >= to || lane.extend(to)? {
            let backed = lane.file_bytes.max(to) / page_bytes;
            self.books().space.set_backed(backed);
            return Ok(());
        }
        let mut books = self.books();
        for block in from / page_bytes..to / page_bytes {
            // Used blocks were written, so they exist.
            let _ = books.space.mark_used(BlockId(block));
        }
        Ok(())
    }

    /// As [`Core::grow`], for a caller that holds the write lane.
    pub(super) fn grow_by(&self, lane: &mut WriteLane) -> Result<bool> {
        let page_bytes = self.frames.page_bytes() as u64;
        let group_bytes = page_bytes * GROUP_BLOCKS;
        let from = self.books().space.backed_end() * page_bytes;
        let room = self.books().space.blocks_max() * page_bytes - from;
        let mut step = (from / GROW_SHARE).clamp(GROW_BYTES, GROW_BYTES_MAX).next_multiple_of(group_bytes).min(room);
        while step >= group_bytes {
            if lane.extend(from + step)? {
                self.books().space.set_backed((from + step) / page_bytes);
                return Ok(true);
            }
            step = (step / 2).next_multiple_of(group_bytes).min(step - group_bytes);
        }
        Ok(false)
    }

    /// Allocates a block near each of these, for pages or nodes without a place. Grows the file where pages would otherwise go
    /// into small gaps. Returns `None` in place of a block where none is left.
    pub(super) fn place(
        &self,
        lane: &mut WriteLane,
        near: impl Iterator<Item = Option<BlockId>>,
    ) -> Result<Vec<Option<BlockId>>> {
        let mut may_grow = true;
        let mut books = self.books();
        let mut blocks = Vec::new();
        for near in near {
            if may_grow && books.space.is_cramped() {
                drop(books);
                let grown = self.grow_by(lane);
                books = self.books();
                match grown {
                    Ok(grown) => may_grow = grown,
                    Err(error) => {
                        blocks.into_iter().flatten().for_each(|block| books.space.give_back(block));
                        return Err(error);
                    }
                }
            }
            let block = match near {
                Some(near) => books.space.allocate_near(near),
                None => books.space.allocate(),
            };
            blocks.push(block.ok());
        }
        Ok(blocks)
    }
}

impl RoomLedger for Core {
    fn end_claim(&self, blocks: u64) {
        self.books().claimed -= blocks;
    }
}

impl WriteLane {
    /// Makes the file reach `end_bytes`, allocated. False when the disk has no room for that.
    ///
    /// # Errors
    /// Any other error of the disk.
    fn extend(&mut self, end_bytes: u64) -> Result<bool> {
        let from = self.file_bytes;
        if end_bytes <= from {
            return Ok(true);
        }
        if self.may_preallocate {
            match self.run(vec![(from, OpKind::Allocate { len_bytes: end_bytes - from })])?.remove(0) {
                Ok(()) => {
                    self.file_bytes = end_bytes;
                    return Ok(true);
                }
                Err(error) if matches!(error.kind(), IoKind::Unsupported | IoKind::InvalidCall) => {
                    self.may_preallocate = false;
                }
                Err(error) if error.kind() == IoKind::NoSpace => return Ok(false),
                Err(error) => return Err(Error::from_io(GROW, error)),
            }
        }
        // The file system cannot allocate: blocks exist once they are written.
        let failed = |error| Error::from_io(GROW, error);
        for offset in (from..end_bytes).step_by(ZERO_BYTES) {
            let len = (end_bytes - offset).min(ZERO_BYTES as u64) as usize;
            let zeroes = IoBuf::zeroed(len, PageKind::Small).map_err(failed)?;
            match self.run(vec![(offset, OpKind::write(zeroes, false))])?.remove(0) {
                Ok(()) => {}
                Err(error) if error.kind() == IoKind::NoSpace => return Ok(false),
                Err(error) => return Err(failed(error)),
            }
        }
        self.file_bytes = end_bytes;
        Ok(true)
    }
}
