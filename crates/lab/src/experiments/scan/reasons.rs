//! Reasons for and against a map that the records of `scan` give.

use super::ID;
use super::findings::reads_ahead;
use crate::judge::places::Records;
use crate::judge::reason::{Evidence, Reading, Reason, Rule, Workload, throughput};
use crate::summary::Metric;

/// The rules of the verdict for which `scan` gives evidence, each with the function that finds the evidence in the
/// records.
pub(super) static EVIDENCE: &[Evidence] = &[Evidence::of(Rule::Throughput, rates)];

fn rates(records: &Records<'_>, workload: &Workload) -> Vec<Reason> {
    let words = ["scan", "CPU time of a scanned GB"];
    let (rate, cpu) = (Metric::BytesPerS, Metric::CpuPerGb);
    throughput(records, workload, &Reading { experiment: ID, rate, cpu, words, hint: reads_ahead, sequential: true })
}
