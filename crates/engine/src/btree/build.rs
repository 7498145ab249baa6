//! A tree from sorted input: nodes are filled one after the other and never touched again, so their blocks lie in key order.
//! Where values lie outside their leaves, the leaves of a portion come before its values: so a scan reads either of them in large
//! pieces.
//!
//! The pages are reachable only once the root is written, so they may be published in as many portions as the pool asks for.

use super::{Tree, packed, write};
use crate::error::{Error, ErrorKind};
use crate::format::cell::{Cell, SpreadRef, decode_child, inline_value_bytes_max, spread_pages_max, values_page_bytes};
use crate::format::node_mut::{Cells, NodeSpec, child_payload, separator};
use crate::format::{HEADER_BYTES, Moment, PageId};
use crate::ids::PageRuns;
use crate::pages::{Attempt, PageCopies};

/// Builds the content of an empty tree. Keys must come in ascending order.
///
/// Invariant of the node being filled at each level: without its last cell, its content fits. So when one more cell
/// turns out not to fit together with the fence it needs, the node ends before its last cell.
#[derive(Debug)]
pub(crate) struct Builder {
    tree: Tree,
    body_bytes: usize,
    /// Longest value that [`Builder::push`] spreads over pages of values.
    spread_bytes_max: usize,
    /// The cells of each level that no written node contains yet, leaves first.
    levels: Vec<OpenNode>,
    /// Pages allocated so far, as ranges of ids: a load allocates mostly consecutive ids.
    pages: PageRuns,
    /// Pages allocated in this portion, in the order of allocation.
    portion: Vec<PageId>,
    /// The page allocated last: the next one is placed next to it.
    last: Option<PageId>,
    /// The page of values being filled and the number of its bytes in use. `None` at the beginning of a portion,
    /// because the last page may have been evicted since.
    values: Option<(PageId, usize)>,
    /// Pages allocated in advance for the next leaves of this portion; the last element is used first.
    reserved_leaves: Vec<PageId>,
    /// Number of leaves of this portion that refer to pages of values.
    leaves_beside: usize,
    /// Expected number of leaves of the next portion that refer to pages of values: the most of any portion so far,
    /// because some portions end early for lack of frames.
    leaves_expected: usize,
}

/// The node being filled at one level of the tree.
#[derive(Debug, Default)]
struct OpenNode {
    cells: Cells,
    lower: Vec<u8>,
    first_child: Option<PageId>,
}

impl Builder {
    /// Creates a builder; `tree` must be empty and stay so until [`Builder::finish`]. Values too long for a leaf
    /// are put into pages that they share up to a length of `spread_bytes_max`; the caller writes longer ones.
    pub(crate) fn new(tree: Tree, page_bytes: usize, spread_bytes_max: usize) -> Self {
        let levels = vec![OpenNode::default()];
        Self {
            tree,
            body_bytes: page_bytes - HEADER_BYTES,
            spread_bytes_max,
            levels,
            pages: PageRuns::default(),
            portion: Vec::new(),
            last: None,
            values: None,
            reserved_leaves: Vec::new(),
            leaves_beside: 0,
            leaves_expected: 0,
        }
    }

    /// Begins a portion with new page copies. After `Full` the builder is unchanged, and the next attempt needs fewer frames.
    pub(crate) fn begin_portion<E: PageCopies>(&mut self, copies: &mut E) -> Attempt<()> {
        self.values = None;
        self.portion.clear();
        let count = std::mem::take(&mut self.leaves_beside).max(self.leaves_expected);
        self.leaves_expected = 0;
        copies.reserve_new(count + self.frames_max())?;
        self.leaves_expected = count;
        for _ in 0..count {
            let near = self.reserved_leaves.last().copied().or(self.last);
            self.reserved_leaves.push(copies.allocate(near.unwrap_or(self.tree.root))?.0);
        }
        self.reserved_leaves.reverse();
        Ok(())
    }

    /// Ends a portion. Call it before the page copies are published.
    pub(crate) fn end_portion<E: PageCopies>(&mut self, copies: &mut E) {
        self.reserved_leaves.drain(..).for_each(|page| copies.free(page));
    }

    /// Returns whether this entry's value goes into the current page of values. A portion should not end before such an
    /// entry, since the rest of the page would be lost.
    pub(crate) fn goes_on_with(&self, key: &[u8], value: &[u8]) -> bool {
        let page_bytes = self.page_bytes();
        self.values.is_some_and(|(_, used)| used + value.len() <= values_page_bytes(page_bytes))
            && (self.spreads(value) || packed::is_worth_it(page_bytes, key.len(), value.len()))
    }

