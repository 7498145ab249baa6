//! Rules on the records of `replay`: published claims, findings, and reasons for the verdict.

use super::{FAST, ID, RECORDED, metric_of};
use crate::judge::places::Records;
use crate::judge::reason::{Evidence, Reason, Rule, Workload, reason};
use crate::judge::{Finding, Kind, best_pair, compare, keys, on, or_refused, shown};
use crate::record::WarningKind;
use crate::summary::{Family, Group, Metric, Summary};

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

// Rules of `replay`: the recorded accesses through a map against explicit I/O and buffered calls.

/// Adds the findings that the records of `replay` support.
pub(super) fn find(summary: &Summary<'_>, all: &mut Vec<Finding>) {
    for (variant, target) in summary.places(ID) {
        let groups = summary.at(ID, variant, target);
        let metric = metric_of(variant);
        not_kept(&groups, target, all);
        for (other, rule) in [
            (Family::is_explicit as fn(Family) -> bool, "recorded-against-explicit"),
            (|family| family == Family::Buffered, "recorded-against-buffered"),
        ] {
            let Some((map, calls)) = pair(&groups, other, metric) else { continue };
            compared((map, calls), (metric, rule), target, all);
            compared((map, calls), (Metric::CpuPerOp, "recorded-cpu"), target, all);
        }
    }
}

/// The map and the method of other families that are compared: of all pairs under equal conditions the one with the best
/// figure.
fn pair<'g, 'a>(
    groups: &[&'g Group<'a>],
    other: fn(Family) -> bool,
    metric: Metric,
) -> Option<(&'g Group<'a>, &'g Group<'a>)> {
    let of = |wanted: &dyn Fn(Family) -> bool| -> Vec<&'g Group<'a>> {
        groups.iter().copied().filter(|group| wanted(group.family())).collect()
    };
    best_pair(&of(&|family| family == Family::Mapped), &of(&other), metric, &[])
}

/// The quantity of a metric, in words.
fn quantity(metric: Metric) -> &'static str {
    match metric {
        Metric::OpsPerS => "the rate of the recorded reads and writes",
        Metric::CpuPerOp => "the CPU time of a recorded read or write",
        _ => "the p99 of the recorded accesses, each from the time when it was due,",
    }
}

fn compared(
    (map, calls): (&Group<'_>, &Group<'_>),
    (metric, rule): (Metric, &'static str),
    target: &str,
    all: &mut Vec<Finding>,
) {
    let Some(comparison) = or_refused(compare(map, calls, metric), all) else { return };
    let (a, b) = (shown(comparison.a, metric.unit()), shown(comparison.b, metric.unit()));
    let is_main = rule == "recorded-against-explicit";
    let what = if map.spec.variant == FAST { "rate" } else { "p99 from the recorded times" };
    all.push(Finding {
        rule,
        rule_text: "median of the repeats through the better map over the other side's better method: of all pairs with equally many \
            requests in flight the one with the best figure, so that the choice favours no side; a method that did not keep the recorded pace has no \
            latency from the due times and is in no pair",
        text: format!(
            "{}{}{} is {a} through {} and {b} with {}: {}.",
            on(target),
            comparison.caveat(),
            quantity(metric),
            map.label(),
            calls.label(),
            comparison.show(),
        ),
        key_figure: is_main.then(|| comparison.key_figure(&format!("{what}: {a} against {b}"))),
        ..comparison.finding()
    });
}

/// Names the methods that did not keep the recorded pace: they have no latency from the due times, and enter no ratio of it.
fn not_kept(groups: &[&Group<'_>], target: &str, all: &mut Vec<Finding>) {
    let late = |group: &&&Group<'_>| {
        let warned = |trial: &&crate::record::Trial| {
            trial.outcome.warnings.iter().any(|warning| warning.kind == Some(WarningKind::RateNotKept))
        };
        group.good.iter().any(warned)
    };
    let late: Vec<&Group<'_>> = groups.iter().filter(late).copied().collect();
    if late.is_empty() {
        return;
    }
    let labels: Vec<String> = late.iter().map(|group| group.label()).collect();
    all.push(Finding {
        rule: "recorded-pace-not-kept",
        rule_text: "a method that has not started every access at the end of the recorded time and as long again (a second at least) has no \
            latency from the due times",
        experiment: Some(ID),
        p: None,
        kind: Kind::Warning,
        text: format!("{}the recorded pace is too fast for: {}.", on(target), labels.join("; ")),
        trials: keys(&late),
        key_figure: None,
    });
}
