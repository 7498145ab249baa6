//! Files damaged at rest, by rot or by hand: every value that is read is right, or there is an error that names
//! the place.

use std::ops::Range;

use fastrand::Rng;
use nofault::blocking::Db;
use nofault::error::{Error, ErrorKind};
use nofault_sim::depth::{by_depth, sample};
use nofault_sim::{Call, Effect, Fault, FileSnapshot, SimOptions, SimWorld};

use crate::story::{Book, Model, Story, Style, difference, for_each_seed, tiny};

const BLOCK: u64 = 512;
const LOG_BLOCK: u64 = 4096;

/// A closed database that will be damaged, and its content before.
struct Patient {
    world: SimWorld,
    /// The content of the database.
    newest: Model,
    /// The content before the last commit.
    before: Model,
    /// The last commit's range in the log: damage there cannot be distinguished from a torn end.
    last_group: Range<u64>,
    /// Copies of both files from before each of the last two checkpoints.
    older: [FileSnapshot; 2],
    /// Blocks of the data file that are not empty.
    blocks: Vec<u64>,
    /// Blocks of the log that are not empty.
    log_blocks: Vec<u64>,
}

fn patient(seed: u64) -> Patient {
    let world = SimWorld::new(seed, SimOptions::calm());
    let directory = world.directory();
    let settings = tiny();
    let db = Db::create_in(&directory, &settings).unwrap();
    let style = Style { keys: 120, reopen: false };
    let live = |story: Story, steps| story.live(steps).map_err(|broken| broken.error).unwrap();
    let mut story = live(Story::new(db, directory, &settings, Book::new(), Rng::with_seed(seed), style), 50);
    let older = [world.snapshot_file("data").unwrap(), world.snapshot_file("log").unwrap()];
    for _ in 0..2 {
        story.db.checkpoint().unwrap();
        story = live(story, 10);
    }
    let table = story.db.create_table("last").unwrap();
    for number in 0..10 {
        table.put(format!("{number}"), "of a few").unwrap();
    }
    story.db.sync().unwrap();
    let before = crate::story::content(&story.db).unwrap();
    let log_before = world.read_file("log").unwrap();
    table.put("last", "words").unwrap();
    let newest = crate::story::content(&story.db).unwrap();
    drop(story);
    let log = world.read_file("log").unwrap();
    let changed = |at: &usize| log.get(*at) != log_before.get(*at);
    let first = (0..log.len()).find(changed).unwrap() as u64;
    let last = (0..log.len()).rev().find(changed).unwrap() as u64;
    let last_group = first / LOG_BLOCK * LOG_BLOCK..(last / LOG_BLOCK + 1) * LOG_BLOCK;
    let used = |bytes: &[u8], size: u64| {
        let blocks = bytes.chunks(size as usize).enumerate();
        blocks.filter(|(_, block)| block.iter().any(|byte| *byte != 0)).map(|(at, _)| at as u64 * size).collect()
    };
    let blocks = used(&world.read_file("data").unwrap(), BLOCK);
    let log_blocks = used(&log, LOG_BLOCK);
    Patient { world, newest, before, last_group, older, blocks, log_blocks }
}

/// Counts of the outcomes of opening and reading damaged databases.
#[derive(Debug, Default)]
struct Tally {
    refused_to_open: u32,
    told_by_reads: u32,
    unharmed: u32,
}

/// Opens a damaged copy and reads everything, one by one and by scanning. With `excused` the database may show the
/// content before the last commit instead of the newest.
fn examine(world: &SimWorld, patient: &Patient, excused: bool, what: &str, tally: &mut Tally) {
    let db = match Db::open_in(&world.directory(), &tiny()) {
        Ok(db) => db,
        Err(error) => {
            tally.refused_to_open += 1;
            return check_error(&error, what);
        }
    };
    let mut errors = 0;
    let mut fail = |error: &Error| {
        errors += 1;
        check_error(error, what);
    };
    let mut states: Vec<&Model> = vec![&patient.newest];
    if excused {
        states.push(&patient.before);
    }
    // The database must show one complete state, so the state is chosen first, and all that is read must agree with it.
    let shown = states.into_iter().find(|state| agrees(&db, state));
    let expected = shown.unwrap_or_else(|| {
        let found = crate::story::content(&db);
        panic!(
            "{what}: shows what never was: {}",
            found.map_or("errors too".into(), |f| difference(&patient.newest, &f))
        )
    });
    for (name, rows) in expected {
        let table = match db.table(name) {
            Ok(table) => table,
            Err(error) => {
                fail(&error);
                continue;
            }
        };
        for (key, value) in rows.iter() {
            match table.get(key) {
                Ok(found) => {
                    assert!(found.as_deref() == Some(value), "{what}: {name}/{}", String::from_utf8_lossy(key))
                }
                Err(error) => fail(&error),
            }
        }
    }
    let verification = db.verify();
    if errors > 0 {
        tally.told_by_reads += 1;
        assert!(verification.is_ok_and(|v| !v.is_clean()), "{what}: reads fail and verify finds nothing");
    } else {
        tally.unharmed += 1;
    }
    // Whatever it answers: no panic, no hang.
    if let Ok(table) = db.create_table("after the damage") {
        let _ = table.put("key", "value");
    }
    let _ = db.checkpoint();
}

