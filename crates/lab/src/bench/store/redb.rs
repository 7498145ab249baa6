//! redb: copy-on-write B-trees in Rust, read and written by system calls, with a cache of its own.

use std::path::Path;

use redb::{Database, Durability, ReadOnlyTable, ReadableDatabase as _, TableDefinition};

use super::{Data, Key, LookAtEntry, LookAtValue, Reader, Store};
use crate::error::{LabError, LabErrorKind, Result};

const TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("main");

/// A database with one table.
pub(super) struct Redb(Database);

fn failed(error: impl Into<redb::Error>) -> LabError {
    LabError::new(LabErrorKind::System, format!("redb: {}", error.into()))
}

impl Redb {
    /// Makes one in `folder` and fills it in order.
    pub(super) fn load(folder: &Path, data: Data, cache_bytes: u64) -> Result<Self> {
        std::fs::create_dir(folder).map_err(|error| LabError::system(folder.display(), &error))?;
        let cache_bytes = usize::try_from(cache_bytes).unwrap_or(usize::MAX);
        let database = Database::builder().set_cache_size(cache_bytes).create(folder.join("data")).map_err(failed)?;
        let store = Self(database);
        store.put_all(&mut data.entries(), Durability::Immediate)?;
        Ok(store)
    }

    fn put_all(
        &self,
        entries: &mut dyn Iterator<Item = (Key, impl AsRef<[u8]>)>,
        durability: Durability,
    ) -> Result<()> {
        let mut change = self.0.begin_write().map_err(failed)?;
        change.set_durability(durability).map_err(failed)?;
        {
            let mut table = change.open_table(TABLE).map_err(failed)?;
            for (key, value) in entries {
                table.insert(key.as_slice(), value.as_ref()).map_err(failed)?;
            }
        }
        change.commit().map_err(failed)
    }
}

impl Store for Redb {
    fn name(&self) -> &'static str {
        "redb"
    }

    fn reader(&self) -> Result<Box<dyn Reader + '_>> {
        let held = self.0.begin_read().map_err(failed)?;
        Ok(Box::new(held.open_table(TABLE).map_err(failed)?))
    }

    fn write(&self, entries: &[(Key, Vec<u8>)], durable: bool) -> Result<()> {
        let durability = if durable { Durability::Immediate } else { Durability::None };
        self.put_all(&mut entries.iter().map(|(key, value)| (*key, value)), durability)
    }

    fn unequal(&self) -> &'static str {
        "redb: its files are in the page cache beside its own cache, as memory allows"
    }
}

impl Reader for ReadOnlyTable<&'static [u8], &'static [u8]> {
    fn get(&mut self, key: &Key, look: LookAtValue<'_>) -> Result<()> {
        let value = ReadOnlyTable::get(self, key.as_slice()).map_err(failed)?;
        look(value.as_ref().map(|value| value.value()))
    }

    fn scan(&mut self, from: &Key, count: usize, look: LookAtEntry<'_>) -> Result<usize> {
        let mut seen = 0;
        for entry in self.range(from.as_slice()..).map_err(failed)?.take(count) {
            let (key, value) = entry.map_err(failed)?;
            look(key.value(), value.value())?;
            seen += 1;
        }
        Ok(seen)
    }
}
