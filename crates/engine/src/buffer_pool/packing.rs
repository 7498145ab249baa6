//! Decides which pages are compressed, and packs compressed pages into blocks.
//!
//! Pages are packed when they are written, with those that are written together: a bulk load writes a megabyte of
//! neighbours, a checkpoint and an eviction many pages sorted by their old places, and compaction the pages of a run.
//! So mostly neighbours share a block, and a scan reads each block once.
//!
//! Only leaves and pages of values are compressed. Inner nodes are a few in a hundred pages, and every lookup passes
//! through them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use nofault_io::aligned::{IoBuf, PageKind};
use rustc_hash::FxHashMap;

use crate::codec::Compression;
use crate::format::compressed::{CompressedPage, PAGES_A_BLOCK_MAX, encode_block, room_bytes};
use crate::format::node::table_of_data;
use crate::format::{BlockId, HEADER_BYTES, Location, PageId, TableId, Tag};

/// Number of blocks that are filled at a time: a page goes to the fullest of them that has room for it. With more of
/// them less room is left over, and neighbours lie farther apart.
const OPEN_BLOCKS: usize = 4;

/// The compression of each table.
#[derive(Debug, Default)]
pub(crate) struct TableCodecs {
    /// By the low half of the table's id, which is all that some pages tell. Tables without compression are missing.
    tables: RwLock<FxHashMap<u32, Compression>>,
    /// Whether any table is compressed.
    has_any: AtomicBool,
}

impl TableCodecs {
    /// Sets the compression of all tables: those that are not in `tables` have none.
    pub(crate) fn reset(&self, tables: &[(TableId, Compression)]) {
        self.tables.write().unwrap_or_else(PoisonError::into_inner).clear();
        self.has_any.store(false, Ordering::Release);
        tables.iter().for_each(|(table, compression)| self.set(*table, *compression));
    }

    /// Sets the compression of the pages of a table that are written from now on.
    pub(crate) fn set(&self, table: TableId, compression: Compression) {
        let mut tables = self.tables.write().unwrap_or_else(PoisonError::into_inner);
        match compression {
            Compression::None => tables.remove(&(table.0 as u32)),
            compression => tables.insert(table.0 as u32, compression),
        };
        self.has_any.store(!tables.is_empty(), Ordering::Release);
    }

    /// Returns the compression of a table.
    pub(crate) fn of_table(&self, table: TableId) -> Compression {
        self.find(table.0 as u32)
    }

    fn find(&self, table: u32) -> Compression {
        if !self.has_any.load(Ordering::Acquire) {
            return Compression::None;
        }
        self.tables.read().unwrap_or_else(PoisonError::into_inner).get(&table).copied().unwrap_or_default()
    }

    /// Returns the compression of a page with these bytes.
    fn of_page(&self, bytes: &[u8]) -> Compression {
        table_of_data(&bytes[HEADER_BYTES..]).map_or(Compression::None, |table| self.find(table))
    }
}

/// What is written to one block.
pub(super) enum BlockContent<T> {
    /// A page as it is.
    Whole(T),
    /// The bytes of a block with several compressed pages, each with its tag.
    Packed { block: Arc<IoBuf>, pages: Vec<(T, Tag)> },
}

impl<T> BlockContent<T> {
    /// Returns the first page.
    pub(super) fn first(&self) -> Option<&T> {
        match self {
            Self::Whole(page) => Some(page),
            Self::Packed { pages, .. } => pages.first().map(|(page, _)| page),
        }
    }

    /// Returns the pages with their locations, once the content was written to `block`. `tag_of` returns the tag of a
    /// page that was written as it is.
    pub(super) fn located(self, block: BlockId, tag_of: impl Fn(&T) -> Tag) -> Vec<(T, Location)> {
        match self {
            Self::Whole(page) => {
                let at = Location::of_whole(block, tag_of(&page));
                vec![(page, at)]
            }
            Self::Packed { pages, .. } => {
                pages.into_iter().map(|(page, tag)| (page, Location { block, tag, is_compressed: true })).collect()
            }
        }
    }

    /// Returns the number of pages that share the block; zero for one that has it to itself.
    pub(super) fn sharing(&self) -> usize {
        match self {
            Self::Whole(_) => 0,
            Self::Packed { pages, .. } => pages.len(),
        }
    }
}

/// A block that is being filled.
struct OpenBlock<T> {
    pages: Vec<(T, CompressedPage)>,
    room: usize,
}

impl<T> OpenBlock<T> {
    /// Returns the room that is left with one more page; `None` when the page does not fit. Two versions of one page
    /// never share a block, as a block tells the versions of a page apart.
    fn left_with(&self, page: &CompressedPage) -> Option<usize> {
        let is_possible =
            self.pages.len() < PAGES_A_BLOCK_MAX && self.pages.iter().all(|(_, other)| other.page() != page.page());
        self.room.checked_sub(page.len_bytes()).filter(|_| is_possible)
    }

    /// Encodes the block. A page that is alone is better written as it is, and so are all when there is no memory.
    fn close(self, page_bytes: usize) -> Vec<BlockContent<T>> {
        let block = if self.pages.len() > 1 { IoBuf::zeroed(page_bytes, PageKind::Small).ok() } else { None };
        let Some(mut block) = block else {
            return self.pages.into_iter().map(|(page, _)| BlockContent::Whole(page)).collect();
        };
        let (pages, compressed): (Vec<T>, Vec<CompressedPage>) = self.pages.into_iter().unzip();
        encode_block(&compressed, &mut block);
        let tags = compressed.iter().map(CompressedPage::tag);
        vec![BlockContent::Packed { block: Arc::new(block), pages: pages.into_iter().zip(tags).collect() }]
    }
}

/// Packs sealed pages into blocks, in about the given order. `sealed` returns id and bytes of a page.
pub(super) fn pack<T>(
    codecs: &TableCodecs,
    (file_id, page_bytes): (u64, usize),
    pages: impl IntoIterator<Item = T>,
    sealed: impl Fn(&T) -> (PageId, &[u8]),
) -> Vec<BlockContent<T>> {
    let mut contents = Vec::new();
    let mut open: Vec<OpenBlock<T>> = Vec::new();
    for item in pages {
        let (page, bytes) = sealed(&item);
        let compressed = match codecs.of_page(bytes) {
            Compression::None => None,
            codec => CompressedPage::of(file_id, page, bytes, codec),
        };
        let Some(compressed) = compressed else {
            contents.push(BlockContent::Whole(item));
            continue;
        };
        let fitting = open.iter_mut().filter_map(|block| Some((block.left_with(&compressed)?, block)));
        if let Some((left, block)) = fitting.min_by_key(|(left, _)| *left) {
            block.room = left;
            block.pages.push((item, compressed));
            continue;
        }
        if open.len() == OPEN_BLOCKS {
            contents.extend(open.remove(0).close(page_bytes));
        }
        let room = room_bytes(page_bytes) - compressed.len_bytes();
        open.push(OpenBlock { pages: vec![(item, compressed)], room });
    }
    contents.extend(open.into_iter().flat_map(|block| block.close(page_bytes)));
    contents
}
