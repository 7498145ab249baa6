//! The claims with their answers, as the page lists them.

use serde::Serialize;

use crate::format;
use crate::report::claims::{Answer, Outcome};

/// A claim with its decision, as a line of the report's list.
#[derive(Debug, Serialize)]
pub(crate) struct Line {
    hypothesis: &'static str,
    source: &'static str,
    rule: &'static str,
    /// The experiment whose section has the figures; empty where the report has no such section.
    section: &'static str,
    /// CSS class of the mark before the claim.
    class: &'static str,
    outcome: &'static str,
    text: String,
    trials: Vec<String>,
}

/// The claims as lines of the report, decided ones first. `has_section` returns whether the report has a section for
/// the experiment with this name.
pub(crate) fn lines(answers: &[Answer], has_section: impl Fn(&str) -> bool) -> Vec<Line> {
    let mut lines: Vec<Line> = answers
        .iter()
        .map(|answer| Line {
            hypothesis: answer.hypothesis,
            source: answer.source,
            rule: answer.rule,
            section: if has_section(answer.experiment) { answer.experiment } else { "" },
            class: match answer.decision.outcome {
                Outcome::Held => "held",
                Outcome::InPart => "inpart",
                Outcome::DidNotHold => "refuted",
                Outcome::Undecided | Outcome::CannotBeTried | Outcome::NotMeasured => "neither",
            },
            outcome: answer.decision.outcome.words(),
            text: format::glued(&answer.decision.text),
            trials: answer.decision.trials.clone(),
        })
        .collect();
    lines
        .sort_by_key(|line| (line.outcome == Outcome::NotMeasured.words(), line.outcome == Outcome::Undecided.words()));
    lines
}
