mod portions;
mod reads;
mod refused;
mod scans;
mod standstill;
mod steps;
mod tier;
pub(crate) mod trouble;
pub(crate) mod wakers;
mod written_pages;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::{Duration, Instant};

use nofault_io::completion::{Completion, Op, OpKind};
use nofault_io::disk::{Directory, Disk, Queue, RefusedOp};
use nofault_sim::depth::{by_depth, sample};
use nofault_sim::{Hooks, SimOptions, SimWorld};

use super::frames::Waiter;
use super::page_table::Entry;
use super::reads::{Round, pages_for_scan};
use super::versions::NEWEST;
use super::*;
use crate::clock::ClockSource;
use crate::format::HEADER_BYTES;
use crate::pages::{Attempt, Missing, PageCopies as _, Pages, Snapshot as _, Store, Ticket as _, Wait};
use crate::sync::semaphore::Permit;

const PAGE: usize = 512;

fn pool(world: &SimWorld, frames: usize) -> BufferPool {
    let directory = world.directory();
    let disk: Arc<dyn Disk> = directory.create("data").unwrap();
    pool_on(&disk, frames, 128)
}

fn pool_on(disk: &Arc<dyn Disk>, frames: usize, reads_in_flight_max: usize) -> BufferPool {
    pool_with(disk, &PoolOptions { reads_in_flight_max, ..options(frames) })
}

fn options(frames: usize) -> PoolOptions {
    PoolOptions {
        cache_bytes: frames_bytes(frames as u64, PAGE, 0) + LoadedTable::new(PAGE, 1 << 30).memory_bytes(),
        spent_bytes: 0,
        page_bytes: PAGE,
        file_id: 77,
        snapshot_bytes_max: u64::MAX,
        reads_in_flight_max: 128,
        scan_bytes_min: 0,
        registers_frames: true,
        evicts_table: false,
        tier: crate::settings::TierUse::Always,
        clock: ClockSource::default(),
    }
}

fn pool_with(disk: &Arc<dyn Disk>, options: &PoolOptions) -> BufferPool {
    BufferPool::new(disk, options, LoadedTable::new(PAGE, 1 << 30), CommitSeq(0)).unwrap()
}

/// Runs an attempt until it is done, waiting on this thread as a blocking caller does.
fn run<T>(pool: &BufferPool, mut attempt: impl FnMut() -> Attempt<T>) -> Result<T> {
    let (mut _held, mut alone) = (None, false);
    loop {
        match attempt() {
            Ok(answer) => return Ok(answer),
            Err(Wait::Failed(error)) => return Err(error),
            Err(wait) => {
                // By turns the page is read alone and with a ticket.
                alone = !alone;
                if let (Wait::Miss(missing), true) = (&wait, alone)
                    && pool.read_alone(*missing)?
                {
                    continue;
                }
                let mut ticket = pool.request(&[wait], Permit::any());
                ticket.wait()?;
                _held = Some(ticket);
            }
        }
    }
}

fn fill(body: &mut [u8], value: u64) {
    for chunk in body.chunks_exact_mut(8) {
        chunk.copy_from_slice(&value.to_le_bytes());
    }
}

fn value(body: &[u8]) -> u64 {
    assert_eq!(body.len(), PAGE - HEADER_BYTES);
    let first = u64::from_le_bytes(body[..8].try_into().unwrap());
    assert!(body.chunks_exact(8).all(|chunk| chunk == first.to_le_bytes()), "a page with two different values");
    first
}

/// Publishes commit `seq`: sets the pages in `sets`, allocates a page for each value in `new`, and frees the pages in
/// `frees`. Returns the new ids.
fn commit(pool: &BufferPool, seq: u64, sets: &[(PageId, u64)], new: &[u64], frees: &[PageId]) -> Result<Vec<PageId>> {
    run(pool, || {
        let mut copies = pool.copies();
        copies.reserve(sets.len() + new.len())?;
        for (page, value) in sets {
            fill(copies.edit(*page)?, *value);
        }
        let mut ids = Vec::new();
        for value in new {
            let (id, body) = copies.allocate(sets.first().map_or(PageId(0), |(page, _)| *page))?;
            fill(body, *value);
            ids.push(id);
        }
        frees.iter().for_each(|page| copies.free(*page));
        pool.publish(copies, CommitSeq(seq));
        Ok(ids)
    })
}

