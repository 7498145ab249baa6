//! Pages that pass every check but refer to pages of other tables: a commit that follows such references must free only
//! pages that may belong to its table.

use super::*;
use crate::btree::FoundValue;
use crate::btree::overflow::LongRef;
use crate::codec::Compression;
use crate::db::calls::write_set::NewValue;
use crate::format::catalog::{encode_table, to_be_freed};
use crate::format::cell::{Cell, OverflowRef, encode_child};
use crate::format::node::Node;
use crate::format::node_mut;
use crate::format::{Moment, PageId};
use crate::pages::memory::MemoryCopies;
use crate::pages::{Attempt, PageCopies as _, Pages as _};

/// Length of a value that fits one overflow page.
const ONE_PAGE: usize = 400;
/// Length of a value that needs three overflow pages: two data pages below an index.
const THREE_PAGES: usize = 500;

/// Creates a database with a table `t`, in which references are to be forged, and another table, which would lose pages
/// if they were followed.
fn prepared() -> (TestCore<MemoryStore>, Tree, Tree) {
    let core = new_core(easy());
    let [tree, other] = ["t", "other"].map(|name| new_table(&core, Mode::Blocking, name));
    put(&core, other, "a", &"a".repeat(10));
    put_indexed(&core, other, "long", &"l".repeat(ONE_PAGE));
    (core, tree, other)
}

/// Changes pages directly, in ways that no commit does.
fn forge(core: &TestCore<MemoryStore>, change: impl FnOnce(&mut MemoryCopies) -> Attempt<()>) {
    let mut section = core.commits.occupy(block_on(core.commits.turn().acquire(1))).unwrap();
    let (position, ()) = section.edit_and_append(change).unwrap();
    section.take_effect_unseen(Durability::Deferred, position);
}

fn long_value(core: &TestCore<MemoryStore>, tree: Tree, key: &str) -> OverflowRef {
    match tree.get(&core.store.latest_published(), key.as_bytes()).unwrap() {
        Some(FoundValue::Long(LongRef::Overflow(value))) => value,
        other => panic!("{other:?} is no long value"),
    }
}

/// Checks that the other table is unchanged, and that `lost` pages belong to no table.
fn assert_spared(core: &TestCore<MemoryStore>, other: Tree, lost: u64, what: &str) {
    let content = |key: &str| block_on(core.reader.get(other, key.as_bytes()).finish()).unwrap();
    assert_eq!(content("a"), Some(vec![b'a'; 10]), "{what}");
    assert_eq!(content("long"), Some(vec![b'l'; ONE_PAGE]), "{what}");
    put(core, other, "more", "of it");
    let found = block_on(verify_tables(&core.reader.loader, &core.store.snapshot(), &Default::default())).unwrap();
    assert!(found.is_clean(), "{what}: {:?}", found.problems);
    assert_eq!(core.store.live_pages().len() as u64, found.pages + lost, "{what}: pages without an owner");
}

/// Forges the long value of key `k` in `t` so that it refers to pages of others. Yields each forgery with the number of
/// pages that it loses.
fn forged_values() -> impl Iterator<Item = (&'static str, TestCore<MemoryStore>, Tree, Tree, u64)> {
    let whats = ["the catalog's root", "a leaf of another table", "one of its pages twice", "one page, a leaf"];
    whats.into_iter().enumerate().map(|(case, what)| {
        let (core, tree, other) = prepared();
        put_indexed(&core, tree, "k", &"k".repeat(THREE_PAGES));
        let root = long_value(&core, tree, "k").root;
        forge(&core, |copies| {
            let body = copies.edit(root)?;
            let first: [u8; 6] = body[8..14].try_into().unwrap();
            match case {
                0 => body[14..20].copy_from_slice(&encode_child(PageId::CATALOG_ROOT)),
                1 => body[14..20].copy_from_slice(&encode_child(other.root)),
                2 => body[14..20].copy_from_slice(&first),
                _ => {
                    let value = OverflowRef { len_bytes: ONE_PAGE as u64, root: other.root };
                    tree.put(copies, b"k", Cell::Overflow(value)).map(drop)?;
                }
            }
            Ok(())
        });
        (what, core, tree, other, if case == 3 { 3 } else { 1 })
    })
}

#[test]
fn a_commit_that_would_free_pages_of_others_is_refused() {
    for (what, core, tree, other, _) in forged_values() {
        let value = long_value(&core, tree, "k");
        for again in 0..2 {
            for op in [
                Op::Delete { tree, key: b"k".to_vec() },
                Op::Put { tree, key: b"k".to_vec(), value: vec![again], expiry: Moment::NEVER },
                Op::Put { tree, key: b"k".to_vec(), value: vec![again; THREE_PAGES], expiry: Moment::NEVER },
            ] {
                let error = commit(&core, Mode::Blocking, vec![op], Durability::Sync).unwrap_err();
                assert_eq!((error.kind(), error.page()), (ErrorKind::Corrupt, Some(value.root)), "{what}: {error}");
            }
            // A large commit applied at once.
            let put = |number| Op::Put { tree, key: key_of(number), value: vec![7; 20], expiry: Moment::NEVER };
            let ops = std::iter::once(Op::Delete { tree, key: b"k".to_vec() }).chain((0..100).map(put)).collect();
            let error = commit(&core, Mode::Blocking, ops, Durability::Sync).unwrap_err();
            assert_eq!((error.kind(), error.page()), (ErrorKind::Corrupt, Some(value.root)), "{what}: {error}");
            assert_eq!(block_on(core.reader.get(tree, &key_of(0)).finish()).unwrap(), None, "{what}");
        }
        assert_eq!(long_value(&core, tree, "k"), value, "{what}");
        put(&core, tree, "others", "go on");
        // Without the value, the pages are as before.
        forge(&core, |copies| tree.put(copies, b"k", Cell::Inline(b"")).map(drop));
        assert_spared(&core, other, 3, what);
    }
}

