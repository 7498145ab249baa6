//! A directory between the engine and its disk that calls a hook before and after each call of the engine. Tests use it
//! to copy the disk at chosen moments, to change the order of threads, and to simulate a killed process on a machine
//! that runs on.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nofault_io::completion::{Completion, Op};
use nofault_io::disk::{Directory, Disk, DiskInfo, Queue, QueueOptions, RefusedOp, describe_op};
use nofault_io::error::{Error, ErrorKind, Result};

/// Counts the calls to a disk; from a chosen one on all of them fail, as if the process had been killed there. The disk
/// itself lives on with all that it was given.
pub(crate) struct Hooks {
    /// Number of calls until the process is treated as killed.
    left: AtomicU64,
    look: Box<dyn Fn(u64) + Send + Sync>,
}

impl Hooks {
    /// Creates hooks. `look` is called at each call with the number of calls that are left. It may block.
    pub(crate) fn new(calls_max: u64, look: impl Fn(u64) + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { left: AtomicU64::new(calls_max), look: Box::new(look) })
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.left.load(Ordering::SeqCst) == 0
    }

    fn call(&self, action: impl FnOnce() -> String) -> Result<()> {
        let counted = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        match counted {
            Ok(left) if left > 1 => {
                (self.look)(left);
                Ok(())
            }
            _ => Err(Error::new(ErrorKind::Stopped, action(), "this process was killed")),
        }
    }
}

/// The directory with hooks on everything in it.
pub(crate) struct HookedDirectory(pub(crate) Arc<dyn Directory>, pub(crate) Arc<Hooks>);

impl HookedDirectory {
    fn disk(&self, disk: Arc<dyn Disk>) -> Arc<dyn Disk> {
        Arc::new(HookedDisk(disk, self.1.clone()))
    }

    fn call(&self, action: &str) -> Result<()> {
        self.1.call(|| action.to_owned())
    }
}

impl fmt::Debug for HookedDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Directory for HookedDirectory {
    fn create(&self, name: &str) -> Result<Arc<dyn Disk>> {
        self.call("create")?;
        self.0.create(name).map(|disk| self.disk(disk))
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Disk>> {
        self.call("open")?;
        self.0.open(name).map(|disk| self.disk(disk))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.call("rename")?;
        self.0.rename(from, to)
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.call("remove")?;
        self.0.remove(name)
    }

    fn list(&self) -> Result<Vec<String>> {
        self.call("list")?;
        self.0.list()
    }

    fn sync(&self) -> Result<()> {
        self.call("sync the directory")?;
        self.0.sync()
    }
}

#[derive(Clone)]
struct HookedDisk(Arc<dyn Disk>, Arc<Hooks>);

impl fmt::Debug for HookedDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Disk for HookedDisk {
    fn info(&self) -> DiskInfo {
        self.0.info()
    }

    fn len_bytes(&self) -> Result<u64> {
        self.1.call(|| "find the length".into())?;
        self.0.len_bytes()
    }

    fn truncate(&self, len_bytes: u64) -> Result<()> {
        self.1.call(|| "truncate".into())?;
        self.0.truncate(len_bytes)
    }

    fn queue(&self, options: &QueueOptions) -> Result<Box<dyn Queue>> {
        self.1.call(|| "open a queue".into())?;
        Ok(Box::new(HookedQueue(self.0.queue(options)?, self.1.clone())))
    }
}

struct HookedQueue(Box<dyn Queue>, Arc<Hooks>);

impl Queue for HookedQueue {
    fn push(&mut self, op: Op) -> std::result::Result<(), RefusedOp> {
        match self.1.call(|| describe_op(&op)) {
            Ok(()) => self.0.push(op),
            Err(error) => Err(RefusedOp { op, error }),
        }
    }

    fn submit(&mut self) -> Result<()> {
        self.1.call(|| "submit".into())?;
        self.0.submit()
    }

    fn reap(&mut self, wait_for: usize, into: &mut Vec<Completion>) -> Result<()> {
        let before = into.len();
        let reaped = self.0.reap(wait_for, into);
        if !into[before..].is_empty() && self.1.call(String::new).is_err() {
            // The operations completed, but a killed process gets no completions.
            for completion in &mut into[before..] {
                let error = Error::new(ErrorKind::Stopped, describe_op(&completion.op), "this process was killed");
                completion.result = Err(error);
            }
        }
        reaped
    }

    fn in_flight(&self) -> usize {
        self.0.in_flight()
    }

    fn ready_fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.ready_fd()
    }
}
