//! Tests of everything above the pages contract, over stores and logs in memory that make calls wait wherever they may.

mod after_drop;
mod cold_table;
mod creation;
mod dropped;
mod forged;
mod given_up;
mod large_table;
mod merging;
mod old_formats;
mod reads;
mod replaced;
mod reservations;
mod spread;
mod superblocks;
mod transactions;

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use nofault_sim::content::{Content, Rows};
use nofault_sim::depth::{by_depth, sample};
use nofault_sim::{SimOptions, SimWorld};
use proptest::prelude::*;

use crate::blocking;
use crate::btree::overflow::WITH_INDEX;
use crate::btree::{Direction, KeyRange, Tree};
use crate::buffer_pool::{BufferPool, LoadedTable, PoolOptions};
use crate::clock::ClockSource;
use crate::codec::Compression;
use crate::db::Table;
use crate::db::api::verify::verify_tables;
use crate::db::calls::commit_error::CommitError;
use crate::db::calls::core::Core;
use crate::db::calls::many::{get_many, get_many_at};
use crate::db::calls::scan::Scan;
use crate::db::calls::transaction::TransactionState;
use crate::db::calls::write_set::{NewValue, WriteSet};
use crate::db::upkeep::deferred_free::DroppedTables;
use crate::error::{ErrorKind, Result};
use crate::format::{CommitSeq, Moment, TableId};
use crate::pages::memory::{MemoryLog, MemoryStore, Residency};
use crate::pages::{Durability, Store};
use crate::settings::TierUse;
use crate::sync::driver::{block_on, run_task};
use crate::transaction::visibility::Visibility;
use crate::transaction::{CATALOG, Commit, CommitContext, Commits, Op, SMALL_OPS_MAX, create_catalog, decode, encode};

type TestCore<S> = Arc<Core<S, MemoryLog>>;

/// The way in which a test polls futures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// As an executor does: a wait is `Pending`.
    Async,
    /// As a blocking call does: a wait blocks inside the poll.
    Blocking,
}

impl Mode {
    fn run<F: Future>(self, future: F) -> F::Output {
        match self {
            Self::Async => run_task(future),
            Self::Blocking => block_on(future),
        }
    }
}

/// The conditions that make a database wait.
#[derive(Debug, Clone, Copy)]
struct Hardship {
    page_bytes: usize,
    frames_max: usize,
    residency: Residency,
    stingy_log: bool,
    mode: Mode,
}

fn hardships() -> impl Strategy<Value = Hardship> {
    let page_bytes = prop_oneof![Just(512usize), Just(1024), Just(4096)];
    let residency =
        prop_oneof![Just(Residency::Everything), Just(Residency::Requested), any::<u64>().prop_map(Residency::Chance)];
    let mode = prop_oneof![Just(Mode::Async), Just(Mode::Blocking)];
    (page_bytes, prop_oneof![Just(40usize), Just(1000)], residency, any::<bool>(), mode).prop_map(
        |(page_bytes, frames_max, residency, stingy_log, mode)| Hardship {
            page_bytes,
            frames_max,
            residency,
            stingy_log,
            mode,
        },
    )
}

fn new_core(hardship: Hardship) -> TestCore<MemoryStore> {
    let store = MemoryStore::new(hardship.page_bytes, hardship.frames_max, hardship.residency);
    core_over(store, hardship)
}

/// Creates a pool of few frames on a simulated disk.
fn new_pool(hardship: Hardship) -> BufferPool {
    new_pool_in(hardship).0
}

fn new_pool_in(hardship: Hardship) -> (BufferPool, SimWorld) {
    new_pool_keeping(hardship, u64::MAX)
}

