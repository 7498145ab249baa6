//! Rules on the records of `translate`: published claims, findings, and reasons for the verdict.

use super::{ACCESS, ARRAY, ARRAY_SMALL, HASH, HASH_PINNED, ID, LOOKUP, MAPPED, MAPPED_HUGE, SWIZZLED};
use crate::format::{Unit, bytes, digits};
use crate::judge::bound::Bound;
use crate::judge::claim::{Claim, Contribution, Test};
use crate::judge::places::{POOL_COSTS, Places, Records, against, count_of, is, of_variant, times};
use crate::judge::reason::{Evidence, Reason, Rule, Workload, nearest, reason, threads};
use crate::judge::rule::{Among, PairFigure, Pairs};
use crate::judge::{Comparison, Finding, Kind, are_equal, best_pair, compare, compare_about, or_refused, shown};
use crate::methods::Method;
use crate::summary::{Family, Group, Metric, Property, Summary};

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

/// The rules of the verdict for which `translate` gives evidence, each with the function that finds the evidence in the
/// records.
pub(super) static EVIDENCE: &[Evidence] = &[Evidence::of(Rule::InMemory, lookups)];

/// Finds reasons for the verdict in lookups in the largest working set.
fn lookups(records: &Records<'_>, workload: &Workload) -> Vec<Reason> {
    let mut reasons = Vec::new();
    // No access waits for a device, so more threads than CPUs do as much work as one thread for each CPU.
    let wanted = workload.threads.map(|count| count.min(records.file.run.machine.cpu_count.max(1)));
    let lookups: Vec<&Group<'_>> = records.of(ID).filter(|group| group.spec.variant == LOOKUP).collect();
    let set = |group: &Group<'_>| {
        group.spec.params.extra.get("working_set").and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0)
    };
    let largest = lookups.iter().map(|group| set(group)).fold(0.0, f64::max);
    let side = |map: bool| {
        let these = lookups
            .iter()
            .copied()
            .filter(|group| (set(group) - largest).abs() < 0.5 && (group.family() == Family::Mapped) == map);
        nearest(these.collect::<Vec<_>>(), wanted, threads)
    };
    if let Some((map, pool)) = best_pair(&side(true), &side(false), Metric::OpsPerS, &[]) {
        let found = reason("in memory", map, pool, Metric::OpsPerS, "lookups");
        reasons
            .extend(found.map(|reason| reason.at_thread_counts(wanted, [threads(map), threads(pool)], "lookups", map)));
    }
    reasons
}

// Rules for `translate`: the cost of finding a page in a pool, against the hardware's, and whether swizzling would pay.

/// Swizzling pays when a lookup through it takes less than this share of a lookup through the array; otherwise it is
/// not worth its bookkeeping.
const PAYS_BELOW: f64 = 0.9;
/// Two times count as similar when neither is longer than the other by more than this factor.
const SIMILAR: f64 = 1.25;

/// Adds the findings that the records of `translate` support.
pub(super) fn find(summary: &Summary<'_>, all: &mut Vec<Finding>) {
    for variant in [LOOKUP, ACCESS] {
        let groups = summary.at(ID, variant, "memory");
        pool_against_map(&groups, variant, all);
        pages_of_the_map(&groups, variant, all);
        pins(&groups, variant, all);
    }
    swizzling(&summary.at(ID, LOOKUP, "memory"), all);
}

