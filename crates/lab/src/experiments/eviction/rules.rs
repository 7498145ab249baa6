//! Rules on the records of `eviction`: published claims, findings, and reasons for the verdict.

use super::{
    FAULTS, ID, MMAP_ONE_MAP, MMAP_OWN, MMAP_UNMAP_BATCH, MMAP_UNMAP_PAGE, ReclaimWork, SHOOTDOWNS, reclaim_of,
};
use crate::format::{Unit, digits};
use crate::judge::bound::{Bound, Outcome};
use crate::judge::claim::{Claim, PAPERS_CPUS, PAPERS_DEVICE, Test};
use crate::judge::places::{Decision, Records, both, extra, is_mapped, of_variant, times};
use crate::judge::rule::{Among, PairFigure, Pairs};
use crate::judge::{Finding, KeyFigure, Kind, compare, compare_about, keys, on, or_refused, ratio, shown};
use crate::methods;
use crate::record::{MemoryMethod, TargetKind};
use crate::summary::{Family, Group, Metric, Property, Spread, Summary, target_title};

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

// Rules for `eviction`: the cost of each mechanism, and which of them binds under full memory.

/// A map counts as bound by the device from this share of the direct reads' rate on.
const DEVICE_BOUND: f64 = 0.9;
/// kswapd counts as saturated from this percentage of a core on.
const KSWAPD_BOUND: f64 = 80.0;

/// Adds the findings that the records of `eviction` support.
pub(super) fn find(summary: &Summary<'_>, all: &mut Vec<Finding>) {
    let faults = summary.at(ID, FAULTS, "memory");
    let shootdowns = summary.at(ID, SHOOTDOWNS, "memory");
    contention(&faults, all);
    shootdown(&shootdowns, all);
    for (variant, target) in summary.places(ID) {
        let groups = summary.at(ID, variant, target);
        match reclaim_of(variant) {
            Some((ReclaimWork::Random, by)) => {
                pinned(&groups, target, by, all);
                binding(&groups, &faults, &shootdowns, (target, by), all);
            }
            Some((ReclaimWork::Scan, by)) => scan(&groups, target, by, all),
            None => {}
        }
    }
    ways(summary, all);
}

fn with<'g, 'a>(groups: &[&'g Group<'a>], method: &str, threads: u32) -> Option<&'g Group<'a>> {
    groups.iter().copied().find(|group| {
        let spec = group.spec;
        spec.method == method && spec.params.threads == threads && !spec.params.extra.contains_key("pin")
    })
}

/// Whether the trials evicted any page; otherwise they show nothing about reclaim.
pub(crate) fn evicts(group: &Group<'_>) -> bool {
    group.spread(Metric::EvictedPerS).is_none_or(|rate| rate.median > 0.0)
}