/// Creates a pool as [`new_pool`] does, in which snapshots may keep so many bytes.
fn new_pool_keeping(hardship: Hardship, snapshot_bytes_max: u64) -> (BufferPool, SimWorld) {
    let world = SimWorld::new(1, SimOptions::default());
    let directory = world.directory();
    let disk = directory.create("data").unwrap();
    let options = PoolOptions {
        spent_bytes: 0,
        cache_bytes: (hardship.frames_max * (hardship.page_bytes + 256)) as u64,
        page_bytes: hardship.page_bytes,
        file_id: 77,
        snapshot_bytes_max,
        reads_in_flight_max: 128,
        scan_bytes_min: crate::buffer_pool::SCAN_BYTES_MIN,
        registers_frames: true,
        evicts_table: false,
        tier: TierUse::Always,
        clock: ClockSource::default(),
    };
    let table = LoadedTable::new(hardship.page_bytes, 1 << 30);
    let pool = BufferPool::new(&disk, &options, table, CommitSeq(0)).unwrap();
    (pool, world)
}

fn core_over<S: Store>(store: S, hardship: Hardship) -> TestCore<S> {
    let store = Arc::new(store);
    create_catalog(&*store).unwrap();
    let visibility = Arc::new(Visibility::new(store.clone(), CommitSeq(0)));
    let hook = visibility.clone();
    let log = MemoryLog::new(700, hardship.stingy_log, Box::new(move |seq| hook.durable(seq)));
    let log = Arc::new(log);
    let commits = Arc::new(Commits::new(store.clone(), log.clone(), visibility, CommitSeq(0), 1 << 20));
    Arc::new(Core::new(store, log, commits, 1 << 20))
}

fn easy() -> Hardship {
    Hardship {
        page_bytes: 512,
        frames_max: 1000,
        residency: Residency::Everything,
        stingy_log: false,
        mode: Mode::Blocking,
    }
}

fn commit<S: Store>(core: &TestCore<S>, mode: Mode, ops: Vec<Op>, durability: Durability) -> Result<()> {
    let commit = Commit::blind(ops, durability);
    Ok(mode.run(core.committer.commit(commit))?)
}

fn new_table<S: Store>(core: &TestCore<S>, mode: Mode, name: &str) -> Tree {
    commit(core, mode, vec![Op::CreateTable { name: name.into(), compression: Compression::None }], Durability::Sync)
        .unwrap();
    mode.run(core.catalog.table(name.as_bytes())).unwrap()
}

fn put<S: Store>(core: &TestCore<S>, tree: Tree, key: &str, value: &str) {
    let op = Op::Put { tree, key: key.into(), value: value.into(), expiry: Moment::NEVER };
    commit(core, Mode::Blocking, vec![op], Durability::Sync).unwrap();
}

/// Sets a key to a value in overflow pages, as earlier versions wrote all values too long for a leaf.
fn put_indexed<S: Store>(core: &TestCore<S>, tree: Tree, key: &str, value: &str) {
    WITH_INDEX.set(true);
    put(core, tree, key, value);
    WITH_INDEX.set(false);
}

fn scan_all<S: Store>(
    core: &TestCore<S>,
    mode: Mode,
    snapshot: Arc<S::Snapshot>,
    tree: Tree,
    range: KeyRange,
    reverse: bool,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let direction = if reverse { Direction::Reverse } else { Direction::Forward };
    let mut scan = Scan::new(core.reader.clone(), snapshot, tree, range, direction);
    let mut entries = Vec::new();
    loop {
        mode.run(scan.make_ready()).unwrap();
        // Given away and shown by turns.
        let entry = match entries.len() % 2 {
            0 => scan.take(),
            _ => scan.show().map(|(key, value)| (key.to_vec(), value.to_vec())),
        };
        match entry {
            Some(entry) => entries.push(entry),
            None => return entries,
        }
    }
}

/// Returns the rows of a table.
pub(crate) fn rows_of<C: FromIterator<(Vec<u8>, Vec<u8>)>>(table: &Table) -> Result<C> {
    let mut range = table.range::<&[u8]>(..);
    std::iter::from_fn(|| block_on(range.next()).transpose()).collect()
}

