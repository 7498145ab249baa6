//! Compaction: lists the pages of each table in key order and moves scattered pages next to each other.
//! `buffer_pool::relocate` describes how a page is moved without readers noticing.
//!
//! The leaves below one parent after the other, and the pages of values that leaves refer to, are looked up in short
//! snapshots and passed on as page numbers. When they are moved, some may already be freed or belong to another table:
//! that costs a part of the gain but does no harm, as a page may lie next to any other. So no snapshot or pin is held
//! during a move.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::{Db, TheCore, thread};
use crate::btree::{Direction, Tree};
use crate::buffer_pool::{self, RelocationOutcome, Relocator};
use crate::codec::Compression;
use crate::driver::block_on;
use crate::error::{ErrorKind, Result};
use crate::format::{PageId, TableId};
use crate::pages::{Pages as _, Snapshot as _, Store as _};
use crate::shrink::ShrinkProgress;

#[cfg(test)]
mod tests;

/// Most times that compaction retries one inner node before it leaves the table as it is.
const LOOKS_MAX: usize = 4;

/// How much of the device's time a compaction may take.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
/// # let stock = db.create_table("stock")?;
/// use nofault::db::Pace;
///
/// db.compact(Pace::default(), |_| true)?;
/// assert_eq!(Pace::default(), Pace::Gentle);
/// # Ok::<(), nofault::error::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pace {
    /// Uses a quarter of the device's time: after each megabyte the compaction pauses three times as long as the move
    /// took. For databases in use.
    #[default]
    Gentle,
    /// Never pauses: for a database without other users.
    Full,
}

/// The progress of a compaction.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
/// # let stock = db.create_table("stock")?;
/// let done = db.compact(nofault::db::Pace::Full, |so_far| so_far.pages_moved < 100_000)?;
/// println!("{} of {} pages moved: {} fragments are now {}", done.pages_moved, done.pages, done.fragments_before, done.fragments_after);
/// # Ok::<(), nofault::error::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Compaction {
    /// Number of tables that were compacted to their end.
    pub tables: u64,
    /// Number of pages examined: leaves, and pages of values.
    pub pages: u64,
    /// Number of pages that were moved next to their neighbours in key order.
    pub pages_moved: u64,
    /// Number of pages that were moved out of the way first, where too few free blocks followed each other. They need
    /// not be among the pages looked at, and may be moved beside their neighbours later.
    pub pages_evacuated: u64,
    /// Number of pages that should have been moved and stayed, because no free blocks follow each other within the
    /// file's bound.
    pub pages_without_free_blocks: u64,
    /// Number of fragments in which the examined pages lay before, counted for each list of about a megabyte.
    pub fragments_before: u64,
    /// Number of fragments in which the examined pages lie afterwards.
    pub fragments_after: u64,
    /// Number of leaves that were freed because their entries were merged into neighbours.
    pub leaves_merged: u64,
    /// Pages that were moved from the end of the data file to free blocks before it.
    pub pages_moved_from_end: u64,
    /// Bytes of the end of the data file that were given back to the file system.
    pub bytes_given_back: u64,
}

impl Compaction {
    fn add(&mut self, of_list: RelocationOutcome) {
        self.pages += of_list.pages;
        self.pages_moved += of_list.moved;
        self.pages_without_free_blocks += of_list.without_free_blocks;
        self.fragments_before += of_list.fragments_before;
        self.fragments_after += of_list.fragments_after;
    }
}

/// Asks the compaction to end when this is dropped; the future of the caller owns it.
#[derive(Debug, Default)]
pub(super) struct CancelOnDrop(CancelFlag);

/// The flag that `CancelOnDrop` sets and the compacting thread checks.
#[derive(Debug, Clone, Default)]
pub(super) struct CancelFlag(Arc<AtomicBool>);

impl CancelOnDrop {
    pub(super) fn flag(&self) -> CancelFlag {
        self.0.clone()
    }
}

impl CancelFlag {
    pub(super) fn goes_on(&self) -> bool {
        !self.0.load(Ordering::Relaxed)
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}

/// A compaction in progress.
struct CompactionRun<'a> {
    db: &'a Db,
    relocator: Relocator,
    pace: Pace,
    found: Compaction,
    go_on: &'a mut dyn FnMut(&Compaction) -> bool,
    /// Whether groups of blocks may still be emptied: so far doing so has produced free runs.
    may_empty: bool,
    /// Leaves in key order, collected until the list is long enough to be relocated.
    leaves: Vec<PageId>,
    values: Vec<PageId>,
}

/// A kind of compaction: [`compact`] or [`shrink`].
type Kind = fn(&Db, Pace, &mut dyn FnMut(&Compaction) -> bool) -> Result<Compaction>;

/// Runs a compaction on a thread of its own. It ends when the future is dropped.
pub(super) async fn on_a_thread(
    db: Db,
    kind: Kind,
    pace: Pace,
    mut go_on: impl FnMut(&Compaction) -> bool + Send + 'static,
) -> Result<Compaction> {
    let cancel = CancelOnDrop::default();
    let flag = cancel.flag();
    let mut go_on = move |so_far: &Compaction| flag.goes_on() && go_on(so_far);
    thread::run("nofault-compact", move || kind(&db, pace, &mut go_on)).await?
}

