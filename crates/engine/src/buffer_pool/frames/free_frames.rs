//! Tracks which frames are free, so that neighbours can be taken together: one read then fills many frames without a copy. And decides
//! which frames get memory from the kernel before they are used.
//!
//! One bit for each frame, in groups of sixty-four. A request for a single frame is served from a group that is broken already,
//! so the frames that are kept free in any case (the writers' reserve) come to be whole groups, and a long range scan that takes
//! them returns whole groups: its pages are evicted in the order in which they came.
//!
//! Invariant: a group with some frames free is listed in `broken`, one with all of them in `whole`. Lists may name groups that
//! have changed since; a search that meets such a group removes it. Nothing here takes time that grows with the pool.
//!
//! The kernel gives a frame memory, and fills it with zeroes, when it is written to first. For a load into a new pool that
//! is a sixth of its time, which a background thread takes over ([`MemoryAhead`]): it is always a part of the pool ahead. That part is no
//! larger than the part in use, so a small database does not take the memory of a large one.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Number of frames in a group: one for each bit of a word.
pub(crate) const GROUP: usize = 64;
/// Most partly free groups that one request searches for adjacent free frames.
const LOOKS: usize = 4;

/// The set of free frames.
pub(crate) struct FreeFrames {
    /// A bitmap for each group, with a set bit for each free frame.
    groups: Box<[u64]>,
    count: usize,
    whole: GroupStack,
    broken: GroupStack,
}

impl FreeFrames {
    /// Creates the set for a pool of `frames` frames, none of which is free yet.
    pub(crate) fn none(frames: usize) -> Self {
        let groups = frames.div_ceil(GROUP);
        Self {
            groups: vec![0; groups].into(),
            count: 0,
            whole: GroupStack::new(groups),
            broken: GroupStack::new(groups),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Adds a frame to the set of free frames.
    pub(crate) fn put(&mut self, frame: u32) {
        let group = frame as usize / GROUP;
        let bit = 1 << (frame as usize % GROUP);
        debug_assert_eq!(self.groups[group] & bit, 0, "freed twice");
        self.count += usize::from(self.groups[group] & bit == 0);
        self.groups[group] |= bit;
        self.list(group);
    }

    /// Removes one free frame from the set and returns its number; `None` when no frame is free.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let group = self.top_broken(0).or_else(|| self.top_whole())?;
        Some(self.take_from(group, self.groups[group].trailing_zeros(), 1))
    }

    /// Removes `most` adjacent free frames from the set, or fewer but at least `least`. Returns the number of the first
    /// frame and their count.
    pub(crate) fn take_run(&mut self, least: usize, most: usize) -> Option<(u32, usize)> {
        let most = most.min(GROUP);
        let mut best: Option<(usize, u32, usize)> = None;
        for depth in 0..LOOKS {
            let Some(group) = self.top_broken(depth) else { break };
            let (at, length) = longest_run(self.groups[group], most);
            if best.is_none_or(|(_, _, longest)| longest < length) {
                best = Some((group, at, length));
            }
        }
        let enough = |length: usize| length >= least.max(1);
        let taken = match best.filter(|(_, _, length)| *length == most) {
            Some(found) => Some(found),
            None => self.top_whole().map(|group| (group, 0, most)).or(best),
        };
        let (group, at, length) = taken.filter(|(_, _, length)| enough(*length))?;
        Some((self.take_from(group, at, length), length))
    }

    fn take_from(&mut self, group: usize, at: u32, length: usize) -> u32 {
        let mask = (u64::MAX >> (GROUP - length)) << at;
        debug_assert_eq!(self.groups[group] & mask, mask, "took frames that are not free");
        self.groups[group] &= !mask;
        self.count -= length;
        self.list(group);
        (group * GROUP) as u32 + at
    }

    /// Lists a group among the completely free or the partly free groups.
    fn list(&mut self, group: usize) {
        match self.groups[group] {
            0 => {}
            u64::MAX => self.whole.add(group),
            _ => self.broken.add(group),
        }
    }

    /// Returns the partly free group at `depth` from the top of the list of such groups.
    fn top_broken(&mut self, depth: usize) -> Option<usize> {
        let groups = &self.groups;
        self.broken.top(depth, |group| !matches!(groups[group], 0 | u64::MAX))
    }

    fn top_whole(&mut self) -> Option<usize> {
        let groups = &self.groups;
        self.whole.top(0, |group| groups[group] == u64::MAX)
    }
}

/// A stack of groups that contains each group at most once.
struct GroupStack {
    stack: Vec<u32>,
    is_in: Box<[bool]>,
}

impl GroupStack {
    fn new(groups: usize) -> Self {
        Self { stack: Vec::with_capacity(groups), is_in: vec![false; groups].into() }
    }

