//! The queue of a ring: from operations to entries and back.
//!
//! An operation lives in a *slot* from `push` until its last completion entry is taken. A slot is in one of three
//! places: on the backlog (the kernel knows nothing of it), in the submission ring, or with the kernel; the latter two
//! count as `held`. Each slot has at most one entry under way, so that a completion names its slot and nothing else.
//!
//! Invariants:
//! 1. `held` counts the entries put into the submission ring, minus the ones with completions that have been taken.
//! 2. A slot that is held is neither freed nor changed. Slots that cannot be waited for are leaked, never freed:
//!    `slots` is dropped by hand, and only once nothing is held.
//! 3. An entry is made when there is space for it; a submission that fails leaves entries in the ring and slots on
//!    the backlog, and the next one continues there.

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use io_uring::opcode;
use io_uring::squeue::{Entry, Flags};
use io_uring::types::{CancelBuilder, Fd};
use rustix::event::EventfdFlags;

use super::UringOptions;
use super::rings::Lease;
use crate::aligned::Region;
use crate::completion::{Completion, Op};
use crate::disk::{DiskNote, Queue, QueueOptions, REFUSALS_MAX, REFUSED_PAUSE, RefusedOp, describe_op};
use crate::error::{Error, ErrorKind, Result, limit};
use crate::file::DiskFile;
use crate::process::Process;
use crate::transfer::{Piece, Step, Transfer, perform};

/// Most bytes of one registered buffer (the kernel's limit): longer regions are registered in pieces.
const REGISTERED_BYTES_MAX: usize = 1 << 30;
/// Most registered buffers of a ring (the kernel's limit).
const REGISTERED_COUNT_MAX: usize = 1 << 14;
/// The `user_data` of entries belonging to no operation.
const NO_SLOT: u64 = u64::MAX;
/// The flag IORING_ENTER_GETEVENTS of `io_uring_enter`: wait for completions.
const ENTER_GETEVENTS: u32 = 1;

/// The queue of one ring.
pub struct UringQueue {
    /// Dropped by hand: not in a forked child, which has the descriptor of the ring, and not its memory.
    ring: ManuallyDrop<Lease>,
    /// The process with the ring.
    process: Process,
    file: Arc<DiskFile>,
    /// Whether completions are only delivered when the owner's thread enters the kernel (DEFER_TASKRUN).
    deferred: bool,
    file_registered: bool,
    registered: Vec<RegisteredRange>,
    /// The registered regions, kept alive so that an address in one of the ranges is memory of that region.
    regions: Vec<Region>,
    slots: ManuallyDrop<Vec<Option<Transfer>>>,
    free: Vec<usize>,
    backlog: VecDeque<usize>,
    /// Operations that the ring has cancelled too often: `collect` carries them out.
    to_carry_out: Vec<Transfer>,
    held: usize,
    in_flight: usize,
    depth_max: usize,
    /// With DEFER_TASKRUN: the descriptor that `ready_fd` returns, created on first use. The ring's own descriptor
    /// does not suffice there: a poll that has begun to wait on it is not woken by deferred completions.
    event: OnceLock<Option<OwnedFd>>,
    notes: Vec<DiskNote>,
}

/// A registered range of memory, which the kernel identifies by a number.
#[derive(Debug, Clone, Copy)]
struct RegisteredRange {
    start: usize,
    end: usize,
    index: u16,
}

impl UringQueue {
    pub(super) fn new(
        ring: Lease,
        file: Arc<DiskFile>,
        options: &QueueOptions,
        ring_options: &UringOptions,
        notes: Vec<DiskNote>,
    ) -> Self {
        let deferred = ring.params().is_setup_single_issuer();
        let mut queue = Self {
            ring: ManuallyDrop::new(ring),
            process: Process::current(),
            file,
            deferred,
            file_registered: false,
            registered: Vec::new(),
            regions: Vec::new(),
            slots: ManuallyDrop::default(),
            free: Vec::new(),
            backlog: VecDeque::new(),
            to_carry_out: Vec::new(),
            held: 0,
            in_flight: 0,
            depth_max: options.depth_max,
            event: OnceLock::new(),
            notes,
        };
        if ring_options.register_file {
            queue.register_file();
        }
        if ring_options.register_buffers && !options.registered.is_empty() {
            queue.register_buffers(&options.registered);
        }
        queue
    }

