//! redb: a table for each map; a commit is a write transaction.

use std::path::Path;

use anyhow::Result;
use redb::{Database, Durability, ReadableDatabase as _, ReadableTable as _, TableDefinition};

use crate::CACHE_BYTES;
use crate::peer::{Change, Part, Peer};

const PARTS: [TableDefinition<'_, &[u8], &[u8]>; 3] =
    [TableDefinition::new("log"), TableDefinition::new("meta"), TableDefinition::new("values")];

pub(crate) struct Redb(Database);

impl Peer for Redb {
    fn create(folder: &Path) -> Result<Self> {
        std::fs::create_dir_all(folder)?;
        let database = Database::builder().set_cache_size(CACHE_BYTES).create(folder.join("data"))?;
        let change = database.begin_write()?;
        for part in PARTS {
            change.open_table(part)?;
        }
        change.commit()?;
        Ok(Self(database))
    }

    fn commit(&self, changes: &[Change], durable: bool) -> Result<()> {
        let mut change = self.0.begin_write()?;
        change.set_durability(if durable { Durability::Immediate } else { Durability::None })?;
        for part in [Part::Log, Part::Meta, Part::Values] {
            let mut of_part = changes.iter().filter(|change| change.part == part).peekable();
            if of_part.peek().is_none() {
                continue;
            }
            let mut table = change.open_table(PARTS[part as usize])?;
            for Change { key, value, .. } in of_part {
                match value {
                    Some(value) => table.insert(key.as_slice(), value.as_slice())?,
                    None => table.remove(key.as_slice())?,
                };
            }
        }
        Ok(change.commit()?)
    }

    fn get(&self, part: Part, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let table = self.0.begin_read()?.open_table(PARTS[part as usize])?;
        Ok(table.get(key)?.map(|value| value.value().to_vec()))
    }

    fn log(&self, from: [u8; 8], before: [u8; 8]) -> Result<Vec<Vec<u8>>> {
        let table = self.0.begin_read()?.open_table(PARTS[Part::Log as usize])?;
        let entries = table.range(from.as_slice()..before.as_slice())?;
        entries.map(|entry| Ok(entry?.1.value().to_vec())).collect()
    }

    fn last_of_log(&self) -> Result<Option<Vec<u8>>> {
        let table = self.0.begin_read()?.open_table(PARTS[Part::Log as usize])?;
        Ok(table.last()?.map(|(_, value)| value.value().to_vec()))
    }
}
