//! Private copies of pages, and their publication.

use std::collections::{VecDeque, hash_map};
use std::ops::Range;

use crossbeam_epoch::Guard;
use nofault_io::prefetch::prefetch_bytes;
use rustc_hash::{FxHashMap, FxHashSet};

use super::{NEWEST, Versions};
use crate::buffer_pool::PAGES_MAX;
use crate::buffer_pool::frames::{FrameFacts, OwnedFrame};
use crate::buffer_pool::page_table::{Entry, Lookup, PageChange, Replacement, page_of_leaf};
use crate::error::{Error, ErrorKind};
use crate::format::{CommitSeq, HEADER_BYTES, PageId, page_commit, page_id, seal_page};
use crate::pages::{self, Attempt, Missing, Pages, Wait};

/// Most leaves of the page table that one set of copies needs in memory for ids of freed pages: fewer than an operation
/// can pin. When it needs more, it takes ids under which no page was ever stored.
const LEAVES_FOR_IDS_MAX: usize = 4;

/// The private copies of one commit. Dropping this discards the copies.
pub(crate) struct PrivateCopies<'a> {
    versions: &'a Versions,
    copies: FxHashMap<PageId, Copy>,
    /// The copies edited since [`pages::PageCopies::seal`] was called, and perhaps some that are gone.
    unsealed: Vec<PageId>,
    /// The pages that this commit frees.
    freed: Vec<FreedByCommit>,
    reserved: Vec<OwnedFrame>,
    /// Ids for new pages, in the order of their use. Their leaves are among `leaves`.
    reserved_ids: VecDeque<PageId>,
    /// The leaves of the page table that stay in memory for the copies.
    leaves: FxHashSet<u64>,
    /// Number of `leaves` kept for ids of new pages.
    leaves_for_ids: usize,
    guard: Guard,
}

/// A page that a commit frees.
struct FreedByCommit {
    page: PageId,
    /// The commit of the version that was copied, if it was.
    base: Option<CommitSeq>,
    /// No reader of this commit or a later one reaches the page, if that is known.
    unread_from: Option<CommitSeq>,
}

struct Copy {
    frame: OwnedFrame,
    /// The commit of the version that was copied; `None` for a new page.
    base: Option<CommitSeq>,
    near: Option<u64>,
    /// The commit for which the page was sealed since it was edited last.
    sealed: Option<CommitSeq>,
}

impl Copy {
    fn seal(&mut self, file_id: u64, page: PageId, seq: CommitSeq) {
        if self.sealed != Some(seq) {
            seal_page(file_id, page, seq, &mut self.frame.buffer);
            self.sealed = Some(seq);
        }
    }
}

impl<'a> PrivateCopies<'a> {
    pub(crate) fn new(versions: &'a Versions) -> Self {
        let guard = versions.history().pin();
        Self {
            versions,
            copies: FxHashMap::default(),
            unsealed: Vec::new(),
            freed: Vec::new(),
            reserved: Vec::new(),
            reserved_ids: VecDeque::new(),
            leaves: FxHashSet::default(),
            leaves_for_ids: 0,
            guard,
        }
    }

    /// Returns the copies in page order, so that a repeated history publishes them in the same sequence and adjacent
    /// pages follow each other.
    fn take_copies(&mut self) -> Vec<(PageId, Copy)> {
        let mut copies: Vec<_> = std::mem::take(&mut self.copies).into_iter().collect();
        copies.sort_unstable_by_key(|(page, _)| *page);
        copies
    }

    /// Publishes all copies and frees as part of commit `seq`.
    pub(crate) fn publish(mut self, seq: CommitSeq) {
        let (pages, frames) = (self.versions.pages(), self.versions.frames());
        let mut superseded = Vec::new();
        let mut changed: Vec<PageId> = Vec::with_capacity(self.copies.len() + self.freed.len());
        let copies = self.take_copies();
        let new: Vec<PageId> = copies.iter().filter(|(_, copy)| copy.base.is_none()).map(|(page, _)| *page).collect();
        self.versions.metadata().note_changed(seq, &new);
        for (page, mut copy) in copies {
            copy.seal(self.versions.file_codec().file_id, page, seq);
            let facts = FrameFacts { page, commit: seq, disk: None, near: copy.near, pins: 0, hot: true };
            let frame = frames.publish(copy.frame, facts);
            let change = PageChange { page, seq, unread_from: seq };
            if let Replacement::Superseded(old) = pages.places().replace(change, Entry::Resident(frame), copy.base) {
                superseded.push(old);
            }
            changed.push(page);
        }
        for FreedByCommit { page, base, unread_from } in self.freed.drain(..) {
            let change = PageChange { page, seq, unread_from: unread_from.unwrap_or(seq) };
            match pages.places().replace(change, Entry::Free, base) {
                Replacement::Superseded(old) => superseded.push(old),
                Replacement::Added | Replacement::Absent | Replacement::Later => continue,
            }
            changed.push(page);
        }
        self.versions.note_published(seq, &changed, superseded);
    }

