//! The rules about what eviction costs whoever does it: one kernel thread for a map, a pool for itself.

use super::own::{Places, count_of, mapped, of_variant};
use super::{Decision, Outcome, Records, against, extra, inside, times};
use crate::experiments::eviction::findings::evicts;
use crate::format::{Unit, bytes};
use crate::judge::best;
use crate::record::MemoryMethod;
use crate::summary::{Family, Group, Metric, Spread, target_title};

/// From this share of a core on kswapd has no more to give.
const KSWAPD_BUSY: f64 = 85.0;
/// How much faster the same must be where no kswapd holds it up.
const FREED: f64 = 1.1;
/// Up to this share of its cost a map must come down without shootdowns, if they are the larger part.
const SHOT: f64 = 0.5;
/// From this share of a map's cost on a pool costs as much.
const AS_MUCH: f64 = 0.9;

/// A claim of two halves: it holds where both do.
pub(super) fn both(one: Outcome, other: Outcome) -> Outcome {
    match (one, other) {
        (Outcome::Held, Outcome::Held) => Outcome::Held,
        (Outcome::DidNotHold, _) | (_, Outcome::DidNotHold) => Outcome::DidNotHold,
        _ => Outcome::Undecided,
    }
}

fn busiest<'g, 'a>(groups: &[&'g Group<'a>]) -> Option<(Spread, &'g Group<'a>)> {
    let shares = groups.iter().filter_map(|group| Some((group.spread(Metric::KswapdShare)?, *group)));
    shares.reduce(|a, b| if b.0.median > a.0.median { b } else { a })
}

/// kswapd's share of a core where it reclaims, and whether the same goes faster where it does not.
pub(super) fn kswapd(records: &Records<'_>) -> Decision {
    let by_kswapd = |group: &&Group<'_>| {
        let method = group.spec.memory.method;
        matches!(method, MemoryMethod::Ballast | MemoryMethod::LargeFile) && group.family() == Family::Mapped
    };
    let groups: Vec<&Group<'_>> =
        ["eviction", "scan", "random"].into_iter().flat_map(|name| records.of(name)).filter(by_kswapd).collect();
    // A scan finds no page again, so that it does not matter how much memory each way of reclaim leaves.
    let scans: Vec<&Group<'_>> = groups.iter().copied().filter(|group| group.spec.variant == "scan-kswapd").collect();
    let Some((share, group)) = busiest(&scans).or_else(|| busiest(&groups)) else {
        return Decision::not_measured(
            "no map was measured under kswapd: `nofault lab eviction --preset standard`, or --memory-method ballast (as root)",
        );
    };
    let text = format!(
        "{} ({}, {}): kswapd uses {} of a core",
        group.label(),
        group.spec.experiment,
        target_title(&group.spec.target.label),
        share.show(Unit::Percent)
    );
    let busy = inside(&share, KSWAPD_BUSY, f64::INFINITY);
    let same = |other: &&Group<'_>| {
        let (a, b) = (other.spec, group.spec);
        (&a.contender, &a.params, &a.target.label) == (&b.contender, &b.params, &b.target.label)
    };
    let control = of_variant(records, "eviction", "scan-cgroup").into_iter().find(same).filter(|_| !scans.is_empty());
    let freed = control.and_then(|control| {
        let metric = Metric::BytesPerS;
        Some((control.spread(metric)?.over(&group.spread(metric)?)?, control))
    });
    match freed {
        Some((ratio, control)) => Decision::new(
            both(busy, inside(&ratio, FREED, f64::INFINITY)),
            format!(
                "{text}; under a cgroup, where no kswapd takes part and the threads evict for themselves, the same reaches {} of that rate.",
                times(&ratio)
            ),
            &[group, control],
        ),
        // Without the control a busy kswapd proves nothing: it may keep up.
        None => Decision::new(
            both(busy, Outcome::Undecided),
            format!("{text}; the control, the same scan under a cgroup, was not measured (`nofault lab eviction`)."),
            &[group],
        ),
    }
}

/// What a map costs where no other CPU must be told of a page that goes, against the same on all CPUs.
pub(super) fn shootdowns(records: &Records<'_>) -> Decision {
    let mut places = Places::default();
    let cpu = Metric::CpuPerOp;
    for (variant, target) in records.summary.places(crate::experiments::eviction::ID) {
        if !variant.starts_with("random-") {
            continue;
        }
        let groups = records.summary.at(crate::experiments::eviction::ID, variant, target);
        let maps: Vec<&Group<'_>> = mapped(&groups).into_iter().filter(|group| evicts(group)).collect();
        for pinned in maps.iter().copied().filter(|group| extra(group, "pin") == Some("1")) {
            let same = |free: &&Group<'_>| {
                let (a, b) = (&free.spec, &pinned.spec);
                (&a.contender, a.params.threads) == (&b.contender, b.params.threads) && extra(free, "pin").is_none()
            };
            let Some(free) = maps.iter().copied().find(same) else { continue };
            let Some(ratio) = pinned.spread(cpu).and_then(|cost| cost.over(&free.spread(cpu)?)) else { continue };
            let by = variant.trim_start_matches("random-");
            let text = format!("{}, by {by}: {}", target_title(target), against(pinned, free, cpu, &ratio));
            places.add(inside(&ratio, 0.0, SHOT), text, &[pinned, free]);
        }
    }
    places.decide("`nofault lab eviction` measures it, where memory is full and there is more than one CPU")
}

/// What a pool costs that caches, evicts and locks, against a map.
pub(super) fn pool(records: &Records<'_>) -> Decision {
    let mut places = Places::default();
    let cpu = Metric::CpuPerOp;
    for (variant, target) in records.summary.places(crate::experiments::random::ID) {
        let groups = records.summary.at(crate::experiments::random::ID, variant, target);
        let pools = groups.iter().copied().filter(|group| group.family() == Family::Pool);
        let (Some(pool), Some(map)) = (best(pools, cpu), best(mapped(&groups), cpu)) else { continue };
        let Some(ratio) = pool.spread(cpu).and_then(|cost| cost.over(&map.spread(cpu)?)) else { continue };
        let text =
            format!("larger than memory, {}, CPU a read: {}", target_title(target), against(pool, map, cpu, &ratio));
        places.add(inside(&ratio, AS_MUCH, f64::INFINITY), text, &[pool, map]);
    }
    let lookups: Vec<&Group<'_>> =
        of_variant(records, "translate", "lookup").into_iter().filter(|group| group.spec.params.threads <= 1).collect();
    let set = |group: &Group<'_>| count_of(group, "working_set").unwrap_or(0.0);
    let largest = lookups.iter().map(|group| set(group)).fold(0.0, f64::max);
    let find = |contender: &str| {
        lookups.iter().copied().find(|group| set(group) >= largest && group.spec.contender == contender)
    };
    let time = Metric::TimePerOp;
    if let (Some(pinned), Some(map)) = (find("hash-pinned"), find("mapped"))
        && let Some(ratio) = pinned.spread(time).and_then(|cost| cost.over(&map.spread(time)?))
    {
        let text =
            format!("in memory, {}, time of a lookup: {}", bytes(largest as u64), against(pinned, map, time, &ratio));
        places.add(inside(&ratio, AS_MUCH, f64::INFINITY), text, &[pinned, map]);
    }
    places.decide(
        "`nofault lab random` with the engine's pool measures it, and `nofault lab translate --preset standard`",
    )
}
