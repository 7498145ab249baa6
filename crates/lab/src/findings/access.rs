//! Rules for `access`: what one thread gets, what batching adds, what a sync costs, and what closed loops hide.

use super::{Finding, KeyFigure, Kind, best, compare, keys, on, shown};
use crate::format::{Unit, digits};
use crate::record::ExperimentId;
use crate::summary::{Family, Group, Metric, Summary};

/// The rules of `access`.
pub(super) fn find(summary: &Summary<'_>, all: &mut Vec<Finding>) {
    for (variant, target) in summary.places(ExperimentId::Access) {
        let groups = summary.at(ExperimentId::Access, variant, target);
        if variant.contains("open") {
            open_loop(summary, &groups, target, all);
            continue;
        }
        one_at_a_time(&groups, variant, target, all);
        batching(&groups, variant, target, all);
        syncs(&groups, variant, target, all);
    }
}

/// What is done, as a word in a sentence.
fn work(variant: &str) -> &'static str {
    match variant {
        variant if variant.contains("sync") => "durable writes",
        variant if variant.contains("write") => "overwrites",
        _ => "reads",
    }
}

fn one_at_a_time(groups: &[&Group<'_>], variant: &str, target: &str, all: &mut Vec<Finding>) {
    let single = |wanted: fn(Family) -> bool| {
        let alone = groups.iter().copied().filter(move |group| group.spec.params.depth <= 1 && wanted(group.family()));
        best(alone, Metric::OpsPerS)
    };
    let (Some(map), Some(direct)) =
        (single(|family| family == Family::Mapped), single(|family| family == Family::Direct))
    else {
        return;
    };
    let Some(comparison) = compare(map, direct, Metric::OpsPerS) else { return };
    all.push(Finding {
        rule: "one-at-a-time",
        rule_text: "median rate of the fastest mapped contender over that of the fastest synchronous O_DIRECT contender, one thread",
        experiment: Some(ExperimentId::Access),
        kind: comparison.kind,
        text: format!(
            "{}{}one thread gets {} {} through a mapping ({}) and {} with O_DIRECT calls: {}.",
            on(target),
            comparison.doubt(),
            shown(comparison.a, Unit::PerSecond),
            work(variant),
            map.label(),
            shown(comparison.b, Unit::PerSecond),
            comparison.show(),
        ),
        cells: keys(&[map, direct]),
        key_figure: None,
    });
}

fn batching(groups: &[&Group<'_>], variant: &str, target: &str, all: &mut Vec<Finding>) {
    let rings = || groups.iter().copied().filter(|group| group.family() == Family::Ring);
    let Some(batched) = best(rings().filter(|group| group.spec.params.depth > 1), Metric::OpsPerS) else { return };
    // Against the best that one request at a time gives, whatever asks for it.
    let Some(alone) = best(groups.iter().copied().filter(|group| group.spec.params.depth <= 1), Metric::OpsPerS) else {
        return;
    };
    let Some(comparison) = compare(batched, alone, Metric::OpsPerS) else { return };
    all.push(Finding {
        rule: "batching",
        rule_text: "median rate of the fastest io_uring contender with several requests in flight over the fastest contender with one",
        experiment: Some(ExperimentId::Access),
        kind: comparison.kind,
        text: format!(
            "{}{}batches change what one thread gets: {} {} with {}, {} at best with one request at a time ({}): {}.",
            on(target),
            comparison.doubt(),
            shown(comparison.a, Unit::PerSecond),
            work(variant),
            batched.label(),
            shown(comparison.b, Unit::PerSecond),
            alone.label(),
            comparison.show(),
        ),
        cells: keys(&[batched, alone]),
        key_figure: Some(KeyFigure {
            label: format!("{} in batches over one at a time, one thread", work(variant)),
            value: Unit::Ratio.show(comparison.ratio.median),
            detail: format!("{} against {}", shown(comparison.a, Unit::PerSecond), shown(comparison.b, Unit::PerSecond)),
        }),
    });
}

fn syncs(groups: &[&Group<'_>], variant: &str, target: &str, all: &mut Vec<Finding>) {
    let timed = groups.iter().filter_map(|group| {
        Some((*group, group.spread(Metric::Latency("sync", 500))?, group.spread(Metric::Latency("sync", 990))?))
    });
    let mut timed: Vec<_> = timed.collect();
    timed.sort_by(|a, b| a.2.median.total_cmp(&b.2.median));
    let (Some(first), Some(last)) = (timed.first(), timed.last()) else { return };
    if timed.len() < 2 {
        return;
    }
    let tail = |entry: &(&Group<'_>, crate::summary::Spread, crate::summary::Spread)| {
        if entry.1.median > 0.0 {
            format!("p99 {} times its median", digits(entry.2.median / entry.1.median))
        } else {
            String::new()
        }
    };
    all.push(Finding {
        rule: "sync-tail",
        rule_text: "99th percentile of the time of one sync (msync, fdatasync or a durable write), median over repeats; smallest and \
            largest of the contenders",
        experiment: Some(ExperimentId::Access),
        kind: if first.2.overlaps(&last.2) || first.2.count < 2 { Kind::Inconclusive } else { Kind::Difference },
        text: format!(
            "{}{}: the p99 of a sync lies between {} ({}; {}) and {} ({}; {}).",
            on(target),
            work(variant),
            Unit::Seconds.show(first.2.median),
            first.0.label(),
            tail(first),
            Unit::Seconds.show(last.2.median),
            last.0.label(),
            tail(last),
        ),
        cells: keys(&[first.0, last.0]),
        key_figure: None,
    });
}

/// Coordinated omission: the same contender, asked at a fixed rate and timed from when each request was due.
fn open_loop(summary: &Summary<'_>, groups: &[&Group<'_>], target: &str, all: &mut Vec<Finding>) {
    let name = "open_loop";
    for open in groups.iter().filter(|group| group.spread(Metric::Latency(name, 990)).is_some()) {
        let same = |group: &&Group<'_>| {
            let (a, b) = (&group.spec.params, &open.spec.params);
            matches!(group.spec.variant.as_str(), "" | "read")
                && group.spec.target.label == target
                && group.spec.contender == open.spec.contender
                && (a.threads, a.depth) == (b.threads, b.depth)
        };
        // Without a closed loop beside it: the same requests, timed from when they started.
        let closed = summary.of_experiment(ExperimentId::Access).find(same).unwrap_or(open);
        let (Some(a), Some(b)) = (open.spread(Metric::Latency(name, 990)), closed.spread(Metric::Latency("op", 990)))
        else {
            continue;
        };
        let Some(ratio) = a.over(&b) else { continue };
        let clear = a.count >= 2 && b.count >= 2 && !a.overlaps(&b);
        all.push(Finding {
            rule: "coordinated-omission",
            rule_text: "p99 with requests at a fixed rate, timed from when each was due, over the p99 of the closed loop, which asks again \
                only after an answer and so never sees the queue",
            experiment: Some(ExperimentId::Access),
            kind: if clear { Kind::Difference } else { Kind::Inconclusive },
            text: format!(
                "{}{}{}: p99 {} at a fixed rate against {} in a closed loop: {}.",
                on(target),
                if clear { "" } else { "inconclusive: the spreads overlap or there was one run – " },
                open.label(),
                Unit::Seconds.show(a.median),
                Unit::Seconds.show(b.median),
                Unit::Ratio.show(ratio.median),
            ),
            cells: keys(&[open, closed]),
            key_figure: None,
        });
    }
}
