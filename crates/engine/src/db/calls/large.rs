//! Commits too large for one hold of the section's lock: they occupy the section across their waits.
//!
//! Such a commit is checked. If copies of all pages that it changes are a small part of the pool, it is applied to them, logged
//! completely, and published. Otherwise it is looked through for unreadable pages, logged completely, and then applied in
//! portions that the pool can hold. `transaction` states the guarantee of each step. Replay of the log applies records in the same way.

use std::iter::Peekable;
use std::sync::Arc;

use super::commit_error::{CommitResult, conflict};
use super::commit_pages::{CommitPages, Others, PrefetchOutcome};
use super::pins::PinBudget;
use super::reservations::{BlockReservations, is_long, reservation_kind};
use super::wait::LogWaits;
use crate::btree::Tree;
use crate::btree::overflow::{LongRef, Writer, spread_at_once_max};
use crate::error::{Error, ErrorKind, Result};
use crate::format::CommitSeq;
use crate::pages::{Attempt, CommitLog, Durability, LogPosition, Pages as _, Store, Wait};
use crate::sync::driver::block_on;
use crate::sync::semaphore::Permit;
use crate::transaction::{
    Commit, CommitContext, CommitReceipt, Exclusive, Op, Refusal, entry_of, for_each_fragment, refuse_existing,
    refuse_types,
};

/// Executes commits too large for one hold of the commit section.
pub(crate) struct LargeCommits<S: Store, L: CommitLog> {
    pub(in crate::db) pages: Arc<CommitPages<S, L>>,
    pub(in crate::db) log: Arc<L>,
    pub(in crate::db) waits: Arc<LogWaits<S, L>>,
    pub(in crate::db) reservations: Arc<BlockReservations<S, L>>,
}

/// The record of a large commit, on its way into the log.
struct Record<'o> {
    next: Option<Vec<u8>>,
    rest: Peekable<Box<dyn Iterator<Item = Vec<u8>> + Send + 'o>>,
    durability: Durability,
    /// Whether a part of it is in the log.
    is_begun: bool,
    end: LogPosition,
}

impl<'o> Record<'o> {
    fn new(ops: &'o [Op], fragment_bytes: usize, durability: Durability) -> Self {
        let fragments: Box<dyn Iterator<Item = _> + Send> = Box::new(for_each_fragment(ops, fragment_bytes));
        let mut rest = fragments.peekable();
        Self { next: rest.next(), rest, durability, is_begun: false, end: LogPosition::default() }
    }

    /// Appends the rest of the record. Returns its end.
    fn append<S: Store, L: CommitLog>(&mut self, section: &mut Exclusive<S, L>) -> Attempt<LogPosition> {
        while let Some(fragment) = &self.next {
            let last = self.rest.peek().is_none().then_some(self.durability);
            self.end = section.append(fragment, last)?;
            self.is_begun = true;
            self.next = self.rest.next();
        }
        Ok(self.end)
    }
}

/// The most frames that a commit may need to be applied at once, as a divisor of those that private copies may hold.
const FRAMES_AT_ONCE_SHARE: usize = 4;
/// Number of times that this is tried.
const ATTEMPTS_AT_ONCE: usize = 4;

impl<S: Store, L: CommitLog> LargeCommits<S, L> {
    fn store(&self) -> &S {
        self.pages.loader.store()
    }

    /// Executes a commit that occupies the commit section with `section`. `_precedence` is held until the commit ends.
    pub(in crate::db) async fn commit(
        &self,
        mut section: Exclusive<S, L>,
        commit: Commit,
        _precedence: Option<Permit>,
    ) -> CommitResult<CommitReceipt> {
        let Commit { ops, durability, mut context, is_unseen, .. } = match section.check(&commit) {
            Ok(()) => commit,
            Err(Refusal::Conflict(position)) => return Err(conflict(position, commit)),
            Err(other) => {
                return Err(Error::new(ErrorKind::Bug, format!("checking a commit met {other:?}")).into());
            }
        };
        self.refuse_wrong_tables(&ops).await?;
        // Held until all changes are applied: a disk that becomes full must not stop the commit half-way.
        let _reservation =
            self.reservations.reserve(self.reservations.pages_of_large(&ops), reservation_kind(&ops)).await?;
        let mut record = Record::new(&ops, self.log.fragment_bytes_max(), durability);
        if let Some(frames) = self.frames_at_once(&ops)
            && let Some(position) = self.apply_at_once(&mut section, (&ops, frames), &mut context, &mut record).await?
        {
            return Ok(section.finish(&ops, durability, position, is_unseen));
        }
        if !record.is_begun {
            self.look_through(&ops, &mut context).await?;
        }
        let position = loop {
            match record.append(&mut section) {
                Ok(position) => break position,
                Err(Wait::LogFull { len_bytes }) => {
                    self.waits.await_space(len_bytes).await?;
                }
                Err(Wait::Failed(error)) => return Err(error.into()),
                Err(other) => return Err(Error::new(ErrorKind::Bug, format!("the log met {other:?}")).into()),
            }
        };
        self.pages.tables.note_renamed(&ops, section.seq());
        for op in &ops {
            if let Op::DropTable { tree, name } = op {
                // Noted before the commit is visible, so that no reader reports the reused pages of the table as
                // damage.
                self.pages.tables.dropped(*tree, name, section.seq());
            }
        }
        if let Err(error) = self.apply_all(&mut section, &ops, &mut context).await {
            // The error itself is not returned: it would say that nothing happened, but the next opening finishes this
            // commit.
            let what = format!(
                "commit {} is in the log, but applying it failed ({error}); reads go on, reopen the database to finish it",
                section.seq()
            );
            return Err(Error::new(ErrorKind::Poisoned, what).into());
        }
        Ok(section.finish(&ops, durability, position, is_unseen))
    }

