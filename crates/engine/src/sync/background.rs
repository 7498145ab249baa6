//! Runs the background work of databases, and tells code whether it runs on a thread of a database.
//!
//! The databases of a process share the threads of this work (`runtime`); a mapped store has a dedicated thread ([`start`]).
//! These threads call wakers, which are foreign code. A waker holding the last reference to its task drops everything
//! the task owns, perhaps the last handle of the database; and closing a database waits for its work. A background
//! thread must therefore not do that waiting itself (`db::open`).
//!
//! Operations wait for this work. So all of it is started with a function that ends the waits when it panics.

mod runtime;
mod work;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

pub(crate) use self::runtime::Kind;
pub(crate) use self::work::{BackgroundWork, Next};
use crate::error::{Error, ErrorKind, Result};
use crate::events::Context;
use crate::sync::notifier::Notifier;

thread_local! {
    static IS_BACKGROUND: Cell<bool> = const { Cell::new(false) };
}

/// Starts a background thread of a database. The thread must end before the database is closed. When `work` panics,
/// `in_panic` is called with an error that says so, on the same thread: it must end every wait that relies on the thread.
///
/// # Errors
/// `NoResources` when the system has no threads left.
pub(crate) fn start(
    name: &'static str,
    in_panic: impl FnOnce(&Error) + Send + 'static,
    work: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>> {
    let context = Context::current();
    let marked = move || {
        mark();
        let _span = context.enter();
        if let Err(payload) = catch_unwind(AssertUnwindSafe(work)) {
            // The payload may panic again when it is dropped. Its message has been printed.
            std::mem::forget(payload);
            in_panic(&panicked(name));
        }
    };
    Builder::new().name(name.into()).spawn(marked).map_err(|error| Error::from_spawn(&error))
}

/// Tells the destructor of a thread's work whether the work ends by a panic.
#[derive(Debug)]
pub(crate) struct PanicWatch {
    was_panicking: bool,
}

impl PanicWatch {
    /// Begins to watch the calling thread. It may be panicking already, as where a panic drops the last handle of a
    /// database.
    pub(crate) fn begin() -> Self {
        Self { was_panicking: std::thread::panicking() }
    }

    /// Returns the error for others if the thread has begun to panic since then: `work` says in which work.
    pub(crate) fn panic(&self, work: &str) -> Option<Error> {
        if self.was_panicking || !std::thread::panicking() {
            return None;
        }
        let thread = std::thread::current();
        let what = format!("the thread {} has panicked while it {work}", thread.name().unwrap_or("of a caller"));
        Some(Error::new(ErrorKind::Bug, what))
    }
}

/// The work's side of [`BackgroundWork`]: notifications, and whether it is to end.
#[derive(Clone)]
pub(crate) struct Signal {
    notifier: Arc<Notifier>,
    stop: Arc<AtomicBool>,
}

impl Signal {
    /// Returns whether the work is to end.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// Sleeps for a time, or until the work is to end; other notifications do not shorten it. Keeps the thread.
    pub(crate) fn sleep(&self, time: Duration) {
        let until = Instant::now() + time;
        while !self.is_stopped() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            self.notifier.wait(None, Some(left));
        }
    }
}

/// Marks the current thread as a background thread of databases.
fn mark() {
    IS_BACKGROUND.set(true);
}

/// Makes the error for those who wait for work that has panicked.
fn panicked(thread: &str) -> Error {
    let what = format!("the thread {thread} has panicked; its message is among the errors of the process");
    Error::new(ErrorKind::Bug, what)
}

