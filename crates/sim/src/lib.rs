//! A simulated world of storage, for tests of a database under power cuts and faults of the disk.
//!
//! A [`SimWorld`] is one directory of simulated disks behind the contracts of [`nofault_io::disk`]. Every random choice
//! comes from one seed, so a history driven by one thread repeats exactly; printing the world prints how to make it
//! again. A crash test needs ten lines:
//!
//! ```
//! use nofault_io::{aligned::{IoBuf, PageKind}, completion::{Op, OpKind}, disk::QueueOptions, error::Result};
//! use nofault_sim::{SimOptions, SimWorld};
//!
//! /// Creates `log` and appends durable blocks; tells how many were acknowledged before something failed.
//! fn history(world: &SimWorld, acknowledged: &mut u64) -> Result<()> {
//!     let directory = world.directory();
//!     let mut queue = directory.create("log")?.queue(&QueueOptions::default())?;
//!     directory.sync()?;
//!     for block in 0..4 {
//!         let mut bytes = IoBuf::zeroed(4096, PageKind::Small)?;
//!         bytes.fill(block as u8 + 1);
//!         queue.push(Op::new(0, block * 4096, OpKind::write(bytes, true))).map_err(|refused| refused.error)?;
//!         let mut done = Vec::new();
//!         queue.reap(1, &mut done)?;
//!         done.remove(0).result?;
//!         *acknowledged += 1;
//!     }
//!     Ok(())
//! }
//!
//! let whole = SimWorld::new(1, SimOptions::adversarial());
//! history(&whole, &mut 0).unwrap();
//! for event in 1..=whole.events() {
//!     let mut acknowledged = 0;
//!     let world = SimWorld::new(1, SimOptions::adversarial());
//!     world.cut_after(event);
//!     let _ = history(&world, &mut acknowledged);
//!     for seed in 0..10 {
//!         let after = world.restart(seed);
//!         let log = after.read_file("log").unwrap_or_default();
//!         assert!(log.len() as u64 >= acknowledged * 4096, "{after}");
//!         assert!((0..acknowledged).all(|block| log[block as usize * 4096] == block as u8 + 1), "{after}");
//!     }
//! }
//! ```
//!
//! # State after a power cut
//!
//! - **Bytes.** A write that completed is seen by every read at once. It is durable when it was issued durable, or when
//!   a `Sync` *pushed after* it completed has itself completed. Any other sector holds, after a cut, any of the
//!   contents it had since the last durable one, each sector for itself or each write whole; with
//!   [`SimOptions::torn_sectors`] also the head of one and the rest of another. Writes under way count as the newest.
//! - **Lengths and allocation** are pending like bytes and have their own luck: a file may keep its length and lose the
//!   bytes (zeroes, or garbage with [`SimOptions::garbage_growth`]) or the other way round. A `Sync` makes them
//!   durable; a durable write makes a length durable that reaches its end. A file that was cut has its old length and
//!   bytes again after a power cut, or not, until a `Sync`, or a durable write behind the place of the cut, makes the
//!   cut durable. Bytes there that were never synced are lost.
//! - **Names** are durable after `Directory::sync`. Until then changes that share a name form chains, and of each chain
//!   a first part survives; a rename is one step. Syncing a file does not save its name.
//! - **A failed sync** drops the writes that it covered, as Linux does: reads still see their bytes, a cut may keep or
//!   lose them, but a later successful sync does not save them. A failed directory sync leaves its changes in doubt
//!   forever.
//! - **A failed durable write** is treated like a failed sync: no later sync makes durable the bytes that it has left,
//!   only another write does. Of a failed write that was not durable, any sector may be written, and the next sync
//!   covers these. With [`Caching::Buffered`] reads see such abandoned bytes only until the page cache drops them.
//!
//! Weaker on purpose than the usual behaviour of ext4, xfs and btrfs. The model follows their design; it was not
//! compared with real power cuts.
//!
//! # Time
//!
//! Simulated time advances only in `submit` and `reap`. So `reap(0)` may find nothing, and `reap(n)` never parks. Once
//! a queue has been asked for its `ready_fd`, one of the operations it has submitted is always ready, since its owner
//! would otherwise never call `reap`. Dropping a queue runs the submitted operations; operations that were only pushed
//! may run or not.
//!
//! # Hooks
//!
//! [`Hooks`] stand before any directory or disk, simulated or real, for the calls that a test counts, delays, refuses or
//! answers by itself.
//!
//! # Locks
//!
//! The world's lock is never held while memory of an operation is dropped, so buffers may belong to anything.

