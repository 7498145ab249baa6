//! Watching: the commits that a watch reports, applied to a snapshot of its beginning, give the content of the table.

#![expect(clippy::unwrap_used, reason = "a test stops at an unexpected error")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::tiny;
use fastrand::Rng;
use nofault::blocking::{Db, Snapshot, Table, Watch};
use nofault::db::{Change, WatchEvent};
use nofault::error::ErrorKind;
use nofault::settings::Settings;
use nofault::{Batch, CommitSeq, Durability};
use nofault_sim::content::Rows;
use nofault_sim::{Call, Effect, Fault, SimOptions, SimWorld};

/// Time after which the test calls a wait one that never ends.
const LIMIT: Duration = Duration::from_secs(60);

fn database(seed: u64) -> Db {
    database_in(&SimWorld::new(seed, SimOptions::default()), true)
}

fn database_in(world: &SimWorld, background_threads: bool) -> Db {
    let directory = world.directory();
    let settings = Settings { cache_bytes: 32 << 20, log_bytes: 16 << 20, background_threads, ..tiny() };
    Db::create_in(&directory, &settings).unwrap()
}

fn content(snapshot: &Snapshot, table: &Table, prefix: &[u8]) -> Rows {
    snapshot.prefix(table, prefix).unwrap().map(Result::unwrap).collect()
}

/// A copy of the watched keys, kept up to date from the events.
struct Copy<'t> {
    db: &'t Db,
    table: &'t Table,
    prefix: &'t [u8],
    rows: Rows,
    /// The commit that `rows` show.
    shown: CommitSeq,
    /// The last commit of an event.
    last: CommitSeq,
    lost: u32,
}

impl<'t> Copy<'t> {
    fn begin(db: &'t Db, table: &'t Table, prefix: &'t [u8], watch: &Watch) -> Self {
        let mut copy =
            Self { db, table, prefix, rows: Rows::new(), shown: watch.since(), last: watch.since(), lost: 0 };
        copy.read_anew(watch.since());
        copy
    }

    /// Reads the keys in a snapshot, which must show commit `least`.
    fn read_anew(&mut self, least: CommitSeq) {
        let snapshot = self.db.snapshot();
        assert!(snapshot.commit() >= least, "{} before {least}", snapshot.commit());
        self.rows = content(&snapshot, self.table, self.prefix);
        self.shown = snapshot.commit();
    }