/// Compacts a database, as [`Db::compact`] documents. Blocks.
pub(crate) fn compact(db: &Db, pace: Pace, go_on: &mut dyn FnMut(&Compaction) -> bool) -> Result<Compaction> {
    let mut run = CompactionRun::begin(db, pace, go_on)?;
    let names = block_on(db.snapshot().table_names())?;
    if !run.each_table(&names, CompactionRun::merge)? {
        return Ok(run.found);
    }
    let trainer = db.owner.trainer();
    trainer.remove_unused()?;
    run.each_table(&names, |run, name| {
        let tree = block_on(run.core().catalog.table(name.as_bytes()))?;
        trainer.train_from_leaves(tree, &|| Ok(()))?;
        Ok(true)
    })?;
    // Pages that are new in memory get their places now, near the old ones, and pages of any age may use the
    // dictionaries from then on.
    db.owner.checkpoint()?;
    let is_whole = run.each_table(&names, |run, name| {
        let is_whole = run.order(name)?;
        run.found.tables += u64::from(is_whole);
        Ok(is_whole)
    })?;
    if run.found.pages_moved + run.found.pages_evacuated > 0 {
        run.checkpoint()?;
    }
    if is_whole {
        run.shorten()?;
    }
    Ok(run.found)
}

/// Makes the data file of a database short, as [`Db::shrink`] documents. Blocks.
pub(crate) fn shrink(db: &Db, pace: Pace, go_on: &mut dyn FnMut(&Compaction) -> bool) -> Result<Compaction> {
    let mut run = CompactionRun::begin(db, pace, go_on)?;
    let names = block_on(db.snapshot().table_names())?;
    if run.each_table(&names, CompactionRun::merge)? {
        db.owner.checkpoint()?;
        run.shorten()?;
    }
    Ok(run.found)
}

impl<'a> CompactionRun<'a> {
    /// Begins with a checkpoint, so that everything before is durable however early the caller ends the work.
    fn begin(db: &'a Db, pace: Pace, go_on: &'a mut dyn FnMut(&Compaction) -> bool) -> Result<Self> {
        db.owner.checkpoint()?;
        let (relocator, found) = (db.owner.relocator()?, Compaction::default());
        let (leaves, values) = (Vec::new(), Vec::new());
        Ok(Self { db, relocator, pace, found, go_on, may_empty: true, leaves, values })
    }

