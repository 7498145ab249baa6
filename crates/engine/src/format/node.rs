//! The node of a B+tree: a slotted page body. This file reads nodes; [`super::node_mut`] writes them.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | kind: 1 node, 2 overflow index, 3 overflow data, 4 values packed together |
//! | 1 | 1 | level: 0 for a leaf |
//! | 2 | 2 | number of slots |
//! | 4 | 2 | length of the prefix that all keys of the node share |
//! | 6 | 2 | length of the lower fence |
//! | 8 | 2 | length of the upper fence |
//! | 10 | 2 | flags: bit 0 set when there is an upper fence (the last node of a level has none) |
//! | 12 | 2 | start of the heap: cells lie between it and the fences |
//! | 14 | 2 | bytes of the heap that no slot refers to |
//! | 16 | 8 | table the node belongs to |
//! | 24 | 6 | inner nodes: the child left of the first key |
//! | 30 | 2 | zero |
//! | 32 | 8 each | slots, in key order |
//!
//! The fences end the body: the lower one last, the upper one before it. All keys `k` of the node and of the subtree
//! below it satisfy `lower <= k < upper`; the prefix is the beginning that both fences share, stored once (as part of
//! the fences) and cut from every key.
//!
//! A slot is `head 4 bytes, offset u16, rest_len u16`: the first four bytes of the rest of the key, padded with zeroes,
//! so that most steps of a binary search touch only the slots. At `offset` lies the cell: the bytes of the key after
//! the head, then
//!
//! - leaf: the value or a reference to it, and before it the moment of an entry that expires, as [`super::cell`] describes;
//! - inner: 6 bytes page id of the child with the keys that are not smaller than this key.
//!
//! The bytes are not trusted: `open` checks the header, each accessor the bytes that it touches, and all return
//! `Corrupt` naming the page. Loops are bounded by the slot count, which `open` bounds by the size of the body.

use std::cmp::Ordering;

use super::cell::{CHILD_BYTES, Cell, decode_child};
use super::{Moment, PageId, TableId};
use crate::error::{Error, Result};

/// Value of byte 0 of the body of a tree node.
pub(crate) const KIND_NODE: u8 = 1;
/// Value of byte 0 of the body of an index of overflow pages.
pub(crate) const KIND_OVERFLOW_INDEX: u8 = 2;
/// Value of byte 0 of the body of an overflow page with data.
pub(crate) const KIND_OVERFLOW_DATA: u8 = 3;

/// Value of byte 0 of the body of a page of values that leaves refer to.
pub(crate) const KIND_PACKED: u8 = 4;

/// Notes in the body of a page of kind 2, 3 or 4 to which table it belongs.
pub(crate) fn set_table(body: &mut [u8], table: TableId) {
    body[4..8].copy_from_slice(&(table.0 as u32).to_le_bytes());
}

/// Returns the low half of the id of the table whose data a page holds; `None` for inner nodes, and for pages that do
/// not tell.
pub(crate) fn table_of_data(body: &[u8]) -> Option<u32> {
    let at = match (body[0], body[1]) {
        (KIND_NODE, 0) => 16,
        (KIND_OVERFLOW_INDEX | KIND_OVERFLOW_DATA | KIND_PACKED, _) => 4,
        _ => return None,
    };
    Some(u32::from_le_bytes([body[at], body[at + 1], body[at + 2], body[at + 3]])).filter(|table| *table != 0)
}

/// Bytes of the node header, which precedes the slots.
pub(super) const NODE_HEADER_BYTES: usize = 32;
/// Bytes of a key, after the common prefix, that its slot contains.
pub(crate) const HEAD_BYTES: usize = 4;
/// Length of a slot, in bytes.
pub(crate) const SLOT_BYTES: usize = 8;
/// Highest level of a node: no sound tree is higher, so a level above this is damage.
pub(crate) const LEVEL_MAX: u8 = 40;

/// Longest key at this page size: a quarter page less the bytes of fences and slots, so that two inner cells of this
/// length fit between two fences of this length.
pub(crate) const fn key_bytes_max(page_bytes: usize) -> usize {
    page_bytes / 4 - 64
}

/// The first four bytes of a key's rest as a number: compares like the bytes do, up to ties.
pub(super) fn head_of(rest: &[u8]) -> u32 {
    let mut head = [0u8; 4];
    let len = rest.len().min(4);
    head[..len].copy_from_slice(&rest[..len]);
    u32::from_be_bytes(head)
}

