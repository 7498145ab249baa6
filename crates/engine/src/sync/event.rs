//! An event that happens once, and tasks waiting for it.
//!
//! Kept true by: the wakers are taken out of the lock before they are called, and a task that registers after that
//! finds that the event has happened.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::wakers;

/// An event that happens once.
#[derive(Debug, Default)]
pub(crate) struct Event(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    has_happened: bool,
    waiting: Vec<Waker>,
}

impl Event {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the event happen, and wakes the tasks waiting for it. Further calls change nothing.
    pub(crate) fn happen(&self) {
        let mut state = self.lock();
        state.has_happened = true;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        wakers::wake_all(waiting);
    }

    /// Returns whether the event has happened; if not, the task is woken when it happens.
    pub(crate) fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        let register = |state: &mut State, waker: &mut Option<Waker>| {
            // A task may poll often before the event happens, and is listed once.
            let is_listed = |listed: &Waker| waker.as_ref().is_some_and(|waker| waker.will_wake(listed));
            if !state.waiting.iter().any(is_listed) {
                state.waiting.extend(waker.take());
            }
        };
        wakers::poll_guarded(cx.waker(), || self.lock(), |state| state.has_happened.then_some(()), register)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn each_waiting_task_is_woken_once_and_later_ones_do_not_wait() {
        let event = Event::default();
        let counts = [Arc::new(Count::default()), Arc::default()];
        for count in counts.iter().cycle().take(10) {
            let waker = Waker::from(Arc::clone(count));
            assert!(event.poll(&Context::from_waker(&waker)).is_pending());
        }
        event.happen();
        event.happen();
        let woken = counts.each_ref().map(|count| count.0.load(Ordering::Relaxed));
        assert_eq!(woken, [1, 1]);
        assert!(event.poll(&Context::from_waker(Waker::noop())).is_ready());
        assert_eq!(event.lock().waiting.len(), 0);
    }
}
