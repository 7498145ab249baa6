//! Functions that the log calls: as commits become durable, after a write, and when the log has failed. They belong to the database
//! that the log is a part of.

use std::sync::OnceLock;

use super::Log;
use crate::error::Error;
use crate::format::{CommitSeq, Moment};

/// A function called with the newest durable commit, in commit order, before any waiter for that commit is woken.
pub(crate) type DurableHook = Box<dyn Fn(CommitSeq) + Send + Sync>;

/// A function called after the waiters of a write were woken.
pub(crate) type Afterwards = Box<dyn Fn() + Send + Sync>;

/// A function called once with the error of a log that has failed. The caller holds no lock of the log's state or writer.
pub(crate) type FailureHook = Box<dyn Fn(&Error) + Send + Sync>;

/// A function that returns the present moment. Called before each group is built, without a lock.
pub(crate) type TimeSource = Box<dyn Fn() -> Moment + Send + Sync>;

/// The functions of one log, each set once.
#[derive(Default)]
pub(super) struct Hooks {
    pub(super) durable: OnceLock<DurableHook>,
    pub(super) afterwards: OnceLock<Afterwards>,
    pub(super) failure: OnceLock<FailureHook>,
    pub(super) time: OnceLock<TimeSource>,
}

impl Log {
    /// Sets the hook called as commits become durable. Call it once, before the first commit.
    pub(crate) fn set_hook(&self, hook: DurableHook) {
        let set = self.0.hooks.durable.set(hook);
        debug_assert!(set.is_ok(), "the log has one hook");
    }

    /// Sets the function that the writing thread calls after it has woken the waiters, for work that no waiter needs.
    /// Call it once.
    pub(crate) fn set_afterwards(&self, afterwards: Afterwards) {
        let set = self.0.hooks.afterwards.set(afterwards);
        debug_assert!(set.is_ok(), "the log has one call for afterwards");
    }

    /// Sets the function called when the log has failed: nothing becomes durable from then on. Call it once, before the
    /// first commit.
    pub(crate) fn set_failure_hook(&self, hook: FailureHook) {
        let set = self.0.hooks.failure.set(hook);
        debug_assert!(set.is_ok(), "the log has one hook for its failure");
    }

    /// Sets the clock by which groups are dated; without one their time is not known. Call it once, before the first commit. It is asked
    /// under the log's lock.
    pub(crate) fn set_time_source(&self, source: TimeSource) {
        let set = self.0.hooks.time.set(source);
        debug_assert!(set.is_ok(), "the log has one clock");
    }
}