/// Returns the rows of all tables.
pub(crate) fn content(db: &blocking::Db) -> Result<Content> {
    let rows = |name: &str| db.table(name)?.range::<&[u8]>(..).collect::<Result<Rows>>();
    db.table_names()?.into_iter().map(|name| Ok((name.clone(), rows(&name)?))).collect()
}

fn model_range(model: &Rows, range: &KeyRange, reverse: bool) -> Vec<(Vec<u8>, Vec<u8>)> {
    let found = model.iter().filter(|(key, _)| range.contains(key));
    let mut found: Vec<_> = found.map(|(key, value)| (key.clone(), value.clone())).collect();
    if reverse {
        found.reverse();
    }
    found
}

#[derive(Debug, Clone)]
enum Step {
    Write(Vec<(u16, Option<usize>)>, bool),
    Get(u16),
    GetMany(Vec<u16>),
    Scan(u16, Option<u16>, bool),
    TakeSnapshot,
    DropSnapshot(usize),
    CheckSnapshot(usize, u16),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = || prop_oneof![0u16..30, 0u16..2000];
    let value = prop_oneof![6 => prop::option::of(0usize..60), 1 => (0usize..20_000).prop_map(Some)];
    let few = prop::collection::vec((key(), value.clone()), 1..4);
    let many = prop::collection::vec((key(), prop::option::of(0usize..60)), 1..120);
    let step = prop_oneof![
        8 => (few, any::<bool>()).prop_map(|(writes, sync)| Step::Write(writes, sync)),
        1 => (many, any::<bool>()).prop_map(|(writes, sync)| Step::Write(writes, sync)),
        3 => key().prop_map(Step::Get),
        1 => prop::collection::vec(key(), 0..80).prop_map(Step::GetMany),
        1 => (key(), prop::option::of(key()), any::<bool>()).prop_map(|(start, end, reverse)| Step::Scan(start, end, reverse)),
        1 => Just(Step::TakeSnapshot),
        1 => (0usize..4).prop_map(Step::DropSnapshot),
        2 => (0usize..4, key()).prop_map(|(which, key)| Step::CheckSnapshot(which, key)),
    ];
    prop::collection::vec(step, 1..60)
}

fn key_of(number: u16) -> Vec<u8> {
    format!("k{number:05}").into_bytes()
}

fn follows_the_model<S: Store>(hardship: Hardship, steps: Vec<Step>, new_store: impl Fn(Hardship) -> S) {
    let core = core_over(new_store(hardship), hardship);
    let mode = hardship.mode;
    let tree = new_table(&core, mode, "t");
    let mut model = Rows::new();
    let mut snapshots: Vec<(Arc<S::Snapshot>, Rows)> = Vec::new();
    let mut stamp = 0u8;
    for step in steps {
        match step {
            Step::Write(writes, sync) => {
                let mut set = WriteSet::default();
                for (number, len) in writes {
                    stamp = stamp.wrapping_add(1);
                    let (key, value) = (key_of(number), len.map(|len| vec![stamp; len]));
                    set.set(tree, key.clone(), value.clone().map(NewValue::lasting));
                    match value {
                        Some(value) => model.insert(key, value),
                        None => model.remove(&key),
                    };
                }
                let durability = if sync { Durability::Sync } else { Durability::Deferred };
                commit(&core, mode, set.into_ops().collect(), durability).unwrap();
            }
            Step::Get(number) => {
                let key = key_of(number);
                assert_eq!(mode.run(core.reader.get(tree, &key).finish()).unwrap(), model.get(&key).cloned());
            }
            Step::GetMany(numbers) => {
                let keys: Vec<_> = numbers.into_iter().map(key_of).collect();
                let slices: Vec<_> = keys.iter().map(Vec::as_slice).collect();
                let wanted: Vec<_> = keys.iter().map(|key| model.get(key).cloned()).collect();
                assert_eq!(mode.run(get_many(&core.reader, tree, &slices)).unwrap(), wanted);
            }
            Step::Scan(start, end, reverse) => {
                let range = KeyRange { start: key_of(start), end: end.map(key_of) };
                let snapshot = Arc::new(core.store.snapshot());
                let found = scan_all(&core, mode, snapshot, tree, range.clone(), reverse);
                assert_eq!(found, model_range(&model, &range, reverse));
            }
            Step::TakeSnapshot => snapshots.push((Arc::new(core.store.snapshot()), model.clone())),
            Step::DropSnapshot(which) if which < snapshots.len() => drop(snapshots.swap_remove(which)),
            Step::CheckSnapshot(which, number) if which < snapshots.len() => {
                let (snapshot, model) = &snapshots[which];
                let key = key_of(number);
                assert_eq!(mode.run(core.reader.get_at(snapshot, tree, &key)).unwrap(), model.get(&key).cloned());
            }
            Step::DropSnapshot(_) | Step::CheckSnapshot(..) => {}
        }
    }
    let all = KeyRange { start: Vec::new(), end: None };
    for (snapshot, model) in snapshots {
        assert_eq!(scan_all(&core, mode, snapshot, tree, all.clone(), false), model_range(&model, &all, false));
    }
    replay_gives(&core, core_over(new_store(hardship), hardship), hardship, &model);
}

