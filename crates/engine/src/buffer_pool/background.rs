//! The optional background work of a pool: the background writer writes dirty pages and keeps frames free where a search for
//! clean frames finds too few; the completion thread takes completions of reads for executors and for long range scans. Without
//! them blocking waiters do both themselves, as in deterministic tests.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::evict::{Evictor, Writer};
use super::page_table::CheckpointPlace;
use super::reads::{ReadWatch, Reads};
use super::versions::{NEWEST, PAUSE_MAX, Versions, WriterSignal};
use crate::error::{Error, Result};
use crate::format::PageId;
use crate::sync::background::{BackgroundWork, Kind, Next};

/// Most dirty pages written in one round of the background writer.
const WRITE_BATCH_MAX: usize = 1024;
/// The pause of the background writer before it submits reads again that the read queue has refused.
const OFFER_AGAIN_AFTER: Duration = Duration::from_millis(10);
/// The pause of the background writer while evicted frames wait for a thread with an epoch guard. The end of a guard wakes no thread.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(1);

/// The background writer: its state and its loop.
pub(super) struct BackgroundWriter {
    versions: Arc<Versions>,
    writer: Arc<Writer>,
    evictor: Arc<Evictor>,
    reads: Arc<Reads>,
    signal: Arc<WriterSignal>,
}

impl BackgroundWriter {
    pub(super) fn new(
        (versions, writer): (&Arc<Versions>, &Arc<Writer>),
        (evictor, reads): (&Arc<Evictor>, &Arc<Reads>),
        signal: &Arc<WriterSignal>,
    ) -> Self {
        let (versions, writer) = (Arc::clone(versions), Arc::clone(writer));
        let (evictor, reads, signal) = (Arc::clone(evictor), Arc::clone(reads), Arc::clone(signal));
        Self { versions, writer, evictor, reads, signal }
    }

    pub(super) fn signal(&self) -> &Arc<WriterSignal> {
        &self.signal
    }

    /// Runs one round of the background writer. Returns the time to sleep afterwards, unless its thread is woken
    /// earlier; a round never wakes its own thread.
    pub(super) fn round(&self, now: Instant) -> Duration {
        self.versions.frames().take_memory_ahead();
        self.versions.sweep_all();
        let batch = self.evictor.batch();
        let frames = self.versions.frames();
        let low_water = frames.limits().reserve() + batch;
        // Pins that this round removes wake no thread.
        let starving = self.signal.set_starving(false);
        if starving {
            // Done before the writes, which take longer.
            self.evictor.free_clean_frames(batch);
        }
        let soon = self.signal.take_soon();
        let wrote_soon = !soon.is_empty();
        self.write_early(soon);
        let mut freed = 0;
        if starving || frames.free_count() < low_water {
            freed += self.evictor.free_frames(batch);
        }
        let must_write = frames.limits().has_many_dirty() || self.versions.frame_waits().has_waiters();
        if must_write && !self.signal.has_soon() {
            // Many at a time, in a few large operations in parallel, while writers continue. The pages stay in memory:
            // the next change of one of them needs no read.
            freed += self.evictor.write_dirty(batch.max(frames.count() / 16).min(WRITE_BATCH_MAX));
        }
        self.offer_reads();
        self.reads.standstill().look(now);
        let pressed = frames.free_count() < low_water;
        if pressed && freed == 0 && !wrote_soon {
            let is_held = self.evictor.many_are_coming(batch);
            return if is_held { LOOK_AGAIN_AFTER } else { self.signal.longer_pause() };
        }
        self.signal.note_progress();
        if pressed || wrote_soon {
            Duration::ZERO
        } else if self.reads.scheduler().is_stuck() || self.reads.scheduler().is_short_of_frames() {
            // Reads that the queue did not take are offered again.
            OFFER_AGAIN_AFTER
        } else {
            PAUSE_MAX
        }
    }

    /// Submits the reads waiting for frames. Every round does this, because a thread that finds no frame for its
    /// reads only sets a flag, perhaps after frames were freed or while it still has the read queue. A read that finds
    /// no frame here wakes no thread, as this round has just looked for frames.
    fn offer_reads(&self) {
        self.signal.set_starving(true);
        self.reads.dispatcher().send();
        if !self.reads.scheduler().is_short_of_frames() {
            self.signal.set_starving(false);
            if self.reads.scheduler().is_short_of_frames() {
                // Some reads were requested in between, and woke no thread.
                self.signal.set_starving(true);
            }
        }
    }

