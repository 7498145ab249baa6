//! Evicts frames: first new pages that were used no more than once ([`ProbationaryQueue`]), then by a clock with small counters
//! (GCLOCK). A use raises a frame's counter, the hand lowers it, and frames with a zero counter are evicted: clean ones at
//! once, dirty ones after they were written, many together, if they are still unused. Frames with blocks have a separate clock
//! ([`super::compressed_tier`]): where the blocks have more than their share of the frames they are evicted first, and where no
//! page can be evicted they are evicted all the same.
//!
//! **Locks**: the clock, before the probationary queue, shards and what they precede; never while a thread waits for the device.
//!
//! **The probationary queue** has pages that were just read from disk (S3-FIFO's small queue). Most are not requested again, so
//! they are evicted before any page used twice; a page read again soon after its eviction skips the queue.
//! This is S3-FIFO's answer to scans (Yang and others, SOSP 2023) before a clock: `evict::policies` compares it with others.
//!
//! Invariant: the queue neither owns nor pins a frame. An entry records the page that a frame held when it was noted; the code that
//! takes an entry checks whether the frame still holds that page.

mod packing;
#[cfg(test)]
mod policies;
mod write;
mod write_queue;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(crate) use self::packing::TableCodecs;
pub(super) use self::packing::{BlockContent, pack, pack_tightly};
pub(crate) use self::write::NodeToWrite;
pub(super) use self::write::Writer;
pub(crate) use self::write_queue::Pace;
pub(super) use self::write_queue::WriteQueue;
use super::frames::{Ghosts, OwnedFrame, OwnedRun, Waiter};
use super::page_table::{DirtyPage, EvictionOutcome};
use super::versions::{Versions, WriterSignal};
use crate::format::PageId;
use crate::sync::awaited_mutex::AwaitedMutex;
use crate::sync::budget::{Budget, STEPS_MAX};

/// Most rounds of the clock in one search for frames. A frame with the highest usage count is evicted in the fourth
/// round at the latest, so one more round than that is enough.
const ROUNDS: usize = 5;
/// Number of frames that the clock may inspect for each wanted frame when the caller cannot wait.
const STEPS_AT_ONCE: usize = 16;
/// Number of frames with blocks that the clock passes for one step: their counts share a cache line.
const BLOCKS_A_STEP: usize = 64;
/// Highest usage count with which a page in the probationary queue counts as not used again: the operation that
/// requested it counts as one use.
const PROBATION_USES_MAX: u8 = 1;
/// Number of frames evicted together when a read finds none free, to share the cost of one epoch.
const EVICTED_TOGETHER: usize = 64;
/// Most blocks evicted together where no page can be.
const BLOCKS_AT_NEED: usize = 8;
/// Most frames evicted at once for a writer that waits.
const EVICTED_FOR_WRITER_MAX: usize = 256;
/// Attempts of a writer to evict frames itself before it waits for the background writer.
const TRIES: usize = 3;

/// Frees the frames of a pool by evicting pages.
pub(super) struct Evictor {
    versions: Arc<Versions>,
    writer: Arc<Writer>,
    signal: Arc<WriterSignal>,
    probation: ProbationaryQueue,
    /// The clock's hand: the number of the frame that it inspects next.
    clock: AwaitedMutex<usize>,
    /// The number of the frame at which the next search for dirty pages begins. A page that is changed gets another
    /// frame, so a search that goes round writes pages that have been dirty for long.
    dirty_hand: AtomicUsize,
}

impl Evictor {
    pub(super) fn new(versions: &Arc<Versions>, writer: &Arc<Writer>, signal: &Arc<WriterSignal>) -> Self {
        Self {
            versions: Arc::clone(versions),
            writer: Arc::clone(writer),
            signal: Arc::clone(signal),
            probation: ProbationaryQueue::new(versions.frames().count()),
            clock: AwaitedMutex::new(0),
            dirty_hand: AtomicUsize::new(0),
        }
    }

