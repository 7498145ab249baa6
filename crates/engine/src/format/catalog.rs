//! An entry of the catalog, the table of tables: the key is the table's name, the value its id (8 bytes) and root (6
//! bytes), and one more byte for the compression of a table that is compressed, or that has properties, which follow:
//! of each a tag (1 byte), the length of its bytes (2), and the bytes. Tag 1 is the name of the type of the table's keys,
//! tag 2 the name of its values' type. Properties with other tags are kept as they are.
//!
//! A dropped table with pages still to be freed has such an entry, too. Its key is the byte 0xFF, with which no UTF-8
//! text begins, and the table's id. The content that a table had before a bulk load into it waits in the same way: the
//! root follows the id in the key, as the table may be dropped until then, and property 3 of the value is the commit of
//! the load (8 bytes).
//!
//! The index of expiry (`db::expiry`) is a table under the key 0xFD, with which no UTF-8 text begins. A bulk load with entries
//! that expire leaves a note that these have no rows in the index yet: its key is the byte 0xFC, with which no UTF-8 text begins,
//! the table's id and the commit of the load (8 bytes each, big-endian), its value the table's without properties.
//!
//! The key 0xFB, with which no UTF-8 text begins, is never there. A record that removes it, followed by the id of a table and the
//! number of the commit (8 bytes each, big-endian), says that the commit is a load into that table, past the log.
//!
//! A dictionary has an entry as well. Its key is the byte 0xFE, with which no UTF-8 text begins either, and its number
//! (2 bytes, big-endian); its value is the id of its table (8 bytes), the number of the dictionary among the dictionaries of the
//! table (2), its ratio (2), four zero bytes, and the dictionary.

use super::cell::{CHILD_BYTES, decode_child, encode_child};
use super::{CommitSeq, PageId, TableId};
use crate::codec::{Compression, DictionaryOrigin};
use crate::error::{Error, ErrorKind, Result};

/// First byte of the catalog keys of dropped tables.
const TO_BE_FREED: u8 = 0xFF;
/// The catalog key of the index of expiry.
pub(crate) const EXPIRY_INDEX_KEY: &[u8] = &[EXPIRY_INDEX];
const EXPIRY_INDEX: u8 = 0xFD;
/// First byte of the catalog keys of loads with entries that expire and have no rows in the index of expiry yet.
const WITHOUT_ROWS: u8 = 0xFC;
/// First byte of the catalog keys that stand for loads in the log, and are never in the catalog.
const LOADED: u8 = 0xFB;
/// First byte of the catalog keys of dictionaries.
const DICTIONARY: u8 = 0xFE;

/// Returns the catalog key under which a dropped table waits for its pages to be freed.
pub(crate) fn to_be_freed(table: TableId) -> Vec<u8> {
    [&[TO_BE_FREED][..], &table.0.to_be_bytes()].concat()
}

/// Returns the catalog key under which the content that a table had before a load waits for its pages to be freed.
pub(crate) fn replaced_to_be_freed(table: TableId, root: PageId) -> Vec<u8> {
    [to_be_freed(table), encode_child(root).to_vec()].concat()
}

/// Returns whether a catalog key belongs to a tree waiting for its pages to be freed.
pub(crate) fn is_to_be_freed(key: &[u8]) -> bool {
    key.first() == Some(&TO_BE_FREED)
}

/// Returns whether a catalog key belongs to the tree with this root, which waits for its pages to be freed.
pub(crate) fn is_note_of(key: &[u8], table: TableId, root: PageId) -> bool {
    key == to_be_freed(table) || key == replaced_to_be_freed(table, root)
}

/// Returns the lower bound of the keys of dropped tables. No table name is above it.
pub(crate) fn first_to_be_freed() -> Vec<u8> {
    vec![TO_BE_FREED]
}

/// Returns whether a catalog key is the name of a table.
pub(crate) fn is_name(key: &[u8]) -> bool {
    !matches!(key.first(), Some(&(TO_BE_FREED | DICTIONARY | EXPIRY_INDEX | WITHOUT_ROWS | LOADED)))
}

/// Returns the catalog key of the note that the load of commit `by` has put entries that expire into a table, which have no
/// rows in the index of expiry yet.
pub(crate) fn without_rows(table: TableId, by: CommitSeq) -> Vec<u8> {
    [&[WITHOUT_ROWS][..], &table.0.to_be_bytes(), &by.0.to_be_bytes()].concat()
}

