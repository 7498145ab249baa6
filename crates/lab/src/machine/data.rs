//! Files full of verifiable content: written by a few threads with large direct writes, reused when they already hold
//! the wanted content, extended or truncated when only the size differs.
//!
//! Kept true by:
//! 1. A file without the lab's marker is never written, cut or removed. A new one is created exclusively and marked
//!    first.
//! 2. The marker says `complete` only after all data was written and synced; an incomplete file is made again.
//! 3. Every byte was really written: space that is only reserved (unwritten extents) would be read without a device.
//! 4. A tenth of the disk stays free, of a large disk 4 GiB: the programs that run alongside the lab keep working.

use std::fs::{self, File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nofault_io::aligned::{IoBuf, PageKind};

use super::content::{self, BLOCK_BYTES, Header};
use super::system::{fail, human_bytes, unix_ms};
use crate::error::{LabError, LabErrorKind, Result};
use crate::paths::shown;
use crate::record::Target;

/// Bytes that stay free on a large disk. Of a small one it is a tenth.
const RESERVE_BYTES_MAX: u64 = 4 << 30;

/// Extension of data files, by which the clean-up of a folder finds them.
pub const EXTENSION: &str = "data";

/// Bytes of one write while a file is made.
const CHUNK_BYTES: u64 = 4 << 20;
/// Threads that write or read a file in chunks: two keep the device busy while the third computes the next bytes.
const WORKERS: usize = 3;
/// Number of blocks verified before an existing file is used again.
const SAMPLES: u64 = 64;

/// Callback for the progress of a file that is being made: gets the bytes written so far and the bytes to write.
pub type Progress<'a> = dyn Fn(u64, u64) + Sync + 'a;

/// The content that a data file must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataSpec {
    /// Seed of the content.
    pub seed: u64,
    /// Bytes of data, after the header block; a multiple of [`BLOCK_BYTES`].
    pub data_bytes: u64,
}

impl DataSpec {
    /// Checks that the content can be made: at least one block, and a whole number of blocks.
    ///
    /// # Errors
    /// `Usage` when it is not.
    pub(super) fn check(self) -> Result<()> {
        if self.data_bytes == 0 || !self.data_bytes.is_multiple_of(BLOCK_BYTES as u64) {
            let message =
                format!("{} bytes of data: must be a multiple of {BLOCK_BYTES}, and not zero", self.data_bytes);
            return Err(LabError::new(LabErrorKind::Usage, message));
        }
        match self.data_bytes.checked_add(BLOCK_BYTES as u64) {
            Some(total) if i64::try_from(total).is_ok() => Ok(()),
            _ => Err(LabError::new(LabErrorKind::Usage, "more data than a file can hold")),
        }
    }
}

/// Makes sure that `path` is a file with the wanted content, and returns the target reading it. An existing file is
/// reused: the lab verifies its header and some blocks, then writes only the missing part.
///
/// # Errors
/// `Damaged` for a file without the lab's marker; `NoSpace` when less than a tenth of the disk and less than 4 GiB would stay free or the
/// disk fills up during the writing; `Interrupted`. After the last two the file is gone. `NoPermission`, or another
/// error of the system.
pub fn ensure_file(path: &Path, wanted: DataSpec, progress: &Progress<'_>, cancel: &AtomicBool) -> Result<Target> {
    wanted.check()?;
    let old = inspect(path)?;
    let keep_bytes = match old {
        Some(header) if header.complete && header.seed == wanted.seed && verify_samples(path, header)? => {
            header.data_bytes.min(wanted.data_bytes)
        }
        _ => 0,
    };
    if old.is_none_or(|header| header.data_bytes != wanted.data_bytes || keep_bytes != wanted.data_bytes) {
        check_space(path, wanted.data_bytes)?;
        make(path, old.is_none(), wanted, keep_bytes, progress, cancel)?;
    }
    Ok(target("file", &[path], wanted))
}

