//! One disk over several, striped (RAID 0): consecutive stripes lie on consecutive disks, so that large requests and
//! many small ones keep all of them busy. There is no redundancy: the data of a lost disk is lost.
//!
//! A request within one stripe is handed on as it is. A longer read becomes one read per stripe; a longer write becomes
//! one gathered write per disk, because its stripes follow each other there. The whole fails when a part fails, with
//! the disk named; other parts may have been done, as with any failed write.
//!
//! **Length.** The disk ends at the first byte that one of its parts lacks. With parts of equal length in whole stripes
//! that is their sum; on unequal ones the surplus is not used. A write beyond the end that leaves a gap does not move
//! the end until the gap is filled; `Allocate` fills gaps.
//!
//! Kept true by:
//! 1. A parent lives in its slot until each of its parts has come back; a part's token is slot and number.
//! 2. A part is in its child's queue, or in the backlog of a child whose queue is full; so a backlog means that there
//!    is something to wait for.

mod directory;
mod layout;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};

use crate::aligned::{IoBuf, StableBytes};
use crate::completion::{Completion, Op, OpKind, WriteData};
use crate::disk::{
    Disk, DiskInfo, DiskNote, Queue, QueueOptions, REFUSALS_MAX, REFUSED_PAUSE, RefusedOp, check_op, check_truncate,
    describe_op, perform_on_a_queue,
};
use crate::error::{Error, ErrorKind, Result};
pub use directory::StripedDirectory;
use layout::{Layout, Piece};

/// Most pieces of memory in one gathered write. The kernel takes 1024.
const PARTS_MAX: usize = 512;

/// Several disks, striped into one.
#[derive(Clone)]
pub struct StripedDisk {
    children: Arc<[Arc<dyn Disk>]>,
    layout: Layout,
    /// The largest alignment that one of the disks requires.
    align_bytes: usize,
}

impl StripedDisk {
    /// Stripes `children`, in this order, in stripes of `stripe_bytes`. Order and stripe size are not stored
    /// anywhere: opening the same disks otherwise gives other bytes.
    ///
    /// # Errors
    /// `InvalidCall` without children, or when `stripe_bytes` is not a multiple of the offset alignment of each
    /// child.
    pub fn new(children: Vec<Arc<dyn Disk>>, stripe_bytes: u64) -> Result<Self> {
        let invalid = |why: String| Error::new(ErrorKind::InvalidCall, "stripe disks", why);
        if children.is_empty() {
            return Err(invalid("there are none".into()));
        }
        let align_bytes = children.iter().map(|child| child.info().align_bytes).max().unwrap_or(1);
        let align = align_bytes as u64;
        if stripe_bytes == 0 || !stripe_bytes.is_multiple_of(align) || usize::try_from(stripe_bytes).is_err() {
            return Err(invalid(format!("stripes of {stripe_bytes} bytes; they must be multiples of {align}")));
        }
        let layout = Layout { stripe: stripe_bytes, count: children.len() as u64 };
        Ok(Self { children: children.into(), layout, align_bytes })
    }
}

impl Disk for StripedDisk {
    fn info(&self) -> DiskInfo {
        let infos: Vec<DiskInfo> = self.children.iter().map(|child| child.info()).collect();
        let mut notes =
            vec![DiskNote::in_use(format!("{} disks in stripes of {} bytes", infos.len(), self.layout.stripe))];
        for (index, info) in infos.iter().enumerate() {
            let path = info.path.as_ref().map(|path| format!(" {}", path.display())).unwrap_or_default();
            notes.push(DiskNote::in_use(format!("disk {index}: {}{path}", info.kind)));
            notes.extend(
                info.notes.iter().map(|note| DiskNote { text: format!("disk {index}: {note}"), kind: note.kind }),
            );
        }
        DiskInfo {
            kind: "striped",
            path: None,
            direct: infos.iter().all(|info| info.direct),
            align_bytes: self.align_bytes,
            notes,
        }
    }

