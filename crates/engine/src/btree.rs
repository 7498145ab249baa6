//! The B+tree: synchronous, restartable, and without any I/O. Reading is here; [`write`] changes trees, [`build`] makes
//! them from sorted input, [`overflow`] keeps long values.
//!
//! Every function looks at pages through `pages.page(id)?` and returns what it found, or the `Wait` it met; nothing is
//! kept between attempts. The root of a tree is one page for as long as the tree exists: when it splits, its content
//! moves down.
//!
//! A scan ends whatever the pages hold: each step down must lead to a node of the same table, exactly one level lower.

pub(crate) mod build;
mod changes;
pub(crate) mod estimate;
mod leaf_copy;
pub(crate) mod leaves;
pub(crate) mod many;
pub(crate) mod merge;
pub(crate) mod merge_values;
pub(crate) mod overflow;
pub(crate) mod packed;
pub(crate) mod sample;
pub(crate) mod write;

#[cfg(test)]
mod tests;

use std::ops::Range;

use self::leaf_copy::{ScanStart, copy_forward, copy_reverse, note_expired, pass_expired};
use self::overflow::LongRef;
use crate::error::Error;
use crate::format::cell::{Cell, OverflowRef, PackedRef, SpreadCell, SpreadRef};
use crate::format::node::Node;
use crate::format::{Moment, PageId, TableId};
use crate::pages::{Attempt, Pages};

/// Bytes of a node that a search may read before it knows the position of the entry: header and slots of most nodes.
pub(crate) const SEARCHED_BYTES: usize = 1536;

/// The identity of a tree: the page of its root, and the table that its nodes belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tree {
    /// The page of the root.
    pub(crate) root: PageId,
    /// The id of the table, which every node of this tree carries.
    pub(crate) table: TableId,
}

/// The resume position of a lookup: the next page to look at. A lookup that missed a page resumes here once the page
/// is in memory, in any view of the same commit, because within one commit no page changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Position {
    /// The lookup continues at this node, whose level is given unless it is the root.
    Node(PageId, Option<u8>),
    /// The lookup continues at the packed value in this page.
    Value(PackedRef),
}

/// A value that was found: copied out, or the reference to its pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FoundValue {
    /// The value itself.
    Inline(Vec<u8>),
    /// A reference to a value to be read from its pages.
    Long(LongRef),
}

impl From<ValueRef<'_>> for FoundValue {
    fn from(held: ValueRef<'_>) -> Self {
        match held {
            ValueRef::Here(value) => Self::Inline(value.to_vec()),
            ValueRef::Overflow(to) => Self::Long(LongRef::Overflow(to)),
            ValueRef::Spread(to) => Self::Long(LongRef::Spread(SpreadRef::from(to))),
        }
    }
}

/// A value lent without a copy: its bytes in a leaf or in a page of values, or the reference to its pages.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ValueRef<'a> {
    /// The bytes of the value.
    Here(&'a [u8]),
    /// A reference to a value to be read from overflow pages.
    Overflow(OverflowRef),
    /// A reference to a value to be read from several pages of values.
    Spread(SpreadCell<'a>),
}

/// Keys from `start` on and below `end`; without `end`, to the end of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRange {
    /// First key of the range.
    pub(crate) start: Vec<u8>,
    /// First key after the range.
    pub(crate) end: Option<Vec<u8>>,
}

impl KeyRange {
    /// Returns whether the range is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.end.as_ref().is_some_and(|end| *end <= self.start)
    }

    /// Returns whether `key` is in the range.
    #[cfg(test)]
    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        key >= self.start.as_slice() && self.end.as_ref().is_none_or(|end| key < end.as_slice())
    }
}

/// The direction of a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// Ascending keys.
    Forward,
    /// Descending keys.
    Reverse,
}

/// Limits on entries and bytes that a scan copies from one leaf at a time. Having reached either limit, it continues to
/// the end of the value page that it has begun. Otherwise that page would be looked up again, count as used twice, and
/// stay in the pool longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Portion {
    /// Most entries to copy.
    pub(crate) entries: usize,
    /// Most bytes of keys and values to copy.
    pub(crate) bytes: usize,
}

impl Portion {
    /// No limit: all entries of the leaf.
    pub(crate) const ALL: Self = Self { entries: usize::MAX, bytes: usize::MAX };
}