/// Writes the file's content from data byte `keep_bytes` on. Removes the file on failure.
fn make(
    path: &Path,
    is_new: bool,
    wanted: DataSpec,
    keep_bytes: u64,
    progress: &Progress<'_>,
    cancel: &AtomicBool,
) -> Result<()> {
    let file = open_marked(path, is_new, wanted)?;
    let made = reserve(&file, path, wanted.data_bytes)
        .and_then(|()| write_content(&file, path, wanted, keep_bytes, progress, cancel));
    made.inspect_err(|_| {
        // An incomplete file is of no use and may be the reason why the disk is full. It carries the marker: it was
        // opened above.
        let _ = fs::remove_file(path);
    })
}

/// Returns the paths of `count` files with a common name: `name-0.data`, `name-1.data`, …
pub fn file_names(folder: &Path, name: &str, count: u32) -> Vec<PathBuf> {
    (0..count).map(|number| folder.join(format!("{name}-{number}.{EXTENSION}"))).collect()
}

/// Makes sure that `folder` holds the files `name-0.data`, `name-1.data`, …, all with the same content, and returns one
/// target over all of them.
///
/// # Errors
/// As [`ensure_file`].
pub fn ensure_files(
    folder: &Path,
    name: &str,
    count: u32,
    wanted: DataSpec,
    progress: &Progress<'_>,
    cancel: &AtomicBool,
) -> Result<Target> {
    let paths = file_names(folder, name, count);
    let total = wanted.data_bytes.saturating_mul(u64::from(count));
    for (number, path) in paths.iter().enumerate() {
        let before = wanted.data_bytes.saturating_mul(number as u64);
        ensure_file(path, wanted, &|done, _| progress(before.saturating_add(done), total), cancel)?;
    }
    let paths: Vec<&Path> = paths.iter().map(PathBuf::as_path).collect();
    Ok(target(name, &paths, wanted))
}

/// Builds the target over paths holding the wanted content.
pub fn target(label: &str, paths: &[&Path], wanted: DataSpec) -> Target {
    Target {
        label: label.to_owned(),
        paths: paths.iter().map(|path| path.to_path_buf()).collect(),
        data_bytes: wanted.data_bytes,
        content_seed: Some(wanted.seed),
    }
}

/// Reads the header of the file at `path`; `None` when there is no file.
///
/// # Errors
/// `Damaged` when the path holds something without the lab's marker, or the system's error.
pub fn inspect(path: &Path) -> Result<Option<Header>> {
    let meta = match fs::symlink_metadata(path) {
        Ok(meta) => meta,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(fail("look at", path, &error)),
    };
    let not_ours = |why: &dyn std::fmt::Display| {
        let message = format!("{} {why}: it is left alone; move it away or choose another folder", shown(&path));
        LabError::new(LabErrorKind::Damaged, message)
    };
    if !meta.is_file() {
        return Err(not_ours(&"is not a file of the lab"));
    }
    let file = File::open(path).map_err(|error| fail("open", path, &error))?;
    let mut header = read_header(&file, path)?.map_err(|error| not_ours(&error))?;
    header.complete &= meta.len() == header.data_bytes.saturating_add(BLOCK_BYTES as u64);
    Ok(Some(header))
}

/// Reads the header of an open file or device. The outer error is the system's; the inner error says that the block is
/// not a header of the lab.
pub(super) fn read_header(file: &File, path: &Path) -> Result<std::result::Result<Header, LabError>> {
    // Through an aligned buffer, as the file may be open with O_DIRECT.
    let mut block = buffer(BLOCK_BYTES)?;
    match file.read_exact_at(&mut block, 0) {
        Ok(()) => Ok(Header::decode(&block)),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(Header::decode(&[])),
        Err(error) => Err(fail("read", path, &error)),
    }
}

/// Removes a file of the lab; true when there was one.
///
/// # Errors
/// `Damaged` for a file without the marker, or the system's error.
pub fn remove_file(path: &Path) -> Result<bool> {
    match inspect(path)? {
        None => Ok(false),
        Some(_) => fs::remove_file(path).map(|()| true).map_err(|error| fail("remove", path, &error)),
    }
}

