//! Bulk loads as other calls see them: the entries that a load takes, in order, and the list of the loads under way, during which keys of
//! their tables are not written by others.

use std::cmp::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use crate::btree::overflow::VALUE_BYTES_MAX;
use crate::error::{Error, ErrorKind, Result};
use crate::format::Moment;

/// The thread, if any, that holds the commit section for a bulk load while it runs the caller's iterator.
#[derive(Debug, Default)]
pub(in crate::db) struct Loads(Mutex<Option<ThreadId>>);

impl Loads {
    /// Registers this thread as holding the commit section for a load, until the returned guard is dropped.
    pub(in crate::db) fn begin(&self) -> impl Drop + '_ {
        self.set(Some(std::thread::current().id()));
        Loading(self)
    }

    /// Fails on a thread holding the commit section for a load, because a commit there would wait for itself.
    ///
    /// # Errors
    /// `InvalidCall` on such a thread.
    pub(in crate::db) fn refuse_inside(&self) -> Result<()> {
        let loading = *self.lock();
        if loading.is_none_or(|thread| thread != std::thread::current().id()) {
            return Ok(());
        }
        let what = "the entries of a bulk load write to the database that is being loaded, which waits for them: write before \
                    or after the load, or to another database";
        Err(Error::new(ErrorKind::InvalidCall, what))
    }

    /// Returns whether a thread holds the commit section for a load.
    pub(in crate::db) fn are_under_way(&self) -> bool {
        self.lock().is_some()
    }

    fn lock(&self) -> MutexGuard<'_, Option<ThreadId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, thread: Option<ThreadId>) {
        *self.lock() = thread;
    }
}

struct Loading<'l>(&'l Loads);

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        self.0.set(None);
    }
}

/// Fails for a value too long.
///
/// # Errors
/// `InvalidCall` for such a value.
pub(in crate::db) fn refuse_too_long(value: &[u8]) -> Result<()> {
    if value.len() as u64 <= VALUE_BYTES_MAX {
        return Ok(());
    }
    let message = format!("a value of {} bytes; {VALUE_BYTES_MAX} is the most", value.len());
    Err(Error::new(ErrorKind::InvalidCall, message))
}

/// An entry to be loaded: key, value, and the moment at which it expires.
pub(crate) type LoadEntry<K, V> = (K, V, Moment);

/// Entries in key order, one at a time.
pub(crate) trait SortedEntries {
    /// Moves to the next entry. Returns false at the end; nothing is asked for after it.
    ///
    /// # Errors
    /// The first error in the entries.
    fn advance(&mut self) -> Result<bool>;

    /// Returns the entry at which it stands; `None` before the first and behind the last.
    fn entry(&self) -> Option<LoadEntry<&[u8], &[u8]>>;
}

/// The entries of an iterator.
pub(crate) struct IterEntries<I, K, V> {
    entries: I,
    current: Option<LoadEntry<K, V>>,
}

impl<I: Iterator<Item = Result<LoadEntry<K, V>>>, K, V> IterEntries<I, K, V> {
    pub(crate) fn new(entries: impl IntoIterator<IntoIter = I>) -> Self {
        Self { entries: entries.into_iter(), current: None }
    }
}

impl<I, K, V> SortedEntries for IterEntries<I, K, V>
where
    I: Iterator<Item = Result<LoadEntry<K, V>>>,
    K: AsRef<[u8]>,
    V: AsRef<[u8]>,
{
    fn advance(&mut self) -> Result<bool> {
        self.current = self.entries.next().transpose()?;
        Ok(self.current.is_some())
    }

    fn entry(&self) -> Option<LoadEntry<&[u8], &[u8]>> {
        self.current.as_ref().map(|(key, value, expiry)| (key.as_ref(), value.as_ref(), *expiry))
    }
}

/// Entries that were taken off the front of others, and behind them the rest.
pub(crate) struct WithFront<'e> {
    front: std::vec::IntoIter<LoadEntry<Vec<u8>, Vec<u8>>>,
    current: Option<LoadEntry<Vec<u8>, Vec<u8>>>,
    rest: &'e mut dyn SortedEntries,
    rest_is_empty: bool,
}

impl<'e> WithFront<'e> {
    /// Takes entries until there are no more, or `is_enough` returns true for the newest one.
    ///
    /// # Errors
    /// The first error in the entries.
    pub(in crate::db) fn take(
        entries: &'e mut dyn SortedEntries,
        mut is_enough: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<Self> {
        let (mut front, mut rest_is_empty) = (Vec::new(), true);
        while entries.advance()?
            && let Some((key, value, expiry)) = entries.entry()
        {
            front.push((key.to_vec(), value.to_vec(), expiry));
            if is_enough(key, value) {
                rest_is_empty = false;
                break;
            }
        }
        Ok(Self { front: front.into_iter(), current: None, rest: entries, rest_is_empty })
    }

    /// The entries that were taken, if they are all.
    pub(in crate::db) fn all(&self) -> Option<&[LoadEntry<Vec<u8>, Vec<u8>>]> {
        self.rest_is_empty.then_some(self.front.as_slice())
    }
}

impl SortedEntries for WithFront<'_> {
    fn advance(&mut self) -> Result<bool> {
        self.current = self.front.next();
        Ok(self.current.is_some() || (!self.rest_is_empty && self.rest.advance()?))
    }

    fn entry(&self) -> Option<LoadEntry<&[u8], &[u8]>> {
        match &self.current {
            Some((key, value, expiry)) => Some((key, value, *expiry)),
            None if self.rest_is_empty => None,
            None => self.rest.entry(),
        }
    }
}

/// The entries of a table and of a run in one order. Where both have a key, the run's entry counts.
pub(in crate::db) struct MergedEntries<'r, T> {
    table: T,
    run: &'r mut dyn SortedEntries,
    /// Which of the two have the current key, as the order of the table's key and the run's: equal before the first.
    order: Ordering,
    of_run: u64,
}

impl<'r, T: SortedEntries> MergedEntries<'r, T> {
    pub(in crate::db) fn new(table: T, run: &'r mut dyn SortedEntries) -> Self {
        Self { table, run, order: Ordering::Equal, of_run: 0 }
    }

    /// Returns the number of entries taken from the run.
    pub(in crate::db) fn of_run(&self) -> u64 {
        self.of_run
    }
}

impl<T: SortedEntries> SortedEntries for MergedEntries<'_, T> {
    fn advance(&mut self) -> Result<bool> {
        if self.order.is_le() {
            self.table.advance()?;
        }
        if self.order.is_ge() && self.run.advance()? {
            self.of_run += 1;
        }
        self.order = match (self.table.entry(), self.run.entry()) {
            (Some((of_table, ..)), Some((of_run, ..))) => of_table.cmp(of_run),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => return Ok(false),
        };
        Ok(true)
    }

    fn entry(&self) -> Option<LoadEntry<&[u8], &[u8]>> {
        if self.order == Ordering::Less { self.table.entry() } else { self.run.entry() }
    }
}
