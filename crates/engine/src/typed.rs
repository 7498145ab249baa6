//! The types of keys and values of a [`TypedTable`](crate::TypedTable), as bytes.
//!
//! A table holds bytes in the order of the bytes. So a key must become bytes that sort as the keys do, which
//! [`Key`] promises; a value may become any bytes ([`Value`]). The encodings are fixed: they are part of what a database
//! contains, like its file format, and an application in another language can read them.
//!
//! # Keys
//! | type | name | bytes |
//! |---|---|---|
//! | `u8` to `u128` | `u8` … | big-endian |
//! | `i8` to `i128` | `i8` … | big-endian, the highest bit flipped |
//! | `f32`, `f64` | `f32`, `f64` | the bits big-endian; a negative number with all of them flipped, another with the highest flipped. The order follows `total_cmp`: -0 before 0, and not-a-number at either end |
//! | `bool` | `bool` | 0 or 1 |
//! | `char` | `char` | 4 bytes, big-endian |
//! | `String`, `str` | `string` | its UTF-8 bytes |
//! | `Vec<u8>`, `[u8]` | `bytes` | themselves |
//! | `Duration` | `duration` | seconds (8 bytes, big-endian), nanoseconds (4) |
//! | `SystemTime` | `time` | seconds since 1970, rounded down, as `i64` (8), nanoseconds (4) |
//! | `Uuid` (feature `uuid`) | `uuid` | its 16 bytes |
//! | `Option<K>` | `option<K>` | 0 for `None`; 1 and the bytes of `K`. `None` comes first |
//! | `[K; N]` | `[K;N]` | its elements, one after the other |
//! | tuples of 1 to 6 | `(A,B)` | its parts, one after the other |
//!
//! Where another part follows, in a tuple or an array, a string or bytes end with `00 00`, and each zero byte in them is
//! `00 FF`. So `("a", 5)` comes before `("a\0", 1)`, and `("ab", 1)` after both. The other types have a fixed length or tell
//! their length themselves, and are the same in every place.
//!
//! # Values
//! | type | name | bytes |
//! |---|---|---|
//! | integers, `f32`, `f64`, `bool` | `u8` … | little-endian; `bool` 0 or 1 |
//! | `String`, `str` | `string` | its UTF-8 bytes |
//! | `Vec<u8>`, `[u8]` | `bytes` | themselves |
//! | `[u8; N]` | `[u8;N]` | themselves |
//! | `()` | `()` | none: a table that is a set |
//! | `Postcard<T>` (feature `serde`) | `postcard:NAME` | the format of the crate `postcard` |
//! | `Plain<T>` (feature `zerocopy`) | `plain:NAME:size` | the memory of `T` |
//!
//! # Types of the application
//! A type defined by the application implements [`Key`] and [`AsKey`], or [`Value`] and [`AsValue`]:
//!
//! ```
//! use nofault::typed::{AsKey, Key};
//!
//! #[derive(Debug, PartialEq)]
//! struct Order(u64);
//!
//! impl AsKey<Order> for Order {
//!     fn encode(&self, into: &mut Vec<u8>) {
//!         self.0.encode(into);
//!     }
//! }
//!
//! impl Key for Order {
//!     fn type_name() -> String {
//!         "order".into()
//!     }
//!     fn decode_part(bytes: &mut &[u8]) -> Option<Self> {
//!         u64::decode_part(bytes).map(Order)
//!     }
//! }
//!
//! let mut bytes = Vec::new();
//! (Order(258), "x").encode(&mut bytes);
//! assert_eq!(bytes, [0, 0, 0, 0, 0, 0, 1, 2, b'x']);
//! assert_eq!(<(Order, String)>::decode(&bytes), Some((Order(258), "x".to_string())));
//! ```

mod key;
#[cfg(feature = "zerocopy")]
mod plain;
#[cfg(feature = "serde")]
mod postcard;
mod tuple;
#[cfg(feature = "uuid")]
mod uuid;
mod value;

#[cfg(feature = "zerocopy")]
pub use self::plain::Plain;
#[cfg(feature = "serde")]
pub use self::postcard::Postcard;
use crate::error::{Error, ErrorKind, Result};

/// A type of keys whose order is the order of their bytes.
///
/// Kept true by its implementations: for any two keys `a < b` (for floats by `total_cmp`) the bytes of `a` come before
/// the bytes of `b`; of two encodings by [`AsKey::encode_part`] neither is the beginning of the other, unless the keys are
/// equal. The table of the [module](self) has the bytes of each.
pub trait Key: AsKey<Self> + Sized {
    /// The name of the type, which the database keeps: a table is only opened with keys of the type that it has.
    fn type_name() -> String;

    /// Takes a key written by [`AsKey::encode_part`] off the front of `bytes`; `None` when there is none.
    fn decode_part(bytes: &mut &[u8]) -> Option<Self>;

    /// Reads a whole key, which was written by [`AsKey::encode`]; `None` when the bytes are no key of this type.
    fn decode(mut bytes: &[u8]) -> Option<Self> {
        let key = Self::decode_part(&mut bytes)?;
        bytes.is_empty().then_some(key)
    }
}

