//! Rules that compare the engine's own pool with the raw ways to read: the cost of pool, tree and checksums above the
//! device, and the remaining gap to the map.

use super::paging::of_family;
use super::{Finding, best, compare, on, shown};
use crate::format::Unit;
use crate::record::ExperimentId;
use crate::summary::{Family, Group, Metric, Summary};

/// Compares the rates of the engine's pool with the other methods at each place where an experiment measured both.
pub(crate) fn rates(summary: &Summary<'_>, experiment: ExperimentId, metric: Metric, all: &mut Vec<Finding>) {
    for (variant, target) in summary.places(experiment) {
        rates_at(&summary.at(experiment, variant, target), target, metric, all);
    }
}

fn rates_at(groups: &[&Group<'_>], target: &str, metric: Metric, all: &mut Vec<Finding>) {
    let Some(pool) = best(of_family(groups, |family| family == Family::Pool), metric) else { return };
    let others = [
        (best(of_family(groups, Family::is_explicit), metric), "raw explicit I/O", "pool-against-raw"),
        (best(of_family(groups, |family| family == Family::Mapped), metric), "mmap at its best", "pool-against-mapped"),
    ];
    let verb = if metric == Metric::BytesPerS { "scans at" } else { "reads" };
    for (other, who, rule) in others.into_iter().filter_map(|(other, who, rule)| Some((other?, who, rule))) {
        let Some(comparison) = compare(pool, other, metric) else { continue };
        let cpu = if metric == Metric::BytesPerS { Metric::CpuPerGb } else { Metric::CpuPerOp };
        let of_what = if metric == Metric::BytesPerS { "GB" } else { "read" };
        let cpu = compare(pool, other, cpu).map_or(String::new(), |cpu| {
            let (a, b) = (shown(cpu.a, Unit::Seconds), shown(cpu.b, Unit::Seconds));
            format!(", at {a} of CPU a {of_what} against {b}")
        });
        all.push(Finding {
            rule,
            rule_text: "median rate of the engine's fastest method over that of the fastest raw O_DIRECT one, and of the fastest mapped one, on \
                the same target. A read through the engine descends a B+tree, verifies a checksum when the page comes from the disk, and copies \
                its value out; its pool is smaller than the memory limit, which page cache may fill",
            text: format!(
                "{}{}the engine's pool ({}) {verb} {}, {who} ({}) {}: {} of it{cpu}.",
                on(target),
                comparison.caveat(),
                pool.label(),
                shown(comparison.a, metric.unit()),
                other.label(),
                shown(comparison.b, metric.unit()),
                comparison.show(),
            ),
            ..comparison.finding()
        });
    }
}
