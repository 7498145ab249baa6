//! Sets a device's read-ahead for the trials that vary it, which needs root, and restores it: after a crash, at the
//! next start.

use std::path::{Path, PathBuf};

use nofault_io::counters::device::BlockDevice;

use super::leftovers::{self, Entry};
use super::system::{fail, read_number};
use crate::error::{LabError, LabErrorKind, Result};
use crate::paths::shown;

const KIND: &str = "read-ahead";

/// A changed read-ahead of some devices. Dropping the guard restores the old values.
#[derive(Debug)]
pub struct ReadAhead {
    changed: Vec<(PathBuf, u64, Entry)>,
}

impl ReadAhead {
    /// Sets the read-ahead of the devices under `paths` to `kib` KiB.
    ///
    /// # Errors
    /// `Unsupported` where no block device with a read-ahead lies under a path or rights are missing: the trial is then
    /// left out.
    pub fn set(paths: &[&Path], kib: u64) -> Result<Self> {
        let mut set = Self { changed: Vec::new() };
        for path in paths {
            let device = BlockDevice::under(path).map_err(|error| unsupported(&error.to_string()))?;
            let setting = setting_of(device.sysfs())
                .ok_or_else(|| unsupported(&format!("{} has no read_ahead_kb", device.name())))?;
            if set.changed.iter().any(|(known, ..)| *known == setting) {
                continue;
            }
            let Some(old) = read_number(&setting) else {
                return Err(unsupported(&format!("{} cannot be read", shown(&setting))));
            };
            let entry = Entry::record(KIND, &format!("{old} {}", shown(&setting)))?;
            if let Err(error) = std::fs::write(&setting, kib.to_string()) {
                entry.forget();
                return Err(unsupported(&fail("set", &setting, &error).to_string()));
            }
            set.changed.push((setting, old, entry));
        }
        Ok(set)
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        for (setting, old, entry) in self.changed.drain(..) {
            // A value that cannot be restored now stays recorded for the next start.
            if std::fs::write(&setting, old.to_string()).is_ok() {
                entry.forget();
            }
        }
    }
}

/// Restores read-ahead values that a killed lab had changed. Returns a sentence for each restored value and each
/// failure.
///
/// # Errors
/// When the list of leftovers cannot be read.
pub fn restore_leftovers() -> Result<Vec<String>> {
    leftovers::sweep(KIND, |noted| {
        let Some((old, setting)) = noted.split_once(' ') else { return Ok(()) };
        let is_setting = setting.starts_with("/sys/") && setting.ends_with("/queue/read_ahead_kb");
        match old.parse::<u64>() {
            Ok(old) if is_setting => {
                std::fs::write(setting, old.to_string()).map_err(|error| fail("set", Path::new(setting), &error))
            }
            _ => Ok(()),
        }
    })
}

/// Returns the path of a device's read-ahead setting in sysfs; a partition uses its disk's.
fn setting_of(sysfs: &Path) -> Option<PathBuf> {
    let own = std::fs::canonicalize(sysfs).ok()?;
    let folders = [own.clone(), own.parent()?.to_path_buf()];
    folders.into_iter().map(|folder| folder.join("queue/read_ahead_kb")).find(|setting| setting.exists())
}

fn unsupported(why: &str) -> LabError {
    LabError::new(LabErrorKind::Unsupported, format!("read-ahead cannot be changed here: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::system::is_root;

    #[test]
    fn the_old_value_comes_back() {
        if !is_root() {
            eprintln!("skipped: changing read-ahead needs root");
            return;
        }
        let here = std::env::current_dir().unwrap();
        let Ok(device) = BlockDevice::under(&here) else {
            eprintln!("skipped: no block device under {}", here.display());
            return;
        };
        let setting = setting_of(device.sysfs()).unwrap();
        let before = read_number(&setting).unwrap();
        let other = if before == 256 { 128 } else { 256 };
        let Ok(changed) = ReadAhead::set(&[&here], other) else {
            eprintln!("skipped: {} cannot be written here", setting.display());
            return;
        };
        assert_eq!(read_number(&setting), Some(other));
        drop(changed);
        assert_eq!(read_number(&setting), Some(before));
    }

    #[test]
    fn a_path_without_a_block_device_is_refused_as_unsupported() {
        let error = ReadAhead::set(&[Path::new("/proc/self/status")], 128).unwrap_err();
        assert_eq!(error.kind(), LabErrorKind::Unsupported);
    }
}
