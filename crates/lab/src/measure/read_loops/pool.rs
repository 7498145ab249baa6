//! The engine's own buffer pool, through its public API: blocking `get`s on threads, tasks of one single-threaded
//! executor, batches by `get_many`, and ranges.
//!
//! Unequal, in both directions: a `get` descends a B+tree and returns a copy of a verified value of 976 bytes, where
//! the map loads one word of a page; each page's checksum is verified when it is read; the pool's memory is a setting
//! well below the limit of the trial, which the page cache uses up to its last byte; a page in the pool costs no read,
//! as with the page cache.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nofault::blocking::{Db, Table};
use tokio::task::LocalSet;

use crate::error::{LabError, LabErrorKind, Result};
use crate::machine::pool::{self, ENTRIES_PER_BLOCK};
use crate::measure::read_loops::{Pattern, order_seed};
use crate::measure::workload::{Layout, Order, PAGE_BYTES, first_word};
use crate::measure::{Work, Worker};
use crate::record::{MemoryLimit, MemoryMethod, Outcome, TrialSpec};

/// Number of entries of a scan between two clock readings: one reading costs as much as an entry.
const ENTRIES_PER_SAMPLE: u64 = 16 * ENTRIES_PER_BLOCK;
/// No more leaves than every inner node of the database has below it, as it was loaded in order of its short keys.
const LEAVES_BELOW_A_NODE: usize = 100;
/// Interval at which a task on the executor adds the readers' finished operations to the worker's counts.
const DRAIN: Duration = Duration::from_millis(5);

/// The calls to the engine by which a method reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Calls {
    /// `get` on threads; each call waits for its own read. A scan walks a range on each thread.
    Threads,
    /// `get` in as many tasks as the depth, on one single-threaded executor.
    Tasks,
    /// `get_many` of as many keys as the depth, on one thread.
    Batches,
}

/// Memory setting for the engine under a limit, chosen so that its use, up to 1.3 times the setting plus 64 MiB, stays
/// within the limit. At least a third of the limit; without a limit `unlimited_bytes`; 16 MiB in any case.
pub fn cache_bytes(limit: MemoryLimit, unlimited_bytes: u64) -> u64 {
    let bytes = match limit.method {
        MemoryMethod::None => unlimited_bytes,
        _ => {
            let within = limit.bytes.saturating_sub(64 << 20) as f64 / 1.3;
            (within as u64).max(limit.bytes / 3)
        }
    };
    bytes.max(16 << 20)
}

/// The open database of a trial, shared by its workers.
#[derive(Debug)]
pub struct Pool {
    db: Db,
    table: Table,
    seed: Option<u64>,
    cache_bytes: usize,
    misses_before: u64,
}

impl Pool {
    /// Opens the database of a trial with the trial's `cache_bytes`. Reads the page table, no data.
    ///
    /// # Errors
    /// The engine's error; `Usage` when the trial does not say how much memory the pool has.
    pub fn open(spec: &TrialSpec) -> Result<Self> {
        let cache_bytes = spec.params.extra.get("cache_bytes").and_then(|text| text.parse().ok()).ok_or_else(|| {
            LabError::new(LabErrorKind::Usage, format!("{}: cache_bytes must be a number of bytes", spec.key()))
        })?;
        let db = Db::open(pool::database_of(&spec.target)?, &pool::settings(cache_bytes))?;
        let table = db.table(pool::TABLE)?;
        let misses_before = db.stats().pool.misses;
        Ok(Self { db, table, seed: spec.target.content_seed, cache_bytes, misses_before })
    }

    /// Returns a handle on the table, for tasks.
    pub fn table(&self) -> nofault::Table {
        AsRef::<nofault::Table>::as_ref(&self.table).clone()
    }

    /// Lets the executor running the caller take the completions of reads, as a ring's reader takes its own: the set-up
    /// that the engine recommends.
    ///
    /// # Errors
    /// When the executor has no poller, or the system does not poll the descriptor.
    pub fn complete_on_executor(&self) -> Result<()> {
        Ok(self.db.asynchronous().complete_on_tokio()?)
    }

    /// Whether a value belongs to an entry in the given block.
    #[inline]
    pub fn is_right(&self, value: Option<&[u8]>, block: u64) -> bool {
        is_right(value, self.seed, block)
    }

