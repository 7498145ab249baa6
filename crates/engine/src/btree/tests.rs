//! The tree against `BTreeMap`, over a store in which any page may be missing at any time.

use std::collections::{BTreeMap, HashSet};

use nofault_sim::depth::by_depth;
use proptest::prelude::*;

use self::long::{bytes_of, put};
use super::build::Builder;
use super::many::Lookup;
use super::write::ReplacedValue;
use super::*;
use crate::error::{ErrorKind, Result};
use crate::format::cell::{inline_value_bytes_max, spread_value_bytes_max};
use crate::format::node::key_bytes_max;
use crate::format::{CommitSeq, HEADER_BYTES};
use crate::pages::memory::{MemoryCopies, MemoryStore, MemoryView, Residency};
use crate::pages::{Store, Ticket, Wait};
use crate::sync::semaphore::Permit;

mod hostile;
mod long;
mod merging;

/// Repeats an attempt, keeping the loaded pages, until no page is missing, as the callers of the tree do.
fn drive<R>(store: &MemoryStore, mut attempt: impl FnMut() -> Attempt<R>) -> Result<R> {
    let mut tickets = Vec::new();
    for _ in 0..10_000 {
        match attempt() {
            Ok(result) => return Ok(result),
            Err(Wait::Failed(error)) => return Err(error),
            Err(wait) => {
                let mut ticket = store.request(&[wait], Permit::any());
                ticket.wait()?;
                tickets.push(ticket);
            }
        }
    }
    panic!("10,000 attempts were not enough");
}

/// Makes `change` as one commit, repeating it while pages are missing, and makes the commit visible.
fn commit<R>(
    store: &MemoryStore,
    seq: &mut CommitSeq,
    mut change: impl FnMut(&mut MemoryCopies) -> Attempt<R>,
) -> Result<R> {
    let result = drive(store, || {
        let mut copies = store.copies();
        let result = change(&mut copies)?;
        store.publish(copies, seq.next());
        Ok(result)
    })?;
    *seq = seq.next();
    store.set_visible(*seq);
    Ok(result)
}

fn new_tree(page_bytes: usize, residency: Residency) -> (MemoryStore, CommitSeq, Tree) {
    let store = MemoryStore::new(page_bytes, 64, residency);
    let mut seq = CommitSeq(0);
    let tree = commit(&store, &mut seq, |copies| Tree::create(copies, TableId(1), PageId(0))).unwrap();
    (store, seq, tree)
}

fn scan_all(store: &MemoryStore, tree: Tree, range: &KeyRange, direction: Direction) -> Vec<(Vec<u8>, FoundValue)> {
    let (mut rest, mut all, mut chunk) = (Some(range.clone()), Vec::new(), Chunk::default());
    let most = Portion { entries: 7, bytes: 250 };
    while let Some(range) = rest {
        rest = drive(store, || tree.scan(&store.latest(), &range, direction, most, 4, &mut chunk)).unwrap();
        let bytes_of = |index| match chunk.entry(index) {
            (key, ValueRef::Here(value)) => key.len() + value.len(),
            (key, ValueRef::Overflow(_)) => key.len(),
            (key, ValueRef::Spread(to)) => key.len() + to.ids().len(),
        };
        let before_the_last = (0..chunk.len().saturating_sub(1)).map(bytes_of).sum::<usize>();
        // A portion ends with a page of values, which holds seven values at most; their keys lie in the leaf.
        let page_bytes = store.latest().page_bytes();
        let bytes_max = most.bytes + page_bytes + 7 * (page_bytes / 4);
        assert!(
            chunk.len() < most.entries + 7 && before_the_last < bytes_max,
            "more than a portion: {before_the_last}"
        );
        all.extend((0..chunk.len()).map(|index| {
            let (key, cell) = chunk.entry(index);
            (key.to_vec(), FoundValue::from(cell))
        }));
    }
    all
}

