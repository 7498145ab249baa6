//! The measurement of a trial of `claims`, method by method.

use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::ptr::NonNull;
use std::time::Instant;

use nofault::mmap;
use nofault::settings::Settings;
use nofault_io::aligned::{IoBuf, PageKind};
use nofault_io::mapped::{Advice, MappedFile, Protection, SyncMode};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::{
    GROW_MAPPED, MMAP_CALL, MMAP_CALL_ONE_PAGE, MMAP_COMMIT, MMAP_COPY, MMAP_IN_PLACE, MMAP_PRIVATE, ONE_MAP, OWN,
    PWRITE_FDATASYNC, THOUSAND_MAPS, folder_of, number, only_path, run_fixed, run_timed,
};
use crate::error::{LabError, LabErrorKind, Result};
use crate::experiment::Context;
use crate::machine::data::nameless;
use crate::machine::scratch::Scratch;
use crate::measure::entries::{Data, Key};
use crate::measure::read_loops::sync::{Files, Means};
use crate::measure::read_loops::{Pattern, unknown};
use crate::measure::stores::{self, Engine, Room, Start, Store};
use crate::measure::workload::{Layout, Order, PAGE_BYTES, first_word};
use crate::measure::{Work, Worker};
use crate::methods;
use crate::paths::shown;
use crate::record::{Outcome, TrialSpec};

// Reads data in the page cache from front to back, in units of one size. Every method sums one word of each
// cache line, in place or in a separate buffer, so that all touch every line.

/// The methods: reading in place through a map, copying out of a map, and `pread`.
pub(super) const CACHED_METHODS: [&str; 3] = [MMAP_IN_PLACE.id, MMAP_COPY.id, methods::PREAD_BUFFERED.id];

const CACHE_LINE_BYTES: usize = 64;

/// Measures one method of `cached-read`.
pub(super) fn cached_read(spec: &TrialSpec, layout: &Layout, context: &mut Context<'_>) -> Result<Outcome> {
    let path = only_path(spec, layout)?;
    let order = Pattern::Scan { part_bytes: u64::MAX }.orders(layout, spec).into_iter().next();
    let order = order.ok_or_else(|| unknown(spec))?;
    let mut buffer = IoBuf::zeroed(layout.block_bytes as usize, PageKind::Huge)?;
    // The buffer's pages are faulted in here, so that the first timed reads do not fault.
    buffer.fill(0);
    if spec.method == methods::PREAD_BUFFERED {
        let files = Files::open(layout, Means::Buffered)?;
        let mut each = move |offset_bytes: u64| -> Result<Option<bool>> {
            files.read(layout, 0, offset_bytes, &mut buffer)?;
            black_box(sum(&buffer));
            Ok(layout.is_right(&buffer, offset_bytes))
        };
        let work: Work<'_> = Box::new(move |worker| scan(worker, layout, order, &mut each));
        return run_timed(spec, vec![work], context);
    }
    let copies = match methods::find(OWN, &spec.method) {
        Some(&MMAP_COPY) => true,
        Some(&MMAP_IN_PLACE) => false,
        _ => return Err(unknown(spec)),
    };
    let file = File::open(path).map_err(|error| LabError::system(format!("open {}", shown(&path)), &error))?;
    // SAFETY: the lab holds its data files for itself and writes none of them while trials run.
    let map = unsafe { MappedFile::map(&file, Protection::ReadOnly, 0..layout.file_bytes()) }?;
    map.advise(Advice::Normal, 0..map.len_bytes())?;
    let mut each = move |offset_bytes: u64| -> Result<Option<bool>> {
        let at = offset_bytes as usize;
        let range = at..at + layout.block_bytes as usize;
        Ok(map.guarded(range, |bytes| {
            let bytes = if copies {
                buffer.copy_from_slice(bytes);
                &buffer[..]
            } else {
                bytes
            };
            black_box(sum(bytes));
            layout.is_right(bytes, offset_bytes)
        })?)
    };
    let work: Work<'_> = Box::new(move |worker| scan(worker, layout, order, &mut each));
    run_timed(spec, vec![work], context)
}

