//! A folder as a store: it fences shippers as a bucket does, in threads and in processes, and never lies in the database that is shipped.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use nofault::settings::Settings;
use nofault::{CommitSeq, Db};
use nofault_ship::{
    Address, Error, ErrorKind, Point, Replica, Ship, ShipOptions, history, rebuild, restore, restore_into,
    restore_with_progress, verify,
};
use object_store::ObjectStore;

use crate::common::{Faults, FaultyStore, Source, content, empty, options};

fn address(folder: &Path) -> Address {
    Address::parse(folder.join("shop").to_str().unwrap()).unwrap()
}

fn taking_over() -> ShipOptions {
    ShipOptions { take_over: true, ..options() }
}

/// Commits promised to be in the store: each with another key, in order.
async fn keys(store: Arc<dyn ObjectStore>) -> Vec<Vec<u8>> {
    let db = empty();
    restore_into(store, "shop", Point::Latest, &db).await.unwrap();
    content(&db).await.remove("t").unwrap_or_default().into_keys().collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_needs_the_word_of_the_caller_that_there_is_one_writer() {
    let mut source = Source::new(9).await;
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(object_store::local::LocalFileSystem::new_with_prefix(folder.path()).unwrap());
    let error = Ship::start(&source.db, store.clone(), options()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("single_writer"), "{error}");
    let ship = Ship::start(&source.db, store.clone(), ShipOptions { single_writer: true, ..options() }).await.unwrap();
    for _ in 0..30 {
        source.commit().await;
    }
    let promised = ship.durable().await.unwrap();
    ship.close().await.unwrap();
    assert!(verify(store.clone(), "shop").await.unwrap().is_clean());
    // Into a folder, as a program does it.
    let target = folder.path().join("restored/");
    let mut seen = Vec::new();
    let settings = Settings::small(4, 1);
    let restored = restore_with_progress(store.clone(), "shop", Point::Latest, &target, &settings, |so_far| {
        seen.push(*so_far);
    });
    let restored = restored.await.unwrap();
    assert!(restored.commit >= promised);
    let last = seen.last().unwrap();
    assert!((last.objects, last.bytes) == (last.objects_all, last.bytes_all) && last.objects > 1, "{last:?}");
    let spans = history(store.clone(), "shop").await.unwrap();
    assert_eq!((spans.len(), spans[0].last, spans[0].last_time), (1, restored.commit, restored.time));
    let db = Db::open(&target, &settings).await.unwrap();
    source.check(&db, restored.commit, "a folder").await;
    let error = restore(store, "shop", Point::Latest, &target, &settings).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
}

/// Both had each of their calls answered, and half of the commits were lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_two_shippers_to_one_folder_the_older_is_fenced_and_no_promise_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let first = Source::new(1).await;
    let ship = Ship::start(&first.db, address(folder.path()).store, options()).await.unwrap();
    first.db.create_table("t").await.unwrap().put("first", "1").await.unwrap();
    ship.durable().await.unwrap();
    let second = Source::new(2).await;
    let newer = Ship::start(&second.db, address(folder.path()).store, taking_over()).await.unwrap();
    second.db.create_table("t").await.unwrap().put("second", "2").await.unwrap();
    newer.durable().await.unwrap();
    first.db.table("t").await.unwrap().put("late", "1").await.unwrap();
    assert_eq!(ship.durable().await.unwrap_err().kind(), ErrorKind::Fenced);
    assert_eq!(ship.failure().unwrap().kind(), ErrorKind::Fenced);
    newer.close().await.unwrap();
    assert_eq!(keys(address(folder.path()).store).await, [b"second".to_vec()]);
}

