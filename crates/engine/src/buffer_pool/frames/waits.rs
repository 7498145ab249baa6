//! The state of an operation that waits for pages and frames, shared with the code that brings them; and the queue of operations that wait
//! for frames for private page copies, which grants free frames first come, first served.
//!
//! The queue owns the frames of the pool, because every frame that is given back may complete a grant.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use super::{Frames, OwnedFrame};
use crate::error::{Error, Result};
use crate::events;
use crate::format::PageId;
use crate::histogram::AtomicHistogram;
use crate::sync::wakers::{poll_guarded, wake_all};

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
    pub(crate) fn is_locked(&self) -> bool {
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

/// The frames of a pool, and the queue of operations waiting for free frames.
pub(crate) struct FrameWaitQueue {
    frames: Frames,
    /// The state of the queue. While its lock is held, only the locks of waiters and of the free list may be taken.
    state: Mutex<QueueState>,
    /// Nanoseconds that operations waited until they were granted their frames.
    waited_ns: AtomicHistogram,
}

#[derive(Default)]
struct QueueState {
    /// The operations, each with the beginning of its wait.
    waiting: VecDeque<(Arc<Waiter>, Instant)>,
    /// Number of operations that wait, or hold the frames that they were granted.
    holders: usize,
    /// Number of operations that were granted their frames since the pool was opened.
    granted: u64,
    /// Frames reserved for the first operation in the queue, and for operations that were granted their frames.
    reserved: Vec<OwnedFrame>,
}

impl FrameWaitQueue {
    pub(crate) fn new(frames: Frames) -> Self {
        Self { frames, state: Mutex::default(), waited_ns: AtomicHistogram::default() }
    }

    #[inline]
    pub(crate) fn frames(&self) -> &Frames {
        &self.frames
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes up to `most` free frames for private copies, from the reserved frames if there are any. Takes fewer than there
    /// are perhaps, but one at least if there is one.
    pub(crate) fn take_some_private(&self, most: usize, into: &mut Vec<OwnedFrame>) {
        match self.lock().reserved.pop() {
            Some(frame) => into.push(frame),
            None => self.frames.take_some_for_write(most, into),
        }
    }

    /// Gives back frames taken for reads, and grants free frames to waiting operations.
    pub(crate) fn return_frames(&self, frames: Vec<OwnedFrame>) {
        if !frames.is_empty() {
            self.frames.give_back(frames);
            self.grant();
        }
    }

    /// Gives back frames taken for private copies, and grants free frames to waiting operations.
    pub(crate) fn return_private(&self, frames: Vec<OwnedFrame>) {
        if !frames.is_empty() {
            self.frames.give_back_private(frames);
            self.grant();
        }
    }

    /// Adds an operation at the end of the queue. The caller must call [`FrameWaitQueue::leave`] later.
    pub(crate) fn enter(&self, waiter: &Arc<Waiter>) {
        {
            let now = Instant::now();
            let mut state = self.lock();
            state.waiting.push_back((Arc::clone(waiter), now));
            state.holders += 1;
        }
        self.grant();
    }

    /// Ends a wait, whether frames were granted or not. When no operation waits or holds a grant any more, the frames
    /// still reserved become free.
    pub(crate) fn leave(&self, waiter: &Arc<Waiter>) {
        let mut state = self.lock();
        state.waiting.retain(|(other, _)| !Arc::ptr_eq(other, waiter));
        state.holders -= 1;
        let reserved = if state.holders == 0 { std::mem::take(&mut state.reserved) } else { Vec::new() };
        drop(state);
        self.frames.give_back_private(reserved);
        self.grant();
    }

    /// Grants free frames to the waiters, first come, first served. To be called whenever frames have become free.
    pub(crate) fn grant(&self) {
        let (mut wake, mut longest) = (Vec::new(), Duration::ZERO);
        let mut state = self.lock();
        while let Some((first, since)) = state.waiting.front().cloned() {
            let wanted = first.frames_missing();
            let mut has_more = true;
            while has_more && state.reserved.len() < wanted {
                let before = state.reserved.len();
                self.frames.take_some_for_write(1, &mut state.reserved);
                has_more = state.reserved.len() > before;
            }
            if state.reserved.len() < wanted {
                break;
            }
            state.waiting.pop_front();
            state.granted += 1;
            let waited = since.elapsed();
            self.waited_ns.add_time(waited);
            longest = longest.max(waited);
            wake.extend(first.grant_frames());
        }
        drop(state);
        wake_all(wake);
        events::waited("frames", longest);
    }

    /// Ends the waits of all operations in the queue with an error.
    pub(crate) fn fail_all(&self, error: &Error) {
        let waiting = std::mem::take(&mut self.lock().waiting);
        let wake: Vec<_> = waiting.iter().filter_map(|(waiter, _)| waiter.fail(error.clone())).collect();
        wake_all(wake);
    }

    pub(crate) fn has_waiters(&self) -> bool {
        !self.lock().waiting.is_empty()
    }

    /// Returns the times that operations waited until they were granted their frames, in nanoseconds.
    pub(crate) fn waited_ns(&self) -> &AtomicHistogram {
        &self.waited_ns
    }

    /// Returns the number of operations that were granted their frames since the pool was opened.
    pub(crate) fn granted_count(&self) -> u64 {
        self.lock().granted
    }

    /// Returns whether the lock is held, in a test with a single thread.
    #[cfg(test)]
    pub(crate) fn is_locked(&self) -> bool {
        self.state.try_lock().is_err()
    }
}
