//! The state that a power cut leaves, and the calls that it stops.

use std::collections::BTreeSet;

use nofault_io::completion::{Op, OpKind};
use nofault_io::disk::QueueOptions;
use nofault_io::error::{ErrorKind, Result};
use nofault_sim::{Call, Effect, Fault, SimOptions, SimWorld};

use crate::{BLOCK, buffer, read, run, sync, world_with_blocks, world_with_file, write, write_durable};

fn everything() -> [SimOptions; 3] {
    [SimOptions::calm(), SimOptions::default(), SimOptions::adversarial()]
}

// ---- bytes over a power cut ----

#[test]
fn a_synced_write_and_a_durable_write_survive_every_cut() {
    for options in everything() {
        for seed in 0..50 {
            let (world, mut queue) = world_with_blocks(seed, options, 2, 1);
            write_durable(&mut *queue, 8192, 2, BLOCK).unwrap();
            for cut in 0..20 {
                let after = world.restart(cut);
                let bytes = after.read_file("data").unwrap();
                assert_eq!(bytes.len(), 3 * BLOCK, "{after}");
                assert!(bytes[..8192].iter().all(|byte| *byte == 1), "{after}");
                assert!(bytes[8192..].iter().all(|byte| *byte == 2), "{after}");
            }
        }
    }
}

#[test]
fn an_unsynced_write_is_kept_lost_torn_between_sectors_and_torn_within_one() {
    for torn_sectors in [false, true] {
        let mut seen = BTreeSet::new();
        for seed in 0..400 {
            let options = SimOptions { torn_sectors, ..SimOptions::default() };
            let (world, mut queue) = world_with_blocks(seed, options, 1, 1);
            write(&mut *queue, 0, 2, BLOCK).unwrap();
            assert_eq!(world.read_file("data").unwrap(), [2; BLOCK]);
            let bytes = world.restart(seed).read_file("data").unwrap();
            assert!(bytes.iter().all(|byte| [1, 2].contains(byte)), "seed {seed}");
            let whole_sectors = bytes.chunks(512).all(|sector| sector.iter().all(|byte| *byte == sector[0]));
            seen.insert(match (bytes.iter().all(|byte| *byte == 2), bytes.iter().all(|byte| *byte == 1)) {
                (true, _) => "kept",
                (_, true) => "lost",
                _ if whole_sectors => "torn between sectors",
                _ => "torn within a sector",
            });
        }
        let expected = ["kept", "lost", "torn between sectors", "torn within a sector"];
        let expected = &expected[..if torn_sectors { 4 } else { 3 }];
        assert_eq!(seen, expected.iter().copied().collect());
    }
}

#[test]
fn unsynced_writes_survive_in_any_order_but_one_sector_never_goes_back_behind_its_sync() {
    let mut seen = BTreeSet::new();
    for seed in 0..400 {
        let (world, mut queue) = world_with_blocks(seed, SimOptions::default(), 2, 1);
        write(&mut *queue, 0, 2, 512).unwrap();
        sync(&mut *queue).unwrap();
        write(&mut *queue, 0, 3, 512).unwrap();
        write(&mut *queue, 0, 4, 512).unwrap();
        write(&mut *queue, 4096, 5, 512).unwrap();
        let bytes = world.restart(seed).read_file("data").unwrap();
        seen.insert((bytes[0], bytes[4096]));
    }
    let expected = [(2, 1), (2, 5), (3, 1), (3, 5), (4, 1), (4, 5)];
    assert_eq!(seen, expected.into());
}

#[test]
fn a_sync_covers_the_writes_that_had_completed_when_it_was_pushed_and_no_others() {
    let mut late = BTreeSet::new();
    for seed in 0..200 {
        let (world, mut queue) = world_with_blocks(seed, SimOptions::calm(), 2, 1);
        write(&mut *queue, 0, 2, BLOCK).unwrap();
        queue.push(Op::new(1, 4096, OpKind::write(buffer(BLOCK, 3), false))).unwrap();
        queue.push(Op::new(2, 0, OpKind::Sync)).unwrap();
        let mut done = Vec::new();
        queue.reap(2, &mut done).unwrap();
        let bytes = world.restart(seed).read_file("data").unwrap();
        assert_eq!(bytes[..BLOCK], [2; BLOCK], "seed {seed}");
        late.insert(bytes[4096]);
    }
    assert_eq!(late, [1, 3].into());
}