/// Reads unit after unit; `each` reads the unit at an offset and returns whether its content is right.
fn scan(
    worker: &mut Worker<'_>,
    layout: &Layout,
    mut order: Order,
    each: &mut dyn FnMut(u64) -> Result<Option<bool>>,
) -> Result<()> {
    worker.start();
    let mut before = worker.started();
    while worker.running() {
        let place = layout.place(order.next_block());
        if let Some(right) = each(place.offset_bytes)? {
            worker.verified(right);
        }
        worker.done(1, layout.block_bytes);
        let now = Instant::now();
        worker.latency("op", now - before);
        before = now;
    }
    Ok(())
}

/// Sums the first word of each cache line.
fn sum(bytes: &[u8]) -> u64 {
    let lines = bytes.chunks_exact(CACHE_LINE_BYTES);
    lines.fold(0, |sum, line| sum.wrapping_add(line.first_chunk().map_or(0, |word| u64::from_le_bytes(*word))))
}

// Threads that map a part of a cached file, read it, and unmap it, as an engine does that maps files for a query. They
// are compared with `pread` of the same part into a buffer that each thread keeps. The kernel changes an address space
// for one thread at a time.

/// The methods: map a part and touch every page; map it and touch one page, which costs little more than the calls
/// themselves; read it by `pread`.
pub(super) const CALL_METHODS: [&str; 3] = [MMAP_CALL.id, MMAP_CALL_ONE_PAGE.id, methods::PREAD_BUFFERED.id];

/// Measures one method of `map-calls`.
pub(super) fn map_calls(spec: &TrialSpec, layout: &Layout, context: &mut Context<'_>) -> Result<Outcome> {
    let path = only_path(spec, layout)?;
    let open = || File::open(path).map_err(|error| LabError::system(format!("open {}", shown(&path)), &error));
    let (file, files) = (open()?, Files::open(layout, Means::Buffered)?);
    let (file, files) = (&file, &files);
    let touched = match methods::find(OWN, &spec.method) {
        Some(&MMAP_CALL) => Some(layout.block_bytes as usize / PAGE_BYTES),
        Some(&MMAP_CALL_ONE_PAGE) => Some(1),
        Some(&methods::PREAD_BUFFERED) => None,
        _ => return Err(unknown(spec)),
    };
    let work = |order: Order| -> Work<'_> {
        Box::new(move |worker: &mut Worker<'_>| {
            let mut buffer = IoBuf::zeroed(layout.block_bytes as usize, PageKind::Huge)?;
            buffer.fill(0);
            call(worker, layout, order, &mut |worker, offset_bytes| {
                let Some(pages) = touched else {
                    files.read(layout, 0, offset_bytes, &mut buffer)?;
                    if let Some(right) = layout.is_right(&buffer, offset_bytes) {
                        worker.verified(right);
                    }
                    return Ok(());
                };
                let map = RawMap::map(file, offset_bytes, layout.block_bytes as usize, false)?;
                for page in 0..pages {
                    let right = layout.is_right_word(map.word(page), offset_bytes + (page * PAGE_BYTES) as u64);
                    worker.verified(right);
                }
                Ok(())
            })
        })
    };
    let works = Pattern::Random.orders(layout, spec).into_iter().map(work).collect();
    run_timed(spec, works, context)
}