/// Returns whether all scans return the rows of `state`, in order and without gaps, up to the first error.
fn agrees(db: &Db, state: &Model) -> bool {
    let Ok(names) = db.table_names() else { return true };
    if names.iter().ne(state.keys()) {
        return false;
    }
    state.iter().all(|(name, rows)| {
        let Ok(table) = db.table(name) else { return true };
        let mut expected = rows.iter();
        for found in table.range::<&[u8]>(..) {
            let Ok((key, value)) = found else { return true };
            if expected.next() != Some((&key, &value.into())) {
                return false;
            }
        }
        expected.next().is_none()
    })
}

fn check_error(error: &Error, what: &str) {
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error:?}");
    let says_where = error.to_string().chars().any(|c| c.is_ascii_digit()) || error.to_string().contains("empty");
    assert!(says_where, "{what}: {error:?} does not say where");
}

/// Damages the block at `at` in one of several ways.
fn harm(world: &SimWorld, patient: &Patient, file: &str, at: u64, size: u64, kind: u32, rng: &mut Rng) -> String {
    let others = if file == "data" { &patient.blocks } else { &patient.log_blocks };
    let other = *rng.choice(others).unwrap();
    let older = &patient.older[usize::from(file == "log")];
    match kind {
        0 => {
            let (byte, bit) = (at + rng.u64(..size), rng.u32(..8));
            world.flip_bit(file, byte, bit).unwrap();
            format!("bit {bit} of byte {byte} of {file} flipped")
        }
        1 => {
            world.zero_range(file, at..at + size).unwrap();
            format!("{file} zeroed at {at}")
        }
        2 => {
            world.garbage_range(file, at..at + size).unwrap();
            format!("garbage in {file} at {at}")
        }
        3 => {
            world.swap_ranges(file, at, other, size).unwrap();
            format!("{file} at {at} swapped with {other}")
        }
        4 => {
            world.misplace(file, other..other + size, at).unwrap();
            format!("{file} at {at} overwritten with what belongs at {other}")
        }
        _ => {
            // Beyond the end of the copy there is nothing to put back.
            let _ = world.restore_range(file, older, at..at + size);
            format!("{file} at {at} as it was long ago")
        }
    }
}

#[test]
fn damage_in_the_data_file_is_an_error_that_says_where_and_never_a_wrong_value() {
    for_each_seed("damage_in_the_data_file", 1..=by_depth(2, 4), |seed| {
        let patient = patient(seed);
        let mut rng = Rng::with_seed(seed);
        let mut tally = Tally::default();
        // The superblocks and every block in use, or a share of them, each with one kind of harm.
        for at in sample(patient.blocks.iter().copied(), 4) {
            let world = patient.world.restart(seed);
            let kind = rng.u32(..6);
            let what = harm(&world, &patient, "data", at, BLOCK, kind, &mut rng);
            examine(&world, &patient, false, &format!("seed {seed}: {what}"), &mut tally);
        }
        println!("seed {seed}: {tally:?}");
        assert!(tally.told_by_reads > 0 && tally.refused_to_open > 0, "seed {seed}: {tally:?}");
    });
}

#[test]
fn damage_in_the_middle_of_the_log_is_reported_and_not_cut_off() {
    for_each_seed("damage_in_the_middle_of_the_log", 1..=by_depth(2, 4), |seed| {
        let patient = patient(seed);
        let mut rng = Rng::with_seed(seed);
        let mut tally = Tally::default();
        for at in patient.log_blocks.iter().copied() {
            for kind in 0..6 {
                let world = patient.world.restart(seed);
                let before = world.read_file("log").unwrap();
                let what = harm(&world, &patient, "log", at, LOG_BLOCK, kind, &mut rng);
                let after = world.read_file("log").unwrap();
                let last = patient.last_group.start as usize..patient.last_group.end as usize;
                let excused = before[last.clone()] != after[last];
                // A swap with the very last group damages two groups, and only the last one states that the other is
                // durable: the log may end before both, at a commit whose state is not kept here. The content must be
                // whole all the same.
                if excused && kind == 3 {
                    match Db::open_in(&world.directory(), &tiny()) {
                        Ok(db) => {
                            let found = db.verify().unwrap_or_else(|error| panic!("seed {seed}: {what}: {error}"));
                            assert!(found.is_clean(), "seed {seed}: {what}: {:?}", found.problems);
                        }
                        Err(error) => check_error(&error, &what),
                    }
                    continue;
                }
                examine(&world, &patient, excused, &format!("seed {seed}: {what}"), &mut tally);
            }
        }
        println!("seed {seed}: {tally:?}");
        assert!(tally.refused_to_open > 0, "seed {seed}: {tally:?}");
    });
}

