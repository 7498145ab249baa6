//! Snapshots invalidated during a read: the error goes to the caller only when the snapshot is the caller's
//! own.

use super::*;

const LONG: usize = 3000;

fn prepared() -> (TestCore<MemoryStore>, Tree) {
    let core = new_core(easy());
    let tree = new_table(&core, Mode::Blocking, "t");
    put(&core, tree, "k", &"v".repeat(LONG));
    (core, tree)
}

#[test]
fn a_read_whose_own_snapshot_is_invalidated_takes_another() {
    let (core, tree) = prepared();
    let value = "v".repeat(LONG).into_bytes();
    for mode in [Mode::Async, Mode::Blocking] {
        for given_up in [1, 3, 7] {
            core.store.give_up_snapshots(given_up);
            assert_eq!(mode.run(core.reader.get(tree, b"k").finish()).unwrap().as_ref(), Some(&value));
            core.store.give_up_snapshots(given_up);
            let found = mode.run(get_many(&core.reader, tree, &[&b"k"[..], b"none"])).unwrap();
            assert_eq!(found, [Some(value.clone()), None]);
            core.store.give_up_snapshots(given_up);
            let len = |value: Option<&[u8]>| value.map(<[u8]>::len);
            assert_eq!(mode.run(core.reader.get_with(tree, b"k", len).finish()).unwrap(), Some(LONG));
        }
    }
    // Faster than it can read: it ends all the same.
    core.store.give_up_snapshots(usize::MAX);
    assert_eq!(block_on(core.reader.get(tree, b"k").finish()).unwrap_err().kind(), ErrorKind::SnapshotTooOld);
}

#[test]
fn the_holder_of_an_evicted_snapshot_gets_an_error() {
    let (core, tree) = prepared();
    core.store.give_up_snapshots(1);
    let held = core.store.snapshot();
    let error = block_on(core.reader.get_at(&held, tree, b"k")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SnapshotTooOld);
}

#[test]
fn an_invalidated_snapshot_is_not_reported_as_damage() {
    let (core, _) = prepared();
    core.store.give_up_snapshots(1);
    let found = block_on(verify_tables(&core.reader.loader, &core.store.snapshot(), &Default::default()));
    assert_eq!(found.unwrap_err().kind(), ErrorKind::SnapshotTooOld);
}
