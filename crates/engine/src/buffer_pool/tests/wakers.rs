//! Wakers are foreign code: none is cloned, woken or dropped while a lock is held that it may want itself.

use std::sync::Mutex;
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};

use super::*;
use crate::sync::semaphore::Semaphore;

/// Makes wakers that record each call on them, and whether a lock was held during it.
pub(crate) struct Probe {
    is_locked: Box<dyn Fn() -> bool + Send + Sync>,
    calls: Mutex<Vec<(&'static str, bool)>>,
}

impl Probe {
    pub(crate) fn new(is_locked: impl Fn() -> bool + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { is_locked: Box::new(is_locked), calls: Mutex::default() })
    }

    fn note(&self, call: &'static str) {
        let is_locked = (self.is_locked)();
        self.calls.lock().unwrap().push((call, is_locked));
    }

    pub(crate) fn waker(self: &Arc<Self>) -> Waker {
        // SAFETY: the functions of the table keep the contract of `RawWaker`: the data is an `Arc<Probe>`, one count for each waker.
        unsafe { Waker::from_raw(RawWaker::new(Arc::into_raw(Arc::clone(self)).cast(), &TABLE)) }
    }

    /// Checks that each of these kinds of calls was made, and that no call was made under a lock.
    pub(crate) fn check(&self, kinds: &[&str]) {
        let calls = self.calls.lock().unwrap();
        for kind in kinds {
            assert!(calls.iter().any(|(call, _)| call == kind), "no {kind} among {calls:?}");
        }
        assert!(calls.iter().all(|(_, is_locked)| !is_locked), "under a lock: {calls:?}");
    }
}

const TABLE: RawWakerVTable = RawWakerVTable::new(
    |data| {
        // SAFETY: the caller's waker has a count of this `Arc`.
        let probe = unsafe { &*data.cast::<Probe>() };
        probe.note("clone");
        // SAFETY: as above; the new waker has the count that is added.
        unsafe { Arc::increment_strong_count(data.cast::<Probe>()) };
        RawWaker::new(data, &TABLE)
    },
    |data| {
        // SAFETY: the count of the waker that is used up.
        unsafe { Arc::from_raw(data.cast::<Probe>()) }.note("wake");
    },
    |data| {
        // SAFETY: the caller's waker has a count of this `Arc`.
        unsafe { &*data.cast::<Probe>() }.note("wake");
    },
    |data| {
        // SAFETY: the count of the waker that is used up.
        unsafe { Arc::from_raw(data.cast::<Probe>()) }.note("drop");
    },
);

#[test]
fn a_semaphore_calls_no_waker_under_its_lock() {
    let semaphore = Semaphore::new(1);
    let of_waker = Arc::clone(&semaphore);
    let probe = Probe::new(move || of_waker.is_locked());
    let all = semaphore.try_acquire(1).unwrap();
    let (mut first, mut second, mut third) = (semaphore.acquire(1), semaphore.acquire(1), semaphore.acquire(1));
    let poll = |acquire: &mut crate::sync::semaphore::Acquire| {
        // Polls with another waker each time, so that the waker before it is dropped.
        std::pin::Pin::new(acquire).poll(&mut Context::from_waker(&probe.waker()))
    };
    for _ in 0..2 {
        assert!(poll(&mut first).is_pending() && poll(&mut second).is_pending() && poll(&mut third).is_pending());
    }
    drop(second);
    drop(all);
    let Poll::Ready(permit) = poll(&mut first) else { panic!("the permits were granted") };
    drop(permit);
    // The permits were granted, and are never taken.
    drop(third);
    probe.check(&["clone", "wake", "drop"]);
}

#[test]
fn reads_and_frames_call_no_waker_under_a_lock() {
    let world = SimWorld::new(1, SimOptions::calm());
    let pool = pool(&world, 64);
    let pages = commit(&pool, 1, &[], &[10, 20], &[]).unwrap();
    for _ in 0..20 {
        pool.evictor.free_frames(64);
    }
    let miss = |page| Wait::Miss(Missing { page, at: NEWEST });
    let full = Wait::Full { frames: pool.copy_frames_max() };
    for wait in [miss(pages[0]), full.clone(), miss(pages[1]), full] {
        // All frames that can be written to are taken when the wait for frames begins.
        let mut copies = pool.copies();
        copies.reserve(pool.copy_frames_max()).unwrap();
        let take_private = || {
            let mut taken = Vec::new();
            pool.versions.frame_waits().take_some_private(1, &mut taken);
            taken.pop()
        };
        let more: Vec<_> = std::iter::from_fn(take_private).collect();
        let mut ticket = pool.request(&[wait], Permit::any());
        let (waiter, versions) = (Arc::clone(ticket.waiter()), Arc::clone(&pool.versions));
        let probe = Probe::new(move || waiter.is_locked() || versions.frame_waits().is_locked());
        let is_pending = (0..3).all(|_| ticket.poll(&probe.waker()).is_pending());
        assert!(is_pending, "the ticket has nothing yet");
        pool.versions.frame_waits().return_private(more);
        drop(copies);
        pool.submit();
        while ticket.poll(&probe.waker()).is_pending() {
            pool.reads.dispatcher().take();
        }
        drop(ticket);
        probe.check(&["clone", "wake", "drop"]);
    }
    let mut given_up = pool.request(&[miss(pages[0])], Permit::any());
    let waiter = Arc::clone(given_up.waiter());
    let probe = Probe::new(move || waiter.is_locked());
    let _ = given_up.poll(&probe.waker());
    drop(given_up);
    assert!(probe.calls.lock().unwrap().iter().all(|(_, is_locked)| !is_locked));
}
