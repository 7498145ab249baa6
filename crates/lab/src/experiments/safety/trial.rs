//! The measurement of a trial of `safety`, method by method.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nofault::mmap::{self, Protocol, WriteBack};
use nofault::{Batch, Durability, blocking};
use nofault_io::aligned::{IoBuf, PageKind};
use nofault_io::completion::{Op, OpKind};
use nofault_io::counters::cachestat;
use nofault_io::disk::{DirectIo, Disk, FileOptions, QueueOptions};
use nofault_io::mapped::{MappedFile, Protection};
use nofault_io::psync::PsyncDisk;
use serde::{Deserialize, Serialize};

use super::{FILL_S_PER_1000, KILLED_SHARE, MAP_PRIVATE, number};
use crate::child::{Orders, Running, send, this_program};
use crate::error::{LabError, LabErrorKind, Result};
use crate::experiment::Context;
use crate::machine::cache;
use crate::machine::scratch::Scratch;
use crate::measure::{self, Work, Worker, unix_ms};
use crate::methods;
use crate::record::{Checks, Outcome, TrialSpec};

// Measures the cost of each safe way to store data: durable commits with a reader at work, and the state after a process was
// killed while committing.

/// Number of pairs that one commit puts while the store is filled.
const FILL_PAIRS: u64 = 250;
/// Measures one store with a number of writers and one reader, then kills a writing process and checks the store.
pub(super) fn execute_commits(spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
    let [folder] = spec.target.paths.as_slice() else {
        return Err(LabError::new(LabErrorKind::Usage, "safety works in one folder"));
    };
    let (keys, writers) = (number(spec, "keys")?, u64::from(spec.params.threads));
    let value_bytes = number(spec, "value_bytes")?.max(8);
    let content = Content { pairs: (keys / 2).max(writers), value_bytes: value_bytes as usize };
    let size = Size { data_bytes: content.pairs * content.bytes_per_commit(), log_bytes: number(spec, "log_bytes")? };
    let scratch = Scratch::make(Path::new(folder), "safety")?;
    let place = scratch.path().join("store");
    let store = open_store(&spec.method, &place, size, true)?;
    fill(&*store, content)?;
    let before = store.counters();
    let acknowledged: Vec<Mutex<HashMap<u64, u64>>> = (0..writers).map(|_| Mutex::default()).collect();
    let mut works: Vec<Work<'_>> = Vec::new();
    for (writer, acknowledged) in (0..writers).zip(&acknowledged) {
        let (store, seed) = (&*store, spec.seed ^ writer << 32);
        works.push(Box::new(move |worker| write(worker, store, content, (writer, writers), seed, acknowledged)));
    }
    works.push(Box::new(|worker| read(worker, &*store, content, spec.seed)));
    let filling_s = keys as f64 / 1000.0 * FILL_S_PER_1000;
    let seconds = |value: f64| Duration::try_from_secs_f64(value.max(0.05)).unwrap_or(Duration::from_secs(1));
    let measured_s = (spec.duration_s - filling_s) / (1.0 + KILLED_SHARE);
    let duration = seconds(measured_s);
    let plan = context.lasting(duration, (duration / 10).max(Duration::from_millis(20)));
    let mut outcome = measure::run(&plan, works, context.on_tick)?;
    // The whole time counts, because checkpoints come in bursts: a window without one would look too good.
    outcome.steady = None;
    note_price(&mut outcome, before, store.counters(), content, &place);
    outcome.texts.insert("settings".into(), settings_text(&spec.method, size));

    drop(store);
    let mut newest = HashMap::new();
    for written in acknowledged {
        newest.extend(written.into_inner().unwrap_or_else(PoisonError::into_inner));
    }
    let order = Order {
        store: spec.method.clone(),
        folder: place.clone(),
        size,
        content,
        writers,
        seed: spec.seed,
        first_stamp: newest.values().max().map_or(1, |stamp| stamp + 1),
    };
    let acknowledged = kill_in_work(&order, seconds(measured_s * KILLED_SHARE), context.cancel)?;
    outcome.figures.insert("commits_before_kill".into(), acknowledged.commits as f64);
    newest.extend(acknowledged.newest);
    recover(&mut outcome, spec, size, content, &place, &newest)?;
    Ok(outcome)
}

