//! All findings of a record file: each experiment's own, then the threats to validity; and the short lists for the head of the
//! report.

mod threats;

use crate::experiments;
use crate::record::file::RecordFile;
use crate::summary::Summary;

pub use crate::judge::{Finding, KeyFigure, Kind};

/// All findings of a record file: first the experiments' own, in their order, then the threats to their validity.
pub fn findings(file: &RecordFile, summary: &Summary<'_>) -> Vec<Finding> {
    let mut all = Vec::new();
    experiments::ALL.iter().for_each(|experiment| (experiment.description().findings)(summary, &mut all));
    threats::find(file, summary, &mut all);
    all
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