#[test]
fn a_pool_with_more_bytes_has_no_fewer_frames_and_fits_into_its_bytes() {
    for page_bytes in [512, 4096, 16_384, 65_536] {
        let mut before = 0;
        for bytes in (1 << 18..64 << 20).step_by(61_111).chain((64_u64 << 20..2 << 30).step_by(9_111_111)) {
            let frames = frames_in(bytes, page_bytes, SCAN_BYTES_MIN);
            let taken = frames_bytes(frames, page_bytes, SCAN_BYTES_MIN);
            assert!(taken <= bytes && frames >= before, "{page_bytes}, {bytes}: {frames} frames, {taken} bytes");
            let left = bytes - taken;
            // Or all that is missing for the memory of scans.
            let most = (bytes / FREE_SHARE).max(3 << 20);
            assert!(left <= most, "{page_bytes}, {bytes}: {frames} frames leave {left} bytes");
            before = frames;
        }
    }
}

#[test]
fn published_pages_are_seen_once_their_commit_is_visible() {
    let world = SimWorld::new(1, SimOptions::calm());
    let pool = pool(&world, 64);
    let ids = commit(&pool, 1, &[], &[10, 20], &[]).unwrap();
    assert!(matches!(pool.latest().page(ids[0]), Err(Wait::Failed(_))), "not visible yet");
    assert_eq!(value(pool.latest_published().page(ids[0]).ok().unwrap()), 10);
    pool.set_visible(CommitSeq(1));
    let snapshot = pool.snapshot();
    commit(&pool, 2, &[(ids[0], 11)], &[], &[ids[1]]).unwrap();
    assert_eq!(value(pool.latest().page(ids[0]).ok().unwrap()), 10);
    pool.set_visible(CommitSeq(2));
    assert_eq!(value(pool.latest().page(ids[0]).ok().unwrap()), 11);
    assert_eq!(value(pool.view(&snapshot).page(ids[0]).ok().unwrap()), 10);
    assert_eq!(value(pool.view(&snapshot).page(ids[1]).ok().unwrap()), 20, "freed later");
}

#[test]
fn versions_are_dropped_late_while_commits_become_visible() {
    let world = SimWorld::new(1, SimOptions::calm());
    let pool = pool(&world, 64);
    std::thread::scope(|scope| {
        let commits = scope.spawn(|| (1..1_000_000).for_each(|seq| pool.set_visible(CommitSeq(seq))));
        while !commits.is_finished() {
            pool.versions.history().drop_superseded();
        }
    });
    assert_eq!(pool.versions.history().visible(), CommitSeq(999_999));
}

