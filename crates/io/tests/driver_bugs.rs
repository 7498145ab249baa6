//! The bugs that drivers of this kind are known for, one test each.

mod common;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{PATIENCE, keeps_the_contract, push, random_buffer, read, readable_soon, reap_all, run, zeroed};
use nofault_io::aligned::{IoBuf, StableBytes};
use nofault_io::completion::{OpKind, WriteData};
use nofault_io::disk::{DirectIo, Disk, DiskNote, FileOptions, Queue, QueueOptions};
use nofault_io::error::{ErrorKind, Result};
use nofault_io::psync::PsyncDisk;
use nofault_io::uring::{FlagChoice, UringDisk, UringOptions, UringQueue};

/// Creates a temporary folder in the build folder, which is on a real file system on most machines.
fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder")
}

/// Creates a disk of 4 MiB that uses rings; `None`, with the reason on stderr, where no ring can be had.
fn ring_disk(folder: &Path) -> Option<UringDisk> {
    if let Some(refused) = UringDisk::ring_refused() {
        eprintln!("not checked: {refused}");
        return None;
    }
    let disk = UringDisk::open(&folder.join("ring"), &FileOptions { create: true, ..FileOptions::default() });
    let disk = disk.expect("a disk");
    fill(&disk);
    Some(disk)
}

/// Creates a disk of each available kind, with 4 MiB in it.
fn disks(folder: &Path) -> Vec<Box<dyn Disk>> {
    let pool = PsyncDisk::open(&folder.join("pool"), &FileOptions { create: true, ..FileOptions::default() }, 3);
    let pool = pool.expect("a disk");
    fill(&pool);
    let ring = ring_disk(folder).map(|disk| Box::new(disk) as Box<dyn Disk>);
    ring.into_iter().chain([Box::new(pool) as Box<dyn Disk>]).collect()
}

fn fill(disk: &dyn Disk) {
    let mut queue = disk.queue(&QueueOptions::default()).expect("a queue");
    run(&mut *queue, 0, OpKind::write(zeroed(4 << 20), true));
}

#[test]
fn dropping_the_waiter_does_not_free_memory_the_kernel_still_fills() {
    let folder = scratch();
    let Some(disk) = ring_disk(folder.path()) else { return };
    for single_thread in [false, true] {
        for _ in 0..30 {
            let options = QueueOptions { single_thread, ..QueueOptions::default() };
            let mut queue = disk.queue(&options).expect("a queue");
            // The second half keeps the region mapped, so that the first can be looked at after the queue is gone.
            let (first, second) = zeroed(2 << 20).split_at(1 << 20);
            let start = first.address().cast_mut();
            for (token, piece) in first.pieces(64 << 10).into_iter().enumerate() {
                push(&mut *queue, token as u64, (token as u64) * (64 << 10), OpKind::Read(piece));
            }
            queue.submit().expect("submit");
            drop(queue);
            // SAFETY: the queue has dropped the only owners of these bytes, and `second` keeps them mapped.
            let freed = unsafe { std::slice::from_raw_parts_mut(start, 1 << 20) };
            freed.fill(0xa5);
            std::thread::sleep(Duration::from_millis(2));
            // The file is all zeroes: a read that was still running shows.
            assert!(std::hint::black_box(&*freed).iter().all(|byte| *byte == 0xa5), "written after the free");
            drop(second);
        }
    }
}

