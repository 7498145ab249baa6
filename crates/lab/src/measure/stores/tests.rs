use super::*;

const ROOM: Room =
    Room { cache_bytes: 16 << 20, write_bytes: 4 << 20, data_bytes: 8 << 20, threads: 4, value_bytes: 300 };
const DATA: Data = Data { count: 3000, value_bytes: 300, seed: 5 };

/// Runs `test` for every store compiled in, with a new folder for each.
fn each(test: impl Fn(&Kind, &Path)) {
    let folder = tempfile::tempdir().unwrap();
    for kind in &KINDS {
        if kind.is_built() {
            test(kind, &folder.path().join(kind.id));
        } else {
            println!("left out: {} is {}", kind.id, kind.not_built());
        }
    }
}

fn check(store: &dyn Store, number: u64, version: u64) {
    let mut expected = Vec::new();
    DATA.fill(number, version, &mut expected);
    let mut seen = None;
    let look: LookAtValue<'_> = &mut |value| {
        seen = value.map(<[u8]>::to_vec);
        Ok(())
    };
    store.reader().unwrap().get(&DATA.key(number), look).unwrap();
    assert!(seen == Some(expected), "key {number}: {:?} bytes", seen.map(|value| value.len()));
}

#[test]
fn loaded_and_written_entries_are_there_after_reopening() {
    each(|kind, folder| {
        let store = open(kind.id, folder, ROOM, Start::New).unwrap().unwrap();
        store.fill(&mut DATA.entries()).unwrap();
        (0..DATA.count).step_by(97).for_each(|number| check(&*store, number, 0));
        for number in 0..50 {
            store.write(&[DATA.changed(number, 1)], number % 2 == 0 && kind.commits_durably).unwrap();
            check(&*store, number, 1);
        }
        store.write(&[DATA.changed(DATA.count, 7), DATA.changed(60, 7)], false).unwrap();
        assert!(!store.settings().unwrap().is_empty() && !store.unequal().is_empty());
        store.settle().unwrap();
        drop(store);
        let store = open(kind.id, folder, ROOM, Start::Old).unwrap().unwrap();
        (0..50).for_each(|number| check(&*store, number, 1));
        for (number, version) in [(60, 7), (DATA.count, 7), (61, 0), (DATA.count - 1, 0)] {
            check(&*store, number, version);
        }
        let mut absent = false;
        store
            .reader()
            .unwrap()
            .get(&DATA.key(DATA.count + 1), &mut |value| {
                absent = value.is_none();
                Ok(())
            })
            .unwrap();
        assert!(absent, "{}", kind.id);
    });
}

#[test]
fn a_scan_passes_the_requested_entries_in_order_and_stops_at_the_end() {
    each(|kind, folder| {
        let store = open(kind.id, folder, ROOM, Start::New).unwrap().unwrap();
        store.fill(&mut DATA.entries()).unwrap();
        let seen = |from: u64, count: usize| {
            let mut next = from;
            let count = store.reader().unwrap().scan(&DATA.key(from), count, &mut |key, value| {
                assert!(key == DATA.key(next) && DATA.is_right(next, value), "{} {next}", kind.id);
                next += 1;
                Ok(())
            });
            (count.unwrap() as u64, next - from)
        };
        assert_eq!(seen(10, 100), (100, 100), "{}", kind.id);
        assert_eq!(seen(DATA.count - 5, 100), (5, 5), "{}", kind.id);
        assert_eq!(seen(0, usize::MAX >> 1).0, DATA.count, "{}", kind.id);
    });
}

#[test]
fn threads_read_what_a_writer_has_committed_before_they_ask() {
    each(|kind, folder| {
        let store = open(kind.id, folder, ROOM, Start::New).unwrap().unwrap();
        store.fill(&mut DATA.entries()).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let store = &*store;
                scope.spawn(move || {
                    for round in 1..20 {
                        let number = thread * 500 + round;
                        store.write(&[DATA.changed(number, round)], false).unwrap();
                        check(store, number, round);
                    }
                });
            }
        });
    });
}

#[test]
fn a_store_that_was_not_built_is_known_with_the_feature_that_adds_it() {
    let folder = tempfile::tempdir().unwrap();
    for kind in KINDS.iter().filter(|kind| !kind.is_built()) {
        assert!(open(kind.id, &folder.path().join(kind.id), ROOM, Start::New).is_none());
        assert!(kind.not_built().contains("--features peer"), "{}", kind.id);
    }
    assert!(kind_of("nonsense").is_none() && kind_of(ENGINE).is_some_and(Kind::is_built));
}
