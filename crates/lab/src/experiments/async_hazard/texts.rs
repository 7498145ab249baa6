//! What the report shows of `async` whatever the figures: question, method and limits, published figures; and its charts and tables.

use super::{ASYNC_MMAP, ASYNC_READ, SINGLE_MMAP, SINGLE_READ, THREADS_MMAP, THREADS_READ};
use crate::experiment::Texts;
use crate::format::Unit;
use crate::record::CacheState;
use crate::show::charts::{Mark, MarkKind, Row, Rows};
use crate::show::columns::{Column, measured, ratio};
use crate::show::figures::{Figure, Legend, Table, bar_row, tone};
use crate::show::literature::{HAZARD, LiteratureTable, row};
use crate::summary::{Group, Metric, is_plain};

/// What the report says of the experiment whatever the figures.
pub(super) const TEXTS: Texts = Texts {
    question: "Does `await` help when the file is mapped?",
    main_figure: "time of async tasks on cold data, mmap ÷ awaited reads",
    procedure: "Eight files (or as many as set), a fixed amount of work: tasks on one single-threaded executor, a thread a file, or one \
     thread after another; over a map, with read calls (the executor hands them to its thread pool), or with direct reads \
     on a ring that the executor polls. A warm map is mapped anew, as in the source, and also touched before the clock starts, which is as \
     warm as the pool that it stands beside. A trial is one run; a dot each. `random-touch` makes seeded 4 KiB touches, the same in every file; \
     `sequential`, the source's, sums every 512th byte. The lateness of a 1 ms kernel timer on the executor's thread is \
     recorded; a tick that the executor never ran counts with its full lateness. Sums are checked.",
    change: &[
        "Read-ahead that is larger than a task's single read hides the wait in the sequential variant; random touches show it.",
        "Warm caches: without a page fault that waits, a mapping blocks no task.",
        "A multi-threaded executor moves the problem: it has as many tasks at a time as threads.",
        "Another platform, the source's first open question: the lab runs only on Linux; the source's figures for macOS stand above.",
    ],
};

/// Tables of published figures, which the report shows next to this machine's figures.
pub(super) static TABLES: &[LiteratureTable] = &[LiteratureTable {
    source: &HAZARD,
    variant: "sequential",
    devices: 1,
    title: "Time for eight files",
    metric: Metric::Seconds,
    unit: Unit::Seconds,
    columns: &["cold", "warm"],
    rows: &[
        row("async mmap", &ASYNC_MMAP, &[2.5, 0.12], ""),
        row("async read", &ASYNC_READ, &[0.62, 0.22], ""),
        row("8 threads mmap", &THREADS_MMAP, &[0.75, 0.049], ""),
        row("8 threads read", &THREADS_READ, &[0.62, 0.063], ""),
        row("1 thread mmap", &SINGLE_MMAP, &[2.5, 0.12], ""),
        row("1 thread read", &SINGLE_READ, &[0.67, 0.14], ""),
    ],
    remarks: &[
        "async mmap takes as long as one thread: each page fault blocks the executor, so nothing runs at the same time.",
        "The source sums files from front to back. Where read-ahead is large this hides the wait; the lab's random-touch variant shows it regardless.",
    ],
}];

// Figures of `async`: a dot for every run, and how late a timer among the tasks fires.

