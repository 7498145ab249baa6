//! Futures polled by hand: dropped at every point where they wait. All ways of reading give the same answers.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use fastrand::Rng;
use nofault::blocking;
use nofault::settings::{Settings, TierUse};
use nofault::{Batch, Db, Durability};
use nofault_sim::{SimOptions, SimWorld};

use crate::story::{Rows, for_each_seed, key_of, value_of};

const KEYS: u32 = 400;

/// A waker that unparks a thread.
struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// A waker of foreign code that panics when it is called, once the test has set it so: not while the test itself polls.
struct Explosive(AtomicBool);

impl Wake for Explosive {
    fn wake(self: Arc<Self>) {
        assert!(!self.0.load(Ordering::SeqCst), "a panic that this test wants");
    }
}

/// Polls at most `polls` times, waiting for a wake-up in between, then drops the future. `None` when it was dropped.
fn polled<T>(polls: usize, future: impl Future<Output = T>) -> Option<T> {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    for _ in 0..polls {
        if let Poll::Ready(answer) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(answer);
        }
        // The timeout covers a lost wake-up: then the test is slow, and `whole` reports it.
        std::thread::park_timeout(Duration::from_secs(5));
    }
    None
}

/// Polls a future to its end. Fails instead of hanging.
fn whole<T>(future: impl Future<Output = T>) -> T {
    polled(20_000, future).expect("it never ends")
}

/// Settings with a pool much smaller than the data, and with background threads, which the async calls need.
fn small(page_bytes: usize) -> Settings {
    Settings {
        page_bytes,
        cache_bytes: (656 << 10) + 80 * page_bytes,
        log_bytes: 1 << 20,
        ..Settings::with_small_pages().with_tier(TierUse::Always)
    }
}

/// Creates a database whose table `t` has `KEYS` rows, nearly none of them in memory.
fn cold(seed: u64, page_bytes: usize) -> (SimWorld, Db, Rows) {
    let world = SimWorld::new(seed, SimOptions::default());
    let directory = world.directory();
    let loader = blocking::Db::create_in(&directory, &small(page_bytes)).unwrap();
    let mut rng = Rng::with_seed(seed);
    let rows: Rows = (0..KEYS)
        .map(|number| (key_of(number), value_of(number, [30, 200, 3 * page_bytes][usize::from(rng.u8(..40) / 19)])))
        .collect();
    loader.create_table("t").unwrap().bulk_load(rows.clone()).unwrap();
    drop(loader);
    let db = Db::open_in(&directory, &small(page_bytes)).unwrap();
    (world, db, rows)
}

#[test]
fn a_waker_that_panics_costs_no_other_task_an_answer() {
    for_each_seed("a_waker_that_panics", 1..=2, |seed| {
        let (_world, db, rows) = cold(seed, 512);
        let table = whole(db.table("t")).unwrap();
        for number in 0..40 {
            let key = key_of(number * 7 % KEYS);
            let mut read = Box::pin(table.get(&key));
            let mut write = Box::pin(table.put("\u{0}first", number.to_be_bytes()));
            let explosive = Arc::new(Explosive(AtomicBool::new(false)));
            let waker = Waker::from(Arc::clone(&explosive));
            let reads = read.as_mut().poll(&mut Context::from_waker(&waker)).is_pending();
            let writes = write.as_mut().poll(&mut Context::from_waker(&waker)).is_pending();
            explosive.0.store(true, Ordering::SeqCst);
            // These wait behind them, for the same page and for the same group of the log.
            assert_eq!(whole(table.get(&key)).unwrap(), rows.get(&key).map(|value| value.to_vec()), "seed {seed}");
            whole(table.put("\u{0}second", number.to_be_bytes())).unwrap();
            // A future polled again with a waker that works is answered.
            if reads {
                assert_eq!(whole(read).unwrap(), rows.get(&key).map(|value| value.to_vec()), "seed {seed}");
            }
            if writes {
                whole(write).unwrap();
            }
        }
    });
}

#[test]
fn a_future_dropped_at_any_wait_leaves_the_database_usable_and_exact() {
    for_each_seed("a_future_dropped_at_any_wait", 1..=2, |seed| {
        let (_world, db, mut rows) = cold(seed, 512);
        let table = whole(db.table("t")).unwrap();
        let mut rng = Rng::with_seed(seed);
        let mut dropped = [0u32; 4];
        for round in 0..120u32 {
            let polls = 1 + round as usize % 12;
            let key = key_of(rng.u32(..KEYS));
            match polled(polls, table.get(&key)) {
                Some(found) => assert_eq!(found.unwrap().as_deref(), rows.get(&key).map(|v| &v[..]), "seed {seed}"),
                None => dropped[0] += 1,
            }
            let keys: Vec<_> = (0..20).map(|_| key_of(rng.u32(..KEYS))).collect();
            if polled(polls, table.get_many(&keys)).is_none() {
                dropped[1] += 1;
            }
            let mut range = table.range(key.clone()..);
            let mut expected = rows.range(key.clone()..);
            let mut seen = 0;
            while seen < 10 {
                // Dropping `next` loses no entry: the walk continues where it was.
                match polled(polls, range.next()) {
                    Some(entry) => {
                        let entry = entry.unwrap();
                        let wanted = expected.next().map(|(key, value)| (key.clone(), value.to_vec()));
                        assert_eq!(entry, wanted, "seed {seed}, round {round}");
                        seen += 1;
                    }
                    None => {
                        dropped[2] += 1;
                        assert_eq!(
                            whole(range.next()).unwrap(),
                            expected.next().map(|(key, value)| (key.clone(), value.to_vec())),
                            "seed {seed}, round {round}: after a dropped `next`"
                        );
                        seen += 1;
                    }
                }
            }
            drop(range);
            commit_or_drop(&db, &table, &mut rows, polls, round, &mut rng, &mut dropped[3]);
        }
        let verification = whole(db.verify()).unwrap();
        assert!(verification.is_clean(), "seed {seed}: {:?}", verification.problems);
        println!("seed {seed}: dropped {dropped:?} of get, get_many, scan, commit");
        assert!(dropped.iter().all(|count| *count > 0), "seed {seed}: {dropped:?}");
    });
}

