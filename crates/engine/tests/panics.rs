//! A panic of any of the database's own threads ends every wait: commits fail and say why, reads end, the database can be
//! closed, and after the next opening it has what was acknowledged.

#![expect(clippy::unwrap_used, reason = "a test stops at an unexpected error")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use fastrand::Rng;
use nofault::error::{ErrorKind, Result};
use nofault::settings::Settings;
use nofault::{Batch, Durability, blocking, db};
use nofault_sim::{Hooks, SimOptions, SimWorld};

/// Time after which the test calls a wait one that never ends. No wait comes near it.
const LIMIT: Duration = Duration::from_secs(120);
const TASKS: u32 = 6;
/// Keys of each writer.
const KEYS: u32 = 2_000;

fn key(writer: u32, number: u32) -> Vec<u8> {
    [writer.to_be_bytes(), number.to_be_bytes()].concat()
}

fn value(number: u32, version: u32) -> Vec<u8> {
    [number.to_be_bytes(), version.to_be_bytes()].concat().repeat(100)
}

/// The versions of a writer's keys that were acknowledged.
type Acknowledged = BTreeMap<u32, u32>;

/// Changes keys until that fails. Returns what was acknowledged, the change whose outcome is unknown, and the error.
async fn write(db: &db::Db, table: &db::Table, writer: u32) -> (Acknowledged, (u32, u32), nofault::error::Error) {
    let (mut rng, mut acknowledged) = (Rng::with_seed(writer.into()), Acknowledged::new());
    for version in 1.. {
        let number = rng.u32(..KEYS);
        let mut batch = Batch::new();
        batch.put(table, key(writer, number), value(number, version));
        let durability = if version % 3 == 0 { Durability::Sync } else { Durability::Deferred };
        if let Err(error) = db.write(batch, durability).await {
            return (acknowledged, (number, version), error);
        }
        if durability == Durability::Sync {
            acknowledged.insert(number, version);
        }
    }
    unreachable!("the loop ends by an error")
}

/// Reads keys until that fails, or the writers have ended.
async fn read(table: &db::Table, seed: u64, is_over: &AtomicBool) -> Result<()> {
    let mut rng = Rng::with_seed(seed);
    while !is_over.load(Ordering::SeqCst) {
        table.get(key(rng.u32(..2 * TASKS), rng.u32(..KEYS))).await?;
        tokio::task::yield_now().await;
    }
    Ok(())
}

/// Reads what a watch reports until it ends. Returns the error.
async fn watch(mut watch: db::Watch) -> nofault::error::Error {
    loop {
        match watch.next().await {
            Ok(event) => assert!(event.is_some(), "a watch has ended without an error"),
            Err(error) => return error,
        }
    }
}

