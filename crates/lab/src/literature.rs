//! The literature's figures as data: to stand beside the reader's, never to be mixed with them. Other machine, other
//! scale.

use crate::format::Unit;
use crate::record::ExperimentId;

/// Where a figure comes from.
#[derive(Debug, PartialEq, Eq)]
pub struct Source {
    /// As it is cited.
    pub cite: &'static str,
    /// Its title.
    pub title: &'static str,
    /// The machine it was measured on.
    pub machine: &'static str,
    /// How the figures were taken.
    pub how: &'static str,
}

/// Figures of one source for one experiment, in one unit.
#[derive(Debug, PartialEq)]
pub struct LiteratureTable {
    /// Where they come from.
    pub source: &'static Source,
    /// Which experiment they belong to.
    pub experiment: ExperimentId,
    /// The variant they belong to; empty for all.
    pub variant: &'static str,
    /// How many devices were used at once.
    pub devices: u32,
    /// What was measured.
    pub title: &'static str,
    /// Unit of the values.
    pub unit: Unit,
    /// Names of the values of a row: one, or cold and warm.
    pub columns: &'static [&'static str],
    /// The figures.
    pub rows: &'static [LiteratureRow],
    /// What one must know to read them.
    pub remarks: &'static [&'static str],
}

/// One contender's figures.
#[derive(Debug, PartialEq)]
pub struct LiteratureRow {
    /// The contender in the source's words.
    pub label: &'static str,
    /// The lab's contender that comes closest.
    pub contender: &'static str,
    /// One value for each column, in the table's unit (seconds, per second, bytes per second).
    pub values: &'static [f64],
    /// A remark on this row; empty for none.
    pub note: &'static str,
}

/// The tables for an experiment.
pub fn tables(experiment: ExperimentId) -> impl Iterator<Item = &'static LiteratureTable> {
    TABLES.iter().filter(move |table| table.experiment == experiment)
}

const fn row(
    label: &'static str,
    contender: &'static str,
    values: &'static [f64],
    note: &'static str,
) -> LiteratureRow {
    LiteratureRow { label, contender, values, note }
}

/// "Are You Sure You Want to Use MMAP in Your Database Management System?"
pub static PAPER: Source = Source {
    cite: "Crotty, Leis, Pavlo, CIDR 2022",
    title: "Are You Sure You Want to Use MMAP in Your Database Management System?",
    machine: "AMD EPYC 7713 (128 hardware threads), Linux 5.11, 100 GB for the page cache, Samsung PM1733",
    how: "medians after 60 s, from the published data",
};

/// "Async hazard: mmap is secretly blocking IO"
pub static HAZARD: Source = Source {
    cite: "Huon Wilson, Async hazard, 2024",
    title: "Async hazard: mmap is secretly blocking IO",
    machine: "Apple M1 MacBook Pro, macOS",
    how: "8 files of 256 MiB summed sequentially, minimum of 100 runs",
};

/// "The performance of memory mapping vs. traditional read/write for database files on modern NVMe drives"
pub static NVME: Source = Source {
    cite: "Leonardo Benicio, 2022",
    title: "The performance of memory mapping vs. traditional read/write for database files on modern NVMe drives",
    machine: "Samsung 990 Pro, Linux 6.5 (as stated)",
    how: "one thread, 4 KiB, 64 GB file, as stated",
};

/// The comparison in redb's own documentation.
pub static REDB: Source = Source {
    cite: "redb 4, README",
    title: "redb: benchmarks",
    machine: "AMD Ryzen 9950X3D, Samsung 9100 PRO",
    how: "redb's own benchmark, 24-byte keys and 150-byte values, data in memory; times turned into rates",
};

/// Practice, and answers to the paper.
pub static REBUTTALS: Source = Source {
    cite: "WiredTiger (MongoDB), 2020; RavenDB's author, 2022; others",
    title: "articles for and against mmap, from those who ship databases",
    machine: "not stated",
    how: "as stated there",
};

/// Two systems whose papers are about this question, as published, on a machine of today.
pub static SYSTEMS: Source = Source {
    cite: "vmcache (SIGMOD 2023) and LeanStore (ICDE 2018), run for this project",
    title: "Virtual-Memory Assisted Buffer Management; LeanStore: In-Memory Data Management beyond Main Memory",
    machine: "a virtual machine with 2 CPUs and 24 GiB, Linux 6.18",
    how: "the published programs, one thread, medians; no figures of the papers themselves",
};

