//! Whoever drops the last handle closes the database, wherever that happens: also in a waker that one of the database's own threads calls.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use nofault::error::ErrorKind;
use nofault::settings::Settings;
use nofault::{Db, blocking};

/// How long a database may take to be closed. Far too long for one that is; another never is.
const CLOSES_WITHIN: Duration = Duration::from_secs(10);

fn small() -> Settings {
    Settings { cache_bytes: 2 << 20, log_bytes: 4 << 20, ..Settings::default() }
}

/// Threads of databases that panicked.
static PANICKED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Notes from now on which of them do.
fn note_panics() {
    static NOTED: Once = Once::new();
    NOTED.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |what| {
            before(what);
            if let Some(name) = here().filter(|name| name.starts_with("nofault-")) {
                PANICKED.lock().unwrap_or_else(PoisonError::into_inner).push(name);
            }
        }));
    });
}

/// The name of this thread.
fn here() -> Option<String> {
    std::thread::current().name().map(Into::into)
}

/// A task of an executor that has only its wakers left when it is dropped.
struct Task {
    future: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
    /// Ends when the executor has gone.
    executor: Mutex<Receiver<()>>,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        if here().is_some_and(|name| name.starts_with("nofault-")) {
            // So that this waker is the last that holds the task.
            let _ = self.executor.lock().unwrap().recv();
        }
    }
}

/// Says where it was dropped.
struct TellsWhere(Sender<Option<String>>);

impl Drop for TellsWhere {
    fn drop(&mut self) {
        let _ = self.0.send(here());
    }
}

/// Polls a task so often, and drops the executor. Answers which thread dropped what the task held, and with it the database.
fn left_to_its_waker<F: Future<Output = ()> + Send + 'static>(
    polls: u32,
    work: impl FnOnce(TellsWhere) -> F,
) -> String {
    let ((executor, gone), (tell, told)) = (channel(), channel());
    let future: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(work(TellsWhere(tell)));
    let task = Arc::new(Task { future: Mutex::new(Some(future)), executor: Mutex::new(gone) });
    let waker = Waker::from(Arc::clone(&task));
    for _ in 0..polls {
        let mut future = task.future.lock().unwrap();
        let polled = future.as_mut().unwrap().as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending(), "there was nothing to wait for");
    }
    drop((task, waker, executor));
    told.recv_timeout(CLOSES_WITHIN).unwrap().unwrap_or_default()
}

/// Opens the folder, once whoever had it has let it go.
fn open_when_closed(path: &Path) -> blocking::Db {
    let begun = Instant::now();
    loop {
        match blocking::Db::open(path, &small()) {
            Ok(db) => return db,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Busy, "{error}"),
        }
        assert!(begun.elapsed() < CLOSES_WITHIN, "the folder stays locked");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn assert_no_thread_panicked() {
    let panicked = PANICKED.lock().unwrap_or_else(PoisonError::into_inner).clone();
    assert!(panicked.is_empty(), "{panicked:?} panicked");
}

#[test]
fn the_last_handle_may_go_with_a_task_whose_commit_the_logs_thread_has_written() {
    note_panics();
    for round in 0..20_u32 {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("db");
        let db = blocking::Db::create(&path, &small()).unwrap();
        db.create_table("t").unwrap();
        drop(db);
        let db = block_on(Db::open(&path, &small())).unwrap();
        let table = block_on(db.table("t")).unwrap();
        let dropped_by = left_to_its_waker(1, |tells| async move {
            table.put("key", round.to_be_bytes()).await.unwrap();
            drop((tells, table, db));
        });
        assert_eq!(dropped_by, "nofault-log");
        let db = open_when_closed(&path);
        let table = db.table("t").unwrap();
        assert_eq!(table.get("key").unwrap(), Some(round.to_be_bytes().to_vec()));
        table.put("after", "it").unwrap();
    }
    assert_no_thread_panicked();
}

#[test]
fn the_last_handle_may_go_with_a_task_whose_page_a_thread_of_the_pool_has_taken_in() {
    note_panics();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    let db = blocking::Db::create(&path, &small()).unwrap();
    let table = db.create_table("t").unwrap();
    table.bulk_load((0..10_000_u32).map(|number| (number.to_be_bytes(), [number as u8; 500]))).unwrap();
    db.checkpoint().unwrap();
    drop((db, table));
    for round in 0..20_u32 {
        let db = block_on(Db::open(&path, &small())).unwrap();
        let table = block_on(db.table("t")).unwrap();
        // Nothing of the table is in memory: the second poll sends the read of its root.
        let dropped_by = left_to_its_waker(2, |tells| async move {
            table.get((round * 500).to_be_bytes()).await.unwrap();
            drop((tells, table, db));
        });
        assert_eq!(dropped_by, "nofault-reap");
        let db = open_when_closed(&path);
        assert!(db.verify().unwrap().is_clean());
    }
    assert_no_thread_panicked();
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(work)
}