/// Returns the sizes of the working sets, smallest first.
fn sizes(groups: &[&Group<'_>]) -> Vec<u64> {
    let mut sizes: Vec<u64> = groups.iter().map(|group| group.spec.target.data_bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

fn at<'g, 'a>(groups: &[&'g Group<'a>], method: &str, size: u64, threads: u32) -> Option<&'g Group<'a>> {
    groups.iter().copied().find(|group| {
        let spec = group.spec;
        spec.method == method && spec.target.data_bytes == size && spec.params.threads == threads
    })
}

fn what(variant: &str) -> &'static str {
    if variant == LOOKUP { "a B+tree lookup" } else { "a page access" }
}

fn both_times(comparison: &Comparison) -> (String, String) {
    (shown(comparison.a, Unit::Seconds), shown(comparison.b, Unit::Seconds))
}

/// Tests the paper's claim that a pool matches a map in memory, at the largest size and on one thread.
fn pool_against_map(groups: &[&Group<'_>], variant: &str, all: &mut Vec<Finding>) {
    let Some(size) = sizes(groups).pop() else { return };
    for (pool, map, is_key) in
        [(ARRAY_SMALL.id, MAPPED.id, true), (ARRAY.id, MAPPED_HUGE.id, false), (HASH.id, MAPPED_HUGE.id, false)]
    {
        let (Some(own), Some(map)) = (at(groups, pool, size, 1), at(groups, map, size, 1)) else { continue };
        let Some(comparison) = or_refused(compare(own, map, Metric::TimePerOp), all) else { continue };
        let ratio = comparison.ratio.median;
        let says = match ratio {
            ratio if ratio > SIMILAR => "the map is faster",
            ratio if ratio < 1.0 / SIMILAR => "the pool is faster",
            _ => "similar, as the paper has it",
        };
        let (a, b) = both_times(&comparison);
        all.push(Finding {
            rule: "pool-against-map-in-memory",
            rule_text: "time of one operation on one thread at the largest working set, through the pool's table over through the mapped file, \
                both in pages of the same size; 'similar' when neither takes more than a quarter longer",
            text: format!(
                "{}{} in {} of memory takes {a} through {} and {b} through the {}: {}; {says}.",
                comparison.caveat(),
                what(variant),
                bytes(size),
                own.title(),
                map.title(),
                comparison.show(),
            ),
            key_figure: (is_key && variant == LOOKUP)
                .then(|| comparison.key_figure(&format!("{a} against {b} in {}", bytes(size)))),
            ..comparison.finding()
        });
    }
}

/// Compares small pages with huge pages, for the map and for the pool.
fn pages_of_the_map(groups: &[&Group<'_>], variant: &str, all: &mut Vec<Finding>) {
    let Some(size) = sizes(groups).pop() else { return };
    for (small, huge, whose) in [(MAPPED.id, MAPPED_HUGE.id, "the map"), (ARRAY_SMALL.id, ARRAY.id, "the pool")] {
        let (Some(small), Some(huge)) = (at(groups, small, size, 1), at(groups, huge, size, 1)) else { continue };
        let compared = compare_about(small, huge, Metric::TimePerOp, &[Property::Pages]);
        let Some(comparison) = or_refused(compared, all) else { continue };
        let (a, b) = both_times(&comparison);
        all.push(Finding {
            rule: "page-size-in-memory",
            rule_text: "time of one operation on one thread at the largest working set, with the same method's memory in 4 KiB pages over huge ones",
            text: format!(
                "{}with {whose} in small pages {} in {} takes {a}, in huge pages {b}: {}.",
                comparison.caveat(),
                what(variant),
                bytes(size),
                comparison.show(),
            ),
            ..comparison.finding()
        });
    }
}

/// Reports the cost of locks and pins on top of the lookup, on one thread and on the largest number of threads.
fn pins(groups: &[&Group<'_>], variant: &str, all: &mut Vec<Finding>) {
    let Some(size) = sizes(groups).pop() else { return };
    let most = groups.iter().map(|group| group.spec.params.threads).max().unwrap_or(1);
    let mut counts = vec![1, most];
    counts.dedup();
    for threads in counts {
        let pair = (at(groups, HASH_PINNED.id, size, threads), at(groups, MAPPED_HUGE.id, size, threads));
        let (Some(pinned), Some(map)) = pair else { continue };
        let Some(comparison) = or_refused(compare(pinned, map, Metric::TimePerOp), all) else { continue };
        let (a, b) = both_times(&comparison);
        let on = if threads == 1 { "one thread".into() } else { format!("{threads} threads") };
        all.push(Finding {
            rule: "pins-and-locks",
            rule_text: "time of one operation through a hash table behind locks that pins and unpins each page (the textbook's pool) over that through \
                the map, both in huge pages, at the largest working set",
            text: format!(
                "{}on {on}, {} in {} takes {a} when each page is looked up under a lock and pinned, {b} through the map: {}.",
                comparison.caveat(),
                what(variant),
                bytes(size),
                comparison.show(),
            ),
            ..comparison.finding()
        });
    }
}

/// Reports whether the engine would gain by storing swizzled references (hints) in its inner nodes.
fn swizzling(groups: &[&Group<'_>], all: &mut Vec<Finding>) {
    let sizes = sizes(groups);
    let compared = |size: &u64| {
        let (swizzled, array) = (at(groups, SWIZZLED.id, *size, 1)?, at(groups, ARRAY.id, *size, 1)?);
        Some((*size, compare(swizzled, array, Metric::TimePerOp).ok()?))
    };
    let all_sizes: Vec<_> = sizes.iter().filter_map(compared).collect();
    let Some((size, comparison)) = all_sizes.last() else { return };
    let pays = comparison.kind == Kind::Difference && comparison.ratio.median < PAYS_BELOW;
    let (a, b) = both_times(comparison);
    let others: Vec<String> = all_sizes[..all_sizes.len() - 1]
        .iter()
        .map(|(size, comparison)| format!("{} in {}", digits(comparison.ratio.median), bytes(*size)))
        .collect();
    let others = if others.is_empty() { String::new() } else { format!(" (ratio {})", others.join(", ")) };
    all.push(Finding {
        rule: "would-swizzling-pay",
        rule_text: "time of a lookup over swizzled pointers over that through the page-table array, one thread, largest working set; hints pay when the \
            repeats tell the two apart and the ratio is below 0.9. The engine keeps ids dense, so the comparison is with its array",
        text: format!(
            "Swizzled hints in the engine {}: {}a lookup in {} takes {a} over swizzled pointers and {b} through the page-table array: {}{others}.",
            if pays { "would pay here" } else { "would not pay here" },
            comparison.caveat(),
            bytes(*size),
            comparison.show(),
        ),
        ..comparison.finding()
    });
}
