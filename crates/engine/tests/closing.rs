//! Dropping the last handle closes the database on any thread, also in a waker that one of the database's own threads calls; and
//! closing it ends all handles.

#![expect(clippy::unwrap_used, reason = "a test stops at an unexpected error")]

#[path = "common/mod.rs"]
mod common;
#[path = "closing/handles.rs"]
mod handles;

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use nofault::error::ErrorKind;
use nofault::settings::Settings;
use nofault::{Batch, Db, Durability, blocking};
use nofault_io::folder::{Backend, Folder};
use nofault_sim::depth::by_depth;
use nofault_sim::{Hooks, SimOptions, SimWorld};

/// Names of the database threads that panicked.
static PANICKED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Installs a panic hook that adds database threads to `PANICKED`.
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

/// Returns the name of this thread.
fn here() -> Option<String> {
    std::thread::current().name().map(Into::into)
}

/// A task whose last reference is held by its waker when the executor is dropped.
struct Task {
    future: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
    /// Disconnected once the executor was dropped.
    executor: Mutex<Receiver<()>>,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        if here().is_some_and(|name| name.starts_with("nofault-")) {
            // Waits until the executor is dropped, so that this waker is the last owner of the task.
            let _ = self.executor.lock().unwrap().recv();
        }
    }
}

/// Sends the name of the thread on which it is dropped.
struct TellsWhere(Sender<Option<String>>);

impl Drop for TellsWhere {
    fn drop(&mut self) {
        let _ = self.0.send(here());
    }
}

/// Polls a task `polls` times, then drops the executor, so that only wakers hold the task. Returns the name of the thread that dropped the
/// task's future, and with it the database. `None` when a poll has completed the task: on a busy machine the threads of a database may be
/// done before the first poll.
fn left_to_its_waker<F: Future<Output = ()> + Send + 'static>(
    polls: u32,
    work: impl FnOnce(TellsWhere) -> F,
) -> Option<String> {
    let ((executor, gone), (tell, told)) = (channel(), channel());
    let future: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(work(TellsWhere(tell)));
    let task = Arc::new(Task { future: Mutex::new(Some(future)), executor: Mutex::new(gone) });
    let waker = Waker::from(Arc::clone(&task));
    for _ in 0..polls {
        let mut future = task.future.lock().unwrap();
        let polled = future.as_mut().unwrap().as_mut().poll(&mut Context::from_waker(&waker));
        if polled.is_ready() {
            return None;
        }
    }
    drop((task, waker, executor));
    Some(told.recv().unwrap().unwrap_or_default())
}

/// Opens the database in the folder as soon as its previous user has closed it.
fn open_when_closed(path: &Path) -> blocking::Db {
    loop {
        match blocking::Db::open(path, &Settings::small(2, 4)) {
            Ok(db) => return db,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Busy, "{error}"),
        }
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
    let mut rounds = 0..by_depth(6, 20_u32);
    while let Some(round) = rounds.next() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("db");
        let db = blocking::Db::create(&path, &Settings::small(2, 4)).unwrap();
        db.create_table("t").unwrap();
        drop(db);
        let db = block_on(Db::open(&path, &Settings::small(2, 4))).unwrap();
        let table = block_on(db.table("t")).unwrap();
        // Loads the page, so that the commit waits for the log alone.
        block_on(table.get("key")).unwrap();
        let dropped_by = left_to_its_waker(1, |tells| async move {
            table.put("key", round.to_be_bytes()).await.unwrap();
            drop((tells, table, db));
        });
        match dropped_by {
            Some(thread) => assert_eq!(thread, "nofault-wal"),
            // The test needs a round in which the task has to wait.
            None => rounds.end += 1,
        }
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
    let db = blocking::Db::create(&path, &Settings::small(2, 4)).unwrap();
    let table = db.create_table("t").unwrap();
    table.bulk_load((0..10_000_u32).map(|number| (number.to_be_bytes(), [number as u8; 500]))).unwrap();
    db.checkpoint().unwrap();
    drop((db, table));
    for round in 0..by_depth(6, 20_u32) {
        let (tell, closed) = channel();
        let folder = Folder::open(&path, Backend::Auto).unwrap();
        let directory = reaped_by_one_thread(tell).directory(Arc::new(folder));
        let db = Db::open_in(&directory, &Settings::small(2, 4)).unwrap();
        drop(directory);
        let table = block_on(db.table("t")).unwrap();
        // Nothing of the table is in memory: the second poll sends the read of its root, unless a thread of the pool did before it.
        let dropped_by = left_to_its_waker(2, |tells| async move {
            table.get((round * 500).to_be_bytes()).await.unwrap();
            drop((tells, table, db));
        });
        assert_eq!(
            dropped_by.as_deref(),
            Some(COMPLETION_THREAD),
            "there was nothing to wait for, or another thread took it in"
        );
        // The channel is disconnected when the last disk, the last queue and the lock of the database are dropped.
        closed.recv().unwrap_err();
        let db = blocking::Db::open(&path, &Settings::small(2, 4)).unwrap();
        assert!(db.verify().unwrap().is_clean());
    }
    assert_no_thread_panicked();
}