/// Checks the whole tree: each node is well-formed, lies within the fences of its parent, and is reached once. Returns
/// the pages of the tree.
fn check_tree(store: &MemoryStore, tree: Tree) -> HashSet<PageId> {
    let view = store.latest();
    let (mut met, mut values) = (HashSet::new(), BTreeMap::new());
    let mut todo = vec![(tree.root, None::<u8>, Vec::new(), None::<Vec<u8>>)];
    while let Some((id, level, lower, upper)) = todo.pop() {
        assert!(met.insert(id), "page {id} is reached twice");
        let body = drive(store, || view.page(id)).unwrap();
        let node = tree.open(id, &body, level).unwrap();
        node.check().unwrap();
        assert_eq!((node.lower(), node.upper()), (&*lower, upper.as_deref()), "fences of page {id}");
        if node.level() == 0 {
            for index in 0..node.count() {
                match node.cell(index).unwrap() {
                    Cell::Packed(at) => values.entry(at.page).or_insert_with(Vec::new).push((at.offset, at.len_bytes)),
                    Cell::Spread(to) => to
                        .parts(body.len())
                        .for_each(|at| values.entry(at.page).or_insert_with(Vec::new).push((at.offset, at.len_bytes))),
                    Cell::Inline(_) | Cell::Overflow(_) => {}
                }
            }
            continue;
        }
        for index in 0..=node.count() {
            let lower = if index == 0 { lower.clone() } else { node.key(index - 1).unwrap() };
            let upper = if index == node.count() { upper.clone() } else { Some(node.key(index).unwrap()) };
            todo.push((node.child(index).unwrap(), Some(node.level() - 1), lower, upper));
        }
    }
    for (page, mut parts) in values {
        assert!(met.insert(page), "page {page} of values is reached twice");
        let body = drive(store, || view.page(page)).unwrap();
        let live = usize::from(packed::live(page, &body).unwrap());
        assert_eq!(live, parts.len(), "values of page {page} that leaves refer to");
        parts.sort_unstable();
        let ends = parts.iter().map(|(offset, len)| offset + len);
        assert!(ends.zip(&parts[1..]).all(|(end, next)| end <= next.0), "values of page {page} overlap");
    }
    met
}

