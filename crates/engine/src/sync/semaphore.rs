//! A first-come, first-served semaphore for tasks and for threads.
//!
//! Invariant: permits are granted to the longest waiter first, even when a later one requests fewer, so no waiter
//! starves. A waiter that is dropped gives back the permits that it was granted. No waker is cloned, woken or
//! dropped under the lock: it is foreign code, which may take the same lock.

use std::cell::Cell;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use nofault_io::process::Process;

use super::wakers::{poll_guarded, wake_all};

/// A fair asynchronous semaphore.
#[derive(Debug)]
pub(crate) struct Semaphore {
    state: Mutex<State>,
    permits: usize,
    /// The process of the waiters: in a forked child none of them is there to give the lock back.
    process: Process,
}

#[derive(Debug)]
struct State {
    free: usize,
    waiting: VecDeque<Waiter>,
    next_ticket: u64,
}

#[derive(Debug)]
struct Waiter {
    ticket: u64,
    want: usize,
    /// The waiter's waker, until its permits are granted.
    waker: Option<Waker>,
    granted: bool,
}

/// Permits of a semaphore. Dropping this returns them, and grants them to the next waiters.
#[derive(Debug)]
pub(crate) struct Permit {
    semaphore: Arc<Semaphore>,
    count: usize,
}

impl Semaphore {
    /// Creates a semaphore with this many permits.
    pub(crate) fn new(permits: usize) -> Arc<Self> {
        let state = State { free: permits, waiting: VecDeque::new(), next_ticket: 0 };
        Arc::new(Self { state: Mutex::new(state), permits, process: Process::current() })
    }

    /// Returns whether the lock is held, in a test with a single thread.
    #[cfg(test)]
    pub(crate) fn is_locked(&self) -> bool {
        self.state.try_lock().is_err()
    }

    /// Returns whether this is the process of the waiters, and no forked child of it.
    pub(crate) fn is_here(&self) -> bool {
        self.process.is_here()
    }

    /// Returns the number of the semaphore's permits, free or not.
    pub(crate) fn permits(&self) -> usize {
        self.permits
    }

    /// Waits for `count` permits, or for all permits if there are fewer.
    pub(crate) fn acquire(self: &Arc<Self>, count: usize) -> Acquire {
        Acquire { semaphore: self.clone(), count: count.min(self.permits), ticket: None }
    }

    /// Takes `count` permits, or all if there are fewer, if they are free and no waiter is ahead.
    pub(crate) fn try_acquire(self: &Arc<Self>, count: usize) -> Option<Permit> {
        let count = count.min(self.permits);
        self.lock().take(count).then(|| Permit { semaphore: self.clone(), count })
    }

    /// Grants every wait, those that begin later as well: there is nothing to share out any more. The caller holds no
    /// lock.
    pub(crate) fn open(&self) {
        // Far more than are ever asked for, and too few for the sum to overflow when all are given back.
        self.give_back(usize::MAX >> 1);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code panics half-way through a change under this lock, so a poisoned lock can be used.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give_back(&self, count: usize) {
        let mut state = self.lock();
        state.free = state.free.saturating_add(count);
        let wakers = state.grant();
        drop(state);
        wake_all(wakers);
    }
}

impl State {
    /// Takes `count` permits, if they are free and no other waiter is ahead. Returns whether it did.
    fn take(&mut self, count: usize) -> bool {
        let free = self.waiting.iter().all(|waiter| waiter.granted) && self.free >= count;
        if free {
            self.free -= count;
        }
        free
    }

    /// Adds a waiter for `want` permits at the end of the list. Returns its ticket number.
    fn list(&mut self, want: usize) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.waiting.push_back(Waiter { ticket, want, waker: None, granted: false });
        ticket
    }

    /// Removes a waiter from the list if its permits have been granted, and returns whether they were. Its waker has
    /// been taken by then.
    fn take_granted(&mut self, ticket: u64) -> bool {
        let at = self.waiting.iter().position(|waiter| waiter.ticket == ticket && waiter.granted);
        at.is_some_and(|at| self.waiting.remove(at).is_some())
    }

    /// Grants free permits to the waiters in order, until they do not suffice for the next. Granted waiters stay listed
    /// until they take their permits. Returns the wakers to call.
    fn grant(&mut self) -> Vec<Waker> {
        let mut wakers = Vec::new();
        for waiter in &mut self.waiting {
            if waiter.granted {
                continue;
            }
            if waiter.want > self.free {
                break;
            }
            self.free -= waiter.want;
            waiter.granted = true;
            wakers.extend(waiter.waker.take());
        }
        wakers
    }
}

