//! Rules on the records of `load`: published claims, findings, and reasons for the verdict.

use super::super::of_size;
use super::{COLD, CYCLIC, DATA, ID, LOAD_DIRECT, LOAD_KEPT, LOAD_READ, LOAD_TOUCH, WARM};
use crate::format::{Unit, bytes, digits};
use crate::judge::bound::Bound;
use crate::judge::claim::{Claim, Test};
use crate::judge::places::{count_of, is, values_of};
use crate::judge::rule::{Among, Each, Limit, Ratio};
use crate::judge::{Finding, best, best_pair, compare, on, or_refused};
use crate::methods::{Family, Pages};
use crate::summary::{Group, Metric, Property, Summary, target_title};

/// The published claims about mmap that the records of `load` decide.
pub(super) static CLAIMS: &[Claim] = &[
    Claim {
        id: "direct-loads-3x-faster",
        hypothesis: "A model comes into memory 3 to 6 times faster by O_DIRECT into huge pages than through a map.",
        source: "llama.cpp, pull request 7420, 2024, on O_DIRECT with transparent huge pages",
        experiment: ID,
        rule: "time to load a cold file once: the fastest way of a map (touches, WILLNEED, POPULATE_READ) over io_uring with O_DIRECT into huge pages, which \
            the claim is about: at least 3",
        needs: &[],
        test: Test::Ratio(Ratio {
            variants: &[COLD],
            metric: Metric::Seconds,
            of: |group| group.family() == Family::Mapped,
            over: |group| group.spec.method == LOAD_DIRECT && group.conditions().pages == Pages::Huge,
            about: &[Property::Pages],
            bound: Bound::at_least(3.0),
            missing: "`nofault lab load` measures it",
        }),
    },
    Claim {
        id: "cache-keeps-nothing-of-a-cycle",
        hypothesis: "A file a little larger than memory, read from front to back again and again, gains nothing from the page cache.",
        source: "llama.cpp, issues 27928 and 29250, 2026, on models larger than memory; the textbook's case against LRU",
        experiment: ID,
        rule: "bytes that the device reads for each byte read of 1.25 times the memory, through a map and by read calls, both told nothing: each at least 0.9",
        needs: &[],
        test: Test::Each(Each {
            among: Among::Places(|variant| variant == CYCLIC),
            which: |group| {
                let is_a_little_larger = count_of(group, DATA).is_some_and(|data| (data - A_LITTLE).abs() < 1e-9);
                is_a_little_larger && !group.never_filled() && (is(group, &LOAD_TOUCH) || is(group, &LOAD_READ))
            },
            figure: |group| group.spread(Metric::Amplification),
            limit: Limit::In(Bound::at_least(0.9)),
            words: |group, read| {
                format!("{}, {}: {}", target_title(&group.spec.target.label), group.title(), read.show(Unit::Ratio))
            },
            missing: "`nofault lab load` measures it",
            ..Each::NONE
        }),
    },
];

/// The size of the data that is a little larger than memory, as a multiple of it.
const A_LITTLE: f64 = 1.25;

// Rules of `load`: the time until the file is in memory, and the rate of reading it again and again; each the fastest way of a
// map against the fastest other one.

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
                    .for_each(|size| cycle(&of_size(&groups, DATA, size), (target, size), all));
            }
            COLD | WARM => once(&groups, (variant, target), all),
            _ => {}
        }
    }
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
