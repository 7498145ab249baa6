//! Runs a commit: gathers its pages, enters the commit section, appends to the log, becomes visible. `txn` states the
//! guarantee of each step.

use std::sync::Arc;
use std::time::Duration;

use super::core::Core;
use super::pins::PinBudget;
use super::room::claim_of;
use super::tables::NEWEST;
use super::transaction::WriteSet;
use super::wait::{let_others_run, load, ready_sent};
use crate::budget::Budget;
use crate::driver::{block_on, is_blocking};
use crate::error::{Error, ErrorKind, Result};
use crate::format::CommitSeq;
use crate::format::node::{OverflowRef, inline_value_bytes_max};
use crate::gate::Permit;
use crate::pages::{Attempt, CommitLog, Durability, LogPosition, Pages as _, Room, Store, Wait};
use crate::tree::Tree;
use crate::tree::overflow::Writer;
use crate::tree::write::check_key;
use crate::txn::precedence::{Claim, ClaimId, Claimed};
use crate::txn::reads::ReadSet;
use crate::txn::{CATALOG, Commit, Committed, Exclusive, Known, Op, Refused, Size, encode, for_each_piece, table_of};

/// The time in which other commits mostly publish the records that they have appended.
const OTHERS_PUBLISH_WITHIN: Duration = Duration::from_millis(1);
/// Inner nodes that an ordinary commit changes, nearly always at most.
const INNER_PAGES: usize = 4;
/// Attempts of an ordinary commit, and attempts to list the pages of long values, before it takes the section for itself.
const ATTEMPTS_BEFORE_EXCLUSIVE: usize = 8;

/// Steps of taking one change out of a write set.
const STEPS_AN_OP: usize = 2;

/// Whether other commits may run while a commit looks for its pages.
enum Others<'a> {
    /// They may publish at any moment. A commit that waits for them gives up its room in the data file.
    MayCommit(&'a mut Option<Room>),
    /// They wait: this commit has the section.
    Wait,
}

/// How looking for the pages of a commit has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gathered {
    /// All had been there before.
    WasThere,
    /// Some pages were missing; they have been loaded, though some may have been evicted again.
    Loaded,
    /// A long value cannot be listed. While other commits run, it is not known whether it is damaged or was replaced.
    Unclear,
    /// They are more than can be pinned at once, and others keep evicting them.
    TooMany,
}

/// A commit that was refused because of other commits.
#[derive(Debug)]
pub(crate) enum CommitError {
    /// Another transaction changed data that this one read. Retrying makes sense once the log is durable up to this
    /// position. The read set of the transaction is returned with it.
    Conflict(LogPosition, ReadSet),
    /// Anything else.
    Failed(Error),
}

impl From<Error> for CommitError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<CommitError> for Error {
    fn from(error: CommitError) -> Self {
        match error {
            CommitError::Failed(error) => error,
            CommitError::Conflict(..) => {
                Error::new(ErrorKind::Conflict, "another transaction changed what this one read; run it again")
            }
        }
    }
}

type CommitResult<T> = std::result::Result<T, CommitError>;

impl<S: Store, L: CommitLog> Core<S, L> {
    /// Commits a write set, if nothing in `reads` was changed. As [`Core::commit`].
    pub(crate) async fn commit_writes(
        self: &Arc<Self>,
        writes: WriteSet,
        reads: Option<(CommitSeq, ReadSet)>,
        durability: Durability,
        claim: Option<ClaimId>,
    ) -> CommitResult<()> {
        let (mut ops, mut size, mut budget) = (Vec::with_capacity(writes.len()), Size::default(), Budget::new());
        for op in writes.into_ops() {
            self.refuse_wrong_size(&op)?;
            size.add(&op, self.store.page_bytes());
            ops.push(op);
            budget.spend(STEPS_AN_OP);
            if budget.is_spent() {
                budget = Budget::new();
                let_others_run().await;
            }
        }
        drop(budget);
        self.commit_sized(Commit { ops, reads, durability, known: Known::default(), claim }, size).await
    }

    /// Commits `ops`, few of them, in order of table and key and each key once, if nothing in `reads` was changed. Returns when
    /// `durability` is satisfied and readers see it. Dropped before the end, it has happened completely or not at all.
    pub(crate) async fn commit(self: &Arc<Self>, commit: Commit) -> CommitResult<()> {
        let mut size = Size::default();
        for op in &commit.ops {
            self.refuse_wrong_size(op)?;
            size.add(op, self.store.page_bytes());
        }
        self.commit_sized(commit, size).await
    }