/// Shippers that take the name from each other without a pause, on threads of one process: every promise to one of them
/// is in a span of its history, whichever took the name last.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn shippers_that_take_a_folder_from_each_other_lose_no_promise() {
    let folder = tempfile::tempdir().unwrap();
    let mut shippers = Vec::new();
    for seed in 0..3 {
        let store = address(folder.path()).store;
        shippers.push(tokio::spawn(async move {
            let source = Source::new(seed).await;
            let table = source.db.create_table("t").await.unwrap();
            let (mut promised, mut fenced) = (CommitSeq(0), 0);
            for round in 0..8_u8 {
                match Ship::start(&source.db, store.clone(), taking_over()).await {
                    Ok(ship) => {
                        for number in 0..3_u8 {
                            table.put([seed as u8, round, number], "v").await.unwrap();
                            match ship.durable().await {
                                Ok(commit) => promised = commit,
                                Err(error) => assert_eq!(error.kind(), ErrorKind::Fenced, "{error}"),
                            }
                        }
                        fenced += u32::from(ship.failure().is_some());
                    }
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Fenced, "{error}"),
                }
            }
            (promised, fenced)
        }));
    }
    let mut fenced = 0;
    let mut promised = Vec::new();
    for shipper in shippers {
        let (commit, times) = shipper.await.unwrap();
        fenced += times;
        promised.push(commit);
    }
    assert!(fenced > 0, "none was fenced: {promised:?}");
    let store = address(folder.path()).store;
    assert!(verify(store.clone(), "shop").await.unwrap().is_clean());
    // The histories of all are there, in spans of each: nothing that was promised was overwritten.
    let spans = history(store, "shop").await.unwrap();
    for commit in promised.into_iter().filter(|commit| *commit > CommitSeq(0)) {
        assert!(spans.iter().any(|span| span.last >= commit), "{commit} of {spans:?}");
    }
}

/// A part of the next test, in other processes. It is told the folder, the database's folder, and the file with its promises.
#[test]
fn ship_in_a_process() {
    let Ok(told) = std::env::var("NOFAULT_SHIP_IN_A_PROCESS") else { return };
    let [store, database, promises] = told.split('|').collect::<Vec<_>>()[..] else { panic!("{told}") };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let db = Db::create(database, &Settings::small(4, 1)).await.unwrap();
        let table = db.create_table("t").await.unwrap();
        let mut answers = String::new();
        for round in 0..6_u32 {
            let ship = match Ship::start(&db, address(Path::new(store)).store, taking_over()).await {
                Ok(ship) => ship,
                Err(error) if error.kind() == ErrorKind::Fenced => continue,
                Err(error) => panic!("{error}"),
            };
            for number in 0..5_u32 {
                let key = format!("{} {round} {number}", std::process::id());
                table.put(&key, "v").await.unwrap();
                match ship.durable().await {
                    Ok(commit) => answers += &format!("{commit}\n"),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Fenced, "{error}"),
                }
            }
        }
        std::fs::write(promises, answers).unwrap();
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shippers_in_processes_that_take_a_folder_from_each_other_lose_no_promise() {
    let folder = tempfile::tempdir().unwrap();
    let processes: Vec<_> = ["a", "b"]
        .into_iter()
        .map(|name| {
            let path = |end: &str| folder.path().join(format!("{name}{end}")).display().to_string();
            let told = [folder.path().display().to_string(), path(""), path(".promises")].join("|");
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "folder::ship_in_a_process"]).env("NOFAULT_SHIP_IN_A_PROCESS", told);
            (command.stdout(Stdio::null()).spawn().unwrap(), path(".promises"))
        })
        .collect();
    let mut promised = Vec::new();
    for (mut process, promises) in processes {
        assert!(process.wait().unwrap().success());
        let text = std::fs::read_to_string(promises).unwrap();
        promised.extend(text.lines().last().map(|commit| commit.parse::<u64>().unwrap()));
    }
    let store = address(folder.path()).store;
    assert!(verify(store.clone(), "shop").await.unwrap().is_clean());
    let spans = history(store, "shop").await.unwrap();
    assert!(!promised.is_empty());
    for commit in promised {
        assert!(spans.iter().any(|span| span.last.0 >= commit), "{commit} of {spans:?}");
    }
}

