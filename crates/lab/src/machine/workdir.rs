//! The lab's one folder: taken for one lab at a time, written to only under the lab's own names, left as it was found.
//!
//! Kept true by: the lock is the kernel's (flock), so it ends with the process, even when the process is killed. Only
//! files named `*.data` that carry the lab's marker are removed, and the folder itself only when the lab made it and it
//! is empty.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nofault_io::folder;

use super::system::{fail, human_bytes};
use super::{data, scratch};
use crate::error::{LabError, LabErrorKind, Result};
use crate::paths::shown;

const LOCK: &str = "nofault-lab.lock";
const LOCK_TEXT: &str = "nofault lab works in this folder; ";

/// The lab's working folder, locked for this process. Dropping the guard removes the lock, and the data files unless
/// they are to be kept.
#[derive(Debug)]
pub struct WorkDir {
    path: PathBuf,
    made: bool,
    keep: bool,
    lock: File,
    cleaned: Vec<String>,
}

impl WorkDir {
    /// Locks the folder at `path` for this process, making the folder where it is missing, and removes unfinished data
    /// files that a killed lab left in it. With `keep` the data files stay when the folder is released, for the next
    /// run.
    ///
    /// # Errors
    /// `Busy` when another lab works there (its process is named), `NoPermission` when it cannot be written, `Damaged`
    /// when a foreign file has the name of the lock.
    pub fn open(path: &Path, keep: bool) -> Result<Self> {
        let made = !path.exists();
        fs::create_dir_all(path)
            .map_err(|error| hint(&fail("create the folder", path, &error), "choose another folder with --dir"))?;
        let path = fs::canonicalize(path).map_err(|error| fail("look at", path, &error))?;
        let lock = take_lock(&path)?;
        let mut folder = Self { path, made, keep, lock, cleaned: Vec::new() };
        if super::pool::remove_leftover(&folder.path)? {
            folder.cleaned.push("removed a database of the engine that a lab left behind".into());
        }
        for (file, complete, bytes) in folder.data_files()? {
            if !complete && data::remove_file(&file)? {
                let message = format!("removed {} ({}), which a lab left unfinished", shown(&file), human_bytes(bytes));
                folder.cleaned.push(message);
            }
        }
        folder.cleaned.extend(scratch::sweep(&folder.path)?);
        Ok(folder)
    }

    /// Returns the absolute path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of the data file with this name.
    pub fn data_file(&self, name: &str) -> PathBuf {
        self.path.join(format!("{name}.{}", data::EXTENSION))
    }

    /// Sets whether the data files stay when the folder is released.
    pub fn keep_data(&mut self, keep: bool) {
        self.keep = keep;
    }

    /// Returns a sentence for each file or folder of earlier labs that was found and removed.
    pub fn cleaned(&self) -> &[String] {
        &self.cleaned
    }

    /// Releases the folder, and reports a file that could not be removed.
    ///
    /// # Errors
    /// The error of the first file that could not be removed; all others are removed.
    pub fn close(mut self) -> Result<()> {
        let result = self.remove_data();
        self.keep = true;
        result
    }

    fn remove_data(&self) -> Result<()> {
        if self.keep {
            return Ok(());
        }
        let mut result = Ok(());
        for (file, ..) in self.data_files()? {
            result = result.and(data::remove_file(&file).map(|_| ()));
        }
        result
    }

    /// Lists the lab's data files in the folder: path, whether complete, bytes of data.
    fn data_files(&self) -> Result<Vec<(PathBuf, bool, u64)>> {
        let entries = fs::read_dir(&self.path).map_err(|error| fail("list", &self.path, &error))?;
        let files = entries
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|extension| extension == data::EXTENSION));
        // A file without a readable marker is not the lab's.
        let ours = files.filter_map(|path| data::inspect(&path).ok().flatten().map(|header| (path, header)));
        Ok(ours.map(|(path, header)| (path, header.complete, header.data_bytes)).collect())
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        let _ = self.remove_data();
        // A killed trial could not remove its own folder.
        let _ = scratch::sweep(&self.path);
        // Removed while it is locked: a process that has opened it finds its name gone and opens it again.
        let _ = fs::remove_file(self.path.join(LOCK));
        let _ = self.lock.unlock();
        if self.made {
            // Only when empty: results may be in it.
            let _ = fs::remove_dir(&self.path);
        }
    }
}

