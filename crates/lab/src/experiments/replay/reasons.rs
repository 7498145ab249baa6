//! Reasons for and against a map that the records of `replay` give: about the user's own program.

use super::findings::pair;
use super::{FAST, ID, RECORDED};
use crate::judge::places::Records;
use crate::judge::reason::{Evidence, Reason, Rule, Workload, reason};
use crate::summary::{Family, Metric};

/// The rules of the verdict for which `replay` gives evidence, each with the function that finds the evidence in the
/// records.
pub(super) static EVIDENCE: &[Evidence] =
    &[Evidence::of(Rule::Stalls, latencies), Evidence::of(Rule::Throughput, rates)];

/// The latency of the recorded accesses, from the time when each was due.
fn latencies(records: &Records<'_>, _: &Workload) -> Vec<Reason> {
    let words = "p99 of the recorded program's accesses, from when each was due";
    of_variant(records, RECORDED, &[("no stalls", Metric::Latency("open_loop", 990), words)])
}

/// The rate of the recorded accesses and their CPU time.
fn rates(records: &Records<'_>, _: &Workload) -> Vec<Reason> {
    let cpu = "CPU time of a read or write of the recorded program";
    let mut reasons = of_variant(
        records,
        FAST,
        &[
            ("throughput", Metric::OpsPerS, "recorded program's reads and writes"),
            ("throughput", Metric::CpuPerOp, cpu),
        ],
    );
    // At the recorded pace all methods have the same rate, and only its cost tells them apart.
    reasons.extend(of_variant(records, RECORDED, &[("throughput", Metric::CpuPerOp, cpu)]));
    reasons
}

fn of_variant(records: &Records<'_>, variant: &str, metrics: &[(&'static str, Metric, &str)]) -> Vec<Reason> {
    let mut reasons = Vec::new();
    for (_, target) in records.summary.places(ID).into_iter().filter(|place| place.0 == variant) {
        let groups = records.summary.at(ID, variant, target);
        // The pair is chosen by the first metric, and the others are shown of the same two methods.
        let Some((_, first, _)) = metrics.first() else { continue };
        let Some((map, calls)) = pair(&groups, Family::is_explicit, *first) else { continue };
        reasons.extend(metrics.iter().filter_map(|(rule, metric, what)| reason(rule, map, calls, *metric, what)));
    }
    reasons
}
