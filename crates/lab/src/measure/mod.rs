//! The measuring loop of every trial running for a set time: workers execute operations, one thread samples counters,
//! and the result is an [`Outcome`]. It is independent of files and methods.
//!
//! Why the figures can be trusted:
//! 1. Workers open, map and allocate before the clock starts; all start at one barrier.
//! 2. Each worker counts in a separate cache line; the sampling thread only reads.
//! 3. Kernel counters are taken at the tick's own time, so a late tick is a longer tick, not a faster one.
//! 4. Tables show the rates after memory was full (or after the first tick, where it does not fill).
//! 5. Answers are checked by the workers while they are timed; one wrong block invalidates the trial.

pub(crate) mod entries;
pub(crate) mod mixes;
pub mod read_loops;
mod skew;
mod slot;
pub(crate) mod stores;
pub(crate) mod ticker;
pub mod workload;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hdrhistogram::Histogram;
use nofault_io::counters::{Delta, Snapshot, Watch};

use self::slot::Slot;
use crate::error::{LabError, LabErrorKind, Result};
use crate::record::{Checks, Latency, Outcome, Tick, Window};

/// Duration, tick length and counters of one measurement.
#[derive(Debug)]
pub struct Measurement<'a> {
    /// Length of the measurement.
    pub duration: Duration,
    /// Time between two readings of the counters; each is a point of the report's curves over time.
    pub tick: Duration,
    /// Kernel counters to read at each tick.
    pub watch: &'a Watch,
    /// Bytes of memory that process and page cache may use, to tell when memory is full; `None` where nothing limits
    /// it.
    pub memory_bytes: Option<u64>,
    /// Whether to extend the measurement, by at most its own length, until memory has been full for half of the time.
    /// For methods that fill memory as they read and whose figure is the rate with full memory.
    pub fill_first: bool,
    /// Set from outside to end the measurement early; the outcome is then partial.
    pub cancel: &'a AtomicBool,
}

impl Measurement<'_> {
    /// The longest time that the measurement may take.
    fn duration_max(&self) -> Duration {
        if self.fill_first && self.memory_bytes.is_some() { self.duration * 2 } else { self.duration }
    }

    /// The length of the measurement, given the time after its start at which memory was full.
    fn duration_with(&self, full_at_s: Option<f64>) -> Duration {
        let most = self.duration_max();
        if most == self.duration {
            return most;
        }
        full_at_s.map_or(most, |full| self.duration.max(Duration::from_secs_f64(full) + self.duration / 2).min(most))
    }
}

/// Time beyond its planned end that a measurement may take before [`wait_for_end`] stops it.
const END_GRACE: Duration = Duration::from_millis(500);

/// Time beyond its planned end for which a measurement waits for its first operation: one of a busy machine or a slow device
/// has a figure all the same, one whose device hangs ends.
const FIRST_OPERATION: Duration = Duration::from_secs(20);

/// A worker's handle on the measurement: says whether to continue, and takes the worker's counts, latencies and checks.
pub struct Worker<'a> {
    stop: &'a AtomicBool,
    slot: &'a Slot,
    barrier: &'a Barrier,
    waited: bool,
    started: Instant,
    /// Latencies by name: a handful of entries, found faster by a linear search than in a tree. The first entry is the
    /// operation's own (`op`), made before the clock starts.
    latency: Vec<(&'static str, Histogram<u64>)>,
    figures: BTreeMap<&'static str, f64>,
    checks: Checks,
}

/// The function of a worker: prepares, calls [`Worker::start`] once, then works while [`Worker::running`].
pub type Work<'a> = Box<dyn FnOnce(&mut Worker<'_>) -> Result<()> + Send + 'a>;