#[test]
fn a_record_already_in_the_log_frees_no_pages_of_other_tables() {
    for (what, core, tree, other, lost) in forged_values() {
        let mut writes = WriteSet::default();
        // So many that they are applied in portions.
        (0..300).for_each(|number| writes.set(tree, key_of(number), Some(NewValue::lasting(vec![7; 20]))));
        writes.set(tree, b"k".to_vec(), None);
        commit(&core, Mode::Blocking, writes.into_ops().collect(), Durability::Sync).unwrap();
        assert_eq!(block_on(core.reader.get(tree, b"k").finish()).unwrap(), None, "{what}");
        assert_spared(&core, other, lost, what);
        assert_eq!(count_keys(&core, tree), 300, "{what}");
    }
}

fn count_keys(core: &TestCore<MemoryStore>, tree: Tree) -> usize {
    let all = KeyRange { start: Vec::new(), end: None };
    scan_all(core, Mode::Blocking, Arc::new(core.store.snapshot()), tree, all, false).len()
}

/// Frees all dropped tables. Returns the number of damaged pages that it met.
fn free_all(core: &TestCore<MemoryStore>, what: &str) -> u64 {
    let dropped = DroppedTables::new(core);
    for _ in 0..1000 {
        if !block_on(dropped.free_some()).unwrap_or_else(|error| panic!("{what}: {error}")) {
            return dropped.damaged();
        }
    }
    panic!("{what}: it never ends");
}

/// Pages of others that a node of a dropped table may name: the catalog's root, and the other table's leaf and page of a value.
fn foreign_pages(core: &TestCore<MemoryStore>, other: Tree) -> [PageId; 3] {
    [PageId::CATALOG_ROOT, other.root, long_value(core, other, "long").root]
}

#[test]
fn freeing_a_dropped_tables_node_that_names_pages_of_others_frees_none_of_them() {
    for (keys, levels) in [(30, 1), (900, 2)] {
        for case in 0..3 {
            let (core, tree, other) = prepared();
            let mut writes = WriteSet::default();
            (0..keys).for_each(|number| writes.set(tree, key_of(number), Some(NewValue::lasting(vec![7; 40]))));
            commit(&core, Mode::Blocking, writes.into_ops().collect(), Durability::Sync).unwrap();
            let foreign = foreign_pages(&core, other)[case];
            let what = format!("{levels} levels, page {foreign}");
            let pages = core.store.live_pages().len() as u64;
            let in_tree = block_on(verify_tables(&core.reader.loader, &core.store.snapshot(), &Default::default()))
                .unwrap()
                .pages;
            assert_eq!(in_tree, pages, "{what}");
            forge(&core, |copies| {
                let root = copies.page(tree.root)?.to_vec();
                let node = Node::open(tree.root, &root)?;
                assert_eq!(node.level(), levels, "{what}");
                let slot = node.count() - 1 - case % 2;
                assert!(node_mut::replace(tree.root, copies.edit(tree.root)?, slot, &encode_child(foreign))?);
                Ok(())
            });
            commit(&core, Mode::Blocking, vec![Op::DropTable { tree, name: b"t".to_vec() }], Durability::Sync).unwrap();
            let damaged = free_all(&core, &what);
            // The pages below the node that the foreign page replaces belong to no table now.
            let found = block_on(verify_tables(&core.reader.loader, &core.store.snapshot(), &Default::default()))
                .unwrap()
                .pages;
            let lost = core.store.live_pages().len() as u64 - found;
            assert!(lost >= 1 && (levels > 1 || lost == 1), "{what}: {lost} pages are lost");
            assert_spared(&core, other, lost, &what);
            assert_eq!(damaged, 1, "{what}");
        }
    }
}

#[test]
fn a_note_of_a_dropped_table_that_names_pages_of_others_is_removed_without_them() {
    for case in 0..3 {
        let (core, _, other) = prepared();
        let foreign = foreign_pages(&core, other)[case];
        let what = format!("page {foreign}");
        forge(&core, |copies| {
            let note = encode_table(TableId(99), foreign, Compression::None);
            CATALOG.put(copies, &to_be_freed(TableId(99)), Cell::Inline(&note)).map(drop)
        });
        free_all(&core, &what);
        assert_spared(&core, other, 0, &what);
    }
}

#[test]
fn long_values_of_a_dropped_table_free_no_pages_of_others() {
    for (what, core, tree, other, lost) in forged_values() {
        commit(&core, Mode::Blocking, vec![Op::DropTable { tree, name: b"t".to_vec() }], Durability::Sync).unwrap();
        let damaged = free_all(&core, what);
        assert_spared(&core, other, lost, what);
        assert!(damaged > 0, "{what}");
    }
}
