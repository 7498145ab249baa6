//! One operation on its way through a real disk: the bytes still to move, and the meaning of each system call's
//! result.
//!
//! A ring asks it for the next piece, hands the piece to the kernel and gives it the answer; `carry_out` does the same with system
//! calls. So short transfers, interruptions, errno's sign and the end of the file are understood in one place.
//!
//! Kept true by: the memory of a piece is owned by the operation inside, which leaves only through [`Transfer::into_op`].

use std::os::fd::AsRawFd;

use crate::completion::{Completion, Op, OpKind};
use crate::disk::describe_op;
use crate::error::{Error, ErrorKind, Result};
use crate::file::DiskFile;

/// Most pieces of memory in one system call (IOV_MAX of Linux).
const IOVECS_MAX: usize = 1024;
/// Most bytes in one system call: a round number below the kernel's limit, which is 2 GiB less a page.
const CALL_BYTES_MAX: usize = 1 << 30;
/// Most times that an operation is tried again after EINTR or EAGAIN, so that a file with no other answer does not hang its user. A sync
/// is not tried again: after an interruption it is unknown which writes it has made durable.
const INTERRUPTIONS_MAX: u32 = 10_000;
/// Times that a ring is asked again for pieces of one operation that it has cancelled, before system calls carry the operation out.
const CANCELLATIONS_MAX: u32 = 3;

/// An operation and its progress.
#[derive(Debug)]
pub(crate) struct Transfer {
    op: Op,
    memory: Memory,
    total_bytes: usize,
    done_bytes: usize,
    interruptions: u32,
    cancellations: u32,
}

/// The memory still to be filled or written.
#[derive(Debug)]
enum Memory {
    /// The operation moves no bytes.
    None,
    /// One range of memory.
    One(libc::iovec),
    /// Several ranges of memory; those before `first` are done.
    Many { iovecs: Vec<libc::iovec>, first: usize },
}

// SAFETY: the pointers lead into buffers that `op` owns (or shares as `StableBytes`), which are `Send`
// and stay in place when the operation moves; nothing is dereferenced here.
unsafe impl Send for Transfer {}

/// The next request of a transfer to the kernel.
pub(crate) enum Piece<'a> {
    /// Read into this memory.
    Read { start: *mut u8, len_bytes: u32 },
    /// Write one range of memory.
    Write { start: *const u8, len_bytes: u32, durable: bool },
    /// Write several ranges of memory, one after the other.
    WriteGather { iovecs: &'a [libc::iovec], durable: bool },
    /// Make the file's data durable (fdatasync).
    Sync,
    /// Reserve bytes of the file (fallocate).
    Allocate { len_bytes: u64 },
}

/// The meaning of a result from the kernel.
pub(crate) enum Step {
    /// Ask the kernel again, for the next piece.
    Again,
    /// Carry the rest out by system calls: the ring has cancelled too many pieces. Only an answer of a ring leads to it.
    CarryOut,
    /// The transfer has ended, with this result.
    Done(Result<usize>),
}

impl Transfer {
    /// Prepares an operation that [`DiskFile::accept`] has accepted. Neighbouring ranges of a gather become one.
    pub(crate) fn new(mut op: Op) -> Self {
        let memory = match &mut op.kind {
            OpKind::Read(buffer) => Memory::One(iovec(buffer.address_mut(), buffer.len())),
            OpKind::Write { data, .. } => {
                let mut iovecs: Vec<libc::iovec> = Vec::new();
                for part in data.parts().filter(|part| !part.is_empty()) {
                    match iovecs.last_mut() {
                        Some(last) if end_of(last) == part.as_ptr() => last.iov_len += part.len(),
                        _ => iovecs.push(iovec(part.as_ptr().cast_mut(), part.len())),
                    }
                }
                match iovecs.as_slice() {
                    [one] => Memory::One(*one),
                    _ => Memory::Many { iovecs, first: 0 },
                }
            }
            OpKind::Sync | OpKind::Allocate { .. } => Memory::None,
        };
        let total_bytes = op.kind.len_bytes();
        Self { op, memory, total_bytes, done_bytes: 0, interruptions: 0, cancellations: 0 }
    }

    /// Gives the operation back. The kernel must be done with it.
    pub(crate) fn into_op(self) -> Op {
        self.op
    }

    /// Position of the next piece on the disk, in bytes.
    pub(crate) fn offset_bytes(&self) -> u64 {
        self.op.offset_bytes + self.done_bytes as u64
    }