    /// Reads the given blocks once, so that they are in memory. Up to 64 reads are in flight.
    ///
    /// # Errors
    /// The engine's error.
    pub fn warm(&self, blocks: impl IntoIterator<Item = u64>) -> Result<()> {
        let keys: Vec<_> = blocks.into_iter().map(|block| pool::key(block, 0)).collect();
        keys.chunks(64).try_for_each(|keys| self.table.get_many(keys).map(drop))?;
        Ok(())
    }

    /// Brings the pool into the state of a database that has been open for a while: its memory is full of other pages, the last of
    /// the data, and the nodes above the leaves are in memory. A map needs no such reads, because the kernel knows where each page of a
    /// file lies.
    ///
    /// # Errors
    /// The engine's error; `Interrupted` when the user stops the run.
    pub fn fill(&self, layout: &Layout, cancel: &AtomicBool) -> Result<()> {
        let interrupted = || LabError::new(LabErrorKind::Interrupted, "interrupted while memory was filled");
        let blocks = layout.block_count() * layout.block_bytes / PAGE_BYTES as u64;
        let first = blocks.saturating_sub((self.cache_bytes / PAGE_BYTES) as u64);
        let mut range = self.table.range(pool::key(first, 0)..);
        let mut read = 0_u64;
        while range.next_ref()?.is_some() {
            read += 1;
            if read.is_multiple_of(ENTRIES_PER_SAMPLE) && cancel.load(Ordering::Relaxed) {
                return Err(interrupted());
            }
        }
        drop(range);
        let mut leaves = (0..blocks).step_by(LEAVES_BELOW_A_NODE).peekable();
        while leaves.peek().is_some() {
            if cancel.load(Ordering::Relaxed) {
                return Err(interrupted());
            }
            self.warm(leaves.by_ref().take(1024))?;
        }
        Ok(())
    }

    /// Reads blocks by one call of `get_many`; returns the number of wrong values.
    ///
    /// # Errors
    /// The engine's error.
    pub fn get_many(&self, blocks: &[u64]) -> Result<u64> {
        let keys: Vec<_> = blocks.iter().map(|block| key_of(*block)).collect();
        let values = self.table.get_many(&keys)?;
        let wrong = values.iter().zip(blocks).filter(|(value, block)| !self.is_right(value.as_deref(), **block));
        Ok(wrong.count() as u64)
    }

    /// Leaves the misses until now out of [`Pool::record_in`].
    pub fn count_misses_from_now(&mut self) {
        self.misses_before = self.db.stats().pool.misses;
    }

    /// Adds the pool's misses and memory to a trial's figures.
    pub fn record_in(&self, outcome: &mut Outcome) {
        let stats = self.db.stats().pool;
        let figures = [("pool_misses", stats.misses - self.misses_before), ("pool_memory_bytes", stats.memory_bytes)];
        outcome.figures.extend(figures.map(|(name, value)| (name.to_owned(), value as f64)));
    }
}

#[inline]
fn is_right(value: Option<&[u8]>, seed: Option<u64>, block: u64) -> bool {
    match (value, seed) {
        (Some(value), Some(seed)) => pool::is_right(value, seed, block),
        (value, None) => value.is_some(),
        (None, Some(_)) => false,
    }
}

/// The key by which a block is read. All entries of a block lie on one page, so any of them will do; successive blocks
/// take successive entries.
#[inline]
fn key_of(block: u64) -> [u8; 8] {
    pool::key(block, block % ENTRIES_PER_BLOCK)
}

/// The workers of a trial, one for each of its threads; each reads by the given calls.
pub fn works<'a>(
    spec: &'a TrialSpec,
    layout: &'a Layout,
    pool: &'a Pool,
    calls: Calls,
    pattern: Pattern,
) -> Vec<Work<'a>> {
    let depth = spec.params.depth.max(1);
    let parts = Parts::of(layout, pattern);
    let work = |(number, order): (usize, Order)| -> Work<'a> {
        let parts = parts.clone();
        Box::new(move |worker: &mut Worker<'_>| {
            match (calls, parts) {
                (_, Some(parts)) => scan(worker, pool, &parts)?,
                (Calls::Threads, None) => get(worker, pool, order)?,
                (Calls::Batches, None) => get_many(worker, pool, order, depth as usize)?,
                (Calls::Tasks, None) => tasks(worker, pattern.orders_of(layout, order_seed(spec), depth), pool)?,
            }
            if number == 0 { sum_sample(worker, spec, pool) } else { Ok(()) }
        })
    };
    pattern.orders(layout, spec).into_iter().enumerate().map(work).collect()
}

