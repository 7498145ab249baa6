//! The bytes of keys and values: indices as big-endian numbers, which sort in the order of the log, and everything else by
//! postcard, behind a byte naming the format.

use std::fmt::Display;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};

/// The first byte of each value.
const FORMAT: u8 = 1;

/// Returns the key of the log entry at `index`.
pub(crate) fn key_of(index: u64) -> [u8; 8] {
    index.to_be_bytes()
}

/// Returns the index of a log entry by its key.
///
/// # Errors
/// `Damaged` for a key that is none of the log's.
pub(crate) fn index_of(key: &[u8]) -> Result<u64> {
    let key = key.try_into().map_err(|_| Error::Damaged(format!("a key of the log has {} bytes, not 8", key.len())))?;
    Ok(u64::from_be_bytes(key))
}

/// Encodes a value.
///
/// # Errors
/// `InvalidCall` for a type that postcard cannot write.
pub(crate) fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>> {
    let encoded = postcard::to_extend(value, vec![FORMAT]);
    encoded.map_err(|error| Error::InvalidCall(format!("{} cannot be encoded: {error}", std::any::type_name::<T>())))
}

/// Decodes a value; `what` names it in the error.
///
/// # Errors
/// `Damaged` for bytes that are no such value, with the reason.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8], what: impl Display) -> Result<T> {
    let damaged = |why: String| Error::Damaged(format!("{what}: {why}"));
    match bytes.split_first() {
        Some((&FORMAT, rest)) => match postcard::take_from_bytes(rest) {
            Ok((value, [])) => Ok(value),
            Ok((_, more)) => Err(damaged(format!("{} bytes follow the value", more.len()))),
            Err(error) => Err(damaged(format!("not a {}: {error}", std::any::type_name::<T>()))),
        },
        Some((format, _)) => Err(damaged(format!("format {format} is not known to this version"))),
        None => Err(damaged("no bytes".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_survives_and_any_cut_or_longer_one_is_refused() {
        let value = (7u64, vec!["ann".to_string(), "bob".to_string()], Some(3u8));
        let bytes = encode(&value).unwrap();
        assert_eq!(decode::<(u64, Vec<String>, Option<u8>)>(&bytes, "it").unwrap(), value);
        let longer = [&bytes[..], &[0]].concat();
        for wrong in (0..bytes.len()).map(|len| &bytes[..len]).chain([&longer[..]]) {
            assert!(matches!(decode::<(u64, Vec<String>, Option<u8>)>(wrong, "it"), Err(Error::Damaged(_))));
        }
        let later = [&[2], &bytes[1..]].concat();
        let error = decode::<(u64, Vec<String>, Option<u8>)>(&later, "the vote").unwrap_err();
        assert_eq!(error.to_string(), "the vote: format 2 is not known to this version");
    }

    #[test]
    fn keys_are_in_the_order_of_indices() {
        let indices = [0, 1, 255, 256, u64::from(u32::MAX) + 1, u64::MAX];
        assert!(indices.map(key_of).is_sorted());
        assert_eq!(indices.map(|index| index_of(&key_of(index)).unwrap()), indices);
        assert!(index_of(b"short").is_err());
    }
}
