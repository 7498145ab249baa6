//! Published figures on the question of `rss`.

use super::READS;
use super::reads::RSS;
use crate::format::Unit;
use crate::literature::{LiteratureTable, Source, row};
use crate::methods;
use crate::summary::Metric;

static POLARS: Source = Source {
    cite: "polars, pull request 29091, 2026",
    title: "Reading parquet files by read calls in place of a map",
    machine: "Machine not stated",
    how: "largest RSS of one query, as stated there",
};

/// Tables of published figures, which the report shows next to this machine's figures.
pub(super) static TABLES: &[LiteratureTable] = &[LiteratureTable {
    source: &POLARS,
    variant: READS,
    devices: 1,
    title: "Largest RSS",
    metric: Metric::Bytes(RSS),
    unit: Unit::Bytes,
    columns: &["RSS"],
    rows: &[
        row("mmap", &methods::MMAP_RANDOM, &[8.13e9], ""),
        row("read calls", &methods::PREAD_BUFFERED_RANDOM, &[2.43e9], ""),
    ],
    remarks: &[
        "The query of the source keeps decoded columns in memory in both cases; the lab's programs keep nothing.",
    ],
}];
