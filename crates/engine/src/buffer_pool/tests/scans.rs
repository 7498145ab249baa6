//! Private pages of scans.

use std::task::Waker;

use super::trouble::deaf_disk;
use super::*;
use crate::pages::{OwnPage, RangeScan as _};

const FRAMES: usize = 1100;

/// Returns a scan reading pages for itself alone.
fn scan_alone(pool: &BufferPool) -> RangeScan {
    let mut scan = pool.begin_range_scan();
    scan.be_alone_from(0);
    scan
}

/// Creates a pool with so many pages, all of them on disk only; page `n` has the value `n`.
fn pool_of(disk: &Arc<dyn Disk>, pages: u64) -> (BufferPool, Vec<PageId>) {
    pool_with_values(disk, pages, |number| number)
}

/// Creates a pool as [`pool_of`] does, in which page `n` has the value `value_of(n)`.
fn pool_with_values(disk: &Arc<dyn Disk>, pages: u64, value_of: fn(u64) -> u64) -> (BufferPool, Vec<PageId>) {
    let pool = pool_with(disk, &options(FRAMES));
    tier::compress(&pool);
    let mut ids = Vec::new();
    for first in (0..pages).step_by(50) {
        let values: Vec<u64> = (first..(first + 50).min(pages)).map(value_of).collect();
        ids.extend(commit(&pool, 1, &[], &values, &[]).unwrap());
    }
    pool.set_visible(CommitSeq(1));
    evict_all(&pool);
    (pool, ids)
}

/// Creates such a pool, a snapshot, and a scan reading pages for itself alone.
fn scan_of(seed: u64, pages: u64) -> (BufferPool, Vec<PageId>, Snapshot, RangeScan) {
    let disk: Arc<dyn Disk> = SimWorld::new(seed, SimOptions::calm()).directory().create("data").unwrap();
    let (pool, ids) = pool_of(&disk, pages);
    let (snapshot, scan) = (pool.snapshot(), scan_alone(&pool));
    (pool, ids, snapshot, scan)
}

/// Publishes commit `seq`, which sets and allocates pages as [`commit`] does, and writes and evicts all pages.
fn write(pool: &BufferPool, seq: u64, sets: &[(PageId, u64)], new: &[u64]) {
    commit(pool, seq, sets, new, &[]).unwrap();
    pool.set_visible(CommitSeq(seq));
    evict_all(pool);
}

fn evict_all(pool: &BufferPool) {
    for _ in 0..100 {
        pool.evictor.free_frames(64);
    }
}

fn release_blocks(pool: &BufferPool) {
    let mut metadata = pool.metadata().lock();
    metadata.allocator.deferred.checkpoint_begins();
    metadata.allocator.checkpoint_durable();
}

/// Waits for all of these pages that are being read for the scan.
fn wait_for(scan: &RangeScan, pages: &[PageId]) {
    for page in pages {
        if let Some(mut ticket) = scan.request(*page) {
            ticket.wait().unwrap();
        }
        assert!(scan.request(*page).is_none(), "page {page} is still being read");
    }
}

fn value_in(scan: &RangeScan, page: PageId) -> Option<u64> {
    match scan.page(page)? {
        OwnPage::Shown(body) => Some(value(body)),
        OwnPage::Coming | OwnPage::Refused => None,
    }
}