fn take_lock(folder: &Path) -> Result<File> {
    let path = folder.join(LOCK);
    loop {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o644);
        let mut file = options
            .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
            .open(&path)
            .map_err(|error| hint(&fail("write", &path, &error), "the lab needs a folder that it may write: --dir"))?;
        let mut text = String::new();
        let read = file.try_clone().and_then(|file| file.take(4096).read_to_string(&mut text));
        if read.is_err() || !(text.is_empty() || text.starts_with(LOCK_TEXT)) {
            let message =
                format!("{} is not the lab's file: move it away or choose another folder with --dir", shown(&path));
            return Err(LabError::new(LabErrorKind::Damaged, message));
        }
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let named = text.strip_prefix(LOCK_TEXT).and_then(folder::describe_process);
                let holder = named.unwrap_or_else(|| "a process that has left no name".into());
                let message = format!(
                    "another lab ({holder}) works in {}: wait for it, stop it, or choose another folder with --dir",
                    shown(&folder)
                );
                return Err(LabError::new(LabErrorKind::Busy, message));
            }
            Err(TryLockError::Error(error)) => return Err(fail("lock", &path, &error)),
        }
        // The last holder of the lock may have removed the file after this process opened and before it locked it.
        let held = file.metadata().map_err(|error| fail("look at", &path, &error))?;
        if fs::metadata(&path).is_ok_and(|named| (named.dev(), named.ino()) == (held.dev(), held.ino())) {
            let written = file.set_len(0).and_then(|()| {
                std::io::Seek::rewind(&mut file)?;
                write!(file, "{LOCK_TEXT}{}", folder::name_of_this_process())
            });
            written.map_err(|error| fail("write", &path, &error))?;
            return Ok(file);
        }
    }
}

fn hint(error: &LabError, next: &str) -> LabError {
    LabError::new(error.kind(), format!("{error}; {next}"))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::machine::data::{DataSpec, ensure_file};

    fn put(path: &Path) {
        let wanted = DataSpec { seed: 1, data_bytes: 1 << 20 };
        ensure_file(path, wanted, &|_, _| (), &AtomicBool::new(false)).unwrap();
    }

    #[test]
    fn the_folder_is_left_as_it_was_found() {
        let outer = tempfile::tempdir().unwrap();
        let path = outer.path().join("a").join("lab");
        let folder = WorkDir::open(&path, false).unwrap();
        put(&folder.data_file("file"));
        drop(folder);
        assert!(!path.exists(), "made by the lab and empty");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("foreign.data"), "precious").unwrap();
        let folder = WorkDir::open(&path, false).unwrap();
        put(&folder.data_file("file"));
        folder.close().unwrap();
        let left: Vec<_> = fs::read_dir(&path).unwrap().flatten().map(|entry| entry.file_name()).collect();
        assert_eq!(left, ["foreign.data"]);
    }

    #[test]
    fn kept_data_stays_for_the_next_run_and_unfinished_data_goes() {
        let outer = tempfile::tempdir().unwrap();
        let folder = WorkDir::open(outer.path(), true).unwrap();
        let (whole, half) = (folder.data_file("whole"), folder.data_file("half"));
        put(&whole);
        put(&half);
        folder.close().unwrap();
        OpenOptions::new().write(true).open(&half).unwrap().set_len(8192).unwrap();
        let folder = WorkDir::open(outer.path(), true).unwrap();
        assert!(whole.exists() && !half.exists());
        assert!(folder.cleaned()[0].contains("half.data"), "{:?}", folder.cleaned());
    }

    #[test]
    fn a_second_lab_in_the_folder_is_refused_with_the_process_of_the_first() {
        let outer = tempfile::tempdir().unwrap();
        let first = WorkDir::open(outer.path(), false).unwrap();
        let error = WorkDir::open(outer.path(), false).unwrap_err();
        assert_eq!(error.kind(), LabErrorKind::Busy);
        assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
        drop(first);
        WorkDir::open(outer.path(), false).unwrap();
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_refused_with_the_next_step() {
        let error = WorkDir::open(Path::new("/proc/nofault-lab"), false).unwrap_err();
        assert!(error.to_string().contains("--dir"), "{error}");
        let outer = tempfile::tempdir().unwrap();
        fs::write(outer.path().join(LOCK), "something else").unwrap();
        assert_eq!(WorkDir::open(outer.path(), false).unwrap_err().kind(), LabErrorKind::Damaged);
        assert_eq!(fs::read_to_string(outer.path().join(LOCK)).unwrap(), "something else");
    }
}
