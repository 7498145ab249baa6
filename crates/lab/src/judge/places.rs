//! The decisions of a rule, place by place, from a set of records; and the words and choices that rules share.

use serde::Serialize;

use super::bound::{Bound, Outcome};
use super::curve::Curve;
use super::statistics::CLAIM_ALPHA;
use crate::format::Unit;
use crate::judge;
use crate::methods::{Design, Method};
use crate::record::ExperimentId;
use crate::record::file::RecordFile;
use crate::summary::{Group, Metric, Property, Spread, Summary};

/// Whether a group belongs to one side of a comparison.
pub(crate) type Pick = fn(&Group<'_>) -> bool;

/// The outcome of a claim, with the figures and trials behind it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Decision {
    /// Whether the claim holds.
    pub outcome: Outcome,
    /// The figures in words, or the command that would measure them.
    pub text: String,
    /// Keys of the trials behind the decision.
    #[serde(rename = "cells")]
    pub trials: Vec<String>,
}

impl Decision {
    pub(crate) fn not_measured(what: &str) -> Self {
        Self { outcome: Outcome::NotMeasured, text: what.to_owned(), trials: Vec::new() }
    }

    pub(crate) fn new(outcome: Outcome, text: String, groups: &[&Group<'_>]) -> Self {
        Self { outcome, text, trials: groups.iter().map(|group| group.key.clone()).collect() }
    }
}

/// A record file with the summary of its trials: the input of rules.
pub(crate) struct Records<'s> {
    pub(crate) file: &'s RecordFile,
    pub(crate) summary: &'s Summary<'s>,
}

impl<'s> Records<'s> {
    /// The groups of an experiment. Groups with an unknown method are left out: they belong to no side of a comparison.
    pub(crate) fn of(&self, experiment: ExperimentId) -> impl Iterator<Item = &'s Group<'s>> {
        self.summary.groups.iter().filter(move |group| group.method.is_some() && group.spec.experiment == experiment)
    }
}

/// The decisions of one claim, place by place, with their texts and groups.
#[derive(Debug, Default)]
pub(crate) struct Places<'s> {
    pub(crate) outcomes: Vec<Outcome>,
    texts: Vec<String>,
    used: Vec<&'s Group<'s>>,
}

impl<'s> Places<'s> {
    /// Adds the decision of one place, with the groups that it used.
    pub(crate) fn add(&mut self, outcome: Outcome, text: String, used: &[&'s Group<'s>]) {
        self.outcomes.push(outcome);
        self.texts.push(text);
        self.used.extend(used);
    }

    /// Returns the ratio of two groups; after a refusal for unequal conditions, adds its reason as an undecided place.
    /// `place` names the place in the text.
    pub(crate) fn ratio(
        &mut self,
        place: &str,
        (a, b): (&'s Group<'s>, &'s Group<'s>),
        metric: Metric,
        about: &[Property],
    ) -> Option<Spread> {
        match judge::ratio_at(a, b, metric, about, CLAIM_ALPHA) {
            Ok(ratio) => Some(ratio),
            Err(refusal) => {
                if let Some(reason) = refusal.reason() {
                    self.add(Outcome::Undecided, format!("{place}: no ratio is formed: {reason}"), &[a, b]);
                }
                None
            }
        }
    }

    /// Decides a place by the ratio of two curves; without a common point the place is undecided, with the reason.
    pub(crate) fn curve(
        &mut self,
        place: &str,
        (a, b): (&Curve<'s, 's>, &Curve<'s, 's>),
        metric: Metric,
        bound: Bound,
    ) {
        match a.over(b, metric) {
            Ok(found) => {
                let side = |at: fn(&(&'s Group<'s>, &'s Group<'s>)) -> &'s Group<'s>| {
                    judge::titles(&found.pairs.iter().map(at).collect::<Vec<_>>())
                };
                let (of, over) = (side(|pair| pair.0), side(|pair| pair.1));
                let ratio = found.at(CLAIM_ALPHA);
                let text = format!("{place}: {of} over {over}, {}: {}", found.words(), times(&ratio));
                let used: Vec<_> = found.pairs.iter().flat_map(|(a, b)| [*a, *b]).collect();
                self.add(bound.decide(&ratio), text, &used);
            }
            Err(refusal) => {
                let used: Vec<_> = a.best(metric).into_iter().chain(b.best(metric)).collect();
                if let Some(reason) = refusal.reason() {
                    self.add(Outcome::Undecided, format!("{place}: no ratio is formed: {reason}"), &used);
                }
            }
        }
    }

    /// Whether no place has a decision.
    pub(crate) fn is_empty(&self) -> bool {
        self.outcomes.is_empty()
    }

    pub(crate) fn join(&mut self, other: Self) {
        self.outcomes.extend(other.outcomes);
        self.texts.extend(other.texts);
        self.used.extend(other.used);
    }