/// Entries copied out of one leaf, in the order of the scan.
#[derive(Debug, Default)]
pub(crate) struct Chunk {
    bytes: Vec<u8>,
    entries: Vec<ChunkEntry>,
    /// Leaves that the scan will reach next, nearest first; the last page may be an inner node that leads to further
    /// leaves.
    pub(crate) ahead: Vec<PageId>,
    /// Value pages that hold whole entries of this leaf; filled only when one of them is not in memory.
    pub(crate) own: Vec<PageId>,
    /// Maximum number of pages of `own` that the caller can wait for at once.
    pub(crate) own_max: usize,
    /// Whether the leaf has more entries of the range than were copied.
    pub(crate) is_part: bool,
    /// Whether keys are copied without their values, so that no page of values is looked up.
    pub(crate) keys_only: bool,
    /// The range of keys whose content the entries from this chunk on replace: set by [`Tree::scan_changes`] at the beginning of a
    /// leaf that has changed.
    pub(crate) replaced: Option<KeyRange>,
}

/// At most this many bytes are allocated in advance for the entries of a chunk.
const MEMORY_AT_ONCE: usize = 64 << 10;

#[derive(Debug, Clone, Copy)]
struct ChunkEntry {
    start: usize,
    key_end: usize,
    end: usize,
    place: ValuePlace,
    expiry: Moment,
}

/// What the bytes after the key of a copied entry are.
#[derive(Debug, Clone, Copy)]
enum ValuePlace {
    /// The value.
    Here,
    /// Nothing: the value lies in overflow pages.
    Overflow(OverflowRef),
    /// The ids of the pages over which the value is spread.
    Spread { len_bytes: u32, offset: u16 },
}

impl Chunk {
    /// Returns the number of entries in the chunk.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns entry `index`: its key and its value.
    pub(crate) fn entry(&self, index: usize) -> (&[u8], ValueRef<'_>) {
        let entry = &self.entries[index];
        let bytes = &self.bytes[entry.key_end..entry.end];
        let held = match entry.place {
            ValuePlace::Here => ValueRef::Here(bytes),
            ValuePlace::Overflow(to) => ValueRef::Overflow(to),
            ValuePlace::Spread { len_bytes, offset } => ValueRef::Spread(SpreadCell::new(len_bytes, offset, bytes)),
        };
        (&self.bytes[entry.start..entry.key_end], held)
    }

    /// Returns the moment at which entry `index` expires.
    pub(crate) fn expiry(&self, index: usize) -> Moment {
        self.entries[index].expiry
    }

    /// Lists in `own` the value pages that hold whole entries, after an entry could not be added because such a page is
    /// missing. Returns whether the scan should wait for these pages rather than return the entries it has.
    fn lacks_values<P: Pages>(&mut self, pages: &P, node: &Node<'_>, indexes: impl Iterator<Item = usize>) -> bool {
        for index in indexes {
            if let Ok((expiry, Cell::Packed(at))) = node.entry(index)
                && self.own.last() != Some(&at.page)
                && !pages.has_expired(expiry)
            {
                self.own.push(at.page);
            }
        }
        self.own.len() <= self.own_max
    }

    /// Returns whether the chunk has reached `most` and entry `index`, the next one, lies outside the page that is open
    /// in `values`.
    fn is_full<Page>(&self, most: Portion, node: &Node<'_>, index: usize, values: Option<&(PageId, Page)>) -> bool {
        let enough = self.entries.len() >= most.entries || self.bytes.len() >= most.bytes;
        let goes_on = || {
            let cell = node.cell(index);
            values.is_some_and(|(page, _)| matches!(cell, Ok(Cell::Packed(at)) if at.page == *page))
        };
        enough && !self.entries.is_empty() && !goes_on()
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.entries.clear();
        self.own.clear();
        self.ahead.clear();
        self.is_part = false;
        self.replaced = None;
    }

    /// Allocates in advance about as much memory as these entries of a leaf need.
    fn take_memory(&mut self, node: &Node<'_>, indexes: Range<usize>, most: Portion, page_bytes: usize) {
        let is_outside = matches!(node.cell(indexes.start), Ok(Cell::Packed(_)));
        let beside_leaf = if is_outside { most.bytes.min(MEMORY_AT_ONCE) } else { 0 };
        self.bytes.reserve(beside_leaf + page_bytes);
        self.entries.reserve(indexes.len().min(most.entries).min(MEMORY_AT_ONCE / size_of::<ChunkEntry>()));
    }

