//! Rules on the records of `batch`: published claims, findings, and reasons for the verdict.

use super::super::of_size;
use super::{BATCH_GET_MANY, BATCH_RING, BATCH_RING_BUFFERED, BATCH_TOUCH, COLD, ID, PAGES, RATE, WARM};
use crate::format::Unit;
use crate::judge::bound::Bound;
use crate::judge::claim::{Claim, Test};
use crate::judge::curve::Curve;
use crate::judge::places::{Records, count_of, is, values_of};
use crate::judge::reason::{Evidence, Reason, Rule, Workload, whole_curve};
use crate::judge::rule::{Among, PairFigure, Pairs};
use crate::judge::{Finding, best, compare, on, or_refused};
use crate::methods::Family;
use crate::summary::{Group, Metric, Summary, target_title};

/// The published claims about mmap that the records of `batch` decide.
pub(super) static CLAIMS: &[Claim] = &[
    Claim {
        id: "hints-match-a-ring",
        hypothesis: "A map is slow only as it reads one page at a time: asked for all pages of a batch first, it is about as fast as io_uring.",
        source: "\"mmap at queue depth 1\", discussion of Lucene, issue 16656, 2026",
        experiment: ID,
        rule: "pages per second of requests for many cold pages: the fastest map that is asked first (WILLNEED, process_madvise, POPULATE_READ, threads) over \
            io_uring with O_DIRECT: at least 0.8; held in part where only some sizes of a request reach it",
        needs: &[],
        test: Test::Pairs(Pairs {
            among: Among::Places(|variant| variant == COLD),
            each: |group| is(group, &BATCH_RING) && !group.never_filled(),
            with: |ring, other| {
                let is_asked = other.family() == Family::Mapped && !is(other, &BATCH_TOUCH);
                is_asked && is_as_large(ring, other)
            },
            inverse: true,
            bound: Bound::at_least(0.8),
            ..BY_SIZE
        }),
    },
    Claim {
        id: "warm-ring-is-slower",
        hypothesis: "Where the data is in memory, a ring is several times slower than a map.",
        source: "Qdrant, pull request 9852, 2026: 4.7 ms against 0.8 ms for 4096 vectors",
        experiment: ID,
        rule: "pages per second of requests for many pages in memory: touches of the map over the faster of io_uring through the page cache and past it: at least 2",
        needs: &[],
        test: Test::Pairs(Pairs {
            among: Among::Places(|variant| variant == WARM),
            each: |group| is(group, &BATCH_TOUCH) && !group.never_filled(),
            with: |touch, other| {
                (is(other, &BATCH_RING) || is(other, &BATCH_RING_BUFFERED)) && is_as_large(touch, other)
            },
            inverse: false,
            bound: Bound::at_least(2.0),
            ..BY_SIZE
        }),
    },
];

/// The part that both rules share: at each size of a request a method and the best of others.
const BY_SIZE: Pairs = Pairs {
    by: Some(|group| count_of(group, PAGES)),
    best_by: Some(RATE),
    compared: PairFigure::Ratio(RATE),
    place: |group| {
        let pages = count_of(group, PAGES).unwrap_or_default();
        format!("{}, {pages:.0} pages", target_title(&group.spec.target.label))
    },
    words: |pair| format!("{}: {}", pair.place, pair.against(RATE)),
    missing: "`nofault lab batch` measures it",
    ..Pairs::NONE
};

/// Whether a valid figure is of requests as large as another's.
fn is_as_large(one: &Group<'_>, other: &Group<'_>) -> bool {
    !other.never_filled() && count_of(other, PAGES) == count_of(one, PAGES)
}

/// The rules of the verdict for which `batch` gives evidence, each with the function that finds the evidence in the
/// records.
pub(super) static EVIDENCE: &[Evidence] = &[Evidence::of(Rule::Throughput, cold), Evidence::of(Rule::InMemory, warm)];

fn cold(records: &Records<'_>, _: &Workload) -> Vec<Reason> {
    of_variant(records, COLD, "throughput")
}

fn warm(records: &Records<'_>, _: &Workload) -> Vec<Reason> {
    of_variant(records, WARM, "in memory")
}

