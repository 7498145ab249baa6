//! Transactions of many threads at once: their reads and writes fit some order in which they ran one by one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use fastrand::Rng;
use nofault::Durability;
use nofault::blocking::{Db, Table, Transaction};
use nofault::error::{Error, ErrorKind};
use nofault::settings::Settings;
use nofault_sim::{SimOptions, SimWorld};

use crate::story::for_each_seed;

const KEYS: u64 = 8;
const THREADS: u64 = 4;
const TRANSACTIONS: u64 = 150;

fn database(seed: u64) -> (SimWorld, Db, Table) {
    database_with(seed, Settings { cache_bytes: 2 << 20, log_bytes: 1 << 20, ..Settings::default() })
}

/// Creates a database that remembers only some hundred keys of recent commits.
fn forgetful(seed: u64) -> (SimWorld, Db, Table) {
    database_with(
        seed,
        Settings { page_bytes: 512, cache_bytes: 672 << 10, log_bytes: 1 << 20, ..Settings::with_small_pages() },
    )
}

fn database_with(seed: u64, settings: Settings) -> (SimWorld, Db, Table) {
    let world = SimWorld::new(seed, SimOptions::calm());
    let db = Db::create_in(&world.directory(), &settings).unwrap();
    let table = db.create_table("t").unwrap();
    (world, db, table)
}

fn number(value: Option<Vec<u8>>) -> u64 {
    value.map_or(0, |value| u64::from_le_bytes(value[..8].try_into().unwrap()))
}

/// The reads and writes of a committed transaction. Every write is the number of its transaction, so a value names its writer.
#[derive(Debug, Default)]
struct TransactionRecord {
    reads: BTreeMap<u64, u64>,
    /// For each key, the transaction that wrote the value replaced by this one.
    writes: BTreeMap<u64, u64>,
}

/// How often a transaction of a history is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Runs {
    /// The transaction runs once: a conflict ends it.
    Once,
    /// The transaction runs until it commits: transactions that lose often take precedence.
    UntilCommitted,
}

#[test]
fn committed_transactions_fit_an_order_in_which_they_ran_one_by_one() {
    for_each_seed("committed_transactions_fit_an_order", 1..=3, |seed| {
        history_fits_an_order(seed, database(seed), Runs::Once, 0);
    });
}

#[test]
fn committed_transactions_fit_an_order_when_more_is_committed_than_can_be_remembered() {
    for_each_seed("they_do_when_more_is_committed", 1..=3, |seed| {
        history_fits_an_order(seed, forgetful(seed), Runs::Once, 40);
    });
}

#[test]
fn committed_transactions_fit_an_order_when_losers_take_precedence() {
    for_each_seed("they_do_when_those_that_lose", 1..=3, |seed| {
        history_fits_an_order(seed, database(seed), Runs::UntilCommitted, 0);
        history_fits_an_order(seed, forgetful(seed), Runs::UntilCommitted, 40);
    });
}

/// Runs a history and checks that it fits a serial order. Each transaction writes up to `others` further keys that none
/// reads.
fn history_fits_an_order(seed: u64, (_world, db, table): (SimWorld, Db, Table), runs: Runs, others: u64) {
    let history: Mutex<BTreeMap<u64, TransactionRecord>> = Mutex::default();
    let (next, conflicts) = (AtomicU64::new(1), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (db, table, history, next, conflicts) = (&db, &table, &history, &next, &conflicts);
            scope.spawn(move || {
                let mut rng = Rng::with_seed(seed << 8 | thread);
                for _ in 0..TRANSACTIONS {
                    let me = next.fetch_add(1, Ordering::Relaxed);
                    let durability = if rng.bool() { Durability::Sync } else { Durability::Deferred };
                    let seen = if runs == Runs::Once {
                        let transaction = db.begin();
                        let seen = one_transaction(&transaction, table, me, others, &mut rng).unwrap();
                        match transaction.commit(durability) {
                            Ok(()) => seen,
                            Err(error) => {
                                assert_eq!(error.kind(), ErrorKind::Conflict, "{error:?}");
                                conflicts.fetch_add(1, Ordering::Relaxed);
                                continue;
                            }
                        }
                    } else {
                        db.transact(durability, |change| one_transaction(change, table, me, others, &mut rng)).unwrap()
                    };
                    history.lock().unwrap().insert(me, seen);
                }
            });
        }
    });
    let history = history.into_inner().unwrap();
    let transactions = db.stats().transactions;
    println!(
        "seed {seed}, {runs:?}: {} committed, {} conflicts, {transactions:?}",
        history.len(),
        conflicts.into_inner()
    );
    assert!(history.len() > 50, "seed {seed}: hardly anything was committed");
    assert!(
        runs == Runs::Once || history.len() as u64 == THREADS * TRANSACTIONS,
        "seed {seed}: not all were committed"
    );
    refuse_cycles(&history, seed);
    for key in 0..KEYS {
        let last = number(table.get(key.to_be_bytes()).unwrap());
        assert!(
            last == 0 || history.contains_key(&last),
            "seed {seed}: key {key} was written by {last}, which conflicted"
        );
    }
}

