//! Processes reading a database while another writes it, with `kill -9` of either side.
//!
//! The writer moves amounts between accounts, so that the sum of all is the same after each commit, and counts its commits.
//! So a reader that sees parts of two states finds another sum, and one that misses what was reported before it opened the
//! database finds a smaller count.

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nofault::blocking::Db;
use nofault::db::Pace;
use nofault::error::{Error, ErrorKind};
use nofault::settings::{CompactionMode, Settings};
use nofault::{Batch, Durability};
use nofault_sim::depth::by_depth;

use crate::{FOLDER, child, folder};

const ACCOUNTS: u64 = 12_000;
const SUM: u64 = 1000 * ACCOUNTS;
const READERS: usize = 8;
/// Environment variable with the writer's `readers_wait_max` in milliseconds.
const WAIT: &str = "NOFAULT_CHILD_WAIT";

fn settings() -> Settings {
    // A small log, so that there are checkpoints all the time.
    let wait: u64 = std::env::var(WAIT).map_or(300_000, |wait| wait.parse().unwrap());
    Settings {
        cache_bytes: 6 << 20,
        log_bytes: 2 << 20,
        readers_wait_max: Duration::from_millis(wait),
        ..Settings::default()
    }
}

fn row(amount: u64, commit: u64) -> Vec<u8> {
    let mut row = vec![commit as u8; 300 + (commit % 200) as usize];
    row[..8].copy_from_slice(&amount.to_le_bytes());
    row
}

fn amount(row: &[u8]) -> u64 {
    u64::from_le_bytes(row[..8].try_into().unwrap())
}

fn create(path: &Path) {
    let db = Db::create(path, &settings()).unwrap();
    let table = db.create_table("t").unwrap();
    table.bulk_load((0..ACCOUNTS).map(|account| (account.to_be_bytes(), row(1000, 0)))).unwrap();
    db.create_table("count").unwrap().put("commits", 0_u64.to_le_bytes()).unwrap();
    drop(table);
    db.close().unwrap();
}

#[test]
#[ignore = "run as a child by the tests below"]
fn child_that_writes() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let db = Db::open(&folder, &settings()).unwrap();
    let (table, count) = (db.table("t").unwrap(), db.table("count").unwrap());
    let mut commit = u64::from_le_bytes(count.get("commits").unwrap().unwrap().try_into().unwrap());
    let mut rng = fastrand::Rng::with_seed(commit);
    loop {
        commit += 1;
        let (from, to) = (rng.u64(..ACCOUNTS), rng.u64(..ACCOUNTS));
        let value = |account: u64| amount(&table.get(account.to_be_bytes()).unwrap().unwrap());
        let moved = rng.u64(..=value(from));
        let mut batch = Batch::new();
        if from != to {
            batch.put(&table, from.to_be_bytes(), row(value(from) - moved, commit));
            batch.put(&table, to.to_be_bytes(), row(value(to) + moved, commit));
        }
        batch.put(&count, "commits", commit.to_le_bytes());
        db.write(batch, Durability::Sync).unwrap();
        if commit % 4000 == 0 {
            db.compact(Pace::Full, |_| true).unwrap();
        }
        // One write to a pipe: whole or missing.
        std::io::stdout().write_all(format!("committed {commit}\n").as_bytes()).unwrap();
    }
}

/// A state that a reader has found: its commit, the count of commits in it, and the sum of the accounts.
fn look(db: &Db) -> Result<(u64, u64), Error> {
    let count = db.table("count")?.get("commits")?.unwrap();
    let (mut sum, mut rows) = (0, 0);
    for entry in db.table("t")?.range::<&[u8]>(..) {
        sum += amount(&entry?.1);
        rows += 1;
    }
    assert_eq!((rows, sum), (ACCOUNTS, SUM), "a mixture of states, at {count:?}");
    Ok((db.snapshot().commit().0, u64::from_le_bytes(count.try_into().unwrap())))
}

