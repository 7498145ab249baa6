//! Commits: what a transaction changed becomes one step in the history of the database.
//!
//! An ordinary commit is three things, none of which waits. [`Commits::gather`] looks, outside of any lock, for pages that the
//! commit will touch and that are not in memory. [`Commits::commit`] then enters the section, checks that nothing the
//! transaction read was changed meanwhile, applies the changes to private copies, appends the record to the log, publishes, and
//! leaves. If it meets a page that is missing after all, it drops the copies and leaves with nothing changed. Then the
//! caller waits until the log is durable; only [`visibility`] decides what readers see.
//!
//! A commit too large for that holds the section over its waits ([`Exclusive`]): it is checked, logged completely, and then applied in
//! portions under one commit number, invisible until the last one. From the moment its record is complete it is committed, so
//! whatever stops it half-way poisons the database; reopening finishes it from the log.
//!
//! Kept true by:
//! 1. Commit numbers, positions in the log and publications follow one order: all three happen in the section.
//! 2. Nothing is published that was not appended to the log first, except by replaying the log, and by a bulk load, which a
//!    checkpoint of its own has on disk before anybody sees it.
//! 3. `recent` hears of a commit in the section in which it is published, so no transaction misses it.

mod known;
pub(crate) mod recent;
mod records;
pub(crate) mod visibility;

#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

pub(crate) use self::known::{Known, Listed};
use self::recent::{ReadSet, Recent};
pub(crate) use self::records::{decode, encode, for_each_piece, record_bytes};
use self::visibility::Visibility;
use crate::error::{Error, ErrorKind, Result};
use crate::format::catalog::{decode_table, encode_table, to_be_freed};
use crate::format::node::{Cell, OverflowRef, inline_value_bytes_max};
use crate::format::record::Change;
use crate::format::{CommitSeq, PageId, TableId};
use crate::gate::{Gate, Permit};
use crate::pages::{Attempt, CommitLog, Durability, Edits, LogPosition, Snapshot, Store, Versions, Wait};
use crate::tree::overflow::{Writer, data_bytes, own_pages};
use crate::tree::write::Replaced;
use crate::tree::{Found, Held, Tree};

/// The tree of the table of tables.
pub(crate) const CATALOG: Tree = Tree { root: PageId::CATALOG_ROOT, table: TableId::CATALOG };

/// Makes the catalog, the first page of a new and empty store, as part of commit 0.
///
/// # Errors
/// `Bug` when the store is not new.
pub(crate) fn create_catalog<S: Store>(store: &S) -> Result<()> {
    let mut edits = store.edits();
    match Tree::create(&mut edits, CATALOG.table, CATALOG.root) {
        Ok(tree) if tree == CATALOG => {
            store.publish(edits, CommitSeq(0));
            Ok(())
        }
        Ok(tree) => Err(Error::new(ErrorKind::Bug, format!("the first page of a new database is page {}", tree.root))),
        Err(Wait::Failed(error)) => Err(error),
        Err(wait) => Err(Error::new(ErrorKind::Bug, format!("a new database met {wait:?}"))),
    }
}

/// One change of a commit.
#[derive(Debug, Clone)]
pub(crate) enum Op {
    /// Sets the value of a key.
    Put { tree: Tree, key: Vec<u8>, value: Vec<u8> },
    /// Removes a key.
    Delete { tree: Tree, key: Vec<u8> },
    /// Creates an empty table whose id is the number of the commit.
    CreateTable { name: Vec<u8> },
    /// Removes a table: its name, and the way to it. Its pages are freed later (`db::drops`). Alone in its commit.
    DropTable { tree: Tree, name: Vec<u8> },
}

impl Op {
    /// The tree and the key that it changes.
    pub(crate) fn target(&self) -> (Tree, &[u8]) {
        match self {
            Self::Put { tree, key, .. } | Self::Delete { tree, key } => (*tree, key),
            Self::CreateTable { name } | Self::DropTable { name, .. } => (CATALOG, name),
        }
    }

    fn change(&self) -> Change<'_> {
        match self {
            Self::Put { tree, key, value } => Change::Put { table: tree.table, key, value },
            Self::Delete { tree, key } => Change::Delete { table: tree.table, key },
            Self::CreateTable { name } => Change::CreateTable { name },
            Self::DropTable { tree, name } => Change::DropTable { table: tree.table, name },
        }
    }

    /// A generous guess at the frames that applying it takes.
    pub(crate) fn frames(&self, page_bytes: usize) -> usize {
        match self {
            Self::Put { value, .. } if value.len() > inline_value_bytes_max(page_bytes) => {
                2 + value.len() / data_bytes(page_bytes) * 65 / 64 + 3
            }
            _ => 2,
        }
    }
}

