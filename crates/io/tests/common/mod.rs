//! The contract of every disk as one body of checks: `keeps_the_contract` runs them all on one disk.
//!
//! Chance comes from a seed that every failure prints; `NOFAULT_SEED=<seed>` repeats it.

#![allow(dead_code, reason = "each test file uses its share of these helpers")]

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nofault_io::aligned::{IoBuf, PageKind, StableBytes};
use nofault_io::completion::{Completion, Op, OpKind, WriteData};
use nofault_io::disk::{Disk, Queue, QueueOptions};
use nofault_io::error::ErrorKind;

/// Largest offset of the random histories, in bytes.
const SPAN_BYTES: usize = 256 << 10;
/// Length of the longest random operation, in bytes.
const OP_BYTES_MAX: usize = 24 << 10;
/// Unit for lengths where the disk asks for none: odd on purpose.
const ODD_UNIT: usize = 1;
/// How long a check waits for a required event before it fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A check of the contract.
type Check = fn(&dyn Disk, &QueueOptions, &mut fastrand::Rng);

/// Runs every check on `disk`: empty or not, but growing when written past its end. Panics with a seed on failure.
pub(crate) fn keeps_the_contract(disk: &dyn Disk, queue_options: &QueueOptions) {
    let seed = std::env::var("NOFAULT_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    let checks: [(&str, Check); 12] = [
        ("random operations match a byte array", random_operations_match_a_byte_array),
        ("performed operations match a byte array", performed_operations_match_a_byte_array),
        ("long gathers arrive in order", long_gathers_arrive_in_order),
        ("wrong operations come back untouched", wrong_operations_come_back_untouched),
        ("reads past the end are short", reads_past_the_end_are_short),
        ("allocated space reads as zero", allocated_space_reads_as_zero),
        ("a cut takes the end of the file only", a_cut_takes_the_end_of_the_file_only),
        ("depth is a limit", depth_is_a_limit),
        ("a look does not wait", a_look_does_not_wait),
        ("the descriptor tells when there is something", the_descriptor_tells_when_there_is_something),
        ("dropping a queue in flight frees everything once", dropping_a_queue_in_flight_frees_everything_once),
        ("queues do not see each other's completions", queues_do_not_see_each_others_completions),
    ];
    for (name, check) in checks {
        let mut rng = fastrand::Rng::with_seed(seed);
        let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| check(disk, queue_options, &mut rng)));

        if let Err(panic) = outcome {
            eprintln!("«{name}» failed on {:?}; repeat with NOFAULT_SEED={seed}", disk.info());
            std::panic::resume_unwind(panic);
        }
    }
}

/// Returns a buffer filled from `rng`; the pattern repeats after a number of bytes that no block size is a multiple of.
pub(crate) fn random_buffer(len_bytes: usize, rng: &mut fastrand::Rng) -> IoBuf {
    let mut buffer = zeroed(len_bytes);
    let pattern: Vec<u8> = (0..251.min(len_bytes)).map(|_| rng.u8(..)).collect();
    for piece in buffer.chunks_mut(pattern.len()) {
        piece.copy_from_slice(&pattern[..piece.len()]);
    }
    buffer
}

/// Returns a buffer of zeroes.
pub(crate) fn zeroed(len_bytes: usize) -> IoBuf {
    IoBuf::zeroed(len_bytes, PageKind::Small).expect("memory for a test")
}

/// Pushes an operation that must be accepted.
pub(crate) fn push(queue: &mut dyn Queue, token: u64, offset_bytes: u64, kind: OpKind) {
    if let Err(refused) = queue.push(Op::new(token, offset_bytes, kind)) {
        panic!("refused: {}", refused.error);
    }
}

/// Waits for everything in flight.
pub(crate) fn reap_all(queue: &mut dyn Queue) -> Vec<Completion> {
    let mut done = Vec::new();
    while queue.in_flight() > 0 {
        queue.reap(queue.in_flight(), &mut done).expect("reap");
    }
    done
}

/// Runs one operation, which must succeed, from push to completion.
pub(crate) fn run(queue: &mut dyn Queue, offset_bytes: u64, kind: OpKind) -> Completion {
    let len_bytes = kind.len_bytes();
    push(queue, 1, offset_bytes, kind);
    let completion = reap_all(queue).pop().expect("one completion");
    assert_eq!(completion.result, Ok(len_bytes), "at {offset_bytes}");
    completion
}

