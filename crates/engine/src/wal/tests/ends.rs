//! The end of a log: the effect that one bad read, a failed sync or a forged file may have on it.

use nofault_io::completion::OpKind;
use nofault_sim::{Call, Effect, Fault, Hooks};

use super::*;
use crate::format::{GROUP_HEADER_BYTES, GroupHeader, SUMMED_BYTES, encode_group};

const SECTOR: usize = 512;

/// Returns a disk that returns one sector of one read wrong, once: the `at`-th of all sectors read from it. `seen` counts
/// the sectors read so far.
fn with_one_bad_sector(disk: Arc<dyn Disk>, at: u64, zeroes: bool, seen: &Arc<AtomicU64>) -> Arc<dyn Disk> {
    let seen = Arc::clone(seen);
    let hooks = Hooks::new().reap(move |queue, wait_for, into| {
        let before = into.len();
        queue.reap(wait_for, into)?;
        for completion in &mut into[before..] {
            let OpKind::Read(buffer) = &mut completion.op.kind else { continue };
            let sectors = (buffer.len() / SECTOR) as u64;
            let first = seen.fetch_add(sectors, Ordering::Relaxed);
            if (first..first + sectors).contains(&at) {
                let start = (at - first) as usize * SECTOR;
                let sector = &mut buffer[start..start + SECTOR];
                match zeroes {
                    true => sector.fill(0),
                    false => fastrand::Rng::with_seed(at).fill(sector),
                }
            }
        }
        Ok(())
    });
    hooks.disk(disk)
}

/// Regression: one sector read as zeroes once made the last commit disappear finally, or the whole log be
/// refused.
#[test]
fn a_sector_that_is_read_wrong_once_neither_ends_the_log_nor_refuses_it() {
    for (segment_bytes, commit_bytes, commits) in [(32768, 500, 40), (16384, 9_000, 12), (1 << 20, 60_000, 12)] {
        let options = LogOptions { segment_bytes, ..OPTIONS };
        let world = SimWorld::new(21, SimOptions::calm());
        let (log, anchor) = create_with(&world, options).unwrap();
        for commit in 1..=commits {
            let position = append(&log, commit, &vec![commit as u8; commit_bytes]).unwrap();
            log.durable(position).wait().unwrap();
        }
        drop(log);
        let open = |at: u64, zeroes: bool| {
            let world = world.restart(1);
            let seen = Arc::new(AtomicU64::new(0));
            let disk = with_one_bad_sector(disk(&world).unwrap(), at, zeroes, &seen);
            let outcome = reopen_on(&*disk, options, anchor, 0).map(|(_, records)| records);
            (outcome, seen.load(Ordering::Relaxed))
        };
        let (whole, sectors) = open(u64::MAX, true);
        let whole = whole.unwrap();
        assert_eq!(whole.len() as u64, commits);
        // Beyond this number all reads are alike, so some hundreds of them are enough.
        let stride = (sectors / 1500).max(1);
        for (at, zeroes) in (0..sectors).step_by(stride as usize).flat_map(|at| [(at, true), (at, false)]) {
            let records = open(at, zeroes).0.unwrap_or_else(|error| panic!("sector {at} of {sectors}: {error}"));
            assert!(records == whole, "sector {at} of {sectors}: {} of {commits} commits", records.len());
        }
    }
}

/// A process that dies of a failed write leaves the written bytes in the page cache. The sync that fails at the next
/// opening makes the cache forget that the device never got them. The opening after that acknowledged commits behind
/// those bytes, and a power cut left these commits behind a gap.
#[test]
fn commits_behind_a_group_whose_sync_failed_survive_every_power_cut() {
    let (mut cuts, mut revived) = (0, 0);
    for seed in 0..40 {
        let options = SimOptions { sector_bytes: 4096, ..SimOptions::calm() };
        let world = SimWorld::new(seed, options);
        let (log, anchor) = create(&world).unwrap();
        let mut acknowledged = 3;
        for commit in 1..=acknowledged {
            let position = append(&log, commit, b"one").unwrap();
            log.durable(position).wait().unwrap();
        }
        world.inject(Fault::new(Call::Write, Effect::Errno(libc_eio())).on("log"));
        let position = append(&log, 4, b"not acknowledged").unwrap();
        log.durable(position).wait().unwrap_err();
        drop(log);
        world.inject(Fault::new(Call::Sync, Effect::Errno(libc_eio())).on("log"));
        let (log, seen) = match reopen(&world, anchor, 0) {
            Ok(opened) => opened,
            Err(_) => reopen(&world, anchor, 0).unwrap(),
        };
        revived += u64::from(seen.len() == 4);
        acknowledged = seen.len() as u64;
        for _ in 0..3 {
            acknowledged += 1;
            let position = append(&log, acknowledged, b"behind it").unwrap();
            log.durable(position).wait().unwrap();
        }
        drop(log);
        for fate in 0..20 {
            let after = world.restart(fate);
            let (_, seen) = reopen(&after, anchor, 0).unwrap_or_else(|error| panic!("{error}: {after}"));
            assert_eq!(seen.len() as u64, acknowledged, "{after}");
            cuts += 1;
        }
    }
    assert!(cuts >= 800 && revived > 5, "{cuts} cuts, {revived} groups that only the cache had");
}

