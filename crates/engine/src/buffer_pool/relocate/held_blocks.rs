//! Holds the blocks from which pages are moved. A block that no checkpoint names is free with its page, so without the
//! hold a page that changes during the move could leave its block to another page, or to another version of itself.

use std::sync::Arc;

use crate::budget::Budget;
use crate::buffer_pool::versions::Versions;
use crate::format::{BlockId, Location, PageId};

/// Number of holds of blocks ended during one hold of the lock, and the steps of a `Budget` for each.
const UNHELD_AT_ONCE: usize = 128;
const STEPS_A_HOLD: usize = 4;

/// Blocks that are not reused until this is dropped.
pub(in crate::buffer_pool) struct HeldBlocks {
    versions: Arc<Versions>,
    blocks: Vec<BlockId>,
}

impl HeldBlocks {
    /// Holds the blocks of these pages' newest versions, as far as they are on disk and `wanted`. Returns these pages
    /// with their locations.
    pub(in crate::buffer_pool) fn of_pages(
        versions: &Arc<Versions>,
        pages: impl Iterator<Item = PageId>,
        wanted: impl Fn(Location) -> bool,
    ) -> (Self, Vec<(PageId, Location)>) {
        let mut held = Self { versions: Arc::clone(versions), blocks: Vec::new() };
        let mut found = Vec::new();
        for page in pages {
            let Some(at) = versions.pages().places().hold_on_disk(page) else { continue };
            held.blocks.push(at.block);
            if wanted(at) {
                found.push((page, at));
            }
        }
        (held, found)
    }
}

impl Drop for HeldBlocks {
    fn drop(&mut self) {
        for blocks in self.blocks.chunks(UNHELD_AT_ONCE) {
            let mut budget = Budget::new();
            budget.spend(STEPS_A_HOLD * blocks.len());
            let mut metadata = self.versions.metadata().lock();
            blocks.iter().for_each(|block| metadata.allocator.unhold(*block));
        }
    }
}

/// Returns the number of blocks in which the pages lie, and the number of runs of consecutive blocks that they form, in
/// any order.
pub(super) fn blocks_and_fragments(pages: &[(PageId, Location)]) -> (u64, u64) {
    let mut blocks: Vec<u64> = pages.iter().map(|(_, at)| at.block.0).collect();
    blocks.sort_unstable();
    blocks.dedup();
    (blocks.len() as u64, blocks.chunk_by(|block, next| block + 1 == *next).count() as u64)
}