    fn len_bytes(&self) -> Result<u64> {
        let mut end = u64::MAX;
        for (index, child) in self.children.iter().enumerate() {
            let len = child.len_bytes().map_err(|error| name_child(error, index, "find the length"))?;
            end = end.min(self.layout.first_missing(index as u64, len));
        }
        Ok(end)
    }

    fn extent_bytes(&self) -> Result<u64> {
        let mut longest = 0;
        for (index, child) in self.children.iter().enumerate() {
            let len = child.len_bytes().map_err(|error| name_child(error, index, "find the length"))?;
            longest = longest.max(len.div_ceil(self.layout.stripe));
        }
        Ok(longest.saturating_mul(self.layout.stripe).saturating_mul(self.layout.count))
    }

    /// Cuts one disk after the other: after an error, or a power cut, some may be longer than their share. They are cut
    /// the next time.
    fn truncate(&self, len_bytes: u64) -> Result<()> {
        check_truncate(len_bytes, self.len_bytes()?)?;
        for (index, child) in self.children.iter().enumerate() {
            let of_child = self.layout.child_len(index as u64, len_bytes);
            child.truncate(of_child).map_err(|error| name_child(error, index, "truncate"))?;
        }
        Ok(())
    }

    fn queue(&self, options: &QueueOptions) -> Result<Box<dyn Queue>> {
        // Waiting for several rings is a poll of their descriptors, and polling a ring with DEFER_TASKRUN, which
        // `single_thread` brings, does not wake a sleeping poll when a completion becomes due (seen on Linux 6.18).
        let single_thread = options.single_thread && self.children.len() == 1;
        let child_options = QueueOptions { single_thread, ..options.clone() };
        let open = |(index, child): (usize, &Arc<dyn Disk>)| {
            let queue = child.queue(&child_options).map_err(|error| name_child(error, index, "open a queue"))?;
            Ok(Child { queue, backlog: VecDeque::new() })
        };
        Ok(Box::new(StripedQueue {
            children: self.children.iter().enumerate().map(open).collect::<Result<_>>()?,
            disk: self.clone(),
            info: self.info(),
            depth_max: options.depth_max,
            in_flight: 0,
            parents: Vec::new(),
            free: Vec::new(),
            done: Vec::new(),
            ready: OnceLock::new(),
        }))
    }

    /// Performs an operation within one stripe directly on its disk, and others through a queue.
    fn perform(&self, op: Op) -> Result<Completion> {
        // Checked first: the layout is defined only for operations with an end that is a valid position.
        if let Err(error) = check_op(&op, self.align_bytes) {
            return Ok(Completion { op, result: Err(error) });
        }
        let Op { token, offset_bytes, kind } = op;
        let mut pieces = self.layout.pieces(offset_bytes, kind.len_bytes());
        let (Some(Piece { child, offset, .. }), None) = (pieces.next(), pieces.next()) else {
            return perform_on_a_queue(self, Op { token, offset_bytes, kind });
        };
        let Completion { op, result } = self.children[child].perform(Op::new(token, offset, kind))?;
        let result = result.map_err(|error| name_child(error, child, "use"));
        Ok(Completion { op: Op { offset_bytes, ..op }, result })
    }
}

impl fmt::Debug for StripedDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StripedDisk({} bytes a stripe, {:?})", self.layout.stripe, self.children)
    }
}

fn name_child(error: Error, index: usize, action: &str) -> Error {
    error.within(format!("{action} of a striped disk: disk {index}"))
}

struct Child {
    queue: Box<dyn Queue>,
    /// Parts for which the disk's queue had no space.
    backlog: VecDeque<Op>,
}

impl Child {
    /// Submits a part, or keeps it until the disk's queue has space.
    fn start(&mut self, op: Op) -> std::result::Result<(), Box<RefusedOp>> {
        if !self.backlog.is_empty() {
            self.backlog.push_back(op);
            return Ok(());
        }
        match self.queue.push(op) {
            Err(refused) if refused.error.kind() == ErrorKind::Busy && self.queue.in_flight() > 0 => {
                self.backlog.push_back(refused.op);
                Ok(())
            }
            other => other.map_err(Box::new),
        }
    }
}

