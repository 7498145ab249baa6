//! The mapped file: one word of each page is loaded, as the original benchmark loads one byte, and verified.
//!
//! Every touch is guarded against SIGBUS (some 5 ns), so that a truncated file or a failing device is an error of the
//! trial.
//!
//! Latency: a clock reading costs some 25 ns, which is nothing against a fault and as much as a touch of a page in
//! memory. So touches are timed one by one while they take a microsecond and more, and one in `STRIDE` when they are
//! faster; such a sample counts for the whole group.

use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use nofault_io::mapped::{Advice, MappedFile, Protection};

use crate::error::{LabError, Result};
use crate::measure::read_loops::Pattern;
use crate::measure::workload::{Layout, Order, PAGE_BYTES, Place, first_word};
use crate::measure::{Work, Worker};
use crate::paths::shown;
use crate::record::TrialSpec;

/// Number of touches of which one is timed while touches are fast.
const STRIDE: u64 = 16;
/// Most pages that one call of `process_madvise` takes (IOV_MAX).
const VECTORS_MAX: usize = 1024;
/// Duration of a touch below which touches count as fast.
const FAST: Duration = Duration::from_micros(1);

/// The maps of a trial's files, with their advice. Made before the workers, which share them.
#[derive(Debug)]
pub struct Maps(Vec<MappedFile>);

impl Maps {
    /// Maps the files of a layout. No I/O yet.
    ///
    /// # Errors
    /// The error of opening, mapping or advising; also when a file is shorter than the layout.
    pub fn open(layout: &Layout, advice: Advice) -> Result<Self> {
        let open = |path: &Path| -> Result<MappedFile> {
            let file = File::open(path).map_err(|error| LabError::system(format!("open {}", shown(&path)), &error))?;
            // The whole data, not only the part that the layout uses: the sample may lie behind it.
            let used = layout.file_bytes();
            let has = crate::measure::read_loops::sync::len_bytes(&file, path)?;
            // SAFETY: the lab holds its data files for itself and writes none of them while trials run; single words are
            // loaded under a guard and copied at once, so that truncation by others is an error.
            let map = unsafe { MappedFile::map(&file, Protection::ReadOnly, 0..used.max(has)) }?;
            map.advise(advice, 0..map.len_bytes())?;
            Ok(map)
        };
        Ok(Self(layout.paths.iter().map(|path| open(path)).collect::<Result<_>>()?))
    }

    /// Turns read-ahead off, so that waiting threads get their pages. Read-ahead of all threads together can exceed the
    /// memory they may use (a hundred times 8 MiB in 256 MiB). Then each fault evicts a page of another before that
    /// page is touched, and a fault may not end for minutes: seen on Linux 6.18, at full CPU.
    pub fn end_read_ahead(&self) {
        for map in &self.0 {
            // A refused hint changes nothing.
            let _ = map.advise(Advice::Random, 0..map.len_bytes());
        }
    }

    /// Gives the kernel advice on one page.
    ///
    /// # Errors
    /// The kernel's refusal; for advice that loads the page also when it cannot be read.
    pub fn advise_page(&self, place: Place, advice: Advice) -> Result<()> {
        self.advise_part(place, PAGE_BYTES, advice)
    }

    /// Gives the kernel advice on `len_bytes` from a place on.
    ///
    /// # Errors
    /// As [`Maps::advise_page`].
    pub fn advise_part(&self, place: Place, len_bytes: usize, advice: Advice) -> Result<()> {
        let at = place.offset_bytes as usize;
        Ok(self.0[place.file].advise(advice, at..at + len_bytes)?)
    }