/// Reads bytes that must be there.
pub(crate) fn read(queue: &mut dyn Queue, offset_bytes: u64, len_bytes: usize) -> IoBuf {
    run(queue, offset_bytes, OpKind::Read(zeroed(len_bytes))).into_buffer().expect("the buffer of a read")
}

/// Cuts a buffer into parts of `part_bytes` and gathers them in a shuffled order, so that neighbours in the write are
/// none in memory. Returns the write and the bytes it must put on the disk.
pub(crate) fn gather(buffer: IoBuf, part_bytes: usize, rng: &mut fastrand::Rng) -> (WriteData, Vec<u8>) {
    let mut parts = buffer.pieces(part_bytes);
    rng.shuffle(&mut parts);
    let bytes = parts.iter().map(|part| &**part).collect::<Vec<_>>().concat();
    let parts = parts.into_iter().map(|part| Arc::new(part) as Arc<dyn StableBytes>).collect();
    (WriteData::Gather(parts), bytes)
}

/// Returns the unit in which offsets and lengths are drawn.
fn unit(disk: &dyn Disk) -> usize {
    match disk.info().align_bytes {
        1 => ODD_UNIT,
        align => align,
    }
}

/// Returns a length in bytes for buffers of about `about_bytes`: a multiple of the disk's alignment, and not zero.
fn units(disk: &dyn Disk, about_bytes: usize) -> usize {
    let align = disk.info().align_bytes;
    (about_bytes / align).max(1) * align
}

fn open(disk: &dyn Disk, options: &QueueOptions) -> Box<dyn Queue> {
    disk.queue(options).expect("a queue")
}

fn random_operations_match_a_byte_array(disk: &dyn Disk, options: &QueueOptions, rng: &mut fastrand::Rng) {
    let unit = unit(disk);
    let mut queue = open(disk, options);
    let mut model = vec![0; SPAN_BYTES];
    run(&mut *queue, 0, OpKind::write(zeroed(SPAN_BYTES), false));
    for _ in 0..60 {
        // Operations in flight together are unordered: each gets its own range, left to right.
        let (mut pushed, mut done) = (HashMap::new(), Vec::new());
        let mut start = rng.usize(0..16) * unit;
        while pushed.len() < 24.min(options.depth_max) {
            let len = (rng.usize(1..=OP_BYTES_MAX) / unit).max(1) * unit;
            if start + len > SPAN_BYTES {
                break;
            }
            let token = rng.u64(..);
            let (kind, expected) = random_kind(len, unit, &mut model[start..start + len], rng);
            let address = buffer_address(&kind);
            if rng.u8(..) < 64 {
                let len_before = done.len();
                queue.run(Op::new(token, start as u64, kind), &mut done).expect("run");
                assert!(done[len_before..].iter().any(|completion| completion.op.token == token), "it was waited for");
            } else {
                push(&mut *queue, token, start as u64, kind);
            }
            assert!(pushed.insert(token, (address, expected)).is_none());
            if rng.u8(..) < 64 {
                queue.submit().expect("submit");
            }
            start += len + rng.usize(0..8) * unit;
        }
        while queue.in_flight() > 0 {
            let before = done.len();
            let wait_for = rng.usize(0..=queue.in_flight());
            queue.reap(wait_for, &mut done).expect("reap");
            assert!(done.len() - before >= wait_for, "waited for {wait_for}, got {}", done.len() - before);
        }
        for completion in done {
            let (address, expected) = pushed.remove(&completion.op.token).expect("comes back exactly once");
            assert_eq!(completion.result, Ok(completion.op.kind.len_bytes()), "{:?}", completion.op);
            assert_eq!(buffer_address(&completion.op.kind), address, "with its own buffer");
            if let (OpKind::Read(buffer), Some(expected)) = (&completion.op.kind, expected) {
                assert!(**buffer == expected, "read at {}", completion.op.offset_bytes);
            }
        }
        assert!(pushed.is_empty(), "never came back: {:?}", pushed.keys());
    }
    drop(queue);
    let mut fresh = open(disk, options);
    assert!(*read(&mut *fresh, 0, SPAN_BYTES) == model[..], "another queue sees the same bytes");
}

