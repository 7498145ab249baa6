//! Serializable transactions: reads see one snapshot and what the transaction itself wrote, writes stay private, and the
//! commit succeeds only if nothing that was read has changed.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use super::commit::CommitError;
use super::core::Core;
use super::scan::{Entry, Scan};
use super::wait::Mode;
use crate::error::Result;
use crate::format::TableId;
use crate::pages::{CommitLog, Durability, Snapshot, Store};
use crate::tree::{Direction, KeyRange, Tree};
use crate::txn::recent::ReadSet;
use crate::txn::{Commit, Commits, Op};

/// A key and its new value; `None` removes it.
type Write = (Vec<u8>, Option<Vec<u8>>);

/// Private writes, by table and key.
#[derive(Debug, Default, Clone)]
pub(crate) struct WriteSet(BTreeMap<TableId, TableWrites>);

#[derive(Debug, Clone)]
struct TableWrites {
    tree: Tree,
    keys: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
}

impl WriteSet {
    /// Sets or removes a key; the last word counts.
    pub(crate) fn set(&mut self, tree: Tree, key: Vec<u8>, value: Option<Vec<u8>>) {
        let of_table = self.0.entry(tree.table).or_insert_with(|| TableWrites { tree, keys: BTreeMap::new() });
        of_table.keys.insert(key, value);
    }

    /// Whether nothing was set or removed.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many keys were set or removed.
    pub(crate) fn len(&self) -> usize {
        self.0.values().map(|writes| writes.keys.len()).sum()
    }

    fn get(&self, tree: Tree, key: &[u8]) -> Option<&Option<Vec<u8>>> {
        self.0.get(&tree.table)?.keys.get(key)
    }

    /// What was set or removed in a range, in the order of a scan.
    fn in_range(&self, tree: Tree, range: &KeyRange, direction: Direction) -> Vec<Write> {
        let Some(TableWrites { keys, .. }) = self.0.get(&tree.table).filter(|_| !range.is_empty()) else {
            return Vec::new();
        };
        let end = range.end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let found = keys.range::<[u8], _>((Bound::Included(range.start.as_slice()), end));
        let mut found: Vec<_> = found.map(|(key, value)| (key.clone(), value.clone())).collect();
        if direction == Direction::Reverse {
            found.reverse();
        }
        found
    }

    /// As ops, in order of table and key.
    pub(crate) fn into_ops(self) -> Vec<Op> {
        let op = |tree, (key, value)| match value {
            Some(value) => Op::Put { tree, key, value },
            None => Op::Delete { tree, key },
        };
        let of_table = |writes: TableWrites| writes.keys.into_iter().map(move |entry| op(writes.tree, entry));
        self.0.into_values().flat_map(of_table).collect()
    }
}

/// What a transaction sees. Registered with the commits, so that they remember what it might have missed.
struct Seen<S: Store, L: CommitLog> {
    commits: Arc<Commits<S, L>>,
    snapshot: Arc<S::Snapshot>,
}

impl<S: Store, L: CommitLog> Drop for Seen<S, L> {
    fn drop(&mut self) {
        self.commits.end(self.snapshot.seq());
    }
}

/// See the module.
pub(crate) struct Transaction<S: Store, L: CommitLog> {
    core: Arc<Core<S, L>>,
    seen: Seen<S, L>,
    writes: WriteSet,
    reads: ReadSet,
}

impl<S: Store, L: CommitLog> Transaction<S, L> {
    /// Begins at what is visible now. No I/O.
    pub(crate) fn begin(core: &Arc<Core<S, L>>) -> Self {
        let snapshot = Arc::new(core.commits.begin());
        let seen = Seen { commits: core.commits.clone(), snapshot };
        Self { core: core.clone(), seen, writes: WriteSet::default(), reads: ReadSet::default() }
    }

    /// The value of a key, as this transaction sees it.
    pub(crate) async fn get(&mut self, mode: Mode, tree: Tree, key: &[u8]) -> Result<Option<Vec<u8>>> {
        if let Some(own) = self.writes.get(tree, key) {
            return Ok(own.clone());
        }
        self.reads.keys.push((tree.table, key.to_vec()));
        self.core.get_at(mode, &self.seen.snapshot, tree, key).await
    }

    /// Sets or removes a key, for this transaction only until it commits.
    pub(crate) fn set(&mut self, tree: Tree, key: &[u8], value: Option<&[u8]>) {
        self.writes.set(tree, key.to_vec(), value.map(<[u8]>::to_vec));
    }

    /// Walks a range as this transaction sees it now. What was walked over counts as read.
    pub(crate) fn scan(&mut self, tree: Tree, range: KeyRange, direction: Direction) -> TransactionScan<'_, S, L> {
        let own = self.writes.in_range(tree, &range, direction).into_iter().peekable();
        let base = Scan::new(self.core.clone(), self.seen.snapshot.clone(), tree, range.clone(), direction);
        let nothing = KeyRange { start: range.start.clone(), end: Some(range.start.clone()) };
        self.reads.ranges.push((tree.table, nothing));
        TransactionScan { reads: &mut self.reads, base, own, ahead: None, range, direction }
    }

    /// Commits.
    pub(crate) async fn commit(self, mode: Mode, durability: Durability) -> std::result::Result<(), CommitError> {
        let Self { core, seen, writes, reads } = self;
        let reads = Some((seen.snapshot.seq(), reads));
        let commit = Commit { ops: writes.into_ops(), reads, durability, replaced: HashMap::new() };
        core.commit(mode, commit).await
    }
}

/// A walk through a range inside a transaction.
pub(crate) struct TransactionScan<'t, S: Store, L: CommitLog> {
    reads: &'t mut ReadSet,
    base: Scan<S, L>,
    own: std::iter::Peekable<std::vec::IntoIter<Write>>,
    /// The next entry of `base`, when it was looked at already.
    ahead: Option<Entry>,
    range: KeyRange,
    direction: Direction,
}

impl<S: Store, L: CommitLog> TransactionScan<'_, S, L> {
    /// The next entry.
    pub(crate) async fn next(&mut self, mode: Mode) -> Result<Option<Entry>> {
        loop {
            if self.ahead.is_none() {
                self.ahead = self.base.next(mode).await?;
                self.note_read();
            }
            let own_first = match (&self.ahead, self.own.peek()) {
                (_, None) => false,
                (None, Some(_)) => true,
                (Some((base, _)), Some((own, _))) => match self.direction {
                    Direction::Forward => own <= base,
                    Direction::Reverse => own >= base,
                },
            };
            if !own_first {
                return Ok(self.ahead.take());
            }
            let Some((key, value)) = self.own.next() else { continue };
            if self.ahead.as_ref().is_some_and(|(base, _)| *base == key) {
                self.ahead = None;
            }
            if let Some(value) = value {
                return Ok(Some((key, value)));
            }
        }
    }

    /// Everything from where the scan began to where `base` stands was read: that keys are absent there, too.
    fn note_read(&mut self) {
        let Some((_, read)) = self.reads.ranges.last_mut() else { return };
        match (&self.ahead, self.direction) {
            (None, _) => *read = self.range.clone(),
            (Some((key, _)), Direction::Forward) => read.end = Some([key.as_slice(), &[0]].concat()),
            (Some((key, _)), Direction::Reverse) => {
                *read = KeyRange { start: key.clone(), end: self.range.end.clone() };
            }
        }
    }
}