    /// Returns the set-up of the queue's ring, and the refused features with their reasons.
    pub fn notes(&self) -> &[DiskNote] {
        &self.notes
    }

    fn register_file(&mut self) {
        match self.ring.submitter().register_files(&[self.file.as_raw_fd()]) {
            Ok(()) => self.file_registered = true,
            Err(error) => self.notes.push(DiskNote::missing(format!("file not registered: {error}"))),
        }
    }

    fn register_buffers(&mut self, regions: &[Region]) {
        let mut ranges = Vec::new();
        for region in regions {
            let base = region.base() as usize;
            for start in (0..region.len_bytes()).step_by(REGISTERED_BYTES_MAX) {
                let end = region.len_bytes().min(start + REGISTERED_BYTES_MAX);
                ranges.push(RegisteredRange { start: base + start, end: base + end, index: 0 });
            }
        }
        if ranges.len() > REGISTERED_COUNT_MAX {
            let why = format!("buffers not registered: {} pieces of memory are too many", ranges.len());
            self.notes.push(DiskNote::missing(why));
            return;
        }
        ranges.sort_unstable_by_key(|range| range.start);
        ranges.dedup_by_key(|range| range.start);
        let mut iovecs = Vec::with_capacity(ranges.len());
        for (index, range) in ranges.iter_mut().enumerate() {
            range.index = index as u16;
            iovecs.push(libc::iovec { iov_base: range.start as *mut _, iov_len: range.end - range.start });
        }
        // SAFETY: registering reads and writes nothing, it pins the pages. They are used through `IoBuf`s in slots
        // only, and `regions` keeps the ranges mapped for as long as addresses are looked up in them.
        match unsafe { self.ring.submitter().register_buffers(&iovecs) } {
            Ok(()) => {
                self.registered = ranges;
                self.regions = regions.to_vec();
            }
            Err(error) => self.notes.push(unregistered_note(&error, regions)),
        }
    }

    /// Returns the number of the registered buffer holding all of these bytes, if there is one.
    fn registered_index(&self, start: *const u8, len_bytes: u32) -> Option<u16> {
        let start = start as usize;
        let after = self.registered.partition_point(|range| range.start <= start);
        let range = self.registered.get(after.checked_sub(1)?)?;
        (start + len_bytes as usize <= range.end).then_some(range.index)
    }

    /// Returns the submission entry for the next piece of a slot.
    fn entry(&self, slot: usize, transfer: &Transfer) -> Entry {
        let fd = if self.file_registered { Fd(0) } else { Fd(self.file.as_raw_fd()) };
        let offset = transfer.offset_bytes();
        let flags_of = |durable: bool| if durable { libc::RWF_DSYNC } else { 0 };
        let entry = match transfer.piece() {
            Piece::Read { start, len_bytes } => match self.registered_index(start, len_bytes) {
                Some(index) => opcode::ReadFixed::new(fd, start, len_bytes, index).offset(offset).build(),
                None => opcode::Read::new(fd, start, len_bytes).offset(offset).build(),
            },
            Piece::Write { start, len_bytes, durable } => {
                let flags = flags_of(durable);
                match self.registered_index(start, len_bytes) {
                    Some(index) => {
                        opcode::WriteFixed::new(fd, start, len_bytes, index).offset(offset).rw_flags(flags).build()
                    }
                    None => opcode::Write::new(fd, start, len_bytes).offset(offset).rw_flags(flags).build(),
                }
            }
            Piece::WriteGather { iovecs, durable } => opcode::Writev::new(fd, iovecs.as_ptr(), iovecs.len() as u32)
                .offset(offset)
                .rw_flags(flags_of(durable))
                .build(),
            Piece::Sync => opcode::Fsync::new(fd).flags(io_uring::types::FsyncFlags::DATASYNC).build(),
            // A device needs no reservation: the entry does nothing, but completes as all others do.
            Piece::Allocate { .. } if self.file.is_block_device() => {
                return opcode::Nop::new().build().user_data(slot as u64);
            }
            Piece::Allocate { len_bytes } => opcode::Fallocate::new(fd, len_bytes).offset(offset).build(),
        };
        let entry = entry.user_data(slot as u64);
        if self.file_registered { entry.flags(Flags::FIXED_FILE) } else { entry }
    }

