//! The events and spans of the feature `tracing`, as a subscriber gets them, against the tables of their documentation.
//!
//! One test, because a process has one subscriber, and because the threads of other databases would add to what it collects.

#![expect(clippy::unwrap_used, reason = "a test stops at an unexpected error")]

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use nofault::blocking::Db;
use nofault::db::Pace;
use nofault::error::ErrorKind;
use nofault::events::STALL;
use nofault::settings::{CompactionMode, Settings};
use nofault::{Batch, Durability};
use nofault_io::disk::Directory;
use nofault_sim::depth::by_depth;
use nofault_sim::{Call, Effect, Fault, Hooks, SimOptions, SimWorld};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use tracing_core::span::Current;

/// An event or the beginning of a span.
#[derive(Debug, Clone)]
struct Told {
    name: &'static str,
    level: String,
    fields: BTreeMap<String, String>,
    /// The spans of the thread that made it, and the parent of a span.
    spans: Vec<String>,
    is_span: bool,
}

#[derive(Default)]
struct Collector {
    told: Mutex<Vec<Told>>,
    /// The names and `folder` fields of spans, by id.
    spans: Mutex<BTreeMap<u64, (String, &'static Metadata<'static>)>>,
    next: AtomicU64,
}

thread_local! {
    static INSIDE: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Default)]
struct Fields(BTreeMap<String, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }
}

impl Collector {
    fn add(&self, metadata: &Metadata<'static>, fields: Fields, is_span: bool) {
        assert_eq!(metadata.target(), "nofault");
        let inside = INSIDE.with_borrow(|inside| inside.clone());
        let spans = inside.iter().map(|id| lock(&self.spans)[id].0.clone()).collect();
        let (name, level) = (metadata.name(), metadata.level().to_string());
        lock(&self.told).push(Told { name, level, fields: fields.0, spans, is_span });
    }

    /// Returns all that was told since the last call.
    fn take(&self) -> Vec<Told> {
        std::mem::take(&mut *lock(&self.told))
    }
}

struct Shared(Arc<Collector>);

impl Subscriber for Shared {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "nofault"
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        let id = self.0.next.fetch_add(1, Ordering::Relaxed) + 1;
        let name = attributes.metadata().name();
        let shown = fields.0.get("folder").map_or(name.to_owned(), |folder| format!("{name} {folder}"));
        lock(&self.0.spans).insert(id, (shown, attributes.metadata()));
        self.0.add(attributes.metadata(), fields, true);
        Id::from_u64(id)
    }

    fn current_span(&self) -> Current {
        let innermost = INSIDE.with_borrow(|inside| inside.last().copied());
        innermost.map_or_else(Current::none, |id| Current::new(Id::from_u64(id), lock(&self.0.spans)[&id].1))
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        fields.0.remove("message");
        self.0.add(event.metadata(), fields, false);
    }

    fn enter(&self, id: &Id) {
        INSIDE.with_borrow_mut(|inside| inside.push(id.into_u64()));
    }

    fn exit(&self, id: &Id) {
        let left = INSIDE.with_borrow_mut(Vec::pop);
        assert_eq!(left, Some(id.into_u64()), "spans are left in the reverse order");
    }
}

/// The rows of the tables in the documentation: name, whether it is a span, level, fields.
fn documented() -> BTreeMap<(String, bool), (String, BTreeSet<String>)> {
    let mut rows = BTreeMap::new();
    let mut is_span = true;
    for line in include_str!("../src/events.rs").lines() {
        let Some(row) = line.strip_prefix("//! | ") else { continue };
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        match cells[0] {
            "span" => is_span = true,
            "event" => is_span = false,
            name => {
                let fields = cells[2].split(", ").map(|field| field.trim_matches('`').to_owned());
                let fields = fields.filter(|field| !field.is_empty()).collect();
                rows.insert((name.trim_matches('`').to_owned(), is_span), (cells[1].to_owned(), fields));
            }
        }
    }
    rows
}

fn settings() -> Settings {
    Settings { cache_bytes: 4 << 20, log_bytes: 4 << 20, compaction: CompactionMode::Manual, ..Settings::default() }
}

