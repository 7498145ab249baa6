//! The lab's data as a database of the engine: it holds the same content as the data file, so that the engine's own
//! pool can read it as the map and the raw calls do.
//!
//! A block of the data is [`ENTRIES_PER_BLOCK`] entries of one leaf. With keys of 8 bytes and values of
//! [`VALUE_BYTES`], four entries fill a page of 4 KiB, so that a block costs the engine one page, as it costs the other
//! methods. Values begin and end with the block's tag ([`content`]), so that they are verified the same way.
//!
//! Kept true by: the folder carries the lab's marker before anything else is put into it, and only a folder with the
//! marker is ever removed.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use nofault::blocking::Db;
use nofault::settings::Settings;

use super::content::{self, BLOCK_BYTES, Header};
use super::data::{DataSpec, Progress};
use super::system::{fail, unix_ms};
use crate::error::{LabError, LabErrorKind, Result};
use crate::paths::shown;
use crate::record::Target;

/// Bytes of a value: the largest size of which four values fit into a page with keys, slots and headers.
pub const VALUE_BYTES: usize = 976;
/// Number of values that together hold the content of one block.
pub const ENTRIES_PER_BLOCK: u64 = 4;
/// Name of the table holding the values.
pub const TABLE: &str = "blocks";
/// Name of the database's folder inside the working folder.
const FOLDER: &str = "pool.db";
/// Name of the engine's own folder inside [`FOLDER`].
const DATABASE: &str = "db";
const DATA_FILE: &str = "data";
/// The marker's file name, in [`FOLDER`].
const MARKER: &str = "nofault-lab.marker";
/// Bytes of the engine's cache and log while the lab makes the database; the methods reading it choose their own.
const MAKING_CACHE_BYTES: usize = 128 << 20;
const LOG_BYTES: u64 = 16 << 20;

/// Returns the key of part `part` of a block; keys sort in the order of the blocks.
#[inline]
pub fn key(block: u64, part: u64) -> [u8; 8] {
    (block * ENTRIES_PER_BLOCK + part).to_be_bytes()
}

/// Whether a value belongs to this block, judged by its first and its last word. Takes a few nanoseconds.
#[inline]
pub fn is_right(value: &[u8], seed: u64, block: u64) -> bool {
    let expected = content::tag(seed, block).to_le_bytes();
    value.len() == VALUE_BYTES && value.first_chunk() == Some(&expected) && value.last_chunk() == Some(&expected)
}

/// Returns the entries of a block, in the order of their keys.
pub(crate) fn entries(seed: u64, block: u64) -> impl Iterator<Item = ([u8; 8], Vec<u8>)> {
    let mut whole = vec![0; BLOCK_BYTES];
    content::fill_block(&mut whole, seed, block);
    let tag = content::tag(seed, block).to_le_bytes();
    (0..ENTRIES_PER_BLOCK).map(move |part| {
        let from = part as usize * (BLOCK_BYTES / ENTRIES_PER_BLOCK as usize);
        let mut value = whole[from..from + VALUE_BYTES].to_vec();
        value[..8].copy_from_slice(&tag);
        value[VALUE_BYTES - 8..].copy_from_slice(&tag);
        (key(block, part), value)
    })
}

/// Builds the target for the database in a working folder.
pub fn target(folder: &Path, wanted: DataSpec) -> Target {
    super::data::target("file", &[&folder.join(FOLDER).join(DATABASE).join(DATA_FILE)], wanted)
}

/// The settings with which the lab opens the database, for a total memory budget of the engine.
pub fn settings(cache_bytes: usize) -> Settings {
    Settings { page_bytes: BLOCK_BYTES, cache_bytes, log_bytes: LOG_BYTES, ..Settings::default() }
}

/// Returns the engine's folder in a target made by [`target`].
///
/// # Errors
/// `Usage` for a target naming no file in a folder.
pub fn database_of(target: &Target) -> Result<&Path> {
    target.paths.first().and_then(|path| Path::new(path).parent()).ok_or_else(|| {
        LabError::new(LabErrorKind::Usage, format!("{}: no database of the engine is named", target.label))
    })
}

/// A complete database with the lab's data. Its files are removed when this guard is dropped.
#[derive(Debug)]
pub struct PoolData {
    folder: PathBuf,
}

