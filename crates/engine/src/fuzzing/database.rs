//! Whole databases on a simulated disk: damaged in any way, or used in any order.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use nofault_io::disk::Directory;
use nofault_io::sim::{SimOptions, SimWorld};

use super::{FILE_ID, Input};
use crate::blocking::{Db, Snapshot, Table};
use crate::error::{Error, ErrorKind};
use crate::settings::Settings;
use crate::{Batch, Durability};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn settings(page_bytes: usize) -> Settings {
    Settings {
        page_bytes,
        cache_bytes: (640 << 10) + (page_bytes - 512) * 80,
        log_bytes: 64 << 10,
        background_threads: false,
        seed: Some(FILE_ID),
        ..Settings::default()
    }
}

/// Both files of a database with whatever changes the bytes describe, or nothing but the bytes: it opens or says why not, and
/// everything that can be asked of it is answered or refused.
pub fn open(bytes: &[u8]) {
    let mut input = Input(bytes);
    let world = if input.u8() == 0 { arbitrary(&mut input) } else { changed(&mut input) };
    let directory = world.directory();
    let Ok(db) = Db::open_in(&directory, &settings(512)) else { return };
    let _ = db.verify();
    for name in db.table_names().unwrap_or_default() {
        let Ok(table) = db.table(&name) else { continue };
        let _ = table.get("key-01");
        let _ = table.range::<&[u8]>(..).take(2000).last();
        let _ = table.range::<&[u8]>(..).rev().take(2000).last();
        let _ = table.put("key-01", "value");
        let _ = table.delete("key-02");
    }
    let _ = db.checkpoint();
}

fn arbitrary(input: &mut Input<'_>) -> SimWorld {
    let world = SimWorld::new(1, SimOptions::calm());
    let directory = world.directory();
    let split = usize::from(input.u16());
    for (name, content) in [("data", input.bytes(split)), ("log", input.0)] {
        drop(directory.create(name).expect("a new file"));
        world.set_len(name, content.len() as u64).expect("a file that exists");
        world.overwrite(name, 0, content).expect("a file that is as long");
    }
    world
}

/// A database with a table, long values, an overwritten log and two checkpoints, made once.
fn sound() -> &'static SimWorld {
    static SOUND: OnceLock<SimWorld> = OnceLock::new();
    SOUND.get_or_init(|| {
        let world = SimWorld::new(1, SimOptions::calm());
        let directory: Arc<dyn Directory> = world.directory();
        let db = Db::create_in(&directory, &settings(512)).expect("a new database");
        let table = db.create_table("t").expect("a new table");
        for round in 0..3u8 {
            for number in 0..60u8 {
                let len = if number % 20 == 7 { 1500 } else { 40 };
                table.put(format!("key-{number:02}"), vec![round ^ number; len]).expect("a put");
            }
            if round < 2 {
                db.checkpoint().expect("a checkpoint");
            }
        }
        drop((table, db));
        world
    })
}

fn changed(input: &mut Input<'_>) -> SimWorld {
    let world = sound().restart(1);
    while !input.is_empty() {
        let kind = input.u8();
        let name = ["data", "log"][usize::from(kind & 1)];
        let len = world.read_file(name).map_or(0, |content| content.len() as u64);
        let block = if kind & 2 == 0 { 512 } else { 4096 };
        // Beginnings of blocks are where the structure is; a wrong offset is refused, which is fine.
        let at = u64::from(input.u16()) * block % len.max(1) + u64::from(if kind & 4 == 0 { 0 } else { input.u8() });
        let _ = match kind >> 3 & 3 {
            0 => world.overwrite(name, at, input.bytes(8)),
            1 => world.swap_ranges(name, at / block * block, u64::from(input.u16()) * block % len.max(1), block),
            2 => world.zero_range(name, at..at + u64::from(input.u8())),
            _ => world.set_len(name, at),
        };
    }
    world
}