    fn apply(&mut self, event: WatchEvent) {
        match event {
            WatchEvent::Commit { commit, changes } => {
                assert!(commit > self.last, "{commit} after {}", self.last);
                self.last = commit;
                assert!(self.db.snapshot().commit() >= commit, "{commit} is not visible yet");
                if commit <= self.shown {
                    return;
                }
                for change in changes {
                    match change {
                        Change::Put { table, key, value, .. } => {
                            assert!(table == self.table.id() && key.starts_with(self.prefix));
                            self.rows.insert(key, value);
                        }
                        Change::Delete { table, key } => {
                            assert!(table == self.table.id() && key.starts_with(self.prefix));
                            self.rows.remove(&key);
                        }
                        other => panic!("{other:?}"),
                    }
                }
            }
            WatchEvent::Lost { first, last } => {
                assert!(first > self.last && last >= first, "{first} to {last} after {}", self.last);
                (self.last, self.lost) = (last, self.lost + 1);
                self.read_anew(last);
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Makes random commits of every kind in two tables.
fn write(db: &Db, tables: [&Table; 2], seed: u64, commits: u32) {
    let mut rng = Rng::with_seed(seed);
    for _ in 0..commits {
        let table = tables[usize::from(rng.u8(..4) == 0)];
        let key = |rng: &mut Rng| format!("{}{}", ["a", "ab", "b"][rng.usize(..3)], rng.u32(..20)).into_bytes();
        let value = |rng: &mut Rng| vec![rng.u8(..); if rng.u8(..30) == 0 { 3000 } else { rng.usize(..40) }];
        let durability = [Durability::Sync, Durability::Deferred][rng.usize(..2)];
        match rng.u32(..10) {
            0..3 => table.put(key(&mut rng), value(&mut rng)).unwrap(),
            3 => table.delete(key(&mut rng)).unwrap(),
            4..7 => {
                // Some are large commits.
                let count = if rng.u8(..12) == 0 { 400 } else { rng.usize(1..10) };
                let mut batch = Batch::new();
                for number in 0..count {
                    let key = if count == 400 { format!("b many {number}").into_bytes() } else { key(&mut rng) };
                    batch.put(tables[number % 2], key, value(&mut rng));
                }
                db.write(batch, durability).unwrap();
            }
            7 => drop(table.delete_range(key(&mut rng)..).unwrap()),
            _ => db
                .transact(durability, |change| {
                    let (from, to) = (key(&mut rng), key(&mut rng));
                    let moved = change.get(table, &from)?.unwrap_or_default();
                    change.put(table, to, moved)?;
                    change.delete(table, from)
                })
                .unwrap(),
        }
    }
}

/// Lets threads write while a watch with so much memory keeps a copy. Returns how often the watch lost commits.
fn compare(seed: u64, prefix: &[u8], bytes_max: usize) -> u32 {
    let db = database(seed);
    let (one, two) = (db.create_table("one").unwrap(), db.create_table("two").unwrap());
    write(&db, [&one, &two], seed, 50);
    let is_over = AtomicBool::new(false);
    let lost = std::thread::scope(|scope| {
        let writers: Vec<_> = (1..4)
            .map(|thread| {
                let (db, one, two) = (&db, &one, &two);
                scope.spawn(move || write(db, [one, two], seed * 10 + thread, 150))
            })
            .collect();
        // Begun while others commit.
        let mut watch = one.watch(prefix).unwrap().bytes_max(bytes_max);
        let mut copy = Copy::begin(&db, &one, prefix, &watch);
        let watcher = scope.spawn({
            let (is_over, rng) = (&is_over, &mut Rng::with_seed(seed));
            let slow = rng.bool();
            move || {
                loop {
                    let over = is_over.load(Ordering::SeqCst);
                    while let Some(event) = watch.try_next().unwrap() {
                        copy.apply(event);
                    }
                    if over {
                        return copy;
                    }
                    if slow { std::thread::sleep(Duration::from_millis(5)) } else { std::thread::yield_now() }
                }
            }
        });
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        db.sync().unwrap();
        is_over.store(true, Ordering::SeqCst);
        let copy = watcher.join().unwrap();
        assert_eq!(copy.rows, content(&db.snapshot(), &one, prefix), "seed {seed}");
        copy.lost
    });
    assert!(db.verify().unwrap().is_clean());
    lost
}

#[test]
fn a_copy_that_follows_a_watch_equals_the_table_also_after_losses() {
    let mut lost = 0;
    for seed in 0..8 {
        let prefix: &[u8] = [&b""[..], b"a", b"ab"][seed as usize % 3];
        assert_eq!(compare(seed, prefix, 64 << 20), 0, "there was memory for everything");
        lost += compare(seed + 100, prefix, 2_000);
    }
    assert!(lost > 0, "a queue of 2,000 bytes has never been full");
}

#[test]
fn a_watch_of_the_database_reports_tables_as_they_come_and_go_and_each_commit_once() {
    let db = database(1);
    let kept = db.create_table("kept").unwrap();
    let mut watch = db.watch().unwrap();
    let gone = db.create_table("gone").unwrap();
    let mut batch = Batch::new();
    batch.put(&kept, "a", "1").put(&gone, "b", "2").delete(&kept, "c");
    db.write(batch, Durability::Sync).unwrap();
    db.rename_table("gone", "going").unwrap();
    db.set_compression("kept", nofault::settings::Compression::Fast).unwrap();
    db.drop_table("going").unwrap();
    let mut events = Vec::new();
    while let Some(event) = watch.try_next().unwrap() {
        let WatchEvent::Commit { changes, .. } = event else { panic!("{event:?}") };
        events.push(changes);
    }
    let (kept, gone) = (kept.id(), gone.id());
    let put = |table, key: &str, value: &str| Change::Put { table, key: key.into(), value: value.into(), expiry: None };
    let expected = [
        vec![Change::CreateTable { table: gone, name: "gone".into() }],
        vec![put(kept, "a", "1"), Change::Delete { table: kept, key: b"c".to_vec() }, put(gone, "b", "2")],
        vec![Change::RenameTable { table: gone, from: "gone".into(), to: "going".into() }],
        vec![Change::DropTable { table: gone, name: "going".into() }],
    ];
    assert_eq!(events, expected);
}

#[test]
fn a_watch_ends_with_its_table_and_a_bulk_load_counts_as_lost() {
    let db = database(2);
    let (table, other) = (db.create_table("t").unwrap(), db.create_table("other").unwrap());
    let mut watch = table.watch("").unwrap();
    other.bulk_load([("a", "1")]).unwrap();
    assert_eq!(watch.try_next().unwrap(), None);
    table.bulk_load([("a", "1"), ("b", "2")]).unwrap();
    let loaded = db.snapshot().commit();
    assert_eq!(watch.next().transpose().unwrap(), Some(WatchEvent::Lost { first: loaded, last: loaded }));
    db.drop_table("t").unwrap();
    let last = watch.next().transpose().unwrap();
    assert!(
        matches!(&last, Some(WatchEvent::Commit { changes, .. }) if matches!(changes[..], [Change::DropTable { .. }]))
    );
    assert!(watch.next().is_none() && watch.next().is_none());
}

#[tokio::test]
async fn a_dropped_future_of_a_watch_loses_no_event_and_a_waiting_task_is_woken() {
    let db = database(3).asynchronous();
    let table = db.create_table("t").await.unwrap();
    let mut watch = table.watch("").await.unwrap();
    let writer = tokio::spawn({
        let table = table.clone();
        async move {
            for number in 0..200_u32 {
                table.put(number.to_be_bytes(), vec![7; 100]).await.unwrap();
            }
        }
    });
    let mut next = 0;
    while next < 200_u32 {
        // The future is dropped at its first wait, more often than not.
        let event = tokio::select! {
            biased;
            event = watch.next() => event.unwrap(),
            () = tokio::task::yield_now() => continue,
        };
        let Some(WatchEvent::Commit { changes, .. }) = event else { panic!("{event:?}") };
        let expected =
            Change::Put { table: table.id(), key: next.to_be_bytes().to_vec(), value: vec![7; 100], expiry: None };
        assert_eq!(changes, [expected]);
        next += 1;
    }
    writer.await.unwrap();
}

/// Reads the commits that a watch reports until it ends. Returns how many there were before the error that ended it.
fn commits_before_the_failure(mut watch: Watch) -> usize {
    for commits in 0.. {
        match watch.next().expect("a watch ends with an error") {
            Ok(event) => assert!(matches!(event, WatchEvent::Commit { .. }), "{event:?}"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Poisoned, "{error}");
                assert!(watch.next().is_none() && watch.try_next().unwrap().is_none(), "the error is reported once");
                return commits;
            }
        }
    }
    unreachable!("the loop ends by an error")
}

#[test]
fn watches_that_wait_end_with_the_error_when_the_log_has_failed() {
    for background_threads in [true, false] {
        let world = SimWorld::new(4, SimOptions::default());
        let db = database_in(&world, background_threads);
        let (table, other) = (db.create_table("t").unwrap(), db.create_table("other").unwrap());
        let (tell, told) = std::sync::mpsc::channel();
        for watch in [table.watch("").unwrap(), other.watch("").unwrap(), db.watch().unwrap()] {
            let tell = tell.clone();
            std::thread::spawn(move || tell.send(commits_before_the_failure(watch)));
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let mut of_task = runtime.block_on(db.asynchronous().watch()).unwrap();
        runtime.spawn(async move {
            let event = of_task.next().await.unwrap();
            assert!(matches!(event, Some(WatchEvent::Commit { .. })), "{event:?}");
            assert_eq!(of_task.next().await.unwrap_err().kind(), ErrorKind::Poisoned);
            assert_eq!(of_task.next().await.unwrap(), None);
            tell.send(1).unwrap();
        });
        let unread = table.watch("").unwrap();
        table.put("a", "1").unwrap();
        world.inject(Fault::new(Call::Write, Effect::Errno(libc::EIO)).on("log").times(u64::MAX));
        assert_eq!(table.put("a", "2").unwrap_err().kind(), ErrorKind::Poisoned);
        let mut found: Vec<_> = (0..4).map(|_| told.recv_timeout(LIMIT).expect("a watch waits for ever")).collect();
        found.sort_unstable();
        assert_eq!(found, [0, 1, 1, 1], "each watch reports the commit that is visible, and no other");
        assert_eq!(commits_before_the_failure(unread), 1);
        assert_eq!(table.get("a").unwrap().as_deref(), Some(&b"1"[..]));
        for refused in [table.watch("").map(drop), db.watch().map(drop)] {
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::Poisoned);
        }
    }
}
