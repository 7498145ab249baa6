//! Counts of a world's operations, and a hash of them.

use nofault_io::completion::{Op, OpKind};

/// Counts since the world began. Operations count when they are pushed. The difference of two readings counts the time
/// between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SimStats {
    /// Number of reads.
    pub read_count: u64,
    /// Bytes asked for by reads.
    pub read_bytes: u64,
    /// Number of writes, durable ones included.
    pub write_count: u64,
    /// Bytes given to writes.
    pub write_bytes: u64,
    /// Number of durable writes.
    pub durable_write_count: u64,
    /// Number of syncs of disks.
    pub sync_count: u64,
    /// Number of allocations.
    pub allocate_count: u64,
    /// Number of cuts of files.
    pub truncate_count: u64,
    /// Number of files created, opened, renamed or removed, and of directory listings.
    pub name_call_count: u64,
    /// Number of syncs of the directory.
    pub directory_sync_count: u64,
    /// Number of calls and operations that failed.
    pub error_count: u64,
}

impl SimStats {
    pub(super) fn count(&mut self, op: &Op) {
        let len = op.kind.len_bytes() as u64;
        match &op.kind {
            OpKind::Read(_) => {
                self.read_count += 1;
                self.read_bytes += len;
            }
            OpKind::Write { durable, .. } => {
                self.write_count += 1;
                self.write_bytes += len;
                self.durable_write_count += u64::from(*durable);
            }
            OpKind::Sync => self.sync_count += 1,
            OpKind::Allocate { .. } => self.allocate_count += 1,
        }
    }
}

impl std::ops::Sub for SimStats {
    type Output = Self;

    /// The difference between `earlier` and this reading.
    fn sub(self, earlier: Self) -> Self {
        Self {
            read_count: self.read_count - earlier.read_count,
            read_bytes: self.read_bytes - earlier.read_bytes,
            write_count: self.write_count - earlier.write_count,
            write_bytes: self.write_bytes - earlier.write_bytes,
            durable_write_count: self.durable_write_count - earlier.durable_write_count,
            sync_count: self.sync_count - earlier.sync_count,
            allocate_count: self.allocate_count - earlier.allocate_count,
            truncate_count: self.truncate_count - earlier.truncate_count,
            name_call_count: self.name_call_count - earlier.name_call_count,
            directory_sync_count: self.directory_sync_count - earlier.directory_sync_count,
            error_count: self.error_count - earlier.error_count,
        }
    }
}

/// FNV-1a over everything that happened, to tell whether two runs were the same.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trace(pub(super) u64);

impl Default for Trace {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Trace {
    pub(super) fn add(&mut self, what: &[u64]) {
        for byte in what.iter().flat_map(|word| word.to_le_bytes()) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}