fn get(worker: &mut Worker<'_>, pool: &Pool, mut order: Order) -> Result<()> {
    worker.start();
    let mut before = worker.started();
    while worker.running() {
        let block = order.next_block();
        let value = pool.table.get(key_of(block))?;
        worker.verified(pool.is_right(value.as_deref(), block));
        worker.done(1, PAGE_BYTES as u64);
        let now = Instant::now();
        worker.latency("op", now - before);
        before = now;
    }
    Ok(())
}

fn get_many(worker: &mut Worker<'_>, pool: &Pool, mut order: Order, count: usize) -> Result<()> {
    let mut blocks = vec![0; count];
    let mut keys = vec![[0; 8]; count];
    worker.start();
    let mut before = worker.started();
    while worker.running() {
        for (block, key) in blocks.iter_mut().zip(&mut keys) {
            *block = order.next_block();
            *key = key_of(*block);
        }
        let values = pool.table.get_many(&keys)?;
        for (value, block) in values.iter().zip(&blocks) {
            worker.verified(pool.is_right(value.as_deref(), *block));
        }
        worker.done(count as u64, (count * PAGE_BYTES) as u64);
        let now = Instant::now();
        // All answers of a batch arrive together at its end.
        worker.latency_of_each("op", now - before, count as u64);
        before = now;
    }
    Ok(())
}

/// State shared by the tasks of an executor: their latencies and wrong values since the last drain, and whether to
/// stop.
#[derive(Default)]
struct Shared {
    stop: Cell<bool>,
    wrong: Cell<u64>,
    latencies: RefCell<Vec<Duration>>,
}

impl Shared {
    fn drain(&self, worker: &mut Worker<'_>) {
        let wrong = self.wrong.take();
        for (number, elapsed) in self.latencies.borrow_mut().drain(..).enumerate() {
            worker.latency("op", elapsed);
            worker.verified(number as u64 >= wrong);
            worker.done(1, PAGE_BYTES as u64);
        }
    }
}

/// Reads by one task for each order, all on one executor.
fn tasks(worker: &mut Worker<'_>, orders: Vec<Order>, pool: &Pool) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| LabError::system("start an executor", &error))?;
    let shared = Rc::new(Shared::default());
    let seed = pool.seed;
    LocalSet::new().block_on(&runtime, async {
        pool.complete_on_executor()?;
        worker.start();
        let reader = |mut order: Order| {
            let (table, shared) = (pool.table(), Rc::clone(&shared));
            async move {
                while !shared.stop.get() {
                    let (block, started) = (order.next_block(), Instant::now());
                    let value = table.get(key_of(block)).await?;
                    shared.wrong.set(shared.wrong.get() + u64::from(!is_right(value.as_deref(), seed, block)));
                    shared.latencies.borrow_mut().push(started.elapsed());
                }
                Ok::<_, nofault::error::Error>(())
            }
        };
        let readers: Vec<_> = orders.into_iter().map(|order| tokio::task::spawn_local(reader(order))).collect();
        while worker.running() && readers.iter().all(|reader| !reader.is_finished()) {
            tokio::time::sleep(DRAIN).await;
            shared.drain(worker);
        }
        shared.stop.set(true);
        for reader in readers {
            reader.await.map_err(|error| LabError::new(LabErrorKind::System, format!("a task: {error}")))??;
        }
        shared.drain(worker);
        Ok(())
    })
}

/// Divides the blocks of a scan into parts and hands them out to the threads in turn.
#[derive(Clone)]
struct Parts {
    next: std::sync::Arc<AtomicU64>,
    part: u64,
    blocks: u64,
}

impl Parts {
    fn of(layout: &Layout, pattern: Pattern) -> Option<Self> {
        let Pattern::Scan { part_bytes } = pattern else { return None };
        let blocks = layout.block_count() * layout.block_bytes / PAGE_BYTES as u64;
        let part = (part_bytes / PAGE_BYTES as u64).clamp(1, blocks);
        Some(Self { next: std::sync::Arc::default(), part, blocks })
    }

