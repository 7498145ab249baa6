//! Published claims about mmap that the records of `batch` decide.

use super::findings::{of, of_size, sizes};
use super::{BATCH_RING, BATCH_RING_BUFFERED, BATCH_TOUCH, COLD, ID, RATE, WARM};
use crate::judge::best;
use crate::judge::bound::Bound;
use crate::judge::claim::{Claim, Decision, Places, Records, Test, against};
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
        test: Test::Own(hints),
    },
    Claim {
        id: "warm-ring-is-slower",
        hypothesis: "Where the data is in memory, a ring is several times slower than a map.",
        source: "Qdrant, pull request 9852, 2026: 4.7 ms against 0.8 ms for 4096 vectors",
        experiment: ID,
        rule: "pages per second of requests for many pages in memory: touches of the map over the faster of io_uring through the page cache and past it: at least 2",
        needs: &[],
        test: Test::Own(warm),
    },
];

/// Compares two choices of methods at each size of a request.
fn by_size(
    records: &Records<'_>,
    wanted: &str,
    bound: Bound,
    pair: for<'g, 'a> fn(&[&'g Group<'a>]) -> Option<(&'g Group<'a>, &'g Group<'a>)>,
) -> Decision {
    let mut places = Places::default();
    for (variant, target) in records.summary.places(ID).into_iter().filter(|(variant, _)| *variant == wanted) {
        let groups = records.summary.at(ID, variant, target);
        for pages in sizes(&groups) {
            let Some((a, b)) = pair(&of_size(&groups, pages)) else { continue };
            let place = format!("{}, {pages} pages", target_title(target));
            let Some(ratio) = places.ratio(&place, (a, b), RATE, &[]) else { continue };
            places.add(bound.decide(&ratio), format!("{place}: {}", against(a, b, RATE, &ratio)), &[a, b]);
        }
    }
    places.decide("`nofault lab batch` measures it")
}

fn hints(records: &Records<'_>) -> Decision {
    by_size(records, COLD, Bound::at_least(0.8), |groups| {
        let asked =
            groups.iter().copied().filter(|group| group.family() == Family::Mapped && group.spec.method != BATCH_TOUCH);
        Some((best(asked, RATE)?, of(groups, BATCH_RING.id)?))
    })
}

fn warm(records: &Records<'_>) -> Decision {
    by_size(records, WARM, Bound::at_least(2.0), |groups| {
        let rings = [BATCH_RING.id, BATCH_RING_BUFFERED.id].into_iter().filter_map(|method| of(groups, method));
        Some((of(groups, BATCH_TOUCH.id)?, best(rings, RATE)?))
    })
}
