//! Futures dropped at each of their waits, one after the other. In this store every page without a pin is missing, so
//! each wait is a poll, and nothing is left to chance.

use super::*;

const KEYS: u16 = 40;
/// The key with a long value.
const LONG: u16 = 7;

fn value_of(number: u16, stamp: u8) -> Vec<u8> {
    vec![stamp ^ number as u8; if number == LONG { 3000 } else { 30 }]
}

fn before() -> Rows {
    (0..KEYS).map(|number| (key_of(number), value_of(number, 1))).collect()
}

fn prepared(stingy_log: bool) -> (TestCore<MemoryStore>, Tree) {
    let core = new_core(Hardship { residency: Residency::Requested, stingy_log, ..easy() });
    let tree = new_table(&core, Mode::Blocking, "t");
    for (key, value) in before() {
        commit(&core, Mode::Blocking, vec![Op::Put { tree, key, value, expiry: Moment::NEVER }], Durability::Sync)
            .unwrap();
    }
    (core, tree)
}

/// Polls a future up to `polls` times. Returns `None` if it is still pending.
fn polled<T>(polls: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    (0..polls).find_map(|_| match future.as_mut().poll(&mut context) {
        Poll::Ready(answer) => Some(answer),
        Poll::Pending => None,
    })
}

/// Checks that nothing is pinned or locked, that every page belongs to a table, and that the database works. Returns
/// its content.
pub(super) fn intact(core: &TestCore<MemoryStore>, tree: Tree, what: &str) -> Rows {
    // A large commit with a dropped future is finished by its thread.
    drop(block_on(core.commits.turn().acquire(1)));
    // An appended commit is visible once a later commit is durable.
    put(core, tree, "z later", "commit");
    assert_eq!(core.store.pinned(), 0, "{what}: pages stay pinned");
    assert!(core.reader.loader.is_idle(), "{what}: permits were lost");
    let found = block_on(verify_tables(&core.reader.loader, &core.store.snapshot(), &Default::default())).unwrap();
    assert!(found.is_clean(), "{what}: {:?}", found.problems);
    assert_eq!(found.pages, core.store.live_pages().len() as u64, "{what}: pages without an owner");
    let all = KeyRange { start: Vec::new(), end: None };
    let mut content: Rows =
        scan_all(core, Mode::Blocking, Arc::new(core.store.snapshot()), tree, all, false).into_iter().collect();
    content.remove(&b"z later"[..]);
    content
}

/// Does `work` on a new database for each number of polls after which its future is dropped, up to the one with which
/// it ends. Each time the database must have its old content, or the content that `after` gives. Returns the number of
/// waits.
fn dropped_at_each_wait<R>(
    what: &str,
    stingy_log: bool,
    after: &Rows,
    work: impl AsyncFn(&TestCore<MemoryStore>, Tree) -> R,
    check: impl Fn(R),
) -> usize {
    for polls in 0.. {
        assert!(polls < 5000, "{what} never ends");
        let (core, tree) = prepared(stingy_log);
        let outcome = polled(polls, work(&core, tree));
        let what = format!("{what}, dropped after {polls} polls");
        let content = intact(&core, tree, &what);
        let ended = outcome.is_some();
        assert!(content == *after || (!ended && content == before()), "{what}: neither before nor after");
        if let Some(outcome) = outcome {
            check(outcome);
            return polls - 1;
        }
    }
    unreachable!("it ended")
}

#[test]
fn reads_dropped_at_each_of_their_waits_hold_nothing_and_change_nothing() {
    let same = before();
    for number in [0, LONG, KEYS - 1] {
        let get =
            async |core: &TestCore<MemoryStore>, tree: Tree| core.reader.get(tree, &key_of(number)).finish().await;
        let waits = dropped_at_each_wait(&format!("get {number}"), false, &same, get, |found| {
            assert_eq!(found.unwrap(), same.get(&key_of(number)).cloned());
        });
        assert!(waits >= 2, "{waits} waits of a get in a tree of two levels");
    }
    let keys: Vec<_> = (0..KEYS + 3).map(key_of).collect();
    let slices: Vec<_> = keys.iter().map(Vec::as_slice).collect();
    let get_many = async |core: &TestCore<MemoryStore>, tree: Tree| get_many(&core.reader, tree, &slices).await;
    dropped_at_each_wait("get_many", false, &same, get_many, |found| {
        let wanted: Vec<_> = keys.iter().map(|key| same.get(key).cloned()).collect();
        assert_eq!(found.unwrap(), wanted);
    });
}

