//! Decides when commits become visible: in order, a `Sync` commit once it is durable, a `Deferred` one as soon as all
//! before it are visible. So no reader sees a commit that a power cut could take away, unless its writer chose so.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::format::CommitSeq;
use crate::pages::{Durability, LogPosition, Store};

/// Determines which commit readers see: see the module. The log's hook calls [`Visibility::durable`].
#[derive(Debug)]
pub(crate) struct Visibility<S> {
    store: Arc<S>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// `Sync` commits that are published completely and not durable yet, in order: those on their way through the log. The
    /// `Deferred` ones behind them, of which there may be any number, are not listed.
    waiting: VecDeque<WaitingCommit>,
    durable: CommitSeq,
    /// The last commit that is published completely.
    published: CommitSeq,
    /// The last commit that is visible.
    visible: CommitSeq,
}

/// A published commit that becomes visible once it is durable.
#[derive(Debug, Clone, Copy)]
struct WaitingCommit {
    seq: CommitSeq,
    position: LogPosition,
    /// The commit before this one: while this one waits, it may be the newest visible commit.
    before: CommitSeq,
}

impl<S: Store> Visibility<S> {
    /// Starts with everything in `store` visible and durable up to `seq`.
    pub(crate) fn new(store: Arc<S>, seq: CommitSeq) -> Self {
        Self {
            store,
            state: Mutex::new(State { waiting: VecDeque::new(), durable: seq, published: seq, visible: seq }),
        }
    }

    /// Notes that all commits up to `seq` are durable.
    pub(crate) fn durable(&self, seq: CommitSeq) {
        let mut state = self.lock();
        state.durable = state.durable.max(seq);
        self.advance(&mut state);
    }

    /// Notes that commit `seq` is completely published; its record ends at `position`. Called in commit order.
    pub(crate) fn published(&self, seq: CommitSeq, durability: Durability, position: LogPosition) {
        let mut state = self.lock();
        let before = std::mem::replace(&mut state.published, seq);
        if durability == Durability::Sync {
            state.waiting.push_back(WaitingCommit { seq, position, before });
        }
        self.advance(&mut state);
    }

    /// Returns the log position that must become durable before `seq` is visible; `None` when `seq` is visible.
    pub(crate) fn held_up_by(&self, seq: CommitSeq) -> Option<LogPosition> {
        let state = self.lock();
        let behind = state.waiting.partition_point(|waiting| waiting.seq <= seq);
        Some(state.waiting.get(behind.checked_sub(1)?)?.position)
    }

    fn advance(&self, state: &mut State) {
        while state.waiting.pop_front_if(|first| first.seq <= state.durable).is_some() {}
        let visible = state.waiting.front().map_or(state.published, |first| first.before);
        if visible > state.visible {
            state.visible = visible;
            self.store.set_visible(visible);
        }
    }

    #[cfg(test)]
    fn remembered(&self) -> usize {
        self.lock().waiting.len()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::memory::{MemoryStore, Residency};

    fn position(number: u64) -> LogPosition {
        LogPosition(number)
    }

    #[test]
    fn deferred_commits_behind_one_that_is_not_durable_take_neither_memory_nor_time() {
        for count in [10, 10_000] {
            let store = Arc::new(MemoryStore::new(512, 40, Residency::Everything));
            let visibility = Visibility::new(Arc::clone(&store), CommitSeq(0));
            let publish = |seq, durability| {
                store.publish(store.copies(), CommitSeq(seq));
                visibility.published(CommitSeq(seq), durability, position(seq * 10));
            };
            publish(1, Durability::Deferred);
            assert_eq!((store.visible(), visibility.held_up_by(CommitSeq(1))), (CommitSeq(1), None));
            for seq in [2, count + 3] {
                publish(seq, Durability::Sync);
                (seq + 1..=seq + count).for_each(|seq| publish(seq, Durability::Deferred));
            }
            assert!(visibility.remembered() <= 2, "{} of {count} commits", visibility.remembered());
            assert_eq!(store.visible(), CommitSeq(1));
            let held_up_by = |seq| visibility.held_up_by(CommitSeq(seq));
            assert_eq!([1, 2, count + 2].map(held_up_by), [None, Some(position(20)), Some(position(20))]);
            let second = Some(position((count + 3) * 10));
            assert_eq!([count + 3, count + 4, count * 9].map(held_up_by), [second; 3]);
            visibility.durable(CommitSeq(count + 1));
            assert_eq!((store.visible(), held_up_by(count + 2)), (CommitSeq(count + 2), None));
            visibility.durable(CommitSeq(count + 3));
            assert_eq!((store.visible(), held_up_by(count * 9)), (CommitSeq(2 * count + 3), None));
            assert_eq!(visibility.remembered(), 0);
        }
    }
}
