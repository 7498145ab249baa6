//! The summary as one JSON object for programs.

use serde::Serialize;

use crate::format;
use crate::record::file::RecordFile;
use crate::record::{MachineInfo, TrialSpec};
use crate::report::claims::{Answer, answers};
use crate::report::findings::{Finding, MainFigure, findings, main_figures};
use crate::report::verdict::{Verdict, Workload, judge};
use crate::summary::{Metric, Spread, Summary};

/// The summary of a run as JSON, for programs.
#[derive(Debug, Serialize)]
struct Json<'a> {
    schema: u32,
    started: String,
    complete: bool,
    incomplete_reason: String,
    machine: &'a MachineInfo,
    biases: &'a [String],
    main_figures: Vec<MainFigure>,
    results: Vec<JsonResult<'a>>,
    findings: Vec<Finding>,
    claims: Vec<Answer>,
    verdict: Verdict,
    skips: &'a [crate::record::Skip],
}

#[derive(Debug, Serialize)]
struct JsonResult<'a> {
    key: &'a str,
    spec: &'a TrialSpec,
    runs: usize,
    /// Repeats without a figure: the number of each, and the reason.
    worthless: &'a [(u32, String)],
    partial: usize,
    /// Spreads by the metric's name, which gives the unit: seconds, per second, bytes per second, percent or a ratio.
    metrics: std::collections::BTreeMap<&'static str, JsonSpread>,
}

#[derive(Debug, Serialize)]
struct JsonSpread {
    median: f64,
    min: f64,
    max: f64,
}

/// Formats the content of [`super::summary_table`] as one JSON object: the main figure of each experiment, results by key with median and range, findings,
/// skips.
///
/// # Errors
/// When a figure cannot be written as JSON, which no record that was read can cause.
pub fn summary_json(file: &RecordFile) -> serde_json::Result<String> {
    let summary = Summary::of(file);
    let metrics = [
        ("ops_per_s", Metric::OpsPerS),
        ("bytes_per_s", Metric::BytesPerS),
        ("seconds", Metric::Seconds),
        ("time_s_per_op", Metric::TimePerOp),
        ("cpu_s_per_op", Metric::CpuPerOp),
        ("cpu_s_per_gb", Metric::CpuPerGb),
        ("tlb_shootdowns_per_s", Metric::ShootdownsPerS),
        ("tlb_shootdowns_per_evicted_page", Metric::ShootdownsPerEvicted),
        ("minor_faults_per_op", Metric::PerOp("minor_faults")),
        ("major_faults_per_op", Metric::PerOp("major_faults")),
        ("voluntary_switches_per_op", Metric::PerOp("voluntary_switches")),
        ("kswapd_percent", Metric::KswapdShare),
        ("system_cpu_s_per_gb", Metric::SystemCpuPerGb),
        ("evicted_pages_per_s", Metric::EvictedPerS),
        ("scanned_per_evicted", Metric::ScannedPerEvicted),
        ("waiting_for_memory_percent", Metric::MemoryPressure),
        ("device_bytes_per_work_byte", Metric::Amplification),
        ("latency_s_p50", Metric::Latency("op", 500)),
        ("latency_s_p99", Metric::Latency("op", 990)),
        ("latency_s_p999", Metric::Latency("op", 999)),
        ("sync_s_p99", Metric::Latency("sync", 990)),
        ("open_loop_s_p99", Metric::Latency("open_loop", 990)),
        ("timer_late_s_p99", Metric::Latency("ticker", 990)),
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
    let findings = findings(file, &summary);
    let json = Json {
        schema: file.run.schema,
        started: format::date(file.run.started_unix_ms),
        complete: file.is_complete(),
        incomplete_reason: file.incomplete_reason(),
        machine: &file.run.machine,
        biases: &file.run.biases,
        results: results.collect(),
        main_figures: main_figures(file, &summary, &findings),
        findings,
        claims: answers(file, &summary),
        verdict: judge(file, &summary, Workload::of_run(file)),
        skips: &file.skips,
    };
    serde_json::to_string_pretty(&json)
}
