//! Published claims about mmap that the records of `eviction` decide.

use super::findings::evicts;
use super::{ID, ReclaimWork, reclaim_of};
use crate::format::Unit;
use crate::judge::bound::{Bound, Outcome};
use crate::judge::claim::{Claim, PAPERS_CPUS, PAPERS_DEVICE, Test};
use crate::judge::places::{Decision, Records, both, extra, is_mapped, of_variant, times};
use crate::judge::ratio;
use crate::judge::rule::{Among, PairFigure, Pairs};
use crate::record::MemoryMethod;
use crate::summary::{Family, Group, Metric, Spread, target_title};

/// The published claims about mmap that the records of `eviction` decide.
pub(super) static CLAIMS: &[Claim] = &[
    Claim {
        id: "shootdowns-dominate",
        hypothesis: "TLB shootdowns are the larger part of what eviction costs a map.",
        source: "Crotty, Leis, Pavlo, CIDR 2022, §3.4; doubted by Fast Page Recycling (arXiv 2409.10946)",
        experiment: ID,
        rule: "where pages were evicted: CPU per operation of a map whose threads are pinned to one CPU, so that no other TLB must be told, over \
            the same map's on as many threads and all CPUs: at most 0.5",
        needs: &[PAPERS_CPUS],
        test: Test::Pairs(Pairs {
            among: Among::Places(|variant| matches!(reclaim_of(variant), Some((ReclaimWork::Random, _)))),
            each: |group| is_mapped(group) && evicts(group) && extra(group, "pin") == Some("1"),
            with: |pinned, free| {
                let (a, b) = (free.spec, pinned.spec);
                let same = (&a.method, a.params.threads) == (&b.method, b.params.threads);
                same && extra(free, "pin").is_none() && is_mapped(free) && evicts(free)
            },
            compared: PairFigure::Ratio(Metric::CpuPerOp),
            bound: Bound::at_most(SHOT),
            place: |group| target_title(&group.spec.target.label),
            words: |pair| {
                let by = reclaim_of(&pair.of.spec.variant).map_or("", |(_, by)| by);
                format!("{}, by {by}: {}", pair.place, pair.against(Metric::CpuPerOp))
            },
            missing: "`nofault lab eviction` measures it, where memory is full and there is more than one CPU",
            ..Pairs::NONE
        }),
    },
    Claim {
        id: "one-kswapd-is-the-wall",
        hypothesis: "One kswapd thread is what limits a map whose pages must be evicted.",
        source: "Crotty, Leis, Pavlo, CIDR 2022, §3.4: single-threaded page eviction",
        experiment: ID,
        rule: "of the maps under a ballast that keep kswapd busiest (a scan where one was measured), kswapd uses at least 85 % of a \
            core, and the same scan is at least 1.1 times as fast under a cgroup, which has no kswapd",
        needs: &[PAPERS_CPUS, PAPERS_DEVICE],
        test: Test::Own(kswapd),
    },
];

/// kswapd counts as saturated from this percentage of a core on.
const KSWAPD_BUSY: f64 = 85.0;

/// Least gain in rate under a cgroup that counts as proof that kswapd was the bound.
const FREED: f64 = 1.1;

/// Shootdowns count as the larger part of a map's cost when the cost without them falls to this share or less.
const SHOT: f64 = 0.5;

fn busiest<'g, 'a>(groups: &[&'g Group<'a>]) -> Option<(Spread, &'g Group<'a>)> {
    let shares = groups.iter().filter_map(|group| Some((group.spread(Metric::KswapdShare)?, *group)));
    shares.reduce(|a, b| if b.0.median > a.0.median { b } else { a })
}

/// Decides the claim by kswapd's share of a core, and by whether the same work is faster without kswapd.
fn kswapd(records: &Records<'_>) -> Decision {
    let by_kswapd = |group: &&Group<'_>| {
        let method = group.spec.memory.method;
        matches!(method, MemoryMethod::Ballast | MemoryMethod::LargeFile) && group.family() == Family::Mapped
    };
    let maps = records.summary.groups.iter().filter(|group| group.method.is_some());
    let groups: Vec<&Group<'_>> = maps.filter(by_kswapd).collect();
    // A scan reads no page twice, so the amount of memory that each way of reclaim leaves does not matter.
    let scans: Vec<&Group<'_>> = groups
        .iter()
        .copied()
        .filter(|group| reclaim_of(&group.spec.variant) == Some((ReclaimWork::Scan, "kswapd")))
        .collect();
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
    let busy = Bound::at_least(KSWAPD_BUSY).decide(&share);
    let same = |other: &&Group<'_>| {
        let (a, b) = (other.spec, group.spec);
        (&a.method, &a.params, &a.target.label) == (&b.method, &b.params, &b.target.label)
    };
    let control = of_variant(records, ID, "scan-cgroup").into_iter().find(same).filter(|_| !scans.is_empty());
    let freed = control.and_then(|control| Some((ratio(control, group, Metric::BytesPerS, &[]).ok()?, control)));
    match freed {
        Some((ratio, control)) => Decision::new(
            both(busy, Bound::at_least(FREED).decide(&ratio)),
            format!(
                "{text}; under a cgroup, where no kswapd takes part and the threads evict for themselves, the same reaches {} of that rate.",
                times(&ratio)
            ),
            &[group, control],
        ),
        // Without the control a busy kswapd proves nothing: it may keep up with the work.
        None => Decision::new(
            both(busy, Outcome::Undecided),
            format!("{text}; the control, the same scan under a cgroup, was not measured (`nofault lab eviction`)."),
            &[group],
        ),
    }
}
