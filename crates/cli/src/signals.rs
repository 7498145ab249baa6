//! SIGINT, SIGTERM and SIGHUP.
//!
//! The first signal ends the process at once, in any call that waits. Only a command with something to clean up or to report does that
//! part of its work in a section: in [`Signals::heard`] the first signal sets [`STOP`] and a further one ends the process, and in
//! [`Signals::never_exiting`] all signals only set flags. A run of the lab needs the latter: it has data files, devices and memory limits to
//! remove, and GNU `timeout` sends two signals at once, to its child and to the group.
//!
//! A database that is watched has a socket in its folder, which an orderly end of the database removes. Where the process ends without
//! one, at a signal or with a thread that still uses the database, the socket is removed here ([`remove_own_files`]).
//!
//! Kept true by: within a section no call waits for another process but through [`Input`](crate::input::Input) and
//! [`put`](nofault_lab::progress::put), which look at [`STOP`] while they wait.

use std::fs::{File, Metadata};
use std::io::IsTerminal as _;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::process::exit;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nofault_lab::progress::{put_line, takes_output};
use rustix::fs::OFlags;

/// Files that this process has made for its own time, each open and with its path.
static OWN_FILES: Mutex<Vec<(File, PathBuf)>> = Mutex::new(Vec::new());

/// Notes a file that this process has made for its own time, in a folder for it alone: both are removed when the process ends, in whatever
/// way but SIGKILL.
pub(crate) fn own_file(path: PathBuf) {
    // As long as it is open, no other file has its number.
    let flags = OFlags::PATH | OFlags::NOFOLLOW;
    if let Ok(file) = File::options().read(true).custom_flags(flags.bits().cast_signed()).open(&path) {
        OWN_FILES.lock().unwrap_or_else(PoisonError::into_inner).push((file, path));
    }
}

/// Removes the files that were noted and are still there; another process may have put its own in their place.
pub(crate) fn remove_own_files() {
    let id = |found: std::io::Result<Metadata>| found.ok().map(|found| (found.dev(), found.ino()));
    for (file, path) in OWN_FILES.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        let found = id(path.symlink_metadata());
        if found.is_some() && found == id(file.metadata()) {
            let _ = std::fs::remove_file(&path);
            // Only where nothing else is in it.
            let _ = path.parent().map(std::fs::remove_dir);
        }
    }
}

/// Exit code of a process that ends at a signal.
const INTERRUPTED: u8 = 130;

/// Set by the first signal within a section: the command stops and keeps its results.
pub(crate) static STOP: AtomicBool = AtomicBool::new(false);

/// In a section of [`Signals::heard`]. Outside sections the number is 0.
const HEARD: u8 = 1;
/// In a section of [`Signals::never_exiting`].
const NEVER_EXITING: u8 = 2;

/// The wishes of the signals so far, and the effect of the next one.
#[derive(Debug)]
pub(crate) struct Signals {
    /// [`STOP`].
    pub(crate) stop: &'static AtomicBool,
    /// Set by the second signal: the command waits for no result any more.
    pub(crate) hurry: Arc<AtomicBool>,
    /// The effect of a signal: one of the constants above.
    section: Arc<AtomicU8>,
    /// Whether a signal is the usual end of the command.
    is_usual_end: Arc<AtomicBool>,
}

impl Signals {
    /// Installs the handler. Where that fails, the signals keep their default effect, and the next run removes the
    /// files of an interrupted one; a line on standard error says so.
    pub(crate) fn handle() -> Self {
        let signals =
            Self { stop: &STOP, hurry: Arc::default(), section: Arc::default(), is_usual_end: Arc::default() };
        let hurry = Arc::clone(&signals.hurry);
        let (section, is_usual_end) = (Arc::clone(&signals.section), Arc::clone(&signals.is_usual_end));
        let installed = ctrlc::set_handler(move || {
            let is_first = !STOP.swap(true, Ordering::SeqCst);
            if !is_first {
                hurry.store(true, Ordering::SeqCst);
            }
            match section.load(Ordering::SeqCst) {
                NEVER_EXITING => {}
                HEARD if is_first => {}
                _ => end(is_usual_end.load(Ordering::SeqCst)),
            }
        });
        if let Err(error) = installed {
            let why = format!(
                "nofault: Ctrl-C cannot be handled ({error}): files of an interrupted run are removed at the next start"
            );
            put_line(&why, &STOP);
        }
        signals
    }

    /// Does work that looks at [`STOP`], which the first signal sets. A further signal ends the process.
    pub(crate) fn heard<R>(&self, work: impl FnOnce() -> R) -> R {
        self.within(HEARD, work)
    }

    /// Does work that must remove its resources: during it, no number of signals ends the process.
    pub(crate) fn never_exiting<R>(&self, work: impl FnOnce() -> R) -> R {
        self.within(NEVER_EXITING, work)
    }

    fn within<R>(&self, section: u8, work: impl FnOnce() -> R) -> R {
        let before = self.section.swap(section, Ordering::SeqCst);
        let result = work();
        self.section.store(before, Ordering::SeqCst);
        result
    }

    /// Makes a signal outside sections a success: the command runs until the user ends it.
    pub(crate) fn are_the_usual_end(&self) {
        self.is_usual_end.store(true, Ordering::SeqCst);
    }
}

/// Ends the process. Its message is left out where standard error takes none at once.
fn end(is_usual: bool) -> ! {
    remove_own_files();
    if is_usual {
        exit(0);
    }
    let stream = std::io::stderr();
    if takes_output(stream.as_fd(), Duration::ZERO) {
        // A question may stand on the line.
        let line = if stream.is_terminal() { "\nnofault: interrupted" } else { "nofault: interrupted" };
        put_line(line, &STOP);
    }
    exit(i32::from(INTERRUPTED))
}
