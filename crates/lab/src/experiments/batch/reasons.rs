//! Reasons for and against a map that the records of `batch` give: requests for many pages at once, over all their sizes.

use super::findings::of_size;
use super::{COLD, ID, RATE, WARM};
use crate::judge::curve::Curve;
use crate::judge::places::Records;
use crate::judge::reason::{Evidence, Reason, Rule, Workload, whole_curve};
use crate::methods::Family;
use crate::summary::Group;

/// The rules of the verdict for which `batch` gives evidence, each with the function that finds the evidence in the
/// records.
pub(super) static EVIDENCE: &[Evidence] = &[Evidence::of(Rule::Throughput, cold), Evidence::of(Rule::InMemory, warm)];

fn cold(records: &Records<'_>, _: &Workload) -> Vec<Reason> {
    of_variant(records, COLD, "throughput")
}

fn warm(records: &Records<'_>, _: &Workload) -> Vec<Reason> {
    of_variant(records, WARM, "in memory")
}

/// Compares the fastest way of a map with the fastest other one at each size of a request. One thread answers the requests,
/// whatever number of threads the user has.
fn of_variant(records: &Records<'_>, wanted: &str, rule: &'static str) -> Vec<Reason> {
    let mut reasons = Vec::new();
    for (variant, target) in records.summary.places(ID).into_iter().filter(|(variant, _)| *variant == wanted) {
        let groups = records.summary.at(ID, variant, target);
        let valid: Vec<&Group<'_>> =
            super::findings::sizes(&groups).into_iter().flat_map(|pages| of_size(&groups, pages)).collect();
        let side = |map: bool| {
            let side = valid.iter().copied().filter(|group| (group.family() == Family::Mapped) == map);
            Curve::of(side, RATE)
        };
        let what = format!("requests for many {variant} pages");
        reasons.extend(side(true).over(&side(false), RATE).ok().map(|found| whole_curve(rule, &found, RATE, &what)));
    }
    reasons
}
