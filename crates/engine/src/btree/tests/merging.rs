//! Merging leaves that deletes have left sparse.

use super::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 20, ..ProptestConfig::default() })]

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
        // 45 bytes an entry fit 19 times into fifteen sixteenths of a body; the last leaf of each run may be nearly
        // empty.
        let needed = kept.len().div_ceil(19);
        prop_assert!(pages.len() <= needed + needed / at_once.min(8) + needed / 8 + 6, "{} pages for {} entries", pages.len(), kept.len());
    }
}