fn most(groups: &[&Group<'_>]) -> u32 {
    groups.iter().map(|group| group.spec.params.threads).max().unwrap_or(1)
}

fn time(spread: Spread) -> String {
    shown(spread, Unit::Seconds)
}

/// Compares the CPU time of a fault on one thread and on all CPUs. Wall time would also contain waits for a CPU.
fn contention(groups: &[&Group<'_>], all: &mut Vec<Finding>) {
    let threads = most(groups);
    for (method, what) in [
        (MMAP_ONE_MAP.id, "a fault of a cached page in one map that all threads share"),
        (MMAP_OWN.id, "a fault of a cached page in a map of the thread's own"),
        (methods::PREAD_CACHED.id, "a read call of a cached page, without any map,"),
    ] {
        let pair = (with(groups, method, threads), with(groups, method, 1));
        let (Some(many), Some(one)) = pair else { continue };
        if threads < 2 {
            continue;
        }
        let compared = compare_about(many, one, Metric::CpuPerOp, &[Property::InFlight]);
        let Some(comparison) = or_refused(compared, all) else { continue };
        all.push(Finding {
            rule: "page-table-contention",
            rule_text: "CPU time of one fault with a thread on each CPU over that with one thread: a ratio above one is contention: for the page \
                table where only the shared map has it, for the page cache where read calls have it too",
            text: format!(
                "{}{what} costs {} of CPU on {threads} threads and {} on one: {}.",
                comparison.caveat(),
                time(comparison.a),
                time(comparison.b),
                comparison.show(),
            ),
            ..comparison.finding()
        });
    }
}

/// Compares the cost of unmapping pages with and without other CPUs whose TLBs must be flushed.
fn shootdown(groups: &[&Group<'_>], all: &mut Vec<Finding>) {
    let threads = most(groups);
    for (method, each) in [(MMAP_UNMAP_PAGE.id, "one page a call"), (MMAP_UNMAP_BATCH.id, "64 pages a call")] {
        let (Some(told), Some(alone)) = (with(groups, method, threads), with(groups, method, 1)) else {
            continue;
        };
        if threads < 2 {
            continue;
        }
        let compared = compare_about(told, alone, Metric::TimePerOp, &[Property::InFlight]);
        let Some(comparison) = or_refused(compared, all) else { continue };
        all.push(Finding {
            rule: "price-of-a-shootdown",
            rule_text: "time to fault a cached page in and take it out of the map again, with other threads of the process running on the other CPUs \
                over that without: the difference is the cost of the shootdowns for the thread that unmaps",
            text: format!(
                "{}with {each}, a page comes and goes in {} while other CPUs run threads of the same process, in {} when none does: {}.",
                comparison.caveat(),
                time(comparison.a),
                time(comparison.b),
                comparison.show(),
            ),
            ..comparison.finding()
        });
    }
}

/// Returns the seconds that sending one TLB shootdown costs.
fn price_of_a_shootdown(groups: &[&Group<'_>]) -> Option<f64> {
    let told = with(groups, MMAP_UNMAP_PAGE.id, most(groups).max(2))?.spread(Metric::TimePerOp)?;
    let alone = with(groups, MMAP_UNMAP_PAGE.id, 1)?.spread(Metric::TimePerOp)?;
    Some((told.median - alone.median).max(0.0))
}

/// Compares reads on all CPUs with the control, in which all threads share one CPU and no shootdowns occur.
fn pinned(groups: &[&Group<'_>], target: &str, by: &str, all: &mut Vec<Finding>) {
    let Some(pinned) = groups.iter().copied().find(|group| group.spec.params.extra.contains_key("pin")) else { return };
    let Some(free) = with(groups, &pinned.spec.method, pinned.spec.params.threads) else { return };
    if !evicts(pinned) || !evicts(free) {
        return;
    }
    let Some(comparison) = or_refused(compare(free, pinned, Metric::CpuPerOp), all) else { return };
    let interrupts = |group: &Group<'_>| {
        group.spread(Metric::ShootdownsPerS).map_or("–".into(), |rate| shown(rate, Unit::PerSecond))
    };
    all.push(Finding {
        rule: "pinned-to-one-cpu",
        rule_text: "CPU time of one mapped read under full memory with all CPUs over that with all threads pinned to one CPU, where no TLB but its own \
            is to be flushed; other costs of several CPUs (locks, cache lines) go with them, so this bounds what shootdowns cost from above",
        text: format!(
            "{}reclaim by {by}: {}{} costs {} of CPU on all CPUs ({} TLB interrupts) and {} on one ({}): {}.",
            on(target),
            comparison.caveat(),
            free.label(),
            time(comparison.a),
            interrupts(free),
            time(comparison.b),
            interrupts(pinned),
            comparison.show(),
        ),
        ..comparison.finding()
    });
}

/// Finds the mechanism that limits the map, by the cost of each of the three for a page.
fn binding(
    groups: &[&Group<'_>],
    faults: &[&Group<'_>],
    shootdowns: &[&Group<'_>],
    (target, by): (&str, &str),
    all: &mut Vec<Finding>,
) {
    let threads = most(groups);
    let (Some(map), Some(direct)) =
        (with(groups, methods::MMAP_RANDOM.id, threads), with(groups, methods::PREAD_DIRECT.id, threads))
    else {
        return;
    };
    if !evicts(map) {
        return;
    }
    let Some(rates) = or_refused(compare(map, direct, Metric::OpsPerS), all) else { return };
    let cpu = |group: &Group<'_>| group.spread(Metric::CpuPerOp).map(|spread| spread.median);
    let (Some(whole), Some(floor)) = (cpu(map), cpu(direct)) else { return };
    let per_page = map.spread(Metric::ShootdownsPerS).map_or(0.0, |rate| rate.median / rates.a.median.max(1e-9));
    let shot = price_of_a_shootdown(shootdowns).map(|price| price * per_page);
    let contended = match (with(faults, MMAP_ONE_MAP.id, most(faults)), with(faults, MMAP_ONE_MAP.id, 1)) {
        (Some(many), Some(one)) => cpu(many).zip(cpu(one)).map(|(many, one)| (many - one).max(0.0)),
        _ => None,
    };
    let fault = with(faults, MMAP_ONE_MAP.id, 1).and_then(cpu);
    // The remainder above a direct read and the two others: finding, unmapping and freeing pages, and the fault itself.
    let rest = (whole - floor - shot.unwrap_or(0.0) - contended.unwrap_or(0.0)).max(0.0);
    let kswapd = map.spread(Metric::KswapdShare).map_or(0.0, |share| share.median);
    let parts = [
        ("contention", "contention on the page table", contended.unwrap_or(0.0)),
        ("shootdowns", "TLB shootdowns", shot.unwrap_or(0.0)),
        ("faults", "evicting and faulting itself", rest),
    ];
    let largest = parts.iter().fold(parts[0], |best, part| if part.2 > best.2 { *part } else { best });
    let (name, binds) = match () {
        () if rates.ratio.median >= DEVICE_BOUND => {
            ("device", "none of the three binds: the device is the limit".to_owned())
        }
        () if kswapd >= KSWAPD_BOUND => {
            ("kswapd", format!("the one kswapd binds ({} of a core)", Unit::Percent.show(kswapd)))
        }
        () => (largest.0, format!("{} cost most", largest.1)),
    };
    let seconds = |value: Option<f64>| value.map_or("–".into(), |value| Unit::Seconds.show(value));
    all.push(Finding {
        rule: "which-bottleneck-binds",
        rule_text: "of the mapped random reads on the most threads: no bottleneck binds from 0.9 of the direct rate on; else kswapd from 80 % of a core on; \
            else the largest of: contention (CPU of a fault on all CPUs less that on one), shootdowns (interrupts a page times the measured price of one), \
            and the rest of the CPU time above a direct read (faulting, scanning, unmapping, freeing). An estimate: prices are measured apart",
        experiment: Some(ID),
        p: None,
        kind: Kind::Fact,
        text: format!(
            "{}reclaim by {by}: {binds}. mmap reads {} against {} direct ({}), at {} of CPU a page against {}: contention {}, shootdowns {} \
             ({} interrupts a page), kswapd {} of a core, the rest {} (a cached fault alone is {}).",
            on(target),
            shown(rates.a, Unit::PerSecond),
            shown(rates.b, Unit::PerSecond),
            rates.show(),
            Unit::Seconds.show(whole),
            Unit::Seconds.show(floor),
            seconds(contended),
            seconds(shot),
            digits(per_page),
            Unit::Percent.show(kswapd),
            Unit::Seconds.show(rest),
            seconds(fault),
        ),
        trials: keys(&[map, direct]),
        key_figure: (by == "cgroup" && TargetKind::of(target) == TargetKind::File).then(|| KeyFigure {
            value: name.into(),
            detail: format!("{binds}; reads of mmap ÷ direct: {}", rates.show()),
        }),
    });
}

/// Reports the CPU time of scans for each GB, with and without a map, and the load of kswapd: scans evict most.
fn scan(groups: &[&Group<'_>], target: &str, by: &str, all: &mut Vec<Finding>) {
    let find = |id: &str| groups.iter().copied().find(|group| group.spec.method == id);
    let Some(map) = find(methods::MMAP_NORMAL.id).filter(|map| evicts(map)) else { return };
    for (other, what) in
        [(methods::PREAD_BUFFERED.id, "read calls through the page cache"), (methods::PREAD_DIRECT.id, "direct reads")]
    {
        let Some(other) = find(other) else { continue };
        let Some(comparison) = or_refused(compare(map, other, Metric::CpuPerGb), all) else { continue };
        let rate = |group: &Group<'_>| {
            group.spread(Metric::BytesPerS).map_or("–".into(), |s| shown(s, Unit::BytesPerSecond))
        };
        let kswapd = map.spread(Metric::KswapdShare).map_or(0.0, |share| share.median);
        all.push(Finding {
            rule: "scan-under-reclaim",
            rule_text: "CPU of the process and kswapd for 10^9 bytes scanned under full memory, through the map over the other way on as many threads",
            text: format!(
                "{}reclaim by {by}: {}a scanned GB costs {} of CPU through the map ({}, kswapd {} of a core) and {} by {what} ({}): {}.",
                on(target),
                comparison.caveat(),
                time(comparison.a),
                rate(map),
                Unit::Percent.show(kswapd),
                time(comparison.b),
                rate(other),
                comparison.show(),
            ),
            ..comparison.finding()
        });
    }
}

/// Compares the same work under kswapd and under a cgroup.
fn ways(summary: &Summary<'_>, all: &mut Vec<Finding>) {
    for (work, method, metric) in
        [("random", methods::MMAP_RANDOM.id, Metric::OpsPerS), ("scan", methods::MMAP_NORMAL.id, Metric::BytesPerS)]
    {
        for target in ["file", "ram"] {
            let by = |by: &str| summary.at(ID, &format!("{work}-{by}"), target);
            let (kswapd, cgroup) = (by("kswapd"), by("cgroup"));
            let threads = most(&kswapd);
            let (Some(a), Some(b)) = (with(&kswapd, method, threads), with(&cgroup, method, threads)) else {
                continue;
            };
            if !evicts(a) || !evicts(b) {
                continue;
            }
            let Some(comparison) = or_refused(compare(a, b, metric), all) else { continue };
            all.push(Finding {
                rule: "kswapd-against-cgroup",
                rule_text: "rate of the same mapped work where kswapd, one thread, evicts, over that where the faulting threads evict for themselves \
                    (a cgroup). The memory that is left differs: a ballast leaves more, which helps random reads",
                text: format!(
                    "{}{}{} reaches {} where kswapd evicts and {} where a cgroup makes the threads evict: {}.",
                    on(target),
                    comparison.caveat(),
                    a.label(),
                    shown(comparison.a, metric.unit()),
                    shown(comparison.b, metric.unit()),
                    comparison.show(),
                ),
                ..comparison.finding()
            });
        }
    }
}
