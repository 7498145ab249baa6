//! Damage to acknowledged commits is noticed at every place: a later group says that they were durable.

use super::*;
use crate::format::{GROUP_HEADER_BYTES, GroupHeader, decode_group};

/// Returns the offset and the header of each complete group in the file.
fn groups(world: &SimWorld, options: &LogOptions) -> Vec<(u64, GroupHeader)> {
    let bytes = world.read_file("log").unwrap();
    let starts = (0..bytes.len()).step_by(LOG_BLOCK_BYTES);
    let found =
        starts.filter_map(|at| Some((at as u64, decode_group(options.file_id, options.segment_bytes, &bytes[at..])?)));
    found.collect()
}

/// Flips bits at several places of each group of a log and opens the log each time. The result must be an error that
/// names the group, or all records of `whole`. Returns the number of errors.
fn flip_bits_everywhere(world: &SimWorld, options: LogOptions, anchor: Anchor, whole: &SeenRecords) -> usize {
    let mut errors = 0;
    for (at, header) in groups(world, &options) {
        let last = (GROUP_HEADER_BYTES as u64 + u64::from(header.payload_bytes)) - 1;
        for byte in [0, 9, 20, 34, 45, 66, last / 2, last] {
            let damaged = world.restart(byte);
            damaged.flip_bit("log", at + byte, (byte % 8) as u32).unwrap();
            match reopen_on(&*disk(&damaged).unwrap(), options, anchor, 0) {
                Ok((_, seen)) => assert!(seen == *whole, "{} records are left: {header:?}, byte {byte}", seen.len()),
                Err(error) => {
                    let names = format!("group {} at {}", header.sequence, header.position);
                    let named = error.to_string().contains(&names);
                    assert!(error.kind() == ErrorKind::Corrupt && named, "{error}: {header:?}");
                    errors += 1;
                }
            }
        }
    }
    errors
}

/// Regression: several groups in flight together named the same group as durable, so that damage to the third-last
/// group was taken for the end of the log.
#[test]
fn damage_to_any_group_is_noticed_once_the_log_has_been_settled() {
    for (segment_bytes, len_bytes) in [(32768, 300), (32768, 14_000), (1 << 20, 14_000), (16384, 4_000)] {
        let options = LogOptions { segment_bytes, buffer_bytes: 1 << 20, ..OPTIONS };
        let world = SimWorld::new(31, SimOptions::calm());
        let (log, anchor) = create_with(&world, options).unwrap();
        let mut whole = Vec::new();
        for commit in 1..=40 {
            let bytes = vec![commit as u8; len_bytes];
            prepare_segments(&log, len_bytes);
            log.append(CommitSeq(commit), &[&bytes], Some(Durability::Deferred)).unwrap();
            whole.push((CommitSeq(commit), bytes));
        }
        log.flush_acknowledged().unwrap();
        let stats = log.stats();
        assert_eq!(stats.closing_groups_written, 1, "{stats:?}");
        let errors = flip_bits_everywhere(&world, options, anchor, &whole);
        // Damage to any group but the closing group is an error; without the closing group no commit is lost.
        assert_eq!(errors as u64, (stats.groups_written + 1) * 8);
        // A second call has nothing to write.
        log.flush_acknowledged().unwrap();
        assert_eq!(log.stats(), stats);
        drop(log);
        // The next opening needs no closing group either.
        let (log, _) = reopen_on(&*disk(&world).unwrap(), options, anchor, 0).unwrap();
        log.flush_acknowledged().unwrap();
        assert_eq!(log.stats().closing_groups_written, 0);
    }
}

/// With its old first block, the slot of the last segment seems to hold an older segment, and nothing follows at the
/// missing place of the log.
#[test]
fn a_segment_with_an_old_first_block_does_not_end_the_log() {
    let world = SimWorld::new(33, SimOptions::calm());
    let (log, _) = create(&world).unwrap();
    let mut commit = 0;
    let mut next = |log: &Log| {
        commit += 1;
        let position = append(log, commit, &[commit as u8; 3000]).unwrap();
        log.durable(position).wait().unwrap();
        commit
    };
    while log.stats().file_bytes < 6 * OPTIONS.segment_bytes {
        next(&log);
    }
    let older = world.snapshot_file("log").unwrap();
    // Makes a checkpoint, and then begins a segment in a slot used before.
    let after = next(&log);
    let anchor = log.anchor_after(CommitSeq(after));
    log.recycle(anchor);
    let begun = |world: &SimWorld| {
        let mut found = groups(world, &OPTIONS).into_iter();
        let begins = |header: &GroupHeader| header.position.is_multiple_of(OPTIONS.segment_bytes);
        found.rfind(|(_, header)| header.position > anchor.position && begins(header))
    };
    while begun(&world).is_none() {
        next(&log);
    }
    let last = (0..3).map(|_| next(&log)).last().unwrap();
    log.flush_acknowledged().unwrap();
    drop(log);
    assert_eq!(reopen(&world, anchor, after).unwrap().1.len() as u64, last - after);
    let (at, header) = begun(&world).unwrap();
    assert!(at < 6 * OPTIONS.segment_bytes, "{header:?} is in a new segment");
    world.restore_range("log", &older, at..at + LOG_BLOCK_BYTES as u64).unwrap();
    let error = reopen(&world, anchor, after).err().unwrap();
    assert!(error.to_string().contains(&format!("group {} at", header.sequence)), "{error}");
}