#[test]
fn a_thread_pool_keeps_the_memory_of_running_operations_when_their_queue_is_dropped() {
    let folder = scratch();
    let disk = PsyncDisk::open(&folder.path().join("pool"), &FileOptions { create: true, ..FileOptions::default() }, 3);
    let disk = disk.expect("a disk");
    for _ in 0..20 {
        let mut queue = disk.queue(&QueueOptions::default()).expect("a queue");
        for token in 0..8 {
            let mut buffer = zeroed(256 << 10);
            buffer.fill(0x5a);
            push(&mut *queue, token, token * (256 << 10), OpKind::write(buffer, false));
        }
        queue.submit().expect("submit");
        drop(queue);
        // Freed pages would be written as something else (or fail with EFAULT and leave a hole).
        let mut check = disk.queue(&QueueOptions::default()).expect("a queue");
        run(&mut *check, 0, OpKind::Sync);
        let mut done = Vec::new();
        push(&mut *check, 1, 0, OpKind::Read(zeroed(2 << 20)));
        check.reap(1, &mut done).expect("reap");
        if let OpKind::Read(buffer) = &done[0].op.kind {
            assert!(buffer.iter().all(|byte| matches!(byte, 0 | 0x5a)));
        }
    }
}

#[test]
fn a_short_read_is_an_error_and_never_a_success() {
    let folder = scratch();
    for disk in disks(folder.path()) {
        let path = disk.info().path.expect("a path");
        let mut queue = disk.queue(&QueueOptions::default()).expect("a queue");
        // Cut behind the disk's back, to a length that no alignment divides.
        std::fs::OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(10_000)).expect("truncate");
        push(&mut *queue, 1, 4096, OpKind::Read(zeroed(64 << 10)));
        let error = reap_all(&mut *queue).pop().expect("one").result.expect_err("5,904 of 65,536 bytes are no success");
        assert_eq!(error.kind(), ErrorKind::Short, "{error}");
        assert!(error.to_string().contains("5904 of 65536"), "says how far it came: {error}");
    }
}

#[test]
fn a_failure_has_the_systems_number_with_the_right_sign() {
    let folder = scratch();
    for disk in disks(folder.path()) {
        let mut queue = disk.queue(&QueueOptions::default()).expect("a queue");
        // A position the file system has no room for.
        let far = (i64::MAX as u64 / 4096 - 1) * 4096;
        push(&mut *queue, 1, far, OpKind::write(zeroed(4096), false));
        let error = reap_all(&mut *queue).pop().expect("one").result.expect_err("no file is that long");
        assert_eq!((error.errno(), error.kind()), (Some(libc::EFBIG), ErrorKind::NoSpace), "{error}");
        assert!(error.to_string().contains("File too large"), "{error}");
    }
}

/// Takes a queue to another thread and back. A ring with SINGLE_ISSUER refuses submissions there: the only way to make
/// `submit` fail needing no help from the driver.
fn on_another_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(work).join().expect("no panic"))
}

/// Opens a queue that refuses other threads; `None`, with the reason on stderr, where the kernel has no such ring.
fn bound_queue(disk: &UringDisk) -> Option<UringQueue> {
    let options = QueueOptions { single_thread: true, ..QueueOptions::default() };
    let queue = disk.queue_with(&options, &UringOptions::default()).expect("a queue");
    if queue.notes().iter().any(|note| note.text == "ring with SINGLE_ISSUER and DEFER_TASKRUN") {
        return Some(queue);
    }
    eprintln!("not checked: {:?}", queue.notes());
    None
}

#[test]
fn nothing_is_lost_when_a_submission_fails_after_the_push() {
    let folder = scratch();
    let Some(disk) = ring_disk(folder.path()) else { return };
    let Some(mut queue) = bound_queue(&disk) else { return };
    for token in 0..40 {
        push(&mut queue, token, token * 4096, OpKind::Read(zeroed(4096)));
        if token % 10 == 9 {
            let error = on_another_thread(|| queue.submit()).expect_err("another thread's ring");
            assert_eq!(error.kind(), ErrorKind::InvalidCall, "{error}");
            assert!(error.to_string().contains("single_thread"), "says what to do: {error}");
        }
    }
    assert_eq!(queue.in_flight(), 40);
    let mut tokens: Vec<u64> = reap_all(&mut queue).iter().map(|completion| completion.op.token).collect();
    tokens.sort_unstable();
    assert_eq!(tokens, (0..40).collect::<Vec<_>>());
}

