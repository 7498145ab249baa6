//! The queue of waiters for frames for private copies: grants free frames first come, first served.

use std::collections::VecDeque;
use std::sync::{Arc, MutexGuard, PoisonError};

use super::Core;
use super::frames::OwnedFrame;
use super::lane::LEAVE_AT_ONCE;
use super::ticket::Waiter;
use crate::bell::wake_all;

/// Most frames evicted at once for a writer that waits.
const LEAVE_AT_ONCE_MAX: usize = 256;
/// Attempts of a writer to evict frames before it waits for the keeper.
const TRIES: usize = 3;

/// The waiters, and the frames set aside for the first of them.
#[derive(Default)]
pub(super) struct Full {
    pub(super) waiting: VecDeque<Arc<Waiter>>,
    holders: usize,
    /// Waiters that got their frames, in all.
    pub(super) granted: u64,
    stash: Vec<OwnedFrame>,
}

impl Core {
    pub(super) fn full(&self) -> MutexGuard<'_, Full> {
        self.full.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A frame for a private copy.
    pub(super) fn take_writer_frame(&self) -> Option<OwnedFrame> {
        let stashed = self.full().stash.pop();
        stashed.or_else(|| self.frames.take_for_write())
    }

    /// Gives frames back that were taken for reads.
    pub(super) fn return_frames(self: &Arc<Self>, frames: Vec<OwnedFrame>) {
        if !frames.is_empty() {
            self.frames.give_back(frames);
            self.settle_full();
        }
    }

    /// Gives frames back that were taken for private copies.
    pub(super) fn return_private(self: &Arc<Self>, frames: Vec<OwnedFrame>) {
        if !frames.is_empty() {
            self.frames.give_back_private(frames);
            self.settle_full();
        }
    }

    pub(super) fn wait_for_frames(self: &Arc<Self>, waiter: &Arc<Waiter>) {
        {
            let mut full = self.full();
            full.waiting.push_back(Arc::clone(waiter));
            full.holders += 1;
        }
        self.settle_full();
        for _ in 0..TRIES {
            let lacking = waiter.frames_missing();
            if lacking == 0 {
                break;
            }
            // Pages that need no write leave at once, as they do for reads.
            self.make_clean_room(lacking.clamp(LEAVE_AT_ONCE, LEAVE_AT_ONCE_MAX));
            self.settle_full();
        }
        self.keeper.wake();
    }

    pub(super) fn end_frame_wait(self: &Arc<Self>, waiter: &Arc<Waiter>) {
        let mut full = self.full();
        full.waiting.retain(|other| !Arc::ptr_eq(other, waiter));
        full.holders -= 1;
        let stash = if full.holders == 0 { std::mem::take(&mut full.stash) } else { Vec::new() };
        drop(full);
        self.frames.give_back_private(stash);
        self.settle_full();
    }

    /// Grants free frames to the waiters, first come, first served.
    pub(super) fn settle_full(self: &Arc<Self>) {
        let mut wake = Vec::new();
        let mut full = self.full();
        while let Some(first) = full.waiting.front().cloned() {
            let wanted = first.frames_missing();
            while full.stash.len() < wanted
                && let Some(frame) = self.frames.take_for_write()
            {
                full.stash.push(frame);
            }
            if full.stash.len() < wanted {
                break;
            }
            full.waiting.pop_front();
            full.granted += 1;
            wake.extend(first.grant_frames());
        }
        drop(full);
        wake_all(wake);
    }
}
