//! What the report shows of `load` whatever the figures: question, method and limits, published figures; and its charts and tables.

use super::super::of_size;
use super::rules::{HELD, from_device};
use super::{COLD, CYCLIC, DATA, ID, LOAD_READ, LOAD_TOUCH};
use crate::experiment::Texts;
use crate::format::{Unit, bytes};
use crate::judge::places::{count_of, values_of};
use crate::show::columns::{Column, Sheet, measured, title};
use crate::show::figures::{Figure, Table, rates};
use crate::show::literature::{LiteratureTable, Source, row};
use crate::show::over::{self, Axes};
use crate::summary::{Group, Metric, Summary, target_title};

/// What the report says of the experiment whatever the figures.
pub(super) const TEXTS: Texts = Texts {
    question: "How does a large file come into memory fastest, and what if it does not fit?",
    main_figure: "time to load a cold file, fastest map ÷ fastest other",
    procedure: "One thread loads a file of one piece, as the weights of a model, and checks a word of each page. Once, cold and warm: the time from the \
     first call to the last checked page, mapping and allocating included; the file fits in memory. WILLNEED and POPULATE_READ (as the flag MAP_POPULATE) are one call for the \
     whole file. Read calls and direct reads are of 1 MiB, the latter eight at a time on a ring; the memory behind them is the process's own, in pages of \
     4 KiB, for direct reads also in huge pages. Direct reads take the data from the device in both. Cyclic: the file is read from front to back over and over, within a memory limit, after one pass before the clock; a word of each cache line is used. WILLNEED asks \
     for eight blocks of 1 MiB ahead, and the ring has eight in flight. The method that keeps a part has as much of the file in its own memory as half of the limit \
     allows, and reads the rest past the page cache.",
    change: &[
        "Several processes that load the same file: a map and the page cache hold it once for all of them.",
        "A faster device, or a striped one: then one thread that copies or faults is the limit.",
        "Large folios: a fault then maps many pages, and a touched map is as fast as a populated one.",
        "Only a part of the file is used: a map reads that part.",
    ],
};

static LLAMA: Source = Source {
    cite: "llama.cpp, issue 14396, 2025",
    title: "Loading of a model with a map and without",
    machine: "Machine not stated",
    how: "one load of a model from a cold file, as stated there",
};

/// Tables of published figures, which the report shows next to this machine's figures.
pub(super) static TABLES: &[LiteratureTable] = &[LiteratureTable {
    source: &LLAMA,
    variant: COLD,
    devices: 1,
    title: "Time to load a model",
    metric: Metric::Seconds,
    unit: Unit::Seconds,
    columns: &["time"],
    rows: &[row("with mmap", &LOAD_TOUCH, &[33.7], ""), row("without mmap", &LOAD_READ, &[14.3], "")],
    remarks: &[
        "The model of the source is many times larger than the lab's file: compare the ratio, not the times.",
        "Pull request 7420 of the same project reports loads that are 3 to 6 times faster by O_DIRECT into huge pages.",
    ],
}];

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
        for group in of_size(groups, DATA, size) {
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
            let own = of_size(&cycle, DATA, size);
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