/// A commit on its way. `ops` are in order of table and key, each key once.
#[derive(Debug)]
pub(crate) struct Commit {
    pub(crate) ops: Vec<Op>,
    /// What the transaction saw and read; nothing to check without.
    pub(crate) reads: Option<(CommitSeq, ReadSet)>,
    pub(crate) durability: Durability,
    /// What its caller found out about the pages it will touch.
    pub(crate) known: Known,
}

/// A commit that took effect.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Committed {
    pub(crate) seq: CommitSeq,
    /// Where its record ends in the log.
    pub(crate) position: LogPosition,
}

/// Why the section was left without a commit. Nothing has changed.
#[derive(Debug)]
pub(crate) enum Refused {
    /// Something is missing: wait for it, gather again, and come back.
    Wait(Wait),
    /// It needs more frames than private edits may ever hold: take the exclusive way.
    TooLarge,
    /// A large commit holds the section: wait for the turn.
    Occupied,
    /// What the transaction read was changed; retrying makes sense once this position is durable.
    Conflict(LogPosition),
}

impl From<Wait> for Refused {
    fn from(wait: Wait) -> Self {
        Self::Wait(wait)
    }
}

/// See the module.
pub(crate) struct Commits<S, L> {
    store: Arc<S>,
    log: Arc<L>,
    section: Mutex<Section>,
    /// Who may hold the section over a wait.
    turn: Arc<Gate>,
    visibility: Arc<Visibility<S>>,
    poisoned: OnceLock<Error>,
}

#[derive(Debug)]
struct Section {
    last: Committed,
    occupied: bool,
    recent: Recent,
}

impl<S: Store, L: CommitLog> Commits<S, L> {
    /// Begins after commit `last`, which `visibility` began with as well, with so much memory for recent commits.
    pub(crate) fn new(
        store: Arc<S>,
        log: Arc<L>,
        visibility: Arc<Visibility<S>>,
        last: CommitSeq,
        recent_bytes_max: usize,
    ) -> Self {
        let last = Committed { seq: last, position: LogPosition::default() };
        Self {
            store,
            log,
            section: Mutex::new(Section { last, occupied: false, recent: Recent::new(recent_bytes_max) }),
            turn: Gate::new(1),
            visibility,
            poisoned: OnceLock::new(),
        }
    }

    /// Memory that the list of recent commits takes.
    pub(crate) fn recent_bytes(&self) -> usize {
        self.lock().recent.memory_bytes()
    }

    /// What must become durable before `seq` is visible; `None` when it is.
    pub(crate) fn held_up_by(&self, seq: CommitSeq) -> Option<LogPosition> {
        self.visibility.held_up_by(seq)
    }

    /// The newest commit.
    pub(crate) fn last(&self) -> Committed {
        self.lock().last
    }

    /// The turn that [`Commits::occupy`] wants.
    pub(crate) fn turn(&self) -> &Arc<Gate> {
        &self.turn
    }

    /// Begins a transaction at what is visible now. To be ended with [`Commits::end`].
    pub(crate) fn begin(&self) -> S::Snapshot {
        let mut section = self.lock();
        let snapshot = self.store.snapshot();
        section.recent.open(snapshot.seq());
        snapshot
    }

    /// Ends the transaction that saw `seq`.
    pub(crate) fn end(&self, seq: CommitSeq) {
        self.lock().recent.close(seq);
    }

