//! Measures the mechanisms one by one, over a file in memory: the cost of a fault, and of unmapping a page.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use nofault_io::mapped::{Advice, MappedFile, Protection};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::{Context, MMAP_ONE_MAP, MMAP_OWN, MMAP_UNMAP_BATCH, MMAP_UNMAP_PAGE, OWN};
use crate::error::{LabError, LabErrorKind, Result};
use crate::machine::content::tag;
use crate::measure::workload::{PAGE_BYTES, first_word};
use crate::measure::{self, Work, Worker, read_loops};
use crate::methods;
use crate::record::{Outcome, TrialSpec};
use crate::summary::TIME_PER_OP;

/// Number of pages that the kernel maps at one fault of a cached file (fault-around). A trial touches one page in each
/// such window.
const AROUND_PAGES: usize = 16;
/// Number of windows of [`AROUND_PAGES`] pages that a thread takes at a time.
const WINDOWS_PER_TURN: u64 = 64;
/// Number of maps kept before all of them are unmapped at once, because unmapping is not measured.
const MAPS_MAX: usize = 512;
/// Number of pages that one call unmaps in the method that unmaps batches.
const BATCH_PAGES: usize = 64;

/// A file in memory each of whose pages begins with its tag.
struct Pages {
    file: File,
    count: usize,
    seed: u64,
}

impl Pages {
    fn make(spec: &TrialSpec) -> Result<Self> {
        let failed = |error: std::io::Error| LabError::system("make a file in memory", &error);
        let windows = (spec.target.data_bytes as usize / PAGE_BYTES / AROUND_PAGES).next_power_of_two();
        let count = windows.max(BATCH_PAGES) * AROUND_PAGES;
        let file = File::from(memfd_create("nofault-lab", MemfdFlags::CLOEXEC).map_err(|errno| failed(errno.into()))?);
        let mut page = vec![0; PAGE_BYTES];
        for number in 0..count {
            page[..8].copy_from_slice(&tag(spec.seed, number as u64).to_le_bytes());
            file.write_all_at(&page, (number * PAGE_BYTES) as u64).map_err(failed)?;
        }
        Ok(Self { file, count, seed: spec.seed })
    }

    fn map(&self) -> Result<MappedFile> {
        // SAFETY: the file belongs to this process alone, and is neither written nor cut while it is mapped.
        let map = unsafe { MappedFile::map(&self.file, Protection::ReadOnly, 0..(self.count * PAGE_BYTES) as u64) }?;
        // Kernels without huge pages do not know the advice, and have small pages anyhow.
        let _ = map.advise(Advice::NoHugePage, 0..map.len_bytes());
        Ok(map)
    }

    fn windows(&self) -> u64 {
        (self.count / AROUND_PAGES) as u64
    }

    /// Returns the first page of window number `at` in a random order: multiplication by an odd number permutes the
    /// numbers below a power of two.
    fn page_of(&self, at: u64) -> usize {
        (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) & (self.windows() - 1)) as usize * AROUND_PAGES
    }

    /// Loads a page's tag through the map; returns 1 when the tag is wrong, otherwise 0.
    #[inline]
    fn touch(&self, map: &MappedFile, page: usize) -> u64 {
        let word = map.bytes().get(page * PAGE_BYTES..).map_or(0, first_word);
        u64::from(std::hint::black_box(word) != tag(self.seed, page as u64))
    }
}

