//! Published figures on the question of `random`.

use crate::format::Unit;
use crate::literature::{LiteratureTable, PAPER, row};
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
        row("fio O_DIRECT", "fio-psync", &[900e3], ""),
        row("mmap RANDOM", "mmap-random", &[401e3], "1.19 M TLB shootdowns/s"),
        row("mmap SEQUENTIAL", "mmap-sequential", &[23e3], ""),
        row("mmap NORMAL", "mmap-normal", &[22e3], "2.5 GB/s from the device for 0.09 GB/s of work"),
    ],
    remarks: &[
        "Before memory was full mmap kept up with fio; then it fell near zero for five seconds and settled at under half.",
    ],
}];