type Each<'a> = &'a mut dyn FnMut(&mut Worker<'_>, u64) -> Result<()>;

fn call(worker: &mut Worker<'_>, layout: &Layout, mut order: Order, each: Each<'_>) -> Result<()> {
    worker.start();
    let mut before = worker.started();
    while worker.running() {
        let place = layout.place(order.next_block());
        each(worker, place.offset_bytes)?;
        worker.done(1, layout.block_bytes);
        let now = Instant::now();
        worker.latency("op", now - before);
        before = now;
    }
    Ok(())
}

// Many small maps or one large one, and files that grow in small steps or in large ones.
//
// - `many-maps`: a round maps the whole cached file by one call, or by a thousand calls for a thousandth each. It then
//   reads a random page of each thousandth, and unmaps. An operation is a page read; the faults are the same for both
//   methods.
// - `file-growth`: pages are appended by `pwrite` to a file read through one map of all of it. When the file
//   is full it is made a step longer and mapped again; each page is then looked at through the map. The file has no
//   name.

/// The methods of `many-maps`: one call for the whole file, or one call for each part.
pub(super) const MAP_METHODS: [&str; 2] = [ONE_MAP.id, THOUSAND_MAPS.id];
/// Number of parts of the file; a round touches one page of each. A file with fewer pages has fewer parts.
const PARTS: u64 = 1000;

/// Length in bytes at which a growing file is complete and the next file begins.
const GROWN_BYTES: u64 = 64 << 20;

/// Measures the variant `many-maps`.
pub(super) fn many_maps(spec: &TrialSpec, layout: &Layout, context: &mut Context<'_>) -> Result<Outcome> {
    let path = only_path(spec, layout)?;
    let file = File::open(path).map_err(|error| LabError::system(format!("open {}", shown(&path)), &error))?;
    // The layout is one file with blocks of a page, so its data follows the lab's header without a gap.
    let (first_bytes, pages) = (layout.place(0).offset_bytes, layout.block_count());
    let parts = PARTS.min(pages).max(1);
    let part_pages = pages / parts;
    let one = match MAP_METHODS.iter().position(|id| *id == spec.method) {
        Some(at) => at == 0,
        None => return Err(unknown(spec)),
    };
    let (file, seed) = (&file, spec.seed);
    let work: Work<'_> = Box::new(move |worker: &mut Worker<'_>| {
        let mut chance = fastrand::Rng::with_seed(seed);
        let map = |from: u64, pages: u64| {
            RawMap::map(file, first_bytes + from * PAGE_BYTES as u64, pages as usize * PAGE_BYTES, false)
        };
        worker.start();
        while worker.running() {
            let count = if one { 1 } else { parts };
            let maps: Vec<RawMap<'_>> =
                (0..count).map(|at| map(at * part_pages, parts * part_pages / count)).collect::<Result<_>>()?;
            for part in 0..parts {
                let inside = chance.u64(..part_pages);
                let (at, page) = if one { (0, part * part_pages + inside) } else { (part, inside) };
                let offset_bytes = first_bytes + (part * part_pages + inside) * PAGE_BYTES as u64;
                worker.verified(layout.is_right_word(maps[at as usize].word(page as usize), offset_bytes));
            }
            drop(maps);
            worker.done(parts, parts * PAGE_BYTES as u64);
        }
        Ok(())
    });
    run_timed(spec, vec![work], context)
}

/// Measures the variant `file-growth`.
pub(super) fn file_growth(spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
    if spec.method != GROW_MAPPED {
        return Err(unknown(spec));
    }
    let step_bytes = number(spec, "step")?;
    if step_bytes == 0 || step_bytes > GROWN_BYTES || !step_bytes.is_multiple_of(PAGE_BYTES as u64) {
        let message = format!("{}: a step is whole pages, up to {GROWN_BYTES} bytes", spec.key());
        return Err(LabError::new(LabErrorKind::Usage, message));
    }
    let folder = folder_of(spec);
    let work: Work<'_> = Box::new(move |worker: &mut Worker<'_>| {
        worker.start();
        while worker.running() {
            let file = nameless(&folder)?;
            append(worker, &file, step_bytes)?;
        }
        Ok(())
    });
    run_timed(spec, vec![work], context)
}

/// Appends to one file, page after page, until it has its full length.
fn append(worker: &mut Worker<'_>, file: &File, step_bytes: u64) -> Result<()> {
    let failed = |what: &'static str| move |error: std::io::Error| LabError::system(what, &error);
    let mut page = vec![0; PAGE_BYTES];
    let (mut end, mut len_bytes, mut map) = (0, 0, None);
    while end < GROWN_BYTES && worker.running() {
        if end == len_bytes {
            len_bytes += step_bytes;
            file.set_len(len_bytes).map_err(failed("make a file longer"))?;
            // The old map is dropped first, because use of address space is not measured.
            drop(map.take());
            map = Some(RawMap::map(file, 0, len_bytes as usize, false)?);
        }
        let Some(map) = &map else { break };
        page[..8].copy_from_slice(&(end + 1).to_le_bytes());
        file.write_all_at(&page, end).map_err(failed("append to a file"))?;
        worker.verified(map.word(end as usize / PAGE_BYTES) == end + 1);
        end += PAGE_BYTES as u64;
        worker.done(1, PAGE_BYTES as u64);
    }
    Ok(())
}

// A map that makes only the calls being timed: [`nofault_io::mapped`] also keeps a descriptor, a path and a guard
// against SIGBUS, which would be timed as well.
//
// Kept true by: the file is the lab's own, complete, and locked by the lab while a trial runs, so its pages are there.

