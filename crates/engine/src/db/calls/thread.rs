//! Runs work that blocks: in a task on a dedicated thread, where it finishes even when its future is dropped; in a
//! blocking call on the calling thread.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

use crate::error::{Error, ErrorKind, Result};
use crate::events::Context;
use crate::sync::driver::is_blocking;
use crate::sync::wakers::{poll_guarded, wake};

struct Slot<T> {
    result: Option<T>,
    waker: Option<Waker>,
    gone: bool,
}

/// Runs `work`: in a blocking call here, in a task on a new thread. The future ends with its result. Dropping it leaves
/// the work running.
///
/// # Errors
/// `NoResources` when the system has no thread to give, `Bug` when the work panicked on its own thread.
pub(in crate::db) async fn run<T: Send + 'static>(name: &str, work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    if is_blocking().await { Ok(work()) } else { on_new_thread(name, Box::new(work)).await }
}

fn on_new_thread<T: Send + 'static>(
    name: &str,
    work: Box<dyn FnOnce() -> T + Send>,
) -> impl Future<Output = Result<T>> + Send + use<T> {
    let slot = Arc::new(Mutex::new(Slot { result: None, waker: None, gone: false }));
    let (of_thread, context) = (Finish(slot.clone()), Context::current());
    let spawned = std::thread::Builder::new().name(name.into()).spawn(move || {
        let _span = context.enter();
        let result = work();
        lock(&of_thread.0).result = Some(result);
    });
    std::future::poll_fn(move |context| {
        if let Err(error) = &spawned {
            return Poll::Ready(Err(Error::from_spawn(error)));
        }
        let outcome = |slot: &mut Slot<T>| match slot.result.take() {
            Some(result) => Some(Ok(result)),
            None if slot.gone => Some(Err(Error::new(ErrorKind::Bug, "a background thread panicked"))),
            None => None,
        };
        let register = |slot: &mut Slot<T>, waker: &mut Option<Waker>| std::mem::swap(&mut slot.waker, waker);
        poll_guarded(context.waker(), || lock(&slot), outcome, register)
    })
}

fn lock<T>(slot: &Mutex<Slot<T>>) -> std::sync::MutexGuard<'_, Slot<T>> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Wakes the waiter when the thread ends, normally or by a panic.
struct Finish<T>(Arc<Mutex<Slot<T>>>);

impl<T> Drop for Finish<T> {
    fn drop(&mut self) {
        let mut slot = lock(&self.0);
        slot.gone = true;
        let waker = slot.waker.take();
        drop(slot);
        if let Some(waker) = waker {
            wake(waker);
        }
    }
}
