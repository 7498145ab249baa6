//! What the report shows of `engine` whatever the figures: question, method and limits, published figures; and its charts and tables.

use super::rules::{Line, lines};
use super::works::{COMMIT, GROWTH, TICKER, row_of};
use super::{ID, IDLE_EXECUTOR, data_title};
use crate::experiment::Texts;
use crate::experiment::{Section, TargetView};
use crate::format::{Unit, digits};
use crate::methods;
use crate::show::columns::{Column, Sheet};
use crate::show::figures::{Figure, Table, costs, latencies, rates};
use crate::show::literature::{LiteratureTable, REDB, row};
use crate::summary::{Group, Metric, Summary, is_plain};

/// What the report says of the experiment whatever the figures.
pub(super) const TEXTS: Texts = Texts {
    question: "How fast is the engine, beside the raw device and beside LMDB and redb?",
    main_figure: "gets by 64 tasks beyond memory, engine ÷ raw device",
    procedure: "Each work is measured for the engine and, in the same round, for the raw device: a ring or pread pool on the engine's own \
     file or on one beside it. LMDB, and the other databases that were compiled in, do the same work with the same entries. Keys have 16 bytes and do not \
     compress, nor do values; every answer is checked whole while it is timed. Out of core, process and page cache together have the memory of one \
     cgroup, and the engine's cache lies within it; inner pages are in memory before the clock starts, and before gets by \
     many threads or zipfian ones each database has answered as many of them as its memory holds twice. Every trial is a separate process, and \
     one database at a time lies on the disk: trials that only read share it, one that writes begins with a fresh one. Durable commits and batches \
     are on the disk when they return; the mixes commit deferred. Where the files of a random load, or of data mostly deleted, are \
     measured, the engine is told to make them short, which it does by itself ten seconds after the last commit. A ratio is the engine's median over the other's of the same run.",
    change: &[
        "A larger cache, or data that fits: then the processor decides, and no longer the device.",
        "A faster device: the share of the software in each read grows.",
        "Skewed keys: uniform ones, as here, make the cache as useless as it can be.",
        "Other threads: gets in memory are measured with one and two, tasks on one executor thread.",
        "More CPUs: the executor, the database's own threads and the kernel's share them.",
    ],
};

/// Tables of published figures, which the report shows next to this machine's figures.
pub(super) static TABLES: &[LiteratureTable] = &[LiteratureTable {
    source: &REDB,
    variant: COMMIT[0],
    devices: 1,
    title: "Durable puts of one writer (\"individual writes\": 1,000 commits of one entry)",
    metric: Metric::OpsPerS,
    unit: Unit::PerSecond,
    columns: &["commits per second"],
    rows: &[
        row("redb", &methods::REDB, &[1000.0 / 0.920], "920 ms"),
        row("LMDB", &methods::LMDB, &[1000.0 / 1.598], "1,598 ms"),
    ],
    remarks: &[
        "A consumer drive without a capacitor: the cost of a sync decides, not the store. Here the raw device stands beside the engine's commits.",
        "Rivals in the same class of durability and the same memory are compared by `nofault lab engines`.",
    ],
}];

// Figures of `engine`: a table of all results against the aims, then for each row the rates, the costs and the
// latencies behind it.

/// Draws the tables that stand above the charts: all results, costs and sizes, settings.
pub(super) fn overview(summary: &Summary<'_>) -> Vec<Figure> {
    let lines = lines(summary);
    if lines.is_empty() {
        return Vec::new();
    }
    [Some(results(&lines)), behind(&lines), settings(summary)].into_iter().flatten().collect()
}

fn results(lines: &[Line<'_, '_>]) -> Figure {
    let mut table = Table::new(&["work", "nofault", "beside", "its figure", "ratio", "aim"]);
    table.rows = lines.iter().flat_map(Line::cells).map(Vec::from).collect();
    Figure {
        title: "All results, beside their baselines of the same run".into(),
        lead: "Medians, and the largest distance of a repeat from each. The aim is the project's: of the figure itself, or of its ratio to the one \
               beside it: ✓ met, ✗ missed, ? where the repeats lie on both sides of it or there is only one."
            .into(),
        legend: Vec::new(),
        svg: String::new(),
        table, ..Figure::default()
    }
}

/// Draws a table of the costs and sizes behind the results, such as reads for each get; `None` without any.
fn behind(lines: &[Line<'_, '_>]) -> Option<Figure> {
    let mut table = Table::new(&["work", "costs and sizes"]);
    for line in lines.iter().filter(|line| line.quantity.name.is_empty()) {
        let more = more(line.own);
        if !more.is_empty() {
            table.rows.push(vec![line.short_title(), more]);
        }
    }
    (!table.rows.is_empty()).then(|| Figure {
        title: "Behind the figures".into(),
        lead: "Medians of the repeats; sizes of files at the end of the first.".into(),
        legend: Vec::new(),
        svg: String::new(),
        table,
        ..Figure::default()
    })
}

