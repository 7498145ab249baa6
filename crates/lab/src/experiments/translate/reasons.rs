//! Reasons for and against a map that the records of `translate` give.

use super::{ID, LOOKUP};
use crate::judge::best_pair;
use crate::judge::places::Records;
use crate::judge::reason::{Evidence, Reason, Rule, Workload, nearest, reason, threads};
use crate::summary::{Family, Group, Metric};

/// The rules of the verdict for which `translate` gives evidence, each with the function that finds the evidence in the
/// records.
pub(super) static EVIDENCE: &[Evidence] = &[Evidence::of(Rule::InMemory, lookups)];

/// Finds reasons for the verdict in lookups in the largest working set.
fn lookups(records: &Records<'_>, workload: &Workload) -> Vec<Reason> {
    let mut reasons = Vec::new();
    // No access waits for a device, so more threads than CPUs do as much work as one thread for each CPU.
    let wanted = workload.threads.map(|count| count.min(records.file.run.machine.cpu_count.max(1)));
    let lookups: Vec<&Group<'_>> = records.of(ID).filter(|group| group.spec.variant == LOOKUP).collect();
    let set = |group: &Group<'_>| {
        group.spec.params.extra.get("working_set").and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0)
    };
    let largest = lookups.iter().map(|group| set(group)).fold(0.0, f64::max);
    let side = |map: bool| {
        let these = lookups
            .iter()
            .copied()
            .filter(|group| (set(group) - largest).abs() < 0.5 && (group.family() == Family::Mapped) == map);
        nearest(these.collect::<Vec<_>>(), wanted, threads)
    };
    if let Some((map, pool)) = best_pair(&side(true), &side(false), Metric::OpsPerS, &[]) {
        let found = reason("in memory", map, pool, Metric::OpsPerS, "lookups");
        reasons
            .extend(found.map(|reason| reason.at_thread_counts(wanted, [threads(map), threads(pool)], "lookups", map)));
    }
    reasons
}
