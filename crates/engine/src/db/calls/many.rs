//! Looks up many keys at once.
//!
//! Keys are taken in parts. The keys of one part are looked up side by side, and the pages that they miss are requested
//! and submitted together, so that the device is busy while the next part is looked up. Earlier parts are finished
//! while the reads of later ones are still at the device.
//!
//! Kept true by: a part never waits for permits, as it holds others (rule 1 of `pins`). Keys that get no
//! permits are left to the end, when nothing is held, and are loaded together, with the guarantees that `pins` gives to
//! operations that have to wait for permits.

use std::collections::VecDeque;
use std::ops::Range;

use rustc_hash::FxHashSet;

use super::overflow;
use super::pins::PinBudget;
use super::reader::{Reader, is_younger, takes_another};
use super::wait::{ready_sent, yield_now};
use crate::btree::many::{Lookup, SIDE_BY_SIDE};
use crate::btree::{FoundValue, Position, Tree};
use crate::error::{Error, Result};
use crate::pages::{Snapshot as _, Store, Wait};
use crate::sync::driver::is_blocking;

/// Attempts to look up a group of keys before they are left to the end of the call: more than most trees have levels.
const ROUNDS_MAX: usize = 8;

/// Number of keys that are looked up before the call yields to other tasks: less than a millisecond of work where all
/// pages are in memory, and several windows of reads where none is.
const KEYS_AT_ONCE: usize = 1024;

fn slices<K: AsRef<[u8]>>(keys: &[K]) -> Vec<&[u8]> {
    keys.iter().map(AsRef::as_ref).collect()
}

/// A group of keys whose page requests were submitted together.
struct Part<T> {
    keys: Vec<usize>,
    pages: usize,
    rounds: usize,
    ticket: T,
}

/// The values of many keys at one moment, in the order of `keys`.
///
/// # Errors
/// The errors of reading; `SnapshotTooOld` when snapshots are evicted faster than this reads.
pub(in crate::db) async fn get_many<S: Store, K: AsRef<[u8]>>(
    reader: &Reader<S>,
    tree: Tree,
    keys: &[K],
) -> Result<Vec<Option<Vec<u8>>>> {
    if keys.len() <= KEYS_AT_ONCE
        && let Some(values) = look_at_all(reader, tree, &slices(keys))
    {
        return Ok(values);
    }
    let mut taken = 0;
    loop {
        match get_many_at(reader, &reader.loader.store().snapshot(), tree, keys).await {
            Err(error) if takes_another(&error, &mut taken) => {}
            result => return result,
        }
    }
}

/// Returns the newest visible values if all of them are in memory and none is long.
fn look_at_all<S: Store>(reader: &Reader<S>, tree: Tree, keys: &[&[u8]]) -> Option<Vec<Option<Vec<u8>>>> {
    let view = reader.loader.store().latest();
    let mut values = vec![None; keys.len()];
    for (keys, values) in keys.chunks(SIDE_BY_SIDE).zip(values.chunks_mut(SIDE_BY_SIDE)) {
        let begin = |number: usize| Lookup { number, key: keys[number], position: tree.start() };
        let mut all = true;
        tree.get_each(&view, (0..keys.len()).map(begin).collect(), |lookup, answer| match answer {
            Ok(None) => {}
            Ok(Some(FoundValue::Inline(value))) => values[lookup.number] = Some(value),
            _ => all = false,
        });
        if !all {
            return None;
        }
    }
    Some(values)
}

/// The values of many keys in a snapshot, in the order of `keys`.
///
/// # Errors
/// The errors of reading; `SnapshotTooOld` when the snapshot was evicted.
pub(in crate::db) async fn get_many_at<S: Store, K: AsRef<[u8]>>(
    reader: &Reader<S>,
    snapshot: &S::Snapshot,
    tree: Tree,
    keys: &[K],
) -> Result<Vec<Option<Vec<u8>>>> {
    let mut values = Vec::with_capacity(keys.len());
    for keys in keys.chunks(KEYS_AT_ONCE) {
        if !values.is_empty() {
            yield_now().await;
        }
        values.append(&mut Lookups::new(reader, snapshot, tree, &slices(keys)).run().await?);
    }
    Ok(values)
}

/// A lookup of some keys in a snapshot, few enough for one poll, and the values found so far.
struct Lookups<'a, S: Store> {
    reader: &'a Reader<S>,
    snapshot: &'a S::Snapshot,
    tree: Tree,
    keys: &'a [&'a [u8]],
    /// The resume position of the lookup of each key. The snapshot does not change, so each attempt continues there.
    positions: Vec<Position>,
    found: Vec<Option<FoundValue>>,
}

