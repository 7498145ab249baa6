//! The accesses of a trace as they are replayed: each recorded thread's, in the data of the lab. Does no I/O.
//!
//! Kept true by: a step lies wholly inside the data; the accesses of a recorded thread are in the order of their times.

use std::time::Duration;

use super::RECORDED;
use crate::machine::content::{BLOCK_BYTES, block_offset};
use crate::trace::{Op, Trace};

/// Most bytes that one step moves. A longer access is replayed as several steps.
pub(super) const STEP_BYTES_MAX: u64 = 1 << 20;
/// Most recorded threads. The first threads make the accesses of further ones.
const THREADS_MAX: u32 = 256;

/// One access to the data file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Step {
    /// Position in the data file, whose first block is the lab's header.
    pub(super) offset_bytes: u64,
    /// Number of bytes; 0 for a sync.
    pub(super) len_bytes: usize,
    pub(super) op: Op,
    /// The time at which the access is due, from the start of the replay.
    pub(super) due: Duration,
}

impl Step {
    /// The whole blocks in which the step lies: the offset of the first, and their bytes.
    pub(super) fn blocks(&self) -> (u64, usize) {
        let block = BLOCK_BYTES as u64;
        let (from, end) = (self.offset_bytes / block * block, self.offset_bytes + self.len_bytes as u64);
        (from, (end.next_multiple_of(block) - from) as usize)
    }
}

/// The accesses of a trace by recorded thread.
#[derive(Debug)]
pub(super) struct Steps {
    /// The accesses of each thread.
    pub(super) threads: Vec<Vec<Step>>,
    /// The time at which the last access is due.
    pub(super) span: Duration,
    /// Whether each access is due at its recorded time.
    pub(super) is_timed: bool,
}

impl Steps {
    /// Prepares a trace for data of `data_bytes`. The recorded variant has the accesses of the first `seconds`. An offset behind
    /// the data is counted from the start again.
    pub(super) fn of(trace: &Trace, data_bytes: u64, variant: &str, seconds: f64) -> Self {
        let (first_s, _) = trace.span();
        let count = (trace.threads.len() as u32).clamp(1, THREADS_MAX);
        let mut threads = vec![Vec::new(); count as usize];
        let end = whole_ns(seconds);
        for access in &trace.accesses {
            let due = whole_ns(access.at_s - first_s);
            if variant == RECORDED && due > end {
                continue;
            }
            let thread: &mut Vec<Step> = &mut threads[(access.thread % count) as usize];
            if access.op == Op::Sync {
                thread.push(Step { offset_bytes: block_offset(0), len_bytes: 0, op: Op::Sync, due });
                continue;
            }
            let mut at = access.offset_bytes % data_bytes.max(1);
            // An access is as long as the data at most: a longer one would only meet the same blocks again.
            let mut left = access.length_bytes.min(data_bytes);
            while left > 0 {
                let len = left.min(STEP_BYTES_MAX).min(data_bytes - at);
                thread.push(Step { offset_bytes: block_offset(0) + at, len_bytes: len as usize, op: access.op, due });
                at = (at + len) % data_bytes;
                left -= len;
            }
        }
        threads.retain(|thread| !thread.is_empty());
        threads.iter_mut().for_each(|thread| thread.sort_by_key(|step| step.due));
        let span = threads.iter().filter_map(|thread| thread.last()).map(|step| step.due).max().unwrap_or_default();
        Self { threads, span, is_timed: variant == RECORDED }
    }

    /// Bytes of the blocks of the longest step.
    pub(super) fn block_bytes_max(&self) -> usize {
        self.threads.iter().flatten().map(|step| step.blocks().1).max().unwrap_or(0).max(BLOCK_BYTES)
    }
}

/// A time in whole nanoseconds, so that it stays the same through the parameters of a trial.
fn whole_ns(seconds: f64) -> Duration {
    Duration::from_nanos((seconds.max(0.0) * 1e9).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::replay::FAST;
    use crate::trace::Access;
    use crate::trace::made::Shape;

    fn trace(accesses: &[(u64, u64, Op, u32, f64)]) -> Trace {
        let access =
            |&(offset_bytes, length_bytes, op, thread, at_s)| Access { offset_bytes, length_bytes, op, thread, at_s };
        let threads = accesses.iter().map(|access| access.3).max().map_or(0, |most| most + 1);
        Trace {
            accesses: accesses.iter().map(access).collect(),
            threads: (0..threads).map(|thread| thread.to_string()).collect(),
            is_cut: false,
        }
    }

    #[test]
    fn every_thread_has_its_accesses_in_time_order_and_inside_the_data() {
        let data = 64 << 10;
        for seed in 0..50 {
            let trace = Trace::made(seed, Shape { count: 300, threads: 5, ..Shape::default() });
            let steps = Steps::of(&trace, data, FAST, 1.0);
            assert_eq!(steps.threads.len(), 5);
            for step in steps.threads.iter().flatten() {
                let (from, len) = step.blocks();
                assert!(from >= 4096 && from + len as u64 <= data + 4096, "seed {seed}: {step:?}");
                assert!(from <= step.offset_bytes && len >= step.len_bytes && len as u64 <= STEP_BYTES_MAX + 8192);
            }
            assert!(steps.threads.iter().all(|thread| thread.is_sorted_by_key(|step| step.due)), "seed {seed}");
            let moved =
                |op: Op| trace.accesses.iter().filter(move |access| access.op == op).map(|access| access.length_bytes);
            for op in [Op::Read, Op::Write] {
                let replayed: usize =
                    steps.threads.iter().flatten().filter(|step| step.op == op).map(|step| step.len_bytes).sum();
                assert_eq!(replayed as u64, moved(op).sum::<u64>(), "seed {seed}: all bytes are replayed");
            }
            let syncs = steps.threads.iter().flatten().filter(|step| step.op == Op::Sync).count();
            assert_eq!(syncs, trace.count(Op::Sync), "seed {seed}");
        }
    }

    #[test]
    fn only_the_first_seconds_are_replayed_at_the_recorded_times() {
        let trace = trace(&[(0, 10, Op::Read, 0, 7.0), (9, 10, Op::Read, 1, 7.25), (0, 1, Op::Write, 0, 9.0)]);
        let recorded = Steps::of(&trace, 8192, RECORDED, 1.0);
        assert_eq!((recorded.threads.len(), recorded.span), (2, Duration::from_millis(250)));
        let again = Steps::of(&trace, 8192, RECORDED, recorded.span.as_secs_f64());
        assert_eq!(again.threads, recorded.threads, "the planned time selects the same accesses");
        assert_eq!(Steps::of(&trace, 8192, FAST, 1.0).threads[0].len(), 2);
    }

    #[test]
    fn a_long_access_is_cut_and_one_behind_the_data_begins_again() {
        let steps = |offset, length, data| {
            let trace = trace(&[(offset, length, Op::Read, 0, 0.0)]);
            Steps::of(&trace, data, FAST, 1.0)
                .threads
                .concat()
                .iter()
                .map(|step| (step.offset_bytes, step.len_bytes))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            steps(0, 3 << 20, 8 << 20),
            [(4096, 1 << 20), (4096 + (1 << 20), 1 << 20), (4096 + (2 << 20), 1 << 20)]
        );
        assert_eq!(steps(8192 + 100, 50, 8192), [(4096 + 100, 50)]);
        assert_eq!(steps(8000, 1000, 8192), [(4096 + 8000, 192), (4096, 808)]);
        assert_eq!(steps(u64::MAX, u64::MAX, 8192).iter().map(|(_, len)| len).sum::<usize>(), 8192);
    }
}
