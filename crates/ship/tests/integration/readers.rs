//! Readers of a store that is not as its last shipper left it: an object is gone, a manifest was set back, a copy is damaged, a shipper is at work.

use std::sync::Arc;
use std::time::Duration;

use nofault::CommitSeq;
use nofault::settings::Settings;
use nofault_ship::{ErrorKind, Point, Replica, Ship, ShipOptions, history, rebuild, restore_into, verify};
use object_store::ObjectStoreExt as _;
use object_store::memory::InMemory;
use object_store::path::Path;

use crate::common::{Faults, FaultyStore, Source, empty, options};
use crate::shipped::{bytes, latest, names, remove, ship_some};

/// Before, the object behind a commit was read to name the next one, and without it the commit could not be restored.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_before_a_missing_object_can_be_restored() {
    let (mut source, store) = (Source::new(8).await, Arc::new(InMemory::new()));
    let ship = Ship::start(&source.db, store.clone(), options()).await.unwrap();
    let mut commits = vec![ship.durable().await.unwrap()];
    for _ in 0..5 {
        source.commit().await;
        commits.push(ship.durable().await.unwrap());
    }
    source.note().await;
    ship.close().await.unwrap();
    let pieces = names(&*store, "log").await;
    for pair in commits.windows(2) {
        let behind = pieces.iter().find(|name| name.contains(&format!("{:020}", pair[1].0))).unwrap();
        let without = Arc::new(store.fork());
        remove(&without, std::slice::from_ref(behind)).await;
        let db = empty();
        let restored = restore_into(without.clone(), "shop", Point::Commit(pair[0]), &db).await.unwrap();
        source.check(&db, pair[0], behind).await;
        assert!(restored.commit <= pair[0] && restored.next.is_some_and(|(next, _)| next == pair[1]), "{restored:?}");
        restore_into(without.clone(), "shop", Point::Commit(pair[1]), &empty()).await.unwrap_err();
        // Whether it has commits of a time is not known: the answer is the last commit before it, and no older state.
        let error = restore_into(without, "shop", Point::Latest, &empty()).await.unwrap_err();
        assert!(error.to_string().contains(&format!("--commit {}", restored.commit)), "{error}");
    }
}

/// Before, each reader took the older one for the newest: `--check` ended with 0, and a restore said that no later commit was shipped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_notice_that_an_older_manifest_was_put_in_place() {
    // With all that a user may have put there: the manifest of then, or the newest of its copies of then.
    for (is_a_copy, are_copies_left) in [(false, true), (false, false), (true, true)] {
        let (mut source, store) = (Source::new(3).await, Arc::new(InMemory::new()));
        let before = ship_some(&mut source, &store, options(), 3).await;
        let old = match is_a_copy {
            false => bytes(&store, "shop/manifest").await,
            true => bytes(&store, names(&*store, "manifest-").await.last().unwrap()).await,
        };
        let home = tempfile::tempdir().unwrap();
        let shipped = ship_some(&mut source, &store, options(), 5).await;
        let newest = bytes(&store, "shop/manifest").await;
        let replica =
            Replica::follow(store.clone(), "shop", home.path().join("r"), &Settings::small(4, 1)).await.unwrap();
        replica.wait_for(shipped).await.unwrap();
        store.put(&Path::from("shop/manifest"), old.into()).await.unwrap();
        if !are_copies_left {
            remove(&store, &names(&*store, "manifest-").await).await;
        }
        let is_told = |told: &str| {
            let told_all = [&format!("leads to commit {shipped} of"), "set back", "--rebuild"];
            assert!(told_all.iter().all(|it| told.contains(*it)), "{told}");
        };
        let found = verify(store.clone(), "shop").await.unwrap();
        is_told(&found.problems.join("; "));
        let error = history(store.clone(), "shop").await.unwrap_err();
        is_told(&error.to_string());
        for point in [Point::Latest, Point::Time(source.db.now()), Point::Commit(shipped)] {
            let error = restore_into(store.clone(), "shop", point, &empty()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            is_told(&error.to_string());
        }
        // A commit to which it leads is the user's word.
        let db = empty();
        let restored = restore_into(store.clone(), "shop", Point::Commit(before), &db).await.unwrap();
        source.check(&db, restored.commit, "by the older one").await;
        is_told(&restored.warnings.join("; "));
        let error =
            Replica::follow(store.clone(), "shop", home.path().join("new"), &Settings::small(4, 1)).await.unwrap_err();
        is_told(&error.to_string());
        let error = loop {
            match replica.failure() {
                Some(error) => break error,
                None => tokio::task::yield_now().await,
            }
        };
        assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("set back"), "{error}");
        assert_eq!(replica.snapshot().await.unwrap().commit, shipped);
        // Also after it was started again and has not seen the newer one.
        replica.close().await.unwrap();
        let replica =
            Replica::follow(store.clone(), "shop", home.path().join("r"), &Settings::small(4, 1)).await.unwrap();
        while replica.failure().is_none() {
            tokio::task::yield_now().await;
        }
        store.put(&Path::from("shop/manifest"), newest.into()).await.unwrap();
        while !replica.lag().is_caught_up() {
            tokio::task::yield_now().await;
        }
        replica.close().await.unwrap();
        assert_eq!(latest(&source, &store).await, shipped);
        // Any of the copies, also the last one before the end of a shipper.
        ship_some(&mut source, &store, options(), 1).await;
        let newest = bytes(&store, "shop/manifest").await;
        for name in names(&*store, "manifest-").await {
            let copy = bytes(&store, &name).await;
            store.put(&Path::from("shop/manifest"), copy.clone().into()).await.unwrap();
            assert_eq!(verify(store.clone(), "shop").await.unwrap().is_clean(), copy == newest, "{name}");
        }
    }
}

