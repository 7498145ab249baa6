//! Shipping and restoring: whatever fails, a restore gives the state after a commit that is not before the promised one.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use futures_util::StreamExt as _;
use nofault::settings::Settings;
use nofault::{CommitSeq, Db};
use nofault_ship::{ErrorKind, Point, Ship, ShipOptions, history, restore_into, verify};
use nofault_sim::content::Content;
use nofault_sim::depth::{by_depth, is_deep, sample};
use nofault_sim::{SimOptions, SimWorld};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt as _};

use crate::common::{Faults, FaultyStore, Source, content, empty, options};

/// Restores a point and checks it. Returns the commit.
async fn check_restore(source: &Source, store: &Arc<InMemory>, point: Point, what: &str) -> CommitSeq {
    let db = empty();
    let restored =
        restore_into(store.clone(), "shop", point, &db).await.unwrap_or_else(|error| panic!("{what}: {error}"));
    source.check(&db, restored.commit, what).await;
    restored.commit
}

async fn names(store: &InMemory, kind: &str) -> Vec<String> {
    let prefix = Path::from(format!("shop/{kind}"));
    store.list(Some(&prefix)).map(|found| found.unwrap().location.to_string()).collect().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_commit_and_every_time_can_be_restored() {
    let mut source = Source::new(1).await;
    let store = Arc::new(InMemory::new());
    for _ in 0..20 {
        source.commit().await;
    }
    let ship = Ship::start(&source.db, store.clone(), options()).await.unwrap();
    let first = ship.durable().await.unwrap();
    assert!(first >= source.newest());
    source.note().await;
    for round in 0..60 {
        source.commit().await;
        // The time of a deferred commit is that at which it is written.
        source.db.sync().await.unwrap();
        if round % 7 == 0 {
            assert!(ship.durable().await.unwrap() >= source.newest());
        }
    }
    ship.close().await.unwrap();
    let found = verify(store.clone(), "shop").await.unwrap();
    assert!(found.is_clean() && found.bases == 1 && found.commits >= 60, "{found:?}");
    let states: Vec<_> = source.states.range(first.0 + 1..).map(|(commit, (_, time))| (*commit, *time)).collect();
    for (commit, time) in states.into_iter().step_by(3) {
        let commit = CommitSeq(commit);
        assert_eq!(check_restore(&source, &store, Point::Commit(commit), "a commit").await, commit);
        // Upkeep of the database, which changes no content, may have been committed at the same time and noted later.
        let restored = check_restore(&source, &store, Point::Time(time), "a time").await;
        let mut noted = source.states.iter();
        let later = noted.find(|(_, (content, noted))| *noted > time && *content != source.states[&commit.0].0);
        let later = later.map_or(CommitSeq(u64::MAX), |(later, _)| CommitSeq(*later));
        assert!((commit..later).contains(&restored), "{commit}, {restored}, {later}");
    }
    assert!(check_restore(&source, &store, Point::Latest, "the latest").await >= source.newest());
    for point in [Point::Commit(CommitSeq(1 << 40)), Point::Commit(CommitSeq(1)), Point::Time(UNIX_EPOCH)] {
        let error = restore_into(store.clone(), "shop", point, &empty()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{point:?}: {error}");
    }
    let error = restore_into(store, "another shop", Point::Latest, &empty()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_fail_or_are_carried_out_and_fail_all_the_same_lose_nothing() {
    let before = [Faults::None, Faults::Before(1), Faults::Before(2), Faults::Conflict(1)];
    let after = [Faults::After(1), Faults::After(2), Faults::LateAfter(1)];
    for (seed, faults) in before.into_iter().chain(after).enumerate() {
        let what = format!("{faults:?}");
        let mut source = Source::new(seed as u64).await;
        let store = Arc::new(InMemory::new());
        let faulty = FaultyStore::new(store.clone(), faults);
        // A request that is late without a fault, on a busy machine, is made again as well.
        let options = match faults {
            Faults::LateAfter(_) => {
                ShipOptions { request_timeout: Duration::from_millis(20), attempts_at_start: 1000, ..options() }
            }
            _ => options(),
        };
        let ship = Ship::start(&source.db, faulty, options).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        for round in 0..40 {
            source.commit().await;
            if round % 5 == 4 {
                let promised = ship.durable().await.unwrap_or_else(|error| panic!("{what}: {error}"));
                assert!(promised >= source.newest());
                assert!(check_restore(&source, &store, Point::Latest, &what).await >= promised, "{what}");
            }
        }
        ship.close().await.unwrap();
        assert!(verify(store.clone(), "shop").await.unwrap().is_clean(), "{what}");
        assert!(check_restore(&source, &store, Point::Latest, &what).await >= source.newest(), "{what}");
    }
}

/// A store may accept conditions and not keep to them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_ignores_conditions_is_refused() {
    let source = Source::new(16).await;
    let faulty = FaultyStore::new(Arc::new(InMemory::new()), Faults::Unconditional);
    let error = Ship::start(&source.db, faulty.clone(), options()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("single_writer"), "{error}");
    let ship = Ship::start(&source.db, faulty, ShipOptions { single_writer: true, ..options() }).await.unwrap();
    ship.close().await.unwrap();
}

/// A restore has read the manifest, and then the objects that it names are put together and taken out of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restore_that_has_begun_finds_its_objects_while_they_are_put_together() {
    let mut source = Source::new(17).await;
    let store = Arc::new(InMemory::new());
    let ship = Ship::start(&source.db, store.clone(), ShipOptions { object_bytes: 1, ..options() }).await.unwrap();
    while names(&store, "log").await.len() < 9 {
        source.commit().await;
        ship.durable().await.unwrap();
    }
    let promised = ship.durable().await.unwrap();
    // The first request is for the manifest.
    let (faulty, db) = (FaultyStore::new(store.clone(), Faults::PauseAt(2)), empty());
    let restoring = restore_into(faulty.clone(), "shop", Point::Latest, &db);
    let shipping = async {
        faulty.stopped().await;
        let before = names(&store, "log").await.len();
        for _ in 0..30 {
            source.commit().await;
            ship.durable().await.unwrap();
        }
        let garbage = verify(store.clone(), "shop").await.unwrap().unneeded_objects;
        assert!(before >= 9 && garbage >= 16, "{before} objects before, {garbage} that are not needed any more");
        faulty.resume();
    };
    let (restored, ()) = tokio::join!(restoring, shipping);
    let restored = restored.unwrap();
    assert!(restored.commit >= promised);
    source.check(&db, restored.commit, "as the manifest was when it was read").await;
}

/// Options with many objects; unneeded ones are removed at once.
fn shipped_often() -> ShipOptions {
    ShipOptions { object_bytes: 900, grace: Duration::ZERO, ..options() }
}

/// Commits and ships until the store hangs or the story is over. Returns the commit promised last.
async fn story(source: &mut Source, faulty: &Arc<FaultyStore>) -> CommitSeq {
    let mut promised = CommitSeq(0);
    let stopped = faulty.stopped();
    tokio::pin!(stopped);
    let ship = tokio::select! {
        ship = Ship::start(&source.db, faulty.clone(), shipped_often()) => ship.unwrap(),
        () = &mut stopped => return promised,
    };
    for _ in 0..18 {
        source.commit().await;
        tokio::select! {
            commit = ship.durable() => promised = commit.unwrap(),
            () = &mut stopped => return promised,
        }
    }
    promised
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shipper_that_is_stopped_at_any_step_leaves_all_that_it_promised_and_the_next_one_goes_on() {
    let whole = FaultyStore::new(Arc::new(InMemory::new()), Faults::None);
    let mut source = Source::new(3).await;
    let promised = story(&mut source, &whole).await;
    assert!(promised >= source.newest());
    let requests = whole.requests();
    assert!(requests > 40, "{requests}");
    let mut went_on = 0;
    for stop in sample(1..=requests, 3) {
        // All of the beginning, and then each step once, carried out or not.
        let both = [false, true];
        for is_done in both.into_iter().filter(|is_done| (stop < 16 && is_deep()) || *is_done == (stop % 2 == 0)) {
            let what = format!("stopped at request {stop}, carried out: {is_done}");
            let store = Arc::new(InMemory::new());
            let faulty = FaultyStore::new(store.clone(), Faults::HangFrom(stop, is_done));
            let mut source = Source::new(3).await;
            let promised = story(&mut source, &faulty).await;
            let db = empty();
            match restore_into(store.clone(), "shop", Point::Latest, &db).await {
                Ok(restored) => {
                    assert!(restored.commit >= promised, "{what}: {restored:?} and {promised} was promised");
                    source.check(&db, restored.commit, &what).await;
                    went_on += 1;
                }
                Err(error) => {
                    assert_eq!((error.kind(), promised.0), (ErrorKind::NotFound, 0), "{what}: {error}");
                }
            }
            let ship = Ship::start(&source.db, store.clone(), shipped_often()).await.unwrap();
            source.commit().await;
            let promised = ship.durable().await.unwrap();
            ship.close().await.unwrap();
            let commit = check_restore(&source, &store, Point::Latest, &what).await;
            assert!(commit >= promised && promised >= source.newest(), "{what}");
            let found = verify(store.clone(), "shop").await.unwrap();
            assert!(found.is_clean() && found.bases <= 2, "{what}: {found:?}");
            // Objects that the first one did not name are gone. Others have names of another kind: the manifest, its copies and the probe.
            let all = names(&store, "").await.len() as u64;
            let copies = names(&store, "").await.iter().filter(|name| name.contains("manifest-")).count() as u64;
            assert!(copies <= 8, "{what}: {copies} copies of the manifest");
            assert!(all <= found.objects + found.unneeded_objects + copies + 2, "{what}: {all} objects, {found:?}");
        }
    }
    assert!(went_on > by_depth(7, 20), "{went_on}");
}

/// The older one is held up at any step of its start, and continues when the newer one has shipped and ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shipper_that_was_held_up_while_another_took_over_removes_and_overwrites_nothing_of_it() {
    let mut fenced = 0;
    for step in 1.. {
        let what = format!("held up at request {step}");
        let mut source = Source::new(11).await;
        let store = Arc::new(InMemory::new());
        let ship = Ship::start(&source.db, store.clone(), shipped_often()).await.unwrap();
        source.commit().await;
        ship.durable().await.unwrap();
        // It leaves an object that no manifest names, and a commit to be shipped.
        drop(ship);
        source.commit().await;
        let left = Path::from(format!("shop/log/{:020}-{:016x}-9", 7, 7));
        let like = Path::from(&*names(&store, "log").await[0]);
        store.copy(&like, &left).await.unwrap();
        let faulty = FaultyStore::new(store.clone(), Faults::PauseAt(step));
        let (db, of_older) = (source.db.clone(), faulty.clone());
        let older = tokio::spawn(async move {
            let ship = Ship::start(&db, of_older, shipped_often()).await?;
            ship.durable().await?;
            ship.close().await
        });
        let is_over = tokio::select! {
            () = faulty.stopped() => false,
            () = async { while !older.is_finished() { tokio::time::sleep(Duration::from_millis(1)).await } } => true,
        };
        let newer = Ship::start(&source.db, store.clone(), shipped_often()).await.unwrap();
        for _ in 0..6 {
            source.commit().await;
            newer.durable().await.unwrap();
        }
        let promised = newer.durable().await.unwrap();
        newer.close().await.unwrap();
        faulty.resume();
        match older.await.unwrap() {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Fenced, "{what}: {error}");
                fenced += 1;
            }
        }
        assert!(check_restore(&source, &store, Point::Latest, &what).await >= promised, "{what}");
        let found = verify(store.clone(), "shop").await.unwrap();
        assert!(found.is_clean(), "{what}: {found:?}");
        assert!(store.get(&left).await.is_err(), "{what}: what was left is still there");
        if is_over {
            break;
        }
    }
    assert!(fenced > 2, "{fenced}");
}

