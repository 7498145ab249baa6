//! Many open databases in one process: they share threads and rings, and each has few descriptors and little memory.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::{Duration, Instant};

use nofault::blocking::{Db, Table};
use nofault::settings::Settings;
use nofault_sim::depth::by_depth;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::{FOLDER, child, folder, passes_in_a_child};

const DATABASES: usize = 300;
/// Most descriptors that the process may have: fewer than five for each database.
const DESCRIPTORS_MAX: u64 = 1400;
/// Data, its lock, the log, and the record for readers. The test's folder has direct I/O.
const DESCRIPTORS_EACH: usize = 4;
/// Rings that the process keeps for the next use, and the event descriptors of the threads that take completions.
const RINGS_MAX: usize = 8;
/// Most threads of all databases while none of them works.
const THREADS_MAX: usize = 16;
/// Most resident memory for each database in addition to the process's own.
const RESIDENT_BYTES_EACH: u64 = 1 << 20;
/// Time after which the test calls threads too many. Those that are left over end within seconds.
const LIMIT: Duration = Duration::from_secs(120);

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Returns the number of threads of databases in this process.
fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    // A thread that ends while this looks has no name any more.
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with("nofault-")).count()
}

/// Waits until there are at most so many threads of databases.
fn await_threads(most: usize) {
    let begun = Instant::now();
    while threads() > most {
        assert!(begun.elapsed() < LIMIT, "{} threads", threads());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until the process has at most so many descriptors.
fn await_descriptors(most: usize) {
    let begun = Instant::now();
    while descriptors() > most {
        assert!(begun.elapsed() < LIMIT, "{} descriptors, and not {most}", descriptors());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Lets tasks read entries of a database that are not in its cache.
fn read_by_tasks(db: &Db) {
    const ROWS: u32 = 3000;
    let table = db.create_table("large").unwrap();
    table.bulk_load((0..ROWS).map(|row| (row.to_be_bytes(), [row as u8; 1000]))).unwrap();
    let misses = db.stats().pool.misses;
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    drop(table);
    runtime.block_on(async {
        let table = db.asynchronous().table("large").await.unwrap();
        for row in (0..ROWS).step_by(10) {
            assert_eq!(table.get(row.to_be_bytes()).await.unwrap(), Some(vec![row as u8; 1000]));
        }
    });
    assert!(db.stats().pool.misses > misses, "there was nothing to read");
    db.drop_table("large").unwrap();
}

fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * rustix::param::page_size() as u64
}

#[test]
#[ignore = "run as a child by the test below"]
fn child_with_many_databases() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let folder = Path::new(&folder);
    let limit = getrlimit(Resource::Nofile);
    let (count, descriptors_max) = by_depth((60, DESCRIPTORS_MAX / 4), (DATABASES, DESCRIPTORS_MAX));
    setrlimit(Resource::Nofile, Rlimit { current: Some(descriptors_max), ..limit }).unwrap();
    let (descriptors_before, resident_before) = (descriptors(), resident_bytes());
    let create = |number: usize| {
        let db = Db::create(folder.join(number.to_string()), &Settings::small(2, 1)).unwrap();
        let table = db.create_table("t").unwrap();
        table.put("number", number.to_string()).unwrap();
        (db, table)
    };
    let databases: Vec<(Db, Table)> = (0..count).map(create).collect();
    let check = |databases: &[(Db, Table)]| {
        for (number, (_, table)) in databases.iter().enumerate() {
            assert_eq!(table.get("number").unwrap(), Some(number.to_string().into_bytes()));
        }
    };
    check(&databases);
    // For tasks the database keeps a ring and its descriptors, but not for long after the last has waited for a read.
    databases[..RINGS_MAX].iter().for_each(|(db, _)| read_by_tasks(db));
    await_threads(THREADS_MAX);
    await_descriptors(descriptors_before + count * DESCRIPTORS_EACH + RINGS_MAX);
    let each = (descriptors() - descriptors_before) / count;
    assert!(each <= DESCRIPTORS_EACH, "{each} descriptors for each database");
    let resident = (resident_bytes() - resident_before) / count as u64;
    assert!(resident <= RESIDENT_BYTES_EACH, "{resident} bytes of memory for each database");
    // Half of them in each way of ending.
    for (number, (db, table)) in databases.into_iter().enumerate() {
        if number % 2 == 0 { db.close().unwrap() } else { drop((table, db)) }
    }
    await_threads(0);
    assert_eq!(descriptors(), descriptors_before, "all descriptors are given back");
    // A runtime that has ended begins again with the next database.
    let open = |number: usize| {
        let db = Db::open(folder.join(number.to_string()), &Settings::small(2, 1)).unwrap();
        let table = db.table("t").unwrap();
        (db, table)
    };
    for number in 0..20 {
        let databases: Vec<_> = (0..1 + number % 3).map(open).collect();
        check(&databases);
    }
    await_threads(0);
    assert_eq!(descriptors(), descriptors_before);
    println!("each: {each} descriptors, {resident} bytes resident");
}

#[test]
fn many_databases_share_threads_and_have_few_descriptors_and_little_memory() {
    let folder = folder();
    passes_in_a_child("many::child_with_many_databases", folder.path());
}

/// Threads that open and close databases at a time, and how often each does.
const OPENERS: usize = 6;
/// Environment variable with another number of openings for each of them.
const OPENINGS: &str = "NOFAULT_OPENINGS";
const OPENINGS_USUAL: usize = 40;
/// Most growth of resident memory from the first half of the openings to their end. A runtime kept for each database that was
/// the last, or a ring, would take more.
const GROWTH_BYTES_MAX: u64 = 24 << 20;

/// Opens, uses and closes a database, in one of the ways in which programs do that.
fn open_use_and_close(path: &Path, turn: usize) {
    let db = Db::open_or_create(path, &Settings::small(2, 1)).unwrap();
    let table = db.open_or_create_table("t").unwrap();
    let value = turn.to_string();
    if turn.is_multiple_of(3) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let table: &nofault::Table = table.as_ref();
            table.put("turn", &value).await.unwrap();
            assert_eq!(table.get("turn").await.unwrap(), Some(value.into_bytes()));
        });
    } else {
        table.put("turn", &value).unwrap();
        assert_eq!(table.get("turn").unwrap(), Some(value.into_bytes()));
    }
    if turn.is_multiple_of(2) { db.close().unwrap() } else { drop((table, db)) }
}

