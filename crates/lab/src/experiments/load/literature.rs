//! Published figures on the question of `load`.

use crate::format::Unit;
use crate::literature::{LiteratureTable, Source, row};
use crate::summary::Metric;

use super::COLD;
use super::{LOAD_READ, LOAD_TOUCH};

static LLAMA: Source = Source {
    cite: "llama.cpp, issue 14396, 2025",
    title: "Loading of a model with a map and without",
    machine: "Machine not stated",
    how: "one load of a model from a cold file, as stated there",
};

/// Tables of published figures, which the report shows next to this machine's figures.
pub(super) static TABLES: &[LiteratureTable] = &[LiteratureTable {
    source: &LLAMA,
    variant: COLD,
    devices: 1,
    title: "Time to load a model",
    metric: Metric::Seconds,
    unit: Unit::Seconds,
    columns: &["time"],
    rows: &[row("with mmap", &LOAD_TOUCH, &[33.7], ""), row("without mmap", &LOAD_READ, &[14.3], "")],
    remarks: &[
        "The model of the source is many times larger than the lab's file: compare the ratio, not the times.",
        "Pull request 7420 of the same project reports loads that are 3 to 6 times faster by O_DIRECT into huge pages.",
    ],
}];
