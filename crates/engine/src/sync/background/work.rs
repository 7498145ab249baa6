//! Background work of a database: a function called for each round, on a thread of the process's runtime.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::runtime::{Kind, Runtime, Timer, Work};
use super::{Signal, panicked};
use crate::error::{Error, Result};
use crate::events::Context;
use crate::sync::notifier::{Notifier, Resting};

/// Longest pause for which a thread keeps its work, if no other work waits for it.
const SHORT: Duration = Duration::from_millis(5);

/// What follows a round of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Another round, after other work that waits.
    Again,
    /// A round when the notifier is notified, or this much time has passed.
    Wait(Option<Duration>),
    /// None: there is nothing left to work on.
    End,
}

/// The rounds of some work: called with the signal, and whether there was a notification since the last round.
type Rounds = Box<dyn FnMut(&Signal, bool) -> Next + Send>;

struct Calls {
    round: Rounds,
    in_panic: Box<dyn FnOnce(&Error) + Send>,
}

/// The work of a database, and where it is.
struct DatabaseWork {
    runtime: Arc<Runtime>,
    kind: Kind,
    signal: Signal,
    context: Context,
    /// None once it has ended. Locked for a round.
    calls: Mutex<Option<Calls>>,
    timer: Mutex<Option<Timer>>,
    has_ended: Mutex<bool>,
    ended: Condvar,
}

impl Work for DatabaseWork {
    fn kind(&self) -> Kind {
        self.kind
    }

    fn timer(&self) -> &Mutex<Option<Timer>> {
        &self.timer
    }

    fn end_pause(self: Arc<Self>, now: Instant) {
        let is_over = || lock(&self.timer).is_some_and(|(until, _)| until <= now);
        if self.signal.notifier.end_rest(is_over) {
            self.resume();
        }
    }

    fn run(self: Arc<Self>) {
        let mut calls = lock(&self.calls);
        let mut was_notified = false;
        loop {
            let Some(present) = calls.as_mut().filter(|_| !self.signal.is_stopped()) else {
                let ended = calls.take();
                drop(calls);
                return self.end(ended, None);
            };
            let notified = self.signal.notifier.take() || was_notified;
            was_notified = false;
            let round = catch_unwind(AssertUnwindSafe(|| {
                let _span = self.context.enter();
                (present.round)(&self.signal, notified)
            }));
            let pause = match round {
                Ok(Next::Again) => Some(Duration::ZERO),
                Ok(Next::Wait(pause)) => pause,
                Ok(Next::End) => {
                    let ended = calls.take();
                    drop(calls);
                    return self.end(ended, None);
                }
                Err(payload) => {
                    // The payload may panic again when it is dropped. Its message has been printed.
                    std::mem::forget(payload);
                    let ended = calls.take();
                    drop(calls);
                    return self.end(ended, Some(&panicked(self.kind.name())));
                }
            };
            match pause {
                Some(pause) if pause <= SHORT && !self.runtime.is_awaited(self.kind) => {
                    if !pause.is_zero() {
                        was_notified = self.signal.notifier.wait(None, Some(pause));
                    }
                }
                Some(Duration::ZERO) => {
                    drop(calls);
                    return self.runtime.resume(Arc::clone(&self) as Arc<dyn Work>);
                }
                pause => {
                    drop(calls);
                    if self.rest(pause) {
                        return;
                    }
                    calls = lock(&self.calls);
                }
            }
        }
    }
}

impl DatabaseWork {
    /// Rests for this time, or until the notifier is notified. Returns false where it was notified already, or told to end: a round
    /// that sleeps has received the notification of its end.
    fn rest(self: &Arc<Self>, pause: Option<Duration>) -> bool {
        self.signal.notifier.rest(self, || {
            let goes_on = !self.signal.is_stopped();
            if let Some(pause) = pause
                && goes_on
            {
                self.runtime.set_timer(Arc::clone(self) as Arc<dyn Work>, pause);
            }
            goes_on
        })
    }

    fn end(&self, calls: Option<Calls>, panic: Option<&Error>) {
        let ended = catch_unwind(AssertUnwindSafe(|| {
            let _span = self.context.enter();
            if let Some(Calls { round, in_panic }) = calls {
                if let Some(error) = panic {
                    in_panic(error);
                }
                drop(round);
            }
        }));
        if let Err(payload) = ended {
            std::mem::forget(payload);
        }
        *lock(&self.has_ended) = true;
        self.ended.notify_all();
    }
}

impl Resting for DatabaseWork {
    fn resume(self: Arc<Self>) {
        let runtime = Arc::clone(&self.runtime);
        runtime.resume(self);
    }
}

/// The handle of background work. Dropping it tells the work to end and waits for its last round.
pub(crate) struct BackgroundWork(Arc<DatabaseWork>);

impl BackgroundWork {
    /// Starts work that listens to `notifier`, with what comes `first`. A round that takes long must end soon after
    /// [`Signal::is_stopped`] has become true. When a round panics, `in_panic` is called with an error that says so, on the same
    /// thread: it must end every wait that relies on the work, of which no round follows.
    ///
    /// # Errors
    /// `NoResources` when the system has no threads left.
    pub(crate) fn start(
        kind: Kind,
        notifier: Arc<Notifier>,
        first: Next,
        in_panic: impl FnOnce(&Error) + Send + 'static,
        round: impl FnMut(&Signal, bool) -> Next + Send + 'static,
    ) -> Result<Self> {
        let runtime = Runtime::enter(kind)?;
        notifier.set_listening(true);
        let signal = Signal { notifier, stop: Arc::new(AtomicBool::new(false)) };
        let calls = Calls { round: Box::new(round), in_panic: Box::new(in_panic) };
        let work = Arc::new(DatabaseWork {
            runtime,
            kind,
            signal,
            context: Context::current(),
            calls: Mutex::new(Some(calls)),
            timer: Mutex::default(),
            has_ended: Mutex::new(false),
            ended: Condvar::new(),
        });
        let rests = match first {
            Next::Again | Next::End => false,
            Next::Wait(pause) => work.rest(pause),
        };
        if !rests {
            Arc::clone(&work).resume();
        }
        Ok(Self(work))
    }

    /// Wakes the work.
    pub(crate) fn notify(&self) {
        self.0.signal.notifier.notify();
    }
}

impl Drop for BackgroundWork {
    fn drop(&mut self) {
        let work = &self.0;
        work.signal.stop.store(true, Ordering::SeqCst);
        if work.signal.notifier.end_rest(|| true) {
            // It has no thread, and needs none to end.
            work.runtime.end_timer(&**work);
            let calls = lock(&work.calls).take();
            work.end(calls, None);
        } else {
            work.signal.notifier.notify_to_end();
            let mut has_ended = lock(&work.has_ended);
            while !*has_ended {
                has_ended = work.ended.wait(has_ended).unwrap_or_else(PoisonError::into_inner);
            }
        }
        work.signal.notifier.set_listening(false);
        work.runtime.leave();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
