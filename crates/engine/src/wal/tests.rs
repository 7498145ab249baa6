mod acknowledged;
mod dates;
mod ends;
mod full;
mod openings;
mod shrink;

use std::collections::BTreeMap;
use std::sync::Arc;

use nofault_io::disk::Disk;
use nofault_sim::{SimOptions, SimWorld};

use super::*;
use crate::error::ErrorKind;
use crate::pages::{Host, Ticket as _};

const OPTIONS: LogOptions = LogOptions {
    file_id: 5,
    segment_bytes: 32768,
    log_bytes: 1 << 20,
    buffer_bytes: 1 << 16,
    seed: Some(5),
    purpose: LogPurpose::Write,
};

/// A database that does one thing when commits are durable.
struct OnDurable<F>(F);

impl<F: Fn(CommitSeq) + Send + Sync> Host for OnDurable<F> {
    fn commits_durable(&self, newest: CommitSeq) {
        (self.0)(newest);
    }
}

fn on_durable(hear: impl Fn(CommitSeq) + Send + Sync + 'static) -> Arc<dyn Host> {
    Arc::new(OnDurable(hear))
}

type SeenRecords = Vec<(CommitSeq, Vec<u8>)>;

fn disk(world: &SimWorld) -> Result<Arc<dyn Disk>> {
    world.directory().open("log").map_err(|error| Error::from_io("open", error))
}

fn create(world: &SimWorld) -> Result<(Log, Anchor)> {
    create_with(world, OPTIONS)
}

/// Creates a log that is so large that its tests need no checkpoints.
fn create_large(world: &SimWorld) -> Result<(Log, Anchor)> {
    create_with(world, LogOptions { log_bytes: 1 << 30, ..OPTIONS })
}

fn create_with(world: &SimWorld, options: LogOptions) -> Result<(Log, Anchor)> {
    let directory = world.directory();
    let failed = |error| Error::from_io("create", error);
    let disk = directory.create("log").map_err(failed)?;
    let (anchor, recovered) = create_log(&*disk, &options)?;
    directory.sync().map_err(failed)?;
    Ok((Log::open(&*disk, options, recovered)?, anchor))
}

fn reopen(world: &SimWorld, anchor: Anchor, after: u64) -> Result<(Log, SeenRecords)> {
    reopen_on(&*disk(world)?, OPTIONS, anchor, after)
}

fn reopen_on(disk: &dyn Disk, options: LogOptions, anchor: Anchor, after: u64) -> Result<(Log, SeenRecords)> {
    let (recovered, records) = read_log(disk, &options, anchor, CommitSeq(after))?;
    let seen = records.collect::<Result<SeenRecords>>()?;
    Ok((Log::open(disk, options, recovered)?, seen))
}

/// Returns the record of a commit: bytes that depend on its number and their position, so that any wrong byte is
/// detected.
fn record(commit: u64, random: &mut fastrand::Rng) -> Vec<u8> {
    let len = match random.u32(0..20) {
        0 => random.usize(30_000..90_000),
        1..4 => random.usize(3000..9000),
        _ => random.usize(1..300),
    };
    (0..len).map(|at| (commit as usize * 31 + at) as u8).collect()
}

/// Prepares segments until a fragment of `len_bytes` bytes fits.
pub(super) fn prepare_segments(log: &Log, len_bytes: usize) {
    loop {
        let state = log.0.lock();
        let seen = state.slots;
        if log.0.has_segments(&state, len_bytes) {
            return;
        }
        drop(state);
        log.0.grow(seen).unwrap();
    }
}

fn append(log: &Log, commit: u64, bytes: &[u8]) -> Result<LogPosition> {
    let fragments: Vec<&[u8]> = bytes.chunks(log.fragment_bytes_max()).collect();
    let mut position = LogPosition(0);
    for (at, fragment) in fragments.iter().enumerate() {
        let last = (at + 1 == fragments.len()).then_some(Durability::Sync);
        position = loop {
            match log.append(CommitSeq(commit), &[fragment], last) {
                Ok(position) => break position,
                Err(Wait::LogFull { len_bytes }) => log.await_space(len_bytes).wait()?,
                Err(Wait::Failed(error)) => return Err(error),
                Err(other) => panic!("{other:?}"),
            }
        };
    }
    Ok(position)
}

