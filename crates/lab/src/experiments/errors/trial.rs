//! The measurement of a trial of `errors`, method by method.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use nofault_io::aligned::{IoBuf, PageKind};
use nofault_io::mapped::{Advice, MappedFile, Protection};

use super::stores::{self, Answers, Ask, Order, Reply, Subject, Way, checksum};
use super::{
    BIT_FLIP, CHECK_EVERY_ACCESS, CHECK_EVERY_LOAD, NO_CHECK, OWN, READ_ERROR, STRAY_WRITE, TRUNCATED, TRUNCATED_INSIDE,
};
use crate::error::{LabError, LabErrorKind, Result};
use crate::experiment::Context;
use crate::machine::faulty::FaultyFs;
use crate::measure::workload::{self, Layout, PAGE_BYTES, first_word};
use crate::measure::{self, Work, Worker, read_loops, unix_ms};
use crate::methods;
use crate::paths::shown;
use crate::record::{Checks, Outcome, TrialSpec};

// The faults, each real, each at one page of a small store: a file cut under the program, a device that fails a read,
// a bit that flips on disk, a stray write in memory. The scenario is the same for all: make the store, let a subject
// process read half of it, do the damage, and let the subject read everything. Then repair the damage, let the subject
// read again, and read the disk's content with a fresh subject.

/// Number of pages in a store.
pub(super) const PAGE_COUNT: u64 = 256;
/// Position in bytes of the damage within its page, for a fault smaller than a page.
const WITHIN: u64 = 64;

/// Runs one fault against one store in `folder`, which is empty and belongs to this trial.
///
/// # Errors
/// When the fault cannot be made: no rights, no space, no FUSE. Its effect on the store is the outcome.
pub(super) fn run_fault(spec: &TrialSpec, folder: &Path) -> Result<Outcome> {
    let way = Way::of(&spec.method).ok_or_else(|| crate::measure::read_loops::unknown(spec))?;
    let started = Instant::now();
    let mut outcome = Outcome { started_unix_ms: unix_ms(), ..Outcome::default() };
    let base = folder.join("base");
    std::fs::create_dir(&base).map_err(|error| LabError::system(format!("create {}", shown(&base)), &error))?;
    way.make(&base, spec.seed, PAGE_COUNT)?;
    let scene = Scene { way, seed: spec.seed, base, store: spec.method.clone() };
    let found = match spec.variant.as_str() {
        STRAY_WRITE => stray_write(&scene)?,
        READ_ERROR => read_error(&scene, folder)?,
        TRUNCATED | TRUNCATED_INSIDE | BIT_FLIP => on_disk(&scene, &spec.variant)?,
        other => return Err(LabError::new(LabErrorKind::Usage, format!("errors: unknown fault '{other}'"))),
    };
    outcome.elapsed_s = started.elapsed().as_secs_f64();
    found.write(&mut outcome);
    Ok(outcome)
}

/// A store on disk that is about to meet a fault, and the method that opens it.
struct Scene {
    way: Way,
    seed: u64,
    base: PathBuf,
    store: String,
}

/// The answers of the processes that met one fault, and the figures derived from them.
#[derive(Debug, Default)]
struct FaultResult {
    asked: u64,
    /// The subject's answers while the fault is present.
    during: Answers,
    ending: Option<Reply>,
    /// Answers after the repair: of the process that met the fault, and of a process that reopened the store.
    after_repair: Option<Answers>,
    after_reopening: Option<Answers>,
    /// Answers of another process reading the disk after the first process has ended, without any repair.
    on_disk: Option<Answers>,
    figures: BTreeMap<String, f64>,
}

impl Scene {
    fn file(&self) -> PathBuf {
        self.base.join(self.way.file())
    }

    fn subject(&self, folder: &Path) -> Result<(Subject, Reply)> {
        Subject::start(&Order { store: self.store.clone(), folder: folder.to_path_buf(), seed: self.seed })
    }

    /// Starts a subject and lets it read the first half of the store, so that it is a process at work.
    fn at_work(&self, folder: &Path) -> Result<Subject> {
        let (mut subject, opened) = self.subject(folder)?;
        wants(&opened, 0)?;
        let half = PAGE_COUNT / 2;
        wants(&subject.ask(&Ask::Read { from: 0, to: half })?, half)?;
        Ok(subject)
    }