    async fn commit_sized(self: &Arc<Self>, commit: Commit, size: Size) -> CommitResult<()> {
        if commit.ops.is_empty() {
            return Ok(());
        }
        self.loads.refuse_inside()?;
        let durability = commit.durability;
        let committed = if self.commits.is_large(&size) {
            self.commit_large(commit, None).await?
        } else {
            self.commit_small(commit).await?
        };
        self.settle(committed, durability).await?;
        Ok(())
    }

    /// Whether the database takes a key and a value of this size.
    fn refuse_wrong_size(&self, op: &Op) -> Result<()> {
        check_key(self.store.page_bytes(), op.target().1)?;
        match op {
            Op::Put { value, .. } => super::bulk::refuse_too_long(value),
            _ => Ok(()),
        }
    }

    /// Places a claim for a transaction that begins then: see [`Precedence`](crate::txn::precedence::Precedence).
    pub(crate) async fn claim(&self, claimed: Claimed, limit: Duration) -> Result<Claim> {
        self.loads.refuse_inside()?;
        let mut unplaced = (self.commits.precedence().wait().await, claimed);
        let (claim, since) = loop {
            match self.commits.claim(unplaced.0, unplaced.1, limit) {
                Ok(placed) => break placed,
                Err(back) => unplaced = back,
            }
            drop(self.commits.turn().acquire(1).await);
        };
        if let Some(position) = self.commits.held_up_by(since) {
            self.wait_durable(position).await?;
        }
        Ok(claim)
    }

    /// Waits until a commit is as durable and visible as was asked.
    async fn settle(&self, committed: Committed, durability: Durability) -> Result<()> {
        let position = match durability {
            Durability::Sync => Some(committed.position),
            Durability::Deferred => self.commits.held_up_by(committed.seq),
        };
        match position {
            Some(position) => self.wait_durable(position).await,
            None => Ok(()),
        }
    }

    /// Waits until the log is durable up to `position`.
    pub(crate) async fn wait_durable(&self, position: LogPosition) -> Result<()> {
        let mut ticket = self.log.durable(position);
        ready_sent(&mut ticket).await
    }

    /// Waits until the log is durable up to `position` and says so.
    pub(super) async fn wait_stated(&self, position: LogPosition) -> Result<()> {
        let mut ticket = self.log.stated(position);
        ready_sent(&mut ticket).await
    }

    /// Waits until the log has room. Where no thread makes checkpoints, this one does.
    pub(super) async fn wait_for_room(&self, len_bytes: usize) -> Result<()> {
        let Some(make_room) = self.make_room.get() else {
            return ready_sent(&mut self.log.room(len_bytes)).await;
        };
        // Not with a ticket of the log: only a checkpoint wakes its waiters, and without threads no other caller may be
        // there to make one.
        while !make_room(len_bytes)? {
            self.commits.check_poison()?;
            std::thread::sleep(OTHERS_PUBLISH_WITHIN);
        }
        Ok(())
    }

    async fn commit_small(self: &Arc<Self>, mut commit: Commit) -> CommitResult<Committed> {
        let record = encode(&commit.ops);
        let pages: usize = commit.ops.iter().map(|op| op.frames(self.store.page_bytes())).sum();
        let (pages, claim) = (pages + INNER_PAGES, claim_of(&commit.ops));
        // Room in the data file. A commit that waits for others has none, or it would take it from the one that is first.
        let mut room = None;
        let mut held = PinBudget::default();
        let (mut turn, mut precedence) = (None, None);
        for _ in 0..ATTEMPTS_BEFORE_EXCLUSIVE {
            let others = Others::MayCommit(&mut room);
            let gathered = self.gather(&commit.ops, &mut commit.known, &mut held, others).await?;
            if matches!(gathered, Gathered::Unclear | Gathered::TooMany) {
                break;
            }
            room = room.take().or_else(|| self.store.claim_room(pages, claim));
            if room.is_none() {
                held.release();
                room = Some(self.claim_room(pages, claim).await?);
                continue;
            }
            match self.commits.commit(&commit, &record) {
                Ok(committed) => {
                    // Others need not wait until it is durable.
                    commit.claim.into_iter().for_each(|claim| self.commits.precedence().end(claim));
                    return Ok(committed);
                }
                Err(Refused::Conflict(position)) => return Err(lost(position, commit)),
                Err(Refused::Claimed) => {
                    (held, room) = (PinBudget::default(), None);
                    // Precedence comes before the turn, for all that take both.
                    drop(turn.take());
                    precedence = Some(self.commits.precedence().wait().await);
                }
                Err(Refused::Wait(Wait::LogFull { len_bytes })) => {
                    (held, room) = (PinBudget::default(), None);
                    self.wait_for_room(len_bytes).await?;
                }
                Err(Refused::Wait(Wait::Failed(error))) => return Err(self.explain(&commit.ops, error).into()),
                Err(Refused::Wait(wait)) => self.load_met(wait, &mut commit.known, &mut held).await?,
                Err(Refused::Occupied) => {
                    held.release();
                    room = None;
                    turn = Some(self.commits.turn().acquire(1).await);
                }
                Err(Refused::TooLarge) => break,
            }
        }
        drop((held, turn, room));
        self.commit_large(commit, precedence).await
    }

