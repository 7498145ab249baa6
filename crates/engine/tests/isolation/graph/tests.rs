//! Bad histories made by hand, one for each kind of anomaly, and good ones that come near.

use super::{Kind, Outcome, Step, Txn, check};

fn append(key: u32, element: u64) -> Step {
    Step::Append { key, element }
}

fn list(key: u32, elements: &[u64]) -> Step {
    Step::ReadList { key, elements: elements.to_vec(), ranged: false }
}

fn ranged(key: u32, elements: &[u64]) -> Step {
    Step::ReadList { key, elements: elements.to_vec(), ranged: true }
}

fn write(key: u32, value: u64) -> Step {
    Step::Write { key, value }
}

fn read(key: u32, value: Option<u64>) -> Step {
    Step::Read { key, value, ranged: false }
}

fn txn(begun: u64, ended: u64, outcome: Outcome, steps: &[Step]) -> Txn {
    let ended = (outcome != Outcome::Unknown).then_some(ended);
    Txn { begun, ended, outcome, steps: steps.to_vec() }
}

/// Returns committed transactions that all ran concurrently.
fn together(txns: &[&[Step]]) -> Vec<Txn> {
    txns.iter().enumerate().map(|(at, steps)| txn(at as u64, 1000 + at as u64, Outcome::Committed, steps)).collect()
}

/// Returns committed transactions, each of which began after the previous one had ended.
fn in_turn(txns: &[&[Step]]) -> Vec<Txn> {
    let time = |at: usize| 10 * at as u64;
    txns.iter().enumerate().map(|(at, steps)| txn(time(at), time(at) + 5, Outcome::Committed, steps)).collect()
}

#[track_caller]
fn refused(history: &[Txn], kind: Kind) {
    match check(history) {
        Ok(counts) => panic!("accepted with {counts:?} instead of {kind:?}"),
        Err(found) => assert_eq!(found.kind, kind, "{found}"),
    }
}

#[track_caller]
fn accepted(history: &[Txn]) {
    if let Err(found) = check(history) {
        panic!("{found}");
    }
}

#[test]
fn good_histories_are_accepted() {
    accepted(&[]);
    accepted(&in_turn(&[&[append(1, 1)], &[list(1, &[1]), append(1, 2)], &[list(1, &[1, 2]), list(2, &[])]]));
    // Concurrent transactions may appear in any order.
    accepted(&together(&[&[list(1, &[2]), append(1, 1)], &[append(1, 2)], &[list(1, &[2, 1])]]));
    // A snapshot between two others.
    accepted(&together(&[
        &[append(1, 1), append(2, 1)],
        &[list(1, &[]), list(2, &[])],
        &[list(1, &[1]), list(2, &[1])],
    ]));
    accepted(&in_turn(&[&[write(1, 1)], &[read(1, Some(1)), write(1, 2)], &[read(1, Some(2))]]));
}

#[test]
fn a_transaction_that_does_not_see_its_own_writes_is_refused() {
    refused(&together(&[&[list(1, &[]), append(1, 1), list(1, &[])]]), Kind::Internal);
    refused(&together(&[&[append(1, 1), list(1, &[])]]), Kind::Internal);
    refused(&together(&[&[append(1, 1)], &[list(1, &[]), list(1, &[1])]]), Kind::Internal);
    refused(&together(&[&[write(1, 1), read(1, None)]]), Kind::Internal);
}

#[test]
fn a_value_never_written_or_present_twice_is_refused() {
    refused(&together(&[&[list(1, &[7])]]), Kind::Garbage);
    refused(&together(&[&[append(1, 1)], &[list(1, &[1, 1])]]), Kind::Garbage);
    refused(&together(&[&[read(1, Some(3))]]), Kind::Garbage);
    refused(&together(&[&[append(1, 1)], &[list(2, &[1])]]), Kind::Garbage);
}

#[test]
fn a_read_of_an_aborted_write_is_g1a() {
    let aborted = |step| txn(0, 9, Outcome::Aborted, &[step]);
    let reader = |step| txn(1, 9, Outcome::Committed, &[step]);
    refused(&[aborted(append(1, 1)), reader(list(1, &[1]))], Kind::G1a);
    refused(&[aborted(write(1, 1)), reader(read(1, Some(1)))], Kind::G1a);
    accepted(&[aborted(append(1, 1)), reader(list(1, &[]))]);
}

#[test]
fn a_read_of_half_a_transaction_is_g1b() {
    refused(&together(&[&[append(1, 1), append(1, 2)], &[list(1, &[1])]]), Kind::G1b);
    refused(&together(&[&[write(1, 1), write(1, 2)], &[read(1, Some(1))]]), Kind::G1b);
}

#[test]
fn reads_that_disagree_about_the_order_of_a_list_are_refused() {
    let writers: [&[Step]; 2] = [&[append(1, 1)], &[append(1, 2)]];
    refused(&together(&[writers[0], writers[1], &[list(1, &[1, 2])], &[list(1, &[2, 1])]]), Kind::Order);
    refused(&together(&[writers[0], writers[1], &[list(1, &[1])], &[list(1, &[2])]]), Kind::Order);
}

#[test]
fn an_append_missing_from_a_later_read_is_lost() {
    refused(&in_turn(&[&[append(1, 1)], &[list(1, &[])]]), Kind::Lost);
    refused(&in_turn(&[&[append(1, 1)], &[append(1, 2)], &[list(1, &[2])]]), Kind::Lost);
}

