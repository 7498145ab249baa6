//! Range scans for threads: iterators, from both ends unless in a transaction.

use std::time::SystemTime;

use super::faces::blocking;
use crate::db::{self, TypedEntries};
use crate::error::Result;
use crate::sync::driver::block_on;
use crate::typed::{Key, Value};

pub(super) type Entry = (Vec<u8>, Vec<u8>);

/// A scan of keys in order, for threads. It returns an error once, and then `None`. See [`db::Range`].
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
/// # let stock = db.create_table("stock")?;
/// # stock.put("apples", "12")?;
/// # stock.put("pears", "3")?;
/// for entry in stock.iter().rev() {
///     let (name, count) = entry?;
///     println!("{}: {}", String::from_utf8_lossy(&name), String::from_utf8_lossy(&count));
/// }
/// # Ok::<(), nofault::error::Error>(())
/// ```
///
/// It may be used from both ends, which meet in the middle:
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
/// # let stock = db.create_table("stock")?;
/// # stock.put("apples", "12")?;
/// # stock.put("pears", "3")?;
/// let mut range = stock.iter();
/// assert_eq!(range.next_back().transpose()?.map(|(name, _)| name), Some(b"pears".to_vec()));
/// assert_eq!(range.next().transpose()?.map(|(name, _)| name), Some(b"apples".to_vec()));
/// assert!(range.next().is_none() && range.next_back().is_none());
/// # Ok::<(), nofault::error::Error>(())
/// ```
pub struct Range {
    front: db::Range,
    /// The scan from the other end, once it was asked for.
    back: Option<Back>,
    /// The entry that was lent last, where both ends are in use.
    shown: Entry,
}

impl std::fmt::Debug for Range {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Range").finish_non_exhaustive()
    }
}

/// The scan from the other end of a range. Each end stops at the last key of the other.
struct Back {
    range: db::Range,
    front_key: Option<Vec<u8>>,
    back_key: Option<Vec<u8>>,
    /// Whether the two ends have met, or one has failed.
    is_over: bool,
}

impl Back {
    /// Notes that an end has read this; `last` is where its key is kept, `other` the last key of the other end. Returns
    /// it unless the other end has passed it.
    fn meet(&mut self, is_front: bool, read: Result<Option<Entry>>) -> Option<Result<Entry>> {
        let Self { front_key, back_key, is_over, .. } = self;
        let (last, other) = if is_front { (front_key, back_key) } else { (back_key, front_key) };
        match read.transpose() {
            Some(Ok((key, value))) => {
                // Both ends see one snapshot, so the first key that both reach is the last of either.
                if other.as_ref().is_some_and(|other| *other == key) {
                    *is_over = true;
                    return None;
                }
                *last = Some(key.clone());
                Some(Ok((key, value)))
            }
            end => {
                *is_over = true;
                end
            }
        }
    }
}

impl Range {
    pub(super) fn new(range: db::Range) -> Self {
        Self { front: range, back: None, shown: Entry::default() }
    }

    /// Reverses the scan: from the last key to the first. Call it before the first `next`.
    #[must_use]
    pub fn rev(self) -> Self {
        Self::new(self.front.rev())
    }

    /// Limits the number of leaves requested ahead. See [`db::Range::read_ahead_max`].
    #[must_use]
    pub fn read_ahead_max(self, leaves: usize) -> Self {
        Self::new(self.front.read_ahead_max(leaves))
    }

    /// Begins behind `key`, to go on where another scan ended. See [`db::Range::after`].
    #[must_use]
    pub fn after(self, key: impl AsRef<[u8]>) -> Self {
        Self::new(self.front.after(key))
    }

    /// Ends the scan after `entries` more entries, entries taken from its other end included.
    #[must_use]
    pub fn limit(self, entries: u64) -> Self {
        Self::new(self.front.limit(entries))
    }

    /// The next entries at hand, `entries_max` at the most; none at the end. See [`db::Range::next_batch`].
    ///
    /// # Errors
    /// As [`db::Range::next_batch`].
    pub fn next_batch(&mut self, entries_max: usize) -> Result<Vec<Entry>> {
        if self.back.is_some() {
            return self.by_ref().take(entries_max.min(1)).collect();
        }
        block_on(self.front.next_batch(entries_max))
    }

    /// Returns the time at which the entry expires that was returned last from the front, of a batch the last entry; `None` if
    /// it does not.
    pub fn expiry(&self) -> Option<SystemTime> {
        self.front.expiry()
    }