/// Reads some keys, one by one or as a range, and overwrites some keys.
fn one_transaction(
    transaction: &Transaction,
    table: &Table,
    me: u64,
    others: u64,
    rng: &mut Rng,
) -> Result<TransactionRecord, Error> {
    let mut seen = TransactionRecord::default();
    if rng.bool() {
        for _ in 0..rng.usize(1..4) {
            let key = rng.u64(..KEYS);
            seen.reads.insert(key, number(transaction.get(table, key.to_be_bytes()).unwrap()));
        }
    } else {
        let (from, to) = (rng.u64(..KEYS), rng.u64(..=KEYS));
        // Keys that are not there count as read as well.
        seen.reads.extend((from..to).map(|key| (key, 0)));
        for row in transaction.range(table, from.to_be_bytes().to_vec()..to.max(from).to_be_bytes().to_vec()).unwrap() {
            let (key, value) = row.unwrap();
            seen.reads.insert(u64::from_be_bytes(key[..].try_into().unwrap()), number(Some(value)));
        }
    }
    std::thread::yield_now();
    for _ in 0..rng.usize(..3) {
        let key = rng.u64(..KEYS);
        // Read the value that is overwritten, so that the order of versions of a key is known.
        let before = number(transaction.get(table, key.to_be_bytes()).unwrap());
        if before != me {
            seen.reads.entry(key).or_insert(before);
            seen.writes.insert(key, before);
        }
        transaction.put(table, key.to_be_bytes(), me.to_le_bytes()).unwrap();
    }
    for _ in 0..rng.u64(..=others) {
        transaction.put(table, [&[1; 9][..], &rng.u64(..100_000).to_be_bytes()].concat(), "other")?;
    }
    Ok(seen)
}

/// Builds the graph of transactions that must precede others, and removes transactions without a predecessor until none is left. A
/// cycle remains, and is refused.
fn refuse_cycles(history: &BTreeMap<u64, TransactionRecord>, seed: u64) {
    // The transaction that overwrote each version: at most one.
    let mut overwriter: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    for (me, seen) in history {
        for (key, before) in &seen.writes {
            let other = overwriter.insert((*key, *before), *me);
            assert!(other.is_none(), "seed {seed}: {me} and {other:?} both replaced what {before} wrote to key {key}");
        }
    }
    let mut after: BTreeMap<u64, BTreeSet<u64>> = history.keys().map(|me| (*me, BTreeSet::new())).collect();
    for (me, seen) in history {
        for (key, writer) in &seen.reads {
            if *writer != 0 {
                after
                    .get_mut(writer)
                    .unwrap_or_else(|| panic!("seed {seed}: {me} read what {writer} never committed"))
                    .insert(*me);
            }
            if let Some(later) = overwriter.get(&(*key, *writer)).filter(|later| *later != me) {
                after.get_mut(me).unwrap().insert(*later);
            }
        }
    }
    while !after.is_empty() {
        let preceded: BTreeSet<u64> = after.values().flatten().copied().collect();
        let before = after.len();
        after.retain(|me, _| preceded.contains(me));
        assert!(after.len() < before, "seed {seed}: these wait for each other in a circle: {after:?}");
    }
}

/// Two transactions each read both keys and clear one: one of them must conflict.
#[test]
fn write_skew_is_impossible() {
    let (_world, db, table) = database(7);
    for round in 0..100u32 {
        table.put("left", "on call").unwrap();
        table.put("right", "on call").unwrap();
        std::thread::scope(|scope| {
            for (mine, other) in [("left", "right"), ("right", "left")] {
                let (db, table) = (&db, &table);
                scope.spawn(move || {
                    let leave = |change: &Transaction| {
                        if change.get(table, other)?.is_some() {
                            std::thread::yield_now();
                            change.delete(table, mine)?;
                        }
                        Ok::<_, Error>(())
                    };
                    db.transact(Durability::Sync, leave).unwrap();
                });
            }
        });
        let left = table.range::<&[u8]>(..).count();
        assert_eq!(left, 1, "round {round}: one must stay on call, and only one asked first");
    }
}

/// A transaction conflicts when another commit changed a key or range that it had read, also after so many other commits that none of
/// their keys is remembered. Each case reads a key that is there, a key that is absent, or a range that then gains a key.
#[test]
fn a_conflict_is_found_however_much_is_committed_after_it() {
    for others in [0_u32, 200, 3_000] {
        for case in ["a key", "an absent key", "a range", "a range to the end", "a range backwards"] {
            let (_world, db, table) = forgetful(11);
            table.put("b", "1").unwrap();
            table.put("d", "1").unwrap();
            let change = db.begin();
            let changed = match case {
                "a key" => {
                    assert!(change.get(&table, "b").unwrap().is_some());
                    "b"
                }
                "an absent key" => {
                    assert_eq!(change.get(&table, "c").unwrap(), None);
                    "c"
                }
                "a range" => {
                    assert_eq!(change.range(&table, "a".."e").unwrap().count(), 2);
                    "c"
                }
                "a range to the end" => {
                    assert_eq!(change.range::<&str>(&table, ..).unwrap().count(), 2);
                    "x"
                }
                _ => {
                    assert_eq!(change.range(&table, "a".."e").unwrap().rev().count(), 2);
                    "a"
                }
            };
            table.put(changed, "2").unwrap();
            let other = db.create_table("other").unwrap();
            for number in 0..others {
                let mut batch = nofault::Batch::new();
                batch.put(&other, number.to_be_bytes(), "1");
                db.write(batch, Durability::Deferred).unwrap();
            }
            change.put(&table, "result", "1").unwrap();
            let refused = change.commit(Durability::Sync).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Conflict, "{case}, {others} others");
        }
    }
}
