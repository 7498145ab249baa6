//! An entry of the catalog, the table of tables: the key is the table's name, the value its id (8 bytes) and root (6
//! bytes), and one more byte for the compression of a table that is compressed.
//!
//! A dropped table with pages still to be freed has such an entry, too. Its key is the byte 0xFF, with which no UTF-8
//! text begins, and the table's id.

use super::cell::{CHILD_BYTES, decode_child, encode_child};
use super::{PageId, TableId};
use crate::codec::Compression;
use crate::error::{Error, ErrorKind, Result};

/// First byte of catalog keys that are not table names.
const TO_BE_FREED: u8 = 0xFF;

/// Returns the catalog key under which a dropped table waits for its pages to be freed.
pub(crate) fn to_be_freed(table: TableId) -> Vec<u8> {
    [&[TO_BE_FREED][..], &table.0.to_be_bytes()].concat()
}

/// Returns the lower bound of the keys of dropped tables. No table name is above it.
pub(crate) fn first_to_be_freed() -> Vec<u8> {
    vec![TO_BE_FREED]
}

/// Returns whether a catalog key is the name of a table.
pub(crate) fn is_name(key: &[u8]) -> bool {
    key.first() != Some(&TO_BE_FREED)
}

/// Encodes the catalog value of a table.
pub(crate) fn encode_table(table: TableId, root: PageId, compression: Compression) -> Vec<u8> {
    let mut value = [&table.0.to_le_bytes()[..], &encode_child(root)].concat();
    if compression != Compression::None {
        value.push(compression.to_byte());
    }
    value
}

/// Decodes the catalog value of a table.
///
/// # Errors
/// `Corrupt` when the bytes describe no table.
pub(crate) fn decode_table(name: &[u8], value: &[u8]) -> Result<(TableId, PageId, Compression)> {
    let decode = || {
        let (table, rest) = value.split_first_chunk::<8>()?;
        let (root, rest) = rest.split_at_checked(CHILD_BYTES)?;
        let compression = match rest {
            [] => Compression::None,
            [byte] => Compression::from_byte(*byte)?,
            _ => return None,
        };
        Some((TableId(u64::from_le_bytes(*table)), decode_child(root)?, compression))
    };
    decode().ok_or_else(|| {
        let name = String::from_utf8_lossy(name);
        Error::new(ErrorKind::Corrupt, format!("the catalog's entry for table {name:?} is damaged"))
    })
}
