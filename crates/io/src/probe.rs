//! The features that this kernel, file system and device support, each with a readable reason where they do not.
//!
//! Everything is tried, not looked up by version: kernels are patched, containers forbid, file systems differ. A
//! [`Probe`] never fails and leaves nothing behind; a feature that could not be tried carries the reason.

mod file;
mod ring;
#[cfg(test)]
mod tests;

use std::fmt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use crate::counters::device::{BlockDevice, mount_of};

/// Whether a feature can be used here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ability {
    /// Available: a trial succeeded.
    Yes,
    /// Not available, or not tried: the reason, and the next step where there is one.
    No(String),
}

impl Ability {
    /// Returns whether the feature can be used.
    pub fn is_yes(&self) -> bool {
        *self == Self::Yes
    }

    /// Returns the reason why the feature cannot be used; `None` for [`Ability::Yes`].
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Yes => None,
            Self::No(reason) => Some(reason),
        }
    }

    fn because(reason: impl Into<String>) -> Self {
        Self::No(reason.into())
    }
}

impl fmt::Display for Ability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Yes => f.write_str("yes"),
            Self::No(reason) => write!(f, "no: {reason}"),
        }
    }
}

/// The features available at one place. See [`Probe::of`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// The path at which the features were tried.
    pub path: PathBuf,
    /// Release and machine of the kernel, as `6.18.44 x86_64`.
    pub kernel: String,
    /// The sign of a container, if there is one. A virtual machine made from a container image may show it too.
    pub container: Option<String>,
    /// File system type, as `ext4`; `None` for a block device, and for a path that is not there.
    pub file_system: Option<String>,
    /// The block device under the path, or the reason why there is none.
    pub device: std::result::Result<DeviceFacts, String>,

    /// Reads and writes that bypass the page cache (O_DIRECT). Not merely accepted: that nothing stayed in the page cache
    /// was checked where a temporary file could be made.
    pub direct_io: Ability,
    /// Positions and lengths of direct I/O must be multiples of this.
    pub dio_align_bytes: Option<u32>,
    /// Addresses of direct I/O must be multiples of this.
    pub dio_memory_align_bytes: Option<u32>,
    /// Single writes that survive a power cut once they have returned (RWF_DSYNC).
    pub durable_write: Ability,
    /// Reads that refuse instead of waiting (RWF_NOWAIT).
    pub nowait_read: Ability,
    /// Buffered I/O that does not stay in the page cache (RWF_DONTCACHE, Linux 6.14).
    pub dontcache: Ability,
    /// Writes of a page or more that are never torn (RWF_ATOMIC).
    pub atomic_write: Ability,
    /// Largest write that is never torn (see `atomic_write`), in bytes; zero where there is none.
    pub atomic_write_bytes_max: u32,

    /// A ring can be set up and used.
    pub io_uring: Ability,
    /// `IORING_SETUP_SINGLE_ISSUER` (Linux 6.0).
    pub single_issuer: Ability,
    /// `IORING_SETUP_DEFER_TASKRUN` (Linux 6.1).
    pub defer_taskrun: Ability,
    /// `IORING_SETUP_COOP_TASKRUN` (Linux 5.19).
    pub coop_taskrun: Ability,
    /// `IORING_SETUP_SQPOLL`: a kernel thread that submits. Costs a CPU; possible is not advisable.
    pub sqpoll: Ability,
    /// Buffers registered with a ring. How much of them is bounded by `memlock_bytes_max`.
    pub registered_buffers: Ability,
    /// RLIMIT_MEMLOCK in bytes; `None` is unlimited.
    pub memlock_bytes_max: Option<u64>,

    /// `cachestat(2)` (Linux 6.5).
    pub cachestat: Ability,
    /// `MADV_POPULATE_READ` (Linux 5.14).
    pub populate_read: Ability,
    /// Mode of transparent huge pages: `always`, `madvise` or `never`; `None` where the kernel has none.
    pub huge_pages: Option<String>,
}

