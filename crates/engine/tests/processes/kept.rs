//! The blocks that a writer keeps for readers in other processes: every checkpoint that one of them may read stays whole.
//!
//! The state of any moment can be put together later: from the superblocks and the log of that moment, and for all else the data file
//! as it is by then. That is what a reader that registered at that moment reads.

use std::sync::atomic::Ordering;

use nofault::blocking::{Db, Table};
use nofault::db::Pace;
use nofault::settings::{Compression, Settings};
use nofault::{Batch, Durability};
use nofault_sim::content::Rows;
use nofault_sim::depth::by_depth;
use nofault_sim::{FileSnapshot, SimOptions, SimWorld};

use crate::read_by_another::read_by_another;

/// Positions and length of the two superblocks.
const SUPERBLOCKS: [u64; 2] = [0, 65_536];
const SUPERBLOCK_BYTES: u64 = 4096;

/// The files at a moment, and the content that they stand for.
struct Moment {
    data: FileSnapshot,
    log: FileSnapshot,
    content: Rows,
}

impl Moment {
    fn now(world: &SimWorld, content: &Rows) -> Self {
        let of = |name| world.snapshot_file(name).unwrap();
        Self { data: of("data"), log: of("log"), content: content.clone() }
    }

    /// Checks that the state of this moment is still whole in the data file.
    fn check(&self, world: &SimWorld, settings: &Settings, what: &str) {
        let later = world.restart(0);
        later.restore_file("data", &world.snapshot_file("data").unwrap()).unwrap();
        for start in SUPERBLOCKS {
            later.restore_range("data", &self.data, start..start + SUPERBLOCK_BYTES).unwrap();
        }
        later.restore_file("log", &self.log).unwrap();
        let db = Db::open_in(&later.directory(), settings).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(content(&db.table("t").unwrap()) == self.content, "{what}: another state");
        let found = db.verify().unwrap();
        assert!(found.is_clean(), "{what}: {:?}", found.problems);
    }
}

fn content(table: &Table) -> Rows {
    table.range::<&[u8]>(..).map(|entry| entry.unwrap()).collect()
}

fn value(rng: &mut fastrand::Rng) -> Vec<u8> {
    let len_max = if rng.u8(..20) == 0 { 3000 } else { 120 };
    let mut value = vec![rng.u8(..); rng.usize(..len_max)];
    // Half of it can be compressed.
    let half = value.len() / 2;
    rng.fill(&mut value[half..]);
    value
}

/// Changes the database in one of the ways in which blocks are released.
fn change(db: &Db, table: &Table, model: &mut Rows, rng: &mut fastrand::Rng) {
    let key = |number: u32| number.to_be_bytes().to_vec();
    match rng.u8(..12) {
        0 => {
            db.compact(Pace::Full, |_| true).unwrap();
        }
        1 => {
            db.shrink(Pace::Full, |_| true).unwrap();
        }
        2 => {
            let (from, to) = (rng.u32(..3000), rng.u32(..3000));
            let range = key(from.min(to))..key(from.max(to));
            table.delete_range(range.clone()).unwrap();
            model.retain(|key, _| !range.contains(key));
        }
        3 => {
            let from = rng.u32(..3000);
            let entries: Vec<_> = (from..from + 300).map(|number| (key(number), value(rng))).collect();
            table.bulk_load(entries.iter().map(|(key, value)| (key, value))).unwrap();
            model.extend(entries);
        }
        4 | 5 => db.checkpoint().unwrap(),
        _ => {
            let mut batch = Batch::new();
            for _ in 0..60 {
                let (key, value) = (key(rng.u32(..3000)), value(rng));
                batch.put(table, &key, &value);
                model.insert(key, value);
            }
            db.write(batch, Durability::Sync).unwrap();
        }
    }
}

/// The files as they are now, of which the writer makes no more.
fn after_a_crash(world: &SimWorld) -> SimWorld {
    let after = world.restart(0);
    for name in ["data", "log"] {
        after.restore_file(name, &world.snapshot_file(name).unwrap()).unwrap();
    }
    after
}

#[test]
fn the_checkpoint_of_every_moment_stays_whole_while_a_reader_in_another_process_may_read_it() {
    let cases = [(1, Compression::None), (2, Compression::Fast), (3, Compression::None)];
    for (seed, compression) in cases.into_iter().take(by_depth(2, 3)) {
        let world = SimWorld::new(seed, SimOptions::calm());
        let settings = Settings { cache_bytes: 720 << 10, log_bytes: 256 << 10, compression, ..Settings::tiny(seed) };
        let (directory, records) = read_by_another(world.directory());
        let db = Db::create_in(&directory, &settings).unwrap();
        let (table, mut model) = (db.create_table("t").unwrap(), Rows::new());
        let (mut rng, mut moments) = (fastrand::Rng::with_seed(seed), Vec::new());
        for step in 0..120 {
            change(&db, &table, &mut model, &mut rng);
            if step % by_depth(12, 4) == 0 {
                moments.push(Moment::now(&world, &model));
            }
        }
        assert!(content(&table) == model && db.stats().checkpoints > 10 && db.stats().pool.blocks_kept > 100);
        assert_eq!(records.load(Ordering::Relaxed), 1, "a reader was given up");
        for (number, moment) in moments.iter().enumerate() {
            moment.check(&world, &settings, &format!("seed {seed}, moment {number}"));
        }
    }
}

/// The next writer knows nothing of the blocks that the first one kept, but uses none that the last checkpoint names.
#[test]
fn the_last_checkpoint_before_a_crash_stays_whole_under_the_next_writer() {
    for (seed, compression) in (4..by_depth(6, 10)).zip([Compression::None, Compression::Fast].into_iter().cycle()) {
        let mut world = SimWorld::new(seed, SimOptions::calm());
        let settings = Settings { cache_bytes: 720 << 10, log_bytes: 256 << 10, compression, ..Settings::tiny(seed) };
        drop(Db::create_in(&world.directory(), &settings).unwrap().create_table("t").unwrap());
        let (mut model, mut rng) = (Rows::new(), fastrand::Rng::with_seed(seed));
        let mut last: Vec<Moment> = Vec::new();
        for crash in 0..by_depth(4, 6) {
            let (directory, _) = read_by_another(world.directory());
            let db = Db::open_in(&directory, &settings).unwrap();
            let table = db.table("t").unwrap();
            assert!(content(&table) == model, "seed {seed}, crash {crash}");
            let (mut own, mut checkpoints) = (vec![Moment::now(&world, &model)], 0);
            for _ in 0..rng.usize(1..40) {
                change(&db, &table, &mut model, &mut rng);
                if db.stats().checkpoints > checkpoints {
                    checkpoints = db.stats().checkpoints;
                    own.clear();
                }
                own.push(Moment::now(&world, &model));
            }
            for moment in last.iter().chain(&own) {
                moment.check(&world, &settings, &format!("seed {seed}, crash {crash}"));
            }
            world = after_a_crash(&world);
            last = own;
        }
    }
}
