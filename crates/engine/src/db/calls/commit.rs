//! Commits: determines the size of each, and takes one of two ways to the log. `transaction` states the guarantee of
//! each step.
//!
//! A commit of ordinary size finds its pages (`commit_pages`), enters the section for one hold of its lock, appends to
//! the log and leaves; if something is missing after all it waits and tries again. A large commit, or one whose
//! attempts keep failing because of other commits, occupies the section (`large`): in a task a dedicated thread does
//! that, and completes the commit even when the future is dropped.

use std::any::Any;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::commit_error::{CommitResult, conflict};
use super::commit_pages::{CommitPages, Others, PrefetchOutcome};
use super::large::LargeCommits;
use super::loads::{Loads, refuse_too_long};
use super::pins::PinBudget;
use super::reservations::{BlockReservations, reservation_kind};
use super::tables::TableCounts;
use super::thread;
use super::wait::{LogWaits, yield_now};
use super::write_set::WriteSet;
use crate::btree::write::check_key;
use crate::error::{Error, ErrorKind, Result};
use crate::events;
use crate::format::CommitSeq;
use crate::histogram::AtomicHistogram;
use crate::pages::{CommitLog, Durability, Store, Wait};
use crate::sync::budget::Budget;
use crate::sync::driver::{block_on, is_blocking};
use crate::sync::semaphore::Permit;
use crate::transaction::precedence::{Claim, ClaimId, ClaimScope};
use crate::transaction::reads::ReadSet;
use crate::transaction::{Commit, CommitReceipt, Op, Refusal, Size, encode};

/// Returns a guard that keeps the database open until it is dropped; `None` once the database is closed.
pub(in crate::db) type Keep = Box<dyn Fn() -> Option<Box<dyn Any + Send + Sync>> + Send + Sync>;

/// Number of inner nodes for which an ordinary commit reserves blocks: it nearly never changes more.
const INNER_PAGES: usize = 4;
/// Attempts of an ordinary commit before it occupies the commit section as a large commit does.
const ATTEMPTS_BEFORE_EXCLUSIVE: usize = 8;

/// Steps of a `Budget`, which bounds the work in one poll, that taking one change out of a write set spends.
const STEPS_AN_OP: usize = 2;

/// The commit path of a database.
pub(crate) struct Committer<S: Store, L: CommitLog> {
    pages: Arc<CommitPages<S, L>>,
    pub(in crate::db) large: LargeCommits<S, L>,
    waits: Arc<LogWaits<S, L>>,
    reservations: Arc<BlockReservations<S, L>>,
    changes: Arc<TableCounts>,
    /// Bulk loads in progress, for which the caller's iterator is producing entries.
    pub(in crate::db) loads: Loads,
    /// Nanoseconds that durable commits took.
    commit_ns: Arc<AtomicHistogram>,
    /// A source of guards that keep the database open, and other processes from opening it.
    keep: OnceLock<Keep>,
}

impl<S: Store, L: CommitLog> Committer<S, L> {
    pub(in crate::db) fn new(
        pages: CommitPages<S, L>,
        log: Arc<L>,
        waits: Arc<LogWaits<S, L>>,
        reservations: Arc<BlockReservations<S, L>>,
        changes: Arc<TableCounts>,
    ) -> Arc<Self> {
        let pages = Arc::new(pages);
        let large =
            LargeCommits { pages: pages.clone(), log, waits: waits.clone(), reservations: reservations.clone() };
        let (loads, commit_ns, keep) = (Loads::default(), Arc::default(), OnceLock::new());
        Arc::new(Self { pages, large, waits, reservations, changes, loads, commit_ns, keep })
    }

    /// Returns the times that commits took until they were durable, in nanoseconds.
    pub(in crate::db) fn commit_ns(&self) -> &Arc<AtomicHistogram> {
        &self.commit_ns
    }

    /// Sets the source of guards for commits that may outlive their callers. Called once, when the database is opened.
    pub(in crate::db) fn keep_open_with(&self, keep: Keep) {
        let set = self.keep.set(keep);
        debug_assert!(set.is_ok(), "set once, when the database is opened");
    }

