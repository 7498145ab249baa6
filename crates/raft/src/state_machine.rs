//! The state machine of a node: the application's tables, the last log id applied to them, and its snapshots.
//!
//! Applying is a deferred commit of the changes together with the log id: after a power cut both are as of one entry. The entries behind it are in the log, since
//! their removal is a later commit, and are applied again. Only installing a snapshot waits for the disk: its sender counts on it.

use std::path::PathBuf;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use nofault::{Batch, Db, Durability, ErrorKind, Snapshot as DbSnapshot, Table, Transaction};
use openraft::storage::RaftStateMachine;
use openraft::{
    Entry, EntryPayload, ErrorSubject, ErrorVerb, LogId, OptionalSend, RaftSnapshotBuilder, RaftTypeConfig, Snapshot,
    StoredMembership,
};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::codec::{decode, encode};
use crate::error::{Error, Result, StorageResult};
use crate::identity::{GroupId, random};
use crate::peers::{forget_all, peer_key};
use crate::snapshot_file::SnapshotFile;
use crate::snapshot_format::{Part, SnapshotWriter};
use crate::snapshots::{Meta, Snapshots, lock, read_meta};
use crate::state::{GROUP, StateReader, StateTables, StateView};

const APPLIED: &str = "applied";

/// Entries of one commit: the memory of a transaction's reads is bounded.
const ENTRIES_A_COMMIT: usize = 64;
/// Rows, and bytes, of one commit while a snapshot is installed. Few, so that votes and appends come between.
const ROWS_A_COMMIT: usize = 128;
const BYTES_A_COMMIT: usize = 256 << 10;
/// Time after which a snapshot that found no room is written again.
const WAIT_FOR_ROOM: Duration = Duration::from_secs(1);

/// How an application applies the entries of the log.
///
/// ```
/// use nofault::Transaction;
/// use nofault_raft::{Application, Result, SnapshotFile, StateTables};
///
/// openraft::declare_raft_types!(
///     pub Types: D = (String, String), R = Option<Vec<u8>>, SnapshotData = SnapshotFile,
/// );
///
/// /// Sets the value of a key and answers with the value before.
/// struct Swap;
///
/// impl Application<Types> for Swap {
///     async fn apply(
///         &self,
///         tables: &StateTables,
///         change: &Transaction,
///         (key, value): &(String, String),
///     ) -> Result<Option<Vec<u8>>> {
///         let table = tables.table("values")?;
///         let before = change.get(table, key).await?;
///         change.put(table, key, value)?;
///         Ok(before)
///     }
///
///     fn no_answer(&self) -> Option<Vec<u8>> {
///         None
///     }
/// }
/// ```
pub trait Application<C: RaftTypeConfig>: Send + Sync + 'static {
    /// Applies one request: reads and writes `tables` through `change`, and returns the answer. Every node calls this with the same
    /// requests in the same order, and a node may call it again for a request whose transaction it runs again. So it must do the same everywhere: no clock, no randomness, no entries that expire, no
    /// state but `tables`. Nothing else may write to these tables.
    ///
    /// A refusal is an answer. An error stops the node, and the same entry would stop it again.
    ///
    /// # Errors
    /// The database's errors; [`Error::Application`] when the request cannot be applied.
    fn apply(
        &self,
        tables: &StateTables,
        change: &Transaction,
        request: &C::D,
    ) -> impl Future<Output = Result<C::R>> + Send;

    /// Returns the answer to an entry without a request: of a new leader, or of a change of the members.
    fn no_answer(&self) -> C::R;
}

/// The log position of the tables' state, kept in one row and committed with them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound = "")]
pub(crate) struct AppliedState<C: RaftTypeConfig> {
    generation: u64,
    last_applied: Option<LogId<C::NodeId>>,
    membership: StoredMembership<C::NodeId, C::Node>,
}

/// Shared by a state machine, its snapshots and their builders.
#[derive(Debug)]
struct Shared<C: RaftTypeConfig> {
    /// First, and so dropped before the database: see [`LogStore`](crate::LogStore).
    snapshots: Arc<Snapshots<C>>,
    db: Db,
    group: String,
    names: Vec<String>,
    /// The table with the row of [`AppliedState`].
    meta: Table,
    reader: StateReader,
}

impl<C: RaftTypeConfig> Shared<C> {
    fn decode_applied(meta: &Table, value: Option<&[u8]>) -> Result<AppliedState<C>> {
        let applied = value.map(|value| decode(value, format_args!("{APPLIED} of {}", meta.name()))).transpose()?;
        Ok(applied.unwrap_or_default())
    }