#[derive(Debug, Clone)]
enum Step {
    Put(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    Scan(KeyRange, bool),
    /// Merges up to so many leaves from the key on.
    Merge(Vec<u8>, usize),
}

/// Generates keys with common prefixes, a few long ones, and repeats.
fn keys(page_bytes: usize) -> impl Strategy<Value = Vec<u8>> {
    let max = key_bytes_max(page_bytes);
    prop_oneof![
        4 => (0u16..400).prop_map(|number| format!("key-{number:05}").into_bytes()),
        2 => prop::collection::vec(0u8..3, 0..6),
        1 => (0u8..4, max / 2..=max, any::<u8>()).prop_map(|(first, len, last)| {
            let mut key = vec![first; len];
            key[len - 1] = last;
            key
        }),
    ]
}

fn steps(page_bytes: usize) -> impl Strategy<Value = Vec<Step>> {
    let keys = || keys(page_bytes);
    let inline_max = inline_value_bytes_max(page_bytes);
    let long_max = spread_value_bytes_max(page_bytes).min(20 * page_bytes);
    // Few lengths of long values, so that some are replaced by others of the same length.
    let long = prop_oneof![inline_max + 1..=long_max, (1_usize..4).prop_map(move |times| times * page_bytes)];
    let long = long.prop_map(move |len| len.min(long_max));
    let value = prop_oneof![4 => 0usize..20, 4 => 0..=inline_max, 1 => long];
    let put = (keys(), value, any::<u8>()).prop_map(|(key, len, byte)| Step::Put(key, vec![byte; len]));
    let range = (keys(), prop::option::of(keys()), any::<bool>());
    let step = prop_oneof![
        6 => put,
        4 => keys().prop_map(Step::Delete),
        1 => range.prop_map(|(start, end, reverse)| Step::Scan(KeyRange { start, end }, reverse)),
        1 => (keys(), 0_usize..20).prop_map(|(key, most)| Step::Merge(key, most)),
    ];
    prop::collection::vec(step, 1..600)
}

fn follows_the_model(page_bytes: usize, steps: Vec<Step>, residency: Residency) {
    follows_the_model_from(BTreeMap::new(), page_bytes, steps, residency);
}

/// Builds the content of an empty tree, with values that it packs and spreads over pages.
fn build(store: &MemoryStore, seq: &mut CommitSeq, tree: Tree, model: &BTreeMap<Vec<u8>, Vec<u8>>) {
    let page_bytes = store.page_bytes();
    let mut builder = Builder::new(tree, page_bytes, spread_value_bytes_max(page_bytes));
    // Portions must fit into the frames of the store.
    let most = if model.values().any(|value| value.len() > page_bytes) { 1 } else { 9 };
    for portion in model.iter().collect::<Vec<_>>().chunks(most) {
        commit(store, seq, |copies| {
            builder.begin_portion(copies)?;
            portion.iter().try_for_each(|(key, value)| builder.push(copies, key, Cell::Inline(value)))?;
            builder.end_portion(copies);
            Ok(())
        })
        .unwrap();
    }
    commit(store, seq, |copies| builder.finish(copies)).unwrap();
}

/// Checks that a tree behaves like a map: builds it from `model`, then applies `steps` to both and compares them.
fn follows_the_model_from(
    mut model: BTreeMap<Vec<u8>, Vec<u8>>,
    page_bytes: usize,
    steps: Vec<Step>,
    residency: Residency,
) {
    let (store, mut seq, tree) = new_tree(page_bytes, residency);
    build(&store, &mut seq, tree, &model);
    for step in steps {
        match step {
            Step::Put(key, value) => {
                let old = commit(&store, &mut seq, |copies| put(tree, copies, &key, &value)).unwrap();
                assert_eq!(old, model.insert(key, value).map(|_| ReplacedValue::Short));
            }
            Step::Delete(key) => {
                let old = commit(&store, &mut seq, |copies| tree.delete(copies, &key)).unwrap();
                assert_eq!(old, model.remove(&key).map(|_| ReplacedValue::Short));
                assert_eq!(drive(&store, || tree.get(&store.latest(), &key)).unwrap(), None);
            }
            Step::Merge(key, most) => {
                let before = store.live_pages().len();
                let freed = commit(&store, &mut seq, |copies| tree.merge_leaves(copies, &key, most)).unwrap();
                assert!(store.live_pages().len() <= before - freed, "{freed} leaves were freed, it says");
                merging::merge_values(&store, &mut seq, tree, &key, most);
            }
            Step::Scan(range, reverse) => {
                let wanted = model.iter().filter(|(key, _)| range.contains(key));
                let mut wanted: Vec<_> = wanted.map(|(key, value)| (key.clone(), value.clone())).collect();
                let direction = if reverse { Direction::Reverse } else { Direction::Forward };
                if reverse {
                    wanted.reverse();
                }
                let found = scan_all(&store, tree, &range, direction).into_iter();
                let found: Vec<_> = found.map(|(key, found)| (key, bytes_of(&store, found))).collect();
                assert!(found == wanted, "{range:?}");
            }
        }
    }
    for (key, value) in &model {
        let found = drive(&store, || tree.get(&store.latest(), key)).unwrap();
        assert!(found.map(|found| bytes_of(&store, found)).as_ref() == Some(value), "{key:?}");
    }
    let met = check_tree(&store, tree);
    assert_eq!(met, store.live_pages(), "pages that nothing refers to");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: by_depth(15, 60), ..ProptestConfig::default() })]

    #[test]
    fn a_tree_of_tiny_pages_does_what_a_map_does(steps in steps(512), seed in any::<u64>()) {
        follows_the_model(512, steps, Residency::Chance(seed));
    }

    /// The build packs values of these lengths into pages of values; the steps then replace them, remove them, and move
    /// them from leaf to leaf.
    #[test]
    fn a_tree_that_was_built_does_what_a_map_does(
        map in prop::collection::btree_map(keys(512), (70usize..=128, any::<u8>()), 0..200),
        steps in steps(512), seed in any::<u64>(),
    ) {
        let model = map.into_iter().map(|(key, (len, byte))| (key, vec![byte; len])).collect();
        follows_the_model_from(model, 512, steps, Residency::Chance(seed));
    }

    #[test]
    fn a_tree_does_what_a_map_does(steps in steps(4096)) {
        follows_the_model(4096, steps, Residency::Everything);
    }

    #[test]
    fn a_tree_whose_pages_are_always_missing_first_does_what_a_map_does(steps in steps(1024)) {
        follows_the_model(1024, steps, Residency::Requested);
    }

    #[test]
    fn a_tree_of_large_pages_does_what_a_map_does(steps in steps(65536), seed in any::<u64>()) {
        follows_the_model(65536, steps, Residency::Chance(seed));
    }

    #[test]
    fn a_tree_built_from_sorted_input_has_it_all(
        map in prop::collection::btree_map(keys(512), prop::collection::vec(any::<u8>(), 0..=128), 0..300),
        seed in any::<u64>(),
    ) {
        let (store, mut seq, tree) = new_tree(512, Residency::Chance(seed));
        let mut builder = Builder::new(tree, 512, spread_value_bytes_max(512));
        for (key, value) in &map {
            commit(&store, &mut seq, |copies| builder.push(copies, key, Cell::Inline(value))).unwrap();
        }
        prop_assert!(map.is_empty() || commit(&store, &mut seq, |copies| builder.push(copies, b"", Cell::Inline(b""))).is_err());
        commit(&store, &mut seq, |copies| builder.finish(copies)).unwrap();
        let all = KeyRange { start: Vec::new(), end: None };
        let found = scan_all(&store, tree, &all, Direction::Forward);
        let wanted: Vec<_> = map.into_iter().map(|(key, value)| (key, FoundValue::Inline(value))).collect();
        prop_assert_eq!(found, wanted);
        prop_assert_eq!(check_tree(&store, tree), store.live_pages());
    }

    /// Every function returns on any content of a page: the result may be wrong (a checksum guards against that), but
    /// the function never panics, hangs or leaves the page.
    #[test]
    fn arbitrary_bytes_in_a_page_are_survived(
        header in prop::collection::vec(any::<u8>(), 32), fill in any::<u64>(), kind in 0u8..5, level in 0u8..3, count in 0u16..60,
        own_table in any::<bool>(), keys in prop::collection::vec(keys(512), 1..8), sane in any::<bool>(),
    ) {
        let (store, mut seq, tree) = new_tree(512, Residency::Everything);
        for number in 0..40u32 {
            let (key, value) = (format!("key-{number:05}"), [7; 20]);
            commit(&store, &mut seq, |copies| tree.put(copies, key.as_bytes(), Cell::Inline(&value))).unwrap();
        }
        let mut random = fill | 1;
        for page in store.live_pages() {
            if page == tree.root && fill % 2 == 0 {
                continue;
            }
            store.damage(page, |body| {
                for byte in body.iter_mut().skip(if sane { 32 } else { 0 }) {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    *byte = (random >> 33) as u8 & if sane { 0x3f } else { 0xff };
                }
                if !sane {
                    body[..32].copy_from_slice(&header);
                    body[0] = kind;
                    body[1] = level;
                    body[2..4].copy_from_slice(&count.to_le_bytes());
                    if own_table {
                        body[16..24].copy_from_slice(&1u64.to_le_bytes());
                    }
                }
            });
        }
        for key in &keys {
            let _ = drive(&store, || tree.get(&store.latest(), key));
            let _ = commit(&store, &mut seq, |copies| tree.put(copies, key, Cell::Inline(&[1; 100])));
            let _ = commit(&store, &mut seq, |copies| tree.merge_leaves(copies, key, 8));
            let _ = drive(&store, || tree.random_leaf(&store.latest(), fill));
            let _ = commit(&store, &mut seq, |copies| tree.delete(copies, key));
            for direction in [Direction::Forward, Direction::Reverse] {
                let (mut rest, mut chunk) = (Some(KeyRange { start: key.clone(), end: None }), Chunk::default());
                for _ in 0..1000 {
                    let Some(range) = rest.take() else { break };
                    rest = drive(&store, || tree.scan(&store.latest(), &range, direction, Portion { entries: 9, bytes: 300 }, 4, &mut chunk)).unwrap_or(None);
                }
            }
        }
    }

}

