//! Changing a tree through private copies: put, delete, split and merge.
//!
//! An edit may end in a `Wait` after some pages were changed already. This is safe, because the changes are private and
//! the caller that gets the `Wait` drops them all (see `pages`). So the code reads as if nothing ever waited.
//!
//! A split spreads the cells over as few nodes as hold them, two nearly always; three when a long cell lands between
//! others. It always succeeds: a node has room for two fences and any one cell of the longest kind (two cells, for
//! inner nodes).

use std::ops::Range;

use super::Tree;
use crate::error::{Error, ErrorKind};
use crate::format::cell::{Cell, OverflowRef, PackedRef, SpreadRef, decode_child, inline_value_bytes_max, inline_word};
use crate::format::node::{LEVEL_MAX, Node, key_bytes_max};
use crate::format::node_mut::{self as edit, Cells, NodeSpec, child_payload, separator};
use crate::format::{HEADER_BYTES, Moment, PageId};
use crate::pages::{Attempt, PageCopies, Pages};

use super::packed;

/// The value that a change replaced. A short value is not copied out, because no caller needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplacedValue {
    /// The value lay in its leaf or in pages of values.
    Short,
    /// The value lay in overflow pages, which the caller must free.
    Long(OverflowRef),
}

impl From<Cell<'_>> for ReplacedValue {
    fn from(cell: Cell<'_>) -> Self {
        match cell {
            Cell::Inline(_) | Cell::Packed(_) | Cell::Spread(_) => Self::Short,
            Cell::Overflow(to) => Self::Long(to),
        }
    }
}

/// One step of the path from the root to a leaf: an inner node and the index of the child that was followed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    pub(super) page: PageId,
    pub(super) child: usize,
}

impl Tree {
    /// Creates an empty tree: allocates its root, near the page `near`.
    pub(crate) fn create<E: PageCopies>(copies: &mut E, table: crate::format::TableId, near: PageId) -> Attempt<Self> {
        let (root, body) = copies.allocate(near)?;
        edit::init(body, &NodeSpec { level: 0, table, lower: &[], upper: None, first_child: None });
        Ok(Self { root, table })
    }

    /// Makes the tree empty. The caller must free the pages below the root.
    pub(crate) fn empty<E: PageCopies>(&self, copies: &mut E) -> Attempt<()> {
        let spec = NodeSpec { level: 0, table: self.table, lower: &[], upper: None, first_child: None };
        edit::init(copies.edit(self.root)?, &spec);
        Ok(())
    }

    /// Sets the value of `key`, which does not expire. Returns the replaced value.
    pub(crate) fn put<E: PageCopies>(
        &self,
        copies: &mut E,
        key: &[u8],
        value: Cell<'_>,
    ) -> Attempt<Option<ReplacedValue>> {
        self.put_until(copies, key, value, Moment::NEVER)
    }

    /// Sets the value of `key`, and the moment at which it expires. Returns the replaced value.
    pub(crate) fn put_until<E: PageCopies>(
        &self,
        copies: &mut E,
        key: &[u8],
        value: Cell<'_>,
        expiry: Moment,
    ) -> Attempt<Option<ReplacedValue>> {
        self.put_into(copies, None, key, value, expiry)
    }

