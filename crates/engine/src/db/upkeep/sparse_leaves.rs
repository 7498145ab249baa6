//! Finds tables whose leaves are sparse, and merges these leaves, and then the sparse pages of values to which they refer.
//!
//! Deletes merge leaves only when they are nearly empty, and random inserts leave leaves about two thirds full. Here
//! runs of sixteen neighbouring leaves are merged where that frees one of them ([`Tree::merge_leaves`]), each run by
//! a separate commit, so other commits wait for one run at most. The last leaf that stays of a run is the first one of
//! the next run, so only the last leaf below a parent is left with more room than others.
//!
//! Whether that is worth while for a table is estimated from some leaves chosen at random, and only when enough of its
//! keys were changed since the last look (`table_counts`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::btree::Tree;
use crate::btree::merge::LeafUse;
use crate::db::calls::core::Core;
use crate::db::calls::reader::Reader;
use crate::db::calls::structure::StructureCommits;
use crate::db::calls::tables::NEWEST;
use crate::error::{Error, ErrorKind, Result};
use crate::format::PageId;
use crate::pages::{Attempt, CommitLog, Store};

/// Most leaves merged by one commit.
const LEAVES_AT_ONCE: usize = 16;
/// Fewest leaves merged by one commit where no blocks are free for more.
const LEAVES_AT_ONCE_MIN: usize = 2;
/// Number of pages of values from which on no more of them are merged by one commit.
const VALUES_AT_ONCE: usize = 32;
/// The same where more are too many to be in memory at once.
const VALUES_AT_ONCE_MIN: usize = 2;
/// Other pages that merging a run may change: the leaves' parent, and a node on each level above it, because a node that
/// merges with its neighbour frees one of the two. More than enough next to pages of values: their leaf, and pages that other
/// leaves reference as well.
const OTHER_PAGES: usize = 16;
/// Number of leaves from which the use of a table's leaves is estimated.
const SAMPLE_LEAVES: u64 = 32;

/// A place in a table from which merging continues: the default is its beginning.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::db) struct MergePlace {
    /// The key at which the next leaves begin.
    start: Vec<u8>,
    /// Whether some leaf so far refers to pages of values.
    has_values: bool,
    /// Whether all leaves are merged, and pages of values are next.
    is_in_values: bool,
}

/// A step of merging the leaves of a table, or its pages of values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::db) struct MergeStep {
    /// Number of pages freed.
    pub(in crate::db) freed: u64,
    /// Number of sparse pages that stayed, because no blocks were free to rewrite them. The step ended with them.
    pub(in crate::db) without_free_blocks: u64,
    /// Where the next step begins; `None` at the end of the table.
    pub(in crate::db) next: Option<MergePlace>,
}

/// Merges the sparse leaves of tables.
pub(in crate::db) struct SparseLeaves<S: Store, L: CommitLog> {
    reader: Reader<S>,
    structure: Arc<StructureCommits<S, L>>,
    /// Number of pages freed.
    freed: AtomicU64,
}

impl<S: Store, L: CommitLog> SparseLeaves<S, L> {
    pub(in crate::db) fn new(core: &Core<S, L>) -> Self {
        Self { reader: core.reader.clone(), structure: core.structure.clone(), freed: AtomicU64::new(0) }
    }

    /// Returns the number of pages freed since the database was opened.
    pub(in crate::db) fn freed(&self) -> u64 {
        self.freed.load(Ordering::Relaxed)
    }

    fn store(&self) -> &S {
        self.reader.loader.store()
    }

    /// Estimates the part of a table's leaves that is in use, from 0 to 1.
    ///
    /// # Errors
    /// The errors of reading; `NotFound` when the table was dropped.
    pub(in crate::db) async fn share_in_use(&self, tree: Tree, seed: u64) -> Result<f64> {
        let mut found = LeafUse::default();
        for number in 0..SAMPLE_LEAVES {
            let look = || {
                let view = self.store().latest();
                let leaf = tree.random_leaf(&view, seed.wrapping_mul(SAMPLE_LEAVES).wrapping_add(number))?;
                tree.use_of(&view, &[leaf])
            };
            found.add(self.attempt(tree, look).await?.0);
        }
        Ok(found.share(self.store().page_bytes()))
    }

    /// Merges the sparse leaves below the parent of the leaf at `from`, or the sparse pages of values to which the leaf there
    /// refers. Where the disk is full, it merges fewer at a time, and ends when there is no room for two.
    ///
    /// # Errors
    /// The errors of reading and of the log; `NotFound` when the table was dropped.
    pub(in crate::db) async fn merge_from(&self, tree: Tree, from: &MergePlace) -> Result<MergeStep> {
        if from.is_in_values { self.merge_values(tree, &from.start).await } else { self.merge_leaves(tree, from).await }
    }

