//! The log of a node, and its vote, in two tables of the database.
//!
//! Every change is a deferred commit; durability, where needed, is then awaited with [`Db::await_durable`]. Why this is enough:
//!
//! 1. The database makes commits durable in their order. After a power cut it shows all commits up to one of them, and none
//!    behind it: log, vote and state machine of one moment.
//! 2. openraft calls one store one call at a time, and each call has committed when it returns. So commits are in the order of the
//!    calls, and a durable vote proves that everything before it is durable.
//! 3. Truncating and purging need not be durable by themselves: that an entry was removed matters to others only through
//!    later, reported writes, which are behind it in the order.
//! 4. An entry is removed in a commit behind the one that brought it into the state. openraft has the log purged while another
//!    task still installs the snapshot that makes this right: the removal, and entries that would follow a hole without it, wait
//!    for the installation. A vote does not.
//! 5. After a restart a former leader leads only once it is elected again: a vote stored before the log was opened is reported as
//!    not committed. With a committed vote, openraft 0.9 lets the node resume its old term at once, and answers a linearizable read
//!    when the state includes the first entry of that term. Applying an entry does not wait for the disk, so after a crash the state may lack
//!    later entries, although clients have received their answers: the read would miss acknowledged writes. The first entry of a new term
//!    follows all of them in the log.
//!
//! A deferred commit never waits for the disk, and no commit here is `Sync`, for which deferred ones behind it would have
//! to wait: so appends in flight, of one log or of many in one database, share one write.

use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::{Arc, Mutex, PoisonError};

use nofault::{Batch, Db, Durability, Table};
use openraft::storage::{LogFlushed, RaftLogStorage};
use openraft::{
    AsyncRuntime, ErrorSubject, ErrorVerb, LogId, LogState, OptionalSend, RaftLogId, RaftLogReader, RaftTypeConfig,
    StoredMembership, Vote,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::codec::{decode, encode, index_of, key_of};
use crate::error::{Error, Result, StorageResult};
use crate::peers::{OpenedStore, Peers};
use crate::snapshots::FolderLock;

const VOTE: &str = "vote";
const COMMITTED: &str = "committed";
const PURGED: &str = "purged";

/// Entries that one commit removes: few enough for an ordinary commit, which occupies nothing.
const REMOVED_A_COMMIT: u64 = 128;
/// Bytes of encoded entries after which a read for a follower ends.
const READ_BYTES_MAX: usize = 1 << 20;

/// The log and the vote of a node: openraft's `RaftLogStorage`, and its own reader. Cloning gives another handle for
/// reading; writing is for one caller at a time, which openraft is.
pub struct LogStore<C: RaftTypeConfig> {
    /// Declared, and so dropped, before the database: a caller that can open the database again can open the group again.
    lock: FolderLock,
    db: Db,
    /// Entries by index.
    log: Table,
    /// The vote, the committed and the purged log id.
    meta: Table,
    /// The last log id of the state, as of a commit that has been made.
    applied: watch::Receiver<Option<LogId<C::NodeId>>>,
    /// The entries up to here count as removed, and are removed when the state has them.
    purging: Arc<Mutex<Option<LogId<C::NodeId>>>>,
    /// Whether openraft has saved a vote since the log was opened.
    has_voted: bool,
    opened: Arc<OpenedStore<C>>,
}

impl<C: RaftTypeConfig> Clone for LogStore<C> {
    fn clone(&self) -> Self {
        Self {
            lock: self.lock.clone(),
            db: self.db.clone(),
            log: self.log.clone(),
            meta: self.meta.clone(),
            applied: self.applied.clone(),
            purging: self.purging.clone(),
            has_voted: self.has_voted,
            opened: self.opened.clone(),
        }
    }
}

impl<C: RaftTypeConfig> std::fmt::Debug for LogStore<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogStore").field("log", &self.log.name()).finish_non_exhaustive()
    }
}

