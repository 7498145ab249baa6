//! Values that are spread over pages of values: shared ones after a bulk load, their own after a put.

use super::dropped::intact;
use super::merging::merge_all;
use super::*;
use crate::btree::overflow::LongRef;
use crate::btree::{FoundValue, packed};
use crate::db::calls::bulk;
use crate::db::calls::loads::IterEntries;
use crate::db::calls::write_set::NewValue;
use crate::format::cell::{Cell, SpreadRef, VALUES_HEADER_BYTES};
use crate::format::{Moment, PageId};

/// Lengths that a commit gives to values: in the leaf, packed, and spread over two to twenty pages of 512 bytes.
const LENGTHS: [usize; 6] = [10, 100, 500, 700, 2000, 9000];

pub(super) fn value_of(number: u16, stamp: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 3) as u8 ^ stamp ^ number as u8).collect()
}

/// Creates a table with `count` values of a bulk load, with the length that `len` gives to each.
pub(super) fn loaded(
    hardship: Hardship,
    count: u16,
    len: impl Fn(u16) -> usize,
) -> (TestCore<MemoryStore>, Tree, Rows) {
    let core = new_core(hardship);
    let tree = new_table(&core, Mode::Blocking, "t");
    let content: Rows = (0..count).map(|number| (key_of(number), value_of(number, 0, len(number)))).collect();
    let mut entries = IterEntries::new(content.iter().map(|(key, value)| Ok((key, value, Moment::NEVER))));
    let loaded = bulk::load(&core, tree, bulk::Present::Refuse, &mut entries, &Default::default(), &|_| Ok(()));
    assert_eq!(loaded.unwrap(), u64::from(count));
    (core, tree, content)
}

fn bytes_of(content: &Rows) -> usize {
    content.iter().map(|(key, value)| key.len() + value.len()).sum()
}

#[test]
fn values_of_a_load_fill_their_pages_and_still_do_when_they_were_rewritten() {
    for len in [200, 300, 700, 1200, 9000] {
        let (core, tree, mut content) = loaded(easy(), 300, |_| len);
        // Page headers alone are a twentieth here, and a leaf has space for the ids of three of the longest values.
        let bytes_max = bytes_of(&content) * if len < 9000 { 9 } else { 10 } / 8 + 20 * 512;
        let pages_bytes = || core.store.live_pages().len() * 512;
        assert!(pages_bytes() <= bytes_max, "{} of {bytes_max} bytes for values of {len}", pages_bytes());
        for stamp in 1..4 {
            for number in 0..300 {
                let number = number * 7 % 300;
                let value = value_of(number, stamp, len);
                content.insert(key_of(number), value.clone());
                commit_ok(&core, Op::Put { tree, key: key_of(number), value, expiry: Moment::NEVER });
            }
            assert!(pages_bytes() <= bytes_max, "{} of {bytes_max} bytes, rewritten", pages_bytes());
        }
        assert!(intact(&core, tree, "rewritten") == content);
    }
}

#[test]
fn commits_of_any_size_after_a_load_do_what_a_map_does_and_lose_no_page() {
    for seed in sample(0..24, 5) {
        let mut random = fastrand::Rng::with_seed(seed);
        let residency = if seed % 3 == 0 { Residency::Requested } else { Residency::Chance(seed) };
        let frames_max = [100, 1000][seed as usize % 2];
        let mixed = |number: u16| LENGTHS[usize::from(number) * 5 % 6] + usize::from(number % 7);
        let (core, tree, mut content) =
            loaded(Hardship { residency, frames_max, stingy_log: seed % 4 == 0, ..easy() }, 60, mixed);
        for round in 0..12 {
            let mut writes = WriteSet::default();
            // Up to the size of a large commit, of which some are done in portions.
            let count = [1, 3, 40, SMALL_OPS_MAX + 40][random.usize(..4)];
            for _ in 0..count {
                let number = random.u16(..90);
                let old = content.get(&key_of(number)).map_or(0, Vec::len);
                let len = match random.u8(..5) {
                    0 => None,
                    1 | 2 if old > 0 => Some(old),
                    _ => Some(LENGTHS[random.usize(..6)]),
                };
                let value = len.map(|len| value_of(number, round, len));
                match &value {
                    Some(value) => drop(content.insert(key_of(number), value.clone())),
                    None => drop(content.remove(&key_of(number))),
                }
                writes.set(tree, key_of(number), value.map(NewValue::lasting));
            }
            let ops: Vec<_> = writes.into_ops().collect();
            commit(&core, Mode::Blocking, ops, Durability::Sync).unwrap_or_else(|error| panic!("{error}, seed {seed}"));
            if random.u8(..4) == 0 {
                merge_all(&core, Mode::Blocking, tree);
            }
        }
        assert!(intact(&core, tree, &format!("seed {seed}")) == content, "seed {seed}");
        let keys: Vec<_> = (0..90).map(key_of).collect();
        let slices: Vec<_> = keys.iter().map(Vec::as_slice).collect();
        let found = block_on(get_many(&core.reader, tree, &slices)).unwrap();
        assert!(keys.iter().zip(found).all(|(key, found)| found.as_ref() == content.get(key)), "seed {seed}");
        // A page that is still counted somewhere would stay in use.
        commit_ok(&core, Op::DropTable { tree, name: b"t".to_vec() });
        let dropped = DroppedTables::new(&core);
        while block_on(dropped.free_some()).unwrap() {}
        let left = core.store.live_pages().len();
        assert!(left <= 2, "{left} pages are left, seed {seed}");
        assert_eq!(dropped.damaged(), 0, "seed {seed}");
    }
}

