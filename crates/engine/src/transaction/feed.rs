//! Passes the changes of commits to watchers, in the order of the commits, once they are visible.
//!
//! While there is a watcher, each commit puts its record on a list in the commit section. When the commit is visible,
//! its record moves on to the queues of the watchers of its tables, outside of the section. A watcher decodes records
//! by itself: a commit pays for a copy of its record, and for nothing when there is no watcher.
//!
//! Kept true by:
//! 1. A watcher is registered in the commit section, and a commit looks for watchers in the section in which it takes
//!    effect. So a watcher misses no commit after the last one before its registration.
//! 2. A record is on the list before its commit can be visible, and moves on under the lock of the list. So each queue
//!    has the records in the order of the commits.
//! 3. List and queues are bounded in bytes. What does not fit is replaced by the numbers of the commits: lost changes
//!    are reported, never left out.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use super::{Op, encode, record_bytes};
use crate::error::Error;
use crate::format::{CommitSeq, TableId};
use crate::sync::budget::Budget;
use crate::sync::wakers::{poll_guarded, wake_all};

/// Memory of a record in a queue besides its bytes.
const RECORD_OVERHEAD_BYTES: usize = 128;
/// Bytes that a queue keeps until its watcher sets another limit.
const QUEUE_BYTES: usize = 4 << 20;
/// Bytes of the records of commits that are not visible yet.
const PENDING_BYTES_MAX: usize = 16 << 20;

/// The record of a commit that changed tables.
#[derive(Debug)]
pub(crate) struct CommitRecord {
    /// The number of the commit.
    pub(crate) seq: CommitSeq,
    /// The changes, as in the log.
    pub(crate) bytes: Box<[u8]>,
    /// The tables that it changes, each once.
    tables: Vec<TableId>,
}

impl CommitRecord {
    fn memory_bytes(&self) -> usize {
        self.bytes.len() + RECORD_OVERHEAD_BYTES
    }
}

/// Commits whose changes are not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LostCommits {
    /// The first of them.
    pub(crate) first: CommitSeq,
    /// The last of them.
    pub(crate) last: CommitSeq,
}

impl LostCommits {
    fn join(self, later: Self) -> Self {
        Self { first: self.first.min(later.first), last: self.last.max(later.last) }
    }
}

/// A commit, or several, on the way to the watchers.
#[derive(Debug, Clone)]
enum Item {
    Record(Arc<CommitRecord>),
    /// Commits without their changes, in this table, or in any.
    Lost(LostCommits, Option<TableId>),
}

impl Item {
    fn last(&self) -> CommitSeq {
        match self {
            Self::Record(record) => record.seq,
            Self::Lost(lost, _) => lost.last,
        }
    }
}

/// What a watcher gets next.
#[derive(Debug)]
pub(crate) enum NextCommits {
    /// The record of a commit that changed the watched table.
    Record(Arc<CommitRecord>),
    /// Commits of which some may have changed it.
    Lost(LostCommits),
    /// None, and none will follow, because of this error. Returned once.
    End(Error),
}

/// Passes the changes of commits to watchers: see the module.
#[derive(Debug, Default)]
pub(crate) struct ChangeFeed {
    /// Number of registered queues. Changed in the commit section only.
    watchers: AtomicUsize,
    state: Mutex<FeedState>,
}

#[derive(Debug, Default)]
struct FeedState {
    /// Commits that are not visible yet, in their order.
    pending: VecDeque<Item>,
    pending_bytes: usize,
    queues: Vec<Arc<WatchQueue>>,
    /// The reason why no commits follow the pending ones.
    end: Option<Error>,
}

impl ChangeFeed {
    /// Returns whether there is a watcher.
    #[inline]
    pub(super) fn is_watched(&self) -> bool {
        self.watchers.load(Ordering::Relaxed) > 0
    }

    /// Prepares the record of a large commit, outside of the section's lock; `None` when it has no room in the list.
    pub(super) fn prepare(&self, seq: CommitSeq, ops: &[Op]) -> Option<CommitRecord> {
        (self.is_watched() && record_bytes(ops) <= PENDING_BYTES_MAX).then(|| Self::record(seq, ops, &encode(ops)))
    }