    /// Adds an entry of a leaf to the chunk, unless it has expired; after a `Wait` nothing was added. `values` is the page of values of the
    /// entry before. It is kept for further values, because a page looked up only once counts as used once, so that the
    /// pool evicts it early.
    fn push<'a, P: Pages>(
        &mut self,
        pages: &'a P,
        node: &Node<'_>,
        index: usize,
        values: &mut Option<(PageId, P::Page<'a>)>,
    ) -> Attempt<()> {
        let (expiry, cell) = node.entry(index)?;
        if pages.has_expired(expiry) {
            return Ok(());
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(node.prefix());
        let (head, tail) = node.rest(index)?;
        self.bytes.extend_from_slice(head);
        self.bytes.extend_from_slice(tail);
        let key_end = self.bytes.len();
        let place = if self.keys_only { Ok(ValuePlace::Here) } else { self.copy_value(pages, cell, values) };
        match place {
            Ok(place) => self.entries.push(ChunkEntry { start, key_end, end: self.bytes.len(), place, expiry }),
            Err(wait) => {
                self.bytes.truncate(start);
                return Err(wait);
            }
        }
        Ok(())
    }

    /// Copies the value of a cell into the chunk, or, of a long value, the ids of its pages.
    fn copy_value<'a, P: Pages>(
        &mut self,
        pages: &'a P,
        cell: Cell<'_>,
        values: &mut Option<(PageId, P::Page<'a>)>,
    ) -> Attempt<ValuePlace> {
        match cell {
            Cell::Inline(value) => self.bytes.extend_from_slice(value),
            Cell::Overflow(to) => return Ok(ValuePlace::Overflow(to)),
            Cell::Spread(to) => {
                self.bytes.extend_from_slice(to.ids());
                return Ok(ValuePlace::Spread { len_bytes: to.len_bytes, offset: to.offset });
            }
            Cell::Packed(at) => {
                let page = match values.take() {
                    Some((id, page)) if id == at.page => page,
                    _ => pages.page(at.page)?,
                };
                self.bytes.extend_from_slice(packed::value(at, &page)?);
                *values = Some((at.page, page));
            }
        }
        Ok(ValuePlace::Here)
    }
}

impl Tree {
    /// Looks up one key and returns a copy of its value.
    #[inline]
    pub(crate) fn get<P: Pages>(&self, pages: &P, key: &[u8]) -> Attempt<Option<FoundValue>> {
        self.get_with(pages, key, |held| held.map(FoundValue::from))
    }