#[test]
fn writes_in_both_orders_are_g0() {
    refused(
        &together(&[
            &[append(1, 1), append(2, 1)],
            &[append(1, 2), append(2, 2)],
            &[list(1, &[1, 2])],
            &[list(2, &[2, 1])],
        ]),
        Kind::G0,
    );
}

#[test]
fn two_transactions_that_read_from_each_other_are_g1c() {
    refused(&together(&[&[append(1, 1), list(2, &[2])], &[append(2, 2), list(1, &[1])]]), Kind::G1c);
    refused(&together(&[&[write(1, 1), read(2, Some(2))], &[write(2, 2), read(1, Some(1))]]), Kind::G1c);
}

#[test]
fn one_read_too_old_is_g_single() {
    // Read skew.
    refused(&together(&[&[append(1, 1), append(2, 1)], &[list(1, &[]), list(2, &[1])]]), Kind::GSingle);
    refused(&together(&[&[write(1, 1), write(2, 2)], &[read(1, None), read(2, Some(2))]]), Kind::GSingle);
    // A lost update.
    let lost: [&[Step]; 3] = [&[list(1, &[]), append(1, 1)], &[list(1, &[]), append(1, 2)], &[list(1, &[1, 2])]];
    refused(&together(&lost), Kind::GSingle);
}

#[test]
fn write_skew_is_g2_item_and_over_a_range_g2() {
    refused(&together(&[&[list(1, &[]), append(2, 1)], &[list(2, &[]), append(1, 2)]]), Kind::G2Item);
    refused(&together(&[&[ranged(1, &[]), append(2, 1)], &[ranged(2, &[]), append(1, 2)]]), Kind::G2);
    refused(&together(&[&[read(1, None), write(2, 1)], &[read(2, None), write(1, 2)]]), Kind::G2Item);
    // Two updates of one version of a register, of which each comes before the other.
    refused(
        &together(&[&[write(1, 9)], &[read(1, Some(9)), write(1, 1)], &[read(1, Some(9)), write(1, 2)]]),
        Kind::G2Item,
    );
}

/// Three transactions, one of them read-only, form a cycle (Fekete's read-only transaction anomaly).
#[test]
fn a_cycle_through_a_transaction_that_only_reads_is_g2() {
    refused(
        &together(&[
            &[list(1, &[]), list(2, &[]), append(1, 1)],
            &[list(2, &[]), append(2, 2)],
            &[list(1, &[]), list(2, &[2])],
        ]),
        Kind::G2Item,
    );
}

#[test]
fn an_order_that_contradicts_real_time_is_refused() {
    // A value that was overwritten before the reader began.
    refused(&in_turn(&[&[write(1, 1)], &[read(1, Some(1)), write(1, 2)], &[read(1, Some(1))]]), Kind::GSingleRealtime);
    // The reader ended before the writer began.
    refused(&in_turn(&[&[list(1, &[1])], &[append(1, 1)]]), Kind::G1cRealtime);
    // The later of two appends is first in the list.
    refused(&in_turn(&[&[append(1, 1)], &[append(1, 2)], &[list(1, &[2, 1])]]), Kind::G0Realtime);
    // One that began before the fourth ended sees the second and not the fourth; the first, which began later, not the second.
    let at = |begun, ended, steps: &[Step]| txn(begun, ended, Outcome::Committed, steps);
    let mut fork = vec![
        at(6, 50, &[list(1, &[])]),
        at(2, 60, &[append(1, 1)]),
        at(1, 99, &[list(1, &[1]), list(2, &[])]),
        at(0, 5, &[append(2, 2)]),
    ];
    refused(&fork, Kind::G2Realtime);
    fork[3].ended = Some(8);
    accepted(&fork);
    // Two readers that see two writes in different orders, one of them by time.
    let mut history =
        together(&[&[append(1, 1)], &[append(2, 2)], &[list(1, &[1]), list(2, &[])], &[list(2, &[2]), list(1, &[])]]);
    refused(&history, Kind::G2Item);
    history.pop();
    accepted(&history);
}

#[test]
fn a_commit_that_was_never_acknowledged_counts_once_it_has_been_seen() {
    let unknown = |begun, steps: &[Step]| txn(begun, 0, Outcome::Unknown, steps);
    let reader = |begun, steps: &[Step]| txn(begun, begun + 1, Outcome::Committed, steps);
    // Either all of its writes are seen or none.
    accepted(&[unknown(0, &[append(1, 1), append(2, 2)]), reader(5, &[list(1, &[]), list(2, &[])])]);
    accepted(&[unknown(0, &[append(1, 1), append(2, 2)]), reader(5, &[list(1, &[1]), list(2, &[2])])]);
    refused(&[unknown(0, &[append(1, 1), append(2, 2)]), reader(5, &[list(1, &[1]), list(2, &[])])], Kind::GSingle);
    // Once its writes were seen, later reads must see them too.
    let history = [unknown(0, &[append(1, 1)]), reader(5, &[list(1, &[1])]), reader(10, &[list(1, &[])])];
    refused(&history, Kind::GSingleRealtime);
}

/// In a long history of transactions that ran one after the other, each has an edge of time to the next one, and to few
/// others.
#[test]
fn a_long_history_in_turn_is_accepted_with_few_edges() {
    let steps = |at: u64| vec![list(1, &(0..at).collect::<Vec<_>>()), append(1, at)];
    let all: Vec<_> = (0..500).map(steps).collect();
    let counts = check(&in_turn(&all.iter().map(Vec::as_slice).collect::<Vec<_>>())).unwrap();
    assert_eq!((counts.txns, counts.edges), (500, 499));
}
