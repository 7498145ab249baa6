//! Blocks of the data file that are set aside for commits.

use super::*;
use crate::format::Moment;
use crate::pages::ReservationKind;
use crate::transaction::precedence::ClaimScope;

type WaitingCommits<'a> = Vec<std::pin::Pin<Box<dyn Future<Output = std::result::Result<(), CommitError>> + 'a>>>;

/// Starts commits of one key each, which proceed until they wait for earlier commits.
fn waiting(core: &TestCore<BufferPool>, tree: Tree) -> WaitingCommits<'_> {
    let mut commits: WaitingCommits<'_> = Vec::new();
    for number in 0..5_u8 {
        let op = Op::Put { tree, key: vec![number], value: vec![number], expiry: Moment::NEVER };
        commits.push(Box::pin(core.committer.commit(Commit::blind(vec![op], Durability::Sync))));
    }
    for _ in 0..10 {
        let mut context = Context::from_waker(Waker::noop());
        assert!(commits.iter_mut().all(|commit| commit.as_mut().poll(&mut context).is_pending()), "not the first");
    }
    commits
}

#[test]
fn a_commit_that_waits_for_its_turn_or_for_precedence_has_no_blocks_set_aside() {
    let core = core_over(new_pool(easy()), easy());
    let tree = new_table(&core, Mode::Blocking, "t");
    put(&core, tree, "a", "1");
    let spare = core.store.spare_pages();
    // The first commit has the section.
    let section = core.commits.occupy(block_on(core.commits.turn().acquire(1))).unwrap();
    let commits = waiting(&core, tree);
    assert_eq!(core.store.spare_pages(), spare, "commits that wait for their turn take blocks from the first");
    drop(section);
    commits.into_iter().for_each(|commit| block_on(commit).unwrap());
    // A transaction has precedence.
    let spare = core.store.spare_pages();
    let limit = std::time::Duration::from_secs(60);
    let claim = block_on(core.committer.claim(ClaimScope::Everything, limit)).unwrap();
    let commits = waiting(&core, tree);
    assert_eq!(core.store.spare_pages(), spare, "commits that wait for precedence take blocks from the first");
    drop(claim);
    commits.into_iter().for_each(|commit| block_on(commit).unwrap());
    assert_eq!(block_on(core.reader.get(tree, &[4]).finish()).unwrap(), Some(vec![4]));
}

#[test]
fn deferred_freeing_that_waits_for_its_turn_has_no_blocks_set_aside() {
    let core = core_over(new_pool(easy()), easy());
    let tree = new_table(&core, Mode::Blocking, "t");
    put(&core, tree, "a", "1");
    let drop_table = Op::DropTable { tree, name: b"t".to_vec() };
    commit(&core, Mode::Blocking, vec![drop_table], Durability::Sync).unwrap();
    let spare = core.store.spare_pages();
    let section = core.commits.occupy(block_on(core.commits.turn().acquire(1))).unwrap();
    let dropped = DroppedTables::new(&core);
    let mut free_some = Box::pin(dropped.free_some());
    let mut context = Context::from_waker(Waker::noop());
    assert!(free_some.as_mut().poll(&mut context).is_pending(), "it has the section");
    assert_eq!(core.store.spare_pages(), spare, "it takes blocks from the commit before it");
    drop(section);
    assert!(block_on(free_some).unwrap(), "the table's root is freed");
    assert!(!block_on(dropped.free_some()).unwrap(), "nothing is left");
}

#[test]
fn blocks_that_are_set_aside_for_one_commit_are_not_promised_to_another() {
    let core = core_over(new_pool(easy()), easy());
    assert!(core.store.grow().unwrap(), "the disk is not full");
    // Most of them: so many new pages also need nodes of the page table.
    let blocks = core.store.spare_pages() as usize / 4 * 3;
    assert!(blocks > 1000, "{blocks} spare blocks");
    let reservation = core.store.reserve_blocks(blocks, ReservationKind::Reserve).expect("they are spare");
    assert!(core.store.reserve_blocks(blocks, ReservationKind::Reserve).is_none(), "the same blocks twice");
    drop(reservation);
    assert!(core.store.reserve_blocks(blocks, ReservationKind::Reserve).is_some(), "not given back");
}
