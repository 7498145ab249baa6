//! Clusters inside one process: members come and go, a follower lags until it needs a snapshot, nodes stop and start again, and
//! the network loses and delays messages. Histories of clients are checked for linearizability.

#![expect(clippy::unwrap_used, reason = "a test stops at an unexpected error")]

#[path = "../../examples/cluster/app.rs"]
mod app;
/// The checker of the engine's own transactions.
#[path = "../../../engine/tests/isolation"]
mod isolation {
    pub(crate) mod graph;
}
mod endings;
mod network;
mod power_cuts;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use nofault::Db;
use nofault::error::ErrorKind;
use nofault::settings::Settings;
use nofault_raft::{LogStore, StateMachine, StateReader, elect_later};
use nofault_sim::depth::by_depth;
use openraft::storage::RaftStateMachine;
use openraft::{BasicNode, Config, Raft, SnapshotPolicy};

use crate::app::{Request, Response, Types, VALUES, Values};
use crate::isolation::graph::{Outcome, Step, Txn, check};
use crate::network::{Network, Weather};

/// Longer than anything here takes on a busy machine.
const SOON: Option<Duration> = Some(Duration::from_secs(60));

fn config() -> Arc<Config> {
    let config = Config {
        election_timeout_min: 300,
        election_timeout_max: 600,
        heartbeat_interval: 60,
        install_snapshot_timeout: 2000,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(100),
        max_in_snapshot_log_to_keep: 20,
        replication_lag_threshold: 50,
        snapshot_max_chunk_size: 4096,
        enable_elect: false,
        ..Config::default()
    };
    Arc::new(config.validate().unwrap())
}

/// A running node.
struct Node {
    raft: Raft<Types>,
    reader: StateReader,
    db: Db,
}

/// Nodes with their folders, running or not.
struct Cluster {
    folder: tempfile::TempDir,
    network: Network,
    config: Arc<Config>,
    nodes: BTreeMap<u64, Node>,
    /// The index of the last entry that [`Cluster::put`] has written.
    written: AtomicU64,
}

