//! Keeps the read set of a transaction: each key and each range once.
//!
//! Kept true by: ranges are disjoint and do not touch, so a repeated read takes no memory; a key inside a range that
//! was read, or inside the newest range that is being read, is not kept besides. All are in ordered maps, so adding one
//! never takes more than the logarithm of their number.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::OpenTransaction;
use crate::btree::KeyRange;
use crate::error::{Error, ErrorKind, Result};
use crate::format::TableId;

/// Memory of an entry besides its bytes: two allocations at most, and its share of a node of the map.
const ENTRY_OVERHEAD_BYTES: usize = 64;

/// Encodes a key with its table in front, so that keys of one table are contiguous and in order.
pub(crate) fn scoped(table: TableId, key: &[u8], into: &mut Vec<u8>) {
    into.clear();
    into.extend_from_slice(&table.0.to_be_bytes());
    into.extend_from_slice(key);
}

fn scoped_key(table: TableId, key: &[u8]) -> Vec<u8> {
    let mut scoped_key = Vec::with_capacity(8 + key.len());
    scoped(table, key, &mut scoped_key);
    scoped_key
}

/// The first key of a range, and the first key after it.
type Ends = (Vec<u8>, Vec<u8>);

fn ends_of(table: TableId, range: &KeyRange) -> Ends {
    let end = match &range.end {
        Some(end) => scoped_key(table, end),
        None => scoped_key(TableId(table.0.saturating_add(1)), &[]),
    };
    (scoped_key(table, &range.start), end)
}

/// A part of a read set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Read<'r> {
    /// A key with its table.
    Key(&'r [u8]),
    /// All keys from the first key on and below the second, each with its table.
    Range(&'r [u8], &'r [u8]),
}

/// Identifies a scan that has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ScanId(u64);

/// A scan that has not ended: the part of its range that it has read, which grows with every entry.
#[derive(Debug)]
struct OpenScan {
    read: Ends,
    /// The memory taken for the range when the scan began.
    reserved_bytes: usize,
}

/// The keys and ranges that a transaction has read: see the module.
#[derive(Debug, Default)]
pub(crate) struct ReadSet {
    keys: BTreeSet<Box<[u8]>>,
    /// The ranges: first key, and the first key after the range.
    ranges: BTreeMap<Box<[u8]>, Box<[u8]>>,
    scans: BTreeMap<ScanId, OpenScan>,
    scans_begun: u64,
    bytes: usize,
    bytes_max: usize,
    /// Keeps the transaction counted as open until this set was checked.
    _open: Option<OpenTransaction>,
}

