//! The superblock that opening starts from: durable before anything relies on it, and never another one than was found.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use nofault_io::aligned::PageKind;
use nofault_io::completion::{Op, OpKind};
use nofault_sim::depth::by_depth;
use nofault_sim::{Call, Effect, Fault};

use super::*;
use crate::format::{seal, set_version};

const EIO: i32 = 5;

/// Sets every key, in commits that are durable and small enough for the pool.
pub(super) fn set_all(numbers: &mut Numbers, value: u64, promises: &mut Promises) {
    for chunk in 0..KEYS / 10 {
        let sets: Vec<(u64, u64)> = (chunk * 10..chunk * 10 + 10).map(|key| (key, value)).collect();
        let mut state = promises.states.last().unwrap().clone();
        sets.iter().for_each(|(key, value)| state[*key as usize] = *value);
        promises.states.push(state);
        let position = numbers.commit(&sets).unwrap();
        numbers.opened.log.durable(position).wait().unwrap();
        promises.acknowledged = numbers.next - 1;
    }
}

/// Creates a database with one checkpoint, and a second one during which the `k`-th write to the data file fails. Also
/// returns whether the second checkpoint failed.
fn failed_at(k: u64, seed: u64) -> (SimWorld, Promises, bool) {
    let world = SimWorld::new(seed, SimOptions::calm());
    create(&world.directory(), &settings(), creation(1)).unwrap();
    let mut promises = Promises { created: true, acknowledged: 0, states: vec![vec![0; KEYS as usize]] };
    let mut numbers = Numbers::open(&world).unwrap();
    set_all(&mut numbers, 1, &mut promises);
    numbers.opened.checkpointer.checkpoint().unwrap();
    set_all(&mut numbers, 2, &mut promises);
    world.inject(Fault::new(Call::Write, Effect::Errno(EIO)).on("data").after(k));
    let failed = numbers.opened.checkpointer.checkpoint().is_err();
    (world, promises, failed)
}

/// Creates a database in which the first superblock of the second checkpoint is in a cache only: the process ended
/// between the write and the flush. `writes` is the number of writes to the data file that the checkpoint makes.
fn in_a_cache_only(writes: u64, seed: u64) -> (SimWorld, Promises) {
    // A checkpoint ends with the writes of two superblocks.
    let (world, promises, failed) = failed_at(writes - 2, seed);
    let (whole, ..) = failed_at(writes, seed);
    let slot = (sequence_in(&whole, 0).unwrap() % 2) as usize;
    assert!(
        failed && sequence_in(&world, 1 - slot) != sequence_in(&whole, 1 - slot),
        "the first superblock is written last"
    );
    let mut sector = IoBuf::zeroed(SUPERBLOCK_BYTES, PageKind::Small).unwrap();
    sector.copy_from_slice(&sector_of(&whole.read_file("data").unwrap(), slot));
    let disk = world.directory().open("data").unwrap();
    disk.perform(Op::new(0, start_of(slot), OpKind::write(sector, false))).unwrap().result.unwrap();
    (world, promises)
}

#[test]
fn a_superblock_that_was_opened_from_outlives_a_power_cut_although_its_write_had_failed() {
    for seed in 0..4 {
        let writes = (0..).find(|k| !failed_at(*k, seed).2).unwrap();
        // The next process: no power was cut, so it reads the bytes that reached the page cache.
        let (world, mut promises) = in_a_cache_only(writes, seed);
        let mut numbers = Numbers::open(&world).unwrap_or_else(|error| panic!("{error}: {world}"));
        assert_eq!(numbers.opened.base, CommitSeq(2 * KEYS / 10), "{world}");
        let opened = world.events();
        // Many more pages than fit in memory: they go where the first checkpoint's were.
        set_all(&mut numbers, 3, &mut promises);
        for cut in 0..8 {
            assert!(check_promises(&world.restart(cut), &promises));
        }
        // Power cuts while the opening makes the superblock durable.
        for cut in opened - 30..=opened {
            let (world, promises) = in_a_cache_only(writes, seed);
            world.cut_after(cut);
            let _ = Numbers::open(&world);
            assert!(check_promises(&world.restart(cut), &promises));
        }
    }
}

#[test]
fn a_database_is_not_opened_while_its_superblock_cannot_be_written_and_is_unharmed() {
    let (world, state) = settled_world(13);
    let before = world.read_file("data").unwrap();
    world.inject(Fault::new(Call::Write, Effect::Errno(EIO)).on("data"));
    assert_eq!(Numbers::open(&world).err().map(|error| error.kind()), Some(ErrorKind::Io));
    for cut in 0..4 {
        assert_eq!(Numbers::open(&world.restart(cut)).unwrap().state().unwrap(), state, "{world}");
    }
    let numbers = Numbers::open(&world).unwrap();
    assert!(world.read_file("data").unwrap() == before, "opening has changed the data file: {world}");
    assert_eq!(numbers.state().unwrap(), state, "{world}");
}