impl Worker<'_> {
    /// Waits until every worker is prepared, then starts this worker's clock.
    pub fn start(&mut self) {
        self.wait_for_all();
        self.started = Instant::now();
    }

    /// Waits twice at the barrier: until all workers are prepared, and again until the sampling thread has read clock
    /// and counters. With more workers than CPUs that thread might otherwise run only after some workers have finished.
    fn wait_for_all(&mut self) {
        self.waited = true;
        self.barrier.wait();
        self.barrier.wait();
    }

    /// Returns whether the worker is to continue; false once the time is over or the measurement is cancelled.
    pub fn running(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    /// Returns when this worker's clock started.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// Counts finished operations, and the bytes that they read or wrote.
    pub fn done(&mut self, ops: u64, bytes: u64) {
        self.slot.add(ops, bytes);
    }

    /// Records a latency under `name` (`op` for the operation itself).
    pub fn latency(&mut self, name: &'static str, elapsed: Duration) {
        self.latency_of_each(name, elapsed, 1);
    }

    /// Records the same latency for each of `count` operations, of which only one was timed as a sample.
    pub fn latency_of_each(&mut self, name: &'static str, elapsed: Duration, count: u64) {
        let ns = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        match self.latency.iter_mut().find(|(known, _)| *known == name) {
            Some((_, histogram)) => histogram.saturating_record_n(ns.max(1), count),
            None => {
                let mut histogram = new_histogram();
                histogram.saturating_record_n(ns.max(1), count);
                self.latency.push((name, histogram));
            }
        }
    }

    /// Counts a block whose content was checked, and whether it was wrong.
    pub fn verified(&mut self, right: bool) {
        self.checks.verified += 1;
        self.checks.wrong += u64::from(!right);
    }

    /// Counts blocks whose content was checked, `wrong` of them wrong.
    pub fn verified_many(&mut self, count: u64, wrong: u64) {
        self.checks.verified += count;
        self.checks.wrong += wrong;
    }

    /// Counts an operation that failed.
    pub fn failed(&mut self) {
        self.checks.failed += 1;
    }

    /// Adds to the checksum over the sample of blocks ([`Checks::checksum`]).
    pub fn checksum(&mut self, part: u64) {
        self.checks.checksum = self.checks.checksum.wrapping_add(part);
    }

    /// Adds to a figure that only this experiment has; the values of all workers are summed.
    pub fn figure(&mut self, name: &'static str, value: f64) {
        *self.figures.entry(name).or_insert(0.0) += value;
    }
}

/// An empty latency histogram: 1 ns to 10 minutes at three significant digits.
pub fn new_histogram() -> Histogram<u64> {
    match Histogram::new_with_bounds(1, 600_000_000_000, 3) {
        Ok(histogram) => histogram,
        Err(_) => unreachable!("the bounds are constants that the histogram allows"),
    }
}

/// Runs the workers for the planned time and reports each tick as it ends.
///
/// Every worker must call [`Worker::start`] exactly once, or return an error before it; the others are then released.
///
/// # Errors
/// The first worker's error. `WrongData` is not an error here: it is in the outcome's checks.
pub fn run(plan: &Measurement<'_>, works: Vec<Work<'_>>, on_tick: &mut dyn FnMut(&Tick)) -> Result<Outcome> {
    run_then(plan, works, on_tick, &|| {})
}

