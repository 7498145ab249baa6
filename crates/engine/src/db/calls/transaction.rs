//! Serializable transactions: reads see one snapshot and the transaction's own writes, writes stay private, and the
//! commit succeeds only if nothing that was read has changed.
//!
//! A transaction is shared: its handle, its scans and the call that will commit it each keep it, and any of them may be
//! used while others wait for pages. What it has read and written lies behind a lock held for one key at a time,
//! never across a wait.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::bounds::skip_to_after;
use super::commit_error::CommitError;
use super::core::Core;
use super::many::get_many_at;
use super::scan::{Entry, Scan};
use super::wait::yield_now;
use super::write_set::{NewValue, WriteSet};
use crate::btree::{Direction, KeyRange, Tree};
use crate::error::{Error, ErrorKind, Result};
use crate::format::Moment;
use crate::pages::{CommitLog, Durability, Snapshot, Store};
use crate::sync::budget::Budget;
use crate::transaction::precedence::ClaimId;
use crate::transaction::reads::{ReadSet, ScanId};

/// A transaction over any store and log: its snapshot, its reads and its writes.
pub(crate) struct TransactionState<S: Store, L: CommitLog> {
    core: Arc<Core<S, L>>,
    snapshot: Arc<S::Snapshot>,
    /// `None` from the moment at which the transaction commits or is given up.
    sets: Mutex<Option<Sets>>,
    /// The claim placed for the transaction before it began, if there is one.
    claim: Option<ClaimId>,
}

/// The reads and the writes of a transaction.
#[derive(Default)]
struct Sets {
    writes: WriteSet,
    reads: ReadSet,
    /// Number of calls that set or removed a key: while it stays the same, no scan looks again for writes to come.
    changes: u64,
    /// The savepoints that can be gone back to, oldest first, each with the length of `replaced` at its moment.
    savepoints: Vec<(SavepointId, usize)>,
    /// The writes replaced since the first savepoint, oldest first.
    replaced: Vec<ReplacedWrite>,
}

impl Sets {
    fn set(&mut self, tree: Tree, key: Vec<u8>, value: Option<NewValue>) {
        self.changes += 1;
        if self.savepoints.is_empty() {
            self.writes.set(tree, key, value);
        } else {
            let before = self.writes.replace(tree, key.clone(), value);
            self.replaced.push(ReplacedWrite { tree, key, before });
        }
    }
}

/// Identifies a savepoint among the savepoints of all transactions of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SavepointId(u64);

/// A write that another write of the same transaction has replaced.
struct ReplacedWrite {
    tree: Tree,
    key: Vec<u8>,
    /// The write before, if there was one.
    before: Option<Option<NewValue>>,
}

impl<S: Store, L: CommitLog> TransactionState<S, L> {
    /// Begins a transaction on a snapshot of the newest visible commit. No I/O.
    pub(crate) fn begin(core: &Arc<Core<S, L>>) -> Arc<Self> {
        Self::begin_with(core, None)
    }

    /// Begins a transaction as [`Self::begin`] does, after a claim was placed for it.
    pub(crate) fn begin_with(core: &Arc<Core<S, L>>, claim: Option<ClaimId>) -> Arc<Self> {
        // Before the snapshot is taken.
        let open = core.commits.open_transaction();
        let snapshot = Arc::new(core.store.snapshot());
        let sets = Sets { reads: ReadSet::of(open, core.read_set_bytes_max), ..Sets::default() };
        Arc::new(Self { core: core.clone(), snapshot, sets: Mutex::new(Some(sets)), claim })
    }

    /// Returns the value of a key, as this transaction sees it.
    pub(crate) async fn get(&self, tree: Tree, key: &[u8]) -> Result<Option<Vec<u8>>> {
        if let Some(own) = self.own_or_read(tree, key, value_of)? {
            return Ok(own);
        }
        self.core.reader.get_at(&self.snapshot, tree, key).await
    }

    /// Returns whether a key has a value, as this transaction sees it.
    pub(crate) async fn contains(&self, tree: Tree, key: &[u8]) -> Result<bool> {
        if let Some(own) = self.own_or_read(tree, key, |own| own.is_some())? {
            return Ok(own);
        }
        self.core.reader.contains_at(&self.snapshot, tree, key).await
    }

    /// Shows the value of a key, as this transaction sees it, to `look`.
    pub(crate) async fn get_with<R>(&self, tree: Tree, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        // An own value is copied, because `look` is the caller's and must not run under the lock.
        if let Some(own) = self.own_or_read(tree, key, value_of)? {
            return Ok(look(own.as_deref()));
        }
        self.core.reader.get_with_at(&self.snapshot, tree, key, look).await
    }

