//! Values too long for a leaf.

use super::*;
use crate::btree::overflow::{LongRef, Reader, Writer, data_bytes};

/// Sets the value of a key as a commit does: overwrites it in place, or writes it first, if it is too long for a leaf.
pub(super) fn put(tree: Tree, copies: &mut MemoryCopies, key: &[u8], value: &[u8]) -> Attempt<Option<ReplacedValue>> {
    if value.len() <= inline_value_bytes_max(copies.page_bytes()) {
        return tree.put(copies, key, Cell::Inline(value));
    }
    if tree.overwrite(copies, key, value)? {
        return Ok(Some(ReplacedValue::Short));
    }
    let written = Writer::new(value).write(copies, tree, usize::MAX)?.unwrap();
    assert!(matches!(written, LongRef::Spread(_)), "{} bytes", value.len());
    tree.put(copies, key, written.cell())
}

/// Returns the bytes of a value that was found.
pub(super) fn bytes_of(store: &MemoryStore, found: FoundValue) -> Vec<u8> {
    let view = store.latest();
    match found {
        FoundValue::Inline(value) => value,
        FoundValue::Long(to) => {
            let mut reader = Reader::new(view.page_bytes(), to).unwrap();
            let (mut wanted, mut tickets) = (Vec::new(), Vec::new());
            while !reader.advance(&view, store.visible(), 3, &mut wanted).unwrap() {
                let mut ticket = store.request(&wanted, Permit::any());
                ticket.wait().unwrap();
                tickets.push(ticket);
                wanted.clear();
            }
            reader.into_value()
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: by_depth(15, 60), ..ProptestConfig::default() })]

    /// With values that the build spreads over pages which they share, or packs between such values.
    #[test]
    fn a_tree_that_was_built_from_long_values_does_what_a_map_does(
        map in prop::collection::btree_map(
            keys(512), (prop_oneof![0_usize..130, 129_usize..1500, 129..=spread_value_bytes_max(512)], any::<u8>()), 0..100,
        ),
        steps in steps(512), seed in any::<u64>(),
    ) {
        let model = map.into_iter().map(|(key, (len, byte))| (key, (0..len).map(|at| byte ^ at as u8).collect())).collect();
        follows_the_model_from(model, 512, steps, Residency::Chance(seed));
    }

    #[test]
    fn a_long_value_is_read_back_and_all_its_pages_are_known(
        len in prop_oneof![0usize..2000, 0usize..300_000], portion in 1usize..50, seed in any::<u64>(), window in 1usize..20,
    ) {
        let (store, mut seq, tree) = new_tree(512, Residency::Chance(seed));
        let before = store.live_pages();
        let value: Vec<u8> = (0..len).map(|at| (at * 31 / 7) as u8).collect();
        let mut writer = Writer::new(&value);
        let written = loop {
            if let Some(written) = commit(&store, &mut seq, |copies| writer.write(copies, tree, portion)).unwrap() {
                break written;
            }
        };
        let read = |mut reader: Reader| {
            let (mut wanted, mut rounds) = (Vec::new(), 0);
            while !reader.advance(&store.latest(), seq, window, &mut wanted).unwrap() {
                let mut ticket = store.request(&wanted, Permit::any());
                ticket.wait().unwrap();
                prop_assert!(wanted.len() <= window);
                let all_in = reader.advance(&store.latest(), seq, window, &mut Vec::new()).unwrap();
                wanted.clear();
                rounds += 1;
                prop_assert!(rounds < 10_000);
                if all_in {
                    break;
                }
            }
            Ok(reader)
        };
        prop_assert!(read(Reader::new(512, written.clone()).unwrap())?.into_value() == value);
        let pages = match &written {
            LongRef::Overflow(to) => read(Reader::listing(512, *to).unwrap())?.into_pages(),
            LongRef::Spread(to) => to.cell().pages().collect(),
        };
        let pages_set: HashSet<_> = pages.iter().copied().collect();
        prop_assert_eq!(pages_set.len(), pages.len());
        prop_assert_eq!(pages_set, &store.live_pages() - &before);
    }
}

#[test]
fn an_index_that_names_too_few_pages_is_refused_by_a_reader_that_has_looked_ahead_as_well() {
    let (store, mut seq, tree) = new_tree(512, Residency::Everything);
    let value = vec![7; 20_000];
    let mut writer = Writer::new(&value);
    let written = commit(&store, &mut seq, |copies| writer.write(copies, tree, usize::MAX)).unwrap().unwrap();
    let LongRef::Overflow(to) = written else { panic!("a value of {} bytes has an index", value.len()) };
    let reader = || Reader::new(512, LongRef::Overflow(to)).unwrap();
    let named = |reader: &mut Reader, most: usize| {
        let mut pages = Vec::new();
        assert!(reader.name_next(&store.latest(), most, &mut pages));
        pages.len()
    };
    let mut whole = reader();
    assert_eq!((named(&mut whole, 3), named(&mut whole, 1000)), (3, 20_000_usize.div_ceil(data_bytes(512))));
    assert!(whole.advance(&store.latest(), seq, 1, &mut Vec::new()).unwrap() && whole.into_value() == value);
    store.damage(to.root, |body| body[2] -= 1);
    let mut damaged = reader();
    for _ in 0..2 {
        assert_eq!(named(&mut damaged, 1000), 0);
        let error = damaged.advance(&store.latest(), seq, 1, &mut Vec::new()).unwrap_err();
        assert_eq!((error.kind(), error.page()), (ErrorKind::Corrupt, Some(to.root)));
    }
}
