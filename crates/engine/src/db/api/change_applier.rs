//! Applies the changes of one database to another: the work of a copy that follows a [`Tail`](super::tail::Tail).
//!
//! The tables of the two have different ids, so the applier knows which is which; it calls them by the ids of the source.

use std::collections::HashMap;
use std::ops::Bound;

use super::batch::Batch;
use super::schema;
use super::table::Table;
use super::watch::Change;
use crate::db::open::handle::Db;
use crate::error::{Error, ErrorKind, Result};
use crate::format::TableId;
use crate::pages::Durability;

/// Number of keys of a range that are removed together.
const DELETED_AT_ONCE: usize = 4096;

/// A place between the keys of all tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place<'a> {
    table: TableId,
    key: &'a [u8],
    is_behind_key: bool,
}

impl<'a> Place<'a> {
    const START: Self = Self { table: TableId(0), key: &[], is_behind_key: false };

    fn before(table: TableId, key: &'a [u8]) -> Self {
        Self { table, key, is_behind_key: false }
    }

    fn behind(table: TableId, key: &'a [u8]) -> Self {
        Self { table, key, is_behind_key: true }
    }

    /// The end of a range that ends before this key, or with the table.
    fn end_of(table: TableId, end: Option<&'a [u8]>) -> Self {
        end.map_or(Self::before(TableId(table.0.saturating_add(1)), &[]), |end| Self::before(table, end))
    }
}

/// Applies the changes of one database to another.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # let copy = nofault::blocking::Db::create(folder.path().join("copy"), &settings)?;
/// use nofault::TableId;
/// use nofault::db::{Change, ChangeApplier};
///
/// let mut applier = ChangeApplier::new(&copy.asynchronous());
/// let (table, key, value) = (TableId(7), b"apples".to_vec(), b"12".to_vec());
/// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
/// # runtime.block_on(async {
/// applier.apply(&[Change::CreateTable { table, name: "stock".into() }]).await?;
/// applier.apply(&[Change::Put { table, key, value, expiry: None }]).await?;
/// # Ok::<(), nofault::Error>(())
/// # })?;
/// assert_eq!(copy.table("stock")?.get("apples")?, Some(b"12".to_vec()));
/// assert_eq!(applier.table(table).map(|table| table.name()), Some("stock"));
/// # Ok::<(), nofault::Error>(())
/// ```
#[derive(Debug)]
pub struct ChangeApplier {
    db: Db,
    tables: HashMap<TableId, Table>,
}

impl ChangeApplier {
    /// Creates an applier to a database without tables.
    pub fn new(to: &Db) -> Self {
        Self { db: to.clone(), tables: HashMap::new() }
    }

    /// Returns the table with the content of a table of the source.
    pub fn table(&self, of_source: TableId) -> Option<&Table> {
        self.tables.get(&of_source)
    }

    /// Returns the tables with the content of tables of the source, with their ids there, in any order.
    pub fn tables(&self) -> impl Iterator<Item = (TableId, &Table)> {
        self.tables.iter().map(|(of_source, table)| (*of_source, table))
    }

    /// Notes that a table has the content of a table of the source.
    pub fn learn(&mut self, of_source: TableId, table: Table) {
        self.tables.insert(of_source, table);
    }

    /// Applies the changes of one commit: changes of keys together, all or none, and
    /// [deferred](Durability::Deferred). The removal of a range is in the same commit if no change before it is of one of its keys or of a later
    /// one, and otherwise begins another; of many keys it is several commits.
    ///
    /// # Errors
    /// `NotFound` for a table that is not known; otherwise as the calls that make such changes.
    pub async fn apply(&mut self, changes: &[Change]) -> Result<()> {
        let mut batch = Batch::new();
        // The batch has changes of keys before this place only.
        let mut end_of_batch = Place::START;
        for (at, change) in changes.iter().enumerate() {
            match change {
                Change::Put { table, key, value, expiry } => {
                    match expiry {
                        None => batch.put(self.get(*table)?, key, value),
                        Some(expiry) => batch.put_with_expiry(self.get(*table)?, key, value, *expiry),
                    };
                    end_of_batch = end_of_batch.max(Place::behind(*table, key));
                }
                Change::Delete { table, key } => {
                    batch.delete(self.get(*table)?, key);
                    end_of_batch = end_of_batch.max(Place::behind(*table, key));
                }
                Change::DeleteRange { table, start, end } => {
                    // The keys of the range are looked up in the table, which does not have the batch yet.
                    if end_of_batch > Place::before(*table, start) {
                        self.write(std::mem::take(&mut batch)).await?;
                    }
                    let range = (&start[..], end.as_deref());
                    self.delete_range(&mut batch, *table, range, &changes[at + 1..]).await?;
                    end_of_batch = end_of_batch.max(Place::end_of(*table, end.as_deref()));
                }
                other => {
                    self.write(std::mem::take(&mut batch)).await?;
                    self.change_table(other).await?;
                }
            }
        }
        self.write(batch).await
    }

    /// Adds the removal of the keys of a range to a batch, but for keys that the puts which follow set in any case.
    async fn delete_range(
        &self,
        batch: &mut Batch,
        id: TableId,
        (start, end): (&[u8], Option<&[u8]>),
        following: &[Change],
    ) -> Result<()> {
        let table = self.get(id)?;
        let bounds = (Bound::Included(start), end.map_or(Bound::Unbounded, Bound::Excluded));
        let mut keys = table.range::<&[u8]>(bounds).keys_only();
        // The puts are in the order of their keys, as a range's are; others would be removed first.
        let mut puts = following;
        while let Some((key, _)) = keys.next().await? {
            while let [first, after @ ..] = puts
                && key_put(first, id).is_some_and(|put| put < &key[..])
            {
                puts = after;
            }
            if puts.first().and_then(|first| key_put(first, id)) == Some(&key[..]) {
                continue;
            }
            batch.delete(table, key);
            if batch.len() >= DELETED_AT_ONCE {
                self.write(std::mem::take(batch)).await?;
            }
        }
        Ok(())
    }

    async fn write(&self, batch: Batch) -> Result<()> {
        if batch.is_empty() { Ok(()) } else { self.db.write(batch, Durability::Deferred).await }
    }

    fn get(&self, table: TableId) -> Result<&Table> {
        let unknown = || Error::new(ErrorKind::NotFound, format!("the copy has no table {table} of its source"));
        self.tables.get(&table).ok_or_else(unknown)
    }

    async fn change_table(&mut self, change: &Change) -> Result<()> {
        match change {
            Change::CreateTable { table, name } => {
                let created = self.db.create_table(name).await?;
                self.tables.insert(*table, created);
            }
            Change::RenameTable { table, to, .. } => {
                self.db.rename_table(self.get(*table)?.name(), to).await?;
                let renamed = self.db.table(to).await?;
                self.tables.insert(*table, renamed);
            }
            Change::DropTable { table, .. } => {
                self.db.drop_table(self.get(*table)?.name()).await?;
                self.tables.remove(table);
            }
            Change::SetCompression { table, compression } => {
                self.db.set_compression(self.get(*table)?.name(), *compression).await?;
            }
            Change::SetTypes { table, types } => {
                let table = self.get(*table)?;
                schema::require(&self.db, table.tree, table.name(), types).await?;
            }
            Change::Put { .. } | Change::Delete { .. } | Change::DeleteRange { .. } => {}
        }
        Ok(())
    }
}

/// Returns the key that a change puts into a table.
fn key_put(change: &Change, into: TableId) -> Option<&[u8]> {
    match change {
        Change::Put { table, key, .. } if *table == into => Some(key),
        _ => None,
    }
}
