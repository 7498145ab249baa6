//! The works as data: each work's rows of results, with a row's methods, its data, the quantities to compare, and the
//! project's aims.

use crate::format::Unit;
use crate::summary::Metric;

/// Ids of the engine's methods: completions of reads taken by a thread of the database, or by the executor.
pub(super) const ENGINE: &str = crate::stores::ENGINE;
pub(super) const POLLER: &str = "nofault-poller";
/// Ids of the other databases that are measured.
pub(super) const PEERS: [&str; 2] = ["lmdb", "redb"];
/// Ids of the raw device's methods: requests always in flight, requests in whole batches, and durable overwrites.
pub(super) const DEVICE: &str = "device";
pub(super) const DEVICE_BATCHES: &str = "device-batches";
pub(super) const DEVICE_OVERWRITE: &str = "device-overwrite";
/// Id of the method that runs an executor with one task that only sleeps.
pub(super) const IDLE: &str = "idle-executor";
/// Id of the method that repeats the updates of `long-reader` without its reader.
pub(super) const NO_READER: &str = "no-reader";

/// The variants, as records name them.
pub(super) const GET_MEMORY: [&str; 2] = ["get-memory-1", "get-memory-2"];
pub(super) const GET_ONE: &str = "get-one";
pub(super) const GET_MANY: [&str; 2] = ["get-many-64", "get-many-256"];
pub(super) const GET_TASKS: &str = "get-tasks";
pub(super) const SCAN: &str = "scan";
pub(super) const SCAN_REWRITTEN: &str = "scan-rewritten";
pub(super) const COMMIT: [&str; 2] = ["commit-1", "commit-64"];
pub(super) const BULK_LOAD: &str = "bulk-load";
pub(super) const PUT_BATCH: &str = "put-batch";
pub(super) const REOPEN: &str = "reopen";
pub(super) const SPACE: &str = "space";
pub(super) const SPACE_UPDATED: &str = "space-updated";
pub(super) const SPACE_RANDOM: &str = "space-random";
pub(super) const SPACE_DELETED: &str = "space-deleted";
pub(super) const LONG_READER: &str = "long-reader";
/// Prefix of the variants that run a YCSB mix; the mix's letter follows.
pub(super) const YCSB: &str = "ycsb-";

/// Name of the latency of the 1 ms timer that runs beside the tasks.
pub(super) const TICKER: &str = "ticker";
/// Name of the figure of `reopen` for the seconds that opening takes for each 256 MiB of log.
pub(super) const SECONDS_PER_LOG: &str = "seconds_per_256_mib_of_log";
/// Name of the figure of `long-reader` for the growth as a part of the size before.
pub(super) const GROWTH: &str = "growth_ratio";

/// A work: rows of results that the user can choose by one name on the command line.
pub(super) struct Work {
    pub(super) name: &'static str,
    pub(super) description: &'static str,
    pub(super) rows: &'static [Row],
}

/// A row of results: one variant on one set of data.
pub(super) struct Row {
    pub(super) variant: &'static str,
    pub(super) title: &'static str,
    pub(super) data: Scope,
    /// Number of threads that use the database at once.
    pub(super) threads: u32,
    pub(super) depth: u32,
    /// Whether the amount of work is fixed, so that the trial ends when its work is done and not after a time.
    pub(super) fixed: bool,
    /// Ids of the row's methods: the engine first, other databases last.
    pub(super) methods: &'static [&'static str],
    /// The quantities to show: first the metric by which the row's trials are judged, then further ones.
    pub(super) quantities: &'static [Quantity],
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
}

/// A measured quantity of a row, and the figures to compare it with.
pub(super) struct Quantity {
    /// The quantity's name beside the row's title, with a short form (`short`) for tables; both are empty for the first
    /// quantity of a row.
    pub(super) name: &'static str,
    pub(super) short: &'static str,
    pub(super) metric: Metric,
    pub(super) unit: Unit,
    /// The bound that the engine's figure must meet by itself; `None` without one.
    pub(super) limit: Option<Bound>,
    /// The methods whose figures the engine's figure is compared with.
    pub(super) beside: &'static [Beside],
}

