//! Decides which pages are compressed, and packs compressed pages into blocks.
//!
//! Pages are packed when they are written, with those that are written together: a bulk load writes a megabyte of
//! neighbours, a checkpoint and an eviction many pages sorted by their old places, and compaction the pages of a run.
//! So mostly neighbours share a block, and a scan reads each block once.
//!
//! Once a full disk has led to the use of blocks of the reserve, pages are packed into as few blocks as possible instead
//! ([`pack_tightly`]). Otherwise deletes would need room that never comes back: a page that leaves a shared block does not free it,
//! and a page of a table that is no longer compressed would take a whole block when it changes.
//!
//! Only leaves and pages of values are compressed. Inner nodes are a few in a hundred pages, and every lookup passes
//! through them.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use nofault_io::aligned::{IoBuf, PageKind};
use rustc_hash::FxHashMap;

use crate::codec::{Compression, Dictionary, HAS_ZSTD, RATIO_UNIT};
use crate::format::compressed::{CompressedPage, FileCodec, PAGES_A_BLOCK_MAX, encode_block, room_bytes};
use crate::format::node::table_of_data;
use crate::format::{BlockId, CommitSeq, HEADER_BYTES, Location, PageId, TableId, Tag, page_commit};

/// Number of blocks filled at a time: a page goes to the fullest of them that has room for it. With more of
/// them less room is left over, and neighbours lie farther apart.
const OPEN_BLOCKS: usize = 4;

/// Times that the bytes between two looks at a table are doubled, at most.
const LOOKS_MAX: u32 = 10;

/// The compression of each table, and the dictionary in use.
#[derive(Debug, Default)]
pub(crate) struct TableCodecs {
    /// By the low half of the table's id, which is all that some pages tell. Tables without compression are missing,
    /// unless they have a dictionary.
    tables: RwLock<FxHashMap<u32, TableCodec>>,
    /// Whether any table is compressed.
    has_any: AtomicBool,
    /// The commit of the last durable checkpoint.
    durable: AtomicU64,
    /// Whether a build without Zstandard must refuse the database. It stays so once it is.
    needs_zstd: AtomicBool,
}

/// The compression of one table.
#[derive(Debug, Clone, Default)]
struct TableCodec {
    compression: Compression,
    dictionary: Option<(Arc<Dictionary>, CommitSeq)>,
    written: Arc<PackedBytes>,
}

/// The pages of one table that were packed since the database was opened or since they were looked at last.
#[derive(Debug, Default)]
struct PackedBytes {
    raw: AtomicU64,
    compressed: AtomicU64,
    /// Number of looks at the table that have led to no new dictionary.
    looks: AtomicU32,
}

/// How a page is compressed.
struct PageCodec {
    compression: Compression,
    dictionary: Option<Arc<Dictionary>>,
    written: Arc<PackedBytes>,
}

impl PageCodec {
    fn compress(&self, file: FileCodec<'_>, page: PageId, bytes: &[u8]) -> Option<CompressedPage> {
        let packed = CompressedPage::of(file, page, bytes, self.compression, self.dictionary.as_deref());
        let body_bytes = bytes.len() - HEADER_BYTES;
        let len = packed.as_ref().map_or(body_bytes, CompressedPage::body_bytes);
        self.written.raw.fetch_add(body_bytes as u64, Ordering::Relaxed);
        self.written.compressed.fetch_add(len as u64, Ordering::Relaxed);
        packed
    }
}

impl TableCodecs {
    /// Sets the compression of all tables: tables that are not in `tables` have none. `dictionaries` are all that there
    /// are, each in the catalog of every checkpoint from commit `since` on.
    pub(crate) fn reset(
        &self,
        tables: &[(TableId, Compression)],
        dictionaries: Vec<Arc<Dictionary>>,
        since: CommitSeq,
    ) {
        self.lock().clear();
        self.has_any.store(false, Ordering::Release);
        dictionaries.into_iter().for_each(|dictionary| self.use_dictionary(dictionary, since));
        tables.iter().for_each(|(table, compression)| self.set(*table, *compression));
    }

