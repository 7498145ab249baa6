//! The measurement of a trial of `folios`, method by method.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use nofault_io::mapped::{Advice, MappedFile, Protection};

use super::{FOLIO, MMAP_AT_RANDOM, MMAP_IN_ORDER, OWN};
use crate::error::{LabError, LabErrorKind, Result};
use crate::experiment::Context;
use crate::format::bytes;
use crate::machine::content::tag;
use crate::machine::data;
use crate::measure::workload::{PAGE_BYTES, first_word};
use crate::measure::{self, Work, Worker, read_loops};
use crate::methods;
use crate::record::{Outcome, TrialSpec};
use crate::summary::TIME_PER_OP;

// Makes a file whose pages are cached in folios of one size, and touches its pages through a new map for each pass.

/// Share of the pages that must lie in folios of the requested size for the trial to count.
const SHARE_MIN: f64 = 0.9;
/// Names of the workers' summed seconds and pages, from which the time of one page is computed.
const TOUCHED_S: &str = "touched_s";
const TOUCHED_PAGES: &str = "touched_pages";

/// A cached file without a name, each of whose pages begins with its tag.
pub(super) struct CachedFile {
    file: File,
    count: usize,
    seed: u64,
}

impl CachedFile {
    /// Writes the file in calls of `folio_bytes`, aligned to that size, and syncs it, so that no write-back disturbs
    /// the measurement.
    pub(super) fn make(folder: &Path, file_bytes: u64, folio_bytes: u64, seed: u64) -> Result<Self> {
        let failed = |error: std::io::Error| LabError::system("make a file to be cached", &error);
        let file = data::nameless(folder)?;
        let count = (file_bytes / PAGE_BYTES as u64) as usize;
        let mut part = vec![0; folio_bytes as usize];
        for at in (0..file_bytes).step_by(part.len()) {
            for (page, first) in part.chunks_mut(PAGE_BYTES).zip(at / PAGE_BYTES as u64..) {
                page[..8].copy_from_slice(&tag(seed, first).to_le_bytes());
            }
            file.write_all_at(&part, at).map_err(failed)?;
        }
        file.sync_all().map_err(failed)?;
        Ok(Self { file, count, seed })
    }

    pub(super) fn map(&self) -> Result<MappedFile> {
        // SAFETY: no other process can open this file, which has no name, and it is neither written nor cut while it is
        // mapped.
        let map = unsafe { MappedFile::map(&self.file, Protection::ReadOnly, 0..(self.count * PAGE_BYTES) as u64) }?;
        map.advise(Advice::Normal, 0..map.len_bytes())?;
        Ok(map)
    }

    /// Returns page number `at` of a random order: multiplication by an odd number permutes the numbers below a power
    /// of two.
    fn at_random(&self, at: usize) -> usize {
        at.wrapping_mul(0x9e37_79b9_7f4a_7c15) & (self.count - 1)
    }

    /// Loads a page's tag through the map; returns 1 when the tag is wrong, otherwise 0.
    #[inline]
    fn touch(&self, map: &MappedFile, page: usize) -> u64 {
        let word = map.bytes().get(page * PAGE_BYTES..).map_or(0, first_word);
        u64::from(std::hint::black_box(word) != tag(self.seed, page as u64))
    }

    /// Checks all pages, then counts them by the size in bytes of the folio holding each.
    pub(super) fn folios(&self) -> Result<BTreeMap<u64, u64>> {
        let map = self.map()?;
        let wrong: u64 = (0..self.count).map(|page| self.touch(&map, page)).sum();
        match wrong {
            0 => folios_of(&map),
            _ => Err(LabError::new(
                LabErrorKind::WrongData,
                format!("folios: {wrong} pages are not as they were written"),
            )),
        }
    }
}

