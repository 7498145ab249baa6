//! A block with compressed pages: several pages, most of them neighbours in key order, share one block. It is the unit
//! of reading and writing, as any other block; a page keeps its size in memory, and only its place in the file shrinks.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | `nfcompr1` |
//! | 8 | 2 | number of pages |
//! | 10 | 6 | zero |
//! | 16 | 8 each | directory: page id (6 bytes), and offset of the page's record (2 bytes) |
//! | … | … | the records |
//!
//! The record of a page:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | checksum: CRC-64/NVME over file id, page id, and bytes 8.. of the record |
//! | 8 | 8 | commit that changed the page last |
//! | 16 | 2 | length of the compressed bytes |
//! | 18 | 1 | codec: 1 LZ4, 2 Zstandard |
//! | 19 | 1 | zero |
//! | 20 | 2 | number of the dictionary, see [`super::catalog`]; zero for none |
//! | 22 | 2 | zero |
//! | 24 | 16 | reserved for an encryption tag; zero |
//! | 40 | 12 | reserved for the nonce of an encryption; zero |
//! | 52 | … | the page's body (the bytes after its header), compressed |
//!
//! A record is checked before it is decompressed. The directory needs no checksum: a record belongs to its page only if
//! the checksum says so, whatever led there. The [`Tag`] of the page comes from the record's checksum, so records of
//! older versions, in a block that was written before or that was read instead of another, are found as older whole
//! pages are. The records say nothing of their place: they can be moved to other blocks.

use super::checksum::{Tag, placed_checksum};
use super::fields::u64_at;
use super::page::{HEADER_BYTES, check_page, page_commit, seal_page};
use super::{CommitSeq, Location, PageId};
use crate::codec::{Compression, Dictionaries, Dictionary, Undecodable};
use crate::error::{Error, Result};

const MAGIC: [u8; 8] = *b"nfcompr1";
/// Bytes before the directory.
const BLOCK_HEADER_BYTES: usize = 16;
/// Bytes of a page in the directory.
const ENTRY_BYTES: usize = 8;
/// Bytes before the compressed bytes of a page.
const RECORD_HEADER_BYTES: usize = 52;
/// Offset of the codec in a record.
const CODEC_AT: usize = 18;
/// Most pages that share a block.
pub(crate) const PAGES_A_BLOCK_MAX: usize = 64;
/// A page is compressed only if that saves at least this share of it, as a divisor.
const WORTHWHILE_SHARE: usize = 8;

/// The properties of a data file with which its pages are checked, compressed and restored.
#[derive(Clone, Copy)]
pub(crate) struct FileCodec<'a> {
    /// The random number of the file, which enters every checksum.
    pub(crate) file_id: u64,
    /// The dictionaries that compressed pages name.
    pub(crate) dictionaries: &'a Dictionaries,
}

/// The record of a compressed page.
#[derive(Debug, Clone)]
pub(crate) struct CompressedPage {
    page: PageId,
    record: Vec<u8>,
}

impl CompressedPage {
    /// Compresses a sealed page. Returns `None` when that does not make it much smaller.
    pub(crate) fn of(
        file: FileCodec<'_>,
        page: PageId,
        sealed: &[u8],
        compression: Compression,
        dictionary: Option<&Dictionary>,
    ) -> Option<Self> {
        let mut record = vec![0; RECORD_HEADER_BYTES];
        let len = file.dictionaries.compress(compression, dictionary, &sealed[HEADER_BYTES..], &mut record)?;
        if record.len() + ENTRY_BYTES > sealed.len() - sealed.len() / WORTHWHILE_SHARE {
            return None;
        }
        record[8..16].copy_from_slice(&page_commit(sealed).0.to_le_bytes());
        record[16..18].copy_from_slice(&u16::try_from(len).ok()?.to_le_bytes());
        record[CODEC_AT] = compression.to_byte();
        record[20..22].copy_from_slice(&dictionary.map_or(0, Dictionary::number).to_le_bytes());
        seal_record(file.file_id, page, &mut record);
        Some(Self { page, record })
    }

    /// Returns the tag of the page's version in this form.
    pub(crate) fn tag(&self) -> Tag {
        Tag::of(u64_at(&self.record, 0))
    }

    pub(crate) fn page(&self) -> PageId {
        self.page
    }

    /// Returns the bytes that the page's body takes, compressed.
    pub(crate) fn body_bytes(&self) -> usize {
        self.record.len() - RECORD_HEADER_BYTES
    }

    /// Returns the bytes that the page takes of a block.
    pub(crate) fn len_bytes(&self) -> usize {
        self.record.len() + ENTRY_BYTES
    }
}

