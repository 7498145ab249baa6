//! Puts the pages of a table in key order in the data file: moves scattered leaves, and the pages of values that they
//! refer to, next to each other. `buffer_pool::relocate` describes how a page is moved without readers noticing.
//!
//! The leaves below one parent after the other, and the pages of values that leaves refer to, are looked up in short
//! snapshots and passed on as page numbers. When they are moved, some may already be freed or belong to another table:
//! that costs a part of the gain but does no harm, as a page may lie next to any other. So no snapshot or pin is held
//! during a move.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::btree::{Direction, KeyRange, Tree};
use crate::buffer_pool::{self, BufferPool, RelocationOutcome, Relocator};
use crate::checkpoint::Checkpointer;
use crate::codec::Compression;
use crate::db::calls::reader::Reader;
use crate::db::calls::tables::NEWEST;
use crate::error::{ErrorKind, Result};
use crate::events;
use crate::format::PageId;
use crate::pages::{Attempt, Pages as _, Snapshot as _, Store as _};
use crate::sync::driver::block_on;

/// Most times that one inner node is retried before its table is left as it is.
const LOOKS_MAX: usize = 4;
/// Number of places in a table from which its order is estimated.
const SAMPLES: u64 = 8;

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
#[non_exhaustive]
pub struct Compaction {
    /// Number of tables compacted to their end.
    pub tables: u64,
    /// Number of pages examined: leaves, and pages of values.
    pub pages: u64,
    /// Number of pages moved next to their neighbours in key order.
    pub pages_moved: u64,
    /// Number of pages moved out of the way first, where too few free blocks followed each other. They need
    /// not be among the pages looked at, and may be moved next to their neighbours later.
    pub pages_evacuated: u64,
    /// Number of pages that should have been moved and stayed, because no free blocks follow each other within the
    /// file's bound.
    pub pages_without_free_blocks: u64,
    /// Number of fragments in which the examined pages lay before, counted for each list of about a megabyte.
    pub fragments_before: u64,
    /// Number of fragments in which the examined pages lie afterwards.
    pub fragments_after: u64,
    /// Number of leaves, and of their pages of values, that were freed because their content was merged into others.
    pub leaves_merged: u64,
    /// Number of such pages that should have been merged and stayed, because the disk is full and no blocks were free for it.
    /// Merging ended with them, and the rest of the compaction went on.
    pub leaves_without_free_blocks: u64,
    /// Pages moved from the end of the data file to free blocks before it.
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

/// The passes that put a table in order by themselves, counted since the database was opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OrderStats {
    /// Whether the pages of a table are being put in order now.
    pub is_working: bool,
    /// Tables put in order.
    pub tables: u64,
    /// Pages moved next to their neighbours in key order.
    pub pages_moved: u64,
    /// Number of fragments in which the pages of these tables lay before, counted for each list of about a megabyte.
    pub fragments_before: u64,
    /// Number of fragments in which they lay afterwards.
    pub fragments_after: u64,
}

/// The part of a table to be put in order.
#[derive(Debug, Clone)]
pub(in crate::db) struct TablePart {
    pub(in crate::db) tree: Tree,
    /// The key at which it begins.
    pub(in crate::db) start: Vec<u8>,
    /// The time after which the work ends, if the table has not ended before.
    pub(in crate::db) time_max: Option<Duration>,
}

impl TablePart {
    /// Returns the whole table, with no limit of time.
    pub(in crate::db) fn whole(tree: Tree) -> Self {
        Self { tree, start: Vec::new(), time_max: None }
    }
}

/// The end of putting a part of a table in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::db) enum OrderEnding {
    /// The end of the table was reached.
    Done,
    /// The time was over: the key at which the rest begins.
    Next(Vec<u8>),
    Cancelled,
}

/// Called after each piece of work with the time that it took, the pages that it moved, and the progress; `false` ends
/// the work.
pub(in crate::db) type Rest<'a> = dyn FnMut(Duration, u64, &Compaction) -> bool + 'a;

/// Puts tables in order.
pub(in crate::db) struct TableOrder {
    reader: Reader<BufferPool>,
    checkpointer: Arc<Checkpointer>,
    stats: Mutex<OrderStats>,
}