    /// Sets the compression of the pages of a table that are written from now on.
    pub(crate) fn set(&self, table: TableId, compression: Compression) {
        let mut tables = self.lock();
        let codec = tables.entry(table.0 as u32).or_default();
        codec.compression = compression;
        if compression == Compression::None && codec.dictionary.is_none() {
            tables.remove(&(table.0 as u32));
        }
        let has_any = tables.values().any(|codec| codec.compression != Compression::None);
        self.has_any.store(has_any, Ordering::Release);
        drop(tables);
        if compression == Compression::Small {
            self.note_zstd();
        }
    }

    /// Uses a dictionary for the pages of its table that are written from now on, unless a later one is in use. It is a
    /// part of every commit from `since` on.
    ///
    /// No checkpoint names a page whose dictionary its catalog does not have. Of a commit from `since` on there is only
    /// a checkpoint of that commit or a later one, and all pages may use the dictionary once such a checkpoint is
    /// durable.
    pub(crate) fn use_dictionary(&self, dictionary: Arc<Dictionary>, since: CommitSeq) {
        let origin = dictionary.origin();
        let mut tables = self.lock();
        let codec = tables.entry(origin.table.0 as u32).or_default();
        if codec.dictionary.as_ref().is_none_or(|(before, _)| before.origin().ordinal < origin.ordinal) {
            codec.dictionary = Some((dictionary, since));
            codec.written = Arc::default();
        }
        drop(tables);
        self.note_zstd();
    }

    /// Forgets a table that was dropped.
    pub(crate) fn forget(&self, table: TableId) {
        self.lock().remove(&(table.0 as u32));
    }

    /// Notes that a checkpoint of this commit is durable.
    pub(crate) fn checkpoint_durable(&self, commit: CommitSeq) {
        self.durable.store(commit.0, Ordering::Release);
    }

    /// Notes that a table is to use Zstandard, or that pages or entries of the catalog may.
    pub(crate) fn note_zstd(&self) {
        self.needs_zstd.store(true, Ordering::Release);
    }

    /// Returns whether a build without Zstandard must refuse the database from the next checkpoint on.
    pub(crate) fn needs_zstd(&self) -> bool {
        self.needs_zstd.load(Ordering::Acquire)
    }

    /// Returns the compression of a table.
    pub(crate) fn of_table(&self, table: TableId) -> Compression {
        self.read().get(&(table.0 as u32)).map_or(Compression::None, |codec| codec.compression)
    }

    /// Returns the dictionary in use for a table.
    pub(crate) fn dictionary_of(&self, table: TableId) -> Option<Arc<Dictionary>> {
        self.read().get(&(table.0 as u32))?.dictionary.as_ref().map(|(dictionary, _)| Arc::clone(dictionary))
    }

    /// Returns the tables, by the low halves of their ids, of which at least `bytes_min` bytes of pages were packed with
    /// the compression `Small` since this was asked last, and that have no dictionary, or one with which pages became
    /// `worse` times as large as when it was trained. Restarts the count of tables with so many bytes. Each time that
    /// leads to no new dictionary, the next one for the table comes after twice as many bytes.
    pub(crate) fn take_untrained(&self, bytes_min: u64, worse: f64) -> Vec<u32> {
        let mut found = Vec::new();
        for (table, codec) in &*self.read() {
            let bytes_min = bytes_min << codec.written.looks.load(Ordering::Relaxed).min(LOOKS_MAX);
            if codec.compression != Compression::Small || codec.written.raw.load(Ordering::Relaxed) < bytes_min {
                continue;
            }
            let raw = codec.written.raw.swap(0, Ordering::Relaxed);
            let compressed = codec.written.compressed.swap(0, Ordering::Relaxed);
            let is_good = |(dictionary, _): &(Arc<Dictionary>, CommitSeq)| {
                compressed as f64 * RATIO_UNIT as f64 <= raw as f64 * f64::from(dictionary.origin().ratio) * worse
            };
            if !codec.dictionary.as_ref().is_some_and(is_good) {
                codec.written.looks.fetch_add(1, Ordering::Relaxed);
                found.push(*table);
            }
        }
        found
    }

    /// Returns whether any table is compressed.
    pub(crate) fn has_any(&self) -> bool {
        self.has_any.load(Ordering::Acquire)
    }