    /// Joins all places into one decision. Without any place, the decision is "not measured", with the command that
    /// would measure the claim.
    pub(crate) fn decide(self, missing: &str) -> Decision {
        if self.outcomes.is_empty() {
            return Decision::not_measured(missing);
        }
        Decision::new(Outcome::all(&self.outcomes), format!("{}.", self.texts.join("; ")), &self.used)
    }
}

/// The outcome of a claim with two parts: it holds where both parts hold.
pub(crate) fn both(one: Outcome, other: Outcome) -> Outcome {
    match (one, other) {
        (Outcome::Held, Outcome::Held) => Outcome::Held,
        (Outcome::DidNotHold, _) | (_, Outcome::DidNotHold) => Outcome::DidNotHold,
        _ => Outcome::Undecided,
    }
}

/// Formats a comparison: `mmap RANDOM 54.8 K/s, pread O_DIRECT 77.0 K/s: 0.71× (0.68 to 0.75)`.
pub(crate) fn against(a: &Group<'_>, b: &Group<'_>, metric: Metric, ratio: &Spread) -> String {
    let show = |group: &Group<'_>| {
        let value = group.spread(metric).map_or("–".to_owned(), |spread| metric.unit().show(spread.median));
        format!("{} {value}", group.label())
    };
    format!("{}, {}: {}", show(a), show(b), times(ratio))
}

/// Formats a ratio: `0.71× (0.68× to 0.75×)`.
pub(crate) fn times(ratio: &Spread) -> String {
    match ratio.count {
        ..2 => format!("{}, one run", Unit::Ratio.show(ratio.median)),
        _ => ratio.show(Unit::Ratio),
    }
}

/// A figure that only this experiment has, by its name in [`Outcome::figures`](crate::record::Outcome::figures), over
/// the repeats that count.
pub(crate) fn figure(group: &Group<'_>, name: &str) -> Option<Spread> {
    Spread::of(group.good.iter().filter_map(|trial| trial.outcome.figures.get(name).copied()))
}

/// The value of an extra parameter of a group's trials, by its name.
pub(crate) fn extra<'g>(group: &'g Group<'_>, name: &str) -> Option<&'g str> {
    group.spec.params.extra.get(name).map(String::as_str)
}

/// The value of an extra parameter, as a number.
pub(crate) fn count_of(group: &Group<'_>, name: &str) -> Option<f64> {
    extra(group, name)?.parse().ok()
}

/// The values that an extra parameter has in these groups, smallest first.
pub(crate) fn values_of(groups: &[&Group<'_>], name: &str) -> Vec<f64> {
    let mut values: Vec<f64> = groups.iter().filter_map(|group| count_of(group, name)).collect();
    values.sort_by(f64::total_cmp);
    values.dedup();
    values
}

/// The groups in which an extra parameter has this value.
pub(crate) fn with_value<'g, 'a>(groups: &[&'g Group<'a>], name: &str, value: f64) -> Vec<&'g Group<'a>> {
    let same = |group: &&Group<'_>| count_of(group, name).is_some_and(|own| (own - value).abs() < 1e-9);
    groups.iter().copied().filter(same).collect()
}

/// Whether a group reads its data through a map.
pub(crate) fn is_mapped(group: &Group<'_>) -> bool {
    group.pages_through_a_map()
}

/// Whether a group reads around the page cache, by the lab's own code (not fio).
pub(crate) fn is_explicit(group: &Group<'_>) -> bool {
    group.family().is_explicit()
}

/// Whether a group was measured with a method.
pub(crate) fn is(group: &Group<'_>, method: &Method) -> bool {
    group.spec.method == *method
}

/// The groups reading through a map.
pub(crate) fn mapped<'g, 'a>(groups: &[&'g Group<'a>]) -> Vec<&'g Group<'a>> {
    groups.iter().copied().filter(|group| group.pages_through_a_map()).collect()
}

/// The groups that read around the page cache, by the lab's own code (not fio).
pub(crate) fn explicit<'g, 'a>(groups: &[&'g Group<'a>]) -> Vec<&'g Group<'a>> {
    groups.iter().copied().filter(|group| group.family().is_explicit()).collect()
}

/// The groups of one variant of an experiment.
pub(crate) fn of_variant<'s>(records: &'s Records<'_>, experiment: ExperimentId, variant: &str) -> Vec<&'s Group<'s>> {
    records.of(experiment).filter(|group| group.spec.variant == variant).collect()
}

/// Smallest share of a map's cost at which a pool counts as equally expensive.
pub(crate) const POOL_COSTS: f64 = 0.9;

/// Whether a group is of a store with LMDB's design: a read-only map, copied pages, two meta pages.
pub(crate) fn is_shadow(group: &Group<'_>) -> bool {
    group.method.is_some_and(|method| method.design == Design::Shadow)
}
