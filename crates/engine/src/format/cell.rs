//! The cell of a leaf, after its key: the value, or a reference to the pages in which it lies.
//!
//! | cell | bytes |
//! |---|---|
//! | a value in the leaf | `u16` length, the value |
//! | overflow pages | `u16` `0x8000 \| 14`, `u64` length, 6 bytes page id |
//! | part of a page of values | `u16` `0xC000 \| 10`, 6 bytes page id, `u16` offset, `u16` length |
//! | several pages of values | `u16` `0xA000 \| n`, and in `n` bytes: `u32` length, `u16` offset in the first page, 6 bytes id of each page |
//! | any of these, of an entry that expires | `u16` `0xE000 \| 8`, `u64` the moment, and then as above |
//!
//! Offsets count from the beginning of a page's body. The offset of a value in several pages is zero if it shares none of
//! them; then it begins behind the header of the first. The bytes are not trusted: [`Cell::decode`] returns no reference
//! that contradicts itself.

use super::{HEADER_BYTES, Moment, PageId};

/// Bytes of the header of a page of values, before the values.
pub(crate) const VALUES_HEADER_BYTES: usize = 8;

/// Bytes of a page id in a cell.
pub(crate) const CHILD_BYTES: usize = 6;
/// Set in a value's length word when the value is not in the leaf.
const ELSEWHERE_FLAG: u16 = 0x8000;
/// Set together with `ELSEWHERE_FLAG` when the value is in a page of packed values.
const PACKED_FLAG: u16 = 0x4000;
/// Set together with `ELSEWHERE_FLAG` when the value is spread over several pages of values.
const SPREAD_FLAG: u16 = 0x2000;
/// The word before the moment of an entry that expires: all three flags, which no value has, and the bytes of the moment.
const EXPIRY_WORD: u16 = ELSEWHERE_FLAG | PACKED_FLAG | SPREAD_FLAG | 8;
/// Bytes of word and moment.
const EXPIRY_BYTES: usize = 2 + 8;
/// Longest value whose pages a leaf names.
const SPREAD_VALUE_BYTES_MAX: usize = 64 << 10;
/// Bytes of a reference to a spread value before its page ids: length and offset.
const SPREAD_HEADER_BYTES: usize = 4 + 2;
/// Bytes of a reference to overflow pages: length and page.
const OVERFLOW_REF_BYTES: usize = 8 + CHILD_BYTES;
/// Bytes of a reference to a packed value: page, offset, length.
const PACKED_REF_BYTES: usize = CHILD_BYTES + 4;

/// Longest value kept in the leaf at this page size; longer ones go to other pages.
pub(crate) const fn inline_value_bytes_max(page_bytes: usize) -> usize {
    page_bytes / 4
}

/// Returns the number of bytes of values for which one page of values has space.
pub(crate) const fn values_page_bytes(page_bytes: usize) -> usize {
    page_bytes - HEADER_BYTES - VALUES_HEADER_BYTES
}

/// Longest value whose pages the leaf itself names at this page size: 64 KiB where the leaf has space for so many ids.
/// Longer values have an index.
pub(crate) const fn spread_value_bytes_max(page_bytes: usize) -> usize {
    // The value may begin in the middle of a page, so one page of those named is not counted.
    let ids = (inline_value_bytes_max(page_bytes) - SPREAD_HEADER_BYTES) / CHILD_BYTES;
    let named = (ids - 1) * values_page_bytes(page_bytes);
    if named < SPREAD_VALUE_BYTES_MAX { named } else { SPREAD_VALUE_BYTES_MAX }
}

/// Returns the most pages that a value of `len_bytes` bytes has if its leaf names them.
pub(crate) const fn spread_pages_max(page_bytes: usize, len_bytes: usize) -> usize {
    len_bytes.div_ceil(values_page_bytes(page_bytes)) + 1
}

/// A value as a leaf holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cell<'a> {
    /// A value in the leaf itself.
    Inline(&'a [u8]),
    /// A value in overflow pages.
    Overflow(OverflowRef),
    /// A value in a page of values.
    Packed(PackedRef),
    /// A value that is spread over several pages of values.
    Spread(SpreadCell<'a>),
}

/// A reference to a value that is spread over pages of values, as its leaf holds it: the value begins at an offset in the
/// first page, fills the pages between, and ends in the last page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SpreadCell<'a> {
    /// Length of the value, in bytes.
    pub(crate) len_bytes: u32,
    /// Offset of the value in the body of the first page; zero if no other value has a part in its pages.
    pub(crate) offset: u16,
    /// The ids of the pages, as [`encode_child`] writes them.
    ids: &'a [u8],
}

impl<'a> SpreadCell<'a> {
    /// Creates a reference from its length, its offset, and what [`SpreadCell::ids`] returned.
    pub(crate) fn new(len_bytes: u32, offset: u16, ids: &'a [u8]) -> Self {
        Self { len_bytes, offset, ids }
    }

    /// Returns whether no other value has a part in the pages.
    pub(crate) fn has_own_pages(self) -> bool {
        self.offset == 0
    }

