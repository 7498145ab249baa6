//! The log's background thread: drives for tasks, and writes deferred commits soon (the last ones when the database is closed). When
//! nothing has been written for a while, it writes a closing group, unless there is nothing to say: rule 7 of the log.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use super::{Log, LogCore};
use crate::background;
use crate::error::Result;

/// How long deferred commits gather before they are written.
const DEFER: Duration = Duration::from_millis(2);
/// How long nothing is written before a closing group is.
const IDLE: Duration = Duration::from_millis(200);

/// The thread; it ends when this is dropped.
pub(crate) struct LogKeeper {
    core: Weak<LogCore>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Log {
    /// Starts the background thread: from now on tickets can be polled, and deferred commits become durable by themselves.
    ///
    /// # Errors
    /// `NoSpace` when the system has no threads left.
    pub(crate) fn start_keeper(&self) -> Result<LogKeeper> {
        let stop = Arc::new(AtomicBool::new(false));
        let (core, seen) = (Arc::downgrade(&self.0), Arc::clone(&stop));
        self.0.bell.set_listened(true);
        // Groups that were found at opening may have been acknowledged: a later group must state that they are durable.
        if self.0.lock().must_watch() {
            self.0.bell.ring();
        }
        let thread = background::start("nofault-log", move || keep(&core, &seen))?;
        Ok(LogKeeper { core: Arc::downgrade(&self.0), stop, thread: Some(thread) })
    }
}

impl Drop for LogKeeper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(core) = self.core.upgrade() {
            core.bell.ring();
            core.bell.set_listened(false);
        }
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed already.
            let _ = thread.join();
        }
    }
}

fn keep(core: &Weak<LogCore>, stop: &AtomicBool) {
    // The last durable group when it looked before.
    let mut seen = None;
    loop {
        let Some(core) = core.upgrade() else { return };
        if stop.load(Ordering::SeqCst) {
            // Writes the last deferred commits. A caller that must know whether this worked calls `sync` before: the
            // log is closed now, even if this fails.
            let _ = Log(core).settle();
            return;
        }
        let pause = core.lock().keeper.watches.then_some(IDLE);
        let rang = core.bell.wait(None, pause);
        let deferred = {
            let keeper = &core.lock().keeper;
            keeper.told_deferred && !keeper.told_soon
        };
        if deferred && !stop.load(Ordering::SeqCst) {
            core.bell.wait(None, Some(DEFER));
        }
        if stop.load(Ordering::SeqCst) {
            continue;
        }
        let driving = {
            let mut state = core.lock();
            state.keeper.looks();
            state.keeper.watches = !state.is_stated() && state.poisoned.is_none();
            if !rang && state.keeper.watches {
                let now = Some(state.durable_sequence);
                state.wants_closing |= state.pending.is_empty() && seen == now;
                seen = now;
            }
            // With nothing to write this thread must not be in the way of others.
            if state.has_work() { core.try_driving(&mut state) } else { None }
        };
        if let Some(driving) = driving {
            driving.drive(None);
        }
        core.grow_where_wanted();
    }
}
