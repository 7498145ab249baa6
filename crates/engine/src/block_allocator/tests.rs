use std::collections::BTreeSet;

use nofault_sim::depth::sample;

use super::deferred::SET_ASIDE_MAX;
use super::*;

fn filled(groups: u64) -> BlockAllocator {
    let mut allocator = BlockAllocator::new(0, u64::MAX);
    for block in 0..groups * GROUP_BLOCKS {
        assert!(allocator.space.mark_used(BlockId(block)));
    }
    allocator
}

#[test]
fn a_rewritten_page_goes_to_the_nearest_free_block_of_its_own_group() {
    let mut allocator = filled(3);
    allocator.release(BlockId(300));
    allocator.release(BlockId(310));
    allocator.deferred.checkpoint_begins();
    assert_eq!(allocator.checkpoint_durable(), 2);
    assert_eq!(allocator.allocate_near(BlockId(307)), Ok(BlockId(310)));
    assert_eq!(allocator.allocate_near(BlockId(307)), Ok(BlockId(300)));
    assert_eq!(allocator.placement().same_group, 2);
}

#[test]
fn a_page_whose_group_is_full_goes_to_a_group_beside_it_and_then_elsewhere() {
    let mut allocator = filled(12);
    allocator.release(BlockId(5 * GROUP_BLOCKS + 17));
    allocator.deferred.checkpoint_begins();
    allocator.checkpoint_durable();
    assert_eq!(allocator.allocate_near(BlockId(6 * GROUP_BLOCKS)), Ok(BlockId(5 * GROUP_BLOCKS + 17)));
    assert_eq!(allocator.allocate_near(BlockId(6 * GROUP_BLOCKS)), Ok(BlockId(12 * GROUP_BLOCKS)));
    assert_eq!((allocator.placement().near_group, allocator.placement().far), (1, 1));
}

#[test]
fn a_released_block_is_free_only_after_a_checkpoint_that_began_later() {
    let mut allocator = filled(1);
    allocator.deferred.checkpoint_begins();
    allocator.release(BlockId(9));
    assert_eq!(allocator.checkpoint_durable(), 0);
    assert!(allocator.space.is_used(BlockId(9)));
    allocator.deferred.checkpoint_begins();
    assert!(allocator.space.is_used(BlockId(9)));
    assert_eq!(allocator.checkpoint_durable(), 1);
    assert!(!allocator.space.is_used(BlockId(9)));
}

#[test]
fn a_block_that_no_checkpoint_names_is_free_when_it_is_released_or_its_last_hold_ends() {
    let mut allocator = BlockAllocator::new(0, u64::MAX);
    let [unnamed, named, held] = [0; 3].map(|_| allocator.allocate().unwrap());
    allocator.note_named(named);
    allocator.deferred.hold(held);
    for block in [unnamed, named, held] {
        allocator.release(block);
    }
    assert_eq!([unnamed, named, held].map(|block| allocator.space.is_used(block)), [false, true, true]);
    allocator.unhold(held);
    assert!(!allocator.space.is_used(held));
    // Given out again it is as new, and named by no checkpoint.
    assert_eq!([allocator.allocate_near(unnamed), allocator.allocate_near(held)], [Ok(unnamed), Ok(held)]);
    allocator.release(unnamed);
    assert!(!allocator.space.is_used(unnamed));
    allocator.deferred.checkpoint_begins();
    assert_eq!((allocator.checkpoint_durable(), allocator.space.is_used(named)), (1, false));
}

#[test]
fn a_block_of_which_a_checkpoint_names_one_page_is_not_free_at_once() {
    let mut allocator = BlockAllocator::new(0, u64::MAX);
    let block = allocator.allocate().unwrap();
    allocator.share(block, 2);
    allocator.note_named(block);
    // The page that the checkpoint names, and then the other.
    allocator.release(block);
    allocator.release(block);
    assert!(allocator.space.is_used(block));
    allocator.deferred.checkpoint_begins();
    assert_eq!((allocator.checkpoint_durable(), allocator.space.is_used(block)), (1, false));
}

