//! Published claims about mmap that the records of `errors` decide.

use super::{BIT_FLIP, ID, READ_ERROR, TRUNCATED};
use crate::format::digits;
use crate::judge::bound::Outcome;
use crate::judge::claim::{Claim, Contribution, Test};
use crate::judge::places::{Places, Records, figure, is_shadow};
use crate::judge::rule::{Among, Each, Limit};
use crate::summary::{Family, Group, Spread};

/// The published claims about mmap that the records of `errors` decide.
pub(super) static CLAIMS: &[Claim] = &[
    Claim {
        id: "errors-become-signals",
        hypothesis: "A failed read of a map is a signal that ends the process, where explicit I/O returns an error.",
        source: "Crotty, Leis, Pavlo, CIDR 2022, §3.3",
        experiment: ID,
        rule: "of the faults `truncated` and `read-error`: each mapped store meets a signal, the lab's guard turning it into an error or not, and \
            each explicit one returns an error",
        needs: &[],
        test: Test::Each(Each {
            among: Among::Variants(&[TRUNCATED, READ_ERROR]),
            figure: |group| {
                let (signalled, returned) = met(group);
                let as_claimed = if group.family() == Family::Mapped { signalled } else { returned && !signalled };
                Spread::of([f64::from(u8::from(as_claimed))])
            },
            limit: Limit::Happens,
            words: |group, _| {
                let met = match met(group) {
                    (true, true) => "a signal, which the lab's guard turned into an error",
                    (true, false) => "a signal",
                    (false, true) => "an error",
                    (false, false) => "neither signal nor error",
                };
                format!("{} {}: {met}", group.label(), group.spec.variant)
            },
            missing: "`nofault lab errors` measures it",
            ..Each::NONE
        }),
    },
    Claim {
        id: "lmdb-is-crash-proof",
        hypothesis: "LMDB's design (a read-only map, copied pages, two metas) needs no further protection: it is crash-proof.",
        source: "Howard Chu (Symas), on LMDB",
        experiment: ID,
        rule: "no commit lost or torn after kill -9 (`safety`; power cuts are imitated by the engine's tests, not by the lab), no wrong answer and no \
            signal, caught by the lab's guard or not, by a flipped bit or a failed read (`errors`), for the `shadow` stores",
        needs: &[],
        test: Test::Together { every: true, missing: "`nofault lab safety errors` measures it" },
    },
];

/// Whether a store got signals, and whether it returned errors.
fn met(group: &Group<'_>) -> (bool, bool) {
    let signalled = signals_met(group).is_some_and(|count| count > 0.0);
    (signalled, figure(group, "error_returned").is_some_and(|count| count.min > 0.0))
}

/// Finds the outcomes of flipped bits and failed reads in the stores of LMDB's design.
pub(super) fn damage<'s>(records: &'s Records<'s>) -> Contribution<'s> {
    let mut places = Places::default();
    for (name, words) in [("wrong_answers", "wrong answers"), ("signals", "signals")] {
        let in_question = |group: &&Group<'_>| [BIT_FLIP, READ_ERROR].contains(&&*group.spec.variant);
        for group in records.of(ID).filter(|group| is_shadow(group)).filter(in_question) {
            let count = match name {
                "signals" => signals_met(group),
                _ => figure(group, name).map(|count| count.max),
            };
            let Some(count) = count else { continue };
            let outcome = if count > 0.0 { Outcome::DidNotHold } else { Outcome::Held };
            let text = format!("{} {}: {} {words}", group.label(), group.spec.variant, digits(count));
            places.add(outcome, text, &[group]);
        }
    }
    Contribution { experiment: ID, what: "flipped bits and failed reads", places }
}

/// Returns the number of signals that a store got. An unreadable page reaches a map only as a signal. So where a mapped
/// store returned an error for it, the lab's own guard had caught a signal.
pub(super) fn signals_met(group: &Group<'_>) -> Option<f64> {
    let most = |name| figure(group, name).map(|count| count.max);
    let cannot_be_had = [TRUNCATED, READ_ERROR].contains(&group.spec.variant.as_str());
    let guarded = cannot_be_had && group.family() == Family::Mapped;
    let caught = most("error_returned").filter(|_| guarded);
    most("signals").into_iter().chain(caught).reduce(f64::max)
}
