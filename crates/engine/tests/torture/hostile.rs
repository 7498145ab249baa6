//! Files that are no database, or one with anything in it: an error or an answer, never a panic or a hang.

use fastrand::Rng;
use nofault::blocking::Db;
use nofault_io::sim::{SimOptions, SimWorld};

use crate::story::{Book, Story, Style, content, for_each_seed, tiny};

/// Does everything there is to do with whatever is there.
fn use_it(world: &SimWorld) {
    let directory = world.directory();
    let Ok(db) = Db::open_in(&directory, &tiny()) else { return };
    let _ = content(&db);
    let _ = db.verify();
    for name in db.table_names().unwrap_or_default() {
        let Ok(table) = db.table(&name) else { continue };
        let _ = table.get("key-0001");
        let _ = table.put("key-0001", "value");
        let _ = table.delete("key-0002xxxxxxxxxx");
        let _ = table.range::<&[u8]>(..).rev().take(1000).last();
    }
    let _ = db.checkpoint();
}

#[test]
fn opening_arbitrary_bytes_never_panics() {
    for_each_seed("opening_arbitrary_bytes", 1..=150, |seed| {
        let mut rng = Rng::with_seed(seed);
        let world = SimWorld::new(seed, SimOptions::calm());
        let directory = world.directory();
        for file in ["data", "log"] {
            if rng.u8(..10) > 0 {
                let _file = directory.create(file).unwrap();
                let len = rng.u64(..200_000);
                world.set_len(file, len).unwrap();
                let from = rng.u64(..=len);
                world.garbage_range(file, from..len).unwrap();
                if len > 12 && rng.bool() {
                    world.overwrite(file, 0, b"nofault\x01\x01\x00\x00\x00").unwrap();
                }
            }
        }
        use_it(&world);
    });
}

#[test]
fn a_database_with_many_wounds_never_panics() {
    let world = SimWorld::new(1, SimOptions::calm());
    let directory = world.directory();
    let db = Db::create_in(&directory, &tiny()).unwrap();
    let style = Style { keys: 100, reopen: false };
    let story = Story::new(db, directory, &tiny(), Book::new(), Rng::with_seed(1), style);
    drop(story.live(60).map_err(|broken| broken.error).unwrap());
    for_each_seed("a_database_with_many_wounds", 1..=500, |seed| {
        let mut rng = Rng::with_seed(seed);
        let world = world.restart(seed);
        for _ in 0..rng.usize(1..6) {
            let file = ["data", "log"][rng.usize(..2)];
            let len = world.read_file(file).unwrap().len() as u64;
            let block = [512, 4096][rng.usize(..2)];
            let (at, other) = (rng.u64(..len / block) * block, rng.u64(..len / block) * block);
            match rng.u8(..5) {
                0 => world.flip_bit(file, rng.u64(..len), rng.u32(..8)).unwrap(),
                1 => world.garbage_range(file, at..(at + rng.u64(..block)).min(len)).unwrap(),
                2 => world.zero_range(file, at..at + block).unwrap(),
                3 => world.swap_ranges(file, at, other, block).unwrap(),
                _ => world.misplace(file, other..other + block, at).unwrap(),
            }
        }
        use_it(&world);
    });
}
