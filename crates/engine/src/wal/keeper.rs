//! The log's background thread: drives for tasks, and writes deferred commits soon (the last ones when the database is closed).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use super::{Log, LogCore};
use crate::background;
use crate::error::Result;

/// How long deferred commits gather before they are written.
const DEFER: Duration = Duration::from_millis(2);

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
    loop {
        let Some(core) = core.upgrade() else { return };
        if stop.load(Ordering::SeqCst) {
            // The last deferred commits. Who must know that this worked calls `sync` before: the log is closed now, whatever
            // becomes of it.
            let _ = Log(core).flush();
            return;
        }
        core.bell.wait(None, None);
        if !stop.load(Ordering::SeqCst) && !core.lock().keeper.told_soon {
            core.bell.wait(None, Some(DEFER));
        }
        if stop.load(Ordering::SeqCst) {
            continue;
        }
        let driving = {
            let mut state = core.lock();
            state.keeper.looks();
            core.try_driving(&mut state)
        };
        if let Some(driving) = driving {
            driving.drive(None);
        }
    }
}
