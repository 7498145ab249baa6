//! The pool as the [`Store`] of a database's pages.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::versions::NEWEST;
use super::view::ShownEntries;
use super::waiter::Waiter;
use super::{BufferPool, PrivateCopies, RangeScan, Snapshot, Ticket, View};
use crate::budget::Budget;
use crate::error::{Error, Result};
use crate::format::{CommitSeq, PageId};
use crate::pages::{BlockReservation, Missing, ReservationKind, Snapshot as _, Store, Wait};
use crate::sync::semaphore::Permit;

impl Store for BufferPool {
    type View<'a> = View<'a>;
    type Copies<'a> = PrivateCopies<'a>;
    type Snapshot = Snapshot;
    type Ticket = Ticket;
    type RangeScan = RangeScan;

    fn check_process(&self) -> Result<()> {
        Error::unless_here(self.versions.process())
    }

    fn page_bytes(&self) -> usize {
        self.versions.frames().page_bytes()
    }

    fn latest(&self) -> View<'_> {
        View::new(&self.versions, || self.visible(), None, ShownEntries::Unexpired(self.versions.clock()))
    }

    fn commit_of(view: &View<'_>) -> CommitSeq {
        view.commit()
    }

    fn latest_published(&self) -> View<'_> {
        View::new(&self.versions, || NEWEST, None, ShownEntries::All)
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot::new(&self.versions, false)
    }

    fn view<'a>(&'a self, snapshot: &'a Snapshot) -> View<'a> {
        View::new(&self.versions, || snapshot.seq(), Some(snapshot.too_old()), snapshot.shown())
    }

    fn copy_frames_max(&self) -> usize {
        self.versions.frames().private_max()
    }

    fn pins_max(&self) -> usize {
        // All frames but the writers' reserve, the private copies, and a few through which prefetched pages pass.
        let frames = self.versions.frames();
        frames.count() - frames.reserve() - frames.private_max() - 2
    }

    fn copies(&self) -> PrivateCopies<'_> {
        PrivateCopies::new(&self.versions)
    }

    fn publish(&self, copies: PrivateCopies<'_>, seq: CommitSeq) {
        copies.publish(seq);
    }

    fn set_visible(&self, seq: CommitSeq) {
        self.versions.set_visible(seq);
    }

    fn clear_up(&self) {
        self.versions.clear_up();
    }

    fn visible(&self) -> CommitSeq {
        self.versions.visible()
    }

    fn request(&self, waits: &[Wait], permit: Permit) -> Ticket {
        let (waiter, mut budget) = (Waiter::new(), Budget::new());
        for wait in waits.iter().take(permit.count()) {
            match wait {
                Wait::Miss(missing) => self.reads.request(*missing, &waiter, &mut budget),
                Wait::Full { frames } => waiter.want_frames(*frames),
                Wait::Failed(error) => drop(waiter.fail(error.clone())),
                Wait::LogFull { .. } => {}
            }
        }
        if waiter.frames_missing() > 0 {
            self.versions.counters().frame_waits.fetch_add(1, Ordering::Relaxed);
            self.evictor.wait_for_frames(&waiter);
        }
        Ticket::new(Arc::clone(&self.reads), waiter, permit)
    }

    fn prefetch(&self, pages: &[Missing]) -> usize {
        // Frames that are not free now soon are: the submitting thread evicts clean frames, and the background writer
        // writes dirty ones. But a range scan must not fill the pool.
        let spare = self.versions.frames().free_count().saturating_sub(self.versions.frames().reserve());
        let most =
            if self.background.signal().is_running() { spare.max(self.versions.frames().count() / 8) } else { spare };
        self.reads.prefetch(&pages[..pages.len().min(most)])
    }

    fn read_alone(&self, missing: Missing) -> Result<bool> {
        self.reads.dispatcher().read_alone(missing)
    }

    fn read_together(&self, missing: &[Missing]) -> Result<bool> {
        self.reads.dispatcher().read_together(missing)
    }

    fn are_neighbours(&self, pages: &[Missing]) -> bool {
        self.reads.dispatcher().are_neighbours(pages)
    }

    fn submit(&self) {
        // Also called where a future is dropped, perhaps in a forked process.
        if self.versions.process().is_here() {
            self.reads.submit();
        }
    }

    fn begin_range_scan(&self) -> RangeScan {
        RangeScan::new(&self.reads)
    }

    fn submit_soon(&self) {
        self.reads.submit_soon();
    }

    fn submit_batch(&self) -> bool {
        self.reads.submit_batch()
    }

    fn sent(&self) -> usize {
        self.reads.scheduler().staged().lined_up()
    }

    fn reserve_blocks(&self, pages: usize, kind: ReservationKind) -> Option<BlockReservation> {
        self.versions.metadata().reserve(self.versions.frames(), pages as u64, kind)
    }

    fn grow(&self) -> Result<bool> {
        self.writer.grow()
    }

    fn spare_pages(&self) -> u64 {
        self.metadata().spare_blocks(self.versions.frames(), ReservationKind::Reserve)
    }

    fn page_count(&self) -> u64 {
        self.metadata().pages_end().0
    }

    fn write_soon(&self, pages: &[PageId]) {
        self.background.signal().write_soon(pages);
    }
}
