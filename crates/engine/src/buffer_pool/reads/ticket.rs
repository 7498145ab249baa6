//! Handles of waiting operations: a [`Ticket`] polls or blocks until the pages and frames that it requested are there. A [`RangeScan`] has the
//! private pages of a range scan: read for this scan, not installed in the pool, and kept while the scan needs them.

use std::sync::Arc;
use std::task::{Poll, Waker};

use rustc_hash::FxHashMap;

use super::{Reads, Round, ScanRun, ServedScan};
use crate::buffer_pool::frames::Waiter;
use crate::error::Result;
use crate::format::{CommitSeq, HEADER_BYTES, PageId};

use crate::pages::{self, OwnPage};
use crate::sync::semaphore::Permit;

/// A handle of a waiting operation; keeps the pages that have arrived in memory until it is dropped.
pub(crate) struct Ticket {
    reads: Arc<Reads>,
    waiter: Arc<Waiter>,
    /// Whether a task waits for it.
    is_task: bool,
    /// The permits for all pages that this ticket pins. They are returned after the pins have been removed.
    _permit: Option<Permit>,
}

impl Ticket {
    pub(crate) fn new(reads: Arc<Reads>, waiter: Arc<Waiter>, permit: Permit) -> Self {
        Self { reads, waiter, is_task: false, _permit: Some(permit) }
    }

    /// A ticket that pins no page.
    pub(crate) fn without_pins(reads: &Arc<Reads>, waiter: Arc<Waiter>) -> Self {
        Self { reads: Arc::clone(reads), waiter, is_task: false, _permit: None }
    }

    #[cfg(test)]
    pub(crate) fn waiter(&self) -> &Arc<Waiter> {
        &self.waiter
    }
}

impl pages::Ticket for Ticket {
    fn poll(&mut self, waker: &Waker) -> Poll<Result<()>> {
        if !self.is_task {
            self.is_task = true;
            self.reads.begin_task();
        }
        match self.reads.failure().error() {
            Some(error) => Poll::Ready(Err(error.clone())),
            None => self.waiter.poll(waker),
        }
    }

    fn wait(&mut self) -> Result<()> {
        let mut idle_rounds = 0;
        loop {
            if let Some(outcome) = self.waiter.outcome() {
                self.reads.scheduler().hand_on_queue();
                return outcome;
            }
            if let Some(error) = self.reads.failure().error() {
                return Err(error.clone());
            }
            idle_rounds = match self.reads.wait_round(&self.waiter)? {
                Round::Moved => 0,
                Round::Idle { weight } => self.reads.standstill().count_idle(idle_rounds, weight)?,
            };
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.reads.versions().process().is_here() {
            return;
        }
        if self.is_task {
            self.reads.end_task();
        }
        let (pinned, wants_frames) = self.waiter.withdraw();
        for (page, frame) in pinned {
            self.reads.versions().unpin(page, frame);
        }
        if wants_frames {
            self.reads.versions().frame_waits().leave(&self.waiter);
        }
    }
}

/// A long range scan in progress: the completion thread works for it until this is dropped.
pub(crate) struct RangeScan {
    reads: Arc<Reads>,
    /// Number of reads for the pool that the scan has queued, and from which on it reads for itself alone.
    shared: usize,
    alone_from: usize,
    /// Number of pages that were last requested for the scan alone, and whether more had to be requested for the pool.
    own: usize,
    is_mostly_shared: bool,
    /// The pages that were read for the scan, and that it still needs: their runs, and their numbers there.
    pages: FxHashMap<PageId, (Arc<ScanRun>, usize)>,
    /// Pages used for this leaf, and for the leaf before.
    used: Vec<PageId>,
    used_before: Vec<PageId>,
    _served: ServedScan,
}

impl RangeScan {
    pub(crate) fn new(reads: &Arc<Reads>) -> Self {
        let frames = reads.versions().frames();
        Self {
            reads: Arc::clone(reads),
            shared: 0,
            // The pages of a smaller table stay in the pool for the next scan.
            alone_from: if reads.pages_for_scan() > 0 { frames.count() } else { usize::MAX },
            own: 0,
            is_mostly_shared: false,
            pages: FxHashMap::default(),
            used: Vec::new(),
            used_before: Vec::new(),
            _served: reads.begin_scan(),
        }
    }

    /// Makes the scan read for itself alone once it has queued reads of so many pages for the pool.
    #[cfg(test)]
    pub(crate) fn be_alone_from(&mut self, pages: usize) {
        self.alone_from = pages;
    }

    /// Returns whether the scan reads pages for itself alone.
    fn is_alone(&self) -> bool {
        self.shared >= self.alone_from
    }
}

impl pages::RangeScan<Ticket> for RangeScan {
    fn ahead_max(&self, most: usize) -> usize {
        if self.is_alone() && !self.is_mostly_shared { self.reads.pages_for_scan() } else { most }
    }

    fn read(&mut self, pages: &mut Vec<PageId>, at: CommitSeq) -> usize {
        if !self.is_alone() {
            return 0;
        }
        let mut refused = Vec::new();
        pages.retain(|page| {
            let own = self.page(*page);
            refused.extend((own == Some(OwnPage::Refused)).then_some(*page));
            own.is_none()
        });
        let mut count = 0;
        for run in self.reads.read_for_scan(pages, at) {
            count += run.pages().len();
            self.pages.extend(run.pages().enumerate().map(|(index, page)| (page, (Arc::clone(&run), index))));
        }
        self.own = count;
        for page in refused {
            self.pages.remove(&page);
            pages.push(page);
        }
        count
    }

    fn note_shared(&mut self, count: usize, in_all: usize) {
        self.shared = in_all;
        self.is_mostly_shared = count > std::mem::take(&mut self.own);
    }

    fn page(&self, id: PageId) -> Option<OwnPage<'_>> {
        let (run, index) = self.pages.get(&id)?;
        let body = run.page(*index).and_then(|page| page.get(HEADER_BYTES..));
        Some(match body {
            Some(body) => OwnPage::Shown(body),
            None if run.has_ended() => OwnPage::Refused,
            None => OwnPage::Coming,
        })
    }

    fn request(&self, page: PageId) -> Option<Ticket> {
        let (run, _) = self.pages.get(&page)?;
        let waiter = Waiter::new();
        self.reads.failure().watch(&waiter);
        run.add_waiter(&waiter, page).then(|| Ticket::without_pins(&self.reads, waiter))
    }

    fn take_refused(&mut self, page: PageId) -> Vec<PageId> {
        let Some((run, _)) = self.pages.get(&page).filter(|(run, _)| run.has_ended()) else { return Vec::new() };
        let refused: Vec<PageId> = run.refused().collect();
        if !refused.contains(&page) {
            return Vec::new();
        }
        refused.into_iter().filter(|page| self.pages.remove(page).is_some()).collect()
    }

    fn note_used(&mut self, mut pages: Vec<PageId>) {
        self.reads.versions().counters().hits.add(pages.len() as u64);
        self.used.append(&mut pages);
    }

    fn pass_leaf(&mut self) {
        std::mem::swap(&mut self.used, &mut self.used_before);
        for page in self.used.drain(..) {
            if !self.used_before.contains(&page) {
                self.pages.remove(&page);
            }
        }
    }
}
