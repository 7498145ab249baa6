//! Messages between the nodes, over TCP: each is its length, four bytes little-endian, and the message as postcard writes it. A
//! connection carries one message and its answer at a time. The first one is a greeting: both sides say which store they have, and a node that has
//! lost acknowledged entries is refused.
//!
//! openraft gives a message, a heartbeat as well, one interval of the heartbeat, and then drops its call. A begun call continues in a task, and the next call
//! takes it up there: a busy machine, on which a connection with its greeting takes longer than the interval, would never make one otherwise, and a
//! follower would hear nothing of a leader that sends to it all the time.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nofault_raft::{Error, Greeting, Peers, ended, while_running};
use openraft::error::{Infallible, InstallSnapshotError, NetworkError, RPCError, RaftError, RemoteError, Unreachable};
use openraft::network::{Backoff, RPCOption};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse, VoteRequest,
    VoteResponse,
};
use openraft::{BasicNode, Raft, RaftMetrics, RaftNetwork, RaftNetworkFactory, SnapshotMeta, Vote};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use crate::app::{Types, bytes};
use crate::node::Life;

/// Bytes of the longest message.
const MESSAGE_BYTES_MAX: u32 = 64 << 20;
/// The time that a connection and its greetings may take.
const GREETING_MAX: Duration = Duration::from_secs(1);
/// How late an answer may come before the connection is given up. Heartbeats wait all that time, so it is shorter than a follower waits for one: a
/// follower that installs a snapshot hears them, and answers none until it is done.
const LATE_MAX: Duration = Duration::from_millis(200);
/// The time between two attempts to reach a node that does not know this one's opening yet.
const ATTEMPTS: Duration = Duration::from_millis(500);

#[derive(Serialize, Deserialize)]
enum Message {
    Greet(Greeting<u64>),
    Append(AppendEntriesRequest<Types>),
    Vote(VoteRequest<u64>),
    Snapshot(SnapshotPart),
}

/// openraft's part of a snapshot, with its bytes written as bytes.
#[derive(Serialize, Deserialize)]
struct SnapshotPart {
    vote: Vote<u64>,
    meta: SnapshotMeta<u64, BasicNode>,
    offset: u64,
    #[serde(with = "bytes")]
    data: Vec<u8>,
    done: bool,
}

/// The answer of a node, of the type that the message asks for.
type Answer<T, E = Infallible> = Result<T, RaftError<u64, E>>;
/// The answer to a greeting: the other's, or the reason why this node must not take part.
type Welcome = Result<Greeting<u64>, String>;

fn encode(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut bytes = postcard::to_extend(message, vec![0; 4]).map_err(io::Error::other)?;
    let len = u32::try_from(bytes.len() - 4).map_err(io::Error::other)?;
    bytes[..4].copy_from_slice(&len.to_le_bytes());
    Ok(bytes)
}

async fn write(stream: &mut TcpStream, message: &impl Serialize) -> io::Result<()> {
    stream.write_all(&encode(message)?).await
}

async fn read<T: DeserializeOwned>(stream: &mut TcpStream) -> io::Result<T> {
    let len = stream.read_u32_le().await?;
    if len > MESSAGE_BYTES_MAX {
        return Err(io::Error::other(format!("a message of {len} bytes")));
    }
    let mut bytes = vec![0; len as usize];
    stream.read_exact(&mut bytes).await?;
    postcard::from_bytes(&bytes).map_err(io::Error::other)
}

/// The means of a node to meet the others, from the opening of its store on.
#[derive(Debug)]
pub(crate) struct Contacts {
    pub(crate) peers: Peers<Types>,
    /// The addresses that this node was given. A member without one here has an address in the membership.
    pub(crate) addresses: BTreeMap<u64, SocketAddr>,
    /// Once the raft runs.
    pub(crate) metrics: OnceLock<watch::Receiver<RaftMetrics<u64, BasicNode>>>,
    /// The reason why another node has refused this one.
    pub(crate) refusal: watch::Sender<Option<String>>,
}

impl Contacts {
    fn metrics(&self) -> Option<RaftMetrics<u64, BasicNode>> {
        self.metrics.get().map(|metrics| metrics.borrow().clone())
    }

