//! Tests of the pool's reads: which go together, how many at a time, and which thread carries them out.

use super::*;

/// A pool with pages of these values, all of them on disk only.
fn pool_on_disk(world: &SimWorld, frames: usize, values: &[u64]) -> (BufferPool, Vec<PageId>) {
    let pool = pool(world, frames);
    let ids = commit(&pool, 1, &[], values, &[]).unwrap();
    pool.set_visible(CommitSeq(1));
    for _ in 0..20 {
        pool.evictor.free_frames(frames);
    }
    let is_on_disk = |page: &PageId| matches!(pool.versions.pages().entry(*page), Entry::OnDisk(_));
    assert!(ids.iter().all(is_on_disk));
    (pool, ids)
}

#[test]
fn neighbours_are_read_together_and_a_bad_block_among_them_costs_only_its_own_page() {
    let world = SimWorld::new(2, SimOptions::calm());
    let pool = pool(&world, 256);
    let ids: Vec<PageId> = (0..4).flat_map(|seq| commit(&pool, seq, &[], &[seq; 20], &[]).unwrap()).collect();
    pool.set_visible(CommitSeq(3));
    // Evicts all pages. They are written in the order of page ids, so to consecutive blocks.
    for _ in 0..20 {
        pool.evictor.free_frames(128);
    }
    let missing: Vec<Wait> = ids.iter().map(|page| Wait::Miss(Missing { page: *page, at: NEWEST })).collect();
    let reads_before = world.stats().read_count;
    pool.request(&missing, Permit::any()).wait().unwrap();
    let reads = world.stats().read_count - reads_before;
    assert!(reads > 0 && reads <= 10, "{reads} reads for {} pages", ids.len());
    for (at, page) in ids.iter().enumerate() {
        assert_eq!(value(pool.latest_published().page(*page).ok().unwrap()), at as u64 / 20);
    }
    for _ in 0..20 {
        pool.evictor.free_frames(128);
    }
    let Entry::OnDisk(bad) = pool.versions.pages().entry(ids[17]) else { panic!("not evicted") };
    world.flip_bit("data", bad.block.0 * PAGE as u64 + 100, 1).unwrap();
    assert_eq!(pool.request(&missing, Permit::any()).wait().unwrap_err().page(), Some(ids[17]));
    for page in ids.iter().filter(|page| **page != ids[17]) {
        run(&pool, || pool.latest_published().page(*page).map(value)).unwrap();
    }
}

/// Returns a disk that records in `most` the most reads in progress at a time. Its operations end only when a thread waits
/// for them.
fn watched(disk: Arc<dyn Disk>, most: &Arc<AtomicUsize>) -> Arc<dyn Disk> {
    let most = Arc::clone(most);
    let push = move |queue: &mut dyn Queue, op: Op| {
        let is_read = matches!(op.kind, OpKind::Read(_));
        queue.push(op)?;
        if is_read {
            most.fetch_max(queue.in_flight(), Ordering::Relaxed);
        }
        Ok(())
    };
    let hooks = Hooks::new().push(push);
    let hooks = hooks.reap(|queue, wait_for, into| match wait_for {
        0 => queue.submit(),
        _ => queue.reap(wait_for, into),
    });
    hooks.disk(disk)
}

