//! Private copies of pages, and their publication.

use std::collections::hash_map;
use std::sync::Arc;

use crossbeam_epoch::Guard;
use rustc_hash::FxHashMap;

use super::Core;
use super::frames::{FrameFacts, OwnedFrame};
use super::registry::Superseded;
use super::shard::{Place, Shard, Version};
use super::table::{Entry, PAGES_MAX};
use crate::error::{Error, ErrorKind};
use crate::format::{CommitSeq, HEADER_BYTES, PageId, page_commit, seal_page};
use crate::pages::{self, Attempt, Missing, Pages, Wait};

/// The private copies of one commit. Dropping it undoes everything.
pub(crate) struct Edits<'a> {
    core: &'a Arc<Core>,
    copies: FxHashMap<PageId, Copy>,
    /// Freed pages, with the commit of the version that was seen, where one was.
    freed: Vec<(PageId, Option<CommitSeq>)>,
    reserved: Vec<OwnedFrame>,
    guard: Guard,
}

struct Copy {
    frame: OwnedFrame,
    /// The commit of the version it was copied from; `None` for a new page.
    base: Option<CommitSeq>,
    near: Option<u64>,
}

impl<'a> Edits<'a> {
    pub(super) fn new(core: &'a Arc<Core>) -> Self {
        let guard = core.epochs.pin();
        Self { core, copies: FxHashMap::default(), freed: Vec::new(), reserved: Vec::new(), guard }
    }

    /// In order, so that a history repeats exactly and neighbours are published as neighbours.
    fn take_copies(&mut self) -> Vec<(PageId, Copy)> {
        let mut copies: Vec<_> = std::mem::take(&mut self.copies).into_iter().collect();
        copies.sort_unstable_by_key(|(page, _)| *page);
        copies
    }

    /// Publishes everything as part of commit `seq`.
    pub(super) fn publish(mut self, seq: CommitSeq) {
        let core = self.core;
        let mut superseded = Vec::new();
        let mut changed: Vec<PageId> = Vec::with_capacity(self.copies.len() + self.freed.len());
        let copies = self.take_copies();
        core.note_new(seq, copies.iter().filter(|(_, copy)| copy.base.is_none()).map(|(page, _)| *page));
        for (page, mut copy) in copies {
            seal_page(core.file_id, page, seq, &mut copy.frame.buffer);
            let facts = FrameFacts { page, commit: seq, disk: None, near: copy.near, pins: 0, hot: true };
            let frame = core.frames.publish(copy.frame, facts);
            superseded.extend(core.replace(page, Entry::Resident(frame), copy.base, seq));
            changed.push(page);
        }
        for (page, base) in self.freed.drain(..) {
            superseded.extend(core.replace(page, Entry::Free, base, seq));
            changed.push(page);
        }
        core.note_published(seq, &changed, superseded);
    }
}

/// A frame for one more copy beside `held`.
fn take_frame(core: &Core, reserved: &mut Vec<OwnedFrame>, held: usize) -> Attempt<OwnedFrame> {
    reserved.pop().or_else(|| core.take_writer_frame()).ok_or(Wait::Full { frames: held + 1 })
}

/// The newest published version: its frame, and its bytes with header.
fn newest<'g>(core: &'g Core, _protects: &'g Guard, id: PageId) -> Attempt<(u32, &'g [u8])> {
    match Entry::from_word(core.table.load(id)) {
        Entry::Resident(frame) => {
            core.frames.touch(frame);
            // SAFETY: found under the guard, which lives as long as the slice.
            Ok((frame, unsafe { core.frames.bytes(frame) }))
        }
        Entry::OnDisk(_) | Entry::Loading(_) => Err(Wait::Miss(Missing { page: id, at: super::NEWEST })),
        Entry::Free => Err(Wait::Failed(Error::corrupt_page(id, "does not exist, though another page names it"))),
    }
}

impl Pages for Edits<'_> {
    type Page<'b>
        = &'b [u8]
    where
        Self: 'b;

    fn page_bytes(&self) -> usize {
        self.core.frames.page_bytes()
    }

    fn page(&self, id: PageId) -> Attempt<&[u8]> {
        match self.copies.get(&id) {
            Some(copy) => Ok(&copy.frame.buffer[HEADER_BYTES..]),
            None => newest(self.core, &self.guard, id).map(|(_, bytes)| &bytes[HEADER_BYTES..]),
        }
    }
}

impl pages::Versions for Edits<'_> {
    fn written_in(&self, id: PageId) -> Attempt<CommitSeq> {
        newest(self.core, &self.guard, id).map(|(_, bytes)| page_commit(bytes))
    }
}

