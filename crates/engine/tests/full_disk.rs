//! Tests of a full disk, with every amount of space left: commits are refused with `NoSpace`, nothing is lost, and every operation that
//! frees space still succeeds. Tables are compressed or not.

#![expect(clippy::unwrap_used, reason = "a test stops at an unexpected error")]

#[path = "common/full_disk.rs"]
mod helpers;
#[path = "common/read_by_another.rs"]
mod read_by_another;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use helpers::{BLOCK_BYTES, check, delete, fill};
use nofault::blocking::{Db, Table};
use nofault::settings::{Compression, Settings};
use nofault_io::disk::Directory;
use nofault_sim::content::Rows;
use nofault_sim::depth::{by_depth, sample};
use nofault_sim::{SimOptions, SimWorld};
use read_by_another::read_by_another;

/// Free space when a database is created: the smallest with which a test begins.
const LEAST_BYTES: u64 = 3 << 20;

/// Returns the compressions of which a test on several disks takes one after the other.
fn compressions() -> impl Iterator<Item = Compression> {
    [Compression::None, Compression::Fast, Compression::Small].into_iter().cycle()
}

/// Deletes one in `shares[0]` rows, drops the table `doomed`, deletes one in `shares[1]` rows, and then writes a few
/// rows into the space that this frees.
fn free_space(what: &str, db: &Db, table: &Table, model: &mut Rows, shares: [usize; 2]) {
    delete(what, table, model, shares[0]);
    db.checkpoint().unwrap_or_else(|error| panic!("{what}: a checkpoint: {error}"));
    db.drop_table("doomed").unwrap_or_else(|error| panic!("{what}: dropping a table: {error}"));
    db.checkpoint().unwrap();
    delete(what, table, model, shares[1]);
    db.checkpoint().unwrap();
    for row in 0..20u32 {
        let (key, value) = (row.to_be_bytes(), [7; 500]);
        table.put(key, value).unwrap_or_else(|error| panic!("{what}: a put after deletes: {error}"));
        model.insert(key.to_vec(), value.to_vec());
    }
}

/// Fills the disk with a database, frees space as a user would, and checks the content after each step: after reopening
/// with less memory, deletes, a dropped table, more puts, compaction, a power cut, and more capacity. Returns the
/// simulated disk after the power cut.
fn story(
    what: &str,
    world: &SimWorld,
    directory: &Arc<dyn Directory>,
    background_threads: bool,
    compression: Compression,
) -> SimWorld {
    let mut random = fastrand::Rng::with_seed(world.bytes_used());
    let settings = helpers::settings(2 << 20, background_threads, compression);
    let db = Db::create_in(directory, &settings).unwrap();
    let (table, doomed) = (db.create_table("t").unwrap(), db.create_table("doomed").unwrap());
    for row in 0..60u32 {
        doomed.put(row.to_be_bytes(), [1; 900]).unwrap();
    }
    let mut model = Rows::new();
    fill(what, (&db, &table), &mut model, &mut random, 220, 4);
    check(what, &table, &model);
    db.sync().unwrap();
    drop((table, doomed, db));

    // The disk is still full, and the database has less memory.
    let small = helpers::settings(1 << 20, background_threads, compression);
    let db = Db::open_in(directory, &small).unwrap_or_else(|error| panic!("{what}: reopening: {error}"));
    let table = db.table("t").unwrap();
    check(what, &table, &model);
    free_space(what, &db, &table, &mut model, [3, 2]);
    fill(what, (&db, &table), &mut model, &mut random, 220, 4);
    db.compact(nofault::db::Pace::Full, |_| true).unwrap_or_else(|error| panic!("{what}: compaction: {error}"));
    check(what, &table, &model);
    db.sync().unwrap();
    assert!(db.verify().unwrap().is_clean(), "{what}");
    let after = world.restart(3);
    drop((table, db));

    // The disk as a power cut leaves it.
    let db =
        Db::open_in(&after.directory(), &small).unwrap_or_else(|error| panic!("{what}: after a power cut: {error}"));
    let table = db.table("t").unwrap();
    check(what, &table, &model);
    after.set_capacity(None);
    for row in 0..200u32 {
        let (key, value) = (row.to_be_bytes(), [8; 900]);
        table.put(key, value).unwrap_or_else(|error| panic!("{what}: there is room again: {error}"));
        model.insert(key.to_vec(), value.to_vec());
    }
    db.checkpoint().unwrap();
    check(what, &table, &model);
    assert!(db.verify().unwrap().is_clean(), "{what}");
    drop((table, db));
    after
}

