//! Long values. The pages of those up to 64 KiB are named by the leaf and are pages of values: see [`super::packed`]. Longer
//! ones have data pages below an index, so that all of them can be read at once and written in chunks.
//!
//! | offset | bytes | data page (kind 3) | index page (kind 2) |
//! |---|---|---|---|
//! | 0 | 1 | kind | kind |
//! | 1 | 1 | zero | level: 1 above the data |
//! | 2 | 2 | zero | number of children |
//! | 4 | 4 | low half of the table's id; zero in databases of earlier versions | the same |
//! | 8 | .. | bytes of the value | 6 bytes page id each |
//!
//! All data pages but the last are full, and all index pages but the last of each level: the length of the value says
//! how many pages of each level there are. Readers check this, so a damaged index cannot lead them in circles.
//!
//! The pages of a value never change. They are reachable only through its cell, so they can be written under any number of
//! `PageCopies` before the one that puts the cell.

use rustc_hash::FxHashSet;

use crate::error::{Error, ErrorKind};
use crate::format::cell::{
    CHILD_BYTES, Cell, OverflowRef, SpreadRef, VALUES_HEADER_BYTES, decode_child, encode_child, inline_value_bytes_max,
    spread_pages_max, spread_value_bytes_max,
};
use crate::format::node::{KIND_OVERFLOW_DATA, KIND_OVERFLOW_INDEX, KIND_PACKED, set_table};
use crate::format::{CommitSeq, HEADER_BYTES, PageId};
use crate::pages::{Attempt, Missing, PageCopies, Pages, Wait};

use super::{Tree, packed};

/// Length of the longest value, in bytes.
pub(crate) const VALUE_BYTES_MAX: u64 = 1 << 30;
/// Bytes of the header of a data page or an index page; as many as of a page of values.
const OVERFLOW_HEADER_BYTES: usize = VALUES_HEADER_BYTES;

/// A reference to a value too long for its leaf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LongRef {
    /// The value has an index, or is a single data page.
    Overflow(OverflowRef),
    /// The leaf names all pages of the value.
    Spread(SpreadRef),
}

impl LongRef {
    /// Returns the cell by which a leaf refers to the value.
    pub(crate) fn cell(&self) -> Cell<'_> {
        match self {
            Self::Overflow(to) => Cell::Overflow(*to),
            Self::Spread(to) => Cell::Spread(to.cell()),
        }
    }

    /// Returns the length of the value, in bytes.
    pub(crate) fn len_bytes(&self) -> u64 {
        match self {
            Self::Overflow(to) => to.len_bytes,
            Self::Spread(to) => u64::from(to.cell().len_bytes),
        }
    }
}

/// Returns the number of bytes of a long value that one data page holds.
pub(crate) const fn data_bytes(page_bytes: usize) -> usize {
    page_bytes - HEADER_BYTES - OVERFLOW_HEADER_BYTES
}

/// Returns the most children that one index page of a long value has.
const fn fanout(page_bytes: usize) -> usize {
    data_bytes(page_bytes) / CHILD_BYTES
}

/// Returns whether a long value consists of its root page alone.
pub(crate) const fn is_one_page(page_bytes: usize, value: OverflowRef) -> bool {
    value.len_bytes <= data_bytes(page_bytes) as u64
}

/// Returns whether this is the body of a page with an index or with data of a long value that has an index.
pub(crate) fn is_overflow(body: &[u8]) -> bool {
    matches!(body.first(), Some(&(KIND_OVERFLOW_DATA | KIND_OVERFLOW_INDEX)))
}

/// Filters `listed`, the claimed pages of long values, to the pages that may be their own, each once. Drops the catalog's
/// root, and pages in memory for which `is_part` is false: only a damaged index, or a damaged leaf, names them. Pages
/// that are not in memory are kept without reading them.
pub(crate) fn own_pages<P: Pages>(pages: &P, listed: &[PageId], is_part: fn(&[u8]) -> bool) -> Vec<PageId> {
    let holds_something_else =
        |page: PageId| page == PageId::CATALOG_ROOT || pages.page(page).is_ok_and(|body| !is_part(&body));
    let mut met = FxHashSet::default();
    listed.iter().copied().filter(|page| met.insert(*page) && !holds_something_else(*page)).collect()
}

