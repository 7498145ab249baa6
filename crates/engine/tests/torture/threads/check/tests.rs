//! Views made by hand: each rule of the checker refuses some, and good ones that come near are accepted.

use super::super::history::{HistoryRecord, Op, Outcome, Write, value};
use super::*;

const WRITERS: usize = 2;

fn put(table: &str, key: u32) -> Write {
    Write::Put { table: table.into(), key, len: 8 }
}

/// Returns a commit of writer `writer` that ended at `ended`; 0 means that its end is unknown.
fn op(writer: u32, id: u32, invoked: Tick, ended: Tick, is_sync: bool, writes: &[Write]) -> Op {
    let outcome = if ended == 0 { Outcome::Unknown } else { Outcome::Acknowledged(ended) };
    let mark = Write::Put { table: MARKS.into(), key: writer, len: 4 };
    Op { id, invoked, outcome, is_sync, writes: writes.iter().cloned().chain([mark]).collect() }
}

fn empty() -> Model {
    let names = [MARKS, LISTS, SHARED].map(str::to_owned).into_iter().chain((0..WRITERS).map(own));
    names.map(|name| (name, Arc::default())).collect()
}

/// Returns the content after these commits. Elements of lists are in the order of the commits.
fn after(ops: &[&Op]) -> Model {
    let mut model = empty();
    for op in ops {
        apply(&mut model, op);
        for write in &op.writes {
            if let Write::Append { list } = write {
                let rows = Arc::make_mut(model.get_mut(LISTS).unwrap());
                let ids = rows.entry(key_of(*list)).or_default();
                *ids = ids.iter().copied().chain(op.id.to_le_bytes()).collect();
            }
        }
    }
    model
}

fn recorded(threads: [&[&Op]; 2]) -> HistoryRecord {
    HistoryRecord {
        writers: WRITERS,
        threads: threads.map(|ops| ops.iter().copied().cloned().collect()).into(),
        syncs: Vec::new(),
    }
}

fn cut(found: Model, from: Tick, until: Tick) -> View {
    View { found, from, until, is_snapshot: false }
}

fn check(history: &HistoryRecord, views: &[View]) -> Result<(), String> {
    let base = empty();
    let mut checker = Checker::new(&base, history);
    views.iter().try_for_each(|view| checker.check(view))
}

#[track_caller]
fn refused(history: &HistoryRecord, views: &[View], why: &str) {
    let error = check(history, views).expect_err("accepted");
    assert!(error.contains(why), "{error}");
}

#[test]
fn acknowledged_commits_must_be_there_unless_deferred() {
    for is_sync in [true, false] {
        let one = op(0, 1, 1, 2, is_sync, &[put("own-0", 5)]);
        let history = recorded([&[&one], &[]]);
        let snapshot = |from| View { is_snapshot: true, ..cut(empty(), from, 9) };
        check(&history, &[cut(after(&[&one]), 9, 9)]).unwrap();
        check(&history, &[cut(empty(), 2, 9), snapshot(2)]).unwrap();
        refused(&history, &[snapshot(3)], "lost is");
        assert_eq!(check(&history, &[cut(empty(), 3, 9)]).is_err(), is_sync);
    }
}

#[test]
fn a_later_durable_commit_or_sync_makes_deferred_ones_durable() {
    let (one, two) = (op(0, 1, 1, 2, false, &[]), op(1, 2, 3, 4, true, &[]));
    let mut history = recorded([&[&one], &[&two]]);
    check(&history, &[cut(after(&[&one]), 4, 9), cut(after(&[&one, &two]), 9, 9)]).unwrap();
    refused(&history, &[cut(after(&[&two]), 4, 9)], "thread 0 shows 0 of 1");
    history.threads[1].clear();
    history.syncs = vec![(3, 5)];
    check(&history, &[cut(empty(), 5, 9)]).unwrap();
    refused(&history, &[cut(empty(), 6, 9)], "thread 0 shows 0 of 1");
}

#[test]
fn no_commit_is_shown_before_it_was_begun_or_after_it_was_refused() {
    let mut one = op(0, 1, 5, 6, true, &[]);
    refused(&recorded([&[&one], &[]]), &[cut(after(&[&one]), 1, 4)], "begun later");
    one.outcome = Outcome::Refused;
    refused(&recorded([&[&one], &[]]), &[cut(after(&[&one]), 9, 9)], "Refused");
    refused(&recorded([&[], &[]]), &[cut(after(&[&one]), 9, 9)], "no thread tried");
}

#[test]
fn a_commit_is_there_whole_or_not_at_all() {
    let one = op(0, 1, 1, 0, true, &[put("own-0", 5), put("own-0", 6)]);
    let history = recorded([&[&one], &[]]);
    check(&history, &[cut(empty(), 9, 9)]).unwrap();
    let mut half = after(&[&one]);
    Arc::make_mut(half.get_mut("own-0").unwrap()).remove(&key_of(6));
    refused(&history, &[cut(half, 9, 9)], "keys of writer 0");
    let mut without_mark = after(&[&one]);
    without_mark.insert(MARKS.into(), Arc::default());
    refused(&history, &[cut(without_mark, 9, 9)], "keys of writer 0");
}

