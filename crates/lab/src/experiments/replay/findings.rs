//! Rules of `replay`: the recorded accesses through a map against explicit I/O and buffered calls.

use super::{FAST, ID, metric_of};
use crate::judge::{Finding, Kind, best_pair, compare, keys, on, or_refused, shown};
use crate::record::WarningKind;
use crate::summary::{Family, Group, Metric, Summary};

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
pub(super) fn pair<'g, 'a>(
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
pub(super) fn quantity(metric: Metric) -> &'static str {
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
