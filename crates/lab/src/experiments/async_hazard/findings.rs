//! Rules for `async`: whether tasks on one executor wait at the same time, and how late its timer fires at that time.

use super::{ASYNC_MMAP, ASYNC_MMAP_TOUCHED, ASYNC_POOL, ID, OWN, RANDOM_TOUCH, Spread, spread_of};
use crate::format::Unit;
use crate::judge::{Comparison, Finding, compare, compare_about, on, or_refused, shown};
use crate::record::CacheState;
use crate::summary::{Family, Group, Metric, Property, Summary, is_plain};

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