    async fn applied_in(&self, snapshot: &DbSnapshot) -> Result<AppliedState<C>> {
        Self::decode_applied(&self.meta, snapshot.get(&self.meta, APPLIED).await?.as_deref())
    }
}

/// The state machine of a node: openraft's `RaftStateMachine`. See [`open`](crate::open).
#[derive(Debug)]
pub struct StateMachine<C: RaftTypeConfig, A> {
    shared: Arc<Shared<C>>,
    application: A,
    tables: StateTables,
    applied: AppliedState<C>,
    /// Tells the log store how far the state is, once a commit says so.
    told: watch::Sender<Option<LogId<C::NodeId>>>,
}

impl<C, A> StateMachine<C, A>
where
    C: RaftTypeConfig<Entry = Entry<C>, SnapshotData = SnapshotFile>,
    A: Application<C>,
{
    /// Opens the state, and removes the remains of an interrupted installation of a snapshot.
    pub(crate) async fn open(
        group: &str,
        names: Vec<String>,
        meta: Table,
        folder: PathBuf,
        application: A,
    ) -> Result<Self> {
        let db = meta.db().clone();
        // Tasks of the opening before may change the rows, tables and files that are read and removed here until they end.
        let lock = lock(&folder).await?;
        let applied = Shared::<C>::decode_applied(&meta, meta.get(APPLIED).await?.as_deref())?;
        StateTables::drop_others(&db, group, applied.generation).await?;
        let tables = StateTables::open(&meta, group, applied.generation, &names).await?;
        let snapshots = Snapshots::open(folder, lock, meta.clone()).await?;
        let reader = StateReader { db: db.clone(), tables: Arc::new(RwLock::new(tables.clone())) };
        let shared = Shared { snapshots, db, group: group.into(), names, meta, reader };
        let told = watch::Sender::new(applied.last_applied.clone());
        Ok(Self { shared: Arc::new(shared), application, tables, applied, told })
    }

    /// Returns the last log id of the state, and later ones as it advances.
    pub(crate) fn last_applied(&self) -> watch::Receiver<Option<LogId<C::NodeId>>> {
        self.told.subscribe()
    }

    /// Returns the members as of the last entry that was applied.
    pub(crate) fn membership(&self) -> StoredMembership<C::NodeId, C::Node> {
        self.applied.membership.clone()
    }

    /// Returns the snapshots of the node.
    pub(crate) fn snapshots(&self) -> &Snapshots<C> {
        &self.shared.snapshots
    }

    /// Notes the state that a commit has made.
    fn has_committed(&mut self, applied: AppliedState<C>) {
        self.told.send_replace(applied.last_applied.clone());
        self.applied = applied;
    }

    /// Returns a reader of the state, for the time when openraft owns the state machine.
    pub fn reader(&self) -> StateReader {
        self.shared.reader.clone()
    }

    async fn apply_all(&mut self, entries: Vec<Entry<C>>) -> Result<Vec<C::R>> {
        let mut answers = Vec::with_capacity(entries.len());
        for entries in entries.chunks(ENTRIES_A_COMMIT) {
            // Nothing else writes to these tables. A run is lost, and made again, where the database has forgotten which
            // commits there were since its beginning.
            let run = self
                .shared
                .db
                .transact(Durability::Deferred, async |change: Transaction| self.apply_in(&change, entries).await);
            let (applied, more) = run.await?;
            self.has_committed(applied);
            answers.extend(more);
        }
        Ok(answers)
    }

    /// Applies entries in a transaction. Returns the new applied state, and the answers.
    async fn apply_in(&self, change: &Transaction, entries: &[Entry<C>]) -> Result<(AppliedState<C>, Vec<C::R>)> {
        let (mut applied, mut answers) = (self.applied.clone(), Vec::with_capacity(entries.len()));
        for entry in entries {
            answers.push(match &entry.payload {
                EntryPayload::Blank => self.application.no_answer(),
                EntryPayload::Normal(request) => self.application.apply(&self.tables, change, request).await?,
                EntryPayload::Membership(membership) => {
                    // A node that leaves may come back with an emptied folder.
                    for (left, _) in applied.membership.membership().nodes() {
                        if membership.get_node(left).is_none() {
                            change.delete(&self.shared.meta, peer_key(left)?)?;
                        }
                    }
                    applied.membership = StoredMembership::new(Some(entry.log_id.clone()), membership.clone());
                    self.application.no_answer()
                }
            });
            applied.last_applied = Some(entry.log_id.clone());
        }
        change.put(&self.shared.meta, APPLIED, encode(&applied)?)?;
        Ok((applied, answers))
    }

    async fn install(&mut self, meta: &Meta<C>, mut file: SnapshotFile) -> Result<()> {
        let (shared, generation) = (self.shared.clone(), self.applied.generation + 1);
        // Of an installation that failed before.
        StateTables::drop_others(&shared.db, &shared.group, self.applied.generation).await?;
        let tables = StateTables::open(&shared.meta, &shared.group, generation, &shared.names).await?;
        let own_group = shared.reader.group_id().await?;
        let group = load::<C>(&shared.db, &mut file, meta, own_group, &tables).await?;
        // A full disk shows here, while the older snapshot is still right.
        let mut file = shared.snapshots.keep_received(file).await?;
        let (last_applied, membership) = (meta.last_log_id.clone(), meta.last_membership.clone());
        let applied = AppliedState { generation, last_applied, membership };
        let mut changes = Batch::new();
        changes.put(&shared.meta, APPLIED, encode(&applied)?);
        if let Some(group) = group {
            changes.put(&shared.meta, GROUP, encode(&group)?);
        }
        // Nodes may have left, and come back, in entries that this node does not get.
        forget_all(&shared.meta, &mut changes).await?;
        let committed = || {
            self.has_committed(applied);
            self.tables = tables.clone();
            drop(shared.reader.replace(tables));
        };
        shared.snapshots.complete_received(&mut file, meta, changes, committed).await?;
        StateTables::drop_others(&shared.db, &shared.group, generation).await
    }
}