fn fill(store: &dyn Subject, content: Content) -> Result<()> {
    let pairs: Vec<u64> = (0..content.pairs).collect();
    for part in pairs.chunks(FILL_PAIRS as usize) {
        let batch: Pairs = part.iter().flat_map(|pair| content.write(*pair, 0)).collect();
        store.commit(&batch)?;
    }
    store.checkpoint()
}

/// Commits pairs belonging only to this writer, so that their expected content is known.
fn write(
    worker: &mut Worker<'_>,
    store: &dyn Subject,
    content: Content,
    (number, writers): (u64, u64),
    seed: u64,
    acknowledged: &Mutex<HashMap<u64, u64>>,
) -> Result<()> {
    let mut chance = fastrand::Rng::with_seed(seed);
    let mut stamp = 0;
    let mut written = HashMap::new();
    worker.start();
    while worker.running() {
        let pair = content.pair_of(&mut chance, number, writers);
        stamp += 1;
        let batch = content.write(pair, stamp);
        let started = Instant::now();
        store.commit(&batch)?;
        worker.latency("op", started.elapsed());
        worker.done(1, content.bytes_per_commit());
        written.insert(pair, stamp);
    }
    *acknowledged.lock().unwrap_or_else(PoisonError::into_inner) = written;
    Ok(())
}

fn read(worker: &mut Worker<'_>, store: &dyn Subject, content: Content, seed: u64) -> Result<()> {
    let mut chance = fastrand::Rng::with_seed(!seed);
    worker.start();
    while worker.running() {
        let key = content.keys_of(chance.u64(..content.pairs))[usize::from(chance.bool())];
        let started = Instant::now();
        let value = store.get(&key)?;
        worker.latency("read", started.elapsed());
        worker.figure("reads", 1.0);
        worker.verified(content.stamp_of(key, value.as_deref()).is_some());
    }
    Ok(())
}

fn note_price(outcome: &mut Outcome, before: StoreCounters, after: StoreCounters, content: Content, place: &Path) {
    // Commits that ended after the clock stopped wrote bytes as well, so they count here.
    let commits = outcome.latency.get("op").map_or(1, |latency| latency.count.max(1)) as f64;
    let bytes = (after.bytes_written - before.bytes_written) as f64;
    let reads = outcome.figures.remove("reads").unwrap_or(0.0);
    let elapsed_s = outcome.elapsed_s.max(1e-9);
    let mut figure = |name: &str, value: f64| {
        outcome.figures.insert(name.into(), value);
    };
    figure("bytes_written_per_commit", bytes / commits);
    figure("bytes_written_per_byte", bytes / commits / content.bytes_per_commit() as f64);
    figure("syncs_per_commit", (after.syncs - before.syncs) as f64 / commits);
    figure("reads_per_s", reads / elapsed_s);
    let (own, cached) = (own_bytes(), cached_bytes(place));
    figure("own_memory_bytes", own);
    figure("page_cache_bytes", cached);
    figure("memory_bytes", own + cached);
    if after.remap_s_max > 0.0 {
        figure("remap_s_max", after.remap_s_max);
    }
}

/// Returns the bytes of this process's memory that belong to no file (RssAnon).
fn own_bytes() -> f64 {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse::<f64>().ok());
    kib.unwrap_or(0.0) * 1024.0
}

/// Returns the bytes of a store's files in the page cache.
fn cached_bytes(place: &Path) -> f64 {
    let files = files_of(place).unwrap_or_default();
    let cached = |path: &PathBuf| {
        let file = File::open(path).ok()?;
        let len = file.metadata().ok()?.len();
        Some(cachestat(&file, 0..len)?.cached_bytes as f64)
    };
    files.iter().filter_map(cached).sum()
}

fn files_of(place: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> = fs::read_dir(place)?.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.is_file() && path.file_name().is_some_and(|name| name != "lock"));
    files.sort();
    Ok(files)
}