    /// Returns the number of frames that `ops` may need if all of them are applied at once; `None` where those are no small
    /// part of the pool.
    fn frames_at_once(&self, ops: &[Op]) -> Option<usize> {
        let store = self.store();
        let (page_bytes, frames_max) = (store.page_bytes(), store.copy_frames_max() / FRAMES_AT_ONCE_SHARE);
        // Other memory of an op is shared, or much smaller as a rule.
        let frames = |op: &Op| op.frames(page_bytes) - 1;
        let are_keys = ops.iter().all(|op| matches!(op, Op::Put { .. } | Op::Delete { .. }));
        Some(ops.iter().map(frames).sum()).filter(|frames| are_keys && *frames <= frames_max)
    }

    /// Applies `ops` all at once as an ordinary commit is, so that no page is looked for that is there. Returns the end of
    /// the record; `None` when the commit is to go the way of larger ones. Then nothing is changed, but the record may have
    /// begun. It waits for `frames_wanted` frames, or more, where it finds none.
    async fn apply_at_once(
        &self,
        section: &mut Exclusive<S, L>,
        (ops, frames_wanted): (&[Op], usize),
        context: &mut CommitContext,
        record: &mut Record<'_>,
    ) -> Result<Option<LogPosition>> {
        let (mut pins, mut frames) = (PinBudget::default(), 0);
        for attempt in 0..ATTEMPTS_AT_ONCE {
            match section.apply_and_append(ops, frames, context, |section| record.append(section)) {
                Ok(position) => return Ok(Some(position)),
                Err(wait @ Wait::Miss(_)) => {
                    if attempt > 0 {
                        // A page that the search does not find, a neighbour for example.
                        self.pages.load_encountered(wait, context, &mut pins).await?;
                    }
                    self.pages.prefetch(ops, context, &mut pins, Others::Wait).await?;
                    if pins.is_exceeded() {
                        return Ok(None);
                    }
                }
                Err(Wait::Full { frames: more }) => {
                    // As many as it can need, so that it does not have to begin again after each of them.
                    frames = frames_wanted.max(more);
                    if frames > self.store().copy_frames_max() {
                        return Ok(None);
                    }
                    self.pages.loader.load(&mut pins, &[Wait::Full { frames }]).await?;
                }
                Err(Wait::LogFull { .. }) if record.is_begun => return Ok(None),
                Err(Wait::LogFull { len_bytes }) => {
                    pins = PinBudget::default();
                    self.waits.await_space(len_bytes).await?;
                }
                Err(Wait::Failed(error)) => return Err(self.pages.explain(ops, error)),
            }
        }
        Ok(None)
    }

    /// Finds errors that the caller made before anything is written to the log.
    async fn refuse_wrong_tables(&self, ops: &[Op]) -> Result<()> {
        let mut last = None;
        for op in ops {
            match op {
                Op::Put { tree, .. } | Op::Delete { tree, .. } => {
                    if last != Some(tree) {
                        last = Some(tree);
                        self.pages.tables.refusal(*tree).map_or(Ok(()), Err)?;
                    }
                    continue;
                }
                Op::CreateTable { name, .. } => self.look(|pages| refuse_existing(pages, name)).await?,
                Op::DropTable { tree, name } | Op::SetCompression { tree, name, .. } => {
                    self.look(|pages| entry_of(pages, *tree, name)).await.map(drop)?;
                }
                Op::RenameTable { tree, name, to } => {
                    self.look(|pages| entry_of(pages, *tree, name)).await.map(drop)?;
                    self.look(|pages| refuse_existing(pages, to)).await?;
                }
                Op::SetTypes { tree, name, .. } => {
                    refuse_types(name, &self.look(|pages| entry_of(pages, *tree, name)).await?)?;
                }
            }
            if let Op::DropTable { tree, .. } = op {
                // The table's root is moved after the record has been appended, and in each replay of the record: the
                // root must be readable.
                self.look(|pages| pages.page(tree.root).map(|_| ())).await?;
            }
        }
        Ok(())
    }

