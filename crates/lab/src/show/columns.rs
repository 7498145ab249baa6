//! The columns of the terminal's tables. Rows are methods at their best setting; columns that do not fit are left out
//! from the right, as a wrapped row is harder to read than a missing figure, and are named below the table.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

use crate::format::{Unit, bytes, digits};
use crate::judge::{self, are_equal, best};
use crate::progress::wrapped;
use crate::record::ExperimentId;
use crate::summary::{Family, Group, Metric, Spread, Summary, fio_of, sizes_differ, target_title};

/// A column of the terminal's table: a header, and a text for each row; an empty text where a row has no figure.
pub(crate) struct Column {
    header: String,
    cells: Vec<String>,
}

impl Column {
    pub(crate) fn new(header: &str, cells: Vec<String>) -> Self {
        Self { header: header.into(), cells }
    }

    fn width(&self) -> usize {
        self.cells.iter().chain([&self.header]).map(|text| text.chars().count()).max().unwrap_or(0)
    }
}

/// Selects the best setting of threads and depth of each method, mapped methods first and fio last. Settings that
/// differ in other parameters keep a row each.
pub(crate) fn chosen<'g, 'a>(groups: Vec<&'g Group<'a>>) -> Vec<&'g Group<'a>> {
    let mut kept: Vec<&Group<'_>> = Vec::new();
    for group in groups {
        let same = |other: &&mut &'g Group<'a>| {
            other.spec.method == group.spec.method && other.spec.params.extra == group.spec.params.extra
        };
        match kept.iter_mut().find(same) {
            Some(other) => {
                if let Some(better) = best([*other, group], group.basis.metric) {
                    *other = better;
                }
            }
            None => kept.push(group),
        }
    }
    kept.sort_by_key(|group| group.family());
    kept
}

/// Headings of the columns with rates and with their CPU time.
pub(crate) struct Heads {
    /// Heading of the rate column: `reads/s`.
    pub(crate) rate: &'static str,
    /// The metric in the column of CPU time.
    pub(crate) cpu_metric: Metric,
    /// Heading of the column of CPU time: `CPU/read`.
    pub(crate) cpu: &'static str,
}

/// A table of the terminal, and the lines below it.
pub(crate) struct Sheet {
    columns: Vec<Column>,
    /// The lines below the table; empty without any.
    below: String,
    /// The result in a sentence, below the lines; empty for none.
    sentence: String,
}

impl Sheet {
    /// Creates a table with nothing below it.
    pub(crate) fn new(columns: Vec<Column>) -> Self {
        Self { columns, below: String::new(), sentence: String::new() }
    }

    /// Returns the table with these lines below it.
    pub(crate) fn with_below(self, below: String) -> Self {
        Self { below, ..self }
    }

    /// Returns the table with its result in a sentence, which is broken into lines as wide as the table may be.
    pub(crate) fn with_sentence(self, sentence: String) -> Self {
        Self { sentence, ..self }
    }

    /// Formats the table in at most `width` columns, followed by the names of the columns that do not fit and by an
    /// empty line.
    pub(crate) fn text(self, width: usize) -> String {
        let (columns, left_out) = fitting(self.columns, width);
        let named = match left_out.as_slice() {
            [] => String::new(),
            names => wrapped(" not shown for lack of width: ", &names.join(", "), width).join("\n") + "\n",
        };
        let sentence = match self.sentence.as_str() {
            "" => String::new(),
            sentence => wrapped("=> ", sentence, width).join("\n") + "\n",
        };
        format!("{}\n{named}{}{sentence}\n", drawn(&columns, width), self.below)
    }
}

/// The heading of a table: the experiment and the target.
pub(crate) fn title(experiment: ExperimentId, target: &str) -> String {
    format!("{experiment}, {}", target_title(target))
}