    /// Returns the queue of the pages that were read from disk and not used again yet.
    pub(super) fn probation(&self) -> &ProbationaryQueue {
        &self.probation
    }

    /// Returns the number of frames that the background writer frees at a time.
    pub(super) fn batch(&self) -> usize {
        (self.versions.frames().count() / 16).clamp(4, 128)
    }

    /// Takes a free frame for a read; when none is free, evicts a few frames and takes one of them.
    pub(super) fn frame_for_read(&self) -> Option<OwnedFrame> {
        self.versions.frames().take_for_read().or_else(|| {
            self.free_clean_frames(EVICTED_TOGETHER);
            self.versions.frames().take_for_read()
        })
    }

    /// Takes a frame for a block that is to stay in memory; `None` when no frame is free, or reads or writers wait for one.
    pub(super) fn spare_frame(&self) -> Option<OwnedFrame> {
        let is_wanted = self.signal.is_starving() || self.versions.frame_waits().has_waiters();
        if is_wanted { None } else { self.versions.frames().take_for_read() }
    }

    /// Takes up to `count` frames for reads submitted together.
    pub(super) fn frames_for_reads(&self, count: usize) -> Vec<OwnedFrame> {
        let mut frames = Vec::with_capacity(count);
        self.versions.frames().take_some_for_read(count, &mut frames);
        if frames.len() < count {
            self.free_clean_frames(EVICTED_TOGETHER.max(count - frames.len()));
            self.versions.frames().take_some_for_read(count - frames.len(), &mut frames);
        }
        self.restock(EVICTED_TOGETHER);
        frames
    }

    /// Takes up to `most` adjacent frames, at least `least`, for one read of as many blocks.
    pub(super) fn run_for_read(&self, least: usize, most: usize) -> Option<OwnedRun> {
        let memory = self.versions.frames().take_run_for_read(least, most).or_else(|| {
            self.free_clean_frames(EVICTED_TOGETHER.max(most));
            self.versions.frames().take_run_for_read(least, most)
        });
        self.restock(EVICTED_TOGETHER);
        memory
    }

    /// Enters an operation into the queue of waiters for frames for private copies, and evicts clean frames for it at
    /// once. The caller ends the wait with [`FrameWaitQueue::leave`](super::frames::FrameWaitQueue::leave).
    pub(super) fn wait_for_frames(&self, waiter: &Arc<Waiter>) {
        self.versions.frame_waits().enter(waiter);
        for _ in 0..TRIES {
            let lacking = waiter.frames_missing();
            if lacking == 0 {
                break;
            }
            // Pages needing no write are evicted at once, as for reads.
            self.free_clean_frames(lacking.clamp(EVICTED_TOGETHER, EVICTED_FOR_WRITER_MAX));
            self.versions.frame_waits().grant();
        }
        self.signal.wake();
    }

    /// Frees about `want` frames, and writes dirty pages where necessary. Returns how many frames became free, will
    /// soon be free, or became clean. Waits for the device. When pages cannot be written, the operations waiting for
    /// frames for private copies get the error; readers go on with frames that can be evicted without a write.
    pub(super) fn free_frames(&self, want: usize) -> usize {
        self.versions.trim_leaves();
        self.versions.history().help_epoch();
        let swept = self.versions.sweep_all();
        let writers_wait = self.versions.frame_waits().has_waiters();
        if !writers_wait && (swept >= want || self.many_are_coming(want)) {
            return swept;
        }
        let blocks = self.evict_surplus_blocks(want);
        let (mut clean, cold) = self.sweep_rounds(want.saturating_sub(blocks.len()), true);
        let mut dirty = cold.clone();
        let many_dirty = self.versions.frames().limits().has_many_dirty();
        if (writers_wait || many_dirty) && !self.signal.has_soon() {
            self.pin_dirty(want.saturating_sub(dirty.len()), &mut dirty);
        }
        let before = self.versions.counters().written.load(Ordering::Relaxed);
        if !dirty.is_empty() {
            if let Err(error) = self.writer.write_frames(dirty) {
                self.versions.frame_waits().fail_all(&error);
                clean.extend(self.sweep_rounds(want, false).0);
            }
            for item in &cold {
                match self.versions.pages().try_evict(item.frame, false) {
                    Some(EvictionOutcome::Clean(index)) => clean.push(index),
                    Some(EvictionOutcome::Dirty(item)) => self.versions.unpin(item.page, item.frame),
                    None => {}
                }
            }
        }
        let written = (self.versions.counters().written.load(Ordering::Relaxed) - before) as usize;
        self.note_evicted(&clean);
        clean.extend(blocks);
        if clean.is_empty() && written == 0 {
            clean = self.evict_any_blocks(want);
        }
        let freed = clean.len();
        self.versions.history().retire(clean);
        self.versions.history().help_epoch();
        let swept = swept + self.versions.sweep_all();
        self.versions.frame_waits().grant();
        freed.max(swept) + written
    }