#[test]
fn a_write_in_flight_at_the_cut_is_partly_done_even_a_durable_one() {
    for durable in [false, true] {
        let mut counts = BTreeSet::new();
        for seed in 0..300 {
            let (world, mut queue) = world_with_blocks(seed, SimOptions::adversarial(), 1, 1);
            world.cut_after(world.events() + 1);
            queue.push(Op::new(7, 0, OpKind::write(buffer(BLOCK, 2), durable))).unwrap();
            assert!(world.is_cut());
            let mut done = Vec::new();
            queue.reap(1, &mut done).unwrap();
            assert_eq!((done[0].op.token, done[0].result.as_ref().unwrap_err().kind()), (7, ErrorKind::Stopped));
            let bytes = world.restart(seed).read_file("data").unwrap();
            counts.insert(bytes.chunks(512).filter(|sector| sector.iter().all(|byte| *byte == 2)).count());
        }
        assert!(counts.contains(&0) && counts.contains(&8) && counts.len() > 3, "{counts:?}");
    }
}

#[test]
fn an_unsynced_length_is_kept_or_lost_and_its_new_bytes_may_be_garbage() {
    let (mut lens, mut contents) = (BTreeSet::new(), BTreeSet::new());
    for seed in 0..400 {
        let (world, mut queue) = world_with_blocks(seed, SimOptions::adversarial(), 1, 1);
        write(&mut *queue, 4096, 2, 2 * BLOCK).unwrap();
        let bytes = world.restart(seed).read_file("data").unwrap();
        assert_eq!(bytes[..BLOCK], [1; BLOCK], "seed {seed}");
        lens.insert(bytes.len());
        for sector in bytes[BLOCK..].chunks(512) {
            contents.insert(match sector {
                sector if sector.iter().all(|byte| *byte == 2) => "written",
                sector if sector.iter().all(|byte| *byte == 0) => "zero",
                _ => "garbage",
            });
        }
    }
    // Lengths in between come from transfers that the driver had to repeat.
    assert!(lens.contains(&BLOCK) && lens.contains(&(3 * BLOCK)), "{lens:?}");
    assert!(lens.iter().all(|len| len % 512 == 0 && (BLOCK..=3 * BLOCK).contains(len)), "{lens:?}");
    assert_eq!(contents, ["written", "zero", "garbage"].into());
}

#[test]
fn a_file_that_was_cut_may_have_its_old_length_and_bytes_until_a_sync() {
    let mut lens = BTreeSet::new();
    for seed in 0..100 {
        let (world, disk, mut queue) = world_with_file(seed, SimOptions::default());
        for block in 0..4 {
            write(&mut *queue, block * BLOCK as u64, block as u8 + 1, BLOCK).unwrap();
        }
        sync(&mut *queue).unwrap();
        disk.truncate(BLOCK as u64).unwrap();
        assert_eq!((disk.len_bytes().unwrap(), world.bytes_used()), (BLOCK as u64, BLOCK as u64));
        let after = world.restart(seed).read_file("data").unwrap();
        assert!(after.chunks(BLOCK).zip(1..).all(|(block, fill)| block.iter().all(|byte| *byte == fill)), "{world}");
        lens.insert(after.len());
        // New bytes behind the place of the cut begin as zeroes.
        write(&mut *queue, 2 * BLOCK as u64, 9, BLOCK).unwrap();
        sync(&mut *queue).unwrap();
        let whole = [[1; BLOCK], [0; BLOCK], [9; BLOCK]].concat();
        assert!(world.restart(seed).read_file("data").unwrap() == whole, "{world}");
        for len in [4 * BLOCK as u64, BLOCK as u64 + 512] {
            assert_eq!(disk.truncate(len).unwrap_err().kind(), ErrorKind::InvalidCall, "{len}");
        }
    }
    assert_eq!(lens, [BLOCK, 4 * BLOCK].into());
}

#[test]
fn an_allocation_reads_as_zero_takes_space_and_is_durable_after_a_sync_only() {
    let mut lens = BTreeSet::new();
    for seed in 0..100 {
        let (world, disk, mut queue) = world_with_file(seed, SimOptions::default());
        run(&mut *queue, 0, OpKind::Allocate { len_bytes: 10 * BLOCK as u64 }).unwrap();
        assert_eq!((disk.len_bytes().unwrap(), world.bytes_used()), (40960, 40960));
        lens.insert(world.restart(seed).read_file("data").unwrap().len());
        sync(&mut *queue).unwrap();
        let after = world.restart(seed);
        assert_eq!((after.read_file("data").unwrap(), after.bytes_used()), (vec![0; 40960], 40960));
    }
    assert_eq!(lens, [0, 40960].into());
}