    /// Moves slots from the backlog to the submission ring while there is room.
    fn fill(&mut self) {
        while let Some(slot) = self.backlog.front().copied() {
            let Some(transfer) = &self.slots[slot] else {
                self.backlog.pop_front();
                continue;
            };
            let entry = self.entry(slot, transfer);
            // SAFETY: the memory the entry points to (the operation's bytes, its iovecs) belongs to the slot, which
            // stays untouched until the completion of this entry is taken: rule 2 above.
            if unsafe { self.ring.submission().push(&entry) }.is_err() {
                return;
            }
            self.backlog.pop_front();
            self.held += 1;
        }
    }

    /// Returns whether there are entries or slots that the kernel has not seen. A polling kernel thread takes entries
    /// by itself.
    fn unsent(&mut self) -> bool {
        let polled = self.ring.params().is_setup_sqpoll();
        !self.backlog.is_empty() || !polled && !self.ring.submission().is_empty()
    }

    /// Returns whether the kernel has entries with completions that have not been taken.
    fn kernel_has_some(&mut self) -> bool {
        self.held > self.ring.submission().len()
    }

    /// Submits as many entries as there is space for, and waits for `wait_for` completion entries (with zero for
    /// none). May do less of both, so callers check and repeat.
    fn enter(&mut self, wait_for: usize) -> Result<()> {
        self.fill();
        // Never wait for more than the kernel can answer. `fill` may stop early at a ring that only looks full: a
        // polling kernel thread answers entries before it gives their places back, all of them at the end.
        let entered = match wait_for.min(self.held) {
            0 if wait_for > 0 => self.ring.submitter().squeue_wait(),
            wait_for => self.ring.submit_and_wait(wait_for),
        };
        let error = match entered {
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        match error.raw_os_error() {
            Some(libc::EINTR) => Ok(()),
            // Short of memory, or too many completions are waiting to be taken: one of the operations with the kernel
            // must end first, then submission continues.
            Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM) if wait_for > 0 && self.kernel_has_some() => {
                match self.bring_out(1) {
                    Err(error) if error.raw_os_error() != Some(libc::EINTR) => Err(explain_enter(&error)),
                    _ => Ok(()),
                }
            }
            _ => Err(explain_enter(&error)),
        }
    }

    /// Makes the kernel post the completions that only an enter posts, and waits for `wait_for` of them. Submits no
    /// entry.
    fn bring_out(&self, wait_for: u32) -> std::io::Result<usize> {
        // SAFETY: no argument is passed, nothing is submitted.
        unsafe { self.ring.submitter().enter::<libc::sigset_t>(0, wait_for, ENTER_GETEVENTS, None) }
    }

    /// Takes every completion entry that is there. Finished operations go to `finished`, with their results. Operations
    /// with bytes left, or cancelled by the ring, go back to the backlog, from where this thread submits them again.
    /// Operations that the ring has cancelled too often go to `to_carry_out`.
    fn take_completions(&mut self, mut finished: impl FnMut(Completion)) {
        let Self { ring, slots, file, backlog, to_carry_out, free, held, in_flight, .. } = self;
        for entry in ring.completion() {
            if entry.user_data() == NO_SLOT {
                continue;
            }
            let slot = entry.user_data() as usize;
            *held -= 1;
            let Some(transfer) = slots[slot].as_mut() else { continue };
            let step = transfer.answered_by_ring(i64::from(entry.result()), file);
            if let Step::Again = step {
                backlog.push_back(slot);
                continue;
            }
            let Some(transfer) = slots[slot].take() else { continue };
            free.push(slot);
            *in_flight -= 1;
            match step {
                Step::Done(result) => finished(Completion { op: transfer.into_op(), result }),
                Step::Again | Step::CarryOut => to_carry_out.push(transfer),
            }
        }
    }