mod bytes;
pub mod content;
mod damage;
pub mod depth;
mod disk;
mod file;
mod hooks;
mod in_flight;
mod names;
mod operation;
mod options;
mod state;
mod stats;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

pub use damage::FileSnapshot;
pub use hooks::Hooks;
use nofault_io::disk::Directory;
pub use options::{Caching, Call, Defer, Effect, Fault, Rates, SimOptions};
use state::State;
pub use stats::SimStats;

/// A directory of simulated disks, with the power cuts and faults that a test applies to it. Clones are handles of one
/// world.
#[derive(Clone)]
pub struct SimWorld(Arc<Mutex<State>>);

impl SimWorld {
    /// Creates an empty world. The cost is negligible.
    ///
    /// # Panics
    /// When an option is out of its range.
    pub fn new(seed: u64, options: SimOptions) -> Self {
        options.check();
        Self::of(State::new(seed, options, format!("SimWorld::new({seed}, {options:?})")))
    }

    /// Returns the world's directory. Every call returns the same one.
    pub fn directory(&self) -> Arc<dyn Directory> {
        Arc::new(disk::SimDirectory(self.clone()))
    }

    /// Returns the number of events so far. An event is an operation pushed or completed, or a change of names, a sync
    /// of names or a cut of a file begun or finished.
    pub fn events(&self) -> u64 {
        self.with(|state| state.events)
    }

    /// Cuts the power right after the `event`-th event of this world, counted from 1; at once when that is past. From
    /// then on every call gives `Stopped`; operations that had completed are still delivered, the others in flight come
    /// back as `Stopped`.
    pub fn cut_after(&self, event: u64) {
        self.with(|state| state.cut_after(event));
    }

    /// Returns whether the power was cut.
    pub fn is_cut(&self) -> bool {
        self.with(|state| state.is_stopped())
    }

    /// Returns the world after the power cut, or, while the power is still on, as a cut at this moment would leave it. This
    /// world is not changed, so one history can be cut many times. Same options; faults that have not struck yet are gone.
    /// The cost grows with the unsynced data, plus a reference per file and name.
    pub fn restart(&self, seed: u64) -> Self {
        let options = self.with(|state| state.options);
        self.restart_with(seed, options)
    }

    /// As [`SimWorld::restart`], going on with other options. They must have the same sector size.
    ///
    /// # Panics
    /// When an option is out of its range or the sector size differs.
    pub fn restart_with(&self, seed: u64, options: SimOptions) -> Self {
        options.check();
        Self::of(self.with(|state| {
            assert_eq!(options.sector_bytes, state.options.sector_bytes, "a device keeps its sector size");
            state.survive(seed, options)
        }))
    }

    /// Places a fault. Several can wait at a time; of two that apply to the same call the older decides.
    pub fn inject(&self, fault: Fault) {
        self.with(|state| state.inject(fault));
    }

    /// Sets how many bytes all files together may take: to let space run out, or to give some back.
    pub fn set_capacity(&self, capacity_bytes: Option<u64>) {
        self.with(|state| state.options.capacity_bytes = capacity_bytes);
    }

    /// Sets the probabilities of random faults from here on, so that a test can set up its files without any.
    pub fn set_rates(&self, rates: Rates) {
        self.with(|state| state.options.rates = rates);
    }

    /// Returns the bytes taken by all files, counted in pages of 4096 bytes; removed files count while they are open.
    pub fn bytes_used(&self) -> u64 {
        self.with(|state| state.bytes_used())
    }

    /// Returns the counts of the calls so far.
    pub fn stats(&self) -> SimStats {
        self.with(|state| state.stats)
    }

    /// Returns a hash of everything that happened: equal for two runs of the same history with the same seed.
    pub fn trace_hash(&self) -> u64 {
        self.with(|state| state.trace.0)
    }

    fn of(state: State) -> Self {
        Self(Arc::new(Mutex::new(state)))
    }

    /// Runs `body` with the state locked. It must not drop memory of operations: see [`State::remove_queue`].
    fn with<T>(&self, body: impl FnOnce(&mut State) -> T) -> T {
        body(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Display for SimWorld {
    /// Prints one line: the code that makes the world again, and the number of its events so far.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (story, events) = self.with(|state| (state.story(), state.events));
        write!(f, "{story} at event {events}")
    }
}

impl fmt::Debug for SimWorld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