#[cfg(test)]
thread_local! {
    /// Tests that need values as earlier versions wrote them set this, for the puts of their thread: all long values get
    /// an index then.
    pub(crate) static WITH_INDEX: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Returns whether the leaf names the pages of a value of this length that is put.
fn is_spread(page_bytes: usize, len_bytes: usize) -> bool {
    #[cfg(test)]
    if WITH_INDEX.get() {
        return false;
    }
    len_bytes > inline_value_bytes_max(page_bytes) && len_bytes <= spread_value_bytes_max(page_bytes)
}

/// Returns the longest value that may be spread over pages in one set of private copies, which has `frames_max` frames at
/// most; zero when those are too few for it.
pub(crate) fn spread_at_once_max(page_bytes: usize, frames_max: usize) -> usize {
    #[cfg(test)]
    if WITH_INDEX.get() {
        return 0;
    }
    let most = spread_value_bytes_max(page_bytes);
    if spread_pages_max(page_bytes, most) * 4 <= frames_max { most } else { 0 }
}

/// Returns the number of pages on each level of a long value with an index, data pages first.
fn level_counts(page_bytes: usize, len_bytes: u64) -> Vec<u64> {
    let mut counts = vec![len_bytes.div_ceil(data_bytes(page_bytes) as u64).max(1)];
    while let Some(below) = counts.last().filter(|count| **count > 1) {
        counts.push(below.div_ceil(fanout(page_bytes) as u64));
    }
    counts
}

/// Writes one long value, over as many sets of `PageCopies` as it needs. Takes 8 bytes of memory for each page.
#[derive(Debug)]
pub(crate) struct Writer<'v> {
    value: &'v [u8],
    /// All pages written so far, level by level, data pages first.
    pages: Vec<PageId>,
    at: Progress,
}

/// The position that the writing of a long value has reached.
#[derive(Debug, Clone, Copy)]
struct Progress {
    /// The level being written: 0 for data pages.
    level: u8,
    /// Number of pages of the level below to which no page refers yet (at level 0: number of bytes of the value not
    /// written yet).
    rest: usize,
    /// Index in `pages` at which this level begins.
    start: usize,
}

impl<'v> Writer<'v> {
    /// Creates a writer that has written nothing.
    pub(crate) fn new(value: &'v [u8]) -> Self {
        Self { value, pages: Vec::new(), at: Progress { level: 0, rest: value.len(), start: 0 } }
    }

    /// Returns the pages written so far, to be freed when the value is abandoned.
    pub(crate) fn pages(&self) -> &[PageId] {
        &self.pages
    }

    /// Writes up to `pages_max` (at least 1) more pages for a value of `tree`. Returns the reference to the value once
    /// all its pages are written. After a `Wait` nothing has changed.
    pub(crate) fn write<E: PageCopies>(
        &mut self,
        copies: &mut E,
        tree: Tree,
        pages_max: usize,
    ) -> Attempt<Option<LongRef>> {
        let counts = level_counts(copies.page_bytes(), self.value.len() as u64);
        let is_spread = is_spread(copies.page_bytes(), self.value.len());
        let count = if is_spread { counts[0] } else { counts.iter().sum() };
        let left = count as usize - self.pages.len();
        copies.reserve_new(pages_max.min(left))?;
        // From here on no `Wait` can occur, because the frames are reserved and no page is looked up. But page numbers
        // can run out.
        let (at, written) = (self.at, self.pages.len());
        for _ in 0..pages_max {
            if let Some(value) = self.written(is_spread) {
                return Ok(Some(value));
            }
            if let Err(wait) = self.write_page(copies, tree, is_spread) {
                self.at = at;
                self.pages.truncate(written);
                return Err(wait);
            }
        }
        Ok(self.written(is_spread))
    }

    /// Returns the reference to the value, once it is completely written.
    fn written(&self, is_spread: bool) -> Option<LongRef> {
        match self.pages[self.at.start..] {
            _ if self.at.rest > 0 => None,
            ref pages if is_spread => Some(LongRef::Spread(SpreadRef::new(self.value.len() as u32, 0, pages))),
            [root] => Some(LongRef::Overflow(OverflowRef { len_bytes: self.value.len() as u64, root })),
            _ => None,
        }
    }

