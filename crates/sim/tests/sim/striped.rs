//! A striped disk over simulated ones, against an array of bytes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nofault_io::aligned::StableBytes;
use nofault_io::completion::{Completion, Op, OpKind, WriteData};
use nofault_io::disk::{Disk, Queue, QueueOptions};
use nofault_io::error::{Error, ErrorKind};
use nofault_io::striped::StripedDisk;
use nofault_sim::{Call, Effect, Fault, Hooks, Rates, SimOptions, SimWorld};
use rustix::event::{PollFd, PollFlags, poll};

use crate::{BLOCK, buffer, read, run, sync, write, write_durable};

fn striped(world: &SimWorld, count: usize, stripe: u64) -> StripedDisk {
    let directory = world.directory();
    let children = (0..count).map(|index| directory.create(&format!("disk{index}")).unwrap()).collect();
    directory.sync().unwrap();
    StripedDisk::new(children, stripe).unwrap()
}

/// The expected content of a striped disk: every byte by its place in the whole, and the length of each child.
struct Model {
    bytes: Vec<u8>,
    stripe: usize,
    child_lens: Vec<usize>,
}

impl Model {
    fn extend_to(&mut self, at: usize) {
        let stripe = at / self.stripe;
        let child = stripe % self.child_lens.len();
        let place = stripe / self.child_lens.len() * self.stripe + at % self.stripe;
        self.child_lens[child] = self.child_lens[child].max(place + 1);
    }

    fn has(&self, at: usize) -> bool {
        let stripe = at / self.stripe;
        let place = stripe / self.child_lens.len() * self.stripe + at % self.stripe;
        place < self.child_lens[stripe % self.child_lens.len()]
    }

    fn len(&self) -> usize {
        (0..).step_by(512).find(|at| !self.has(*at)).unwrap()
    }
}

const SPACE: usize = 64 * 512;

/// Some ranges of the space that do not overlap, each with a random choice of operation.
fn batch(rng: &mut fastrand::Rng) -> Vec<(std::ops::Range<usize>, u8)> {
    let mut at = rng.usize(0..8) * 512;
    let mut ranges = Vec::new();
    while at < SPACE && ranges.len() < 8 {
        let end = (at + rng.usize(1..20) * 512).min(SPACE);
        ranges.push((at..end, rng.u8(0..8)));
        at = end + rng.usize(0..6) * 512;
    }
    rng.shuffle(&mut ranges);
    ranges
}

#[test]
fn a_gap_ends_the_length_but_not_the_extent() {
    let world = SimWorld::new(1, SimOptions::calm());
    let disk = striped(&world, 3, 512);
    assert_eq!((disk.len_bytes(), disk.extent_bytes()), (Ok(0), Ok(0)));
    let mut queue = disk.queue(&QueueOptions::default()).unwrap();
    write(&mut *queue, 7 * 512, 1, 512).unwrap();
    assert_eq!(disk.len_bytes(), Ok(0), "the first stripe is missing");
    assert!(disk.extent_bytes().unwrap() >= 8 * 512, "the write is within");
}