#[test]
fn one_bad_read_of_a_superblock_or_a_page_table_node_decides_nothing() {
    let (world, state) = settled_world(17);
    let nodes = Numbers::open(&world).unwrap().opened.pool.metadata().lock().map.all_nodes().count();
    let mut bad = 0;
    for read in 0..2 + nodes as u64 {
        for effect in
            [Effect::FlippedBit, Effect::ZeroedSector, Effect::GarbageSector, Effect::Misdirected, Effect::Errno(EIO)]
        {
            for seed in 0..8 {
                let world = world.restart(seed);
                world.inject(Fault::new(Call::Read, effect).on("data").after(read));
                let numbers =
                    Numbers::open(&world).unwrap_or_else(|error| panic!("{effect:?} of read {read}: {error}: {world}"));
                assert_eq!(numbers.state().unwrap(), state, "{effect:?} of read {read}: {world}");
                bad += 1;
            }
        }
    }
    assert!(bad > 100, "{bad} bad reads");
}

fn start_of(slot: usize) -> u64 {
    SUPERBLOCK_OFFSETS[slot]
}

fn sector_of(data: &[u8], slot: usize) -> Vec<u8> {
    data[start_of(slot) as usize..][..SUPERBLOCK_BYTES].to_vec()
}

fn sequence_in(world: &SimWorld, slot: usize) -> Option<u64> {
    let data = world.read_file("data").unwrap();
    Superblock::decode(slot, &sector_of(&data, slot)).ok().map(|superblock| superblock.sequence)
}

fn put_sector(world: &SimWorld, slot: usize, sector: &[u8]) {
    world.overwrite("data", start_of(slot), sector).unwrap();
}

/// Creates a database with the superblock of the checkpoint before the last one in slot `slot`, as a power cut between
/// the two superblock writes of a checkpoint leaves it.
fn one_apart(slot: usize) -> (SimWorld, Vec<u64>) {
    let (world, _) = settled_world(21);
    let mut numbers = Numbers::open(&world).unwrap();
    let before = world.read_file("data").unwrap();
    let position = numbers.commit(&[(1, 11), (70, 77)]).unwrap();
    numbers.opened.log.durable(position).wait().unwrap();
    numbers.opened.checkpointer.checkpoint().unwrap();
    let state = numbers.state().unwrap();
    put_sector(&world, slot, &sector_of(&before, slot));
    (world, state)
}

/// Creates a database of an earlier format version with two superblocks of different checkpoints, after more commits
/// than fit in memory: blocks that only the older superblock names are overwritten.
fn taking_turns(version: u32) -> (SimWorld, Vec<u64>) {
    let (world, _) = settled_world(22);
    let mut numbers = Numbers::open(&world).unwrap();
    let before = world.read_file("data").unwrap();
    numbers.opened.checkpointer.checkpoint().unwrap();
    let mut promises = Promises { states: vec![numbers.state().unwrap()], ..Promises::default() };
    set_all(&mut numbers, 5, &mut promises);
    drop(numbers);
    let newest = sequence_in(&world, 0).unwrap();
    let after = world.read_file("data").unwrap();
    for slot in 0..2 {
        let mut sector = sector_of(if newest % 2 == slot as u64 { &after } else { &before }, slot);
        set_version(slot, &mut sector, version);
        put_sector(&world, slot, &sector);
    }
    (world, promises.states.pop().unwrap())
}

/// What is on the disks of a world, as a number.
fn image(world: &SimWorld) -> u64 {
    let mut hasher = DefaultHasher::new();
    ["data", "log"].iter().for_each(|name| world.read_file(name).unwrap().hash(&mut hasher));
    hasher.finish()
}

