//! Published claims about mmap that the records of `async` decide.

use super::{ASYNC_MMAP, ID, SINGLE_MMAP};
use crate::judge::bound::Bound;
use crate::judge::claim::{Claim, Test};
use crate::judge::rule::Ratio;
use crate::record::CacheState;
use crate::summary::{Group, Metric, Property, is_plain};

/// The published claims about mmap that the records of `async` decide.
pub(super) static CLAIMS: &[Claim] = &[Claim {
    id: "one-fault-stalls-all",
    hypothesis: "One page fault stalls every task of a single-threaded executor: async over a map is no better than one thread.",
    source: "Huon Wilson, Async hazard, 2024; Valialkin on Go's runtime",
    experiment: ID,
    rule: "time of the async tasks over a cold map, over one plain thread's over the same map, at least 0.8 (random touches)",
    needs: &[],
    test: Test::Ratio(Ratio {
        variants: &["random-touch"],
        metric: Metric::Seconds,
        of: |group| cold(group, ASYNC_MMAP.id),
        over: |group| cold(group, SINGLE_MMAP.id),
        about: &[Property::InFlight],
        bound: Bound::at_least(0.8),
        missing: "`nofault lab async` measures it",
    }),
}];

fn cold(group: &Group<'_>, method: &str) -> bool {
    let spec = group.spec;
    spec.method == method && spec.cache == CacheState::Cold && is_plain(&spec.params)
}
