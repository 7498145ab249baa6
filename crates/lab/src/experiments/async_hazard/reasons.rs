//! Reasons for and against a map that the records of `async` give.

use super::{ASYNC_MMAP, ASYNC_READ, ASYNC_URING, ID};
use crate::judge::places::Records;
use crate::judge::reason::{Evidence, Reason, Rule, Workload, is_home, reason};
use crate::record::CacheState;
use crate::summary::{Group, Metric, is_plain};

/// The rules of the verdict for which `async` gives evidence, each with the function that finds the evidence in the
/// records.
pub(super) static EVIDENCE: &[Evidence] = &[Evidence::of(Rule::Stalls, stalls)];

/// Finds reasons for the verdict in the lateness of a timer among tasks waiting for cold data.
fn stalls(records: &Records<'_>, _: &Workload) -> Vec<Reason> {
    let tasks: Vec<&Group<'_>> = records
        .of(ID)
        .filter(|group| {
            let spec = group.spec;
            spec.cache == CacheState::Cold && is_plain(&spec.params) && spec.variant == "random-touch" && is_home(group)
        })
        .collect();
    let find = |method: &str| tasks.iter().copied().find(|group| group.spec.method == method);
    if let (Some(map), Some(read)) = (find(ASYNC_MMAP.id), find(ASYNC_READ.id).or(find(ASYNC_URING.id))) {
        let late = Metric::Latency("ticker", 990);
        let what = "lateness (p99) of a 1 ms timer beside async tasks on cold data";
        return reason("no stalls", map, read, late, what).into_iter().collect();
    }
    Vec::new()
}
