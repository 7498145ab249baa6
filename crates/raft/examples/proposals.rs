//! How many proposals a second a cluster commits, durably, with 64 in flight: one node, and three nodes in this process, whose messages
//! are calls. So it measures storage and openraft, and no network.
//!
//! Run with `cargo run --release -p nofault-raft --example proposals FOLDER [SECONDS]`; all nodes share the disk of the folder.

#[path = "cluster/app.rs"]
mod app;

use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nofault::Db;
use nofault::settings::Settings;
use openraft::error::{InstallSnapshotError, RPCError, RaftError, RemoteError, Unreachable};
use openraft::network::RPCOption;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse, VoteRequest,
    VoteResponse,
};
use openraft::{BasicNode, Config, Raft, RaftNetwork, RaftNetworkFactory};

use crate::app::{Request, Types, VALUES, Values};

const IN_FLIGHT: u64 = 64;
const VALUE_BYTES: usize = 256;

type Nodes = Arc<Mutex<BTreeMap<u64, Raft<Types>>>>;
type RpcFailure<E = openraft::error::Infallible> = RPCError<u64, BasicNode, RaftError<u64, E>>;

/// Calls the node that a message is for.
#[derive(Clone)]
struct Direct {
    nodes: Nodes,
    target: u64,
}

impl RaftNetworkFactory<Types> for Direct {
    type Network = Self;

    async fn new_client(&mut self, target: u64, _node: &BasicNode) -> Self {
        Self { nodes: self.nodes.clone(), target }
    }
}

#[expect(clippy::result_large_err, reason = "the errors are those of openraft's trait")]
impl Direct {
    fn node<E: Error + 'static>(&self) -> Result<Raft<Types>, RpcFailure<E>> {
        let node = self.nodes.lock().unwrap_or_else(PoisonError::into_inner).get(&self.target).cloned();
        node.ok_or_else(|| Unreachable::new(&std::io::Error::other("not started yet")).into())
    }

    fn answer<T, E: Error + 'static>(&self, answer: Result<T, RaftError<u64, E>>) -> Result<T, RpcFailure<E>> {
        answer.map_err(|error| RemoteError::new(self.target, error).into())
    }
}

impl RaftNetwork<Types> for Direct {
    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        _: RPCOption,
    ) -> Result<AppendEntriesResponse<u64>, RpcFailure> {
        self.answer(self.node()?.append_entries(request).await)
    }

    async fn vote(&mut self, request: VoteRequest<u64>, _: RPCOption) -> Result<VoteResponse<u64>, RpcFailure> {
        self.answer(self.node()?.vote(request).await)
    }

    async fn install_snapshot(
        &mut self,
        request: InstallSnapshotRequest<Types>,
        _: RPCOption,
    ) -> Result<InstallSnapshotResponse<u64>, RpcFailure<InstallSnapshotError>> {
        self.answer(self.node()?.install_snapshot(request).await)
    }
}

async fn start(id: u64, path: &Path, nodes: &Nodes) -> Result<Db, Box<dyn Error>> {
    std::fs::create_dir_all(path)?;
    let settings = Settings { cache_bytes: 128 << 20, log_bytes: 128 << 20, ..Settings::default() };
    let db = Db::create(path.join("db"), &settings).await?;
    let (log, state) = nofault_raft::open(&db, "values", &[VALUES], path.join("snapshots"), Values).await?;
    let config =
        Config { election_timeout_min: 1000, election_timeout_max: 2000, heartbeat_interval: 200, ..Config::default() };
    let network = Direct { nodes: nodes.clone(), target: id };
    let raft = Raft::new(id, Arc::new(config.validate()?), network, log, state).await?;
    nodes.lock().unwrap_or_else(PoisonError::into_inner).insert(id, raft);
    Ok(db)
}

/// Measures a cluster of `count` nodes, and prints a line.
async fn measure(folder: &Path, count: u64, seconds: u64) -> Result<(), Box<dyn Error>> {
    let nodes = Nodes::default();
    let mut dbs = Vec::new();
    for id in 1..=count {
        dbs.push(start(id, &folder.join(id.to_string()), &nodes).await?);
    }
    let rafts = nodes.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let members: BTreeMap<_, _> = (1..=count).map(|id| (id, BasicNode::default())).collect();
    rafts[&1].initialize(members).await?;
    let wait = rafts[&1].wait(Some(Duration::from_secs(30)));
    let elected = wait.metrics(|metrics| metrics.current_leader.is_some(), "a leader").await?;
    let leader = rafts[&elected.current_leader.unwrap_or(1)].clone();
    let groups_before: u64 = dbs.iter().map(|db| db.stats().log.groups_written).sum();
    let (committed, done, begun) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)), Instant::now());
    let clients: Vec<_> = (0..IN_FLIGHT)
        .map(|client| {
            let (leader, committed, done) = (leader.clone(), committed.clone(), done.clone());
            tokio::spawn(async move {
                let mut number = 0u64;
                while !done.load(Ordering::Relaxed) {
                    number += 1;
                    let key = format!("{client}/{}", number % 1000);
                    let request = Request::Put { key, value: vec![number as u8; VALUE_BYTES] };
                    if leader.client_write(request).await.is_err() {
                        break;
                    }
                    committed.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    done.store(true, Ordering::Relaxed);
    for client in clients {
        client.await?;
    }
    let committed = committed.load(Ordering::Relaxed);
    let rate = committed as f64 / begun.elapsed().as_secs_f64();
    let groups = dbs.iter().map(|db| db.stats().log.groups_written).sum::<u64>() - groups_before;
    let each = committed as f64 * count as f64 / groups.max(1) as f64;
    println!("{count} nodes: {rate:.0} proposals/s, {IN_FLIGHT} in flight; {each:.1} entries a durable write");
    for raft in rafts.into_values() {
        raft.shutdown().await?;
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder: PathBuf = arguments.next().ok_or("usage: proposals FOLDER [SECONDS]")?.into();
    let seconds = arguments.next().map_or(Ok(5), |seconds| seconds.parse())?;
    for count in [1, 3] {
        measure(&folder.join(format!("of-{count}")), count, seconds).await?;
    }
    Ok(())
}
