//! The figure of `batch`, the time of a request over its size, and the table of the terminal.

use super::ID;
use super::findings::{REQUEST, of_size, sizes};
use crate::format::Unit;
use crate::judge::claim::count_of;
use crate::show::charts::{Lines, Panel, Series};
use crate::show::columns::{Column, Sheet, title};
use crate::show::figures::{Figure, Table, dash, legend_of, tone};
use crate::summary::{Group, Metric, Summary};

/// The panels of the figure, from top to bottom.
const PANELS: [(&str, Metric); 2] = [("time of a request", REQUEST), ("CPU time per page", Metric::CpuPerOp)];

/// One group for each method, in the order of the groups.
fn methods<'g, 'a>(groups: &[&'g Group<'a>]) -> Vec<&'g Group<'a>> {
    let mut methods: Vec<&Group<'_>> = Vec::new();
    for group in groups.iter().copied() {
        if methods.iter().all(|other| other.spec.method != group.spec.method) {
            methods.push(group);
        }
    }
    methods
}

/// Draws the time of a request and the CPU time of a page over the number of pages.
pub(super) fn figures(groups: &[&Group<'_>], place: &str) -> Vec<Figure> {
    let sizes = sizes(groups);
    let [first, .., last] = sizes.as_slice() else { return Vec::new() };
    let methods = methods(groups);
    let panel = |(axis, metric): (&str, Metric)| {
        let mut series: Vec<Series> = Vec::new();
        for method in &methods {
            let own = groups.iter().filter(|group| group.spec.method == method.spec.method && !group.never_filled());
            let mut points: Vec<(f64, f64)> =
                own.filter_map(|group| Some((count_of(group, super::PAGES)?, group.spread(metric)?.median))).collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            let tone = tone(method);
            if !points.is_empty() {
                series.push(Series { label: method.title(), tone, dash: dash(&series, tone), points, full_at: None });
            }
        }
        Panel { axis: axis.into(), unit: metric.unit(), log: true, series }
    };
    let panels: Vec<Panel> = PANELS.into_iter().map(panel).collect();
    let title = format!("By pages of a request: {place}");
    let chart = Lines {
        axis: "pages of a request".into(),
        from: f64::from(*first),
        to: f64::from(*last),
        log: true,
        ticks: sizes.iter().map(|size| (f64::from(*size), size.to_string())).collect(),
        panels,
    };
    vec![Figure {
        svg: chart.draw(&title),
        legend: legend_of(&chart.panels[0].series),
        title,
        lead: "Medians; below is faster. One thread waits for the whole request.".into(),
        table: table(groups, &sizes),
        ..Figure::default()
    }]
}

fn table(groups: &[&Group<'_>], sizes: &[u32]) -> Table {
    let mut table = Table::new(&["method", "pages", "time of a request", "p99", "pages per second", "CPU per page"]);
    for size in sizes {
        for group in of_size(groups, *size) {
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
            let mut methods = methods(groups);
            methods.sort_by_key(|group| group.family());
            methods.into_iter().map(move |method| (*variant, method, groups.as_slice()))
        })
        .collect();
    let every: Vec<&Group<'_>> = all.iter().flat_map(|(_, groups)| groups.iter().copied()).collect();
    let sizes = sizes(&every);
    let cell = |(_, method, groups): &(&str, &Group<'_>, &[&Group<'_>]), size: u32, metric: Metric| {
        let own = of_size(groups, size).into_iter().find(|group| group.spec.method == method.spec.method);
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
