//! Reads the entries of one scan as keys and values of their types, for both faces: up to the first entry that is of others, with
//! which the scan ends.

use std::marker::PhantomData;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::typed::{Key, Value, read_entry};

/// Reads the entries of a scan of a typed table, and notes when the scan has ended with an error.
pub(crate) struct EntryReader<K, V> {
    /// The name of the table.
    table: Arc<str>,
    /// The error behind the entries that a batch has returned: the next call returns it.
    failed: Option<Error>,
    is_over: bool,
    types: PhantomData<fn() -> (K, V)>,
}

impl<K, V> EntryReader<K, V> {
    pub(crate) fn new(table: impl Into<Arc<str>>) -> Self {
        Self { table: table.into(), failed: None, is_over: false, types: PhantomData }
    }

    /// The name of the table.
    pub(crate) fn table(&self) -> &str {
        &self.table
    }

    /// Returns whether an error has ended the scan.
    ///
    /// # Errors
    /// That error, once, where it was met behind entries that were returned.
    pub(crate) fn is_over(&mut self) -> Result<bool> {
        self.failed.take().map_or(Ok(self.is_over), Err)
    }
}

impl<K: Key, V: Value> EntryReader<K, V> {
    /// Reads an entry.
    ///
    /// # Errors
    /// `WrongType` when key or value is not of its type: the scan is over then.
    pub(crate) fn read(&mut self, entry: &(impl AsRef<[u8]>, impl AsRef<[u8]>)) -> Result<(K, V::Item)> {
        read_entry::<K, V>(&self.table, entry).inspect_err(|_| self.is_over = true)
    }

    /// Reads entries up to the first that is not of the types of the table.
    ///
    /// # Errors
    /// As [`EntryReader::read`], when that is the first of them; otherwise the next call of `is_over` returns the error.
    pub(crate) fn read_batch(&mut self, entries: &[(Vec<u8>, Vec<u8>)]) -> Result<Vec<(K, V::Item)>> {
        let mut read = Vec::with_capacity(entries.len());
        for entry in entries {
            match self.read(entry) {
                Ok(entry) => read.push(entry),
                Err(error) if read.is_empty() => return Err(error),
                Err(error) => {
                    self.failed = Some(error);
                    break;
                }
            }
        }
        Ok(read)
    }
}