#[test]
fn a_queue_dropped_where_it_cannot_wait_leaks_rather_than_frees() {
    let folder = scratch();
    let Some(disk) = ring_disk(folder.path()) else { return };
    let Some(mut queue) = bound_queue(&disk) else { return };
    let bytes = Arc::new(random_buffer(4096, &mut fastrand::Rng::with_seed(1)));
    let data = WriteData::Gather(vec![Arc::clone(&bytes) as Arc<dyn StableBytes>]);
    push(&mut queue, 1, 0, OpKind::Write { data, durable: false });
    queue.submit().expect("submit");
    on_another_thread(move || drop(queue));
    assert_eq!(Arc::strong_count(&bytes), 2, "the kernel may still read it");
}

/// A consumer that reaps only when the descriptor is readable must get every completion, also of operations that
/// complete while a reap submits others. With DEFER_TASKRUN the kernel signals once for all completions that are
/// waiting to be taken.
#[test]
fn a_consumer_that_reaps_only_when_the_descriptor_is_readable_gets_every_completion() {
    let folder = scratch();
    let Some(disk) = ring_disk(folder.path()) else { return };
    let Some(mut queue) = bound_queue(&disk) else { return };
    assert!(queue.ready_fd().is_some());
    queue.reap(0, &mut Vec::new()).expect("reap");
    let mut buffers: Vec<IoBuf> = (0..100).map(|_| zeroed(64 << 10)).collect();
    for round in 0..300 {
        push(&mut queue, 100, 0, OpKind::Sync);
        for (token, buffer) in buffers.drain(..).enumerate() {
            push(&mut queue, token as u64, (token as u64 % 64) * (64 << 10), OpKind::Read(buffer));
        }
        let mut done = Vec::new();
        queue.reap(0, &mut done).expect("reap");
        while queue.in_flight() > 0 {
            assert!(readable_soon(&queue), "round {round}: {} of {} are not told of", queue.in_flight(), 101);
            queue.reap(0, &mut done).expect("reap");
        }
        buffers.extend(done.into_iter().filter_map(|done| done.into_buffer()));
        assert_eq!(buffers.len(), 100);
    }
}

#[test]
fn no_completion_is_lost_when_the_completion_ring_overflows() {
    let folder = scratch();
    let Some(disk) = ring_disk(folder.path()) else { return };
    for single_thread in [false, true] {
        let options = QueueOptions { depth_max: 500, single_thread, ..QueueOptions::default() };
        let tiny = UringOptions { ring_entries: Some(2), ..UringOptions::default() };
        let mut queue = disk.queue_with(&options, &tiny).expect("a queue");
        for token in 0..500 {
            push(&mut queue, token, token * 4096, OpKind::Read(zeroed(4096)));
        }
        queue.submit().expect("submit");
        // All of them complete while no completion is taken.
        std::thread::sleep(Duration::from_millis(50));
        let mut tokens: Vec<u64> = reap_all(&mut queue).iter().map(|completion| completion.op.token).collect();
        tokens.sort_unstable();
        assert_eq!(tokens, (0..500).collect::<Vec<_>>());
    }
}

/// This layer runs no wakers, which could panic, only lists and descriptors. A panic can come from the consumer,
/// between taking completions and using them, and from the `Drop` of bytes it lent for a write.
#[test]
fn a_consumer_that_panics_loses_no_completions_of_others() {
    struct Explosive(IoBuf);
    // SAFETY: the bytes are an `IoBuf`'s, which is `StableBytes` itself.
    unsafe impl StableBytes for Explosive {
        fn bytes(&self) -> &[u8] {
            &self.0
        }
    }
    impl Drop for Explosive {
        fn drop(&mut self) {
            panic!("a panic that this test wants");
        }
    }
    let folder = scratch();
    for disk in disks(folder.path()) {
        let mut other = disk.queue(&QueueOptions::default()).expect("a queue");
        let mut queue = disk.queue(&QueueOptions::default()).expect("a queue");
        for token in 0..4 {
            push(&mut *other, token, token * 4096, OpKind::Read(zeroed(4096)));
            push(&mut *queue, token, token * 4096, OpKind::Read(zeroed(4096)));
        }
        let consumer = std::panic::AssertUnwindSafe(|| {
            let mut done = Vec::new();
            queue.reap(2, &mut done).expect("reap");
            panic!("a panic that this test wants");
        });
        std::panic::catch_unwind(consumer).expect_err("panics");
        reap_all(&mut *queue);
        run(&mut *queue, 0, OpKind::Sync);
        // Dropped in flight: the thread that frees the bytes, a worker perhaps, gets the panic.
        let data = WriteData::Gather(vec![Arc::new(Explosive(zeroed(1 << 20))) as Arc<dyn StableBytes>]);
        push(&mut *queue, 1, 0, OpKind::Write { data, durable: true });
        queue.submit().expect("submit");
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(queue)));
        assert_eq!(reap_all(&mut *other).len(), 4, "{:?}", disk.info());
        for _ in 0..8 {
            run(&mut *other, 0, OpKind::Sync);
        }
    }
}

