//! Dropped tables, and their readers. A reader with the handle of one meets apparent damage: its pages belong to other tables
//! by then. A snapshot without the table keeps none of its pages.

use nofault_sim::Rates;

use super::*;

#[test]
fn many_keys_of_a_dropped_table_are_not_found_where_loading_its_pages_meets_damage() {
    for mode in [Mode::Blocking, Mode::Async] {
        let hard = Hardship { frames_max: 40, ..easy() };
        let (store, world) = new_pool_in(hard);
        let core = core_over(store, hard);
        let tree = new_table(&core, Mode::Blocking, "t");
        (0..600).for_each(|number| put(&core, tree, &format!("k{number:05}"), &"v".repeat(100)));
        let _threads = (mode == Mode::Async).then(|| core.store.start_background_threads(|_| {}).unwrap());
        let before = core.store.snapshot();
        let keys: Vec<_> = (0..600).map(key_of).collect();
        let keys: Vec<_> = keys.iter().map(Vec::as_slice).collect();
        put(&core, tree, "z", "the next commit");
        // As after a drop by that commit, with the pages used again.
        core.tables.dropped(tree, b"t", core.store.visible());
        world.set_rates(Rates { flipped_read: 1.0, ..Rates::default() });
        let error = mode.run(get_many(&core.reader, tree, &keys)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        let error = mode.run(get_many_at(&core.reader, &before, tree, &keys)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }
}

#[test]
fn a_large_table_that_is_freed_after_its_drop_invalidates_no_snapshot_that_does_not_have_it() {
    let core = core_over(new_pool_keeping(easy(), 20 * 512).0, easy());
    let (stays, goes) = (new_table(&core, Mode::Blocking, "stays"), new_table(&core, Mode::Blocking, "goes"));
    put(&core, stays, "k", "v");
    (0..600).for_each(|number| put(&core, goes, &format!("k{number:05}"), &"v".repeat(100)));
    put(&core, goes, "long", &"v".repeat(20_000));
    let before = core.store.snapshot();
    commit_ok(&core, Op::DropTable { tree: goes, name: b"goes".to_vec() });
    let after = core.store.snapshot();
    put(&core, stays, "k", "w");
    let later = core.store.snapshot();
    put(&core, stays, "k", "x");
    let dropped = DroppedTables::new(&core);
    while block_on(dropped.free_some()).unwrap() {}
    let kept = core.store.stats().snapshot_bytes / 512;
    assert!(kept < 20, "{kept} versions are kept");
    for (snapshot, value) in [(&after, b"v"), (&later, b"w")] {
        assert_eq!(block_on(core.reader.get_at(snapshot, stays, b"k")).unwrap().as_deref(), Some(&value[..]));
    }
    let error = block_on(core.reader.get_at(&before, goes, b"k00001")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SnapshotTooOld, "the snapshot that has the table keeps more than it may");
}
