use super::*;

fn filled(groups: u64) -> Space {
    let mut space = Space::new(0, u64::MAX);
    for block in 0..groups * GROUP_BLOCKS {
        assert!(space.mark_used(BlockId(block)));
    }
    space
}

#[test]
fn a_rewritten_page_goes_to_the_nearest_room_in_its_own_group() {
    let mut space = filled(3);
    space.release(BlockId(300));
    space.release(BlockId(310));
    space.checkpoint_begins();
    assert_eq!(space.checkpoint_durable(), 2);
    assert_eq!(space.allocate_near(BlockId(307)), Ok(BlockId(310)));
    assert_eq!(space.allocate_near(BlockId(307)), Ok(BlockId(300)));
    assert_eq!(space.placement().same_group, 2);
}

#[test]
fn without_room_at_home_a_page_goes_beside_it_and_then_elsewhere() {
    let mut space = filled(12);
    space.release(BlockId(5 * GROUP_BLOCKS + 17));
    space.checkpoint_begins();
    space.checkpoint_durable();
    assert_eq!(space.allocate_near(BlockId(6 * GROUP_BLOCKS)), Ok(BlockId(5 * GROUP_BLOCKS + 17)));
    assert_eq!(space.allocate_near(BlockId(6 * GROUP_BLOCKS)), Ok(BlockId(12 * GROUP_BLOCKS)));
    assert_eq!((space.placement().near_group, space.placement().far), (1, 1));
}

#[test]
fn a_released_block_is_free_only_after_a_checkpoint_that_began_later() {
    let mut space = filled(1);
    space.checkpoint_begins();
    space.release(BlockId(9));
    assert_eq!(space.checkpoint_durable(), 0);
    assert!(space.is_used(BlockId(9)));
    space.checkpoint_begins();
    assert!(space.is_used(BlockId(9)));
    assert_eq!(space.checkpoint_durable(), 1);
    assert!(!space.is_used(BlockId(9)));
}

#[test]
fn what_was_never_stored_is_free_at_once_and_where_the_device_failed_after_a_while() {
    let mut space = Space::new(0, 2 * SET_ASIDE_MAX as u64);
    let block = space.allocate().unwrap();
    space.give_back(block);
    assert_eq!((space.used_blocks(), space.allocate()), (0, Ok(block)));
    space.set_aside(block);
    for _ in 0..3 * SET_ASIDE_MAX {
        let other = space.allocate().unwrap();
        assert_ne!(Some(&other), space.set_aside.back(), "others come first");
        space.set_aside(other);
        assert!(space.deferred_blocks() <= SET_ASIDE_MAX as u64);
    }
    assert_eq!(space.used_blocks(), SET_ASIDE_MAX as u64);
    assert_eq!((space.checkpoint_durable(), space.used_blocks()), (SET_ASIDE_MAX, 0));
}

#[test]
fn a_held_block_outlives_its_checkpoints_until_the_last_holder_lets_go() {
    let mut space = filled(1);
    space.hold(BlockId(3));
    space.hold(BlockId(3));
    space.release(BlockId(3));
    space.checkpoint_begins();
    space.checkpoint_durable();
    space.let_go(BlockId(3));
    assert!(space.is_used(BlockId(3)));
    space.let_go(BlockId(3));
    assert!(!space.is_used(BlockId(3)));
}

#[test]
fn a_block_named_twice_is_noticed() {
    let mut space = Space::new(2, u64::MAX);
    assert!(!space.mark_used(BlockId(1)), "reserved for superblocks");
    assert!(space.mark_used(BlockId(700)));
    assert!(!space.mark_used(BlockId(700)));
}

#[test]
fn a_full_file_says_so_and_recovers_when_room_comes_back() {
    let mut space = Space::new(0, GROUP_BLOCKS);
    let all: Vec<_> = std::iter::from_fn(|| space.allocate().ok()).collect();
    assert_eq!(all.len() as u64, GROUP_BLOCKS);
    assert_eq!(space.allocate_near(all[7]), Err(NoRoom));
    space.release(all[7]);
    space.checkpoint_begins();
    space.checkpoint_durable();
    assert_eq!(space.allocate(), Ok(all[7]));
}

#[test]
fn random_histories_never_give_out_a_block_twice_and_count_right() {
    for seed in 0..30 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut space = Space::new(2, 4000);
        let mut live: Vec<BlockId> = Vec::new();
        let mut owned = std::collections::HashSet::new();
        let (mut releasing, mut expiring) = (Vec::new(), Vec::new());
        for _ in 0..4000 {
            match random.u32(0..10) {
                0..=5 => {
                    let got = match live.get(random.usize(0..live.len().max(1))) {
                        Some(near) if random.bool() => space.allocate_near(*near),
                        _ => space.allocate(),
                    };
                    if let Ok(block) = got {
                        assert!(block.0 >= 2 && block.0 < 4000 && owned.insert(block), "seed {seed}: {block:?} twice");
                        live.push(block);
                    }
                }
                6..=8 if !live.is_empty() => {
                    let block = live.swap_remove(random.usize(0..live.len()));
                    space.release(block);
                    releasing.push(block);
                }
                _ => {
                    space.checkpoint_begins();
                    expiring.append(&mut releasing);
                    space.checkpoint_durable();
                    expiring.drain(..).for_each(|block| assert!(owned.remove(&block)));
                }
            }
            assert_eq!(space.used_blocks(), owned.len() as u64 + 2, "seed {seed}");
        }
        let free: u64 = space.free_by_group().values().map(|free| u64::from(*free)).sum();
        assert_eq!(free + space.used_blocks(), space.end_block(), "seed {seed}");
    }
}