#[test]
fn pages_that_may_be_written_soon_are_written_early_and_stay_in_memory() {
    let world = SimWorld::new(5, SimOptions::default());
    let pool = pool(&world, 200);
    let ids = commit(&pool, 1, &[], &[1, 2, 3, 4], &[]).unwrap();
    pool.write_soon(&ids);
    assert_eq!(pool.stats().pages_written, 0, "no thread writes it");
    let threads = pool.start_background_threads(|_| {}).unwrap();
    pool.write_soon(&[&ids[..2], &ids[..1], &[PageId(9999)]].concat());
    for _ in 0..10_000 {
        if pool.stats().pages_dirty == 2 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    drop(threads);
    let stats = pool.stats();
    assert_eq!((stats.pages_written, stats.pages_dirty), (2, 2), "a page named twice is written once");
    for (id, wanted) in ids.iter().zip(1..) {
        assert_eq!(pool.latest_published().page(*id).map(value).ok(), Some(wanted));
    }
}

#[test]
fn pages_that_a_range_scan_requests_arrive_without_a_waiter() {
    let world = SimWorld::new(6, SimOptions::calm());
    let pool = pool(&world, 256);
    let ids: Vec<PageId> = (1..5).flat_map(|seq| commit(&pool, seq, &[], &[seq; 20], &[]).unwrap()).collect();
    for _ in 0..20 {
        pool.evictor.free_frames(128);
    }
    let _threads = pool.start_background_threads(|_| {}).unwrap();
    let scan = pool.begin_range_scan();
    let missing: Vec<_> = ids.iter().map(|page| Missing { page: *page, at: NEWEST }).collect();
    pool.prefetch(&missing);
    pool.submit_soon();
    for _ in 0..10_000 {
        if pool.stats().reads_in_flight == 0 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    for (at, page) in ids.iter().enumerate() {
        assert_eq!(pool.latest_published().page(*page).map(value).ok(), Some(at as u64 / 20 + 1));
    }
    drop(scan);
    for _ in 0..20 {
        pool.evictor.free_frames(128);
    }
    let waits: Vec<_> = missing.iter().map(|missing| Wait::Miss(*missing)).collect();
    pool.request(&waits, Permit::any()).wait().unwrap();
}

#[test]
fn a_thread_that_is_stopped_with_an_epoch_guard_does_not_cost_the_pool_its_pages() {
    let world = SimWorld::new(6, SimOptions::calm());
    let pool = pool(&world, 1024);
    (1..10).for_each(|seq| _ = commit(&pool, seq, &[], &[seq; 100], &[]).unwrap());
    pool.evictor.write_dirty(1024);
    let evicted = |pool: &BufferPool| pool.versions.counters().evicted.load(Ordering::Relaxed);
    let (before, guard) = (evicted(&pool), pool.versions.history().pin());
    for _ in 0..50 {
        pool.evictor.free_clean_frames(64);
        pool.evictor.restock(64);
        pool.evictor.free_frames(64);
    }
    let first = evicted(&pool) - before;
    assert!((1..=128).contains(&first), "{first} pages were evicted while the first of them could not become free");
    let mut taken = Vec::new();
    pool.versions.frames().take_some_for_read(1024, &mut taken);
    for _ in 0..3 {
        let pause = pool.background.round(Instant::now());
        assert_eq!(pause, Duration::from_millis(1), "the background writer does not spin, nor sleep longer each time");
    }
    pool.versions.frames().give_back(taken);
    assert_eq!(evicted(&pool) - before, first);
    drop(guard);
    let free = pool.stats().frames_free;
    pool.evictor.free_clean_frames(64);
    assert!(pool.stats().frames_free >= free + 64, "evicted frames become free");
    assert_eq!(evicted(&pool) - before, first);
}

#[test]
fn dropped_copies_leave_no_trace() {
    let world = SimWorld::new(1, SimOptions::calm());
    let pool = pool(&world, 64);
    let ids = commit(&pool, 1, &[], &[10], &[]).unwrap();
    let free = pool.stats().frames_free;
    {
        let mut copies = pool.copies();
        fill(copies.edit(ids[0]).ok().unwrap(), 99);
        let (new, _) = copies.allocate(ids[0]).ok().unwrap();
        assert_eq!(new, PageId(1));
        copies.free(ids[0]);
    }
    assert_eq!(pool.stats().frames_free, free);
    assert_eq!(value(pool.latest_published().page(ids[0]).ok().unwrap()), 10);
    assert_eq!(commit(&pool, 2, &[], &[1], &[]).unwrap(), [PageId(1)], "the id is free again");
}

/// A pool that holds a small part of its pages, and the expected pages of each commit.
struct Model {
    commits: BTreeMap<u64, BTreeMap<PageId, u64>>,
    latest: BTreeMap<PageId, u64>,
    next_seq: u64,
    visible: u64,
}

/// Runs a random history, in which each page has a value of those that `value_of` makes, and returns the pool's statistics.
fn random_history(
    (seed, options): (u64, SimOptions),
    (frames, steps): (usize, usize),
    value_of: fn(u64) -> u64,
) -> PoolStats {
    let world = SimWorld::new(seed, options);
    let pool = pool(&world, frames);
    tier::compress(&pool);
    let mut random = fastrand::Rng::with_seed(seed);
    let first = BTreeMap::new();
    let mut model = Model { commits: BTreeMap::from([(0, first.clone())]), latest: first, next_seq: 1, visible: 0 };
    let mut snapshots: Vec<Snapshot> = Vec::new();
    for step in 0..steps {
        let context = || format!("seed {seed}, step {step}, {world}");
        match random.u32(0..13) {
            0..=4 => {
                let seq = model.next_seq;
                model.next_seq += 1;
                let existing: Vec<PageId> = model.latest.keys().copied().collect();
                let mut sets = BTreeMap::new();
                let mut frees = Vec::new();
                for _ in 0..random.usize(0..6) {
                    if let Some(page) = random.choice(&existing) {
                        sets.insert(*page, value_of(random.u64(..)));
                    }
                }
                if random.u32(0..4) == 0
                    && let Some(page) = random.choice(&existing)
                    && !sets.contains_key(page)
                {
                    frees.push(*page);
                }
                let new: Vec<u64> = (0..random.usize(0..4)).map(|_| value_of(random.u64(..))).collect();
                let set_list: Vec<(PageId, u64)> = sets.iter().map(|(page, value)| (*page, *value)).collect();
                let ids = commit(&pool, seq, &set_list, &new, &frees).unwrap_or_else(|e| panic!("{e}: {}", context()));
                model.latest.extend(sets);
                model.latest.retain(|page, _| !frees.contains(page));
                for (id, value) in ids.into_iter().zip(new) {
                    assert_eq!(model.latest.insert(id, value), None, "an id given out twice: {}", context());
                }
                model.commits.insert(seq, model.latest.clone());
            }
            5..=6 => {
                model.visible = random.u64(model.visible..model.next_seq);
                pool.set_visible(CommitSeq(model.visible));
            }
            7 if snapshots.len() < 4 => snapshots.push(pool.snapshot()),
            8 if !snapshots.is_empty() => drop(snapshots.swap_remove(random.usize(0..snapshots.len()))),
            9 => {
                let mut wanted: Vec<_> = model.commits[&model.visible].iter().collect();
                random.shuffle(&mut wanted);
                for (page, expected) in wanted.into_iter().take(8) {
                    let got = run(&pool, || pool.latest().page(*page).map(value)).unwrap();
                    assert_eq!(got, *expected, "page {page}: {}", context());
                }
            }
            10 => {
                tier::free_blocks(&pool);
                pool.evictor.write_dirty(random.usize(0..frames));
            }
            11 => {
                let missing = model.latest.keys().take(5).map(|page| Missing { page: *page, at: NEWEST });
                pool.prefetch(&missing.collect::<Vec<_>>());
                pool.submit();
            }
            _ => {
                if let Some(snapshot) = snapshots.get(random.usize(0..snapshots.len().max(1))) {
                    for (page, expected) in &model.commits[&snapshot.seq().0] {
                        let got = run(&pool, || pool.view(snapshot).page(*page).map(value));
                        assert_eq!(got.unwrap_or_else(|e| panic!("{e}: {}", context())), *expected, "{}", context());
                    }
                }
            }
        }
    }
    let stats = pool.stats();
    assert!(stats.misses > 0 && stats.pages_written > 0 && stats.evicted > 0, "nothing was evicted: {stats:?}");
    for (page, expected) in &model.latest {
        assert_eq!(
            run(&pool, || pool.latest_published().page(*page).map(value)).unwrap(),
            *expected,
            "at the end, seed {seed}"
        );
    }
    pool.stats()
}

#[test]
fn random_histories_with_snapshots_agree_with_a_model_on_a_tiny_pool() {
    for seed in sample(0..40, 5) {
        let stats = random_history((seed, SimOptions::calm()), (FRAMES_MIN, 300), |value| value & !255);
        assert_eq!(stats.tier_added, 0, "no page looks like data of a compressed table");
    }
}

#[test]
fn random_histories_of_compressed_pages_agree_with_a_model_on_a_small_pool() {
    let (mut hits, mut evicted, mut forgotten) = (0, 0, 0);
    for seed in sample(200..240, 5) {
        let stats = random_history((seed, SimOptions::calm()), (2 * FRAMES_MIN + seed as usize % 40, 300), tier::data);
        assert_eq!(stats.checksum_retries, 0, "seed {seed}");
        (hits, evicted) = (hits + stats.tier_hits, evicted + stats.tier_evicted);
        forgotten += stats.tier_forgotten;
    }
    let [many, some] = by_depth([20, 2], [100, 10]);
    assert!(hits > many && evicted > many && forgotten > some, "{hits} hits, {evicted} evicted, {forgotten} forgotten");
}

#[test]
fn random_histories_agree_when_completions_are_late_and_reordered() {
    for seed in sample(100..120, 3) {
        let value_of: fn(u64) -> u64 = if seed % 2 == 0 { tier::data } else { |value| value };
        random_history((seed, SimOptions::adversarial()), (FRAMES_MIN + seed as usize % 80, 300), value_of);
    }
}
