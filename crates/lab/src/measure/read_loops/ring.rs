//! io_uring, direct: one thread, many requests in flight, over one file or striped over several.
//!
//! The loop: refill the free slots and submit them a batch at a time, then wait for a batch. Small batches keep a
//! virtual disk busy at both ends: the host takes a large submission as one, and nothing completes before its end. Buffers
//! are one region, for scans in huge pages, registered with the ring together with the file (where the kernel refuses
//! one, the trial carries a warning). Nothing is allocated per request: a buffer travels with its operation and comes back with
//! the completion.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use nofault_io::aligned::{IoBuf, PageKind};
use nofault_io::completion::{Completion, Op, OpKind};
use nofault_io::disk::{DirectIo, Disk, FileOptions, Queue, QueueOptions};
use nofault_io::striped::StripedDisk;
use nofault_io::uring::UringDisk;

use crate::error::{LabError, LabErrorKind, Result};
use crate::measure::read_loops::Pattern;
use crate::measure::workload::{Layout, Order, PAGE_BYTES, first_word};
use crate::measure::{Work, Worker};
use crate::record::{Target, TrialSpec};

/// Opens a file or device for direct reads through a ring.
///
/// # Errors
/// When the kernel, a container or the file system refuses rings or direct I/O; the message names it and the remedy.
pub fn open(path: &Path) -> Result<UringDisk> {
    let options = FileOptions { direct: DirectIo::Require, write: false, create: false };
    Ok(UringDisk::open(path, &options)?)
}

/// Opens all files of a layout as one disk, in the layout's stripes.
///
/// # Errors
/// As [`open`].
pub fn disk_of(layout: &Layout) -> Result<Arc<dyn Disk>> {
    let mut disks: Vec<Arc<dyn Disk>> = Vec::new();
    for path in &layout.paths {
        disks.push(Arc::new(open(path)?));
    }
    if disks.len() == 1 {
        // Striping over one disk would only add cost.
        return Ok(disks.remove(0));
    }
    Ok(Arc::new(StripedDisk::new(disks, layout.stripe_bytes)?))
}

/// Number of requests that are submitted together, and that must have finished before the loop continues. A batch saves
/// system calls (and, on a virtual disk, doorbells). Submitting a whole depth at once costs a virtual disk a tenth of
/// its reads, with any submitter, fio included.
pub fn batch_of(depth: u32, block_bytes: u64) -> usize {
    // A large read is worth one system call.
    if block_bytes > 16 * PAGE_BYTES as u64 { 1 } else { (depth as usize / 16).max(1) }
}

/// The page size of a trial's buffers or frames, unless its parameter `buffers` says otherwise. Random reads use small
/// pages, like a map; scans use huge pages, because the block layer splits large requests over small pages.
pub fn pages_of(spec: &TrialSpec, pattern: Pattern) -> PageKind {
    match (spec.params.extra.get("buffers").map(String::as_str), pattern) {
        (Some("small"), _) => PageKind::Small,
        (Some("huge"), _) | (_, Pattern::Scan { .. }) => PageKind::Huge,
        (_, Pattern::Random | Pattern::Skewed(_) | Pattern::Recorded) => PageKind::Small,
    }
}

/// The workers of a trial: each has its own ring with `depth` requests in flight.
pub fn works<'a>(spec: &'a TrialSpec, layout: &'a Layout, disk: &'a dyn Disk, pattern: Pattern) -> Vec<Work<'a>> {
    let orders = pattern.orders(layout, spec);
    let work = |(number, order): (usize, Order)| -> Work<'a> {
        Box::new(move |worker: &mut Worker<'_>| {
            // The ring is opened on the thread using it, as SINGLE_ISSUER requires.
            let mut ring = Ring::open(spec, layout, disk, pages_of(spec, pattern))?;
            ring.read(worker, order)?;
            if number == 0 { ring.sum_sample(worker, &spec.target, spec.seed) } else { Ok(()) }
        })
    };
    orders.into_iter().enumerate().map(work).collect()
}

/// One worker's ring: its queue, its idle buffers, and the reads in flight.
struct Ring<'a> {
    layout: &'a Layout,
    queue: Box<dyn Queue>,
    batch: usize,
    idle: Vec<Slot>,
    /// The reads in flight by number of the buffer: the block, and the time of submission.
    under_way: Vec<(u64, Instant)>,
    finished: Vec<Completion>,
}