#[test]
fn a_failed_sync_drops_the_writes_that_it_covered_although_reads_still_see_them() {
    let mut fates = BTreeSet::new();
    for seed in 0..200 {
        let (world, mut queue) = world_with_blocks(seed, SimOptions::default(), 2, 1);
        world.inject(Fault::new(Call::Sync, Effect::Errno(libc::EIO)));
        write(&mut *queue, 0, 2, BLOCK).unwrap();
        assert_eq!(sync(&mut *queue).unwrap_err().kind(), ErrorKind::Device);
        assert_eq!(read(&mut *queue, 0, BLOCK).unwrap(), [2; BLOCK]);
        write(&mut *queue, 4096, 3, BLOCK).unwrap();
        sync(&mut *queue).unwrap();
        let bytes = world.restart(seed).read_file("data").unwrap();
        assert_eq!(bytes[4096..], [3; BLOCK], "the second sync saves what came after the first");
        fates.insert(bytes[0]);
        // After another write and a sync, the block is durable.
        write(&mut *queue, 0, 4, BLOCK).unwrap();
        sync(&mut *queue).unwrap();
        assert_eq!(world.restart(seed).read_file("data").unwrap()[..BLOCK], [4; BLOCK]);
    }
    assert_eq!(fates, [1, 2].into(), "sometimes it had reached the disk, sometimes not");
}

#[test]
fn a_second_cut_takes_nothing_that_survived_the_first() {
    for seed in 0..50 {
        let (world, mut queue) = world_with_blocks(seed, SimOptions::adversarial(), 2, 1);
        write(&mut *queue, 0, 2, 3 * BLOCK).unwrap();
        let after = world.restart(seed);
        let bytes = after.read_file("data").unwrap();
        assert_eq!(after.restart(seed + 1).read_file("data").unwrap(), bytes, "{after}");
    }
}

// ---- names ----

#[test]
fn names_are_undecided_until_the_directory_is_synced_and_a_rename_is_atomic() {
    let mut seen = BTreeSet::new();
    for seed in 0..400 {
        let world = SimWorld::new(seed, SimOptions::default());
        let directory = world.directory();
        for (name, fill) in [("other", 1), ("new", 2)] {
            let mut queue = directory.create(name).unwrap().queue(&QueueOptions::default()).unwrap();
            write_durable(&mut *queue, 0, fill, BLOCK).unwrap();
            if name == "other" {
                directory.sync().unwrap();
            }
        }
        assert_eq!(directory.rename("new", "other").unwrap_err().kind(), ErrorKind::AlreadyExists);
        directory.rename("new", "db").unwrap();
        let after = world.restart(seed);
        let first = |name| after.read_file(name).ok().map(|bytes| bytes[0]);
        assert_eq!(first("other"), Some(1));
        seen.insert((first("db"), first("new")));
        directory.sync().unwrap();
        assert_eq!(world.restart(seed).read_file("db").unwrap()[0], 2);
        directory.remove("db").unwrap();
        directory.sync().unwrap();
        assert_eq!(world.restart(seed).directory().list().unwrap(), ["other"]);
    }
    assert_eq!(seen, [(None, None), (None, Some(2)), (Some(2), None)].into());
}

#[test]
fn a_directory_lists_its_names_and_refuses_missing_existing_and_invalid_ones() {
    let world = SimWorld::new(1, SimOptions::default());
    let directory = world.directory();
    directory.create("b").unwrap();
    directory.create("a").unwrap();
    assert_eq!(directory.list().unwrap(), ["a", "b"]);
    assert_eq!(directory.create("a").unwrap_err().kind(), ErrorKind::AlreadyExists);
    for error in
        [directory.open("c").unwrap_err(), directory.rename("c", "d").unwrap_err(), directory.remove("c").unwrap_err()]
    {
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    }
    for name in ["", ".", "..", "a/b"] {
        assert_eq!(directory.create(name).unwrap_err().kind(), ErrorKind::InvalidCall);
        assert_eq!(directory.rename("a", name).unwrap_err().kind(), ErrorKind::InvalidCall);
    }
}

#[test]
fn a_removed_file_lives_and_takes_space_until_its_last_handle_is_gone() {
    let (world, disk, mut queue) = world_with_file(1, SimOptions::default());
    write(&mut *queue, 0, 1, BLOCK).unwrap();
    world.directory().remove("data").unwrap();
    assert_eq!(read(&mut *queue, 0, BLOCK).unwrap(), [1; BLOCK]);
    drop(disk);
    assert_eq!(world.bytes_used(), BLOCK as u64);
    drop(queue);
    assert_eq!(world.bytes_used(), 0);
}

// ---- the cut itself ----

