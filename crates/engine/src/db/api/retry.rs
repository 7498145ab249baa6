//! Runs a transaction again until it commits: the state that [`Db::transact`](crate::db::Db::transact) keeps from one run
//! to the next.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::transaction_handle::Transaction;
use crate::db::calls::commit_error::CommitError;
use crate::db::calls::transaction::TransactionState;
use crate::db::open::handle::Db;
use crate::error::{Error, ErrorKind, Result};
use crate::pages::{Durability, LogPosition};
use crate::transaction::precedence::{Claim, ClaimScope, Precedence};
use crate::transaction::reads::ReadSet;

/// Number of conflicts after which the next run claims the keys and ranges that the last run read (glossary: claim).
const LOSSES_BEFORE_CLAIM: u32 = 3;
/// Number of conflicts after which the next run claims all keys, because each run read something outside its claim.
const LOSSES_BEFORE_ALL: u32 = 6;

/// Options of [`Db::transact`](crate::db::Db::transact): the durability of the commit, and how often or how long it may be
/// tried. A [`Durability`] alone stands for these options without a limit.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
/// # let stock = db.create_table("stock")?;
/// use nofault::{Durability, db::TransactOptions, error::ErrorKind};
///
/// let options = TransactOptions::from(Durability::Sync).runs_max(3).time_max(std::time::Duration::from_secs(5));
/// let lost = db.transact(options, |change| {
///     let count = change.get(&stock, "apples")?.map_or(0, |count| count.len());
///     stock.put("apples", vec![b'x'; count + 1])?; // another commit, in each run
///     change.put(&stock, "pears", "3")
/// });
/// assert_eq!(lost.unwrap_err().kind(), ErrorKind::RetriesExhausted);
/// # Ok::<(), nofault::error::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransactOptions {
    durability: Durability,
    runs_max: Option<u32>,
    time_max: Option<Duration>,
}

impl TransactOptions {
    /// Limits the number of runs. The call fails with `RetriesExhausted` when so many runs have lost to other commits,
    /// and with `InvalidCall` when the limit is 0.
    #[must_use]
    pub fn runs_max(self, runs: u32) -> Self {
        Self { runs_max: Some(runs), ..self }
    }

    /// Limits the time in which runs may begin, counted from the call. When a run has lost to another commit and the
    /// time is over, the call fails with `RetriesExhausted`. A run that has begun is not interrupted, and neither is
    /// the wait for another transaction that has precedence.
    #[must_use]
    pub fn time_max(self, time: Duration) -> Self {
        Self { time_max: Some(time), ..self }
    }
}

impl From<Durability> for TransactOptions {
    fn from(durability: Durability) -> Self {
        Self { durability, runs_max: None, time_max: None }
    }
}

/// Runs `work` in a transaction and commits it; repeats both for as long as the commit conflicts. This one definition
/// serves tasks and blocking calls.
///
/// # Errors
/// The error of `work`; or, converted, the error of the commit other than a conflict, and `RetriesExhausted`.
pub(crate) async fn transact<T, E: From<Error>, F: Future<Output = std::result::Result<T, E>>>(
    db: &Db,
    options: TransactOptions,
    mut work: impl FnMut(Transaction) -> F,
) -> std::result::Result<T, E> {
    let mut retries = Retries::new(options)?;
    loop {
        let run = retries.begin(db).await?;
        let result = work(run.0.lent()).await?;
        if retries.commit(run).await? {
            return Ok(result);
        }
    }
}

/// One run of a transaction. Dropping it gives the transaction up unless it is committed: handles of it that `work` has
/// left somewhere fail then.
pub(in crate::db) struct Run(pub(in crate::db) Transaction);

impl Drop for Run {
    fn drop(&mut self) {
        self.0.inner.give_up();
    }
}

/// Waits until a transaction that begins sees the commit to which the transaction that failed with `error` has lost.
///
/// # Errors
/// `error`, when it is no conflict; the error of the log.
pub(in crate::db) async fn after_conflict(db: &Db, error: Error) -> Result<()> {
    let Some(position) = error.conflict_position() else { return Err(error) };
    db.owner.check_process()?;
    // An error of another database may name a position that the log of this one never reaches.
    let position = LogPosition(position).min(db.core.commits.last().position);
    db.core.waits.durable(position).await
}

/// The state of a transaction between two runs: the runs it has lost, and the read set of the last.
#[derive(Debug)]
pub(in crate::db) struct Retries {
    options: TransactOptions,
    called: Instant,
    losses: u32,
    /// The read set of the last run.
    reads: ReadSet,
    begun: Option<Instant>,
    longest_run: Duration,
    claim: Option<Claim>,
}

impl Retries {
    /// Creates the state of a transaction that has not run.
    ///
    /// # Errors
    /// `InvalidCall` for options that allow no run.
    pub(in crate::db) fn new(options: TransactOptions) -> Result<Self> {
        if options.runs_max == Some(0) {
            return Err(Error::new(ErrorKind::InvalidCall, "a transaction needs one run at least, and runs_max is 0"));
        }
        let (reads, begun, longest_run, claim) = (ReadSet::default(), None, Duration::ZERO, None);
        Ok(Self { options, called: Instant::now(), losses: 0, reads, begun, longest_run, claim })
    }

    /// Begins the next run.
    ///
    /// # Errors
    /// The error of waiting for precedence.
    pub(in crate::db) async fn begin(&mut self, db: &Db) -> Result<Run> {
        db.core.commits.check_open()?;
        // One at a time: the semaphore has one permit.
        self.claim = None;
        if self.losses > 0 {
            db.core.commits.precedence().counts.retries.fetch_add(1, Ordering::Relaxed);
        }
        if self.losses >= LOSSES_BEFORE_CLAIM {
            let all = self.losses >= LOSSES_BEFORE_ALL;
            let claimed = if all { ClaimScope::Everything } else { ClaimScope::Reads(std::mem::take(&mut self.reads)) };
            self.claim = Some(db.core.committer.claim(claimed, Precedence::limit_after(self.longest_run)).await?);
        }
        self.begun = Some(Instant::now());
        let claim = self.claim.as_ref().map(Claim::id);
        Ok(Run(Transaction::new(db, TransactionState::begin_with(&db.core, claim))))
    }

    /// Commits a run; or, after a conflict, waits until another run makes sense and returns false.
    ///
    /// # Errors
    /// The error of the commit, other than a conflict; `RetriesExhausted` when no other run may begin.
    pub(in crate::db) async fn commit(&mut self, run: Run) -> Result<bool> {
        let run_time = self.begun.take().map(|begun| begun.elapsed()).unwrap_or_default();
        self.longest_run = self.longest_run.max(run_time);
        match run.0.inner.commit(self.options.durability).await {
            Ok(()) => Ok(true),
            Err(CommitError::Conflict(position, reads)) => {
                self.losses += 1;
                self.reads = reads;
                // The claim ends before this wait: other commits need not wait for it.
                self.claim = None;
                self.check_limits()?;
                run.0.db().core.waits.durable(position).await?;
                self.check_limits().map(|()| false)
            }
            Err(CommitError::Failed(error)) => Err(error),
        }
    }

    /// Fails when no other run may begin.
    fn check_limits(&self) -> Result<()> {
        let (runs, time) = (self.losses, self.called.elapsed());
        if self.options.runs_max.is_some_and(|max| runs >= max) || self.options.time_max.is_some_and(|max| time >= max)
        {
            let what = format!("the transaction has lost {runs} runs in {} ms to other commits", time.as_millis());
            return Err(Error::new(ErrorKind::RetriesExhausted, what));
        }
        Ok(())
    }
}
