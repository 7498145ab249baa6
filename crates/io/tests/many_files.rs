//! Rings and threads belong to the process: many open files, each with several queues, take a descriptor each. One test, as it counts the
//! descriptors and threads of its process.

#![expect(clippy::unwrap_used, reason = "a test stops at an unexpected error")]

use std::sync::Arc;

use nofault_io::aligned::{IoBuf, PageKind};
use nofault_io::completion::{Op, OpKind};
use nofault_io::disk::{Directory as _, Disk, Queue, QueueOptions};
use nofault_io::folder::{Backend, Folder};
use nofault_io::uring::UringDisk;

const FILES: usize = 40;
/// Rings that may be kept, and the descriptor by which the test counts.
const OTHERS: usize = 5;

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Returns the number of threads of this process with this name.
fn threads(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
    names.filter(|comm| comm.trim() == name).count()
}

fn push(queue: &mut dyn Queue, op: OpKind) {
    queue.push(Op::new(0, 0, op)).unwrap();
}

fn check(backend: Backend) {
    let scratch = tempfile::tempdir().unwrap();
    let folder = Folder::open(scratch.path(), backend).unwrap();
    let before = descriptors();
    let disks: Vec<Arc<dyn Disk>> = (0..FILES).map(|file| folder.create(&format!("{file}")).unwrap()).collect();
    let of_each = disks.iter().flat_map(|disk| [disk; 4]);
    let mut queues: Vec<Box<dyn Queue>> = of_each.map(|disk| disk.queue(&QueueOptions::default()).unwrap()).collect();
    let mut done = Vec::new();
    for queue in &mut queues {
        push(&mut **queue, OpKind::write(IoBuf::zeroed(4096, PageKind::Small).unwrap(), false));
        push(&mut **queue, OpKind::Sync);
        queue.reap(2, &mut done).unwrap();
    }
    assert!(done.len() == 2 * queues.len() && done.iter().all(|done| done.result.is_ok()), "{done:?}");
    assert!(descriptors() <= before + FILES + OTHERS, "{} descriptors for {FILES} files", descriptors() - before);
    // A queue whose descriptor is polled keeps it, with nothing in flight, and gives it back when it is polled no more.
    let watched = &mut queues[0];
    let fd = std::os::fd::AsRawFd::as_raw_fd(&watched.ready_fd().unwrap());
    push(&mut **watched, OpKind::Sync);
    watched.reap(1, &mut done).unwrap();
    assert_eq!(std::os::fd::AsRawFd::as_raw_fd(&watched.ready_fd().unwrap()), fd);
    watched.end_watch();
    push(&mut **watched, OpKind::Sync);
    watched.reap(1, &mut done).unwrap();
    assert!(done.iter().all(|done| done.result.is_ok()));
    // One reader at a time needs few threads, however many files it reads.
    assert!(threads("nofault-io") <= 8, "{} threads", threads("nofault-io"));
    drop((queues, disks));
    assert_eq!(descriptors(), before, "all is given back with the last file");
    // The kernel lists a thread for a moment after it has ended.
    while threads("nofault-io") > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn many_open_files_share_rings_and_threads() {
    match UringDisk::ring_refused() {
        Some(refused) => eprintln!("not checked: {refused}"),
        None => check(Backend::Uring),
    }
    check(Backend::Psync);
}
