//! Reasons for and against a map that the records of `stalls` give.

use super::{FITS, ID};
use crate::judge::best;
use crate::judge::places::{Records, explicit, mapped};
use crate::judge::reason::{Evidence, Reason, Rule, STALL_S, Side, Workload, reason};
use crate::methods;
use crate::summary::{Family, Group, Metric};

/// The rules of the verdict for which `stalls` gives evidence, each with the function that finds the evidence in the
/// records.
pub(super) static EVIDENCE: &[Evidence] =
    &[Evidence::of(Rule::Stalls, stalls), Evidence::of(Rule::StallsInMemory, in_memory)];

/// Finds reasons for the verdict in the time of an access with the best work-around.
fn stalls(records: &Records<'_>, _: &Workload) -> Vec<Reason> {
    let ahead: Vec<&Group<'_>> = records.of(ID).filter(|group| group.spec.variant == "ahead").collect();
    // Not the longest access, because a method with more accesses meets rarer events.
    let slow = Metric::Latency("op", 999);
    let of_map = mapped(&ahead).into_iter().filter(|group| group.spec.method != methods::MMAP && !group.waits_apart());
    if let (Some(map), Some(direct)) = (best(of_map, slow), best(explicit(&ahead), slow)) {
        let what = "p99.9 of an access with the best work-around";
        return reason("no stalls", map, direct, slow, what).into_iter().collect();
    }
    Vec::new()
}

/// Finds reasons against a map for data that fits: a background load in the same memory that reads through the page
/// cache may evict it.
fn in_memory(records: &Records<'_>, _: &Workload) -> Vec<Reason> {
    let (mut reasons, tail) = (Vec::new(), Metric::Latency("op", 999));
    for (variant, target) in records.summary.places(ID) {
        if variant != FITS {
            continue;
        }
        let groups = records.summary.at(ID, variant, target);
        let own = groups.iter().copied().filter(|group| group.family() == Family::Pool);
        let (Some(map), Some(own)) = (best(mapped(&groups), tail), best(own, tail)) else { continue };
        let what = "p99.9 of an access to data that fits, beside a background load in the page cache";
        let held = |group: &Group<'_>| group.spread(tail).is_some_and(|spread| spread.median >= STALL_S);
        let found = reason("no stalls", map, own, tail, what);
        reasons.extend(found.map(|reason| match held(map) || held(own) {
            true => reason,
            false => {
                let text = format!("{}; neither is a stall.", reason.text.trim_end_matches('.'));
                Reason { side: Side::Neither, text, ..reason }
            }
        }));
    }
    reasons
}
