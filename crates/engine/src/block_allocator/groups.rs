//! The groups of blocks of a file, in little memory: ten bytes a group, and 32 more for a group whose free blocks lie in
//! more than three runs. A group whose blocks are all in use, or all free, or were written in order takes ten.
//!
//! The group changed last is kept as it is, because calls concern one group many times in a row, above all
//! while a page table is loaded.

use std::collections::{BTreeMap, BTreeSet};

use super::GROUP_BLOCKS;
use super::group::{Group, class_of};

/// Number of groups that lie together.
const PART_GROUPS: u32 = 64;
/// Number of classes of groups by their free blocks.
const CLASSES: usize = class_of(GROUP_BLOCKS as u32) as usize + 1;
/// Most runs of free blocks that a word describes.
const RUNS_MAX: usize = 3;
/// Number of bitmaps allocated together.
const BITMAPS_TOGETHER: usize = 64;

/// A group as it is stored: zero where there is none; `RUNS`, a count and the runs of free blocks; or `BITMAP` and the
/// number of a bitmap.
type Word = u64;
const RUNS: Word = 1 << 62;
const BITMAP: Word = 1 << 63;
const COUNT_SHIFT: u32 = 56;
/// Bits of a run: the first block, and the number of blocks less one.
const RUN_BITS: u32 = 16;

/// Stands in `Part::classes` for a group without free blocks, or for none.
const NO_CLASS: u8 = u8::MAX;

#[derive(Debug)]
struct Part {
    words: [Word; PART_GROUPS as usize],
    /// The class of each group with free blocks.
    classes: [u8; PART_GROUPS as usize],
    /// Number of groups of each class.
    counts: [u8; CLASSES],
    groups: u32,
}

/// The groups of a file, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Groups {
    parts: BTreeMap<u32, Box<Part>>,
    /// For each class the parts with a group of it with free blocks.
    by_class: [BTreeSet<u32>; CLASSES],
    bitmaps: Bitmaps,
    /// The group changed last: its word is written when another one is.
    last: Option<(u32, Group)>,
}

impl Groups {
    /// Returns a group; `None` when there is no such group.
    pub(super) fn get(&self, number: u32) -> Option<Group> {
        if let Some((_, group)) = self.last.as_ref().filter(|(last, _)| *last == number) {
            return Some(group.clone());
        }
        match self.word(number)? {
            0 => None,
            word if word & BITMAP != 0 => Some(Group::of_used(self.bitmaps.get(word as u32))),
            word => Some(Group::of_used(used_of_runs(word))),
        }
    }

    fn word(&self, number: u32) -> Option<Word> {
        self.parts.get(&(number / PART_GROUPS)).map(|part| part.words[(number % PART_GROUPS) as usize])
    }

    /// Returns whether there is such a group.
    pub(super) fn contains(&self, number: u32) -> bool {
        self.last.as_ref().is_some_and(|(last, _)| *last == number) || self.word(number).is_some_and(|word| word != 0)
    }

    /// Adds or changes a group.
    pub(super) fn set(&mut self, number: u32, group: Group) {
        match &mut self.last {
            Some((last, before)) if *last == number => {
                let is_same = class_with_room(before.free) == class_with_room(group.free);
                *before = group;
                if is_same {
                    return;
                }
            }
            _ => {
                self.store_last();
                self.last = Some((number, group));
            }
        }
        let class = self.last.as_ref().map_or(NO_CLASS, |(_, group)| class_with_room(group.free));
        self.set_class(number, class);
    }

    /// Removes a group.
    pub(super) fn remove(&mut self, number: u32) {
        if !self.contains(number) {
            return;
        }
        self.set_class(number, NO_CLASS);
        self.last.take_if(|(last, _)| *last == number);
        let (key, at) = (number / PART_GROUPS, (number % PART_GROUPS) as usize);
        let Some(part) = self.parts.get_mut(&key) else { return };
        if part.words[at] & BITMAP != 0 {
            self.bitmaps.remove(part.words[at] as u32);
        }
        part.words[at] = 0;
        part.groups -= 1;
        if part.groups == 0 {
            self.parts.remove(&key);
        }
    }

