//! Rules for the engine's own pool beside the raw ways to read: what the pool, the tree and the checksums above the device cost, and
//! what is left of the gap to the map.

use super::{Finding, KeyFigure, Kind, best, compare, keys, on, shown};
use crate::format::Unit;
use crate::record::{CacheState, ExperimentId};
use crate::summary::{Family, Group, Metric, Summary};

/// The rules for `random`, `scan` and `async`.
pub(super) fn find(summary: &Summary<'_>, all: &mut Vec<Finding>) {
    for (experiment, metric) in [(ExperimentId::Random, Metric::OpsPerS), (ExperimentId::Scan, Metric::BytesPerS)] {
        for (variant, target) in summary.places(experiment) {
            rates(&summary.at(experiment, variant, target), target, metric, all);
        }
    }
    for (variant, target) in summary.places(ExperimentId::Async) {
        for cache in [CacheState::Cold, CacheState::Warm] {
            let groups = summary.at(ExperimentId::Async, variant, target);
            tasks(
                &groups.into_iter().filter(|group| group.spec.cache == cache).collect::<Vec<_>>(),
                target,
                cache,
                all,
            );
        }
    }
}

fn of_family<'g, 'a>(groups: &'g [&'g Group<'a>], wanted: fn(Family) -> bool) -> impl Iterator<Item = &'g Group<'a>> {
    groups.iter().copied().filter(move |group| wanted(group.family()))
}

fn rates(groups: &[&Group<'_>], target: &str, metric: Metric, all: &mut Vec<Finding>) {
    let Some(pool) = best(of_family(groups, |family| family == Family::Pool), metric) else { return };
    let others = [
        (best(of_family(groups, Family::is_explicit), metric), "raw explicit I/O"),
        (best(of_family(groups, |family| family == Family::Mapped), metric), "mmap at its best"),
    ];
    let verb = if metric == Metric::BytesPerS { "scans at" } else { "reads" };
    for (other, who) in others.into_iter().filter_map(|(other, who)| Some((other?, who))) {
        let Some(comparison) = compare(pool, other, metric) else { continue };
        let cpu = if metric == Metric::BytesPerS { Metric::CpuPerGb } else { Metric::CpuPerOp };
        let of_what = if metric == Metric::BytesPerS { "GB" } else { "read" };
        let cpu = compare(pool, other, cpu).map_or(String::new(), |cpu| {
            let (a, b) = (shown(cpu.a, Unit::Seconds), shown(cpu.b, Unit::Seconds));
            format!(", at {a} of CPU a {of_what} against {b}")
        });
        let against_raw = who.starts_with("raw");
        all.push(Finding {
            rule: if against_raw { "pool-against-raw" } else { "pool-against-mapped" },
            rule_text: "median rate of the engine's fastest contender over that of the fastest raw O_DIRECT one, and of the fastest mapped one, on \
                the same target. A read through the engine descends a B+tree, verifies a checksum when the page comes from the disk, and copies \
                its value out; its pool is smaller than the memory limit, which page cache may fill",
            experiment: Some(pool.spec.experiment),
            kind: comparison.kind,
            text: format!(
                "{}{}the engine's pool ({}) {verb} {}, {who} ({}) {}: {} of it{cpu}.",
                on(target),
                comparison.doubt(),
                pool.label(),
                shown(comparison.a, metric.unit()),
                other.label(),
                shown(comparison.b, metric.unit()),
                comparison.show(),
            ),
            cells: keys(&[pool, other]),
            key_figure: None,
        });
    }
}

/// The engine's tasks against tasks over a map, on the same executor.
fn tasks(groups: &[&Group<'_>], target: &str, cache: CacheState, all: &mut Vec<Finding>) {
    let find = |id: &str| groups.iter().find(|group| group.spec.contender == id);
    let (Some(pool), Some(map)) = (find("async-pool"), find("async-mmap")) else { return };
    let Some(comparison) = compare(pool, map, Metric::Seconds) else { return };
    let late = Metric::Latency("ticker", 990);
    let timer = compare(pool, map, late).map_or(String::new(), |timer| {
        let (a, b) = (shown(timer.a, Unit::Seconds), shown(timer.b, Unit::Seconds));
        format!("; a 1 ms timer on the executor fires {a} late at p99 beside it, {b} beside the map")
    });
    all.push(Finding {
        rule: "async-pool-against-map",
        rule_text: "time of the tasks that await the engine over that of tasks that touch a mapping, on one single-threaded executor, same \
            touches; warm means in the pool, or in the page cache",
        experiment: Some(ExperimentId::Async),
        kind: comparison.kind,
        text: format!(
            "{}{cache}: {}tasks that await the engine's pool take {}, tasks over a mapping {}: {}{timer}.",
            on(target),
            comparison.doubt(),
            shown(comparison.a, Unit::Seconds),
            shown(comparison.b, Unit::Seconds),
            comparison.show(),
        ),
        cells: keys(&[pool, map]),
        key_figure: (cache == CacheState::Cold && comparison.kind == Kind::Difference).then(|| KeyFigure {
            label: "time of async reads, engine's pool ÷ mmap, cold".into(),
            value: Unit::Ratio.show(comparison.ratio.median),
            detail: format!("{} against {}", shown(comparison.a, Unit::Seconds), shown(comparison.b, Unit::Seconds)),
        }),
    });
}