#[test]
fn a_block_never_written_is_free_at_once_and_a_block_whose_write_failed_after_a_while() {
    let mut allocator = BlockAllocator::new(0, 2 * SET_ASIDE_MAX as u64);
    let block = allocator.allocate().unwrap();
    allocator.give_back(block);
    assert_eq!((allocator.space.used_blocks(), allocator.allocate()), (0, Ok(block)));
    allocator.set_aside(block);
    let mut last = block;
    for _ in 0..3 * SET_ASIDE_MAX {
        let other = allocator.allocate().unwrap();
        assert_ne!(other, last, "other blocks come first");
        allocator.set_aside(other);
        last = other;
        assert!(allocator.deferred.len() <= SET_ASIDE_MAX as u64);
    }
    assert_eq!(allocator.space.used_blocks(), SET_ASIDE_MAX as u64);
    assert_eq!((allocator.checkpoint_durable(), allocator.space.used_blocks()), (SET_ASIDE_MAX, 0));
}

#[test]
fn a_held_block_outlives_its_checkpoints_until_the_last_holder_lets_go() {
    let mut allocator = filled(1);
    allocator.deferred.hold(BlockId(3));
    allocator.deferred.hold(BlockId(3));
    allocator.release(BlockId(3));
    allocator.deferred.checkpoint_begins();
    allocator.checkpoint_durable();
    allocator.unhold(BlockId(3));
    assert!(allocator.space.is_used(BlockId(3)));
    allocator.unhold(BlockId(3));
    assert!(!allocator.space.is_used(BlockId(3)));
}

#[test]
fn a_block_that_is_kept_for_other_processes_is_free_when_its_number_is_reached_and_no_holder_is_left() {
    let mut allocator = filled(1);
    for (block, sequence) in [(3, 10), (4, 11), (5, 12)] {
        allocator.release(BlockId(block));
        allocator.deferred.checkpoint_begins();
        allocator.deferred.keep_expired(sequence);
        assert_eq!(allocator.checkpoint_durable(), 0);
    }
    allocator.deferred.hold(BlockId(4));
    assert_eq!((allocator.deferred.kept_len(), allocator.deferred.len()), (3, 0));
    assert_eq!(allocator.free_kept(9), 0);
    assert_eq!((allocator.free_kept(11), allocator.free_kept(11)), (2, 0));
    assert_eq!([3, 4, 5].map(|block| allocator.space.is_used(BlockId(block))), [false, true, true]);
    allocator.unhold(BlockId(4));
    assert_eq!((allocator.space.is_used(BlockId(4)), allocator.deferred.kept_len()), (false, 1));
}

/// The blocks behind the ceiling are promised to pages as well: once none before it is free, they must be given out.
#[test]
fn every_free_block_is_given_out_although_a_ceiling_is_set() {
    for (used, ceiling) in [(vec![], 0), (vec![5 * GROUP_BLOCKS], 2), (vec![0, 3 * GROUP_BLOCKS + 7], 1), (vec![], 9)] {
        let mut allocator = BlockAllocator::new(0, 6 * GROUP_BLOCKS);
        used.iter().for_each(|block| assert!(allocator.space.mark_used(BlockId(*block))));
        allocator.set_ceiling(Some(ceiling));
        let free = allocator.space.free_blocks();
        let mut met = BTreeSet::new();
        for number in 0..free {
            let block = if number % 2 == 0 { allocator.allocate() } else { allocator.allocate_near(BlockId(number)) };
            let block =
                block.unwrap_or_else(|error| panic!("block {number} of {free} with ceiling {ceiling}: {error:?}"));
            assert!(met.insert(block), "{block:?} twice");
            let is_before = group_of(block) < ceiling;
            let before =
                (0..ceiling.min(6) * GROUP_BLOCKS).filter(|block| !allocator.space.is_used(BlockId(*block))).count();
            assert!(
                is_before || before == 0,
                "{block:?} lies behind the ceiling and {before} blocks before it are free"
            );
        }
        assert_eq!(allocator.allocate(), Err(NoFreeBlocks));
    }
}

