//! Walking a range of a table: entries come leaf by leaf, and the leaves to come are asked for early.
//!
//! How far ahead is learnt on the way, as PostgreSQL's read stream does: a wait doubles the distance, a leaf that was there
//! already takes one off. So a scan in memory asks for nothing, and a cold one soon keeps the device busy.

use std::collections::VecDeque;
use std::sync::Arc;

use super::core::Core;
use super::wait::{Held as HeldPages, Mode, breathe, load};
use crate::error::Result;
use crate::format::PageId;
use crate::format::node::OverflowRef;
use crate::pages::{CommitLog, Missing, Snapshot, Store, Wait};
use crate::tree::{Chunk, Direction, Held, KeyRange, Tree};

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
    /// The next long values of `chunk`, read already.
    long: VecDeque<Vec<u8>>,
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
            long: VecDeque::new(),
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
        if let Held::Overflow(_) = self.chunk.entry(self.given).1
            && self.long.is_empty()
        {
            let values = self.long_to_come();
            self.long = self.core.long_values(mode, &self.snapshot, values).await?.into();
        }
        let (key, held) = self.chunk.entry(self.given);
        let value = match held {
            Held::Here(value) => value.to_vec(),
            Held::Overflow(_) => self.long.pop_front().unwrap_or_default(),
        };
        let key = key.to_vec();
        self.given += 1;
        Ok(Some((key, value)))
    }

    /// The next long values of the chunk, as many as may be read together and at least one.
    fn long_to_come(&self) -> Vec<OverflowRef> {
        let (mut values, mut bytes) = (Vec::new(), 0);
        for index in self.given..self.usable {
            if let Held::Overflow(value) = self.chunk.entry(index).1 {
                bytes += value.len_bytes;
                if !values.is_empty() && bytes > self.core.long_bytes_at_once() {
                    break;
                }
                values.push(value);
            }
        }
        values
    }

    /// Takes in the next leaf; `false` at the end.
    async fn fill(&mut self, mode: Mode) -> Result<bool> {
        let Some(range) = &self.rest else { return Ok(false) };
        self.usable = 0;
        self.given = 0;
        let Self { core, snapshot, tree, chunk, asked, distance, distance_max, direction, .. } = self;
        let window = core.admission.window();
        let (mut attempts, far) = (0, window.min(*distance_max));
        chunk.own_max = window;
        let mut held = HeldPages::default();
        let rest = loop {
            attempts += 1;
            let ahead_max = (*distance * 2).max(2).min(far);
            let looked = tree.scan(&core.store.view(snapshot), range, *direction, usize::MAX, ahead_max, chunk);
            let wait = match looked {
                Ok(rest) => break rest,
                Err(wait) => wait,
            };
            let (own, later) = chunk.ahead.split_at(chunk.own);
            let mut waits = vec![wait];
            if matches!(waits[0], Wait::Miss(_)) {
                // The leaves after it go out in the same submission.
                ask_ahead(core, snapshot, later, (*distance).max(1).min(far), asked);
                let at = snapshot.seq();
                if !own.is_empty() {
                    // All that the leaf needs together.
                    waits = own.iter().take(window).map(|page| Wait::Miss(Missing { page: *page, at })).collect();
                }
            }
            let loaded = load(&*core.store, &core.admission, mode, &mut held, &waits).await;
            loaded.map_err(|error| core.tables.explain(*tree, error))?;
        };
        drop(held);
        if attempts == 1 {
            breathe(mode).await;
        }
        self.distance =
            if attempts > 1 { (self.distance * 2).max(2).min(far) } else { self.distance.saturating_sub(1) };
        if ask_ahead(&self.core, &self.snapshot, &self.chunk.ahead, self.distance, &mut self.asked) {
            // While the caller looks at this leaf.
            self.core.store.submit();
        }
        self.rest = rest;
        self.usable = self.chunk.len();
        Ok(true)
    }
}

/// Asks for the leaves up to `distance` ahead that were not asked for yet, once half of those that were are used up. Says
/// whether it did.
fn ask_ahead<S: Store, L: CommitLog>(
    core: &Core<S, L>,
    snapshot: &S::Snapshot,
    ahead: &[PageId],
    distance: usize,
    asked: &mut Option<PageId>,
) -> bool {
    let still_coming = asked.and_then(|asked| ahead.iter().position(|page| *page == asked)).map_or(0, |at| at + 1);
    let upto = ahead.len().min(distance);
    if still_coming * 2 > distance || still_coming >= upto {
        return false;
    }
    core.prefetch(&ahead[still_coming..upto], snapshot.seq());
    *asked = ahead.get(upto - 1).copied();
    true
}