    /// Writes the dirty pages of the list. A page whose write fails stays dirty until an eviction or a checkpoint
    /// writes it.
    fn write_early(&self, mut pages: Vec<PageId>) {
        // Each page once, because all frames of one call are checked before the first of them is written.
        pages.sort_unstable();
        pages.dedup();
        let dirty_of = |page: &PageId| match self.versions.pages().places().checkpoint_place(*page, NEWEST) {
            CheckpointPlace::Dirty(item) => Some(item),
            CheckpointPlace::OnDisk(_) | CheckpointPlace::Absent | CheckpointPlace::Cold => None,
        };
        let dirty: Vec<_> = pages.iter().filter_map(dirty_of).collect();
        if !dirty.is_empty() {
            let frames: Vec<_> = dirty.iter().map(|item| (item.frame, item.page)).collect();
            // The error is dropped, because an operation that needs these frames, or these pages on disk, writes again
            // and reports its own error.
            let _ = self.writer.write_frames(dirty);
            // No operation has requested them yet, so they are evicted before pages that were requested.
            self.evictor.probation().add(frames.into_iter());
        }
    }
}

/// The background work of a pool; dropping this ends it.
pub(crate) struct PoolWork {
    /// The right order for the end: the other may wait for frames that this frees.
    _reads: BackgroundWork,
    _writer: BackgroundWork,
}

impl PoolWork {
    /// Starts the background work of a pool. It keeps the pool alive only during a round. When a round panics, all
    /// waits of the pool fail from then on, and `in_panic` is called.
    ///
    /// # Errors
    /// `NoResources` when the system has no threads left.
    pub(super) fn start(
        writer: &Arc<BackgroundWriter>,
        in_panic: impl Fn(&Error) + Clone + Send + 'static,
    ) -> Result<Self> {
        let reads = Arc::downgrade(&writer.reads);
        let waiting = Weak::clone(&reads);
        let fail = move |error: &Error| {
            // First of all, so that what the pool's waiters do next finds it.
            in_panic(error);
            if let Some(reads) = waiting.upgrade() {
                reads.failure().fail(error);
            }
        };
        let (notifier, weak) = (Arc::clone(writer.signal.notifier()), Arc::downgrade(writer));
        let write = move |_: &_, notified| write_round(&weak, notified);
        let writing = BackgroundWork::start(Kind::Pages, notifier, Next::Again, fail.clone(), write)?;
        let (notifier, mut watch) = (Arc::clone(writer.reads.demand().notifier()), None);
        let complete = move |_: &_, notified| reads_round(&reads, &mut watch, notified);
        let reading = BackgroundWork::start(Kind::Reads, notifier, Next::Wait(None), fail, complete)?;
        Ok(Self { _reads: reading, _writer: writing })
    }
}

fn write_round(writer: &Weak<BackgroundWriter>, notified: bool) -> Next {
    let Some(writer) = writer.upgrade() else { return Next::End };
    if notified {
        writer.signal.note_woken();
    }
    match writer.round(Instant::now()) {
        Duration::ZERO => Next::Again,
        pause => Next::Wait(Some(pause)),
    }
}

/// Takes completions for others, while they want that, and looks whether executors take them. `watch` is the watch over the read queue in that time.
fn reads_round(reads: &Weak<Reads>, watch: &mut Option<ReadWatch>, notified: bool) -> Next {
    let Some(reads) = reads.upgrade() else { return Next::End };
    let demand = reads.demand();
    if !demand.is_wanted() {
        let Some(until_next) = demand.looks_every() else {
            // The queue may rest as well.
            *watch = None;
            return Next::Wait(None);
        };
        let watch = watch.get_or_insert_with(|| reads.watch());
        demand.look_at_executors(Instant::now(), watch.ready_fd());
        if !demand.is_wanted() {
            return Next::Wait(Some(until_next));
        }
    } else if !notified {
        demand.wait(watch.get_or_insert_with(|| reads.watch()));
    }
    // A notification may come from a scan that has just begun and requested its first reads.
    reads.take_for_others();
    Next::Again
}
