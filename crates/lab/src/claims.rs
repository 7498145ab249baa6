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
mod tests;