    /// As [`Tree::put_until`]. `leaf` is a page of this tree in which the key may belong: then it is found without the nodes
    /// above.
    pub(crate) fn put_into<E: PageCopies>(
        &self,
        copies: &mut E,
        leaf: Option<PageId>,
        key: &[u8],
        value: Cell<'_>,
        expiry: Moment,
    ) -> Attempt<Option<ReplacedValue>> {
        check_size(copies.page_bytes(), key, value)?;
        let (path, leaf, at) = match leaf {
            Some(leaf) => match self.look_into(copies, leaf, key)? {
                Some(at) => (None, leaf, at),
                None => self.find_leaf(copies, key).map(|(path, leaf, at)| (Some(path), leaf, at))?,
            },
            None => self.find_leaf(copies, key).map(|(path, leaf, at)| (Some(path), leaf, at))?,
        };
        let payload = || value.payload(expiry);
        let (index, old) = match at {
            Err(index) => (index, None),
            Ok(index) => {
                let ReplacedEntry { outside, value: old, expiry: before } = replaced(copies, leaf, index)?;
                match (&outside, value) {
                    (Outside::Packed(at), Cell::Inline(value))
                        if value.len() == usize::from(at.len_bytes) && expiry == before =>
                    {
                        packed::replace(copies, *at, value)?;
                        return Ok(Some(old));
                    }
                    _ => outside.release(copies)?,
                }
                let body = copies.edit(leaf)?;
                if edit::replace(leaf, body, index, &payload())? {
                    return Ok(Some(old));
                }
                edit::remove(leaf, body, index)?;
                (index, Some(old))
            }
        };
        let body = copies.edit(leaf)?;
        let is_inserted = match value {
            // As the payload of most entries is.
            Cell::Inline(value) if expiry == Moment::NEVER => {
                let word = inline_word(value);
                edit::insert_parts(leaf, body, index, key, [&word, value])?
            }
            _ => edit::insert(leaf, body, index, key, &payload())?,
        };
        if !is_inserted {
            let mut path = match path {
                Some(path) => path,
                None => self.find_leaf(copies, key)?.0,
            };
            let mut cells = Cells::of(&Node::open(leaf, &copies.page(leaf)?)?)?;
            cells.insert(index, key, &payload());
            self.split(copies, &mut path, leaf, &cells, index + 1 == cells.len())?;
        }
        Ok(old)
    }

    /// Overwrites the value of `key` if it is as long as `value`, does not expire, and is spread over pages that it shares
    /// with others: so rewriting values does not make them take more space. Returns whether it did.
    pub(crate) fn overwrite<E: PageCopies>(&self, copies: &mut E, key: &[u8], value: &[u8]) -> Attempt<bool> {
        let (_, leaf, Ok(index)) = self.find_leaf(copies, key)? else { return Ok(false) };
        let old = replaced(copies, leaf, index)?;
        let Outside::Spread(at) = old.outside else { return Ok(false) };
        if at.cell().has_own_pages() || at.cell().len_bytes as usize != value.len() || old.expiry != Moment::NEVER {
            return Ok(false);
        }
        let new = packed::replace_spread(copies, self.table, at.cell(), value)?;
        if new != at {
            let payload = Cell::Spread(new.cell()).payload(Moment::NEVER);
            if !edit::replace(leaf, copies.edit(leaf)?, index, &payload)? {
                return Err(Error::new(ErrorKind::Bug, "a reference of the same length did not fit").into());
            }
        }
        Ok(true)
    }

    /// Removes `key`. Returns the removed value, if the key was present.
    pub(crate) fn delete<E: PageCopies>(&self, copies: &mut E, key: &[u8]) -> Attempt<Option<ReplacedValue>> {
        self.delete_beside(copies, key, &[])
    }

    /// Removes `key`, and merges no node with a page in `unreadable`. Returns the removed value, if the key was
    /// present.
    pub(crate) fn delete_beside<E: PageCopies>(
        &self,
        copies: &mut E,
        key: &[u8],
        unreadable: &[PageId],
    ) -> Attempt<Option<ReplacedValue>> {
        let (mut path, leaf, at) = self.find_leaf(copies, key)?;
        let Ok(index) = at else { return Ok(None) };
        let ReplacedEntry { outside, value: old, .. } = replaced(copies, leaf, index)?;
        outside.release(copies)?;
        edit::remove(leaf, copies.edit(leaf)?, index)?;
        self.merge_up(copies, &mut path, leaf, unreadable)?;
        Ok(Some(old))
    }

    /// Returns the place of `key` in a page of this tree; `None` when the page is no leaf, or not the one in which the key
    /// belongs.
    fn look_into<P: Pages>(
        &self,
        pages: &P,
        page: PageId,
        key: &[u8],
    ) -> Attempt<Option<std::result::Result<usize, usize>>> {
        let body = pages.page(page)?;
        let Ok(node) = self.open(page, &body, Some(0)) else { return Ok(None) };
        Ok(if node.covers(key) { Some(node.search(key)?) } else { None })
    }

