//! The state of an operation that waits for pages and frames, shared with the code that brings them.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::format::PageId;
use crate::sync::wakers::poll_guarded;

/// The state of one ticket: the reads and frames that it waits for. Shared with the in-flight reads and with the queue
/// for frames.
#[derive(Debug)]
pub(crate) struct Waiter {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    reads_left: usize,
    /// The page of the last read that was added.
    last_read: PageId,
    frames_wanted: usize,
    frames_granted: bool,
    error: Option<Error>,
    /// The first page that has arrived, and the frame in which it is pinned. Nearly always there is no other, and no
    /// allocation is needed.
    pinned: Option<(PageId, u32)>,
    pinned_more: Vec<(PageId, u32)>,
    gone: bool,
    nudged: bool,
    /// True while the waiting thread sleeps: only then a wake-up needs a system call.
    parked: bool,
    waker: Option<Waker>,
}

impl State {
    fn is_ready(&self) -> bool {
        self.error.is_some() || (self.reads_left == 0 && (self.frames_wanted == 0 || self.frames_granted))
    }

    fn outcome(&self) -> Option<Result<()>> {
        match &self.error {
            Some(error) => Some(Err(error.clone())),
            None => self.is_ready().then_some(Ok(())),
        }
    }

    /// Records a page pinned in a frame for the ticket. Returns false, and records nothing, when the ticket has
    /// been dropped.
    fn pin(&mut self, page: PageId, frame: u32) -> bool {
        if self.gone {
            return false;
        }
        match &mut self.pinned {
            None => self.pinned = Some((page, frame)),
            Some(_) => self.pinned_more.push((page, frame)),
        }
        true
    }
}

impl Waiter {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), changed: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn expect_read(&self, page: PageId) {
        let mut state = self.lock();
        state.reads_left += 1;
        state.last_read = page;
    }

    /// Returns the number of reads that the waiter waits for.
    pub(crate) fn reads_left(&self) -> usize {
        self.lock().reads_left
    }

    /// Returns the page that the waiter waits for, if it waits for a single page and nothing else.
    pub(crate) fn only_read(&self) -> Option<PageId> {
        let state = self.lock();
        (state.reads_left == 1 && state.frames_wanted == 0 && state.pinned.is_none()).then_some(state.last_read)
    }

    pub(crate) fn want_frames(&self, frames: usize) {
        let mut state = self.lock();
        state.frames_wanted = state.frames_wanted.max(frames);
    }

    /// Returns the number of frames that the waiter still waits for; zero after its ticket was dropped.
    pub(crate) fn frames_missing(&self) -> usize {
        let state = self.lock();
        if state.gone || state.frames_granted { 0 } else { state.frames_wanted }
    }

    /// Records that a page is in this frame, pinned for this waiter. Returns false, and records nothing, when the
    /// ticket has been dropped. The caller holds the lock of the page's shard.
    pub(crate) fn pinned(&self, page: PageId, frame: u32) -> bool {
        self.lock().pin(page, frame)
    }

    /// Records that a read has brought a page into this frame. Returns whether the page is to be pinned for this
    /// waiter, as [`Waiter::pinned`] does, and the waker, if any, that the caller must call once it holds no lock.
    #[must_use]
    pub(crate) fn arrived(&self, page: PageId, frame: u32) -> (bool, Option<Waker>) {
        let mut state = self.lock();
        let pinned = state.pin(page, frame);
        (pinned, self.read_less(&mut state))
    }

    /// Records that a read has ended without a page, perhaps with an error. Returns the waker, if any, that the caller
    /// must call once it holds no lock.
    #[must_use]
    pub(crate) fn read_over(&self, error: Option<Error>) -> Option<Waker> {
        let mut state = self.lock();
        if state.error.is_none() {
            state.error = error;
        }
        self.read_less(&mut state)
    }

    fn read_less(&self, state: &mut State) -> Option<Waker> {
        state.reads_left = state.reads_left.saturating_sub(1);
        self.tell(state)
    }

    #[must_use]
    pub(crate) fn grant_frames(&self) -> Option<Waker> {
        let mut state = self.lock();
        state.frames_granted = true;
        self.tell(&mut state)
    }

    #[must_use]
    pub(crate) fn fail(&self, error: Error) -> Option<Waker> {
        let mut state = self.lock();
        state.error = Some(error);
        self.tell(&mut state)
    }

    /// Wakes the parked thread and returns the task's waker, if nothing is left to wait for.
    fn tell(&self, state: &mut State) -> Option<Waker> {
        if !state.is_ready() {
            return None;
        }
        if state.parked {
            self.changed.notify_all();
        }
        state.waker.take()
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.lock().is_ready()
    }

    /// Returns the outcome of the wait, once nothing is left to wait for.
    pub(crate) fn outcome(&self) -> Option<Result<()>> {
        self.lock().outcome()
    }

    /// Returns the outcome of the wait. While there is none, registers the waker, which is called once there is.
    pub(crate) fn poll(&self, waker: &Waker) -> Poll<Result<()>> {
        let register = |state: &mut State, waker: &mut Option<Waker>| std::mem::swap(&mut state.waker, waker);
        poll_guarded(waker, || self.lock(), |state| state.outcome(), register)
    }

    /// Ends the wait: from now on no page is pinned for it. Returns the pages pinned so far, and whether the wait was
    /// for frames too.
    pub(crate) fn withdraw(&self) -> (impl Iterator<Item = (PageId, u32)>, bool) {
        let mut state = self.lock();
        state.gone = true;
        let waker = state.waker.take();
        let (pinned, pinned_more) = (state.pinned.take(), std::mem::take(&mut state.pinned_more));
        let wants_frames = state.frames_wanted > 0;
        drop(state);
        drop(waker);
        (pinned.into_iter().chain(pinned_more), wants_frames)
    }

    /// Returns whether the lock is held, in a test with a single thread.
    #[cfg(test)]
    pub(super) fn is_locked(&self) -> bool {
        self.state.try_lock().is_err()
    }

    /// Parks the calling thread until another thread changes this waiter, at most for `most`.
    pub(crate) fn park(&self, most: Duration) {
        let mut state = self.lock();
        if !state.is_ready() && !state.nudged {
            state.parked = true;
            state = self.changed.wait_timeout(state, most).unwrap_or_else(PoisonError::into_inner).0;
            state.parked = false;
        }
        state.nudged = false;
    }

    /// Makes the waiter's thread try to take over the read queue. Returns false when the waiter is ready or its ticket
    /// dropped.
    pub(crate) fn nudge(&self) -> bool {
        let mut state = self.lock();
        if state.is_ready() || state.gone {
            return false;
        }
        state.nudged = true;
        if state.parked {
            self.changed.notify_all();
        }
        true
    }
}
