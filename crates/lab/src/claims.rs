//! Claims for and against mmap, as data: who says it, which experiment decides, by which rule; and whether it holds in a set of
//! records, with the figures. From records alone: what was not measured is said to be so, with what would measure it.
//!
//! A rule knows no answer: each is a bound that a measured spread lies within, outside of, or across ("undecided").

mod own;
mod prices;
mod table;

use serde::Serialize;

use crate::format::Unit;
use crate::judge::best;
use crate::record::ExperimentId;
use crate::record::file::RecordFile;
use crate::summary::{Group, Metric, Spread, Summary, target_title};

pub(crate) use own::signals_met;
pub use table::CLAIMS;

/// A hypothesis.
#[derive(Debug)]
pub struct Claim {
    /// Stable name.
    pub id: &'static str,
    /// What is claimed, in one sentence.
    pub hypothesis: &'static str,
    /// Who claims it, and where.
    pub source: &'static str,
    /// Whose records decide: the name of an experiment.
    pub experiment: &'static str,
    /// The deciding rule in words.
    pub rule: &'static str,
    /// The deciding rule.
    test: Test,
}

/// How a claim is decided.
enum Test {
    /// A metric of the best of some contenders over that of the best of others, on each target alike.
    Ratio(Ratio),
    /// A rule of its own.
    Own(fn(&Records<'_>) -> Decision),
}

impl std::fmt::Debug for Test {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Ratio(_) => "ratio",
            Self::Own(_) => "own",
        })
    }
}

/// Which groups a side is taken from.
type Pick = fn(&Group<'_>) -> bool;

/// A comparison of two sides.
struct Ratio {
    /// Variants of the experiment in which both sides are looked for, each by itself.
    variants: &'static [&'static str],
    /// What is compared.
    metric: Metric,
    /// The contenders in question: the best counts.
    of: Pick,
    /// What they are compared with.
    over: Pick,
    /// The claim holds when the ratio is at least this,
    low: f64,
    /// and at most this.
    high: f64,
    /// What measures it where these records do not.
    missing: &'static str,
}

/// What became of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It holds wherever it was measured.
    Held,
    /// It holds in some places and not in others.
    InPart,
    /// It does not hold.
    DidNotHold,
    /// The spread crosses the bound, or there was one run.
    Undecided,
    /// These records hold nothing that decides it.
    NotMeasured,
}

impl Outcome {
    /// For people.
    pub fn words(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::InPart => "held in part",
            Self::DidNotHold => "did not hold",
            Self::Undecided => "undecided",
            Self::NotMeasured => "not measured here",
        }
    }

    /// Several places together.
    fn all(outcomes: &[Self]) -> Self {
        let has = |wanted: Self| outcomes.contains(&wanted);
        match () {
            () if outcomes.is_empty() => Self::NotMeasured,
            () if has(Self::InPart) || has(Self::Held) && has(Self::DidNotHold) => Self::InPart,
            () if outcomes.iter().all(|outcome| *outcome == Self::Held) => Self::Held,
            () if outcomes.iter().all(|outcome| *outcome == Self::DidNotHold) => Self::DidNotHold,
            () if has(Self::Undecided) => Self::Undecided,
            () => Self::NotMeasured,
        }
    }
}

/// The answer, and what it rests on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Decision {
    /// Whether it holds.
    pub outcome: Outcome,
    /// The figures, or what would measure them.
    pub text: String,
    /// Keys of the cells it used.
    pub cells: Vec<String>,
}

impl Decision {
    fn not_measured(what: &str) -> Self {
        Self { outcome: Outcome::NotMeasured, text: what.to_owned(), cells: Vec::new() }
    }

    fn new(outcome: Outcome, text: String, groups: &[&Group<'_>]) -> Self {
        Self { outcome, text, cells: groups.iter().map(|group| group.key.clone()).collect() }
    }
}

/// A claim and its answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Answer {
    /// [`Claim::id`].
    pub id: &'static str,
    /// [`Claim::hypothesis`].
    pub hypothesis: &'static str,
    /// [`Claim::source`].
    pub source: &'static str,
    /// [`Claim::experiment`].
    pub experiment: &'static str,
    /// [`Claim::rule`].
    pub rule: &'static str,
    /// The answer.
    #[serde(flatten)]
    pub decision: Decision,
}

/// What a rule may look at.
pub(crate) struct Records<'s> {
    pub(crate) file: &'s RecordFile,
    pub(crate) summary: &'s Summary<'s>,
}

