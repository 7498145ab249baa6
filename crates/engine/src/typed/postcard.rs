//! Values of any type that serde can write (feature `serde`).

use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{AsValue, TypeName, Value};
use crate::error::{Error, ErrorKind, Result};

/// Values of a type of the application, written by serde in the format of the crate `postcard`: compact, and fixed since
/// its version 1. Bytes of another structure are an error or nonsense: change [`TypeName::NAME`] with it.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
/// use nofault::typed::{TypeName, Postcard};
///
/// #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
/// struct Person {
///     name: String,
///     born: u16,
/// }
///
/// impl TypeName for Person {
///     const NAME: &'static str = "person.1";
/// }
///
/// let people = db.create_typed_table::<u64, Postcard<Person>>("people")?;
/// people.put(&1, &Person { name: "Ada".into(), born: 1815 })?;
/// assert_eq!(people.get(&1)?, Some(Person { name: "Ada".into(), born: 1815 }));
/// # Ok::<(), nofault::error::Error>(())
/// ```
pub struct Postcard<T>(PhantomData<fn() -> T>);

impl<T: DeserializeOwned + TypeName> Value for Postcard<T> {
    type Item = T;

    fn type_name() -> String {
        format!("postcard:{}", T::NAME)
    }

    fn decode(bytes: &[u8]) -> Option<T> {
        let (value, rest) = postcard::take_from_bytes(bytes).ok()?;
        rest.is_empty().then_some(value)
    }
}

impl<T: Serialize + DeserializeOwned + TypeName> AsValue<Postcard<T>> for T {
    fn encode(&self, into: &mut Vec<u8>) -> Result<()> {
        let failed = |error| Error::new(ErrorKind::InvalidCall, format!("write a value of {}: {error}", T::NAME));
        let bytes = postcard::to_extend(self, std::mem::take(into)).map_err(failed)?;
        *into = bytes;
        Ok(())
    }
}

impl<T: Serialize + DeserializeOwned + TypeName> AsValue<Postcard<T>> for &T {
    fn encode(&self, into: &mut Vec<u8>) -> Result<()> {
        AsValue::<Postcard<T>>::encode(*self, into)
    }
}

impl<T> std::fmt::Debug for Postcard<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Postcard")
    }
}