/// A method that the engine is compared with.
pub(super) struct Beside {
    pub(super) method: &'static str,
    /// The project's aim: the least ratio of the engine's figure to this method's figure; `None` without an aim.
    pub(super) aim: Option<f64>,
}

/// A bound on the engine's figure, in the base unit of the metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

const fn aim(method: &'static str, aim: f64) -> Beside {
    Beside { method, aim: Some(aim) }
}

const fn beside(method: &'static str) -> Beside {
    Beside { method, aim: None }
}

const fn rate(beside: &'static [Beside]) -> Quantity {
    Quantity { name: "", short: "", metric: Metric::OpsPerS, unit: Unit::PerSecond, limit: None, beside }
}

const fn throughput(limit: Option<Bound>, beside: &'static [Beside]) -> Quantity {
    Quantity { name: "", short: "", metric: Metric::BytesPerS, unit: Unit::BytesPerSecond, limit, beside }
}

const fn ratio(metric: Metric, at_most: Option<f64>, beside: &'static [Beside]) -> Quantity {
    let limit = match at_most {
        Some(most) => Some(Bound::AtMost(most)),
        None => None,
    };
    Quantity { name: "", short: "", metric, unit: Unit::Ratio, limit, beside }
}

const ROW: Row = Row {
    variant: "",
    title: "",
    data: Scope::Larger,
    threads: 1,
    depth: 1,
    fixed: false,
    methods: &[ENGINE],
    quantities: &[],
};

const IN_MEMORY: Row = Row {
    data: Scope::Memory,
    methods: &[ENGINE, PEERS[0], PEERS[1]],
    quantities: &[rate(&[aim(PEERS[0], 1.0), beside(PEERS[1])])],
    ..ROW
};

const BATCHES: Row = Row {
    methods: &[ENGINE, DEVICE, DEVICE_BATCHES, PEERS[0]],
    quantities: &[rate(&[aim(DEVICE, 0.9), beside(DEVICE_BATCHES), aim(PEERS[0], 4.0)])],
    ..ROW
};

const COMMITS: Row = Row { data: Scope::Small, methods: &[ENGINE, DEVICE_OVERWRITE], ..ROW };

const MIX: Row = Row {
    data: Scope::LargerLast,
    threads: 2,
    methods: &[ENGINE, PEERS[0], PEERS[1]],
    quantities: &[rate(&[beside(PEERS[0]), beside(PEERS[1])])],
    ..ROW
};

