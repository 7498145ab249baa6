//! A kernel that takes no operations for a while, as it does when memory is short. Here a filter answers instead.

mod common;

use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::{PATIENCE, filter_calls, is_readable, push, readable_soon, reap_all, run, zeroed};
use nofault_io::aligned::StableBytes;
use nofault_io::completion::{OpKind, WriteData};
use nofault_io::disk::{DirectIo, Disk, FileOptions, QueueOptions};
use nofault_io::error::ErrorKind;
use nofault_io::striped::StripedDisk;
use nofault_io::uring::UringDisk;

const PAGE: usize = 4096;

fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder")
}

/// Creates a disk with some pages in it; `None`, with the reason on stderr, where no ring can be had.
fn ring_disk(folder: &Path, name: &str) -> Option<UringDisk> {
    if let Some(refused) = UringDisk::ring_refused() {
        eprintln!("not checked: {refused}");
        return None;
    }
    let options = FileOptions { create: true, direct: DirectIo::Never, ..FileOptions::default() };
    let disk = UringDisk::open(&folder.join(name), &options).expect("a disk");
    run(&mut *disk.queue(&QueueOptions::default()).expect("a queue"), 0, OpKind::write(zeroed(64 * PAGE), true));
    Some(disk)
}

fn read() -> OpKind {
    OpKind::Read(zeroed(PAGE))
}

/// Installs a filter that answers the calls of io_uring_enter that submit entries, and no others: on this thread, from
/// now on.
fn answer_entries(answer: u32, flags: libc::c_ulong) -> std::io::Result<libc::c_int> {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let load = |at: u32| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at);
    let skip_unless =
        |k: u32, jf: u8| libc::sock_filter { jf, ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, k) };
    let give = |answer: u32| statement(libc::BPF_RET | libc::BPF_K, answer);
    // struct seccomp_data: the number of the call, and the lower half of its second argument, which counts the entries.
    let entries = if cfg!(target_endian = "big") { 28 } else { 24 };
    let mut filter =
        [load(0), skip_unless(426, 2), load(entries), skip_unless(0, 1), give(libc::SECCOMP_RET_ALLOW), give(answer)];
    filter_calls(&mut filter, flags)
}

/// Makes the kernel refuse every submission of this thread from now on. False, with the reason on stderr, where there
/// are no filters.
fn refuse_entries(errno: i32) -> bool {
    match answer_entries(libc::SECCOMP_RET_ERRNO | errno as u32, 0) {
        Ok(_) => true,
        Err(error) => {
            eprintln!("not checked: no seccomp filter: {error}");
            false
        }
    }
}

/// Makes the kernel refuse this thread's submissions from now on, as often as the counter says. `None`, with the reason
/// on stderr, where there are no such filters.
fn refuse_some_entries(errno: i32) -> Option<Arc<AtomicUsize>> {
    let listener = match answer_entries(libc::SECCOMP_RET_USER_NOTIF, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER) {
        // SAFETY: the descriptor was made for us just now.
        Ok(listener) => unsafe { OwnedFd::from_raw_fd(listener) },
        Err(error) => {
            eprintln!("not checked: no seccomp filter that asks: {error}");
            return None;
        }
    };
    let left = Arc::new(AtomicUsize::new(0));
    let seen_left = Arc::clone(&left);
    // Ends with the process.
    std::thread::spawn(move || answer_each(&listener, errno, &seen_left));
    Some(left)
}

fn answer_each(listener: &OwnedFd, errno: i32, left: &AtomicUsize) {
    use std::os::fd::AsRawFd;
    loop {
        // SAFETY: numbers only, for which zero is a value.
        let mut call: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel fills the structure it is given the address of.
        if unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut call) } != 0 {
            continue;
        }
        let refuse = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
        let (error, flags) = if refuse { (-errno, 0) } else { (0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32) };
        let answer = libc::seccomp_notif_resp { id: call.id, val: 0, error, flags };
        // SAFETY: the kernel reads the structure it is given the address of.
        unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const answer) };
    }
}

/// Runs a function on a dedicated thread, so that its filters end with the thread, and fails after a timeout.
fn on_a_thread(work: impl FnOnce() + Send + 'static) {
    let (done, finished) = std::sync::mpsc::channel();
    let worker = std::thread::spawn(move || {
        work();
        let _ = done.send(());
    });
    match finished.recv_timeout(PATIENCE) {
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("a thread waits for ever"),
        _ => worker.join().expect("no panic there"),
    }
}

