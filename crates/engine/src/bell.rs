//! Wakes a background thread that sleeps in `poll`, beside the descriptors of queues.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::error::{Error, ErrorKind, Result};

/// A descriptor that can be rung. Costs nothing while no thread listens.
#[derive(Debug)]
pub(crate) struct Bell {
    fd: OwnedFd,
    listened: AtomicBool,
}

impl Bell {
    /// A bell that nobody listens to yet.
    ///
    /// # Errors
    /// `NoSpace` when the process has no descriptors left.
    pub(crate) fn new() -> Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| Error::new(ErrorKind::NoSpace, format!("make an event descriptor: {error}")))?;
        Ok(Self { fd, listened: AtomicBool::new(false) })
    }

    /// Whether a thread listens.
    pub(crate) fn is_listened(&self) -> bool {
        self.listened.load(Ordering::Relaxed)
    }

    pub(crate) fn set_listened(&self, listened: bool) {
        self.listened.store(listened, Ordering::SeqCst);
    }

    /// Wakes the listener, now or when it next waits.
    pub(crate) fn ring(&self) {
        if self.is_listened() {
            // Full means rung already.
            let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
        }
    }

    /// Waits until the bell rings, `other` is readable or `most` is over. True when the bell rang.
    pub(crate) fn wait(&self, other: Option<BorrowedFd<'_>>, most: Option<Duration>) -> bool {
        let bell = PollFd::from_borrowed_fd(self.fd.as_fd(), PollFlags::IN);
        let mut watched = [bell.clone(), bell];
        let mut count = 1;
        if let Some(other) = other {
            watched[1] = PollFd::from_borrowed_fd(other, PollFlags::IN);
            count = 2;
        }
        let most = most.map(|most| Timespec { tv_sec: most.as_secs() as i64, tv_nsec: i64::from(most.subsec_nanos()) });
        // Interrupted or not: the caller looks around.
        let _ = poll(&mut watched[..count], most.as_ref());
        let rang = !watched[0].revents().is_empty();
        if rang {
            let mut count = [0; 8];
            let _ = rustix::io::read(&self.fd, &mut count);
        }
        rang
    }
}
