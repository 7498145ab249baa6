//! Key-value stores as experiments use them: the engine, and its rivals, each in its own file. A rival that was
//! not compiled in is still listed, with the cargo feature that adds it. LMDB and SQLite, the two that users of a map
//! most often run, are part of every build.
//!
//! Equal for all: keys, values and their order; memory for process and page cache together; one commit a write; two
//! classes of durability: *sync*, a commit that has returned survives a power cut; *deferred*, it is visible, and a
//! power cut may lose the last ones. Remaining differences are stated by each store itself ([`Store::unequal`]).

#[cfg(feature = "peers")]
mod bf_tree;
#[cfg(feature = "peers")]
mod fjall;
mod lmdb;
#[cfg(feature = "peers")]
mod redb;
#[cfg(feature = "peer-rocksdb")]
mod rocksdb;
mod sqlite;
#[cfg(test)]
mod tests;

use crate::paths::shown;
use crate::record::SkipCause;
use std::path::Path;

use nofault::blocking::{Db, Table};
use nofault::settings::Settings;
use nofault::{Batch, Durability};

use crate::error::{LabError, LabErrorKind, Result};
use crate::measure::Worker;
use crate::measure::entries::{Data, Key};

/// Ids of the stores in the ways of running them, which are also the ids of methods.
pub(crate) const ENGINE: &str = "nofault";
pub(crate) const LMDB: &str = "lmdb";
pub(crate) const LMDB_READ_AHEAD: &str = "lmdb-readahead";
pub(crate) const SQLITE: &str = "sqlite";
pub(crate) const SQLITE_MMAP: &str = "sqlite-mmap";
pub(crate) const REDB: &str = "redb";
pub(crate) const FJALL: &str = "fjall";
pub(crate) const BF_TREE: &str = "bf-tree";
pub(crate) const ROCKSDB: &str = "rocksdb";
pub(crate) const ROCKSDB_MMAP: &str = "rocksdb-mmap";
pub(crate) const ROCKSDB_DIRECT: &str = "rocksdb-direct";
/// Returns the text in place of a store's figures when the store was not compiled in, for lack of this cargo feature.
pub(crate) fn not_built(feature: &str) -> String {
    format!("not built: --features {feature}")
}

/// Bytes of keys and values in one commit, while a store without its own bulk load is filled. Bounded because a
/// commit's changes are in memory.
const FILL_BYTES: usize = 8 << 20;

/// Largest value in bytes of Bf-Tree: its largest page of 32 KiB must hold two records and their descriptions.
const BF_TREE_VALUE_BYTES_MAX: u32 = 16_000;

/// A store that the lab can compare, compiled in or not: one way to run it.
#[derive(Debug, PartialEq)]
pub(crate) struct Kind {
    /// Id of the store as a method.
    pub(crate) id: &'static str,
    /// The cargo feature that adds the store; empty for a store that is always there.
    pub(crate) feature: &'static str,
    /// The fraction of the memory that the store gets as its cache; the rest is for the process and the page
    /// cache.
    pub(crate) cache_share: f64,
    /// The store's name and its access path, for people.
    pub(crate) what: &'static str,
    /// Whether the store reads through a map for which the kernel reads ahead around faults.
    pub(crate) reads_ahead: bool,
    /// Whether a single commit of the store can be made durable.
    pub(crate) commits_durably: bool,
    /// Largest value in bytes that the store takes.
    pub(crate) value_bytes_max: u32,
}

