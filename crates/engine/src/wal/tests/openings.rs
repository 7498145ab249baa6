//! Logs interrupted in the middle of a step, and their next opening.

use super::*;
use crate::format::{FRAGMENT_HEADER_BYTES, GROUP_HEADER_BYTES, GroupHeader, decode_group, payload_of, take_fragment};

/// Appends fragments of one record until the log is full, and does not end the record.
fn append_without_an_end(log: &Log, commit: u64) {
    while log.stats().live_bytes <= OPTIONS.log_bytes {
        match log.append(CommitSeq(commit), &[&[2; 16_000]], None) {
            Ok(_) => {}
            Err(Wait::LogFull { len_bytes }) => log.await_space(len_bytes).wait().unwrap(),
            Err(other) => panic!("{other:?}"),
        }
    }
}

/// Regression: no checkpoint could pass the beginning of an abandoned record, so no later commit found free log space.
#[test]
fn an_abandoned_record_keeps_no_log_space() {
    for reopened in [false, true] {
        let world = SimWorld::new(4, SimOptions::calm());
        let (mut log, anchor) = create(&world).unwrap();
        append(&log, 1, b"whole").unwrap();
        append_without_an_end(&log, 2);
        let mut next = CommitSeq(3);
        if reopened {
            log.flush().unwrap();
            drop(log);
            let seen;
            (log, seen) = reopen(&world, anchor, 0).unwrap();
            assert_eq!(seen, [(CommitSeq(1), b"whole".to_vec())]);
            // The new opening does not know that this commit number was used.
            next = CommitSeq(2);
        }
        let attempt = || log.append(next, &[b"next"], Some(Durability::Sync));
        assert!(matches!(attempt(), Err(Wait::LogFull { .. })), "{reopened}");
        // Only a durable group can be the anchor of a recovery.
        let early = log.anchor_after(CommitSeq(1));
        assert!(reopen(&world.restart(1), early, 1).unwrap().1.is_empty(), "{reopened}");
        // The steps of a checkpoint.
        log.flush().unwrap();
        let anchor = log.anchor_after(CommitSeq(1));
        log.recycle(anchor);
        let position = attempt().unwrap();
        log.durable(position).wait().unwrap();
        drop(log);
        let (_, seen) = reopen(&world, anchor, 1).unwrap();
        assert_eq!(seen, [(next, b"next".to_vec())], "{reopened}");
    }
}

#[test]
fn fragments_of_an_abandoned_record_are_no_part_of_the_next() {
    let world = SimWorld::new(41, SimOptions::calm());
    let (log, anchor) = create(&world).unwrap();
    append(&log, 1, b"one").unwrap();
    assert!(log.append(CommitSeq(2), &[b"the beginning of two"], None).is_ok());
    let position = append(&log, 3, b"three").unwrap();
    log.durable(position).wait().unwrap();
    drop(log);
    let (_, seen) = reopen(&world, anchor, 0).unwrap();
    assert_eq!(seen, [(CommitSeq(1), b"one".to_vec()), (CommitSeq(3), b"three".to_vec())]);
}

/// Creates a log with commit 1 and with free segments, so that its file does not grow with the next groups. Returns the
/// log and its anchor.
fn with_free_segments(world: &SimWorld) -> Result<(Log, Anchor)> {
    let (log, _) = create(world)?;
    let position = append(&log, 1, &[1; 100_000])?;
    log.durable(position).wait()?;
    let anchor = log.anchor_after(CommitSeq(1));
    log.recycle(anchor);
    Ok((log, anchor))
}

fn append_whole(log: &Log, commit: u64, len_bytes: usize) -> Result<LogPosition> {
    match log.append(CommitSeq(commit), &[&vec![commit as u8; len_bytes]], Some(Durability::Sync)) {
        Ok(position) => Ok(position),
        Err(Wait::Failed(error)) => Err(error),
        Err(other) => panic!("{other:?}"),
    }
}

