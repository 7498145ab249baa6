//! One node: its storage, its raft, the listener for the other nodes, and the service for clients over HTTP.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use nofault::Db;
use nofault::settings::Settings;
use nofault_raft::{StateReader, while_running};
use openraft::error::{CheckIsLeaderError, ClientWriteError, RaftError};
use openraft::{BasicNode, Config, Raft, SnapshotPolicy};
use tokio::net::TcpListener;

use crate::app::{Request, Types, VALUES, Values};
use crate::network::{Network, serve};

/// What a node is told when it starts.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) id: u64,
    pub(crate) folder: PathBuf,
    /// The address of the service for clients.
    pub(crate) http: SocketAddr,
    /// The address on which other nodes reach this one.
    pub(crate) listen: SocketAddr,
    /// The addresses on which this node reaches the others. They are the first members.
    pub(crate) peers: BTreeMap<u64, SocketAddr>,
}

impl Options {
    /// Reads options from words: id, folder, address of the service, address for nodes, and `ID=ADDRESS` for each other node.
    pub(crate) fn parse(mut words: impl Iterator<Item = String>) -> Option<Self> {
        let (id, folder) = (words.next()?.parse().ok()?, words.next()?.into());
        let (http, listen) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let peers = words.map(|word| {
            let (id, address) = word.split_once('=')?;
            Some((id.parse().ok()?, address.parse().ok()?))
        });
        Some(Self { id, folder, http, listen, peers: peers.collect::<Option<_>>()? })
    }
}

#[derive(Clone)]
struct Node {
    raft: Raft<Types>,
    reader: StateReader,
    members: Arc<BTreeMap<u64, BasicNode>>,
}

/// Runs a node until Ctrl-C.
pub(crate) async fn run(options: Options) -> Result<(), Box<dyn std::error::Error>> {
    let config = Config {
        election_timeout_min: 400,
        election_timeout_max: 800,
        heartbeat_interval: 100,
        install_snapshot_timeout: 10_000,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(2_000),
        max_in_snapshot_log_to_keep: 200,
        snapshot_max_chunk_size: 1 << 20,
        ..Config::default()
    };
    std::fs::create_dir_all(&options.folder)?;
    let settings = Settings { cache_bytes: 64 << 20, log_bytes: 64 << 20, ..Settings::default() };
    let db = Db::open_or_create(options.folder.join("db"), &settings).await?;
    let (log, state) = nofault_raft::open(&db, "values", &[VALUES], options.folder.join("snapshots"), Values).await?;
    let reader = state.reader();
    let listener = TcpListener::bind(options.listen).await?;
    let members: BTreeMap<u64, BasicNode> =
        options.peers.keys().chain([&options.id]).map(|id| (*id, BasicNode::default())).collect();
    let network = Network { peers: Arc::new(options.peers) };
    let raft = Raft::new(options.id, Arc::new(config.validate()?), network, log, state).await?;
    tokio::spawn(serve(listener, raft.clone()));

    let node = Node { raft: raft.clone(), reader, members: Arc::new(members) };
    let service = Router::new()
        .route("/keys/{key}", get(read).put(put).post(append).delete(remove))
        .route("/initialize", post(initialize))
        .route("/status", get(status))
        .with_state(node);
    let http = TcpListener::bind(options.http).await?;
    println!("node {} serves {}", options.id, http.local_addr()?);
    axum::serve(http, service).with_graceful_shutdown(async { drop(tokio::signal::ctrl_c().await) }).await?;
    raft.shutdown().await?;
    Ok(())
}

/// A request that was not carried out here, or of which this is not known, with the reason.
struct Refusal(StatusCode, String);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.0, self.1).into_response()
    }
}

/// The request goes to another node: the answer is its id, as far as this node knows.
fn elsewhere(leader: Option<u64>) -> Refusal {
    Refusal(StatusCode::MISDIRECTED_REQUEST, leader.map_or_else(String::new, |id| id.to_string()))
}

fn unavailable(why: impl std::fmt::Display) -> Refusal {
    Refusal(StatusCode::SERVICE_UNAVAILABLE, why.to_string())
}

async fn write(node: Node, request: Request) -> Result<Vec<u8>, Refusal> {
    match while_running(&node.raft, node.raft.client_write(request)).await {
        Ok(written) => Ok(written.data.0.unwrap_or_default()),
        Err(RaftError::APIError(ClientWriteError::ForwardToLeader(to))) => Err(elsewhere(to.leader_id)),
        Err(error) => Err(unavailable(error)),
    }
}

/// Sets a value; the answer is the one before.
async fn put(State(node): State<Node>, Path(key): Path<String>, value: Bytes) -> Result<Vec<u8>, Refusal> {
    write(node, Request::Put { key, value: value.into() }).await
}

/// Adds bytes to a value; the answer is the value before.
async fn append(State(node): State<Node>, Path(key): Path<String>, more: Bytes) -> Result<Vec<u8>, Refusal> {
    write(node, Request::Append { key, more: more.into() }).await
}

async fn remove(State(node): State<Node>, Path(key): Path<String>) -> Result<Vec<u8>, Refusal> {
    write(node, Request::Delete { key }).await
}

/// Reads a value as of a moment within this call: a majority has confirmed that this node leads.
async fn read(State(node): State<Node>, Path(key): Path<String>) -> Result<Vec<u8>, Refusal> {
    match while_running(&node.raft, node.raft.ensure_linearizable()).await {
        Ok(_) => {}
        Err(RaftError::APIError(CheckIsLeaderError::ForwardToLeader(to))) => return Err(elsewhere(to.leader_id)),
        Err(error) => return Err(unavailable(error)),
    }
    let value = node.reader.view().get(VALUES, key).await.map_err(unavailable)?;
    value.ok_or_else(|| Refusal(StatusCode::NOT_FOUND, String::new()))
}

/// Makes this node and its peers a cluster. One node is asked, once.
async fn initialize(State(node): State<Node>) -> Result<(), Refusal> {
    let initialized = while_running(&node.raft, node.raft.initialize(BTreeMap::clone(&node.members))).await;
    initialized.map_err(|error| Refusal(StatusCode::CONFLICT, error.to_string()))
}

/// Who leads, and how far this node is.
async fn status(State(node): State<Node>) -> String {
    let metrics = node.raft.metrics().borrow().clone();
    let index = |id: Option<openraft::LogId<u64>>| id.map_or(0, |id| id.index);
    format!(
        "leader {}\nterm {}\napplied {}\nsnapshot {}\npurged {}\n",
        metrics.current_leader.unwrap_or(0),
        metrics.current_term,
        index(metrics.last_applied),
        index(metrics.snapshot),
        index(metrics.purged),
    )
}
