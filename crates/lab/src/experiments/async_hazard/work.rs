//! The work on one file, in steps: a touch of 4 KiB, or one stretch of the source's sequential sum. A step blocks; its
//! cost depends on the calling task or thread.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nofault_io::mapped::{Advice, MappedFile, Protection, prefetch};

use crate::entries::mix;
use crate::error::{LabError, LabErrorKind, Result};
use crate::machine::content::{self, BLOCK_BYTES};
use crate::measure::Worker;
use crate::paths::shown;
use crate::record::TrialSpec;

/// Bytes that one step of the sequential sum covers: the size of the published measurement's read buffer.
pub(super) const STRETCH_BYTES: u64 = 64 << 10;
/// Distance in bytes between the bytes that the published measurement sums.
const SUM_STRIDE: usize = 512;
/// Number of touches by which a prefetch instruction precedes its page's touch.
const PREFETCH_AHEAD: usize = 8;

/// The way in which a file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Means {
    /// A shared map of the file.
    Map,
    /// A shared map of the file, each page of which was touched before the clock starts.
    TouchedMap,
    /// Read calls.
    Read,
}

/// The work on one file.
pub(super) struct Job {
    pub(super) path: PathBuf,
    pub(super) content: Content,
    pub(super) order: Order,
    next: usize,
    source: Option<Source>,
    prefetch: bool,
    buffer: Vec<u8>,
}

/// The expected content of the blocks that a job reads.
#[derive(Debug, Clone, Copy)]
pub(super) struct Content {
    pub(super) seed: Option<u64>,
    /// First data block of the job's range: jobs on one device have a range each.
    pub(super) first_block: u64,
}

/// The order in which a job reads its blocks.
#[derive(Debug, Clone)]
pub(super) enum Order {
    /// These blocks of the file, one at a time, in this order.
    Touches(Arc<[u64]>),
    /// All blocks from front to back, in steps of [`STRETCH_BYTES`].
    Sequential { blocks: u64 },
}

enum Source {
    Map(MappedFile),
    Read(Arc<File>),
}

/// Counts, sum and time of one step of a job.
#[derive(Debug, Clone, Copy)]
pub(super) struct StepResult {
    pub(super) ops: u64,
    pub(super) bytes: u64,
    pub(super) verified: u64,
    pub(super) wrong: u64,
    pub(super) sum: u64,
    pub(super) elapsed: Duration,
}

impl StepResult {
    /// Adds the step's counts, time and sum to the worker's.
    pub(super) fn note(self, worker: &mut Worker<'_>) {
        worker.done(self.ops, self.bytes);
        worker.latency("op", self.elapsed);
        worker.checksum(self.sum);
        for block in 0..self.verified {
            worker.verified(block >= self.wrong);
        }
    }
}

impl Job {
    /// Builds the jobs of a trial: one for each file, or one for each part of a device. Opens and maps the files when
    /// `means` is given.
    pub(super) fn of(spec: &TrialSpec, means: Option<Means>) -> Result<Vec<Self>> {
        let usage = |what: String| LabError::new(LabErrorKind::Usage, what);
        let number = |name: &str| -> Result<Option<u64>> {
            let Some(text) = spec.params.extra.get(name) else { return Ok(None) };
            text.parse().map(Some).map_err(|_| usage(format!("async: {name} = '{text}' is not a number")))
        };
        let count = number("files")?.unwrap_or(spec.target.paths.len() as u64).max(1);
        let parts = count.div_ceil(spec.target.paths.len().max(1) as u64);
        let blocks = spec.target.data_bytes / BLOCK_BYTES as u64 / parts;
        if blocks == 0 {
            return Err(usage("async: the files are smaller than a block".into()));
        }
        let order = match number("touches")? {
            Some(touches) => {
                // The order is the same in every file and for every method, so that their sums can be compared; it
                // differs between repeats.
                let mut random = fastrand::Rng::with_seed(spec.seed ^ mix(u64::from(spec.repeat) + 1));
                Order::Touches((0..touches).map(|_| random.u64(0..blocks)).collect())
            }
            None => Order::Sequential { blocks },
        };
        let jobs = (0..count).map(|index| {
            let path = PathBuf::from(&spec.target.paths[(index / parts) as usize]);
            let first_block = index % parts * blocks;
            let content = Content { seed: spec.target.content_seed, first_block };
            let source = means.map(|means| Source::open(&path, means, spec, &order, content, blocks)).transpose()?;
            let prefetch = spec.params.extra.get("prefetch").is_some_and(|kind| kind == "cpu");
            let buffer = vec![0; STRETCH_BYTES as usize];
            Ok(Self { path, content, order: order.clone(), next: 0, source, prefetch, buffer })
        });
        jobs.collect()
    }

    /// Reads the job's next piece, blocking the thread until the piece is there. `None` at the end.
    pub(super) fn step(&mut self) -> Result<Option<StepResult>> {
        let started = Instant::now();
        let Some(range) = self.next_range() else { return Ok(None) };
        if self.prefetch {
            self.prefetch_ahead();
        }
        let first = range.start;
        let bytes = self.position(first) as usize..self.position(range.end) as usize;
        let position = self.position(first);
        let done = match self.source.as_ref() {
            Some(Source::Map(map)) => map.guarded(bytes, |bytes| self.content.check(bytes, first, &self.order))?,
            Some(Source::Read(file)) => {
                let buffer = &mut self.buffer[..bytes.len()];
                read_exact(file, buffer, position, &self.path)?;
                self.content.check(buffer, first, &self.order)
            }
            None => return Err(LabError::new(LabErrorKind::Usage, "async: the file was not opened")),
        };
        Ok(Some(StepResult { elapsed: started.elapsed(), ..done }))
    }