/// A worker that frees bytes lent for a write must survive a panic of their `Drop`, and a panic from dropping that
/// panic's payload.
#[test]
fn a_worker_survives_bytes_and_a_panic_payload_that_panic_when_they_are_dropped() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("a panic that this test wants");
        }
    }
    struct Explosive(IoBuf, Arc<AtomicBool>);
    // SAFETY: the bytes are an `IoBuf`'s, which is `StableBytes` itself.
    unsafe impl StableBytes for Explosive {
        fn bytes(&self) -> &[u8] {
            &self.0
        }
    }
    impl Drop for Explosive {
        fn drop(&mut self) {
            self.1.fetch_or(std::thread::current().name() == Some("nofault-io"), Ordering::SeqCst);
            std::panic::panic_any(Bomb);
        }
    }
    let folder = scratch();
    let options = FileOptions { create: true, ..FileOptions::default() };
    let disk = PsyncDisk::open(&folder.path().join("pool"), &options, 1).expect("a disk");
    let worker_met_it = Arc::new(AtomicBool::new(false));
    // The queue must be dropped while the worker writes.
    for _ in 0..1000 {
        let mut queue = disk.queue(&QueueOptions::default()).expect("a queue");
        let bytes: Arc<dyn StableBytes> = Arc::new(Explosive(zeroed(1 << 20), Arc::clone(&worker_met_it)));
        push(&mut *queue, 1, 0, OpKind::Write { data: WriteData::Gather(vec![bytes]), durable: true });
        queue.submit().expect("submit");
        std::thread::sleep(Duration::from_micros(300));
        let dropped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(queue)));
        dropped.unwrap_or_else(std::mem::forget);
        if worker_met_it.load(Ordering::SeqCst) {
            break;
        }
    }
    let (done, finished) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut queue = disk.queue(&QueueOptions::default()).expect("a queue");
        run(&mut *queue, 0, OpKind::Sync);
        let _ = done.send(());
    });
    finished.recv_timeout(PATIENCE).expect("the worker still works");
    assert!(worker_met_it.load(Ordering::SeqCst));
}

/// With COOP_TASKRUN the completion of an operation waits for the thread that submitted it. Where one thread submits and
/// another reaps, that thread may be computing: reads of 80 us took 4 ms, a timer tick.
#[test]
fn a_queue_that_moves_between_threads_never_waits_for_its_submitter() {
    let folder = scratch();
    let Some(disk) = ring_disk(folder.path()) else { return };
    let queue = disk.queue_with(&QueueOptions::default(), &UringOptions::default()).expect("a queue");
    assert_eq!(queue.notes(), [DiskNote::in_use("ring without flags")]);
    let options = QueueOptions { single_thread: true, ..QueueOptions::default() };
    let way = UringOptions { defer_taskrun: FlagChoice::Off, ..UringOptions::default() };
    let queue = disk.queue_with(&options, &way).expect("a queue");
    assert!(queue.notes()[0].text.contains("COOP_TASKRUN"), "had, or not had with a reason: {:?}", queue.notes());
}