    fn add(&mut self, group: usize) {
        if !std::mem::replace(&mut self.is_in[group], true) {
            self.stack.push(group as u32);
        }
    }

    /// Returns the group at `depth` from the top among the groups for which `belongs` holds. Removes other groups that
    /// lie above it.
    fn top(&mut self, depth: usize, belongs: impl Fn(usize) -> bool) -> Option<usize> {
        loop {
            let at = self.stack.len().checked_sub(1 + depth)?;
            let group = self.stack[at] as usize;
            if belongs(group) {
                return Some(group);
            }
            self.stack.swap_remove(at);
            self.is_in[group] = false;
        }
    }
}

/// Returns the start and length of the longest run of ones, or of the first run of at least `most` ones.
fn longest_run(bits: u64, most: usize) -> (u32, usize) {
    let (mut runs, mut length) = (bits, 0);
    let mut at = 0;
    // After `n` rounds a bit is set where `n + 1` ones begin.
    while runs != 0 && length < most {
        at = runs.trailing_zeros();
        length += 1;
        runs &= bits >> length.min(63);
        if length == GROUP {
            break;
        }
    }
    (at, length)
}

/// Most bytes that are ahead.
const AHEAD_BYTES: usize = 32 << 20;
/// Fewest bytes in use before any are ahead.
const USED_BYTES_MIN: usize = 4 << 20;

/// The frames with memory: the frames in use as a rule, and some ahead.
#[derive(Debug, Default)]
pub(crate) struct MemoryAhead {
    /// Number of first frames that have memory.
    given: AtomicUsize,
    /// Number of first frames in use: those that have no memory yet get it by their use.
    used: AtomicUsize,
    /// Number of first frames that are to have memory.
    wanted: AtomicUsize,
    is_asked: AtomicBool,
}

impl MemoryAhead {
    /// Notes that a frame is used, of a pool of `count` frames. Returns whether a thread should be woken that calls
    /// [`MemoryAhead::take`]: once for each such call.
    #[inline]
    pub(crate) fn note_used(&self, frame: u32, count: usize, page_bytes: usize) -> bool {
        let used = frame as usize + 1;
        let ahead = used.min(AHEAD_BYTES / page_bytes);
        let given = self.given.load(Ordering::Relaxed);
        if used + ahead / 2 <= given || given >= count || used < USED_BYTES_MIN / page_bytes {
            return false;
        }
        self.used.fetch_max(used, Ordering::Relaxed);
        self.wanted.fetch_max((used + ahead).min(count), Ordering::Relaxed);
        !self.is_asked.swap(true, Ordering::Relaxed)
    }

    /// Returns the frames that are to get memory, [`AHEAD_BYTES`] of them at most, for the one thread that asks the kernel
    /// for it; after it has asked, it calls [`MemoryAhead::set_given`].
    pub(crate) fn take(&self) -> Option<Range<usize>> {
        if !self.is_asked.swap(false, Ordering::Relaxed) {
            return None;
        }
        // Loaded in this order, so that it never exceeds the limit.
        let wanted = self.wanted.load(Ordering::Relaxed);
        let begin = self.given.load(Ordering::Relaxed).max(self.used.load(Ordering::Relaxed));
        (begin < wanted).then_some(begin..wanted)
    }