    /// Returns the next request to the kernel.
    pub(crate) fn piece(&self) -> Piece<'_> {
        let durable = match &self.op.kind {
            OpKind::Sync => return Piece::Sync,
            OpKind::Allocate { len_bytes } => return Piece::Allocate { len_bytes: *len_bytes },
            OpKind::Read(_) => None,
            OpKind::Write { durable, .. } => Some(*durable),
        };
        let rest = match &self.memory {
            Memory::None => &[],
            Memory::One(range) => std::slice::from_ref(range),
            Memory::Many { iovecs, first } => &iovecs[*first..],
        };
        match (rest, durable) {
            (rest @ ([] | [_, _, ..]), _) => {
                let iovecs = &rest[..rest.len().min(IOVECS_MAX)];
                Piece::WriteGather { iovecs, durable: durable == Some(true) }
            }
            ([range], durable) => {
                let len_bytes = range.iov_len.min(CALL_BYTES_MAX) as u32;
                match durable {
                    None => Piece::Read { start: range.iov_base.cast(), len_bytes },
                    Some(durable) => Piece::Write { start: range.iov_base.cast(), len_bytes, durable },
                }
            }
        }
    }

    /// Takes a ring's answer to the last piece, as [`Transfer::answered`] does.
    ///
    /// A ring answers ECANCELED, or EFAULT, for a piece that it has not finished because the thread that submitted the
    /// piece has ended or no worker could be started. Neither says anything of the file, so the piece is repeated. To
    /// repeat a write is safe: some of its bytes may be in the file already, and the same bytes go to the same place
    /// while the operation is still in flight. A durable write is flushed by its last repetition. A sync is not
    /// repeated, as for EINTR. If the memory of the operation could really not be reached, the system call says so.
    pub(crate) fn answered_by_ring(&mut self, answer: i64, file: &DiskFile) -> Step {
        let is_cancelled = [libc::ECANCELED, libc::EFAULT].into_iter().any(|errno| answer == -i64::from(errno));
        if !is_cancelled || matches!(self.op.kind, OpKind::Sync) {
            return self.answered(answer, file);
        }
        self.cancellations += 1;
        if self.cancellations <= CANCELLATIONS_MAX { Step::Again } else { Step::CarryOut }
    }

    /// Takes the kernel's answer to the last piece: bytes moved, or a *negative* errno.
    pub(crate) fn answered(&mut self, answer: i64, file: &DiskFile) -> Step {
        if answer < 0 {
            let errno = i32::try_from(-answer).unwrap_or(libc::EIO);
            self.interruptions += 1;
            // A second sync may find pages marked clean that the first has not written, and succeed without them.
            let may_repeat = !matches!(self.op.kind, OpKind::Sync);
            if may_repeat && matches!(errno, libc::EINTR | libc::EAGAIN) && self.interruptions < INTERRUPTIONS_MAX {
                return Step::Again;
            }
            return Step::Done(Err(self.failed(errno, file)));
        }
        let total_bytes = self.total_bytes;
        if matches!(self.memory, Memory::None) {
            return Step::Done(Ok(0));
        }
        let moved_bytes = usize::try_from(answer).unwrap_or(usize::MAX).min(total_bytes - self.done_bytes);
        if self.done_bytes + moved_bytes == total_bytes {
            return Step::Done(Ok(total_bytes));
        }
        // The rest must start at a multiple of the alignment. The bytes after the last such multiple are moved once
        // more; when nothing but such a remainder was moved, the file ends in it.
        let forward_bytes = moved_bytes - moved_bytes % file.info().align_bytes;
        if forward_bytes == 0 {
            let what = match self.op.kind {
                OpKind::Read(_) => "the file ends there",
                _ => "the device accepted no more",
            };
            let detail = format!("{} of {total_bytes} bytes: {what}", self.done_bytes + moved_bytes);
            let error = Error::new(ErrorKind::Short, describe_op(&self.op), detail);
            return Step::Done(Err(file.at_path(error)));
        }
        self.interruptions = 0;
        self.done_bytes += forward_bytes;
        self.memory.advance(forward_bytes);
        Step::Again
    }

    /// Carries the operation out on this thread, by system calls.
    pub(crate) fn carry_out(mut self, file: &DiskFile) -> Completion {
        let result = loop {
            let answer = self.call(file);
            if let Step::Done(result) = self.answered(answer, file) {
                break result;
            }
        };
        Completion { op: self.into_op(), result }
    }

    /// Asks the kernel for the next piece: bytes moved, or a negative errno.
    fn call(&self, file: &DiskFile) -> i64 {
        let fd = file.as_raw_fd();
        let offset = self.offset_bytes() as libc::off_t;
        let moved = match self.piece() {
            // SAFETY: the memory belongs to the operation inside `self`, which outlives the call.
            Piece::Read { start, len_bytes } => unsafe { libc::pread(fd, start.cast(), len_bytes as usize, offset) },
            Piece::Write { start, len_bytes, durable: false } => {
                // SAFETY: as above.
                unsafe { libc::pwrite(fd, start.cast(), len_bytes as usize, offset) }
            }
            Piece::Write { start, len_bytes, durable: true } => {
                let range = iovec(start.cast_mut(), len_bytes as usize);
                return self.write_gather(std::slice::from_ref(&range), file, true);
            }
            Piece::WriteGather { iovecs, durable } => return self.write_gather(iovecs, file, durable),
            Piece::Sync => return answer_of(rustix::fs::fdatasync(file)),
            Piece::Allocate { .. } if file.is_block_device() => return 0,
            Piece::Allocate { len_bytes } => {
                let mode = rustix::fs::FallocateFlags::empty();
                return answer_of(rustix::fs::fallocate(file, mode, offset as u64, len_bytes));
            }
        };
        if moved < 0 { -i64::from(last_errno()) } else { moved as i64 }
    }

    /// Writes some of the ranges of this operation, at most 1024.
    fn write_gather(&self, iovecs: &[libc::iovec], file: &DiskFile, durable: bool) -> i64 {
        let fd = file.as_raw_fd();
        let offset = self.offset_bytes() as libc::off_t;
        let flags = if durable { libc::RWF_DSYNC } else { 0 };
        // SAFETY: the ranges belong to the operation inside `self`, which outlives the call; there are at most 1024.
        let moved = unsafe { libc::pwritev2(fd, iovecs.as_ptr(), iovecs.len() as libc::c_int, offset, flags) };
        if moved >= 0 {
            return moved as i64;
        }
        let errno = last_errno();
        if !matches!(errno, libc::EOPNOTSUPP | libc::ENOSYS) {
            return -i64::from(errno);
        }
        // Kernels before 4.7, and systems that imitate one, know no flags here: the same in two calls.
        // SAFETY: as above.
        let moved = unsafe { libc::pwritev(fd, iovecs.as_ptr(), iovecs.len() as libc::c_int, offset) };
        if moved < 0 {
            return -i64::from(last_errno());
        }
        if !durable {
            return moved as i64;
        }
        match answer_of(rustix::fs::fdatasync(file)) {
            0 => moved as i64,
            failed => failed,
        }
    }

    fn failed(&self, errno: i32, file: &DiskFile) -> Error {
        let error = file.at_path(Error::from_errno(describe_op(&self.op), errno));
        match (errno, &self.op.kind) {
            (libc::EOPNOTSUPP, OpKind::Allocate { .. }) => {
                error.hint("this file system cannot reserve space: write zeroes instead")
            }
            (libc::ENOSPC | libc::EDQUOT, _) => error.hint("free space, then repeat"),
            (libc::EINVAL, _) if file.info().direct => {
                error.hint("direct I/O was refused after it had been set: check the file system, or open it buffered")
            }
            (libc::EIO | libc::EINTR | libc::EAGAIN, OpKind::Sync) | (libc::EIO, OpKind::Write { .. }) => {
                error.hint("writes since the last good sync may be lost; repeating the sync would not report it")
            }
            _ => error,
        }
    }
}

