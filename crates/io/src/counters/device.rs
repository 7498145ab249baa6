//! Finds the block device under a path, and reads the kernel's facts about it in `/sys/dev/block`.

use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind, Result};

/// A block device: a disk, a partition, or one stacked on others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockDevice {
    name: String,
    sysfs: PathBuf,
    disk_sysfs: PathBuf,
    lower: Vec<String>,
}

impl BlockDevice {
    /// Finds the device under a file, a folder, or the device itself. A few small reads of `/sys` and `/proc`.
    ///
    /// # Errors
    /// `NotFound` or `NoPermission` for the path; `Unsupported` where no block device lies under it (tmpfs, overlayfs,
    /// FUSE, network file systems, ZFS), or `/sys` does not show it.
    pub fn under(path: &Path) -> Result<Self> {
        let action = "find the device";
        let meta = std::fs::metadata(path).map_err(|error| Error::from_io(action, &error).at(path))?;
        let number = if meta.file_type().is_block_device() { meta.rdev() } else { meta.dev() };
        let unsupported = |why: String| Error::new(ErrorKind::Unsupported, action, why).at(path);
        if libc::major(number) != 0 {
            return Self::numbered(number).map_err(unsupported);
        }
        // An anonymous device number: the file system is on no device, or (btrfs) has its own number.
        let (kind, source) =
            mount_of(path).ok_or_else(|| unsupported("its file system is not on a block device".into()))?;
        match std::fs::metadata(&source) {
            Ok(device) if device.file_type().is_block_device() => Self::numbered(device.rdev()).map_err(unsupported),
            _ => Err(unsupported(format!("{kind} shows no block device beneath it"))),
        }
    }

    fn numbered(number: libc::dev_t) -> std::result::Result<Self, String> {
        let (major, minor) = (libc::major(number), libc::minor(number));
        let link = format!("/sys/dev/block/{major}:{minor}");
        let sysfs = std::fs::canonicalize(&link).map_err(|error| format!("{link}: {error}"))?;
        let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let is_partition = sysfs.join("partition").exists();
        let disk_sysfs = match sysfs.parent() {
            Some(disk) if is_partition => disk.to_path_buf(),
            _ => sysfs.clone(),
        };
        let mut lower: Vec<String> = std::fs::read_dir(sysfs.join("slaves"))
            .map(|entries| entries.flatten().map(|entry| name(&entry.path())).collect())
            .unwrap_or_default();
        lower.sort_unstable();
        // A device mapper's own name says more than `dm-0`.
        let shown = std::fs::read_to_string(sysfs.join("dm/name")).map(|own| own.trim().to_owned()).ok();
        let plain = name(&sysfs);
        Ok(Self { name: shown.map_or(plain.clone(), |own| format!("{plain} ({own})")), sysfs, disk_sysfs, lower })
    }

    /// Returns the kernel name of the device, as `nvme0n1p2` or `dm-0 (vg-data)`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the folder of the device in `/sys`, which contains `stat`.
    pub fn sysfs(&self) -> &Path {
        &self.sysfs
    }

    /// Returns the devices on which this one is stacked, by kernel name; none for a disk or a partition.
    pub fn lower(&self) -> &[String] {
        &self.lower
    }

    /// Returns one attribute of the disk, as `queue/read_ahead_kb`, without the line end. A partition has the
    /// attributes of its disk.
    pub fn attribute(&self, name: &str) -> Option<String> {
        let text = std::fs::read_to_string(self.disk_sysfs.join(name)).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    }
}

/// File system type and source (mostly a device) of the mount that `path` is on, from `/proc/self/mountinfo`. `None` where
/// that does not show it.
pub fn mount_of(path: &Path) -> Option<(String, String)> {
    let empty = rustix::fs::AtFlags::empty();
    let mask = rustix::fs::StatxFlags::MNT_ID;
    let stat = rustix::fs::statx(rustix::fs::CWD.as_fd(), path, empty, mask).ok()?;
    if stat.stx_mask & mask.bits() == 0 {
        return None;
    }
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    mount_source(&mounts, stat.stx_mnt_id)
}

/// Looks a mount up by its id in the text of `/proc/self/mountinfo`.
pub(super) fn mount_source(mounts: &str, mount_id: u64) -> Option<(String, String)> {
    let line = mounts
        .lines()
        .find(|line| line.split_ascii_whitespace().next().and_then(|id| id.parse().ok()) == Some(mount_id))?;
    // The number of optional fields varies; a lone hyphen ends them.
    let (_, tail) = line.split_once(" - ")?;
    let mut words = tail.split_ascii_whitespace();
    Some((words.next()?.to_owned(), words.next()?.to_owned()))
}
