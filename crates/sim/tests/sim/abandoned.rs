//! Tests of the bytes that a failed durable write or sync leaves behind: reads see them, and no later sync makes them durable.

use std::collections::BTreeSet;

use nofault_io::disk::Queue;
use nofault_sim::{Caching, Call, Effect, Fault, SimOptions, SimWorld};

use crate::{BLOCK, read, sync, world_with_blocks, write, write_durable};

const EIO: i32 = 5;
/// Number of blocks of the file, which are full of ones at first.
const BLOCKS: usize = 2;

fn options(caching: Caching) -> SimOptions {
    SimOptions { caching, ..SimOptions::calm() }
}

/// Makes a file of ones, and lets a durable write of twos to its first block fail.
fn after_a_failed_write(seed: u64, caching: Caching) -> (SimWorld, Box<dyn Queue>) {
    let (world, mut queue) = world_with_blocks(seed, options(caching), BLOCKS, 1);
    world.inject(Fault::new(Call::Write, Effect::Errno(EIO)));
    write_durable(&mut *queue, 0, 2, BLOCK).unwrap_err();
    (world, queue)
}

fn sectors(bytes: &[u8]) -> Vec<u8> {
    bytes[..BLOCK].chunks(512).map(|sector| sector[0]).collect()
}

#[test]
fn no_later_sync_makes_the_bytes_of_a_failed_durable_write_durable() {
    for caching in [Caching::Direct, Caching::Buffered] {
        let mut seen = BTreeSet::new();
        for seed in 0..200 {
            let (world, mut queue) = after_a_failed_write(seed, caching);
            sync(&mut *queue).unwrap();
            sync(&mut *queue).unwrap();
            seen.extend(sectors(&world.restart(seed).read_file("data").unwrap()));
        }
        assert_eq!(seen, [1, 2].into(), "{caching:?}: a cut keeps or loses it");
    }
}

#[test]
fn writing_the_same_bytes_again_durably_or_with_a_sync_saves_them() {
    for caching in [Caching::Direct, Caching::Buffered] {
        for seed in 0..50 {
            let (world, mut queue) = after_a_failed_write(seed, caching);
            if seed % 2 == 0 {
                write_durable(&mut *queue, 0, 2, BLOCK).unwrap();
            } else {
                write(&mut *queue, 0, 2, BLOCK).unwrap();
                sync(&mut *queue).unwrap();
            }
            let after = world.restart(seed);
            assert_eq!(after.read_file("data").unwrap()[..BLOCK], [2; BLOCK], "{after}");
        }
    }
}

#[test]
fn reads_see_any_sectors_without_a_page_cache_and_all_of_them_with_one() {
    let (mut direct, mut buffered) = (BTreeSet::new(), BTreeSet::new());
    for seed in 0..200 {
        direct.insert(sectors(&after_a_failed_write(seed, Caching::Direct).0.read_file("data").unwrap()));
        buffered.insert(sectors(&after_a_failed_write(seed, Caching::Buffered).0.read_file("data").unwrap()));
    }
    assert!(direct.len() > 50, "{} mixtures", direct.len());
    assert_eq!(buffered, [vec![2; BLOCK / 512]].into());
}

/// Once the page cache has dropped the page, reads give the old bytes again in some sectors, and every power cut leaves
/// the same bytes.
#[test]
fn a_page_cache_may_drop_abandoned_bytes_and_reads_then_give_those_of_the_device() {
    let mut turned_back = 0;
    for seed in 0..100 {
        let (world, mut queue) = after_a_failed_write(seed, Caching::Buffered);
        let first = sectors(&read(&mut *queue, 0, BLOCK).unwrap());
        let mut last = first.clone();
        for _ in 0..40 {
            let now = sectors(&read(&mut *queue, 0, BLOCK).unwrap());
            assert!(now == last || last.iter().all(|byte| *byte == 2), "seed {seed}: the device changes by itself");
            last = now;
        }
        turned_back += u32::from(first != last);
        for cut in 0..5 {
            assert_eq!(sectors(&world.restart(cut).read_file("data").unwrap()), last, "seed {seed}");
        }
    }
    assert!(turned_back > 30, "only {turned_back} of 100 page caches dropped anything");
}

/// One sector of a page written again keeps the page in the cache.
#[test]
fn a_dirty_page_is_not_dropped() {
    for seed in 0..50 {
        let (_world, mut queue) = after_a_failed_write(seed, Caching::Buffered);
        write(&mut *queue, 0, 3, 512).unwrap();
        for _ in 0..20 {
            assert_eq!(sectors(&read(&mut *queue, 0, BLOCK).unwrap()), [3, 2, 2, 2, 2, 2, 2, 2], "seed {seed}");
        }
    }
}

#[test]
fn a_failed_write_that_was_not_durable_is_covered_by_the_next_sync() {
    for caching in [Caching::Direct, Caching::Buffered] {
        for seed in 0..50 {
            let (world, mut queue) = world_with_blocks(seed, options(caching), BLOCKS, 1);
            world.inject(Fault::new(Call::Write, Effect::Errno(EIO)));
            write(&mut *queue, 0, 2, BLOCK).unwrap_err();
            let seen = sectors(&read(&mut *queue, 0, BLOCK).unwrap());
            sync(&mut *queue).unwrap();
            assert_eq!(sectors(&world.restart(seed).read_file("data").unwrap()), seen, "seed {seed}");
        }
    }
}

#[test]
fn a_failed_sync_is_abandoned_in_the_page_cache_as_well() {
    let mut turned_back = 0;
    for seed in 0..100 {
        let (world, mut queue) = world_with_blocks(seed, options(Caching::Buffered), BLOCKS, 1);
        write(&mut *queue, 0, 2, BLOCK).unwrap();
        world.inject(Fault::new(Call::Sync, Effect::Errno(EIO)));
        sync(&mut *queue).unwrap_err();
        sync(&mut *queue).unwrap();
        let last = (0..40).map(|_| read(&mut *queue, 0, BLOCK).unwrap()).last().unwrap();
        turned_back += u32::from(sectors(&last).contains(&1));
    }
    assert!(turned_back > 30, "only {turned_back} of 100 page caches dropped anything");
}

#[test]
fn a_disk_says_whether_it_has_a_page_cache() {
    for (caching, direct) in [(Caching::Direct, true), (Caching::Buffered, false)] {
        let (world, _queue) = world_with_blocks(1, options(caching), 1, 1);
        assert_eq!(world.directory().open("data").unwrap().info().direct, direct);
    }
}
