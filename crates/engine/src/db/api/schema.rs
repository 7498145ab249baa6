//! The tables of a database as its catalog has them: their names, their compression and their types. [`Db`] has the calls that
//! create, open and list tables.
//!
//! A renaming moves the entry in the catalog to the new name, in one commit. Right because neither the root of the table nor its id changes:
//! handles, open transactions and snapshots find it by them. The record names table and names, never the entry: a replay may create the
//! table with another root. Calls that create, drop or rename a table of either name at the same time meet in the commit section, where each
//! looks at both entries.
//!
//! Compression is a byte in the entry, and a note in the pool, which packs pages as they are written. The types of keys and values are names
//! in the entry, which each opening with types compares: so they go with the table when it is renamed, backed up or dropped. A commit
//! gives them to a table that has none.

use super::snapshot::Snapshot;
use super::table::Table;
use crate::btree::Tree;
use crate::btree::write::check_key;
use crate::codec::Compression;
use crate::db::calls::tables::in_catalog;
use crate::db::calls::thread;
use crate::db::open::handle::Db;
pub use crate::db::upkeep::dictionaries::CompressionEstimate;
use crate::db::upkeep::dictionaries::refuse_unavailable;
use crate::error::{Error, ErrorKind, Result};
use crate::format::LateFeature;
use crate::format::catalog::{table_types, with_types};
use crate::format::cell::inline_value_bytes_max;
use crate::transaction::{CATALOG, Op};
use crate::typed::{Key, Value};

impl Db {
    /// Estimates the space that compressing a table would save, from a megabyte of its pages chosen at random. `None` where it has
    /// too few pages to tell (fewer than 64). Changes nothing; takes some 100 ms, in a task on a dedicated thread.
    ///
    /// # Errors
    /// `NotFound` when there is no table of this name; the errors of reading.
    pub async fn estimate_compression(&self, name: &str) -> Result<Option<CompressionEstimate>> {
        let (db, tree) = (self.clone(), self.core.catalog.table(name.as_bytes()).await?);
        thread::run("nofault-estimate", move || db.owner.upkeep.trainer.estimate(tree)).await?
    }
}

/// Creates an empty table, durably.
pub(in crate::db) async fn create_table(db: &Db, name: &str, compression: Compression) -> Result<Table> {
    if name.is_empty() {
        return Err(Error::new(ErrorKind::InvalidCall, "create a table: its name is empty"));
    }
    refuse_unavailable(compression)?;
    let op = Op::CreateTable { name: name.as_bytes().to_vec(), compression };
    db.core.committer.commit_op(op).await.map_err(in_catalog)?;
    let table = db.table(name).await?;
    learn(db, table.tree, name).await?;
    Ok(table)
}

/// Sets the compression of a table, durably.
pub(in crate::db) async fn set(db: &Db, name: &str, compression: Compression) -> Result<()> {
    refuse_unavailable(compression)?;
    let tree = db.core.catalog.table(name.as_bytes()).await?;
    let op = Op::SetCompression { tree, name: name.as_bytes().to_vec(), compression };
    db.core.committer.commit_op(op).await.map_err(in_catalog)?;
    learn(db, tree, name).await
}

/// Tells the pool which compression the catalog has for a table. Of several calls at a time the last to end has seen
/// the newest entry: each looks again after it has told the pool.
pub(in crate::db) async fn learn(db: &Db, tree: Tree, name: &str) -> Result<()> {
    let mut told = None;
    loop {
        let current = match db.core.catalog.compression(tree, name.as_bytes()).await {
            Ok(compression) => compression,
            // The table was dropped since, or renamed: then the call that has renamed it looks at its entry.
            Err(error) if error.kind() == ErrorKind::NotFound => match db.core.tables.refusal(tree) {
                Some(_) => Compression::None,
                None => return Ok(()),
            },
            Err(error) => return Err(error),
        };
        if told == Some(current) {
            return Ok(());
        }
        db.core.store.writer().codecs().set(tree.table, current);
        told = Some(current);
    }
}

