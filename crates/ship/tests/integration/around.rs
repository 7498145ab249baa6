//! The bounds on the cost of a lost file, a wrong clock or a mix-up around the objects: the absence of a manifest is no beginning, a clock alone forgets
//! nothing, and a name belongs to one database.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nofault::clock::ManualClock;
use nofault::settings::Settings;
use nofault::{CommitSeq, Db};
use nofault_ship::{Error, ErrorKind, Point, Ship, ShipOptions, history, rebuild, restore_into, verify};
use object_store::ObjectStoreExt as _;
use object_store::memory::InMemory;
use object_store::path::Path;

use crate::common::{Faults, FaultyStore, Source, empty, options};
use crate::shipped::{bytes, latest, names, remove, ship_some};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Closes the database of a source and opens it with a clock. Everything is durable before that.
fn reopen(source: &mut Source, clock: &ManualClock) {
    source.clock = clock.clone();
    // The last handle closes it.
    source.db = empty();
    let settings = Settings { clock: clock.clone().into(), ..Settings::small(4, 1) };
    source.db = Db::open_in(&source.world.directory(), &settings).unwrap();
}

/// Begins to ship, and expects to be refused without any change of the store.
async fn refused(source: &Source, store: &Arc<InMemory>, options: ShipOptions) -> Error {
    let before = names(&**store, "").await;
    let error = Ship::start(&source.db, store.clone(), options).await.unwrap_err();
    let mut after = names(&**store, "").await;
    after.retain(|name| !name.ends_with("probe") || before.contains(name));
    assert_eq!(before, after, "{error}");
    error
}

fn whole() -> ShipOptions {
    ShipOptions { begin_with_base: true, ..options() }
}

/// Before, the next shipper took all objects for orphans, removed them and began from nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_without_their_manifest_are_refused_and_the_rebuilt_one_has_every_commit() {
    for are_copies_left in [true, false] {
        let (mut source, store) = (Source::new(1).await, Arc::new(InMemory::new()));
        let shipped = ship_some(&mut source, &store, options(), 40).await;
        let manifest = bytes(&store, "shop/manifest").await;
        let mut lost = vec!["shop/manifest".to_owned()];
        lost.extend(names(&*store, "manifest-").await.into_iter().filter(|_| !are_copies_left));
        remove(&store, &lost).await;
        let error = refused(&source, &store, options()).await;
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains("--rebuild") && error.to_string().contains("--whole"), "{error}");
        let error = restore_into(store.clone(), "shop", Point::Latest, &empty()).await.unwrap_err();
        assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("--rebuild"), "{error}");
        assert_eq!(history(store.clone(), "shop").await.unwrap_err().kind(), ErrorKind::Corrupt);

        let before = names(&*store, "").await;
        let rebuilt = rebuild(store.clone(), "shop").await.unwrap();
        assert!(before.iter().all(|name| !name.is_empty()) && !rebuilt.remarks.is_empty(), "{rebuilt:?}");
        let after = names(&*store, "").await;
        assert!(before.iter().all(|name| after.contains(name)), "an object was removed");
        assert_eq!((rebuilt.spans.len(), rebuilt.spans[0].last), (1, shipped), "{rebuilt:?}");
        assert_eq!(latest(&source, &store).await, shipped);
        assert!(verify(store.clone(), "shop").await.unwrap().is_clean());
        assert!(manifest != bytes(&store, "shop/manifest").await);
        // Shipping continues where it was, and removes nothing.
        let shipped = ship_some(&mut source, &store, ShipOptions { grace: Duration::ZERO, ..options() }, 3).await;
        assert_eq!(latest(&source, &store).await, shipped);
        assert_eq!(history(store.clone(), "shop").await.unwrap().len(), 1);
        let error = rebuild(store.clone(), "shop").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidCall, "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shipping_the_whole_leads_on_from_a_manifest_that_is_damaged_cut_short_or_lost() {
    for damage in 0..3 {
        let (mut source, store) = (Source::new(2).await, Arc::new(InMemory::new()));
        let first = ship_some(&mut source, &store, options(), 12).await;
        let path = Path::from("shop/manifest");
        let mut manifest = bytes(&store, "shop/manifest").await;
        match damage {
            0 => manifest[40] ^= 1,
            1 => manifest.truncate(manifest.len() - 10),
            _ => manifest.clear(),
        }
        match damage {
            2 => store.delete(&path).await.unwrap(),
            _ => drop(store.put(&path, manifest.into()).await.unwrap()),
        }
        let error = refused(&source, &store, options()).await;
        assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("--whole"), "{error}");
        source.commit().await;
        let ship = Ship::start(&source.db, store.clone(), whole()).await.unwrap();
        let warnings = ship.warnings().join("; ");
        assert!(warnings.contains(&format!("it leads to commit {first}")), "{warnings}");
        let shipped = ship.durable().await.unwrap();
        ship.close().await.unwrap();
        assert_eq!(latest(&source, &store).await, shipped);
        let db = empty();
        let restored = restore_into(store.clone(), "shop", Point::Commit(first), &db).await.unwrap();
        source.check(&db, restored.commit, "before the damage").await;
        assert_eq!(restored.commit, first);
    }
}

