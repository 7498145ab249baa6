//! One body of checks over every kind of disk on files: ring and thread pool, alone and striped, direct and buffered,
//! on a file system with a device and on one in memory. Queues are bound to a thread or free, and their memory is
//! registered or not.

mod common;

use std::path::Path;
use std::sync::Arc;

use common::keeps_the_contract;
use nofault_io::completion::{Op, OpKind};
use nofault_io::disk::{DirectIo, Directory as _, Disk, FileOptions, QueueOptions};
use nofault_io::error::{ErrorKind, Result};
use nofault_io::folder::{Backend, Folder, open_disk};
use nofault_io::overlay::Overlay;
use nofault_io::psync::PsyncDisk;
use nofault_io::striped::StripedDisk;
use nofault_io::uring::UringDisk;

/// Runs the body over disks that `open` makes, on a device and in memory, direct and buffered.
fn keeps_the_contract_everywhere<D: Disk>(open: fn(&Path, &FileOptions) -> Result<D>) {
    // The build folder is on a real file system on most machines; the system's folder for temporary files often is not.
    for parent in [Path::new(env!("CARGO_TARGET_TMPDIR")), Path::new("/dev/shm")] {
        let folder = match tempfile::tempdir_in(parent) {
            Ok(folder) => folder,
            Err(error) => {
                eprintln!("not checked in {}: {error}", parent.display());
                continue;
            }
        };
        for direct in [DirectIo::Prefer, DirectIo::Never] {
            let path = folder.path().join(format!("{direct:?}"));
            let disk = match open(&path, &FileOptions { direct, create: true, ..FileOptions::default() }) {
                Ok(disk) => disk,
                Err(error) if matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::NoPermission) => {
                    return eprintln!("not checked: {error}");
                }
                Err(error) => panic!("{error}"),
            };
            for single_thread in [false, true] {
                keeps_the_contract(&disk, &QueueOptions { single_thread, ..QueueOptions::default() });
            }
            eprintln!("{:?}", disk.info());
        }
    }
}

#[test]
fn a_ring_keeps_the_contract_everywhere() {
    keeps_the_contract_everywhere(UringDisk::open);
}

#[test]
fn a_pool_of_threads_keeps_the_contract_everywhere() {
    keeps_the_contract_everywhere(|path, options| PsyncDisk::open(path, options, 4));
}

#[test]
fn a_pool_of_one_thread_keeps_the_contract() {
    keeps_the_contract_everywhere(|path, options| PsyncDisk::open(path, options, 1));
}

/// Stripes a disk over three disks that `open` makes.
fn striped<D: Disk + 'static>(
    path: &Path,
    options: &FileOptions,
    open: fn(&Path, &FileOptions) -> Result<D>,
) -> Result<StripedDisk> {
    let child =
        |index: u8| open(&path.with_extension(index.to_string()), options).map(|disk| Arc::new(disk) as Arc<dyn Disk>);
    StripedDisk::new((0..3).map(child).collect::<Result<_>>()?, 64 << 10)
}

#[test]
fn a_striped_disk_keeps_the_contract_over_rings() {
    keeps_the_contract_everywhere(|path, options| striped(path, options, UringDisk::open));
}

#[test]
fn a_striped_disk_keeps_the_contract_over_pools() {
    keeps_the_contract_everywhere(|path, options| {
        striped(path, options, |path, options| PsyncDisk::open(path, options, 2))
    });
}

/// Four stripes lie on three disks: the first disk gets two operations, and takes one at a time.
#[test]
fn an_overlay_keeps_the_contract_and_leaves_the_file_below_as_it_was() {
    for (backend, direct) in [(Backend::Auto, DirectIo::Prefer), (Backend::Psync, DirectIo::Never)] {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let bytes: Vec<u8> = (0..64 << 10).map(|at: u32| (at / 7) as u8).collect();
        std::fs::write(folder.path().join("data"), &bytes).unwrap();
        let below = Folder::open(folder.path(), backend).unwrap().with_direct(direct).read_only();
        let overlay = Overlay::new(Arc::new(below));
        for name in ["data", "new"] {
            let disk = if name == "new" { overlay.create(name) } else { overlay.open(name) }.unwrap();
            keeps_the_contract(&*disk, &QueueOptions::default());
        }
        assert_eq!(std::fs::read(folder.path().join("data")).unwrap(), bytes);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}

#[test]
fn operations_that_wait_for_the_only_busy_disk_are_submitted_when_it_is_free() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let options = FileOptions { direct: DirectIo::Never, create: true, ..FileOptions::default() };
    let open = |path: &Path, options: &FileOptions| PsyncDisk::open(path, options, 2);
    let disk = striped(&folder.path().join("disk"), &options, open).expect("a striped disk");
    let mut queue = disk.queue(&QueueOptions { depth_max: 1, ..QueueOptions::default() }).expect("a queue");
    common::run(&mut *queue, 0, OpKind::write(common::zeroed(256 << 10), false));
    // Which disk ends last is chance: often enough it is the first.
    for _ in 0..500 {
        common::read(&mut *queue, 0, 256 << 10);
    }
}

/// Reads only: a device of this machine may hold data.
#[test]
fn a_block_device_has_a_length_an_alignment_and_refuses_writes_when_opened_for_reading() {
    let options = FileOptions { direct: DirectIo::Require, write: false, create: false };
    let devices = std::fs::read_dir("/sys/class/block").into_iter().flatten().flatten();
    let disk = devices.map(|entry| Path::new("/dev").join(entry.file_name())).find_map(|path| {
        let disk = open_disk(&path, &options, Backend::Auto).inspect_err(|error| eprintln!("{error}")).ok()?;
        (disk.len_bytes().ok()? >= 1 << 20).then_some(disk)
    });
    let Some(disk) = disk else { return eprintln!("not checked: no block device that this user may read") };
    let info = disk.info();
    eprintln!("{info:?}, {} bytes", disk.len_bytes().expect("length"));
    assert!(info.direct && info.align_bytes >= 512, "{info:?}");
    let mut queue = disk.queue(&QueueOptions::default()).expect("a queue");
    common::read(&mut *queue, 0, info.align_bytes);
    let len_bytes = disk.len_bytes().expect("length");
    common::push(&mut *queue, 1, len_bytes, OpKind::Read(common::zeroed(info.align_bytes)));
    let error = common::reap_all(&mut *queue).pop().expect("one").result.expect_err("beyond the end");
    assert_eq!(error.kind(), ErrorKind::Short, "{error}");
    for kind in [OpKind::write(common::zeroed(info.align_bytes), false), OpKind::Allocate { len_bytes: 4096 }] {
        let refused = queue.push(Op::new(1, 0, kind)).expect_err("opened for reading");
        assert_eq!(refused.error.kind(), ErrorKind::NoPermission, "{}", refused.error);
    }
    assert_eq!(disk.truncate(0).expect_err("a device").kind(), ErrorKind::Unsupported);
}
