//! Many threads on one store.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nofault::error::ErrorKind;
use nofault::mmap::{Batch, Protocol, Settings};
use nofault_sim::content::Rows;

use crate::{PROTOCOLS, content, create, folder, open, tiny};

const ACCOUNTS: u64 = 100;

fn account(number: u64) -> Vec<u8> {
    format!("account-{number:03}").into_bytes()
}

#[test]
fn readers_beside_writers_see_whole_commits() {
    for protocol in PROTOCOLS {
        let folder = folder();
        let settings = Settings { page_bytes: 1024, background_thread: true, ..tiny(protocol) };
        let store = create(folder.path(), &settings).unwrap();
        let mut batch = Batch::new();
        for number in 0..ACCOUNTS {
            batch.put(account(number), 100u64.to_le_bytes());
        }
        store.write(&batch).unwrap();
        let (stop, commits, reads) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            // Each writer moves one unit at a time between its two accounts: the sum stays the same.
            for writer in 0..4 {
                let (store, stop, commits) = (&store, &stop, &commits);
                scope.spawn(move || {
                    let mut rng = fastrand::Rng::with_seed(writer);
                    while !stop.load(Ordering::Relaxed) {
                        let mine = |rng: &mut fastrand::Rng| rng.u64(..ACCOUNTS / 4) * 4 + writer;
                        let (from, to) = (mine(&mut rng), mine(&mut rng));
                        if from == to {
                            continue;
                        }
                        let balance = |number| {
                            u64::from_le_bytes(store.get(&account(number)).unwrap().unwrap()[..8].try_into().unwrap())
                        };
                        let (taken, given) = (balance(from).wrapping_sub(1), balance(to).wrapping_add(1));
                        let pad = vec![writer as u8; rng.usize(..60)];
                        let mut batch = Batch::new();
                        batch.put(account(from), [&taken.to_le_bytes()[..], &pad].concat());
                        batch.put(account(to), [&given.to_le_bytes()[..], &pad].concat());
                        store.write(&batch).unwrap();
                        commits.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let all = content(&store);
                        assert_eq!(all.len() as u64, ACCOUNTS, "{protocol:?}");
                        let sum = all.values().fold(0u64, |sum, value| {
                            sum.wrapping_add(u64::from_le_bytes(value[..8].try_into().unwrap()))
                        });
                        assert_eq!(sum, ACCOUNTS * 100, "{protocol:?}: a reader saw half a commit");
                        reads.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let started = Instant::now();
            while started.elapsed() < Duration::from_millis(700) {
                std::thread::sleep(Duration::from_millis(20));
            }
            stop.store(true, Ordering::Relaxed);
        });
        store.verify().unwrap();
        let stats = store.stats();
        println!("{protocol:?}: {commits:?} commits, {reads:?} reads, {stats:?}");
        drop(store);
        open(folder.path(), &settings).unwrap().verify().unwrap();
    }
}

#[test]
fn a_snapshot_stays_as_it_was() {
    for protocol in PROTOCOLS.into_iter().filter(|protocol| *protocol != Protocol::OsCow) {
        let folder = folder();
        let settings = Settings { log_bytes: 8 << 20, background_thread: true, ..tiny(protocol) };
        let store = create(folder.path(), &settings).unwrap();
        for number in 0..200u32 {
            store.put(number.to_be_bytes(), vec![1; 60]).unwrap();
        }
        let (before, snapshot) = (content(&store), store.snapshot());
        for round in 2..5u8 {
            for number in (0..200u32).step_by(3) {
                store.put(number.to_be_bytes(), vec![round; 60]).unwrap();
            }
            store.delete(u32::from(round).to_be_bytes()).unwrap();
            store.checkpoint().unwrap();
            let seen: Rows = snapshot.range(b"", None).map(Result::unwrap).collect();
            assert!(seen == before, "{protocol:?}");
        }
        assert!(content(&store) != before);
        drop(snapshot);
        store.checkpoint().unwrap();
        store.verify().unwrap();
        assert_eq!(store.stats().waiting_pages, 0, "{protocol:?}");
    }
}

#[test]
fn a_long_reader_makes_the_log_full_and_is_named() {
    let folder = folder();
    let store = create(folder.path(), &tiny(Protocol::UserCow(nofault::mmap::WriteBack::Call))).unwrap();
    store.put("first", "1").unwrap();
    let snapshot = store.snapshot();
    let error = (0..20_000u32).find_map(|number| store.put((number % 50).to_be_bytes(), vec![number as u8; 100]).err());
    let error = error.expect("the log is full at last");
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert!(error.to_string().contains("reader"), "{error}");
    assert_eq!(snapshot.range(b"", None).count(), 1);
    drop(snapshot);
    store.put("second", "2").unwrap();
    store.verify().unwrap();
}
