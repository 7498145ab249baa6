//! What a database tells by `tracing`, with the feature `tracing`: events and spans of target `nofault`.
//!
//! Names, levels and fields are part of the interface: later versions may add some, and do not change these. Without the
//! feature nothing of this is compiled. No event is made by a read or a commit that goes well: only by what is listed here.
//!
//! | span | level | fields | around |
//! |---|---|---|---|
//! | `database` | INFO | `folder` | opening and closing, and all that the database's own threads do; `folder` is empty for disks of the caller's choice. It has no parent, as the threads live longer than the call that opens |
//! | `open` | INFO | | opening, with recovery; in `database` |
//! | `checkpoint` | DEBUG | | one checkpoint |
//! | `compaction` | DEBUG | `work` | one pass over the file: `shrink` makes it shorter, `pack` repacks compressed pages, `order` puts a table in order |
//!
//! | event | level | fields | when |
//! |---|---|---|---|
//! | `opened` | INFO | `commit`, `replayed`, `disk`, `direct`, `ms` | a database was opened: its newest commit, the commits replayed from the log, kind of the disk, whether it bypasses the page cache |
//! | `open_failed` | ERROR | `error`, `ms` | it was not |
//! | `open_progress` | INFO | `step`, `done`, `ms` | once a second while a database is opened: nodes of the page table read (`page_table`), then commits replayed (`replay`) |
//! | `repaired` | WARN | `what` | opening repaired damage without loss |
//! | `closed` | INFO | `ms` | the threads of a database have ended, after its last checkpoint |
//! | `checkpoint_made` | DEBUG | `commit`, `ms` | a checkpoint was made |
//! | `checkpoint_failed` | WARN | `error`, `ms` | one failed; commits go on while the log has space |
//! | `compaction_ended` | DEBUG | `work`, `ending`, `pages`, `ms` | a pass ended: how, and the pages that it moved |
//! | `stall` | WARN | `wait`, `ms` | a wait longer than [`STALL`] is over: `commit` (until durable), `read` (until a page is in memory), `frames` (for free frames), `log_space` |
//! | `checksum_retry` | WARN | `page` | a block was not what had been written; it is read again |
//! | `corruption` | ERROR | `page`, `error` | the second read did not help, and the operation gets the error |
//! | `poisoned` | ERROR | `error` | nothing is promised any more: reads go on, commits fail until the database is reopened |
//!
//! The database's threads make their events in its span `database`; events of a call, as a stalled commit, lie in the span of the
//! task or thread that called. A subscriber is called outside the locks that reads and commits take.
//!
//! ```
//! # #[cfg(feature = "tracing")] {
//! use std::sync::{Arc, Mutex};
//! use tracing::{Event, Metadata, Subscriber, span};
//!
//! /// Collects names. A program would take a subscriber of the crate `tracing-subscriber`.
//! struct Names(Arc<Mutex<Vec<&'static str>>>);
//!
//! impl Subscriber for Names {
//!     fn enabled(&self, metadata: &Metadata<'_>) -> bool {
//!         metadata.target() == "nofault"
//!     }
//!     fn event(&self, event: &Event<'_>) {
//!         self.0.lock().unwrap().push(event.metadata().name());
//!     }
//!     fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
//!         span::Id::from_u64(1)
//!     }
//!     fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
//!     fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
//!     fn enter(&self, _: &span::Id) {}
//!     fn exit(&self, _: &span::Id) {}
//! }
//!
//! let names = Arc::default();
//! tracing::subscriber::set_global_default(Names(Arc::clone(&names))).unwrap();
//! let folder = tempfile::tempdir().unwrap();
//! let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
//! let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
//! db.create_table("stock")?.put("apples", "12")?;
//! db.checkpoint()?;
//! db.close()?;
//! let names = names.lock().unwrap();
//! assert!(["opened", "checkpoint_made", "closed"].iter().all(|name| names.contains(name)));
//! # }
//! # Ok::<(), nofault::error::Error>(())
//! ```

#![cfg_attr(not(feature = "tracing"), expect(unused_variables, reason = "nothing is told without the feature"))]

use std::fmt::Display;
use std::path::Path;
use std::time::{Duration, Instant};

use nofault_io::disk::DiskInfo;

use crate::ids::{CommitSeq, PageId};

/// The time beyond which a wait is a `stall`. The event is made when the wait is over.
pub const STALL: Duration = Duration::from_secs(1);

/// Time between two events about the progress of an opening.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// Number of things done between two looks at the clock.
const LOOK_EVERY: u64 = 64;

/// Makes an event. The only place that makes one.
macro_rules! tell {
    ($level:ident, $name:literal, { $($fields:tt)* }, $message:literal) => {
        #[cfg(feature = "tracing")]
        tracing::event!(name: $name, target: "nofault", tracing::Level::$level, { $($fields)* }, $message);
    };
}

/// Enters a span. The only place that makes one.
macro_rules! enter {
    ($level:ident, $name:literal, { $($fields:tt)* } $($parent:tt)*) => {
        SpanGuard {
            #[cfg(feature = "tracing")]
            _span: tracing::span!(target: "nofault", $($parent)* tracing::Level::$level, $name, $($fields)*).entered(),
        }
    };
}

/// A span that this thread is in until this is dropped.
pub(crate) struct SpanGuard {
    #[cfg(feature = "tracing")]
    _span: tracing::span::EnteredSpan,
}