/// Runs the test for many sizes of the free space, or two of them, with each compression. `NOFAULT_FULL_STEP=1` tries every size,
/// which takes long.
#[test]
fn at_every_size_of_the_free_space_nothing_is_lost_and_deletes_free_space() {
    let blocks =
        std::env::var("NOFAULT_FULL_BLOCKS").ok().and_then(|blocks| blocks.parse().ok()).unwrap_or(by_depth(100, 600));
    let step = std::env::var("NOFAULT_FULL_STEP").ok().and_then(|step| step.parse().ok()).unwrap_or(by_depth(67, 29));
    let mut compressions = compressions();
    for blocks in (0..blocks).step_by(step) {
        for background_threads in [false, true] {
            let capacity = LEAST_BYTES + blocks * BLOCK_BYTES;
            let compression = compressions.next().unwrap();
            let what = format!("{capacity} bytes, threads: {background_threads}, {compression:?}");
            let world = SimWorld::new(blocks, SimOptions { capacity_bytes: Some(capacity), ..SimOptions::default() });
            story(&what, &world, &world.directory(), background_threads, compression);
        }
    }
}

/// All that a reader in another process may use is kept for it, but only as long as there is space.
#[test]
fn a_reader_in_another_process_takes_no_space_of_a_full_disk() {
    let mut compressions = compressions();
    let cases = [(0, false), (131, true), (287, false), (411, true), (599, false)];
    for (blocks, background_threads) in cases.into_iter().take(by_depth(3, 5)) {
        let capacity = LEAST_BYTES + blocks * BLOCK_BYTES;
        let compression = compressions.next().unwrap();
        let what = format!("{capacity} bytes, threads: {background_threads}, {compression:?}, read by another process");
        let world = SimWorld::new(blocks, SimOptions { capacity_bytes: Some(capacity), ..SimOptions::default() });
        let (directory, records) = read_by_another(world.directory());
        story(&what, &world, &directory, background_threads, compression);
        // Each of the two openings tells readers once, and says that it keeps nothing older.
        assert!(records.load(Ordering::Relaxed) > 2, "{what}: no reader was given up");
    }
}

/// Others have filled the disk since the last commit, and the free blocks are all kept for a reader.
#[test]
fn a_checkpoint_on_a_disk_that_others_have_filled_has_the_blocks_that_its_commits_have_reserved() {
    let world = SimWorld::new(1, SimOptions::default());
    let (directory, records) = read_by_another(world.directory());
    let db = Db::create_in(&directory, &helpers::settings(2 << 20, false, Compression::None)).unwrap();
    let table = db.create_table("t").unwrap();
    let put_all = |byte: u8| {
        let mut batch = nofault::Batch::new();
        (0..400u32).for_each(|row| _ = batch.put(&table, row.to_be_bytes(), [byte; 200]));
        db.write(batch, nofault::Durability::Sync).unwrap();
    };
    for byte in 0..3 {
        put_all(byte);
        db.checkpoint().unwrap();
    }
    let told = records.load(Ordering::Relaxed);
    assert!(db.stats().pool.blocks_kept > 0);
    put_all(3);
    world.set_capacity(Some(world.bytes_used()));
    db.checkpoint().unwrap();
    assert_eq!(records.load(Ordering::Relaxed), told, "a reader was given up");
    assert_eq!(table.get(399u32.to_be_bytes()).unwrap(), Some(vec![3; 200]));
}

/// A small loop-mounted file system, unmounted when this is dropped.
struct FileSystem {
    mounted: PathBuf,
    folder: tempfile::TempDir,
}

fn run(command: &mut Command) -> std::result::Result<(), String> {
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim())),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}