    /// Returns the part of a group, in which the group is counted from now on.
    fn part(&mut self, number: u32) -> &mut Part {
        let part = self.parts.entry(number / PART_GROUPS).or_insert_with(|| {
            Box::new(Part {
                words: [0; PART_GROUPS as usize],
                classes: [NO_CLASS; PART_GROUPS as usize],
                counts: [0; CLASSES],
                groups: 0,
            })
        });
        let word = &mut part.words[(number % PART_GROUPS) as usize];
        if *word == 0 {
            // A group in which nothing is free, until it is stored.
            *word = RUNS;
            part.groups += 1;
        }
        part
    }

    fn set_class(&mut self, number: u32, class: u8) {
        let (key, at) = (number / PART_GROUPS, (number % PART_GROUPS) as usize);
        let part = self.part(number);
        let before = std::mem::replace(&mut part.classes[at], class);
        if before == class {
            return;
        }
        let mut emptied = None;
        if let Some(count) = part.counts.get_mut(usize::from(before)) {
            *count -= 1;
            emptied = (*count == 0).then_some(usize::from(before));
        }
        if let Some(count) = part.counts.get_mut(usize::from(class)) {
            *count += 1;
            self.by_class[usize::from(class)].insert(key);
        }
        if let Some(class) = emptied {
            self.by_class[class].remove(&key);
        }
    }

    fn store_last(&mut self) {
        let Some((number, group)) = self.last.take() else { return };
        let at = (number % PART_GROUPS) as usize;
        let word = self.part(number).words[at];
        let index = (word & BITMAP != 0).then_some(word as u32);
        let new = match (word_of_runs(&group.used), index) {
            (Some(runs), None) => runs,
            (Some(runs), Some(index)) => {
                self.bitmaps.remove(index);
                runs
            }
            (None, Some(index)) => {
                *self.bitmaps.get_mut(index) = group.used;
                word
            }
            (None, None) => BITMAP | Word::from(self.bitmaps.add(group.used)),
        };
        self.part(number).words[at] = new;
    }

    /// Returns the numbers of the groups, in order.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        let words = self.parts.iter().flat_map(|(key, part)| (key * PART_GROUPS..).zip(part.words));
        words.filter(|(_, word)| *word != 0).map(|(number, _)| number)
    }

    /// Returns, in order, the groups of a class with free blocks before group `end`.
    pub(super) fn of_class(&self, class: u32, end: u32) -> impl Iterator<Item = u32> + '_ {
        let parts = self.by_class.get(class as usize).into_iter().flatten();
        let groups = parts.filter_map(|key| Some((*key, self.parts.get(key)?))).flat_map(move |(key, part)| {
            let first = key * PART_GROUPS;
            (first..).zip(part.classes).filter(move |(_, found)| u32::from(*found) == class).map(|(number, _)| number)
        });
        groups.take_while(move |number| *number < end)
    }

    /// Returns the bytes of memory of the groups.
    pub(super) fn memory_bytes(&self) -> usize {
        let parts = self.parts.len() * (size_of::<Part>() + 24);
        let classes: usize = self.by_class.iter().map(BTreeSet::len).sum();
        parts + classes * 8 + self.bitmaps.memory_bytes()
    }
}

/// Returns the class of a group with so many free blocks, as `Part::classes` has it.
fn class_with_room(free: u32) -> u8 {
    if free == 0 { NO_CLASS } else { class_of(free) as u8 }
}

/// Describes the free blocks of a group as runs; `None` when there are too many runs.
fn word_of_runs(used: &[u64; 4]) -> Option<Word> {
    let is_free = |at: u64| used[(at / 64) as usize] >> (at % 64) & 1 == 0;
    let (mut word, mut count, mut at) = (RUNS, 0, 0);
    while at < GROUP_BLOCKS {
        let rest = used[(at / 64) as usize] >> (at % 64);
        if !is_free(at) {
            // Passes the used blocks of this word.
            at += u64::from((!rest).trailing_zeros()).min(64 - at % 64);
            continue;
        }
        let start = at;
        while at < GROUP_BLOCKS && is_free(at) {
            let rest = used[(at / 64) as usize] >> (at % 64);
            at += u64::from(rest.trailing_zeros()).min(64 - at % 64);
        }
        if count == RUNS_MAX {
            return None;
        }
        word |= (start | (at - start - 1) << (RUN_BITS / 2)) << (RUN_BITS * count as u32);
        count += 1;
    }
    Some(word | (count as u64) << COUNT_SHIFT)
}

