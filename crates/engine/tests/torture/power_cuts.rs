//! The power fails at any moment, recovery and checkpoints included: all acknowledged commits are there, whole, and nothing else is.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fastrand::Rng;
use nofault::blocking::Db;
use nofault::error::{ErrorKind, Result};
use nofault::settings::Settings;
use nofault_io::disk::Directory;
use nofault_io::striped::StripedDirectory;
use nofault_sim::depth::by_depth;
use nofault_sim::{SimOptions, SimWorld};

use crate::story::{Book, FailedStory, Story, Style, blames_the_data, content, for_each_seed, tiny_with, verify};

/// Runs several lives of a database, each ended by a power cut at a random event: in recovery, in a checkpoint, in the
/// middle of a commit. Each life begins with the files that the one before has left.
pub(crate) fn lives(seed: u64, count: usize) -> History {
    let mut rng = Rng::with_seed(seed);
    // Small pages make the tallest trees; each of the others has its turn.
    let page_bytes = [512, 512, 512, 1024, 4096, 4096, 16_384, 65_536][rng.usize(..8)];
    // In every other history no part of the page table stays in memory.
    let mut settings = tiny_with(page_bytes).with_cold_table(seed.is_multiple_of(2));
    if seed % 4 < 2 {
        // In these there are frames for blocks of compressed pages in addition to the frames that pages need.
        settings.cache_bytes += 80 * page_bytes;
    }
    let striped = rng.u8(..6) == 0;
    let style = Style { keys: [20, 60, 150][rng.usize(..3)], reopen: rng.bool() };
    let mut world = SimWorld::new(rng.u64(..), options(&mut rng));
    let mut book = Book::new();
    let mut created = false;
    let mut history = History { page_bytes, cuts: 0, trace: 0 };
    for life in 0..count {
        let what = format!("seed {seed}, pages of {page_bytes}, life {life}");
        // Short ones end in recovery, long ones see checkpoints.
        let length = [20, 100, 400, 1500][rng.usize(..4)];
        world.cut_after(rng.u64(1..=length));
        let mut directory: Arc<dyn Directory> = world.directory();
        if striped {
            let parts = vec![directory.clone(), directory.clone()];
            directory =
                Arc::new(StripedDirectory::new(directory, parts, &["data", "data.nofault-new"], "part", 64 << 10));
        }
        let (ended, outcome) = one_life(&directory, &settings, book, rng, style, &mut created, &what);
        (book, rng) = ended;
        if let Err(error) = outcome {
            assert!(world.is_cut(), "{what}: {error:?} without a power cut");
            assert!(!blames_the_data(&error), "{what}: a power cut is taken for {error:?}");
        }
        // A life that ended by itself is cut as it stands.
        history.cuts += 1;
        history.trace = history.trace.rotate_left(7) ^ world.trace_hash();
        world = world.restart_with(rng.u64(..), options(&mut rng));
    }
    history
}

/// A summary of several runs of a database, each ended by a power cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct History {
    pub(crate) page_bytes: usize,
    pub(crate) cuts: u64,
    /// A hash of all calls to the disk and their results.
    pub(crate) trace: u64,
}

fn options(rng: &mut Rng) -> SimOptions {
    [SimOptions::calm(), SimOptions::default(), SimOptions::adversarial()][rng.usize(..3)]
}

/// Opens or creates the database, compares its content, and takes steps until something fails or the run is long
/// enough.
fn one_life(
    directory: &Arc<dyn Directory>,
    settings: &Settings,
    mut book: Book,
    rng: Rng,
    style: Style,
    created: &mut bool,
    what: &str,
) -> ((Book, Rng), Result<()>) {
    let opened = match Db::open_in(directory, settings) {
        Err(error) if error.kind() == ErrorKind::NotFound && !*created => Db::create_in(directory, settings),
        opened => opened,
    };
    let db = match opened {
        Ok(db) => db,
        Err(error) => return ((book, rng), Err(error)),
    };
    *created = true;
    match content(&db) {
        Ok(found) => book.survived(found, what),
        Err(error) => return ((book, rng), Err(error)),
    }
    let mut story = Story::new(db, directory.clone(), settings, book, rng, style);
    if let Err(error) = story.check() {
        let FailedStory { book, rng, error } = story.broken(error);
        return ((book, rng), Err(error));
    }
    match story.live(24) {
        Ok(story) => ((story.book, story.rng), Ok(())),
        Err(FailedStory { book, rng, error }) => ((book, rng), Err(error)),
    }
}

#[test]
fn a_power_cut_at_any_moment_of_many_lives_keeps_exactly_what_was_acknowledged() {
    let started = Instant::now();
    let mut cuts = BTreeMap::<usize, u64>::new();
    for_each_seed("many_lives", 1..=by_depth(12, 40), |seed| {
        let history = lives(seed, by_depth(100, 250));
        *cuts.entry(history.page_bytes).or_default() += history.cuts;
    });
    let all: u64 = cuts.values().sum();
    println!("{all} power cuts in {:.1} s, by bytes of a page: {cuts:?}", started.elapsed().as_secs_f64());
}

