//! Power cuts, kills and failed writes while several threads use one database in every way at a time.
//!
//! A seed draws a database and a few lives of it. In a life real threads write, load, drop, read snapshots, compact,
//! make checkpoints and verify on one simulated disk. At some hundred moments chosen inside the engine's own calls the
//! disk is copied as a power cut would leave it. In the end the power fails, the process is killed, a write fails, or
//! the database is closed. Afterwards each copy is opened, often with further cuts in recovery, and [`check`] decides
//! whether it may have this content.
//!
//! The order of threads is not drawn, so a seed does not repeat a failure to the last step. A failure leaves the files and
//! the history behind, and prints how to check them again.

mod check;
mod dump;
mod history;
mod workers;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use fastrand::Rng;
use nofault::blocking::Db;
use nofault::error::{ErrorKind, Result};
use nofault::settings::Settings;
use nofault_sim::depth::by_depth;
use nofault_sim::{Caching, Call, Effect, Fault, Hooks, SimOptions, SimWorld};

use self::check::{Checker, LISTS, MARKS, SHARED, View, own};
use self::history::{History, HistoryRecord, Tick};
use self::workers::{LOADED_TABLES, Shared, Writer};
use crate::power_cuts::for_minutes;
use crate::story::{Model, blames_the_data, content, for_each_seed, tiny_with, verify};

const EIO: i32 = 5;

/// Counts of a run, for its report.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tally {
    pub(crate) cuts: u64,
    pub(crate) commits: u64,
    pub(crate) views: u64,
}

/// A copy of the disk as a power cut would leave it, and the ticks between which it was taken.
struct Image {
    world: SimWorld,
    from: Tick,
    until: Tick,
}

/// How a run of the database ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The power fails at this event of the disk.
    Cut(u64),
    /// The process is killed at this call to the disk; the machine stays up.
    Kill(u64),
    /// One call of this kind fails, after this number of others.
    Fault(Call, u64),
    /// The database is closed when all threads have finished.
    Close,
}

impl End {
    fn draw(rng: &mut Rng) -> Self {
        let at = [20, 200, 1000, 4000][rng.usize(..4)];
        match rng.u32(..10) {
            0..4 => Self::Cut(rng.u64(1..=at)),
            4..6 => Self::Kill(rng.u64(1..=at)),
            6..8 => Self::Fault([Call::Write, Call::Sync][rng.usize(..2)], rng.u64(..at / 5)),
            _ => Self::Close,
        }
    }
}

/// The parameters that stay the same over all runs of a database.
struct Setting {
    seed: u64,
    settings: Settings,
    writers: usize,
    loaders: usize,
    images_max: usize,
}

impl Setting {
    fn draw(seed: u64, rng: &mut Rng) -> Self {
        let page_bytes = [512, 512, 1024, 2048, 4096][rng.usize(..5)];
        // With these the copies of a batch of hundreds of keys are a small part of the cache.
        let pages_more = if rng.u8(..3) == 0 { 4000 } else { 0 };
        let settings = Settings {
            log_bytes: [64, 128, 512][rng.usize(..3)] << 10,
            // Without them the callers do all of the work, and wait for each other in a pool full of dirty pages when the disk stops.
            background_threads: rng.bool(),
            seed: None,
            // Drops and compaction make the page table grow, and the cache has to hold the page table as well.
            cache_bytes: tiny_with(page_bytes).cache_bytes + (128 << 10) + pages_more * page_bytes,
            ..tiny_with(page_bytes).with_cold_table(seed.is_multiple_of(2))
        };
        Self { seed, settings, writers: rng.usize(2..5), loaders: rng.usize(1..3), images_max: 12 }
    }

    /// Returns all names that a table may have.
    fn tables(&self) -> Vec<String> {
        let loaded = (0..self.loaders).flat_map(|loader| (0..LOADED_TABLES).map(move |n| format!("bulk-{loader}-{n}")));
        let fixed = [MARKS, LISTS, SHARED].into_iter().map(str::to_owned);
        fixed.chain((0..self.writers).map(own)).chain(loaded).collect()
    }
}

