//! Walks both trees of a mapped file and accounts for every page.

use super::free::Records;
use super::free_tree::FREE;
use super::meta::{META_PAGES, State};
use super::workspace::View;
use super::{TABLE, pages_of};
use crate::error::Error;
use crate::format::cell::Cell;
use crate::format::node::Node;
use crate::format::{PageId, TableId};
use crate::pages::{Attempt, Pages};

/// The report of [`Store::verify`](super::Store::verify).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verification {
    /// Number of entries of the table.
    pub entries: u64,
    /// Number of pages in use, the two meta pages and the pages that list free pages included.
    pub pages_used: u64,
    /// Number of pages that can be used again.
    pub pages_free: u64,
}

/// A node still to be checked, with the level and the bounds that its parent gives it.
struct ExpectedNode {
    page: PageId,
    level: Option<u8>,
    lower: Vec<u8>,
    upper: Option<Vec<u8>>,
}

/// The pages that the verification has encountered.
struct PageSet(Vec<bool>);

impl PageSet {
    fn note(&mut self, id: PageId, what: &str) -> Result<(), Error> {
        match usize::try_from(id.0).ok().and_then(|at| self.0.get_mut(at)) {
            Some(seen) if !*seen => {
                *seen = true;
                Ok(())
            }
            Some(_) => Err(Error::corrupt_page(id, format_args!("is {what}, and something else as well"))),
            None => Err(Error::corrupt_page(id, format_args!("is {what}, but no page of the file"))),
        }
    }
}

/// Verifies a store, as [`super::Store::verify`] documents.
pub(super) fn verify(view: &View<'_>, state: State, records: &Records) -> Attempt<Verification> {
    let pages = usize::try_from(state.page_count.min(view.shape.pages_max)).unwrap_or(usize::MAX);
    let mut seen_pages = PageSet(vec![false; pages]);
    (0..META_PAGES).try_for_each(|id| seen_pages.note(PageId(id), "a meta page"))?;
    let entries = verify_tree(view, state.table, TABLE, &mut seen_pages)?;
    verify_tree(view, state.free, FREE, &mut seen_pages)?;
    let pages_used = seen_pages.0.iter().filter(|seen| **seen).count() as u64;
    let mut pages_free = 0;
    for id in records.values().flatten() {
        seen_pages.note(*id, "free")?;
        pages_free += 1;
    }
    if let Some(lost) = seen_pages.0.iter().position(|seen| !seen) {
        return Err(Error::corrupt_page(PageId(lost as u64), "is neither used nor free").into());
    }
    Ok(Verification { entries, pages_used, pages_free })
}

/// Checks a tree. Returns its number of entries.
fn verify_tree(view: &View<'_>, root: PageId, table: TableId, seen_pages: &mut PageSet) -> Attempt<u64> {
    let mut entries = 0;
    let mut todo = vec![ExpectedNode { page: root, level: None, lower: Vec::new(), upper: None }];
    while let Some(expected) = todo.pop() {
        seen_pages.note(expected.page, "a node")?;
        let body = view.page(expected.page)?;
        let node = Node::open(expected.page, &body)?;
        node.check()?;
        let level_fits = expected.level.is_none_or(|level| level == node.level());
        let fences_fit = node.lower() == expected.lower && node.upper() == expected.upper.as_deref();
        if node.table() != table.0 || !level_fits || !fences_fit {
            return Err(node.corrupt("is not the node that its parent refers to").into());
        }
        if node.level() == 0 {
            entries += node.count() as u64;
            for index in 0..node.count() {
                let pages = match node.cell(index)? {
                    Cell::Overflow(at) => pages_of(view, at)?,
                    // A mapped store has no bulk load, which alone writes pages that values share.
                    Cell::Spread(at) => at.pages().collect(),
                    Cell::Inline(_) | Cell::Packed(_) => Vec::new(),
                };
                pages.into_iter().try_for_each(|page| seen_pages.note(page, "part of a long value"))?;
            }
            continue;
        }
        for index in 0..=node.count() {
            let lower = if index == 0 { expected.lower.clone() } else { node.key(index - 1)? };
            let upper = if index == node.count() { expected.upper.clone() } else { Some(node.key(index)?) };
            todo.push(ExpectedNode { page: node.child(index)?, level: Some(node.level() - 1), lower, upper });
        }
    }
    Ok(entries)
}
