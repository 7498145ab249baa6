//! Defines the interface between the users of pages (tree, transactions) and the stores of pages (buffer pool, log).
//!
//! **A miss is a value.** The lookup does not wait: [`Pages::page`] returns either a page in memory
//! or a [`Wait`], which names the missing resource. A caller that receives a `Wait` drops everything it holds, passes the
//! `Wait` up with `?`, and starts from the beginning once the [`Ticket`] of [`Store::request`] is ready. That retry loop
//! exists once, in `db`.
//!
//! **Pages are versions.** A published page never changes: a writer changes a private copy ([`PageCopies`]) and publishes it
//! under a commit number. A [`View`](Store::View) shows the tree as of one commit, inner pages and leaves alike: of each
//! page, the newest version that is not younger than the view.
//!
//! **Bodies.** All slices are page *bodies*: the bytes after the page header, which belongs to the buffer pool.
//!
//! Invariants:
//! 1. A store never does I/O in `page`, `edit`, `allocate`, `free`, `reserve`, `publish`, `append`; they never block on a device.
//! 2. A page that a live ticket requested stays in memory until the ticket is dropped. A ticket for frames keeps its frames likewise.
//! 3. At most one [`PageCopies`] exists at a time: its owner holds the commit section (`transaction`).
//! 4. Dropping a `PageCopies` undoes all of it: copies, allocations, frees.
//! 5. A version is dropped only when no existing view could request it. Views are short (one attempt of one operation);
//!    long-lived readers are [`Snapshot`]s, which are registered.
//! 6. An error is delivered once to every waiter and is not cached: the next request reads again.

#[cfg(test)]
pub(crate) mod memory;
mod reservation;

use std::ops::{Deref, Range};
use std::task::{Poll, Waker};

pub(crate) use self::reservation::{BlockReservation, ReservationKind, ReservationLedger};
use crate::error::{Error, Result};
use crate::format::{CommitSeq, Moment, PageId};
use crate::sync::semaphore::Permit;

/// A database as its log and its pool see it: all calls that lead upwards. The database hands itself over once, when it is opened, before
/// the first commit. Without one these calls do and know nothing.
pub(crate) trait Host: Send + Sync {
    /// Makes commits up to this one visible, which are durable now. Called in commit order, before any waiter for the commit is woken,
    /// and without the lock of the log's state: it may append.
    fn commits_durable(&self, _newest: CommitSeq) {}

    /// Does the work that no waiter needs, after the waiters of a write were woken.
    fn write_ended(&self) {}

    /// Ends all that relies on the log, of which nothing becomes durable any more. Called once, with no lock of the log's state or writer.
    fn log_failed(&self, _error: &Error) {}

    /// Returns the present moment, by which a group of the log is dated; 0 where the time is not known. Called under the log's lock.
    fn now(&self) -> Moment {
        Moment(0)
    }

    /// Returns whether the log's device is at work, so that frames may become free once it has finished.
    fn is_log_writing(&self) -> bool {
        false
    }
}

/// A page that is not in memory, in the version that a view at commit `at` sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Missing {
    /// The id of the missing page.
    pub(crate) page: PageId,
    /// The commit that the view shows.
    pub(crate) at: CommitSeq,
}

/// The reason why an operation could not finish now. The operation has changed nothing.
#[derive(Debug, Clone)]
pub(crate) enum Wait {
    /// The named page must be loaded first.
    Miss(Missing),
    /// Frames for private copies must become free first.
    Full {
        /// The total number of frames that the operation wants to hold.
        frames: usize,
    },
    /// The log has no space yet for a fragment of this length.
    LogFull {
        /// The length of the fragment, in bytes.
        len_bytes: usize,
    },
    /// The operation has failed, and waiting does not help.
    Failed(Error),
}

impl From<Error> for Wait {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Result of an operation that may have to wait.
pub(crate) type Attempt<T> = std::result::Result<T, Wait>;

/// A consistent set of pages: the state of one commit, as one operation reads it.
pub(crate) trait Pages {
    /// Guards the body of a page, which stays in memory and unchanged for as long as the guard lives.
    type Page<'a>: Deref<Target = [u8]>
    where
        Self: 'a;

