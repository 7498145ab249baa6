//! Turns figures into judgements: compares two groups with their spread, and makes the sentence that follows. The rules
//! themselves belong to the experiments.
//!
//! No rule has a fixed answer: each sentence is made from the measured ratio, in either direction. Where the repeats do
//! not separate two methods it says "inconclusive".
//!
//! Kept true by: figures of two groups are divided or subtracted only here, and only where their conditions are equal ([`ratio`]). A
//! rule that is about one of the conditions names it; everything else is a [`Refusal`], which is shown with its reason.

pub(crate) mod bound;
pub(crate) mod claim;
pub(crate) mod curve;
mod distributions;
pub(crate) mod noise;
pub(crate) mod paging;
pub(crate) mod places;
pub(crate) mod pool;
pub(crate) mod reason;
pub(crate) mod rule;
mod shared_variance;
pub(crate) mod statistics;

use serde::Serialize;

use self::statistics::{ALPHA, LogRatio, Sample};
use crate::format::{Unit, digits};
use crate::record::ExperimentId;
use crate::summary::{Group, Metric, Property, Spread};

/// The kind of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A difference that the repeats confirm.
    Difference,
    /// A measured figure compared with nothing.
    Fact,
    /// A difference that the repeats do not confirm.
    Inconclusive,
    /// A reason to doubt figures.
    Warning,
}

/// A sentence of the report, with the rule and the trials behind it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    /// Stable name of the rule that made the finding.
    pub rule: &'static str,
    /// The finding's rule, in words.
    pub rule_text: &'static str,
    /// The experiment that the finding is about; `None` for the whole run.
    pub experiment: Option<ExperimentId>,
    /// The kind of the finding: difference, fact, inconclusive or warning.
    pub kind: Kind,
    /// The finding as a sentence.
    pub text: String,
    /// For a comparison: the probability of such a difference by chance; `None` where the repeats do not tell, and for
    /// everything that is no comparison.
    pub p: Option<f64>,
    /// Keys of the trials behind the finding.
    #[serde(rename = "cells")]
    pub trials: Vec<String>,
    /// The answer to the experiment's main question, which its description names; `None` for all other findings.
    pub key_figure: Option<KeyFigure>,
}

/// The answer to the main question of an experiment.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KeyFigure {
    /// The number with its unit, as text.
    pub value: String,
    /// The spread of the number, or the condition under which it was measured.
    pub detail: String,
}

impl KeyFigure {
    /// Makes a key figure of a ratio: its interval, where there is one, begins the detail.
    pub(crate) fn of(ratio: &Spread, detail: &str) -> Self {
        let interval = match ratio.count {
            ..2 => String::new(),
            _ => format!("{} to {}; ", digits(ratio.min), digits(ratio.max)),
        };
        Self { value: Unit::Ratio.show(ratio.median), detail: format!("{interval}{detail}") }
    }
}

/// A comparison of two groups of trials, `a` and `b`, by one metric.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Comparison<'g> {
    /// The experiment of group `a`.
    experiment: ExperimentId,
    /// The keys of the groups `a` and `b`.
    keys: [&'g str; 2],
    pub(crate) a: Spread,
    pub(crate) b: Spread,
    /// The figure of `a` divided by the figure of `b`.
    pub(crate) ratio: Spread,
    /// The probability of such a difference by chance; `None` where the repeats do not tell.
    pub(crate) p: Option<f64>,
    pub(crate) kind: Kind,
    /// Number of repeats of each group that would separate the two if the noise stays the same; `None` above
    /// [`REPEATS_MAX`].
    repeats: Option<usize>,
}

/// Largest number of repeats that is ever recommended.
const REPEATS_MAX: usize = 50;
/// Fewest repeats that are ever recommended.
const REPEATS_MIN: usize = 3;

/// The reason why two groups are not compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// One of the two has no figure.
    NoFigure,
    /// The conditions of the two differ.
    Unequal {
        /// The experiment of the first group.
        experiment: ExperimentId,
        /// The keys of both groups.
        keys: [String; 2],
        /// The differences, in words.
        reason: String,
    },
}

