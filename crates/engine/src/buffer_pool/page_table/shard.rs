//! Keeps the metadata of pages that is not in their word in the table: older versions and in-flight reads. Sharded by the leaf of
//! the page table with the page's entry.
//!
//! Invariants, under the shard's lock:
//! 1. The ranges `from..until` of a page's versions do not overlap, and all lie before the newest version's commit.
//! 2. A version that any view can request is here until no view can (`registry` decides, an epoch delays).
//! 3. Each read has a number that no other read of the shard has. The read that brings a page from a block is in `loads` with
//!    its number, from the moment at which the page's word, or one of its versions, says *loading*, until the read ends or is
//!    given up. The completion of a read that is not in `loads` under its number changes nothing: its page was dropped, and
//!    another page has the same id and block by now, or the read was given up and its page is perhaps being read again.
//! 4. A page's versions stand in the order in which they were superseded.

use std::collections::hash_map::Entry;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::buffer_pool::frames::Waiter;
use crate::format::{BlockId, CommitSeq, Location, PageId};
use crate::pages::Missing;

/// One old version of a page, superseded by a newer one: visible to views at commits `from ..= until - 1`.
#[derive(Debug)]
pub(crate) struct Version {
    pub(crate) from: CommitSeq,
    pub(crate) until: CommitSeq,
    pub(crate) place: Place,
    /// True when commit `until` freed the page: the page's id can be reused once this version is dropped.
    pub(crate) frees_id: bool,
}

impl Version {
    fn shows(&self, at: CommitSeq) -> bool {
        self.from <= at && at < self.until
    }
}

/// The location of an old version: in a frame, or on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Frame(u32),
    Disk(Location),
    Loading(Location),
}

/// A read in progress, and its waiters, which are nearly always none or one.
#[derive(Debug, Default)]
pub(crate) struct Load {
    number: u64,
    first: Option<Arc<Waiter>>,
    more: Vec<Arc<Waiter>>,
    /// The pages to be read after this leaf of the page table, each with its waiter, if there is one.
    followers: Vec<Follower>,
}

/// A page to be read after the leaf of the page table with its entry, and its waiter, if there is one.
pub(crate) type Follower = (Missing, Option<Arc<Waiter>>);

impl Load {
    pub(crate) fn add_waiter(&mut self, waiter: Arc<Waiter>) {
        match &self.first {
            None => self.first = Some(waiter),
            Some(_) => self.more.push(waiter),
        }
    }

    /// Adds a page to be read once this leaf of the page table is in memory.
    pub(crate) fn add_follower(&mut self, missing: Missing, waiter: Option<Arc<Waiter>>) {
        self.followers.push((missing, waiter));
    }

    /// Returns the waiters for what is read itself, and the pages to be read next.
    pub(crate) fn into_parts(self) -> (impl Iterator<Item = Arc<Waiter>>, Vec<Follower>) {
        (self.first.into_iter().chain(self.more), self.followers)
    }

    /// Returns all waiters.
    pub(crate) fn waiters(&self) -> impl Iterator<Item = &Waiter> {
        let of_followers = self.followers.iter().filter_map(|(_, waiter)| waiter.as_ref());
        self.first.iter().chain(&self.more).chain(of_followers).map(|waiter| &**waiter)
    }
}

/// The old versions of a page, of which there is nearly always one.
#[derive(Debug)]
struct OldVersions {
    first: Version,
    more: Vec<Version>,
}

impl OldVersions {
    fn iter(&self) -> impl Iterator<Item = &Version> {
        std::iter::once(&self.first).chain(&self.more)
    }

    fn find(&mut self, is_it: impl Fn(&Version) -> bool) -> Option<&mut Version> {
        std::iter::once(&mut self.first).chain(&mut self.more).find(|version| is_it(version))
    }
}

#[derive(Debug, Default)]
pub(crate) struct Shard {
    versions: FxHashMap<PageId, OldVersions>,
    loads: FxHashMap<(PageId, BlockId), Load>,
    /// The number given to the last read of this shard.
    last_read: u64,
}

/// Identifies a read in progress: its page, its location, and its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReadId {
    pub(crate) page: PageId,
    pub(crate) at: Location,
    number: u64,
}

