//! Completions out of order, errors, silent damage, space, and the counters.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nofault_io::aligned::{IoBuf, StableBytes};
use nofault_io::completion::{Op, OpKind, WriteData};
use nofault_io::disk::{Queue, QueueOptions};
use nofault_io::error::{ErrorKind, Result};
use nofault_sim::{Call, Defer, Effect, Fault, Rates, SimOptions, SimWorld};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{BLOCK, buffer, read, run, sync, world_with_blocks, world_with_file, write, write_durable};

// ---- completions ----

/// Starts ten reads and returns the order in which `reap(0)` gives them back, and the number of reaps that found
/// nothing.
fn order_of_reads(options: SimOptions, seed: u64) -> (Vec<u64>, usize) {
    let (_world, mut queue) = world_with_blocks(seed, options, 10, 1);
    for token in 0..10 {
        queue.push(Op::new(token, token * 4096, OpKind::Read(buffer(BLOCK, 0)))).unwrap();
    }
    let (mut done, mut empty_looks) = (Vec::new(), 0);
    while queue.in_flight() > 0 {
        let before = done.len();
        queue.reap(0, &mut done).unwrap();
        empty_looks += usize::from(done.len() == before);
    }
    (done.iter().map(|completion| completion.op.token).collect(), empty_looks)
}

#[test]
fn completions_come_at_once_or_late_and_in_any_order_as_asked() {
    let in_order: Vec<u64> = (0..10).collect();
    assert_eq!(order_of_reads(SimOptions::calm(), 1), (in_order, 0));
    for options in [SimOptions::default(), SimOptions::adversarial()] {
        let outcomes: BTreeSet<_> = (0..20).map(|seed| order_of_reads(options, seed)).collect();
        assert!(outcomes.len() > 15, "{} different orders", outcomes.len());
        assert!(outcomes.iter().any(|(_, empty_looks)| *empty_looks > 0));
        for (mut order, _) in outcomes {
            order.sort_unstable();
            assert_eq!(order, (0..10).collect::<Vec<_>>());
        }
    }
}

fn is_readable(queue: &dyn Queue) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(queue.ready_fd().unwrap(), PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).unwrap() == 1
}

#[test]
fn the_descriptor_is_readable_while_something_submitted_is_not_reaped() {
    for options in [SimOptions::calm(), SimOptions::adversarial()] {
        let (world, mut queue) = world_with_blocks(2, options, 1, 1);
        assert!(!is_readable(&*queue));
        queue.push(Op::new(1, 0, OpKind::Sync)).unwrap();
        assert!(!is_readable(&*queue), "pushed is not submitted");
        queue.submit().unwrap();
        let mut done = Vec::new();
        assert!(is_readable(&*queue));
        queue.reap(0, &mut done).unwrap();
        assert_eq!(done.len(), 1, "readable means that there is something");
        assert!(!is_readable(&*queue));
        queue.push(Op::new(2, 0, OpKind::Sync)).unwrap();
        queue.submit().unwrap();
        world.cut_after(0);
        assert!(is_readable(&*queue), "what the power cut gives back is there to take");
    }
}

#[test]
fn a_queue_takes_its_depth_and_no_more_and_refuses_bad_operations_whole() {
    let (_world, disk, _) = world_with_file(1, SimOptions::default());
    let mut queue = disk.queue(&QueueOptions { depth_max: 2, ..QueueOptions::default() }).unwrap();
    queue.push(Op::new(1, 0, OpKind::Sync)).unwrap();
    queue.push(Op::new(2, 0, OpKind::Sync)).unwrap();
    let refused = queue.push(Op::new(3, 0, OpKind::Sync)).unwrap_err();
    assert_eq!((refused.op.token, refused.error.kind()), (3, ErrorKind::Busy));
    let mut done = Vec::new();
    queue.reap(usize::MAX, &mut done).unwrap();
    assert_eq!((done.len(), queue.in_flight()), (2, 0));
    let refused = queue.push(Op::new(4, 7, OpKind::write(buffer(512, 1), false))).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::InvalidCall);
    let (_, odd) = buffer(BLOCK, 1).split_at(100);
    let refused = queue.push(Op::new(5, 0, OpKind::write(odd, false))).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::InvalidCall);
}