/// The memory and the kind of the whole operation, from which it is rebuilt once its parts are back.
enum WholeOp {
    /// An operation that lies within one stripe and is passed on unchanged.
    Passed(Option<OpKind>),
    Read(Vec<Option<IoBuf>>),
    Owned {
        buffer: Arc<IoBuf>,
        durable: bool,
    },
    Gathered {
        parts: Vec<Arc<dyn StableBytes>>,
        durable: bool,
    },
    Sync,
    Allocate {
        len_bytes: u64,
    },
}

struct Parent {
    token: u64,
    offset: u64,
    whole: WholeOp,
    parts_left: usize,
    /// The first part, in order, that failed: its number, its disk and its error.
    error: Option<(u32, usize, Error)>,
}

impl Parent {
    fn take_back(&mut self, part: u32, kind: OpKind) {
        match (&mut self.whole, kind) {
            (WholeOp::Passed(passed), kind) => *passed = Some(kind),
            (WholeOp::Read(buffers), OpKind::Read(buffer)) => {
                if let Some(place) = buffers.get_mut(part as usize) {
                    *place = Some(buffer);
                }
            }
            // The parts were slices of memory that the parent holds.
            _ => {}
        }
    }

    /// Returns the operation as it was pushed, once every part is back.
    fn into_op(self) -> Op {
        let kind = match self.whole {
            WholeOp::Passed(kind) => kind.unwrap_or(OpKind::Sync),
            WholeOp::Read(buffers) => joined(buffers),
            WholeOp::Owned { buffer, durable } => {
                let data = match Arc::try_unwrap(buffer) {
                    Ok(buffer) => WriteData::Owned(buffer),
                    // A child still reads the buffer: the bytes come back, shared.
                    Err(shared) => WriteData::Gather(vec![shared]),
                };
                OpKind::Write { data, durable }
            }
            WholeOp::Gathered { parts, durable } => OpKind::Write { data: WriteData::Gather(parts), durable },
            WholeOp::Sync => OpKind::Sync,
            WholeOp::Allocate { len_bytes } => OpKind::Allocate { len_bytes },
        };
        Op::new(self.token, self.offset, kind)
    }
}

/// Joins the pieces of a read. They are neighbours of one region, because contract 1 of a disk gives each back whole.
fn joined(buffers: Vec<Option<IoBuf>>) -> OpKind {
    let whole = buffers.into_iter().flatten().reduce(|whole, next| match whole.join(next) {
        Ok(longer) => longer,
        Err((whole, next)) => panic!("a disk gave back {next:?} as the neighbour of {whole:?}"),
    });
    whole.map_or(OpKind::Sync, OpKind::Read)
}

/// A slice of bytes that others may read at the same time.
struct Slice {
    whole: Arc<dyn StableBytes>,
    range: Range<usize>,
}

// SAFETY: a fixed range of bytes that are themselves stable, kept alive by the `Arc`.
unsafe impl StableBytes for Slice {
    fn bytes(&self) -> &[u8] {
        &self.whole.bytes()[self.range.clone()]
    }
}

struct StripedQueue {
    children: Vec<Child>,
    disk: StripedDisk,
    info: DiskInfo,
    depth_max: usize,
    in_flight: usize,
    parents: Vec<Option<Parent>>,
    free: Vec<u32>,
    /// Operations that are complete and not yet returned to the caller.
    done: Vec<Completion>,
    /// An epoll descriptor over the children's descriptors, made when first asked for.
    ready: OnceLock<Option<OwnedFd>>,
}

