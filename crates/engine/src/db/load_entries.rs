//! The entries of a load, as it takes them: one at a time, through a trait's objects. So a load is compiled once in the engine, and not in
//! each program for each iterator that it loads from; two calls through a table of functions cost an entry some nanoseconds.

use std::cmp::Ordering;

use crate::error::Result;
use crate::format::Moment;

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
    pub(super) fn take(
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
    pub(super) fn all(&self) -> Option<&[LoadEntry<Vec<u8>, Vec<u8>>]> {
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
pub(super) struct MergedEntries<'r, T> {
    table: T,
    run: &'r mut dyn SortedEntries,
    /// Which of the two have the current key, as the order of the table's key and the run's: equal before the first.
    order: Ordering,
    of_run: u64,
}

impl<'r, T: SortedEntries> MergedEntries<'r, T> {
    pub(super) fn new(table: T, run: &'r mut dyn SortedEntries) -> Self {
        Self { table, run, order: Ordering::Equal, of_run: 0 }
    }

    /// Returns the number of entries taken from the run.
    pub(super) fn of_run(&self) -> u64 {
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
