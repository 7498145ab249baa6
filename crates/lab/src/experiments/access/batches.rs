//! The ring, as the published measurement uses it: submit a batch of blocks, wait for all of them. All of its I/O
//! bypasses the page cache.

use std::time::{Duration, Instant};

use nofault_io::aligned::{IoBuf, PageKind};
use nofault_io::completion::{Completion, Op, OpKind};
use nofault_io::disk::{DirectIo, DiskNote, DiskNoteKind, FileOptions, Queue, QueueOptions};
use nofault_io::uring::{FlagChoice, UringDisk, UringOptions, UringQueue};

use crate::error::{LabError, LabErrorKind, Result};
use crate::machine::content::BLOCK_BYTES;
use crate::read_loops::overwrite::fill;
use crate::workload::Layout;

/// The ring set-ups that `ring-setup` compares: the values of its parameter `flags`.
pub(super) const SETUPS: [&str; 5] = ["plain", "defer", "registered", "registered+defer", "registered+sqpoll"];
/// How long the kernel's polling thread (SQPOLL) spins without work before it sleeps.
const SQPOLL_IDLE_MS: u32 = 10;

/// The features with which an io_uring ring is set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Setup {
    pub(super) registered: bool,
    pub(super) defer: bool,
    pub(super) sqpoll: bool,
    /// Whether the set-up was requested by name: then a feature that the kernel refuses is an error.
    exact: bool,
}

impl Setup {
    /// Returns the set-up that a value of the parameter `flags` names; without a value, all features that usually help.
    ///
    /// # Errors
    /// `Usage` for an unknown flag.
    pub(super) fn of(flags: Option<&str>) -> Result<Self> {
        let Some(flags) = flags else { return Ok(Self { registered: true, defer: true, sqpoll: false, exact: false }) };
        let mut setup = Self { registered: false, defer: false, sqpoll: false, exact: true };
        for flag in flags.split('+') {
            match flag {
                "plain" => {}
                "registered" => setup.registered = true,
                "defer" => setup.defer = true,
                "sqpoll" => setup.sqpoll = true,
                other => {
                    let message = format!("access: unknown ring flag '{other}'; known set-ups: {}", SETUPS.join(", "));
                    return Err(LabError::new(LabErrorKind::Usage, message));
                }
            }
        }
        Ok(setup)
    }

    fn options(self) -> UringOptions {
        UringOptions {
            sqpoll_idle_ms: self.sqpoll.then_some(SQPOLL_IDLE_MS),
            defer_taskrun: if self.defer { FlagChoice::Auto } else { FlagChoice::Off },
            coop_taskrun: if self.exact { FlagChoice::Off } else { FlagChoice::Auto },
            register_file: self.registered,
            register_buffers: self.registered,
            ring_entries: None,
        }
    }
}

/// A ring over one file or device, and the buffers for its operations.
pub(super) struct Ring {
    pub(super) queue: UringQueue,
    pub(super) buffers: Vec<IoBuf>,
    pub(super) done: Vec<Completion>,
}

impl Ring {
    /// Opens a ring for `depth` blocks in flight, on the thread that will use it. With `polled`, the ring's descriptor
    /// becomes readable when an operation completes, without a call that enters the ring; this excludes DEFER_TASKRUN.
    ///
    /// # Errors
    /// The error of opening; `Unsupported` when the kernel refuses a feature of a set-up that was requested by name.
    pub(super) fn open(layout: &Layout, depth: u32, setup: Setup, write: bool, polled: bool) -> Result<Self> {
        let path = layout.paths.first().cloned().unwrap_or_default();
        let disk = UringDisk::open(&path, &FileOptions { direct: DirectIo::Require, write, create: false })?;
        let memory = IoBuf::zeroed(depth as usize * BLOCK_BYTES, PageKind::Small)?;
        let registered = vec![memory.region().clone()];
        let options = QueueOptions { depth_max: depth as usize, single_thread: !polled, registered };
        let queue = disk.queue_with(&options, &setup.options())?;
        if let (true, Some(missing)) = (setup.exact, missing(queue.notes())) {
            return Err(LabError::new(LabErrorKind::Unsupported, format!("access: {missing}")));
        }
        let buffers = memory.pieces(BLOCK_BYTES);
        Ok(Self { queue, buffers, done: Vec::with_capacity(depth as usize) })
    }

