//! Increments: after any changes between two of them a restore from a whole base, the increments on it and the log gives the state after
//! a commit; and after any failure, one that is not before the promised one.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use nofault::settings::{Compression, Settings};
use nofault::{CommitSeq, Db};
use nofault_ship::{
    ErrorKind, Point, Replica, ReplicaOptions, Ship, ShipOptions, Verification, history, restore_into, verify,
};
use nofault_sim::content::Content;
use nofault_sim::depth::{by_depth, sample};
use nofault_sim::{SimOptions, SimWorld};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt as _};

use crate::common::{Faults, FaultyStore, Source, content, empty, options};

/// Rows of the table of which a base of the whole mostly consists.
const ROWS: u32 = 400;

/// Restores a point and checks it. Returns the commit.
async fn check_restore(source: &Source, store: &Arc<InMemory>, point: Point, what: &str) -> CommitSeq {
    let db = empty();
    let restored =
        restore_into(store.clone(), "shop", point, &db).await.unwrap_or_else(|error| panic!("{what}: {error}"));
    source.check(&db, restored.commit, what).await;
    restored.commit
}

async fn names(store: &InMemory) -> Vec<Path> {
    store.list(None).map(|found| found.unwrap().location).collect().await
}

/// Options with which each object has a commit or two, and an increment follows a few of them.
fn often() -> ShipOptions {
    ShipOptions { object_bytes: 300, increment_percent: 1, grace: Duration::ZERO, ..options() }
}

/// The same for a test that restores while it ships: nothing is removed with which a restore has begun.
fn often_beside_restores() -> ShipOptions {
    ShipOptions { grace: Duration::from_secs(3600), ..often() }
}

/// A database with a table next to the table of [`Source::commit`], large in comparison with the commits.
async fn in_world(world: SimWorld, seed: u64) -> Source {
    let mut source = Source::in_world(world, seed);
    fill(&source.db, seed).await;
    source.note().await;
    source
}

async fn source(seed: u64) -> Source {
    in_world(SimWorld::new(seed, SimOptions::calm()), seed).await
}

/// Bytes that compression makes no smaller.
fn noise(rng: &mut fastrand::Rng, length: usize) -> Vec<u8> {
    (0..length).map(|_| rng.u8(..)).collect()
}

async fn fill(db: &Db, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let rows: Vec<_> = (0..ROWS).map(|row| (row.to_be_bytes(), noise(&mut rng, 200))).collect();
    db.create_table("large").await.unwrap().bulk_load(rows).await.unwrap();
}

/// Makes a commit of any kind, or one that changes the large table.
async fn commit(source: &mut Source, rng: &mut fastrand::Rng) {
    if rng.bool() {
        return source.commit().await;
    }
    let large = source.db.table("large").await.unwrap();
    // Side by side, so that an increment is small in comparison with the whole; now and then elsewhere.
    let row = if rng.u8(..20) == 0 { rng.u32(..ROWS) } else { rng.u32(100..106) };
    match rng.u8(..10) {
        0 => drop(large.delete_range(row.to_be_bytes()..(row + 3).to_be_bytes()).await.unwrap()),
        1 => large.delete(row.to_be_bytes()).await.unwrap(),
        // As long as before, or not.
        kind => large.put(row.to_be_bytes(), noise(rng, if kind < 7 { 200 } else { 300 })).await.unwrap(),
    }
    source.note().await;
}

async fn verified(store: &Arc<InMemory>, what: &str) -> Verification {
    let found = verify(store.clone(), "shop").await.unwrap();
    assert!(found.is_clean(), "{what}: {found:?}");
    found
}

