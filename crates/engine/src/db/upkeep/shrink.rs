//! Gives space of the data file back to the file system: moves the pages at its end to free blocks before it, and cuts
//! it.
//!
//! Nothing of the content changes and nothing is logged; [`Relocator`] moves the pages. A pass consists of these steps:
//! 1. No page gets a block in the end any more, and the pages there are moved, a megabyte at a time.
//! 2. A checkpoint writes to other blocks what a move cannot: changed pages in memory and nodes of the page table. It
//!    makes the blocks that the pages have left free. Pages that others have changed since may have left an old
//!    version in the end, which the checkpoint names: then both steps are repeated, a few times.
//! 3. The file is cut behind its last used block ([`Writer::cut_free_end`](crate::buffer_pool::Writer::cut_free_end)).
//!
//! Kept true by:
//! 1. A pass ends: its list of pages is made once, and another pass follows only when this one has made the file
//!    shorter.
//! 2. The file never grows for it.
//! 3. A snapshot or a backup holding blocks in the end ends the pass; [`ShrinkEnding`] names it. The background
//!    thread tries again after a pause, which doubles for as long as there is no gain.
//! 4. One thread at a time shrinks a file.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::buffer_pool::{BufferPool, Relocator, TailMove};
use crate::checkpoint::Checkpointer;
use crate::error::Result;
use crate::events;
use crate::format::CommitSeq;
use crate::pages::Store as _;
use crate::sync::notifier::Notifier;

/// The file is made shorter when one part in so many of it would be given back, of a database in use and of an idle one
/// …
const EXCESS_SHARE: u64 = 8;
const EXCESS_SHARE_IDLE: u64 = 64;
/// … and at least so many blocks.
const EXCESS_BLOCKS: u64 = 512;
const EXCESS_BLOCKS_IDLE: u64 = 128;
/// Most checkpoints of one pass. A page changed while it should move is written elsewhere by the first or the
/// second one, and its old block is free after the one that follows, unless a view of it lives longer.
const ROUNDS_MAX: usize = 5;

/// Makes one data file shorter.
pub(in crate::db) struct Shrinker {
    checkpointer: Arc<Checkpointer>,
    pool: BufferPool,
    /// Held by the thread that shrinks the file.
    turn: Mutex<()>,
    stats: Mutex<CompactionStats>,
}

/// The passes over the end of the data file that make it shorter, counted since the database was opened: the passes that
/// the database makes by itself, and the passes of [`Db::shrink`](crate::Db::shrink) and
/// [`Db::compact`](crate::Db::compact).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompactionStats {
    /// Whether pages at the end of the data file are being moved now.
    pub is_working: bool,
    /// Passes over the end of the data file.
    pub passes: u64,
    /// Bytes of pages moved from the end of the data file to free blocks before it.
    pub bytes_moved: u64,
    /// Bytes given back to the file system.
    pub bytes_given_back: u64,
    /// The end of the last pass; `None` before the first.
    pub last_ending: Option<ShrinkEnding>,
}

/// The reason for which a pass over the end of the data file, or over compressed pages, ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShrinkEnding {
    /// The file is as short as it is to be: about one block is free for sixteen in use, or as many as deletes and
    /// checkpoints need. Or the compressed pages need fewer blocks than before.
    Done,
    /// Old page versions in the end of the file are kept for this reader, the oldest one.
    HeldBy {
        /// The commit that the reader sees.
        commit: CommitSeq,
        /// Age of the reader in nanoseconds.
        age_ns: u64,
    },
    /// The file did not become shorter: its pages changed in between, or the blocks before its end are used.
    NoGain,
    /// The caller ended it, or the database was closed.
    Cancelled,
    /// An error of the disk, or damage, in words for a person.
    Failed(String),
}

impl ShrinkEnding {
    /// Returns the ending of a pass with this outcome.
    fn of(outcome: &Result<Self>) -> Self {
        outcome.clone().unwrap_or_else(|error| Self::Failed(error.to_string()))
    }
}

impl fmt::Display for ShrinkEnding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => write!(out, "done"),
            Self::HeldBy { commit, age_ns } => {
                let age = Duration::from_nanos(*age_ns).as_secs();
                write!(out, "held by a reader that sees commit {commit} and is {age} s old")
            }
            Self::NoGain => write!(out, "no gain"),
            Self::Cancelled => write!(out, "cancelled"),
            Self::Failed(why) => write!(out, "failed: {why}"),
        }
    }
}

/// The progress of a pass.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::db) struct ShrinkProgress {
    /// Pages moved from the end.
    pub(in crate::db) pages_moved: u64,
    /// Bytes by which the file became shorter.
    pub(in crate::db) bytes_given_back: u64,
}

