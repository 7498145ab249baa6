//! Lets a transaction that has lost often go before others, so that each of many that want the same keys commits in
//! turn.
//!
//! A transaction that has lost some times waits for the permit of a semaphore, first come, first served, and places a
//! [`Claim`] on the read set of its last run. While the claim stands, commits that would change any of it wait at the
//! same semaphore. So the transaction cannot lose because of the claimed reads. Should it read other keys this time and
//! lose again, it claims everything in the end.
//!
//! A claim must not stop others for ever, even if the closure of its owner waits for ever. It ends when its owner has
//! committed, fails or is dropped; and it lapses after [`LIMIT_MIN`], or some times as long as the longest run of its
//! owner before, where that is longer.
//!
//! Kept true by:
//! 1. A claim is placed under the lock of the commit section while no commit occupies that, and its owner begins after
//!    all commits before it are visible.
//! 2. Under the same lock, a commit enters only if it changes nothing that is claimed by another, and the section is
//!    occupied by a commit of keys only while there is no claim of another.
//! 3. A claim owns the permit of the semaphore: while a commit holds the permit, there is no claim.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Op;
use super::reads::{Read, ReadSet, scoped};
use crate::error::Error;
use crate::format::CommitSeq;
use crate::sync::background;
use crate::sync::semaphore::{Permit, Semaphore};

/// Shortest limit of a claim: it may stand at least so long if its owner needs it.
const LIMIT_MIN: Duration = Duration::from_secs(1);
/// Longest limit of a claim.
const LIMIT_MAX: Duration = Duration::from_secs(60);
/// Between these bounds the limit of a claim is so many times the longest earlier run of its owner.
const LIMIT_RUNS: u32 = 4;
/// Interval at which the background thread checks for claims that have lapsed.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Consecutive checks without a claim after which the background thread ends.
const IDLE_LOOKS_MAX: u32 = 40;

/// The reads that a claim keeps other commits from changing.
#[derive(Debug)]
pub(crate) enum ClaimScope {
    /// The read set of a transaction.
    Reads(ReadSet),
    /// All keys of all tables.
    Everything,
}

impl ClaimScope {
    /// Returns whether the claim protects everything in `read` from changes.
    pub(super) fn covers(&self, read: Read<'_>) -> bool {
        match self {
            Self::Reads(reads) => reads.covers(read),
            Self::Everything => true,
        }
    }

    fn is_changed_by(&self, ops: &[Op]) -> bool {
        let Self::Reads(reads) = self else { return true };
        let mut key = Vec::new();
        ops.iter().any(|op| {
            let (tree, name) = op.target();
            scoped(tree.table, name, &mut key);
            reads.contains(&key)
        })
    }
}

/// Identifies a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClaimId(u64);

/// The owner's handle of a claim, which stands until the handle is dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    precedence: Arc<Precedence>,
    id: ClaimId,
}

impl Claim {
    /// Returns the id that the owner's commit passes.
    pub(crate) fn id(&self) -> ClaimId {
        self.id
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.precedence.end(self.id);
    }
}

/// Counts of conflicts, retries and waits of transactions that wanted the same keys, since the database was opened.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
/// # let stock = db.create_table("stock")?;
/// let mut change = db.begin();
/// change.get(&stock, "pears")?;
/// stock.put("pears", "2")?;
/// change.put(&stock, "pears", "3")?;
/// assert!(change.commit(nofault::Durability::Sync).is_err());
/// assert_eq!(db.stats().transactions.conflicts, 1);
/// # Ok::<(), nofault::error::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct TransactionStats {
    /// Commits refused because something that they had read was changed.
    pub conflicts: u64,
    /// Runs of a closure by `transact` after its first run.
    pub retries: u64,
    /// Times that `transact` was given precedence, after it had lost several runs.
    pub precedences: u64,
    /// Times that precedence was taken away, because a closure ran for much longer than before.
    pub precedences_lapsed: u64,
    /// The longest time that a commit or a transaction waited for the precedence of another, or for a large commit
    /// before its own, in nanoseconds.
    pub wait_ns_max: u64,
}

/// The counters behind the statistics.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) conflicts: AtomicU64,
    pub(crate) retries: AtomicU64,
    claims: AtomicU64,
    lapsed: AtomicU64,
    wait_ns_max: AtomicU64,
}

/// Precedence for transactions that have lost often: see the module.
#[derive(Debug)]
pub(crate) struct Precedence {
    semaphore: Arc<Semaphore>,
    state: Mutex<State>,
    pub(crate) counts: Counts,
}

#[derive(Debug, Default)]
struct State {
    placed: Option<StandingClaim>,
    placed_ever: u64,
    is_watched: bool,
    idle_looks: u32,
}

