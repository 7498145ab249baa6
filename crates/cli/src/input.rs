//! Interruptible input: standard input, or a file that may be a pipe.
//!
//! Opening a pipe waits for its writer and a read for its data, both calls are restarted after a signal, and the handler of Ctrl-C can only
//! set a flag where a command has something to clean up. So the file is opened without waiting and polled with a short timeout, and the flag
//! is checked in between.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::atomic::Ordering;

use nofault_lab::error::LabError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::signals::STOP;

/// Timeout of one poll, after which the flag of Ctrl-C is checked.
const MOMENT: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// Reads a file until its end, or until the user stops the command.
pub(crate) struct Input(File);

impl Input {
    /// Opens a file. A pipe without writer yet is waited for by the first read.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
        Ok(Self(File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path)?))
    }

    /// Opens standard input. [`io::stdin`] must not have been read before: bytes in its buffer are lost to this reader.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn standard() -> io::Result<Self> {
        Ok(Self(File::from(io::stdin().as_fd().try_clone_to_owned()?)))
    }

    /// The facts about the file.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn metadata(&self) -> io::Result<std::fs::Metadata> {
        self.0.metadata()
    }

    fn is_ready(&self) -> io::Result<bool> {
        match poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&MOMENT)) {
            Ok(count) => Ok(count > 0),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl Read for Input {
    /// Reads some bytes. After Ctrl-C it fails with the lab's own `Interrupted` inside the error, because callers would
    /// retry after the system's.
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        loop {
            if STOP.load(Ordering::Relaxed) {
                return Err(io::Error::other(LabError::interrupted()));
            }
            if self.is_ready()? {
                match self.0.read(to) {
                    // Another reader of the pipe was faster.
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    read => return read,
                }
            }
        }
    }
}

/// Converts the error of a read of `name`: to the lab's `Interrupted` when the user stopped it, otherwise to a system
/// error.
pub(crate) fn failed(name: impl Display, error: &io::Error) -> LabError {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<LabError>()) {
        Some(interrupted) => interrupted.clone(),
        None => LabError::system(name, error),
    }
}
