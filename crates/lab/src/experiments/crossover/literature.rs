//! Published figures on the question of `crossover`.

use super::UNIFORM;
use crate::format::Unit;
use crate::literature::{LiteratureTable, PAPER, row};
use crate::methods;
use crate::summary::Metric;

/// Tables of published figures, which the report shows next to this machine's figures.
pub(super) static TABLES: &[LiteratureTable] = &[LiteratureTable {
    source: &PAPER,
    variant: UNIFORM,
    devices: 1,
    title: "Random 4 KiB reads, 100 threads, data twenty times memory",
    metric: Metric::OpsPerS,
    unit: Unit::PerSecond,
    columns: &["reads per second"],
    rows: &[
        row("fio O_DIRECT", &methods::PREAD_DIRECT, &[900e3], ""),
        row("mmap RANDOM", &methods::MMAP_RANDOM, &[401e3], ""),
    ],
    remarks: &[
        "The paper has one point of the grid: uniform reads that nearly all miss. There mmap reaches 0.45 of direct I/O; while memory \
         filled, it kept up.",
    ],
}];
