//! The compressed tier: blocks of compressed pages that stay in memory, in frames of the pool. A miss of a page whose
//! block is here costs a decompression, and no read.
//!
//! It says which frame holds a block, whether blocks have a share of the frames ([`share`]), and which blocks are added and
//! evicted. While they have a share, each block is added that an operation had to wait for. They are evicted by a clock, as
//! pages are. The memory belongs to `frames`.
//!
//! Kept true by:
//! 1. A block is added by the read that brought it, under the lock of a page's shard, while a version of that page lies
//!    in the block ([`PageTable::end_read`](super::page_table::PageTable::end_read)). So the block is in use then.
//! 2. A block in use no more is written again only after [`CompressedTier::forget`] was called for it
//!    (`write`), and no location names its new content before the write has ended. As the last version in it died under
//!    the lock of 1, that call sees each addition of the old content. So a location never leads to older bytes than its
//!    own. (If it did, the page's tag and checksum would say so in all but one of four million cases.)
//! 3. The number of a frame is removed from the index once, and is retired then: a thread that found it under an epoch
//!    guard reads it undisturbed until the guard is dropped.
//!
//! Until an operation waits for a compressed page for the first time there is nothing here but an empty cell.

mod block_index;
mod share;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use self::block_index::{BlockIndex, Found};
pub(super) use self::share::Need;
use self::share::TierShare;
use super::frames::{Frames, OwnedFrame};
use crate::format::{BlockId, Location, PageId};
use crate::settings::TierUse;
use crate::sync::budget::Budget;

/// Number of frames without a block that the hand passes for one step of a `Budget`: their counts share a cache line.
const PASSED_A_STEP: usize = 64;
/// Steps of a `Budget` that looking at the frame of a block spends.
const STEPS_A_BLOCK: usize = 2;

/// The blocks in memory.
#[derive(Debug)]
pub(super) struct CompressedTier {
    tier_use: TierUse,
    state: OnceLock<Box<State>>,
}

#[derive(Debug)]
struct State {
    index: BlockIndex,
    share: TierShare,
    /// The clock's hand: the number of the frame that it inspects next, plus a multiple of their count.
    hand: AtomicUsize,
    blocks: AtomicUsize,
    restored: AtomicU64,
    added: AtomicU64,
    evicted: AtomicU64,
    forgotten: AtomicU64,
}

/// Counts of the tier, as [`PoolStats`](super::PoolStats) has them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct TierStats {
    pub(super) blocks: u64,
    pub(super) blocks_wanted: u64,
    pub(super) restored: u64,
    pub(super) added: u64,
    pub(super) evicted: u64,
    pub(super) forgotten: u64,
    pub(super) memory_bytes: u64,
}

impl State {
    fn new(frames: &Frames, tier_use: TierUse) -> Box<Self> {
        Box::new(Self {
            index: BlockIndex::new(frames.count()),
            share: TierShare::new(frames.count(), frames.limits().kept_free(), tier_use),
            hand: AtomicUsize::new(0),
            blocks: AtomicUsize::new(0),
            restored: AtomicU64::new(0),
            added: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            forgotten: AtomicU64::new(0),
        })
    }

    fn found(&self, frames: &Frames, block: BlockId) -> impl Iterator<Item = Found<'_>> {
        let holds = move |frame: u32| frames.frame(frame).disk().is_some_and(|at| at.block == block);
        self.index.candidates(block).filter(move |found| holds(found.frame))
    }

    fn blocks_wanted(&self, frames: &Frames) -> usize {
        self.share.blocks_wanted(frames.limits().changed_count())
    }

    /// Removes the frame of a block from the index. Returns whether this call removed it; the frame is to be retired then.
    fn remove(&self, found: Found<'_>) -> bool {
        let is_removed = found.remove();
        if is_removed {
            self.blocks.fetch_sub(1, Ordering::Relaxed);
        }
        is_removed
    }
}

impl CompressedTier {
    pub(super) fn new(tier_use: TierUse) -> Self {
        Self { tier_use, state: OnceLock::new() }
    }

    fn state(&self) -> Option<&State> {
        self.state.get().map(|state| &**state)
    }

    /// Returns the number of blocks in memory.
    pub(super) fn block_count(&self) -> usize {
        self.state().map_or(0, |state| state.blocks.load(Ordering::Relaxed))
    }

    /// Returns by how many blocks the tier exceeds its share of the frames.
    pub(super) fn surplus(&self, frames: &Frames) -> usize {
        self.state().map_or(0, |state| self.block_count().saturating_sub(state.blocks_wanted(frames)))
    }

    /// Returns the frame holding a block. The caller pinned an epoch guard before, and reads the frame only under it.
    pub(super) fn find(&self, frames: &Frames, block: BlockId) -> Option<u32> {
        self.state()?.found(frames, block).next().map(|found| found.frame)
    }

    /// Returns whether the block could be added now: it is not here yet, and the index has room for it.
    pub(super) fn takes(&self, frames: &Frames, block: BlockId) -> bool {
        self.state().is_some_and(|state| state.found(frames, block).next().is_none() && state.index.has_room(block))
    }