#[derive(Debug)]
struct StandingClaim {
    id: ClaimId,
    scope: Arc<ClaimScope>,
    /// Commits up to this one are visible to the claim's owner.
    since: CommitSeq,
    lapses_at: Instant,
    _permit: Permit,
}

impl Precedence {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { semaphore: Semaphore::new(1), state: Mutex::default(), counts: Counts::default() })
    }

    /// Returns the limit of a claim, given the longest earlier run of its owner.
    pub(crate) fn limit_after(longest_run: Duration) -> Duration {
        (longest_run * LIMIT_RUNS).clamp(LIMIT_MIN, LIMIT_MAX)
    }

    pub(crate) fn stats(&self) -> TransactionStats {
        let counts = &self.counts;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        TransactionStats {
            conflicts: count(&counts.conflicts),
            retries: count(&counts.retries),
            precedences: count(&counts.claims),
            precedences_lapsed: count(&counts.lapsed),
            wait_ns_max: count(&counts.wait_ns_max),
        }
    }

    /// Waits for the only permit to claim keys. While a caller holds it, no other transaction has a claim or can make
    /// one.
    pub(crate) async fn wait(self: &Arc<Self>) -> Permit {
        if let Some(permit) = self.semaphore.try_acquire(1) {
            return permit;
        }
        let begun = Instant::now();
        self.watch();
        let permit = self.semaphore.acquire(1).await;
        self.counts.wait_ns_max.fetch_max(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
        permit
    }

    /// Ends the claim that stands, and grants every wait from now on: no commit follows. The caller holds no lock.
    pub(super) fn open(&self) {
        let ended = self.lock().placed.take();
        drop(ended);
        self.semaphore.open();
    }

    /// Places a claim. The caller holds the lock of the commit section, which nothing occupies; `since` is its newest
    /// commit.
    pub(super) fn place(
        self: &Arc<Self>,
        permit: Permit,
        scope: ClaimScope,
        since: CommitSeq,
        limit: Duration,
    ) -> Claim {
        let mut state = self.lock();
        state.placed_ever += 1;
        let id = ClaimId(state.placed_ever);
        let lapses_at = Instant::now() + limit;
        let before =
            state.placed.replace(StandingClaim { id, scope: Arc::new(scope), since, lapses_at, _permit: permit });
        drop(state);
        debug_assert!(before.is_none(), "two claims stand at once");
        drop(before);
        self.counts.claims.fetch_add(1, Ordering::Relaxed);
        Claim { precedence: self.clone(), id }
    }

    /// Returns whether a commit must wait for another transaction's claim. The caller holds the lock of the commit
    /// section.
    pub(super) fn refuses(&self, own: Option<ClaimId>, ops: &[Op]) -> bool {
        self.claim_of_another(own).is_some_and(|scope| scope.is_changed_by(ops))
    }

    /// Returns whether another transaction's claim stands.
    pub(super) fn stands_for_another(&self, own: Option<ClaimId>) -> bool {
        self.claim_of_another(own).is_some()
    }

    fn claim_of_another(&self, own: Option<ClaimId>) -> Option<Arc<ClaimScope>> {
        let state = self.lock();
        state.placed.as_ref().filter(|placed| Some(placed.id) != own).map(|placed| placed.scope.clone())
    }

    /// Returns the claimed reads of a transaction that saw `seen`, if its claim still stands. Under the lock of the
    /// section.
    pub(super) fn claimed_by(&self, own: Option<ClaimId>, seen: CommitSeq) -> Option<Arc<ClaimScope>> {
        let own = own?;
        let state = self.lock();
        let placed = state.placed.as_ref().filter(|placed| placed.id == own && placed.since <= seen)?;
        Some(placed.scope.clone())
    }

    /// Returns whether this claim still stands.
    pub(crate) fn stands(&self, own: ClaimId) -> bool {
        self.lock().placed.as_ref().is_some_and(|placed| placed.id == own)
    }

    /// Ends a claim, if it still stands.
    pub(crate) fn end(&self, own: ClaimId) {
        if !self.semaphore.is_here() {
            return;
        }
        let mut state = self.lock();
        let ended =
            if state.placed.as_ref().is_some_and(|placed| placed.id == own) { state.placed.take() } else { None };
        drop(state);
        // The dropped permit wakes the next waiter, which must not happen under the lock.
        drop(ended);
    }

    /// Ends the current claim (the right of a transaction that lost three times to commit before others) if its time is
    /// up at `now`. Returns whether a claim may still have to be ended later.
    fn look(&self, now: Instant) -> bool {
        let mut state = self.lock();
        let is_due = state.placed.as_ref().is_some_and(|placed| placed.lapses_at <= now);
        let lapsed = if is_due { state.placed.take() } else { None };
        state.idle_looks = if state.placed.is_some() || is_due { 0 } else { state.idle_looks + 1 };
        state.is_watched = state.idle_looks <= IDLE_LOOKS_MAX;
        let goes_on = state.is_watched;
        drop(state);
        if lapsed.is_some() {
            self.counts.lapsed.fetch_add(1, Ordering::Relaxed);
        }
        goes_on
    }

    /// Starts the thread that ends lapsed claims, unless it runs: this crate knows of no timer of the executor. The
    /// thread ends soon after the last claim.
    fn watch(self: &Arc<Self>) {
        let weak = Arc::downgrade(self);
        self.watch_by(move || {
            loop {
                std::thread::sleep(LOOK_EVERY);
                let Some(precedence) = weak.upgrade() else { return };
                if !precedence.look(Instant::now()) {
                    return;
                }
            }
        });
    }

    fn watch_by(self: &Arc<Self>, work: impl FnOnce() + Send + 'static) {
        {
            let mut state = self.lock();
            if std::mem::replace(&mut state.is_watched, true) {
                return;
            }
            state.idle_looks = 0;
        }
        let weak = Arc::downgrade(self);
        let in_panic = move |_: &Error| weak.upgrade().into_iter().for_each(|precedence| precedence.end_unwatched());
        if background::start("nofault-claims", in_panic, work).is_err() {
            self.end_unwatched();
        }
    }

    /// Ends the current claim: there is no thread that would end it.
    fn end_unwatched(&self) {
        let lapsed = {
            let mut state = self.lock();
            // In one step: the next wait must either find this claim, or start the thread again.
            state.is_watched = false;
            state.placed.take()
        };
        self.counts.lapsed.fetch_add(u64::from(lapsed.is_some()), Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::btree::Tree;
    use crate::format::{Moment, TableId};
    use crate::sync::driver::block_on;

    const TREE: Tree = Tree { root: crate::format::PageId(9), table: TableId(4) };

    fn put(key: &str) -> Vec<Op> {
        vec![Op::Put { tree: TREE, key: key.into(), value: Vec::new(), expiry: Moment::NEVER }]
    }

    fn place(precedence: &Arc<Precedence>, key: &str) -> Claim {
        let mut reads = ReadSet::new(1 << 10);
        reads.add_key(TREE.table, key.as_bytes()).unwrap();
        let permit = block_on(precedence.wait());
        precedence.place(permit, ClaimScope::Reads(reads), CommitSeq(5), LIMIT_MIN)
    }

    #[test]
    fn a_claim_keeps_others_from_changing_the_claimed_reads_and_nothing_else() {
        let precedence = Precedence::new();
        let claim = place(&precedence, "k");
        assert!(precedence.refuses(None, &put("k")) && !precedence.refuses(None, &put("l")));
        assert!(!precedence.refuses(Some(claim.id()), &put("k")), "its owner");
        assert!(precedence.stands_for_another(None) && !precedence.stands_for_another(Some(claim.id())));
        assert!(precedence.claimed_by(Some(claim.id()), CommitSeq(5)).is_some());
        assert!(precedence.claimed_by(Some(claim.id()), CommitSeq(4)).is_none(), "it began too early");
        drop(claim);
        assert!(!precedence.refuses(None, &put("k")));
        drop(block_on(precedence.wait()));
    }

    #[test]
    fn a_lapsed_claim_refuses_no_commit_and_its_owner_has_no_claim() {
        let precedence = Precedence::new();
        let claim = place(&precedence, "k");
        precedence.look(Instant::now());
        assert!(precedence.stands(claim.id()), "too early");
        precedence.look(Instant::now() + LIMIT_MIN);
        assert!(!precedence.stands(claim.id()) && !precedence.refuses(None, &put("k")));
        assert!(precedence.claimed_by(Some(claim.id()), CommitSeq(9)).is_none());
        let next = place(&precedence, "k");
        // The handle of the lapsed claim is dropped late, and ends no other claim.
        drop(claim);
        assert!(precedence.stands(next.id()));
        assert_eq!(precedence.counts.lapsed.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_wait_for_a_claim_ends_although_the_thread_that_would_end_it_has_panicked() {
        let precedence = Precedence::new();
        let stalled = place(&precedence, "k");
        // In place of the thread that the next wait starts.
        precedence.watch_by(|| panic!("a fault that this test plants"));
        drop(block_on(precedence.wait()));
        assert!(!precedence.stands(stalled.id()));
        let next = place(&precedence, "k");
        drop(block_on(precedence.wait()));
        assert!(!precedence.stands(next.id()), "the next wait starts a thread again");
    }

    #[test]
    fn a_wait_for_a_claim_whose_owner_stalls_ends() {
        let precedence = Precedence::new();
        let stalled = place(&precedence, "k");
        drop(block_on(precedence.wait()));
        assert!(!precedence.stands(stalled.id()));
    }
}
