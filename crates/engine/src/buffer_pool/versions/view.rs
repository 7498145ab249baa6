//! The pages that one attempt of one read sees, and the snapshots whose commits stay readable. A hit costs one load of the table, one of
//! the usage count, and the page.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_epoch::Guard;
use nofault_io::prefetch::{prefetch_bytes, prefetch_read};

use super::Versions;
use crate::buffer_pool::page_table::{Entry, Lookup, PageTable};
use crate::buffer_pool::stats::HitTally;
use crate::clock::GuardedClock;
use crate::error::{Error, ErrorKind};
use crate::format::{CommitSeq, HEADER_BYTES, Moment, PageId, page_commit, page_id};
use crate::pages::{self, Attempt, Missing, Pages, Wait};

/// Keeps the pages of one commit readable until it is dropped or evicted.
pub(crate) struct Snapshot {
    versions: Arc<Versions>,
    seq: CommitSeq,
    /// `None` for a snapshot that shows all entries.
    moment: Option<Moment>,
    too_old: Arc<AtomicBool>,
    essential: bool,
}

impl Snapshot {
    pub(crate) fn new(versions: &Arc<Versions>, essential: bool) -> Self {
        let (seq, too_old) = versions.history().register(essential);
        // After the commit was chosen: see `Snapshot::moment`.
        let moment = versions.clock().now();
        Self { versions: Arc::clone(versions), seq, moment: Some(moment), too_old, essential }
    }

    /// Lets the snapshot show all entries, also expired ones.
    pub(crate) fn with_expired(self) -> Self {
        let mut all = self;
        all.moment = None;
        all
    }

    /// Returns the entries that views of the snapshot show.
    pub(crate) fn shown(&self) -> ShownEntries<'_> {
        self.moment.map_or(ShownEntries::All, ShownEntries::At)
    }

    /// Returns the flag set when this snapshot has been evicted.
    pub(crate) fn too_old(&self) -> &AtomicBool {
        &self.too_old
    }
}

impl crate::pages::Snapshot for Snapshot {
    fn seq(&self) -> CommitSeq {
        self.seq
    }

    fn moment(&self) -> Moment {
        self.moment.unwrap_or(Moment(0))
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        self.versions.history().unregister(self.seq, &self.too_old, self.essential);
    }
}

/// The pages as of one commit, for as long as its epoch guard is held. Not `Send`; never kept across a wait.
pub(crate) struct View<'a> {
    pages: &'a PageTable,
    at: CommitSeq,
    too_old: Option<&'a AtomicBool>,
    /// The error of a pool that shows no page: it has ended, or its frames are in the process that forked this one.
    ended: Option<&'a Error>,
    shown: ShownEntries<'a>,
    hits: HitTally<'a>,
    /// Protects every page handed out. Declared last, so that it is dropped last.
    guard: Guard,
}

/// The entries of tables that a view shows.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ShownEntries<'a> {
    /// All of them.
    All,
    /// Entries that have not expired by the time at which the view meets them.
    Unexpired(&'a GuardedClock),
    /// Entries that have not expired at this moment.
    At(Moment),
}

impl<'a> View<'a> {
    /// Creates a view of the commit that `at` returns. `at` is called after the guard is pinned: see
    /// `History::drop_later`.
    pub(crate) fn new(
        versions: &'a Versions,
        at: impl FnOnce() -> CommitSeq,
        too_old: Option<&'a AtomicBool>,
        shown: ShownEntries<'a>,
    ) -> Self {
        let (guard, ended) = (versions.history().pin(), versions.ended());
        Self { pages: versions.pages(), at: at(), too_old, ended, shown, hits: versions.counters().hits.tally(), guard }
    }

    /// Returns the commit that this view shows.
    pub(crate) fn commit(&self) -> CommitSeq {
        self.at
    }

    /// Returns a page with its header, in the version that this view shows.
    #[inline]
    fn shown(&self, id: PageId) -> Attempt<&[u8]> {
        if let Some(error) = self.ended {
            return Err(Wait::Failed(error.clone()));
        }
        if let Entry::Resident(index) = self.pages.entry(id)
            && self.is_shown(index, id)
        {
            self.pages.frames().usage().touch(index);
            self.hits.hit();
            return Ok(self.whole(index));
        }
        self.older(id)
    }