/// Commits a batch, or drops its future before the end, and checks that all of the batch is there, or nothing.
fn commit_or_drop(
    db: &Db,
    table: &nofault::Table,
    rows: &mut Rows,
    polls: usize,
    round: u32,
    rng: &mut Rng,
    dropped: &mut u32,
) {
    let mut batch = Batch::new();
    let mut after = rows.clone();
    let mut keys = Vec::new();
    // Some commits are larger than the pool: those are finished by a thread.
    for _ in 0..if round % 10 == 9 { 150 } else { rng.usize(1..6) } {
        let (key, value) = (key_of(rng.u32(..KEYS)), value_of(10_000 + round, rng.usize(8..120)));
        batch.put(table, &key, &value);
        after.insert(key.clone(), value);
        keys.push(key);
    }
    let outcome = polled(polls, db.write(batch, Durability::Sync));
    if outcome.is_none() {
        *dropped += 1;
        // A commit that the dropped future left behind has taken effect once a later commit is durable.
        whole(table.put("later", "commit")).unwrap();
        rows.insert(b"later".to_vec(), b"commit"[..].into());
        after.insert(b"later".to_vec(), b"commit"[..].into());
    }
    let found = whole(table.get_many(&keys)).unwrap();
    let of = |model: &Rows| keys.iter().map(|key| model.get(key).map(|value| value.to_vec())).collect::<Vec<_>>();
    let happened = found == of(&after);
    assert!(happened || (outcome.is_none() && found == of(rows)), "round {round}: half a batch, or a lost one");
    if happened {
        *rows = after;
    }
}

#[test]
fn a_large_commit_whose_future_is_gone_becomes_visible_by_itself() {
    let (_world, db, _rows) = cold(7, 512);
    let table = whole(db.table("t")).unwrap();
    let mut batch = Batch::new();
    for number in 0..150 {
        batch.put(&table, key_of(number), value_of(10_000 + number, 60));
    }
    // The first poll hands the commit to a thread, which may end before the future is dropped.
    assert!(polled(1, db.write(batch, Durability::Sync)).is_none());
    let wanted = Some(value_of(10_000, 60).to_vec());
    let is_there = |_: u32| {
        std::thread::sleep(Duration::from_millis(1));
        whole(table.get(key_of(0))).unwrap() == wanted
    };
    assert!((0..10_000).any(is_there), "it is in the log and no thread writes it");
}

#[test]
fn lookups_one_by_one_in_batches_async_and_blocking_give_the_same_answers() {
    for_each_seed("asking_one_by_one", 1..=1, |seed| {
        for page_bytes in [4096, 16_384, 65_536] {
            let (world, db, rows) = cold(seed, page_bytes);
            let table = whole(db.table("t")).unwrap();
            let keys: Vec<_> = (0..KEYS + 20).map(key_of).collect();
            let expected: Vec<_> = keys.iter().map(|key| rows.get(key).map(|value| value.to_vec())).collect();
            assert_eq!(whole(table.get_many(&keys)).unwrap(), expected, "{page_bytes}: get_many");
            let one_by_one: Vec<_> = keys.iter().map(|key| whole(table.get(key)).unwrap()).collect();
            assert_eq!(one_by_one, expected, "{page_bytes}: get");
            drop((table, db));
            let settings = Settings { background_threads: false, ..small(page_bytes) };
            let blocking = blocking::Db::open_in(&world.directory(), &settings).unwrap();
            let table = blocking.table("t").unwrap();
            let one_by_one: Vec<_> = keys.iter().map(|key| table.get(key).unwrap()).collect();
            assert_eq!(one_by_one, expected, "{page_bytes}: blocking get");
            assert_eq!(table.get_many(&keys).unwrap(), expected, "{page_bytes}: blocking get_many");
            let scanned: Rows = table.range::<&[u8]>(..).map(|row| row.map(|(k, v)| (k, v.into())).unwrap()).collect();
            assert!(scanned == rows, "{page_bytes}: scan");
        }
    });
}
