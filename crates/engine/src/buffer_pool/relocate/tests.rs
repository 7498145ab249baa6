//! The bytes that are written to the blocks to which pages move.

use super::*;

const PAGE_BYTES: usize = 512;

/// A page whose bytes are all `mark`, as it is or in a block with another one.
fn content(mark: u8, is_packed: bool) -> BlockContent<MovingPage> {
    let moving = |bytes| MovingPage { index: 0, page: PageId(mark.into()), bytes };
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
        let expected: Vec<_> = blocks.iter().zip(1..).map(|(block, mark)| (*block, vec![mark; PAGE_BYTES])).collect();
        assert_eq!(written.collect::<Vec<_>>(), expected, "blocks {blocks:?}, packed: {is_packed}");
    }
}