    /// Returns the page to damage, which lies in the half that the subject has not read. A file that is cut inside a
    /// page must end with that page.
    fn target(&self, variant: &str) -> u64 {
        if variant == TRUNCATED_INSIDE { PAGE_COUNT - 1 } else { PAGE_COUNT * 3 / 4 }
    }

    /// Returns the positions in bytes of the page on disk, old copies included, found by the page's pattern.
    fn places(&self, page: u64) -> Result<Vec<u64>> {
        let path = self.file();
        let bytes = std::fs::read(&path).map_err(|error| LabError::system(format!("read {}", shown(&path)), &error))?;
        let pattern = stores::pattern(self.seed, page);
        let places = stores::places_of(pattern[0], &bytes, |bytes| bytes.starts_with(&pattern));
        if places.is_empty() {
            let message = format!("page {page} is not to be found in {}", shown(&path));
            return Err(LabError::new(LabErrorKind::System, message));
        }
        Ok(places.into_iter().map(|at| at as u64).collect())
    }
}

/// Requires a reply with this many right pages and nothing else: without a sound store before the fault the experiment
/// shows nothing.
fn wants(reply: &Reply, right: u64) -> Result<()> {
    match reply {
        Reply::Answers(seen) if seen.right == right && seen.wrong + seen.errors == 0 => Ok(()),
        other => Err(LabError::new(LabErrorKind::System, format!("before any fault the subject answered {other:?}"))),
    }
}

/// Damages the file itself, by truncation or a flipped bit, while the subject has it open.
fn on_disk(scene: &Scene, variant: &str) -> Result<FaultResult> {
    let path = scene.file();
    let target = scene.target(variant);
    let places = scene.places(target)?;
    let (first, last) = (places[0], places[places.len() - 1]);
    let whole = std::fs::read(&path).map_err(|error| LabError::system(format!("read {}", shown(&path)), &error))?;
    let mut subject = scene.at_work(&scene.base)?;
    let file = OpenOptions::new().read(true).write(true).open(&path);
    let file = file.map_err(|error| LabError::system(format!("open {}", shown(&path)), &error))?;
    let failed = |error: std::io::Error| LabError::system(format!("damage {}", shown(&path)), &error);
    let page = PAGE_BYTES as u64;
    match variant {
        TRUNCATED => file.set_len(first / page * page).map_err(failed)?,
        TRUNCATED_INSIDE => file.set_len(last + WITHIN).map_err(failed)?,
        _ => places.iter().try_for_each(|place| flip(&file, *place)).map_err(failed)?,
    }
    let mut found = FaultResult::default();
    found.meet(subject.ask(&Ask::Read { from: 0, to: PAGE_COUNT })?);
    file.write_all_at(&whole, 0)
        .and_then(|()| file.set_len(whole.len() as u64))
        .and_then(|()| file.sync_all())
        .map_err(failed)?;
    evict(&file);
    found.recover(scene, subject, &scene.base)?;
    Ok(found)
}

/// Flips a bit at offset `place` of the file, and evicts the file so that no old copy stays in the page cache.
fn flip(file: &File, place: u64) -> std::io::Result<()> {
    let mut byte = [0];
    file.read_exact_at(&mut byte, place)?;
    byte[0] ^= 1;
    file.write_all_at(&byte, place)?;
    file.sync_all()?;
    evict(file);
    Ok(())
}

/// Evicts a file from the page cache, except for mapped pages. Only advice: a page that stays cached equals the disk's.
fn evict(file: &File) {
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
}

/// Makes reads of one page fail, by the lab's own file system. This process serves the file system and must not access
/// it.
fn read_error(scene: &Scene, folder: &Path) -> Result<FaultResult> {
    let point = folder.join("faulty");
    std::fs::create_dir(&point).map_err(|error| LabError::system(format!("create {}", shown(&point)), &error))?;
    let places = scene.places(scene.target(READ_ERROR))?;
    let faulty = FaultyFs::mount(&scene.base, &point)?;
    let mut subject = scene.at_work(faulty.point())?;
    let page = PAGE_BYTES as u64;
    for start in places.into_iter().map(|place| place / page * page) {
        faulty.fail_reads(scene.way.file(), start..start + page);
    }
    let mut found = FaultResult::default();
    found.meet(subject.ask(&Ask::Read { from: 0, to: PAGE_COUNT })?);
    found.figures.insert("reads_failed".into(), faulty.reads_failed() as f64);
    faulty.repair();
    found.recover(scene, subject, faulty.point())?;
    Ok(found)
}

