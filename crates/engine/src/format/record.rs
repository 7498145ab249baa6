//! The record of one commit in the log: its changes, in terms of tables and keys, never of pages.
//!
//! A record is a run of changes. Numbers are in LEB128 (seven bits a byte, lowest first, the high bit says that more follow).
//!
//! | change | bytes |
//! |---|---|
//! | put | `1`, table, length of the key, length of the value, key, value |
//! | delete | `2`, table, length of the key, key |
//! | create table | `3`, length of the name, name; its id is the number of the commit |
//! | drop table | `4`, table, length of the name, name |
//! | create compressed table | `5`, compression, length of the name, name; otherwise as `3` |
//! | set compression | `6`, compression, table, length of the name, name |
//! | rename table | `7`, table, length of the name, name, length of the new name, new name |
//! | put with an expiry | `9`, moment, and then as put |
//! | set types | `8`, table, length of the name, name, length of the type's name and the name, of the keys and of the values |

use super::{Moment, TableId};
use crate::codec::Compression;
use crate::error::{Error, ErrorKind, Result};

const PUT: u8 = 1;
const DELETE: u8 = 2;
const CREATE_TABLE: u8 = 3;
const DROP_TABLE: u8 = 4;
const CREATE_COMPRESSED: u8 = 5;
const SET_COMPRESSION: u8 = 6;
const RENAME_TABLE: u8 = 7;
const SET_TYPES: u8 = 8;
const PUT_WITH_EXPIRY: u8 = 9;

/// One change in the record of a commit; its keys, values and names are borrowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change<'a> {
    /// Sets the value of a key.
    Put {
        /// The table of the key.
        table: TableId,
        /// The key.
        key: &'a [u8],
        /// The new value of the key.
        value: &'a [u8],
        /// The moment at which it expires.
        expiry: Moment,
    },
    /// Removes a key, if it is there.
    Delete {
        /// The table of the key.
        table: TableId,
        /// The key.
        key: &'a [u8],
    },
    /// Creates an empty table.
    CreateTable {
        /// The name of the table.
        name: &'a [u8],
        /// The compression of the table.
        compression: Compression,
    },
    /// Removes a table and all that is in it.
    DropTable {
        /// The table to be removed.
        table: TableId,
        /// The name of the table.
        name: &'a [u8],
    },
    /// Sets the compression of a table.
    SetCompression {
        /// The table.
        table: TableId,
        /// The name of the table.
        name: &'a [u8],
        /// The new compression of the table.
        compression: Compression,
    },
    /// Gives a table another name.
    RenameTable {
        /// The table.
        table: TableId,
        /// The name that it had.
        name: &'a [u8],
        /// The name that it gets.
        to: &'a [u8],
    },
    /// Sets the names of the types of a table's keys and values.
    SetTypes {
        /// The table.
        table: TableId,
        /// The name of the table.
        name: &'a [u8],
        /// The name of the type of its keys.
        key: &'a [u8],
        /// The name of the type of its values.
        value: &'a [u8],
    },
}

impl<'a> Change<'a> {
    /// Appends all but the value to `into`, and returns the value, which the caller appends next.
    pub(crate) fn encode_head(&self, into: &mut Vec<u8>) -> &'a [u8] {
        match self {
            Self::Put { table, key, value, expiry } => {
                match *expiry {
                    Moment::NEVER => into.push(PUT),
                    expiry => {
                        into.push(PUT_WITH_EXPIRY);
                        put_number(into, expiry.0);
                    }
                }
                put_number(into, table.0);
                put_number(into, key.len() as u64);
                put_number(into, value.len() as u64);
                into.extend_from_slice(key);
                value
            }
            Self::Delete { table, key } => {
                into.push(DELETE);
                put_number(into, table.0);
                put_number(into, key.len() as u64);
                into.extend_from_slice(key);
                &[]
            }
            Self::CreateTable { name, compression } => {
                match compression {
                    Compression::None => into.push(CREATE_TABLE),
                    compression => into.extend_from_slice(&[CREATE_COMPRESSED, compression.to_byte()]),
                }
                put_number(into, name.len() as u64);
                into.extend_from_slice(name);
                &[]
            }
            Self::DropTable { table, name } => {
                into.push(DROP_TABLE);
                put_number(into, table.0);
                put_number(into, name.len() as u64);
                into.extend_from_slice(name);
                &[]
            }
            Self::SetCompression { table, name, compression } => {
                into.extend_from_slice(&[SET_COMPRESSION, compression.to_byte()]);
                put_number(into, table.0);
                put_number(into, name.len() as u64);
                into.extend_from_slice(name);
                &[]
            }
            Self::RenameTable { table, name, to } => {
                into.push(RENAME_TABLE);
                put_number(into, table.0);
                put_text(into, name);
                put_text(into, to);
                &[]
            }
            Self::SetTypes { table, name, key, value } => {
                into.push(SET_TYPES);
                put_number(into, table.0);
                [name, key, value].into_iter().for_each(|text| put_text(into, text));
                &[]
            }
        }
    }

    /// Takes the next change off the front of `record`; `None` at its end.
    ///
    /// # Errors
    /// `Corrupt` when the bytes are no change.
    pub(crate) fn decode(record: &mut &'a [u8]) -> Result<Option<Self>> {
        let Some((kind, rest)) = record.split_first() else { return Ok(None) };
        *record = rest;
        let change = match *kind {
            kind @ (PUT | PUT_WITH_EXPIRY) => {
                let expiry = if kind == PUT { Moment::NEVER } else { Moment(take_number(record)?) };
                let table = TableId(take_number(record)?);
                let (key_len, value_len) = (take_number(record)?, take_number(record)?);
                Self::Put { table, key: take(record, key_len)?, value: take(record, value_len)?, expiry }
            }
            DELETE => {
                let (table, key_len) = (TableId(take_number(record)?), take_number(record)?);
                Self::Delete { table, key: take(record, key_len)? }
            }
            kind @ (CREATE_TABLE | CREATE_COMPRESSED) => {
                let compression = if kind == CREATE_TABLE { Compression::None } else { take_compression(record)? };
                let name_len = take_number(record)?;
                Self::CreateTable { name: take(record, name_len)?, compression }
            }
            DROP_TABLE => {
                let (table, name_len) = (TableId(take_number(record)?), take_number(record)?);
                Self::DropTable { table, name: take(record, name_len)? }
            }
            SET_COMPRESSION => {
                let compression = take_compression(record)?;
                let (table, name_len) = (TableId(take_number(record)?), take_number(record)?);
                Self::SetCompression { table, name: take(record, name_len)?, compression }
            }
            RENAME_TABLE => {
                let table = TableId(take_number(record)?);
                Self::RenameTable { table, name: take_text(record)?, to: take_text(record)? }
            }
            SET_TYPES => {
                let (table, name) = (TableId(take_number(record)?), take_text(record)?);
                Self::SetTypes { table, name, key: take_text(record)?, value: take_text(record)? }
            }
            other => return Err(damaged(format!("change of kind {other}"))),
        };
        Ok(Some(change))
    }
}