/// Uses a database by tasks and threads, lets the thread of this name panic in a call to the disk, and returns once all
/// have ended and the database was reopened. With `ends_reads` the panic must end reads, too; otherwise they may continue.
fn use_until_panic_of(thread: &'static str, ends_reads: bool) {
    let world = SimWorld::new(7, SimOptions::calm());
    let is_armed = Arc::new(AtomicBool::new(false));
    let armed = Arc::clone(&is_armed);
    let hooks = Hooks::new().each(move || {
        let is_here = std::thread::current().name() == Some(thread);
        assert!(!(is_here && armed.load(Ordering::SeqCst)), "a fault that this test plants in {thread}");
        true
    });
    let directory = hooks.directory(world.directory());
    let db = blocking::Db::create_in(&directory, &Settings::small(2, 1)).unwrap();
    let table = db.create_table("t").unwrap();
    let all = (0..2 * TASKS).flat_map(|writer| (0..KEYS).map(move |number| (key(writer, number), value(number, 0))));
    table.bulk_load(all).unwrap();
    let own_db = db.asynchronous();
    let own_table = block_on(own_db.table("t")).unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let tasks: Vec<_> = (0..TASKS)
        .map(|writer| {
            let (db, table) = (own_db.clone(), own_table.clone());
            runtime.spawn(async move { write(&db, &table, writer).await })
        })
        .collect();
    let readers: Vec<_> = (0..TASKS)
        .map(|reader| {
            let (table, is_over) = (own_table.clone(), Arc::clone(&is_over));
            runtime.spawn(async move { read(&table, reader.into(), &is_over).await })
        })
        .collect();
    let watched = block_on(own_table.watch([0; 4])).unwrap();
    let watcher = runtime.spawn(async move { watch(watched).await });
    let watched = block_on(own_db.watch()).unwrap();
    is_armed.store(true, Ordering::SeqCst);
    let mut ended = BTreeMap::new();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (TASKS..2 * TASKS)
            .map(|writer| {
                let (db, table) = (own_db.clone(), own_table.clone());
                scope.spawn(move || (writer, block_on(write(&db, &table, writer))))
            })
            .collect();
        // Gives the thread that frees dropped tables something to do.
        let drops = scope.spawn(|| -> Result<()> {
            loop {
                let dropped = db.create_table("dropped")?;
                // A load makes a checkpoint on its own thread: loads one after the other leave none to the thread for it.
                if thread != "nofault-ckpt" {
                    dropped.bulk_load((0..500).map(|number| (key(0, number), value(number, 0))))?;
                }
                db.drop_table("dropped")?;
            }
        });
        let watcher = scope.spawn(|| block_on(watch(watched)));
        ended.extend(threads.into_iter().map(|thread| thread.join().unwrap()));
        drops.join().unwrap().unwrap_err();
        assert_eq!(watcher.join().unwrap().kind(), ErrorKind::Poisoned);
    });
    assert_eq!(runtime.block_on(watcher).unwrap().kind(), ErrorKind::Poisoned);
    for (writer, task) in tasks.into_iter().enumerate() {
        ended.insert(writer as u32, runtime.block_on(task).unwrap());
    }
    is_over.store(!ends_reads, Ordering::SeqCst);
    for reader in readers {
        match runtime.block_on(reader).unwrap() {
            Ok(()) => assert!(!ends_reads),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Poisoned, "{thread}: {error}"),
        }
    }
    for (_, _, error) in ended.values() {
        assert_eq!(error.kind(), ErrorKind::Poisoned, "{thread}: {error}");
    }
    assert!(ended.values().any(|(_, _, error)| error.to_string().contains(thread)), "{thread}: {ended:?}");
    drop((runtime, table, own_db, own_table));
    is_armed.store(false, Ordering::SeqCst);
    db.close().unwrap_err();
    let db = blocking::Db::open_in(&directory, &Settings::small(2, 1)).unwrap();
    let table = db.table("t").unwrap();
    for (writer, (acknowledged, unknown, _)) in ended {
        for (number, version) in acknowledged {
            let found = table.get(key(writer, number)).unwrap().unwrap();
            let found_version = u32::from_be_bytes(found[4..8].try_into().unwrap());
            assert_eq!(found, value(number, found_version), "{thread}: the value of {writer} {number} is broken");
            assert!(found_version >= version, "{thread}: {writer} {number} has {found_version} of {version}");
            assert!(found_version == version || number == unknown.0 || found_version % 3 > 0);
        }
    }
    assert!(db.verify().unwrap().is_clean());
}

/// Polls a future on a dedicated thread, which parks while the future is not ready.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn a_panic_ends_every_wait(thread: &'static str, ends_reads: bool) {
    let (tell, told) = mpsc::channel();
    let used = std::thread::spawn(move || {
        use_until_panic_of(thread, ends_reads);
        tell.send(()).unwrap();
    });
    match told.recv_timeout(LIMIT) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("after a panic of {thread} there are waits that do not end"),
        Ok(()) | Err(mpsc::RecvTimeoutError::Disconnected) => used.join().unwrap(),
    }
}

#[test]
fn of_the_thread_that_writes_the_log() {
    a_panic_ends_every_wait("nofault-wal", false);
}

#[test]
fn of_the_thread_that_makes_checkpoints() {
    a_panic_ends_every_wait("nofault-ckpt", false);
}

#[test]
fn of_the_thread_that_writes_pages() {
    a_panic_ends_every_wait("nofault-writer", true);
}

#[test]
fn of_the_thread_that_takes_completions() {
    a_panic_ends_every_wait("nofault-reads", true);
}

#[test]
fn of_the_thread_that_frees_dropped_tables() {
    a_panic_ends_every_wait("nofault-free", false);
}

#[test]
fn of_the_thread_that_compacts() {
    a_panic_ends_every_wait("nofault-compact", false);
}
