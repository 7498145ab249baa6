//! Messages between the nodes, over TCP: each is its length, four bytes little-endian, and the message as postcard writes it. A
//! connection carries one message and its answer at a time.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use openraft::error::{Infallible, InstallSnapshotError, NetworkError, RPCError, RaftError, RemoteError, Unreachable};
use openraft::network::{Backoff, RPCOption};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse, VoteRequest,
    VoteResponse,
};
use openraft::{BasicNode, Raft, RaftNetwork, RaftNetworkFactory};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::app::Types;

/// Bytes of the longest message.
const MESSAGE_BYTES_MAX: u32 = 64 << 20;

#[derive(Serialize, Deserialize)]
enum Message {
    Append(AppendEntriesRequest<Types>),
    Vote(VoteRequest<u64>),
    Snapshot(InstallSnapshotRequest<Types>),
}

/// The answer of a node, of the type that the message asks for.
type Answer<T, E = Infallible> = Result<T, RaftError<u64, E>>;

async fn write(stream: &mut TcpStream, message: &impl Serialize) -> io::Result<()> {
    let mut bytes = postcard::to_extend(message, vec![0; 4]).map_err(io::Error::other)?;
    let len = u32::try_from(bytes.len() - 4).map_err(io::Error::other)?;
    bytes[..4].copy_from_slice(&len.to_le_bytes());
    stream.write_all(&bytes).await
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

/// Answers the messages of other nodes, for as long as the process lives.
pub(crate) async fn serve(listener: TcpListener, raft: Raft<Types>) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        let raft = raft.clone();
        // A connection ends with the first error: the other side makes another.
        tokio::spawn(async move { drop(serve_one(stream, raft).await) });
    }
}

async fn serve_one(mut stream: TcpStream, raft: Raft<Types>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    loop {
        match read(&mut stream).await? {
            Message::Append(request) => write(&mut stream, &raft.append_entries(request).await).await?,
            Message::Vote(request) => write(&mut stream, &raft.vote(request).await).await?,
            Message::Snapshot(request) => write(&mut stream, &raft.install_snapshot(request).await).await?,
        }
    }
}

/// Makes the connections of a node to the others, whose addresses it knows by their ids.
#[derive(Debug, Clone)]
pub(crate) struct Network {
    pub(crate) peers: Arc<BTreeMap<u64, SocketAddr>>,
}

impl RaftNetworkFactory<Types> for Network {
    type Network = Connection;

    async fn new_client(&mut self, target: u64, _node: &BasicNode) -> Connection {
        Connection { target, address: self.peers.get(&target).copied(), stream: None }
    }
}

/// The connection to one node. It is made when there is something to send.
#[derive(Debug)]
pub(crate) struct Connection {
    target: u64,
    address: Option<SocketAddr>,
    stream: Option<TcpStream>,
}

type RpcFailure<E = Infallible> = RPCError<u64, BasicNode, RaftError<u64, E>>;

impl Connection {
    async fn ask<T, E>(&mut self, message: Message) -> Result<T, RpcFailure<E>>
    where
        T: DeserializeOwned,
        E: std::error::Error + DeserializeOwned + 'static,
    {
        // Taken, and not given back when this future is dropped: an answer that comes too late is answer to nothing.
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => self.connect().await.map_err(|error| Unreachable::new(&error))?,
        };
        let answer: io::Result<Answer<T, E>> = async {
            write(&mut stream, &message).await?;
            read(&mut stream).await
        }
        .await;
        let answer = answer.map_err(|error| NetworkError::new(&error))?;
        self.stream = Some(stream);
        answer.map_err(|error| RemoteError::new(self.target, error).into())
    }

    async fn connect(&self) -> io::Result<TcpStream> {
        let address = self.address.ok_or_else(|| io::Error::other(format!("node {} has no address", self.target)))?;
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

impl RaftNetwork<Types> for Connection {
    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        _: RPCOption,
    ) -> Result<AppendEntriesResponse<u64>, RpcFailure> {
        self.ask(Message::Append(request)).await
    }

    async fn vote(&mut self, request: VoteRequest<u64>, _: RPCOption) -> Result<VoteResponse<u64>, RpcFailure> {
        self.ask(Message::Vote(request)).await
    }

    async fn install_snapshot(
        &mut self,
        request: InstallSnapshotRequest<Types>,
        _: RPCOption,
    ) -> Result<InstallSnapshotResponse<u64>, RpcFailure<InstallSnapshotError>> {
        self.ask(Message::Snapshot(request)).await
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat(Duration::from_millis(100)))
    }
}
