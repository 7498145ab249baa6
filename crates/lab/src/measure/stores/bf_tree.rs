//! Bf-Tree: a B-tree in Rust whose cache holds records as well as pages, read and written by system calls. No single commit of it
//! can be made durable, so it takes part in works whose commits are deferred.
//!
//! Its durability: a snapshot, which writes the whole tree to another file and syncs that. Its log is not used here, because
//! version 0.5 writes it without a sync and has no complete recovery from it. A database is therefore the content of its last snapshot
//! has; opening it works on a copy of the snapshot, as Bf-Tree changes the file that it was opened from.

use std::path::{Path, PathBuf};

use bf_tree::{BfTree, Config, ConfigError, LeafInsertResult, LeafReadResult, ScanReturnField, StorageBackend};

use super::{Key, LookAtEntry, LookAtValue, Reader, Room, Start, Store};
use crate::error::{LabError, LabErrorKind, Result};
use crate::machine::cache;
use crate::measure::entries::KEY_BYTES;
use crate::paths::shown;

/// Sizes of a leaf in bytes: the smallest that takes the records is used.
const LEAF_BYTES: [usize; 8] = [4096, 8192, 12_288, 16_384, 20_480, 24_576, 28_672, 32_768];
/// Least bytes of a key and a value, by which Bf-Tree bounds the entries of a leaf.
const RECORD_BYTES_MIN: usize = KEY_BYTES + 16;
/// Least cache in bytes: some leaves of the largest size.
const CACHE_BYTES_MIN: u64 = 1 << 20;

/// Bf-Tree as a store: one tree, and the file of its last snapshot.
pub(crate) struct BfTreeStore {
    tree: BfTree,
    snapshot: PathBuf,
    cache_bytes: usize,
}

fn failed(error: ConfigError) -> LabError {
    LabError::new(LabErrorKind::System, format!("bf-tree: {error:?}"))
}

impl BfTreeStore {
    /// Creates a tree in `folder`, or opens a copy of the snapshot that is there.
    pub(crate) fn start(folder: &Path, room: Room, start: Start) -> Result<Self> {
        super::prepare(folder, start)?;
        let (data, snapshot) = (folder.join("data"), folder.join("snapshot"));
        // Its cache is a power of two: here the largest one within what the store may use.
        let cache_bytes = 1_usize << room.cache_bytes.max(CACHE_BYTES_MIN).ilog2().min(usize::BITS - 2);
        let tree = match start {
            Start::New => BfTree::with_config(config(&data, cache_bytes, room.value_bytes)?, None),
            Start::Old => {
                std::fs::copy(&snapshot, &data).map_err(|error| LabError::system(shown(&snapshot), &error))?;
                // The copy must not be why a store that begins cold finds its data in the page cache.
                cache::make_cold(&[folder], cache::Means::Advise)?;
                BfTree::new_from_cpr_snapshot(&data, true, None, Some(cache_bytes), None)
            }
        };
        Ok(Self { tree: tree.map_err(failed)?, snapshot, cache_bytes })
    }
}

/// Returns the settings of a new tree: the smallest leaves that take records of this size.
fn config(data: &Path, cache_bytes: usize, value_bytes: u32) -> Result<Config> {
    let record_bytes = KEY_BYTES + value_bytes as usize;
    let mut refused = None;
    for leaf_bytes in LEAF_BYTES {
        let mut config = Config::new(data, cache_bytes);
        config
            .storage_backend(StorageBackend::Std)
            .use_snapshot(true)
            .leaf_page_size(leaf_bytes)
            .cb_max_key_len(KEY_BYTES)
            .cb_min_record_size(RECORD_BYTES_MIN)
            .cb_max_record_size(record_bytes);
        match config.validate() {
            Ok(()) => return Ok(config),
            Err(error) => refused = Some(error),
        }
    }
    let why = refused.map_or_else(String::new, |error| format!("{error:?}"));
    Err(LabError::new(LabErrorKind::Unsupported, format!("bf-tree: values of {value_bytes} bytes: {why}")))
}

