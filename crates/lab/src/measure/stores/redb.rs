//! redb: copy-on-write B-trees in Rust, read and written by system calls, with its own cache.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use redb::{Database, Durability, ReadOnlyTable, ReadableDatabase as _, TableDefinition};

use super::{Key, LookAtEntry, LookAtValue, Reader, Room, Start, Store};
use crate::error::{LabError, LabErrorKind, Result};

const TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("main");

/// Most deferred commits between two durable ones. Bounded because redb frees no page in between.
const DEFERRED_MAX: u32 = 1000;

/// redb as a store: a database with one table.
pub(crate) struct Redb {
    database: Database,
    cache_bytes: u64,
    deferred: AtomicU32,
}

fn failed(error: impl Into<redb::Error>) -> LabError {
    LabError::new(LabErrorKind::System, format!("redb: {}", error.into()))
}

impl Redb {
    /// Creates a database in `folder`, or opens the existing one.
    pub(crate) fn start(folder: &Path, room: Room, start: Start) -> Result<Self> {
        super::prepare(folder, start)?;
        let cache_bytes = usize::try_from(room.cache_bytes).unwrap_or(usize::MAX);
        let mut builder = Database::builder();
        builder.set_cache_size(cache_bytes);
        let file = folder.join("data");
        let opened = if start == Start::New { builder.create(file) } else { builder.open(file) };
        Ok(Self { database: opened.map_err(failed)?, cache_bytes: room.cache_bytes, deferred: AtomicU32::new(0) })
    }

    fn put_all(
        &self,
        entries: &mut dyn Iterator<Item = (Key, impl AsRef<[u8]>)>,
        durability: Durability,
    ) -> Result<()> {
        let mut change = self.database.begin_write().map_err(failed)?;
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
    fn reader(&self) -> Result<Box<dyn Reader + '_>> {
        let held = self.database.begin_read().map_err(failed)?;
        Ok(Box::new(held.open_table(TABLE).map_err(failed)?))
    }

    fn write(&self, entries: &[(Key, Vec<u8>)], durable: bool) -> Result<()> {
        let now = durable || self.deferred.fetch_add(1, Ordering::Relaxed) % DEFERRED_MAX == DEFERRED_MAX - 1;
        let durability = if now { Durability::Immediate } else { Durability::None };
        self.put_all(&mut entries.iter().map(|(key, value)| (*key, value)), durability)
    }

    fn fill(&self, entries: &mut dyn Iterator<Item = (Key, Vec<u8>)>) -> Result<()> {
        let mut batch = Vec::new();
        while super::next_batch(entries, &mut batch) {
            self.put_all(&mut batch.iter().map(|(key, value)| (*key, value)), Durability::Immediate)?;
        }
        Ok(())
    }

    fn settle(&self) -> Result<()> {
        self.put_all(&mut std::iter::empty::<(Key, Vec<u8>)>(), Durability::Immediate)
    }

    fn settings(&self) -> Result<Vec<(&'static str, String)>> {
        Ok(vec![
            ("version", "4".into()),
            ("cache", crate::format::bytes(self.cache_bytes)),
            ("sync", "Durability::Immediate, one phase with checksums".into()),
            (
                "deferred",
                format!("Durability::None; every {DEFERRED_MAX}th commit is durable, so that pages become free"),
            ),
            ("filling", format!("{} a durable commit", crate::format::bytes(super::FILL_BYTES as u64))),
        ])
    }

    fn unequal(&self) -> &'static str {
        "redb: its files are in the page cache beside its own cache, as memory allows; one writer at a time; pages are checked \
         at recovery and not when they are read"
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
