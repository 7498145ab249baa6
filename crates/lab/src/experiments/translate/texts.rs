//! What the report shows of `translate` whatever the figures: question, method and limits, published figures; and its charts and tables.

use super::{ID, MAPPED, OWN, SWIZZLED};
use crate::experiment::Texts;
use crate::format::{Unit, bytes};
use crate::methods;
use crate::show::charts::{Lines, Panel, Series};
use crate::show::columns::{Column, measured};
use crate::show::figures::{Figure, Table, dash, legend_of, rates};
use crate::show::literature::{LiteratureTable, SYSTEMS, row};
use crate::summary::{Group, Metric, Summary, target_title};

/// What the report says of the experiment whatever the figures.
pub(super) const TEXTS: Texts = Texts {
    question: "Can a buffer pool match a map when everything is in memory?",
    main_figure: "time of a lookup in memory, buffer pool ÷ mmap",
    procedure: "Pages of 4 KiB that are all in memory, found in several ways: an array indexed by page id over frames in small and in huge pages, a hash \
     table (half full), pointers swizzled into the parent, a mapped file in memory with small and with huge pages; as a control \
     the hash table behind 64 locks with a pin on each page in use. A pool stands beside the map with pages of the same size. All but the map check whether the page is resident. `access` \
     follows a random cycle through all pages, one cache line of each; `lookup` looks up random keys in a B+tree, the next one \
     known only when the last value is. Nothing is evicted, so no pool pays for its replacement strategy. Each tag that is read is checked.",
    change: &[
        "Page ids that are not dense: an array needs room for each, and a hash table or swizzled pointers gain.",
        "Huge pages: the fewer misses of the TLB, the more of the time is the tree's own.",
        "Eviction: a pool must then also know which pages are in use; the method with locks and pins shows the most expensive way.",
        "More threads: pins of the root are writes that all threads share.",
    ],
};

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

// Figures of `translate`: the time of one operation over the working set, with a line for each method.

/// Draws lines over the working set where several were measured, otherwise bars: on one thread, and on the largest
/// number of threads.
pub(super) fn figures(groups: &[&Group<'_>], place: &str) -> Vec<Figure> {
    let metric = Metric::TimePerOp;
    let mut sizes: Vec<u64> = groups.iter().map(|group| group.spec.target.data_bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    if sizes.len() < 2 {
        return rates(groups, place, metric, "time of one operation").into_iter().collect();
    }
    let mut counts: Vec<u32> = groups.iter().map(|group| group.spec.params.threads).collect();
    counts.sort_unstable();
    counts.dedup();
    let ends = [counts.first().copied(), counts.last().copied().filter(|_| counts.len() > 1)];
    ends.into_iter().flatten().filter_map(|threads| over_sizes(groups, place, &sizes, threads)).collect()
}

fn over_sizes(groups: &[&Group<'_>], place: &str, sizes: &[u64], threads: u32) -> Option<Figure> {
    let unit = Unit::Seconds;
    let mut series: Vec<Series> = Vec::new();
    let mut table = Table { headers: vec!["method".into()], rows: Vec::new() };
    table.headers.extend(sizes.iter().map(|size| bytes(*size)));
    let mut methods: Vec<&str> = Vec::new();
    for group in groups {
        if !methods.contains(&group.spec.method.as_str()) {
            methods.push(&group.spec.method);
        }
    }
    for method in methods {
        let at = |size: &u64| {
            let same = |group: &&&Group<'_>| {
                let spec = group.spec;
                spec.method == method && spec.params.threads == threads && spec.target.data_bytes == *size
            };
            groups.iter().find(same)?.spread(Metric::TimePerOp)
        };
        let points: Vec<(f64, f64)> = sizes.iter().filter_map(|size| Some((*size as f64, at(size)?.median))).collect();
        let mut row = vec![super::title(method)];
        row.extend(sizes.iter().map(|size| at(size).map_or("–".into(), |spread| spread.show(unit))));
        table.rows.push(row);
        let tone = methods::find(OWN, method).map_or("t6", |method| method.tone);
        series.push(Series { label: super::title(method), tone, dash: dash(&series, tone), points, full_at: None });
    }
    series.retain(|series| series.points.len() > 1);
    let (from, to) = (*sizes.first()? as f64, *sizes.last()? as f64);
    if series.is_empty() {
        return None;
    }
    let on = if threads == 1 { "one thread".to_owned() } else { format!("{threads} threads") };
    let title = format!("By working set, {on}: {place}");
    let ticks = sizes.iter().map(|size| (*size as f64, bytes(*size))).collect();
    let legend = legend_of(&series);
    let panels = vec![Panel { axis: "time of one operation on one thread".into(), unit, log: true, series }];
    let chart = Lines { axis: "working set (logarithmic)".into(), from, to, log: true, ticks, panels };
    Some(Figure {
        svg: chart.draw(&title),
        title,
        lead: "Medians, all in memory; each operation waits for the one before. In brackets in the table: the repeats."
            .into(),
        legend,
        table,
        ..Figure::default()
    })
}

/// Builds a row for each method and thread count, and a column for each variant and working set: the time of one
/// operation.
pub(super) fn columns(summary: &Summary<'_>, target: &str) -> Vec<Column> {
    let experiment = ID;
    let mut rows: Vec<(&str, u32)> = Vec::new();
    let mut headers: Vec<(&str, u64)> = Vec::new();
    for group in summary.of_experiment(experiment) {
        let spec = group.spec;
        let (row, header) =
            ((spec.method.as_str(), spec.params.threads), (spec.variant.as_str(), spec.target.data_bytes));
        if !rows.contains(&row) {
            rows.push(row);
        }
        if !headers.contains(&header) {
            headers.push(header);
        }
    }
    headers.sort_unstable();
    rows.sort_by_key(|(_, threads)| *threads);
    let named = rows.iter().map(|(method, threads)| match threads {
        1 => super::title(method),
        threads => format!("{} · {threads} threads", super::title(method)),
    });
    let mut columns =
        vec![Column::new(&format!("{experiment}, {}, time of one", target_title(target)), named.collect())];
    for (variant, size) in headers {
        let groups = summary.at(experiment, variant, target);
        let cells = rows.iter().map(|(method, threads)| {
            let same = |group: &&&Group<'_>| {
                let spec = group.spec;
                spec.method == *method && spec.params.threads == *threads && spec.target.data_bytes == size
            };
            groups.iter().find(same).map_or(String::new(), |group| measured(group, Metric::TimePerOp))
        });
        columns.push(Column::new(&format!("{variant}, {}", crate::format::bytes(size)), cells.collect()));
    }
    columns
}