/// Checks that replaying the log into an empty database gives the same content.
fn replay_gives<S: Store>(core: &TestCore<S>, copy: TestCore<S>, hardship: Hardship, model: &Rows) {
    let mut trees = HashMap::from([(TableId::CATALOG, CATALOG)]);
    for (seq, record) in core.log.records() {
        let ops = decode(&record, |table| trees.get(&table).copied()).unwrap();
        copy.committer.large.replay(seq, std::iter::once(Ok(ops.clone()))).unwrap();
        for op in ops {
            if let Op::CreateTable { name, .. } = op {
                let tree = hardship.mode.run(copy.catalog.table(&name)).unwrap();
                trees.insert(tree.table, tree);
            }
        }
    }
    let all = KeyRange { start: Vec::new(), end: None };
    let snapshot = Arc::new(copy.store.snapshot());
    let tree = hardship.mode.run(copy.catalog.table(b"t")).unwrap();
    assert_eq!(scan_all(&copy, hardship.mode, snapshot, tree, all.clone(), true), model_range(model, &all, true));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: by_depth(20, 80), max_shrink_iters: 40, ..ProptestConfig::default() })]

    #[test]
    fn a_database_does_what_a_map_does_whatever_it_waits_for(hardship in hardships(), steps in steps()) {
        follows_the_model(hardship, steps, |hardship| {
            MemoryStore::new(hardship.page_bytes, hardship.frames_max, hardship.residency)
        });
    }

    #[test]
    fn a_database_in_a_tiny_pool_does_what_a_map_does(hardship in hardships(), steps in steps()) {
        follows_the_model(Hardship { mode: Mode::Blocking, ..hardship }, steps, new_pool);
    }

    /// Futures are dropped after any number of polls: each commit is there completely or missing.
    #[test]
    fn a_dropped_future_leaves_a_whole_commit_or_none(
        seed in any::<u64>(), patience in prop::collection::vec(0usize..12, 1..40), long in any::<bool>(),
    ) {
        let hardship = Hardship { residency: Residency::Chance(seed), mode: Mode::Async, stingy_log: seed % 2 == 0, ..easy() };
        let core = new_core(hardship);
        let tree = new_table(&core, Mode::Async, "t");
        let keys: Vec<_> = (0..5u16).map(key_of).collect();
        let mut context = Context::from_waker(Waker::noop());
        for (round, polls) in patience.into_iter().enumerate() {
            let len = if long { 3000 } else { 50 };
            let value = vec![round as u8; len];
            let ops = keys.iter().map(|key| Op::Put { tree, key: key.clone(), value: value.clone(), expiry: Moment::NEVER }).collect();
            let commit = Commit::blind(ops, Durability::Sync);
            {
                let mut future = pin!(core.committer.commit(commit));
                for _ in 0..polls {
                    if future.as_mut().poll(&mut context).is_ready() {
                        break;
                    }
                }
            }
            {
                let mut future = pin!(core.reader.get(tree, &keys[round % 5]).finish());
                for _ in 0..polls {
                    if future.as_mut().poll(&mut context).is_ready() {
                        break;
                    }
                }
            }
        }
        // A commit with a dropped future is visible once the log is durable up to it.
        let probe = Op::Put { tree, key: b"probe".to_vec(), value: b"1".to_vec(), expiry: Moment::NEVER };
        commit_ok(&core, probe);
        let slices: Vec<_> = keys.iter().map(Vec::as_slice).collect();
        let values = block_on(get_many(&core.reader, tree, &slices)).unwrap();
        prop_assert!(values.iter().all(|value| *value == values[0]), "{values:?}");
    }
}