#[test]
fn random_operations_leave_what_an_array_of_bytes_would() {
    let mut spanned = 0;
    for seed in 0..120 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let options = SimOptions {
            rates: Rates { split_transfer: 0.3, ..Rates::default() },
            ..if seed % 2 == 0 { SimOptions::default() } else { SimOptions::adversarial() }
        };
        let world = SimWorld::new(seed, options);
        let (count, stripe) = (rng.usize(1..5), 512 << rng.usize(0..4));
        let disk = striped(&world, count, stripe as u64);
        // Children as shallow as this must be refilled again and again.
        let depth_max = if seed % 3 == 0 { 8 } else { 64 };
        let mut queue = disk.queue(&QueueOptions { depth_max, ..QueueOptions::default() }).unwrap();
        let mut model = Model { bytes: vec![0; SPACE], stripe, child_lens: vec![0; count] };
        for _ in 0..12 {
            let ranges = batch(&mut rng);
            for (token, (range, what)) in ranges.iter().enumerate() {
                spanned += usize::from(range.len() > stripe && count > 1);
                let fill = rng.u8(1..);
                let kind = match what {
                    0..3 => OpKind::Read(buffer(range.len(), 0xEE)),
                    3..5 => OpKind::write(buffer(range.len(), fill), *what == 3),
                    5..7 => {
                        let parts = range.clone().step_by(512).map(|at| {
                            let part: Arc<dyn StableBytes> = Arc::new(buffer(512, fill.wrapping_add((at / 512) as u8)));
                            part
                        });
                        OpKind::Write { data: WriteData::Gather(parts.collect()), durable: false }
                    }
                    _ => OpKind::Allocate { len_bytes: range.len() as u64 },
                };
                queue.push(Op::new(token as u64, range.start as u64, kind)).unwrap();
            }
            let mut done: Vec<Completion> = Vec::new();
            while done.len() < ranges.len() {
                queue.reap(rng.usize(0..4), &mut done).unwrap();
            }
            let tokens: BTreeSet<u64> = done.iter().map(|completion| completion.op.token).collect();
            assert_eq!((tokens.len(), queue.in_flight()), (ranges.len(), 0), "{world}");
            // Writes and reads of a batch do not overlap, but lengths do: a read is checked against the lengths before
            // and after.
            let before = model.child_lens.clone();
            for completion in done.iter().filter(|completion| !matches!(completion.op.kind, OpKind::Read(_))) {
                let range = ranges[completion.op.token as usize].0.clone();
                assert_eq!(completion.op.offset_bytes, range.start as u64);
                assert_eq!(completion.result, Ok(completion.op.kind.len_bytes()), "{world}");
                match &completion.op.kind {
                    OpKind::Write { data, .. } => {
                        let bytes: Vec<u8> = data.parts().flatten().copied().collect();
                        model.bytes[range.clone()].copy_from_slice(&bytes);
                        range.step_by(512).for_each(|at| model.extend_to(at + 511));
                    }
                    _ => (0..range.end).step_by(512).for_each(|at| model.extend_to(at + 511)),
                }
            }
            let before = Model { bytes: Vec::new(), stripe, child_lens: before };
            for completion in &done {
                let OpKind::Read(seen) = &completion.op.kind else { continue };
                let range = ranges[completion.op.token as usize].0.clone();
                assert_eq!(seen.len(), range.len());
                match &completion.result {
                    Ok(len) => {
                        assert_eq!(*len, range.len());
                        assert_eq!(seen[..], model.bytes[range.clone()], "{world}");
                        assert!(range.step_by(512).all(|at| model.has(at)), "{world}");
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Short, "{world}: {error}");
                        assert!(!range.step_by(512).all(|at| before.has(at)), "{world}");
                    }
                }
            }
            assert_eq!(disk.len_bytes().unwrap(), model.len() as u64, "{world}");
        }
    }
    assert!(spanned > 1000, "{spanned} operations over several stripes");
}

#[test]
fn an_error_of_one_disk_is_the_error_of_the_whole_and_names_the_disk() {
    let world = SimWorld::new(1, SimOptions::default());
    let disk = striped(&world, 3, 4096);
    let mut queue = disk.queue(&QueueOptions::default()).unwrap();
    write(&mut *queue, 0, 1, 6 * BLOCK).unwrap();
    let read_all = OpKind::Read(buffer(4 * BLOCK, 0));
    for (call, kind, action) in
        [(Call::Read, read_all, "read 16384 bytes at 0"), (Call::Sync, OpKind::Sync, "sync at 0")]
    {
        world.inject(Fault::new(call, Effect::Errno(libc::EIO)).on("disk1"));
        let error = run(&mut *queue, 0, kind).unwrap_err();
        assert_eq!((error.kind(), error.errno()), (ErrorKind::Device, Some(libc::EIO)));
        let text = error.to_string();
        assert!(
            text.starts_with(&format!("{action} of a striped disk: disk 1: ")) && text.contains("(disk1)"),
            "{text}"
        );
    }
    assert_eq!(read(&mut *queue, 0, 6 * BLOCK).unwrap(), [1; 6 * BLOCK]);
}

