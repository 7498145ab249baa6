//! Gives space of the data file back to the file system: moves the pages at its end to free blocks before it, and cuts
//! it.
//!
//! Nothing of the content changes and nothing is logged; [`Relocator`] moves the pages. A pass consists of these steps:
//! 1. No page gets a block in the end any more, and the pages there are moved, a megabyte at a time.
//! 2. A checkpoint writes to other blocks what a move cannot: changed pages in memory and nodes of the page table. It
//!    makes the blocks that the pages have left free.
//! 3. The file is cut behind its last used block ([`Writer::cut_free_end`](crate::buffer_pool::Writer::cut_free_end)).
//!
//! Kept true by:
//! 1. A pass ends: its list of pages is made once, and another pass follows only when this one has made the file
//!    shorter.
//! 2. The file never grows for it.
//! 3. A snapshot or a backup that holds blocks in the end ends the pass; [`ShrinkEnding`] names it. The background
//!    thread tries again after a pause, which doubles for as long as there is no gain.
//! 4. One thread at a time shrinks a file.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::background;
use crate::buffer_pool::{BufferPool, ReaderInfo, Relocator};
use crate::checkpoint::Checkpointer;
use crate::error::Result;
use crate::format::CommitSeq;
use crate::pages::Store as _;
use crate::sync::notifier::Notifier;

/// Rest after a piece of work, as a multiple of the time that it took, while the database is in use.
const REST: u32 = 9;
/// Greatest multiple of [`REST`] while operations wait for frames or for log space.
const SLOWDOWN_MAX: u32 = 16;
/// The background thread shrinks the file when one part in so many of it would be given back …
const EXCESS_SHARE: u64 = 8;
/// … and at least so many blocks.
const EXCESS_BLOCKS: u64 = 512;
/// Pause after a pass without gain; it doubles up to [`PAUSE_MAX`].
const PAUSE: Duration = Duration::from_secs(10);
const PAUSE_MAX: Duration = Duration::from_secs(600);

/// Makes one data file shorter.
pub(crate) struct Shrinker {
    checkpointer: Arc<Checkpointer>,
    pool: BufferPool,
    /// Held by the thread that shrinks the file.
    turn: Mutex<()>,
    stats: Mutex<ShrinkStats>,
}

/// What the database's own compaction does and has done since the database was opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShrinkStats {
    /// Whether pages are being moved now.
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

/// The reason for which a pass over the end of the data file ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShrinkEnding {
    /// The file is as short as it is to be: at least nine tenths of it are in use, but for the blocks kept free for
    /// deletes.
    Done,
    /// Old page versions in the end of the file are kept for this reader, the oldest one.
    HeldBy {
        /// The commit that the reader sees.
        commit: CommitSeq,
        /// Age of the reader in nanoseconds.
        age_ns: u64,
    },
    /// The file did not become shorter: its pages changed meanwhile, or the blocks before its end are used.
    NoGain,
    /// The caller ended it, or the database was closed.
    Cancelled,
    /// An error of the disk, or damage, in words for a person.
    Failed(String),
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
pub(crate) struct ShrinkProgress {
    /// Pages moved from the end.
    pub(crate) pages_moved: u64,
    /// Bytes by which the file became shorter.
    pub(crate) bytes_given_back: u64,
}

