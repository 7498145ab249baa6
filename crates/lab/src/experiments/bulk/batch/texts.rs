//! What the report shows of `batch` whatever the figures: question, method and limits, published figures; and its charts and tables.

use super::super::of_size;
use super::rules::{REQUEST, sizes};
use super::{BATCH_RING, BATCH_RING_BUFFERED, BATCH_TOUCH, COLD, ID, PAGES, WARM};
use crate::experiment::Texts;
use crate::format::Unit;
use crate::judge::places::count_of;
use crate::show::columns::{Column, Sheet, title};
use crate::show::figures::{Figure, Table};
use crate::show::literature::{LiteratureTable, Source, row};
use crate::show::over::{self, Axes};
use crate::summary::{Group, Metric, Summary};

/// What the report says of the experiment whatever the figures.
pub(super) const TEXTS: Texts = Texts {
    question: "How long does one request for many random pages take?",
    main_figure: "rate of the largest cold request, fastest map ÷ fastest other",
    procedure: "One thread answers one request after another; a request names 64, 512 or 4096 random pages of 4 KiB, and is done when a word of each \
     page has been checked. Cold: from data many times larger than memory, which is full when the clock starts, other pages in each request. Warm: from data \
     that fills a quarter of memory, read before, each page of a map in its page table and each page of the pool in the pool. The map is told RANDOM. WILLNEED and \
     POPULATE_READ are one call for each page, process_madvise one for each 1024; then the pages are touched in the order of the request. Threads \
     that share a request exist before it and wait at a barrier; waking them is part of the time. The ring has all pages of the request in flight, submitted \
     32 at a time; past the page cache it reads the device warm or cold. get_many is one call.",
    change: &[
        "Other work for the thread: a ring and tasks leave it free while they wait, a touch does not.",
        "Many requests at a time: then the device is busy without batches, and threads cost more than they bring.",
        "A faster device: asking for pages one by one then costs more than reading them.",
        "Pages in order, or near each other: one hint or one read covers many.",
    ],
};

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

// The figure of `batch`, the time of a request over its size, and the table of the terminal.

/// The panels of the figure, from top to bottom.
const PANELS: [(&str, Metric); 2] = [("time of a request", REQUEST), ("CPU time per page", Metric::CpuPerOp)];

/// Draws the time of a request and the CPU time of a page over the number of pages.
pub(super) fn figures(groups: &[&Group<'_>], place: &str) -> Vec<Figure> {
    let axes = Axes {
        axis: "pages of a request",
        at: &|group| count_of(group, super::PAGES),
        tick: &|pages| format!("{pages:.0}"),
        panels: &PANELS,
        log: |_| true,
    };
    let lead = "Medians; below is faster. One thread waits for the whole request.".into();
    let title = format!("By pages of a request: {place}");
    over::figure(groups, &axes, title, lead, table(groups, &sizes(groups))).into_iter().collect()
}

fn table(groups: &[&Group<'_>], sizes: &[u32]) -> Table {
    let mut table = Table::new(&["method", "pages", "time of a request", "p99", "pages per second", "CPU per page"]);
    for size in sizes {
        for group in of_size(groups, PAGES, f64::from(*size)) {
            let show = |metric: Metric| {
                group.spread(metric).map_or("–".to_owned(), |spread| metric.unit().show(spread.median))
            };
            let [time, p99, rate, cpu] =
                [REQUEST, Metric::Latency("op", 990), Metric::OpsPerS, Metric::CpuPerOp].map(show);
            table.rows.push(vec![group.title(), size.to_string(), time, p99, rate, cpu]);
        }
    }
    table
}

/// Makes the table of the terminal: the time of a request by method and size, and the CPU time of a page of the largest.
pub(super) fn sheet(summary: &Summary<'_>, target: &str, variants: &[&str]) -> Sheet {
    let all: Vec<(&str, Vec<&Group<'_>>)> =
        variants.iter().map(|variant| (*variant, summary.at(ID, variant, target))).collect();
    let rows: Vec<(&str, &Group<'_>, &[&Group<'_>])> = all
        .iter()
        .flat_map(|(variant, groups)| {
            let mut methods = over::methods(groups);
            methods.sort_by_key(|group| group.family());
            methods.into_iter().map(move |method| (*variant, method, groups.as_slice()))
        })
        .collect();
    let every: Vec<&Group<'_>> = all.iter().flat_map(|(_, groups)| groups.iter().copied()).collect();
    let sizes = sizes(&every);
    let cell = |(_, method, groups): &(&str, &Group<'_>, &[&Group<'_>]), size: u32, metric: Metric| {
        let own =
            of_size(groups, PAGES, f64::from(size)).into_iter().find(|group| group.spec.method == method.spec.method);
        own.and_then(|group| group.spread(metric)).map_or(String::new(), |spread| Unit::Seconds.show(spread.median))
    };
    let names = rows.iter().map(|(variant, method, _)| format!("{variant}: {}", method.title())).collect();
    let mut columns = vec![Column::new(&title(ID, target), names)];
    for size in &sizes {
        let times = rows.iter().map(|row| cell(row, *size, REQUEST)).collect();
        columns.push(Column::new(&format!("{size} pages"), times));
    }
    if let Some(largest) = sizes.last() {
        columns.push(Column::new("CPU/page", rows.iter().map(|row| cell(row, *largest, Metric::CpuPerOp)).collect()));
    }
    Sheet::new(columns)
}
