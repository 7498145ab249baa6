//! Measures the cost of verifying checksums. A map's page must be verified at every access, because the kernel may have
//! read it again unnoticed; a pool's page only once, when the pool loads it. The data is in memory; one thread reads
//! one word of a random page at each access.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use nofault_io::aligned::{IoBuf, PageKind};
use nofault_io::mapped::{Advice, MappedFile, Protection};

use super::pages::checksum;
use super::{CHECK_EVERY_ACCESS, CHECK_EVERY_LOAD, NO_CHECK, OWN};
use crate::error::{LabError, LabErrorKind, Result};
use crate::experiment::Context;
use crate::measure::{self, Work, Worker};
use crate::methods;
use crate::paths::shown;
use crate::read_loops;
use crate::record::{Outcome, TrialSpec};
use crate::workload::{self, Layout, PAGE_BYTES, first_word};

/// The methods of the variant `checksum-cost`.
pub(super) const METHODS: [&str; 3] = [NO_CHECK.id, CHECK_EVERY_ACCESS.id, CHECK_EVERY_LOAD.id];

/// Number of accesses between two readings of the clock.
const STRIDE: u64 = 64;

/// Measures one method of `checksum-cost`.
///
/// # Errors
/// `Usage` for an unknown method or working set; the error of reading; `WrongData` when the file is not the lab's.
pub(super) fn run(spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
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
