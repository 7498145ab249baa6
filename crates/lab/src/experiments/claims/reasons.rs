//! Reasons for and against a map that the records of `claims` give.

use super::{CACHED_READ, ID, MMAP_IN_PLACE};
use crate::format::bytes;
use crate::judge::places::Records;
use crate::judge::reason::{Evidence, Reason, Rule, Workload, reason, threads};
use crate::methods;
use crate::summary::{Group, Metric};

/// The rules of the verdict for which `claims` gives evidence, each with the function that finds the evidence in the
/// records.
pub(super) static EVIDENCE: &[Evidence] = &[Evidence::of(Rule::InMemory, cached)];

/// Finds reasons for the verdict in reads of cached data in the smallest units.
fn cached(records: &Records<'_>, workload: &Workload) -> Vec<Reason> {
    let mut reasons = Vec::new();
    // No access waits for a device, so more threads than CPUs do as much work as one thread for each CPU.
    let wanted = workload.threads.map(|count| count.min(records.file.run.machine.cpu_count.max(1)));
    let cached: Vec<&Group<'_>> = records.of(ID).filter(|group| group.spec.variant == CACHED_READ).collect();
    let least = cached.iter().map(|group| group.spec.params.block_bytes).min().unwrap_or(0);
    let find = |method: &str| {
        cached.iter().copied().find(|group| group.spec.method == method && group.spec.params.block_bytes == least)
    };
    if let (Some(map), Some(read)) = (find(MMAP_IN_PLACE.id), find(methods::PREAD_BUFFERED.id)) {
        let what = format!("cached data in units of {}, against read calls (no pool)", bytes(least));
        let found = reason("in memory", map, read, Metric::BytesPerS, &what);
        reasons.extend(
            found.map(|reason| reason.at_thread_counts(wanted, [threads(map), threads(read)], "cached data", map)),
        );
    }
    reasons
}