#[test]
fn no_more_reads_are_under_way_than_the_settings_allow() {
    for reads_in_flight_max in [1, 5] {
        let world = SimWorld::new(3, SimOptions::calm());
        let most = Arc::new(AtomicUsize::new(0));
        let disk = watched(world.directory().create("data").unwrap(), &most);
        let pool = pool_on(&disk, 256, reads_in_flight_max);
        let mut ids = Vec::new();
        for seq in 1..=20 {
            ids.extend(commit(&pool, seq, &[], &[seq; 20], &[]).unwrap());
        }
        for _ in 0..20 {
            pool.evictor.free_frames(128);
        }
        // Pages far from each other, so that each needs a separate read.
        let apart: Vec<PageId> = ids.iter().copied().step_by(10).collect();
        let missing: Vec<Wait> =
            apart.iter().filter_map(|page| pool.latest_published().page(*page).map(|_| ()).err()).collect();
        assert!(missing.len() > 2 * reads_in_flight_max, "{} of {} pages are out", missing.len(), apart.len());
        pool.request(&missing, Permit::any()).wait().unwrap();
        for (at, page) in ids.iter().enumerate() {
            assert_eq!(run(&pool, || pool.latest_published().page(*page).map(value)).unwrap(), at as u64 / 20 + 1);
        }
        assert_eq!(most.load(Ordering::Relaxed), reads_in_flight_max);
    }
}

#[test]
fn a_read_takes_a_frame_only_when_the_device_can_take_it() {
    let world = SimWorld::new(4, SimOptions::calm());
    let disk = watched(world.directory().create("data").unwrap(), &Arc::default());
    let pool = pool_on(&disk, 256, 2);
    let mut ids = Vec::new();
    for seq in 1..=20 {
        ids.extend(commit(&pool, seq, &[], &[seq; 20], &[]).unwrap());
    }
    for _ in 0..20 {
        pool.evictor.free_frames(128);
    }
    let apart = ids.iter().step_by(10).filter_map(|page| pool.latest_published().page(*page).map(|_| ()).err());
    let missing: Vec<Wait> = apart.collect();
    assert!(missing.len() > 10);
    let free = pool.stats().frames_free;
    let mut ticket = pool.request(&missing, Permit::any());
    pool.submit();
    let taken = free - pool.stats().frames_free;
    assert!(taken <= missing.len() as u64 / 2, "{taken} frames for the two reads that may be under way");
    ticket.wait().unwrap();
    assert_eq!(pool.stats().reads_in_flight, 0);
}

#[test]
fn all_waiters_for_one_page_receive_it() {
    let world = SimWorld::new(5, SimOptions::calm());
    let (pool, ids) = pool_on_disk(&world, 64, &[10, 20]);
    let wait = [0, 1].map(|at| Wait::Miss(Missing { page: ids[at], at: NEWEST }));
    let tickets: Vec<_> = (0..3).map(|at| pool.request(&wait[..1 + at % 2], Permit::any())).collect();
    assert_eq!(pool.stats().misses, 2);
    for mut ticket in tickets {
        ticket.wait().unwrap();
        let Entry::Resident(frame) = pool.versions.pages().entry(ids[0]) else { panic!("the page is not in memory") };
        assert!(pool.versions.frames().frame(frame).pins() > 0, "pinned as long as a ticket needs it");
        drop(ticket);
    }
    let Entry::Resident(frame) = pool.versions.pages().entry(ids[0]) else { panic!("the page is not in memory") };
    assert_eq!(pool.versions.frames().frame(frame).pins(), 0);
}

