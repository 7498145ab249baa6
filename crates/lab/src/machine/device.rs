//! Raw block devices: read when they carry the lab's marker (or the caller insists), written only to put the marker and
//! the content there, after the caller has repeated the path.
//!
//! Kept true by: a device that is mounted, swapped to, held by another device or opened exclusively is refused; one
//! with a known signature is never written.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::AtomicBool;

use super::content::BLOCK_BYTES;
use super::data::{self, DataSpec, Progress};
use super::system::{self, fail, human_bytes, read_number, read_text};
use crate::error::{LabError, LabErrorKind, Result};
use crate::paths::shown;
use crate::record::Target;

/// Bytes at the start of a device that are searched for signatures.
const HEAD_BYTES: usize = 256 << 10;

/// Returns the size of a block device in bytes, after making sure that the device is not in use.
///
/// # Errors
/// `Usage` when the path is no block device; `Busy` when the device is mounted, swapped to, or held otherwise; the
/// message names the use.
pub fn check_unused(path: &Path) -> Result<u64> {
    let meta = fs::metadata(path).map_err(|error| fail("look at", path, &error))?;
    if !meta.file_type().is_block_device() {
        let message = format!("{} is not a block device; for a file use --dir", shown(&path));
        return Err(LabError::new(LabErrorKind::Usage, message));
    }
    let number = format!("{}:{}", rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
    let busy = |what: String| {
        let message = format!("{} {what}: the lab leaves it alone; choose an unused device", shown(&path));
        Err(LabError::new(LabErrorKind::Busy, message))
    };
    let folder = format!("/sys/dev/block/{number}");
    // The device and its partitions: a disk whose partition is mounted is in use.
    let mut parts = vec![(number, Path::new(&folder).to_path_buf())];
    for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
        if let Some(number) =
            entry.path().join("partition").exists().then(|| read_text(entry.path().join("dev"))).flatten()
        {
            parts.push((number, entry.path()));
        }
    }
    let mounts = system::mounts();
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    for (number, folder) in &parts {
        if let Some(mount) = mounts.iter().find(|mount| &mount.device_number == number) {
            return busy(format!("is mounted at {}", shown(&mount.point)));
        }
        if let Some(holder) = fs::read_dir(folder.join("holders")).ok().and_then(|mut all| all.next()?.ok()) {
            return busy(format!("is part of {}", shown(&holder.file_name())));
        }
        let name = fs::canonicalize(folder).ok().and_then(|path| Some(path.file_name()?.to_str()?.to_owned()));
        if let Some(name) = name
            && swaps.lines().any(|line| line.split_whitespace().next() == Some(&format!("/dev/{name}")))
        {
            return busy("is used as swap".into());
        }
    }
    // An exclusive open fails when any user inside the kernel has claimed the device.
    match OpenOptions::new().read(true).custom_flags(libc::O_EXCL | libc::O_CLOEXEC).open(path) {
        Ok(_) => {}
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => return busy("is in use".into()),
        Err(error) => return Err(fail("open", path, &error)),
    }
    let sectors = read_number(Path::new(&folder).join("size")).unwrap_or(0);
    Ok(sectors.saturating_mul(512))
}

/// Returns the target reading a device. Its content can be verified when it carries the lab's marker; a device
/// without the marker is accepted only with `unmarked`, and nothing of it can be verified.
///
/// # Errors
/// As [`check_unused`]; `Damaged` when the marker is absent or its data was never finished.
pub fn target(path: &Path, unmarked: bool) -> Result<Target> {
    let size_bytes = check_unused(path)?;
    let file = open(path, false)?;
    let (data_bytes, content_seed) = match data::read_header(&file, path)? {
        Ok(header) if header.complete && header.data_bytes < size_bytes => (header.data_bytes, Some(header.seed)),
        _ if unmarked && size_bytes > 2 * BLOCK_BYTES as u64 => {
            (size_bytes / BLOCK_BYTES as u64 * BLOCK_BYTES as u64 - BLOCK_BYTES as u64, None)
        }
        other => {
            let why = match other {
                Ok(_) => "carries the lab's marker, but its data was never finished".to_owned(),
                Err(error) => error.to_string(),
            };
            let message = format!(
                "{} {why}; to write the lab's data to it (all that it holds is lost) run `nofault lab prepare-device {0} --erase {0}`, to only read it as it is \
                 add --unmarked-devices",
                shown(&path)
            );
            return Err(LabError::new(LabErrorKind::Damaged, message));
        }
    };
    let paths = vec![path.to_path_buf()];
    Ok(Target { label: "device".into(), paths, data_bytes, content_seed })
}