impl<C: RaftTypeConfig> LogStore<C> {
    /// Opens the log of a group, and completes a purge: an interrupted one that was noted, or the purge of a log that ends before the
    /// state of an installed snapshot. `applied` tells how far the state is, `membership` the members in it.
    pub(crate) async fn open(
        log: Table,
        meta: Table,
        applied: watch::Receiver<Option<LogId<C::NodeId>>>,
        lock: FolderLock,
        membership: StoredMembership<C::NodeId, C::Node>,
    ) -> Result<Self> {
        let (db, purging) = (log.db().clone(), Arc::default());
        let opened = Arc::new(OpenedStore::open(meta.clone(), membership).await?);
        let store = Self { lock, db, log, meta, applied, purging, has_voted: false, opened };
        let mut purged = store.purged().await?;
        if let Some(purged) = purged.as_ref().filter(|purged| !store.has_applied(purged)) {
            let log = store.log.name();
            return Err(Error::Damaged(format!("{log} has no entries up to {purged}, and the state is not as far")));
        }
        let mut batch = Batch::new();
        let last = store.last_index().await?.max(purged.as_ref().map(|purged| purged.index));
        let applied = store.applied.borrow().clone();
        // By index: an entry of a later term that no other node has may come before the snapshot's entries.
        if let Some(applied) = applied.filter(|applied| last < Some(applied.index)) {
            batch.put(&store.meta, PURGED, encode(&applied)?);
            purged = Some(applied);
        }
        if let Some(purged) = purged {
            store.remove_up_to(purged.index, batch).await?;
        }
        store.opened.begin_with(store.read(VOTE).await?, store.state().await?.last_log_id);
        Ok(store)
    }

    /// Returns the knowledge of this node, with the id `node`, about the stores of the others.
    pub fn peers(&self, node: C::NodeId) -> Peers<C> {
        Peers::new(node, self.opened.clone())
    }

    /// Returns the last entry noted as removed.
    pub(crate) async fn purged(&self) -> Result<Option<LogId<C::NodeId>>> {
        self.read(PURGED).await
    }

    fn has_applied(&self, log_id: &LogId<C::NodeId>) -> bool {
        self.applied.borrow().as_ref() >= Some(log_id)
    }