fn options(rng: &mut Rng) -> SimOptions {
    let options = [SimOptions::calm(), SimOptions::default(), SimOptions::adversarial()][rng.usize(..3)];
    SimOptions { caching: [Caching::Direct, Caching::Buffered][rng.usize(..2)], ..options }
}

/// Runs a database several times, one run after the other.
pub(crate) fn lives(seed: u64, count: usize) -> Tally {
    let mut rng = Rng::with_seed(seed);
    let setting = Setting::draw(seed, &mut rng);
    let mut world = SimWorld::new(rng.u64(..), options(&mut rng));
    let db = Db::create_in(&world.directory(), &setting.settings).unwrap();
    workers::create_tables(&db, setting.writers).unwrap();
    let mut base = content(&db).unwrap();
    drop(db);
    let (mut tally, mut first_id) = (Tally::default(), 1);
    for life in 0..count {
        let what = format!("seed {seed}, life {life}, {:?}", setting.settings);
        let life = Life { setting: &setting, base: &base, what };
        (world, base, first_id) = life.run(world, first_id, &mut rng, &mut tally);
    }
    tally
}

/// One life of a database, from opening it to its end, with all of its threads. `base` is the content at the beginning.
struct Life<'a> {
    setting: &'a Setting,
    base: &'a Model,
    what: String,
}

