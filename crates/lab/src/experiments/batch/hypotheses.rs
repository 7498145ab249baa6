//! Published claims about mmap that the records of `batch` decide.

use super::{BATCH_RING, BATCH_RING_BUFFERED, BATCH_TOUCH, COLD, ID, PAGES, RATE, WARM};
use crate::judge::bound::Bound;
use crate::judge::claim::{Claim, Test};
use crate::judge::places::{count_of, is};
use crate::judge::rule::{Among, PairFigure, Pairs};
use crate::methods::Family;
use crate::summary::{Group, target_title};

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
