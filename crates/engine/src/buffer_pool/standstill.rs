//! Ends waits for frames when nothing moves any more: every frame is pinned, or dirty on a disk that takes no writes.
//!
//! A device that is still at work on a read, a write or a sync of the data file or of the log may free frames, however long it
//! takes: a stalled disk delays an operation and does not fail it. So time counts only while the devices have nothing to do.
//!
//! A thread that waits counts its own rounds ([`Core::count_idle`]). A task that waits runs no rounds: the background thread looks
//! for all tasks, once in each of its rounds ([`Core::look_for_standstill`]). Where there is no background thread, each submission
//! of reads looks.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use super::Core;
use crate::error::{Error, ErrorKind, Result};

/// Times a waiting thread looks again, a moment later each time, before it says that the pool is too small.
const IDLE_ROUNDS_MAX: usize = 5000;
/// Looks after which the tasks are told, if none of them found that anything had moved …
const LOOKS_MIN: u32 = 100;
/// … and the time that must have passed since the first of these looks: as long as a thread waits.
const STANDSTILL: Duration = Duration::from_secs(5);

/// Tells whether the log's device is at work.
pub(crate) type IsLogWriting = Box<dyn Fn() -> bool + Send + Sync>;

/// The looks since something moved.
#[derive(Default)]
pub(super) struct Standstill {
    looks: Mutex<Option<Looks>>,
    is_log_writing: OnceLock<IsLogWriting>,
}

#[derive(Debug)]
struct Looks {
    first: Instant,
    count: u32,
    /// See [`Core::moves`].
    moves: u64,
}

impl Standstill {
    fn end(&self) {
        *self.looks.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Notes one more look. True when there were enough since something moved.
    fn look(&self, moves: u64, now: Instant) -> bool {
        let mut state = self.looks.lock().unwrap_or_else(PoisonError::into_inner);
        let looks = match &mut *state {
            Some(looks) if looks.moves == moves => looks,
            other => other.insert(Looks { first: now, count: 0, moves }),
        };
        looks.count += 1;
        looks.count >= LOOKS_MIN && now.saturating_duration_since(looks.first) >= STANDSTILL
    }
}

impl Core {
    /// Sets how the pool learns that the log's device is at work. The first call counts.
    pub(crate) fn learn_of_log_writes(&self, is_log_writing: IsLogWriting) {
        let _ = self.standstill.is_log_writing.set(is_log_writing);
    }

    /// Whether a device is at work, so that frames may become free when it is done.
    fn is_device_busy(&self) -> bool {
        self.lane.under_way() > 0
            || matches!(self.writer.try_lock(), Err(TryLockError::WouldBlock))
            || self.standstill.is_log_writing.get().is_some_and(|is_log_writing| is_log_writing())
    }

    /// Counts the events that bring a wait for frames nearer to its end: reads that ended, frames that left or were written, and
    /// frames that were granted to writers.
    fn moves(&self) -> u64 {
        let (evicted, written) = (&self.counts.evicted, &self.counts.written);
        let reads = self.lane.finished() as u64;
        reads + evicted.load(Ordering::Relaxed) + written.load(Ordering::Relaxed) + self.full().granted
    }

    /// Gives all that wait for frames the error of [`Core::count_idle`], after many looks that found nothing moved. Bounded work
    /// unless it does.
    pub(super) fn look_for_standstill(self: &Arc<Self>, now: Instant) {
        let wait_for_frames = self.lane.is_short_of_frames() || !self.full().waiting.is_empty();
        if !wait_for_frames || self.lane.under_way() > 0 {
            self.standstill.end();
            return;
        }
        if self.is_device_busy() {
            return;
        }
        // Where another thread has the queue, that one may move something: the next look tries again.
        if self.standstill.look(self.moves(), now)
            && let Some(mut queue) = self.lane.try_queue()
        {
            let in_line = queue.take_line();
            self.lane.set_in_line(0);
            drop(queue);
            self.standstill.end();
            let error = self.no_frame();
            self.give_up_reads(in_line, Vec::new(), &error);
            self.fail_full(&error);
        }
    }

    /// Counts an idle round of a waiting thread, which weighs as much as `weight` short ones, unless a device is at work. Returns the
    /// idle rounds so far, after a pause of a millisecond if there were several.
    ///
    /// # Errors
    /// `NoSpace` when it is time to give up: for some seconds in which nothing moved the devices had nothing to do.
    pub(super) fn count_idle(&self, idle_rounds: usize, weight: usize) -> Result<usize> {
        let is_busy = self.is_device_busy();
        let idle_rounds = if is_busy { idle_rounds } else { idle_rounds + weight };
        if idle_rounds > IDLE_ROUNDS_MAX {
            return Err(self.no_frame());
        }
        if is_busy || idle_rounds > 2 {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(idle_rounds)
    }

    fn no_frame(&self) -> Error {
        let what = format!(
            "no frame of {} became free: too many operations wait at once for a cache this small",
            self.frames.count()
        );
        Error::new(ErrorKind::NoSpace, what)
    }
}