    /// Writes up to `want` dirty pages, which stay in memory: too many dirty frames block writers. Returns how many were
    /// written. Waits for the device. When pages cannot be written, the operations waiting for frames for private
    /// copies get the error.
    pub(super) fn write_dirty(&self, want: usize) -> usize {
        let mut dirty = Vec::new();
        self.pin_dirty(want, &mut dirty);
        let before = self.versions.counters().written.load(Ordering::Relaxed);
        if let Err(error) = self.writer.write_frames(dirty) {
            self.versions.frame_waits().fail_all(&error);
        }
        self.versions.frame_waits().grant();
        (self.versions.counters().written.load(Ordering::Relaxed) - before) as usize
    }

    /// Frees about `want` frames that need no write, with bounded work and without waiting, so that executors' threads
    /// can call it. When it finds too few, the background writer must write dirty pages.
    pub(super) fn free_clean_frames(&self, want: usize) {
        self.versions.trim_leaves();
        if self.versions.sweep() > 0 {
            return;
        }
        self.evict_clean(want);
        self.versions.sweep();
    }

    /// Evicts about `want` frames needing no write, with bounded work: surplus blocks, then pages. Where it finds none of
    /// either, it evicts other blocks. While many evicted frames wait for their epoch it evicts none.
    fn evict_clean(&self, want: usize) {
        if self.many_are_coming(want) {
            return self.versions.history().help_epoch();
        }
        let mut evicted = self.evict_surplus_blocks(want);
        if evicted.len() < want {
            // With many blocks there are few pages: a batch for the whole pool would evict all of them.
            let blocks = self.versions.pages().tier().block_count();
            let pages_max = if blocks == 0 { want } else { ((self.versions.frames().count() - blocks) / 8).max(1) };
            let wanted = (want - evicted.len()).min(pages_max);
            let (pages, _) = self.sweep_clock(wanted, false, wanted * STEPS_AT_ONCE, wanted * STEPS_AT_ONCE);
            self.note_evicted(&pages);
            evicted.extend(pages);
        }
        if evicted.is_empty() {
            evicted = self.evict_any_blocks(want);
        }
        self.versions.history().retire(evicted);
        self.versions.history().help_epoch();
    }

    /// Returns whether as many evicted frames wait for their epoch as are wanted, and as the stock for batches of reads has. Without
    /// this limit a thread that the system has stopped with a guard would cost the pool all its pages.
    pub(super) fn many_are_coming(&self, want: usize) -> bool {
        self.versions.history().retired_frames() >= want.max(self.versions.frames().limits().stock())
    }

    /// Evicts up to `want` blocks, but no more than the compressed tier has above its share; used ones if there are not so
    /// many others: while there is a surplus, pages have fewer frames than they need. Bounded work.
    fn evict_surplus_blocks(&self, want: usize) -> Vec<u32> {
        let surplus = self.versions.pages().tier().surplus(self.versions.frames()).min(want);
        let mut evicted = self.evict_blocks(surplus, false);
        evicted.extend(self.evict_blocks(surplus - evicted.len(), true));
        evicted
    }