/// Writes through a stray pointer into the store's pages, lets the store sync as it would by itself, then reads the
/// store from another process.
fn stray_write(scene: &Scene) -> Result<FaultResult> {
    let target = scene.target(STRAY_WRITE);
    let mut subject = scene.at_work(&scene.base)?;
    wants(&subject.ask(&Ask::Read { from: target, to: target + 1 })?, 1)?;
    if scene.way == Way::EngineDirty {
        wants(&subject.ask(&Ask::Change { page: target })?, 1)?;
    }
    let mut found = FaultResult::default();
    match subject.ask(&Ask::Stray { page: target })? {
        Reply::Answers(seen) if seen.right == 0 => {
            let message = format!("errors: page {target} was not found in the memory of {}", scene.store);
            return Err(LabError::new(LabErrorKind::System, message));
        }
        Reply::Answers(seen) => {
            found.figures.insert("places_hit".into(), seen.right as f64);
            found.meet(subject.ask(&Ask::Read { from: target, to: target + 1 })?);
            if found.ending.is_none() {
                // Sync even after a page was found damaged: a program writes back its memory in any case.
                found.meet_again(subject.ask(&Ask::Sync)?);
            }
        }
        other => found.meet(other),
    }
    drop(subject);
    let (mut fresh, opened) = scene.subject(&scene.base)?;
    let reply = match opened {
        Reply::Answers(_) => fresh.ask(&Ask::Read { from: 0, to: PAGE_COUNT })?,
        other => other,
    };
    found.on_disk = Some(found_by(reply));
    Ok(found)
}

/// Returns the counts of a reply; a process that could not answer counts as one error.
fn found_by(reply: Reply) -> Answers {
    match reply {
        Reply::Answers(seen) => seen,
        other => Answers { errors: 1, first_error: format!("{other:?}"), ..Answers::default() },
    }
}

impl FaultResult {
    fn meet(&mut self, reply: Reply) {
        self.asked += PAGE_COUNT;
        match reply {
            Reply::Answers(seen) => self.during = seen,
            other => self.ending = Some(other),
        }
    }

    /// Merges a second reply that the subject gave while the fault was present.
    fn meet_again(&mut self, reply: Reply) {
        match reply {
            Reply::Answers(seen) => {
                self.during.errors += seen.errors;
                if self.during.first_error.is_empty() {
                    self.during.first_error = seen.first_error;
                }
            }
            other => self.ending = Some(other),
        }
    }

    /// Adds the answers after the repair: of the same process, then of the reopened store. A fresh process opens it
    /// where the first process has ended.
    fn recover(&mut self, scene: &Scene, mut subject: Subject, folder: &Path) -> Result<()> {
        let everything = Ask::Read { from: 0, to: PAGE_COUNT };
        if self.ending.is_none() {
            self.after_repair = Some(found_by(subject.ask(&everything)?));
            if let Reply::Answers(_) = subject.ask(&Ask::Reopen)? {
                self.after_reopening = Some(found_by(subject.ask(&everything)?));
            }
            return Ok(());
        }
        drop(subject);
        let (mut fresh, opened) = scene.subject(folder)?;
        self.after_reopening = Some(match opened {
            Reply::Answers(_) => found_by(fresh.ask(&everything)?),
            other => found_by(other),
        });
        Ok(())
    }