    fn record(seq: CommitSeq, ops: &[Op], bytes: &[u8]) -> CommitRecord {
        let mut tables = Vec::new();
        for op in ops {
            // They are in the order of their tables. The target of a table that is dropped or renamed is its entry in the
            // catalog.
            let table = match op {
                Op::DropTable { tree, .. } | Op::RenameTable { tree, .. } => tree.table,
                op => op.target().0.table,
            };
            if tables.last() != Some(&table) {
                tables.push(table);
            }
        }
        CommitRecord { seq, bytes: bytes.into(), tables }
    }

    /// Adds a commit, whose changes are `ops` and whose record is `bytes`. Called in the section in which it takes effect.
    #[inline]
    pub(super) fn committed(&self, seq: CommitSeq, ops: &[Op], bytes: &[u8]) {
        if self.is_watched() {
            self.add_prepared(seq, Some(Self::record(seq, ops, bytes)));
        }
    }

    /// Adds a commit whose record was prepared before, if it was. Called in the section in which it takes effect.
    pub(super) fn add_prepared(&self, seq: CommitSeq, record: Option<CommitRecord>) {
        if !self.is_watched() {
            return;
        }
        let mut state = self.lock();
        let fits = |record: &CommitRecord| state.pending_bytes + record.memory_bytes() <= PENDING_BYTES_MAX;
        match record.filter(fits) {
            Some(record) => {
                state.pending_bytes += record.memory_bytes();
                state.pending.push_back(Item::Record(Arc::new(record)));
            }
            None => state.lose(LostCommits { first: seq, last: seq }, None),
        }
    }

    /// Adds a commit that has filled a table past the log. Called in the section in which it takes effect.
    pub(super) fn loaded(&self, seq: CommitSeq, table: TableId) {
        if self.is_watched() {
            self.lock().lose(LostCommits { first: seq, last: seq }, Some(table));
        }
    }

    /// Moves commits that are visible on to the queues, and wakes the watchers. Called outside of every lock.
    #[inline]
    pub(crate) fn deliver(&self, visible: CommitSeq) {
        if self.is_watched() {
            while self.deliver_some(visible) {}
        }
    }

    /// Moves some of the visible commits on. Returns whether there may be more.
    fn deliver_some(&self, visible: CommitSeq) -> bool {
        let (mut wakers, mut dropped, mut budget) = (Vec::new(), Vec::new(), Budget::new());
        let mut state = self.lock();
        while !budget.is_spent()
            && let Some(item) = state.pending.pop_front_if(|item| item.last() <= visible)
        {
            if let Item::Record(record) = &item {
                state.pending_bytes -= record.memory_bytes();
            }
            for queue in &state.queues {
                queue.push(&item, &mut wakers, &mut dropped);
                budget.spend(2);
            }
            dropped.push(item);
        }
        state.end_queues(&mut wakers);
        drop(state);
        wake_all(wakers);
        budget.is_spent()
    }

    /// Ends all watches with this error, once the commits that are pending have moved on: no commits are added from now
    /// on. Called outside of every lock.
    pub(super) fn end(&self, error: &Error) {
        self.end_with(error, false);
    }

    /// Ends all watches with this error: no commit becomes visible from now on. Called outside of every lock.
    pub(crate) fn end_now(&self, error: &Error) {
        self.end_with(error, true);
    }

    fn end_with(&self, error: &Error, gives_up_pending: bool) {
        let (mut wakers, mut given_up) = (Vec::new(), VecDeque::new());
        let mut state = self.lock();
        state.end.get_or_insert_with(|| error.clone());
        if gives_up_pending {
            given_up = std::mem::take(&mut state.pending);
            state.pending_bytes = 0;
        }
        state.end_queues(&mut wakers);
        drop(state);
        drop(given_up);
        wake_all(wakers);
    }