    /// Loads the leaves that `ops` will touch, as far as the window of pins goes, and lists the pages of long values that
    /// will be replaced.
    async fn gather(
        &self,
        ops: &[Op],
        known: &mut Known,
        held: &mut PinBudget<S::Ticket>,
        mut others: Others<'_>,
    ) -> Result<Gathered> {
        let mut waits = Vec::new();
        let mut gathered = Gathered::WasThere;
        // How often a value could not be listed, and the newest commit when that happened last.
        let (mut failures, mut failed_at) = (0, None);
        let most = self.admission.window();
        loop {
            waits.clear();
            let mut long = self.commits.gather(ops, known, most, &mut waits);
            if let (true, Others::MayCommit(room)) = (long.is_err(), &mut others) {
                // Another commit may have been publishing, so that some of the pages were new and some old.
                waits.clear();
                let Some(again) = self.commits.gather_undisturbed(ops, known, most, &mut waits) else {
                    // The commit that has the turn may need the permits.
                    held.release();
                    **room = None;
                    drop(self.commits.turn().acquire(1).await);
                    continue;
                };
                long = again;
            }
            let long = long.map_err(|error| self.explain(ops, error))?;
            if long.is_none() && waits.is_empty() {
                return Ok(gathered);
            }
            gathered = Gathered::Loaded;
            if let Some(value) = long {
                let listed = self.list(value, held).await;
                let is_quiet = || failed_at.is_some_and(|seq| self.commits.is_quiet_since(seq));
                match listed {
                    Ok(listed) => drop(known.replaced.insert(value.root, listed)),
                    Err(error) if matches!(others, Others::Wait) || is_quiet() => return Err(error),
                    // Another commit may have replaced the value since it was found: its pages may then hold anything.
                    Err(_) if failures + 1 < ATTEMPTS_BEFORE_EXCLUSIVE => {
                        (failures, failed_at) = (failures + 1, Some(self.commits.last().seq));
                    }
                    Err(_) => return Ok(Gathered::Unclear),
                }
            } else {
                load(&*self.store, &self.admission, held, &waits).await?;
                if held.is_exceeded() {
                    return Ok(Gathered::TooMany);
                }
            }
        }
    }

    /// Commits with the section to itself. In a task a thread does the work and finishes it even when the
    /// future is dropped. `precedence` is the permit that the commit has, if any.
    async fn commit_large(self: &Arc<Self>, commit: Commit, mut precedence: Option<Permit>) -> CommitResult<Committed> {
        let section = loop {
            let has_claim = commit.claim.is_some_and(|claim| self.commits.precedence().stands(claim));
            if precedence.is_none() && !has_claim {
                precedence = Some(self.commits.precedence().wait().await);
            }
            let turn = self.commits.turn().acquire(1).await;
            // Its own claim may have lapsed meanwhile, and another stand.
            if let Some(section) = self.commits.occupy_for(turn, commit.claim)? {
                break section;
            }
        };
        if is_blocking().await {
            return block_on(self.commit_exclusively(section, commit, precedence));
        }
        let (core, owner, durability) = (self.clone(), self.owner(), commit.durability);
        let run = move || {
            let committed = block_on(core.commit_exclusively(section, commit, precedence));
            if let (Ok(committed), Durability::Sync) = (&committed, durability) {
                // The future may have been dropped, so that no caller waits for the record to be written: dropping the
                // ticket leaves the write to the log.
                drop(core.log.durable(committed.position));
            }
            // The owner last: this may be all that is left of the database, and then it gives the lock back.
            drop(core);
            drop(owner);
            committed
        };
        super::thread::run("nofault-commit", run).await?
    }

