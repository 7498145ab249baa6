//! One body of checks over every kind of disk: ring and thread pool, direct and buffered, on a file system with a
//! device and on one in memory, queues bound to a thread and free ones, memory registered and not.

mod common;

use std::path::Path;

use common::keeps_the_contract;
use nofault_io::disk::{DirectIo, Disk, FileOptions, QueueOptions};
use nofault_io::error::{ErrorKind, Result};
use nofault_io::psync::PsyncDisk;
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
