//! Tries the features of a file: direct I/O and the flags of single reads and writes.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags};

use super::Ability;
use crate::aligned::{IoBuf, PageKind};
use crate::counters::cachestat;
use crate::error::ErrorKind;
use crate::mapped::{Advice, MappedFile, Protection};

const RWF_DONTCACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);
/// Number of bytes that the buffered trials use, from the start of the file.
const TRIAL_BYTES: usize = 64 << 10;
/// Offset of the direct trial's write: it was never cached.
const FRESH_OFFSET: u64 = 1 << 20;

/// The results of the trials: the fields of the same names in [`super::Probe`].
pub(super) struct Files {
    pub(super) direct_io: Ability,
    pub(super) dio_align_bytes: Option<u32>,
    pub(super) dio_memory_align_bytes: Option<u32>,
    pub(super) durable_write: Ability,
    pub(super) nowait_read: Ability,
    pub(super) dontcache: Ability,
    pub(super) atomic_write: Ability,
    pub(super) atomic_write_bytes_max: u32,
}

impl Files {
    fn untried(reason: &str) -> Self {
        let no = || Ability::because(format!("not tried: {reason}"));
        Self {
            direct_io: no(),
            dio_align_bytes: None,
            dio_memory_align_bytes: None,
            durable_write: no(),
            nowait_read: no(),
            dontcache: no(),
            atomic_write: no(),
            atomic_write_bytes_max: 0,
        }
    }
}

/// Tries the features of a folder on a temporary file; of a file by reading it, and by writing to a temporary file
/// next to it; of a device by reading.
pub(super) fn try_at(path: &Path) -> Files {
    let meta = match std::fs::metadata(path) {
        Ok(meta) => meta,
        Err(error) => return Files::untried(&format!("{}: {error}", path.display())),
    };
    let buffer = match IoBuf::zeroed(2 * TRIAL_BYTES, PageKind::Small) {
        Ok(buffer) => buffer,
        Err(error) => return Files::untried(&error.to_string()),
    };
    if meta.is_dir() {
        return match temporary_file(path) {
            Ok(file) => try_file(&file, buffer, true),
            Err(reason) => Files::untried(&reason),
        };
    }
    let is_device = meta.file_type().is_block_device();
    if !is_device && !meta.is_file() {
        return Files::untried(&format!("{} is neither a folder, a file nor a block device", path.display()));
    }
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) => return Files::untried(&format!("cannot read {}: {error}", path.display())),
    };
    let mut tried = try_file(&file, buffer, false);
    tried.durable_write = if is_device {
        // A device is never written to. The flag is the kernel's to know, and every device can flush.
        match rustix::fs::memfd_create("trial", MemfdFlags::CLOEXEC) {
            Ok(memory) => try_durable_write(&File::from(memory)),
            Err(errno) => Ability::because(format!("not tried: {errno}")),
        }
    } else {
        try_durable_write_beside(path, meta.dev())
    };
    tried
}

/// Tries `cachestat` on a file in memory, because it depends on the kernel alone.
pub(super) fn try_cachestat() -> Ability {
    match page_in_memory() {
        // Only the call itself reports dirty pages; its substitute does not.
        Ok(file) if cachestat(&file, 0..4096).is_some_and(|stat| stat.dirty_bytes.is_some()) => Ability::Yes,
        Ok(_) => Ability::because("this kernel does not know it (it needs Linux 6.5), or a seccomp filter forbids it"),
        Err(reason) => Ability::because(format!("not tried: {reason}")),
    }
}

/// Tries `MADV_POPULATE_READ` on a file in memory, because it depends on the kernel alone.
pub(super) fn try_populate_read() -> Ability {
    let attempt = || -> Result<(), String> {
        let file = page_in_memory()?;
        // SAFETY: no other code knows the file in memory, so it keeps its length and bytes.
        let map =
            unsafe { MappedFile::map(&file, Protection::ReadOnly, 0..4096) }.map_err(|error| error.to_string())?;
        map.advise(Advice::PopulateRead, 0..4096).map_err(|error| match error.kind() {
            ErrorKind::Unsupported => "this kernel does not know it; it needs Linux 5.14".into(),
            _ => error.to_string(),
        })
    };
    match attempt() {
        Ok(()) => Ability::Yes,
        Err(reason) => Ability::No(reason),
    }
}