    /// Returns the values of many keys, as this transaction sees them, in the order of `keys`.
    pub(crate) async fn get_many<K: AsRef<[u8]>>(&self, tree: Tree, keys: &[K]) -> Result<Vec<Option<Vec<u8>>>> {
        let (mut values, mut others) = (vec![None; keys.len()], Vec::new());
        let mut budget = Budget::new();
        for (number, key) in keys.iter().enumerate() {
            match self.own_or_read(tree, key.as_ref(), value_of)? {
                Some(own) => values[number] = own,
                None => others.push(number),
            }
            budget.spend(1);
            if budget.is_spent() {
                budget = Budget::new();
                yield_now().await;
            }
        }
        drop(budget);
        let of_snapshot: Vec<_> = others.iter().map(|number| keys[*number].as_ref()).collect();
        let found = get_many_at(&self.core.reader, &self.snapshot, tree, &of_snapshot).await?;
        others.into_iter().zip(found).for_each(|(number, value)| values[number] = value);
        Ok(values)
    }

    /// Returns the moment at which a key expires, as this transaction sees it; `None` when the key is absent.
    pub(crate) async fn expiry(&self, tree: Tree, key: &[u8]) -> Result<Option<Moment>> {
        if let Some(own) = self.own_or_read(tree, key, |own| own.map(|own| own.expiry))? {
            return Ok(own);
        }
        Ok(self.core.reader.expiry_at(&self.snapshot, tree, key).await?.filter(|expiry| *expiry > self.moment()))
    }

    /// Returns the moment as of which the transaction sees entries that expire.
    fn moment(&self) -> Moment {
        self.snapshot.moment()
    }

    /// Sets or removes a key, as [`Self::set_until`] does; its value does not expire.
    ///
    /// # Errors
    /// `InvalidCall` when the transaction has ended.
    pub(crate) fn set(&self, tree: Tree, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        self.set_until(tree, key, value, Moment::NEVER)
    }

    /// Sets or removes a key, which expires at `expiry`. Only this transaction sees the change until it commits.
    ///
    /// # Errors
    /// `InvalidCall` when the transaction has ended.
    pub(crate) fn set_until(&self, tree: Tree, key: &[u8], value: Option<&[u8]>, expiry: Moment) -> Result<()> {
        let key = key.to_vec();
        let value = value.map(|value| NewValue::until(value.to_vec(), expiry, self.moment()));
        self.with_sets(|sets| {
            sets.set(tree, key, value);
            Ok(())
        })
    }

    /// Notes the moment, so that the writes after it can be undone.
    ///
    /// # Errors
    /// `InvalidCall` when the transaction has ended.
    pub(crate) fn savepoint(&self) -> Result<SavepointId> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = SavepointId(NEXT.fetch_add(1, Ordering::Relaxed));
        self.with_sets(|sets| {
            sets.savepoints.push((id, sets.replaced.len()));
            Ok(id)
        })
    }

    /// Undoes the writes since a savepoint. What was read stays read.
    ///
    /// # Errors
    /// `InvalidCall` when the savepoint is another transaction's or lies after one that was gone back to, and when the
    /// transaction has ended.
    pub(crate) fn roll_back_to(&self, savepoint: SavepointId) -> Result<()> {
        self.with_sets(|sets| {
            let Some(index) = sets.savepoints.iter().position(|(id, _)| *id == savepoint) else {
                let what = "the savepoint is another transaction's, or an earlier one was gone back to since";
                return Err(Error::new(ErrorKind::InvalidCall, what));
            };
            let (_, len) = sets.savepoints[index];
            sets.savepoints.truncate(index + 1);
            sets.changes += 1;
            for ReplacedWrite { tree, key, before } in sets.replaced.drain(len..).rev() {
                match before {
                    Some(value) => sets.writes.set(tree, key, value),
                    None => sets.writes.remove(tree, &key),
                }
            }
            Ok(())
        })
    }

    /// Scans a range. The part that is scanned counts as read. Of the transaction's own writes it shows those made
    /// before it reaches their keys.
    ///
    /// # Errors
    /// `TransactionTooLarge` when it has read too much to remember another range; `InvalidCall` when it has ended.
    pub(crate) fn scan(
        self: &Arc<Self>,
        tree: Tree,
        range: KeyRange,
        direction: Direction,
    ) -> Result<TransactionScan<S, L>> {
        let base = Scan::new(self.core.reader.clone(), self.snapshot.clone(), tree, range.clone(), direction);
        let id = self.with_sets(|sets| sets.reads.begin_scan(tree.table, &range))?;
        Ok(TransactionScan {
            transaction: self.clone(),
            id,
            tree,
            base,
            is_noted: false,
            failed: None,
            left: u64::MAX,
            is_over: false,
            own: None,
            own_as_of: None,
            shown: None,
            own_expiry: None,
            own_rest: range.clone(),
            range,
            direction,
        })
    }

    /// Commits the transaction.
    pub(crate) async fn commit(&self, durability: Durability) -> std::result::Result<(), CommitError> {
        let Some(Sets { writes, mut reads, .. }) = self.lock().take() else { return Err(ended().into()) };
        reads.end_scans();
        let reads = Some((self.snapshot.seq(), reads));
        let writes = self.core.expiries.complete(writes).await?;
        self.core.committer.commit_writes(writes, reads, durability, self.claim).await
    }

    /// Ends the transaction without a commit: calls through handles that are left fail.
    pub(crate) fn give_up(&self) {
        let sets = self.lock().take();
        drop(sets);
    }

    /// Returns the transaction's own write to a key, as `copy` returns it; or `None`, and then the key counts as read. An
    /// own value that has expired is absent, as one that was removed.
    fn own_or_read<R>(&self, tree: Tree, key: &[u8], copy: impl FnOnce(Option<&NewValue>) -> R) -> Result<Option<R>> {
        let moment = self.moment();
        self.with_sets(|sets| match sets.writes.get(tree, key) {
            Some(own) => Ok(Some(copy(own.as_ref().filter(|own| own.expiry > moment)))),
            None => sets.reads.add_key(tree.table, key).map(|()| None),
        })
    }

    fn with_sets<R>(&self, with: impl FnOnce(&mut Sets) -> Result<R>) -> Result<R> {
        with(self.lock().as_mut().ok_or_else(ended)?)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Sets>> {
        self.sets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn value_of(own: Option<&NewValue>) -> Option<Vec<u8>> {
    own.map(|own| own.value.clone())
}

fn ended() -> Error {
    Error::new(ErrorKind::InvalidCall, "the transaction has ended: it was committed or given up")
}

impl<S: Store, L: CommitLog> std::fmt::Debug for TransactionState<S, L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Transaction(commit {})", self.snapshot.seq())
    }
}

