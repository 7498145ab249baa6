//! The contract between those who use pages (tree, transactions) and those who keep them (pager, log).
//!
//! **A miss is a value.** Nothing here waits: [`Pages::page`] answers with a page in memory or with what there is to wait
//! for ([`Wait`]). Whoever gets a `Wait` gives up all it holds, passes the `Wait` up by `?`, and starts from the beginning
//! once the [`Ticket`] that [`Store::request`] gave is ready. That loop exists once, in `db`.
//!
//! **Pages are versions.** A page, once published, never changes: a writer edits a private copy ([`Edits`]) and publishes it
//! under a commit number. A [`View`](Store::View) shows the tree as it was at one commit, for inner pages as for leaves:
//! each page in its newest version not younger than the view.
//!
//! **Bodies.** All slices are page *bodies*: the bytes after the page header, which belongs to the pager.
//!
//! Who keeps what true:
//! 1. A store never does I/O in `page`, `edit`, `allocate`, `free`, `reserve`, `publish`, `append`; they never block on a device.
//! 2. A page that a live ticket asked for stays in memory until the ticket is dropped. A ticket for frames keeps its share likewise.
//! 3. At most one [`Edits`] exists at a time: its owner holds the commit section (`txn`).
//! 4. Dropping an `Edits` undoes all of it: copies, allocations, frees.
//! 5. A version is dropped only when no view that exists could ask for it. Views are short (one attempt of one operation);
//!    [`Snapshot`]s are what lives long, and are registered.
//! 6. An error goes to everyone who waits, once, and is not remembered: the next request reads again.

#[cfg(test)]
pub(crate) mod memory;
mod room;

use std::ops::{Deref, Range};
use std::task::{Poll, Waker};

pub(crate) use self::room::{Claim, Room, RoomLedger};
use crate::error::{Error, Result};
use crate::format::{CommitSeq, PageId};
use crate::gate::Permit;

/// A page that is not in memory, in the version that a view at `at` wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Missing {
    /// Which page.
    pub(crate) page: PageId,
    /// As of which commit.
    pub(crate) at: CommitSeq,
}

/// Why an operation could not be finished now. Nothing has changed.
#[derive(Debug, Clone)]
pub(crate) enum Wait {
    /// This page must be loaded first.
    Miss(Missing),
    /// This many frames for private copies must become free first.
    Full {
        /// How many, in all, the operation wants to hold.
        frames: usize,
    },
    /// The log has no room for this many bytes yet.
    LogFull {
        /// How many.
        len_bytes: usize,
    },
    /// Waiting will not help.
    Failed(Error),
}

impl From<Error> for Wait {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Result of what may have to wait.
pub(crate) type Attempt<T> = std::result::Result<T, Wait>;

/// What one operation sees at one moment: pages of one commit.
pub(crate) trait Pages {
    /// A page body, in memory and unchanging for as long as the guard lives.
    type Page<'a>: Deref<Target = [u8]>
    where
        Self: 'a;

    /// Bytes of a page with its header: fixed for a database. Bodies have `format::HEADER_BYTES` fewer.
    fn page_bytes(&self) -> usize;

    /// The page. Its checksum was verified when it was loaded; that it is well-formed is the caller's to check.
    fn page(&self, id: PageId) -> Attempt<Self::Page<'_>>;

    /// Whether the page is there will soon be of interest. A hint: the answer is on its way through the caches then.
    fn expect(&self, _id: PageId) {}

    /// These bytes of the page's body, and its first and last ones, will soon be looked at, should it be in memory. A hint, best
    /// after [`Pages::expect`].
    fn fetch(&self, _id: PageId, _bytes: Range<usize>) {}
}

/// Pages that say which commit wrote them.
pub(crate) trait Versions: Pages {
    /// The commit that wrote the page as it is published; private edits do not count. A page that was freed, and is used again, was
    /// written by a later one: whoever finds the same commit again knows that the page was there all the while.
    fn written_in(&self, id: PageId) -> Attempt<CommitSeq>;
}

/// The private edits of one commit (or of one chunk of a large one). As [`Pages`] it shows the newest published pages with
/// its own edits on top. After any `Wait` the whole of it is dropped: callers need not undo.
pub(crate) trait Edits: Pages {
    /// Makes sure that this many more pages can be edited or allocated without `Full`. Asked up front, so that work is not
    /// thrown away half-way. `Full` with more frames than [`Store::edit_frames_max`] says that waiting will not help.
    fn reserve(&mut self, frames: usize) -> Attempt<()>;