impl Shrinker {
    pub(crate) fn new(checkpointer: Arc<Checkpointer>, pool: BufferPool) -> Self {
        Self { checkpointer, pool, turn: Mutex::default(), stats: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, ShrinkStats> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the statistics.
    pub(crate) fn stats(&self) -> ShrinkStats {
        self.lock().clone()
    }

    /// Makes the file as short as it can be. Calls `rest` after each piece with the time that it took, the pages that
    /// it moved, and the progress; `false` ends the work. To be called after a checkpoint. Blocks.
    ///
    /// # Errors
    /// As [`Relocator::defragment`] and [`Checkpointer::checkpoint`].
    pub(crate) fn shrink(
        &self,
        relocator: &mut Relocator,
        rest: &mut dyn FnMut(Duration, u64, &ShrinkProgress) -> bool,
    ) -> Result<(ShrinkProgress, ShrinkEnding)> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.lock().is_working = true;
        let mut progress = ShrinkProgress::default();
        let ending = self.passes(relocator, &mut progress, rest);
        let mut stats = self.lock();
        stats.is_working = false;
        stats.last_ending = Some(match &ending {
            Ok(ending) => ending.clone(),
            Err(error) => ShrinkEnding::Failed(error.to_string()),
        });
        drop(stats);
        Ok((progress, ending?))
    }

    fn passes(
        &self,
        relocator: &mut Relocator,
        progress: &mut ShrinkProgress,
        rest: &mut dyn FnMut(Duration, u64, &ShrinkProgress) -> bool,
    ) -> Result<ShrinkEnding> {
        loop {
            let tail = relocator.plan_tail();
            let was_long = tail.is_some();
            if let Some(mut tail) = tail {
                self.lock().passes += 1;
                loop {
                    let started = Instant::now();
                    let Some(moved) = self.checkpointer.move_tail(relocator, &mut tail)? else { break };
                    progress.pages_moved += moved;
                    self.lock().bytes_moved += moved * self.pool.page_bytes() as u64;
                    if !rest(started.elapsed(), moved, progress) {
                        return Ok(ShrinkEnding::Cancelled);
                    }
                }
                self.checkpointer.checkpoint()?;
                relocator.checkpoint_made();
            }
            let given_back = self.cut(0)?;
            progress.bytes_given_back += given_back;
            if !was_long {
                return Ok(ShrinkEnding::Done);
            }
            if given_back == 0 {
                return Ok(match self.pool.readers().first() {
                    Some(ReaderInfo { commit, age_ns, .. }) => {
                        ShrinkEnding::HeldBy { commit: *commit, age_ns: *age_ns }
                    }
                    None => ShrinkEnding::NoGain,
                });
            }
        }
    }

    /// Cuts the free end of the file if that makes it at least so much shorter. Returns by how many bytes.
    fn cut(&self, least_bytes: u64) -> Result<u64> {
        let given_back = self.pool.writer().cut_free_end(least_bytes)?;
        self.lock().bytes_given_back += given_back;
        Ok(given_back)
    }

    /// Whether the file is so much longer than it has to be that shrinking it is worth the work.
    fn is_due(&self) -> bool {
        let (file, excess) = self.pool.excess_blocks();
        excess >= EXCESS_BLOCKS.max(file / EXCESS_SHARE)
    }
}

/// The thread that shrinks the file when it has become too long; it ends when this is dropped.
pub(crate) struct ShrinkThread {
    notifier: Arc<Notifier>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ShrinkThread {
    /// Starts the thread. `relocator` is the queue by which it reads.
    ///
    /// # Errors
    /// `NoSpace` when the system has no threads or descriptors left.
    pub(crate) fn start(shrinker: Arc<Shrinker>, relocator: Relocator) -> Result<Self> {
        let (notifier, stop) = (Arc::new(Notifier::new()?), Arc::new(AtomicBool::new(false)));
        notifier.set_listening(true);
        shrinker.checkpointer.notify_after_checkpoints(Arc::clone(&notifier));
        let mut work = ShrinkWork {
            shrinker,
            relocator,
            notifier: Arc::clone(&notifier),
            stop: Arc::clone(&stop),
            pause: PAUSE,
            slowdown: 1,
        };
        let thread = background::start("nofault-shrink", move || work.run())?;
        Ok(Self { notifier, stop, thread: Some(thread) })
    }
}

impl Drop for ShrinkThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.notifier.notify();
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed already.
            let _ = thread.join();
        }
    }
}

/// The loop of the thread.
struct ShrinkWork {
    shrinker: Arc<Shrinker>,
    relocator: Relocator,
    notifier: Arc<Notifier>,
    stop: Arc<AtomicBool>,
    /// Pause after the next pass without gain.
    pause: Duration,
    /// The present multiple of [`REST`].
    slowdown: u32,
}

/// Counters that show whether the database is in use, and whether operations wait.
#[derive(PartialEq, Eq)]
struct Activity {
    visible: CommitSeq,
    lookups: u64,
    waits: u64,
}

impl ShrinkWork {
    fn run(&mut self) {
        let mut most = None;
        while !self.stop.load(Ordering::SeqCst) {
            self.notifier.wait(None, most);
            most = None;
            while !self.stop.load(Ordering::SeqCst) && self.shrinker.is_due() {
                let gained = self.pass();
                if gained {
                    self.pause = PAUSE;
                    continue;
                }
                // Neither each checkpoint nor a reader that stays makes it try again at once.
                self.sleep(self.pause);
                self.pause = (self.pause * 2).min(PAUSE_MAX);
                most = Some(Duration::ZERO);
                break;
            }
        }
    }

    /// Makes one attempt. Returns whether the file became shorter.
    fn pass(&mut self) -> bool {
        let Self { shrinker, relocator, .. } = self;
        let (shrinker, stop, notifier) = (Arc::clone(shrinker), Arc::clone(&self.stop), Arc::clone(&self.notifier));
        let slowdown = &mut self.slowdown;
        let mut before = activity(&shrinker.pool);
        let mut rest = |took: Duration, moved: u64, _: &ShrinkProgress| {
            let now = activity(&shrinker.pool);
            if now.waits > before.waits {
                *slowdown = (*slowdown * 2).min(SLOWDOWN_MAX);
            } else {
                *slowdown = (*slowdown / 2).max(1);
            }
            if now != before && moved > 0 {
                sleep(&notifier, &stop, took * REST * *slowdown);
            }
            before = activity(&shrinker.pool);
            !stop.load(Ordering::SeqCst)
        };
        shrinker.shrink(relocator, &mut rest).is_ok_and(|(progress, _)| progress.bytes_given_back > 0)
    }

    fn sleep(&self, time: Duration) {
        sleep(&self.notifier, &self.stop, time);
    }
}

/// Sleeps for a time, or until the thread is to end. Notifications of checkpoints do not shorten it.
fn sleep(notifier: &Notifier, stop: &AtomicBool, time: Duration) {
    let until = Instant::now() + time;
    while !stop.load(Ordering::SeqCst) {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        notifier.wait(None, Some(left));
    }
}

fn activity(pool: &BufferPool) -> Activity {
    let stats = pool.stats();
    Activity { visible: pool.visible(), lookups: stats.hits + stats.misses, waits: stats.frame_waits }
}
