//! Published figures on the question of `translate`.

use super::{MAPPED, SWIZZLED};
use crate::format::Unit;
use crate::literature::{LiteratureTable, SYSTEMS, row};
use crate::summary::Metric;

/// Tables of published figures, which the report shows next to this machine's figures.
pub(super) static TABLES: &[LiteratureTable] = &[LiteratureTable {
    source: &SYSTEMS,
    variant: "lookup",
    devices: 1,
    title: "Time of a B-tree lookup in memory, 8-byte keys, 120-byte values, 10 M entries, one thread",
    metric: Metric::TimePerOp,
    unit: Unit::Seconds,
    columns: &["time of a lookup"],
    rows: &[
        row("vmcache: virtual memory, handled by the database", &MAPPED, &[1.0 / 605e3], "1.43 GB of pages"),
        row(
            "LeanStore: swizzled pointers, log and versions off",
            &SWIZZLED,
            &[1.0 / 842e3],
            "3.3 GB of pages, about 40 % full",
        ),
    ],
    remarks: &[
        "Whole systems: latches, version checks and a read transaction are in these times, and not in the lab's.",
        "The paper itself gives no figure for this: it holds that a buffer pool with light synchronisation reaches similar performance in memory.",
    ],
}];