impl<'s> Records<'s> {
    /// The groups of an experiment, by its name. A method that is not known here is on no side.
    pub(crate) fn of(&self, experiment: &str) -> impl Iterator<Item = &'s Group<'s>> {
        self.summary
            .groups
            .iter()
            .filter(move |group| group.method.is_some() && group.spec.experiment.name() == experiment)
    }
}

/// Every claim, answered from these records, in the order of [`CLAIMS`].
pub fn answers(file: &RecordFile, summary: &Summary<'_>) -> Vec<Answer> {
    let records = Records { file, summary };
    CLAIMS
        .iter()
        .map(|claim| Answer {
            id: claim.id,
            hypothesis: claim.hypothesis,
            source: claim.source,
            experiment: claim.experiment,
            rule: claim.rule,
            decision: match &claim.test {
                Test::Ratio(ratio) => ratio.decide(claim.experiment, &records),
                Test::Own(decide) => decide(&records),
            },
        })
        .collect()
}

/// How many claims ended how: `5 held, 2 did not hold, 18 not measured here`.
pub fn counted(answers: &[Answer]) -> String {
    let all = [Outcome::Held, Outcome::InPart, Outcome::DidNotHold, Outcome::Undecided, Outcome::NotMeasured];
    let count = |outcome: Outcome| answers.iter().filter(|answer| answer.decision.outcome == outcome).count();
    let counts = all.into_iter().map(|outcome| (count(outcome), outcome)).filter(|(count, _)| *count > 0);
    counts.map(|(count, outcome)| format!("{count} {}", outcome.words())).collect::<Vec<_>>().join(", ")
}

impl Ratio {
    fn decide(&self, experiment: &str, records: &Records<'_>) -> Decision {
        let experiment = ExperimentId::of(experiment);
        let mut outcomes = Vec::new();
        let mut texts = Vec::new();
        let mut used = Vec::new();
        for (variant, target) in records.summary.places(experiment) {
            if !self.variants.contains(&variant) {
                continue;
            }
            let groups = records.summary.at(experiment, variant, target);
            let side = |pick: Pick| best(groups.iter().copied().filter(|group| pick(group)), self.metric);
            let (Some(a), Some(b)) = (side(self.of), side(self.over)) else { continue };
            let (Some(x), Some(y)) = (a.spread(self.metric), b.spread(self.metric)) else { continue };
            let Some(ratio) = x.over(&y) else { continue };
            outcomes.push(inside(&ratio, self.low, self.high));
            texts.push(format!("{}: {}", target_title(target), against(a, b, self.metric, &ratio)));
            used.extend([a, b]);
        }
        if outcomes.is_empty() {
            return Decision::not_measured(self.missing);
        }
        Decision::new(Outcome::all(&outcomes), format!("{}.", texts.join("; ")), &used)
    }
}

/// Whether a spread lies within bounds, outside, or across one of them. One run has no spread.
fn inside(ratio: &Spread, low: f64, high: f64) -> Outcome {
    match ratio {
        Spread { count: ..2, .. } => Outcome::Undecided,
        Spread { min, max, .. } if *min >= low && *max <= high => Outcome::Held,
        Spread { min, max, .. } if *max < low || *min > high => Outcome::DidNotHold,
        _ => Outcome::Undecided,
    }
}

/// `mmap RANDOM 54.8 K/s, pread O_DIRECT 77.0 K/s: 0.71× (0.68 to 0.75)`.
fn against(a: &Group<'_>, b: &Group<'_>, metric: Metric, ratio: &Spread) -> String {
    let show = |group: &Group<'_>| {
        let value = group.spread(metric).map_or("–".to_owned(), |spread| metric.unit().show(spread.median));
        format!("{} {value}", group.label())
    };
    format!("{}, {}: {}", show(a), show(b), times(ratio))
}

/// `0.71× (0.68× to 0.75×)`.
fn times(ratio: &Spread) -> String {
    match ratio.count {
        ..2 => format!("{}, one run", Unit::Ratio.show(ratio.median)),
        _ => ratio.show(Unit::Ratio),
    }
}

/// A figure of the experiment's own, over the repeats that count.
pub(crate) fn figure(group: &Group<'_>, name: &str) -> Option<Spread> {
    Spread::of(group.good.iter().filter_map(|cell| cell.outcome.figures.get(name).copied()))
}

/// An extra parameter.
pub(crate) fn extra<'g>(group: &'g Group<'_>, name: &str) -> Option<&'g str> {
    group.spec.params.extra.get(name).map(String::as_str)
}

#[cfg(test)]
mod tests;