#[test]
fn ascending_keys_leave_full_leaves() {
    let (store, mut seq, tree) = new_tree(4096, Residency::Everything);
    for number in 0..5000u64 {
        commit(&store, &mut seq, |copies| tree.put(copies, &number.to_be_bytes(), Cell::Inline(&[1; 100]))).unwrap();
    }
    // 8 bytes of key, less the shared prefix, 2 + 100 of value, 8 of slot.
    let full = 5000 * (8 + 2 + 100 + 8) / (4096 - HEADER_BYTES) + 4;
    let pages = store.live_pages().len();
    assert!(pages <= full, "{pages} pages; {full} hold it all");
}

#[test]
fn a_key_that_is_too_long_is_an_invalid_call() {
    let (store, mut seq, tree) = new_tree(4096, Residency::Everything);
    let longest = vec![1; key_bytes_max(4096)];
    commit(&store, &mut seq, |copies| tree.put(copies, &longest, Cell::Inline(b""))).unwrap();
    let longer = vec![1; key_bytes_max(4096) + 1];
    let error = commit(&store, &mut seq, |copies| tree.put(copies, &longer, Cell::Inline(b""))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidCall);
    assert_eq!(error.to_string(), "a key of 961 bytes; 960 is the most at this page size");
}

#[test]
fn a_parent_that_leads_to_itself_is_damage_and_not_a_loop() {
    let (store, mut seq, tree) = new_tree(512, Residency::Everything);
    for number in 0..100u64 {
        commit(&store, &mut seq, |copies| tree.put(copies, &number.to_be_bytes(), Cell::Inline(&[1; 40]))).unwrap();
    }
    store.damage(tree.root, |body| body[24..30].copy_from_slice(&tree.root.0.to_le_bytes()[..6]));
    let error = drive(&store, || tree.get(&store.latest(), &0u64.to_be_bytes())).unwrap_err();
    assert_eq!((error.kind(), error.page()), (ErrorKind::Corrupt, Some(tree.root)));
}