/// Verifies some blocks, spread over the file, byte by byte; true when all are correct.
///
/// # Errors
/// The system's error when a read fails; a short file is `Ok(false)`.
pub fn verify_samples(path: &Path, header: Header) -> Result<bool> {
    let file = File::open(path).map_err(|error| fail("open", path, &error))?;
    // Without this each sample would pull a whole read-ahead window into the cache.
    let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random);
    let block_count = header.data_bytes / BLOCK_BYTES as u64;
    let mut block = buffer(BLOCK_BYTES)?;
    let mut random = fastrand::Rng::with_seed(header.seed);
    for sample in 0..SAMPLES.min(block_count) {
        let index = match sample {
            0 => 0,
            1 => block_count - 1,
            _ => random.u64(0..block_count),
        };
        match file.read_exact_at(&mut block, content::block_offset(index)) {
            Ok(()) if content::check_block_fully(&block, header.seed, index) => {}
            Ok(()) => return Ok(false),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(false),
            Err(error) => return Err(fail("read", path, &error)),
        }
    }
    Ok(true)
}

/// Refuses a file that would leave less than a tenth of the disk, and less than 4 GiB, free. The space that the file already occupies counts
/// as free.
///
/// # Errors
/// `NoSpace` with the figures, or the system's error.
pub fn check_space(path: &Path, data_bytes: u64) -> Result<()> {
    let folder = folder_of(path);
    let usable = room_bytes(path)?;
    if data_bytes <= usable {
        return Ok(());
    }
    let message = format!(
        "{} of data do not fit in {}: {} can be used there, as a tenth of the disk, at most 4 GiB, stays free; ask for less data, free \
         some space or choose another folder",
        human_bytes(data_bytes),
        shown(&folder),
        human_bytes(usable)
    );
    Err(LabError::new(LabErrorKind::NoSpace, message))
}

/// Largest size in bytes that a file at `path` may have: the bytes that the lab may use on its disk plus the bytes that
/// the file already occupies.
///
/// # Errors
/// The system's error when the disk cannot be queried.
pub fn room_bytes(path: &Path) -> Result<u64> {
    let held = fs::symlink_metadata(path).map(|meta| std::os::unix::fs::MetadataExt::blocks(&meta) * 512).unwrap_or(0);
    Ok(usable_bytes(folder_of(path))?.saturating_add(held))
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Bytes that the lab may use on the file system of `folder`: the free bytes, less a tenth of the whole disk, but no
/// more than 4 GiB less.
///
/// # Errors
/// The system's error when the file system cannot be queried.
pub fn usable_bytes(folder: &Path) -> Result<u64> {
    let stat = rustix::fs::statvfs(folder).map_err(|error| fail("look at", folder, &error.into()))?;
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    Ok(usable_of(free, stat.f_blocks.saturating_mul(stat.f_frsize)))
}

/// Bytes that the lab may use of the free bytes of a disk.
fn usable_of(free_bytes: u64, disk_bytes: u64) -> u64 {
    free_bytes.saturating_sub((disk_bytes / 10).min(RESERVE_BYTES_MAX))
}

/// Creates a file in `folder` without a name (`O_TMPFILE`). On a file system without such files it is created under a
/// name removed at once.
///
/// # Errors
/// The system's error when no file can be created.
pub fn nameless(folder: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    if let Ok(file) = options.clone().custom_flags(libc::O_TMPFILE).open(folder) {
        return Ok(file);
    }
    let path = folder.join(format!("nofault-lab-nameless.{:016x}", fastrand::u64(..)));
    let file = options.create_new(true).open(&path).map_err(|error| fail("make", &path, &error))?;
    fs::remove_file(&path).map_err(|error| fail("remove", &path, &error))?;
    Ok(file)
}

/// Opens a data file for writing, past the page cache where the file system allows, and writes an incomplete marker.
fn open_marked(path: &Path, create: bool, wanted: DataSpec) -> Result<File> {
    let file = open_direct(path, create)?;
    if let Err(error) = write_header(&file, path, wanted, false) {
        if create {
            let _ = fs::remove_file(path);
        }
        return Err(error);
    }
    Ok(file)
}

/// Opens a file for reading and writing, past the page cache where the file system allows.
pub(super) fn open_direct(path: &Path, create: bool) -> Result<File> {
    let open = |flags: i32, create: bool| {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(create).custom_flags(flags | libc::O_NOFOLLOW | libc::O_CLOEXEC);
        options.mode(0o600).open(path)
    };
    let file = match open(libc::O_DIRECT, create) {
        // The file may have been created before the flag was refused.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => open(0, create && !path.exists()),
        other => other,
    };
    file.map_err(|error| fail("write", path, &error))
}

/// Sets the file's length and allocates its blocks, so that parallel writers do not wait for each other to extend it.
fn reserve(file: &File, path: &Path, data_bytes: u64) -> Result<()> {
    let total = data_bytes + BLOCK_BYTES as u64;
    file.set_len(total).map_err(|error| fail("resize", path, &error))?;
    match rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, total) {
        Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => Ok(()),
        Err(error) => Err(fail("reserve space for", path, &error.into())),
    }
}

