//! Published figures on the question of `folios`.

use super::MMAP_IN_ORDER;
use crate::format::Unit;
use crate::literature::{LiteratureTable, Source, row};
use crate::summary::Metric;

/// Number of pages in the file of the published measurement: 1 GiB.
const PAGES: f64 = 262_144.0;

static TMPFS: Source = Source {
    cite: "Baolin Wang, linux-mm, July 2025",
    title: "mm: fault in complete folios instead of individual pages for tmpfs (patch, version 2)",
    machine: "Machine not stated",
    how: "time of writing through a map to each page of 1 GiB in tmpfs with folios of 64 KiB, before and after the patch; here per page",
};

/// Tables of published figures, which the report shows next to this machine's figures.
pub(super) static TABLES: &[LiteratureTable] = &[LiteratureTable {
    source: &TMPFS,
    variant: "",
    devices: 1,
    title: "Time to touch a page of cached data, in order",
    metric: Metric::TimePerOp,
    unit: Unit::Seconds,
    columns: &["time of a page"],
    rows: &[
        row("a fault for each page", &MMAP_IN_ORDER, &[0.158 / PAGES], "beside it: folios of 4 KiB"),
        row("a fault for each folio of 64 KiB", &MMAP_IN_ORDER, &[0.021 / PAGES], ""),
    ],
    remarks: &[
        "tmpfs maps no pages around the one that faults, where files on disk have 16 of them mapped; and these faults were writes.",
    ],
}];
