//! Replicas: whatever ends one, it has the state after a commit of the source, and continues; and after it was promoted nothing of
//! the older shipper appears.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use nofault::settings::Settings;
use nofault::{CommitSeq, Db};
use nofault_ship::{
    ErrorKind, Point, PromotedReplica, Replica, ReplicaOptions, ReplicaSnapshot, Ship, ShipOptions, restore_into,
    verify,
};
use nofault_sim::content::Content;
use nofault_sim::depth::by_depth;
use object_store::memory::InMemory;
use object_store::{ObjectStore, ObjectStoreExt as _};

use crate::common::{Faults, FaultyStore, Source, content, empty, options};

fn often() -> ReplicaOptions {
    ReplicaOptions { every: Duration::from_millis(2), ..ReplicaOptions::new("shop") }
}

fn once() -> ReplicaOptions {
    ReplicaOptions { every: Duration::from_secs(3600), ..ReplicaOptions::new("shop") }
}

/// Begins to follow, with the settings of all tests. A replica ended in the same process may have its files for a
/// moment longer.
async fn followed(
    store: Arc<dyn ObjectStore>,
    options: ReplicaOptions,
    folder: impl AsRef<Path>,
) -> Result<Replica, nofault_ship::Error> {
    loop {
        match Replica::follow(store.clone(), options.clone(), &folder, &Settings::small(4, 1)).await {
            Err(error) if error.to_string().contains("close it there first") => tokio::task::yield_now().await,
            outcome => return outcome,
        }
    }
}

async fn content_of(state: &ReplicaSnapshot) -> Content {
    let mut content = Content::new();
    for name in state.table_names().await.unwrap() {
        let table = state.snapshot.table(&name).await.unwrap();
        let mut range = state.snapshot.range::<&[u8]>(&table, ..).unwrap();
        let rows = content.entry(name).or_default();
        while let Some((key, value)) = range.next().await.unwrap() {
            rows.insert(key, value);
        }
    }
    content
}

/// Checks that a replica has the state of the source after its commit. Returns the commit.
async fn check(source: &Source, replica: &Replica, what: &str) -> CommitSeq {
    let state = replica.snapshot().await.unwrap();
    let content = content_of(&state).await;
    assert!(source.had(state.commit, &content), "{what}: not the state of {}", state.commit);
    state.commit
}

fn copies(folder: &Path) -> usize {
    let names = folder.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("copy-")).count()
}

/// Waits until the replica has removed all copies but the newest. It tells of the newest copy's state before.
async fn until_one_copy(folder: &Path) {
    while copies(folder) > 1 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_of_a_source_that_works_hard_has_a_state_of_it_each_time_and_the_newest_when_it_rests() {
    let mut source = Source::new(31).await;
    let (store, folder) = (Arc::new(InMemory::new()), tempfile::tempdir().unwrap());
    let small = ShipOptions { object_bytes: 400, grace: Duration::ZERO, ..options() };
    let ship = Ship::start(&source.db, store.clone(), small).await.unwrap();
    for _ in 0..20 {
        source.commit().await;
    }
    ship.durable().await.unwrap();
    let path = folder.path().join("replica");
    let replica = followed(store.clone(), often(), &path).await.unwrap();
    let mut seen = CommitSeq(0);
    for round in 0..150 {
        source.commit().await;
        let now = check(&source, &replica, "while the source works").await;
        assert!(now >= seen, "{now} after {seen}");
        seen = now;
        if round % 10 == 9 {
            let promised = ship.durable().await.unwrap();
            replica.wait_for(promised).await.unwrap();
            assert!(check(&source, &replica, "after waiting").await >= promised);
        }
        if round % 50 == 49 {
            // Another epoch, while a snapshot of the copy before is held.
            let before = replica.snapshot().await.unwrap();
            let content_before = content_of(&before).await;
            let loaded = source.db.open_or_create_table(&format!("loaded {round}")).await.unwrap();
            source.note().await;
            loaded.bulk_load((0..500_u32).map(|key| (key.to_be_bytes(), "value"))).await.unwrap();
            source.note().await;
            replica.wait_for(ship.durable().await.unwrap()).await.unwrap();
            check(&source, &replica, "after a load").await;
            assert!(content_of(&before).await == content_before);
            until_one_copy(&path).await;
        }
    }
    // The writer is idle: without a call of `durable` the replica has everything soon, and says so.
    source.db.sync().await.unwrap();
    replica.wait_for(source.newest()).await.unwrap();
    let looked_at = replica.lag().looked_at;
    while replica.lag().looked_at == looked_at || !replica.lag().is_caught_up() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let lag = replica.lag();
    assert!(lag.commit >= source.newest() && lag.newest == lag.commit && lag.newest_time == lag.time, "{lag:?}");
    assert_eq!(check(&source, &replica, "idle").await, lag.commit);
    assert!(replica.failure().is_none(), "{:?}", replica.failure());
    ship.close().await.unwrap();
    replica.close().await.unwrap();
}

/// Runs work in a separate runtime, which ends with all its tasks: as a process that is killed.
fn in_a_process<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let done = runtime.block_on(work);
    runtime.shutdown_timeout(Duration::from_secs(60));
    done
}

