//! Tasks and threads that wait for frames while every frame is pinned, or dirty on a disk that takes no writes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use nofault_sim::Rates;

use super::*;
use crate::pages::Host;

/// A pool in which no frame can be evicted: tickets pin some pages, and the others are dirty on a disk that takes no
/// more writes.
struct StoppedPool {
    pool: BufferPool,
    pages: Vec<PageId>,
    pinned: Vec<Ticket>,
    _world: SimWorld,
}

fn miss(page: PageId) -> Wait {
    Wait::Miss(Missing { page, at: NEWEST })
}

fn stopped() -> StoppedPool {
    let world = SimWorld::new(1, SimOptions::calm());
    let pool = pool(&world, FRAMES_MIN);
    let mut pages = Vec::new();
    for seq in 1..20 {
        pages.extend(commit(&pool, seq, &[], &[seq, seq, seq, seq], &[]).unwrap());
    }
    for _ in 0..20 {
        pool.evictor.free_frames(64);
    }
    for seq in 20..23 {
        commit(&pool, seq, &[(pages[seq as usize], seq), (pages[seq as usize + 10], seq)], &[], &[]).unwrap();
    }
    world.set_rates(Rates { write_error: 1.0, ..Rates::default() });
    let dirty = pool.stats().pages_dirty as usize;
    assert!(dirty > 0, "{:?}", pool.stats());
    let mut pinned = Vec::new();
    let mut pins = pages.iter().rev();
    while pinned.len() + dirty + pool.versions.frames().limits().reserve() < FRAMES_MIN {
        let mut ticket = pool.request(&[miss(*pins.next().expect("more pages than frames"))], Permit::any());
        ticket.wait().unwrap();
        pinned.push(ticket);
    }
    world.cut_after(world.events());
    StoppedPool { pool, pages, pinned, _world: world }
}

/// Starts tasks: three wait for a page, the last one for more frames than the reserve has.
fn tasks(pool: &BufferPool, pages: &[PageId]) -> Vec<Ticket> {
    let waits = [miss(pages[0]), miss(pages[0]), miss(pages[1]), Wait::Full { frames: 8 }];
    let mut tasks: Vec<Ticket> = waits.into_iter().map(|wait| pool.request(&[wait], Permit::any())).collect();
    pool.submit();
    assert!(tasks.iter_mut().all(|task| task.poll(Waker::noop()).is_pending()), "there is no frame");
    tasks
}

/// Returns whether all tasks have received an error, and checks that the tasks that read get the error of a pool that
/// is too small.
fn are_told(tasks: &mut [Ticket]) -> bool {
    let errors: Vec<_> = tasks.iter_mut().map(|task| task.poll(Waker::noop())).collect();
    errors.into_iter().enumerate().all(|(number, outcome)| {
        let Poll::Ready(outcome) = outcome else { return false };
        let error = outcome.expect_err("there is no free frame, and the disk has stopped");
        // A writer gets the error of the disk, if pages were written for it.
        let is_writer = number == 3;
        assert!(is_writer || error.kind() == ErrorKind::NoSpace, "{error}");
        assert!(is_writer || error.to_string().contains("too many operations wait at once"), "{error}");
        true
    })
}

#[test]
fn the_background_thread_sleeps_while_reads_wait_for_frames_that_nothing_frees() {
    let StoppedPool { pool, pages, mut pinned, .. } = stopped();
    pool.background.signal().notifier().set_listening(true);
    let _tasks = tasks(&pool, &pages);
    let (mut sleeps, mut pause) = (0, Duration::ZERO);
    let now = Instant::now();
    for _ in 0..20 {
        if pool.background.signal().notifier().take() {
            pool.background.signal().note_woken();
        }
        pause = pool.background.round(now);
        sleeps += u32::from(pause > Duration::ZERO && !pool.background.signal().is_woken());
    }
    assert!(sleeps > 10, "it would sleep after {sleeps} of 20 rounds");
    assert_eq!(pause, Duration::from_millis(100), "the pauses become longer");
    // Other threads search for frames without success, which does not wake the background writer again.
    pool.submit();
    assert!(!pool.background.signal().is_woken());
    drop(pinned.pop());
    assert!(pool.background.signal().is_woken(), "a frame can be evicted");
    if pool.background.signal().notifier().take() {
        pool.background.signal().note_woken();
    }
    assert!(pool.background.round(now) <= Duration::from_millis(1), "the next round comes soon");
}

