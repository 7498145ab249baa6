//! The answers are never older than the truth, and exact as long as there is memory.

use std::collections::BTreeMap;

use fastrand::Rng;

use super::super::reads::{Read, scoped};
use super::ValidationWindow;
use crate::format::{CommitSeq, TableId};
use crate::sync::budget::{self, Budget, STEPS_MAX};

const TABLE: TableId = TableId(1);

fn key(text: &str) -> Vec<u8> {
    let mut key = Vec::new();
    scoped(TABLE, text.as_bytes(), &mut key);
    key
}

fn key_changed(recent: &ValidationWindow, seen: u64, text: &str) -> bool {
    let seen = CommitSeq(seen);
    recent.is_forgotten(seen) || recent.has_changed(seen, Read::Key(&key(text)), &mut Budget::new())
}

fn range_changed(recent: &ValidationWindow, seen: u64, start: &str, end: &str) -> bool {
    let seen = CommitSeq(seen);
    recent.is_forgotten(seen) || recent.has_changed(seen, Read::Range(&key(start), &key(end)), &mut Budget::new())
}

fn note(recent: &mut ValidationWindow, seq: u64, text: &str) {
    recent.note(CommitSeq(seq), TABLE, text.as_bytes());
}

#[test]
fn a_key_or_range_changed_since_conflicts_and_an_older_change_does_not() {
    let mut recent = ValidationWindow::new(1 << 20);
    note(&mut recent, 5, "b");
    assert!(key_changed(&recent, 4, "b") && !key_changed(&recent, 5, "b") && !key_changed(&recent, 4, "a"));
    assert!(range_changed(&recent, 4, "a", "c") && range_changed(&recent, 4, "b", "b\0"));
    assert!(!range_changed(&recent, 4, "c", "z") && !range_changed(&recent, 4, "a", "b"));
    assert!(!range_changed(&recent, 5, "a", "c") && !range_changed(&recent, 4, "c", "a"));
    note(&mut recent, 6, "b");
    assert!(key_changed(&recent, 5, "b") && range_changed(&recent, 5, "a", "c"));
}

#[test]
fn a_transaction_older_than_an_unlisted_change_conflicts() {
    let mut recent = ValidationWindow::new(1 << 20);
    recent.forget_before(CommitSeq(6));
    recent.forget_before(CommitSeq(3));
    note(&mut recent, 7, "a");
    assert!(key_changed(&recent, 5, "z") && range_changed(&recent, 5, "y", "z"));
    assert!(!key_changed(&recent, 6, "z") && !range_changed(&recent, 6, "y", "z"));
}

#[test]
fn while_there_is_memory_ten_thousand_commits_of_other_keys_are_no_conflict() {
    let mut recent = ValidationWindow::new(2 << 20);
    (1..=10_000).for_each(|seq| note(&mut recent, seq, &format!("z{seq}")));
    let falsely = (0..1_000).filter(|number| key_changed(&recent, 0, &format!("k{number}"))).count();
    assert!(falsely <= 2, "{falsely} of 1,000");
    assert!(!range_changed(&recent, 0, "a", "y"));
}

/// Commits keys at random, many more than there is memory for, and compares every answer with the truth.
#[test]
fn no_conflict_is_missed_however_little_memory_there_is() {
    for bytes_max in [0, 300, 3_000, 30_000, 1 << 20] {
        let mut rng = Rng::with_seed(bytes_max as u64 + 1);
        let mut recent = ValidationWindow::new(bytes_max);
        let mut truth: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
        let name = |rng: &mut Rng| format!("{:0width$}", rng.u32(..2_000), width = rng.usize(1..6));
        let (mut exact, mut all) = (0, 0);
        for seq in 1..=6_000_u64 {
            // Now and then a run of neighbours, as a batch has them.
            let text = if rng.u8(..4) == 0 { format!("batch{seq:06}") } else { name(&mut rng) };
            note(&mut recent, seq, &text);
            truth.insert(key(&text), seq);
            let seen = seq.saturating_sub(rng.u64(..300));
            let (a, b) = (name(&mut rng), name(&mut rng));
            let is_true = truth.get(&key(&a)).is_some_and(|last| *last > seen);
            assert!(!is_true || key_changed(&recent, seen, &a), "{bytes_max} bytes: {a} of {seen} at {seq}");
            let (start, end) = if a < b { (a, b) } else { (b, a) };
            let end = if rng.u8(..8) == 0 { format!("{start}\0") } else { end };
            let is_true = truth.range(key(&start)..key(&end)).any(|(_, last)| *last > seen);
            let answer = range_changed(&recent, seen, &start, &end);
            assert!(!is_true || answer, "{bytes_max} bytes: {start:?}..{end:?} of {seen} at {seq}");
            (exact, all) = (exact + u32::from(is_true == answer), all + 1);
        }
        assert!(recent.order.memory_bytes() <= bytes_max / 2 || bytes_max == 0, "{} bytes", recent.memory_bytes());
        println!("{bytes_max} bytes: {exact} of {all} ranges exact");
        assert!(bytes_max < 1 << 20 || exact == all, "there is memory for all of them");
    }
}

#[test]
fn the_check_of_a_range_takes_no_more_steps_the_longer_the_history() {
    let mut recent = ValidationWindow::new(64 << 20);
    let mut rng = Rng::with_seed(9);
    for keys in [1_000_u64, 100_000] {
        (1..=keys).for_each(|seq| recent.note(CommitSeq(seq), TABLE, &rng.u64(..).to_be_bytes()));
        budget::take_largest();
        let (start, end) = (key(""), key("\u{10ffff}"));
        recent.has_changed(CommitSeq(keys), Read::Range(&start, &end), &mut Budget::new());
        let steps = budget::take_largest();
        println!("{keys} keys: {steps} steps");
        assert!(steps > 0 && steps <= STEPS_MAX / 4, "{keys} keys: {steps} steps");
    }
}