/// A lock that tells the thread on which it is dropped: the thread that has closed the database.
#[derive(Debug)]
struct ToldLock(Mutex<Sender<Option<String>>>);

impl nofault::io::disk::FileLock for ToldLock {}

impl Drop for ToldLock {
    fn drop(&mut self) {
        let _ = self.0.lock().unwrap().send(here());
    }
}

#[test]
fn dropping_the_last_handle_of_a_task_leaves_the_closing_to_a_thread_and_loses_no_deferred_commit() {
    for is_of_tasks in [true, false] {
        let world = SimWorld::new(9, SimOptions::calm());
        let (tell, told) = channel();
        let hooks = Hooks::new().lock(move |_, _, _| Ok(Box::new(ToldLock(Mutex::new(tell.clone())))));
        let directory = hooks.directory(world.directory());
        let db = blocking::Db::create_in(&directory, &Settings::small(2, 4)).unwrap();
        let table = db.create_table("t").unwrap();
        let mut batch = Batch::new();
        batch.put(&table, "k", "deferred");
        db.write(batch, Durability::Deferred).unwrap();
        let of_tasks = is_of_tasks.then(|| db.asynchronous());
        while told.try_recv().is_ok() {}
        drop((db, table));
        drop(of_tasks);
        // With the power cut now, nothing but what the drop has written is left.
        let after = world.restart(1).directory();
        let closed_by = told.recv().unwrap();
        let closes = closed_by.as_deref() == Some("nofault-close");
        assert_eq!(closes, is_of_tasks, "closed by {closed_by:?}");
        let after = blocking::Db::open_in(&after, &Settings::small(2, 4)).unwrap();
        assert_eq!(after.table("t").unwrap().get("k").unwrap(), Some(b"deferred".to_vec()), "{is_of_tasks}");
    }
}

/// Name of the thread that takes completions.
const COMPLETION_THREAD: &str = "nofault-reads";

/// Returns hooks that give completions to one thread of the database only, so that a test knows which thread wakes a task. The
/// receiver of `open` is disconnected when all that was opened through them has been dropped.
///
/// On ordinary disks a task's own thread also looks for completions when it sends a read, and on a busy machine it may find the
/// completion of that very read. Both orders are right; a test of one order has to exclude the other.
fn reaped_by_one_thread(open: Sender<()>) -> Hooks {
    Hooks::new().reap(move |queue, wait_for, into| {
        let _ = &open;
        let is_completion_thread = here().as_deref() == Some(COMPLETION_THREAD);
        // No completion for a thread that does not wait, except the completion thread.
        if wait_for > 0 || is_completion_thread { queue.reap(wait_for, into) } else { queue.submit() }
    })
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(work)
}
