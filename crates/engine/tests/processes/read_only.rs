//! Databases opened for reading only: refused calls, visible content, permitted places, and memory.
//! The writer is a handle of the same process, unless another user is to read.

use std::ops::Range;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, UNIX_EPOCH};

use nofault::blocking::Db;
use nofault::clock::ManualClock;
use nofault::db::Pace;
use nofault::error::{Error, ErrorKind};
use nofault::settings::{CompactionMode, Compression, Settings};
use nofault::{Batch, Durability};
use nofault_sim::depth::{by_depth, sample};

use crate::{FOLDER, folder};

fn settings() -> Settings {
    Settings { cache_bytes: 16 << 20, log_bytes: 2 << 20, compaction: CompactionMode::Manual, ..Settings::default() }
}

/// Puts these rows, each with a value that tells its round.
fn put(db: &Db, rows: Range<u64>, round: u64) {
    let (table, mut batch) = (db.table("t").unwrap(), Batch::new());
    for row in rows {
        batch.put(&table, row.to_be_bytes(), format!("{row} of {round} {}", "x".repeat(300)));
    }
    db.write(batch, Durability::Sync).unwrap();
}

/// Checks that a database has so many rows, all of them of this round.
fn check(db: &Db, rows: u64, round: u64) -> Result<(), Error> {
    let mut seen = 0_u64;
    for entry in db.table("t")?.range::<&[u8]>(..) {
        let (key, value) = entry?;
        assert_eq!(key, seen.to_be_bytes());
        assert!(value.starts_with(format!("{seen} of {round} ").as_bytes()), "row {seen} is not of round {round}");
        seen += 1;
    }
    assert_eq!(seen, rows);
    Ok(())
}

fn kind(error: Option<Error>) -> Option<ErrorKind> {
    error.map(|error| error.kind())
}

#[tokio::test]
async fn a_task_is_refused_every_change_at_once_and_reads_as_ever() {
    let folder = folder();
    let path = folder.path().join("db");
    let db = nofault::Db::create(&path, &settings()).await.unwrap();
    let table = db.create_table("t").await.unwrap();
    table.put("k", "v").await.unwrap();
    table.put_with_expiry("gone", "v", db.now()).await.unwrap();
    let reader = nofault::Db::open_read_only(&path, &settings()).await.unwrap();
    let seen = reader.table("t").await.unwrap();
    let work = async {
        let mut batch = Batch::new();
        batch.put(&seen, "k", "w");
        let refused = [
            reader.sync().await.err(),
            reader.checkpoint().await.err(),
            reader.watch().await.err(),
            reader.set_compression("t", Compression::Fast).await.err(),
            reader.rename_table("t", "u").await.err(),
            reader.create_table("u").await.err(),
            reader.open_or_create_table("u").await.err(),
            reader.shrink(Pace::Full, |_| true).await.err(),
            reader.remove_expired().await.err(),
            reader.write(batch, Durability::Deferred).await.err(),
            seen.put_with_expiry("k", "w", reader.now()).await.err(),
            seen.update("k", |_| Some(b"w".to_vec())).await.err(),
            seen.pop_first().await.err(),
            seen.clear().await.err(),
            seen.bulk_load([("l", "w")]).await.err(),
        ];
        for (at, error) in refused.into_iter().enumerate() {
            assert_eq!(kind(error), Some(ErrorKind::ReadOnly), "call {at}");
        }
        let change = reader.begin();
        change.put(&seen, "k", "w").unwrap();
        assert_eq!(change.get(&seen, "k").await.unwrap(), Some(b"w".to_vec()));
        assert_eq!(kind(change.commit(Durability::Sync).await.err()), Some(ErrorKind::ReadOnly));
        // Those that change nothing go on.
        let looking = reader.begin();
        assert_eq!(looking.get(&seen, "k").await.unwrap(), Some(b"v".to_vec()));
        looking.commit(Durability::Sync).await.unwrap();
        assert!(reader.open_or_create_table("t").await.is_ok());
        // The table has no types, and gets none.
        let typed = reader.typed_table::<String, String>("t").await.unwrap();
        assert!(typed.contains_key("k").await.is_ok());
        assert_eq!((reader.table_types("t").await.unwrap(), seen.len().await.unwrap()), (None, 1));
        assert!(reader.verify().await.unwrap().is_clean());
        assert!(reader.stats().memory_bytes > 0);
    };
    tokio::time::timeout(Duration::from_secs(120), work).await.unwrap();
    drop(seen);
    reader.close().await.unwrap();
    assert_eq!(table.get("k").await.unwrap(), Some(b"v".to_vec()));
}

