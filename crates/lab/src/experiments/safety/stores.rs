//! The stores of the variant `commits` behind one trait: the engine, and its tree over a mapped file in each of the
//! safe ways.

use std::path::Path;

use nofault::mmap::{self, Protocol, WriteBack};
use nofault::{Batch, Durability, blocking};
use serde::{Deserialize, Serialize};

use crate::error::{LabError, LabErrorKind, Result};
use crate::methods;

/// Keys and values committed together.
pub(super) type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// The operations of a store under test.
pub(super) trait Subject: Sync {
    /// Commits pairs, which are durable when the call returns.
    fn commit(&self, pairs: &Pairs) -> Result<()>;
    /// Reads the value of one key; `None` when the key is absent.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>>;
    /// Makes a checkpoint, if the store has checkpoints.
    fn checkpoint(&self) -> Result<()>;
    /// Returns the store's counters so far.
    fn counters(&self) -> StoreCounters;
}

/// Counters of a store since it was opened.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StoreCounters {
    /// Bytes written to the log and the data file.
    pub(super) bytes_written: u64,
    /// Number of durable writes and syncs.
    pub(super) syncs: u64,
    /// Longest time in seconds that commits waited while a private map was dropped.
    pub(super) remap_s_max: f64,
}

/// The sizes in bytes of a store's data and log.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Size {
    pub(super) data_bytes: u64,
    pub(super) log_bytes: u64,
}

impl Size {
    /// Returns the bytes of address space for the map: enough for copies of all pages.
    fn map_bytes(self) -> u64 {
        (self.data_bytes * 6).next_multiple_of(1 << 20).max(32 << 20)
    }

    /// Returns the bytes of the engine's cache: three times the data, so that reads never go to disk.
    fn cache_bytes(self) -> usize {
        usize::try_from(self.data_bytes * 3).unwrap_or(usize::MAX / 2).max(32 << 20)
    }
}

fn protocol(method: &str) -> Option<Protocol> {
    Some(match *methods::find(&[], method)? {
        methods::OS_COW => Protocol::OsCow,
        methods::USER_COW => Protocol::UserCow(WriteBack::Map),
        methods::USER_COW_PWRITE => Protocol::UserCow(WriteBack::Call),
        methods::MAPPED_LOG => Protocol::MappedLog,
        methods::SHADOW => Protocol::Shadow(WriteBack::Call),
        methods::SHADOW_WRITEMAP => Protocol::Shadow(WriteBack::Map),
        _ => return None,
    })
}

fn map_settings(protocol: Protocol, size: Size) -> mmap::Settings {
    mmap::Settings {
        map_bytes: size.map_bytes(),
        log_bytes: size.log_bytes,
        private_bytes_max: 4 << 20,
        ..mmap::Settings::new(protocol)
    }
}

fn engine_settings(size: Size) -> nofault::settings::Settings {
    nofault::settings::Settings {
        cache_bytes: size.cache_bytes(),
        log_bytes: size.log_bytes,
        ..nofault::settings::Settings::default()
    }
}

/// Creates a store in a new folder, or opens the existing one.
pub(super) fn open(method: &str, folder: &Path, size: Size, new: bool) -> Result<Box<dyn Subject>> {
    if let Some(protocol) = protocol(method) {
        let settings = map_settings(protocol, size);
        // SAFETY: the folder is the trial's own, so no other process opens its files.
        let opened =
            unsafe { if new { mmap::Store::create(folder, &settings) } else { mmap::Store::open(folder, &settings) } };
        return Ok(Box::new(opened?));
    }
    if method != methods::ENGINE {
        return Err(LabError::new(LabErrorKind::Usage, format!("safety: no store is called '{method}'")));
    }
    let settings = engine_settings(size);
    let engine = if new {
        let db = blocking::Db::create(folder, &settings)?;
        let table = db.create_table("t")?;
        Engine { db, table }
    } else {
        let db = blocking::Db::open(folder, &settings)?;
        let table = db.table("t")?;
        Engine { db, table }
    };
    Ok(Box::new(engine))
}

/// Describes the settings of a store for people.
pub(super) fn settings_text(method: &str, size: Size) -> String {
    let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
    let (log, map) = (mib(size.log_bytes), mib(size.map_bytes()));
    let common = "4 KiB pages; each commit durable when it returns";
    match protocol(method) {
        Some(Protocol::OsCow) => format!(
            "{common}; shared and private map of {map}, MADV_RANDOM; the engine's log, {log}; private copies dropped at 4 MiB; checkpoints by msync; readers see commits before they are durable"
        ),
        Some(Protocol::UserCow(WriteBack::Map)) => {
            format!(
                "{common}; shared map of {map}, MADV_RANDOM; the engine's log, {log}; copied back into the map, checkpoints by msync"
            )
        }
        Some(Protocol::UserCow(WriteBack::Call)) => {
            format!(
                "{common}; read-only map of {map}, MADV_RANDOM; the engine's log, {log}; written back by pwrite, checkpoints by fdatasync"
            )
        }
        Some(Protocol::MappedLog) => {
            format!(
                "{common}; read-only map of three times {map}, MADV_RANDOM; the engine's log, {log}; pages written by pwrite, never overwritten; checkpoints by fdatasync and a meta page (O_DSYNC)"
            )
        }
        Some(Protocol::Shadow(WriteBack::Map)) => {
            format!(
                "{common}; writable map of {map}, MADV_RANDOM; no log; msync, then a meta page (O_DSYNC); no group commit"
            )
        }
        Some(Protocol::Shadow(WriteBack::Call)) => {
            format!(
                "{common}; read-only map of {map}, MADV_RANDOM; no log; pwrite and fdatasync, then a meta page (O_DSYNC); no group commit"
            )
        }
        None => format!(
            "{common}; pool of {}; log {log}; pages checked at each load, never overwritten",
            mib(size.cache_bytes() as u64)
        ),
    }
}

impl Subject for mmap::Store {
    fn commit(&self, pairs: &Pairs) -> Result<()> {
        let mut batch = mmap::Batch::new();
        for (key, value) in pairs {
            batch.put(key.clone(), value.clone());
        }
        Ok(self.write(&batch)?)
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(mmap::Store::get(self, key)?)
    }

    fn checkpoint(&self) -> Result<()> {
        Ok(mmap::Store::checkpoint(self)?)
    }

    fn counters(&self) -> StoreCounters {
        let stats = self.stats();
        StoreCounters {
            bytes_written: stats.data_bytes_written + stats.log_bytes_written,
            syncs: stats.data_syncs + stats.log_writes,
            remap_s_max: stats.remap_ns_max as f64 / 1e9,
        }
    }
}

struct Engine {
    db: blocking::Db,
    table: blocking::Table,
}

impl Subject for Engine {
    fn commit(&self, pairs: &Pairs) -> Result<()> {
        let mut batch = Batch::new();
        for (key, value) in pairs {
            batch.put(&self.table, key, value);
        }
        Ok(self.db.write(batch, Durability::Sync)?)
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.table.get(key)?)
    }

    fn checkpoint(&self) -> Result<()> {
        Ok(self.db.checkpoint()?)
    }

    fn counters(&self) -> StoreCounters {
        let stats = self.db.stats();
        StoreCounters {
            bytes_written: stats.log.bytes_written + stats.pool.pages_written * self.db.page_bytes() as u64,
            // A checkpoint syncs the data and then writes a superblock durably.
            syncs: stats.log.groups_written + 2 * stats.checkpoints,
            remap_s_max: 0.0,
        }
    }
}
