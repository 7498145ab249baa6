//! The last commits of keys in key order, in a list of bounded length.
//!
//! Between two neighbours of the list lies a gap: the keys there that were changed and are not listed. Its number is the newest
//! of their commits. When the list is full, a key is taken off it, and the gap on its left takes over its number. Of a few older
//! keys that is the one with the closest neighbours: then the gap stays narrow, and so the range that it makes look changed.
//!
//! The list is cut into blocks that know their newest number, so a range of any length is compared with few numbers.
//!
//! Kept true by: taking a key off only raises the number of a gap, so the answer is never older than the truth.

use crate::format::CommitSeq;
use crate::sync::budget::Budget;

/// Most keys in a block of the list.
const BLOCK_MAX: usize = 64;
/// Most keys in the list: more would make too many blocks for one pass over all of them.
const KEYS_MAX: usize = 1 << 15;
/// Number of blocks whose numbers are compared in one budget step.
const BLOCKS_A_STEP: usize = 8;
/// Memory of a key besides its bytes: its entry with the room that a growing block keeps, and an allocation.
const KEY_OVERHEAD_BYTES: usize = 64;

/// Number of keys of a block among which the one to be removed is chosen.
const CANDIDATES: usize = 8;

fn common_bytes(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[derive(Debug)]
struct Entry {
    key: Box<[u8]>,
    seq: u64,
    /// The newest commit that changed a key in the gap between this key and the next one.
    gap: u64,
}

#[derive(Debug)]
struct Block {
    /// The entries, in key order; never empty.
    entries: Vec<Entry>,
    /// The newest commit among the keys and gaps of the block.
    newest: u64,
}

impl Block {
    fn new(entries: Vec<Entry>) -> Self {
        let mut block = Self { entries, newest: 0 };
        block.count_again();
        block
    }

    fn count_again(&mut self) {
        self.newest = self.entries.iter().map(|entry| entry.seq.max(entry.gap)).max().unwrap_or(0);
    }

    fn first(&self) -> &[u8] {
        self.entries.first().map_or(&[], |entry| &entry.key)
    }
}

/// Recently changed keys in key order, for range queries: see the module.
#[derive(Debug)]
pub(super) struct KeyOrder {
    blocks: Vec<Block>,
    /// The newest commit that changed a key in the gap before the first key.
    head: u64,
    count: usize,
    bytes: usize,
    bytes_max: usize,
    /// Index of the block from which the next key is removed when memory runs out.
    hand: usize,
}

impl KeyOrder {
    /// Creates an empty list that takes at most `bytes_max` bytes.
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { blocks: Vec::new(), head: 0, count: 0, bytes: 0, bytes_max, hand: 0 }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes
    }

    /// Notes that commit `seq` changes this key.
    pub(super) fn note(&mut self, key: &[u8], seq: CommitSeq) {
        let at = self.block_of(key);
        let Some(block) = self.blocks.get_mut(at) else {
            let entry = Entry { key: key.into(), seq: seq.0, gap: self.head };
            self.blocks.push(Block::new(vec![entry]));
            self.added(key.len());
            return;
        };
        match block.entries.binary_search_by(|entry| (*entry.key).cmp(key)) {
            Ok(index) => block.entries[index].seq = block.entries[index].seq.max(seq.0),
            Err(index) => {
                // A key before the first key of a block belongs to the block only in the first block.
                let gap = index.checked_sub(1).map_or(self.head, |before| block.entries[before].gap);
                block.entries.insert(index, Entry { key: key.into(), seq: seq.0, gap });
                // The number of the gap in which the key lies counts for both of its halves.
                block.newest = block.newest.max(gap);
                if block.entries.len() > BLOCK_MAX {
                    let second = block.entries.split_off(BLOCK_MAX / 2);
                    block.newest = block.newest.max(seq.0);
                    block.count_again();
                    self.blocks.insert(at + 1, Block::new(second));
                } else {
                    block.newest = block.newest.max(seq.0);
                }
                self.added(key.len());
                return;
            }
        }
        block.newest = block.newest.max(seq.0);
    }

    /// Returns the newest commit that may have changed a key from `start` on and below `end`.
    pub(super) fn newest(&self, start: &[u8], end: &[u8], budget: &mut Budget) -> CommitSeq {
        budget.spend(1);
        if end <= start {
            return CommitSeq(0);
        }
        let mut newest = 0;
        let at = self.block_of(start);
        let Some(block) = self.blocks.get(at) else { return CommitSeq(self.head) };
        let first = block.entries.partition_point(|entry| *entry.key < *start);
        let begins_with = block.entries.get(first).or_else(|| self.blocks.get(at + 1)?.entries.first());
        if begins_with.is_none_or(|entry| *entry.key != *start) {
            newest = first.checked_sub(1).map_or(self.head, |before| block.entries[before].gap);
        }
        let mut part = &block.entries[first..];
        let mut next = at + 1;
        loop {
            budget.spend(1 + part.len() / BLOCKS_A_STEP);
            for entry in part {
                if *entry.key >= *end {
                    return CommitSeq(newest);
                }
                newest = newest.max(entry.seq);
                // A range that ends right behind a key has nothing of the gap there.
                if end.strip_suffix(&[0]) != Some(&*entry.key) {
                    newest = newest.max(entry.gap);
                }
            }
            // Whole blocks: those that have another one behind them which begins inside the range or at its end.
            let behind = self.blocks[next..].partition_point(|block| block.first() < end);
            let whole = behind.saturating_sub(1);
            budget.spend(whole / BLOCKS_A_STEP);
            newest = self.blocks[next..next + whole].iter().map(|block| block.newest).fold(newest, u64::max);
            next += whole;
            let Some(block) = self.blocks.get(next).filter(|block| block.first() < end) else {
                return CommitSeq(newest);
            };
            part = &block.entries;
            next += 1;
        }
    }

    /// Returns the index of the last block that begins at or before `key`; of the first block if there is none.
    fn block_of(&self, key: &[u8]) -> usize {
        self.blocks.partition_point(|block| block.first() <= key).saturating_sub(1)
    }

    fn added(&mut self, key_bytes: usize) {
        self.count += 1;
        self.bytes += key_bytes + KEY_OVERHEAD_BYTES;
        while self.bytes > self.bytes_max || self.count > KEYS_MAX {
            if !self.take_one_off() {
                return;
            }
        }
    }

    /// Removes one of the older keys of a block from the list, of another block each time. Returns false when the list
    /// is empty.
    fn take_one_off(&mut self) -> bool {
        if self.hand >= self.blocks.len() {
            self.hand = 0;
        }
        let at = self.hand;
        let Some(block) = self.blocks.get(at) else { return false };
        let index = self.choose(at, &block.entries);
        let block = &mut self.blocks[at];
        let taken = block.entries.remove(index);
        self.count -= 1;
        self.bytes -= taken.key.len() + KEY_OVERHEAD_BYTES;
        let number = taken.seq.max(taken.gap);
        if let Some(before) = index.checked_sub(1) {
            let gap = &mut block.entries[before].gap;
            *gap = number.max(*gap);
        } else if at == 0 {
            self.head = self.head.max(number);
        } else {
            let before = &mut self.blocks[at - 1];
            if let Some(last) = before.entries.last_mut() {
                last.gap = last.gap.max(number);
            }
            before.newest = before.newest.max(number);
        }
        self.blocks[at].count_again();
        self.hand += 1;
        self.keep_filled(at);
        true
    }

    /// Chooses the key of block `at` to be removed: of some candidates in the older half, the one with the closest
    /// neighbours.
    fn choose(&self, at: usize, entries: &[Entry]) -> usize {
        let stride = entries.len().div_ceil(CANDIDATES).max(1);
        let candidates = || (self.count % stride..entries.len()).step_by(stride);
        let (oldest, newest) = candidates().fold((u64::MAX, 0), |(oldest, newest), index| {
            (oldest.min(entries[index].seq), newest.max(entries[index].seq))
        });
        let no_later_than = oldest + (newest - oldest) / 2;
        let closeness = |index: usize| {
            let before = match index.checked_sub(1) {
                Some(before) => entries.get(before),
                None => at.checked_sub(1).and_then(|before| self.blocks[before].entries.last()),
            };
            let after = entries.get(index + 1).or_else(|| self.blocks.get(at + 1)?.entries.first());
            before.zip(after).map_or(0, |(before, after)| common_bytes(&before.key, &after.key))
        };
        let older = candidates().filter(|index| entries[*index].seq <= no_later_than);
        older.max_by_key(|index| (closeness(*index), std::cmp::Reverse(entries[*index].seq))).unwrap_or(0)
    }

    /// Merges a block that has become small with the next one.
    fn keep_filled(&mut self, at: usize) {
        if self.blocks[at].entries.is_empty() {
            self.blocks.remove(at);
        } else if let Some(next) = self.blocks.get(at + 1)
            && self.blocks[at].entries.len() + next.entries.len() <= BLOCK_MAX / 2
        {
            let next = self.blocks.remove(at + 1);
            let block = &mut self.blocks[at];
            block.newest = block.newest.max(next.newest);
            block.entries.extend(next.entries);
        }
    }
}