#[test]
fn a_failed_operation_comes_back_whole_with_its_memory() {
    let world = SimWorld::new(1, SimOptions::adversarial());
    let disk = striped(&world, 3, 512);
    let mut queue = disk.queue(&QueueOptions::default()).unwrap();
    let memory = buffer(4 * BLOCK, 7);
    let address = memory.address();
    world.inject(Fault::new(Call::Write, Effect::Errno(libc::EIO)).on("disk2"));
    queue.push(Op::new(42, 0, OpKind::write(memory, false))).unwrap();
    let mut done = Vec::new();
    queue.reap(1, &mut done).unwrap();
    let completion = done.remove(0);
    assert_eq!((completion.op.token, completion.result.is_err()), (42, true));
    let memory = completion.into_buffer().unwrap();
    assert_eq!((memory.address(), memory.len()), (address, 4 * BLOCK));
    // And a read past the end.
    queue.push(Op::new(43, 0, OpKind::Read(memory))).unwrap();
    queue.reap(1, &mut done).unwrap();
    let memory = done.remove(0).into_buffer().unwrap();
    assert_eq!((memory.address(), memory.len()), (address, 4 * BLOCK));
}

#[test]
fn a_sync_and_a_durable_write_reach_every_disk() {
    for seed in 0..50 {
        let world = SimWorld::new(seed, SimOptions::adversarial());
        let disk = striped(&world, 3, 4096);
        let mut queue = disk.queue(&QueueOptions::default()).unwrap();
        write(&mut *queue, 0, 1, 6 * BLOCK).unwrap();
        sync(&mut *queue).unwrap();
        write_durable(&mut *queue, 6 * BLOCK as u64, 2, 3 * BLOCK).unwrap();
        let after = world.restart(seed);
        for index in 0..3 {
            let bytes = after.read_file(&format!("disk{index}")).unwrap();
            assert_eq!(bytes, [[1; BLOCK], [1; BLOCK], [2; BLOCK]].concat(), "{after}");
        }
    }
}

#[test]
fn a_power_cut_stops_it_and_every_operation_comes_back() {
    for event in 0..60 {
        let world = SimWorld::new(event, SimOptions::adversarial());
        let disk = striped(&world, 3, 512);
        let mut queue = disk.queue(&QueueOptions { depth_max: 4, ..QueueOptions::default() }).unwrap();
        world.cut_after(world.events() + event);
        let (mut pushed, mut done) = (0, Vec::new());
        for token in 0..20 {
            match queue.push(Op::new(token, token * 4096, OpKind::write(buffer(BLOCK, 1), false))) {
                Ok(()) => pushed += 1,
                Err(refused) => {
                    assert_eq!(refused.op.token, token);
                    assert!([ErrorKind::Stopped, ErrorKind::Busy].contains(&refused.error.kind()));
                    assert!(matches!(&refused.op.kind, OpKind::Write { data, .. } if data.len_bytes() == BLOCK));
                }
            }
            queue.reap(usize::from(token % 4 == 3), &mut done).unwrap();
        }
        queue.reap(usize::MAX, &mut done).unwrap();
        assert_eq!((done.len(), queue.in_flight()), (pushed, 0), "{world}");
        assert!(
            done.into_iter().all(|completion| completion.into_buffer().is_some_and(|memory| memory.len() == BLOCK))
        );
    }
}

#[test]
fn its_descriptor_leads_a_poller_to_every_completion() {
    let world = SimWorld::new(4, SimOptions::adversarial());
    let disk = striped(&world, 3, 512);
    let mut queue = disk.queue(&QueueOptions::default()).unwrap();
    assert!(queue.ready_fd().is_some());
    for token in 0..5 {
        queue.push(Op::new(token, token * 4096, OpKind::write(buffer(BLOCK, 1), false))).unwrap();
    }
    queue.submit().unwrap();
    let mut done = Vec::new();
    while queue.in_flight() > 0 {
        let mut fds = [PollFd::from_borrowed_fd(queue.ready_fd().unwrap(), PollFlags::IN)];
        assert_eq!(poll(&mut fds, None).unwrap(), 1);
        queue.reap(0, &mut done).unwrap();
    }
    assert_eq!(done.len(), 5);
    let mut fds = [PollFd::from_borrowed_fd(queue.ready_fd().unwrap(), PollFlags::IN)];
    assert_eq!(poll(&mut fds, Some(&rustix::event::Timespec::default())).unwrap(), 0);
}

