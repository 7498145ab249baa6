//! Figures of `eviction`: the cost of each mechanism, and each way to read under each way of reclaim.

use super::is_scan;
use crate::record::TargetKind;
use crate::show::figures::{Figure, costs, rates, time_series};
use crate::summary::{Group, Metric};

/// Draws the figures of one variant: for single mechanisms the time of an operation, otherwise rate, system CPU time
/// and rate over time.
pub(super) fn figures(groups: &[&Group<'_>], variant: &str, target: &str, place: &str) -> Vec<Figure> {
    if TargetKind::of(target) == TargetKind::Memory {
        let time = rates(groups, place, Metric::TimePerOp, "time of one operation");
        return time.into_iter().chain(costs(groups, place, Metric::CpuPerOp, "CPU time per page")).collect();
    }
    let (rate, axis) = match is_scan(variant) {
        true => (Metric::BytesPerS, "bytes per second"),
        false => (Metric::OpsPerS, "reads per second"),
    };
    let figures = [
        rates(groups, place, rate, axis),
        costs(groups, place, Metric::SystemCpuPerGb, "system CPU time per GB"),
        time_series(groups, place, rate, axis),
    ];
    figures.into_iter().flatten().collect()
}