/// Appends the records of `commits` until one fails, and waits for about every second. Stores the last acknowledged
/// commit in `acknowledged` and the last attempted one in `tried`.
fn history(log: &Log, seed: u64, commits: std::ops::Range<u64>, acknowledged: &mut u64, tried: &mut u64) -> Result<()> {
    let mut random = fastrand::Rng::with_seed(seed);
    for commit in commits {
        *tried = commit;
        let position = append(log, commit, &record(commit, &mut random))?;
        if random.bool() {
            log.durable(position).wait()?;
            *acknowledged = commit;
        }
    }
    Ok(())
}

/// Returns the records that `history` appends.
fn expected(seed: u64, commits: std::ops::Range<u64>) -> Vec<Vec<u8>> {
    let mut random = fastrand::Rng::with_seed(seed);
    commits
        .map(|commit| {
            let bytes = record(commit, &mut random);
            random.bool();
            bytes
        })
        .collect()
}

#[test]
fn appended_records_are_read_back_after_a_reopen() {
    let world = SimWorld::new(3, SimOptions::default());
    let (log, anchor) = create(&world).unwrap();
    let large = vec![7; 200_000];
    append(&log, 1, b"one").unwrap();
    append(&log, 2, &large).unwrap();
    let position = append(&log, 3, b"three").unwrap();
    log.durable(position).wait().unwrap();
    assert_eq!(log.durable_commit(), CommitSeq(3));
    drop(log);
    let (log, seen) = reopen(&world, anchor, 0).unwrap();
    assert_eq!(seen, [(CommitSeq(1), b"one".to_vec()), (CommitSeq(2), large), (CommitSeq(3), b"three".to_vec())]);
    let position = append(&log, 4, b"four").unwrap();
    log.durable(position).wait().unwrap();
    drop(log);
    let (_, seen) = reopen(&world, anchor, 2).unwrap();
    let commits: Vec<u64> = seen.iter().map(|(commit, _)| commit.0).collect();
    assert_eq!(commits, [3, 4], "only records after the checkpoint");
}

#[test]
fn segments_are_used_again_and_the_file_stops_growing() {
    let world = SimWorld::new(4, SimOptions::calm());
    let (log, _) = create(&world).unwrap();
    let mut anchor = None;
    for commit in 1..400 {
        let position = append(&log, commit, &[commit as u8; 3000]).unwrap();
        log.durable(position).wait().unwrap();
        if commit % 5 == 0 {
            anchor = Some((log.anchor_after(CommitSeq(commit - 2)), commit - 2));
            log.recycle(anchor.unwrap().0);
        }
    }
    assert!(log.stats().file_bytes <= 4 * OPTIONS.segment_bytes, "{:?}", log.stats());
    let (anchor, after) = anchor.unwrap();
    drop(log);
    let (_, seen) = reopen(&world, anchor, after).unwrap();
    let commits: Vec<u64> = seen.iter().map(|(commit, _)| commit.0).collect();
    assert_eq!(commits, (after + 1..400).collect::<Vec<_>>());
}

/// Regression: where tasks always had something pending, the WAL writer never stopped writing. Then a caller that asked
/// for statistics waited without end, and a checkpoint ended only when the log was full.
#[test]
fn statistics_and_checkpoints_do_not_wait_for_the_writing_thread() {
    let world = SimWorld::new(4, SimOptions::calm());
    let (log, _) = create(&world).unwrap();
    for commit in 1..30 {
        let position = append(&log, commit, &[commit as u8; 3000]).unwrap();
        log.durable(position).wait().unwrap();
    }
    let writing = log.0.lock_writer();
    let (tell, told) = std::sync::mpsc::channel();
    let asking = log.clone();
    let asks = std::thread::spawn(move || {
        let before = asking.stats();
        asking.recycle(asking.anchor_after(CommitSeq(20)));
        tell.send((before, asking.stats())).unwrap();
    });
    let (before, after) =
        told.recv_timeout(std::time::Duration::from_secs(60)).expect("the calls wait for the writing thread");
    asks.join().unwrap();
    assert!(after.live_bytes < before.live_bytes && before.file_bytes > 3 * OPTIONS.segment_bytes, "{before:?}");
    drop(writing);
    // The freed segments are used again before the file grows.
    for commit in 30..36 {
        let position = append(&log, commit, &[commit as u8; 3000]).unwrap();
        log.durable(position).wait().unwrap();
    }
    assert_eq!(log.stats().file_bytes, before.file_bytes);
    assert_eq!(world.read_file("log").unwrap().len() as u64, before.file_bytes);
}

