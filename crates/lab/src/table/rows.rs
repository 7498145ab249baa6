//! The tables of the terminal's summary. Rows are contenders at their best setting; columns that do not fit are left out
//! from the right, as a wrapped row is harder to read than a missing figure.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

use super::engines;
use crate::experiment::{errors, safety};
use crate::findings::best;
use crate::findings::faults::{outcome_of, short_fate, store_title};
use crate::findings::stalls::price;
use crate::format::{Unit, digits};
use crate::record::file::RecordFile;
use crate::record::{CacheState, ExperimentId};
use crate::summary::{Family, Group, Metric, Spread, Summary, contender_title, fio_of, is_plain, target_title};

/// A header and a figure for each row; empty where there is none.
pub(super) struct Column {
    header: String,
    cells: Vec<String>,
}

impl Column {
    pub(super) fn new(header: &str, cells: Vec<String>) -> Self {
        Self { header: header.into(), cells }
    }

    fn width(&self) -> usize {
        self.cells.iter().chain([&self.header]).map(|text| text.chars().count()).max().unwrap_or(0)
    }
}

/// All tables, each followed by an empty line. Columns that say the same of every row are left out.
pub(super) fn tables(file: &RecordFile, summary: &Summary<'_>, width: usize) -> String {
    let mut text = String::new();
    for experiment in ExperimentId::ALL {
        let places = summary.places(experiment);
        let mut targets: Vec<&str> = Vec::new();
        for (_, target) in &places {
            if !targets.contains(target) {
                targets.push(target);
            }
        }
        for target in targets {
            if experiment == ExperimentId::Safety {
                let groups = summary.at(experiment, safety::COMMITS, target);
                let _ = writeln!(text, "{}\n", drawn(super::safety::columns(&groups), width));
                continue;
            }
            // Its cells differ in kind: the claims themselves are listed instead.
            if experiment == ExperimentId::Claims {
                continue;
            }
            let variants: Vec<&str> = places.iter().filter(|place| place.1 == target).map(|place| place.0).collect();
            let title = format!("{experiment}, {}", target_title(target));
            if experiment == ExperimentId::Async {
                // The source's sequential variant is in the report: read-ahead decides it.
                let shown = variants.iter().find(|variant| **variant == "random-touch").or(variants.first());
                if let Some(variant) = shown {
                    let columns = async_columns(&summary.at(experiment, variant, target), &title);
                    let _ = writeln!(text, "{}\n", drawn(columns, width));
                }
                continue;
            }
            if experiment == ExperimentId::Translate {
                let _ = writeln!(text, "{}\n", drawn(translate_columns(summary, target), width));
                continue;
            }
            if experiment == ExperimentId::Eviction {
                let _ = writeln!(text, "{}\n", drawn(eviction_columns(summary, &variants, target, &title), width));
                continue;
            }
            if experiment == ExperimentId::Stalls {
                let groups = variants.iter().flat_map(|variant| chosen(summary.at(experiment, variant, target)));
                let columns = stall_columns(&groups.collect::<Vec<_>>(), &title);
                let _ = writeln!(text, "{}\n", drawn(columns, width));
                continue;
            }
            let variants = if experiment == ExperimentId::Errors {
                if let Some(columns) = fault_columns(summary, target, &title) {
                    let _ = writeln!(text, "{}\n", drawn(columns, width));
                }
                variants.into_iter().filter(|variant| *variant == errors::CHECKSUM_COST).collect()
            } else {
                variants
            };
            if variants.is_empty() {
                continue;
            }
            if experiment == ExperimentId::Engines {
                let _ = writeln!(text, "{}", drawn(engines::columns(summary, target, &title), width));
                text.push_str(&engines::not_built(file));
                text.push('\n');
                continue;
            }
            let parts = variants.iter().map(|variant| (*variant, chosen(summary.at(experiment, variant, target))));
            let columns = rate_columns(experiment, &parts.collect::<Vec<_>>(), &title);
            let _ = writeln!(text, "{}\n", drawn(columns, width));
        }
    }
    text
}

