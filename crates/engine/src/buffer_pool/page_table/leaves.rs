//! Leaves of the page table, which come into memory and leave it.
//!
//! A leaf is in memory when the page-table array and the block map have its entries; new leaves, which no checkpoint has
//! written yet, are in the array first. A leaf may leave memory when its node on disk says all that is known of its
//! pages, and nothing needs it ([`LockedLeaf::try_evict`]):
//! 1. none of its pages is in a frame or being read, and none has an older version that a snapshot may need;
//! 2. its entries equal the block map's, none is noted as changed since the last checkpoint, and the block map's equal the
//!    entries of the node written last;
//! 3. no operation has pinned it.
//!
//! So whatever changes the place of a page finds its leaf in memory, and a leaf that is not in memory says the same for
//! every commit that can be read. All of this is decided under the lock of the leaf's shard, in which all pages of the
//! leaf are.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Shard;
use super::metadata::Metadata;
use super::word_array::{Entry, WordArray};
use crate::buffer_pool::frames::Frames;
use crate::format::{Location, PageId};

/// Most slots that one step of the clock passes in search of a leaf.
const SLOTS_A_STEP: u32 = 64;

/// A leaf of the page table, while the lock of its shard is held.
pub(crate) struct LockedLeaf<'a> {
    pub(crate) words: &'a WordArray,
    pub(crate) metadata: &'a Metadata,
    pub(crate) shard: MutexGuard<'a, Shard>,
    pub(crate) leaf: u64,
}

/// The place of a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeafPlace {
    InMemory,
    /// On disk only.
    Cold(Location),
    /// There is no such leaf: no page was ever stored under its ids.
    Nowhere,
}

/// The outcome of an attempt to evict a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeafEviction {
    Evicted,
    /// The leaf is in use.
    InUse,
    /// The leaf was changed since the last checkpoint.
    Changed,
}

impl LockedLeaf<'_> {
    /// Returns where the leaf is.
    pub(crate) fn place(&self) -> LeafPlace {
        if self.words.has_leaf(self.leaf) {
            return LeafPlace::InMemory;
        }
        self.metadata.lock().map.leaf_place(self.leaf).map_or(LeafPlace::Nowhere, LeafPlace::Cold)
    }

    /// Brings the leaf into memory with `entries`, which were read from `at`, if it is still there and not in memory.
    /// Returns whether it is in memory now.
    pub(crate) fn install(&self, at: Location, entries: Vec<u64>) -> bool {
        if self.place() == LeafPlace::Cold(at) && self.words.add_leaf(self.leaf, &entries) {
            self.metadata.lock().map.add_leaf(self.leaf, entries);
        }
        self.words.has_leaf(self.leaf)
    }

    /// As [`LockedLeaf::pin`], and adds the leaf if there is none yet: no page was ever stored under its ids.
    pub(crate) fn pin_or_add(&self) -> bool {
        if self.place() == LeafPlace::Nowhere {
            self.words.add_leaf(self.leaf, &[]);
        }
        self.pin()
    }

    /// Keeps the leaf in memory until [`WordArray::state`] was unpinned once for each call of this function. Returns false
    /// when it is not in memory.
    pub(crate) fn pin(&self) -> bool {
        let Some(state) = self.words.state(self.leaf) else { return false };
        state.touch();
        state.pin();
        true
    }

    /// Evicts the leaf, if the rules of this module allow that and it was not used since the last call. With `frames_free`
    /// its pages in memory are evicted first, where they are clean and used no more; their frames are added to it, even
    /// if the leaf stays.
    pub(crate) fn try_evict(&self, frames: &Frames, frames_free: Option<&mut Vec<u32>>) -> LeafEviction {
        let Some(state) = self.words.state(self.leaf) else { return LeafEviction::InUse };
        if state.is_pinned() || state.take_used() {
            return LeafEviction::InUse;
        }
        if let Some(frames_free) = frames_free.filter(|_| state.is_held()) {
            self.evict_frames(frames, frames_free);
        }
        if state.is_held() || self.shard.has_version_in(self.words.pages_of(self.leaf)) {
            return LeafEviction::InUse;
        }
        let mut pages = self.words.pages_of(self.leaf);
        let (Some(first), Some(last)) = (pages.next(), pages.last()) else { return LeafEviction::InUse };
        let mut metadata = self.metadata.lock();
        let is_noted = metadata.changed.between(first, PageId(last.0 + 1)).next().is_some();
        let is_on_disk = match metadata.map.leaf(self.leaf) {
            Some(entries) => metadata.map.is_written(self.leaf) && self.words.is_equal(self.leaf, entries),
            // A new leaf, for ids that were not used in the end.
            None => self.words.is_equal(self.leaf, &[]),
        };
        if is_noted || !is_on_disk {
            return LeafEviction::Changed;
        }
        metadata.map.remove_leaf(self.leaf);
        self.words.remove_leaf(self.leaf);
        LeafEviction::Evicted
    }

    /// Lists the free page ids of the leaf, which is in memory, as `PageIds` asks.
    pub(crate) fn list_ids(&self) {
        if !self.words.has_leaf(self.leaf) {
            return;
        }
        let mut metadata = self.metadata.lock();
        let end = metadata.ids.opened_end();
        // The id of a page that was freed is free only when no older version of the page is left.
        let is_free = |page: &PageId| {
            page.0 < end && self.words.load(*page) == 0 && !self.shard.has_version_in(std::iter::once(*page))
        };
        let free: Vec<PageId> = self.words.pages_of(self.leaf).filter(is_free).collect();
        metadata.ids.list(self.leaf, free.into_iter());
    }

    /// Evicts the clean pages of the leaf whose usage counts are zero, and lowers the others.
    fn evict_frames(&self, frames: &Frames, frames_free: &mut Vec<u32>) {
        for page in self.words.pages_of(self.leaf) {
            let Entry::Resident(index) = Entry::from_word(self.words.load(page)) else { continue };
            let frame = frames.frame(index);
            // Under the shard's lock the frame can be neither pinned nor given to another page.
            if frame.pins() == 0
                && !frame.is_doomed()
                && let Some(at) = frame.disk()
                && frames.usage().lower(index)
            {
                self.words.store(page, Entry::OnDisk(at).to_word());
                frames_free.push(index);
            }
        }
    }
}

