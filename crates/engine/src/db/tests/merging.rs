//! Merging sparse leaves and pages of values, also while no page stays in memory unless it is pinned.

use super::spread::{loaded, value_of};
use super::*;
use crate::db::upkeep::sparse_leaves::{MergePlace, SparseLeaves};

/// Merges all sparse leaves and pages of values of a table. Returns the number of pages freed.
pub(super) fn merge_all<S: Store>(core: &TestCore<S>, mode: Mode, tree: Tree) -> u64 {
    let (leaves, mut freed, mut start) = (SparseLeaves::new(core), 0, Some(MergePlace::default()));
    while let Some(from) = start {
        let step = mode.run(leaves.merge_from(tree, &from)).unwrap();
        assert_eq!(step.without_free_blocks, 0);
        (freed, start) = (freed + step.freed, step.next);
    }
    freed
}

fn delete_all_but<S: Store>(core: &TestCore<S>, tree: Tree, count: u16, is_kept: impl Fn(u16) -> bool) {
    let deleted = (0..count).filter(|number| !is_kept(*number));
    deleted.for_each(|number| commit_ok(core, Op::Delete { tree, key: key_of(number) }));
}

fn put_all<S: Store>(core: &TestCore<S>, tree: Tree, count: u16, value_bytes: usize) {
    for number in 0..count {
        commit_ok(core, Op::Put { tree, key: key_of(number), value: vec![7; value_bytes], expiry: Moment::NEVER });
    }
}

#[test]
fn leaves_are_merged_however_few_pages_can_be_pinned_at_once() {
    for mode in [Mode::Blocking, Mode::Async] {
        let core = new_core(Hardship { residency: Residency::Requested, ..easy() });
        let tree = new_table(&core, Mode::Blocking, "t");
        put_all(&core, tree, 600, 100);
        delete_all_but(&core, tree, 600, |number| number % 2 == 0);
        let freed = merge_all(&core, mode, tree);
        assert!(freed > 30, "{freed} leaves were freed");
        let expected: Rows = (0..600).step_by(2).map(|number| (key_of(number), vec![7; 100])).collect();
        assert_eq!(dropped::intact(&core, tree, "merged"), expected);
    }
}

#[test]
fn leaves_of_which_half_is_left_become_nearly_full() {
    let core = new_core(easy());
    let tree = new_table(&core, Mode::Blocking, "t");
    put_all(&core, tree, 8000, 8);
    delete_all_but(&core, tree, 8000, |number| number % 2 == 0);
    merge_all(&core, Mode::Blocking, tree);
    let leaves = SparseLeaves::new(&core);
    let shares = (0..20).map(|seed| Mode::Blocking.run(leaves.share_in_use(tree, seed)).unwrap());
    let share = shares.sum::<f64>() / 20.0;
    assert!(share > 0.91, "{share} of the leaves is in use");
}

#[test]
fn pages_of_values_of_which_little_is_left_are_merged_and_readers_see_no_difference() {
    for residency in [Residency::Everything, Residency::Requested] {
        let (core, tree, before) = loaded(Hardship { residency, ..easy() }, 1200, |_| 100);
        delete_all_but(&core, tree, 1200, |number| number % 10 == 0);
        let pages = core.store.live_pages().len();
        let snapshot = Arc::new(core.store.snapshot());
        let freed = merge_all(&core, Mode::Blocking, tree) as usize;
        let left: Rows = before.into_iter().filter(|(key, _)| key.ends_with(b"0")).collect();
        let all = KeyRange { start: Vec::new(), end: None };
        let seen = scan_all(&core, Mode::Blocking, snapshot.clone(), tree, all.clone(), false);
        assert!(seen == model_range(&left, &all, false), "the snapshot has changed");
        drop(snapshot);
        assert!(dropped::intact(&core, tree, "merged") == left);
        // Four values to a page, and 17 references to a leaf.
        let live = core.store.live_pages().len();
        assert!(
            live <= pages - freed && live < 120 / 4 * 4 / 3 + 120 / 17 + 5,
            "{pages} pages, {freed} freed, {live} left"
        );
        assert_eq!(merge_all(&core, Mode::Blocking, tree), 0, "merged pages are not merged again");
    }
}

/// A value replaced by one of the same length stays in its page.
#[test]
fn merged_values_are_replaced_in_their_pages() {
    let (core, tree, _) = loaded(easy(), 200, |_| 100);
    delete_all_but(&core, tree, 200, |number| number % 5 == 0);
    assert!(merge_all(&core, Mode::Blocking, tree) > 20);
    let pages = core.store.live_pages().len();
    let mut expected = Rows::new();
    for number in (0..200).step_by(5) {
        let value = value_of(number, 9, 100);
        expected.insert(key_of(number), value.clone());
        commit_ok(&core, Op::Put { tree, key: key_of(number), value, expiry: Moment::NEVER });
    }
    assert!(dropped::intact(&core, tree, "replaced") == expected);
    assert_eq!(core.store.live_pages().len(), pages);
}
