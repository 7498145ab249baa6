//! Runs a transaction again until it commits: the state that [`Db::transact`](super::Db::transact) keeps from one run
//! to the next.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::commit_error::CommitError;
use super::transaction;
use super::{Db, Transaction};
use crate::error::Result;
use crate::pages::Durability;
use crate::transaction::precedence::{Claim, ClaimScope, Precedence};
use crate::transaction::reads::ReadSet;

/// Number of conflicts after which the next run claims the keys and ranges that the last run read (glossary: claim).
const LOSSES_BEFORE_CLAIM: u32 = 3;
/// Number of conflicts after which the next run claims all keys, because each run read something outside its claim.
const LOSSES_BEFORE_ALL: u32 = 6;

/// Runs `work` in a transaction, which `work` gives back with its result, and commits the transaction; repeats both for
/// as long as the commit conflicts.
///
/// # Errors
/// The error of `work`, or the error of the commit other than a conflict.
pub(crate) async fn transact<R>(
    db: &Db,
    durability: Durability,
    mut work: impl AsyncFnMut(Transaction) -> Result<(Transaction, R)>,
) -> Result<R> {
    let mut retries = Retries::default();
    loop {
        let (transaction, result) = work(retries.begin(db).await?).await?;
        if retries.commit(transaction, durability).await? {
            return Ok(result);
        }
    }
}

/// The state of a transaction between two runs: the runs it has lost, and the read set of the last.
#[derive(Debug, Default)]
struct Retries {
    losses: u32,
    /// The read set of the last run.
    reads: ReadSet,
    begun: Option<Instant>,
    longest_run: Duration,
    claim: Option<Claim>,
}

impl Retries {
    /// Begins the next run.
    ///
    /// # Errors
    /// The error of waiting for precedence.
    async fn begin(&mut self, db: &Db) -> Result<Transaction> {
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
        let inner = transaction::TransactionState::begin_with(&db.core, self.claim.as_ref().map(Claim::id));
        Ok(Transaction { db: db.clone(), inner })
    }

    /// Commits a run; or, after a conflict, waits until another run makes sense and returns false.
    ///
    /// # Errors
    /// The error of the commit, other than a conflict.
    async fn commit(&mut self, run: Transaction, durability: Durability) -> Result<bool> {
        let run_time = self.begun.take().map(|begun| begun.elapsed()).unwrap_or_default();
        self.longest_run = self.longest_run.max(run_time);
        let core = run.db.core.clone();
        match run.inner.commit(durability).await {
            Ok(()) => Ok(true),
            Err(CommitError::Conflict(position, reads)) => {
                self.losses += 1;
                self.reads = reads;
                // The claim ends before this wait: other commits need not wait for it.
                self.claim = None;
                core.waits.durable(position).await.map(|()| false)
            }
            Err(CommitError::Failed(error)) => Err(error),
        }
    }
}