fn commit_ok<S: Store>(core: &TestCore<S>, op: Op) {
    commit(core, Mode::Blocking, vec![op], Durability::Sync).unwrap();
}

#[test]
fn a_transaction_whose_reads_were_changed_conflicts() {
    for writes in [1, SMALL_OPS_MAX as u32 + 1] {
        let core = new_core(easy());
        let tree = new_table(&core, Mode::Blocking, "t");
        put(&core, tree, "a", "1");
        let reader = TransactionState::begin(&core);
        assert_eq!(block_on(reader.get(tree, b"a")).unwrap(), Some(b"1".to_vec()));
        put(&core, tree, "a", "2");
        (0..writes).for_each(|key| reader.set(tree, &key.to_be_bytes(), Some(b"3")).unwrap());
        let result = block_on(reader.commit(Durability::Sync));
        assert!(matches!(result, Err(CommitError::Conflict(..))), "{writes} writes: {result:?}");
        assert_eq!(block_on(core.reader.get(tree, &[0; 4]).finish()).unwrap(), None);
    }
}

/// The large one is not visible when it takes effect, so it lists its keys although no transaction is open.
#[test]
fn a_large_commit_behind_one_that_is_not_durable_conflicts_with_reads_of_its_keys_and_no_others() {
    for overlaps in [false, true] {
        let core = new_core(easy());
        let tree = new_table(&core, Mode::Blocking, "t");
        let op = |key: Vec<u8>| Op::Put { tree, key, value: b"2".to_vec(), expiry: Moment::NEVER };
        // The first poll of the next makes this one durable, and not the next.
        commit(&core, Mode::Blocking, vec![op(b"a".to_vec())], Durability::Deferred).unwrap();
        let mut pending = pin!(core.committer.commit(Commit::blind(vec![op(b"sync".to_vec())], Durability::Sync)));
        assert!(matches!(pending.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Pending));
        let ops = [op(key_of(5)), op(key_of(7))];
        let mut section = core.commits.occupy(block_on(core.commits.turn().acquire(1))).unwrap();
        let position = section.append(&encode(&ops), Some(Durability::Deferred)).unwrap();
        section.apply(&ops, None, &CommitContext::default()).unwrap();
        section.finish(&ops, Durability::Deferred, position, false);
        let reader = TransactionState::begin(&core);
        let key = if overlaps { key_of(7) } else { b"a".to_vec() };
        assert_eq!(block_on(reader.get(tree, &key)).unwrap().is_none(), overlaps, "the large commit is not visible");
        reader.set(tree, b"b", Some(b"3")).unwrap();
        block_on(pending).unwrap();
        let result = block_on(reader.commit(Durability::Sync));
        assert_eq!(matches!(result, Err(CommitError::Conflict(..))), overlaps, "{result:?}");
        assert_eq!(result.is_err(), overlaps);
    }
}

