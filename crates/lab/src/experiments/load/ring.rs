//! Reads blocks in a given order past the page cache, a fixed number of them in flight, each into a buffer that comes from
//! the caller and goes back to it.

use nofault_io::aligned::IoBuf;
use nofault_io::completion::{Completion, Op, OpKind};
use nofault_io::disk::{Disk, Queue, QueueOptions};

use super::AHEAD;
use crate::error::{LabError, Result};
use crate::workload::Layout;

/// The reads in flight of one thread.
pub(super) struct Reads<'a> {
    layout: &'a Layout,
    queue: Box<dyn Queue>,
    finished: Vec<Completion>,
}

/// A block that was read, with the memory that holds it.
pub(super) struct Block {
    pub(super) number: u64,
    pub(super) buffer: IoBuf,
}

impl<'a> Reads<'a> {
    /// Opens a queue on a disk with the files of the layout.
    ///
    /// # Errors
    /// The error of opening.
    pub(super) fn open(layout: &'a Layout, disk: &dyn Disk) -> Result<Self> {
        let depth_max = AHEAD as usize;
        let queue = disk.queue(&QueueOptions { depth_max, single_thread: true, registered: Vec::new() })?;
        Ok(Self { layout, queue, finished: Vec::with_capacity(depth_max) })
    }

    /// Whether another read may be started.
    pub(super) fn has_room(&self) -> bool {
        self.queue.in_flight() < AHEAD as usize
    }

    /// Number of reads in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }

    /// Starts to read a block into a buffer of a block's size.
    ///
    /// # Errors
    /// The error of submitting.
    pub(super) fn start(&mut self, number: u64, buffer: IoBuf) -> Result<()> {
        let op = Op::new(number, self.layout.striped_offset(number), OpKind::Read(buffer));
        self.queue.push(op).map_err(|refused| LabError::from(refused.error))?;
        // A large read is worth one system call.
        Ok(self.queue.submit()?)
    }

    /// Waits for at least one read, and passes each finished block to `take`.
    ///
    /// # Errors
    /// The error of a read, or of `take`.
    pub(super) fn wait(&mut self, take: &mut dyn FnMut(Block) -> Result<()>) -> Result<()> {
        self.queue.reap(1, &mut self.finished)?;
        let mut result = Ok(());
        for completion in self.finished.drain(..) {
            let number = completion.op.token;
            if let Err(error) = &completion.result {
                result = result.and(Err(error.clone().into()));
                continue;
            }
            if let Some(buffer) = completion.into_buffer() {
                let taken = take(Block { number, buffer });
                result = result.and(taken);
            }
        }
        result
    }
}