/// Opens the store that the killed process left, and looks up every commit that was acknowledged, to this process or to
/// the killed one.
fn recover(
    outcome: &mut Outcome,
    spec: &TrialSpec,
    size: Size,
    content: Content,
    left: &Path,
    acknowledged: &HashMap<u64, u64>,
) -> Result<()> {
    let files = files_of(left).map_err(|error| LabError::system("list a store's files", &error))?;
    let files: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
    cache::make_cold(&files, cache::Means::Advise)?;
    let started = Instant::now();
    let store = open_store(&spec.method, left, size, false)?;
    store.get(&content.keys_of(0)[0])?;
    outcome.figures.insert("recovery_s".into(), started.elapsed().as_secs_f64());
    let (mut lost, mut torn, mut wrong) = (0u64, 0u64, 0u64);
    for pair in 0..content.pairs {
        let mut stamps = [None; 2];
        for (stamp, key) in stamps.iter_mut().zip(content.keys_of(pair)) {
            *stamp = content.stamp_of(key, store.get(&key)?.as_deref());
        }
        let [Some(first), Some(second)] = stamps else {
            wrong += 1;
            continue;
        };
        torn += u64::from(first != second);
        lost += u64::from(first.min(second) < acknowledged.get(&pair).copied().unwrap_or(0));
    }
    outcome.checks.verified += 2 * content.pairs;
    outcome.checks.wrong += wrong;
    outcome.figures.insert("lost_commits".into(), lost as f64);
    outcome.figures.insert("torn_commits".into(), torn as f64);
    if lost + torn > 0 {
        outcome
            .warnings
            .push(format!("after the process was killed {lost} acknowledged commits were lost and {torn} torn").into());
    }
    Ok(())
}

// Kills a process while it commits, to find the state that it leaves. A separate process commits to the store and
// reports each acknowledged commit, until SIGKILL ends it; afterwards every reported commit must be in the store.
//
// Kept true by: a commit is reported only after it has returned, and in one write to a pipe, so that every report that
// arrived was acknowledged. A commit whose report was lost may be there or not.

/// Name of the test that a test binary runs as the writing process, because it has no command `nofault lab writer`.
const WRITER_TEST: &str = "experiments::safety::tests::the_writer_of_other_tests";
/// Longest time that opening the store and its first commit may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest wait for a report before the time is checked again.
const GLANCE: Duration = Duration::from_millis(20);

/// The task of the process that will be killed.
#[derive(Debug, Serialize, Deserialize)]
struct Order {
    /// Id of the store's method.
    pub(super) store: String,
    #[serde(with = "crate::paths::field")]
    pub(super) folder: PathBuf,
    pub(super) size: Size,
    content: Content,
    pub(super) writers: u64,
    pub(super) seed: u64,
    /// A stamp larger than the stamps of all commits so far.
    first_stamp: u64,
}

/// The report of one acknowledged commit.
#[derive(Debug, Serialize, Deserialize)]
struct AcknowledgedCommit {
    pair: u64,
    stamp: u64,
}

/// Runs the command `nofault lab writer`: commits to the store that the order names, until the process is killed.
///
/// # Errors
/// `Usage` when the input is no order; the store's error; `System` when the parent has closed the pipe.
pub fn serve(input: impl Read, output: impl Write + Send) -> Result<()> {
    let order: Order = Orders::new(input, "nofault lab writer").first()?;
    let store = open_store(&order.store, &order.folder, order.size, false)?;
    let (output, failed) = (Mutex::new(output), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (store, order, output, failed) = (&*store, &order, &output, &failed);
        let writers: Vec<_> = (0..order.writers)
            .map(|number| {
                scope.spawn(move || {
                    let result = commit_on(store, order, number, output, failed);
                    failed.store(true, Ordering::Relaxed);
                    result
                })
            })
            .collect();
        let panicked = |_| Err(LabError::new(LabErrorKind::System, "a writer panicked"));
        writers.into_iter().try_for_each(|writer| writer.join().unwrap_or_else(panicked))
    })
}

fn commit_on<W: Write>(
    store: &dyn Subject,
    order: &Order,
    number: u64,
    output: &Mutex<W>,
    failed: &AtomicBool,
) -> Result<()> {
    let mut chance = fastrand::Rng::with_seed(order.seed ^ number << 32 ^ order.first_stamp);
    let mut stamp = order.first_stamp;
    while !failed.load(Ordering::Relaxed) {
        let pair = order.content.pair_of(&mut chance, number, order.writers);
        store.commit(&order.content.write(pair, stamp))?;
        send(&mut *output.lock().unwrap_or_else(PoisonError::into_inner), &AcknowledgedCommit { pair, stamp })?;
        stamp += 1;
    }
    Ok(())
}