#[test]
fn pages_of_a_scan_alone_are_found_there_until_the_leaf_after_theirs_and_take_no_frame() {
    let (pool, ids, snapshot, mut scan) = scan_of(1, 200);
    assert_eq!(scan.ahead_max(9999), pages_for_scan(&pool.reads));
    let free = pool.stats().frames_free;
    let mut pages = ids[..8].to_vec();
    assert_eq!((scan.read(&mut pages, snapshot.seq()), pages.len()), (8, 0));
    assert_eq!((pool.stats().reads_in_flight, value_in(&scan, ids[0])), (8, None));
    let mut again = ids[..8].to_vec();
    assert_eq!((scan.read(&mut again, snapshot.seq()), again.len()), (0, 0), "they are on the way");
    wait_for(&scan, &ids[..8]);
    assert_eq!(
        ids[..8].iter().map(|page| value_in(&scan, *page)).collect::<Vec<_>>(),
        (0..8).map(Some).collect::<Vec<_>>()
    );
    let stats = pool.stats();
    assert_eq!((stats.reads_in_flight, stats.frames_free, stats.misses_for_scans), (0, free, 8));
    assert!(pool.latest().page(ids[0]).is_err(), "not in the pool");
    // The second leaf needs a page of the first leaf.
    scan.note_used(ids[..5].to_vec());
    scan.pass_leaf();
    assert_eq!(value_in(&scan, ids[0]), Some(0), "the next leaf may need it");
    scan.note_used(ids[4..8].to_vec());
    scan.pass_leaf();
    assert_eq!((value_in(&scan, ids[3]), value_in(&scan, ids[4]), value_in(&scan, ids[7])), (None, Some(4), Some(7)));
    scan.pass_leaf();
    assert!(!pool.reads.has_runs_of_scans(), "all memory is free again");
}

#[test]
fn a_scan_reads_through_the_pool_until_it_has_filled_half_of_it_and_where_its_memory_is_in_use() {
    let (pool, ids, snapshot, mut scan) = scan_of(2, 700);
    scan.be_alone_from(FRAMES / 2);
    scan.note_shared(FRAMES / 2 - 1, FRAMES / 2 - 1);
    let mut first = ids[..FRAMES / 2].to_vec();
    assert_eq!((scan.read(&mut first, snapshot.seq()), first.len()), (0, FRAMES / 2));
    scan.note_shared(1, FRAMES / 2);
    // The memory for scans is less than the rest.
    let mut rest = ids[FRAMES / 2..].to_vec();
    let read = scan.read(&mut rest, snapshot.seq());
    assert!(read > 0 && !rest.is_empty() && read + rest.len() == 700 - FRAMES / 2, "{read}, {}", rest.len());
    let (mut other, mut pages) = (scan_alone(&pool), ids[..8].to_vec());
    assert_eq!((other.read(&mut pages, snapshot.seq()), pages.len()), (0, 8), "no memory is left");
    drop(scan);
    pool.submit();
    assert!(!pool.reads.has_runs_of_scans(), "the runs of a scan that has ended are not read any more");
    assert_eq!(other.read(&mut pages, snapshot.seq()), 8);
    wait_for(&other, &ids[..8]);
    assert_eq!(value_in(&other, ids[7]), Some(7));
}

#[test]
fn a_block_that_is_used_again_before_it_is_read_is_not_taken_for_the_page_of_the_scan() {
    let (pool, ids, snapshot, mut scan) = scan_of(3, 100);
    let mut pages = ids[..8].to_vec();
    assert_eq!(scan.read(&mut pages, snapshot.seq()), 8);
    // The reads are staged and not sent. Before they are, the pages are changed, and their blocks are used again.
    drop(snapshot);
    let later: Vec<_> = ids[..4].iter().map(|page| (*page, 1000 + page.0)).collect();
    write(&pool, 2, &later, &[]);
    release_blocks(&pool);
    write(&pool, 3, &[], &(2000..2050).collect::<Vec<_>>());
    wait_for(&scan, &ids[..8]);
    let found: Vec<_> = ids[..8].iter().map(|page| value_in(&scan, *page)).collect();
    assert!(found.iter().zip(0..).all(|(found, first)| found.is_none_or(|found| found == first)), "{found:?}");
    assert_eq!(found[4..], [Some(4), Some(5), Some(6), Some(7)]);
}