#[test]
fn an_idle_log_gets_one_closing_group_and_no_further_writes() {
    let world = SimWorld::new(32, SimOptions::calm());
    let (log, anchor) = create(&world).unwrap();
    let writer = log.start_writer().unwrap();
    let mut whole = Vec::new();
    for round in 1..=3 {
        let position = append(&log, round, b"one of few").unwrap();
        whole.push((CommitSeq(round), b"one of few".to_vec()));
        log.durable(position).wait().unwrap();
        while log.stats().closing_groups_written < round {
            std::thread::yield_now();
        }
        // The WAL writer stops its periodic checks, so only the next commit wakes it.
        while log.0.lock().writer_duties.watches {
            std::thread::yield_now();
        }
        assert!(!log.0.lock().has_work());
        assert_eq!(log.stats().closing_groups_written, round);
    }
    assert_eq!(flip_bits_everywhere(&world, OPTIONS, anchor, &whole), (3 + 1 + 2) * 8);
    drop(writer);
    assert_eq!(log.stats().closing_groups_written, 3, "no further closing group is needed");
    // A WAL writer dropped at once also writes a closing group.
    let writer = log.start_writer().unwrap();
    let position = append(&log, 4, b"the last").unwrap();
    log.durable(position).wait().unwrap();
    drop(writer);
    assert!(log.0.lock().is_stated());
    drop(log);
    // A log left without a closing group gets one from the next opening.
    let bytes = groups(&world, &OPTIONS).last().unwrap().0;
    world.zero_range("log", bytes..bytes + LOG_BLOCK_BYTES as u64).unwrap();
    let (log, seen) = reopen(&world, anchor, 0).unwrap();
    assert_eq!(seen.len(), 4);
    let writer = log.start_writer().unwrap();
    while log.stats().closing_groups_written == 0 {
        std::thread::yield_now();
    }
    drop(writer);
}

#[test]
fn a_power_cut_in_a_closing_group_is_an_end_like_any_other() {
    let mut cuts = 0;
    for seed in 0..12 {
        let history = |world: &SimWorld, acknowledged: &mut u64, settled: &mut u64| -> Result<Anchor> {
            let (log, anchor) = create(world)?;
            for commit in 1..=12 {
                let position = append(&log, commit, &vec![commit as u8; 3000])?;
                log.durable(position).wait()?;
                *acknowledged = commit;
                if commit % 3 == seed % 3 {
                    log.flush_acknowledged()?;
                    *settled = commit;
                }
            }
            Ok(anchor)
        };
        let whole = SimWorld::new(seed, SimOptions::adversarial());
        let anchor = history(&whole, &mut 0, &mut 0).unwrap();
        for event in 1..=whole.events() {
            let world = SimWorld::new(seed, SimOptions::adversarial());
            world.cut_after(event);
            let (mut acknowledged, mut settled) = (0, 0);
            let _ = history(&world, &mut acknowledged, &mut settled);
            let after = world.restart(event);
            if settled + acknowledged == 0 {
                continue;
            }
            let (log, seen) = reopen(&after, anchor, 0).unwrap_or_else(|error| panic!("{error}: {after}"));
            assert!(seen.len() as u64 >= acknowledged, "{} of {acknowledged}: {after}", seen.len());
            // The log continues after this end.
            let next = seen.len() as u64 + 1;
            let position = append(&log, next, b"next").unwrap();
            log.durable(position).wait().unwrap();
            log.flush_acknowledged().unwrap();
            drop(log);
            let last = after.restart(event + 1);
            assert_eq!(reopen(&last, anchor, 0).unwrap().1.len() as u64, next, "{last}");
            cuts += 1;
        }
    }
    assert!(cuts > 300, "only {cuts} cuts");
}

#[test]
fn threads_and_tasks_may_settle_while_others_commit() {
    for seed in 0..4 {
        let world = SimWorld::new(seed, SimOptions::default());
        let (log, _) = create_large(&world).unwrap();
        let writer = log.start_writer().unwrap();
        let section = Mutex::new(0);
        std::thread::scope(|scope| {
            for thread in 0..6 {
                let (section, log) = (&section, &log);
                scope.spawn(move || {
                    for round in 0..150 {
                        let position = {
                            let mut next = section.lock().unwrap();
                            *next += 1;
                            loop {
                                match log.append(CommitSeq(*next), &[b"a small record"], Some(Durability::Deferred)) {
                                    Ok(position) => break position,
                                    // A closing group may take the prepared segment.
                                    Err(Wait::LogFull { len_bytes }) => prepare_segments(log, len_bytes),
                                    Err(other) => panic!("{other:?}"),
                                }
                            }
                        };
                        match (thread + round) % 3 {
                            0 => log.stated(position).wait().unwrap(),
                            1 => {
                                let mut ticket = log.stated(position);
                                let ready = std::future::poll_fn(|context| ticket.poll(context.waker()));
                                crate::sync::driver::block_on(ready).unwrap();
                            }
                            _ => {
                                let mut ticket = log.stated(position);
                                let _ = ticket.poll(std::task::Waker::noop());
                            }
                        }
                    }
                });
            }
        });
        log.flush_acknowledged().unwrap();
        assert_eq!(log.stats().records_durable, 900);
        assert!(log.0.lock().is_stated());
        drop(writer);
    }
}
