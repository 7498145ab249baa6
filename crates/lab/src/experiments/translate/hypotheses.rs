//! Published claims about mmap that the records of `translate` decide.

use super::{HASH_PINNED, ID, LOOKUP, MAPPED_HUGE};
use crate::format::bytes;
use crate::judge::bound::Bound;
use crate::judge::claim::{
    Claim, Contribution, Decision, POOL_COSTS, Places, Records, Test, against, count_of, is, of_variant, times,
};
use crate::judge::{are_equal, best};
use crate::methods::Method;
use crate::summary::{Family, Group, Metric};

/// The published claims about mmap that the records of `translate` decide.
pub(super) static CLAIMS: &[Claim] = &[Claim {
    id: "pool-matches-map-in-memory",
    hypothesis: "In memory a well-made buffer pool is about as fast as mmap.",
    source: "Crotty, Leis, Pavlo, CIDR 2022, §5, with pointer swizzling",
    experiment: ID,
    rule: "lookups per second of the best pool translation over the mapped file's in pages of the same size, at each working set and page \
        size: at least 0.9",
    needs: &[],
    test: Test::Own(matches),
}];

/// Returns for each working set and each page size of the mapped file the set's bytes, the fastest lookups of the pool's
/// methods, and the lookups in the mapped file.
fn translations<'s>(records: &'s Records<'_>) -> Vec<(f64, &'s Group<'s>, &'s Group<'s>)> {
    let groups = of_variant(records, ID, LOOKUP);
    let mut sets: Vec<f64> = groups.iter().filter_map(|group| count_of(group, "working_set")).collect();
    sets.sort_by(f64::total_cmp);
    sets.dedup();
    let mut found = Vec::new();
    for set in sets {
        let (maps, pools): (Vec<_>, Vec<_>) = groups
            .iter()
            .copied()
            .filter(|group| group.spec.params.threads <= 1 && count_of(group, "working_set") == Some(set))
            .partition(|group| group.family() == Family::Mapped);
        for map in maps {
            let equal = pools.iter().copied().filter(|pool| are_equal(pool, map));
            found.extend(best(equal, Metric::OpsPerS).map(|pool| (set, pool, map)));
        }
    }
    found
}

/// Decides the claim by comparing the pool's lookups with the map's, at each working set.
fn matches(records: &Records<'_>) -> Decision {
    let mut places = Places::default();
    for (set, pool, map) in translations(records) {
        let set = bytes(set as u64);
        let Some(ratio) = places.ratio(&set, (pool, map), Metric::OpsPerS, &[]) else { continue };
        let text = format!("{set}: {} over {} {}", pool.title(), map.title(), times(&ratio));
        places.add(Bound::at_least(0.9).decide(&ratio), text, &[pool, map]);
    }
    places.decide("`nofault lab translate` measures it")
}

/// Compares a lookup through a hash table with locks and pins with a lookup in a map.
pub(super) fn pool<'s>(records: &'s Records<'s>) -> Contribution<'s> {
    let mut places = Places::default();
    let lookups: Vec<&Group<'_>> =
        of_variant(records, ID, LOOKUP).into_iter().filter(|group| group.spec.params.threads <= 1).collect();
    let set = |group: &Group<'_>| count_of(group, "working_set").unwrap_or(0.0);
    let largest = lookups.iter().map(|group| set(group)).fold(0.0, f64::max);
    let find = |method: &Method| lookups.iter().copied().find(|group| set(group) >= largest && is(group, method));
    let time = Metric::TimePerOp;
    let place = format!("in memory, {}", bytes(largest as u64));
    if let (Some(pinned), Some(map)) = (find(&HASH_PINNED), find(&MAPPED_HUGE))
        && let Some(ratio) = places.ratio(&place, (pinned, map), time, &[])
    {
        let text = format!("{place}, time of a lookup: {}", against(pinned, map, time, &ratio));
        places.add(Bound::at_least(POOL_COSTS).decide(&ratio), text, &[pinned, map]);
    }
    Contribution { experiment: ID, what: "lookups in memory", places }
}