/// Measures faults of cached pages: threads touch one window after another in random order, through a new map for each
/// pass.
pub(super) fn faults(spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
    let pages = Pages::make(spec)?;
    let shared = Shared::default();
    let works = (0..spec.params.threads.max(1)).map(|_| -> Result<Work<'_>> {
        let (pages, shared) = (&pages, &shared);
        Ok(match methods::find(OWN, &spec.method) {
            Some(&MMAP_ONE_MAP) => Box::new(move |worker: &mut Worker<'_>| fault_in(worker, pages, shared)),
            Some(&MMAP_OWN) => Box::new(move |worker: &mut Worker<'_>| fault_in(worker, pages, &Shared::default())),
            Some(&methods::PREAD_CACHED) => Box::new(move |worker: &mut Worker<'_>| read_cached(worker, pages, shared)),
            _ => return Err(read_loops::unknown(spec)),
        })
    });
    let works = works.collect::<Result<Vec<_>>>()?;
    let mut outcome = measured(spec, context, works)?;
    tell_time(&mut outcome, spec.params.threads.max(1));
    Ok(outcome)
}

/// Progress of the threads that share a map: they take turns of windows, and begin a new map after the last window.
#[derive(Default)]
struct Shared {
    turn: AtomicU64,
    maps: Mutex<Maps>,
}

/// The maps made so far, the latest last; the first `dropped` of them are unmapped.
#[derive(Default)]
struct Maps {
    dropped: u64,
    kept: Vec<Arc<MappedFile>>,
}

impl Shared {
    /// Returns the map with this number; the first thread needing the map makes it.
    fn map_of(&self, pages: &Pages, number: u64) -> Result<Arc<MappedFile>> {
        let mut maps = self.maps.lock().unwrap_or_else(PoisonError::into_inner);
        while maps.dropped + maps.kept.len() as u64 <= number {
            if maps.kept.len() >= MAPS_MAX {
                maps.dropped += maps.kept.len() as u64;
                maps.kept.clear();
            }
            maps.kept.push(Arc::new(pages.map()?));
        }
        let at = number.saturating_sub(maps.dropped) as usize;
        maps.kept.get(at).map(Arc::clone).ok_or_else(|| LabError::new(LabErrorKind::System, "eviction: a map is gone"))
    }

    fn next_turn(&self, pages: &Pages) -> (u64, u64) {
        let turns_per_map = pages.windows().div_ceil(WINDOWS_PER_TURN);
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        (turn / turns_per_map, turn % turns_per_map * WINDOWS_PER_TURN)
    }
}

fn fault_in(worker: &mut Worker<'_>, pages: &Pages, shared: &Shared) -> Result<()> {
    worker.start();
    while worker.running() {
        let (number, first) = shared.next_turn(pages);
        let map = shared.map_of(pages, number)?;
        let upto = (first + WINDOWS_PER_TURN).min(pages.windows());
        let wrong = (first..upto).map(|at| pages.touch(&map, pages.page_of(at))).sum();
        worker.done(upto - first, (upto - first) * PAGE_BYTES as u64);
        worker.verified_many(upto - first, wrong);
    }
    Ok(())
}

fn read_cached(worker: &mut Worker<'_>, pages: &Pages, shared: &Shared) -> Result<()> {
    let mut page = vec![0; PAGE_BYTES];
    worker.start();
    while worker.running() {
        let (_, first) = shared.next_turn(pages);
        let upto = (first + WINDOWS_PER_TURN).min(pages.windows());
        let mut wrong = 0;
        for at in first..upto {
            let number = pages.page_of(at);
            pages
                .file
                .read_exact_at(&mut page, (number * PAGE_BYTES) as u64)
                .map_err(|error| LabError::system("read a file in memory", &error))?;
            wrong += u64::from(first_word(&page) != tag(pages.seed, number as u64));
        }
        worker.done(upto - first, (upto - first) * PAGE_BYTES as u64);
        worker.verified_many(upto - first, wrong);
    }
    Ok(())
}

/// Measures unmapping: one thread touches pages and unmaps them again. The other threads keep their CPUs busy in the
/// same address space, so that each of these CPUs gets a shootdown.
pub(super) fn shootdowns(spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
    let batch = match methods::find(OWN, &spec.method) {
        Some(&MMAP_UNMAP_PAGE) => 1,
        Some(&MMAP_UNMAP_BATCH) => BATCH_PAGES,
        _ => return Err(read_loops::unknown(spec)),
    };
    let pages = Pages::make(spec)?;
    let map = pages.map()?;
    let (pages, map) = (&pages, &map);
    let mut works: Vec<Work<'_>> = vec![Box::new(move |worker| take_away(worker, pages, map, batch))];
    for _ in 1..spec.params.threads {
        works.push(Box::new(|worker: &mut Worker<'_>| {
            worker.start();
            while worker.running() {
                std::hint::spin_loop();
            }
            Ok(())
        }));
    }
    let mut outcome = measured(spec, context, works)?;
    // Only one of the threads does the work.
    tell_time(&mut outcome, 1);
    if let (Some(sent), true) = (outcome.counter("tlb_shootdowns"), outcome.ops > 0) {
        let ops = outcome.steady.as_ref().map_or(outcome.ops, |window| window.ops);
        outcome.figures.insert("shootdowns_per_page".into(), sent / ops.max(1) as f64);
    }
    Ok(outcome)
}

fn take_away(worker: &mut Worker<'_>, pages: &Pages, map: &MappedFile, batch: usize) -> Result<()> {
    let mut at = 0;
    worker.start();
    while worker.running() {
        let first = pages.page_of(at).min(pages.count - batch);
        at += 1;
        let wrong = (first..first + batch).map(|page| pages.touch(map, page)).sum();
        map.advise(Advice::DontNeed, first * PAGE_BYTES..(first + batch) * PAGE_BYTES)?;
        worker.done(batch as u64, (batch * PAGE_BYTES) as u64);
        worker.verified_many(batch as u64, wrong);
    }
    Ok(())
}

fn measured(spec: &TrialSpec, context: &mut Context<'_>, works: Vec<Work<'_>>) -> Result<Outcome> {
    let plan = context.timed(spec)?;
    let mut outcome = measure::run(&plan, works, context.on_tick)?;
    outcome.cache_method = "a file in memory, written before the clock started".into();
    Ok(outcome)
}

fn tell_time(outcome: &mut Outcome, threads: u32) {
    let rate = outcome.ops_per_s();
    if rate > 0.0 {
        outcome.figures.insert(TIME_PER_OP.into(), f64::from(threads) / rate);
    }
}

/// Pins the calling thread, and the threads that it starts, to one CPU. Dropping the guard restores the former CPUs.
pub(super) struct PinnedThread(CpuSet);

impl PinnedThread {
    /// Pins the calling thread to the first CPU that it may use.
    pub(super) fn here() -> Result<Self> {
        let failed = |errno: rustix::io::Errno| LabError::system("pin to one CPU", &errno.into());
        let all = sched_getaffinity(None).map_err(failed)?;
        let mut one = CpuSet::new();
        let first = (0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).unwrap_or(0);
        one.set(first);
        sched_setaffinity(None, &one).map_err(failed)?;
        Ok(Self(all))
    }
}

impl Drop for PinnedThread {
    fn drop(&mut self) {
        // Restores the former set of CPUs.
        let _ = sched_setaffinity(None, &self.0);
    }
}
