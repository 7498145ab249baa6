//! The WAL writer, the log's background work. It is the group-commit leader for tasks, and writes deferred commits
//! soon (the last ones when the database is closed). After a period without writes it writes a closing group, unless
//! every durable commit is already recorded as durable: rule 7 of the log.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::{Log, LogCore};
use crate::error::{Error, Result};
use crate::sync::background::{BackgroundWork, Kind, Next};

/// The time for which deferred commits are collected before they are written.
const DEFER: Duration = Duration::from_millis(2);
/// The period without writes after which a closing group is written.
const IDLE: Duration = Duration::from_millis(200);

/// The handle of the WAL writer; dropping it ends the WAL writer and writes the last deferred commits.
pub(crate) struct WalWriter {
    core: Weak<LogCore>,
    work: Option<BackgroundWork>,
}

impl Log {
    /// Starts the WAL writer: from now on tickets can be polled, and deferred commits become durable without a
    /// waiting caller.
    ///
    /// # Errors
    /// `NoResources` when the system has no threads left.
    pub(crate) fn start_writer(&self) -> Result<WalWriter> {
        let core = Arc::downgrade(&self.0);
        // Groups found at opening may have been acknowledged: a later group must state that they are durable.
        let pause = self.0.lock().must_watch().then_some(IDLE);
        let mut rounds = Rounds { core: Weak::clone(&core), seen: None, collects: false, was_notified: false };
        let round = move |_: &_, notified| rounds.round(notified);
        let (notifier, in_panic) = (Arc::clone(&self.0.notifier), self.poison_in_panic());
        let work = BackgroundWork::start(Kind::Log, notifier, Next::Wait(pause), in_panic, round)?;
        Ok(WalWriter { core, work: Some(work) })
    }

    /// Leaves deferred commits in memory until the buffer is full, a checkpoint needs them or the database is closed: nothing of
    /// the database counts before its end.
    pub(crate) fn leave_deferred_commits(&self) {
        self.0.lock().writer_duties.leaves_deferred = true;
    }

    /// Returns the function that a background thread calls when it panics ([`crate::sync::background::start`]). It poisons the
    /// log: the thread may have left pages, blocks or the log half changed, and operations may wait for the thread.
    pub(crate) fn poison_in_panic(&self) -> impl Fn(&Error) + Clone + Send + Sync + 'static {
        let core = Arc::downgrade(&self.0);
        move |error| {
            if let Some(core) = core.upgrade() {
                Self(core).poison(error);
            }
        }
    }
}

impl Drop for WalWriter {
    fn drop(&mut self) {
        drop(self.work.take());
        if let Some(core) = self.core.upgrade() {
            // Writes the last deferred commits. A caller that must know whether this worked calls `sync` before: the
            // log is closed now, even if this fails.
            let _ = Log(core).flush_acknowledged();
        }
    }
}

/// The state of the WAL writer between its rounds.
struct Rounds {
    core: Weak<LogCore>,
    /// The sequence number of the last durable group at the previous check.
    seen: Option<u64>,
    /// Set while deferred commits are collected.
    collects: bool,
    /// Whether there was a notification before they were.
    was_notified: bool,
}

impl Rounds {
    fn round(&mut self, notified: bool) -> Next {
        let Some(core) = self.core.upgrade() else { return Next::End };
        let collected = std::mem::take(&mut self.collects);
        let notified = if collected { self.was_notified } else { notified };
        let deferred = {
            let duties = &core.lock().writer_duties;
            duties.deferred_notified && !duties.soon_notified
        };
        if deferred && !collected {
            (self.collects, self.was_notified) = (true, notified);
            return Next::Wait(Some(DEFER));
        }
        let leadership = {
            let mut state = core.lock();
            state.writer_duties.looks();
            state.writer_duties.watches = !state.is_stated() && state.poisoned.is_none();
            if !notified && state.writer_duties.watches {
                let now = Some(state.durable_sequence);
                state.wants_closing |= state.pending.is_empty() && self.seen == now;
                self.seen = now;
            }
            // With nothing to write this thread must not keep another from becoming the leader.
            if state.has_work() { core.try_to_lead(&mut state) } else { None }
        };
        if let Some(leadership) = leadership {
            leadership.lead(None);
        }
        core.grow_where_wanted();
        let watches = core.lock().writer_duties.watches;
        Next::Wait(watches.then_some(IDLE))
    }
}
