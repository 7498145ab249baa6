//! Long values that other commits replace while a commit that will replace them, too, waits: their pages belong to
//! other values by then.

use std::time::{Duration, Instant};

use super::dropped::intact;
use super::*;
use crate::btree::FoundValue;
use crate::btree::overflow::{LongRef, is_one_page};
use crate::db::calls::overflow;
use crate::db::calls::pins::PinBudget;
use crate::db::calls::write_set::NewValue;
use crate::error::Error;
use crate::format::Moment;
use crate::format::cell::OverflowRef;
use crate::transaction::OverflowPages;

/// Length of a value that fits one overflow page.
const ONE_PAGE: usize = 400;
/// Length of a value that needs three overflow pages: two data pages below an index.
const THREE_PAGES: usize = 500;

fn set(core: &TestCore<MemoryStore>, tree: Tree, key: &str, len: usize) {
    let write = if len >= ONE_PAGE { put_indexed } else { put };
    write(core, tree, key, &key[..1].repeat(len));
}

/// Returns the reference to the long value of `k`.
fn long_value(core: &TestCore<MemoryStore>, tree: Tree) -> OverflowRef {
    let look = || tree.get(&core.store.latest_published(), b"k");
    match block_on(core.reader.loader.attempt(look)).unwrap() {
        Some(FoundValue::Long(LongRef::Overflow(value))) => value,
        other => panic!("{other:?} is no long value"),
    }
}

/// Creates a table with a long value of three pages, and other values.
fn prepared() -> (TestCore<MemoryStore>, Tree) {
    let core = new_core(easy());
    let tree = new_table(&core, Mode::Blocking, "t");
    for (key, len) in [("k", THREE_PAGES), ("x", ONE_PAGE), ("y", ONE_PAGE)] {
        set(&core, tree, key, len);
    }
    (core, tree)
}

/// Replaces `k` by a short value, lets other values take its three pages, and makes one of them the root of a new value
/// of `k`, which is `len` bytes long.
fn replace_by_others(core: &TestCore<MemoryStore>, tree: Tree, len: usize) {
    let before = long_value(core, tree);
    set(core, tree, "k", 1);
    for key in ["a", "b", "c"] {
        set(core, tree, key, ONE_PAGE);
    }
    // The store gives pages away in the order first, last, last but one …: the old root comes when the data has its pages.
    let short = if len == ONE_PAGE { vec!["a"] } else { vec!["x", "a", "y"] };
    short.into_iter().for_each(|key| set(core, tree, key, 1));
    set(core, tree, "k", len);
    let after = long_value(core, tree);
    assert_eq!((after.root, after.len_bytes), (before.root, len as u64), "the same page, now of another value");
}

/// Returns the content of the table after `k` was set to `last` and the `filler` keys were set.
fn content_after(len: usize) -> Rows {
    let rest = if len == ONE_PAGE { ONE_PAGE } else { 1 };
    let lens = [("a", 1), ("b", ONE_PAGE), ("c", ONE_PAGE), ("x", rest), ("y", rest)];
    let mut content: Rows = lens.map(|(key, len)| (key.into(), key.repeat(len).into_bytes())).into();
    content.insert(b"k".to_vec(), b"last".to_vec());
    content
}

#[test]
fn a_commit_that_waited_frees_no_pages_that_belong_to_others_by_then() {
    for len in [ONE_PAGE, THREE_PAGES] {
        let (core, tree) = prepared();
        let turn = block_on(core.commits.turn().acquire(1));
        let section = core.commits.occupy(turn).unwrap();
        let ops = vec![Op::Put { tree, key: b"k".to_vec(), value: b"last".to_vec(), expiry: Moment::NEVER }];
        let waiting = Commit::blind(ops, Durability::Sync);
        let mut waiting = pin!(core.committer.commit(waiting));
        // By now the commit has looked up the pages of the old value, and waits for the section.
        assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(section);
        replace_by_others(&core, tree, len);
        block_on(waiting).unwrap();
        assert_eq!(intact(&core, tree, &format!("{len} bytes")), content_after(len));
    }
}

#[test]
fn a_large_commit_lists_the_pages_of_a_value_again_that_was_replaced_meanwhile() {
    for len in [ONE_PAGE, THREE_PAGES] {
        let (core, tree) = prepared();
        let value = long_value(&core, tree);
        assert!(!is_one_page(512, value));
        let listed: OverflowPages =
            block_on(overflow::list(&core.reader.loader, || core.commits.last().seq, value, &mut PinBudget::default()))
                .unwrap();
        assert_eq!(listed.pages.len(), 3);
        let context = CommitContext { replaced: HashMap::from([(value.root, listed)]), ..CommitContext::default() };
        replace_by_others(&core, tree, len);
        let mut writes = WriteSet::default();
        writes.set(tree, b"k".to_vec(), Some(NewValue::lasting(b"last".to_vec())));
        let mut content = content_after(len);
        for number in 0..100 {
            writes.set(tree, key_of(number), Some(NewValue::lasting(vec![7; 20])));
            content.insert(key_of(number), vec![7; 20]);
        }
        let commit = Commit { context, ..Commit::blind(writes.into_ops().collect(), Durability::Sync) };
        block_on(core.committer.commit(commit)).unwrap();
        assert_eq!(intact(&core, tree, &format!("{len} bytes")), content);
    }
}

#[test]
fn a_commit_that_replaces_a_damaged_value_reports_it_however_often_others_commit() {
    let core = new_core(Hardship { residency: Residency::Requested, ..easy() });
    let tree = new_table(&core, Mode::Blocking, "t");
    set(&core, tree, "k", THREE_PAGES);
    // No index of a long value any more.
    core.store.damage(long_value(&core, tree).root, |body| body[0] = 0);
    let ops = vec![Op::Delete { tree, key: b"k".to_vec() }];
    let delete = Commit::blind(ops, Durability::Sync);
    let mut delete = pin!(core.committer.commit(delete));
    let begun = Instant::now();
    let outcome = loop {
        if let Poll::Ready(outcome) = delete.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            break outcome;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "it never ends");
        // Each time that it waits for a page.
        set(&core, tree, "x", 1);
    };
    let error = Error::from(outcome.unwrap_err());
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    set(&core, tree, "x", 2);
}

#[test]
fn commits_beside_each_other_that_free_long_values_all_end() {
    let core = new_core(Hardship { residency: Residency::Requested, ..easy() });
    let tree = new_table(&core, Mode::Blocking, "t");
    let (tasks, deletes) = (6, 25);
    let key = |number: usize| format!("key {number:04}");
    // The keys of one commit lie in separate leaves, which the commit requests together.
    let short = |number| Op::Put { tree, key: key(number).into(), value: b"short".to_vec(), expiry: Moment::NEVER };
    commit(&core, Mode::Blocking, (0..tasks * deletes * 20).map(short).collect(), Durability::Sync).unwrap();
    (0..tasks * deletes).for_each(|number| set(&core, tree, &key(number * 20), THREE_PAGES));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let delete = |task: usize| {
            let delete = |at: usize| Op::Delete { tree, key: key((at * tasks + task) * 20).into() };
            let ops = (0..deletes).map(delete).collect();
            let commit = Commit::blind(ops, Durability::Sync);
            let core = core.clone();
            async move { core.committer.commit(commit).await }
        };
        let deletes: Vec<_> = (0..tasks).map(|task| tokio::spawn(delete(task))).collect();
        for delete in deletes {
            delete.await.unwrap().unwrap();
        }
    });
    assert_eq!(intact(&core, tree, "after all").len(), tasks * deletes * 19);
}