    /// Writes the outcome of the fault into the trial's figures and texts.
    fn write(self, outcome: &mut Outcome) {
        let Self { asked, during, ending, after_repair, after_reopening, on_disk, figures } = self;
        let signal = match &ending {
            Some(Reply::Killed(signal)) => Some(*signal),
            _ => None,
        };
        let died = ending.is_some();
        let wrong_on_disk = on_disk.as_ref().map_or(0, |seen| seen.wrong);
        // The fault counts as detected when the program got a sign before it returned wrong bytes or wrote them to disk
        // unnoticed.
        let told = during.errors > 0 || died || on_disk.as_ref().is_some_and(|seen| seen.errors > 0);
        let detected = told && during.wrong == 0 && wrong_on_disk == 0;
        let flag = |value: bool| f64::from(u8::from(value));
        outcome.ops = asked.max(1);
        outcome.bytes = outcome.ops * PAGE_BYTES as u64;
        outcome.checks = Checks { verified: during.right, ..Checks::default() };
        let mut set = |name: &str, value: f64| outcome.figures.insert(name.to_owned(), value);
        set("detected", flag(detected));
        set("error_returned", flag(during.errors > 0));
        set("signals", flag(signal.is_some()));
        set("signal", f64::from(signal.unwrap_or(0)));
        set("hung", flag(ending == Some(Reply::Hung)));
        set("survived", flag(!died));
        set("wrong_answers", during.wrong as f64);
        set("pages_right", during.right as f64);
        set("pages_failed", during.errors as f64);
        if let Some(seen) = &after_repair {
            set("right_after_repair", flag(seen.wrong + seen.errors == 0));
        }
        if let Some(seen) = &after_reopening {
            set("right_after_reopening", flag(seen.wrong + seen.errors == 0));
        }
        if let Some(seen) = &on_disk {
            set("reached_disk", flag(seen.wrong + seen.errors > 0));
            set("wrong_on_disk", seen.wrong as f64);
        }
        outcome.figures.extend(figures);
        let ended = match &ending {
            None => String::new(),
            Some(Reply::Killed(signal)) => signal_name(*signal),
            Some(Reply::Hung) => "did not answer, was killed".into(),
            Some(Reply::Ended(words)) => format!("ended: {words}"),
            Some(Reply::Answers(_)) => unreachable!("an answer is no end"),
        };
        let said = if during.first_error.is_empty() {
            on_disk.map(|seen| seen.first_error).unwrap_or_default()
        } else {
            during.first_error
        };
        for (name, text) in [("ended", ended), ("said", said)] {
            if !text.is_empty() {
                outcome.texts.insert(name.into(), text);
            }
        }
    }
}

fn signal_name(signal: i32) -> String {
    match signal {
        libc::SIGBUS => "SIGBUS".into(),
        libc::SIGSEGV => "SIGSEGV".into(),
        libc::SIGABRT => "SIGABRT".into(),
        libc::SIGKILL => "SIGKILL".into(),
        other => format!("signal {other}"),
    }
}

// Measures the cost of verifying checksums. A map's page must be verified at every access, because the kernel may have
// read it again unnoticed; a pool's page only once, when the pool loads it. The data is in memory; one thread reads
// one word of a random page at each access.

/// The methods of the variant `checksum-cost`.
pub(super) const CHECK_METHODS: [&str; 3] = [NO_CHECK.id, CHECK_EVERY_ACCESS.id, CHECK_EVERY_LOAD.id];

/// Number of accesses between two readings of the clock.
const STRIDE: u64 = 64;