impl StripedQueue {
    /// Cuts an operation. Returns the state from which it is rebuilt, and the parts with the number of their child.
    fn cut(&self, offset: u64, kind: OpKind) -> Result<(WholeOp, Vec<(usize, Op)>)> {
        let layout = self.disk.layout;
        let len = kind.len_bytes();
        let within_one = layout.count == 1 || offset % layout.stripe + len as u64 <= layout.stripe;
        let part = |offset, kind| Op::new(0, offset, kind);
        Ok(match kind {
            OpKind::Sync => {
                let each = (0..self.children.len()).map(|child| (child, part(0, OpKind::Sync))).collect();
                (WholeOp::Sync, each)
            }
            OpKind::Allocate { len_bytes } => (WholeOp::Allocate { len_bytes }, self.allocations(offset, len_bytes)?),
            kind if within_one => {
                let (child, child_offset) = layout.place(offset);
                (WholeOp::Passed(None), vec![(child, part(child_offset, kind))])
            }
            OpKind::Read(buffer) => {
                let mut rest = Some(buffer);
                let mut parts = Vec::new();
                for piece in layout.pieces(offset, len) {
                    let Some(buffer) = rest.take() else { break };
                    let (buffer, tail) = buffer.split_at(piece.part.len());
                    rest = Some(tail);
                    parts.push((piece.child, part(piece.offset, OpKind::Read(buffer))));
                }
                (WholeOp::Read(parts.iter().map(|_| None).collect()), parts)
            }
            OpKind::Write { data: WriteData::Owned(buffer), durable } => {
                let buffer = Arc::new(buffer);
                let shared: Arc<dyn StableBytes> = buffer.clone();
                let parts = gathers(layout, offset, &[shared], durable);
                (WholeOp::Owned { buffer, durable }, parts)
            }
            OpKind::Write { data: WriteData::Gather(parts), durable } => {
                let cut = gathers(layout, offset, &parts, durable);
                (WholeOp::Gathered { parts, durable }, cut)
            }
        })
    }

    /// Returns for each child the allocation it needs so that no byte below the end of the range is missing.
    fn allocations(&self, offset: u64, len: u64) -> Result<Vec<(usize, Op)>> {
        let layout = self.disk.layout;
        let mut parts = Vec::new();
        for (index, child) in self.disk.children.iter().enumerate() {
            let end = layout.child_len(index as u64, offset + len);
            let child_len = child.len_bytes().map_err(|error| name_child(error, index, "allocate"))?;
            // An allocation begins at the child's own end if that comes first, so that no gap is left.
            let start = layout.child_len(index as u64, offset).min(child_len) / self.info.align_bytes as u64;
            let start = start * self.info.align_bytes as u64;
            if start < end {
                parts.push((index, Op::new(0, start, OpKind::Allocate { len_bytes: end - start })));
            }
        }
        Ok(parts)
    }

    /// Completes a part: takes its memory, and with the last one finishes the whole operation.
    fn finish_part(&mut self, child: usize, completion: Completion) {
        let (slot, part) = ((completion.op.token >> 32) as usize, completion.op.token as u32);
        let Some(place) = self.parents.get_mut(slot) else { return };
        let Some(parent) = place else { return };
        parent.take_back(part, completion.op.kind);
        if let Err(error) = completion.result
            && parent.error.as_ref().is_none_or(|(first, ..)| part < *first)
        {
            parent.error = Some((part, child, error));
        }
        parent.parts_left -= 1;
        if parent.parts_left == 0
            && let Some(mut parent) = place.take()
        {
            self.free.push(slot as u32);
            let error = parent.error.take();
            let op = parent.into_op();
            let result = match error {
                None => Ok(op.kind.len_bytes()),
                Some((_, child, error)) => Err(name_child(error, child, &describe_op(&op))),
            };
            self.done.push(Completion { op, result });
        }
    }

