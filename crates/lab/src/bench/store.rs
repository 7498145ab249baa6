//! Key-value stores as the benchmark uses them: the engine, and its rivals where they were built.

#[cfg(feature = "peers")]
mod lmdb;
#[cfg(feature = "peers")]
mod redb;

use std::path::Path;

use nofault::blocking::{Db, Table};
use nofault::settings::Settings;
use nofault::{Batch, Durability};

use super::data::{Data, Key};
use super::row::ENGINE;
use crate::error::Result;

/// The rivals, built or not.
pub(super) const PEERS: [&str; 2] = ["lmdb", "redb"];
/// What stands in the place of a rival's figure.
pub(super) const NOT_BUILT: &str = "not built: --features peers";

/// A store that holds a data set.
pub(super) trait Store: Sync {
    /// Its name in the rows.
    fn name(&self) -> &'static str;

    /// What one thread reads through. Sees what was committed before.
    fn reader(&self) -> Result<Box<dyn Reader + '_>>;

    /// Puts entries in one commit, which is on the device when this returns, if it is to be durable.
    fn write(&self, entries: &[(Key, Vec<u8>)], durable: bool) -> Result<()>;

    /// What is unequal about it.
    fn unequal(&self) -> &'static str;
}

/// Looks at a value and says whether it is right.
pub(super) type LookAtValue<'a> = &'a mut dyn FnMut(Option<&[u8]>) -> Result<()>;
/// Looks at an entry and says whether it is right.
pub(super) type LookAtEntry<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> Result<()>;

/// One thread's way to read.
pub(super) trait Reader {
    /// Shows the value of a key.
    fn get(&mut self, key: &Key, look: LookAtValue<'_>) -> Result<()>;

    /// Shows up to `count` entries from a key on; answers how many.
    fn scan(&mut self, from: &Key, count: usize, look: LookAtEntry<'_>) -> Result<usize>;
}

/// Makes a rival in `folder` and fills it in order; `None` when it was not built.
pub(super) fn peer(name: &str, folder: &Path, data: Data, cache_bytes: u64) -> Option<Result<Box<dyn Store>>> {
    #[cfg(feature = "peers")]
    return match name {
        "lmdb" => Some(lmdb::Lmdb::load(folder, data).map(|store| Box::new(store) as _)),
        "redb" => Some(redb::Redb::load(folder, data, cache_bytes).map(|store| Box::new(store) as _)),
        _ => None,
    };
    #[cfg(not(feature = "peers"))]
    {
        let _ = (name, folder, data, cache_bytes);
        None
    }
}

/// The engine with one table.
pub(super) struct Engine {
    pub(super) db: Db,
    pub(super) table: Table,
}

impl Engine {
    /// Creates a database and fills it in order.
    pub(super) fn load(folder: &Path, data: Data, settings: &Settings) -> Result<Self> {
        let engine = Self::create(folder, settings)?;
        engine.table.bulk_load(data.entries())?;
        Ok(engine)
    }

    /// Creates a database with an empty table.
    pub(super) fn create(folder: &Path, settings: &Settings) -> Result<Self> {
        let db = Db::create(folder, settings)?;
        let table = db.create_table("main")?;
        Ok(Self { db, table })
    }

    /// Opens a database again: nothing of its data is in memory.
    pub(super) fn open(folder: &Path, settings: &Settings) -> Result<Self> {
        let db = Db::open(folder, settings)?;
        let table = db.table("main")?;
        Ok(Self { db, table })
    }

    /// Bytes of the data file that hold something, as far as one may read them.
    pub(super) fn used_bytes(&self) -> u64 {
        self.db.stats().pool.blocks_used * self.db.page_bytes() as u64
    }
}

impl Store for Engine {
    fn name(&self) -> &'static str {
        ENGINE
    }

    fn reader(&self) -> Result<Box<dyn Reader + '_>> {
        Ok(Box::new(&self.table))
    }

    fn write(&self, entries: &[(Key, Vec<u8>)], durable: bool) -> Result<()> {
        let mut batch = Batch::new();
        for (key, value) in entries {
            batch.put(&self.table, key, value);
        }
        Ok(self.db.write(batch, if durable { Durability::Sync } else { Durability::Deferred })?)
    }

    fn unequal(&self) -> &'static str {
        ""
    }
}

impl Reader for &Table {
    fn get(&mut self, key: &Key, look: LookAtValue<'_>) -> Result<()> {
        look(Table::get(self, key)?.as_deref())
    }

    fn scan(&mut self, from: &Key, count: usize, look: LookAtEntry<'_>) -> Result<usize> {
        let mut seen = 0;
        for entry in self.range(*from..).take(count) {
            let (key, value) = entry?;
            look(&key, &value)?;
            seen += 1;
        }
        Ok(seen)
    }
}
