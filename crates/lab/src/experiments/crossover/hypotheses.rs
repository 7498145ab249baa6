//! The published claim about mmap that the records of `crossover` decide.

use super::{HOT_SET, ID};
use crate::judge::bound::Bound;
use crate::judge::claim::{Claim, Contribution, Test};
use crate::judge::places::{Places, Records, against};
use crate::methods;
use crate::summary::{Metric, target_title};

/// The published claims about mmap that the records of `crossover` decide.
pub(super) static CLAIMS: &[Claim] = &[Claim {
    id: "random-hint-forgets-hot-pages",
    hypothesis: "Since Linux 6.3 a map told RANDOM loses pages that are in use: reclaim ignores their accessed bits.",
    source: "Linux commit 8788f6781486; reports to bbolt, Elasticsearch and Lucene of slower databases",
    experiment: ID,
    rule: "a set of pages that fills half of the memory takes 95 % of the accesses: pages that the device reads for one access through the map told \
        RANDOM, over the same of a map told NORMAL on a device without read-ahead, and of buffered pread told RANDOM, on a RAM-backed device of the \
        lab's own; and bytes that the device reads for a get of YCSB C through LMDB with MDB_NORDAHEAD over those without it, on data larger than memory and a \
        device without read-ahead: each at least 1.5",
    needs: &[],
    test: Test::Together {
        every: false,
        missing: "it takes root: `nofault lab crossover --ram-device require`, and `nofault lab engines`",
    },
}];

/// Finds the device's reads for each access to a hot set.
pub(super) fn forgets<'s>(records: &'s Records<'s>) -> Contribution<'s> {
    let mut places = Places::default();
    for (variant, target) in records.summary.places(ID).into_iter().filter(|(variant, _)| *variant == HOT_SET) {
        let groups = records.summary.at(ID, variant, target);
        let of = |method: &str| groups.iter().copied().find(|group| group.spec.method == method);
        let Some(random) = of(methods::MMAP_RANDOM.id) else { continue };
        for other in [methods::MMAP_NORMAL.id, methods::PREAD_BUFFERED_RANDOM.id].into_iter().filter_map(of) {
            let place = target_title(target);
            let Some(ratio) = places.ratio(&place, (random, other), Metric::Amplification, &[]) else { continue };
            let text = format!("{place}: {}", against(random, other, Metric::Amplification, &ratio));
            places.add(Bound::at_least(1.5).decide(&ratio), text, &[random, other]);
        }
    }
    Contribution { experiment: ID, what: "reads of a hot set", places }
}
