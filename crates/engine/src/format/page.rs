//! The header every page starts with. It belongs to the buffer pool: tree code sees only the *body*, the bytes after it.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | checksum: CRC-64/NVME over file id, page id, and bytes 8.. of the page |
//! | 8 | 8 | the page's own id |
//! | 16 | 8 | commit that changed it last |
//! | 24 | 16 | reserved for an encryption tag; zero |
//!
//! The header is sealed when the page is published, so from then on no byte of it changes.

use super::checksum::{Tag, page_checksum};
use super::fields::u64_at;
use super::{CommitSeq, Location, PageId};
use crate::error::{Error, Result};

/// Length of the page header, in bytes.
pub(crate) const HEADER_BYTES: usize = 40;
/// Smallest page. Databases start at 4096; smaller ones make small trees tall in tests.
pub(crate) const PAGE_BYTES_MIN: usize = 512;
/// Largest page: offsets in a node are 16 bits.
pub(crate) const PAGE_BYTES_MAX: usize = 65536;

/// Fills the header of a page that is ready to be published. Returns the tag that tells this version from others.
pub(crate) fn seal_page(file_id: u64, page: PageId, commit: CommitSeq, bytes: &mut [u8]) -> Tag {
    bytes[8..16].copy_from_slice(&page.0.to_le_bytes());
    bytes[16..24].copy_from_slice(&commit.0.to_le_bytes());
    bytes[24..HEADER_BYTES].fill(0);
    let sum = page_checksum(file_id, page, &bytes[8..]);
    bytes[..8].copy_from_slice(&sum.to_le_bytes());
    Tag::of(sum)
}

/// Checks bytes read for `page` from `at`.
///
/// # Errors
/// `Corrupt`, saying whether the bytes are damaged, another page's, or another version of this page.
pub(crate) fn check_page(file_id: u64, page: PageId, at: Location, bytes: &[u8]) -> Result<()> {
    let broken = |what: String| {
        let position = u128::from(at.block.0) * bytes.len() as u128;
        Err(Error::corrupt_page(page, format!("at byte {position} of the data file: {what}")))
    };
    if bytes.len() < HEADER_BYTES {
        return broken("shorter than a page header".into());
    }
    let stored = u64_at(bytes, 0);
    if stored != page_checksum(file_id, page, &bytes[8..]) {
        let found = PageId(u64_at(bytes, 8));
        if found != page && stored == page_checksum(file_id, found, &bytes[8..]) {
            return broken(format!("page {found} is there, written or read at the wrong place"));
        }
        let empty = bytes.iter().all(|byte| *byte == 0);
        return broken(if empty { "only zeroes".into() } else { "checksum does not match".into() });
    }
    if Tag::of(stored) != at.tag {
        return broken(format!(
            "a whole page, but of commit {}, not the version that was written last",
            u64_at(bytes, 16)
        ));
    }
    Ok(())
}

/// Returns id, commit and tag of the page in a block, if the block holds a whole page of this file, whichever it is.
pub(crate) fn whole_page(file_id: u64, bytes: &[u8]) -> Option<(PageId, CommitSeq, Tag)> {
    if bytes.len() < HEADER_BYTES {
        return None;
    }
    let (stored, page) = (u64_at(bytes, 0), page_id(bytes));
    // Page ids are below 2^48; what has a larger number there is no page.
    (page.0 < 1 << 48 && stored == page_checksum(file_id, page, &bytes[8..]))
        .then(|| (page, page_commit(bytes), Tag::of(stored)))
}

/// Returns the id that a page's header names, from bytes that were checked.
pub(crate) fn page_id(bytes: &[u8]) -> PageId {
    PageId(u64_at(bytes, 8))
}

/// Returns the number of the commit that changed a page last, from bytes that were checked.
pub(crate) fn page_commit(bytes: &[u8]) -> CommitSeq {
    CommitSeq(u64_at(bytes, 16))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::BlockId;

    #[test]
    fn damaged_misdirected_stale_and_empty_pages_are_told_apart() {
        let mut bytes = vec![3; 4096];
        let tag = seal_page(9, PageId(4), CommitSeq(2), &mut bytes);
        let at = Location::of_whole(BlockId(33), tag);
        check_page(9, PageId(4), at, &bytes).unwrap();
        assert_eq!(page_commit(&bytes), CommitSeq(2));
        let text = |page, at, bytes: &[u8]| check_page(9, page, at, bytes).unwrap_err().to_string();
        assert!(text(PageId(5), at, &bytes).contains("page 4 is there"));
        let old = bytes.clone();
        let newer = seal_page(9, PageId(4), CommitSeq(3), &mut bytes);
        assert!(text(PageId(4), Location { tag: newer, ..at }, &old).contains("of commit 2"));
        bytes[4095] ^= 1;
        assert!(text(PageId(4), at, &bytes).starts_with("page 4: at byte 135168 of the data file: checksum"));
        assert!(text(PageId(4), at, &[0; 4096]).contains("only zeroes"));
        assert!(text(PageId(4), at, &[0; 7]).contains("shorter"));
    }
}
