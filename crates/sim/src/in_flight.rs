//! Operations in flight in a world: the order in which they finish, and their effect on the file when they do.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::path::Path;

use super::bytes::FILE_BYTES_MAX;
use super::file::{File, WriteSeq};
use super::names::FileId;
use super::operation::{Operation, QueueId, copy_of};
use super::options::{Caching, Call, Defer, Effect};
use super::state::State;
use nofault_io::completion::{Completion, Op, OpKind};
use nofault_io::disk::describe_op;
use nofault_io::error::{Error, ErrorKind, Result};

/// One read in this many that meets abandoned pages finds them dropped from the page cache.
const DROP_ODDS: u8 = 4;

impl State {
    pub(super) fn add_queue(&mut self) -> QueueId {
        self.last_queue += 1;
        self.ready.insert(self.last_queue, VecDeque::new());
        self.last_queue
    }

    /// Removes a queue after its owner has gone: runs its submitted operations, and a random part of the others.
    /// Returns the completions, to drop outside the lock, because their memory may have a destructor that uses this
    /// world.
    pub(super) fn remove_queue(&mut self, queue: QueueId) -> Option<VecDeque<Completion>> {
        for index in (0..self.in_flight.len()).rev() {
            let operation = &mut self.in_flight[index];
            if operation.queue == queue && !operation.submitted {
                operation.submitted = self.rng.bool();
                if !operation.submitted {
                    let Operation { op, .. } = self.in_flight.remove(index);
                    let error = Error::new(ErrorKind::Stopped, describe_op(&op), "the queue was dropped");
                    self.deliver(queue, Completion { op, result: Err(error) });
                }
            }
        }
        self.finish_until(queue, usize::MAX);
        self.ready.remove(&queue)
    }

    pub(super) fn push(&mut self, queue: QueueId, file: FileId, name: &str, op: Op) {
        let call = match &op.kind {
            OpKind::Read(_) => Call::Read,
            OpKind::Write { .. } => Call::Write,
            OpKind::Sync => Call::Sync,
            OpKind::Allocate { .. } => Call::Allocate,
        };
        self.stats.count(&op);
        let effect = self.effect_on(call, name);
        let what = [1, file, call as u64, op.offset_bytes, op.kind.len_bytes() as u64];
        let covered = self.last_seq;
        let name = name.to_owned();
        self.in_flight.push(Operation { op, queue, file, name, submitted: false, moved: 0, covered, effect });
        self.event(&what, None);
    }

    pub(super) fn submit(&mut self, queue: QueueId) {
        for operation in self.in_flight.iter_mut().filter(|operation| operation.queue == queue) {
            operation.submitted = true;
        }
        if self.options.defer == Defer::Immediate {
            while let Some(index) = self.operations_of(queue).first().copied() {
                self.step(index);
            }
        }
    }

    /// Lets simulated time pass until `queue` has `wait_for` completions, or has nothing more to wait for.
    pub(super) fn advance(&mut self, queue: QueueId, wait_for: usize) {
        let under_way = self.submitted().len();
        let free_steps = match self.options.defer {
            Defer::Immediate => 0,
            Defer::Reordered => self.rng.usize(0..=under_way),
            Defer::Adversarial if self.rng.u8(0..6) == 0 => self.rng.usize(0..=under_way.min(2)),
            Defer::Adversarial => 0,
        };
        for _ in 0..free_steps {
            let any = self.submitted();
            self.step_one_of(&any);
        }
        self.finish_until(queue, wait_for);
    }

    /// Finishes submitted operations of a queue until it has `wait_for` completions, or has nothing more to wait for.
    pub(super) fn finish_until(&mut self, queue: QueueId, wait_for: usize) {
        while self.ready.get(&queue).map_or(0, VecDeque::len) < wait_for {
            let own = self.operations_of(queue);
            if own.is_empty() {
                return;
            }
            self.step_one_of(&own);
        }
    }

    /// Moves the completions of a queue to their owner, and returns their number.
    pub(super) fn take_ready(&mut self, queue: QueueId, into: &mut Vec<Completion>) -> usize {
        let ready = self.ready.get_mut(&queue).map(std::mem::take).unwrap_or_default();
        let count = ready.len();
        into.extend(ready);
        self.trace.add(&[3, queue, count as u64]);
        count
    }

    pub(super) fn deliver(&mut self, queue: QueueId, completion: Completion) {
        if let Some(ready) = self.ready.get_mut(&queue) {
            ready.push_back(completion);
        }
    }

    fn submitted(&self) -> Vec<usize> {
        self.in_flight.iter().enumerate().filter(|(_, operation)| operation.submitted).map(|(index, _)| index).collect()
    }

    fn operations_of(&self, queue: QueueId) -> Vec<usize> {
        let own = |operation: &Operation| operation.queue == queue && operation.submitted;
        self.in_flight.iter().enumerate().filter(|(_, operation)| own(operation)).map(|(index, _)| index).collect()
    }