    /// Looks at published pages until none is missing.
    async fn look<R>(&self, look: impl Fn(&<S as Store>::View<'_>) -> Attempt<R>) -> Result<R> {
        self.pages.loader.attempt(|| look(&self.store().latest_published())).await
    }

    /// Looks at every page that `ops` will touch, to find unreadable pages before the record is in the log: afterwards
    /// neither this process nor a recovery could apply the record.
    async fn look_through(&self, ops: &[Op], context: &mut CommitContext) -> Result<()> {
        let mut rest = ops;
        let portion_max = (self.store().copy_frames_max() / 8).max(1);
        let mut portion = portion_max;
        while !rest.is_empty() {
            let now = &rest[..rest.len().min(portion)];
            let outcome = self.pages.prefetch(now, context, &mut PinBudget::default(), Others::Wait).await?;
            if outcome == PrefetchOutcome::TooMany && now.len() > 1 {
                portion = now.len() / 2;
            } else {
                rest = &rest[now.len()..];
                portion = (portion * 2).min(portion_max);
            }
        }
        Ok(())
    }

    /// Applies `ops` in portions that the pool can hold.
    async fn apply_all(&self, section: &mut Exclusive<S, L>, ops: &[Op], context: &mut CommitContext) -> Result<()> {
        let mut pins = PinBudget::default();
        let (mut rest, page_bytes) = (ops, self.store().page_bytes());
        let frames_max = self.store().copy_frames_max();
        let portion_max = (frames_max / 8).max(1);
        let mut portion = portion_max;
        let at_once_max = spread_at_once_max(page_bytes, frames_max);
        let has_many_pages =
            |op: &Op| is_long(op, page_bytes) && !matches!(op, Op::Put { value, .. } if value.len() <= at_once_max);
        // The reference to the long value of the next op, once it is written: it is written only once, however often
        // its portion begins again.
        let mut at = None;
        // While all pages are in memory, a search for missing ones costs as much as the changes themselves. No other
        // commit can change anything now, so a portion that misses a page simply begins again.
        let mut look_first = false;
        while !rest.is_empty() {
            if at.is_none() && has_many_pages(&rest[0]) {
                at = self.write_long_op(section, &rest[0]).await?;
            }
            // A value with many pages goes by itself; its pages are written already.
            let mut frames = 0;
            let fits = |op: &&Op| {
                frames += op.frames(page_bytes);
                !has_many_pages(op) && frames <= frames_max / 2
            };
            let run = rest.iter().take(portion).take_while(fits).count();
            let now = &rest[..run.max(1)];
            let looked = look_first;
            if looked {
                let outcome = self.pages.prefetch(now, context, &mut pins, Others::Wait).await?;
                look_first = matches!(outcome, PrefetchOutcome::Loaded | PrefetchOutcome::TooMany);
            }
            if pins.is_exceeded() && now.len() > 1 {
                pins = PinBudget::default();
                portion = now.len() / 2;
                continue;
            }
            match section.apply(now, at.as_ref(), context) {
                Ok(()) => {
                    rest = &rest[now.len()..];
                    at = None;
                    portion = (portion * 2).min(portion_max);
                    pins = PinBudget::default();
                }
                Err(Wait::Full { frames }) if frames > frames_max && now.len() > 1 => {
                    portion = now.len() / 2;
                }
                Err(Wait::Miss(_)) if !looked => look_first = true,
                Err(wait) => self.pages.load_encountered(wait, context, &mut pins).await?,
            }
        }
        Ok(())
    }

    async fn write_long_op(&self, section: &mut Exclusive<S, L>, op: &Op) -> Result<Option<LongRef>> {
        let Op::Put { tree, value, .. } = op else { return Ok(None) };
        self.write_long(section, *tree, &mut Writer::new(value)).await
    }

    /// Writes a long value in as many portions as it needs. Returns its reference. After an error, `writer` knows the
    /// pages of the portions already published.
    pub(in crate::db) async fn write_long(
        &self,
        section: &mut Exclusive<S, L>,
        tree: Tree,
        writer: &mut Writer<'_>,
    ) -> Result<Option<LongRef>> {
        let portion = (self.store().copy_frames_max() / 2).max(1);
        let mut pins = PinBudget::default();
        loop {
            let written: Attempt<_> = section.edit(|copies, _| writer.write(copies, tree, portion));
            match written {
                Ok(None) => pins = PinBudget::default(),
                Ok(done) => return Ok(done),
                Err(wait) => self.pages.loader.load(&mut pins, &[wait]).await?,
            }
        }
    }

    /// Applies the changes of one commit of the log, or of several that end with `seq`: lists of ops, one after the
    /// other. The database has no other users yet. Blocks.
    ///
    /// # Errors
    /// The errors of `portions` and of reading pages.
    pub(in crate::db) fn replay(&self, seq: CommitSeq, portions: impl Iterator<Item = Result<Vec<Op>>>) -> Result<()> {
        block_on(async {
            let turn = self.pages.commits.turn().acquire(1).await;
            let mut section = self.pages.commits.occupy(turn)?;
            section.replay_as(seq);
            for ops in portions {
                self.apply_all(&mut section, &ops?, &mut CommitContext::default()).await?;
            }
            // No transaction is open that would want to know which keys these were.
            section.take_effect(Durability::Deferred, LogPosition::default(), None);
            Ok(())
        })
    }
}