#[test]
fn a_block_named_twice_is_noticed() {
    let mut allocator = BlockAllocator::new(2, u64::MAX);
    assert!(!allocator.space.mark_used(BlockId(1)), "reserved for superblocks");
    assert!(allocator.space.mark_used(BlockId(700)));
    assert!(!allocator.space.mark_used(BlockId(700)));
}

#[test]
fn a_full_file_refuses_blocks_and_recovers_when_blocks_are_free() {
    let mut allocator = BlockAllocator::new(0, GROUP_BLOCKS);
    let all: Vec<_> = std::iter::from_fn(|| allocator.allocate().ok()).collect();
    assert_eq!(all.len() as u64, GROUP_BLOCKS);
    assert_eq!(allocator.allocate_near(all[7]), Err(NoFreeBlocks));
    allocator.release(all[7]);
    allocator.deferred.checkpoint_begins();
    allocator.checkpoint_durable();
    assert_eq!(allocator.allocate(), Ok(all[7]));
}

#[test]
fn random_histories_never_give_out_a_block_twice_and_count_right() {
    for seed in sample(0..30, 5) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut allocator = BlockAllocator::new(2, 4000);
        let mut live: Vec<BlockId> = Vec::new();
        let mut owned = std::collections::HashSet::new();
        let (mut releasing, mut expiring) = (Vec::new(), Vec::new());
        let mut named = std::collections::HashSet::new();
        for _ in 0..4000 {
            match random.u32(0..10) {
                0..=5 => {
                    let got = match live.get(random.usize(0..live.len().max(1))) {
                        Some(near) if random.bool() => allocator.allocate_near(*near),
                        _ => allocator.allocate(),
                    };
                    if let Ok(block) = got {
                        assert!(block.0 >= 2 && block.0 < 4000 && owned.insert(block), "seed {seed}: {block:?} twice");
                        live.push(block);
                    }
                }
                6..=8 if !live.is_empty() => {
                    let block = live.swap_remove(random.usize(0..live.len()));
                    allocator.release(block);
                    if named.remove(&block) {
                        releasing.push(block);
                    } else {
                        assert!(owned.remove(&block) && !allocator.space.is_used(block), "seed {seed}");
                    }
                }
                _ => {
                    for block in live.iter().filter(|_| random.bool()) {
                        allocator.note_named(*block);
                        named.insert(*block);
                    }
                    allocator.deferred.checkpoint_begins();
                    expiring.append(&mut releasing);
                    allocator.checkpoint_durable();
                    expiring.drain(..).for_each(|block| assert!(owned.remove(&block)));
                }
            }
            assert_eq!(allocator.space.used_blocks(), owned.len() as u64 + 2, "seed {seed}");
        }
        let groups = (0..allocator.space.group_count()).filter_map(|number| allocator.space.group(number as u32));
        let free: u64 = groups.map(|group| u64::from(group.free)).sum();
        assert_eq!(free + allocator.space.used_blocks(), allocator.space.end_block(), "seed {seed}");
    }
}

#[test]
fn a_shared_block_is_released_with_the_last_of_its_pages() {
    let mut allocator = filled(1);
    allocator.share(BlockId(9), 3);
    assert_eq!(allocator.pages.totals(), (3, 1));
    let checkpoint = |allocator: &mut BlockAllocator| {
        allocator.deferred.checkpoint_begins();
        allocator.checkpoint_durable()
    };
    for left in [2, 1] {
        allocator.release(BlockId(9));
        assert_eq!((allocator.pages.totals(), checkpoint(&mut allocator)), ((left, 1), 0));
    }
    allocator.release(BlockId(9));
    assert_eq!((allocator.pages.totals(), checkpoint(&mut allocator)), ((0, 0), 1));
    assert!(!allocator.space.is_used(BlockId(9)));
    // Loaded from a page table: the first page marks the block, and no page has a shared block to itself.
    assert!(
        allocator.mark_page(BlockId(9)) && allocator.mark_page(BlockId(9)) && !allocator.space.mark_used(BlockId(9))
    );
    assert!(!allocator.mark_page(BlockId(10)), "another page has it to itself");
    assert_eq!(allocator.pages.totals(), (2, 1));
}
