//! Published figures on the question of `errors`.

use crate::format::Unit;
use crate::literature::{LiteratureTable, PAPER};
use crate::summary::Metric;

/// Tables of published figures, which the report shows next to this machine's figures.
pub(super) static TABLES: &[LiteratureTable] = &[LiteratureTable {
    source: &PAPER,
    variant: "",
    devices: 1,
    title: "What the paper says of errors (§3.3)",
    metric: Metric::OpsPerS,
    unit: Unit::Count,
    columns: &[],
    rows: &[],
    remarks: &[
        "No figures, three statements. One: a mapped page has to be verified at every access, as the kernel may have evicted and read it again; \
             a pool verifies when it loads.",
        "Two: pointers gone astray in a memory-unsafe language can change mapped pages, which then go to disk unnoticed; a pool can check a page \
             before it writes it.",
        "Three: a failed read or write is a SIGBUS wherever the memory is touched, where a call would have returned an error at one place.",
    ],
}];