#[test]
fn a_lookup_misses_once_a_level_and_no_more() {
    let (store, mut seq, tree) = new_tree(512, Residency::Requested);
    for number in 0..300u64 {
        commit(&store, &mut seq, |copies| tree.put(copies, &number.to_be_bytes(), Cell::Inline(&[1; 40]))).unwrap();
    }
    let height = drive(&store, || {
        let view = store.latest();
        Ok(u64::from(Node::open(tree.root, &view.page(tree.root)?)?.level()) + 1)
    });
    let before = store.misses();
    drive(&store, || tree.get(&store.latest(), &7u64.to_be_bytes())).unwrap();
    assert_eq!(store.misses() - before, height.unwrap());
}

#[test]
fn keys_looked_up_side_by_side_are_found_as_each_alone() {
    // Values in their leaves, in shared value pages, and in exclusive pages.
    for (page_bytes, len, residency) in
        [(512, 40, Residency::Chance(5)), (4096, 1000, Residency::Chance(9)), (4096, 1000, Residency::Everything)]
    {
        let (store, mut seq, tree) = new_tree(page_bytes, residency);
        let mut builder = Builder::new(tree, page_bytes, spread_value_bytes_max(page_bytes));
        for number in (0..600u64).step_by(2) {
            let value = vec![number as u8; len];
            let to = OverflowRef { len_bytes: 9000, root: PageId(number) };
            let cell = if number % 50 == 0 { Cell::Overflow(to) } else { Cell::Inline(&value) };
            commit(&store, &mut seq, |copies| {
                builder.begin_portion(copies)?;
                let pushed = builder.push(copies, &number.to_be_bytes(), cell);
                builder.end_portion(copies);
                pushed
            })
            .unwrap();
        }
        commit(&store, &mut seq, |copies| builder.finish(copies)).unwrap();
        let keys: Vec<_> = (0..600u64).map(|number| (number * 7 % 600).to_be_bytes()).collect();
        for count in [1, 3, 16, 100] {
            for keys in keys.chunks(count) {
                let begin = |number: usize| Lookup { number, key: &keys[number], position: tree.start() };
                let mut under_way: Vec<_> = (0..keys.len()).map(begin).collect();
                let mut found = vec![None; keys.len()];
                drive(&store, || {
                    let (mut missed, mut wait_for, mut answers) = (Vec::new(), None, 0);
                    tree.get_each(&store.latest(), under_way.clone(), |lookup, answer| {
                        answers += 1;
                        match answer {
                            Ok(value) => found[lookup.number] = value,
                            Err(wait) => {
                                // By turns a lookup continues at its position or begins again.
                                let again = lookup.number.is_multiple_of(3);
                                let position = if again { tree.start() } else { lookup.position };
                                missed.push(Lookup { position, ..lookup });
                                wait_for = Some(wait);
                            }
                        }
                    });
                    assert_eq!(answers, under_way.len(), "each is answered once");
                    under_way = missed;
                    wait_for.map_or(Ok(()), Err)
                })
                .unwrap();
                for (key, found) in keys.iter().zip(found) {
                    assert_eq!(found, drive(&store, || tree.get(&store.latest(), key)).unwrap(), "{key:?}");
                    assert_eq!(found.is_some(), key[7].is_multiple_of(2));
                }
            }
        }
    }
}

