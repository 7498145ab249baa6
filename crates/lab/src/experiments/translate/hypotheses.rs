//! Published claims about mmap that the records of `translate` decide.

use super::ID;
use super::LOOKUP;
use crate::format::bytes;
use crate::judge::best;
use crate::judge::bound::Bound;
use crate::judge::claim::{
    Claim, Contribution, Decision, POOL_COSTS, Places, Records, Test, against, count_of, is, of_variant, times,
};
use crate::summary::{Family, Group, Metric};

/// The published claims about mmap that the records of `translate` decide.
pub(super) static CLAIMS: &[Claim] = &[Claim {
    id: "pool-matches-map-in-memory",
    hypothesis: "In memory a well-made buffer pool is about as fast as mmap.",
    source: "Crotty, Leis, Pavlo, CIDR 2022, §5, with pointer swizzling",
    experiment: ID,
    rule: "lookups per second of the best pool translation over those of the mapped file, at each working set: at least 0.9",
    test: Test::Own(matches),
}];

/// Returns for each working set its bytes, the fastest lookups of the pool's methods, and the lookups in the mapped
/// file.
fn translations<'s>(records: &'s Records<'_>) -> Vec<(f64, &'s Group<'s>, &'s Group<'s>)> {
    let groups = of_variant(records, ID, LOOKUP);
    let mut sets: Vec<f64> = groups.iter().filter_map(|group| count_of(group, "working_set")).collect();
    sets.sort_by(f64::total_cmp);
    sets.dedup();
    let at = |set: f64, wanted: fn(&Group<'_>) -> bool| {
        let same = groups.iter().copied().filter(|group| {
            group.spec.params.threads <= 1 && count_of(group, "working_set") == Some(set) && wanted(group)
        });
        best(same, Metric::OpsPerS)
    };
    sets.iter()
        .filter_map(|set| {
            let map = at(*set, |group| group.spec.method == "mapped")?;
            Some((*set, at(*set, |group| group.family() != Family::Mapped)?, map))
        })
        .collect()
}

/// Decides the claim by comparing the pool's lookups with the map's, at each working set.
fn matches(records: &Records<'_>) -> Decision {
    let mut places = Places::default();
    for (set, pool, map) in translations(records) {
        let Some(ratio) = pool.spread(Metric::OpsPerS).and_then(|a| a.over(&map.spread(Metric::OpsPerS)?)) else {
            continue;
        };
        let text = format!("{}: {} {}", bytes(set as u64), pool.label(), times(&ratio));
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
    let find = |method: &str| lookups.iter().copied().find(|group| set(group) >= largest && is(group, method));
    let time = Metric::TimePerOp;
    if let (Some(pinned), Some(map)) = (find("hash-pinned"), find("mapped"))
        && let Some(ratio) = pinned.spread(time).and_then(|cost| cost.over(&map.spread(time)?))
    {
        let text =
            format!("in memory, {}, time of a lookup: {}", bytes(largest as u64), against(pinned, map, time, &ratio));
        places.add(Bound::at_least(POOL_COSTS).decide(&ratio), text, &[pinned, map]);
    }
    Contribution { experiment: ID, what: "lookups in memory", places }
}