impl Cluster {
    fn new(config: Arc<Config>) -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        Self { folder, network: Network::default(), config, nodes: BTreeMap::new(), written: AtomicU64::new(0) }
    }

    fn path(&self, id: u64) -> PathBuf {
        self.folder.path().join(id.to_string())
    }

    async fn start(&mut self, id: u64) {
        let path = self.path(id);
        std::fs::create_dir_all(&path).unwrap();
        let (db, log, state) = storage(&path).await;
        let reader = state.reader();
        let raft = Raft::new(id, self.config.clone(), self.network.links_of(id), log, state).await.unwrap();
        self.network.connect(id, raft.clone());
        let elects = raft.clone();
        tokio::spawn(async move { elect_later(&elects).await });
        self.nodes.insert(id, Node { raft, reader, db });
    }

    /// Stops a node. Tasks of openraft may have its database for a moment longer; [`storage`] waits for that.
    async fn stop(&mut self, id: u64) {
        self.network.disconnect(id);
        let Node { raft, reader, db } = self.nodes.remove(&id).unwrap();
        raft.shutdown().await.unwrap();
        drop((raft, reader, db));
    }

    async fn with_members(ids: std::ops::RangeInclusive<u64>) -> Self {
        Self::with_config(ids, config()).await
    }

    async fn with_config(ids: std::ops::RangeInclusive<u64>, config: Arc<Config>) -> Self {
        let mut cluster = Self::new(config);
        for id in ids.clone() {
            cluster.start(id).await;
        }
        let members: BTreeMap<_, _> = ids.map(|id| (id, node())).collect();
        cluster.nodes[&1].raft.initialize(members).await.unwrap();
        cluster
    }

    /// Waits until these nodes agree on a leader among themselves.
    async fn leader(&self, among: &[u64]) -> u64 {
        for _ in 0..600 {
            for id in among {
                let Some(node) = self.nodes.get(id) else { continue };
                let leader = node.raft.metrics().borrow().current_leader;
                if let Some(leader) = leader.filter(|leader| among.contains(leader))
                    && self.nodes[&leader].raft.ensure_linearizable().await.is_ok()
                {
                    return leader;
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("no leader among {among:?} within half a minute");
    }

    async fn put(&self, leader: u64, key: &str, value: &str) {
        let request = Request::Put { key: key.into(), value: value.into() };
        let response = self.nodes[&leader].raft.client_write(request).await.unwrap();
        self.written.store(response.log_id.index, Ordering::SeqCst);
    }

    /// Waits until a node has applied everything that was written by [`Cluster::put`].
    async fn caught_up(&self, id: u64) {
        let written = self.written.load(Ordering::SeqCst);
        self.nodes[&id].raft.wait(SOON).applied_index_at_least(Some(written), "all that was written").await.unwrap();
    }

    async fn value(&self, id: u64, key: &str) -> Option<String> {
        let value = self.nodes[&id].reader.view().get(VALUES, key).await.unwrap();
        value.map(|value| String::from_utf8(value).unwrap())
    }
}

fn node() -> BasicNode {
    BasicNode::new("here")
}

async fn storage(path: &Path) -> (Db, LogStore<Types>, StateMachine<Types, Values>) {
    let mut opened = Db::open_or_create(path.join("db"), &Settings::small(4, 1)).await;
    for _ in 0..3000 {
        match &opened {
            Err(error) if error.kind() == ErrorKind::Busy => tokio::time::sleep(Duration::from_millis(20)).await,
            _ => break,
        }
        opened = Db::open_or_create(path.join("db"), &Settings::small(4, 1)).await;
    }
    let db = opened.unwrap();
    let (log, state) = nofault_raft::open(&db, "group", &[VALUES], path.join("snapshots"), Values).await.unwrap();
    (db, log, state)
}

#[tokio::test(flavor = "multi_thread")]
async fn members_are_added_and_removed_and_the_state_stays() {
    let mut cluster = Cluster::with_members(1..=3).await;
    let leader = cluster.leader(&[1, 2, 3]).await;
    cluster.put(leader, "apples", "12").await;
    for id in [4, 5] {
        cluster.start(id).await;
        cluster.nodes[&leader].raft.add_learner(id, node(), true).await.unwrap();
    }
    let members = |ids: &[u64]| ids.iter().copied().collect::<BTreeSet<_>>();
    cluster.nodes[&leader].raft.change_membership(members(&[1, 2, 3, 4, 5]), false).await.unwrap();
    cluster.put(leader, "pears", "3").await;
    // Two of the first three leave, the leader among them.
    let others: Vec<u64> = [1, 2, 3].into_iter().filter(|id| *id != leader).collect();
    cluster.nodes[&leader].raft.change_membership(members(&[others[0], 4, 5]), false).await.unwrap();
    for id in [leader, others[1]] {
        cluster.stop(id).await;
    }
    let leader = cluster.leader(&[others[0], 4, 5]).await;
    cluster.put(leader, "plums", "7").await;
    for id in [others[0], 4, 5] {
        cluster.caught_up(id).await;
        assert_eq!(cluster.value(id, "apples").await.as_deref(), Some("12"), "node {id}");
        assert_eq!(cluster.value(id, "pears").await.as_deref(), Some("3"), "node {id}");
        assert_eq!(cluster.value(id, "plums").await.as_deref(), Some("7"), "node {id}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_that_lags_behind_the_log_gets_a_snapshot_and_goes_on() {
    let mut cluster = Cluster::with_members(1..=3).await;
    let leader = cluster.leader(&[1, 2, 3]).await;
    let lagging = if leader == 3 { 2 } else { 3 };
    cluster.put(leader, "first", "1").await;
    cluster.caught_up(lagging).await;
    cluster.stop(lagging).await;
    for row in 0..400 {
        cluster.put(leader, &format!("row {row:04}"), &"x".repeat(100)).await;
    }
    cluster.nodes[&leader].raft.trigger().snapshot().await.unwrap();
    let purged = |cluster: &Cluster| cluster.nodes[&leader].raft.metrics().borrow().purged;
    for _ in 0..600 {
        if purged(&cluster).is_some_and(|purged| purged.index > 100) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(purged(&cluster).is_some_and(|purged| purged.index > 100), "the leader has kept its whole log");
    let parts = cluster.network.snapshot_parts();
    // Some of the parts get lost on their way.
    cluster.network.set_weather(Weather { lost: 50, delay_ms_max: 5 });
    cluster.start(lagging).await;
    cluster.caught_up(lagging).await;
    assert!(cluster.network.snapshot_parts() > parts + 3, "it came by the log");
    cluster.network.set_weather(Weather::default());
    cluster.put(leader, "last", "2").await;
    cluster.caught_up(lagging).await;
    let reader = &cluster.nodes[&lagging].reader;
    let view = reader.view();
    assert_eq!(view.snapshot().len(view.tables().table(VALUES).unwrap()).await.unwrap(), 402);
    assert_eq!(cluster.value(lagging, "last").await.as_deref(), Some("2"));
    drop(view);

    // It starts again from its own data: the snapshot that it received, its state and its log.
    cluster.stop(lagging).await;
    let (db, log, mut state) = storage(&cluster.path(lagging)).await;
    assert!(state.get_current_snapshot().await.unwrap().is_some());
    drop((db, log, state));
    cluster.start(lagging).await;
    cluster.put(leader, "after", "3").await;
    cluster.caught_up(lagging).await;
    assert_eq!(cluster.value(lagging, "after").await.as_deref(), Some("3"));
    assert_eq!(cluster.value(lagging, "row 0000").await.as_deref(), Some(&*"x".repeat(100)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_starts_again_leads_only_after_an_election() {
    let mut cluster = Cluster::with_members(1..=1).await;
    cluster.leader(&[1]).await;
    cluster.put(1, "apples", "12").await;
    let term = |cluster: &Cluster| cluster.nodes[&1].raft.metrics().borrow().current_term;
    let before = term(&cluster);
    cluster.stop(1).await;
    cluster.start(1).await;
    cluster.leader(&[1]).await;
    assert!(term(&cluster) > before, "it leads on in term {before}");
    assert_eq!(cluster.value(1, "apples").await.as_deref(), Some("12"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_cluster_starts_again_from_snapshots_and_logs() {
    let mut cluster = Cluster::with_members(1..=3).await;
    let leader = cluster.leader(&[1, 2, 3]).await;
    for row in 0..250 {
        cluster.put(leader, &format!("row {row:04}"), &row.to_string()).await;
    }
    for id in 1..=3 {
        cluster.stop(id).await;
    }
    // One has lost its snapshot: it makes another.
    std::fs::remove_dir_all(cluster.path(2).join("snapshots")).unwrap();
    for id in 1..=3 {
        cluster.start(id).await;
    }
    let leader = cluster.leader(&[1, 2, 3]).await;
    cluster.put(leader, "after", "1").await;
    for id in 1..=3 {
        cluster.caught_up(id).await;
        for row in [0, 100, 249] {
            assert_eq!(cluster.value(id, &format!("row {row:04}")).await, Some(row.to_string()), "node {id}");
        }
    }
}

/// Operations of clients as they were recorded, in ticks of one clock.
#[derive(Default)]
struct History {
    clock: AtomicU64,
    txns: Mutex<Vec<Txn>>,
}

impl History {
    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    fn record(&self, begun: u64, outcome: Outcome, steps: Vec<Step>) {
        let ended = (outcome != Outcome::Unknown).then(|| self.tick());
        let txn = Txn { begun, ended, outcome, steps };
        self.txns.lock().unwrap_or_else(PoisonError::into_inner).push(txn);
    }
}

fn elements(value: Option<&[u8]>) -> Vec<u64> {
    value.unwrap_or_default().chunks(8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap())).collect()
}

/// The time after which a client turns to another node: a leader that is cut off never answers a write.
const PATIENCE: Duration = Duration::from_millis(500);

/// Appends to lists and reads them until `done`, at the node that answered last. One that `roams` only reads, at any node, so that some
/// reads come to a leader whose place another has taken.
async fn client(
    nodes: Vec<(Raft<Types>, StateReader)>,
    history: Arc<History>,
    done: Arc<AtomicBool>,
    seed: u64,
    roams: bool,
) {
    let mut rng = Rng::with_seed(seed);
    let mut number = 0;
    let mut at = 0;
    while !done.load(Ordering::SeqCst) {
        let (raft, reader) = &nodes[at];
        let key = rng.u32(..3);
        let begun = history.tick();
        if !roams && rng.bool() {
            number += 1;
            let element = seed << 32 | number;
            let request = Request::Append { key: key.to_string(), more: element.to_le_bytes().to_vec() };
            let written = tokio::time::timeout(PATIENCE, raft.client_write(request)).await;
            match written {
                Ok(Ok(written)) => {
                    let Response(before) = written.data;
                    let read = Step::ReadList { key, elements: elements(before.as_deref()), ranged: false };
                    history.record(begun, Outcome::Committed, vec![read, Step::Append { key, element }]);
                    continue;
                }
                // Also when it names another leader: one that steps down does, with the entry in its log, which may be
                // committed yet.
                Ok(Err(_)) | Err(_) => {
                    history.record(begun, Outcome::Unknown, vec![Step::Append { key, element }]);
                }
            }
        } else {
            let read = tokio::time::timeout(PATIENCE, raft.ensure_linearizable()).await;
            if matches!(read, Ok(Ok(_))) {
                let value = reader.view().get(VALUES, key.to_string()).await.unwrap();
                let read = Step::ReadList { key, elements: elements(value.as_deref()), ranged: false };
                history.record(begun, Outcome::Committed, vec![read]);
                if !roams {
                    continue;
                }
            }
        }
        at = rng.usize(..nodes.len());
        tokio::time::sleep(Duration::from_millis(rng.u64(1..40))).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn histories_over_splits_and_lost_messages_are_linearizable() {
    let seed = std::env::var("NOFAULT_SEED").map_or(1, |seed| seed.parse().unwrap());
    println!("NOFAULT_SEED={seed}");
    let cluster = Cluster::with_members(1..=3).await;
    cluster.leader(&[1, 2, 3]).await;
    let (history, done) = (Arc::new(History::default()), Arc::new(AtomicBool::new(false)));
    let nodes: Vec<_> = cluster.nodes.values().map(|node| (node.raft.clone(), node.reader.clone())).collect();
    let clients: Vec<_> = (1..=6)
        .map(|at| tokio::spawn(client(nodes.clone(), history.clone(), done.clone(), seed * 100 + at, at > 3)))
        .collect();
    let mut rng = Rng::with_seed(seed);
    for round in 0..by_depth(2, 4) {
        cluster.network.set_weather(Weather { lost: rng.u32(..60), delay_ms_max: rng.u64(..15) });
        // The leader every other time: it is to lead no more, and hear nothing of it.
        let victim = if round % 2 == 0 { cluster.leader(&[1, 2, 3]).await } else { rng.u64(1..=3) };
        let others: Vec<u64> = (1..=3).filter(|id| *id != victim).collect();
        cluster.network.split([victim]);
        cluster.leader(&others).await;
        tokio::time::sleep(Duration::from_millis(rng.u64(300..800))).await;
        cluster.network.heal();
        tokio::time::sleep(Duration::from_millis(rng.u64(100..500))).await;
    }
    cluster.network.set_weather(Weather::default());
    cluster.leader(&[1, 2, 3]).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    done.store(true, Ordering::SeqCst);
    for client in clients {
        client.await.unwrap();
    }
    let txns = std::mem::take(&mut *history.txns.lock().unwrap());
    let committed = txns.iter().filter(|txn| txn.outcome == Outcome::Committed).count();
    let counts = check(&txns).unwrap_or_else(|anomaly| panic!("seed {seed}: {anomaly}"));
    println!("{committed} of {} operations committed; {counts:?}", txns.len());
    assert!(committed > 100, "{committed} operations are no history to learn from");
}
