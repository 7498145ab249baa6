//! Damage of one superblock, at rest, in a write that is lost, or in a newer format: nothing that was acknowledged is
//! lost, and nothing is changed that this version does not understand.

use nofault_sim::{Call, Effect, Fault, SimOptions, SimWorld};

use crate::blocking::Db;
use crate::error::{ErrorKind, Result};
use crate::format::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, Superblock};
use crate::settings::Settings;

const ROWS: u32 = 500;

fn open(world: &SimWorld) -> Result<Db> {
    Db::open_in(&world.directory(), &Settings::tiny(5))
}

fn rows() -> impl Iterator<Item = ([u8; 4], [u8; 30])> {
    (0..ROWS).map(|row| (row.to_be_bytes(), [row as u8; 30]))
}

/// Returns the number of rows in the table, and checks each of them.
fn count(db: &Db, table: &str) -> Result<u32> {
    let mut found = 0_u32;
    for entry in db.table(table)?.range::<&[u8]>(..) {
        let (key, value) = entry?;
        assert_eq!((&key[..], &value[..]), (&found.to_be_bytes()[..], &[found as u8; 30][..]));
        found += 1;
    }
    Ok(found)
}

/// Creates a database with a table filled by a bulk load, of which the log has no record. Returns its state
/// after the last checkpoint, and the bytes of the data file before the load.
fn loaded(during_load: Option<Fault>) -> (SimWorld, Vec<u8>) {
    let world = SimWorld::new(6, SimOptions::calm());
    let db = Db::create_in(&world.directory(), &Settings::tiny(5)).unwrap();
    let table = db.create_table("loaded").unwrap();
    (0..2).for_each(|_| db.checkpoint().unwrap());
    let before = world.read_file("data").unwrap();
    if let Some(fault) = during_load {
        world.inject(fault);
    }
    assert_eq!(table.bulk_load(rows()).unwrap(), u64::from(ROWS));
    (world, before)
}

fn slot_range(slot: usize) -> std::ops::Range<u64> {
    SUPERBLOCK_OFFSETS[slot]..SUPERBLOCK_OFFSETS[slot] + SUPERBLOCK_BYTES as u64
}

type Harm = Box<dyn Fn(&SimWorld)>;

/// Returns the kinds of damage to a slot, with their names. The last kind puts back `before`, the older superblock that
/// the slot held before the load.
fn harms(slot: usize, before: &[u8]) -> Vec<(&'static str, Harm)> {
    let start = slot_range(slot).start;
    let flip = |at: u64, bit: u32| -> Harm { Box::new(move |world| world.flip_bit("data", start + at, bit).unwrap()) };
    let old = before[start as usize..][..SUPERBLOCK_BYTES].to_vec();
    vec![
        ("a flipped bit of the sequence", flip(24, 1)),
        ("a flipped bit of the reserved bytes", flip(3000, 7)),
        ("a flipped bit of the checksum", flip(4090, 3)),
        ("zeroes", Box::new(move |world| world.zero_range("data", slot_range(slot)).unwrap())),
        ("garbage", Box::new(move |world| world.garbage_range("data", slot_range(slot)).unwrap())),
        ("its bytes from before the load", Box::new(move |world| world.overwrite("data", start, &old).unwrap())),
    ]
}

#[test]
fn a_load_survives_damage_of_either_superblock() {
    let (world, before) = loaded(None);
    for slot in 0..2 {
        for (harm, damage) in harms(slot, &before) {
            let world = world.restart(1);
            damage(&world);
            for round in 0..3 {
                let what = format!("{harm} in slot {slot}, opened {round} times before");
                let db = open(&world).unwrap_or_else(|error| panic!("{what}: {error}"));
                assert_eq!(count(&db, "loaded").unwrap(), ROWS, "{what}");
                let found = db.verify().unwrap();
                assert!(found.is_clean(), "{what}: {found:?}");
                // Bytes of the checkpoint before are as a power cut leaves them.
                let is_told = round == 0 && !harm.contains("before the load");
                assert_eq!(
                    (found.repairs.len(), db.stats().repairs),
                    (usize::from(is_told), found.repairs.clone()),
                    "{what}"
                );
                let place = Superblock::place(slot);
                assert!(found.repairs.iter().all(|repair| repair.starts_with(&place)), "{what}: {:?}", found.repairs);
                if round == 1 {
                    db.checkpoint().unwrap();
                }
            }
        }
    }
}

#[test]
fn a_load_with_a_lost_write_is_complete_or_an_error_reports_the_damage() {
    let mut intact = 0;
    for write in 0.. {
        let (world, _) = loaded(Some(Fault::new(Call::Write, Effect::Lost).on("data").after(write)));
        let is_hit = world.stats().error_count > 0;
        for cut in 0..2 {
            match open(&world.restart(cut)).and_then(|db| count(&db, "loaded")) {
                Ok(found) => {
                    assert_eq!(found, ROWS, "write {write} was lost");
                    intact += 1;
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "write {write} was lost: {error}"),
            }
        }
        if write > 60 || (!is_hit && write > 40) {
            break;
        }
    }
    assert!(intact > 3, "{intact}");
}

#[test]
fn a_backup_survives_damage_of_either_superblock() {
    let (world, _) = loaded(None);
    let db = open(&world).unwrap();
    db.create_table("second").unwrap().bulk_load(rows()).unwrap();
    let path = tempfile::tempdir().unwrap();
    let copy = path.path().join("copy");
    db.backup(&copy).unwrap();
    for slot in 0..2 {
        let file = std::fs::File::options().read(true).write(true).open(copy.join("data")).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[1], slot_range(slot).start + 2000).unwrap();
        drop(file);
        let db = Db::open(&copy, &Settings { cache_bytes: 16 << 20, ..Settings::tiny(5) }).unwrap();
        assert_eq!([count(&db, "loaded").unwrap(), count(&db, "second").unwrap()], [ROWS; 2], "slot {slot}");
        let found = db.verify().unwrap();
        assert!(found.is_clean() && found.repairs.len() == 1, "slot {slot}: {found:?}");
    }
}