    /// Returns the features that the kernel refused, in words; `None` when the ring has all of its set-up.
    pub(super) fn missing(&self) -> Option<String> {
        missing(self.queue.notes())
    }

    /// Reads the blocks at a batch of positions; `see` is called with each position and its bytes. Returns the time
    /// from the first submission until the last completion, which for the caller is the latency of every block of the
    /// batch.
    ///
    /// # Errors
    /// The first operation's error.
    pub(super) fn read(&mut self, batch: &[u64], mut see: impl FnMut(u64, &[u8])) -> Result<Duration> {
        let started = Instant::now();
        for offset_bytes in batch {
            let buffer = self.buffers.pop().ok_or_else(no_buffer)?;
            self.push(Op::new(0, *offset_bytes, OpKind::Read(buffer)))?;
        }
        self.queue.reap(batch.len(), &mut self.done)?;
        let elapsed = started.elapsed();
        while let Some(completion) = self.done.pop() {
            let offset_bytes = completion.op.offset_bytes;
            let buffer = take(completion)?;
            see(offset_bytes, &buffer);
            self.buffers.push(buffer);
        }
        Ok(elapsed)
    }

    /// Overwrites a batch of positions with their expected content. Returns the time without the filling of the
    /// buffers.
    ///
    /// # Errors
    /// The first operation's error.
    pub(super) fn write(&mut self, batch: &[u64], content_seed: u64, durable: bool) -> Result<Duration> {
        let mut filled = Vec::with_capacity(batch.len());
        for offset_bytes in batch {
            let mut buffer = self.buffers.pop().ok_or_else(no_buffer)?;
            fill(&mut buffer, content_seed, *offset_bytes);
            filled.push(Op::new(0, *offset_bytes, OpKind::write(buffer, durable)));
        }
        let started = Instant::now();
        for op in filled {
            self.push(op)?;
        }
        self.queue.reap(batch.len(), &mut self.done)?;
        let elapsed = started.elapsed();
        while let Some(completion) = self.done.pop() {
            self.buffers.push(take(completion)?);
        }
        Ok(elapsed)
    }

    /// Makes all earlier writes durable (fdatasync through the ring).
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn sync(&mut self) -> Result<()> {
        self.push(Op::new(0, 0, OpKind::Sync))?;
        self.queue.reap(1, &mut self.done)?;
        match self.done.pop() {
            Some(completion) => Ok(completion.result.map(|_| ())?),
            None => Err(LabError::new(LabErrorKind::System, "a sync did not complete")),
        }
    }

    /// Pushes an operation into the ring's submission queue.
    ///
    /// # Errors
    /// The reason of a refusal.
    pub(super) fn push(&mut self, op: Op) -> Result<()> {
        self.queue.push(op).map_err(|refused| refused.error.into())
    }
}

/// Returns the buffer of an operation that succeeded.
pub(super) fn take(completion: Completion) -> Result<IoBuf> {
    completion.result.clone()?;
    completion.into_buffer().ok_or_else(no_buffer)
}

fn no_buffer() -> LabError {
    LabError::new(LabErrorKind::System, "the ring did not return a buffer")
}

/// Extracts the features that the kernel refused from a ring's notes.
fn missing(notes: &[DiskNote]) -> Option<String> {
    let missing = notes.iter().filter(|note| note.kind == DiskNoteKind::Missing);
    let all: Vec<&str> = missing.map(|note| note.text.as_str()).collect();
    (!all.is_empty()).then(|| all.join("; "))
}