    /// Returns the number of bytes of a page, its header included; it is fixed for a database. Page bodies have
    /// `format::HEADER_BYTES` fewer.
    fn page_bytes(&self) -> usize;

    /// Returns the page. Its checksum was verified when it was loaded; the caller checks that its content is well-formed.
    fn page(&self, id: PageId) -> Attempt<Self::Page<'_>>;

    /// Returns whether lookups and scans leave out an entry that expires at this moment. The pages of readers do once the
    /// moment has come; all others show every entry.
    #[inline]
    fn has_expired(&self, expiry: Moment) -> bool {
        let _ = expiry;
        false
    }

    /// Returns whether a leaf is known to hold no entry but those that [`Pages::has_expired`] leaves out. Does not look at the
    /// page. Known by the note of [`Pages::note_latest_expiry`] on this version of the leaf, while it is in memory.
    #[inline]
    fn has_only_expired(&self, leaf: PageId) -> bool {
        let _ = leaf;
        false
    }

    /// Notes the latest moment at which an entry of a leaf expires, as it was found in the version that these pages show.
    fn note_latest_expiry(&self, _leaf: PageId, _latest: Moment) {}

    /// Prefetches the page-table entry of a page into the CPU caches. A hint before [`Pages::page`].
    fn expect(&self, _id: PageId) {}

    /// Prefetches a range of bytes of a page's body, and its first and last bytes, into the CPU caches, if the page is
    /// in memory. A hint, best given some time after [`Pages::expect`].
    fn fetch(&self, _id: PageId, _bytes: Range<usize>) {}
}

/// Pages that tell which commit wrote each of them.
pub(crate) trait Versions: Pages {
    /// Returns the commit that wrote the published version of a page; private copies do not count. A page that was
    /// freed and reused was written by a later commit, so an unchanged commit proves that the page was not freed in
    /// between.
    fn written_in(&self, id: PageId) -> Attempt<CommitSeq>;
}

/// The private copies of one commit (or of one chunk of a large one). As [`Pages`] it shows the newest published pages with
/// its own copies on top. After any `Wait` the whole `PageCopies` is dropped, so callers need not undo single changes.
pub(crate) trait PageCopies: Pages {
    /// Ensures that this many more pages can be edited or allocated without `Full`. Called before the work, so that no
    /// work is lost half-way. `Full` with more frames than [`Store::copy_frames_max`] means that waiting will not help.
    fn reserve(&mut self, frames: usize) -> Attempt<()>;

    /// As [`PageCopies::reserve`] for so many new pages, which can then be allocated without any wait. For work that notes
    /// the pages it has allocated, and could not take back what it noted.
    fn reserve_new(&mut self, pages: usize) -> Attempt<()> {
        self.reserve(pages)
    }

    /// Returns the page for editing: a private copy, made at the first call for a page.
    fn edit(&mut self, id: PageId) -> Attempt<&mut [u8]>;

    /// Allocates a page with a zeroed body. Its block will be chosen near the block of `near` (a neighbour in key order).
    fn allocate(&mut self, near: PageId) -> Attempt<(PageId, &mut [u8])>;

    /// Tells that the pages edited so far will hardly be edited again before they are published as commit `seq`: what the
    /// store then has to do with all bytes of a page it may do now, while they are in the CPU caches.
    fn seal(&mut self, seq: CommitSeq) {
        let _ = seq;
    }

    /// Frees a page as of this commit. Older views still read it; the id is reused when no view can read it any more.
    fn free(&mut self, id: PageId);

    /// As [`PageCopies::free`], for a page that no reader of commit `since` or a later one reaches: a page of a table that commit
    /// `since` has dropped. Snapshots from then on do not keep it.
    fn free_unread(&mut self, id: PageId, since: CommitSeq) {
        let _ = since;
        self.free(id);
    }

