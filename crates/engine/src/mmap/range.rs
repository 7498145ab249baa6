//! Ranges and scans over a snapshot. Entries are copied out of the map, so that no reference into it outlives the guard
//! under which their leaf was read.

use std::collections::{BTreeMap, VecDeque};

use super::{Snapshot, value};
use crate::btree::{Chunk, Direction, KeyRange, Portion, ValueRef};
use crate::error::Result;

/// Entries that a range takes out of the map at a time.
const CHUNK_ENTRIES: usize = 256;

/// Iterator over a snapshot's entries within a range, in key order.
pub struct Range<'a> {
    snapshot: &'a Snapshot<'a>,
    rest: Option<KeyRange>,
    ready: VecDeque<(Vec<u8>, Vec<u8>)>,
}

impl<'a> Range<'a> {
    pub(super) fn new(snapshot: &'a Snapshot<'a>, range: KeyRange) -> Self {
        Self { snapshot, rest: Some(range), ready: VecDeque::new() }
    }

    fn fill(&mut self) -> Result<()> {
        let Some(range) = self.rest.take() else { return Ok(()) };
        let Snapshot { store, commit, tree } = self.snapshot;
        let (rest, ready) = store.look(*commit, |view| {
            let (mut chunk, mut ready, mut rest) = (Chunk::default(), VecDeque::new(), Some(range));
            while let Some(range) = rest.take_if(|_| ready.len() < CHUNK_ENTRIES) {
                let most = Portion { entries: CHUNK_ENTRIES - ready.len(), ..Portion::ALL };
                rest = tree.scan(view, &range, Direction::Forward, most, 0, &mut chunk)?;
                for index in 0..chunk.len() {
                    let (key, cell) = chunk.entry(index);
                    ready.push_back((key.to_vec(), value(view, cell.into())?));
                }
            }
            Ok((rest, ready))
        })?;
        (self.rest, self.ready) = (rest, ready);
        Ok(())
    }
}

impl Iterator for Range<'_> {
    type Item = Result<(Vec<u8>, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.ready.is_empty() && self.rest.is_some() {
            if let Err(error) = self.fill() {
                return Some(Err(error));
            }
        }
        self.ready.pop_front().map(Ok)
    }
}

/// A scan of all entries of a snapshot, a leaf at a time, as the engine scans its own tree.
pub struct LeafScan<'a> {
    snapshot: &'a Snapshot<'a>,
    rest: Option<KeyRange>,
    /// The entries of one leaf, and the next of them.
    chunk: Chunk,
    next: usize,
    /// Values of the chunk that lie in other pages, by the index of their entry.
    long: BTreeMap<usize, Vec<u8>>,
    /// Most leaves to come for which the kernel is asked.
    ahead_max: usize,
    /// Number of the leaves to come for which it was asked.
    asked: usize,
}

impl<'a> LeafScan<'a> {
    pub(super) fn new(snapshot: &'a Snapshot<'a>, ahead_max: usize) -> Self {
        let rest = Some(KeyRange { start: Vec::new(), end: None });
        Self { snapshot, rest, chunk: Chunk::default(), next: 0, long: BTreeMap::new(), ahead_max, asked: 0 }
    }

    /// Returns the next entry without another copy; `None` at the end.
    ///
    /// # Errors
    /// As for [`super::Store::get`].
    pub fn next_ref(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        while self.next >= self.chunk.len() {
            let Some(range) = self.rest.take() else { return Ok(None) };
            self.fill(&range)?;
        }
        let index = self.next;
        self.next += 1;
        let (key, value) = self.chunk.entry(index);
        Ok(Some(match value {
            ValueRef::Here(value) => (key, value),
            _ => (key, self.long.get(&index).map_or(&[], Vec::as_slice)),
        }))
    }

    /// Copies the entries of the next leaf.
    fn fill(&mut self, range: &KeyRange) -> Result<()> {
        let Self { chunk, long, asked, ahead_max, .. } = self;
        let Snapshot { store, commit, tree } = self.snapshot;
        *asked = asked.saturating_sub(1);
        let ahead = if *asked <= *ahead_max / 2 { *ahead_max } else { 0 };
        let looked = store.look(*commit, |view| {
            long.clear();
            let rest = tree.scan(view, range, Direction::Forward, Portion::ALL, ahead, chunk)?;
            if ahead > 0 {
                view.ask_for(chunk.ahead.get(*asked..).unwrap_or_default())?;
                *asked = chunk.ahead.len();
            }
            for index in 0..chunk.len() {
                let (_, held) = chunk.entry(index);
                if !matches!(held, ValueRef::Here(_)) {
                    long.insert(index, value(view, held.into())?);
                }
            }
            Ok(rest)
        });
        if looked.is_err() {
            // After a fault the entries mean nothing.
            *chunk = Chunk::default();
        }
        (self.next, self.rest) = (0, looked?);
        Ok(())
    }
}