    /// Looks for what `ops` will touch: appends to `waits` the pages that are missing, at most `pages_max`, and answers
    /// a long value that will be replaced and whose pages are not known yet.
    pub(crate) fn gather(
        &self,
        ops: &[Op],
        known: &Known,
        pages_max: usize,
        waits: &mut Vec<Wait>,
    ) -> Result<Option<OverflowRef>> {
        let tip = self.store.tip();
        let mut last = None;
        for op in ops {
            let (tree, key) = op.target();
            let long = |held: Option<Held<'_>>| match held {
                Some(Held::Overflow(value)) => Some(value),
                _ => None,
            };
            let unknown = || -> Attempt<Option<OverflowRef>> {
                let Some(value) = tree.get_with(&tip, key, long)? else { return Ok(None) };
                let is_known = known.pages_of(&tip, &value)?.is_some();
                Ok((!is_known).then_some(value))
            };
            match unknown() {
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
                        break;
                    }
                }
            }
        }
        Ok(None)
    }

    /// The same while nobody publishes anything; `None` while a large commit holds the section.
    pub(crate) fn gather_undisturbed(
        &self,
        ops: &[Op],
        known: &Known,
        pages_max: usize,
        waits: &mut Vec<Wait>,
    ) -> Option<Result<Option<OverflowRef>>> {
        let section = self.lock();
        (!section.occupied).then(|| self.gather(ops, known, pages_max, waits))
    }

    /// Whether nothing was published since commit `seq` was the newest.
    pub(crate) fn is_quiet_since(&self, seq: CommitSeq) -> bool {
        let section = self.lock();
        section.last.seq == seq && !section.occupied
    }

    /// Commits, or answers why not with nothing changed. `record` is what [`encode`] made of the ops.
    pub(crate) fn commit(&self, commit: &Commit, record: &[u8]) -> std::result::Result<Committed, Refused> {
        let mut section = self.enter()?;
        if section.occupied {
            return Err(Refused::Occupied);
        }
        section.check(commit)?;
        let seq = section.last.seq.next();
        let frames: usize = commit.ops.iter().map(|op| op.frames(self.store.page_bytes())).sum();
        if frames > self.store.edit_frames_max() {
            return Err(Refused::TooLarge);
        }
        let too_large = |wait: &Wait| matches!(wait, Wait::Full { frames } if *frames > self.store.edit_frames_max());
        let applied = || {
            let mut edits = self.store.edits();
            edits.reserve(frames)?;
            for op in &commit.ops {
                apply(&mut edits, op, seq, None, &commit.known, Damage::Refuse)?;
            }
            let position = self.log.append(seq, &[record], Some(commit.durability))?;
            Ok((edits, position))
        };
        let (edits, position) = match applied() {
            Ok(applied) => applied,
            Err(wait) if too_large(&wait) => return Err(Refused::TooLarge),
            Err(wait) => return Err(wait.into()),
        };
        self.store.publish(edits, seq);
        self.note(&mut section, &commit.ops, commit.durability, Committed { seq, position });
        drop(section);
        self.clear_up_after(commit.durability);
        Ok(Committed { seq, position })
    }

    /// Whether a commit is for the exclusive way from the start.
    pub(crate) fn is_large(&self, commit: &Commit, record_bytes: usize) -> bool {
        let page_bytes = self.store.page_bytes();
        let frames: usize = commit.ops.iter().map(|op| op.frames(page_bytes)).sum();
        let drops = commit.ops.iter().any(|op| matches!(op, Op::DropTable { .. }));
        drops || frames + 16 > self.store.edit_frames_max() || record_bytes > self.log.piece_bytes_max()
    }

    /// Takes the section for as long as the answer lives. `turn` is a permit of [`Commits::turn`].
    pub(crate) fn occupy(self: &Arc<Self>, turn: Permit) -> Result<Exclusive<S, L>> {
        let mut section = self.enter().map_err(|refused| match refused {
            Refused::Wait(Wait::Failed(error)) => error,
            other => Error::new(ErrorKind::Bug, format!("entering the section met {other:?}")),
        })?;
        section.occupied = true;
        Ok(Exclusive { commits: self.clone(), _turn: turn, seq: section.last.seq.next(), stage: Stage::Untouched })
    }

    /// From now on nothing is committed any more.
    pub(crate) fn poison(&self, why: &Error) {
        let message = format!("commits are refused since an earlier failure; reopen the database: {why}");
        // The first reason is the one to tell.
        let error = self.poisoned.get_or_init(|| Error::new(ErrorKind::Poisoned, message));
        // No checkpoint can pass a commit that is never visible, so nobody else would tell those who wait for one.
        self.log.refuse(error);
    }

    /// Whether anything can still be committed.
    ///
    /// # Errors
    /// `Poisoned`, saying since when.
    pub(crate) fn check_poison(&self) -> Result<()> {
        self.poisoned.get().cloned().map_or(Ok(()), Err)
    }

    fn enter(&self) -> std::result::Result<MutexGuard<'_, Section>, Refused> {
        let section = self.lock();
        // Only now: what failed while this thread waited for the section has left half a commit in it.
        match self.poisoned.get() {
            Some(error) => Err(Refused::Wait(Wait::Failed(error.clone()))),
            None => Ok(section),
        }
    }

    fn note(&self, section: &mut Section, ops: &[Op], durability: Durability, committed: Committed) {
        section.last = committed;
        let keys = ops.iter().map(|op| {
            let (tree, key) = op.target();
            (tree.table, key)
        });
        section.recent.add(committed.seq, keys);
        self.visibility.published(committed.seq, durability, committed.position);
        section.recent.prune(self.store.visible());
    }

    /// After a commit became visible, outside of the section. Those that wait for the log leave it to whoever writes it.
    fn clear_up_after(&self, durability: Durability) {
        if durability == Durability::Deferred {
            self.store.clear_up();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Section> {
        // A panic inside the section is a broken belief; what it protects is only changed by whole steps.
        self.section.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Section {
    fn check(&self, commit: &Commit) -> std::result::Result<(), Refused> {
        match &commit.reads {
            Some((seen, reads)) if self.recent.conflicts(*seen, reads) => Err(Refused::Conflict(self.last.position)),
            _ => Ok(()),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Nothing happened yet.
    Untouched,
    /// Part of the record is in the log, which recovery ignores, or pages were published and freed again: the number is used up.
    Begun,
    /// The record is complete, or pages were published: giving up now would leave half a commit.
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
    /// The number of this commit.
    pub(crate) fn seq(&self) -> CommitSeq {
        self.seq
    }

    /// Replays: this is commit `seq`, later than all before, and its record is in the log.
    pub(crate) fn replay_as(&mut self, seq: CommitSeq) {
        self.seq = seq;
        self.stage = Stage::Committed;
    }

    /// Checks what the transaction read, as [`Commits::commit`] does.
    pub(crate) fn check(&self, commit: &Commit) -> std::result::Result<(), Refused> {
        self.commits.lock().check(commit)
    }

    /// Appends a piece of the record.
    pub(crate) fn append(&mut self, piece: &[u8], last: Option<Durability>) -> Attempt<LogPosition> {
        let position = self.commits.log.append(self.seq, &[piece], last)?;
        self.stage = if last.is_some() { Stage::Committed } else { Stage::Begun };
        Ok(position)
    }

    /// Applies ops and publishes what they changed. `at` is where the value of the only op was written, if it was.
    pub(crate) fn apply(&mut self, ops: &[Op], at: Option<OverflowRef>, known: &Known) -> Attempt<()> {
        self.edit(|edits, seq| ops.iter().try_for_each(|op| apply(edits, op, seq, at, known, Damage::Leave)))
    }

    /// Makes edits and publishes them as part of this commit.
    pub(crate) fn edit<R>(&mut self, change: impl FnOnce(&mut S::Edits<'_>, CommitSeq) -> Attempt<R>) -> Attempt<R> {
        let mut edits = self.commits.store.edits();
        let result = change(&mut edits, self.seq)?;
        self.commits.store.publish(edits, self.seq);
        self.stage = Stage::Committed;
        Ok(result)
    }

    /// Makes edits that no record describes, as all of this commit, with an empty record: after a `Wait`, `LogFull` included, nothing
    /// has happened.
    pub(crate) fn edit_and_append(
        &mut self,
        change: impl FnOnce(&mut S::Edits<'_>) -> Attempt<()>,
    ) -> Attempt<LogPosition> {
        let log = self.commits.log.clone();
        self.edit(|edits, seq| {
            change(edits)?;
            log.append(seq, &[], Some(Durability::Deferred))
        })
    }

    /// Everything that was published has been freed again: this commit does not take place.
    pub(crate) fn give_up(&mut self) {
        self.stage = Stage::Begun;
    }

    /// Pages that no record describes are published completely and take effect. The section stays held. Transactions that
    /// are open will conflict: nobody knows which keys they might have missed.
    pub(crate) fn settle(&mut self, durability: Durability, position: LogPosition) {
        self.settle_unseen(durability, position);
        self.commits.lock().recent.forget_before(self.seq);
    }

    /// The same for pages that no transaction can have read.
    pub(crate) fn settle_unseen(&mut self, durability: Durability, position: LogPosition) {
        self.stage = Stage::Finished;
        self.commits.note(&mut self.commits.lock(), &[], durability, Committed { seq: self.seq, position });
        self.commits.clear_up_after(durability);
    }

    /// All is applied: the commit takes effect.
    pub(crate) fn finish(mut self, ops: &[Op], durability: Durability, position: LogPosition) -> Committed {
        self.stage = Stage::Finished;
        let committed = Committed { seq: self.seq, position };
        let commits = self.commits.clone();
        let mut section = commits.lock();
        commits.note(&mut section, ops, durability, committed);
        if ops.iter().any(|op| matches!(op, Op::DropTable { .. })) {
            // Every key of the table has changed: open transactions conflict.
            section.recent.forget_before(self.seq);
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
            // Before anybody else can enter.
            self.commits.poison(&Error::new(ErrorKind::Poisoned, why));
        }
        let mut section = self.commits.lock();
        if self.stage == Stage::Begun {
            section.last.seq = self.seq;
        }
        section.occupied = false;
    }
}

/// What a record says that changes an unknown table.
pub(crate) fn no_such_table(table: TableId) -> Error {
    Error::new(ErrorKind::Corrupt, format!("a record of the log changes table {table}, which does not exist"))
}

/// What becomes of pages that a damaged index names as those of a long value, although they are none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Damage {
    /// The op is refused: nothing has changed yet.
    Refuse,
    /// They stay as they are: the record is in the log, and an error would keep the database from being opened.
    Leave,
}

/// Applies one op to private edits. `at` is where its value was written before, if it was.
fn apply<E: Edits + Versions>(
    edits: &mut E,
    op: &Op,
    seq: CommitSeq,
    at: Option<OverflowRef>,
    known: &Known,
    damage: Damage,
) -> Attempt<()> {
    let old = match op {
        Op::Put { tree, key, value } => {
            let cell = match at {
                Some(at) => Cell::Overflow(at),
                None if value.len() <= inline_value_bytes_max(edits.page_bytes()) => Cell::Inline(value),
                None => {
                    let mut writer = Writer::new(value);
                    // All of it at once: a value that is too long for one set of edits comes with `at`.
                    let written = writer.write(edits, tree.root, usize::MAX)?;
                    let missing = || Error::new(ErrorKind::Bug, "a long value was not written to its end");
                    Cell::Overflow(written.ok_or_else(missing)?)
                }
            };
            tree.put(edits, key, cell)?
        }
        Op::Delete { tree, key } => tree.delete_beside(edits, key, &known.unreadable)?,
        Op::DropTable { tree, name } => {
            let root = edits.page(tree.root)?.to_vec();
            let (moved, body) = edits.allocate(tree.root)?;
            body.copy_from_slice(&root);
            edits.free(tree.root);
            let note = encode_table(tree.table, moved);
            CATALOG.put(edits, &to_be_freed(tree.table), Cell::Inline(&note))?;
            CATALOG.delete_beside(edits, name, &known.unreadable)?
        }
        Op::CreateTable { name } => {
            if CATALOG.get(edits, name)?.is_some() {
                let name = String::from_utf8_lossy(name);
                return Err(Error::new(ErrorKind::AlreadyExists, format!("table {name:?} exists already")).into());
            }
            let tree = Tree::create(edits, TableId(seq.0), CATALOG.root)?;
            CATALOG.put(edits, name, Cell::Inline(&encode_table(tree.table, tree.root)))?
        }
    };
    if let Some(Replaced::Long(value)) = old {
        // Put there after `gather` looked: gather again.
        let again = || Wait::Miss(crate::pages::Missing { page: value.root, at: seq });
        let pages = known.pages_of(edits, &value)?.ok_or_else(again)?;
        let own = own_pages(edits, pages);
        if damage == Damage::Refuse && own.len() < pages.len() {
            let what =
                "a long value is said to begin here, but of its pages one holds something else or is named twice";
            return Err(Error::corrupt_page(value.root, what).into());
        }
        own.into_iter().for_each(|page| edits.free(page));
    }
    Ok(())
}

/// The table that a catalog value describes.
///
/// # Errors
/// `Corrupt` when it describes none.
pub(crate) fn table_of(name: &[u8], found: &Found) -> Result<Tree> {
    let value = if let Found::Inline(value) = found { value.as_slice() } else { &[] };
    decode_table(name, value).map(|(table, root)| Tree { root, table })
}
