//! The commit section, held over waits by one large commit.

use std::sync::{Arc, MutexGuard};

use super::commit_context::CommitContext;
use super::validation_window::STEPS_TO_NOTE;
use super::{Commit, CommitReceipt, Commits, Damage, Op, Refusal, Section, apply};
use crate::btree::overflow::LongRef;
use crate::error::{Error, ErrorKind};
use crate::format::{CommitSeq, TableId};
use crate::pages::{Attempt, CommitLog, Durability, LogPosition, PageCopies as _, Store};
use crate::sync::budget::{Budget, STEPS_MAX};
use crate::sync::semaphore::Permit;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Nothing was written to the log or published.
    Untouched,
    /// Part of the record is in the log, which recovery ignores, or pages were published and freed again: the commit
    /// number is used up.
    Begun,
    /// The record is complete, or pages were published: stopping now would leave half a commit.
    Committed,
    Finished,
}

/// The commit section, held over waits by one large commit.
pub(crate) struct Exclusive<S: Store, L: CommitLog> {
    commits: Arc<Commits<S, L>>,
    _turn: Permit,
    seq: CommitSeq,
    stage: Stage,
}

impl<S: Store, L: CommitLog> Exclusive<S, L> {
    /// Takes over a commit section whose lock was just taken.
    pub(super) fn new(commits: &Arc<Commits<S, L>>, mut section: MutexGuard<'_, Section>, turn: Permit) -> Self {
        section.occupied = true;
        let seq = section.last.seq.next();
        Self { commits: commits.clone(), _turn: turn, seq, stage: Stage::Untouched }
    }

    /// Returns the number of this commit.
    pub(crate) fn seq(&self) -> CommitSeq {
        self.seq
    }

    /// Sets the number of this commit during replay: it is later than all before, and its record is already in the log.
    pub(crate) fn replay_as(&mut self, seq: CommitSeq) {
        self.seq = seq;
        self.stage = Stage::Committed;
    }

    /// Validates the read set of the transaction, as [`Commits::commit`] does.
    pub(crate) fn check(&self, commit: &Commit) -> std::result::Result<(), Refusal> {
        let mut reads = commit.all_reads().peekable();
        loop {
            let mut budget = Budget::new();
            // Nothing else is committed until the end, so each part of the reads is checked once. A first check is made
            // without reads, too: the window may have forgotten commits.
            self.commits.check(&self.commits.lock(), commit, &mut reads, &mut budget)?;
            if reads.peek().is_none() {
                return Ok(());
            }
        }
    }

    /// Appends a fragment of the record.
    pub(crate) fn append(&mut self, fragment: &[u8], last: Option<Durability>) -> Attempt<LogPosition> {
        let position = self.commits.log.append(self.seq, &[fragment], last)?;
        self.stage = if last.is_some() { Stage::Committed } else { Stage::Begun };
        Ok(position)
    }

    /// Applies ops and publishes the pages that they changed. `at` is the place where the value of the only op was
    /// written, if it was.
    pub(crate) fn apply(&mut self, ops: &[Op], at: Option<&LongRef>, context: &CommitContext) -> Attempt<()> {
        self.edit(|copies, seq| apply(copies, ops, seq, at, context, Damage::Leave))
    }

    /// Applies all `ops` to private copies, lets `append` append the whole record, and publishes the copies. `frames` are
    /// taken first. After a `Wait` all pages are as before, and the record is as far in the log as `append` has come.
    pub(crate) fn apply_and_append(
        &mut self,
        ops: &[Op],
        frames: usize,
        context: &CommitContext,
        append: impl FnOnce(&mut Self) -> Attempt<LogPosition>,
    ) -> Attempt<LogPosition> {
        let commits = self.commits.clone();
        let mut copies = commits.store.copies();
        copies.reserve(frames)?;
        apply(&mut copies, ops, self.seq, None, context, Damage::Refuse)?;
        // A long record takes a while to copy.
        let position = copies.unpinned(|| append(self))?;
        commits.store.publish(copies, self.seq);
        Ok(position)
    }

