//! RocksDB: an LSM tree, read by calls through the page cache, through maps, or past the page cache.

use std::path::{Path, PathBuf};

use rocksdb::{
    BlockBasedOptions, Cache, DB, DBCompressionType, Direction, IngestExternalFileOptions, IteratorMode, Options,
    SstFileWriter, WriteBatch, WriteOptions,
};

use super::{Key, LookAtEntry, LookAtValue, Reader, Room, Start, Store};
use crate::error::{LabError, LabErrorKind, Result};

/// Bytes of keys and values in each file that a bulk load makes: RocksDB's own file size on its first levels.
const LOAD_FILE_BYTES: usize = 64 << 20;

/// Whether the system's RocksDB library is linked instead of the one built from the crate.
const INSTALLED: bool = option_env!("ROCKSDB_LIB_DIR").is_some();

/// How RocksDB reads its files: through the page cache, through maps, or directly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reads {
    /// By read calls through the page cache.
    Buffered,
    /// Through memory maps of the files.
    Mapped,
    /// By read calls past the page cache; flushes and compactions also write past it.
    Direct,
}

/// RocksDB as a store: a database with its default column family.
pub(crate) struct Rocksdb {
    database: DB,
    options: Options,
    folder: PathBuf,
    reads: Reads,
    cache_bytes: u64,
    write_bytes: u64,
}

fn failed(error: rocksdb::Error) -> LabError {
    LabError::new(LabErrorKind::System, format!("rocksdb: {error}"))
}

impl Rocksdb {
    /// Creates a database in `folder`, or opens the existing one.
    pub(crate) fn start(folder: &Path, room: Room, start: Start, reads: Reads) -> Result<Self> {
        super::prepare(folder, start)?;
        let bytes = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
        let mut table = BlockBasedOptions::default();
        table.set_block_cache(&Cache::new_lru_cache(bytes(room.cache_bytes)));
        table.set_bloom_filter(10.0, false);
        // In the cache and not outside it, so that the memory is bounded.
        table.set_cache_index_and_filter_blocks(true);
        table.set_pin_l0_filter_and_index_blocks_in_cache(true);
        let mut options = Options::default();
        options.create_if_missing(start == Start::New);
        options.set_block_based_table_factory(&table);
        options.set_compression_type(DBCompressionType::None);
        options.set_write_buffer_size(bytes(room.write_bytes / 2).max(1 << 20));
        options.set_max_write_buffer_number(2);
        options.set_max_background_jobs(2);
        options.set_allow_mmap_reads(reads == Reads::Mapped);
        options.set_use_direct_reads(reads == Reads::Direct);
        options.set_use_direct_io_for_flush_and_compaction(reads == Reads::Direct);
        let database = DB::open(&options, folder).map_err(failed)?;
        let (cache_bytes, write_bytes) = (room.cache_bytes, room.write_bytes);
        Ok(Self { database, options, folder: folder.to_path_buf(), reads, cache_bytes, write_bytes })
    }
}

impl Store for Rocksdb {
    fn reader(&self) -> Result<Box<dyn Reader + '_>> {
        Ok(Box::new(&self.database))
    }

    fn write(&self, entries: &[(Key, Vec<u8>)], durable: bool) -> Result<()> {
        let mut batch = WriteBatch::default();
        for (key, value) in entries {
            batch.put(key, value);
        }
        let mut how = WriteOptions::default();
        how.set_sync(durable);
        self.database.write_opt(batch, &how).map_err(failed)
    }

    fn fill(&self, entries: &mut dyn Iterator<Item = (Key, Vec<u8>)>) -> Result<()> {
        let mut files = Vec::new();
        let mut more = entries.next();
        while more.is_some() {
            let path = self.folder.join(format!("load-{}.sst", files.len()));
            let mut file = SstFileWriter::create(&self.options);
            file.open(&path).map_err(failed)?;
            let mut written = 0;
            while let (Some((key, value)), true) = (&more, written < LOAD_FILE_BYTES) {
                file.put(key, value).map_err(failed)?;
                written += key.len() + value.len();
                more = entries.next();
            }
            file.finish().map_err(failed)?;
            files.push(path);
        }
        let mut how = IngestExternalFileOptions::default();
        how.set_move_files(true);
        if !files.is_empty() {
            self.database.ingest_external_file_opts(&how, files).map_err(failed)?;
        }
        self.settle()
    }

    fn sync(&self) -> Result<()> {
        self.database.flush_wal(true).map_err(failed)
    }

    fn settle(&self) -> Result<()> {
        self.database.flush().map_err(failed)?;
        self.database.flush_wal(true).map_err(failed)
    }

    fn settings(&self) -> Result<Vec<(&'static str, String)>> {
        let bytes = crate::format::bytes;
        let reads = match self.reads {
            Reads::Buffered => "read calls through the page cache",
            Reads::Mapped => "allow_mmap_reads",
            Reads::Direct => "use_direct_reads, use_direct_io_for_flush_and_compaction",
        };
        Ok(vec![
            ("version", if INSTALLED { "an installed library, not the crate's 11.8" } else { "11.8" }.into()),
            ("reads", reads.into()),
            ("cache", bytes(self.cache_bytes)),
            ("memtables", format!("2 of {}", bytes(self.write_bytes / 2))),
            ("filter", "bloom, 10 bits a key; index and filter blocks in the cache".into()),
            ("compression", "none".into()),
            ("sync", "WriteOptions::sync".into()),
            ("deferred", "no sync: the log is handed to the kernel".into()),
            ("filling", "sorted files, ingested".into()),
        ])
    }

    fn unequal(&self) -> &'static str {
        "rocksdb: merges in the background what is written now, so part of the cost of a write falls outside the measured time; the \
         crate builds its checksums without SSE4.2 unless target-cpu is set"
    }
}

impl Reader for &DB {
    fn get(&mut self, key: &Key, look: LookAtValue<'_>) -> Result<()> {
        look(self.get_pinned(key).map_err(failed)?.as_deref())
    }

    fn scan(&mut self, from: &Key, count: usize, look: LookAtEntry<'_>) -> Result<usize> {
        let mut seen = 0;
        for entry in self.iterator(IteratorMode::From(from, Direction::Forward)).take(count) {
            let (key, value) = entry.map_err(failed)?;
            look(&key, &value)?;
            seen += 1;
        }
        Ok(seen)
    }
}
