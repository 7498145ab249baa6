//! An entry of the catalog, the table of tables: the key is the table's name, the value its id (8 bytes) and root (6 bytes).

use super::node::{decode_child, encode_child};
use super::{PageId, TableId};
use crate::error::{Error, ErrorKind, Result};

/// The value for a table.
pub(crate) fn encode_table(table: TableId, root: PageId) -> Vec<u8> {
    [&table.0.to_le_bytes()[..], &encode_child(root)].concat()
}

/// The table that a value describes.
///
/// # Errors
/// `Corrupt` when it describes none.
pub(crate) fn decode_table(name: &[u8], value: &[u8]) -> Result<(TableId, PageId)> {
    let parts = value.split_first_chunk::<8>();
    let entry = parts.and_then(|(table, root)| Some((TableId(u64::from_le_bytes(*table)), decode_child(root)?)));
    entry.ok_or_else(|| {
        let name = String::from_utf8_lossy(name);
        Error::new(ErrorKind::Corrupt, format!("the catalog's entry for table {name:?} is damaged"))
    })
}
