//! Rules on the records of `stalls`: published claims, findings, and reasons for the verdict.

use super::{AHEAD, ENGINE_SCAN, ENGINE_SCAN_NOPREFETCH, FITS, ID, LEAF_SCAN};
use crate::format::{Unit, bytes};
use crate::judge::claim::{Claim, at_least};
use crate::judge::places::{Records, explicit, is, is_explicit, is_mapped, mapped};
use crate::judge::reason::{Evidence, Reason, Rule, STALL_S, Side, Workload, reason};
use crate::judge::{Finding, best, compare, on, or_refused};
use crate::methods;
use crate::summary::{Family, Group, Metric, Summary};

/// The published claims about mmap that the records of `stalls` decide.
pub(super) static CLAIMS: &[Claim] = &[Claim {
    id: "workarounds-do-not-cure",
    hypothesis: "Hints, locks and helper threads do not keep a map from stalling.",
    source: "Crotty, Leis, Pavlo, CIDR 2022, §3.2",
    experiment: ID,
    rule: "p99.9 of an access with the best work-around, over explicit I/O's asked in the same way, at least 2; without the methods that \
            probe, which time waits apart from accesses",
    needs: &[],
    test: at_least(
        &["ahead"],
        Metric::Latency("op", 999),
        |group| is_mapped(group) && !is(group, &methods::MMAP) && !group.waits_apart(),
        is_explicit,
        2.0,
        "`nofault lab stalls` measures it",
    ),
}];

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

// Rules for `stalls`: how much each work-around shortens the waits of a mapping, and the resources it takes.

/// The metric that judges methods, the 99.9th percentile of an access: the single longest access of a run is one event.
const TAIL: Metric = Metric::Latency("op", 999);
const LONGEST: Metric = Metric::Latency("op", 1000);

/// Adds the findings that the records of `stalls` support.
pub(super) fn find(summary: &Summary<'_>, all: &mut Vec<Finding>) {
    for (variant, target) in summary.places(ID) {
        let groups = summary.at(ID, variant, target);
        match variant {
            AHEAD => {
                against_the_ring(&groups, target, all);
                work_arounds(&groups, target, "random pages in an order known ahead", all);
            }
            FITS => work_arounds(&groups, target, "a working set that fits, beside a background load", all),
            LEAF_SCAN => {
                leaf_scan(&groups, target, all);
                mapped_leaf_scan(&groups, target, all);
            }
            _ => {}
        }
    }
}

/// Formats a group's stalls: `118 µs at p99.9, 4.1 ms at worst`.
fn stall(group: &Group<'_>) -> String {
    let show = |metric| group.spread(metric).map_or("–".to_owned(), |spread| Unit::Seconds.show(spread.median));
    format!("{} at p99.9, {} at worst", show(TAIL), show(LONGEST))
}

/// The resources that a work-around takes: `4 more threads, 128 MiB of memory, 0.4 s beforehand, waits of 2 ms (p99.9)
/// apart`; empty for none.
pub(crate) fn price(group: &Group<'_>) -> String {
    let figure = |name| group.spread(Metric::Figure(name)).map_or(0.0, |spread| spread.median);
    let mut parts = Vec::new();
    let threads = figure("extra_threads");
    if threads > 0.0 {
        parts.push(if threads > 1.0 { format!("{threads:.0} more threads") } else { "one more thread".into() });
    }
    if figure("extra_memory_bytes") > 0.0 {
        parts.push(format!("{} of memory", bytes(figure("extra_memory_bytes") as u64)));
    }
    // Mapping itself takes some microseconds.
    if figure("prepare_s") > 0.001 {
        parts.push(format!("{} beforehand", Unit::Seconds.show(figure("prepare_s"))));
    }
    if let Some(wait) = group.spread(Metric::Latency("wait", 999)) {
        parts.push(format!("waits of {} (p99.9) apart", Unit::Seconds.show(wait.median)));
    }
    parts.join(", ")
}

/// Names a method with the resources that it takes, for a sentence.
fn named(group: &Group<'_>) -> String {
    let price = price(group);
    if price.is_empty() { group.label() } else { format!("{} ({price})", group.label()) }
}

fn rate(group: &Group<'_>) -> String {
    group.spread(Metric::OpsPerS).map_or("–".into(), |spread| Unit::PerSecond.show(spread.median))
}

