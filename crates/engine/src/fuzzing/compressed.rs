//! Blocks of compressed pages.

use std::sync::Arc;

use super::{FILE_ID, Input};
use crate::codec::{Compression, Dictionaries, Dictionary, DictionaryOrigin};
use crate::error::ErrorKind;
use crate::format::compressed::{CompressedPage, FileCodec, encode_block, forge_checksums, restore_page};
use crate::format::{BlockId, CommitSeq, Location, PageId, TableId, Tag, check_page, seal_page};

const PAGE_BYTES: usize = 512;

/// Restores the pages of a block: of one that is sound but for a few bytes, or of any bytes. All records have the right
/// checksums, so that what follows the check is reached as well. Of the two dictionaries one is sound and one may be
/// forged.
pub fn compressed(bytes: &[u8]) {
    let mut input = Input(bytes);
    let mut block = vec![0; PAGE_BYTES];
    let dictionaries = Dictionaries::default();
    let forged_bytes = usize::from(input.u8());
    let forged = input.bytes(forged_bytes).to_vec();
    let with_magic = [&[0x37, 0xA4, 0x30, 0xEC, 0, 0, 0, 0], &forged[..]].concat();
    let common: Vec<u8> = (0..200).collect();
    for (number, bytes) in [(1, &common), (2, &forged), (3, &with_magic)] {
        let origin = DictionaryOrigin { table: TableId(1), ordinal: 1, ratio: 0 };
        dictionaries.add(number, Dictionary::new(number, origin, bytes).map(Arc::new));
    }
    let file = FileCodec { file_id: FILE_ID, dictionaries: &dictionaries };
    let sound = |number: u64, filled: u8, kind: u8| {
        let mut page = vec![filled; PAGE_BYTES];
        page[100..300].copy_from_slice(&common);
        seal_page(FILE_ID, PageId(number), CommitSeq(number), &mut page);
        let dictionary = dictionaries.get(u16::from(kind >> 4 & 3));
        let compression = if kind & 1 == 0 { Compression::Fast } else { Compression::Small };
        let dictionary = dictionary.as_deref().filter(|_| compression == Compression::Small);
        CompressedPage::of(file, PageId(number), &page, compression, dictionary)
    };
    let pages = u64::from(input.u8() % 4);
    let mut pages: Vec<CompressedPage> =
        (0..pages).filter_map(|number| sound(number, input.u8(), input.u8())).collect();
    while pages.iter().map(CompressedPage::len_bytes).sum::<usize>() > PAGE_BYTES - 16 {
        pages.pop();
    }
    if pages.is_empty() {
        let rest = input.bytes(PAGE_BYTES - 8);
        block[..8].copy_from_slice(b"nfcompr1");
        block[8..8 + rest.len()].copy_from_slice(rest);
    } else {
        encode_block(&pages, &mut block);
        while !input.is_empty() {
            let at = usize::from(input.u16()) % PAGE_BYTES;
            block[at] = input.u8();
        }
    }
    let mut into = vec![0; PAGE_BYTES];
    for (page, tag) in forge_checksums(FILE_ID, &mut block) {
        let at = Location { block: BlockId(300), tag, is_compressed: true };
        match restore_page(file, page, at, &block, &mut into) {
            Ok(()) => {
                let whole = Location::of_whole(BlockId(300), Tag::of_page(&into));
                assert!(check_page(FILE_ID, page, whole, &into).is_ok(), "a restored page has a wrong header");
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}"),
        }
    }
}
