//! Measures the cost of this machine's primitives: the clock, a system call, a page fault, a first touch, a flush of
//! another CPU's TLB, a page of a mapped file that is made and evicted without a device. The report shows them next to
//! the results, because virtual machines differ in them by an order of magnitude. Half a second in all.
//!
//! Each figure is a median or the best of several rounds, so that other load on the machine hardly changes it.

use std::hint::black_box;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nofault_io::mapped::{self, MappedFile, Protection};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

const PAGE_BYTES: usize = 4096;
/// Bytes touched for the first time: enough that a hypervisor which hands memory out lazily cannot have all of it
/// ready.
const FRESH_BYTES: usize = 128 << 20;
/// Bytes of the mapped file, which is one hole: small enough to stay in memory, and large enough to spread the cost of
/// an operation on many pages over as many pages as usual.
const HOLE_BYTES: usize = 32 << 20;

/// Costs of this machine's primitives, in nanoseconds. `None` where the kernel refused the operation.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Costs {
    /// Reading the clock once.
    pub clock_ns: f64,
    /// Smallest difference seen between two successive readings of the clock.
    pub clock_step_ns: f64,
    /// A system call without work (getppid).
    pub syscall_ns: f64,
    /// A read fault of anonymous memory, per page: the kernel maps the shared zero page and allocates none.
    pub minor_fault_ns: Option<f64>,
    /// First touch of memory that this process did not use just before, per 4 KiB.
    pub first_touch_ns: Option<f64>,
    /// First touch of memory that was freed just before, per 4 KiB.
    pub touch_again_ns: Option<f64>,
    /// `madvise(MADV_DONTNEED)` of one page while the process has no other running thread.
    pub unmap_ns: Option<f64>,
    /// `unmap_ns` while a second thread runs on another CPU, so that its TLB must be flushed.
    pub unmap_shared_ns: Option<f64>,
    /// A fault in a mapped file, advised RANDOM, without I/O: the kernel allocates a page, adds it to the page cache
    /// and maps it.
    pub file_fault_ns: Option<f64>,
    /// Eviction of a mapped file's page, as one of many: removal from the page table, the TLBs and the page cache.
    pub file_evict_ns: Option<f64>,
}

impl Costs {
    /// Measures all costs. The mapped file is an unnamed file in `folder`, one hole, so that no I/O happens.
    pub fn measure(folder: &Path) -> Self {
        let (clock_ns, clock_step_ns) = clock();
        let touch = first_touch();
        let unmap = unmap();
        let file = file_pages(folder);
        Self {
            clock_ns,
            clock_step_ns,
            syscall_ns: best_of(5, || per_call(2000, || black_box(rustix::process::getppid()).is_some())),
            minor_fault_ns: minor_fault(),
            first_touch_ns: touch.map(|(first, _)| first),
            touch_again_ns: touch.map(|(_, again)| again),
            unmap_ns: unmap.map(|(alone, _)| alone),
            unmap_shared_ns: unmap.and_then(|(_, shared)| shared),
            file_fault_ns: file.map(|(fault, _)| fault),
            file_evict_ns: file.map(|(_, evict)| evict),
        }
    }

    /// Whether the hypervisor seems to allocate memory only at the guest's first touch.
    pub fn memory_is_lazy(&self) -> bool {
        matches!((self.first_touch_ns, self.touch_again_ns), (Some(first), Some(again)) if first > 2.0 * again + 500.0)
    }
}

/// Private anonymous memory in small pages, unmapped when dropped.
struct Pages {
    start: NonNull<u8>,
    len_bytes: usize,
}

impl Pages {
    fn map(len_bytes: usize) -> Option<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping wherever the kernel likes: no memory in use is affected.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), len_bytes, access, MapFlags::PRIVATE) }.ok()?;
        let pages = Self { start: NonNull::new(start.cast())?, len_bytes };
        // SAFETY: the range is the mapping made just above. Advice only.
        let _ = unsafe { madvise(start, len_bytes, Advice::LinuxNoHugepage) };
        Some(pages)
    }

    fn write(&self, page: usize) {
        assert!(page < self.len_bytes / PAGE_BYTES, "page {page} of {} bytes", self.len_bytes);
        // SAFETY: inside the mapping, which is ours alone and writable.
        unsafe { self.start.add(page * PAGE_BYTES).write_volatile(1) };
    }

    fn read(&self, page: usize) -> u8 {
        assert!(page < self.len_bytes / PAGE_BYTES, "page {page} of {} bytes", self.len_bytes);
        // SAFETY: inside the mapping, which is ours alone; the kernel gives zeroes.
        unsafe { self.start.add(page * PAGE_BYTES).read_volatile() }
    }

    fn write_all(&self) {
        (0..self.len_bytes / PAGE_BYTES).for_each(|page| self.write(page));
    }

    fn drop_page(&self) -> bool {
        // SAFETY: the first page of the mapping; no reference to its bytes exists.
        unsafe { madvise(self.start.as_ptr().cast(), PAGE_BYTES, Advice::LinuxDontNeed) }.is_ok()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, to which no reference exists.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len_bytes) };
    }
}

fn clock() -> (f64, f64) {
    let cost = best_of(5, || per_call(2000, || Instant::now().elapsed() > Duration::MAX)) / 2.0;
    let mut step = Duration::MAX;
    let mut last = Instant::now();
    for _ in 0..2000 {
        let now = Instant::now();
        if now > last {
            step = step.min(now - last);
        }
        last = now;
    }
    (cost, step.as_nanos() as f64)
}