fn put_number(into: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        into.push(number as u8 | 0x80);
        number >>= 7;
    }
    into.push(number as u8);
}

fn put_text(into: &mut Vec<u8>, text: &[u8]) {
    put_number(into, text.len() as u64);
    into.extend_from_slice(text);
}

fn take_text<'a>(from: &mut &'a [u8]) -> Result<&'a [u8]> {
    let len = take_number(from)?;
    take(from, len)
}

fn take_number(from: &mut &[u8]) -> Result<u64> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let Some((byte, rest)) = from.split_first() else { return Err(damaged("it ends within a number")) };
        *from = rest;
        let bits = u64::from(byte & 0x7f);
        if shift == 63 && bits > 1 {
            break;
        }
        number |= bits << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(damaged("a number is too large"))
}

fn take_compression(from: &mut &[u8]) -> Result<Compression> {
    let byte = take(from, 1)?[0];
    Compression::from_byte(byte).ok_or_else(|| damaged(format!("compression {byte}")))
}

fn take<'a>(from: &mut &'a [u8], len: u64) -> Result<&'a [u8]> {
    let split = usize::try_from(len).ok().and_then(|len| from.split_at_checked(len));
    let (taken, rest) = split.ok_or_else(|| damaged("it is shorter than its lengths require"))?;
    *from = rest;
    Ok(taken)
}

fn damaged(what: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Corrupt, format!("a record of the log is damaged: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encode(changes: &[Change<'_>]) -> Vec<u8> {
        let mut record = Vec::new();
        for change in changes {
            let value = change.encode_head(&mut record);
            record.extend_from_slice(value);
        }
        record
    }

    fn decode(mut record: &[u8]) -> Result<Vec<Change<'_>>> {
        let mut changes = Vec::new();
        while let Some(change) = Change::decode(&mut record)? {
            changes.push(change);
        }
        Ok(changes)
    }

    proptest! {
        #[test]
        fn changes_come_back_as_they_were_written(
            parts in prop::collection::vec((0u8..9, any::<u64>(), prop::collection::vec(any::<u8>(), 0..200)), 0..10),
        ) {
            let changes: Vec<_> = parts.iter().map(|(kind, table, bytes)| match kind {
                kind @ (0 | 1) => {
                    let (key, value) = bytes.split_at(bytes.len() / 3);
                    let expiry = if *kind == 0 { Moment::NEVER } else { Moment(table / 3) };
                    Change::Put { table: TableId(*table), key, value, expiry }
                }
                2 => Change::Delete { table: TableId(*table), key: bytes },
                3 => Change::CreateTable { name: bytes, compression: Compression::None },
                4 => Change::CreateTable { name: bytes, compression: Compression::Fast },
                5 => Change::DropTable { table: TableId(*table), name: bytes },
                6 => Change::RenameTable { table: TableId(*table), name: &bytes[..bytes.len() / 3], to: &bytes[bytes.len() / 3..] },
                7 => {
                    let (name, rest) = bytes.split_at(bytes.len() / 3);
                    let (key, value) = rest.split_at(rest.len() / 2);
                    Change::SetTypes { table: TableId(*table), name, key, value }
                }
                _ => Change::SetCompression { table: TableId(*table), name: bytes, compression: Compression::Fast },
            }).collect();
            let record = encode(&changes);
            prop_assert_eq!(decode(&record).unwrap(), changes);
        }

        #[test]
        fn arbitrary_bytes_are_changes_or_an_error(record in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = decode(&record);
        }
    }

    #[test]
    fn a_record_cut_short_is_an_error() {
        for expiry in [Moment::NEVER, Moment(1 << 40)] {
            let record = encode(&[Change::Put { table: TableId(300), key: b"key", value: b"value", expiry }]);
            for len in 1..record.len() {
                assert_eq!(decode(&record[..len]).unwrap_err().kind(), ErrorKind::Corrupt, "{len} bytes");
            }
        }
    }
}
