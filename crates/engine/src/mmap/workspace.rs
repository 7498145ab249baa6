//! The views of readers and the workspace of a writer: pages in the map, newer versions outside it, private copies on
//! top.
//!
//! Everything here runs under the map's guard: a page that cannot be read is all zeroes, and the whole operation is
//! then thrown away. So code here may write only to memory that its owner can drop.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, Range};
use std::sync::Arc;

use nofault_io::mapped::{Advice, MappedFile};

use super::free::FreePages;
use super::meta::State;
use super::placed::PlacedPages;
use super::shape::Shape;
use super::versions::Versions;
use crate::error::{Error, ErrorKind};
use crate::format::node::Node;
use crate::format::{BlockId, CommitSeq, HEADER_BYTES, Location, PageId, Tag, check_page};
use crate::pages::{Attempt, PageCopies, Pages, Wait};

/// A complete page with its header; dereferences to its body.
pub(super) enum PageRef<'a> {
    /// A page in the map, or in the private copy of a writer.
    Borrowed(&'a [u8]),
    /// A version that is kept outside the map.
    Shared(Arc<[u8]>),
}

impl PageRef<'_> {
    /// Returns the page with its header.
    pub(super) fn image(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }
}

impl Deref for PageRef<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.image()[HEADER_BYTES..]
    }
}

/// Pages as of one commit.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) shape: Shape,
    pub(super) map: &'a MappedFile,
    /// Versions that are not in the map yet, and the commit that this view shows.
    pub(super) versions: Option<(&'a Versions, CommitSeq)>,
    /// The locations of pages, in a file where pages move.
    pub(super) placed: Option<&'a PlacedPages>,
}

impl<'a> View<'a> {
    /// Returns the place of a page in the map, and its location where pages move; `None` for a page that was never written.
    fn find(&self, id: PageId) -> Attempt<Option<(Option<Location>, Range<usize>)>> {
        let in_place = self.shape.range(id)?;
        Ok(match self.placed.map(|placed| placed.find(id)) {
            None => Some((None, in_place)),
            Some(at) => at.map(|at| {
                let start = at.block.0 as usize * self.shape.page_bytes;
                (Some(at), start..start + self.shape.page_bytes)
            }),
        })
    }

    /// Asks the kernel to read pages that will be needed, adjacent ones by one call.
    pub(super) fn ask_for(&self, pages: &[PageId]) -> Attempt<()> {
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for id in pages {
            let Some((_, range)) = self.find(*id)? else { continue };
            match ranges.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => ranges.push(range),
            }
        }
        for range in ranges {
            let asked = self.map.advise(Advice::WillNeed, range);
            asked.map_err(|error| Error::from_io("ask for the pages to come", error))?;
        }
        Ok(())
    }

    fn look(&self, id: PageId) -> Attempt<PageRef<'a>> {
        self.shape.range(id)?;
        if let Some(page) = self.versions.and_then(|(versions, at)| versions.find(id, at)) {
            return Ok(PageRef::Shared(page));
        }
        let Some((at, range)) = self.find(id)? else {
            // Never written: it reads as the hole does that it is in the other files.
            return Ok(PageRef::Shared(vec![0; self.shape.page_bytes].into()));
        };
        // SAFETY: the protocols ensure that a page in the map does not change while a reader may use it: `shadow`
        // writes only to pages that no reader and no meta page can reach; where pages stay in their places, a version
        // is copied into the map only when every reader finds it, or a newer one, outside the map (see `logged`).
        let bytes =
            unsafe { self.map.slice(range) }.map_err(|error| Error::from_io(format_args!("page {id}"), error))?;
        if self.shape.checksums {
            let at = at.unwrap_or_else(|| Location::of_whole(BlockId(id.0), Tag::of_page(bytes)));
            check_page(self.shape.file_id, id, at, bytes)?;
        }
        Ok(PageRef::Borrowed(bytes))
    }
}

impl Pages for View<'_> {
    type Page<'b>
        = PageRef<'b>
    where
        Self: 'b;

    fn page_bytes(&self) -> usize {
        self.shape.page_bytes
    }

    fn page(&self, id: PageId) -> Attempt<PageRef<'_>> {
        self.look(id)
    }
}

/// Where a commit makes its copies of pages.
enum Target<'a> {
    /// In user memory, on top of the pages that `base` shows.
    Heap { base: View<'a>, copies: BTreeMap<PageId, Box<[u8]>> },
    /// In a private map: the operating system copies a page at the first store into it.
    Private { shape: Shape, map: &'a MappedFile },
}

/// The private copies of one commit.
pub(super) struct Workspace<'a> {
    target: Target<'a>,
    /// Edited pages that existed before this commit.
    edited: BTreeSet<PageId>,
    /// Pages that this commit allocated.
    fresh: BTreeSet<PageId>,
    /// Every page that this commit stored into, including pages that it freed afterwards.
    stored_to: BTreeSet<PageId>,
    pub(super) state: State,
    pub(super) free: FreePages<'a>,
}

impl<'a> Workspace<'a> {
    /// Creates a workspace with copies in user memory.
    pub(super) fn copying(base: View<'a>, state: State, free: FreePages<'a>) -> Self {
        Self::new(Target::Heap { base, copies: BTreeMap::new() }, state, free)
    }

    /// Creates a workspace in a private map, where the operating system makes the copies. The caller must restore the
    /// pages that an abandoned commit stored to: [`Workspace::into_stored_to`].
    ///
    /// # Safety
    /// No other code may use the map while the workspace lives.
    pub(super) unsafe fn in_private(shape: Shape, map: &'a MappedFile, state: State, free: FreePages<'a>) -> Self {
        Self::new(Target::Private { shape, map }, state, free)
    }