static TABLES: &[LiteratureTable] = &[
    LiteratureTable {
        source: &PAPER,
        experiment: ExperimentId::Random,
        variant: "",
        devices: 1,
        title: "Random 4 KiB reads, 100 threads, memory full",
        unit: Unit::PerSecond,
        columns: &["reads per second"],
        rows: &[
            row("fio O_DIRECT", "fio-psync", &[900e3], ""),
            row("mmap RANDOM", "mmap-random", &[401e3], "1.19 M TLB shootdowns/s"),
            row("mmap SEQUENTIAL", "mmap-sequential", &[23e3], ""),
            row("mmap NORMAL", "mmap-normal", &[22e3], "2.5 GB/s from the device for 0.09 GB/s of work"),
        ],
        remarks: &[
            "Before memory was full mmap kept up with fio; then it fell near zero for five seconds and settled at under half.",
        ],
    },
    LiteratureTable {
        source: &PAPER,
        experiment: ExperimentId::Scan,
        variant: "",
        devices: 1,
        title: "Sequential scan of one SSD, 20 threads, memory full",
        unit: Unit::BytesPerSecond,
        columns: &["bytes per second"],
        rows: &[
            row("fio O_DIRECT", "fio-uring", &[6.8e9], ""),
            row("mmap NORMAL", "mmap-normal", &[2.5e9], "6.6 GB/s in the first 15 s"),
            row("mmap SEQUENTIAL", "mmap-sequential", &[2.5e9], ""),
            row("mmap RANDOM", "mmap-random", &[1.0e9], "3.4 GB/s in the first 15 s"),
        ],
        remarks: &[],
    },
    LiteratureTable {
        source: &PAPER,
        experiment: ExperimentId::Scan,
        variant: "",
        devices: 10,
        title: "Sequential scan of ten SSDs (RAID 0), 20 threads, memory full",
        unit: Unit::BytesPerSecond,
        columns: &["bytes per second"],
        rows: &[
            row("fio O_DIRECT", "fio-uring", &[60e9], ""),
            row("mmap SEQUENTIAL", "mmap-sequential", &[2.7e9], ""),
            row("mmap NORMAL", "mmap-normal", &[2.4e9], ""),
            row("mmap RANDOM", "mmap-random", &[0.5e9], "another reader used the array during part of this run"),
        ],
        remarks: &[
            "In the published data the device moves 57 GB/s while the work of NORMAL and RANDOM is a few percent of that, up to second 140-150: somebody else read from the array. The SEQUENTIAL run is clean.",
        ],
    },
    LiteratureTable {
        source: &HAZARD,
        experiment: ExperimentId::Async,
        variant: "sequential",
        devices: 1,
        title: "Time for eight files",
        unit: Unit::Seconds,
        columns: &["cold", "warm"],
        rows: &[
            row("async mmap", "async-mmap", &[2.5, 0.12], ""),
            row("async read", "async-read", &[0.62, 0.22], ""),
            row("8 threads mmap", "threads-mmap", &[0.75, 0.049], ""),
            row("8 threads read", "threads-read", &[0.62, 0.063], ""),
            row("1 thread mmap", "single-mmap", &[2.5, 0.12], ""),
            row("1 thread read", "single-read", &[0.67, 0.14], ""),
        ],
        remarks: &[
            "async mmap takes as long as one thread: each page fault blocks the executor, so nothing runs at the same time.",
            "The source sums files from front to back. Where read-ahead is large this hides the wait; the lab's random-touch variant shows it regardless.",
        ],
    },
    LiteratureTable {
        source: &NVME,
        experiment: ExperimentId::Access,
        variant: "read",
        devices: 1,
        title: "Random 4 KiB reads, one thread",
        unit: Unit::PerSecond,
        columns: &["reads per second"],
        rows: &[
            row(
                "io_uring O_DIRECT (64)",
                "uring-direct",
                &[1.6e6],
                "stated latency 0.6 µs; 64 in flight at this rate are 40 µs each",
            ),
            row("mmap", "mmap", &[780e3], "1.28 µs a read cannot come from an SSD"),
            row("read O_DIRECT", "pread-direct", &[720e3], "1.39 µs a read, against the text's own 5-15 µs"),
            row("read buffered", "pread-buffered", &[650e3], "the file was in memory, or this was not measured"),
        ],
        remarks: NVME_REMARKS,
    },
    LiteratureTable {
        source: &NVME,
        experiment: ExperimentId::Access,
        variant: "overwrite",
        devices: 1,
        title: "Random 4 KiB overwrites, one thread",
        unit: Unit::PerSecond,
        columns: &["overwrites per second"],
        rows: &[
            row("io_uring O_DIRECT (64)", "uring-direct", &[1.1e6], ""),
            row("write O_DIRECT", "pwrite-direct", &[680e3], "1.47 µs a write, one at a time"),
            row("write buffered", "pwrite-buffered", &[520e3], ""),
            row("mmap", "mmap", &[480e3], "must read each page before it can change it"),
        ],
        remarks: NVME_REMARKS,
    },
    LiteratureTable {
        source: &PAPER,
        experiment: ExperimentId::Safety,
        variant: "",
        devices: 1,
        title: "What the paper says of transactional safety (§3.1)",
        unit: Unit::Count,
        columns: &[],
        rows: &[],
        remarks: &[
            "No figures. The operating system can write a dirty page at any time, whether its transaction committed or not, and mlock does not \
             keep it from that.",
            "Three ways around it: copies by the operating system (MongoDB MMAPv1), copies in user space (SQLite, MonetDB, RavenDB), shadow paging \
             (LMDB). Each gives up part of what made mapping attractive: memory for two copies and remapping, a log and copying back, or a single \
             writer.",
        ],
    },
    LiteratureTable {
        source: &PAPER,
        experiment: ExperimentId::Stalls,
        variant: "",
        devices: 1,
        title: "What the paper says of stalls (§3.2)",
        unit: Unit::Count,
        columns: &[],
        rows: &[],
        remarks: &[
            "No figures. Any access may stall, as the database cannot tell what is in memory; asynchronous reads through a mapping do not exist.",
            "mlock pins pages, but how much may be locked is limited, and too much of it harms everyone else; madvise is only a hint, which the kernel may \
             ignore; helper threads that touch pages first stall in the caller's place.",
            "Its verdict: each remedy brings back a part of the complexity that the mapping was to save.",
        ],
    },
    LiteratureTable {
        source: &PAPER,
        experiment: ExperimentId::Errors,
        variant: "",
        devices: 1,
        title: "What the paper says of errors (§3.3)",
        unit: Unit::Count,
        columns: &[],
        rows: &[],
        remarks: &[
            "No figures, three statements. One: a mapped page has to be verified at every access, as the kernel may have evicted and read it again; \
             a pool verifies when it loads.",
            "Two: pointers gone astray in a memory-unsafe language can change mapped pages, which then go to disk unnoticed; a pool can check a page \
             before it writes it.",
            "Three: a failed read or write is a SIGBUS wherever the memory is touched, where a call would have returned an error at one place.",
        ],
    },
    LiteratureTable {
        source: &REDB,
        experiment: ExperimentId::Engines,
        variant: "commit",
        devices: 1,
        title: "Durable commits of one writer (\"individual writes\": 1,000 commits of one entry)",
        unit: Unit::PerSecond,
        columns: &["commits per second"],
        rows: &[
            row("redb", "redb", &[1000.0 / 0.920], "920 ms"),
            row("LMDB", "lmdb", &[1000.0 / 1.598], "1,598 ms"),
            row("RocksDB", "rocksdb", &[1000.0 / 2.432], "2,432 ms"),
            row("fjall", "fjall", &[1000.0 / 3.488], "3,488 ms"),
            row("SQLite", "sqlite", &[1000.0 / 7.040], "7,040 ms"),
        ],
        remarks: &[
            "A consumer drive without a capacitor: what a sync costs decides, not the store.",
            "The paper's table 1 names databases that use or used mmap (MonetDB, LevelDB, LMDB, SQLite, MongoDB, SingleStore, InfluxDB, RavenDB, QuestDB and others) and has no figures.",
        ],
    },
    LiteratureTable {
        source: &PAPER,
        experiment: ExperimentId::Eviction,
        variant: "random",
        devices: 1,
        title: "TLB shootdowns with memory full: random 4 KiB reads, 100 threads",
        unit: Unit::PerSecond,
        columns: &["shootdowns per second"],
        rows: &[
            row("mmap RANDOM", "mmap-random", &[1.19e6], "401 K reads/s: three for each read"),
            row("mmap NORMAL", "mmap-normal", &[1.1e6], "22 K reads/s"),
            row("mmap SEQUENTIAL", "mmap-sequential", &[2.0e6], "23 K reads/s"),
        ],
        remarks: &[
            "The paper names three bottlenecks and holds that shootdowns have the largest effect; it counts them, and gives no price for one.",
            "With 128 hardware threads each flush may interrupt many CPUs; the counter adds up who was interrupted.",
        ],
    },
    LiteratureTable {
        source: &PAPER,
        experiment: ExperimentId::Eviction,
        variant: "scan",
        devices: 1,
        title: "TLB shootdowns with memory full: scan, 20 threads",
        unit: Unit::PerSecond,
        columns: &["shootdowns per second"],
        rows: &[row("mmap NORMAL and SEQUENTIAL", "mmap-normal", &[0.42e6], "0.41 to 0.44 M/s at 2.5 GB/s")],
        remarks: &[],
    },
    LiteratureTable {
        source: &SYSTEMS,
        experiment: ExperimentId::Translate,
        variant: "lookup",
        devices: 1,
        title: "Time of a B-tree lookup in memory, 8-byte keys, 120-byte values, 10 M entries, one thread",
        unit: Unit::Seconds,
        columns: &["time of a lookup"],
        rows: &[
            row("vmcache: virtual memory, handled by the database", "mapped", &[1.0 / 605e3], "1.43 GB of pages"),
            row(
                "LeanStore: swizzled pointers, log and versions off",
                "swizzled",
                &[1.0 / 842e3],
                "3.3 GB of pages, about 40 % full",
            ),
        ],
        remarks: &[
            "Whole systems: latches, version checks and a read transaction are in these times, and not in the lab's.",
            "The paper itself gives no figure for this: it holds that a buffer pool with light synchronisation reaches similar performance in memory.",
        ],
    },
    LiteratureTable {
        source: &REBUTTALS,
        experiment: ExperimentId::Claims,
        variant: "",
        devices: 1,
        title: "What others say, with a number to hold them to",
        unit: Unit::Count,
        columns: &[],
        rows: &[],
        remarks: &[
            "WiredTiger: data in the page cache is read two to four times faster through a map than by read calls; and a file should grow in large steps, as \
             each growth costs a new mapping.",
            "RavenDB's author: a buffer pool has to cache, evict and lock as the kernel does, and costs as much once it does.",
            "Each claim, with its source and the rule that decides it, is a row of the table of claims.",
        ],
    },
];