impl Refusal {
    /// Makes the finding that shows the refusal; `None` where there is no figure to compare.
    fn finding(self) -> Option<Finding> {
        let Self::Unequal { experiment, keys, reason } = self else { return None };
        Some(Finding {
            rule: "unequal",
            rule_text: "figures are divided only where requests in flight, page size, batching and warmth are equal, but for the condition that \
                a comparison is about",
            experiment: Some(experiment),
            p: None,
            kind: Kind::Inconclusive,
            text: format!("No ratio is formed: {reason}."),
            trials: keys.into(),
            key_figure: None,
        })
    }

    /// The differences in words; `None` where there is no figure to compare.
    pub(crate) fn reason(&self) -> Option<&str> {
        match self {
            Self::NoFigure => None,
            Self::Unequal { reason, .. } => Some(reason),
        }
    }
}

/// Returns the comparison, or `None` after a refusal, whose finding is added to `all`.
pub(crate) fn or_refused<T>(compared: Result<T, Refusal>, all: &mut Vec<Finding>) -> Option<T> {
    match compared {
        Ok(compared) => Some(compared),
        Err(refusal) => {
            all.extend(refusal.finding());
            None
        }
    }
}

/// Returns whether two groups may be compared: whether their conditions are equal.
pub(crate) fn are_equal(a: &Group<'_>, b: &Group<'_>) -> bool {
    a.conditions().differences(b.conditions(), &[]).is_empty()
}

/// Checks that the conditions of two groups are equal, but for the properties that the comparison is `about`.
fn check_equal(a: &Group<'_>, b: &Group<'_>, about: &[Property]) -> Result<(), Refusal> {
    let differences = a.conditions().differences(b.conditions(), about);
    if differences.is_empty() {
        return Ok(());
    }
    let reason = format!("{} and {} differ in what they were given: {}", a.label(), b.label(), differences.join(", "));
    Err(Refusal::Unequal { experiment: a.spec.experiment, keys: [a.key.clone(), b.key.clone()], reason })
}

/// Divides the figure of one group by another's: the ratio of the geometric means of the repeats, with the ends of its
/// interval ([`statistics`]). `about` names the conditions whose effect the ratio is to show.
///
/// # Errors
/// A refusal where a group has no figure, or the conditions differ in anything else.
pub(crate) fn ratio(a: &Group<'_>, b: &Group<'_>, metric: Metric, about: &[Property]) -> Result<Spread, Refusal> {
    ratio_at(a, b, metric, about, ALPHA)
}

/// Divides the figures of two groups, as [`ratio`], with an interval that misses the true ratio with probability `alpha`.
///
/// # Errors
/// As [`ratio`].
pub(crate) fn ratio_at(
    a: &Group<'_>,
    b: &Group<'_>,
    metric: Metric,
    about: &[Property],
    alpha: f64,
) -> Result<Spread, Refusal> {
    if a.spread(metric).is_none() || b.spread(metric).is_none() {
        return Err(Refusal::NoFigure);
    }
    check_equal(a, b, about)?;
    divide(&sample(a, metric), &sample(b, metric), alpha).map(|(ratio, _)| ratio).ok_or(Refusal::NoFigure)
}

/// The repeats of a group, with the noise of the groups around it.
fn sample(group: &Group<'_>, metric: Metric) -> Sample {
    Sample::beside(group.values(metric), group.values_beside(metric))
}

/// The ratio of two samples with the ends of its interval, and its logarithm where all values have one. `None` where the
/// divisor is zero or negative.
fn divide(x: &Sample, y: &Sample, alpha: f64) -> Option<(Spread, Option<LogRatio>)> {
    if let Some(log) = LogRatio::of(x, y) {
        let (min, max) = log.interval(alpha).unwrap_or((log.ratio(), log.ratio()));
        let count = x.values().len().min(y.values().len());
        return Some((Spread { median: log.ratio(), min, max, count }, Some(log)));
    }
    // Zeroes have no logarithm: the ratio of the medians, with the smallest and the largest that the repeats allow.
    let (a, b) = (Spread::of(x.values().iter().copied())?, Spread::of(y.values().iter().copied())?);
    Some((range_ratio(&a, &b)?, None))
}

fn range_ratio(a: &Spread, b: &Spread) -> Option<Spread> {
    if b.min <= 0.0 || b.median <= 0.0 {
        return None;
    }
    let count = a.count.min(b.count);
    Some(Spread { median: a.median / b.median, min: a.min / b.max, max: a.max / b.min, count })
}