/// Measures one method of `checksum-cost`.
///
/// # Errors
/// `Usage` for an unknown method or working set; the error of reading; `WrongData` when the file is not the lab's.
pub(super) fn run_check(spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
    let layout = workload::layout_of(spec, PAGE_BYTES as u64)?;
    let bytes = spec.params.extra.get("working_set").and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    let count = (bytes / PAGE_BYTES as u64).min(layout.block_count());
    if count == 0 {
        return Err(LabError::new(
            LabErrorKind::Usage,
            "errors: working_set must be a number of bytes, a page at least",
        ));
    }
    let plan = context.timed(spec)?;
    let path = layout.paths[0].clone();
    let first = layout.place(0).offset_bytes;
    let (frames, sums, loading) = load(&path, &layout, first, count)?;
    let order = || fastrand::Rng::with_seed(spec.seed);
    let work: Work<'_> = match methods::find(OWN, &spec.method) {
        Some(&CHECK_EVERY_LOAD) => Box::new(|worker| {
            // The access has a pool's indirection: page number to frame, frame to bytes.
            let table: Vec<u32> = std::hint::black_box((0..count as u32).collect());
            access(worker, &layout, first, count, order(), |page| {
                Some(first_word(&frames[table[page] as usize * PAGE_BYTES..]))
            })
        }),
        Some(&NO_CHECK | &CHECK_EVERY_ACCESS) => {
            let checked = spec.method == CHECK_EVERY_ACCESS;
            let sums = &sums;
            let (path, layout) = (path.clone(), &layout);
            drop(frames);
            Box::new(move |worker| {
                // SAFETY: the lab holds its data files for itself and writes none of them while trials run. Truncation
                // by another process would end this process, which is the trial's own.
                let map = unsafe { MappedFile::open(&path, Protection::ReadOnly) }?;
                let used = first as usize..first as usize + count as usize * PAGE_BYTES;
                map.advise(Advice::Random, 0..map.len_bytes())?;
                let _ = map.populate(used.clone());
                let bytes = &map.bytes()[used];
                // Each page is mapped before the clock starts.
                std::hint::black_box(bytes.iter().step_by(PAGE_BYTES).fold(0, |sum, byte| sum ^ byte));
                access(worker, layout, first, count, order(), |page| {
                    let bytes = &bytes[page * PAGE_BYTES..(page + 1) * PAGE_BYTES];
                    (!checked || checksum(bytes) == sums[page]).then(|| first_word(bytes))
                })
            })
        }
        _ => return Err(read_loops::unknown(spec)),
    };
    let mut outcome = measure::run(&plan, vec![work], &mut *context.on_tick)?;
    outcome.cache_method =
        format!("{} read in before the clock starts", crate::format::bytes(count * PAGE_BYTES as u64));
    outcome.figures.insert("ns_per_checksum".into(), loading);
    outcome.figures.insert("ns_per_access".into(), outcome.elapsed_s * 1e9 / outcome.ops.max(1) as f64);
    Ok(outcome)
}

/// Accesses random pages until the trial's time is over. `word_of` returns `None` for a page that failed its check.
#[inline(always)]
fn access(
    worker: &mut Worker<'_>,
    layout: &Layout,
    first: u64,
    count: u64,
    mut chance: fastrand::Rng,
    word_of: impl Fn(usize) -> Option<u64>,
) -> Result<()> {
    worker.start();
    let mut before = worker.started();
    while worker.running() {
        for _ in 0..STRIDE {
            let page = chance.u64(0..count);
            let word = std::hint::black_box(word_of(page as usize));
            worker.verified(word.is_some_and(|word| layout.is_right_word(word, first + page * PAGE_BYTES as u64)));
        }
        let now = Instant::now();
        // An access is shorter than a clock reading: a sample is the mean of a stride.
        worker.latency_of_each("op", (now - before) / STRIDE as u32, STRIDE);
        before = now;
        worker.done(STRIDE, STRIDE * PAGE_BYTES as u64);
    }
    Ok(())
}

/// Loads `count` pages into private memory. Returns the memory, the checksum of each page, and the nanoseconds that one
/// checksum took.
fn load(path: &Path, layout: &Layout, first: u64, count: u64) -> Result<(IoBuf, Vec<u64>, f64)> {
    let failed = |error: &std::io::Error| LabError::system(format!("read {}", shown(&path)), error);
    let file = File::open(path).map_err(|error| failed(&error))?;
    // In small pages, as the pages of the map are.
    let mut frames = IoBuf::zeroed(count as usize * PAGE_BYTES, PageKind::Small)?;
    file.read_exact_at(&mut frames, first).map_err(|error| failed(&error))?;
    let started = Instant::now();
    let sums: Vec<u64> = frames.chunks_exact(PAGE_BYTES).map(checksum).collect();
    let each = started.elapsed().as_secs_f64() * 1e9 / count as f64;
    let right = |(page, number): (&[u8], u64)| layout.is_right(page, first + number * PAGE_BYTES as u64) != Some(false);
    if !frames.chunks_exact(PAGE_BYTES).zip(0..).all(right) {
        return Err(LabError::new(LabErrorKind::WrongData, format!("{} does not hold the lab's data", shown(&path))));
    }
    Ok((frames, sums, each))
}
