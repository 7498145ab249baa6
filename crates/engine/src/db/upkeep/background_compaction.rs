//! The thread that keeps the data file as large as its content: it merges sparse leaves and pages of values, repacks compressed pages,
//! and gives the free end of the file back. It also removes entries that have expired, trains the dictionaries of
//! compressed tables, and puts tables in order that are scanned.
//!
//! It looks after each checkpoint and once a second, and does one thing at a time. While the database is in use it
//! works a tenth of the time (up to half of it while the removal of expired entries falls behind), less while operations wait, and leaves alone what the next seconds of the same use would
//! undo: leaves as random inserts leave them, and free blocks that every few checkpoints need again. Once no commit has
//! come for ten seconds it does the rest.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use super::order::{Compaction, TablePart};
use super::parts::Upkeep;
use super::shrink::{ShrinkEnding, ShrinkProgress};
use super::sparse_leaves::MergePlace;
use crate::btree::Tree;
use crate::buffer_pool::{BufferPool, Relocator};
use crate::checkpoint::{Checkpointer, IdleTime};
use crate::db::calls::tables::TableCounts;
use crate::error::{Error, Result};
use crate::format::CommitSeq;
use crate::pages::Store as _;
use crate::sync::background::{BackgroundWork, Kind, Next, Signal};
use crate::sync::driver::block_on;
use crate::sync::notifier::Notifier;

/// Rest after a piece of work, as a multiple of the time that it took, while the database is in use.
const REST: u32 = 9;
/// Longest rest after a piece of work. A piece may have waited long for the log or the disk, which others used.
const REST_MAX: Duration = Duration::from_secs(1);
/// Rest after a piece of work while the database is not in use, as a divisor of the time that it took.
const SHORT_REST: u32 = 4;
/// Greatest multiple of a rest while operations wait for frames.
const SLOWDOWN_MAX: u32 = 16;
/// Time between two looks.
const LOOK: Duration = Duration::from_secs(1);
/// Part of a table's leaves in use below which they are merged, in a database in use and in an idle one. Random inserts
/// leave leaves 0.69 full; merging leaves them 0.94 full and more.
const SPARSE_IN_USE: f64 = 0.6;
const SPARSE_IDLE: f64 = 0.9;
/// Number of changed keys after which a table of a database in use is looked at again.
const CHANGES_MIN: u64 = 4096;
/// Number of leaves that scans have read from which on a table may be put in order …
const SCANNED_MIN: u64 = 1024;
/// … if they have read it so many times. Putting it in order reads and writes it once …
const SCANNED_TIMES: f64 = 2.0;
/// … and if its leaves lie in pieces shorter than this on average: larger pieces are read hardly faster.
const PIECE_BYTES: u64 = 16 << 10;
/// Time after which a table that is being put in order is left for a moment, so that the file may become shorter and leaves
/// may be merged, too.
const ORDER_TIME_MAX: Duration = Duration::from_secs(5);
/// Time for which expired entries are removed before the other work has its turn. When some are left then, the next look
/// follows at once, and the rests between the steps are half as long, down to [`REST_BEHIND`].
const EXPIRE_TIME_MAX: Duration = Duration::from_secs(2);
/// Rest after a step of a removal that has fallen behind, as a multiple of the time that it took.
const REST_BEHIND: u32 = 1;
/// Pause after a pass without gain over the end of the file, or over compressed pages; it doubles up to [`PAUSE_MAX`].
const PAUSE: Duration = Duration::from_secs(10);
const PAUSE_MAX: Duration = Duration::from_secs(600);

/// The handle of the work, which ends when this is dropped.
pub(in crate::db) struct BackgroundCompaction {
    _work: BackgroundWork,
}

/// The parts of the database on which it works.
pub(in crate::db) struct CompactionParts {
    pub(in crate::db) upkeep: Arc<Upkeep>,
    pub(in crate::db) pool: BufferPool,
    /// The queue by which it reads pages that it moves.
    pub(in crate::db) relocator: Relocator,
    pub(in crate::db) checkpointer: Arc<Checkpointer>,
    pub(in crate::db) changes: Arc<TableCounts>,
    pub(in crate::db) scanned: Arc<TableCounts>,
    /// Time without commits after which the database counts as idle.
    pub(in crate::db) idle_after: Duration,
}