/// The lock ends with its process, and a file that is removed or left keeps none out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_file_that_is_left_or_removed_keeps_no_shipper_out() {
    let folder = tempfile::tempdir().unwrap();
    let source = Source::new(3).await;
    let table = source.db.create_table("t").await.unwrap();
    let lock = folder.path().join("shop/lock");
    for round in 0..4_u8 {
        let ship = Ship::start(&source.db, address(folder.path()).store, options()).await.unwrap();
        table.put([round], "v").await.unwrap();
        ship.durable().await.unwrap();
        assert!(lock.is_file());
        if round % 2 == 0 {
            std::fs::remove_file(&lock).unwrap();
        }
        table.put([round, round], "v").await.unwrap();
        ship.durable().await.unwrap();
        // As one that is killed: without an end.
        drop(ship);
    }
    assert_eq!(keys(address(folder.path()).store).await.len(), 8);
    // A link is not followed, also one in the place of the next manifest.
    let (elsewhere, next) = (folder.path().join("elsewhere"), folder.path().join("shop/manifest#0"));
    std::os::unix::fs::symlink(&elsewhere, &next).unwrap();
    Ship::start(&source.db, address(folder.path()).store, options()).await.unwrap().close().await.unwrap();
    for what in ["link", "folder", "something else"] {
        std::fs::remove_file(&lock).ok();
        match what {
            "link" => std::os::unix::fs::symlink(&elsewhere, &lock).unwrap(),
            "folder" => std::fs::create_dir(&lock).unwrap(),
            _ => drop(std::os::unix::net::UnixListener::bind(&lock).unwrap()),
        }
        let soon = ShipOptions { start_timeout: Duration::from_secs(1), ..options() };
        let error = Ship::start(&source.db, address(folder.path()).store, soon).await.unwrap_err();
        let told = error.to_string();
        assert!(error.kind() == ErrorKind::Refused && told.contains(&format!("{}: ", lock.display())), "{told}");
        assert!(told.contains(what) && !told.contains("probe"), "{told}");
        std::fs::remove_dir(&lock).ok();
    }
    assert!(!elsewhere.exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_lock_is_held_a_change_waits_and_ends_by_its_time() {
    let folder = tempfile::tempdir().unwrap();
    let source = Source::new(4).await;
    let short = ShipOptions { request_timeout: Duration::from_millis(30), attempts_at_start: 2, ..options() };
    Ship::start(&source.db, address(folder.path()).store, options()).await.unwrap().close().await.unwrap();
    let held = std::fs::File::open(folder.path().join("shop")).unwrap();
    held.lock().unwrap();
    let error = Ship::start(&source.db, address(folder.path()).store, short).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Store, "{error}");
    // However few the attempts: the lock is waited for by its own time.
    let patient = ShipOptions { start_timeout: Duration::from_millis(700), attempts_at_start: 1, ..options() };
    let error = Ship::start(&source.db, address(folder.path()).store, patient).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Busy && error.to_string().contains("holds the lock"), "{error}");
    let waiting = ShipOptions { start_timeout: Duration::MAX, attempts_at_start: 1, ..options() };
    let store = FaultyStore::new(address(folder.path()).store, Faults::None);
    let (db, to) = (source.db.clone(), store.clone());
    let begun = tokio::spawn(async move { Ship::start(&db, to, waiting).await });
    while store.requests() < 12 {
        assert!(!begun.is_finished(), "it waits for the lock");
        tokio::task::yield_now().await;
    }
    held.unlock().unwrap();
    begun.await.unwrap().unwrap().close().await.unwrap();
    drop(held);
    Ship::start(&source.db, address(folder.path()).store, options()).await.unwrap().close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_promotion_over_a_folder_the_older_shipper_is_fenced() {
    let folder = tempfile::tempdir().unwrap();
    let source = Source::new(5).await;
    let table = source.db.create_table("t").await.unwrap();
    let ship = Ship::start(&source.db, address(folder.path()).store, options()).await.unwrap();
    table.put("a", "1").await.unwrap();
    let shipped = ship.durable().await.unwrap();
    let home = folder.path().join("replica");
    let replica = Replica::follow(address(folder.path()).store, "shop", &home, &Settings::small(4, 1)).await.unwrap();
    replica.wait_for(shipped).await.unwrap();
    let state = replica.snapshot().await.unwrap();
    let seen = state.table("t").await.unwrap();
    assert_eq!(state.snapshot.get(&seen, "a").await.unwrap(), Some(b"1".to_vec()));
    for name in ["nofault-replica", "none"] {
        assert_eq!(state.table(name).await.unwrap_err().kind(), ErrorKind::NotFound, "{name}");
    }
    drop((state, seen));
    let promoted = replica.promote(options()).await.unwrap();
    promoted.db.table("t").await.unwrap().put("b", "2").await.unwrap();
    promoted.ship.durable().await.unwrap();
    table.put("c", "3").await.unwrap();
    assert_eq!(ship.durable().await.unwrap_err().kind(), ErrorKind::Fenced);
    promoted.ship.close().await.unwrap();
    assert_eq!(keys(address(folder.path()).store).await, [b"a".to_vec(), b"b".to_vec()]);
    // The name is the promoted one's from now on, also for the next shipper.
    Ship::start(&promoted.db, address(folder.path()).store, options()).await.unwrap().close().await.unwrap();
    let error = Ship::start(&source.db, address(folder.path()).store, options()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
}

/// Also a store for which the caller gives his word is looked at before each change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shipper_with_the_word_of_its_caller_that_lost_the_name_is_fenced() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(object_store::local::LocalFileSystem::new_with_prefix(folder.path()).unwrap());
    let word = || ShipOptions { single_writer: true, ..taking_over() };
    let (first, second) = (Source::new(6).await, Source::new(7).await);
    let ship = Ship::start(&first.db, store.clone(), word()).await.unwrap();
    ship.durable().await.unwrap();
    let newer = Ship::start(&second.db, store.clone(), word()).await.unwrap();
    newer.durable().await.unwrap();
    first.db.create_table("late").await.unwrap();
    assert_eq!(ship.durable().await.unwrap_err().kind(), ErrorKind::Fenced);
    newer.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_shipped_or_restored_into_the_folder_of_a_database() {
    let folder = tempfile::tempdir().unwrap();
    let shop = folder.path().join("shop");
    let db = Db::create(&shop, &Settings::small(4, 1)).await.unwrap();
    let linked = folder.path().join("linked");
    std::os::unix::fs::symlink(&shop, &linked).unwrap();
    std::fs::create_dir(shop.join("below")).unwrap();
    let files = || std::fs::read_dir(&shop).unwrap().count();
    let before = files();
    let parse = |path: &Path| Address::parse(path.to_str().unwrap()).unwrap();
    for path in
        [shop.clone(), shop.join("x"), linked.join("x"), shop.join("below/x"), shop.join("below/../x"), linked.clone()]
    {
        let address = parse(&path);
        let error = address.check_target().unwrap_err();
        assert!(error.kind() == ErrorKind::InvalidCall && error.to_string().contains("shop"), "{error}");
        let own = ShipOptions { name: address.name.clone(), ..options() };
        let error = Ship::start(&db, address.store.clone(), own).await.unwrap_err();
        assert!(error.to_string().contains("lies in the database"), "{error}");
        let error = rebuild(address.store, &address.name).await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::NotFound), "{error}");
    }
    assert_eq!(files(), before);
    let address = parse(&folder.path().join("backup"));
    assert!(address.check_target().is_ok());
    let own = ShipOptions { name: "backup".into(), ..options() };
    Ship::start(&db, address.store.clone(), own).await.unwrap().close().await.unwrap();
    for path in [shop.join("again"), linked.join("again")] {
        let error =
            restore(address.store.clone(), "backup", Point::Latest, &path, &Settings::small(4, 1)).await.unwrap_err();
        assert!(error.kind() == ErrorKind::InvalidCall && error.to_string().contains("lies in"), "{error}");
    }
    assert_eq!(files(), before);
}