/// A mapped part of a file. Unmapped when dropped.
pub(super) struct RawMap<'a> {
    start: NonNull<u8>,
    len_bytes: usize,
    file: &'a File,
    offset_bytes: u64,
    private: bool,
}

impl<'a> RawMap<'a> {
    /// Maps a part of a file for reading. A `private` map may be written to; its changes never reach the file.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn map(file: &'a File, offset_bytes: u64, len_bytes: usize, private: bool) -> Result<Self> {
        let (access, flags) = protection(private);
        // SAFETY: a fresh mapping wherever the kernel likes: no memory in use is affected.
        let start = unsafe { mmap(std::ptr::null_mut(), len_bytes, access, flags, file, offset_bytes) };
        let start = start.map_err(|errno| LabError::system("map a part of a file", &errno.into()))?;
        match NonNull::new(start.cast()) {
            Some(start) => Ok(Self { start, len_bytes, file, offset_bytes, private }),
            None => Err(LabError::system("map a part of a file", &std::io::ErrorKind::Other.into())),
        }
    }

    /// Returns the number of pages in the map.
    fn page_count(&self) -> usize {
        self.len_bytes / PAGE_BYTES
    }

    /// Returns the first word of a page.
    pub(super) fn word(&self, page: usize) -> u64 {
        assert!(page < self.page_count(), "page {page} of {}", self.page_count());
        // SAFETY: inside the mapping and aligned to a page; the lab holds the file, so the page is there.
        u64::from_le(unsafe { self.start.as_ptr().add(page * PAGE_BYTES).cast::<u64>().read_volatile() })
    }

    /// Changes the first word of a page of a private map, so that the kernel copies the page.
    pub(super) fn change(&mut self, page: usize, word: u64) {
        assert!(self.private && page < self.page_count(), "page {page} of {}", self.page_count());
        // SAFETY: inside the mapping, writable because private, aligned, and `&mut self` makes it exclusive.
        unsafe { self.start.as_ptr().add(page * PAGE_BYTES).cast::<u64>().write_volatile(word.to_le()) };
    }

    /// Maps the same part again at the same place: a private map drops its copies and shows the file.
    ///
    /// # Errors
    /// The system's error; the map is then as before.
    pub(super) fn map_again(&mut self) -> Result<()> {
        let (access, flags) = protection(self.private);
        let at = self.start.as_ptr().cast();
        // SAFETY: it replaces this very mapping by one of the same length, file and protection; `&mut self` rules out
        // references to its bytes at that time.
        unsafe { mmap(at, self.len_bytes, access, flags | MapFlags::FIXED, self.file, self.offset_bytes) }
            .map(drop)
            .map_err(|errno| LabError::system("map a private view anew", &errno.into()))
    }
}

fn protection(private: bool) -> (ProtFlags, MapFlags) {
    match private {
        true => (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE),
        false => (ProtFlags::READ, MapFlags::SHARED),
    }
}

impl Drop for RawMap<'_> {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, to which no reference exists. An munmap of a mapping that exists cannot fail.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len_bytes) };
    }
}

// Remaps a private view of a file with changed pages, which drops the copies, as MongoDB's MMAPv1 did every two
// seconds with all its threads waiting.

/// Measures the variant `private-remap`: `op` is the time of remapping, `touch_again` the time of the first touches
/// of all pages that were copies, `copy` the time of making the copies.
pub(super) fn private_remap(spec: &TrialSpec, layout: &Layout, context: &mut Context<'_>) -> Result<Outcome> {
    if spec.method != MMAP_PRIVATE {
        return Err(crate::measure::read_loops::unknown(spec));
    }
    let path = only_path(spec, layout)?;
    let copied = usize::try_from(number(spec, "copied_pages")?).unwrap_or(usize::MAX);
    // The first page of the file holds the lab's marker.
    let pages = (layout.file_bytes() as usize / PAGE_BYTES).saturating_sub(1);
    if copied == 0 || copied > pages {
        let message = format!("{}: {copied} pages to be copied of {pages}", spec.key());
        return Err(LabError::new(LabErrorKind::Usage, message));
    }
    let file = File::open(path).map_err(|error| LabError::system(format!("open {}", shown(&path)), &error))?;
    let file = &file;
    let work: Work<'_> = Box::new(move |worker: &mut Worker<'_>| {
        let mut map = RawMap::map(file, PAGE_BYTES as u64, pages * PAGE_BYTES, true)?;
        // The changed pages are spread over the whole view, as updates are.
        let at = |number: usize| number * pages / copied;
        worker.start();
        while worker.running() {
            let before = Instant::now();
            (0..copied).for_each(|number| map.change(at(number), u64::MAX));
            worker.latency("copy", before.elapsed());
            let before = Instant::now();
            map.map_again()?;
            worker.latency("op", before.elapsed());
            let before = Instant::now();
            for number in 0..copied {
                let offset_bytes = ((at(number) + 1) * PAGE_BYTES) as u64;
                worker.verified(layout.is_right_word(map.word(at(number)), offset_bytes));
            }
            worker.latency("touch_again", before.elapsed());
            worker.done(1, (copied * PAGE_BYTES) as u64);
        }
        Ok(())
    });
    run_timed(spec, vec![work], context)
}