#[test]
fn a_backup_of_a_reader_has_what_the_reader_shows() {
    let folder = folder();
    let (path, copy) = (folder.path().join("db"), folder.path().join("copy"));
    let db = Db::create(&path, &settings()).unwrap();
    db.create_table("t").unwrap();
    put(&db, 0..3000, 1);
    let reader = Db::open_read_only(&path, &settings()).unwrap();
    put(&db, 0..3000, 2);
    reader.backup(&copy).unwrap();
    check(&Db::open(&copy, &settings()).unwrap(), 3000, 1).unwrap();
    check(&db, 3000, 2).unwrap();
}

#[test]
fn compressed_tables_and_striped_files_are_read_beside_their_writer() {
    for (compression, stripes) in [(Compression::None, 2), (Compression::Fast, 0), (Compression::Small, 3)] {
        let folder = folder();
        let path = folder.path().join("db");
        let stripe_folders = (0..stripes).map(|stripe| folder.path().join(format!("stripe-{stripe}"))).collect();
        let settings = Settings { compression, stripe_folders, ..settings() };
        let db = Db::create(&path, &settings).unwrap();
        db.create_table("t").unwrap();
        put(&db, 0..8000, 0);
        db.compact(Pace::Full, |_| true).unwrap();
        // It must read the file again and again.
        let little = Settings { cache_bytes: 2 << 20, ..settings.clone() };
        let mut reader = Db::open_read_only(&path, &little).unwrap();
        for round in 1..4 {
            put(&db, 0..8000, round);
            db.checkpoint().unwrap();
            db.compact(Pace::Full, |_| true).unwrap();
            check(&reader, 8000, round - 1).unwrap();
            assert!(db.stats().pool.blocks_kept > 0, "{compression:?}, {stripes} stripes, round {round}");
            assert!(db.verify().unwrap().is_clean() && reader.verify().unwrap().is_clean());
            assert!(reader.refresh().unwrap());
            check(&reader, 8000, round).unwrap();
        }
        drop(reader);
        db.checkpoint().unwrap();
        assert_eq!(db.stats().pool.blocks_kept, 0);
    }
}

#[test]
fn entries_expire_by_the_clock_of_the_process_that_reads() {
    let folder = folder();
    let path = folder.path().join("db");
    let start = UNIX_EPOCH + Duration::from_secs(1_000_000);
    let (of_writer, of_reader) = (ManualClock::at(start), ManualClock::at(start));
    let with = |clock: &ManualClock| Settings { clock: clock.clone().into(), ..settings() };
    let db = Db::create(&path, &with(&of_writer)).unwrap();
    let table = db.create_table("t").unwrap();
    table.put_with_expiry("k", "v", start + Duration::from_secs(60)).unwrap();
    let mut reader = Db::open_read_only(&path, &with(&of_reader)).unwrap();
    let is_there = |db: &Db| db.table("t").unwrap().contains_key("k").unwrap();
    assert!(is_there(&db) && is_there(&reader));
    of_reader.advance(Duration::from_secs(60));
    assert!(is_there(&db) && !is_there(&reader), "the clock of the reader is ahead");
    let behind = Db::open_read_only(&path, &with(&ManualClock::at(start))).unwrap();
    of_writer.advance(Duration::from_secs(60));
    assert!(!is_there(&db) && is_there(&behind), "the clock of the reader is behind");
    // A removed entry is gone in every later opening of the database. Its time was rounded up, and a thread of
    // the writer's may be first.
    of_writer.advance(Duration::from_secs(60));
    db.remove_expired().unwrap();
    assert_eq!(db.stats().expired_removed, 1);
    assert!(is_there(&behind) && reader.refresh().unwrap());
    assert!(!is_there(&Db::open_read_only(&path, &with(&ManualClock::at(start))).unwrap()));
}