#[test]
fn a_reap_that_can_submit_nothing_is_an_error_when_no_descriptor_will_become_readable() {
    for (errno, kind) in [(libc::EAGAIN, ErrorKind::Busy), (libc::ENOMEM, ErrorKind::NoResources)] {
        let folder = scratch();
        let Some(disk) = ring_disk(folder.path(), "ring") else { return };
        let mut queue = disk.queue(&QueueOptions::default()).expect("a queue");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                if !refuse_entries(errno) {
                    return;
                }
                push(&mut *queue, 1, 0, read());
                let mut done = Vec::new();
                match queue.reap(0, &mut done) {
                    Ok(()) => assert!(is_readable(&*queue, Duration::ZERO), "no event will ever tell"),
                    Err(error) => assert_eq!(error.kind(), kind, "{error}"),
                }
                assert_eq!((done.len(), queue.in_flight()), (0, 1), "it is still queued");
            });
        });
        // No filter applies to this thread.
        let done = reap_all(&mut *queue);
        assert_eq!((done.len(), &done[0].result), (1, &Ok(PAGE)));
    }
}

#[test]
fn completions_are_taken_although_nothing_can_be_submitted() {
    on_a_thread(|| {
        let folder = scratch();
        let Some(disk) = ring_disk(folder.path(), "ring") else { return };
        let mut queue = disk.queue(&QueueOptions { single_thread: true, ..QueueOptions::default() }).expect("a queue");
        assert!(queue.ready_fd().is_some());
        queue.reap(0, &mut Vec::new()).expect("reap");
        push(&mut *queue, 1, 0, OpKind::Sync);
        queue.submit().expect("submit");
        assert!(readable_soon(&*queue));
        if !refuse_entries(libc::EAGAIN) {
            return;
        }
        push(&mut *queue, 2, 0, read());
        let mut done = Vec::new();
        let refused = queue.reap(0, &mut done).expect_err("nothing is under way now");
        assert_eq!(refused.kind(), ErrorKind::Busy, "{refused}");
        assert_eq!(done.iter().map(|done| done.op.token).collect::<Vec<_>>(), [1]);
    });
}

#[test]
fn a_waiter_gets_no_error_of_a_refusal_that_passes() {
    for errno in [libc::EAGAIN, libc::ENOMEM, libc::EBUSY] {
        on_a_thread(move || {
            let folder = scratch();
            let Some(disk) = ring_disk(folder.path(), "ring") else { return };
            let mut queue = disk.queue(&QueueOptions::default()).expect("a queue");
            let Some(refusals) = refuse_some_entries(errno) else { return };
            refusals.store(20, Ordering::SeqCst);
            push(&mut *queue, 1, 0, read());
            let mut done = Vec::new();
            queue.reap(1, &mut done).expect("it has passed");
            assert_eq!((done.len(), &done[0].result), (1, &Ok(PAGE)));
            assert_eq!(refusals.load(Ordering::SeqCst), 0);
            // The memory of operations that were never submitted is not leaked either.
            let bytes = Arc::new(zeroed(PAGE));
            let data = WriteData::Gather(vec![Arc::clone(&bytes) as Arc<dyn StableBytes>]);
            push(&mut *queue, 2, 0, OpKind::Write { data, durable: false });
            refusals.store(20, Ordering::SeqCst);
            queue.submit().expect_err("refused");
            drop(queue);
            assert_eq!(Arc::strong_count(&bytes), 1, "the kernel has ended it, or never had it");
        });
    }
}

#[test]
fn a_wait_for_several_disks_ignores_disks_whose_kernel_has_nothing() {
    on_a_thread(|| {
        let folder = scratch();
        let disks = ["one", "other"].map(|name| ring_disk(folder.path(), name));
        let [Some(one), Some(other)] = disks else { return };
        let striped = StripedDisk::new(vec![Arc::new(one), Arc::new(other)], PAGE as u64).expect("a disk");
        let mut queue = striped.queue(&QueueOptions::default()).expect("a queue");
        let Some(refusals) = refuse_some_entries(libc::EAGAIN) else { return };
        for round in 1..=40 {
            refusals.store(round, Ordering::SeqCst);
            push(&mut *queue, 0, 0, OpKind::Read(zeroed(2 * PAGE)));
            push(&mut *queue, 1, 0, OpKind::Sync);
            let mut done = Vec::new();
            queue.reap(2, &mut done).expect("it has passed");
            assert_eq!(done.iter().map(|done| done.result.is_ok()).collect::<Vec<_>>(), [true, true]);
        }
    });
}
