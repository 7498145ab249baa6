//! Values that are the memory of a type (feature `zerocopy`).

use std::marker::PhantomData;

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{AsValue, TypeName, Value};
use crate::error::Result;

/// Values that are the memory of a type of the application: nothing is converted. The crate `zerocopy` says which types
/// may be used so, and has numbers whose bytes have one order on every machine.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
/// use nofault::typed::{TypeName, Plain};
/// use zerocopy::little_endian::{U32, U64};
/// use zerocopy::{FromBytes, Immutable, IntoBytes};
///
/// #[derive(Debug, Clone, Copy, PartialEq, FromBytes, IntoBytes, Immutable)]
/// #[repr(C)]
/// struct Reading {
///     at: U64,
///     degrees: U32,
/// }
///
/// impl TypeName for Reading {
///     const NAME: &'static str = "reading.1";
/// }
///
/// let readings = db.create_typed_table::<(String, u64), Plain<Reading>>("readings")?;
/// let first = Reading { at: U64::new(17), degrees: U32::new(21) };
/// readings.put(&("roof", 1), &first)?;
/// assert_eq!(readings.get(&("roof", 1))?, Some(first));
/// # Ok::<(), nofault::error::Error>(())
/// ```
pub struct Plain<T>(PhantomData<fn() -> T>);

impl<T: FromBytes + TypeName> Value for Plain<T> {
    type Item = T;

    fn type_name() -> String {
        format!("plain:{}:{}", T::NAME, size_of::<T>())
    }

    fn decode(bytes: &[u8]) -> Option<T> {
        T::read_from_bytes(bytes).ok()
    }
}

impl<T: FromBytes + IntoBytes + Immutable + TypeName> AsValue<Plain<T>> for T {
    fn encode(&self, into: &mut Vec<u8>) -> Result<()> {
        into.extend_from_slice(self.as_bytes());
        Ok(())
    }
}

impl<T: FromBytes + IntoBytes + Immutable + TypeName> AsValue<Plain<T>> for &T {
    fn encode(&self, into: &mut Vec<u8>) -> Result<()> {
        AsValue::<Plain<T>>::encode(*self, into)
    }
}

impl<T> std::fmt::Debug for Plain<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Plain")
    }
}