    /// Takes every completion entry that is there, and carries out on this thread the operations that the ring cancels again and
    /// again: few, as the ring finishes operations submitted by a thread that lives.
    fn collect(&mut self, into: &mut Vec<Completion>) {
        self.take_completions(|completion| into.push(completion));
        into.extend(self.to_carry_out.drain(..).map(|transfer| transfer.carry_out(&self.file)));
    }

    /// Registers and returns an eventfd that the kernel writes to with each completion, from now on.
    fn register_event(&self) -> Option<OwnedFd> {
        let event = rustix::event::eventfd(1, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).ok()?;
        self.ring.submitter().register_eventfd(event.as_raw_fd()).ok()?;
        Some(event)
    }

    /// Resets the notifier before completions are taken, so that any later completion makes the descriptor readable
    /// again. Returns whether it was set.
    fn silence_event(&self) -> bool {
        // Fails only when the counter is zero, and then there is nothing to silence.
        let silence = |event| rustix::io::read(event, &mut [0_u8; 8]).is_ok();
        self.event.get().and_then(Option::as_ref).is_some_and(silence)
    }

    /// Returns whether the kernel keeps completions that only an enter posts: task work of this thread, or entries that
    /// did not fit.
    fn kernel_keeps_completions(&mut self) -> bool {
        let submission = self.ring.submission();
        submission.taskrun() || submission.cq_overflow()
    }
}

impl Queue for UringQueue {
    fn push(&mut self, op: Op) -> std::result::Result<(), RefusedOp> {
        if self.in_flight >= self.depth_max {
            let error = Error::new(ErrorKind::Busy, describe_op(&op), format!("{} in flight", self.in_flight));
            return Err(RefusedOp { op, error });
        }
        if let Err(error) = self.file.accept(&op) {
            return Err(RefusedOp { op, error });
        }
        let transfer = Some(Transfer::new(op));
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot] = transfer;
                slot
            }
            None => {
                self.slots.push(transfer);
                self.slots.len() - 1
            }
        };
        self.backlog.push_back(slot);
        self.in_flight += 1;
        Ok(())
    }

    fn submit(&mut self) -> Result<()> {
        while self.unsent() {
            self.enter(0)?;
            if self.ring.params().is_setup_sqpoll() && !self.backlog.is_empty() {
                // The ring is full: wait until the kernel thread has taken some.
                self.ring.submitter().squeue_wait().map_err(|error| explain_enter(&error))?;
            }
        }
        Ok(())
    }

    fn reap(&mut self, wait_for: usize, into: &mut Vec<Completion>) -> Result<()> {
        let wanted = into.len() + wait_for.min(self.in_flight);
        let (mut taken_before, mut refusals) = (None, 0);
        loop {
            let rang = self.silence_event();
            self.collect(into);
            let missing = wanted.saturating_sub(into.len());
            // The kernel sets its "there is task work" flag after queueing the work: a thread that ran the work in
            // between sees a flag that stays. So one enter that posts nothing is the last, unless the descriptor was
            // signalled since the last look: it is signalled once for work that may still be there.
            let fruitless = !rang && taken_before == Some(into.len());
            if missing == 0 && !self.unsent() && (fruitless || !self.kernel_keeps_completions()) {
                return Ok(());
            }
            taken_before = Some(into.len());
            let Err(refused) = self.enter(missing.min(self.ring.params().cq_entries() as usize)) else {
                refusals = 0;
                continue;
            };
            if !refused.may_pass() {
                return Err(refused);
            }
            if missing == 0 {
                // Where the kernel takes no entries it has not posted completions either.
                let looked = self.bring_out(0).is_ok();
                self.collect(into);
                // The next call, which a completion leads to, submits the rest. Where no completion is to come, the
                // caller gets an error.
                if looked && (self.kernel_has_some() || !self.unsent()) {
                    return Ok(());
                }
                if wait_for == 0 {
                    return Err(refused);
                }
            }
            refusals += 1;
            if refusals > REFUSALS_MAX {
                return Err(refused);
            }
            std::thread::sleep(REFUSED_PAUSE);
        }
    }

    fn run(&mut self, op: Op, into: &mut Vec<Completion>) -> Result<()> {
        into.push(perform(op, &self.file));
        Ok(())
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn ready_fd(&self) -> Option<BorrowedFd<'_>> {
        if self.deferred {
            // Starts readable: there may be completions from before it was registered.
            return self.event.get_or_init(|| self.register_event()).as_ref().map(AsFd::as_fd);
        }
        // SAFETY: the ring is open for as long as `self` lives, which the result borrows.
        Some(unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) })
    }
}

