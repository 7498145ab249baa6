//! Rules of `rss`: the memory of a process that reads through a map against the memory of the same reads in other ways,
//! and the process killed when memory runs out.

use super::pressure::{NEIGHBOUR, NEIGHBOUR_KILLED, READER_KILLED, SHARE};
use super::reads::{CHARGED, RSS, WORKING_SET};
use super::{DATA, ID, PRESSURE, READS};
use crate::format::Unit;
use crate::judge::places::{figure, values_of, with_value};
use crate::judge::{Finding, Kind, compare, keys, on, or_refused};
use crate::methods::Family;
use crate::summary::{Group, Metric, Summary};

/// Adds the findings that the records of `rss` support.
pub(super) fn find(summary: &Summary<'_>, all: &mut Vec<Finding>) {
    for (variant, target) in summary.places(ID) {
        let groups = summary.at(ID, variant, target);
        match variant {
            READS => {
                let sizes = values_of(&groups, DATA);
                for size in &sizes {
                    memory(&with_value(&groups, DATA, *size), (target, *size), sizes.last() == Some(size), all);
                }
            }
            PRESSURE => all.extend(pressure(&groups, target)),
            _ => {}
        }
    }
}

fn shown(group: &Group<'_>, metric: Metric) -> String {
    group.spread(metric).map_or("–".into(), |spread| metric.unit().show(spread.median))
}

/// The size of the data in words.
fn size_words(size: f64) -> String {
    format!("{size} times the memory")
}

fn memory(groups: &[&Group<'_>], (target, size): (&str, f64), is_key: bool, all: &mut Vec<Finding>) {
    let of = |family: Family| groups.iter().copied().find(|group| group.family() == family);
    let (Some(map), Some(direct)) = (of(Family::Mapped), of(Family::Direct)) else { return };
    let Some(comparison) = or_refused(compare(map, direct, Metric::Bytes(RSS)), all) else { return };
    let each = |group: &Group<'_>| {
        let charged = group.spread(Metric::Bytes(CHARGED)).map_or(String::new(), |charged| {
            let working = shown(group, Metric::Bytes(WORKING_SET));
            format!(", its cgroup {} (working set {working})", Unit::Bytes.show(charged.median))
        });
        let rate = shown(group, Metric::OpsPerS);
        format!("{} at {rate} has {}{charged}", group.title(), shown(group, Metric::Bytes(RSS)))
    };
    let others = [Family::Buffered, Family::Pool].into_iter().filter_map(of);
    let others: Vec<String> = [map, direct].into_iter().chain(others).map(each).collect();
    all.push(Finding {
        rule: "rss",
        rule_text: "largest resident memory (RSS) of a process whose threads read random pages through a map, over the same with reads past the page cache; same \
            data, threads and limit; the rates stand beside it",
        text: format!(
            "{}{}with data of {}, a process that reads through a map has {} the RSS of a process that reads past the page cache: {}.",
            on(target),
            comparison.caveat(),
            size_words(size),
            comparison.show(),
            others.join("; "),
        ),
        key_figure: is_key.then(|| {
            let (a, b) = (shown(map, Metric::Bytes(RSS)), shown(direct, Metric::Bytes(RSS)));
            comparison.key_figure(&format!("data of {}: {a} against {b}", size_words(size)))
        }),
        ..comparison.finding()
    });
}

/// The processes that were killed, in words; an empty text without a figure.
pub(super) fn killed(group: &Group<'_>) -> String {
    let died = |name: &'static str| group.values(Metric::Figure(name));
    let mut all: Vec<(&str, usize)> = Vec::new();
    for (reader, neighbour) in died(READER_KILLED).into_iter().zip(died(NEIGHBOUR_KILLED)) {
        let words = match (reader > 0.0, neighbour > 0.0) {
            (true, true) => "both",
            (true, false) => "the reader",
            _ => "the neighbour",
        };
        match all.iter_mut().find(|(known, _)| *known == words) {
            Some((_, count)) => *count += 1,
            None => all.push((words, 1)),
        }
    }
    let runs: usize = all.iter().map(|(_, count)| count).sum();
    match all.as_slice() {
        [(words, _)] => (*words).to_owned(),
        several => {
            let each = several.iter().map(|(words, count)| format!("{words} in {count} of {runs}"));
            each.collect::<Vec<_>>().join(", ")
        }
    }
}

/// Says for each method which process was killed, and how much memory the neighbour had by then.
fn pressure(groups: &[&Group<'_>], target: &str) -> Option<Finding> {
    let each = |group: &&Group<'_>| {
        let share = figure(group, SHARE)?;
        Some(format!(
            "beside {} {}, once the neighbour has {} of the limit ({})",
            group.title(),
            killed(group),
            Unit::Percent.show(share.median * 100.0),
            shown(group, Metric::Bytes(NEIGHBOUR)),
        ))
    };
    let told: Vec<String> = groups.iter().filter_map(each).collect();
    if told.is_empty() {
        return None;
    }
    Some(Finding {
        rule: "killed-first",
        rule_text: "the process that the kernel kills in a cgroup in which one process reads data larger than the limit and a neighbour allocates memory until one is \
            killed; clean pages of a file can be taken back, memory of a process cannot",
        experiment: Some(ID),
        kind: Kind::Fact,
        text: format!("{}when memory runs out, the kernel kills {}.", on(target), told.join("; ")),
        p: None,
        trials: keys(groups),
        key_figure: None,
    })
}
