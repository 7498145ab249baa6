//! The figures of `rss`, bars of memory, and the tables of the terminal.

use super::findings::killed;
use super::pressure::NEIGHBOUR;
use super::reads::{ANONYMOUS, CHARGED, PSS, RSS, WORKING_SET};
use super::{DATA, ID, PRESSURE};
use crate::judge::places::{values_of, with_value};
use crate::show::charts::Rows;
use crate::show::columns::{Column, Sheet, measured};
use crate::show::figures::{Figure, Table, bar_row};
use crate::summary::{Group, Metric, Summary, target_title};

/// The kernel's counts, each with its name in tables.
const COUNTS: [(&str, Metric); 5] = [
    ("RSS", Metric::Bytes(RSS)),
    ("PSS", Metric::Bytes(PSS)),
    ("own memory", Metric::Bytes(ANONYMOUS)),
    ("cgroup", Metric::Bytes(CHARGED)),
    ("working set", Metric::Bytes(WORKING_SET)),
];

pub(super) fn figures(groups: &[&Group<'_>], variant: &str, place: &str) -> Vec<Figure> {
    match variant {
        PRESSURE => {
            let lead =
                "Bar: median of the memory that the neighbour had when the kernel killed a process. Dots: the repeats.";
            let axis = "memory of the neighbour";
            bars(
                groups,
                Metric::Bytes(NEIGHBOUR),
                axis,
                format!("Memory runs out: {place}"),
                lead,
                pressure_table(groups),
            )
        }
        _ => {
            let lead = "Bar: median of the largest RSS of a run. Dots: the repeats. The table has the other counts of the kernel.";
            bars(groups, Metric::Bytes(RSS), "RSS", format!("Resident memory: {place}"), lead, memory_table(groups))
        }
    }
}

fn bars(groups: &[&Group<'_>], metric: Metric, axis: &str, title: String, lead: &str, table: Table) -> Vec<Figure> {
    let rows: Vec<_> = groups.iter().filter_map(|group| bar_row(group, metric)).collect();
    if rows.is_empty() {
        return Vec::new();
    }
    let chart = Rows { axis: axis.into(), unit: metric.unit(), log: false, rows };
    vec![Figure { svg: chart.draw(&title), title, lead: lead.into(), table, ..Figure::default() }]
}

fn show(group: &Group<'_>, metric: Metric) -> String {
    group.spread(metric).map_or("–".into(), |spread| metric.unit().show(spread.median))
}

fn memory_table(groups: &[&Group<'_>]) -> Table {
    let mut table = Table::new(&["method", "RSS", "PSS", "own memory", "cgroup", "working set", "reads per second"]);
    for group in groups {
        let counts = COUNTS.map(|(_, metric)| show(group, metric));
        table.rows.push([group.label()].into_iter().chain(counts).chain([show(group, Metric::OpsPerS)]).collect());
    }
    table
}

fn pressure_table(groups: &[&Group<'_>]) -> Table {
    let mut table = Table::new(&["method", "killed", "memory of the neighbour", "spread"]);
    for group in groups {
        let metric = Metric::Bytes(NEIGHBOUR);
        let spread = group.spread(metric).map_or("–".into(), |spread| spread.show(metric.unit()));
        table.rows.push(vec![group.label(), killed(group), show(group, metric), spread]);
    }
    table
}

/// Makes the tables of the terminal: the kernel's counts by size of the data, and the process killed when memory runs out.
pub(super) fn sheets(summary: &Summary<'_>, target: &str, variants: &[&str]) -> Vec<Sheet> {
    let mut sheets = Vec::new();
    for variant in variants {
        let groups = summary.at(ID, variant, target);
        let each = |show: &dyn Fn(&Group<'_>) -> String| groups.iter().map(|group| show(group)).collect::<Vec<_>>();
        let names = || each(&|group| group.label());
        let head = format!("{ID}, {}, {variant}", target_title(target));
        let mut columns = vec![Column::new(&head, names())];
        if *variant == PRESSURE {
            columns.push(Column::new("killed", each(&killed)));
            columns.push(Column::new("neighbour had", each(&|group| measured(group, Metric::Bytes(NEIGHBOUR)))));
        } else {
            let sizes = values_of(&groups, DATA).into_iter();
            let sorted: Vec<&Group<'_>> = sizes.flat_map(|size| with_value(&groups, DATA, size)).collect();
            let each = |show: &dyn Fn(&Group<'_>) -> String| sorted.iter().map(|group| show(group)).collect::<Vec<_>>();
            columns = vec![Column::new(&head, each(&|group| group.label()))];
            columns.extend(COUNTS.map(|(name, metric)| Column::new(name, each(&|group| show(group, metric)))));
            columns.push(Column::new("reads/s", each(&|group| show(group, Metric::OpsPerS))));
        }
        sheets.push(Sheet::new(columns));
    }
    sheets
}