    /// Registers a watcher of a table, or of all, from the commit after `since` on. Called in the commit section.
    pub(super) fn register(&self, table: Option<TableId>, since: CommitSeq) -> Arc<WatchQueue> {
        let mut state = self.lock();
        // Commits that are pending are no younger than `since`.
        let of_queue = QueueState { end: state.end.clone(), is_ended: state.end.is_some(), ..QueueState::default() };
        let of_queue = Mutex::new(of_queue);
        let queue = WatchQueue { table, since, bytes_max: AtomicUsize::new(QUEUE_BYTES), state: of_queue };
        let queue = Arc::new(queue);
        state.queues.push(Arc::clone(&queue));
        self.watchers.fetch_add(1, Ordering::Relaxed);
        queue
    }

    /// Ends a registration. Called in the commit section.
    pub(super) fn unregister(&self, queue: &Arc<WatchQueue>) {
        let mut state = self.lock();
        state.queues.retain(|other| !Arc::ptr_eq(other, queue));
        let left = self.watchers.fetch_sub(1, Ordering::Relaxed) - 1;
        let (mut unread, end) = (FeedState::default(), state.end.clone());
        if left == 0 {
            unread = std::mem::replace(&mut *state, FeedState { end, ..FeedState::default() });
        }
        drop(state);
        drop(unread);
    }

    fn lock(&self) -> MutexGuard<'_, FeedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FeedState {
    /// Ends the queues, if no commits follow those that were delivered.
    fn end_queues(&self, wakers: &mut Vec<Waker>) {
        if let Some(error) = self.end.as_ref().filter(|_| self.pending.is_empty()) {
            self.queues.iter().for_each(|queue| queue.end(error, wakers));
        }
    }

    /// Adds commits without their changes.
    fn lose(&mut self, lost: LostCommits, table: Option<TableId>) {
        if let Some(Item::Lost(before, of)) = self.pending.back_mut()
            && *of == table
        {
            *before = before.join(lost);
        } else {
            self.pending.push_back(Item::Lost(lost, table));
        }
    }
}

/// The commits that a watcher has not read yet.
#[derive(Debug)]
pub(crate) struct WatchQueue {
    /// The watched table; all of them without one.
    table: Option<TableId>,
    /// The last commit that the watcher does not get.
    since: CommitSeq,
    bytes_max: AtomicUsize,
    state: Mutex<QueueState>,
}

#[derive(Debug, Default)]
struct QueueState {
    /// Lost commits, all before the commits in `records`.
    lost: Option<LostCommits>,
    records: VecDeque<Arc<CommitRecord>>,
    bytes: usize,
    /// The reason why no commits follow, until the watcher was told.
    end: Option<Error>,
    is_ended: bool,
    waker: Option<Waker>,
}

impl WatchQueue {
    /// Returns the last commit that the watcher does not get.
    pub(crate) fn since(&self) -> CommitSeq {
        self.since
    }

    /// Sets the bytes of records that the queue keeps.
    pub(crate) fn set_bytes_max(&self, bytes: usize) {
        self.bytes_max.store(bytes, Ordering::Relaxed);
    }

    /// Adds a commit, unless the watcher has no interest in it. Memory to be freed goes to `dropped`.
    fn push(&self, item: &Item, wakers: &mut Vec<Waker>, dropped: &mut Vec<Item>) {
        if item.last() <= self.since {
            return;
        }
        let mut state = self.lock();
        match item {
            Item::Record(record) => {
                if self.table.is_some_and(|table| !record.tables.contains(&table)) {
                    return;
                }
                if state.bytes + record.memory_bytes() <= self.bytes_max.load(Ordering::Relaxed) {
                    state.bytes += record.memory_bytes();
                    state.records.push_back(Arc::clone(record));
                } else {
                    // The queued commits are given up with it: a watcher that has lost one has to read the table again,
                    // and sees them all then.
                    state.lose(LostCommits { first: record.seq, last: record.seq }, dropped);
                }
            }
            Item::Lost(lost, of) => {
                if of.is_some() && self.table.is_some() && *of != self.table {
                    return;
                }
                state.lose(LostCommits { first: lost.first.max(self.since.next()), ..*lost }, dropped);
            }
        }
        wakers.extend(state.waker.take());
    }

