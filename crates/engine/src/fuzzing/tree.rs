//! Arbitrary pages with right checksums, taken for a tree: they are read and changed without being trusted.

use std::collections::BTreeMap;

use super::{FILE_ID, Input};
use crate::btree::overflow::{LongRef, Reader};
use crate::btree::{Chunk, Direction, KeyRange, Portion, Tree, packed};
use crate::format::cell::{Cell, OverflowRef, PackedRef, SpreadRef};
use crate::format::node::Node;
use crate::format::{
    BlockId, CommitSeq, HEADER_BYTES, Location, PageId, TableId, Tag, check_page, page_commit, seal_page,
};
use crate::pages::{Attempt, Missing, PageCopies, Pages, Wait};

const PAGE_BYTES: usize = 512;
const TABLE: TableId = TableId(1);

/// Decodes a page of any length: as read from disk, and as a node with a valid checksum.
pub fn page(bytes: &[u8]) {
    let id = PageId(7);
    let _ = check_page(FILE_ID, id, Location::of_whole(BlockId(300), Tag::of(0)), bytes);
    let mut sealed = bytes.to_vec();
    if sealed.len() >= HEADER_BYTES {
        let tag = seal_page(FILE_ID, id, CommitSeq(5), &mut sealed);
        let checked = check_page(FILE_ID, id, Location::of_whole(BlockId(300), tag), &sealed);
        assert!(checked.is_ok(), "a sealed page is refused: {checked:?}");
        assert_eq!(page_commit(&sealed), CommitSeq(5));
    }
    let Ok(node) = Node::open(id, bytes) else { return };
    let sound = node.check().is_ok();
    let (_, _, _) = (node.lower(), node.upper(), node.prefix());
    assert!(node.used_bytes() <= bytes.len(), "more is used than there is");
    for index in 0..node.count() + 2 {
        let key = node.key(index);
        let found = [node.cell(index).map(drop), node.child(index).map(drop)];
        if let Ok(key) = key {
            let search = node.search(&key);
            let _ = (node.child_index(&key), node.child_index_below(Some(&key)));
            if sound && index < node.count() {
                assert_eq!(search.ok(), Some(Ok(index)), "a key of a sound node is not found");
                assert!(found[usize::from(node.level() > 0)].is_ok(), "a sound node has a cell that cannot be read");
            }
        }
    }
}

/// Looks up, scans in both directions, and changes a few pages linked as the input says.
pub fn tree(bytes: &[u8]) {
    let mut input = Input(bytes);
    let mut bag = Bag::of(&mut input, |body| {
        // Bytes for which nearly every page would be refused otherwise; some pages hold values.
        body[0] = if body[0] < 240 { 1 } else { 2 + body[0] % 3 };
        body[1] %= 3;
        body[16..24].copy_from_slice(&TABLE.0.to_le_bytes());
    });
    let tree = Tree { root: PageId(0), table: TABLE };
    let key = input.bytes(20).to_vec();
    let _ = tree.get(&bag, &key);
    for direction in [Direction::Forward, Direction::Reverse] {
        let mut rest = Some(KeyRange { start: Vec::new(), end: None });
        let mut chunk = Chunk::default();
        // A scan moves in one direction with any fences: with keys this short it must end.
        let mut steps = 0u32;
        while let Some(range) = rest.take() {
            rest = tree.scan(&bag, &range, direction, Portion { entries: 5, bytes: 200 }, 3, &mut chunk).ok().flatten();
            (0..chunk.len()).for_each(|index| _ = chunk.entry(index));
            steps += 1;
            assert!(steps < 100_000, "a walk through {} pages does not end", bag.pages.len());
        }
    }
    for _ in 0..8 {
        let key = input.bytes(12).to_vec();
        if input.u8() % 3 == 0 {
            let _ = tree.delete(&mut bag, &key);
        } else {
            let value = vec![7; usize::from(input.u8() % 120)];
            let _ = tree.put(&mut bag, &key, Cell::Inline(&value));
        }
    }
}

