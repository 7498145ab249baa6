//! Published claims about mmap that the records of `async` decide.

use super::ID;
use crate::judge::claim::{Claim, at_least};
use crate::record::CacheState;
use crate::summary::{Group, Metric, is_plain};

/// The published claims about mmap that the records of `async` decide.
pub(super) static CLAIMS: &[Claim] = &[Claim {
    id: "one-fault-stalls-all",
    hypothesis: "One page fault stalls every task of a single-threaded executor: async over a map is no better than one thread.",
    source: "Huon Wilson, Async hazard, 2024; Valialkin on Go's runtime",
    experiment: ID,
    rule: "time of the async tasks over a cold map, over that of one plain thread over the same map, at least 0.8 (random touches)",
    test: at_least(
        &["random-touch"],
        Metric::Seconds,
        |group| cold(group, "async-mmap"),
        |group| cold(group, "single-mmap"),
        0.8,
        "`nofault lab async` measures it",
    ),
}];

fn cold(group: &Group<'_>, method: &str) -> bool {
    let spec = group.spec;
    spec.method == method && spec.cache == CacheState::Cold && is_plain(&spec.params)
}
