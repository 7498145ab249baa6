//! Copies the entries of one leaf, or a portion of them, for a scan, and passes leaves of which all entries have expired.

use std::ops::Range;

use super::{Chunk, Direction, KeyRange, Portion};
use crate::format::node::Node;
use crate::format::{Moment, PageId};
use crate::pages::{Attempt, Pages, Wait};

/// Returns the cells of a leaf with keys in the range, as a range of indexes.
pub(super) fn cells_in(node: &Node<'_>, range: &KeyRange) -> Attempt<Range<usize>> {
    let (Ok(first) | Err(first)) = node.search(&range.start)?;
    let (Ok(past) | Err(past)) = range.end.as_ref().map_or(Ok(Err(node.count())), |end| node.search(end))?;
    Ok(first..past)
}

pub(super) fn copy_forward<P: Pages>(
    pages: &P,
    node: &Node<'_>,
    range: &KeyRange,
    most: Portion,
    chunk: &mut Chunk,
) -> Attempt<Option<KeyRange>> {
    let Range { start: first, end: past } = cells_in(node, range)?;
    if first < past {
        chunk.take_memory(node, first..past, most, pages.page_bytes());
    }
    let mut values = None;
    for index in first..past {
        if !chunk.is_full(most, node, index, values.as_ref()) {
            let Err(wait) = chunk.push(pages, node, index, &mut values) else { continue };
            if chunk.lacks_values(pages, node, first..past) || index == first || !matches!(wait, Wait::Miss(_)) {
                return Err(wait);
            }
        }
        return rest_from(node, index, range, chunk).map(Some);
    }
    rest_after(node, range)
}

/// Returns the part of a range beginning with entry `index` of a leaf, which an entry of the range comes before. The leaf is
/// left before its end.
pub(super) fn rest_from(node: &Node<'_>, index: usize, range: &KeyRange, chunk: &mut Chunk) -> Attempt<KeyRange> {
    let start = node.key(index)?;
    if start <= range.start {
        return Err(Wait::Failed(node.corrupt("its keys do not ascend")));
    }
    chunk.is_part = true;
    Ok(KeyRange { start, end: range.end.clone() })
}

/// Returns the part of a range behind a leaf; `None` when there is none.
pub(super) fn rest_after(node: &Node<'_>, range: &KeyRange) -> Attempt<Option<KeyRange>> {
    let rest = node.upper().map(|upper| KeyRange { start: upper.to_vec(), end: range.end.clone() });
    // With a fence that is not above its starting key the scan would go in circles.
    if rest.as_ref().is_some_and(|rest| rest.start <= range.start) {
        return Err(Wait::Failed(node.corrupt("its upper fence is not above the keys that led here")));
    }
    Ok(rest.filter(|rest| !rest.is_empty()))
}

pub(super) fn copy_reverse<P: Pages>(
    pages: &P,
    node: &Node<'_>,
    range: &KeyRange,
    most: Portion,
    chunk: &mut Chunk,
) -> Attempt<Option<KeyRange>> {
    let Range { start: first, end: past } = cells_in(node, range)?;
    if first < past {
        chunk.take_memory(node, first..past, most, pages.page_bytes());
    }
    let mut values = None;
    for index in (first..past).rev() {
        if !chunk.is_full(most, node, index, values.as_ref()) {
            let Err(wait) = chunk.push(pages, node, index, &mut values) else { continue };
            if chunk.lacks_values(pages, node, (first..past).rev())
                || index + 1 == past
                || !matches!(wait, Wait::Miss(_))
            {
                return Err(wait);
            }
        }
        let end = node.key(index + 1)?;
        if range.end.as_ref().is_some_and(|before| end >= *before) {
            return Err(Wait::Failed(node.corrupt("its keys do not ascend")));
        }
        chunk.is_part = true;
        return Ok(Some(KeyRange { start: range.start.clone(), end: Some(end) }));
    }
    rest_before(node, range)
}

/// Returns the part of a range below a node; `None` when there is none.
fn rest_before(node: &Node<'_>, range: &KeyRange) -> Attempt<Option<KeyRange>> {
    let below = node.lower();
    if range.end.as_ref().is_some_and(|end| below >= end.as_slice()) {
        return Err(Wait::Failed(node.corrupt("its lower fence is not below the keys that led here")));
    }
    Ok(Some(KeyRange { start: range.start.clone(), end: Some(below.to_vec()) }).filter(|rest| !rest.is_empty()))
}

/// The child of a parent of leaves with which a scan begins.
pub(super) enum ScanStart {
    /// This child; those before it, in the order of the scan, hold nothing of the range that the scan shows.
    Child(usize),
    /// No child: the rest of the range.
    Behind(Option<KeyRange>),
}

/// Passes the children of a parent of leaves, from `child` on, that are known to hold expired entries only: a few nanoseconds each, and
/// none of their pages is looked at.
pub(super) fn pass_expired<P: Pages>(
    pages: &P,
    parent: &Node<'_>,
    child: usize,
    range: &KeyRange,
    direction: Direction,
) -> Attempt<ScanStart> {
    let mut at = child;
    while pages.has_only_expired(parent.child(at)?) {
        match direction {
            Direction::Forward if at == parent.count() => return rest_after(parent, range).map(ScanStart::Behind),
            Direction::Forward => at += 1,
            Direction::Reverse if at == 0 => return rest_before(parent, range).map(ScanStart::Behind),
            Direction::Reverse => at -= 1,
        }
    }
    // The leaf behind the end of the range need not be read.
    let is_behind = match direction {
        _ if at == child => false,
        Direction::Forward => range.end.as_ref().is_some_and(|end| parent.key(at - 1).is_ok_and(|lower| lower >= *end)),
        Direction::Reverse => parent.key(at).is_ok_and(|upper| upper <= range.start),
    };
    Ok(if is_behind { ScanStart::Behind(None) } else { ScanStart::Child(at) })
}

/// Notes of a leaf that all its entries have expired, if that is so.
pub(super) fn note_expired<P: Pages>(pages: &P, leaf: PageId, node: &Node<'_>) -> Attempt<()> {
    let mut latest = Moment(0);
    for index in 0..node.count() {
        latest = latest.max(node.entry(index)?.0);
        if !pages.has_expired(latest) {
            return Ok(());
        }
    }
    pages.note_latest_expiry(leaf, latest);
    Ok(())
}