/// A tree node, opened for reading.
#[derive(Clone, Copy)]
pub(crate) struct Node<'a> {
    page: PageId,
    body: &'a [u8],
    count: usize,
    prefix_len: usize,
}

impl<'a> Node<'a> {
    /// Opens the node in page `page`.
    ///
    /// # Errors
    /// `Corrupt` when the page contains no node, or the node's header contradicts itself.
    #[inline]
    pub(crate) fn open(page: PageId, body: &'a [u8]) -> Result<Self> {
        if body.len() < NODE_HEADER_BYTES || body[0] != KIND_NODE {
            return Err(not_a_node(page, body));
        }
        let node = Self { page, body, count: usize::from(u16_at(body, 2)), prefix_len: usize::from(u16_at(body, 4)) };
        let (lower_len, upper_len, heap) = (node.lower_len(), node.upper_len(), node.heap());
        let slots_end = NODE_HEADER_BYTES + node.count * SLOT_BYTES;
        let well_formed = slots_end <= heap
            && heap + lower_len + upper_len <= body.len()
            && node.prefix_len <= lower_len
            && (node.prefix_len == 0 || node.prefix_len <= upper_len)
            && body[1] <= LEVEL_MAX;
        if well_formed { Ok(node) } else { Err(node.corrupt("the node's header contradicts itself")) }
    }

    /// Returns the height above the leaves.
    #[inline]
    pub(crate) fn level(&self) -> u8 {
        self.body[1]
    }