impl SpanGuard {
    /// Leaves the span.
    pub(crate) fn leave(self) {}
}

/// The span that a thread was in, for work that another thread does for it.
#[derive(Debug, Clone)]
pub(crate) struct Context {
    #[cfg(feature = "tracing")]
    span: tracing::Span,
}

impl Context {
    /// Returns the present span of this thread.
    pub(crate) fn current() -> Self {
        Self {
            #[cfg(feature = "tracing")]
            span: tracing::Span::current(),
        }
    }

    /// Enters the span on this thread.
    pub(crate) fn enter(&self) -> SpanGuard {
        SpanGuard {
            #[cfg(feature = "tracing")]
            _span: self.span.clone().entered(),
        }
    }
}

/// Enters the span of a database in `folder`; `None` for disks of the caller's choice.
pub(crate) fn database(folder: Option<&Path>) -> SpanGuard {
    enter!(INFO, "database", { folder = %folder.unwrap_or(Path::new("")).display() } parent: None,)
}

/// Enters the span of an opening.
pub(crate) fn open() -> SpanGuard {
    enter!(INFO, "open", {})
}

/// The progress of a step of an opening, told once a second.
pub(crate) struct Progress {
    step: &'static str,
    done: u64,
    begun: Instant,
    told: Duration,
}

impl Progress {
    pub(crate) fn new(step: &'static str) -> Self {
        Self { step, done: 0, begun: Instant::now(), told: Duration::ZERO }
    }

    /// Returns how many things are done.
    pub(crate) fn done(&self) -> u64 {
        self.done
    }

    /// Counts things as done. Looks at the clock now and then.
    pub(crate) fn add(&mut self, count: u64) {
        let before = self.done / LOOK_EVERY;
        self.done += count;
        if cfg!(feature = "tracing") && self.done / LOOK_EVERY != before {
            self.look();
        }
    }

    fn look(&mut self) {
        let took = self.begun.elapsed();
        if took >= self.told + TELL_EVERY {
            self.told = took;
            let Self { step, done, begun, .. } = self;
            tell!(INFO, "open_progress", { step, done, ms = ms(*begun) }, "opening");
        }
    }
}

/// Makes a checkpoint in a new span, and tells how it ended. `work` returns the commit of the newest checkpoint, and
/// whether it has made that.
///
/// # Errors
/// The error of `work`.
pub(crate) fn checkpoint<E: Display>(work: impl FnOnce() -> Result<(CommitSeq, bool), E>) -> Result<CommitSeq, E> {
    let _span = enter!(DEBUG, "checkpoint", {});
    let begun = Instant::now();
    match work() {
        Ok((commit, is_new)) => {
            if is_new {
                tell!(DEBUG, "checkpoint_made", { commit = commit.0, ms = ms(begun) }, "made a checkpoint");
            }
            Ok(commit)
        }
        Err(error) => {
            tell!(WARN, "checkpoint_failed", { %error, ms = ms(begun) }, "a checkpoint failed");
            Err(error)
        }
    }
}

/// Makes a pass over the data file in a new span, and tells how it ended: `ended` returns its ending and the number of
/// pages that it moved.
pub(crate) fn compaction<T, D: Display>(work: &str, pass: impl FnOnce() -> T, ended: impl FnOnce(&T) -> (D, u64)) -> T {
    let _span = enter!(DEBUG, "compaction", { work });
    let begun = Instant::now();
    let outcome = pass();
    let (ending, pages) = ended(&outcome);
    tell!(DEBUG, "compaction_ended", { work, %ending, pages, ms = ms(begun) }, "a pass over the data file ended");
    outcome
}

pub(crate) fn opened(commit: CommitSeq, replayed: u64, disk: &DiskInfo, begun: Instant) {
    tell!(INFO, "opened", { commit = commit.0, replayed, disk = disk.kind, direct = disk.direct, ms = ms(begun) }, "opened");
}

pub(crate) fn open_failed(error: &dyn Display, begun: Instant) {
    tell!(ERROR, "open_failed", { %error, ms = ms(begun) }, "the database was not opened");
}

pub(crate) fn repaired(what: &str) {
    tell!(WARN, "repaired", { what }, "opening repaired damage without loss");
}

pub(crate) fn closed(begun: Instant) {
    tell!(INFO, "closed", { ms = ms(begun) }, "closed");
}

/// Tells of a wait longer than [`STALL`].
#[inline]
pub(crate) fn waited(wait: &str, took: Duration) {
    if took > STALL {
        tell!(WARN, "stall", { wait, ms = millis(took) }, "an operation waited long");
    }
}

pub(crate) fn checksum_retry(page: PageId) {
    tell!(WARN, "checksum_retry", { page = page.0 }, "a checksum is wrong; the page is read again");
}

pub(crate) fn corruption(page: PageId, error: &dyn Display) {
    tell!(ERROR, "corruption", { page = page.0, %error }, "a page is damaged");
}

pub(crate) fn poisoned(error: &dyn Display) {
    tell!(ERROR, "poisoned", { %error }, "the log failed: commits fail until the database is reopened");
}

/// Returns the milliseconds since `begun`.
#[cfg(feature = "tracing")]
fn ms(begun: Instant) -> u64 {
    millis(begun.elapsed())
}

#[cfg(feature = "tracing")]
fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
