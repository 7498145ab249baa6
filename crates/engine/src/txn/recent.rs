//! Which keys were committed since the oldest transaction that still runs began: what a commit is checked against.
//!
//! Kept true by: a commit is forgotten only when it is visible and no open transaction is older than it (`prune`), or when the
//! table is full; then `floor` remembers how far, and transactions that began before it conflict.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use crate::format::{CommitSeq, TableId};
use crate::tree::KeyRange;

/// What a remembered key takes besides its bytes: its place in the map and in the list of its commit, and the counts of its
/// shared allocation.
const KEY_OVERHEAD_BYTES: usize = 104;

/// A key of a table.
type Key = (TableId, Arc<[u8]>);

/// See the module.
#[derive(Debug)]
pub(crate) struct Recent {
    /// The last commit of each key.
    keys: BTreeMap<TableId, BTreeMap<Arc<[u8]>, CommitSeq>>,
    /// What each commit changed, oldest first.
    commits: VecDeque<(CommitSeq, Vec<Key>)>,
    /// Memory that all of this takes, about, and may take.
    bytes: usize,
    bytes_max: usize,
    /// Open transactions by what they see.
    open: BTreeMap<CommitSeq, usize>,
    /// Commits up to this one are forgotten. Never decreases: what is remembered of later ones may be less than all.
    floor: CommitSeq,
}

/// What a transaction has read.
#[derive(Debug, Default)]
pub(crate) struct ReadSet {
    pub(crate) keys: Vec<(TableId, Vec<u8>)>,
    pub(crate) ranges: Vec<(TableId, KeyRange)>,
}

impl Recent {
    /// Nothing yet, and `bytes_max` to remember in.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            keys: BTreeMap::new(),
            commits: VecDeque::new(),
            bytes: 0,
            bytes_max,
            open: BTreeMap::new(),
            floor: CommitSeq(0),
        }
    }

    /// A transaction begins that sees `seq`.
    pub(crate) fn open(&mut self, seq: CommitSeq) {
        *self.open.entry(seq).or_default() += 1;
    }

    /// A transaction that saw `seq` is over.
    pub(crate) fn close(&mut self, seq: CommitSeq) {
        if let Some(count) = self.open.get_mut(&seq) {
            *count -= 1;
            if *count == 0 {
                self.open.remove(&seq);
            }
        }
    }

    /// Commit `seq` changes these keys.
    pub(crate) fn add<'k>(&mut self, seq: CommitSeq, keys: impl Iterator<Item = (TableId, &'k [u8])>) {
        let keys: Vec<Key> = keys.map(|(table, key)| (table, key.into())).collect();
        for (table, key) in &keys {
            self.keys.entry(*table).or_default().insert(key.clone(), seq);
        }
        self.bytes += bytes_of(&keys);
        self.commits.push_back((seq, keys));
        while self.bytes > self.bytes_max && self.forget_oldest() {}
    }

    /// Memory it takes, about.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes
    }

    /// Forgets what nobody can ask for any more.
    pub(crate) fn prune(&mut self, visible: CommitSeq) {
        let needed_after = self.open.keys().next().copied().unwrap_or(visible).min(visible);
        while self.commits.front().is_some_and(|(seq, _)| *seq <= needed_after) {
            self.forget_oldest();
        }
    }

    /// Commit `seq` changed what cannot be listed: whoever saw less conflicts.
    pub(crate) fn forget_before(&mut self, seq: CommitSeq) {
        self.floor = self.floor.max(seq);
    }

    /// Whether anything in `reads` was changed after `seen`.
    pub(crate) fn conflicts(&self, seen: CommitSeq, reads: &ReadSet) -> bool {
        if seen < self.floor {
            return true;
        }
        let newer = |seq: &CommitSeq| *seq > seen;
        let key_changed = |(table, key): &(TableId, Vec<u8>)| {
            self.keys.get(table).and_then(|keys| keys.get(key.as_slice())).is_some_and(newer)
        };
        let range_changed = |(table, range): &(TableId, KeyRange)| {
            let end = match &range.end {
                Some(end) => Bound::Excluded(end.as_slice()),
                None => Bound::Unbounded,
            };
            let bounds = (Bound::Included(range.start.as_slice()), end);
            !range.is_empty()
                && self.keys.get(table).is_some_and(|keys| keys.range::<[u8], _>(bounds).any(|(_, seq)| newer(seq)))
        };
        reads.keys.iter().any(key_changed) || reads.ranges.iter().any(range_changed)
    }

    fn forget_oldest(&mut self) -> bool {
        let Some((seq, keys)) = self.commits.pop_front() else { return false };
        // It may lie before a commit whose keys could not be listed.
        self.floor = self.floor.max(seq);
        self.bytes -= bytes_of(&keys);
        for (table, key) in keys {
            if let Some(of_table) = self.keys.get_mut(&table)
                && of_table.get(&key) == Some(&seq)
            {
                of_table.remove(&key);
            }
        }
        true
    }
}