fn find<'t>(told: &'t [Told], name: &str) -> &'t Told {
    told.iter().find(|told| told.name == name).unwrap_or_else(|| panic!("no {name} in {told:#?}"))
}

/// Pauses that the disks of a test make before calls: how many, of which length, on the threads of which name; of any by
/// default.
#[derive(Default)]
struct Pauses(Mutex<(u32, Duration, Option<&'static str>)>);

impl Pauses {
    /// Returns the directory with pauses before the calls to it and its disks.
    fn of(self: &Arc<Self>, directory: Arc<dyn Directory>) -> Arc<dyn Directory> {
        let pauses = Arc::clone(self);
        let hooks = Hooks::new().each(move || {
            let pause = {
                let (left, pause, thread) = &mut *lock(&pauses.0);
                let is_here = thread.is_none() || *thread == std::thread::current().name();
                (*left > 0 && is_here).then(|| {
                    *left -= 1;
                    *pause
                })
            };
            pause.into_iter().for_each(std::thread::sleep);
            true
        });
        hooks.directory(directory)
    }

    /// Runs `work`; the next calls in that time are paused.
    fn during<T>(&self, pauses: (u32, Duration, Option<&'static str>), work: impl FnOnce() -> T) -> T {
        *lock(&self.0) = pauses;
        let outcome = work();
        lock(&self.0).0 = 0;
        outcome
    }
}

/// Makes waits longer than the bound, a slow opening, and one that repairs a superblock.
fn waits_and_openings(take: &mut impl FnMut() -> Vec<Told>) {
    let (world, pauses) = (SimWorld::new(2, SimOptions::calm()), Arc::new(Pauses::default()));
    let settings = Settings { log_bytes: 1 << 20, ..settings() };
    let directory = pauses.of(world.directory());
    let long = STALL + Duration::from_millis(100);
    let db = Db::create_in(&directory, &settings).unwrap();
    let table = db.create_table("table").unwrap();
    let mut stalled = |what: &str| {
        let told = take();
        let stall = told.iter().find(|told| told.name == "stall" && told.fields["wait"] == what);
        let stall = stall.unwrap_or_else(|| panic!("no stall of {what} in {told:#?}"));
        assert!(stall.fields["ms"].parse::<u64>().unwrap() >= STALL.as_millis() as u64, "{stall:?}");
    };
    pauses.during((1, long, None), || table.put("a", "1").unwrap());
    stalled("commit");
    let longest_ns = db.stats().histograms.commit_ns.percentile(100.0);
    assert!((STALL.as_nanos()..100 * STALL.as_nanos()).contains(&u128::from(longest_ns)), "{longest_ns} ns");
    let mut batch = Batch::new();
    (0..1500_u32).for_each(|row| _ = batch.put(&table, row.to_be_bytes(), vec![row as u8; 3000]));
    db.write(batch, Durability::Sync).unwrap();
    drop(table);
    db.close().unwrap();
    let db = Db::open_in(&directory, &settings).unwrap();
    let table = db.table("table").unwrap();
    pauses.during((1, long, None), || table.get(1000_u32.to_be_bytes()).unwrap().unwrap());
    stalled("read");
    drop(table);
    db.close().unwrap();

    world.zero_range("data", 0..4096).unwrap();
    // A log that no commit below fills, so that no checkpoint comes between them.
    let settings = Settings { log_bytes: 8 << 20, ..settings };
    let db = Db::open_in(&directory, &settings).unwrap();
    let told = take();
    assert_eq!([find(&told, "repaired").fields["what"].clone()].to_vec(), db.stats().repairs);

    // A long log, read slowly after a power cut. A checkpoint just before it, on a busy machine, leaves less of it: not each time.
    let (mut db, mut pause) = (Some(db), Duration::from_millis(by_depth(30, 150)));
    let (told, db) = loop {
        let filled = db.take().unwrap_or_else(|| Db::open_in(&directory, &settings).unwrap());
        let table = filled.table("table").unwrap();
        (0..200_u32).for_each(|row| table.put(row.to_be_bytes(), vec![1; 3000]).unwrap());
        let after = world.restart(1);
        drop(table);
        filled.close().unwrap();
        take();
        let slow = pauses.of(after.directory());
        let db = pauses.during((u32::MAX, pause, None), || Db::open_in(&slow, &settings).unwrap());
        let told = take();
        let is_told = told.iter().any(|told| told.name == "open_progress");
        let is_long = find(&told, "opened").fields["replayed"].parse::<u64>().unwrap() >= 150;
        if is_told || (is_long && pause >= Duration::from_millis(150)) {
            break (told, db);
        }
        if is_long {
            pause *= 2;
        }
    };
    let progress = find(&told, "open_progress");
    assert_eq!(progress.fields["step"], "replay");
    let (done, ms) = (&progress.fields["done"], &progress.fields["ms"]);
    assert!((1..=300).contains(&done.parse::<u64>().unwrap()) && ms.parse::<u64>().unwrap() >= 1000, "{progress:?}");
    assert!(progress.spans.ends_with(&["open".into()]), "{progress:?}");
    drop(db);
    take();
}

/// Makes a commit wait longer than the bound, for `what`: the threads of these names, without which it cannot go on, make no calls
/// to the disk until it has ended.
fn held_up(what: &str, threads: &'static [&'static str], settings: &Settings, take: &mut impl FnMut() -> Vec<Told>) {
    let calls = Arc::new(RwLock::new(()));
    let behind = Arc::clone(&calls);
    let hooks = Hooks::new().each(move || {
        if std::thread::current().name().is_some_and(|name| threads.contains(&name)) {
            drop(behind.read().unwrap_or_else(PoisonError::into_inner));
        }
        true
    });
    let directory = hooks.directory(SimWorld::new(3, SimOptions::calm()).directory());
    let db = Db::create_in(&directory, settings).unwrap();
    let table = db.create_table("table").unwrap();
    let is_stall = |told: &Told| told.name == "stall" && told.fields["wait"] == what;
    // Once, as a rule: again where the machine itself stood still, so that the commit had not begun to wait.
    while !take().iter().any(is_stall) {
        let closed = calls.write().unwrap_or_else(PoisonError::into_inner);
        let (done, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    // A hundred kilobytes; of all rows twice the cache.
                    let number = done.load(Ordering::Relaxed) as u32;
                    let mut batch = Batch::new();
                    (0..25).for_each(|row| {
                        batch.put(&table, ((number * 25 + row) % 2000).to_be_bytes(), vec![number as u8; 4000]);
                    });
                    db.write(batch, Durability::Deferred).unwrap();
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
            let (mut before, mut now) = (None, Some(0));
            while before != now {
                std::thread::sleep(STALL + Duration::from_millis(100));
                (before, now) = (now, Some(done.load(Ordering::Relaxed)));
            }
            println!("{what}: {now:?} commits before one waited");
            is_over.store(true, Ordering::Relaxed);
            drop(closed);
            writer.join().unwrap();
        });
    }
    drop(table);
    db.close().unwrap();
    take();
}

#[test]
fn a_subscriber_gets_what_the_documentation_says() {
    let collector = Arc::new(Collector::default());
    tracing::subscriber::set_global_default(Shared(Arc::clone(&collector))).unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let mut all = Vec::new();
    let mut take = || {
        let told = collector.take();
        all.extend(told.iter().cloned());
        told
    };

    // The life of a database.
    let path = scratch.path().join("db");
    let db = Db::create(&path, &settings()).unwrap();
    let told = take();
    let opened = find(&told, "opened");
    assert_eq!(opened.spans, [format!("database {}", path.display()), "open".into()]);
    assert_eq!(opened.fields["replayed"], "0");
    let table = db.create_table("table").unwrap();
    let mut batch = Batch::new();
    for key in 0..400_u32 {
        batch.put(&table, key.to_be_bytes(), vec![b'v'; 1000]);
    }
    db.write(batch, Durability::Sync).unwrap();
    db.checkpoint().unwrap();
    db.compact(Pace::Full, |_| true).unwrap();
    let told = take();
    assert!(find(&told, "checkpoint_made").spans.ends_with(&["checkpoint".into()]));
    assert_eq!(find(&told, "compaction_ended").fields["work"], "shrink");
    drop(table);
    db.close().unwrap();
    let told = take();
    assert_eq!(find(&told, "closed").spans, [format!("database {}", path.display())]);

    // A damaged page, and an opening that fails.
    let data = path.join("data");
    let mut bytes = std::fs::read(&data).unwrap();
    let blocks = bytes.len() / 4096;
    (8..blocks).for_each(|block| bytes[block * 4096 + 2000] ^= 1);
    let damaged = scratch.path().join("damaged");
    std::fs::create_dir(&damaged).unwrap();
    for entry in std::fs::read_dir(&path).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), damaged.join(entry.file_name())).unwrap();
    }
    // From the back, so that the page table, which the last checkpoint wrote, may stay whole: else opening says so.
    let mut found = false;
    let sound = std::fs::read(&data).unwrap();
    let is_written = |block: &usize| sound[block * 4096..][..4096].iter().any(|byte| *byte != 0);
    for block in (8..blocks).rev().filter(is_written) {
        let mut one = sound.clone();
        one[block * 4096 + 2000] ^= 1;
        std::fs::write(damaged.join("data"), &one).unwrap();
        let Ok(db) = Db::open(&damaged, &settings()) else { continue };
        take();
        let read = db.table("table").and_then(|table| table.range::<&[u8]>(..).try_for_each(|entry| entry.map(drop)));
        if let Err(error) = read {
            let told = take();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            let page = error.page().map(|page| page.0.to_string()).unwrap();
            assert_eq!(find(&told, "checksum_retry").fields["page"], page);
            assert_eq!(
                (&find(&told, "corruption").fields["page"], find(&told, "corruption").fields["error"].clone()),
                (&page, error.to_string())
            );
            found = true;
            break;
        }
    }
    assert!(found, "no damaged block was a page of the table");
    take();
    std::fs::write(damaged.join("data"), &bytes[..8192]).unwrap();
    let error = Db::open(&damaged, &settings()).err().unwrap();
    let told = take();
    assert!(error.to_string().ends_with(&find(&told, "open_failed").fields["error"]), "{error}");

    // A failed write of the log, and an opening after a power cut.
    let world = SimWorld::new(1, SimOptions::calm());
    let directory = world.directory();
    let db = Db::create_in(&directory, &settings()).unwrap();
    let table = db.create_table("table").unwrap();
    (0..100_u32).for_each(|key| table.put(key.to_be_bytes(), "value").unwrap());
    world.inject(Fault::new(Call::Write, Effect::Errno(libc::EIO)).on("log").times(u64::MAX));
    let error = table.put("one", "more").unwrap_err();
    let told = take();
    assert_eq!(find(&told, "poisoned").fields["error"], error.to_string());
    assert_eq!(told.iter().filter(|told| told.name == "poisoned").count(), 1);
    assert!(db.checkpoint().is_err());
    assert!(find(&take(), "checkpoint_failed").fields["error"].contains("the log failed"));
    let directory: Arc<dyn Directory> = world.restart(1).directory();
    drop((table, db));
    let db = Db::open_in(&directory, &settings()).unwrap();
    let told = take();
    assert!(find(&told, "opened").fields["replayed"].parse::<u64>().unwrap() >= 100);
    drop(db);
    take();

    waits_and_openings(&mut take);
    held_up("log_space", &["nofault-ckpt"], &Settings { log_bytes: 1 << 20, ..settings() }, &mut take);
    let long_log = Settings { log_bytes: 256 << 20, ..settings() };
    held_up("frames", &["nofault-ckpt", "nofault-writer"], &long_log, &mut take);

    let documented = documented();
    assert!(documented.len() >= 15, "{documented:?}");
    for told in &all {
        let row = documented.get(&(told.name.to_owned(), told.is_span));
        let (level, fields) = row.unwrap_or_else(|| panic!("not documented: {told:?}"));
        assert_eq!((level, fields), (&told.level, &told.fields.keys().cloned().collect()), "{told:?}");
    }
    let seen: BTreeSet<&str> = all.iter().map(|told| told.name).collect();
    let unseen: Vec<&String> =
        documented.keys().map(|(name, _)| name).filter(|name| !seen.contains(&***name)).collect();
    assert_eq!(unseen, [""; 0]);
}