#[test]
fn a_replica_that_is_killed_at_any_step_has_a_state_of_the_source_and_goes_on() {
    // The store at two moments, with another epoch between them.
    let store = Arc::new(InMemory::new());
    let (source, moments) = in_a_process(async {
        let mut source = Source::new(32).await;
        let ship = Ship::start(&source.db, store.clone(), options()).await.unwrap();
        let mut moments = Vec::new();
        for moment in 0..2 {
            for _ in 0..12 {
                source.commit().await;
                ship.durable().await.unwrap();
            }
            moments.push((Arc::new(store.fork()), ship.durable().await.unwrap()));
            if moment == 0 {
                let loaded = source.db.create_table("loaded").await.unwrap();
                source.note().await;
                loaded.bulk_load((0..500_u32).map(|key| (key.to_be_bytes(), "value"))).await.unwrap();
                source.note().await;
            }
        }
        ship.close().await.unwrap();
        (source, moments)
    });
    let (last_store, last) = moments[1].clone();
    let mut stopped = 0;
    for (moment, (store, reaches)) in moments.iter().enumerate() {
        for step in (1..).step_by(by_depth(4, 1)) {
            let what = format!("moment {moment}, killed at request {step}");
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("replica");
            let follow = |store: Arc<dyn ObjectStore>| followed(store, once(), &path);
            if moment == 1 {
                in_a_process(async {
                    let replica = follow(moments[0].0.clone()).await.unwrap();
                    replica.wait_for(moments[0].1).await.unwrap();
                    replica.close().await.unwrap();
                });
            }
            let faulty = FaultyStore::new(store.clone(), Faults::HangFrom(step, false));
            let is_over = in_a_process(async {
                let work = async {
                    let replica = follow(faulty.clone()).await.unwrap();
                    replica.wait_for(*reaches).await.unwrap();
                };
                tokio::select! { () = work => true, () = faulty.stopped() => false }
            });
            in_a_process(async {
                // Its state is read while the store cannot be reached.
                if path.join("current").exists() {
                    let replica = follow(FaultyStore::new(store.clone(), Faults::HangFrom(1, false))).await.unwrap();
                    let commit = check(&source, &replica, &what).await;
                    assert!(moment == 0 || commit >= moments[0].1, "{what}: {commit}");
                }
            });
            in_a_process(async {
                let replica = follow(last_store.clone()).await.unwrap_or_else(|error| panic!("{what}: {error}"));
                replica.wait_for(last).await.unwrap();
                assert!(check(&source, &replica, &what).await >= last, "{what}");
                replica.close().await.unwrap();
            });
            assert_eq!(copies(&path), 1, "{what}");
            if is_over {
                break;
            }
            stopped += 1;
        }
    }
    assert!(stopped > by_depth(3, 10), "{stopped}");
}

