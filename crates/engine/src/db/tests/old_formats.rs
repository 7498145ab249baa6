//! Databases of earlier versions are opened, and converted to the current format.

use nofault_sim::content::Content;
use nofault_sim::depth::{by_depth, sample};
use nofault_sim::{SimOptions, SimWorld};

use super::content;
use crate::blocking::Db;
use crate::btree::overflow::WITH_INDEX;
use crate::error::Result;
use crate::format::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, Superblock, set_version, version_of};
use crate::settings::Settings;

/// Returns the format versions in the two superblocks.
fn versions(world: &SimWorld) -> [u32; 2] {
    let data = world.read_file("data").unwrap();
    SUPERBLOCK_OFFSETS.map(|offset| version_of(&data[offset as usize..]))
}

/// Creates a database of format 1 or 2. The current format differs in its number, and in that a checkpoint writes both
/// superblocks, which took turns before; from format 1 also in the notes of dropped tables, of which there are none
/// here. The database has short, packed and long values, some of them in the log only, as are a dropped and a new
/// table.
fn of_format(version: u32) -> (SimWorld, Content) {
    let world = SimWorld::new(4, SimOptions::calm());
    let db = Db::create_in(&world.directory(), &Settings::tiny(3)).unwrap();
    let kept = db.create_table("kept").unwrap();
    let len = |number: u32| if number.is_multiple_of(50) { 3000 } else { [20, 90][number as usize % 2] };
    // Those formats know no values that are spread over pages.
    WITH_INDEX.set(true);
    kept.bulk_load((0..800u32).map(|number| (number.to_be_bytes(), vec![number as u8; len(number)]))).unwrap();
    db.create_table("dropped").unwrap().put("k", "v").unwrap();
    db.checkpoint().unwrap();
    let earlier = world.read_file("data").unwrap();
    db.checkpoint().unwrap();
    for number in (0..800u32).step_by(9) {
        kept.put(number.to_be_bytes(), "later").unwrap();
    }
    db.drop_table("dropped").unwrap();
    db.create_table("dropped").unwrap().put("new", "row").unwrap();
    WITH_INDEX.set(false);
    let before = content(&db).unwrap();
    drop((kept, db));
    let data = world.read_file("data").unwrap();
    let sector_of = |data: &[u8], slot: usize| data[SUPERBLOCK_OFFSETS[slot] as usize..][..SUPERBLOCK_BYTES].to_vec();
    let sequence_of = |data: &[u8], slot: usize| Superblock::decode(slot, &sector_of(data, slot)).unwrap().sequence;
    let newest = sequence_of(&data, 0);
    assert_eq!([sequence_of(&earlier, 0), sequence_of(&data, 1)], [newest - 1, newest]);
    for (slot, offset) in SUPERBLOCK_OFFSETS.into_iter().enumerate() {
        let is_newer = newest % 2 == slot as u64;
        let mut sector = sector_of(if is_newer { &data } else { &earlier }, slot);
        set_version(slot, &mut sector, version);
        world.overwrite("data", offset, &sector).unwrap();
    }
    assert_eq!(versions(&world), [version; 2]);
    (world, before)
}

/// Uses a database of an old format version with the current code, until the simulated power fails.
fn use_it(world: &SimWorld, before: &Content) -> Result<()> {
    let db = Db::open_in(&world.directory(), &Settings::tiny(3))?;
    assert!(content(&db)? == *before, "{world}");
    db.drop_table("kept")?;
    db.checkpoint()?;
    db.checkpoint()
}

#[test]
fn a_database_of_an_earlier_format_becomes_one_of_this_format_when_it_is_opened() {
    for version in 1..3 {
        becomes_format_3(version);
    }
}

fn becomes_format_3(version: u32) {
    let (world, before) = of_format(version);
    let directory = world.directory();
    for _ in 0..2 {
        let db = Db::open_in(&directory, &Settings::tiny(3)).unwrap();
        assert!(content(&db).unwrap() == before);
        let found = db.verify().unwrap();
        assert!(found.is_clean() && found.repairs.is_empty(), "{found:?}");
        assert_eq!(versions(&world), [3, 3]);
    }
    use_it(&world, &before).unwrap();
    let db = Db::open_in(&directory, &Settings::tiny(3)).unwrap();
    assert_eq!(db.table_names().unwrap(), ["dropped"]);
    assert_eq!(db.table("dropped").unwrap().get("new").unwrap(), Some(b"row".to_vec()));
    assert!(db.verify().unwrap().is_clean());
}

#[test]
fn a_power_cut_while_an_earlier_format_becomes_this_one_loses_nothing() {
    for version in 1..3 {
        cut_while_it_becomes_format_3(version);
    }
}

fn cut_while_it_becomes_format_3(version: u32) {
    let (world, before) = of_format(version);
    let mut after = before.clone();
    after.remove("kept");
    let whole = world.restart(1);
    let start = whole.events();
    use_it(&whole, &before).unwrap();
    let events = whole.events() - start;
    let mut seen = [0, 0];
    for cut in sample((1..events).step_by((events / 60).max(1) as usize), 5) {
        let world = world.restart(cut);
        world.cut_after(world.events() + cut);
        let cut_short = use_it(&world, &before);
        assert!(cut_short.is_ok() || world.is_cut(), "cut after {cut}: {cut_short:?}");
        let world = world.restart(cut);
        let db = Db::open_in(&world.directory(), &Settings::tiny(3))
            .unwrap_or_else(|error| panic!("cut after {cut}: {error}"));
        let found = content(&db).unwrap();
        assert!(found == before || found == after, "cut after {cut}: neither before nor after");
        seen[usize::from(found == after)] += 1;
        assert!(db.verify().unwrap().is_clean(), "cut after {cut}");
    }
    let least = by_depth(0, 3);
    assert!(seen[0] > least && seen[1] > least, "{seen:?} cuts before and after the drop");
}
