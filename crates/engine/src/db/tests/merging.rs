//! Merging sparse leaves while no page stays in memory unless it is pinned.

use super::*;

#[test]
fn leaves_are_merged_however_few_pages_can_be_pinned_at_once() {
    for mode in [Mode::Blocking, Mode::Async] {
        let core = new_core(Hardship { residency: Residency::Requested, ..easy() });
        let tree = new_table(&core, Mode::Blocking, "t");
        let op = |number: u16, value: Option<Vec<u8>>| match value {
            Some(value) => Op::Put { tree, key: key_of(number), value, expiry: Moment::NEVER },
            None => Op::Delete { tree, key: key_of(number) },
        };
        (0..600).for_each(|number| commit_ok(&core, op(number, Some(vec![7; 100]))));
        (0..600).filter(|number| number % 2 > 0).for_each(|number| commit_ok(&core, op(number, None)));
        let (mut freed, mut start) = (0, Some(Vec::new()));
        while let Some(from) = start {
            let step = mode.run(core.sparse_leaves.merge_from(tree, &from)).unwrap();
            (freed, start) = (freed + step.freed, step.next);
        }
        assert!(freed > 30, "{freed} leaves were freed");
        let expected: Model = (0..600).step_by(2).map(|number| (key_of(number), vec![7; 100])).collect();
        assert_eq!(dropped::intact(&core, tree, "merged"), expected);
    }
}
