//! The tables of the replicated state, and views of them.
//!
//! The tables of one state carry the number of a generation in their names. A snapshot that is installed fills tables of the next
//! generation, next to the tables in use; one commit then makes these the state. A crash before it leaves tables of a generation
//! that is not the state's, which are dropped when the node starts.

use std::sync::{Arc, PoisonError, RwLock};

use nofault::{Db, ErrorKind, Snapshot, Table, Transaction};

use crate::codec::{decode, encode};
use crate::error::{Error, Result};
use crate::identity::GroupId;

/// The row with the id of the group.
pub(crate) const GROUP: &str = "group";

/// Decodes the id of a group from its row.
pub(crate) fn group_id(table: &str, row: Option<&[u8]>) -> Result<Option<GroupId>> {
    row.map(|row| decode(row, format_args!("{GROUP} of {table}"))).transpose()
}

/// The tables of the replicated state, by the names given to [`open`](crate::open).
#[derive(Debug, Clone)]
pub struct StateTables {
    pub(crate) generation: u64,
    /// The table with the id of the group.
    meta: Table,
    tables: Arc<[(String, Table)]>,
}

impl StateTables {
    /// Returns a table of the state.
    ///
    /// # Errors
    /// `InvalidCall` for a name that was not given at opening.
    pub fn table(&self, name: &str) -> Result<&Table> {
        let found = self.tables.iter().find(|(known, _)| known == name);
        let missing = || Error::InvalidCall(format!("{name:?} is not one of the tables given to nofault_raft::open"));
        found.map(|(_, table)| table).ok_or_else(missing)
    }

    /// Gives the group this id if it has none, and returns the id that it has. To be called from
    /// [`Application::apply`](crate::Application::apply), for a request that the leader makes when
    /// [`StateReader::group_id`] finds none: so all nodes have the same id, also when several are proposed at a time.
    ///
    /// From then on each snapshot carries the id, and a snapshot of another group, or one without an id, is not installed. Before that, a
    /// snapshot that another node sends is told from one of another group by nothing.
    ///
    /// # Errors
    /// As [`Transaction::get`] and [`Transaction::put`].
    pub async fn name_group(&self, change: &Transaction, id: GroupId) -> Result<GroupId> {
        if let Some(named) = group_id(self.meta.name(), change.get(&self.meta, GROUP).await?.as_deref())? {
            return Ok(named);
        }
        change.put(&self.meta, GROUP, encode(&id)?)?;
        Ok(id)
    }

    /// Returns the tables with their names.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Table)> {
        self.tables.iter().map(|(name, table)| (name.as_str(), table))
    }

    /// Opens the tables of a generation, and creates the missing ones.
    pub(crate) async fn open(meta: &Table, group: &str, generation: u64, names: &[String]) -> Result<Self> {
        let mut tables = Vec::new();
        for name in names {
            let table = meta.db().open_or_create_table(&name_of(group, generation, name)).await?;
            tables.push((name.clone(), table));
        }
        Ok(Self { generation, meta: meta.clone(), tables: tables.into() })
    }

    /// Drops all tables of other generations of this group.
    pub(crate) async fn drop_others(db: &Db, group: &str, generation: u64) -> Result<()> {
        let (all, kept) = (format!("{group}/state/"), prefix_of(group, generation));
        for name in db.table_names().await? {
            if name.starts_with(&all) && !name.starts_with(&kept) {
                match db.drop_table(&name).await {
                    Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

fn prefix_of(group: &str, generation: u64) -> String {
    format!("{group}/state/{generation}/")
}

fn name_of(group: &str, generation: u64, table: &str) -> String {
    format!("{}{table}", prefix_of(group, generation))
}

/// Reads the replicated state, on any task, while openraft owns the state machine. Cheap to clone.
///
/// It shows the entries applied by this node. For a linearizable read ask openraft first:
/// `raft.ensure_linearizable().await?`, then [`StateReader::view`].
#[derive(Debug, Clone)]
pub struct StateReader {
    pub(crate) db: Db,
    /// The tables in use. They are replaced before the previous generation's tables are dropped.
    pub(crate) tables: Arc<RwLock<StateTables>>,
}

impl StateReader {
    /// Takes a view of the state as it is now. No I/O.
    pub fn view(&self) -> StateView {
        // The snapshot is taken under the lock, so that it is older than a drop of these tables.
        let tables = self.tables.read().unwrap_or_else(PoisonError::into_inner);
        StateView { snapshot: self.db.snapshot(), tables: tables.clone() }
    }

    /// Returns the id of the group, if an entry has [given](StateTables::name_group) it one.
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub async fn group_id(&self) -> Result<Option<GroupId>> {
        self.view().group_id().await
    }

    /// Makes these the tables of the state, and returns the previous ones.
    pub(crate) fn replace(&self, tables: StateTables) -> StateTables {
        std::mem::replace(&mut *self.tables.write().unwrap_or_else(PoisonError::into_inner), tables)
    }
}

/// The replicated state at one moment: a snapshot of the database, and the tables to read in it.
///
/// A view kept while the state advances keeps old pages: see [`nofault::Snapshot`].
#[derive(Debug, Clone)]
pub struct StateView {
    snapshot: Snapshot,
    tables: StateTables,
}

impl StateView {
    /// The tables of the state.
    pub fn tables(&self) -> &StateTables {
        &self.tables
    }

    /// The snapshot in which the tables are read.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    pub(crate) async fn group_id(&self) -> Result<Option<GroupId>> {
        let meta = &self.tables.meta;
        group_id(meta.name(), self.snapshot.get(meta, GROUP).await?.as_deref())
    }

    /// Returns the value of a key.
    ///
    /// # Errors
    /// `InvalidCall` for a table that was not named at opening; otherwise as [`Snapshot::get`].
    pub async fn get(&self, table: &str, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        Ok(self.snapshot.get(self.tables.table(table)?, key).await?)
    }
}
