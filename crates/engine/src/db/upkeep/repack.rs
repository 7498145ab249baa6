//! Makes the data file denser: repacks compressed pages where the blocks that they share are partly empty.
//!
//! Nothing of the content changes and nothing is logged; [`LooseMove`] moves the pages. The blocks that they leave are
//! free after a checkpoint, and `shrink` gives them back to the file system.
//!
//! Kept true by:
//! 1. A pass ends: it goes through the pages once.
//! 2. The file does not grow for it. When no block is free, a checkpoint frees those that the pass has emptied so far;
//!    if none is free then either, the pass ends.
//! 3. A pass that gained nothing is not repeated before the blocks have changed.
//!
//! Work that frees blocks and finds none on a full disk packs pages as tightly as possible first ([`Repacker::squeeze`]).

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::shrink::ShrinkEnding;
use crate::buffer_pool::{BufferPool, LooseMove, LooseStep, Relocator};
use crate::checkpoint::Checkpointer;
use crate::error::Result;
use crate::events;

/// Part of the blocks that could be saved from which on a pass is due, of a database in use and of an idle one: blocks
/// are emptied by the next changes anyway …
const EXCESS_IN_USE: f64 = 0.33;
const EXCESS_IDLE: f64 = 0.13;
/// … and fewest blocks.
const EXCESS_BLOCKS: f64 = 64.0;
/// Part of a block below which the rest of it is moved.
const LOOSE_IN_USE: f64 = 0.5;
const LOOSE_IDLE: f64 = 0.9;

/// The passes that repack compressed pages, counted since the database was opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PackingStats {
    /// Whether pages are being packed now.
    pub is_working: bool,
    /// Passes over the compressed pages.
    pub passes: u64,
    /// Pages moved to other blocks.
    pub pages_moved: u64,
    /// Blocks that these pages need less than before.
    pub blocks_saved: u64,
    /// The end of the last pass; `None` before the first.
    pub last_ending: Option<ShrinkEnding>,
}

/// Repacks the compressed pages of one database.
#[derive(Debug, Default)]
pub(in crate::db) struct Repacker {
    stats: Mutex<PackingStats>,
    /// The numbers of compressed pages and of their blocks after a pass without gain.
    fruitless: Mutex<Option<(u64, u64)>>,
    /// The same numbers after a squeeze without gain.
    squeezed: Mutex<Option<(u64, u64)>>,
}