#[test]
fn a_transaction_begins_and_ends_while_the_section_is_held() {
    let core = new_core(easy());
    let tree = new_table(&core, Mode::Blocking, "t");
    // This thread itself holds the section: a transaction that needed the section would wait for ever.
    let _section = core.commits.hold_section();
    let reader = TransactionState::begin(&core);
    assert_eq!(block_on(reader.get(tree, b"a")).unwrap(), None);
    drop(reader);
}

#[test]
fn a_range_that_gained_a_key_conflicts_and_the_part_not_scanned_does_not() {
    let core = new_core(easy());
    let tree = new_table(&core, Mode::Blocking, "t");
    for key in ["a", "c", "e", "g"] {
        put(&core, tree, key, "1");
    }
    let all = KeyRange { start: Vec::new(), end: None };
    for (reverse, scanned, other) in [(false, "b", "f"), (true, "f", "b")] {
        for (changed, conflict) in [(scanned, true), (other, false)] {
            let direction = if reverse { Direction::Reverse } else { Direction::Forward };
            let transaction = TransactionState::begin(&core);
            {
                let mut scan = transaction.scan(tree, all.clone(), direction).unwrap();
                for _ in 0..2 {
                    block_on(scan.next()).unwrap().unwrap();
                }
            }
            transaction.set(tree, b"z", Some(b"1")).unwrap();
            commit_ok(&core, Op::Delete { tree, key: changed.into() });
            let result = block_on(transaction.commit(Durability::Sync));
            assert_eq!(result.is_err(), conflict, "reverse {reverse}, {changed} changed");
            commit_ok(&core, Op::Delete { tree, key: b"z".to_vec() });
        }
    }
}

#[test]
fn a_transaction_reads_its_own_writes_in_order() {
    let core = new_core(easy());
    let tree = new_table(&core, Mode::Blocking, "t");
    for key in ["b", "d", "f"] {
        put(&core, tree, key, "old");
    }
    // Long ones lie elsewhere.
    let long = "x".repeat(2000);
    put(&core, tree, "c", &long);
    let transaction = TransactionState::begin(&core);
    transaction.set(tree, b"a", Some(b"new")).unwrap();
    transaction.set(tree, b"d", None).unwrap();
    transaction.set(tree, b"f", Some(b"new")).unwrap();
    transaction.set(tree, b"g", Some(b"new")).unwrap();
    for reverse in [false, true] {
        let direction = if reverse { Direction::Reverse } else { Direction::Forward };
        let mut scan = transaction.scan(tree, KeyRange { start: Vec::new(), end: None }, direction).unwrap();
        let mut found = Vec::new();
        // Given away and shown by turns.
        for turn in 0.. {
            let entry = match turn % 2 {
                0 => block_on(scan.next()).unwrap(),
                _ => block_on(scan.next_ref()).unwrap().map(|(key, value)| (key.to_vec(), value.to_vec())),
            };
            let Some((key, value)) = entry else { break };
            found.push(format!("{}={}", String::from_utf8_lossy(&key), String::from_utf8_lossy(&value)));
        }
        assert!(block_on(scan.next_ref()).unwrap().is_none(), "the end stays the end");
        if reverse {
            found.reverse();
        }
        assert_eq!(found, ["a=new", "b=old", format!("c={long}").as_str(), "f=new", "g=new"]);
    }
    block_on(transaction.commit(Durability::Sync)).unwrap();
    assert_eq!(block_on(core.reader.get(tree, b"d").finish()).unwrap(), None);
}