impl Drop for UringQueue {
    /// Does nothing in a forked child: a change of the ring would be a change of its parent's.
    fn drop(&mut self) {
        if self.process.is_here() {
            self.end();
            // SAFETY: the ring is not used again.
            unsafe { ManuallyDrop::drop(&mut self.ring) };
        }
    }
}

impl UringQueue {
    /// Cancels the operations that the kernel holds and waits for them, so that the memory can be freed. Operations
    /// that a device has begun cannot be cancelled: this takes as long as the device does.
    fn end(&mut self) {
        self.backlog.clear();
        if self.held == 0 {
            self.ring.keep();
        }
        let cancel = opcode::AsyncCancel2::new(CancelBuilder::any().all()).build().user_data(NO_SLOT);
        let (mut cancel_unsent, mut refusals) = (true, 0);
        while self.held > 0 {
            if cancel_unsent {
                // SAFETY: the entry points to no memory.
                cancel_unsent = unsafe { self.ring.submission().push(&cancel) }.is_err();
            }
            match self.enter(1) {
                Ok(()) => refusals = 0,
                Err(refused) if refused.may_pass() && refusals < REFUSALS_MAX => {
                    refusals += 1;
                    std::thread::sleep(REFUSED_PAUSE);
                }
                // The kernel permits neither submitting nor waiting: the queue has `single_thread`, and another thread
                // drops it.
                Err(_) => return,
            }
            self.take_completions(drop);
            // The rest of a short transfer: its result is not needed any more.
            self.backlog.clear();
        }
        // SAFETY: nothing is held, so the kernel has no address of a slot's memory, and `slots` is not used again.
        // The other ways out (the return above, a panic in the caller's own `Drop` code) leak the memory that the
        // kernel may still write to.
        unsafe { ManuallyDrop::drop(&mut self.slots) };
        // Closing a ring ends in the background. Without this its pinned memory would count against RLIMIT_MEMLOCK, and
        // its file keep a file system busy, for a while after.
        if self.file_registered {
            let _ = self.ring.submitter().unregister_files();
        }
        if !self.registered.is_empty() {
            let _ = self.ring.submitter().unregister_buffers();
        }
    }
}

impl std::fmt::Debug for UringQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "UringQueue({} in flight, {} with the kernel, {:?})", self.in_flight, self.held, self.notes)
    }
}

fn unregistered_note(error: &std::io::Error, regions: &[Region]) -> DiskNote {
    let len_bytes: usize = regions.iter().map(Region::len_bytes).sum();
    let why = match error.raw_os_error() {
        Some(libc::ENOMEM) => {
            let limit = limit(rustix::process::Resource::Memlock);
            format!("raise `ulimit -l` (RLIMIT_MEMLOCK), now {limit}, or give CAP_IPC_LOCK")
        }
        _ => error.to_string(),
    };
    DiskNote::missing(format!("buffers not registered: {len_bytes} bytes: {why}"))
}

