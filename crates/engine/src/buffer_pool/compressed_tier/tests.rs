//! Compares the tier with a model, over real frames.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::format::Tag;

#[derive(Debug, Clone)]
enum Step {
    Add(u64),
    Use(u64),
    Forget(u64),
    Evict(usize, bool),
    Read(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let block = 0_u64..60;
    prop_oneof![
        4 => block.clone().prop_map(Step::Add),
        2 => block.clone().prop_map(Step::Use),
        1 => block.clone().prop_map(Step::Forget),
        1 => (0_usize..9, any::<bool>()).prop_map(|(most, also_used)| Step::Evict(most, also_used)),
        1 => block.prop_map(Step::Read),
    ]
}

/// Returns the place of a compressed page in a block.
fn compressed(block: u64) -> Location {
    Location { is_compressed: true, ..Location::of_whole(BlockId(block), Tag::from_bits(0)) }
}

/// Makes frames free that the tier gave up; in a pool an epoch passes before that.
fn recycle(frames: &Frames, given_up: &[u32]) {
    // SAFETY: the tier has just removed their numbers, which nothing else had, and nothing reads them.
    unsafe { frames.recycle(given_up) };
}

proptest! {
    /// Over any steps each frame is free or holds one block, in the tier and in the model alike; a block that was
    /// forgotten is not found, and an eviction gives up as many blocks as it is asked for, where used ones may go.
    #[test]
    fn the_tier_agrees_with_a_model(steps in prop::collection::vec(step(), 0..300)) {
        let (frames, tier) = (Frames::new(40, 512).unwrap(), CompressedTier::new(TierUse::Always));
        tier.note_read(&frames, PageId(1), compressed(1), Need::InTask);
        let mut model: BTreeMap<u64, BTreeSet<u32>> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Add(block) => {
                    let Some(mut owned) = frames.take_for_read() else { continue };
                    owned.buffer[..8].copy_from_slice(&block.to_le_bytes());
                    let (frame, has_room) = (owned.index, tier.state().unwrap().index.has_room(BlockId(block)));
                    let rejected = tier.add(&frames, BlockId(block), owned);
                    prop_assert_eq!(rejected.is_none(), has_room);
                    match rejected {
                        Some(rejected) => recycle(&frames, &[rejected]),
                        None => prop_assert!(model.entry(block).or_default().insert(frame)),
                    }
                }
                Step::Use(block) => {
                    if let Some(frame) = tier.find(&frames, BlockId(block)) {
                        frames.usage().touch_block(frame);
                    }
                }
                Step::Forget(block) => {
                    let forgotten = tier.forget(&frames, BlockId(block));
                    recycle(&frames, &forgotten);
                    prop_assert_eq!(BTreeSet::from_iter(forgotten), model.remove(&block).unwrap_or_default());
                    prop_assert_eq!(tier.find(&frames, BlockId(block)), None);
                }
                Step::Evict(most, also_used) => {
                    let evicted = tier.evict(&frames, most, also_used);
                    let all: usize = model.values().map(BTreeSet::len).sum();
                    prop_assert!(evicted.len() <= most && (evicted.len() == most.min(all) || !also_used));
                    for frame in &evicted {
                        let removed = model.values_mut().filter_map(|frames| frames.take(frame)).count();
                        prop_assert_eq!(removed, 1);
                    }
                    model.retain(|_, frames| !frames.is_empty());
                    recycle(&frames, &evicted);
                }
                Step::Read(block) => drop(tier.note_read(&frames, PageId(block), compressed(block), Need::InTask)),
            }
            for (block, holders) in &model {
                let frame = tier.find(&frames, BlockId(*block)).unwrap();
                prop_assert!(holders.contains(&frame) && frames.usage().is_block(frame));
                // SAFETY: nothing recycles the frame before the next step.
                let bytes = unsafe { frames.bytes(frame) };
                prop_assert_eq!(&bytes[..8], &block.to_le_bytes());
            }
            let in_tier: usize = model.values().map(BTreeSet::len).sum();
            prop_assert_eq!((tier.block_count(), frames.free_count()), (in_tier, frames.count() - in_tier));
        }
    }
}

#[test]
fn used_blocks_outlast_unused_ones() {
    let (frames, tier) = (Frames::new(100, 512).unwrap(), CompressedTier::new(TierUse::Always));
    tier.note_read(&frames, PageId(1), compressed(1), Need::InTask);
    for block in 0..60 {
        let owned = frames.take_for_read().unwrap();
        assert!(tier.add(&frames, BlockId(block), owned).is_none());
    }
    let is_used = |block: &u64| block.is_multiple_of(3);
    (0..60).filter(is_used).for_each(|block| frames.usage().touch_block(tier.find(&frames, BlockId(block)).unwrap()));
    let evicted = tier.evict(&frames, 40, false);
    assert_eq!(evicted.len(), 40);
    assert!((0..60).filter(is_used).all(|block| tier.find(&frames, BlockId(block)).is_some()));
    assert!(!tier.evict(&frames, 5, false).is_empty(), "a use counts for one round of the hand");
}

#[test]
fn blocks_have_frames_only_while_they_are_to_be_kept_and_without_compressed_pages_there_is_no_tier() {
    let frames = Frames::new(1000, 512).unwrap();
    let whole = Location::of_whole(BlockId(1), Tag::from_bits(0));
    for tier_use in [TierUse::Never, TierUse::Judged, TierUse::Always] {
        let tier = CompressedTier::new(tier_use);
        assert!(!tier.note_read(&frames, PageId(1), whole, Need::InTask));
        assert_eq!(tier.stats(&frames).memory_bytes, 0, "pages that are not compressed need no tier");
        let is_kept = tier.note_read(&frames, PageId(1), compressed(1), Need::InTask);
        assert_eq!((is_kept, tier.stats(&frames).blocks_wanted > 0), (tier_use == TierUse::Always, is_kept));
    }
}

#[test]
fn the_work_of_an_eviction_is_bounded_however_large_the_pool() {
    use crate::sync::budget::{STEPS_MAX, take_largest};
    let (frames, tier) = (Frames::new(20_000, 512).unwrap(), CompressedTier::new(TierUse::Always));
    tier.note_read(&frames, PageId(1), compressed(1), Need::InTask);
    for block in 0..15_000 {
        let owned = frames.take_for_read().unwrap();
        tier.add(&frames, BlockId(block), owned);
    }
    take_largest();
    let evicted = tier.evict(&frames, 15_000, true);
    let steps = take_largest();
    assert!(steps > 0 && steps <= STEPS_MAX + STEPS_A_BLOCK, "{steps} steps");
    assert!(evicted.len() < 15_000 && !evicted.is_empty());
}