    /// Returns the path from the root to the leaf in which `key` belongs, that leaf, and the place of the key in it.
    pub(super) fn find_leaf<P: Pages>(
        &self,
        pages: &P,
        key: &[u8],
    ) -> Attempt<(Vec<Step>, PageId, std::result::Result<usize, usize>)> {
        let mut path = Vec::new();
        let (mut id, mut level) = (self.root, None);
        loop {
            let page = pages.page(id)?;
            let node = self.open(id, &page, level)?;
            if node.level() == 0 {
                return Ok((path, id, node.search(key)?));
            }
            let child = node.child_index(key)?;
            path.push(Step { page: id, child });
            (id, level) = (node.child(child)?, Some(node.level() - 1));
        }
    }

    /// Replaces the content of `page` by `cells`, spread over several nodes, and updates the parent. `append` means
    /// that the last cell is new: then ascending keys leave full nodes behind.
    fn split<E: PageCopies>(
        &self,
        copies: &mut E,
        path: &mut Vec<Step>,
        page: PageId,
        cells: &Cells,
        append: bool,
    ) -> Attempt<()> {
        let old = copies.page(page)?.to_vec();
        let node = Node::open(page, &old)?;
        let (level, lower, upper) = (node.level(), node.lower(), node.upper());
        let pieces = partition(cells, &node, append && upper.is_none(), old.len())?;
        let fences: Vec<Vec<u8>> = pieces.windows(2).map(|pair| fence(cells, level, &pair[0])).collect();

        let is_root = path.is_empty();
        let mut children: Vec<PageId> = Vec::with_capacity(pieces.len());
        for (number, piece) in pieces.iter().enumerate() {
            let first_child = match (level, number) {
                (0, _) => None,
                (_, 0) => Some(node.child(0)?),
                _ => decode_child(cells.payload(piece.start - 1)),
            };
            let spec = NodeSpec {
                level,
                table: self.table,
                lower: if number == 0 { lower } else { &fences[number - 1] },
                upper: fences.get(number).map(Vec::as_slice).or(upper),
                first_child,
            };
            let near = children.last().copied().unwrap_or(page);
            let (id, body) =
                if number == 0 && !is_root { (page, copies.edit(page)?) } else { copies.allocate(near)? };
            cells.write(piece.clone(), &spec, id, body)?;
            children.push(id);
        }

        if is_root {
            if level >= LEVEL_MAX {
                return Err(node.corrupt("the tree is higher than any can be").into());
            }
            let mut above = Cells::default();
            for (fence, child) in fences.iter().zip(&children[1..]) {
                above.push(&[fence], &child_payload(*child));
            }
            let spec = NodeSpec { level: level + 1, table: self.table, lower, upper, first_child: Some(children[0]) };
            above.write(0..above.len(), &spec, page, copies.edit(page)?)?;
            return Ok(());
        }
        let parent = path.pop().expect("not the root, so there is a step above");
        for (number, (fence, child)) in fences.iter().zip(&children[1..]).enumerate() {
            let (index, payload) = (parent.child + number, child_payload(*child));
            if edit::insert(parent.page, copies.edit(parent.page)?, index, fence, &payload)? {
                continue;
            }
            let mut cells = Cells::of(&Node::open(parent.page, &copies.page(parent.page)?)?)?;
            for (offset, (fence, child)) in fences.iter().zip(&children[1..]).enumerate().skip(number) {
                cells.insert(parent.child + offset, fence, &child_payload(*child));
            }
            let append = parent.child + fences.len() == cells.len();
            return self.split(copies, path, parent.page, &cells, append);
        }
        Ok(())
    }