/// Of each contender its best setting of threads and depth, mapped ones first and fio last; what else tells cells apart
/// keeps its row.
fn chosen<'g, 'a>(groups: Vec<&'g Group<'a>>) -> Vec<&'g Group<'a>> {
    let mut kept: Vec<&Group<'_>> = Vec::new();
    for group in groups {
        let same = |other: &&mut &'g Group<'a>| {
            other.spec.contender == group.spec.contender && other.spec.params.extra == group.spec.params.extra
        };
        match kept.iter_mut().find(same) {
            Some(other) => {
                if let Some(better) = best([*other, group], Metric::primary(group.spec.experiment)) {
                    *other = better;
                }
            }
            None => kept.push(group),
        }
    }
    kept.sort_by_key(|group| group.family());
    kept
}

fn rate_columns(experiment: ExperimentId, parts: &[(&str, Vec<&Group<'_>>)], title: &str) -> Vec<Column> {
    let primary = Metric::primary(experiment);
    let (rate, cpu_metric, cpu) = match experiment {
        ExperimentId::Scan => ("bytes/s", Metric::CpuPerGb, "CPU/GB"),
        ExperimentId::Random => ("reads/s", Metric::CpuPerOp, "CPU/read"),
        _ => ("ops/s", Metric::CpuPerOp, "CPU/op"),
    };
    let rows: Vec<(&str, &Group<'_>)> =
        parts.iter().flat_map(|(variant, groups)| groups.iter().map(move |group| (*variant, *group))).collect();
    let mut ratios = Vec::new();
    let mut by_fio = Vec::new();
    for (variant, groups) in parts {
        // At a given rate there is nothing to compare in rates.
        let explicit = groups.iter().copied().filter(|group| group.family().is_explicit() && *variant != "open-loop");
        let reference = best(explicit, primary);
        ratios.extend(groups.iter().map(|group| ratio(group, reference, primary)));
        by_fio.extend(groups.iter().map(|own| {
            let ratio = fio_of(own, groups).and_then(|fio| own.spread(primary)?.over(&fio.spread(primary)?));
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
    // At a fixed rate the time counts from when a read was due.
    let p99 = each(&|group| {
        let due = group.spread(Metric::Latency("open_loop", 990));
        due.or(group.spread(Metric::Latency("op", 990))).map_or(String::new(), |s| Unit::Seconds.show(s.median))
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

/// How long an access holds the thread, and what is paid for that.
fn stall_columns(groups: &[&Group<'_>], title: &str) -> Vec<Column> {
    let each = |show: &dyn Fn(&Group<'_>) -> String| groups.iter().map(|group| show(group)).collect::<Vec<_>>();
    let op = |per_mille| {
        let metric = Metric::Latency("op", per_mille);
        each(&|group| group.spread(metric).map_or(String::new(), |spread| metric.unit().show(spread.median)))
    };
    vec![
        Column::new(title, each(&|group| format!("{}: {}", group.spec.variant, group.label()))),
        Column::new("p99.9", each(&|group| measured(group, Metric::Latency("op", 999)))),
        Column::new("longest", op(1000)),
        Column::new("accesses/s", each(&|group| measured(group, Metric::OpsPerS))),
        Column::new("p50", op(500)),
        Column::new("what it takes", each(&price)),
    ]
}

/// What each store made of each fault, in a word or two; the report says more.
fn fault_columns(summary: &Summary<'_>, target: &str, title: &str) -> Option<Vec<Column>> {
    let at = |fault: &str| summary.at(ExperimentId::Errors, fault, target);
    let mut stores: Vec<&str> = Vec::new();
    for group in errors::FAULTS.into_iter().flat_map(at) {
        if !stores.contains(&group.spec.contender.as_str()) {
            stores.push(&group.spec.contender);
        }
    }
    let mut columns = vec![Column::new(title, stores.iter().map(|store| store_title(store)).collect())];
    for fault in errors::FAULTS {
        let groups = at(fault);
        let fate_of = |store: &&str| {
            let group = groups.iter().find(|group| group.spec.contender == **store)?;
            outcome_of(group).map(short_fate)
        };
        columns.push(Column::new(fault, stores.iter().map(|store| fate_of(store).unwrap_or_default()).collect()));
    }
    (!stores.is_empty()).then_some(columns)
}

/// Cold and warm side by side, against the tasks that await reads.
fn async_columns(groups: &[&Group<'_>], title: &str) -> Vec<Column> {
    let metric = Metric::Seconds;
    let mut labels: Vec<String> = Vec::new();
    for group in groups.iter().filter(|group| is_plain(&group.spec.params)) {
        if !labels.contains(&group.label()) {
            labels.push(group.label());
        }
    }
    let mut columns = vec![Column::new(title, labels.clone())];
    let at = |label: &str, cache| groups.iter().copied().find(|g| g.label() == label && g.spec.cache == cache);
    for cache in [CacheState::Cold, CacheState::Warm] {
        let reference = groups.iter().copied().find(|g| g.spec.contender == "async-read" && g.spec.cache == cache);
        let each = |show: &dyn Fn(&Group<'_>) -> String| {
            labels.iter().map(|label| at(label, cache).map_or(String::new(), show)).collect::<Vec<_>>()
        };
        let name = cache.to_string();
        columns.push(Column::new(&name, each(&|group| measured(group, metric))));
        columns.push(Column::new("ratio", each(&|group| ratio(group, reference, metric))));
    }
    for (header, per_mille) in [("timer p99", 990), ("worst", 1000)] {
        let metric = Metric::Latency("ticker", per_mille);
        let late = |label: &String| {
            let spread = at(label, CacheState::Cold)?.spread(metric)?;
            Some(metric.unit().show(spread.median))
        };
        columns.push(Column::new(header, labels.iter().map(|label| late(label).unwrap_or_default()).collect()));
    }
    columns
}

/// What reclaim does to each contender, and what it costs; every setting has its row.
fn eviction_columns(summary: &Summary<'_>, variants: &[&str], target: &str, title: &str) -> Vec<Column> {
    let at = |variant: &&str| {
        let mut groups = summary.at(ExperimentId::Eviction, variant, target);
        groups.sort_by_key(|group| group.family());
        groups.into_iter().map(|group| (variant.replace('-', " by "), group)).collect::<Vec<_>>()
    };
    let rows: Vec<(String, &Group<'_>)> = variants.iter().flat_map(at).collect();
    let each = |show: &dyn Fn(&Group<'_>) -> String| rows.iter().map(|(_, group)| show(group)).collect::<Vec<_>>();
    let metric = |metric: Metric| {
        each(&|group| group.spread(metric).map_or(String::new(), |spread| metric.unit().show(spread.median)))
    };
    let named = rows.iter().map(|(variant, group)| format!("{variant}: {}", group.label()));
    let scans = rows.iter().map(|(variant, _)| variant.starts_with("scan"));
    let rates = scans
        .zip(&rows)
        .map(|(scan, (_, group))| measured(group, if scan { Metric::BytesPerS } else { Metric::OpsPerS }));
    vec![
        Column::new(title, named.collect()),
        Column::new("rate", rates.collect()),
        Column::new(
            "CPU/page",
            each(&|group| {
                let each_page = group.spread(Metric::CpuPerGb).map(|spread| spread.median * 4096.0 / 1e9);
                each_page.map_or(String::new(), |seconds| Unit::Seconds.show(seconds))
            }),
        ),
        Column::new("TLB IPIs", metric(Metric::ShootdownsPerS)),
        Column::new("kswapd", metric(Metric::KswapdShare)),
        Column::new("system/GB", metric(Metric::SystemCpuPerGb)),
        Column::new("evicted", metric(Metric::EvictedPerS)),
        Column::new("waiting", metric(Metric::MemoryPressure)),
    ]
}

/// A row a contender and thread count, a column a variant and working set: the time of one operation.
fn translate_columns(summary: &Summary<'_>, target: &str) -> Vec<Column> {
    let experiment = ExperimentId::Translate;
    let mut rows: Vec<(&str, u32)> = Vec::new();
    let mut headers: Vec<(&str, u64)> = Vec::new();
    for group in summary.of_experiment(experiment) {
        let spec = group.spec;
        let (row, header) =
            ((spec.contender.as_str(), spec.params.threads), (spec.variant.as_str(), spec.target.data_bytes));
        if !rows.contains(&row) {
            rows.push(row);
        }
        if !headers.contains(&header) {
            headers.push(header);
        }
    }
    headers.sort_unstable();
    rows.sort_by_key(|(_, threads)| *threads);
    let named = rows.iter().map(|(contender, threads)| match threads {
        1 => contender_title(contender),
        threads => format!("{} · {threads} threads", contender_title(contender)),
    });
    let mut columns =
        vec![Column::new(&format!("{experiment}, {}, time of one", target_title(target)), named.collect())];
    for (variant, size) in headers {
        let groups = summary.at(experiment, variant, target);
        let cells = rows.iter().map(|(contender, threads)| {
            let same = |group: &&&Group<'_>| {
                let spec = group.spec;
                spec.contender == *contender && spec.params.threads == *threads && spec.target.data_bytes == size
            };
            groups.iter().find(same).map_or(String::new(), |group| measured(group, Metric::TimePerOp))
        });
        columns.push(Column::new(&format!("{variant}, {}", crate::format::bytes(size)), cells.collect()));
    }
    columns
}

/// `60.5 K/s ±5 %`: the median and how far a repeat lies from it at most.
fn measured(group: &Group<'_>, metric: Metric) -> String {
    let Some(spread) = group.spread(metric) else {
        return format!("worthless: {}", group.worthless.first().map_or("no figure", |(_, why)| why.as_str()));
    };
    let shown = metric.unit().show(spread.median);
    if spread.count < 2 || spread.median <= 0.0 {
        return shown;
    }
    let off = (spread.max - spread.median).max(spread.median - spread.min) / spread.median * 100.0;
    format!("{shown} ±{off:.0} %")
}

/// `0.90 (0.75–1.10)` of the reference.
fn ratio(group: &Group<'_>, reference: Option<&Group<'_>>, metric: Metric) -> String {
    let Some(reference) = reference else { return String::new() };
    if std::ptr::eq(group, reference) {
        return "reference".into();
    }
    let both = group.spread(metric).and_then(|own| own.over(&reference.spread(metric)?));
    match both {
        Some(Spread { median, count: ..2, .. }) => short(median),
        Some(Spread { median, min, max, .. }) => format!("{} ({}–{})", short(median), short(min), short(max)),
        None => String::new(),
    }
}

/// Two digits are enough beside a spread.
fn short(ratio: f64) -> String {
    match ratio {
        10.0.. => format!("{ratio:.0}"),
        0.1..10.0 => format!("{ratio:.2}"),
        0.01..0.1 => format!("{ratio:.3}"),
        _ => format!("{ratio:.4}"),
    }
}

/// The table with as many columns as fit.
fn drawn(columns: Vec<Column>, width: usize) -> Table {
    let told = |column: &Column| column.cells.iter().any(|text| text.chars().any(|c| c != '1'));
    let mut columns: Vec<Column> = columns
        .into_iter()
        .enumerate()
        .filter(|(at, column)| *at < 2 || told(column))
        .map(|(_, column)| column)
        .collect();
    while columns.len() > 3 && columns.iter().map(|column| column.width() + 2).sum::<usize>() > width {
        columns.pop();
    }
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