fn write_header(file: &File, path: &Path, wanted: DataSpec, complete: bool) -> Result<()> {
    let header = Header { seed: wanted.seed, data_bytes: wanted.data_bytes, created_unix_ms: unix_ms(), complete };
    let mut block = buffer(BLOCK_BYTES)?;
    block.copy_from_slice(&header.encode());
    file.write_all_at(&block, 0).map_err(|error| fail("write", path, &error))?;
    file.sync_data().map_err(|error| fail("sync", path, &error))
}

/// Fills an open file or device from data byte `from_bytes` on, and marks it complete. Its header must carry the lab's
/// marker and say incomplete.
///
/// # Errors
/// `Interrupted`, `NoSpace`, or the system's error. The header then still says incomplete.
pub(super) fn write_content(
    file: &File,
    path: &Path,
    wanted: DataSpec,
    from_bytes: u64,
    progress: &Progress<'_>,
    cancel: &AtomicBool,
) -> Result<()> {
    write_header(file, path, wanted, false)?;
    let fill = |at: u64, bytes: &mut [u8]| {
        let first = at / BLOCK_BYTES as u64;
        for (number, block) in bytes.chunks_exact_mut(BLOCK_BYTES).enumerate() {
            content::fill_block(block, wanted.seed, first + number as u64);
        }
        file.write_all_at(bytes, content::block_offset(first)).map_err(|error| fail("write", path, &error))
    };
    let stopped = || format!("stopped while writing {}", shown(&path));
    in_chunks(from_bytes..wanted.data_bytes, fill, progress, cancel, stopped)?;
    // Data before the `complete` flag: a power cut in between leaves a file made again.
    file.sync_all().map_err(|error| fail("sync", path, &error))?;
    write_header(file, path, wanted, true)?;
    // Where the writes were buffered, they would leave a warm cache behind.
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
    Ok(())
}

/// Reads a file once, front to back, past the page cache where the file system allows, and discards the data.
///
/// Below the kernel there are caches that the lab cannot empty: a host's page cache, an array's, a drive's. They may
/// serve data read before, so before two files are compared both must have been read once.
///
/// # Errors
/// `Interrupted`, or the system's error.
pub fn read_through(path: &Path, progress: &Progress<'_>, cancel: &AtomicBool) -> Result<()> {
    let open = |flags| OpenOptions::new().read(true).custom_flags(flags | libc::O_CLOEXEC).open(path);
    let file = open(libc::O_DIRECT).or_else(|_| open(0)).map_err(|error| fail("open", path, &error))?;
    let len_bytes = file.metadata().map_err(|error| fail("look at", path, &error))?.len();
    let read = |at: u64, bytes: &mut [u8]| match file.read_exact_at(bytes, at) {
        Err(error) => Err(fail("read", path, &error)),
        Ok(()) => Ok(()),
    };
    // A direct read ends on a whole block.
    let whole = len_bytes / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
    in_chunks(0..whole, read, progress, cancel, || format!("stopped while reading {}", shown(&path)))?;
    let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
    Ok(())
}

