//! Scratch memory for runs: reads of several pages for which no adjacent frames were free.

use std::sync::{Mutex, MutexGuard, PoisonError};

use nofault_io::aligned::{ALIGN_BYTES, IoBuf, PageKind, Region};

use crate::error::{Error, Result};

/// Most unrequested blocks between two requested blocks that are still read with one operation.
pub(super) const GAP_BLOCKS: u64 = 4;
/// Most bytes of one run. Longer operations are not faster.
const RUN_BYTES_MAX: usize = 256 << 10;
/// Most runs in flight through scratch memory.
const RUNS_MAX: usize = 32;
/// Part of the frames' memory, as a divisor, that scratch memory takes, but for one run at least.
const SHARE: usize = 32;

/// Buffers for operations that read several pages.
pub(super) struct Scratch {
    spare: Mutex<Vec<IoBuf>>,
    count: usize,
    region: Region,
    run_blocks_max: u64,
    bytes: u64,
}

/// The lengths of the scratch memory of a pool.
struct Lengths {
    run_blocks_max: usize,
    run_bytes: usize,
    runs: usize,
}

impl Lengths {
    fn of(frames: usize, page_bytes: usize) -> Self {
        let run_blocks_max = (frames / 8).clamp(2, (RUN_BYTES_MAX / page_bytes).max(2));
        let run_bytes = (run_blocks_max * page_bytes).next_multiple_of(ALIGN_BYTES);
        let runs = (frames * page_bytes / SHARE / run_bytes).clamp(1, RUNS_MAX);
        Self { run_blocks_max, run_bytes, runs }
    }
}

/// Returns the bytes of the scratch memory of a pool of `frames` frames.
pub(super) fn bytes_for(frames: usize, page_bytes: usize) -> usize {
    let Lengths { run_bytes, runs, .. } = Lengths::of(frames, page_bytes);
    run_bytes * runs
}

impl Scratch {
    /// Allocates the scratch memory for a pool of `frames` frames: its [share](SHARE) of their memory, and at most
    /// [`RUNS_MAX`] runs.
    ///
    /// # Errors
    /// `NoResources` when the system has no memory.
    pub(super) fn new(frames: usize, page_bytes: usize) -> Result<Self> {
        let Lengths { run_blocks_max, run_bytes, runs } = Lengths::of(frames, page_bytes);
        let memory = IoBuf::zeroed(run_bytes * runs, PageKind::Huge)
            .map_err(|error| Error::from_io("take memory for reading runs", error))?;
        let region = memory.region().clone();
        let bytes = region.len_bytes() as u64;
        let spare = memory.pieces(run_bytes);
        let (count, run_blocks_max) = (spare.len(), run_blocks_max as u64);
        Ok(Self { spare: Mutex::new(spare), count, region, run_blocks_max, bytes })
    }

    /// Takes a buffer for one run; `None` when all buffers are in use.
    pub(super) fn take(&self) -> Option<IoBuf> {
        self.spare().pop()
    }

    /// Returns whether any buffer is in use.
    pub(super) fn is_in_use(&self) -> bool {
        self.spare().len() < self.count
    }

    /// Returns the most blocks of one run.
    pub(super) fn run_blocks_max(&self) -> u64 {
        self.run_blocks_max
    }

    fn spare(&self) -> MutexGuard<'_, Vec<IoBuf>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the two parts of a buffer taken for a run.
    pub(super) fn give_back(&self, buffer: Option<IoBuf>, tail: Option<IoBuf>) {
        let whole = match (buffer, tail) {
            (Some(buffer), Some(tail)) => buffer.join(tail).ok(),
            (buffer, _) => buffer,
        };
        self.spare().extend(whole);
    }

    pub(super) fn region(&self) -> &Region {
        &self.region
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}
