//! Commits transactions: each commit becomes one step in the history of the database.
//!
//! An ordinary commit has three steps, none of which waits. First [`Commits::gather`] looks, without any lock, for
//! pages that the commit will touch and that are not in memory. Then [`Commits::commit`] enters the commit section,
//! checks that no later commit changed the transaction's reads, applies the changes to private page copies, appends the
//! record to the log, publishes, and leaves. If a page is missing after all, it drops the copies and leaves with
//! nothing changed. Then the caller waits until the log is durable; only [`visibility`] decides which commits readers
//! see.
//!
//! A commit too large for that occupies the section across its waits ([`Exclusive`]): it is checked, logged
//! completely, and then applied in portions under one commit number, invisible until the last one. From the moment
//! its record is complete it is committed, so any failure before the last portion poisons the database; reopening
//! finishes the commit from the log. If all its copies are a small part of the pool, they are made before the record is
//! appended, as an ordinary commit's are.
//!
//! Invariants:
//! 1. Commit numbers, positions in the log and publications follow one order: all three are assigned in the section.
//! 2. A commit is appended to the log before it is published. The exceptions are log replay, and a bulk load, which
//!    its own checkpoint makes durable before it is visible.
//! 3. `window` notes a commit in the section in which it is published, so no transaction misses it, unless no reader can
//!    see the commit. It notes that the commit took place, and no keys, where no transaction can be checked against them
//!    (`open_transactions`).
//! 4. The section's lock is held for a bounded number of steps (`Budget`), for commits and read sets of any size:
//!    larger ones occupy the section, and take the lock for a part of their keys at a time.

mod apply;
mod catalog;
mod commit_context;
mod exclusive;
pub(crate) mod feed;
mod op;
mod open_transactions;
pub(crate) mod precedence;
pub(crate) mod reads;
mod records;
mod validation_window;
pub(crate) mod visibility;

#[cfg(test)]
mod tests;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use nofault_io::process::Process;

use self::apply::{Damage, apply};
pub(crate) use self::catalog::{entry_of, refuse_existing, refuse_types, table_and_compression, table_of};
pub(crate) use self::commit_context::{CommitContext, OverflowPages};
pub(crate) use self::exclusive::Exclusive;
use self::feed::{ChangeFeed, WatchQueue};
pub(crate) use self::op::Op;
pub(crate) use self::open_transactions::OpenTransaction;
use self::open_transactions::OpenTransactions;
use self::precedence::{Claim, ClaimId, ClaimScope, Precedence};
use self::reads::{Read, ReadSet};
pub(crate) use self::records::{decode, encode, for_each_fragment, record_bytes};
use self::validation_window::{STEPS_TO_NOTE, ValidationWindow};
use self::visibility::Visibility;
use crate::btree::leaves::LeafFinder;
use crate::btree::many::SIDE_BY_SIDE;
use crate::btree::{SEARCHED_BYTES, Tree};
use crate::error::{Error, ErrorKind, Result};
use crate::format::cell::OverflowRef;
use crate::format::{CommitSeq, PageId, TableId};
use crate::pages::{CommitLog, Durability, LogPosition, PageCopies as _, Pages as _, Store, Wait};
use crate::sync::budget::Budget;
use crate::sync::semaphore::{Permit, Semaphore};

/// The tree of the table of tables.
pub(crate) const CATALOG: Tree = Tree { root: PageId::CATALOG_ROOT, table: TableId::CATALOG };

/// Makes the catalog, the first page of a new and empty store, as part of commit 0.
///
/// # Errors
/// `Bug` when the store is not new.
pub(crate) fn create_catalog<S: Store>(store: &S) -> Result<()> {
    let mut copies = store.copies();
    match Tree::create(&mut copies, CATALOG.table, CATALOG.root) {
        Ok(tree) if tree == CATALOG => {
            store.publish(copies, CommitSeq(0));
            Ok(())
        }
        Ok(tree) => Err(Error::new(ErrorKind::Bug, format!("the first page of a new database is page {}", tree.root))),
        Err(Wait::Failed(error)) => Err(error),
        Err(wait) => Err(Error::new(ErrorKind::Bug, format!("a new database met {wait:?}"))),
    }
}