    /// Notes that the first `frames` frames have memory, or that the kernel need not be asked for it.
    pub(crate) fn set_given(&self, frames: usize) {
        self.given.fetch_max(frames, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_longest_run_is_found() {
        assert_eq!(longest_run(0, 64), (0, 0));
        assert_eq!(longest_run(u64::MAX, 64), (0, 64));
        assert_eq!(longest_run(u64::MAX << 1, 64), (1, 63));
        assert_eq!(longest_run(0b1011_0111_0001, 64), (4, 3));
        assert_eq!(longest_run(0b1011_0111_0001, 2).1, 2);
        assert_eq!(longest_run(1 << 63, 64), (63, 1));
    }

    #[test]
    fn single_frames_come_from_broken_groups_and_runs_from_whole_ones() {
        let mut free = FreeFrames::none(3 * GROUP);
        (0..3 * GROUP as u32).for_each(|frame| free.put(frame));
        let first = free.take().unwrap();
        for _ in 1..GROUP {
            assert_eq!(free.take().unwrap() as usize / GROUP, first as usize / GROUP);
        }
        let (a, b) = (free.take_run(GROUP, GROUP).unwrap(), free.take_run(GROUP, GROUP).unwrap());
        assert_eq!((a.1, b.1, free.len()), (GROUP, GROUP, 0));
        assert_eq!(free.take_run(1, GROUP), None);
        (0..40).for_each(|frame| free.put(a.0 + frame));
        assert_eq!(free.take_run(41, GROUP), None);
        assert_eq!(free.take_run(40, GROUP), Some((a.0, 40)));
    }

    proptest! {
        /// Over any sequence of takes and returns, each frame has exactly one holder, and a pool of any size hands out
        /// all its frames.
        #[test]
        fn no_frame_is_lost_and_no_frame_is_given_out_twice(
            frames in 1_usize..300,
            steps in proptest::collection::vec((0_u8..4, any::<u32>(), 1_usize..80), 0..400),
        ) {
            let mut free = FreeFrames::none(frames);
            (0..frames as u32).for_each(|frame| free.put(frame));
            let mut held = BTreeSet::new();
            for (what, which, most) in steps {
                match what {
                    0 => {
                        if let Some(frame) = free.take() {
                            prop_assert!(held.insert(frame));
                        }
                    }
                    1 => {
                        if let Some((first, length)) = free.take_run((most / 2).max(1), most) {
                            prop_assert!(length <= most && length >= (most / 2).max(1));
                            for frame in first..first + length as u32 {
                                prop_assert!(held.insert(frame));
                            }
                        }
                    }
                    _ => {
                        let from = which % frames as u32;
                        let back: Vec<u32> = held.range(from..).take(most).copied().collect();
                        for frame in back {
                            held.remove(&frame);
                            free.put(frame);
                        }
                    }
                }
                prop_assert_eq!(free.len() + held.len(), frames);
            }
            while let Some(frame) = free.take() {
                prop_assert!(held.insert(frame));
            }
            prop_assert_eq!(held, (0..frames as u32).collect::<BTreeSet<_>>());
        }
    }

    #[test]
    fn frames_get_memory_ahead_of_their_use_and_no_more_than_twice_what_is_used() {
        let (ahead, page_bytes, count) = (MemoryAhead::default(), 4096, 100_000);
        let mut calls = 0;
        for frame in 0..count as u32 {
            if ahead.note_used(frame, count, page_bytes) {
                assert!(!ahead.note_used(frame, count, page_bytes), "it was asked already");
                let frames = ahead.take().unwrap();
                assert!(frames.len() <= AHEAD_BYTES / page_bytes, "{frames:?}");
                ahead.set_given(frames.end);
                calls += 1;
            }
            let (used, given) = (frame as usize + 1, ahead.given.load(Ordering::Relaxed));
            assert!(given == 0 || used <= given, "frame {frame}");
            assert!(given <= used + used.min(AHEAD_BYTES / page_bytes), "{given} for {used}");
            assert!(used >= USED_BYTES_MIN / page_bytes || given == 0, "{given} for {used}");
        }
        assert_eq!(ahead.given.load(Ordering::Relaxed), count);
        assert!(calls < 40, "{calls}");
        assert_eq!(ahead.take(), None);
    }

    /// The frames before were used by reads, which ask for nothing.
    #[test]
    fn the_first_frame_that_asks_gets_no_memory_for_all_before_it() {
        let ahead = MemoryAhead::default();
        assert!(ahead.note_used(5_000_000, 8_000_000, 4096));
        assert_eq!(ahead.take(), Some(5_000_001..5_000_001 + AHEAD_BYTES / 4096));
    }

    #[test]
    fn a_kernel_that_gives_no_memory_is_not_asked_again() {
        let ahead = MemoryAhead::default();
        assert!(ahead.note_used(5_000, 100_000, 4096));
        assert!(ahead.take().is_some());
        ahead.set_given(usize::MAX);
        assert!((5_000..100_000).all(|frame| !ahead.note_used(frame, 100_000, 4096)));
    }
}
