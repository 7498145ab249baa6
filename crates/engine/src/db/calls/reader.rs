//! Looks up one key: its newest visible value, or its value in a snapshot.
//!
//! A lookup that finds its pages in memory is a function call ([`Call::Done`]); only one that misses a page makes a future.
//! It then continues where it missed the page, as long as no other commit has become visible.

use std::cell::Cell;
use std::sync::Arc;

use super::loader::Loader;
use super::overflow;
use super::pins::PinBudget;
use super::tables::{TableCounts, Tables};
use super::wait::{Call, yield_now, yield_sometimes};
use crate::btree::estimate::{RangeSample, RangeSize};
use crate::btree::{self, FoundValue, KeyRange, Position, Tree};
use crate::error::{Error, ErrorKind, Result};
use crate::format::{CommitSeq, Moment, PageId};
use crate::pages::{Attempt, Pages as _, Snapshot, Store, Wait};
use crate::sync::budget::Budget;

/// Snapshots that one read takes, when they are evicted, before it reports that they are evicted faster than it reads.
const SNAPSHOTS_MAX: usize = 8;

/// The answer of a lookup.
pub(in crate::db) type GetResult = Result<Option<Vec<u8>>>;

/// The place in the tree where a lookup of the newest value missed a page, and the commit that it read. The lookup
/// continues there if that commit is still the newest visible one, as it nearly always is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ResumePosition {
    position: Position,
    commit: CommitSeq,
}

/// Returns whether a table was created after this snapshot: then the snapshot has no page of the table, not even its
/// root. A table's id is the number of the commit that created it.
pub(in crate::db) fn is_younger(tree: Tree, snapshot: &impl Snapshot) -> bool {
    tree.table.0 > snapshot.seq().0
}

/// Returns whether a read that took its own snapshot should take another one, because its snapshot was invalidated.
/// Counts the snapshots in `taken`, and returns false after [`SNAPSHOTS_MAX`].
pub(in crate::db) fn takes_another(error: &Error, taken: &mut usize) -> bool {
    *taken += 1;
    error.kind() == ErrorKind::SnapshotTooOld && *taken < SNAPSHOTS_MAX
}

/// The outcome of showing a value to a closure.
enum Shown<R> {
    /// The value was shown; the closure's answer.
    Done(Option<R>),
    /// The value is long and has yet to be read.
    Long(FoundValue),
}

/// Reads keys of tables. Clones share the same database.
pub(crate) struct Reader<S: Store> {
    pub(in crate::db) loader: Arc<Loader<S>>,
    pub(in crate::db) tables: Arc<Tables>,
    /// The leaves of each table that scans have read far ahead.
    pub(in crate::db) scanned: Arc<TableCounts>,
}

impl<S: Store> Clone for Reader<S> {
    fn clone(&self) -> Self {
        Self { loader: self.loader.clone(), tables: self.tables.clone(), scanned: self.scanned.clone() }
    }
}

impl<S: Store> Reader<S> {
    /// Makes one attempt to look up the newest visible value of a key; when the pages are in memory, it is the only
    /// one. `resume` passes the position reached from one attempt to the next.
    #[inline]
    fn look(&self, tree: Tree, key: &[u8], resume: &mut Option<ResumePosition>) -> Attempt<Option<FoundValue>> {
        self.look_with(tree, key, resume, |held| held.map(FoundValue::from))
    }