/// Chooses leaves to evict, by second chance over those in memory.
#[derive(Debug)]
pub(crate) struct LeafClock {
    /// Number of the slot looked at next.
    hand: Mutex<u32>,
    /// Most leaves to be in memory.
    leaves_max: u64,
    /// Number of leaves beyond `leaves_max` that wait for the next checkpoint before one is made for them.
    excess_max: u64,
    /// Number of pages that one operation may need at once, each with a different leaf. While no more leaves are in
    /// memory, no page leaves it to make its leaf evictable.
    pages_at_once: u64,
}

impl LeafClock {
    pub(crate) fn new(leaves_max: u64, excess_max: u64, pages_at_once: u64) -> Self {
        Self { hand: Mutex::new(0), leaves_max, excess_max, pages_at_once }
    }

    /// Returns the number of resident leaves above the limit.
    pub(crate) fn excess(&self, words: &WordArray) -> u64 {
        words.slots().used().saturating_sub(self.leaves_max)
    }

    /// Returns whether page frames are to be evicted so that their leaves can leave memory.
    pub(crate) fn evicts_frames(&self, words: &WordArray) -> bool {
        words.slots().used() > self.leaves_max.max(self.pages_at_once)
    }

    /// Returns whether so many resident leaves are above the limit that a checkpoint should be made, if it would let
    /// some leave.
    pub(crate) fn is_pressing(&self, excess: u64) -> bool {
        excess > self.excess_max
    }

    /// Returns the limit on resident leaves.
    pub(crate) fn leaves_max(&self) -> u64 {
        self.leaves_max
    }

    /// Moves the hand to the next leaf in memory, past a bounded number of free slots.
    pub(crate) fn next(&self, words: &WordArray) -> Option<u64> {
        let count = words.slots().count();
        let mut hand = self.hand.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..SLOTS_A_STEP.min(count) {
            let slot = *hand % count;
            *hand = (slot + 1) % count;
            if let Some(leaf) = words.slots().state(slot).and_then(super::word_array::SlotState::leaf) {
                return Some(leaf);
            }
        }
        None
    }
}