/// Most changes that a commit may make while it holds the lock of the commit section once. A commit with more occupies
/// the commit section, as [`Exclusive`].
pub(crate) const SMALL_OPS_MAX: usize = 256;
/// Most frames of the buffer pool that these changes may take.
const SMALL_FRAMES_MAX: usize = 3 * SMALL_OPS_MAX;
/// Steps of a `Budget`, which bounds the work under one lock, that copying, changing and publishing a page spends.
const STEPS_A_FRAME: usize = 2;

/// The size of a commit, summed up while its changes are collected.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Size {
    ops: usize,
    frames: usize,
    record_bytes: usize,
    drops: bool,
}

impl Size {
    /// Adds one change to the size.
    pub(crate) fn add(&mut self, op: &Op, page_bytes: usize) {
        self.ops += 1;
        self.frames += op.frames(page_bytes);
        self.record_bytes += record_bytes(std::slice::from_ref(op));
        self.drops |= matches!(op, Op::DropTable { .. });
    }
}

/// A commit in progress. `ops` are in order of table and key, each key once.
#[derive(Debug)]
pub(crate) struct Commit {
    pub(crate) ops: Vec<Op>,
    /// The snapshot and the read set to validate; `None` when nothing has to be checked.
    pub(crate) reads: Option<(CommitSeq, ReadSet)>,
    pub(crate) durability: Durability,
    /// The pages that the commit will touch, as gathered by its caller.
    pub(crate) context: CommitContext,
    /// The claim placed for the transaction, if any.
    pub(crate) claim: Option<ClaimId>,
    /// Whether no reader can see that the commit took place: it removes entries that have expired. Transactions that have read
    /// its keys do not conflict with it.
    pub(crate) is_unseen: bool,
}

impl Commit {
    /// Returns everything that the transaction has read.
    fn all_reads(&self) -> impl Iterator<Item = Read<'_>> {
        self.reads.iter().flat_map(|(_, reads)| reads.iter())
    }

    /// Creates a commit that has read nothing.
    pub(crate) fn blind(ops: Vec<Op>, durability: Durability) -> Self {
        Self { ops, reads: None, durability, context: CommitContext::default(), claim: None, is_unseen: false }
    }
}

/// The number and the log position of a commit that took effect.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CommitReceipt {
    pub(crate) seq: CommitSeq,
    /// Position of the end of the commit's record in the log.
    pub(crate) position: LogPosition,
}

/// The reason why the commit section was left without a commit. Nothing has changed.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// A page, a frame or log space is missing: wait for it, gather the pages again, and retry.
    Wait(Wait),
    /// The commit needs more frames than private copies may ever hold: it must be done as a large commit.
    TooLarge,
    /// A large commit occupies the commit section: wait for it to end.
    Occupied,
    /// A transaction that has lost often has claimed a key that this commit changes: wait for that claim.
    Claimed,
    /// Data that the transaction read was changed; retrying makes sense once this position is durable.
    Conflict(LogPosition),
}

impl Refusal {
    fn into_error(self) -> Error {
        match self {
            Self::Wait(Wait::Failed(error)) => error,
            other => Error::new(ErrorKind::Bug, format!("entering the section met {other:?}")),
        }
    }
}

impl From<Wait> for Refusal {
    fn from(wait: Wait) -> Self {
        Self::Wait(wait)
    }
}

/// Executes commits one at a time: see the module.
pub(crate) struct Commits<S, L> {
    store: Arc<S>,
    log: Arc<L>,
    section: Mutex<Section>,
    /// The right to occupy the commit section across a wait: a semaphore of one permit.
    turn: Arc<Semaphore>,
    precedence: Arc<Precedence>,
    visibility: Arc<Visibility<S>>,
    /// The transactions that read, and may be checked against the window later.
    open: OpenTransactions,
    feed: Arc<ChangeFeed>,
    poisoned: OnceLock<Error>,
    /// Set when the database begins to close. Goes before `poisoned`.
    ended: OnceLock<Error>,
    /// Notified when a large commit leaves the section.
    vacated: Condvar,
    /// The process to which the database belongs.
    process: Process,
}