impl<'a, S: Store> Lookups<'a, S> {
    fn new(reader: &'a Reader<S>, snapshot: &'a S::Snapshot, tree: Tree, keys: &'a [&'a [u8]]) -> Self {
        let (positions, found) = (vec![tree.start(); keys.len()], vec![None; keys.len()]);
        Self { reader, snapshot, tree, keys, positions, found }
    }

    /// Looks up all keys and returns their values.
    async fn run(mut self) -> Result<Vec<Option<Vec<u8>>>> {
        if is_younger(self.tree, self.snapshot) {
            return Ok(vec![None; self.keys.len()]);
        }
        let left = self.get_in_parts().await?;
        self.get_together(left).await?;
        let long = self.found.iter().filter_map(|found| match found {
            Some(FoundValue::Long(value)) => Some(value.clone()),
            _ => None,
        });
        let mut long = overflow::values(&self.reader.loader, self.snapshot, long.collect()).await?.into_iter();
        let value = |found: Option<FoundValue>| match found? {
            FoundValue::Inline(value) => Some(value),
            FoundValue::Long(_) => long.next(),
        };
        Ok(self.found.into_iter().map(value).collect())
    }

    /// Looks up the keys that can be found without waiting for permits. Returns the keys that are left.
    async fn get_in_parts(&mut self) -> Result<Vec<usize>> {
        let window = self.reader.loader.window();
        let part_keys = SIDE_BY_SIDE.min(window);
        let mut parts: VecDeque<Part<S::Ticket>> = VecDeque::new();
        let (mut left, mut new, mut asked) = (Vec::new(), 0..self.keys.len(), 0);
        loop {
            let (keys, rounds);
            let mut before = None;
            if !new.is_empty() && asked + part_keys <= window {
                (keys, rounds) = (take_first(&mut new, part_keys).collect(), 0);
            } else if let Some(mut part) = parts.pop_front() {
                ready_sent(&mut part.ticket).await.map_err(|error| self.explain(error))?;
                asked -= part.pages;
                (keys, rounds) = (std::mem::take(&mut part.keys), part.rounds + 1);
                before = Some(part);
            } else {
                return Ok(left);
            }
            let (keys, waits) = self.look_at(keys, usize::MAX)?;
            drop(before);
            if keys.is_empty() {
                continue;
            }
            let permit = if rounds < ROUNDS_MAX { self.reader.loader.try_pins(waits.len()) } else { None };
            let Some(permit) = permit else {
                left.extend(keys);
                continue;
            };
            let ticket = self.reader.loader.store().request(&waits, permit);
            // A caller waiting for one page, with no other reads under way, reads it on its own thread.
            let alone = waits.len() == 1 && parts.is_empty() && new.is_empty();
            if !alone || !is_blocking().await {
                self.reader.loader.store().submit();
            }
            asked += waits.len();
            parts.push_back(Part { keys, pages: waits.len(), rounds, ticket });
        }
    }

    /// Finds the values of some keys, with at most one wait per tree level and window of keys.
    async fn get_together(&mut self, mut keys: Vec<usize>) -> Result<()> {
        let mut pins = PinBudget::default();
        while !keys.is_empty() {
            let waits;
            (keys, waits) = self.look_at(keys, self.reader.loader.window())?;
            if !waits.is_empty() {
                let loaded = self.reader.loader.load(&mut pins, &waits).await;
                loaded.map_err(|error| self.explain(error))?;
            }
        }
        Ok(())
    }

    /// Looks for the values of some keys. Returns the keys that are not found yet, and the waits that they need: at
    /// most `waits_max`.
    fn look_at(&mut self, keys: Vec<usize>, waits_max: usize) -> Result<(Vec<usize>, Vec<Wait>)> {
        let Self { reader, snapshot, tree, keys: all, positions, found } = &mut *self;
        let view = reader.loader.store().view(snapshot);
        let (mut still, mut waits, mut asked, mut failed) = (Vec::new(), Vec::new(), FxHashSet::default(), None);
        for part in keys.chunks(SIDE_BY_SIDE) {
            if waits.len() + part.len() > waits_max && !waits.is_empty() {
                still.extend_from_slice(part);
                continue;
            }
            let lookup = |number: &usize| Lookup { number: *number, key: all[*number], position: positions[*number] };
            let under_way: Vec<_> = part.iter().map(lookup).collect();
            tree.get_each(&view, under_way, |Lookup { number, position, .. }, answer| {
                positions[number] = position;
                match answer {
                    Ok(value) => found[number] = value,
                    Err(Wait::Miss(missing)) => {
                        still.push(number);
                        if waits.len() < waits_max && asked.insert(missing.page) {
                            waits.push(Wait::Miss(missing));
                        }
                    }
                    Err(Wait::Failed(error)) => failed = Some(error),
                    Err(wait) => {
                        still.push(number);
                        waits.push(wait);
                    }
                }
            });
        }
        match failed {
            Some(error) => Err(self.explain(error)),
            None => Ok((still, waits)),
        }
    }

    /// Returns the error that the caller gets for an error of reading the snapshot: damage in a table that was dropped
    /// before the snapshot was taken becomes `NotFound`.
    fn explain(&self, error: Error) -> Error {
        self.reader.tables.explain(self.tree, self.snapshot.seq(), error)
    }
}

/// Removes the first `count` numbers of a range, or all if it has fewer, and returns them.
fn take_first(range: &mut Range<usize>, count: usize) -> Range<usize> {
    let end = range.end.min(range.start + count);
    let first = range.start..end;
    range.start = end;
    first
}
