//! Writing tree nodes: begin one, add and remove cells in place, and spread cells over new nodes when one overflows.
//!
//! A writer starts from a body that [`Node::open`] accepted. The fields that `open` does not check (offsets of single
//! cells, the count of unused bytes) are checked where they are used: a hostile node ends in `Corrupt`, never in a
//! panic or a write outside.

use super::cell::{CHILD_BYTES, encode_child};
use super::node::{HEAD_BYTES, KIND_NODE, NODE_HEADER_BYTES, Node, SLOT_BYTES, head_of, u16_at};
use super::{PageId, TableId};
use crate::error::{Error, Result};

/// The header fields and fences of a new node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NodeSpec<'a> {
    /// Height of the node above the leaves.
    pub(crate) level: u8,
    /// The table to which the node belongs.
    pub(crate) table: TableId,
    /// Lower fence: no key of the node is smaller.
    pub(crate) lower: &'a [u8],
    /// Upper fence: all keys of the node are smaller. `None` for the last node of a level.
    pub(crate) upper: Option<&'a [u8]>,
    /// The leftmost child of an inner node.
    pub(crate) first_child: Option<PageId>,
}

impl NodeSpec<'_> {
    fn prefix_len(&self) -> usize {
        self.upper.map_or(0, |upper| common_prefix_len(self.lower, upper))
    }

    /// Returns the bytes of a body that hold neither slots nor cells.
    fn overhead_bytes(&self) -> usize {
        NODE_HEADER_BYTES + self.lower.len() + self.upper.map_or(0, <[u8]>::len)
    }
}

/// Makes `body` an empty node. The fences must fit: empty ones always do, and [`Cells::fit`] checks others.
pub(crate) fn init(body: &mut [u8], spec: &NodeSpec<'_>) {
    let upper = spec.upper.unwrap_or_default();
    let lower_at = body.len() - spec.lower.len();
    let upper_at = lower_at - upper.len();
    body.fill(0);
    body[0] = KIND_NODE;
    body[1] = spec.level;
    put_u16(body, 4, spec.prefix_len());
    put_u16(body, 6, spec.lower.len());
    put_u16(body, 8, upper.len());
    put_u16(body, 10, usize::from(spec.upper.is_some()));
    put_u16(body, 12, upper_at);
    body[16..24].copy_from_slice(&spec.table.0.to_le_bytes());
    if let Some(child) = spec.first_child {
        body[24..30].copy_from_slice(&encode_child(child));
    }
    body[lower_at..].copy_from_slice(spec.lower);
    body[upper_at..lower_at].copy_from_slice(upper);
}

/// Inserts a cell at `index`. Answers `false`, with nothing changed, when the node has no room for it.
///
/// # Errors
/// `Corrupt` when the node is damaged or the key does not belong into it.
pub(crate) fn insert(page: PageId, body: &mut [u8], index: usize, key: &[u8], payload: &[u8]) -> Result<bool> {
    insert_parts(page, body, index, key, [payload, &[]])
}

/// As [`insert`], of a payload in two parts.
///
/// # Errors
/// As [`insert`].
pub(crate) fn insert_parts(
    page: PageId,
    body: &mut [u8],
    index: usize,
    key: &[u8],
    [first, second]: [&[u8]; 2],
) -> Result<bool> {
    let node = Node::open(page, body)?;
    let Some(rest) = key.strip_prefix(node.prefix()) else {
        return Err(node.corrupt("a key that lacks the node's prefix led here"));
    };
    if index > node.count() {
        return Err(node.corrupt(format_args!("no slot {index} among {}", node.count())));
    }
    let tail = &rest[rest.len().min(HEAD_BYTES)..];
    let cell_len = tail.len() + first.len() + second.len();
    if node.gap_bytes() < cell_len + SLOT_BYTES {
        if node.free_bytes() < cell_len + SLOT_BYTES {
            return Ok(false);
        }
        compact(page, body)?;
        if Node::open(page, body)?.gap_bytes() < cell_len + SLOT_BYTES {
            return Ok(false);
        }
    }
    let node = Node::open(page, body)?;
    let (count, offset) = (node.count(), node.heap() - cell_len);
    body[offset..offset + tail.len()].copy_from_slice(tail);
    body[offset + tail.len()..offset + cell_len - second.len()].copy_from_slice(first);
    body[offset + cell_len - second.len()..offset + cell_len].copy_from_slice(second);
    let at = NODE_HEADER_BYTES + index * SLOT_BYTES;
    body.copy_within(at..NODE_HEADER_BYTES + count * SLOT_BYTES, at + SLOT_BYTES);
    body[at..at + HEAD_BYTES].copy_from_slice(&head_of(rest).to_be_bytes());
    put_u16(body, at + 4, offset);
    put_u16(body, at + 6, rest.len());
    put_u16(body, 2, count + 1);
    put_u16(body, 12, offset);
    Ok(true)
}

