//! Makes checkpoints when they are due, and keeps the log short.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Checkpointer;
use crate::background::{BackgroundWork, Kind, Next, Signal};
use crate::error::Result;
use crate::format::CommitSeq;
use crate::pages::Store as _;

/// Times between two looks at whether a checkpoint is due: usually, when many blocks wait for one, and after a failure.
const PAUSE: Duration = Duration::from_secs(1);
const SHORT_PAUSE: Duration = Duration::from_millis(100);
/// Part of the blocks waiting for the next checkpoint from which on it is looked for more often.
const NEAR_SHARE: f64 = 0.25;
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(5);

/// Makes checkpoints when they are due; this ends when it is dropped.
pub(crate) struct Background {
    _work: BackgroundWork,
}

impl Background {
    /// Starts the work. The database counts as idle when `idle_after` has passed without a commit.
    ///
    /// # Errors
    /// `NoResources` when the system has no threads left.
    pub(crate) fn start(checkpointer: Arc<Checkpointer>, idle_after: Duration) -> Result<Self> {
        let notifier = checkpointer.log.pressure();
        // Commits waiting for a checkpoint to free log space would wait for ever.
        let in_panic = checkpointer.log.poison_in_panic();
        let idle = IdleTime::new(checkpointer.pool.visible(), idle_after);
        let mut rounds = Rounds { checkpointer, pause: PAUSE, idle, saved: None };
        let round = move |signal: &Signal, _| rounds.round(signal);
        let work = BackgroundWork::start(Kind::Checkpoints, notifier, Next::Wait(Some(PAUSE)), in_panic, round)?;
        Ok(Self { _work: work })
    }
}

/// The state of the work between its rounds.
struct Rounds {
    checkpointer: Arc<Checkpointer>,
    pause: Duration,
    idle: IdleTime,
    /// The visible commit of the checkpoint that was made because the database was idle. There is one at most for each: a
    /// large commit under way has records in the log that no checkpoint can take over.
    saved: Option<CommitSeq>,
}

impl Rounds {
    fn round(&mut self, signal: &Signal) -> Next {
        let checkpointer = &*self.checkpointer;
        let visible = checkpointer.pool.visible();
        let is_idle = self.idle.is_over(visible);
        let is_first = is_idle && self.saved != Some(visible);
        let is_due = checkpointer.is_due() || (is_first && checkpointer.log.has_records());
        if is_due {
            let begun = checkpointer.log.checkpoint_begins();
            let outcome = checkpointer.checkpoint_beside_commits(|| signal.is_stopped());
            self.pause = if outcome.is_err() { PAUSE_AFTER_FAILURE } else { PAUSE };
            match outcome {
                Ok(_) => {
                    checkpointer.log.checkpoint_made(begun);
                    self.saved = is_idle.then_some(visible).or(self.saved);
                }
                Err(error) => {
                    // The commits that wait for log space receive the error and decide. An immediate retry would only
                    // burn CPU time.
                    checkpointer.log.checkpoint_failed(&error);
                    signal.sleep(SHORT_PAUSE);
                }
            }
        }
        checkpointer.free_kept();
        // Done in each round, because another thread may have kept the log from shrinking in the last one.
        if is_idle {
            checkpointer.shrink_log_to_least();
        } else {
            checkpointer.shrink_log();
        }
        let is_near = checkpointer.deferred_share() >= NEAR_SHARE;
        Next::Wait(Some(if is_near { self.pause.min(SHORT_PAUSE) } else { self.pause }))
    }
}

/// Measures how long no commit has become visible.
pub(crate) struct IdleTime {
    visible: CommitSeq,
    since: Instant,
    /// After how long the database is idle.
    pub(crate) after: Duration,
}

impl IdleTime {
    /// Begins to measure; `visible` is the newest commit. The database is idle when `after` has passed without another.
    pub(crate) fn new(visible: CommitSeq, after: Duration) -> Self {
        Self { visible, since: Instant::now(), after }
    }

    /// Returns whether no commit has become visible for that long; `visible` is the newest one.
    pub(crate) fn is_over(&mut self, visible: CommitSeq) -> bool {
        if visible != self.visible {
            (self.visible, self.since) = (visible, Instant::now());
        }
        self.since.elapsed() >= self.after
    }

    /// Counts the commits up to `visible` as none: compaction made them, or they became visible during it.
    pub(crate) fn ignore(&mut self, visible: CommitSeq) {
        self.visible = visible;
    }
}
