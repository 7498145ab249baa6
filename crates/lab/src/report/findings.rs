//! All findings of a record file: each experiment's own, then the threats to validity; and the short lists for the head of the
//! report.

use serde::Serialize;

use crate::experiment::Description;
use crate::experiments;
use crate::judge::statistics::{self, ALPHA};
use crate::record::file::RecordFile;
use crate::record::{ExperimentId, Skip, SkipCause};
use crate::summary::Summary;

pub use crate::judge::{Finding, KeyFigure, Kind};

/// All findings of a record file: first the experiments' own, in their order, then the threats to their validity.
pub fn findings(file: &RecordFile, summary: &Summary<'_>) -> Vec<Finding> {
    let mut all = Vec::new();
    experiments::ALL.iter().for_each(|experiment| (experiment.description().findings)(summary, &mut all));
    correct_for_number(&mut all);
    super::threats::find(file, summary, &mut all);
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

/// The row of an experiment in a short summary: the figure that its description names, with the value that the records
/// give. Which figure it is does not depend on any figure.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MainFigure {
    /// The experiment.
    pub experiment: ExperimentId,
    /// The figure in words.
    pub figure: &'static str,
    /// The value with its unit; `None` where the records have none.
    pub value: Option<String>,
    /// The interval of the value and the figures behind it; without a value the reason why there is none.
    pub detail: String,
    /// Whether the repeats leave open which side is better.
    pub undecided: bool,
}

/// Makes the row of each measured experiment that has one, in the order of the experiments.
pub fn main_figures(file: &RecordFile, summary: &Summary<'_>, findings: &[Finding]) -> Vec<MainFigure> {
    let measured = experiments::ALL.into_iter().map(|experiment| experiment.description()).filter(|description| {
        !description.texts.main_figure.is_empty() && summary.of_experiment(description.id).next().is_some()
    });
    let row = |description: &Description| {
        let (experiment, figure) = (description.id, description.texts.main_figure);
        let own = findings.iter().find(|finding| is_main(finding) && finding.experiment == Some(experiment));
        match own.and_then(|finding| Some((finding, finding.key_figure.clone()?))) {
            Some((finding, KeyFigure { value, detail })) => {
                let undecided = finding.kind == Kind::Inconclusive;
                MainFigure { experiment, figure, value: Some(value), detail, undecided }
            }
            None => {
                let own = |skip: &&Skip| skip.experiment == experiment && skip.cause != Some(SkipCause::LargerPreset);
                let left_out = file.skips.iter().find(own).map(|skip| format!("left out: {}", skip.reason));
                let detail = left_out.unwrap_or_else(|| "no two valid figures under equal conditions".to_owned());
                MainFigure { experiment, figure, value: None, detail, undecided: false }
            }
        }
    };
    measured.map(row).collect()
}

fn is_main(finding: &Finding) -> bool {
    finding.key_figure.is_some()
}

/// Keeps the rows of the experiments with the lowest ranks, at most `most`, in their order.
pub fn of_lowest_rank(mut rows: Vec<MainFigure>, most: usize) -> Vec<MainFigure> {
    rows.sort_by_key(|row| rank(row.experiment));
    rows.truncate(most);
    rows.sort_by_key(|row| experiments::place(row.experiment));
    rows
}

fn rank(id: ExperimentId) -> u32 {
    experiments::find(id).map_or(u32::MAX, |experiment| experiment.description().rank)
}

/// Selects the findings that answer the experiments' main questions, at most `most` of the lowest ranks, in the order of
/// the experiments, whichever side they favour and whether or not the repeats decide.
pub fn headlines(findings: &[Finding], most: usize) -> Vec<&Finding> {
    let mut chosen: Vec<(usize, &Finding)> =
        findings.iter().enumerate().filter(|(_, finding)| is_main(finding)).collect();
    chosen.sort_by_key(|(_, finding)| finding.experiment.map_or(u32::MAX, rank));
    chosen.truncate(most);
    chosen.sort_by_key(|(at, _)| *at);
    chosen.into_iter().map(|(_, finding)| finding).collect()
}