    /// Collects the completions of the children, and refills their queues from the backlogs. Visits all children even
    /// when one fails, and returns the first error.
    fn collect(&mut self) -> Result<()> {
        let (mut finished, mut outcome) = (Vec::new(), Ok(()));
        for index in 0..self.children.len() {
            let child = &mut self.children[index];
            // A child with nothing in flight may have a backlog: `wait` has just taken its last operation.
            if child.queue.in_flight() == 0 && child.backlog.is_empty() {
                continue;
            }
            let reaped = child.queue.reap(0, &mut finished).map_err(|error| name_child(error, index, "reap"));
            let refilled = self.refill(index, &mut finished);
            // Done after errors as well: completions that came back must not be lost.
            for completion in finished.drain(..) {
                self.finish_part(index, completion);
            }
            outcome = outcome.and(reaped).and(refilled);
        }
        outcome
    }

    /// Moves a child's backlog into its queue as far as there is space. Operations that the queue refuses have
    /// failed.
    fn refill(&mut self, index: usize, failed: &mut Vec<Completion>) -> Result<()> {
        let child = &mut self.children[index];
        let mut moved = false;
        while let Some(op) = child.backlog.pop_front() {
            match child.queue.push(op) {
                Ok(()) => moved = true,
                Err(refused) if refused.error.kind() == ErrorKind::Busy && child.queue.in_flight() > 0 => {
                    child.backlog.push_front(refused.op);
                    break;
                }
                Err(refused) => failed.push(Completion { op: refused.op, result: Err(refused.error) }),
            }
        }
        if moved { submit(child, index) } else { Ok(()) }
    }

    /// Parks until a disk has a completion, or for `most`.
    fn wait(&mut self, most: Option<&Timespec>) -> Result<()> {
        let mut busy: Vec<usize> = Vec::new();
        busy.extend((0..self.children.len()).filter(|index| self.children[*index].queue.in_flight() > 0));
        let without_fd = busy.iter().find(|index| self.children[**index].queue.ready_fd().is_none());
        if let Some(index) = without_fd.or(if busy.len() == 1 { busy.first() } else { None }).copied() {
            let mut finished = Vec::new();
            let reaped = self.children[index].queue.reap(1, &mut finished);
            for completion in finished {
                self.finish_part(index, completion);
            }
            return reaped.map_err(|error| name_child(error, index, "reap"));
        }
        let fds = busy.iter().filter_map(|index| self.children[*index].queue.ready_fd());
        let mut fds: Vec<PollFd<'_>> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        if fds.is_empty() {
            return Err(Error::new(ErrorKind::Other, "wait on a striped disk", "no disk has anything in flight"));
        }
        match poll(&mut fds, most) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(Error::from_rustix("wait on a striped disk", error)),
        }
    }

    fn epoll(&self) -> Option<OwnedFd> {
        let whole = epoll::create(epoll::CreateFlags::CLOEXEC).ok()?;
        for (index, child) in self.children.iter().enumerate() {
            epoll::add(&whole, child.queue.ready_fd()?, epoll::EventData::new_u64(index as u64), epoll::EventFlags::IN)
                .ok()?;
        }
        Some(whole)
    }
}

