//! The knowledge of a group's nodes about each other's stores, so that a node that lost acknowledged entries is refused.
//!
//! Consensus counts on it that a node keeps its vote and every entry that it has acknowledged. A folder that was emptied, copied back from a
//! backup, or whose log was torn breaks this, and neither the node nor openraft can see it: the node votes and acknowledges as if it were whole, and
//! acknowledged writes are lost (a debug build of openraft panics, in the healthy leader). But other nodes have seen it. So a store
//! has a random id, and counts its openings; nodes that connect greet each other with both, and each keeps the last answer:
//!
//! 1. Another id than the last one: the folder was emptied, or belongs to another node.
//! 2. An opening that was seen, and is not in the store's history: the folder is an older copy. It stays one however often it is opened.
//! 3. An opening that is new, and a log that ends before the entries acknowledged to this leader: its end is lost.
//!
//! The number of an opening is durable before anyone hears of it, and so is each entry before it is acknowledged: a whole store shows none of the
//! three. A member that left, and was added again with an emptied folder, may: the notes on it are forgotten when its removal is
//! applied, or a snapshot is installed that may have it, and a node that knows of later members than this one is not judged.
//! A node that is itself set back knows less, and refuses no one for it.

use std::sync::{Arc, OnceLock};

use nofault::{Batch, Durability, Table};
use openraft::{LogId, RaftMetrics, RaftTypeConfig, StoredMembership, Vote};
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

use crate::codec::{decode, encode};
use crate::error::{Error, Result};
use crate::identity::{GroupId, random};
use crate::state::{GROUP, group_id};

const OPENING: &str = "opening";
/// The start of the keys of other nodes' openings; the encoded id of the node follows.
const PEER: &[u8] = b"peer/";

/// Returns the key of the row with the last opening of a node.
pub(crate) fn peer_key<N: openraft::NodeId>(node: &N) -> Result<Vec<u8>> {
    Ok([PEER, &encode(node)?].concat())
}

/// Deletes, in a batch, the notes on all nodes.
pub(crate) async fn forget_all(meta: &Table, batch: &mut Batch) -> Result<()> {
    let mut known = meta.prefix(PEER);
    while let Some((key, _)) = known.next_ref().await? {
        batch.delete(meta, key);
    }
    Ok(())
}

/// Number of openings whose ids a store keeps: an older copy is known by them however often it was opened since, up to this.
const IDS_MAX: usize = 256;

/// An opening of a store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Opening {
    /// The random id of the store, from its creation.
    store: u64,
    /// Number of the opening, from 1.
    number: u64,
    /// The random ids of the last openings up to this one: two copies of a store give the same number to different openings.
    ids: Vec<u64>,
}

impl Opening {
    /// Returns the opening after `before`, or the first.
    fn after(before: Option<Self>) -> Self {
        let Self { store, number, mut ids } =
            before.unwrap_or_else(|| Self { store: random(), number: 0, ids: Vec::new() });
        ids.push(random());
        ids.drain(..ids.len().saturating_sub(IDS_MAX));
        Self { store, number: number.saturating_add(1), ids }
    }

    /// Returns an opening in the history of the store; `None` for a later one, or one that is too old.
    fn at(&self, number: u64) -> Option<SeenOpening> {
        let ago = usize::try_from(self.number.checked_sub(number)?).ok()?;
        self.ids.iter().rev().nth(ago).map(|id| SeenOpening { store: self.store, number, id: *id })
    }
}

/// The note on another node's opening.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct SeenOpening {
    store: u64,
    number: u64,
    id: u64,
}

/// The vote and the last log id of a store.
#[derive(Debug, Clone, Default)]
struct StoredLog<N: openraft::NodeId> {
    vote: Option<Vote<N>>,
    last_log_id: Option<LogId<N>>,
}

/// The store of this node, as of its opening.
#[derive(Debug)]
pub(crate) struct OpenedStore<C: RaftTypeConfig> {
    meta: Table,
    opening: Opening,
    beginning: OnceLock<StoredLog<C::NodeId>>,
    membership: StoredMembership<C::NodeId, C::Node>,
    /// Held from the look at the note on a node to its durable change.
    change: Mutex<()>,
}

