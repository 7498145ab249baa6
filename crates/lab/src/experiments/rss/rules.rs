//! Rules on the records of `rss`: published claims, findings, and reasons for the verdict.

use super::trial::{CHARGED, NEIGHBOUR, NEIGHBOUR_KILLED, READER_KILLED, RSS, SHARE, WORKING_SET};
use super::{DATA, ID, PRESSURE, READS};
use crate::format::Unit;
use crate::judge::bound::Bound;
use crate::judge::claim::{Claim, Test};
use crate::judge::places::{count_of, figure, values_of, with_value};
use crate::judge::rule::{Among, Each, Limit, PairFigure, Pairs};
use crate::judge::{Finding, Kind, compare, keys, on, or_refused};
use crate::methods::Family;
use crate::summary::{Group, Metric, Summary};

/// The published claims about mmap that the records of `rss` decide.
pub(super) static CLAIMS: &[Claim] = &[
    Claim {
        id: "map-doubles-rss",
        hypothesis: "A process that reads through a map shows several times the memory of one that reads by itself.",
        source: "polars, pull request 29091, 2026: RSS of 8.13 GB with a map, 2.43 GB with read calls",
        experiment: ID,
        rule: "largest RSS of a process that reads random pages through a map, over the smallest of those that make the same reads by calls, past the page cache and \
            through it, at each size of the data: at least 2",
        needs: &[],
        test: Test::Pairs(Pairs {
            among: Among::Variants(&[READS]),
            each: |group| group.family() == Family::Mapped,
            by: Some(|group| count_of(group, DATA)),
            with: |map, other| {
                let is_call = matches!(other.family(), Family::Direct | Family::Buffered);
                is_call && count_of(other, DATA) == count_of(map, DATA)
            },
            best_by: Some(Metric::Bytes(RSS)),
            compared: PairFigure::Ratio(Metric::Bytes(RSS)),
            bound: Bound::at_least(2.0),
            place: |group| format!("data {} times the memory", count_of(group, DATA).unwrap_or_default()),
            words: |pair| format!("{}: {}", pair.place, pair.against(Metric::Bytes(RSS))),
            missing: "`nofault lab rss` measures it",
            ..Pairs::NONE
        }),
    },
    Claim {
        id: "mapped-memory-is-given-back",
        hypothesis: "What a map has in memory is in no other program's way: the kernel takes it back when memory is short.",
        source: "llama.cpp, issue 864, 2023, on a model that \"uses only 5 GB\"; the usual answer to high RSS",
        experiment: ID,
        rule: "memory that a neighbour in the same cgroup gets before the kernel kills a process, over the limit: at least 0.75 beside a process that reads through a \
            map, which is never killed",
        needs: &[],
        test: Test::Each(Each {
            among: Among::Variants(&[PRESSURE]),
            which: |group| group.family() == Family::Mapped,
            figure: |group| figure(group, SHARE),
            limit: Limit::In(Bound::at_least(0.75)),
            refuted: |group| {
                let runs = group.values(Metric::Figure(READER_KILLED));
                let killed = runs.iter().filter(|killed| **killed > 0.0).count();
                (killed > 0).then(|| format!("the reading process was killed in {killed} of {} runs", runs.len()))
            },
            words: |group, share| format!("{}: {} of the limit", group.title(), share.show(Unit::Ratio)),
            missing: "it takes a cgroup of the lab's own: as root, `nofault lab rss`",
            ..Each::NONE
        }),
    },
];

// Rules of `rss`: the memory of a process that reads through a map against the memory of the same reads in other ways,
// and the process killed when memory runs out.

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
