//! The two meta pages, which identify a file and lead to its trees. Written in turn: a torn one leaves the other.
//!
//! | offset in the body | field |
//! |---|---|
//! | 0 | magic number |
//! | 8 | kind: 1 when commits switch it (`shadow`), 2 when checkpoints do, 3 when they do and a table says where pages lie |
//! | 16 | file id, 24 bytes of a page, 32 bytes of the map, 40 flags (bit 0: pages carry checksums) |
//! | 48 | sequence: the valid one with the higher number holds |
//! | 56 | the commit it shows |
//! | 64 | state: root of the table, root of the free pages, pages in use |
//! | 88 | log, kinds 2 and 3: bytes of a segment; position, sequence and checksum of the anchor |
//! | 120 | kind 3: where the root of the table of pages is |
//!
//! The header of the page is sealed as the engine seals its own.

use crate::error::{Error, ErrorKind, Result};
use crate::format::{BlockId, CommitSeq, HEADER_BYTES, Location, PAGE_BYTES_MIN, PageId, Tag, check_page, seal_page};
use crate::wal::Anchor;

/// Number of meta pages: pages 0 and 1 of the file.
pub(super) const META_PAGES: u64 = 2;
const MAGIC: u64 = u64::from_le_bytes(*b"nofltmap");
const WORDS: usize = 16;

/// The fields of the meta page that change with each commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct State {
    /// Root of the table.
    pub(super) table: PageId,
    /// Root of the tree of free pages.
    pub(super) free: PageId,
    /// End of the used part of the file: no page from here on was ever used.
    pub(super) page_count: u64,
}

impl State {
    pub(super) const BYTES: usize = 24;

    pub(super) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        for (at, word) in bytes.chunks_exact_mut(8).zip([self.table.0, self.free.0, self.page_count]) {
            at.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        Some(Self { table: PageId(word(0)?), free: PageId(word(8)?), page_count: word(16)? })
    }
}

/// The protocol family of a file, which decides which stores can open it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A commit switches the meta page.
    Shadow,
    /// A commit is a record in the log; pages are overwritten in place.
    Logged,
    /// A commit is a record in the log; pages move to new blocks.
    Placed,
}

/// The contents of a meta page: see the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Meta {
    pub(super) kind: Kind,
    pub(super) file_id: u64,
    pub(super) page_bytes: usize,
    pub(super) map_bytes: u64,
    pub(super) checksums: bool,
    pub(super) sequence: u64,
    pub(super) commit: CommitSeq,
    pub(super) state: State,
    pub(super) segment_bytes: u64,
    pub(super) anchor: Anchor,
    /// The root of the page table, as in [`super::placed::Snapshot`]; zero where pages do not move.
    pub(super) table: u64,
}

impl Meta {
    /// Returns which of the two meta pages this version is written to.
    pub(super) fn slot(&self) -> u64 {
        self.sequence % META_PAGES
    }

    /// Encodes the meta page.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut page = vec![0; self.page_bytes];
        let kind = match self.kind {
            Kind::Shadow => 1,
            Kind::Logged => 2,
            Kind::Placed => 3,
        };
        let (state, anchor) = (self.state, self.anchor);
        let words: [u64; WORDS] = [
            MAGIC,
            kind,
            self.file_id,
            self.page_bytes as u64,
            self.map_bytes,
            u64::from(self.checksums),
            self.sequence,
            self.commit.0,
            state.table.0,
            state.free.0,
            state.page_count,
            self.segment_bytes,
            anchor.position,
            anchor.sequence,
            anchor.checksum,
            self.table,
        ];
        for (at, word) in page[HEADER_BYTES..].chunks_exact_mut(8).zip(words) {
            at.copy_from_slice(&word.to_le_bytes());
        }
        seal_page(self.file_id, PageId(self.slot()), self.commit, &mut page);
        page
    }

    /// Decodes the meta page in slot `slot`; `None` when the bytes are not a complete meta page.
    fn decode(slot: u64, page: &[u8]) -> Option<Self> {
        let mut words = [0; WORDS];
        for (word, at) in words.iter_mut().zip(page.get(HEADER_BYTES..)?.chunks_exact(8)) {
            *word = u64::from_le_bytes(at.try_into().ok()?);
        }
        let [magic, kind, file_id, page_bytes, map_bytes, flags, sequence, commit, table, free, page_count, ..] = words;
        let [.., segment_bytes, position, anchor_sequence, checksum, pages] = words;
        let kind = match kind {
            1 => Kind::Shadow,
            2 => Kind::Logged,
            3 => Kind::Placed,
            _ => return None,
        };
        let whole = Location::of_whole(BlockId(slot), Tag::of_page(page));
        let right = magic == MAGIC && page_bytes == page.len() as u64 && sequence % META_PAGES == slot;
        if !right || check_page(file_id, PageId(slot), whole, page).is_err() {
            return None;
        }
        Some(Self {
            kind,
            file_id,
            page_bytes: page.len(),
            map_bytes,
            checksums: flags & 1 == 1,
            sequence,
            commit: CommitSeq(commit),
            state: State { table: PageId(table), free: PageId(free), page_count },
            segment_bytes,
            anchor: Anchor { position, sequence: anchor_sequence, checksum },
            table: pages,
        })
    }

    /// Returns the newer complete meta page, from the beginning of a file.
    ///
    /// # Errors
    /// `Corrupt` when there is no complete one.
    pub(super) fn find(start: &[u8]) -> Result<Self> {
        let sizes = (0..8).map(|shift| PAGE_BYTES_MIN << shift);
        let metas = sizes.flat_map(|page_bytes| {
            (0..META_PAGES).filter_map(move |slot| {
                let at = slot as usize * page_bytes;
                Self::decode(slot, start.get(at..at + page_bytes)?)
            })
        });
        metas.max_by_key(|meta| meta.sequence).ok_or_else(|| {
            let what = "neither meta page of the mapped file is whole: it is damaged, or no file of this kind";
            Error::new(ErrorKind::Corrupt, what)
        })
    }
}

/// Fuzz target: decodes the bytes as they are, and with a valid checksum.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn decode_anything(bytes: &[u8]) {
    let _ = Meta::find(bytes);
    let mut page = bytes.to_vec();
    page.resize(PAGE_BYTES_MIN, 0);
    let mut file_id = [0; 8];
    file_id.copy_from_slice(&page[HEADER_BYTES + 16..HEADER_BYTES + 24]);
    for (word, value) in [(0, MAGIC), (3, PAGE_BYTES_MIN as u64), (6, 0)] {
        page[HEADER_BYTES + word * 8..][..8].copy_from_slice(&value.to_le_bytes());
    }
    seal_page(u64::from_le_bytes(file_id), PageId(0), CommitSeq(1), &mut page);
    if let Ok(meta) = Meta::find(&page) {
        assert_eq!(Meta::decode(0, &meta.encode()), Some(meta), "a meta page changes when it is written");
    }
}