#[test]
fn a_thread_reads_the_page_it_misses_by_itself_and_no_other_thread_reads_it() {
    let world = SimWorld::new(6, SimOptions::calm());
    let (pool, ids) = pool_on_disk(&world, 64, &[10, 20, 30]);
    let missing = |at: usize| Missing { page: ids[at], at: NEWEST };
    assert!(pool.read_alone(missing(0)).unwrap());
    assert_eq!(value(pool.latest_published().page(ids[0]).ok().unwrap()), 10);
    let Entry::Resident(frame) = pool.versions.pages().entry(ids[0]) else { panic!("the page is not in memory") };
    assert_eq!(pool.versions.frames().frame(frame).pins(), 0);
    assert!(pool.read_alone(missing(0)).unwrap(), "the page is in memory");
    assert_eq!(pool.stats().misses, 1);
    // A page that another thread reads must be requested with a ticket.
    let free = pool.stats().frames_free;
    let mut ticket = pool.request(&[Wait::Miss(missing(1))], Permit::any());
    assert!(!pool.read_alone(missing(1)).unwrap());
    ticket.wait().unwrap();
    assert_eq!((pool.stats().misses, pool.stats().frames_free), (2, free - 1), "one read, and one frame for it");
    let Entry::OnDisk(at) = pool.versions.pages().entry(ids[2]) else { panic!("not evicted") };
    let flip = || world.flip_bit("data", at.block.0 * PAGE as u64 + 100, 1).unwrap();
    flip();
    let reads = world.stats().read_count;
    assert_eq!(pool.read_alone(missing(2)).unwrap_err().page(), Some(ids[2]));
    assert_eq!(world.stats().read_count - reads, 2, "read once more, then an error");
    assert_eq!((pool.stats().reads_in_flight, pool.stats().checksum_retries), (0, 1));
    flip();
    assert!(pool.read_alone(missing(2)).unwrap(), "an error is not remembered");
    assert_eq!(value(pool.latest_published().page(ids[2]).ok().unwrap()), 30);
}

#[test]
fn a_thread_reads_pages_whose_blocks_lie_together_by_one_call() {
    let world = SimWorld::new(6, SimOptions::calm());
    let contents: Vec<u64> = (0..12).map(|at| 10 + at).collect();
    let (pool, ids) = pool_on_disk(&world, 64, &contents);
    let block = |page: PageId| match pool.versions.pages().entry(page) {
        Entry::OnDisk(at) => at.block.0,
        other => panic!("not evicted: {other:?}"),
    };
    let missing = |pages: &[PageId]| pages.iter().map(|page| Missing { page: *page, at: NEWEST }).collect::<Vec<_>>();
    let reads = || world.stats().read_count;
    let free = pool.stats().frames_free;
    // In another order than their blocks'.
    let together = [ids[2], ids[0], ids[1]];
    assert_eq!(block(ids[2]) - block(ids[0]), 2);
    let before = reads();
    assert!(pool.read_together(&missing(&together)).unwrap());
    assert_eq!((reads() - before, pool.stats().misses, pool.stats().frames_free), (1, 3, free - 3));
    let content = |at: usize| value(pool.latest_published().page(ids[at]).ok().unwrap());
    assert_eq!([content(0), content(1), content(2)], [10, 11, 12]);
    assert!(pool.read_together(&missing(&together)).unwrap(), "they are in memory");
    assert_eq!(reads() - before, 1);
    // Pages too far from each other for one read, and a page that another thread reads, must be requested. Each is read once.
    let apart = [ids[3], ids[11]];
    assert!(block(ids[11]) - block(ids[3]) > 5);
    assert!(!pool.read_together(&missing(&apart)).unwrap());
    let waits = |pages: &[PageId]| missing(pages).into_iter().map(Wait::Miss).collect::<Vec<_>>();
    let mut ticket = pool.request(&waits(&[ids[5]]), Permit::any());
    assert!(!pool.read_together(&missing(&[ids[5], ids[6]])).unwrap());
    ticket.wait().unwrap();
    pool.request(&waits(&[ids[3], ids[11], ids[6]]), Permit::any()).wait().unwrap();
    assert_eq!([3, 5, 6, 11].map(content), [13, 15, 16, 21]);
    assert_eq!((pool.stats().misses, pool.stats().reads_in_flight), (7, 0));
    drop(ticket);
    assert_eq!(pool.stats().frames_free, free - 7);
    // A page with a wrong checksum is read again by itself; its neighbours are in memory.
    world.flip_bit("data", block(ids[8]) * PAGE as u64 + 100, 1).unwrap();
    let _ = pool.read_together(&missing(&ids[7..10]));
    assert_eq!([7, 9].map(content), [17, 19]);
    let error = pool.request(&waits(&ids[8..9]), Permit::any()).wait().unwrap_err();
    assert_eq!((error.page(), pool.stats().reads_in_flight), (Some(ids[8]), 0));
}

