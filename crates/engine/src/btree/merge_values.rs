//! Merges pages of values of which a part is not in use any more, for compaction: deletes free such a page only with the
//! last of its values.
//!
//! [`Tree::merge_values`] copies the values of several such pages, to which one leaf refers, one after the other to as
//! few new pages as hold them, and gives up the old ones. No entry changes, so nothing is logged for it. Like every
//! change it works on private copies: a caller that gets a `Wait` drops them all.
//!
//! Kept true by:
//! 1. Each value that moves gives up its share of its old pages, as a delete does: a page that another leaf references as
//!    well stays.
//! 2. Only consecutive values come to the same page. So every value page holds an unbroken row of keys, as a bulk load
//!    leaves it, and no two value pages are shared by the leaves on both sides of a fence: freeing a dropped table, and
//!    verification, rely on it.
//!
//! Values with exclusive pages stay where they are, so that replacing them reads no page.

use std::collections::BTreeMap;

use super::{Tree, packed};
use crate::error::{Error, ErrorKind};
use crate::format::cell::{CHILD_BYTES, Cell, PackedRef, values_page_bytes};
use crate::format::{HEADER_BYTES, Moment, PageId, node_mut as edit};
use crate::pages::{Attempt, PageCopies, Pages};

/// A page of values is sparse when at most so many quarters of it are in use.
const SPARSE_QUARTERS: usize = 3;
/// Pages are merged when more than one page of so many becomes free.
const GAIN_SHARE: usize = 8;

/// Sparse pages of values merged together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SparseGroup {
    /// The pages, in the order of the keys.
    pub(crate) sparse: Vec<PageId>,
    /// All pages of the values that have a part in them. They move to fewer pages, or stay.
    pub(crate) pages: Vec<PageId>,
}

/// The sparse pages of values to which a leaf refers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SparseValues {
    /// The pages, in groups to be merged.
    pub(crate) groups: Vec<SparseGroup>,
    /// The first key behind the leaf; `None` at the end of the table.
    pub(crate) next: Option<Vec<u8>>,
}

/// An entry of a leaf whose value lies in pages of values that it may share with others.
struct Shared {
    /// Position in the leaf, and among its entries of this kind.
    index: usize,
    place: usize,
    expiry: Moment,
    is_spread: bool,
    /// The parts of the value, in order.
    parts: Vec<PackedRef>,
}

impl Shared {
    fn value_bytes(&self) -> usize {
        self.parts.iter().map(|part| usize::from(part.len_bytes)).sum()
    }

    fn is_before(&self, next: &Self) -> bool {
        self.place + 1 == next.place
    }
}

impl Tree {
    /// Groups the sparse value pages that only the leaf with key `start` references; the values of each group have about
    /// `at_once` pages. Reads no value page.
    pub(crate) fn sparse_values<P: Pages>(&self, pages: &P, start: &[u8], at_once: usize) -> Attempt<SparseValues> {
        let (_, leaf, _) = self.find_leaf(pages, start)?;
        let body = pages.page(leaf)?;
        let node = self.open(leaf, &body, Some(0))?;
        // As for `Tree::leaves`.
        if node.upper().is_some_and(|upper| upper <= start) {
            return Err(node.corrupt("its upper fence is not above the key that led here").into());
        }
        let entries = self.shared_values(pages, leaf)?;
        let mut used = BTreeMap::<PageId, usize>::new();
        for part in entries.iter().flat_map(|entry| &entry.parts) {
            *used.entry(part.page).or_default() += usize::from(part.len_bytes);
        }
        let bytes_max = values_page_bytes(pages.page_bytes()) / 4 * SPARSE_QUARTERS;
        let (mut groups, mut group) = (Vec::new(), SparseGroup::default());
        for entry in &entries {
            let pages = || entry.parts.iter().map(|part| part.page);
            // A group has all values of its pages.
            if group.pages.len() >= at_once && group.pages.last().copied() != pages().next() {
                groups.push(std::mem::take(&mut group));
            }
            let is_sparse = |page: &PageId| used.get(page).is_some_and(|used| *used <= bytes_max);
            if pages().any(|page| is_sparse(&page)) {
                group.sparse.extend(pages().filter(is_sparse));
                group.pages.extend(pages());
                // Only neighbours share pages.
                group.sparse.dedup();
                group.pages.dedup();
            }
        }
        groups.push(group);
        Ok(SparseValues { groups, next: node.upper().map(<[u8]>::to_vec) })
    }

