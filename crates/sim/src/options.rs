//! The options of a simulated world: its behaviour, random faults, and the single faults that a test places by hand.

use nofault_io::disk::{DiskInfo, DiskNote};

/// The order and time of completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Defer {
    /// Every operation is done by the time `submit` returns, in the order pushed.
    Immediate,
    /// Any number of operations finish at each look, in any order.
    Reordered,
    /// Most reaps find no completion, late operations overtake early ones, a `reap` yields little more than it asks
    /// for, and a read that overlaps a write in flight sees any mix of old and new sectors.
    Adversarial,
}

/// The cache between a file and its device. It decides which bytes a failed durable write leaves behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caching {
    /// O_DIRECT, no cache. A failed durable write may have stored any of its sectors, and reads then see them. No later
    /// sync makes them durable.
    Direct,
    /// The page cache of Linux. After a failed durable write reads see all of the new bytes, from pages that are marked
    /// clean: no later sync writes them. The kernel may drop clean pages at any time, for want of memory; from then on
    /// reads give the bytes of the device, old or new, each sector for itself. The same happens to the writes that a failed
    /// sync covered.
    Buffered,
}

/// Probabilities, from 0 to 1 per operation, of random faults. All zero by default.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Rates {
    /// Probability that a read fails with EIO.
    pub read_error: f64,
    /// Probability that a write fails with EIO. [`Caching`] describes the bytes that it leaves behind.
    pub write_error: f64,
    /// Probability that a sync fails with EIO, and that the writes that it covered are dropped (see [`super`]).
    pub sync_error: f64,
    /// Probability that a write is acknowledged and never stored: the old bytes stay.
    pub lost_write: f64,
    /// Probability that a write goes to another place of the same file.
    pub misdirected_write: f64,
    /// Probability that a read returns the bytes of another place of the same file.
    pub misdirected_read: f64,
    /// Probability that one bit of a write is stored inverted.
    pub flipped_write: f64,
    /// Probability that one bit of a read is returned inverted; the stored bytes stay good.
    pub flipped_read: f64,
    /// Probability that one sector of a write is stored as zeroes.
    pub zeroed_write: f64,
    /// Probability that one sector of a write is stored as garbage.
    pub garbage_write: f64,
    /// Probability that the driver moves only a part at first and has to repeat the rest. This is invisible, but other
    /// operations run in between.
    pub split_transfer: f64,
}

/// The behaviour of a world. `Debug` prints it in one line, as code that makes it again.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SimOptions {
    /// The order and time of completions.
    pub defer: Defer,
    /// Whether files have a page cache.
    pub caching: Caching,
    /// Size of a sector, the unit that is written whole or not written, in bytes: a power of two from 64 to 4096.
    pub sector_bytes: usize,
    /// The required alignment of offsets, lengths and addresses; 1 for no rule.
    pub align_bytes: usize,
    /// A power cut may also leave the first bytes of one version of a sector and the rest of another.
    pub torn_sectors: bool,
    /// Space by which a file grew without a sync may hold garbage after a power cut, not only zeroes.
    pub garbage_growth: bool,
    /// Bytes that all files together may take, counted in pages of 4096 bytes; then ENOSPC.
    pub capacity_bytes: Option<u64>,
    /// Probabilities of random faults.
    pub rates: Rates,
}

impl SimOptions {
    /// Completions at once and in order; power cuts lose, keep and reorder whole sectors.
    pub fn calm() -> Self {
        Self {
            defer: Defer::Immediate,
            caching: Caching::Direct,
            sector_bytes: 512,
            align_bytes: 512,
            torn_sectors: false,
            garbage_growth: false,
            capacity_bytes: None,
            rates: Rates::default(),
        }
    }

    /// Everything a correct device and file system may do, at its worst. No errors and no silent damage.
    pub fn adversarial() -> Self {
        Self {
            defer: Defer::Adversarial,
            torn_sectors: true,
            garbage_growth: true,
            rates: Rates { split_transfer: 0.1, ..Rates::default() },
            ..Self::calm()
        }
    }