#[test]
fn a_read_past_the_end_is_short_and_one_wild_offset_is_an_error() {
    let (_world, mut queue) = world_with_blocks(1, SimOptions::default(), 1, 1);
    for offset in [512, 4096, 1 << 50] {
        let error = read(&mut *queue, offset, BLOCK).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Short, "{error}");
        assert!(error.to_string().contains("the file ends at 4096"), "{error}");
    }
    assert_eq!(write(&mut *queue, 1 << 50, 1, BLOCK).unwrap_err().kind(), ErrorKind::NoSpace);
    let kind = OpKind::Allocate { len_bytes: 1 << 60 };
    assert_eq!(run(&mut *queue, 0, kind).unwrap_err().kind(), ErrorKind::NoSpace);
}

/// Bytes that count their drops, in a destructor that uses the world.
struct TrackedBuffer(IoBuf, Arc<AtomicUsize>, SimWorld);

// SAFETY: the bytes belong to the buffer, and are not changed while it is lent.
unsafe impl StableBytes for TrackedBuffer {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for TrackedBuffer {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::Relaxed);
        let _ = self.2.events();
    }
}

#[test]
fn dropping_a_queue_runs_its_submitted_operations_and_frees_their_memory() {
    let (world, disk, mut queue) = world_with_file(1, SimOptions::adversarial());
    let dropped = Arc::new(AtomicUsize::new(0));
    let part =
        |fill| -> Arc<dyn StableBytes> { Arc::new(TrackedBuffer(buffer(BLOCK, fill), dropped.clone(), world.clone())) };
    let data = WriteData::Gather(vec![part(1), part(2)]);
    queue.push(Op::new(1, 0, OpKind::Write { data, durable: false })).unwrap();
    queue.submit().unwrap();
    assert_eq!(dropped.load(Ordering::Relaxed), 0);
    drop(queue);
    assert_eq!(dropped.load(Ordering::Relaxed), 2);
    let mut other = disk.queue(&QueueOptions::default()).unwrap();
    assert_eq!(read(&mut *other, 0, 2 * BLOCK).unwrap(), [[1; BLOCK], [2; BLOCK]].concat());
}

#[test]
fn a_transfer_that_comes_back_short_is_repeated_and_leaves_the_right_bytes() {
    let rates = Rates { split_transfer: 1.0, ..Rates::default() };
    for seed in 0..50 {
        let (world, _, mut queue) = world_with_file(seed, SimOptions { rates, ..SimOptions::default() });
        for place in 0..4_u64 {
            let kind = OpKind::write(buffer(4 * BLOCK, place as u8), place % 2 == 0);
            queue.push(Op::new(place, place * 16384, kind)).unwrap();
        }
        let mut done = Vec::new();
        queue.reap(4, &mut done).unwrap();
        for place in 0..4 {
            assert_eq!(read(&mut *queue, place * 16384, 4 * BLOCK).unwrap(), vec![place as u8; 4 * BLOCK]);
        }
        let bytes = world.restart(seed).read_file("data").unwrap();
        assert_eq!(bytes[2 * 16384..3 * 16384], [2; 4 * BLOCK], "durable as a whole, seed {seed}");
    }
}

#[test]
fn a_read_beside_a_write_of_the_same_place_sees_any_mix_when_the_world_is_adversarial() {
    let mut mixes = BTreeSet::new();
    for seed in 0..100 {
        let (_world, mut queue) = world_with_blocks(seed, SimOptions::adversarial(), 1, 1);
        queue.push(Op::new(1, 0, OpKind::write(buffer(BLOCK, 2), false))).unwrap();
        queue.push(Op::new(2, 0, OpKind::Read(buffer(BLOCK, 0)))).unwrap();
        let mut done = Vec::new();
        queue.reap(2, &mut done).unwrap();
        let seen = done.into_iter().find(|completion| completion.op.token == 2).unwrap().into_buffer().unwrap();
        mixes.insert(seen.iter().filter(|byte| **byte == 2).count() / 512);
    }
    assert!(mixes.contains(&8) && mixes.len() > 4, "{mixes:?}");
}

