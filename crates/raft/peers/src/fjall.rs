//! fjall: a keyspace for each map; a commit is a batch.

use std::path::Path;

use anyhow::Result;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};

use crate::CACHE_BYTES;
use crate::peer::{Change, Part, Peer};

pub(crate) struct Fjall {
    database: Database,
    parts: [Keyspace; 3],
}

impl Fjall {
    fn part(&self, part: Part) -> &Keyspace {
        &self.parts[part as usize]
    }
}

impl Peer for Fjall {
    fn create(folder: &Path) -> Result<Self> {
        let database = Database::builder(folder).cache_size(CACHE_BYTES as u64).open()?;
        let part = |name| database.keyspace(name, KeyspaceCreateOptions::default);
        let parts = [part("log")?, part("meta")?, part("values")?];
        Ok(Self { database, parts })
    }

    fn commit(&self, changes: &[Change], durable: bool) -> Result<()> {
        let mode = if durable { PersistMode::SyncData } else { PersistMode::Buffer };
        let mut batch = self.database.batch().durability(Some(mode));
        for Change { part, key, value } in changes {
            match value {
                Some(value) => batch.insert(self.part(*part), key.as_slice(), value.as_slice()),
                None => batch.remove(self.part(*part), key.as_slice()),
            }
        }
        Ok(batch.commit()?)
    }

    fn get(&self, part: Part, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.part(part).get(key)?.map(|value| value.to_vec()))
    }

    fn log(&self, from: [u8; 8], before: [u8; 8]) -> Result<Vec<Vec<u8>>> {
        let entries = self.part(Part::Log).range(from..before);
        entries.map(|entry| Ok(entry.value()?.to_vec())).collect()
    }

    fn last_of_log(&self) -> Result<Option<Vec<u8>>> {
        let last = self.part(Part::Log).last_key_value();
        last.map(|entry| Ok(entry.value()?.to_vec())).transpose()
    }
}
