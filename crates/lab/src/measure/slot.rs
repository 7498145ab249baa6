//! The counts of one worker, which the sampling thread reads while the worker runs.
//!
//! Kept true by: the two numbers are read as of one moment. Read one after the other they would differ by the worker's steps between
//! the two, which is much where the sampling thread lost its CPU there, and the record of the trial would contradict itself.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// The operations and bytes that one worker has finished so far, on a separate cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Slot {
    /// Odd while the worker changes the counts, and another number after each change (a sequence lock).
    version: AtomicU64,
    ops: AtomicU64,
    bytes: AtomicU64,
}

impl Slot {
    /// Adds finished operations and their bytes. Only the worker of this slot calls it, so load and store need not be one step.
    pub(super) fn add(&self, ops: u64, bytes: u64) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Relaxed);
        // No count is changed before the version says so.
        fence(Ordering::Release);
        self.ops.store(self.ops.load(Ordering::Relaxed) + ops, Ordering::Relaxed);
        self.bytes.store(self.bytes.load(Ordering::Relaxed) + bytes, Ordering::Relaxed);
        self.version.store(version + 2, Ordering::Release);
    }

    /// Returns operations and bytes as of one moment. Waits while the worker is between the two, and takes no lock that could hold it up.
    pub(super) fn read(&self) -> (u64, u64) {
        loop {
            let version = self.version.load(Ordering::Acquire);
            let counts = (self.ops.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed));
            // The version is read again after the counts.
            fence(Ordering::Acquire);
            if version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version {
                return counts;
            }
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn operations_and_bytes_are_of_one_moment_while_the_worker_counts() {
        let (slot, stop) = (Slot::default(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut ops = 0;
                loop {
                    ops = ops % 7 + 1;
                    slot.add(ops, ops * 4096);
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            let mut last = 0;
            let torn = (0..200_000).map(|_| slot.read()).find(|&(ops, bytes)| {
                let is_back = ops < last;
                last = ops;
                is_back || bytes != ops * 4096
            });
            stop.store(true, Ordering::Relaxed);
            assert_eq!(torn, None);
        });
        assert!(slot.read().0 > 0);
    }
}
