//! The superblock that opening starts from: durable before anything relies on it, and never another one than was found.

use nofault_io::sim::{Call, Effect, Fault};

use super::*;

const EIO: i32 = 5;

/// Sets every key, in durable commits as small as memory is.
fn set_all(numbers: &mut Numbers, value: u64, promises: &mut Promises) {
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

/// A database with one checkpoint, and a second one whose `k`-th write to the data file fails; whether it did.
fn failed_at(k: u64, seed: u64) -> (SimWorld, Promises, bool) {
    let world = SimWorld::new(seed, SimOptions::calm());
    let directory: Arc<dyn Directory> = world.directory();
    create(&directory, &settings(), creation(1)).unwrap();
    let mut promises = Promises { created: true, acknowledged: 0, states: vec![vec![0; KEYS as usize]] };
    let mut numbers = Numbers::open(&world).unwrap();
    set_all(&mut numbers, 1, &mut promises);
    numbers.opened.checkpointer.checkpoint().unwrap();
    set_all(&mut numbers, 2, &mut promises);
    world.inject(Fault::new(Call::Write, Effect::Errno(EIO)).on("data").after(k));
    let failed = numbers.opened.checkpointer.checkpoint().is_err();
    (world, promises, failed)
}

#[test]
fn a_superblock_that_was_opened_from_outlives_a_power_cut_although_its_write_had_failed() {
    // The superblock is the last that a checkpoint writes, after more or fewer runs of pages.
    let last = (0..).find(|k| !failed_at(*k, 0).2).unwrap() - 1;
    let mut trusted = 0;
    for seed in 0..40 {
        let failed = (last.saturating_sub(2)..last + 3).rev().map(|k| failed_at(k, seed)).find(|(.., failed)| *failed);
        let (world, mut promises, _) = failed.unwrap();
        // The next process: no power was cut, so it finds what reached the cache. That may be the whole superblock.
        let mut numbers = Numbers::open(&world).unwrap_or_else(|error| panic!("{error}: {world}"));
        trusted += usize::from(numbers.opened.base == CommitSeq(2 * KEYS / 10));
        // Many more pages than fit in memory: they go where those of the first checkpoint were.
        set_all(&mut numbers, 3, &mut promises);
        for cut in 0..8 {
            assert!(check_promises(&world.restart(cut), &promises));
        }
    }
    assert!(trusted > 3, "only {trusted} superblocks were whole although their write had failed");
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
    let nodes = Numbers::open(&world).unwrap().opened.pager.core().books().map.node_places().count();
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
