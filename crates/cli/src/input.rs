//! Interruptible input: standard input, or a file that may be a pipe.
//!
//! A blocking read is restarted after a signal, and the handler of Ctrl-C can only set a flag. So the input is polled
//! with a short timeout, and the flag is checked in between.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};

use nofault_lab::error::LabError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Timeout of one poll, after which the flag of Ctrl-C is checked.
const MOMENT: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// Reads a file until its end, or until the user stops the command.
pub(crate) struct Input<'a> {
    from: File,
    cancel: &'a AtomicBool,
}

impl<'a> Input<'a> {
    pub(crate) fn new(from: File, cancel: &'a AtomicBool) -> Self {
        Self { from, cancel }
    }

    /// Opens standard input. [`io::stdin`] must not have been read before: bytes in its buffer are lost to this reader.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn standard(cancel: &'a AtomicBool) -> io::Result<Self> {
        Ok(Self::new(File::from(io::stdin().as_fd().try_clone_to_owned()?), cancel))
    }

    fn is_ready(&self) -> io::Result<bool> {
        match poll(&mut [PollFd::new(&self.from, PollFlags::IN)], Some(&MOMENT)) {
            Ok(count) => Ok(count > 0),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl Read for Input<'_> {
    /// Reads some bytes. After Ctrl-C it fails with the lab's own `Interrupted` inside the error, because callers would
    /// retry after the system's.
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.cancel.load(Ordering::Relaxed) {
                return Err(io::Error::other(LabError::interrupted()));
            }
            if self.is_ready()? {
                return self.from.read(to);
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