    /// Returns the pages that other values may have a part in: the first, and the last if that is another.
    pub(crate) fn shared_pages(self) -> [Option<PageId>; 2] {
        let mut pages = self.pages();
        if self.has_own_pages() { [None, None] } else { [pages.next(), pages.next_back()] }
    }

    /// Returns the offset of the value in the body of the first page.
    pub(crate) fn start(self) -> usize {
        if self.has_own_pages() { VALUES_HEADER_BYTES } else { usize::from(self.offset) }
    }

    /// Returns the encoded ids of the pages.
    pub(crate) fn ids(self) -> &'a [u8] {
        self.ids
    }

    /// Returns whether the value has as many pages as its length and its offset in the first one say, in pages with
    /// bodies of `body_bytes`.
    fn is_sound(self, body_bytes: usize) -> bool {
        let (start, len) = (self.start(), self.len_bytes as usize);
        let first = body_bytes.checked_sub(start).filter(|first| *first > 0 && start >= VALUES_HEADER_BYTES);
        first.is_some_and(|first| {
            let others = len.saturating_sub(first).div_ceil(body_bytes - VALUES_HEADER_BYTES);
            len > 0 && self.ids.len() == (1 + others) * CHILD_BYTES
        })
    }

    /// Returns the parts of the value: the page, the offset in its body, and the length of each.
    pub(crate) fn parts(self, body_bytes: usize) -> impl Iterator<Item = PackedRef> + 'a {
        let (mut offset, mut left) = (self.start(), self.len_bytes as usize);
        self.pages().map(move |page| {
            let len = left.min(body_bytes - offset);
            let part = PackedRef { page, offset: offset as u16, len_bytes: len as u16 };
            (offset, left) = (VALUES_HEADER_BYTES, left - len);
            part
        })
    }

    /// Returns the pages, in the order of the value's bytes.
    pub(crate) fn pages(self) -> impl ExactSizeIterator<Item = PageId> + DoubleEndedIterator + 'a {
        self.ids.chunks_exact(CHILD_BYTES).map(|id| decode_child(id).unwrap_or_default())
    }
}

/// A [`SpreadCell`] that is not borrowed from a leaf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SpreadRef {
    len_bytes: u32,
    offset: u16,
    ids: Vec<u8>,
}

impl SpreadRef {
    /// Creates a reference to a value of `len_bytes` bytes in these pages, with the offset that [`SpreadCell`] describes.
    pub(crate) fn new(len_bytes: u32, offset: u16, pages: &[PageId]) -> Self {
        Self { len_bytes, offset, ids: pages.iter().copied().flat_map(encode_child).collect() }
    }

    /// Returns the reference as a leaf contains it.
    pub(crate) fn cell(&self) -> SpreadCell<'_> {
        SpreadCell { len_bytes: self.len_bytes, offset: self.offset, ids: &self.ids }
    }
}

impl From<SpreadCell<'_>> for SpreadRef {
    fn from(cell: SpreadCell<'_>) -> Self {
        Self { len_bytes: cell.len_bytes, offset: cell.offset, ids: cell.ids.to_vec() }
    }
}

/// A reference to a packed value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PackedRef {
    /// The page of packed values in which the value lies.
    pub(crate) page: PageId,
    /// Offset of the value in the body of the page.
    pub(crate) offset: u16,
    /// Length of the value, in bytes.
    pub(crate) len_bytes: u16,
}

/// A reference to a long value in overflow pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OverflowRef {
    /// Length of the value, in bytes.
    pub(crate) len_bytes: u64,
    /// The value's only data page, or the top of the index of its data pages.
    pub(crate) root: PageId,
}

impl<'a> Cell<'a> {
    /// Decodes the cell at the beginning of these bytes of a leaf whose body has `body_bytes` bytes, and the moment at
    /// which its entry expires; `None` when it is damaged.
    #[inline]
    pub(crate) fn decode(bytes: &'a [u8], body_bytes: usize) -> Option<(Moment, Self)> {
        let (word, rest) = bytes.split_first_chunk::<2>()?;
        let word = u16::from_le_bytes(*word);
        if word & ELSEWHERE_FLAG == 0 {
            return Some((Moment::NEVER, Self::Inline(rest.get(..usize::from(word))?)));
        }
        if word != EXPIRY_WORD {
            return Some((Moment::NEVER, Self::decode_value(word, rest, body_bytes)?));
        }
        let (moment, rest) = rest.split_first_chunk::<8>()?;
        let (word, rest) = rest.split_first_chunk::<2>()?;
        let word = u16::from_le_bytes(*word);
        let moment = Moment(u64::from_le_bytes(*moment));
        // A second moment contradicts the first.
        let value = if word == EXPIRY_WORD { None } else { Self::decode_value(word, rest, body_bytes) };
        Some((moment, value?))
    }