impl PoolData {
    /// Makes the database in a working folder, replacing one that a killed lab left.
    ///
    /// # Errors
    /// `Damaged` for a foreign folder of that name, `Interrupted`, or an error of the system or the engine. After an
    /// error the unfinished database is gone.
    pub fn make(folder: &Path, wanted: DataSpec, progress: &Progress<'_>, cancel: &AtomicBool) -> Result<Self> {
        remove_leftover(folder)?;
        let folder = folder.join(FOLDER);
        fs::create_dir(&folder).map_err(|error| fail("create the folder", &folder, &error))?;
        let header =
            Header { seed: wanted.seed, data_bytes: wanted.data_bytes, created_unix_ms: unix_ms(), complete: false };
        let marked = fs::write(folder.join(MARKER), header.encode());
        let made = Self { folder };
        marked.map_err(|error| fail("mark", &made.folder, &error))?;
        let blocks = wanted.data_bytes / BLOCK_BYTES as u64;
        let db = Db::create(made.folder.join(DATABASE), &settings(MAKING_CACHE_BYTES))?;
        let table = db.create_table(TABLE)?;
        let numbers = (0..blocks).take_while(|block| {
            if block % 1024 == 0 {
                progress(block * BLOCK_BYTES as u64, wanted.data_bytes);
            }
            !cancel.load(Ordering::Relaxed)
        });
        let loaded = table.bulk_load(numbers.flat_map(|block| entries(wanted.seed, block)))?;
        if loaded < blocks * ENTRIES_PER_BLOCK {
            return Err(LabError::interrupted());
        }
        db.checkpoint()?;
        Ok(made)
    }
}

impl Drop for PoolData {
    fn drop(&mut self) {
        // Made here and marked. Files that cannot be removed now are removed by the next start.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Removes the database that a killed lab left in a working folder; true when there was one.
///
/// # Errors
/// `Damaged` for a folder of that name without the marker, or the system's error.
pub fn remove_leftover(folder: &Path) -> Result<bool> {
    let folder = folder.join(FOLDER);
    if !folder.exists() {
        return Ok(false);
    }
    let ours = fs::read(folder.join(MARKER)).is_ok_and(|block| Header::decode(&block).is_ok());
    // The lab was killed between making and marking the folder: it is empty.
    let empty = || fs::read_dir(&folder).is_ok_and(|mut entries| entries.next().is_none());
    if !ours && !empty() {
        let message = format!(
            "{} does not carry the lab's marker: it is left alone; move it away or choose another folder with --dir",
            shown(&folder)
        );
        return Err(LabError::new(LabErrorKind::Damaged, message));
    }
    fs::remove_dir_all(&folder).map(|()| true).map_err(|error| fail("remove", &folder, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANTED: DataSpec = DataSpec { seed: 7, data_bytes: 300 * BLOCK_BYTES as u64 };

    fn make(folder: &Path) -> Result<PoolData> {
        PoolData::make(folder, WANTED, &|_, _| {}, &AtomicBool::new(false))
    }

    #[test]
    fn a_block_costs_the_engine_one_page_and_every_entry_is_verified() {
        let folder = tempfile::tempdir().unwrap();
        let made = make(folder.path()).unwrap();
        let target = target(folder.path(), WANTED);
        let db = Db::open(database_of(&target).unwrap(), &settings(16 << 20)).unwrap();
        let table = db.table(TABLE).unwrap();
        let mut count = 0;
        for entry in table.range::<&[u8]>(..) {
            let (key, value) = entry.unwrap();
            let block = u64::from_be_bytes(key.try_into().unwrap()) / ENTRIES_PER_BLOCK;
            assert!(is_right(&value, 7, block) && !is_right(&value, 8, block) && !is_right(&value, 7, block + 1));
            count += 1;
        }
        assert_eq!(count, 300 * ENTRIES_PER_BLOCK);
        let used = db.stats().pool.blocks_used;
        // Besides the blocks: inner nodes, the page table, superblocks.
        assert!((300..364).contains(&used), "{used} pages for 300 blocks");
        drop((table, db, made));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_database_left_by_a_killed_lab_is_replaced_and_a_foreign_folder_is_not() {
        let folder = tempfile::tempdir().unwrap();
        std::mem::forget(make(folder.path()).unwrap());
        drop(make(folder.path()).unwrap());
        let foreign = folder.path().join(FOLDER);
        fs::create_dir(&foreign).unwrap();
        fs::write(foreign.join("precious"), "x").unwrap();
        assert_eq!(make(folder.path()).unwrap_err().kind(), LabErrorKind::Damaged);
        assert!(foreign.join("precious").exists());
    }

    #[test]
    fn a_stopped_load_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let error = PoolData::make(folder.path(), WANTED, &|_, _| {}, &AtomicBool::new(true)).unwrap_err();
        assert_eq!(error.kind(), LabErrorKind::Interrupted);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
