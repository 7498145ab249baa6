//! Transactions used through several handles at once: writes while scans are open, reads side by side, and use after
//! the end.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;

use super::*;
use crate::db::calls::transaction::TransactionScan;
use crate::format::Moment;

type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

const ALL: KeyRange = KeyRange { start: Vec::new(), end: None };

/// A scan and its model: the keys that it may still return.
struct ScanModel {
    scan: TransactionScan<MemoryStore, MemoryLog>,
    direction: Direction,
    rest: KeyRange,
    /// The part of the range that the scan has certainly read.
    read: KeyRange,
}

impl ScanModel {
    fn begin(transaction: &Arc<TransactionState<MemoryStore, MemoryLog>>, tree: Tree, rng: &mut Rng) -> Self {
        let (start, end) = (key_of(rng.u16(..40)), rng.bool().then(|| key_of(rng.u16(..80))));
        let (range, direction) =
            (KeyRange { start, end }, if rng.bool() { Direction::Forward } else { Direction::Reverse });
        let scan = transaction.scan(tree, range.clone(), direction).unwrap();
        let read = KeyRange { start: range.start.clone(), end: Some(range.start.clone()) };
        Self { scan, direction, rest: range, read }
    }

    fn step(&mut self, mode: Mode, content: &Entries) {
        let mut left = content.iter().filter(|(key, _)| self.rest.contains(key));
        let expected = if self.direction == Direction::Forward { left.next() } else { left.next_back() };
        let expected = expected.map(|(key, value)| (key.clone(), value.clone()));
        assert_eq!(mode.run(self.scan.next()).unwrap(), expected, "{:?} in {:?}", self.direction, self.rest);
        let Some((key, _)) = expected else {
            self.rest.end = Some(self.rest.start.clone());
            return;
        };
        let after = [&key[..], &[0]].concat();
        match self.direction {
            Direction::Forward => {
                self.rest.start.clone_from(&after);
                self.read.end = Some(after);
            }
            Direction::Reverse => {
                self.read = KeyRange { start: key.clone(), end: self.read.end.clone() };
                self.rest.end = Some(key);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(by_depth(50, 200)))]

    #[test]
    fn scans_of_a_transaction_show_its_writes_as_they_are_when_they_reach_them(
        hardship in hardships(), seed in any::<u64>()
    ) {
        let (core, mut rng) = (new_core(hardship), Rng::with_seed(seed));
        let tree = new_table(&core, hardship.mode, "t");
        let mut content = Entries::new();
        for _ in 0..rng.usize(..60) {
            let (key, value) = (key_of(rng.u16(..80)), vec![1; rng.usize(..200)]);
            commit(&core, hardship.mode, vec![Op::Put { tree, key: key.clone(), value: value.clone(), expiry: Moment::NEVER }], Durability::Sync).unwrap();
            content.insert(key, value);
        }
        let transaction = TransactionState::begin(&core);
        let (mut scans, mut gets): (Vec<ScanModel>, BTreeSet<Vec<u8>>) = Default::default();
        let mut savepoints = Vec::new();
        for _ in 0..rng.usize(..200) {
            let key = key_of(rng.u16(..80));
            match rng.u32(..12) {
                10 => savepoints.push((transaction.savepoint().unwrap(), content.clone())),
                11 if !savepoints.is_empty() => {
                    let index = rng.usize(..savepoints.len());
                    let (savepoint, then) = savepoints[index].clone();
                    transaction.roll_back_to(savepoint).unwrap();
                    content = then;
                    for (later, _) in savepoints.drain(index + 1..) {
                        prop_assert!(transaction.roll_back_to(later).is_err());
                    }
                }
                0 => scans.push(ScanModel::begin(&transaction, tree, &mut rng)),
                1 if !scans.is_empty() => drop(scans.swap_remove(rng.usize(..scans.len()))),
                2 => {
                    transaction.set(tree, &key, None).unwrap();
                    content.remove(&key);
                }
                3 => {
                    let value = vec![2; rng.usize(..200)];
                    transaction.set(tree, &key, Some(&value)).unwrap();
                    content.insert(key, value);
                }
                4 => {
                    prop_assert_eq!(hardship.mode.run(transaction.get(tree, &key)).unwrap(), content.get(&key).cloned());
                    gets.insert(key);
                }
                5 => {
                    let keys: Vec<_> = (0..rng.u16(..20)).map(|_| key_of(rng.u16(..80))).collect();
                    let values = hardship.mode.run(transaction.get_many(tree, &keys)).unwrap();
                    prop_assert!(keys.iter().zip(&values).all(|(key, value)| content.get(key) == value.as_ref()));
                    let shown = hardship.mode.run(transaction.get_with(tree, &key, |value| value.map(<[u8]>::len)));
                    prop_assert_eq!(shown.unwrap(), content.get(&key).map(Vec::len));
                }
                _ if scans.is_empty() => {}
                _ => { let which = rng.usize(..scans.len()); scans[which].step(hardship.mode, &content) }
            }
        }
        // A change inside the part that an open scan has read conflicts; with no change the commit succeeds.
        let read = scans.iter().find(|scan| scan.direction == Direction::Forward && !scan.read.is_empty());
        let changed = read.filter(|_| rng.bool()).map(|scan| scan.read.start.clone());
        if let Some(key) = &changed {
            commit(&core, hardship.mode, vec![Op::Put { tree, key: key.clone(), value: vec![3], expiry: Moment::NEVER }], Durability::Sync).unwrap();
        }
        transaction.set(tree, &key_of(100), Some(b"1")).unwrap();
        let committed = hardship.mode.run(transaction.commit(Durability::Sync));
        prop_assert_eq!(committed.is_err(), changed.is_some(), "{:?}", committed);
    }
}

#[test]
fn every_kind_of_read_conflicts_with_a_later_change_and_reads_of_other_keys_do_not() {
    type ReadCall = fn(&Arc<TransactionState<MemoryStore, MemoryLog>>, Tree);
    let reads: [(&str, ReadCall); 5] = [
        ("get", |transaction, tree| drop(block_on(transaction.get(tree, b"k")))),
        ("contains", |transaction, tree| drop(block_on(transaction.contains(tree, b"k")))),
        ("get_with", |transaction, tree| block_on(transaction.get_with(tree, b"k", |_| ())).unwrap()),
        ("get_many", |transaction, tree| drop(block_on(transaction.get_many(tree, &["a", "k", "z"])))),
        ("an open scan", |transaction, tree| {
            let mut scan = transaction.scan(tree, ALL, Direction::Forward).unwrap();
            assert!(block_on(scan.next()).unwrap().is_some());
            // Never dropped, as a task may keep a scan beyond the commit.
            std::mem::forget(scan);
        }),
    ];
    for (name, read) in reads {
        for (changed, conflicts) in [("k", true), ("other", false)] {
            let core = new_core(easy());
            let tree = new_table(&core, Mode::Blocking, "t");
            put(&core, tree, "k", "1");
            let transaction = TransactionState::begin(&core);
            read(&transaction, tree);
            transaction.set(tree, b"z", Some(b"1")).unwrap();
            put(&core, tree, changed, "2");
            assert_eq!(block_on(transaction.commit(Durability::Sync)).is_err(), conflicts, "{name}, {changed}");
        }
    }
}

#[test]
fn two_scans_side_by_side_conflict_with_changes_of_what_each_has_read_and_of_nothing_else() {
    for (changed, conflicts) in [("a", true), ("b", true), ("f", false), ("m", true), ("p", true), ("x", false)] {
        let core = new_core(easy());
        let tree = new_table(&core, Mode::Blocking, "t");
        ["a", "c", "e", "g", "m", "o", "q", "s"].iter().for_each(|key| put(&core, tree, key, "1"));
        let transaction = TransactionState::begin(&core);
        let from = |start: &str| KeyRange { start: start.into(), end: None };
        let mut scans = ["a", "m"].map(|start| transaction.scan(tree, from(start), Direction::Forward).unwrap());
        for _ in 0..3 {
            scans.iter_mut().for_each(|scan| assert!(block_on(scan.next()).unwrap().is_some()));
        }
        transaction.set(tree, b"y", Some(b"1")).unwrap();
        put(&core, tree, changed, "2");
        assert_eq!(block_on(transaction.commit(Durability::Sync)).is_err(), conflicts, "{changed}");
    }
}

#[test]
fn calls_on_a_transaction_that_has_ended_fail_and_change_nothing() {
    for give_up in [false, true] {
        let core = new_core(easy());
        let tree = new_table(&core, Mode::Blocking, "t");
        put(&core, tree, "k", "1");
        let transaction = TransactionState::begin(&core);
        let mut scan = transaction.scan(tree, ALL, Direction::Forward).unwrap();
        transaction.set(tree, b"a", Some(b"1")).unwrap();
        if give_up {
            transaction.give_up()
        } else {
            block_on(transaction.commit(Durability::Sync)).unwrap()
        }
        let kind = |result: Result<()>| result.unwrap_err().kind();
        assert_eq!(kind(block_on(transaction.get(tree, b"k")).map(drop)), ErrorKind::InvalidCall);
        assert_eq!(kind(block_on(transaction.get_many(tree, &["k"])).map(drop)), ErrorKind::InvalidCall);
        assert_eq!(kind(transaction.set(tree, b"k", None)), ErrorKind::InvalidCall);
        assert_eq!(kind(transaction.scan(tree, ALL, Direction::Forward).map(drop)), ErrorKind::InvalidCall);
        assert_eq!(kind(block_on(scan.next()).map(drop)), ErrorKind::InvalidCall);
        assert_eq!(block_on(scan.next()).unwrap(), None, "a scan returns an error once");
        assert!(block_on(transaction.commit(Durability::Sync)).is_err());
        assert_eq!(block_on(core.reader.get(tree, b"a").finish()).unwrap().is_some(), !give_up);
    }
}

#[test]
fn a_savepoint_of_another_transaction_is_refused_and_nothing_is_undone() {
    let core = new_core(easy());
    let tree = new_table(&core, Mode::Blocking, "t");
    let (one, other) = (TransactionState::begin(&core), TransactionState::begin(&core));
    let (savepoint, _) = (one.savepoint().unwrap(), other.savepoint().unwrap());
    other.set(tree, b"k", Some(b"1")).unwrap();
    assert_eq!(other.roll_back_to(savepoint).unwrap_err().kind(), ErrorKind::InvalidCall);
    block_on(other.commit(Durability::Sync)).unwrap();
    assert_eq!(block_on(core.reader.get(tree, b"k").finish()).unwrap(), Some(b"1".to_vec()));
    assert_eq!(other.savepoint().unwrap_err().kind(), ErrorKind::InvalidCall);
}
