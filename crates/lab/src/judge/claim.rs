//! Claims as data: the source of each, the experiment and the rule that decide it; and its decision from a set of
//! records. The claims themselves are in the folders of the experiments that decide them.
//!
//! No rule has a fixed answer: each is a bound, and a measured spread lies within it, outside of it, or across it
//! ("undecided").

use serde::Serialize;

use crate::format::Unit;
use crate::judge::bound::Bound;
pub use crate::judge::bound::Outcome;
use crate::judge::curve::Curve;
use crate::judge::statistics::CLAIM_ALPHA;
use crate::judge::{self, best};
use crate::methods::{Design, Method};
use crate::record::ExperimentId;
use crate::record::file::RecordFile;
use crate::summary::{Group, Metric, Property, Spread, Summary, target_title};

/// A claim about mmap that records can confirm or refute.
#[derive(Debug)]
pub struct Claim {
    /// Stable id, by which reports and records name it.
    pub id: &'static str,
    /// The claim, in one sentence.
    pub hypothesis: &'static str,
    /// The author of the claim, and the publication or page where it stands.
    pub source: &'static str,
    /// The experiment whose records decide the claim.
    pub experiment: ExperimentId,
    /// The deciding rule in words.
    pub rule: &'static str,
    /// The deciding rule as code.
    pub(crate) test: Test,
    /// The preconditions without which the claim's effect cannot appear. Where one is missing, figures that do not confirm
    /// the claim do not refute it either.
    pub(crate) needs: &'static [Precondition],
}

/// A property of the machine without which the effect of a claim cannot appear: the least amount, and the amount in the
/// claim's source.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Precondition {
    /// Number of CPUs.
    Cpus { least: u32, source: u32 },
    /// Random reads of 4 KiB per second that a device gives past the page cache.
    Reads { least_per_s: f64, source_per_s: f64 },
}

/// The CPUs of the paper's machine. An eviction interrupts every other CPU that uses the map, and one kswapd stands against
/// all of them: with a few CPUs neither can weigh much.
pub(crate) const PAPERS_CPUS: Precondition = Precondition::Cpus { least: 16, source: 128 };
/// The rate of the paper's device. Its map settled at 0.4 M reads/s: a slower device is the limit before eviction is.
pub(crate) const PAPERS_DEVICE: Precondition = Precondition::Reads { least_per_s: 400e3, source_per_s: 900e3 };

impl Precondition {
    /// Returns what is missing, with this machine's figure and the source's; `None` where nothing is, and where the
    /// records do not tell.
    fn missing(self, records: &Records<'_>) -> Option<String> {
        match self {
            Self::Cpus { least, source } => {
                let here = records.file.run.machine.cpu_count;
                let cpus = if here == 1 { "CPU" } else { "CPUs" };
                (here < least).then(|| format!("{here} {cpus} here, {source} in the source; it takes {least}"))
            }
            Self::Reads { least_per_s, source_per_s } => {
                // The claims needing a fast device are about 4 KiB reads, which several experiments make.
                let is_read = |group: &&Group<'_>| {
                    let spec = group.spec;
                    group.family().is_explicit()
                        && spec.params.block_bytes == 4096
                        && group.basis.metric == Metric::OpsPerS
                };
                let rates = records.summary.groups.iter().filter(is_read);
                let most = rates.filter_map(|group| Some(group.spread(Metric::OpsPerS)?.median)).reduce(f64::max)?;
                let show = |per_s: f64| Unit::PerSecond.show(per_s);
                (most < least_per_s).then(|| {
                    let (least, source) = (show(least_per_s), show(source_per_s));
                    format!(
                        "devices give at most {} random reads here, {source} in the source; it takes {least}",
                        show(most)
                    )
                })
            }
        }
    }
}