// Makes changes of pages durable in two ways: stored in a writable map and synced with msync, as LMDB does under
// MDB_WRITEMAP, or written with `pwrite` and synced with fdatasync, as LMDB does by default. The file has no name, so
// a killed trial leaves none behind.

/// The methods: stores into a writable map with msync, and `pwrite` with fdatasync.
pub(super) const COMMIT_METHODS: [&str; 2] = [MMAP_COMMIT.id, PWRITE_FDATASYNC.id];

/// Number of pages of the file: 64 MiB.
const PAGES: u64 = 16 << 10;

/// Measures one method of `map-commit`: `op` is the time of a commit, `sync` the time of the call that makes it
/// durable.
pub(super) fn map_commit(spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
    let count = number(spec, "commit_pages")?;
    if !(1..=PAGES).contains(&count) {
        let message = format!("{}: {count} pages a commit: must be 1 to {PAGES}", spec.key());
        return Err(LabError::new(LabErrorKind::Usage, message));
    }
    let through_map = match methods::find(OWN, &spec.method) {
        Some(&MMAP_COMMIT) => true,
        Some(&PWRITE_FDATASYNC) => false,
        _ => return Err(unknown(spec)),
    };
    let file = nameless(&folder_of(spec))?;
    let failed = |what: &'static str| move |error: std::io::Error| LabError::system(what, &error);
    // The file is written and synced once, so that the timed writes change allocated blocks.
    for start in (0..PAGES).step_by(256) {
        file.write_all_at(&vec![0; 256 * PAGE_BYTES], start * PAGE_BYTES as u64).map_err(failed("fill a file"))?;
    }
    file.sync_all().map_err(failed("sync a file"))?;
    let file = &file;
    let seed = spec.seed;
    let work: Work<'_> = Box::new(move |worker: &mut Worker<'_>| {
        // SAFETY: the file has no name, so no other process can open it, and this work alone changes it: through this
        // map, or by calls while no slice of the map is alive.
        let mut map = unsafe { MappedFile::map(file, Protection::Shared, 0..PAGES * PAGE_BYTES as u64) }?;
        let mut expected = vec![0_u64; PAGES as usize];
        let mut chance = fastrand::Rng::with_seed(seed);
        let mut page = vec![7_u8; PAGE_BYTES];
        let mut next = 1_u64;
        worker.start();
        while worker.running() {
            let before = Instant::now();
            for _ in 0..count {
                let number = chance.usize(0..PAGES as usize);
                page[..8].copy_from_slice(&next.to_le_bytes());
                let at = number * PAGE_BYTES;
                if through_map {
                    map.guarded_mut(at..at + PAGE_BYTES, |bytes| bytes.copy_from_slice(&page))?;
                } else {
                    file.write_all_at(&page, at as u64).map_err(failed("write a page"))?;
                }
                expected[number] = next;
                next += 1;
            }
            let synced = Instant::now();
            if through_map {
                map.sync(0..map.len_bytes(), SyncMode::Wait)?;
            } else {
                file.sync_data().map_err(failed("fdatasync"))?;
            }
            worker.latency("sync", synced.elapsed());
            worker.latency("op", before.elapsed());
            worker.done(1, count * PAGE_BYTES as u64);
        }
        for (number, word) in expected.iter().enumerate() {
            file.read_exact_at(&mut page, (number * PAGE_BYTES) as u64).map_err(failed("read a page back"))?;
            worker.verified(first_word(&page) == *word);
        }
        Ok(())
    });
    run_timed(spec, vec![work], context)
}