#[test]
fn a_full_log_accepts_no_commit_until_a_checkpoint_frees_space() {
    let world = SimWorld::new(4, SimOptions::calm());
    let (log, _) = create(&world).unwrap();
    let mut commit = 0;
    prepare_segments(&log, 10_000);
    while let Ok(position) = log.append(CommitSeq(commit + 1), &[&[1; 10_000]], Some(Durability::Sync)) {
        log.durable(position).wait().unwrap();
        commit += 1;
        prepare_segments(&log, 10_000);
    }
    assert!(log.wants_checkpoint());
    assert!(commit * 10_000 > OPTIONS.log_bytes * 3 / 4, "refused too early: {commit}");
    log.recycle(log.anchor_after(CommitSeq(commit)));
    log.append(CommitSeq(commit + 1), &[&[1; 10_000]], Some(Durability::Sync)).ok().unwrap();
}

#[test]
fn a_power_cut_at_any_event_keeps_acknowledged_commits_and_nothing_but_whole_ones() {
    let mut cuts = 0;
    for seed in 0..12 {
        let whole = SimWorld::new(seed, SimOptions::adversarial());
        let (log, anchor) = create(&whole).unwrap();
        let start = whole.events();
        history(&log, seed, 1..40, &mut 0, &mut 0).unwrap();
        let records = expected(seed, 1..40);
        for event in (start..=whole.events()).step_by(1 + seed as usize % 3) {
            let world = SimWorld::new(seed, SimOptions::adversarial());
            world.cut_after(event);
            let (mut acknowledged, mut tried) = (0, 0);
            let Ok((log, _)) = create(&world) else { continue };
            let _ = history(&log, seed, 1..40, &mut acknowledged, &mut tried);
            drop(log);
            let after = world.restart(event);
            let (log, seen) = reopen(&after, anchor, 0).unwrap_or_else(|error| panic!("{error}: {after}"));
            assert!(
                seen.len() as u64 >= acknowledged && seen.len() as u64 <= tried,
                "{} of {acknowledged}..{tried}: {after}",
                seen.len()
            );
            for (at, (commit, bytes)) in seen.iter().enumerate() {
                assert_eq!(commit.0, at as u64 + 1, "{after}");
                assert!(bytes == &records[at], "commit {commit} has other bytes: {after}");
            }
            // After another opening recovered commits are still there, and new commits follow them.
            let next = seen.len() as u64 + 1;
            let position = append(&log, next, b"after").unwrap();
            log.durable(position).wait().unwrap();
            drop(log);
            let last = after.restart(event + 1);
            let (_, again) = reopen(&last, anchor, 0).unwrap_or_else(|error| panic!("{error}: {last}"));
            assert_eq!(again.len() as u64, next, "{last}");
            assert!(again[..seen.len()] == seen[..], "{last}");
            cuts += 1;
        }
    }
    assert!(cuts > 500, "only {cuts} cuts");
}

/// Creates a log of 40 commits, each durable before the next, on a disk without faults.
fn calm_log() -> (SimWorld, Anchor) {
    let world = SimWorld::new(9, SimOptions::calm());
    let (log, anchor) = create(&world).unwrap();
    for commit in 1..=40 {
        let position = append(&log, commit, &[commit as u8; 500]).unwrap();
        log.durable(position).wait().unwrap();
    }
    (world, anchor)
}