    /// Writes the next page of the value, which must not be complete.
    fn write_page<E: PageCopies>(&mut self, copies: &mut E, tree: Tree, is_spread: bool) -> Attempt<()> {
        let at = &mut self.at;
        if at.rest == 0 && self.pages.len() > at.start {
            *at = Progress { level: at.level + 1, rest: self.pages.len() - at.start, start: self.pages.len() };
        }
        let page_bytes = copies.page_bytes();
        let (id, body) = copies.allocate(self.pages[at.start..].last().copied().unwrap_or(tree.root))?;
        let (header, content) = body.split_at_mut(OVERFLOW_HEADER_BYTES);
        set_table(header, tree.table);
        if at.level == 0 {
            let rest = &self.value[self.value.len() - at.rest..];
            let part = &rest[..rest.len().min(data_bytes(page_bytes))];
            header[0] = KIND_OVERFLOW_DATA;
            if is_spread {
                packed::init(header, tree.table);
                packed::set_live(header, 1);
            }
            content[..part.len()].copy_from_slice(part);
            at.rest -= part.len();
        } else {
            let rest = &self.pages[at.start - at.rest..at.start];
            let part = &rest[..rest.len().min(fanout(page_bytes))];
            header[0] = KIND_OVERFLOW_INDEX;
            header[1] = at.level;
            header[2..4].copy_from_slice(&(part.len() as u16).to_le_bytes());
            for (child, at) in part.iter().zip(content.chunks_exact_mut(CHILD_BYTES)) {
                at.copy_from_slice(&encode_child(*child));
            }
            at.rest -= part.len();
        }
        self.pages.push(id);
        Ok(())
    }
}

/// Reads one long value, or lists its pages, in steps. It keeps its progress between attempts, so a value may be larger
/// than the pool. All attempts must look at the same commit.
#[derive(Debug)]
pub(crate) struct Reader {
    value_bytes: u64,
    /// Kind of the pages with the bytes of the value.
    data_kind: u8,
    /// Offset of the value in its first page with data.
    offset: usize,
    want_data: bool,
    counts: Vec<u64>,
    /// The level of the pages in `ids`.
    level: usize,
    ids: Vec<PageId>,
    /// Number of pages of `ids` that were read.
    read: usize,
    below: Vec<PageId>,
    /// All pages visited so far, if the reader only lists them.
    pages: Vec<PageId>,
    data: Vec<u8>,
}

impl Reader {
    /// Creates a reader that returns the bytes of the value.
    ///
    /// # Errors
    /// `Corrupt` when the reference gives a length above [`VALUE_BYTES_MAX`].
    pub(crate) fn new(page_bytes: usize, value: LongRef) -> Result<Self, Error> {
        match value {
            LongRef::Overflow(value) => Self::begin(page_bytes, value, true),
            LongRef::Spread(value) => Ok(Self::of_spread(&value)),
        }
    }

    fn of_spread(value: &SpreadRef) -> Self {
        let value = value.cell();
        let ids: Vec<_> = value.pages().collect();
        Self {
            value_bytes: u64::from(value.len_bytes),
            data_kind: KIND_PACKED,
            offset: value.start(),
            want_data: true,
            counts: vec![ids.len() as u64],
            level: 0,
            ids,
            read: 0,
            below: Vec::new(),
            pages: Vec::new(),
            data: Vec::new(),
        }
    }

    /// Creates a reader that only lists the pages of the value.
    ///
    /// # Errors
    /// `Corrupt` when the reference gives a length above [`VALUE_BYTES_MAX`].
    pub(crate) fn listing(page_bytes: usize, value: OverflowRef) -> Result<Self, Error> {
        Self::begin(page_bytes, value, false)
    }

    fn begin(page_bytes: usize, value: OverflowRef, want_data: bool) -> Result<Self, Error> {
        if value.len_bytes > VALUE_BYTES_MAX {
            let what = format_args!("is said to hold a value of {} bytes", value.len_bytes);
            return Err(Error::corrupt_page(value.root, what));
        }
        let counts = level_counts(page_bytes, value.len_bytes);
        Ok(Self {
            value_bytes: value.len_bytes,
            data_kind: KIND_OVERFLOW_DATA,
            offset: OVERFLOW_HEADER_BYTES,
            want_data,
            level: counts.len() - 1,
            counts,
            ids: vec![value.root],
            read: 0,
            below: Vec::new(),
            pages: Vec::new(),
            data: Vec::new(),
        })
    }

    /// Reads on as long as the next pages are in memory, and returns `true` when it has read them all. At a missing
    /// page it lists up to `window` pages to load in `wanted`, and returns `false`.
    pub(crate) fn advance<P: Pages>(
        &mut self,
        pages: &P,
        at: CommitSeq,
        window: usize,
        wanted: &mut Vec<Wait>,
    ) -> Result<bool, Error> {
        let is_read = match self.descend(pages)? {
            false => false,
            true if !self.want_data => {
                self.pages.append(&mut self.ids);
                return Ok(true);
            }
            true => {
                self.data.reserve((self.ids.len() - self.read) * data_bytes(pages.page_bytes()));
                self.read_level(pages)?
            }
        };
        if !is_read {
            let next = self.ids[self.read..].iter().take(window.max(1));
            wanted.extend(next.map(|page| Wait::Miss(Missing { page: *page, at })));
        }
        Ok(is_read)
    }