fn seal_record(file_id: u64, page: PageId, record: &mut [u8]) {
    let sum = placed_checksum(file_id, page.0, &record[8..]);
    record[..8].copy_from_slice(&sum.to_le_bytes());
}

/// Returns the bytes of a block that its pages can take.
pub(crate) fn room_bytes(page_bytes: usize) -> usize {
    page_bytes - BLOCK_HEADER_BYTES
}

/// Writes the block of these pages, which must have room in it, into `block`.
pub(crate) fn encode_block(pages: &[CompressedPage], block: &mut [u8]) {
    block.fill(0);
    block[..8].copy_from_slice(&MAGIC);
    block[8..10].copy_from_slice(&(pages.len() as u16).to_le_bytes());
    let mut at = BLOCK_HEADER_BYTES + pages.len() * ENTRY_BYTES;
    for (page, entry) in pages.iter().zip(block[BLOCK_HEADER_BYTES..at].chunks_exact_mut(ENTRY_BYTES)) {
        entry.copy_from_slice(&(page.page.0 | (at as u64) << 48).to_le_bytes());
        at += page.record.len();
    }
    let mut rest = &mut block[BLOCK_HEADER_BYTES + pages.len() * ENTRY_BYTES..];
    for page in pages {
        let (record, later) = rest.split_at_mut(page.record.len());
        record.copy_from_slice(&page.record);
        rest = later;
    }
}

/// Returns the entries of a block's directory: page ids, and offsets of records, which may be wrong; `None` when this
/// is no block of compressed pages.
fn directory(block: &[u8]) -> Option<impl Iterator<Item = (PageId, usize)> + '_> {
    let header = block.get(..BLOCK_HEADER_BYTES).filter(|header| header[..8] == MAGIC)?;
    let count = usize::from(u16::from_le_bytes([header[8], header[9]])).min(PAGES_A_BLOCK_MAX);
    let entries = block[BLOCK_HEADER_BYTES..].chunks_exact(ENTRY_BYTES).take(count).map(|entry| u64_at(entry, 0));
    Some(entries.map(|word| (PageId(word & ((1 << 48) - 1)), (word >> 48) as usize)))
}

/// Returns the number of pages with which a block was written, as its header says.
pub(crate) fn written_pages(block: &[u8]) -> usize {
    directory(block).map_or(0, Iterator::count)
}

/// Returns id, commit and tag of each page of which a block holds a whole record, whichever they are.
pub(crate) fn whole_records(file_id: u64, block: &[u8]) -> Vec<(PageId, CommitSeq, Tag)> {
    let whole = |(page, at): (PageId, usize)| {
        let record = &block[at..at + record_bytes(block, at)?];
        let sum = u64_at(record, 0);
        (sum == placed_checksum(file_id, page.0, &record[8..]))
            .then(|| (page, CommitSeq(u64_at(record, 8)), Tag::of(sum)))
    };
    directory(block).into_iter().flatten().filter_map(whole).collect()
}

/// Writes right checksums into all records of a block, as far as its directory leads to them. Returns the pages, with
/// their tags.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn forge_checksums(file_id: u64, block: &mut [u8]) -> Vec<(PageId, Tag)> {
    let entries: Vec<_> = directory(block).into_iter().flatten().collect();
    let mut seal = |(page, at): (PageId, usize)| {
        let len = record_bytes(block, at)?;
        seal_record(file_id, page, &mut block[at..at + len]);
        Some((page, Tag::of(u64_at(block, at))))
    };
    entries.into_iter().filter_map(&mut seal).collect()
}

/// Returns the length of the record at offset `at`, if it lies within the block.
fn record_bytes(block: &[u8], at: usize) -> Option<usize> {
    let header = block.get(at..at + RECORD_HEADER_BYTES)?;
    let len = RECORD_HEADER_BYTES + usize::from(u16::from_le_bytes([header[16], header[17]]));
    (at + len <= block.len()).then_some(len)
}

/// Returns the codec of the record of a page in a block from which the page was restored.
pub(crate) fn codec_of(page: PageId, block: &[u8]) -> Option<Compression> {
    let (_, at) = directory(block)?.find(|(listed, _)| *listed == page)?;
    Compression::from_byte(*block.get(at..at + RECORD_HEADER_BYTES)?.get(CODEC_AT)?)
}

/// Restores a page from `block`, which was read from `at`, into `into`: for a page alone in its block the bytes of the
/// block, otherwise the bytes that were compressed, with a new header.
///
/// # Errors
/// `Corrupt` when the block does not hold the page in the version that belongs there; `into` has any bytes then.
pub(crate) fn restore_page(
    file: FileCodec<'_>,
    page: PageId,
    at: Location,
    block: &[u8],
    into: &mut [u8],
) -> Result<()> {
    if !at.is_compressed {
        check_page(file.file_id, page, at, block)?;
        into.copy_from_slice(block);
        return Ok(());
    }
    decompress(file, page, at, block, into)
}

