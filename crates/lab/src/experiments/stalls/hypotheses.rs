//! Published claims about mmap that the records of `stalls` decide.

use super::ID;
use crate::judge::claim::{Claim, at_least};
use crate::judge::places::{is, is_explicit, is_mapped};
use crate::methods;
use crate::summary::Metric;

/// The published claims about mmap that the records of `stalls` decide.
pub(super) static CLAIMS: &[Claim] = &[Claim {
    id: "workarounds-do-not-cure",
    hypothesis: "Hints, locks and helper threads do not keep a map from stalling.",
    source: "Crotty, Leis, Pavlo, CIDR 2022, §3.2",
    experiment: ID,
    rule: "p99.9 of an access with the best work-around, over explicit I/O's asked in the same way, at least 2; without the methods that \
            probe, which time waits apart from accesses",
    needs: &[],
    test: at_least(
        &["ahead"],
        Metric::Latency("op", 999),
        |group| is_mapped(group) && !is(group, &methods::MMAP) && !group.waits_apart(),
        is_explicit,
        2.0,
        "`nofault lab stalls` measures it",
    ),
}];
