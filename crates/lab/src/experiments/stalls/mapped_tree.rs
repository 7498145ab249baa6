//! The lab's data in the engine's B+tree over a mapped file (`nofault::mmap`): the entries of the engine's own database,
//! in nodes of the same format.
//!
//! The first trial needing the tree makes it, in the experiment's own folder; the others find it there. A file next
//! to it, written last, says which data it holds.

use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use nofault::mmap::{Batch, Protocol, Settings, Store, WriteBack};

use crate::error::{LabError, LabErrorKind, Result};
use crate::machine::cache::{self, Means};
use crate::machine::pool;
use crate::paths::shown;
use crate::record::TrialSpec;
use crate::workload::PAGE_BYTES;

/// Blocks of the data in one commit while the tree is made: 4 MiB.
const BLOCKS_A_COMMIT: usize = 1024;
/// Planned rate of making the tree, in bytes a second.
pub(super) const MAKE_BYTES_PER_S: f64 = 150e6;

/// Opens the tree of a trial's target, and makes it first where it is missing. A tree just made is on the device only.
///
/// # Errors
/// `Usage` for a target that is not one folder, `Interrupted`, or the error of the system or the store.
pub(super) fn open(spec: &TrialSpec, random: bool, cancel: &AtomicBool) -> Result<Store> {
    let [folder] = &spec.target.paths[..] else {
        return Err(LabError::new(LabErrorKind::Usage, "stalls: a mapped tree lies in one folder"));
    };
    let (tree, note) = (Path::new(folder).join("tree"), Path::new(folder).join("tree.content"));
    let content = format!("{} bytes, seed {:?}\n", spec.target.data_bytes, spec.target.content_seed);
    if fs::read_to_string(&note).unwrap_or_default() != content {
        make(spec, &tree, cancel)?;
        fs::write(&note, content).map_err(|error| LabError::system(shown(&note), &error))?;
    }
    // SAFETY: the folder is the lab's own, and one trial at a time opens its files.
    Ok(unsafe { Store::open(&tree, &settings(spec, random)) }?)
}

fn settings(spec: &TrialSpec, random: bool) -> Settings {
    // Room for the copies of the pages that a commit changes; unused parts of the file take no space.
    let map_bytes = (spec.target.data_bytes * 2 + (64 << 20)).next_multiple_of(1 << 20);
    Settings { map_bytes, random, ..Settings::new(Protocol::Shadow(WriteBack::Call)) }
}

fn make(spec: &TrialSpec, tree: &Path, cancel: &AtomicBool) -> Result<()> {
    match fs::remove_dir_all(tree) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(LabError::system(format!("empty {}", shown(&tree)), &error));
        }
        _ => {}
    }
    // SAFETY: as in `open`.
    let store = unsafe { Store::create(tree, &settings(spec, true)) }?;
    let seed = spec.target.content_seed.unwrap_or_default();
    let blocks: Vec<u64> = (0..spec.target.data_bytes / PAGE_BYTES as u64).collect();
    for blocks in blocks.chunks(BLOCKS_A_COMMIT) {
        if cancel.load(Relaxed) {
            return Err(LabError::interrupted());
        }
        let mut batch = Batch::new();
        for (key, value) in blocks.iter().flat_map(|block| pool::entries(seed, *block)) {
            batch.put(key, value);
        }
        store.write(&batch)?;
    }
    drop(store);
    cache::make_cold(&[tree], Means::best()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::data::DataSpec;

    #[test]
    fn a_block_costs_the_mapped_tree_one_page_and_the_tree_is_made_once() {
        let folder = tempfile::tempdir().unwrap();
        let wanted = DataSpec { seed: 5, data_bytes: 3000 * PAGE_BYTES as u64 };
        let mut file = crate::verdict::tests::file(super::super::ID, "leaf-scan", &[("mmap-scan-normal", 1.0)]);
        let mut spec = file.trials.remove(0).spec;
        spec.target = crate::machine::data::target("file", &[folder.path()], wanted);
        let open = |spec: &TrialSpec| open(spec, true, &AtomicBool::new(false));
        let store = open(&spec).unwrap();
        let verified = store.verify().unwrap();
        assert_eq!(verified.entries, 3000 * pool::ENTRIES_PER_BLOCK);
        let used = verified.pages_used;
        assert!((3000..3200).contains(&used), "{used} pages for 3000 blocks");
        let of_keys = |store: &Store, read_ahead: usize| {
            let snapshot = store.snapshot();
            let mut range = snapshot.leaf_scan(read_ahead);
            let mut keys = 0;
            while let Some((key, value)) = range.next_ref().unwrap() {
                let block = u64::from_be_bytes(key.try_into().unwrap()) / pool::ENTRIES_PER_BLOCK;
                assert!(pool::is_right(value, 5, block));
                keys += 1;
            }
            keys
        };
        assert_eq!([0, 1, 32].map(|ahead| of_keys(&store, ahead)), [3000 * pool::ENTRIES_PER_BLOCK; 3]);
        drop(store);
        let made = |folder: &Path| fs::metadata(folder.join("tree.content")).unwrap().modified().unwrap();
        let first = made(folder.path());
        drop(open(&spec).unwrap());
        assert_eq!(made(folder.path()), first, "found, not made again");
        spec.target.content_seed = Some(6);
        let other = open(&spec).unwrap();
        let value = other.get(&pool::key(0, 0)).unwrap().unwrap();
        assert!(pool::is_right(&value, 6, 0), "other data: made anew");
        let cancelled = |spec: &TrialSpec| super::open(spec, true, &AtomicBool::new(true));
        drop(other);
        spec.target.content_seed = Some(7);
        assert_eq!(cancelled(&spec).err().unwrap().kind(), LabErrorKind::Interrupted);
    }
}
