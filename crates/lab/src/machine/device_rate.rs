//! The rate at which a device gives random reads: measured before a run, so that trials last long enough on a slow device,
//! and by `nofault lab doctor`.

use std::path::Path;
use std::time::{Duration, Instant};

use nofault_io::aligned::{IoBuf, PageKind};
use nofault_io::completion::{Op, OpKind};
use nofault_io::disk::{DirectIo, Disk, FileOptions, QueueOptions};
use nofault_io::psync::PsyncDisk;
use nofault_io::uring::UringDisk;

use super::content::{self, BLOCK_BYTES};
use super::data::DataSpec;
use crate::error::{LabError, LabErrorKind, Result};
use crate::paths::shown;

/// Requests in flight at which a device is taken to give its most.
const MANY: u32 = 64;
/// Time of each of the two measurements of a device.
const CALIBRATION: Duration = Duration::from_millis(150);

/// The random reads of a block that a device gives in a second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct DeviceRate {
    /// With one read in flight.
    pub(crate) alone_per_s: f64,
    /// With as many as it takes.
    pub(crate) most_per_s: f64,
}

impl DeviceRate {
    /// Measures a device by a file of the lab's on it. Takes a third of a second.
    ///
    /// # Errors
    /// As [`read_rate`].
    pub(crate) fn measure(path: &Path, data: DataSpec) -> Result<Self> {
        let rate = |depth: u32| read_rate(path, data, (BLOCK_BYTES, depth as usize), CALIBRATION);
        Ok(Self { alone_per_s: rate(1)?.0, most_per_s: rate(MANY)?.0 })
    }

    /// Seconds in which the device gives `reads`, with this number in flight.
    pub(crate) fn seconds(&self, reads: f64, in_flight: u32) -> f64 {
        let rate = (self.alone_per_s * f64::from(in_flight.max(1))).min(self.most_per_s.max(self.alone_per_s));
        reads / rate.max(1e-9)
    }
}

/// Measures verified random direct reads of `block_bytes`, `depth` in flight, on data of the lab for `time`. Returns reads
/// per second, and the kind of disk that made them.
///
/// # Errors
/// The error of opening or reading; `WrongData` for a block that does not hold the lab's data.
pub(crate) fn read_rate(
    path: &Path,
    data: DataSpec,
    (block_bytes, depth): (usize, usize),
    time: Duration,
) -> Result<(f64, &'static str)> {
    let options = FileOptions { direct: DirectIo::Prefer, write: false, create: false };
    let disk: Box<dyn Disk> = match UringDisk::open(path, &options) {
        Ok(disk) => Box::new(disk),
        Err(_) => Box::new(PsyncDisk::open(path, &options, depth)?),
    };
    let kind = if disk.info().direct { disk.info().kind } else { "buffered: not the device" };
    let memory = IoBuf::zeroed(block_bytes * depth, PageKind::Huge)?;
    let registered = vec![memory.region().clone()];
    let mut queue = disk.queue(&QueueOptions { depth_max: depth, single_thread: true, registered })?;
    let places = data.data_bytes / block_bytes as u64;
    let mut random = fastrand::Rng::with_seed(1);
    // The token of a read is the number of the first data block that it covers.
    let mut read = |buffer: IoBuf| {
        let index = random.u64(0..places) * (block_bytes / BLOCK_BYTES) as u64;
        Op::new(index, content::block_offset(index), OpKind::Read(buffer))
    };
    for buffer in memory.pieces(block_bytes) {
        queue.push(read(buffer)).map_err(|refused| LabError::from(refused.error))?;
    }
    let (started, mut reads, mut done) = (Instant::now(), 0u64, Vec::with_capacity(depth));
    while queue.in_flight() > 0 {
        queue.reap(1, &mut done)?;
        for completion in done.drain(..) {
            let index = completion.op.token;
            completion.result.clone()?;
            let Some(buffer) = completion.into_buffer() else { continue };
            if !content::check_block(&buffer[..BLOCK_BYTES], data.seed, index) {
                let message =
                    format!("{} gave wrong data for block {index}: the storage is not to be trusted", shown(&path));
                return Err(LabError::new(LabErrorKind::WrongData, message));
            }
            reads += 1;
            if started.elapsed() < time {
                queue.push(read(buffer)).map_err(|refused| LabError::from(refused.error))?;
            }
        }
    }
    Ok((reads as f64 / started.elapsed().as_secs_f64(), kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_needs_the_time_of_its_reads_whether_one_or_many_are_in_flight() {
        let disk = DeviceRate { alone_per_s: 100.0, most_per_s: 400.0 };
        assert_eq!([1, 2, 4, 64].map(|in_flight| disk.seconds(1000.0, in_flight)), [10.0, 5.0, 2.5, 2.5]);
        // A disturbed calibration, in which many were no faster than one.
        let odd = DeviceRate { alone_per_s: 100.0, most_per_s: 90.0 };
        assert_eq!(odd.seconds(1000.0, 64), 10.0);
    }
}
