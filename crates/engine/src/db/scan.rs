//! Walking a range of a table: entries come leaf by leaf, and the leaves to come are asked for early.
//!
//! How far ahead is learnt on the way, as PostgreSQL's read stream does: a wait doubles the distance, a leaf that was there
//! already takes one off. So a scan in memory asks for nothing, and a cold one soon keeps the device busy.

use std::sync::Arc;

use super::core::Core;
use super::wait::{Mode, attempt};
use crate::error::Result;
use crate::format::PageId;
use crate::pages::{CommitLog, Snapshot, Store, Wait};
use crate::tree::{Chunk, Direction, Found, KeyRange, Tree};

/// A key and its value.
pub(crate) type Entry = (Vec<u8>, Vec<u8>);

/// A walk through a range as of one snapshot. Dropping a `next` before its end loses no entry.
pub(crate) struct Scan<S: Store, L: CommitLog> {
    core: Arc<Core<S, L>>,
    snapshot: Arc<S::Snapshot>,
    tree: Tree,
    direction: Direction,
    /// What comes after `chunk`.
    rest: Option<KeyRange>,
    chunk: Chunk,
    /// Entries of `chunk` that may be given out, and how many were.
    usable: usize,
    given: usize,
    /// How many leaves ahead to ask for, and at most.
    distance: usize,
    distance_max: usize,
    /// The leaf farthest ahead that was asked for.
    asked: Option<PageId>,
}

impl<S: Store, L: CommitLog> Scan<S, L> {
    /// Begins. No I/O.
    pub(crate) fn new(
        core: Arc<Core<S, L>>,
        snapshot: Arc<S::Snapshot>,
        tree: Tree,
        range: KeyRange,
        direction: Direction,
    ) -> Self {
        Self {
            core,
            snapshot,
            tree,
            direction,
            rest: Some(range),
            chunk: Chunk::default(),
            usable: 0,
            given: 0,
            distance: 0,
            distance_max: usize::MAX,
            asked: None,
        }
    }

    /// Turns round a scan that has not begun.
    pub(crate) fn set_direction(&mut self, direction: Direction) {
        self.direction = direction;
    }

    /// Never asks for more than so many leaves ahead.
    pub(crate) fn set_read_ahead_max(&mut self, leaves: usize) {
        self.distance_max = leaves;
    }

    /// The next entry.
    pub(crate) async fn next(&mut self, mode: Mode) -> Result<Option<Entry>> {
        while self.given == self.usable {
            if !self.fill(mode).await? {
                return Ok(None);
            }
        }
        let (key, cell) = self.chunk.entry(self.given);
        let (key, found) = (key.to_vec(), Found::from(cell));
        let value = match found {
            Found::Inline(value) => value,
            long => self.core.value(mode, &self.snapshot, long).await?,
        };
        self.given += 1;
        Ok(Some((key, value)))
    }

    /// Takes in the next leaf; `false` at the end.
    async fn fill(&mut self, mode: Mode) -> Result<bool> {
        let Some(range) = &self.rest else { return Ok(false) };
        self.usable = 0;
        self.given = 0;
        let Self { core, snapshot, tree, chunk, asked, distance, distance_max, direction, .. } = self;
        let (mut attempts, far) = (0, core.admission.window().min(*distance_max));
        let rest = attempt(&*core.store, &core.admission, mode, || {
            attempts += 1;
            let result = tree.scan(&core.store.view(snapshot), range, *direction, usize::MAX, far, chunk);
            if matches!(result, Err(Wait::Miss(_))) {
                // The leaves after it go out in the same submission.
                ask_ahead(core, snapshot, &chunk.ahead, (*distance).max(1).min(far), asked);
            }
            result
        })
        .await
        .map_err(|error| core.tables.explain(*tree, error))?;
        self.distance =
            if attempts > 1 { (self.distance * 2).max(2).min(far) } else { self.distance.saturating_sub(1) };
        ask_ahead(&self.core, &self.snapshot, &self.chunk.ahead, self.distance, &mut self.asked);
        self.rest = rest;
        self.usable = self.chunk.len();
        Ok(true)
    }
}

/// Asks for the leaves up to `distance` ahead that were not asked for yet, once half of those that were are used up.
fn ask_ahead<S: Store, L: CommitLog>(
    core: &Core<S, L>,
    snapshot: &S::Snapshot,
    ahead: &[PageId],
    distance: usize,
    asked: &mut Option<PageId>,
) {
    let still_coming = asked.and_then(|asked| ahead.iter().position(|page| *page == asked)).map_or(0, |at| at + 1);
    let upto = ahead.len().min(distance);
    if still_coming * 2 > distance || still_coming >= upto {
        return;
    }
    core.prefetch(&ahead[still_coming..upto], snapshot.seq());
    *asked = ahead.get(upto - 1).copied();
}