    /// Runs work that may take long, or may need frames itself, without pinning the epoch of these copies: frames that were
    /// retired in that time can be reused.
    fn unpinned<R>(&mut self, work: impl FnOnce() -> R) -> R {
        work()
    }
}

/// A request for pages, frames or log writes that may not be fulfilled yet. Dropping it withdraws the request, but
/// never an operation in progress.
pub(crate) trait Ticket: Send + Unpin + 'static {
    /// Is ready when the whole request is fulfilled, or has failed. Otherwise the waker is called when a new poll is
    /// useful; the last waker given counts. Does not submit queued reads: see [`Store::submit`].
    fn poll(&mut self, waker: &Waker) -> Poll<Result<()>>;

    /// Blocks until the request is fulfilled or has failed. The calling thread submits reads and takes their
    /// completions itself, without another thread.
    fn wait(&mut self) -> Result<()>;
}

/// A commit that stays readable until this is dropped.
pub(crate) trait Snapshot: Send + Sync + 'static {
    /// Returns the commit that the snapshot shows.
    fn seq(&self) -> CommitSeq;

    /// Returns the moment as of which the snapshot shows entries that expire. It was taken after the commit was chosen: a
    /// snapshot without an entry that was removed because it had expired has a moment at which the entry has expired. A
    /// store without a clock shows all entries, as of the first moment.
    fn moment(&self) -> Moment {
        Moment(0)
    }
}

/// A private page: requested for a single scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OwnPage<'a> {
    /// Its body, in the version that the scan's snapshot shows.
    Shown(&'a [u8]),
    /// It is being read.
    Coming,
    /// The read failed, or brought a version that the snapshot does not show: the scan must look the page up in the store.
    Refused,
}

/// A long range scan under way. A store may read the pages of such a scan for this scan alone: they are then found here and not by a
/// view. The methods of a store that never does are the default.
pub(crate) trait RangeScan<T>: Send + Sync + 'static {
    /// Returns how many pages ahead of its position the scan may request, where it may request `most` for the pool.
    fn ahead_max(&self, most: usize) -> usize {
        most
    }

    /// Queues reads for the scan alone, of those pages for which this is worthwhile, and removes them from `pages`. Returns their
    /// number. `at` is the commit that the scan's snapshot shows.
    fn read(&mut self, pages: &mut Vec<PageId>, at: CommitSeq) -> usize {
        let _ = (pages, at);
        0
    }

    /// Notes the number of reads that the scan has queued for the store: now, and in all, also before it was a long one.
    fn note_shared(&mut self, count: usize, in_all: usize) {
        let _ = (count, in_all);
    }

    /// Returns the state of a private page; `None` if the page was not requested for the scan alone.
    fn page(&self, id: PageId) -> Option<OwnPage<'_>> {
        let _ = id;
        None
    }

    /// Returns a ticket that is ready when a page has arrived, if the page is being read for the scan alone.
    fn request(&self, page: PageId) -> Option<T> {
        let _ = page;
        None
    }

    /// Returns the pages that were read together with `page` and that the scan cannot use, `page` among them, if it is such a page. They
    /// count as not requested from then on.
    fn take_refused(&mut self, page: PageId) -> Vec<PageId> {
        let _ = page;
        Vec::new()
    }

    /// Notes that the scan has looked at private pages, refused ones among them. They are needed until the scan has passed the next
    /// leaf: neighbours share pages of values.
    fn note_used(&mut self, pages: Vec<PageId>) {
        let _ = pages;
    }

    /// Notes that the scan has passed a leaf.
    fn pass_leaf(&mut self) {}
}

/// For stores whose pages are all shared.
impl<T> RangeScan<T> for () {}

