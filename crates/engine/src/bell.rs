//! Wakes a background thread that sleeps in `poll` beside the descriptors of queues, and calls the wakers of tasks.
//!
//! Invariant: while `rung` is true, the descriptor is readable or a thread is about to make it readable. The listener
//! clears `rung` after it has emptied the descriptor and before it looks for work; so a thread that finds `rung` true has
//! published its work before the listener looks.

use std::ops::DerefMut;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::error::{Error, ErrorKind, Result};

/// Calls a waker and swallows its panic, which the panic hook has reported. A waker is foreign code; the calling thread may
/// be the database's only background thread, or an unrelated caller that missed the same page, and other wakers follow.
pub(crate) fn wake(waker: Waker) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| waker.wake())) {
        // The payload may panic again when it is dropped.
        std::mem::forget(payload);
    }
}

/// [`wake`] for each of these.
pub(crate) fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
    wakers.into_iter().for_each(wake);
}

/// Polls `outcome` under a lock, and registers the task's waker with `register` when there is no outcome yet. A waker
/// is foreign code that may take the same lock, so the waker is cloned before the lock is taken, and the waker that it
/// replaces is dropped after the lock is released. `outcome` is called under the lock, a second time when the first
/// call returned `None`; `register` exchanges the new waker for the old one.
pub(crate) fn poll_guarded<G: DerefMut, R>(
    waker: &Waker,
    lock: impl Fn() -> G,
    mut outcome: impl FnMut(&mut G::Target) -> Option<R>,
    register: impl FnOnce(&mut G::Target, &mut Option<Waker>),
) -> Poll<R> {
    let found = outcome(&mut *lock());
    if let Some(found) = found {
        return Poll::Ready(found);
    }
    let mut waker = Some(waker.clone());
    let mut guard = lock();
    let found = outcome(&mut *guard);
    if found.is_none() {
        register(&mut *guard, &mut waker);
    }
    drop(guard);
    drop(waker);
    found.map_or(Poll::Pending, Poll::Ready)
}

/// An eventfd notifier. Ringing costs next to nothing while no thread listens, or while an earlier ring has not been
/// received yet.
#[derive(Debug)]
pub(crate) struct Bell {
    fd: OwnedFd,
    listened: AtomicBool,
    rung: AtomicBool,
}

impl Bell {
    /// Creates a bell without a listener.
    ///
    /// # Errors
    /// `NoSpace` when the process has no descriptors left.
    pub(crate) fn new() -> Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| Error::new(ErrorKind::NoSpace, format!("make an event descriptor: {error}")))?;
        Ok(Self { fd, listened: AtomicBool::new(false), rung: AtomicBool::new(false) })
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
        if self.is_listened() && !self.rung.swap(true, Ordering::AcqRel) {
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
        // The result does not matter: after an interruption, too, the caller looks for work.
        let _ = poll(&mut watched[..count], most.as_ref());
        let rang = !watched[0].revents().is_empty();
        if rang {
            let mut count = [0; 8];
            let _ = rustix::io::read(&self.fd, &mut count);
            // Not before: a ring in between would be read away, and all later ones thought to be heard of already.
            self.rung.swap(false, Ordering::AcqRel);
        }
        rang
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rings(bell: &Bell) -> bool {
        bell.wait(None, Some(Duration::ZERO))
    }

    #[test]
    fn however_often_it_is_rung_it_is_heard_once_and_again_when_rung_again() {
        let bell = Bell::new().unwrap();
        bell.ring();
        assert!(!rings(&bell), "nobody listened");
        bell.set_listened(true);
        for _ in 0..3 {
            (0..5).for_each(|_| bell.ring());
            assert!(rings(&bell));
            assert!(!rings(&bell));
        }
    }

    #[test]
    fn what_was_done_before_a_ring_is_seen_by_who_hears_one() {
        use std::sync::atomic::AtomicU64;
        const WORK: u64 = 20_000;
        let bell = Bell::new().unwrap();
        bell.set_listened(true);
        let done = [AtomicU64::new(0), AtomicU64::new(0)];
        std::thread::scope(|scope| {
            for mine in &done {
                let bell = &bell;
                scope.spawn(move || {
                    for work in 1..=WORK {
                        mine.store(work, Ordering::Relaxed);
                        bell.ring();
                    }
                });
            }
            // A ring that gets lost makes this wait for ever.
            while done.iter().any(|of_one| of_one.load(Ordering::Relaxed) < WORK) {
                bell.wait(None, None);
            }
        });
    }
}
