//! Methods: the ways to read that are compared. Each is a lean loop, shared by the experiments.
//!
//! | module | methods |
//! |---|---|
//! | [`map`] | the mapped file, touched |
//! | [`sync`] | `pread`, buffered and direct, on threads |
//! | [`ring`] | io_uring, direct, one thread and many requests in flight |
//! | [`pool`] | the engine's own buffer pool |
//! | [`fio`] | fio, the outside baseline |
//!
//! [`overwrite`] overwrites a data file, and [`pace`] waits for the time of a request. [`fill`] fills memory before a trial's clock starts; [`settle`] also lets the method choose the pages that stay.
//!
//! Kept true by all of them: nothing is allocated and nothing is opened after the clock has started; every block is
//! verified while it is timed; the sample ([`Layout::sample`]) is summed up once the clock has stopped, because with
//! read-ahead 256 touches before it would already fill the memory.

pub mod fill;
pub mod fio;
pub mod map;
pub mod overwrite;
pub mod pace;
pub mod pool;
pub mod ring;
pub mod settle;
pub mod sync;

use std::time::Duration;

use crate::error::{LabError, LabErrorKind, Result};
use crate::measure::workload::{Layout, Order, Skew};
use crate::record::{MemoryMethod, TrialSpec};

/// The blocks that a trial reads, and their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// Blocks uniformly at random.
    Random,
    /// Blocks at random, some more often than others.
    Skewed(Skew),
    /// The blocks that a recorded program read, as the layout has them.
    Recorded,
    /// Blocks front to back; each thread takes the next part of `part_bytes` bytes.
    Scan {
        /// Bytes of one part, which one thread reads front to back.
        part_bytes: u64,
    },
}

impl Pattern {
    /// Makes one order for each thread of the trial.
    pub fn orders(self, layout: &Layout, spec: &TrialSpec) -> Vec<Order> {
        self.orders_of(layout, order_seed(spec), spec.params.threads)
    }

    /// Makes `count` orders from a seed: for threads, or for tasks of one thread.
    pub fn orders_of(self, layout: &Layout, seed: u64, count: u32) -> Vec<Order> {
        match self {
            Self::Random => (0..count).map(|reader| Order::random(layout, seed, reader)).collect(),
            Self::Skewed(skew) => Order::skewed(layout, skew, seed, count),
            Self::Recorded => Order::recorded(layout, count),
            Self::Scan { part_bytes } => Order::scan(layout, part_bytes, count),
        }
    }
}

/// The seed of a trial's random order, derived from the run's seed so that each trial and each repeat has its own. The
/// layers below this machine (a hypervisor, a disk array) cache too, and a second trial over the same blocks would read
/// them faster.
pub fn order_seed(spec: &TrialSpec) -> u64 {
    // FNV-1a.
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let numbers = spec.seed.to_le_bytes().into_iter().chain(spec.repeat.to_le_bytes());
    numbers.chain(spec.key().into_bytes()).fold(0xcbf2_9ce4_8422_2325, step)
}

/// Length of a tick: a second, or an eighth of a short trial, so that there are enough ticks to separate its phases.
pub fn tick_of(spec: &TrialSpec) -> Duration {
    Duration::from_secs_f64((spec.duration_s / 8.0).clamp(0.05, 1.0))
}

/// Length of the trial's measurement.
///
/// # Errors
/// `Usage` when the spec's number is no length of time.
pub fn duration_of(spec: &TrialSpec) -> Result<Duration> {
    Duration::try_from_secs_f64(spec.duration_s).map_err(|error| {
        LabError::new(LabErrorKind::Usage, format!("{}: {} seconds: {error}", spec.key(), spec.duration_s))
    })
}

/// Bytes at which the trial's memory is full, which separates the filling phase from the steady one; `None` without a
/// limit.
pub fn memory_limit_of(spec: &TrialSpec) -> Option<u64> {
    (spec.memory.method != MemoryMethod::None).then_some(spec.memory.bytes)
}

/// A `Usage` error for a method that the experiment does not have.
pub fn unknown(spec: &TrialSpec) -> LabError {
    LabError::new(LabErrorKind::Usage, format!("{}: unknown method '{}'", spec.experiment, spec.method))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::experiment::Available;
    use crate::experiments;

    #[test]
    fn no_trial_reads_in_the_order_of_an_earlier_one() {
        let plan =
            experiments::known(experiments::translate::ID).unwrap().plan(&Config::default(), &Available::default());
        let repeats =
            (0..3).flat_map(|repeat| plan.trials.iter().map(move |spec| TrialSpec { repeat, ..spec.clone() }));
        let seeds: Vec<u64> = repeats.map(|spec| order_seed(&spec)).collect();
        let distinct: std::collections::BTreeSet<_> = seeds.iter().collect();
        assert!(seeds.len() > 3 && distinct.len() == seeds.len());
        assert_eq!(order_seed(&plan.trials[0]), order_seed(&plan.trials[0].clone()), "and it can be repeated");
    }
}
