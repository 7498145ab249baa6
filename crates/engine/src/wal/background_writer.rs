//! The WAL writer, the log's background thread. It is the group-commit leader for tasks, and writes deferred commits
//! soon (the last ones when the database is closed). After a period without writes it writes a closing group, unless
//! every durable commit is already recorded as durable: rule 7 of the log.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use super::{Log, LogCore};
use crate::background;
use crate::error::{Error, Result};

/// The time for which deferred commits are collected before they are written.
const DEFER: Duration = Duration::from_millis(2);
/// The period without writes after which a closing group is written.
const IDLE: Duration = Duration::from_millis(200);

/// The handle of the WAL writer thread; dropping it ends the thread.
pub(crate) struct WalWriter {
    core: Weak<LogCore>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Log {
    /// Starts the WAL writer: from now on tickets can be polled, and deferred commits become durable without a
    /// waiting caller.
    ///
    /// # Errors
    /// `NoResources` when the system has no threads left.
    pub(crate) fn start_writer(&self) -> Result<WalWriter> {
        let stop = Arc::new(AtomicBool::new(false));
        let (core, seen) = (Arc::downgrade(&self.0), Arc::clone(&stop));
        self.0.notifier.set_listening(true);
        // Groups that were found at opening may have been acknowledged: a later group must state that they are durable.
        if self.0.lock().must_watch() {
            self.0.notifier.notify();
        }
        let thread = background::start("nofault-wal", self.poison_in_panic(), move || run(&core, &seen))?;
        Ok(WalWriter { core: Arc::downgrade(&self.0), stop, thread: Some(thread) })
    }

    /// Leaves deferred commits in memory until the buffer is full, a checkpoint needs them or the database is closed: nothing of
    /// the database counts before its end.
    pub(crate) fn leave_deferred_commits(&self) {
        self.0.lock().writer_duties.leaves_deferred = true;
    }

    /// Returns the function that a background thread calls when it panics ([`crate::background::start`]). It poisons the
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
        self.stop.store(true, Ordering::SeqCst);
        if let Some(core) = self.core.upgrade() {
            core.notifier.notify();
            core.notifier.set_listening(false);
        }
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed already.
            let _ = thread.join();
        }
    }
}

fn run(core: &Weak<LogCore>, stop: &AtomicBool) {
    // The sequence number of the last durable group at the previous check.
    let mut seen = None;
    loop {
        let Some(core) = core.upgrade() else { return };
        if stop.load(Ordering::SeqCst) {
            // Writes the last deferred commits. A caller that must know whether this worked calls `sync` before: the
            // log is closed now, even if this fails.
            let _ = Log(core).flush_acknowledged();
            return;
        }
        let pause = core.lock().writer_duties.watches.then_some(IDLE);
        let notified = core.notifier.wait(None, pause);
        let deferred = {
            let duties = &core.lock().writer_duties;
            duties.deferred_notified && !duties.soon_notified
        };
        if deferred && !stop.load(Ordering::SeqCst) {
            core.notifier.wait(None, Some(DEFER));
        }
        if stop.load(Ordering::SeqCst) {
            continue;
        }
        let leadership = {
            let mut state = core.lock();
            state.writer_duties.looks();
            state.writer_duties.watches = !state.is_stated() && state.poisoned.is_none();
            if !notified && state.writer_duties.watches {
                let now = Some(state.durable_sequence);
                state.wants_closing |= state.pending.is_empty() && seen == now;
                seen = now;
            }
            // With nothing to write this thread must not keep another from becoming the leader.
            if state.has_work() { core.try_to_lead(&mut state) } else { None }
        };
        if let Some(leadership) = leadership {
            leadership.lead(None);
        }
        core.grow_where_wanted();
    }
}
