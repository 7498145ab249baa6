//! The memory of private runs: a region from which each run takes the bytes that it needs.
//!
//! A scan keeps it until it has returned the entries of the run, for as long as its caller takes. So it is no part of the memory through
//! which pages come into the pool, and no read waits for it: a scan without it reads through the pool.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nofault_io::aligned::{ALIGN_BYTES, IoBuf, PageKind, Region};

use crate::error::{Error, Result};

/// Part of the frames' memory, as a divisor, and most bytes of the region.
const SHARE: usize = 16;
const BYTES_MAX: usize = 16 << 20;
/// Most bytes of a run. Longer operations are not faster.
const RUN_BYTES_MAX: usize = 512 << 10;
/// Fewest bytes of a region with which a scan reads as far ahead as it must for the completion thread to work for it.
pub(crate) const SCAN_BYTES_MIN: usize = 832 << 10;
/// Number of the longest runs that a small region holds, and fewest blocks of such a run.
const RUNS_MIN: usize = 8;
const RUN_BLOCKS_MIN: usize = 4;

/// The memory of all scans.
pub(super) struct ScanMemory {
    /// The free parts, by address, as large as they can be.
    free: Mutex<Vec<IoBuf>>,
    region: Option<Region>,
    bytes: usize,
    run_blocks_max: usize,
}

/// The memory of a run. It is given back when this is dropped.
pub(super) struct ScanBytes {
    /// The bytes of the blocks; `None` while the device has them.
    pub(super) buffer: Option<IoBuf>,
    /// The bytes behind the blocks, to the next aligned address.
    rest: Option<IoBuf>,
    memory: Arc<ScanMemory>,
}

/// Returns the most blocks of a run in a region of so many bytes.
fn run_blocks_in(bytes: usize, page_bytes: usize) -> usize {
    (bytes / RUNS_MIN).min(RUN_BYTES_MAX) / page_bytes
}

/// Returns the bytes of the region of a pool of `frames` frames. There is none with fewer than `bytes_min` bytes.
pub(super) fn bytes_for(frames: usize, page_bytes: usize, bytes_min: usize) -> usize {
    let bytes = (frames * page_bytes / SHARE).min(BYTES_MAX) / ALIGN_BYTES * ALIGN_BYTES;
    if bytes < bytes_min || run_blocks_in(bytes, page_bytes) < RUN_BLOCKS_MIN { 0 } else { bytes }
}

impl ScanMemory {
    /// Allocates the region for a pool of `frames` frames: see [`bytes_for`].
    ///
    /// # Errors
    /// `NoResources` when the system has no memory.
    pub(super) fn new(frames: usize, page_bytes: usize, bytes_min: usize) -> Result<Self> {
        let bytes = bytes_for(frames, page_bytes, bytes_min);
        if bytes == 0 {
            return Ok(Self { free: Mutex::default(), region: None, bytes: 0, run_blocks_max: 0 });
        }
        let run_blocks_max = run_blocks_in(bytes, page_bytes);
        let memory = IoBuf::zeroed(bytes, PageKind::Huge)
            .map_err(|error| Error::from_io("take memory for reading runs of scans", error))?;
        let region = memory.region().clone();
        Ok(Self { free: Mutex::new(vec![memory]), region: Some(region), bytes, run_blocks_max })
    }

    /// Takes memory for a run; `None` when no free part is large enough.
    pub(super) fn take(self: &Arc<Self>, bytes: usize) -> Option<ScanBytes> {
        let wanted = bytes.next_multiple_of(ALIGN_BYTES);
        let mut free = self.free();
        let at = free.iter().position(|part| part.len() >= wanted)?;
        let (taken, left) = free.remove(at).split_at(wanted);
        if !left.is_empty() {
            free.insert(at, left);
        }
        drop(free);
        let (buffer, rest) = taken.split_at(bytes);
        let rest = (!rest.is_empty()).then_some(rest);
        Some(ScanBytes { buffer: Some(buffer), rest, memory: Arc::clone(self) })
    }

    fn give_back(&self, part: IoBuf) {
        let mut free = self.free();
        let at = free.partition_point(|other| other.address() < part.address());
        free.insert(at, part);
        // With the part behind it, and then with the part before it.
        for first in [at, at.wrapping_sub(1)] {
            if first < free.len() && first + 1 < free.len() {
                let next = free.remove(first + 1);
                match free.remove(first).join(next) {
                    Ok(joined) => free.insert(first, joined),
                    Err((part, next)) => free.splice(first..first, [part, next]).for_each(drop),
                }
            }
        }
    }

    fn free(&self) -> MutexGuard<'_, Vec<IoBuf>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the most blocks of a run; 0 where there is no region.
    pub(super) fn run_blocks_max(&self) -> usize {
        self.run_blocks_max
    }

    /// Returns the bytes of the region.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn region(&self) -> Option<&Region> {
        self.region.as_ref()
    }

    /// Returns whether a run has any of the memory.
    #[cfg(test)]
    pub(super) fn is_in_use(&self) -> bool {
        self.free().iter().map(|part| part.len()).sum::<usize>() < self.bytes
    }
}

impl Drop for ScanBytes {
    fn drop(&mut self) {
        let Some(buffer) = self.buffer.take() else { return };
        let whole = match self.rest.take() {
            Some(rest) => buffer.join(rest).unwrap_or_else(|(buffer, _)| buffer),
            None => buffer,
        };
        self.memory.give_back(whole);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_take_what_they_need_and_the_parts_are_one_again_afterwards() {
        for page_bytes in [512, 4096] {
            let memory = Arc::new(ScanMemory::new((4 << 20) / page_bytes, page_bytes, 0).unwrap());
            assert_eq!((memory.bytes(), memory.run_blocks_max()), (256 << 10, (32 << 10) / page_bytes));
            let mut random = fastrand::Rng::with_seed(7);
            let (mut taken, mut refused) = (Vec::<ScanBytes>::new(), 0);
            for _ in 0..20_000 {
                if random.bool() {
                    let bytes = random.usize(1..=memory.run_blocks_max()) * page_bytes;
                    match memory.take(bytes) {
                        Some(run) => {
                            assert_eq!(run.buffer.as_deref().unwrap().len(), bytes);
                            assert_eq!(run.buffer.as_ref().unwrap().address() as usize % ALIGN_BYTES, 0);
                            taken.push(run);
                        }
                        None => refused += 1,
                    }
                } else if !taken.is_empty() {
                    drop(taken.swap_remove(random.usize(..taken.len())));
                }
                let free = memory.free();
                assert!(free.windows(2).all(|two| {
                    let end = two[0].address() as usize + two[0].len();
                    end < two[1].address() as usize
                }));
            }
            assert!(refused > 100, "{refused}");
            drop(taken);
            assert!(!memory.is_in_use() && memory.free().len() == 1);
        }
    }

    #[test]
    fn a_small_pool_has_no_memory_for_scans_and_a_large_one_no_more_than_the_most() {
        let small = ScanMemory::new(3_300, 4096, SCAN_BYTES_MIN).unwrap();
        assert_eq!((small.bytes(), small.run_blocks_max(), small.region().is_none()), (0, 0, true));
        assert!(Arc::new(small).take(4096).is_none());
        assert_eq!(ScanMemory::new(1 << 20, 4096, SCAN_BYTES_MIN).unwrap().bytes(), BYTES_MAX);
    }
}