    /// Evicts a few blocks although the compressed tier has no more than its share; used ones if there are no others.
    fn evict_any_blocks(&self, want: usize) -> Vec<u32> {
        let few = want.min(BLOCKS_AT_NEED);
        let unused = self.evict_blocks(few, false);
        if unused.is_empty() { self.evict_blocks(few, true) } else { unused }
    }

    fn evict_blocks(&self, want: usize, also_used: bool) -> Vec<u32> {
        self.versions.pages().tier().evict(self.versions.frames(), want, also_used)
    }

    /// Counts pages evicted from these frames, and notes them for the share of the compressed tier.
    fn note_evicted(&self, pages: &[u32]) {
        self.versions.counters().evicted.fetch_add(pages.len() as u64, Ordering::Relaxed);
        self.versions.pages().tier().note_evicted_pages(self.versions.frames(), pages);
    }

    /// Evicts `want` frames in advance of later reads when few frames are free, because an evicted frame becomes free
    /// only after an epoch. As in [`Evictor::free_clean_frames`], the work is bounded and nothing is waited for.
    pub(super) fn restock(&self, want: usize) {
        self.versions.trim_leaves();
        self.versions.sweep();
        if self.versions.frames().free_count() >= self.versions.frames().limits().kept_free() {
            return;
        }
        self.evict_clean(want);
    }

    /// Moves the clock's hand until it has found `want` frames that can be evicted, or has made [`ROUNDS`] rounds.
    /// Releases the hand in between, so that other threads may move it.
    fn sweep_rounds(&self, want: usize, also_dirty: bool) -> (Vec<u32>, Vec<DirtyPage>) {
        let (mut clean, mut dirty) = (Vec::new(), Vec::new());
        let (mut on_probation, mut steps) = (self.probation.len(), self.versions.frames().count() * ROUNDS);
        while clean.len() + dirty.len() < want && on_probation + steps > 0 {
            let wanted = want - clean.len() - dirty.len();
            // Only one of the two during one hold of the lock.
            let (of_probation, of_steps) =
                if on_probation > 0 { (on_probation.min(STEPS_MAX), 0) } else { (0, steps.min(STEPS_MAX)) };
            let found = self.sweep_clock(wanted, also_dirty, of_probation, of_steps);
            (on_probation, steps) = (on_probation - of_probation, steps - of_steps);
            clean.extend(found.0);
            dirty.extend(found.1);
            // The lock is not fair: this lets a thread waiting for the hand take it. Where none does, a yield to other programs
            // would cost as much time as they have left.
            if self.clock.is_awaited() {
                std::thread::yield_now();
            }
        }
        (clean, dirty)
    }

