//! Large commits, which publish several times under one number.

use super::*;

#[test]
fn what_is_looked_at_stays_while_a_commit_changes_the_page_again_and_again() {
    let world = SimWorld::new(1, SimOptions::calm());
    let pool = pool_apart(&world, 64);
    let page = commit(&pool, 1, &[], &[1], &[]).unwrap()[0];
    commit(&pool, 1, &[(page, 2)], &[], &[]).unwrap();
    commit(&pool, 1, &[(page, 3)], &[], &[]).unwrap();
    pool.core().help_epoch();
    assert_eq!(pool.core().ripe().versions.len(), 2, "those of the first two portions can go");
    let view = pool.tip();
    let seen = view.page(page).ok().unwrap();
    commit(&pool, 1, &[(page, 4)], &[], &[]).unwrap();
    assert_eq!(pool.core().sweep_ripe(), 2);
    commit(&pool, 2, &[(page, 5)], &[6, 7, 8, 9], &[]).unwrap();
    assert_eq!(value(seen), 3, "looked at under a guard");
    assert_eq!(pool.tip().page(page).map(value).ok(), Some(5));
}