#[test]
#[ignore = "run as a child by the test below"]
fn child_that_opens_and_closes() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let folder = Path::new(&folder);
    let openings = std::env::var(OPENINGS).map_or(OPENINGS_USUAL, |text| text.parse().unwrap());
    let descriptors_before = descriptors();
    let open_and_close = || {
        std::thread::scope(|scope| {
            for opener in 0..OPENERS {
                let path = folder.join(opener.to_string());
                scope.spawn(move || (0..openings / 2).for_each(|turn| open_use_and_close(&path, turn)));
            }
        });
        await_threads(0);
        assert_eq!(descriptors(), descriptors_before, "all descriptors are given back");
        resident_bytes()
    };
    let (first, second) = (open_and_close(), open_and_close());
    assert!(second <= first + GROWTH_BYTES_MAX, "{first} bytes of memory, then {second}");
    println!("resident: {first} bytes, then {second}");
}

#[test]
fn databases_that_are_opened_and_closed_beside_each_other_leave_no_threads_descriptors_and_memory() {
    let folder = folder();
    passes_in_a_child("many::child_that_opens_and_closes", folder.path());
    for opener in 0..OPENERS {
        let db = Db::open(folder.path().join(opener.to_string()), &Settings::small(2, 1)).unwrap();
        assert!(db.verify().unwrap().is_clean());
    }
}

#[test]
#[ignore = "run as a child by the test below"]
fn child_that_ends_beside_open_databases() {
    const ROWS: u32 = 200;
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let open = |number: usize| {
        let db = Db::create(Path::new(&folder).join(number.to_string()), &Settings::small(2, 1)).unwrap();
        let table = db.create_table("t").unwrap();
        (db, table)
    };
    let databases: Vec<(Db, Table)> = (0..OPENERS).map(open).collect();
    // Never dropped.
    let databases = Box::leak(databases.into_boxed_slice());
    for (_, table) in &*databases {
        std::thread::spawn(|| {
            for row in 0_u64.. {
                table.put(row.to_be_bytes(), vec![7; 5000]).unwrap();
            }
        });
    }
    while databases.iter().any(|(_, table)| table.get(u64::from(ROWS).to_be_bytes()).unwrap().is_none()) {
        std::thread::yield_now();
    }
    println!("\nended");
    std::process::exit(0);
}

#[test]
fn a_process_ends_beside_the_work_of_databases_that_it_has_open() {
    let folder = folder();
    let mut ending = child("many::child_that_ends_beside_open_databases", folder.path(), &[]);
    let mut lines = BufReader::new(ending.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "ended"), "the child has failed");
    assert!(ending.wait().unwrap().success());
    for number in 0..OPENERS {
        let db = Db::open(folder.path().join(number.to_string()), &Settings::small(2, 1)).unwrap();
        assert!(db.verify().unwrap().is_clean());
        assert!(db.table("t").unwrap().len().unwrap() > 200);
    }
}