/// Returns how much the figure of one group exceeds another's: the difference of the medians, with the smallest and the
/// largest that the repeats allow. `about` names the conditions whose effect the difference is to show.
///
/// # Errors
/// As [`ratio`].
pub(crate) fn difference(a: &Group<'_>, b: &Group<'_>, metric: Metric, about: &[Property]) -> Result<Spread, Refusal> {
    let (Some(x), Some(y)) = (a.spread(metric), b.spread(metric)) else { return Err(Refusal::NoFigure) };
    check_equal(a, b, about)?;
    let count = x.count.min(y.count);
    Ok(Spread { median: x.median - y.median, min: x.min - y.max, max: x.max - y.min, count })
}

/// Divides one ratio by another, such as the gain of one method from more threads by another method's. The interval
/// has the smallest and the largest quotient that both intervals allow.
pub(crate) fn ratio_of_ratios(a: &Spread, b: &Spread) -> Option<Spread> {
    range_ratio(a, b)
}

/// Compares two groups of equal conditions. A difference is conclusive where chance alone would give such a ratio in less
/// than one comparison of twenty, by Welch's t on the logarithms of the repeats, with variances moderated by the neighbouring groups'
/// ([`statistics`]).
///
/// # Errors
/// As [`ratio`].
pub(crate) fn compare<'g>(a: &'g Group<'_>, b: &'g Group<'_>, metric: Metric) -> Result<Comparison<'g>, Refusal> {
    compare_about(a, b, metric, &[])
}

/// Compares two groups whose conditions differ in the properties that the comparison is about; otherwise as [`compare`].
///
/// # Errors
/// As [`ratio`].
pub(crate) fn compare_about<'g>(
    a: &'g Group<'_>,
    b: &'g Group<'_>,
    metric: Metric,
    about: &[Property],
) -> Result<Comparison<'g>, Refusal> {
    check_equal(a, b, about)?;
    compare_values(a, metric, b, metric).ok_or(Refusal::NoFigure)
}

/// Compares two groups whose figures have different metrics for one quantity; otherwise as [`compare`].
///
/// # Errors
/// As [`ratio`].
pub(crate) fn compare_by<'g>(
    a: &'g Group<'_>,
    a_metric: Metric,
    b: &'g Group<'_>,
    b_metric: Metric,
) -> Result<Comparison<'g>, Refusal> {
    check_equal(a, b, &[])?;
    compare_values(a, a_metric, b, b_metric).ok_or(Refusal::NoFigure)
}

fn compare_values<'g>(
    a: &'g Group<'_>,
    a_metric: Metric,
    b: &'g Group<'_>,
    b_metric: Metric,
) -> Option<Comparison<'g>> {
    let (experiment, keys) = (a.spec.experiment, [a.key.as_str(), b.key.as_str()]);
    let (x, y) = (sample(a, a_metric), sample(b, b_metric));
    let (a, b) = (a.spread(a_metric)?, b.spread(b_metric)?);
    let (ratio, log) = divide(&x, &y, ALPHA)?;
    let p = log.and_then(|log| log.p());
    let kind = if p.is_some_and(|p| p < ALPHA) { Kind::Difference } else { Kind::Inconclusive };
    let repeats = log.filter(|_| p.is_some()).and_then(|log| repeats_needed(&log, ratio.count));
    Some(Comparison { experiment, keys, a, b, ratio, p, kind, repeats })
}

/// Number of repeats that would separate two groups with so many each; `None` above [`REPEATS_MAX`].
fn repeats_needed(log: &LogRatio, repeats: usize) -> Option<usize> {
    let needed = log.repeats_needed(repeats);
    (needed <= REPEATS_MAX as f64).then(|| (needed as usize).max(REPEATS_MIN).max(repeats + 1))
}