fn used_of_runs(word: Word) -> [u64; 4] {
    let mut used = [u64::MAX; 4];
    for run in 0..(word >> COUNT_SHIFT & 3) as u32 {
        let run = word >> (RUN_BITS * run);
        let (start, count) = (run & 0xFF, (run >> (RUN_BITS / 2) & 0xFF) + 1);
        (start..start + count).for_each(|at| used[(at / 64) as usize] &= !(1 << (at % 64)));
    }
    used
}

/// The bitmaps of groups with many runs.
#[derive(Debug, Default)]
struct Bitmaps {
    #[expect(clippy::vec_box, reason = "the bitmaps are not copied when there are more of them")]
    parts: Vec<Box<[[u64; 4]; BITMAPS_TOGETHER]>>,
    free: Vec<u32>,
}

impl Bitmaps {
    fn get(&self, index: u32) -> [u64; 4] {
        self.parts[index as usize / BITMAPS_TOGETHER][index as usize % BITMAPS_TOGETHER]
    }

    fn get_mut(&mut self, index: u32) -> &mut [u64; 4] {
        &mut self.parts[index as usize / BITMAPS_TOGETHER][index as usize % BITMAPS_TOGETHER]
    }

    fn add(&mut self, used: [u64; 4]) -> u32 {
        if self.free.is_empty() {
            let first = (self.parts.len() * BITMAPS_TOGETHER) as u32;
            self.parts.push(Box::new([[0; 4]; BITMAPS_TOGETHER]));
            self.free.extend((first..first + BITMAPS_TOGETHER as u32).rev());
        }
        let index = self.free.pop().unwrap_or_default();
        *self.get_mut(index) = used;
        index
    }

    fn remove(&mut self, index: u32) {
        self.free.push(index);
    }

    fn memory_bytes(&self) -> usize {
        self.parts.len() * BITMAPS_TOGETHER * 32 + self.free.capacity() * 4
    }
}

#[cfg(test)]
mod tests {
    use nofault_sim::depth::by_depth;
    use proptest::prelude::*;

    use super::*;

    fn of_class(groups: &BTreeMap<u32, Group>, class: u32, end: u32) -> Vec<u32> {
        let has = |group: &Group| group.free > 0 && class_of(group.free) == class;
        groups.range(..end).filter(|(_, group)| has(group)).map(|(number, _)| *number).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(by_depth(24, 256)))]

        #[test]
        fn groups_are_what_a_map_of_bitmaps_would_be(
            steps in prop::collection::vec((0..200_u32, 0..256_u64, 1..200_u64, 0..10_u8), 1..300),
        ) {
            let (mut groups, mut model) = (Groups::default(), BTreeMap::<u32, Group>::new());
            for (number, from, len, kind) in steps {
                // Few groups, and far from each other.
                let number = number % 7 * 50;
                if kind == 0 {
                    groups.remove(number);
                    model.remove(&number);
                } else {
                    let mut used = groups.get(number).map_or([0; 4], |group| group.used);
                    for at in from..(from + len).min(GROUP_BLOCKS) {
                        let bit = 1 << (at % 64);
                        match kind {
                            1..=3 => used[(at / 64) as usize] |= bit,
                            4..=6 => used[(at / 64) as usize] &= !bit,
                            _ => used[(at / 64) as usize] ^= if at % 3 == 0 { bit } else { 0 },
                        }
                    }
                    groups.set(number, Group::of_used(used));
                    model.insert(number, Group::of_used(used));
                }
                for number in 0..400 {
                    let (found, expected) = (groups.get(number), model.get(&number));
                    prop_assert_eq!(found.as_ref().map(|group| (group.used, group.free)), expected.map(|group| (group.used, group.free)));
                    prop_assert_eq!(groups.contains(number), expected.is_some());
                }
                prop_assert_eq!(groups.numbers().collect::<Vec<_>>(), model.keys().copied().collect::<Vec<_>>());
                for class in 0..CLASSES as u32 {
                    prop_assert_eq!(groups.of_class(class, 151).collect::<Vec<_>>(), of_class(&model, class, 151));
                }
            }
        }
    }

    #[test]
    fn a_terabyte_of_full_groups_or_groups_with_spare_blocks_takes_ten_bytes_a_group() {
        for used in [[u64::MAX; 4], [u64::MAX, u64::MAX, u64::MAX, u64::MAX >> 8]] {
            let mut groups = Groups::default();
            let count = 1 << 16;
            (0..count).for_each(|number| groups.set(number, Group::of_used(used)));
            assert!(groups.memory_bytes() < 11 * count as usize, "{}", groups.memory_bytes());
        }
    }
}
