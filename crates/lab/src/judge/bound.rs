//! The bounds of rules: of a claim, of a reason of the verdict, of a comparison of two results. A rule gives the
//! measured figure and the bound; only this module decides whether the figure lies inside, outside or across.

use serde::Serialize;

use crate::summary::Spread;

/// An interval of values, both ends included, in which a rule wants a figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Bound {
    low: f64,
    high: f64,
}

impl Bound {
    /// The interval of all values from `low` up.
    pub(crate) const fn at_least(low: f64) -> Self {
        Self { low, high: f64::INFINITY }
    }

    /// The interval of all values up to `high`.
    pub(crate) const fn at_most(high: f64) -> Self {
        Self { low: f64::NEG_INFINITY, high }
    }

    /// The interval from `low` to `high`.
    pub(crate) const fn between(low: f64, high: f64) -> Self {
        Self { low, high }
    }

    /// Whether a value lies in the interval.
    pub(crate) fn contains(self, value: f64) -> bool {
        value >= self.low && value <= self.high
    }

    /// Decides a rule by where a figure's spread lies: inside the interval, outside, or across one of its ends
    /// (undecided). A single run is undecided, as it has no spread.
    pub(crate) fn decide(self, figure: &Spread) -> Outcome {
        match figure {
            Spread { count: ..2, .. } => Outcome::Undecided,
            Spread { min, max, .. } if *min >= self.low && *max <= self.high => Outcome::Held,
            Spread { min, max, .. } if *max < self.low || *min > self.high => Outcome::DidNotHold,
            _ => Outcome::Undecided,
        }
    }
}

/// The outcome of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The claim holds wherever it was measured.
    Held,
    /// The claim holds in some places and not in others.
    InPart,
    /// The claim does not hold.
    DidNotHold,
    /// The spread crosses the bound, or there was only one run.
    Undecided,
    /// The machine lacks a precondition of the claim's effect, so that its figures neither confirm nor refute it.
    CannotBeTried,
    /// The records have no figures that decide the claim.
    NotMeasured,
}

impl Outcome {
    /// The outcome in words, for people.
    pub fn words(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::InPart => "held in part",
            Self::DidNotHold => "did not hold",
            Self::Undecided => "undecided",
            Self::CannotBeTried => "cannot be tried here",
            Self::NotMeasured => "not measured here",
        }
    }

    /// Combines the outcomes of several places into one.
    pub(crate) fn all(outcomes: &[Self]) -> Self {
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