impl Comparison<'_> {
    /// Makes a finding of the comparison's kind, with its experiment and trials. The caller fills in the rule's name
    /// and words, the sentence, and a key figure if there is one.
    pub(crate) fn finding(&self) -> Finding {
        Finding {
            rule: "",
            rule_text: "",
            experiment: Some(self.experiment),
            p: self.p,
            kind: self.kind,
            text: String::new(),
            trials: self.keys.map(str::to_owned).to_vec(),
            key_figure: None,
        }
    }

    /// Makes a key figure of the comparison's ratio and its interval.
    pub(crate) fn key_figure(&self, detail: &str) -> KeyFigure {
        KeyFigure::of(&self.ratio, detail)
    }

    /// Formats the ratio: `2.10× (2.00× to 2.20×)`; without the range for a single run.
    pub(crate) fn show(&self) -> String {
        let r = self.ratio;
        if r.count < 2 {
            return format!("{}×", digits(r.median));
        }
        format!("{}× ({} to {})", digits(r.median), digits(r.min), digits(r.max))
    }

    /// Returns why the comparison is inconclusive, as the end of a sentence; empty where it is conclusive.
    pub(crate) fn caveat(&self) -> String {
        match (self.kind, self.repeats) {
            (Kind::Inconclusive, _) if self.a.count < 2 || self.b.count < 2 => {
                "inconclusive: one run is no spread – ".into()
            }
            (Kind::Inconclusive, _) if self.p.is_none() => "inconclusive: a repeat is zero – ".into(),
            (Kind::Inconclusive, Some(repeats)) => {
                format!("inconclusive: the repeats do not tell them apart, about {repeats} would – ")
            }
            (Kind::Inconclusive, None) => {
                format!("inconclusive: the repeats do not tell them apart, nor would {REPEATS_MAX} – ")
            }
            _ => String::new(),
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
    // Of equal figures the first is kept, in both directions.
    if metric.more_is_better() {
        rated.reduce(|best, next| if order(&next, &best).is_gt() { next } else { best }).map(|(_, group)| group)
    } else {
        rated.reduce(|best, next| if order(&next, &best).is_lt() { next } else { best }).map(|(_, group)| group)
    }
}

/// Of all pairs of equal conditions, one group from each side, the one in which the better group has the best figure.
/// The groups of one side are all of those that could stand for it, so the choice favours neither side. Conditions
/// that the comparison is `about` may differ. `None` where no two groups are equal.
pub(crate) fn best_pair<'g, 'a>(
    of: &[&'g Group<'a>],
    over: &[&'g Group<'a>],
    metric: Metric,
    about: &[Property],
) -> Option<(&'g Group<'a>, &'g Group<'a>)> {
    let mut chosen: Option<(f64, (&Group<'_>, &Group<'_>))> = None;
    let better = |a: f64, b: f64| if metric.more_is_better() { a > b } else { a < b };
    for a in of.iter().copied() {
        // Against one group, the best of the other side under its conditions.
        let equal = over.iter().copied().filter(|b| check_equal(a, b, about).is_ok());
        let Some(b) = best(equal, metric) else { continue };
        let Some(a) = best(of.iter().copied().filter(|other| check_equal(other, b, about).is_ok()), metric) else {
            continue;
        };
        let (Some(x), Some(y)) = (a.spread(metric), b.spread(metric)) else { continue };
        let best = if better(x.median, y.median) { x.median } else { y.median };
        if chosen.as_ref().is_none_or(|(so_far, _)| better(best, *so_far)) {
            chosen = Some((best, (a, b)));
        }
    }
    chosen.map(|(_, pair)| pair)
}

/// The titles of the methods that stand for a side at the points of a curve, each once.
pub(crate) fn titles(groups: &[&Group<'_>]) -> String {
    let mut titles: Vec<String> = groups.iter().map(|group| group.title()).collect();
    titles.dedup();
    titles.sort();
    titles.dedup();
    titles.join(" and ")
}

pub(crate) fn keys(groups: &[&Group<'_>]) -> Vec<String> {
    groups.iter().map(|group| group.key.clone()).collect()
}

/// The beginning of a sentence naming the target: `On the RAM-backed device, `; nothing for a target without a
/// name.
pub(crate) fn on(target: &str) -> String {
    match target {
        "file" => "On the file, ".into(),
        "" => String::new(),
        other => format!("On the {}, ", crate::summary::target_title(other)),
    }
}

/// Formats the median of a spread with its unit.
pub(crate) fn shown(spread: Spread, unit: Unit) -> String {
    unit.show(spread.median)
}

#[cfg(test)]
mod tests;