// Measures the growth of a database under updates: once without readers, and once with a reader that stays from before
// the first update until after the last. The claim "readers are free" says that this makes no difference. Growth
// counts the file, and for the engine, which keeps some old versions in memory, the memory as well.

/// The stores whose versions share pages, so that a reader keeps old pages from being freed; some may be missing from
/// this build. `shadow` has LMDB's design over the engine's tree, all in one file, and is always compiled in.
pub(super) const STORES: [&str; 4] = [methods::NOFAULT.id, methods::SHADOW.id, methods::LMDB.id, methods::REDB.id];

/// Number of updates in one durable commit, the same for all stores.
const COMMIT_UPDATES: u64 = 500;
const VALUE_BYTES: usize = 100;
/// Cache of each store in bytes: more than any store needs for so little data.
const CACHE_BYTES: u64 = 64 << 20;

/// Returns why a store cannot be measured in this build; `None` where it can.
pub(super) fn not_built(id: &str) -> Option<String> {
    stores::kind_of(id).filter(|kind| !kind.is_built()).map(stores::Kind::not_built)
}

/// Measures the growth of one store under updates. Figures: `used_before_bytes`, `used_after_bytes`, `grown_bytes`, and
/// `memory_bytes` (old versions in memory, which are part of the growth).
pub(super) fn long_reader(spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
    if !STORES.contains(&spec.method.as_str()) || not_built(&spec.method).is_some() {
        return Err(unknown(spec));
    }
    let (updates, keys) = (number(spec, "updates")?, number(spec, "keys")?);
    let held = spec.params.extra.get("reader").is_some_and(|reader| reader == "held");
    if keys == 0 {
        return Err(LabError::new(LabErrorKind::Usage, format!("{}: no keys", spec.key())));
    }
    let scratch = Scratch::make(&folder_of(spec), "claims")?;
    let folder = scratch.path().join("data");
    let data = Data { count: keys, value_bytes: VALUE_BYTES, seed: spec.seed };
    let method = spec.method.clone();
    let work: Work<'_> = Box::new(move |worker: &mut Worker<'_>| {
        let grown = match method.as_str() {
            id if id == methods::NOFAULT.id => engine(worker, &folder, data, updates, held)?,
            id if id == methods::SHADOW.id => shadow(worker, &folder, data, updates, held)?,
            rival_id => rival(worker, rival_id, &folder, data, updates, held)?,
        };
        let after = grown.after_bytes + grown.memory_bytes;
        worker.figure("used_before_bytes", grown.before_bytes as f64);
        worker.figure("used_after_bytes", after as f64);
        worker.figure("grown_bytes", after.saturating_sub(grown.before_bytes) as f64);
        worker.figure("memory_bytes", grown.memory_bytes as f64);
        Ok(())
    });
    let outcome = run_fixed(work, context);
    scratch.remove()?;
    outcome
}

/// Bytes in use before and after the updates, and bytes of old versions in memory.
struct Growth {
    before_bytes: u64,
    after_bytes: u64,
    memory_bytes: u64,
}

fn engine(worker: &mut Worker<'_>, folder: &Path, data: Data, updates: u64, held: bool) -> Result<Growth> {
    let engine = Engine::load(folder, data, &Settings { cache_bytes: CACHE_BYTES as usize, ..Settings::default() })?;
    engine.settle()?;
    // Counts blocks in use, because the file itself grows in large steps.
    let before_bytes = engine.used_bytes();
    let snapshot = held.then(|| engine.db.snapshot());
    update(worker, data, updates, |entries| engine.write(entries, true))?;
    // Twice, because blocks freed by the first checkpoint can be used only after the second.
    engine.settle()?;
    engine.settle()?;
    let grown =
        Growth { before_bytes, after_bytes: engine.used_bytes(), memory_bytes: engine.db.stats().pool.snapshot_bytes };
    let table = &engine.table;
    for number in 0..data.count {
        let key = data.key(number);
        match &snapshot {
            Some(snapshot) => worker.verified(is_first(data, number, snapshot.get(table, key)?.as_deref())),
            None => worker.verified(table.get(key)?.is_some_and(|value| data.is_right(number, &value))),
        }
    }
    Ok(grown)
}