/// A range scan inside a transaction. Dropping the future of a wait loses no entry.
pub(crate) struct TransactionScan<S: Store, L: CommitLog> {
    transaction: Arc<TransactionState<S, L>>,
    id: ScanId,
    tree: Tree,
    base: Scan<S>,
    /// Whether the part of the range up to the entry that `base` has ready, or to its end, was added to the read set.
    is_noted: bool,
    /// The error of a call before the first entry was asked for.
    failed: Option<Error>,
    /// Number of entries that the scan may still return.
    left: u64,
    /// Whether the scan has returned an error or the end: it stays over, also when the transaction writes more.
    is_over: bool,
    /// The transaction's next own write in `own_rest`, as of so many changes; `None` in `own_as_of` when it has yet to
    /// be looked up.
    own: Option<(Vec<u8>, Option<NewValue>)>,
    own_as_of: Option<u64>,
    /// The entry from the transaction's own writes that was lent to the caller last.
    shown: Option<Entry>,
    /// The moment at which the entry expires that was returned last, if it was one of the transaction's own writes.
    own_expiry: Option<Moment>,
    /// The part of the range that the scan has not reached.
    own_rest: KeyRange,
    range: KeyRange,
    direction: Direction,
}

/// The source of the next entry.
enum Next {
    /// The next entry of the snapshot, which the scan `base` has ready.
    Base,
    /// An entry that the transaction wrote itself.
    Own(Entry),
    /// There is no next entry.
    End,
}

impl<S: Store, L: CommitLog> TransactionScan<S, L> {
    /// Sets the direction of a scan that has not begun.
    pub(crate) fn set_direction(&mut self, direction: Direction) {
        self.direction = direction;
        self.base.set_direction(direction);
    }

    /// Leaves out the values of entries that the transaction has not written, as [`Scan::set_keys_only`] does.
    pub(crate) fn set_keys_only(&mut self) {
        self.base.set_keys_only();
    }

    /// Limits read-ahead to this many leaves.
    pub(crate) fn set_read_ahead_max(&mut self, leaves: usize) {
        self.base.set_read_ahead_max(leaves);
    }

    /// Leaves out the keys up to and including `key`, in the direction of the scan, which has not begun. They do not count as
    /// read.
    pub(crate) fn skip_to_after(&mut self, key: &[u8]) {
        skip_to_after(&mut self.range, key, self.direction);
        self.own_rest.clone_from(&self.range);
        self.base.skip_to_after(key);
        let Self { transaction, id, tree, range, .. } = self;
        let begun = transaction.with_sets(|sets| {
            sets.reads.end_scan(*id);
            sets.reads.begin_scan(tree.table, range)
        });
        match begun {
            Ok(begun) => *id = begun,
            Err(error) => self.failed = Some(error),
        }
    }

    /// Sets how many entries the scan may still return.
    pub(crate) fn set_limit(&mut self, entries: u64) {
        self.left = entries;
    }

