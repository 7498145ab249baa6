//! Published figures on the question of `async`.

use super::{ASYNC_MMAP, ASYNC_READ, SINGLE_MMAP, SINGLE_READ, THREADS_MMAP, THREADS_READ};
use crate::format::Unit;
use crate::literature::{HAZARD, LiteratureTable, row};
use crate::summary::Metric;

/// Tables of published figures, which the report shows next to this machine's figures.
pub(super) static TABLES: &[LiteratureTable] = &[LiteratureTable {
    source: &HAZARD,
    variant: "sequential",
    devices: 1,
    title: "Time for eight files",
    metric: Metric::Seconds,
    unit: Unit::Seconds,
    columns: &["cold", "warm"],
    rows: &[
        row("async mmap", &ASYNC_MMAP, &[2.5, 0.12], ""),
        row("async read", &ASYNC_READ, &[0.62, 0.22], ""),
        row("8 threads mmap", &THREADS_MMAP, &[0.75, 0.049], ""),
        row("8 threads read", &THREADS_READ, &[0.62, 0.063], ""),
        row("1 thread mmap", &SINGLE_MMAP, &[2.5, 0.12], ""),
        row("1 thread read", &SINGLE_READ, &[0.67, 0.14], ""),
    ],
    remarks: &[
        "async mmap takes as long as one thread: each page fault blocks the executor, so nothing runs at the same time.",
        "The source sums files from front to back. Where read-ahead is large this hides the wait; the lab's random-touch variant shows it regardless.",
    ],
}];
