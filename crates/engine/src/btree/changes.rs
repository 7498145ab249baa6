//! Scans the changes of a table since a commit: the leaves that a later commit has written, and values in pages of which the same is true.
//!
//! Kept true by: a page has in its header the commit that wrote it, and a commit writes
//! 1. the leaf of each key that it puts or deletes, but for a value that it overwrites in place in pages of values; then it
//!    writes the first of these and the last, and key and expiry of the entry are as before;
//! 2. each leaf whose range it changes, in splits and merges: the fences stand in the leaf itself.
//!
//! So each change of a commit lies in a leaf, or a page of values, that is not older. Pages of long values with an
//! index, and those that a value has to itself, never change: their leaf does, and they are not looked at. Recovery
//! writes many commits as the last of them, a bulk load all pages as one commit: pages are never older than their content.

use super::leaf_copy::{ScanStart, cells_in, copy_forward, rest_after, rest_from};
use super::{Chunk, Direction, KeyRange, Portion, Tree};
use crate::format::cell::Cell;
use crate::format::node::Node;
use crate::format::{CommitSeq, PageId};
use crate::pages::{Attempt, Versions, Wait};

impl Tree {
    /// Copies entries of `range` into `chunk` as [`Tree::scan`] does forwards, but only those that may have changed after commit `since`:
    /// all of a leaf that has changed, with the range of keys that they replace in [`Chunk::replaced`], and of another leaf
    /// those whose values lie in pages that have changed. The range begins at the beginning of a leaf, or at the end of the portion before.
    pub(crate) fn scan_changes<P: Versions>(
        &self,
        pages: &P,
        range: &KeyRange,
        since: CommitSeq,
        most: Portion,
        ahead_max: usize,
        chunk: &mut Chunk,
    ) -> Attempt<Option<KeyRange>> {
        // Every leaf may have changed, also one of which all entries have expired.
        let pass = |_: &Node<'_>, child| Ok(ScanStart::Child(child));
        self.scan_with(pages, range, Direction::Forward, ahead_max, chunk, pass, |leaf, node, chunk| {
            if pages.written_in(leaf)? <= since {
                return copy_changed_values(pages, node, range, since, most, chunk);
            }
            let rest = copy_forward(pages, node, range, most, chunk)?;
            // A portion that is not the first begins with a key, which is above the fence.
            if range.start.as_slice() <= node.lower() {
                chunk.replaced = Some(KeyRange { start: range.start.clone(), end: node.upper().map(<[u8]>::to_vec) });
            }
            Ok(rest)
        })
    }

    /// Lists the pages of values that [`Tree::scan_changes`] will look at for a leaf, in order. Returns false when the leaf is not in
    /// memory.
    pub(crate) fn name_changed_values<P: Versions>(
        &self,
        pages: &P,
        leaf: PageId,
        since: CommitSeq,
        into: &mut Vec<PageId>,
    ) -> bool {
        match pages.written_in(leaf) {
            Ok(commit) if commit > since => self.name_values(pages, leaf, Direction::Forward, into),
            Ok(_) => {
                let Ok(page) = pages.page(leaf) else { return false };
                // A damaged node is reported by the scan itself, if the scan reaches it.
                if let Ok(node) = self.open(leaf, &page, Some(0)) {
                    name_shared(&node, 0..node.count(), into);
                }
                true
            }
            Err(_) => false,
        }
    }
}

/// Copies the entries of a leaf, which has not changed, whose values lie in pages that have changed.
fn copy_changed_values<P: Versions>(
    pages: &P,
    node: &Node<'_>,
    range: &KeyRange,
    since: CommitSeq,
    most: Portion,
    chunk: &mut Chunk,
) -> Attempt<Option<KeyRange>> {
    let cells = cells_in(node, range)?;
    let (mut values, mut last) = (None, None);
    for index in cells.clone() {
        if !chunk.is_full(most, node, index, values.as_ref()) {
            let copied = match is_changed(pages, node.cell(index)?, since, &mut last) {
                Ok(true) => chunk.push(pages, node, index, &mut values),
                looked => looked.map(drop),
            };
            let Err(wait) = copied else { continue };
            // Entries looked at stay copied: only a portion that begins here waits.
            if index == cells.start || !matches!(wait, Wait::Miss(_)) {
                name_shared(node, cells, &mut chunk.own);
                return Err(wait);
            }
        }
        return rest_from(node, index, range, chunk).map(Some);
    }
    rest_after(node, range)
}

/// Returns the page of a value that a commit has written if it has changed the value and not its leaf.
fn shared_page(cell: Cell<'_>) -> Option<PageId> {
    match cell {
        Cell::Packed(at) => Some(at.page),
        // All pages that it shares are written together.
        Cell::Spread(to) => to.shared_pages()[0],
        Cell::Inline(_) | Cell::Overflow(_) => None,
    }
}

/// Returns whether a value may have changed although its leaf has not. `last` is the page looked at last.
fn is_changed<P: Versions>(
    pages: &P,
    cell: Cell<'_>,
    since: CommitSeq,
    last: &mut Option<(PageId, bool)>,
) -> Attempt<bool> {
    let Some(page) = shared_page(cell) else { return Ok(false) };
    let changed = match *last {
        Some((looked_at, changed)) if looked_at == page => changed,
        _ => pages.written_in(page)? > since,
    };
    *last = Some((page, changed));
    Ok(changed)
}

/// Lists the pages of these values that a commit writes if it changes one without its leaf. Consecutive entries with the same
/// page add it once.
fn name_shared(node: &Node<'_>, indexes: impl Iterator<Item = usize>, into: &mut Vec<PageId>) {
    for page in indexes.filter_map(|index| shared_page(node.cell(index).ok()?)) {
        if into.last() != Some(&page) {
            into.push(page);
        }
    }
}