/// Like [`run`], but also calls `at_end` when the time is over, while workers may still be at their last operations. A
/// dedicated thread makes the call, so that it is on time even when the sampling thread is not: while workers keep a
/// memory limit exhausted, reading a counter or reporting a tick needs memory from the kernel and may wait as long as
/// they work.
///
/// # Errors
/// As [`run`].
pub fn run_then(
    plan: &Measurement<'_>,
    works: Vec<Work<'_>>,
    on_tick: &mut dyn FnMut(&Tick),
    at_end: &(dyn Fn() + Sync),
) -> Result<Outcome> {
    let slots: Vec<Slot> = works.iter().map(|_| Slot::default()).collect();
    let stop = AtomicBool::new(false);
    let barrier = Barrier::new(works.len() + 1);
    let begun = Barrier::new(2);
    let merged = Mutex::new(Totals::default());
    let (ended, workers_ended) = mpsc::channel::<()>();
    let mut outcome = Outcome { started_unix_ms: unix_ms(), ..Outcome::default() };

    std::thread::scope(|scope| {
        for (work, slot) in works.into_iter().zip(&slots) {
            let (stop, barrier, merged, ended) = (&stop, &barrier, &merged, ended.clone());
            scope.spawn(move || {
                let mut worker = Worker {
                    stop,
                    slot,
                    barrier,
                    waited: false,
                    started: Instant::now(),
                    latency: vec![("op", new_histogram())],
                    figures: BTreeMap::new(),
                    checks: Checks::default(),
                };
                let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&mut worker)))
                    .unwrap_or_else(|_| Err(LabError::new(LabErrorKind::System, "a worker thread panicked")));
                if result.is_err() {
                    stop.store(true, Ordering::Relaxed);
                }
                if !worker.waited {
                    worker.wait_for_all();
                }
                merged.lock().unwrap_or_else(PoisonError::into_inner).take(worker, result);
                drop(ended);
            });
        }
        drop(ended);
        barrier.wait();
        // This thread is started before memory is short, and allocates nothing from then on.
        scope.spawn(|| {
            begun.wait();
            wait_for_end(&stop, plan.duration_max(), &slots);
            at_end();
        });
        let first = (Snapshot::take(plan.watch), Instant::now());
        begun.wait();
        barrier.wait();
        watch_until_done(plan, first, &slots, &stop, &workers_ended, &mut outcome, on_tick);
    });

    let merged = merged.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(error) = merged.error {
        return Err(error);
    }
    outcome.checks = merged.checks;
    outcome.latency = merged.latency.iter().map(|(name, all)| ((*name).to_owned(), Latency::of(all))).collect();
    outcome.figures = merged.figures.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    outcome.partial = plan.cancel.load(Ordering::Relaxed);
    finish_windows(&mut outcome);
    if plan.fill_first && plan.memory_bytes.is_some() && outcome.full_at_s.is_none() {
        outcome.warnings.push("memory never filled: nothing had to leave it for what came".into());
    }
    Ok(outcome)
}

/// The summed results of all workers, and the first error.
#[derive(Default)]
struct Totals {
    latency: BTreeMap<&'static str, Histogram<u64>>,
    figures: BTreeMap<&'static str, f64>,
    checks: Checks,
    error: Option<LabError>,
}

impl Totals {
    fn take(&mut self, worker: Worker<'_>, result: Result<()>) {
        for (name, histogram) in worker.latency.into_iter().filter(|(_, histogram)| !histogram.is_empty()) {
            let all = self.latency.entry(name).or_insert_with(new_histogram);
            // Same bounds on both sides: adding cannot fail.
            let _ = all.add(histogram);
        }
        for (name, value) in worker.figures {
            *self.figures.entry(name).or_insert(0.0) += value;
        }
        self.checks.verified += worker.checks.verified;
        self.checks.wrong += worker.checks.wrong;
        self.checks.failed += worker.checks.failed;
        self.checks.checksum = self.checks.checksum.wrapping_add(worker.checks.checksum);
        if let (Err(error), None) = (result, &self.error) {
            self.error = Some(error);
        }
    }
}

/// Records ticks until the time is over, the run is cancelled, or all workers have ended.
fn watch_until_done(
    plan: &Measurement<'_>,
    (first, started): (Snapshot, Instant),
    slots: &[Slot],
    stop: &AtomicBool,
    workers_ended: &mpsc::Receiver<()>,
    outcome: &mut Outcome,
    on_tick: &mut dyn FnMut(&Tick),
) {
    let mut last = (first, started, 0, 0);
    let mut done = false;
    while !done {
        let next_tick = last.1 + plan.tick;
        let end = started + plan.duration_with(outcome.full_at_s);
        // Past its end the measurement continues, tick by tick, for its first operation.
        let until = if last.1 < end { next_tick.min(end) } else { next_tick };
        done = wait_for_tick(until, plan.cancel, workers_ended);
        done |= stop.load(Ordering::Relaxed) || is_over(end, slots);
        let (ops, bytes) = total(slots);
        let (now, at) = (Snapshot::take(plan.watch), Instant::now());
        let delta = now.since(&last.0);
        let tick = Tick {
            at_s: (at - started).as_secs_f64(),
            elapsed_s: (at - last.1).as_secs_f64(),
            ops: ops - last.2,
            bytes: bytes - last.3,
            counters: named(&delta),
        };
        if outcome.full_at_s.is_none() && memory_is_full(plan.memory_bytes, &delta) {
            outcome.full_at_s = Some(tick.at_s);
        }
        last = (now, at, ops, bytes);
        // A last tick of a few milliseconds is too short for a rate: it only counts in the totals.
        if tick.elapsed_s >= plan.tick.as_secs_f64() / 4.0 {
            on_tick(&tick);
            outcome.ticks.push(tick);
        }
    }
    stop.store(true, Ordering::Relaxed);
    outcome.elapsed_s = (last.1 - started).as_secs_f64();
    (outcome.ops, outcome.bytes) = (last.2, last.3);
    outcome.counters = named(&last.0.since(&first));
}