    /// Makes private copies and publishes them as part of this commit.
    pub(crate) fn edit<R>(&mut self, change: impl FnOnce(&mut S::Copies<'_>, CommitSeq) -> Attempt<R>) -> Attempt<R> {
        let mut copies = self.commits.store.copies();
        let result = change(&mut copies, self.seq)?;
        self.commits.store.publish(copies, self.seq);
        self.stage = Stage::Committed;
        Ok(result)
    }

    /// Makes private copies that no record describes, appends an empty record and publishes the copies, as the whole of
    /// this commit. Returns the result of `change`. After a `Wait`, `LogFull` included, all pages are as before.
    pub(crate) fn edit_and_append<R>(
        &mut self,
        change: impl FnOnce(&mut S::Copies<'_>) -> Attempt<R>,
    ) -> Attempt<(LogPosition, R)> {
        let log = self.commits.log.clone();
        self.edit(|copies, seq| {
            let result = change(copies)?;
            Ok((log.append(seq, &[], Some(Durability::Deferred))?, result))
        })
    }

    /// Abandons the commit after all pages that it published were freed again.
    pub(crate) fn abandon(&mut self) {
        self.stage = Stage::Begun;
    }

    /// Lets a commit take effect: its pages, which no record describes, are published completely. The commit section
    /// stays held. Open transactions will conflict: the keys that they might have missed are not known. Watchers of
    /// `loaded`, the table that the commit has filled, learn of the commit without its changes.
    pub(crate) fn take_effect(&mut self, durability: Durability, position: LogPosition, loaded: Option<TableId>) {
        self.stage = Stage::Finished;
        let (commits, seq) = (self.commits.clone(), self.seq);
        let mut section = commits.lock();
        if let Some(table) = loaded {
            commits.feed.loaded(seq, table);
        }
        commits.note(&mut section, durability, CommitReceipt { seq, position });
        section.window.forget_before(seq);
        drop(section);
        commits.clear_up_after(durability);
    }

    /// Lets a commit take effect that published only pages that no transaction can have read.
    pub(crate) fn take_effect_unseen(&mut self, durability: Durability, position: LogPosition) {
        self.stage = Stage::Finished;
        self.commits.note(&mut self.commits.lock(), durability, CommitReceipt { seq: self.seq, position });
        self.commits.clear_up_after(durability);
    }

    /// Completes the commit once all changes are applied and published. `is_unseen` comes from [`Commit`].
    pub(crate) fn finish(
        mut self,
        ops: &[Op],
        durability: Durability,
        position: LogPosition,
        is_unseen: bool,
    ) -> CommitReceipt {
        let committed = CommitReceipt { seq: self.seq, position };
        let commits = self.commits.clone();
        let drops = ops.iter().any(|op| matches!(op, Op::DropTable { .. }));
        // Done before the commit takes effect: other transactions may begin between two parts, without seeing this
        // commit, but none can commit.
        let are_unneeded = commits.are_keys_unneeded(durability);
        let noted = if is_unseen || are_unneeded { &[] } else { ops };
        for part in noted.chunks(STEPS_MAX / STEPS_TO_NOTE) {
            commits.lock().note_keys(self.seq, part, &mut Budget::new());
        }
        self.stage = Stage::Finished;
        let record = commits.feed.prepare(self.seq, ops);
        let mut section = commits.lock();
        commits.feed.add_prepared(self.seq, record);
        commits.note(&mut section, durability, committed);
        if drops || (are_unneeded && !is_unseen) {
            // Of a dropped table every key has changed: open transactions conflict. Otherwise there are none, but for those
            // that have begun in this moment.
            section.window.forget_before(self.seq);
        }
        drop(section);
        commits.clear_up_after(durability);
        committed
    }
}

impl<S: Store, L: CommitLog> Drop for Exclusive<S, L> {
    fn drop(&mut self) {
        if self.stage == Stage::Committed {
            let why = format!("commit {} was applied only in part", self.seq);
            // Poisoned before another commit can enter.
            self.commits.poison(&Error::new(ErrorKind::Poisoned, why));
        }
        let mut section = self.commits.lock();
        if self.stage == Stage::Begun {
            section.last.seq = self.seq;
        }
        section.occupied = false;
        drop(section);
        self.commits.vacated.notify_all();
    }
}
