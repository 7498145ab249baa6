//! Figures of `engine`: a table of all results against the aims, then for each row the rates, the costs and the
//! latencies behind it.

use super::lines::{Line, lines};
use super::trials::data_title;
use super::works::{GROWTH, TICKER, row_of};
use super::{ID, IDLE_EXECUTOR};
use crate::experiment::Section;
use crate::format::{Unit, digits};
use crate::show::figures::{Figure, Table, costs, latencies, rates};
use crate::summary::{Group, Metric, Summary, is_plain};

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
