//! What the report shows of `claims` whatever the figures: question, method and limits, published figures; and its charts and tables.

use super::{CACHED_READ, LONG_READER, PRIVATE_REMAP};
use crate::experiment::Texts;
use crate::format::{self, Unit};
use crate::show::charts::{Mark, MarkKind, Row, Rows};
use crate::show::figures::{Figure, Table, bar_row, rates, tone};
use crate::show::literature::{LiteratureTable, REBUTTALS};
use crate::summary::{Group, Metric, Spread};

/// What the report says of the experiment whatever the figures.
pub(super) const TEXTS: Texts = Texts {
    question: "Which of the claims for and against mmap hold on this machine?",
    procedure: "Small trials for claims that no other experiment decides; each claim names the trials that decide it. Cached reads: one thread reads a file \
     that is in the page cache in units of one size, and adds up a word of each cache line, in the map, or in a buffer that it copied \
     or read into. Calls: threads map a part of 1 MiB of a cached file, touch it and unmap it, or read it. Private map: pages spread over it are \
     changed, then it is mapped anew, which is timed. Commits: whole pages of a file are changed and made durable. Long reader: \
     durable commits of 500 updates each, with and without a reader that stays from the first to the last; growth counts file and memory.",
    change: &[
        "Another kernel: faults, mapping calls and uncached buffered reads change from release to release.",
        "Virtualization: a page fault in a nested guest costs several times the bare machine's, a system call hardly more.",
        "Larger folios in the page cache: one fault then maps many pages, which favours maps of cached data.",
    ],
    ..Texts::NONE
};

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

// Figures of `claims`, one for each of its questions.

/// Draws the figures of one variant.
pub(super) fn figures(groups: &[&Group<'_>], variant: &str, place: &str) -> Vec<Figure> {
    match variant {
        CACHED_READ => rates(groups, place, Metric::BytesPerS, "bytes per second").into_iter().collect(),
        PRIVATE_REMAP => times(groups, place).into_iter().collect(),
        LONG_READER => growth(groups, place).into_iter().collect(),
        _ => rates(groups, place, Metric::OpsPerS, "operations per second").into_iter().collect(),
    }
}

/// Draws a chart of the time of each remapping of a private map.
fn times(groups: &[&Group<'_>], place: &str) -> Option<Figure> {
    let metric = Metric::Latency("op", 500);
    let rows: Vec<Row> = groups.iter().filter_map(|group| bar_row(group, metric)).collect();
    let columns = [
        ("median", metric),
        ("p99", Metric::Latency("op", 990)),
        ("touched again", Metric::Latency("touch_again", 500)),
    ];
    let mut table = Table::new(&["method", "median", "p99", "touched again", "runs"]);
    for group in groups {
        let mut row = vec![group.label()];
        row.extend(
            columns.map(|(_, metric)| group.spread(metric).map_or("–".into(), |s| metric.unit().show(s.median))),
        );
        row.push(group.good.len().to_string());
        table.rows.push(row);
    }
    let title = format!("Time to map anew: {place}");
    let chart = Rows { axis: "median time".into(), unit: metric.unit(), log: true, rows };
    (!chart.rows.is_empty()).then(|| Figure {
        svg: chart.draw(&title),
        title,
        lead: "Every thread that uses the address space waits so long. Dots: the repeats.".into(),
        legend: Vec::new(),
        table,
        ..Figure::default()
    })
}

/// Draws a chart of each store's growth under updates.
fn growth(groups: &[&Group<'_>], place: &str) -> Option<Figure> {
    let share = |group: &Group<'_>| {
        let grown = group.good.iter().filter_map(|trial| {
            let figures = &trial.outcome.figures;
            Some(figures.get("grown_bytes")? / figures.get("used_before_bytes").filter(|bytes| **bytes > 0.0)?)
        });
        grown.collect::<Vec<f64>>()
    };
    let mut rows = Vec::new();
    let mut table = Table::new(&["method", "growth", "before", "after", "of it in memory"]);
    for group in groups {
        let values = share(group);
        let Some(spread) = Spread::of(values.iter().copied()) else { continue };
        let value = Unit::Ratio.show(spread.median);
        let bytes = |name: &'static str| {
            group.spread(Metric::Figure(name)).map_or("–".into(), |spread| format::bytes(spread.median as u64))
        };
        table.rows.push(vec![
            group.label(),
            value.clone(),
            bytes("used_before_bytes"),
            bytes("used_after_bytes"),
            bytes("memory_bytes"),
        ]);
        rows.push(Row {
            label: group.label(),
            tone: tone(group),
            marks: vec![Mark { values, median: spread.median, kind: MarkKind::Measured }],
            value,
        });
    }
    let title = format!("Growth under updates: {place}");
    let chart = Rows { axis: "growth, as a multiple of what there was".into(), unit: Unit::Ratio, log: false, rows };
    (!chart.rows.is_empty()).then(|| Figure {
        svg: chart.draw(&title),
        title,
        lead: "File and memory together, with and without a reader that stays from the first update to the last."
            .into(),
        legend: Vec::new(),
        table,
        ..Figure::default()
    })
}