    /// Examines `of_probation` pages of the probationary queue, then advances the clock's hand by `of_steps` frames,
    /// until it has found `want` frames that can be evicted.
    fn sweep_clock(
        &self,
        want: usize,
        also_dirty: bool,
        probation_max: usize,
        steps: usize,
    ) -> (Vec<u32>, Vec<DirtyPage>) {
        let mut budget = Budget::new();
        let mut clock = self.clock.lock();
        let (mut clean, mut dirty) = (Vec::new(), Vec::new());
        let block_count = self.versions.pages().tier().block_count();
        let mut probation_left = self.probation.len().min(probation_max);
        let (mut on_probation, mut left, mut stay) = (Vec::new(), Vec::new(), Vec::new());
        while probation_left > 0 && clean.len() + dirty.len() < want {
            let most = probation_left.min(want - clean.len() - dirty.len());
            self.probation.take_oldest(most, block_count, &mut on_probation);
            if on_probation.is_empty() {
                break;
            }
            probation_left -= on_probation.len();
            budget.spend(on_probation.len());
            // Each of these pages costs two cache misses, so their lines are prefetched together.
            for (index, page) in &on_probation {
                self.versions.frames().frame(*index).prefetch();
                self.versions.pages().prefetch(*page);
            }
            for (index, page) in on_probation.drain(..) {
                let frame = self.versions.frames().frame(index);
                if !frame.is_published()
                    || frame.page() != page
                    || self.versions.frames().usage().get(index) > PROBATION_USES_MAX
                {
                    // Evicted already, or used again: from now on the clock decides.
                    continue;
                }
                match self.versions.pages().try_evict(index, false) {
                    Some(EvictionOutcome::Clean(index)) => {
                        left.push(page);
                        clean.push(index);
                    }
                    // The frame may hold another page by now. This is rare, and the clock finds the frame later.
                    Some(EvictionOutcome::Dirty(item)) => self.versions.unpin(item.page, item.frame),
                    None => stay.push((index, page)),
                }
            }
            self.probation.put_back(&left, &stay);
            left.clear();
            stay.clear();
        }
        let mut steps_left = steps;
        while steps_left > 0 && clean.len() + dirty.len() < want {
            let passed = self.pass_blocks(&mut clock);
            let spent = (1 + passed / BLOCKS_A_STEP).min(steps_left);
            budget.spend(spent);
            steps_left -= spent;
            let index = *clock as u32;
            *clock = (*clock + 1) % self.versions.frames().count();
            if !also_dirty && self.versions.frames().frame(index).disk().is_none() {
                continue;
            }
            match self.versions.pages().try_evict(index, true) {
                Some(EvictionOutcome::Clean(index)) => clean.push(index),
                Some(EvictionOutcome::Dirty(item)) if also_dirty => dirty.push(item),
                // A frame cannot become dirty after it was inspected, but if it did, its pin must not be lost.
                Some(EvictionOutcome::Dirty(item)) => self.versions.unpin(item.page, item.frame),
                None => {}
            }
        }
        (clean, dirty)
    }

    /// Advances the clock's hand over frames holding blocks, a few thousand at most. Returns how many there were.
    fn pass_blocks(&self, hand: &mut usize) -> usize {
        let frames = self.versions.frames();
        let mut passed = 0;
        while passed < STEPS_MAX && frames.usage().is_block(*hand as u32) {
            *hand = (*hand + 1) % frames.count();
            passed += 1;
        }
        passed
    }

    /// Pins dirty frames, whatever their usage counts, so that they can be written and stay in memory.
    fn pin_dirty(&self, want: usize, into: &mut Vec<DirtyPage>) {
        let first = self.dirty_hand.load(Ordering::Relaxed);
        let most = into.len() + want;
        let count = self.versions.frames().count();
        for index in (first..first + count).map(|index| (index % count) as u32) {
            if into.len() >= most {
                self.dirty_hand.store(index as usize, Ordering::Relaxed);
                break;
            }
            if self.versions.frames().frame(index).is_published()
                && self.versions.frames().frame(index).disk().is_none()
                && let Some(EvictionOutcome::Dirty(item)) = self.versions.pages().try_evict(index, false)
            {
                into.push(item);
            }
        }
    }
}

/// The length that the queue keeps, as a divisor of the number of frames.
const SHARE: usize = 10;

/// The probationary queue and the ghosts of the pages evicted from it. No other lock is taken while its lock is held.
#[derive(Debug)]
pub(crate) struct ProbationaryQueue {
    state: Mutex<State>,
    frames: usize,
}

#[derive(Debug)]
struct State {
    /// The frame and the page of each entry, oldest first.
    queue: VecDeque<(u32, PageId)>,
    ghosts: Ghosts,
}

impl ProbationaryQueue {
    /// Creates the queue for a pool of `frames` frames.
    pub(crate) fn new(frames: usize) -> Self {
        let state = State { queue: VecDeque::new(), ghosts: Ghosts::new(frames) };
        Self { state: Mutex::new(state), frames }
    }

    /// Prefetches the CPU cache lines that `add` will need for these pages.
    pub(crate) fn expect(&self, pages: impl Iterator<Item = PageId>) {
        let state = self.lock();
        pages.for_each(|page| state.ghosts.prefetch(page.0));
    }

