//! The bytes of a simulated file: sparse, in pages that clones share until one of them writes.
//!
//! A test cuts the power thousands of times and each cut copies every file; so a copy is one reference count per file,
//! and a write after it copies the page table and the pages it touches. No more.

use std::ops::Range;
use std::sync::Arc;

/// Unit of sharing and of space accounting. Nothing to do with the pages of a database.
pub(super) const PAGE_BYTES: usize = 4096;
/// Limit of the length of a simulated file: one wild offset must end in an error, not in a table of that size.
pub(super) const FILE_BYTES_MAX: u64 = 16 << 30;

pub(super) type Page = [u8; PAGE_BYTES];

#[derive(Clone, Debug)]
enum Slot {
    /// The page takes no space and reads as zero.
    Hole,
    /// The page takes space, was never written, and reads as zero.
    Zero,
    Data(Arc<Page>),
}

/// An array of bytes; bytes never written read as zero. It knows no length.
#[derive(Clone, Debug, Default)]
pub(super) struct Bytes {
    slots: Arc<Vec<Slot>>,
    held: u64,
}

impl Bytes {
    /// Returns the number of pages that take space.
    pub(super) fn pages_held(&self) -> u64 {
        self.held
    }

    /// Returns the number of pages that a write or allocation of this range would add.
    pub(super) fn pages_missing(&self, range: Range<u64>) -> u64 {
        pages_of(range).filter(|page| matches!(self.slots.get(*page), None | Some(Slot::Hole))).count() as u64
    }

    pub(super) fn read(&self, offset: u64, into: &mut [u8]) {
        for (page, inside, part) in cut(offset, into.len()) {
            match self.slots.get(page) {
                Some(Slot::Data(data)) => into[part].copy_from_slice(&data[inside]),
                _ => into[part].fill(0),
            }
        }
    }

    pub(super) fn write(&mut self, offset: u64, data: &[u8]) {
        for (page, inside, part) in cut(offset, data.len()) {
            let slot = self.slot_mut(page);
            match slot {
                Slot::Data(old) => Arc::make_mut(old)[inside].copy_from_slice(&data[part]),
                _ => {
                    let mut fresh = [0; PAGE_BYTES];
                    fresh[inside].copy_from_slice(&data[part]);
                    *slot = Slot::Data(Arc::new(fresh));
                }
            }
        }
    }

    /// Returns a shared copy of the page.
    pub(super) fn page(&self, page: usize) -> Arc<Page> {
        match self.slots.get(page) {
            Some(Slot::Data(data)) => data.clone(),
            _ => Arc::new([0; PAGE_BYTES]),
        }
    }

    pub(super) fn set_page(&mut self, page: usize, data: Arc<Page>) {
        *self.slot_mut(page) = Slot::Data(data);
    }

    /// Allocates the space of a range; parts without space read as zero, as before.
    pub(super) fn allocate(&mut self, range: Range<u64>) {
        for page in pages_of(range) {
            self.slot_mut(page);
        }
    }

    /// Frees the space beyond `len` and forgets the bytes there.
    pub(super) fn truncate(&mut self, len: u64) {
        let keep = len.div_ceil(PAGE_BYTES as u64) as usize;
        if self.slots.len() > keep {
            let slots = Arc::make_mut(&mut self.slots);
            self.held -= slots.drain(keep..).filter(|slot| !matches!(slot, Slot::Hole)).count() as u64;
        }
        let tail = (len % PAGE_BYTES as u64) as usize;
        if tail != 0 && matches!(self.slots.get(keep - 1), Some(Slot::Data(_))) {
            let zeroes = [0; PAGE_BYTES];
            self.write(len, &zeroes[tail..]);
        }
    }

    /// Returns the slot of a page, after allocating space for it.
    fn slot_mut(&mut self, page: usize) -> &mut Slot {
        let slots = Arc::make_mut(&mut self.slots);
        if slots.len() <= page {
            slots.resize(page + 1, Slot::Hole);
        }
        let slot = &mut slots[page];
        if matches!(slot, Slot::Hole) {
            *slot = Slot::Zero;
            self.held += 1;
        }
        slot
    }
}

/// Returns the pages that a range touches.
pub(super) fn pages_of(range: Range<u64>) -> Range<usize> {
    if range.is_empty() {
        return 0..0;
    }
    (range.start / PAGE_BYTES as u64) as usize..range.end.div_ceil(PAGE_BYTES as u64) as usize
}

/// Cuts `len` bytes at `offset` along page borders: page, range inside the page, range inside the bytes.
fn cut(offset: u64, len: usize) -> impl Iterator<Item = (usize, Range<usize>, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        (done < len).then(|| {
            let at = offset + done as u64;
            let inside = (at % PAGE_BYTES as u64) as usize;
            let count = (PAGE_BYTES - inside).min(len - done);
            let part = done..done + count;
            done += count;
            ((at / PAGE_BYTES as u64) as usize, inside..inside + count, part)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_keeps_its_bytes_when_the_original_is_written_and_truncated() {
        let mut bytes = Bytes::default();
        bytes.write(4090, b"0123456789abcdef");
        let copy = bytes.clone();
        bytes.write(4096, b"XX");
        bytes.truncate(4097);
        bytes.allocate(0..8192);
        let mut seen = [0; 20];
        copy.read(4088, &mut seen);
        assert_eq!(&seen, b"\0\x000123456789abcdef\0\0");
        bytes.read(4088, &mut seen);
        assert_eq!(&seen, b"\0\x00012345X\0\0\0\0\0\0\0\0\0\0\0");
        assert_eq!((bytes.pages_held(), bytes.pages_missing(4096..12289)), (2, 2));
    }
}