    fn purging(&self) -> Option<LogId<C::NodeId>> {
        self.purging.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Removes the rest of a purge, if the state has it by now.
    async fn remove_purged(&self) -> Result<()> {
        if let Some(upto) = self.purging().filter(|upto| self.has_applied(upto)) {
            let mut batch = Batch::new();
            batch.put(&self.meta, PURGED, encode(&upto)?);
            self.remove_up_to(upto.index, batch).await?;
            *self.purging.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        Ok(())
    }

    /// Removes the rest of a purge, if the state has it. Waits for this if the entry before `index` is not there: entries written
    /// from `index` on would follow a hole after a power cut.
    async fn purge_before(&mut self, index: u64) -> Result<()> {
        if let Some(upto) = self.purging()
            && self.last_index().await?.map_or(0, |last| last.saturating_add(1)) < index
        {
            let is_applied = self.applied.wait_for(|applied| applied.as_ref() >= Some(&upto)).await.is_ok();
            if !is_applied {
                let what = format!("the state machine has stopped before it installed a snapshot up to {upto}");
                return Err(Error::Stopped(what));
            }
        }
        self.remove_purged().await
    }

    /// Writes entries so that readers see them when this returns, and returns a future that is ready when they are durable.
    /// As [`RaftLogStorage::append`], for callers without a callback. The entries become durable also when the future is
    /// dropped. While a snapshot is being installed, entries behind it wait.
    ///
    /// # Errors
    /// As [`Db::write`]; `Stopped` when the state machine is dropped before it has installed the snapshot.
    pub async fn append_entries(
        &mut self,
        entries: Vec<C::Entry>,
    ) -> Result<impl Future<Output = Result<()>> + Send + use<C>> {
        if let Some(first) = entries.first() {
            self.purge_before(first.get_log_id().index).await?;
        }
        let mut batch = Batch::new();
        for entry in &entries {
            batch.put(&self.log, key_of(entry.get_log_id().index), encode(entry)?);
        }
        self.db.write(batch, Durability::Deferred).await?;
        let durable = self.db.await_durable();
        Ok(async move { Ok(durable.await?) })
    }

    async fn read<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>> {
        let value = self.meta.get(key).await?;
        value.map(|value| decode(&value, format_args!("{key} of {}", self.meta.name()))).transpose()
    }

    async fn write<T: Serialize>(&self, key: &str, value: &T) -> Result<()> {
        let mut batch = Batch::new();
        batch.put(&self.meta, key, encode(value)?);
        Ok(self.db.write(batch, Durability::Deferred).await?)
    }

    fn entry(&self, key: &[u8], value: &[u8]) -> Result<C::Entry> {
        decode(value, format_args!("entry {} of {}", index_of(key)?, self.log.name()))
    }

    /// Returns the entries in a range of indices, as many as fit into `bytes_max`, and one at least.
    async fn entries(&self, range: impl RangeBounds<u64>, bytes_max: usize) -> Result<Vec<C::Entry>> {
        let (mut entries, mut bytes) = (Vec::new(), 0);
        let purged = self.purging().map(|upto| upto.index);
        let bound = |bound: Bound<&u64>| bound.map(|index| key_of(*index));
        let mut range = self.log.range((bound(range.start_bound()), bound(range.end_bound())));
        while let Some((key, value)) = range.next_ref().await? {
            if Some(index_of(key)?) <= purged {
                continue;
            }
            bytes += value.len();
            entries.push(self.entry(key, value)?);
            if bytes >= bytes_max {
                break;
            }
        }
        Ok(entries)
    }

    /// Returns the index of the last entry that is there, whether it counts as removed or not.
    async fn last_index(&self) -> Result<Option<u64>> {
        self.log.last().await?.map(|(key, _)| index_of(&key)).transpose()
    }

    async fn last_entry(&self) -> Result<Option<C::Entry>> {
        let last = self.log.last().await?;
        last.map(|(key, value)| self.entry(&key, &value)).transpose()
    }

    async fn state(&self) -> Result<LogState<C>> {
        let last_purged_log_id = self.purging().max(self.purged().await?);
        let last = self.last_entry().await?.map(|entry| entry.get_log_id().clone());
        // While a purge is under way, entries that count as removed may still be there.
        let is_behind =
            |last: &LogId<C::NodeId>| last_purged_log_id.as_ref().is_none_or(|purged| last.index > purged.index);
        let last_log_id = last.filter(is_behind).or_else(|| last_purged_log_id.clone());
        Ok(LogState { last_purged_log_id, last_log_id })
    }

    /// Removes the entries from `index` on. The last ones go first, so that no crash leaves a hole.
    async fn remove_from(&self, index: u64) -> Result<()> {
        let mut end = self.last_index().await?.map_or(0, |last| last.saturating_add(1));
        while end > index {
            let begin = index.max(end.saturating_sub(REMOVED_A_COMMIT));
            let mut batch = Batch::new();
            (begin..end).for_each(|index| {
                batch.delete(&self.log, key_of(index));
            });
            self.db.write(batch, Durability::Deferred).await?;
            end = begin;
        }
        Ok(())
    }

    /// Removes the entries up to `index`, the first ones first. `batch` has the changes to commit with the first of them.
    async fn remove_up_to(&self, index: u64, mut batch: Batch) -> Result<()> {
        if let (Some((first, _)), Some((last, _))) = (self.log.first().await?, self.log.last().await?) {
            let end = index.min(index_of(&last)?).saturating_add(1);
            let mut begin = index_of(&first)?;
            while begin < end {
                let next = end.min(begin.saturating_add(REMOVED_A_COMMIT));
                (begin..next).for_each(|index| {
                    batch.delete(&self.log, key_of(index));
                });
                self.db.write(std::mem::take(&mut batch), Durability::Deferred).await?;
                begin = next;
            }
        }
        Ok(self.db.write(batch, Durability::Deferred).await?)
    }
}

impl<C: RaftTypeConfig> RaftLogReader<C> for LogStore<C> {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + std::fmt::Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> StorageResult<C, Vec<C::Entry>> {
        let bounds = (range.start_bound().cloned(), range.end_bound().cloned());
        self.entries(bounds, usize::MAX).await.map_err(|error| error.of_storage(ErrorSubject::Logs, ErrorVerb::Read))
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> StorageResult<C, Vec<C::Entry>> {
        let entries = self.entries(start..end, READ_BYTES_MAX).await;
        entries.map_err(|error| error.of_storage(ErrorSubject::Logs, ErrorVerb::Read))
    }
}

impl<C: RaftTypeConfig> RaftLogStorage<C> for LogStore<C> {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> StorageResult<C, LogState<C>> {
        self.state().await.map_err(|error| error.of_storage(ErrorSubject::Logs, ErrorVerb::Read))
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<C::NodeId>) -> StorageResult<C, ()> {
        let saved = async {
            self.remove_purged().await?;
            self.write(VOTE, vote).await?;
            self.has_voted = true;
            Ok::<_, Error>(self.db.await_durable().await?)
        };
        saved.await.map_err(|error| error.of_storage(ErrorSubject::Vote, ErrorVerb::Write))
    }

    /// Returns the vote. A vote stored before the log was opened is reported as not committed: see item 5 at the head of this file.
    async fn read_vote(&mut self) -> StorageResult<C, Option<Vote<C::NodeId>>> {
        let vote = self.read::<Vote<C::NodeId>>(VOTE).await;
        let vote = vote.map_err(|error| error.of_storage(ErrorSubject::Vote, ErrorVerb::Read))?;
        Ok(vote.map(|vote| Vote { committed: vote.committed && self.has_voted, ..vote }))
    }

    async fn save_committed(&mut self, committed: Option<LogId<C::NodeId>>) -> StorageResult<C, ()> {
        let saved = async {
            self.purge_before(committed.as_ref().map_or(0, |upto| upto.index.saturating_add(1))).await?;
            self.write(COMMITTED, &committed).await
        };
        saved.await.map_err(|error| error.of_storage(ErrorSubject::Store, ErrorVerb::Write))
    }

    async fn read_committed(&mut self) -> StorageResult<C, Option<LogId<C::NodeId>>> {
        let committed = self.read::<Option<LogId<C::NodeId>>>(COMMITTED).await;
        committed.map(Option::flatten).map_err(|error| error.of_storage(ErrorSubject::Store, ErrorVerb::Read))
    }

    /// Commits the entries, and leaves the wait for the disk, and the callback, to a task.
    async fn append<I>(&mut self, entries: I, callback: LogFlushed<C>) -> StorageResult<C, ()>
    where
        I: IntoIterator<Item = C::Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let appended = self.append_entries(entries.into_iter().collect()).await;
        let durable = appended.map_err(|error| error.of_storage(ErrorSubject::Logs, ErrorVerb::Write))?;
        // The task ends by itself, also when the node stops: its outcome is the callback's.
        drop(C::AsyncRuntime::spawn(async move {
            callback.log_io_completed(durable.await.map_err(io::Error::other));
        }));
        Ok(())
    }

    async fn truncate(&mut self, log_id: LogId<C::NodeId>) -> StorageResult<C, ()> {
        let removed = async {
            self.remove_purged().await?;
            self.remove_from(log_id.index).await
        };
        removed.await.map_err(|error| error.of_storage(ErrorSubject::Log(log_id), ErrorVerb::Delete))
    }

    /// Removes the entries up to `log_id`. The first commit notes that they are gone: the rest after a crash is removed at the next opening.
    /// Entries that the state does not have yet only count as removed: a later call removes them.
    async fn purge(&mut self, log_id: LogId<C::NodeId>) -> StorageResult<C, ()> {
        *self.purging.lock().unwrap_or_else(PoisonError::into_inner) = Some(log_id.clone());
        let removed = self.remove_purged().await;
        removed.map_err(|error| error.of_storage(ErrorSubject::Log(log_id), ErrorVerb::Delete))
    }
}