impl Permit {
    /// Returns the number of permits held.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Returns a permit with a practically unlimited count, for tests of code that takes permits.
    #[cfg(test)]
    pub(crate) fn any() -> Self {
        Self { semaphore: Semaphore::new(0), count: usize::MAX >> 1 }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if !self.semaphore.is_here() {
            return;
        }
        self.semaphore.give_back(self.count);
    }
}

/// The future of a wait for permits.
#[derive(Debug)]
pub(crate) struct Acquire {
    semaphore: Arc<Semaphore>,
    count: usize,
    ticket: Option<u64>,
}

impl Future for Acquire {
    type Output = Permit;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Permit> {
        let Self { semaphore, count, ticket } = &mut *self;
        let listed = Cell::new(*ticket);
        let taken = |state: &mut State| match listed.get() {
            None => state.take(*count).then_some(()),
            Some(ticket) => state.take_granted(ticket).then_some(()),
        };
        let register = |state: &mut State, waker: &mut Option<Waker>| {
            let ticket = listed.get().unwrap_or_else(|| state.list(*count));
            listed.set(Some(ticket));
            if let Some(waiter) = state.waiting.iter_mut().find(|waiter| waiter.ticket == ticket) {
                std::mem::swap(&mut waiter.waker, waker);
            }
        };
        let polled = poll_guarded(context.waker(), || semaphore.lock(), taken, register);
        *ticket = if polled.is_ready() { None } else { listed.get() };
        polled.map(|()| Permit { semaphore: semaphore.clone(), count: *count })
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket.filter(|_| self.semaphore.is_here()) else { return };
        let mut state = self.semaphore.lock();
        let Some(at) = state.waiting.iter().position(|waiter| waiter.ticket == ticket) else { return };
        if state.waiting[at].granted {
            state.free = state.free.saturating_add(state.waiting[at].want);
        }
        let gone = state.waiting.remove(at);
        let wakers = state.grant();
        drop(state);
        drop(gone);
        wake_all(wakers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::driver::block_on;

    fn poll(acquire: &mut Acquire) -> Option<Permit> {
        match Pin::new(acquire).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(permit) => Some(permit),
            Poll::Pending => None,
        }
    }

    #[test]
    fn the_longest_waiter_is_granted_first_however_many_permits_it_wants() {
        let semaphore = Semaphore::new(3);
        let first = poll(&mut semaphore.acquire(2)).unwrap();
        let (mut large, mut small) = (semaphore.acquire(3), semaphore.acquire(1));
        assert!(poll(&mut large).is_none() && poll(&mut small).is_none());
        drop(first);
        assert!(poll(&mut small).is_none());
        let large = poll(&mut large).unwrap();
        assert!(poll(&mut small).is_none());
        drop(large);
        assert!(poll(&mut small).is_some());
    }

    #[test]
    fn an_attempt_without_waiting_never_overtakes_a_waiter() {
        let semaphore = Semaphore::new(3);
        let first = semaphore.try_acquire(2).unwrap();
        assert!(semaphore.try_acquire(2).is_none(), "one permit is left");
        let mut waits = semaphore.acquire(3);
        assert!(poll(&mut waits).is_none());
        assert!(semaphore.try_acquire(1).is_none(), "another waiter is ahead");
        drop(first);
        let all = poll(&mut waits).unwrap();
        drop(all);
        assert!(semaphore.try_acquire(100).is_some(), "all permits there are");
    }

    #[test]
    fn a_dropped_waiter_gives_its_grant_to_the_next() {
        let semaphore = Semaphore::new(1);
        let first = poll(&mut semaphore.acquire(1)).unwrap();
        let (mut gone, mut next) = (semaphore.acquire(1), semaphore.acquire(1));
        assert!(poll(&mut gone).is_none() && poll(&mut next).is_none());
        drop(first);
        // The permits are granted by now, and never taken by the waiter.
        drop(gone);
        assert!(poll(&mut next).is_some());
    }

    #[test]
    fn an_open_semaphore_grants_all_waits_although_no_permit_was_given_back() {
        let semaphore = Semaphore::new(1);
        let first = poll(&mut semaphore.acquire(1)).unwrap();
        let mut waits = [semaphore.acquire(1), semaphore.acquire(1)];
        assert!(waits.iter_mut().all(|wait| poll(wait).is_none()));
        semaphore.open();
        semaphore.open();
        let granted: Vec<_> = waits.iter_mut().map(|wait| poll(wait).unwrap()).collect();
        let later = semaphore.try_acquire(1).unwrap();
        drop((first, granted, later));
        assert!(poll(&mut semaphore.acquire(1)).is_some());
    }

    #[test]
    fn threads_wait_as_well_as_tasks() {
        let semaphore = Semaphore::new(1);
        let counted = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let _permit = block_on(semaphore.acquire(1));
                        assert_eq!(counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                        counted.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                    }
                });
            }
        });
    }
}