    fn next_range(&self) -> (u64, u64) {
        let part = self.next.fetch_add(1, Ordering::Relaxed) % self.blocks.div_ceil(self.part);
        (part * self.part, ((part + 1) * self.part).min(self.blocks))
    }
}

/// Scans one part after another. An operation is a block of four entries.
fn scan(worker: &mut Worker<'_>, pool: &Pool, parts: &Parts) -> Result<()> {
    worker.start();
    let mut before = worker.started();
    while worker.running() {
        let (from, to) = parts.next_range();
        let (mut expected, mut untimed) = (from * ENTRIES_PER_BLOCK, 0);
        let mut range = pool.table.range(pool::key(from, 0)..pool::key(to, 0));
        while let Some((key, value)) = range.next_ref()? {
            let in_order = key.first_chunk().is_some_and(|key| u64::from_be_bytes(*key) == expected);
            worker.verified(in_order && pool.is_right(Some(value), expected / ENTRIES_PER_BLOCK));
            expected += 1;
            untimed += 1;
            if untimed == ENTRIES_PER_SAMPLE {
                untimed = 0;
                let blocks = ENTRIES_PER_SAMPLE / ENTRIES_PER_BLOCK;
                worker.done(blocks, blocks * PAGE_BYTES as u64);
                let now = Instant::now();
                let share = (now - before) / u32::try_from(blocks).unwrap_or(u32::MAX);
                worker.latency_of_each("op", share, blocks);
                before = now;
                if !worker.running() {
                    return Ok(());
                }
            }
        }
        // A range that ends early has lost entries.
        if expected < to * ENTRIES_PER_BLOCK {
            worker.verified(false);
        }
        worker.done(untimed / ENTRIES_PER_BLOCK, untimed / ENTRIES_PER_BLOCK * PAGE_BYTES as u64);
    }
    Ok(())
}

fn sum_sample(worker: &mut Worker<'_>, spec: &TrialSpec, pool: &Pool) -> Result<()> {
    for place in Layout::sample(&spec.target, spec.seed) {
        let block = place.offset_bytes / PAGE_BYTES as u64 - 1;
        let value = pool.table.get(key_of(block))?;
        worker.checksum(first_word(value.as_deref().unwrap_or_default()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use nofault_sim::depth::by_depth;

    use super::*;
    use crate::machine::data::DataSpec;
    use crate::machine::pool::PoolData;
    use crate::record::ExperimentId;

    #[test]
    fn a_filled_pool_reads_one_page_for_a_get_at_most() {
        let (blocks, cache_bytes) = by_depth((12_000, 12 << 20), (30_000_u64, 32_usize << 20));
        let folder = tempfile::tempdir().unwrap();
        let wanted = DataSpec { seed: 5, data_bytes: blocks * PAGE_BYTES as u64 };
        let _made = PoolData::make(folder.path(), wanted, &|_, _| {}, &AtomicBool::new(false)).unwrap();
        let target = pool::target(folder.path(), wanted);
        let layout = Layout::new(&target, PAGE_BYTES as u64, 0).unwrap();
        let mut spec = TrialSpec::of(ExperimentId::new("random"), 1, target, "pool");
        spec.params.extra.insert("cache_bytes".into(), cache_bytes.to_string());
        let mut pool = Pool::open(&spec).unwrap();
        let stopped = pool.fill(&layout, &AtomicBool::new(true)).unwrap_err();
        assert_eq!(stopped.kind(), LabErrorKind::Interrupted);
        pool.fill(&layout, &AtomicBool::new(false)).unwrap();
        pool.count_misses_from_now();
        let stats = pool.db.stats().pool;
        assert!(stats.frames_free * 8 < stats.frames, "{} of {} frames are free", stats.frames_free, stats.frames);
        let gets = 2000;
        for number in 0..gets {
            let block = number * 7919 % blocks;
            assert!(pool.is_right(pool.table.get(key_of(block)).unwrap().as_deref(), block));
        }
        let misses = pool.db.stats().pool.misses - pool.misses_before;
        assert!(misses > gets / 2 && misses <= gets, "{misses} misses of {gets} gets");
    }
}