impl BackgroundCompaction {
    /// Starts the work. `in_panic` is called when it panics.
    ///
    /// # Errors
    /// `NoResources` when the system has no threads left.
    pub(in crate::db) fn start(parts: CompactionParts, in_panic: impl FnOnce(&Error) + Send + 'static) -> Result<Self> {
        let notifier = Arc::<Notifier>::default();
        parts.upkeep.shrinker.notify_after_checkpoints(Arc::clone(&notifier));
        let mut work = CompactionWork::new(parts);
        let round = move |signal: &Signal, _| work.round(signal);
        let work = BackgroundWork::start(Kind::Compaction, notifier, Next::Wait(Some(LOOK)), in_panic, round)?;
        Ok(Self { _work: work })
    }
}

/// The state of the work between its rounds.
struct CompactionWork {
    parts: CompactionParts,
    pacer: Pacer,
    idle: IdleTime,
    was_idle: bool,
    /// Rest after a step of the removal of expired entries, as a multiple of the time that it took.
    expiry_rest: u32,
    /// Since when so much of the file has been free that it is worth making it shorter. In a database in use it becomes so when that was
    /// as long ago as the last commit of an idle one.
    free_since: Option<Instant>,
    /// Tables with many changed keys, whose leaves are to be looked at when the database is idle.
    changed: Vec<Tree>,
    /// Number of leaves that scans have read of each table since it was put in order, or found in order.
    scanned: FxHashMap<u64, u64>,
    /// Tables to be put in order, or the parts of them that are left.
    scattered: VecDeque<TablePart>,
    /// Pauses between passes over the end of the file, and between passes over compressed pages.
    shrinking: Pause,
    packing: Pause,
}

/// The pause before the next pass, longer after each one without gain.
struct Pause {
    ends: Instant,
    /// Length of the pause after the next pass without gain.
    next: Duration,
}

impl Pause {
    fn none() -> Self {
        Self { ends: Instant::now(), next: PAUSE }
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.ends
    }

    /// Begins a pause after a pass. Neither each checkpoint nor a reader that stays makes the thread try again at once.
    fn begin(&mut self, has_gained: bool) {
        if has_gained {
            self.next = PAUSE;
        } else {
            self.ends = Instant::now() + self.next;
            self.next = (self.next * 2).min(PAUSE_MAX);
        }
    }
}

impl CompactionWork {
    fn new(parts: CompactionParts) -> Self {
        let waits = Activity::of(&parts.pool).waits;
        Self {
            idle: IdleTime::new(parts.pool.visible(), parts.idle_after),
            pacer: Pacer { signal: None, pool: parts.pool.clone(), waits, slowdown: 1 },
            parts,
            was_idle: false,
            expiry_rest: REST,
            free_since: None,
            changed: Vec::new(),
            scanned: FxHashMap::default(),
            scattered: VecDeque::new(),
            shrinking: Pause::none(),
            packing: Pause::none(),
        }
    }

    fn round(&mut self, signal: &Signal) -> Next {
        self.pacer.signal = Some(signal.clone());
        let is_idle = self.idle.is_over(self.parts.pool.visible());
        if is_idle && !self.was_idle {
            // The use of the database may have kept the last passes from a gain.
            (self.shrinking, self.packing) = (Pause::none(), Pause::none());
        }
        self.train();
        self.expire();
        self.merge(is_idle);
        self.repack(is_idle);
        self.order();
        if self.is_shrinking_due(is_idle) && !self.pacer.is_stopped() {
            self.shrink(is_idle);
        }
        self.was_idle = is_idle;
        let is_behind = self.expiry_rest < REST;
        if is_behind { Next::Again } else { Next::Wait(Some(LOOK)) }
    }