    /// The page for editing: a private copy, made at the first call for a page.
    fn edit(&mut self, id: PageId) -> Attempt<&mut [u8]>;

    /// A new page with a zeroed body. Its block will be chosen near that of `near` (a neighbour in key order).
    fn allocate(&mut self, near: PageId) -> Attempt<(PageId, &mut [u8])>;

    /// Frees a page as of this commit. Older views still read it; the id is used again when none can.
    fn free(&mut self, id: PageId);

    /// Does what may take long, and may need frames itself, beside the edits: no frame of the process is kept from being used again for
    /// their sake meanwhile.
    fn aside<R>(&mut self, work: impl FnOnce() -> R) -> R {
        work()
    }
}

/// Something asked for and not there yet. Dropping it gives up the interest in it, never the operation under way.
pub(crate) trait Ticket: Send + Unpin + 'static {
    /// Ready when all that was asked for is there, or has failed. Otherwise the waker is called once it is worth asking
    /// again; the last waker given counts. Does not submit queued reads: see [`Store::submit`].
    fn poll(&mut self, waker: &Waker) -> Poll<Result<()>>;

    /// Waits on this thread, which submits and reaps by itself: no thread hop.
    fn wait(&mut self) -> Result<()>;
}

/// A commit that stays readable until this is dropped.
pub(crate) trait Snapshot: Send + Sync + 'static {
    /// Which commit.
    fn seq(&self) -> CommitSeq;
}

/// What keeps the pages of a database.
pub(crate) trait Store: Send + Sync + 'static {
    /// See [`Store::view`].
    type View<'a>: Versions
    where
        Self: 'a;
    /// See [`Store::edits`].
    type Edits<'a>: Edits + Versions
    where
        Self: 'a;
    /// See [`Store::snapshot`].
    type Snapshot: Snapshot;
    /// See [`Store::request`].
    type Ticket: Ticket;
    /// See [`Store::walk`].
    type Walk: Send + Sync + 'static;

    /// Bytes of a page with its header.
    fn page_bytes(&self) -> usize;

    /// What is visible now: the commit last given to [`Store::set_visible`]. For one attempt of one read.
    fn latest(&self) -> Self::View<'_>;

    /// Which commit a view shows.
    fn commit_of(view: &Self::View<'_>) -> CommitSeq;

    /// What was published last, visible or not: for finding the pages that a commit will touch.
    fn tip(&self) -> Self::View<'_>;

    /// Registers the visible commit as one that stays readable.
    fn snapshot(&self) -> Self::Snapshot;

    /// The pages of a snapshot. `page` answers `Failed(SnapshotTooOld)` once the store had to give the snapshot up.
    fn view<'a>(&'a self, snapshot: &'a Self::Snapshot) -> Self::View<'a>;

    /// Most frames that one `Edits` may ever hold: a commit that needs more publishes in chunks.
    fn edit_frames_max(&self) -> usize;

    /// Most pages that all tickets together may pin: whoever waits for pages takes its share of these first, so that nobody
    /// waits for a frame that another waiter holds.
    fn pins_max(&self) -> usize;

    /// Begins private edits. The caller is in the commit section.
    fn edits(&self) -> Self::Edits<'_>;

    /// Makes edits part of commit `seq`: views at `seq` or later see them, older views do not. `seq` never decreases; a
    /// large commit publishes several times under one number. Infallible.
    fn publish(&self, edits: Self::Edits<'_>, seq: CommitSeq);

    /// From now on `latest` and `snapshot` show `seq`. Never decreases.
    fn set_visible(&self, seq: CommitSeq);

    /// The commit that `latest` shows.
    fn visible(&self) -> CommitSeq;

    /// Frees what nobody can ask for any more, if much of it has piled up. For moments when nobody waits; takes no device.
    fn clear_up(&self) {}

    /// Asks for everything in `waits` (`Miss` and `Full`) to become true together, and queues the reads this needs, without
    /// submitting them. Pages already being read are joined. Pages that are in memory by now are pinned as well.
    ///
    /// The ticket owns `permit` and pins no more pages than that has permits: of more waits than that the last are left out.
    fn request(&self, waits: &[Wait], permit: Permit) -> Self::Ticket;

    /// Queues reads of pages that will be wanted soon. Nobody waits for them; may be ignored under pressure.
    fn prefetch(&self, pages: &[Missing]);

    /// Reads a page on this thread, which wants it, nothing else, and now: cheaper than a ticket. True when it is worth looking
    /// again; but it is not pinned, so it may be gone by then. False when the page has to be asked for.
    ///
    /// # Errors
    /// What reading it failed with.
    fn read_alone(&self, missing: Missing) -> Result<bool> {
        let _ = missing;
        Ok(false)
    }

    /// Sends what is queued to the device.
    fn submit(&self);

    /// A long walk through many pages begins: for as long as the answer lives, reads are sent and taken in beside it, where the store
    /// has a thread for that.
    fn walk(&self) -> Self::Walk;

    /// [`Store::submit`] for one who does not wait for what is queued: it may be left to that thread.
    fn submit_soon(&self);

    /// Sends what is queued if that is as much as should go out together, and says whether it was.
    fn submit_batch(&self) -> bool;

    /// How often what was queued, all of it, has been sent.
    fn sent(&self) -> usize;

    /// Sets room aside for this many pages, so that they can be written whatever happens to the disk. `None` when there is not so much:
    /// [`Store::grow`], or a checkpoint, may make some. To be held until the pages are published. Takes no device.
    fn claim_room(&self, pages: usize, claim: Claim) -> Option<Room> {
        let _ = (pages, claim);
        Some(Room::default())
    }

    /// Lets the file grow. False when there is no room on the disk. Blocks.
    ///
    /// # Errors
    /// Any other error of the disk.
    fn grow(&self) -> Result<bool> {
        Ok(false)
    }

    /// Returns the number of pages that there is room for and that no claim covers, the reserve included.
    fn spare_pages(&self) -> u64 {
        u64::MAX
    }

    /// Page numbers in use, or more.
    fn page_count(&self) -> u64 {
        0
    }

    /// These pages are published and will not change soon: they may be written in the background, so that nobody has to wait for it
    /// later. May be ignored.
    fn write_soon(&self, pages: &[PageId]) {
        let _ = pages;
    }
}

/// Whether a commit waits for the disk.
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
    /// Returns when the commit survives a power cut.
    #[default]
    Sync,
    /// Returns when the commit is visible. It becomes durable with the next `Sync` commit, checkpoint or `sync`, or soon
    /// by itself; a power cut before that loses it, never a part of it, and never one before it alone.
    Deferred,
}