/// A buffer and its number, which serves as the token of its operations.
struct Slot {
    number: u64,
    buffer: IoBuf,
}

impl<'a> Ring<'a> {
    fn open(spec: &TrialSpec, layout: &'a Layout, disk: &dyn Disk, pages: PageKind) -> Result<Self> {
        let (depth, block_bytes) = (spec.params.depth as usize, layout.block_bytes as usize);
        let total_bytes = depth
            .checked_mul(block_bytes)
            .filter(|bytes| *bytes > 0)
            .ok_or_else(|| LabError::new(LabErrorKind::Usage, format!("{depth} buffers of {block_bytes} bytes")))?;
        let mut memory = IoBuf::zeroed(total_bytes, pages)?;
        memory.fill(0);
        let options = QueueOptions { depth_max: depth, single_thread: true, registered: vec![memory.region().clone()] };
        let queue = disk.queue(&options)?;
        let idle = (0..).zip(memory.pieces(block_bytes)).map(|(number, buffer)| Slot { number, buffer }).collect();
        Ok(Self {
            layout,
            queue,
            batch: batch_of(spec.params.depth, layout.block_bytes),
            idle,
            under_way: vec![(0, Instant::now()); depth],
            finished: Vec::with_capacity(depth),
        })
    }

    fn read(&mut self, worker: &mut Worker<'_>, mut order: Order) -> Result<()> {
        worker.start();
        let mut now = worker.started();
        while worker.running() {
            let mut unsent = 0;
            while let Some(slot) = self.idle.pop() {
                let block = order.next_block();
                self.under_way[slot.number as usize] = (block, now);
                push(&mut *self.queue, slot, self.layout.striped_offset(block))?;
                unsent += 1;
                // The last batch is submitted by the call that waits.
                if unsent == self.batch && !self.idle.is_empty() {
                    self.queue.submit()?;
                    unsent = 0;
                }
            }
            self.queue.reap(self.batch, &mut self.finished)?;
            // One clock reading for all completions of one wait.
            now = Instant::now();
            for completion in self.finished.drain(..) {
                let (block, since) = self.under_way[completion.op.token as usize];
                let slot = take(completion)?;
                if let Some(right) = self.layout.is_right(&slot.buffer, self.layout.place(block).offset_bytes) {
                    worker.verified(right);
                }
                worker.done(1, self.layout.block_bytes);
                worker.latency("op", now - since);
                self.idle.push(slot);
            }
        }
        self.settle()
    }

    /// Waits for the reads still in flight and collects their buffers.
    fn settle(&mut self) -> Result<()> {
        self.queue.reap(self.queue.in_flight(), &mut self.finished)?;
        for completion in self.finished.drain(..) {
            self.idle.push(take(completion)?);
        }
        Ok(())
    }

    fn sum_sample(&mut self, worker: &mut Worker<'_>, target: &Target, seed: u64) -> Result<()> {
        let Some(Slot { number, buffer }) = self.idle.pop() else { return Ok(()) };
        let (mut page, _rest) = buffer.split_at(PAGE_BYTES);
        for place in Layout::sample(target, seed) {
            let (files, stripe) = (self.layout.paths.len() as u64, self.layout.stripe_bytes);
            let (row, within) = (place.offset_bytes / stripe, place.offset_bytes % stripe);
            let offset = (row * files + place.file as u64) * stripe + within;
            push(&mut *self.queue, Slot { number, buffer: page }, offset)?;
            self.queue.reap(1, &mut self.finished)?;
            let completion = self.finished.pop().ok_or_else(lost)?;
            page = take(completion)?.buffer;
            worker.checksum(first_word(&page));
        }
        Ok(())
    }
}

#[inline]
fn push(queue: &mut dyn Queue, slot: Slot, offset_bytes: u64) -> Result<()> {
    let op = Op::new(slot.number, offset_bytes, OpKind::Read(slot.buffer));
    queue.push(op).map_err(|refused| LabError::from(refused.error))
}

/// Takes the buffer out of a read that succeeded.
#[inline]
fn take(completion: Completion) -> Result<Slot> {
    if let Err(error) = completion.result {
        return Err(error.into());
    }
    let number = completion.op.token;
    let buffer = completion.into_buffer().ok_or_else(lost)?;
    Ok(Slot { number, buffer })
}

fn lost() -> LabError {
    LabError::new(LabErrorKind::System, "a read came back without its buffer; this is a defect of the lab")
}