    /// Trains dictionaries for compressed tables needing one. Only commits fail here, and they report their errors.
    fn train(&mut self) {
        let (idle, visible) = (&mut self.idle, self.parts.pool.visible());
        idle.is_over(visible);
        let _ = self.parts.upkeep.trainer.train_due(&|| self.parts.upkeep.shrinker.checkpoint());
        idle.ignore(self.parts.pool.visible());
    }

    /// Removes entries that have expired. Only reads and commits fail here, and they report their errors.
    fn expire(&mut self) {
        let began = Instant::now();
        while began.elapsed() < EXPIRE_TIME_MAX && !self.pacer.is_stopped() {
            let step_began = Instant::now();
            self.idle.is_over(self.parts.pool.visible());
            let step = self.parts.upkeep.expiry.step();
            self.idle.ignore(self.parts.pool.visible());
            if step.is_ok_and(|step| !step.is_last) {
                self.pacer.rest_times(step_began.elapsed(), self.expiry_rest);
            } else {
                self.expiry_rest = REST;
                return;
            }
        }
        // More has expired than was removed at this pace.
        self.expiry_rest = (self.expiry_rest / 2).max(REST_BEHIND);
    }

    /// Merges the leaves of the tables of which many keys were changed, where they are sparse.
    fn merge(&mut self, is_idle: bool) {
        let changed = self.parts.changes.take(if is_idle { 1 } else { CHANGES_MIN });
        let mut trees: Vec<Tree> = changed.into_iter().map(|(tree, _)| tree).collect();
        if is_idle && !self.was_idle {
            trees.append(&mut self.changed);
        }
        trees.sort_unstable_by_key(|tree| tree.table);
        trees.dedup();
        let limit = if is_idle { SPARSE_IDLE } else { SPARSE_IN_USE };
        for tree in trees {
            let share = block_on(self.parts.upkeep.leaves.share_in_use(tree, self.parts.pool.visible().0));
            match share {
                Ok(share) if share < limit => self.merge_table(tree),
                Ok(share) if share < SPARSE_IDLE && !self.changed.contains(&tree) => self.changed.push(tree),
                // Full, dropped, or damaged: reading its rows reports that.
                Ok(_) | Err(_) => {}
            }
        }
    }

    fn merge_table(&mut self, tree: Tree) {
        let mut start = Some(MergePlace::default());
        while let Some(from) = start
            && !self.pacer.is_stopped()
        {
            let began = Instant::now();
            // Commits before this step count as use of the database, commits during it do not: most are the step's own.
            self.idle.is_over(self.parts.pool.visible());
            let Ok(step) = block_on(self.parts.upkeep.leaves.merge_from(tree, &from)) else { break };
            self.idle.ignore(self.parts.pool.visible());
            start = step.next.filter(|_| step.without_free_blocks == 0);
            self.pacer.rest(began.elapsed());
        }
    }

    /// Repacks compressed pages where that saves many blocks.
    fn repack(&mut self, is_idle: bool) {
        let Self { parts, pacer, .. } = self;
        let is_due = self.packing.is_over() && parts.upkeep.repacker.is_due(&parts.pool, is_idle);
        // Blocks that pages in memory have left are free after a checkpoint.
        if !is_due || pacer.is_stopped() || (is_idle && parts.checkpointer.checkpoint().is_err()) {
            return;
        }
        let mut rest = |took: Duration, _: u64| {
            pacer.rest(took);
            !pacer.is_stopped()
        };
        let at = (&parts.pool, &*parts.checkpointer);
        let ending = parts.upkeep.repacker.repack(at, &mut parts.relocator, is_idle, &mut rest);
        self.packing.begin(matches!(ending, Ok(ShrinkEnding::Done)));
    }