impl TableOrder {
    pub(in crate::db) fn new(reader: Reader<BufferPool>, checkpointer: Arc<Checkpointer>) -> Self {
        Self { reader, checkpointer, stats: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, OrderStats> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the statistics.
    pub(in crate::db) fn stats(&self) -> OrderStats {
        self.lock().clone()
    }

    fn store(&self) -> &BufferPool {
        self.reader.loader.store()
    }

    fn attempt<R>(&self, look: impl FnMut() -> Attempt<R>) -> Result<R> {
        block_on(self.reader.loader.attempt(look))
    }

    /// Estimates how many leaves a table has. Blocks.
    ///
    /// # Errors
    /// The errors of reading; `NotFound` when the table was dropped.
    pub(in crate::db) fn leaf_count(&self, tree: Tree) -> Result<f64> {
        let all = KeyRange { start: Vec::new(), end: None };
        Ok(block_on(self.reader.estimate(tree, &all))?.leaves)
    }

    /// Looks up where the leaves lie around some places of a table, chosen at random from `seed`. Returns the average
    /// number of bytes that lie in a row. Blocks.
    ///
    /// # Errors
    /// The errors of reading; `NotFound` when the table was dropped.
    pub(in crate::db) fn piece_bytes(&self, relocator: &Relocator, tree: Tree, seed: u64) -> Result<u64> {
        let (mut blocks, mut fragments) = (0, 0);
        for number in 0..SAMPLES {
            let look = || {
                let view = self.store().latest();
                let leaf = tree.random_leaf(&view, seed.wrapping_mul(SAMPLES).wrapping_add(number))?;
                let (_, first) = tree.use_of(&view, &[leaf])?;
                tree.leaves(&view, &first)
            };
            let leaves = self.attempt(look).map_err(|error| self.reader.tables.explain(tree, NEWEST, error))?.0;
            let found = relocator.fragments(&leaves)?;
            (blocks, fragments) = (blocks + found.0, fragments + found.1);
        }
        Ok(blocks * self.store().page_bytes() as u64 / fragments.max(1))
    }

    /// Puts a part of a table in order in the background, and counts it in the statistics. Returns the part that is left
    /// to be done. Blocks.
    ///
    /// # Errors
    /// As [`TableOrder::order`].
    pub(in crate::db) fn order_by_itself(
        &self,
        relocator: &mut Relocator,
        part: TablePart,
        rest: &mut Rest<'_>,
    ) -> Result<Option<TablePart>> {
        if part.start.is_empty() {
            relocator.begin_order();
        }
        self.lock().is_working = true;
        let (mut found, mut may_empty) = (Compaction::default(), true);
        let pass = || {
            let outcome = self.order(relocator, &part, (&mut found, &mut may_empty), rest);
            (outcome, found)
        };
        let ended = |(outcome, found): &(Result<OrderEnding>, Compaction)| {
            let ending = match outcome {
                Ok(OrderEnding::Done) => "done".into(),
                Ok(OrderEnding::Next(_)) => "goes on later".into(),
                Ok(OrderEnding::Cancelled) => "cancelled".into(),
                Err(error) => error.to_string(),
            };
            (ending, found.pages_moved)
        };
        let (outcome, found) = events::compaction("order", pass, ended);
        let mut stats = self.lock();
        stats.is_working = false;
        stats.tables += u64::from(matches!(outcome, Ok(OrderEnding::Done)));
        stats.pages_moved += found.pages_moved;
        stats.fragments_before += found.fragments_before;
        stats.fragments_after += found.fragments_after;
        Ok(match outcome? {
            OrderEnding::Done | OrderEnding::Cancelled => None,
            OrderEnding::Next(start) => Some(TablePart { start, ..part }),
        })
    }

    /// Puts the pages of a part of a table in order, and adds the outcome to `found`. `may_empty` says whether groups of
    /// blocks may still be emptied to get runs of free blocks: so far it has produced some. Blocks.
    ///
    /// # Errors
    /// As [`Relocator::defragment`] and [`Checkpointer::checkpoint`]; the errors of reading.
    pub(in crate::db) fn order(
        &self,
        relocator: &mut Relocator,
        part: &TablePart,
        (found, may_empty): (&mut Compaction, &mut bool),
        rest: &mut Rest<'_>,
    ) -> Result<OrderEnding> {
        let (leaves, values) = (Vec::new(), Vec::new());
        OrderRun { order: self, relocator, tree: part.tree, found, may_empty, rest, leaves, values }.run(part)
    }
}

/// The work on one table.
struct OrderRun<'a, 'r> {
    order: &'a TableOrder,
    relocator: &'a mut Relocator,
    tree: Tree,
    found: &'a mut Compaction,
    may_empty: &'a mut bool,
    rest: &'a mut Rest<'r>,
    /// Leaves in key order, collected until the list is long enough to be relocated, and the pages of their values.
    leaves: Vec<PageId>,
    values: Vec<PageId>,
}

impl OrderRun<'_, '_> {
    fn run(&mut self, part: &TablePart) -> Result<OrderEnding> {
        let (began, mut start) = (Instant::now(), part.start.clone());
        loop {
            let Some((leaves, values, next)) = self.look(&start)? else { return Ok(OrderEnding::Done) };
            self.leaves.extend(leaves);
            self.values.extend(values);
            let is_last = next.is_none() || part.time_max.is_some_and(|most| began.elapsed() >= most);
            if !self.move_lists(is_last)? {
                return Ok(OrderEnding::Cancelled);
            }
            let Some(next) = next else { return Ok(OrderEnding::Done) };
            if is_last {
                return Ok(OrderEnding::Next(next));
            }
            start = next;
        }
    }

    /// Looks up the parent of the leaf in which the keys from `start` on begin. Returns its leaves, the pages of values
    /// that they refer to, and the key at which the next parent begins. `None` when the table changes so fast that no
    /// snapshot lives long enough.
    #[expect(clippy::type_complexity, reason = "two lists and where the next begin, for one caller")]
    fn look(&self, start: &[u8]) -> Result<Option<(Vec<PageId>, Vec<PageId>, Option<Vec<u8>>)>> {
        for _ in 0..LOOKS_MAX {
            let (tree, snapshot) = (self.tree, self.order.store().snapshot());
            let looked = self.order.attempt(|| tree.leaves(&self.order.store().view(&snapshot), start));
            let looked = looked.and_then(|(leaves, next)| {
                let values = self.values_of(&snapshot, &leaves)?;
                Ok((leaves, values, next))
            });
            match looked {
                Ok(found) => return Ok(Some(found)),
                Err(error) if error.kind() == ErrorKind::SnapshotTooOld => {}
                Err(error) => return Err(self.order.reader.tables.explain(tree, snapshot.seq(), error)),
            }
        }
        Ok(None)
    }

    /// Returns the pages of values that these leaves refer to. Where no page is compressed, or will be, a few leaves
    /// are examined first: all are read only if one of them seems to have such values.
    fn values_of(&self, snapshot: &buffer_pool::Snapshot, leaves: &[PageId]) -> Result<Vec<PageId>> {
        let (store, tree, last) = (self.order.store(), self.tree, leaves.len().saturating_sub(1));
        if store.writer().codecs().of_table(tree.table) == Compression::None && store.stats().pages_compressed == 0 {
            let mut sampled = Vec::new();
            for leaf in [0, last / 2, last].into_iter().filter_map(|sample| leaves.get(sample)) {
                self.order.attempt(|| {
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
        self.order.reader.loader.prefetch(leaves, snapshot.seq());
        let mut values = Vec::new();
        for leaf in leaves {
            self.order.attempt(|| tree.name_all_values(&store.view(snapshot), *leaf, &mut values))?;
        }
        Ok(values)
    }

    /// Moves the pages of each list of this table that is long enough, and with `all` (the end of the table) the rest.
    /// Returns false when the compaction was cancelled.
    fn move_lists(&mut self, all: bool) -> Result<bool> {
        let most = self.relocator.pages_at_once();
        for values in [false, true] {
            loop {
                let pages = if values { &mut self.values } else { &mut self.leaves };
                if pages.is_empty() || (pages.len() < most && !all) {
                    break;
                }
                let now: Vec<PageId> = pages.drain(..most.min(pages.len())).collect();
                if !self.defragment(&now)? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn defragment(&mut self, pages: &[PageId]) -> Result<bool> {
        let started = Instant::now();
        let mut of_list = self.order.checkpointer.defragment(self.relocator, self.tree.table, pages)?;
        // First the blocks that a checkpoint frees, then the blocks that other pages leave when they are moved away.
        for only_checkpoint in [true, false] {
            let may_help = if only_checkpoint { self.relocator.has_pending() } else { *self.may_empty };
            if of_list.without_free_blocks == 0 || !may_help {
                continue;
            }
            if only_checkpoint {
                self.checkpoint()?;
            } else if !self.evacuate()? {
                return Ok(false);
            }
            let again = self.order.checkpointer.defragment(self.relocator, self.tree.table, pages)?;
            *self.may_empty &= only_checkpoint || again.without_free_blocks == 0;
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
        Ok((self.rest)(started.elapsed(), of_list.moved, self.found))
    }

    /// Empties groups of blocks, so that contiguous runs of blocks become free. Returns false when the compaction was
    /// cancelled.
    fn evacuate(&mut self) -> Result<bool> {
        let Some(mut evacuation) = self.relocator.plan_evacuation()? else {
            *self.may_empty = false;
            return Ok(true);
        };
        loop {
            let started = Instant::now();
            let Some(moved) = self.order.checkpointer.evacuate(self.relocator, &mut evacuation)? else { break };
            self.found.pages_evacuated += moved;
            if !(self.rest)(started.elapsed(), moved, self.found) {
                return Ok(false);
            }
        }
        self.checkpoint()?;
        Ok(true)
    }

    /// Makes a checkpoint, which frees the old blocks of moved pages.
    fn checkpoint(&mut self) -> Result<()> {
        self.order.checkpointer.checkpoint()?;
        self.relocator.checkpoint_made();
        Ok(())
    }
}