/// Why parts of the NVMe study's table contradict themselves: arithmetic that anyone can repeat.
static NVME_REMARKS: &[&str] = &[
    "Not reproducible: the table contradicts itself.",
    "Its latencies are no measurements: each is one second divided by the rate (780 K/s → 1.28 µs, 1.6 M/s → 0.625 µs).",
    "By Little's law 64 reads in flight at 1.6 M/s take 64 / 1.6 M = 40 µs each, not 0.6 µs; its p99 of 3.2 µs would be a twelfth of its mean.",
    "720 K synchronous O_DIRECT reads a second are 1.39 µs each. O_DIRECT cannot be served from memory, and the text gives the device 5 to 15 µs a read: at most 67 K to 200 K/s.",
    "mmap at 780 K/s \"since the file is larger than memory\" needs a miss rate under 20 % even with the fastest device it names: the file was in memory, or the figure was not measured.",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_experiment_has_figures_and_every_row_a_value_for_each_column() {
        for experiment in ExperimentId::ALL {
            assert!(tables(experiment).count() > 0, "{experiment}");
            for table in tables(experiment) {
                for row in table.rows {
                    assert_eq!(row.values.len(), table.columns.len(), "{}: {}", table.title, row.label);
                }
            }
        }
    }

    #[test]
    fn the_arithmetic_of_the_remarks_holds() {
        let read = &TABLES[4].rows;
        assert!((64.0 / read[0].values[0] - 40e-6).abs() < 1e-9, "Little's law");
        assert!((1.0 / read[1].values[0] - 1.28e-6).abs() < 0.01e-6);
        assert!((1.0 / read[2].values[0] - 1.39e-6).abs() < 0.01e-6);
    }
}
