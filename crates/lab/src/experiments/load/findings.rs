//! Rules of `load`: the time until the file is in memory, and the rate of reading it again and again; each the fastest way of a
//! map beside the fastest other one.

use super::methods::KEPT;
use super::{COLD, CYCLIC, ID, WARM, data_of};
use crate::format::{Unit, bytes, digits};
use crate::judge::{Finding, best, best_pair, compare, on, or_refused};
use crate::methods::{Family, Pages};
use crate::summary::{Group, Metric, Summary};

/// Memory that is in use when the file was loaded: the process's own, and the page cache.
pub(super) const HELD: Metric = Metric::Figure("held_bytes");

/// Adds the findings that the records of `load` support.
pub(super) fn find(summary: &Summary<'_>, all: &mut Vec<Finding>) {
    for (variant, target) in summary.places(ID) {
        let groups = summary.at(ID, variant, target);
        match variant {
            CYCLIC => {
                sizes(&groups).into_iter().for_each(|size| cycle(&of_size(&groups, size), (target, size), all));
            }
            COLD | WARM => once(&groups, (variant, target), all),
            _ => {}
        }
    }
}

/// The sizes of the data that is read again and again, as multiples of the memory, smallest first.
pub(super) fn sizes(groups: &[&Group<'_>]) -> Vec<f64> {
    let mut sizes: Vec<f64> = groups.iter().filter_map(|group| data_of(group)).collect();
    sizes.sort_by(f64::total_cmp);
    sizes.dedup();
    sizes
}

/// The groups with this size of the data and a valid figure.
pub(super) fn of_size<'g, 'a>(groups: &[&'g Group<'a>], size: f64) -> Vec<&'g Group<'a>> {
    let same = |group: &&Group<'_>| data_of(group).is_some_and(|own| (own - size).abs() < 1e-9);
    groups.iter().copied().filter(same).filter(|group| !group.never_filled()).collect()
}

fn parted<'g, 'a>(groups: &[&'g Group<'a>]) -> (Vec<&'g Group<'a>>, Vec<&'g Group<'a>>) {
    groups.iter().copied().partition(|group| group.family() == Family::Mapped)
}

fn show(group: &Group<'_>, metric: Metric, unit: Unit) -> String {
    group.spread(metric).map_or("–".into(), |spread| unit.show(spread.median))
}

fn held(group: &Group<'_>) -> Option<String> {
    Some(bytes(group.spread(HELD)?.median as u64))
}

fn once(groups: &[&Group<'_>], (variant, target): (&str, &str), all: &mut Vec<Finding>) {
    let (maps, others) = parted(groups);
    let Some((map, other)) = best_pair(&maps, &others, Metric::Seconds, &[]) else { return };
    let Some(comparison) = or_refused(compare(map, other, Metric::Seconds), all) else { return };
    let time = |group: &Group<'_>| show(group, Metric::Seconds, Unit::Seconds);
    let huge = best(others.iter().copied().filter(|group| group.conditions().pages == Pages::Huge), Metric::Seconds);
    let huge = huge.map_or(String::new(), |huge| {
        format!(" Into huge pages, which a map of this file does not have, {} takes {}.", huge.title(), time(huge))
    });
    let file = bytes(map.spec.target.data_bytes);
    let memory = held(map).zip(held(other)).map_or(String::new(), |(of_map, of_other)| {
        format!(" Then {of_map} of memory hold it by the one and {of_other} by the other, the page cache included.")
    });
    let detail = format!("{} against {}", map.title(), other.title());
    all.push(Finding {
        rule: "load",
        rule_text: "time from the first call until each page of the file was checked: the fastest way of a map over the fastest other one with memory in pages of the \
            same size; the kernel's counts of memory at that moment",
        text: format!(
            "{}{}a {variant} file of {file} is in memory after {} by {} and {} by {}: the map takes {}.{memory}{huge}",
            on(target),
            comparison.caveat(),
            time(map),
            map.title(),
            time(other),
            other.title(),
            comparison.show(),
        ),
        key_figure: (variant == COLD).then(|| comparison.key_figure(&detail)),
        ..comparison.finding()
    });
}

fn cycle(groups: &[&Group<'_>], (target, size): (&str, f64), all: &mut Vec<Finding>) {
    let (maps, others) = parted(groups);
    let Some((map, other)) = best_pair(&maps, &others, Metric::BytesPerS, &[]) else { return };
    let Some(comparison) = or_refused(compare(map, other, Metric::BytesPerS), all) else { return };
    let rate = |group: &Group<'_>| show(group, Metric::BytesPerS, Unit::BytesPerSecond);
    let device = |group: &Group<'_>| group.spread(Metric::Amplification).map(|spread| digits(spread.median));
    let read =
        device(map).map_or(String::new(), |read| format!(" The device reads {read} bytes for each through the map."));
    let kept = others.iter().copied().find(|group| group.spec.method == KEPT && group.key != other.key);
    let kept = kept.map_or(String::new(), |kept| format!(" {} reaches {}.", kept.title(), rate(kept)));
    all.push(Finding {
        rule: "load-cycle",
        rule_text: "bytes per second of one thread that reads the file from front to back over and over: the fastest way of a map over the fastest other one, \
            memory in pages of the same size",
        text: format!(
            "{}{}a file of {size} times the memory, read again and again, comes at {} by {} and {} by {}: the map has {} the rate.{read}{kept}",
            on(target),
            comparison.caveat(),
            rate(map),
            map.title(),
            rate(other),
            other.title(),
            comparison.show(),
        ),
        ..comparison.finding()
    });
}