    /// Asks for many pages at once, by `process_madvise` with MADV_WILLNEED on the process `own`, which is this one. One system
    /// call for each 1024 pages.
    ///
    /// # Errors
    /// `Unsupported` before Linux 5.10; the kernel's refusal otherwise.
    pub fn ask_for(&self, places: &[Place], own: BorrowedFd<'_>) -> Result<()> {
        for places in places.chunks(VECTORS_MAX) {
            let mut vectors = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; VECTORS_MAX];
            for (vector, place) in vectors.iter_mut().zip(places) {
                let at = place.offset_bytes as usize;
                // SAFETY: the bytes are only named, not read: the kernel gets their address.
                let page = unsafe { self.0[place.file].slice(at..at + PAGE_BYTES) }?;
                *vector = libc::iovec { iov_base: page.as_ptr().cast_mut().cast(), iov_len: PAGE_BYTES };
            }
            // SAFETY: the vectors live during the call, and the advice changes no memory.
            let done = unsafe {
                libc::syscall(
                    libc::SYS_process_madvise,
                    own.as_raw_fd(),
                    vectors.as_ptr(),
                    places.len(),
                    libc::MADV_WILLNEED,
                    0,
                )
            };
            if done < 0 {
                return Err(LabError::system("ask for pages by process_madvise", &std::io::Error::last_os_error()));
            }
        }
        Ok(())
    }

    /// Calls `look` with `len_bytes` of the map from a place on.
    ///
    /// # Errors
    /// When a page of them cannot be read.
    pub fn look_at<R>(&self, place: Place, len_bytes: usize, look: impl FnOnce(&[u8]) -> R) -> Result<R> {
        let at = place.offset_bytes as usize;
        Ok(self.0[place.file].guarded(at..at + len_bytes, look)?)
    }

    /// Touches a page: loads its first word.
    ///
    /// # Errors
    /// When the page cannot be read.
    #[inline]
    pub fn word_at(&self, place: Place) -> Result<u64> {
        let at = place.offset_bytes as usize;
        Ok(self.0[place.file].guarded(at..at + PAGE_BYTES, first_word)?)
    }
}

/// The workers of a trial: each touches every page of the blocks in its order.
pub fn works<'a>(spec: &'a TrialSpec, layout: &'a Layout, maps: &'a Maps, pattern: Pattern) -> Vec<Work<'a>> {
    let orders = pattern.orders(layout, spec);
    let work = |(number, order): (usize, Order)| -> Work<'a> {
        Box::new(move |worker: &mut Worker<'_>| {
            touch(worker, layout, maps, order)?;
            if number == 0 { sum_sample(worker, spec, maps) } else { Ok(()) }
        })
    };
    orders.into_iter().enumerate().map(work).collect()
}

fn touch(worker: &mut Worker<'_>, layout: &Layout, maps: &Maps, mut order: Order) -> Result<()> {
    let pages = layout.block_bytes / PAGE_BYTES as u64;
    let known = layout.content_seed.is_some();
    // Starts by timing every touch: a cold map is slow.
    let mut stride = 1;
    let mut untimed = 0;
    worker.start();
    let mut before = worker.started();
    while worker.running() {
        let timed = untimed + 1 >= stride;
        if timed && stride > 1 {
            before = Instant::now();
        }
        let place = layout.place(order.next_block());
        for page in 0..pages {
            let place = Place { offset_bytes: place.offset_bytes + page * PAGE_BYTES as u64, ..place };
            let word = std::hint::black_box(maps.word_at(place)?);
            if known {
                worker.verified(layout.is_right_word(word, place.offset_bytes));
            }
        }
        worker.done(1, layout.block_bytes);
        untimed += 1;
        if timed {
            let now = Instant::now();
            let elapsed = now - before;
            // The timed touch stands for itself and the untimed ones before it: the counts add up, and no touch's own
            // speed decides its weight.
            worker.latency_of_each("op", elapsed, untimed);
            untimed = 0;
            // Back to back: this touch's end is the next one's start.
            before = now;
            stride = if elapsed < FAST { STRIDE } else { 1 };
        }
    }
    Ok(())
}

fn sum_sample(worker: &mut Worker<'_>, spec: &TrialSpec, maps: &Maps) -> Result<()> {
    // With read-ahead each of the touches would read megabytes.
    maps.end_read_ahead();
    for place in Layout::sample(&spec.target, spec.seed) {
        worker.checksum(maps.word_at(place)?);
    }
    Ok(())
}
