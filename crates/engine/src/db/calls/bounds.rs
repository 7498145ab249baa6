//! Converts the bounds that a caller gives into a key range of the tree: a first key, which is included, and an end,
//! which is not.

use std::ops::{Bound, RangeBounds};

use crate::btree::{Direction, KeyRange};

/// The range of keys that `bounds` describes.
pub(crate) fn range_of<K: AsRef<[u8]>>(bounds: &impl RangeBounds<K>) -> KeyRange {
    let start = match bounds.start_bound() {
        Bound::Included(key) => key.as_ref().to_vec(),
        Bound::Excluded(key) => after(key.as_ref()),
        Bound::Unbounded => Vec::new(),
    };
    let end = match bounds.end_bound() {
        Bound::Included(key) => Some(after(key.as_ref())),
        Bound::Excluded(key) => Some(key.as_ref().to_vec()),
        Bound::Unbounded => None,
    };
    KeyRange { start, end }
}

/// The range of keys beginning with `prefix`.
pub(crate) fn range_of_prefix(prefix: &[u8]) -> KeyRange {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return KeyRange { start: prefix.to_vec(), end: Some(end) };
        }
    }
    KeyRange { start: prefix.to_vec(), end: None }
}

/// Leaves out of a range the keys up to and including `key`, in the direction of a scan.
pub(in crate::db) fn skip_to_after(range: &mut KeyRange, key: &[u8], direction: Direction) {
    match direction {
        Direction::Forward => range.start = range.start.as_slice().max(&after(key)).to_vec(),
        Direction::Reverse if range.end.as_deref().is_none_or(|end| key < end) => range.end = Some(key.to_vec()),
        Direction::Reverse => {}
    }
}

/// The smallest key above `key`.
fn after(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_every_kind_of_bound_contain_the_keys_between_them() {
        let holds = |range: KeyRange| {
            ["", "a", "a\0", "b", "b\0", "c"]
                .into_iter()
                .filter(|key| range.contains(key.as_bytes()))
                .collect::<Vec<_>>()
        };
        assert_eq!(holds(range_of::<&str>(&(.."a"))), [""]);
        assert_eq!(holds(range_of::<&str>(&("a".."b"))), ["a", "a\0"]);
        assert_eq!(holds(range_of::<&str>(&("a"..="b"))), ["a", "a\0", "b"]);
        assert_eq!(holds(range_of::<&str>(&(Bound::Excluded("a"), Bound::Unbounded))), ["a\0", "b", "b\0", "c"]);
        assert_eq!(holds(range_of_prefix(b"a")), ["a", "a\0"]);
        assert!(range_of::<&str>(&("b".."a")).is_empty());
    }

    #[test]
    fn a_prefix_of_largest_bytes_goes_to_the_end() {
        assert_eq!(range_of_prefix(&[1, 255]).end, Some(vec![2]));
        assert_eq!(range_of_prefix(&[255, 255]).end, None);
        assert_eq!(range_of_prefix(&[]).end, None);
    }
}
