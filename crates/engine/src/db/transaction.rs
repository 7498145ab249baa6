//! Serializable transactions: reads see one snapshot and the transaction's own writes, writes stay private, and the
//! commit succeeds only if nothing that was read has changed.

use std::sync::Arc;

use super::commit_error::CommitError;
use super::core::Core;
use super::scan::{Entry, Scan};
use super::wait::yield_now;
use super::write_set::{OwnWrites, WriteSet};
use crate::btree::{Direction, KeyRange, Tree};
use crate::budget::Budget;
use crate::error::Result;
use crate::format::TableId;
use crate::pages::{CommitLog, Durability, Snapshot, Store};
use crate::transaction::precedence::ClaimId;
use crate::transaction::reads::ReadSet;

/// A transaction over any store and log: its snapshot, its reads and its writes.
pub(crate) struct TransactionState<S: Store, L: CommitLog> {
    core: Arc<Core<S, L>>,
    snapshot: Arc<S::Snapshot>,
    writes: WriteSet,
    reads: ReadSet,
    /// The claim that was placed for the transaction before it began, if there is one.
    claim: Option<ClaimId>,
}

impl<S: Store, L: CommitLog> TransactionState<S, L> {
    /// Begins a transaction on a snapshot of the newest visible commit. No I/O.
    pub(crate) fn begin(core: &Arc<Core<S, L>>) -> Self {
        Self::begin_with(core, None)
    }

    /// Begins a transaction as [`Self::begin`] does, after a claim was placed for it.
    pub(crate) fn begin_with(core: &Arc<Core<S, L>>, claim: Option<ClaimId>) -> Self {
        let snapshot = Arc::new(core.store.snapshot());
        let reads = ReadSet::new(core.read_set_bytes_max);
        Self { core: core.clone(), snapshot, writes: WriteSet::default(), reads, claim }
    }

    /// Returns the value of a key, as this transaction sees it.
    pub(crate) async fn get(&mut self, tree: Tree, key: &[u8]) -> Result<Option<Vec<u8>>> {
        if let Some(own) = self.writes.get(tree, key) {
            return Ok(own.clone());
        }
        self.reads.add_key(tree.table, key)?;
        self.core.reader.get_at(&self.snapshot, tree, key).await
    }

    /// Returns whether a key has a value, as this transaction sees it.
    pub(crate) async fn contains(&mut self, tree: Tree, key: &[u8]) -> Result<bool> {
        if let Some(own) = self.writes.get(tree, key) {
            return Ok(own.is_some());
        }
        self.reads.add_key(tree.table, key)?;
        self.core.reader.contains_at(&self.snapshot, tree, key).await
    }

    /// Sets or removes a key. Only this transaction sees the change until it commits.
    pub(crate) fn set(&mut self, tree: Tree, key: &[u8], value: Option<&[u8]>) {
        self.writes.set(tree, key.to_vec(), value.map(<[u8]>::to_vec));
    }

    /// Scans a range as this transaction sees it now. The part that is scanned counts as read.
    ///
    /// # Errors
    /// `TransactionTooLarge` when it has read too much to remember another range.
    pub(crate) fn scan(&mut self, tree: Tree, range: KeyRange, direction: Direction) -> Result<TransactionScan<'_, S>> {
        let own = self.writes.in_range(tree, &range, direction).peekable();
        let base = Scan::new(self.core.reader.clone(), self.snapshot.clone(), tree, range.clone(), direction);
        self.reads.begin_scan(tree.table, &range)?;
        let (reads, table) = (&mut self.reads, tree.table);
        Ok(TransactionScan {
            reads,
            table,
            base,
            is_noted: false,
            has_failed: false,
            own,
            shown: None,
            range,
            direction,
        })
    }

    /// Commits the transaction.
    pub(crate) async fn commit(self, durability: Durability) -> std::result::Result<(), CommitError> {
        let Self { core, snapshot, writes, mut reads, claim } = self;
        reads.end_scan();
        let reads = Some((snapshot.seq(), reads));
        core.committer.commit_writes(writes, reads, durability, claim).await
    }
}

/// A range scan inside a transaction. Dropping the future of a wait loses no entry.
pub(crate) struct TransactionScan<'t, S: Store> {
    reads: &'t mut ReadSet,
    table: TableId,
    base: Scan<S>,
    /// Whether the part of the range up to the entry that `base` has ready, or to its end, was added to the read set.
    is_noted: bool,
    /// Whether the scan has returned an error and is over.
    has_failed: bool,
    own: std::iter::Peekable<OwnWrites<'t>>,
    /// The entry from the transaction's own writes that was lent to the caller last.
    shown: Option<Entry>,
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

impl<S: Store> TransactionScan<'_, S> {
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

    /// Finds the next entry. On `Base` the caller must take the entry from the base scan at once.
    async fn find(&mut self) -> Result<Next> {
        let mut budget = Budget::new();
        loop {
            if self.has_failed {
                return Ok(Next::End);
            }
            self.base.make_ready().await.inspect_err(|_| self.has_failed = true)?;
            if !std::mem::replace(&mut self.is_noted, true) {
                self.note_read();
            }
            // Many keys that the transaction has removed itself may lie between two entries.
            budget.spend(1);
            if budget.is_spent() {
                budget = Budget::new();
                yield_now().await;
            }
            let of_base = self.base.key();
            let (is_own, is_both) = match (of_base, self.own.peek()) {
                (_, None) => (false, false),
                (None, Some(_)) => (true, false),
                (Some(base), Some(&(own, _))) => match self.direction {
                    Direction::Forward => (own.as_slice() <= base, own.as_slice() == base),
                    Direction::Reverse => (own.as_slice() >= base, own.as_slice() == base),
                },
            };
            if !is_own {
                let is_end = of_base.is_none();
                // At its end the scan stays there, and the range that it read is noted.
                self.is_noted = is_end;
                return Ok(if is_end { Next::End } else { Next::Base });
            }
            if is_both {
                // The transaction has a value of its own for this key, or has removed it.
                self.base.show();
                self.is_noted = false;
            }
            if let Some((key, Some(value))) = self.own.next() {
                return Ok(Next::Own((key.clone(), value.clone())));
            }
        }
    }

    /// Adds to the read set everything from where the scan began to the position of `base`, absent keys included.
    fn note_read(&mut self) {
        match (self.base.key(), self.direction) {
            (None, _) => self.reads.scanned(self.table, &self.range),
            (Some(key), Direction::Forward) => self.reads.scanned_to(self.table, key),
            (Some(key), Direction::Reverse) => {
                self.reads.scanned(self.table, &KeyRange { start: key.to_vec(), end: self.range.end.clone() });
            }
        }
    }
}
