//! A database that follows another one commit by commit, and says in itself how far it is.
//!
//! A reserved table has the state: its progress, and the names of the source's tables by their ids there. A commit that only
//! changes entries is one batch together with the state. A change of tables is a separate commit, so such a commit of the source is
//! written down first ([`DOING`]), then done, and then the state follows. A step that was written down and not finished is done again
//! when the copy is opened: every step may be repeated.
//!
//! Kept true by: all of that is deferred, and the log of the copy keeps the order. So whatever ends it, an opened copy has the state after
//! a commit of the source, with all before it and none after it.

use std::collections::BTreeMap;

use nofault::db::{Change, ChangeApplier};
use nofault::error::ErrorKind as DbErrorKind;
use nofault::{Batch, Db, Durability, Snapshot, Table, TableId};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::manifest::EpochName;
use crate::object::{ObjectWriter, ShippedCommit, raw_commits, take_commit};

/// The name of the table with the state of a copy. A source must not have a table of this name.
pub(super) const STATE_TABLE: &str = "nofault-replica";
/// The keys of that table: [`Progress`], names by id, and a commit that changes tables and is not finished.
const REACHED: &[u8] = b"reached";
const NAMES: &[u8] = b"names";
const DOING: &[u8] = b"doing";

/// The commit of the source whose state a copy has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Progress {
    pub(super) epoch: EpochName,
    pub(super) commit: u64,
    pub(super) time_ms: u64,
}

/// A copy of a database.
#[derive(Debug)]
pub(super) struct Copy {
    db: Db,
    state: Table,
    applier: ChangeApplier,
    names: BTreeMap<u64, String>,
    reached: Progress,
}

impl Copy {
    /// Makes a copy of a database with the content of a base. It is durable when this returns.
    ///
    /// # Errors
    /// `Unsupported` when the source has a table with the name of the state's; `Database`.
    pub(super) async fn begin(db: Db, applier: ChangeApplier, reached: Progress) -> Result<Self> {
        let state = db.create_table(STATE_TABLE).await.map_err(|error| match error.kind() {
            DbErrorKind::AlreadyExists => reserved(),
            _ => error.into(),
        })?;
        let names = applier.tables().map(|(id, table)| (id.0, table.name().to_owned())).collect();
        let copy = Self { db, state, applier, names, reached };
        let mut batch = Batch::new();
        batch.put(&copy.state, NAMES, encode(&copy.names)?).put(&copy.state, REACHED, encode(&copy.reached)?);
        copy.db.write(batch, Durability::Sync).await?;
        Ok(copy)
    }

    /// Continues a copy, and finishes a step that was written down and not done. `None` for a database that is no copy, or none any
    /// more.
    ///
    /// # Errors
    /// `Corrupt` when the state makes no sense; `Database`.
    pub(super) async fn open(db: Db) -> Result<Option<Self>> {
        let Some(state) = find_table(&db, STATE_TABLE).await? else { return Ok(None) };
        let missing = || Error::corrupt(format!("the table {STATE_TABLE:?} has no state"));
        let reached = decode(&state.get(REACHED).await?.ok_or_else(missing)?)?;
        let names: BTreeMap<u64, String> = decode(&state.get(NAMES).await?.ok_or_else(missing)?)?;
        let mut applier = ChangeApplier::new(&db);
        for (id, name) in &names {
            // One that is not there was dropped or renamed by the commit that is not finished.
            if let Some(table) = find_table(&db, name).await? {
                applier.learn(TableId(*id), table);
            }
        }
        let doing = state.get(DOING).await?;
        let mut copy = Self { db, state, applier, names, reached };
        if let Some(doing) = doing {
            let commit = take_commit(&mut &raw_commits(&doing)?[..])?.ok_or_else(missing)?;
            copy.change_tables(&commit).await?;
        }
        Ok(Some(copy))
    }

    pub(super) fn db(&self) -> &Db {
        &self.db
    }

    pub(super) fn reached(&self) -> &Progress {
        &self.reached
    }

    /// Returns the parts for a reader.
    pub(super) fn reader(&self) -> CopyReader {
        CopyReader { db: self.db.clone(), state: self.state.clone() }
    }

    /// Returns whether a commit changes tables themselves, and not only their entries. While it is applied, the copy has states
    /// that the source never had.
    pub(super) fn changes_tables(commit: &ShippedCommit) -> bool {
        !commit.changes.iter().all(|change| matches!(change, Change::Put { .. } | Change::Delete { .. }))
    }

    /// Applies the next commit of the source. After an error, or when its future is dropped, open the copy again.
    pub(super) async fn apply(&mut self, commit: &ShippedCommit) -> Result<()> {
        if Self::changes_tables(commit) {
            let mut writer = ObjectWriter::new();
            writer.push(commit.commit, commit.time_ms, &commit.changes)?;
            let mut batch = Batch::new();
            batch.put(&self.state, DOING, writer.finish());
            self.db.write(batch, Durability::Deferred).await?;
            return self.change_tables(commit).await;
        }
        let mut batch = Batch::new();
        commit.changes.iter().try_for_each(|change| self.add(&mut batch, change))?;
        self.end(batch, commit).await
    }

