//! Curves over requests in flight: the unit in which methods reading data larger than memory are compared. A method's
//! figure depends on the number of requests, so two methods are compared at each number that both were measured with,
//! and the ratio of the whole curves is the geometric mean of the ratios at these points, with an interval from the
//! repeats of all of them ([`super::statistics`]).
//!
//! Kept true by: each point compares equal conditions ([`super::ratio`]); a point without a valid figure on either side is
//! left out on both, and nothing stands in for it.

use super::statistics::{ALPHA, LogRatio};
use super::{Kind, Refusal, are_equal, best, check_equal, keys, sample};
use crate::format::digits;
use crate::summary::{Group, Metric, Spread};

/// Most points of a curve that a sentence names one by one.
const NAMED_MAX: usize = 4;

/// One side of a comparison of curves: for each number of requests in flight the group that stands for the side.
pub(crate) struct Curve<'g, 'a> {
    points: Vec<&'g Group<'a>>,
}

/// The ratio of two curves, with the points that it was formed from.
#[derive(Debug)]
pub(crate) struct CurveRatio<'g, 'a> {
    /// The geometric mean of the ratios at all points, with the ends of its interval.
    pub(crate) ratio: Spread,
    /// The probability of such a difference by chance; `None` where the repeats do not tell.
    pub(crate) p: Option<f64>,
    log: LogRatio,
    /// The pairs of groups, by requests in flight.
    pub(crate) pairs: Vec<(&'g Group<'a>, &'g Group<'a>)>,
}

impl<'g, 'a> Curve<'g, 'a> {
    /// The curve of a side: at each number of requests in flight the best of its methods by `metric`. All groups must be
    /// methods that could stand for the side at every point; groups without a valid figure are left out.
    pub(crate) fn of(groups: impl IntoIterator<Item = &'g Group<'a>>, metric: Metric) -> Self {
        let mut points: Vec<&Group<'_>> = Vec::new();
        let mut all: Vec<&Group<'_>> = groups.into_iter().filter(|group| is_valid(group, metric)).collect();
        all.sort_by_key(|group| group.conditions().in_flight);
        for same in all.chunk_by(|a, b| a.conditions().in_flight == b.conditions().in_flight) {
            points.extend(best(same.iter().copied(), metric));
        }
        Self { points }
    }

    /// The point with the best figure: the side at its own best, which is compared with nothing.
    pub(crate) fn best(&self, metric: Metric) -> Option<&'g Group<'a>> {
        best(self.points.iter().copied(), metric)
    }

    /// The points of the curve, by requests in flight.
    pub(crate) fn points(&self) -> &[&'g Group<'a>] {
        &self.points
    }

    /// Divides this curve by another, at the points that both have.
    ///
    /// # Errors
    /// A refusal where the curves have no point with equal conditions: without a figure on either side, or with what
    /// differs.
    pub(crate) fn over(&self, other: &Self, metric: Metric) -> Result<CurveRatio<'g, 'a>, Refusal> {
        let pairs: Vec<_> =
            self.points.iter().filter_map(|a| Some((*a, *other.points.iter().find(|b| are_equal(a, b))?))).collect();
        match mean_ratio(&pairs, metric) {
            Some((log, count)) => Ok(CurveRatio { ratio: spread_of(&log, ALPHA, count), p: log.p(), log, pairs }),
            None => {
                let (Some(a), Some(b)) = (self.best(metric), other.best(metric)) else { return Err(Refusal::NoFigure) };
                check_equal(a, b, &[]).and(Err(Refusal::NoFigure))
            }
        }
    }
}

impl CurveRatio<'_, '_> {
    /// The ratio with an interval that misses the true one with probability `alpha`.
    pub(crate) fn at(&self, alpha: f64) -> Spread {
        spread_of(&self.log, alpha, self.ratio.count)
    }

    /// The kind of a finding by this ratio: a difference, or inconclusive.
    pub(crate) fn kind(&self) -> Kind {
        if self.p.is_some_and(|p| p < ALPHA) { Kind::Difference } else { Kind::Inconclusive }
    }

    /// Why the ratio is inconclusive, as the beginning of a sentence; empty where it is conclusive.
    pub(crate) fn caveat(&self) -> &'static str {
        match self.kind() {
            Kind::Difference => "",
            _ if self.p.is_none() => "inconclusive: one run is no spread – ",
            _ => "inconclusive: the repeats do not tell them apart – ",
        }
    }

    /// Formats the ratio: `0.88× (0.81 to 0.95)`; without the interval for single runs.
    pub(crate) fn show(&self) -> String {
        match self.p {
            None => format!("{}×", digits(self.ratio.median)),
            Some(_) => {
                let Spread { median, min, max, .. } = self.ratio;
                format!("{}× ({} to {})", digits(median), digits(min), digits(max))
            }
        }
    }

    /// Names the points: `at 1, 4, 16 and 64 in flight`; of more than [`NAMED_MAX`] points the ends and their number.
    pub(crate) fn words(&self) -> String {
        let counts: Vec<String> = self.pairs.iter().map(|(a, _)| a.conditions().in_flight.to_string()).collect();
        match counts.as_slice() {
            [] => String::new(),
            [one] => format!("at {one} in flight"),
            [first, .., last] if counts.len() > NAMED_MAX => {
                format!("at {} numbers in flight from {first} to {last}", counts.len())
            }
            [first @ .., last] => format!("at {} and {last} in flight", first.join(", ")),
        }
    }

    /// The keys of all groups of the comparison.
    pub(crate) fn keys(&self) -> Vec<String> {
        self.pairs.iter().flat_map(|(a, b)| keys(&[a, b])).collect()
    }
}

fn spread_of(log: &LogRatio, alpha: f64, count: usize) -> Spread {
    let (min, max) = log.interval(alpha).unwrap_or((log.ratio(), log.ratio()));
    Spread { median: log.ratio(), min, max, count }
}

/// The logarithm of the geometric mean of the ratios of several pairs, and the least number of repeats. `None` where a pair
/// has no figure, and without any pair.
fn mean_ratio(pairs: &[(&Group<'_>, &Group<'_>)], metric: Metric) -> Option<(LogRatio, usize)> {
    let samples: Vec<_> = pairs.iter().map(|(a, b)| (sample(a, metric), sample(b, metric))).collect();
    let logs: Option<Vec<LogRatio>> = samples.iter().map(|(x, y)| LogRatio::of(x, y)).collect();
    let count = samples.iter().map(|(x, y)| x.values().len().min(y.values().len())).min()?;
    Some((LogRatio::mean_of(&logs?)?, count))
}

/// Whether a group has a valid figure: memory was full wherever the trial needs it to be.
pub(crate) fn is_valid(group: &Group<'_>, metric: Metric) -> bool {
    !group.never_filled() && group.spread(metric).is_some()
}
