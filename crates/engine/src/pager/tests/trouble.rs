//! What a damaged page can do to the pool.

use super::*;

#[test]
fn freeing_what_does_not_exist_changes_nothing() {
    let world = SimWorld::new(1, SimOptions::calm());
    let pool = pool(&world, 64);
    let page = commit(&pool, 1, &[], &[1], &[]).unwrap()[0];
    commit(&pool, 2, &[(page, 2)], &[], &[PageId(77), PageId(1 << 32), PageId(1 << 47), PageId((1 << 48) - 1)])
        .unwrap();
    pool.set_visible(CommitSeq(2));
    assert_eq!(pool.latest().page(page).map(value).ok(), Some(2));
    assert_eq!(commit(&pool, 3, &[], &[3], &[]).unwrap(), [PageId(1)], "no id was given back that nobody had");
}
