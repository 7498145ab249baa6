//! Rings and threads belong to the process: many open files, each with several queues, take a descriptor each, and none waits for
//! another's device. The tests count the descriptors and threads of their process, and so run one after the other.

#![expect(clippy::unwrap_used, reason = "a test stops at an unexpected error")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use nofault_io::aligned::{IoBuf, PageKind, StableBytes};
use nofault_io::completion::{Op, OpKind, WriteData};
use nofault_io::disk::{Directory as _, Disk, Queue, QueueOptions};
use nofault_io::folder::{Backend, Folder};
use nofault_io::uring::UringDisk;

const FILES: usize = 40;
/// Rings that may be kept, and the descriptor by which the test counts.
const OTHERS: usize = 5;
/// Time after which the test calls a wait one that never ends.
const LIMIT: Duration = Duration::from_secs(60);

/// Locked by the test that runs.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

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
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    match UringDisk::ring_refused() {
        Some(refused) => eprintln!("not checked: {refused}"),
        None => check(Backend::Uring),
    }
    check(Backend::Psync);
}

/// Bytes of a write: the thread of the pool that drops them stays until it may go on, as in a device that does not answer.
struct Stuck {
    bytes: IoBuf,
    is_met: Arc<AtomicBool>,
    go_on: Mutex<mpsc::Receiver<()>>,
}

// SAFETY: the bytes are an `IoBuf`'s, which is `StableBytes` itself.
unsafe impl StableBytes for Stuck {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Stuck {
    fn drop(&mut self) {
        if std::thread::current().name() == Some("nofault-io") {
            self.is_met.store(true, Ordering::SeqCst);
            let _ = self.go_on.get_mut().unwrap().recv();
        }
    }
}

#[test]
fn the_end_of_the_last_file_does_not_wait_for_an_operation_that_another_has_abandoned() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let folder = Folder::open(scratch.path(), Backend::Psync).unwrap();
    let last = folder.create("last").unwrap();
    let is_met = Arc::<AtomicBool>::default();
    let mut releases = Vec::new();
    // The queue must be dropped while the thread writes.
    for number in 0..1000 {
        let disk = folder.create(&number.to_string()).unwrap();
        let mut queue = disk.queue(&QueueOptions::default()).unwrap();
        let (release, go_on) = mpsc::channel();
        releases.push(release);
        let bytes = IoBuf::zeroed(1 << 20, PageKind::Small).unwrap();
        let stuck = Stuck { bytes, is_met: Arc::clone(&is_met), go_on: Mutex::new(go_on) };
        push(&mut *queue, OpKind::Write { data: WriteData::Gather(vec![Arc::new(stuck)]), durable: true });
        queue.submit().unwrap();
        std::thread::sleep(Duration::from_micros(300));
        drop((queue, disk));
        if is_met.load(Ordering::SeqCst) {
            break;
        }
    }
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let mut queue = last.queue(&QueueOptions::default()).unwrap();
        push(&mut *queue, OpKind::Sync);
        queue.reap(1, &mut Vec::new()).unwrap();
        drop((queue, last));
        tell.send(()).unwrap();
    });
    told.recv_timeout(LIMIT).expect("the last file ends");
    drop(releases);
    // It ends with its operation.
    while threads("nofault-io") > 0 {
        std::thread::yield_now();
    }
    assert!(is_met.load(Ordering::SeqCst), "no write was under way when its queue was dropped");
}