/// The older shipper cannot be reached, or is held up at any step of shipping a commit, when the replica is promoted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_replica_was_promoted_the_older_shipper_is_fenced_and_nothing_of_it_appears() {
    let mut held_up = 0;
    for step in 1..8 {
        let what = format!("held up at request {step}");
        let mut source = Source::new(33).await;
        let (store, folder) = (Arc::new(InMemory::new()), tempfile::tempdir().unwrap());
        let faulty = FaultyStore::new(store.clone(), Faults::None);
        let old = Ship::start(&source.db, faulty.clone(), options()).await.unwrap();
        for _ in 0..10 {
            source.commit().await;
        }
        let promised = old.durable().await.unwrap();
        let replica = followed(store.clone(), often(), folder.path().join("replica")).await.unwrap();
        // The partition.
        faulty.set(Faults::PauseAt(faulty.requests() + step));
        let old = Arc::new(old);
        let shipping = {
            let (old, db) = (old.clone(), source.db.clone());
            tokio::spawn(async move {
                for number in 0..20_u8 {
                    let table = db.open_or_create_table("partitioned").await.unwrap();
                    table.put([number], "value").await.unwrap();
                    match old.durable().await {
                        Ok(_) => {}
                        Err(error) => return Err((number, error)),
                    }
                }
                Ok(())
            })
        };
        tokio::select! {
            () = faulty.stopped() => held_up += 1,
            () = async { while !shipping.is_finished() { tokio::time::sleep(Duration::from_millis(1)).await } } => {}
        }
        let PromotedReplica { db, ship, commit, .. } = replica.promote(options()).await.unwrap();
        assert!(commit >= promised, "{what}: {commit} and {promised} was promised");
        let before = content(&db).await;
        faulty.resume();
        faulty.set(Faults::None);
        let (number, error) = shipping.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Fenced, "{what}: {error}");
        // Everything promised by its `durable` is there, and other commits may be there up to the fence.
        let of_old = before.get("partitioned").map_or(0, |rows| rows.len());
        assert!(of_old == usize::from(number) || of_old == usize::from(number) + 1, "{what}: {of_old} and {number}");
        assert!(content(&db).await == before, "{what}");
        let table = db.open_or_create_table("elsewhere").await.unwrap();
        table.put("key", "value").await.unwrap();
        ship.durable().await.unwrap();
        source.db.create_table("too late").await.unwrap();
        assert_eq!(old.durable().await.unwrap_err().kind(), ErrorKind::Fenced, "{what}");
        table.put("key", "newer").await.unwrap();
        let promised = ship.durable().await.unwrap();
        let again = empty();
        restore_into(store.clone(), "shop", Point::Latest, &again).await.unwrap();
        assert!(content(&again).await == content(&db).await, "{what}");
        assert!(verify(store.clone(), "shop").await.unwrap().is_clean(), "{what}");
        // A replica of the promoted one.
        let second = followed(store.clone(), often(), folder.path().join("second")).await.unwrap();
        second.wait_for(promised).await.unwrap();
        assert!(content_of(&second.snapshot().await.unwrap()).await == content(&db).await, "{what}");
        second.close().await.unwrap();
        ship.close().await.unwrap();
    }
    assert!(held_up > 2, "{held_up}");
}