/// A shipper that is killed leaves an object without a name. That is no damage, but may be more than the manifest tells.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_that_leads_on_and_has_no_name_is_told_and_rebuilding_names_it() {
    let (mut source, store) = (Source::new(5).await, Arc::new(InMemory::new()));
    ship_some(&mut source, &store, options(), 3).await;
    // Ships nothing by its time, so the commits after the manifest go into one object.
    let unhurried = ShipOptions { every: Duration::from_secs(3600), ..options() };
    let ship = Ship::start(&source.db, store.clone(), unhurried).await.unwrap();
    let named = ship.durable().await.unwrap();
    let manifest = bytes(&store, "shop/manifest").await;
    source.commit().await;
    let shipped = ship.durable().await.unwrap();
    source.note().await;
    drop(ship);
    store.put(&Path::from("shop/manifest"), manifest.into()).await.unwrap();
    let found = verify(store.clone(), "shop").await.unwrap();
    let remark = format!("leads to commit {shipped} of");
    assert!(found.is_clean() && found.remarks.join("; ").contains(&remark), "{found:?}");
    let restored = restore_into(store.clone(), "shop", Point::Latest, &empty()).await.unwrap();
    assert!(restored.commit == named && restored.warnings.join("; ").contains(&remark), "{restored:?}");
    rebuild(store.clone(), "shop").await.unwrap();
    assert_eq!(latest(&source, &store).await, shipped);
    let found = verify(store.clone(), "shop").await.unwrap();
    assert!(found.is_clean() && found.remarks.is_empty(), "{found:?}");
}

