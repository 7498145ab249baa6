//! Files that are no database, or one with anything in it: an error or an answer, never a panic or a hang.

use crc_fast::{CrcAlgorithm, Digest};
use fastrand::Rng;
use nofault::blocking::Db;
use nofault_sim::depth::by_depth;
use nofault_sim::{SimOptions, SimWorld};

use crate::story::{Book, Story, Style, content, for_each_seed, tiny};

/// Opens a forged database and calls every operation on it, ignoring errors.
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
    for_each_seed("opening_arbitrary_bytes", 1..=by_depth(50, 150), |seed| {
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
    for_each_seed("a_database_with_many_wounds", 1..=by_depth(100, 500), |seed| {
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

/// Computes the checksum of a page over its bytes from 8 on.
fn page_sum(file_id: u64, page: u64, content: &[u8]) -> u64 {
    let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
    digest.update(&[file_id.to_le_bytes(), page.to_le_bytes()].concat());
    digest.update(content);
    digest.finalize()
}

/// Changes a page and then its last eight bytes so that its checksum stays the same: only the meaning of the page shows the damage.
fn forge(file_id: u64, bytes: &mut [u8], change: impl FnOnce(&mut [u8])) {
    let number = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let (wanted, page, end) = (number(bytes, 0), number(bytes, 8), bytes.len() - 8);
    assert_eq!(page_sum(file_id, page, &bytes[8..]), wanted, "a whole page");
    change(bytes);
    let mut sum_with = |last: u64| {
        bytes[end..].copy_from_slice(&last.to_le_bytes());
        page_sum(file_id, page, &bytes[8..])
    };
    let plain = sum_with(0);
    // Each bit of the eight bytes turns certain bits of the sum, whatever the others are: a linear system, one column a bit.
    let mut basis: Vec<(u64, u64)> = Vec::new();
    for bit in 0..64 {
        let (mut turns, mut by) = (sum_with(1 << bit) ^ plain, 1_u64 << bit);
        for (other, other_by) in &basis {
            if turns ^ other < turns {
                (turns, by) = (turns ^ other, by ^ other_by);
            }
        }
        assert_ne!(turns, 0, "the bits are independent");
        basis.push((turns, by));
        basis.sort_unstable_by_key(|(turns, _)| std::cmp::Reverse(*turns));
    }
    let (mut left, mut last) = (wanted ^ plain, 0);
    for (turns, by) in basis {
        if left ^ turns < left {
            (left, last) = (left ^ turns, last ^ by);
        }
    }
    assert_eq!(sum_with(last), wanted);
}

#[test]
fn a_long_value_whose_index_names_no_page_can_be_deleted_and_overwritten() {
    for named in [1_u64 << 47, (1 << 48) - 1, 1 << 32, 1 << 31, 900] {
        let world = SimWorld::new(1, SimOptions::calm());
        let directory = world.directory();
        let db = Db::create_in(&directory, &tiny()).unwrap();
        let table = db.create_table("t").unwrap();
        for key in ["deleted", "kept", "overwritten"] {
            // Long enough for an index: a leaf names the pages of shorter ones.
            table.put(key, vec![7; 12_000]).unwrap();
        }
        db.checkpoint().unwrap();
        drop((table, db));
        let mut data = world.read_file("data").unwrap();
        let file_id = u64::from_le_bytes(data[16..24].try_into().unwrap());
        let mut forged = 0;
        for at in (131_072..data.len()).step_by(512) {
            let page = u64::from_le_bytes(data[at + 8..at + 16].try_into().unwrap());
            // An index of a long value, which has unused bytes at its end. Nodes of the page table have letters where
            // pages have their page id.
            if page < 1 << 20 && (data[at + 40], data[at + 41]) == (2, 1) {
                forge(file_id, &mut data[at..at + 512], |page| page[48..54].copy_from_slice(&named.to_le_bytes()[..6]));
                world.overwrite("data", at as u64, &data[at..at + 512]).unwrap();
                forged += 1;
            }
        }
        assert_eq!(forged, 3, "one for each value");
        for again in 0..3_u8 {
            let db = Db::open_in(&directory, &tiny()).unwrap();
            let table = db.table("t").unwrap();
            table.get("kept").unwrap_err();
            table.delete("deleted").unwrap();
            table.put("overwritten", [again]).unwrap();
            assert_eq!(table.get("deleted").unwrap(), None);
            assert_eq!(table.get("overwritten").unwrap().as_deref(), Some(&[again][..]));
            if again == 1 {
                db.checkpoint().unwrap();
            }
        }
    }
}
