//! Implements the contracts of [`nofault_io::disk`] for a simulated world: its directory, its disks and their queues.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use rustix::event::{EventfdFlags, eventfd};

use super::SimWorld;
use super::names::{Change, FileId};
use super::operation::QueueId;
use super::options::{Call, Effect};
use nofault_io::completion::{Completion, Op};
use nofault_io::disk::{Directory, Disk, DiskInfo, Queue, QueueOptions, RefusedOp, check_op, describe_op};
use nofault_io::error::{Error, ErrorKind, Result};

#[derive(Debug)]
pub(super) struct SimDirectory(pub(super) SimWorld);

impl SimDirectory {
    /// Counts the call and finds the fault that applies to it. Returns an error that comes before anything is
    /// changed.
    fn begin(&self, call: Call, name: &str, action: &str) -> Result<Option<Effect>> {
        self.0.with(|state| {
            state.check_running(|| action.to_owned())?;
            match call {
                Call::SyncDirectory => state.stats.directory_sync_count += 1,
                _ => state.stats.name_call_count += 1,
            }
            Ok(state.effect_on(call, name))
        })
    }

    fn disk(&self, name: &str, file: FileId) -> Arc<dyn Disk> {
        Arc::new(SimDisk(Arc::new(Handle { world: self.0.clone(), file, name: name.to_owned() })))
    }
}

impl Directory for SimDirectory {
    fn create(&self, name: &str) -> Result<Arc<dyn Disk>> {
        let action = format!("create {name}");
        check_name(name, &action)?;
        let effect = self.begin(Call::Create, name, &action)?;
        let file = self.0.with(|state| {
            if state.names.get(name).is_some() {
                return Err(Error::from_errno(action.as_str(), libc::EEXIST));
            }
            let file = state.create();
            let change = Change::Create { name: name.to_owned(), file };
            let changed = state.change_names(change, effect, &action);
            if changed.is_err() {
                state.forget_unreachable();
            }
            changed?;
            state.hold(file);
            Ok(file)
        })?;
        Ok(self.disk(name, file))
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Disk>> {
        let action = format!("open {name}");
        let effect = self.begin(Call::Open, name, &action)?;
        let file = self.0.with(|state| {
            state.check_effect(effect, &action)?;
            let file = state.names.get(name).ok_or_else(|| Error::from_errno(action.as_str(), libc::ENOENT))?;
            state.hold(file);
            Ok(file)
        })?;
        Ok(self.disk(name, file))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let action = format!("rename {from} to {to}");
        check_name(to, &action)?;
        let effect = self.begin(Call::Rename, from, &action)?;
        self.0.with(|state| {
            state.names.get(from).ok_or_else(|| Error::from_errno(action.as_str(), libc::ENOENT))?;
            if state.names.get(to).is_some() {
                return Err(Error::from_errno(action.as_str(), libc::EEXIST));
            }
            state.change_names(Change::Rename { from: from.to_owned(), to: to.to_owned() }, effect, &action)
        })
    }

    fn remove(&self, name: &str) -> Result<()> {
        let action = format!("remove {name}");
        let effect = self.begin(Call::Remove, name, &action)?;
        self.0.with(|state| {
            state.names.get(name).ok_or_else(|| Error::from_errno(action.as_str(), libc::ENOENT))?;
            state.change_names(Change::Remove { name: name.to_owned() }, effect, &action)
        })
    }

    fn list(&self) -> Result<Vec<String>> {
        let action = "list the directory";
        let effect = self.begin(Call::List, "", action)?;
        self.0.with(|state| {
            state.check_effect(effect, action)?;
            Ok(state.names.list().map(|(name, _)| name.clone()).collect())
        })
    }

    fn sync(&self) -> Result<()> {
        let effect = self.begin(Call::SyncDirectory, "", "sync the directory")?;
        self.0.with(|state| state.sync_names(effect))
    }
}

fn check_name(name: &str, action: &str) -> Result<()> {
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
        return Err(Error::new(ErrorKind::InvalidCall, action, "a name is one component without slashes"));
    }
    Ok(())
}

/// An open file: the world keeps the bytes of the file as long as a handle exists.
struct Handle {
    world: SimWorld,
    file: FileId,
    name: String,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.world.with(|state| state.release(self.file));
    }
}

struct SimDisk(Arc<Handle>);

impl Disk for SimDisk {
    fn info(&self) -> DiskInfo {
        self.0.world.with(|state| state.options.info(&self.0.name))
    }

