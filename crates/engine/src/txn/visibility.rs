//! When commits become visible: in order, a `Sync` commit once it is durable, a `Deferred` one as soon as all before it are
//! visible. So no reader sees what a power cut takes away, unless its writer chose so.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::format::CommitSeq;
use crate::pages::{Durability, LogPosition, Store};

/// See the module. The log's hook calls [`Visibility::durable`].
#[derive(Debug)]
pub(crate) struct Visibility<S> {
    store: Arc<S>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Published completely and not visible yet, in order.
    waiting: VecDeque<Published>,
    durable: CommitSeq,
}

#[derive(Debug, Clone, Copy)]
struct Published {
    seq: CommitSeq,
    durability: Durability,
    position: LogPosition,
}

impl<S: Store> Visibility<S> {
    /// Begins with everything in `store` visible and durable up to `seq`.
    pub(crate) fn new(store: Arc<S>, seq: CommitSeq) -> Self {
        Self { store, state: Mutex::new(State { waiting: VecDeque::new(), durable: seq }) }
    }

    /// All commits up to `seq` are durable.
    pub(crate) fn durable(&self, seq: CommitSeq) {
        let mut state = self.lock();
        state.durable = state.durable.max(seq);
        self.advance(&mut state);
    }

    /// Commit `seq` is published to its last page; its record ends at `position`. Called in commit order.
    pub(crate) fn published(&self, seq: CommitSeq, durability: Durability, position: LogPosition) {
        let mut state = self.lock();
        state.waiting.push_back(Published { seq, durability, position });
        self.advance(&mut state);
    }

    /// What must become durable before `seq` is visible; `None` when it is.
    pub(crate) fn held_up_by(&self, seq: CommitSeq) -> Option<LogPosition> {
        let state = self.lock();
        let before = state.waiting.iter().take_while(|published| published.seq <= seq);
        before.filter(|published| published.durability == Durability::Sync).last().map(|published| published.position)
    }

    fn advance(&self, state: &mut State) {
        let mut visible = None;
        while let Some(first) = state.waiting.front()
            && (first.seq <= state.durable || first.durability == Durability::Deferred)
        {
            visible = Some(first.seq);
            state.waiting.pop_front();
        }
        if let Some(seq) = visible {
            self.store.set_visible(seq);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