/// Cuts the power at every event of a creation, a short history and a checkpoint.
#[test]
fn creation_and_a_first_checkpoint_cut_at_every_event_leave_nothing_or_a_database() {
    for_each_seed("creation_and_a_first_checkpoint", 1..=3, |seed| {
        let step = by_depth(5, 1);
        let mut cuts = 0;
        for event in (1..).step_by(step) {
            let world = SimWorld::new(seed, options(&mut Rng::with_seed(seed)));
            world.cut_after(event);
            let settings = tiny_with([512, 4096, 65_536][seed as usize % 3]);
            let (book, whole) = short_history(&world, &settings, seed);
            for again in 0..3 {
                let after = world.restart(seed ^ again << 8);
                let mut book = book.clone();
                check_short_history(&after, &settings, &mut book, &format!("seed {seed}, event {event}, {after}"));
                cuts += 1;
            }
            if whole {
                break;
            }
        }
        println!("{cuts} power cuts");
    });
}

/// Creates a database and runs a short history with a checkpoint, until a call fails. Returns the book of contents that
/// may be there, `None` if the creation failed, and whether nothing failed.
fn short_history(world: &SimWorld, settings: &Settings, seed: u64) -> (Option<Book>, bool) {
    let directory = world.directory();
    let Ok(db) = Db::create_in(&directory, settings) else { return (None, false) };
    let style = Style { keys: 20, reopen: false };
    let story = Story::new(db, directory, settings, Book::new(), Rng::with_seed(seed), style);
    let broken = |broken: FailedStory| (Some(broken.book), false);
    let mut story = match story.live(40) {
        Ok(story) => story,
        Err(error) => return broken(error),
    };
    if let Err(error) = story.db.checkpoint() {
        return broken(story.broken(error));
    }
    story.book.durable();
    match story.live(2) {
        Ok(story) => (Some(story.book), true),
        Err(error) => broken(error),
    }
}

fn check_short_history(after: &SimWorld, settings: &Settings, book: &mut Option<Book>, what: &str) {
    let directory = after.directory();
    let db = match Db::open_in(&directory, settings) {
        Ok(db) => db,
        Err(error) => {
            assert!(error.kind() == ErrorKind::NotFound && book.is_none(), "{what}: {error:?}");
            Db::create_in(&directory, settings).unwrap_or_else(|error| panic!("{what}: create again: {error:?}"))
        }
    };
    let found = content(&db).unwrap_or_else(|error| panic!("{what}: {error:?}"));
    book.get_or_insert_with(Book::new).survived(found, what);
    verify(&db).unwrap_or_else(|error| panic!("{what}: {error:?}"));
}

/// Runs for as long as `cargo xtask sim` requests.
#[test]
#[ignore = "takes as long as NOFAULT_SIM_MINUTES says; use cargo xtask sim"]
fn power_cuts_for_minutes() {
    for_minutes("power_cuts_for_minutes -- --ignored", |seed| lives(seed, 250).cuts);
}

/// Runs `body` for as many minutes as `NOFAULT_SIM_MINUTES` says, with seeds never used before, one at a time on each
/// CPU; or once, with the seed in `NOFAULT_SEED`. `body` returns the number of power cuts that it made. A failure names
/// its seed.
pub(crate) fn for_minutes(test: &'static str, body: impl Fn(u64) -> u64 + Sync) {
    if std::env::var_os("NOFAULT_SEED").is_some() {
        return for_each_seed(test, [], |seed| println!("{} power cuts", body(seed)));
    }
    let minutes: f64 = std::env::var("NOFAULT_SIM_MINUTES").map_or(1.0, |minutes| minutes.parse().expect("minutes"));
    let (started, end) = (Instant::now(), Duration::from_secs_f64(minutes * 60.0));
    let first = fastrand::u64(..);
    let (next, cuts, failed) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let told = Mutex::new(started);
    let tell = |end: &str| {
        let (cuts, seeds) = (cuts.load(Ordering::Relaxed), next.load(Ordering::Relaxed));
        let seconds = started.elapsed().as_secs_f64();
        println!("{cuts} power cuts of {seeds} seeds in {seconds:.0} s, {:.0} a second{end}", cuts as f64 / seconds);
    };
    println!("{test}: seeds from {first} on");
    let work = || {
        let mut failure = Failure(&failed, true);
        while started.elapsed() < end && !failed.load(Ordering::Relaxed) {
            let seed = first.wrapping_add(next.fetch_add(1, Ordering::Relaxed));
            for_each_seed(test, [seed], |seed| {
                cuts.fetch_add(body(seed), Ordering::Relaxed);
            });
            let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
            if told.elapsed() > Duration::from_secs(10) {
                *told = Instant::now();
                tell("");
            }
        }
        failure.1 = false;
    };
    std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
        (0..threads).for_each(|_| drop(scope.spawn(work)));
    });
    tell(": all kept what they had to");
}

/// Signals the failure of a thread when it is dropped, so that the others end soon, unless it was disarmed.
struct Failure<'a>(&'a AtomicBool, bool);

impl Drop for Failure<'_> {
    fn drop(&mut self) {
        self.0.fetch_or(self.1, Ordering::Relaxed);
    }
}