    /// Looks up one key and calls `look` with its value, which is not copied.
    #[inline]
    pub(crate) fn get_with<P: Pages, R>(
        &self,
        pages: &P,
        key: &[u8],
        look: impl FnOnce(Option<ValueRef<'_>>) -> R,
    ) -> Attempt<R> {
        self.get_from(pages, key, &mut self.start(), look)
    }

    /// Returns the position at which a lookup begins.
    pub(crate) fn start(&self) -> Position {
        Position::Node(self.root, None)
    }

    /// Looks up one key and calls `look` with its value, as [`Tree::get_with`] does, but begins at `position`, which an
    /// earlier attempt for the same key in the same commit has reached. After a `Wait`, `position` is where this
    /// attempt stopped.
    #[inline]
    pub(crate) fn get_from<P: Pages, R>(
        &self,
        pages: &P,
        key: &[u8],
        position: &mut Position,
        look: impl FnOnce(Option<ValueRef<'_>>) -> R,
    ) -> Attempt<R> {
        let value = match *position {
            Position::Value(at) => at,
            Position::Node(mut id, mut level) => loop {
                if level == Some(0) {
                    // Inner nodes are in the CPU caches. The header, the slots and the fences of a leaf are not, and a
                    // search would wait for one after the other.
                    pages.fetch(id, 0..SEARCHED_BYTES);
                }
                let page = match pages.page(id) {
                    Ok(page) => page,
                    Err(wait) => {
                        *position = Position::Node(id, level);
                        return Err(wait);
                    }
                };
                let node = self.open(id, &page, level)?;
                if node.level() > 0 {
                    (id, level) = (node.child(node.child_index(key)?)?, Some(node.level() - 1));
                    continue;
                }
                let Ok(index) = node.search(key)? else { return Ok(look(None)) };
                let (expiry, cell) = node.entry(index)?;
                if pages.has_expired(expiry) {
                    return Ok(look(None));
                }
                match cell {
                    Cell::Inline(value) => return Ok(look(Some(ValueRef::Here(value)))),
                    Cell::Overflow(to) => return Ok(look(Some(ValueRef::Overflow(to)))),
                    Cell::Spread(to) => return Ok(look(Some(ValueRef::Spread(to)))),
                    Cell::Packed(at) => break at,
                }
            },
        };
        match pages.page(value.page) {
            Ok(page) => Ok(look(Some(ValueRef::Here(packed::value(value, &page)?)))),
            Err(wait) => {
                *position = Position::Value(value);
                Err(wait)
            }
        }
    }

    /// Looks up the moment at which an entry expires, or has expired; `None` when there is none. Looks up no page of values.
    pub(crate) fn expiry<P: Pages>(&self, pages: &P, key: &[u8]) -> Attempt<Option<Moment>> {
        let (_, leaf, Ok(index)) = self.find_leaf(pages, key)? else { return Ok(None) };
        let (expiry, _) = Node::open(leaf, &pages.page(leaf)?)?.entry(index)?;
        Ok(Some(expiry))
    }

    /// Copies entries of `range` into `chunk`, from the leaf where a scan in `direction` begins and bounded by `most`,
    /// and names up to `ahead_max` of the leaves that follow. Returns the rest of the range; `None` at its end.
    pub(crate) fn scan<P: Pages>(
        &self,
        pages: &P,
        range: &KeyRange,
        direction: Direction,
        most: Portion,
        ahead_max: usize,
        chunk: &mut Chunk,
    ) -> Attempt<Option<KeyRange>> {
        let pass = |node: &Node<'_>, child| pass_expired(pages, node, child, range, direction);
        self.scan_with(pages, range, direction, ahead_max, chunk, pass, |leaf, node, chunk| {
            let rest = match direction {
                Direction::Forward => copy_forward(pages, node, range, most, chunk),
                Direction::Reverse => copy_reverse(pages, node, range, most, chunk),
            }?;
            if chunk.len() == 0 {
                note_expired(pages, leaf, node)?;
            }
            Ok(rest)
        })
    }

    /// Finds the leaf where a scan begins, and the leaves that follow, and lets `copy` fill the chunk from it. Of a parent of
    /// leaves `pass` says with which child the scan begins, in place of the one that the range leads to.
    #[inline]
    #[expect(
        clippy::too_many_arguments,
        reason = "what both kinds of scan have in common, and two closures for the rest"
    )]
    fn scan_with<P: Pages>(
        &self,
        pages: &P,
        range: &KeyRange,
        direction: Direction,
        ahead_max: usize,
        chunk: &mut Chunk,
        pass: impl Fn(&Node<'_>, usize) -> Attempt<ScanStart>,
        copy: impl FnOnce(PageId, &Node<'_>, &mut Chunk) -> Attempt<Option<KeyRange>>,
    ) -> Attempt<Option<KeyRange>> {
        chunk.clear();
        if range.is_empty() {
            return Ok(None);
        }
        let (mut id, mut level) = (self.root, None);
        let mut cousin = None;
        loop {
            let page = pages.page(id)?;
            let node = self.open(id, &page, level)?;
            if node.level() == 0 {
                return copy(id, &node, chunk);
            }
            let mut index = match direction {
                Direction::Forward => node.child_index(&range.start)?,
                Direction::Reverse => node.child_index_below(range.end.as_deref())?,
            };
            if node.level() == 1 {
                index = match pass(&node, index)? {
                    ScanStart::Child(child) => child,
                    ScanStart::Behind(rest) => return Ok(rest),
                };
                name_children(&node, Some(index), direction, ahead_max, &mut chunk.ahead);
                if let Some(cousin) = cousin
                    && chunk.ahead.len() < ahead_max
                {
                    match pages.page(cousin) {
                        Ok(page) => {
                            let parent = self.open(cousin, &page, Some(1))?;
                            name_children(&parent, None, direction, ahead_max, &mut chunk.ahead);
                        }
                        Err(_) => chunk.ahead.push(cousin),
                    }
                }
            } else {
                let next = match direction {
                    Direction::Forward => Some(index + 1).filter(|at| *at <= node.count()),
                    Direction::Reverse => index.checked_sub(1),
                };
                // The parent's neighbour, when it is one level down: the scan needs it after the last child of the
                // parent.
                cousin = match next {
                    Some(at) if node.level() == 2 => Some(node.child(at)?),
                    _ => None,
                };
            }
            (id, level) = (node.child(index)?, Some(node.level() - 1));
        }
    }

    /// Lists the pages of the values of a leaf that have not expired, in the order of the scan. Returns false when the leaf is
    /// not in memory.
    pub(crate) fn name_values<P: Pages>(
        &self,
        pages: &P,
        leaf: PageId,
        direction: Direction,
        into: &mut Vec<PageId>,
    ) -> bool {
        self.name_values_and_spread(pages, leaf, direction, into, &mut Vec::new())
    }

    /// Lists pages as [`Tree::name_values`] does, and adds to `spread` as well the pages of values that a scan does not copy with its
    /// leaf.
    pub(crate) fn name_values_and_spread<P: Pages>(
        &self,
        pages: &P,
        leaf: PageId,
        direction: Direction,
        into: &mut Vec<PageId>,
        spread: &mut Vec<PageId>,
    ) -> bool {
        let Ok(page) = pages.page(leaf) else { return false };
        // A damaged node is reported by the scan itself, if the scan reaches it.
        let Ok(node) = self.open(leaf, &page, Some(0)) else { return false };
        let is_outside = |index: usize| matches!(node.cell(index), Ok(Cell::Packed(_) | Cell::Spread(_)));
        // A scan that reads for itself alone keeps a page until it has used it, and it never looks at these.
        let has_expired = |expiry| pages.has_expired(expiry);
        if node.count() > 0 && (is_outside(0) || is_outside(node.count() - 1)) {
            match direction {
                Direction::Forward => name_values(&node, 0..node.count(), has_expired, into, spread),
                Direction::Reverse => name_values(&node, (0..node.count()).rev(), has_expired, into, spread),
            }
        }
        true
    }

    /// Adds the pages of values that any entry of a leaf refers to.
    pub(crate) fn name_all_values<P: Pages>(&self, pages: &P, leaf: PageId, into: &mut Vec<PageId>) -> Attempt<()> {
        let page = pages.page(leaf)?;
        let node = self.open(leaf, &page, Some(0))?;
        name_values(&node, 0..node.count(), |_| false, into, &mut Vec::new());
        Ok(())
    }

    /// Opens a node and checks that it belongs to this tree and has the expected level; the root may have any level
    /// (`None`).
    #[inline]
    fn open<'a>(&self, id: PageId, body: &'a [u8], level: Option<u8>) -> Result<Node<'a>, Error> {
        let node = Node::open(id, body)?;
        if node.table() != self.table.0 || level.is_some_and(|level| level != node.level()) {
            return Err(self.foreign_node(&node, level));
        }
        Ok(node)
    }

