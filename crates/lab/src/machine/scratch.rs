//! Folders for the files that a trial makes next to the data files: databases, copies, files to be damaged. Each carries
//! the lab's marker. It is removed when dropped, or, if its process is killed, by the next lab in the same place.
//!
//! Kept true by: the marker is written before anything else, under the name that the removal looks for; only folders
//! with the lab's extension and the marker are ever removed.

use std::fs;
use std::path::{Path, PathBuf};

use super::system::fail;
use crate::error::{LabError, LabErrorKind, Result};
use crate::paths::shown;

/// Extension of the names of these folders.
const EXTENSION: &str = "scratch";
const MARKER: &str = "nofault-lab.marker";
const MARKER_TEXT: &str = "nofault lab made this folder and removes it\n";

/// A folder of the lab's own for the files of one trial. Removed when dropped.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Makes the folder `name.<process>.scratch` in `parent`.
    ///
    /// # Errors
    /// `Busy` when a folder of that name exists and is not the lab's; otherwise the system's error.
    pub fn make(parent: &Path, name: &str) -> Result<Self> {
        let path = parent.join(format!("{name}.{}.{EXTENSION}", std::process::id()));
        if path.exists() {
            if !is_ours(&path) {
                let message = format!("{} is there and not the lab's: move it away", shown(&path));
                return Err(LabError::new(LabErrorKind::Busy, message));
            }
            fs::remove_dir_all(&path).map_err(|error| fail("remove", &path, &error))?;
        }
        fs::create_dir(&path).map_err(|error| fail("make the folder", &path, &error))?;
        let scratch = Self { path };
        let marker = scratch.path.join(MARKER);
        fs::write(&marker, MARKER_TEXT).map_err(|error| fail("write", &marker, &error))?;
        Ok(scratch)
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the folder and returns a failure, which dropping the guard would hide.
    ///
    /// # Errors
    /// The system's error; the folder is then removed by the next lab.
    pub fn remove(self) -> Result<()> {
        let removed = fs::remove_dir_all(&self.path).map_err(|error| fail("remove", &self.path, &error));
        std::mem::forget(self);
        removed
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn is_ours(path: &Path) -> bool {
    let named = path.extension().is_some_and(|extension| extension == EXTENSION);
    named && fs::read_to_string(path.join(MARKER)).is_ok_and(|text| text == MARKER_TEXT)
}

/// Removes the folders that killed labs left in `parent`, and returns a sentence for each. The caller must hold the
/// lock of the working folder, so that no other lab works there.
///
/// # Errors
/// The system's error when the folder cannot be listed or an entry not removed.
pub(super) fn sweep(parent: &Path) -> Result<Vec<String>> {
    let mut removed = Vec::new();
    for entry in fs::read_dir(parent).map_err(|error| fail("list", parent, &error))?.flatten() {
        let path = entry.path();
        // Links are skipped: the folder that a link leads to is not the lab's.
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) && is_ours(&path) {
            fs::remove_dir_all(&path).map_err(|error| fail("remove", &path, &error))?;
            removed.push(format!("removed {}, which a killed lab left", shown(&path)));
        }
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scratch_folder_is_removed_by_its_guard_or_the_next_lab_and_other_folders_stay() {
        let outer = tempfile::tempdir().unwrap();
        let scratch = Scratch::make(outer.path(), "trial").unwrap();
        let path = scratch.path().to_path_buf();
        fs::create_dir_all(path.join("a").join("b")).unwrap();
        fs::write(path.join("a").join("b").join("c"), "data").unwrap();
        drop(scratch);
        assert!(!path.exists());
        std::mem::forget(Scratch::make(outer.path(), "trial").unwrap());
        Scratch::make(outer.path(), "other").unwrap().remove().unwrap();
        let foreign = outer.path().join("precious.scratch");
        fs::create_dir(&foreign).unwrap();
        let messages = sweep(outer.path()).unwrap();
        assert!(messages.len() == 1 && messages[0].contains("trial."), "{messages:?}");
        assert!(foreign.exists() && !path.exists());
    }

    #[test]
    fn a_foreign_folder_in_the_way_is_left_alone() {
        let outer = tempfile::tempdir().unwrap();
        let path = outer.path().join(format!("trial.{}.scratch", std::process::id()));
        fs::create_dir(&path).unwrap();
        assert_eq!(Scratch::make(outer.path(), "trial").unwrap_err().kind(), LabErrorKind::Busy);
        assert!(path.exists());
    }
}