    /// `_precedence` is given back at the end.
    async fn commit_exclusively(
        self: &Arc<Self>,
        mut section: Exclusive<S, L>,
        commit: Commit,
        _precedence: Option<Permit>,
    ) -> CommitResult<Committed> {
        let Commit { ops, durability, mut known, .. } = match section.check(&commit) {
            Ok(()) => commit,
            Err(Refused::Conflict(position)) => return Err(lost(position, commit)),
            Err(other) => {
                return Err(Error::new(ErrorKind::Bug, format!("checking a commit met {other:?}")).into());
            }
        };
        self.refuse_wrong_tables(&ops).await?;
        // Until all is applied: a disk that is full by then must not stop that half-way.
        let _room = self.claim_room(self.pages_of_large(&ops), claim_of(&ops)).await?;
        self.look_through(&ops, &mut known).await?;
        let mut position = LogPosition::default();
        let mut pieces = for_each_piece(&ops, self.log.piece_bytes_max()).peekable();
        while let Some(piece) = pieces.next() {
            let last = pieces.peek().is_none().then_some(durability);
            position = loop {
                match section.append(&piece, last) {
                    Ok(position) => break position,
                    Err(Wait::LogFull { len_bytes }) => {
                        self.wait_for_room(len_bytes).await?;
                    }
                    Err(Wait::Failed(error)) => return Err(error.into()),
                    Err(other) => return Err(Error::new(ErrorKind::Bug, format!("the log met {other:?}")).into()),
                }
            };
        }
        for op in &ops {
            if let Op::DropTable { tree, name } = op {
                // Before the commit is visible, so that no reader reports the reused pages of the table as damage.
                self.tables.dropped(*tree, name, section.seq());
            }
        }
        if let Err(error) = self.apply_all(&mut section, &ops, &mut known).await {
            // Not the error itself: that would say that nothing happened, and opening again finishes this commit.
            let what = format!(
                "commit {} is in the log, but applying it failed ({error}); reads go on, reopen the database to finish it",
                section.seq()
            );
            return Err(Error::new(ErrorKind::Poisoned, what).into());
        }
        Ok(section.finish(&ops, durability, position))
    }