/// Draws a strip plot with one dot for each run, cold and warm, as in the post "Async hazard".
pub(super) fn strips(groups: &[&Group<'_>], place: &str) -> Option<Figure> {
    let metric = Metric::Seconds;
    let mut rows: Vec<Row> = Vec::new();
    let mut table = Table::new(&["configuration", "cold", "spread", "warm", "spread", "runs"]);
    for group in groups {
        let label = group.label();
        if rows.iter().any(|row| row.label == label) {
            continue;
        }
        let mut marks = Vec::new();
        let mut values = Vec::new();
        let mut cells = vec![label.clone()];
        for (cache, kind) in [(CacheState::Cold, MarkKind::Cold), (CacheState::Warm, MarkKind::Warm)] {
            let same = groups.iter().find(|other| other.label() == label && other.spec.cache == cache);
            let Some((same, spread)) = same.and_then(|same| Some((same, same.spread(metric)?))) else {
                cells.extend(["–".into(), "–".into()]);
                continue;
            };
            marks.push(Mark { values: same.values(metric), median: spread.median, kind });
            values.push(Unit::Seconds.show(spread.median));
            cells.push(Unit::Seconds.show(spread.median));
            cells.push(format!("{} – {}", Unit::Seconds.show(spread.min), Unit::Seconds.show(spread.max)));
        }
        if marks.is_empty() {
            continue;
        }
        cells.push(group.good.len().to_string());
        table.rows.push(cells);
        rows.push(Row { label, tone: tone(group), marks, value: values.join(" · ") });
    }
    if rows.is_empty() {
        return None;
    }
    let title = format!("Time for the same work: {place}");
    let chart = Rows { axis: "seconds".into(), unit: Unit::Seconds, log: true, rows };
    Some(Figure {
        svg: chart.draw(&title),
        title,
        lead: "One dot a run; the strokes and the figures at the end of a row are medians, cold · warm.".into(),
        legend: vec![
            Legend { tone: "t6", dash: 0, mark: "dot", label: "cold".into() },
            Legend { tone: "t6", dash: 0, mark: "ring", label: "warm".into() },
        ],
        table,
        ..Figure::default()
    })
}

/// Plots the largest lateness of the 1 ms timer in each run.
pub(super) fn lateness(groups: &[&Group<'_>], place: &str) -> Option<Figure> {
    let metric = Metric::Latency("ticker", 1000);
    let cold: Vec<&Group<'_>> = groups.iter().copied().filter(|group| group.spec.cache == CacheState::Cold).collect();
    let rows: Vec<Row> = cold.iter().filter_map(|group| bar_row(group, metric)).collect();
    if rows.is_empty() {
        return None;
    }
    let mut table = Table::new(&["configuration", "p50", "p99", "latest"]);
    for group in &cold {
        let at = |per_mille| {
            group.spread(Metric::Latency("ticker", per_mille)).map_or("–".into(), |s| Unit::Seconds.show(s.median))
        };
        table.rows.push(vec![group.label(), at(500), at(990), at(1000)]);
    }
    let title = format!("How late a 1 ms timer fires, cold: {place}");
    let chart = Rows { axis: "latest firing of a run, after it was due".into(), unit: Unit::Seconds, log: true, rows };
    Some(Figure {
        svg: chart.draw(&title),
        title,
        lead: "A ticker on the same executor (or beside the threads): the worst of each run. This is what other tasks feel.".into(),
        legend: Vec::new(),
        table, ..Figure::default()
    })
}

/// Builds the columns: cold and warm side by side, each method compared with the tasks that await reads.
pub(super) fn columns(groups: &[&Group<'_>], title: &str) -> Vec<Column> {
    let metric = Metric::Seconds;
    let mut labels: Vec<String> = Vec::new();
    for group in groups.iter().filter(|group| is_plain(&group.spec.params)) {
        if !labels.contains(&group.label()) {
            labels.push(group.label());
        }
    }
    let mut columns = vec![Column::new(title, labels.clone())];
    let at = |label: &str, cache| groups.iter().copied().find(|g| g.label() == label && g.spec.cache == cache);
    for cache in [CacheState::Cold, CacheState::Warm] {
        let reference = groups.iter().copied().find(|g| g.spec.method == ASYNC_READ && g.spec.cache == cache);
        let each = |show: &dyn Fn(&Group<'_>) -> String| {
            labels.iter().map(|label| at(label, cache).map_or(String::new(), show)).collect::<Vec<_>>()
        };
        let name = cache.to_string();
        columns.push(Column::new(&name, each(&|group| measured(group, metric))));
        columns.push(Column::new("ratio", each(&|group| ratio(group, reference, metric))));
    }
    for (header, per_mille) in [("timer p99", 990), ("worst", 1000)] {
        let metric = Metric::Latency("ticker", per_mille);
        let late = |label: &String| {
            let spread = at(label, CacheState::Cold)?.spread(metric)?;
            Some(metric.unit().show(spread.median))
        };
        columns.push(Column::new(header, labels.iter().map(|label| late(label).unwrap_or_default()).collect()));
    }
    columns
}
