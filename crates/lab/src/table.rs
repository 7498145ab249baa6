//! The summary for a terminal, and the same as JSON for programs.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;

use crate::findings::{Finding, Kind, findings};
use crate::format::{self, Unit};
use crate::record::file::RecordFile;
use crate::record::{CellSpec, ExperimentId, MachineInfo};
use crate::summary::{Metric, Spread, Summary, target_title};

/// A table for each experiment and target, then the findings, no line wider than `width` columns (at least 40). Plain
/// text, no colours; ends with a line break.
pub fn summary_table(file: &RecordFile, width: u16) -> String {
    let width = width.max(40);
    let summary = Summary::of(file);
    let mut text = String::new();
    for experiment in ExperimentId::ALL {
        for (variant, target) in summary.places(experiment) {
            let groups = summary.at(experiment, variant, target);
            let place = if variant.is_empty() { String::new() } else { format!(" {variant}") };
            let _ = writeln!(text, "{experiment}{place}, {}", target_title(target));
            let _ = writeln!(text, "{}\n", place_table(experiment, &groups, width));
        }
    }
    let mut findings = findings(file, &summary);
    if summary.groups.is_empty() {
        text.push_str("Nothing was measured.\n");
    }
    // Doubts last, where the eye rests.
    findings.sort_by_key(|finding| finding.kind == Kind::Warning);
    for finding in &findings {
        let mark = match finding.kind {
            Kind::Difference => "=>",
            Kind::Fact => " -",
            Kind::Inconclusive => " ?",
            Kind::Warning => " !",
        };
        for (index, line) in wrap(&finding.text, usize::from(width) - 3).iter().enumerate() {
            let _ = writeln!(text, "{} {line}", if index == 0 { mark } else { "  " });
        }
    }
    for skip in &file.skips {
        let target = if skip.target.is_empty() { "" } else { " on " };
        let who = if skip.contender.is_empty() { "everything" } else { &skip.contender };
        let line = format!("not measured: {} {who}{target}{}: {}", skip.experiment, skip.target, skip.reason);
        wrap(&line, usize::from(width)).iter().for_each(|line| {
            let _ = writeln!(text, "{line}");
        });
    }
    text
}