    #[cold]
    fn foreign_node(&self, node: &Node<'_>, level: Option<u8>) -> Error {
        let (table, at) = (node.table(), node.level());
        match level {
            Some(level) => node.corrupt(format_args!(
                "is a node of table {table} at level {at}; one of table {} at level {level} belongs here",
                self.table
            )),
            None => {
                node.corrupt(format_args!("is a node of table {table}; the root of table {} belongs here", self.table))
            }
        }
    }
}

/// Adds the children of an inner node after the child at `index` to `into`, nearest first, until `into` has `most`
/// pages. Without an `index`, begins with the first child.
fn name_children(node: &Node<'_>, index: Option<usize>, direction: Direction, most: usize, into: &mut Vec<PageId>) {
    let mut name = |at: usize| match node.child(at) {
        Ok(child) if into.len() < most => {
            into.push(child);
            true
        }
        _ => false,
    };
    match direction {
        Direction::Forward => drop((index.map_or(0, |index| index + 1)..=node.count()).all(&mut name)),
        Direction::Reverse => drop((0..index.unwrap_or(node.count() + 1)).rev().all(&mut name)),
    }
}

/// Lists the pages of values to which these cells of a leaf refer, but for expired ones. Consecutive cells with the same page
/// add it once.
fn name_values(
    node: &Node<'_>,
    indexes: impl Iterator<Item = usize>,
    has_expired: impl Fn(Moment) -> bool,
    into: &mut Vec<PageId>,
    spread: &mut Vec<PageId>,
) {
    let mut name = |page: PageId| {
        if into.last() != Some(&page) {
            into.push(page);
        }
    };
    for index in indexes {
        match node.entry(index) {
            Ok((expiry, _)) if has_expired(expiry) => {}
            Ok((_, Cell::Packed(at))) => name(at.page),
            Ok((_, Cell::Spread(to))) => {
                to.pages().for_each(&mut name);
                spread.extend(to.pages());
            }
            _ => {}
        }
    }
}
