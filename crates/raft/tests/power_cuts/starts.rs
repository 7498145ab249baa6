//! State, log and snapshots of a node that starts after an end that power cuts at random steps seldom hit.

use std::time::Duration;

use fastrand::Rng;
use openraft::storage::{RaftLogStorage, RaftStateMachine};
use openraft::{RaftLogReader, RaftSnapshotBuilder};

use crate::{block_on, calm_home, content, entry, foreign_snapshot, open};

#[test]
fn a_group_is_busy_until_all_that_writes_for_it_is_dropped() {
    block_on(async {
        let (folder, _world, db) = calm_home(12);
        let is_busy = async || matches!(open(&db, folder.path()).await, Err(nofault_raft::Error::Busy(_)));
        let (mut log, mut state) = open(&db, folder.path()).await.unwrap();
        assert!(is_busy().await);
        let (builder, reader) = (state.get_snapshot_builder().await, log.get_log_reader().await);
        drop((log, state));
        assert!(is_busy().await);
        drop(builder);
        assert!(is_busy().await);
        drop(reader);
        drop(open(&db, folder.path()).await.unwrap());
    });
}

#[test]
fn a_log_that_ends_before_an_installed_snapshot_counts_as_purged_when_the_node_starts() {
    block_on(async {
        let (folder, _world, db) = calm_home(13);
        let (mut log, mut state) = open(&db, folder.path()).await.unwrap();
        let mut rng = Rng::with_seed(13);
        let entries: Vec<_> = (0..10).map(|index| entry(&mut rng, 1, index)).collect();
        log.append_entries(entries.clone()).await.unwrap().await.unwrap();
        state.apply(entries).await.unwrap();
        state.get_snapshot_builder().await.build_snapshot().await.unwrap();
        let snapshot = foreign_snapshot(&mut rng, &content(&mut log, &mut state).await).await;
        let upto = snapshot.content.applied.unwrap();
        // An entry that only this node has, of a leader that no other node has heard of.
        log.append_entries(vec![entry(&mut rng, 9, 10)]).await.unwrap().await.unwrap();
        state.install_snapshot(&snapshot.snapshot.meta, snapshot.snapshot.snapshot).await.unwrap();
        assert!(log.get_log_state().await.unwrap().last_log_id > Some(upto));
        drop((log, state));
        for _ in 0..2 {
            let (mut log, mut state) = open(&db, folder.path()).await.unwrap();
            let found = log.get_log_state().await.unwrap();
            assert_eq!((found.last_purged_log_id, found.last_log_id), (Some(upto), Some(upto)));
            assert!(log.try_get_log_entries(..).await.unwrap().is_empty());
            assert_eq!(state.get_current_snapshot().await.unwrap().unwrap().meta.last_log_id, Some(upto));
        }
    });
}

#[test]
fn a_snapshot_that_finds_no_room_in_the_folder_changes_nothing() {
    block_on(async {
        let (folder, _world, db) = calm_home(14);
        let (mut log, mut state) = open(&db, folder.path()).await.unwrap();
        let mut rng = Rng::with_seed(14);
        let before = content(&mut log, &mut state).await;
        let snapshots = folder.path().join("snapshots");
        let refused = foreign_snapshot(&mut rng, &before).await.snapshot;
        std::fs::remove_dir_all(&snapshots).unwrap();
        state.install_snapshot(&refused.meta, refused.snapshot).await.unwrap_err();
        assert_eq!(content(&mut log, &mut state).await, before);
        std::fs::create_dir(&snapshots).unwrap();
        let taken = foreign_snapshot(&mut rng, &before).await;
        state.install_snapshot(&taken.snapshot.meta, taken.snapshot.snapshot).await.unwrap();
        assert_eq!(content(&mut log, &mut state).await, taken.content);
    });
}

#[test]
fn a_builder_ends_when_its_state_machine_has_stopped_within_an_installation() {
    let mut stopped = 0;
    for cut in 0..60 {
        block_on(async {
            let (folder, world, db) = calm_home(15);
            let (mut log, mut state) = open(&db, folder.path()).await.unwrap();
            let mut rng = Rng::with_seed(15);
            let snapshot = foreign_snapshot(&mut rng, &content(&mut log, &mut state).await).await.snapshot;
            world.cut_after(world.events() + cut);
            if state.install_snapshot(&snapshot.meta, snapshot.snapshot).await.is_ok() {
                return;
            }
            // The database may show a state of which the reader has not been told yet.
            let mut builder = state.get_snapshot_builder().await;
            drop(state);
            let built = tokio::time::timeout(Duration::from_secs(60), builder.build_snapshot());
            let Ok(built) = built.await else { panic!("cut after {cut} events: the builder goes on") };
            stopped += usize::from(built.is_err());
        });
    }
    assert!(stopped > 0, "no power cut came between the commit and its end");
}
