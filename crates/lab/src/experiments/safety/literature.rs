//! Published figures on the question of `safety`.

use crate::format::Unit;
use crate::literature::{LiteratureTable, PAPER};
use crate::summary::Metric;

/// Tables of published figures, which the report shows next to this machine's figures.
pub(super) static TABLES: &[LiteratureTable] = &[LiteratureTable {
    source: &PAPER,
    variant: "",
    devices: 1,
    title: "What the paper says of transactional safety (§3.1)",
    metric: Metric::OpsPerS,
    unit: Unit::Count,
    columns: &[],
    rows: &[],
    remarks: &[
        "No figures. The operating system can write a dirty page at any time, whether its transaction committed or not, and mlock does not \
             keep it from that.",
        "Three ways around it: copies by the operating system (MongoDB MMAPv1), copies in user space (SQLite, MonetDB, RavenDB), shadow paging \
             (LMDB). Each gives up part of what made mapping attractive: memory for two copies and remapping, a log and copying back, or a single \
             writer.",
    ],
}];
