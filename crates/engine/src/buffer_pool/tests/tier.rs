//! Tests of the compressed tier in a pool: which blocks stay in memory, what they serve, and when they leave.

use super::*;
use crate::codec::Compression;
use crate::format::{BlockId, TableId};

const TABLE: u64 = 5;

/// Returns a value with which a page looks like data of a compressed table: the kind, the number, the table.
pub(super) fn data(number: u64) -> u64 {
    3 | ((number % (1 << 24)) << 8) | (TABLE << 32)
}

/// Compresses the pages of values that [`data`] returns, from now on.
pub(super) fn compress(pool: &BufferPool) {
    pool.writer().codecs().set(TableId(TABLE), Compression::Fast);
}

/// Publishes compressible pages, a few commits of `pages_a_commit`, and writes and evicts all of them.
fn compressed_pages(pool: &BufferPool, commits: u64, pages_a_commit: u64) -> Vec<PageId> {
    compress(pool);
    let mut ids = Vec::new();
    for seq in 1..=commits {
        let values: Vec<u64> = (0..pages_a_commit).map(|number| data(ids.len() as u64 + number)).collect();
        ids.extend(commit(pool, seq, &[], &values, &[]).unwrap());
        pool.set_visible(CommitSeq(seq));
        for _ in 0..20 {
            pool.evictor.free_frames(128);
        }
    }
    ids
}

/// Evicts these pages, and no block.
fn evict(pool: &BufferPool, pages: &[PageId]) {
    for page in pages {
        if let Entry::Resident(frame) = pool.versions.pages().entry(*page)
            && let Some(crate::buffer_pool::page_table::EvictionOutcome::Clean(frame)) =
                pool.versions.pages().try_evict(frame, false)
        {
            pool.versions.history().retire(vec![frame]);
        }
    }
    pool.reclaim();
}

fn block_of(pool: &BufferPool, page: PageId) -> BlockId {
    let at = pool.versions.pages().places().place_on_disk(page).unwrap();
    assert!(at.is_compressed);
    at.block
}

fn is_in_tier(pool: &BufferPool, block: BlockId) -> bool {
    pool.versions.pages().tier().find(pool.versions.frames(), block).is_some()
}

fn get(pool: &BufferPool, page: PageId) -> Result<u64> {
    run(pool, || pool.latest().page(page).map(value))
}

fn get_all(pool: &BufferPool, pages: &[PageId]) {
    for page in pages {
        get(pool, *page).unwrap();
    }
}

/// Frees the blocks that no version needs, as checkpoints do.
pub(super) fn free_blocks(pool: &BufferPool) {
    pool.reclaim();
    for _ in 0..2 {
        pool.metadata().lock().allocator.deferred.checkpoint_begins();
        while pool.metadata().lock().allocator.checkpoint_durable() > 0 {}
    }
}

#[test]
fn pages_whose_block_was_read_once_are_restored_without_a_read() {
    let world = SimWorld::new(1, SimOptions::calm());
    let pool = pool(&world, 128);
    let ids = compressed_pages(&pool, 2, 10);
    let memory_before = pool.stats().memory_frames_bytes;
    assert_eq!(get(&pool, ids[0]).unwrap(), data(0));
    let block = block_of(&pool, ids[0]);
    let stats = pool.stats();
    assert_eq!((stats.tier_blocks, stats.tier_added, stats.tier_hits, stats.misses), (1, 1, 0, 1));
    let reads = world.stats().read_count;
    let mut together = 0;
    for round in 0..3 {
        for (at, page) in ids.iter().enumerate().filter(|(_, page)| block_of(&pool, **page) == block) {
            assert_eq!(get(&pool, *page).unwrap(), data(at as u64));
            together += 1;
        }
        assert!(round > 0 || together > 2, "{together} pages in one block");
        evict(&pool, &ids);
    }
    assert_eq!(world.stats().read_count, reads, "a page was read");
    assert_eq!((pool.stats().tier_hits, pool.stats().misses), (together - 1, 1));
    let memory = pool.stats().memory_frames_bytes - memory_before;
    assert!(memory > 0 && memory <= 128 * 64, "each frame is counted with 64 bytes for this and the like: {memory}");
}

#[test]
fn a_task_that_misses_pages_of_blocks_in_memory_is_ready_at_once() {
    let world = SimWorld::new(1, SimOptions::calm());
    let pool = pool(&world, 128);
    let ids = compressed_pages(&pool, 1, 6);
    get(&pool, ids[0]).unwrap();
    evict(&pool, &ids);
    let waits: Vec<Wait> = ids.iter().map(|page| Wait::Miss(Missing { page: *page, at: NEWEST })).collect();
    let mut ticket = pool.request(&waits, Permit::any());
    assert!(ticket.poll(std::task::Waker::noop()).is_ready());
    let hits = pool.stats().tier_hits;
    assert!(hits > 2, "{hits}");
    drop(ticket);
    evict(&pool, &ids);
    let missing: Vec<Missing> = ids.iter().map(|page| Missing { page: *page, at: NEWEST }).collect();
    pool.prefetch(&missing);
    assert_eq!(pool.stats().tier_hits, 2 * hits, "pages that a scan asks for early are restored as well");
    assert_eq!(pool.stats().reads_in_flight, 0);
}