/// Every store in each way of running it that is compared: with and without a map where the store offers both. Caches
/// are sized as the stores' authors advise for a process with that much memory: most of it for a store that reads past
/// the page cache, half or less for one that reads through it, none for a map.
pub(crate) const KINDS: [Kind; 11] = [
    kind(ENGINE, "", 0.7, "the engine: its own pool, O_DIRECT"),
    kind(LMDB, "", 0.0, "LMDB, read through a map, MDB_NORDAHEAD"),
    ahead(kind(LMDB_READ_AHEAD, "", 0.0, "LMDB, read through a map, with read-ahead")),
    kind(SQLITE, "", 0.25, "SQLite, WAL, mmap_size 0: read calls"),
    ahead(kind(SQLITE_MMAP, "", 0.25, "SQLite, WAL, mmap_size above the file's size")),
    kind(REDB, "peers", 0.5, "redb: read calls and its own cache"),
    kind(FJALL, "peers", 0.5, "fjall: an LSM tree in Rust, read calls and a block cache"),
    Kind {
        commits_durably: false,
        value_bytes_max: BF_TREE_VALUE_BYTES_MAX,
        ..kind(BF_TREE, "peers", 0.5, "Bf-Tree: a B-tree in Rust with a cache of records, read calls")
    },
    kind(ROCKSDB, "peer-rocksdb", 0.25, "RocksDB: an LSM tree, read calls and a block cache"),
    ahead(kind(ROCKSDB_MMAP, "peer-rocksdb", 0.25, "RocksDB with mmap reads")),
    kind(ROCKSDB_DIRECT, "peer-rocksdb", 0.6, "RocksDB with direct reads and a larger block cache"),
];

const fn kind(id: &'static str, feature: &'static str, cache_share: f64, what: &'static str) -> Kind {
    let (reads_ahead, commits_durably, value_bytes_max) = (false, true, u32::MAX);
    Kind { id, feature, cache_share, what, reads_ahead, commits_durably, value_bytes_max }
}

const fn ahead(kind: Kind) -> Kind {
    Kind { reads_ahead: true, ..kind }
}

impl Kind {
    /// Whether the store was compiled in.
    pub(crate) fn is_built(&self) -> bool {
        let with = |feature: &str, built: bool| built && self.feature == feature;
        let peers = with("peers", cfg!(feature = "peers"));
        self.feature.is_empty() || peers || with("peer-rocksdb", cfg!(feature = "peer-rocksdb"))
    }

    /// Returns the text that is shown instead of the store's figures when it was not compiled in.
    pub(crate) fn not_built(&self) -> String {
        not_built(self.feature)
    }

    /// Returns the cause of skipping the store when it was not compiled in.
    pub(crate) fn why_not_built(&self) -> SkipCause {
        SkipCause::NotBuilt(self.feature.into())
    }
}

/// Finds the store with this method id.
pub(crate) fn kind_of(id: &str) -> Option<&'static Kind> {
    KINDS.iter().find(|kind| kind.id == id)
}

/// The resources that a store may use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    /// Bytes of memory for the store's own cache.
    pub(crate) cache_bytes: u64,
    /// Bytes of written data that a store with write buffers (LSM trees) may hold before flushing.
    #[cfg_attr(
        not(any(feature = "peers", feature = "peer-rocksdb")),
        expect(dead_code, reason = "no store of this build has write buffers")
    )]
    pub(crate) write_bytes: u64,
    /// Most bytes of keys and values that the store will hold.
    pub(crate) data_bytes: u64,
    /// Number of threads using the store concurrently.
    pub(crate) threads: u32,
    /// Bytes of a value, for a store that must know them when it is created.
    #[cfg_attr(not(feature = "peers"), expect(dead_code, reason = "no store of this build must know it"))]
    pub(crate) value_bytes: u32,
}

/// Whether a store is to be created or opened again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// Create the store, in a folder that does not exist yet.
    New,
    /// Open the store, in the folder where it was created.
    Old,
}

/// A store holding a data set.
pub(crate) trait Store: Sync {
    /// Opens a reader for one thread. The reader sees the data committed before.
    fn reader(&self) -> Result<Box<dyn Reader + '_>>;

    /// Writes entries in one commit. With `durable` the commit is on the device when this returns.
    fn write(&self, entries: &[(Key, Vec<u8>)], durable: bool) -> Result<()>;