fn performed_operations_match_a_byte_array(disk: &dyn Disk, _: &QueueOptions, rng: &mut fastrand::Rng) {
    let unit = unit(disk);
    let perform = |token: u64, offset_bytes: usize, kind: OpKind| {
        let (address, len_bytes) = (buffer_address(&kind), kind.len_bytes());
        let done = disk.perform(Op::new(token, offset_bytes as u64, kind)).expect("the disk works");
        assert_eq!(done.result, Ok(len_bytes), "{:?}", done.op);
        let op = (done.op.token, done.op.offset_bytes, buffer_address(&done.op.kind));
        assert_eq!(op, (token, offset_bytes as u64, address), "comes back as it was");
        done
    };
    let mut model = vec![0; SPAN_BYTES];
    perform(1, 0, OpKind::write(zeroed(SPAN_BYTES), false));
    for token in 0..60 {
        let len = (rng.usize(1..=OP_BYTES_MAX) / unit).max(1) * unit;
        let start = rng.usize(0..=(SPAN_BYTES - len) / unit) * unit;
        let (kind, expected) = random_kind(len, unit, &mut model[start..start + len], rng);
        let done = perform(token, start, kind);
        if let (OpKind::Read(buffer), Some(expected)) = (&done.op.kind, expected) {
            assert!(**buffer == expected, "read at {start}");
        }
    }
    perform(2, 0, OpKind::Sync);
    let all = perform(3, 0, OpKind::Read(zeroed(SPAN_BYTES))).into_buffer().expect("the buffer of a read");
    assert!(*all == model[..]);
    let past = disk.extent_bytes().expect("its length").next_multiple_of(unit as u64);
    let done = disk.perform(Op::new(4, past, OpKind::Read(zeroed(units(disk, 4096))))).expect("the disk works");
    assert_eq!(done.result.map_err(|error| error.kind()), Err(ErrorKind::Short));
}

/// A random operation over a range with content `model`; writes change the model, reads also return the expected bytes.
fn random_kind(len: usize, unit: usize, model: &mut [u8], rng: &mut fastrand::Rng) -> (OpKind, Option<Vec<u8>>) {
    match rng.u8(0..10) {
        0..4 => (OpKind::Read(zeroed(len)), Some(model.to_vec())),
        4..7 => {
            let buffer = random_buffer(len, rng);
            model.copy_from_slice(&buffer);
            (OpKind::write(buffer, rng.u8(0..8) == 0), None)
        }
        7..9 => {
            // The first of a few part sizes that divides the length.
            let part = [7, 3, 2, 1]
                .map(|count| len / count)
                .into_iter()
                .find(|part| *part > 0 && part % unit == 0 && len.is_multiple_of(*part));
            let part = part.unwrap_or(len);
            let (data, bytes) = gather(random_buffer(len, rng), part, rng);
            model.copy_from_slice(&bytes);
            (OpKind::Write { data, durable: rng.u8(0..8) == 0 }, None)
        }
        _ => (OpKind::Sync, None),
    }
}

fn buffer_address(kind: &OpKind) -> Option<*const u8> {
    match kind {
        OpKind::Read(buffer) | OpKind::Write { data: WriteData::Owned(buffer), .. } => Some(buffer.address()),
        _ => None,
    }
}

fn long_gathers_arrive_in_order(disk: &dyn Disk, options: &QueueOptions, rng: &mut fastrand::Rng) {
    let part = units(disk, 700);
    let (data, bytes) = gather(random_buffer(3000 * part, rng), part, rng);
    let mut queue = open(disk, options);
    run(&mut *queue, 0, OpKind::Write { data, durable: true });
    assert!(*read(&mut *queue, 0, bytes.len()) == bytes[..]);
}