    /// Commits a write set, as [`Committer::commit`] commits its operations, unless something in `reads` was changed
    /// since the commit given with it.
    pub(in crate::db) async fn commit_writes(
        self: &Arc<Self>,
        writes: WriteSet,
        reads: Option<(CommitSeq, ReadSet)>,
        durability: Durability,
        claim: Option<ClaimId>,
    ) -> CommitResult<()> {
        let (mut ops, mut size, mut budget) = (Vec::with_capacity(writes.len()), Size::default(), Budget::new());
        for op in writes.into_ops() {
            self.refuse_wrong_size(&op)?;
            size.add(&op, self.page_bytes());
            ops.push(op);
            budget.spend(STEPS_AN_OP);
            if budget.is_spent() {
                budget = Budget::new();
                yield_now().await;
            }
        }
        drop(budget);
        self.commit_sized(Commit { reads, claim, ..Commit::blind(ops, durability) }, size).await
    }

    /// Commits the operations of `commit`, unless data that its transaction read was changed. They are few, in order of
    /// table and key, and each key occurs once. Returns when the commit is visible and as durable as it asks. If the
    /// future is dropped before, the commit happens completely or has no effect.
    pub(in crate::db) async fn commit(self: &Arc<Self>, commit: Commit) -> CommitResult<()> {
        let mut size = Size::default();
        for op in &commit.ops {
            self.refuse_wrong_size(op)?;
            size.add(op, self.page_bytes());
        }
        self.commit_sized(commit, size).await
    }