fn shadow(worker: &mut Worker<'_>, folder: &Path, data: Data, updates: u64, held: bool) -> Result<Growth> {
    // The size is address space, as for LMDB: with a reader every update may cost a copy of each level of the tree.
    let map_bytes = (data.user_bytes() * 8 + (4 << 30)).next_multiple_of(1 << 20);
    let settings = mmap::Settings { map_bytes, ..mmap::Settings::new(mmap::Protocol::Shadow(mmap::WriteBack::Call)) };
    // SAFETY: the folder is the trial's own, so no other process opens its files.
    let store = unsafe { mmap::Store::create(folder, &settings) }?;
    let write = |entries: &[(Key, Vec<u8>)]| -> Result<()> {
        let mut batch = mmap::Batch::new();
        for (key, value) in entries {
            batch.put(key.to_vec(), value.clone());
        }
        Ok(store.write(&batch)?)
    };
    let all: Vec<_> = data.entries().collect();
    all.chunks(COMMIT_UPDATES as usize).try_for_each(&write)?;
    let before_bytes = store.stats().file_bytes;
    let snapshot = held.then(|| store.snapshot());
    update(worker, data, updates, write)?;
    let grown = Growth { before_bytes, after_bytes: store.stats().file_bytes, memory_bytes: 0 };
    for number in 0..data.count {
        let key = data.key(number);
        worker.verified(match &snapshot {
            Some(snapshot) => is_first(data, number, snapshot.get(&key)?.as_deref()),
            None => store.get(&key)?.is_some_and(|value| data.is_right(number, &value)),
        });
    }
    Ok(grown)
}

fn rival(worker: &mut Worker<'_>, id: &str, folder: &Path, data: Data, updates: u64, held: bool) -> Result<Growth> {
    // The size is address space for LMDB: every update may cost a copy of each level of the tree.
    let data_bytes = data.user_bytes() * 8 + (4 << 30);
    let room = Room {
        cache_bytes: CACHE_BYTES,
        write_bytes: CACHE_BYTES / 8,
        data_bytes,
        threads: 4,
        value_bytes: VALUE_BYTES as u32,
    };
    let opened = stores::open(id, folder, room, Start::New);
    let store = opened.unwrap_or_else(|| Err(LabError::new(LabErrorKind::Unsupported, stores::not_built("peers"))))?;
    store.fill(&mut data.entries())?;
    store.settle()?;
    let before_bytes = file_bytes(folder);
    let mut reader = if held { Some(store.reader()?) } else { None };
    update(worker, data, updates, |entries| store.write(entries, true))?;
    store.settle()?;
    let grown = Growth { before_bytes, after_bytes: file_bytes(folder), memory_bytes: 0 };
    let mut now = if held { None } else { Some(store.reader()?) };
    for number in 0..data.count {
        let key = data.key(number);
        let mut right = false;
        if let Some(reader) = &mut reader {
            reader.get(&key, &mut |value| {
                right = is_first(data, number, value);
                Ok(())
            })?;
        } else if let Some(now) = &mut now {
            now.get(&key, &mut |value| {
                right = value.is_some_and(|value| data.is_right(number, value));
                Ok(())
            })?;
        }
        worker.verified(right);
    }
    Ok(grown)
}

fn update(
    worker: &mut Worker<'_>,
    data: Data,
    updates: u64,
    write: impl Fn(&[(Key, Vec<u8>)]) -> Result<()>,
) -> Result<()> {
    let mut chance = fastrand::Rng::with_seed(data.seed);
    let mut version = 0;
    worker.start();
    while version < updates && worker.running() {
        let count = COMMIT_UPDATES.min(updates - version);
        let mut entry = || -> (Key, Vec<u8>) {
            version += 1;
            data.changed(chance.u64(0..data.count), version)
        };
        let entries: Vec<_> = (0..count).map(|_| entry()).collect();
        write(&entries)?;
        worker.done(count, count * data.entry_bytes());
    }
    Ok(())
}

/// Whether a value is the value from before the first update.
fn is_first(data: Data, number: u64, value: Option<&[u8]>) -> bool {
    let mut first = Vec::new();
    data.fill(number, 0, &mut first);
    value == Some(&first)
}

/// Returns the bytes that the files of a folder occupy on the disk.
fn file_bytes(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|meta| meta.blocks() * 512).sum()
}
