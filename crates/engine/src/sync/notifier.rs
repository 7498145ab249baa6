//! A notifier on an eventfd: wakes a background thread that sleeps in `poll` beside the descriptors of queues.
//!
//! Invariant: while `notified` is true, the descriptor is readable or a thread is about to make it readable. The listener
//! clears `notified` after it has emptied the descriptor and before it looks for work; so a thread that finds `notified` true has
//! published its work before the listener looks.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nofault_io::error::Error as IoError;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::error::{Error, Result};

/// A notifier. A notification costs next to nothing while no thread listens, or while an earlier notification has not
/// been received yet.
#[derive(Debug)]
pub(crate) struct Notifier {
    fd: OwnedFd,
    has_listener: AtomicBool,
    notified: AtomicBool,
}

impl Notifier {
    /// Creates a notifier to which no thread listens yet.
    ///
    /// # Errors
    /// `NoResources` when the process has no descriptors left.
    pub(crate) fn new() -> Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|error| {
            Error::from_io("open a database", IoError::from_rustix("make an event descriptor", error))
        })?;
        Ok(Self { fd, has_listener: AtomicBool::new(false), notified: AtomicBool::new(false) })
    }

    /// Returns whether a thread listens.
    pub(crate) fn has_listener(&self) -> bool {
        self.has_listener.load(Ordering::Relaxed)
    }

    pub(crate) fn set_listening(&self, is_listening: bool) {
        self.has_listener.store(is_listening, Ordering::SeqCst);
    }

    /// Wakes the listener, or makes its next wait return at once.
    pub(crate) fn notify(&self) {
        if self.has_listener() && !self.notified.swap(true, Ordering::AcqRel) {
            // A full counter means that the descriptor is readable already.
            let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
        }
    }

    /// Waits for a notification, until `other` is readable, or for at most `most`. Returns whether there was a
    /// notification.
    pub(crate) fn wait(&self, other: Option<BorrowedFd<'_>>, most: Option<Duration>) -> bool {
        let notifier = PollFd::from_borrowed_fd(self.fd.as_fd(), PollFlags::IN);
        let mut watched = [notifier.clone(), notifier];
        let mut count = 1;
        if let Some(other) = other {
            watched[1] = PollFd::from_borrowed_fd(other, PollFlags::IN);
            count = 2;
        }
        let most = most.map(|most| Timespec { tv_sec: most.as_secs() as i64, tv_nsec: i64::from(most.subsec_nanos()) });
        // The result is ignored, because the caller looks for work after an interruption as well.
        let _ = poll(&mut watched[..count], most.as_ref());
        let notified = !watched[0].revents().is_empty();
        if notified {
            let mut count = [0; 8];
            let _ = rustix::io::read(&self.fd, &mut count);
            // Cleared after the read. A notification between clearing and reading would be lost, and `notify` would
            // ignore all later ones.
            self.notified.swap(false, Ordering::AcqRel);
        }
        notified
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_notified(notifier: &Notifier) -> bool {
        notifier.wait(None, Some(Duration::ZERO))
    }

    #[test]
    fn several_notifications_are_received_as_one_and_a_later_one_again() {
        let notifier = Notifier::new().unwrap();
        notifier.notify();
        assert!(!is_notified(&notifier), "no thread listens");
        notifier.set_listening(true);
        for _ in 0..3 {
            (0..5).for_each(|_| notifier.notify());
            assert!(is_notified(&notifier));
            assert!(!is_notified(&notifier));
        }
    }

    #[test]
    fn the_listener_sees_the_work_that_was_done_before_a_notification() {
        use std::sync::atomic::AtomicU64;
        const WORK: u64 = 20_000;
        let notifier = Notifier::new().unwrap();
        notifier.set_listening(true);
        let done = [AtomicU64::new(0), AtomicU64::new(0)];
        std::thread::scope(|scope| {
            for mine in &done {
                let notifier = &notifier;
                scope.spawn(move || {
                    for work in 1..=WORK {
                        mine.store(work, Ordering::Relaxed);
                        notifier.notify();
                    }
                });
            }
            // With a lost notification this loop would not end.
            while done.iter().any(|of_one| of_one.load(Ordering::Relaxed) < WORK) {
                notifier.wait(None, None);
            }
        });
    }
}
