//! Reads entries of the catalog for the changes that depend on them: a table is created, renamed or changed only if its
//! entry is as the change expects.

use super::CATALOG;
use crate::btree::{FoundValue, Tree};
use crate::codec::Compression;
use crate::error::{Error, ErrorKind, Result};
use crate::format::catalog::{decode_table, table_types};
use crate::pages::{Attempt, Pages};

/// Returns the entry of a table under this name.
///
/// # Errors
/// `NotFound` when the name is not, or no longer, the table's.
pub(crate) fn entry_of<P: Pages>(pages: &P, tree: Tree, name: &[u8]) -> Attempt<Vec<u8>> {
    if let Some(found) = CATALOG.get(pages, name)?
        && table_of(name, &found)? == tree
        && let FoundValue::Inline(entry) = found
    {
        return Ok(entry);
    }
    let name = String::from_utf8_lossy(name);
    Err(Error::new(ErrorKind::NotFound, format!("there is no table {name:?} any more")).into())
}

/// Refuses a name that a table has already.
///
/// # Errors
/// `AlreadyExists` when there is such a table.
pub(crate) fn refuse_existing<P: Pages>(pages: &P, name: &[u8]) -> Attempt<()> {
    if CATALOG.get(pages, name)?.is_none() {
        return Ok(());
    }
    let name = String::from_utf8_lossy(name);
    Err(Error::new(ErrorKind::AlreadyExists, format!("table {name:?} exists already")).into())
}

/// Refuses to give types to a table that has some.
///
/// # Errors
/// `AlreadyExists` when the entry names types.
pub(crate) fn refuse_types(name: &[u8], entry: &[u8]) -> Result<()> {
    if table_types(entry).is_none() {
        return Ok(());
    }
    let name = String::from_utf8_lossy(name);
    Err(Error::new(ErrorKind::AlreadyExists, format!("table {name:?} has types already")))
}

/// Decodes the table in a catalog value.
///
/// # Errors
/// `Corrupt` when it describes none.
pub(crate) fn table_of(name: &[u8], found: &FoundValue) -> Result<Tree> {
    table_and_compression(name, found).map(|(tree, _)| tree)
}

/// Decodes the table in a catalog value, and its compression.
///
/// # Errors
/// As [`table_of`].
pub(crate) fn table_and_compression(name: &[u8], found: &FoundValue) -> Result<(Tree, Compression)> {
    let value = if let FoundValue::Inline(value) = found { value.as_slice() } else { &[] };
    decode_table(name, value).map(|(table, root, compression)| (Tree { root, table }, compression))
}