    /// Decodes a value from its word and the bytes that follow it.
    fn decode_value(word: u16, rest: &'a [u8], body_bytes: usize) -> Option<Self> {
        let value = rest.get(..held_bytes(word))?;
        if word & ELSEWHERE_FLAG == 0 {
            return Some(Self::Inline(value));
        }
        if word & PACKED_FLAG != 0 {
            let page = decode_child(value)?;
            let [a, b, c, d] = *value.get(CHILD_BYTES..)?.first_chunk::<4>()?;
            let (offset, len_bytes) = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
            return Some(Self::Packed(PackedRef { page, offset, len_bytes }));
        }
        if word & SPREAD_FLAG != 0 {
            let ([a, b, c, d, e, f], ids) = value.split_first_chunk::<SPREAD_HEADER_BYTES>()?;
            let (len_bytes, offset) = (u32::from_le_bytes([*a, *b, *c, *d]), u16::from_le_bytes([*e, *f]));
            let spread = SpreadCell { len_bytes, offset, ids };
            return spread.is_sound(body_bytes).then_some(Self::Spread(spread));
        }
        let (len, root) = value.split_first_chunk::<8>()?;
        Some(Self::Overflow(OverflowRef { len_bytes: u64::from_le_bytes(*len), root: decode_child(root)? }))
    }

    /// Returns the length in bytes of the cell at the beginning of these bytes; `None` when there are too few to tell.
    pub(crate) fn len_of(bytes: &[u8]) -> Option<usize> {
        let word = |bytes: &[u8]| bytes.first_chunk::<2>().map(|word| u16::from_le_bytes(*word));
        match word(bytes)? {
            EXPIRY_WORD => Some(EXPIRY_BYTES + 2 + held_bytes(word(bytes.get(EXPIRY_BYTES..)?)?)),
            value => Some(2 + held_bytes(value)),
        }
    }

    /// Returns the bytes of the cell of an entry that expires at `expiry`.
    pub(crate) fn payload(&self, expiry: Moment) -> Vec<u8> {
        let mut payload =
            Vec::with_capacity(self.encoded_len() + if expiry == Moment::NEVER { 0 } else { EXPIRY_BYTES });
        self.encode_with(expiry, &mut payload);
        payload
    }

    /// Appends the bytes that follow the key in the cell of an entry that expires at `expiry`.
    pub(crate) fn encode_with(&self, expiry: Moment, into: &mut Vec<u8>) {
        if expiry != Moment::NEVER {
            into.extend_from_slice(&EXPIRY_WORD.to_le_bytes());
            into.extend_from_slice(&expiry.0.to_le_bytes());
        }
        self.encode(into);
    }

    /// Returns the number of bytes that [`Cell::encode`] appends.
    fn encoded_len(&self) -> usize {
        2 + match self {
            Self::Inline(value) => value.len(),
            Self::Overflow(_) => OVERFLOW_REF_BYTES,
            Self::Packed(_) => PACKED_REF_BYTES,
            Self::Spread(spread) => SPREAD_HEADER_BYTES + spread.ids.len(),
        }
    }

    /// Appends the bytes that follow the key in the cell of an entry that does not expire.
    pub(crate) fn encode(&self, into: &mut Vec<u8>) {
        match self {
            Self::Inline(value) => {
                into.extend_from_slice(&inline_word(value));
                into.extend_from_slice(value);
            }
            Self::Overflow(to) => {
                into.extend_from_slice(&(ELSEWHERE_FLAG | OVERFLOW_REF_BYTES as u16).to_le_bytes());
                into.extend_from_slice(&to.len_bytes.to_le_bytes());
                into.extend_from_slice(&encode_child(to.root));
            }
            Self::Packed(at) => {
                into.extend_from_slice(&(ELSEWHERE_FLAG | PACKED_FLAG | PACKED_REF_BYTES as u16).to_le_bytes());
                into.extend_from_slice(&encode_child(at.page));
                into.extend_from_slice(&at.offset.to_le_bytes());
                into.extend_from_slice(&at.len_bytes.to_le_bytes());
            }
            Self::Spread(spread) => {
                let bytes = SPREAD_HEADER_BYTES + spread.ids.len();
                into.extend_from_slice(&(ELSEWHERE_FLAG | SPREAD_FLAG | bytes as u16).to_le_bytes());
                into.extend_from_slice(&spread.len_bytes.to_le_bytes());
                into.extend_from_slice(&spread.offset.to_le_bytes());
                into.extend_from_slice(spread.ids);
            }
        }
    }
}

/// Returns the bytes before a value in a leaf of an entry that does not expire.
pub(crate) fn inline_word(value: &[u8]) -> [u8; 2] {
    (value.len() as u16).to_le_bytes()
}

/// Encodes a page id as in cells.
pub(crate) fn encode_child(id: PageId) -> [u8; CHILD_BYTES] {
    let bytes = id.0.to_le_bytes();
    [bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5]]
}

/// Decodes a page id from the first bytes of `bytes`.
pub(crate) fn decode_child(bytes: &[u8]) -> Option<PageId> {
    let bytes = bytes.get(..CHILD_BYTES)?;
    Some(PageId(u64::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5], 0, 0])))
}

/// Returns the number of bytes after a cell's first word.
fn held_bytes(word: u16) -> usize {
    usize::from(if word & ELSEWHERE_FLAG == 0 { word } else { word & !(ELSEWHERE_FLAG | PACKED_FLAG | SPREAD_FLAG) })
}
