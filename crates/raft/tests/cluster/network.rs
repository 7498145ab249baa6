//! A network inside one process that loses and delays messages, and cuts links.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use openraft::error::{Infallible, InstallSnapshotError, NetworkError, RPCError, RaftError, RemoteError, Unreachable};
use openraft::network::{Backoff, RPCOption};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse, VoteRequest,
    VoteResponse,
};
use openraft::{BasicNode, Raft, RaftNetwork, RaftNetworkFactory};

use crate::app::Types;

/// The failures of the network.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Weather {
    /// Messages of a thousand that are lost: requests, or answers to requests that have taken effect.
    pub(crate) lost: u32,
    pub(crate) delay_ms_max: u64,
}

#[derive(Default)]
struct State {
    nodes: BTreeMap<u64, Raft<Types>>,
    weather: Weather,
    /// Nodes that hear only each other, if the network is split.
    side: Option<BTreeSet<u64>>,
    rng: Rng,
    snapshot_parts: u64,
}

/// The network. Cloning gives another handle.
#[derive(Clone, Default)]
pub(crate) struct Network(Arc<Mutex<State>>);

impl Network {
    fn with<T>(&self, body: impl FnOnce(&mut State) -> T) -> T {
        body(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn connect(&self, id: u64, raft: Raft<Types>) {
        self.with(|state| state.nodes.insert(id, raft));
    }

    pub(crate) fn disconnect(&self, id: u64) {
        self.with(|state| state.nodes.remove(&id));
    }

    pub(crate) fn set_weather(&self, weather: Weather) {
        self.with(|state| state.weather = weather);
    }

    /// Cuts the links between these nodes and all others.
    pub(crate) fn split(&self, side: impl IntoIterator<Item = u64>) {
        self.with(|state| state.side = Some(side.into_iter().collect()));
    }

    pub(crate) fn heal(&self) {
        self.with(|state| state.side = None);
    }

    /// Number of parts of snapshots that have arrived.
    pub(crate) fn snapshot_parts(&self) -> u64 {
        self.with(|state| state.snapshot_parts)
    }

    pub(crate) fn links_of(&self, from: u64) -> Links {
        Links { network: self.clone(), from }
    }
}

/// Makes the links of one node.
pub(crate) struct Links {
    network: Network,
    from: u64,
}

impl RaftNetworkFactory<Types> for Links {
    type Network = Link;

    async fn new_client(&mut self, target: u64, _node: &BasicNode) -> Link {
        Link { network: self.network.clone(), from: self.from, to: target }
    }
}

pub(crate) struct Link {
    network: Network,
    from: u64,
    to: u64,
}

type RpcFailure<E = Infallible> = RPCError<u64, BasicNode, RaftError<u64, E>>;

impl Link {
    /// Takes a message to the other side, or loses it. Returns the node there.
    async fn pass<E: std::error::Error + 'static>(&self) -> Result<Raft<Types>, RpcFailure<E>> {
        let (node, delay_ms, is_lost) = self.network.with(|state| {
            let is_cut = state.side.as_ref().is_some_and(|side| side.contains(&self.from) != side.contains(&self.to));
            let node = state.nodes.get(&self.to).filter(|_| !is_cut).cloned();
            let delay_ms = state.rng.u64(0..=state.weather.delay_ms_max);
            (node, delay_ms, state.rng.u32(..1000) < state.weather.lost)
        });
        tokio::time::sleep(Duration::from_millis(delay_ms)).await;
        let Some(node) = node else {
            return Err(Unreachable::new(&io::Error::other("no way there")).into());
        };
        if is_lost {
            // As the sender sees it: no answer comes for a while.
            tokio::time::sleep(Duration::from_millis(30)).await;
            return Err(NetworkError::new(&io::Error::other("a message was lost")).into());
        }
        Ok(node)
    }

    async fn answered<T, E: std::error::Error + 'static>(
        &self,
        answer: Result<T, RaftError<u64, E>>,
    ) -> Result<T, RpcFailure<E>> {
        self.pass::<E>().await?;
        answer.map_err(|error| RemoteError::new(self.to, error).into())
    }
}

impl RaftNetwork<Types> for Link {
    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Types>,
        _: RPCOption,
    ) -> Result<AppendEntriesResponse<u64>, RpcFailure> {
        let answer = self.pass::<Infallible>().await?.append_entries(rpc).await;
        self.answered(answer).await
    }

    async fn vote(&mut self, rpc: VoteRequest<u64>, _: RPCOption) -> Result<VoteResponse<u64>, RpcFailure> {
        let answer = self.pass::<Infallible>().await?.vote(rpc).await;
        self.answered(answer).await
    }

    async fn install_snapshot(
        &mut self,
        rpc: InstallSnapshotRequest<Types>,
        _: RPCOption,
    ) -> Result<InstallSnapshotResponse<u64>, RpcFailure<InstallSnapshotError>> {
        let answer = self.pass::<InstallSnapshotError>().await?.install_snapshot(rpc).await;
        self.network.with(|state| state.snapshot_parts += 1);
        self.answered(answer).await
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat(Duration::from_millis(50)))
    }
}
