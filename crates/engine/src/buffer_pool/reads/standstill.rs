//! Ends waits for frames when no frame can become free: every frame is pinned, or dirty on a disk that takes no writes.
//!
//! A device that is still at work on a read, a write or a sync of the data file or of the log may free frames, however long it
//! takes: a stalled disk delays an operation and does not fail it. So time counts only while the devices have nothing to do.
//!
//! A waiting thread counts its own rounds ([`Standstill::count_idle`]). A waiting task runs no rounds: the background
//! thread checks for all tasks, once in each of its rounds ([`Standstill::look`]). Without a background thread each
//! submission of reads makes this check.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::installer::Installer;
use super::scheduler::Scheduler;
use crate::buffer_pool::evict::Writer;
use crate::buffer_pool::versions::Versions;
use crate::error::{Error, ErrorKind, Result};
use crate::pages::Host;

/// Number of idle rounds, with growing pauses, after which a waiting thread reports that the pool is too small.
const IDLE_ROUNDS_MAX: usize = 5000;
/// Number of checks without progress after which tasks receive the error, once `STANDSTILL` has passed as well.
const LOOKS_MIN: u32 = 100;
/// Shortest time without progress before tasks receive the error: as long as a thread waits before it gets the error.
const STANDSTILL: Duration = Duration::from_secs(5);

/// Detects that no read or write makes progress, by counting checks since the last progress.
pub(crate) struct Standstill {
    versions: Arc<Versions>,
    writer: Arc<Writer>,
    scheduler: Arc<Scheduler>,
    installer: Arc<Installer>,
    looks: Mutex<Option<Looks>>,
    host: OnceLock<Weak<dyn Host>>,
}

#[derive(Debug)]
struct Looks {
    first: Instant,
    count: u32,
    /// The progress counter at the last check: see [`Standstill::moves`].
    moves: u64,
}

impl Standstill {
    pub(super) fn new(
        (versions, writer): (&Arc<Versions>, &Arc<Writer>),
        (scheduler, installer): (&Arc<Scheduler>, &Arc<Installer>),
    ) -> Self {
        let (versions, writer) = (Arc::clone(versions), Arc::clone(writer));
        let (scheduler, installer) = (Arc::clone(scheduler), Arc::clone(installer));
        let (looks, host) = (Mutex::default(), OnceLock::new());
        Self { versions, writer, scheduler, installer, looks, host }
    }

    fn end(&self) {
        *self.looks.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Counts one more check for progress. Returns true when enough checks in a row have found none.
    fn count_look(&self, moves: u64, now: Instant) -> bool {
        let mut state = self.looks.lock().unwrap_or_else(PoisonError::into_inner);
        let looks = match &mut *state {
            Some(looks) if looks.moves == moves => looks,
            other => other.insert(Looks { first: now, count: 0, moves }),
        };
        looks.count += 1;
        looks.count >= LOOKS_MIN && now.saturating_duration_since(looks.first) >= STANDSTILL
    }

    /// Sets the database of the pool. Only the first call has an effect.
    pub(crate) fn set_host(&self, host: Weak<dyn Host>) {
        let _ = self.host.set(host);
    }

    /// Returns whether a device is at work, so that frames may become free once it has finished.
    fn is_device_busy(&self) -> bool {
        self.scheduler.device().under_way() > 0
            || self.writer.is_busy()
            || self.host.get().and_then(Weak::upgrade).is_some_and(|host| host.is_log_writing())
    }

    /// Returns the number of events that bring a wait for frames nearer to its end: reads that ended, pages that were
    /// evicted or written, blocks that were evicted, and frames granted to writers.
    fn moves(&self) -> u64 {
        let (evicted, written) = (&self.versions.counters().evicted, &self.versions.counters().written);
        let reads = self.scheduler.finished() as u64;
        reads
            + evicted.load(Ordering::Relaxed)
            + written.load(Ordering::Relaxed)
            + self.versions.pages().tier().evicted_count()
            + self.versions.frame_waits().granted_count()
    }

    /// Checks once for progress. After many checks without any, ends all waits for frames with an error. The work is
    /// bounded unless waits are ended.
    pub(crate) fn look(&self, now: Instant) {
        let wait_for_frames = self.scheduler.is_short_of_frames() || self.versions.frame_waits().has_waiters();
        if !wait_for_frames || self.scheduler.device().under_way() > 0 {
            self.end();
            return;
        }
        if self.is_device_busy() {
            return;
        }
        // A thread with the queue may make progress, so in that case the next check decides.
        if self.count_look(self.moves(), now)
            && let Some(mut queue) = self.scheduler.try_queue()
        {
            let in_line = queue.line.take_all();
            self.scheduler.set_in_line(0);
            drop(queue);
            self.end();
            let error = self.no_frame();
            self.installer.give_up(in_line, &error);
            self.versions.frame_waits().fail_all(&error);
        }
    }

    /// Counts an idle round of a waiting thread as `weight` short rounds, unless a device is at work. Returns the
    /// number of idle rounds so far, after a pause of a millisecond if there were several.
    ///
    /// # Errors
    /// `NoSpace` after more than [`IDLE_ROUNDS_MAX`] idle rounds: for some seconds nothing made progress and the
    /// devices were idle.
    pub(crate) fn count_idle(&self, idle_rounds: usize, weight: usize) -> Result<usize> {
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
            self.versions.frames().count()
        );
        Error::new(ErrorKind::NoSpace, what)
    }
}