/// Makes the table of operations a second: a row for each method at its best setting.
pub(crate) fn operations(summary: &Summary<'_>, experiment: ExperimentId, target: &str, variants: &[&str]) -> Sheet {
    let heads = Heads { rate: "ops/s", cpu_metric: Metric::CpuPerOp, cpu: "CPU/op" };
    rated(summary, experiment, target, variants, &heads)
}

/// Makes the table of [`operations`] under other headings.
pub(crate) fn rated(
    summary: &Summary<'_>,
    experiment: ExperimentId,
    target: &str,
    variants: &[&str],
    heads: &Heads,
) -> Sheet {
    let all: Vec<Vec<&Group<'_>>> = variants.iter().map(|variant| summary.at(experiment, variant, target)).collect();
    let parts: Vec<_> = variants.iter().zip(&all).map(|(variant, groups)| (*variant, chosen(groups.clone()))).collect();
    Sheet::new(rate_columns(heads, &all, &parts, &title(experiment, target)))
}

/// The method that a row is compared with: the fastest of the lab's own O_DIRECT methods that was measured under the
/// row's conditions. Where operations start at a given rate, the measured rates are no result to compare.
fn reference_of<'g, 'a>(group: &Group<'_>, all: &[&'g Group<'a>], metric: Metric) -> Option<&'g Group<'a>> {
    let explicit = |other: &&Group<'_>| other.family().is_explicit() && !other.has_given_rate();
    best(all.iter().copied().filter(explicit).filter(|other| are_equal(group, other)), metric)
}

