//! Records resources that outlive a crash (cgroups, devices of RAM), so that the next start removes them: one small
//! file for each in a folder that only this user can write, named after the process that made it.
//!
//! Kept true by: the entry is written before the resource is made and removed after the resource is gone; entries of
//! living processes are never touched.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::system::{self, fail};
use crate::error::{LabError, LabErrorKind, Result};
use crate::paths::shown;

/// The recorded entry of one resource that outlives a crash. Call [`Entry::forget`] once the resource is gone; an entry
/// that is only dropped stays recorded for the next start.
#[derive(Debug)]
pub struct Entry {
    path: PathBuf,
}

impl Entry {
    /// Records a resource of some kind (`cgroup`, `zram`), before it is made or as soon as its name is known.
    ///
    /// # Errors
    /// When the folder for entries cannot be written.
    pub fn record(kind: &str, content: &str) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut tries = 0;
        loop {
            let path = folder()?.join(format!("{kind}.{}.{number}", system::process_name()));
            let mut options = fs::OpenOptions::new();
            let file = options.write(true).create(true).truncate(true).mode(0o600).open(&path);
            match file.and_then(|mut file| file.write_all(content.as_bytes())) {
                Ok(()) => return Ok(Self { path }),
                // Another lab has just removed the empty folder.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound && tries < 10 => tries += 1,
                Err(error) => return Err(fail("write", &path, &error)),
            }
        }
    }

    /// Removes the entry, because its resource is gone.
    pub fn forget(self) {
        let _ = fs::remove_file(&self.path);
        // The folder is removed with its last entry; one with other entries stays.
        if let Some(folder) = self.path.parent() {
            let _ = fs::remove_dir(folder);
        }
    }
}

/// Calls `remove` for each resource of this kind that a dead process made, and forgets an entry when it returns `Ok`.
/// Returns a sentence for each removal and each failure.
///
/// # Errors
/// When the folder is not one that only this user may write.
pub fn sweep(kind: &str, mut remove: impl FnMut(&str) -> Result<()>) -> Result<Vec<String>> {
    let folder = folder()?;
    let entries: Vec<_> = fs::read_dir(&folder).into_iter().flatten().flatten().collect();
    let mut messages = Vec::new();
    for path in entries.into_iter().map(|entry| entry.path()) {
        let Some(maker) = path.file_name().and_then(|name| maker_of(name.to_str()?, kind)) else { continue };
        if system::is_alive(maker) {
            continue;
        }
        let Some(content) = system::read_text(&path) else { continue };
        match remove(&content) {
            Ok(()) => {
                Entry { path }.forget();
                messages.push(format!("removed {content}, left behind by a lab that was killed"));
            }
            Err(error) => {
                messages.push(format!("could not remove {content}, left behind by a lab that was killed: {error}"))
            }
        }
    }
    // An empty folder, made only for this search, is removed again.
    let _ = fs::remove_dir(&folder);
    Ok(messages)
}

fn maker_of<'a>(name: &'a str, kind: &str) -> Option<&'a str> {
    let (maker, _number) = name.strip_prefix(kind)?.strip_prefix('.')?.split_once('.')?;
    Some(maker)
}

/// The folder of the entries, made on first use. Only this user may write it, because every resource named in it is
/// removed.
fn folder() -> Result<PathBuf> {
    let user = rustix::process::geteuid();
    // /run is emptied by a reboot, as is every resource recorded here. Other users than root cannot write it.
    let folder = match user.is_root() && Path::new("/run").is_dir() {
        true => PathBuf::from("/run/nofault-lab"),
        false => std::env::temp_dir().join(format!("nofault-lab-{}", user.as_raw())),
    };
    match fs::DirBuilder::new().mode(0o700).create(&folder) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(fail("create", &folder, &error)),
    }
    let meta = fs::symlink_metadata(&folder).map_err(|error| fail("look at", &folder, &error))?;
    if !meta.is_dir() || meta.uid() != user.as_raw() || meta.mode() & 0o022 != 0 {
        let message = format!("{} is not a folder that only this user may write: remove it", shown(&folder));
        return Err(LabError::new(LabErrorKind::Damaged, message));
    }
    Ok(folder)
}

/// Records an entry under the name of a process that is dead.
#[cfg(test)]
pub(super) fn record_as(kind: &str, maker: &str, content: &str) -> PathBuf {
    let path = folder().unwrap().join(format!("{kind}.{maker}.0"));
    fs::write(&path, content).unwrap();
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_of_dead_processes_are_removed_and_those_of_living_processes_stay() {
        let kind = format!("test{}", std::process::id());
        let mine = Entry::record(&kind, "mine").unwrap();
        let dead = record_as(&kind, &format!("{}-1", std::process::id()), "left");
        let messages = sweep(&kind, |_| Err(LabError::new(LabErrorKind::Busy, "busy"))).unwrap();
        assert!(messages[0].contains("could not remove left") && messages[0].contains("busy"), "{messages:?}");
        assert!(dead.exists(), "kept for another try");
        let mut seen = Vec::new();
        sweep(&kind, |content| {
            seen.push(content.to_owned());
            Ok(())
        })
        .unwrap();
        assert_eq!(seen, ["left"]);
        assert!(!dead.exists());
        mine.forget();
        assert_eq!(sweep(&kind, |_| Ok(())).unwrap(), Vec::<String>::new());
    }
}