impl FileSystem {
    /// Creates a file system of this kind and size; or returns why that is impossible here.
    fn new(kind: &str, bytes: u64) -> std::result::Result<Self, String> {
        let folder = tempfile::tempdir().unwrap();
        let mounted = folder.path().join("mounted");
        std::fs::create_dir(&mounted).unwrap();
        if kind == "tmpfs" {
            let size = format!("size={bytes}");
            run(Command::new("mount").args(["-t", kind, "-o", &size, "none"]).arg(&mounted))?;
        } else {
            let image = folder.path().join("image");
            std::fs::File::create(&image).and_then(|file| file.set_len(bytes)).unwrap();
            run(Command::new(format!("mkfs.{kind}")).args(["-q", "-F", "-m", "0"]).arg(&image))?;
            run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&mounted))?;
        }
        Ok(Self { mounted, folder })
    }
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        // A lazy unmount when the plain one fails: files that a failed test has left open are closed when its process ends.
        let ended = run(Command::new("umount").arg(&self.mounted))
            .or_else(|_| run(Command::new("umount").arg("-l").arg(&self.mounted)));
        if let Err(why) = ended {
            eprintln!("{} stays mounted: {why}", self.folder.path().display());
        }
    }
}

/// Runs the same sequence as on the simulated disk, with files of this machine.
fn real_story(what: &str, folder: &Path, ballast: &Path, compression: Compression) {
    let mut random = fastrand::Rng::with_seed(5);
    let settings = Settings { page_bytes: 4096, seed: None, ..helpers::settings(4 << 20, true, compression) };
    let path = folder.join("db");
    let db = Db::create(&path, &settings).unwrap_or_else(|error| panic!("{what}: creating: {error}"));
    let (table, doomed) = (db.create_table("t").unwrap(), db.create_table("doomed").unwrap());
    doomed.bulk_load((0..1000u32).map(|row| (row.to_be_bytes(), [1; 900]))).unwrap();
    let mut model = Rows::new();
    fill(what, (&db, &table), &mut model, &mut random, 20, 4);
    check(what, &table, &model);
    assert!(db.stats().commits_refused_for_space > 0);
    db.sync().unwrap();
    drop((table, doomed, db));

    let small = Settings { cache_bytes: 2 << 20, ..settings };
    let db = Db::open(&path, &small).unwrap_or_else(|error| panic!("{what}: reopening: {error}"));
    let table = db.table("t").unwrap();
    check(what, &table, &model);
    free_space(what, &db, &table, &mut model, [29, 29]);
    fill(what, (&db, &table), &mut model, &mut random, 20, 4);
    db.compact(nofault::db::Pace::Full, |_| true).unwrap_or_else(|error| panic!("{what}: compaction: {error}"));
    check(what, &table, &model);
    drop((table, db));

    let db = Db::open(&path, &small).unwrap_or_else(|error| panic!("{what}: reopening again: {error}"));
    let table = db.table("t").unwrap();
    check(what, &table, &model);
    assert!(db.verify().unwrap().is_clean(), "{what}");
    // Another program frees space: the database uses it without being told.
    std::fs::remove_file(ballast).unwrap();
    for row in 0..200u32 {
        let (key, value) = (row.to_be_bytes(), vec![8; 9000]);
        table.put(key, &value).unwrap_or_else(|error| panic!("{what}: there is room again: {error}"));
        model.insert(key.to_vec(), value);
    }
    check(what, &table, &model);
    assert!(db.verify().unwrap().is_clean(), "{what}");
}

#[test]
fn on_a_small_real_file_system_nothing_is_lost_and_deletes_free_space() {
    let all =
        ["ext4", "tmpfs"].into_iter().flat_map(|kind| (0..3u64).zip(compressions()).map(move |case| (kind, case)));
    // A share of them has both file systems and all compressions.
    for (kind, (extra, compression)) in sample(all, 2) {
        let file_system = match FileSystem::new(kind, by_depth(14, 24) << 20) {
            Ok(file_system) => file_system,
            Err(why) => {
                println!("left out on {kind}: it cannot be mounted here ({why})");
                continue;
            }
        };
        let ballast = file_system.mounted.join("ballast");
        std::fs::write(&ballast, vec![1; (4 << 20) + (extra * 37 * BLOCK_BYTES) as usize]).unwrap();
        real_story(&format!("{kind}, {extra}, {compression:?}"), &file_system.mounted, &ballast, compression);
    }
}