    /// Returns whether [`Builder::push`] spreads a value over pages of values.
    pub(crate) fn spreads(&self, value: &[u8]) -> bool {
        (inline_value_bytes_max(self.page_bytes()) + 1..=self.spread_bytes_max).contains(&value.len())
    }

    fn page_bytes(&self) -> usize {
        self.body_bytes + HEADER_BYTES
    }

    /// Returns the most frames that one `push` or `finish` takes.
    pub(crate) fn frames_max(&self) -> usize {
        2 * self.levels.len() + 3 + spread_pages_max(self.page_bytes(), self.spread_bytes_max)
    }

    /// Returns the number of levels of the tree so far.
    pub(crate) fn height(&self) -> usize {
        self.levels.len()
    }

    /// Returns all pages allocated so far; the root is not among them.
    pub(crate) fn pages(&self) -> impl Iterator<Item = PageId> + '_ {
        self.pages.iter()
    }

    /// Returns the pages allocated since [`Builder::begin_portion`].
    pub(crate) fn portion(&self) -> &[PageId] {
        &self.portion
    }

    fn note(&mut self, page: PageId) {
        self.pages.push(page);
        self.portion.push(page);
        self.last = Some(page);
    }

    /// Adds an entry that does not expire.
    ///
    /// # Errors
    /// As [`Builder::push_until`].
    #[cfg(test)]
    pub(crate) fn push<E: PageCopies>(&mut self, copies: &mut E, key: &[u8], value: Cell<'_>) -> Attempt<()> {
        self.push_until(copies, key, value, Moment::NEVER)
    }

    /// Adds an entry, and the moment at which it expires.
    ///
    /// # Errors
    /// `InvalidCall` when its key is not above the key before it, or is too long. After `Full` nothing has changed.
    pub(crate) fn push_until<E: PageCopies>(
        &mut self,
        copies: &mut E,
        key: &[u8],
        value: Cell<'_>,
        expiry: Moment,
    ) -> Attempt<()> {
        let to_spread = match value {
            Cell::Inline(bytes) if self.spreads(bytes) => Some(bytes),
            _ => None,
        };
        write::check_size(copies.page_bytes(), key, if to_spread.is_some() { Cell::Inline(&[]) } else { value })?;
        if self.levels[0].last_key().is_some_and(|last| key <= last) {
            return Err(Error::new(ErrorKind::InvalidCall, "bulk load: a key is not above the key before it").into());
        }
        copies.reserve_new(self.frames_max())?;
        let spread = to_spread.map(|bytes| self.spread(copies, bytes)).transpose()?;
        let value = match value {
            _ if let Some(spread) = &spread => Cell::Spread(spread.cell()),
            Cell::Inline(bytes) if packed::is_worth_it(copies.page_bytes(), key.len(), bytes.len()) => {
                self.pack(copies, bytes)?
            }
            other => other,
        };
        let open = &self.levels[0];
        if let Some(last) = open.last_key()
            && !self.fits(0, open.cells.len(), Some(separator(last, key)))
        {
            self.cut(copies, 0, open.cells.len() - 1)?;
        }
        self.levels[0].cells.push_with(&[key], |payload| value.encode_with(expiry, payload));
        Ok(())
    }

    /// Writes the remaining cells and the root, which makes the content reachable. After any `Wait` nothing has
    /// changed.
    pub(crate) fn finish<E: PageCopies>(&mut self, copies: &mut E) -> Attempt<()> {
        copies.reserve_new(self.frames_max())?;
        // The root is the only page that may be missing, so it is looked up before the first change.
        copies.edit(self.tree.root)?;
        let mut level = 0;
        loop {
            let count = self.levels[level].cells.len();
            if !self.fits(level, count, None) {
                // An inner node gives up two cells, so that the last one keeps a key.
                self.cut(copies, level, count - if level == 0 { 1 } else { 2 })?;
            }
            if level + 1 == self.levels.len() {
                return self.write(copies, level, self.levels[level].cells.len(), None, Some(self.tree.root)).map(drop);
            }
            let page = self.write(copies, level, self.levels[level].cells.len(), None, None)?;
            let lower = std::mem::take(&mut self.levels[level].lower);
            self.add_child(copies, level + 1, &lower, page)?;
            level += 1;
        }
    }

    /// Appends a value to the page of values being filled, or to a new one when the page is full. The caller has
    /// reserved a frame for a new page.
    fn pack<E: PageCopies>(&mut self, copies: &mut E, value: &[u8]) -> Attempt<Cell<'static>> {
        let mut filled = self.values;
        let at = packed::pack(&mut filled, copies, value, |copies| self.values_page(copies))?;
        self.values = filled;
        Ok(Cell::Packed(at))
    }

    /// Begins a new page of values.
    fn values_page<E: PageCopies>(&mut self, copies: &mut E) -> Attempt<PageId> {
        let (page, body) = copies.allocate(self.last.unwrap_or(self.tree.root))?;
        packed::init(body, self.tree.table);
        self.note(page);
        Ok(page)
    }

    /// Appends a value to the page of values being filled and to as many new ones as it needs. The caller has reserved
    /// frames for them.
    fn spread<E: PageCopies>(&mut self, copies: &mut E, value: &[u8]) -> Attempt<SpreadRef> {
        let mut filled = self.values;
        let at = packed::spread(&mut filled, copies, value, |copies| self.values_page(copies))?;
        self.values = filled;
        Ok(at)
    }

    /// Writes the first `count` cells of `level` as a node; the other cells begin the next node.
    fn cut<E: PageCopies>(&mut self, copies: &mut E, level: usize, count: usize) -> Attempt<()> {
        let open = &self.levels[level];
        let fence = if level == 0 {
            separator(open.cells.key(count - 1), open.cells.key(count)).to_vec()
        } else {
            open.cells.key(count).to_vec()
        };
        let page = self.write(copies, level, count, Some(&fence), None)?;
        let open = &mut self.levels[level];
        let lower = std::mem::replace(&mut open.lower, fence);
        if level == 0 {
            open.cells = open.cells.tail(count);
        } else {
            // The cell at the cut becomes the first child of the next node; its key is the fence.
            open.first_child = decode_child(open.cells.payload(count));
            open.cells = open.cells.tail(count + 1);
        }
        self.add_child(copies, level + 1, &lower, page)
    }

    /// Adds to `level` the reference to a node below it that begins at key `lower`.
    fn add_child<E: PageCopies>(&mut self, copies: &mut E, level: usize, lower: &[u8], page: PageId) -> Attempt<()> {
        if level == self.levels.len() {
            self.levels.push(OpenNode { first_child: Some(page), ..OpenNode::default() });
            return Ok(());
        }
        let count = self.levels[level].cells.len();
        if !self.fits(level, count, Some(lower)) {
            self.cut(copies, level, count - 1)?;
        }
        self.levels[level].cells.push(&[lower], &child_payload(page));
        Ok(())
    }

    fn fits(&self, level: usize, count: usize, upper: Option<&[u8]>) -> bool {
        self.levels[level].cells.fit(0..count, &self.spec(level, upper), self.body_bytes)
    }

    fn write<E: PageCopies>(
        &mut self,
        copies: &mut E,
        level: usize,
        count: usize,
        upper: Option<&[u8]>,
        into: Option<PageId>,
    ) -> Attempt<PageId> {
        // True when this portion has begun a page of values: then nearly all values of this leaf lie in such pages.
        let is_beside = level == 0 && self.values.is_some();
        self.leaves_beside += usize::from(is_beside);
        let reserved = if is_beside && into.is_none() { self.reserved_leaves.pop() } else { None };
        let (id, body) = match into.or(reserved) {
            Some(id) => (id, copies.edit(id)?),
            None => copies.allocate(self.last.unwrap_or(self.tree.root))?,
        };
        self.levels[level].cells.write(0..count, &self.spec(level, upper), id, body)?;
        if into.is_none() {
            self.note(id);
        }
        Ok(id)
    }

    fn spec<'a>(&'a self, level: usize, upper: Option<&'a [u8]>) -> NodeSpec<'a> {
        let OpenNode { lower, first_child, .. } = &self.levels[level];
        NodeSpec { level: level as u8, table: self.tree.table, lower, upper, first_child: *first_child }
    }
}

impl OpenNode {
    fn last_key(&self) -> Option<&[u8]> {
        self.cells.len().checked_sub(1).map(|last| self.cells.key(last))
    }
}
