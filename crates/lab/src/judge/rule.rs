//! The kinds of rules by which claims are decided, as data. An experiment names the groups in question, the figure and the bound;
//! this module finds the places, decides each of them and puts its figures into words.
//!
//! A rule that fits none of these kinds is a function of its experiment ([`super::claim::Test::Own`]).

use super::bound::{Bound, Outcome};
use super::curve::Curve;
use super::places::{Decision, Pick, Places, Records, against, both};
use super::{best, ratio};
use crate::judge;
use crate::record::ExperimentId;
use crate::summary::{Group, Metric, Property, Spread, target_title};

/// The groups of an experiment that a rule looks at together.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Among {
    /// The groups of each of these variants, on all targets.
    Variants(&'static [&'static str]),
    /// The groups of each variant in question on each target.
    Places(fn(&str) -> bool),
}

impl Among {
    fn sets<'s>(self, experiment: ExperimentId, records: &Records<'s>) -> Vec<Vec<&'s Group<'s>>> {
        match self {
            Self::Variants(names) => {
                let of = |name: &&str| records.of(experiment).filter(|group| group.spec.variant == **name).collect();
                names.iter().map(of).collect()
            }
            Self::Places(is_wanted) => {
                let places = records.summary.places(experiment).into_iter().filter(|(variant, _)| is_wanted(variant));
                places.map(|(variant, target)| records.summary.at(experiment, variant, target)).collect()
            }
        }
    }
}

/// The rule that the ratio of two sides' best figures lies in a bound.
#[derive(Debug)]
pub(crate) struct Ratio {
    /// Variants of the experiment; the sides are compared in each of them separately.
    pub(crate) variants: &'static [&'static str],
    /// The metric by which the sides are compared.
    pub(crate) metric: Metric,
    /// Selects the methods of the first side, the ratio's numerator; the best of them counts.
    pub(crate) of: Pick,
    /// Selects the methods of the second side, the ratio's denominator; the best of them counts.
    pub(crate) over: Pick,
    /// The conditions whose effect the claim is about; in all others the two sides must be equal.
    pub(crate) about: &'static [Property],
    /// The interval in which the ratio must lie for the claim to hold.
    pub(crate) bound: Bound,
    /// The command that measures the claim: shown where the records lack its figures.
    pub(crate) missing: &'static str,
}

impl Ratio {
    pub(super) fn decide(&self, experiment: ExperimentId, records: &Records<'_>) -> Decision {
        let mut places = Places::default();
        for (variant, target) in records.summary.places(experiment) {
            if !self.variants.contains(&variant) {
                continue;
            }
            let groups = records.summary.at(experiment, variant, target);
            let side = |pick: Pick| groups.iter().copied().filter(|group| pick(group)).collect::<Vec<_>>();
            self.best_pair(target, &side(self.of), &side(self.over), &mut places);
        }
        places.decide(self.missing)
    }

    /// Decides a place by the best pair of equal conditions among two sides: the pair whose better half has the best
    /// figure. Without such a pair the place is undecided, with the reason.
    fn best_pair<'s>(&self, target: &str, of: &[&'s Group<'s>], over: &[&'s Group<'s>], places: &mut Places<'s>) {
        let (metric, place) = (self.metric, target_title(target));
        let Some((a, b)) = judge::best_pair(of, over, metric, self.about) else {
            if let (Some(a), Some(b)) = (best(of.iter().copied(), metric), best(over.iter().copied(), metric)) {
                places.ratio(&place, (a, b), metric, self.about);
            }
            return;
        };
        let Some(ratio) = places.ratio(&place, (a, b), metric, self.about) else { return };
        places.add(self.bound.decide(&ratio), format!("{place}: {}", against(a, b, metric, &ratio)), &[a, b]);
    }
}