#[test]
fn pages_that_a_scan_requests_early_leave_no_blocks_in_memory() {
    let world = SimWorld::new(1, SimOptions::calm());
    let pool = pool(&world, 128);
    let ids = compressed_pages(&pool, 3, 10);
    let missing: Vec<Missing> = ids.iter().map(|page| Missing { page: *page, at: NEWEST }).collect();
    pool.prefetch(&missing);
    for (at, page) in ids.iter().enumerate() {
        assert_eq!(get(&pool, *page).unwrap(), data(at as u64));
    }
    assert_eq!(pool.stats().tier_blocks, 0);
}

#[test]
fn a_pool_without_compressed_pages_has_no_tier() {
    let world = SimWorld::new(1, SimOptions::calm());
    let pool = pool(&world, FRAMES_MIN);
    let before = pool.stats().memory_frames_bytes;
    let ids: Vec<PageId> = (1..30).flat_map(|seq| commit(&pool, seq, &[], &[data(seq); 4], &[]).unwrap()).collect();
    pool.set_visible(CommitSeq(29));
    get_all(&pool, &ids);
    let stats = pool.stats();
    assert!(stats.misses > 0 && stats.evicted > 0);
    assert_eq!((stats.tier_blocks_wanted, stats.memory_frames_bytes), (0, before));
}

/// Publishes new versions of all pages that lie in `block`, so that the block becomes free.
fn replace_pages_of(pool: &BufferPool, ids: &[PageId], block: BlockId, seq: u64) {
    let there: Vec<PageId> = ids.iter().copied().filter(|page| block_of(pool, *page) == block).collect();
    for (page, seq) in there.iter().zip(seq..) {
        commit(pool, seq, &[(*page, data(1000 + seq))], &[], &[]).unwrap();
        pool.set_visible(CommitSeq(seq));
    }
    free_blocks(pool);
}

#[test]
fn a_block_that_is_written_anew_leaves_the_tier_before_a_page_can_be_found_in_it() {
    let world = SimWorld::new(1, SimOptions::calm());
    let pool = pool(&world, 256);
    let ids = compressed_pages(&pool, 1, 20);
    get(&pool, ids[0]).unwrap();
    let block = block_of(&pool, ids[0]);
    replace_pages_of(&pool, &ids, block, 10);
    assert!(is_in_tier(&pool, block) && !pool.metadata().lock().allocator.space.is_used(block));
    // The new versions are written near their old places, and others after them, until the block is used again.
    let mut more: Vec<PageId> = Vec::new();
    for seq in 100..200 {
        more.extend(commit(&pool, seq, &[], &[data(seq); 4], &[]).unwrap());
        pool.set_visible(CommitSeq(seq));
        (0..4).for_each(|_| drop(pool.writer().write_frames(dirty(&pool, &more))));
        if pool.metadata().lock().allocator.space.is_used(block) {
            break;
        }
    }
    assert!(pool.metadata().lock().allocator.space.is_used(block), "the block was not used again");
    assert!(!is_in_tier(&pool, block), "the tier has the old content of {block:?}");
    assert!(pool.stats().tier_forgotten > 0);
    evict(&pool, &ids);
    evict(&pool, &more);
    for page in ids.iter().chain(&more) {
        get(&pool, *page).unwrap();
    }
    assert_eq!(pool.stats().checksum_retries, 0);
}

/// Pins the pages that are not on disk yet.
fn dirty(pool: &BufferPool, pages: &[PageId]) -> Vec<crate::buffer_pool::page_table::DirtyPage> {
    let dirty_of = |page: &PageId| match pool.checkpoint_place(*page, NEWEST) {
        CheckpointPlace::Dirty(item) => Some(item),
        CheckpointPlace::OnDisk(_) | CheckpointPlace::Absent | CheckpointPlace::Cold => None,
    };
    pages.iter().filter_map(dirty_of).collect()
}

#[test]
fn blocks_to_which_pages_are_moved_leave_the_tier() {
    let world = SimWorld::new(1, SimOptions::calm());
    let pool = pool(&world, 256);
    let ids = compressed_pages(&pool, 1, 20);
    get_all(&pool, &ids);
    evict(&pool, &ids);
    get_all(&pool, &ids);
    let mut blocks: Vec<BlockId> = ids.iter().map(|page| block_of(&pool, *page)).collect();
    blocks.dedup();
    assert!(blocks.len() > 2 && blocks[1].0 == blocks[0].0 + 1, "{blocks:?}");
    assert!(blocks.iter().all(|block| is_in_tier(&pool, *block)));
    // As compaction writes its runs, one buffer for several blocks.
    let run = nofault_io::aligned::IoBuf::zeroed(2 * PAGE, nofault_io::aligned::PageKind::Small).unwrap();
    pool.writer().write_blocks("move pages", std::iter::once((blocks[0], run))).unwrap();
    let left: Vec<bool> = blocks.iter().map(|block| is_in_tier(&pool, *block)).collect();
    assert!(!left[0] && !left[1] && left[2..].iter().all(|is_left| *is_left), "{left:?}");
}