#[test]
fn a_deferred_commit_is_visible_at_once_and_a_sync_commit_only_when_durable() {
    let core = new_core(easy());
    let tree = new_table(&core, Mode::Blocking, "t");
    let op = |value: &str| vec![Op::Put { tree, key: b"k".to_vec(), value: value.into(), expiry: Moment::NEVER }];
    let get = || block_on(core.reader.get(tree, b"k").finish()).unwrap();
    commit(&core, Mode::Blocking, op("deferred"), Durability::Deferred).unwrap();
    assert_eq!(get(), Some(b"deferred".to_vec()));
    let pending = Commit::blind(op("sync"), Durability::Sync);
    let mut future = pin!(core.committer.commit(pending));
    // The first poll publishes and makes the deferred record durable; this one is still on its way.
    assert!(matches!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Pending));
    assert_eq!(get(), Some(b"deferred".to_vec()));
    block_on(future).unwrap();
    assert_eq!(get(), Some(b"sync".to_vec()));
}

#[test]
fn after_a_failed_log_commits_fail_and_reads_go_on() {
    let core = new_core(easy());
    let tree = new_table(&core, Mode::Blocking, "t");
    put(&core, tree, "a", "1");
    core.log.fail();
    for large in [false, true] {
        let value = vec![1; if large { 50_000 } else { 10 }];
        let op = Op::Put { tree, key: b"a".to_vec(), value, expiry: Moment::NEVER };
        let error = commit(&core, Mode::Blocking, vec![op], Durability::Sync).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Poisoned);
    }
    assert_eq!(block_on(core.reader.get(tree, b"a").finish()).unwrap(), Some(b"1".to_vec()));
}

#[test]
fn a_table_is_created_once() {
    let core = new_core(easy());
    new_table(&core, Mode::Blocking, "t");
    let again = vec![Op::CreateTable { name: b"t".to_vec(), compression: Compression::None }];
    let error = commit(&core, Mode::Blocking, again, Durability::Sync).unwrap_err();
    assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::AlreadyExists, "table \"t\" exists already"));
    let error = block_on(core.catalog.table(b"u")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

#[test]
fn transactions_on_many_threads_leave_a_history_that_could_have_been_serial() {
    // Each thread moves one unit between two of eight accounts; the sum never changes, and each reads it whole.
    let core = new_core(Hardship { residency: Residency::Chance(7), ..easy() });
    let tree = new_table(&core, Mode::Blocking, "t");
    let accounts: Vec<_> = (0..8u16).map(key_of).collect();
    for account in &accounts {
        commit_ok(
            &core,
            Op::Put { tree, key: account.clone(), value: 100u64.to_le_bytes().to_vec(), expiry: Moment::NEVER },
        );
    }
    let amount = |value: Option<Vec<u8>>| u64::from_le_bytes(value.unwrap().try_into().unwrap());
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let (core, accounts) = (&core, &accounts);
            scope.spawn(move || {
                let mut done = 0;
                while done < 60 {
                    let (from, to) = ((thread + done) % 8, (thread * 3 + done * 5 + 1) % 8);
                    let transaction = TransactionState::begin(core);
                    let mut balances = Vec::new();
                    for account in accounts {
                        balances.push(amount(block_on(transaction.get(tree, account)).unwrap()));
                    }
                    assert_eq!(balances.iter().sum::<u64>(), 800);
                    if from != to && balances[from] > 0 {
                        transaction.set(tree, &accounts[from], Some(&(balances[from] - 1).to_le_bytes())).unwrap();
                        transaction.set(tree, &accounts[to], Some(&(balances[to] + 1).to_le_bytes())).unwrap();
                    }
                    match block_on(transaction.commit(Durability::Sync)) {
                        Ok(()) => done += 1,
                        Err(CommitError::Conflict(position, _)) => {
                            block_on(core.waits.durable(position)).unwrap();
                        }
                        Err(CommitError::Failed(error)) => panic!("{error}"),
                    }
                }
            });
        }
    });
    let slices: Vec<_> = accounts.iter().map(Vec::as_slice).collect();
    let balances = block_on(get_many(&core.reader, tree, &slices)).unwrap();
    assert_eq!(balances.into_iter().map(amount).sum::<u64>(), 800);
}
