//! What the report shows of `rss` whatever the figures: question, method and limits, published figures; and its charts and tables.

use super::rules::killed;
use super::trial::{ANONYMOUS, CHARGED, NEIGHBOUR, PSS, RSS, WORKING_SET};
use super::{DATA, ID, PRESSURE, READS};
use crate::experiment::Texts;
use crate::format::Unit;
use crate::judge::places::{values_of, with_value};
use crate::methods;
use crate::show::charts::Rows;
use crate::show::columns::{Column, Sheet, measured};
use crate::show::figures::{Figure, Table, bar_row};
use crate::show::literature::{LiteratureTable, Source, row};
use crate::summary::{Group, Metric, Summary, target_title};

/// What the report says of the experiment whatever the figures.
pub(super) const TEXTS: Texts = Texts {
    question: "How much memory does each way of reading show, and which process is killed when memory runs out?",
    main_figure: "resident memory with the largest data, mmap ÷ O_DIRECT",
    procedure: "Threads read random pages of 4 KiB of the same data under the same limit: through a map, by read calls through the page cache, past it, \
     and through the engine's pool, whose size follows the limit. Memory settles first by each method's own reads. Every tenth of a second the kernel's counts of the process are read, RSS and \
     PSS, and its cgroup's, all that is charged and the part that is not inactive page cache (the working set of Kubernetes); the largest reading counts. RSS and PSS \
     contain some twenty megabytes of the measuring program. Pressure: in a cgroup of the lab's own one process reads in the same way while a neighbour allocates \
     memory and writes to it, until the kernel kills one of the two.",
    change: &[
        "Several processes that map the same file: RSS counts its pages for each of them, PSS divides them.",
        "Another oom_score_adj: the kernel's choice between processes follows it before it follows their size.",
        "A pool that is small beside the limit, or that gives memory back under pressure: the engine's keeps what it was given.",
        "A map with huge pages, or one that is locked: its pages cannot be taken back one by one, or at all.",
    ],
};

static POLARS: Source = Source {
    cite: "polars, pull request 29091, 2026",
    title: "Reading parquet files by read calls in place of a map",
    machine: "Machine not stated",
    how: "largest RSS of one query, as stated there",
};

/// Tables of published figures, which the report shows next to this machine's figures.
pub(super) static TABLES: &[LiteratureTable] = &[LiteratureTable {
    source: &POLARS,
    variant: READS,
    devices: 1,
    title: "Largest RSS",
    metric: Metric::Bytes(RSS),
    unit: Unit::Bytes,
    columns: &["RSS"],
    rows: &[
        row("mmap", &methods::MMAP_RANDOM, &[8.13e9], ""),
        row("read calls", &methods::PREAD_BUFFERED_RANDOM, &[2.43e9], ""),
    ],
    remarks: &[
        "The query of the source keeps decoded columns in memory in both cases; the lab's programs keep nothing.",
    ],
}];

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