impl<C: RaftTypeConfig> OpenedStore<C> {
    /// Counts an opening of the store, durably. A store of an earlier version gets its id here. `membership` is the state's.
    pub(crate) async fn open(meta: Table, membership: StoredMembership<C::NodeId, C::Node>) -> Result<Self> {
        let before = meta.get(OPENING).await?;
        let before = before.map(|value| decode(&value, format_args!("{OPENING} of {}", meta.name()))).transpose()?;
        let opening = Opening::after(before);
        let opened = Self { meta, opening, beginning: OnceLock::new(), membership, change: Mutex::default() };
        opened.write(OPENING.as_bytes(), &opened.opening).await?;
        Ok(opened)
    }

    /// Notes, once, vote and last log id as of the opening.
    pub(crate) fn begin_with(&self, vote: Option<Vote<C::NodeId>>, last_log_id: Option<LogId<C::NodeId>>) {
        self.beginning.get_or_init(|| StoredLog { vote, last_log_id });
    }

    async fn write(&self, key: &[u8], row: &impl Serialize) -> Result<()> {
        let mut batch = Batch::new();
        batch.put(&self.meta, key, encode(row)?);
        let db = self.meta.db();
        db.write(batch, Durability::Deferred).await?;
        Ok(db.await_durable().await?)
    }

    async fn group_id(&self) -> Result<Option<GroupId>> {
        group_id(self.meta.name(), self.meta.get(GROUP).await?.as_deref())
    }
}

/// The message of a node to another when they connect, in both directions. See [`Peers`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Greeting<N: openraft::NodeId> {
    node: N,
    group: Option<GroupId>,
    opening: Opening,
    /// The vote and the last log id as of the opening.
    vote: Option<Vote<N>>,
    last_log_id: Option<LogId<N>>,
    /// The log id of the last membership that the node knows.
    membership: Option<LogId<N>>,
}

impl<N: openraft::NodeId> Greeting<N> {
    /// The node that greets.
    pub fn node(&self) -> &N {
        &self.node
    }
}

/// The knowledge of a node about the stores of the others. [`LogStore::peers`](crate::LogStore::peers) has it. Cheap to clone.
///
/// A network uses it thus: the connecting node sends its [greeting](Self::greeting); the other side [receives](Self::receive) it, and answers with its own, or with
/// the refusal; that is received as well, and only then do messages of openraft follow. A node also greets all others before its
/// raft starts, and answers greetings from then on: a refusal is the reason not to start.
#[derive(Debug)]
pub struct Peers<C: RaftTypeConfig> {
    node: C::NodeId,
    opened: Arc<OpenedStore<C>>,
}

impl<C: RaftTypeConfig> Clone for Peers<C> {
    fn clone(&self) -> Self {
        Self { node: self.node.clone(), opened: self.opened.clone() }
    }
}

impl<C: RaftTypeConfig> Peers<C> {
    pub(crate) fn new(node: C::NodeId, opened: Arc<OpenedStore<C>>) -> Self {
        Self { node, opened }
    }