    /// Commits one change that depends on no read, durably. Where it is refused because something exists already, that is
    /// visible when this returns: another call may be about to make it, and if that fails this call fails as well.
    ///
    /// # Errors
    /// As [`Committer::commit`].
    pub(in crate::db) async fn commit_op(self: &Arc<Self>, op: Op) -> Result<()> {
        let committed = self.commit(Commit::blind(vec![op], Durability::Sync)).await;
        match committed.map_err(Error::from) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                self.waits.durable(self.pages.commits.last().position).await?;
                self.pages.commits.check_poison().and(Err(error))
            }
            committed => committed,
        }
    }

    async fn commit_sized(self: &Arc<Self>, mut commit: Commit, size: Size) -> CommitResult<()> {
        self.check_call()?;
        if commit.ops.is_empty() {
            return Ok(());
        }
        commit.durability = self.waits.granted(commit.durability);
        self.changes.add(commit.ops.iter().filter_map(|op| match op {
            Op::Put { tree, .. } | Op::Delete { tree, .. } => Some((*tree, 1)),
            _ => None,
        }));
        let durability = commit.durability;
        // A deferred commit waits for nothing as a rule, and is too short for a look at the clock.
        let begun = (durability == Durability::Sync).then(Instant::now);
        let committed = if self.pages.commits.is_large(&size) {
            self.commit_large(commit, None).await?
        } else {
            self.commit_small(commit).await?
        };
        self.waits.acknowledged(committed, durability).await?;
        if let Some(begun) = begun {
            let took = begun.elapsed();
            self.commit_ns.add_time(took);
            events::waited("commit", took);
        }
        Ok(())
    }

    /// Fails where no commit can be made: the database is closed, or belongs to the process that forked this one, or this
    /// thread runs the entries of a bulk load.
    ///
    /// # Errors
    /// `Closed`; `InvalidCall` inside a load.
    pub(in crate::db) fn check_call(&self) -> Result<()> {
        self.pages.commits.check_open()?;
        self.loads.refuse_inside()
    }

    /// Fails when the key or value of a change is too large for the database.
    fn refuse_wrong_size(&self, op: &Op) -> Result<()> {
        check_key(self.page_bytes(), op.target().1)?;
        match op {
            Op::Put { value, .. } => refuse_too_long(value),
            _ => Ok(()),
        }
    }

    /// Places a claim, which lapses after `limit`, for the next attempt of a transaction that has lost: see
    /// [`Precedence`](crate::transaction::precedence::Precedence).
    pub(in crate::db) async fn claim(&self, claimed: ClaimScope, limit: Duration) -> Result<Claim> {
        self.check_call()?;
        let mut unplaced = (self.pages.commits.precedence().wait().await, claimed);
        let (claim, since) = loop {
            match self.pages.commits.claim(unplaced.0, unplaced.1, limit) {
                Ok(placed) => break placed,
                Err(back) => unplaced = back,
            }
            self.pages.commits.check_poison()?;
            drop(self.pages.commits.turn().acquire(1).await);
        };
        if let Some(position) = self.pages.commits.held_up_by(since) {
            self.waits.durable(position).await?;
        }
        Ok(claim)
    }

    async fn commit_small(self: &Arc<Self>, mut commit: Commit) -> CommitResult<CommitReceipt> {
        let record = encode(&commit.ops);
        let pages: usize = commit.ops.iter().map(|op| op.frames(self.page_bytes())).sum();
        let (pages, kind) = (pages + INNER_PAGES, reservation_kind(&commit.ops));
        // The reserved blocks of the data file. A commit waiting for other commits has none: the commit before it
        // may need them.
        let mut reservation = None;
        let mut pins = PinBudget::default();
        let (mut turn, mut precedence) = (None, None);
        for _ in 0..ATTEMPTS_BEFORE_EXCLUSIVE {
            let others = Others::MayCommit(&mut reservation);
            let outcome = self.pages.prefetch(&commit.ops, &mut commit.context, &mut pins, others).await?;
            if matches!(outcome, PrefetchOutcome::Unclear | PrefetchOutcome::TooMany) {
                break;
            }
            reservation = reservation.take().or_else(|| self.reservations.try_reserve(pages, kind));
            if reservation.is_none() {
                pins.release();
                reservation = Some(self.reservations.reserve(pages, kind).await?);
                continue;
            }
            match self.pages.commits.commit(&commit, &record) {
                Ok(committed) => {
                    self.pages.tables.note_renamed(&commit.ops, committed.seq);
                    // Commits waiting for the end of the claim need not wait until this commit is durable.
                    commit.claim.into_iter().for_each(|claim| self.pages.commits.precedence().end(claim));
                    return Ok(committed);
                }
                Err(Refusal::Conflict(position)) => return Err(conflict(position, commit)),
                Err(Refusal::Claimed) => {
                    (pins, reservation) = (PinBudget::default(), None);
                    // Every commit that takes both permits takes precedence before the turn.
                    drop(turn.take());
                    precedence = Some(self.pages.commits.precedence().wait().await);
                }
                Err(Refusal::Wait(Wait::LogFull { len_bytes })) => {
                    (pins, reservation) = (PinBudget::default(), None);
                    self.waits.await_space(len_bytes).await?;
                }
                Err(Refusal::Wait(Wait::Failed(error))) => return Err(self.pages.explain(&commit.ops, error).into()),
                Err(Refusal::Wait(wait)) => self.pages.load_encountered(wait, &mut commit.context, &mut pins).await?,
                Err(Refusal::Occupied) => {
                    pins.release();
                    reservation = None;
                    turn = Some(self.pages.commits.turn().acquire(1).await);
                }
                Err(Refusal::TooLarge) => break,
            }
        }
        drop((pins, turn, reservation));
        self.commit_large(commit, precedence).await
    }

    /// Executes a commit that occupies the commit section. In a task a dedicated thread does the work and finishes it
    /// even when the future is dropped. `precedence` is the permit for precedence that the commit has, if any.
    async fn commit_large(
        self: &Arc<Self>,
        commit: Commit,
        mut precedence: Option<Permit>,
    ) -> CommitResult<CommitReceipt> {
        let section = loop {
            let has_claim = commit.claim.is_some_and(|claim| self.pages.commits.precedence().stands(claim));
            if precedence.is_none() && !has_claim {
                precedence = Some(self.pages.commits.precedence().wait().await);
            }
            let turn = self.pages.commits.turn().acquire(1).await;
            // The claim of this commit may have lapsed, and another claim may be in force.
            if let Some(section) = self.pages.commits.occupy_for(turn, commit.claim)? {
                break section;
            }
        };
        if is_blocking().await {
            return block_on(self.large.commit(section, commit, precedence));
        }
        let (committer, guard, durability) = (self.clone(), self.keep.get().and_then(|keep| keep()), commit.durability);
        let run = move || {
            let committed = block_on(committer.large.commit(section, commit, precedence));
            if let (Ok(committed), Durability::Sync) = (&committed, durability) {
                // The future may have been dropped, so that no caller waits for the record to be written: dropping the
                // ticket leaves the write to the log.
                drop(committer.large.log.durable(committed.position));
            }
            // The guard is dropped last: it may be all that keeps the database open, and then its drop releases the
            // file lock.
            drop(committer);
            drop(guard);
            committed
        };
        thread::run("nofault-commit", run).await?
    }

    fn page_bytes(&self) -> usize {
        self.pages.loader.store().page_bytes()
    }
}
