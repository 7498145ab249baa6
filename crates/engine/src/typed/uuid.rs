//! UUIDs as keys and values (feature `uuid`): their 16 bytes, which sort as `Uuid` does.

use uuid::Uuid;

use super::key::take;
use super::{AsKey, AsValue, Key, Value};
use crate::error::Result;

impl AsKey<Self> for Uuid {
    fn encode(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(self.as_bytes());
    }
}

impl Key for Uuid {
    fn type_name() -> String {
        "uuid".into()
    }

    fn decode_part(bytes: &mut &[u8]) -> Option<Self> {
        take(bytes).map(Self::from_bytes)
    }
}

impl Value for Uuid {
    type Item = Self;

    fn type_name() -> String {
        "uuid".into()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self::from_bytes)
    }
}

impl AsValue<Self> for Uuid {
    fn encode(&self, into: &mut Vec<u8>) -> Result<()> {
        into.extend_from_slice(self.as_bytes());
        Ok(())
    }
}