/// Reads, lists and removes values in a few pages that claim to be overflow or packed pages.
pub fn values(bytes: &[u8]) {
    let mut input = Input(bytes);
    let most = if input.u8() == 0 { u64::MAX } else { 5000 };
    let len_bytes = (u64::from(input.u16()) << (input.u8() % 49)) % most;
    let value = OverflowRef { len_bytes, root: PageId(u64::from(input.u8() % 7)) };
    let (offset, packed_len) = (input.u16(), input.u16() % 600);
    let bag = Bag::of(&mut input, |body| {
        body[0] = 2 + body[0] % 3;
        body[1] %= 3;
    });
    let data = || Reader::new(PAGE_BYTES, LongRef::Overflow(value));
    for (index, reader) in [data(), Reader::listing(PAGE_BYTES, value), data()].into_iter().enumerate() {
        let Ok(mut reader) = reader else { continue };
        // A few pages referring to each other in a cycle can form a value of any length: a very long one is only
        // opened.
        if len_bytes > 1 << 20 {
            continue;
        }
        if index == 2 {
            // As a scan does, which reads values ahead.
            let mut named = Vec::new();
            reader.name_next(&bag, 4, &mut named);
            assert!(named.len() <= 4, "{} pages are named", named.len());
        }
        let mut wanted = Vec::new();
        match reader.advance(&bag, CommitSeq(1), 4, &mut wanted) {
            Ok(true) if index != 1 => assert_eq!(reader.into_value().len() as u64, len_bytes, "a part of a value"),
            Ok(true) => assert!(!reader.into_pages().is_empty(), "a value without pages"),
            Ok(false) => assert!((1..=4).contains(&wanted.len()), "{} pages are wanted", wanted.len()),
            Err(_) => {}
        }
    }
    let ids: Vec<_> = (0..input.u8() % 6).map(|_| PageId(u64::from(input.u8() % 7))).collect();
    let mut cell = Vec::new();
    Cell::Spread(SpreadRef::new(u32::from(input.u16()) % 3000, offset % 600, &ids).cell()).encode(&mut cell);
    let body_bytes = PAGE_BYTES - HEADER_BYTES;
    if let Some((_, Cell::Spread(at))) = Cell::decode(&cell, body_bytes) {
        let len_bytes: usize = at.parts(body_bytes).map(|part| usize::from(part.len_bytes)).sum();
        assert_eq!(len_bytes, at.len_bytes as usize, "the parts are not the whole");
        if let Ok(mut reader) = Reader::new(PAGE_BYTES, LongRef::Spread(at.into()))
            && matches!(reader.advance(&bag, CommitSeq(1), 4, &mut Vec::new()), Ok(true))
        {
            assert_eq!(reader.into_value().len(), len_bytes, "a part of a value");
        }
        let _ = packed::check_spread(&bag, at);
    }
    for (page, body) in &bag.pages {
        let _ = packed::live(*page, body);
        if let Ok(found) = packed::value(PackedRef { page: *page, offset, len_bytes: packed_len }, body) {
            assert_eq!(found.len(), usize::from(packed_len), "another length than was asked for");
        }
    }
}

/// Returns input from which [`tree`] builds a valid tree of a few pages.
#[cfg(test)]
pub(super) fn sound_pages() -> Vec<u8> {
    let mut bag = Bag::default();
    let made = Tree::create(&mut bag, TABLE, PageId(0));
    assert!(matches!(made, Ok(Tree { root: PageId(0), .. })), "{made:?}");
    let tree = Tree { root: PageId(0), table: TABLE };
    for number in 0..28u8 {
        let key = [b"key-", &[number.wrapping_mul(37)][..], b"abcdef"].concat();
        assert!(tree.put(&mut bag, &key, Cell::Inline(&[number; 30])).is_ok(), "an empty tree takes a few keys");
    }
    let count = bag.pages.len() as u8;
    assert!(
        (3..=6).contains(&count) && bag.pages.keys().last() == Some(&PageId(u64::from(count) - 1)),
        "{count} pages"
    );
    bag.pages.into_values().fold(vec![count - 1], |bytes, body| [bytes, body].concat())
}

/// Pages in a map, edited in place: callers that stop after an error do not notice the missing rollback.
#[derive(Default)]
struct Bag {
    pages: BTreeMap<PageId, Vec<u8>>,
}

impl Bag {
    /// Reads up to six pages from the input, and lets `put_right` make each as valid as the fuzz target needs.
    fn of(input: &mut Input<'_>, put_right: impl Fn(&mut [u8])) -> Self {
        let mut bag = Self::default();
        for id in 0..1 + u64::from(input.u8() % 6) {
            let mut body = vec![0; PAGE_BYTES - HEADER_BYTES];
            let given = input.bytes(body.len());
            body[..given.len()].copy_from_slice(given);
            put_right(&mut body);
            bag.pages.insert(PageId(id), body);
        }
        bag
    }

    fn missing<T>(id: PageId) -> Attempt<T> {
        Err(Wait::Miss(Missing { page: id, at: CommitSeq(1) }))
    }
}

impl Pages for Bag {
    type Page<'a> = &'a [u8];

    fn page_bytes(&self) -> usize {
        PAGE_BYTES
    }

    fn page(&self, id: PageId) -> Attempt<&[u8]> {
        self.pages.get(&id).map_or_else(|| Self::missing(id), |body| Ok(body.as_slice()))
    }
}

impl PageCopies for Bag {
    fn reserve(&mut self, _frames: usize) -> Attempt<()> {
        Ok(())
    }

    fn edit(&mut self, id: PageId) -> Attempt<&mut [u8]> {
        self.pages.get_mut(&id).map_or_else(|| Self::missing(id), |body| Ok(body.as_mut_slice()))
    }

    fn allocate(&mut self, _near: PageId) -> Attempt<(PageId, &mut [u8])> {
        let id = PageId(self.pages.keys().next_back().map_or(0, |last| last.0 + 1));
        let body = self.pages.entry(id).or_insert_with(|| vec![0; PAGE_BYTES - HEADER_BYTES]);
        Ok((id, body))
    }

    fn free(&mut self, id: PageId) {
        self.pages.remove(&id);
    }
}
