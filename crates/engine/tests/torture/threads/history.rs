//! Records the commits that several threads attempted on a database, with their times: enough to tell which states it may show.
//!
//! Every attempted commit has a unique id, which is in every value that it writes. Its thread waits for it before it
//! begins the next, so of each thread a first part of its commits survives. The commits of a writer also set the writer's
//! key in the table `marks` to their id, which tells how long that part is.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// A moment on the clock that all threads share.
pub(crate) type Tick = u64;

/// One change of a commit. Keys are numbers: see [`crate::story::key_of`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Write {
    /// Sets a key to [`value`].
    Put {
        table: String,
        key: u32,
        len: usize,
    },
    Delete {
        table: String,
        key: u32,
    },
    /// Appends the id of the commit to a list.
    Append {
        list: u32,
    },
    /// Creates a table. This and the two kinds below are alone in their commits.
    Create {
        table: String,
    },
    /// Fills an empty table with `count` keys from `first` on.
    Load {
        table: String,
        first: u32,
        count: u32,
    },
    Drop {
        table: String,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The outcome is unknown: the commit is under way, or ended with an ambiguous error.
    Unknown,
    Acknowledged(Tick),
    /// The commit certainly did not happen.
    Refused,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Op {
    pub(crate) id: u32,
    pub(crate) invoked: Tick,
    pub(crate) outcome: Outcome,
    /// Whether the commit is durable once it is acknowledged.
    pub(crate) is_sync: bool,
    pub(crate) writes: Vec<Write>,
}

impl Op {
    /// Returns when the commit was acknowledged, if it was.
    pub(crate) fn acknowledged(&self) -> Option<Tick> {
        match self.outcome {
            Outcome::Acknowledged(at) => Some(at),
            Outcome::Unknown | Outcome::Refused => None,
        }
    }
}

/// Returns the value that commit `id` gives to a key: the id, and bytes derived from it.
pub(crate) fn value(id: u32, len: usize) -> Vec<u8> {
    let rest = (4..len).map(|at| (id as usize).wrapping_mul(31).wrapping_add(at / 3 * 7) as u8);
    id.to_le_bytes().into_iter().chain(rest).collect()
}

/// Returns the id of the commit that wrote a value.
pub(crate) fn id_of(value: &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(value.get(..4)?.try_into().ok()?))
}

/// The commits of one run, by thread: first the writers, then the loaders.
#[derive(Debug)]
pub(crate) struct History {
    clock: AtomicU64,
    next_id: AtomicU32,
    pub(crate) writers: usize,
    threads: Vec<Mutex<Vec<Op>>>,
    /// Begin and end of each call after which all earlier commits are durable.
    syncs: Mutex<Vec<(Tick, Tick)>>,
}

/// A finished copy of a history, for the checker.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct HistoryRecord {
    pub(crate) writers: usize,
    pub(crate) threads: Vec<Vec<Op>>,
    pub(crate) syncs: Vec<(Tick, Tick)>,
}

impl History {
    /// Creates an empty history. Ids of commits begin at `first_id`.
    pub(crate) fn new(writers: usize, loaders: usize, first_id: u32) -> Self {
        Self {
            clock: AtomicU64::new(1),
            next_id: AtomicU32::new(first_id),
            writers,
            threads: (0..writers + loaders).map(|_| Mutex::default()).collect(),
            syncs: Mutex::default(),
        }
    }

    pub(crate) fn tick(&self) -> Tick {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    pub(crate) fn new_id(&self) -> u32 {
        self.next_id.fetch_add(1, Ordering::SeqCst)
    }

    /// Notes that a commit is about to be attempted.
    pub(crate) fn begin(&self, thread: usize, id: u32, is_sync: bool, writes: Vec<Write>) {
        let mut ops = self.ops(thread);
        ops.push(Op { id, invoked: self.tick(), outcome: Outcome::Unknown, is_sync, writes });
    }

    /// Notes that the last commit of the thread was acknowledged. Returns it.
    pub(crate) fn acknowledge(&self, thread: usize) -> Option<Op> {
        let mut ops = self.ops(thread);
        let op = ops.last_mut()?;
        op.outcome = Outcome::Acknowledged(self.tick());
        Some(op.clone())
    }

    /// Notes that the last commit of the thread certainly did not happen.
    pub(crate) fn refuse(&self, thread: usize) {
        if let Some(op) = self.ops(thread).last_mut() {
            op.outcome = Outcome::Refused;
        }
    }

    /// Notes that everything acknowledged before `begun` is durable now.
    pub(crate) fn synced(&self, begun: Tick) {
        self.syncs.lock().unwrap_or_else(PoisonError::into_inner).push((begun, self.tick()));
    }

    pub(crate) fn recorded(&self) -> HistoryRecord {
        HistoryRecord {
            writers: self.writers,
            threads: (0..self.threads.len()).map(|thread| self.ops(thread).clone()).collect(),
            syncs: self.syncs.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }

    /// Returns the first unused id.
    pub(crate) fn end_id(&self) -> u32 {
        self.next_id.load(Ordering::SeqCst)
    }

    fn ops(&self, thread: usize) -> std::sync::MutexGuard<'_, Vec<Op>> {
        self.threads[thread].lock().unwrap_or_else(PoisonError::into_inner)
    }
}