/// Waits until the measurement has ended, and stops it when its time is over. The thread only sleeps, because a thread
/// that needs memory from the kernel may not get it.
fn wait_for_end(stop: &AtomicBool, most: Duration, slots: &[Slot]) {
    let end = Instant::now() + most + END_GRACE;
    while !stop.load(Ordering::Relaxed) {
        if is_over(end, slots) {
            stop.store(true, Ordering::Relaxed);
            return;
        }
        let left = end.saturating_duration_since(Instant::now());
        std::thread::sleep(left.clamp(Duration::from_millis(1), Duration::from_millis(20)));
    }
}

/// Whether a measurement that should end at `end` is over: then, or with its first operation if that comes later.
fn is_over(end: Instant, slots: &[Slot]) -> bool {
    let late = Instant::now().checked_duration_since(end);
    late.is_some_and(|late| total(slots).0 > 0 || late >= FIRST_OPERATION)
}

/// Sleeps until `until`; returns true when the measurement must end now.
fn wait_for_tick(until: Instant, cancel: &AtomicBool, workers_ended: &mpsc::Receiver<()>) -> bool {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if cancel.load(Ordering::Relaxed) {
            return true;
        }
        if left.is_zero() {
            return false;
        }
        // The channel carries no messages: it disconnects when the last worker has ended.
        if workers_ended.recv_timeout(left.min(Duration::from_millis(100))) == Err(mpsc::RecvTimeoutError::Disconnected)
        {
            return true;
        }
    }
}

fn total(slots: &[Slot]) -> (u64, u64) {
    slots.iter().map(Slot::read).fold((0, 0), |(ops, bytes), slot| (ops + slot.0, bytes + slot.1))
}

fn named(delta: &Delta) -> BTreeMap<String, f64> {
    delta.named().into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Whether memory is full: the limited cgroup is at its limit, or, where no cgroup is watched, pages are being evicted.
fn memory_is_full(limit_bytes: Option<u64>, tick: &Delta) -> bool {
    let Some(limit) = limit_bytes else { return false };
    match tick.cgroup_memory_bytes {
        Some(used) => used as f64 >= limit as f64 * 0.97,
        None => tick.pgsteal_file.unwrap_or(0) > 256,
    }
}

/// Sums up the ticks of the steady window: those after memory was full, or all but the first if memory did not fill.
fn finish_windows(outcome: &mut Outcome) {
    let from_s = match outcome.full_at_s {
        Some(full) => full,
        None => outcome.ticks.first().map_or(0.0, |tick| tick.at_s),
    };
    let counted: Vec<&Tick> = outcome.ticks.iter().filter(|tick| tick.at_s > from_s).collect();
    if counted.len() < 2 {
        if outcome.full_at_s.is_some() {
            outcome.warnings.push("memory filled too late: fewer than two ticks remained, whole trial shown".into());
        }
        return;
    }
    let mut window = Window { from_s, ..Window::default() };
    for tick in counted {
        window.elapsed_s += tick.elapsed_s;
        window.ops += tick.ops;
        window.bytes += tick.bytes;
        for (name, value) in &tick.counters {
            let sum = window.counters.entry(name.clone()).or_insert(0.0);
            if is_level(name) { *sum = *value } else { *sum += value }
        }
    }
    outcome.steady = Some(window);
}

/// Whether a counter is a level (bytes at one moment), whose last value counts, and not a sum over time.
pub fn is_level(name: &str) -> bool {
    matches!(
        name,
        "page_cache_bytes"
            | "free_bytes"
            | "available_bytes"
            | "dirty_bytes"
            | "page_tables_bytes"
            | "cgroup_memory_bytes"
            | "cgroup_page_cache_bytes"
    )
}

/// The present time in milliseconds since 1970 UTC.
pub fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