#[derive(Debug)]
struct Section {
    last: CommitReceipt,
    occupied: bool,
    window: ValidationWindow,
}

impl<S: Store, L: CommitLog> Commits<S, L> {
    /// Creates the state of a store and log whose newest commit is `last`; `visibility` was created with the same
    /// commit. The list of recent commits takes up to `recent_bytes_max` bytes of memory.
    pub(crate) fn new(
        store: Arc<S>,
        log: Arc<L>,
        visibility: Arc<Visibility<S>>,
        last: CommitSeq,
        recent_bytes_max: usize,
    ) -> Self {
        let last = CommitReceipt { seq: last, position: LogPosition::default() };
        Self {
            store,
            log,
            section: Mutex::new(Section { last, occupied: false, window: ValidationWindow::new(recent_bytes_max) }),
            turn: Semaphore::new(1),
            precedence: Precedence::new(),
            visibility,
            open: OpenTransactions::default(),
            feed: Arc::default(),
            poisoned: OnceLock::new(),
            ended: OnceLock::new(),
            vacated: Condvar::new(),
            process: Process::current(),
        }
    }

    /// Returns the memory of the list of recent commits.
    pub(crate) fn recent_bytes(&self) -> usize {
        self.lock().window.memory_bytes()
    }

    /// Returns the log position that must become durable before `seq` is visible; `None` when `seq` is visible.
    pub(crate) fn held_up_by(&self, seq: CommitSeq) -> Option<LogPosition> {
        self.visibility.held_up_by(seq)
    }

    /// Returns the newest commit.
    pub(crate) fn last(&self) -> CommitReceipt {
        self.lock().last
    }

    /// Returns the semaphore whose permit [`Commits::occupy`] needs.
    pub(crate) fn turn(&self) -> &Arc<Semaphore> {
        &self.turn
    }

    /// Returns the queue for transactions that have lost often. A commit that takes both takes this before the turn.
    pub(crate) fn precedence(&self) -> &Arc<Precedence> {
        &self.precedence
    }

    /// Places a claim with a permit of [`Commits::precedence`]. The caller begins the claiming transaction once every
    /// commit up to the returned one is visible. While a large commit occupies the commit section, and after [`Commits::end`],
    /// returns `Err` with the permit and the claim unchanged: wait for a permit of [`Commits::turn`], check that commits
    /// are still possible, then call again.
    pub(crate) fn claim(
        &self,
        permit: Permit,
        claimed: ClaimScope,
        limit: Duration,
    ) -> std::result::Result<(Claim, CommitSeq), (Permit, ClaimScope)> {
        let section = self.lock();
        if section.occupied || self.ended.get().is_some() {
            return Err((permit, claimed));
        }
        let since = section.last.seq;
        Ok((self.precedence.place(permit, claimed, since, limit), since))
    }

