//! Findings: sentences that follow from the figures by stated rules. A finding names its rule and the cells it used, so that
//! anyone can check it; where the spreads of two contenders overlap it says "inconclusive" and nothing else.
//!
//! No rule knows what the answer ought to be: each sentence is made from the ratio that was measured, in either direction.

mod access;
mod asynchronous;
mod doubts;
mod paging;

use serde::Serialize;

use crate::format::{Unit, digits};
use crate::record::ExperimentId;
use crate::record::file::RecordFile;
use crate::summary::{Group, Metric, Spread, Summary};

/// How a finding is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A difference that the repeats bear out.
    Difference,
    /// A figure, with nothing to compare.
    Fact,
    /// The spreads overlap, or there was only one run of each.
    Inconclusive,
    /// A reason to doubt figures.
    Warning,
}

/// A sentence, and what it rests on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    /// Stable name of the rule.
    pub rule: &'static str,
    /// The rule in words.
    pub rule_text: &'static str,
    /// The experiment; `None` for the run as a whole.
    pub experiment: Option<ExperimentId>,
    /// How it is meant.
    pub kind: Kind,
    /// The sentence.
    pub text: String,
    /// Keys of the cells it used.
    pub cells: Vec<String>,
    /// Worth a place among the five key figures: its label and value.
    pub key_figure: Option<KeyFigure>,
}

/// A number with a label, for the top of the report.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KeyFigure {
    /// What it is.
    pub label: String,
    /// The number, with its unit.
    pub value: String,
    /// Its spread or condition.
    pub detail: String,
}

/// All findings of a record file: first what the experiments say, in their order, then what casts doubt.
pub fn findings(file: &RecordFile, summary: &Summary<'_>) -> Vec<Finding> {
    let mut all = Vec::new();
    paging::random(summary, &mut all);
    paging::scan(summary, &mut all);
    asynchronous::find(summary, &mut all);
    access::find(summary, &mut all);
    doubts::find(file, summary, &mut all);
    all
}

/// The key figures: at most five, at most two from one experiment, in the order of the findings.
pub fn key_figures(findings: &[Finding]) -> Vec<(&Finding, &KeyFigure)> {
    let mut chosen: Vec<(&Finding, &KeyFigure)> = Vec::new();
    let keyed = || findings.iter().filter_map(|finding| finding.key_figure.as_ref().map(|figure| (finding, figure)));
    // One from each experiment first, then the rest, so that no experiment crowds the others out.
    for per_experiment in 1..=2 {
        for (finding, figure) in keyed() {
            let same = chosen.iter().filter(|(other, _)| other.experiment == finding.experiment).count();
            let known = chosen.iter().any(|(other, _)| std::ptr::eq(*other, finding));
            if chosen.len() < 5 && same < per_experiment && !known {
                chosen.push((finding, figure));
            }
        }
    }
    chosen.sort_by_key(|(finding, _)| finding.experiment);
    chosen
}

/// A comparison of two groups by one metric.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Comparison {
    pub(crate) a: Spread,
    pub(crate) b: Spread,
    /// a over b.
    pub(crate) ratio: Spread,
    pub(crate) kind: Kind,
}

/// Compares two groups; `None` where one has no figure. Conclusive only with two repeats each and spreads apart.
pub(crate) fn compare(a: &Group<'_>, b: &Group<'_>, metric: Metric) -> Option<Comparison> {
    let (a, b) = (a.spread(metric)?, b.spread(metric)?);
    let ratio = a.over(&b)?;
    let apart = a.count >= 2 && b.count >= 2 && !a.overlaps(&b);
    Some(Comparison { a, b, ratio, kind: if apart { Kind::Difference } else { Kind::Inconclusive } })
}

impl Comparison {
    /// `2.10× (2.00× to 2.20×)`, turned so that it is above one where `up`.
    pub(crate) fn show(&self) -> String {
        let r = self.ratio;
        if r.count < 2 {
            return format!("{}×", digits(r.median));
        }
        format!("{}× ({} to {})", digits(r.median), digits(r.min), digits(r.max))
    }

    /// Why it is inconclusive; empty where it is not.
    pub(crate) fn doubt(&self) -> &'static str {
        match self.kind {
            Kind::Inconclusive if self.a.count < 2 || self.b.count < 2 => "inconclusive: one run is no spread – ",
            Kind::Inconclusive => "inconclusive: the spreads overlap – ",
            _ => "",
        }
    }
}

/// The group with the best median of a metric.
pub(crate) fn best<'g, 'a>(groups: impl IntoIterator<Item = &'g Group<'a>>, metric: Metric) -> Option<&'g Group<'a>>
where
    'a: 'g,
{
    let rated = groups.into_iter().filter_map(|group| Some((group.spread(metric)?.median, group)));
    let order = |a: &(f64, &Group<'_>), b: &(f64, &Group<'_>)| a.0.total_cmp(&b.0);
    // `rev` of the order keeps the first of equals in both directions.
    if metric.more_is_better() {
        rated.reduce(|best, next| if order(&next, &best).is_gt() { next } else { best }).map(|(_, group)| group)
    } else {
        rated.reduce(|best, next| if order(&next, &best).is_lt() { next } else { best }).map(|(_, group)| group)
    }
}

pub(crate) fn keys(groups: &[&Group<'_>]) -> Vec<String> {
    groups.iter().map(|group| group.key.clone()).collect()
}

/// A sentence's beginning where there is more than one place: `On the RAM-backed device, `.
pub(crate) fn on(target: &str) -> String {
    match target {
        "file" => "On the file, ".into(),
        "" => String::new(),
        other => format!("On the {}, ", crate::summary::target_title(other)),
    }
}

/// A spread in words, in its metric's unit.
pub(crate) fn shown(spread: Spread, unit: Unit) -> String {
    unit.show(spread.median)
}