impl Repacker {
    fn lock(&self) -> MutexGuard<'_, PackingStats> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fruitless(&self) -> MutexGuard<'_, Option<(u64, u64)>> {
        self.fruitless.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the statistics.
    pub(in crate::db) fn stats(&self) -> PackingStats {
        self.lock().clone()
    }

    /// Returns whether so many blocks could be saved that a pass is worth the work.
    pub(in crate::db) fn is_due(&self, pool: &BufferPool, is_idle: bool) -> bool {
        let (packed, totals) = {
            let metadata = pool.metadata().lock();
            (metadata.allocator.pages.packed(), metadata.allocator.pages.totals())
        };
        let share = if is_idle { EXCESS_IDLE } else { EXCESS_IN_USE };
        packed.excess() >= (packed.blocks as f64 * share).max(EXCESS_BLOCKS) && *self.fruitless() != Some(totals)
    }

    /// Goes through the compressed pages once. Calls `rest` after each piece with the time that it took and the pages
    /// that it moved; `false` ends the work. To be called after a checkpoint. Blocks.
    ///
    /// # Errors
    /// As [`Relocator::defragment`] and [`Checkpointer::checkpoint`].
    pub(in crate::db) fn repack(
        &self,
        (pool, checkpointer): (&BufferPool, &Checkpointer),
        relocator: &mut Relocator,
        is_idle: bool,
        rest: &mut dyn FnMut(Duration, u64) -> bool,
    ) -> Result<ShrinkEnding> {
        let pass = || self.repack_once((pool, checkpointer), relocator, is_idle, rest);
        let (outcome, ending, _) = events::compaction("pack", pass, |(_, ending, moved)| (ending.clone(), *moved));
        outcome.map(|_| ending)
    }

    /// Goes through the compressed pages as [`Repacker::repack`]. Returns the outcome, the ending, and the number of pages moved.
    fn repack_once(
        &self,
        (pool, checkpointer): (&BufferPool, &Checkpointer),
        relocator: &mut Relocator,
        is_idle: bool,
        rest: &mut dyn FnMut(Duration, u64) -> bool,
    ) -> (Result<bool>, ShrinkEnding, u64) {
        let (before, moved) = {
            let mut stats = self.lock();
            (stats.is_working, stats.passes) = (true, stats.passes + 1);
            (stats.blocks_saved, stats.pages_moved)
        };
        let outcome = self.pass(checkpointer, relocator, is_idle, rest);
        let ending = match &outcome {
            Ok(true) if self.lock().blocks_saved > before => ShrinkEnding::Done,
            Ok(true) => ShrinkEnding::NoGain,
            Ok(false) => ShrinkEnding::Cancelled,
            Err(error) => ShrinkEnding::Failed(error.to_string()),
        };
        let is_fruitless = ending == ShrinkEnding::NoGain;
        *self.fruitless() = is_fruitless.then(|| pool.metadata().lock().allocator.pages.totals());
        let mut stats = self.lock();
        (stats.is_working, stats.last_ending) = (false, Some(ending.clone()));
        (outcome, ending, stats.pages_moved - moved)
    }

    /// Packs compressed pages into as few blocks as possible, with the blocks kept for this, until `is_enough`
    /// says so or all were looked at. Returns the number of blocks free now. To be called after a checkpoint,
    /// when the disk is full. Reads every block with compressed pages at the most. Blocks.
    ///
    /// # Errors
    /// As [`Relocator::defragment`] and [`Checkpointer::checkpoint`].
    pub(in crate::db) fn squeeze(
        &self,
        (pool, checkpointer): (&BufferPool, &Checkpointer),
        relocator: &mut Relocator,
        is_enough: &dyn Fn() -> bool,
    ) -> Result<u64> {
        let totals = || pool.metadata().lock().allocator.pages.totals();
        let mut squeezed = self.squeezed.lock().unwrap_or_else(PoisonError::into_inner);
        if *squeezed == Some(totals()) {
            return Ok(0);
        }
        let (mut tight, mut saved, mut is_whole) = (LooseMove::tight(), 0, true);
        while let Some(step) = checkpointer.move_loose(relocator, &mut tight)? {
            self.note(&step);
            saved += step.saved;
            if !step.is_full {
                continue;
            }
            let may_go_on = relocator.has_pending();
            if may_go_on {
                checkpointer.checkpoint()?;
                relocator.checkpoint_made();
            }
            if !may_go_on || is_enough() {
                is_whole = false;
                break;
            }
        }
        if relocator.has_pending() {
            checkpointer.checkpoint()?;
            relocator.checkpoint_made();
        }
        *squeezed = (is_whole && saved == 0).then(totals);
        Ok(saved)
    }

    /// Counts the outcome of a step.
    fn note(&self, step: &LooseStep) {
        let mut stats = self.lock();
        stats.pages_moved += step.moved;
        stats.blocks_saved += step.saved;
    }

    /// Returns false when the work was cancelled.
    fn pass(
        &self,
        checkpointer: &Checkpointer,
        relocator: &mut Relocator,
        is_idle: bool,
        rest: &mut dyn FnMut(Duration, u64) -> bool,
    ) -> Result<bool> {
        let mut loose = LooseMove::new(if is_idle { LOOSE_IDLE } else { LOOSE_IN_USE });
        let mut since = Instant::now();
        while let Some(step) = checkpointer.move_loose(relocator, &mut loose)? {
            self.note(&step);
            if step.is_full && !relocator.has_pending() {
                break;
            }
            if step.is_full || relocator.wants_checkpoint() {
                checkpointer.checkpoint()?;
                relocator.checkpoint_made();
            }
            if !rest(since.elapsed(), step.moved) {
                return Ok(false);
            }
            since = Instant::now();
        }
        if relocator.has_pending() {
            checkpointer.checkpoint()?;
            relocator.checkpoint_made();
        }
        Ok(true)
    }
}