    /// Guesses the data pages of the value: the pages with the ids before its index, where a value written at once with new ids has them.
    /// Empty unless the reader waits for the only page of the index.
    pub(crate) fn guess_data(&self) -> impl Iterator<Item = PageId> + use<> {
        let is_at_index = self.want_data && self.counts.len() == 2 && self.level == 1 && self.read == 0;
        let root = self.ids.first().map_or(0, |root| root.0);
        // `Writer` takes the ids of the data pages first, in ascending order, and the index's id after them.
        let first = root.checked_sub(self.counts[0]).filter(|_| is_at_index);
        first.into_iter().flat_map(move |first| (first..root).map(PageId))
    }

    /// Lists up to `most` of the pages that must be read next, and copies no bytes of the value. Returns whether these pages hold bytes
    /// of the value, rather than its index. An error is left to `advance`.
    pub(crate) fn name_next<P: Pages>(&mut self, pages: &P, most: usize, into: &mut Vec<PageId>) -> bool {
        let Ok(is_data) = self.descend(pages) else { return true };
        into.extend(self.ids[self.read..].iter().take(most));
        is_data
    }

    /// Reads the index as long as its next pages are in memory. Returns whether `ids` are the data pages now.
    fn descend<P: Pages>(&mut self, pages: &P) -> Result<bool, Error> {
        while self.level > 0 {
            if !self.read_level(pages)? {
                return Ok(false);
            }
            // Checked before anything changes, so that every later call meets the same error.
            let expected = self.counts[self.level - 1];
            if self.below.len() as u64 != expected {
                let what = format_args!("{} pages instead of {expected}", self.below.len());
                return Err(Error::corrupt_page(self.ids.last().copied().unwrap_or_default(), what));
            }
            if !self.want_data {
                self.pages.append(&mut self.ids);
            }
            self.level -= 1;
            self.ids = std::mem::take(&mut self.below);
            self.read = 0;
        }
        Ok(true)
    }

    /// Reads the pages in `ids` as long as they are in memory. Returns whether all were.
    fn read_level<P: Pages>(&mut self, pages: &P) -> Result<bool, Error> {
        while let Some(id) = self.ids.get(self.read).copied() {
            match pages.page(id) {
                Ok(page) => self.take(id, &page)?,
                Err(Wait::Miss(_)) => return Ok(false),
                Err(Wait::Failed(error)) => return Err(error),
                Err(other) => return Err(Error::new(ErrorKind::Bug, format!("reading a page met {other:?}"))),
            }
            self.read += 1;
        }
        Ok(true)
    }

    /// Returns the bytes of the value, once `advance` has returned `true`.
    pub(crate) fn into_value(self) -> Vec<u8> {
        self.data
    }

    /// Returns the pages of the value, once `advance` has returned `true`.
    pub(crate) fn into_pages(self) -> Vec<PageId> {
        self.pages
    }

    fn take(&mut self, id: PageId, body: &[u8]) -> Result<(), Error> {
        let wrong = |what: &str| Err(Error::corrupt_page(id, what));
        if body.len() <= OVERFLOW_HEADER_BYTES {
            return wrong("is too small");
        }
        let (header, content) = body.split_at(OVERFLOW_HEADER_BYTES);
        if self.level == 0 {
            if header[0] != self.data_kind {
                return wrong("holds no part of a long value where one belongs");
            }
            let skipped = if self.read == 0 { self.offset - OVERFLOW_HEADER_BYTES } else { 0 };
            let Some(content) = content.get(skipped..) else { return wrong("is too small") };
            let rest = usize::try_from(self.value_bytes).unwrap_or(usize::MAX) - self.data.len();
            self.data.extend_from_slice(&content[..rest.min(content.len())]);
            return Ok(());
        }
        if header[0] != KIND_OVERFLOW_INDEX || usize::from(header[1]) != self.level {
            return wrong("holds no index of a long value where one belongs");
        }
        let count = usize::from(u16::from_le_bytes([header[2], header[3]]));
        let children = content.chunks_exact(CHILD_BYTES).take(count).filter_map(decode_child);
        let before = self.below.len();
        self.below.extend(children);
        if self.below.len() - before != count || self.below.len() as u64 > self.counts[self.level - 1] {
            return wrong("has more children than its value has pages");
        }
        Ok(())
    }
}
