//! Waiting for pages and frames: what an operation holds while it cannot go on.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use super::Core;
use crate::error::{Error, Result};
use crate::format::PageId;
use crate::pages;

/// What one ticket waits for. Shared with the reads under way and with the queue for frames.
#[derive(Debug)]
pub(crate) struct Waiter {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    reads_left: usize,
    /// The page of the last read it came to wait for.
    last_read: PageId,
    frames_wanted: usize,
    frames_granted: bool,
    error: Option<Error>,
    pinned: Vec<(PageId, u32)>,
    gone: bool,
    nudged: bool,
    waker: Option<Waker>,
}

impl State {
    fn is_ready(&self) -> bool {
        self.error.is_some() || (self.reads_left == 0 && (self.frames_wanted == 0 || self.frames_granted))
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

    /// The page it waits for, if it is one page and nothing else.
    pub(crate) fn only_read(&self) -> Option<PageId> {
        let state = self.lock();
        (state.reads_left == 1 && state.frames_wanted == 0 && state.pinned.is_empty()).then_some(state.last_read)
    }

    pub(crate) fn want_frames(&self, frames: usize) {
        let mut state = self.lock();
        state.frames_wanted = state.frames_wanted.max(frames);
    }

    /// How many frames it still waits for; zero when it has been dropped.
    pub(crate) fn frames_missing(&self) -> usize {
        let state = self.lock();
        if state.gone || state.frames_granted { 0 } else { state.frames_wanted }
    }

    /// The page is in this frame and pinned on behalf of this waiter. False when nobody waits any more: not pinned.
    /// The caller holds the lock of the page's shard.
    pub(crate) fn pinned(&self, page: PageId, frame: u32) -> bool {
        let mut state = self.lock();
        if !state.gone {
            state.pinned.push((page, frame));
        }
        !state.gone
    }

    /// A read it waited for is over. The waker, if it is time, is called by the caller once no lock is held.
    #[must_use]
    pub(crate) fn read_over(&self, error: Option<Error>) -> Option<Waker> {
        self.change(|state| {
            state.reads_left = state.reads_left.saturating_sub(1);
            if state.error.is_none() {
                state.error = error;
            }
        })
    }

    #[must_use]
    pub(crate) fn grant_frames(&self) -> Option<Waker> {
        self.change(|state| state.frames_granted = true)
    }

    #[must_use]
    pub(crate) fn fail(&self, error: Error) -> Option<Waker> {
        self.change(|state| state.error = Some(error))
    }

    fn change(&self, change: impl FnOnce(&mut State)) -> Option<Waker> {
        let mut state = self.lock();
        change(&mut state);
        if !state.is_ready() {
            return None;
        }
        self.changed.notify_all();
        state.waker.take()
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.lock().is_ready()
    }

    /// Waits for a change made by another thread, but not for long.
    pub(crate) fn park(&self, most: Duration) {
        let mut state = self.lock();
        if !state.is_ready() && !state.nudged {
            state = self.changed.wait_timeout(state, most).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.nudged = false;
    }

    /// Makes a parked waiter look around. False when it has no need to.
    pub(crate) fn nudge(&self) -> bool {
        let mut state = self.lock();
        if state.is_ready() || state.gone {
            return false;
        }
        state.nudged = true;
        self.changed.notify_all();
        true
    }
}

/// What an operation waits for; keeps what has arrived in memory until it is dropped.
pub(crate) struct Ticket {
    core: Arc<Core>,
    waiter: Arc<Waiter>,
}

impl Ticket {
    pub(super) fn new(core: Arc<Core>, waiter: Arc<Waiter>) -> Self {
        Self { core, waiter }
    }

    fn outcome(&self) -> Option<Result<()>> {
        let state = self.waiter.lock();
        match &state.error {
            Some(error) => Some(Err(error.clone())),
            None => state.is_ready().then_some(Ok(())),
        }
    }
}

impl pages::Ticket for Ticket {
    fn poll(&mut self, waker: &Waker) -> Poll<Result<()>> {
        self.core.expect_async();
        let mut state = self.waiter.lock();
        if !state.is_ready() {
            state.waker.clone_from(&Some(waker.clone()));
            return Poll::Pending;
        }
        drop(state);
        self.outcome().map_or(Poll::Pending, Poll::Ready)
    }

    fn wait(&mut self) -> Result<()> {
        let mut idle_rounds = 0;
        loop {
            if let Some(outcome) = self.outcome() {
                self.core.leave_lane();
                return outcome;
            }
            let moved = self.core.drive(&self.waiter)?;
            idle_rounds = if moved { 0 } else { idle_rounds + 1 };
            self.core.give_up_after(idle_rounds)?;
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = self.waiter.lock();
        state.gone = true;
        state.waker = None;
        let pinned = std::mem::take(&mut state.pinned);
        let wanted_frames = state.frames_wanted > 0;
        drop(state);
        for (page, frame) in pinned {
            self.core.unpin(page, frame);
        }
        if wanted_frames {
            self.core.end_frame_wait(&self.waiter);
        }
    }
}
