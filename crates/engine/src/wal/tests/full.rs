//! The disk has no room for another segment of the log, or the file system reserves none.

use std::task::{Poll, Waker};
use std::time::Duration;

use nofault_sim::{Call, Effect, Fault};

use super::*;

const EOPNOTSUPP: i32 = 95;

/// Creates a log on a disk that then has only `spare_bytes` bytes of free space.
fn nearly_full(spare_bytes: u64) -> (SimWorld, Log, Anchor) {
    let world = SimWorld::new(spare_bytes, SimOptions::default());
    let (log, anchor) = create(&world).unwrap();
    world.set_capacity(Some(world.bytes_used() + spare_bytes));
    (world, log, anchor)
}

/// Appends records of random sizes until one is refused. Returns the commit of the last record that was accepted.
fn fill(log: &Log, mut commit: u64, seed: u64, records: &mut SeenRecords) -> u64 {
    let mut random = fastrand::Rng::with_seed(seed);
    loop {
        let bytes = record(commit + 1, &mut random);
        match append(log, commit + 1, &bytes) {
            Ok(position) => {
                commit += 1;
                records.push((CommitSeq(commit), bytes));
                // Some records are written alone, others many together.
                if random.bool() {
                    log.durable(position).wait().unwrap();
                }
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                return commit;
            }
        }
    }
}

#[test]
fn a_commit_that_needs_a_segment_on_a_full_disk_is_refused_and_those_before_it_become_durable() {
    for blocks in 0..40 {
        let (world, log, anchor) = nearly_full(blocks * 4096);
        let mut records = SeenRecords::new();
        let mut commit = fill(&log, 0, blocks, &mut records);
        log.check().unwrap();
        assert!(log.stats().commits_refused_for_space > 0);
        // All records that were accepted can be written, because the segments had room for them.
        log.flush().unwrap();
        assert_eq!(log.durable_commit().0, commit, "{world}");
        // A checkpoint gives back the segments before its anchor, at least one.
        let before = commit;
        let checkpoint = (log.anchor_after(CommitSeq(commit)), commit);
        log.recycle(checkpoint.0);
        let small = |log: &Log, commit| log.durable(append(log, commit, &[1; 100]).unwrap()).wait();
        for _ in 0..3 {
            commit += 1;
            small(&log, commit).unwrap_or_else(|error| panic!("after a checkpoint, {blocks} blocks: {error}"));
        }
        commit = fill(&log, commit, blocks + 1, &mut records);
        log.flush().unwrap();
        // Once there is room again, the log grows by itself.
        world.set_capacity(None);
        commit += 1;
        small(&log, commit).unwrap();
        drop(log);
        let last = world.restart(blocks);
        let (_, seen) = reopen(&last, checkpoint.0, checkpoint.1).unwrap();
        let found: Vec<u64> = seen.iter().map(|(commit, _)| commit.0).collect();
        assert_eq!(found, (before + 1..=commit).collect::<Vec<_>>(), "{last}");
        assert!(reopen(&last, anchor, 0).is_err() || checkpoint.1 == 0, "its segments were used again");
    }
}

/// A log with a WAL writer and a checkpoint thread refuses a task only after a checkpoint that frees nothing.
#[test]
fn a_task_that_finds_no_segment_waits_for_a_checkpoint_and_then_gets_an_error() {
    let (world, log, _) = nearly_full(0);
    let writer = log.start_writer().unwrap();
    log.pressure().set_listening(true);
    let mut commit = 0;
    let len_bytes = 10_000;
    while let Ok(position) = log.append(CommitSeq(commit + 1), &[&vec![1; len_bytes]], Some(Durability::Sync)) {
        log.durable(position).wait().unwrap();
        commit += 1;
    }
    let mut task = log.await_space(len_bytes);
    assert!(task.poll(Waker::noop()).is_pending());
    // Waits until the WAL writer has found that there is no room.
    while !log.wants_checkpoint() {
        std::thread::yield_now();
    }
    assert!(task.poll(Waker::noop()).is_pending(), "a checkpoint may make room");
    let begun = log.checkpoint_begins();
    log.checkpoint_made(begun);
    match task.poll(Waker::noop()) {
        Poll::Ready(Err(error)) => assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}"),
        other => panic!("{other:?}"),
    }
    // The next task waits for a checkpoint that does free a segment.
    let mut task = log.await_space(len_bytes);
    assert!(task.poll(Waker::noop()).is_pending());
    while !log.wants_checkpoint() {
        std::thread::yield_now();
    }
    let begun = log.checkpoint_begins();
    // A caller beginning to wait now does not get the outcome of the checkpoint under way.
    let mut late = log.await_space(len_bytes);
    assert!(late.poll(Waker::noop()).is_pending());
    log.checkpoint_made(begun);
    assert!(task.poll(Waker::noop()).is_pending() && late.poll(Waker::noop()).is_pending());
    log.recycle(log.anchor_after(CommitSeq(commit)));
    log.checkpoint_made(log.checkpoint_begins());
    assert!(matches!(late.poll(Waker::noop()), Poll::Ready(Ok(()))));
    assert!(matches!(task.poll(Waker::noop()), Poll::Ready(Ok(()))));
    assert!(!log.wants_checkpoint() && log.check().is_ok());
    drop((task, writer));
    drop(world);
}

#[test]
fn where_the_file_system_cannot_reserve_space_segments_exist_because_they_are_written() {
    let world = SimWorld::new(1, SimOptions::calm());
    world.inject(Fault::new(Call::Allocate, Effect::Errno(EOPNOTSUPP)).times(u64::MAX));
    let (log, anchor) = create_large(&world).unwrap();
    let (mut acknowledged, mut tried) = (0, 0);
    history(&log, 1, 1..120, &mut acknowledged, &mut tried).unwrap();
    log.flush().unwrap();
    let file_bytes = log.stats().file_bytes;
    assert!(file_bytes > 4 * OPTIONS.segment_bytes, "the log has not grown: {file_bytes}");
    assert_eq!(world.read_file("log").unwrap().len() as u64, file_bytes);
    for cut in 0..8 {
        let (_, seen) = reopen(&world.restart(cut), anchor, 0).unwrap_or_else(|error| panic!("{error}: {world}"));
        assert_eq!(seen.len() as u64, tried, "{world}");
    }
}

#[test]
fn only_commits_that_are_not_deferred_count_as_awaited_and_none_once_the_log_is_nearly_full() {
    let world = SimWorld::new(8, SimOptions::calm());
    let (log, _) = create(&world).unwrap();
    let append_deferred = |commit| loop {
        match log.append(CommitSeq(commit), &[&[7; 3000]], Some(Durability::Deferred)) {
            Ok(_) => return,
            Err(Wait::LogFull { len_bytes }) => log.await_space(len_bytes).wait().unwrap(),
            Err(other) => panic!("{other:?}"),
        }
    };
    let has_awaited = || log.has_awaited_commits(Duration::from_secs(3600));
    append_deferred(1);
    // As a checkpoint does before it writes.
    log.flush().unwrap();
    assert!(log.durable_commit() == CommitSeq(1) && !has_awaited());
    let position = append(&log, 2, b"two").unwrap();
    assert!(!has_awaited(), "it was not written yet");
    log.durable(position).wait().unwrap();
    assert!(has_awaited() && !log.has_awaited_commits(Duration::ZERO));
    let fills = (3..350).find(|commit| {
        append_deferred(*commit);
        !has_awaited()
    });
    let commits = fills.expect("the log becomes full");
    assert!((150..300).contains(&commits), "three quarters of a log of 1 MiB: {commits}");
}
