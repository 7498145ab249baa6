//! Dictionaries are trained, kept, used and removed, whenever the power fails.

use fastrand::Rng;
use nofault_sim::depth::{by_depth, sample};
use nofault_sim::{SimOptions, SimWorld};

use super::*;
use crate::Batch;
use crate::db::api::compact::Pace;
use crate::db::api::table::Table;
use crate::db::compact;
use crate::db::open::handle::Db;
use crate::db::tests::rows_of;
use crate::pages::Durability;
use crate::settings::Settings;

const KEYS: u32 = 3_000;

fn settings() -> Settings {
    Settings { compression: Compression::Small, log_bytes: 4 << 20, ..Settings::tiny(1) }
}

fn world() -> SimWorld {
    SimWorld::new(7, SimOptions::calm())
}

fn created(world: &SimWorld) -> Db {
    Db::create_in(&world.directory(), &settings()).unwrap()
}

fn opened(world: &SimWorld) -> Db {
    Db::open_in(&world.directory(), &settings()).unwrap()
}

fn key(number: u32) -> Vec<u8> {
    format!("{number:06}").into_bytes()
}

/// Returns a value with words that other values of the same generation have, too.
fn value(rng: &mut Rng, generation: usize) -> Vec<u8> {
    const WORDS: [[&str; 4]; 2] = [
        ["department of returned parcels", "warehouse in the north", "paid in advance", "customer unknown"],
        ["Abteilung Beschwerden", "Lagerhalle am Hafen", "per Nachnahme", "Empfänger verzogen"],
    ];
    let words = WORDS[generation];
    format!("{:06x}:{},{}", rng.u32(..1 << 24), words[rng.usize(..4)], words[rng.usize(..4)]).into_bytes()
}

fn rows(rng: &mut Rng, generation: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    (0..KEYS).map(|number| (key(number), value(rng, generation))).collect()
}

fn content(table: &Table) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    rows_of(table)
}

fn write(db: &Db, table: &Table, rows: &[(Vec<u8>, Vec<u8>)]) -> Result<()> {
    rows.chunks(100).try_for_each(|part| {
        let mut batch = Batch::new();
        for (key, value) in part {
            batch.put(table, key, value);
        }
        block_on(db.write(batch, Durability::Deferred))
    })
}

fn dictionaries(db: &Db) -> Vec<(u16, u16)> {
    let all = db.core.store.dictionaries().all();
    let mut all: Vec<_> = all.iter().map(|found| (found.origin().ordinal, found.number())).collect();
    all.sort_unstable();
    all
}

fn is_left_out() -> bool {
    if !HAS_ZSTD {
        println!("left out: this build has no zstd");
    }
    !HAS_ZSTD
}

#[test]
fn a_build_without_zstd_refuses_to_make_such_tables_and_names_the_feature() {
    if HAS_ZSTD {
        return println!("left out: this build has zstd");
    }
    let db = created(&world());
    let error = block_on(db.create_table("orders")).unwrap_err();
    assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("feature `zstd`"), "{error}");
    assert!(block_on(db.table_names()).unwrap().is_empty());
}

#[test]
fn a_load_trains_a_dictionary_that_pages_need_after_the_next_opening() {
    if is_left_out() {
        return;
    }
    let (world, mut rng) = (world(), Rng::with_seed(1));
    let rows = rows(&mut rng, 0);
    let blocks = |compression| {
        let db = created(&SimWorld::new(8, SimOptions::calm()));
        block_on(compression_of(&db, compression)).load(rows.iter().cloned()).unwrap();
        db.stats().pool.blocks_used
    };
    let db = created(&world);
    let table = block_on(db.create_table("t")).unwrap();
    table.load(rows.iter().cloned()).unwrap();
    assert_eq!(dictionaries(&db), [(1, 1)]);
    let used = db.stats().pool.blocks_used;
    assert!(used < blocks(Compression::Fast), "{used} blocks");
    assert!(db.stats().pool.memory_dictionaries_bytes > 10_000);
    drop((table, db));
    let db = opened(&world);
    assert_eq!(dictionaries(&db), [(1, 1)]);
    assert_eq!(content(&block_on(db.table("t")).unwrap()).unwrap(), rows);
    assert!(block_on(db.verify()).unwrap().is_clean());
    assert_eq!(block_on(db.table_names()).unwrap(), ["t"], "a dictionary is no table");
    // Without its entry nothing of it can be read, and its number is not given to another.
    let op = Op::Delete { tree: CATALOG, key: dictionary_key(1) };
    block_on(db.core.committer.commit_op(op)).unwrap();
    db.owner.checkpoint().unwrap();
    drop(db);
    let db = opened(&world);
    let Err(error) = content(&block_on(db.table("t")).unwrap()) else { panic!("it was read") };
    assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("there is no dictionary 1"), "{error}");
}

async fn compression_of(db: &Db, compression: Compression) -> Table {
    let table = db.create_table("t").await.unwrap();
    db.set_compression("t", compression).await.unwrap();
    table
}

#[test]
fn a_small_load_and_a_load_into_a_table_with_entries_train_nothing() {
    if is_left_out() {
        return;
    }
    let (world, mut rng) = (world(), Rng::with_seed(1));
    let db = created(&world);
    let table = block_on(db.create_table("t")).unwrap();
    table.load(rows(&mut rng, 0).into_iter().take(100)).unwrap();
    let more = rows(&mut rng, 0);
    let count = more.len() as u64;
    assert_eq!((table.load(more).unwrap(), dictionaries(&db).len()), (count, 0));
}