/// The storage of a database's pages.
pub(crate) trait Store: Send + Sync + 'static {
    /// The type that [`Store::view`] returns.
    type View<'a>: Versions
    where
        Self: 'a;
    /// The type that [`Store::copies`] returns: the private copies of a commit.
    type Copies<'a>: PageCopies + Versions
    where
        Self: 'a;
    /// The type that [`Store::snapshot`] returns.
    type Snapshot: Snapshot;
    /// The type that [`Store::request`] returns.
    type Ticket: Ticket;
    /// The type that [`Store::begin_range_scan`] returns: a guard that ends the scan when it is dropped.
    type RangeScan: RangeScan<Self::Ticket>;

    /// Fails in a process forked from the one that opened the store, which has none of its memory and threads.
    ///
    /// # Errors
    /// `Closed`.
    fn check_process(&self) -> Result<()> {
        Ok(())
    }

    /// Returns the number of bytes of a page, its header included.
    fn page_bytes(&self) -> usize;

    /// Returns a view of the visible commit: the last one given to [`Store::set_visible`]. For one attempt of one read.
    fn latest(&self) -> Self::View<'_>;

    /// Returns the commit that a view shows.
    fn commit_of(view: &Self::View<'_>) -> CommitSeq;

    /// Returns a view of the last published commit, visible or not: for finding the pages that a commit will touch.
    fn latest_published(&self) -> Self::View<'_>;

    /// Registers the visible commit, so that it stays readable until the returned snapshot is dropped.
    fn snapshot(&self) -> Self::Snapshot;

    /// Returns a view of a snapshot. Its `page` returns `Failed(SnapshotTooOld)` once the store has evicted the snapshot.
    fn view<'a>(&'a self, snapshot: &'a Self::Snapshot) -> Self::View<'a>;

    /// Returns the most frames that one set of `PageCopies` may hold: a commit needing more publishes in portions.
    fn copy_frames_max(&self) -> usize;

    /// Returns the most pages that all tickets together may pin. An operation takes its share of these pins before it waits
    /// for pages, so no operation waits for a frame that another waiter holds.
    fn pins_max(&self) -> usize;

    /// Begins a set of private copies. The caller is in the commit section.
    fn copies(&self) -> Self::Copies<'_>;

    /// Makes the copies part of commit `seq`: views at `seq` or later see them, older views do not. `seq` never decreases; a
    /// large commit publishes several times under one number. Infallible.
    fn publish(&self, copies: Self::Copies<'_>, seq: CommitSeq);

    /// Makes `seq` the commit that `latest` and `snapshot` show. It never decreases.
    fn set_visible(&self, seq: CommitSeq);

    /// Returns the commit that `latest` shows.
    fn visible(&self) -> CommitSeq;

    /// Frees some of the versions that no view can request any more, if many have piled up. Called when no operation
    /// waits; does no I/O.
    fn clear_up(&self) {}

    /// Requests everything in `waits` (`Miss` and `Full`) together, and queues the reads that this needs without submitting
    /// them. Joins the reads of pages that are being read already. Pins pages in memory by now as well.
    ///
    /// The ticket owns `permit` and pins at most as many pages as it has permits: surplus waits at the end are ignored.
    fn request(&self, waits: &[Wait], permit: Permit) -> Self::Ticket;

    /// Queues reads of pages that will be needed soon and that no operation waits for yet. May be ignored under
    /// pressure. Returns the number of reads that it queued.
    fn prefetch(&self, pages: &[Missing]) -> usize;

    /// Reads one page on the calling thread and blocks until it is read, which is cheaper than a ticket. Returns true
    /// when the caller should look the page up again; the page is not pinned, so it may be evicted by then. Returns
    /// false when the caller must request the page instead.
    ///
    /// # Errors
    /// The error of the read.
    fn read_alone(&self, missing: Missing) -> Result<bool> {
        let _ = missing;
        Ok(false)
    }

    /// Reads pages on the calling thread as [`Store::read_alone`] does, if their blocks lie together.
    ///
    /// # Errors
    /// The error of the read of a single page. With several pages, a request for the bad page meets its error.
    fn read_together(&self, missing: &[Missing]) -> Result<bool> {
        let _ = missing;
        Ok(false)
    }

    /// Returns whether [`Store::read_together`] would read these pages by a single operation, judged by their blocks in the page table.
    fn are_neighbours(&self, pages: &[Missing]) -> bool {
        let _ = pages;
        false
    }

    /// Submits all queued reads to the device.
    fn submit(&self);

    /// Begins a long range scan: until the returned guard is dropped, a background thread, if the store has one, submits and
    /// completes reads along with the scan.
    fn begin_range_scan(&self) -> Self::RangeScan;

    /// Submits the queued reads as [`Store::submit`] does, for a caller that does not wait for them: may leave them to
    /// the background thread of [`Store::begin_range_scan`].
    fn submit_soon(&self);

    /// Submits the queued reads if they are enough for one batch, and returns whether it did.
    fn submit_batch(&self) -> bool;

    /// Returns how many times the whole queue of reads has been submitted.
    fn sent(&self) -> usize;

    /// Reserves blocks for this many pages, so that the pages can be written even if the disk fills up. Returns `None`
    /// when too few blocks are free; [`Store::grow`] or a checkpoint may then free some. The caller holds the result
    /// until the pages are published. Does no I/O.
    fn reserve_blocks(&self, pages: usize, kind: ReservationKind) -> Option<BlockReservation> {
        let _ = (pages, kind);
        Some(BlockReservation::default())
    }

    /// Grows the data file. Returns false when the disk has no space. Blocks.
    ///
    /// # Errors
    /// Any other error of the disk.
    fn grow(&self) -> Result<bool> {
        Ok(false)
    }

    /// Returns the number of pages for which there are free blocks that no reservation covers, the reserve included.
    fn spare_pages(&self) -> u64 {
        u64::MAX
    }

    /// Returns an upper bound of the page numbers in use.
    fn page_count(&self) -> u64 {
        0
    }

    /// Suggests writing these published pages in the background, because they will not change soon and a later write would
    /// delay an operation. May be ignored.
    fn write_soon(&self, pages: &[PageId]) {
        let _ = pages;
    }
}

/// Determines whether the call of a commit waits until the commit is durable.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
/// # let stock = db.create_table("stock")?;
/// use nofault::{Batch, Durability};
///
/// let mut batch = Batch::new();
/// batch.put(&stock, "visits", "1");
/// db.write(batch, Durability::Deferred)?; // visible, and durable soon
/// stock.put("apples", "12")?; // `Sync`: durable with all before it
/// # Ok::<(), nofault::error::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Durability {
    /// The commit call returns when the commit survives a power cut.
    #[default]
    Sync,
    /// The commit call returns when the commit is visible. The commit becomes durable with the next `Sync` commit,
    /// checkpoint or `sync`, or soon by itself. A power cut before that loses all of it, never a part of it, and never
    /// an earlier commit alone.
    Deferred,
}