#[test]
fn a_striped_disk_needs_disks_and_stripes_that_fit_them() {
    let world = SimWorld::new(1, SimOptions::default());
    let child: Arc<dyn Disk> = world.directory().create("a").unwrap();
    for (children, stripe) in [(vec![], 4096), (vec![child.clone()], 0), (vec![child.clone()], 700)] {
        assert_eq!(StripedDisk::new(children, stripe).unwrap_err().kind(), ErrorKind::InvalidCall);
    }
    let disk = StripedDisk::new(vec![child], 4096).unwrap();
    assert_eq!((disk.info().kind, disk.info().align_bytes, disk.info().direct), ("striped", 512, true));
    let mut queue: Box<dyn Queue> = disk.queue(&QueueOptions::default()).unwrap();
    let refused = queue.push(Op::new(1, 3, OpKind::Read(buffer(512, 0)))).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::InvalidCall);
}

/// Returns a disk whose queues refuse to submit a given number of times. A reap that waits tries a hundred times.
fn refusing(disk: Arc<dyn Disk>, times: &Arc<AtomicUsize>) -> Arc<dyn Disk> {
    let (unsent, times) = (Arc::new(AtomicUsize::new(0)), Arc::clone(times));
    let pushed = Arc::clone(&unsent);
    let submit = Arc::new(move |queue: &mut dyn Queue| {
        let less = |times: usize| times.checked_sub(1);
        let is_asked = unsent.load(Ordering::SeqCst) > 0;
        if is_asked && times.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok() {
            return Err(Error::new(ErrorKind::Busy, "submit", "not now"));
        }
        unsent.store(0, Ordering::SeqCst);
        queue.submit()
    });
    let submit_first = Arc::clone(&submit);
    let hooks = Hooks::new().submit(move |queue| submit(queue)).push(move |queue, op| {
        pushed.fetch_add(1, Ordering::SeqCst);
        queue.push(op)
    });
    let hooks = hooks.reap(move |queue, wait_for, into| {
        let mut sent = submit_first(queue);
        let mut tries = if wait_for == 0 { 0 } else { 100 };
        while sent.is_err() && tries > 0 {
            tries -= 1;
            sent = submit_first(queue);
        }
        sent?;
        queue.reap(wait_for, into)
    });
    hooks.disk(disk)
}

#[test]
fn a_disk_that_refuses_operations_for_a_while_does_not_delay_the_others() {
    let world = SimWorld::new(1, SimOptions::calm());
    let times = Arc::new(AtomicUsize::new(0));
    let child = |name: &str| world.directory().create(name).unwrap();
    let disk = StripedDisk::new(vec![refusing(child("a"), &times), child("b"), child("c")], 512).unwrap();
    let mut queue = disk.queue(&QueueOptions::default()).unwrap();
    write(&mut *queue, 0, 1, 3 * 512).unwrap();
    let push_three = |queue: &mut dyn Queue| {
        for token in 0..3 {
            queue.push(Op::new(token, token * 512, OpKind::Read(buffer(512, 0)))).unwrap();
        }
    };
    let tokens = |done: &[Completion]| done.iter().map(|done| done.op.token).collect::<BTreeSet<_>>();
    // A reap without waiting returns the completions of the other children, and reports the child that took nothing.
    times.store(usize::MAX, Ordering::SeqCst);
    push_three(&mut *queue);
    let mut done = Vec::new();
    for _ in 0..100 {
        assert_eq!(queue.reap(0, &mut done).unwrap_err().kind(), ErrorKind::Busy);
    }
    assert_eq!(tokens(&done), BTreeSet::from([1, 2]));
    times.store(0, Ordering::SeqCst);
    queue.reap(1, &mut done).unwrap();
    assert_eq!(tokens(&done), BTreeSet::from([0, 1, 2]));
    // A waiting reap hides the refusals.
    for refusals in 0..30 {
        push_three(&mut *queue);
        times.store(refusals, Ordering::SeqCst);
        done.clear();
        queue.reap(3, &mut done).unwrap();
        assert_eq!(tokens(&done), BTreeSet::from([0, 1, 2]));
    }
    // A child that never accepts again is waited for only a bounded time.
    times.store(usize::MAX, Ordering::SeqCst);
    push_three(&mut *queue);
    done.clear();
    assert_eq!(queue.reap(2, &mut done).unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!((tokens(&done), queue.in_flight()), (BTreeSet::from([1, 2]), 1));
    times.store(0, Ordering::SeqCst);
    queue.reap(1, &mut done).unwrap();
    assert_eq!(queue.in_flight(), 0);
}
