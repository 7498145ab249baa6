//! Merging leaves and pages of values that deletes have left sparse.

use super::*;

/// Merges the sparse pages of values to which the leaf with key `start` refers, in groups of about `at_once`. Returns the
/// number of pages freed, and the first key behind the leaf.
pub(super) fn merge_values(
    store: &MemoryStore,
    seq: &mut CommitSeq,
    tree: Tree,
    start: &[u8],
    at_once: usize,
) -> (usize, Option<Vec<u8>>) {
    let found = drive(store, || tree.sparse_values(&store.latest(), start, at_once)).unwrap();
    let mut freed = 0;
    for group in found.groups {
        let before = store.live_pages().len();
        let fewer = commit(store, seq, |copies| tree.merge_values(copies, start, &group.sparse)).unwrap();
        assert_eq!(store.live_pages().len(), before - fewer, "{fewer} pages fewer, it says");
        assert!(fewer == 0 || fewer < group.pages.len(), "{group:?}");
        freed += fewer;
    }
    (freed, found.next)
}

/// Checks that each page of values that is shared has the values of an unbroken row of keys.
fn check_rows(store: &MemoryStore, tree: Tree) {
    let (mut pages, mut start) = (Vec::new(), Some(Vec::new()));
    while let Some(from) = start {
        let leaves;
        (leaves, start) = drive(store, || tree.leaves(&store.latest(), &from)).unwrap();
        for leaf in leaves {
            let body = drive(store, || Ok(store.latest().page(leaf)?.to_vec())).unwrap();
            let node = tree.open(leaf, &body, Some(0)).unwrap();
            for index in 0..node.count() {
                match node.cell(index).unwrap() {
                    Cell::Packed(at) => pages.push(at.page),
                    Cell::Spread(at) if !at.has_own_pages() => pages.extend(at.pages()),
                    _ => {}
                }
            }
        }
    }
    pages.dedup();
    let met: HashSet<PageId> = pages.iter().copied().collect();
    assert_eq!(met.len(), pages.len(), "a page has values of keys between which others lie elsewhere");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: by_depth(7, 20), ..ProptestConfig::default() })]

    /// However sparse deletes have left the leaves, merging leaves hardly more of them than their entries need.
    #[test]
    fn leaves_that_deletes_have_left_sparse_are_merged_into_as_few_as_are_needed(
        kept in prop::collection::btree_set(0_u32..3000, 0..600), at_once in 2_usize..30, seed in any::<u64>(),
    ) {
        let (store, mut seq, tree) = new_tree(1024, Residency::Chance(seed));
        let key = |number: u32| format!("key-{number:05}").into_bytes();
        let mut builder = Builder::new(tree, 1024, 0);
        for number in 0..3000 {
            commit(&store, &mut seq, |copies| builder.push(copies, &key(number), Cell::Inline(&[7; 30]))).unwrap();
        }
        commit(&store, &mut seq, |copies| builder.finish(copies)).unwrap();
        for number in (0..3000).filter(|number| !kept.contains(number)) {
            commit(&store, &mut seq, |copies| tree.delete(copies, &key(number))).unwrap();
        }
        let mut freed = usize::MAX;
        while freed > 0 {
            freed = 0;
            let mut start = Some(Vec::new());
            while let Some(from) = start {
                let leaves;
                (leaves, start) = drive(&store, || tree.leaves(&store.latest(), &from)).unwrap();
                for run in leaves.chunks(at_once) {
                    let (_, first) = drive(&store, || tree.use_of(&store.latest(), run)).unwrap();
                    freed += commit(&store, &mut seq, |copies| tree.merge_leaves(copies, &first, run.len())).unwrap();
                }
            }
        }
        let all = KeyRange { start: Vec::new(), end: None };
        let found: Vec<_> = scan_all(&store, tree, &all, Direction::Forward).into_iter().map(|(key, _)| key).collect();
        prop_assert_eq!(found, kept.iter().map(|number| key(*number)).collect::<Vec<_>>());
        let pages = check_tree(&store, tree);
        prop_assert_eq!(&pages, &store.live_pages());
        // 45 bytes an entry fit 19 times into 31 of 32 parts of a body; the last leaf of each run may be nearly
        // empty.
        let needed = kept.len().div_ceil(19);
        prop_assert!(pages.len() <= needed + needed / at_once.min(8) + needed / 8 + 6, "{} pages for {} entries", pages.len(), kept.len());
    }

    #[test]
    fn pages_of_values_have_an_unbroken_row_of_keys_after_any_merge(
        lens in prop::collection::vec(prop_oneof![70_usize..=128, 129_usize..=512], 20..120),
        steps in prop::collection::vec((prop::collection::vec(0_usize..120, 0..60), 1_usize..20), 1..4),
        seed in any::<u64>(),
    ) {
        let (store, mut seq, tree) = new_tree(512, Residency::Chance(seed));
        let key = |number: usize| format!("key-{number:05}").into_bytes();
        let mut model = BTreeMap::<Vec<u8>, Vec<u8>>::new();
        let value = |number: usize, len: usize| (0..len).map(|at| (at ^ number) as u8).collect();
        model.extend(lens.iter().enumerate().map(|(number, len)| (key(number), value(number, *len))));
        build(&store, &mut seq, tree, &model);
        for (deleted, at_once) in steps {
            for number in deleted {
                commit(&store, &mut seq, |copies| tree.delete(copies, &key(number))).unwrap();
                model.remove(&key(number));
            }
            let mut start = Some(Vec::new());
            while let Some(from) = start {
                (_, start) = merge_values(&store, &mut seq, tree, &from, at_once);
            }
            check_rows(&store, tree);
            for (key, value) in &model {
                let found = drive(&store, || tree.get(&store.latest(), key)).unwrap();
                prop_assert!(found.map(|found| bytes_of(&store, found)).as_ref() == Some(value), "{key:?}");
            }
            prop_assert_eq!(check_tree(&store, tree), store.live_pages());
        }
    }
}