    /// Looks for the pages that `ops` will touch: appends at most `pages_max` missing ones to `waits`. Returns a long
    /// value that will be replaced and that has pages not yet known.
    pub(crate) fn gather(
        &self,
        ops: &[Op],
        context: &CommitContext,
        pages_max: usize,
        waits: &mut Vec<Wait>,
    ) -> Result<Option<OverflowRef>> {
        let latest = self.store.latest_published();
        let mut found = LeafFinder::new(&latest);
        let mut last = None;
        for ops in ops.chunks(SIDE_BY_SIDE) {
            // The searched part of all these leaves is on its way before the first lookup reads it.
            let mut leaves = [None; SIDE_BY_SIDE];
            for (leaf, op) in leaves.iter_mut().zip(ops) {
                let (tree, key) = op.target();
                *leaf = found.find(tree, key).ok().inspect(|leaf| latest.expect(leaf.page()));
            }
            leaves.iter().flatten().for_each(|leaf| latest.fetch(leaf.page(), 0..SEARCHED_BYTES));
            for (op, leaf) in ops.iter().zip(leaves) {
                let (tree, key) = op.target();
                let leaf = leaf.map_or_else(|| found.find(tree, key), Ok);
                match leaf.and_then(|leaf| context.unlisted(&latest, (tree, leaf), key, pages_max, waits)) {
                    Ok(None) => {}
                    Ok(found) => return Ok(found),
                    Err(Wait::Failed(error)) => return Err(error),
                    Err(Wait::Miss(missing)) if last == Some(missing.page) => {}
                    Err(wait) => {
                        if let Wait::Miss(missing) = &wait {
                            last = Some(missing.page);
                        }
                        waits.push(wait);
                        if waits.len() >= pages_max {
                            return Ok(None);
                        }
                    }
                }
            }
        }
        Ok(None)
    }

    /// Gathers as [`Self::gather`] does, with publishing blocked; `None` while a large commit occupies the
    /// section.
    pub(crate) fn gather_undisturbed(
        &self,
        ops: &[Op],
        context: &CommitContext,
        pages_max: usize,
        waits: &mut Vec<Wait>,
    ) -> Option<Result<Option<OverflowRef>>> {
        let section = self.lock();
        (!section.occupied).then(|| self.gather(ops, context, pages_max, waits))
    }

    /// Notes that a transaction begins which will be checked when it commits. Called before its snapshot is taken: while
    /// no such transaction is open, the keys of a large commit that is visible at once are not listed, and transactions
    /// with an older snapshot conflict.
    pub(crate) fn open_transaction(&self) -> OpenTransaction {
        self.open.open()
    }

    /// Returns whether no transaction is open that could be checked against the keys of a commit that occupies the commit
    /// section, and whether each that begins after this commit will see it. One that begins before the commit is visible
    /// must conflict with it.
    fn are_keys_unneeded(&self, durability: Durability) -> bool {
        durability == Durability::Deferred && self.open.are_none() && self.store.visible() == self.last().seq
    }

    /// Returns whether no commit was published since `seq` was the newest.
    pub(crate) fn is_quiet_since(&self, seq: CommitSeq) -> bool {
        let section = self.lock();
        section.last.seq == seq && !section.occupied
    }

    /// Commits, or returns the reason for refusing, with nothing changed. `record` is the encoding of the ops by
    /// [`encode`].
    pub(crate) fn commit(&self, commit: &Commit, record: &[u8]) -> std::result::Result<CommitReceipt, Refusal> {
        let mut section = self.enter()?;
        if section.occupied {
            return Err(Refusal::Occupied);
        }
        if self.precedence.refuses(commit.claim, &commit.ops) {
            return Err(Refusal::Claimed);
        }
        let mut budget = Budget::new();
        self.check(&section, commit, &mut commit.all_reads(), &mut budget)?;
        let seq = section.last.seq.next();
        let frames: usize = commit.ops.iter().map(|op| op.frames(self.store.page_bytes())).sum();
        // A check that has spent the budget leaves no time for the changes.
        if frames > self.store.copy_frames_max() || budget.is_spent() {
            return Err(Refusal::TooLarge);
        }
        budget.spend(frames * STEPS_A_FRAME);
        let too_large = |wait: &Wait| matches!(wait, Wait::Full { frames } if *frames > self.store.copy_frames_max());
        let applied = || {
            let mut copies = self.store.copies();
            copies.reserve(frames)?;
            apply(&mut copies, &commit.ops, seq, None, &commit.context, Damage::Refuse)?;
            let position = self.log.append(seq, &[record], Some(commit.durability))?;
            Ok((copies, position))
        };
        let (copies, position) = match applied() {
            Ok(applied) => applied,
            Err(wait) if too_large(&wait) => return Err(Refusal::TooLarge),
            Err(wait) => return Err(wait.into()),
        };
        self.store.publish(copies, seq);
        if !commit.is_unseen {
            // Listed in any case: the keys of small commits keep ranges apart when the list is full.
            section.note_keys(seq, &commit.ops, &mut budget);
        }
        self.feed.committed(seq, &commit.ops, record);
        self.note(&mut section, commit.durability, CommitReceipt { seq, position });
        drop(section);
        self.clear_up_after(commit.durability);
        Ok(CommitReceipt { seq, position })
    }