fn minor_fault() -> Option<f64> {
    let pages = 2048;
    let round = || {
        let memory = Pages::map(pages * PAGE_BYTES)?;
        let started = Instant::now();
        let sum: u64 = (0..pages).map(|page| u64::from(memory.read(page))).sum();
        black_box(sum);
        Some(started.elapsed().as_nanos() as f64 / pages as f64)
    };
    (0..3).map(|_| round()).collect::<Option<Vec<_>>>()?.into_iter().reduce(f64::min)
}

/// Nanoseconds per page of a first touch, then, after giving the memory back, of a second first touch.
fn first_touch() -> Option<(f64, f64)> {
    let round = || {
        let memory = Pages::map(FRESH_BYTES)?;
        let started = Instant::now();
        memory.write_all();
        Some(started.elapsed().as_nanos() as f64 / (FRESH_BYTES / PAGE_BYTES) as f64)
    };
    let first = round()?;
    let again = round()?.min(round()?);
    Some((first, again))
}

/// Nanoseconds of dropping a page: without another thread, and while another thread of the process runs on another CPU.
fn unmap() -> Option<(f64, Option<f64>)> {
    let memory = Pages::map(PAGE_BYTES)?;
    let round = || {
        let mut samples = Vec::with_capacity(500);
        for _ in 0..500 {
            memory.write(0);
            let started = Instant::now();
            let dropped = memory.drop_page();
            samples.push(started.elapsed().as_nanos() as f64);
            if !dropped {
                return None;
            }
        }
        samples.sort_by(f64::total_cmp);
        Some(samples[samples.len() / 2])
    };
    let alone = round()?;
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return Some((alone, None));
    }
    let (running, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    let shared = std::thread::scope(|scope| {
        scope.spawn(|| {
            running.store(true, Ordering::Release);
            while !stop.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        while !running.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        let shared = round();
        stop.store(true, Ordering::Relaxed);
        shared
    });
    Some((alone, shared))
}

/// Nanoseconds of a fault of a mapped file's page and of its eviction, without I/O. The best of three rounds.
fn file_pages(folder: &Path) -> Option<(f64, f64)> {
    let file = super::data::nameless(folder).ok()?;
    file.set_len(HOLE_BYTES as u64).ok()?;
    // SAFETY: the file has no name and belongs to this process alone, so that it is neither cut nor changed.
    let map = unsafe { MappedFile::map(&file, Protection::ReadOnly, 0..HOLE_BYTES as u64) }.ok()?;
    map.advise(mapped::Advice::Random, 0..HOLE_BYTES).ok()?;
    let pages = (HOLE_BYTES / PAGE_BYTES) as f64;
    let round = || {
        let started = Instant::now();
        let sum: u64 = map.bytes().iter().step_by(PAGE_BYTES).map(|byte| u64::from(black_box(*byte))).sum();
        let fault = started.elapsed().as_nanos() as f64 / pages;
        black_box(sum);
        let started = Instant::now();
        map.advise(mapped::Advice::PageOut, 0..HOLE_BYTES).ok()?;
        let evict = started.elapsed().as_nanos() as f64 / pages;
        // When the kernel ignores the advice the figure is wrong, so none is returned.
        let left = map.residency(0..HOLE_BYTES).ok()?;
        (left < HOLE_BYTES as u64 / 10).then_some((fault, evict))
    };
    let rounds = (0..3).map(|_| round()).collect::<Option<Vec<_>>>()?;
    rounds.into_iter().reduce(|best, next| (best.0.min(next.0), best.1.min(next.1)))
}

fn per_call(calls: u32, mut call: impl FnMut() -> bool) -> f64 {
    let started = Instant::now();
    for _ in 0..calls {
        black_box(call());
    }
    started.elapsed().as_nanos() as f64 / f64::from(calls)
}

fn best_of(rounds: u32, round: impl FnMut() -> f64) -> f64 {
    std::iter::repeat_with(round).take(rounds as usize).fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_primitive_costs_something() {
        let costs = Costs::measure(Path::new("."));
        assert!(costs.clock_ns > 0.0 && costs.syscall_ns > 0.0 && costs.clock_step_ns > 0.0, "{costs:?}");
        let some = [costs.minor_fault_ns, costs.first_touch_ns, costs.touch_again_ns, costs.unmap_ns];
        assert!(some.into_iter().flatten().all(|ns| ns > 0.0), "{costs:?}");
        let file = [costs.file_fault_ns, costs.file_evict_ns];
        assert!(file.into_iter().flatten().all(|ns| ns > 0.0), "{costs:?}");
        if file.contains(&None) {
            println!("this file system or kernel does not let a mapped page be sent away: not calibrated");
        }
    }

    #[test]
    fn memory_counts_as_lazy_only_when_the_first_touch_stands_out() {
        let costs =
            |first, again| Costs { first_touch_ns: Some(first), touch_again_ns: Some(again), ..Costs::default() };
        assert!(costs(5400.0, 1700.0).memory_is_lazy());
        assert!(!costs(900.0, 700.0).memory_is_lazy());
        assert!(!Costs::default().memory_is_lazy());
    }
}