#[test]
fn damage_in_the_middle_is_refused_and_a_torn_tail_is_not() {
    let (world, anchor) = calm_log();
    for block in 1..=40 {
        let damaged = world.restart(block);
        damaged.flip_bit("log", block * 4096 + 100, 3).unwrap();
        let outcome = reopen(&damaged, anchor, 0);
        if block == 40 {
            assert_eq!(outcome.unwrap().1.len(), 39, "the last group cannot be told from a torn one");
        } else {
            let error =
                outcome.err().unwrap_or_else(|| panic!("damage in block {block} was taken for the end of the log"));
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            assert!(error.to_string().contains(&format!("log group {} at {}", block + 1, block * 4096)), "{error}");
        }
    }
}

#[test]
fn a_log_that_is_damaged_at_its_anchor_or_not_the_right_one_is_refused() {
    let (world, anchor) = calm_log();
    let old = world.snapshot_file("log").unwrap();
    let (log, _) = reopen(&world, anchor, 0).unwrap();
    for commit in 41..=60 {
        let position = append(&log, commit, &[1; 5000]).unwrap();
        log.durable(position).wait().unwrap();
    }
    let later = log.anchor_after(CommitSeq(60));
    log.recycle(later);
    drop(log);
    assert!(reopen(&world, later, 60).is_ok());
    world.restore_file("log", &old).unwrap();
    let error = reopen(&world, later, 60).err().unwrap();
    assert!(error.to_string().contains("older than the data file"), "{error}");
    world.set_len("log", 0).unwrap();
    assert_eq!(reopen(&world, anchor, 0).err().unwrap().kind(), ErrorKind::Corrupt);
}

#[test]
fn an_empty_record_is_waited_for_like_any_other() {
    let world = SimWorld::new(1, SimOptions::calm());
    let (log, _) = create(&world).unwrap();
    for commit in 1..=2 {
        let position = log.append(CommitSeq(commit), &[], Some(Durability::Deferred)).unwrap();
        if commit == 1 {
            log.durable(position).wait().unwrap()
        } else {
            log.flush().unwrap()
        }
        assert_eq!((log.durable_commit(), log.stats().waiting_bytes), (CommitSeq(commit), 0));
    }
}

#[test]
fn a_failed_write_poisons_the_log_for_good() {
    let world = SimWorld::new(1, SimOptions::calm());
    let (log, _) = create(&world).unwrap();
    let position = append(&log, 1, b"before").unwrap();
    log.durable(position).wait().unwrap();
    world.set_rates(nofault_sim::Rates { write_error: 1.0, ..Default::default() });
    let position = append(&log, 2, b"lost").unwrap();
    assert_eq!(log.durable(position).wait().unwrap_err().kind(), ErrorKind::Poisoned);
    world.set_rates(nofault_sim::Rates::default());
    assert_eq!(append(&log, 3, b"never").unwrap_err().kind(), ErrorKind::Poisoned);
    assert_eq!(log.durable_commit(), CommitSeq(1));
}

#[test]
fn hooks_are_called_in_commit_order_and_many_committers_share_writes() {
    let world = SimWorld::new(6, SimOptions::default());
    let (log, _) = create_large(&world).unwrap();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let hear = Arc::clone(&heard);
    log.set_host(on_durable(move |commit: CommitSeq| hear.lock().unwrap().push(commit)));
    let section = Mutex::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let position = {
                        let mut next = section.lock().unwrap();
                        *next += 1;
                        append(&log, *next, b"a small record").unwrap()
                    };
                    log.durable(position).wait().unwrap();
                }
            });
        }
    });
    let heard = heard.lock().unwrap();
    assert!(heard.is_sorted() && heard.last() == Some(&CommitSeq(400)), "{heard:?}");
    assert!(log.stats().groups_written <= 400 && log.stats().records_durable == 400, "{:?}", log.stats());
}

#[test]
fn no_committer_goes_on_before_its_commit_is_visible() {
    let world = SimWorld::new(6, SimOptions::calm());
    let (log, _) = create(&world).unwrap();
    let log = Arc::new(log);
    let to_look_at = Arc::new(Mutex::new(None));
    let seen = Arc::new(Mutex::new(Vec::new()));
    // Records the answer that another committer of the same group would get while the group's commits are being made
    // visible.
    log.set_host(on_durable({
        let (log, to_look_at, seen) = (Arc::downgrade(&log), Arc::clone(&to_look_at), Arc::clone(&seen));
        move |_| {
            let position = to_look_at.lock().unwrap().unwrap();
            let told = log.upgrade().unwrap().durable(position).poll(std::task::Waker::noop());
            seen.lock().unwrap().push(told.is_pending());
        }
    }));
    for commit in 1..=3 {
        let position = append(&log, commit, b"one of many").unwrap();
        *to_look_at.lock().unwrap() = Some(position);
        log.durable(position).wait().unwrap();
    }
    assert_eq!(*seen.lock().unwrap(), [true; 3]);
}