/// A replica follows another database that takes the name over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_follows_the_one_that_was_promoted_in_place_of_its_source() {
    let mut source = Source::new(34).await;
    let (store, folder) = (Arc::new(InMemory::new()), tempfile::tempdir().unwrap());
    let ship = Ship::start(&source.db, store.clone(), options()).await.unwrap();
    for _ in 0..40 {
        source.commit().await;
    }
    // Copies begin with a base, and so count fewer commits: the promoted one counts from there.
    let loaded = source.db.create_table("loaded").await.unwrap();
    loaded.bulk_load((0..500_u32).map(|key| (key.to_be_bytes(), "value"))).await.unwrap();
    let promised = ship.durable().await.unwrap();
    let follow = |name: &str| followed(store.clone(), often(), folder.path().join(name));
    let (one, two) = (follow("one").await.unwrap(), follow("two").await.unwrap());
    two.close().await.unwrap();
    let promoted = one.promote(options()).await.unwrap();
    let table = promoted.db.create_table("of the promoted").await.unwrap();
    table.put("key", "value").await.unwrap();
    let of_promoted = promoted.ship.durable().await.unwrap();
    assert!(of_promoted < promised, "{of_promoted} of the promoted, {promised} of the source");
    let expected = content(&promoted.db).await;
    // While the base of the promoted one cannot be read, the other one shows the source, and is not caught up.
    let bases = object_store::path::Path::from("shop/base");
    let bases: Vec<_> = store.list(Some(&bases)).map(|found| found.unwrap().location).collect().await;
    let mut taken = Vec::new();
    for base in bases {
        taken.push((base.clone(), store.get(&base).await.unwrap().bytes().await.unwrap()));
        store.delete(&base).await.unwrap();
    }
    let two = follow("two").await.unwrap();
    let mut looked_at = Vec::new();
    while two.failure().is_none() {
        looked_at.push(two.lag().looked_at);
        looked_at.dedup();
        assert!(looked_at.len() < 500, "it looks again and again, and misses nothing");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let lag = two.lag();
    assert!(lag.newest < lag.commit && !lag.is_caught_up(), "{lag:?}");
    for (base, bytes) in taken {
        store.put(&base, bytes.into()).await.unwrap();
    }
    two.wait_for(of_promoted).await.unwrap();
    assert!(content_of(&two.snapshot().await.unwrap()).await == expected);
    while !two.lag().is_caught_up() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    two.close().await.unwrap();
    promoted.ship.close().await.unwrap();
    drop((promoted.db, table));
    // Its folder is no replica any more, but a database.
    let error = follow("one").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidCall, "{error}");
    let db = Db::open(&promoted.folder, &Settings::small(4, 1)).await.unwrap();
    assert!(content(&db).await == expected);
}

