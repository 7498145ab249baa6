//! The work of `translate`: following a random cycle through all pages, and lookups in a B+tree. Both build their pages
//! first and check every value that they read.

use super::frames::{PAGE_WORDS, Page};
use super::places::{Place, lost};
use crate::error::Result;
use crate::machine::content::tag;
use crate::measure::Worker;
use crate::workload::PAGE_BYTES;

/// Number of operations between two checks whether the trial's time is over.
const BATCH: u64 = 256;
/// Number of words in a cache line; a page has 64 lines.
const LINE_WORDS: usize = 8;

/// A position in the cycle: the reference of a page, the word at which its record begins, and the tag expected there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    reference: u64,
    word: usize,
    tag: u64,
}

/// A random cycle through all pages. The record of a page lies in a random cache line of it: if it were always the
/// first, all records would compete for the same sets of the CPU's caches.
pub(super) struct Cycle {
    order: Vec<u32>,
    seed: u64,
    references: Vec<u64>,
}

impl Cycle {
    /// Writes a record into each page: the page's tag, and reference, tag and word of the next page in the cycle.
    pub(super) fn build<P: Place>(place: &mut P, seed: u64) -> Result<Self> {
        let count = place.page_count();
        let mut order: Vec<u32> = (0..count as u32).collect();
        fastrand::Rng::with_seed(seed ^ 0x6379_636c).shuffle(&mut order);
        let references = (0..count).map(|id| place.reference(id)).collect();
        let cycle = Self { order, seed, references };
        for at in 0..count {
            let (own, next) = (cycle.step(at), cycle.step(at + 1));
            let mut page: Page = [0; PAGE_WORDS];
            page[own.word..own.word + 4].copy_from_slice(&[own.tag, next.reference, next.tag, next.word as u64]);
            place.write(cycle.order[at] as usize, &page)?;
        }
        place.seal()?;
        Ok(cycle)
    }

    /// Returns the position at which a thread starts: the threads are spread evenly over the cycle.
    pub(super) fn start(&self, thread: u32, threads: u32) -> Step {
        self.step(self.order.len() * thread as usize / threads.max(1) as usize)
    }

    fn step(&self, at: usize) -> Step {
        let id = self.order[at % self.order.len()] as usize;
        let tag = tag(self.seed, id as u64);
        let word = (tag >> 8) as usize % (PAGE_WORDS / LINE_WORDS) * LINE_WORDS;
        Step { reference: self.references[id], word, tag }
    }
}

/// Follows references from page to page until the trial's time is over.
pub(super) fn follow<P: Place>(worker: &mut Worker<'_>, place: &P, start: Step) -> Result<()> {
    let mut at = start;
    worker.start();
    while worker.running() {
        let mut wrong = 0;
        for _ in 0..BATCH {
            let look = |page: &Page| match page.get(at.word..at.word + 4) {
                Some(&[own, reference, tag, word]) => (own, Step { reference, tag, word: word as usize % PAGE_WORDS }),
                _ => (0, start),
            };
            let (own, next) = place.with(at.reference, look).ok_or_else(lost)?;
            wrong += u64::from(own != at.tag);
            at = next;
        }
        worker.done(BATCH, BATCH * PAGE_BYTES as u64);
        worker.verified_many(BATCH, wrong);
    }
    Ok(())
}

/// Number of entries in a leaf, with keys of 8 bytes and values of 120 as in the vmcache paper.
const LEAF_ENTRIES: usize = 31;
const VALUE_WORDS: usize = 15;
/// Word of a leaf at which its values begin, after the head and the keys.
const VALUES_AT: usize = 32;
/// Largest number of children of an inner node, and the word at which their references begin.
const CHILDREN: usize = 255;
const CHILDREN_AT: usize = 256;

/// A B+tree with the odd keys 1, 3, 5, …; the value of key 2i + 1 begins with the tag of i. A node's first word is its
/// level and, in the upper half, its number of keys.
pub(super) struct Tree {
    root: u64,
    levels: u32,
    entries: u64,
}

/// The result of searching a node: the reference of a child, or the first word of a value.
enum Answer {
    Child(u64),
    Value(u64),
}