impl Queue for StripedQueue {
    fn push(&mut self, op: Op) -> std::result::Result<(), RefusedOp> {
        if let Err(error) = check_op(&op, self.info.align_bytes) {
            return Err(RefusedOp { op, error });
        }
        if self.in_flight >= self.depth_max {
            let why = format!("{} operations are in flight, as many as this queue takes", self.in_flight);
            let error = Error::new(ErrorKind::Busy, describe_op(&op), why);
            return Err(RefusedOp { op, error });
        }
        let Op { token, offset_bytes: offset, kind } = op;
        let allocation = if let OpKind::Allocate { len_bytes } = kind { Some(len_bytes) } else { None };
        let (whole, parts) = match self.cut(offset, kind) {
            Ok(cut) => cut,
            Err(error) => {
                // Only an allocation asks the disks something before it is cut.
                let kind = OpKind::Allocate { len_bytes: allocation.unwrap_or_default() };
                return Err(RefusedOp { op: Op::new(token, offset, kind), error });
            }
        };
        self.in_flight += 1;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.parents.push(None);
            (self.parents.len() - 1) as u32
        });
        self.parents[slot as usize] = Some(Parent { token, offset, whole, parts_left: parts.len(), error: None });
        let mut accepted = 0;
        for (part, (child, mut op)) in parts.into_iter().enumerate() {
            op.token = u64::from(slot) << 32 | part as u64;
            match self.children[child].start(op) {
                Ok(()) => accepted += 1,
                Err(refused) => {
                    self.finish_part(child, Completion { op: refused.op, result: Err(refused.error) });
                }
            }
        }
        // Refused by every child: nothing was started, so it goes back.
        if accepted == 0
            && let Some(Completion { op, result: Err(error) }) = self.done.pop()
        {
            self.in_flight -= 1;
            return Err(RefusedOp { op, error });
        }
        Ok(())
    }

    fn submit(&mut self) -> Result<()> {
        let mut outcome = Ok(());
        // Submits on all children, even when one fails.
        for (index, child) in self.children.iter_mut().enumerate() {
            outcome = outcome.and(submit(child, index));
        }
        outcome
    }

    fn reap(&mut self, wait_for: usize, into: &mut Vec<Completion>) -> Result<()> {
        let wait_for = wait_for.min(self.in_flight);
        let soon = Timespec { tv_sec: 0, tv_nsec: i64::from(REFUSED_PAUSE.subsec_nanos()) };
        let mut refusals = 0;
        let outcome = loop {
            let collected = self.collect();
            let most = match &collected {
                Ok(()) if self.done.len() >= wait_for => break collected,
                Ok(()) => None,
                // No operation of that child is under way: its descriptor may never become readable.
                Err(refused) if wait_for > 0 && refused.may_pass() && refusals < REFUSALS_MAX => Some(&soon),
                Err(_) => break collected,
            };
            refusals = if most.is_some() { refusals + 1 } else { 0 };
            if let Err(error) = self.wait(most) {
                break Err(error);
            }
        };
        self.in_flight -= self.done.len();
        into.append(&mut self.done);
        if self.in_flight == 0 && self.ready.get().is_none() {
            // This wait may have polled their descriptors.
            self.children.iter_mut().for_each(|child| child.queue.end_watch());
        }
        outcome
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn ready_fd(&self) -> Option<BorrowedFd<'_>> {
        self.ready.get_or_init(|| self.epoll()).as_ref().map(AsFd::as_fd)
    }

    fn end_watch(&mut self) {
        self.ready = OnceLock::new();
        self.children.iter_mut().for_each(|child| child.queue.end_watch());
    }
}

fn submit(child: &mut Child, index: usize) -> Result<()> {
    child.queue.submit().map_err(|error| name_child(error, index, "submit"))
}

/// Returns one gathered write per child (more when it would have too many pieces), from slices of `parts`.
fn gathers(layout: Layout, offset: u64, parts: &[Arc<dyn StableBytes>], durable: bool) -> Vec<(usize, Op)> {
    /// A gathered write being assembled; the stripes of one disk are contiguous on it.
    struct Gather {
        child: usize,
        offset: u64,
        slices: Vec<Arc<dyn StableBytes>>,
    }
    let mut gathers: Vec<Gather> = Vec::new();
    let mut open: Vec<Option<usize>> = vec![None; layout.count as usize];
    let mut at = offset;
    for whole in parts {
        for piece in layout.pieces(at, whole.bytes().len()) {
            let roomy = open[piece.child].filter(|index| gathers[*index].slices.len() < PARTS_MAX);
            let index = roomy.unwrap_or_else(|| {
                gathers.push(Gather { child: piece.child, offset: piece.offset, slices: Vec::new() });
                gathers.len() - 1
            });
            open[piece.child] = Some(index);
            gathers[index].slices.push(Arc::new(Slice { whole: whole.clone(), range: piece.part }));
        }
        at += whole.bytes().len() as u64;
    }
    let op = |gather: Gather| {
        let data = WriteData::Gather(gather.slices);
        (gather.child, Op::new(0, gather.offset, OpKind::Write { data, durable }))
    };
    gathers.into_iter().map(op).collect()
}