    /// Returns the next blocks to read, numbered within the job; `None` at the end.
    pub(super) fn next_range(&mut self) -> Option<Range<u64>> {
        let at = self.next;
        self.next += 1;
        match &self.order {
            Order::Touches(blocks) => blocks.get(at).map(|block| *block..*block + 1),
            Order::Sequential { blocks } => {
                let stretch = STRETCH_BYTES / BLOCK_BYTES as u64;
                let first = at as u64 * stretch;
                (first < *blocks).then(|| first..(first + stretch).min(*blocks))
            }
        }
    }

    /// Returns the opened file of a job reading by calls.
    pub(super) fn file(&self) -> Option<Arc<File>> {
        match &self.source {
            Some(Source::Read(file)) => Some(Arc::clone(file)),
            _ => None,
        }
    }

    /// Returns the position in the file of a block of this job, in bytes.
    pub(super) fn position(&self, block: u64) -> u64 {
        content::block_offset(self.content.first_block + block)
    }

    /// Issues a prefetch instruction for a later touch. The instruction cannot start a read, because the CPU ignores it
    /// for a page that is not mapped. Its effect is one of the published measurement's open questions.
    fn prefetch_ahead(&self) {
        let (Order::Touches(blocks), Some(Source::Map(map))) = (&self.order, self.source.as_ref()) else { return };
        if let Some(block) = blocks.get(self.next + PREFETCH_AHEAD) {
            let at = self.position(*block) as usize;
            if let Some(bytes) = map.bytes().get(at..at + 64) {
                prefetch(bytes);
            }
        }
    }
}

impl Content {
    /// Checks the blocks in `bytes`, of which `first` is the first, and sums the bytes that the variant sums.
    pub(super) fn check(&self, bytes: &[u8], first: u64, order: &Order) -> StepResult {
        let mut done =
            StepResult { ops: 1, bytes: bytes.len() as u64, verified: 0, wrong: 0, sum: 0, elapsed: Duration::ZERO };
        for (block, index) in bytes.chunks_exact(BLOCK_BYTES).zip(self.first_block + first..) {
            if let Some(seed) = self.seed {
                let expected = content::tag(seed, index).to_le_bytes();
                done.verified += 1;
                done.wrong += u64::from(block.first_chunk() != Some(&expected));
            }
            let stride = match order {
                Order::Touches(_) => BLOCK_BYTES,
                Order::Sequential { .. } => SUM_STRIDE,
            };
            done.sum = block.iter().step_by(stride).fold(done.sum, |sum, byte| sum.wrapping_add(u64::from(*byte)));
        }
        done
    }
}

impl Source {
    fn open(
        path: &PathBuf,
        means: Means,
        spec: &TrialSpec,
        order: &Order,
        content: Content,
        blocks: u64,
    ) -> Result<Self> {
        let file = File::open(path).map_err(|error| LabError::system(format!("open {}", shown(&path)), &error))?;
        if means == Means::Read {
            return Ok(Self::Read(Arc::new(file)));
        }
        let range = content::block_offset(content.first_block)..content::block_offset(content.first_block + blocks);
        // SAFETY: the files carry the lab's marker and its lock, so no other lab changes or truncates them; if another
        // process does, guarded access turns SIGBUS into an error.
        let map = unsafe { MappedFile::open(path, Protection::ReadOnly) }?;
        let chosen = spec.params.extra.get("advice").map(String::as_str);
        let advice = match (chosen, order) {
            (Some("normal"), _) | (None, Order::Sequential { .. }) => None,
            (Some("random"), _) | (None, Order::Touches(_)) => Some(Advice::Random),
            (Some("sequential"), _) => Some(Advice::Sequential),
            (Some("willneed"), _) => Some(Advice::WillNeed),
            (Some("populate"), _) => Some(Advice::PopulateRead),
            (Some(other), _) => {
                return Err(LabError::new(LabErrorKind::Usage, format!("async: unknown advice '{other}'")));
            }
        };
        if let Some(advice) = advice {
            map.advise(advice, range.start as usize..range.end as usize)?;
        }
        if let (Means::TouchedMap, Order::Touches(touched)) = (means, order) {
            for block in touched.iter() {
                let at = content::block_offset(content.first_block + block) as usize;
                map.guarded(at..at + BLOCK_BYTES, |bytes| std::hint::black_box(bytes[0]))?;
            }
        }
        Ok(Self::Map(map))
    }
}

/// Fills `buffer` from `position` of the file; a file that ends early is an error.
pub(super) fn read_exact(file: &File, buffer: &mut [u8], position: u64, path: &std::path::Path) -> Result<()> {
    file.read_exact_at(buffer, position).map_err(|error| {
        LabError::system(format!("read {} bytes at {position} of {}", buffer.len(), shown(&path)), &error)
    })
}
