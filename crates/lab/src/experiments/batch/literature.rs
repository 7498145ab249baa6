//! Published figures on the question of `batch`.

use super::{BATCH_RING, BATCH_RING_BUFFERED, BATCH_TOUCH, COLD, WARM};
use crate::format::Unit;
use crate::literature::{LiteratureTable, Source, row};
use crate::summary::Metric;

static QDRANT: Source = Source {
    cite: "Qdrant, pull request 9852, 2026",
    title: "io_uring for random reads of vectors",
    machine: "Machine not stated",
    how: "one request for 4096 random vectors, as stated there",
};

/// Tables of published figures, which the report shows next to this machine's figures.
pub(super) static TABLES: &[LiteratureTable] = &[
    LiteratureTable {
        source: &QDRANT,
        variant: COLD,
        devices: 1,
        title: "4096 random vectors, cold",
        metric: Metric::Latency("op", 500),
        unit: Unit::Seconds,
        columns: &["time of the request"],
        rows: &[row("mmap", &BATCH_TOUCH, &[0.218], ""), row("io_uring", &BATCH_RING, &[0.0278], "")],
        remarks: &["Reads of vectors, not of whole pages. The lab's own figures are for its largest request."],
    },
    LiteratureTable {
        source: &QDRANT,
        variant: WARM,
        devices: 1,
        title: "4096 random vectors, warm",
        metric: Metric::Latency("op", 500),
        unit: Unit::Seconds,
        columns: &["time of the request"],
        rows: &[row("mmap", &BATCH_TOUCH, &[0.0008], ""), row("io_uring", &BATCH_RING_BUFFERED, &[0.0047], "")],
        remarks: &["In memory the ring pays for requests that need no waiting."],
    },
];