fn place_table(experiment: ExperimentId, groups: &[&crate::summary::Group<'_>], width: u16) -> Table {
    let primary = Metric::primary(experiment);
    let (rate, cpu) = match experiment {
        ExperimentId::Random => ("reads/s", Some((Metric::CpuPerOp, "CPU/read"))),
        ExperimentId::Scan => ("bytes/s", Some((Metric::CpuPerGb, "CPU/GB"))),
        ExperimentId::Async => ("time", None),
        ExperimentId::Access => ("ops/s", Some((Metric::CpuPerOp, "CPU/op"))),
    };
    let late = Metric::Latency("ticker", 1000);
    let extra: Vec<(Metric, &str)> = [
        cpu,
        Some((Metric::Latency("op", 990), "p99")),
        Some((Metric::Latency("sync", 990), "sync p99")),
        Some((Metric::ShootdownsPerS, "shootdowns")),
        Some((late, "timer late")),
    ]
    .into_iter()
    .flatten()
    .filter(|(metric, _)| groups.iter().any(|group| group.spread(*metric).is_some()))
    .collect();

    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    let mut header = vec!["contender".to_owned(), rate.into(), "spread".into()];
    header.extend(extra.iter().map(|(_, name)| (*name).to_owned()));
    let columns = header.len();
    table.set_header(header);
    for group in groups {
        let cache = if experiment == ExperimentId::Async { format!(", {}", group.spec.cache) } else { String::new() };
        let mut row = vec![format!("{}{cache}", group.label())];
        match group.spread(primary) {
            Some(spread) => row.extend([primary.unit().show(spread.median), relative(&spread)]),
            None => {
                let why = group.worthless.first().map_or("no figure", |(_, why)| why.as_str());
                row.extend(["worthless".into(), why.to_owned()]);
            }
        }
        row.extend(
            extra.iter().map(|(metric, _)| {
                group.spread(*metric).map_or("–".into(), |spread| metric.unit().show(spread.median))
            }),
        );
        table.add_row(row);
    }
    for index in 1..columns {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// The spread around the median: `-3 +2 %`; `1 run` for a single value.
fn relative(spread: &Spread) -> String {
    if spread.count < 2 {
        return "1 run".into();
    }
    let part = |value: f64| if spread.median == 0.0 { 0.0 } else { (value / spread.median - 1.0) * 100.0 };
    format!("-{:.0} +{:.0} %", part(spread.min).abs(), part(spread.max))
}

fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().map_or(0, |line| line.chars().count());
        match lines.last_mut() {
            Some(last) if line == 0 => last.push_str(word),
            Some(last) if line + 1 + word.chars().count() <= width => {
                last.push(' ');
                last.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// The summary for programs.
#[derive(Debug, Serialize)]
struct Json<'a> {
    schema: u32,
    started: String,
    complete: bool,
    incomplete_reason: String,
    machine: &'a MachineInfo,
    biases: &'a [String],
    results: Vec<JsonResult<'a>>,
    findings: Vec<Finding>,
    skips: &'a [crate::record::Skip],
}

#[derive(Debug, Serialize)]
struct JsonResult<'a> {
    key: &'a str,
    spec: &'a CellSpec,
    runs: usize,
    /// Repeats without a figure: which, and why.
    worthless: &'a [(u32, String)],
    partial: usize,
    /// Seconds, per second, bytes per second, percent or a ratio, by the metric's name.
    metrics: std::collections::BTreeMap<&'static str, JsonSpread>,
}

#[derive(Debug, Serialize)]
struct JsonSpread {
    median: f64,
    min: f64,
    max: f64,
}

/// The same as [`summary_table`] as one JSON object: results by key with median and range, findings, skips.
///
/// # Errors
/// When a figure cannot be written as JSON, which no record that was read can cause.
pub fn summary_json(file: &RecordFile) -> serde_json::Result<String> {
    let summary = Summary::of(file);
    let metrics = [
        ("ops_per_s", Metric::OpsPerS),
        ("bytes_per_s", Metric::BytesPerS),
        ("seconds", Metric::Seconds),
        ("cpu_s_per_op", Metric::CpuPerOp),
        ("cpu_s_per_gb", Metric::CpuPerGb),
        ("tlb_shootdowns_per_s", Metric::ShootdownsPerS),
        ("tlb_shootdowns_per_evicted_page", Metric::ShootdownsPerEvicted),
        ("kswapd_percent", Metric::KswapdShare),
        ("device_bytes_per_work_byte", Metric::Amplification),
        ("latency_s_p50", Metric::Latency("op", 500)),
        ("latency_s_p99", Metric::Latency("op", 990)),
        ("latency_s_p999", Metric::Latency("op", 999)),
        ("sync_s_p99", Metric::Latency("sync", 990)),
        ("open_loop_s_p99", Metric::Latency("open_loop", 990)),
        ("timer_late_s_max", Metric::Latency("ticker", 1000)),
    ];
    let results = summary.groups.iter().map(|group| JsonResult {
        key: &group.key,
        spec: group.spec,
        runs: group.good.len(),
        worthless: &group.worthless,
        partial: group.partial,
        metrics: metrics
            .iter()
            .filter_map(|(name, metric)| {
                let Spread { median, min, max, .. } = group.spread(*metric)?;
                Some((*name, JsonSpread { median, min, max }))
            })
            .collect(),
    });
    let json = Json {
        schema: file.run.schema,
        started: format::date(file.run.started_unix_ms),
        complete: file.is_complete(),
        incomplete_reason: file.incomplete_reason(),
        machine: &file.run.machine,
        biases: &file.run.biases,
        results: results.collect(),
        findings: findings(file, &summary),
        skips: &file.skips,
    };
    serde_json::to_string_pretty(&json)
}

/// A comparison for a terminal, no line wider than `width` columns (at least 40).
pub fn comparison_table(comparison: &crate::compare::Comparison, width: u16) -> String {
    let width = width.max(40);
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    table.set_header(["cell", "before", "after", "after/before", "verdict"]);
    for row in &comparison.rows {
        table.add_row([
            row.key.clone(),
            row.unit.show(row.before.median),
            row.unit.show(row.after.median),
            Unit::Ratio.show(row.ratio.median),
            row.verdict.name().to_owned(),
        ]);
    }
    let mut text = format!("{table}\n");
    let lists = [
        ("only before", &comparison.only_before),
        ("only after", &comparison.only_after),
        ("warning", &comparison.warnings),
    ];
    for line in lists.iter().flat_map(|(name, list)| list.iter().map(move |item| format!("{name}: {item}"))) {
        wrap(&line, usize::from(width)).iter().for_each(|line| {
            let _ = writeln!(text, "{line}");
        });
    }
    text
}