    /// Like `next`, but lends the entry from the scan's own memory instead of giving it away. See [`db::Range::next_ref`].
    ///
    /// # Errors
    /// As [`db::Range::next_ref`].
    pub fn next_ref(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        if self.back.is_some() {
            let Some(entry) = self.next().transpose()? else { return Ok(None) };
            self.shown = entry;
            return Ok(Some((&self.shown.0, &self.shown.1)));
        }
        if self.front.is_ready() { Ok(self.front.show()) } else { block_on(self.front.next_ref()) }
    }
}

impl Iterator for Range {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Result<Entry>> {
        if self.back.as_ref().is_some_and(|back| back.is_over) {
            return None;
        }
        let read = match self.front.take() {
            Some(entry) => Ok(Some(entry)),
            None => block_on(self.front.next()),
        };
        match &mut self.back {
            None => read.transpose(),
            Some(back) => back.meet(true, read),
        }
    }
}

impl DoubleEndedIterator for Range {
    fn next_back(&mut self) -> Option<Result<Entry>> {
        let front = &self.front;
        let begin = || Back { range: front.reversed(), front_key: None, back_key: None, is_over: false };
        let back = self.back.get_or_insert_with(begin);
        if back.is_over || !self.front.spend_limit() {
            return None;
        }
        let read = match back.range.take() {
            Some(entry) => Ok(Some(entry)),
            None => block_on(back.range.next()),
        };
        back.meet(false, read)
    }
}

db::entries!(Range);

/// A scan of keys in order, as a transaction sees them, for threads. It returns an error once, and then `None`.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
/// # let stock = db.create_table("stock")?;
/// # stock.put("apples", "12")?;
/// # stock.put("pears", "3")?;
/// let change = db.begin();
/// change.put(&stock, "plums", "7")?;
/// assert_eq!(change.range(&stock, "p"..)?.count(), 2);
/// # Ok::<(), nofault::error::Error>(())
/// ```
#[derive(Debug)]
pub struct TransactionRange(pub(super) db::TransactionRange);

blocking! {
    impl TransactionRange as db::TransactionRange {
        /// Reverses the scan: from the last key to the first. Call it before the first `next`.
        #[must_use]
        fn rev(self) -> Self => Self;
        /// Limits the number of leaves requested ahead.
        #[must_use]
        fn read_ahead_max(self, leaves: usize) -> Self => Self;
        /// Begins behind `key`, which need not exist; the keys before do not count as read.
        #[must_use]
        fn after(self, key: impl AsRef<[u8]>) -> Self => Self;
        /// Ends the scan after `entries` more entries.
        #[must_use]
        fn limit(self, entries: u64) -> Self => Self;
        /// Returns the time at which the entry expires that was returned last; `None` if it does not.
        fn expiry(&self) -> Option<SystemTime>;
        /// Like `next`, but lends the entry instead of giving it away.
        async fn next_ref(&mut self) -> Result<Option<(&[u8], &[u8])>>;
    }
}

impl Iterator for TransactionRange {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Result<Entry>> {
        block_on(self.0.next()).transpose()
    }
}

db::entries!(TransactionRange);

/// A scan of the entries of a [`TypedTable`](super::TypedTable): an iterator from both ends. It returns an error once, also for an entry of
/// other types, and then `None`. See [`Range`].
pub type TypedRange<K, V> = TypedEntries<Range, K, V>;

/// A scan of the entries of a [`TypedTable`](super::TypedTable) as a transaction sees them: an iterator, which returns an error once and then
/// `None`. See [`TransactionRange`].
pub type TypedTransactionRange<K, V> = TypedEntries<TransactionRange, K, V>;

pub(super) fn two_ended<K, V>(range: db::TypedRange<K, V>) -> TypedRange<K, V> {
    range.map(Range::new)
}

pub(super) fn one_ended<K, V>(range: db::TypedTransactionRange<K, V>) -> TypedTransactionRange<K, V> {
    range.map(TransactionRange)
}

impl<K: Key, V: Value> TypedRange<K, V> {
    /// Returns the next entries at hand, `entries_max` at the most; none at the end.
    ///
    /// # Errors
    /// Those of reading. The entries before one that is not of these types are returned first.
    pub fn next_batch(&mut self, entries_max: usize) -> Result<Vec<(K, V::Item)>> {
        self.read_next_batch(|range| range.next_batch(entries_max))
    }
}

impl<K: Key, V: Value> Iterator for TypedRange<K, V> {
    type Item = Result<(K, V::Item)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read_next(Range::next)
    }
}

impl<K: Key, V: Value> DoubleEndedIterator for TypedRange<K, V> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.read_next(Range::next_back)
    }
}

impl<K: Key, V: Value> Iterator for TypedTransactionRange<K, V> {
    type Item = Result<(K, V::Item)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read_next(TransactionRange::next)
    }
}