#[test]
fn a_scan_dropped_at_each_of_its_waits_goes_on_without_losing_an_entry() {
    for direction in [Direction::Forward, Direction::Reverse] {
        for polls in (0..).step_by(by_depth(7, 1)) {
            assert!(polls < 5000, "the scan never ends");
            let (core, tree) = prepared(false);
            let all = KeyRange { start: Vec::new(), end: None };
            let mut wanted = model_range(&before(), &all, direction == Direction::Reverse).into_iter();
            let mut scan = Scan::new(core.reader.clone(), Arc::new(core.store.snapshot()), tree, all, direction);
            let (mut left, mut was_dropped) = (polls, false);
            loop {
                let mut used = 0;
                let counted = async {
                    let mut next = pin!(scan.next());
                    std::future::poll_fn(|context| {
                        used += 1;
                        next.as_mut().poll(context)
                    })
                    .await
                };
                let next = polled(left, counted);
                left -= used;
                was_dropped |= next.is_none();
                let next = next.unwrap_or_else(|| block_on(scan.next())).unwrap();
                assert!(next == wanted.next(), "{direction:?}, dropped after {polls} polls");
                if next.is_none() {
                    break;
                }
            }
            drop(scan);
            assert!(intact(&core, tree, "a scan") == before());
            if !was_dropped {
                assert!(polls > usize::from(KEYS), "a poll for each entry, and one for each wait");
                break;
            }
        }
    }
}

/// A key's number and its new value; `None` removes it.
type Change = (u16, Option<Vec<u8>>);

/// Returns new values for some keys; the long value is removed.
fn changes(stamp: u8, count: u16) -> (Vec<Change>, Rows) {
    let mut after = before();
    let change = |number: u16| {
        let value = (number != LONG).then(|| value_of(number, stamp));
        match &value {
            Some(value) => after.insert(key_of(number), value.clone()),
            None => after.remove(&key_of(number)),
        };
        (number, value)
    };
    let changes = (2..2 + count).map(change).collect();
    (changes, after)
}

fn ops(tree: Tree, changes: &[Change]) -> Vec<Op> {
    let mut set = WriteSet::default();
    changes.iter().for_each(|(number, value)| set.set(tree, key_of(*number), value.clone().map(NewValue::lasting)));
    set.into_ops().collect()
}

fn commit_of(tree: Tree, changes: &[Change]) -> Commit {
    Commit::blind(ops(tree, changes), Durability::Sync)
}

#[test]
fn a_commit_dropped_at_each_of_its_waits_has_happened_or_not() {
    // The commit also looks up the pages of the long value that it removes.
    let (changes, after) = changes(9, 6);
    for stingy_log in [false, true] {
        let work =
            async |core: &TestCore<MemoryStore>, tree: Tree| core.committer.commit(commit_of(tree, &changes)).await;
        let waits = dropped_at_each_wait("a commit", stingy_log, &after, work, |done| done.unwrap());
        assert!(waits > 5, "only {waits} waits");
    }
}

#[test]
fn a_large_commit_whose_future_is_dropped_is_finished_by_its_thread_or_never_began() {
    let (changes, after) = changes(9, 30);
    let mut seen = [0, 0];
    for polls in [0, 1, 2, 3, 10, 100, 10_000] {
        let (core, tree) = prepared(true);
        let paced = async {
            let mut commit = pin!(core.committer.commit(commit_of(tree, &changes)));
            std::future::poll_fn(|context| {
                std::thread::sleep(std::time::Duration::from_micros(100));
                commit.as_mut().poll(context)
            })
            .await
        };
        let done = polled(polls, paced);
        let content = intact(&core, tree, &format!("a large commit, dropped after {polls} polls"));
        assert!(content == after || (done.is_none() && content == before()), "dropped after {polls} polls");
        seen[usize::from(content == after)] += 1;
    }
    assert!(seen[0] > 0 && seen[1] > 0, "{seen:?} did not happen and did");
}

#[test]
fn a_transaction_dropped_at_each_of_its_waits_has_happened_or_not() {
    let (changes, after) = changes(5, 4);
    let work = async |core: &TestCore<MemoryStore>, tree: Tree| {
        let transaction = TransactionState::begin(core);
        assert_eq!(transaction.get(tree, &key_of(LONG)).await.unwrap(), Some(value_of(LONG, 1)));
        for (number, value) in &changes {
            transaction.set(tree, &key_of(*number), value.as_deref()).unwrap();
        }
        let mut seen = 0;
        {
            let mut scan =
                transaction.scan(tree, KeyRange { start: Vec::new(), end: None }, Direction::Forward).unwrap();
            while scan.next_ref().await.unwrap().is_some() {
                seen += 1;
            }
        }
        assert_eq!(seen, after.len());
        transaction.commit(Durability::Sync).await
    };
    let waits = dropped_at_each_wait("a transaction", false, &after, work, |done| done.unwrap());
    assert!(waits > 5, "only {waits} waits");
}
use crate::db::calls::write_set::NewValue;
use crate::format::Moment;