    /// Notes that no commits follow.
    fn end(&self, error: &Error, wakers: &mut Vec<Waker>) {
        let mut state = self.lock();
        if !std::mem::replace(&mut state.is_ended, true) {
            state.end = Some(error.clone());
            wakers.extend(state.waker.take());
        }
    }

    /// Takes the next commits; registers the waker when there are none.
    pub(crate) fn poll_next(&self, waker: &Waker) -> Poll<NextCommits> {
        poll_guarded(waker, || self.lock(), QueueState::take, |state, waker| std::mem::swap(&mut state.waker, waker))
    }

    /// Takes the next commits, if there are some.
    pub(crate) fn take(&self) -> Option<NextCommits> {
        self.lock().take()
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueueState {
    fn take(&mut self) -> Option<NextCommits> {
        if let Some(lost) = self.lost.take() {
            return Some(NextCommits::Lost(lost));
        }
        let Some(record) = self.records.pop_front() else { return self.end.take().map(NextCommits::End) };
        self.bytes -= record.memory_bytes();
        Some(NextCommits::Record(record))
    }

    /// Notes that commits are lost, and gives the queued ones up.
    fn lose(&mut self, lost: LostCommits, dropped: &mut Vec<Item>) {
        let first = self.records.front().map_or(lost.first, |record| record.seq);
        let lost = LostCommits { first, ..lost };
        self.lost = Some(self.lost.map_or(lost, |before| before.join(lost)));
        dropped.extend(self.records.drain(..).map(Item::Record));
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::btree::Tree;
    use crate::format::{Moment, PageId};

    fn put(table: u64, value: usize) -> Vec<Op> {
        let tree = Tree { root: PageId(table), table: TableId(table) };
        vec![Op::Put { tree, key: b"k".to_vec(), value: vec![0; value], expiry: Moment::NEVER }]
    }

    fn commit(feed: &ChangeFeed, seq: u64, table: u64, value: usize) {
        let ops = put(table, value);
        feed.committed(CommitSeq(seq), &ops, &encode(&ops));
    }

    /// Takes all that a queue has: numbers of commits, and of the first and the last of lost ones.
    fn taken(queue: &WatchQueue) -> Vec<(u64, u64)> {
        let numbers = |watched| match watched {
            NextCommits::Record(record) => (record.seq.0, record.seq.0),
            NextCommits::Lost(LostCommits { first, last }) => (first.0, last.0),
            NextCommits::End(error) => panic!("{error}"),
        };
        std::iter::from_fn(|| queue.take()).map(numbers).collect()
    }

    #[test]
    fn a_watcher_gets_the_commits_of_its_table_in_order_once_they_are_visible() {
        let feed = ChangeFeed::default();
        commit(&feed, 1, 7, 10);
        assert_eq!(feed.lock().pending.len(), 0, "without a watcher nothing is kept");
        let (one, all) = (feed.register(Some(TableId(7)), CommitSeq(1)), feed.register(None, CommitSeq(1)));
        commit(&feed, 2, 7, 10);
        commit(&feed, 3, 8, 10);
        commit(&feed, 5, 7, 10);
        feed.deliver(CommitSeq(1));
        assert_eq!((taken(&one), taken(&all)), (vec![], vec![]));
        let later = feed.register(Some(TableId(7)), CommitSeq(3));
        feed.deliver(CommitSeq(3));
        assert_eq!((taken(&one), taken(&all)), (vec![(2, 2)], vec![(2, 2), (3, 3)]));
        feed.deliver(CommitSeq(9));
        assert_eq!((taken(&one), taken(&all), taken(&later)), (vec![(5, 5)], vec![(5, 5)], vec![(5, 5)]));
        feed.loaded(CommitSeq(10), TableId(8));
        feed.deliver(CommitSeq(10));
        assert_eq!((taken(&one), taken(&all)), (vec![], vec![(10, 10)]));
        [one, all, later].iter().for_each(|queue| feed.unregister(queue));
        assert!(!feed.is_watched());
    }

    #[test]
    fn a_queue_that_is_full_reports_its_commits_as_lost_and_goes_on_after_them() {
        let feed = ChangeFeed::default();
        let (small, large) = (feed.register(None, CommitSeq(0)), feed.register(None, CommitSeq(0)));
        small.set_bytes_max(3 * (100 + RECORD_OVERHEAD_BYTES));
        (1..=10).for_each(|seq| commit(&feed, seq, 7, 50));
        feed.deliver(CommitSeq(10));
        assert_eq!(taken(&large), (1..=10).map(|seq| (seq, seq)).collect::<Vec<_>>());
        let found = taken(&small);
        assert!(found[0].0 == 1 && found[0].1 < 10 && found.len() < 5, "{found:?}");
        assert!(found.windows(2).all(|two| two[1].0 == two[0].1 + 1) && found.last() == Some(&(10, 10)), "{found:?}");
        assert_eq!(small.lock().bytes, 0);
    }

    #[test]
    fn commits_that_are_not_visible_for_long_take_bounded_memory() {
        let feed = ChangeFeed::default();
        let queue = feed.register(None, CommitSeq(0));
        queue.set_bytes_max(usize::MAX);
        (1..=5_000).for_each(|seq| commit(&feed, seq, 7, 10_000));
        assert!(feed.lock().pending_bytes <= PENDING_BYTES_MAX && feed.lock().pending.len() < 2_000);
        feed.deliver(CommitSeq(6_000));
        let found = taken(&queue);
        assert_eq!(found.first().map(|(first, _)| *first), Some(1));
        assert_eq!(found.last().map(|(_, last)| *last), Some(5_000));
    }

    /// Takes the commits of a queue and the error that ends it, if it has ended.
    fn taken_to_the_end(queue: &WatchQueue) -> (Vec<u64>, bool) {
        let (mut commits, mut ends) = (Vec::new(), 0);
        while let Some(next) = queue.take() {
            match next {
                NextCommits::Record(record) => commits.push(record.seq.0),
                NextCommits::Lost(lost) => panic!("{lost:?}"),
                NextCommits::End(_) => ends += 1,
            }
        }
        assert!(ends <= 1, "the end is told once");
        (commits, ends > 0)
    }

    #[test]
    fn watches_end_with_the_last_commit_that_can_become_visible() {
        let error = Error::new(crate::error::ErrorKind::Poisoned, "the reason");
        for at_once in [false, true] {
            let feed = ChangeFeed::default();
            let (one, all) = (feed.register(Some(TableId(7)), CommitSeq(1)), feed.register(None, CommitSeq(1)));
            commit(&feed, 2, 7, 10);
            commit(&feed, 3, 8, 10);
            commit(&feed, 4, 8, 10);
            feed.deliver(CommitSeq(2));
            if at_once {
                feed.end_now(&error)
            } else {
                feed.end(&error)
            }
            assert_eq!(taken_to_the_end(&one), (vec![2], at_once));
            feed.deliver(CommitSeq(3));
            assert_eq!(taken_to_the_end(&all), (if at_once { vec![2] } else { vec![2, 3] }, at_once));
            let later = feed.register(None, CommitSeq(4));
            assert_eq!(taken_to_the_end(&later), (vec![], true), "nothing follows commit 4");
            feed.deliver(CommitSeq(4));
            feed.end_now(&error);
            assert_eq!(taken_to_the_end(&one), (vec![], !at_once));
            assert_eq!(taken_to_the_end(&all), (if at_once { vec![] } else { vec![4] }, !at_once));
            assert_eq!(taken_to_the_end(&later), (vec![], false));
            [one, all, later].iter().for_each(|queue| feed.unregister(queue));
            assert_eq!(taken_to_the_end(&feed.register(None, CommitSeq(4))), (vec![], true));
        }
    }
}