    /// Puts tables in order that were scanned often enough since they were looked at last, where their leaves lie
    /// scattered. A table that is not scanned costs nothing, and the work on the others is never more than what the scans
    /// have spent on reading scattered leaves.
    fn order(&mut self) {
        let Self { parts, pacer, scanned, scattered, .. } = self;
        for (tree, more) in parts.scanned.take(SCANNED_MIN) {
            let leaves = scanned.remove(&tree.table.0).unwrap_or(0) + more;
            // Dropped, or damaged: reading its rows reports that.
            let Ok(leaves_max) = parts.upkeep.order.leaf_count(tree) else { continue };
            if (leaves as f64) < leaves_max * SCANNED_TIMES {
                scanned.insert(tree.table.0, leaves);
                continue;
            }
            let piece_bytes = parts.upkeep.order.piece_bytes(&parts.relocator, tree, parts.pool.visible().0);
            let is_scattered = piece_bytes.is_ok_and(|bytes| bytes < PIECE_BYTES);
            if is_scattered && !scattered.iter().any(|part| part.tree.table == tree.table) {
                scattered.push_back(TablePart { time_max: Some(ORDER_TIME_MAX), ..TablePart::whole(tree) });
            }
        }
        let Some(part) = scattered.pop_front().filter(|_| !pacer.is_stopped()) else { return };
        let mut rest = |took: Duration, moved: u64, _: &Compaction| {
            if moved > 0 {
                pacer.rest(took);
            }
            !pacer.is_stopped()
        };
        // The next scans show whether it is to be tried again; errors come from reading and from checkpoints.
        scattered.extend(parts.upkeep.order.order_by_itself(&mut parts.relocator, part, &mut rest).ok().flatten());
    }

    /// Returns whether so much of the file is free that it should become shorter now.
    fn is_shrinking_due(&mut self, is_idle: bool) -> bool {
        if !self.parts.upkeep.shrinker.is_due(is_idle) {
            self.free_since = None;
            return false;
        }
        let since = *self.free_since.get_or_insert_with(Instant::now);
        (is_idle || since.elapsed() >= self.idle.after) && self.shrinking.is_over()
    }

    fn shrink(&mut self, is_idle: bool) {
        let Self { parts, pacer, .. } = self;
        // Otherwise another checkpoint frees the blocks soon.
        if is_idle && parts.upkeep.shrinker.checkpoint().is_err() {
            return;
        }
        let mut rest = |took: Duration, moved: u64, _: &ShrinkProgress| {
            if moved > 0 {
                pacer.rest(took);
            }
            !pacer.is_stopped()
        };
        let shrunk = parts.upkeep.shrinker.shrink(&mut parts.relocator, &mut rest);
        self.shrinking.begin(shrunk.is_ok_and(|(progress, _)| progress.bytes_given_back > 0));
        self.free_since = None;
    }
}

/// Keeps the thread's share of the time small while the database is in use.
struct Pacer {
    /// The signal of the present round.
    signal: Option<Signal>,
    pool: BufferPool,
    /// Number of waits until the last rest.
    waits: u64,
    /// The present multiple of the rests.
    slowdown: u32,
}

impl Pacer {
    /// Returns whether the work is to end.
    fn is_stopped(&self) -> bool {
        self.signal.as_ref().is_some_and(Signal::is_stopped)
    }

    fn sleep(&self, time: Duration) {
        self.signal.iter().for_each(|signal| signal.sleep(time));
    }

    /// Rests after a piece of work that took this long: a short time in any case, to see whether others use the
    /// database, and if they do for as long as the share of this thread asks.
    fn rest(&mut self, took: Duration) {
        self.rest_times(took, REST);
    }

    /// Rests as [`Pacer::rest`] does, `times` as long as the piece of work took while others use the database.
    fn rest_times(&mut self, took: Duration, times: u32) {
        let (before, short) = (Activity::of(&self.pool), took / SHORT_REST);
        self.sleep(short);
        let now = Activity::of(&self.pool);
        let waited = now.waits > self.waits;
        self.waits = now.waits;
        self.slowdown = if waited { (self.slowdown * 2).min(SLOWDOWN_MAX) } else { (self.slowdown / 2).max(1) };
        if now != before {
            self.sleep((took * times * self.slowdown).min(REST_MAX));
        }
    }
}

/// Counters that show whether others use the database, and whether operations wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Activity {
    visible: CommitSeq,
    lookups: u64,
    waits: u64,
}

impl Activity {
    fn of(pool: &BufferPool) -> Self {
        let stats = pool.stats();
        Self { visible: pool.visible(), lookups: stats.hits + stats.misses, waits: stats.frame_waits }
    }
}
