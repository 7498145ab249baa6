//! Published figures on the question of `engine`.

use super::works::COMMIT;
use crate::format::Unit;
use crate::literature::{LiteratureTable, REDB, row};
use crate::methods;
use crate::summary::Metric;

/// Tables of published figures, which the report shows next to this machine's figures.
pub(super) static TABLES: &[LiteratureTable] = &[LiteratureTable {
    source: &REDB,
    variant: COMMIT[0],
    devices: 1,
    title: "Durable puts of one writer (\"individual writes\": 1,000 commits of one entry)",
    metric: Metric::OpsPerS,
    unit: Unit::PerSecond,
    columns: &["commits per second"],
    rows: &[
        row("redb", &methods::REDB, &[1000.0 / 0.920], "920 ms"),
        row("LMDB", &methods::LMDB, &[1000.0 / 1.598], "1,598 ms"),
    ],
    remarks: &[
        "A consumer drive without a capacitor: the cost of a sync decides, not the store. Here the raw device stands beside the engine's commits.",
        "Rivals in the same class of durability and the same memory are compared by `nofault lab engines`.",
    ],
}];