fn wrong_operations_come_back_untouched(disk: &dyn Disk, options: &QueueOptions, _: &mut fastrand::Rng) {
    let align = disk.info().align_bytes;
    let mut queue = open(disk, options);
    let far = (i64::MAX as u64 / 4096) * 4096;
    let (empty, _) = zeroed(4096).split_at(0);
    let mut wrong = vec![
        ("of no bytes", 0, OpKind::Read(empty)),
        ("gathering nothing", 0, OpKind::Write { data: WriteData::Gather(Vec::new()), durable: false }),
        ("reserving nothing", 0, OpKind::Allocate { len_bytes: 0 }),
        ("beyond the largest position", far, OpKind::Read(zeroed(units(disk, 8192)))),
        ("beyond all numbers", u64::MAX - u64::MAX % 4096, OpKind::Allocate { len_bytes: u64::MAX }),
        ("that begins near the last number", u64::MAX - u64::MAX % 4096, OpKind::Read(zeroed(64 << 10))),
    ];
    if align > 1 {
        let (_, odd_start) = zeroed(2 * align).split_at(1);
        let (odd_start, _) = odd_start.split_at(align);
        let (odd_length, _) = zeroed(2 * align).split_at(align + 1);
        let (_, odd_part) = zeroed(2 * align).split_at(align - 1);
        wrong.push(("at an odd offset", 1, OpKind::Read(zeroed(align))));
        wrong.push(("into odd memory", 0, OpKind::Read(odd_start)));
        wrong.push(("of odd length", 0, OpKind::write(odd_length, false)));
        let parts: Vec<Arc<dyn StableBytes>> = vec![Arc::new(zeroed(align)), Arc::new(odd_part)];
        wrong.push(("gathering an odd part", 0, OpKind::Write { data: WriteData::Gather(parts), durable: false }));
    }
    for (what, offset_bytes, kind) in wrong {
        let address = buffer_address(&kind);
        let done = disk.perform(Op::new(77, offset_bytes, kind)).expect("the disk works");
        assert_eq!(done.result.map_err(|error| error.kind()), Err(ErrorKind::InvalidCall), "{what}");
        assert_eq!((done.op.token, done.op.offset_bytes, buffer_address(&done.op.kind)), (77, offset_bytes, address));
        let kind = done.op.kind;
        let Err(refused) = queue.push(Op::new(77, offset_bytes, kind)) else { panic!("accepted an operation {what}") };
        assert_eq!(refused.error.kind(), ErrorKind::InvalidCall, "{what}: {}", refused.error);
        assert_eq!((refused.op.token, buffer_address(&refused.op.kind)), (77, address), "{what}");
    }
    assert_eq!(queue.in_flight(), 0);
}

fn reads_past_the_end_are_short(disk: &dyn Disk, options: &QueueOptions, rng: &mut fastrand::Rng) {
    let len = units(disk, 4096);
    let mut queue = open(disk, options);
    let end = disk.len_bytes().expect("length").next_multiple_of(len as u64);
    run(&mut *queue, end, OpKind::write(random_buffer(len, rng), false));
    assert_eq!(disk.len_bytes(), Ok(end + len as u64), "a write past the end makes it longer");
    let after = end + len as u64;
    for (offset_bytes, read_bytes) in [(end, 2 * len), (after, len), (after + 64 * len as u64, len)] {
        push(&mut *queue, 5, offset_bytes, OpKind::Read(zeroed(read_bytes)));
        let completion = reap_all(&mut *queue).pop().expect("one completion");
        let error = completion.result.expect_err("there are fewer bytes");
        assert_eq!(error.kind(), ErrorKind::Short, "{error}");
        assert!(error.to_string().contains(&offset_bytes.to_string()), "names the place: {error}");
        assert_eq!(completion.op.kind.len_bytes(), read_bytes, "the buffer comes back whole");
    }
    assert_eq!(read(&mut *queue, end, len).len(), len, "what is there is read as before");
}

fn allocated_space_reads_as_zero(disk: &dyn Disk, options: &QueueOptions, _: &mut fastrand::Rng) {
    let len = units(disk, 64 << 10);
    let mut queue = open(disk, options);
    let end = disk.len_bytes().expect("length").next_multiple_of(len as u64);
    push(&mut *queue, 9, end, OpKind::Allocate { len_bytes: len as u64 });
    match reap_all(&mut *queue).pop().expect("one completion").result {
        Ok(moved) => assert_eq!(moved, 0),
        Err(error) if error.kind() == ErrorKind::Unsupported => return eprintln!("not checked: {error}"),
        Err(error) => panic!("{error}"),
    }
    assert_eq!(disk.len_bytes(), Ok(end + len as u64));
    assert!(read(&mut *queue, end, len).iter().all(|byte| *byte == 0));
    run(&mut *queue, 0, OpKind::Sync);
}