    /// Returns the number of keys; an inner node has one child more.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Returns the id of the table to which the node belongs.
    pub(crate) fn table(&self) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.body[16..24]);
        u64::from_le_bytes(bytes)
    }

    /// Returns the lower fence: no key of the node is smaller. Empty for the first node of a level.
    pub(crate) fn lower(&self) -> &'a [u8] {
        &self.body[self.body.len() - self.lower_len()..]
    }

    /// Returns the upper fence: all keys of the node are smaller. `None` for the last node of a level.
    pub(crate) fn upper(&self) -> Option<&'a [u8]> {
        (u16_at(self.body, 10) & 1 == 1).then(|| {
            let end = self.body.len() - self.lower_len();
            &self.body[end - self.upper_len()..end]
        })
    }

    /// Returns whether `key` lies between the fences.
    #[inline]
    pub(crate) fn covers(&self, key: &[u8]) -> bool {
        key >= self.lower() && self.upper().is_none_or(|upper| key < upper)
    }

    /// Returns the prefix that all keys of the node share.
    #[inline]
    pub(crate) fn prefix(&self) -> &'a [u8] {
        &self.lower()[..self.prefix_len]
    }

    /// The rest of key `index`, after the prefix, in two parts: the bytes in its slot, and the bytes in its cell.
    ///
    /// # Errors
    /// `Corrupt` when there is no such slot or it points outside the node.
    #[inline]
    pub(crate) fn rest(&self, index: usize) -> Result<(&'a [u8], &'a [u8])> {
        let (offset, rest_len) = self.slot(index)?;
        let in_slot = rest_len.min(HEAD_BYTES);
        let at = NODE_HEADER_BYTES + index * SLOT_BYTES;
        let tail = self.body.get(offset..offset + rest_len - in_slot).ok_or_else(|| self.bad_cell(index))?;
        Ok((&self.body[at..at + in_slot], tail))
    }

    /// Returns key `index` in full.
    ///
    /// # Errors
    /// As [`Node::rest`].
    pub(crate) fn key(&self, index: usize) -> Result<Vec<u8>> {
        let (head, tail) = self.rest(index)?;
        Ok([self.prefix(), head, tail].concat())
    }

    /// Compares the rest of key `index` with `rest`; their heads are equal.
    #[inline]
    fn compare_tail(&self, index: usize, rest: &[u8]) -> Result<Ordering> {
        let (offset, rest_len) = self.slot(index)?;
        // Heads are padded with zeroes, so where one rest ends inside its head it is the beginning of the other.
        if rest_len.min(rest.len()) < HEAD_BYTES {
            return Ok(rest_len.cmp(&rest.len()));
        }
        let tail = self.body.get(offset..offset + rest_len - HEAD_BYTES).ok_or_else(|| self.bad_cell(index))?;
        Ok(tail.cmp(&rest[HEAD_BYTES..]))
    }

    /// Returns the value of key `index` of a leaf.
    ///
    /// # Errors
    /// `Corrupt` when the slot or cell points outside the node.
    #[inline]
    pub(crate) fn cell(&self, index: usize) -> Result<Cell<'a>> {
        self.entry(index).map(|(_, cell)| cell)
    }

    /// Returns the moment at which the entry of key `index` of a leaf expires, and its value.
    ///
    /// # Errors
    /// As [`Node::cell`].
    #[inline]
    pub(crate) fn entry(&self, index: usize) -> Result<(Moment, Cell<'a>)> {
        Cell::decode(self.after_key(index)?, self.body.len()).ok_or_else(|| self.bad_cell(index))
    }

    /// Returns the bytes after the key of cell `index`: they move with the key when nodes are split or merged.
    pub(super) fn payload(&self, index: usize) -> Result<&'a [u8]> {
        let after_key = self.after_key(index)?;
        let len = if self.level() > 0 { Some(CHILD_BYTES) } else { Cell::len_of(after_key) };
        let len = len.ok_or_else(|| self.bad_cell(index))?;
        after_key.get(..len).ok_or_else(|| self.bad_cell(index))
    }

    /// Child `index` of an inner node, counted from 0 to `count` inclusive.
    ///
    /// # Errors
    /// `Corrupt` when slot or cell point outside the node, or this is a leaf.
    #[inline]
    pub(crate) fn child(&self, index: usize) -> Result<PageId> {
        if self.level() == 0 {
            return Err(self.corrupt("a leaf where an inner node belongs"));
        }
        let bytes = if index == 0 { &self.body[24..30] } else { self.after_key(index - 1)? };
        decode_child(bytes).ok_or_else(|| self.bad_cell(index))
    }

    /// Returns the index of the child of an inner node whose range contains `key`.
    #[inline]
    pub(crate) fn child_index(&self, key: &[u8]) -> Result<usize> {
        Ok(match self.search(key)? {
            Ok(index) => index + 1,
            Err(index) => index,
        })
    }

    /// Returns the index of the child of an inner node with the largest keys below `bound`; the last child without a
    /// bound.
    pub(crate) fn child_index_below(&self, bound: Option<&[u8]>) -> Result<usize> {
        match bound {
            None => Ok(self.count),
            Some(bound) => Ok(match self.search(bound)? {
                Ok(index) | Err(index) => index,
            }),
        }
    }

    /// Searches `key`: returns its index, or the index at which it would be inserted.
    ///
    /// # Errors
    /// `Corrupt` when a slot on the way points outside the node.
    #[inline]
    pub(crate) fn search(&self, key: &[u8]) -> Result<std::result::Result<usize, usize>> {
        let prefix = self.prefix();
        let rest = match key.strip_prefix(prefix) {
            Some(rest) => rest,
            // The key lies outside the fences: either the tree is damaged, or the caller searches for a bound.
            None if key < prefix => return Ok(Err(0)),
            None => return Ok(Err(self.count)),
        };
        let head = head_of(rest);
        let slots = &self.body[NODE_HEADER_BYTES..NODE_HEADER_BYTES + self.count * SLOT_BYTES];
        let (slots, _) = slots.as_chunks::<SLOT_BYTES>();
        // Searches the heads alone, which lie side by side, without a branch that could be mispredicted: for the first
        // slot with a head that is not smaller. Nearly always it is the only one with this head.
        let head_at = |slot: &[u8; SLOT_BYTES]| u32::from_be_bytes([slot[0], slot[1], slot[2], slot[3]]);
        let (mut first, mut left) = (0, slots.len());
        while left > 0 {
            let half = left / 2;
            let smaller = head_at(&slots[first + half]) < head;
            first = if smaller { first + half + 1 } else { first };
            left = if smaller { left - half - 1 } else { half };
        }
        let (mut low, mut high) = (first, self.count);
        let mut middle = first;
        while low < high {
            let order = match head_at(&slots[middle]).cmp(&head) {
                Ordering::Equal => self.compare_tail(middle, rest)?,
                different => different,
            };
            match order {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return Ok(Ok(middle)),
            }
            middle = low.midpoint(high);
        }
        Ok(Err(low))
    }

    /// Returns the bytes in use: header, slots, live cells and fences.
    pub(crate) fn used_bytes(&self) -> usize {
        self.body.len() - self.free_bytes()
    }

    /// Returns the bytes that new slots and cells may take, after a compaction if necessary.
    pub(super) fn free_bytes(&self) -> usize {
        (self.gap_bytes() + usize::from(u16_at(self.body, 14))).min(self.body.len() - NODE_HEADER_BYTES)
    }

    /// Returns the bytes between the slots and the heap.
    pub(super) fn gap_bytes(&self) -> usize {
        self.heap() - NODE_HEADER_BYTES - self.count * SLOT_BYTES
    }

    /// Checks a node as far as that is possible without other nodes: order of keys, heads, fences, cells.
    ///
    /// # Errors
    /// `Corrupt`, naming the first fault.
    pub(crate) fn check(&self) -> Result<()> {
        let (lower, upper) = (self.lower(), self.upper());
        if upper.is_some_and(|upper| upper <= lower) {
            return Err(self.corrupt("its upper fence is not above its lower fence"));
        }
        if self.prefix_len > 0 && !upper.is_some_and(|upper| upper.starts_with(self.prefix())) {
            return Err(self.corrupt("its fences do not share its prefix"));
        }
        let heap = self.heap()..self.body.len() - self.lower_len() - self.upper_len();
        let mut previous: Option<Vec<u8>> = None;
        let mut live_bytes = 0;
        for index in 0..self.count {
            let ((head, tail), payload) = (self.rest(index)?, self.payload(index)?);
            let (offset, _) = self.slot(index)?;
            if offset < heap.start || offset + tail.len() + payload.len() > heap.end {
                return Err(self.bad_cell(index));
            }
            live_bytes += tail.len() + payload.len();
            let rest = [head, tail].concat();
            if self.head(index) != head_of(&rest) {
                return Err(self.corrupt(format_args!("slot {index} is not padded with zeroes")));
            }
            if previous.is_some_and(|previous| previous >= rest) {
                return Err(self.corrupt(format_args!("key {index} is not above the key before it")));
            }
            previous = Some(rest);
            if self.level() == 0 {
                self.cell(index)?;
            }
        }
        if live_bytes + usize::from(u16_at(self.body, 14)) != heap.len() {
            return Err(self.corrupt("its count of unused bytes is wrong"));
        }
        if self.count > 0 {
            let (first, last) = (self.key(0)?, self.key(self.count - 1)?);
            if first.as_slice() < lower || upper.is_some_and(|upper| last.as_slice() >= upper) {
                return Err(self.corrupt("its keys lie outside its fences"));
            }
        }
        Ok(())
    }

    #[inline]
    fn after_key(&self, index: usize) -> Result<&'a [u8]> {
        let (offset, rest_len) = self.slot(index)?;
        self.body.get(offset + rest_len.saturating_sub(HEAD_BYTES)..).ok_or_else(|| self.bad_cell(index))
    }

    /// Returns the offset of cell `index` in the body, and the length of the rest of its key.
    #[inline]
    fn slot(&self, index: usize) -> Result<(usize, usize)> {
        if index >= self.count {
            return Err(self.bad_cell(index));
        }
        let at = NODE_HEADER_BYTES + index * SLOT_BYTES;
        Ok((usize::from(u16_at(self.body, at + 4)), usize::from(u16_at(self.body, at + 6))))
    }

    fn head(&self, index: usize) -> u32 {
        let at = NODE_HEADER_BYTES + index * SLOT_BYTES;
        u32::from_be_bytes([self.body[at], self.body[at + 1], self.body[at + 2], self.body[at + 3]])
    }

    fn lower_len(&self) -> usize {
        usize::from(u16_at(self.body, 6))
    }

    fn upper_len(&self) -> usize {
        usize::from(u16_at(self.body, 8))
    }

    pub(super) fn heap(&self) -> usize {
        usize::from(u16_at(self.body, 12))
    }

    #[cold]
    fn bad_cell(&self, index: usize) -> Error {
        self.corrupt(format_args!("slot {index} of {} points outside the node", self.count))
    }

    /// Creates an error about this node.
    #[cold]
    pub(crate) fn corrupt(&self, what: impl std::fmt::Display) -> Error {
        Error::corrupt_page(self.page, what)
    }
}

#[cold]
fn not_a_node(page: PageId, body: &[u8]) -> Error {
    let kind = body.first().copied().unwrap_or(0);
    Error::corrupt_page(page, format_args!("holds kind {kind} where a tree node belongs"))
}

#[inline]
pub(super) fn u16_at(body: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([body[at], body[at + 1]])
}