fn page_in_memory() -> Result<File, String> {
    let file = File::from(rustix::fs::memfd_create("trial", MemfdFlags::CLOEXEC).map_err(|errno| errno.to_string())?);
    file.set_len(4096).map_err(|error| error.to_string())?;
    Ok(file)
}

/// Creates a file without a name; where the file system cannot do that, the name of the file is removed at once.
fn temporary_file(folder: &Path) -> Result<File, String> {
    let mode = Mode::RUSR | Mode::WUSR;
    match rustix::fs::open(folder, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, mode) {
        Ok(file) => return Ok(File::from(file)),
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOSYS | Errno::NOENT) => {}
        Err(errno) => return Err(format!("cannot write in {}: {errno}", folder.display())),
    }
    let path = folder.join(format!(".nofault-probe-{}-{:016x}", std::process::id(), fastrand::u64(..)));
    let file = File::options().read(true).write(true).create_new(true).open(&path);
    let file = file.map_err(|error| format!("cannot write in {}: {error}", folder.display()))?;
    std::fs::remove_file(&path).map_err(|error| format!("cannot remove {}: {error}", path.display()))?;
    Ok(file)
}

fn try_file(file: &File, mut buffer: IoBuf, may_write: bool) -> Files {
    let durable_write = if may_write { try_durable_write(file) } else { Ability::because("not tried") };
    // Direct I/O comes last: it is switched on for the descriptor.
    let nowait_read = try_read(file, &mut buffer, ReadWriteFlags::NOWAIT).map_or_else(
        |errno| match errno {
            // The read would have had to wait, and returned instead: the feature works.
            Errno::AGAIN => Ability::Yes,
            Errno::OPNOTSUPP => Ability::because("this file system cannot tell whether a read would wait"),
            other => Ability::because(other.to_string()),
        },
        |()| Ability::Yes,
    );
    let dontcache = try_read(file, &mut buffer, RWF_DONTCACHE).map_or_else(
        |errno| match errno {
            Errno::OPNOTSUPP | Errno::INVAL => {
                Ability::because("this kernel (it needs Linux 6.14) or this file system does not offer it")
            }
            other => Ability::because(other.to_string()),
        },
        |()| Ability::Yes,
    );
    let stat = statx(file);
    let atomic_write_bytes_max = stat.as_ref().map_or(0, |stat| stat.stx_atomic_write_unit_max);
    let atomic_write = match atomic_write_bytes_max {
        0 => Ability::because(
            "the kernel (6.11 and later), the file system and the device must all offer it; one does not",
        ),
        max if max < 4096 => Ability::because(format!("only up to {max} bytes, less than a page")),
        _ => Ability::Yes,
    };
    let align = stat
        .filter(|stat| stat.stx_mask & rustix::fs::StatxFlags::DIOALIGN.bits() != 0)
        .map(|stat| (stat.stx_dio_mem_align, stat.stx_dio_offset_align));
    let (direct_io, aligns) = match try_direct(file, &mut buffer, align, may_write) {
        Ok(aligns) => (Ability::Yes, Some(aligns)),
        Err(reason) => (Ability::No(reason), None),
    };
    Files {
        direct_io,
        dio_align_bytes: aligns.map(|(_, offset)| offset),
        dio_memory_align_bytes: aligns.map(|(memory, _)| memory),
        durable_write,
        nowait_read,
        dontcache,
        atomic_write,
        atomic_write_bytes_max,
    }
}

fn statx(file: &File) -> Option<rustix::fs::Statx> {
    // STATX_WRITE_ATOMIC, which rustix does not name; older kernels ignore it.
    let mask = rustix::fs::StatxFlags::DIOALIGN | rustix::fs::StatxFlags::from_bits_retain(0x1_0000);
    rustix::fs::statx(file.as_fd(), c"", rustix::fs::AtFlags::EMPTY_PATH, mask).ok()
}