    /// Returns how to compress a page with these bytes; `None` for as it is.
    fn of_page(&self, bytes: &[u8]) -> Option<PageCodec> {
        if !self.has_any() {
            return None;
        }
        let table = table_of_data(&bytes[HEADER_BYTES..])?;
        let tables = self.read();
        let codec = tables.get(&table).filter(|codec| codec.compression != Compression::None)?;
        let dictionary = self.dictionary_for(codec, codec.compression, bytes);
        Some(PageCodec { compression: codec.compression, dictionary, written: Arc::clone(&codec.written) })
    }

    /// Returns how to compress a page with these bytes as much as the file allows, whatever its table says; `None` for
    /// pages that are never compressed.
    fn smallest_of_page(&self, bytes: &[u8]) -> Option<PageCodec> {
        let table = table_of_data(&bytes[HEADER_BYTES..])?;
        // Zstandard only where the superblock names it already: a build without it may open other files.
        let compression = if HAS_ZSTD && self.needs_zstd() { Compression::Small } else { Compression::Fast };
        let tables = self.read();
        let dictionary = tables.get(&table).and_then(|codec| self.dictionary_for(codec, compression, bytes));
        // Not counted: it says nothing of the table's own codec.
        Some(PageCodec { compression, dictionary, written: Arc::default() })
    }

    /// Returns the dictionary that a page of a table may name when it is compressed in this way.
    fn dictionary_for(&self, codec: &TableCodec, compression: Compression, bytes: &[u8]) -> Option<Arc<Dictionary>> {
        let newest = self.durable.load(Ordering::Acquire).max(page_commit(bytes).0);
        let dictionary = codec.dictionary.as_ref().filter(|(_, since)| since.0 <= newest);
        let dictionary = dictionary.filter(|_| compression == Compression::Small);
        dictionary.map(|(dictionary, _)| Arc::clone(dictionary))
    }

    /// Compresses a page for [`pack_tightly`]. Returns `None` for a page that is better written as it is.
    fn compress_tightly(
        &self,
        file: FileCodec<'_>,
        (page, bytes): (PageId, &[u8]),
        was_compressed: bool,
    ) -> Option<CompressedPage> {
        let of_table = self.of_page(bytes).and_then(|codec| codec.compress(file, page, bytes));
        let smallest = was_compressed.then(|| self.smallest_of_page(bytes)).flatten();
        let smallest = smallest.and_then(|codec| codec.compress(file, page, bytes));
        of_table.into_iter().chain(smallest).min_by_key(CompressedPage::len_bytes)
    }

    fn read(&self) -> RwLockReadGuard<'_, FxHashMap<u32, TableCodec>> {
        self.tables.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> RwLockWriteGuard<'_, FxHashMap<u32, TableCodec>> {
        self.tables.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The content written to one block.
pub(crate) enum BlockContent<T> {
    /// A page as it is.
    Whole(T),
    /// The bytes of a block with several compressed pages, each with its tag.
    Packed { block: Arc<IoBuf>, pages: Vec<(T, Tag)> },
}

impl<T> BlockContent<T> {
    /// Returns the first page.
    pub(crate) fn first(&self) -> Option<&T> {
        match self {
            Self::Whole(page) => Some(page),
            Self::Packed { pages, .. } => pages.first().map(|(page, _)| page),
        }
    }

    /// Returns whether `is_so` holds for any of the pages.
    pub(crate) fn any(&self, is_so: impl Fn(&T) -> bool) -> bool {
        match self {
            Self::Whole(page) => is_so(page),
            Self::Packed { pages, .. } => pages.iter().any(|(page, _)| is_so(page)),
        }
    }

