//! The end of a node's core: how it is known, and the start of the next core.

use std::sync::Arc;
use std::time::Duration;

use nofault::Db;
use nofault::settings::Settings;
use nofault_raft::{end_of, ended, while_running};
use nofault_sim::{SimOptions, SimWorld};
use openraft::error::{Fatal, RaftError};
use openraft::storage::RaftStateMachine;
use openraft::{Config, Raft, RaftSnapshotBuilder};

use crate::app::{Request, VALUES, Values};
use crate::network::Network;
use crate::{Cluster, SOON, config, node};

#[tokio::test(flavor = "multi_thread")]
async fn a_call_without_an_answer_ends_when_the_node_stops() {
    let mut cluster = Cluster::with_members(1..=1).await;
    cluster.leader(&[1]).await;
    let raft = cluster.nodes[&1].raft.clone();
    let call = tokio::spawn(async move {
        let never = std::future::pending::<Result<(), RaftError<u64>>>();
        while_running(&raft, never).await
    });
    cluster.stop(1).await;
    let ended = tokio::time::timeout(Duration::from_secs(60), call).await.expect("the call goes on").unwrap();
    assert!(matches!(ended, Err(RaftError::Fatal(Fatal::Stopped))), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_core_that_has_panicked_is_known_to_have_ended_though_its_metrics_say_that_it_leads() {
    let cluster = Cluster::with_members(1..=1).await;
    cluster.leader(&[1]).await;
    let raft = &cluster.nodes[&1].raft;
    assert!(end_of(raft).is_none());
    raft.external_request(|_| panic!("a fault of the core, on purpose"));
    assert!(matches!(ended(raft).await, Fatal::Panicked));
    assert!(matches!(end_of(raft), Some(Fatal::Panicked)));
    let metrics = raft.metrics().borrow().clone();
    assert_eq!((metrics.current_leader, metrics.running_state), (Some(1), Ok(())));
    let refused = while_running(raft, raft.ensure_linearizable()).await;
    assert!(matches!(refused, Err(RaftError::Fatal(_))), "{refused:?}");
}

/// The value of a write that takes more than the disk has.
fn large() -> Vec<u8> {
    vec![7; 100_000]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_core_that_a_full_disk_has_ended_begins_again_in_the_process_when_there_is_room() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let world = SimWorld::new(21, SimOptions::calm());
    let mut db = Db::create_in(&world.directory(), &Settings::small(4, 1)).unwrap();
    let mut acknowledged = 0u64;
    for life in 0..3 {
        let (log, state) = nofault_raft::open(&db, "group", &[VALUES], folder.path(), Values).await.unwrap();
        let reader = state.reader();
        let raft = Raft::new(1, config(), Network::default().links_of(1), log, state).await.unwrap();
        raft.runtime_config().elect(true);
        if life == 0 {
            raft.initialize(std::collections::BTreeMap::from([(1, node())])).await.unwrap();
        }
        raft.wait(SOON).current_leader(1, "itself").await.unwrap();
        raft.ensure_linearizable().await.unwrap();
        for write in 0..acknowledged {
            assert_eq!(reader.view().get(VALUES, write.to_string()).await.unwrap(), Some(large()), "life {life}");
        }
        world.set_capacity(Some(world.bytes_used() + (2 << 20)));
        loop {
            let request = Request::Put { key: acknowledged.to_string(), value: large() };
            match while_running(&raft, raft.client_write(request)).await {
                Ok(_) => acknowledged += 1,
                Err(error) => {
                    println!("life {life}: {acknowledged} writes, then {error}");
                    break;
                }
            }
        }
        assert!(matches!(ended(&raft).await, Fatal::StorageError(_)), "life {life}");
        drop(raft.shutdown().await);
        drop((raft, reader));
        world.set_capacity(None);
        // Ends all handles, also the handles of openraft's tasks.
        drop(db.close().await);
        db = Db::open_in(&world.directory(), &Settings::small(4, 1)).unwrap();
    }
    assert!(acknowledged > 3, "no life has written anything");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_finds_no_room_in_the_database_waits_for_it() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let world = SimWorld::new(22, SimOptions::calm());
    let db = Db::create_in(&world.directory(), &Settings::small(4, 1)).unwrap();
    let (_log, mut state) =
        nofault_raft::open::<crate::app::Types, _>(&db, "group", &[VALUES], folder.path(), Values).await.unwrap();
    let filler = db.create_table("filler").await.unwrap();
    world.set_capacity(Some(world.bytes_used()));
    let mut rows = 0u32;
    for len in [100_000, 1_000, 10] {
        while filler.put(rows.to_be_bytes(), vec![7; len]).await.is_ok() {
            rows += 1;
        }
    }
    let mut builder = state.get_snapshot_builder().await;
    let mut built = std::pin::pin!(builder.build_snapshot());
    let waits = tokio::time::timeout(Duration::from_millis(300), built.as_mut()).await;
    assert!(waits.is_err(), "the row of the snapshot took no room: {waits:?}");
    world.set_capacity(None);
    built.await.unwrap();
    assert!(state.get_current_snapshot().await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_starts_waits_for_its_leader_as_long_as_a_follower_does() {
    let config = |enable_elect| {
        let config = Config {
            election_timeout_min: 2999,
            election_timeout_max: 3000,
            heartbeat_interval: 60,
            enable_elect,
            ..Config::default()
        };
        Arc::new(config.validate().unwrap())
    };
    let mut cluster = Cluster::with_config(1..=3, config(false)).await;
    let leader = cluster.leader(&[1, 2, 3]).await;
    cluster.put(leader, "before", "1").await;
    for id in 1..=3 {
        cluster.caught_up(id).await;
    }
    let term = |cluster: &Cluster, id| cluster.nodes[&id].raft.metrics().borrow().current_term;
    let before = term(&cluster, leader);
    for id in 1..=3 {
        cluster.stop(id).await;
    }
    // Two nodes hear nothing. The one that openraft lets campaign, and that starts last, does so first.
    cluster.start(1).await;
    cluster.network.disconnect(1);
    cluster.config = config(true);
    cluster.start(2).await;
    let campaigns = cluster.nodes[&2].raft.wait(SOON);
    campaigns.metrics(|metrics| metrics.current_term > before, "a campaign").await.unwrap();
    assert_eq!(term(&cluster, 1), before);
    // In the end it campaigns as well.
    let campaigns = cluster.nodes[&1].raft.wait(SOON);
    campaigns.metrics(|metrics| metrics.current_term > before, "a campaign").await.unwrap();
}