/// The kernel's facts about a block device. `None` where it reports nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceFacts {
    /// Kernel name of the device, as `nvme0n1p2`.
    pub name: String,
    /// The devices on which this one is stacked, for LVM, RAID and the like.
    pub lower: Vec<String>,
    /// The manufacturer's name of the model.
    pub model: Option<String>,
    /// Whether the device claims to be a spinning disk. Virtual disks often claim it wrongly.
    pub rotational: Option<bool>,
    /// Read-ahead of a map or buffered read, in KiB.
    pub read_ahead_kb: Option<u64>,
    /// The I/O scheduler in use.
    pub scheduler: Option<String>,
    /// Requests the block layer keeps at a time.
    pub nr_requests: Option<u64>,
    /// Pieces of memory per request; more are split.
    pub max_segments: Option<u64>,
    /// Bytes per request, in KiB; more are split.
    pub max_sectors_kb: Option<u64>,
    /// `write back` (a cache that needs flushing) or `write through`.
    pub write_cache: Option<String>,
    /// Whether a durable write needs no flush of the whole cache (FUA).
    pub fua: Option<bool>,
    /// Whether completions can be polled for.
    pub io_poll: Option<bool>,
    /// Smallest unit that can be addressed, in bytes.
    pub logical_block_bytes: Option<u64>,
    /// Smallest unit written without read-modify-write, in bytes.
    pub physical_block_bytes: Option<u64>,
}

impl Probe {
    /// Tries the features at `path`: a folder, a file or a block device. Takes some milliseconds.
    ///
    /// In a folder it uses a nameless temporary file of about a megabyte. A file or device is only read from; tests
    /// that need a write use a temporary file in its folder. Nothing remains.
    pub fn of(path: &Path) -> Self {
        let system = rustix::system::uname();
        let word = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
        let file = file::try_at(path);
        let ring = ring::try_rings();
        Self {
            path: path.to_path_buf(),
            kernel: format!("{} {}", word(system.release()), word(system.machine())),
            container: container(),
            file_system: file_system(path),
            device: DeviceFacts::under(path),
            direct_io: file.direct_io,
            dio_align_bytes: file.dio_align_bytes,
            dio_memory_align_bytes: file.dio_memory_align_bytes,
            durable_write: file.durable_write,
            nowait_read: file.nowait_read,
            dontcache: file.dontcache,
            atomic_write: file.atomic_write,
            atomic_write_bytes_max: file.atomic_write_bytes_max,
            io_uring: ring.io_uring,
            single_issuer: ring.single_issuer,
            defer_taskrun: ring.defer_taskrun,
            coop_taskrun: ring.coop_taskrun,
            sqpoll: ring.sqpoll,
            registered_buffers: ring.registered_buffers,
            memlock_bytes_max: memlock_bytes_max(),
            cachestat: file::try_cachestat(),
            populate_read: file::try_populate_read(),
            huge_pages: read_trimmed("/sys/kernel/mm/transparent_hugepage/enabled").map(|text| chosen(&text)),
        }
    }

    /// Returns all features as pairs of name and text, in order: for records, and for `Display`.
    pub fn named(&self) -> Vec<(&'static str, String)> {
        let unknown = || "unknown".to_owned();
        let bytes = |value: Option<u32>| value.map_or_else(unknown, |value| format!("{value} bytes"));
        let mut named = vec![
            ("path", self.path.display().to_string()),
            ("kernel", self.kernel.clone()),
            (
                "container",
                self.container.as_ref().map_or_else(|| "no sign of one".into(), |sign| format!("probably: {sign}")),
            ),
            ("file_system", self.file_system.clone().unwrap_or_else(|| "none".into())),
        ];
        match &self.device {
            Ok(facts) => named.extend(facts.named()),
            Err(reason) => named.push(("device", format!("none: {reason}"))),
        }
        let memlock = self.memlock_bytes_max.map_or_else(|| "unlimited".into(), |max| format!("{max} bytes"));
        named.extend([
            ("direct_io", self.direct_io.to_string()),
            ("dio_align", bytes(self.dio_align_bytes)),
            ("dio_memory_align", bytes(self.dio_memory_align_bytes)),
            ("durable_write", self.durable_write.to_string()),
            ("nowait_read", self.nowait_read.to_string()),
            ("dontcache", self.dontcache.to_string()),
            ("atomic_write", self.atomic_write.to_string()),
            ("io_uring", self.io_uring.to_string()),
            ("single_issuer", self.single_issuer.to_string()),
            ("defer_taskrun", self.defer_taskrun.to_string()),
            ("coop_taskrun", self.coop_taskrun.to_string()),
            ("sqpoll", self.sqpoll.to_string()),
            ("registered_buffers", self.registered_buffers.to_string()),
            ("memlock_max", memlock),
            ("cachestat", self.cachestat.to_string()),
            ("populate_read", self.populate_read.to_string()),
            ("huge_pages", self.huge_pages.clone().unwrap_or_else(|| "none".into())),
        ]);
        named
    }
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, text) in self.named() {
            writeln!(f, "{name:<20} {text}")?;
        }
        Ok(())
    }
}