#[test]
fn random_scans_beside_writers_find_what_their_snapshots_show_or_nothing() {
    let (mut found, mut missed) = (0, 0);
    for seed in sample(0..30, 5) {
        let mut options = if seed % 2 == 0 { SimOptions::calm() } else { SimOptions::adversarial() };
        if seed % 3 == 0 {
            options.rates.read_error = 0.02;
            options.rates.flipped_read = 0.02;
        }
        let world = SimWorld::new(seed, options);
        let value_of: fn(u64) -> u64 = if seed % 4 < 2 { |value| value & !255 } else { tier::data };
        let disk: Arc<dyn Disk> = world.directory().create("data").unwrap();
        let (pool, ids) = pool_with_values(&disk, 400, value_of);
        assert_eq!(pool.stats().pages_compressed > 0, seed % 4 >= 2);
        let mut random = fastrand::Rng::with_seed(seed);
        let mut model: BTreeMap<PageId, u64> = ids.iter().copied().zip((0..).map(value_of)).collect();
        for seq in 2..by_depth(20, 60) {
            let (snapshot, shown) = (pool.snapshot(), model.clone());
            let mut scan = scan_alone(&pool);
            let from = random.usize(..ids.len() - 40);
            let pages: Vec<PageId> = ids[from..from + random.usize(1..40)].to_vec();
            // Half of the scans begin to read when newer versions have been written.
            let (at, reads_late) = (snapshot.seq(), random.bool());
            if !reads_late {
                scan.read(&mut pages.clone(), at);
                if random.bool() {
                    pool.submit();
                }
            }
            let mut sets = BTreeMap::new();
            for _ in 0..random.usize(1..12) {
                sets.insert(ids[(from + random.usize(..40)) % ids.len()], value_of(random.u64(..)));
            }
            let list: Vec<_> = sets.iter().map(|(page, value)| (*page, *value)).collect();
            if random.bool() {
                // The versions that it shows may be dropped.
                drop(snapshot);
            }
            // Reads may fail; then the next commit includes the changes.
            if commit(&pool, seq, &list, &[], &[]).is_ok() {
                model.extend(sets);
            }
            pool.set_visible(CommitSeq(seq));
            if random.bool() {
                evict_all(&pool);
                release_blocks(&pool);
            }
            if reads_late {
                scan.read(&mut pages.clone(), at);
            }
            if random.u32(..4) > 0 {
                wait_for(&scan, &pages);
            }
            for page in &pages {
                match value_in(&scan, *page) {
                    Some(value) => {
                        assert_eq!(value, shown[page], "seed {seed}, commit {seq}, page {page}, {world}");
                        found += 1;
                    }
                    None => missed += 1,
                }
            }
        }
        pool.submit();
        while pool.stats().reads_in_flight > 0 {
            pool.reads.dispatcher().reap(1).unwrap();
        }
        assert!(!pool.reads.has_runs_of_scans(), "seed {seed}: memory is lost");
    }
    let least = by_depth(300, 5000);
    assert!(found > least && missed > least, "{found} found, {missed} missed");
}

#[test]
fn a_task_that_waits_for_a_run_is_woken_when_it_has_arrived() {
    let (pool, ids, snapshot, mut scan) = scan_of(4, 100);
    scan.read(&mut ids[..8].to_vec(), snapshot.seq());
    let queue_is_locked = {
        let pool = pool.clone();
        move || pool.reads.is_queue_locked()
    };
    let probe = wakers::Probe::new(queue_is_locked);
    let mut ticket = scan.request(ids[3]).unwrap();
    assert!(ticket.poll(&probe.waker()).is_pending());
    pool.submit();
    pool.reads.dispatcher().reap(1).unwrap();
    probe.check(&["clone", "wake"]);
    assert!(ticket.poll(Waker::noop()).is_ready());
    assert_eq!(value_in(&scan, ids[3]), Some(3));
}

