//! Log store and state machine of openraft on a database that is not nofault: the same calls, entries and encoding for each of them.
//!
//! The work of `nofault-raft` in the way that each database offers: an append is one commit that is synced, the
//! state and how far it is are one commit that is not, and calls that may block run on threads for that. There are no snapshots, and so no
//! purges: the measurement makes none on any database.

use std::collections::HashMap;
use std::fmt::Debug;
use std::ops::{Bound, RangeBounds};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use nofault_raft::SnapshotFile;
use openraft::storage::{LogFlushed, RaftLogStorage, RaftStateMachine};
use openraft::{
    AnyError, BasicNode, Entry, EntryPayload, ErrorSubject, ErrorVerb, LogId, LogState, OptionalSend, RaftLogReader,
    RaftSnapshotBuilder, Snapshot, SnapshotMeta, StorageError, StorageIOError, StoredMembership, Vote,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::app::{Request, Response, Types};

type StorageResult<T> = std::result::Result<T, StorageError<u64>>;

const VOTE: &[u8] = b"vote";
const COMMITTED: &[u8] = b"committed";
const APPLIED: &[u8] = b"applied";

/// One of the three maps of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// Entries by index, big-endian.
    Log,
    /// Vote, committed log id, and how far the state is.
    Meta,
    /// The state.
    Values,
}

/// The new value of a key, or its removal.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) part: Part,
    pub(crate) key: Vec<u8>,
    pub(crate) value: Option<Vec<u8>>,
}

/// A database with three maps in which changes of several are one commit. Calls may block.
pub(crate) trait Peer: Send + Sync + Sized + 'static {
    /// Creates the database in an empty folder.
    fn create(folder: &Path) -> Result<Self>;

    /// Makes the changes in one commit, which is durable when this returns, if asked for.
    fn commit(&self, changes: &[Change], durable: bool) -> Result<()>;

    fn get(&self, part: Part, key: &[u8]) -> Result<Option<Vec<u8>>>;

    /// Returns the values of the log from one key on and before another.
    fn log(&self, from: [u8; 8], before: [u8; 8]) -> Result<Vec<Vec<u8>>>;

    /// Returns the value of the last key of the log.
    fn last_of_log(&self) -> Result<Option<Vec<u8>>>;
}

/// Creates log store and state machine on one database.
pub(crate) fn create<P: Peer>(folder: &Path) -> Result<(Log<P>, State<P>)> {
    let peer = Arc::new(P::create(folder)?);
    Ok((Log(peer.clone()), State { peer, applied: Progress::default() }))
}

/// Runs a call that may block on a thread for such calls.
async fn blocking<P: Peer, T: Send + 'static>(
    peer: &Arc<P>,
    call: impl FnOnce(&P) -> Result<T> + Send + 'static,
) -> Result<T> {
    let peer = peer.clone();
    tokio::task::spawn_blocking(move || call(&peer)).await.context("a call of the database has panicked")?
}

fn failed(verb: ErrorVerb) -> impl FnOnce(anyhow::Error) -> StorageError<u64> {
    move |error| StorageIOError::new(ErrorSubject::Store, verb, AnyError::error(format!("{error:#}"))).into()
}

fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>> {
    postcard::to_allocvec(value).context("encode")
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    postcard::from_bytes(bytes).context("decode")
}

/// The log of a node, and its vote.
pub(crate) struct Log<P>(Arc<P>);

impl<P: Peer> Log<P> {
    async fn put<T: Serialize>(&self, key: &[u8], value: &T, durable: bool) -> Result<()> {
        let change = Change { part: Part::Meta, key: key.to_vec(), value: Some(encode(value)?) };
        blocking(&self.0, move |peer| peer.commit(&[change], durable)).await
    }

    async fn read<T: DeserializeOwned>(&self, key: &'static [u8]) -> Result<Option<T>> {
        let value = blocking(&self.0, |peer| peer.get(Part::Meta, key)).await?;
        value.map(|value| decode(&value)).transpose()
    }

