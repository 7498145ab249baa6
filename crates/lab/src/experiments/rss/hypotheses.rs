//! Published claims about mmap that the records of `rss` decide.

use super::pressure::{READER_KILLED, SHARE};
use super::reads::RSS;
use super::{DATA, ID, PRESSURE, READS};
use crate::format::Unit;
use crate::judge::best;
use crate::judge::bound::Bound;
use crate::judge::claim::{
    Claim, Decision, Outcome, Places, Records, Test, against, figure, of_variant, values_of, with_value,
};
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
        test: Test::Own(doubles),
    },
    Claim {
        id: "mapped-memory-is-given-back",
        hypothesis: "What a map has in memory is in no other program's way: the kernel takes it back when memory is short.",
        source: "llama.cpp, issue 864, 2023, on a model that \"uses only 5 GB\"; the usual answer to high RSS",
        experiment: ID,
        rule: "memory that a neighbour in the same cgroup gets before the kernel kills a process, over the limit: at least 0.75 beside a process that reads through a \
            map, which is never killed",
        needs: &[],
        test: Test::Own(given_back),
    },
];

/// Decides the claim at each size of the data.
fn doubles(records: &Records<'_>) -> Decision {
    let mut places = Places::default();
    let groups = of_variant(records, ID, READS);
    for size in values_of(&groups, DATA) {
        let all = with_value(&groups, DATA, size);
        let map = all.iter().copied().find(|group| group.family() == Family::Mapped);
        let calls = all.iter().copied().filter(|group| matches!(group.family(), Family::Direct | Family::Buffered));
        let (Some(map), Some(calls)) = (map, best(calls, Metric::Bytes(RSS))) else { continue };
        let place = format!("data {size} times the memory");
        let Some(ratio) = places.ratio(&place, (map, calls), Metric::Bytes(RSS), &[]) else { continue };
        let text = format!("{place}: {}", against(map, calls, Metric::Bytes(RSS), &ratio));
        places.add(Bound::at_least(2.0).decide(&ratio), text, &[map, calls]);
    }
    places.decide("`nofault lab rss` measures it")
}

/// Decides the claim by the neighbour's memory, and by the process that was killed.
fn given_back(records: &Records<'_>) -> Decision {
    let mut places = Places::default();
    for group in of_variant(records, ID, PRESSURE).into_iter().filter(|group| group.family() == Family::Mapped) {
        let Some(share) = figure(group, SHARE) else { continue };
        let runs = group.values(Metric::Figure(READER_KILLED));
        let killed = runs.iter().filter(|killed| **killed > 0.0).count();
        let text = format!("{}: {} of the limit", group.title(), share.show(Unit::Ratio));
        if killed > 0 {
            let text = format!("{text}; the reading process was killed in {killed} of {} runs", runs.len());
            places.add(Outcome::DidNotHold, text, &[group]);
        } else {
            places.add(Bound::at_least(0.75).decide(&share), text, &[group]);
        }
    }
    places.decide("it takes a cgroup of the lab's own: as root, `nofault lab rss`")
}