    #[inline]
    fn look_with<R>(
        &self,
        tree: Tree,
        key: &[u8],
        resume: &mut Option<ResumePosition>,
        look: impl FnOnce(Option<btree::ValueRef<'_>>) -> R,
    ) -> Attempt<R> {
        let view = self.loader.store().latest();
        let before = resume.take().filter(|resume| resume.commit == S::commit_of(&view));
        let mut position = before.map_or_else(|| tree.start(), |resume| resume.position);
        let looked = tree.get_from(&view, key, &mut position, look);
        if let Err(Wait::Miss(missing)) = &looked {
            *resume = Some(ResumePosition { position, commit: missing.at });
        }
        looked
    }

    /// Returns the newest visible value of a key.
    #[inline]
    pub(crate) fn get(&self, tree: Tree, key: &[u8]) -> Call<GetResult, impl Future<Output = GetResult>> {
        let mut resume = None;
        match self.look(tree, key, &mut resume) {
            Ok(None) => Call::Done(Ok(None)),
            Ok(Some(FoundValue::Inline(value))) => Call::Done(Ok(Some(value))),
            looked => Call::Waits(self.get_after(tree, key, looked, resume)),
        }
    }

    /// Returns whether a key has a newest visible value. Reads no pages of long values.
    #[inline]
    pub(crate) fn contains(&self, tree: Tree, key: &[u8]) -> Call<Result<bool>, impl Future<Output = Result<bool>>> {
        let mut resume = None;
        match self.look_with(tree, key, &mut resume, |held| held.is_some()) {
            Ok(found) => Call::Done(Ok(found)),
            missed => Call::Waits(self.look_after(tree, key, missed, resume, |held| held.is_some())),
        }
    }

    /// Returns the moment at which a key expires in the newest visible commit; `None` when the key is absent. Reads no
    /// pages of values.
    pub(crate) async fn expiry(&self, tree: Tree, key: &[u8]) -> Result<Option<Moment>> {
        let look = || {
            let view = self.loader.store().latest();
            Ok(tree.expiry(&view, key)?.filter(|expiry| !view.has_expired(*expiry)))
        };
        self.loader.attempt(look).await.map_err(|error| self.explain_latest(tree, error))
    }

    /// Returns the moment at which a key expires, or has expired, in the commit of a snapshot; `None` when there is no entry.
    /// Reads no pages of values.
    pub(crate) async fn expiry_at(&self, snapshot: &S::Snapshot, tree: Tree, key: &[u8]) -> Result<Option<Moment>> {
        if is_younger(tree, snapshot) {
            return Ok(None);
        }
        let found = self.loader.attempt(|| tree.expiry(&self.loader.store().view(snapshot), key)).await;
        found.map_err(|error| self.tables.explain(tree, snapshot.seq(), error))
    }

    /// Estimates the size of a range in the newest visible commit. Missing pages of one level are read side by side.
    pub(crate) async fn estimate(&self, tree: Tree, range: &KeyRange) -> Result<RangeSize> {
        let mut taken = 0;
        loop {
            match self.estimate_at(&self.loader.store().snapshot(), tree, range).await {
                Err(error) if takes_another(&error, &mut taken) => {}
                estimated => return estimated.map_err(|error| self.explain_latest(tree, error)),
            }
        }
    }

    async fn estimate_at(&self, snapshot: &S::Snapshot, tree: Tree, range: &KeyRange) -> Result<RangeSize> {
        let mut sample = RangeSample::new(tree, range);
        let (mut pins, mut missing) = (PinBudget::default(), Vec::new());
        while !sample.wanted().is_empty() {
            let mut budget = Budget::new();
            {
                let view = self.loader.store().view(snapshot);
                while let Some(page) = sample.wanted().first().copied()
                    && !budget.is_spent()
                {
                    match view.page(page) {
                        Ok(body) => budget.spend(sample.look(&body)?),
                        Err(Wait::Miss(_)) => break,
                        Err(wait) => {
                            missing.push(wait);
                            break;
                        }
                    }
                }
                let is_missing = |page: &PageId| view.page(*page).err().filter(|wait| matches!(wait, Wait::Miss(_)));
                if missing.is_empty() && !budget.is_spent() {
                    missing.extend(sample.wanted().iter().filter_map(is_missing).take(self.loader.window()));
                }
            }
            if budget.is_spent() {
                drop(budget);
                yield_now().await;
            }
            if !missing.is_empty() {
                self.loader.load(&mut pins, &missing).await?;
                missing.clear();
            }
        }
        yield_sometimes().await;
        Ok(sample.size())
    }

    /// Shows the newest visible value of a key to `look`, without a copy unless the value is long. `get` does not use
    /// this: it reads a long value into new memory in either case, and returns that memory without another copy.
    #[inline]
    pub(crate) fn get_with<R>(
        &self,
        tree: Tree,
        key: &[u8],
        look: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Call<Result<R>, impl Future<Output = Result<R>>> {
        let (mut look, mut resume) = (Some(look), None);
        match self.show(tree, key, &mut resume, &mut look) {
            Ok(Some(shown)) => Call::Done(Ok(shown)),
            shown => Call::Waits(self.show_after(tree, key, look, shown, resume)),
        }
    }

    /// Calls `look` with the newest visible value of a key, and leaves `None` in `look`. Returns `None`, without the
    /// call, when the value is long and has yet to be read.
    fn show<R>(
        &self,
        tree: Tree,
        key: &[u8],
        resume: &mut Option<ResumePosition>,
        look: &mut Option<impl FnOnce(Option<&[u8]>) -> R>,
    ) -> Attempt<Option<R>> {
        self.look_with(tree, key, resume, |held| {
            let value = match held {
                None => None,
                Some(btree::ValueRef::Here(value)) => Some(value),
                Some(btree::ValueRef::Overflow(_) | btree::ValueRef::Spread(_)) => return None,
            };
            look.take().map(|look| look(value))
        })
    }

    /// Shows the newest visible value of a key to `look`, after a first attempt has missed pages.
    async fn show_after<R>(
        &self,
        tree: Tree,
        key: &[u8],
        mut look: Option<impl FnOnce(Option<&[u8]>) -> R>,
        shown: Attempt<Option<R>>,
        mut resume: Option<ResumePosition>,
    ) -> Result<R> {
        let mut shown = Some(shown);
        let again = || shown.take().unwrap_or_else(|| self.show(tree, key, &mut resume, &mut look));
        let shown = self.loader.attempt(again).await;
        if let Some(shown) = shown.map_err(|error| self.explain_latest(tree, error))? {
            return Ok(shown);
        }
        let value = self.get_in_steps(tree, key).await?;
        match look {
            Some(look) => Ok(look(value.as_deref())),
            None => Err(Error::new(ErrorKind::Bug, "a value was shown and its answer lost")),
        }
    }

    /// Returns the newest visible value of a key, after a first attempt has missed pages.
    async fn get_after(
        &self,
        tree: Tree,
        key: &[u8],
        looked: Attempt<Option<FoundValue>>,
        resume: Option<ResumePosition>,
    ) -> GetResult {
        match self.look_after(tree, key, looked, resume, |held| held.map(FoundValue::from)).await? {
            None => Ok(None),
            Some(FoundValue::Inline(value)) => Ok(Some(value)),
            Some(FoundValue::Long(_)) => self.get_in_steps(tree, key).await,
        }
    }

    /// Returns the result of `look` on a key in the newest visible commit, after a first attempt has missed pages.
    async fn look_after<R>(
        &self,
        tree: Tree,
        key: &[u8],
        looked: Attempt<R>,
        mut resume: Option<ResumePosition>,
        look: impl Fn(Option<btree::ValueRef<'_>>) -> R,
    ) -> Result<R> {
        let mut looked = Some(looked);
        let again = || looked.take().unwrap_or_else(|| self.look_with(tree, key, &mut resume, &look));
        let found = self.loader.attempt(again).await;
        found.map_err(|error| self.explain_latest(tree, error))
    }

    /// Returns the error that a caller gets for `error`, which occurred in a view of the newest visible commit. A later
    /// commit may be visible by now; that does no harm, because it knows of every table dropped before.
    fn explain_latest(&self, tree: Tree, error: Error) -> Error {
        self.tables.explain(tree, self.loader.store().visible(), error)
    }

    /// Returns the newest visible value of a key when that takes several steps, which must all see one commit.
    async fn get_in_steps(&self, tree: Tree, key: &[u8]) -> GetResult {
        let mut taken = 0;
        loop {
            match self.get_at(&self.loader.store().snapshot(), tree, key).await {
                Err(error) if takes_another(&error, &mut taken) => {}
                result => return result,
            }
        }
    }

    /// Returns the value of a key as of a snapshot.
    pub(crate) async fn get_at(&self, snapshot: &S::Snapshot, tree: Tree, key: &[u8]) -> GetResult {
        match self.look_at(snapshot, tree, key, |held| held.map(FoundValue::from)).await? {
            None => Ok(None),
            Some(found) => overflow::value(&self.loader, snapshot, found).await.map(Some),
        }
    }

    /// Returns whether a key has a value as of a snapshot. Reads no pages of long values.
    pub(crate) async fn contains_at(&self, snapshot: &S::Snapshot, tree: Tree, key: &[u8]) -> Result<bool> {
        self.look_at(snapshot, tree, key, |held| held.is_some()).await
    }

    /// Shows the value of a key as of a snapshot to `look`, without a copy unless the value is long.
    pub(crate) async fn get_with_at<R>(
        &self,
        snapshot: &S::Snapshot,
        tree: Tree,
        key: &[u8],
        look: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R> {
        let look = Cell::new(Some(look));
        let lost = || Error::new(ErrorKind::Bug, "a value was shown and its answer lost");
        let show = |value: Option<&[u8]>| look.take().map(|look| look(value));
        let shown = self.look_at(snapshot, tree, key, |held| match held {
            None => Shown::Done(show(None)),
            Some(btree::ValueRef::Here(value)) => Shown::Done(show(Some(value))),
            Some(long) => Shown::Long(long.into()),
        });
        match shown.await? {
            Shown::Done(answer) => answer.ok_or_else(lost),
            Shown::Long(found) => {
                let value = overflow::value(&self.loader, snapshot, found).await?;
                show(Some(&value)).ok_or_else(lost)
            }
        }
    }

    /// Returns the result of `look` on a key as of a snapshot.
    async fn look_at<R>(
        &self,
        snapshot: &S::Snapshot,
        tree: Tree,
        key: &[u8],
        look: impl Fn(Option<btree::ValueRef<'_>>) -> R,
    ) -> Result<R> {
        if is_younger(tree, snapshot) {
            return Ok(look(None));
        }
        let mut position = tree.start();
        let again = || tree.get_from(&self.loader.store().view(snapshot), key, &mut position, &look);
        let found = self.loader.attempt(again).await;
        found.map_err(|error| self.tables.explain(tree, snapshot.seq(), error))
    }
}