/// Returns whether the current thread is a background thread of any database.
pub(crate) fn is_here() -> bool {
    IS_BACKGROUND.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_background_threads_are_reported_as_background_threads() {
        let (tell, told) = std::sync::mpsc::channel();
        start("nofault-test", |_| {}, move || tell.send(is_here()).unwrap()).unwrap().join().unwrap();
        assert!(told.recv().unwrap() && !is_here());
    }

    #[test]
    fn a_panic_of_a_thread_is_reported_once_and_an_ordinary_end_is_not() {
        for panics in [false, true] {
            let (tell, told) = std::sync::mpsc::channel();
            let in_panic = move |error: &Error| tell.send((error.kind(), error.to_string())).unwrap();
            let work = move || assert!(!panics, "a fault that this test plants");
            start("nofault-test", in_panic, work).unwrap().join().unwrap();
            let reports: Vec<_> = told.iter().collect();
            assert_eq!(reports.len(), usize::from(panics));
            assert!(reports.iter().all(|(kind, what)| *kind == ErrorKind::Bug && what.contains("nofault-test")));
        }
    }

    fn start_work(
        pause: Option<Duration>,
        in_panic: impl FnOnce(&Error) + Send + 'static,
        round: impl FnMut(&Signal, bool) -> Next + Send + 'static,
    ) -> BackgroundWork {
        let notifier = Arc::<Notifier>::default();
        BackgroundWork::start(Kind::Freeing, notifier, Next::Wait(pause), in_panic, round).unwrap()
    }

    #[test]
    fn work_has_a_round_for_each_notification_and_each_end_of_a_pause_and_is_dropped_with_its_handle() {
        let (tell, told) = std::sync::mpsc::channel();
        let pauses = [Some(Duration::from_millis(1)), Some(Duration::from_millis(60)), None];
        let mut rounds = 0;
        let work = start_work(
            None,
            |_| {},
            move |_, notified| {
                tell.send((is_here(), notified)).unwrap();
                rounds += 1;
                Next::Wait(pauses[(rounds - 1) % 3])
            },
        );
        for _ in 0..20 {
            work.notify();
            // The round of the notification, and those after the two pauses; then it rests.
            assert_eq!([(); 3].map(|()| told.recv().unwrap()), [(true, true), (true, false), (true, false)]);
        }
        drop(work);
        assert!(told.recv().is_err(), "the rounds are dropped with the handle");
    }

    #[test]
    fn a_notification_during_a_round_brings_another() {
        let (tell, told) = std::sync::mpsc::channel();
        let notifier = Arc::<Notifier>::default();
        let (of_round, mut left) = (Arc::clone(&notifier), 100);
        let round = move |_: &Signal, _| {
            if left > 0 {
                left -= 1;
                of_round.notify();
            }
            tell.send(left).unwrap();
            Next::Wait(None)
        };
        let work = BackgroundWork::start(Kind::Freeing, notifier, Next::Again, |_| {}, round).unwrap();
        let rounds = std::iter::from_fn(|| told.recv_timeout(Duration::from_secs(60)).ok());
        assert_eq!(rounds.take(101).last(), Some(0));
        drop(work);
    }

    /// Closing a full database took five seconds, the pause after a checkpoint that has failed.
    #[test]
    fn work_that_is_told_to_end_while_a_round_sleeps_does_not_rest_before_it_ends() {
        let (tell, told) = std::sync::mpsc::channel();
        let round = move |signal: &Signal, _| {
            tell.send(()).unwrap();
            signal.sleep(Duration::from_secs(3600));
            // Until the next notification, of which there is none.
            Next::Wait(None)
        };
        let work = start_work(None, |_| {}, round);
        work.notify();
        told.recv().unwrap();
        drop(work);
        assert!(told.recv().is_err(), "the round is dropped with the handle");
    }

    #[test]
    fn rounds_that_block_hold_up_no_other_work_of_their_kind() {
        let everyone = Arc::new(std::sync::Barrier::new(9));
        let start = |_| {
            let everyone = Arc::clone(&everyone);
            start_work(
                None,
                |_| {},
                move |_, _| {
                    everyone.wait();
                    Next::Wait(None)
                },
            )
        };
        let works: Vec<_> = (0..8).map(start).collect();
        works.iter().for_each(BackgroundWork::notify);
        // Only when all of them are in a round does this, and do they, go on.
        everyone.wait();
    }

    #[test]
    fn a_panic_of_a_round_is_reported_once_and_the_thread_does_other_work() {
        let (tell, told) = std::sync::mpsc::channel();
        let in_panic = move |error: &Error| tell.send((error.kind(), error.to_string())).unwrap();
        let fails = start_work(None, in_panic, |_, _| panic!("a fault that this test plants"));
        fails.notify();
        let (kind, what) = told.recv().unwrap();
        assert!(kind == ErrorKind::Bug && what.contains(Kind::Freeing.name()), "{what}");
        let (tell_more, told_more) = std::sync::mpsc::channel();
        let works = start_work(
            Some(Duration::ZERO),
            |_| {},
            move |_, _| {
                tell_more.send(()).unwrap();
                Next::Wait(None)
            },
        );
        told_more.recv().unwrap();
        fails.notify();
        drop((fails, works));
        assert!(told.recv().is_err(), "there was one report");
    }
}