    /// Merges `page` with a neighbour when both fit well into one node, and continues with the parent, which lost a key
    /// by that.
    pub(super) fn merge_up<E: PageCopies>(
        &self,
        copies: &mut E,
        path: &mut Vec<Step>,
        page: PageId,
        unreadable: &[PageId],
    ) -> Attempt<()> {
        let body_bytes = copies.page_bytes() - HEADER_BYTES;
        let mut page = page;
        while let Some(step) = path.pop() {
            if Node::open(page, &copies.page(page)?)?.used_bytes() * 3 > body_bytes {
                return Ok(());
            }
            let key_count = Node::open(step.page, &copies.page(step.page)?)?.count();
            let right_of = (step.child < key_count).then_some(step.child);
            let left_of = step.child.checked_sub(1);
            let mut merged = false;
            for left in [right_of, left_of].into_iter().flatten() {
                merged = self.merge(copies, step.page, left, unreadable)?;
                if merged {
                    break;
                }
            }
            if !merged {
                return Ok(());
            }
            page = step.page;
        }
        self.lower_root(copies)
    }

    /// Merges children `left` and `left + 1` of `parent` when at least a quarter of the joint node would be free.
    fn merge<E: PageCopies>(
        &self,
        copies: &mut E,
        parent: PageId,
        left: usize,
        unreadable: &[PageId],
    ) -> Attempt<bool> {
        let parent_body = copies.page(parent)?;
        let parent_node = Node::open(parent, &parent_body)?;
        let (left_id, right_id) = (parent_node.child(left)?, parent_node.child(left + 1)?);
        let level = Some(parent_node.level() - 1);
        let fence = parent_node.key(left)?;
        drop(parent_body);
        if unreadable.iter().any(|page| [left_id, right_id].contains(page)) {
            return Ok(false);
        }

        let (left_body, right_body) = (copies.page(left_id)?, copies.page(right_id)?);
        let (left_node, right_node) =
            (self.open(left_id, &left_body, level)?, self.open(right_id, &right_body, level)?);
        let mut cells = Cells::of(&left_node)?;
        if left_node.level() > 0 {
            cells.push(&[&fence], &child_payload(right_node.child(0)?));
        }
        cells.append(&right_node)?;
        let (lower, upper) = (left_node.lower().to_vec(), right_node.upper().map(<[u8]>::to_vec));
        let first_child = if left_node.level() > 0 { Some(left_node.child(0)?) } else { None };
        let (body_bytes, level) = (left_body.len(), left_node.level());
        drop((left_body, right_body));

        let spec = NodeSpec { level, table: self.table, lower: &lower, upper: upper.as_deref(), first_child };
        if !cells.fit(0..cells.len(), &spec, body_bytes / 4 * 3) {
            return Ok(false);
        }
        cells.write(0..cells.len(), &spec, left_id, copies.edit(left_id)?)?;
        copies.free(right_id);
        edit::remove(parent, copies.edit(parent)?, left)?;
        Ok(true)
    }

    /// While the root has a single child, that child's content becomes the root.
    fn lower_root<E: PageCopies>(&self, copies: &mut E) -> Attempt<()> {
        loop {
            let root = copies.page(self.root)?;
            let node = self.open(self.root, &root, None)?;
            if node.level() == 0 || node.count() > 0 {
                return Ok(());
            }
            let (child, level) = (node.child(0)?, Some(node.level() - 1));
            drop(root);
            let body = copies.page(child)?.to_vec();
            self.open(child, &body, level)?;
            copies.edit(self.root)?.copy_from_slice(&body);
            copies.free(child);
        }
    }
}

/// The pages of values that a leaf's cell refers to, in which the value counts.
#[derive(Debug)]
enum Outside {
    None,
    Packed(PackedRef),
    Spread(SpreadRef),
}

impl Outside {
    /// Gives up the value's share of its pages.
    fn release<E: PageCopies>(&self, copies: &mut E) -> Attempt<()> {
        match self {
            Self::None => Ok(()),
            Self::Packed(at) => packed::release(copies, at.page),
            Self::Spread(at) => packed::release_spread(copies, at.cell()),
        }
    }
}