    /// Loads all entries, in ascending order, into an empty store in its fastest way. All entries are durable when this
    /// returns.
    fn fill(&self, entries: &mut dyn Iterator<Item = (Key, Vec<u8>)>) -> Result<()>;

    /// Makes every commit so far durable in the store's cheapest way.
    fn sync(&self) -> Result<()> {
        self.settle()
    }

    /// Makes every commit so far durable, and flushes write buffers and logs into the data files, so that the files
    /// have the size that their content needs.
    fn settle(&self) -> Result<()>;

    /// The store's settings by name, read back from the store where that is possible.
    fn settings(&self) -> Result<Vec<(&'static str, String)>>;

    /// A sentence about remaining differences between this store and the engine.
    fn unequal(&self) -> &'static str;
}

/// Fills an empty store with the entries of `data`, in order, as the timed work of a trial. Each entry is counted; once
/// the trial is cancelled, no more are written. All entries are durable when this returns.
pub(crate) fn fill_counted(worker: &mut Worker<'_>, store: &dyn Store, data: Data) -> Result<()> {
    worker.start();
    let mut entries = data.entries();
    let mut counted = std::iter::from_fn(|| {
        let entry = if worker.running() { entries.next() } else { None }?;
        worker.done(1, data.entry_bytes());
        Some(entry)
    });
    store.fill(&mut counted)
}

/// Callback that checks a value (`None`: no such key); an error says that the value is wrong.
pub(crate) type LookAtValue<'a> = &'a mut dyn FnMut(Option<&[u8]>) -> Result<()>;
/// Callback that checks an entry, given its key and value; an error says that the entry is wrong.
pub(crate) type LookAtEntry<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> Result<()>;

/// The read side of a store, for one thread.
pub(crate) trait Reader {
    /// Passes the value of a key to `look`, or `None`.
    fn get(&mut self, key: &Key, look: LookAtValue<'_>) -> Result<()>;

    /// Passes up to `count` entries from key `from` on to `look`; returns their number.
    fn scan(&mut self, from: &Key, count: usize, look: LookAtEntry<'_>) -> Result<usize>;
}

/// Opens a store; `None` when it was not compiled in or the id is unknown.
pub(crate) fn open(id: &str, folder: &Path, room: Room, start: Start) -> Option<Result<Box<dyn Store>>> {
    Some(match id {
        ENGINE => boxed(Engine::start(folder, room, start)),
        LMDB | LMDB_READ_AHEAD => boxed(lmdb::Lmdb::start(folder, room, start, id != LMDB)),
        SQLITE | SQLITE_MMAP => boxed(sqlite::Sqlite::start(folder, room, start, id != SQLITE)),
        #[cfg(feature = "peers")]
        REDB => boxed(redb::Redb::start(folder, room, start)),
        #[cfg(feature = "peers")]
        BF_TREE => boxed(bf_tree::BfTreeStore::start(folder, room, start)),
        #[cfg(feature = "peers")]
        FJALL => boxed(fjall::Fjall::start(folder, room, start)),
        #[cfg(feature = "peer-rocksdb")]
        ROCKSDB => boxed(rocksdb::Rocksdb::start(folder, room, start, rocksdb::Reads::Buffered)),
        #[cfg(feature = "peer-rocksdb")]
        ROCKSDB_MMAP => boxed(rocksdb::Rocksdb::start(folder, room, start, rocksdb::Reads::Mapped)),
        #[cfg(feature = "peer-rocksdb")]
        ROCKSDB_DIRECT => boxed(rocksdb::Rocksdb::start(folder, room, start, rocksdb::Reads::Direct)),
        _ => return None,
    })
}

fn boxed<'a>(store: Result<impl Store + 'a>) -> Result<Box<dyn Store + 'a>> {
    store.map(|store| Box::new(store) as _)
}

/// Moves the entries of the next commit into `batch`; false when there are none left.
fn next_batch(entries: &mut dyn Iterator<Item = (Key, Vec<u8>)>, batch: &mut Vec<(Key, Vec<u8>)>) -> bool {
    batch.clear();
    let mut bytes = 0;
    while bytes < FILL_BYTES {
        let Some((key, value)) = entries.next() else { break };
        bytes += key.len() + value.len();
        batch.push((key, value));
    }
    !batch.is_empty()
}

/// Creates the folder of a new store; checks that the folder of an existing store is there.
fn prepare(folder: &Path, start: Start) -> Result<()> {
    match start {
        Start::New => std::fs::create_dir(folder).map_err(|error| LabError::system(shown(&folder), &error)),
        Start::Old if folder.is_dir() => Ok(()),
        Start::Old => Err(LabError::new(LabErrorKind::Usage, format!("{}: no store is there", shown(&folder)))),
    }
}

/// The engine as a store: a database with one table.
pub(crate) struct Engine {
    pub(crate) db: Db,
    pub(crate) table: Table,
}

impl Engine {
    fn start(folder: &Path, room: Room, start: Start) -> Result<Self> {
        let cache_bytes = usize::try_from(room.cache_bytes).unwrap_or(usize::MAX);
        let settings = Settings { cache_bytes, ..Settings::default() };
        match start {
            Start::New => Self::create(folder, &settings),
            Start::Old => Self::open(folder, &settings),
        }
    }