/// The rule that a figure of each group in question lies in a bound.
#[derive(Debug)]
pub(crate) struct Each {
    pub(crate) among: Among,
    /// Selects the groups in question.
    pub(crate) which: Pick,
    /// The metric whose best group alone stands for a place; `None` where every group counts.
    pub(crate) best_by: Option<Metric>,
    /// The figure; a group without one is left out.
    pub(crate) figure: fn(&Group<'_>) -> Option<Spread>,
    pub(crate) limit: Limit,
    /// The reason why the claim does not hold for a group whatever its figure.
    pub(crate) refuted: fn(&Group<'_>) -> Option<String>,
    /// The figure in words.
    pub(crate) words: fn(&Group<'_>, &Spread) -> String,
    /// The command that measures the claim: shown where the records lack its figures.
    pub(crate) missing: &'static str,
}

/// The values of a figure for which a claim holds.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Limit {
    /// The values of an interval.
    In(Bound),
    /// Any value above zero in any of the repeats: the question is whether it happens, not how often.
    Happens,
}

impl Each {
    /// The base of rules: every group counts and none is refuted.
    pub(crate) const NONE: Self = Self {
        among: Among::Variants(&[]),
        which: |_| true,
        best_by: None,
        figure: |_| None,
        limit: Limit::Happens,
        refuted: |_| None,
        words: |_, _| String::new(),
        missing: "",
    };

    pub(super) fn decide(&self, experiment: ExperimentId, records: &Records<'_>) -> Decision {
        let mut places = Places::default();
        for set in self.among.sets(experiment, records) {
            let groups = set.into_iter().filter(|group| (self.which)(group));
            let groups: Vec<&Group<'_>> = match self.best_by {
                Some(metric) => best(groups, metric).into_iter().collect(),
                None => groups.collect(),
            };
            for group in groups {
                let Some(figure) = (self.figure)(group) else { continue };
                let text = (self.words)(group, &figure);
                if let Some(reason) = (self.refuted)(group) {
                    places.add(Outcome::DidNotHold, format!("{text}; {reason}"), &[group]);
                    continue;
                }
                let outcome = match self.limit {
                    Limit::In(bound) => bound.decide(&figure),
                    Limit::Happens if figure.max > 0.0 => Outcome::Held,
                    Limit::Happens => Outcome::DidNotHold,
                };
                places.add(outcome, text, &[group]);
            }
        }
        places.decide(self.missing)
    }
}

/// The rule that each group in question and its partner differ by a ratio in a bound.
#[derive(Debug)]
pub(crate) struct Pairs {
    pub(crate) among: Among,
    /// Selects the groups in question.
    pub(crate) each: Pick,
    /// The number by which these groups are sorted, and each of whose values counts once for a method; `None` leaves them as they were
    /// measured.
    pub(crate) by: Option<fn(&Group<'_>) -> Option<f64>>,
    /// Whether the second group may be the partner of the first.
    pub(crate) with: fn(&Group<'_>, &Group<'_>) -> bool,
    /// The metric whose best group is the partner; `None` takes the first.
    pub(crate) best_by: Option<Metric>,
    /// Whether the partner is the ratio's numerator.
    pub(crate) inverse: bool,
    pub(crate) compared: PairFigure,
    pub(crate) bound: Bound,
    /// A second metric whose ratio must lie in a bound as well.
    pub(crate) also: Option<(Metric, Bound)>,
    /// Names the place of a group.
    pub(crate) place: fn(&Group<'_>) -> String,
    /// The figures in words.
    pub(crate) words: fn(&Pair<'_, '_>) -> String,
    /// The command that measures the claim: shown where the records lack its figures.
    pub(crate) missing: &'static str,
}

/// The way in which two groups are compared.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PairFigure {
    /// By the ratio of a metric. Unequal conditions leave the place undecided, with the reason.
    Ratio(Metric),
    /// By the ratio of a metric. Unequal conditions leave the place out.
    RatioWhereEqual(Metric),
    /// By a figure made of both.
    Made(fn(&Group<'_>, &Group<'_>) -> Option<Spread>),
}

/// Two groups that were compared.
pub(crate) struct Pair<'g, 'a> {
    /// The numerator of the ratio.
    pub(crate) of: &'g Group<'a>,
    /// The denominator of the ratio.
    pub(crate) over: &'g Group<'a>,
    pub(crate) ratio: Spread,
    /// The ratio of the second metric, for a rule that has one.
    pub(crate) also: Option<Spread>,
    /// The name of the place.
    pub(crate) place: String,
    /// All groups that were looked at together.
    pub(crate) among: &'g [&'g Group<'a>],
}

impl Pairs {
    /// The base of rules: each group in the order of measurement, over its first partner.
    pub(crate) const NONE: Self = Self {
        among: Among::Variants(&[]),
        each: |_| false,
        by: None,
        with: |_, _| false,
        best_by: None,
        inverse: false,
        compared: PairFigure::Made(|_, _| None),
        bound: Bound::at_least(0.0),
        also: None,
        place: |_| String::new(),
        words: |_| String::new(),
        missing: "",
    };

    pub(super) fn decide(&self, experiment: ExperimentId, records: &Records<'_>) -> Decision {
        let mut places = Places::default();
        for set in self.among.sets(experiment, records) {
            for each in self.sorted(&set) {
                let partners = set.iter().copied().filter(|other| (self.with)(each, other));
                let partner = match self.best_by {
                    Some(metric) => best(partners, metric),
                    None => partners.into_iter().next(),
                };
                let Some(partner) = partner else { continue };
                let (of, over) = if self.inverse { (partner, each) } else { (each, partner) };
                let place = (self.place)(each);
                let compared = match self.compared {
                    PairFigure::Ratio(metric) => places.ratio(&place, (of, over), metric, &[]),
                    PairFigure::RatioWhereEqual(metric) => ratio(of, over, metric, &[]).ok(),
                    PairFigure::Made(make) => make(of, over),
                };
                let Some(compared) = compared else { continue };
                let mut outcome = self.bound.decide(&compared);
                let mut also = None;
                if let Some((metric, bound)) = self.also {
                    let Ok(second) = ratio(of, over, metric, &[]) else { continue };
                    outcome = both(outcome, bound.decide(&second));
                    also = Some(second);
                }
                let pair = Pair { of, over, ratio: compared, also, place, among: &set };
                places.add(outcome, (self.words)(&pair), &[of, over]);
            }
        }
        places.decide(self.missing)
    }