impl Shard {
    /// Records a read that begins. If an earlier read of the same block is still in progress, for a page that was
    /// dropped, its waiters now wait for the new read and look their page up again when it ends.
    pub(crate) fn begin_load(&mut self, page: PageId, at: Location) -> ReadId {
        self.last_read += 1;
        self.loads.entry((page, at.block)).or_default().number = self.last_read;
        ReadId { page, at, number: self.last_read }
    }

    /// Returns the read in progress that loads a page from this block.
    pub(crate) fn load(&mut self, page: PageId, block: BlockId) -> Option<&mut Load> {
        self.loads.get_mut(&(page, block))
    }

    /// Removes a read that ends or is abandoned. Returns `None` when the read was abandoned before, or another read has
    /// replaced it.
    pub(crate) fn end_load(&mut self, read: ReadId) -> Option<Load> {
        let key = (read.page, read.at.block);
        if self.loads.get(&key)?.number == read.number { self.loads.remove(&key) } else { None }
    }

    /// Returns all reads in progress.
    pub(crate) fn loads(&self) -> impl Iterator<Item = &Load> {
        self.loads.values()
    }

    /// Returns the version of a page that a view at commit `at` sees, unless that is the newest version.
    pub(crate) fn version_at(&mut self, page: PageId, at: CommitSeq) -> Option<&mut Version> {
        self.versions.get_mut(&page)?.find(|version| version.shows(at))
    }

    /// Returns the old version of a page that is being read from the location `at`.
    pub(crate) fn version_loading(&mut self, page: PageId, at: Location) -> Option<&mut Version> {
        self.versions.get_mut(&page)?.find(|version| version.place == Place::Loading(at))
    }

    /// Returns the old version of a page in this frame.
    pub(crate) fn version_in_frame(&mut self, page: PageId, frame: u32) -> Option<&mut Version> {
        self.versions.get_mut(&page)?.find(|version| version.place == Place::Frame(frame))
    }

    pub(crate) fn add_version(&mut self, page: PageId, version: Version) {
        match self.versions.entry(page) {
            Entry::Occupied(versions) => versions.into_mut().more.push(version),
            Entry::Vacant(place) => {
                place.insert(OldVersions { first: version, more: Vec::new() });
            }
        }
    }

    /// Removes the version of a page that began at `from` and ended at `until`; if one commit published several, the
    /// version superseded first. The order in which such versions are dropped does not matter. When n of them
    /// are due, the first n may go, because each was superseded no later than a version whose epoch is over.
    pub(crate) fn remove_version(&mut self, page: PageId, from: CommitSeq, until: CommitSeq) -> Option<Version> {
        let versions = self.versions.get_mut(&page)?;
        let at = versions.iter().position(|version| version.from == from && version.until == until)?;
        if at > 0 {
            return Some(versions.more.remove(at - 1));
        }
        if versions.more.is_empty() {
            return self.versions.remove(&page).map(|versions| versions.first);
        }
        let next = versions.more.remove(0);
        Some(std::mem::replace(&mut versions.first, next))
    }

    /// Returns whether any of these pages has an old version.
    pub(crate) fn has_version_in(&self, pages: impl Iterator<Item = PageId>) -> bool {
        !self.versions.is_empty() && pages.into_iter().any(|page| self.versions.contains_key(&page))
    }

    /// Returns whether any old version of the page lies in this block on disk.
    pub(crate) fn version_uses(&self, page: PageId, block: BlockId, disk_of: impl Fn(u32) -> Option<Location>) -> bool {
        let uses = |version: &Version| match version.place {
            Place::Disk(at) | Place::Loading(at) => at.block == block,
            Place::Frame(frame) => disk_of(frame).is_some_and(|at| at.block == block),
        };
        self.versions.get(&page).is_some_and(|versions| versions.iter().any(uses))
    }

    /// Returns the commit that superseded the newest of a page's old versions; zero when the page has no old version.
    pub(crate) fn last_until(&self, page: PageId) -> CommitSeq {
        let untils = self.versions.get(&page).into_iter().flat_map(OldVersions::iter).map(|version| version.until);
        untils.max().unwrap_or_default()
    }
}
