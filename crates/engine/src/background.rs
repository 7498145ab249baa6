//! Starts the database's own threads, and tells code whether it runs on one of them.
//!
//! These threads call wakers, which are foreign code. A waker that holds the last reference to its task drops everything
//! the task owns, perhaps the last handle of the database; and closing a database waits for its threads. A background
//! thread must therefore not do that waiting itself (`db::open`).
//!
//! Operations wait for what these threads do. So each thread is started with a function that ends those waits when the
//! thread panics.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

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
        IS_BACKGROUND.set(true);
        let _span = context.enter();
        if let Err(payload) = catch_unwind(AssertUnwindSafe(work)) {
            // The payload may panic again when it is dropped. Its message has been printed.
            std::mem::forget(payload);
            let what = format!("the thread {name} has panicked; its message is among the errors of the process");
            in_panic(&Error::new(ErrorKind::Bug, what));
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

/// A background thread that sleeps until its notifier is notified. Dropping the handle tells it to end and waits for it.
pub(crate) struct NotifiedThread {
    signal: Signal,
    thread: Option<JoinHandle<()>>,
}

/// The thread's side of a [`NotifiedThread`]: notifications, and whether it is to end.
#[derive(Clone)]
pub(crate) struct Signal {
    notifier: Arc<Notifier>,
    stop: Arc<AtomicBool>,
}

impl NotifiedThread {
    /// Starts a thread that listens to `notifier`. Its work must end soon after [`Signal::is_stopped`] has become true.
    /// `in_panic` is called as by [`start`].
    ///
    /// # Errors
    /// `NoResources` when the system has no threads left.
    pub(crate) fn start(
        name: &'static str,
        notifier: Arc<Notifier>,
        in_panic: impl FnOnce(&Error) + Send + 'static,
        work: impl FnOnce(Signal) + Send + 'static,
    ) -> Result<Self> {
        notifier.set_listening(true);
        let signal = Signal { notifier, stop: Arc::default() };
        let of_thread = signal.clone();
        let thread = start(name, in_panic, move || work(of_thread))?;
        Ok(Self { signal, thread: Some(thread) })
    }

    /// Wakes the thread.
    pub(crate) fn notify(&self) {
        self.signal.notifier.notify();
    }
}

impl Drop for NotifiedThread {
    fn drop(&mut self) {
        self.signal.stop.store(true, Ordering::SeqCst);
        self.signal.notifier.notify();
        self.signal.notifier.set_listening(false);
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed already.
            let _ = thread.join();
        }
    }
}

impl Signal {
    /// Returns whether the thread is to end.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// Waits for a notification, for at most `most`.
    pub(crate) fn wait(&self, most: Option<Duration>) {
        self.notifier.wait(None, most);
    }

    /// Sleeps for a time, or until the thread is to end; other notifications do not shorten it.
    pub(crate) fn sleep(&self, time: Duration) {
        let until = Instant::now() + time;
        while !self.is_stopped() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            self.wait(Some(left));
        }
    }
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
}