#[test]
fn a_shared_key_has_the_value_of_a_last_writer() {
    let one = op(0, 1, 1, 2, true, &[put(SHARED, 0)]);
    let two = op(1, 2, 3, 4, true, &[put(SHARED, 0)]);
    let beside = op(1, 2, 1, 4, true, &[put(SHARED, 0)]);
    let in_turn = recorded([&[&one], &[&two]]);
    check(&in_turn, &[cut(after(&[&one, &two]), 9, 9)]).unwrap();
    refused(&in_turn, &[cut(after(&[&two, &one]), 9, 9)], "is not a last one");
    check(&recorded([&[&one], &[&beside]]), &[cut(after(&[&beside, &one]), 9, 9)]).unwrap();
    let mut gone = after(&[&one, &two]);
    gone.insert(SHARED.into(), Arc::default());
    refused(&in_turn, &[cut(gone, 9, 9)], "commit None");
    let mut strange = empty();
    Arc::make_mut(strange.get_mut(SHARED).unwrap()).insert(key_of(3), value(1, 8).into());
    refused(&recorded([&[], &[]]), &[cut(strange, 9, 9)], "no commit shown changed it");
}

#[test]
fn lists_have_each_append_once_in_an_order_that_agrees_with_time_and_other_lists() {
    let both = [Write::Append { list: 0 }, Write::Append { list: 1 }];
    let (one, two) = (op(0, 1, 1, 9, true, &both), op(1, 2, 2, 9, true, &both));
    let history = recorded([&[&one], &[&two]]);
    check(&history, &[cut(after(&[&one, &two]), 20, 20)]).unwrap();
    check(&history, &[cut(after(&[&two, &one]), 20, 20)]).unwrap();
    let list = |model: &mut Model, list: u32, ids: &[u32]| {
        let ids = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        Arc::make_mut(model.get_mut(LISTS).unwrap()).insert(key_of(list), ids);
    };
    let changed = |ids: &[u32]| {
        let mut model = after(&[&one, &two]);
        list(&mut model, 1, ids);
        cut(model, 20, 20)
    };
    refused(&history, &[changed(&[2, 1])], "the other way");
    refused(&history, &[changed(&[1])], "the commits shown appended");
    refused(&history, &[changed(&[1, 2, 2])], "the commits shown appended");
    let later = op(1, 2, 10, 11, true, &both);
    refused(&recorded([&[&one], &[&later]]), &[cut(after(&[&two, &one]), 20, 20)], "ended earlier");
    let alone = |op: &Op| cut(after(&[op]), 1, 20);
    refused(&history, &[alone(&one), alone(&two)], "in another view");
}

#[test]
fn of_two_views_one_must_show_every_commit_of_the_other() {
    let (one, two) = (op(0, 1, 1, 0, true, &[]), op(1, 2, 1, 0, true, &[]));
    let history = recorded([&[&one], &[&two]]);
    check(&history, &[cut(after(&[&one]), 1, 9), cut(after(&[&one, &two]), 1, 9), cut(empty(), 1, 9)]).unwrap();
    refused(&history, &[cut(after(&[&one]), 1, 9), cut(after(&[&two]), 1, 9)], "one view shows");
}

#[test]
fn a_durable_commit_that_a_snapshot_has_shown_stays() {
    for is_sync in [true, false] {
        let one = op(0, 1, 1, 0, is_sync, &[]);
        let history = recorded([&[&one], &[]]);
        let snapshot = View { is_snapshot: true, ..cut(after(&[&one]), 2, 3) };
        check(&history, &[snapshot.clone(), cut(empty(), 3, 4)]).unwrap();
        let outcome = check(&history, &[snapshot, cut(empty(), 4, 4)]);
        assert_eq!(outcome.is_err(), is_sync, "{outcome:?}");
    }
}

#[test]
fn a_loaded_table_is_empty_or_full_and_a_dropped_one_stays_away() {
    let table = || "bulk-0-0".to_owned();
    let alone =
        |id, write| Op { writes: vec![write], ..op(0, id, u64::from(id) * 10, u64::from(id) * 10 + 5, true, &[]) };
    let ops = [
        alone(1, Write::Create { table: table() }),
        alone(2, Write::Load { table: table(), first: 3, count: 4 }),
        alone(3, Write::Drop { table: table() }),
    ];
    let mut history = recorded([&[], &[]]);
    history.threads.push(ops.to_vec());
    let shown = |count: usize| after(&ops[..count].iter().collect::<Vec<_>>());
    for count in 0..=3 {
        check(&history, &[cut(shown(count), 10 * count as u64 + 6, 99)]).unwrap();
        if count < 3 {
            // Nothing looks like the table before its creation but the time after its drop, which had not begun.
            let at = 10 * count as u64 + 16;
            let why = if count == 0 { "begun later" } else { "loader 0 must have done" };
            refused(&history, &[cut(shown(count), at, at)], why);
        }
    }
    let mut half = shown(2);
    Arc::make_mut(half.get_mut(&table()).unwrap()).pop_first();
    refused(&history, &[cut(half, 20, 99)], "loader 0 must have done");
    let mut strange = shown(0);
    strange.insert("unheard of".into(), Arc::default());
    refused(&history, &[cut(strange, 1, 99)], "tables are");
}