    /// Returns the last membership that this node knows.
    fn membership<'a>(
        &'a self,
        metrics: Option<&'a RaftMetrics<C::NodeId, C::Node>>,
    ) -> &'a StoredMembership<C::NodeId, C::Node> {
        // Metrics have no members before the core has begun.
        let current = metrics.map(|metrics| &*metrics.membership_config);
        current.filter(|current| current.log_id() > self.opened.membership.log_id()).unwrap_or(&self.opened.membership)
    }

    /// Returns this node's greeting. `metrics` are its raft's, where it runs.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub async fn greeting(&self, metrics: Option<&RaftMetrics<C::NodeId, C::Node>>) -> Result<Greeting<C::NodeId>> {
        let opened = &*self.opened;
        let StoredLog { vote, last_log_id } = opened.beginning.get().cloned().unwrap_or_default();
        Ok(Greeting {
            node: self.node.clone(),
            group: opened.group_id().await?,
            opening: opened.opening.clone(),
            vote,
            last_log_id,
            membership: self.membership(metrics).log_id().clone(),
        })
    }

    /// Takes the greeting of another node: notes a new opening, durably, or refuses the node. `metrics` come from the raft of this
    /// node, where it runs. They tell the members, and a leader the positions that others have acknowledged. A node is refused for its store only by a member,
    /// and as a member.
    ///
    /// # Errors
    /// `SetBack` when the node has lost entries: it must not take part. The message has the evidence and the remedy. `Foreign` for a node of
    /// another group. Otherwise as [`Db::write`](nofault::Db::write): nothing is known of the node then.
    pub async fn receive(
        &self,
        greeting: &Greeting<C::NodeId>,
        metrics: Option<&RaftMetrics<C::NodeId, C::Node>>,
    ) -> Result<()> {
        let (node, opening) = (&greeting.node, &greeting.opening);
        if let (Some(theirs), Some(own)) = (greeting.group, self.opened.group_id().await?)
            && theirs != own
        {
            let what =
                format!("node {node} is of group {theirs}, and not of {own}: its address, or its folder, is wrong");
            return Err(Error::Foreign(what));
        }
        let _change = self.opened.change.lock().await;
        let key = peer_key(node)?;
        let seen = self.opened.meta.get(&key).await?;
        let seen =
            seen.map(|value| decode::<SeenOpening>(&value, format_args!("the opening of node {node}"))).transpose()?;
        let Some(now) = opening.at(opening.number) else {
            return Err(Error::Damaged(format!("the greeting of node {node} has no opening")));
        };
        if seen == Some(now) {
            return Ok(());
        }
        let membership = self.membership(metrics);
        let are_members = [node, &self.node].iter().all(|id| membership.membership().get_node(id).is_some());
        if let Some(why) = set_back(greeting, seen, metrics).filter(|_| are_members) {
            // It may have been added again: this node learns of it.
            if greeting.membership > *membership.log_id() {
                return Ok(());
            }
            let what = format!(
                "node {node} has lost what it acknowledged, as node {} knows: {why}. It must not take part: stop it, remove it from the \
                 members, empty its folder, start it and add it again",
                self.node
            );
            return Err(Error::SetBack(what));
        }
        self.opened.write(&key, &now).await
    }
}

/// Returns the evidence that a node has lost entries, if there is any.
fn set_back<N: openraft::NodeId, M: openraft::Node>(
    greeting: &Greeting<N>,
    seen: Option<SeenOpening>,
    metrics: Option<&RaftMetrics<N, M>>,
) -> Option<String> {
    let opening = &greeting.opening;
    match seen {
        Some(seen) if seen.store != opening.store => {
            Some("its store is not the one that it had before: it was emptied, or belongs to another node".into())
        }
        // A store of which so many openings were missed that it does not tell any more is believed.
        Some(seen) if opening.number < seen.number || opening.at(seen.number).is_some_and(|same| same != seen) => {
            let (number, before) = (opening.number, seen.number);
            Some(format!(
                "its store is an older copy: this is its opening {number}, and another opening {before} was seen"
            ))
        }
        _ => metrics.and_then(|metrics| lost_entries(greeting, metrics)),
    }
}

/// Says which entries a node lacks that it has acknowledged to this leader. A later vote has other reasons to lack them.
fn lost_entries<N: openraft::NodeId, M: openraft::Node>(
    greeting: &Greeting<N>,
    metrics: &RaftMetrics<N, M>,
) -> Option<String> {
    let acknowledged = metrics.replication.as_ref()?.get(&greeting.node)?.as_ref()?;
    let has_later_vote = greeting.vote.as_ref().is_some_and(|vote| *vote > metrics.vote);
    let last = greeting.last_log_id.as_ref();
    (last < Some(acknowledged) && !has_later_vote).then(|| {
        let last = last.map_or_else(|| "nothing".into(), ToString::to_string);
        format!("its log ends with {last}, and it has acknowledged {acknowledged}")
    })
}