/// Creates two files, writes, syncs, renames; counts the blocks acknowledged as durable.
fn history(world: &SimWorld, durable_blocks: &mut usize, renamed: &mut bool) -> Result<()> {
    let directory = world.directory();
    let mut queue = directory.create("new")?.queue(&QueueOptions::default())?;
    for block in 0..4_u64 {
        write(&mut *queue, block * 4096, block as u8 + 1, BLOCK)?;
    }
    sync(&mut *queue)?;
    directory.sync()?;
    *durable_blocks = 4;
    directory.rename("new", "db")?;
    write_durable(&mut *queue, 4 * 4096, 5, BLOCK)?;
    *durable_blocks = 5;
    directory.sync()?;
    *renamed = true;
    Ok(())
}

#[test]
fn a_cut_after_any_event_stops_everything_and_keeps_what_was_durable() {
    for options in everything() {
        let whole = SimWorld::new(5, options);
        history(&whole, &mut 0, &mut false).unwrap();
        for event in 0..=whole.events() {
            let world = SimWorld::new(5, options);
            world.cut_after(event);
            let (mut durable_blocks, mut renamed) = (0, false);
            let end = history(&world, &mut durable_blocks, &mut renamed);
            assert!(world.is_cut());
            assert_eq!(world.events(), event);
            if let Err(error) = end {
                assert_eq!(error.kind(), ErrorKind::Stopped, "{world}: {error}");
            }
            let directory = world.directory();
            assert_eq!(directory.list().unwrap_err().kind(), ErrorKind::Stopped);
            assert_eq!(directory.sync().unwrap_err().kind(), ErrorKind::Stopped);
            for seed in 0..20 {
                let after = world.restart(seed);
                let names = after.directory().list().unwrap();
                assert!(names.len() <= 1 && (!renamed || names == ["db"]), "{after}: {names:?}");
                assert!(durable_blocks == 0 || names.len() == 1, "{after}: {names:?}");
                for block in 0..durable_blocks {
                    let bytes = after.read_file(&names[0]).unwrap();
                    let expected = [block as u8 + 1; BLOCK];
                    assert_eq!(bytes[block * BLOCK..(block + 1) * BLOCK], expected, "{after}");
                }
            }
        }
    }
}

#[test]
fn after_a_cut_disks_and_queues_say_stopped_and_give_every_operation_back() {
    let (world, disk, mut queue) = world_with_file(3, SimOptions::adversarial());
    for token in 0..10 {
        queue.push(Op::new(token, token * 4096, OpKind::write(buffer(BLOCK, 1), false))).unwrap();
    }
    world.cut_after(0);
    assert_eq!(queue.submit().unwrap_err().kind(), ErrorKind::Stopped);
    let refused = queue.push(Op::new(99, 0, OpKind::Sync)).unwrap_err();
    assert_eq!((refused.op.token, refused.error.kind()), (99, ErrorKind::Stopped));
    let mut done = Vec::new();
    queue.reap(10, &mut done).unwrap();
    assert_eq!((done.len(), queue.in_flight()), (10, 0));
    assert!(done.into_iter().all(|completion| completion.into_buffer().is_some_and(|buffer| buffer[0] == 1)));
    assert_eq!(disk.len_bytes().unwrap_err().kind(), ErrorKind::Stopped);
    assert_eq!(disk.queue(&QueueOptions::default()).err().unwrap().kind(), ErrorKind::Stopped);
}

#[test]
fn the_same_seed_repeats_the_same_history_and_the_same_wreck() {
    let once = |seed| {
        let world = SimWorld::new(seed, SimOptions::adversarial());
        let disk = world.directory().create("data").unwrap();
        let mut queue = disk.queue(&QueueOptions::default()).unwrap();
        let mut done = Vec::new();
        for token in 0..60 {
            queue
                .push(Op::new(token, token % 7 * 4096, OpKind::write(buffer(BLOCK, token as u8), token % 5 == 0)))
                .unwrap();
            queue.reap(0, &mut done).unwrap();
        }
        let order: Vec<u64> = done.iter().map(|completion| completion.op.token).collect();
        (world.trace_hash(), order, world.restart(seed).read_file("data").ok())
    };
    assert_eq!(once(1), once(1));
    assert_ne!(once(1).0, once(2).0);
}

#[test]
fn printing_a_world_prints_the_line_that_makes_it_again() {
    let world = SimWorld::new(7, SimOptions::calm());
    world.directory().create("a").unwrap();
    world.cut_after(2);
    let text = world.restart(9).to_string();
    assert!(text.starts_with("SimWorld::new(7, SimOptions { defer: Immediate"), "{text}");
    assert!(text.ends_with(".cut_after(2).restart(9) at event 0") && !text.contains('\n'), "{text}");
}