    async fn greeting(&self) -> Result<Greeting<u64>, Error> {
        self.peers.greeting(self.metrics().as_ref()).await
    }

    async fn receive(&self, greeting: &Greeting<u64>) -> Result<(), Error> {
        self.peers.receive(greeting, self.metrics().as_ref()).await
    }

    /// Connects to a node, and exchanges greetings.
    async fn connect(&self, target: u64, address: &str) -> io::Result<TcpStream> {
        let connected = async {
            let mut stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            let own = self.greeting().await.map_err(io::Error::other)?;
            write(&mut stream, &Message::Greet(own)).await?;
            let theirs = read::<Welcome>(&mut stream).await?.map_err(|why| {
                self.refusal.send_replace(Some(why.clone()));
                io::Error::other(why)
            })?;
            if *theirs.node() != target {
                return Err(io::Error::other(format!("{address} is node {}, and not {target}", theirs.node())));
            }
            self.receive(&theirs).await.map_err(io::Error::other)?;
            Ok(stream)
        };
        tokio::time::timeout(GREETING_MAX, connected).await.map_err(io::Error::other)?
    }

    /// Greets the others, each until it has answered. Returns when all were tried once, with the rest of the work.
    pub(crate) async fn greet_all(self: &Arc<Self>) -> impl Future<Output = ()> + Send + use<> {
        let greet = |target: u64, address: SocketAddr| {
            let contacts = self.clone();
            async move { contacts.connect(target, &address.to_string()).await.is_err().then_some((target, address)) }
        };
        let mut tasks: tokio::task::JoinSet<_> = self.addresses.iter().map(|(id, to)| greet(*id, *to)).collect();
        let mut silent = Vec::new();
        while let Some(tried) = tasks.join_next().await {
            silent.extend(tried.ok().flatten());
        }
        let contacts = self.clone();
        async move {
            while let Some((target, address)) = silent.pop() {
                if contacts.connect(target, &address.to_string()).await.is_err() {
                    silent.insert(0, (target, address));
                    tokio::time::sleep(ATTEMPTS).await;
                }
            }
        }
    }
}

/// Answers the messages of other nodes, for as long as the process lives.
pub(crate) async fn serve(listener: TcpListener, life: watch::Receiver<Result<Arc<Life>, String>>) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        // A connection ends with the first error: the other side makes another.
        tokio::spawn(serve_one(stream, life.borrow().clone()));
    }
}

/// Answers the messages of one connection, for as long as the core lives that there is at its beginning.
async fn serve_one(mut stream: TcpStream, life: Result<Arc<Life>, String>) -> io::Result<()> {
    let life = life.map_err(io::Error::other)?;
    stream.set_nodelay(true)?;
    let greeted = async {
        let Message::Greet(greeting) = read(&mut stream).await? else {
            return Err(io::Error::other("a message without a greeting"));
        };
        let welcome = match life.contacts.receive(&greeting).await {
            Ok(()) => Ok(life.contacts.greeting().await.map_err(io::Error::other)?),
            Err(error @ (Error::SetBack(_) | Error::Foreign(_))) => Err(error.to_string()),
            Err(error) => return Err(io::Error::other(error)),
        };
        write(&mut stream, &welcome).await?;
        welcome.map_err(io::Error::other)
    };
    tokio::time::timeout(GREETING_MAX, greeted).await.map_err(io::Error::other)??;
    let raft = life.raft.get().ok_or_else(|| io::Error::other("the raft does not run yet"))?.clone();
    drop(life);
    let answers = async {
        loop {
            answer(&mut stream, &raft).await?;
        }
    };
    tokio::select! {
        ended = answers => ended,
        _ = ended(&raft) => Ok(()),
    }
}

