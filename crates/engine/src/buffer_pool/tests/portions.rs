//! Large commits, which publish several times under one number, and ids used again.

use super::*;

#[test]
fn a_page_read_under_a_guard_stays_while_a_commit_changes_it_again_and_again() {
    let world = SimWorld::new(1, SimOptions::calm());
    let pool = pool(&world, 64);
    let page = commit(&pool, 1, &[], &[1], &[]).unwrap()[0];
    commit(&pool, 1, &[(page, 2)], &[], &[]).unwrap();
    commit(&pool, 1, &[(page, 3)], &[], &[]).unwrap();
    pool.versions.history().help_epoch();
    assert_eq!(
        pool.versions.history().reclamation().version_count(),
        2,
        "the versions of the first two portions can be dropped"
    );
    let view = pool.latest_published();
    let seen = view.page(page).ok().unwrap();
    commit(&pool, 1, &[(page, 4)], &[], &[]).unwrap();
    assert_eq!(pool.versions.sweep(), 2);
    commit(&pool, 2, &[(page, 5)], &[6, 7, 8, 9], &[]).unwrap();
    assert_eq!(value(seen), 3, "the version seen under the guard");
    assert_eq!(pool.latest_published().page(page).map(value).ok(), Some(5));
}

#[test]
fn a_checkpoint_names_no_page_of_a_later_commit_although_its_id_was_another_page_before() {
    let world = SimWorld::new(1, SimOptions::calm());
    let pool = pool(&world, 64);
    let page = commit(&pool, 1, &[], &[1], &[]).unwrap()[0];
    pool.set_visible(CommitSeq(1));
    commit(&pool, 2, &[], &[2], &[page]).unwrap();
    pool.set_visible(CommitSeq(2));
    pool.versions.history().help_epoch();
    pool.versions.sweep();
    // A checkpoint begins, and has not reached the page yet.
    let _checkpoint = pool.essential_snapshot();
    assert_eq!(commit(&pool, 3, &[], &[3], &[]).unwrap(), [page], "the id is used again");
    pool.evictor.free_frames(64);
    assert!(matches!(pool.versions.pages().entry(page), Entry::OnDisk(_)));
    let place = pool.checkpoint_place(page, CommitSeq(2));
    assert!(matches!(place, CheckpointPlace::Absent), "{place:?}");
    let place = pool.checkpoint_place(page, CommitSeq(3));
    assert!(matches!(place, CheckpointPlace::OnDisk(_)), "{place:?}");
}

#[test]
fn a_checkpoint_names_no_page_that_came_and_went_in_one_later_commit() {
    let world = SimWorld::new(1, SimOptions::calm());
    let pool = pool(&world, 64);
    commit(&pool, 1, &[], &[1], &[]).unwrap();
    pool.set_visible(CommitSeq(1));
    let _checkpoint = pool.essential_snapshot();
    let page = commit(&pool, 2, &[], &[2], &[]).unwrap()[0];
    pool.evictor.free_frames(64);
    assert!(matches!(pool.versions.pages().entry(page), Entry::OnDisk(_)));
    commit(&pool, 2, &[], &[], &[page]).unwrap();
    let place = pool.checkpoint_place(page, CommitSeq(1));
    assert!(matches!(place, CheckpointPlace::Absent), "{place:?}");
    pool.versions.history().help_epoch();
    pool.versions.sweep();
    assert_eq!(commit(&pool, 2, &[], &[3], &[]).unwrap(), [page], "no reader can ask for it, so its id is free");
}