/// Fills a device with the lab's marker and content, which destroys all data on it; for this reason the caller repeats
/// the path in `confirm`. Zero `data_bytes` fill the whole device.
///
/// # Errors
/// As [`check_unused`]; `Usage` when `confirm` is not the path or the data does not fit, `Busy` when the device carries
/// a known signature and not the marker; `Interrupted`, after which the device carries an unfinished marker.
pub fn prepare_device(
    path: &Path,
    confirm: &Path,
    seed: u64,
    data_bytes: u64,
    progress: &Progress<'_>,
    cancel: &AtomicBool,
) -> Result<Target> {
    if confirm != path {
        let message = format!(
            "everything on {0} would be lost, so it is only written when confirmed: repeat the path ({0}, not '{1}')",
            shown(path),
            shown(confirm)
        );
        return Err(LabError::new(LabErrorKind::Usage, message));
    }
    let size_bytes = check_unused(path)?;
    let room = (size_bytes / BLOCK_BYTES as u64).saturating_sub(1) * BLOCK_BYTES as u64;
    let wanted = DataSpec { seed, data_bytes: if data_bytes == 0 { room } else { data_bytes } };
    if wanted.data_bytes > room || room == 0 {
        let message = format!("{} holds {} of data, not {}", shown(&path), human_bytes(room), human_bytes(data_bytes));
        return Err(LabError::new(LabErrorKind::Usage, message));
    }
    wanted.check()?;
    let file = open(path, true)?;
    if data::read_header(&file, path)?.is_err()
        && let Some(what) = signature(&file, path, size_bytes)?
    {
        let message = format!(
            "{} holds {what}: the lab does not write over it; if it is really not needed, clear it with `wipefs --all {0}` first",
            shown(&path)
        );
        return Err(LabError::new(LabErrorKind::Busy, message));
    }
    data::write_content(&file, path, wanted, 0, progress, cancel)?;
    Ok(Target { label: "device".into(), ..data::target("device", &[path], wanted) })
}

/// Opens a device exclusively, past the page cache.
pub(super) fn open(path: &Path, write: bool) -> Result<File> {
    let flags = libc::O_EXCL | libc::O_CLOEXEC | libc::O_DIRECT;
    // udev may hold a new device open for a moment.
    for wait_ms in [0, 10, 50, 100, 200] {
        std::thread::sleep(std::time::Duration::from_millis(wait_ms));
        match OpenOptions::new().read(true).write(write).custom_flags(flags).open(path) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
            other => return other.map_err(|error| fail("open", path, &error)),
        }
    }
    let message = format!("{} is in use: choose an unused device", shown(&path));
    Err(LabError::new(LabErrorKind::Busy, message))
}

/// Returns the name of the file system, partition table or other format whose signature a device carries; `None`
/// without one.
fn signature(file: &File, path: &Path, size_bytes: u64) -> Result<Option<&'static str>> {
    let head_bytes = HEAD_BYTES.min(usize::try_from(size_bytes).unwrap_or(usize::MAX)) / BLOCK_BYTES * BLOCK_BYTES;
    let tail_at = size_bytes / BLOCK_BYTES as u64 * BLOCK_BYTES as u64 - head_bytes as u64;
    let read = |at: u64| -> Result<_> {
        let mut bytes = data::buffer(head_bytes)?;
        file.read_exact_at(&mut bytes, at).map_err(|error| fail("read", path, &error))?;
        Ok(bytes)
    };
    Ok(signature_of(&read(0)?, &read(tail_at)?))
}