impl pages::Edits for Edits<'_> {
    fn reserve(&mut self, frames: usize) -> Attempt<()> {
        let total = self.copies.len() + frames;
        // More than may ever be held gets the same answer: the caller compares with `edit_frames_max` and publishes in portions.
        if total > self.core.edit_frames_max() {
            return Err(Wait::Full { frames: total });
        }
        while self.reserved.len() < frames {
            match self.core.take_writer_frame() {
                Some(frame) => self.reserved.push(frame),
                None => return Err(Wait::Full { frames: total }),
            }
        }
        Ok(())
    }

    fn edit(&mut self, id: PageId) -> Attempt<&mut [u8]> {
        let held = self.copies.len();
        let copy = match self.copies.entry(id) {
            // Looked up once: a bulk load comes here for each value of a page.
            hash_map::Entry::Occupied(copy) => copy.into_mut(),
            hash_map::Entry::Vacant(place) => {
                let (index, bytes) = newest(self.core, &self.guard, id)?;
                let mut frame = take_frame(self.core, &mut self.reserved, held)?;
                frame.buffer.copy_from_slice(bytes);
                let source = self.core.frames.frame(index);
                let near = source.disk().map(|at| at.block.0).or_else(|| source.near());
                place.insert(Copy { frame, base: Some(source.commit()), near })
            }
        };
        Ok(&mut copy.frame.buffer[HEADER_BYTES..])
    }

    fn allocate(&mut self, near: PageId) -> Attempt<(PageId, &mut [u8])> {
        let mut frame = take_frame(self.core, &mut self.reserved, self.copies.len())?;
        let Some(id) = self.core.books().ids.take() else {
            self.reserved.push(frame);
            let what = format!("all {PAGES_MAX} page numbers are in use; larger pages would hold more");
            return Err(Wait::Failed(Error::new(ErrorKind::NoSpace, what)));
        };
        frame.buffer.fill(0);
        let near = self.copies.get(&near).and_then(|copy| copy.near).or_else(|| self.core.block_of(near));
        let copy = self.copies.entry(id).or_insert(Copy { frame, base: None, near });
        Ok((id, &mut copy.frame.buffer[HEADER_BYTES..]))
    }

    fn free(&mut self, id: PageId) {
        match self.copies.remove(&id) {
            Some(Copy { frame, base: None, .. }) => {
                self.reserved.push(frame);
                self.core.books().ids.put_back(id);
            }
            Some(Copy { frame, base, .. }) => {
                self.reserved.push(frame);
                self.freed.push((id, base));
            }
            None => self.freed.push((id, None)),
        }
    }

    fn aside<R>(&mut self, work: impl FnOnce() -> R) -> R {
        // The edits hold only frames of their own; they keep no published frame from one call to the next.
        self.guard.repin_after(work)
    }
}

impl Drop for Edits<'_> {
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
            let mut books = self.core.books();
            ids.into_iter().for_each(|id| books.ids.put_back(id));
        }
        self.core.return_private(frames);
    }
}

impl Core {
    /// Replaces the newest version of a page by a new one (or none). Returns the version that was superseded.
    fn replace(&self, page: PageId, new: Entry, base: Option<CommitSeq>, seq: CommitSeq) -> Option<Superseded> {
        let mut shard = self.shard(page);
        let (place, from) = match Entry::from_word(self.table.load(page)) {
            Entry::Free => {
                // The freed page may never have existed: a damaged page can name any number, even one beyond the table, and the commit
                // is in the log by now.
                if new != Entry::Free {
                    self.table.store(page, new.to_word());
                }
                return None;
            }
            Entry::Resident(frame) => (Place::Frame(frame), self.frames.frame(frame).commit()),
            // Evicted since it was copied, so its commit is the one the copy was made of. Of a page freed without having been
            // edited only the block is known: it is of its last change, if that was after the last checkpoint, and else it may be
            // as old as the end of the version before it.
            Entry::OnDisk(at) => (Place::Disk(at), base.unwrap_or_else(|| self.began_at_most(page, &shard))),
            Entry::Loading(at) => (Place::Loading(at), base.unwrap_or_else(|| self.began_at_most(page, &shard))),
        };
        // The old version can be found before the new one hides it, so no view ever misses both.
        shard.add_version(page, Version { from, until: seq, place, frees_id: new == Entry::Free });
        self.table.store(page, new.to_word());
        Some(Superseded { page, from, until: seq })
    }

    /// Returns a commit as of which the newest version of a page, which is on disk, can be looked for: the commit that wrote it, or
    /// an earlier one that no view will request.
    fn began_at_most(&self, page: PageId, shard: &Shard) -> CommitSeq {
        shard.last_until(page).max(self.last_change(page))
    }
}
