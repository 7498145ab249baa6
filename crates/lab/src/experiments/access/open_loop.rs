//! The open loop: a worker requests blocks at a fixed rate, whether or not earlier blocks have arrived.
//!
//! A closed loop requests the next block when the last one has arrived: a stall of 10 ms costs one sample. Here every
//! request that should have started in that time is late as well, and `open_loop` counts from the moment when each
//! *should* have started, next to `op`, the time from its actual start. The gap between the two is missing from
//! closed-loop figures (coordinated omission).

use std::time::{Duration, Instant};

use nofault_io::completion::{Op, OpKind};
use nofault_io::disk::Queue;

use super::batches::{Ring, Setup, take};
use super::blocking::{Source, Way};
use super::closed::{Positions, note, sum_sample_by_ring};
use crate::error::Result;
use crate::measure::Worker;
use crate::read_loops::pace;
use crate::record::TrialSpec;
use crate::workload::{Layout, Place};

/// How long before a deadline the thread spins instead of sleeping, because no sleep is exact to the microsecond.
const AWAKE: Duration = Duration::from_micros(60);

/// The times at which requests are due at a fixed rate.
struct Schedule {
    started: Instant,
    interval_s: f64,
    next: u64,
}

impl Schedule {
    fn new(rate_per_s: f64) -> Self {
        pace::exact_timer();
        Self { started: Instant::now(), interval_s: 1.0 / rate_per_s, next: 0 }
    }

    /// Returns the time at which the next request is due.
    fn due(&self) -> Instant {
        self.started + Duration::from_secs_f64(self.next as f64 * self.interval_s)
    }

    /// Waits until the next request is due; returns false when the trial ended before that.
    fn wait(&self, worker: &Worker<'_>) -> bool {
        pace::wait_until(worker, self.due(), AWAKE)
    }

    /// Records the number of requests that were due and the number that were started.
    fn close(&self, worker: &mut Worker<'_>) {
        let should = (self.started.elapsed().as_secs_f64() / self.interval_s) as u64;
        worker.figure("reads_scheduled", should as f64);
        worker.figure("reads_started", self.next as f64);
    }
}

/// Reads at a fixed rate and waits for each block, so that a slow read delays the later reads.
///
/// # Errors
/// The error of opening or reading.
pub(super) fn blocking(
    worker: &mut Worker<'_>,
    spec: &TrialSpec,
    layout: &Layout,
    way: Way,
    rate_per_s: f64,
) -> Result<()> {
    let mut source = Source::open(layout, way)?;
    let mut positions = Positions::of(spec, layout);
    worker.start();
    let mut schedule = Schedule::new(rate_per_s);
    while schedule.wait(worker) {
        let (due, offset_bytes) = (schedule.due(), positions.next());
        let began = Instant::now();
        let right = source.read(layout, Place { file: 0, offset_bytes })?;
        let ended = Instant::now();
        worker.latency("op", ended - began);
        worker.latency("open_loop", ended - due);
        note(worker, right);
        schedule.next += 1;
    }
    schedule.close(worker);
    for place in Layout::sample(&spec.target, spec.seed) {
        worker.checksum(source.word(layout, place)?);
    }
    Ok(())
}

/// When a read in flight was due and when it began.
#[derive(Clone, Copy)]
struct Flight {
    due: Instant,
    began: Instant,
}

/// Reads at a fixed rate through a ring, which keeps up to its depth in flight.
///
/// # Errors
/// The error of opening or reading.
pub(super) fn ring(
    worker: &mut Worker<'_>,
    spec: &TrialSpec,
    layout: &Layout,
    setup: Setup,
    rate_per_s: f64,
) -> Result<()> {
    let depth = spec.params.depth as usize;
    let mut ring = Ring::open(layout, spec.params.depth, setup, false, true)?;
    let mut positions = Positions::of(spec, layout);
    let mut flights = Flights { of_slot: vec![None; depth], free: (0..depth).collect() };
    worker.start();
    let mut schedule = Schedule::new(rate_per_s);
    while worker.running() {
        let mut pushed = false;
        while schedule.due() <= Instant::now() {
            let (Some(slot), Some(buffer)) = (flights.free.pop(), ring.buffers.pop()) else { break };
            flights.of_slot[slot] = Some(Flight { due: schedule.due(), began: Instant::now() });
            ring.push(Op::new(slot as u64, positions.next(), OpKind::Read(buffer)))?;
            schedule.next += 1;
            pushed = true;
        }
        if pushed {
            ring.queue.submit()?;
        }
        if flights.free.is_empty() {
            flights.land(worker, layout, &mut ring, 1)?;
        } else if flights.land(worker, layout, &mut ring, 0)? == 0 {
            if flights.free.len() == depth {
                schedule.wait(worker);
            } else {
                pace::wait_for_completion(&ring.queue, schedule.due())?;
            }
        }
    }
    schedule.close(worker);
    // Reads still in flight count, because otherwise the slowest reads would be missing.
    flights.land(worker, layout, &mut ring, depth)?;
    sum_sample_by_ring(worker, spec, &mut ring)
}

/// The reads in flight, by their slot, and the free slots.
struct Flights {
    of_slot: Vec<Option<Flight>>,
    free: Vec<usize>,
}

impl Flights {
    /// Takes completed reads, at least `wait_for` of them, and records their latencies; returns their number.
    fn land(&mut self, worker: &mut Worker<'_>, layout: &Layout, ring: &mut Ring, wait_for: usize) -> Result<usize> {
        ring.queue.reap(wait_for, &mut ring.done)?;
        let ended = Instant::now();
        let completed = ring.done.len();
        while let Some(completion) = ring.done.pop() {
            let (slot, offset_bytes) = (completion.op.token as usize, completion.op.offset_bytes);
            let buffer = take(completion)?;
            if let Some(flight) = self.of_slot.get_mut(slot).and_then(Option::take) {
                worker.latency("op", ended - flight.began);
                worker.latency("open_loop", ended - flight.due);
                note(worker, layout.is_right(&buffer, offset_bytes));
                self.free.push(slot);
            }
            ring.buffers.push(buffer);
        }
        Ok(completed)
    }
}
