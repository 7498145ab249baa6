//! The last commit of each key, in a table of fixed size.
//!
//! A key belongs to one set of the table and is known there by 32 bits of its hash. A set that is full forgets its oldest key, and
//! keeps the newest commit number of those it has forgotten: it stands for every key that the set does not list.
//!
//! Kept true by: a number only ever stands for more keys than it should, so the answer is never older than the truth.

use std::hash::Hasher;

use rustc_hash::FxHasher;

use crate::format::CommitSeq;

/// Number of keys in a set.
const WAYS: usize = 10;
/// The newest number that was forgotten, then the numbers, then the 32 bits of each key, two in a word: two cache lines.
const WORDS: usize = 16;
const TAGS: usize = 1 + WAYS;
const _: () = assert!(TAGS + WAYS.div_ceil(2) == WORDS);
/// Largest size of the table: enough for over a million keys.
const BYTES_MAX: usize = 16 << 20;

type Set = [u64; WORDS];

/// The last change of each recently changed key, by hash: see the module.
#[derive(Debug)]
pub(super) struct KeyTable {
    sets: Box<[Set]>,
}

impl KeyTable {
    /// Creates an empty table of about `bytes` bytes. Memory is touched only when keys are noted.
    pub(super) fn new(bytes: usize) -> Self {
        let sets = bytes.min(BYTES_MAX) / size_of::<Set>();
        Self { sets: vec![[0; WORDS]; sets.max(1)].into() }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.sets)
    }

    /// Notes that commit `seq` changes this key.
    pub(super) fn note(&mut self, key: &[u8], seq: CommitSeq) {
        let (at, tag) = self.place(key);
        let set = &mut self.sets[at];
        let way = find(set, tag).unwrap_or_else(|| {
            let oldest = (0..WAYS).min_by_key(|way| set[1 + way]).unwrap_or(0);
            set[0] = set[0].max(set[1 + oldest]);
            set[1 + oldest] = 0;
            let (word, shift) = (TAGS + oldest / 2, oldest % 2 * 32);
            set[word] = set[word] & !(u64::from(u32::MAX) << shift) | u64::from(tag) << shift;
            oldest
        });
        set[1 + way] = set[1 + way].max(seq.0);
    }

    /// Returns the newest commit that may have changed this key.
    pub(super) fn newest(&self, key: &[u8]) -> CommitSeq {
        let (at, tag) = self.place(key);
        let set = &self.sets[at];
        CommitSeq(find(set, tag).map_or(set[0], |way| set[1 + way]))
    }

    fn place(&self, key: &[u8]) -> (usize, u32) {
        let mut hasher = FxHasher::default();
        hasher.write(key);
        // The bits of the hash, mixed once more: one half selects the set, the other half identifies the key in it.
        let hash = hasher.finish().wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let hash = hash ^ hash >> 32;
        let set = (u128::from(hash.wrapping_mul(0xD6E8_FEB8_6659_FD93)) * self.sets.len() as u128) >> 64;
        (set as usize, hash as u32)
    }
}

/// Returns the index of a key in a set.
fn find(set: &Set, tag: u32) -> Option<usize> {
    (0..WAYS).find(|way| set[1 + way] != 0 && (set[TAGS + way / 2] >> (way % 2 * 32)) as u32 == tag)
}
