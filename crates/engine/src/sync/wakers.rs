//! Calls the wakers of tasks, and registers them under a lock.
//!
//! Kept true by: a waker is foreign code, which may panic and may take any lock of the database. So no waker is cloned,
//! woken or dropped under a lock, and a panic in one does not reach the calling thread.

use std::ops::DerefMut;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Poll, Waker};

/// Calls a waker and swallows its panic, which the panic hook has reported. A waker is foreign code; the calling thread may
/// be the database's only background thread, or an unrelated caller that missed the same page, and other wakers follow.
pub(crate) fn wake(waker: Waker) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| waker.wake())) {
        // The payload may panic again when it is dropped.
        std::mem::forget(payload);
    }
}

/// Calls [`wake`] for each waker.
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
