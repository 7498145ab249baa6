//! Pages read to be moved, packed into blocks again.

use std::collections::VecDeque;

use nofault_io::aligned::{IoBuf, PageKind};

use crate::buffer_pool::evict::BlockContent;
use crate::codec::Compression;
use crate::error::{Error, Result};
use crate::format::{BlockId, PageId};

/// A page read to be moved.
pub(super) struct MovingPage {
    /// Its index in the list of pages to be moved.
    pub(super) index: usize,
    pub(super) page: PageId,
    /// The page as it is in memory.
    pub(super) bytes: Vec<u8>,
    /// The codec of the record from which it was restored; `None` for a page that had a block to itself.
    pub(super) codec: Compression,
}

impl MovingPage {
    /// Returns the id and the bytes of the page.
    pub(super) fn sealed(&self) -> (PageId, &[u8]) {
        (self.page, &self.bytes)
    }
}

/// Pages read to be moved, packed into blocks again: what is to be written next.
pub(super) struct RepackedPages {
    pub(super) contents: VecDeque<BlockContent<MovingPage>>,
}

impl RepackedPages {
    pub(super) fn page_count(&self) -> u64 {
        self.contents.iter().map(|content| content.sharing().max(1) as u64).sum()
    }

    /// Returns whether a page was compressed in another way than this.
    pub(super) fn has_other_codec(&self, compression: Compression) -> bool {
        let differs = |page: &MovingPage| page.codec != Compression::None && page.codec != compression;
        self.contents.iter().any(|content| content.any(differs))
    }

    /// Returns the bytes of the next blocks, which are to be written to the blocks of `to`: a buffer for each run of
    /// consecutive blocks, with the run's first block.
    pub(super) fn buffers(&self, to: &[BlockId], page_bytes: usize) -> Result<Vec<(BlockId, IoBuf)>> {
        let mut contents = self.contents.iter();
        let mut runs = Vec::new();
        for run in to.chunk_by(|block, next| block.0 + 1 == next.0) {
            let mut buffer = IoBuf::zeroed(run.len() * page_bytes, PageKind::Small)
                .map_err(|error| Error::from_io("take memory for moving pages", error))?;
            // The contents come second, because `zip` takes one only when there is a block for it.
            for (target, content) in buffer.chunks_exact_mut(page_bytes).zip(contents.by_ref()) {
                match content {
                    BlockContent::Whole(moving) => target.copy_from_slice(&moving.bytes),
                    BlockContent::Packed { block, .. } => target.copy_from_slice(block),
                }
            }
            runs.push((run[0], buffer));
        }
        Ok(runs)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::format::Tag;

    const PAGE_BYTES: usize = 512;

    /// A page whose bytes are all `mark`, as it is or in a block with another one.
    fn content(mark: u8, is_packed: bool) -> BlockContent<MovingPage> {
        let moving = |bytes| MovingPage { index: 0, page: PageId(mark.into()), bytes, codec: Compression::None };
        if !is_packed {
            return BlockContent::Whole(moving(vec![mark; PAGE_BYTES]));
        }
        let mut block = IoBuf::zeroed(PAGE_BYTES, PageKind::Small).unwrap();
        block.fill(mark);
        BlockContent::Packed { block: Arc::new(block), pages: vec![(moving(Vec::new()), Tag::of(0))] }
    }

    #[test]
    fn each_block_of_scattered_runs_gets_the_next_content() {
        let places: [&[u64]; 4] = [&[7], &[5, 6, 7], &[5, 7, 9], &[3, 4, 9, 10, 11, 20]];
        for (blocks, is_packed) in places.into_iter().flat_map(|blocks| [(blocks, false), (blocks, true)]) {
            // One more than there are blocks: it is not written.
            let contents = (0..=blocks.len()).map(|mark| content(mark as u8 + 1, is_packed)).collect();
            let to: Vec<BlockId> = blocks.iter().copied().map(BlockId).collect();
            let runs = RepackedPages { contents }.buffers(&to, PAGE_BYTES).unwrap();
            let written = runs.iter().flat_map(|(first, buffer)| {
                (first.0..).zip(buffer.chunks_exact(PAGE_BYTES)).map(|(block, bytes)| (block, bytes.to_vec()))
            });
            let expected: Vec<_> =
                blocks.iter().zip(1..).map(|(block, mark)| (*block, vec![mark; PAGE_BYTES])).collect();
            assert_eq!(written.collect::<Vec<_>>(), expected, "blocks {blocks:?}, packed: {is_packed}");
        }
    }
}
