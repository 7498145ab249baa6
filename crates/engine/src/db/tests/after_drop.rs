//! Apparent damage that a reader meets with the handle of a dropped table: its pages belong to other tables by then.

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