    /// Returns the pages with their locations, once the content was written to `block`. `tag_of` returns the tag of a
    /// page written as it is.
    pub(crate) fn located(self, block: BlockId, tag_of: impl Fn(&T) -> Tag) -> Vec<(T, Location)> {
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
    pub(crate) fn sharing(&self) -> usize {
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
    /// Begins a block with one page.
    fn of(item: T, page: CompressedPage, page_bytes: usize) -> Self {
        let room = room_bytes(page_bytes) - page.len_bytes();
        Self { pages: vec![(item, page)], room }
    }

    /// Returns the room left with one more page; `None` when the page does not fit. Two versions of one page
    /// never share a block, as a block tells the versions of a page apart.
    fn left_with(&self, page: &CompressedPage) -> Option<usize> {
        let is_possible =
            self.pages.len() < PAGES_A_BLOCK_MAX && self.pages.iter().all(|(_, other)| other.page() != page.page());
        self.room.checked_sub(page.len_bytes()).filter(|_| is_possible)
    }

    /// Encodes the block, with at least `least` pages. Pages are written as they are where they are fewer, and when there
    /// is no memory.
    fn close(self, page_bytes: usize, least: usize) -> Vec<BlockContent<T>> {
        let block = if self.pages.len() >= least { IoBuf::zeroed(page_bytes, PageKind::Small).ok() } else { None };
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
pub(crate) fn pack<T>(
    codecs: &TableCodecs,
    (file, page_bytes): (FileCodec<'_>, usize),
    pages: impl IntoIterator<Item = T>,
    sealed: impl Fn(&T) -> (PageId, &[u8]),
) -> Vec<BlockContent<T>> {
    let mut contents = Vec::new();
    let mut open: Vec<OpenBlock<T>> = Vec::new();
    for item in pages {
        let (page, bytes) = sealed(&item);
        let Some(compressed) = codecs.of_page(bytes).and_then(|codec| codec.compress(file, page, bytes)) else {
            contents.push(BlockContent::Whole(item));
            continue;
        };
        let Some((item, compressed)) = into_fullest(&mut open, item, compressed) else { continue };
        if open.len() == OPEN_BLOCKS {
            // A page that is alone is better written as it is.
            contents.extend(open.remove(0).close(page_bytes, 2));
        }
        open.push(OpenBlock::of(item, compressed, page_bytes));
    }
    contents.extend(open.into_iter().flat_map(|block| block.close(page_bytes, 2)));
    contents
}

/// Packs sealed pages into as few blocks as possible, in any order. `was_compressed` returns whether a page lay compressed
/// in the file before: it stays so, whatever its table says, and is compressed as much as the file allows.
pub(crate) fn pack_tightly<T>(
    codecs: &TableCodecs,
    (file, page_bytes): (FileCodec<'_>, usize),
    pages: impl IntoIterator<Item = T>,
    sealed: impl Fn(&T) -> (PageId, &[u8]),
    was_compressed: impl Fn(&T) -> bool,
) -> Vec<BlockContent<T>> {
    let (mut contents, mut compressed) = (Vec::new(), Vec::new());
    for item in pages {
        match codecs.compress_tightly(file, sealed(&item), was_compressed(&item)) {
            Some(page) => compressed.push((item, page)),
            None => contents.push(BlockContent::Whole(item)),
        }
    }
    // Best fit, the longest first: never more than eleven ninths of the fewest blocks, and one more.
    compressed.sort_by_key(|(_, page)| std::cmp::Reverse(page.len_bytes()));
    let mut open: Vec<OpenBlock<T>> = Vec::new();
    for (item, page) in compressed {
        if let Some((item, page)) = into_fullest(&mut open, item, page) {
            open.push(OpenBlock::of(item, page, page_bytes));
        }
    }
    // A page that is alone is compressed as well: so it is known to take a part of a block, and can be packed again.
    contents.extend(open.into_iter().flat_map(|block| block.close(page_bytes, 1)));
    contents
}

/// Adds a page to the fullest block with room for it; returns the page when there is none.
fn into_fullest<T>(open: &mut [OpenBlock<T>], item: T, page: CompressedPage) -> Option<(T, CompressedPage)> {
    let fitting = open.iter_mut().filter_map(|block| Some((block.left_with(&page)?, block)));
    let Some((left, block)) = fitting.min_by_key(|(left, _)| *left) else { return Some((item, page)) };
    block.room = left;
    block.pages.push((item, page));
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{Dictionaries, DictionaryOrigin, HAS_ZSTD};
    use crate::format::compressed::restore_page;
    use crate::format::node_mut::{NodeSpec, init};
    use crate::format::seal_page;

    const PAGE_BYTES: usize = 4096;
    const TABLE: TableId = TableId(5 << 32 | 7);

    type Sealed = (PageId, Vec<u8>);

    /// Returns a leaf of the table that takes about a tenth of a page when it is compressed.
    fn leaf(page: u64, commit: u64) -> Sealed {
        let mut bytes = vec![0; PAGE_BYTES];
        init(
            &mut bytes[HEADER_BYTES..],
            &NodeSpec { level: 0, table: TABLE, lower: &[], upper: None, first_child: None },
        );
        let mut random = fastrand::Rng::with_seed(page);
        bytes[1000..1000 + 300].iter_mut().for_each(|byte| *byte = random.u8(..));
        seal_page(1, PageId(page), CommitSeq(commit), &mut bytes);
        (PageId(page), bytes)
    }

    fn packed(codecs: &TableCodecs, dictionaries: &Dictionaries, pages: &[Sealed]) -> Vec<BlockContent<Sealed>> {
        let file = FileCodec { file_id: 1, dictionaries };
        pack(codecs, (file, PAGE_BYTES), pages.iter().cloned(), |(page, bytes)| (*page, bytes))
    }

    #[test]
    fn pages_of_compressed_tables_share_blocks_from_which_they_are_restored() {
        let (codecs, dictionaries) = (TableCodecs::default(), Dictionaries::default());
        let pages: Vec<Sealed> = (1..40).map(|page| leaf(page, page)).collect();
        let whole = packed(&codecs, &dictionaries, &pages);
        assert!(whole.len() == 39 && whole.iter().all(|content| content.sharing() == 0), "no table is compressed");
        codecs.set(TABLE, Compression::Fast);
        let mut restored = 0;
        for content in packed(&codecs, &dictionaries, &pages) {
            let BlockContent::Packed { block, pages } = &content else { panic!("a page alone") };
            assert!(pages.len() > 1);
            let file = FileCodec { file_id: 1, dictionaries: &dictionaries };
            for ((page, bytes), tag) in pages {
                let at = Location { block: BlockId(9), tag: *tag, is_compressed: true };
                let mut into = vec![0; PAGE_BYTES];
                restore_page(file, *page, at, block, &mut into).unwrap();
                assert!(into == *bytes);
                restored += 1;
            }
        }
        assert_eq!(restored, 39);
    }

    #[test]
    fn two_versions_of_a_page_never_share_a_block() {
        let (codecs, dictionaries) = (TableCodecs::default(), Dictionaries::default());
        codecs.set(TABLE, Compression::Fast);
        let pages: Vec<Sealed> = (1..30).map(|number| leaf(number % 5, number)).collect();
        for content in packed(&codecs, &dictionaries, &pages) {
            if let BlockContent::Packed { pages, .. } = content {
                let mut ids: Vec<PageId> = pages.iter().map(|((page, _), _)| *page).collect();
                ids.sort_unstable();
                ids.dedup();
                assert_eq!(ids.len(), pages.len(), "a block tells the versions of a page apart by nothing");
            }
        }
    }

    #[test]
    fn a_page_names_a_dictionary_only_where_every_checkpoint_that_names_the_page_has_it() {
        if !HAS_ZSTD {
            println!("left out: this build has no zstd");
            return;
        }
        let (codecs, dictionaries) = (TableCodecs::default(), Dictionaries::default());
        let dictionary = |number, ordinal| {
            let origin = DictionaryOrigin { table: TABLE, ordinal, ratio: 1000 };
            Arc::new(Dictionary::new(number, origin, &leaf(1, 1).1[900..2000]).unwrap())
        };
        // The numbers of the dictionaries that pages of the commits 8 and 9 name.
        let named = || {
            let content = packed(&codecs, &dictionaries, &[leaf(1, 8), leaf(2, 9)]).remove(0);
            let BlockContent::Packed { block, .. } = content else { panic!("a page alone") };
            let records =
                [1, 2].map(|entry| usize::from(u16::from_le_bytes([block[entry * 8 + 14], block[entry * 8 + 15]])));
            records.map(|at| u16::from_le_bytes([block[at + 20], block[at + 21]]))
        };
        codecs.use_dictionary(dictionary(4, 1), CommitSeq(9));
        codecs.set(TABLE, Compression::Fast);
        assert_eq!(named(), [0, 0], "another codec");
        codecs.set(TABLE, Compression::Small);
        assert!(codecs.needs_zstd());
        assert_eq!(named(), [0, 4]);
        codecs.checkpoint_durable(CommitSeq(8));
        assert_eq!(named(), [0, 4]);
        codecs.checkpoint_durable(CommitSeq(9));
        assert_eq!(named(), [4, 4]);
        codecs.use_dictionary(dictionary(3, 0), CommitSeq(1));
        assert_eq!(named(), [4, 4], "an older one of the table");
        codecs.use_dictionary(dictionary(2, 2), CommitSeq(9));
        assert_eq!(named(), [2, 2]);
        codecs.set(TABLE, Compression::None);
        codecs.set(TABLE, Compression::Small);
        assert_eq!(named(), [2, 2]);
        codecs.forget(TABLE);
        codecs.set(TABLE, Compression::Small);
        assert_eq!(named(), [0, 0]);
    }

    #[test]
    fn tables_are_looked_at_when_enough_was_written_and_pages_have_become_larger() {
        if !HAS_ZSTD {
            println!("left out: this build has no zstd");
            return;
        }
        let (codecs, dictionaries) = (TableCodecs::default(), Dictionaries::default());
        codecs.set(TABLE, Compression::Small);
        let pages: Vec<Sealed> = (1..40).map(|page| leaf(page, page)).collect();
        packed(&codecs, &dictionaries, &pages[..2]);
        assert!(codecs.take_untrained(100_000, 1.15).is_empty(), "too little");
        packed(&codecs, &dictionaries, &pages);
        assert_eq!(codecs.take_untrained(100_000, 1.15), [TABLE.0 as u32], "it has no dictionary");
        packed(&codecs, &dictionaries, &pages);
        assert!(codecs.take_untrained(100_000, 1.15).is_empty(), "the last look was in vain");
        packed(&codecs, &dictionaries, &pages);
        assert_eq!(codecs.take_untrained(100_000, 1.15), [TABLE.0 as u32]);
        for (ordinal, ratio, is_due) in [(1, 5000, false), (2, 100, true)] {
            let origin = DictionaryOrigin { table: TABLE, ordinal, ratio };
            let dictionary = Dictionary::new(1, origin, &leaf(1, 1).1[900..2000]).unwrap();
            codecs.use_dictionary(Arc::new(dictionary), CommitSeq(0));
            assert!(codecs.take_untrained(1, 1.15).is_empty(), "nothing was written since");
            packed(&codecs, &dictionaries, &pages);
            assert_eq!(!codecs.take_untrained(100_000, 1.15).is_empty(), is_due, "ratio {ratio}");
            assert!(codecs.take_untrained(1, 1.15).is_empty(), "counted anew");
        }
    }

    /// Returns a leaf of the table with this many random bytes.
    fn leaf_of(page: u64, random_bytes: usize) -> Sealed {
        let (page, mut bytes) = leaf(page, 1);
        let mut random = fastrand::Rng::with_seed(page.0);
        bytes[1000..1000 + random_bytes].iter_mut().for_each(|byte| *byte = random.u8(..));
        seal_page(1, page, CommitSeq(1), &mut bytes);
        (page, bytes)
    }

    #[test]
    fn packed_tightly_pages_stay_compressed_and_find_partners_wherever_they_are() {
        let (codecs, dictionaries) = (TableCodecs::default(), Dictionaries::default());
        // The first half takes more than half of a block each, the second half the rest of one.
        let pages: Vec<Sealed> = (1..41).map(|page| leaf_of(page, if page <= 20 { 2300 } else { 1300 })).collect();
        let pack_these = |pages: &[Sealed], were_compressed: bool| {
            let shape = (FileCodec { file_id: 1, dictionaries: &dictionaries }, PAGE_BYTES);
            pack_tightly(&codecs, shape, pages.to_vec(), |(page, bytes)| (*page, bytes), |_| were_compressed)
        };
        let tightly = |were_compressed| pack_these(&pages, were_compressed);
        assert_eq!(tightly(false).len(), 40, "the table is not compressed, and was not");
        let kept = tightly(true);
        assert!(kept.len() == 20 && kept.iter().all(|content| content.sharing() == 2), "{} blocks", kept.len());
        codecs.set(TABLE, Compression::Fast);
        assert!(packed(&codecs, &dictionaries, &pages).len() > 25, "in order, they find fewer partners");
        assert_eq!(tightly(false).len(), 20);
        assert_eq!(pack_these(&pages[..1], false)[0].sharing(), 1, "it is known to share its block");
    }
}