/// An older file in the place of the manifest, as from a backup of the folder. The pieces after it were orphans, and removed; each refused start
/// wrote a manifest with a higher number, until they were.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_manifest_that_was_set_back_is_refused_and_loses_no_piece() {
    for are_copies_left in [true, false] {
        for is_whole in [true, false] {
            let (mut source, store) = (Source::new(3).await, Arc::new(InMemory::new()));
            ship_some(&mut source, &store, options(), 3).await;
            let old = bytes(&store, "shop/manifest").await;
            let shipped = ship_some(&mut source, &store, options(), 5).await;
            store.put(&Path::from("shop/manifest"), old.clone().into()).await.unwrap();
            if !are_copies_left {
                remove(&store, &names(&*store, "manifest-").await).await;
            }
            for _ in 0..8 {
                let error = refused(&source, &store, options()).await;
                assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("set back"), "{error}");
                assert_eq!(bytes(&store, "shop/manifest").await, old);
            }
            if is_whole {
                let ship = Ship::start(&source.db, store.clone(), whole()).await.unwrap();
                assert!(ship.warnings().join("; ").contains(&format!("it leads to commit {shipped}")));
                ship.durable().await.unwrap();
                ship.close().await.unwrap();
            } else {
                rebuild(store.clone(), "shop").await.unwrap();
            }
            let db = empty();
            let restored = restore_into(store.clone(), "shop", Point::Commit(shipped), &db).await.unwrap();
            source.check(&db, restored.commit, "the newest").await;
            assert_eq!(restored.commit, shipped);
            ship_some(&mut source, &store, options(), 1).await;
            assert!(verify(store.clone(), "shop").await.unwrap().is_clean());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_copy_or_one_of_another_database_is_never_taken() {
    let (mut source, store) = (Source::new(4).await, Arc::new(InMemory::new()));
    let shipped = ship_some(&mut source, &store, options(), 30).await;
    let (mut other, elsewhere) = (Source::new(5).await, Arc::new(InMemory::new()));
    ship_some(&mut other, &elsewhere, options(), 30).await;
    let own = names(&*store, "manifest-").await;
    assert!((2..=8).contains(&own.len()), "{own:?}");
    let newest = own.last().unwrap();
    let (_, id) = newest.rsplit_once('-').unwrap();
    let foreign = bytes(&elsewhere, names(&*elsewhere, "manifest-").await.last().unwrap()).await;
    // Under its own name, and with a higher number under a name of this history; and one that was cut short.
    let id_of_other = names(&*elsewhere, "manifest-").await[0].rsplit_once('-').unwrap().1.to_owned();
    for (name, content) in [
        (format!("shop/manifest-{:020}-{id_of_other}", 900), foreign.clone()),
        (format!("shop/manifest-{:020}-{id}", 901), foreign),
        (format!("shop/manifest-{:020}-{id}", 902), bytes(&store, newest).await[..50].to_vec()),
    ] {
        store.put(&Path::from(&*name), content.into()).await.unwrap();
    }
    let mut damaged = bytes(&store, newest).await;
    damaged[9] ^= 8;
    store.put(&Path::from(&**newest), damaged.into()).await.unwrap();
    assert!(!verify(store.clone(), "shop").await.unwrap().is_clean());
    // They hinder no shipper.
    let after = ship_some(&mut source, &store, options(), 2).await;
    assert!(after > shipped);
    // Objects of another history are never removed, nor named.
    for name in names(&*elsewhere, "log").await {
        store.put(&Path::from(&*name), bytes(&elsewhere, &name).await.into()).await.unwrap();
    }
    let objects = names(&*store, "log").await.len();
    ship_some(&mut source, &store, options(), 0).await;
    assert_eq!(names(&*store, "log").await.len(), objects);
    remove(&store, &["shop/manifest".to_owned()]).await;
    rebuild(store.clone(), "shop").await.unwrap();
    assert_eq!(latest(&source, &store).await, after);
}

/// Commits that cannot be rebuilt are named, and the rest is rebuilt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rebuilding_without_an_object_says_which_commits_are_lost() {
    for is_damaged in [false, true] {
        rebuild_without_an_object(is_damaged).await;
    }
}