#[test]
fn many_threads_may_use_one_world() {
    let (world, disk, _) = world_with_file(1, SimOptions::adversarial());
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let disk = &disk;
            scope.spawn(move || {
                let mut queue = disk.queue(&QueueOptions::default()).unwrap();
                for round in 0..20 {
                    let offset = (thread * 20 + round) * 4096;
                    write(&mut *queue, offset, thread as u8, BLOCK).unwrap();
                    assert_eq!(read(&mut *queue, offset, BLOCK).unwrap(), [thread as u8; BLOCK]);
                }
            });
        }
    });
    assert_eq!(world.stats().write_count, 80);
}

// ---- announced faults ----

#[test]
fn any_kind_of_call_fails_when_told_to_and_the_one_after_it_works() {
    let (world, disk, mut queue) = world_with_file(1, SimOptions::default());
    let directory = world.directory();
    write(&mut *queue, 0, 1, BLOCK).unwrap();
    let mut act = |call: Call, name: &str| -> Result<()> {
        match call {
            Call::Create => directory.create(name).map(drop),
            Call::Open => directory.open("data").map(drop),
            Call::Rename if directory.list()?.contains(&"data".to_owned()) => directory.rename("data", "moved"),
            Call::Rename => directory.rename("moved", "data"),
            Call::Truncate => disk.truncate(disk.len_bytes()?),
            Call::Remove => directory.remove(name),
            Call::List => directory.list().map(drop),
            Call::SyncDirectory => directory.sync(),
            Call::Read => read(&mut *queue, 0, BLOCK).map(drop),
            Call::Write => write(&mut *queue, 0, 1, BLOCK),
            Call::Sync => sync(&mut *queue),
            Call::Allocate => run(&mut *queue, 0, OpKind::Allocate { len_bytes: 4096 }).map(drop),
        }
    };
    let kinds =
        [(libc::EIO, ErrorKind::Device), (libc::ENOSPC, ErrorKind::NoSpace), (libc::ETIMEDOUT, ErrorKind::Other)];
    let calls = [
        Call::Create,
        Call::Open,
        Call::Rename,
        Call::List,
        Call::SyncDirectory,
        Call::Read,
        Call::Write,
        Call::Sync,
        Call::Allocate,
        Call::Truncate,
        Call::Remove,
    ];
    for (round, (errno, kind)) in kinds.into_iter().enumerate() {
        let name = |index| format!("{round}-{index}");
        for call in calls {
            // The third of four calls fails; `remove` needs names that `create` made.
            world.inject(Fault::new(call, Effect::Errno(errno)).after(2));
            let results: Vec<Result<()>> = (0..4).map(|index| act(call, &name(index))).collect();
            for (index, result) in results.into_iter().enumerate() {
                let missing = call == Call::Remove && index == 2;
                match result {
                    Ok(()) => assert_ne!(index, 2, "{call:?}"),
                    Err(error) if missing => assert_eq!(error.kind(), ErrorKind::NotFound, "{call:?}"),
                    Err(error) => assert_eq!((index, error.kind()), (2, kind), "{call:?}: {error}"),
                }
            }
            if call == Call::Rename {
                directory.rename("moved", "data").unwrap();
            }
        }
        // The name whose creation failed is absent; the others were removed by a successful removal.
        assert_eq!(world.directory().list().unwrap(), ["data"]);
    }
}