/// A position in the log: the end of a record. Later records have larger ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct LogPosition(pub(crate) u64);

/// What makes commits durable. Each time more commits have become durable, the log calls the hook it was opened with, in
/// commit order and before the tickets of those commits are woken: visibility must not depend on who still waits.
pub(crate) trait CommitLog: Send + Sync + 'static {
    /// See [`CommitLog::durable`].
    type Ticket: Ticket;

    /// Most bytes of one piece.
    fn piece_bytes_max(&self) -> usize;

    /// Appends a piece of the record of commit `seq` (the parts, one after the other). A record is its pieces in order,
    /// the last one marked by `Some(durability)`; a record without its last piece is ignored by recovery. Copies, does no
    /// I/O. `LogFull` before anything is appended; `Failed(Poisoned)` after a failed write. The caller is in the commit section.
    fn append(&self, seq: CommitSeq, piece: &[&[u8]], last: Option<Durability>) -> Attempt<LogPosition>;

    /// Ready when a piece of this many bytes has room.
    fn room(&self, len_bytes: usize) -> Self::Ticket;

    /// Nothing more will be appended, and so why: whoever waits for room, or comes to wait for it, is told that. What was appended
    /// becomes durable all the same.
    fn refuse(&self, why: &Error) {
        let _ = why;
    }

    /// Ready when everything up to `position` is durable; starts the write that makes it so. A ticket that is given up before leaves
    /// that to the log, which then does it by itself, if it has a thread.
    fn durable(&self, position: LogPosition) -> Self::Ticket;

    /// As [`CommitLog::durable`], and until the log itself says so: from then on damage to any of it is noticed.
    fn stated(&self, position: LogPosition) -> Self::Ticket {
        self.durable(position)
    }
}
