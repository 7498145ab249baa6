//! Reserves blocks of the data file for the pages that a commit changes, before the commit begins: so a full disk refuses
//! commits, and never stops one half-way.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::thread;
use crate::error::{Error, ErrorKind, Result};
use crate::format::cell::inline_value_bytes_max;
use crate::pages::{BlockReservation, CommitLog, ReservationKind, Store};
use crate::sync::semaphore::Semaphore;
use crate::transaction::{Commits, Op};

/// Pages of a large commit that its operations and bytes do not account for: the way from the roots, and the page where each portion ends.
const LARGE_EXTRA_PAGES: u64 = 64;
/// Number of checkpoints made to free blocks before a commit is refused: blocks that readers held during the
/// first are free after the second.
const CHECKPOINTS: usize = 2;

/// Blocks to be free for further work, in addition to the requested ones, when repacking ends: so the next commits
/// do not repack pages again, one after the other.
pub(in crate::db) const FREED_AT_ONCE: u64 = 64;

/// The ways to free blocks of the data file. They block.
pub(in crate::db) trait FreeBlocks: Send + Sync {
    /// Makes a checkpoint.
    fn checkpoint(&self) -> Result<()>;

    /// Packs compressed pages into fewer blocks until blocks for `pages` pages and [`FREED_AT_ONCE`] are free, or all pages
    /// were looked at. Returns how many blocks it has freed.
    fn squeeze(&self, pages: u64) -> Result<u64>;
}

/// Returns the kind of reservation of a commit: `Reserve` when it makes no table larger.
pub(in crate::db) fn reservation_kind(ops: &[Op]) -> ReservationKind {
    let only_frees = ops.iter().all(|op| matches!(op, Op::Delete { .. } | Op::DropTable { .. }));
    if only_frees { ReservationKind::Reserve } else { ReservationKind::Ordinary }
}

/// Whether the value of an op lies in overflow pages.
pub(in crate::db) fn is_long(op: &Op, page_bytes: usize) -> bool {
    matches!(op, Op::Put { value, .. } if value.len() > inline_value_bytes_max(page_bytes))
}

/// Reserves blocks of the data file for commits.
pub(crate) struct BlockReservations<S: Store, L: CommitLog> {
    store: Arc<S>,
    commits: Arc<Commits<S, L>>,
    /// Frees blocks, in databases that can.
    free_blocks: OnceLock<Box<dyn FreeBlocks>>,
    /// A semaphore of one permit, held by the commit that frees blocks or grows the file.
    making: Arc<Semaphore>,
    /// Number of commits refused because too few blocks were free.
    refused: AtomicU64,
}

impl<S: Store, L: CommitLog> BlockReservations<S, L> {
    pub(in crate::db) fn new(store: Arc<S>, commits: Arc<Commits<S, L>>) -> Arc<Self> {
        let (free_blocks, making, refused) = (OnceLock::new(), Semaphore::new(1), AtomicU64::new(0));
        Arc::new(Self { store, commits, free_blocks, making, refused })
    }

    /// Sets the ways to free blocks when a commit finds too few. Called once, when the database is opened.
    pub(in crate::db) fn free_blocks_by(&self, free_blocks: Box<dyn FreeBlocks>) {
        let set = self.free_blocks.set(free_blocks);
        debug_assert!(set.is_ok(), "set once, when the database is opened");
    }

    /// Ends the waits for another commit that makes blocks free, once all commits are refused.
    pub(in crate::db) fn end(&self) {
        self.making.open();
    }

    /// Returns the number of commits refused because too few blocks were free, since the database was opened.
    pub(in crate::db) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Returns an upper bound of the number of pages that a large commit changes. It counts an existing page for each
    /// operation, as long as there are so many, and new pages for the bytes of keys and values, which may fill a page
    /// to no more than a third.
    pub(in crate::db) fn pages_of_large(&self, ops: &[Op]) -> usize {
        let page_bytes = self.store.page_bytes();
        let (mut long_pages, mut bytes) = (0, 0);
        for op in ops {
            match op {
                Op::Put { key, .. } if is_long(op, page_bytes) => {
                    long_pages += op.frames(page_bytes);
                    bytes += key.len() + 32;
                }
                Op::Put { key, value, .. } => bytes += key.len() + value.len() + 32,
                Op::Delete { .. } => {}
                Op::CreateTable { name, .. } | Op::DropTable { name, .. } | Op::SetCompression { name, .. } => {
                    bytes += name.len() + page_bytes;
                }
                Op::RenameTable { to, .. } => bytes += to.len() + 2 * page_bytes,
                Op::SetTypes { key, value, .. } => bytes += key.len() + value.len() + page_bytes,
            }
        }
        let there = self.store.page_count().min(ops.len() as u64) + LARGE_EXTRA_PAGES;
        long_pages + bytes.div_ceil(page_bytes) * 3 + usize::try_from(there).unwrap_or(usize::MAX)
    }

    /// Reserves blocks for `pages` pages, if enough are free.
    pub(in crate::db) fn try_reserve(&self, pages: usize, kind: ReservationKind) -> Option<BlockReservation> {
        self.store.reserve_blocks(pages, kind)
    }

    /// Reserves blocks for so many pages. Where too few are free, the file grows or a checkpoint frees some first. Work that
    /// may use the reserve has compressed pages repacked before it is refused.
    ///
    /// # Errors
    /// `NoSpace` when the disk is full and none of this helps; the error of a checkpoint.
    pub(in crate::db) async fn reserve(
        self: &Arc<Self>,
        pages: usize,
        kind: ReservationKind,
    ) -> Result<BlockReservation> {
        if let Some(reservation) = self.try_reserve(pages, kind) {
            return Ok(reservation);
        }
        // One at a time: the blocks that one of them frees are enough for many.
        let _turn = self.making.acquire(1).await;
        if let Some(reservation) = self.try_reserve(pages, kind) {
            return Ok(reservation);
        }
        let reservations = self.clone();
        thread::run("nofault-grow", move || reservations.make(pages, kind)).await?
    }

    fn make(&self, pages: usize, kind: ReservationKind) -> Result<BlockReservation> {
        self.commits.check_poison()?;
        let (mut checkpoints, mut may_squeeze) = (0, kind != ReservationKind::Ordinary);
        loop {
            if let Some(reservation) = self.try_reserve(pages, kind) {
                return Ok(reservation);
            }
            if self.store.grow()? {
                continue;
            }
            match self.free_blocks.get() {
                Some(free_blocks) if checkpoints < CHECKPOINTS => {
                    free_blocks.checkpoint()?;
                    checkpoints += 1;
                }
                Some(free_blocks) if may_squeeze => may_squeeze = free_blocks.squeeze(pages as u64)? > 0,
                _ => break,
            }
        }
        self.refused.fetch_add(1, Ordering::Relaxed);
        let page_bytes = self.store.page_bytes();
        let help = match kind {
            ReservationKind::Ordinary => "or delete rows or drop tables, for which there is a reserve",
            ReservationKind::Reserve | ReservationKind::Packing => {
                "end snapshots that keep old pages, or delete fewer rows at a time"
            }
        };
        let what = format!(
            "the data file has no free blocks for {pages} more pages of {page_bytes} bytes, and the disk has none for it to grow: free \
             space on the disk, {help}; commits go on by themselves then"
        );
        Err(Error::new(ErrorKind::NoSpace, what))
    }
}