    /// Returns whether a commit of this size must be done as a large commit.
    pub(crate) fn is_large(&self, size: &Size) -> bool {
        size.drops
            || size.ops > SMALL_OPS_MAX
            || size.frames > SMALL_FRAMES_MAX
            || size.frames + 16 > self.store.copy_frames_max()
            || size.record_bytes > self.log.fragment_bytes_max()
    }

    /// Occupies the commit section for as long as the returned value lives, to change nothing that a transaction can
    /// have read. `turn` is a permit of [`Commits::turn`].
    pub(crate) fn occupy(self: &Arc<Self>, turn: Permit) -> Result<Exclusive<S, L>> {
        let section = self.enter().map_err(Refusal::into_error)?;
        Ok(Exclusive::new(self, section, turn))
    }

    /// Occupies the commit section to change keys. `None` while a claim other than `own` stands: the caller then waits
    /// for precedence, without the turn.
    pub(crate) fn occupy_for(self: &Arc<Self>, turn: Permit, own: Option<ClaimId>) -> Result<Option<Exclusive<S, L>>> {
        let section = self.enter().map_err(Refusal::into_error)?;
        if self.precedence.stands_for_another(own) {
            drop(section);
            return Ok(None);
        }
        Ok(Some(Exclusive::new(self, section, turn)))
    }

    /// Stops all further commits.
    pub(crate) fn poison(&self, why: &Error) {
        let message = format!("commits are refused since an earlier failure; reopen the database: {why}");
        // The first failure is reported, also after later ones.
        let error = self.poisoned.get_or_init(|| Error::new(ErrorKind::Poisoned, message));
        // No checkpoint can pass a commit that is never visible, so this is the only report to the callers that wait
        // for a checkpoint.
        self.log.refuse(error);
        self.feed.end(error);
    }

    /// Refuses all commits from now on with this error, as the database is only read.
    pub(crate) fn forbid(&self, why: &Error) {
        let error = self.poisoned.get_or_init(|| why.clone());
        self.log.refuse(error);
        self.feed.end(error);
    }

    /// Ends the history, as the database is being closed: refuses all commits from now on with this error, and ends the
    /// waits of those that have not entered the section. No commit is inside the section when this returns, but for a
    /// large one that occupies it.
    pub(crate) fn end(&self, why: &Error) {
        let _ = self.ended.set(why.clone());
        drop(self.lock());
        self.log.refuse(why);
        // The waiters for these go on to the section, which refuses.
        self.precedence.open();
        self.turn.open();
        self.feed.end(why);
    }