    /// Makes the changes of a commit that was written down, for the first time or once more.
    async fn change_tables(&mut self, commit: &ShippedCommit) -> Result<()> {
        let mut batch = Batch::new();
        for change in &commit.changes {
            if matches!(change, Change::Put { .. } | Change::Delete { .. }) {
                self.add(&mut batch, change)?;
                continue;
            }
            self.db.write(std::mem::take(&mut batch), Durability::Deferred).await?;
            self.change_table(change).await?;
        }
        batch.put(&self.state, NAMES, encode(&self.names)?).delete(&self.state, DOING);
        self.end(batch, commit).await
    }

    /// Writes the last batch of a commit, with the state that follows.
    async fn end(&mut self, mut batch: Batch, commit: &ShippedCommit) -> Result<()> {
        let time_ms = commit.time_ms.max(self.reached.time_ms);
        let reached = Progress { epoch: self.reached.epoch.clone(), commit: commit.commit, time_ms };
        batch.put(&self.state, REACHED, encode(&reached)?);
        self.db.write(batch, Durability::Deferred).await?;
        self.reached = reached;
        Ok(())
    }

    /// Adds a change of an entry to a batch.
    fn add(&self, batch: &mut Batch, change: &Change) -> Result<()> {
        let of = |table: &TableId| {
            let unknown = || Error::corrupt(format!("a commit changes table {table}, which nothing has created"));
            self.applier.table(*table).ok_or_else(unknown)
        };
        match change {
            Change::Put { table, key, value, expiry: None } => drop(batch.put(of(table)?, key, value)),
            Change::Put { table, key, value, expiry: Some(expiry) } => {
                batch.put_with_expiry(of(table)?, key, value, *expiry);
            }
            Change::Delete { table, key } => drop(batch.delete(of(table)?, key)),
            _ => {}
        }
        Ok(())
    }

    /// Makes a change of a table, or finds that it was made already.
    async fn change_table(&mut self, change: &Change) -> Result<()> {
        match change {
            Change::CreateTable { name: to, .. } | Change::RenameTable { to, .. } if to == STATE_TABLE => {
                return Err(reserved());
            }
            Change::CreateTable { table, name } => {
                match find_table(&self.db, name).await? {
                    Some(made) => self.applier.learn(*table, made),
                    None => self.applier.apply(std::slice::from_ref(change)).await?,
                }
                self.names.insert(table.0, name.clone());
            }
            Change::RenameTable { table, to, .. } => {
                // Not known under its old name: it has the new one.
                match (self.applier.table(*table), find_table(&self.db, to).await?) {
                    (None, Some(renamed)) => self.applier.learn(*table, renamed),
                    _ => self.applier.apply(std::slice::from_ref(change)).await?,
                }
                self.names.insert(table.0, to.clone());
            }
            Change::DropTable { table, .. } => {
                if self.applier.table(*table).is_some() {
                    self.applier.apply(std::slice::from_ref(change)).await?;
                }
                self.names.remove(&table.0);
            }
            other => self.applier.apply(std::slice::from_ref(other)).await?,
        }
        Ok(())
    }

    /// Makes the copy a database like any other, durably, and returns it.
    pub(super) async fn into_database(self) -> Result<Db> {
        self.db.drop_table(STATE_TABLE).await?;
        self.db.sync().await?;
        Ok(self.db)
    }
}

/// The reading side of a copy.
#[derive(Debug, Clone)]
pub(super) struct CopyReader {
    db: Db,
    state: Table,
}

impl CopyReader {
    /// Returns a snapshot, and the commit of the source whose state it has. Not while a commit is applied that changes tables.
    pub(super) async fn snapshot(&self) -> Result<(Snapshot, Progress)> {
        let snapshot = self.db.snapshot();
        let missing = || Error::corrupt(format!("the table {STATE_TABLE:?} has no state"));
        let reached = decode(&snapshot.get(&self.state, REACHED).await?.ok_or_else(missing)?)?;
        Ok((snapshot, reached))
    }
}

fn reserved() -> Error {
    Error::new(ErrorKind::Unsupported, format!("the source has a table {STATE_TABLE:?}: a replica needs this name"))
}

/// Returns a table, if it is there.
async fn find_table(db: &Db, name: &str) -> Result<Option<Table>> {
    match db.table(name).await {
        Ok(table) => Ok(Some(table)),
        Err(error) if error.kind() == DbErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn encode(value: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|error| Error::new(ErrorKind::Unsupported, format!("write the state: {error}")))
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|error| Error::corrupt(format!("the state of the replica: {error}")))
}