fn try_read(file: &File, buffer: &mut IoBuf, flags: ReadWriteFlags) -> Result<(), Errno> {
    let mut pieces = [IoSliceMut::new(&mut buffer[..4096])];
    rustix::io::preadv2(file, &mut pieces, 0, flags).map(drop)
}

fn try_durable_write(file: &File) -> Ability {
    let page = [1_u8; TRIAL_BYTES];
    match rustix::io::pwritev2(file, &[IoSlice::new(&page)], 0, ReadWriteFlags::DSYNC) {
        Ok(_) => Ability::Yes,
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
            Ability::because("this kernel does not offer it for single writes (it needs Linux 4.7); use fdatasync")
        }
        Err(errno) => Ability::because(errno.to_string()),
    }
}

fn try_durable_write_beside(path: &Path, device: u64) -> Ability {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    match temporary_file(folder) {
        // A file mounted on its own may be on another file system than its folder.
        Ok(file) if file.metadata().is_ok_and(|meta| meta.dev() == device) => try_durable_write(&file),
        Ok(_) => Ability::because("not tried: the folder is on another file system than the file"),
        Err(reason) => Ability::because(format!("not tried: {reason}")),
    }
}

/// Returns the alignments (memory, position) of direct I/O, if it works.
fn try_direct(
    file: &File,
    buffer: &mut IoBuf,
    told: Option<(u32, u32)>,
    may_write: bool,
) -> Result<(u32, u32), String> {
    if in_memory_only(file) {
        return Err(
            "this file system keeps files in memory (tmpfs): there is no device to go to directly, and O_DIRECT \
             is refused (EINVAL) or has no effect"
                .into(),
        );
    }
    if told == Some((0, 0)) {
        return Err(
            "the file system does not offer it for this file (encrypted, compressed, or journalled data)".into()
        );
    }
    let flags = rustix::fs::fcntl_getfl(file).map_err(|errno| errno.to_string())?;
    rustix::fs::fcntl_setfl(file, flags | OFlags::DIRECT).map_err(|errno| match errno {
        Errno::INVAL => "this file system refuses O_DIRECT (EINVAL)".to_owned(),
        other => format!("O_DIRECT is refused: {other}"),
    })?;
    let (memory, offset) = match told {
        Some(told) => told,
        // Before Linux 6.1 the kernel does not tell, and it is found by trying.
        None => (9..=16)
            .map(|power| 1_usize << power)
            .find(|align| rustix::io::pread(file, &mut buffer[*align..2 * *align], *align as u64).is_ok())
            .map(|align| (align as u32, align as u32))
            .ok_or("direct reads fail at every alignment up to 64 KiB")?,
    };
    let unit = offset.max(memory) as usize;
    let unit = if unit <= TRIAL_BYTES { unit.max(4096).next_multiple_of(unit) } else { unit };
    if unit > buffer.len() {
        return Err(format!("direct I/O wants multiples of {unit} bytes, which is too coarse to use"));
    }
    if may_write {
        rustix::io::pwrite(file, &buffer[..unit], FRESH_OFFSET)
            .map_err(|errno| format!("a direct write failed: {errno}"))?;
    }
    let from = if may_write { FRESH_OFFSET } else { 0 };
    rustix::io::pread(file, &mut buffer[..unit], from).map_err(|errno| format!("a direct read failed: {errno}"))?;
    // Some file systems accept the flag and go through the page cache nevertheless.
    let cached_bytes = cachestat(file, from..from + unit as u64).map_or(0, |stat| stat.cached_bytes);
    if may_write && cached_bytes > 0 {
        return Err("O_DIRECT is accepted, but the data went through the page cache".into());
    }
    Ok((memory, offset))
}

fn in_memory_only(file: &File) -> bool {
    // The node of a device lies in such a file system, its bytes do not.
    if !file.metadata().is_ok_and(|meta| meta.is_file()) {
        return false;
    }
    const TMPFS: u64 = 0x0102_1994;
    const RAMFS: u64 = 0x8584_58f6;
    let kind = rustix::fs::fstatfs(file).ok().and_then(|stat| u64::try_from(stat.f_type).ok());
    matches!(kind, Some(TMPFS | RAMFS))
}
