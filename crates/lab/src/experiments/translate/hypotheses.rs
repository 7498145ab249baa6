//! Published claims about mmap that the records of `translate` decide.

use super::{HASH_PINNED, ID, LOOKUP, MAPPED_HUGE};
use crate::format::bytes;
use crate::judge::are_equal;
use crate::judge::bound::Bound;
use crate::judge::claim::{Claim, Contribution, Test};
use crate::judge::places::{POOL_COSTS, Places, Records, against, count_of, is, of_variant, times};
use crate::judge::rule::{Among, PairFigure, Pairs};
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
    test: Test::Pairs(Pairs {
        among: Among::Variants(&[LOOKUP]),
        each: |group| group.family() == Family::Mapped && group.spec.params.threads <= 1,
        by: Some(|group| count_of(group, "working_set")),
        with: |map, other| {
            let is_pool = other.family() != Family::Mapped && other.spec.params.threads <= 1;
            is_pool && count_of(other, "working_set") == count_of(map, "working_set") && are_equal(other, map)
        },
        best_by: Some(Metric::OpsPerS),
        inverse: true,
        compared: PairFigure::Ratio(Metric::OpsPerS),
        bound: Bound::at_least(0.9),
        place: |group| bytes(count_of(group, "working_set").unwrap_or_default() as u64),
        words: |pair| format!("{}: {} over {} {}", pair.place, pair.of.title(), pair.over.title(), times(&pair.ratio)),
        missing: "`nofault lab translate` measures it",
        ..Pairs::NONE
    }),
}];

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