#[test]
fn files_cut_emptied_extended_or_replaced_by_older_ones_never_show_a_wrong_value() {
    for_each_seed("files_cut_emptied", 1..=by_depth(2, 6), |seed| {
        let patient = patient(seed);
        let mut rng = Rng::with_seed(seed);
        let mut tally = Tally::default();
        for (index, file) in ["data", "log"].into_iter().enumerate() {
            let whole = patient.world.read_file(file).unwrap().len() as u64;
            let ends = [0, 1, BLOCK, LOG_BLOCK, rng.u64(..whole), whole / 2, whole - 1, whole + 1, whole + 100_000];
            for end in ends {
                let world = patient.world.restart(seed);
                world.set_len(file, end).unwrap();
                // Cutting off just the last commit looks like a torn end.
                let excused = file == "log" && (patient.last_group.start..patient.last_group.end).contains(&end);
                examine(
                    &world,
                    &patient,
                    excused,
                    &format!("seed {seed}: {file} of {whole} bytes is now {end}"),
                    &mut tally,
                );
            }
            let world = patient.world.restart(seed);
            world.restore_file(file, &patient.older[index]).unwrap();
            examine(&world, &patient, false, &format!("seed {seed}: {file} replaced by an older copy"), &mut tally);
        }
        println!("seed {seed}: {tally:?}");
    });
}

#[test]
fn a_missing_file_is_an_error_and_not_a_fresh_start() {
    for file in ["data", "log"] {
        let patient = patient(1);
        let directory = patient.world.directory();
        directory.remove(file).unwrap();
        let error = Db::open_in(&directory, &tiny()).map(drop).expect_err(file);
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{file}: {error:?}");
        let error = Db::create_in(&directory, &tiny()).map(drop).expect_err(file);
        assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{file}: {error:?}");
    }
}

#[test]
fn a_node_that_cannot_be_read_makes_no_sound_page_of_values_broken() {
    let world = SimWorld::new(9, SimOptions::calm());
    let db = Db::create_in(&world.directory(), &tiny()).unwrap();
    // Values that a load packs into shared pages, each of which several leaves reference, and others between them.
    let len = |row: u32| if row.is_multiple_of(7) { 10 } else { 90 };
    let table = db.create_table("packed").unwrap();
    table.bulk_load((0..600_u32).map(|row| (row.to_be_bytes(), vec![row as u8; len(row)]))).unwrap();
    assert!(db.verify().unwrap().is_clean());
    drop((table, db));
    let data = world.read_file("data").unwrap();
    let mut damaged = [0, 0];
    for at in (131_072..data.len()).step_by(BLOCK as usize) {
        let page = u64::from_le_bytes(data[at + 8..at + 16].try_into().unwrap());
        let (kind, level) = (data[at + 40], data[at + 41]);
        let is_of_catalog = data[at + 56..at + 64] == [0; 8];
        // Nodes of the page table have letters where pages have their page id.
        if page >= 1 << 20 || kind != 1 || is_of_catalog {
            continue;
        }
        let world = world.restart(1);
        world.flip_bit("data", at as u64 + 100, 3).unwrap();
        let db = Db::open_in(&world.directory(), &tiny()).unwrap();
        let found = db.verify().unwrap();
        // Otherwise an older version, which nothing refers to any more.
        if !found.is_clean() {
            let pages: Vec<_> = found.problems.iter().map(|problem| problem.error.page().map(|page| page.0)).collect();
            assert!(pages.iter().all(|of| *of == Some(page)), "page {page}, level {level}: {:?}", found.problems);
            damaged[usize::from(level > 0)] += 1;
        }
    }
    assert!(damaged[0] > 5 && damaged[1] > 0, "{damaged:?} leaves and inner nodes were damaged");
}

#[test]
fn a_read_that_goes_wrong_once_is_no_damage() {
    let effects = [Effect::FlippedBit, Effect::ZeroedSector, Effect::GarbageSector, Effect::Errno(5)];
    let open = |world: &SimWorld| Db::open_in(&world.directory(), &tiny()).unwrap();
    let mut all = 0;
    for patient in [1, 2, 3, 4].map(patient) {
        // A block is read at least once; compressed pages share blocks.
        let db = open(&patient.world.restart(0));
        let shared = db.stats().pool;
        let reads = db.verify().unwrap().blocks - (shared.pages_compressed - shared.blocks_compressed);
        drop(db);
        all += reads;
        for read in 0..reads {
            let world = patient.world.restart(read);
            let db = open(&world);
            let effect = effects[read as usize % effects.len()];
            world.inject(Fault::new(Call::Read, effect).on("data").after(read));
            let found = db.verify().unwrap();
            assert!(found.blocks >= reads, "every read is one of verify: {found:?}");
            assert!(found.is_clean(), "{effect:?} in read {read}: {:?}", found.problems);
        }
    }
    assert!(all > 100, "{all} blocks only");
}
