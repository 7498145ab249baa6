//! A notifier: wakes background work, wherever that is: on a thread that waits, on one that polls descriptors, or on none.
//!
//! Invariants:
//! 1. While `notified` is true, the listener is awake, or a thread is about to wake it. The listener clears `notified` before it
//!    looks for work; so a thread that finds `notified` true has published its work before the listener looks.
//! 2. `listener` says under its lock where the listener is. It goes to sleep only if `notified` is false under that lock, and
//!    `notify` takes the lock after setting `notified`: so no notification falls in between.

use std::cell::RefCell;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

/// Time between two looks of a listener that polls where the process has no descriptor left by which it could be woken.
const WITHOUT_DESCRIPTOR: Duration = Duration::from_millis(1);

/// Background work without thread while it rests.
pub(crate) trait Resting: Send + Sync {
    /// Gives the work a thread. Called once for each rest, without a lock of the notifier.
    fn resume(self: Arc<Self>);
}

/// The place where the listener is.
#[derive(Default)]
enum Listener {
    /// Not asleep, or there is none: it looks at `notified` before it sleeps.
    #[default]
    Awake,
    /// A thread waits for `woken`.
    Waiting,
    /// A thread polls this descriptor, among others.
    Polling(Arc<OwnedFd>),
    /// It has no thread.
    Resting(Arc<dyn Resting>),
}

/// A notifier. A notification costs next to nothing while no thread listens, or while an earlier notification has not
/// been received yet.
#[derive(Default)]
pub(crate) struct Notifier {
    has_listener: AtomicBool,
    notified: AtomicBool,
    listener: Mutex<Listener>,
    woken: Condvar,
}

thread_local! {
    /// The descriptor by which this thread is woken while it polls. It belongs to the thread, as its work may be a different database's
    /// each time.
    static EVENT: RefCell<Option<Arc<OwnedFd>>> = const { RefCell::new(None) };
}

/// Returns the descriptor by which this thread is woken while it polls; `None` when the process has none left.
fn event_of_thread() -> Option<Arc<OwnedFd>> {
    EVENT.with_borrow_mut(|event| {
        if event.is_none() {
            *event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok().map(Arc::new);
        }
        event.clone()
    })
}

impl Notifier {
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
            self.wake();
        }
    }

    /// Wakes the listener whether it is to be notified or not.
    pub(crate) fn notify_to_end(&self) {
        if !self.notified.swap(true, Ordering::AcqRel) {
            self.wake();
        }
    }

    /// Returns whether a notification has not been received yet.
    pub(crate) fn is_notified(&self) -> bool {
        self.notified.load(Ordering::Acquire)
    }

    /// Receives a notification: returns whether there was one.
    pub(crate) fn take(&self) -> bool {
        self.is_notified() && self.notified.swap(false, Ordering::AcqRel)
    }

    fn wake(&self) {
        let mut listener = self.lock();
        if !self.is_notified() {
            // The listener has received it already, and perhaps gone to sleep again.
            return;
        }
        match &*listener {
            Listener::Awake => {}
            Listener::Waiting => self.woken.notify_one(),
            Listener::Polling(event) => {
                // A full counter means that the descriptor is readable already.
                let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
            }
            Listener::Resting(_) => {
                let resting = std::mem::take(&mut *listener);
                drop(listener);
                if let Listener::Resting(work) = resting {
                    work.resume();
                }
            }
        }
    }

    /// Waits for a notification, until `other` is readable, or for at most `most`. Returns whether there was a
    /// notification.
    pub(crate) fn wait(&self, other: Option<BorrowedFd<'_>>, most: Option<Duration>) -> bool {
        match other {
            Some(other) => self.poll(other, most),
            None => self.park(most),
        }
    }

    fn park(&self, most: Option<Duration>) -> bool {
        let until = most.and_then(|most| Instant::now().checked_add(most));
        let mut listener = self.lock();
        while !self.is_notified() {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                break;
            }
            *listener = Listener::Waiting;
            listener = match left {
                Some(left) => self.woken.wait_timeout(listener, left).unwrap_or_else(PoisonError::into_inner).0,
                None => self.woken.wait(listener).unwrap_or_else(PoisonError::into_inner),
            };
        }
        *listener = Listener::Awake;
        self.take()
    }

    fn poll(&self, other: BorrowedFd<'_>, most: Option<Duration>) -> bool {
        let event = event_of_thread();
        let mut listener = self.lock();
        if self.take() {
            return true;
        }
        if let Some(event) = &event {
            *listener = Listener::Polling(Arc::clone(event));
        }
        drop(listener);
        let other = PollFd::from_borrowed_fd(other, PollFlags::IN);
        let mut watched = [other.clone(), other];
        let mut count = 1;
        if let Some(event) = &event {
            watched[1] = PollFd::from_borrowed_fd(event.as_fd(), PollFlags::IN);
            count = 2;
        }
        let most =
            if event.is_some() { most } else { Some(most.unwrap_or(WITHOUT_DESCRIPTOR).min(WITHOUT_DESCRIPTOR)) };
        let most = most.map(|most| Timespec { tv_sec: most.as_secs() as i64, tv_nsec: i64::from(most.subsec_nanos()) });
        // The result is ignored, because the caller looks for work after an interruption as well.
        let _ = poll(&mut watched[..count], most.as_ref());
        let mut listener = self.lock();
        *listener = Listener::Awake;
        if let Some(event) = &event
            && self.is_notified()
        {
            // Emptied under the lock: nothing is written to it while the listener is awake.
            let _ = rustix::io::read(event, &mut [0_u8; 8]);
        }
        self.take()
    }

    /// Lets the listener, which is the caller, rest: from then on it has no thread, and the next notification resumes `work`. Returns
    /// false, and it does not rest, when there is a notification, or `prepare` returns false, which is called under the notifier's
    /// lock, before a notification can resume the work.
    pub(crate) fn rest(&self, work: &Arc<impl Resting + 'static>, prepare: impl FnOnce() -> bool) -> bool {
        let mut listener = self.lock();
        if self.is_notified() || !prepare() {
            return false;
        }
        *listener = Listener::Resting(Arc::clone(work) as Arc<dyn Resting>);
        true
    }

    /// Ends the rest of the listener, if it rests and `is_over` says so under the notifier's lock. Returns whether it did: the caller
    /// resumes the work.
    pub(crate) fn end_rest(&self, is_over: impl FnOnce() -> bool) -> bool {
        let mut listener = self.lock();
        let ends = matches!(*listener, Listener::Resting(_)) && is_over();
        if ends {
            let resting = std::mem::take(&mut *listener);
            drop(listener);
            drop(resting);
        }
        ends
    }

    fn lock(&self) -> MutexGuard<'_, Listener> {
        self.listener.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Notifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Notifier(notified: {})", self.is_notified())
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
        let notifier = Notifier::default();
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
        let notifier = Notifier::default();
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
