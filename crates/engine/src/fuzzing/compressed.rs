//! Blocks of compressed pages.

use super::{FILE_ID, Input};
use crate::codec::Compression;
use crate::error::ErrorKind;
use crate::format::compressed::{CompressedPage, encode_block, forge_checksums, restore_page};
use crate::format::{BlockId, CommitSeq, Location, PageId, Tag, check_page, seal_page};

const PAGE_BYTES: usize = 512;

/// Restores the pages of a block: of one that is sound but for a few bytes, or of any bytes. All records have the right
/// checksums, so that what follows the check is reached as well.
pub fn compressed(bytes: &[u8]) {
    let mut input = Input(bytes);
    let mut block = vec![0; PAGE_BYTES];
    let sound = |number: u64, filled: u8| {
        let mut page = vec![filled; PAGE_BYTES];
        seal_page(FILE_ID, PageId(number), CommitSeq(number), &mut page);
        CompressedPage::of(FILE_ID, PageId(number), &page, Compression::Fast)
    };
    let pages = u64::from(input.u8() % 4);
    let pages: Vec<CompressedPage> = (0..pages).filter_map(|number| sound(number, input.u8())).collect();
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
        match restore_page(FILE_ID, page, at, &block, &mut into) {
            Ok(()) => {
                let whole = Location::of_whole(BlockId(300), Tag::of_page(&into));
                assert!(check_page(FILE_ID, page, whole, &into).is_ok(), "a restored page has a wrong header");
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}"),
        }
    }
}