    /// Checks that each option is in its range.
    ///
    /// # Panics
    /// When a value is out of its range: a mistake in a test.
    pub(super) fn check(&self) {
        let sector = self.sector_bytes;
        assert!(sector.is_power_of_two() && (64..=4096).contains(&sector), "sector_bytes is {sector}");
        assert!(self.align_bytes.is_power_of_two() && self.align_bytes <= 4096, "align_bytes is {}", self.align_bytes);
    }

    pub(super) fn info(&self, name: &str) -> DiskInfo {
        DiskInfo {
            kind: "sim",
            path: Some(name.into()),
            direct: self.caching == Caching::Direct,
            align_bytes: self.align_bytes,
            notes: vec![DiskNote::in_use("simulated: bytes live in memory")],
        }
    }
}

impl Default for SimOptions {
    /// [`SimOptions::calm`] with completions deferred and reordered.
    fn default() -> Self {
        Self { defer: Defer::Reordered, ..Self::calm() }
    }
}

/// Calls that a [`Fault`] can meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Call {
    /// Calls of `Directory::create`.
    Create,
    /// Calls of `Directory::open`.
    Open,
    /// Calls of `Directory::rename`; a fault on one file applies to its old name.
    Rename,
    /// Calls of `Directory::remove`.
    Remove,
    /// Calls of `Directory::list`.
    List,
    /// Calls of `Directory::sync`.
    SyncDirectory,
    /// Reads of a disk.
    Read,
    /// Writes to a disk, durable or not.
    Write,
    /// Syncs of a disk.
    Sync,
    /// Allocations on a disk.
    Allocate,
    /// Calls of `Disk::truncate`.
    Truncate,
}

/// The effect of a fault on the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// The call fails with this errno: EIO, ENOSPC, or ETIMEDOUT for something transient of kind `Other`. Names stay as
    /// they were; a failed write leaves the bytes that [`Caching`] describes; a failed sync drops the writes that it
    /// covered.
    Errno(i32),
    /// The call is acknowledged and does nothing: a lost write, a sync or directory sync that makes nothing durable, an
    /// allocation of nothing, a file that keeps its length. Other calls on names ignore it.
    Lost,
    /// The bytes of a read or write come from or go to another place of the same file; the right place when the file has
    /// no other.
    Misdirected,
    /// One bit of the bytes is inverted: returned so by a read, stored so by a write.
    FlippedBit,
    /// One sector of the bytes becomes zeroes.
    ZeroedSector,
    /// One sector of the bytes becomes garbage.
    GarbageSector,
}

/// A fault of certain calls, which are counted in the order in which they are made (for disks: pushed).
#[derive(Debug, Clone)]
pub struct Fault {
    pub(super) call: Call,
    pub(super) effect: Effect,
    pub(super) name: Option<String>,
    pub(super) skip: u64,
    pub(super) times: u64,
}

impl Fault {
    /// Creates a fault that hits the next such call, once, on any file.
    pub fn new(call: Call, effect: Effect) -> Self {
        Self { call, effect, name: None, skip: 0, times: 1 }
    }

    /// Limits the fault to calls on the file that was opened, created, renamed or removed under this name; it counts no
    /// others.
    #[must_use]
    pub fn on(mut self, name: &str) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Lets `count` calls pass before the fault hits one.
    #[must_use]
    pub fn after(mut self, count: u64) -> Self {
        self.skip = count;
        self
    }

    /// Makes the fault hit `count` calls in a row; `u64::MAX` stands for all calls from there on.
    #[must_use]
    pub fn times(mut self, count: u64) -> Self {
        self.times = count;
        self
    }

    /// Returns the kind of calls that the fault can hit.
    pub fn call(&self) -> Call {
        self.call
    }

    /// Returns whether the fault hits this call; counts the call when the fault could have hit it.
    pub(super) fn hits(&mut self, call: Call, name: &str) -> bool {
        if self.call != call || self.name.as_deref().is_some_and(|wanted| wanted != name) || self.times == 0 {
            return false;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        if self.times != u64::MAX {
            self.times -= 1;
        }
        true
    }
}
