//! The open loop: blocks are asked for at a fixed rate, whether or not the ones before have come back.
//!
//! A closed loop asks for the next block when the last one is there: a stall of 10 ms costs one sample. Here everyone who
//! should have started meanwhile is late as well, and `open_loop` counts from when each *should* have started, beside
//! `op`, the time from when it did. The gap between the two is what closed-loop figures leave out (coordinated omission).

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use nofault_io::completion::{Op, OpKind};
use nofault_io::disk::Queue;
use rustix::event::{PollFd, PollFlags, Timespec};

use super::batches::{Ring, Setup, take};
use super::blocking::{Blocking, Way};
use super::closed::{Go, note};
use super::place::{PROOF_BLOCKS, Place};
use crate::error::{LabError, Result};
use crate::machine::content;
use crate::measure::Worker;

/// Nobody sleeps to the microsecond: the last stretch is waited for awake.
const AWAKE: Duration = Duration::from_micros(60);
/// Longest wait before looking whether the cell has ended.
const NAP_MAX: Duration = Duration::from_millis(20);

/// When each block is due.
struct Schedule {
    started: Instant,
    interval_s: f64,
    next: u64,
}

impl Schedule {
    fn new(rate_per_s: f64) -> Self {
        // The kernel may otherwise wake us 50 us late (the default slack), which would be counted as the contender's.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        Self { started: Instant::now(), interval_s: 1.0 / rate_per_s, next: 0 }
    }

    /// When the next block should start.
    fn due(&self) -> Instant {
        self.started + Duration::from_secs_f64(self.next as f64 * self.interval_s)
    }

    /// Waits until the next block is due; false when the cell ended before.
    fn wait(&self, worker: &Worker<'_>) -> bool {
        let due = self.due();
        while worker.running() {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            match left.checked_sub(AWAKE) {
                Some(sleep) => std::thread::sleep(sleep.min(NAP_MAX)),
                None => std::hint::spin_loop(),
            }
        }
        false
    }

    /// Writes down how many should have started and did not.
    fn close(&self, worker: &mut Worker<'_>) {
        let should = (self.started.elapsed().as_secs_f64() / self.interval_s) as u64;
        worker.figure("reads_scheduled", should as f64);
        worker.figure("reads_started", self.next as f64);
    }
}

/// Reads at a fixed rate, waiting for each block: one that takes long delays those behind it.
///
/// # Errors
/// What opening or reading says.
pub(super) fn blocking(
    worker: &mut Worker<'_>,
    mut place: Place,
    way: Way,
    rate_per_s: f64,
    go: &Go<'_>,
) -> Result<()> {
    let mut source = Blocking::open(&place, way, false)?;
    worker.start();
    let mut schedule = Schedule::new(rate_per_s);
    while schedule.wait(worker) {
        let (due, index) = (schedule.due(), place.next());
        let began = Instant::now();
        let seen = source.read(index, schedule.next)?;
        let ended = Instant::now();
        worker.latency("op", ended - began);
        worker.latency("open_loop", ended - due);
        note(worker, seen);
        schedule.next += 1;
    }
    schedule.close(worker);
    // The proof covers the same blocks in every cell, also where the rate was low.
    for ordinal in schedule.next..PROOF_BLOCKS {
        if go.cancelled() {
            break;
        }
        let seen = source.read(place.next(), ordinal)?;
        note(worker, seen);
    }
    Ok(())
}

/// A block on its way.
#[derive(Clone, Copy)]
struct Flight {
    index: u64,
    ordinal: u64,
    due: Instant,
    began: Instant,
}

/// Reads at a fixed rate through a ring, which keeps up to `depth` in flight.
///
/// # Errors
/// What opening or reading says.
pub(super) fn ring(
    worker: &mut Worker<'_>,
    mut place: Place,
    depth: u32,
    setup: Setup,
    rate_per_s: f64,
    go: &Go<'_>,
) -> Result<()> {
    let mut ring = Ring::open(&place, depth, setup, false, true)?;
    let mut flights: Vec<Option<Flight>> = vec![None; depth as usize];
    let mut free: Vec<usize> = (0..depth as usize).collect();
    worker.start();
    let mut schedule = Schedule::new(rate_per_s);
    while worker.running() {
        let mut pushed = false;
        while schedule.due() <= Instant::now() {
            let Some(slot) = free.pop() else { break };
            let flight =
                Flight { index: place.next(), ordinal: schedule.next, due: schedule.due(), began: Instant::now() };
            launch(&mut ring, slot, flight)?;
            flights[slot] = Some(flight);
            schedule.next += 1;
            pushed = true;
        }
        if pushed {
            ring.queue.submit()?;
        }
        if land(worker, &mut ring, &mut flights, &mut free, 0)? == 0 && !free.is_empty() {
            if free.len() == depth as usize {
                schedule.wait(worker);
            } else {
                wait_for_ring(&ring, schedule.due())?;
            }
        } else if free.is_empty() {
            land(worker, &mut ring, &mut flights, &mut free, 1)?;
        }
    }
    schedule.close(worker);
    // Those under way count: leaving them out would leave out the slowest.
    land(worker, &mut ring, &mut flights, &mut free, depth as usize)?;
    for ordinal in schedule.next..PROOF_BLOCKS {
        if go.cancelled() {
            break;
        }
        ring.read(&[place.next()], ordinal, |seen| note(worker, seen))?;
    }
    Ok(())
}

fn launch(ring: &mut Ring, slot: usize, flight: Flight) -> Result<()> {
    let Some(buffer) = ring.buffers.pop() else { return Ok(()) };
    ring.push(Op::new(slot as u64, content::block_offset(flight.index), OpKind::Read(buffer)))
}

/// Takes what has come back, at least `wait_for` of it; answers how many.
fn land(
    worker: &mut Worker<'_>,
    ring: &mut Ring,
    flights: &mut [Option<Flight>],
    free: &mut Vec<usize>,
    wait_for: usize,
) -> Result<usize> {
    ring.queue.reap(wait_for, &mut ring.done)?;
    let ended = Instant::now();
    let landed = ring.done.len();
    while let Some(completion) = ring.done.pop() {
        let slot = completion.op.token as usize;
        let buffer = take(completion)?;
        if let Some(flight) = flights.get_mut(slot).and_then(Option::take) {
            worker.latency("op", ended - flight.began);
            worker.latency("open_loop", ended - flight.due);
            note(worker, ring.look(&buffer, flight.index, flight.ordinal));
            free.push(slot);
        }
        ring.buffers.push(buffer);
    }
    Ok(landed)
}

/// Sleeps until something has come back or `due`.
fn wait_for_ring(ring: &Ring, due: Instant) -> Result<()> {
    let Some(descriptor) = ring.queue.ready_fd() else { return Ok(()) };
    let left = due.saturating_duration_since(Instant::now()).min(NAP_MAX);
    let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(left.subsec_nanos()) };
    match rustix::event::poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(LabError::system("wait for a ring", &error.into())),
    }
}
