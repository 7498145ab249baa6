//! Frames for private page copies: grants free frames to the operations waiting for them, first come, first served.
//!
//! The queue owns the frames of the pool, because every frame that is given back may complete a grant.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::frames::{Frames, OwnedFrame};
use super::waiter::Waiter;
use crate::error::Error;
use crate::events;
use crate::histogram::AtomicHistogram;
use crate::sync::wakers::wake_all;

/// The frames of a pool, and the queue of operations waiting for free frames.
pub(super) struct FrameWaitQueue {
    frames: Frames,
    /// The state of the queue. While its lock is held, only the locks of waiters and of the free list may be taken.
    state: Mutex<State>,
    /// Nanoseconds that operations waited until they were granted their frames.
    waited_ns: AtomicHistogram,
}

#[derive(Default)]
struct State {
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
    pub(super) fn new(frames: Frames) -> Self {
        Self { frames, state: Mutex::default(), waited_ns: AtomicHistogram::default() }
    }

    #[inline]
    pub(super) fn frames(&self) -> &Frames {
        &self.frames
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes up to `most` free frames for private copies, from the reserved frames if there are any. Takes fewer than there
    /// are perhaps, but one at least if there is one.
    pub(super) fn take_some_private(&self, most: usize, into: &mut Vec<OwnedFrame>) {
        match self.lock().reserved.pop() {
            Some(frame) => into.push(frame),
            None => self.frames.take_some_for_write(most, into),
        }
    }

    /// Gives back frames taken for reads, and grants free frames to waiting operations.
    pub(super) fn return_frames(&self, frames: Vec<OwnedFrame>) {
        if !frames.is_empty() {
            self.frames.give_back(frames);
            self.grant();
        }
    }

    /// Gives back frames taken for private copies, and grants free frames to waiting operations.
    pub(super) fn return_private(&self, frames: Vec<OwnedFrame>) {
        if !frames.is_empty() {
            self.frames.give_back_private(frames);
            self.grant();
        }
    }

    /// Adds an operation at the end of the queue. The caller must call [`FrameWaitQueue::leave`] later.
    pub(super) fn enter(&self, waiter: &Arc<Waiter>) {
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
    pub(super) fn leave(&self, waiter: &Arc<Waiter>) {
        let mut state = self.lock();
        state.waiting.retain(|(other, _)| !Arc::ptr_eq(other, waiter));
        state.holders -= 1;
        let reserved = if state.holders == 0 { std::mem::take(&mut state.reserved) } else { Vec::new() };
        drop(state);
        self.frames.give_back_private(reserved);
        self.grant();
    }

    /// Grants free frames to the waiters, first come, first served. To be called whenever frames have become free.
    pub(super) fn grant(&self) {
        let (mut wake, mut longest) = (Vec::new(), Duration::ZERO);
        let mut state = self.lock();
        while let Some((first, since)) = state.waiting.front().cloned() {
            let wanted = first.frames_missing();
            while state.reserved.len() < wanted
                && let Some(frame) = self.frames.take_for_write()
            {
                state.reserved.push(frame);
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
    pub(super) fn fail_all(&self, error: &Error) {
        let waiting = std::mem::take(&mut self.lock().waiting);
        let wake: Vec<_> = waiting.iter().filter_map(|(waiter, _)| waiter.fail(error.clone())).collect();
        wake_all(wake);
    }

    pub(super) fn has_waiters(&self) -> bool {
        !self.lock().waiting.is_empty()
    }

    /// Returns the times that operations waited until they were granted their frames, in nanoseconds.
    pub(super) fn waited_ns(&self) -> &AtomicHistogram {
        &self.waited_ns
    }

    /// Returns the number of operations that were granted their frames since the pool was opened.
    pub(super) fn granted_count(&self) -> u64 {
        self.lock().granted
    }

    /// Returns whether the lock is held, in a test with a single thread.
    #[cfg(test)]
    pub(super) fn is_locked(&self) -> bool {
        self.state.try_lock().is_err()
    }
}