/// They were made again for ever, and never named.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_that_does_not_pass_is_named_at_once_and_while_requests_are_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let source = Source::new(8).await;
    // A file where a folder must be.
    let file = folder.path().join("shop");
    std::fs::write(&file, "a file").unwrap();
    let many = ShipOptions { attempts_at_start: u32::MAX, ..options() };
    let error = Ship::start(&source.db, address(folder.path()).store, many).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Refused && error.to_string().contains("directory"), "{error}");
    std::fs::remove_file(&file).unwrap();
    let ship = Ship::start(&source.db, address(folder.path()).store, options()).await.unwrap();
    ship.durable().await.unwrap();
    assert!(ship.trouble().is_none());
    // Later it is named, and shipping continues when a person has mended it.
    let (log, aside) = (file.join("log"), folder.path().join("aside"));
    if log.exists() {
        std::fs::rename(&log, &aside).unwrap();
    }
    std::fs::write(&log, "a file").unwrap();
    source.db.create_table("t").await.unwrap();
    let named = async {
        loop {
            match ship.trouble() {
                Some(error) => break error,
                None => tokio::task::yield_now().await,
            }
        }
    };
    let error: Error = tokio::select! {
        done = ship.durable() => panic!("{done:?}"),
        error = named => error,
    };
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    std::fs::remove_file(&log).unwrap();
    if aside.exists() {
        std::fs::rename(&aside, &log).unwrap();
    }
    ship.durable().await.unwrap();
    assert!(ship.trouble().is_none());
    ship.close().await.unwrap();
}