    fn step_one_of(&mut self, candidates: &[usize]) {
        let Some(newest) = candidates.last().copied() else { return };
        let overtake = self.options.defer == Defer::Adversarial && self.rng.bool();
        let index = if overtake { newest } else { candidates[self.rng.usize(0..candidates.len())] };
        self.step(index);
    }

    /// Runs one operation, to its end unless the driver happens to move only a part of it.
    fn step(&mut self, index: usize) {
        let mut operation = self.in_flight.remove(index);
        let len = operation.op.kind.len_bytes();
        if let Some(until) = self.short_transfer(&operation)
            && self.run(&mut operation, until).is_ok()
        {
            operation.moved = until;
            self.in_flight.insert(index, operation);
            return;
        }
        let result = self.run(&mut operation, len).map_err(|error| error.at(Path::new(&operation.name)));
        self.stats.error_count += u64::from(result.is_err());
        let what = [2, operation.file, operation.op.offset_bytes, len as u64, u64::from(result.is_ok())];
        self.deliver(operation.queue, Completion { op: operation.op, result: result.map(|()| len) });
        self.event(&what, None);
    }

    /// Returns the number of bytes after which the kernel returns early; `None` when it moves all.
    fn short_transfer(&mut self, operation: &Operation) -> Option<usize> {
        let sectors = operation.op.kind.len_bytes().div_ceil(self.options.sector_bytes);
        let plain = operation.effect.is_none() && operation.moved == 0 && sectors > 1;
        let split = plain && self.options.rates.split_transfer > 0.0;
        (split && self.rng.f64() < self.options.rates.split_transfer)
            .then(|| self.rng.usize(1..sectors) * self.options.sector_bytes)
    }

    /// Carries an operation out, up to its byte `until`.
    fn run(&mut self, operation: &mut Operation, until: usize) -> Result<()> {
        let action = describe_op(&operation.op);
        let job = Job {
            action: &action,
            file: operation.file,
            offset: operation.op.offset_bytes,
            part: operation.moved..until,
            effect: operation.effect,
        };
        match &mut operation.op.kind {
            OpKind::Read(buffer) => self.run_read(&job, buffer),
            OpKind::Write { data, durable } => self.run_write(&job, copy_of(data), *durable),
            OpKind::Sync => self.run_sync(&job, operation.covered),
            OpKind::Allocate { len_bytes } => self.run_allocate(&job, *len_bytes),
        }
    }

    fn run_read(&mut self, job: &Job, buffer: &mut [u8]) -> Result<()> {
        if let Err(error) = job.errno() {
            self.rng.fill(buffer);
            return Err(error);
        }
        let end = job.offset.saturating_add(buffer.len() as u64);
        self.drop_clean_pages(job, end)?;
        let file = file_of(&mut self.files, job)?;
        let file_len = file.len();
        if end > file_len {
            let left = file_len.saturating_sub(job.offset);
            let why = format!("{left} of {} bytes: the file ends at {file_len}", buffer.len());
            return Err(Error::new(ErrorKind::Short, job.action, why));
        }
        let from = match job.effect {
            Some(Effect::Misdirected) => elsewhere(file_len, job.offset, buffer.len(), &mut self.rng),
            _ => job.offset,
        };
        file.read(from + job.part.start as u64, &mut buffer[job.part.clone()]);
        if self.options.defer == Defer::Adversarial {
            self.mix_in_flight_writes(job, &mut buffer[job.part.clone()]);
        }
        self.damage(job.effect, buffer);
        Ok(())
    }

    /// Drops clean pages from the page cache now and then, as a kernel under memory pressure does.
    fn drop_clean_pages(&mut self, job: &Job, end: u64) -> Result<()> {
        let file = file_of(&mut self.files, job)?;
        let range = job.offset..end.min(file.len()).max(job.offset);
        if self.options.caching == Caching::Buffered
            && file.has_abandoned_pages(range.clone())
            && self.rng.u8(..DROP_ODDS) == 0
        {
            file.drop_abandoned_pages(range, &self.options, &mut self.rng);
        }
        Ok(())
    }

    /// Mixes into a read some sectors of concurrent writes to the same place, as a device may.
    fn mix_in_flight_writes(&mut self, job: &Job, seen: &mut [u8]) {
        let start = job.offset + job.part.start as u64;
        let sector = self.options.sector_bytes;
        let end = start + seen.len() as u64;
        let others = self.in_flight.iter().filter(|other| other.file == job.file && other.submitted);
        for other in others {
            let OpKind::Write { data, .. } = &other.op.kind else { continue };
            let (other_start, other_len) = (other.op.offset_bytes, data.len_bytes() as u64);
            if other_start >= end || other_start.saturating_add(other_len) <= start {
                continue;
            }
            for (index, chunk) in copy_of(data).chunks(sector).enumerate() {
                let at = other_start + (index * sector) as u64;
                if at >= start && at + chunk.len() as u64 <= end && self.rng.bool() {
                    let inside = (at - start) as usize;
                    seen[inside..inside + chunk.len()].copy_from_slice(chunk);
                }
            }
        }
    }

