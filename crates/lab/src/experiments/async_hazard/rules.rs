//! Rules on the records of `async`: published claims, findings, and reasons for the verdict.

use super::{
    ASYNC_MMAP, ASYNC_MMAP_TOUCHED, ASYNC_POOL, ASYNC_READ, ASYNC_URING, ID, OWN, RANDOM_TOUCH, SINGLE_MMAP, Spread,
    spread_of,
};
use crate::format::Unit;
use crate::judge::bound::Bound;
use crate::judge::claim::{Claim, Test};
use crate::judge::places::Records;
use crate::judge::reason::{Evidence, Reason, Rule, Workload, is_home, reason};
use crate::judge::rule::Ratio;
use crate::judge::{Comparison, Finding, compare, compare_about, on, or_refused, shown};
use crate::record::CacheState;
use crate::summary::{Family, Group, Metric, Property, Summary, is_plain};

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

/// The rules of the verdict for which `async` gives evidence, each with the function that finds the evidence in the
/// records.
pub(super) static EVIDENCE: &[Evidence] = &[Evidence::of(Rule::Stalls, stalls)];

/// Finds reasons for the verdict in the lateness of a timer among tasks waiting for cold data.
fn stalls(records: &Records<'_>, _: &Workload) -> Vec<Reason> {
    let tasks: Vec<&Group<'_>> = records
        .of(ID)
        .filter(|group| {
            let spec = group.spec;
            spec.cache == CacheState::Cold && is_plain(&spec.params) && spec.variant == "random-touch" && is_home(group)
        })
        .collect();
    let find = |method: &str| tasks.iter().copied().find(|group| group.spec.method == method);
    if let (Some(map), Some(read)) = (find(ASYNC_MMAP.id), find(ASYNC_READ.id).or(find(ASYNC_URING.id))) {
        let late = Metric::Latency("ticker", 990);
        let what = "lateness (p99) of a 1 ms timer beside async tasks on cold data";
        return reason("no stalls", map, read, late, what).into_iter().collect();
    }
    Vec::new()
}

// Rules for `async`: whether tasks on one executor wait at the same time, and how late its timer fires at that time.

/// Adds the findings that the records of `async` support.
pub(super) fn find(summary: &Summary<'_>, all: &mut Vec<Finding>) {
    for (variant, target) in summary.places(ID) {
        let groups = summary.at(ID, variant, target);
        for cache in [CacheState::Cold, CacheState::Warm] {
            let at: Vec<&Group<'_>> = groups
                .iter()
                .copied()
                .filter(|group| group.spec.cache == cache && is_plain(&group.spec.params))
                .collect();
            hazard(&at, variant, target, cache, all);
            ticker(&at, variant, target, cache, all);
        }
    }
    for (variant, target) in summary.places(ID) {
        for cache in [CacheState::Cold, CacheState::Warm] {
            let groups = summary.at(ID, variant, target);
            let at: Vec<&Group<'_>> = groups.into_iter().filter(|group| group.spec.cache == cache).collect();
            tasks(&at, target, cache, all);
        }
    }
}

fn is_async(method: &str) -> bool {
    matches!(spread_of(method), Some((Spread::Tasks { .. } | Spread::Ring | Spread::Pool, _)))
}

/// Whether the group's method uses one thread without an executor.
fn is_one_thread(group: &Group<'_>) -> bool {
    !is_async(&group.spec.method) && group.spec.params.threads <= 1
}