#[test]
fn a_power_cut_at_any_event_of_opening_loses_nothing_in_whatever_state_the_superblocks_are() {
    let damaged = |slot: usize| {
        let (world, state) = settled_world(23);
        world.flip_bit("data", start_of(slot) + 30, 2).unwrap();
        (world, state)
    };
    let starts = [
        ("equal", settled_world(24)),
        ("A is older", one_apart(0)),
        ("B is older", one_apart(1)),
        ("A is damaged", damaged(0)),
        ("B is damaged", damaged(1)),
        ("version 1", taking_turns(1)),
        ("version 2", taking_turns(2)),
    ];
    for (what, (start, state)) in starts {
        let whole = start.restart_with(0, SimOptions { torn_sectors: true, ..SimOptions::calm() });
        drop(Numbers::open(&whole).unwrap());
        let (events, mut torn) = (whole.events(), 0);
        // Most cuts leave what another has left: each image is checked once.
        let mut seen = HashSet::new();
        // Conversions have many events; a share of what can be left at each of them, and of the second cuts, will do.
        let (step, seeds, twice_every) = if events < 100 { (1, 4, 1) } else { by_depth((2, 2, 4), (1, 4, 1)) };
        for cut in (1..=events).step_by(step) {
            let world = start.restart_with(cut, SimOptions { torn_sectors: true, ..SimOptions::calm() });
            world.cut_after(cut);
            let _ = Numbers::open(&world);
            if world.stats().write_count == 0 {
                continue;
            }
            for seed in 0..seeds {
                let world = world.restart(seed);
                if !seen.insert(image(&world)) {
                    continue;
                }
                torn += u32::from((0..2).any(|slot| sequence_in(&world, slot).is_none()));
                // A second power cut, while opening repairs the superblocks.
                let again = world.restart(seed);
                again.cut_after(fastrand::Rng::with_seed(cut * 4 + seed).u64(1..=events + 4));
                let _ = Numbers::open(&again);
                let again = again.restart(seed);
                let again = (cut % twice_every == 0 && seen.insert(image(&again))).then_some(again);
                for world in again.into_iter().chain([world]) {
                    let numbers = Numbers::open(&world)
                        .unwrap_or_else(|error| panic!("{what}, cut after {cut}: {error}: {world}"));
                    assert_eq!(numbers.state().unwrap(), state, "{what}, cut after {cut}: {world}");
                    assert_eq!(sequence_in(&world, 0), sequence_in(&world, 1), "{what}, cut after {cut}: {world}");
                }
            }
        }
        assert!(torn > 0 || what == "equal", "{what}: {torn} cuts have torn a superblock");
    }
}

#[test]
fn damage_of_one_superblock_after_a_power_cut_at_any_moment_loses_nothing() {
    let (seed, steps) = (31, 60);
    let whole = SimWorld::new(seed, SimOptions::adversarial());
    history(&whole, seed, steps, &mut Promises::default()).unwrap();
    let events = whole.events();
    let (mut intact, mut double) = (0, 0);
    for cut in (events / 8..=events).step_by((events / 250).max(1) as usize) {
        let world = SimWorld::new(seed, SimOptions::adversarial());
        world.cut_after(cut);
        let mut promises = Promises::default();
        let _ = history(&world, seed, steps, &mut promises);
        if !promises.created {
            continue;
        }
        for slot in 0..2 {
            let world = world.restart(cut);
            let other_is_whole = sequence_in(&world, 1 - slot).is_some();
            world.flip_bit("data", start_of(slot) + cut % 4096, 5).unwrap();
            if other_is_whole {
                assert!(check_promises(&world, &promises));
                intact += 1;
            } else {
                // Both copies of the superblock are damaged.
                assert_eq!(Numbers::open(&world).err().map(|error| error.kind()), Some(ErrorKind::Corrupt), "{world}");
                double += 1;
            }
        }
    }
    assert!(intact > 200 && double < 40, "{intact} opened, {double} had lost both");
}

#[test]
fn after_a_checkpoint_that_was_cut_between_its_two_writes_opening_leaves_no_older_superblock() {
    for slot in 0..2 {
        let (world, _) = one_apart(slot);
        let mut numbers = Numbers::open(&world).unwrap();
        let mut promises =
            Promises { created: true, states: vec![vec![0; KEYS as usize]; numbers.next as usize], acknowledged: 0 };
        // Overwrites blocks that only the older superblock names, without another checkpoint.
        let sequence = sequence_in(&world, slot);
        set_all(&mut numbers, 6, &mut promises);
        let state = numbers.state().unwrap();
        drop(numbers);
        for damaged in 0..2 {
            let world = world.restart(damaged);
            world.garbage_range("data", start_of(damaged as usize)..start_of(damaged as usize) + 4096).unwrap();
            assert_eq!(
                Numbers::open(&world).unwrap().state().unwrap(),
                state,
                "older {slot}, damaged {damaged}: {sequence:?}"
            );
        }
    }
}