/// The reports of the killed process: the newest acknowledged commit of each pair, and the number of commits.
#[derive(Debug, Default)]
struct Acknowledgements {
    newest: HashMap<u64, u64>,
    pub(super) commits: u64,
}

impl Acknowledgements {
    fn note(&mut self, line: &str) {
        // The test harness prints lines, too, and the last line may be cut off.
        if let Ok(AcknowledgedCommit { pair, stamp }) = serde_json::from_str(line) {
            let newest = self.newest.entry(pair).or_default();
            *newest = stamp.max(*newest);
            self.commits += 1;
        }
    }
}

/// Starts a writing process with an order, and kills it when the time `after` has passed since its first commit.
///
/// # Errors
/// `System` when the process cannot be started, commits nothing, or ends by itself; the message contains its error
/// output.
fn kill_in_work(order: &Order, after: Duration, cancel: &AtomicBool) -> Result<Acknowledgements> {
    let mut child = Running::start(this_program("writer", WRITER_TEST)?.stderr(Stdio::piped()))?;
    let (lines, words) = (child.lines(), child.complaints());
    child.send(order)?;
    let mut acknowledged = Acknowledgements::default();
    let mut end = Instant::now() + PATIENCE;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || cancel.load(Ordering::Relaxed) {
            break;
        }
        match lines.recv_timeout(left.min(GLANCE)) {
            Ok(line) => {
                let is_first = acknowledged.commits == 0;
                acknowledged.note(&line);
                if is_first && acknowledged.commits > 0 {
                    end = Instant::now() + after;
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let ended = |how: String| {
        let output: Vec<String> = words.iter().take(20).collect();
        let message = format!("{}: the process that was to be killed {how}: {}", order.store, output.join(" / "));
        LabError::new(LabErrorKind::System, message)
    };
    // The kill fails only when the process has already ended, which its status then shows.
    let _ = child.0.kill();
    let status = child.wait().map_err(|error| ended(format!("cannot be waited for ({error})")))?;
    if status.signal() != Some(libc::SIGKILL) {
        return Err(ended(format!("ended by itself ({status})")));
    }
    // Take the reports that were still in the pipe.
    lines.iter().for_each(|line| acknowledged.note(&line));
    if acknowledged.commits == 0 && !cancel.load(Ordering::Relaxed) {
        return Err(ended("committed nothing".into()));
    }
    Ok(acknowledged)
}

// Shows the write-back of uncommitted pages (steal): a page reaches the disk although the program never synced it and
// has locked it in memory.
//
// The kernel reports when it has written a page (`cachestat`: none is dirty or in write-back). Until then the disk is
// not read, because a direct read of a dirty page would itself cause the write. Then the file is read around the page
// cache, and the pages with the uncommitted bytes are counted.
//
// Kept true by: a disk that was not read, or cannot be read without the page cache, gives no figure.

const PAGE: usize = 4096;
const PAGES: usize = 64;
const COMMITTED: u8 = 0x11;
const UNCOMMITTED: u8 = 0xEE;

/// Stores uncommitted bytes, waits until a write-back has happened, and counts the pages on disk that carry these
/// bytes.
pub(super) fn execute_steal(spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
    let [folder] = spec.target.paths.as_slice() else {
        return Err(LabError::new(LabErrorKind::Usage, "safety works in one folder"));
    };
    let scratch = Scratch::make(Path::new(folder), "safety")?;
    let path = scratch.path().join("page");
    let system = |action: &'static str| move |error: std::io::Error| LabError::system(action, &error);
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).map_err(system("make a file"))?;
    file.write_all_at(&vec![COMMITTED; PAGES * PAGE], 0).map_err(system("fill a file"))?;
    file.sync_all().map_err(system("sync a file"))?;

    let private = spec.method == MAP_PRIVATE;
    let protection = if private { Protection::Private } else { Protection::Shared };
    // SAFETY: the file is the trial's own, in a folder made for it; no other process changes it.
    let mut map = unsafe { MappedFile::map(&file, protection, 0..(PAGES * PAGE) as u64) }?;
    let mut outcome = Outcome { started_unix_ms: unix_ms(), ..Outcome::default() };
    let locked = map.lock(0..PAGES * PAGE);
    let stored = Instant::now();
    map.guarded_mut(0..PAGES * PAGE, |bytes| bytes.fill(UNCOMMITTED))?;
    if private || spec.params.extra.get("cause").is_some_and(|cause| cause == "sync") {
        // Any other process may call this at any time, without knowledge of the transaction.
        let other = File::open(&path).map_err(system("open a file again"))?;
        other.sync_data().map_err(system("sync a file"))?;
    } else {
        wait_until_written(&file, Duration::from_secs_f64(spec.duration_s.clamp(0.0, 3600.0)), context.cancel)?;
    }
    let waited = stored.elapsed();
    let found = pages_on_disk(&path, 0, PAGES)?;
    outcome.elapsed_s = waited.as_secs_f64();
    (outcome.ops, outcome.bytes) = (PAGES as u64, (PAGES * PAGE) as u64);
    outcome.checks = Checks { verified: PAGES as u64, ..Checks::default() };
    outcome.partial = context.cancel.load(Ordering::Relaxed);
    let mut figure = |name: &str, value: f64| {
        outcome.figures.insert(name.into(), value);
    };
    figure("uncommitted_on_disk", found as f64);
    figure("uncommitted_stored", PAGES as f64);
    figure("mlocked", f64::from(u8::from(locked.is_ok())));
    figure("until_on_disk_s", waited.as_secs_f64());
    if let Some(expire) = centiseconds("dirty_expire_centisecs") {
        figure("dirty_expire_s", expire);
    }
    if let Err(error) = locked {
        outcome.warnings.push(format!("the pages were not locked in memory: {error}").into());
    }
    Ok(outcome)
}

/// Waits until the kernel has written the whole file, without requesting the write.
///
/// # Errors
/// `Unsupported` when the kernel has not written the file within `at_most`; `Interrupted` when the user stops the run.
fn wait_until_written(file: &File, at_most: Duration, cancel: &AtomicBool) -> Result<()> {
    let deadline = Instant::now() + at_most;
    while Instant::now() < deadline {
        if cancel.load(Ordering::Relaxed) {
            return Err(LabError::interrupted());
        }
        let stat = cachestat(file, 0..(PAGES * PAGE) as u64);
        let Some((dirty, writing)) = stat.and_then(|stat| Some((stat.dirty_bytes?, stat.writeback_bytes?))) else {
            // An older kernel has no `cachestat`: wait for as long as the write may take.
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        if dirty + writing == 0 {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    if cachestat(file, 0..1).is_some_and(|stat| stat.dirty_bytes.is_none()) {
        return Ok(());
    }
    let seconds = at_most.as_secs();
    let message = format!("the kernel did not write the pages within {seconds} s, so that the disk was not looked at");
    Err(LabError::new(LabErrorKind::Unsupported, message))
}

/// Returns the number of pages, of `count` from a position of the file on, that carry the uncommitted bytes on disk.
fn pages_on_disk(path: &Path, offset_bytes: u64, count: usize) -> Result<usize> {
    // Direct I/O is required: the page cache has the uncommitted bytes in any case.
    let options = FileOptions { direct: DirectIo::Require, write: false, create: false };
    let disk = PsyncDisk::open(path, &options, 1)?;
    let mut queue = disk.queue(&QueueOptions::default())?;
    let buffer = IoBuf::zeroed(count * PAGE, PageKind::Small)?;
    queue.push(Op::new(0, offset_bytes, OpKind::Read(buffer))).map_err(|refused| refused.error)?;
    queue.submit()?;
    let mut done = Vec::new();
    while done.is_empty() {
        queue.reap(1, &mut done)?;
    }
    let completion = done.remove(0);
    completion.result?;
    let OpKind::Read(bytes) = completion.op.kind else {
        return Err(LabError::new(LabErrorKind::System, "a read came back as something else"));
    };
    Ok(bytes.chunks(PAGE).filter(|page| page.iter().all(|byte| *byte == UNCOMMITTED)).count())
}

/// Reads one of the kernel's write-back times from /proc/sys/vm, in seconds.
fn centiseconds(name: &str) -> Option<f64> {
    let text = std::fs::read_to_string(format!("/proc/sys/vm/{name}")).ok()?;
    Some(text.trim().parse::<f64>().ok()? / 100.0)
}

// Shows the write-back of uncommitted pages by eviction: a transaction that changes more pages than memory holds, and does not
// commit. No call requests a write; pages that left memory can only be on the disk.
//
// Kept true by: only parts of the file that are no longer in the page cache are read from disk, because a direct read of a
// dirty page would itself cause the write; where nothing has left memory there is no figure.

/// Bytes that are stored, and looked at, at a time.
const PART_BYTES: usize = 1 << 20;

/// Stores uncommitted bytes into a map of a file larger than the trial's memory, and counts the pages on disk that
/// carry them.
pub(super) fn execute_evicted(spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
    let [folder] = spec.target.paths.as_slice() else {
        return Err(LabError::new(LabErrorKind::Usage, "safety works in one folder"));
    };
    let parts = spec.target.data_bytes as usize / PART_BYTES;
    let scratch = Scratch::make(Path::new(folder), "safety")?;
    let path = scratch.path().join("pages");
    let system = |action: &'static str| move |error: std::io::Error| LabError::system(action, &error);
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).map_err(system("make a file"))?;
    let part = vec![COMMITTED; PART_BYTES];
    for at in 0..parts {
        file.write_all_at(&part, (at * PART_BYTES) as u64).map_err(system("fill a file"))?;
    }
    file.sync_all().map_err(system("sync a file"))?;
    // SAFETY: the file is the trial's own, in a folder made for it; no other process changes it.
    let mut map = unsafe { MappedFile::map(&file, Protection::Shared, 0..(parts * PART_BYTES) as u64) }?;
    let mut outcome = Outcome { started_unix_ms: unix_ms(), ..Outcome::default() };
    let started = Instant::now();
    for at in 0..parts {
        if context.cancel.load(Ordering::Relaxed) {
            return Err(LabError::interrupted());
        }
        map.guarded_mut(at * PART_BYTES..(at + 1) * PART_BYTES, |bytes| bytes.fill(UNCOMMITTED))?;
    }
    let stored_s = started.elapsed().as_secs_f64();
    let mut left_memory = 0;
    let mut found = 0;
    for at in 0..parts {
        if map.residency(at * PART_BYTES..(at + 1) * PART_BYTES)? == 0 {
            left_memory += PART_BYTES / PAGE;
            found += pages_on_disk(&path, (at * PART_BYTES) as u64, PART_BYTES / PAGE)?;
        }
    }
    if left_memory == 0 {
        let message = "memory held all changed pages, so that none left it and the disk was not looked at";
        return Err(LabError::new(LabErrorKind::Unsupported, message));
    }
    let stored = parts * PART_BYTES / PAGE;
    outcome.elapsed_s = stored_s;
    (outcome.ops, outcome.bytes) = (stored as u64, (parts * PART_BYTES) as u64);
    outcome.checks = Checks { verified: stored as u64, ..Checks::default() };
    let figures = [
        ("uncommitted_on_disk", found as f64),
        ("uncommitted_stored", stored as f64),
        ("left_memory", left_memory as f64),
        ("mlocked", 0.0),
        ("until_on_disk_s", stored_s),
    ];
    outcome.figures.extend(figures.map(|(name, value)| (name.to_owned(), value)));
    Ok(outcome)
}

// The content of a store. Every value contains the number of the commit that wrote it, so that a reader can tell which
// answers are right.

/// Bytes of a key.
const KEY_BYTES: u64 = 8;

/// The content of a store. Pair `p` is two keys far apart in the tree; both values contain the stamp, the number of the
/// commit that wrote them last.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Content {
    pub(super) pairs: u64,
    pub(super) value_bytes: usize,
}

impl Content {
    fn keys_of(self, pair: u64) -> [[u8; 8]; 2] {
        [pair.to_be_bytes(), (pair + self.pairs).to_be_bytes()]
    }

    /// Returns the value of a key: the stamp, then bytes that follow from key and stamp.
    fn value(self, key: [u8; 8], stamp: u64) -> Vec<u8> {
        let mut value = Vec::with_capacity(self.value_bytes);
        value.extend_from_slice(&stamp.to_le_bytes());
        let mut word = u64::from_be_bytes(key) ^ stamp.rotate_left(32) ^ 0x9E37_79B9_7F4A_7C15;
        while value.len() < self.value_bytes {
            word = word.wrapping_mul(0xD120_0000_0000_0001 | 5).rotate_left(29) ^ stamp;
            let rest = (self.value_bytes - value.len()).min(8);
            value.extend_from_slice(&word.to_le_bytes()[..rest]);
        }
        value
    }

    /// Chooses one of the pairs belonging to a writer at random.
    fn pair_of(self, chance: &mut fastrand::Rng, writer: u64, writers: u64) -> u64 {
        chance.u64(..(self.pairs / writers).max(1)) * writers + writer
    }

    pub(super) fn write(self, pair: u64, stamp: u64) -> Pairs {
        self.keys_of(pair).into_iter().map(|key| (key.to_vec(), self.value(key, stamp))).collect()
    }

    /// Returns the stamp in a right value of a key; `None` for a value that no commit wrote.
    fn stamp_of(self, key: [u8; 8], value: Option<&[u8]>) -> Option<u64> {
        let value = value?;
        let stamp = u64::from_le_bytes(value.get(..8)?.try_into().ok()?);
        (value == self.value(key, stamp)).then_some(stamp)
    }

    fn bytes_per_commit(self) -> u64 {
        2 * (KEY_BYTES + self.value_bytes as u64)
    }
}

// The stores of the variant `commits` behind one trait: the engine, and its tree over a mapped file in each of the
// safe ways.

/// Keys and values committed together.
type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// The operations of a store under test.
trait Subject: Sync {
    /// Commits pairs, which are durable when the call returns.
    fn commit(&self, pairs: &Pairs) -> Result<()>;
    /// Reads the value of one key; `None` when the key is absent.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>>;
    /// Makes a checkpoint, if the store has checkpoints.
    fn checkpoint(&self) -> Result<()>;
    /// Returns the store's counters so far.
    fn counters(&self) -> StoreCounters;
}

/// Counters of a store since it was opened.
#[derive(Debug, Clone, Copy, Default)]
struct StoreCounters {
    /// Bytes written to the log and the data file.
    bytes_written: u64,
    /// Number of durable writes and syncs.
    pub(super) syncs: u64,
    /// Longest time in seconds that commits waited while a private map was dropped.
    remap_s_max: f64,
}

/// The sizes in bytes of a store's data and log.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Size {
    pub(super) data_bytes: u64,
    pub(super) log_bytes: u64,
}

impl Size {
    /// Returns the bytes of address space for the map: enough for copies of all pages.
    fn map_bytes(self) -> u64 {
        (self.data_bytes * 6).next_multiple_of(1 << 20).max(32 << 20)
    }

    /// Returns the bytes of the engine's cache: three times the data, so that reads never go to disk.
    fn cache_bytes(self) -> usize {
        usize::try_from(self.data_bytes * 3).unwrap_or(usize::MAX / 2).max(32 << 20)
    }
}

fn protocol(method: &str) -> Option<Protocol> {
    Some(match *methods::find(&[], method)? {
        methods::OS_COW => Protocol::OsCow,
        methods::USER_COW => Protocol::UserCow(WriteBack::Map),
        methods::USER_COW_PWRITE => Protocol::UserCow(WriteBack::Call),
        methods::MAPPED_LOG => Protocol::MappedLog,
        methods::SHADOW => Protocol::Shadow(WriteBack::Call),
        methods::SHADOW_WRITEMAP => Protocol::Shadow(WriteBack::Map),
        _ => return None,
    })
}

fn map_settings(protocol: Protocol, size: Size) -> mmap::Settings {
    mmap::Settings {
        map_bytes: size.map_bytes(),
        log_bytes: size.log_bytes,
        private_bytes_max: 4 << 20,
        ..mmap::Settings::new(protocol)
    }
}

fn engine_settings(size: Size) -> nofault::settings::Settings {
    nofault::settings::Settings {
        cache_bytes: size.cache_bytes(),
        log_bytes: size.log_bytes,
        ..nofault::settings::Settings::default()
    }
}

/// Creates a store in a new folder, or opens the existing one.
fn open_store(method: &str, folder: &Path, size: Size, new: bool) -> Result<Box<dyn Subject>> {
    if let Some(protocol) = protocol(method) {
        let settings = map_settings(protocol, size);
        // SAFETY: the folder is the trial's own, so no other process opens its files.
        let opened =
            unsafe { if new { mmap::Store::create(folder, &settings) } else { mmap::Store::open(folder, &settings) } };
        return Ok(Box::new(opened?));
    }
    if method != methods::ENGINE {
        return Err(LabError::new(LabErrorKind::Usage, format!("safety: no store is called '{method}'")));
    }
    let settings = engine_settings(size);
    let engine = if new {
        let db = blocking::Db::create(folder, &settings)?;
        let table = db.create_table("t")?;
        Engine { db, table }
    } else {
        let db = blocking::Db::open(folder, &settings)?;
        let table = db.table("t")?;
        Engine { db, table }
    };
    Ok(Box::new(engine))
}

/// Describes the settings of a store for people.
fn settings_text(method: &str, size: Size) -> String {
    let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
    let (log, map) = (mib(size.log_bytes), mib(size.map_bytes()));
    let common = "4 KiB pages; each commit durable when it returns";
    match protocol(method) {
        Some(Protocol::OsCow) => format!(
            "{common}; shared and private map of {map}, MADV_RANDOM; the engine's log, {log}; private copies dropped at 4 MiB; checkpoints by msync; readers see commits before they are durable"
        ),
        Some(Protocol::UserCow(WriteBack::Map)) => {
            format!(
                "{common}; shared map of {map}, MADV_RANDOM; the engine's log, {log}; copied back into the map, checkpoints by msync"
            )
        }
        Some(Protocol::UserCow(WriteBack::Call)) => {
            format!(
                "{common}; read-only map of {map}, MADV_RANDOM; the engine's log, {log}; written back by pwrite, checkpoints by fdatasync"
            )
        }
        Some(Protocol::MappedLog) => {
            format!(
                "{common}; read-only map of three times {map}, MADV_RANDOM; the engine's log, {log}; pages written by pwrite, never overwritten; checkpoints by fdatasync and a meta page (O_DSYNC)"
            )
        }
        Some(Protocol::Shadow(WriteBack::Map)) => {
            format!(
                "{common}; writable map of {map}, MADV_RANDOM; no log; msync, then a meta page (O_DSYNC); no group commit"
            )
        }
        Some(Protocol::Shadow(WriteBack::Call)) => {
            format!(
                "{common}; read-only map of {map}, MADV_RANDOM; no log; pwrite and fdatasync, then a meta page (O_DSYNC); no group commit"
            )
        }
        None => format!(
            "{common}; pool of {}; log {log}; pages checked at each load, never overwritten",
            mib(size.cache_bytes() as u64)
        ),
    }
}

impl Subject for mmap::Store {
    fn commit(&self, pairs: &Pairs) -> Result<()> {
        let mut batch = mmap::Batch::new();
        for (key, value) in pairs {
            batch.put(key.clone(), value.clone());
        }
        Ok(self.write(&batch)?)
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(mmap::Store::get(self, key)?)
    }

    fn checkpoint(&self) -> Result<()> {
        Ok(mmap::Store::checkpoint(self)?)
    }

    fn counters(&self) -> StoreCounters {
        let stats = self.stats();
        StoreCounters {
            bytes_written: stats.data_bytes_written + stats.log_bytes_written,
            syncs: stats.data_syncs + stats.log_writes,
            remap_s_max: stats.remap_ns_max as f64 / 1e9,
        }
    }
}

struct Engine {
    db: blocking::Db,
    table: blocking::Table,
}

impl Subject for Engine {
    fn commit(&self, pairs: &Pairs) -> Result<()> {
        let mut batch = Batch::new();
        for (key, value) in pairs {
            batch.put(&self.table, key, value);
        }
        Ok(self.db.write(batch, Durability::Sync)?)
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.table.get(key)?)
    }

    fn checkpoint(&self) -> Result<()> {
        Ok(self.db.checkpoint()?)
    }

    fn counters(&self) -> StoreCounters {
        let stats = self.db.stats();
        StoreCounters {
            bytes_written: stats.log.bytes_written + stats.pool.pages_written * self.db.page_bytes() as u64,
            // A checkpoint syncs the data and then writes a superblock durably.
            syncs: stats.log.groups_written + 2 * stats.checkpoints,
            remap_s_max: 0.0,
        }
    }
}
