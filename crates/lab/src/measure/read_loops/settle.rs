//! Settles the memory of a trial before its clock starts: the method reads by its own means and in its own order until the
//! pages in memory are those that its own replacement keeps. Where some blocks are read more often than others this
//! decides the miss rate, which a fill with any pages ([`super::fill`]) would not show.
//!
//! The reads are the same for every method: first each block once, in scattered order, for as many as fit in memory; then
//! blocks in the trial's order, until a perfect cache would have replaced all its pages. Many requests are in flight, whatever
//! the trial then has.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{Pattern, memory_limit_of, order_seed};
use crate::error::{LabError, LabErrorKind, Result};
use crate::measure::workload::{Layout, Order, PAGE_BYTES, Scatter, Skew};
use crate::record::TrialSpec;

/// Number of requests in flight while memory settles.
pub const IN_FLIGHT: u32 = 64;
/// Least share of reads that miss, for the number of reads: rarer misses would take too long to replace all pages.
const MISSES_MIN: f64 = 0.02;
/// Longest time that memory may take to settle: this much, or this multiple of the trial's own time if that is longer.
const TIME_MAX: Duration = Duration::from_secs(20);
const TIME_MAX_SHARE: f64 = 20.0;
/// Makes the order of these reads another one than the trial's.
const OTHER_SEED: u64 = 0x5e77_1e00;

/// Reads blocks for one thread while memory settles.
pub type Reader<'a> = Box<dyn FnMut(&[u64]) -> Result<()> + 'a>;

/// Reads until memory has settled, with `threads` threads that each give `batch` blocks at a time to their reader.
/// Returns false when that took too long and was cut short.
///
/// # Errors
/// The first error of a reader; `Interrupted` when the user stops the run.
pub fn settle<'a>(
    spec: &TrialSpec,
    layout: &Layout,
    pattern: Pattern,
    (threads, batch): (u32, usize),
    cancel: &AtomicBool,
    reader: &(dyn Fn() -> Result<Reader<'a>> + Sync),
) -> Result<bool> {
    let blocks = layout.block_count();
    let per_block = (layout.block_bytes / PAGE_BYTES as u64).max(1);
    let fits = memory_limit_of(spec).map_or(blocks, |bytes| bytes / PAGE_BYTES as u64 / per_block);
    // One in twenty more than fits, so that eviction has begun.
    let sweep = blocks.min(fits + fits / 20);
    let plan = Plan {
        scatter: Scatter::over(blocks),
        sweep,
        total: sweep + turnover(pattern, blocks, fits),
        next: AtomicU64::new(0),
        end: Instant::now() + TIME_MAX.max(Duration::from_secs_f64(spec.duration_s.clamp(0.0, 1e6) * TIME_MAX_SHARE)),
        late: AtomicBool::new(false),
    };
    let failed = Mutex::new(None);
    std::thread::scope(|scope| {
        for order in pattern.orders_of(layout, order_seed(spec) ^ OTHER_SEED, threads) {
            let (plan, failed) = (&plan, &failed);
            scope.spawn(move || {
                if let Err(error) = reader().and_then(|mut reader| plan.work(order, batch, cancel, &mut reader)) {
                    failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                    plan.next.store(plan.total, Ordering::Relaxed);
                }
            });
        }
    });
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(!plan.late.into_inner()),
    }
}

/// Number of reads after which a perfect cache of `fits` blocks, which keeps the most popular ones, has missed as often as it has
/// blocks; as many reads as it has blocks where all data fits.
fn turnover(pattern: Pattern, blocks: u64, fits: u64) -> u64 {
    if fits >= blocks {
        return blocks;
    }
    let part = |of: u64, all: u64| of as f64 / all.max(1) as f64;
    let missed = match pattern {
        Pattern::Skewed(Skew::Zipf) => {
            // The harmonic numbers, as the constant 0.99 is nearly one.
            let harmonic = |count: u64| (count.max(1) as f64).ln() + 0.577;
            1.0 - harmonic(fits) / harmonic(blocks)
        }
        Pattern::Skewed(Skew::HotSet { blocks: hot, percent }) if hot < fits => {
            (1.0 - f64::from(percent) / 100.0) * (1.0 - part(fits - hot, blocks.saturating_sub(hot)))
        }
        _ => 1.0 - part(fits, blocks),
    };
    (fits as f64 / missed.max(MISSES_MIN)) as u64
}

/// The reads that are still to be made, shared by the threads.
struct Plan {
    scatter: Scatter,
    /// Number of blocks read once, in scattered order.
    sweep: u64,
    /// Number of all reads.
    total: u64,
    next: AtomicU64,
    end: Instant,
    late: AtomicBool,
}

impl Plan {
    fn work(&self, mut order: Order, batch: usize, cancel: &AtomicBool, reader: &mut Reader<'_>) -> Result<()> {
        let mut blocks = Vec::with_capacity(batch);
        loop {
            if cancel.load(Ordering::Relaxed) {
                return Err(LabError::new(LabErrorKind::Interrupted, "interrupted while memory settled"));
            }
            let from = self.next.fetch_add(batch as u64, Ordering::Relaxed);
            if from >= self.total {
                return Ok(());
            }
            if Instant::now() >= self.end {
                self.late.store(true, Ordering::Relaxed);
                return Ok(());
            }
            blocks.clear();
            let numbers = from..(from + batch as u64).min(self.total);
            blocks.extend(
                numbers.map(|number| if number < self.sweep { self.scatter.block(number) } else { order.next_block() }),
            );
            reader(&blocks)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rare_misses_take_more_reads_to_replace_all_pages() {
        let hot = |percent| Pattern::Skewed(Skew::HotSet { blocks: 500, percent });
        assert_eq!(turnover(Pattern::Random, 500, 1000), 500, "all data fits");
        assert_eq!(turnover(Pattern::Random, 2000, 1000), 2000, "every second read misses");
        // One in twenty leaves the hot set, and a fifteenth of these is found in the other half of memory.
        assert_eq!(turnover(hot(95), 8000, 1000), 21_428);
        assert_eq!(turnover(hot(100), 8000, 1000), 50_000, "bounded where nothing misses");
        let zipf = turnover(Pattern::Skewed(Skew::Zipf), 8000, 1000);
        assert!((3000..10_000).contains(&zipf), "{zipf}");
    }
}