    async fn last(&self) -> Result<Option<LogId<u64>>> {
        let last = blocking(&self.0, P::last_of_log).await?;
        Ok(last.map(|last| decode::<Entry<Types>>(&last)).transpose()?.map(|entry| entry.log_id))
    }

    async fn entries(&self, from: u64, before: u64) -> Result<Vec<Entry<Types>>> {
        let values = blocking(&self.0, move |peer| peer.log(from.to_be_bytes(), before.to_be_bytes())).await?;
        values.iter().map(|value| decode(value)).collect()
    }

    async fn add(&self, entries: Vec<Entry<Types>>) -> Result<()> {
        let changes = entries.iter().map(|entry| {
            let key = entry.log_id.index.to_be_bytes().to_vec();
            Ok(Change { part: Part::Log, key, value: Some(encode(entry)?) })
        });
        let changes = changes.collect::<Result<Vec<_>>>()?;
        blocking(&self.0, move |peer| peer.commit(&changes, true)).await
    }

    async fn remove_from(&self, index: u64) -> Result<()> {
        let end = self.last().await?.map_or(0, |last| last.index + 1);
        let removed =
            (index..end).map(|index| Change { part: Part::Log, key: index.to_be_bytes().to_vec(), value: None });
        let removed: Vec<_> = removed.collect();
        blocking(&self.0, move |peer| peer.commit(&removed, false)).await
    }
}

impl<P: Peer> RaftLogReader<Types> for Log<P> {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: R,
    ) -> StorageResult<Vec<Entry<Types>>> {
        let from = match range.start_bound() {
            Bound::Included(index) => *index,
            Bound::Excluded(index) => index + 1,
            Bound::Unbounded => 0,
        };
        let before = match range.end_bound() {
            Bound::Included(index) => index + 1,
            Bound::Excluded(index) => *index,
            Bound::Unbounded => u64::MAX,
        };
        self.entries(from, before).await.map_err(failed(ErrorVerb::Read))
    }
}

impl<P: Peer> RaftLogStorage<Types> for Log<P> {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> StorageResult<LogState<Types>> {
        let last_log_id = self.last().await.map_err(failed(ErrorVerb::Read))?;
        Ok(LogState { last_purged_log_id: None, last_log_id })
    }

    async fn get_log_reader(&mut self) -> Self {
        Self(self.0.clone())
    }

    async fn save_vote(&mut self, vote: &Vote<u64>) -> StorageResult<()> {
        self.put(VOTE, vote, true).await.map_err(failed(ErrorVerb::Write))
    }

    async fn read_vote(&mut self) -> StorageResult<Option<Vote<u64>>> {
        self.read(VOTE).await.map_err(failed(ErrorVerb::Read))
    }

    async fn save_committed(&mut self, committed: Option<LogId<u64>>) -> StorageResult<()> {
        self.put(COMMITTED, &committed, false).await.map_err(failed(ErrorVerb::Write))
    }

    async fn read_committed(&mut self) -> StorageResult<Option<LogId<u64>>> {
        let committed = self.read::<Option<LogId<u64>>>(COMMITTED).await.map_err(failed(ErrorVerb::Read))?;
        Ok(committed.flatten())
    }

    async fn append<I>(&mut self, entries: I, callback: LogFlushed<Types>) -> StorageResult<()>
    where
        I: IntoIterator<Item = Entry<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        self.add(entries.into_iter().collect()).await.map_err(failed(ErrorVerb::Write))?;
        callback.log_io_completed(Ok(()));
        Ok(())
    }

    async fn truncate(&mut self, log_id: LogId<u64>) -> StorageResult<()> {
        self.remove_from(log_id.index).await.map_err(failed(ErrorVerb::Delete))
    }

    async fn purge(&mut self, _: LogId<u64>) -> StorageResult<()> {
        Err(failed(ErrorVerb::Delete)(anyhow::anyhow!("nothing is purged where no snapshots are made")))
    }
}