#[test]
fn the_leaves_of_a_portion_lie_together_before_their_values() {
    let (store, mut seq, tree) = new_tree(512, Residency::Everything);
    let mut builder = Builder::new(tree, 512, spread_value_bytes_max(512));
    let mut portions = Vec::new();
    for portion in 0..4u64 {
        let before = store.live_pages();
        commit(&store, &mut seq, |copies| {
            builder.begin_portion(copies)?;
            for number in portion * 40..portion * 40 + 40 {
                builder.push(copies, &number.to_be_bytes(), Cell::Inline(&[1; 110]))?;
            }
            builder.end_portion(copies);
            Ok(())
        })
        .unwrap();
        portions.push(&store.live_pages() - &before);
    }
    commit(&store, &mut seq, |copies| builder.finish(copies)).unwrap();
    let view = store.latest();
    let is_leaf = |page: &&PageId| {
        let body = drive(&store, || view.page(**page)).unwrap();
        Node::open(**page, &body).is_ok_and(|node| node.level() == 0)
    };
    // The first portion does not know yet how many leaves there will be.
    for portion in &portions[1..] {
        let leaves: HashSet<_> = portion.iter().filter(is_leaf).copied().collect();
        let values: HashSet<_> = portion - &leaves;
        assert!(leaves.len() > 1 && values.len() > 5, "{} and {}", leaves.len(), values.len());
        let first_values = values.iter().min().unwrap();
        let inline = leaves.iter().filter(|leaf| *leaf > first_values).count();
        assert!(inline <= 1, "{inline} leaves of {} lie among the values", leaves.len());
    }
    assert_eq!(check_tree(&store, tree), store.live_pages());
}

