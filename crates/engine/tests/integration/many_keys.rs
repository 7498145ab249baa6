//! Many calls at once that each ask for far more pages than the cache has: every one of them ends.
//!
//! No test here measures time. A call that never ends hangs its test, and the run of the tests has to be stopped from outside.

#![expect(clippy::unwrap_used, reason = "a test stops at an unexpected error")]

use std::path::Path;

use nofault::settings::Settings;
use nofault::{Db, blocking};

const ROWS: u32 = 20_000;
const CALLS: u64 = 8;
const KEYS_OF_A_CALL: usize = 3_000;

/// Settings with a cache of a twentieth of the table.
fn small_cache(background_threads: bool) -> Settings {
    Settings { cache_bytes: 1 << 20, log_bytes: 4 << 20, background_threads, ..Settings::default() }
}

fn value_of(key: u32) -> Vec<u8> {
    vec![key as u8; 900]
}

fn fill(folder: &Path, settings: &Settings) -> blocking::Db {
    let db = blocking::Db::create(folder, settings).unwrap();
    let table = db.create_table("t").unwrap();
    table.bulk_load((0..ROWS).map(|key| (key.to_be_bytes(), value_of(key)))).unwrap();
    db
}

fn keys_of_call(call: u64) -> Vec<u32> {
    let mut random = fastrand::Rng::with_seed(call);
    (0..KEYS_OF_A_CALL).map(|_| random.u32(..ROWS)).collect()
}

fn check(keys: &[u32], found: Vec<Option<Vec<u8>>>) {
    assert_eq!(found.len(), keys.len());
    for (key, value) in keys.iter().zip(found) {
        assert_eq!(value, Some(value_of(*key)), "key {key}");
    }
}

fn on_threads(settings: &Settings) {
    let folder = tempfile::tempdir().unwrap();
    let db = fill(&folder.path().join("db"), settings);
    let table = db.table("t").unwrap();
    std::thread::scope(|scope| {
        for call in 0..CALLS {
            let table = &table;
            scope.spawn(move || {
                let keys = keys_of_call(call);
                let bytes: Vec<_> = keys.iter().map(|key| key.to_be_bytes()).collect();
                check(&keys, table.get_many(&bytes).unwrap());
            });
        }
        // Single keys are found at the same time.
        for key in (0..ROWS).step_by(97) {
            assert_eq!(table.get(key.to_be_bytes()).unwrap(), Some(value_of(key)));
        }
    });
}

#[test]
fn calls_for_many_cold_keys_on_threads_end_beside_each_other() {
    on_threads(&small_cache(true));
}

#[test]
fn calls_for_many_cold_keys_on_threads_end_without_background_threads() {
    on_threads(&small_cache(false));
}

#[test]
fn calls_for_many_cold_keys_of_tasks_on_one_thread_end_beside_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    drop(fill(&path, &small_cache(true)));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let db = Db::open(&path, &small_cache(true)).await.unwrap();
        let table = db.table("t").await.unwrap();
        let call = |call: u64| {
            let table = table.clone();
            async move {
                let keys = keys_of_call(call);
                let bytes: Vec<_> = keys.iter().map(|key| key.to_be_bytes()).collect();
                check(&keys, table.get_many(&bytes).await.unwrap());
            }
        };
        let calls: Vec<_> = (0..CALLS).map(|number| tokio::spawn(call(number))).collect();
        for key in (0..ROWS).step_by(97) {
            assert_eq!(table.get(key.to_be_bytes()).await.unwrap(), Some(value_of(key)));
        }
        for call in calls {
            call.await.unwrap();
        }
    });
}
