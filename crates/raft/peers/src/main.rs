//! How many proposals a second a cluster commits, durably, with 64 in flight: one node, and three nodes in this process, whose messages
//! are calls. So it measures storage and openraft, and no network. nofault, with the stores of `nofault-raft`, runs by turns with
//! redb, fjall and, with the feature `rocksdb`, RocksDB.
//!
//! Run with `cargo run --release --manifest-path crates/raft/peers/Cargo.toml -- FOLDER [SECONDS [TURNS]]`; all nodes share the disk of
//! the folder. Unequal: on nofault an append is seen before it is durable, and the node waiting for it occupies no thread; the others'
//! commits run on threads that may block. No store makes snapshots, so none purges its log.

#[path = "../../examples/cluster/app.rs"]
mod app;
mod fjall;
mod peer;
mod redb;
#[cfg(feature = "rocksdb")]
mod rocks;

use std::collections::BTreeMap;
use std::error::Error;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nofault::Db;
use nofault::settings::Settings;
use openraft::error::{InstallSnapshotError, RPCError, RaftError, RemoteError, Unreachable};
use openraft::network::RPCOption;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse, VoteRequest,
    VoteResponse,
};
use openraft::{BasicNode, Config, Raft, RaftNetwork, RaftNetworkFactory, SnapshotPolicy};

use crate::app::{Request, Types, VALUES, Values};

const IN_FLIGHT: u64 = 64;
const VALUE_BYTES: usize = 256;
/// Memory of each node for its database's cache.
const CACHE_BYTES: usize = 128 << 20;

/// A database under a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Store {
    Nofault,
    Redb,
    Fjall,
    #[cfg(feature = "rocksdb")]
    Rocksdb,
}

const STORES: &[Store] = &[
    Store::Nofault,
    Store::Redb,
    Store::Fjall,
    #[cfg(feature = "rocksdb")]
    Store::Rocksdb,
];

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

#[expect(clippy::result_large_err, reason = "openraft's trait has these errors")]
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

async fn start(store: Store, id: u64, path: &Path, nodes: &Nodes) -> Result<()> {
    std::fs::create_dir_all(path)?;
    let config = Config {
        election_timeout_min: 1000,
        election_timeout_max: 2000,
        heartbeat_interval: 200,
        snapshot_policy: SnapshotPolicy::Never,
        ..Config::default()
    };
    let (config, network) = (Arc::new(config.validate()?), Direct { nodes: nodes.clone(), target: id });
    let folder = path.join("db");
    let raft = match store {
        Store::Nofault => {
            let settings = Settings { cache_bytes: CACHE_BYTES, log_bytes: 128 << 20, ..Settings::default() };
            let db = Db::create(folder, &settings).await?;
            let (log, state) = nofault_raft::open(&db, "values", &[VALUES], path.join("snapshots"), Values).await?;
            Raft::new(id, config, network, log, state).await?
        }
        Store::Redb => {
            let (log, state) = peer::create::<redb::Redb>(&folder)?;
            Raft::new(id, config, network, log, state).await?
        }
        Store::Fjall => {
            let (log, state) = peer::create::<fjall::Fjall>(&folder)?;
            Raft::new(id, config, network, log, state).await?
        }
        #[cfg(feature = "rocksdb")]
        Store::Rocksdb => {
            let (log, state) = peer::create::<rocks::Rocks>(&folder)?;
            Raft::new(id, config, network, log, state).await?
        }
    };
    nodes.lock().unwrap_or_else(PoisonError::into_inner).insert(id, raft);
    Ok(())
}

/// Returns how many proposals a second a cluster of `count` nodes commits.
async fn measure(store: Store, folder: &Path, count: u64, time: Duration) -> Result<f64> {
    let nodes = Nodes::default();
    for id in 1..=count {
        start(store, id, &folder.join(id.to_string()), &nodes).await?;
    }
    let rafts = nodes.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let members: BTreeMap<_, _> = (1..=count).map(|id| (id, BasicNode::default())).collect();
    rafts[&1].initialize(members).await?;
    let wait = rafts[&1].wait(Some(Duration::from_secs(30)));
    let elected = wait.metrics(|metrics| metrics.current_leader.is_some(), "a leader").await?;
    let leader = rafts[&elected.current_leader.unwrap_or(1)].clone();
    let (committed, done, begun) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)), Instant::now());
    let clients = (0..IN_FLIGHT).map(|client| {
        let (leader, committed, done) = (leader.clone(), committed.clone(), done.clone());
        tokio::spawn(async move {
            let mut number = 0u64;
            while !done.load(Ordering::Relaxed) {
                number += 1;
                let key = format!("{client}/{}", number % 1000);
                let request = Request::Put { key, value: vec![number as u8; VALUE_BYTES] };
                leader.client_write(request).await?;
                committed.fetch_add(1, Ordering::Relaxed);
            }
            anyhow::Ok(())
        })
    });
    let clients: Vec<_> = clients.collect();
    tokio::time::sleep(time).await;
    done.store(true, Ordering::Relaxed);
    for client in clients {
        client.await??;
    }
    let rate = committed.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64();
    for raft in rafts.into_values() {
        raft.shutdown().await?;
    }
    Ok(rate)
}

/// Removes a folder. Databases in it may write for a moment after the nodes were shut down, as tasks of openraft still have them.
async fn remove(folder: &Path) -> Result<()> {
    for _ in 0..100 {
        match std::fs::remove_dir_all(folder) {
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            outcome => return outcome.with_context(|| folder.display().to_string()),
        }
    }
    anyhow::bail!("{} is still used", folder.display())
}

/// Returns the middle of some values, the least and the greatest.
fn spread(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
    (at(values.len() / 2), at(0), at(values.len().saturating_sub(1)))
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let folder: PathBuf = arguments.next().context("usage: nofault-raft-peers FOLDER [SECONDS [TURNS]]")?.into();
    let folder = folder.join(format!("nofault-proposals-{}", std::process::id()));
    let mut number = |default: u64| arguments.next().map_or(Ok(default), |text| text.parse().context("a number"));
    let (time, turns) = (Duration::from_secs(number(5)?), number(5)?);
    for count in [1, 3] {
        let mut rates = vec![Vec::new(); STORES.len()];
        for turn in 0..turns as usize {
            // Each store is once the first one.
            for position in 0..STORES.len() {
                let which = (turn + position) % STORES.len();
                let folder = folder.join("cluster");
                let rate = measure(STORES[which], &folder, count, time).await;
                remove(&folder).await?;
                rates[which].push(rate.with_context(|| format!("{:?}", STORES[which]))?);
            }
        }
        for (store, own) in STORES.iter().zip(&rates) {
            let (rate, least, most) = spread(own.clone());
            print!("{count} nodes on {store:?}: {rate:.0} proposals/s ({least:.0} to {most:.0})");
            let ratios = rates[0].iter().zip(own).map(|(nofault, own)| nofault / own);
            let (ratio, least, most) = spread(ratios.collect());
            println!("; nofault {ratio:.2} times that ({least:.2} to {most:.2})");
        }
    }
    std::fs::remove_dir(&folder)?;
    Ok(())
}