#[test]
fn a_fault_can_be_meant_for_one_file_and_last() {
    let (world, mut queue) = world_with_blocks(1, SimOptions::default(), 1, 1);
    let mut other = world.directory().create("other").unwrap().queue(&QueueOptions::default()).unwrap();
    world.inject(Fault::new(Call::Write, Effect::Errno(libc::EIO)).on("data").times(u64::MAX));
    for _ in 0..5 {
        assert_eq!(write(&mut *queue, 0, 2, BLOCK).unwrap_err().kind(), ErrorKind::Device);
        write(&mut *other, 0, 2, BLOCK).unwrap();
    }
    let mut again = world.restart(1).directory().open("data").unwrap().queue(&QueueOptions::default()).unwrap();
    write(&mut *again, 0, 2, BLOCK).unwrap();
}

#[test]
fn a_failed_write_may_have_written_any_of_its_sectors() {
    let mut counts = BTreeSet::new();
    for seed in 0..50 {
        let (world, mut queue) = world_with_blocks(seed, SimOptions::default(), 1, 1);
        world.inject(Fault::new(Call::Write, Effect::Errno(libc::EIO)));
        write(&mut *queue, 0, 2, BLOCK).unwrap_err();
        let bytes = read(&mut *queue, 0, BLOCK).unwrap();
        counts.insert(bytes.iter().filter(|byte| **byte == 2).count());
    }
    assert!(counts.len() > 3 && counts.iter().all(|count| count % 512 == 0), "{counts:?}");
}

#[test]
fn random_errors_come_at_about_the_rate_asked() {
    let rates = Rates { read_error: 0.2, write_error: 0.2, sync_error: 0.2, ..Rates::default() };
    let (world, mut queue) = world_with_blocks(1, SimOptions::default(), 1, 1);
    world.set_rates(rates);
    for kind in ["read", "write", "sync"] {
        let failed = (0..200).filter(|_| match kind {
            "read" => read(&mut *queue, 0, BLOCK).is_err(),
            "write" => write(&mut *queue, 0, 1, BLOCK).is_err(),
            _ => sync(&mut *queue).is_err(),
        });
        let failed = failed.count();
        assert!((15..80).contains(&failed), "{failed} of 200 {kind}s");
    }
}

// ---- space ----

#[test]
fn writes_and_allocations_fail_when_space_runs_out_and_work_again_when_there_is_some() {
    let options = SimOptions { capacity_bytes: Some(4 * BLOCK as u64), ..SimOptions::default() };
    let (world, mut queue) = world_with_blocks(1, options, 2, 1);
    write_durable(&mut *queue, 0, 2, 2 * BLOCK).unwrap();
    assert_eq!(world.bytes_used(), 2 * BLOCK as u64, "an overwrite takes no space");
    let error = write(&mut *queue, 4096, 3, 4 * BLOCK).unwrap_err();
    assert_eq!((error.kind(), error.errno()), (ErrorKind::NoSpace, Some(libc::ENOSPC)));
    assert_eq!(world.read_file("data").unwrap().len(), 4 * BLOCK, "what fits is written first, as the kernel does");
    assert_eq!(run(&mut *queue, 16384, OpKind::Allocate { len_bytes: 4096 }).unwrap_err().kind(), ErrorKind::NoSpace);
    world.set_capacity(Some(5 * BLOCK as u64));
    run(&mut *queue, 16384, OpKind::Allocate { len_bytes: 4096 }).unwrap();
    assert_eq!(world.bytes_used(), 5 * BLOCK as u64);
}

// ---- silent damage ----

/// Four durable blocks of 1, 2, 3, 4.
fn four_blocks(options: SimOptions) -> (SimWorld, Box<dyn Queue>) {
    let (world, mut queue) = world_with_blocks(1, options, 4, 0);
    for block in 0..4 {
        write_durable(&mut *queue, block * 4096, block as u8 + 1, BLOCK).unwrap();
    }
    (world, queue)
}

fn first_bytes(world: &SimWorld) -> Vec<u8> {
    world.read_file("data").unwrap().chunks(BLOCK).map(|block| block[0]).collect()
}