/// Makes commit 1 durable on this thread. While the commit becomes visible, the hook calls `meanwhile`, which may
/// append commit 2. Returns whether the WAL writer is notified when this thread stops leading, the log, and the result
/// of `meanwhile`.
fn notified_after<T: Send + 'static>(meanwhile: impl Fn(&Log) -> T + Send + Sync + 'static) -> (bool, Log, T) {
    let world = SimWorld::new(6, SimOptions::calm());
    let log = Arc::new(create(&world).unwrap().0);
    // The log acts as if a WAL writer were running.
    log.0.notifier.set_listening(true);
    log.0.lock().writer_duties.watches = true;
    let left = Arc::new(Mutex::new(None));
    log.set_host(on_durable({
        let (log, left) = (Arc::downgrade(&log), Arc::clone(&left));
        move |commit| {
            if commit == CommitSeq(1) {
                let log = log.upgrade().unwrap();
                *left.lock().unwrap() = Some(meanwhile(&log));
                // The WAL writer wakes, finds a leader, and goes back to sleep.
                log.0.notifier.wait(None, Some(std::time::Duration::ZERO));
                log.0.lock().writer_duties.looks();
            }
        }
    }));
    let position = append(&log, 1, b"one").unwrap();
    log.durable(position).wait().unwrap();
    let left = left.lock().unwrap().take().unwrap();
    let notified = log.0.notifier.wait(None, Some(std::time::Duration::ZERO));
    (notified, Log::clone(&log), left)
}

#[test]
fn the_writer_is_not_woken_for_a_commit_whose_thread_writes_it() {
    let (notified, log, position) = notified_after(|log| append(log, 2, b"two").unwrap());
    assert!(!notified, "its thread has appended, and will wait");
    log.durable(position).wait().unwrap();
    assert_eq!(log.durable_commit(), CommitSeq(2));
    assert!(!log.0.notifier.wait(None, Some(std::time::Duration::ZERO)));
}

#[test]
fn the_writer_is_woken_for_commits_that_no_thread_will_write() {
    let polled = |log: &Log| {
        let mut ticket = log.durable(append(log, 2, b"two").unwrap());
        assert!(ticket.poll(std::task::Waker::noop()).is_pending());
        ticket
    };
    assert!(notified_after(polled).0, "a task waits");
    assert!(notified_after(move |log| drop(polled(log))).0, "a task has dropped its ticket");
    assert!(
        notified_after(|log| drop(log.durable(append(log, 2, b"two").unwrap()))).0,
        "a leader has gone before it waited"
    );
    let deferred =
        |bytes: &'static [u8]| move |log: &Log| log.append(CommitSeq(2), &[bytes], Some(Durability::Deferred)).ok();
    assert!(notified_after(deferred(b"two")).0, "no thread waits for a deferred commit");
    assert!(notified_after(deferred(b"")).0, "no thread waits for an empty deferred commit");
}

