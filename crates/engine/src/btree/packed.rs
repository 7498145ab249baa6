//! Values side by side in separate pages, with a reference in the leaf. A bulk load packs values where that saves
//! space.
//!
//! A value that fits into a leaf is never cut in two, so of a page of 4 KiB three values of 1,000 bytes fill three quarters once header, keys and
//! slots are there as well. Four of them fill a page that holds nothing else, and the keys take little room in leaves
//! that then hold 150 of them. A lookup touches one page more; as the leaves are some 3 % of the data, they stay in memory
//! with the inner nodes, and a lookup out of core still costs one read.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | kind: 4 |
//! | 1 | 1 | zero |
//! | 2 | 2 | values in it that a leaf still refers to |
//! | 4 | 4 | low half of the table's id; zero in databases of earlier versions |
//! | 8 | … | values, one after the other |
//!
//! A longer value, up to 64 KiB, is spread over several pages: it begins where the value before it ends, fills the pages
//! between, and the next value begins where it ends. Its leaf names all its pages, so they are read together, and those
//! that a bulk load wrote lie side by side in the file. A value put later has exclusive pages, and its leaf says so:
//! replacing it then reads none of them.
//!
//! Invariant: each value has exactly one reference, in some leaf, and counts once in each of its pages. Removing a
//! reference decrements the counts of its pages, and the last removal frees the page. A value is overwritten in place
//! (in private copies) by one of the same length, so rewriting does not undo the packing; a value of any other length
//! takes its place in the leaf, or exclusive pages. Compaction merges sparsely used pages ([`super::merge_values`]).

use crate::error::Error;
use crate::format::cell::{PackedRef, SpreadCell, SpreadRef, VALUES_HEADER_BYTES, values_page_bytes};
use crate::format::node::{KIND_PACKED, set_table};
use crate::format::{HEADER_BYTES, PageId, TableId};
use crate::pages::{Attempt, PageCopies, Pages};

/// The first part of a value that is spread over pages has at least this fraction of a page, one of so many: a part that is
/// very short would cost its readers a page for little.
const SHORTEST_PART: usize = 32;

/// Returns whether packing saves space for a value of this size: a page of values holds at least one more of them than
/// a leaf does.
pub(super) fn is_worth_it(page_bytes: usize, key_bytes: usize, value_bytes: usize) -> bool {
    // Number of such values in a leaf, which also has a header, two fences, and for each entry a slot, a length and the
    // key.
    let in_leaf = (page_bytes - HEADER_BYTES - 32 - key_bytes.min(16)) / (value_bytes + 10 + key_bytes);
    value_bytes > page_bytes / 8 && values_page_bytes(page_bytes) / value_bytes > in_leaf
}

/// Turns `body`, which is zeroed, into a page of values of this table without any value.
pub(super) fn init(body: &mut [u8], table: TableId) {
    body[0] = KIND_PACKED;
    set_table(body, table);
}

/// Appends a value to a page of values of which `used` bytes are in use. The caller ensures that the value fits.
pub(super) fn append(page: PageId, body: &mut [u8], used: usize, value: &[u8]) -> Result<PackedRef, Error> {
    let live = live(page, body)?;
    let offset = VALUES_HEADER_BYTES + used;
    body[offset..offset + value.len()].copy_from_slice(value);
    set_live(body, live + 1);
    Ok(PackedRef { page, offset: offset as u16, len_bytes: value.len() as u16 })
}

/// Returns whether a value continues in a value page with `used` bytes in use, or begins the next one.
pub(super) fn has_room(capacity: usize, used: usize, value_bytes: usize, is_spread: bool) -> bool {
    let least = if is_spread { value_bytes.min(capacity / SHORTEST_PART) } else { value_bytes };
    used + least <= capacity
}

/// Appends a value to the page that is being filled (and the number of its bytes in use), or to a new one, which `next`
/// makes, when it has no room.
pub(super) fn pack<E: PageCopies>(
    filled: &mut Option<(PageId, usize)>,
    copies: &mut E,
    value: &[u8],
    next: impl FnOnce(&mut E) -> Attempt<PageId>,
) -> Attempt<PackedRef> {
    let capacity = values_page_bytes(copies.page_bytes());
    let (page, used) = match *filled {
        Some((page, used)) if has_room(capacity, used, value.len(), false) => (page, used),
        _ => (next(copies)?, 0),
    };
    let at = append(page, copies.edit(page)?, used, value)?;
    *filled = Some((page, used + value.len()));
    Ok(at)
}

/// Appends a value to the page that is being filled and to as many new ones, which `next` makes, as it needs.
pub(super) fn spread<E: PageCopies>(
    filled: &mut Option<(PageId, usize)>,
    copies: &mut E,
    value: &[u8],
    mut next: impl FnMut(&mut E) -> Attempt<PageId>,
) -> Attempt<SpreadRef> {
    let capacity = values_page_bytes(copies.page_bytes());
    let (mut page, mut used) = match *filled {
        Some((page, used)) if has_room(capacity, used, value.len(), true) => (page, used),
        _ => (next(copies)?, 0),
    };
    let (first_used, mut pages, mut rest) = (used, Vec::new(), value);
    loop {
        let (now, later) = rest.split_at(rest.len().min(capacity - used));
        append(page, copies.edit(page)?, used, now)?;
        pages.push(page);
        (used, rest) = (used + now.len(), later);
        if rest.is_empty() {
            *filled = Some((page, used));
            return Ok(SpreadRef::new(value.len() as u32, (VALUES_HEADER_BYTES + first_used) as u16, &pages));
        }
        (page, used) = (next(copies)?, 0);
    }
}

