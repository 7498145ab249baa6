//! Reasons for and against a map that the records of `safety` give.

use super::findings::map_of;
use super::{ID, written_by};
use crate::judge::best;
use crate::judge::places::{Records, figure};
use crate::judge::reason::{Evidence, Reason, Rule, Side, Workload, nearest, proof, reason, threads};
use crate::summary::{Family, Group, Metric};

/// The rules of the verdict for which `safety` gives evidence, each with the function that finds the evidence in the
/// records.
pub(super) static EVIDENCE: &[Evidence] = &[Evidence::of(Rule::Updates, updates)];

/// Finds reasons for the verdict in the cost of updates that are safe in transactions.
fn updates(records: &Records<'_>, workload: &Workload) -> Vec<Reason> {
    let mut reasons = Vec::new();
    for group in records.of(ID).filter(|group| group.spec.variant == "sin") {
        let Some(found) = figure(group, "uncommitted_on_disk").filter(|found| found.max > 0.0) else { continue };
        let text = format!(
            "pages changed in place through a {} are on the disk before their transaction commits, {} ({:.0} pages found): a map needs a protocol on top.",
            map_of(group),
            written_by(&group.spec.params),
            found.max
        );
        reasons.push(proof("safe updates", Side::Against, text, group));
    }
    let commits: Vec<&Group<'_>> = records.of(ID).filter(|group| group.spec.variant == "commits").collect();
    let commits = nearest(commits, workload.threads, threads);
    let mut writers: Vec<u32> = commits.iter().map(|group| threads(group)).collect();
    writers.sort_unstable();
    writers.dedup();
    for count in writers {
        let at = |engine: bool| {
            let these = commits
                .iter()
                .copied()
                .filter(|group| threads(group) == count && ((group.family() != Family::Mapped) == engine));
            best(these, Metric::OpsPerS)
        };
        if let (Some(map), Some(engine)) = (at(false), at(true)) {
            let what = format!("durable commits, {count} writer{}", if count == 1 { "" } else { "s" });
            let found = reason("safe updates", map, engine, Metric::OpsPerS, &what);
            reasons.extend(
                found.map(|reason| reason.at_thread_counts(workload.threads, [count; 2], "durable commits", map)),
            );
        }
    }
    reasons
}
