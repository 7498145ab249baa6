//! Compaction on request: merges sparse leaves, trains dictionaries, puts the pages of each table in order, and makes the
//! data file short.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::buffer_pool::Relocator;
use crate::db::calls::thread;
use crate::db::open::handle::{Db, TheCore};
pub use crate::db::upkeep::order::Compaction;
use crate::db::upkeep::order::{OrderEnding, TablePart};
use crate::db::upkeep::shrink::ShrinkProgress;
use crate::db::upkeep::sparse_leaves::MergePlace;
use crate::error::{ErrorKind, Result};
use crate::sync::driver::block_on;

#[cfg(test)]
mod tests;

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

impl Pace {
    /// Pauses after a piece of work that took this long and moved so many pages.
    fn rest(self, took: Duration, moved: u64) {
        if self == Self::Gentle && moved > 0 {
            std::thread::sleep(took * 3);
        }
    }
}

/// Asks the compaction to end when this is dropped; the future of the caller owns it.
#[derive(Debug, Default)]
pub(in crate::db) struct CancelOnDrop(CancelFlag);

/// The flag that `CancelOnDrop` sets and the compacting thread checks.
#[derive(Debug, Clone, Default)]
pub(in crate::db) struct CancelFlag(Arc<AtomicBool>);

impl CancelOnDrop {
    pub(in crate::db) fn flag(&self) -> CancelFlag {
        self.0.clone()
    }
}

impl CancelFlag {
    pub(in crate::db) fn goes_on(&self) -> bool {
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
}

/// A kind of compaction: [`compact`] or [`shrink`].
type Kind = fn(&Db, Pace, &mut dyn FnMut(&Compaction) -> bool) -> Result<Compaction>;

/// Runs a compaction on a dedicated thread. It ends when the future is dropped.
pub(in crate::db) async fn on_a_thread(
    db: Db,
    kind: Kind,
    pace: Pace,
    mut go_on: impl FnMut(&Compaction) -> bool + Send + 'static,
) -> Result<Compaction> {
    db.owner.refuse_read_only()?;
    let cancel = CancelOnDrop::default();
    let flag = cancel.flag();
    let owner = db.owner.clone();
    let mut go_on = move |so_far: &Compaction| flag.goes_on() && owner.check_open().is_ok() && go_on(so_far);
    let run = move || {
        let done = kind(&db, pace, &mut go_on)?;
        db.owner.check_open().map(|()| done)
    };
    thread::run("nofault-compact", run).await?
}

/// Compacts a database, as [`Db::compact`] documents. Blocks.
pub(crate) fn compact(db: &Db, pace: Pace, go_on: &mut dyn FnMut(&Compaction) -> bool) -> Result<Compaction> {
    let mut run = CompactionRun::begin(db, pace, go_on)?;
    let names = block_on(db.snapshot().table_names())?;
    if !run.each_table(&names, CompactionRun::merge)? {
        return Ok(run.found);
    }
    let trainer = &db.owner.upkeep.trainer;
    trainer.remove_unused()?;
    run.each_table(&names, |run, name| {
        let tree = block_on(run.core().catalog.table(name.as_bytes()))?;
        match trainer.train_from_leaves(tree, &|| Ok(())) {
            // The disk is full: the table keeps the dictionary that it has.
            Err(error) if error.kind() == ErrorKind::NoSpace => Ok(true),
            trained => trained.map(|()| true),
        }
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
        Ok(Self { db, relocator, pace, found, go_on, may_empty: true })
    }

    /// Does a part of the work for each table. Returns false when the compaction was cancelled.
    fn each_table(&mut self, names: &[String], mut work: impl FnMut(&mut Self, &str) -> Result<bool>) -> Result<bool> {
        for name in names {
            match work(self, name) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                // The table was dropped or renamed in the meantime.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Merges the sparse leaves and pages of values of one table. Returns false when the compaction was cancelled.
    fn merge(&mut self, name: &str) -> Result<bool> {
        if self.found.leaves_without_free_blocks > 0 {
            return Ok(true);
        }
        let tree = block_on(self.core().catalog.table(name.as_bytes()))?;
        let mut start = Some(MergePlace::default());
        while let Some(from) = start {
            let started = Instant::now();
            let step = block_on(self.db.owner.upkeep.leaves.merge_from(tree, &from))?;
            self.found.leaves_merged += step.freed;
            self.found.leaves_without_free_blocks += step.without_free_blocks;
            start = step.next.filter(|_| step.without_free_blocks == 0);
            self.pace.rest(started.elapsed(), step.freed);
            if !(self.go_on)(&self.found) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Puts the pages of one table in order. Returns false when the compaction was cancelled.
    fn order(&mut self, name: &str) -> Result<bool> {
        let tree = block_on(self.core().catalog.table(name.as_bytes()))?;
        let Self { db, relocator, pace, found, go_on, may_empty } = self;
        let mut rest = |took: Duration, moved: u64, so_far: &Compaction| {
            pace.rest(took, moved);
            go_on(so_far)
        };
        let part = TablePart::whole(tree);
        let ending = db.owner.upkeep.order.order(relocator, &part, (found, may_empty), &mut rest)?;
        Ok(ending != OrderEnding::Cancelled)
    }

    fn core(&self) -> &Arc<TheCore> {
        &self.db.core
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
            pace.rest(took, moved);
            go_on(&with(progress))
        };
        let (progress, _) = db.owner.upkeep.shrinker.shrink(relocator, &mut rest)?;
        *found = with(&progress);
        Ok(())
    }

    /// Makes a checkpoint, which frees the old blocks of moved pages.
    fn checkpoint(&mut self) -> Result<()> {
        self.db.owner.checkpoint()?;
        self.relocator.checkpoint_made();
        Ok(())
    }
}