/// Removes the cell at `index`.
///
/// # Errors
/// `Corrupt` when there is none, or the node is damaged.
pub(crate) fn remove(page: PageId, body: &mut [u8], index: usize) -> Result<()> {
    let node = Node::open(page, body)?;
    let cell_len = node.rest(index)?.1.len() + node.payload(index)?.len();
    let count = node.count();
    let at = NODE_HEADER_BYTES + index * SLOT_BYTES;
    body.copy_within(at + SLOT_BYTES..NODE_HEADER_BYTES + count * SLOT_BYTES, at);
    put_u16(body, 2, count - 1);
    let unused = usize::from(u16_at(body, 14)) + cell_len;
    // Overlapping cells of a hostile node can add up to more than there is.
    put_u16(body, 14, unused.min(body.len() - NODE_HEADER_BYTES));
    Ok(())
}

/// Puts another payload of the same length in place of the one at `index`; `false` when the length differs.
///
/// # Errors
/// `Corrupt` when there is no such cell.
pub(crate) fn replace(page: PageId, body: &mut [u8], index: usize, payload: &[u8]) -> Result<bool> {
    let node = Node::open(page, body)?;
    let old = node.payload(index)?;
    if old.len() != payload.len() {
        return Ok(false);
    }
    let start = old.as_ptr() as usize - body.as_ptr() as usize;
    body[start..start + payload.len()].copy_from_slice(payload);
    Ok(true)
}

/// Replaces child `index` of an inner node by another page.
///
/// # Errors
/// `Corrupt` when there is no such child.
#[cfg(feature = "mmap")]
pub(crate) fn set_child(page: PageId, body: &mut [u8], index: usize, child: PageId) -> Result<()> {
    Node::open(page, body)?.child(index)?;
    match index.checked_sub(1) {
        None => body[24..24 + CHILD_BYTES].copy_from_slice(&encode_child(child)),
        Some(before) => drop(replace(page, body, before, &encode_child(child))?),
    }
    Ok(())
}

/// Moves the cells together so that all unused bytes lie in one gap.
fn compact(page: PageId, body: &mut [u8]) -> Result<()> {
    let old = body.to_vec();
    let node = Node::open(page, &old)?;
    let heap_end = old.len() - node.lower().len() - node.upper().map_or(0, <[u8]>::len);
    let slots_end = NODE_HEADER_BYTES + node.count() * SLOT_BYTES;
    let mut heap = heap_end;
    for index in 0..node.count() {
        let ((_, tail), payload) = (node.rest(index)?, node.payload(index)?);
        let cell_len = tail.len() + payload.len();
        heap = heap
            .checked_sub(cell_len)
            .filter(|heap| *heap >= slots_end)
            .ok_or_else(|| node.corrupt("its cells overlap"))?;
        body[heap..heap + tail.len()].copy_from_slice(tail);
        body[heap + tail.len()..heap + cell_len].copy_from_slice(payload);
        put_u16(body, NODE_HEADER_BYTES + index * SLOT_BYTES + 4, heap);
    }
    put_u16(body, 12, heap);
    put_u16(body, 14, 0);
    Ok(())
}

/// Cells that are being moved between nodes, in key order, with complete keys.
#[derive(Debug, Default)]
pub(crate) struct Cells {
    bytes: Vec<u8>,
    /// The ends of the key and of the payload of each cell, in `bytes`.
    ends: Vec<(u32, u32)>,
    /// Length of the shortest key; `key_bytes_max` is the longest key's length.
    key_bytes_min: usize,
    key_bytes_max: usize,
}

impl Cells {
    /// Copies all cells of a node.
    ///
    /// # Errors
    /// `Corrupt` when a cell points outside the node.
    pub(crate) fn of(node: &Node<'_>) -> Result<Self> {
        let mut cells = Self::default();
        cells.append(node)?;
        Ok(cells)
    }

    /// Appends all cells of the next node in key order.
    ///
    /// # Errors
    /// `Corrupt` when a cell points outside the node.
    pub(crate) fn append(&mut self, node: &Node<'_>) -> Result<()> {
        // With space for one cell more, which is inserted as a rule.
        self.ends.reserve(node.count() + 1);
        self.bytes.reserve(2 * node.used_bytes());
        for index in 0..node.count() {
            let (head, tail) = node.rest(index)?;
            self.push(&[node.prefix(), head, tail], node.payload(index)?);
        }
        Ok(())
    }