    fn run_write(&mut self, job: &Job, mut data: Vec<u8>, durable: bool) -> Result<()> {
        if job.effect == Some(Effect::Lost) {
            return Ok(());
        }
        let end = job.offset.saturating_add(data.len() as u64);
        let room = self.check_space(job, job.offset..end);
        let seq = self.next_seq();
        let sector = self.options.sector_bytes;
        if let Err(error) = job.errno() {
            // All of a durable write has reached the page cache before its write-back fails.
            let whole = durable && self.options.caching == Caching::Buffered;
            for (index, chunk) in data.chunks(sector).enumerate().filter(|_| room.is_ok()) {
                if whole || self.rng.bool() {
                    file_of(&mut self.files, job)?.write(seq, job.offset + (index * sector) as u64, chunk);
                }
            }
            if durable {
                file_of(&mut self.files, job)?.abandon_write(seq);
            }
            return Err(error);
        }
        if let Err(error) = room {
            // As in the kernel, the part that still fits is written before the error.
            let fits = |len: &usize| self.check_space(job, job.offset..job.offset + *len as u64).is_ok();
            let prefix = (0..data.len()).step_by(sector).rev().find(fits).unwrap_or(0);
            file_of(&mut self.files, job)?.write(seq, job.offset, &data[..prefix]);
            return Err(error);
        }
        self.damage(job.effect, &mut data);
        let file = file_of(&mut self.files, job)?;
        let to = match job.effect {
            Some(Effect::Misdirected) => elsewhere(file.len(), job.offset, data.len(), &mut self.rng),
            _ => job.offset,
        };
        file.write(seq, to + job.part.start as u64, &data[job.part.clone()]);
        if durable && job.part.end == data.len() {
            file.sync_range(seq, to..to + data.len() as u64);
        }
        Ok(())
    }

    fn run_sync(&mut self, job: &Job, covered: WriteSeq) -> Result<()> {
        let file = file_of(&mut self.files, job)?;
        if let Err(error) = job.errno() {
            file.abandon(covered);
            return Err(error);
        }
        if job.effect != Some(Effect::Lost) {
            file.sync(covered);
        }
        Ok(())
    }

    fn run_allocate(&mut self, job: &Job, len: u64) -> Result<()> {
        job.errno()?;
        if job.effect == Some(Effect::Lost) {
            return Ok(());
        }
        let range = job.offset..job.offset.saturating_add(len);
        self.check_space(job, range.clone())?;
        let seq = self.next_seq();
        file_of(&mut self.files, job)?.allocate(seq, range);
        Ok(())
    }

    fn check_space(&self, job: &Job, range: Range<u64>) -> Result<()> {
        if range.end > FILE_BYTES_MAX {
            return Err(Error::from_errno(job.action, libc::EFBIG));
        }
        let Some(capacity) = self.options.capacity_bytes else { return Ok(()) };
        let missing = self.files.get(&job.file).map_or(0, |file| file.bytes_missing(range));
        if missing > 0 && self.bytes_used() + missing > capacity {
            return Err(Error::from_errno(job.action, libc::ENOSPC));
        }
        Ok(())
    }

    /// Damages bytes in transit, if a fault asks for it.
    fn damage(&mut self, effect: Option<Effect>, bytes: &mut [u8]) {
        if bytes.is_empty() {
            return;
        }
        let victim = self.rng.usize(0..bytes.len());
        let start = victim / self.options.sector_bytes * self.options.sector_bytes;
        let end = bytes.len().min(start + self.options.sector_bytes);
        match effect {
            Some(Effect::FlippedBit) => bytes[victim] ^= 1 << self.rng.u8(0..8),
            Some(Effect::ZeroedSector) => bytes[start..end].fill(0),
            Some(Effect::GarbageSector) => self.rng.fill(&mut bytes[start..end]),
            _ => {}
        }
    }

    fn next_seq(&mut self) -> WriteSeq {
        self.last_seq += 1;
        self.last_seq
    }
}

/// The parameters for running one operation.
struct Job<'a> {
    action: &'a str,
    file: FileId,
    offset: u64,
    /// The range of the operation's bytes to move now.
    part: Range<usize>,
    effect: Option<Effect>,
}

impl Job<'_> {
    fn errno(&self) -> Result<()> {
        match self.effect {
            Some(Effect::Errno(errno)) => Err(Error::from_errno(self.action, errno)),
            _ => Ok(()),
        }
    }
}

/// Returns the file of an operation. It exists, because an operation keeps it as a handle does.
fn file_of<'a>(files: &'a mut BTreeMap<FileId, File>, job: &Job) -> Result<&'a mut File> {
    files.get_mut(&job.file).ok_or_else(|| Error::new(ErrorKind::NotFound, job.action, "the file is gone"))
}

/// Returns another place of the file for as many bytes, at a distance that is a multiple of their number; the same
/// place where there is no other.
fn elsewhere(file_len: u64, offset: u64, len: usize, rng: &mut fastrand::Rng) -> u64 {
    let len = len as u64;
    let places = file_len.saturating_sub(offset % len) / len;
    let own = offset / len;
    if places < 2 || own >= places {
        return if places == 0 { offset } else { offset % len };
    }
    let place = (own + rng.u64(1..places)) % places;
    offset % len + place * len
}