/// While the older one ships without a pause, the newer one must win within a few attempts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_shipper_is_fenced_all_the_same() {
    let mut source = Source::new(12).await;
    let store = Arc::new(InMemory::new());
    let busy = Ship::start(&source.db, store.clone(), shipped_often()).await.unwrap();
    let table = source.db.create_table("busy").await.unwrap();
    let committing = tokio::spawn(async move {
        loop {
            table.put("key", "value").await.unwrap();
            if let Err(error) = busy.durable().await {
                return (error, busy.failure());
            }
        }
    });
    tokio::time::sleep(Duration::from_millis(20)).await;
    let newer = Ship::start(&source.db, store.clone(), options()).await.unwrap();
    let (error, failure) = committing.await.unwrap();
    assert_eq!((error.kind(), failure.unwrap().kind()), (ErrorKind::Fenced, ErrorKind::Fenced));
    source.commit().await;
    newer.close().await.unwrap();
    assert!(verify(store.clone(), "shop").await.unwrap().is_clean());
    assert!(check_restore(&source, &store, Point::Latest, "the newer").await >= source.newest());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_power_cut_of_the_source_its_store_has_a_prefix_and_is_shipped_on() {
    let mut cuts = 0;
    for seed in 0..12 {
        let what = format!("seed {seed}");
        let mut source = Source::in_world(SimWorld::new(seed, SimOptions::default()), seed);
        let store = Arc::new(InMemory::new());
        let mut promised = CommitSeq(0);
        for round in 0..3 {
            let what = format!("{what}, round {round}");
            let ship = Ship::start(&source.db, store.clone(), options()).await.unwrap();
            source.world.cut_after(source.world.events() + fastrand::Rng::with_seed(seed * 3 + round).u64(20..300));
            for number in 0..60 {
                if source.try_commit().await.is_err() {
                    cuts += 1;
                    break;
                }
                if number % 5 == 4
                    && let Ok(commit) = ship.durable().await
                {
                    promised = commit;
                }
            }
            drop(ship);
            let db = empty();
            match restore_into(store.clone(), "shop", Point::Latest, &db).await {
                Ok(restored) => {
                    assert!(restored.commit >= promised, "{what}: {restored:?} and {promised} was promised");
                    source.restart(seed + round).await;
                    assert!(source.newest() >= restored.commit, "{what}: {restored:?} was not durable");
                    source.check(&db, restored.commit, &what).await;
                }
                Err(error) => {
                    assert_eq!((error.kind(), promised.0), (ErrorKind::NotFound, 0), "{what}: {error}");
                    source.restart(seed + round).await;
                }
            }
        }
        let ship = Ship::start(&source.db, store.clone(), options()).await.unwrap();
        ship.close().await.unwrap();
        assert!(check_restore(&source, &store, Point::Latest, &what).await >= source.newest());
        assert!(verify(store.clone(), "shop").await.unwrap().is_clean(), "{what}");
    }
    assert!(cuts > 12, "{cuts}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_below_another_is_left_alone() {
    let source = Source::new(13).await;
    let store = Arc::new(InMemory::new());
    for _ in 0..2 {
        for name in ["shop", "shop/eu", "shop/log", "shop 2"] {
            let ship = Ship::start(&source.db, store.clone(), ShipOptions { name: name.into(), ..options() }).await;
            ship.unwrap().close().await.unwrap();
        }
    }
    for name in ["shop", "shop/eu", "shop/log", "shop 2"] {
        assert!(verify(store.clone(), name).await.unwrap().is_clean(), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_piece_that_is_gone_is_found_when_it_is_put_together_with_others_and_the_whole_follows() {
    let mut source = Source::new(14).await;
    let store = Arc::new(InMemory::new());
    let ship = Ship::start(&source.db, store.clone(), options()).await.unwrap();
    let first = ship.durable().await.unwrap();
    for round in 0..20 {
        source.commit().await;
        ship.durable().await.unwrap();
        if round == 5 {
            let names = names(&store, "log").await;
            store.delete(&Path::from(names[2].as_str())).await.unwrap();
        }
    }
    let promised = ship.durable().await.unwrap();
    ship.close().await.unwrap();
    assert!(check_restore(&source, &store, Point::Latest, "after the damage").await >= promised);
    assert!(check_restore(&source, &store, Point::Commit(first), "before the damage").await >= first);
    assert!(!verify(store.clone(), "shop").await.unwrap().is_clean());
    assert_eq!(history(store, "shop").await.unwrap().len(), 2);
}

#[test]
fn when_the_runtime_of_a_shipper_ends_its_callers_learn_of_it() {
    let new = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (one, other) = (new(), new());
    let source = one.block_on(Source::new(15));
    let faulty = FaultyStore::new(Arc::new(InMemory::new()), Faults::None);
    let ship = one.block_on(Ship::start(&source.db, faulty.clone(), options())).unwrap();
    faulty.set(Faults::Before(u32::MAX));
    other.block_on(async {
        let waiting = async {
            source.db.create_table("t").await.unwrap();
            ship.durable().await.unwrap_err()
        };
        let ending = async {
            while ship.stats().requests_failed == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            one.shutdown_background();
        };
        let (error, ()) = tokio::join!(waiting, ending);
        assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    });
    assert!(ship.failure().is_some() && ship.stats().requests_failed > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_shippers_the_older_is_fenced_and_the_store_has_the_history_of_the_newer() {
    let mut source = Source::new(4).await;
    let store = Arc::new(InMemory::new());
    let old = Ship::start(&source.db, store.clone(), options()).await.unwrap();
    for _ in 0..10 {
        source.commit().await;
    }
    let promised = old.durable().await.unwrap();
    // The machine cannot be reached, and its database is restored elsewhere; but it is alive.
    let db = empty();
    assert!(restore_into(store.clone(), "shop", Point::Latest, &db).await.unwrap().commit >= promised);
    let new = Ship::start(&db, store.clone(), ShipOptions { take_over: true, ..options() }).await.unwrap();
    let elsewhere = db.create_table("elsewhere").await.unwrap();
    elsewhere.put("key", "value").await.unwrap();
    source.commit().await;
    let error = old.durable().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
    new.durable().await.unwrap();
    source.commit().await;
    assert_eq!(old.close().await.unwrap_err().kind(), ErrorKind::Fenced);
    elsewhere.put("key", "newer").await.unwrap();
    new.close().await.unwrap();
    let again = empty();
    restore_into(store.clone(), "shop", Point::Latest, &again).await.unwrap();
    assert!(content(&again).await == content(&db).await);
    assert!(verify(store, "shop").await.unwrap().is_clean());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_bulk_load_a_base_follows_and_what_is_durable_has_it() {
    let mut source = Source::new(5).await;
    let store = Arc::new(InMemory::new());
    let ship = Ship::start(&source.db, store.clone(), options()).await.unwrap();
    source.commit().await;
    ship.durable().await.unwrap();
    let loaded = source.db.create_table("loaded").await.unwrap();
    source.note().await;
    loaded.bulk_load((0..3000_u32).map(|key| (key.to_be_bytes(), "value"))).await.unwrap();
    source.note().await;
    let promised = ship.durable().await.unwrap();
    assert!(promised >= source.newest());
    assert!(check_restore(&source, &store, Point::Latest, "after the load").await >= promised);
    source.commit().await;
    ship.close().await.unwrap();
    let found = verify(store.clone(), "shop").await.unwrap();
    assert!(found.is_clean() && found.bases == 2, "{found:?}");
    check_restore(&source, &store, Point::Latest, "the end").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_store_cannot_be_reached_commits_go_on_and_beyond_the_bound_a_base_follows() {
    let mut source = Source::new(6).await;
    let store = Arc::new(InMemory::new());
    let faulty = FaultyStore::new(store.clone(), Faults::None);
    let options = ShipOptions { tail_bytes_max: 2 << 20, ..options() };
    let ship = Ship::start(&source.db, faulty.clone(), options).await.unwrap();
    source.commit().await;
    let promised = ship.durable().await.unwrap();
    for (mebibytes, bases) in [(1, 1), (4, 2)] {
        faulty.set(Faults::Before(u32::MAX));
        let table = source.db.open_or_create_table("filler").await.unwrap();
        let before = source.db.stats().log.bytes_written;
        while source.db.stats().log.bytes_written < before + (mebibytes << 20) {
            table.put("key", vec![7; 5000]).await.unwrap();
        }
        source.note().await;
        assert!(check_restore(&source, &store, Point::Latest, "unreachable").await >= promised);
        faulty.set(Faults::None);
        assert!(ship.durable().await.unwrap() >= source.newest());
        let found = verify(store.clone(), "shop").await.unwrap();
        assert!(found.is_clean() && found.bases == bases, "{found:?}");
        assert!(check_restore(&source, &store, Point::Latest, "reachable again").await >= source.newest());
    }
    ship.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_was_closed_and_opened_is_shipped_on() {
    let mut source = Source::new(7).await;
    let store = Arc::new(InMemory::new());
    for _ in 0..5 {
        let ship = Ship::start(&source.db, store.clone(), options()).await.unwrap();
        for _ in 0..10 {
            source.commit().await;
        }
        ship.close().await.unwrap();
        let db = std::mem::replace(&mut source.db, empty());
        db.close().await.unwrap();
        source.db = Db::open_in(&source.world.directory(), &Settings::small(4, 1)).unwrap();
    }
    let ship = Ship::start(&source.db, store.clone(), options()).await.unwrap();
    ship.close().await.unwrap();
    let found = verify(store.clone(), "shop").await.unwrap();
    // Where the log went on in another segment right before it was closed, a base is needed.
    assert!(found.is_clean() && found.bases < 4, "{found:?}");
    assert!(check_restore(&source, &store, Point::Latest, "the end").await >= source.newest());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pieces_of_the_log_are_put_together_and_what_is_too_old_is_removed() {
    let mut source = Source::new(8).await;
    let store = Arc::new(InMemory::new());
    let (mut middle, small) = (CommitSeq(0), ShipOptions { object_bytes: 1, base_share: 1, ..options() });
    let ship =
        Ship::start(&source.db, store.clone(), ShipOptions { grace: Duration::ZERO, ..small.clone() }).await.unwrap();
    for round in 0..70 {
        source.commit().await;
        ship.durable().await.unwrap();
        middle = if round < 35 { source.newest() } else { middle };
    }
    ship.close().await.unwrap();
    assert!(names(&store, "log").await.len() < 40 && verify(store.clone(), "shop").await.unwrap().is_clean());
    assert_eq!(check_restore(&source, &store, Point::Commit(middle), "put together").await, middle);
    // Everything before the newest base is too old.
    let short = ShipOptions { keep: Duration::ZERO, grace: Duration::ZERO, ..small };
    let ship = Ship::start(&source.db, store.clone(), short).await.unwrap();
    for _ in 0..80 {
        source.commit().await;
        ship.durable().await.unwrap();
    }
    ship.close().await.unwrap();
    let found = verify(store.clone(), "shop").await.unwrap();
    assert!(found.is_clean() && found.bases <= 2 && found.commits < 140, "{found:?}");
    assert!(check_restore(&source, &store, Point::Latest, "the end").await >= source.newest());
    let error = restore_into(store.clone(), "shop", Point::Commit(CommitSeq(20)), &empty()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_in_the_store_is_found_and_never_restored() {
    let mut source = Source::new(10).await;
    let store = Arc::new(InMemory::new());
    let ship = Ship::start(&source.db, store.clone(), options()).await.unwrap();
    for _ in 0..10 {
        source.commit().await;
        ship.durable().await.unwrap();
    }
    ship.close().await.unwrap();
    let all: Vec<Content> = source.states.values().map(|(content, _)| content.clone()).collect();
    for name in names(&store, "").await.into_iter().filter(|name| !name.ends_with("probe")) {
        let path = Path::from(name.as_str());
        let whole = store.get(&path).await.unwrap().bytes().await.unwrap().to_vec();
        // A copy of the manifest is not needed while there is one. One that is gone may have been too old.
        let is_copy = name.contains("manifest-");
        let mut changed = whole.clone();
        let middle = changed.len() / 2;
        changed[middle] ^= 4;
        for damaged in [Some(changed), Some(whole[..whole.len() / 2].to_vec()), None] {
            if is_copy && damaged.is_none() {
                continue;
            }
            match damaged {
                Some(bytes) => drop(store.put(&path, bytes.into()).await.unwrap()),
                None => store.delete(&path).await.unwrap(),
            }
            let found = verify(store.clone(), "shop").await;
            assert!(
                found.is_err() || found.is_ok_and(|it| !it.is_clean() || is_copy && !it.remarks.is_empty()),
                "{name}"
            );
            let db = empty();
            match restore_into(store.clone(), "shop", Point::Latest, &db).await {
                Ok(_) if is_copy => {}
                // Also an object that is gone is damage, and no wrong call.
                Err(error) if !is_copy && error.kind() == ErrorKind::Corrupt => {}
                other => panic!("{name} is damaged, and {} states are known: {other:?}", all.len()),
            }
        }
        store.put(&path, whole.into()).await.unwrap();
    }
    assert!(verify(store.clone(), "shop").await.unwrap().is_clean());
    check_restore(&source, &store, Point::Latest, "repaired").await;
}