    /// Waits until no large commit occupies the section, unless `is_left` says that it is not waited for. After
    /// [`Commits::end`], so that no other follows. Blocks.
    pub(crate) fn await_vacant(&self, is_left: impl Fn() -> bool) {
        let mut section = self.lock();
        while section.occupied && !is_left() {
            section = self.vacated.wait(section).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Fails when the database is being closed, or was, and in a process forked from the one that opened it: there
    /// before any lock is taken.
    ///
    /// # Errors
    /// `Closed`.
    #[inline]
    pub(crate) fn check_open(&self) -> Result<()> {
        Error::unless_here(self.process)?;
        self.ended.get().cloned().map_or(Ok(()), Err)
    }

    /// Fails when no commit is possible any more.
    ///
    /// # Errors
    /// `Closed`; `Poisoned`, with the time of the failure.
    pub(crate) fn check_poison(&self) -> Result<()> {
        self.check_open()?;
        self.poisoned.get().cloned().map_or(Ok(()), Err)
    }

    fn enter(&self) -> std::result::Result<MutexGuard<'_, Section>, Refusal> {
        self.check_open().map_err(Wait::Failed)?;
        let mut section = self.lock();
        if self.section.is_poisoned() && self.poisoned.get().is_none() {
            // The record of that commit may be in the log, without its pages and under the next commit's number.
            drop(section);
            self.poison(&Error::new(ErrorKind::Bug, "a thread has panicked in the middle of a commit"));
            section = self.lock();
        }
        // Checked after locking: a failure while this thread waited for the section has left half a commit in it.
        match self.check_poison() {
            Err(error) => Err(Refusal::Wait(Wait::Failed(error))),
            Ok(()) => Ok(section),
        }
    }

    fn note(&self, section: &mut Section, durability: Durability, committed: CommitReceipt) {
        section.last = committed;
        self.visibility.published(committed.seq, durability, committed.position);
    }

    /// Checks the rest of `reads` until the budget is spent. Fails with `Conflict` when one of them was changed.
    fn check<'r>(
        &self,
        section: &Section,
        commit: &Commit,
        reads: &mut impl Iterator<Item = Read<'r>>,
        budget: &mut Budget,
    ) -> std::result::Result<(), Refusal> {
        let Some((seen, _)) = &commit.reads else { return Ok(()) };
        let claimed = self.precedence.claimed_by(commit.claim, *seen);
        let mut is_changed = section.window.is_forgotten(*seen);
        while !is_changed
            && !budget.is_spent()
            && let Some(read) = reads.next()
        {
            // While the claim stands no other commit has changed this read.
            let is_claimed = claimed.as_ref().is_some_and(|claimed| claimed.covers(read));
            is_changed = !is_claimed && section.window.has_changed(*seen, read, budget);
            budget.spend(1);
        }
        if !is_changed {
            return Ok(());
        }
        self.precedence.counts.conflicts.fetch_add(1, Ordering::Relaxed);
        Err(Refusal::Conflict(section.last.position))
    }

    /// Runs after a commit became visible, outside of the commit section. Commits waiting for the log leave this work
    /// to the thread writing it.
    fn clear_up_after(&self, durability: Durability) {
        if durability == Durability::Deferred {
            self.store.clear_up();
        }
        // A commit waiting for the log may be visible already: then the log's thread has delivered before it was.
        if self.feed.is_watched() {
            self.feed.deliver(self.store.visible());
        }
    }

    /// Begins to pass the changes of commits in a table, or in all, to a watcher.
    pub(crate) fn watch(&self, table: Option<TableId>) -> Arc<WatchQueue> {
        let section = self.lock();
        self.feed.register(table, section.last.seq)
    }

    /// Ends a watch begun by [`Self::watch`].
    pub(crate) fn end_watch(&self, queue: &Arc<WatchQueue>) {
        if !self.process.is_here() {
            return;
        }
        let section = self.lock();
        self.feed.unregister(queue);
        drop(section);
    }

    /// Returns the part that passes changes to watchers.
    pub(crate) fn feed(&self) -> &Arc<ChangeFeed> {
        &self.feed
    }

    /// Blocks commits until the returned guard is dropped.
    #[cfg(test)]
    pub(crate) fn hold_section(&self) -> impl Sized + '_ {
        self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, Section> {
        // A panic inside the section is a bug. The protected state is only changed by whole steps, so it can still be
        // looked at; `enter` refuses further commits.
        self.section.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Section {
    /// Notes that commit `seq` changes these keys.
    fn note_keys(&mut self, seq: CommitSeq, ops: &[Op], budget: &mut Budget) {
        for op in ops {
            let (tree, key) = op.target();
            self.window.note(seq, tree.table, key);
            budget.spend(STEPS_TO_NOTE);
        }
    }
}

/// Creates the error for a record that changes an unknown table.
pub(crate) fn no_such_table(table: TableId) -> Error {
    Error::new(ErrorKind::Corrupt, format!("a record of the log changes table {table}, which does not exist"))
}
