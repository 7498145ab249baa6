//! Published figures on the question of `scan`.

use crate::format::Unit;
use crate::literature::{LiteratureTable, PAPER, row};
use crate::methods;
use crate::summary::Metric;

/// Tables of published figures, which the report shows next to this machine's figures.
pub(super) static TABLES: &[LiteratureTable] = &[
    LiteratureTable {
        source: &PAPER,
        variant: "",
        devices: 1,
        title: "Sequential scan of one SSD, 20 threads, memory full",
        metric: Metric::BytesPerS,
        unit: Unit::BytesPerSecond,
        columns: &["bytes per second"],
        rows: &[
            row("fio O_DIRECT", &methods::FIO_URING, &[6.8e9], ""),
            row("mmap NORMAL", &methods::MMAP_NORMAL, &[2.5e9], "6.6 GB/s in the first 15 s"),
            row("mmap SEQUENTIAL", &methods::MMAP_SEQUENTIAL, &[2.5e9], ""),
            row("mmap RANDOM", &methods::MMAP_RANDOM, &[1.0e9], "3.4 GB/s in the first 15 s"),
        ],
        remarks: &[],
    },
    LiteratureTable {
        source: &PAPER,
        variant: "",
        devices: 10,
        title: "Sequential scan of ten SSDs (RAID 0), 20 threads, memory full",
        metric: Metric::BytesPerS,
        unit: Unit::BytesPerSecond,
        columns: &["bytes per second"],
        rows: &[
            row("fio O_DIRECT", &methods::FIO_URING, &[60e9], ""),
            row("mmap SEQUENTIAL", &methods::MMAP_SEQUENTIAL, &[2.7e9], ""),
            row("mmap NORMAL", &methods::MMAP_NORMAL, &[2.4e9], ""),
            row(
                "mmap RANDOM",
                &methods::MMAP_RANDOM,
                &[0.5e9],
                "another reader used the array during part of this run",
            ),
        ],
        remarks: &[
            "In the published data the device moves 57 GB/s while the work of NORMAL and RANDOM is a few percent of that, up to second 140-150: another program read from the array. The SEQUENTIAL run is clean.",
        ],
    },
];
