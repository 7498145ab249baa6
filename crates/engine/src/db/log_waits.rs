//! The waits of commits for the log: until a record is durable, until the log states that it is, until the log has free space.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::wait::ready_sent;
use crate::error::Result;
use crate::events;
use crate::pages::{CommitLog, Durability, LogPosition, Store};
use crate::transaction::{CommitReceipt, Commits};

/// Time within which a commit has usually published the record that it appended.
const OTHERS_PUBLISH_WITHIN: Duration = Duration::from_millis(1);

/// A function that frees log space for so many bytes on the calling thread, with a checkpoint if necessary. It returns
/// false when the caller should try again.
pub(super) type MakeLogSpace = Box<dyn Fn(usize) -> Result<bool> + Send + Sync>;

/// Waits for free space and for durability of the log of a database.
pub(crate) struct LogWaits<S: Store, L: CommitLog> {
    log: Arc<L>,
    commits: Arc<Commits<S, L>>,
    /// The function that frees log space, in a database without background threads. It blocks.
    make_space: OnceLock<MakeLogSpace>,
    /// Set in a database that is nothing until it is finished: its end alone is durable.
    is_unfinished: AtomicBool,
}

impl<S: Store, L: CommitLog> LogWaits<S, L> {
    pub(super) fn new(log: Arc<L>, commits: Arc<Commits<S, L>>) -> Self {
        Self { log, commits, make_space: OnceLock::new(), is_unfinished: AtomicBool::new(false) }
    }

    /// From now on no call waits until anything is durable: the database is nothing until it is finished. Called when it is opened.
    pub(super) fn leave_to_the_end(&self) {
        self.is_unfinished.store(true, Ordering::Relaxed);
    }

    /// Returns whether the database is nothing until it is finished, so that no commit or load is durable for itself.
    pub(super) fn is_unfinished(&self) -> bool {
        self.is_unfinished.load(Ordering::Relaxed)
    }

    /// Returns the durability that a commit gets which asks for `durability`.
    pub(super) fn granted(&self, durability: Durability) -> Durability {
        if self.is_unfinished() { Durability::Deferred } else { durability }
    }

    /// Sets the function that a commit calls when it finds the log full. Called once, when the database is opened.
    pub(super) fn make_space_by(&self, make_space: MakeLogSpace) {
        let set = self.make_space.set(make_space);
        debug_assert!(set.is_ok(), "set once, when the database is opened");
    }

    /// Waits until a commit is as durable and visible as `durability` asks.
    ///
    /// # Errors
    /// `Poisoned` after a failure of the log.
    pub(super) async fn acknowledged(&self, committed: CommitReceipt, durability: Durability) -> Result<()> {
        let position = match durability {
            Durability::Sync => Some(committed.position),
            Durability::Deferred => self.commits.held_up_by(committed.seq),
        };
        match position {
            Some(position) => self.durable(position).await,
            None => Ok(()),
        }
    }

    /// Waits until the log is durable up to `position`; in an unfinished database, for nothing.
    ///
    /// # Errors
    /// `Poisoned` after a failure of the log.
    pub(super) async fn durable(&self, position: LogPosition) -> Result<()> {
        if self.is_unfinished() {
            return self.commits.check_poison();
        }
        ready_sent(&mut self.log.durable(position)).await
    }

    /// Waits until the log is durable up to `position` and a later group or superblock states so; in an unfinished database, for
    /// nothing.
    ///
    /// # Errors
    /// `Poisoned` after a failure of the log.
    pub(super) async fn stated(&self, position: LogPosition) -> Result<()> {
        if self.is_unfinished() {
            return self.commits.check_poison();
        }
        ready_sent(&mut self.log.stated(position)).await
    }

    /// Waits until the log has free space. Where no thread makes checkpoints, this one does.
    ///
    /// # Errors
    /// The error of a checkpoint; `Poisoned` after a failure of the log.
    pub(super) async fn await_space(&self, len_bytes: usize) -> Result<()> {
        let begun = Instant::now();
        let outcome = self.space(len_bytes).await;
        events::waited("log_space", begun.elapsed());
        outcome
    }

    async fn space(&self, len_bytes: usize) -> Result<()> {
        let Some(make_space) = self.make_space.get() else {
            return ready_sent(&mut self.log.await_space(len_bytes)).await;
        };
        // Polled, without a ticket of the log: only a checkpoint completes such a ticket, and without background
        // threads there may be no other caller to make one.
        while !make_space(len_bytes)? {
            self.commits.check_poison()?;
            std::thread::sleep(OTHERS_PUBLISH_WITHIN);
        }
        Ok(())
    }
}