#[test]
fn a_lookup_goes_on_where_it_missed_a_page_and_looks_at_each_only_once() {
    // Requested pages stay in memory, and no other page is ever there.
    let (store, mut seq, tree) = new_tree(512, Residency::Requested);
    let mut builder = Builder::new(tree, 512, spread_value_bytes_max(512));
    for number in 0..500u32 {
        let value = vec![number as u8; 100];
        commit(&store, &mut seq, |copies| {
            builder.begin_portion(copies)?;
            builder.push(copies, &number.to_be_bytes(), Cell::Inline(&value))
        })
        .unwrap();
    }
    commit(&store, &mut seq, |copies| builder.finish(copies)).unwrap();
    let root_level = |pages: &MemoryView| Ok(Node::open(tree.root, &pages.page(tree.root)?)?.level());
    let levels = 1 + drive(&store, || root_level(&store.latest())).unwrap();
    for number in [0u32, 77, 499, 500] {
        let (mut position, mut looks, mut held) = (tree.start(), 0, None);
        let found = loop {
            let looked =
                tree.get_from(&store.latest(), &number.to_be_bytes(), &mut position, |held| held.map(FoundValue::from));
            let wait = match looked {
                Ok(found) => break found,
                Err(wait) => wait,
            };
            let Wait::Miss(missing) = &wait else { panic!("{wait:?}") };
            let next = match position {
                Position::Node(page, _) => page,
                Position::Value(at) => at.page,
            };
            assert_eq!(next, missing.page, "the position names the missing page");
            looks += 1;
            // The page held before is no longer in memory.
            held = Some(store.request(&[wait], Permit::any()));
        };
        drop(held);
        assert_eq!(found, (number < 500).then(|| FoundValue::Inline(vec![number as u8; 100])));
        let beside = matches!(position, Position::Value(_));
        assert!(beside || number == 500, "values of 100 bytes lie beside leaves of 512");
        assert_eq!(looks, u32::from(levels) + u32::from(beside), "key {number}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: by_depth(10, 40), max_shrink_iters: 100, ..ProptestConfig::default() })]

    #[test]
    fn a_tree_built_from_sorted_input_goes_on_as_any_other(
        count in 0u16..400, len in 0usize..60, changes in prop::collection::vec((0u16..500, prop::option::of(0usize..100)), 0..200),
        seed in any::<u64>(),
    ) {
        let (store, mut seq, tree) = new_tree(512, Residency::Chance(seed));
        let mut builder = Builder::new(tree, 512, spread_value_bytes_max(512));
        let mut model = BTreeMap::new();
        for number in 0..count {
            let (key, value) = (number.to_be_bytes().to_vec(), vec![1; len]);
            commit(&store, &mut seq, |copies| builder.push(copies, &key, Cell::Inline(&value))).unwrap();
            model.insert(key, value);
        }
        commit(&store, &mut seq, |copies| builder.finish(copies)).unwrap();
        for (number, len) in changes {
            let key = number.to_be_bytes().to_vec();
            match len {
                Some(len) => {
                    commit(&store, &mut seq, |copies| tree.put(copies, &key, Cell::Inline(&vec![2; len]))).unwrap();
                    model.insert(key, vec![2; len]);
                }
                None => {
                    commit(&store, &mut seq, |copies| tree.delete(copies, &key)).unwrap();
                    model.remove(&key);
                }
            }
        }
        let all = KeyRange { start: Vec::new(), end: None };
        let wanted: Vec<_> = model.into_iter().map(|(key, value)| (key, FoundValue::Inline(value))).collect();
        prop_assert_eq!(scan_all(&store, tree, &all, Direction::Forward), wanted);
        prop_assert_eq!(check_tree(&store, tree), store.live_pages());
    }
}