/// Returns whether a catalog key belongs to such a note.
pub(crate) fn is_without_rows(key: &[u8]) -> bool {
    key.first() == Some(&WITHOUT_ROWS)
}

/// Returns the bounds of the keys of such notes: the first, and the first key after them.
pub(crate) fn bounds_without_rows() -> [Vec<u8>; 2] {
    [vec![WITHOUT_ROWS], vec![WITHOUT_ROWS + 1]]
}

/// Returns the key whose removal from the catalog stands for the load of commit `by` in the log.
pub(crate) fn load_marker(table: TableId, by: CommitSeq) -> Vec<u8> {
    [&[LOADED][..], &table.0.to_be_bytes(), &by.0.to_be_bytes()].concat()
}

/// Returns the table of the load for which a catalog key stands in the log, if it is such a key.
pub(crate) fn loaded_table(key: &[u8]) -> Option<TableId> {
    let (table, by) = key.strip_prefix(&[LOADED])?.split_first_chunk::<8>()?;
    (by.len() == 8).then(|| TableId(u64::from_be_bytes(*table)))
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

/// Tags of the properties that name the types of a table's keys and values.
const KEY_TYPE: u8 = 1;
const VALUE_TYPE: u8 = 2;
/// Tag of the property with the commit of the load that replaced the content.
const REPLACED_BY: u8 = 3;

/// Encodes the catalog value of the content that a table had before the load of commit `by`.
pub(crate) fn encode_replaced(table: TableId, root: PageId, by: CommitSeq) -> Vec<u8> {
    let head = encode_table(table, root, Compression::None);
    let property = [REPLACED_BY, 8, 0];
    [&head[..], &[Compression::None.to_byte()], &property, &by.0.to_le_bytes()].concat()
}

/// Returns the commit of the load that replaced the content of a table, in the catalog value of that content.
pub(crate) fn replaced_by(value: &[u8]) -> Option<CommitSeq> {
    let mut found = properties(split_properties(value).1).flatten().filter(|(tag, _)| *tag == REPLACED_BY);
    Some(CommitSeq(u64::from_le_bytes(found.next()?.1.try_into().ok()?)))
}

/// Splits the catalog value of a table into the part that each table has, and its properties.
fn split_properties(value: &[u8]) -> (&[u8], &[u8]) {
    value.split_at(value.len().min(8 + CHILD_BYTES + 1))
}

/// Returns the tags and bytes of properties; `None` for one that is cut short.
fn properties(mut rest: &[u8]) -> impl Iterator<Item = Option<(u8, &[u8])>> {
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let property = rest.split_first_chunk::<3>().and_then(|([tag, low, high], after)| {
            let (bytes, after) = after.split_at_checked(usize::from(u16::from_le_bytes([*low, *high])))?;
            rest = after;
            Some((*tag, bytes))
        });
        if property.is_none() {
            rest = &[];
        }
        Some(property)
    })
}

/// Returns the names of the types of a table's keys and values in its catalog value, if it has them.
pub(crate) fn table_types(value: &[u8]) -> Option<(&str, &str)> {
    let name = |wanted| {
        let mut found = properties(split_properties(value).1).flatten().filter(|(tag, _)| *tag == wanted);
        std::str::from_utf8(found.next()?.1).ok()
    };
    Some((name(KEY_TYPE)?, name(VALUE_TYPE)?))
}

/// Returns the catalog value of a table with the names of the types of its keys and values, each of 65,535 bytes at most.
pub(crate) fn with_types(value: &[u8], key: &str, of_value: &str) -> Vec<u8> {
    let (head, rest) = split_properties(value);
    let mut with = head.to_vec();
    with.resize(8 + CHILD_BYTES + 1, Compression::None.to_byte());
    let kept = properties(rest).flatten().filter(|(tag, _)| ![KEY_TYPE, VALUE_TYPE].contains(tag));
    for (tag, bytes) in kept.chain([(KEY_TYPE, key.as_bytes()), (VALUE_TYPE, of_value.as_bytes())]) {
        with.push(tag);
        with.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
        with.extend_from_slice(bytes);
    }
    with
}

