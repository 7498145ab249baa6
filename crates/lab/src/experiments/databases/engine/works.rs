//! The works as data: the types of a work, a row of results and a quantity, and the ids by which records name them.

use super::{DEVICE, DEVICE_BATCHES, DEVICE_OVERWRITE, IDLE_EXECUTOR, NO_READER, NOFAULT_BEFORE_TASK, NOFAULT_POLLER};
use crate::format::Unit;
use crate::methods::{BF_TREE, FJALL, LMDB, LMDB_READAHEAD, Method, NOFAULT, REDB, ROCKSDB, ROCKSDB_DIRECT};
use crate::summary::Metric;

/// The other databases that are measured, in the ways of running them that the works need, in the order of their trials.
pub(super) const PEERS: [&str; 7] =
    [LMDB.id, LMDB_READAHEAD.id, REDB.id, FJALL.id, ROCKSDB.id, ROCKSDB_DIRECT.id, BF_TREE.id];

/// The variants, as records name them.
const GET_MEMORY: [&str; 2] = ["get-memory-1", "get-memory-2"];
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

const fn aim(method: Method, aim: f64) -> Beside {
    Beside { method, aim: Some(Aim::RatioAtLeast(aim)) }
}

const fn beside(method: Method) -> Beside {
    Beside { method, aim: None }
}

const fn quantity(metric: Metric, unit: Unit, limit: Option<Bound>, beside: &'static [Beside]) -> Quantity {
    Quantity { name: "", short: "", metric, unit, limit, limit_in_ram: None, beside }
}

const fn rate(beside: &'static [Beside]) -> Quantity {
    quantity(Metric::OpsPerS, Unit::PerSecond, None, beside)
}

const fn throughput(limit: Option<Bound>, beside: &'static [Beside]) -> Quantity {
    quantity(Metric::BytesPerS, Unit::BytesPerSecond, limit, beside)
}

const fn ratio(metric: Metric, at_most: Option<f64>, beside: &'static [Beside]) -> Quantity {
    quantity(metric, Unit::Ratio, most(at_most), beside)
}

/// A further quantity of a row: a time by this metric.
const fn time(
    name: &'static str,
    short: &'static str,
    metric: Metric,
    at_most: Option<f64>,
    beside: &'static [Beside],
) -> Quantity {
    Quantity { name, short, ..quantity(metric, Unit::Seconds, most(at_most), beside) }
}

const fn most(at_most: Option<f64>) -> Option<Bound> {
    match at_most {
        Some(most) => Some(Bound::AtMost(most)),
        None => None,
    }
}

/// The p99.9 of an operation.
const OP_P999: Metric = Metric::Latency("op", 999);

const WORK: Work = Work { name: "", description: "", is_default: true, rows: &[] };

/// A work measured only when it is named.
const NAMED: Work = Work { is_default: false, ..WORK };

const ROW: Row = Row {
    variant: "",
    title: "",
    data: Scope::Larger,
    threads: 1,
    depth: 1,
    fixed: false,
    methods: &[NOFAULT],
    quantities: &[],
};

const IN_MEMORY: Row = Row {
    data: Scope::Memory,
    methods: &[NOFAULT, LMDB, REDB],
    quantities: &[rate(&[aim(LMDB, 1.0), beside(REDB)])],
    ..ROW
};

const BATCHES: Row = Row {
    methods: &[NOFAULT, DEVICE, DEVICE_BATCHES, LMDB],
    quantities: &[rate(&[aim(DEVICE, 0.9), beside(DEVICE_BATCHES), aim(LMDB, 4.0)])],
    ..ROW
};

const COMMITS: Row = Row { data: Scope::Small, methods: &[NOFAULT, DEVICE_OVERWRITE], ..ROW };

const MIX: Row = Row {
    data: Scope::LargerLast,
    threads: 2,
    methods: &[NOFAULT, LMDB, REDB],
    quantities: &[rate(&[beside(LMDB), beside(REDB)])],
    ..ROW
};

const GETS_10K: Row = Row {
    data: Scope::Sized(10_000),
    methods: &[NOFAULT, LMDB, REDB, FJALL, ROCKSDB, ROCKSDB_DIRECT, BF_TREE],
    quantities: &[
        rate(&[
            aim(LMDB, 1.1),
            aim(REDB, 1.1),
            aim(FJALL, 1.1),
            aim(ROCKSDB, 1.1),
            aim(ROCKSDB_DIRECT, 1.1),
            aim(BF_TREE, 1.1),
        ]),
        time("p99.9", "p99.9", OP_P999, None, &[]),
    ],
    ..ROW
};