impl DeviceFacts {
    fn under(path: &Path) -> std::result::Result<Self, String> {
        let device = BlockDevice::under(path).map_err(|error| error.to_string())?;
        let number = |name: &str| device.attribute(name).and_then(|text| text.parse::<u64>().ok());
        let flag = |name: &str| number(name).map(|value| value != 0);
        Ok(Self {
            name: device.name().to_owned(),
            lower: device.lower().to_vec(),
            model: device.attribute("device/model"),
            rotational: flag("queue/rotational"),
            read_ahead_kb: number("queue/read_ahead_kb"),
            scheduler: device.attribute("queue/scheduler").map(|text| chosen(&text)),
            nr_requests: number("queue/nr_requests"),
            max_segments: number("queue/max_segments"),
            max_sectors_kb: number("queue/max_sectors_kb"),
            write_cache: device.attribute("queue/write_cache"),
            fua: flag("queue/fua"),
            io_poll: flag("queue/io_poll"),
            logical_block_bytes: number("queue/logical_block_size"),
            physical_block_bytes: number("queue/physical_block_size"),
        })
    }

    fn named(&self) -> Vec<(&'static str, String)> {
        let device = match self.lower.as_slice() {
            [] => self.name.clone(),
            lower => format!("{} on {}", self.name, lower.join(", ")),
        };
        let yes_no = |value: Option<bool>| value.map(|value| if value { "yes" } else { "no" }.to_owned());
        let number = |value: Option<u64>| value.map(|value| value.to_string());
        let rest = [
            ("device_model", self.model.clone()),
            ("rotational", yes_no(self.rotational)),
            ("read_ahead_kb", number(self.read_ahead_kb)),
            ("scheduler", self.scheduler.clone()),
            ("nr_requests", number(self.nr_requests)),
            ("max_segments", number(self.max_segments)),
            ("max_sectors_kb", number(self.max_sectors_kb)),
            ("write_cache", self.write_cache.clone()),
            ("fua", yes_no(self.fua)),
            ("io_poll", yes_no(self.io_poll)),
            ("logical_block_bytes", number(self.logical_block_bytes)),
            ("physical_block_bytes", number(self.physical_block_bytes)),
        ];
        let known = rest.into_iter().filter_map(|(name, text)| Some((name, text?)));
        std::iter::once(("device", device)).chain(known).collect()
    }
}

/// Returns the bracketed choice of a list like `always [madvise] never`; the whole text where there are no brackets.
fn chosen(text: &str) -> String {
    let inside = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    inside.map_or(text, |(chosen, _)| chosen).to_owned()
}

/// Returns the type of the file system by the mount table, which tells ext4 from ext2; by `statfs` where the table
/// cannot be read.
fn file_system(path: &Path) -> Option<String> {
    // The file system holding the node of a device says nothing about the device.
    if std::fs::metadata(path).ok()?.file_type().is_block_device() {
        return None;
    }
    if let Some((kind, _)) = mount_of(path) {
        return Some(kind);
    }
    let magic = u64::try_from(rustix::fs::statfs(path).ok()?.f_type).ok()? & 0xffff_ffff;
    Some(match magic {
        0xef53 => "ext2/3/4".into(),
        0x5846_5342 => "xfs".into(),
        0x9123_683e => "btrfs".into(),
        0x0102_1994 => "tmpfs".into(),
        0x794c_7630 => "overlay".into(),
        0x6969 => "nfs".into(),
        0x6573_5546 => "fuse".into(),
        0xf2f5_2010 => "f2fs".into(),
        0x2fc1_2fc1 => "zfs".into(),
        other => format!("statfs type {other:#x}"),
    })
}

fn container() -> Option<String> {
    for marker in ["/.dockerenv", "/run/.containerenv", "/run/systemd/container"] {
        if Path::new(marker).exists() {
            return Some(format!("{marker} exists"));
        }
    }
    if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
        return Some("KUBERNETES_SERVICE_HOST is set".into());
    }
    let groups = std::fs::read_to_string("/proc/1/cgroup").ok()?;
    let sign = ["docker", "kubepods", "containerd", "libpod", "lxc"].into_iter().find(|sign| groups.contains(sign))?;
    Some(format!("the first process is in a cgroup named {sign}"))
}

fn memlock_bytes_max() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Memlock).current
}

fn read_trimmed(path: &str) -> Option<String> {
    Some(std::fs::read_to_string(path).ok()?.trim().to_owned())
}
