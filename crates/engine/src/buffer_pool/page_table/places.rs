//! Where a version of a page lies on disk: for the code that writes pages, moves them and records them in a checkpoint, and for versions
//! that are superseded and dropped, whose blocks become free.

use super::{
    CheckpointPlace, DirtyPage, Entry, PageChange, PageTable, Place, Replacement, Shard, SupersededVersion, Version,
};
use crate::buffer_pool::frames::Frame;
use crate::format::{BlockId, CommitSeq, Location, PageId};

/// The places of page versions: the page table, as writers, moves and checkpoints use it.
#[derive(Clone, Copy)]
pub(crate) struct Places<'a>(pub(super) &'a PageTable);

impl Places<'_> {
    /// Returns whether a pinned page is not on disk yet and a reader can still reach it.
    pub(crate) fn must_be_written(self, item: DirtyPage) -> bool {
        let frame = self.0.frames().frame(item.frame);
        let _shard = self.0.shard(item.page);
        frame.disk().is_none() && !frame.is_doomed()
    }

    /// Notes that a pinned page was written to location `at`.
    pub(crate) fn note_written(self, item: DirtyPage, at: Location) {
        let _shard = self.0.shard(item.page);
        if self.0.frames().frame(item.frame).is_doomed() {
            // The version died while it was written: no table or version will ever name the block.
            self.0.metadata.lock().allocator.release(at.block);
        } else {
            self.0.frames().set_clean(item.frame, at);
        }
    }

    /// Pins the frame of a page as of commit `at` if the page must still be written; otherwise returns its location on
    /// disk. The commit `at` must be registered.
    pub(crate) fn checkpoint_place(self, page: PageId, at: CommitSeq) -> CheckpointPlace {
        let place_of = |index: u32, frame: &Frame| match frame.disk() {
            Some(at) => CheckpointPlace::OnDisk(at),
            None => {
                frame.pin(1);
                CheckpointPlace::Dirty(DirtyPage { page, frame: index })
            }
        };
        let mut shard = self.0.shard(page);
        if let Some(version) = shard.version_at(page, at) {
            return match version.place {
                Place::Frame(index) => place_of(index, self.0.frames().frame(index)),
                Place::Disk(at) | Place::Loading(at) => CheckpointPlace::OnDisk(at),
            };
        }
        match self.0.entry(page) {
            Entry::Resident(index) if self.0.frames().frame(index).commit() <= at => {
                place_of(index, self.0.frames().frame(index))
            }
            // Changed since, and not among the versions: so it did not exist as of `at`, even if its id had a page before. Looked up
            // under this lock, because the id may have been reused since an earlier look.
            Entry::OnDisk(_) | Entry::Loading(_) if self.0.metadata.last_change(page) > at => CheckpointPlace::Absent,
            Entry::OnDisk(at) | Entry::Loading(at) => CheckpointPlace::OnDisk(at),
            Entry::Free if self.0.cold_leaf(page).is_some() => CheckpointPlace::Cold,
            Entry::Free | Entry::Resident(_) => CheckpointPlace::Absent,
        }
    }

    /// Sets the location of a page to `at` in the page table of the next checkpoint. Releases the block that this table
    /// named before, unless a version that can still be read lies there.
    pub(crate) fn take_over(self, page: PageId, at: Option<Location>) {
        let shard = self.0.shard(page);
        let mut metadata = self.0.metadata.lock();
        let before = metadata.map.set(page, at);
        if let Some(at) = at {
            metadata.allocator.note_named(at.block);
        }
        let Some(before) = before.filter(|before| at.is_none_or(|at| at.block != before.block)) else { return };
        if !self.newest_uses(page, before.block) && !shard.version_uses(page, before.block, |index| self.disk_of(index))
        {
            metadata.allocator.release(before.block);
        }
    }

    /// Returns whether the newest version of a page lies in this block. The caller holds the lock of the page's shard.
    fn newest_uses(self, page: PageId, block: BlockId) -> bool {
        match self.0.entry(page) {
            Entry::OnDisk(at) | Entry::Loading(at) => at.block == block,
            Entry::Resident(index) => self.disk_of(index).is_some_and(|at| at.block == block),
            Entry::Free => false,
        }
    }

    fn disk_of(self, index: u32) -> Option<Location> {
        self.0.frames().frame(index).disk()
    }

    /// Returns the location of a page's newest version, and holds its block against reuse until the caller calls
    /// `unhold`; `None`, with nothing held, when the page does not exist, is only in memory, or is being read.
    pub(crate) fn hold_on_disk(self, page: PageId) -> Option<Location> {
        let _shard = self.0.shard(page);
        let at = self.location(page)?;
        self.0.metadata.lock().allocator.deferred.hold(at.block);
        Some(at)
    }

    /// Returns the location of a page's newest version; `None` when the page does not exist, is only in memory, or is
    /// being read, or when the leaf with its entry is not in memory.
    pub(crate) fn place_on_disk(self, page: PageId) -> Option<Location> {
        let _shard = self.0.shard(page);
        self.location(page)
    }

    /// As `place_on_disk`, under the lock of the page's shard: the frame that the table names keeps holding this page.
    fn location(self, page: PageId) -> Option<Location> {
        match self.0.entry(page) {
            Entry::OnDisk(at) => Some(at),
            Entry::Resident(index) => self.disk_of(index),
            Entry::Loading(_) | Entry::Free => None,
        }
    }

    /// Moves the newest version of a page from location `from` to location `to` in the page table. Returns false, and
    /// releases the block of `to`, when the version is no longer at `from`.
    pub(crate) fn replace_place(self, page: PageId, from: Location, to: Location) -> bool {
        let _shard = self.0.shard(page);
        let moves = match self.0.entry(page) {
            Entry::OnDisk(at) if at == from => {
                self.0.words.store(page, Entry::OnDisk(to).to_word());
                true
            }
            Entry::Resident(index) if self.disk_of(index) == Some(from) => {
                self.0.frames().frame(index).set_moved(to);
                true
            }
            _ => false,
        };
        if moves {
            // An entry of a commit that changed the page since the last checkpoint is kept. Commit 0 lies before all
            // commits.
            let mut metadata = self.0.metadata.lock();
            if metadata.changed.get(page).is_none() {
                metadata.changed.insert(page, CommitSeq(0));
            }
            drop(metadata);
            self.0.metadata.release_unless_mapped(page, from);
        } else {
            self.0.metadata.lock().allocator.release(to.block);
        }
        moves
    }

    /// Replaces the newest version of a page by a new one, or by none when the page is freed. The leaf with the entry of a
    /// page that gets a new version is in memory.
    pub(crate) fn replace(self, change: PageChange, new: Entry, base: Option<CommitSeq>) -> Replacement {
        let PageChange { page, seq, unread_from } = change;
        let mut shard = self.0.shard(page);
        // If the old version was evicted since it was copied, `base` gives its commit. Of a page freed without having
        // been edited only the block is known. Its commit is the page's last change, if that was after the last
        // checkpoint. Otherwise it is taken to begin where the version before it ended: at its real commit, or at an
        // earlier one that no view will request.
        let began =
            |shard: &Shard| base.unwrap_or_else(|| shard.last_until(page).max(self.0.metadata.last_change(page)));
        let (place, from) = match self.0.entry(page) {
            Entry::Free if new == Entry::Free && self.0.cold_leaf(page).is_some() => {
                self.0.metadata.lock().cold_frees.push(change);
                return Replacement::Later;
            }
            Entry::Free => {
                // A freed page may never have existed: a damaged page can name any number, and the commit is in the log by now.
                if new == Entry::Free {
                    return Replacement::Absent;
                }
                self.0.words.store(page, new.to_word());
                return Replacement::Added;
            }
            Entry::Resident(frame) => (Place::Frame(frame), self.0.frames().frame(frame).commit()),
            Entry::OnDisk(at) => (Place::Disk(at), began(&shard)),
            Entry::Loading(at) => (Place::Loading(at), began(&shard)),
        };
        // The old version can be found before the new one hides it, so no view ever misses both.
        shard.add_version(page, Version { from, until: seq, place, frees_id: new == Entry::Free });
        self.0.words.store(page, new.to_word());
        Replacement::Superseded(SupersededVersion { page, from, until: seq, unread_from })
    }

    /// Removes a version that no view can request any more. Returns its frame, if there is one to be recycled.
    pub(crate) fn drop_version(self, old: SupersededVersion) -> Option<u32> {
        let mut shard = self.0.shard(old.page);
        let version = shard.remove_version(old.page, old.from, old.until)?;
        let mut frame_free = None;
        match version.place {
            Place::Disk(at) | Place::Loading(at) => self.0.metadata.release_unless_mapped(old.page, at),
            Place::Frame(index) => {
                let frame = self.0.frames().frame(index);
                if let Some(at) = frame.disk() {
                    self.0.metadata.release_unless_mapped(old.page, at);
                }
                if frame.pins() > 0 { frame.doom() } else { frame_free = Some(index) }
            }
        }
        if version.frees_id {
            self.0.metadata.lock().ids.put_back(old.page);
        }
        frame_free
    }
}