#[test]
#[ignore = "run as a child by the tests below"]
fn child_that_reads() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let mut db = Db::open_read_only(&folder, &settings()).unwrap();
    let mut rng = fastrand::Rng::new();
    let (mut last, mut too_old) = (0, 0);
    loop {
        // Sometimes several times, so that pages are read long after a newer checkpoint.
        for _ in 0..rng.u32(1..4) {
            match look(&db) {
                Ok((_, count)) => {
                    assert!(count >= last, "{count} after {last}");
                    last = count;
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::SnapshotTooOld, "{error}");
                    too_old += 1;
                    break;
                }
            }
        }
        std::io::stdout().write_all(format!("saw {last} {too_old}\n").as_bytes()).unwrap();
        db.refresh().unwrap();
    }
}

/// A child, and the number behind a word in the last line that it has written.
struct WatchedChild {
    child: Child,
    last: Arc<AtomicU64>,
    lines: Arc<AtomicU64>,
}

impl WatchedChild {
    fn start(name: &str, path: &Path, word: &'static str, variables: &[(&str, &str)]) -> Self {
        let mut child = child(name, path, variables);
        let out: ChildStdout = child.stdout.take().unwrap();
        let (last, lines) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (of_thread, count) = (Arc::clone(&last), Arc::clone(&lines));
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                // The harness prints before it, on the same line perhaps.
                let Some((_, rest)) = line.rsplit_once(word) else { continue };
                let Some(number) = rest.split_whitespace().next().and_then(|number| number.parse().ok()) else {
                    continue;
                };
                of_thread.store(number, Ordering::SeqCst);
                count.fetch_add(1, Ordering::SeqCst);
            }
        });
        Self { child, last, lines }
    }

    fn last(&self) -> u64 {
        self.last.load(Ordering::SeqCst)
    }

    /// Waits until the child has written another line, or panics when it has ended.
    fn goes_on(&mut self) {
        let before = self.lines.load(Ordering::SeqCst);
        while self.lines.load(Ordering::SeqCst) == before {
            if let Some(ended) = self.child.try_wait().unwrap() {
                panic!("a child ended: {ended}");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for WatchedChild {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn writer(path: &Path, wait: &str) -> WatchedChild {
    WatchedChild::start("readers::child_that_writes", path, "committed ", &[(WAIT, wait)])
}

fn reader(path: &Path) -> WatchedChild {
    WatchedChild::start("readers::child_that_reads", path, "saw ", &[])
}

#[test]
fn readers_see_whole_states_beside_a_writer_and_either_side_may_be_killed_at_any_moment() {
    let folder = folder();
    let path = folder.path().join("db");
    create(&path);
    let readers = by_depth(3, READERS);
    let mut writing = writer(&path, "300000");
    writing.goes_on();
    let mut reading: Vec<WatchedChild> = (0..readers).map(|_| reader(&path)).collect();
    let mut rng = fastrand::Rng::with_seed(1);
    for round in 0..by_depth(3, 10) {
        reading.iter_mut().for_each(WatchedChild::goes_on);
        let reported = writing.last();
        let db = Db::open_read_only(&path, &settings()).unwrap();
        let (_, count) = look(&db).unwrap();
        assert!(count >= reported, "round {round}: {reported} were reported, {count} are seen");
        let at = rng.usize(..readers);
        reading[at] = reader(&path);
        if round % 3 == 2 {
            writing.child.kill().unwrap();
            writing.child.wait().unwrap();
            writing = writer(&path, "300000");
            writing.goes_on();
        }
        writing.goes_on();
    }
    drop((reading, writing));
    // The registrations of readers that were killed are gone: nothing is kept, and an ordinary opening works.
    let db = Db::open(&path, &settings()).unwrap();
    look(&db).unwrap();
    let verification = db.verify().unwrap();
    assert!(verification.is_clean(), "{:?}", verification.problems);
}

#[test]
fn a_reader_that_is_waited_for_too_long_gets_an_error_and_never_wrong_data() {
    let folder = folder();
    let path = folder.path().join("db");
    create(&path);
    // Their blocks are used again soon.
    let mut writing = writer(&path, "20");
    writing.goes_on();
    let mut reading: Vec<WatchedChild> = (0..3).map(|_| reader(&path)).collect();
    for _ in 0..by_depth(3, 15) {
        reading.iter_mut().for_each(WatchedChild::goes_on);
    }
    // One that stays where it is.
    let db = Db::open_read_only(&path, &Settings { cache_bytes: 4 << 20, ..settings() }).unwrap();
    let error = loop {
        match look(&db) {
            Ok(_) => writing.goes_on(),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::SnapshotTooOld, "{error}");
    assert!(error.to_string().contains("refresh"), "{error}");
}

#[test]
fn a_reader_that_stays_sees_its_state_while_its_blocks_are_kept_and_the_file_is_short_again_afterwards() {
    let folder = folder();
    let path = folder.path().join("db");
    create(&path);
    let settings = Settings { compaction: CompactionMode::Manual, ..settings() };
    let db = Db::open(&path, &settings).unwrap();
    let table = db.table("t").unwrap();
    // Smaller than the data, so that it reads the file.
    let reading = Settings { cache_bytes: 1 << 20, ..settings.clone() };
    let reader = Db::open_read_only(&path, &reading).unwrap();
    let (commit, _) = look(&reader).unwrap();
    for round in 1..by_depth(3, 6) {
        for account in 0..ACCOUNTS {
            table.put(account.to_be_bytes(), row(2000, round)).unwrap();
        }
        db.checkpoint().unwrap();
        db.shrink(Pace::Full, |_| true).unwrap();
        assert_eq!(look(&reader).unwrap().0, commit, "round {round}");
    }
    let kept = std::fs::metadata(path.join("data")).unwrap().len();
    let write = |result: Result<(), Error>| assert_eq!(result.unwrap_err().kind(), ErrorKind::ReadOnly);
    let seen = reader.table("t").unwrap();
    write(seen.put("k", "v"));
    write(reader.create_table("other").map(drop));
    write(reader.drop_table("t"));
    write(reader.checkpoint());
    write(reader.compact(Pace::Full, |_| true).map(drop));
    write(seen.bulk_load([("k", "v")]).map(drop));
    write(seen.delete_range::<&[u8]>(..).map(drop));
    assert_eq!(look(&reader).unwrap().0, commit);
    assert!(reader.verify().unwrap().is_clean());
    drop(seen);
    reader.close().unwrap();
    db.checkpoint().unwrap();
    db.shrink(Pace::Full, |_| true).unwrap();
    let after = std::fs::metadata(path.join("data")).unwrap().len();
    assert!(after < kept, "{kept} bytes with a reader, {after} without");
}

#[test]
fn a_handle_moves_on_with_refresh_and_what_was_opened_before_stays() {
    let folder = folder();
    let path = folder.path().join("db");
    create(&path);
    let db = Db::open(&path, &settings()).unwrap();
    let mut reader = Db::open_read_only(&path, &settings()).unwrap();
    assert!(reader.is_read_only() && !db.is_read_only());
    let before = reader.table("t").unwrap();
    db.table("t").unwrap().put("new", "1").unwrap();
    assert!(reader.refresh().unwrap());
    assert_eq!(reader.table("t").unwrap().get("new").unwrap(), Some(b"1".to_vec()));
    assert_eq!(before.get("new").unwrap(), None);
    assert!(!reader.refresh().unwrap());
    db.checkpoint().unwrap();
    assert!(!reader.refresh().unwrap(), "a checkpoint is no news");
    // The writer goes, and comes back.
    drop(db);
    assert_eq!(reader.table("t").unwrap().get("new").unwrap(), Some(b"1".to_vec()));
    let db = Db::open(&path, &settings()).unwrap();
    db.table("t").unwrap().put("new", "2").unwrap();
    assert!(reader.refresh().unwrap());
    assert_eq!(reader.table("t").unwrap().get("new").unwrap(), Some(b"2".to_vec()));
}

/// The files of a folder with their bytes and times.
fn files(folder: &Path) -> Vec<(std::ffi::OsString, Vec<u8>, std::time::SystemTime)> {
    let entries = std::fs::read_dir(folder).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_file());
    let mut files: Vec<_> = entries
        .map(|entry| {
            let mut bytes = Vec::new();
            std::fs::File::open(entry.path()).unwrap().read_to_end(&mut bytes).unwrap();
            (entry.file_name(), bytes, entry.metadata().unwrap().modified().unwrap())
        })
        .collect();
    files.sort();
    files
}

#[test]
fn a_backup_is_read_by_many_without_a_byte_of_it_changing_and_without_a_writer() {
    let folder = folder();
    let (path, copy) = (folder.path().join("db"), folder.path().join("copy"));
    create(&path);
    let db = Db::open(&path, &settings()).unwrap();
    db.backup(&copy).unwrap();
    let before = files(&copy);
    let readers: Vec<Db> = (0..READERS).map(|_| Db::open_read_only(&copy, &settings()).unwrap()).collect();
    for reader in &readers {
        look(reader).unwrap();
    }
    // Nothing tells a writer of them, so none may come.
    assert_eq!(Db::open(&copy, &settings()).unwrap_err().kind(), ErrorKind::Busy);
    drop(readers);
    assert!(files(&copy) == before);
    // And none comes while one writes that has left no record.
    let opened = Db::open(&copy, &settings()).unwrap();
    std::fs::remove_file(copy.join("readers.nofault")).unwrap();
    let error = Db::open_read_only(&copy, &settings()).unwrap_err();
    assert!(error.kind() == ErrorKind::Busy && error.to_string().contains("readers.nofault"), "{error}");
    drop(opened);
    look(&Db::open_read_only(&copy, &settings()).unwrap()).unwrap();
}

#[test]
fn a_database_that_was_killed_is_read_with_its_log_and_stays_as_it_is() {
    let folder = folder();
    let path = folder.path().join("db");
    create(&path);
    let mut writing = writer(&path, "300000");
    while writing.last() < 500 {
        writing.goes_on();
    }
    drop(writing.child.kill());
    writing.child.wait().unwrap();
    let before = files(&path);
    let reader = Db::open_read_only(&path, &settings()).unwrap();
    let (_, count) = look(&reader).unwrap();
    assert!(count >= writing.last(), "{count}");
    drop(reader);
    assert!(files(&path) == before);
}

#[test]
fn a_log_that_changes_more_than_fits_in_memory_is_refused_with_the_remedy() {
    let folder = folder();
    let path = folder.path().join("db");
    let roomy = Settings { cache_bytes: 32 << 20, log_bytes: 64 << 20, ..Settings::default() };
    let db = Db::create(&path, &roomy).unwrap();
    let table = db.create_table("t").unwrap();
    let mut batch = Batch::new();
    for row in 0..12_000_u64 {
        batch.put(&table, row.to_be_bytes(), vec![7; 1000]);
    }
    db.write(batch, Durability::Sync).unwrap();
    let error = Db::open_read_only(&path, &Settings { cache_bytes: 2 << 20, ..roomy.clone() }).unwrap_err();
    assert!(error.kind() == ErrorKind::NoSpace && error.to_string().contains("cache_bytes"), "{error:?}");
    let reader = Db::open_read_only(&path, &roomy).unwrap();
    assert_eq!(reader.table("t").unwrap().len().unwrap(), 12_000);
    db.checkpoint().unwrap();
    let reader = Db::open_read_only(&path, &Settings { cache_bytes: 2 << 20, ..roomy }).unwrap();
    assert_eq!(reader.table("t").unwrap().len().unwrap(), 12_000);
}

/// A mount that ends with the test.
struct Mount<'a>(&'a Path);

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(self.0).status();
    }
}

#[test]
fn a_read_only_mount_is_read_beside_a_writer() {
    let folder = folder();
    let (path, mount) = (folder.path().join("db"), folder.path().join("mount"));
    create(&path);
    std::fs::create_dir(&mount).unwrap();
    let run = |program: &str, arguments: &[&std::ffi::OsStr]| {
        std::process::Command::new(program).args(arguments).output().is_ok_and(|done| done.status.success())
    };
    if !run("mount", &["--bind".as_ref(), path.as_ref(), mount.as_ref()]) {
        println!("skipped: this user may not mount");
        return;
    }
    let _mounted = Mount(&mount);
    assert!(run("mount", &["-o".as_ref(), "remount,bind,ro".as_ref(), mount.as_ref()]));
    std::fs::write(mount.join("x"), "x").unwrap_err();
    let mut writing = writer(&path, "300000");
    writing.goes_on();
    let mut reading: Vec<WatchedChild> = (0..2).map(|_| reader(&mount)).collect();
    for _ in 0..by_depth(2, 5) {
        reading.iter_mut().for_each(WatchedChild::goes_on);
        let reported = writing.last();
        let (_, count) = look(&Db::open_read_only(&mount, &settings()).unwrap()).unwrap();
        assert!(count >= reported, "{reported} were reported, {count} are seen");
    }
    drop(writing);
    reading.iter_mut().for_each(WatchedChild::goes_on);
}
