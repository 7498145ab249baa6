//! Rules that compare the engine's own pool with the raw ways to read: the cost of pool, tree and checksums above the
//! device, and the remaining gap to the map.

use super::paging::{Hint, of_family};
use super::{Comparison, Finding, best, best_pair, compare, on, or_refused, paging, shown};
use crate::format::Unit;
use crate::record::ExperimentId;
use crate::summary::{Family, Group, Metric, Summary};

/// Compares the rates of the engine's pool with the other methods at each place where an experiment measured both.
pub(crate) fn rates(
    summary: &Summary<'_>,
    experiment: ExperimentId,
    (hint, metric): (Hint, Metric),
    all: &mut Vec<Finding>,
) {
    for (variant, target) in summary.places(experiment) {
        rates_at(&summary.at(experiment, variant, target), target, (hint, metric), all);
    }
}

fn rates_at(groups: &[&Group<'_>], target: &str, (hint, metric): (Hint, Metric), all: &mut Vec<Finding>) {
    let pools: Vec<&Group<'_>> = of_family(groups, |family| family == Family::Pool).collect();
    let others = [
        (of_family(groups, Family::is_explicit).collect(), "raw explicit I/O", "pool-against-raw"),
        (paging::valid_maps(groups, hint), "mmap", "pool-against-mapped"),
    ];
    let verb = if metric == Metric::BytesPerS { "scans at" } else { "reads" };
    for (others, who, rule) in others {
        let pair = best_pair(&pools, &others, metric, &[]);
        let pair = pair.or_else(|| Some((best(pools.iter().copied(), metric)?, best(others, metric)?)));
        let Some((pool, other)) = pair else { continue };
        let Some(comparison) = or_refused(compare(pool, other, metric), all) else { continue };
        let cpu = if metric == Metric::BytesPerS { Metric::CpuPerGb } else { Metric::CpuPerOp };
        let of_what = if metric == Metric::BytesPerS { "GB" } else { "read" };
        let cpu = compare(pool, other, cpu).map_or(String::new(), |cpu: Comparison<'_>| {
            let (a, b) = (shown(cpu.a, Unit::Seconds), shown(cpu.b, Unit::Seconds));
            format!(", at {a} of CPU a {of_what} against {b}")
        });
        all.push(Finding {
            rule,
            rule_text: "median rate of the engine's fastest method over the fastest raw O_DIRECT one's, and of the fastest mapped one, on \
                the same target and under equal conditions. A read through the engine descends a B+tree, verifies a checksum when the page comes from the disk, and copies \
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
