//! An entry of the catalog, the table of tables: the key is the table's name, the value its id (8 bytes) and root (6
//! bytes), and one more byte for the compression of a table that is compressed.
//!
//! A dropped table with pages still to be freed has such an entry, too. Its key is the byte 0xFF, with which no UTF-8
//! text begins, and the table's id.
//!
//! A dictionary has an entry as well. Its key is the byte 0xFE, with which no UTF-8 text begins either, and its number
//! (2 bytes, big-endian); its value is the id of its table (8 bytes), the number of the dictionary among those of the
//! table (2), its ratio (2), four zero bytes, and the dictionary.

use super::cell::{CHILD_BYTES, decode_child, encode_child};
use super::{PageId, TableId};
use crate::codec::{Compression, DictionaryOrigin};
use crate::error::{Error, ErrorKind, Result};

/// First byte of the catalog keys of dropped tables.
const TO_BE_FREED: u8 = 0xFF;
/// First byte of the catalog keys of dictionaries.
const DICTIONARY: u8 = 0xFE;

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
    !matches!(key.first(), Some(&(TO_BE_FREED | DICTIONARY)))
}

/// Returns the catalog key of the dictionary of this number.
pub(crate) fn dictionary_key(number: u16) -> Vec<u8> {
    [&[DICTIONARY][..], &number.to_be_bytes()].concat()
}

/// Returns the number of the dictionary of which this is the catalog key; zero for a key that is none of any number.
/// `None` for the key of a table.
pub(crate) fn dictionary_number(key: &[u8]) -> Option<u16> {
    let number = key.strip_prefix(&[DICTIONARY])?;
    Some(number.try_into().map_or(0, u16::from_be_bytes))
}

/// Encodes the catalog value of a dictionary.
pub(crate) fn encode_dictionary(origin: DictionaryOrigin, dictionary: &[u8]) -> Vec<u8> {
    let (table, ordinal, ratio) = (origin.table.0.to_le_bytes(), origin.ordinal.to_le_bytes(), origin.ratio);
    [&table[..], &ordinal, &ratio.to_le_bytes(), &[0; 4], dictionary].concat()
}

/// Decodes the catalog value of a dictionary; `None` when the bytes describe none.
pub(crate) fn decode_dictionary(value: &[u8]) -> Option<(DictionaryOrigin, &[u8])> {
    let (table, rest) = value.split_first_chunk::<8>()?;
    let (ordinal, rest) = rest.split_first_chunk::<2>()?;
    let (ratio, rest) = rest.split_first_chunk::<2>()?;
    let dictionary = rest.strip_prefix(&[0; 4])?;
    let (ordinal, ratio) = (u16::from_le_bytes(*ordinal), u16::from_le_bytes(*ratio));
    Some((DictionaryOrigin { table: TableId(u64::from_le_bytes(*table)), ordinal, ratio }, dictionary))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_dropped_tables_and_dictionaries_have_keys_of_their_own() {
        assert!(is_name("ÿþ".as_bytes()) && is_name(b"\x01") && dictionary_number("þ".as_bytes()).is_none());
        assert!(!is_name(&to_be_freed(TableId(7))) && dictionary_number(&to_be_freed(TableId(7))).is_none());
        assert!(!is_name(&dictionary_key(258)) && dictionary_number(&dictionary_key(258)) == Some(258));
        assert!(dictionary_key(u16::MAX) < first_to_be_freed());
        assert_eq!((dictionary_number(b"\xFE"), dictionary_number(b"\xFE\0\0\0")), (Some(0), Some(0)));
    }

    #[test]
    fn the_entry_of_a_dictionary_is_read_back_and_a_shorter_one_is_none() {
        let origin = DictionaryOrigin { table: TableId(1 << 40), ordinal: 3, ratio: 1500 };
        let value = encode_dictionary(origin, b"bytes");
        assert_eq!(decode_dictionary(&value), Some((origin, &b"bytes"[..])));
        assert!((0..16).all(|len| decode_dictionary(&value[..len]).is_none()));
        let mut other = value;
        other[12] = 1;
        assert_eq!(decode_dictionary(&other), None);
    }
}