#[test]
fn damage_on_disk_is_found_in_each_page_of_a_block_that_is_in_memory() {
    let world = SimWorld::new(1, SimOptions::calm());
    let pool = pool(&world, 128);
    let ids = compressed_pages(&pool, 1, 6);
    let block = block_of(&pool, ids[0]);
    let together: Vec<PageId> = ids.iter().copied().filter(|page| block_of(&pool, *page) == block).collect();
    let last = *together.last().unwrap();
    // The last byte of the block that is not zero belongs to the record of its last page.
    let file = world.read_file("data").unwrap();
    let bytes = &file[block.0 as usize * PAGE..][..PAGE];
    let at = block.0 * PAGE as u64 + bytes.iter().rposition(|byte| *byte != 0).unwrap() as u64;
    world.flip_bit("data", at, 1).unwrap();
    for page in &together[..together.len() - 1] {
        get(&pool, *page).unwrap();
    }
    assert!(is_in_tier(&pool, block));
    for _ in 0..2 {
        let error = get(&pool, last).unwrap_err();
        assert_eq!((error.kind(), error.page()), (ErrorKind::Corrupt, Some(last)), "{error}");
        // The others are as good as before.
        evict(&pool, &ids);
        get(&pool, together[0]).unwrap();
    }
    world.flip_bit("data", at, 1).unwrap();
    assert_eq!(get(&pool, last).unwrap(), data(together.len() as u64 - 1), "the wrong bytes are not kept");
}

#[test]
fn blocks_give_way_to_pages_that_operations_hold() {
    let world = SimWorld::new(1, SimOptions::calm());
    let pool = pool(&world, 3 * FRAMES_MIN);
    let ids = compressed_pages(&pool, 60, 4);
    for _ in 0..4 {
        get_all(&pool, &ids);
    }
    assert!(pool.stats().tier_blocks > 4, "{:?}", pool.stats());
    // As many pages as operations may hold at a time, and a writer as well.
    let mut held = Vec::new();
    for page in ids.iter().take(pool.pins_max()) {
        let mut ticket = pool.request(&[Wait::Miss(Missing { page: *page, at: NEWEST })], Permit::any());
        ticket.wait().unwrap();
        held.push(ticket);
    }
    let mut writer = pool.request(&[Wait::Full { frames: pool.copy_frames_max() }], Permit::any());
    writer.wait().unwrap();
}

#[test]
fn blocks_give_way_to_dirty_pages_before_clean_pages_do() {
    let world = SimWorld::new(1, SimOptions::calm());
    let pool = pool(&world, 3 * FRAMES_MIN);
    let ids = compressed_pages(&pool, 60, 4);
    for _ in 0..4 {
        get_all(&pool, &ids);
    }
    let blocks = pool.stats().tier_blocks;
    assert!(blocks > 20 && pool.stats().tier_blocks_wanted > 40, "{:?}", pool.stats());
    let mut seq = 100;
    while pool.stats().tier_blocks_wanted > 0 {
        commit(&pool, seq, &[], &[data(seq); 4], &[]).unwrap();
        pool.set_visible(CommitSeq(seq));
        seq += 1;
    }
    // The pages of one commit, which must all be in memory at a time, and no block in their place.
    let pages = &ids[..6];
    for page in pages {
        get(&pool, *page).unwrap();
    }
    let evicted = pool.stats().evicted;
    while pool.stats().tier_blocks > 0 {
        let before = pool.stats().tier_blocks;
        pool.evictor.free_clean_frames(1);
        pool.reclaim();
        assert!(pool.stats().tier_blocks < before, "the blocks stay: {:?}", pool.stats());
    }
    assert_eq!(pool.stats().evicted, evicted, "pages were evicted for blocks");
    let sets: Vec<(PageId, u64)> = pages.iter().map(|page| (*page, data(7))).collect();
    commit(&pool, seq, &sets, &[], &[]).unwrap();
}

#[test]
fn one_request_restores_as_many_pages_as_a_budget_allows_and_reads_the_others() {
    let world = SimWorld::new(1, SimOptions::calm());
    let pool = pool(&world, 4000);
    let ids = compressed_pages(&pool, 10, 100);
    for _ in 0..3 {
        get_all(&pool, &ids);
        evict(&pool, &ids);
    }
    let (before, count) = (pool.stats(), ids.len() as u64);
    let waits: Vec<Wait> = ids.iter().map(|page| Wait::Miss(Missing { page: *page, at: NEWEST })).collect();
    crate::sync::budget::take_largest();
    let mut ticket = pool.request(&waits, Permit::any());
    let steps = crate::sync::budget::take_largest();
    assert!(steps <= crate::sync::budget::STEPS_MAX + 8, "{steps} steps");
    let restored = pool.stats().tier_hits - before.tier_hits;
    assert!(restored >= 200 && restored < count, "{restored} of {count}");
    ticket.wait().unwrap();
    assert_eq!(pool.stats().misses - before.misses, count - restored);
}