/// The works, in the order in which their rows are shown.
pub(super) static WORKS: [Work; 12] = [
    Work {
        name: "get-memory",
        description: "random gets, all in memory, 1 and 2 threads",
        rows: &[
            Row { variant: GET_MEMORY[0], title: "random gets in memory, 1 thread", ..IN_MEMORY },
            Row { variant: GET_MEMORY[1], title: "random gets in memory, 2 threads", threads: 2, ..IN_MEMORY },
        ],
    },
    Work {
        name: "get-tasks",
        description: "random gets out of core, 64 tasks on one executor thread",
        rows: &[Row {
            variant: GET_TASKS,
            title: "random gets by 64 tasks",
            depth: 64,
            methods: &[ENGINE, POLLER, IDLE, DEVICE],
            quantities: &[
                rate(&[aim(DEVICE, 0.9)]),
                Quantity {
                    name: "CPU a get",
                    short: "CPU",
                    metric: Metric::CpuPerOp,
                    unit: Unit::Seconds,
                    limit: Some(Bound::AtMost(6e-6)),
                    beside: &[beside(DEVICE)],
                },
                Quantity {
                    name: "timer p99.9 late",
                    short: "timer",
                    metric: Metric::Latency(TICKER, 999),
                    unit: Unit::Seconds,
                    limit: Some(Bound::AtMost(1e-3)),
                    beside: &[beside(IDLE)],
                },
            ],
            ..ROW
        }],
    },
    Work {
        name: "get-many",
        description: "batches of 64 and 256 random gets out of core, one thread",
        rows: &[
            Row { variant: GET_MANY[0], title: "random gets in batches of 64", depth: 64, ..BATCHES },
            Row { variant: GET_MANY[1], title: "random gets in batches of 256", depth: 256, ..BATCHES },
        ],
    },
    Work {
        name: "get-one",
        description: "one blocking random get at a time, out of core",
        rows: &[Row {
            variant: GET_ONE,
            title: "random gets, one at a time",
            methods: &[ENGINE, DEVICE],
            quantities: &[rate(&[aim(DEVICE, 0.95)])],
            ..ROW
        }],
    },
    Work {
        name: "scan",
        description: "full scan, cold: bulk-loaded, and after rewriting a tenth",
        rows: &[
            Row {
                variant: SCAN,
                title: "full scan, bulk-loaded",
                fixed: true,
                methods: &[ENGINE, DEVICE],
                quantities: &[throughput(None, &[aim(DEVICE, 0.9)])],
                ..ROW
            },
            Row {
                variant: SCAN_REWRITTEN,
                title: "full scan, a tenth rewritten",
                fixed: true,
                methods: &[ENGINE, DEVICE],
                quantities: &[throughput(None, &[aim(DEVICE, 0.4)])],
                ..ROW
            },
        ],
    },
    Work {
        name: "commit",
        description: "durable single-put commits, 1 and 64 writers",
        rows: &[
            Row {
                variant: COMMIT[0],
                title: "durable puts, 1 writer",
                quantities: &[rate(&[aim(DEVICE_OVERWRITE, 0.9)])],
                ..COMMITS
            },
            Row {
                variant: COMMIT[1],
                title: "durable puts, 64 writers",
                depth: 64,
                quantities: &[rate(&[aim(DEVICE_OVERWRITE, 15.0)])],
                ..COMMITS
            },
        ],
    },
    Work {
        name: "bulk-load",
        description: "sorted bulk load",
        rows: &[Row {
            variant: BULK_LOAD,
            title: "sorted bulk load",
            fixed: true,
            methods: &[ENGINE, DEVICE, PEERS[0], PEERS[1]],
            quantities: &[throughput(Some(Bound::AtLeast(1e9)), &[beside(DEVICE), beside(PEERS[0]), beside(PEERS[1])])],
            ..ROW
        }],
    },
    Work {
        name: "put-batch",
        description: "random puts in durable batches of 1000, out of core",
        rows: &[Row {
            variant: PUT_BATCH,
            title: "random puts in durable batches of 1000",
            methods: &[ENGINE, PEERS[0], PEERS[1]],
            quantities: &[rate(&[aim(PEERS[0], 1.5), aim(PEERS[1], 1.5)])],
            ..ROW
        }],
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
                Quantity {
                    name: "",
                    short: "",
                    metric: Metric::Seconds,
                    unit: Unit::Seconds,
                    limit: None,
                    beside: &[],
                },
                Quantity {
                    name: "for 256 MiB of log",
                    short: "a 256 MiB log",
                    metric: Metric::Figure(SECONDS_PER_LOG),
                    unit: Unit::Seconds,
                    limit: Some(Bound::AtMost(5.0)),
                    beside: &[],
                },
            ],
            ..ROW
        }],
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
                methods: &[ENGINE, PEERS[0], PEERS[1]],
                quantities: &[
                    ratio(Metric::SpaceRatio, Some(1.6), &[beside(PEERS[0]), beside(PEERS[1])]),
                    Quantity {
                        name: "bytes written for a user byte during the load",
                        short: "written",
                        ..ratio(Metric::WriteAmplification, Some(5.0), &[beside(PEERS[0]), beside(PEERS[1])])
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
    },
    Work {
        name: "long-reader",
        description: "growth under updates while a reader is held",
        rows: &[Row {
            variant: LONG_READER,
            title: "growth while a reader is held",
            data: Scope::Small,
            fixed: true,
            methods: &[ENGINE, NO_READER],
            // The bound allows one old image of every page besides the newest, and some space for the pages between
            // checkpoints.
            quantities: &[ratio(Metric::Figure(GROWTH), Some(1.1), &[beside(NO_READER)])],
            ..ROW
        }],
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
    },
];

/// Returns the rows of all works.
pub(super) fn rows() -> impl Iterator<Item = &'static Row> {
    WORKS.iter().flat_map(|work| work.rows)
}

/// Finds the row of a variant; `None` for a variant of a newer nofault.
pub(super) fn row_of(variant: &str) -> Option<&'static Row> {
    rows().find(|row| row.variant == variant)
}