fn work_arounds(groups: &[&Group<'_>], target: &str, what: &str, all: &mut Vec<Finding>) {
    let Some(plain) = groups.iter().copied().find(|group| group.spec.method == methods::MMAP) else { return };
    let others = groups
        .iter()
        .copied()
        .filter(|group| group.family() == Family::Mapped && group.spec.method != methods::MMAP && !group.waits_apart());
    let Some(chosen) = best(others, TAIL) else { return };
    let Some(comparison) = or_refused(compare(chosen, plain, TAIL), all) else { return };
    all.push(Finding {
        rule: "work-around",
        rule_text: "99.9th percentile of how long the thread is held by one access, the work-around's own calls included: the mapped \
            work-around where it is smallest, over plain touches; without the methods that probe, which time waits apart from accesses",
        text: format!(
            "{}{what}: {}plain touches hold the thread {} ({}); of the work-arounds {} has the smallest tail: {} ({}): {} of it.",
            on(target),
            comparison.caveat(),
            stall(plain),
            rate(plain),
            named(chosen),
            stall(chosen),
            rate(chosen),
            comparison.show(),
        ),
        ..comparison.finding()
    });
}

fn against_the_ring(groups: &[&Group<'_>], target: &str, all: &mut Vec<Finding>) {
    let of = |wanted: fn(Family) -> bool| groups.iter().copied().filter(move |group| wanted(group.family()));
    let Some(ring) = best(of(Family::is_explicit), TAIL) else { return };
    let Some(map) = best(of(|family| family == Family::Mapped), Metric::OpsPerS) else { return };
    let Some(comparison) = or_refused(compare(map, ring, Metric::OpsPerS), all) else { return };
    all.push(Finding {
        rule: "work-around-against-reads-in-flight",
        rule_text: "accesses a second of one thread: the fastest mapped work-around over reads in flight on a ring, the same order known as \
            far ahead",
        text: format!(
            "{}{}the fastest mapped work-around, {}, gives {} and holds the thread {}; one thread with reads in flight gives {} and waits {}: {}.",
            on(target),
            comparison.caveat(),
            named(map),
            rate(map),
            stall(map),
            rate(ring),
            stall(ring),
            comparison.show(),
        ),
        key_figure: Some(comparison.key_figure(&format!("{}: {} against {}", named(map), rate(map), rate(ring)))),
        ..comparison.finding()
    });
}

fn leaf_scan(groups: &[&Group<'_>], target: &str, all: &mut Vec<Finding>) {
    let of = |method: &str| groups.iter().copied().find(|group| group.spec.method == method);
    let (Some(with), Some(without)) = (of(ENGINE_SCAN.id), of(ENGINE_SCAN_NOPREFETCH.id)) else { return };
    let Some(comparison) = or_refused(compare(with, without, Metric::OpsPerS), all) else { return };
    let show = |group: &Group<'_>| format!("{} (an entry: {})", rate(group), stall(group));
    all.push(Finding {
        rule: "leaf-scan-prefetch",
        rule_text: "entries a second of the engine's walk through its leaves: with the pool asking for the leaves to come, over without",
        text: format!(
            "{}{}the engine walks its leaves at {} when its pool asks for them early, at {} when it does not: {}.",
            on(target),
            comparison.caveat(),
            show(with),
            show(without),
            comparison.show(),
        ),
        ..comparison.finding()
    });
}

/// Compares the fastest scan of the mapped tree with the engine's, and names all of them.
fn mapped_leaf_scan(groups: &[&Group<'_>], target: &str, all: &mut Vec<Finding>) {
    let maps = || groups.iter().copied().filter(|group| group.family() == Family::Mapped);
    let engine = groups.iter().copied().find(|group| group.spec.method == ENGINE_SCAN);
    let (Some(map), Some(engine)) = (best(maps(), Metric::OpsPerS), engine) else { return };
    let Some(comparison) = or_refused(compare(map, engine, Metric::OpsPerS), all) else { return };
    let show = |group: &Group<'_>| format!("{} {} (an entry: {})", group.title(), rate(group), stall(group));
    let each: Vec<String> = maps().chain([engine]).map(show).collect();
    all.push(Finding {
        rule: "leaf-scan-mapped",
        rule_text: "entries a second of a walk through the leaves of the same tree over a mapped file, with the hint where it is fastest, over the \
            engine's with its pool asking for the leaves to come; leaves in the order of their keys in both files, small pages, the same memory",
        text: format!(
            "{}{}the fastest walk through the leaves of a mapped tree, {}, has {} the rate of the engine's: {}.",
            on(target),
            comparison.caveat(),
            map.title(),
            comparison.show(),
            each.join("; "),
        ),
        ..comparison.finding()
    });
}