#[test]
fn read_ahead_stays_in_line_while_the_device_has_enough_of_it() {
    let world = SimWorld::new(6, SimOptions::calm());
    let contents: Vec<u64> = (0..90).collect();
    let (pool, ids) = pool_on_disk(&world, 256, &contents);
    let missing = |pages: &[PageId]| pages.iter().map(|page| Missing { page: *page, at: NEWEST }).collect::<Vec<_>>();
    let blocks_at_device = || pool.reads.run_blocks();
    pool.prefetch(&missing(&ids[..60]));
    pool.submit();
    let first = blocks_at_device();
    assert!((8..60).contains(&first), "{first} blocks at the device, of which a thirty-second of the pool is enough");
    let mut ticket = pool.request(&[Wait::Miss(missing(&ids[70..71])[0])], Permit::any());
    // An operation waits for a page at the end of the line.
    ticket.wait().unwrap();
    pool.prefetch(&missing(&ids[60..70]));
    for _ in 0..100 {
        pool.reads.take_for_others();
    }
    assert_eq!((blocks_at_device(), pool.stats().reads_in_flight), (0, 0));
    assert!((0..70).all(|at| value(pool.latest_published().page(ids[at]).ok().unwrap()) == at as u64));
}

#[test]
fn a_waiter_that_has_its_pages_leaves_no_completion_untaken() {
    let world = SimWorld::new(7, SimOptions::default());
    let pool = pool(&world, 64);
    let ids = commit(&pool, 1, &[], &[10; 20], &[]).unwrap();
    for _ in 0..20 {
        pool.evictor.free_frames(64);
    }
    let mut tickets = Vec::new();
    let is_under_way = |page: &PageId| {
        tickets.push(pool.request(&[Wait::Miss(Missing { page: *page, at: NEWEST })], Permit::any()));
        pool.submit();
        pool.stats().reads_in_flight == 1
    };
    let page = ids.iter().copied().find(is_under_way).unwrap();
    // An executor found the queue's lock held by this thread, and did not wait for it.
    let missed = pool.reads.scheduler().missed();
    missed.store(true, Ordering::SeqCst);
    assert_eq!(Ticket::without_pins(&pool.reads, Waiter::new()).round().unwrap(), Round::Moved);
    assert!(!missed.load(Ordering::SeqCst));
    assert_eq!(pool.stats().reads_in_flight, 0);
    assert_eq!(value(pool.latest_published().page(page).ok().unwrap()), 10);
}

mod threads {
    //! Many threads on a real file: publication, eviction, shared reads and reclamation against each other.

    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::task::Waker;
    use std::time::{Duration, Instant};

    use nofault_io::folder::{Backend, Folder};

    use super::*;
    use crate::clock::ClockSource;
    use crate::sync::driver::Unpark;

    const PAIRS: u64 = 200;
    const LARGE: usize = 4096;

    /// Runs an attempt until it is done, waiting as an executor does: it polls, and sleeps until it is woken.
    fn run_polled<T>(pool: &BufferPool, mut attempt: impl FnMut() -> Attempt<T>) -> Result<T> {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut _held = None;
        loop {
            match attempt() {
                Ok(answer) => return Ok(answer),
                Err(Wait::Failed(error)) => return Err(error),
                Err(wait) => {
                    let mut ticket = pool.request(&[wait], Permit::any());
                    pool.submit();
                    let started = Instant::now();
                    while ticket.poll(&waker).map(|outcome| outcome.unwrap()).is_pending() {
                        std::thread::park_timeout(Duration::from_secs(5));
                        assert!(
                            started.elapsed() < Duration::from_secs(20),
                            "a ticket was not served: {:?}",
                            pool.stats()
                        );
                    }
                    _held = Some(ticket);
                }
            }
        }
    }