/// Makes the columns of rows in `parts`, which were chosen from `all`, part by part.
fn rate_columns(heads: &Heads, all: &[Vec<&Group<'_>>], parts: &[(&str, Vec<&Group<'_>>)], title: &str) -> Vec<Column> {
    let first = parts.iter().find_map(|(_, groups)| groups.first());
    let primary = first.map_or(Metric::OpsPerS, |group| group.basis.metric);
    let Heads { rate, cpu_metric, cpu } = *heads;
    let rows: Vec<(&str, &Group<'_>)> =
        parts.iter().flat_map(|(variant, groups)| groups.iter().map(move |group| (*variant, *group))).collect();
    let mut ratios = Vec::new();
    let mut by_fio = Vec::new();
    for (part, (_, groups)) in all.iter().zip(parts) {
        ratios.extend(groups.iter().map(|group| ratio(group, reference_of(group, part, primary), primary)));
        by_fio.extend(groups.iter().map(|own| {
            let ratio = fio_of(own, part).and_then(|fio| judge::ratio(own, fio, primary, &[]).ok());
            ratio.map_or(String::new(), |ratio| digits(ratio.median))
        }));
    }
    let named = |(variant, group): &(&str, &Group<'_>)| {
        if variant.is_empty() { group.label() } else { format!("{variant}: {}", group.label()) }
    };
    let each = |show: &dyn Fn(&Group<'_>) -> String| rows.iter().map(|(_, group)| show(group)).collect::<Vec<_>>();
    let metric = |metric: Metric| {
        each(&|group| group.spread(metric).map_or(String::new(), |spread| metric.unit().show(spread.median)))
    };
    // Where reads start at a given rate, their time counts from the moment when each was due. Latencies of operations of
    // different sizes are not comparable: each then says its size.
    let sized = sizes_differ(&rows.iter().map(|(_, group)| *group).collect::<Vec<_>>());
    let p99 = each(&|group| {
        let due = group.spread(Metric::Latency("open_loop", 990));
        due.or(group.spread(Metric::Latency("op", 990))).map_or(String::new(), |spread| {
            let size = if sized { format!(" / {}", bytes(group.spec.params.block_bytes)) } else { String::new() };
            format!("{}{size}", Unit::Seconds.show(spread.median))
        })
    });
    let extra = each(&|group| {
        let Some(spread) = group.spread(Metric::Amplification) else { return String::new() };
        if (0.9..=1.1).contains(&spread.median) { "1".into() } else { digits(spread.median) }
    });
    let per_interrupt = each(&|group| {
        let spread = group.spread(Metric::ShootdownsPerEvicted).filter(|_| group.family() == Family::Mapped);
        spread.filter(|spread| spread.median > 0.0).map_or(String::new(), |spread| digits(1.0 / spread.median))
    });
    vec![
        Column::new(title, rows.iter().map(named).collect()),
        Column::new(rate, each(&|group| measured(group, primary))),
        Column::new("ratio", ratios),
        Column::new("to fio", by_fio),
        Column::new(cpu, metric(cpu_metric)),
        Column::new("p99", p99),
        Column::new("sync p99", metric(Metric::Latency("sync", 990))),
        Column::new("TLB IPIs", metric(Metric::ShootdownsPerS)),
        Column::new("device/work", extra),
        Column::new("evicted/IPI", per_interrupt),
    ]
}

/// Formats a group's figure, `60.5 K/s ±5 %`: the median, and the largest distance of a repeat from it.
pub(crate) fn measured(group: &Group<'_>, metric: Metric) -> String {
    measured_in(group, metric, metric.unit())
}

/// Formats a group's figure as [`measured`], in another unit than the metric has by itself.
pub(crate) fn measured_in(group: &Group<'_>, metric: Metric, unit: Unit) -> String {
    let Some(spread) = group.spread(metric) else {
        return format!("worthless: {}", group.worthless.first().map_or("no figure", |(_, why)| why.as_str()));
    };
    let shown = unit.show(spread.median);
    if spread.count < 2 || spread.median <= 0.0 {
        return shown;
    }
    let off = (spread.max - spread.median).max(spread.median - spread.min) / spread.median * 100.0;
    format!("{shown} ±{off:.0} %")
}

/// Formats the ratio to a reference group with its range: `0.90 (0.75–1.10)`; empty where the two were not measured under
/// equal conditions.
pub(crate) fn ratio(group: &Group<'_>, reference: Option<&Group<'_>>, metric: Metric) -> String {
    let Some(reference) = reference else { return String::new() };
    if std::ptr::eq(group, reference) {
        return "reference".into();
    }
    match judge::ratio(group, reference, metric, &[]).ok() {
        Some(Spread { median, count: ..2, .. }) => short(median),
        Some(Spread { median, min, max, .. }) => format!("{} ({}–{})", short(median), short(min), short(max)),
        None => String::new(),
    }
}

/// Formats a ratio with two digits, which are enough next to a spread.
fn short(ratio: f64) -> String {
    match ratio {
        10.0.. => format!("{ratio:.0}"),
        0.1..10.0 => format!("{ratio:.2}"),
        0.01..0.1 => format!("{ratio:.3}"),
        _ => format!("{ratio:.4}"),
    }
}

/// Returns the columns that have a figure and fit in `width`, and the headers of those that do not fit.
fn fitting(columns: Vec<Column>, width: usize) -> (Vec<Column>, Vec<String>) {
    let told = |column: &Column| column.cells.iter().any(|text| text.chars().any(|c| c != '1'));
    let mut columns: Vec<Column> = columns
        .into_iter()
        .enumerate()
        .filter(|(at, column)| *at < 2 || told(column))
        .map(|(_, column)| column)
        .collect();
    let mut left_out = Vec::new();
    while columns.len() > 3 && columns.iter().map(|column| column.width() + 2).sum::<usize>() > width {
        left_out.extend(columns.pop().map(|column| column.header));
    }
    left_out.reverse();
    (columns, left_out)
}

fn drawn(columns: &[Column], width: usize) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(u16::try_from(width).unwrap_or(u16::MAX));
    table.set_header(columns.iter().map(|column| column.header.clone()));
    let row_count = columns.first().map_or(0, |column| column.cells.len());
    for row in 0..row_count {
        table.add_row(columns.iter().map(|column| column.cells.get(row).cloned().unwrap_or_default()));
    }
    for index in 1..columns.len() {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}