/// How far the state is.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Progress {
    last: Option<LogId<u64>>,
    membership: StoredMembership<u64, BasicNode>,
}

/// The state of a node.
pub(crate) struct State<P> {
    peer: Arc<P>,
    applied: Progress,
}

/// Applies entries in one commit. Returns how far the state is, and the answers.
fn apply<P: Peer>(peer: &P, mut applied: Progress, entries: Vec<Entry<Types>>) -> Result<(Progress, Vec<Response>)> {
    let (mut values, mut answers) = (HashMap::<String, Option<Vec<u8>>>::new(), Vec::with_capacity(entries.len()));
    for entry in entries {
        answers.push(match entry.payload {
            EntryPayload::Blank => Response(None),
            EntryPayload::Membership(membership) => {
                applied.membership = StoredMembership::new(Some(entry.log_id), membership);
                Response(None)
            }
            EntryPayload::Normal(request) => 'answer: {
                let (Request::Put { key, .. } | Request::Append { key, .. } | Request::Delete { key }) = &request else {
                    // These stores keep no id of the group.
                    break 'answer Response(None);
                };
                let before = match values.get(key) {
                    Some(before) => before.clone(),
                    None => peer.get(Part::Values, key.as_bytes())?,
                };
                let (key, after) = match request {
                    Request::Put { key, value } => (key, Some(value)),
                    Request::Append { key, more } => {
                        (key, Some([before.as_deref().unwrap_or_default(), &more].concat()))
                    }
                    Request::Delete { key } => (key, None),
                    Request::Name { .. } => break 'answer Response(None),
                };
                values.insert(key, after);
                Response(before)
            }
        });
        applied.last = Some(entry.log_id);
    }
    let changes = values.into_iter().map(|(key, value)| Change { part: Part::Values, key: key.into_bytes(), value });
    let mut changes: Vec<_> = changes.collect();
    changes.push(Change { part: Part::Meta, key: APPLIED.to_vec(), value: Some(encode(&applied)?) });
    peer.commit(&changes, false)?;
    Ok((applied, answers))
}

impl<P: Peer> RaftStateMachine<Types> for State<P> {
    type SnapshotBuilder = NoSnapshots;

    async fn applied_state(&mut self) -> StorageResult<(Option<LogId<u64>>, StoredMembership<u64, BasicNode>)> {
        Ok((self.applied.last, self.applied.membership.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> StorageResult<Vec<Response>>
    where
        I: IntoIterator<Item = Entry<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let (entries, applied) = (entries.into_iter().collect::<Vec<_>>(), self.applied.clone());
        let answers = blocking(&self.peer, move |peer| apply(peer, applied, entries)).await;
        let (applied, answers) = answers.map_err(failed(ErrorVerb::Write))?;
        self.applied = applied;
        Ok(answers)
    }

    async fn get_snapshot_builder(&mut self) -> NoSnapshots {
        NoSnapshots
    }

    async fn begin_receiving_snapshot(&mut self) -> StorageResult<Box<SnapshotFile>> {
        no_snapshots()
    }

    async fn install_snapshot(&mut self, _: &SnapshotMeta<u64, BasicNode>, _: Box<SnapshotFile>) -> StorageResult<()> {
        no_snapshots()
    }

    async fn get_current_snapshot(&mut self) -> StorageResult<Option<Snapshot<Types>>> {
        Ok(None)
    }
}

fn no_snapshots<T>() -> StorageResult<T> {
    let refused = || -> Result<T> { bail!("no snapshots are made here") };
    refused().map_err(failed(ErrorVerb::Write))
}

/// Refuses to make a snapshot.
pub(crate) struct NoSnapshots;

impl RaftSnapshotBuilder<Types> for NoSnapshots {
    async fn build_snapshot(&mut self) -> StorageResult<Snapshot<Types>> {
        no_snapshots()
    }
}