    fn both(pages: &impl Pages, pair: u64) -> Attempt<(u64, u64)> {
        let number = |body: &[u8]| u64::from_le_bytes(body[..8].try_into().unwrap());
        let first = number(&pages.page(PageId(pair * 2))?);
        Ok((first, number(&pages.page(PageId(pair * 2 + 1))?)))
    }

    fn stress(backend: Backend, with_threads: bool, for_how_long: Duration) {
        let folder = tempfile::tempdir().unwrap();
        let directory = Folder::open(folder.path(), backend).unwrap();
        let disk = directory.create("data").unwrap();
        let options = PoolOptions {
            cache_bytes: (96 * (LARGE + LARGE / 16 + 256)) as u64,
            spent_bytes: 0,
            page_bytes: LARGE,
            file_id: 1,
            snapshot_bytes_max: u64::MAX,
            reads_in_flight_max: 128,
            scan_bytes_min: 0,
            registers_frames: true,
            evicts_table: false,
            tier: crate::settings::TierUse::Judged,
            clock: ClockSource::default(),
        };
        let pool = BufferPool::new(&disk, &options, LoadedTable::new(LARGE, 1 << 30), CommitSeq(0)).unwrap();
        let _threads = with_threads.then(|| pool.start_background_threads(|_| {}).unwrap());
        for pair in 0..PAIRS {
            run(&pool, || {
                let mut copies = pool.copies();
                copies.reserve(2)?;
                for _ in 0..2 {
                    let (_, body) = copies.allocate(PageId(pair * 2))?;
                    body[..8].copy_from_slice(&0_u64.to_le_bytes());
                }
                pool.publish(copies, CommitSeq(1));
                Ok(())
            })
            .unwrap();
        }
        pool.set_visible(CommitSeq(1));
        let (stop, reads) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for reader in 0..4 {
                let (pool, stop, reads) = (&pool, &stop, &reads);
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(reader);
                    while !stop.load(Ordering::Relaxed) {
                        let pair = random.u64(0..PAIRS);
                        let snapshot = (reader == 0).then(|| pool.snapshot());
                        let _scan = (reader == 2 && random.bool()).then(|| pool.begin_range_scan());
                        let attempt = || match &snapshot {
                            Some(snapshot) => both(&pool.view(snapshot), pair),
                            None => both(&pool.latest(), pair),
                        };
                        let seen = if with_threads && reader % 2 == 1 {
                            run_polled(pool, attempt)
                        } else {
                            run(pool, attempt)
                        };
                        let (first, second) = seen.unwrap();
                        assert_eq!(first, second, "pair {pair} of reader {reader}");
                        reads.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let mut random = fastrand::Rng::with_seed(99);
            let started = Instant::now();
            let mut seq: u64 = 1;
            while started.elapsed() < for_how_long {
                seq += 1;
                let pair = random.u64(0..PAIRS);
                run(&pool, || {
                    let mut copies = pool.copies();
                    copies.reserve(2)?;
                    for page in [pair * 2, pair * 2 + 1] {
                        copies.edit(PageId(page))?[..8].copy_from_slice(&seq.to_le_bytes());
                    }
                    pool.publish(copies, CommitSeq(seq));
                    Ok(())
                })
                .unwrap();
                if random.u32(0..3) == 0 {
                    pool.set_visible(CommitSeq(seq));
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        println!("{} reads, {:?}", reads.load(Ordering::Relaxed), pool.stats());
        assert!(reads.load(Ordering::Relaxed) > 10);
    }

    #[test]
    fn readers_never_see_half_a_commit_with_background_threads() {
        for backend in [Backend::Auto, Backend::Psync] {
            stress(backend, true, Duration::from_millis(700));
        }
    }

    #[test]
    fn readers_never_see_half_a_commit_without_background_threads() {
        for backend in [Backend::Auto, Backend::Psync] {
            stress(backend, false, Duration::from_millis(700));
        }
    }
}