impl Tree {
    /// Builds the tree in all pages of a place, filling nodes from left to right.
    pub(super) fn build<P: Place>(place: &mut P, seed: u64) -> Result<Self> {
        let inner_of = |leaves: usize| {
            let mut level = leaves;
            let mut inner = 0;
            while level > 1 {
                level = level.div_ceil(CHILDREN);
                inner += level;
            }
            inner
        };
        let mut leaves = place.page_count();
        while leaves > 1 && leaves + inner_of(leaves) > place.page_count() {
            leaves -= (leaves + inner_of(leaves) - place.page_count()).div_ceil(2).max(1);
        }
        let mut level: Vec<(u64, u64)> = Vec::with_capacity(leaves);
        for leaf in 0..leaves {
            let mut page: Page = [0; PAGE_WORDS];
            page[0] = (LEAF_ENTRIES as u64) << 32;
            for entry in 0..LEAF_ENTRIES {
                let number = (leaf * LEAF_ENTRIES + entry) as u64;
                page[1 + entry] = number * 2 + 1;
                page[VALUES_AT + entry * VALUE_WORDS..][..VALUE_WORDS].fill(tag(seed, number));
            }
            place.write(leaf, &page)?;
            level.push((page[1], place.reference(leaf)));
        }
        let (mut next_id, mut height) = (leaves, 1);
        while level.len() > 1 {
            let mut above = Vec::with_capacity(level.len() / CHILDREN + 1);
            for children in level.chunks(CHILDREN) {
                let mut page: Page = [0; PAGE_WORDS];
                page[0] = height | (children.len() as u64) << 32;
                for (at, (key, reference)) in children.iter().enumerate() {
                    page[1 + at] = *key;
                    page[CHILDREN_AT + at] = *reference;
                }
                place.write(next_id, &page)?;
                above.push((page[1], place.reference(next_id)));
                next_id += 1;
            }
            level = above;
            height += 1;
        }
        place.seal()?;
        let root = level.first().map_or(0, |(_, reference)| *reference);
        Ok(Self { root, levels: height as u32, entries: (leaves * LEAF_ENTRIES) as u64 })
    }

    /// Returns the number of levels, leaves included.
    pub(super) fn levels(&self) -> u32 {
        self.levels
    }

    /// Looks up random keys until the trial's time is over.
    pub(super) fn look_up<P: Place>(&self, worker: &mut Worker<'_>, place: &P, seed: u64, thread: u32) -> Result<()> {
        let mut random = fastrand::Rng::with_seed(tag(seed, u64::from(thread)));
        // `last` stays zero as long as every value is right, but the CPU knows this only after it has loaded the value:
        // so each lookup waits for the one before.
        let mut last = 0;
        worker.start();
        while worker.running() {
            let mut wrong = 0;
            for _ in 0..BATCH {
                let number = ((u128::from(random.u64(..) ^ last) * u128::from(self.entries)) >> 64) as u64;
                last = self.find(place, number * 2 + 1)?.unwrap_or(0) ^ tag(seed, number);
                wrong += u64::from(last != 0);
            }
            worker.done(BATCH, BATCH * PAGE_BYTES as u64);
            worker.verified_many(BATCH, wrong);
        }
        Ok(())
    }

    /// Returns the first word of a key's value; `None` when the key is absent or a node is malformed.
    #[inline]
    pub(super) fn find<P: Place>(&self, place: &P, key: u64) -> Result<Option<u64>> {
        let mut reference = self.root;
        for _ in 0..self.levels {
            match place.with(reference, |page| answer(page, key)).ok_or_else(lost)? {
                Some(Answer::Child(child)) => reference = child,
                Some(Answer::Value(value)) => return Ok(Some(value)),
                None => return Ok(None),
            }
        }
        Ok(None)
    }
}

#[inline]
fn answer(page: &Page, key: u64) -> Option<Answer> {
    let (level, count) = (page[0] as u32, (page[0] >> 32) as usize);
    let keys = page.get(1..1 + count)?;
    if level > 0 {
        let at = keys.partition_point(|lower| *lower <= key).checked_sub(1)?;
        return Some(Answer::Child(*page.get(CHILDREN_AT + at)?));
    }
    let at = keys.partition_point(|other| *other < key);
    (keys.get(at) == Some(&key)).then_some(())?;
    Some(Answer::Value(*page.get(VALUES_AT + at * VALUE_WORDS)?))
}