fn libc_eio() -> i32 {
    rustix::io::Errno::IO.raw_os_error()
}

/// Regression: a log in which every block claims to begin a long group took time quadratic in its size.
#[test]
fn a_log_in_which_every_block_claims_a_long_group_is_summed_a_bounded_number_of_times() {
    for segment_bytes in [1 << 20, 8 << 20] {
        let options = LogOptions { segment_bytes, log_bytes: 1 << 30, ..OPTIONS };
        let world = SimWorld::new(22, SimOptions::calm());
        let (log, anchor) = create_with(&world, options).unwrap();
        let position = append(&log, 1, b"one").unwrap();
        log.durable(position).wait().unwrap();
        drop(log);
        let mut bytes = world.read_file("log").unwrap();
        for at in (2 * LOG_BLOCK_BYTES..bytes.len() - LOG_BLOCK_BYTES).step_by(LOG_BLOCK_BYTES) {
            let left = segment_bytes as usize - at % segment_bytes as usize - GROUP_HEADER_BYTES;
            let header = GroupHeader {
                sequence: 1000 + at as u64,
                position: at as u64,
                durable_sequence: 900,
                previous: 1,
                slots: 2,
                opening: 3,
                time_ms: 0,
                payload_bytes: left as u32,
                checksum: 0,
            };
            // Every second group is as earlier builds wrote groups: without a checksum of the header.
            let summed_header = (at / LOG_BLOCK_BYTES).is_multiple_of(2);
            let mut block = vec![0; LOG_BLOCK_BYTES];
            encode_group(OPTIONS.file_id, &GroupHeader { payload_bytes: 100, ..header }, &mut block);
            block[12..16].copy_from_slice(&header.payload_bytes.to_le_bytes());
            if !summed_header {
                block[64..GROUP_HEADER_BYTES].fill(0);
            }
            block[..8].fill(9);
            bytes[at..at + LOG_BLOCK_BYTES].copy_from_slice(&block);
        }
        world.overwrite("log", 0, &bytes).unwrap();
        let before = SUMMED_BYTES.get();
        let outcome = reopen_on(&*disk(&world).unwrap(), options, anchor, 0);
        let summed = SUMMED_BYTES.get() - before;
        assert!(summed <= 40 * bytes.len() as u64, "{summed} bytes summed of a file of {}", bytes.len());
        assert_eq!(outcome.unwrap().1.len(), 1);
    }
}

#[test]
fn a_panic_of_the_thread_that_writes_poisons_the_log_and_ends_all_waits() {
    let world = SimWorld::new(6, SimOptions::calm());
    let log = create(&world).unwrap().0;
    log.set_host(on_durable(|commit| assert!(commit < CommitSeq(2), "a fault that this test plants")));
    log.durable(append(&log, 1, b"one").unwrap()).wait().unwrap();
    let second = append(&log, 2, b"two").unwrap();
    let mut task = log.durable(second);
    assert!(task.poll(std::task::Waker::noop()).is_pending());
    std::thread::scope(|scope| {
        let leader = scope.spawn(|| log.durable(second).wait());
        assert!(leader.join().is_err(), "the hook panics");
    });
    let refused = |outcome: Result<()>| assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Poisoned);
    refused(log.durable(second).wait());
    match task.poll(std::task::Waker::noop()) {
        std::task::Poll::Ready(outcome) => refused(outcome),
        std::task::Poll::Pending => panic!("a task waits on"),
    }
    assert!(append(&log, 3, b"three").is_err());
}

/// Regression: the next leader asked the queue without end for the completion of a group that the queue never had.
#[test]
fn a_leader_that_panics_before_its_group_reaches_the_device_holds_up_no_other() {
    let world = SimWorld::new(6, SimOptions::calm());
    let log = create(&world).unwrap().0;
    append(&log, 1, b"one").unwrap();
    let core = Arc::clone(&log.0);
    let leader = std::thread::spawn(move || {
        let _leadership = core.try_to_lead(&mut core.lock()).unwrap();
        assert!(core.next_group(&mut core.lock_writer()).is_none(), "a fault that this test plants");
    });
    assert!(leader.join().is_err());
    let (core, (tell, told)) = (Arc::clone(&log.0), std::sync::mpsc::channel());
    std::thread::spawn(move || {
        let leadership = core.try_to_lead(&mut core.lock()).unwrap();
        leadership.lead(None);
        tell.send(()).unwrap();
    });
    told.recv_timeout(std::time::Duration::from_secs(60)).expect("the next leader gives the group up");
    assert!(append(&log, 2, b"two").is_err());
}

#[test]
fn a_log_file_that_was_cut_short_is_refused_or_has_lost_nothing() {
    let (world, anchor) = calm_log();
    let len = world.read_file("log").unwrap().len() as u64;
    assert!(len > 5 * OPTIONS.segment_bytes, "too small to cut: {len}");
    for cut in (0..len).step_by(2048) {
        let shorter = world.restart(cut);
        shorter.set_len("log", cut).unwrap();
        match reopen(&shorter, anchor, 0) {
            Ok((_, seen)) => assert_eq!(seen.len(), 40, "cut to {cut} of {len}"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "cut to {cut}: {error}"),
        }
    }
}
