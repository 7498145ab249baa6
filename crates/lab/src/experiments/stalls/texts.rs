//! What the report shows of `stalls` whatever the figures: question, method and limits, published figures; and its charts and tables.

use super::rules::price;
use crate::experiment::Texts;
use crate::format::Unit;
use crate::show::charts::{Mark, MarkKind, Row, Rows};
use crate::show::columns::{Column, measured};
use crate::show::figures::{Figure, Legend, Table, tone};
use crate::show::literature::{LiteratureTable, PAPER};
use crate::summary::{Group, Metric};

/// What the report says of the experiment whatever the figures.
pub(super) const TEXTS: Texts = Texts {
    question: "Can one work around the stalls of a mapping?",
    main_figure: "rate in an order known ahead, best map ÷ reads in flight",
    procedure: "One thread accesses pages and times each access with the work-around's own calls. Timed apart are waits of a \
     thread that has no other work left, and work done once beforehand. Ahead: random 4 KiB pages of data larger than \
     memory, in an order that is known as many pages ahead as the depth says; hints, calls and helper threads use \
     that knowledge, and a ring has as many reads in flight and hands the pages over in order. With mincore and \
     RWF_NOWAIT the thread first checks whether a page is in memory, and gives absent pages to helpers. Fits: a \
     quarter of the memory is touched at random while a second thread reads the rest of the file through the page \
     cache. Leaf scan: the engine scans its tree from a cold pool, with and without prefetching the next leaves; the same tree \
     over a mapped file is scanned with no hint, told RANDOM, and told RANDOM with the leaves to come asked for (WILLNEED, as many as the depth says). In \
     both files the leaves lie in the order of their keys, which read-ahead of the kernel likes best. But for the scan without a hint, each \
     map is advised that access is random.",
    change: &[
        "An order that is not known ahead: then hints and helpers are of no use, and only probing or reads in flight are left.",
        "More CPUs than helper threads: here they may compete with the thread they should help.",
        "Data that fits and no background load: then mlock, or nothing at all, is enough.",
        "Leaves that lie scattered, as random inserts leave them: then read-ahead of the kernel brings pages that the scan does not need, and only asking for the \
     leaves to come is left.",
        "A device with longer waits: hints that only start a read gain more, calls that wait lose more.",
    ],
};

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

// Figures of `stalls`: how long a thread is held, and the resources that each work-around takes.

/// Draws the 99.9th percentile and the longest access of each method; the figure's table also lists the resources that
/// a method takes.
pub(super) fn stalls(groups: &[&Group<'_>], place: &str) -> Option<Figure> {
    let (tail, longest) = (Metric::Latency("op", 999), Metric::Latency("op", 1000));
    let headers = ["method", "accesses", "p50", "p99", "p99.9", "longest", "what it takes"];
    let mut table = Table { headers: headers.map(str::to_owned).to_vec(), rows: Vec::new() };
    let mut rows = Vec::new();
    for group in groups {
        let show =
            |metric: Metric| group.spread(metric).map_or("–".to_owned(), |spread| metric.unit().show(spread.median));
        table.rows.push(vec![
            group.label(),
            show(Metric::OpsPerS),
            show(Metric::Latency("op", 500)),
            show(Metric::Latency("op", 990)),
            show(tail),
            show(longest),
            price(group),
        ]);
        let mark = |metric: Metric, kind| {
            group.spread(metric).map(|spread| Mark { values: group.values(metric), median: spread.median, kind })
        };
        let marks: Vec<Mark> =
            [mark(tail, MarkKind::Cold), mark(longest, MarkKind::Warm)].into_iter().flatten().collect();
        if !marks.is_empty() {
            let value = format!("{} · {}", show(tail), show(longest));
            rows.push(Row { label: group.label(), tone: tone(group), marks, value });
        }
    }
    if rows.is_empty() {
        return None;
    }
    let title = format!("How long one access holds the thread: {place}");
    let chart = Rows { axis: "time of one access".into(), unit: Unit::Seconds, log: true, rows };
    let legend = [("dot", "one in a thousand (p99.9)"), ("ring", "the longest of a run")];
    Some(Figure {
        svg: chart.draw(&title),
        title,
        lead: "The calls of the work-around count. The table has the work done once beforehand, the threads and memory that it takes, and the waits \
               of the methods that probe first and touch only resident pages."
            .into(),
        legend: legend.map(|(mark, label)| Legend { tone: "t6", dash: 0, mark, label: label.into() }).to_vec(),
        table, ..Figure::default()
    })
}

/// Builds the columns: how long an access holds the thread, and the resources that each work-around takes.
pub(super) fn columns(groups: &[&Group<'_>], title: &str) -> Vec<Column> {
    let each = |show: &dyn Fn(&Group<'_>) -> String| groups.iter().map(|group| show(group)).collect::<Vec<_>>();
    let op = |per_mille| {
        let metric = Metric::Latency("op", per_mille);
        each(&|group| group.spread(metric).map_or(String::new(), |spread| metric.unit().show(spread.median)))
    };
    vec![
        Column::new(title, each(&|group| format!("{}: {}", group.spec.variant, group.label()))),
        Column::new("p99.9", each(&|group| measured(group, Metric::Latency("op", 999)))),
        Column::new("longest", op(1000)),
        Column::new("accesses/s", each(&|group| measured(group, Metric::OpsPerS))),
        Column::new("p50", op(500)),
        Column::new("what it takes", each(&price)),
    ]
}
