//! The bytes of values: numbers, strings, bytes.

use super::{AsValue, Value};
use crate::error::Result;

macro_rules! number {
    ($($number:ty),*) => {$(
        impl Value for $number {
            type Item = Self;

            fn type_name() -> String {
                stringify!($number).into()
            }

            fn decode(bytes: &[u8]) -> Option<Self> {
                bytes.try_into().ok().map(Self::from_le_bytes)
            }
        }

        impl AsValue<$number> for $number {
            fn encode(&self, into: &mut Vec<u8>) -> Result<()> {
                into.extend_from_slice(&self.to_le_bytes());
                Ok(())
            }
        }
    )*};
}

number!(u8, u16, u32, u64, u128, i8, i16, i32, i64, i128, f32, f64);

impl Value for bool {
    type Item = Self;

    fn type_name() -> String {
        "bool".into()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [0] => Some(false),
            [1] => Some(true),
            _ => None,
        }
    }
}

impl AsValue<Self> for bool {
    fn encode(&self, into: &mut Vec<u8>) -> Result<()> {
        into.push(u8::from(*self));
        Ok(())
    }
}

impl Value for () {
    type Item = Self;

    fn type_name() -> String {
        "()".into()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        bytes.is_empty().then_some(())
    }
}

impl AsValue<Self> for () {
    fn encode(&self, _into: &mut Vec<u8>) -> Result<()> {
        Ok(())
    }
}

impl Value for String {
    type Item = Self;

    fn type_name() -> String {
        "string".into()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        std::str::from_utf8(bytes).ok().map(Self::from)
    }
}

impl Value for Vec<u8> {
    type Item = Self;

    fn type_name() -> String {
        "bytes".into()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        Some(bytes.to_vec())
    }
}

impl<const N: usize> Value for [u8; N] {
    type Item = Self;

    fn type_name() -> String {
        format!("[u8;{N}]")
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok()
    }
}

macro_rules! bytes {
    ($($value:ty, $like:ty);*) => {$(
        impl AsValue<$value> for $like {
            fn encode(&self, into: &mut Vec<u8>) -> Result<()> {
                into.extend_from_slice(AsRef::<[u8]>::as_ref(self));
                Ok(())
            }
        }
    )*};
}

bytes!(String, String; String, str; String, &str; String, &String);
bytes!(Vec<u8>, Vec<u8>; Vec<u8>, [u8]; Vec<u8>, &[u8]; Vec<u8>, &Vec<u8>);

impl<const N: usize> AsValue<Vec<u8>> for [u8; N] {
    fn encode(&self, into: &mut Vec<u8>) -> Result<()> {
        into.extend_from_slice(self);
        Ok(())
    }
}

impl<const N: usize> AsValue<Self> for [u8; N] {
    fn encode(&self, into: &mut Vec<u8>) -> Result<()> {
        into.extend_from_slice(self);
        Ok(())
    }
}
