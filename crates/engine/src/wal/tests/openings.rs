//! Logs that were left in the middle of something, and what the next opening makes of it.

use super::*;

/// A record that has more bytes than the log may hold, and no end.
fn append_without_an_end(log: &Log, commit: u64) {
    while log.stats().live_bytes <= OPTIONS.log_bytes {
        match log.append(CommitSeq(commit), &[&[2; 16_000]], None) {
            Ok(_) => {}
            Err(Wait::LogFull { len_bytes }) => log.room(len_bytes).wait().unwrap(),
            Err(other) => panic!("{other:?}"),
        }
    }
}

/// No checkpoint passed its beginning, so nobody ever found room in the log again.
#[test]
fn a_record_that_was_given_up_keeps_no_room_in_the_log() {
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
            // Nobody knows that this number was taken.
            next = CommitSeq(2);
        }
        let attempt = || log.append(next, &[b"next"], Some(Durability::Sync));
        assert!(matches!(attempt(), Err(Wait::LogFull { .. })), "{reopened}");
        // Only what is durable can be what recovery begins with.
        let early = log.anchor_after(CommitSeq(1));
        assert!(reopen(&world.restart(1), early, 1).unwrap().1.is_empty(), "{reopened}");
        // What a checkpoint does.
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