/// Ships commits one by one until so many increments were written.
async fn ship_increments(source: &mut Source, ship: &Ship, rng: &mut fastrand::Rng, increments: u64) {
    let before = ship.stats().increments;
    for _ in 0..400 {
        commit(source, rng).await;
        ship.durable().await.unwrap();
        if ship.stats().increments >= before + increments {
            return;
        }
    }
    panic!("no increments: {:?}", ship.stats());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_commit_can_be_restored_also_those_before_between_and_after_increments() {
    for seed in 50..53 {
        let (mut source, mut rng) = (source(seed).await, fastrand::Rng::with_seed(seed));
        let store = Arc::new(InMemory::new());
        let ship = Ship::start(&source.db, store.clone(), often()).await.unwrap();
        let first = ship.durable().await.unwrap();
        ship_increments(&mut source, &ship, &mut rng, 4).await;
        let stats = ship.stats();
        ship.close().await.unwrap();
        let what = format!("seed {seed}");
        let found = verified(&store, &what).await;
        assert!(found.bases == 1 && found.increments >= 4, "{what}: {found:?}");
        assert!(stats.bytes_put > 0 && stats.bases == 1 && stats.increments == found.increments, "{what}: {stats:?}");
        let spans = history(store.clone(), "shop").await.unwrap();
        assert_eq!((spans.len(), spans[0].bases, spans[0].increments), (1, 1, found.increments), "{what}");
        assert_eq!(spans[0].first, first, "{what}");
        let states: Vec<_> = source.states.range(first.0..).map(|(commit, (_, time))| (*commit, *time)).collect();
        for (commit, time) in states.into_iter().step_by(4) {
            let commit = CommitSeq(commit);
            let restored = check_restore(&source, &store, Point::Commit(commit), &what).await;
            assert!(source.had(restored, &source.states[&commit.0].0) && restored <= commit, "{what}: {restored}");
            check_restore(&source, &store, Point::Time(time), &what).await;
        }
        assert!(check_restore(&source, &store, Point::Latest, &what).await >= source.newest());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_increment_is_small_where_little_was_changed() {
    let (source, store, mut rng) = (source(54).await, Arc::new(InMemory::new()), fastrand::Rng::new());
    let ship = Ship::start(&source.db, store.clone(), often()).await.unwrap();
    ship.durable().await.unwrap();
    let whole = ship.stats().bytes_put;
    let large = source.db.table("large").await.unwrap();
    for round in 0..100_u32 {
        large.put((round % 5).to_be_bytes(), noise(&mut rng, 200)).await.unwrap();
        ship.durable().await.unwrap();
    }
    ship.close().await.unwrap();
    let prefix = Path::from("shop/base");
    let parts: Vec<_> = store.list(Some(&prefix)).map(|found| found.unwrap().size).collect().await;
    let found = verified(&store, "small").await;
    assert!(found.bases == 1 && found.increments >= 2 && parts.len() as u64 == found.increments + 1, "{found:?}");
    assert!(parts.iter().filter(|size| **size > whole / 8).count() == 1, "{parts:?} of {whole}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_are_dropped_created_renamed_and_swapped_between_increments() {
    let (mut source, mut rng) = (source(55).await, fastrand::Rng::with_seed(55));
    let (db, store) = (source.db.clone(), Arc::new(InMemory::new()));
    for name in ["a", "b", "c", "d", "same name"] {
        let table = db.create_table(name).await.unwrap();
        table.put("key", name).await.unwrap();
    }
    let ship = Ship::start(&db, store.clone(), often_beside_restores()).await.unwrap();
    ship.durable().await.unwrap();
    for round in 0..3 {
        // A ring of names.
        for (from, to) in [("a", "nofault-renaming-1"), ("b", "a"), ("c", "b"), ("nofault-renaming-1", "c")] {
            db.rename_table(from, to).await.unwrap();
        }
        db.drop_table("same name").await.unwrap();
        db.create_table("same name").await.unwrap().put("round", vec![round]).await.unwrap();
        db.set_compression("d", [Compression::Fast, Compression::None][usize::from(round) % 2]).await.unwrap();
        let typed = format!("typed {round}");
        db.create_typed_table::<u32, u64>(&typed).await.unwrap().put(&7, &u64::from(round)).await.unwrap();
        source.note().await;
        ship_increments(&mut source, &ship, &mut rng, 1).await;
        let restored = empty();
        restore_into(store.clone(), "shop", Point::Latest, &restored).await.unwrap();
        assert!(content(&restored).await == content(&db).await, "round {round}");
        assert_eq!(restored.table_types(&typed).await.unwrap(), db.table_types(&typed).await.unwrap());
        assert_eq!(restored.compression("d").await.unwrap(), db.compression("d").await.unwrap(), "round {round}");
    }
    ship.close().await.unwrap();
    assert!(verified(&store, "names").await.increments >= 3);
}

/// Commits and ships until the store hangs or the story is over. Returns the commit promised last.
async fn story(source: &mut Source, faulty: &Arc<FaultyStore>) -> CommitSeq {
    let (mut promised, mut rng) = (CommitSeq(0), fastrand::Rng::with_seed(5));
    let stopped = faulty.stopped();
    tokio::pin!(stopped);
    let ship = tokio::select! {
        ship = Ship::start(&source.db, faulty.clone(), often()) => ship.unwrap(),
        () = &mut stopped => return promised,
    };
    for _ in 0..45 {
        commit(source, &mut rng).await;
        tokio::select! {
            commit = ship.durable() => promised = commit.unwrap(),
            () = &mut stopped => return promised,
        }
    }
    promised
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shipper_that_is_stopped_at_any_step_leaves_all_that_it_promised_and_the_next_one_goes_on() {
    let (store, mut whole) = (Arc::new(InMemory::new()), source(56).await);
    let faulty = FaultyStore::new(store.clone(), Faults::None);
    story(&mut whole, &faulty).await;
    let (requests, increments) = (faulty.requests(), verified(&store, "whole").await.increments);
    assert!(requests > 60 && increments > 1, "{requests} requests, {increments} increments");
    let mut with_increments = 0;
    // Each step of the beginning, and then some.
    for stop in sample((8..=requests).filter(|stop| *stop < 20 || stop % 3 == 0), 4) {
        let what = format!("stopped at request {stop}");
        let store = Arc::new(InMemory::new());
        let faulty = FaultyStore::new(store.clone(), Faults::HangFrom(stop, stop / 3 % 2 == 0));
        let mut source = source(56).await;
        let promised = story(&mut source, &faulty).await;
        if promised > CommitSeq(0) {
            assert!(check_restore(&source, &store, Point::Latest, &what).await >= promised, "{what}");
        }
        let ship = Ship::start(&source.db, store.clone(), often()).await.unwrap();
        source.commit().await;
        let promised = ship.durable().await.unwrap();
        ship.close().await.unwrap();
        assert!(check_restore(&source, &store, Point::Latest, &what).await >= promised, "{what}");
        let found = verified(&store, &what).await;
        with_increments += u64::from(found.increments > 0);
        // Parts of an increment that the first one did not name are gone. Others have names of another kind: the manifest, its copies and the
        // probe.
        let all = names(&store).await;
        let copies = all.iter().filter(|name| name.as_ref().contains("manifest-")).count() as u64;
        let all = all.len() as u64;
        assert!(all <= found.objects + found.unneeded_objects + copies + 2, "{what}: {all} objects, {found:?}");
    }
    assert!(with_increments > by_depth(2, 10), "{with_increments}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_fail_lose_nothing_of_an_increment() {
    let all = [Faults::Before(1), Faults::After(1), Faults::Conflict(1), Faults::LateAfter(1)];
    for (seed, faults) in all.into_iter().enumerate() {
        let (what, seed) = (format!("{faults:?}"), seed as u64);
        // A request that is late without a fault, on a busy machine, is made again as well.
        let options = match faults {
            Faults::LateAfter(_) => {
                ShipOptions { request_timeout: Duration::from_millis(20), attempts_at_start: 1000, ..often() }
            }
            _ => often(),
        };
        let (mut source, mut rng) = (source(seed).await, fastrand::Rng::with_seed(seed));
        let store = Arc::new(InMemory::new());
        let ship = Ship::start(&source.db, FaultyStore::new(store.clone(), faults), options).await.unwrap();
        ship.durable().await.unwrap();
        ship_increments(&mut source, &ship, &mut rng, 2).await;
        ship.close().await.unwrap();
        assert!(verified(&store, &what).await.increments >= 2, "{what}");
        assert!(check_restore(&source, &store, Point::Latest, &what).await >= source.newest(), "{what}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_power_cuts_of_the_source_increments_have_what_was_replayed() {
    let mut increments = 0;
    for seed in 60..66 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut source = in_world(SimWorld::new(seed, SimOptions::default()), seed).await;
        let store = Arc::new(InMemory::new());
        for round in 0..4 {
            let what = format!("seed {seed}, round {round}");
            let ship = Ship::start(&source.db, store.clone(), often()).await.unwrap();
            for _ in 0..rng.u32(5..40) {
                commit(&mut source, &mut rng).await;
                ship.durable().await.unwrap();
                if rng.u8(..20) == 0 {
                    source.db.checkpoint().await.unwrap();
                }
            }
            source.commit().await;
            drop(ship);
            source.restart(seed * 10 + round).await;
            check_restore(&source, &store, Point::Latest, &what).await;
        }
        let ship = Ship::start(&source.db, store.clone(), often()).await.unwrap();
        ship_increments(&mut source, &ship, &mut rng, 1).await;
        ship.close().await.unwrap();
        let what = format!("seed {seed}");
        assert!(check_restore(&source, &store, Point::Latest, &what).await >= source.newest(), "{what}");
        increments += verified(&store, &what).await.increments;
    }
    assert!(increments > 12, "{increments}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_base_that_is_ahead_of_the_log_counts_for_no_folder_that_was_set_back_to_before_it() {
    for stop in (20..100).step_by(4) {
        let (what, store) = (format!("stopped at request {stop}"), Arc::new(InMemory::new()));
        let faulty = FaultyStore::new(store.clone(), Faults::HangFrom(stop, true));
        let (mut source, mut rng) = (source(58).await, fastrand::Rng::with_seed(stop));
        let stopped = faulty.stopped();
        tokio::pin!(stopped);
        let ship = Ship::start(&source.db, faulty.clone(), often()).await.unwrap();
        let (large, mut kept) = (source.db.table("large").await.unwrap(), VecDeque::new());
        // Commits are made without a pause, so that a base has some that the log has only later.
        loop {
            for _ in 0..3 {
                large.put(rng.u32(100..106).to_be_bytes(), noise(&mut rng, 200)).await.unwrap();
            }
            kept.push_back(["data", "log"].map(|name| (name, source.world.snapshot_file(name).unwrap())));
            if kept.len() > 6 {
                kept.pop_front();
            }
            tokio::select! {
                biased;
                () = &mut stopped => break,
                () = tokio::task::yield_now() => {}
            }
        }
        drop(large);
        drop(ship);
        source.db = empty();
        let stopped_world = source.world.restart(stop);
        for (copy, files) in kept.iter().enumerate() {
            let (what, store) = (format!("{what}, copy {copy}"), Arc::new(store.fork()));
            source.world = stopped_world.restart(stop);
            for (name, file) in files {
                source.world.restore_file(name, file).unwrap();
            }
            source.restart(stop).await;
            let ship = Ship::start(&source.db, store.clone(), often()).await.unwrap();
            for _ in 0..4 {
                commit(&mut source, &mut rng).await;
            }
            ship.durable().await.unwrap();
            ship.close().await.unwrap();
            let restored = empty();
            restore_into(store.clone(), "shop", Point::Latest, &restored).await.unwrap();
            assert!(content(&restored).await == content(&source.db).await, "{what}");
            verified(&store, &what).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_store_cannot_be_reached_for_an_increment_commits_go_on_and_follow_it() {
    let (mut source, mut rng) = (source(66).await, fastrand::Rng::with_seed(66));
    let store = Arc::new(InMemory::new());
    let faulty = FaultyStore::new(store.clone(), Faults::None);
    let ship = Ship::start(&source.db, faulty.clone(), often_beside_restores()).await.unwrap();
    ship.durable().await.unwrap();
    for round in 0..6 {
        let what = format!("round {round}");
        ship_increments(&mut source, &ship, &mut rng, 1).await;
        faulty.set(Faults::Before(u32::MAX));
        // More log than an increment waits for.
        for _ in 0..60 {
            commit(&mut source, &mut rng).await;
        }
        check_restore(&source, &store, Point::Latest, &what).await;
        faulty.set(Faults::None);
        let promised = ship.durable().await.unwrap();
        assert!(promised >= source.newest(), "{what}");
        assert!(check_restore(&source, &store, Point::Latest, &what).await >= promised, "{what}");
    }
    ship.close().await.unwrap();
    verified(&store, "the end").await;
}

/// A restore has read the manifest, and then all that it names is forgotten but for the bases of newer increments.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restore_that_has_begun_finds_its_increments_while_they_are_forgotten() {
    let (mut source, mut rng) = (source(67).await, fastrand::Rng::with_seed(67));
    let store = Arc::new(InMemory::new());
    let short = ShipOptions { keep: Duration::ZERO, base_share: 1, ..often_beside_restores() };
    let ship = Ship::start(&source.db, store.clone(), short.clone()).await.unwrap();
    ship.durable().await.unwrap();
    ship_increments(&mut source, &ship, &mut rng, 3).await;
    let promised = ship.durable().await.unwrap();
    // The first request is for the manifest.
    let (faulty, db) = (FaultyStore::new(store.clone(), Faults::PauseAt(2)), empty());
    let restoring = restore_into(faulty.clone(), "shop", Point::Latest, &db);
    let shipping = async {
        faulty.stopped().await;
        ship.close().await.unwrap();
        // The next look at objects too old comes with the next shipper.
        let ship =
            Ship::start(&source.db, store.clone(), ShipOptions { begin_with_base: true, ..short }).await.unwrap();
        for _ in 0..5 {
            commit(&mut source, &mut rng).await;
            ship.durable().await.unwrap();
        }
        ship.close().await.unwrap();
        let found = verified(&store, "forgotten").await;
        assert!(found.bases == 1 && found.unneeded_objects > 5, "{found:?}");
        faulty.resume();
    };
    let (restored, ()) = tokio::join!(restoring, shipping);
    let restored = restored.unwrap();
    assert!(restored.commit >= promised);
    source.check(&db, restored.commit, "as the manifest was when it was read").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_smaller_than_an_object_gets_no_increments() {
    let (mut source, store) = (Source::new(68).await, Arc::new(InMemory::new()));
    source.commit().await;
    let ship = Ship::start(&source.db, store.clone(), ShipOptions { object_bytes: 2500, ..often() }).await.unwrap();
    for _ in 0..1000 {
        source.commit().await;
        ship.durable().await.unwrap();
        if ship.stats().bases > 1 {
            break;
        }
    }
    let stats = ship.stats();
    ship.close().await.unwrap();
    assert!(stats.increments == 0 && stats.bases > 1, "{stats:?}");
    assert!(check_restore(&source, &store, Point::Latest, "small").await >= source.newest());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_in_an_increment_is_found_and_never_restored() {
    let (mut source, mut rng) = (source(57).await, fastrand::Rng::with_seed(57));
    let store = Arc::new(InMemory::new());
    let ship = Ship::start(&source.db, store.clone(), often()).await.unwrap();
    let first = ship.durable().await.unwrap();
    let of_whole = names(&store).await;
    ship_increments(&mut source, &ship, &mut rng, 2).await;
    ship.close().await.unwrap();
    let is_of_an_increment = |name: &&Path| name.as_ref().contains("/base/") && !of_whole.contains(name);
    let parts: Vec<_> = names(&store).await.iter().filter(is_of_an_increment).cloned().collect();
    assert!(parts.len() >= 2, "{parts:?}");
    for path in &parts {
        let whole = store.get(path).await.unwrap().bytes().await.unwrap().to_vec();
        let mut changed = whole.clone();
        let middle = changed.len() / 2;
        changed[middle] ^= 4;
        for damaged in [Some(changed), Some(whole[..whole.len() / 2].to_vec()), None] {
            match damaged {
                Some(bytes) => drop(store.put(path, bytes.into()).await.unwrap()),
                None => store.delete(path).await.unwrap(),
            }
            assert!(!verify(store.clone(), "shop").await.unwrap().is_clean(), "{path}");
            let error = restore_into(store.clone(), "shop", Point::Latest, &empty()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{path}: {error}");
            // Points before it do not need it.
            assert_eq!(check_restore(&source, &store, Point::Commit(first), "before").await, first);
        }
        store.put(path, whole.into()).await.unwrap();
    }
    verified(&store, "repaired").await;
    // The caller begins with a new base, and points from then on need no damaged object.
    store.delete(&parts[0]).await.unwrap();
    let ship = Ship::start(&source.db, store.clone(), ShipOptions { begin_with_base: true, ..often() }).await.unwrap();
    let promised = ship.durable().await.unwrap();
    ship.close().await.unwrap();
    assert!(check_restore(&source, &store, Point::Latest, "begun anew").await >= promised);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_kept_increment_stands_on_is_kept_and_the_log_before_it_is_not() {
    let (mut source, mut rng) = (source(58).await, fastrand::Rng::with_seed(58));
    let store = Arc::new(InMemory::new());
    let short = ShipOptions { keep: Duration::ZERO, ..often() };
    let ship = Ship::start(&source.db, store.clone(), short).await.unwrap();
    let first = ship.durable().await.unwrap();
    ship_increments(&mut source, &ship, &mut rng, 3).await;
    let between = source.newest();
    ship_increments(&mut source, &ship, &mut rng, 2).await;
    // The next look at objects too old follows a commit.
    commit(&mut source, &mut rng).await;
    ship.durable().await.unwrap();
    ship.close().await.unwrap();
    let found = verified(&store, "kept").await;
    assert!(found.bases == 1 && found.increments >= 5 && found.commits < 40, "{found:?}");
    assert!(check_restore(&source, &store, Point::Latest, "kept").await >= source.newest());
    let spans = history(store.clone(), "shop").await.unwrap();
    assert!(spans.len() == 1 && spans[0].first > between, "{spans:?}");
    check_restore(&source, &store, Point::Commit(spans[0].first), "the first that is kept").await;
    // The older ones are there, and no points any more: the log behind them is gone.
    for point in [first, between] {
        let error = restore_into(store.clone(), "shop", Point::Commit(point), &empty()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{point}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_increments_as_large_as_the_whole_the_whole_follows_and_the_older_chain_is_forgotten() {
    let (mut source, mut rng) = (source(59).await, fastrand::Rng::with_seed(59));
    let store = Arc::new(InMemory::new());
    let short = ShipOptions { keep: Duration::ZERO, base_share: 1, ..often() };
    let ship = Ship::start(&source.db, store.clone(), short).await.unwrap();
    let first = ship.durable().await.unwrap();
    let large = source.db.table("large").await.unwrap();
    // All leaves, again and again.
    for round in 0..60_u32 {
        for row in (0..ROWS).step_by(7) {
            large.put((row + round % 7).to_be_bytes(), noise(&mut rng, 90)).await.unwrap();
        }
        ship.durable().await.unwrap();
        if ship.stats().bases > 1 {
            break;
        }
    }
    source.note().await;
    commit(&mut source, &mut rng).await;
    ship.durable().await.unwrap();
    let stats = ship.stats();
    assert!(stats.bases == 2 && stats.increments > 0, "{stats:?}");
    ship.close().await.unwrap();
    let found = verified(&store, "the whole").await;
    // An increment on a whole that is gone would be a problem, and of the first whole nothing is left. How many stand on the new one is a
    // matter of time.
    let spans = history(store.clone(), "shop").await.unwrap();
    assert!(found.bases == 1 && spans.len() == 1 && spans[0].first > first, "{found:?}, {spans:?}, {first}");
    assert!(check_restore(&source, &store, Point::Latest, "the whole").await >= source.newest());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_makes_its_copy_from_a_whole_base_and_the_increments_on_it() {
    let (mut source, mut rng) = (source(64).await, fastrand::Rng::with_seed(64));
    let (store, folder) = (Arc::new(InMemory::new()), tempfile::tempdir().unwrap());
    let ship = Ship::start(&source.db, store.clone(), ShipOptions { keep: Duration::ZERO, ..often() }).await.unwrap();
    ship.durable().await.unwrap();
    ship_increments(&mut source, &ship, &mut rng, 3).await;
    for _ in 0..3 {
        commit(&mut source, &mut rng).await;
        let promised = ship.durable().await.unwrap();
        let every = ReplicaOptions { every: Duration::from_millis(2), ..ReplicaOptions::new("shop") };
        let path = folder.path().join("replica");
        let replica = Replica::follow(store.clone(), every, &path, &Settings::small(4, 1)).await.unwrap();
        replica.wait_for(promised).await.unwrap();
        let state = replica.snapshot().await.unwrap();
        let mut found = Content::new();
        for name in state.snapshot.table_names().await.unwrap() {
            let table = state.snapshot.table(&name).await.unwrap();
            let mut range = state.snapshot.range::<&[u8]>(&table, ..).unwrap();
            let rows = found.entry(name).or_default();
            while let Some((key, value)) = range.next().await.unwrap() {
                rows.insert(key, value);
            }
        }
        found.remove("nofault-replica");
        assert!(source.had(state.commit, &found), "{:?}", state.commit);
        drop(state);
        replica.close().await.unwrap();
        std::fs::remove_dir_all(&path).unwrap();
    }
    ship.close().await.unwrap();
}