#[test]
fn a_lost_write_and_a_lying_sync_are_acknowledged_and_do_nothing() {
    let (world, mut queue) = four_blocks(SimOptions::default());
    world.inject(Fault::new(Call::Write, Effect::Lost));
    write_durable(&mut *queue, 0, 9, BLOCK).unwrap();
    assert_eq!(first_bytes(&world), [1, 2, 3, 4]);
    let mut fates = BTreeSet::new();
    for seed in 0..50 {
        world.inject(Fault::new(Call::Sync, Effect::Lost));
        write(&mut *queue, 0, 1, BLOCK).unwrap();
        write(&mut *queue, 0, 9, BLOCK).unwrap();
        sync(&mut *queue).unwrap();
        fates.insert(first_bytes(&world.restart(seed))[0]);
    }
    assert_eq!(fates, [1, 9].into());
}

#[test]
fn misdirected_reads_and_writes_go_to_another_place() {
    let (world, mut queue) = four_blocks(SimOptions::default());
    world.inject(Fault::new(Call::Read, Effect::Misdirected));
    let seen = read(&mut *queue, 4096, BLOCK).unwrap();
    assert!([1, 3, 4].contains(&seen[0]) && seen.iter().all(|byte| *byte == seen[0]));
    world.inject(Fault::new(Call::Write, Effect::Misdirected));
    write_durable(&mut *queue, 4096, 9, BLOCK).unwrap();
    let bytes = first_bytes(&world);
    assert_eq!((bytes[1], bytes.iter().filter(|byte| **byte == 9).count()), (2, 1));
    assert_eq!(first_bytes(&world.restart(1)), bytes);
}

#[test]
fn bits_flip_and_sectors_turn_to_zeroes_or_garbage_on_their_way() {
    let differing = |bytes: &[u8], from: u8| bytes.iter().map(|byte| (byte ^ from).count_ones()).sum::<u32>();
    for (effect, bits) in [
        (Effect::FlippedBit, 1..2),
        (Effect::ZeroedSector, 512 * 8..512 * 8 + 1),
        (Effect::GarbageSector, 512..512 * 8),
    ] {
        let (world, mut queue) = world_with_blocks(3, SimOptions::default(), 1, 0xFF);
        world.inject(Fault::new(Call::Read, effect));
        let seen = read(&mut *queue, 0, BLOCK).unwrap();
        assert!(bits.contains(&differing(&seen, 0xFF)), "{effect:?}");
        assert_eq!(read(&mut *queue, 0, BLOCK).unwrap(), [0xFF; BLOCK], "what is stored stays good");
        world.inject(Fault::new(Call::Write, effect));
        write(&mut *queue, 0, 0xFF, BLOCK).unwrap();
        let seen = read(&mut *queue, 0, BLOCK).unwrap();
        assert!(bits.contains(&differing(&seen, 0xFF)), "{effect:?}");
    }
}

#[test]
fn every_rate_of_silent_damage_does_damage() {
    let all = [
        Rates { lost_write: 0.5, ..Rates::default() },
        Rates { misdirected_write: 0.5, ..Rates::default() },
        Rates { misdirected_read: 0.5, ..Rates::default() },
        Rates { flipped_write: 0.5, ..Rates::default() },
        Rates { flipped_read: 0.5, ..Rates::default() },
        Rates { zeroed_write: 0.5, ..Rates::default() },
        Rates { garbage_write: 0.5, ..Rates::default() },
    ];
    for rates in all {
        let (world, mut queue) = four_blocks(SimOptions::default());
        world.set_rates(rates);
        let mut wrong = 0;
        for round in 0..40_u8 {
            write(&mut *queue, 4096, 100 + round, BLOCK).unwrap();
            wrong += usize::from(read(&mut *queue, 4096, BLOCK).unwrap() != [100 + round; BLOCK]);
        }
        assert!((5..38).contains(&wrong), "{wrong} of 40 with {rates:?}");
    }
}

