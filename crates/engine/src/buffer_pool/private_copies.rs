//! Private copies of pages, and their publication.

use std::collections::hash_map;

use crossbeam_epoch::Guard;
use rustc_hash::FxHashMap;

use super::frames::{FrameFacts, OwnedFrame};
use super::versions::{NEWEST, Versions};
use super::word_array::{Entry, PAGES_MAX};
use crate::error::{Error, ErrorKind};
use crate::format::{CommitSeq, HEADER_BYTES, PageId, page_commit, seal_page};
use crate::pages::{self, Attempt, Missing, Pages, Wait};

/// The private copies of one commit. Dropping this discards the copies.
pub(crate) struct PrivateCopies<'a> {
    versions: &'a Versions,
    copies: FxHashMap<PageId, Copy>,
    /// The pages that this commit frees, each with the commit of the version that the transaction saw, if it saw one.
    freed: Vec<(PageId, Option<CommitSeq>)>,
    reserved: Vec<OwnedFrame>,
    guard: Guard,
}

struct Copy {
    frame: OwnedFrame,
    /// The commit of the version that was copied; `None` for a new page.
    base: Option<CommitSeq>,
    near: Option<u64>,
}

impl<'a> PrivateCopies<'a> {
    pub(super) fn new(versions: &'a Versions) -> Self {
        let guard = versions.pin_epoch();
        Self { versions, copies: FxHashMap::default(), freed: Vec::new(), reserved: Vec::new(), guard }
    }

    /// Returns the copies in page order, so that a repeated history publishes them in the same sequence and adjacent
    /// pages follow each other.
    fn take_copies(&mut self) -> Vec<(PageId, Copy)> {
        let mut copies: Vec<_> = std::mem::take(&mut self.copies).into_iter().collect();
        copies.sort_unstable_by_key(|(page, _)| *page);
        copies
    }

    /// Publishes all copies and frees as part of commit `seq`.
    pub(super) fn publish(mut self, seq: CommitSeq) {
        let (pages, frames) = (self.versions.pages(), self.versions.frames());
        let mut superseded = Vec::new();
        let mut changed: Vec<PageId> = Vec::with_capacity(self.copies.len() + self.freed.len());
        let copies = self.take_copies();
        let new: Vec<PageId> = copies.iter().filter(|(_, copy)| copy.base.is_none()).map(|(page, _)| *page).collect();
        self.versions.metadata().note_changed(seq, &new);
        for (page, mut copy) in copies {
            seal_page(self.versions.file_id(), page, seq, &mut copy.frame.buffer);
            let facts = FrameFacts { page, commit: seq, disk: None, near: copy.near, pins: 0, hot: true };
            let frame = frames.publish(copy.frame, facts);
            superseded.extend(pages.replace(page, Entry::Resident(frame), copy.base, seq));
            changed.push(page);
        }
        for (page, base) in self.freed.drain(..) {
            superseded.extend(pages.replace(page, Entry::Free, base, seq));
            changed.push(page);
        }
        self.versions.note_published(seq, &changed, superseded);
    }
}

/// Returns a frame for one more copy when the commit holds `held` frames already.
fn take_frame(versions: &Versions, reserved: &mut Vec<OwnedFrame>, held: usize) -> Attempt<OwnedFrame> {
    reserved.pop().or_else(|| versions.frame_waits().take_private()).ok_or(Wait::Full { frames: held + 1 })
}

/// Returns the newest published version of a page: its frame, and its bytes with the page header.
fn newest<'g>(versions: &'g Versions, _protects: &'g Guard, id: PageId) -> Attempt<(u32, &'g [u8])> {
    match versions.pages().entry(id) {
        Entry::Resident(frame) => {
            versions.frames().usage().touch(frame);
            // SAFETY: found under the guard, which lives as long as the slice.
            Ok((frame, unsafe { versions.frames().bytes(frame) }))
        }
        Entry::OnDisk(_) | Entry::Loading(_) => Err(Wait::Miss(Missing { page: id, at: NEWEST })),
        Entry::Free => Err(Wait::Failed(Error::corrupt_page(id, "does not exist, though another page names it"))),
    }
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
        if total > self.versions.frames().private_max() {
            return Err(Wait::Full { frames: total });
        }
        while self.reserved.len() < frames {
            match self.versions.frame_waits().take_private() {
                Some(frame) => self.reserved.push(frame),
                None => return Err(Wait::Full { frames: total }),
            }
        }
        Ok(())
    }

    fn edit(&mut self, id: PageId) -> Attempt<&mut [u8]> {
        let held = self.copies.len();
        let copy = match self.copies.entry(id) {
            // Looked up only once, because a bulk load calls this for each value of a page.
            hash_map::Entry::Occupied(copy) => copy.into_mut(),
            hash_map::Entry::Vacant(place) => {
                let (index, bytes) = newest(self.versions, &self.guard, id)?;
                let mut frame = take_frame(self.versions, &mut self.reserved, held)?;
                frame.buffer.copy_from_slice(bytes);
                let source = self.versions.frames().frame(index);
                let near = source.disk().map(|at| at.block.0).or_else(|| source.near());
                place.insert(Copy { frame, base: Some(source.commit()), near })
            }
        };
        Ok(&mut copy.frame.buffer[HEADER_BYTES..])
    }

    fn allocate(&mut self, near: PageId) -> Attempt<(PageId, &mut [u8])> {
        let mut frame = take_frame(self.versions, &mut self.reserved, self.copies.len())?;
        let Some(id) = self.versions.metadata().lock().ids.take() else {
            self.reserved.push(frame);
            let what = format!("all {PAGES_MAX} page numbers are in use; larger pages would hold more");
            return Err(Wait::Failed(Error::new(ErrorKind::NoSpace, what)));
        };
        frame.buffer.fill(0);
        let near = self.copies.get(&near).and_then(|copy| copy.near).or_else(|| self.versions.pages().block_of(near));
        let copy = self.copies.entry(id).or_insert(Copy { frame, base: None, near });
        Ok((id, &mut copy.frame.buffer[HEADER_BYTES..]))
    }

    fn free(&mut self, id: PageId) {
        match self.copies.remove(&id) {
            Some(Copy { frame, base: None, .. }) => {
                self.reserved.push(frame);
                self.versions.metadata().lock().ids.put_back(id);
            }
            Some(Copy { frame, base, .. }) => {
                self.reserved.push(frame);
                self.freed.push((id, base));
            }
            None => self.freed.push((id, None)),
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
        let mut ids = Vec::new();
        for (id, copy) in self.take_copies() {
            if copy.base.is_none() {
                ids.push(id);
            }
            frames.push(copy.frame);
        }
        if !ids.is_empty() {
            let mut metadata = self.versions.metadata().lock();
            ids.into_iter().for_each(|id| metadata.ids.put_back(id));
        }
        self.versions.frame_waits().return_private(frames);
    }
}
