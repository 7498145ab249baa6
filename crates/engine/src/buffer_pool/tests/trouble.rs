//! Tests of the pool with damaged pages and failing disks.

use std::task::Waker;
use std::time::Duration;

use nofault_io::error::{Error as IoError, ErrorKind as IoKind};
use nofault_sim::Rates;

use super::*;

#[test]
fn freeing_a_page_that_does_not_exist_changes_nothing() {
    let world = SimWorld::new(1, SimOptions::calm());
    let pool = pool(&world, 64);
    let page = commit(&pool, 1, &[], &[1], &[]).unwrap()[0];
    commit(&pool, 2, &[(page, 2)], &[], &[PageId(77), PageId(1 << 32), PageId(1 << 47), PageId((1 << 48) - 1)])
        .unwrap();
    pool.set_visible(CommitSeq(2));
    assert_eq!(pool.latest().page(page).map(value).ok(), Some(2));
    assert_eq!(commit(&pool, 3, &[], &[3], &[]).unwrap(), [PageId(1)], "only ids that were allocated are freed");
}

fn all_are_there(pool: &BufferPool, pages: &[PageId], values: &[u64]) {
    for (page, wanted) in pages.iter().zip(values) {
        assert_eq!(run(pool, || pool.latest_published().page(*page).map(value)).unwrap(), *wanted, "page {page}");
    }
}

#[test]
fn a_full_disk_takes_no_blocks_however_often_pages_are_written_in_vain() {
    let world = SimWorld::new(1, SimOptions::calm());
    let pool = pool(&world, 128);
    let values: Vec<u64> = (0..30).collect();
    let pages = commit(&pool, 1, &[], &values, &[]).unwrap();
    let before = pool.stats().blocks_used;
    world.set_capacity(Some(world.bytes_used()));
    for _ in 0..100 {
        pool.evictor.free_frames(64);
    }
    let stats = pool.stats();
    assert_eq!((stats.pages_dirty, stats.blocks_used, stats.blocks_deferred), (30, before, 0));
    world.set_capacity(None);
    for _ in 0..3 {
        pool.evictor.free_frames(64);
    }
    let stats = pool.stats();
    assert_eq!((stats.pages_dirty, stats.blocks_used), (0, before + 30));
    all_are_there(&pool, &pages, &values);
}

#[test]
fn a_failing_disk_takes_a_bounded_number_of_blocks_and_gives_them_back() {
    let world = SimWorld::new(1, SimOptions::calm());
    let pool = pool(&world, 128);
    let values: Vec<u64> = (0..30).collect();
    let pages = commit(&pool, 1, &[], &values, &[]).unwrap();
    let before = pool.stats().blocks_used;
    world.set_rates(Rates { write_error: 1.0, ..Rates::default() });
    for round in 1..=100 {
        pool.evictor.free_frames(64);
        let stats = pool.stats();
        let expected = (30 * round).min(1024);
        assert_eq!((stats.pages_dirty, stats.blocks_deferred), (30, expected), "round {round}");
        assert_eq!(stats.blocks_used, before + expected, "round {round}");
    }
    world.set_rates(Rates::default());
    for _ in 0..3 {
        pool.evictor.free_frames(64);
    }
    assert_eq!(pool.stats().pages_dirty, 0);
    {
        let mut metadata = pool.metadata().lock();
        metadata.allocator.deferred.checkpoint_begins();
        metadata.allocator.checkpoint_durable();
    }
    let stats = pool.stats();
    assert_eq!((stats.blocks_used, stats.blocks_deferred), (before + 30, 0));
    all_are_there(&pool, &pages, &values);
}

fn no_completions() -> IoError {
    IoError::new(IoKind::Other, "wait for completions", "no completions arrive")
}

/// Returns a disk with queues that fail to wait for completions while a flag is set: the operations stay in flight.
pub(crate) fn deaf_disk(disk: Arc<dyn Disk>, deaf: Arc<AtomicBool>) -> Arc<dyn Disk> {
    let hooks = Hooks::new().reap(move |queue, wait_for, into| match deaf.load(Ordering::Relaxed) {
        true => Err(no_completions()),
        false => queue.reap(wait_for, into),
    });
    hooks.disk(disk)
}

#[test]
fn a_write_that_could_not_be_waited_for_is_not_taken_for_the_next_one() {
    let world = SimWorld::new(1, SimOptions::calm());
    let deaf = Arc::new(AtomicBool::new(false));
    let disk = deaf_disk(world.directory().create("data").unwrap(), Arc::clone(&deaf));
    let pool = pool_with(&disk, &options(64));
    let mut values = vec![10, 11, 12, 13, 14];
    let mut pages = commit(&pool, 1, &[], &values, &[]).unwrap();
    pool.evictor.free_frames(64);
    assert_eq!(pool.stats().pages_dirty, 0, "the file has grown");
    let mut commit_five = |seq: u64| {
        let new: Vec<u64> = (0..5).map(|at| seq * 100 + at).collect();
        pages.extend(commit(&pool, seq, &[], &new, &[]).unwrap());
        values.extend(new);
    };
    commit_five(2);
    deaf.store(true, Ordering::Relaxed);
    pool.evictor.free_frames(64);
    deaf.store(false, Ordering::Relaxed);
    commit_five(3);
    world.set_rates(Rates { write_error: 1.0, ..Rates::default() });
    pool.evictor.free_frames(64);
    assert_eq!(pool.stats().pages_dirty, 10, "none of them was written");
    world.set_rates(Rates::default());
    for _ in 0..3 {
        pool.evictor.free_frames(64);
    }
    assert_eq!(pool.stats().pages_dirty, 0);
    all_are_there(&pool, &pages, &values);
}

