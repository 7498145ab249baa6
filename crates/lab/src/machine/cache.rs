//! Cold and warm page caches, made and then checked; the method goes into the record as text.
//!
//! A mapped page survives both `drop_caches` and `POSIX_FADV_DONTNEED`: unmap before asking for a cold cache.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use nofault_io::counters::cachestat;

use super::system::{self, fail, human_bytes};
use crate::error::Result;

/// How the page cache was emptied or filled, and the result of the check afterwards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreparedCache {
    /// The way in which the cache was emptied or filled, in words for the record.
    pub method: String,
    /// Bytes of the files in the page cache afterwards; `None` where the kernel gives no count.
    pub resident_bytes: Option<u64>,
}

/// A way to empty the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Means {
    /// Writes to `drop_caches`, which needs root and acts on the whole machine, and also gives the advice of `Advise`.
    Drop,
    /// Gives the advice `POSIX_FADV_DONTNEED` for each file, which needs no rights.
    Advise,
}

impl Means {
    /// Returns the most thorough means that the rights of this process allow.
    pub fn best() -> Self {
        if system::is_root() { Self::Drop } else { Self::Advise }
    }
}

/// Returns `path` itself for a file or device; for a folder, all files that are now in it and its subfolders.
pub fn files_of(path: &Path) -> Vec<PathBuf> {
    if !path.is_dir() {
        return vec![path.to_path_buf()];
    }
    let inside = std::fs::read_dir(path).into_iter().flatten().flatten();
    inside.flat_map(|entry| files_of(&entry.path())).collect()
}

/// Empties the page cache of the files or devices (for a folder: of all files in it): writes dirty pages out, drops
/// clean ones, and counts the pages that stay.
///
/// # Errors
/// When a path cannot be opened or synced. Pages that stay are no error: the result counts them.
pub fn make_cold(paths: &[&Path], means: Means) -> Result<PreparedCache> {
    let mut method = String::from("fdatasync, POSIX_FADV_DONTNEED");
    for path in paths.iter().flat_map(|path| files_of(path)) {
        let path = path.as_path();
        let file = File::open(path).map_err(|error| fail("open", path, &error))?;
        // Dirty pages are not dropped by either means.
        file.sync_data().map_err(|error| fail("sync", path, &error))?;
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
    }
    if means == Means::Drop {
        match std::fs::write("/proc/sys/vm/drop_caches", "1") {
            Ok(()) => method.push_str(", drop_caches"),
            Err(error) => method.push_str(&format!(" (drop_caches: {error})")),
        }
    }
    Ok(checked(method, paths))
}

/// Reads the files through the page cache, from the start, until all is read or `limit_bytes` are. To be called by the
/// process under the memory limit: a page is charged to its first reader. The files stay open with the result:
/// the kernel drops the page cache of a block device when its last descriptor is closed.
///
/// # Errors
/// When a path cannot be read.
pub fn make_warm(paths: &[&Path], limit_bytes: u64) -> Result<(PreparedCache, Vec<File>)> {
    let mut buffer = vec![0; 1 << 20];
    let mut read_bytes = 0u64;
    let mut held = Vec::new();
    // A share of each path, rather than all of the first: every path must be equally warm.
    let share = limit_bytes.div_ceil(paths.len().max(1) as u64);
    for path in paths {
        let mut file = File::open(path).map_err(|error| fail("open", path, &error))?;
        let mut left = share;
        while left > 0 {
            let wanted = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            match file.read(&mut buffer[..wanted]) {
                Ok(0) => break,
                Ok(count) => {
                    left -= count as u64;
                    read_bytes += count as u64;
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(fail("read", path, &error)),
            }
        }
        held.push(file);
    }
    Ok((checked(format!("{} read through the page cache", human_bytes(read_bytes)), paths), held))
}

/// Bytes of a file, of all files in a folder, or of a block device in the page cache. `None` where the kernel gives no
/// count: a file of another user, or a kernel with neither cachestat nor mincore.
pub fn residency(path: &Path) -> Option<u64> {
    if path.is_dir() {
        return files_of(path).iter().map(|file| residency(file)).sum();
    }
    let mut file = File::open(path).ok()?;
    // The length of a block device is the position of its end; its metadata says zero.
    let len = file.seek(SeekFrom::End(0)).ok()?;
    cachestat(&file, 0..len).map(|stat| stat.cached_bytes)
}

fn checked(method: String, paths: &[&Path]) -> PreparedCache {
    let resident_bytes = paths.iter().map(|path| residency(path)).sum::<Option<u64>>();
    let method = match resident_bytes {
        Some(bytes) => format!("{method}; checked: {} resident", human_bytes(bytes)),
        None => format!("{method}; not checked, as the kernel does not count resident pages"),
    };
    PreparedCache { method, resident_bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_file_is_warm_after_reading_and_cold_after_dropping() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, vec![1; 8 * MIB as usize]).unwrap();
        if residency(&path).is_none() {
            eprintln!("skipped: the kernel does not count resident pages");
            return;
        }
        let cold = make_cold(&[&path], Means::Advise).unwrap();
        if cold.resident_bytes != Some(0) {
            eprintln!("skipped: this file system keeps its pages ({})", cold.method);
            return;
        }
        assert!(cold.method.contains("0 bytes resident"), "{}", cold.method);
        let some = make_warm(&[&path], MIB).unwrap().0;
        assert!(some.method.starts_with("1 MiB read"), "{}", some.method);
        // Any process on the machine may drop caches during this test, as the test below does.
        let warm = || make_warm(&[&path], 100 * MIB).unwrap().0;
        assert!((0..10).any(|_| warm().resident_bytes == Some(8 * MIB)), "{}", warm().method);
    }

    #[test]
    fn root_drops_caches_and_says_so() {
        if !system::is_root() {
            eprintln!("skipped: only root may write drop_caches");
            return;
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [1; 8192]).unwrap();
        let cold = make_cold(&[file.path()], Means::Drop).unwrap();
        assert!(cold.method.contains("drop_caches"), "{}", cold.method);
    }

    #[test]
    fn a_folder_is_all_files_in_it() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("a")).unwrap();
        for name in ["one", "a/two"] {
            std::fs::write(folder.path().join(name), vec![1; MIB as usize]).unwrap();
        }
        assert_eq!(files_of(folder.path()).len(), 2);
        assert_eq!(files_of(&folder.path().join("one")), [folder.path().join("one")]);
        let cold = make_cold(&[folder.path()], Means::Advise).unwrap();
        let resident = residency(folder.path());
        // Any process on the machine may read the files during this test, and a file system may keep them cached.
        println!("{}; now {resident:?}", cold.method);
        assert!(resident.is_none_or(|bytes| bytes <= 2 * MIB));
    }

    #[test]
    fn an_absent_file_is_an_error_that_names_it() {
        let path = Path::new("/nowhere/file");
        assert!(make_cold(&[path], Means::Advise).unwrap_err().to_string().contains("/nowhere/file"));
        assert_eq!(residency(path), None);
    }
}
