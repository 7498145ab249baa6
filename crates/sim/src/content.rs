//! What a database holds, for tests that compare it with what it must hold.

use std::collections::BTreeMap;

/// The rows of a table by their keys: values are bytes.
pub type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// The rows of a database by the names of its tables.
pub type Content = BTreeMap<String, Rows>;

/// Returns the key of a row. Keys have the order of the rows' numbers.
#[must_use]
pub fn key(row: u32) -> [u8; 4] {
    row.to_be_bytes()
}

/// Returns a value of `len_bytes` bytes: the row's number in the first eight, and the version in all others.
///
/// # Panics
/// When `len_bytes` is less than eight.
#[must_use]
pub fn value(row: u64, version: u8, len_bytes: usize) -> Vec<u8> {
    let mut value = vec![version; len_bytes];
    value[..8].copy_from_slice(&row.to_le_bytes());
    value
}