    /// Returns the moment at which the entry returned last expires.
    pub(crate) fn expiry(&self) -> Moment {
        self.own_expiry.unwrap_or_else(|| self.base.expiry())
    }

    /// Returns the next entry.
    pub(crate) async fn next(&mut self) -> Result<Option<Entry>> {
        Ok(match self.find().await? {
            Next::Base => self.base.take(),
            Next::Own(entry) => Some(entry),
            Next::End => None,
        })
    }

    /// Lends the next entry without copying it.
    pub(crate) async fn next_ref(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        Ok(match self.find().await? {
            Next::Base => self.base.show(),
            Next::Own(entry) => {
                let (key, value) = self.shown.insert(entry);
                Some((key, value))
            }
            Next::End => None,
        })
    }

    /// Finds the next entry, as [`Self::look`] does, or returns an error once.
    async fn find(&mut self) -> Result<Next> {
        if self.is_over || self.left == 0 {
            return Ok(Next::End);
        }
        let next = match self.failed.take() {
            Some(error) => Err(error),
            None => self.look().await,
        };
        match next {
            Ok(Next::Base | Next::Own(_)) => self.left -= 1,
            Ok(Next::End) | Err(_) => self.is_over = true,
        }
        next
    }

    /// Finds the next entry. On `Base` the caller must take the entry from the base scan at once.
    async fn look(&mut self) -> Result<Next> {
        let mut budget = Budget::new();
        loop {
            self.base.make_ready().await?;
            self.look_at_sets()?;
            // Many keys that the transaction has removed itself may lie between two entries.
            budget.spend(1);
            if budget.is_spent() {
                budget = Budget::new();
                yield_now().await;
            }
            let of_base = self.base.key();
            let (is_own, is_both) = match (of_base, &self.own) {
                (_, None) => (false, false),
                (None, Some(_)) => (true, false),
                (Some(base), Some((own, _))) => match self.direction {
                    Direction::Forward => (own.as_slice() <= base, own.as_slice() == base),
                    Direction::Reverse => (own.as_slice() >= base, own.as_slice() == base),
                },
            };
            if !is_own {
                let Some(key) = of_base else { return Ok(Next::End) };
                pass(&mut self.own_rest, self.direction, key);
                self.is_noted = false;
                self.own_expiry = None;
                return Ok(Next::Base);
            }
            if is_both {
                // The transaction has written this key, or has removed it.
                self.base.show();
                self.is_noted = false;
            }
            if let Some((key, value)) = self.own.take() {
                pass(&mut self.own_rest, self.direction, &key);
                self.own_as_of = None;
                if let Some(NewValue { value, expiry, .. }) = value {
                    self.own_expiry = Some(expiry);
                    return Ok(Next::Own((key, value)));
                }
            }
        }
    }

    /// Adds the part of the range up to the entry that `base` has ready to the read set, absent keys included, and looks
    /// for the next own write, each unless that was done before.
    fn look_at_sets(&mut self) -> Result<()> {
        let Self { transaction, id, tree, base, is_noted, own, own_as_of, own_rest, range, direction, .. } = self;
        let moment = transaction.moment();
        transaction.with_sets(|sets| {
            if !std::mem::replace(is_noted, true) {
                match (base.key(), *direction) {
                    (None, _) => sets.reads.scanned(*id, tree.table, range),
                    (Some(key), Direction::Forward) => sets.reads.scanned_to(*id, tree.table, key),
                    (Some(key), Direction::Reverse) => {
                        let read = KeyRange { start: key.to_vec(), end: range.end.clone() };
                        sets.reads.scanned(*id, tree.table, &read);
                    }
                }
            }
            if own_as_of.replace(sets.changes) != Some(sets.changes) {
                let next = sets.writes.next_in(*tree, own_rest, *direction);
                let unexpired = |value: &Option<NewValue>| value.clone().filter(|value| value.expiry > moment);
                *own = next.map(|(key, value)| (key.clone(), unexpired(value)));
            }
            Ok(())
        })
    }
}

impl<S: Store, L: CommitLog> Drop for TransactionScan<S, L> {
    fn drop(&mut self) {
        if let Some(sets) = &mut *self.transaction.lock() {
            sets.reads.end_scan(self.id);
        }
    }
}

/// Shortens the rest of a range to the part behind `key`, in the direction of the scan.
fn pass(rest: &mut KeyRange, direction: Direction, key: &[u8]) {
    match direction {
        Direction::Forward => {
            rest.start.clear();
            rest.start.extend_from_slice(key);
            rest.start.push(0);
        }
        Direction::Reverse => {
            let end = rest.end.get_or_insert_default();
            end.clear();
            end.extend_from_slice(key);
        }
    }
}
