//! Published figures on the question of `claims`.

use crate::format::Unit;
use crate::literature::{LiteratureTable, REBUTTALS};
use crate::summary::Metric;

/// Tables of published figures, which the report shows next to this machine's figures.
pub(super) static TABLES: &[LiteratureTable] = &[LiteratureTable {
    source: &REBUTTALS,
    variant: "",
    devices: 1,
    title: "What others say, with a number to hold them to",
    metric: Metric::OpsPerS,
    unit: Unit::Count,
    columns: &[],
    rows: &[],
    remarks: &[
        "WiredTiger: data in the page cache is read two to four times faster through a map than by read calls; and a file should grow in large steps, as \
             each growth costs a new mapping.",
        "RavenDB's author: a buffer pool has to cache, evict and lock as the kernel does, and costs as much once it does.",
        "Each claim, with its source and the rule that decides it, is a row of the table of claims.",
    ],
}];
