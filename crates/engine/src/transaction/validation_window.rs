//! Keeps the keys that were committed lately, so that a commit can check its read set against them.
//!
//! For a key there is a table of fixed size ([`keys`]), for a range an ordered list of bounded length ([`order`]).
//! Neither forgets a commit: where there is no memory left for the commit number of each key, several keys share the
//! newest number among them. So an old transaction conflicts falsely now and then, the more often the more was
//! committed since it began, but never because of that alone, and no conflict is missed. Both take memory of a fixed
//! size and need no pruning, so nothing is done when a transaction begins or ends.
//!
//! Kept true by: a commit is noted in the section in which it is published, or before, while nothing else can commit.

mod keys;
mod order;

use self::keys::KeyTable;
use self::order::KeyOrder;
use super::reads::{Read, scoped};
use crate::format::{CommitSeq, TableId};
use crate::sync::budget::Budget;

/// Steps of a `Budget`, which bounds the work under one lock, that noting a key spends.
pub(crate) const STEPS_TO_NOTE: usize = 4;

/// The keys that recent commits changed: see the module.
#[derive(Debug)]
pub(crate) struct ValidationWindow {
    keys: KeyTable,
    order: KeyOrder,
    /// The last commit whose changes are not listed completely. Never decreases.
    floor: CommitSeq,
    scratch: Vec<u8>,
}

impl ValidationWindow {
    /// Creates an empty window that takes at most `bytes_max` bytes.
    pub(crate) fn new(bytes_max: usize) -> Self {
        let keys = KeyTable::new(bytes_max / 2);
        Self { keys, order: KeyOrder::new(bytes_max / 2), floor: CommitSeq(0), scratch: Vec::new() }
    }

    /// Notes that commit `seq` changes this key.
    pub(crate) fn note(&mut self, seq: CommitSeq, table: TableId, key: &[u8]) {
        scoped(table, key, &mut self.scratch);
        self.keys.note(&self.scratch, seq);
        self.order.note(&self.scratch, seq);
    }

    /// Notes that commit `seq` changed keys that cannot be listed: a transaction that saw an earlier state conflicts.
    pub(crate) fn forget_before(&mut self, seq: CommitSeq) {
        self.floor = self.floor.max(seq);
    }

    /// Returns about how many bytes of memory the window takes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.keys.memory_bytes() + self.order.memory_bytes()
    }

    /// Returns whether every transaction that saw `seen` conflicts, regardless of its reads, because some
    /// commits after `seen` are forgotten.
    pub(crate) fn is_forgotten(&self, seen: CommitSeq) -> bool {
        seen < self.floor
    }

    /// Returns whether something in `read` may have changed after commit `seen`.
    pub(crate) fn has_changed(&self, seen: CommitSeq, read: Read<'_>, budget: &mut Budget) -> bool {
        match read {
            Read::Key(key) => {
                budget.spend(1);
                self.keys.newest(key) > seen
            }
            Read::Range(start, end) => self.order.newest(start, end, budget) > seen,
        }
    }
}

#[cfg(test)]
mod tests;
