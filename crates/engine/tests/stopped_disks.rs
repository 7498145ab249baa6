//! Databases of a process share the threads of their background work, and none waits for another's disk: with the disks of many
//! stopped, another one commits, makes checkpoints, frees tables, reads and closes as usual.

#![expect(clippy::unwrap_used, reason = "a test stops at an unexpected error")]

use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::Duration;

use nofault::settings::Settings;
use nofault::{Batch, Durability, blocking};
use nofault_sim::{Hooks, SimOptions, SimWorld};

/// Time after which the test calls a wait one that never ends. No wait comes near it.
const LIMIT: Duration = Duration::from_secs(120);
/// More databases than there are threads for the log by default.
const STOPPED: u64 = 8;
const ROWS: u32 = 400;

/// A switch that stops disks: while it is on, calls of the databases' own threads wait.
#[derive(Default)]
struct Stop {
    state: Mutex<StopState>,
    changed: Condvar,
}

#[derive(Default)]
struct StopState {
    is_on: bool,
    waiting: u64,
}

impl Stop {
    fn wait_while_on(&self) {
        if !std::thread::current().name().is_some_and(|name| name.starts_with("nofault-")) {
            return;
        }
        let mut state = self.state.lock().unwrap();
        state.waiting += 1;
        self.changed.notify_all();
        while state.is_on {
            state = self.changed.wait(state).unwrap();
        }
        state.waiting -= 1;
    }

    fn set_on(&self, is_on: bool) {
        self.state.lock().unwrap().is_on = is_on;
        self.changed.notify_all();
    }

    /// Waits until so many threads wait.
    fn await_waiting(&self, count: u64) {
        let mut state = self.state.lock().unwrap();
        while state.waiting < count {
            state = self.changed.wait(state).unwrap();
        }
    }
}

/// Uses a database by calls that rely on each kind of background work, and closes it.
async fn use_and_close(db: nofault::Db) {
    let table = db.create_table("t").await.unwrap();
    for row in 0..ROWS {
        // By a task, so that the log's thread writes it; more in all than the log holds, so that checkpoints are made.
        table.put(row.to_be_bytes(), vec![row as u8; 8000]).await.unwrap();
    }
    db.drop_table("dropped").await.unwrap();
    for row in 0..ROWS {
        assert_eq!(table.get(row.to_be_bytes()).await.unwrap(), Some(vec![row as u8; 8000]));
    }
    drop(table);
    db.close().await.unwrap();
}

fn use_beside_stopped_disks() {
    let stop = Arc::new(Stop::default());
    let stopped: Vec<_> = (0..STOPPED)
        .map(|seed| {
            let (world, of_disk) = (SimWorld::new(seed, SimOptions::calm()), Arc::clone(&stop));
            let hooks = Hooks::new().each(move || {
                of_disk.wait_while_on();
                true
            });
            let directory = hooks.directory(world.directory());
            let db = blocking::Db::create_in(&directory, &Settings::small(2, 1)).unwrap();
            let table = db.create_table("t").unwrap();
            (db, table)
        })
        .collect();
    let world = SimWorld::new(STOPPED, SimOptions::calm());
    let db = blocking::Db::create_in(&world.directory(), &Settings::small(2, 1)).unwrap();
    let dropped = db.create_table("dropped").unwrap();
    dropped.bulk_load((0..ROWS).map(|row| (row.to_be_bytes(), [1; 1000]))).unwrap();
    drop(dropped);
    stop.set_on(true);
    for (db, table) in &stopped {
        let mut batch = Batch::new();
        batch.put(table, "key", "value");
        // Written by the log's thread, which stops there.
        db.write(batch, Durability::Deferred).unwrap();
    }
    stop.await_waiting(STOPPED);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(use_and_close(db.asynchronous()));
    stop.set_on(false);
    for (db, table) in stopped {
        assert_eq!(table.get("key").unwrap(), Some(b"value".to_vec()));
        db.close().unwrap();
    }
}

#[test]
fn a_database_works_and_closes_beside_many_whose_disks_have_stopped() {
    let (tell, told) = mpsc::channel();
    let used = std::thread::spawn(move || {
        use_beside_stopped_disks();
        tell.send(()).unwrap();
    });
    match told.recv_timeout(LIMIT) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("a database waits for the disk of another"),
        Ok(()) | Err(mpsc::RecvTimeoutError::Disconnected) => used.join().unwrap(),
    }
}