#[test]
fn a_scan_gets_on_beside_more_read_ahead_for_the_pool_than_is_sent_at_a_time() {
    let world = SimWorld::new(5, SimOptions::calm());
    let deaf = Arc::new(AtomicBool::new(false));
    let disk = deaf_disk(world.directory().create("data").unwrap(), Arc::clone(&deaf));
    let (pool, ids) = pool_of(&disk, 700);
    let (snapshot, mut scan) = (pool.snapshot(), scan_alone(&pool));
    let ahead: Vec<_> = ids[100..600].iter().map(|page| Missing { page: *page, at: NEWEST }).collect();
    assert!(pool.prefetch(&ahead) > 100);
    assert_eq!(scan.read(&mut ids[..8].to_vec(), snapshot.seq()), 8);
    // The device takes reads, and completes none.
    deaf.store(true, Ordering::Relaxed);
    pool.submit();
    deaf.store(false, Ordering::Relaxed);
    let (in_line, blocks_for_scans) = pool.reads.in_line_and_for_scans();
    assert!(in_line > 100 && blocks_for_scans == 8, "{in_line} reads in line, {blocks_for_scans} blocks for scans");
    wait_for(&scan, &ids[..8]);
    assert_eq!(value_in(&scan, ids[0]), Some(0));
}

#[test]
fn damage_that_only_a_scan_has_read_counts_as_a_second_read() {
    let mut options = SimOptions::calm();
    options.rates.flipped_read = 0.3;
    let disk: Arc<dyn Disk> = SimWorld::new(8, options).directory().create("data").unwrap();
    let (pool, ids) = pool_of(&disk, 400);
    let (snapshot, mut scan) = (pool.snapshot(), scan_alone(&pool));
    let before = pool.stats().checksum_retries;
    let mut refused = 0;
    for pages in ids.chunks(8) {
        // Two of them may lie apart from the others.
        assert!(scan.read(&mut pages.to_vec(), snapshot.seq()) >= 4);
        wait_for(&scan, pages);
        refused += pages.iter().filter(|page| scan.page(**page) == Some(OwnPage::Refused)).count() as u64;
        scan.note_used(pages.to_vec());
        scan.pass_leaf();
    }
    let counted = pool.stats().checksum_retries - before;
    assert!(refused == counted && counted > 5, "{refused} pages refused, {counted} counted");
}

#[test]
fn pages_that_are_not_what_the_snapshot_shows_are_read_through_the_pool_and_keep_no_memory() {
    let (pool, ids, snapshot, mut scan) = scan_of(6, 100);
    let later: Vec<_> = ids[..8].iter().map(|page| (*page, 1000)).collect();
    write(&pool, 2, &later, &[]);
    assert_eq!(scan.read(&mut ids[..8].to_vec(), snapshot.seq()), 8);
    assert_eq!(scan.page(ids[0]), Some(OwnPage::Coming));
    wait_for(&scan, &ids[..8]);
    assert!(ids[..8].iter().all(|page| scan.page(*page) == Some(OwnPage::Refused)));
    let mut again = ids[..4].to_vec();
    assert_eq!((scan.read(&mut again, snapshot.seq()), again.len()), (0, 4), "the caller requests them");
    assert_eq!(scan.page(ids[0]), None);
    assert_eq!(scan.take_refused(ids[0]), [], "they are requested already");
    let mut refused = scan.take_refused(ids[5]);
    refused.sort_unstable();
    assert_eq!((refused.as_slice(), scan.page(ids[7])), (&ids[4..8], None), "all that are left of the run");
    assert!(!pool.reads.has_runs_of_scans(), "all memory is free again");
    let shown = run(&pool, || pool.view(&snapshot).page(ids[0]).map(value));
    assert_eq!(shown.unwrap(), 0);
}

#[test]
fn a_task_that_waits_for_a_run_gets_the_error_when_the_reads_of_others_have_panicked() {
    let (pool, ids, snapshot, mut scan) = scan_of(7, 100);
    scan.read(&mut ids[..8].to_vec(), snapshot.seq());
    let probe = wakers::Probe::new(|| false);
    let mut tickets: Vec<Ticket> = (0..20).map(|_| scan.request(ids[3]).unwrap()).collect();
    tickets.truncate(10);
    for ticket in &mut tickets {
        assert!(ticket.poll(&probe.waker()).is_pending());
    }
    pool.reads.failure().fail(&Error::new(ErrorKind::Bug, "a panic".to_owned()));
    probe.check(&["wake"]);
    assert!(tickets.iter_mut().all(|ticket| matches!(ticket.poll(Waker::noop()), std::task::Poll::Ready(Err(_)))));
}
