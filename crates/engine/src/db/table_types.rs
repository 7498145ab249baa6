//! The types of a table's keys and values: names in its entry of the catalog, which each opening with types compares.
//!
//! They are a property of the entry, so they go with the table when it is renamed or backed up, and with it when it is
//! dropped. A commit gives them to a table that has none.

use super::tables::in_catalog;
use super::{Db, Snapshot, thread};
use crate::btree::Tree;
use crate::error::{Error, ErrorKind, Result};
use crate::format::LateFeature;
use crate::format::catalog::{table_types, with_types};
use crate::format::cell::inline_value_bytes_max;
use crate::transaction::{CATALOG, Op};
use crate::typed::{Key, Value};

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
    pub(super) fn of<K: Key, V: Value>() -> Self {
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
pub(super) async fn require(db: &Db, tree: Tree, name: &str, types: &TableTypes) -> Result<()> {
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