    /// Returns whether a frame, in which a page was found, holds the version of the page that this view shows.
    #[inline]
    fn is_shown(&self, frame: u32, id: PageId) -> bool {
        // The page's header names the same commit as the frame does, and its cache line is needed anyway. It names another
        // page when the entry belonged to another page: see `word_array`.
        let page = self.whole(frame);
        page_commit(page) <= self.at && page_id(page) == id
    }

    /// Returns the page in a frame, with its header.
    #[inline]
    fn whole(&self, frame: u32) -> &[u8] {
        let _protects = &self.guard;
        // SAFETY: the frame's number was found under `self.guard`, which lives as long as the slice (both are bound to
        // `&self`), and frames are recycled only after every guard pinned at that time is gone.
        unsafe { self.pages.frames().bytes(frame) }
    }

    #[cold]
    fn older(&self, id: PageId) -> Attempt<&[u8]> {
        if self.too_old.is_some_and(|flag| flag.load(Ordering::Acquire)) {
            let what = format!("the snapshot of commit {} kept too many old pages and was given up", self.at);
            return Err(Wait::Failed(Error::new(ErrorKind::SnapshotTooOld, what)));
        }
        match self.pages.lookup(id, self.at) {
            Lookup::Frame(frame) => {
                self.hits.hit();
                Ok(self.whole(frame))
            }
            Lookup::NotInMemory => Err(Wait::Miss(Missing { page: id, at: self.at })),
            Lookup::Absent => self.absent(id),
        }
    }

    fn absent(&self, id: PageId) -> Attempt<&[u8]> {
        // The snapshot was evicted between the first check and the lock: then the version was dropped, which is no damage.
        if self.too_old.is_some_and(|flag| flag.load(Ordering::Acquire)) {
            let what = format!("the snapshot of commit {} kept too many old pages and was given up", self.at);
            return Err(Wait::Failed(Error::new(ErrorKind::SnapshotTooOld, what)));
        }
        let what = format!("does not exist as of commit {}, though another page names it", self.at);
        Err(Wait::Failed(Error::corrupt_page(id, what)))
    }
}

impl Pages for View<'_> {
    type Page<'b>
        = &'b [u8]
    where
        Self: 'b;

    fn page_bytes(&self) -> usize {
        self.pages.frames().page_bytes()
    }

    #[inline]
    fn page(&self, id: PageId) -> Attempt<&[u8]> {
        self.shown(id).map(|page| &page[HEADER_BYTES..])
    }

    #[inline]
    fn has_expired(&self, expiry: Moment) -> bool {
        expiry != Moment::NEVER
            && match self.shown {
                ShownEntries::All => false,
                ShownEntries::Unexpired(clock) => expiry <= clock.now(),
                ShownEntries::At(moment) => expiry <= moment,
            }
    }

    #[inline]
    fn has_only_expired(&self, leaf: PageId) -> bool {
        let Entry::Resident(index) = self.pages.entry(leaf) else { return false };
        if self.ended.is_some() {
            return false;
        }
        // Nothing else is known of nearly all frames, and the page is not touched then.
        self.has_expired(self.pages.frames().expiries().latest(index)) && self.is_shown(index, leaf)
    }

    fn note_latest_expiry(&self, leaf: PageId, latest: Moment) {
        if self.ended.is_none()
            && let Entry::Resident(index) = self.pages.entry(leaf)
            && self.is_shown(index, leaf)
        {
            self.pages.frames().expiries().note(index, latest);
        }
    }

    #[inline]
    fn expect(&self, id: PageId) {
        if self.ended.is_none() {
            self.pages.prefetch(id);
        }
    }

    #[inline]
    fn fetch(&self, id: PageId, bytes: Range<usize>) {
        if self.ended.is_none()
            && let Entry::Resident(index) = self.pages.entry(id)
        {
            let page = self.whole(index);
            prefetch_read(page.as_ptr());
            if let Some(last) = page.last() {
                prefetch_read(last);
            }
            let end = (HEADER_BYTES + bytes.end).min(page.len());
            prefetch_bytes(page.get(HEADER_BYTES + bytes.start..end).unwrap_or_default());
        }
    }
}

impl pages::Versions for View<'_> {
    fn written_in(&self, id: PageId) -> Attempt<CommitSeq> {
        self.shown(id).map(page_commit)
    }
}