#[test]
fn damage_at_rest_is_seen_at_once_and_survives_cuts() {
    let (world, mut queue) = four_blocks(SimOptions::default());
    let old = world.snapshot_file("data").unwrap();
    let check = |expected: &[u8]| {
        assert_eq!(first_bytes(&world), expected);
        assert_eq!(first_bytes(&world.restart(1)), expected);
    };
    world.flip_bit("data", 0, 3).unwrap();
    check(&[9, 2, 3, 4]);
    world.swap_ranges("data", 4096, 8192, 4096).unwrap();
    check(&[9, 3, 2, 4]);
    world.misplace("data", 12288..16384, 0).unwrap();
    check(&[4, 3, 2, 4]);
    world.zero_range("data", 4096..8192).unwrap();
    check(&[4, 0, 2, 4]);
    world.overwrite("data", 12288, &[7; 10]).unwrap();
    check(&[4, 0, 2, 7]);
    world.restore_range("data", &old, 0..8192).unwrap();
    check(&[1, 2, 2, 7]);
    world.set_len("data", 8192 + 1).unwrap();
    check(&[1, 2, 2]);
    world.set_len("data", 8192 + 4097).unwrap();
    assert_eq!(read(&mut *queue, 8192, BLOCK).unwrap()[..2], [2, 0]);
    world.set_len("data", 0).unwrap();
    check(&[]);
    assert_eq!(world.bytes_used(), 0);
    world.restore_file("data", &old).unwrap();
    check(&[1, 2, 3, 4]);
    world.garbage_range("data", 0..4096).unwrap();
    assert!(world.read_file("data").unwrap()[..BLOCK].iter().collect::<BTreeSet<_>>().len() > 100);
    // Bytes written next to the damage, in the same sector, are not taken back.
    write(&mut *queue, 0, 5, 512).unwrap();
    world.overwrite("data", 100, &[8]).unwrap();
    let sector = world.restart(3).read_file("data").unwrap()[..512].to_vec();
    assert_eq!((sector[99], sector[100], sector[101]), (5, 8, 5));
}

#[test]
fn damage_to_missing_files_and_ranges_is_refused() {
    let (world, _queue) = world_with_blocks(1, SimOptions::default(), 1, 1);
    let snapshot = world.snapshot_file("data").unwrap();
    assert_eq!(world.flip_bit("nothing", 0, 0).unwrap_err().kind(), ErrorKind::NotFound);
    let errors = [
        world.flip_bit("data", 4096, 0),
        world.zero_range("data", 4000..5000),
        world.overwrite("data", u64::MAX, &[1]),
        world.restore_range("data", &snapshot, 0..4097),
        world.swap_ranges("data", 0, u64::MAX, 1),
        world.set_len("data", u64::MAX),
    ];
    for error in errors {
        assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidCall);
    }
}

// ---- counters ----

#[test]
fn statistics_count_calls_and_bytes() {
    let world = SimWorld::new(1, SimOptions { defer: Defer::Adversarial, ..SimOptions::default() });
    let directory = world.directory();
    let mut queue = directory.create("data").unwrap().queue(&QueueOptions::default()).unwrap();
    write(&mut *queue, 0, 1, 2 * BLOCK).unwrap();
    let before = world.stats();
    read(&mut *queue, 0, BLOCK).unwrap();
    read(&mut *queue, 1 << 20, BLOCK).unwrap_err();
    write_durable(&mut *queue, 0, 1, BLOCK).unwrap();
    sync(&mut *queue).unwrap();
    directory.sync().unwrap();
    let stats = world.stats() - before;
    assert_eq!((stats.read_count, stats.read_bytes), (2, 8192));
    assert_eq!((stats.write_count, stats.write_bytes, stats.durable_write_count), (1, 4096, 1));
    assert_eq!((stats.sync_count, stats.directory_sync_count, stats.name_call_count, stats.error_count), (1, 1, 0, 1));
    assert_eq!((before.name_call_count, before.write_bytes), (1, 8192));
}
