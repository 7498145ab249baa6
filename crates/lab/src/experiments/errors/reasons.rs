//! Reasons for and against a map that the records of `errors` give.

use super::FAULTS;
use super::ID;
use super::hypotheses::signals_met;
use crate::judge::claim::{Records, figure};
use crate::judge::reason::{Evidence, Reason, Rule, Side, Workload, proof};
use crate::summary::{Family, Group};

/// The rules of the verdict for which `errors` gives evidence, each with the function that finds the evidence in the
/// records.
pub(super) static EVIDENCE: &[Evidence] = &[Evidence::of(Rule::Errors, errors)];

/// Finds reasons for the verdict in the errors and wrong answers that faults caused.
fn errors(records: &Records<'_>, _: &Workload) -> Vec<Reason> {
    let is_map = |group: &Group<'_>| group.family() == Family::Mapped;
    let mut reasons = Vec::new();
    for (name, words) in [
        ("wrong_answers", "answers that were wrong, and no error"),
        ("signals", "SIGBUS, which ends a process that does not catch it"),
        ("reached_disk", "stray writes that reached the disk"),
    ] {
        let met = |map: bool| {
            let fault = |group: &&Group<'_>| FAULTS.contains(&group.spec.variant.as_str());
            let these = records.of(ID).filter(fault).filter(move |group| is_map(group) == map);
            // A trial records only the events that happened, so a missing figure counts as zero.
            let count = |group| match name {
                "signals" => signals_met(group),
                name => figure(group, name).map(|met| met.max),
            };
            these.map(move |group| (count(group).unwrap_or(0.0), group)).collect::<Vec<_>>()
        };
        let (map, other) = (met(true), met(false));
        let bad = |all: &[(f64, &Group<'_>)]| all.iter().filter(|(count, _)| *count > 0.0).count();
        let Some((_, first)) = map.iter().find(|(count, _)| *count > 0.0).or(map.first()) else { continue };
        let clear = bad(&map) > 0 && bad(&other) == 0 && !other.is_empty();
        let side = if clear { Side::Against } else { Side::Neither };
        let text = format!(
            "{words}: in {} of {} trials of mapped stores, in {} of {} of explicit I/O.",
            bad(&map),
            map.len(),
            bad(&other),
            other.len()
        );
        reasons.push(proof("errors", side, text, first));
    }
    reasons
}
