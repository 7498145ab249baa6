//! Published claims about mmap that the records of `safety` decide.

use super::findings::was_looked_at;
use super::{ID, MMAP_SHARED, STEAL};
use crate::format::digits;
use crate::judge::bound::Outcome;
use crate::judge::claim::{Claim, Contribution, Test};
use crate::judge::places::{Places, Records, figure, is, is_shadow};
use crate::judge::rule::{Among, Each, Limit};

/// The published claims about mmap that the records of `safety` decide.
pub(super) static CLAIMS: &[Claim] = &[Claim {
    id: "uncommitted-reaches-disk",
    hypothesis: "A page that a transaction changed in a shared map can be on the disk before the transaction commits.",
    source: "Crotty, Leis, Pavlo, CIDR 2022, §3.1",
    experiment: ID,
    rule: "uncommitted bytes were read back from the file with O_DIRECT",
    needs: &[],
    test: Test::Each(Each {
        among: Among::Variants(&[STEAL]),
        // The private mapping is the control and decides nothing.
        which: |group| is(group, &MMAP_SHARED) && was_looked_at(group),
        figure: |group| figure(group, "uncommitted_on_disk"),
        limit: Limit::Happens,
        words: |group, found| format!("{}: {} found on disk before the commit", group.label(), digits(found.max)),
        missing: "`nofault lab safety` measures it",
        ..Each::NONE
    }),
}];

/// Finds the fate of commits in the stores of LMDB's design when a process was killed.
pub(super) fn kills<'s>(records: &'s Records<'s>) -> Contribution<'s> {
    let mut places = Places::default();
    for (name, words) in [("lost_commits", "commits lost"), ("torn_commits", "commits torn")] {
        for group in records.of(ID).filter(|group| is_shadow(group)) {
            let Some(count) = figure(group, name).map(|count| count.max) else { continue };
            let outcome = if count > 0.0 { Outcome::DidNotHold } else { Outcome::Held };
            let text = format!("{} {}: {} {words}", group.label(), group.spec.variant, digits(count));
            places.add(outcome, text, &[group]);
        }
    }
    Contribution { experiment: ID, what: "kills", places }
}