    /// The groups in question, in their order.
    fn sorted<'g, 'a>(&self, set: &[&'g Group<'a>]) -> Vec<&'g Group<'a>> {
        let groups = set.iter().copied().filter(|group| (self.each)(group));
        let Some(by) = self.by else { return groups.collect() };
        let mut keyed: Vec<(f64, &Group<'_>)> = groups.filter_map(|group| Some((by(group)?, group))).collect();
        keyed.sort_by(|a, b| a.0.total_cmp(&b.0));
        keyed.dedup_by(|a, b| a.0.total_cmp(&b.0).is_eq() && a.1.spec.method == b.1.spec.method);
        keyed.into_iter().map(|(_, group)| group).collect()
    }
}

impl Pair<'_, '_> {
    /// Names both groups with their figures by a metric, and the ratio.
    pub(crate) fn against(&self, metric: Metric) -> String {
        against(self.of, self.over, metric, &self.ratio)
    }
}

/// The rule that a metric grows as a parameter does: the ratio of the metric, over the ratio of the parameter's values, lies in a bound.
#[derive(Debug)]
pub(crate) struct Growth {
    pub(crate) among: Among,
    /// Selects the groups in question.
    pub(crate) which: Pick,
    /// The value of the parameter; a group without one is left out.
    pub(crate) value: fn(&Records<'_>, &Group<'_>) -> Option<f64>,
    /// Chooses the pairs to compare, from groups in the order of measurement: the one with more of the parameter first.
    pub(crate) pairs: fn(&[Valued<'_, '_>]) -> Vec<(usize, usize)>,
    pub(crate) metric: Metric,
    pub(crate) bound: Bound,
    /// Names the place of a group.
    pub(crate) place: fn(&Group<'_>) -> String,
    /// The figures in words: from the group with more, the other one, the ratio of the metric, and the ratio of the values.
    pub(crate) words: fn(&Valued<'_, '_>, &Valued<'_, '_>, &Spread, f64) -> String,
    /// The command that measures the claim: shown where the records lack its figures.
    pub(crate) missing: &'static str,
}

/// A group with its value of a parameter.
pub(crate) type Valued<'g, 'a> = (f64, &'g Group<'a>);

impl Growth {
    pub(super) fn decide(&self, experiment: ExperimentId, records: &Records<'_>) -> Decision {
        let mut places = Places::default();
        for set in self.among.sets(experiment, records) {
            let groups = set.into_iter().filter(|group| (self.which)(group));
            let valued: Vec<Valued<'_, '_>> =
                groups.filter_map(|group| Some(((self.value)(records, group)?, group))).collect();
            for (more, less) in (self.pairs)(&valued) {
                let (more, less) = (valued[more], valued[less]);
                if more.1.spread(self.metric).is_none() || less.1.spread(self.metric).is_none() {
                    continue;
                }
                let Some(ratio) = places.ratio(&(self.place)(more.1), (more.1, less.1), self.metric, &[]) else {
                    continue;
                };
                let expected = more.0 / less.0;
                let share = ratio.times(1.0 / expected);
                let text = (self.words)(&more, &less, &ratio, expected);
                places.add(self.bound.decide(&share), text, &[more.1, less.1]);
            }
        }
        places.decide(self.missing)
    }
}

/// The rule that the ratio of two curves over requests in flight lies in a bound.
#[derive(Debug)]
pub(crate) struct Curves {
    pub(crate) among: Among,
    /// Makes the curve of the ratio's numerator.
    pub(crate) of: Side,
    /// Makes the curve of the ratio's denominator.
    pub(crate) over: Side,
    pub(crate) metric: Metric,
    pub(crate) bound: Bound,
    /// The command that measures the claim: shown where the records lack its figures.
    pub(crate) missing: &'static str,
}

/// Makes the curve of one side from the groups of a place.
pub(crate) type Side = for<'g, 'a> fn(&[&'g Group<'a>]) -> Curve<'g, 'a>;

impl Curves {
    pub(super) fn decide(&self, experiment: ExperimentId, records: &Records<'_>) -> Decision {
        let mut places = Places::default();
        self.add_to(&mut places, experiment, records, |place| place);
        places.decide(self.missing)
    }

    /// Adds the decision of each place, under the name that `named` makes of the target's.
    pub(crate) fn add_to<'s>(
        &self,
        places: &mut Places<'s>,
        experiment: ExperimentId,
        records: &Records<'s>,
        named: fn(String) -> String,
    ) {
        for set in self.among.sets(experiment, records) {
            let Some(first) = set.first() else { continue };
            let place = named(target_title(&first.spec.target.label));
            places.curve(&place, (&(self.of)(&set), &(self.over)(&set)), self.metric, self.bound);
        }
    }
}
