//! The service of a node: for clients over HTTP, and the listener for the other nodes. Both go on while the node begins another life.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use nofault_raft::{StateReader, end_of, while_running};
use openraft::error::{CheckIsLeaderError, ClientWriteError, RaftError};
use openraft::raft::ClientWriteResponse;
use openraft::{BasicNode, ChangeMembers, Raft};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::app::{Request, Types, VALUES};
use crate::network::serve;
use crate::node::{Life, live};

/// The settings with which a node starts.
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
    life: watch::Receiver<Result<Arc<Life>, String>>,
    members: Arc<BTreeMap<u64, BasicNode>>,
}

impl Node {
    /// Returns the raft of this moment, whose core runs, with the reader of its state.
    fn running(&self) -> Result<(Raft<Types>, StateReader), Refusal> {
        let life = self.life.borrow().clone().map_err(unavailable)?;
        let raft = life.raft.get().ok_or_else(|| unavailable("the node greets the others"))?;
        match end_of(raft) {
            Some(why) => Err(unavailable(format!("the node has stopped: {why}"))),
            None => Ok((raft.clone(), life.reader.clone())),
        }
    }
}

/// Runs a node until Ctrl-C, or until it cannot go on.
pub(crate) async fn run(options: Options) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    std::fs::create_dir_all(&options.folder)?;
    let listener = TcpListener::bind(options.listen).await?;
    let told = watch::Sender::new(Err("the node opens its store".to_owned()));
    tokio::spawn(serve(listener, told.subscribe()));
    tokio::select! {
        served = serve_clients(&options, told.subscribe()) => served?,
        why = live(&options, &told) => return Err(why),
    }
    let raft = told.borrow().as_ref().ok().and_then(|life| life.raft.get().cloned());
    if let Some(raft) = raft {
        raft.shutdown().await?;
    }
    Ok(())
}

/// Serves clients until Ctrl-C, from the moment at which the raft of a life has begun.
pub(crate) async fn serve_clients(
    options: &Options,
    mut life: watch::Receiver<Result<Arc<Life>, String>>,
) -> io::Result<()> {
    drop(life.wait_for(Life::has_begun).await);
    let members = options.peers.keys().chain([&options.id]).map(|id| (*id, BasicNode::default())).collect();
    let service = Router::new()
        .route("/keys/{key}", get(read).put(put_value).post(append).delete(remove))
        .route("/initialize", post(initialize))
        .route("/members", get(show_members))
        .route("/members/{id}", put(add_member).delete(remove_member))
        .route("/voters", put(set_voters))
        .route("/status", get(status))
        .with_state(Node { life, members: Arc::new(members) });
    let http = TcpListener::bind(options.http).await?;
    println!("node {} serves {}", options.id, http.local_addr()?);
    let stop = async { drop(tokio::signal::ctrl_c().await) };
    axum::serve(http, service).with_graceful_shutdown(stop).await
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

/// Returns the outcome of a write, of a value or of the members.
fn written(
    answer: Result<ClientWriteResponse<Types>, RaftError<u64, ClientWriteError<u64, BasicNode>>>,
) -> Result<Vec<u8>, Refusal> {
    match answer {
        Ok(written) => Ok(written.data.0.unwrap_or_default()),
        Err(RaftError::APIError(ClientWriteError::ForwardToLeader(to))) => Err(elsewhere(to.leader_id)),
        Err(RaftError::APIError(ClientWriteError::ChangeMembershipError(error))) => {
            Err(Refusal(StatusCode::CONFLICT, error.to_string()))
        }
        Err(error) => Err(unavailable(error)),
    }
}

async fn write(node: Node, request: Request) -> Result<Vec<u8>, Refusal> {
    let (raft, _) = node.running()?;
    written(while_running(&raft, raft.client_write(request)).await)
}

/// Sets a value; the answer is the previous value.
async fn put_value(State(node): State<Node>, Path(key): Path<String>, value: Bytes) -> Result<Vec<u8>, Refusal> {
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
    let (raft, reader) = node.running()?;
    match while_running(&raft, raft.ensure_linearizable()).await {
        Ok(_) => {}
        Err(RaftError::APIError(CheckIsLeaderError::ForwardToLeader(to))) => return Err(elsewhere(to.leader_id)),
        Err(error) => return Err(unavailable(error)),
    }
    let value = reader.view().get(VALUES, key).await.map_err(unavailable)?;
    value.ok_or_else(|| Refusal(StatusCode::NOT_FOUND, String::new()))
}

/// Makes this node and its peers a cluster. One node is asked, once.
async fn initialize(State(node): State<Node>) -> Result<(), Refusal> {
    let (raft, _) = node.running()?;
    let initialized = while_running(&raft, raft.initialize(BTreeMap::clone(&node.members))).await;
    initialized.map_err(|error| Refusal(StatusCode::CONFLICT, error.to_string()))
}

/// Lists the members, as far as this node knows: id, voter or learner, address.
async fn show_members(State(node): State<Node>) -> Result<String, Refusal> {
    let (raft, _) = node.running()?;
    let metrics = raft.metrics().borrow().clone();
    let members = metrics.membership_config.membership();
    let voters: BTreeSet<u64> = members.voter_ids().collect();
    let line = |(id, node): (&u64, &BasicNode)| {
        format!("{id} {} {}\n", if voters.contains(id) { "voter" } else { "learner" }, node.addr)
    };
    Ok(members.nodes().map(line).collect())
}

/// Adds a learner, whose address, for the other nodes, is the content. It gets all entries, and counts for no majority.
async fn add_member(State(node): State<Node>, Path(id): Path<u64>, address: String) -> Result<Vec<u8>, Refusal> {
    let (raft, _) = node.running()?;
    written(while_running(&raft, raft.add_learner(id, BasicNode::new(address.trim()), false)).await)
}

/// Makes these members, whose ids are the content, the voters. A voter that is not among them leaves. A change that a leader did not end is
/// ended by the same request to the next one.
async fn set_voters(State(node): State<Node>, ids: String) -> Result<Vec<u8>, Refusal> {
    let ids: Result<BTreeSet<u64>, _> = ids.split_whitespace().map(str::parse).collect();
    let ids = ids.map_err(|error| Refusal(StatusCode::BAD_REQUEST, error.to_string()))?;
    let (raft, _) = node.running()?;
    written(while_running(&raft, raft.change_membership(ids, false)).await)
}

/// Removes a member, voter or learner. From then on it may come back with an emptied folder.
async fn remove_member(State(node): State<Node>, Path(id): Path<u64>) -> Result<Vec<u8>, Refusal> {
    let (raft, _) = node.running()?;
    let is_voter = raft.metrics().borrow().membership_config.membership().voter_ids().any(|voter| voter == id);
    let ids = BTreeSet::from([id]);
    let change = if is_voter { ChangeMembers::RemoveVoters(ids) } else { ChangeMembers::RemoveNodes(ids) };
    written(while_running(&raft, raft.change_membership(change, false)).await)
}

/// The leader, and this node's position. A node whose core has ended says so, and why.
async fn status(State(node): State<Node>) -> Result<String, Refusal> {
    let (raft, _) = node.running()?;
    let metrics = raft.metrics().borrow().clone();
    let index = |id: Option<openraft::LogId<u64>>| id.map_or(0, |id| id.index);
    Ok(format!(
        "leader {}\nterm {}\napplied {}\nsnapshot {}\npurged {}\n",
        metrics.current_leader.unwrap_or(0),
        metrics.current_term,
        index(metrics.last_applied),
        index(metrics.snapshot),
        index(metrics.purged),
    ))
}
