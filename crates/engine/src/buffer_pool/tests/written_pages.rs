//! Blocks of pages that were written: which are free at once, which are held while a page is moved, and what writing early
//! leaves in memory.

use super::*;
use crate::buffer_pool::relocate::HeldBlocks;
use crate::format::{BlockId, Location};

/// Returns the block of a page whose newest version is on disk.
fn block(pool: &BufferPool, page: PageId) -> BlockId {
    pool.versions.pages().places().place_on_disk(page).unwrap().block
}

fn is_used(pool: &BufferPool, block: BlockId) -> bool {
    pool.metadata().lock().allocator.space.is_used(block)
}

/// Commits a new value of a page, makes it visible, and drops the version before it.
fn change(pool: &BufferPool, seq: u64, page: PageId) {
    commit(pool, seq, &[(page, seq)], &[], &[]).unwrap();
    pool.set_visible(CommitSeq(seq));
    pool.reclaim();
}

#[test]
fn the_block_of_a_replaced_page_is_free_at_once_unless_a_checkpoint_names_it() {
    let world = SimWorld::new(7, SimOptions::calm());
    let pool = pool(&world, 64);
    let page = commit(&pool, 1, &[], &[1], &[]).unwrap()[0];
    pool.set_visible(CommitSeq(1));
    pool.evictor.write_dirty(8);
    let unnamed = block(&pool, page);
    change(&pool, 2, page);
    assert!(!is_used(&pool, unnamed), "no checkpoint has seen it");
    pool.evictor.write_dirty(8);
    let named = block(&pool, page);
    pool.take_over(page, pool.versions.pages().places().place_on_disk(page));
    change(&pool, 3, page);
    assert!(is_used(&pool, named));
}

#[test]
fn a_block_from_which_a_page_is_moved_is_not_reused_before_the_move_ends() {
    let world = SimWorld::new(8, SimOptions::calm());
    let pool = pool(&world, 64);
    let ids = commit(&pool, 1, &[], &[1, 1, 1], &[]).unwrap();
    pool.set_visible(CommitSeq(1));
    pool.evictor.write_dirty(8);
    let blocks: Vec<BlockId> = ids.iter().map(|page| block(&pool, *page)).collect();
    let but_last = |at: Location| at.block != blocks[2];
    let (held, found) = HeldBlocks::of_pages(&pool.versions, ids.iter().copied(), but_last);
    assert_eq!(found.iter().map(|(page, _)| *page).collect::<Vec<_>>(), ids[..2]);
    for (seq, page) in (2..).zip(&ids) {
        change(&pool, seq, *page);
    }
    assert!(blocks[..2].iter().all(|block| is_used(&pool, *block)), "they are being read");
    // The old location of a page leads nowhere any more, although its block is still there.
    let to = pool.metadata().lock().allocator.allocate().unwrap();
    assert!(!pool.versions.pages().places().replace_place(ids[0], found[0].1, Location { block: to, ..found[0].1 }));
    drop(held);
    assert!(blocks.iter().all(|block| !is_used(&pool, *block)));
}

#[test]
fn dirty_pages_that_are_written_early_stay_in_memory_and_each_is_written_once() {
    let world = SimWorld::new(9, SimOptions::calm());
    let pool = pool(&world, 200);
    let ids: Vec<PageId> = (1..=14).flat_map(|seq| commit(&pool, seq, &[], &[seq; 10], &[]).unwrap()).collect();
    pool.set_visible(CommitSeq(14));
    assert_eq!(pool.evictor.write_dirty(50), 50);
    assert_eq!(pool.evictor.write_dirty(50), 50, "it goes on where it stopped");
    let stats = pool.stats();
    assert_eq!((stats.pages_dirty, stats.evicted), (40, 0));
    for (at, page) in ids.iter().enumerate() {
        assert_eq!(pool.latest().page(*page).map(value).ok(), Some(at as u64 / 10 + 1));
    }
    let written = ids.iter().filter(|page| pool.versions.pages().places().place_on_disk(**page).is_some());
    assert_eq!(written.count(), 100);
    assert_eq!((pool.evictor.write_dirty(50), pool.evictor.write_dirty(50)), (40, 0));
}
