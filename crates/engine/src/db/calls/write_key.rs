//! A key of a write set: with its first bytes as a number, so that most comparisons look at nothing else.

use std::borrow::Borrow;
use std::cmp::Ordering;

/// A key, and its first bytes as a number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::db) struct WriteKey {
    head: u64,
    pub(in crate::db) bytes: Vec<u8>,
}

/// A key that is lent, for a search among [`WriteKey`]s.
pub(in crate::db) struct LentKey<'k> {
    head: u64,
    bytes: &'k [u8],
}

/// The part of a key by which keys are compared.
pub(in crate::db) trait KeyParts {
    /// Returns the first bytes of the key as a number, and the key.
    fn parts(&self) -> (u64, &[u8]);
}

/// Returns the first eight bytes of a key as a number, padded with zeroes. Numbers that differ compare as the keys do.
fn head_of(key: &[u8]) -> u64 {
    let mut head = [0; 8];
    let len = key.len().min(8);
    head[..len].copy_from_slice(&key[..len]);
    u64::from_be_bytes(head)
}

impl From<Vec<u8>> for WriteKey {
    fn from(bytes: Vec<u8>) -> Self {
        Self { head: head_of(&bytes), bytes }
    }
}

impl<'k> LentKey<'k> {
    pub(in crate::db) fn new(bytes: &'k [u8]) -> Self {
        Self { head: head_of(bytes), bytes }
    }
}

impl KeyParts for WriteKey {
    fn parts(&self) -> (u64, &[u8]) {
        (self.head, &self.bytes)
    }
}

impl KeyParts for LentKey<'_> {
    fn parts(&self) -> (u64, &[u8]) {
        (self.head, self.bytes)
    }
}

impl Ord for WriteKey {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        self.parts().cmp(&other.parts())
    }
}

impl PartialOrd for WriteKey {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<'k> Borrow<dyn KeyParts + 'k> for WriteKey {
    fn borrow(&self) -> &(dyn KeyParts + 'k) {
        self
    }
}

impl Ord for dyn KeyParts + '_ {
    fn cmp(&self, other: &Self) -> Ordering {
        self.parts().cmp(&other.parts())
    }
}

impl PartialOrd for dyn KeyParts + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for dyn KeyParts + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for dyn KeyParts + '_ {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn keys_compare_as_their_bytes_do(
            a in prop::collection::vec(prop_oneof![Just(0_u8), Just(1), Just(255)], 0..12),
            b in prop::collection::vec(prop_oneof![Just(0_u8), Just(1), Just(255)], 0..12),
        ) {
            prop_assert_eq!(WriteKey::from(a.clone()).cmp(&WriteKey::from(b.clone())), a.cmp(&b));
            let (lent, other) = (LentKey::new(&a), LentKey::new(&b));
            prop_assert_eq!((&lent as &dyn KeyParts).cmp(&other), a.cmp(&b));
        }
    }
}