#[test]
fn a_refresh_finds_a_database_that_has_been_put_in_the_place_of_the_first() {
    let folder = folder();
    let [path, other, old] = ["db", "other", "old"].map(|name| folder.path().join(name));
    let db = Db::create(&path, &settings()).unwrap();
    db.create_table("t").unwrap();
    for round in 0..5 {
        put(&db, 0..100, round);
    }
    db.backup(&other).unwrap();
    put(&db, 0..100, 5);
    let mut reader = Db::open_read_only(&path, &settings()).unwrap();
    check(&reader, 100, 5).unwrap();
    std::fs::rename(&path, &old).unwrap();
    assert!(matches!(reader.refresh(), Err(error) if error.kind() == ErrorKind::NotFound));
    check(&reader, 100, 5).unwrap();
    std::fs::rename(&other, &path).unwrap();
    assert!(reader.refresh().unwrap());
    check(&reader, 100, 4).unwrap();
    assert!(!reader.refresh().unwrap());
    // The first one continues under its new name.
    put(&db, 0..100, 6);
    check(&Db::open_read_only(&old, &settings()).unwrap(), 100, 6).unwrap();
}

#[test]
fn a_reader_that_was_given_up_reports_that_and_no_damage_and_a_refresh_helps() {
    let folder = folder();
    let path = folder.path().join("db");
    let db = Db::create(&path, &Settings { readers_wait_max: Duration::ZERO, ..settings() }).unwrap();
    db.create_table("t").unwrap();
    put(&db, 0..8000, 0);
    db.checkpoint().unwrap();
    let little = Settings { cache_bytes: 2 << 20, ..settings() };
    let mut reader = Db::open_read_only(&path, &little).unwrap();
    // This one has all in memory.
    let much = Db::open_read_only(&path, &settings()).unwrap();
    check(&much, 8000, 0).unwrap();
    for round in 1..4 {
        put(&db, 0..8000, round);
        db.checkpoint().unwrap();
    }
    assert_eq!(db.stats().pool.blocks_kept, 0);
    assert_eq!(kind(reader.verify().err()), Some(ErrorKind::SnapshotTooOld));
    check(&much, 8000, 0).unwrap();
    assert_eq!(kind(much.verify().err()), Some(ErrorKind::SnapshotTooOld));
    // Also where the file ends now before the blocks that it would read.
    let data_bytes = || std::fs::metadata(path.join("data")).unwrap().len();
    let before = data_bytes();
    db.table("t").unwrap().clear().unwrap();
    // A thread frees the pages of the old content.
    while data_bytes() > before / 2 {
        db.checkpoint().unwrap();
        db.shrink(Pace::Full, |_| true).unwrap();
    }
    assert_eq!(kind(reader.verify().err()), Some(ErrorKind::SnapshotTooOld));
    assert_eq!(kind(check(&reader, 8000, 0).err()), Some(ErrorKind::SnapshotTooOld));
    assert_eq!(kind(reader.backup(folder.path().join("copy")).err()), Some(ErrorKind::SnapshotTooOld));
    // The memory of this reader does not hold so many changes since a checkpoint, unless one in the background comes before it looks.
    let refused = loop {
        put(&db, 0..8000, 3);
        if let Err(error) = reader.refresh() {
            break error;
        }
    };
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
    db.checkpoint().unwrap();
    assert!(reader.refresh().unwrap());
    check(&reader, 8000, 3).unwrap();
    assert!(reader.verify().unwrap().is_clean());
}