/// Compares the fastest way of a map with the fastest other one at each size of a request. One thread answers the requests,
/// whatever number of threads the user has.
fn of_variant(records: &Records<'_>, wanted: &str, rule: &'static str) -> Vec<Reason> {
    let mut reasons = Vec::new();
    for (variant, target) in records.summary.places(ID).into_iter().filter(|(variant, _)| *variant == wanted) {
        let groups = records.summary.at(ID, variant, target);
        let valid: Vec<&Group<'_>> =
            sizes(&groups).into_iter().flat_map(|pages| of_size(&groups, PAGES, f64::from(pages))).collect();
        let side = |map: bool| {
            let side = valid.iter().copied().filter(|group| (group.family() == Family::Mapped) == map);
            Curve::of(side, RATE)
        };
        let what = format!("requests for many {variant} pages");
        reasons.extend(side(true).over(&side(false), RATE).ok().map(|found| whole_curve(rule, &found, RATE, &what)));
    }
    reasons
}

// Rules of `batch`: for each size of a request, touches of a map, the fastest way of a map, and the fastest other method.

/// The time of one request.
pub(super) const REQUEST: Metric = Metric::Latency("op", 500);

/// Adds the findings that the records of `batch` support.
pub(super) fn find(summary: &Summary<'_>, all: &mut Vec<Finding>) {
    for (variant, target) in summary.places(ID) {
        let groups = summary.at(ID, variant, target);
        let sizes = sizes(&groups);
        for pages in &sizes {
            // Of the largest request most is lost by one page at a time.
            let is_key = variant == COLD && Some(pages) == sizes.last();
            fastest(&of_size(&groups, PAGES, f64::from(*pages)), (variant, target, *pages), is_key, all);
        }
    }
}

/// The sizes of requests that were measured, in pages.
pub(super) fn sizes(groups: &[&Group<'_>]) -> Vec<u32> {
    values_of(groups, PAGES).into_iter().map(|pages| pages as u32).collect()
}

/// The method of this id.
pub(super) fn of<'g, 'a>(groups: &[&'g Group<'a>], method: &str) -> Option<&'g Group<'a>> {
    groups.iter().copied().find(|group| group.spec.method == method)
}

/// The fastest way of a map, and the fastest other method, among groups of one size.
fn sides<'g, 'a>(groups: &[&'g Group<'a>]) -> Option<(&'g Group<'a>, &'g Group<'a>)> {
    let (maps, others): (Vec<&Group<'_>>, Vec<&Group<'_>>) =
        groups.iter().copied().partition(|group| group.family() == Family::Mapped);
    Some((best(maps, RATE)?, best(others, RATE)?))
}

fn time(group: &Group<'_>) -> String {
    group.spread(REQUEST).map_or("–".into(), |spread| Unit::Seconds.show(spread.median))
}

fn fastest(groups: &[&Group<'_>], (variant, target, pages): (&str, &str, u32), is_key: bool, all: &mut Vec<Finding>) {
    let Some((map, other)) = sides(groups) else { return };
    let Some(comparison) = or_refused(compare(map, other, RATE), all) else { return };
    let touch = of(groups, BATCH_TOUCH.id).filter(|touch| !std::ptr::eq(*touch, map));
    let touch = touch.map_or(String::new(), |touch| format!("{} by touching each, ", time(touch)));
    let pool = of(groups, BATCH_GET_MANY.id).filter(|pool| !std::ptr::eq(*pool, other));
    let pool = pool.map_or(String::new(), |pool| format!(", and {} by {}", time(pool), pool.title()));
    let detail = format!("{pages} pages, {} against {}", map.title(), other.title());
    all.push(Finding {
        rule: "batch",
        rule_text: "pages per second of one thread that answers requests of this size: the fastest way through a map (touches, hints, threads) over the \
            fastest other one; the times are medians of a request",
        text: format!(
            "{}{}a request for {pages} {variant} pages takes {touch}{} by {}, {} by {}{pool}: the fastest map's rate is {} the fastest other's.",
            on(target),
            comparison.caveat(),
            time(map),
            map.title(),
            time(other),
            other.title(),
            comparison.show(),
        ),
        key_figure: is_key.then(|| comparison.key_figure(&detail)),
        ..comparison.finding()
    });
}
