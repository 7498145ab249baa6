//! The figures of `load`, times of one load and rates over the size of the data, and the tables of the terminal.

use super::findings::{HELD, from_device, of_size};
use super::{CYCLIC, DATA, ID};
use crate::format::bytes;
use crate::judge::places::{count_of, values_of};
use crate::show::columns::{Column, Sheet, measured, title};
use crate::show::figures::{Figure, Table, rates};
use crate::show::over::{self, Axes};
use crate::summary::{Group, Metric, Summary, target_title};

/// Memory that the process itself holds, and the page cache of the file, when it was loaded.
const OWN: Metric = Metric::Figure("own_bytes");
const CACHED: Metric = Metric::Figure("cached_bytes");

/// The panels of the figure over the size of the data.
const PANELS: [(&str, Metric); 2] =
    [("bytes per second", Metric::BytesPerS), ("bytes that the device reads for each", Metric::Amplification)];

pub(super) fn figures(groups: &[&Group<'_>], variant: &str, place: &str) -> Vec<Figure> {
    if variant == CYCLIC { cycle(groups, place) } else { once(groups, place) }
}

fn once(groups: &[&Group<'_>], place: &str) -> Vec<Figure> {
    let figure = rates(groups, place, Metric::Seconds, "time until the file is in memory");
    let lead = "Bar: median. Dots: the repeats. Shorter is faster. The table has the memory that holds the file then.";
    figure.map(|figure| Figure { lead: lead.into(), table: table(groups), ..figure }).into_iter().collect()
}

fn cycle(groups: &[&Group<'_>], place: &str) -> Vec<Figure> {
    let axes = Axes {
        axis: "size of the file, as a multiple of the memory",
        at: &|group| count_of(group, DATA),
        tick: &|size| format!("{size}×"),
        panels: &PANELS,
        // A file that fits is read from no device: zero has no place on a logarithmic axis.
        log: |metric| metric == Metric::BytesPerS,
    };
    let lead = "Medians of one thread that reads the file from front to back over and over.".into();
    over::figure(groups, &axes, format!("By size of the file: {place}"), lead, cycle_table(groups))
        .into_iter()
        .collect()
}

fn memory(group: &Group<'_>, metric: Metric) -> String {
    group.spread(metric).map_or("–".into(), |spread| bytes(spread.median as u64))
}

fn table(groups: &[&Group<'_>]) -> Table {
    let mut table = Table::new(&["method", "time", "spread", "own memory", "page cache", "both", "CPU per GB"]);
    for group in groups {
        let show =
            |metric: Metric| group.spread(metric).map_or("–".into(), |spread| metric.unit().show(spread.median));
        let spread = group.spread(Metric::Seconds).map_or("–".into(), |spread| spread.show(Metric::Seconds.unit()));
        let [own, cached, held] = [OWN, CACHED, HELD].map(|metric| memory(group, metric));
        table.rows.push(vec![group.label(), show(Metric::Seconds), spread, own, cached, held, show(Metric::CpuPerGb)]);
    }
    table
}

fn cycle_table(groups: &[&Group<'_>]) -> Table {
    let mut table = Table::new(&["method", "file/memory", "rate", "spread", "device/work", "CPU per GB"]);
    for size in values_of(groups, DATA) {
        for group in of_size(groups, size) {
            let show =
                |metric: Metric| group.spread(metric).map_or("–".into(), |spread| metric.unit().show(spread.median));
            let spread = group.primary().map_or("–".into(), |spread| spread.show(Metric::BytesPerS.unit()));
            let [rate, cpu] = [Metric::BytesPerS, Metric::CpuPerGb].map(show);
            table.rows.push(vec![group.title(), format!("{size}×"), rate, spread, from_device(group), cpu]);
        }
    }
    table
}

/// Makes the tables of the terminal: times of one load, and rates of reading again and again.
pub(super) fn sheets(summary: &Summary<'_>, target: &str, variants: &[&str]) -> Vec<Sheet> {
    let of = |variant: &'_ &str| summary.at(ID, variant, target);
    let once: Vec<(&str, Vec<&Group<'_>>)> =
        variants.iter().filter(|variant| **variant != CYCLIC).map(|variant| (*variant, of(variant))).collect();
    let rows: Vec<(&str, &Group<'_>)> =
        once.iter().flat_map(|(variant, groups)| groups.iter().map(move |group| (*variant, *group))).collect();
    let mut sheets = Vec::new();
    if !rows.is_empty() {
        let each = |show: &dyn Fn(&Group<'_>) -> String| rows.iter().map(|(_, group)| show(group)).collect::<Vec<_>>();
        let names = rows.iter().map(|(variant, group)| format!("{variant}: {}", group.label())).collect();
        sheets.push(Sheet::new(vec![
            Column::new(&title(ID, target), names),
            Column::new("time", each(&|group| measured(group, Metric::Seconds))),
            Column::new("own memory", each(&|group| memory(group, OWN))),
            Column::new("page cache", each(&|group| memory(group, CACHED))),
        ]));
    }
    let cycle = summary.at(ID, CYCLIC, target);
    if !cycle.is_empty() {
        let methods = over::methods(&cycle);
        let names = methods.iter().map(|method| method.title()).collect();
        let mut columns = vec![Column::new(&format!("{ID}, {}, again and again", target_title(target)), names)];
        for size in values_of(&cycle, DATA) {
            let own = of_size(&cycle, size);
            let cell = |method: &&Group<'_>| {
                let group = own.iter().copied().find(|group| group.spec.method == method.spec.method);
                group.map_or(String::new(), |group| {
                    format!("{} ({})", measured(group, Metric::BytesPerS), from_device(group))
                })
            };
            columns.push(Column::new(&format!("{size}× memory (device/work)"), methods.iter().map(cell).collect()));
        }
        sheets.push(Sheet::new(columns));
    }
    sheets
}