#[test]
fn a_table_that_grows_gets_a_dictionary_and_another_one_when_its_content_has_changed() {
    if is_left_out() {
        return;
    }
    let (world, mut rng) = (world(), Rng::with_seed(1));
    let db = created(&world);
    let table = block_on(db.create_table("t")).unwrap();
    let trainer = &db.owner.upkeep.trainer;
    let checkpoint = || db.owner.checkpoint();
    write(&db, &table, &rows(&mut rng, 0)[..100]).unwrap();
    checkpoint().unwrap();
    trainer.train_due(&checkpoint).unwrap();
    assert!(dictionaries(&db).is_empty(), "too little was written");
    // More is written than there is in the end.
    for _ in 0..8 {
        write(&db, &table, &rows(&mut rng, 0)).unwrap();
        checkpoint().unwrap();
    }
    trainer.train_due(&checkpoint).unwrap();
    assert_eq!(dictionaries(&db), [(1, 1)]);
    compact(&db, Pace::Full, &mut |_| true).unwrap();
    let dense = db.stats().pool.blocks_compressed;
    assert_eq!(dictionaries(&db), [(1, 1)], "the content is the same");
    let other = rows(&mut rng, 1);
    for _ in 0..8 {
        write(&db, &table, &other).unwrap();
        checkpoint().unwrap();
    }
    trainer.train_due(&checkpoint).unwrap();
    assert_eq!(dictionaries(&db), [(1, 1), (2, 2)]);
    compact(&db, Pace::Full, &mut |_| true).unwrap();
    let stats = db.stats().pool;
    assert!(stats.blocks_compressed * 4 < dense * 5, "{} blocks after {dense}", stats.blocks_compressed);
    drop((table, db));
    let db = opened(&world);
    assert_eq!(dictionaries(&db), [(1, 1), (2, 2)]);
    let table = block_on(db.table("t")).unwrap();
    assert_eq!(db.core.store.writer().codecs().dictionary_of(table.tree.table).unwrap().number(), 2);
    assert_eq!(content(&table).unwrap(), other);
}

#[test]
fn dictionaries_of_a_dropped_table_are_removed_after_the_next_opening() {
    if is_left_out() {
        return;
    }
    let (world, mut rng) = (world(), Rng::with_seed(1));
    let db = created(&world);
    for name in ["dropped", "kept"] {
        block_on(db.create_table(name)).unwrap().load(rows(&mut rng, 0)).unwrap();
    }
    block_on(db.drop_table("dropped")).unwrap();
    let check = |db: &Db, numbers: &[(u16, u16)]| {
        assert_eq!(dictionaries(db), numbers);
        assert_eq!(content(&block_on(db.table("kept")).unwrap()).unwrap().len(), KEYS as usize);
    };
    check(&db, &[(1, 1), (1, 2)]);
    drop(db);
    // The drop is only in the log: the checkpoint from which this opening starts has the table.
    let db = opened(&world);
    db.owner.upkeep.trainer.remove_unused().unwrap();
    check(&db, &[(1, 1), (1, 2)]);
    db.owner.checkpoint().unwrap();
    drop(db);
    let db = opened(&world);
    db.owner.upkeep.trainer.remove_unused().unwrap();
    check(&db, &[(1, 2)]);
    db.owner.checkpoint().unwrap();
    drop(db);
    let db = opened(&world);
    check(&db, &[(1, 2)]);
    assert!(block_on(db.verify()).unwrap().is_clean());
}

/// Loads, changes and compacts a table, so that two dictionaries are trained; and drops another one.
fn life(world: &SimWorld, rng: &mut Rng) -> Result<()> {
    let db = { Db::create_in(&world.directory(), &settings())? };
    let table = block_on(db.create_table("t"))?;
    table.load(rows(rng, 0))?;
    write(&db, &table, &rows(rng, 1)[..2500])?;
    db.owner.checkpoint()?;
    compact(&db, Pace::Full, &mut |_| true)?;
    write(&db, &table, &rows(rng, 1)[500..])?;
    db.owner.checkpoint()
}

#[test]
fn a_power_cut_at_any_moment_leaves_no_page_whose_dictionary_is_missing() {
    if is_left_out() {
        return;
    }
    let calm = world();
    life(&calm, &mut Rng::with_seed(1)).unwrap();
    let (events, mut trained) = (calm.events(), [0; 3]);
    for cut in sample((1..=events).step_by((events as usize / 60).max(1)), 6) {
        let world = world();
        world.cut_after(cut);
        let _ = life(&world, &mut Rng::with_seed(1));
        let after = world.restart(cut);
        let Ok(db) = Db::open_in(&after.directory(), &settings()) else { continue };
        let found = block_on(db.verify()).unwrap();
        assert!(found.is_clean(), "cut after {cut} of {events}: {found:?}");
        trained[dictionaries(&db).len()] += 1;
        if let Ok(table) = block_on(db.table("t")) {
            let rows = content(&table).unwrap();
            assert!(rows.is_empty() || rows.len() == KEYS as usize, "cut after {cut} of {events}: {} rows", rows.len());
            // It stays open: later writes may use the dictionaries at once.
            write(&db, &table, &rows).unwrap();
            db.owner.checkpoint().unwrap();
            assert!(content(&table).unwrap() == rows);
        }
    }
    let least = by_depth(0, 3);
    assert!(trained[1] > least && trained[2] > least, "databases by the number of dictionaries: {trained:?}");
}