impl Db {
    /// Gives a table another name. Durable when it returns; takes as long as a `put`, whatever the size of the table. The
    /// first table of a database that is renamed costs a checkpoint: from then on builds that do not know renamed tables
    /// refuse the database.
    /// Open handles and transactions of the table go on; [`Table::name`](crate::db::Table::name) of a handle stays the name
    /// by which it was opened. A snapshot from before has the table under its old name.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), nofault::error::Error> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::Db::create(folder.path().join("shop"), &settings).await?;
    /// let stock = db.create_table("stock").await?;
    /// db.rename_table("stock", "warehouse").await?;
    /// stock.put("apples", "12").await?;
    /// assert_eq!(db.table("warehouse").await?.get("apples").await?, Some(b"12".to_vec()));
    /// assert!(db.table("stock").await.is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `NotFound` when there is no table `name`; `AlreadyExists` when there is a table `to`, unless both are the same;
    /// `InvalidCall` when `to` is empty or longer than a key may be; otherwise as [`Db::write`].
    pub async fn rename_table(&self, name: &str, to: &str) -> Result<()> {
        if to.is_empty() {
            return Err(Error::new(ErrorKind::InvalidCall, "rename a table: its new name is empty"));
        }
        self.owner.check_open()?;
        let tree = self.core.catalog.table(name.as_bytes()).await?;
        if name == to {
            return Ok(());
        }
        check_key(self.page_bytes(), to.as_bytes())?;
        let owner = self.owner.clone();
        thread::run("nofault-ckpt", move || owner.allow(LateFeature::Properties)).await??;
        let op = Op::RenameTable { tree, name: name.as_bytes().to_vec(), to: to.as_bytes().to_vec() };
        self.core.committer.commit_op(op).await.map_err(in_catalog)?;
        // A call that set the compression under the old name may have found no table of that name any more.
        learn(self, tree, to).await
    }
}

/// The names of the types of a table's keys and values: see [`crate::typed`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableTypes {
    /// The name of the type of the keys.
    pub key: String,
    /// The name of the type of the values.
    pub value: String,
}

impl TableTypes {
    /// Creates a pair of names.
    pub fn new(key: impl Into<String>, value: impl Into<String>) -> Self {
        Self { key: key.into(), value: value.into() }
    }

    /// Returns the names of two types.
    pub(in crate::db) fn of<K: Key, V: Value>() -> Self {
        Self { key: K::type_name(), value: V::type_name() }
    }

    fn of_entry(entry: &[u8]) -> Option<Self> {
        let (key, value) = table_types(entry)?;
        Some(Self { key: key.into(), value: value.into() })
    }
}

impl Db {
    /// Returns the names of the types of a table's keys and values, if it was opened with types: see
    /// [`Db::typed_table`].
    ///
    /// # Errors
    /// `NotFound` when there is no such table; `Corrupt` or `Io` when the catalog cannot be read.
    pub async fn table_types(&self, name: &str) -> Result<Option<TableTypes>> {
        let tree = self.core.catalog.table(name.as_bytes()).await?;
        Ok(TableTypes::of_entry(&self.core.catalog.entry(tree, name.as_bytes()).await?))
    }
}

impl Snapshot {
    /// Returns the names of the types of a table's keys and values in this snapshot, if it has them.
    ///
    /// # Errors
    /// `Corrupt` or `Io` when the catalog cannot be read.
    pub async fn types(&self, name: &str) -> Result<Option<TableTypes>> {
        let found = self.db.core.reader.get_at(&self.pages, CATALOG, name.as_bytes()).await.map_err(in_catalog)?;
        Ok(found.as_deref().and_then(TableTypes::of_entry))
    }
}

/// Compares the types of a table with these, or gives them to a table that has none, durably. In a database that is only
/// read such a table stays without.
///
/// # Errors
/// `WrongType` when it has others; `NotFound` when it was dropped; otherwise as [`Db::write`].
pub(in crate::db) async fn require(db: &Db, tree: Tree, name: &str, types: &TableTypes) -> Result<()> {
    loop {
        let entry = db.core.catalog.entry(tree, name.as_bytes()).await?;
        if let Some(found) = TableTypes::of_entry(&entry) {
            return compare(name, &found, types);
        }
        if db.is_read_only() {
            // There are none to compare with, and none can be given to it.
            return Ok(());
        }
        let (key, value) = (types.key.clone(), types.value.clone());
        let longest = [&key, &value].into_iter().map(String::len).max().unwrap_or(0);
        if longest > usize::from(u16::MAX)
            || with_types(&entry, &key, &value).len() > inline_value_bytes_max(db.page_bytes())
        {
            let what = format!("the names of its types take too many bytes: {key} and {value}");
            return Err(Error::new(ErrorKind::InvalidCall, format!("table {name:?}: {what}")));
        }
        let owner = db.owner.clone();
        thread::run("nofault-ckpt", move || owner.allow(LateFeature::Properties)).await??;
        let op = Op::SetTypes { tree, name: name.as_bytes().to_vec(), key, value };
        match db.core.committer.commit_op(op).await {
            // Another call was faster.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            done => return done.map_err(in_catalog),
        }
    }
}

fn compare(name: &str, found: &TableTypes, wanted: &TableTypes) -> Result<()> {
    if found == wanted {
        return Ok(());
    }
    let what = format!(
        "table {name:?} has keys of type {} and values of type {}, and was opened for {} and {}",
        found.key, found.value, wanted.key, wanted.value
    );
    Err(Error::new(ErrorKind::WrongType, what))
}
