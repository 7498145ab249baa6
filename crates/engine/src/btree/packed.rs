//! Values side by side in pages of their own, with a reference in the leaf. A bulk load packs values where that saves
//! space.
//!
//! Values are never cut in two, so of a page of 4 KiB three values of 1,000 bytes fill three quarters once header, keys and
//! slots are there as well. Four of them fill a page that holds nothing else, and the keys take little room in leaves
//! that then hold 150 of them. A lookup touches one page more; as the leaves are some 3 % of the data, they stay in memory
//! with the inner nodes, and a lookup out of core still costs one read.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | kind: 4 |
//! | 1 | 1 | zero |
//! | 2 | 2 | values in it that a leaf still refers to |
//! | 4 | 4 | zero |
//! | 8 | … | values, one after the other |
//!
//! Invariant: each value has exactly one reference, in some leaf. Removing a reference decrements the count of its
//! page, and the last removal frees the page. A value is overwritten in place (in a private copy) by one of the same
//! length, so rewriting does not undo the packing; a value of any other length takes its place in the leaf.

use crate::error::Error;
use crate::format::node::{KIND_PACKED, PackedRef};
use crate::format::{HEADER_BYTES, PageId};
use crate::pages::{Attempt, PageCopies};

const PACKED_HEADER_BYTES: usize = 8;

/// Returns the number of bytes of packed values for which one page has space.
pub(super) const fn capacity(page_bytes: usize) -> usize {
    page_bytes - HEADER_BYTES - PACKED_HEADER_BYTES
}

/// Returns whether packing saves space for a value of this size: a page of values holds at least one more of them than
/// a leaf does.
pub(super) fn is_worth_it(page_bytes: usize, key_bytes: usize, value_bytes: usize) -> bool {
    // Number of such values in a leaf, which also has a header, two fences, and for each entry a slot, a length and the
    // key.
    let in_leaf = (page_bytes - HEADER_BYTES - 32 - key_bytes.min(16)) / (value_bytes + 10 + key_bytes);
    value_bytes > page_bytes / 8 && capacity(page_bytes) / value_bytes > in_leaf
}

/// Turns `body`, which is zeroed, into a page of values without any value.
pub(super) fn init(body: &mut [u8]) {
    body[0] = KIND_PACKED;
}

/// Appends a value to a page of values of which `used` bytes are in use. The caller ensures that the value fits.
pub(super) fn append(page: PageId, body: &mut [u8], used: usize, value: &[u8]) -> Result<PackedRef, Error> {
    let live = live(page, body)?;
    let offset = PACKED_HEADER_BYTES + used;
    body[offset..offset + value.len()].copy_from_slice(value);
    set_live(body, live + 1);
    Ok(PackedRef { page, offset: offset as u16, len_bytes: value.len() as u16 })
}

/// Returns a packed value, to which a leaf refers by `at`.
///
/// # Errors
/// `Corrupt` when `at` lies outside of the values of the page.
pub(crate) fn value(at: PackedRef, body: &[u8]) -> Result<&[u8], Error> {
    live(at.page, body)?;
    let start = usize::from(at.offset);
    let value = body.get(start..start + usize::from(at.len_bytes)).filter(|_| start >= PACKED_HEADER_BYTES);
    value.ok_or_else(|| Error::corrupt_page(at.page, "a leaf refers to a value outside of it"))
}

/// Returns how many values of this page some leaf still refers to.
///
/// # Errors
/// `Corrupt` when this is not a page of values.
pub(crate) fn live(page: PageId, body: &[u8]) -> Result<u16, Error> {
    match body.first_chunk::<PACKED_HEADER_BYTES>() {
        Some([KIND_PACKED, _, low, high, ..]) => Ok(u16::from_le_bytes([*low, *high])),
        _ => Err(Error::corrupt_page(page, "holds no values where a leaf refers to one")),
    }
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

/// Decrements a page's count of live values when a leaf drops its reference to one of them; frees the page when the
/// count reaches zero.
pub(super) fn release<E: PageCopies>(copies: &mut E, at: PackedRef) -> Attempt<()> {
    let live = live(at.page, &copies.page(at.page)?)?;
    if live > 1 {
        set_live(copies.edit(at.page)?, live - 1);
    } else {
        copies.free(at.page);
    }
    Ok(())
}