fn only_mapped<'g, 'a>(groups: &[&'g Group<'a>], wanted: impl Fn(&Group<'a>) -> bool) -> Option<&'g Group<'a>> {
    // The plain method stands before its variations in the table.
    let named = groups.iter().copied().filter(|group| group.family() == Family::Mapped && wanted(group));
    named.min_by_key(|group| OWN.iter().position(|method| method.id == group.spec.method))
}

fn hazard(groups: &[&Group<'_>], variant: &str, target: &str, cache: CacheState, all: &mut Vec<Finding>) {
    let Some(map) = only_mapped(groups, |group| is_async(&group.spec.method)) else { return };
    let read = groups.iter().copied().find(|group| is_async(&group.spec.method) && group.family() == Family::Buffered);
    let one = only_mapped(groups, is_one_thread);
    let many = only_mapped(groups, |group| !is_async(&group.spec.method) && group.spec.params.threads > 1);
    let place = if variant.is_empty() { format!("{cache}") } else { format!("{variant}, {cache}") };
    let mut push =
        |rule, rule_text, other: &Group<'_>, about, sentence: &dyn Fn(&str, &str, &str) -> String, is_key: bool| {
            let compared = compare_about(map, other, Metric::Seconds, about);
            let Some(comparison) = or_refused(compared, all) else { return };
            let (a, b) = (shown(comparison.a, Unit::Seconds), shown(comparison.b, Unit::Seconds));
            let text = sentence(&a, &b, &comparison.show());
            all.push(Finding {
                rule,
                rule_text,
                text: format!("{}{place}: {}{text}", on(target), comparison.caveat()),
                key_figure: is_key.then(|| comparison.key_figure(&format!("{a} against {b}"))),
                ..comparison.finding()
            });
        };
    if let Some(read) = read {
        push(
            "async-map-against-read",
            "time of the async tasks over a mapping over the same tasks' with awaited reads",
            read,
            &[],
            &|a, b, ratio| format!("the same async tasks take {a} over a mapping and {b} with awaited reads: {ratio}."),
            cache == CacheState::Cold && variant == RANDOM_TOUCH,
        );
    }
    if let Some(one) = one {
        push(
            "async-map-against-one-thread",
            "time of the async tasks over a mapping over one plain thread's over the same mapping: 1 means that `await` gained nothing",
            one,
            // Eight tasks on one thread, against one thread with one file after another.
            &[Property::InFlight],
            &|a, b, ratio| {
                format!(
                    "async tasks over a mapping take {a}, one thread without async {b}: {ratio} (1 means that nothing ran at the same time)."
                )
            },
            false,
        );
    }
    if let Some(many) = many {
        push(
            "async-map-against-threads",
            "time of the async tasks over a mapping over the time of as many threads over the same mapping",
            many,
            &[],
            &|a, b, ratio| format!("async tasks over a mapping take {a}, one thread for each file {b}: {ratio}."),
            false,
        );
    }
}

/// Reports how late a 1 ms timer fires on the executor of the tasks: its 99th percentile, because the largest value of
/// a run is a single event.
fn ticker(groups: &[&Group<'_>], variant: &str, target: &str, cache: CacheState, all: &mut Vec<Finding>) {
    let (metric, latest) = (Metric::Latency("ticker", 990), Metric::Latency("ticker", 1000));
    let asynchronous = |group: &&&Group<'_>| is_async(&group.spec.method) && group.spread(metric).is_some();
    let Some(map) = only_mapped(groups, |group| is_async(&group.spec.method)) else { return };
    let Some(read) = groups.iter().filter(asynchronous).find(|group| group.family() == Family::Buffered) else {
        return;
    };
    let Some(comparison) = or_refused(compare(map, read, metric), all) else { return };
    let place = if variant.is_empty() { format!("{cache}") } else { format!("{variant}, {cache}") };
    let most = |group: &Group<'_>| group.spread(latest).map_or("–".into(), |spread| shown(spread, Unit::Seconds));
    let (a, b) = (shown(comparison.a, Unit::Seconds), shown(comparison.b, Unit::Seconds));
    all.push(Finding {
        rule: "late-ticker",
        rule_text: "99th percentile, and the largest, of how late a 1 ms timer on the same executor fires, medians over the runs: mapping \
            against awaited reads, judged by the percentile",
        text: format!(
            "{}{place}: {}a 1 ms timer on the executor fires {a} late at p99 (worst {}) while tasks touch a mapping, {b} (worst {}) while \
             they await reads.",
            on(target),
            comparison.caveat(),
            most(map),
            most(read),
        ),
        ..comparison.finding()
    });
}

/// Compares tasks reading through the engine with tasks over a map, on the same executor.
fn tasks(groups: &[&Group<'_>], target: &str, cache: CacheState, all: &mut Vec<Finding>) {
    let find = |id: &str| groups.iter().find(|group| group.spec.method == id);
    // Data that is warm in the pool is in the process; a map is as warm once its pages were touched.
    let mapped = if cache == CacheState::Warm { ASYNC_MMAP_TOUCHED.id } else { ASYNC_MMAP.id };
    let (Some(pool), Some(map)) = (find(ASYNC_POOL.id), find(mapped)) else { return };
    let Some(comparison) = or_refused(compare(pool, map, Metric::Seconds), all) else { return };
    let late = Metric::Latency("ticker", 990);
    let timer = compare(pool, map, late).map_or(String::new(), |timer: Comparison<'_>| {
        let (a, b) = (shown(timer.a, Unit::Seconds), shown(timer.b, Unit::Seconds));
        format!("; a 1 ms timer on the executor fires {a} late at p99 beside it, {b} beside the map")
    });
    all.push(Finding {
        rule: "async-pool-against-map",
        rule_text: "time of the tasks that await the engine over the time of tasks that touch a mapping, on one single-threaded executor, same \
            touches; warm means in the pool, and in a map whose pages were touched before",
        text: format!(
            "{}{cache}: {}tasks that await the engine's pool take {}, tasks over a mapping {}: {}{timer}.",
            on(target),
            comparison.caveat(),
            shown(comparison.a, Unit::Seconds),
            shown(comparison.b, Unit::Seconds),
            comparison.show(),
        ),
        ..comparison.finding()
    });
}