/// A position in the log: the end of a record. Later records have larger positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct LogPosition(pub(crate) u64);

/// The log that makes commits durable. Each time more commits have become durable, the log calls the hook it was opened
/// with, in commit order and before it wakes the tickets of those commits: visibility must not depend on live waiters.
pub(crate) trait CommitLog: Send + Sync + 'static {
    /// The type that [`CommitLog::durable`] returns.
    type Ticket: Ticket;

    /// Returns the most bytes of one fragment of a record.
    fn fragment_bytes_max(&self) -> usize;

    /// Appends a fragment of the record of commit `seq` (the parts, one after the other). A record is its fragments in order,
    /// the last one marked by `Some(durability)`; a record without its last fragment is ignored by recovery. Copies, does no
    /// I/O. `LogFull` before anything is appended; `Failed(Poisoned)` after a failed write. The caller is in the commit section.
    fn append(&self, seq: CommitSeq, fragment: &[&[u8]], last: Option<Durability>) -> Attempt<LogPosition>;

    /// Returns a ticket that is ready when the log has free space for a fragment of this many bytes.
    fn await_space(&self, len_bytes: usize) -> Self::Ticket;

    /// Refuses all further appends with the error `why`, which present and later waiters for free space receive as
    /// well. Fragments appended before still become durable.
    fn refuse(&self, why: &Error) {
        let _ = why;
    }

    /// Returns a ticket that is ready when everything up to `position` is durable, and starts the write for it. If the
    /// ticket is dropped earlier, the log's own thread, if it has one, finishes that write.
    fn durable(&self, position: LogPosition) -> Self::Ticket;

    /// Returns a ticket as [`CommitLog::durable`] does, which also waits until a later write records that everything up
    /// to `position` is durable. From then on damage to any of it is detected.
    fn stated(&self, position: LogPosition) -> Self::Ticket {
        self.durable(position)
    }
}