    /// Does a part of the work for each table. Returns false when the compaction was cancelled.
    fn each_table(&mut self, names: &[String], mut work: impl FnMut(&mut Self, &str) -> Result<bool>) -> Result<bool> {
        for name in names {
            match work(self, name) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                // The table was dropped meanwhile.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Merges the sparse leaves of one table. Returns false when the compaction was cancelled.
    fn merge(&mut self, name: &str) -> Result<bool> {
        let tree = block_on(self.core().catalog.table(name.as_bytes()))?;
        let mut start = Some(Vec::new());
        while let Some(from) = start {
            let started = Instant::now();
            let step = block_on(self.core().sparse_leaves.merge_from(tree, &from))?;
            self.found.leaves_merged += step.freed;
            start = step.next;
            self.rest(started, step.freed);
            if !(self.go_on)(&self.found) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Puts the pages of one table in order. Returns false when the compaction was cancelled.
    fn order(&mut self, name: &str) -> Result<bool> {
        let tree = block_on(self.core().catalog.table(name.as_bytes()))?;
        let mut start = Some(Vec::new());
        while let Some(from) = start {
            let Some((leaves, values, next)) = self.look(tree, &from)? else { break };
            self.leaves.extend(leaves);
            self.values.extend(values);
            start = next;
            if !self.move_lists(tree.table, start.is_none())? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn core(&self) -> &Arc<TheCore> {
        &self.db.core
    }

    /// Looks up the parent of the leaf in which the keys from `start` on begin. Returns its leaves, the pages of values
    /// that they refer to, and the key at which the next parent begins. `None` when the table changes so fast that no
    /// snapshot lives long enough.
    #[expect(clippy::type_complexity, reason = "two lists and where the next begin, for one caller")]
    fn look(&self, tree: Tree, start: &[u8]) -> Result<Option<(Vec<PageId>, Vec<PageId>, Option<Vec<u8>>)>> {
        for _ in 0..LOOKS_MAX {
            let snapshot = self.core().store.snapshot();
            let looked = self.attempt(|| tree.leaves(&self.core().store.view(&snapshot), start));
            let looked = looked.and_then(|(leaves, next)| {
                let values = self.values_of(tree, &snapshot, &leaves)?;
                Ok((leaves, values, next))
            });
            match looked {
                Ok(found) => return Ok(Some(found)),
                Err(error) if error.kind() == ErrorKind::SnapshotTooOld => {}
                Err(error) => return Err(self.core().tables.explain(tree, snapshot.seq(), error)),
            }
        }
        Ok(None)
    }

    /// Returns the pages of values that these leaves refer to. Where no page is compressed, or will be, a few leaves
    /// are examined first: all are read only if one of them seems to have such values.
    fn values_of(&self, tree: Tree, snapshot: &buffer_pool::Snapshot, leaves: &[PageId]) -> Result<Vec<PageId>> {
        let (store, last) = (&self.core().store, leaves.len().saturating_sub(1));
        if store.writer().codecs().of_table(tree.table) == Compression::None && store.stats().pages_compressed == 0 {
            let mut sampled = Vec::new();
            for leaf in [0, last / 2, last].into_iter().filter_map(|sample| leaves.get(sample)) {
                self.attempt(|| {
                    let view = store.view(snapshot);
                    view.page(*leaf)?;
                    tree.name_values(&view, *leaf, Direction::Forward, &mut sampled);
                    Ok(())
                })?;
            }
            if sampled.is_empty() {
                return Ok(sampled);
            }
        }
        self.core().reader.loader.prefetch(leaves, snapshot.seq());
        let mut values = Vec::new();
        for leaf in leaves {
            self.attempt(|| tree.name_all_values(&store.view(snapshot), *leaf, &mut values))?;
        }
        Ok(values)
    }

    fn attempt<R>(&self, look: impl FnMut() -> crate::pages::Attempt<R>) -> Result<R> {
        block_on(self.core().reader.loader.attempt(look))
    }

    /// Moves the pages of each list of this table that is long enough, and with `all` (the end of the table) the rest.
    /// Returns false when the compaction was cancelled.
    fn move_lists(&mut self, table: TableId, all: bool) -> Result<bool> {
        let most = self.relocator.pages_at_once();
        for values in [false, true] {
            loop {
                let pages = if values { &mut self.values } else { &mut self.leaves };
                if pages.is_empty() || (pages.len() < most && !all) {
                    break;
                }
                let now: Vec<PageId> = pages.drain(..most.min(pages.len())).collect();
                if !self.defragment(table, &now)? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn defragment(&mut self, table: TableId, pages: &[PageId]) -> Result<bool> {
        let started = Instant::now();
        let mut of_list = self.db.owner.defragment(&mut self.relocator, table, pages)?;
        // First the blocks that a checkpoint frees, then the blocks that other pages leave when they are moved away.
        for only_checkpoint in [true, false] {
            let may_help = if only_checkpoint { self.relocator.has_pending() } else { self.may_empty };
            if of_list.without_free_blocks == 0 || !may_help {
                continue;
            }
            if only_checkpoint {
                self.checkpoint()?;
            } else if !self.evacuate()? {
                return Ok(false);
            }
            let again = self.db.owner.defragment(&mut self.relocator, table, pages)?;
            self.may_empty &= only_checkpoint || again.without_free_blocks == 0;
            of_list = RelocationOutcome {
                moved: of_list.moved + again.moved,
                without_free_blocks: again.without_free_blocks,
                fragments_after: again.fragments_after,
                ..of_list
            };
        }
        self.found.add(of_list);
        if self.relocator.wants_checkpoint() {
            self.checkpoint()?;
        }
        self.rest(started, of_list.moved);
        Ok((self.go_on)(&self.found))
    }

    /// Empties groups of blocks, so that contiguous runs of blocks become free. Returns false when the compaction was
    /// cancelled.
    fn evacuate(&mut self) -> Result<bool> {
        let Some(mut evacuation) = self.relocator.plan_evacuation() else {
            self.may_empty = false;
            return Ok(true);
        };
        loop {
            let started = Instant::now();
            let Some(moved) = self.db.owner.evacuate(&mut self.relocator, &mut evacuation)? else { break };
            self.found.pages_evacuated += moved;
            self.rest(started, moved);
            if !(self.go_on)(&self.found) {
                return Ok(false);
            }
        }
        self.checkpoint()?;
        Ok(true)
    }

    /// Makes the data file as short as it can be.
    fn shorten(&mut self) -> Result<()> {
        let Self { db, relocator, pace, found, go_on, .. } = self;
        let before = *found;
        let with = |progress: &ShrinkProgress| Compaction {
            pages_moved_from_end: progress.pages_moved,
            bytes_given_back: progress.bytes_given_back,
            ..before
        };
        let mut rest = |took: Duration, moved: u64, progress: &ShrinkProgress| {
            if *pace == Pace::Gentle && moved > 0 {
                std::thread::sleep(took * 3);
            }
            go_on(&with(progress))
        };
        let (progress, _) = db.owner.shrinker().shrink(relocator, &mut rest)?;
        *found = with(&progress);
        Ok(())
    }

    fn rest(&self, since: Instant, moved: u64) {
        if self.pace == Pace::Gentle && moved > 0 {
            std::thread::sleep(since.elapsed() * 3);
        }
    }

    /// Makes a checkpoint, which frees the old blocks of moved pages.
    fn checkpoint(&mut self) -> Result<()> {
        self.db.owner.checkpoint()?;
        self.relocator.checkpoint_made();
        Ok(())
    }
}