/// Calls a function for each chunk of `range` on a few threads, each with its own buffer. Stops at the first
/// error.
fn in_chunks(
    range: Range<u64>,
    work: impl Fn(u64, &mut [u8]) -> Result<()> + Sync,
    progress: &Progress<'_>,
    cancel: &AtomicBool,
    stopped: impl Fn() -> String + Sync,
) -> Result<()> {
    let total = range.end.saturating_sub(range.start);
    let (next, done, failed) = (AtomicU64::new(range.start), AtomicU64::new(0), AtomicBool::new(false));
    let first_error = Mutex::new(None);
    let go = || -> Result<()> {
        let mut chunk = buffer(CHUNK_BYTES.min(range.end) as usize)?;
        while !failed.load(Ordering::Relaxed) {
            if cancel.load(Ordering::Relaxed) {
                return Err(LabError::new(LabErrorKind::Interrupted, stopped()));
            }
            let at = next.fetch_add(CHUNK_BYTES, Ordering::Relaxed);
            if at >= range.end {
                break;
            }
            let bytes = &mut chunk[..CHUNK_BYTES.min(range.end - at) as usize];
            work(at, bytes)?;
            progress(done.fetch_add(bytes.len() as u64, Ordering::Relaxed) + bytes.len() as u64, total);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                if let Err(error) = go() {
                    failed.store(true, Ordering::Relaxed);
                    // A poisoned lock means another worker panicked: the scope passes that on.
                    if let Ok(mut first) = first_error.lock() {
                        first.get_or_insert(error);
                    }
                }
            });
        }
    });
    first_error.into_inner().ok().flatten().map_or(Ok(()), Err)
}

/// Allocates aligned memory for direct reads and writes.
pub(super) fn buffer(len_bytes: usize) -> Result<IoBuf> {
    let pages = if len_bytes >= 2 << 20 { PageKind::Huge } else { PageKind::Small };
    IoBuf::zeroed(len_bytes, pages).map_err(LabError::from)
}

#[cfg(test)]
mod tests {
    // Tests of the data files: made, reused, resized, refused, cancelled, and out of space.
    use super::*;

    const MIB: u64 = 1 << 20;

    fn ensure(path: &Path, seed: u64, data_bytes: u64) -> Result<Target> {
        ensure_file(path, DataSpec { seed, data_bytes }, &|_, _| (), &AtomicBool::new(false))
    }

    fn all_blocks_verify(path: &Path, seed: u64, data_bytes: u64) -> bool {
        let bytes = fs::read(path).unwrap();
        let (head, data) = bytes.split_at(BLOCK_BYTES);
        assert_eq!(Header::decode(head).unwrap().data_bytes, data_bytes);
        data.len() as u64 == data_bytes
            && data.chunks(BLOCK_BYTES).enumerate().all(|(i, block)| content::check_block_fully(block, seed, i as u64))
    }

