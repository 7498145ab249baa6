//! A file that has its name only when all of it is there and durable.
//!
//! Until then its name ends in [`UNFINISHED`], so that a part is not taken for the whole. A command that fails or is stopped removes the
//! part; one that was killed leaves it, under that name.
//!
//! Kept true by: only a file that this process has made is written, named or removed. No name that exists is given to it.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use nofault_lab::error::{LabError, LabErrorKind, Result};
use nofault_lab::paths::shown;
use rustix::fs::{CWD, RenameFlags, rename, renameat_with};
use rustix::io::Errno;

/// The end of an unfinished file's name.
const UNFINISHED: &str = ".nofault-unfinished";

/// A file that is being written.
#[derive(Debug)]
pub(crate) struct NewFile {
    file: File,
    path: PathBuf,
    unfinished: PathBuf,
}

impl NewFile {
    /// Creates the file under its unfinished name.
    ///
    /// # Errors
    /// `Usage` when there is a file of either name already, or a part of the path is missing; the error of the system.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let refuse = |why: String| Err(LabError::new(LabErrorKind::Usage, why));
        let Some(name) = path.file_name() else {
            return refuse(format!("«{}» is no name of a file", shown(&path)));
        };
        if path.symlink_metadata().is_ok() {
            return refuse(exists(path));
        }
        let mut name = name.to_owned();
        name.push(UNFINISHED);
        let unfinished = path.with_file_name(name);
        match File::options().write(true).create_new(true).open(&unfinished) {
            Ok(file) => Ok(Self { file, path: path.to_owned(), unfinished }),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => refuse(format!(
                "there is {}: another command is writing it, or a command that was killed has left it: remove it then",
                shown(&unfinished)
            )),
            Err(error) => Err(LabError::of_path(format_args!("create {}", shown(&path)), &error)),
        }
    }

    /// Makes the file durable and gives it its name.
    ///
    /// # Errors
    /// `Usage` when there is a file of this name by now; the error of the system. The file is removed then.
    pub(crate) fn finish(self) -> Result<()> {
        let failed = |error: &io::Error| LabError::of_path(format_args!("write {}", shown(&self.path)), error);
        self.file.sync_all().map_err(|error| failed(&error))?;
        let named = match renameat_with(CWD, &self.unfinished, CWD, &self.path, RenameFlags::NOREPLACE) {
            // A file system that cannot refuse to replace a file, such as NFS.
            Err(Errno::INVAL | Errno::NOSYS) if self.path.symlink_metadata().is_err() => {
                rename(&self.unfinished, &self.path)
            }
            named => named,
        };
        match named {
            Err(Errno::EXIST) => Err(LabError::new(LabErrorKind::Usage, exists(&self.path))),
            other => other.map_err(|error| failed(&error.into())),
        }
    }
}

fn exists(path: &Path) -> String {
    format!("there is {} already: choose another name, or remove it first", shown(&path))
}

impl Write for NewFile {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.file.write(from)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for NewFile {
    /// Removes the unfinished file. After [`NewFile::finish`] there is none of this name.
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.unfinished);
    }
}
