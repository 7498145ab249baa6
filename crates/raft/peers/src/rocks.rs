//! RocksDB: a column family for each map; a commit is a write batch.

use std::path::Path;

use anyhow::{Context as _, Result};
use rocksdb::{BlockBasedOptions, Cache, ColumnFamily, DB, Direction, IteratorMode, Options, WriteBatch, WriteOptions};

use crate::CACHE_BYTES;
use crate::peer::{Change, Part, Peer};

const PARTS: [&str; 3] = ["log", "meta", "values"];

pub(crate) struct Rocks(DB);

impl Rocks {
    fn part(&self, part: Part) -> Result<&ColumnFamily> {
        self.0.cf_handle(PARTS[part as usize]).context("a column family is missing")
    }
}

impl Peer for Rocks {
    fn create(folder: &Path) -> Result<Self> {
        let mut table = BlockBasedOptions::default();
        table.set_block_cache(&Cache::new_lru_cache(CACHE_BYTES));
        let mut options = Options::default();
        options.create_if_missing(true);
        options.create_missing_column_families(true);
        options.set_block_based_table_factory(&table);
        Ok(Self(DB::open_cf(&options, folder, PARTS)?))
    }

    fn commit(&self, changes: &[Change], durable: bool) -> Result<()> {
        let mut batch = WriteBatch::default();
        for Change { part, key, value } in changes {
            match value {
                Some(value) => batch.put_cf(self.part(*part)?, key, value),
                None => batch.delete_cf(self.part(*part)?, key),
            }
        }
        let mut how = WriteOptions::default();
        how.set_sync(durable);
        Ok(self.0.write_opt(batch, &how)?)
    }

    fn get(&self, part: Part, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.0.get_cf(self.part(part)?, key)?)
    }

    fn log(&self, from: [u8; 8], before: [u8; 8]) -> Result<Vec<Vec<u8>>> {
        let entries = self.0.iterator_cf(self.part(Part::Log)?, IteratorMode::From(&from, Direction::Forward));
        let mut values = Vec::new();
        for entry in entries {
            let (key, value) = entry?;
            if *key >= before[..] {
                break;
            }
            values.push(value.into_vec());
        }
        Ok(values)
    }

    fn last_of_log(&self) -> Result<Option<Vec<u8>>> {
        let last = self.0.iterator_cf(self.part(Part::Log)?, IteratorMode::End).next();
        Ok(last.transpose()?.map(|(_, value)| value.into_vec()))
    }
}