    #[test]
    fn a_file_is_made_whole_and_used_again_without_writing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        let most = AtomicU64::new(0);
        let wanted = DataSpec { seed: 5, data_bytes: 9 * MIB + 4096 };
        let progress = |done, total| {
            assert_eq!(total, wanted.data_bytes);
            most.fetch_max(done, Ordering::Relaxed);
        };
        let target = ensure_file(&path, wanted, &progress, &AtomicBool::new(false)).unwrap();
        assert_eq!((target.data_bytes, target.content_seed), (wanted.data_bytes, Some(5)));
        assert_eq!(most.into_inner(), wanted.data_bytes);
        assert!(all_blocks_verify(&path, 5, wanted.data_bytes));
        let written = fs::metadata(&path).unwrap().modified().unwrap();
        ensure(&path, 5, wanted.data_bytes).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), written, "reused, not written again");
    }

    #[test]
    fn a_file_of_another_size_or_seed_is_changed_to_the_wanted_content() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        for (seed, data_bytes) in [(1, MIB), (1, 5 * MIB), (1, 2 * MIB), (9, 2 * MIB)] {
            ensure(&path, seed, data_bytes).unwrap();
            assert!(all_blocks_verify(&path, seed, data_bytes), "seed {seed}, {data_bytes} bytes");
        }
    }

    #[test]
    fn a_damaged_or_unfinished_file_is_made_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        let cut = |path: &Path| OpenOptions::new().write(true).open(path).unwrap().set_len(MIB).unwrap();
        let flip = |path: &Path| {
            // Damage every block, because only some are checked.
            let file = OpenOptions::new().write(true).open(path).unwrap();
            (0..512).for_each(|index| file.write_all_at(b"x", content::block_offset(index) + 99).unwrap());
        };
        let unfinished = |path: &Path| {
            let header = Header { complete: false, ..inspect(path).unwrap().unwrap() };
            OpenOptions::new().write(true).open(path).unwrap().write_all_at(&header.encode(), 0).unwrap();
            flip(path);
        };
        let damages: [&dyn Fn(&Path); 3] = [&cut, &flip, &unfinished];
        for damage in damages {
            ensure(&path, 1, 2 * MIB).unwrap();
            damage(&path);
            ensure(&path, 1, 2 * MIB).unwrap();
            assert!(all_blocks_verify(&path, 1, 2 * MIB));
        }
    }

    #[test]
    fn a_foreign_file_is_neither_written_nor_removed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("precious"), folder.path().join("link"));
        for content in [&b""[..], b"short", &[7; 3 * BLOCK_BYTES]] {
            fs::write(&path, content).unwrap();
            for error in [ensure(&path, 1, MIB).unwrap_err(), remove_file(&path).unwrap_err()] {
                assert_eq!(error.kind(), LabErrorKind::Damaged, "{error}");
                assert!(error.to_string().contains("choose another folder"), "{error}");
            }
            assert_eq!(fs::read(&path).unwrap(), content);
        }
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert_eq!(ensure(&link, 1, MIB).unwrap_err().kind(), LabErrorKind::Damaged);
        assert_eq!(ensure(folder.path(), 1, MIB).unwrap_err().kind(), LabErrorKind::Damaged);
    }

    #[test]
    fn a_cancelled_file_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        let cancel = AtomicBool::new(false);
        let wanted = DataSpec { seed: 1, data_bytes: 64 * MIB };
        let error = ensure_file(&path, wanted, &|_, _| cancel.store(true, Ordering::Relaxed), &cancel).unwrap_err();
        assert_eq!(error.kind(), LabErrorKind::Interrupted);
        assert!(!path.exists());
    }

    #[test]
    fn more_than_the_disk_holds_is_refused_before_anything_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        let error = ensure(&path, 1, 1 << 50).unwrap_err();
        assert_eq!(error.kind(), LabErrorKind::NoSpace);
        assert!(error.to_string().contains("a tenth of the disk"), "{error}");
        assert!(!path.exists());
        assert_eq!(ensure(&path, 1, 100).unwrap_err().kind(), LabErrorKind::Usage);
        assert_eq!(ensure(&path, 1, 0).unwrap_err().kind(), LabErrorKind::Usage);
        assert_eq!(ensure(&path, 1, u64::MAX - 4095).unwrap_err().kind(), LabErrorKind::Usage);
    }

    #[test]
    fn a_large_disk_that_is_nearly_full_takes_small_data() {
        const GIB: u64 = 1 << 30;
        assert_eq!(usable_of(50 * GIB, 100 * GIB), 46 * GIB);
        assert_eq!(usable_of(20 * GIB, 250 * GIB), 16 * GIB, "less than a tenth of it is free");
        assert_eq!(usable_of(4 * GIB, 250 * GIB), 0);
        assert_eq!(usable_of(3 * GIB, 10 * GIB), 2 * GIB, "a tenth of a small disk");
    }

    #[test]
    fn several_files_are_one_target() {
        let folder = tempfile::tempdir().unwrap();
        let wanted = DataSpec { seed: 2, data_bytes: MIB };
        let target = ensure_files(folder.path(), "async", 3, wanted, &|_, _| (), &AtomicBool::new(false)).unwrap();
        assert_eq!((target.label.as_str(), target.paths.len()), ("async", 3));
        for path in &target.paths {
            assert!(all_blocks_verify(Path::new(path), 2, MIB));
            assert!(remove_file(Path::new(path)).unwrap());
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_made_file_has_no_unwritten_extents() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        ensure(&path, 1, 8 * MIB).unwrap();
        match std::process::Command::new("filefrag").arg("-v").arg(&path).output() {
            Ok(out) if out.status.success() => {
                let text = String::from_utf8_lossy(&out.stdout).into_owned();
                assert!(!text.contains("unwritten"), "{text}");
            }
            _ => eprintln!("skipped: filefrag (e2fsprogs) is not here or cannot read this file system"),
        }
    }

    const SMALL_DISK: &str = "NOFAULT_TEST_SMALL_DISK";

    /// Fills the disk at a path. Not a test by itself: the test below runs it in a child process on a disk of 4 MiB.
    #[test]
    fn fills_the_disk_that_it_is_given() {
        let Ok(folder) = std::env::var(SMALL_DISK) else { return };
        let path = Path::new(&folder).join("data");
        let wanted = DataSpec { seed: 1, data_bytes: 64 * MIB };
        let error = make(&path, true, wanted, 0, &|_, _| (), &AtomicBool::new(false)).unwrap_err();
        assert_eq!(error.kind(), LabErrorKind::NoSpace, "{error}");
        assert!(!path.exists());
        println!("refused: {error}");
    }

    #[test]
    fn a_disk_that_fills_up_during_the_writing_keeps_no_unfinished_file() {
        let folder = tempfile::tempdir().unwrap();
        // In a new mount namespace, which ends with the process.
        let script = "mount -t tmpfs -o size=4m none \"$0\" && exec \"$1\" --exact \
                  machine::data::tests::fills_the_disk_that_it_is_given --nocapture";
        let test = std::env::current_exe().unwrap();
        let mut command = std::process::Command::new("unshare");
        command.args(["-m", "sh", "-c", script]).arg(folder.path()).arg(test).env(SMALL_DISK, folder.path());
        match command.output() {
            Ok(out) if String::from_utf8_lossy(&out.stdout).contains("running 1 test") => {
                let text = String::from_utf8_lossy(&out.stdout).into_owned();
                assert!(out.status.success() && text.contains("refused: "), "{text}");
            }
            _ => eprintln!("skipped: a small disk (tmpfs in a mount namespace) needs root"),
        }
    }

    #[test]
    fn a_file_is_read_to_its_last_whole_block_unless_cancelled_or_absent() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        fs::write(&path, vec![7; 9 * MIB as usize + 4096 + 100]).unwrap();
        let most = AtomicU64::new(0);
        let progress = |done, _| {
            most.fetch_max(done, Ordering::Relaxed);
        };
        read_through(&path, &progress, &AtomicBool::new(false)).unwrap();
        assert_eq!(most.into_inner(), 9 * MIB + 4096);
        let stopped = read_through(&path, &|_, _| (), &AtomicBool::new(true)).unwrap_err();
        assert!(stopped.kind() == LabErrorKind::Interrupted && stopped.to_string().contains("reading"), "{stopped}");
        let missing = read_through(&folder.path().join("none"), &|_, _| (), &AtomicBool::new(false)).unwrap_err();
        assert!(missing.to_string().contains("none"), "{missing}");
    }
}