async fn rebuild_without_an_object(is_damaged: bool) {
    let (mut source, store) = (Source::new(6).await, Arc::new(InMemory::new()));
    ship_some(&mut source, &store, options(), 9).await;
    let pieces = names(&*store, "log").await;
    let mut lost = names(&*store, "manifest").await;
    if is_damaged {
        let mut piece = bytes(&store, &pieces[4]).await;
        let last = piece.len() - 20;
        piece[last] ^= 1;
        store.put(&Path::from(&*pieces[4]), piece.into()).await.unwrap();
    } else {
        lost.push(pieces[4].clone());
    }
    remove(&store, &lost).await;
    let rebuilt = rebuild(store.clone(), "shop").await.unwrap();
    let remarks = rebuilt.remarks.join("; ");
    assert!(remarks.contains("are lost"), "{remarks}");
    let commit = latest(&source, &store).await;
    assert!(pieces[3].contains(&format!("{:020}", commit.0)), "{commit} and {pieces:?}");
    // Later pieces stay, for the return of the missing piece, also after the next shipper has cleaned up.
    ship_some(&mut source, &store, ShipOptions { grace: Duration::ZERO, ..options() }, 2).await;
    let left = names(&*store, "log").await;
    assert!(pieces.iter().enumerate().all(|(at, name)| at == 4 || left.contains(name)), "{left:?}");
}

