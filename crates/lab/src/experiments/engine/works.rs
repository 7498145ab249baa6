//! The works as data: the types of a work, a row of results and a quantity, and the ids by which records name them. The works
//! themselves stand in `list`.

mod list;

use super::{DEVICE, DEVICE_BATCHES, DEVICE_OVERWRITE, IDLE_EXECUTOR, NO_READER, NOFAULT_BEFORE_TASK, NOFAULT_POLLER};
use crate::format::Unit;
use crate::methods::{BF_TREE, FJALL, LMDB, LMDB_READAHEAD, Method, NOFAULT, REDB, ROCKSDB, ROCKSDB_DIRECT};
use crate::summary::Metric;
pub(super) use list::WORKS;

/// The other databases that are measured, in the ways of running them that the works need, in the order of their trials.
pub(super) const PEERS: [&str; 7] =
    [LMDB.id, LMDB_READAHEAD.id, REDB.id, FJALL.id, ROCKSDB.id, ROCKSDB_DIRECT.id, BF_TREE.id];

/// The variants, as records name them.
pub(super) const GET_MEMORY: [&str; 2] = ["get-memory-1", "get-memory-2"];
pub(super) const GET_ONE: &str = "get-one";
pub(super) const GET_THREADS: &str = "get-threads-64";
pub(super) const GET_MANY: [&str; 2] = ["get-many-64", "get-many-256"];
pub(super) const GET_MANY_AFTER_TASK: &str = "get-many-after-task";
pub(super) const GET_TASKS: &str = "get-tasks";
/// Prefix of the variants with zipfian gets; the number of threads follows.
pub(super) const GET_ZIPF: &str = "get-zipf-";
pub(super) const READ_WRITE: &str = "read-write";
pub(super) const SCAN: &str = "scan";
pub(super) const SCAN_REWRITTEN: &str = "scan-rewritten";
pub(super) const SCAN_10K: &str = "scan-10k";
pub(super) const COMMIT: [&str; 2] = ["commit-1", "commit-64"];
pub(super) const BULK_LOAD: &str = "bulk-load";
pub(super) const LOAD_RANDOM: &str = "load-random";
pub(super) const PUT_BATCH: &str = "put-batch";
pub(super) const REOPEN: &str = "reopen";
pub(super) const SPACE: &str = "space";
pub(super) const SPACE_UPDATED: &str = "space-updated";
pub(super) const SPACE_RANDOM: &str = "space-random";
pub(super) const SPACE_DELETED: &str = "space-deleted";
pub(super) const LONG_READER: &str = "long-reader";
/// Prefix of the variants running a YCSB mix; the mix's letter follows.
pub(super) const YCSB: &str = "ycsb-";

/// Names of latencies: of the 1 ms timer that runs along with the tasks, and of the two kinds of operations of `read-write`.
pub(super) const TICKER: &str = "ticker";
pub(super) const READ: &str = "read";
pub(super) const WRITE: &str = "write";
/// Name of the figure of `reopen` for the seconds that opening takes for each 256 MiB of log.
pub(super) const SECONDS_PER_LOG: &str = "seconds_per_256_mib_of_log";
/// Name of the figure of `long-reader` for the growth as a part of the size before.
pub(super) const GROWTH: &str = "growth_ratio";
/// Name of the counter of bytes that the process wrote to devices.
const BYTES_WRITTEN: &str = "own_device_write_bytes";

/// A work: rows of results that the user can choose by one name on the command line.
pub(super) struct Work {
    pub(super) name: &'static str,
    pub(super) description: &'static str,
    /// Whether the work is measured when the user names none. The others take longer than all of these together.
    pub(super) is_default: bool,
    pub(super) rows: &'static [Row],
}

/// A row of results: one variant on one set of data.
pub(super) struct Row {
    pub(super) variant: &'static str,
    pub(super) title: &'static str,
    pub(super) data: Scope,
    /// Number of threads using the database at once.
    pub(super) threads: u32,
    pub(super) depth: u32,
    /// Whether the amount of work is fixed, so that the trial ends when its work is done and not after a time.
    pub(super) fixed: bool,
    /// The row's methods: the engine first, other databases last.
    pub(super) methods: &'static [Method],
    /// The quantities to show: first the metric by which the row's trials are judged, then further ones.
    pub(super) quantities: &'static [Quantity],
}

impl Row {
    /// Whether the row has a method.
    pub(super) fn has(&self, id: &str) -> bool {
        self.methods.iter().any(|method| method.id == id)
    }
}

/// The set of data that a row uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// Data that is all in memory, with the first value size.
    Memory,
    /// Ten thousand entries, with the first size of values.
    Small,
    /// Data larger than the cache, one set for each value size.
    Larger,
    /// Data larger than the cache, with the last value size.
    LargerLast,
    /// Data larger than the cache, with values of this many bytes for any sizes that the user chose.
    Sized(u32),
}

/// A measured quantity of a row, and the figures to compare it with.
pub(super) struct Quantity {
    /// The quantity's name next to the row's title, with a short form (`short`) for tables; both are empty for the first
    /// quantity of a row.
    pub(super) name: &'static str,
    pub(super) short: &'static str,
    pub(super) metric: Metric,
    pub(super) unit: Unit,
    /// The bound that the engine's figure must meet by itself; `None` without one.
    pub(super) limit: Option<Bound>,
    /// The bound in place of `limit` where the database lies on a RAM-backed device; `None` for the same bound.
    pub(super) limit_in_ram: Option<Bound>,
    /// The methods whose figures the engine's figure is compared with.
    pub(super) beside: &'static [Beside],
}

/// A method that the engine is compared with.
pub(super) struct Beside {
    pub(super) method: Method,
    /// The project's aim for the engine's figure against this method's figure; `None` without an aim.
    pub(super) aim: Option<Aim>,
}

/// An aim for the engine's figure against another figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Aim {
    /// The least ratio of the engine's figure to the other.
    RatioAtLeast(f64),
    /// The largest ratio of the engine's figure to the other.
    RatioAtMost(f64),
    /// The largest excess of the engine's figure over the other, in the base unit of the metric.
    MoreAtMost(f64),
}

/// A bound on the engine's figure, in the base unit of the metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

/// How the description of a work ends that is measured only when the user names it.
pub(super) const BY_NAME: &str = "; only when named";

/// Returns the description of a work, and whether it must be named.
pub(super) fn described(work: &Work) -> String {
    format!("{}{}", work.description, if work.is_default { "" } else { BY_NAME })
}

/// Returns the rows of all works.
pub(super) fn rows() -> impl Iterator<Item = &'static Row> {
    WORKS.iter().flat_map(|work| work.rows)
}

/// Finds the row of a variant; `None` for a variant of a newer nofault.
pub(super) fn row_of(variant: &str) -> Option<&'static Row> {
    rows().find(|row| row.variant == variant)
}