    /// Appends a cell; the key is given in parts.
    pub(crate) fn push(&mut self, key: &[&[u8]], payload: &[u8]) {
        self.push_with(key, |bytes| bytes.extend_from_slice(payload));
    }

    /// Appends a cell whose payload is written in place by `payload`.
    pub(crate) fn push_with(&mut self, key: &[&[u8]], payload: impl FnOnce(&mut Vec<u8>)) {
        let start = self.bytes.len();
        for part in key {
            self.bytes.extend_from_slice(part);
        }
        let key_end = self.bytes.len() as u32;
        self.note_key(self.bytes.len() - start);
        payload(&mut self.bytes);
        self.ends.push((key_end, self.bytes.len() as u32));
    }

    /// Inserts a cell at `index`, which is at most the number of cells.
    pub(crate) fn insert(&mut self, index: usize, key: &[u8], payload: &[u8]) {
        self.note_key(key.len());
        let at = self.start(index);
        let grown = (key.len() + payload.len()) as u32;
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(payload);
        self.bytes[at..].rotate_right(key.len() + payload.len());
        for (key_end, end) in &mut self.ends[index..] {
            *key_end += grown;
            *end += grown;
        }
        self.ends.insert(index, (at as u32 + key.len() as u32, at as u32 + grown));
    }

    /// Returns the number of cells.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns the key of cell `index`.
    pub(crate) fn key(&self, index: usize) -> &[u8] {
        &self.bytes[self.start(index)..self.ends[index].0 as usize]
    }

    /// Returns the payload of cell `index`.
    pub(crate) fn payload(&self, index: usize) -> &[u8] {
        let (key_end, end) = self.ends[index];
        &self.bytes[key_end as usize..end as usize]
    }

    /// Returns a copy of the cells from `index` on.
    pub(crate) fn tail(&self, index: usize) -> Self {
        let start = self.start(index);
        let ends = self.ends[index..].iter();
        let ends = ends.map(|(key_end, end)| (key_end - start as u32, end - start as u32)).collect();
        Self {
            bytes: self.bytes[start..].to_vec(),
            ends,
            key_bytes_min: self.key_bytes_min,
            key_bytes_max: self.key_bytes_max,
        }
    }

    /// Returns the index of the cell nearest to the middle of their bytes.
    pub(crate) fn middle(&self) -> usize {
        let half = (self.bytes.len() / 2) as u32;
        self.ends.partition_point(|(_, end)| *end < half)
    }

    /// Whether cells `range` fit into one node of this kind in a body of `body_bytes`. False for a hostile node that
    /// has keys shorter than the prefix of the fences.
    pub(crate) fn fit(&self, range: std::ops::Range<usize>, spec: &NodeSpec<'_>, body_bytes: usize) -> bool {
        let bytes = self.start(range.end) - self.start(range.start);
        let prefix_len = spec.prefix_len();
        // Such a key has no prefix that could be cut from it, and makes no room for others.
        let is_short = |index| self.key(index).len() < prefix_len;
        if self.key_bytes_min < prefix_len && range.clone().any(is_short) {
            return false;
        }
        // The first bytes of each rest are in the slots and not in the cells.
        let in_slot = |key_bytes: usize| key_bytes.saturating_sub(prefix_len).min(HEAD_BYTES);
        let in_slots = if in_slot(self.key_bytes_min) == in_slot(self.key_bytes_max) {
            // An upper bound without a look at each key, because a bulk load calls this for every cell that it adds.
            range.len() * in_slot(self.key_bytes_min)
        } else {
            range.clone().map(|index| in_slot(self.key(index).len())).sum()
        };
        let cells = bytes - range.len() * prefix_len - in_slots;
        spec.overhead_bytes() + range.len() * SLOT_BYTES + cells <= body_bytes
    }

    fn note_key(&mut self, key_bytes: usize) {
        let first = self.ends.is_empty();
        self.key_bytes_min = if first { key_bytes } else { self.key_bytes_min.min(key_bytes) };
        self.key_bytes_max = if first { key_bytes } else { self.key_bytes_max.max(key_bytes) };
    }

