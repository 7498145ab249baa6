//! The values that a read may return while other threads write: each value carries the number of its change. A read
//! that began after a change was committed must not return an older value, nor a value whose change no thread has
//! begun.
//!
//! Kept true by: changes of one key are made under a lock, so that they are committed in the order of their numbers.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::entries::{Data, Key};

/// Number of locks that the keys share: enough that writers of different keys hardly ever wait for each other.
const STRIPES: usize = 1 << 14;

/// The changes that one trial makes to each key. Changes of earlier trials have smaller numbers.
pub(super) struct History {
    data: Data,
    base: u64,
    began: Vec<AtomicU32>,
    done: Vec<AtomicU32>,
    stripes: Vec<Mutex<()>>,
    /// Number of entries that are inserted and may be read.
    known: AtomicU64,
    inserting: Mutex<()>,
}

/// A change in progress, which excludes other changes of its key. Pass it to [`History::committed`] once it is
/// committed.
pub(super) struct Change<'a> {
    pub(super) entry: (Key, Vec<u8>),
    number: u64,
    version: u32,
    _turn: MutexGuard<'a, ()>,
}

impl History {
    /// Starts the history of a table with `known` entries; `base` must be larger than the number of any change in an
    /// earlier trial.
    pub(super) fn new(data: Data, known: u64, base: u64) -> Self {
        let counters = || (0..data.count).map(|_| AtomicU32::new(0)).collect();
        let stripes = (0..STRIPES).map(|_| Mutex::new(())).collect();
        let (began, done) = (counters(), counters());
        Self { data, base, began, done, stripes, known: AtomicU64::new(known), inserting: Mutex::new(()) }
    }

    /// Number of inserted entries.
    pub(super) fn known(&self) -> u64 {
        self.known.load(Ordering::Acquire)
    }

    /// Begins a change of entry `number`, which must be loaded; waits while another change of the same key is in
    /// progress.
    pub(super) fn change(&self, number: u64) -> Change<'_> {
        let turn = self.stripes[number as usize % STRIPES].lock().unwrap_or_else(PoisonError::into_inner);
        let version = match self.began.get(number as usize) {
            Some(began) => began.fetch_add(1, Ordering::AcqRel).wrapping_add(1),
            None => 0,
        };
        let entry = self.data.changed(number, self.base + u64::from(version));
        Change { entry, number, version, _turn: turn }
    }

    /// Records that a change was committed.
    pub(super) fn committed(&self, change: Change<'_>) {
        if let Some(done) = self.done.get(change.number as usize) {
            done.store(change.version, Ordering::Release);
        }
    }

    /// Returns the next entry to insert, and a lock that excludes other inserts; [`History::inserted`] makes the entry
    /// known.
    pub(super) fn insert(&self) -> (MutexGuard<'_, ()>, (Key, Vec<u8>)) {
        let turn = self.inserting.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = self.data.changed(self.known(), self.base);
        (turn, entry)
    }

    /// Records that the next entry was inserted, and lets other inserts proceed.
    pub(super) fn inserted(&self, turn: MutexGuard<'_, ()>) {
        self.known.fetch_add(1, Ordering::AcqRel);
        drop(turn);
    }

    /// Returns the number of a key's latest committed change, to be taken before a read and passed to
    /// [`History::is_right`].
    pub(super) fn before(&self, number: u64) -> u32 {
        self.done.get(number as usize).map_or(0, |done| done.load(Ordering::Acquire))
    }

    /// Whether a read may return this value: it must be whole, of this key, and not overwritten before the read began.
    pub(super) fn is_right(&self, number: u64, before: u32, value: Option<&[u8]>) -> bool {
        let Some(value) = value.filter(|value| self.data.is_right(number, value)) else { return false };
        let version = value.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let Some(of_trial) = version.checked_sub(self.base).filter(|of_trial| *of_trial > 0) else {
            return before == 0;
        };
        let began = self.began.get(number as usize).map_or(0, |began| began.load(Ordering::Acquire));
        (u64::from(before)..=u64::from(began)).contains(&of_trial)
    }

    /// Returns the keys and values of the table.
    pub(super) fn data(&self) -> Data {
        self.data
    }

    /// Bytes of a key and its value.
    pub(super) fn entry_bytes(&self) -> u64 {
        self.data.entry_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATA: Data = Data { count: 10, value_bytes: 64, seed: 1 };

    #[test]
    fn a_value_older_than_the_last_commit_or_not_yet_begun_is_wrong() {
        let history = History::new(DATA, 10, 1000);
        let loaded = DATA.changed(3, 0).1;
        assert!(history.is_right(3, history.before(3), Some(&loaded)));
        assert!(!history.is_right(4, history.before(4), Some(&loaded)), "of another key");
        assert!(!history.is_right(3, history.before(3), None), "lost");
        assert!(!history.is_right(3, 0, Some(&DATA.changed(3, 1001).1)), "of the future");

        let before_the_change = history.before(3);
        let change = history.change(3);
        let changed = change.entry.1.clone();
        assert!(history.is_right(3, history.before(3), Some(&loaded)) && history.is_right(3, 0, Some(&changed)));
        history.committed(change);
        assert!(!history.is_right(3, history.before(3), Some(&loaded)), "overwritten before the read began");
        assert!(history.is_right(3, before_the_change, Some(&loaded)), "the read began before");
        assert!(history.is_right(3, history.before(3), Some(&changed)));
        assert!(!history.is_right(3, 0, Some(&changed[1..])), "not whole");
    }

    #[test]
    fn inserted_entries_become_known_one_by_one() {
        let history = History::new(DATA, 12, 1000);
        let (turn, entry) = history.insert();
        assert_eq!(entry.0, DATA.key(12));
        assert_eq!(history.known(), 12);
        history.inserted(turn);
        assert_eq!(history.known(), 13);
        assert!(history.is_right(12, history.before(12), Some(&entry.1)));
    }
}