/// Restores a page in place, as [`restore_page`] does: `bytes` holds the block before and the page afterwards. `spare`
/// is memory that this may use.
///
/// # Errors
/// As [`restore_page`].
pub(crate) fn restore_in_place(
    file: FileCodec<'_>,
    page: PageId,
    at: Location,
    bytes: &mut [u8],
    spare: &mut Vec<u8>,
) -> Result<()> {
    if !at.is_compressed {
        return check_page(file.file_id, page, at, bytes);
    }
    spare.clear();
    spare.extend_from_slice(bytes);
    decompress(file, page, at, spare, bytes)
}

fn decompress(file: FileCodec<'_>, page: PageId, at: Location, block: &[u8], into: &mut [u8]) -> Result<()> {
    let broken = |what: &str| {
        let position = u128::from(at.block.0) * block.len() as u128;
        Err(Error::corrupt_page(page, format!("compressed at byte {position} of the data file: {what}")))
    };
    let Some(mut entries) = directory(block) else {
        let empty = block.iter().all(|byte| *byte == 0);
        return broken(if empty { "only zeroes" } else { "no block of compressed pages" });
    };
    let Some((_, start)) = entries.find(|(listed, _)| *listed == page) else {
        return broken("the block holds other pages");
    };
    let Some(len) = record_bytes(block, start) else { return broken("its record lies outside of the block") };
    let record = &block[start..start + len];
    let sum = u64_at(record, 0);
    if sum != placed_checksum(file.file_id, page.0, &record[8..]) {
        return broken("checksum does not match");
    }
    let commit = CommitSeq(u64_at(record, 8));
    if Tag::of(sum) != at.tag {
        return broken(&format!("a whole page, but of commit {commit}, not the version that was written last"));
    }
    let (codec, dictionary) = (record[CODEC_AT], u16::from_le_bytes([record[20], record[21]]));
    if record[19] != 0 || record[22..24] != [0; 2] {
        return broken("a record of a kind that this version of nofault does not know");
    }
    let (compressed, body) = (&record[RECORD_HEADER_BYTES..], &mut into[HEADER_BYTES..]);
    match file.dictionaries.decompress(codec, dictionary, compressed, body) {
        Ok(()) => {}
        Err(Undecodable::Codec) => return broken("a codec that this build of nofault does not know"),
        Err(Undecodable::Dictionary) => return broken(&format!("there is no dictionary {dictionary}")),
        Err(Undecodable::Bytes) => return broken("its bytes cannot be decompressed"),
    }
    seal_page(file.file_id, page, commit, into);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use crate::codec::{DictionaryOrigin, HAS_ZSTD};
    use crate::format::{BlockId, TableId};

    const FILE_ID: u64 = 9;

    fn file() -> FileCodec<'static> {
        static DICTIONARIES: LazyLock<Dictionaries> = LazyLock::new(Dictionaries::default);
        FileCodec { file_id: FILE_ID, dictionaries: &DICTIONARIES }
    }

    fn sealed(page: PageId, commit: u64) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..4096).map(|at| ((at / 64) as u8).wrapping_mul(page.0 as u8)).collect();
        seal_page(FILE_ID, page, CommitSeq(commit), &mut bytes);
        bytes
    }

    fn compressed(page: PageId, commit: u64) -> CompressedPage {
        CompressedPage::of(file(), page, &sealed(page, commit), Compression::Fast, None).unwrap()
    }

    fn at(page: &CompressedPage) -> Location {
        Location { block: BlockId(33), tag: page.tag(), is_compressed: true }
    }

    fn restored(page: PageId, at: Location, block: &[u8]) -> Result<Vec<u8>> {
        let mut into = vec![7; 4096];
        restore_page(file(), page, at, block, &mut into)?;
        let mut in_place = block.to_vec();
        restore_in_place(file(), page, at, &mut in_place, &mut vec![1; 9])?;
        assert_eq!(in_place, into);
        Ok(into)
    }

    #[test]
    fn pages_come_back_out_of_their_block_with_their_header() {
        let pages: Vec<CompressedPage> = (1..6).map(|page| compressed(PageId(page), 70 + page)).collect();
        let mut block = vec![1; 4096];
        assert!(pages.iter().map(CompressedPage::len_bytes).sum::<usize>() <= room_bytes(4096));
        encode_block(&pages, &mut block);
        let tags: Vec<_> = pages.iter().map(|page| (page.page(), page.tag())).collect();
        assert_eq!(forge_checksums(FILE_ID, &mut block), tags, "the checksums were right");
        for page in &pages {
            assert_eq!(restored(page.page(), at(page), &block).unwrap(), sealed(page.page(), 70 + page.page().0));
        }
    }

    #[test]
    fn a_block_with_one_record_that_fills_it_is_decoded() {
        let page = compressed(PageId(1), 1);
        let mut block = vec![0; BLOCK_HEADER_BYTES + page.len_bytes()];
        encode_block(std::slice::from_ref(&page), &mut block);
        let mut into = vec![0; 4096];
        restore_page(file(), PageId(1), at(&page), &block, &mut into).unwrap();
    }

    #[test]
    fn damaged_misdirected_stale_and_empty_records_are_told_apart() {
        let (old, new) = (compressed(PageId(4), 2), compressed(PageId(4), 3));
        let mut block = vec![0; 4096];
        encode_block(&[compressed(PageId(3), 1), old.clone()], &mut block);
        let text = |page, at, block: &[u8]| restored(PageId(page), at, block).unwrap_err().to_string();
        assert!(text(4, at(&new), &block).contains("of commit 2, not the version"));
        assert!(text(5, at(&old), &block).contains("holds other pages"));
        assert!(text(4, at(&old), &[0; 4096]).contains("only zeroes"));
        assert!(text(4, at(&old), &sealed(PageId(4), 2)).contains("no block of compressed pages"));
        let whole = Location { is_compressed: false, ..at(&old) };
        assert!(text(4, whole, &block).contains("checksum does not match"));
        let mut cut = block.clone();
        // The offset of the second record, behind the end of the block.
        cut[BLOCK_HEADER_BYTES + ENTRY_BYTES + 6..][..2].copy_from_slice(&4090u16.to_le_bytes());
        assert!(text(4, at(&old), &cut).contains("outside of the block"));
        let last = BLOCK_HEADER_BYTES + compressed(PageId(3), 1).len_bytes() + old.len_bytes() - 1;
        block[last] ^= 1;
        let damaged = text(4, at(&old), &block);
        assert!(damaged.starts_with("page 4: compressed at byte 135168 of the data file: checksum"), "{damaged}");
    }

    #[test]
    fn a_record_of_an_unknown_codec_is_refused_although_its_checksum_is_right() {
        for (offset, byte) in [(18, 99), (19, 1), (20, 1), (21, 1), (22, 1), (18, 0), (18, 2)] {
            let mut page = compressed(PageId(4), 2);
            page.record[offset] = byte;
            seal_record(FILE_ID, PageId(4), &mut page.record);
            let mut block = vec![0; 4096];
            encode_block(std::slice::from_ref(&page), &mut block);
            let error = restored(PageId(4), at(&page), &block).unwrap_err().to_string();
            let reasons = ["does not know", "cannot be decompressed", "there is no dictionary"];
            assert!(reasons.iter().any(|reason| error.contains(reason)), "{offset}: {error}");
        }
    }

    #[test]
    fn a_page_that_names_a_dictionary_is_restored_with_that_one_alone() {
        if !HAS_ZSTD {
            println!("left out: this build has no zstd");
            return;
        }
        let (dictionaries, page) = (Dictionaries::default(), PageId(4));
        let file = FileCodec { file_id: FILE_ID, dictionaries: &dictionaries };
        let origin = DictionaryOrigin { table: TableId(1), ordinal: 1, ratio: 0 };
        // Any bytes will do: then they are what the pages have in common.
        let dictionary = |number, bytes: &[u8]| std::sync::Arc::new(Dictionary::new(number, origin, bytes).unwrap());
        let sealed = sealed(page, 2);
        let first = dictionary(0x0102, &sealed[1000..2000]);
        let packed = CompressedPage::of(file, page, &sealed, Compression::Small, Some(&first)).unwrap();
        assert_eq!(packed.record[18..24], [2, 0, 2, 1, 0, 0]);
        let mut block = vec![0; 4096];
        encode_block(std::slice::from_ref(&packed), &mut block);
        let restored = || {
            let mut into = vec![0; 4096];
            restore_page(file, page, at(&packed), &block, &mut into).map(|()| into).map_err(|error| error.to_string())
        };
        assert!(restored().unwrap_err().contains("there is no dictionary 258"));
        dictionaries.add(0x0102, Some(first));
        assert_eq!(restored().unwrap(), sealed);
    }

    #[test]
    fn random_bytes_stay_as_they_are() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut bytes: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(4096).collect();
        seal_page(FILE_ID, PageId(1), CommitSeq(1), &mut bytes);
        assert!(CompressedPage::of(file(), PageId(1), &bytes, Compression::Fast, None).is_none());
        let sealed = sealed(PageId(1), 1);
        assert!(CompressedPage::of(file(), PageId(1), &sealed, Compression::None, None).is_none());
    }
}