    /// Moves the values that the leaf with key `start` has in the pages `sparse` to new pages. Returns the number of pages
    /// that this makes fewer; zero, with nothing changed, when too few would become free, or the leaf has no room for the
    /// references.
    pub(crate) fn merge_values<E: PageCopies>(
        &self,
        copies: &mut E,
        start: &[u8],
        sparse: &[PageId],
    ) -> Attempt<usize> {
        let (_, leaf, _) = self.find_leaf(copies, start)?;
        let mut entries = self.shared_values(copies, leaf)?;
        entries.retain(|entry| entry.parts.iter().any(|part| sparse.contains(&part.page)));
        let mut counts = BTreeMap::<PageId, u16>::new();
        entries.iter().flat_map(|entry| &entry.parts).for_each(|part| *counts.entry(part.page).or_default() += 1);
        let mut stay = Vec::new();
        for (page, count) in &counts {
            let live = packed::live(*page, &copies.page(*page)?)?;
            match live.checked_sub(*count) {
                Some(0) => {}
                Some(left) => stay.push((*page, left)),
                None => return Err(Error::corrupt_page(*page, "more leaves refer to it than it says").into()),
            }
        }
        let freed = counts.len() - stay.len();
        let capacity = values_page_bytes(copies.page_bytes());
        let rows = || entries.chunk_by(Shared::is_before);
        let (needed, more_ids) = rows().fold((0, 0), |(pages, ids), row| {
            let of_row = pages_needed(row, capacity);
            (pages + of_row.0, ids + of_row.1)
        });
        let room_bytes = copies.page_bytes() - HEADER_BYTES - self.use_of(copies, &[leaf])?.0.used_bytes;
        if needed + freed / GAIN_SHARE >= freed || more_ids * CHILD_BYTES > room_bytes {
            return Ok(0);
        }

        let mut last = leaf;
        let mut next = |copies: &mut E| -> Attempt<PageId> {
            let (page, body) = copies.allocate(last)?;
            packed::init(body, self.table);
            last = page;
            Ok(page)
        };
        for row in rows() {
            let mut filled = None;
            for entry in row {
                let mut value = Vec::with_capacity(entry.value_bytes());
                for part in &entry.parts {
                    value.extend_from_slice(packed::value(*part, &copies.page(part.page)?)?);
                }
                let payload = if entry.is_spread {
                    let at = packed::spread(&mut filled, copies, &value, &mut next)?;
                    Cell::Spread(at.cell()).payload(entry.expiry)
                } else {
                    Cell::Packed(packed::pack(&mut filled, copies, &value, &mut next)?).payload(entry.expiry)
                };
                self.refer(copies, leaf, entry.index, &payload)?;
            }
        }
        for (page, left) in &stay {
            packed::set_live(copies.edit(*page)?, *left);
        }
        let is_staying = |page: &PageId| stay.iter().any(|(other, _)| other == page);
        counts.keys().filter(|page| !is_staying(page)).for_each(|page| copies.free(*page));
        Ok(freed - needed)
    }

    /// Replaces the reference of entry `index` of a leaf, which has room for the new one.
    fn refer<E: PageCopies>(&self, copies: &mut E, leaf: PageId, index: usize, payload: &[u8]) -> Attempt<()> {
        if edit::replace(leaf, copies.edit(leaf)?, index, payload)? {
            return Ok(());
        }
        let key = self.open(leaf, &copies.page(leaf)?, Some(0))?.key(index)?;
        let body = copies.edit(leaf)?;
        edit::remove(leaf, body, index)?;
        if !edit::insert(leaf, body, index, &key, payload)? {
            return Err(Error::new(ErrorKind::Bug, "a reference for which there is room did not fit").into());
        }
        Ok(())
    }

    /// Returns the entries of a leaf whose values lie in pages of values that they may share with others.
    fn shared_values<P: Pages>(&self, pages: &P, leaf: PageId) -> Attempt<Vec<Shared>> {
        let body = pages.page(leaf)?;
        let node = self.open(leaf, &body, Some(0))?;
        let mut entries = Vec::new();
        for index in 0..node.count() {
            let (expiry, cell) = node.entry(index)?;
            let (is_spread, parts) = match cell {
                Cell::Packed(at) => (false, vec![at]),
                Cell::Spread(at) if !at.has_own_pages() => (true, at.parts(body.len()).collect()),
                _ => continue,
            };
            entries.push(Shared { index, place: entries.len(), expiry, is_spread, parts });
        }
        Ok(entries)
    }
}

/// Returns the number of pages that hold these values one after the other, and how many more of them their leaf has to name
/// than now, where it has to name more.
fn pages_needed(row: &[Shared], capacity: usize) -> (usize, usize) {
    let (mut pages, mut used, mut more) = (0, capacity, 0);
    for entry in row {
        let mut left = entry.value_bytes();
        if pages == 0 || !packed::has_room(capacity, used, left, entry.is_spread) {
            (pages, used) = (pages + 1, 0);
        }
        let mut named: usize = 1;
        while left > capacity - used {
            left -= capacity - used;
            (pages, used, named) = (pages + 1, 0, named + 1);
        }
        used += left;
        more += named.saturating_sub(entry.parts.len());
    }
    (pages, more)
}