/// Fills tables with the rows of a snapshot, and returns the id of its group. Nothing refers to the tables yet.
///
/// # Errors
/// `Foreign`, before any row is written, for a snapshot without the id that the group has: a later state of the group would have it.
async fn load<C: RaftTypeConfig>(
    db: &Db,
    file: &mut SnapshotFile,
    meta: &Meta<C>,
    own_group: Option<GroupId>,
    tables: &StateTables,
) -> Result<Option<GroupId>> {
    let (own_meta, mut reader) = read_meta::<C>(file).await?;
    if own_meta != *meta {
        let what = format!("the bytes of a snapshot are of {own_meta}, and were sent as {meta}");
        return Err(Error::Damaged(what));
    }
    let mut next = reader.next().await?;
    let group = match next {
        Some(Part::Group(group)) => {
            next = reader.next().await?;
            Some(group)
        }
        _ => None,
    };
    if let Some(own) = own_group.filter(|own| group != Some(*own)) {
        let group = group.map_or_else(|| "a group without an id".into(), |group| format!("group {group}"));
        return Err(Error::Foreign(format!("snapshot {} is of {group}, and not of group {own}", meta.snapshot_id)));
    }
    let (mut table, mut batch, mut bytes) = (None, Batch::new(), 0);
    while let Some(part) = next {
        match part {
            Part::Meta(_) | Part::Group(_) => {
                return Err(Error::Damaged("a snapshot has its metadata twice".into()));
            }
            Part::Table(name) => table = Some(tables.table(&name)?),
            Part::Rows(rows) => {
                for (key, value) in rows {
                    let Some(table) = table else {
                        return Err(Error::Damaged("a snapshot has rows without a table".into()));
                    };
                    bytes += key.len() + value.len();
                    batch.put(table, key, value);
                    if batch.len() >= ROWS_A_COMMIT || bytes >= BYTES_A_COMMIT {
                        db.write(std::mem::take(&mut batch), Durability::Deferred).await?;
                        bytes = 0;
                    }
                }
            }
        }
        next = reader.next().await?;
    }
    db.write(batch, Durability::Deferred).await?;
    Ok(group)
}