/// A value that stands for a key of type `K` in a call: `str` for `String`, `(&str, u64)` for `(String, u64)`, and each
/// key, and each reference to one, for itself. Its bytes are the key's.
#[diagnostic::on_unimplemented(message = "`{Self}` is no key of a table with keys of type `{K}`")]
pub trait AsKey<K> {
    /// Appends the bytes of a whole key, or of its last part.
    fn encode(&self, into: &mut Vec<u8>);

    /// Appends the bytes of a part that another part follows. The same as [`AsKey::encode`] for types of fixed length.
    fn encode_part(&self, into: &mut Vec<u8>) {
        self.encode(into);
    }
}

impl<K, Q: AsKey<K> + ?Sized> AsKey<K> for &Q {
    fn encode(&self, into: &mut Vec<u8>) {
        (**self).encode(into);
    }

    fn encode_part(&self, into: &mut Vec<u8>) {
        (**self).encode_part(into);
    }
}

/// The beginning of keys of type `K`: the first parts of a tuple, itself a tuple (`(&str,)` for `(String, u64)`), or the
/// first bytes of a string or of bytes.
#[diagnostic::on_unimplemented(message = "`{Self}` is no beginning of keys of type `{K}`")]
pub trait AsPrefix<K> {
    /// Appends the bytes with which the bytes of all these keys begin.
    fn encode_prefix(&self, into: &mut Vec<u8>);
}

impl<K, P: AsPrefix<K> + ?Sized> AsPrefix<K> for &P {
    fn encode_prefix(&self, into: &mut Vec<u8>) {
        (**self).encode_prefix(into);
    }
}

/// A type of values.
pub trait Value {
    /// The values as an application has them: `Self`, or `T` for `Postcard<T>`.
    type Item;

    /// The name of the type, which the database keeps: a table is only opened with values of the type that it has.
    fn type_name() -> String;

    /// Reads a value; `None` when the bytes are no value of this type.
    fn decode(bytes: &[u8]) -> Option<Self::Item>;
}

/// A value of type `V` in a call: `str` for `String`, `T` for `Postcard<T>`, and each value for itself.
#[diagnostic::on_unimplemented(message = "`{Self}` is no value of a table with values of type `{V}`")]
pub trait AsValue<V: Value> {
    /// Appends the bytes of the value.
    ///
    /// # Errors
    /// `InvalidCall` when the value has no bytes of this type.
    fn encode(&self, into: &mut Vec<u8>) -> Result<()>;
}

/// The name of a type of the application, as a part of the name that the database keeps. Choose another when old bytes
/// can no longer be read as the type.
///
/// ```
/// struct Person {
///     name: String,
/// }
///
/// impl nofault::typed::TypeName for Person {
///     const NAME: &'static str = "person.1";
/// }
/// ```
pub trait TypeName {
    /// The name.
    const NAME: &'static str;
}

/// Returns the bytes of a key.
pub(crate) fn key_bytes<K, Q: AsKey<K> + ?Sized>(key: &Q) -> Vec<u8> {
    let mut bytes = Vec::new();
    key.encode(&mut bytes);
    bytes
}

/// Returns the bytes with which keys begin.
pub(crate) fn prefix_bytes<K, P: AsPrefix<K> + ?Sized>(prefix: &P) -> Vec<u8> {
    let mut bytes = Vec::new();
    prefix.encode_prefix(&mut bytes);
    bytes
}

/// Returns the bytes of a value.
///
/// # Errors
/// `InvalidCall` when it has none.
pub(crate) fn value_bytes<V: Value, W: AsValue<V> + ?Sized>(value: &W) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    value.encode(&mut bytes)?;
    Ok(bytes)
}

/// Reads a key of the table `table`.
///
/// # Errors
/// `WrongType` when the bytes are no key of this type.
pub(crate) fn read_key<K: Key>(table: &str, bytes: &[u8]) -> Result<K> {
    K::decode(bytes).ok_or_else(|| wrong_type(table, "key", &K::type_name(), bytes))
}

/// Reads a value of the table `table`.
///
/// # Errors
/// `WrongType` when the bytes are no value of this type.
pub(crate) fn read_value<V: Value>(table: &str, bytes: &[u8]) -> Result<V::Item> {
    V::decode(bytes).ok_or_else(|| wrong_type(table, "value", &V::type_name(), bytes))
}

/// Reads an entry of the table `table`.
///
/// # Errors
/// `WrongType` when key or value is not of its type.
pub(crate) fn read_entry<K: Key, V: Value>(
    table: &str,
    (key, value): &(impl AsRef<[u8]>, impl AsRef<[u8]>),
) -> Result<(K, V::Item)> {
    Ok((read_key::<K>(table, key.as_ref())?, read_value::<V>(table, value.as_ref())?))
}

/// Most bytes of an entry that an error shows.
const SHOWN_BYTES: usize = 32;

fn wrong_type(table: &str, part: &str, name: &str, bytes: &[u8]) -> Error {
    let shown: String = bytes.iter().take(SHOWN_BYTES).map(|byte| format!("{byte:02x}")).collect();
    let more = if bytes.len() > SHOWN_BYTES { "…" } else { "" };
    let what = format!("table {table:?} has a {part} of {} bytes that is no {name}: 0x{shown}{more}", bytes.len());
    Error::new(ErrorKind::WrongType, what)
}

#[cfg(test)]
mod tests;