/// Carries an operation out on this thread, by system calls, if `file` accepts it.
pub(crate) fn perform(op: Op, file: &DiskFile) -> Completion {
    match file.accept(&op) {
        Ok(()) => Transfer::new(op).carry_out(file),
        Err(error) => Completion { op, result: Err(error) },
    }
}

fn answer_of(result: rustix::io::Result<()>) -> i64 {
    result.map_or_else(|errno| -i64::from(errno.raw_os_error()), |()| 0)
}

fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

impl Memory {
    fn advance(&mut self, mut bytes: usize) {
        match self {
            Self::None => {}
            Self::One(range) => skip(range, bytes),
            Self::Many { iovecs, first } => {
                while let Some(range) = iovecs.get_mut(*first) {
                    if bytes < range.iov_len {
                        return skip(range, bytes);
                    }
                    bytes -= range.iov_len;
                    *first += 1;
                }
            }
        }
    }
}

fn iovec(start: *mut u8, len_bytes: usize) -> libc::iovec {
    libc::iovec { iov_base: start.cast(), iov_len: len_bytes }
}

fn end_of(range: &libc::iovec) -> *const u8 {
    range.iov_base.cast::<u8>().wrapping_add(range.iov_len)
}

fn skip(range: &mut libc::iovec, bytes: usize) {
    range.iov_base = range.iov_base.cast::<u8>().wrapping_add(bytes).cast();
    range.iov_len -= bytes;
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fastrand::Rng;

    use super::*;
    use crate::aligned::{IoBuf, PageKind, StableBytes};
    use crate::completion::WriteData;
    use crate::disk::{DirectIo, FileOptions};

    const LEN: usize = 64 << 10;

    fn file(folder: &tempfile::TempDir) -> DiskFile {
        let options = FileOptions { create: true, direct: DirectIo::Never, ..FileOptions::default() };
        DiskFile::open("test", &folder.path().join("file"), &options).unwrap()
    }

    fn buffer(fill: impl Fn(usize) -> u8) -> IoBuf {
        let mut buffer = IoBuf::zeroed(LEN, PageKind::Small).unwrap();
        buffer.iter_mut().enumerate().for_each(|(at, byte)| *byte = fill(at));
        buffer
    }

    struct Part(Vec<u8>);

    // SAFETY: the vector is only read, so its bytes neither change nor move.
    unsafe impl StableBytes for Part {
        fn bytes(&self) -> &[u8] {
            &self.0
        }
    }

    /// Simulates a kernel that is interrupted half of the time, and moves any part of the requested bytes.
    fn answer(transfer: &Transfer, disk: &mut [u8], rng: &mut Rng) -> i64 {
        match rng.u8(..4) {
            0 => return -i64::from(libc::EINTR),
            1 => return -i64::from(libc::EAGAIN),
            _ => {}
        }
        let at = transfer.offset_bytes() as usize;
        match transfer.piece() {
            Piece::Read { start, len_bytes } => {
                let moved = rng.usize(1..=len_bytes as usize);
                // SAFETY: the piece is memory of the operation, with no other reference to it.
                unsafe { std::slice::from_raw_parts_mut(start, moved) }.copy_from_slice(&disk[at..at + moved]);
                moved as i64
            }
            Piece::Write { start, len_bytes, .. } => {
                let moved = rng.usize(1..=len_bytes as usize);
                // SAFETY: as above.
                disk[at..at + moved].copy_from_slice(unsafe { std::slice::from_raw_parts(start, moved) });
                moved as i64
            }
            Piece::WriteGather { iovecs, .. } => {
                // SAFETY: as above, for each range.
                let range = |range: &libc::iovec| unsafe {
                    std::slice::from_raw_parts(range.iov_base.cast::<u8>(), range.iov_len).to_vec()
                };
                let all: Vec<u8> = iovecs.iter().flat_map(range).collect();
                let moved = rng.usize(1..=all.len());
                disk[at..at + moved].copy_from_slice(&all[..moved]);
                moved as i64
            }
            Piece::Sync | Piece::Allocate { .. } => 0,
        }
    }

    fn carried_out(kind: OpKind, file: &DiskFile, disk: &mut [u8], rng: &mut Rng) -> (Op, Result<usize>) {
        let mut transfer = Transfer::new(Op::new(1, 0, kind));
        loop {
            let answer = answer(&transfer, disk, rng);
            if let Step::Done(result) = transfer.answered(answer, file) {
                return (transfer.into_op(), result);
            }
        }
    }

    #[test]
    fn interruptions_and_short_transfers_are_repeated_until_all_is_moved() {
        let folder = tempfile::tempdir().unwrap();
        let file = file(&folder);
        for seed in 0..50 {
            let rng = &mut Rng::with_seed(seed);
            let mut disk: Vec<u8> = (0..LEN).map(|at| (at * 7 / 3) as u8).collect();
            let (op, result) = carried_out(OpKind::Read(buffer(|_| 0)), &file, &mut disk, rng);
            assert_eq!(result.unwrap(), LEN);
            let OpKind::Read(read) = op.kind else { panic!("another operation came back") };
            assert!(read[..] == disk[..], "seed {seed}: read");

            let new = |at: usize| (at * 5 / 2) as u8;
            let (_, result) = carried_out(OpKind::write(buffer(new), seed % 2 == 0), &file, &mut disk, rng);
            assert_eq!(result.unwrap(), LEN);
            assert!(disk.iter().enumerate().all(|(at, byte)| *byte == new(at)), "seed {seed}: write");

            // More ranges than one call takes.
            let parts = (0..LEN / 32).map(|part| Arc::new(Part(vec![part as u8; 32])) as Arc<dyn StableBytes>);
            let data = WriteData::Gather(parts.collect());
            let (_, result) = carried_out(OpKind::Write { data, durable: true }, &file, &mut disk, rng);
            assert_eq!(result.unwrap(), LEN);
            assert!(disk.iter().enumerate().all(|(at, byte)| *byte == (at / 32) as u8), "seed {seed}: gather");

            let allocate = OpKind::Allocate { len_bytes: 4096 };
            assert_eq!(carried_out(allocate, &file, &mut disk, rng).1.unwrap(), 0, "seed {seed}");
        }
    }

    #[test]
    fn an_interrupted_sync_is_a_failed_one() {
        let folder = tempfile::tempdir().unwrap();
        let file = file(&folder);
        for errno in [libc::EINTR, libc::EAGAIN, libc::EIO] {
            let mut sync = Transfer::new(Op::new(1, 0, OpKind::Sync));
            let Step::Done(result) = sync.answered(-i64::from(errno), &file) else {
                panic!("errno {errno} is repeated")
            };
            assert_eq!(result.unwrap_err().errno(), Some(errno));
            // A durable write may be repeated: that writes the bytes once more.
            let mut write = Transfer::new(Op::new(1, 0, OpKind::write(buffer(|_| 1), true)));
            let again = matches!(write.answered(-i64::from(errno), &file), Step::Again);
            assert_eq!(again, errno != libc::EIO);
        }
    }

    #[test]
    fn a_cancelled_piece_is_asked_for_again_then_carried_out_by_calls_and_a_cancelled_sync_has_failed() {
        let folder = tempfile::tempdir().unwrap();
        let file = file(&folder);
        for errno in [libc::ECANCELED, libc::EFAULT] {
            let answer = -i64::from(errno);
            let kinds = [
                OpKind::Read(buffer(|_| 0)),
                OpKind::write(buffer(|_| 1), false),
                OpKind::write(buffer(|_| 1), true),
                OpKind::Allocate { len_bytes: 4096 },
            ];
            for kind in kinds {
                let mut transfer = Transfer::new(Op::new(1, 0, kind));
                for _ in 0..CANCELLATIONS_MAX {
                    assert!(matches!(transfer.answered_by_ring(answer, &file), Step::Again), "{:?}", transfer.op);
                }
                assert!(matches!(transfer.answered_by_ring(answer, &file), Step::CarryOut), "{:?}", transfer.op);
                // A system call has no submitter that could end before it.
                let Step::Done(Err(error)) = transfer.answered(answer, &file) else { panic!("repeated for ever") };
                assert_eq!(error.errno(), Some(errno));
            }
            let mut sync = Transfer::new(Op::new(1, 0, OpKind::Sync));
            let Step::Done(Err(error)) = sync.answered_by_ring(answer, &file) else { panic!("a sync is repeated") };
            assert_eq!(error.errno(), Some(errno));
        }
    }

    #[test]
    fn endless_interruptions_nothing_moved_and_errors_end_an_operation() {
        let folder = tempfile::tempdir().unwrap();
        let file = file(&folder);
        let transfer = || Transfer::new(Op::new(1, 0, OpKind::write(buffer(|_| 1), false)));
        let ended = |step: Step| match step {
            Step::Done(result) => Some(result.unwrap_err()),
            Step::Again | Step::CarryOut => None,
        };
        let mut interrupted = transfer();
        let answers = std::iter::repeat_with(|| ended(interrupted.answered(-i64::from(libc::EINTR), &file)));
        let error = answers.take(INTERRUPTIONS_MAX as usize).flatten().next().expect("it goes on for ever");
        assert_eq!(error.errno(), Some(libc::EINTR), "{error}");
        let error = ended(transfer().answered(0, &file)).expect("a write that moves nothing goes on");
        assert_eq!(error.kind(), ErrorKind::Short, "{error}");
        let error = ended(transfer().answered(-i64::from(libc::EIO), &file)).expect("an error is no answer");
        assert_eq!(error.errno(), Some(libc::EIO), "{error}");
    }
}