#[test]
fn reads_that_could_not_be_sent_are_sent_later_without_another_request() {
    let world = SimWorld::new(1, SimOptions::calm());
    let deaf = Arc::new(AtomicBool::new(false));
    let disk = deaf_disk(world.directory().create("data").unwrap(), Arc::clone(&deaf));
    let pool = pool_with(&disk, &options(64));
    let pages = commit(&pool, 1, &[], &[10, 20], &[]).unwrap();
    for _ in 0..20 {
        pool.evictor.free_frames(64);
    }
    let _threads = pool.start_background_threads(|_| {}).unwrap();
    let comes = |page: PageId, is_deaf: bool| {
        // Set before the request, so that no thread of the pool sends the read in between.
        deaf.store(is_deaf, Ordering::Relaxed);
        let mut ticket = pool.request(&[Wait::Miss(Missing { page, at: NEWEST })], Permit::any());
        assert!(!is_deaf || ticket.poll(Waker::noop()).is_pending(), "it is not in memory");
        pool.submit();
        deaf.store(false, Ordering::Relaxed);
        (0..10_000).any(|_| {
            std::thread::sleep(Duration::from_millis(1));
            ticket.poll(Waker::noop()).is_ready()
        })
    };
    // From now on the completion thread takes completions when the descriptor is readable.
    assert!(comes(pages[0], false));
    assert!(comes(pages[1], true), "no descriptor tells of what was never sent: {:?}", pool.stats());
    all_are_there(&pool, &pages, &[10, 20]);
}

#[test]
fn a_guard_that_is_held_for_ever_does_not_stop_the_pool() {
    let _of_another_library = crossbeam_epoch::pin();
    let world = SimWorld::new(1, SimOptions::calm());
    let pool = pool(&world, FRAMES_MIN);
    let values: Vec<u64> = (0..200).collect();
    let mut pages = Vec::new();
    for (seq, values) in (1..).zip(values.chunks(4)) {
        pages.extend(commit(&pool, seq, &[], values, &[]).unwrap());
    }
    for _ in 0..3 {
        all_are_there(&pool, &pages, &values);
    }
}

#[test]
fn a_waiter_for_which_no_frame_can_become_free_gives_up_also_after_an_async_call() {
    let world = SimWorld::new(1, SimOptions::calm());
    let pool = pool(&world, FRAMES_MIN);
    let mut pages = Vec::new();
    for seq in 1..20 {
        pages.extend(commit(&pool, seq, &[], &[seq, seq, seq, seq], &[]).unwrap());
    }
    let _threads = pool.start_background_threads(|_| {}).unwrap();
    let miss = |page: &PageId| Wait::Miss(Missing { page: *page, at: NEWEST });
    let mut pinned = Vec::new();
    let mut pins = pages.iter();
    // Pins one page after the other, until no frame is left for another page.
    let error = loop {
        let mut ticket = pool.request(&[miss(pins.next().expect("more pages than frames"))], Permit::any());
        let _ = ticket.poll(Waker::noop());
        match ticket.wait() {
            Ok(()) => pinned.push(ticket),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    drop(pinned);
    let all: Vec<u64> = (1..20).flat_map(|seq| [seq; 4]).collect();
    all_are_there(&pool, &pages, &all);
}

#[test]
fn a_read_that_could_not_be_waited_for_at_first_gives_its_frame_back() {
    let world = SimWorld::new(1, SimOptions::calm());
    let deaf = Arc::new(AtomicBool::new(false));
    // One wait for completions fails, with the operation in flight.
    let is_deaf = Arc::clone(&deaf);
    let hooks = Hooks::new().reap(move |queue, wait_for, into| match is_deaf.swap(false, Ordering::Relaxed) {
        true => Err(no_completions()),
        false => queue.reap(wait_for, into),
    });
    let disk = hooks.disk(world.directory().create("data").unwrap());
    let pool = pool_with(&disk, &options(64));
    let pages = commit(&pool, 1, &[], &[10, 20, 30, 40], &[]).unwrap();
    for page in &pages {
        for _ in 0..20 {
            pool.evictor.free_frames(64);
        }
        let stats = pool.stats();
        assert_eq!(stats.frames_free, 64, "all pages were evicted: {stats:?}");
        deaf.store(true, Ordering::Relaxed);
        let _ = pool.read_alone(Missing { page: *page, at: NEWEST });
        assert!(!deaf.load(Ordering::Relaxed), "no thread waited for completions");
    }
    all_are_there(&pool, &pages, &[10, 20, 30, 40]);
}
