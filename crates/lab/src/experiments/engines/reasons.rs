//! Reasons for and against a map that the records of `engines` give.

use super::{ID, LARGER, ROCKSDB_MMAP, SQLITE_MMAP};
use crate::judge::best_pair;
use crate::judge::places::Records;
use crate::judge::reason::{CHOICE, Evidence, Reason, Rule, Workload, nearest, reason, threads};
use crate::methods;
use crate::summary::Metric;

/// The rules of the verdict for which `engines` gives evidence, each with the function that finds the evidence in the
/// records.
pub(super) static EVIDENCE: &[Evidence] = &[Evidence::of(Rule::Throughput, databases)];

/// Finds reasons for the verdict in databases that run with a map and without: rates of reads on data larger than memory.
fn databases(records: &Records<'_>, workload: &Workload) -> Vec<Reason> {
    let groups = records.summary.at(ID, "ycsb-c", LARGER);
    // All groups of each method, because read-ahead may have been varied.
    let of = |id: &str| {
        let own = groups.iter().copied().filter(|group| group.spec.method == id).collect();
        nearest(own, workload.threads, threads)
    };
    let pairs = [(SQLITE_MMAP.id, methods::SQLITE.id), (ROCKSDB_MMAP.id, methods::ROCKSDB.id)].into_iter();
    let found = pairs.filter_map(|(map, calls)| {
        let (map, calls) = best_pair(&of(map), &of(calls), Metric::OpsPerS, &[])?;
        let found = reason(CHOICE, map, calls, Metric::OpsPerS, "YCSB C")?;
        Some(found.at_thread_counts(workload.threads, [threads(map), threads(calls)], "YCSB C", map))
    });
    found.collect()
}