    /// Creates a database and loads the entries of `data` in key order.
    pub(crate) fn load(folder: &Path, data: Data, settings: &Settings) -> Result<Self> {
        let engine = Self::create(folder, settings)?;
        engine.table.bulk_load(data.entries())?;
        Ok(engine)
    }

    /// Creates a database with an empty table.
    pub(crate) fn create(folder: &Path, settings: &Settings) -> Result<Self> {
        let db = Db::create(folder, settings)?;
        let table = db.create_table("main")?;
        Ok(Self { db, table })
    }

    /// Opens an existing database: nothing of its data is in memory then.
    pub(crate) fn open(folder: &Path, settings: &Settings) -> Result<Self> {
        let db = Db::open(folder, settings)?;
        let table = db.table("main")?;
        Ok(Self { db, table })
    }

    /// Bytes of the data file that are in use.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.db.stats().pool.blocks_used * self.db.page_bytes() as u64
    }
}

impl Store for Engine {
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

    fn fill(&self, entries: &mut dyn Iterator<Item = (Key, Vec<u8>)>) -> Result<()> {
        self.table.bulk_load(entries)?;
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.db.sync()?;
        Ok(())
    }

    fn settle(&self) -> Result<()> {
        Ok(self.db.checkpoint()?)
    }

    fn settings(&self) -> Result<Vec<(&'static str, String)>> {
        let disk = self.db.stats().disk;
        Ok(vec![
            ("version", env!("CARGO_PKG_VERSION").into()),
            ("page", crate::format::bytes(self.db.page_bytes() as u64)),
            ("disk", format!("{}, {}", disk.kind, if disk.direct { "O_DIRECT" } else { "through the page cache" })),
            ("log", crate::format::bytes(Settings::default().log_bytes)),
            ("sync", "RWF_DSYNC into a pre-written log, one write for a group of commits".into()),
            ("deferred", "the log is written soon after, without anybody waiting".into()),
            ("filling", "bulk load, past the log".into()),
        ])
    }

    fn unequal(&self) -> &'static str {
        "nofault: reads past the page cache, verifies every page it loads, write transactions are serializable"
    }
}

impl Reader for &Table {
    fn get(&mut self, key: &Key, look: LookAtValue<'_>) -> Result<()> {
        Table::get_with(self, key, look)?
    }

    fn scan(&mut self, from: &Key, count: usize, look: LookAtEntry<'_>) -> Result<usize> {
        let (mut range, mut seen) = (self.range(*from..), 0);
        while seen < count
            && let Some((key, value)) = range.next_ref()?
        {
            look(key, value)?;
            seen += 1;
        }
        Ok(seen)
    }
}
