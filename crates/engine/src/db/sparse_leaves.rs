//! Finds tables whose leaves are sparse, and merges these leaves.
//!
//! Deletes merge leaves only when they are nearly empty, and random inserts leave leaves about two thirds full. Here
//! runs of neighbouring leaves are merged where that saves an eighth of them ([`Tree::merge_leaves`]), each run by
//! a commit of its own, so other commits wait for one run at most.
//!
//! Whether that is worth while for a table is estimated from some leaves chosen at random, and only when enough of its
//! keys were changed since the last look (`table_counts`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::reader::Reader;
use super::structure::StructureCommits;
use super::tables::NEWEST;
use crate::btree::Tree;
use crate::btree::merge::LeafUse;
use crate::error::{Error, ErrorKind, Result};
use crate::format::PageId;
use crate::pages::{Attempt, CommitLog, Store};

/// Most leaves that are merged by one commit.
const LEAVES_AT_ONCE: usize = 16;
/// Fewest leaves that are merged by one commit where no blocks are free for more.
const LEAVES_AT_ONCE_MIN: usize = 2;
/// Pages beside the leaves that merging a run may change: their parent, and a node on each level above it, because a node
/// that merges with its neighbour is freed or frees that.
const OTHER_PAGES: usize = 16;
/// A run of leaves is merged when more than one leaf of so many becomes free.
const GAIN_SHARE: usize = 16;
/// Number of leaves from which the use of a table's leaves is estimated.
const SAMPLE_LEAVES: u64 = 32;

/// A step of merging the leaves of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MergeStep {
    /// Number of leaves freed.
    pub(super) freed: u64,
    /// Number of sparse leaves that stayed, because no blocks were free to write them anew. The step ended with them.
    pub(super) without_free_blocks: u64,
    /// The key at which the next step begins; `None` at the end of the table.
    pub(super) next: Option<Vec<u8>>,
}

/// Merges the sparse leaves of tables.
pub(super) struct SparseLeaves<S: Store, L: CommitLog> {
    reader: Reader<S>,
    structure: Arc<StructureCommits<S, L>>,
    /// Number of leaves freed.
    freed: AtomicU64,
}

impl<S: Store, L: CommitLog> SparseLeaves<S, L> {
    pub(super) fn new(reader: Reader<S>, structure: Arc<StructureCommits<S, L>>) -> Self {
        Self { reader, structure, freed: AtomicU64::new(0) }
    }

    /// Returns the number of leaves freed since the database was opened.
    pub(super) fn freed(&self) -> u64 {
        self.freed.load(Ordering::Relaxed)
    }

    fn store(&self) -> &S {
        self.reader.loader.store()
    }

    /// Estimates the part of a table's leaves that is in use, from 0 to 1.
    ///
    /// # Errors
    /// The errors of reading; `NotFound` when the table was dropped.
    pub(super) async fn share_in_use(&self, tree: Tree, seed: u64) -> Result<f64> {
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

    /// Merges the sparse leaves below the parent of the leaf in which `start` belongs. Where the disk is full, it merges
    /// fewer at a time, and ends when there is no room for two.
    ///
    /// # Errors
    /// The errors of reading and of the log; `NotFound` when the table was dropped.
    pub(super) async fn merge_from(&self, tree: Tree, start: &[u8]) -> Result<MergeStep> {
        let (leaves, next) = self.attempt(tree, || tree.leaves(&self.store().latest(), start)).await?;
        let mut step = MergeStep { freed: 0, without_free_blocks: 0, next };
        let at = self.structure.newest();
        let (mut rest, mut at_once) = (&leaves[..], LEAVES_AT_ONCE.min(self.reader.loader.window()));
        while !rest.is_empty() {
            let run = &rest[..rest.len().min(at_once)];
            self.reader.loader.prefetch(run, at);
            match self.merge_run(tree, run).await {
                Ok(Some(freed)) => step.freed += freed,
                Ok(None) if run.len() > 1 => {
                    at_once = run.len() / 2;
                    continue;
                }
                Ok(None) => {}
                // Another commit may have merged or split these leaves meanwhile. A damaged one stays as it is.
                Err(error) if error.kind() == ErrorKind::Corrupt => {}
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
            rest = &rest[run.len()..];
        }
        Ok(step)
    }

    /// Merges a run of neighbouring leaves, if that frees enough of them. Returns the number of leaves freed; `None` when
    /// the leaves and the nodes above them are too many to be in memory at once.
    async fn merge_run(&self, tree: Tree, run: &[PageId]) -> Result<Option<u64>> {
        let (found, first) = self.attempt(tree, || tree.use_of(&self.store().latest(), run)).await?;
        if found.needed(self.store().page_bytes()) + run.len() / GAIN_SHARE >= run.len() {
            return Ok(Some(0));
        }
        let merge = |copies: &mut S::Copies<'_>| tree.merge_leaves(copies, &first, run.len());
        let merged = self.structure.commit_if_small(run.len() + OTHER_PAGES, merge).await;
        let freed = merged.map_err(|error| self.explain(tree, error))?.map(|freed| freed as u64);
        self.freed.fetch_add(freed.unwrap_or(0), Ordering::Relaxed);
        Ok(freed)
    }

    async fn attempt<R>(&self, tree: Tree, look: impl FnMut() -> Attempt<R>) -> Result<R> {
        self.reader.loader.attempt(look).await.map_err(|error| self.explain(tree, error))
    }

    /// Damage in a table that was dropped meanwhile is no damage.
    fn explain(&self, tree: Tree, error: Error) -> Error {
        self.reader.tables.explain(tree, NEWEST, error)
    }
}
