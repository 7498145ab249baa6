//! State, log and snapshots of a node that starts after an end that power cuts at random steps seldom hit.

use std::time::Duration;

use fastrand::Rng;
use nofault_raft::{Error, GroupId};
use openraft::storage::{RaftLogStorage, RaftStateMachine};
use openraft::{Entry, EntryPayload, RaftLogReader, RaftSnapshotBuilder, Snapshot};

use crate::app::{Request, Types};
use crate::{State, block_on, calm_home, content, entry, foreign_snapshot, log_id, open, rows};

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

/// Writes a value, gives the group an id if there is one, and makes a snapshot.
async fn snapshot_of(state: &mut State, group: Option<GroupId>, value: &str) -> Snapshot<Types> {
    let put = Request::Put { key: "k".into(), value: value.into() };
    let requests = [Some(put), group.map(|group| Request::Name { group })];
    let begin = state.applied_state().await.unwrap().0.map_or(0, |id| id.index + 1);
    let entries = (begin..).zip(requests.into_iter().flatten());
    let entries: Vec<_> = entries
        .map(|(index, request)| Entry { log_id: log_id(1, index), payload: EntryPayload::Normal(request) })
        .collect();
    state.apply(entries).await.unwrap();
    state.get_snapshot_builder().await.build_snapshot().await.unwrap()
}

#[test]
fn a_snapshot_of_another_group_is_neither_offered_nor_installed() {
    block_on(async {
        let [own, other, new] = [calm_home(16), calm_home(17), calm_home(18)];
        let [id, other_id] = [GroupId::random(), GroupId::random()];
        let file = |home: &(tempfile::TempDir, _, _)| home.0.path().join("snapshots/snapshot");
        let (log, mut state) = open(&own.2, own.0.path()).await.unwrap();
        snapshot_of(&mut state, Some(id), "own").await;
        // The first id stays.
        snapshot_of(&mut state, Some(GroupId::random()), "own").await;
        assert_eq!(state.reader().group_id().await.unwrap(), Some(id));
        let (_log, mut other_state) = open(&other.2, other.0.path()).await.unwrap();
        for value in ["first", "second"] {
            snapshot_of(&mut other_state, Some(other_id), value).await;
        }
        let foreign = snapshot_of(&mut other_state, None, "third").await;
        assert!(foreign.meta.last_log_id > state.applied_state().await.unwrap().0);

        // As another node sends it, which takes this one for a member.
        let before = rows(&state.reader()).await;
        let refused = state.install_snapshot(&foreign.meta, foreign.snapshot).await.unwrap_err().to_string();
        assert!(refused.contains(&id.to_string()) && refused.contains(&other_id.to_string()), "{refused}");
        assert_eq!(rows(&state.reader()).await, before);
        assert_eq!(state.reader().group_id().await.unwrap(), Some(id));
        // Nor is one without an id: the group has had one for longer.
        let (nameless_log, mut nameless) = open(&new.2, new.0.path()).await.unwrap();
        let unknown = snapshot_of(&mut nameless, None, "unknown").await;
        state.install_snapshot(&unknown.meta, unknown.snapshot).await.unwrap_err();
        assert_eq!(rows(&state.reader()).await, before);
        drop((log, state, nameless_log, nameless));

        // As the node finds it in its folder. It is left there, since it is not the node's.
        let bytes = std::fs::read(file(&other)).unwrap();
        for home in [&own, &new] {
            std::fs::write(file(home), &bytes).unwrap();
            let refused = open(&home.2, home.0.path()).await.map(drop);
            assert!(matches!(refused, Err(Error::Foreign(_))), "{refused:?}");
            assert_eq!(std::fs::read(file(home)).unwrap(), bytes);
            std::fs::remove_file(file(home)).unwrap();
        }

        // A node without an id takes it, with the id.
        let (_log, mut joining) = open(&new.2, new.0.path()).await.unwrap();
        let foreign = other_state.get_current_snapshot().await.unwrap().unwrap();
        joining.install_snapshot(&foreign.meta, foreign.snapshot).await.unwrap();
        assert_eq!(joining.reader().group_id().await.unwrap(), Some(other_id));
        assert_eq!(rows(&joining.reader()).await, rows(&other_state.reader()).await);
    });
}

#[test]
fn a_snapshot_that_is_not_the_one_of_the_state_is_not_offered() {
    block_on(async {
        let [own, other] = [calm_home(19), calm_home(20)];
        // Groups without an id, as in earlier versions; and two nodes of one group.
        for group in [None, Some(GroupId::random())] {
            let (log, mut state) = open(&own.2, own.0.path()).await.unwrap();
            let (other_log, mut other_state) = open(&other.2, other.0.path()).await.unwrap();
            let meta = snapshot_of(&mut state, group, "own").await.meta;
            snapshot_of(&mut other_state, group, "other").await;
            drop((log, state, other_log, other_state));
            let path = own.0.path().join("snapshots/snapshot");
            let right = std::fs::read(&path).unwrap();
            std::fs::copy(other.0.path().join("snapshots/snapshot"), &path).unwrap();
            let (log, mut state) = open(&own.2, own.0.path()).await.unwrap();
            assert!(state.get_current_snapshot().await.unwrap().is_none());
            drop((log, state));
            std::fs::write(&path, right).unwrap();
            let (_log, mut state) = open(&own.2, own.0.path()).await.unwrap();
            assert_eq!(state.get_current_snapshot().await.unwrap().unwrap().meta, meta);
        }
    });
}