impl ReadSet {
    /// Creates an empty read set that takes at most `bytes_max` bytes.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, ..Self::default() }
    }

    /// Creates the empty read set of a transaction counted as open.
    pub(crate) fn of(open: OpenTransaction, bytes_max: usize) -> Self {
        Self { _open: Some(open), ..Self::new(bytes_max) }
    }

    /// Adds a key.
    ///
    /// # Errors
    /// `TransactionTooLarge` when there is no memory left for it: the key must not be read then.
    pub(crate) fn add_key(&mut self, table: TableId, key: &[u8]) -> Result<()> {
        let key = scoped_key(table, key);
        // Only the newest scan: looking at every scan would take the longer the more there are.
        let in_scan = self.scans.values().next_back().is_some_and(|scan| scan.read.0 <= key && key < scan.read.1);
        if in_scan || self.contains(&key) {
            return Ok(());
        }
        self.take_memory(key.len())?;
        self.keys.insert(key.into());
        Ok(())
    }

    /// Notes that a scan of `range` begins, which has read nothing yet.
    ///
    /// # Errors
    /// `TransactionTooLarge` when there is no memory to remember it: then it must not begin.
    pub(crate) fn begin_scan(&mut self, table: TableId, range: &KeyRange) -> Result<ScanId> {
        let (start, end) = ends_of(table, range);
        // The memory is taken before the scan begins: where it will stop is not known, and must not be refused then.
        let reserved_bytes = start.len() + end.len();
        self.take_memory(reserved_bytes)?;
        let id = ScanId(self.scans_begun);
        self.scans_begun += 1;
        self.scans.insert(id, OpenScan { read: (start.clone(), start), reserved_bytes });
        Ok(id)
    }

    /// Notes that a scan has read all of `range`.
    pub(crate) fn scanned(&mut self, scan: ScanId, table: TableId, range: &KeyRange) {
        if let Some(scan) = self.scans.get_mut(&scan) {
            scan.read = ends_of(table, range);
        }
    }

    /// Notes that a forward scan has read everything up to and including `key`.
    pub(crate) fn scanned_to(&mut self, scan: ScanId, table: TableId, key: &[u8]) {
        if let Some(OpenScan { read: (_, end), .. }) = self.scans.get_mut(&scan) {
            scoped(table, key, end);
            end.push(0);
        }
    }

    /// Returns whether a key, with its table, was read.
    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        if self.keys.contains(key) {
            return true;
        }
        let before = self.ranges.range::<[u8], _>((Bound::Unbounded, Bound::Included(key))).next_back();
        before.is_some_and(|(_, end)| key < &**end)
    }

    /// Returns whether all of `read` was read.
    pub(crate) fn covers(&self, read: Read<'_>) -> bool {
        match read {
            Read::Key(key) => self.contains(key),
            Read::Range(start, end) => {
                let before = self.ranges.range::<[u8], _>((Bound::Unbounded, Bound::Included(start))).next_back();
                before.is_some_and(|(_, to)| end <= &**to)
            }
        }
    }

    /// Returns everything that was read.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Read<'_>> {
        let scanned = self.scans.values().map(|scan| &scan.read).filter(|(start, end)| start < end);
        let scanned = scanned.map(|(start, end)| Read::Range(start, end));
        let ranges = self.ranges.iter().map(|(start, end)| Read::Range(start, end));
        scanned.chain(ranges).chain(self.keys.iter().map(|key| Read::Key(key)))
    }

    /// Returns the number of keys and ranges.
    pub(crate) fn len(&self) -> usize {
        self.keys.len() + self.ranges.len() + self.scans.len()
    }

    /// Returns about how many bytes of memory the set takes.
    #[cfg(test)]
    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes
    }

    /// Ends all scans.
    pub(crate) fn end_scans(&mut self) {
        while let Some((scan, _)) = self.scans.first_key_value() {
            self.end_scan(*scan);
        }
    }

    /// Ends a scan: its range joins the other ranges.
    pub(crate) fn end_scan(&mut self, scan: ScanId) {
        let Some(OpenScan { read: (mut start, mut end), reserved_bytes }) = self.scans.remove(&scan) else { return };
        self.bytes -= reserved_bytes + ENTRY_OVERHEAD_BYTES;
        if start >= end {
            return;
        }
        // All that it touches become one. Each was added once, so this takes no longer than adding them did.
        loop {
            let before = self.ranges.range::<[u8], _>((Bound::Unbounded, Bound::Included(end.as_slice()))).next_back();
            let Some(first) = before.filter(|(_, to)| ***to >= *start).map(|(first, _)| first.clone()) else { break };
            let Some(to) = self.ranges.remove(&first) else { break };
            self.bytes -= first.len() + to.len() + ENTRY_OVERHEAD_BYTES;
            start = start.min(first.into());
            end = end.max(to.into());
        }
        self.bytes += start.len() + end.len() + ENTRY_OVERHEAD_BYTES;
        self.ranges.insert(start.into(), end.into());
    }

    fn take_memory(&mut self, len_bytes: usize) -> Result<()> {
        let bytes = self.bytes + len_bytes + ENTRY_OVERHEAD_BYTES;
        if bytes > self.bytes_max {
            let what = format!(
                "a transaction has read {} keys and ranges, and remembering more would take over {} bytes: read neighbours as \
                 one range, read what need not be current in a snapshot, or set a larger cache",
                self.len(),
                self.bytes_max
            );
            return Err(Error::new(ErrorKind::TransactionTooLarge, what));
        }
        self.bytes = bytes;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: TableId = TableId(7);

    fn range(start: &str, end: &str) -> KeyRange {
        KeyRange { start: start.into(), end: Some(end.into()) }
    }

    fn scan(reads: &mut ReadSet, start: &str, end: &str) {
        let scan = reads.begin_scan(TABLE, &range(start, end)).unwrap();
        reads.scanned(scan, TABLE, &range(start, end));
        reads.end_scan(scan);
    }

    #[test]
    fn a_repeated_read_takes_no_memory() {
        let mut reads = ReadSet::new(1 << 20);
        (0..1000).for_each(|_| reads.add_key(TABLE, b"k").unwrap());
        assert_eq!((reads.memory_bytes(), reads.len()), (8 + 1 + ENTRY_OVERHEAD_BYTES, 1));
        (0..1000).for_each(|_| scan(&mut reads, "a", "c"));
        let with_range = reads.memory_bytes();
        reads.add_key(TABLE, b"b").unwrap();
        assert_eq!(reads.memory_bytes(), with_range, "the range has it");
        assert_eq!(reads.len(), 2);
    }

    #[test]
    fn ranges_that_touch_become_one_and_others_stay_apart() {
        let mut reads = ReadSet::new(1 << 20);
        [("a", "c"), ("e", "g"), ("m", "p"), ("c", "e"), ("x", "x")].iter().for_each(|(a, b)| scan(&mut reads, a, b));
        let key = |key: &str| scoped_key(TABLE, key.as_bytes());
        let ranges: Vec<_> = reads.iter().collect();
        assert_eq!(ranges, [Read::Range(&key("a"), &key("g")), Read::Range(&key("m"), &key("p"))]);
        assert!(reads.covers(Read::Range(&key("b"), &key("g"))) && !reads.covers(Read::Range(&key("b"), &key("n"))));
        assert!(reads.contains(&key("a")) && !reads.contains(&key("g")) && !reads.contains(&key("h")));
        assert!(!reads.contains(&scoped_key(TableId(8), b"b")), "another table");
        let bytes = 2 * (9 + 9 + ENTRY_OVERHEAD_BYTES);
        assert_eq!(reads.memory_bytes(), bytes);
        scan(&mut reads, "a", "z");
        assert_eq!(reads.iter().count(), 1);
    }

    #[test]
    fn a_scan_to_the_end_of_its_table_ends_there() {
        let mut reads = ReadSet::new(1 << 20);
        let all = KeyRange { start: Vec::new(), end: None };
        let scan = reads.begin_scan(TABLE, &all).unwrap();
        assert_eq!(reads.iter().count(), 0, "nothing is read yet");
        reads.scanned_to(scan, TABLE, b"k");
        reads.scanned(scan, TABLE, &all);
        reads.end_scan(scan);
        assert!(reads.contains(&scoped_key(TABLE, &[255; 30])) && !reads.contains(&scoped_key(TableId(8), b"")));
    }

    #[test]
    fn beyond_its_memory_limit_a_read_set_refuses_keys_and_scans_unchanged() {
        let mut reads = ReadSet::new(3 * (9 + ENTRY_OVERHEAD_BYTES));
        ["a", "b", "c"].iter().for_each(|key| reads.add_key(TABLE, key.as_bytes()).unwrap());
        let before = reads.memory_bytes();
        assert_eq!(reads.add_key(TABLE, b"d").unwrap_err().kind(), ErrorKind::TransactionTooLarge);
        let refused = reads.begin_scan(TABLE, &range("a", "z")).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::TransactionTooLarge);
        assert_eq!((reads.memory_bytes(), reads.iter().count()), (before, 3));
        reads.add_key(TABLE, b"a").unwrap();
    }

    #[test]
    fn scans_side_by_side_each_keep_their_own_range_and_their_memory_is_bounded() {
        let mut reads = ReadSet::new(4 * (9 + 9 + ENTRY_OVERHEAD_BYTES));
        let first = reads.begin_scan(TABLE, &range("a", "c")).unwrap();
        let second = reads.begin_scan(TABLE, &range("m", "p")).unwrap();
        reads.scanned_to(second, TABLE, b"n");
        reads.scanned_to(first, TABLE, b"a");
        reads.add_key(TABLE, b"m").unwrap();
        let key = |key: &str| scoped_key(TABLE, key.as_bytes());
        let both = [Read::Range(&key("a"), &key("a\0")), Read::Range(&key("m"), &key("n\0"))];
        assert_eq!(reads.iter().collect::<Vec<_>>(), both, "and the key lies in the newest of them");
        let more = [(); 3].map(|()| reads.begin_scan(TABLE, &range("s", "t")));
        assert_eq!(more.iter().filter(|begun| begun.is_ok()).count(), 2, "the memory of two");
        more.into_iter().flatten().for_each(|scan| reads.end_scan(scan));
        reads.end_scans();
        assert_eq!(reads.iter().collect::<Vec<_>>(), both);
        assert_eq!(reads.memory_bytes(), 2 * (9 + 10 + ENTRY_OVERHEAD_BYTES));
        assert!(!reads.contains(&key("b")), "no scan reached it");
    }
}
