//! Closing a database so that opening it has little to do.

use nofault::blocking::Db;
use nofault::settings::Settings;
use nofault::{Batch, Durability};
use nofault_sim::{SimOptions, SimWorld};

use crate::common::tiny;

/// Length of the longest group of the log.
const LOG_GROUP_BYTES_MAX: u64 = 128 << 10;
/// Length of a group without records.
const LOG_BLOCK_BYTES: u64 = 4096;

/// Regression: opening read the whole log three times, regardless of its content.
#[test]
fn opening_after_a_clean_close_reads_little_whatever_the_size_of_the_log() {
    for background_threads in [false, true] {
        let mut file_bytes = Vec::new();
        for log_bytes in [4 << 20, 48 << 20] {
            let settings = Settings { cache_bytes: 16 << 20, log_bytes, background_threads, ..Settings::default() };
            let world = SimWorld::new(1, SimOptions::calm());
            let db = Db::create_in(&world.directory(), &settings).unwrap();
            let table = db.create_table("t").unwrap();
            // The same few keys are written again and again: much log and few pages.
            for round in 0..40_u32 {
                let mut batch = Batch::new();
                for key in 0..40_u32 {
                    batch.put(&table, key.to_be_bytes(), vec![round as u8; (log_bytes / 4096) as usize]);
                }
                db.write(batch, Durability::Deferred).unwrap();
            }
            drop(table);
            db.close().unwrap();
            let before = world.stats();
            let db = Db::open_in(&world.directory(), &settings).unwrap();
            let read_bytes = (world.stats() - before).read_bytes;
            let stats = db.stats();
            assert_eq!(stats.pool.pages_changed, 0, "something was replayed: {stats:?}");
            // The last group with records is where a replay would begin. Behind it there are groups without any: one may
            // state that these commits are acknowledged, and one that the file has become shorter.
            let live_max = LOG_GROUP_BYTES_MAX + 2 * LOG_BLOCK_BYTES;
            assert!(stats.log.live_bytes <= live_max, "there is something to replay: {stats:?}");
            // Of each segment that is prepared and unused, a quarter at most is searched for groups that a power cut may have left there.
            // Their number depends on the threads in the background.
            let read_max = stats.log.file_bytes / 4 + (4 << 20);
            assert!(read_bytes < read_max, "{read_bytes} bytes read, of a log of {}", stats.log.file_bytes);
            file_bytes.push(stats.log.file_bytes);
            let table = db.table("t").unwrap();
            assert!(table.get(7_u32.to_be_bytes()).unwrap().is_some_and(|value| value.iter().all(|byte| *byte == 39)));
        }
        // Closing gives back the log space of so little data.
        assert!(file_bytes.iter().all(|bytes| *bytes <= 1 << 20), "{file_bytes:?}");
    }
}

/// The deferred commits of a checkpoint are only in memory before it: it has to write them to the log first, or they stay in memory and
/// hold back the log.
#[test]
fn a_checkpoint_leaves_nothing_of_deferred_commits_in_memory_or_to_replay() {
    let settings = Settings { background_threads: false, ..tiny() };
    let world = SimWorld::new(1, SimOptions::calm());
    let db = Db::create_in(&world.directory(), &settings).unwrap();
    let table = db.create_table("t").unwrap();
    for key in 0..10_u32 {
        let mut batch = Batch::new();
        batch.put(&table, key.to_be_bytes(), b"value");
        db.write(batch, Durability::Deferred).unwrap();
    }
    assert!(db.stats().log.waiting_bytes > 0, "the log was written before anything asked for it");
    db.checkpoint().unwrap();
    let log = db.stats().log;
    assert!(log.waiting_bytes == 0 && log.live_bytes <= 4096, "there is something to replay: {log:?}");
}

#[test]
fn closing_with_nothing_to_save_writes_nothing() {
    for background_threads in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("db");
        let settings = Settings { background_threads, ..tiny() };
        let db = Db::create(&path, &settings).unwrap();
        db.create_table("t").unwrap().put("a", "1").unwrap();
        drop(db);
        let db = Db::open(&path, &settings).unwrap();
        assert_eq!(db.table("t").unwrap().get("a").unwrap(), Some(b"1".to_vec()));
        let before = db.stats();
        db.close().unwrap();
        let db = Db::open(&path, &settings).unwrap();
        assert_eq!(db.stats().log.live_bytes, 4096, "{before:?}");
        db.close().unwrap();
    }
}

#[test]
fn a_power_cut_at_any_event_of_closing_loses_nothing_that_was_acknowledged() {
    let mut cuts = 0;
    for seed in 0..4 {
        let fill = |world: &SimWorld| {
            let db = Db::create_in(&world.directory(), &tiny()).unwrap();
            let table = db.create_table("t").unwrap();
            for key in 0..30_u32 {
                table.put(key.to_be_bytes(), vec![key as u8; 200]).unwrap();
            }
            let mut deferred = Batch::new();
            deferred.put(&table, "deferred", "1");
            db.write(deferred, Durability::Deferred).unwrap();
            drop(table);
            db
        };
        let whole = SimWorld::new(seed, SimOptions::adversarial());
        let db = fill(&whole);
        let start = whole.events();
        db.close().unwrap();
        for event in start + 1..=whole.events() {
            let world = SimWorld::new(seed, SimOptions::adversarial());
            let db = fill(&world);
            world.cut_after(event);
            let closed = db.close().is_ok();
            let after = world.restart(event);
            let db = Db::open_in(&after.directory(), &tiny()).unwrap_or_else(|error| panic!("{error}: {after}"));
            let table = db.table("t").unwrap();
            for key in 0..30_u32 {
                assert_eq!(table.get(key.to_be_bytes()).unwrap(), Some(vec![key as u8; 200]), "{after}");
            }
            assert!(!closed || table.get("deferred").unwrap().is_some(), "{after}");
            assert!(db.verify().unwrap().is_clean(), "{after}");
            cuts += 1;
        }
    }
    assert!(cuts > 40, "only {cuts} cuts");
}

#[test]
fn dropping_the_last_handle_makes_deferred_commits_durable_with_and_without_threads() {
    for background_threads in [true, false] {
        let settings = Settings { background_threads, ..tiny() };
        let world = SimWorld::new(1, SimOptions::adversarial());
        let db = Db::create_in(&world.directory(), &settings).unwrap();
        let table = db.create_table("t").unwrap();
        let mut deferred = Batch::new();
        deferred.put(&table, "deferred", "1");
        db.write(deferred, Durability::Deferred).unwrap();
        drop((table, db));
        let after = world.restart(1);
        let db = Db::open_in(&after.directory(), &settings).unwrap();
        let value = db.table("t").unwrap().get("deferred").unwrap();
        assert_eq!(value.as_deref(), Some(&b"1"[..]), "background threads: {background_threads}, {after}");
    }
}