    async fn merge_leaves(&self, tree: Tree, from: &MergePlace) -> Result<MergeStep> {
        let (leaves, next) = self.attempt(tree, || tree.leaves(&self.store().latest(), &from.start)).await?;
        let (mut step, mut has_values) = (MergeStep::default(), from.has_values);
        let at = self.structure.newest();
        let (mut rest, mut at_once) = (&leaves[..], LEAVES_AT_ONCE.min(self.reader.loader.window()));
        // The last leaf that stays of the run before: it may have room.
        let mut kept = None;
        while !rest.is_empty() {
            let first = kept.filter(|_| at_once > 1);
            let more = rest.len().min(at_once - usize::from(first.is_some()));
            let run: Vec<PageId> = first.iter().chain(&rest[..more]).copied().collect();
            self.reader.loader.prefetch(&run, at);
            match self.merge_run(tree, &run, &mut has_values).await {
                Ok(Some(freed)) => {
                    step.freed += freed as u64;
                    kept = run[..run.len() - freed].last().copied();
                }
                Ok(None) if run.len() > 1 => {
                    at_once = run.len() / 2;
                    continue;
                }
                Ok(None) => kept = None,
                // Another commit may have merged or split these leaves since, the kept one too. A damaged one stays as it
                // is.
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    kept = None;
                    if first.is_some() {
                        continue;
                    }
                }
                // The disk is full: fewer leaves need fewer blocks.
                Err(error) if error.kind() == ErrorKind::NoSpace && run.len() > LEAVES_AT_ONCE_MIN => {
                    at_once = (run.len() / 2).max(LEAVES_AT_ONCE_MIN);
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::NoSpace => {
                    step.without_free_blocks = run.len() as u64;
                    break;
                }
                Err(error) => return Err(error),
            }
            rest = &rest[more..];
        }
        let is_in_values = next.is_none();
        let place = MergePlace { start: next.unwrap_or_default(), has_values, is_in_values };
        step.next = (has_values || !is_in_values).then_some(place);
        Ok(step)
    }

    /// Merges a run of neighbouring leaves, if that frees one of them. Returns the number of leaves freed; `None` when
    /// the leaves and the nodes above them are too many to be in memory at once.
    async fn merge_run(&self, tree: Tree, run: &[PageId], has_values: &mut bool) -> Result<Option<usize>> {
        let (found, first) = self.attempt(tree, || tree.use_of(&self.store().latest(), run)).await?;
        *has_values |= found.has_values;
        if found.needed(self.store().page_bytes()) >= run.len() {
            return Ok(Some(0));
        }
        self.commit(tree, run.len() + OTHER_PAGES, |copies| tree.merge_leaves(copies, &first, run.len())).await
    }

    /// Merges the sparse pages of values to which the leaf with key `start` refers, fewer at a time where they are too many to be
    /// in memory at once.
    async fn merge_values(&self, tree: Tree, start: &[u8]) -> Result<MergeStep> {
        let (mut freed, mut at_once) = (0, VALUES_AT_ONCE.min(self.reader.loader.window()));
        loop {
            match self.merge_values_by(tree, start, at_once, &mut freed).await? {
                Some(step) => return Ok(MergeStep { freed, ..step }),
                None => at_once /= 2,
            }
        }
    }

    /// Merges such pages in groups of about `at_once`, and adds to `freed` how many were freed. Returns `None` where a group was
    /// too large and can be smaller.
    async fn merge_values_by(
        &self,
        tree: Tree,
        start: &[u8],
        at_once: usize,
        freed: &mut u64,
    ) -> Result<Option<MergeStep>> {
        let found = match self.attempt(tree, || tree.sparse_values(&self.store().latest(), start, at_once)).await {
            // The leaves behind a damaged one are not known. Reading its rows reports that.
            Err(error) if error.kind() == ErrorKind::Corrupt => return Ok(Some(MergeStep::default())),
            found => found?,
        };
        let next = found.next.map(|start| MergePlace { start, has_values: true, is_in_values: true });
        let mut step = MergeStep { next, ..MergeStep::default() };
        let (at, frames_max) = (self.structure.newest(), self.store().copy_frames_max());
        for group in found.groups.iter().filter(|group| group.pages.len() > 1) {
            let pages = group.pages.len() + OTHER_PAGES;
            if pages > frames_max {
                if at_once > VALUES_AT_ONCE_MIN {
                    return Ok(None);
                }
                continue;
            }
            self.reader.loader.prefetch(&group.pages, at);
            let merge = |copies: &mut S::Copies<'_>| tree.merge_values(copies, start, &group.sparse);
            match self.commit(tree, pages, merge).await {
                Ok(Some(count)) => *freed += count as u64,
                Ok(None) if at_once > VALUES_AT_ONCE_MIN => return Ok(None),
                Ok(None) => {}
                // As for leaves.
                Err(error) if error.kind() == ErrorKind::Corrupt => {}
                Err(error) if error.kind() == ErrorKind::NoSpace => {
                    step.without_free_blocks = group.pages.len() as u64;
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Some(step))
    }

    /// Commits a change that frees pages, and counts them; `None` when it needs too many pages in memory at once.
    async fn commit(
        &self,
        tree: Tree,
        pages: usize,
        change: impl FnMut(&mut S::Copies<'_>) -> Attempt<usize>,
    ) -> Result<Option<usize>> {
        let freed = self.structure.commit_if_small(pages, change).await.map_err(|error| self.explain(tree, error))?;
        self.freed.fetch_add(freed.unwrap_or(0) as u64, Ordering::Relaxed);
        Ok(freed)
    }

    async fn attempt<R>(&self, tree: Tree, look: impl FnMut() -> Attempt<R>) -> Result<R> {
        self.reader.loader.attempt(look).await.map_err(|error| self.explain(tree, error))
    }

    /// Damage in a table dropped since is no damage.
    fn explain(&self, tree: Tree, error: Error) -> Error {
        self.reader.tables.explain(tree, NEWEST, error)
    }
}
