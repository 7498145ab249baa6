//! Reasons for and against a map that the records of `errors` give.

use super::hypotheses::signals_met;
use super::{FAULTS, ID, STRAY_WRITE};
use crate::judge::places::{Records, figure};
use crate::judge::reason::{Evidence, Reason, Rule, Side, Workload, proof};
use crate::summary::{Family, Group};

/// The rules of the verdict for which `errors` gives evidence, each with the function that finds the evidence in the
/// records.
pub(super) static EVIDENCE: &[Evidence] = &[Evidence::of(Rule::Errors, errors)];

/// Finds reasons for the verdict in the errors and wrong answers that faults caused.
fn errors(records: &Records<'_>, workload: &Workload) -> Vec<Reason> {
    // A database that is only read has only read-only maps, and none of its pages is ever written back: what a stray
    // write does to a writable map says nothing about it.
    let only_read = workload.read_only == Some(true);
    let bears = |variant: &str| FAULTS.contains(&variant) && !(only_read && variant == STRAY_WRITE);
    let is_map = |group: &Group<'_>| group.family() == Family::Mapped;
    let mut reasons = Vec::new();
    for (name, words) in [
        ("wrong_answers", "wrong answers without an error"),
        ("signals", "SIGBUS, which ends a process that does not catch it"),
        ("reached_disk", "stray writes that reached the disk"),
    ] {
        if only_read && name == "reached_disk" {
            continue;
        }
        let met = |map: bool| {
            let fault = |group: &&Group<'_>| bears(&group.spec.variant);
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