/// The kernel cancels some kinds of work when the submitting thread ends; the operations of this crate must not be
/// among them.
#[test]
fn operations_outlive_the_thread_that_submitted_them() {
    let folder = scratch();
    let Some(_) = ring_disk(folder.path()) else { return };
    let options = FileOptions { direct: DirectIo::Never, create: true, write: true };
    let disk = UringDisk::open(&folder.path().join("buffered"), &options).expect("a disk");
    for _ in 0..5 {
        let mut queue = disk.queue(&QueueOptions::default()).expect("a queue");
        on_another_thread(|| {
            for token in 0..60 {
                push(&mut *queue, token, token * 4096, OpKind::write(zeroed(4096), false));
                push(&mut *queue, token, 0, OpKind::Sync);
            }
            queue.submit().expect("submit");
        });
        for completion in reap_all(&mut *queue) {
            assert_eq!(completion.result, Ok(completion.op.kind.len_bytes()), "{:?}", completion.op);
        }
    }
}

/// Fills a file with its page numbers, so that each page is unique, and syncs it.
fn fill_with_page_numbers(path: &Path, pages: u64) {
    let bytes: Vec<u8> = (0..pages).flat_map(|page| (page as u32).to_le_bytes().repeat(1024)).collect();
    std::fs::write(path, bytes).expect("write");
    std::fs::File::open(path).and_then(|file| file.sync_all()).expect("sync");
}

/// Drops the bytes of a file from the page cache.
fn drop_cached(path: &Path) {
    let file = std::fs::File::open(path).expect("open");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("fadvise");
}

/// A buffered read that misses the page cache waits for its page in the name of the thread that submitted it. The kernel answers
/// EFAULT or ECANCELED instead when that thread ends first.
#[test]
fn reads_that_miss_the_page_cache_outlive_the_thread_that_submitted_them() {
    const PAGES: u64 = 4096;
    let folder = scratch();
    let Some(_) = ring_disk(folder.path()) else { return };
    let path = folder.path().join("buffered");
    fill_with_page_numbers(&path, PAGES);
    let disk = UringDisk::open(&path, &FileOptions { direct: DirectIo::Never, ..FileOptions::default() });
    let disk = disk.expect("a disk");
    let mut queue = disk.queue(&QueueOptions::default()).expect("a queue");
    let mut rng = fastrand::Rng::with_seed(1);
    for _ in 0..100 {
        drop_cached(&path);
        on_another_thread(|| {
            for token in 0..40 {
                push(&mut *queue, token, rng.u64(..PAGES) * 4096, OpKind::Read(zeroed(4096)));
            }
            queue.submit().expect("submit");
        });
        let done = reap_all(&mut *queue);
        assert_eq!(done.len(), 40);
        for completion in done {
            assert_eq!(completion.result, Ok(4096), "{:?}", completion.op);
            let page = (completion.op.offset_bytes / 4096) as u32;
            assert!(completion.into_buffer().expect("a buffer").chunks(4).all(|word| word == page.to_le_bytes()));
        }
    }
}

/// A disk whose rings are set up with the given options.
#[derive(Debug)]
struct TunedDisk(UringDisk, UringOptions);

impl Disk for TunedDisk {
    fn info(&self) -> nofault_io::disk::DiskInfo {
        self.0.info()
    }

    fn len_bytes(&self) -> Result<u64> {
        self.0.len_bytes()
    }

    fn queue(&self, options: &QueueOptions) -> Result<Box<dyn Queue>> {
        Ok(Box::new(self.0.queue_with(options, &self.1)?))
    }
}

