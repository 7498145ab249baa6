//! What the page table answers.

use crate::buffer_pool::frames::OwnedFrame;
use crate::buffer_pool::registry::SupersededVersion;
use crate::buffer_pool::shard::ReadId;
use crate::error::Error;
use crate::format::{Location, PageId};

/// The state of a page after a request to read it.
#[derive(Debug, Clone, Copy)]
pub(in crate::buffer_pool) enum ReadRequest {
    /// The page is now marked as being read by this request: the caller must carry the read out.
    New(ReadId),
    /// Another request is already reading the page; the waiter was added to it.
    Joined,
    /// The page is in memory, and pinned for the waiter.
    InMemory,
    /// The page does not exist.
    Absent,
}

/// A page that was read and checked.
pub(in crate::buffer_pool) struct CheckedPage {
    pub(in crate::buffer_pool) page: OwnedFrame,
    /// The block in which the page lies compressed, if it is to stay in memory as well.
    pub(in crate::buffer_pool) block: Option<OwnedFrame>,
}

/// The result of a read for its page.
pub(in crate::buffer_pool) enum ReadEnd {
    /// The page is in this frame.
    Installed {
        frame: u32,
        /// The frame of the block, to be retired, if the compressed tier had no room for it.
        rejected: Option<u32>,
    },
    /// The read did not bring the page into memory.
    NotInstalled {
        /// The frames of the read, unless the read failed and returned no frame.
        unused: Vec<OwnedFrame>,
        /// The error given to the waiters, if any.
        error: Option<Error>,
    },
    /// A leaf of the table was read: the memory of the read, the error given to the waiters, if any, and the
    /// reads of pages that begin now that their places are known.
    Leaf { unused: Option<OwnedFrame>, error: Option<Error>, next: Vec<ReadId> },
}

/// The result of giving a page a new version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::buffer_pool) enum Replacement {
    /// This version was superseded.
    Superseded(SupersededVersion),
    /// The page did not exist before.
    Added,
    /// The page, which was to be freed, does not exist.
    Absent,
    /// The page is freed once the leaf with its entry is in memory: see `Metadata::take_cold_frees`.
    Later,
}

/// The place of a page in the version that a view sees.
pub(in crate::buffer_pool) enum Lookup {
    /// The page is in this frame.
    Frame(u32),
    /// The page is on disk, or being read.
    NotInMemory,
    /// The page does not exist as of the view's commit.
    Absent,
}

/// A dirty page in its frame, pinned for the code that writes it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DirtyPage {
    pub(crate) page: PageId,
    pub(crate) frame: u32,
}

/// The result of an attempt to evict a frame.
pub(in crate::buffer_pool) enum EvictionOutcome {
    /// The page was clean and is evicted: its frame number was removed from the page table and cannot be reached any
    /// more.
    Clean(u32),
    /// The page is dirty and now pinned: it must be written before its frame can be evicted.
    Dirty(DirtyPage),
}

/// The way in which a checkpoint records one page.
#[derive(Debug)]
pub(crate) enum CheckpointPlace {
    /// The page is in memory only, and pinned: the checkpoint writes it.
    Dirty(DirtyPage),
    /// The page is on disk at this location, to which the checkpoint refers.
    OnDisk(Location),
    /// The page does not exist as of the checkpoint's commit, which records nothing for it.
    Absent,
    /// The leaf with the page's entry is on disk only: the page is as the last checkpoint recorded it.
    Cold,
}
