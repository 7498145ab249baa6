use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use nofault_io::completion::{Completion, Op, OpKind};
use nofault_io::disk::{Directory, Disk, DiskInfo, Queue, Refused};
use nofault_io::sim::{SimOptions, SimWorld};

use super::*;
use crate::format::HEADER_BYTES;
use crate::pages::{Attempt, Edits as _, Pages, Ticket as _};

const PAGE: usize = 512;

fn pool(world: &SimWorld, frames: usize) -> Pager {
    let directory: Arc<dyn Directory> = world.directory();
    let disk: Arc<dyn Disk> = directory.create("data").unwrap();
    pool_on(&disk, frames, 128)
}

fn pool_on(disk: &Arc<dyn Disk>, frames: usize, reads_in_flight_max: usize) -> Pager {
    let options = PagerOptions {
        cache_bytes: frames as u64 * frame_memory_bytes(PAGE),
        spent_bytes: 0,
        page_bytes: PAGE,
        file_id: 77,
        snapshot_bytes_max: u64::MAX,
        own_epochs: false,
        reads_in_flight_max,
    };
    Pager::new(disk, &options, Map::new(PAGE), Pager::new_space(PAGE, 1 << 30), CommitSeq(0)).unwrap()
}

/// Runs an attempt until it is done, waiting on this thread as a blocking driver does.
fn run<T>(pool: &Pager, mut attempt: impl FnMut() -> Attempt<T>) -> Result<T> {
    let mut _held = None;
    loop {
        match attempt() {
            Ok(answer) => return Ok(answer),
            Err(Wait::Failed(error)) => return Err(error),
            Err(wait) => {
                let mut ticket = pool.request(&[wait]);
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
    assert!(body.chunks_exact(8).all(|chunk| chunk == first.to_le_bytes()), "a page of two minds");
    first
}

/// Publishes a commit that sets these pages, allocating those that do not exist. Answers the new ids.
fn commit(pool: &Pager, seq: u64, sets: &[(PageId, u64)], new: &[u64], frees: &[PageId]) -> Result<Vec<PageId>> {
    run(pool, || {
        let mut edits = pool.edits();
        edits.reserve(sets.len() + new.len())?;
        for (page, value) in sets {
            fill(edits.edit(*page)?, *value);
        }
        let mut ids = Vec::new();
        for value in new {
            let (id, body) = edits.allocate(sets.first().map_or(PageId(0), |(page, _)| *page))?;
            fill(body, *value);
            ids.push(id);
        }
        frees.iter().for_each(|page| edits.free(*page));
        pool.publish(edits, CommitSeq(seq));
        Ok(ids)
    })
}

#[test]
fn what_is_published_is_seen_once_it_is_visible() {
    let world = SimWorld::new(1, SimOptions::calm());
    let pool = pool(&world, 64);
    let ids = commit(&pool, 1, &[], &[10, 20], &[]).unwrap();
    assert!(matches!(pool.latest().page(ids[0]), Err(Wait::Failed(_))), "not visible yet");
    assert_eq!(value(pool.tip().page(ids[0]).ok().unwrap()), 10);
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
fn what_may_be_written_soon_is_on_disk_before_anybody_needs_it_and_stays_in_memory() {
    let world = SimWorld::new(5, SimOptions::default());
    let pool = pool(&world, 200);
    let ids = commit(&pool, 1, &[], &[1, 2, 3, 4], &[]).unwrap();
    pool.write_soon(&ids);
    assert_eq!(pool.stats().pages_written, 0, "there is nobody to write it");
    let keeper = pool.start_keeper().unwrap();
    pool.write_soon(&[&ids[..2], &ids[..1], &[PageId(9999)]].concat());
    for _ in 0..10_000 {
        if pool.stats().pages_dirty == 2 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    drop(keeper);
    let stats = pool.stats();
    assert_eq!((stats.pages_written, stats.pages_dirty), (2, 2), "what is named twice is written once");
    for (id, wanted) in ids.iter().zip(1..) {
        assert_eq!(pool.tip().page(*id).map(value).ok(), Some(wanted));
    }
}

#[test]
fn what_a_walk_asks_for_comes_without_anybody_waiting() {
    let world = SimWorld::new(6, SimOptions::calm());
    let pool = pool(&world, 256);
    let ids: Vec<PageId> = (1..5).flat_map(|seq| commit(&pool, seq, &[], &[seq; 20], &[]).unwrap()).collect();
    for _ in 0..20 {
        pool.core().make_room(128);
    }
    let _keeper = pool.start_keeper().unwrap();
    let walk = pool.walk();
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
        assert_eq!(pool.tip().page(*page).map(value).ok(), Some(at as u64 / 20 + 1));
    }
    drop(walk);
    for _ in 0..20 {
        pool.core().make_room(128);
    }
    let waits: Vec<_> = missing.iter().map(|missing| Wait::Miss(*missing)).collect();
    pool.request(&waits).wait().unwrap();
}

#[test]
fn dropped_edits_leave_no_trace() {
    let world = SimWorld::new(1, SimOptions::calm());
    let pool = pool(&world, 64);
    let ids = commit(&pool, 1, &[], &[10], &[]).unwrap();
    let free = pool.stats().frames_free;
    {
        let mut edits = pool.edits();
        fill(edits.edit(ids[0]).ok().unwrap(), 99);
        let (new, _) = edits.allocate(ids[0]).ok().unwrap();
        assert_eq!(new, PageId(1));
        edits.free(ids[0]);
    }
    assert_eq!(pool.stats().frames_free, free);
    assert_eq!(value(pool.tip().page(ids[0]).ok().unwrap()), 10);
    assert_eq!(commit(&pool, 2, &[], &[1], &[]).unwrap(), [PageId(1)], "the id is free again");
}

/// Every commit's pages as they should be, and a pool far smaller than them.
struct Model {
    commits: BTreeMap<u64, BTreeMap<PageId, u64>>,
    latest: BTreeMap<PageId, u64>,
    next_seq: u64,
    visible: u64,
}

fn random_history(seed: u64, options: SimOptions, frames: usize, steps: usize) {
    let world = SimWorld::new(seed, options);
    let pool = pool(&world, frames);
    let mut random = fastrand::Rng::with_seed(seed);
    let first = BTreeMap::new();
    let mut model = Model { commits: BTreeMap::from([(0, first.clone())]), latest: first, next_seq: 1, visible: 0 };
    let mut snapshots: Vec<Snapshot> = Vec::new();
    for step in 0..steps {
        let context = || format!("seed {seed}, step {step}, {world}");
        match random.u32(0..12) {
            0..=4 => {
                let seq = model.next_seq;
                model.next_seq += 1;
                let existing: Vec<PageId> = model.latest.keys().copied().collect();
                let mut sets = BTreeMap::new();
                let mut frees = Vec::new();
                for _ in 0..random.usize(0..6) {
                    if let Some(page) = random.choice(&existing) {
                        sets.insert(*page, random.u64(..));
                    }
                }
                if random.u32(0..4) == 0
                    && let Some(page) = random.choice(&existing)
                    && !sets.contains_key(page)
                {
                    frees.push(*page);
                }
                let new: Vec<u64> = (0..random.usize(0..4)).map(|_| random.u64(..)).collect();
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
        assert_eq!(run(&pool, || pool.tip().page(*page).map(value)).unwrap(), *expected, "at the end, seed {seed}");
    }
}

#[test]
fn random_histories_with_snapshots_agree_with_a_model_on_a_tiny_pool() {
    for seed in 0..40 {
        random_history(seed, SimOptions::calm(), FRAMES_MIN, 300);
    }
}

#[test]
fn random_histories_agree_when_completions_are_late_and_reordered() {
    for seed in 100..120 {
        random_history(seed, SimOptions::adversarial(), FRAMES_MIN + seed as usize % 40, 300);
    }
}

#[test]
fn neighbours_are_read_together_and_a_bad_block_among_them_costs_only_its_own_page() {
    let world = SimWorld::new(2, SimOptions::calm());
    let pool = pool(&world, 256);
    let ids: Vec<PageId> = (0..4).flat_map(|seq| commit(&pool, seq, &[], &[seq; 20], &[]).unwrap()).collect();
    pool.set_visible(CommitSeq(3));
    // Everything out: written in the order of page ids, so in blocks that follow each other.
    for _ in 0..20 {
        pool.core().make_room(128);
    }
    let missing: Vec<Wait> = ids.iter().map(|page| Wait::Miss(Missing { page: *page, at: NEWEST })).collect();
    let reads_before = world.stats().read_count;
    pool.request(&missing).wait().unwrap();
    let reads = world.stats().read_count - reads_before;
    assert!(reads > 0 && reads <= 10, "{reads} reads for {} pages", ids.len());
    for (at, page) in ids.iter().enumerate() {
        assert_eq!(value(pool.tip().page(*page).ok().unwrap()), at as u64 / 20);
    }
    for _ in 0..20 {
        pool.core().make_room(128);
    }
    let Entry::OnDisk(bad) = Entry::from_word(pool.core().table.load(ids[17])) else { panic!("not evicted") };
    world.flip_bit("data", bad.block.0 * PAGE as u64 + 100, 1).unwrap();
    assert_eq!(pool.request(&missing).wait().unwrap_err().page(), Some(ids[17]));
    for page in ids.iter().filter(|page| **page != ids[17]) {
        run(&pool, || pool.tip().page(*page).map(value)).unwrap();
    }
}

/// A disk that notes how many reads were under way at the most, and whose operations end only for those who wait.
#[derive(Debug)]
struct Watched {
    disk: Arc<dyn Disk>,
    most: Arc<AtomicUsize>,
}

struct WatchedQueue {
    queue: Box<dyn Queue>,
    most: Arc<AtomicUsize>,
}

impl Disk for Watched {
    fn info(&self) -> DiskInfo {
        self.disk.info()
    }

    fn len_bytes(&self) -> nofault_io::error::Result<u64> {
        self.disk.len_bytes()
    }

    fn queue(&self, options: &QueueOptions) -> nofault_io::error::Result<Box<dyn Queue>> {
        Ok(Box::new(WatchedQueue { queue: self.disk.queue(options)?, most: Arc::clone(&self.most) }))
    }
}

impl Queue for WatchedQueue {
    fn push(&mut self, op: Op) -> std::result::Result<(), Refused> {
        let read = matches!(op.kind, OpKind::Read(_));
        self.queue.push(op)?;
        if read {
            self.most.fetch_max(self.queue.in_flight(), Ordering::Relaxed);
        }
        Ok(())
    }

    fn submit(&mut self) -> nofault_io::error::Result<()> {
        self.queue.submit()
    }

    fn reap(&mut self, wait_for: usize, into: &mut Vec<Completion>) -> nofault_io::error::Result<()> {
        if wait_for == 0 { self.queue.submit() } else { self.queue.reap(wait_for, into) }
    }

    fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }

    fn ready_fd(&self) -> Option<BorrowedFd<'_>> {
        self.queue.ready_fd()
    }
}

#[test]
fn no_more_reads_are_under_way_than_the_settings_allow() {
    for reads_in_flight_max in [1, 5] {
        let world = SimWorld::new(3, SimOptions::calm());
        let most = Arc::new(AtomicUsize::new(0));
        let watched = Watched { disk: world.directory().create("data").unwrap(), most: Arc::clone(&most) };
        let disk: Arc<dyn Disk> = Arc::new(watched);
        let pool = pool_on(&disk, 256, reads_in_flight_max);
        let mut ids = Vec::new();
        for seq in 1..=20 {
            ids.extend(commit(&pool, seq, &[], &[seq; 20], &[]).unwrap());
        }
        for _ in 0..20 {
            pool.core().make_room(128);
        }
        // Far from each other, so that each is a read of its own.
        let apart: Vec<PageId> = ids.iter().copied().step_by(10).collect();
        let missing: Vec<Wait> = apart.iter().filter_map(|page| pool.tip().page(*page).map(|_| ()).err()).collect();
        assert!(missing.len() > 2 * reads_in_flight_max, "{} of {} pages are out", missing.len(), apart.len());
        pool.request(&missing).wait().unwrap();
        for (at, page) in ids.iter().enumerate() {
            assert_eq!(run(&pool, || pool.tip().page(*page).map(value)).unwrap(), at as u64 / 20 + 1);
        }
        assert_eq!(most.load(Ordering::Relaxed), reads_in_flight_max);
    }
}

#[test]
fn a_read_takes_a_frame_only_when_there_is_room_for_it_at_the_device() {
    let world = SimWorld::new(4, SimOptions::calm());
    let most = Arc::new(AtomicUsize::new(0));
    let disk: Arc<dyn Disk> = Arc::new(Watched { disk: world.directory().create("data").unwrap(), most });
    let pool = pool_on(&disk, 256, 2);
    let mut ids = Vec::new();
    for seq in 1..=20 {
        ids.extend(commit(&pool, seq, &[], &[seq; 20], &[]).unwrap());
    }
    for _ in 0..20 {
        pool.core().make_room(128);
    }
    let apart = ids.iter().step_by(10).filter_map(|page| pool.tip().page(*page).map(|_| ()).err());
    let missing: Vec<Wait> = apart.collect();
    assert!(missing.len() > 10);
    let free = pool.stats().frames_free;
    let mut ticket = pool.request(&missing);
    pool.submit();
    let taken = free - pool.stats().frames_free;
    assert!(taken <= missing.len() as u64 / 2, "{taken} frames for the two reads that may be under way");
    ticket.wait().unwrap();
    assert_eq!(pool.stats().reads_in_flight, 0);
}

#[test]
fn those_who_wait_for_one_page_are_all_given_it() {
    let world = SimWorld::new(5, SimOptions::calm());
    let pool = pool(&world, 64);
    let ids = commit(&pool, 1, &[], &[10, 20], &[]).unwrap();
    pool.set_visible(CommitSeq(1));
    for _ in 0..20 {
        pool.core().make_room(64);
    }
    let wait = [0, 1].map(|at| Wait::Miss(Missing { page: ids[at], at: NEWEST }));
    let tickets: Vec<_> = (0..3).map(|at| pool.request(&wait[..1 + at % 2])).collect();
    assert_eq!(pool.stats().misses, 2);
    for mut ticket in tickets {
        ticket.wait().unwrap();
        let Entry::Resident(frame) = Entry::from_word(pool.core().table.load(ids[0])) else { panic!("not there") };
        assert!(pool.core().frames.frame(frame).pins() > 0, "pinned for each as long as it is wanted");
        drop(ticket);
    }
    let Entry::Resident(frame) = Entry::from_word(pool.core().table.load(ids[0])) else { panic!("not there") };
    assert_eq!(pool.core().frames.frame(frame).pins(), 0);
}

mod threads {
    //! Many threads on a real file: publication, eviction, shared reads and reclamation against each other.

    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::task::{Wake, Waker};
    use std::time::{Duration, Instant};

    use nofault_io::folder::{Backend, Folder};

    use super::*;

    const PAIRS: u64 = 200;
    const LARGE: usize = 4096;

    struct Unpark(std::thread::Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    /// Waits as an executor does: polls, sleeps until woken.
    fn run_polled<T>(pool: &Pager, mut attempt: impl FnMut() -> Attempt<T>) -> Result<T> {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut _held = None;
        loop {
            match attempt() {
                Ok(answer) => return Ok(answer),
                Err(Wait::Failed(error)) => return Err(error),
                Err(wait) => {
                    let mut ticket = pool.request(&[wait]);
                    pool.submit();
                    let started = Instant::now();
                    while ticket.poll(&waker).map(|outcome| outcome.unwrap()).is_pending() {
                        std::thread::park_timeout(Duration::from_secs(5));
                        assert!(
                            started.elapsed() < Duration::from_secs(20),
                            "a ticket was forgotten: {:?}",
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

    fn stress(backend: Backend, keeper: bool, for_how_long: Duration) {
        let folder = tempfile::tempdir().unwrap();
        let directory = Folder::open(folder.path(), backend).unwrap();
        let disk = directory.create("data").unwrap();
        let options = PagerOptions {
            cache_bytes: (96 * (LARGE + LARGE / 16 + 256)) as u64,
            spent_bytes: 0,
            page_bytes: LARGE,
            file_id: 1,
            snapshot_bytes_max: u64::MAX,
            own_epochs: false,
            reads_in_flight_max: 128,
        };
        let pool =
            Pager::new(&disk, &options, Map::new(LARGE), Pager::new_space(LARGE, 1 << 30), CommitSeq(0)).unwrap();
        let _keeper = keeper.then(|| pool.start_keeper().unwrap());
        for pair in 0..PAIRS {
            run(&pool, || {
                let mut edits = pool.edits();
                edits.reserve(2)?;
                for _ in 0..2 {
                    let (_, body) = edits.allocate(PageId(pair * 2))?;
                    body[..8].copy_from_slice(&0_u64.to_le_bytes());
                }
                pool.publish(edits, CommitSeq(1));
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
                        let _walk = (reader == 2 && random.bool()).then(|| pool.walk());
                        let attempt = || match &snapshot {
                            Some(snapshot) => both(&pool.view(snapshot), pair),
                            None => both(&pool.latest(), pair),
                        };
                        let seen =
                            if keeper && reader % 2 == 1 { run_polled(pool, attempt) } else { run(pool, attempt) };
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
                    let mut edits = pool.edits();
                    edits.reserve(2)?;
                    for page in [pair * 2, pair * 2 + 1] {
                        edits.edit(PageId(page))?[..8].copy_from_slice(&seq.to_le_bytes());
                    }
                    pool.publish(edits, CommitSeq(seq));
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
