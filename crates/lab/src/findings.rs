//! All findings of a record file: each experiment's own, then the threats to validity; and the short lists for the head of the
//! report.

mod threats;

use crate::experiments;
use crate::judge::statistics::{self, ALPHA};
use crate::record::file::RecordFile;
use crate::summary::Summary;

pub use crate::judge::{Finding, KeyFigure, Kind};

/// All findings of a record file: first the experiments' own, in their order, then the threats to their validity.
pub fn findings(file: &RecordFile, summary: &Summary<'_>) -> Vec<Finding> {
    let mut all = Vec::new();
    experiments::ALL.iter().for_each(|experiment| (experiment.description().findings)(summary, &mut all));
    correct_for_number(&mut all);
    threats::find(file, summary, &mut all);
    all
}

/// Makes each difference inconclusive that the number of comparisons alone may have given, by Benjamini and Hochberg's
/// method: of the differences that are left, at most one of twenty is expected to be due to chance.
fn correct_for_number(all: &mut [Finding]) {
    let p_values: Vec<f64> = all.iter().filter_map(|finding| finding.p).collect();
    let count = p_values.len();
    let mut differ = statistics::benjamini_hochberg(&p_values, ALPHA).into_iter();
    for finding in all.iter_mut().filter(|finding| finding.p.is_some()) {
        if !differ.next().unwrap_or(false) && finding.kind == Kind::Difference {
            finding.kind = Kind::Inconclusive;
            finding.text.push_str(&format!(
                " Inconclusive: among {count} comparisons chance alone may give such a difference."
            ));
        }
    }
}

/// Selects at most `most` key figures, for the head of a summary: at most two from one experiment. Within an experiment,
/// conclusive ones come before inconclusive ones.
pub fn key_figures(findings: &[Finding], most: usize) -> Vec<(&Finding, &KeyFigure)> {
    let rank = |finding: &Finding| {
        finding.experiment.and_then(experiments::find).map_or(u32::MAX, |experiment| experiment.description().rank)
    };
    let mut keyed: Vec<(&Finding, &KeyFigure)> =
        findings.iter().filter_map(|finding| finding.key_figure.as_ref().map(|figure| (finding, figure))).collect();
    keyed.sort_by_key(|(finding, _)| (rank(finding), finding.kind == Kind::Inconclusive));
    let mut chosen: Vec<(&Finding, &KeyFigure)> = Vec::new();
    // One from each experiment first, then the rest, so that no experiment displaces the others.
    for per_experiment in 1..=2 {
        for (finding, figure) in &keyed {
            let same = chosen.iter().filter(|(other, _)| other.experiment == finding.experiment).count();
            let known = chosen.iter().any(|(other, _)| std::ptr::eq(*other, *finding));
            if chosen.len() < most && same < per_experiment && !known {
                chosen.push((finding, figure));
            }
        }
    }
    chosen.sort_by_key(|(finding, _)| finding.experiment.map(experiments::place));
    chosen
}

/// Selects the headline differences: findings with a key figure, one of each experiment first, at most five.
pub fn headlines(findings: &[Finding]) -> Vec<&Finding> {
    let mut chosen: Vec<(usize, &Finding)> = Vec::new();
    let worthy = |finding: &Finding| finding.key_figure.is_some() && finding.kind == Kind::Difference;
    for per_experiment in 1..=2 {
        for (at, finding) in findings.iter().enumerate().filter(|(_, finding)| worthy(finding)) {
            let same = chosen.iter().filter(|(_, other)| other.experiment == finding.experiment).count();
            if chosen.len() < 5 && same < per_experiment && chosen.iter().all(|(other, _)| *other != at) {
                chosen.push((at, finding));
            }
        }
    }
    chosen.sort_by_key(|(at, _)| *at);
    chosen.into_iter().map(|(_, finding)| finding).collect()
}