/// Returns a packed value, to which a leaf refers by `at`.
///
/// # Errors
/// `Corrupt` when `at` lies outside of the values of the page.
pub(crate) fn value(at: PackedRef, body: &[u8]) -> Result<&[u8], Error> {
    live(at.page, body)?;
    let start = usize::from(at.offset);
    let value = body.get(start..start + usize::from(at.len_bytes)).filter(|_| start >= VALUES_HEADER_BYTES);
    value.ok_or_else(|| Error::corrupt_page(at.page, "a leaf refers to a value outside of it"))
}

/// Returns how many values of this page some leaf still refers to.
///
/// # Errors
/// `Corrupt` when this is not a page of values.
pub(crate) fn live(page: PageId, body: &[u8]) -> Result<u16, Error> {
    match body.first_chunk::<VALUES_HEADER_BYTES>() {
        Some([KIND_PACKED, _, low, high, ..]) => Ok(u16::from_le_bytes([*low, *high])),
        _ => Err(Error::corrupt_page(page, "holds no values where a leaf refers to one")),
    }
}

/// Returns whether this is the body of a page of values that may belong to one value alone.
pub(crate) fn is_own(body: &[u8]) -> bool {
    matches!(live(PageId::default(), body), Ok(1))
}

/// Sets how many values of this page some leaf still refers to.
pub(crate) fn set_live(body: &mut [u8], live: u16) {
    body[2..4].copy_from_slice(&live.to_le_bytes());
}

/// Overwrites a packed value with another value of the same length.
pub(super) fn replace<E: PageCopies>(copies: &mut E, at: PackedRef, with: &[u8]) -> Attempt<()> {
    value(at, &copies.page(at.page)?)?;
    let start = usize::from(at.offset);
    copies.edit(at.page)?[start..start + with.len()].copy_from_slice(with);
    Ok(())
}

/// Overwrites a value that is spread over pages that it shares with another value of the same length. The pages between
/// the first and the last are replaced by new ones, so that they need not be read. Returns the new reference.
pub(super) fn replace_spread<E: PageCopies>(
    copies: &mut E,
    table: TableId,
    at: SpreadCell<'_>,
    with: &[u8],
) -> Attempt<SpreadRef> {
    check_spread(copies, at)?;
    let (last, mut rest, mut pages) = (at.pages().len() - 1, with, Vec::new());
    for (number, part) in at.parts(copies.page_bytes() - HEADER_BYTES).enumerate() {
        let (now, later) = rest.split_at(usize::from(part.len_bytes));
        if number == 0 || number == last {
            replace(copies, part, now)?;
            pages.push(part.page);
        } else {
            let (page, body) = copies.allocate(pages[number - 1])?;
            init(body, table);
            append(page, body, 0, now)?;
            pages.push(page);
            copies.free(part.page);
        }
        rest = later;
    }
    Ok(SpreadRef::new(at.len_bytes, at.offset, &pages))
}

/// Decrements a page's count of live values when a leaf drops its reference to one of them; frees the page when the
/// count reaches zero.
pub(super) fn release<E: PageCopies>(copies: &mut E, page: PageId) -> Attempt<()> {
    let live = live(page, &copies.page(page)?)?;
    if live > 1 {
        set_live(copies.edit(page)?, live - 1);
    } else {
        copies.free(page);
    }
    Ok(())
}

/// Releases the pages of a value when its leaf drops its reference to it. Those that it does not share are freed without
/// being read.
pub(super) fn release_spread<E: PageCopies>(copies: &mut E, at: SpreadCell<'_>) -> Attempt<()> {
    check_spread(copies, at)?;
    let last = at.pages().len() - 1;
    for (number, page) in at.pages().enumerate() {
        if at.has_own_pages() || (number > 0 && number < last) {
            copies.free(page);
        } else {
            release(copies, page)?;
        }
    }
    Ok(())
}

/// Checks that the pages of a value can be released. Looks up the first and the last, if the value shares pages; the
/// others are checked only if they are in memory.
pub(crate) fn check_spread<P: Pages>(pages: &P, at: SpreadCell<'_>) -> Attempt<()> {
    let last = at.pages().len() - 1;
    for (number, page) in at.pages().enumerate() {
        if page == PageId::CATALOG_ROOT || at.pages().take(number).any(|before| before == page) {
            return Err(Error::corrupt_page(page, "is named as part of a value, and cannot be one").into());
        }
        let unshared = at.has_own_pages() || (1..last).contains(&number);
        match pages.page(page) {
            Err(_) if unshared => {}
            looked => {
                let body = looked?;
                live(page, &body)?;
                if unshared && !is_own(&body) {
                    return Err(Error::corrupt_page(page, "holds other values where a leaf refers to all of it").into());
                }
            }
        }
    }
    Ok(())
}