    /// Takes the id of a new page, and keeps its leaf. After a wait the id is free again, and the next copies take it:
    /// its leaf is in memory then.
    fn take_id(&mut self) -> Attempt<PageId> {
        let id = self.versions.metadata().lock().ids.take().ok_or_else(|| {
            let what = format!("all {PAGES_MAX} page numbers are in use; larger pages would hold more");
            Error::new(ErrorKind::NoSpace, what)
        })?;
        let kept = self.keep_leaf_of_new(id);
        match kept {
            // Ids that lie far apart would need a leaf each, all at once and read one after the other.
            Err(Wait::Miss(_)) if self.leaves_for_ids >= LEAVES_FOR_IDS_MAX => {
                let Some(id) = self.versions.metadata().lock().ids.take_unused() else { return kept };
                self.keep_leaf_of_new(id)
            }
            kept => kept,
        }
    }

    fn keep_leaf_of_new(&mut self, id: PageId) -> Attempt<PageId> {
        match keep_leaf(self.versions, &mut self.leaves, id) {
            Ok(is_new) => self.leaves_for_ids += usize::from(is_new),
            Err(wait) => {
                self.versions.metadata().lock().ids.put_back(id);
                return Err(wait);
            }
        }
        // Checked because nothing could tell two pages of one id apart later.
        if self.versions.pages().entry(id) != Entry::Free {
            return Err(Error::new(ErrorKind::Bug, format!("page id {id} is in use and was to be given out")).into());
        }
        Ok(id)
    }
}

/// Returns a frame for one more copy when the commit holds `held` frames already.
fn take_frame(versions: &Versions, reserved: &mut Vec<OwnedFrame>, held: usize) -> Attempt<OwnedFrame> {
    if reserved.is_empty() {
        // The more the commit has taken, the more it will need: the rest is given back with its end.
        take_frames(versions, held.max(1), reserved);
    }
    reserved.pop().ok_or(Wait::Full { frames: held + 1 })
}

/// Takes up to `most` free frames, one at least if there is one.
fn take_frames(versions: &Versions, most: usize, reserved: &mut Vec<OwnedFrame>) {
    versions.frame_waits().take_some_private(most, reserved);
    if reserved.last().is_some_and(|frame| versions.frames().note_used(frame)) {
        versions.signal().wake();
    }
}

/// Returns the newest published version of a page: its frame, and its bytes with the page header.
fn newest<'g>(versions: &'g Versions, _protects: &'g Guard, id: PageId) -> Attempt<(u32, &'g [u8])> {
    if let Entry::Resident(frame) = versions.pages().entry(id) {
        versions.frames().usage().touch(frame);
        // SAFETY: found under the guard, which lives as long as the slice.
        let bytes = unsafe { versions.frames().bytes(frame) };
        // The entry may have been another page's: see `word_array`.
        if page_id(bytes) == id {
            return Ok((frame, bytes));
        }
    }
    match versions.pages().lookup(id, NEWEST) {
        // SAFETY: as above.
        Lookup::Frame(frame) => Ok((frame, unsafe { versions.frames().bytes(frame) })),
        Lookup::NotInMemory => Err(Wait::Miss(Missing { page: id, at: NEWEST })),
        Lookup::Absent => Err(Wait::Failed(Error::corrupt_page(id, "does not exist, though another page names it"))),
    }
}

/// Keeps the leaf with the entry of a page in memory for private copies. Returns whether it was not among `leaves`
/// before. A new leaf is added; one that is on disk only must be read first.
fn keep_leaf(versions: &Versions, leaves: &mut FxHashSet<u64>, page: PageId) -> Attempt<bool> {
    let leaf = versions.pages().words().0.leaf_of(page);
    if leaves.contains(&leaf) {
        return Ok(false);
    }
    if !versions.pages().leaf(leaf).pin_or_add() {
        return Err(Wait::Miss(Missing { page: page_of_leaf(leaf), at: NEWEST }));
    }
    Ok(leaves.insert(leaf))
}

impl Pages for PrivateCopies<'_> {
    type Page<'b>
        = &'b [u8]
    where
        Self: 'b;

    fn page_bytes(&self) -> usize {
        self.versions.frames().page_bytes()
    }

    fn page(&self, id: PageId) -> Attempt<&[u8]> {
        match self.copies.get(&id) {
            Some(copy) => Ok(&copy.frame.buffer[HEADER_BYTES..]),
            None => newest(self.versions, &self.guard, id).map(|(_, bytes)| &bytes[HEADER_BYTES..]),
        }
    }

    fn fetch(&self, id: PageId, bytes: Range<usize>) {
        if let Entry::Resident(frame) = self.versions.pages().entry(id) {
            self.versions.frames().frame(frame).prefetch();
            // SAFETY: found under the guard, which lives as long as the slice.
            let page = unsafe { self.versions.frames().bytes(frame) };
            let end = (HEADER_BYTES + bytes.end).min(page.len());
            prefetch_bytes(page.get(bytes.start..end).unwrap_or_default());
        }
    }
}

