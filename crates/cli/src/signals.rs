//! SIGINT, SIGTERM and SIGHUP, as flags that the commands read.
//!
//! The first signal asks a command to stop and to keep its results. A further one ends the process at once, except
//! during a run of the lab: there it only shortens the end of the run, because a run has data files, devices and memory
//! limits to remove. GNU `timeout` sends two signals at once, to its child and to the group, so that the second one is
//! no sign of impatience.

use std::process::exit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::output;

/// Exit code of a process that ends at a signal.
const INTERRUPTED: i32 = 130;

/// What the signals so far ask for.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    /// Set by the first signal: the command stops and keeps its results.
    pub(crate) stop: Arc<AtomicBool>,
    /// Set by the second signal: the command waits for no result any more.
    pub(crate) hurry: Arc<AtomicBool>,
    /// Whether the process must end by itself, as it has resources to remove.
    must_clean_up: Arc<AtomicBool>,
}

impl Signals {
    /// Installs the handler. Where that fails, the signals keep their default effect, and the next run removes the
    /// files of an interrupted one; a line on standard error says so.
    pub(crate) fn handle() -> Self {
        let signals = Self::default();
        let (stop, hurry) = (Arc::clone(&signals.stop), Arc::clone(&signals.hurry));
        let must_clean_up = Arc::clone(&signals.must_clean_up);
        let installed = ctrlc::set_handler(move || {
            if !stop.swap(true, Ordering::SeqCst) {
                return;
            }
            hurry.store(true, Ordering::SeqCst);
            if !must_clean_up.load(Ordering::SeqCst) {
                exit(INTERRUPTED);
            }
        });
        if let Err(error) = installed {
            output::log(&format!(
                "nofault: Ctrl-C cannot be handled ({error}): files of an interrupted run are removed at the next start"
            ));
        }
        signals
    }

    /// Does work that must remove its resources: during it, no number of signals ends the process.
    pub(crate) fn never_exiting<R>(&self, work: impl FnOnce() -> R) -> R {
        self.must_clean_up.store(true, Ordering::SeqCst);
        let result = work();
        self.must_clean_up.store(false, Ordering::SeqCst);
        result
    }
}