/// Appends commit 2, which fills a segment to its end, so that the next commit begins another group.
fn append_a_group(log: &Log) -> Result<LogPosition> {
    let left = OPTIONS.segment_bytes - log.0.lock().position % OPTIONS.segment_bytes;
    append_whole(log, 2, left as usize - GROUP_HEADER_BYTES - FRAGMENT_HEADER_BYTES)
}

/// Makes commits 2 and 3, in two groups in flight together.
fn two_groups(log: &Log) -> Result<()> {
    append_a_group(log)?;
    let position = append_whole(log, 3, 20_000)?;
    log.durable(position).wait()
}

/// Returns each complete group in the file, and the commits of its fragments.
fn groups_in(world: &SimWorld) -> Vec<(GroupHeader, Vec<u64>)> {
    let bytes = world.read_file("log").unwrap();
    let group_at = |at: usize| {
        let header = decode_group(OPTIONS.file_id, OPTIONS.segment_bytes, &bytes[at..])?;
        let mut rest = payload_of(&header, &bytes[at..]).unwrap();
        let fragments = std::iter::from_fn(|| take_fragment(&header, &mut rest).unwrap());
        Some((header, fragments.map(|(head, _)| head.commit.0).collect()))
    };
    (0..bytes.len()).step_by(LOG_BLOCK_BYTES).filter_map(group_at).collect()
}

/// Regression: the next opening wrote again the very group that had been lost, and recovery continued into the old
/// group after it.
#[test]
fn a_lost_commit_does_not_come_back_when_the_commit_before_it_is_repeated() {
    let mut cases = 0;
    for seed in 0..3 {
        let whole = SimWorld::new(seed, SimOptions::default());
        let (log, anchor) = with_free_segments(&whole).unwrap();
        let start = whole.events();
        two_groups(&log).unwrap();
        for (event, fate) in (start..=whole.events()).flat_map(|event| (0..40).map(move |fate| (event, fate))) {
            let world = SimWorld::new(seed, SimOptions::default());
            world.cut_after(event);
            let Ok((log, _)) = with_free_segments(&world) else { continue };
            let _ = two_groups(&log);
            drop(log);
            let after = world.restart(fate);
            let (log, seen) = reopen(&after, anchor, 1).unwrap_or_else(|error| panic!("{error}: {after}"));
            let is_kept = groups_in(&after).iter().any(|(_, commits)| commits.contains(&3));
            if !seen.is_empty() || !is_kept {
                continue;
            }
            cases += 1;
            let position = append_a_group(&log).unwrap();
            log.durable(position).wait().unwrap();
            drop(log);
            let last = after.restart(fate);
            let (_, seen) = reopen(&last, anchor, 1).unwrap_or_else(|error| panic!("{error}: {last}"));
            let commits: Vec<u64> = seen.iter().map(|(commit, _)| commit.0).collect();
            assert_eq!(commits, [2], "{last}");
        }
    }
    assert!(cases > 5, "only {cases} cuts lost the first of two groups and kept the second");
}

#[test]
fn each_opening_has_a_number_of_its_own_and_a_seed_repeats_them() {
    let history = || {
        let world = SimWorld::new(8, SimOptions::calm());
        let (mut log, anchor) = create(&world).unwrap();
        for commit in 1..=4 {
            let position = append(&log, commit, b"one of its opening").unwrap();
            log.durable(position).wait().unwrap();
            drop(log);
            (log, _) = reopen(&world, anchor, 0).unwrap();
        }
        world
    };
    let world = history();
    assert!(world.read_file("log").unwrap() == history().read_file("log").unwrap());
    let openings: std::collections::BTreeSet<u64> =
        groups_in(&world).iter().map(|(header, _)| header.opening).collect();
    // The first group of every log has opening number 0, as all groups of earlier versions.
    assert!(openings.len() == 5 && openings.contains(&0), "{openings:?}");
}