/// Looks for signatures in the first bytes of a device and, for formats with a signature at the end, in its last bytes.
fn signature_of(head: &[u8], tail: &[u8]) -> Option<&'static str> {
    let at = |offset: usize, magic: &[u8]| head.get(offset..offset + magic.len()) == Some(magic);
    let any = |offsets: &[usize], magic: &[u8]| offsets.iter().any(|offset| at(*offset, magic));
    let sectors = [0, 512, 1024, 1536];
    let uberblocks: Vec<usize> = (0..128).map(|slot| (128 << 10) + slot * 1024).collect();
    let known: [(bool, &str); 15] = [
        (any(&[512, 4096], b"EFI PART"), "a GPT partition table"),
        (at(1080, &0xef53u16.to_le_bytes()), "an ext2, ext3 or ext4 file system"),
        (at(0, b"XFSB"), "an XFS file system"),
        (at((64 << 10) + 64, b"_BHRfS_M"), "a Btrfs file system"),
        (at(1024, &0xf2f5_2010u32.to_le_bytes()), "an F2FS file system"),
        (at(3, b"NTFS    ") || at(3, b"EXFAT   "), "an NTFS or exFAT file system"),
        (at(32_769, b"CD001"), "an ISO 9660 file system"),
        (at(0, b"hsqs"), "a SquashFS image"),
        (any(&sectors, b"LABELONE"), "an LVM physical volume"),
        (at(0, b"LUKS\xba\xbe"), "an encrypted volume (LUKS)"),
        (at(4086, b"SWAPSPACE2") || at(4086, b"SWAP-SPACE"), "swap space"),
        (any(&[0, 4096], &0xa92b_4efcu32.to_le_bytes()), "part of an MD RAID"),
        (any(&uberblocks, &0x00ba_b10cu64.to_le_bytes()), "part of a ZFS pool"),
        (at(510, &[0x55, 0xaa]), "an MBR partition table or a FAT file system"),
        (
            tail.chunks(512)
                .any(|sector| sector.starts_with(b"EFI PART") || sector.starts_with(&0xa92b_4efcu32.to_le_bytes())),
            "the end of a GPT partition table or of an MD RAID",
        ),
    ];
    known.into_iter().find(|(found, _)| *found).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    // Tests of raw devices, on RAM-backed devices that the tests make.
    use super::*;
    use crate::machine::ram::{self, RamDevice};

    const WANTED: DataSpec = DataSpec { seed: 6, data_bytes: 4 << 20 };

    fn ram() -> Option<RamDevice> {
        if let Err(error) = ram::check(1, WANTED.data_bytes) {
            eprintln!("skipped: {error}");
            return None;
        }
        Some(RamDevice::create(WANTED, &|_, _| (), &AtomicBool::new(false)).unwrap())
    }

    fn prepare(path: &Path, confirm: &str) -> Result<Target> {
        prepare_device(path, Path::new(confirm), 7, 0, &|_, _| (), &AtomicBool::new(false))
    }

    fn overwrite_head(path: &Path, edit: impl FnOnce(&mut [u8])) {
        let file = open(path, true).unwrap();
        let mut head = data::buffer(BLOCK_BYTES).unwrap();
        edit(&mut head);
        file.write_all_at(&head, 0).unwrap();
    }

    #[test]
    fn a_marked_device_is_read_and_an_unmarked_one_only_on_demand() {
        let Some(device) = ram() else { return };
        let path = device.path();
        let marked = target(&path, false).unwrap();
        assert_eq!((marked.data_bytes, marked.content_seed), (4 << 20, Some(6)));
        overwrite_head(&path, |_| ());
        let error = target(&path, false).unwrap_err();
        assert_eq!(error.kind(), LabErrorKind::Damaged);
        assert!(error.to_string().contains("--unmarked-devices"), "{error}");
        let unmarked = target(&path, true).unwrap();
        assert_eq!((unmarked.data_bytes, unmarked.content_seed), (4 << 20, None));
    }

    #[test]
    fn a_device_is_prepared_only_when_confirmed_and_without_a_signature() {
        let Some(device) = ram() else { return };
        let path = device.path();
        let name = path.display().to_string();
        assert_eq!(prepare(&path, "yes").unwrap_err().kind(), LabErrorKind::Usage);
        overwrite_head(&path, |head| head[..4].copy_from_slice(b"XFSB"));
        let error = prepare(&path, &name).unwrap_err();
        assert!(error.to_string().contains("XFS file system") && error.to_string().contains("wipefs"), "{error}");
        overwrite_head(&path, |_| ());
        let target = prepare(&path, &name).unwrap();
        assert_eq!((target.data_bytes, target.content_seed), (4 << 20, Some(7)));
        assert_eq!(super::target(&path, false).unwrap(), target);
    }

    #[test]
    fn a_device_that_is_open_exclusively_is_refused() {
        let Some(device) = ram() else { return };
        let path = device.path();
        let _holder = open(&path, false).unwrap();
        assert_eq!(target(&path, true).unwrap_err().kind(), LabErrorKind::Busy);
        assert_eq!(prepare(&path, &path.display().to_string()).unwrap_err().kind(), LabErrorKind::Busy);
    }

    #[test]
    fn a_mounted_device_is_refused() {
        let Some(mount) = system::mounts()
            .into_iter()
            .find(|mount| fs::metadata(&mount.source).is_ok_and(|meta| meta.file_type().is_block_device()))
        else {
            eprintln!("skipped: no mounted block device is visible");
            return;
        };
        let error = target(Path::new(&mount.source), true).unwrap_err();
        assert_eq!(error.kind(), LabErrorKind::Busy);
        assert!(error.to_string().contains("mounted at"), "{error}");
    }

    #[test]
    fn a_file_is_not_a_device() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(target(file.path(), true).unwrap_err().kind(), LabErrorKind::Usage);
    }

    #[test]
    fn signatures_are_found_at_their_offsets() {
        let cases: [(usize, &[u8], &str); 8] = [
            (1080, &[0x53, 0xef], "ext4"),
            (0, b"XFSB", "XFS"),
            ((64 << 10) + 64, b"_BHRfS_M", "Btrfs"),
            (512, b"EFI PART", "GPT"),
            (510, &[0x55, 0xaa], "MBR"),
            (512, b"LABELONE", "LVM"),
            (4086, b"SWAPSPACE2", "swap"),
            (0, b"LUKS\xba\xbe", "LUKS"),
        ];
        let tail = vec![0; 4096];
        for (offset, magic, name) in cases {
            let mut head = vec![0; HEAD_BYTES];
            assert_eq!(signature_of(&head, &tail), None);
            head[offset..offset + magic.len()].copy_from_slice(magic);
            assert!(signature_of(&head, &tail).is_some_and(|found| found.contains(name)), "{name}");
        }
        let mut tail = vec![0; 4096];
        tail[3584..3592].copy_from_slice(b"EFI PART");
        assert!(signature_of(&vec![0; HEAD_BYTES], &tail).is_some());
    }
}
