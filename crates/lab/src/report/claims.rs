//! Decides the claims for and against mmap from a set of records, with the figures. A claim without measurements is
//! reported as such, with the call that would measure it. Each claim is in the folder of the experiment that decides
//! it; here they are collected.

use serde::Serialize;

use crate::experiments;
pub use crate::judge::bound::Outcome;
pub use crate::judge::claim::Claim;
use crate::judge::claim::Contribution;
pub use crate::judge::places::Decision;
use crate::judge::places::Records;
use crate::record::file::RecordFile;
use crate::summary::Summary;

/// Every claim that the lab can decide, by the experiment that decides it.
pub fn all() -> impl Iterator<Item = &'static Claim> {
    experiments::ALL.into_iter().flat_map(|experiment| experiment.description().claims)
}

/// A claim and its decision from a set of records.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Answer {
    /// The id of the claim: see [`Claim::id`].
    pub id: &'static str,
    /// The claim in one sentence: see [`Claim::hypothesis`].
    pub hypothesis: &'static str,
    /// The author of the claim: see [`Claim::source`].
    pub source: &'static str,
    /// The name of the deciding experiment: see [`Claim::experiment`].
    pub experiment: &'static str,
    /// The deciding rule: see [`Claim::rule`].
    pub rule: &'static str,
    /// The decision: outcome, figures and trials.
    #[serde(flatten)]
    pub decision: Decision,
}

/// Decides every claim from these records, in the order of [`all`].
pub fn answers(file: &RecordFile, summary: &Summary<'_>) -> Vec<Answer> {
    let records = Records { file, summary };
    let parts = |claim: &str| -> Vec<Contribution<'_>> {
        let all = experiments::ALL.into_iter().flat_map(|experiment| experiment.description().contributions);
        all.filter(|(id, _)| *id == claim).map(|(_, find)| find(&records)).collect()
    };
    all()
        .map(|claim| Answer {
            id: claim.id,
            hypothesis: claim.hypothesis,
            source: claim.source,
            experiment: claim.experiment.name(),
            rule: claim.rule,
            decision: claim.decide(&records, parts),
        })
        .collect()
}

/// The number of claims of each outcome: `5 held, 2 did not hold, 18 not measured here`.
pub fn counted(answers: &[Answer]) -> String {
    let all = [
        Outcome::Held,
        Outcome::InPart,
        Outcome::DidNotHold,
        Outcome::Undecided,
        Outcome::CannotBeTried,
        Outcome::NotMeasured,
    ];
    let count = |outcome: Outcome| answers.iter().filter(|answer| answer.decision.outcome == outcome).count();
    let counts = all.into_iter().map(|outcome| (count(outcome), outcome)).filter(|(count, _)| *count > 0);
    counts.map(|(count, outcome)| format!("{count} {}", outcome.words())).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    // Tests that every claim is complete and documented, and that decisions follow the figures in either direction.
    use std::collections::BTreeSet;

    use super::*;
    use crate::judge::bound::Bound;
    use crate::summary::Spread;

    fn spread(min: f64, max: f64, count: usize) -> Spread {
        Spread { median: f64::midpoint(min, max), min, max, count }
    }

    #[test]
    fn every_claim_has_a_name_of_its_own_a_source_a_rule_and_a_sentence() {
        let ids: BTreeSet<&str> = all().map(|claim| claim.id).collect();
        assert_eq!(ids.len(), all().count());
        assert!(ids.len() >= 12, "the paper, the posts and the rebuttals");
        for claim in all() {
            assert!(claim.hypothesis.ends_with('.') && !claim.source.is_empty() && !claim.rule.is_empty(), "{claim:?}");
            assert!(claim.id.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'), "{claim:?}");
        }
    }

    #[test]
    fn the_document_of_claims_has_the_line_of_each() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/claims.md");
        // The published package does not contain the page.
        let Ok(page) = std::fs::read_to_string(&path) else { return eprintln!("skipped: no {}", path.display()) };
        for claim in all() {
            let line = format!(
                "| `{}` | {} — {} | `{}` | {} |",
                claim.id, claim.hypothesis, claim.source, claim.experiment, claim.rule
            );
            assert!(page.contains(&line), "docs/claims.md must have the line\n{line}");
        }
    }

    #[test]
    fn a_bound_is_met_missed_or_crossed() {
        for (low, high, count, outcome) in [
            (0.4, 0.6, 3, Outcome::Held),
            (0.7, 0.9, 3, Outcome::DidNotHold),
            (0.1, 0.2, 2, Outcome::DidNotHold),
            (0.6, 0.7, 3, Outcome::Undecided),
            (0.5, 0.5, 1, Outcome::Undecided),
        ] {
            assert_eq!(Bound::between(0.35, 0.65).decide(&spread(low, high, count)), outcome, "{low} {high} {count}");
        }
    }

    #[test]
    fn several_places_make_one_answer() {
        use Outcome::{DidNotHold, Held, InPart, NotMeasured, Undecided};
        for (outcomes, together) in [
            (vec![], NotMeasured),
            (vec![Held, Held], Held),
            (vec![DidNotHold], DidNotHold),
            (vec![Held, DidNotHold], InPart),
            (vec![Held, Undecided], Undecided),
            (vec![Undecided, DidNotHold], Undecided),
            (vec![Held, Undecided, DidNotHold], InPart),
        ] {
            assert_eq!(Outcome::all(&outcomes), together, "{outcomes:?}");
        }
    }
}