impl pages::Versions for PrivateCopies<'_> {
    fn written_in(&self, id: PageId) -> Attempt<CommitSeq> {
        newest(self.versions, &self.guard, id).map(|(_, bytes)| page_commit(bytes))
    }
}

impl pages::PageCopies for PrivateCopies<'_> {
    fn reserve(&mut self, frames: usize) -> Attempt<()> {
        let total = self.copies.len() + frames;
        // A request for more frames than one commit may hold returns `Full` as well: the caller compares it with
        // `copy_frames_max` and publishes in portions.
        if total > self.versions.frames().limits().private_max() {
            return Err(Wait::Full { frames: total });
        }
        while self.reserved.len() < frames {
            let before = self.reserved.len();
            take_frames(self.versions, frames - before, &mut self.reserved);
            if self.reserved.len() == before {
                return Err(Wait::Full { frames: total });
            }
        }
        Ok(())
    }

    fn reserve_new(&mut self, pages: usize) -> Attempt<()> {
        self.reserve(pages)?;
        while self.reserved_ids.len() < pages {
            let id = self.take_id()?;
            self.reserved_ids.push_back(id);
        }
        Ok(())
    }

    fn edit(&mut self, id: PageId) -> Attempt<&mut [u8]> {
        let held = self.copies.len();
        let copy = match self.copies.entry(id) {
            // Looked up only once, because a bulk load calls this for each value of a page.
            hash_map::Entry::Occupied(copy) => {
                let copy = copy.into_mut();
                if copy.sealed.take().is_some() {
                    self.unsealed.push(id);
                }
                copy
            }
            hash_map::Entry::Vacant(place) => {
                let (index, bytes) = newest(self.versions, &self.guard, id)?;
                keep_leaf(self.versions, &mut self.leaves, id)?;
                let mut frame = take_frame(self.versions, &mut self.reserved, held)?;
                frame.buffer.copy_from_slice(bytes);
                let source = self.versions.frames().frame(index);
                let near = source.disk().map(|at| at.block.0).or_else(|| source.near());
                self.unsealed.push(id);
                place.insert(Copy { frame, base: Some(source.commit()), near, sealed: None })
            }
        };
        Ok(&mut copy.frame.buffer[HEADER_BYTES..])
    }

    fn allocate(&mut self, near: PageId) -> Attempt<(PageId, &mut [u8])> {
        let mut frame = take_frame(self.versions, &mut self.reserved, self.copies.len())?;
        let id = match self.reserved_ids.pop_front().map_or_else(|| self.take_id(), Ok) {
            Ok(id) => id,
            Err(wait) => {
                self.reserved.push(frame);
                return Err(wait);
            }
        };
        frame.buffer.fill(0);
        let near = self.copies.get(&near).and_then(|copy| copy.near).or_else(|| self.versions.pages().block_of(near));
        self.unsealed.push(id);
        let copy = self.copies.entry(id).or_insert(Copy { frame, base: None, near, sealed: None });
        Ok((id, &mut copy.frame.buffer[HEADER_BYTES..]))
    }

    fn seal(&mut self, seq: CommitSeq) {
        for page in self.unsealed.drain(..) {
            if let Some(copy) = self.copies.get_mut(&page) {
                copy.seal(self.versions.file_codec().file_id, page, seq);
            }
        }
    }

    fn free(&mut self, id: PageId) {
        match self.copies.remove(&id) {
            Some(Copy { frame, base: None, .. }) => {
                self.reserved.push(frame);
                self.versions.metadata().lock().ids.put_back(id);
            }
            Some(Copy { frame, base, .. }) => {
                self.reserved.push(frame);
                self.freed.push(FreedByCommit { page: id, base, unread_from: None });
            }
            None => self.freed.push(FreedByCommit { page: id, base: None, unread_from: None }),
        }
    }

    fn free_unread(&mut self, id: PageId, since: CommitSeq) {
        self.free(id);
        if let Some(freed) = self.freed.last_mut().filter(|freed| freed.page == id) {
            freed.unread_from = Some(since);
        }
    }

    fn unpinned<R>(&mut self, work: impl FnOnce() -> R) -> R {
        // The copies lie in their own frames, and no reference to a published frame is kept between calls.
        self.guard.repin_after(work)
    }
}

impl Drop for PrivateCopies<'_> {
    fn drop(&mut self) {
        let mut frames = std::mem::take(&mut self.reserved);
        let mut ids: Vec<PageId> = Vec::new();
        for (id, copy) in self.take_copies() {
            if copy.base.is_none() {
                ids.push(id);
            }
            frames.push(copy.frame);
        }
        // Unused ids come last, and the first of them is the last of all: they are taken first again.
        ids.extend(self.reserved_ids.drain(..).rev());
        if !ids.is_empty() {
            let mut metadata = self.versions.metadata().lock();
            ids.into_iter().for_each(|id| metadata.ids.put_back(id));
        }
        self.versions.frame_waits().return_private(frames);
        self.versions.pages().words().0.unpin(self.leaves.drain());
    }
}
