//! Rules of `batch`: for each size of a request, touches of a map, the fastest way of a map, and the fastest other method.

use super::{BATCH_GET_MANY, BATCH_TOUCH, COLD, ID, PAGES, RATE};
use crate::format::Unit;
use crate::judge::places::{values_of, with_value};
use crate::judge::{Finding, best, compare, on, or_refused};
use crate::methods::Family;
use crate::summary::{Group, Metric, Summary};

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
            fastest(&of_size(&groups, *pages), (variant, target, *pages), is_key, all);
        }
    }
}

/// The sizes of requests that were measured, in pages.
pub(super) fn sizes(groups: &[&Group<'_>]) -> Vec<u32> {
    values_of(groups, PAGES).into_iter().map(|pages| pages as u32).collect()
}

/// The groups whose requests have this number of pages, with a valid figure.
pub(super) fn of_size<'g, 'a>(groups: &[&'g Group<'a>], pages: u32) -> Vec<&'g Group<'a>> {
    with_value(groups, PAGES, f64::from(pages)).into_iter().filter(|group| !group.never_filled()).collect()
}

/// The method of this id.
pub(super) fn of<'g, 'a>(groups: &[&'g Group<'a>], method: &str) -> Option<&'g Group<'a>> {
    groups.iter().copied().find(|group| group.spec.method == method)
}

/// The fastest way of a map, and the fastest other method, among groups of one size.
pub(super) fn sides<'g, 'a>(groups: &[&'g Group<'a>]) -> Option<(&'g Group<'a>, &'g Group<'a>)> {
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
