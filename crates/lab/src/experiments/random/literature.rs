//! Published figures on the question of `random`.

use crate::format::Unit;
use crate::literature::{LiteratureTable, PAPER, row};
use crate::methods;
use crate::summary::Metric;

/// Tables of published figures, which the report shows next to this machine's figures.
pub(super) static TABLES: &[LiteratureTable] = &[LiteratureTable {
    source: &PAPER,
    variant: "",
    devices: 1,
    title: "Random 4 KiB reads, 100 threads, memory full",
    metric: Metric::OpsPerS,
    unit: Unit::PerSecond,
    columns: &["reads per second"],
    rows: &[
        row("fio O_DIRECT", &methods::FIO_PSYNC, &[900e3], ""),
        row("mmap RANDOM", &methods::MMAP_RANDOM, &[401e3], "1.19 M TLB shootdowns/s"),
        row("mmap SEQUENTIAL", &methods::MMAP_SEQUENTIAL, &[23e3], ""),
        row("mmap NORMAL", &methods::MMAP_NORMAL, &[22e3], "2.5 GB/s from the device for 0.09 GB/s of work"),
    ],
    remarks: &[
        "Before memory was full mmap kept up with fio; then it fell near zero for five seconds and settled at under half.",
    ],
}];
