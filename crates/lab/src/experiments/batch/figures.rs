//! The figure of `batch`, the time of a request over its size, and the table of the terminal.

use super::ID;
use super::findings::{REQUEST, of_size, sizes};
use crate::format::Unit;
use crate::judge::places::count_of;
use crate::show::columns::{Column, Sheet, title};
use crate::show::figures::{Figure, Table};
use crate::show::over::{self, Axes};
use crate::summary::{Group, Metric, Summary};

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
            let mut methods = over::methods(groups);
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