#[test]
fn every_way_to_set_up_a_ring_keeps_the_contract() {
    let folder = scratch();
    let plain = UringOptions {
        defer_taskrun: FlagChoice::Off,
        coop_taskrun: FlagChoice::Off,
        register_file: false,
        register_buffers: false,
        ..UringOptions::default()
    };
    let ways = [
        ("plain", plain),
        ("tiny", UringOptions { ring_entries: Some(2), ..UringOptions::default() }),
        ("cooperative", UringOptions { defer_taskrun: FlagChoice::Off, ..UringOptions::default() }),
        ("polled", UringOptions { sqpoll_idle_ms: Some(5), ring_entries: Some(8), ..plain }),
    ];
    for (name, way) in ways {
        if ring_disk(folder.path()).is_none() {
            return;
        }
        std::fs::remove_file(folder.path().join("ring")).expect("remove");
        for direct in [DirectIo::Prefer, DirectIo::Never] {
            let path = folder.path().join(format!("{name}-{direct:?}"));
            let disk = UringDisk::open(&path, &FileOptions { direct, create: true, ..FileOptions::default() });
            let disk = TunedDisk(disk.expect("a disk"), way);
            for single_thread in [false, true] {
                keeps_the_contract(&disk, &QueueOptions { single_thread, ..QueueOptions::default() });
            }
        }
    }
}

/// A polling kernel thread completes entries before it frees their places in the ring. A queue waiting for a ring's
/// worth of completions because the ring looks full waits for operations that were never submitted.
#[test]
fn no_reap_waits_for_ever_on_a_polled_ring_that_looks_full() {
    let folder = scratch();
    if ring_disk(folder.path()).is_none() {
        return;
    }
    let path = folder.path().join("ring");
    let (done, finished) = std::sync::mpsc::channel();
    // On a dedicated thread: a failure here is a wait inside the kernel.
    std::thread::spawn(move || {
        let disk = UringDisk::open(&path, &FileOptions { direct: DirectIo::Never, ..FileOptions::default() });
        let disk = disk.expect("a disk");
        let polled = UringOptions { sqpoll_idle_ms: Some(5), ring_entries: Some(8), ..UringOptions::default() };
        let mut queue = disk.queue_with(&QueueOptions::default(), &polled).expect("a queue");
        run(&mut queue, 0, OpKind::write(zeroed(64 << 10), false));
        for round in 0..5_000_u64 {
            // Cached reads end on the kernel thread, one after another, and the operations that did not fit are
            // submitted while the first completions arrive.
            for token in 0..24 {
                push(&mut queue, token, 512 * ((round + token) % 64), OpKind::Read(zeroed(512)));
            }
            reap_all(&mut queue);
        }
        done.send(()).expect("the test waits");
    });
    finished.recv_timeout(4 * PATIENCE).expect("every wait ends");
}

#[test]
fn registered_memory_is_read_and_written_like_any_other() {
    let folder = scratch();
    let Some(disk) = ring_disk(folder.path()) else { return };
    let mut rng = fastrand::Rng::with_seed(7);
    let buffer = random_buffer(1 << 20, &mut rng);
    let expected = buffer.to_vec();
    let options = QueueOptions { registered: vec![buffer.region().clone()], ..QueueOptions::default() };
    let mut queue = disk.queue_with(&options, &UringOptions::default()).expect("a queue");
    eprintln!("{:?}", queue.notes());
    let buffer = run(&mut queue, 0, OpKind::write(buffer, true)).into_buffer().expect("a buffer");
    assert!(*read(&mut queue, 0, 1 << 20) == expected[..], "read into memory that is not registered");
    // Into pieces from the middle, out of order, then as one gather that is contiguous in memory.
    let mut pieces = buffer.pieces(64 << 10);
    let mut last = pieces.pop().expect("sixteen pieces");
    last.fill(0);
    let last = run(&mut queue, 4096, OpKind::Read(last)).into_buffer().expect("a buffer");
    assert!(*last == expected[4096..][..64 << 10]);
    let parts = pieces.into_iter().map(|part| Arc::new(part) as Arc<dyn StableBytes>).collect();
    run(&mut queue, 2 << 20, OpKind::Write { data: WriteData::Gather(parts), durable: false });
    assert!(*read(&mut queue, 2 << 20, 15 * (64 << 10)) == expected[..15 * (64 << 10)]);
}