/// Explains why the kernel does not take entries, and the remedy.
fn explain_enter(error: &std::io::Error) -> Error {
    let action = "submit to the ring";
    match error.raw_os_error() {
        Some(libc::EEXIST) => {
            let hint = "the queue was opened with `single_thread`: use it from the thread that opened it";
            Error::new(ErrorKind::InvalidCall, action, hint)
        }
        Some(libc::EAGAIN | libc::EBUSY) => {
            Error::new(ErrorKind::Busy, action, "the kernel takes no more now: reap, then submit again")
        }
        _ => Error::from_io(action, error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aligned::{IoBuf, PageKind};
    use crate::completion::OpKind;
    use crate::disk::{DirectIo, Disk as _, FileOptions};
    use crate::uring::UringDisk;

    /// Makes an empty file, in a folder removed when it is dropped. `None`, with the reason on standard error, where there are no rings.
    fn new_file() -> Option<(tempfile::TempDir, UringDisk)> {
        if let Some(refused) = UringDisk::ring_refused() {
            eprintln!("not checked: {refused}");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let options = FileOptions { create: true, direct: DirectIo::Never, ..FileOptions::default() };
        let disk = UringDisk::open(&folder.path().join("file"), &options).unwrap();
        Some((folder, disk))
    }

    /// The kernel answers EFAULT for memory that is not in the registered buffer that the entry names.
    #[test]
    fn operations_that_the_ring_always_cancels_are_carried_out_by_the_reaping_thread() {
        let Some((_folder, disk)) = new_file() else { return };
        let mut bytes = IoBuf::zeroed(4096, PageKind::Small).unwrap();
        bytes.fill(7);
        let other = IoBuf::zeroed(4096, PageKind::Small).unwrap();
        let registered = vec![bytes.region().clone(), other.region().clone()];
        let options = QueueOptions { registered, ..QueueOptions::default() };
        let mut queue = disk.queue_with(&options, &UringOptions::default()).unwrap();
        let [one, two] = &mut queue.registered[..] else {
            eprintln!("not checked: {:?}", queue.notes());
            return;
        };
        std::mem::swap(&mut one.index, &mut two.index);
        let operations =
            [(OpKind::write(bytes, true), Ok(4096)), (OpKind::Read(other), Ok(4096)), (OpKind::Sync, Ok(0))];
        for (kind, wanted) in operations {
            queue.push(Op::new(1, 0, kind)).unwrap();
            let mut done = Vec::new();
            queue.reap(1, &mut done).unwrap();
            let done = done.pop().unwrap();
            assert_eq!((&done.result, queue.in_flight()), (&wanted, 0), "{:?}", done.op);
            if let OpKind::Read(bytes) = done.op.kind {
                assert!(bytes.iter().all(|byte| *byte == 7));
            }
        }
        assert_eq!(disk.len_bytes().unwrap(), 4096);
    }

    #[test]
    fn a_forked_child_that_drops_a_queue_leaves_the_ring_of_its_parent_alone() {
        let Some((_folder, disk)) = new_file() else { return };
        let bytes = || IoBuf::zeroed(4096, PageKind::Small).unwrap();
        let mut queue = disk.queue_with(&QueueOptions::default(), &UringOptions::default()).unwrap();
        queue.push(Op::new(1, 0, OpKind::write(bytes(), true))).unwrap();
        assert!(crate::process::tests::in_a_child(|| {
            // SAFETY: dropped once in this process, which ends without dropping the original.
            drop(unsafe { std::ptr::read(&raw const queue) });
            true
        }));
        queue.push(Op::new(2, 4096, OpKind::write(bytes(), true))).unwrap();
        let mut done = Vec::new();
        while queue.in_flight() > 0 {
            queue.reap(1, &mut done).unwrap();
        }
        assert!(done.len() == 2 && done.iter().all(|done| done.result == Ok(4096)), "{done:?}");
    }
}