    /// Adds a block that was read. Returns the frame, to be retired, when the index has no room for it. The caller holds
    /// the lock of the shard of a page that lies in the block.
    pub(super) fn add(&self, frames: &Frames, block: BlockId, owned: OwnedFrame) -> Option<u32> {
        let Some(state) = self.state() else { return Some(frames.publish_block(owned, block)) };
        let frame = frames.publish_block(owned, block);
        // Counted before it can be found, so that no removal makes the count negative.
        state.blocks.fetch_add(1, Ordering::Relaxed);
        if state.index.insert(block, frame) {
            state.added.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        state.blocks.fetch_sub(1, Ordering::Relaxed);
        Some(frame)
    }

    /// Removes a block, because it is about to be written or its bytes are wrong. Returns its frames, to be retired:
    /// usually none or one, but two threads may have added it at once.
    pub(super) fn forget(&self, frames: &Frames, block: BlockId) -> Vec<u32> {
        let Some(state) = self.state() else { return Vec::new() };
        let removed = state.found(frames, block).filter(|found| state.remove(*found));
        let removed: Vec<u32> = removed.map(|found| found.frame).collect();
        state.forgotten.fetch_add(removed.len() as u64, Ordering::Relaxed);
        removed
    }

    /// Removes up to `most` blocks: those that were not used since the hand passed them last, or any if `also_used` is
    /// set. Bounded work; waits for no lock. Returns their frames, to be retired.
    pub(super) fn evict(&self, frames: &Frames, most: usize, also_used: bool) -> Vec<u32> {
        let Some(state) = self.state().filter(|_| most > 0) else { return Vec::new() };
        let (mut evicted, mut budget) = (Vec::new(), Budget::new());
        let mut passed = 0;
        while evicted.len() < most && !budget.is_spent() && self.block_count() > 0 {
            let index = (state.hand.fetch_add(1, Ordering::Relaxed) % frames.count()) as u32;
            if !frames.usage().is_block(index) {
                passed += 1;
                budget.spend(usize::from(passed % PASSED_A_STEP == 0));
                continue;
            }
            budget.spend(STEPS_A_BLOCK);
            if !frames.usage().lower(index) && !also_used {
                continue;
            }
            let Some(at) = frames.frame(index).disk() else { continue };
            let found = state.index.candidates(at.block).find(|found| found.frame == index);
            if found.is_some_and(|found| state.remove(found)) {
                evicted.push(index);
            }
        }
        state.evicted.fetch_add(evicted.len() as u64, Ordering::Relaxed);
        evicted
    }

    /// Notes that a page was restored from a block.
    pub(super) fn note_restored(&self, page: PageId, block: BlockId, need: Need) {
        let Some(state) = self.state() else { return };
        state.restored.fetch_add(1, Ordering::Relaxed);
        if need != Need::Later {
            state.share.note_restored(page, block, need);
        }
    }

    /// Notes that an operation must wait for the read of a page. Returns whether its block is to be added then.
    pub(super) fn note_read(&self, frames: &Frames, page: PageId, at: Location, need: Need) -> bool {
        let state = match self.tier_use {
            TierUse::Never => None,
            _ if at.is_compressed => Some(&**self.state.get_or_init(|| State::new(frames, self.tier_use))),
            _ => self.state(),
        };
        let Some(state) = state else { return false };
        state.share.note_read(page, at.block, at.is_compressed, need);
        at.is_compressed && state.blocks_wanted(frames) > 0
    }

    /// Notes that the calling thread has waited so long for the read of a compressed page.
    pub(super) fn note_wait(&self, time: Duration) {
        if let Some(state) = self.state() {
            state.share.costs().note_wait(time);
        }
    }

    /// Notes that the device took so long from one completed read to the next.
    pub(super) fn note_pace(&self, time: Duration) {
        if let Some(state) = self.state() {
            state.share.costs().note_pace(time);
        }
    }

    /// Notes that the decompression of a page has taken so long.
    pub(super) fn note_decompression(&self, time: Duration) {
        if let Some(state) = self.state() {
            state.share.costs().note_decompression(time);
        }
    }

    /// Notes that pages were evicted from these frames.
    pub(super) fn note_evicted_pages(&self, frames: &Frames, evicted: &[u32]) {
        let Some(state) = self.state() else { return };
        let facts = evicted.iter().map(|index| frames.frame(*index));
        state.share.note_evicted(facts.filter_map(|frame| Some((frame.page(), frame.disk()?.block))));
    }

    /// Returns the number of blocks evicted since the pool was opened.
    pub(super) fn evicted_count(&self) -> u64 {
        self.state().map_or(0, |state| state.evicted.load(Ordering::Relaxed))
    }

    pub(super) fn stats(&self, frames: &Frames) -> TierStats {
        let Some(state) = self.state() else { return TierStats::default() };
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        TierStats {
            blocks: self.block_count() as u64,
            blocks_wanted: state.blocks_wanted(frames) as u64,
            restored: get(&state.restored),
            added: get(&state.added),
            evicted: get(&state.evicted),
            forgotten: get(&state.forgotten),
            memory_bytes: size_of::<State>() as u64 + state.index.memory_bytes() + state.share.memory_bytes(),
        }
    }
}

#[cfg(test)]
mod tests;
