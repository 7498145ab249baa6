//! What a read and a restored page cost, as the pool itself measures it: times, smoothed over the last few dozens.
//!
//! A read costs a thread waiting for it the time of the wait, if a CPU is free to do nothing. That is so
//! while no more threads read than there are CPUs. With more of them the CPUs have other work during a wait, and so it
//! counts for a part.
//!
//! A task does not keep its thread: others go on. But all tasks wait for the same device, or for the CPU time that their
//! reads take. So a read of a task costs the time from one completed read to the next while the device has reads: the time
//! in which one read fewer would let the tasks go on with other work, whatever it is that bounds them.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Costs assumed before anything was measured.
const WAIT_NS: u64 = 50_000;
const PACE_NS: u64 = 10_000;
const DECOMPRESSION_NS: u64 = 2_000;
/// Nanoseconds that a restored page takes in addition to its decompression: to find the block, take a frame and install
/// the page.
const INSTALLATION_NS: u64 = 1_500;
/// Share with which a new time counts, as a divisor.
const SMOOTHED_OVER: u64 = 16;
/// Highest time that counts, as a multiple of the smoothed one: a thread may have lost its CPU.
const OUTLIER: u64 = 4;
/// Numbers of threads that are told apart. When three quarters of them were seen, more threads read than can be counted.
const THREADS: usize = 256;

/// Times of reads and decompressions, and the number of threads waiting for reads.
#[derive(Debug)]
pub(super) struct Costs {
    wait_ns: AtomicU64,
    /// Time from one completed read to the next while there are reads.
    pace_ns: AtomicU64,
    decompression_ns: AtomicU64,
    /// The threads that have waited for a read in the current window, as bits.
    threads: [AtomicU64; THREADS / 64],
    /// The number of threads that waited for a read in the last window.
    threads_before: AtomicUsize,
    cpus: usize,
}

impl Costs {
    pub(super) fn new() -> Self {
        Self::with_cpus(std::thread::available_parallelism().map_or(1, usize::from))
    }

    fn with_cpus(cpus: usize) -> Self {
        Self {
            wait_ns: AtomicU64::new(WAIT_NS),
            pace_ns: AtomicU64::new(PACE_NS),
            decompression_ns: AtomicU64::new(DECOMPRESSION_NS),
            threads: [const { AtomicU64::new(0) }; THREADS / 64],
            threads_before: AtomicUsize::new(0),
            cpus,
        }
    }

    /// Returns the cost of a restored page, in nanoseconds.
    pub(super) fn restored_ns(&self) -> u64 {
        self.decompression_ns.load(Ordering::Relaxed) + INSTALLATION_NS
    }

    /// Returns the cost of a read for which a thread waits, in nanoseconds; at least the cost of a restored page.
    pub(super) fn waited_read_ns(&self) -> u64 {
        let threads = self.thread_count().max(self.threads_before.load(Ordering::Relaxed));
        let wait_ns = self.wait_ns.load(Ordering::Relaxed);
        let share = match threads {
            _ if threads > THREADS / 4 * 3 => 0,
            _ if threads > self.cpus => wait_ns * self.cpus as u64 / threads as u64,
            _ => wait_ns,
        };
        share.max(self.restored_ns())
    }

    /// Returns the cost of a read for which a task waits, in nanoseconds; at least the cost of a restored page.
    pub(super) fn task_read_ns(&self) -> u64 {
        self.pace_ns.load(Ordering::Relaxed).max(self.restored_ns())
    }

    /// Notes that it took so long from one completed read to the next.
    pub(super) fn note_pace(&self, time: Duration) {
        smooth(&self.pace_ns, time);
    }

    /// Notes that the calling thread has waited so long for a read.
    pub(super) fn note_wait(&self, time: Duration) {
        static NUMBERS: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static NUMBER: usize = NUMBERS.fetch_add(1, Ordering::Relaxed) % THREADS;
        }
        // In a thread that is ending the thread-local value may be gone.
        self.note_wait_of(NUMBER.try_with(|number| *number).unwrap_or(0), time);
    }

    fn note_wait_of(&self, thread: usize, time: Duration) {
        let (word, bit) = (&self.threads[thread / 64], 1 << (thread % 64));
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
        smooth(&self.wait_ns, time);
    }

    /// Notes that the decompression of a page has taken so long.
    pub(super) fn note_decompression(&self, time: Duration) {
        smooth(&self.decompression_ns, time);
    }

    fn thread_count(&self) -> usize {
        self.threads.iter().map(|word| word.load(Ordering::Relaxed).count_ones() as usize).sum()
    }

    /// Restarts the count of threads.
    pub(super) fn begin_window(&self) {
        self.threads_before.store(self.thread_count(), Ordering::Relaxed);
        self.threads.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }
}

/// Moves a smoothed time towards a new one. Of two threads that do this at once, one may be without effect.
fn smooth(smoothed_ns: &AtomicU64, time: Duration) {
    let before = smoothed_ns.load(Ordering::Relaxed);
    let new = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).min(before.max(1) * OUTLIER);
    smoothed_ns.store(before - before / SMOOTHED_OVER + new / SMOOTHED_OVER, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICROSECOND: Duration = Duration::from_micros(1);

    #[test]
    fn costs_follow_what_was_measured_and_few_long_waits_do_not_matter() {
        let costs = Costs::with_cpus(4);
        assert!(costs.waited_read_ns() > 10 * costs.restored_ns());
        (0..200).for_each(|_| costs.note_wait_of(1, 1000 * MICROSECOND));
        (0..200).for_each(|_| costs.note_decompression(20 * MICROSECOND));
        let near = |got: u64, wanted: u64| got > wanted - wanted / 8 && got < wanted + wanted / 8;
        assert!(near(costs.waited_read_ns(), 1_000_000), "{costs:?}");
        assert!(near(costs.restored_ns(), 20_000 + INSTALLATION_NS), "{costs:?}");
        costs.note_wait_of(1, Duration::from_secs(100));
        assert!(costs.waited_read_ns() < 1_300_000, "{costs:?}");
        (0..400).for_each(|_| costs.note_wait_of(1, Duration::ZERO));
        assert_eq!(costs.waited_read_ns(), costs.restored_ns(), "never less than a restored page");
        (0..200).for_each(|_| costs.note_pace(100 * MICROSECOND));
        assert!(near(costs.task_read_ns(), 100_000), "{costs:?}");
        (0..400).for_each(|_| costs.note_pace(Duration::ZERO));
        assert_eq!(costs.task_read_ns(), costs.restored_ns(), "never less than a restored page");
    }

    #[test]
    fn with_more_threads_than_cpus_a_wait_counts_for_a_part() {
        let cost_of = |threads: usize| {
            let costs = Costs::with_cpus(4);
            (0..threads.max(10) * 40).for_each(|at| costs.note_wait_of(at % threads, 60 * MICROSECOND));
            costs.begin_window();
            costs.note_wait_of(0, 60 * MICROSECOND);
            costs.waited_read_ns() * 10 / costs.restored_ns()
        };
        let alone = cost_of(1);
        assert_eq!(cost_of(4), alone);
        assert!(cost_of(8) < alone * 6 / 10 && cost_of(8) > alone * 4 / 10, "{} of {alone}", cost_of(8));
        assert_eq!((cost_of(100), cost_of(THREADS)), (10, 10), "of one restored page");
    }
}
