//! Published claims about mmap that the records of `rss` decide.

use super::pressure::{READER_KILLED, SHARE};
use super::reads::RSS;
use super::{DATA, ID, PRESSURE, READS};
use crate::format::Unit;
use crate::judge::bound::Bound;
use crate::judge::claim::{Claim, Test};
use crate::judge::places::{count_of, figure};
use crate::judge::rule::{Among, Each, Limit, PairFigure, Pairs};
use crate::methods::Family;
use crate::summary::Metric;

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