async fn answer(stream: &mut TcpStream, raft: &Raft<Types>) -> io::Result<()> {
    match read(stream).await? {
        Message::Greet(_) => Err(io::Error::other("a second greeting")),
        Message::Append(request) => write(stream, &while_running(raft, raft.append_entries(request)).await).await,
        Message::Vote(request) => write(stream, &while_running(raft, raft.vote(request)).await).await,
        Message::Snapshot(SnapshotPart { vote, meta, offset, data, done }) => {
            let request = InstallSnapshotRequest { vote, meta, offset, data, done };
            write(stream, &while_running(raft, raft.install_snapshot(request)).await).await
        }
    }
}

/// Makes the connections of a node to the others.
#[derive(Debug, Clone)]
pub(crate) struct Network(pub(crate) Arc<Contacts>);

impl RaftNetworkFactory<Types> for Network {
    type Network = Connection;

    async fn new_client(&mut self, target: u64, node: &BasicNode) -> Connection {
        let given = self.0.addresses.get(&target).map(ToString::to_string);
        Connection {
            contacts: self.0.clone(),
            target,
            address: given.unwrap_or_else(|| node.addr.clone()),
            pending: None,
        }
    }
}

/// The connection to one node. It is made when there is something to send.
#[derive(Debug)]
pub(crate) struct Connection {
    contacts: Arc<Contacts>,
    target: u64,
    address: String,
    /// The task with the stream: it makes the connection, or awaits an answer, for a call that may have been dropped.
    pending: Option<JoinHandle<io::Result<TcpStream>>>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(pending) = &self.pending {
            pending.abort();
        }
    }
}

type RpcFailure<E = Infallible> = RPCError<u64, BasicNode, RaftError<u64, E>>;

impl Connection {
    /// Awaits the task with the stream. When this is dropped, the task stays.
    async fn pending(&mut self) -> Option<io::Result<TcpStream>> {
        let ended = self.pending.as_mut()?.await;
        self.pending = None;
        Some(ended.unwrap_or_else(|error| Err(io::Error::other(error))))
    }

    /// Returns the stream when it is free, or a new one.
    async fn stream(&mut self) -> io::Result<TcpStream> {
        if let Some(Ok(stream)) = self.pending().await {
            return Ok(stream);
        }
        let (contacts, target, address) = (self.contacts.clone(), self.target, self.address.clone());
        self.pending = Some(tokio::spawn(async move { contacts.connect(target, &address).await }));
        self.pending().await.unwrap_or_else(|| Err(io::Error::other("no connection was begun")))
    }

    async fn ask<T, E>(&mut self, message: Message, option: &RPCOption) -> Result<T, RpcFailure<E>>
    where
        T: DeserializeOwned + Send + 'static,
        E: std::error::Error + DeserializeOwned + Send + 'static,
    {
        let mut stream = self.stream().await.map_err(|error| Unreachable::new(&error))?;
        let bytes = encode(&message).map_err(|error| NetworkError::new(&error))?;
        let (answers, answer) = oneshot::channel::<Answer<T, E>>();
        let exchange = async move {
            stream.write_all(&bytes).await?;
            // An answer that comes too late is answer to nothing.
            drop(answers.send(read(&mut stream).await?));
            Ok(stream)
        };
        let limit = option.hard_ttl() + LATE_MAX;
        self.pending =
            Some(tokio::spawn(async move { tokio::time::timeout(limit, exchange).await.map_err(io::Error::other)? }));
        let answer = answer.await.map_err(|error| NetworkError::new(&error))?;
        answer.map_err(|error| RemoteError::new(self.target, error).into())
    }
}

impl RaftNetwork<Types> for Connection {
    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<u64>, RpcFailure> {
        self.ask(Message::Append(request), &option).await
    }

    async fn vote(&mut self, request: VoteRequest<u64>, option: RPCOption) -> Result<VoteResponse<u64>, RpcFailure> {
        self.ask(Message::Vote(request), &option).await
    }

    async fn install_snapshot(
        &mut self,
        request: InstallSnapshotRequest<Types>,
        option: RPCOption,
    ) -> Result<InstallSnapshotResponse<u64>, RpcFailure<InstallSnapshotError>> {
        let InstallSnapshotRequest { vote, meta, offset, data, done } = request;
        self.ask(Message::Snapshot(SnapshotPart { vote, meta, offset, data, done }), &option).await
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat(Duration::from_millis(100)))
    }
}