/// All of them were an error of the system, whatever the cause.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_and_missing_rights_of_a_folder_have_kinds_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let source = Source::new(9).await;
    source.db.create_table("t").await.unwrap();
    // A name longer than any file may have.
    let long = folder.path().join("x".repeat(300)).join("shop");
    assert_eq!(Address::of_folder(&long).unwrap_err().kind(), ErrorKind::InvalidCall);
    for (options, kind) in
        [("size=64k", ErrorKind::NoSpace), ("nr_inodes=3", ErrorKind::NoSpace), ("ro", ErrorKind::NoPermission)]
    {
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(folder.path()).output();
        if !mounted.is_ok_and(|mounted| mounted.status.success()) {
            eprintln!("no rights to mount a file system: a folder with {options} is not tried");
            return;
        }
        let store = address(folder.path()).store;
        let begun = Ship::start(&source.db, store, ShipOptions { attempts_at_start: 2, ..self::options() }).await;
        let error = match begun {
            Err(error) => error,
            Ok(ship) => {
                for number in 0..200_u8 {
                    source.db.table("t").await.unwrap().put([number], random_bytes(number)).await.unwrap();
                }
                let named = async {
                    loop {
                        match ship.trouble() {
                            Some(error) => break error,
                            None => tokio::task::yield_now().await,
                        }
                    }
                };
                tokio::select! {
                    done = ship.durable() => panic!("{options}: {done:?}"),
                    error = named => error,
                }
            }
        };
        assert!(Command::new("umount").arg(folder.path()).status().unwrap().success());
        assert_eq!(error.kind(), kind, "{options}: {error}");
    }
}

/// Bytes that take their space also when they are compressed.
fn random_bytes(seed: u8) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed.into());
    std::iter::repeat_with(|| rng.u8(..)).take(1000).collect()
}
