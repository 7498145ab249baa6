//! The promises of the simulated world, and the behaviour of a striped disk over it, each over many seeds: a simulation
//! that is too kind hides bugs, one that is too cruel reports false ones.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod abandoned;
// The contract of a disk is one body of checks, which the real disks of `nofault-io` keep as well: a link to the file there, which
// `cargo package` follows.
mod common;
mod contract;
mod cuts;
mod faults;
mod striped;

use std::sync::Arc;

use nofault_io::aligned::{IoBuf, PageKind};
use nofault_io::completion::{Completion, Op, OpKind};
use nofault_io::disk::{Disk, Queue, QueueOptions};
use nofault_io::error::Result;
use nofault_sim::{SimOptions, SimWorld};

pub(crate) const BLOCK: usize = 4096;

pub(crate) fn buffer(len: usize, fill: u8) -> IoBuf {
    let mut buffer = IoBuf::zeroed(len, PageKind::Small).unwrap();
    buffer.fill(fill);
    buffer
}

/// Pushes one operation and waits for it.
pub(crate) fn run(queue: &mut dyn Queue, offset: u64, kind: OpKind) -> Result<Completion> {
    queue.push(Op::new(0, offset, kind)).map_err(|refused| refused.error)?;
    let mut done = Vec::new();
    queue.reap(1, &mut done)?;
    assert_eq!(done.len(), 1);
    let completion = done.remove(0);
    completion.result.clone().map(|_| completion)
}

pub(crate) fn write(queue: &mut dyn Queue, offset: u64, fill: u8, len: usize) -> Result<()> {
    run(queue, offset, OpKind::write(buffer(len, fill), false)).map(drop)
}

pub(crate) fn write_durable(queue: &mut dyn Queue, offset: u64, fill: u8, len: usize) -> Result<()> {
    run(queue, offset, OpKind::write(buffer(len, fill), true)).map(drop)
}

pub(crate) fn read(queue: &mut dyn Queue, offset: u64, len: usize) -> Result<Vec<u8>> {
    Ok(run(queue, offset, OpKind::Read(buffer(len, 0xEE)))?.into_buffer().unwrap().to_vec())
}

pub(crate) fn sync(queue: &mut dyn Queue) -> Result<()> {
    run(queue, 0, OpKind::Sync).map(drop)
}

/// Creates a world with one file `data`, whose name is durable, and a queue on it.
pub(crate) fn world_with_file(seed: u64, options: SimOptions) -> (SimWorld, Arc<dyn Disk>, Box<dyn Queue>) {
    let world = SimWorld::new(seed, options);
    let disk = world.directory().create("data").unwrap();
    world.directory().sync().unwrap();
    let queue = disk.queue(&QueueOptions::default()).unwrap();
    (world, disk, queue)
}

/// Creates a world with one file of `blocks` durable blocks of `fill`, and a queue on it.
pub(crate) fn world_with_blocks(seed: u64, options: SimOptions, blocks: usize, fill: u8) -> (SimWorld, Box<dyn Queue>) {
    let (world, _, mut queue) = world_with_file(seed, options);
    write(&mut *queue, 0, fill, blocks * BLOCK).unwrap();
    sync(&mut *queue).unwrap();
    (world, queue)
}
