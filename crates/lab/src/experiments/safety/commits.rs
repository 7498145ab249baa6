//! Measures the cost of each safe way to store data: durable commits with a reader at work, and the state after a process was
//! killed while committing.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nofault_io::counters::cachestat;

use super::content::Content;
use super::killed::{self, Order};
use super::stores::{self, Pairs, Size, StoreCounters, Subject};
use super::{FILL_S_PER_1000, KILLED_SHARE, number};
use crate::error::{LabError, LabErrorKind, Result};
use crate::experiment::Context;
use crate::machine::cache;
use crate::machine::scratch::Scratch;
use crate::measure::{self, Measurement, Work, Worker};
use crate::record::{Outcome, TrialSpec};

/// Number of pairs that one commit puts while the store is filled.
const FILL_PAIRS: u64 = 250;
/// Measures one store with a number of writers and one reader, then kills a writing process and checks the store.
pub(super) fn execute(spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
    let [folder] = spec.target.paths.as_slice() else {
        return Err(LabError::new(LabErrorKind::Usage, "safety works in one folder"));
    };
    let (keys, writers) = (number(spec, "keys")?, u64::from(spec.params.threads));
    let value_bytes = number(spec, "value_bytes")?.max(8);
    let content = Content { pairs: (keys / 2).max(writers), value_bytes: value_bytes as usize };
    let size = Size { data_bytes: content.pairs * content.bytes_per_commit(), log_bytes: number(spec, "log_bytes")? };
    let scratch = Scratch::make(Path::new(folder), "safety")?;
    let place = scratch.path().join("store");
    let store = stores::open(&spec.method, &place, size, true)?;
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
    let plan = Measurement {
        duration,
        tick: (duration / 10).max(Duration::from_millis(20)),
        watch: context.watch,
        memory_bytes: None,
        fill_first: false,
        cancel: context.cancel,
    };
    let mut outcome = measure::run(&plan, works, context.on_tick)?;
    // The whole time counts, because checkpoints come in bursts: a window without one would look too good.
    outcome.steady = None;
    note_price(&mut outcome, before, store.counters(), content, &place);
    outcome.texts.insert("settings".into(), stores::settings_text(&spec.method, size));

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
    let acknowledged = killed::kill_in_work(&order, seconds(measured_s * KILLED_SHARE), context.cancel)?;
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
    let store = stores::open(&spec.method, left, size, false)?;
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