/// Memory for a commit of these keys.
fn bytes_of(keys: &[Key]) -> usize {
    keys.iter().map(|(_, key)| key.len() + KEY_OVERHEAD_BYTES).sum::<usize>() + size_of::<(CommitSeq, Vec<Key>)>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reads(keys: &[&str], range: Option<(&str, &str)>) -> ReadSet {
        ReadSet {
            keys: keys.iter().map(|key| (TableId(1), key.as_bytes().to_vec())).collect(),
            ranges: range
                .map(|(start, end)| (TableId(1), KeyRange { start: start.into(), end: Some(end.into()) }))
                .into_iter()
                .collect(),
        }
    }

    fn add(recent: &mut Recent, seq: u64, key: &str) {
        recent.add(CommitSeq(seq), [(TableId(1), key.as_bytes())].into_iter());
    }

    #[test]
    fn a_key_or_range_changed_since_conflicts_and_an_older_change_does_not() {
        let mut recent = Recent::new(1 << 20);
        add(&mut recent, 5, "b");
        assert!(recent.conflicts(CommitSeq(4), &reads(&["b"], None)));
        assert!(!recent.conflicts(CommitSeq(5), &reads(&["b"], None)));
        assert!(!recent.conflicts(CommitSeq(4), &reads(&["a"], Some(("c", "z")))));
        assert!(recent.conflicts(CommitSeq(4), &reads(&[], Some(("a", "c")))));
    }

    #[test]
    fn commits_are_kept_while_a_transaction_could_have_missed_them() {
        let mut recent = Recent::new(1 << 20);
        recent.open(CommitSeq(4));
        add(&mut recent, 5, "b");
        recent.prune(CommitSeq(9));
        assert!(recent.conflicts(CommitSeq(4), &reads(&["b"], None)));
        recent.close(CommitSeq(4));
        // Not yet visible: a transaction that begins now still sees what was before.
        recent.prune(CommitSeq(4));
        assert!(recent.conflicts(CommitSeq(4), &reads(&["b"], None)));
        recent.prune(CommitSeq(5));
        assert!(!recent.conflicts(CommitSeq(5), &reads(&["b"], None)));
        assert_eq!(recent.memory_bytes(), 0);
    }

    #[test]
    fn past_its_memory_the_oldest_commits_are_forgotten_and_older_transactions_conflict() {
        let mut recent = Recent::new(1000);
        recent.open(CommitSeq(0));
        (1..=20).for_each(|seq| add(&mut recent, seq, &format!("{seq}")));
        assert!(recent.memory_bytes() <= 1000, "{} bytes", recent.memory_bytes());
        assert!(recent.conflicts(CommitSeq(0), &reads(&["never written"], None)), "it may have missed anything");
        assert!(!recent.conflicts(CommitSeq(19), &reads(&["19"], None)));
        assert!(recent.conflicts(CommitSeq(19), &reads(&["20"], None)));
    }

    #[test]
    fn whoever_saw_less_than_what_could_not_be_listed_conflicts_also_when_older_commits_are_forgotten_after_it() {
        let mut recent = Recent::new(1 << 20);
        recent.open(CommitSeq(4));
        add(&mut recent, 5, "a");
        recent.open(CommitSeq(5));
        recent.add(CommitSeq(6), std::iter::empty());
        recent.forget_before(CommitSeq(6));
        recent.close(CommitSeq(4));
        recent.prune(CommitSeq(6));
        assert!(recent.conflicts(CommitSeq(5), &reads(&["z"], None)));
        // Nor when they are forgotten for want of memory.
        let mut recent = Recent::new(1000);
        recent.open(CommitSeq(4));
        (5..=9).for_each(|seq| add(&mut recent, seq, "a"));
        recent.forget_before(CommitSeq(9));
        add(&mut recent, 10, &"b".repeat(800));
        assert!(recent.conflicts(CommitSeq(8), &reads(&["z"], None)));
        assert!(!recent.conflicts(CommitSeq(9), &reads(&["z"], None)));
    }

    #[test]
    fn forgetting_an_old_change_of_a_key_keeps_its_newer_one() {
        let mut recent = Recent::new(1 << 20);
        add(&mut recent, 5, "b");
        add(&mut recent, 6, "b");
        recent.prune(CommitSeq(5));
        assert!(recent.conflicts(CommitSeq(5), &reads(&["b"], None)));
    }
}
