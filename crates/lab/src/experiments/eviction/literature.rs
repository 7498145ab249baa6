//! Published figures on the question of `eviction`.

use crate::format::Unit;
use crate::literature::{LiteratureTable, PAPER, row};
use crate::methods;
use crate::summary::Metric;

/// Tables of published figures, which the report shows next to this machine's figures.
pub(super) static TABLES: &[LiteratureTable] = &[
    LiteratureTable {
        source: &PAPER,
        variant: "random",
        devices: 1,
        title: "TLB shootdowns with memory full: random 4 KiB reads, 100 threads",
        metric: Metric::ShootdownsPerS,
        unit: Unit::PerSecond,
        columns: &["shootdowns per second"],
        rows: &[
            row("mmap RANDOM", &methods::MMAP_RANDOM, &[1.19e6], "401 K reads/s: three for each read"),
            row("mmap NORMAL", &methods::MMAP_NORMAL, &[1.1e6], "22 K reads/s"),
            row("mmap SEQUENTIAL", &methods::MMAP_SEQUENTIAL, &[2.0e6], "23 K reads/s"),
        ],
        remarks: &[
            "The paper names three bottlenecks and holds that shootdowns have the largest effect; it counts them, and gives no price for one.",
            "With 128 hardware threads each flush may interrupt many CPUs; the counter adds up the interrupted CPUs.",
        ],
    },
    LiteratureTable {
        source: &PAPER,
        variant: "scan",
        devices: 1,
        title: "TLB shootdowns with memory full: scan, 20 threads",
        metric: Metric::ShootdownsPerS,
        unit: Unit::PerSecond,
        columns: &["shootdowns per second"],
        rows: &[row("mmap NORMAL and SEQUENTIAL", &methods::MMAP_NORMAL, &[0.42e6], "0.41 to 0.44 M/s at 2.5 GB/s")],
        remarks: &[],
    },
];