/// The way a claim is decided.
#[derive(Debug)]
pub(crate) enum Test {
    /// The ratio of a metric between the best of some methods and the best of others, on each target.
    Ratio(Ratio),
    /// A rule implemented by a function.
    Own(fn(&Records<'_>) -> Decision),
    /// The joint decision of several experiments, each from its own records.
    Together {
        /// Whether the claim can hold only if every part was measured. One measured part is always enough to refute the
        /// claim.
        every: bool,
        /// The command that measures the claim: shown where the records lack its figures.
        missing: &'static str,
    },
}

/// One experiment's part in a claim that several experiments decide together.
#[derive(Debug)]
pub(crate) struct Contribution<'s> {
    /// The experiment whose records these decisions come from.
    pub(crate) experiment: ExperimentId,
    /// Name of the measurement: shown as missing where the records decide nothing.
    pub(crate) what: &'static str,
    /// The experiment's decisions, one for each place (variant and target).
    pub(crate) places: Places<'s>,
}

/// Whether a group belongs to one side of a comparison.
pub(crate) type Pick = fn(&Group<'_>) -> bool;

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

impl Claim {
    /// Decides the claim from records. `parts` returns, for a claim that several experiments decide together, the
    /// contribution of each.
    pub(crate) fn decide<'s>(&self, records: &Records<'_>, parts: impl Fn(&str) -> Vec<Contribution<'s>>) -> Decision {
        let decision = match &self.test {
            Test::Ratio(ratio) => ratio.decide(self.experiment, records),
            Test::Own(decide) => decide(records),
            Test::Together { every, missing } => together(parts(self.id), *every, missing),
        };
        self.unless_untestable(decision, records)
    }

    /// Turns a decision that does not confirm the claim into "cannot be tried here" where the machine lacks one of the
    /// claim's preconditions. The text says which, and keeps the figures.
    fn unless_untestable(&self, decision: Decision, records: &Records<'_>) -> Decision {
        if matches!(decision.outcome, Outcome::Held | Outcome::NotMeasured) {
            return decision;
        }
        let missing: Vec<String> = self.needs.iter().filter_map(|need| need.missing(records)).collect();
        if missing.is_empty() {
            return decision;
        }
        let text = format!("{}. Measured all the same: {}", missing.join("; "), decision.text);
        Decision { outcome: Outcome::CannotBeTried, text, ..decision }
    }
}

fn together(parts: Vec<Contribution<'_>>, every: bool, missing: &str) -> Decision {
    let mut all = Places::default();
    let mut untried = Vec::new();
    for part in parts {
        match part.places.is_empty() {
            true => untried.push((part.experiment, part.what)),
            false => all.join(part.places),
        }
    }
    // One part may refute the claim; all parts are needed to confirm it.
    if every && !all.is_empty() && !all.outcomes.contains(&Outcome::DidNotHold) {
        for (experiment, what) in untried {
            let text = format!("{what} were not tried (`nofault lab {experiment} --preset standard`)");
            all.add(Outcome::Undecided, text, &[]);
        }
    }
    all.decide(missing)
}

impl Ratio {
    fn decide(&self, experiment: ExperimentId, records: &Records<'_>) -> Decision {
        let mut places = Places::default();
        for (variant, target) in records.summary.places(experiment) {
            if !self.variants.contains(&variant) {
                continue;
            }
            let groups = records.summary.at(experiment, variant, target);
            let side = |pick: Pick| groups.iter().copied().filter(|group| pick(group)).collect::<Vec<_>>();
            places.best_pair(target, &side(self.of), &side(self.over), self);
        }
        places.decide(self.missing)
    }
}

/// The test that in each of these variants the best of `of` has at least `low` times the figure of the best of `over`.
pub(crate) const fn at_least(
    variants: &'static [&'static str],
    metric: Metric,
    of: Pick,
    over: Pick,
    low: f64,
    missing: &'static str,
) -> Test {
    Test::Ratio(Ratio { variants, metric, of, over, about: &[], bound: Bound::at_least(low), missing })
}

/// The test that in each of these variants the best of `of` has at most `high` times the figure of the best of `over`.
pub(crate) const fn at_most(
    variants: &'static [&'static str],
    metric: Metric,
    of: Pick,
    over: Pick,
    high: f64,
    missing: &'static str,
) -> Test {
    Test::Ratio(Ratio { variants, metric, of, over, about: &[], bound: Bound::at_most(high), missing })
}

/// The decisions of one claim, place by place, with their texts and groups.
#[derive(Debug, Default)]
pub(crate) struct Places<'s> {
    outcomes: Vec<Outcome>,
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

    /// Decides a place by the best pair of equal conditions among two sides: the pair whose better half has the best
    /// figure. Without such a pair the place is undecided, with the reason.
    fn best_pair(&mut self, target: &str, of: &[&'s Group<'s>], over: &[&'s Group<'s>], rule: &Ratio) {
        let (metric, place) = (rule.metric, target_title(target));
        let Some((a, b)) = judge::best_pair(of, over, metric, rule.about) else {
            if let (Some(a), Some(b)) = (best(of.iter().copied(), metric), best(over.iter().copied(), metric)) {
                self.ratio(&place, (a, b), metric, rule.about);
            }
            return;
        };
        let Some(ratio) = self.ratio(&place, (a, b), metric, rule.about) else { return };
        self.add(rule.bound.decide(&ratio), format!("{place}: {}", against(a, b, metric, &ratio)), &[a, b]);
    }

    /// Whether no place has a decision.
    fn is_empty(&self) -> bool {
        self.outcomes.is_empty()
    }

    fn join(&mut self, other: Self) {
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
