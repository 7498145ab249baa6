//! Serializable transactions: reads see one snapshot and what the transaction itself wrote, writes stay private, and the
//! commit succeeds only if nothing that was read has changed.

use std::collections::BTreeMap;
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
use crate::txn::{Commit, Commits, Known, Op};

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
        TransactionScan { reads: &mut self.reads, base, is_noted: false, own, shown: None, range, direction }
    }

    /// Commits.
    pub(crate) async fn commit(self, mode: Mode, durability: Durability) -> std::result::Result<(), CommitError> {
        let Self { core, seen, writes, reads } = self;
        let reads = Some((seen.snapshot.seq(), reads));
        let commit = Commit { ops: writes.into_ops(), reads, durability, known: Known::default() };
        core.commit(mode, commit).await
    }
}

/// A walk through a range inside a transaction. Dropping a wait loses no entry.
pub(crate) struct TransactionScan<'t, S: Store, L: CommitLog> {
    reads: &'t mut ReadSet,
    base: Scan<S, L>,
    /// That the walk has come to the entry of `base` that is ready, or to its end, was noted.
    is_noted: bool,
    own: std::iter::Peekable<std::vec::IntoIter<Write>>,
    /// The entry of the transaction's own that was shown last.
    shown: Option<Entry>,
    range: KeyRange,
    direction: Direction,
}

/// Where the next entry comes from.
enum Next {
    /// The one that `base` has ready.
    Base,
    /// What the transaction wrote itself.
    Own(Entry),
    /// There is none.
    End,
}

impl<S: Store, L: CommitLog> TransactionScan<'_, S, L> {
    /// The next entry.
    pub(crate) async fn next(&mut self, mode: Mode) -> Result<Option<Entry>> {
        Ok(match self.find(mode).await? {
            Next::Base => self.base.take(),
            Next::Own(entry) => Some(entry),
            Next::End => None,
        })
    }

    /// Shows the next entry where it lies.
    pub(crate) async fn next_ref(&mut self, mode: Mode) -> Result<Option<(&[u8], &[u8])>> {
        Ok(match self.find(mode).await? {
            Next::Base => self.base.show(),
            Next::Own(entry) => {
                let (key, value) = self.shown.insert(entry);
                Some((key, value))
            }
            Next::End => None,
        })
    }

    /// Finds the next entry. Whoever is told `Base` takes it from there at once.
    async fn find(&mut self, mode: Mode) -> Result<Next> {
        loop {
            self.base.make_ready(mode).await?;
            if !std::mem::replace(&mut self.is_noted, true) {
                self.note_read();
            }
            let of_base = self.base.key();
            let (is_own, is_both) = match (of_base, self.own.peek()) {
                (_, None) => (false, false),
                (None, Some(_)) => (true, false),
                (Some(base), Some((own, _))) => match self.direction {
                    Direction::Forward => (own.as_slice() <= base, own == base),
                    Direction::Reverse => (own.as_slice() >= base, own == base),
                },
            };
            if !is_own {
                let is_end = of_base.is_none();
                // At its end it stays, and what it has read is noted.
                self.is_noted = is_end;
                return Ok(if is_end { Next::End } else { Next::Base });
            }
            if is_both {
                // The transaction has another value for it.
                self.base.show();
                self.is_noted = false;
            }
            if let Some((key, Some(value))) = self.own.next() {
                return Ok(Next::Own((key, value)));
            }
        }
    }

    /// Everything from where the scan began to where `base` stands was read: that keys are absent there, too.
    fn note_read(&mut self) {
        let Some((_, read)) = self.reads.ranges.last_mut() else { return };
        match (self.base.key(), self.direction) {
            (None, _) => *read = self.range.clone(),
            (Some(key), Direction::Forward) => {
                let end = read.end.get_or_insert_default();
                end.clear();
                end.extend_from_slice(key);
                end.push(0);
            }
            (Some(key), Direction::Reverse) => {
                *read = KeyRange { start: key.to_vec(), end: self.range.end.clone() };
            }
        }
    }
}
