//! Input that may be waited for: standard input, or a file that may be a pipe.
//!
//! A read that waits begins anew after a signal, and the handler of Ctrl-C can only leave word. So what is to come is waited
//! for a moment at a time, with a look at the word in between.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};

use nofault_lab::error::LabError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// How long it waits between two looks.
const MOMENT: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// Reads as its file does, until the user stops it.
pub(crate) struct Input<'a> {
    from: File,
    cancel: &'a AtomicBool,
}

impl<'a> Input<'a> {
    pub(crate) fn new(from: File, cancel: &'a AtomicBool) -> Self {
        Self { from, cancel }
    }

    /// Standard input. Nobody may have read from [`io::stdin`] before: what that holds back is not seen here.
    ///
    /// # Errors
    /// What the system says.
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
    /// Fails with the lab's own `Interrupted` inside: the system's would be taken as a reason to try again.
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

/// What a failed read of `name` is to the caller: the user's wish, or what the system said.
pub(crate) fn failed(name: impl Display, error: &io::Error) -> LabError {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<LabError>()) {
        Some(interrupted) => interrupted.clone(),
        None => LabError::system(name, error),
    }
}
