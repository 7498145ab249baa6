//! The check before the first write: whether a target may be overwritten.
//!
//! Kept true by:
//! 1. No file or device is opened for writing before [`check_writable`] found the lab's own marker in it, complete and
//!    of the content that the trial names.
//! 2. A block device is written only when it is a RAM device of the lab's own.
//! 3. A block is only overwritten with its present content: later readers find it valid, also after a kill at any
//!    moment.

use crate::machine::ram::is_zram;
use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;

use crate::error::{LabError, LabErrorKind, Result};
use crate::machine::{data, device};
use crate::paths::shown;
use crate::record::{Target, TargetKind};

/// Free bytes that the file system must have. Overwriting in place needs no space, but a file system that copies on
/// write would otherwise run out of space during the trial.
const SPARE_BYTES_MIN: u64 = 64 << 20;

/// Makes sure that the target may be overwritten, and returns the seed of its content. Writes nothing.
///
/// # Errors
/// `Usage` for a target that is only ever read (a raw device, unknown content); `Damaged` without the marker or with
/// another content than the trial's; `NoPermission` for a write-protected file; `NoSpace` on a full disk; `Busy` for a
/// device in use.
pub(crate) fn check_writable(target: &Target) -> Result<u64> {
    let [at] = target.paths.as_slice() else {
        let message = format!("{} paths are not overwritten: a trial works on one file or device", target.paths.len());
        return Err(LabError::new(LabErrorKind::Usage, message));
    };
    let (at, path) = (at.as_path(), shown(at));
    let refuse = |kind, why: &str| Err(LabError::new(kind, format!("{path} is not overwritten: {why}")));
    let Some(seed) = target.content_seed else {
        return refuse(LabErrorKind::Usage, "its content is unknown to the lab; such a device is only read");
    };
    let meta = fs::symlink_metadata(at).map_err(|error| LabError::system(format!("look at {path}"), &error))?;
    let found = if meta.file_type().is_block_device() {
        if !is_own_ram_device(target, at) {
            return refuse(
                LabErrorKind::Usage,
                "raw devices are only read; overwrites go to the file or to a RAM device that the lab made",
            );
        }
        let found = device::target(at, false)?;
        (found.content_seed, found.data_bytes)
    } else {
        if matches!(target.kind(), TargetKind::Device(_)) {
            return refuse(LabErrorKind::Usage, "the target is a device to be read only");
        }
        match data::inspect(at)? {
            Some(header) if header.complete => (Some(header.seed), header.data_bytes),
            _ => return refuse(LabErrorKind::Damaged, "its content was never finished; let the lab make it anew"),
        }
    };
    if found != (Some(seed), target.data_bytes) {
        let why = "it holds another content than this trial was planned with; let the lab make it anew";
        return refuse(LabErrorKind::Damaged, why);
    }
    // Root could write to a write-protected file; the lab respects the permission bits even so.
    if meta.permissions().mode() & 0o222 == 0 {
        return refuse(LabErrorKind::NoPermission, "it is write-protected; `chmod u+w` allows it");
    }
    if meta.is_file() {
        check_spare(at)?;
    }
    Ok(seed)
}

fn is_own_ram_device(target: &Target, path: &Path) -> bool {
    target.kind().is_ram_backed() && is_zram(path)
}

fn check_spare(path: &Path) -> Result<()> {
    let stat = rustix::fs::statvfs(path)
        .map_err(|error| LabError::system(format!("look at the disk of {}", shown(&path)), &error.into()))?;
    if stat.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY) {
        let message = format!("{} is not overwritten: its file system is mounted read-only", shown(&path));
        return Err(LabError::new(LabErrorKind::NoPermission, message));
    }
    refuse_full(path, stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Refuses a file system with less than [`SPARE_BYTES_MIN`] free: one that copies on write could not take the
/// overwrites.
pub(crate) fn refuse_full(path: &Path, free_bytes: u64) -> Result<()> {
    if free_bytes >= SPARE_BYTES_MIN {
        return Ok(());
    }
    let message = format!(
        "{} is not overwritten: only {} MiB of its disk are free; free {} MiB or choose another folder",
        shown(&path),
        free_bytes >> 20,
        SPARE_BYTES_MIN >> 20
    );
    Err(LabError::new(LabErrorKind::NoSpace, message))
}
