//! Reasons for and against a map that the records of `random` give.

use super::ID;
use super::findings::told_random;
use crate::judge::best;
use crate::judge::paging::valid_maps;
use crate::judge::places::{Records, explicit};
use crate::judge::reason::{Evidence, Reading, Reason, Rule, Workload, nearest, reason, threads, throughput};
use crate::summary::{Group, Metric};

/// The rules of the verdict for which `random` gives evidence, each with the function that finds the evidence in the
/// records.
pub(super) static EVIDENCE: &[Evidence] =
    &[Evidence::second_best(Rule::Stalls, stalls), Evidence::of(Rule::Throughput, rates)];

fn rates(records: &Records<'_>, workload: &Workload) -> Vec<Reason> {
    let words = ["random reads", "CPU time of a random read"];
    let (rate, cpu) = (Metric::OpsPerS, Metric::CpuPerOp);
    throughput(records, workload, &Reading { experiment: ID, rate, cpu, words, hint: told_random, sequential: false })
}

/// Finds reasons for the verdict in the latency of random reads.
fn stalls(records: &Records<'_>, workload: &Workload) -> Vec<Reason> {
    let mut reasons = Vec::new();
    // Not the longest access, because a method with more accesses meets rarer events.
    let slow = Metric::Latency("op", 999);
    for (variant, target) in records.summary.places(ID).into_iter().filter(|(variant, _)| variant.is_empty()) {
        let groups = records.summary.at(ID, variant, target);
        let calls: Vec<&Group<'_>> =
            explicit(&groups).into_iter().filter(|group| group.spec.params.depth <= 1).collect();
        // More threads wait longer for the same device, with a map as with calls.
        let has_pair = |map: &&Group<'_>| calls.iter().any(|call| threads(call) == threads(map));
        let maps = valid_maps(&groups, told_random).into_iter().filter(has_pair).collect();
        let Some(map) = best(nearest(maps, workload.threads, threads), Metric::OpsPerS) else { continue };
        let pair = calls.iter().copied().filter(|call| threads(call) == threads(map));
        let Some(direct) = best(pair, Metric::OpsPerS) else { continue };
        let found = reason("no stalls", map, direct, slow, "p99.9 of a random read");
        let at_thread_counts =
            |reason: Reason| reason.at_thread_counts(workload.threads, [threads(map); 2], "random", map);
        reasons.extend(found.map(at_thread_counts));
    }
    reasons
}
