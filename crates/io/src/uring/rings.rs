//! The rings of a process: a queue borrows one while it has operations under way, and at rest it has none.
//!
//! So the number of rings, and of their descriptors, is the number of queues in use at a time, however many files are open. A few
//! rings are kept for the next borrowers, as setting one up costs some 50 us; they are closed with the last disk that uses rings.
//!
//! Kept true by: a ring is kept only when its last borrower has taken the completions of all its operations ([`Lease::keep`]).

use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use io_uring::IoUring;

use crate::error::Result;
use crate::process::{PerProcess, Process};

/// Entries of a ring that queues share, and the depth up to which a queue shares one.
pub(super) const SHARED_ENTRIES: usize = 128;
/// Most rings kept while no queue uses them.
const IDLE_MAX: usize = 4;

static OF_PROCESS: PerProcess<Mutex<Weak<Rings>>> = PerProcess::new();

/// The rings of the process that no queue uses at the moment.
#[derive(Debug)]
pub(super) struct Rings {
    /// The process that set them up: a forked child does not have their memory.
    process: Process,
    idle: Mutex<Vec<Idle>>,
}

struct Idle(IoUring);

impl std::fmt::Debug for Idle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ring")
    }
}

impl Rings {
    /// Returns the rings of this process, which live until the last reference to them is dropped.
    pub(super) fn of_process() -> Arc<Self> {
        let mut of_process = lock(OF_PROCESS.get());
        if let Some(rings) = of_process.upgrade() {
            return rings;
        }
        let rings = Arc::new(Self { process: Process::current(), idle: Mutex::default() });
        *of_process = Arc::downgrade(&rings);
        rings
    }

    /// Borrows a ring of [`SHARED_ENTRIES`] entries: an idle one, or the one that `build` sets up.
    ///
    /// # Errors
    /// The error of `build`.
    pub(super) fn borrow(self: &Arc<Self>, build: impl FnOnce() -> Result<IoUring>) -> Result<Lease> {
        let idle = lock(&self.idle).pop();
        let ring = match idle {
            Some(Idle(ring)) => ring,
            None => build()?,
        };
        Ok(Lease { ring: ManuallyDrop::new(ring), rings: Some(Arc::clone(self)), is_kept: false })
    }
}

impl Drop for Rings {
    fn drop(&mut self) {
        if !self.process.is_here() {
            // A forked child has the descriptors of the rings, and not their memory.
            std::mem::forget(std::mem::take(self.idle.get_mut().unwrap_or_else(PoisonError::into_inner)));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The ring of a queue: borrowed, or the queue's own, which is closed with it.
pub(super) struct Lease {
    ring: ManuallyDrop<IoUring>,
    rings: Option<Arc<Rings>>,
    is_kept: bool,
}

impl Lease {
    /// Makes a lease of a ring that only one queue uses.
    pub(super) fn own(ring: IoUring) -> Self {
        Self { ring: ManuallyDrop::new(ring), rings: None, is_kept: false }
    }

    /// Notes that the ring has no operation under way, no entry and no completion: if it is borrowed it can be lent again.
    pub(super) fn keep(&mut self) {
        self.is_kept = true;
    }
}

impl Deref for Lease {
    type Target = IoUring;

    fn deref(&self) -> &IoUring {
        &self.ring
    }
}

impl DerefMut for Lease {
    fn deref_mut(&mut self) -> &mut IoUring {
        &mut self.ring
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // SAFETY: `ring` is not used again.
        let ring = unsafe { ManuallyDrop::take(&mut self.ring) };
        if let Some(rings) = self.rings.as_ref().filter(|_| self.is_kept) {
            let mut idle = lock(&rings.idle);
            if idle.len() < IDLE_MAX {
                return idle.push(Idle(ring));
            }
        }
        // Closed outside the lock.
        drop(ring);
    }
}
