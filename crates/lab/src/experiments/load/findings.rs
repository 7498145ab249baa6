//! Rules of `load`: the time until the file is in memory, and the rate of reading it again and again; each the fastest way of a
//! map against the fastest other one.

use super::{COLD, CYCLIC, DATA, ID, LOAD_KEPT, WARM};
use crate::format::{Unit, bytes, digits};
use crate::judge::places::{values_of, with_value};
use crate::judge::{Finding, best, best_pair, compare, on, or_refused};
use crate::methods::{Family, Pages};
use crate::summary::{Group, Metric, Summary};

/// Memory in use when the file was loaded: the process's own, and the page cache.
pub(super) const HELD: Metric = Metric::Figure("held_bytes");

/// Adds the findings that the records of `load` support.
pub(super) fn find(summary: &Summary<'_>, all: &mut Vec<Finding>) {
    for (variant, target) in summary.places(ID) {
        let groups = summary.at(ID, variant, target);
        match variant {
            CYCLIC => {
                values_of(&groups, DATA)
                    .into_iter()
                    .for_each(|size| cycle(&of_size(&groups, size), (target, size), all));
            }
            COLD | WARM => once(&groups, (variant, target), all),
            _ => {}
        }
    }
}

/// The groups with this size of the data, as a multiple of the memory, and a valid figure.
pub(super) fn of_size<'g, 'a>(groups: &[&'g Group<'a>], size: f64) -> Vec<&'g Group<'a>> {
    with_value(groups, DATA, size).into_iter().filter(|group| !group.never_filled()).collect()
}

fn parted<'g, 'a>(groups: &[&'g Group<'a>]) -> (Vec<&'g Group<'a>>, Vec<&'g Group<'a>>) {
    groups.iter().copied().partition(|group| group.family() == Family::Mapped)
}

fn show(group: &Group<'_>, metric: Metric, unit: Unit) -> String {
    group.spread(metric).map_or("–".into(), |spread| unit.show(spread.median))
}

/// The bytes that the device reads for each byte of work. A file that fits is read from no device but for a few blocks.
pub(super) fn from_device(group: &Group<'_>) -> String {
    group.spread(Metric::Amplification).map_or("–".into(), |spread| match spread.median {
        ..0.01 => "0.00".to_owned(),
        read => digits(read),
    })
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
        format!(
            " The file then takes {of_map} of memory by the map and {of_other} by the other, the page cache included."
        )
    });
    let detail = format!("{} against {}", map.title(), other.title());
    all.push(Finding {
        rule: "load",
        rule_text: "time from the first call until each page of the file was checked: the fastest way of a map over the fastest other one with memory in pages of the \
            same size; the kernel's counts of memory at that moment",
        text: format!(
            "{}{}a {variant} file of {file} is in memory after {} by {} and after {} by {}: the map takes {} the time.{memory}{huge}",
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
    let read = format!(" For each byte read through the map, the device reads {}.", from_device(map));
    let kept = others.iter().copied().find(|group| group.spec.method == LOAD_KEPT && group.key != other.key);
    let kept = kept.map_or(String::new(), |kept| format!(" {} reaches {}.", kept.title(), rate(kept)));
    all.push(Finding {
        rule: "load-cycle",
        rule_text: "bytes per second of one thread that reads the file from front to back over and over: the fastest way of a map over the fastest other one, \
            memory in pages of the same size",
        text: format!(
            "{}{}a file of {size} times the memory is read again and again at {} by {} and at {} by {}: the map has {} the rate.{read}{kept}",
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