/// Measures one trial.
///
/// # Errors
/// `Usage` for an unknown method or impossible sizes; `Unsupported` where the kernel hides the folios' sizes, or where
/// the file system chose other sizes, which the message names; otherwise the error of making, mapping or reading the
/// file.
pub(super) fn execute(spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
    let usage = |what: &str| LabError::new(LabErrorKind::Usage, format!("folios: {what}"));
    let folio_bytes = spec.params.extra.get(FOLIO).and_then(|text| text.parse().ok());
    let folio_bytes: u64 = folio_bytes.ok_or_else(|| usage("a trial names the size of its folios"))?;
    let folder = spec.target.paths.first().ok_or_else(|| usage("a trial names the folder of its file"))?;
    let sizes_fit = folio_bytes.is_power_of_two() && (4096..=2 << 20).contains(&folio_bytes);
    if !sizes_fit || !spec.target.data_bytes.is_power_of_two() || spec.target.data_bytes < folio_bytes {
        return Err(usage("sizes are powers of two, and a file has at least one folio"));
    }
    let cached = CachedFile::make(Path::new(folder), spec.target.data_bytes, folio_bytes, spec.seed)?;
    let folios = cached.folios()?;
    let pages = |size: u64| folios.get(&size).copied().unwrap_or(0);
    let share = pages(folio_bytes) as f64 / cached.count.max(1) as f64;
    if share < SHARE_MIN {
        let got: Vec<String> = folios.keys().map(|size| format!("{} ({} pages)", bytes(*size), pages(*size))).collect();
        let message = format!(
            "not available: folios of {} were asked for, and the page cache of this file system has the file in folios of {}",
            bytes(folio_bytes),
            got.join(", ")
        );
        return Err(LabError::new(LabErrorKind::Unsupported, message));
    }
    let cached = &cached;
    let work: Work<'_> = match methods::find(OWN, &spec.method) {
        Some(&MMAP_IN_ORDER) => Box::new(move |worker: &mut Worker<'_>| touch_all(worker, cached, |at| at)),
        Some(&MMAP_AT_RANDOM) => {
            Box::new(move |worker: &mut Worker<'_>| touch_all(worker, cached, |at| cached.at_random(at)))
        }
        Some(&methods::PREAD_CACHED) => Box::new(move |worker: &mut Worker<'_>| read_all(worker, cached)),
        _ => return Err(read_loops::unknown(spec)),
    };
    let plan = context.timed(spec)?;
    let mut outcome = measure::run(&plan, vec![work], context.on_tick)?;
    outcome.cache_method = format!("written in calls of {}, then synced", bytes(folio_bytes));
    let seconds = outcome.figures.remove(TOUCHED_S).unwrap_or(0.0);
    let touched = outcome.figures.remove(TOUCHED_PAGES).unwrap_or(0.0);
    if touched > 0.0 {
        outcome.figures.insert(TIME_PER_OP.into(), seconds / touched);
    }
    outcome.figures.insert("pages_in_such_folios".into(), share);
    Ok(outcome)
}

/// Maps the file again for each pass and touches each of its pages once. Only the touches are timed, not mapping and
/// unmapping.
fn touch_all(worker: &mut Worker<'_>, cached: &CachedFile, order: impl Fn(usize) -> usize) -> Result<()> {
    worker.start();
    while worker.running() {
        let map = cached.map()?;
        let from = Instant::now();
        let wrong = (0..cached.count).map(|at| cached.touch(&map, order(at))).sum();
        finish(worker, cached, from.elapsed(), wrong);
    }
    Ok(())
}

/// Reads each page with a read call: the control, which causes no page faults.
fn read_all(worker: &mut Worker<'_>, cached: &CachedFile) -> Result<()> {
    let mut page = vec![0; PAGE_BYTES];
    worker.start();
    while worker.running() {
        let from = Instant::now();
        let mut wrong = 0;
        for at in 0..cached.count {
            let read = cached.file.read_exact_at(&mut page, (at * PAGE_BYTES) as u64);
            read.map_err(|error| LabError::system("read a cached file", &error))?;
            wrong += u64::from(first_word(&page) != tag(cached.seed, at as u64));
        }
        finish(worker, cached, from.elapsed(), wrong);
    }
    Ok(())
}

fn finish(worker: &mut Worker<'_>, cached: &CachedFile, elapsed: Duration, wrong: u64) {
    let pages = cached.count as u64;
    worker.done(pages, pages * PAGE_BYTES as u64);
    worker.verified_many(pages, wrong);
    worker.figure(TOUCHED_S, elapsed.as_secs_f64());
    worker.figure(TOUCHED_PAGES, pages as f64);
}

// Finds the folios holding the pages of a map. `/proc/self/pagemap` gives the frame of each mapped page;
// `/proc/kpageflags` tells whether a frame begins a compound page, lies in one, or stands alone.

/// Bit of a pagemap entry that says that the page is in memory and mapped.
const PRESENT: u64 = 1 << 63;
/// Bits of a pagemap entry that hold the number of the frame; zero for callers without the right to see it.
const FRAME: u64 = (1 << 55) - 1;
/// Bits of a kpageflags entry that mark the first page and the further pages of a compound page.
const HEAD: u64 = 1 << 15;
const TAIL: u64 = 1 << 16;

/// Counts the map's pages by the size in bytes of the folio holding each. Every page of the map must have been
/// touched.
///
/// # Errors
/// `Unsupported` where the kernel hides the frames or their flags; `System` when a page is not mapped although it was
/// touched.
fn folios_of(map: &MappedFile) -> Result<BTreeMap<u64, u64>> {
    let open = |path: &str| {
        let refused = |error: std::io::Error| unsupported(&format!("{path} cannot be read: {error}"));
        File::open(path).map_err(refused)
    };
    let (pagemap, kpageflags) = (open("/proc/self/pagemap")?, open("/proc/kpageflags")?);
    let entry = |file: &File, index: u64| -> Result<u64> {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, index * 8)
            .map_err(|error| LabError::system("look at a page's frame", &error))?;
        Ok(u64::from_le_bytes(bytes))
    };
    let first = map.bytes().as_ptr() as u64 / PAGE_BYTES as u64;
    let mut folios = BTreeMap::new();
    let mut pages_in_folio = 0;
    let mut end = |pages: &mut u64| {
        if *pages > 0 {
            *folios.entry(*pages * PAGE_BYTES as u64).or_insert(0) += *pages;
        }
        *pages = 0;
    };
    for page in 0..(map.len_bytes() / PAGE_BYTES) as u64 {
        let mapped = entry(&pagemap, first + page)?;
        if mapped & PRESENT == 0 {
            return Err(LabError::new(LabErrorKind::System, "folios: a page was not mapped after it was touched"));
        }
        if mapped & FRAME == 0 {
            return Err(unsupported("the kernel hides the frames of pages from this process"));
        }
        let flags = entry(&kpageflags, mapped & FRAME)?;
        if flags & TAIL == 0 {
            end(&mut pages_in_folio);
        }
        pages_in_folio += 1;
        if flags & (HEAD | TAIL) == 0 {
            end(&mut pages_in_folio);
        }
    }
    end(&mut pages_in_folio);
    Ok(folios)
}

fn unsupported(why: &str) -> LabError {
    LabError::new(LabErrorKind::Unsupported, format!("the size of folios is not available here: {why}"))
}
