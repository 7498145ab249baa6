//! How the background writer is woken, and the pages that it may write early.
//!
//! Every part of the pool may wake it, so this knows none of them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::format::PageId;
use crate::sync::notifier::Notifier;

/// Most pages that are written early at a time: enough that the device is seldom idle between two batches.
const SOON_BATCH_MAX: usize = 4096;
/// Most pages that may wait to be written early: their ids take half a megabyte.
const SOON_MAX: usize = 1 << 16;
/// Longest pause of the background writer, unless it is woken.
pub(crate) const PAUSE_MAX: Duration = Duration::from_millis(100);

/// The state that the background writer shares with the threads that wake it.
#[derive(Debug)]
pub(crate) struct WriterSignal {
    notifier: Arc<Notifier>,
    /// True while reads wait for frames and the background writer has been woken for this already.
    starving: AtomicBool,
    /// Number of consecutive rounds of the background writer that freed nothing.
    rounds_in_vain: AtomicU32,
    /// Pages to be written early, when nothing is more pressing.
    soon: Mutex<VecDeque<PageId>>,
}

impl WriterSignal {
    pub(crate) fn new() -> Self {
        let (notifier, starving) = (Arc::default(), AtomicBool::new(false));
        Self { notifier, starving, rounds_in_vain: AtomicU32::new(0), soon: Mutex::default() }
    }

    /// Returns the notifier by which the background writer is woken.
    pub(crate) fn notifier(&self) -> &Arc<Notifier> {
        &self.notifier
    }

    /// Returns whether there is a background writer.
    pub(crate) fn is_running(&self) -> bool {
        self.notifier.has_listener()
    }

    pub(crate) fn wake(&self) {
        self.notifier.notify();
    }

    /// Notes that the background writer was woken: its next pause after a round in vain is a short one.
    pub(crate) fn note_woken(&self) {
        self.rounds_in_vain.store(0, Ordering::Relaxed);
    }

    /// Notes that reads wait for frames. Wakes the background writer unless it has been woken for this already.
    pub(crate) fn wake_for_frames(&self) {
        if !self.starving.swap(true, Ordering::SeqCst) {
            self.wake();
        }
    }

    pub(crate) fn is_starving(&self) -> bool {
        self.starving.load(Ordering::SeqCst)
    }

    /// Sets whether reads wait for frames. Returns the previous value. Wakes no thread.
    pub(crate) fn set_starving(&self, starving: bool) -> bool {
        self.starving.swap(starving, Ordering::SeqCst)
    }

    /// Wakes the background writer if reads wait for frames. Called when a frame has become evictable.
    pub(crate) fn wake_if_starving(&self) {
        if self.is_starving() {
            self.wake();
        }
    }

    /// Returns the pause after a round that freed nothing: longer after each such round, until the background writer is
    /// woken.
    pub(crate) fn longer_pause(&self) -> Duration {
        let rounds = self.rounds_in_vain.load(Ordering::Relaxed);
        self.rounds_in_vain.store(rounds.saturating_add(1), Ordering::Relaxed);
        Duration::from_millis(1 << rounds.min(7)).min(PAUSE_MAX)
    }

    /// Makes the background writer's next pause a short one again.
    pub(crate) fn note_progress(&self) {
        self.rounds_in_vain.store(0, Ordering::Relaxed);
    }

    /// Adds published pages that may be written early, as for [`crate::pages::Store::write_soon`], and wakes the
    /// background writer.
    pub(crate) fn write_soon(&self, pages: &[PageId]) {
        if !self.is_running() {
            return;
        }
        {
            let mut soon = self.soon.lock().unwrap_or_else(PoisonError::into_inner);
            let room = SOON_MAX - soon.len();
            soon.extend(pages.iter().take(room));
        }
        self.wake();
    }

    /// Returns whether there are pages to be written early.
    pub(crate) fn has_soon(&self) -> bool {
        !self.soon.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    pub(crate) fn take_soon(&self) -> Vec<PageId> {
        let mut soon = self.soon.lock().unwrap_or_else(PoisonError::into_inner);
        let count = soon.len().min(SOON_BATCH_MAX);
        soon.drain(..count).collect()
    }

    /// Returns whether the background writer was woken and has not begun its next round.
    #[cfg(test)]
    pub(crate) fn is_woken(&self) -> bool {
        self.notifier.is_notified()
    }
}