/// Ends a thread when it is dropped, also by a panic.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A log that becomes longer while it is read is not a file that was cut short.
#[test]
fn a_database_is_opened_while_its_log_becomes_longer_all_the_time() {
    let folder = folder();
    let path = folder.path().join("db");
    let settings = Settings { cache_bytes: 64 << 20, log_bytes: 192 << 20, ..settings() };
    let db = Db::create(&path, &settings).unwrap();
    db.create_table("t").unwrap();
    let is_over = AtomicBool::new(false);
    let log_bytes = || std::fs::metadata(path.join("log")).unwrap().len();
    let (mut opened, mut grown) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (table, mut round) = (db.table("t").unwrap(), 0_u64);
            while !is_over.load(Ordering::Relaxed) {
                round += 1;
                let mut batch = Batch::new();
                for row in 0..100_u64 {
                    batch.put(&table, row.to_be_bytes(), vec![round as u8; 1000]);
                }
                db.write(batch, Durability::Deferred).unwrap();
            }
        });
        let (_end, begun) = (End(&is_over), Instant::now());
        while opened < by_depth(5, 20) && begun.elapsed() < Duration::from_secs(10) {
            let before = log_bytes();
            let reader = Db::open_read_only(&path, &settings).unwrap();
            let rows: Vec<_> = reader.table("t").unwrap().range::<&[u8]>(..).map(Result::unwrap).collect();
            assert!(rows.windows(2).all(|pair| pair[0].1 == pair[1].1), "parts of two commits");
            opened += 1;
            grown += u32::from(log_bytes() > before);
        }
    });
    println!("opened {opened} times, {grown} times beside a log that became longer");
    assert!(grown > 0);
}

/// Whatever the size of the cache, opening fails for want of it, or all that the log has changed can be read.
#[test]
fn a_database_that_could_be_opened_can_be_read_however_little_memory_there_is() {
    let folder = folder();
    let path = folder.path().join("db");
    let writing = Settings { cache_bytes: 32 << 20, log_bytes: 64 << 20, ..settings() };
    let db = Db::create(&path, &writing).unwrap();
    db.create_table("t").unwrap();
    put(&db, 0..30_000, 0);
    db.checkpoint().unwrap();
    for part in 0..10 {
        put(&db, part * 3000..(part + 1) * 3000, 1);
    }
    let mut refused = 0;
    for cache_bytes in sample((1..24).map(|mib| mib << 20), 4) {
        match Db::open_read_only(&path, &Settings { cache_bytes, ..writing.clone() }) {
            Ok(reader) => {
                check(&reader, 30_000, 1).unwrap_or_else(|error| panic!("with {cache_bytes} bytes: {error}"));
                assert!(reader.verify().unwrap().is_clean());
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                refused += 1;
            }
        }
    }
    assert!((1..by_depth(5, 23)).contains(&refused), "{refused} of 23 sizes are too small");
}

#[test]
#[ignore = "run as a child by the test below"]
fn child_of_another_user() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    std::fs::write(Path::new(&folder).join("x"), "x").unwrap_err();
    std::fs::OpenOptions::new().write(true).open(Path::new(&folder).join("data")).unwrap_err();
    let mut reader = Db::open_read_only(&folder, &settings()).unwrap();
    check(&reader, 3000, 1).unwrap();
    assert!(!reader.refresh().unwrap());
    println!("\nread by another user");
}

#[test]
fn a_user_who_may_only_read_reads_beside_the_writer() {
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        println!("left out: only root can start a process of another user");
        return;
    }
    let folder = folder();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = folder.path().join("db");
    let db = Db::create(&path, &settings()).unwrap();
    db.create_table("t").unwrap();
    put(&db, 0..3000, 0);
    db.checkpoint().unwrap();
    put(&db, 0..3000, 1);
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new(program);
    command.args(["read_only::child_of_another_user", "--exact", "--ignored", "--nocapture"]).env(FOLDER, &path);
    let output = match command.uid(65_534).gid(65_534).output() {
        Ok(output) => output,
        Err(error) => return println!("left out: another user cannot start this program ({error})"),
    };
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("read by another user"), "{said}");
    // Nothing of it is left.
    put(&db, 0..3000, 2);
    db.checkpoint().unwrap();
    assert_eq!(db.stats().pool.blocks_kept, 0);
}