    /// Adds pages that were just read, each with its frame.
    pub(crate) fn add(&self, pages: impl Iterator<Item = (u32, PageId)>) {
        let mut state = self.lock();
        for (frame, page) in pages {
            if state.ghosts.contains(page.0) {
                continue;
            }
            if state.queue.len() >= self.frames {
                // With more entries than frames, the oldest entry names a frame that holds another page by now, or a
                // page used long ago.
                state.queue.pop_front();
            }
            state.queue.push_back((frame, page));
        }
    }

    /// Returns the number of pages in the queue.
    pub(crate) fn len(&self) -> usize {
        self.lock().queue.len()
    }

    /// Removes up to `most` of the oldest entries, as long as the queue is longer than its share of the frames. Of these
    /// `frames_without` can have no page, as they hold blocks.
    pub(crate) fn take_oldest(&self, most: usize, frames_without: usize, into: &mut Vec<(u32, PageId)>) {
        let share_max = (self.frames.saturating_sub(frames_without) / SHARE).max(2);
        let mut state = self.lock();
        let State { queue, ghosts } = &mut *state;
        let count = queue.len().saturating_sub(share_max).min(most);
        for (frame, page) in queue.drain(..count) {
            ghosts.prefetch(page.0);
            into.push((frame, page));
        }
    }

    /// Records the fate of entries taken from the queue: the pages in `left` were evicted, and the entries
    /// in `stay` go back into the queue.
    pub(crate) fn put_back(&self, left: &[PageId], stay: &[(u32, PageId)]) {
        let mut state = self.lock();
        left.iter().for_each(|page| state.ghosts.add(page.0));
        state.queue.extend(stay);
    }

    /// Returns the most bytes of memory that the queue takes in a pool of `frames` frames.
    pub(crate) fn bytes_max(frames: usize) -> u64 {
        // The queue, with the room that growing leaves, and the ghosts.
        (frames * (2 * 16 + size_of::<u32>())) as u64
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn oldest(queue: &ProbationaryQueue) -> Option<(u32, PageId)> {
        let mut taken = Vec::new();
        queue.take_oldest(1, 0, &mut taken);
        taken.pop()
    }

    #[test]
    fn new_pages_are_evicted_first_and_a_page_read_again_soon_skips_the_queue() {
        let queue = ProbationaryQueue::new(20);
        queue.add((0..4).map(|page| (page as u32, PageId(page))));
        assert_eq!(oldest(&queue), Some((0, PageId(0))));
        queue.put_back(&[PageId(0)], &[]);
        assert_eq!(oldest(&queue), Some((1, PageId(1))));
        queue.put_back(&[], &[(1, PageId(1))]);
        assert_eq!(oldest(&queue), Some((2, PageId(2))));
        assert_eq!(oldest(&queue), None, "two entries are the share of the queue");
        queue.add([(9, PageId(0))].into_iter());
        assert_eq!(queue.len(), 2, "page 0 is among the ghosts");
        queue.put_back(&(100..130).map(PageId).collect::<Vec<_>>(), &[]);
        queue.add([(9, PageId(0))].into_iter());
        assert_eq!(queue.len(), 3, "page 0 is no longer among the ghosts");
    }

    #[test]
    fn many_pages_leave_at_once_but_the_queue_keeps_its_share() {
        let queue = ProbationaryQueue::new(100);
        queue.add((0..30).map(|page| (page as u32, PageId(page))));
        let mut taken = Vec::new();
        queue.take_oldest(15, 0, &mut taken);
        queue.take_oldest(15, 0, &mut taken);
        assert_eq!(taken, (0..20).map(|page| (page as u32, PageId(page))).collect::<Vec<_>>());
        assert_eq!(queue.len(), 10);
        queue.take_oldest(15, 60, &mut taken);
        assert_eq!(queue.len(), 4, "sixty frames hold blocks, so the share is a part of forty");
    }
}