/// The manifest is gone once more at any request of a rebuilding that is stopped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rebuilding_that_is_stopped_at_any_request_is_made_again() {
    for stop in 1.. {
        let (mut source, store) = (Source::new(7).await, Arc::new(InMemory::new()));
        let shipped = ship_some(&mut source, &store, options(), 4).await;
        remove(&store, &names(&*store, "manifest").await).await;
        let faulty = FaultyStore::new(store.clone(), Faults::HangFrom(stop, stop % 2 == 0));
        let is_over = tokio::select! {
            rebuilt = rebuild(faulty.clone(), "shop") => rebuilt.is_ok(),
            () = faulty.stopped() => false,
        };
        match rebuild(store.clone(), "shop").await {
            Ok(_) => {}
            // It was carried out before it was stopped.
            Err(error) => assert_eq!(error.kind(), ErrorKind::InvalidCall, "{stop}: {error}"),
        }
        assert_eq!(latest(&source, &store).await, shipped, "{stop}");
        if is_over {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_database_is_refused_under_a_name_unless_it_takes_it_over() {
    let (mut source, store) = (Source::new(8).await, Arc::new(InMemory::new()));
    let shipped = ship_some(&mut source, &store, options(), 3).await;
    let mut other = Source::new(9).await;
    let running = Ship::start(&source.db, store.clone(), options()).await.unwrap();
    for options in [options(), whole()] {
        let error = refused(&other, &store, options).await;
        assert!(error.kind() == ErrorKind::AlreadyExists && error.to_string().contains("--take-over"), "{error}");
    }
    // The refusal has not fenced the running shipper.
    running.durable().await.unwrap();
    running.close().await.unwrap();
    assert_eq!(latest(&source, &store).await, shipped);
    ship_some(&mut other, &store, ShipOptions { take_over: true, ..options() }, 1).await;
    let spans = history(store.clone(), "shop").await.unwrap();
    assert!(spans.len() == 2 && spans[0].database != spans[1].database, "{spans:?}");
    latest(&other, &store).await;
    // From now on the name is its own, also before anything was shipped.
    ship_some(&mut other, &store, options(), 1).await;
    assert_eq!(refused(&source, &store, options()).await.kind(), ErrorKind::AlreadyExists);
}

/// A run with a clock 60 days ahead forgot all before the newest base.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_leaps_ahead_forgets_nothing_and_later_commits_have_their_times() {
    let (mut source, store) = (Source::new(10).await, Arc::new(InMemory::new()));
    let often = || ShipOptions { grace: Duration::ZERO, ..whole() };
    for _ in 0..4 {
        ship_some(&mut source, &store, often(), 1).await;
    }
    let spans = history(store.clone(), "shop").await.unwrap();
    assert!(spans.len() == 4 && spans.iter().all(|span| span.clock_steps.is_empty()), "{spans:?}");
    let right = source.clock.clone();
    let ahead = ManualClock::at(source.db.now() + 60 * DAY);
    for round in 0..3 {
        reopen(&mut source, &ahead);
        source.commit().await;
        let ship = Ship::start(&source.db, store.clone(), ShipOptions { grace: Duration::ZERO, ..options() }).await;
        let ship = ship.unwrap();
        let warning = if round == 0 { "leapt ahead" } else { "--trust-clock" };
        assert!(ship.warnings().iter().any(|it| it.contains(warning)), "{:?}", ship.warnings());
        ship.durable().await.unwrap();
        ship.close().await.unwrap();
        source.note().await;
    }
    let after = history(store.clone(), "shop").await.unwrap();
    assert_eq!((after.len(), after[0].first, after[3].first), (4, spans[0].first, spans[3].first), "{after:?}");
    assert_eq!(after[3].clock_steps.len(), 1, "one step, told once: {after:?}");
    assert!(after[3].clock_steps[0].to_string().contains("leapt ahead"), "{after:?}");
    // Right again.
    reopen(&mut source, &right);
    source.commit().await;
    let ship = Ship::start(&source.db, store.clone(), options()).await.unwrap();
    let shipped = ship.durable().await.unwrap();
    ship.close().await.unwrap();
    source.note().await;
    let now = source.db.now();
    let db = empty();
    let restored = restore_into(store.clone(), "shop", Point::Time(now), &db).await.unwrap();
    assert_eq!((restored.commit, restored.next), (shipped, None), "{restored:?}");
    source.check(&db, restored.commit, "the present").await;
    // A time before the leap gives the state of then, and names the next commit and its time.
    let restored = restore_into(store.clone(), "shop", Point::Time(spans[3].last_time), &empty()).await.unwrap();
    assert_eq!(restored.commit, spans[3].last);
    let (next, of) = restored.next.unwrap();
    assert!(next > restored.commit && of > spans[3].last_time + 59 * DAY, "{restored:?}");
    // The caller may vouch for the clock.
    reopen(&mut source, &ahead);
    let trusted = ShipOptions { is_clock_trusted: true, keep: 30 * DAY, ..often() };
    ship_some(&mut source, &store, trusted, 1).await;
    let after = history(store.clone(), "shop").await.unwrap();
    assert!(after[0].first > spans[3].first, "{after:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_went_back_is_shown_and_forgets_nothing() {
    let (mut source, store) = (Source::new(11).await, Arc::new(InMemory::new()));
    ship_some(&mut source, &store, options(), 3).await;
    let first = history(store.clone(), "shop").await.unwrap()[0].first;
    reopen(&mut source, &ManualClock::at(std::time::UNIX_EPOCH));
    source.commit().await;
    let ship = Ship::start(&source.db, store.clone(), options()).await.unwrap();
    assert!(
        ship.warnings().iter().any(|it| it.contains("went back") && it.contains("clocks.md")),
        "{:?}",
        ship.warnings()
    );
    let shipped = ship.durable().await.unwrap();
    ship.close().await.unwrap();
    source.note().await;
    let spans = history(store.clone(), "shop").await.unwrap();
    assert_eq!((spans.len(), spans[0].first, spans[0].clock_steps.len()), (2, first, 1), "{spans:?}");
    assert_eq!(latest(&source, &store).await, shipped);
    // The end of the time that texts can show, and beyond.
    let end = ManualClock::at(std::time::UNIX_EPOCH + 3_000_000 * DAY);
    reopen(&mut source, &end);
    ship_some(&mut source, &store, options(), 1).await;
    assert_eq!(history(store.clone(), "shop").await.unwrap()[0].first, first);
}

/// A history of an earlier version (form 1, without labels) is read and shipped on; without its manifest it is refused, and its objects stay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_of_an_earlier_version_is_read_and_its_objects_are_no_orphans() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/form1");
    let store = Arc::new(InMemory::new());
    let mut files = vec![folder.clone()];
    while let Some(path) = files.pop() {
        if path.is_dir() {
            files.extend(path.read_dir().unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let name = format!("shop/{}", path.strip_prefix(&folder).unwrap().to_str().unwrap());
        store.put(&Path::from(&*name), std::fs::read(&path).unwrap().into()).await.unwrap();
    }
    let of_old = async || {
        let db = empty();
        restore_into(store.clone(), "shop", Point::Commit(CommitSeq(4)), &db).await?;
        let table = db.table("t").await.unwrap();
        assert_eq!(table.get("k3").await.unwrap(), Some(b"v3".to_vec()));
        Ok::<_, Error>(())
    };
    of_old().await.unwrap();
    assert!(verify(store.clone(), "shop").await.unwrap().is_clean());
    let mut source = Source::new(12).await;
    let objects = names(&*store, "").await;
    let manifest = bytes(&store, "shop/manifest").await;
    remove(&store, &["shop/manifest".to_owned()]).await;
    assert_eq!(refused(&source, &store, options()).await.kind(), ErrorKind::Corrupt);
    assert_eq!(rebuild(store.clone(), "shop").await.unwrap_err().kind(), ErrorKind::NotFound);
    let shipped = ship_some(&mut source, &store, whole(), 2).await;
    ship_some(&mut source, &store, options(), 0).await;
    assert_eq!(latest(&source, &store).await, shipped);
    let left = names(&*store, "").await;
    assert!(objects.iter().all(|name| left.contains(name)), "{left:?}");
    // With its manifest, shipped on by the present version.
    store.put(&Path::from("shop/manifest"), manifest.into()).await.unwrap();
    ship_some(&mut source, &store, ShipOptions { take_over: true, ..options() }, 2).await;
    latest(&source, &store).await;
    assert_eq!(history(store.clone(), "shop").await.unwrap().len(), 2);
}