#[test]
fn in_an_earlier_version_a_damaged_superblock_is_an_error_unless_there_never_was_another() {
    for version in 1..3 {
        let (world, state) = taking_turns(version);
        let newest = sequence_in(&world, 0).max(sequence_in(&world, 1)).unwrap();
        for slot in 0..2 {
            for zeroed in [false, true] {
                let world = world.restart(1);
                let start = start_of(slot);
                if zeroed {
                    world.zero_range("data", start..start + 4096).unwrap();
                } else {
                    world.flip_bit("data", start + 1000, 1).unwrap();
                }
                let before = world.read_file("data").unwrap();
                let error = Numbers::open(&world).err().expect("it opened");
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
                let older = if newest % 2 == slot as u64 { newest - 1 } else { newest };
                for part in [&*Superblock::place(slot), &*format!("of checkpoint {older} "), "Restore a backup"] {
                    assert!(error.to_string().contains(part), "{part}: {error}");
                }
                assert!(world.read_file("data").unwrap() == before, "{error}");
            }
        }
        assert_eq!(Numbers::open(&world).unwrap().state().unwrap(), state);
        // As a database of an earlier version is created.
        let world = SimWorld::new(3, SimOptions::calm());
        create(&world.directory(), &settings(), creation(1)).unwrap();
        let mut sector = sector_of(&world.read_file("data").unwrap(), 1);
        assert_eq!(sequence_in(&world, 1), Some(1));
        set_version(1, &mut sector, version);
        put_sector(&world, 1, &sector);
        put_sector(&world, 0, &[0; SUPERBLOCK_BYTES]);
        assert_eq!(Numbers::open(&world).unwrap().opened.base, CommitSeq(0));
        assert_eq!([0, 1].map(|slot| sequence_in(&world, slot)), [Some(2); 2]);
    }
}

#[test]
fn a_newer_version_or_an_unknown_feature_in_either_slot_refuses_and_no_byte_changes() {
    let (equal, _) = settled_world(25);
    let (turns, _) = taking_turns(2);
    for (world, slot) in [(&equal, 0), (&equal, 1), (&turns, 0), (&turns, 1)] {
        let sound = sector_of(&world.read_file("data").unwrap(), slot);
        let later = |change: &dyn Fn(&mut [u8])| {
            let mut sector = sound.clone();
            change(&mut sector);
            seal(slot, &mut sector);
            sector
        };
        let refused = [
            ("version 4", later(&|sector| sector[8] = 4)),
            ("version 4 with other fields", later(&|sector| (sector[8], sector[40], sector[2000]) = (4, 77, 9))),
            ("another checksum algorithm", later(&|sector| sector[12] = 2)),
            ("an incompatible feature", later(&|sector| (sector[8], sector[104]) = (3, 16))),
            ("a reserved byte", later(&|sector| sector[900] = 1)),
        ];
        for (what, sector) in refused {
            for other_is_damaged in [false, true] {
                let world = world.restart(1);
                put_sector(&world, slot, &sector);
                if other_is_damaged {
                    world.flip_bit("data", start_of(1 - slot) + 50, 0).unwrap();
                }
                let before = ["data", "log"].map(|name| world.read_file(name).unwrap());
                let error = Numbers::open(&world).err().expect("it opened");
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{what}: {error}");
                assert!(error.to_string().contains(&Superblock::place(slot)), "{what}: {error}");
                assert!(["data", "log"].map(|name| world.read_file(name).unwrap()) == before, "{what}: bytes changed");
            }
        }
    }
}

#[test]
fn unknown_compatible_features_are_kept_with_their_state_and_cleared_by_the_next_checkpoint() {
    let (world, state) = settled_world(26);
    let features = |world: &SimWorld| {
        let data = world.read_file("data").unwrap();
        [0, 1].map(|slot| Superblock::decode(slot, &sector_of(&data, slot)).unwrap().compatible_features)
    };
    for slot in 0..2 {
        let mut sector = sector_of(&world.read_file("data").unwrap(), slot);
        sector[112] = 6;
        seal(slot, &mut sector);
        put_sector(&world, slot, &sector);
    }
    for _ in 0..2 {
        let numbers = Numbers::open(&world).unwrap();
        assert_eq!((numbers.state().unwrap(), features(&world)), (state.clone(), [6; 2]));
    }
    let numbers = Numbers::open(&world).unwrap();
    numbers.opened.checkpointer.checkpoint().unwrap();
    assert_eq!((numbers.state().unwrap(), features(&world)), (state, [0; 2]));
}

#[test]
fn a_superblock_damaged_while_the_database_is_open_is_found_and_the_next_checkpoint_rewrites_it() {
    let (world, _) = settled_world(27);
    let numbers = Numbers::open(&world).unwrap();
    let check = || numbers.opened.checkpointer.check_superblocks(&*numbers.opened.disk);
    assert!(check().is_empty());
    for slot in 0..2 {
        let old = sector_of(&world.read_file("data").unwrap(), slot);
        world.flip_bit("data", start_of(slot) + 2222, 4).unwrap();
        let found = check();
        assert!(found.len() == 1 && found[0].to_string().contains(&Superblock::place(slot)), "{found:?}");
        numbers.opened.checkpointer.checkpoint().unwrap();
        assert!(check().is_empty());
        put_sector(&world, slot, &old);
        assert!(check()[0].to_string().contains("a write of it was lost"), "{:?}", check());
        numbers.opened.checkpointer.checkpoint().unwrap();
        // One bad read is not damage.
        world.inject(Fault::new(Call::Read, Effect::FlippedBit).on("data"));
        assert!(check().is_empty());
    }
}