/// A reader is held up before any of its requests, while a shipper continues; and the other way round.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shipper_at_work_is_no_older_manifest() {
    let (mut source, store) = (Source::new(6).await, Arc::new(InMemory::new()));
    ship_some(&mut source, &store, options(), 2).await;
    let ship = Ship::start(&source.db, store.clone(), options()).await.unwrap();
    for pause in 1..=4 {
        let reader = FaultyStore::new(store.clone(), Faults::PauseAt(pause));
        let reading = tokio::spawn(restore_latest(reader.clone()));
        reader.stopped().await;
        for _ in 0..4 {
            source.commit().await;
            ship.durable().await.unwrap();
        }
        reader.resume();
        assert_eq!(reading.await.unwrap(), Vec::<String>::new(), "{pause}");
    }
    source.note().await;
    ship.close().await.unwrap();
    // The object is there, and its manifest is on its way: the reader looks again.
    let slow = FaultyStore::new(store.clone(), Faults::None);
    let ship = Ship::start(&source.db, slow.clone(), options()).await.unwrap();
    ship.durable().await.unwrap();
    slow.set(Faults::PauseAt(slow.requests() + 2));
    source.commit().await;
    let (shipped, warnings) = tokio::join!(ship.durable(), async {
        slow.stopped().await;
        let reader = FaultyStore::new(store.clone(), Faults::PauseAt(4));
        let reading = tokio::spawn(restore_latest(reader.clone()));
        reader.stopped().await;
        slow.resume();
        while history_end(&store).await < source.newest() {
            tokio::task::yield_now().await;
        }
        reader.resume();
        reading.await.unwrap()
    });
    assert!(shipped.is_ok() && warnings.is_empty(), "{warnings:?}");
    ship.close().await.unwrap();
}

async fn restore_latest(store: Arc<FaultyStore>) -> Vec<String> {
    restore_into(store, "shop", Point::Latest, &empty()).await.unwrap().warnings
}

async fn history_end(store: &Arc<InMemory>) -> CommitSeq {
    history(store.clone(), "shop").await.unwrap().last().unwrap().last
}

/// A damaged copy older than a sound one was a problem, also after the whole database was shipped again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_copy_of_the_manifest_is_a_problem_until_a_newer_one_is_sound() {
    let (mut source, store) = (Source::new(9).await, Arc::new(InMemory::new()));
    ship_some(&mut source, &store, options(), 3).await;
    let copies = names(&*store, "manifest-").await;
    let damage = async |name: &str| {
        let mut copy = bytes(&store, name).await;
        copy[9] ^= 8;
        store.put(&Path::from(name), copy.into()).await.unwrap();
        verify(store.clone(), "shop").await.unwrap()
    };
    let found = damage(&copies[0]).await;
    assert!(found.is_clean() && found.remarks.join("; ").contains(&copies[0]["shop/".len()..]), "{found:?}");
    let found = damage(copies.last().unwrap()).await;
    assert!(!found.is_clean(), "{found:?}");
    ship_some(&mut source, &store, options(), 1).await;
    let found = verify(store.clone(), "shop").await.unwrap();
    assert!(found.is_clean() && found.remarks.len() == 2, "{found:?}");
}

/// The copies of the manifest, which name the base alone, were called another history's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rebuilding_without_any_base_says_so() {
    for are_copies_left in [true, false] {
        let (mut source, store) = (Source::new(10).await, Arc::new(InMemory::new()));
        let ship = Ship::start(&source.db, store.clone(), options()).await.unwrap();
        ship.durable().await.unwrap();
        for _ in 0..3 {
            source.commit().await;
            ship.durable().await.unwrap();
        }
        drop(ship);
        let mut lost = names(&*store, "base").await;
        let manifests = names(&*store, "manifest").await;
        lost.extend(manifests.into_iter().filter(|name| !are_copies_left || name.ends_with("manifest")));
        remove(&store, &lost).await;
        let before = names(&*store, "").await;
        let error = rebuild(store.clone(), "shop").await.unwrap_err();
        let told = error.to_string();
        assert!(
            error.kind() == ErrorKind::Corrupt && told.contains("no copy of the whole database is there"),
            "{told}"
        );
        assert!(
            told.contains("--whole") && !told.contains("another history") && !told.contains("which history"),
            "{told}"
        );
        assert_eq!(names(&*store, "").await, before);
        let whole = ShipOptions { begin_with_base: true, ..options() };
        let ship = Ship::start(&source.db, store.clone(), whole).await.unwrap();
        assert!(ship.warnings().join("; ").contains("no copy of the whole database is there"), "{:?}", ship.warnings());
        let shipped = ship.durable().await.unwrap();
        source.note().await;
        ship.close().await.unwrap();
        assert_eq!(latest(&source, &store).await, shipped);
    }
}
