//! Bounds the work of one poll, and of one hold of a lock that an executor's thread takes.
//!
//! A loop spends a step of a [`Budget`] for each element when its length grows with a batch, a snapshot, the pool or
//! the history. When the budget is spent, the loop releases its lock, or lets other tasks run, and continues with a new
//! budget.
//!
//! Invariant: a step is an access to memory in no cache, or about a quarter of a microsecond; work that
//! takes longer spends several. So [`STEPS_MAX`] steps take half a millisecond. The largest number of steps that a
//! thread spent on one budget is recorded, so that tests compare it for inputs of different sizes, without a clock.

use std::cell::Cell;

/// Number of steps of one budget.
pub(crate) const STEPS_MAX: usize = 2048;

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

/// The steps that a loop may take before it releases its lock or lets other tasks run.
#[derive(Debug)]
pub(crate) struct Budget {
    spent: usize,
}

impl Budget {
    /// Returns a budget of [`STEPS_MAX`] steps.
    pub(crate) fn new() -> Self {
        Self { spent: 0 }
    }

    /// Spends `steps`. The last piece of work may take more steps than are left, but not more than a whole budget.
    #[inline]
    pub(crate) fn spend(&mut self, steps: usize) {
        self.spent += steps;
    }

    /// Returns whether no steps are left.
    #[inline]
    pub(crate) fn is_spent(&self) -> bool {
        self.spent >= STEPS_MAX
    }
}

impl Drop for Budget {
    fn drop(&mut self) {
        LARGEST.set(LARGEST.get().max(self.spent));
    }
}

/// Returns the largest number of steps that this thread spent on one budget since the last call of this function.
#[cfg(test)]
pub(crate) fn take_largest() -> usize {
    LARGEST.replace(0)
}