#[test]
fn a_commit_that_waited_counts_the_pages_as_they_are_by_then() {
    for (len, own_op) in [(700, None), (700, Some(700)), (2000, Some(10)), (2000, Some(2000))] {
        let (core, tree, mut content) = loaded(easy(), 9, |_| len);
        let turn = block_on(core.commits.turn().acquire(1));
        let section = core.commits.occupy(turn).unwrap();
        let value = own_op.map(|len| value_of(4, 9, len));
        let op = match &value {
            Some(value) => Op::Put { tree, key: key_of(4), value: value.clone(), expiry: Moment::NEVER },
            None => Op::Delete { tree, key: key_of(4) },
        };
        let mut waiting = pin!(core.committer.commit(Commit::blind(vec![op], Durability::Sync)));
        assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(section);
        // The neighbours go, and the value itself gets exclusive pages.
        for number in [3, 5] {
            commit_ok(&core, Op::Delete { tree, key: key_of(number) });
            content.remove(&key_of(number));
        }
        commit_ok(&core, Op::Put { tree, key: key_of(4), value: value_of(4, 8, 600), expiry: Moment::NEVER });
        block_on(waiting).unwrap();
        match value {
            Some(value) => drop(content.insert(key_of(4), value)),
            None => drop(content.remove(&key_of(4))),
        }
        assert!(intact(&core, tree, &format!("{len} bytes, then {own_op:?}")) == content);
    }
}

/// Forges the value of key `k` so that it names pages that are not its own.
fn forged(case: usize) -> Option<(&'static str, TestCore<MemoryStore>, Tree, Tree)> {
    let (core, tree, _) = loaded(easy(), 9, |_| 700);
    let other = new_table(&core, Mode::Blocking, "other");
    put(&core, other, "a", &"a".repeat(10));
    put(&core, other, "long", &"l".repeat(900));
    let page = |key: &[u8]| match tree.get(&core.store.latest_published(), key).unwrap() {
        Some(FoundValue::Long(LongRef::Spread(at))) => at.cell().pages().next().unwrap(),
        found => panic!("{found:?}"),
    };
    let (own, root) = (page(&key_of(1)), PageId::CATALOG_ROOT);
    let (what, offset, pages) = match case {
        0 => ("a leaf of another table, shared", VALUES_HEADER_BYTES, [other.root, own]),
        1 => ("a leaf of another table at the end", VALUES_HEADER_BYTES, [own, other.root]),
        2 => ("the catalog's root", 0, [root, own]),
        3 => ("a leaf of another table, not shared", 0, [own, other.root]),
        4 => ("a page twice", VALUES_HEADER_BYTES, [own, own]),
        5 => ("a page with other values as its own", 0, [own, page(&key_of(5))]),
        _ => return None,
    };
    let at = SpreadRef::new(900, offset as u16, &pages);
    let mut section = core.commits.occupy(block_on(core.commits.turn().acquire(1))).unwrap();
    let (position, ()) =
        section.edit_and_append(|copies| tree.put(copies, b"k", Cell::Spread(at.cell())).map(drop)).unwrap();
    section.take_effect_unseen(Durability::Deferred, position);
    Some((what, core, tree, other))
}

#[test]
fn a_value_that_names_pages_of_others_is_neither_replaced_nor_are_they_freed() {
    for (what, core, tree, other) in (0..).map_while(forged) {
        let pages = core.store.live_pages();
        for count in [0, SMALL_OPS_MAX as u16 + 1] {
            for change in [None, Some(vec![1]), Some(vec![2; 900])] {
                let mut writes = WriteSet::default();
                (0..count).for_each(|number| writes.set(other, key_of(number), Some(NewValue::lasting(vec![7; 2]))));
                writes.set(tree, b"k".to_vec(), change.map(NewValue::lasting));
                let ops = writes.into_ops().collect();
                let error = commit(&core, Mode::Blocking, ops, Durability::Sync).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error}");
                assert_eq!(core.store.live_pages(), pages, "{what}");
            }
        }
        let found = block_on(verify_tables(&core.reader.loader, &core.store.snapshot(), &Default::default())).unwrap();
        assert!(!found.is_clean(), "{what}");
        commit_ok(&core, Op::DropTable { tree, name: b"t".to_vec() });
        let dropped = DroppedTables::new(&core);
        while block_on(dropped.free_some()).unwrap() {}
        put(&core, other, "more", "of it");
        let content = |key: &str| block_on(core.reader.get(other, key.as_bytes()).finish()).unwrap();
        assert_eq!(content("a"), Some(vec![b'a'; 10]), "{what}");
        assert_eq!(content("long"), Some(vec![b'l'; 900]), "{what}");
        let found = block_on(verify_tables(&core.reader.loader, &core.store.snapshot(), &Default::default())).unwrap();
        assert!(found.is_clean(), "{what}: {:?}", found.problems);
    }
}

#[test]
fn verification_names_a_page_whose_count_of_values_is_wrong() {
    for (live, text) in [(1, "more than one node or value"), (9, "says that 9 of its values are in use")] {
        let (core, tree, _) = loaded(easy(), 9, |_| 300);
        let found = tree.get(&core.store.latest_published(), &key_of(4)).unwrap();
        let Some(FoundValue::Long(LongRef::Spread(at))) = found else { panic!("{found:?}") };
        let page = at.cell().pages().next().unwrap();
        core.store.damage(page, |body| packed::set_live(body, live));
        let found = block_on(verify_tables(&core.reader.loader, &core.store.snapshot(), &Default::default())).unwrap();
        let named = found
            .problems
            .iter()
            .any(|problem| problem.error.page() == Some(page) && problem.error.to_string().contains(text));
        assert!(named, "{live}: {:?}", found.problems);
    }
}