#[test]
fn tasks_that_wait_for_frames_when_the_disk_stops_get_an_error_from_the_background_thread() {
    let StoppedPool { pool, pages, pinned, .. } = stopped();
    pool.background.signal().notifier().set_listening(true);
    let begun = Instant::now();
    for round in 0..2 {
        let mut tasks = tasks(&pool, &pages);
        let told = (0..1000).find(|number| {
            pool.background.round(begun + Duration::from_secs(round * 1000 + number));
            are_told(&mut tasks)
        });
        assert!(told.expect("the waits do not end") > 10, "too early");
    }
    // Once a frame can be evicted, a task continues.
    drop(pinned);
    let mut task = pool.request(&[miss(pages[2])], Permit::any());
    let ended = (0..1000).any(|_| {
        pool.background.round(begun);
        task.poll(Waker::noop()).is_ready()
    });
    assert!(ended, "its read ends with the error of the disk");
}

#[test]
fn waits_for_frames_last_as_long_as_a_device_is_at_work() {
    let StoppedPool { pool, pages, pinned, .. } = stopped();
    pool.background.signal().notifier().set_listening(true);
    struct LogAtWork(AtomicBool);
    impl Host for LogAtWork {
        fn is_log_writing(&self) -> bool {
            self.0.load(Ordering::Relaxed)
        }
    }
    let log = Arc::new(LogAtWork(AtomicBool::new(true)));
    let host: Weak<LogAtWork> = Arc::downgrade(&log);
    pool.set_host(host);
    let begun = Instant::now();
    let mut tasks = tasks(&pool, &pages);
    for number in 0..1000 {
        pool.background.round(begun + Duration::from_secs(number));
        assert!(!are_told(&mut tasks), "an error after {number} rounds, although the log's device is at work");
    }
    assert_eq!(pool.reads.standstill().count_idle(7, 1_000_000).unwrap(), 7);
    log.0.store(false, Ordering::Relaxed);
    assert!(pool.reads.standstill().count_idle(7, 1_000_000).is_err());
    let told = (1000..2000).any(|number| {
        pool.background.round(begun + Duration::from_secs(number));
        are_told(&mut tasks)
    });
    assert!(told, "the waits do not end");
    drop(pinned);
}

#[test]
fn tasks_that_wait_for_frames_when_the_disk_stops_get_an_error_without_a_background_thread() {
    let StoppedPool { pool, pages, pinned, .. } = stopped();
    let mut tasks = tasks(&pool, &pages);
    let told = (0..60_000).any(|_| {
        std::thread::sleep(Duration::from_millis(1));
        pool.submit();
        are_told(&mut tasks)
    });
    assert!(told, "the waits do not end");
    drop(pinned);
}

/// Each reader and writer waits on its own thread, and there is no background thread, so only these threads can detect
/// that no frame will become free.
#[test]
fn readers_and_writers_that_wait_for_frames_when_the_disk_stops_get_an_error() {
    let stopped = stopped();
    let (tell, told) = std::sync::mpsc::channel();
    // The writer wants more than the reserve.
    let waits = [miss(stopped.pages[0]), miss(stopped.pages[0]), miss(stopped.pages[1]), Wait::Full { frames: 8 }];
    for wait in waits {
        let (pool, tell) = (stopped.pool.clone(), tell.clone());
        std::thread::spawn(move || {
            let outcome = pool.request(&[wait], Permit::any()).wait();
            let _ = tell.send(outcome);
        });
    }
    for _ in 0..4 {
        let outcome = told.recv_timeout(Duration::from_secs(120)).expect("a wait does not end");
        outcome.expect_err("there is no free frame, and the disk has stopped");
    }
}
