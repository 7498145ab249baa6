//! Published claims about mmap that the records of `safety` decide.

use super::findings::was_looked_at;
use super::{ID, MMAP_SHARED};
use crate::format::digits;
use crate::judge::claim::{
    Claim, Contribution, Decision, Outcome, Places, Records, Test, figure, is_shadow, of_variant,
};

/// The published claims about mmap that the records of `safety` decide.
pub(super) static CLAIMS: &[Claim] = &[Claim {
    id: "uncommitted-reaches-disk",
    hypothesis: "A page that a transaction changed in a shared map can be on the disk before the transaction commits.",
    source: "Crotty, Leis, Pavlo, CIDR 2022, §3.1",
    experiment: ID,
    rule: "uncommitted bytes were read back from the file with O_DIRECT",
    needs: &[],
    test: Test::Own(steal),
}];

/// Decides the claim by the uncommitted bytes found on the disk.
fn steal(records: &Records<'_>) -> Decision {
    // The private mapping is the control and decides nothing.
    let groups = of_variant(records, ID, "sin").into_iter().filter(|group| group.spec.method == MMAP_SHARED);
    let mut places = Places::default();
    for group in groups {
        let Some(found) = figure(group, "uncommitted_on_disk").filter(|_| was_looked_at(group)) else { continue };
        // One page is enough: the question is whether it happens, not how often.
        let outcome = if found.max > 0.0 { Outcome::Held } else { Outcome::DidNotHold };
        places.add(
            outcome,
            format!("{}: {} found on disk before the commit", group.label(), digits(found.max)),
            &[group],
        );
    }
    places.decide("`nofault lab safety` measures it")
}

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