/// Lists the costs and sizes that a group's records contain, in words.
fn more(group: &Group<'_>) -> String {
    let figure = |name: &'static str| group.spread(Metric::Figure(name)).map(|spread| spread.median);
    let mut said = Vec::new();
    said.extend(figure("reads_per_get").map(|reads| format!("{} reads a get", digits(reads))));
    said.extend(
        figure("commits_per_log_write").map(|commits| format!("{} commits a write of the log", digits(commits))),
    );
    said.extend(figure("pages_read").map(|pages| format!("{pages:.0} pages read")));
    said.extend(figure("live_log_bytes").map(|bytes| format!("{} of log", crate::format::bytes(bytes as u64))));
    if group.basis.metric == Metric::BytesPerS {
        let cpu = group.spread(Metric::CpuPerGb).map(|spread| spread.median);
        said.extend(cpu.map(|cpu| format!("{} of CPU a GB", Unit::Seconds.show(cpu))));
    }
    said.extend(group.good.first().and_then(|trial| trial.outcome.texts.get("files").cloned()));
    said.join("; ")
}

/// Draws a table of each store's settings and remaining inequalities, as its trials recorded them.
fn settings(summary: &Summary<'_>) -> Option<Figure> {
    let mut table = Table::new(&["store", "settings", "unequal"]);
    for group in summary.of_experiment(ID) {
        let title = group.title();
        let known = table.rows.iter().any(|row| row.first() == Some(&title));
        let Some(trial) = group.good.first().filter(|_| !known) else { continue };
        let Some(unequal) = trial.outcome.texts.get("unequal") else { continue };
        table.rows.push(vec![title, trial.outcome.settings_in_words(), unequal.clone()]);
    }
    (!table.rows.is_empty()).then(|| Figure {
        title: "Settings".into(),
        lead: "Read back where the store can tell.".into(),
        legend: Vec::new(),
        svg: String::new(),
        table,
        ..Figure::default()
    })
}

/// Draws the charts of one row on one set of data.
pub(super) fn figures(section: &Section<'_, '_>) -> Vec<Figure> {
    let Some(row) = row_of(section.variant) else { return Vec::new() };
    let title = format!("{}, {}", row.title, data_title(section.target));
    let groups = section.by_family();
    let working: Vec<&Group<'_>> = groups.iter().copied().filter(|group| group.spec.method != IDLE_EXECUTOR).collect();
    let mut figures = Vec::new();
    for quantity in row.quantities {
        figures.extend(match quantity.metric {
            // A single number needs no chart: the table has it.
            Metric::SpaceRatio | Metric::WriteAmplification | Metric::Figure(_) => None,
            Metric::CpuPerOp => {
                let plain: Vec<&Group<'_>> =
                    working.iter().copied().filter(|group| is_plain(&group.spec.params)).collect();
                costs(&plain, &title, Metric::CpuPerOp, "CPU time per operation")
            }
            Metric::Latency(TICKER, _) => latencies(&groups, &title, TICKER, "tick of a timer beside it"),
            metric => rates(&working, &title, metric, axis(metric)),
        });
    }
    if !row.fixed && row.quantities.iter().all(|quantity| quantity.metric != Metric::Figure(GROWTH)) {
        figures.extend(latencies(&working, &title, "op", "operation"));
    }
    figures
}

fn axis(metric: Metric) -> &'static str {
    match metric {
        Metric::BytesPerS => "bytes per second",
        Metric::Seconds => "time",
        _ => "operations per second",
    }
}

/// Builds one table for all sets of data; it is shown with the first set.
pub(super) fn sheets(place: &TargetView<'_, '_>) -> Vec<Sheet> {
    let first = place.summary.of_experiment(ID).next();
    if first.is_none_or(|group| group.spec.target.label != place.target) {
        return Vec::new();
    }
    vec![Sheet::new(columns(place.summary)).with_below(below(place.summary))]
}

/// Builds the columns of the table. Only the first row of a line shows the line's title and figure.
fn columns(summary: &Summary<'_>) -> Vec<Column> {
    let rows = lines(summary).into_iter().flat_map(|line| {
        line.cells().into_iter().enumerate().map(|(at, mut cells)| {
            cells.iter_mut().take(if at > 0 { 2 } else { 0 }).for_each(String::clear);
            cells
        })
    });
    let rows: Vec<[String; 6]> = rows.collect();
    let heads = [ID.name(), "nofault", "beside", "its figure", "ratio", "aim"];
    let column = |(at, head): (usize, &&str)| Column::new(head, rows.iter().map(|row| row[at].clone()).collect());
    heads.iter().enumerate().map(column).collect()
}

/// Lists the inequalities between stores that the trials recorded, for the text below the table.
fn below(summary: &Summary<'_>) -> String {
    let mut said: Vec<String> = Vec::new();
    for group in summary.of_experiment(ID) {
        let texts = group.good.iter().filter_map(|trial| trial.outcome.texts.get("unequal"));
        for text in texts.filter(|text| !text.is_empty()) {
            if !said.contains(text) {
                said.push(text.clone());
            }
        }
    }
    said.iter().fold(String::new(), |text, line| text + &format!(" {line}\n"))
}