impl Shrinker {
    pub(in crate::db) fn new(checkpointer: Arc<Checkpointer>, pool: BufferPool) -> Self {
        Self { checkpointer, pool, turn: Mutex::default(), stats: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, CompactionStats> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the statistics.
    pub(in crate::db) fn stats(&self) -> CompactionStats {
        self.lock().clone()
    }

    /// Makes the file as short as it can be. Calls `rest` after each piece with the time that it took, the pages that
    /// it moved, and the progress; `false` ends the work. To be called after a checkpoint. Blocks.
    ///
    /// # Errors
    /// As [`Relocator::defragment`] and [`Checkpointer::checkpoint`].
    pub(in crate::db) fn shrink(
        &self,
        relocator: &mut Relocator,
        rest: &mut dyn FnMut(Duration, u64, &ShrinkProgress) -> bool,
    ) -> Result<(ShrinkProgress, ShrinkEnding)> {
        let mut progress = ShrinkProgress::default();
        let pass = || {
            let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
            self.lock().is_working = true;
            let ending = self.passes(relocator, &mut progress, rest);
            let mut stats = self.lock();
            stats.is_working = false;
            stats.last_ending = Some(ShrinkEnding::of(&ending));
            (ending, progress)
        };
        let ended = |(ending, progress): &(_, ShrinkProgress)| (ShrinkEnding::of(ending), progress.pages_moved);
        let (ending, progress) = events::compaction("shrink", pass, ended);
        Ok((progress, ending?))
    }

    fn passes(
        &self,
        relocator: &mut Relocator,
        progress: &mut ShrinkProgress,
        rest: &mut dyn FnMut(Duration, u64, &ShrinkProgress) -> bool,
    ) -> Result<ShrinkEnding> {
        loop {
            let (began, before) = (Instant::now(), progress.bytes_given_back);
            let Some(tail) = relocator.plan_tail()? else {
                // Only free blocks behind its last used one are left to be cut.
                progress.bytes_given_back += self.cut()?;
                return Ok(ShrinkEnding::Done);
            };
            self.lock().passes += 1;
            if !self.pass(relocator, tail, progress, rest)? {
                return Ok(ShrinkEnding::Cancelled);
            }
            if progress.bytes_given_back == before {
                return Ok(self.hindrance(began));
            }
        }
    }

    /// Empties the end of the file and cuts it, as far as that is possible. Returns false when the work was cancelled.
    fn pass(
        &self,
        relocator: &mut Relocator,
        mut tail: TailMove,
        progress: &mut ShrinkProgress,
        rest: &mut dyn FnMut(Duration, u64, &ShrinkProgress) -> bool,
    ) -> Result<bool> {
        for _ in 0..ROUNDS_MAX {
            if !self.empty_tail(relocator, &mut tail, progress, rest)? {
                return Ok(false);
            }
            self.checkpointer.checkpoint()?;
            relocator.checkpoint_made();
            progress.bytes_given_back += self.cut()?;
            if !relocator.plan_again(&mut tail)? {
                break;
            }
        }
        Ok(true)
    }

    /// Returns the reason for which a pass that began then has made the file no shorter.
    fn hindrance(&self, began: Instant) -> ShrinkEnding {
        let readers = self.pool.readers();
        // A younger reader keeps nothing that this pass has moved.
        let oldest = readers.first().filter(|reader| u128::from(reader.age_ns) > began.elapsed().as_nanos());
        oldest.map_or(ShrinkEnding::NoGain, |reader| ShrinkEnding::HeldBy {
            commit: reader.commit,
            age_ns: reader.age_ns,
        })
    }

    /// Moves the pages out of the end of the file, as far as they can be moved. Returns false when the work was
    /// cancelled.
    fn empty_tail(
        &self,
        relocator: &mut Relocator,
        tail: &mut TailMove,
        progress: &mut ShrinkProgress,
        rest: &mut dyn FnMut(Duration, u64, &ShrinkProgress) -> bool,
    ) -> Result<bool> {
        loop {
            let started = Instant::now();
            let Some(moved) = self.checkpointer.move_tail(relocator, tail)? else { return Ok(true) };
            progress.pages_moved += moved;
            self.lock().bytes_moved += moved * self.pool.page_bytes() as u64;
            if !rest(started.elapsed(), moved, progress) {
                return Ok(false);
            }
        }
    }

    /// Cuts the free end of the file. Returns by how many bytes.
    fn cut(&self) -> Result<u64> {
        let given_back = self.pool.writer().cut_free_end()?;
        self.lock().bytes_given_back += given_back;
        Ok(given_back)
    }

    /// Cuts the free end of the file after the last checkpoint, where an idle database would be made shorter. No page is moved: closing must
    /// not take long. After an error the file is as long as it was.
    pub(in crate::db) fn cut_before_closing(&self) {
        if self.is_due(true) {
            let _ = self.cut();
        }
    }

    /// Returns whether so much of the file would be given back that it is worth the work. While the database is in use
    /// (not `is_idle`), blocks waiting for a checkpoint to be free count as used: others will wait soon.
    pub(in crate::db) fn is_due(&self, is_idle: bool) -> bool {
        let excess = self.pool.excess_blocks();
        let (blocks, least, share) = match is_idle {
            true => (excess.idle, EXCESS_BLOCKS_IDLE, EXCESS_SHARE_IDLE),
            false => (excess.in_use, EXCESS_BLOCKS, EXCESS_SHARE),
        };
        blocks >= least.max(excess.file / share)
    }

    /// Makes a checkpoint, which makes the blocks free that pages have left. Blocks.
    ///
    /// # Errors
    /// As [`Checkpointer::checkpoint`].
    pub(in crate::db) fn checkpoint(&self) -> Result<()> {
        self.checkpointer.checkpoint().map(drop)
    }

    /// Sets the notifier of the thread to be woken after each checkpoint.
    pub(in crate::db) fn notify_after_checkpoints(&self, notifier: Arc<Notifier>) {
        self.checkpointer.notify_after_checkpoints(notifier);
    }
}