/// Writes, reads, snapshots, checkpoints and restarts as the bytes say, beside a map that does the same.
pub fn operations(bytes: &[u8]) {
    let mut input = Input(bytes);
    let settings = settings([512, 1024, 4096][usize::from(input.u8() % 3)]);
    let world = SimWorld::new(u64::from(input.u8()), SimOptions::default());
    let directory: Arc<dyn Directory> = world.directory();
    let mut db = Db::create_in(&directory, &settings).expect("a new database");
    let mut table = db.create_table("t").expect("a new table");
    let mut model = Model::new();
    let mut snapshots: Vec<(Snapshot, Model)> = Vec::new();
    while !input.is_empty() {
        match input.u8() % 16 {
            0..6 => {
                let mut batch = Batch::new();
                for _ in 0..=input.u8() % 24 {
                    change(&mut input, &mut batch, &table, &mut model);
                }
                let durability = if input.u8() % 2 == 0 { Durability::Sync } else { Durability::Deferred };
                db.write(batch, durability).expect("a batch");
            }
            6..8 => {
                let key = key(&mut input);
                assert_eq!(table.get(&key).expect("a get"), model.get(&key).cloned(), "get {key:?}");
            }
            8 => {
                let keys: Vec<_> = (0..input.u8() % 30).map(|_| key(&mut input)).collect();
                let expected: Vec<_> = keys.iter().map(|key| model.get(key).cloned()).collect();
                assert_eq!(table.get_many(&keys).expect("a get_many"), expected);
            }
            9 => {
                let from = key(&mut input);
                let seen: Vec<_> = table.range(from.clone()..).take(9).map(|row| row.expect("a row")).collect();
                let expected: Vec<_> = model.range(from..).take(9).map(|(k, v)| (k.clone(), v.clone())).collect();
                assert_eq!(seen, expected, "a range");
            }
            10 => {
                let to = key(&mut input);
                let seen: Vec<_> = table.range(..to.clone()).rev().take(9).map(|row| row.expect("a row")).collect();
                let expected: Vec<_> = model.range(..to).rev().take(9).map(|(k, v)| (k.clone(), v.clone())).collect();
                assert_eq!(seen, expected, "a reverse range");
            }
            11 if snapshots.len() < 3 => snapshots.push((db.snapshot(), model.clone())),
            11 => drop(snapshots.remove(usize::from(input.u8() % 3))),
            12 => {
                for (snapshot, model) in &snapshots {
                    same(snapshot, &table, model);
                }
            }
            13 => transaction(&mut input, &db, &table, &mut model),
            14 => db.checkpoint().expect("a checkpoint"),
            _ => {
                db.sync().expect("a sync");
                snapshots.clear();
                drop((db, table));
                db = Db::open_in(&directory, &settings).expect("a database");
                table = db.table("t").expect("a table");
            }
        }
    }
    same(&db.snapshot(), &table, &model);
    let found = db.verify().expect("a verification");
    assert!(found.is_clean(), "{:?}", found.problems);
}

fn key(input: &mut Input<'_>) -> Vec<u8> {
    let number = input.u8();
    [&b"key-"[..], &[number], &b"abcdefghijklmnop"[..usize::from(number % 17)]].concat()
}

fn value(input: &mut Input<'_>) -> Option<Vec<u8>> {
    let stamp = input.u8();
    let len = match stamp % 16 {
        0..4 => return None,
        4..14 => usize::from(stamp),
        14 => usize::from(input.u8()) * 3,
        _ => usize::from(input.u16() % 6000),
    };
    Some(vec![stamp; len])
}

fn change(input: &mut Input<'_>, batch: &mut Batch, table: &Table, model: &mut Model) {
    let key = key(input);
    match value(input) {
        Some(value) => {
            batch.put(table, &key, &value);
            model.insert(key, value);
        }
        None => {
            batch.delete(table, &key);
            model.remove(&key);
        }
    }
}

/// Two transactions at a time: the second conflicts when it read what the first wrote.
fn transaction(input: &mut Input<'_>, db: &Db, table: &Table, model: &mut Model) {
    let (mut first, mut second) = (db.begin(), db.begin());
    let (read, written) = (key(input), key(input));
    assert_eq!(second.get(table, &read).expect("a get"), model.get(&read).cloned());
    second.put(table, "second", [input.u8()]).expect("a put");
    let value = value(input).unwrap_or_default();
    first.put(table, &written, &value).expect("a put");
    first.commit(Durability::Sync).expect("nobody was before it");
    model.insert(written.clone(), value);
    let outcome = second.commit(Durability::Sync).map_err(|error: Error| error.kind());
    let expected = if read == written { Err(ErrorKind::Conflict) } else { Ok(()) };
    assert_eq!(outcome, expected, "read {read:?}, another wrote {written:?}");
    if outcome.is_ok() {
        let value = table.get("second").expect("a get").expect("what was put");
        model.insert(b"second".to_vec(), value);
    }
}

fn same(snapshot: &Snapshot, table: &Table, model: &Model) {
    let range = snapshot.range::<&[u8]>(table, ..).expect("a table of this database");
    let found: Model = range.map(|row| row.expect("a row")).collect();
    assert!(found == *model, "{} rows instead of {}", found.len(), model.len());
}