    /// Writes cells `range` as a node.
    ///
    /// # Errors
    /// `Corrupt` when they do not fit or lie outside the fences, which the cells of sound nodes never do.
    pub(crate) fn write(
        &self,
        range: std::ops::Range<usize>,
        spec: &NodeSpec<'_>,
        page: PageId,
        body: &mut [u8],
    ) -> Result<()> {
        if !self.fit(range.clone(), spec, body.len()) {
            return Err(Error::corrupt_page(page, "its keys or fences are longer than any that were written"));
        }
        init(body, spec);
        let prefix = &spec.lower[..spec.prefix_len()];
        let mut heap = usize::from(u16_at(body, 12));
        for (slot, index) in range.clone().enumerate() {
            let Some(rest) = self.key(index).strip_prefix(prefix) else {
                return Err(Error::corrupt_page(page, "its keys lie outside its fences"));
            };
            let payload = self.payload(index);
            let tail = &rest[rest.len().min(HEAD_BYTES)..];
            // There is room: each key begins with the prefix, and the cells so far take the bytes that `fit` has
            // counted.
            heap -= tail.len() + payload.len();
            body[heap..heap + tail.len()].copy_from_slice(tail);
            body[heap + tail.len()..heap + tail.len() + payload.len()].copy_from_slice(payload);
            let at = NODE_HEADER_BYTES + slot * SLOT_BYTES;
            body[at..at + HEAD_BYTES].copy_from_slice(&head_of(rest).to_be_bytes());
            put_u16(body, at + 4, heap);
            put_u16(body, at + 6, rest.len());
        }
        put_u16(body, 2, range.len());
        put_u16(body, 12, heap);
        Ok(())
    }

    fn start(&self, index: usize) -> usize {
        if index == 0 { 0 } else { self.ends[index - 1].1 as usize }
    }
}

/// Encodes the payload of an inner cell.
pub(crate) fn child_payload(child: PageId) -> [u8; CHILD_BYTES] {
    encode_child(child)
}

/// Returns the length of the longest common prefix of two keys.
pub(crate) fn common_prefix_len(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Returns the shortest key that is above `below` and not above `at`: the separator of two neighbouring leaves.
pub(crate) fn separator<'a>(below: &[u8], at: &'a [u8]) -> &'a [u8] {
    &at[..(common_prefix_len(below, at) + 1).min(at.len())]
}

fn put_u16(body: &mut [u8], at: usize, value: usize) {
    // Positions and lengths in a body are below 65,536, because a page is not longer than that.
    body[at..at + 2].copy_from_slice(&(value as u16).to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    const PAGE: PageId = PageId(9);

    fn spec<'a>(lower: &'a [u8], upper: &'a [u8]) -> NodeSpec<'a> {
        NodeSpec { level: 0, table: TableId(1), lower, upper: Some(upper), first_child: None }
    }

    /// Writes leaf cells with these keys between these fences.
    fn write(keys: &[&[u8]], lower: &[u8], upper: &[u8]) -> (bool, Result<()>) {
        let mut cells = Cells::default();
        keys.iter().for_each(|key| cells.push(&[key], &[4, 0, 1, 2, 3, 4]));
        let mut body = vec![0; 4056];
        let fit = cells.fit(0..cells.len(), &spec(lower, upper), body.len());
        let written = cells.write(0..cells.len(), &spec(lower, upper), PAGE, &mut body);
        if written.is_ok() {
            let node = Node::open(PAGE, &body).unwrap();
            node.check().unwrap();
            assert!((0..keys.len()).all(|index| node.key(index).unwrap() == keys[index]));
        }
        (fit, written)
    }

    fn refused(written: Result<()>) -> bool {
        written.is_err_and(|error| error.kind() == ErrorKind::Corrupt && error.page() == Some(PAGE))
    }

    #[test]
    fn keys_shorter_than_the_common_prefix_of_the_fences_free_no_bytes() {
        let shared = [b'p'; 900];
        let (lower, upper) = ([&shared[..], b"a"].concat(), [&shared[..], b"z"].concat());
        let key = |end: &[u8]| [&shared[..], end].concat();
        let sound: Vec<Vec<u8>> = (b'b'..b'z').map(|byte| key(&[byte; 20])).collect();
        let keys: Vec<&[u8]> = sound.iter().map(Vec::as_slice).collect();
        assert!(matches!(write(&keys, &lower, &upper), (true, Ok(()))));
        // Among a few that fit, and behind more than fit.
        for (times, short) in [(1, 1), (1, 40), (4, 1), (4, 40)] {
            let keys = [keys.repeat(times), vec![b"k"; short]].concat();
            let (fit, written) = write(&keys, &lower, &upper);
            assert!(!fit && refused(written), "{short} short keys behind {} others", keys.len() - short);
        }
        // As long as the prefix, but different from it.
        let other = [b'q'; 901];
        assert!(refused(write(&[&other], &lower, &upper).1));
    }

    #[test]
    fn fences_that_are_together_longer_than_a_node_are_damage() {
        let (lower, upper) = ([b'p'; 3000], [[b'p'; 2999].as_slice(), b"z"].concat());
        for count in 0..20 {
            let (fit, written) = write(&vec![b"k".as_slice(); count], &lower, &upper);
            assert!(!fit && refused(written), "{count} keys");
        }
    }
}
