//! Published figures on the question of `stalls`.

use crate::format::Unit;
use crate::literature::{LiteratureTable, PAPER};
use crate::summary::Metric;

/// Tables of published figures, which the report shows next to this machine's figures.
pub(super) static TABLES: &[LiteratureTable] = &[LiteratureTable {
    source: &PAPER,
    variant: "",
    devices: 1,
    title: "What the paper says of stalls (§3.2)",
    metric: Metric::Latency("op", 999),
    unit: Unit::Count,
    columns: &[],
    rows: &[],
    remarks: &[
        "No figures. Any access may stall, as the database cannot tell what is in memory; asynchronous reads through a mapping do not exist.",
        "mlock pins pages, but how much may be locked is limited, and too much of it harms everyone else; madvise is only a hint, which the kernel may \
             ignore; helper threads that touch pages first stall in the caller's place.",
        "Its verdict: each remedy brings back a part of the complexity that the mapping was to save.",
    ],
}];