fn a_cut_takes_the_end_of_the_file_only(disk: &dyn Disk, options: &QueueOptions, rng: &mut fastrand::Rng) {
    let len = units(disk, 64 << 10);
    let mut queue = open(disk, options);
    let end = disk.len_bytes().expect("length").next_multiple_of(len.next_multiple_of(4096) as u64);
    let bytes = random_buffer(len, rng);
    let written = bytes.to_vec();
    run(&mut *queue, end, OpKind::write(bytes, false));
    let keep = end + (len / 2) as u64 / 4096 * 4096;
    let has_bytes = disk.len_bytes().expect("length");
    match disk.truncate(keep) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::Unsupported => return eprintln!("not checked: {error}"),
        Err(error) => panic!("{error}"),
    }
    assert_eq!(disk.len_bytes(), Ok(keep));
    let kept = (keep - end) as usize / disk.info().align_bytes * disk.info().align_bytes;
    assert!(kept == 0 || read(&mut *queue, end, kept)[..] == written[..kept]);
    for wrong in [has_bytes.next_multiple_of(4096), keep - 512] {
        assert_eq!(disk.truncate(wrong).expect_err("no such length").kind(), ErrorKind::InvalidCall, "{wrong}");
    }
    assert_eq!(disk.len_bytes(), Ok(keep));
}

fn depth_is_a_limit(disk: &dyn Disk, options: &QueueOptions, _: &mut fastrand::Rng) {
    let len = units(disk, 4096);
    let mut queue = open(disk, &QueueOptions { depth_max: 3, ..options.clone() });
    run(&mut *queue, 0, OpKind::write(zeroed(len), false));
    for token in 0..3 {
        push(&mut *queue, token, 0, OpKind::Read(zeroed(len)));
    }
    let refused = queue.push(Op::new(4, 0, OpKind::Read(zeroed(len)))).expect_err("three is the limit");
    assert_eq!((refused.error.kind(), refused.op.token), (ErrorKind::Busy, 4));
    let mut done = Vec::new();
    queue.reap(1, &mut done).expect("reap");
    push(&mut *queue, 5, 0, OpKind::Read(zeroed(len)));
    done.extend(reap_all(&mut *queue));
    let mut tokens: Vec<u64> = done.iter().map(|completion| completion.op.token).collect();
    tokens.sort_unstable();
    assert_eq!(tokens, [0, 1, 2, 5]);
    let refused = disk.queue(&QueueOptions { depth_max: 0, ..options.clone() });
    assert_eq!(refused.err().map(|error| error.kind()), Some(ErrorKind::InvalidCall));
}

fn a_look_does_not_wait(disk: &dyn Disk, options: &QueueOptions, _: &mut fastrand::Rng) {
    let len = units(disk, 4096);
    let mut queue = open(disk, options);
    let mut done = Vec::new();
    queue.reap(0, &mut done).expect("reap");
    queue.reap(7, &mut done).expect("nothing in flight, so nothing to wait for");
    assert!(done.is_empty());
    push(&mut *queue, 1, 0, OpKind::write(zeroed(len), false));
    // Calls of `reap(0)` are enough to complete an operation.
    let started = Instant::now();
    while done.is_empty() {
        queue.reap(0, &mut done).expect("reap");
        assert!(started.elapsed() < PATIENCE, "a pushed operation never came back");
        std::thread::yield_now();
    }
    assert_eq!((done.len(), queue.in_flight()), (1, 0));
}

fn the_descriptor_tells_when_there_is_something(disk: &dyn Disk, options: &QueueOptions, _: &mut fastrand::Rng) {
    let len = units(disk, 4096);
    let mut queue = open(disk, options);
    if queue.ready_fd().is_none() {
        return;
    }
    for round in 0..3 {
        queue.reap(0, &mut Vec::new()).expect("reap");
        assert!(!is_readable(&*queue, Duration::ZERO), "round {round}: nothing is in flight");
        push(&mut *queue, round, 0, OpKind::write(zeroed(len), false));
        push(&mut *queue, round, len as u64, OpKind::write(zeroed(len), false));
        queue.submit().expect("submit");
        let mut done = Vec::new();
        let mut looks = 0;
        while done.len() < 2 {
            assert!(readable_soon(&*queue), "round {round}: two writes are on their way");
            queue.reap(0, &mut done).expect("reap");
            looks += 1;
        }
        assert!(looks < 10, "round {round}: readable {looks} times for two completions");
    }
    // Completions that arrived before the descriptor was first requested count as well.
    let mut late = open(disk, options);
    for token in 0..2 {
        push(&mut *late, token, 0, OpKind::Read(zeroed(len)));
    }
    late.submit().expect("submit");
    std::thread::sleep(Duration::from_millis(20));
    assert!(readable_soon(&*late));
    assert_eq!(reap_all(&mut *late).len(), 2);
}