const GETS_100K: Row = Row {
    data: Scope::Sized(100_000),
    methods: &[NOFAULT, LMDB, REDB, FJALL, ROCKSDB, ROCKSDB_DIRECT],
    quantities: &[
        rate(&[aim(LMDB, 1.1), aim(REDB, 1.1), aim(FJALL, 1.1), aim(ROCKSDB, 1.1), aim(ROCKSDB_DIRECT, 1.1)]),
        time("p99.9", "p99.9", OP_P999, None, &[]),
    ],
    ..ROW
};

const ZIPF: Row = Row {
    data: Scope::LargerLast,
    methods: &[NOFAULT, LMDB],
    quantities: &[rate(&[aim(LMDB, 1.2)]), time("p99.9", "p99.9", OP_P999, None, &[beside(LMDB)])],
    ..ROW
};

/// The works, in the order in which their rows are shown.
pub(super) static WORKS: [Work; 19] = [
    Work {
        name: "get-memory",
        description: "random gets, all in memory, 1 and 2 threads",
        rows: &[
            Row { variant: GET_MEMORY[0], title: "random gets in memory, 1 thread", ..IN_MEMORY },
            Row { variant: GET_MEMORY[1], title: "random gets in memory, 2 threads", threads: 2, ..IN_MEMORY },
        ],
        ..WORK
    },
    Work {
        name: "get-tasks",
        description: "random gets out of core, 64 tasks on one executor thread",
        rows: &[Row {
            variant: GET_TASKS,
            title: "random gets by 64 tasks",
            depth: 64,
            methods: &[NOFAULT, NOFAULT_POLLER, IDLE_EXECUTOR, DEVICE],
            quantities: &[
                rate(&[aim(DEVICE, 0.9), aim(NOFAULT_POLLER, 0.9)]),
                Quantity {
                    limit_in_ram: Some(Bound::AtMost(6.5e-6)),
                    ..time("CPU a get", "CPU", Metric::CpuPerOp, Some(8e-6), &[beside(DEVICE), beside(NOFAULT_POLLER)])
                },
                time("p99.9", "p99.9", OP_P999, None, &[beside(NOFAULT_POLLER)]),
                time(
                    "timer p99.9 late",
                    "timer",
                    Metric::Latency(TICKER, 999),
                    None,
                    &[Beside { method: IDLE_EXECUTOR, aim: Some(Aim::MoreAtMost(0.3e-3)) }],
                ),
            ],
            ..ROW
        }],
        ..WORK
    },
    Work {
        name: "get-many",
        description: "batches of 64 and 256 random gets out of core, one thread",
        rows: &[
            Row { variant: GET_MANY[0], title: "random gets in batches of 64", depth: 64, ..BATCHES },
            Row { variant: GET_MANY[1], title: "random gets in batches of 256", depth: 256, ..BATCHES },
        ],
        ..WORK
    },
    Work {
        name: "get-one",
        description: "one blocking random get at a time, out of core",
        rows: &[Row {
            variant: GET_ONE,
            title: "random gets, one at a time",
            methods: &[NOFAULT, DEVICE],
            quantities: &[rate(&[aim(DEVICE, 0.95)])],
            ..ROW
        }],
        ..WORK
    },
    Work {
        name: "scan",
        description: "full scan, cold: bulk-loaded, and after rewriting a tenth",
        rows: &[
            Row {
                variant: SCAN,
                title: "full scan, bulk-loaded",
                fixed: true,
                methods: &[NOFAULT, DEVICE],
                quantities: &[throughput(None, &[aim(DEVICE, 0.85)])],
                ..ROW
            },
            Row {
                variant: SCAN_REWRITTEN,
                title: "full scan, a tenth rewritten",
                fixed: true,
                methods: &[NOFAULT, DEVICE],
                quantities: &[throughput(None, &[aim(DEVICE, 0.55)])],
                ..ROW
            },
        ],
        ..WORK
    },
    Work {
        name: "commit",
        description: "durable single-put commits, 1 and 64 writers",
        rows: &[
            Row {
                variant: COMMIT[0],
                title: "durable puts, 1 writer",
                quantities: &[
                    rate(&[aim(DEVICE_OVERWRITE, 0.95)]),
                    time(
                        "p99.9",
                        "p99.9",
                        OP_P999,
                        None,
                        &[Beside { method: DEVICE_OVERWRITE, aim: Some(Aim::RatioAtMost(1.5)) }],
                    ),
                ],
                ..COMMITS
            },
            Row {
                variant: COMMIT[1],
                title: "durable puts, 64 writers",
                depth: 64,
                quantities: &[
                    rate(&[aim(DEVICE_OVERWRITE, 15.0)]),
                    time("p99.9", "p99.9", OP_P999, Some(7e-3), &[beside(DEVICE_OVERWRITE)]),
                    Quantity {
                        name: "bytes written a commit",
                        short: "written",
                        ..quantity(Metric::PerOp(BYTES_WRITTEN), Unit::Bytes, most(Some(600.0)), &[])
                    },
                ],
                ..COMMITS
            },
        ],
        ..WORK
    },
    Work {
        name: "bulk-load",
        description: "sorted bulk load",
        rows: &[Row {
            variant: BULK_LOAD,
            title: "sorted bulk load",
            fixed: true,
            methods: &[NOFAULT, DEVICE, LMDB, REDB],
            quantities: &[throughput(Some(Bound::AtLeast(1e9)), &[beside(DEVICE), beside(LMDB), beside(REDB)])],
            ..ROW
        }],
        ..WORK
    },
    Work {
        name: "put-batch",
        description: "random puts in durable batches of 1000, out of core",
        rows: &[Row {
            variant: PUT_BATCH,
            title: "random puts in durable batches of 1000",
            methods: &[NOFAULT, LMDB, REDB],
            quantities: &[rate(&[aim(LMDB, 1.5), aim(REDB, 1.5)])],
            ..ROW
        }],
        ..WORK
    },
    Work {
        name: "reopen",
        description: "opening after a crash with a full log",
        rows: &[Row {
            variant: REOPEN,
            title: "opening after a crash",
            data: Scope::Memory,
            fixed: true,
            quantities: &[
                quantity(Metric::Seconds, Unit::Seconds, None, &[]),
                time("for 256 MiB of log", "a 256 MiB log", Metric::Figure(SECONDS_PER_LOG), Some(5.0), &[]),
            ],
            ..ROW
        }],
        ..WORK
    },
    Work {
        name: "space",
        description: "bytes of file for each user byte: loaded, updated, loaded at random, mostly deleted",
        rows: &[
            Row {
                variant: SPACE,
                title: "file bytes for a user byte, bulk-loaded",
                fixed: true,
                quantities: &[ratio(Metric::SpaceRatio, Some(1.05), &[])],
                ..ROW
            },
            Row {
                variant: SPACE_UPDATED,
                title: "file bytes for a user byte, after as many random updates",
                fixed: true,
                quantities: &[ratio(Metric::SpaceRatio, None, &[])],
                ..ROW
            },
            Row {
                variant: SPACE_RANDOM,
                title: "bytes of all files for a user byte, loaded in random order",
                fixed: true,
                methods: &[NOFAULT, LMDB, REDB],
                quantities: &[
                    ratio(Metric::SpaceRatio, Some(1.6), &[beside(LMDB), beside(REDB)]),
                    Quantity {
                        name: "bytes written for a user byte during the load",
                        short: "written",
                        ..ratio(Metric::WriteAmplification, Some(5.0), &[beside(LMDB), beside(REDB)])
                    },
                ],
                ..ROW
            },
            Row {
                variant: SPACE_DELETED,
                title: "bytes of all files for a user byte, nine tenths deleted",
                fixed: true,
                quantities: &[ratio(Metric::SpaceRatio, Some(1.3), &[])],
                ..ROW
            },
        ],
        ..WORK
    },
    Work {
        name: "long-reader",
        description: "growth under updates while a reader is held",
        rows: &[Row {
            variant: LONG_READER,
            title: "growth while a reader is held",
            data: Scope::Small,
            fixed: true,
            methods: &[NOFAULT, NO_READER],
            // The bound allows one old image of every page besides the newest, and some space for the pages between
            // checkpoints.
            quantities: &[ratio(Metric::Figure(GROWTH), Some(1.1), &[beside(NO_READER)])],
            ..ROW
        }],
        ..WORK
    },
    Work {
        name: "ycsb",
        description: "YCSB A to F, 2 threads",
        rows: &[
            Row { variant: "ycsb-a", title: "YCSB A: half updates", ..MIX },
            Row { variant: "ycsb-b", title: "YCSB B: 5 % updates", ..MIX },
            Row { variant: "ycsb-c", title: "YCSB C: reads", ..MIX },
            Row { variant: "ycsb-d", title: "YCSB D: reads of the latest, 5 % inserts", ..MIX },
            Row { variant: "ycsb-e", title: "YCSB E: scans, 5 % inserts", ..MIX },
            Row { variant: "ycsb-f", title: "YCSB F: half read-modify-write", ..MIX },
        ],
        ..WORK
    },
    Work {
        name: "get-threads",
        description: "random gets out of core, 64 blocking threads",
        rows: &[Row {
            variant: GET_THREADS,
            title: "random gets by 64 threads",
            threads: 64,
            methods: &[NOFAULT, DEVICE],
            quantities: &[rate(&[aim(DEVICE, 0.9)]), time("p99.9", "p99.9", OP_P999, None, &[])],
            ..ROW
        }],
        ..NAMED
    },
    Work {
        name: "get-after-task",
        description: "batches of 64 gets by a blocking thread, before and after a task has read in the process",
        rows: &[Row {
            variant: GET_MANY_AFTER_TASK,
            title: "random gets in batches of 64, after a task has read",
            depth: 64,
            methods: &[NOFAULT, NOFAULT_BEFORE_TASK],
            quantities: &[
                // No difference: the spread of the repeats hides a smaller one.
                rate(&[aim(NOFAULT_BEFORE_TASK, 0.95)]),
                time("CPU a get", "CPU", Metric::CpuPerOp, None, &[beside(NOFAULT_BEFORE_TASK)]),
            ],
            ..ROW
        }],
        ..NAMED
    },
    Work {
        name: "get-zipf",
        description: "zipfian gets (0.99) out of core, 1, 8 and 64 blocking threads",
        rows: &[
            Row { variant: "get-zipf-1", title: "zipfian gets, 1 thread", ..ZIPF },
            Row { variant: "get-zipf-8", title: "zipfian gets, 8 threads", threads: 8, ..ZIPF },
            Row { variant: "get-zipf-64", title: "zipfian gets, 64 threads", threads: 64, ..ZIPF },
        ],
        ..NAMED
    },
    Work {
        name: "values-10k",
        description: "values of 10 KB: gets by 1 and 8 blocking threads out of core, full scan",
        rows: &[
            Row { variant: "get-10k-1", title: "random gets, 1 thread", ..GETS_10K },
            Row { variant: "get-10k-8", title: "random gets, 8 threads", threads: 8, ..GETS_10K },
            Row {
                variant: SCAN_10K,
                title: "full scan",
                fixed: true,
                // LMDB with read-ahead, which is its best mode for a scan.
                methods: &[NOFAULT, DEVICE, LMDB_READAHEAD, REDB, FJALL, ROCKSDB, BF_TREE],
                quantities: &[throughput(
                    None,
                    &[
                        beside(DEVICE),
                        aim(LMDB_READAHEAD, 1.1),
                        aim(REDB, 1.1),
                        aim(FJALL, 1.1),
                        aim(ROCKSDB, 1.1),
                        aim(BF_TREE, 1.1),
                    ],
                )],
                ..GETS_10K
            },
        ],
        ..NAMED
    },
    Work {
        name: "values-100k",
        description: "values of 100 KB: gets by 1 and 8 blocking threads out of core",
        rows: &[
            Row { variant: "get-100k-1", title: "random gets, 1 thread", ..GETS_100K },
            Row { variant: "get-100k-8", title: "random gets, 8 threads", threads: 8, ..GETS_100K },
        ],
        ..NAMED
    },
    Work {
        name: "load-random",
        description: "load in random order, 1000 entries a deferred commit, durable at the end",
        rows: &[Row {
            variant: LOAD_RANDOM,
            title: "load in random order, durable at the end",
            data: Scope::Memory,
            fixed: true,
            methods: &[NOFAULT, LMDB, REDB, FJALL, ROCKSDB, BF_TREE],
            quantities: &[
                rate(&[aim(LMDB, 1.2), aim(REDB, 1.2), aim(FJALL, 1.2), aim(ROCKSDB, 1.2), aim(BF_TREE, 1.2)]),
                time(
                    "CPU an entry",
                    "CPU",
                    Metric::CpuPerOp,
                    None,
                    &[beside(LMDB), beside(REDB), beside(FJALL), beside(ROCKSDB), beside(BF_TREE)],
                ),
            ],
            ..ROW
        }],
        ..NAMED
    },
    Work {
        name: "read-write",
        description: "8 blocking threads out of core, nine random gets for each durable put",
        rows: &[Row {
            variant: READ_WRITE,
            title: "nine gets to a durable put, 8 threads",
            data: Scope::LargerLast,
            threads: 8,
            methods: &[NOFAULT, LMDB, REDB, FJALL, ROCKSDB],
            quantities: &[
                rate(&[beside(LMDB), beside(REDB), beside(FJALL), beside(ROCKSDB)]),
                time(
                    "p99.9 of gets",
                    "gets p99.9",
                    Metric::Latency(READ, 999),
                    Some(1e-3),
                    &[beside(LMDB), beside(REDB), beside(FJALL), beside(ROCKSDB)],
                ),
                time("p99.9 of puts", "puts p99.9", Metric::Latency(WRITE, 999), None, &[]),
            ],
            ..ROW
        }],
        ..NAMED
    },
];