#[test]
fn commits_that_the_writer_leaves_to_another_leader_are_written() {
    let world = SimWorld::new(6, SimOptions::calm());
    let log = Arc::new(create(&world).unwrap().0);
    log.set_host(on_durable({
        let log = Arc::downgrade(&log);
        move |commit| {
            if commit == CommitSeq(1) {
                let log = log.upgrade().unwrap();
                log.append(CommitSeq(2), &[b"two"], Some(Durability::Deferred)).ok().unwrap();
                // Longer than deferred commits gather: the WAL writer checks in that time.
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
        }
    }));
    let writer = log.start_writer().unwrap();
    let position = append(&log, 1, b"one").unwrap();
    log.durable(position).wait().unwrap();
    for _ in 0..10_000 {
        if log.durable_commit() == CommitSeq(2) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(log.durable_commit(), CommitSeq(2), "no thread wrote it");
    drop(writer);
}

#[test]
fn the_afterwards_function_is_called_after_the_waiters_were_woken() {
    struct WakeFlag(std::sync::atomic::AtomicBool);
    impl std::task::Wake for WakeFlag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    struct AfterWrites(Arc<WakeFlag>, Mutex<Vec<bool>>);
    impl Host for AfterWrites {
        fn write_ended(&self) {
            self.1.lock().unwrap().push(self.0.0.load(Ordering::SeqCst));
        }
    }
    let world = SimWorld::new(6, SimOptions::calm());
    let (log, _) = create(&world).unwrap();
    let woken = Arc::new(WakeFlag(false.into()));
    let seen = Arc::new(AfterWrites(Arc::clone(&woken), Mutex::default()));
    log.set_host(seen.clone());
    let position = append(&log, 1, b"one").unwrap();
    let mut task = log.durable(position);
    assert!(task.poll(&std::task::Waker::from(Arc::clone(&woken))).is_pending());
    log.durable(position).wait().unwrap();
    assert!(task.poll(std::task::Waker::noop()).is_ready());
    assert_eq!(*seen.1.lock().unwrap(), [true]);
}

#[test]
fn a_failed_write_is_reported_to_all_waiters() {
    for writers in [1, 2, 8] {
        let world = SimWorld::new(writers, SimOptions::default());
        let (log, _) = create(&world).unwrap();
        // Prepared segments have room for a group for each commit, so the write that fails is one of a group and not of
        // a new segment.
        prepare_segments(&log, 110 * LOG_BLOCK_BYTES);
        let section = Mutex::new(0);
        let failed = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..writers {
                scope.spawn(|| {
                    loop {
                        let position = {
                            let mut next = section.lock().unwrap();
                            *next += 1;
                            if *next == 100 {
                                failed.store(true, Ordering::SeqCst);
                                world.set_rates(nofault_sim::Rates { write_error: 1.0, ..Default::default() });
                            }
                            match append(&log, *next, b"a small record") {
                                Ok(position) => position,
                                Err(error) => return assert_eq!(error.kind(), ErrorKind::Poisoned),
                            }
                        };
                        if let Err(error) = log.durable(position).wait() {
                            assert_eq!(error.kind(), ErrorKind::Poisoned);
                            return assert!(failed.load(Ordering::SeqCst));
                        }
                    }
                });
            }
        });
        assert!(log.durable_commit() < CommitSeq(100) && log.check().is_err());
    }
}

#[test]
fn threads_and_tasks_that_commit_side_by_side_are_all_served() {
    for seed in 0..4 {
        let world = SimWorld::new(seed, SimOptions::default());
        let (log, _) = create_large(&world).unwrap();
        let writer = log.start_writer().unwrap();
        let section = Mutex::new(0);
        let next = |durability| {
            let mut next = section.lock().unwrap();
            *next += 1;
            loop {
                prepare_segments(&log, 100);
                match log.append(CommitSeq(*next), &[b"a small record"], Some(durability)) {
                    Ok(position) => break position,
                    // The writer has begun another segment in between.
                    Err(Wait::LogFull { .. }) => {}
                    Err(other) => panic!("{other:?}"),
                }
            }
        };
        std::thread::scope(|scope| {
            for thread in 0..6 {
                let (next, log) = (&next, &log);
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(seed * 100 + thread);
                    for _ in 0..200 {
                        let deferred = random.u32(0..4) == 0;
                        let position = next(if deferred { Durability::Deferred } else { Durability::Sync });
                        let mut ticket = log.durable(position);
                        match thread % 3 {
                            0 => ticket.wait().unwrap(),
                            1 => crate::sync::driver::block_on(std::future::poll_fn(|context| {
                                ticket.poll(context.waker())
                            }))
                            .unwrap(),
                            _ => drop(ticket),
                        }
                    }
                });
            }
        });
        // Dropped tickets' commits become durable too, without another caller.
        for _ in 0..10_000 {
            if log.durable_commit() == CommitSeq(1200) {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert_eq!(log.durable_commit(), CommitSeq(1200));
        assert_eq!(log.stats().records_durable, 1200);
        drop(writer);
    }
}