/// An entry of a leaf that a change is about to replace.
struct ReplacedEntry {
    outside: Outside,
    /// The value in the form in which the change reports it.
    value: ReplacedValue,
    expiry: Moment,
}

fn replaced<E: PageCopies>(copies: &E, leaf: PageId, index: usize) -> Attempt<ReplacedEntry> {
    let page = copies.page(leaf)?;
    let (expiry, cell) = Node::open(leaf, &page)?.entry(index)?;
    let outside = match cell {
        Cell::Inline(_) | Cell::Overflow(_) => Outside::None,
        Cell::Packed(at) => Outside::Packed(at),
        Cell::Spread(at) => Outside::Spread(at.into()),
    };
    Ok(ReplacedEntry { outside, value: cell.into(), expiry })
}

/// Refuses keys too long for the page size.
///
/// # Errors
/// `InvalidCall`, which names the longest allowed length.
pub(crate) fn check_key(page_bytes: usize, key: &[u8]) -> Result<(), Error> {
    let key_max = key_bytes_max(page_bytes);
    if key.len() > key_max {
        let message = format!("a key of {} bytes; {key_max} is the most at this page size", key.len());
        return Err(Error::new(ErrorKind::InvalidCall, message));
    }
    Ok(())
}

/// Refuses a key or a value that no node could hold.
pub(super) fn check_size(page_bytes: usize, key: &[u8], value: Cell<'_>) -> Result<(), Error> {
    check_key(page_bytes, key)?;
    let value_max = inline_value_bytes_max(page_bytes);
    match value {
        Cell::Inline(value) if value.len() > value_max => {
            Err(Error::new(ErrorKind::Bug, format!("{} bytes were to be kept in a leaf", value.len())))
        }
        _ => Ok(()),
    }
}

/// Returns the fence between `left`, a run of cells of a node being split, and the next run.
fn fence(cells: &Cells, level: u8, left: &Range<usize>) -> Vec<u8> {
    if level == 0 {
        separator(cells.key(left.end - 1), cells.key(left.end)).to_vec()
    } else {
        // The key between two runs of an inner node moves up to the parent; its child is the first child of the right
        // run.
        cells.key(left.end).to_vec()
    }
}

/// Cuts the cells of a node into as few runs as fit into nodes of its level. In an inner node one cell is left out
/// between two runs: it moves up to the parent.
fn partition(cells: &Cells, node: &Node<'_>, append: bool, body_bytes: usize) -> Attempt<Vec<Range<usize>>> {
    let (count, level) = (cells.len(), node.level());
    let gap = usize::from(level > 0);
    let fits = |piece: &Range<usize>| {
        let lower = match piece.start.checked_sub(1 + gap) {
            Some(before) => fence(cells, level, &(0..before + 1)),
            None => node.lower().to_vec(),
        };
        let upper = if piece.end < count { Some(fence(cells, level, piece)) } else { node.upper().map(<[u8]>::to_vec) };
        let spec =
            NodeSpec { level, table: Default::default(), lower: &lower, upper: upper.as_deref(), first_child: None };
        cells.fit(piece.clone(), &spec, body_bytes)
    };
    let last = count.saturating_sub(1 + gap);
    let middle = if append { last } else { cells.middle().clamp(1, last.max(1)) };
    for distance in 0..count {
        for end in [middle.checked_sub(distance), Some(middle + distance)].into_iter().flatten() {
            let halves = [0..end, end + gap..count];
            if end >= 1 && end <= last && halves.iter().all(fits) {
                return Ok(halves.to_vec());
            }
        }
    }
    let mut pieces = Vec::new();
    let mut start = 0;
    while start < count {
        // In an inner node a run may not end where no cell is left after the one that moves up.
        let mut ends = (start + 1..=count).rev().filter(|end| *end == count || end + gap < count);
        let Some(end) = ends.find(|end| fits(&(start..*end))) else {
            return Err(node.corrupt("it holds a cell that fits into no node").into());
        };
        pieces.push(start..end);
        start = if end == count { count } else { end + gap };
    }
    Ok(pieces)
}