    /// Finds the errors that are the caller's before the record is in the log.
    async fn refuse_wrong_tables(&self, ops: &[Op]) -> Result<()> {
        for op in ops {
            let (Op::CreateTable { name } | Op::DropTable { name, .. }) = op else {
                if let Some(error) = self.tables.refusal(op.target().0) {
                    return Err(error);
                }
                continue;
            };
            let look = || CATALOG.get(&self.store.tip(), name);
            let found = super::wait::attempt(&*self.store, &self.admission, look).await?;
            let found = found.map(|found| table_of(name, &found)).transpose()?;
            let text = String::from_utf8_lossy(name);
            match op {
                Op::DropTable { tree, .. } if found != Some(*tree) => {
                    return Err(Error::new(ErrorKind::NotFound, format!("there is no table {text:?} any more")));
                }
                Op::DropTable { tree, .. } => {
                    // Its root moves when the record is in the log, and each time that is replayed: it must be there to be moved.
                    let look = || self.store.tip().page(tree.root).map(|_| ());
                    super::wait::attempt(&*self.store, &self.admission, look).await?;
                }
                Op::CreateTable { .. } if found.is_some() => {
                    return Err(Error::new(ErrorKind::AlreadyExists, format!("table {text:?} exists already")));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Looks at every page that `ops` will touch, to find unreadable pages before the record is in the log: afterwards
    /// neither this process nor a recovery could apply the record.
    async fn look_through(&self, ops: &[Op], known: &mut Known) -> Result<()> {
        let mut rest = ops;
        let portion_max = (self.store.edit_frames_max() / 8).max(1);
        let mut portion = portion_max;
        while !rest.is_empty() {
            let now = &rest[..rest.len().min(portion)];
            let gathered = self.gather(now, known, &mut PinBudget::default(), Others::Wait).await?;
            if gathered == Gathered::TooMany && now.len() > 1 {
                portion = now.len() / 2;
            } else {
                rest = &rest[now.len()..];
                portion = (portion * 2).min(portion_max);
            }
        }
        Ok(())
    }

    /// Applies `ops` in portions that the pool can hold.
    async fn apply_all(&self, section: &mut Exclusive<S, L>, ops: &[Op], known: &mut Known) -> Result<()> {
        let mut held = PinBudget::default();
        let mut rest = ops;
        let portion_max = (self.store.edit_frames_max() / 8).max(1);
        let mut portion = portion_max;
        // Where the long value of the next op was written: once, however often its turn comes.
        let mut at = None;
        // Where all pages are in memory, a search for missing ones costs as much as the changes themselves. No other
        // commit can change anything now, so a portion that misses a page is just begun again.
        let mut look_first = false;
        while !rest.is_empty() {
            if at.is_none() && self.is_long(&rest[0]) {
                at = self.write_long_op(section, &rest[0]).await?;
            }
            // A long value goes by itself; its pages are written already.
            let run = rest.iter().take(portion).take_while(|op| !self.is_long(op)).count();
            let now = &rest[..run.max(1)];
            let looked = look_first;
            if looked {
                let gathered = self.gather(now, known, &mut held, Others::Wait).await?;
                look_first = matches!(gathered, Gathered::Loaded | Gathered::TooMany);
            }
            if held.is_exceeded() && now.len() > 1 {
                held = PinBudget::default();
                portion = now.len() / 2;
                continue;
            }
            match section.apply(now, at, known) {
                Ok(()) => {
                    rest = &rest[now.len()..];
                    at = None;
                    portion = (portion * 2).min(portion_max);
                    held = PinBudget::default();
                }
                Err(Wait::Full { frames }) if frames > self.store.edit_frames_max() && now.len() > 1 => {
                    portion = now.len() / 2;
                }
                Err(Wait::Miss(_)) if !looked => look_first = true,
                Err(wait) => self.load_met(wait, known, &mut held).await?,
            }
        }
        Ok(())
    }

    /// Loads a page that a change needs beyond those that were looked for. An unreadable page is noted first and an
    /// error only the second time: it may be a neighbouring node, which the change does not need.
    async fn load_met(&self, wait: Wait, known: &mut Known, held: &mut PinBudget<S::Ticket>) -> Result<()> {
        let loaded = load(&*self.store, &self.admission, held, &[wait]).await;
        let failed = loaded.as_ref().err().and_then(Error::page);
        match failed.filter(|page| !known.unreadable.contains(page)) {
            Some(page) => known.unreadable.push(page),
            None => return loaded,
        }
        Ok(())
    }

    /// Returns the error that the caller gets for `error`: damage in a table of `ops` that was dropped is no damage.
    fn explain(&self, ops: &[Op], error: Error) -> Error {
        ops.iter().fold(error, |error, op| self.tables.explain(op.target().0, NEWEST, error))
    }

    pub(super) fn is_long(&self, op: &Op) -> bool {
        matches!(op, Op::Put { value, .. } if value.len() > inline_value_bytes_max(self.store.page_bytes()))
    }

    async fn write_long_op(&self, section: &mut Exclusive<S, L>, op: &Op) -> Result<Option<OverflowRef>> {
        let Op::Put { tree, value, .. } = op else { return Ok(None) };
        self.write_long(section, *tree, &mut Writer::new(value)).await
    }

    /// Writes a long value in as many portions as it needs. Returns its reference. After an error, `writer` knows the
    /// pages of the portions already published.
    pub(super) async fn write_long(
        &self,
        section: &mut Exclusive<S, L>,
        tree: Tree,
        writer: &mut Writer<'_>,
    ) -> Result<Option<OverflowRef>> {
        let portion = (self.store.edit_frames_max() / 2).max(1);
        let mut held = PinBudget::default();
        loop {
            let written: Attempt<_> = section.edit(|edits, _| writer.write(edits, tree.root, portion));
            match written {
                Ok(None) => held = PinBudget::default(),
                Ok(done) => return Ok(done),
                Err(wait) => load(&*self.store, &self.admission, &mut held, &[wait]).await?,
            }
        }
    }

    /// Applies the changes of one commit of the log, or of several that end with `seq`: lists of ops, one after the
    /// other. The database has no other users yet. Blocks.
    ///
    /// # Errors
    /// The errors of `portions` and of reading pages.
    pub(crate) fn replay(
        self: &Arc<Self>,
        seq: CommitSeq,
        portions: impl Iterator<Item = Result<Vec<Op>>>,
    ) -> Result<()> {
        block_on(async {
            let turn = self.commits.turn().acquire(1).await;
            let mut section = self.commits.occupy(turn)?;
            section.replay_as(seq);
            for ops in portions {
                self.apply_all(&mut section, &ops?, &mut Known::default()).await?;
            }
            // No transaction is open that would want to know which keys these were.
            section.settle(Durability::Deferred, LogPosition::default());
            Ok(())
        })
    }
}

/// Returns the outcome of a commit that is refused because data that it read was changed.
fn lost(position: LogPosition, commit: Commit) -> CommitError {
    CommitError::Conflict(position, commit.reads.map(|(_, reads)| reads).unwrap_or_default())
}
