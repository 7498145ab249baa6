//! fjall: an LSM tree in Rust, read by system calls through its own block cache.

use std::path::Path;

use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};

use super::{Key, LookAtEntry, LookAtValue, Reader, Room, Start, Store};
use crate::error::{LabError, LabErrorKind, Result};

/// fjall as a store: a database with one keyspace.
pub(crate) struct Fjall {
    database: Database,
    keyspace: Keyspace,
    memtable_bytes: u64,
}

fn failed(error: fjall::Error) -> LabError {
    LabError::new(LabErrorKind::System, format!("fjall: {error}"))
}

impl Fjall {
    /// Creates a database in `folder`, or opens the existing one.
    pub(crate) fn start(folder: &Path, room: Room, start: Start) -> Result<Self> {
        super::prepare(folder, start)?;
        // Two memtables: one is written out while the next fills.
        let memtable_bytes = (room.write_bytes / 2).max(1 << 20);
        let database = Database::builder(folder).cache_size(room.cache_bytes).open().map_err(failed)?;
        let options = || KeyspaceCreateOptions::default().max_memtable_size(memtable_bytes);
        let keyspace = database.keyspace("main", options).map_err(failed)?;
        Ok(Self { database, keyspace, memtable_bytes })
    }
}

impl Store for Fjall {
    fn reader(&self) -> Result<Box<dyn Reader + '_>> {
        Ok(Box::new(&self.keyspace))
    }

    fn write(&self, entries: &[(Key, Vec<u8>)], durable: bool) -> Result<()> {
        let mode = if durable { PersistMode::SyncData } else { PersistMode::Buffer };
        let mut batch = self.database.batch().durability(Some(mode));
        for (key, value) in entries {
            batch.insert(&self.keyspace, key.as_slice(), value.as_slice());
        }
        batch.commit().map_err(failed)
    }

    fn fill(&self, entries: &mut dyn Iterator<Item = (Key, Vec<u8>)>) -> Result<()> {
        let mut load = self.keyspace.start_ingestion().map_err(failed)?;
        for (key, value) in entries {
            load.write(key.as_slice(), value).map_err(failed)?;
        }
        load.finish().map_err(failed)?;
        self.settle()
    }

    fn sync(&self) -> Result<()> {
        self.database.persist(PersistMode::SyncAll).map_err(failed)
    }

    fn settle(&self) -> Result<()> {
        self.keyspace.rotate_memtable_and_wait().map_err(failed)?;
        self.database.persist(PersistMode::SyncAll).map_err(failed)
    }

    fn settings(&self) -> Result<Vec<(&'static str, String)>> {
        let bytes = crate::format::bytes;
        Ok(vec![
            ("version", "3".into()),
            ("cache", bytes(self.database.cache_capacity())),
            ("memtable", bytes(self.memtable_bytes)),
            ("compression", "none".into()),
            ("sync", "PersistMode::SyncData with each commit".into()),
            ("deferred", "PersistMode::Buffer: the journal is handed to the kernel".into()),
            ("filling", "ingestion of sorted entries".into()),
        ])
    }

    fn unequal(&self) -> &'static str {
        "fjall: merges in the background what is written now, so part of the cost of a write falls outside the measured time; its \
         files are in the page cache beside its own cache; commits do not share a sync"
    }
}

impl Reader for &Keyspace {
    fn get(&mut self, key: &Key, look: LookAtValue<'_>) -> Result<()> {
        let value = Keyspace::get(self, key).map_err(failed)?;
        look(value.as_deref())
    }

    fn scan(&mut self, from: &Key, count: usize, look: LookAtEntry<'_>) -> Result<usize> {
        let mut seen = 0;
        for entry in self.range(from.as_slice()..).take(count) {
            let (key, value) = entry.into_inner().map_err(failed)?;
            look(&key, &value)?;
            seen += 1;
        }
        Ok(seen)
    }
}