/// Returns the catalog value of a table with another compression.
pub(crate) fn with_compression(value: &[u8], compression: Compression) -> Vec<u8> {
    let (head, rest) = split_properties(value);
    let mut with = head[..head.len().min(8 + CHILD_BYTES)].to_vec();
    if compression != Compression::None || !rest.is_empty() {
        with.push(compression.to_byte());
    }
    with.extend_from_slice(rest);
    with
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
            [byte, rest @ ..] if properties(rest).all(|property| property.is_some()) => Compression::from_byte(*byte)?,
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
        let note = without_rows(TableId(u64::MAX), CommitSeq(u64::MAX));
        let [first, end] = bounds_without_rows();
        assert!(
            !is_name(&note) && is_without_rows(&note) && first < note && note < end && &end[..] <= EXPIRY_INDEX_KEY
        );
        assert!(
            !is_without_rows(EXPIRY_INDEX_KEY)
                && !is_without_rows("ü".as_bytes())
                && dictionary_number(&note).is_none()
        );
        assert_eq!((dictionary_number(b"\xFE"), dictionary_number(b"\xFE\0\0\0")), (Some(0), Some(0)));
    }

    #[test]
    fn the_marker_of_a_load_names_its_table_and_is_no_other_key() {
        let marker = load_marker(TableId(300), CommitSeq(u64::MAX));
        assert_eq!(loaded_table(&marker), Some(TableId(300)));
        assert!(!is_name(&marker) && !is_without_rows(&marker) && !is_to_be_freed(&marker));
        assert_eq!((dictionary_number(&marker), is_name("û".as_bytes())), (None, true));
        assert!((0..marker.len()).all(|len| loaded_table(&marker[..len]).is_none()));
        assert_eq!(loaded_table(&without_rows(TableId(300), CommitSeq(1))), None);
    }

    #[test]
    fn the_content_before_a_load_has_a_key_beside_that_of_the_table_and_names_the_load() {
        let (table, root) = (TableId(7), PageId(9));
        let key = replaced_to_be_freed(table, root);
        assert!(!is_name(&key) && dictionary_number(&key).is_none() && key > first_to_be_freed());
        assert!(is_note_of(&key, table, root) && is_note_of(&to_be_freed(table), table, root));
        assert!(!is_note_of(&key, TableId(8), root) && !is_note_of(&key, table, PageId(10)));
        let value = encode_replaced(table, root, CommitSeq(300));
        assert_eq!(decode_table(&key, &value).unwrap(), (table, root, Compression::None));
        assert_eq!(replaced_by(&value), Some(CommitSeq(300)));
        assert_eq!(replaced_by(&encode_table(table, root, Compression::Small)), None);
    }

    #[test]
    fn types_and_compression_of_a_table_change_apart_from_each_other() {
        let decode = |value: &[u8]| decode_table(b"t", value).unwrap();
        let plain = encode_table(TableId(7), PageId(9), Compression::None);
        let typed = with_types(&plain, "u64", "string");
        assert_eq!(decode(&typed), (TableId(7), PageId(9), Compression::None));
        assert_eq!((table_types(&typed), table_types(&plain)), (Some(("u64", "string")), None));
        let compressed = with_compression(&typed, Compression::Fast);
        assert_eq!(decode(&compressed), (TableId(7), PageId(9), Compression::Fast));
        assert_eq!(table_types(&compressed), Some(("u64", "string")));
        assert_eq!(with_compression(&compressed, Compression::None), typed);
        assert_eq!(with_compression(&plain, Compression::Fast), encode_table(TableId(7), PageId(9), Compression::Fast));
        let changed = with_types(&compressed, "(u8,bytes)", "()");
        assert_eq!((decode(&changed).2, table_types(&changed)), (Compression::Fast, Some(("(u8,bytes)", "()"))));
        // A property of a later build.
        let later = [&typed[..], &[200, 1, 0, 5]].concat();
        assert!(with_types(&later, "u8", "u8").windows(4).any(|four| four == [200, 1, 0, 5]));
        for len in 15..later.len() {
            let whole = [15, 15 + 6, typed.len()].contains(&len);
            assert_eq!(decode_table(b"t", &later[..len]).is_ok(), whole, "{len} bytes");
        }
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_are_a_table_or_an_error(value in proptest::collection::vec(proptest::num::u8::ANY, 0..40)) {
            let _ = (decode_table(b"t", &value), table_types(&value));
            let _ = with_compression(&with_types(&value, "a", "b"), Compression::Fast);
        }
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
