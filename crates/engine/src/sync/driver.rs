//! Runs the future of a blocking call on the calling thread.
//!
//! Every call of the database is defined once, as a future. An executor polls it with the waker of a task: then a wait
//! is `Pending`. [`block_on`] polls it with a waker belonging to the calling thread. Then a wait finds out with
//! [`blocks`] that it may block, and happens inside the poll, where the thread submits and reaps its own reads. A wait
//! for something that only another thread can give, such as a permit, is `Pending` here as well: the thread parks until
//! its waker is called.
//!
//! Kept true by: only `block_on` has the waker that `blocks` recognises, so a future that user code polls on an executor
//! inside a blocking call (in the entries of a bulk load, say) never blocks that executor.

use std::cell::Cell;
use std::pin::{Pin, pin};
use std::ptr;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

thread_local! {
    /// The waker of this thread. It is made once, so that a blocking call allocates nothing.
    static WAKER: Waker = unpark_this_thread();
    /// The data pointer of the waker with which `block_on` is polling on this thread; null outside of it.
    static DRIVING: Cell<*const ()> = const { Cell::new(ptr::null()) };
}

/// Wakes a thread that sleeps in `park`.
pub(crate) struct Unpark(pub(crate) std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn unpark_this_thread() -> Waker {
    Waker::from(Arc::new(Unpark(std::thread::current())))
}

/// Runs a future to its end on this thread, which parks while the future is pending. Allocates nothing.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    match WAKER.try_with(|waker| drive(future.as_mut(), waker)) {
        Ok(output) => output,
        // The thread is ending, and its waker has been dropped already.
        Err(_) => drive(future, &unpark_this_thread()),
    }
}

fn drive<F: Future>(mut future: Pin<&mut F>, waker: &Waker) -> F::Output {
    let _driving = Driving::begin(waker);
    let mut context = Context::from_waker(waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        std::thread::park();
    }
}

/// Sets `DRIVING` until it is dropped, which restores the value of an outer call of `block_on`.
struct Driving {
    before: *const (),
}

impl Driving {
    fn begin(waker: &Waker) -> Self {
        Self { before: DRIVING.replace(waker.data()) }
    }
}

impl Drop for Driving {
    fn drop(&mut self) {
        DRIVING.set(self.before);
    }
}

/// Returns whether the future polled with this context may block the thread: it may under [`block_on`].
pub(crate) fn blocks(context: &Context<'_>) -> bool {
    let driving = DRIVING.get();
    // `Waker::noop` has a null pointer, too.
    !driving.is_null() && ptr::eq(context.waker().data(), driving)
}

/// Returns whether the future that awaits this may block the thread, for code without a context at hand: see [`blocks`].
/// Always ready at the first poll.
pub(crate) async fn is_blocking() -> bool {
    std::future::poll_fn(|context| Poll::Ready(blocks(context))).await
}

/// Runs a future to its end as a task: its waits do not block, and the thread parks in between.
#[cfg(test)]
pub(crate) fn run_task<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = unpark_this_thread();
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        std::thread::park();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_future_that_block_on_polls_may_block() {
        assert!(block_on(is_blocking()));
        assert!(!run_task(is_blocking()));
        assert!(!blocks(&Context::from_waker(Waker::noop())));
    }

    #[test]
    fn a_task_inside_a_blocking_call_does_not_block_and_the_call_still_does() {
        let found = block_on(async {
            let inside = (run_task(is_blocking()), block_on(is_blocking()));
            (inside, is_blocking().await)
        });
        assert_eq!(found, ((false, true), true));
    }

    #[test]
    fn a_call_that_panics_leaves_the_thread_as_it_was() {
        let panicked = std::panic::catch_unwind(|| block_on(async { panic!("on purpose") }));
        assert!(panicked.is_err() && DRIVING.get().is_null());
    }

    #[test]
    fn a_blocking_call_works_while_its_thread_ends() {
        struct AtTheEnd(std::sync::mpsc::Sender<bool>);
        impl Drop for AtTheEnd {
            fn drop(&mut self) {
                let _ = self.0.send(block_on(is_blocking()));
            }
        }
        thread_local! {
            static LAST: Cell<Option<AtTheEnd>> = const { Cell::new(None) };
        }
        let (tell, told) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            LAST.set(Some(AtTheEnd(tell)));
            // Made later, so dropped earlier.
            block_on(async {});
        });
        thread.join().unwrap();
        assert!(told.recv().unwrap());
    }
}