impl Life<'_> {
    /// Runs the life and checks all of its views. Returns the simulated disk after the life, the database's content,
    /// and the next free id.
    fn run(&self, world: SimWorld, first_id: u32, rng: &mut Rng, tally: &mut Tally) -> (SimWorld, Model, u32) {
        let end = End::draw(rng);
        // Printed for the case that this life hangs.
        println!("{}, {end:?}", self.what);
        let setting = self.setting;
        let shared = Arc::new(Shared {
            history: History::new(setting.writers, setting.loaders, first_id),
            views: Mutex::default(),
            done: AtomicBool::new(false),
            errors: Mutex::default(),
        });
        let images = Arc::new(Mutex::new(Vec::new()));
        let calls_left = Arc::new(AtomicU64::new(if let End::Kill(call) = end { call } else { u64::MAX }));
        let hooks = self.hooks(&world, &shared, &images, &calls_left, rng);
        match end {
            End::Cut(event) => world.cut_after(world.events() + event),
            End::Fault(call, after) => world.inject(Fault::new(call, Effect::Errno(EIO)).after(after)),
            End::Kill(_) | End::Close => {}
        }
        let opened = Db::open_in(&hooks.directory(world.directory()), &setting.settings);
        match opened {
            Ok(db) => self.threads(db, &shared, rng),
            Err(error) => shared.errors.lock().unwrap().push(("open".into(), error)),
        }
        let is_killed = calls_left.load(Ordering::SeqCst) == 0;
        let is_over = world.is_cut() || is_killed || world.stats().error_count > 0;
        for (name, error) in &*shared.errors.lock().unwrap_or_else(PoisonError::into_inner) {
            let fits = match error.kind() {
                // A page that a failed sync has covered may be gone until the log brings it back.
                ErrorKind::Corrupt => matches!(end, End::Fault(..)) && is_over,
                ErrorKind::Bug | ErrorKind::NotFound | ErrorKind::InvalidCall => false,
                _ => is_over,
            };
            assert!(fits, "{}: {name} failed with {error:?}; {end:?}", self.what);
        }
        let history = shared.history.recorded();
        let mut checker = Checker::new(self.base, &history);
        for view in std::mem::take(&mut *shared.views.lock().unwrap_or_else(PoisonError::into_inner)) {
            tally.views += 1;
            checker.check(&view).unwrap_or_else(|why| self.fail(&history, &view, None, &format!("a snapshot: {why}")));
        }
        for image in std::mem::take(&mut *images.lock().unwrap_or_else(PoisonError::into_inner)) {
            self.check_image(image, &history, &mut checker, rng, tally);
        }
        tally.commits += history.threads.iter().map(Vec::len).sum::<usize>() as u64;
        let until = shared.history.tick();
        // A process that ends leaves the machine running, with all that it had been given.
        // A cut or fault that was not met would wait for the next life.
        let lives_on = match end {
            End::Kill(_) => true,
            End::Close => rng.bool(),
            End::Cut(_) | End::Fault(..) => false,
        };
        let after = if lives_on { world } else { world.restart_with(rng.u64(..), options(rng)) };
        let image = Image { world: after, from: until, until };
        let (after, found) = self.check_image(image, &history, &mut checker, rng, tally);
        (after, found, shared.history.end_id())
    }

    /// Returns hooks that copy the disk, and disturb the order of threads, at calls of the engine, until no calls are left: the
    /// process is then treated as killed.
    fn hooks(
        &self,
        world: &SimWorld,
        shared: &Arc<Shared>,
        images: &Arc<Mutex<Vec<Image>>>,
        calls_left: &Arc<AtomicU64>,
        rng: &mut Rng,
    ) -> Hooks {
        let (world, shared, images, images_max) =
            (world.clone(), shared.clone(), images.clone(), self.setting.images_max);
        let (seed, count, calls_left) = (rng.u64(..), AtomicU64::new(0), Arc::clone(calls_left));
        Hooks::new().each(move || {
            let left = calls_left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
            if left.unwrap_or(0) <= 1 {
                return false;
            }
            let mut rng = Rng::with_seed(seed ^ count.fetch_add(1, Ordering::Relaxed));
            if rng.u32(..60) == 0 && !world.is_cut() {
                let from = shared.history.tick();
                let image = world.restart_with(rng.u64(..), options(&mut rng));
                let until = shared.history.tick();
                let mut images = images.lock().unwrap_or_else(PoisonError::into_inner);
                if images.len() < images_max {
                    images.push(Image { world: image, from, until });
                } else if let at @ 0..12 = rng.usize(..40) {
                    // Later moments have their chance as well.
                    images[at] = Image { world: image, from, until };
                }
            }
            for _ in 0..rng.u32(..4) {
                std::thread::yield_now();
            }
            true
        })
    }

    /// Runs all threads of a run to their ends. The last one that still uses the database closes it.
    fn threads(&self, db: Db, shared: &Shared, rng: &mut Rng) {
        let tables = self.setting.tables();
        let steps = [4, 12, 30][rng.usize(..3)];
        let mut seed = || rng.fork();
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..self.setting.writers)
                .map(|number| {
                    let (db, rng, base) = (db.clone(), seed(), self.base);
                    scope.spawn(move || {
                        shared.run(&format!("writer {number}"), || {
                            Writer::new(&db, shared, number, rng, base)?.work(steps)
                        });
                    })
                })
                .collect();
            for loader in 0..self.setting.loaders {
                let (db, rng, base) = (db.clone(), seed(), self.base);
                scope.spawn(move || {
                    shared.run("loader", || workers::load(&db, shared, loader, rng, base));
                });
            }
            let (reader, rng, tables) = (db.clone(), seed(), &tables);
            scope.spawn(move || shared.run("reader", || workers::read(&reader, shared, tables, rng)));
            let (maintainer, rng) = (db, seed());
            scope.spawn(move || shared.run("maintainer", || workers::maintain(&maintainer, shared, rng)));
            let ended: Vec<_> = writers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
            shared.done.store(true, Ordering::Relaxed);
            ended.into_iter().for_each(|ended| ended.unwrap());
        });
    }

    /// Opens a copy of the disk, perhaps with power cuts during recovery, and checks its content. Returns the disk
    /// afterwards, and the content.
    fn check_image(
        &self,
        image: Image,
        history: &HistoryRecord,
        checker: &mut Checker<'_>,
        rng: &mut Rng,
        tally: &mut Tally,
    ) -> (SimWorld, Model) {
        let Image { mut world, from, until } = image;
        tally.cuts += 1;
        while rng.u32(..3) == 0 {
            world.cut_after(world.events() + rng.u64(1..=60));
            if let Err(error) = Db::open_in(&world.directory(), &self.setting.settings) {
                let cut = world.is_cut() && !blames_the_data(&error);
                assert!(cut, "{}: a power cut in recovery is taken for {error:?}", self.what);
            }
            world = world.restart_with(rng.u64(..), options(rng));
            tally.cuts += 1;
        }
        let before = dump::files(&world);
        let view = |found| View { found, from, until, is_snapshot: false };
        let found = self.reopened(&world, rng.u32(..4) == 0).unwrap_or_else(|error| {
            self.fail(history, &view(Model::new()), Some(&before), &format!("opening after a power cut: {error:?}"))
        });
        let view = view(found);
        checker.check(&view).unwrap_or_else(|why| self.fail(history, &view, Some(&before), &why));
        (world, view.found)
    }

    fn reopened(&self, world: &SimWorld, verifies: bool) -> Result<Model> {
        let directory = world.directory();
        // The page cache may drop an abandoned write between two looks at it, which is an error for the moment.
        let db = Db::open_in(&directory, &self.setting.settings).or_else(|error| {
            if blames_the_data(&error) { Err(error) } else { Db::open_in(&directory, &self.setting.settings) }
        })?;
        let found = content(&db)?;
        if verifies {
            verify(&db)?;
        }
        Ok(found)
    }

    fn fail(&self, history: &HistoryRecord, view: &View, files: Option<&dump::Files>, why: &str) -> ! {
        let Setting { seed, settings, .. } = self.setting;
        let (base, history) = (self.base.clone(), history.clone());
        let dump = dump::Dump { settings: settings.clone(), base, history, view: view.clone(), world: None };
        let folder = dump::write(&seed.to_string(), &dump, files);
        let again =
            format!("NOFAULT_DUMP={folder} cargo test -p nofault-tests --test torture a_dump_is_checked -- --ignored");
        panic!("{}: {why}\ncheck it again with: {again}", self.what);
    }
}