impl Store for BfTreeStore {
    fn reader(&self) -> Result<Box<dyn Reader + '_>> {
        let buffer = vec![0; self.tree.config().get_cb_max_record_size()];
        Ok(Box::new(BufferedReader { tree: &self.tree, buffer }))
    }

    fn write(&self, entries: &[(Key, Vec<u8>)], durable: bool) -> Result<()> {
        if durable {
            let why = "bf-tree: no commit can be made durable by itself, only the whole tree by a snapshot";
            return Err(LabError::new(LabErrorKind::Unsupported, why));
        }
        for (key, value) in entries {
            if let LeafInsertResult::InvalidKV(why) = self.tree.insert(key, value) {
                return Err(LabError::new(LabErrorKind::Unsupported, format!("bf-tree: {why}")));
            }
        }
        Ok(())
    }

    fn fill(&self, entries: &mut dyn Iterator<Item = (Key, Vec<u8>)>) -> Result<()> {
        let mut batch = Vec::new();
        while super::next_batch(entries, &mut batch) {
            self.write(&batch, false)?;
        }
        self.settle()
    }

    fn settle(&self) -> Result<()> {
        self.tree.cpr_snapshot(&self.snapshot);
        Ok(())
    }

    fn settings(&self) -> Result<Vec<(&'static str, String)>> {
        let (bytes, leaf_bytes) = (crate::format::bytes, self.tree.config().get_leaf_page_size());
        Ok(vec![
            ("version", "0.5".into()),
            ("page", bytes(leaf_bytes as u64)),
            ("cache", format!("{}, a power of two", bytes(self.cache_bytes as u64))),
            ("reads", "read calls through the page cache".into()),
            ("sync", "none for a commit; cpr_snapshot writes the whole tree to another file and syncs it".into()),
            (
                "deferred",
                "in memory until the next snapshot: after a power cut, or the end of the process, it is lost".into(),
            ),
            ("filling", "inserts in order, then a snapshot".into()),
        ])
    }

    fn unequal(&self) -> &'static str {
        "bf-tree: no transactions and no log, so a batch is that many single inserts and what follows the last snapshot is lost with the \
         process; checks no page; all inner nodes are in memory; its file is in the page cache beside its own cache"
    }
}

/// A reader with the buffer into which records are copied.
struct BufferedReader<'a> {
    tree: &'a BfTree,
    buffer: Vec<u8>,
}

impl Reader for BufferedReader<'_> {
    fn get(&mut self, key: &Key, look: LookAtValue<'_>) -> Result<()> {
        match self.tree.read(key, &mut self.buffer) {
            LeafReadResult::Found(length) => look(self.buffer.get(..length as usize)),
            LeafReadResult::Deleted | LeafReadResult::NotFound => look(None),
            LeafReadResult::InvalidKey => Err(LabError::new(LabErrorKind::System, "bf-tree: it refused a key")),
        }
    }

    fn scan(&mut self, from: &Key, count: usize, look: LookAtEntry<'_>) -> Result<usize> {
        if count == 0 {
            return Ok(0);
        }
        let range = self.tree.scan_with_count(from, count, ScanReturnField::KeyAndValue);
        let mut range = range.map_err(|error| LabError::new(LabErrorKind::System, format!("bf-tree: {error:?}")))?;
        let mut seen = 0;
        while let Some((key_bytes, value_bytes)) = range.next(&mut self.buffer) {
            let (key, rest) = self.buffer.split_at(key_bytes.min(self.buffer.len()));
            let short = || LabError::new(LabErrorKind::WrongData, "bf-tree: a record is longer than the largest one");
            look(key, rest.get(..value_bytes).ok_or_else(short)?)?;
            seen += 1;
        }
        Ok(seen)
    }
}
