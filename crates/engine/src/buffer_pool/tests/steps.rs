//! Tests that no hold of a lock that an executor takes grows with the pool, with dead versions, or with the changed
//! pages.

use super::*;
use crate::buffer_pool::page_table::SupersededVersion;
use crate::format::{BlockId, Location, Tag};
use crate::sync::budget::{self, STEPS_MAX};

/// Returns the largest number of steps (units of work that a `Budget` counts) spent during one hold of a lock while
/// `work` runs.
fn largest(work: impl FnOnce()) -> usize {
    budget::take_largest();
    work();
    budget::take_largest()
}

fn assert_bounded(what: &str, size: usize, steps: usize) {
    println!("{what}, {size}: {steps} steps");
    assert!(steps > 0 && steps <= STEPS_MAX + 4, "{what}, {size}: {steps} steps");
}

#[test]
fn dead_versions_are_cleared_away_a_part_at_a_time() {
    for size in [1_000, 100_000] {
        let world = SimWorld::new(1, SimOptions::calm());
        let pool = pool(&world, 64);
        let dead =
            SupersededVersion { page: PageId(3), from: CommitSeq(1), until: CommitSeq(2), unread_from: CommitSeq(2) };
        pool.versions.history().drop_later(vec![dead; size]);
        pool.versions.history().help_epoch();
        assert_eq!(pool.versions.history().reclamation().version_count(), size);
        assert_bounded("a sweep", size, largest(|| pool.clear_up()));
        assert!(pool.versions.history().reclamation().version_count() < size, "some versions are dropped");
        pool.versions.sweep_all();
        assert!(pool.versions.history().reclamation().version_count() == 0);
    }
}

#[test]
fn the_lock_of_the_clock_is_held_for_bounded_work_however_large_the_pool() {
    for size in [1_000, 20_000] {
        let world = SimWorld::new(1, SimOptions::calm());
        let pool = pool(&world, size);
        // No frame can be evicted, so the hand makes as many rounds as it may.
        assert_bounded("the clock", size, largest(|| assert_eq!(pool.evictor.free_frames(size), 0)));
    }
}

#[test]
fn the_search_for_cold_leaves_is_bounded_however_many_are_in_memory() {
    for size in [1_000, 50_000] {
        let world = SimWorld::new(1, SimOptions::calm());
        let pool = pool(&world, 64);
        let words = pool.versions.pages().words().0;
        // With pages that no checkpoint has written, so they cannot leave memory.
        let place = Location::of_whole(BlockId(9), Tag::of(1));
        (0..size).for_each(|leaf| assert!(words.add_leaf(leaf, &[Entry::OnDisk(place).to_word()])));
        assert_bounded("the search", size as usize, largest(|| pool.versions.trim_leaves()));
        assert_eq!(words.slots().used(), size);
    }
}

#[test]
fn a_new_leaf_whose_ids_were_not_used_leaves_memory_without_a_checkpoint() {
    let world = SimWorld::new(1, SimOptions::calm());
    let directory = world.directory();
    let disk: Arc<dyn Disk> = directory.create("data").unwrap();
    let pool = pool_with(&disk, &PoolOptions { evicts_table: true, ..options(64) });
    let words = pool.versions.pages().words().0;
    let mut copies = pool.copies();
    assert!(copies.allocate(PageId(0)).is_ok());
    // The first look finds the leaf used.
    (0..3).for_each(|_| pool.versions.trim_leaves());
    assert_eq!(words.slots().used(), 1, "the leaf of an id in use has left memory");
    drop(copies);
    pool.versions.trim_leaves();
    assert_eq!(words.slots().used(), 0);
    assert!(pool.copies().allocate(PageId(0)).is_ok());
}

#[test]
fn changed_pages_are_noted_and_taken_over_a_part_at_a_time() {
    for size in [1_000_u64, 100_000] {
        let world = SimWorld::new(1, SimOptions::calm());
        let pool = pool(&world, 64);
        while pool.metadata().lock().ids.end() < size {
            pool.metadata().lock().ids.take().unwrap();
        }
        let pages: Vec<_> = (0..size).map(PageId).collect();
        assert_bounded("noting changes", size as usize, largest(|| pool.metadata().note_changed(CommitSeq(1), &pages)));
        pool.metadata().note_changed(CommitSeq(2), &pages[..10]);
        let walk = || {
            let (mut next, mut all) = (Some(PageId(0)), Vec::new());
            while let Some(from) = next {
                let mut some;
                (some, next) = pool.metadata().changed_between(from, pool.metadata().pages_end());
                all.append(&mut some);
            }
            all
        };
        assert_bounded("the walk of a checkpoint", size as usize, largest(|| assert_eq!(walk(), pages)));
        assert_bounded("forgetting", size as usize, largest(|| pool.metadata().forget_changed(CommitSeq(1))));
        assert_eq!(walk(), pages[..10], "pages changed since then stay in the list");
    }
}