#[test]
fn power_cuts_kills_and_faults_among_threads_keep_what_was_acknowledged() {
    let started = Instant::now();
    let mut all = BTreeMap::<&str, u64>::new();
    for_each_seed("threads::power_cuts_kills", 1..=by_depth(8, 24), |seed| {
        let tally = lives(seed, 8);
        for (name, count) in [("cuts", tally.cuts), ("commits", tally.commits), ("snapshots", tally.views)] {
            *all.entry(name).or_default() += count;
        }
    });
    println!("{all:?} in {:.1} s", started.elapsed().as_secs_f64());
}

/// Runs for as long as `cargo xtask sim` requests.
#[test]
#[ignore = "takes as long as NOFAULT_SIM_MINUTES says; use cargo xtask sim"]
fn threads_for_minutes() {
    for_minutes("threads::threads_for_minutes -- --ignored", |seed| lives(seed, 30).cuts);
}

/// Checks again the dump that a failed test has left in the folder `NOFAULT_DUMP`.
#[test]
#[ignore = "needs the folder that a failure has left"]
fn a_dump_is_checked_again() {
    let Some(folder) = std::env::var_os("NOFAULT_DUMP") else { return println!("SKIPPED: set NOFAULT_DUMP") };
    let dump = dump::read(folder.as_ref());
    let found = match &dump.world {
        Some(world) => {
            let db = Db::open_in(&world.directory(), &dump.settings).unwrap();
            verify(&db).unwrap();
            content(&db).unwrap()
        }
        None => dump.view.found.clone(),
    };
    let view = View { found, ..dump.view };
    Checker::new(&dump.base, &dump.history).check(&view).unwrap_or_else(|why| panic!("{why}"));
}