impl<C, A> RaftStateMachine<C> for StateMachine<C, A>
where
    C: RaftTypeConfig<Entry = Entry<C>, SnapshotData = SnapshotFile>,
    A: Application<C>,
{
    type SnapshotBuilder = SnapshotBuilder<C>;

    async fn applied_state(
        &mut self,
    ) -> StorageResult<C, (Option<LogId<C::NodeId>>, StoredMembership<C::NodeId, C::Node>)> {
        Ok((self.applied.last_applied.clone(), self.applied.membership.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> StorageResult<C, Vec<C::R>>
    where
        I: IntoIterator<Item = Entry<C>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries = entries.into_iter().collect();
        let answers = self.apply_all(entries).await;
        answers.map_err(|error| error.of_storage(ErrorSubject::StateMachine, ErrorVerb::Write))
    }

    /// Takes a snapshot of the database, which costs nothing; the builder copies it while entries are applied.
    async fn get_snapshot_builder(&mut self) -> SnapshotBuilder<C> {
        SnapshotBuilder { shared: self.shared.clone(), view: self.shared.reader.view(), state: self.told.subscribe() }
    }

    async fn begin_receiving_snapshot(&mut self) -> StorageResult<C, Box<SnapshotFile>> {
        let file = self.shared.snapshots.begin().await;
        file.map(Box::new).map_err(|error| error.of_storage(ErrorSubject::Snapshot(None), ErrorVerb::Write))
    }

    async fn install_snapshot(&mut self, meta: &Meta<C>, snapshot: Box<SnapshotFile>) -> StorageResult<C, ()> {
        let installed = self.install(meta, *snapshot).await;
        installed.map_err(|error| error.of_storage(ErrorSubject::Snapshot(Some(meta.signature())), ErrorVerb::Write))
    }

    async fn get_current_snapshot(&mut self) -> StorageResult<C, Option<Snapshot<C>>> {
        let complete = self.shared.snapshots.complete().await;
        let complete = complete.map_err(|error| error.of_storage(ErrorSubject::Snapshot(None), ErrorVerb::Read))?;
        Ok(complete.map(|(meta, file)| Snapshot { meta, snapshot: Box::new(file) }))
    }
}

/// Writes a snapshot of the state as it was when the builder was made.
#[derive(Debug)]
pub struct SnapshotBuilder<C: RaftTypeConfig> {
    shared: Arc<Shared<C>>,
    view: StateView,
    /// Tells whether the state machine is still there.
    state: watch::Receiver<Option<LogId<C::NodeId>>>,
}

impl<C: RaftTypeConfig<SnapshotData = SnapshotFile>> SnapshotBuilder<C> {
    async fn build(&mut self) -> Result<Snapshot<C>> {
        loop {
            match self.write().await {
                Ok(Some(written)) => return Ok(written),
                // A received snapshot is taking the place of the state at this moment.
                Ok(None) => tokio::task::yield_now().await,
                // The limit on old pages: a later state is as good.
                Err(Error::Database(error)) if error.kind() == ErrorKind::SnapshotTooOld => {}
                // The log grows without a snapshot: a full disk is no reason to stop the node. The part is removed.
                Err(error) if error.is_full() => tokio::time::sleep(WAIT_FOR_ROOM).await,
                Err(error) => return Err(error),
            }
            if self.state.has_changed().is_err() {
                return Err(Error::Stopped("the state machine has stopped before its snapshot was written".into()));
            }
            self.view = self.shared.reader.view();
        }
    }

    /// Writes the view into a file. Returns `None` when its tables no longer belong to the state that it shows.
    async fn write(&self) -> Result<Option<Snapshot<C>>> {
        let applied = self.shared.applied_in(self.view.snapshot()).await?;
        if applied.generation != self.view.tables().generation {
            return Ok(None);
        }
        let meta = Meta::<C> {
            snapshot_id: id_of(&applied),
            last_log_id: applied.last_applied,
            last_membership: applied.membership,
        };
        let mut file = self.shared.snapshots.begin().await?;
        let mut writer = SnapshotWriter::begin(tokio::io::BufWriter::new(&mut file), &encode(&meta)?).await?;
        if let Some(group) = self.view.group_id().await? {
            writer.group(group).await?;
        }
        for (name, table) in self.view.tables().iter() {
            writer.table(name).await?;
            let mut range = self.view.snapshot().iter(table)?;
            while let Some((key, value)) = range.next_ref().await? {
                writer.row(key, value).await?;
            }
        }
        writer.end().await?;
        self.shared.snapshots.complete_built(&mut file, &meta).await?;
        Ok(Some(Snapshot { meta, snapshot: Box::new(file) }))
    }
}

/// Returns an id that no other snapshot of any node has.
fn id_of<C: RaftTypeConfig>(applied: &AppliedState<C>) -> String {
    let log_id = applied.last_applied.as_ref().map_or_else(|| "none".into(), ToString::to_string);
    format!("{log_id}-{:016x}", random())
}

impl<C: RaftTypeConfig<SnapshotData = SnapshotFile>> RaftSnapshotBuilder<C> for SnapshotBuilder<C> {
    async fn build_snapshot(&mut self) -> StorageResult<C, Snapshot<C>> {
        let built = self.build().await;
        built.map_err(|error| error.of_storage(ErrorSubject::Snapshot(None), ErrorVerb::Write))
    }
}
