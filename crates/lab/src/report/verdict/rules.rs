//! The rules of the verdict: which apply to a workload, and the reasons that the experiments give for each.

use super::{NotMeasured, Reason, Workload};
use crate::experiments;
use crate::judge::places::Records;
use crate::judge::reason::Rule;

/// The reasons that the rules gave, and the rules without evidence.
#[derive(Default)]
pub(super) struct Evaluation {
    pub(super) reasons: Vec<Reason>,
    pub(super) not_measured: Vec<NotMeasured>,
}

/// Applies every rule that the workload calls for.
pub(super) fn apply(records: &Records<'_>, workload: &Workload) -> Evaluation {
    let mut found = Evaluation::default();
    for rule in Rule::ALL.into_iter().filter(|rule| rule.applies(workload)) {
        let reasons = |second_best: bool| -> Vec<Reason> {
            let evidence = experiments::ALL.into_iter().flat_map(|experiment| experiment.description().evidence);
            let of_rule = evidence.filter(|evidence| evidence.rule == rule && evidence.second_best == second_best);
            of_rule.flat_map(|evidence| (evidence.find)(records, workload)).collect()
        };
        let of = |second_best: bool| -> (Vec<Reason>, Vec<Reason>) {
            reasons(second_best).into_iter().partition(|reason| !reason.refused)
        };
        let (mut given, mut refused) = of(false);
        if given.is_empty() {
            let (second, more) = of(true);
            given = second;
            refused.extend(more);
        }
        if given.is_empty() {
            found.not_measured.push(what_measures(rule, &refused));
        }
        found.reasons.extend(given);
    }
    found
}

/// A rule's question in words, with the comparisons that were refused, and the command that measures it.
fn what_measures(rule: Rule, refused: &[Reason]) -> NotMeasured {
    let has = |experiment: &&dyn crate::experiment::Experiment| {
        experiment.description().evidence.iter().any(|evidence| evidence.rule == rule)
    };
    let names: Vec<&str> = experiments::ALL.into_iter().filter(has).map(|experiment| experiment.id().name()).collect();
    let (question, how) = rule.question();
    let why: Vec<&str> = refused.iter().map(|reason| reason.text.as_str()).collect();
    let why = if why.is_empty() { String::new() } else { format!(" (no ratio was formed: {})", why.join("; ")) };
    NotMeasured { question: format!("{question}{why}"), command: format!("nofault lab {}{how}", names.join(" ")) }
}