#[test]
fn a_promotion_that_is_killed_at_any_step_is_made_again() {
    let mut stopped = 0;
    for step in (1..).step_by(by_depth(3, 1)) {
        let what = format!("killed at request {step}");
        let (store, folder) = (Arc::new(InMemory::new()), tempfile::tempdir().unwrap());
        let path = folder.path().join("replica");
        let (source, promised) = in_a_process(async {
            let mut source = Source::new(35).await;
            let ship = Ship::start(&source.db, store.clone(), options()).await.unwrap();
            for _ in 0..6 {
                source.commit().await;
            }
            ship.durable().await.unwrap();
            let replica = followed(store.clone(), once(), &path).await.unwrap();
            replica.close().await.unwrap();
            for _ in 0..6 {
                source.commit().await;
            }
            (source, ship.durable().await.unwrap())
        });
        let faulty = FaultyStore::new(store.clone(), Faults::HangFrom(step, step % 2 == 0));
        let is_over = in_a_process(async {
            let work = async {
                let replica = followed(faulty.clone(), once(), &path).await.unwrap();
                let promoted = replica.promote(options()).await.unwrap();
                promoted.ship.durable().await.unwrap();
            };
            tokio::select! { () = work => true, () = faulty.stopped() => false }
        });
        in_a_process(async {
            let (db, ship) = match followed(store.clone(), once(), &path).await {
                Ok(replica) => {
                    let promoted = replica.promote(options()).await.unwrap();
                    (promoted.db, promoted.ship)
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::InvalidCall, "{what}: {error}");
                    let current = std::fs::read_to_string(path.join("current")).unwrap();
                    let db = Db::open(path.join(current.trim()), &Settings::small(4, 1)).await.unwrap();
                    let ship = Ship::start(&db, store.clone(), options()).await.unwrap();
                    (db, ship)
                }
            };
            source.check(&db, promised, &what).await;
            ship.durable().await.unwrap();
            ship.close().await.unwrap();
            let again = empty();
            restore_into(store.clone(), "shop", Point::Latest, &again).await.unwrap();
            source.check(&again, promised, &what).await;
        });
        if is_over {
            break;
        }
        stopped += 1;
    }
    assert!(stopped > by_depth(2, 6), "{stopped}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_was_away_for_longer_than_the_log_is_kept_begins_with_a_base() {
    let mut source = Source::new(36).await;
    let (store, folder) = (Arc::new(InMemory::new()), tempfile::tempdir().unwrap());
    let short =
        ShipOptions { object_bytes: 1, base_share: 1, keep: Duration::ZERO, grace: Duration::ZERO, ..options() };
    let ship = Ship::start(&source.db, store.clone(), short).await.unwrap();
    source.commit().await;
    ship.durable().await.unwrap();
    let path = folder.path().join("replica");
    let follow = || followed(store.clone(), often(), &path);
    follow().await.unwrap().close().await.unwrap();
    let before = std::fs::read_to_string(path.join("current")).unwrap();
    for _ in 0..80 {
        source.commit().await;
        ship.durable().await.unwrap();
    }
    let promised = ship.durable().await.unwrap();
    let replica = follow().await.unwrap();
    replica.wait_for(promised).await.unwrap();
    assert!(check(&source, &replica, "another copy").await >= promised);
    assert_ne!(std::fs::read_to_string(path.join("current")).unwrap(), before);
    until_one_copy(&path).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_meets_damage_says_so_and_serves_what_it_has_until_it_is_repaired() {
    let mut source = Source::new(37).await;
    let (store, folder) = (Arc::new(InMemory::new()), tempfile::tempdir().unwrap());
    let ship = Ship::start(&source.db, store.clone(), options()).await.unwrap();
    let first = ship.durable().await.unwrap();
    let follow = || followed(store.clone(), often(), folder.path().join("replica"));
    follow().await.unwrap().close().await.unwrap();
    source.commit().await;
    let promised = ship.durable().await.unwrap();
    let prefix = object_store::path::Path::from("shop/log");
    let listed = store.list_with_delimiter(Some(&prefix)).await.unwrap().objects;
    let damaged = listed.last().unwrap().location.clone();
    let whole = store.get(&damaged).await.unwrap().bytes().await.unwrap();
    let mut changed = whole.to_vec();
    let middle = changed.len() / 2;
    changed[middle] ^= 1;
    store.put(&damaged, changed.into()).await.unwrap();
    let replica = follow().await.unwrap();
    while replica.failure().is_none() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(replica.failure().unwrap().kind(), ErrorKind::Corrupt);
    let commit = check(&source, &replica, "damaged").await;
    assert!(commit >= first && commit < promised && !replica.lag().is_caught_up());
    store.put(&damaged, whole.into()).await.unwrap();
    replica.wait_for(promised).await.unwrap();
    check(&source, &replica, "repaired").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_takes_no_folder_of_others_and_no_source_with_its_own_table() {
    let source = Source::new(38).await;
    let (store, folder) = (Arc::new(InMemory::new()), tempfile::tempdir().unwrap());
    let follow = |name: &str| followed(store.clone(), often(), folder.path().join(name));
    assert_eq!(follow("replica").await.unwrap_err().kind(), ErrorKind::NotFound);
    let ship = Ship::start(&source.db, store.clone(), options()).await.unwrap();
    ship.durable().await.unwrap();
    std::fs::create_dir(folder.path().join("other")).unwrap();
    std::fs::write(folder.path().join("other/file"), "content").unwrap();
    let error = follow("other").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
    let replica = follow("replica").await.unwrap();
    let error = follow("replica").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidCall, "{error}");
    source.db.create_table("nofault-replica").await.unwrap();
    ship.close().await.unwrap();
    while replica.failure().is_none() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(replica.failure().unwrap().kind(), ErrorKind::Unsupported);
    assert!(content_of(&replica.snapshot().await.unwrap()).await.is_empty());
    replica.close().await.unwrap();
    let again = Arc::new(InMemory::new());
    let ship = Ship::start(&source.db, again.clone(), options()).await.unwrap();
    ship.durable().await.unwrap();
    let refused = followed(again, often(), folder.path().join("refused")).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unsupported);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_without_a_commit_is_durable_and_followed_as_well() {
    let source = Source::new(39).await;
    let (store, folder) = (Arc::new(InMemory::new()), tempfile::tempdir().unwrap());
    let ship = Ship::start(&source.db, store.clone(), options()).await.unwrap();
    assert_eq!(ship.durable().await.unwrap(), CommitSeq(0));
    assert_eq!(verify(store.clone(), "shop").await.unwrap().bases, 1);
    let replica = followed(store, often(), folder.path().join("replica")).await.unwrap();
    assert!(content_of(&replica.snapshot().await.unwrap()).await.is_empty());
}