    fn len_bytes(&self) -> Result<u64> {
        let action = || "find the length".to_owned();
        self.0.world.with(|state| {
            state.check_running(action).map_err(|error| error.at(Path::new(&self.0.name)))?;
            Ok(state.files.get(&self.0.file).map_or(0, super::file::File::len))
        })
    }

    fn truncate(&self, len_bytes: u64) -> Result<()> {
        let handle = &self.0;
        let cut = handle.world.with(|state| state.truncate(handle.file, &handle.name, len_bytes));
        cut.map_err(|error| error.at(Path::new(&handle.name)))
    }

    fn queue(&self, options: &QueueOptions) -> Result<Box<dyn Queue>> {
        let action = || "open a queue".to_owned();
        if options.depth_max == 0 {
            return Err(Error::new(ErrorKind::InvalidCall, action(), "depth_max is zero; ask for at least one"));
        }
        let (id, info) = self.0.world.with(|state| {
            state.check_running(action).map_err(|error| error.at(Path::new(&self.0.name)))?;
            Ok((state.add_queue(), state.options.info(&self.0.name)))
        })?;
        Ok(Box::new(SimQueue {
            handle: self.0.clone(),
            id,
            info,
            depth_max: options.depth_max,
            in_flight: 0,
            staged: 0,
            ready: OnceLock::new(),
        }))
    }
}

impl fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimDisk({} of {})", self.0.name, self.0.world)
    }
}

struct SimQueue {
    handle: Arc<Handle>,
    id: QueueId,
    info: DiskInfo,
    depth_max: usize,
    in_flight: usize,
    /// Number of operations pushed since the last submit.
    staged: usize,
    /// The queue's descriptor, made at the first request: most tests need none, and it costs system calls.
    ready: OnceLock<Option<OwnedFd>>,
}

impl SimQueue {
    /// Makes the descriptor readable while a submitted operation is not reaped; one of them has then completed, so that
    /// a reap after a readable event finds a completion. Written again each time, for edge-triggered pollers.
    fn signal(&self) {
        let Some(Some(fd)) = self.ready.get() else { return };
        self.handle.world.with(|state| state.finish_until(self.id, 1));
        // Neither can fail in a way that matters: an empty counter has nothing to drain, and 1 always fits into zero.
        let _ = rustix::io::read(fd, &mut [0_u8; 8]);
        if self.in_flight > self.staged {
            let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
        }
    }
}

impl Queue for SimQueue {
    fn push(&mut self, op: Op) -> std::result::Result<(), RefusedOp> {
        let name = Path::new(&self.handle.name);
        if let Err(error) = check_op(&op, self.info.align_bytes) {
            return Err(RefusedOp { op, error: error.at(name) });
        }
        if self.in_flight >= self.depth_max {
            let why = format!("{} operations are in flight, as many as this queue takes", self.in_flight);
            let error = Error::new(ErrorKind::Busy, describe_op(&op), why).at(name);
            return Err(RefusedOp { op, error });
        }
        let mut pushed = Some(op);
        let refused = self.handle.world.with(|state| {
            let running = state.check_running(|| pushed.as_ref().map(describe_op).unwrap_or_default());
            if let Some(op) = pushed.take_if(|_| running.is_ok()) {
                state.push(self.id, self.handle.file, &self.handle.name, op);
            }
            running.err()
        });
        if let (Some(error), Some(op)) = (refused, pushed) {
            return Err(RefusedOp { op, error: error.at(name) });
        }
        self.in_flight += 1;
        self.staged += 1;
        Ok(())
    }

    fn submit(&mut self) -> Result<()> {
        let submitted = self.handle.world.with(|state| {
            state.submit(self.id);
            state.check_running(|| "submit".to_owned())
        });
        self.staged = 0;
        self.signal();
        submitted.map_err(|error| error.at(Path::new(&self.handle.name)))
    }

    fn reap(&mut self, wait_for: usize, into: &mut Vec<Completion>) -> Result<()> {
        // Not an error after a cut: this is how the operations in flight come back.
        let wait_for = wait_for.min(self.in_flight);
        self.in_flight -= self.handle.world.with(|state| {
            state.submit(self.id);
            state.advance(self.id, wait_for);
            state.take_ready(self.id, into)
        });
        self.staged = 0;
        self.signal();
        Ok(())
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn ready_fd(&self) -> Option<BorrowedFd<'_>> {
        let fd = self.ready.get_or_init(|| eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).ok());
        self.signal();
        fd.as_ref().map(AsFd::as_fd)
    }
}

impl Drop for SimQueue {
    fn drop(&mut self) {
        let left = self.handle.world.with(|state| state.remove_queue(self.id));
        drop(left);
    }
}