    fn new(target: Target<'a>, state: State, free: FreePages<'a>) -> Self {
        Self { target, edited: BTreeSet::new(), fresh: BTreeSet::new(), stored_to: BTreeSet::new(), state, free }
    }

    fn shape(&self) -> Shape {
        match &self.target {
            Target::Heap { base, .. } => base.shape,
            Target::Private { shape, .. } => *shape,
        }
    }

    /// Returns the pages that differ from the previous commit, in order.
    pub(super) fn touched(&self) -> Vec<PageId> {
        self.edited.union(&self.fresh).copied().collect()
    }

    /// Returns the private copies, which are all changes of this commit if it works on copies.
    pub(super) fn into_copies(self) -> BTreeMap<PageId, Box<[u8]>> {
        match self.target {
            Target::Heap { copies, .. } => copies,
            Target::Private { .. } => BTreeMap::new(),
        }
    }

    /// Returns the pages that an abandoned commit may have changed in its private map.
    pub(super) fn into_stored_to(self) -> BTreeSet<PageId> {
        self.stored_to
    }

    /// Returns a page for editing, with its header.
    pub(super) fn image_mut(&mut self, id: PageId) -> Attempt<&mut [u8]> {
        let range = self.shape().range(id)?;
        match &mut self.target {
            Target::Heap { base, copies } => match copies.entry(id) {
                std::collections::btree_map::Entry::Occupied(copy) => Ok(copy.into_mut()),
                std::collections::btree_map::Entry::Vacant(place) => Ok(place.insert(base.look(id)?.image().into())),
            },
            Target::Private { map, .. } => {
                self.stored_to.insert(id);
                // SAFETY: no other code uses the map, by the promise of `in_private`; `&mut self` excludes the slices
                // given out before.
                let image = unsafe { map.slice_mut(range) };
                Ok(image.map_err(|error| Error::from_io(format_args!("page {id}"), error))?)
            }
        }
    }

    /// Allocates a page id for this commit.
    fn new_id(&mut self) -> Attempt<PageId> {
        if let Some(id) = self.free.take() {
            return Ok(id);
        }
        let (id, shape) = (PageId(self.state.page_count), self.shape());
        if id.0 >= shape.pages_max {
            let what = format!(
                "the map of {} bytes is full, or a long reader keeps its free pages",
                shape.pages_max * shape.page_bytes as u64
            );
            return Err(Wait::Failed(Error::new(ErrorKind::NoSpace, what)));
        }
        self.state.page_count += 1;
        Ok(id)
    }

    /// Returns the edited tree nodes of one level that are still at their old page ids.
    pub(super) fn in_old_place(&self, level: u8) -> Attempt<Vec<PageId>> {
        let mut found = Vec::new();
        for id in &self.edited {
            if Node::open(*id, &self.page(*id)?)?.level() == level {
                found.push(*id);
            }
        }
        Ok(found)
    }

    /// Returns whether no edited page is at its old page id any more.
    pub(super) fn all_moved(&self) -> bool {
        self.edited.is_empty()
    }

    /// Moves an edited page to a new page id, so that the old page stays unchanged. Returns the new id.
    pub(super) fn move_page(&mut self, id: PageId) -> Attempt<PageId> {
        let moved = self.new_id()?;
        if let Target::Heap { copies, .. } = &mut self.target
            && let Some(copy) = copies.remove(&id)
        {
            copies.insert(moved, copy);
        }
        self.edited.remove(&id);
        self.fresh.insert(moved);
        self.free.give(id);
        Ok(moved)
    }
}

impl Pages for Workspace<'_> {
    type Page<'b>
        = PageRef<'b>
    where
        Self: 'b;

    fn page_bytes(&self) -> usize {
        self.shape().page_bytes
    }

    fn page(&self, id: PageId) -> Attempt<PageRef<'_>> {
        match &self.target {
            Target::Heap { base, copies } => match copies.get(&id) {
                Some(copy) => Ok(PageRef::Borrowed(copy)),
                None => base.look(id),
            },
            Target::Private { shape, map } => {
                // Sealed when the commit ends, not before.
                let checksums = shape.checksums && !self.stored_to.contains(&id);
                View { shape: Shape { checksums, ..*shape }, map, versions: None, placed: None }.look(id)
            }
        }
    }
}

impl PageCopies for Workspace<'_> {
    fn reserve(&mut self, _frames: usize) -> Attempt<()> {
        Ok(())
    }

    fn edit(&mut self, id: PageId) -> Attempt<&mut [u8]> {
        if !self.fresh.contains(&id) {
            self.edited.insert(id);
        }
        Ok(&mut self.image_mut(id)?[HEADER_BYTES..])
    }

    fn allocate(&mut self, _near: PageId) -> Attempt<(PageId, &mut [u8])> {
        let id = self.new_id()?;
        self.fresh.insert(id);
        if let Target::Heap { base, copies } = &mut self.target {
            // Not even looked at: its old content means nothing.
            copies.insert(id, vec![0; base.shape.page_bytes].into());
        }
        let image = self.image_mut(id)?;
        image.fill(0);
        Ok((id, &mut image[HEADER_BYTES..]))
    }

    fn free(&mut self, id: PageId) {
        if let Target::Heap { copies, .. } = &mut self.target {
            copies.remove(&id);
        }
        self.edited.remove(&id);
        if self.fresh.remove(&id) {
            self.free.give_back(id);
        } else {
            self.free.give(id);
        }
    }
}