/// Returns whether a poll of the queue's descriptor is woken long before its timeout. A descriptor that is found
/// readable only at the end is not enough.
pub(crate) fn readable_soon(queue: &dyn Queue) -> bool {
    let started = Instant::now();
    is_readable(queue, PATIENCE) && started.elapsed() < PATIENCE
}

/// Returns whether the queue's descriptor polls readable within `patience`.
pub(crate) fn is_readable(queue: &dyn Queue, patience: Duration) -> bool {
    let fd = queue.ready_fd().expect("a descriptor");
    let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
    let timeout = rustix::time::Timespec::try_from(patience).expect("a short time");
    rustix::event::poll(&mut fds, Some(&timeout)).expect("poll") == 1
}

/// Bytes that count how many of their kind are alive.
struct CountedBytes {
    bytes: IoBuf,
    alive: Arc<AtomicUsize>,
}

// SAFETY: the bytes are an `IoBuf`'s, which is `StableBytes` itself.
unsafe impl StableBytes for CountedBytes {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for CountedBytes {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Ordering::SeqCst);
    }
}

fn dropping_a_queue_in_flight_frees_everything_once(disk: &dyn Disk, options: &QueueOptions, rng: &mut fastrand::Rng) {
    let len = units(disk, 16 << 10);
    for round in 0..10 {
        let alive = Arc::new(AtomicUsize::new(0));
        let mut queue = open(disk, options);
        for token in 0..12 {
            let (first, second) = random_buffer(2 * len, rng).split_at(len);
            let parts = [second, first].map(|bytes| {
                alive.fetch_add(1, Ordering::SeqCst);
                Arc::new(CountedBytes { bytes, alive: Arc::clone(&alive) }) as Arc<dyn StableBytes>
            });
            let data = WriteData::Gather(parts.into());
            push(&mut *queue, token, token * 2 * len as u64, OpKind::Write { data, durable: false });
            push(&mut *queue, token, token * len as u64, OpKind::Read(zeroed(len)));
            if round % 3 == 1 {
                queue.submit().expect("submit");
            }
        }
        if round % 3 == 2 {
            queue.submit().expect("submit");
            queue.reap(3, &mut Vec::new()).expect("reap");
        }
        drop(queue);
        let started = Instant::now();
        while alive.load(Ordering::SeqCst) > 0 {
            assert!(started.elapsed() < PATIENCE, "{} buffers were never freed", alive.load(Ordering::SeqCst));
            std::thread::yield_now();
        }
    }
    let mut queue = open(disk, options);
    let buffer = random_buffer(len, rng);
    let expected = buffer.to_vec();
    run(&mut *queue, 0, OpKind::write(buffer, false));
    assert!(*read(&mut *queue, 0, len) == expected[..], "the disk works on");
}

fn queues_do_not_see_each_others_completions(disk: &dyn Disk, options: &QueueOptions, _: &mut fastrand::Rng) {
    let len = units(disk, 4096);
    let (mut one, mut other) = (open(disk, options), open(disk, options));
    for round in 0..20_u64 {
        push(&mut *one, round, 0, OpKind::write(zeroed(len), false));
        push(&mut *other, 1000 + round, len as u64, OpKind::write(zeroed(len), false));
        let tokens = |done: Vec<Completion>| done.iter().map(|completion| completion.op.token).collect::<Vec<_>>();
        let done = [reap_all(&mut *other), reap_all(&mut *one)].map(tokens);
        assert_eq!(done, [vec![1000 + round], vec![round]]);
    }
}

/// Installs a seccomp filter that answers for the kernel, on this thread and the threads it starts from now on. Returns
/// the result of `seccomp`: a descriptor, where `flags` ask for one.
pub(crate) fn filter_calls(filter: &mut [libc::sock_filter], flags: libc::c_ulong) -> std::io::Result<libc::c_int> {
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program and its filter live until the calls return; the kernel copies them.
    let answer = unsafe {
        match libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) {
            0 => libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program),
            refused => refused.into(),
        }
    };
    if answer < 0 { Err(std::io::Error::last_os_error()) } else { Ok(answer as libc::c_int) }
}
