//! The surroundings of a database: file systems without direct I/O, writers during a backup, and its statistics.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::common::tiny;
use nofault::blocking::Db;
use nofault::error::ErrorKind;
use nofault::settings::Settings;
use nofault::{Batch, Durability};
use nofault_sim::{SimOptions, SimWorld};

#[test]
fn a_database_in_a_file_system_without_direct_io_works_and_says_so() {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else { return println!("not checked: no /dev/shm") };
    let path = folder.path().join("db");
    let settings = Settings { cache_bytes: 4 << 20, log_bytes: 4 << 20, ..Settings::default() };
    let db = Db::create(&path, &settings).unwrap();
    let disk = db.stats().disk;
    if disk.notes.iter().all(|note| !note.text.contains("tmpfs")) {
        return println!("not checked: /dev/shm is another file system: {disk:?}");
    }
    assert!(!disk.direct, "{disk:?}");
    let table = db.create_table("t").unwrap();
    // More than the cache holds.
    table.bulk_load((0..10_000u32).map(|number| (number.to_be_bytes(), [number as u8; 1000]))).unwrap();
    table.put("k", "v").unwrap();
    drop((db, table));
    let db = Db::open(&path, &settings).unwrap();
    let table = db.table("t").unwrap();
    assert_eq!(table.get("k").unwrap(), Some(b"v".to_vec()));
    assert_eq!(table.range::<&[u8]>(..).map(Result::unwrap).count(), 10_001);
    assert!(db.verify().unwrap().is_clean());
}

/// It was accepted, and the next opening of the database found a folder of another one in its own.
#[test]
fn a_backup_into_the_folder_of_a_database_is_refused_also_through_links() {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings { cache_bytes: 4 << 20, log_bytes: 4 << 20, ..Settings::default() };
    let [shop, stripes, linked] = ["shop", "stripes", "linked"].map(|name| folder.path().join(name));
    let db = Db::create(&shop, &settings).unwrap();
    let striped = Settings { stripe_folders: vec![stripes.clone()], ..settings };
    drop(Db::create(folder.path().join("striped"), &striped).unwrap());
    std::os::unix::fs::symlink(&shop, &linked).unwrap();
    std::fs::create_dir(shop.join("below")).unwrap();
    let files = || std::fs::read_dir(&shop).unwrap().count();
    let before = files();
    for to in [
        shop.join("copy"),
        linked.join("copy"),
        shop.join("below/../copy"),
        shop.join("below/copy"),
        stripes.join("copy"),
    ] {
        let error = db.backup(&to).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidCall, "{}: {error}", to.display());
        assert!(error.to_string().contains("lies in the database") && !to.exists(), "{error}");
    }
    assert_eq!(db.backup(&shop).unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(files(), before);
    db.backup(folder.path().join("copy")).unwrap();
}

#[test]
fn a_backup_shows_one_moment_however_many_write_meanwhile() {
    const KEYS: u32 = 200;
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings { cache_bytes: 8 << 20, log_bytes: 4 << 20, ..Settings::default() };
    let db = Db::create(folder.path().join("db"), &settings).unwrap();
    let tables = ["first", "second"].map(|name| db.create_table(name).unwrap());
    // Enough rows for the backup to take a while.
    for table in &tables {
        table.bulk_load((KEYS..KEYS + 20_000).map(|number| (number.to_be_bytes(), [1; 500]))).unwrap();
    }
    let write = |stamp: u64| {
        let mut batch = Batch::new();
        for number in 0..KEYS {
            for table in &tables {
                batch.put(table, number.to_be_bytes(), stamp.to_le_bytes());
            }
        }
        db.write(batch, Durability::Sync).unwrap();
    };
    write(0);
    let (stamp, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let (least, most) = std::thread::scope(|scope| {
        scope.spawn(|| {
            for next in 1.. {
                if stop.load(Ordering::SeqCst) {
                    break;
                }
                write(next);
                stamp.store(next, Ordering::SeqCst);
            }
        });
        while stamp.load(Ordering::SeqCst) < 3 {
            std::thread::yield_now();
        }
        let least = stamp.load(Ordering::SeqCst);
        db.backup(folder.path().join("copy")).unwrap();
        let most = stamp.load(Ordering::SeqCst) + 1;
        stop.store(true, Ordering::SeqCst);
        (least, most)
    });
    println!("{} commits while the backup was made", most - least);
    let copy = Db::open(folder.path().join("copy"), &settings).unwrap();
    let mut seen = None;
    for name in ["first", "second"] {
        let table = copy.table(name).unwrap();
        assert_eq!(table.range::<&[u8]>(..).map(Result::unwrap).count() as u32, KEYS + 20_000);
        for number in 0..KEYS {
            let found = table.get(number.to_be_bytes()).unwrap().unwrap();
            let found = u64::from_le_bytes(found.try_into().unwrap());
            assert_eq!(*seen.get_or_insert(found), found, "{name}/{number} is of another commit than the others");
        }
    }
    assert!(seen.is_some_and(|seen| (least..=most).contains(&seen)), "{seen:?}, not of {least} to {most}");
    assert!(copy.verify().unwrap().is_clean());
}

#[test]
fn statistics_say_what_memory_is_for_and_how_often_calls_had_to_wait() {
    let world = SimWorld::new(1, SimOptions::default());
    let directory = world.directory();
    let settings = Settings { cache_bytes: 64 << 20, log_bytes: 64 << 10, ..tiny() };
    let db = Db::create_in(&directory, &settings).unwrap();
    let pool = db.stats().pool;
    assert!(pool.memory_frames_bytes >= pool.frames * 512, "{pool:?}");
    assert!(pool.memory_table_bytes > 0, "{pool:?}");
    assert!(pool.memory_frames_bytes + pool.memory_table_bytes <= pool.memory_bytes, "{pool:?}");
    assert!(db.stats().memory_bytes <= settings.cache_bytes as u64, "{pool:?}");
    assert_eq!((db.stats().cache_bytes, db.stats().memory_over_bytes), (settings.cache_bytes as u64, 0));
    assert_eq!(db.stats().log.space_waits, 0);
    let table = db.create_table("t").unwrap();
    for number in 0..200u32 {
        table.put(number.to_be_bytes(), [1; 400]).unwrap();
    }
    let stats = db.stats();
    assert!(stats.log.space_waits > 0 && stats.checkpoints > 0, "{stats:?}");
}

#[test]
fn a_cache_of_any_size_is_an_error_or_a_database() {
    for cache_bytes in [1 << 50, 1 << 61, 1 << 62, 1 << 63, usize::MAX] {
        let settings = Settings { cache_bytes, log_bytes: 1 << 20, ..Settings::default() };
        let folder = tempfile::tempdir().unwrap();
        let error = nofault::blocking::Db::create(folder.path().join("db"), &settings).unwrap_err();
        let refusals = [nofault::error::ErrorKind::InvalidCall, nofault::error::ErrorKind::NoSpace];
        assert!(refusals.contains(&error.kind()), "{cache_bytes}: {error}");
    }
}
