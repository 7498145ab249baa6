//! The statistics of comparisons: ratios of repeated measurements with their confidence interval, and the correction for
//! many comparisons at once.
//!
//! Rates and times are positive and their noise is a factor, so everything is computed on logarithms. A ratio's interval
//! is Welch's: Student's t on the difference of the mean logarithms, without assuming that both sides are equally noisy.
//! The variances that enter it are moderated by the neighbouring measurements' ([`SharedVariance`]), because two repeats
//! alone say little about the noise; so are the variances of two whole results. Many p-values are corrected by Benjamini and
//! Hochberg's method.

use super::distributions::{p_of_t, t_quantile};
use super::shared_variance::{SharedVariance, Variance};

/// The probability, two-sided, that a ratio's interval misses the true ratio.
pub(crate) const ALPHA: f64 = 0.05;
/// The same for the comparison of two results, which must end without a difference in nineteen of twenty pairs of runs of
/// one build although real noise has heavier tails than the t distribution knows.
const RESULTS_ALPHA: f64 = 0.01;
/// The same for claims. Some thirty are decided from one run, and their intervals are wider instead of being corrected
/// for that: chance alone decides a claim in a third of the runs at most, and with two repeats in less than half.
pub(crate) const CLAIM_ALPHA: f64 = 0.01;

/// The repeats of one measurement, with the variance that it shares with its neighbours.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Sample {
    values: Vec<f64>,
    shared: Option<SharedVariance>,
}

impl Sample {
    /// A sample among others, of which each is one measurement and the sample itself is one. Samples without a logarithm or
    /// with one value only say nothing of the noise.
    pub(crate) fn beside(values: Vec<f64>, all: impl IntoIterator<Item = Vec<f64>>) -> Self {
        let shared = SharedVariance::of(all.into_iter().filter_map(|each| Some(Logs::of(&each)?.noise)));
        Self { values, shared }
    }

    /// The values of the repeats.
    pub(crate) fn values(&self) -> &[f64] {
        &self.values
    }

    /// The variance of the mean of these logarithms, which are the sample's.
    fn noise_of_mean(&self, logs: &Logs) -> Variance {
        let noise = self.shared.map_or(logs.noise, |shared| shared.moderate(logs.noise));
        Variance { value: noise.value / logs.count, ..noise }
    }
}

/// The logarithm of a ratio, with the variance and the degrees of freedom of its estimate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LogRatio {
    mean: f64,
    variance: f64,
    /// Degrees of freedom; 0 where a side has one value only, so that nothing is known of its noise.
    freedom: f64,
    /// Degrees of freedom of all variances behind the estimate. A mean of ratios has no more, as they share these; infinite where nothing is
    /// shared.
    freedom_max: f64,
}

impl LogRatio {
    /// The logarithm of the ratio of two samples' geometric means; `None` where a sample is empty or a value is not
    /// positive.
    pub(crate) fn of(x: &Sample, y: &Sample) -> Option<Self> {
        let (a, b) = (Logs::of(&x.values)?, Logs::of(&y.values)?);
        let noise = [x.noise_of_mean(&a), y.noise_of_mean(&b)];
        let variance = noise[0].value + noise[1].value;
        let freedom_max = match (x.shared, y.shared) {
            // Neighbouring samples share one variance.
            (Some(one), Some(other)) if one == other => one.freedom_max(),
            (Some(one), Some(other)) => one.freedom_max() + other.freedom_max(),
            _ => f64::INFINITY,
        };
        let freedom = match a.count.min(b.count) {
            ..2.0 => 0.0,
            // Both without any noise: as many degrees of freedom as for equal variances.
            _ if variance <= 0.0 => a.count + b.count - 2.0,
            _ => satterthwaite(&noise).min(freedom_max),
        };
        Some(Self { mean: a.mean - b.mean, variance, freedom, freedom_max })
    }

    /// The logarithm of the geometric mean of some ratios; `None` without any, and where one is not positive.
    pub(crate) fn of_one(ratios: &[f64]) -> Option<Self> {
        let logs = Logs::of(ratios)?;
        let (variance, freedom) = (logs.noise.value / logs.count, logs.noise.freedom);
        Some(Self { mean: logs.mean, variance, freedom, freedom_max: freedom })
    }

    /// The mean of several logarithms: the logarithm of the ratios' geometric mean. `None` without any.
    pub(crate) fn mean_of(all: &[Self]) -> Option<Self> {
        let count = all.len() as f64;
        let mean = all.iter().map(|one| one.mean).sum::<f64>() / count;
        let part = |one: &Self| Variance { value: one.variance / (count * count), freedom: one.freedom.max(1e-9) };
        let parts: Vec<Variance> = all.iter().map(part).collect();
        let variance = parts.iter().map(|part| part.value).sum::<f64>();
        let least = all.iter().map(|one| one.freedom).fold(f64::INFINITY, f64::min);
        let freedom_max = all.iter().map(|one| one.freedom_max).fold(0.0, f64::max);
        let freedom = if least <= 0.0 || variance <= 0.0 { least } else { satterthwaite(&parts).min(freedom_max) };
        (!all.is_empty()).then_some(Self { mean, variance, freedom, freedom_max })
    }

    /// The ratio itself.
    pub(crate) fn ratio(&self) -> f64 {
        self.mean.exp()
    }

    /// The interval that misses the true ratio with probability `alpha`; `None` where nothing is known of the noise.
    pub(crate) fn interval(&self, alpha: f64) -> Option<(f64, f64)> {
        let half = (self.freedom > 0.0).then(|| t_quantile(alpha, self.freedom) * self.variance.sqrt())?;
        Some(((self.mean - half).exp(), (self.mean + half).exp()))
    }

    /// Number of repeats of each side at which a difference of this size is found in four of five cases, given `repeats` of each
    /// now: about 16 / d², with d the difference of the means in standard deviations.
    pub(crate) fn repeats_needed(&self, repeats: usize) -> f64 {
        (8.0 * self.variance * repeats as f64 / self.mean.powi(2)).ceil()
    }

    /// The probability of a difference at least as large by chance alone, two-sided; `None` where nothing is known of the
    /// noise.
    pub(crate) fn p(&self) -> Option<f64> {
        (self.freedom > 0.0).then(|| p_of(self.mean, self.variance, self.freedom))
    }
}

/// The two-sided p-value of a difference with this variance and these degrees of freedom.
fn p_of(difference: f64, variance: f64, freedom: f64) -> f64 {
    match variance > 0.0 {
        true => p_of_t(difference / variance.sqrt(), freedom),
        false => f64::from(difference.abs() < 1e-12),
    }
}

/// The degrees of freedom of a sum of variances, which are not all zero, by Satterthwaite's approximation.
fn satterthwaite(parts: &[Variance]) -> f64 {
    let sum: f64 = parts.iter().map(|part| part.value).sum();
    sum * sum / parts.iter().map(|part| part.value.powi(2) / part.freedom).sum::<f64>()
}

/// Mean, number and noise of the logarithms of some values.
struct Logs {
    mean: f64,
    count: f64,
    noise: Variance,
}

impl Logs {
    fn of(values: &[f64]) -> Option<Self> {
        if values.is_empty() || values.iter().any(|value| !(*value > 0.0 && value.is_finite())) {
            return None;
        }
        let count = values.len() as f64;
        let mean = values.iter().map(|value| value.ln()).sum::<f64>() / count;
        let squares: f64 = values.iter().map(|value| (value.ln() - mean).powi(2)).sum();
        let freedom = count - 1.0;
        let value = if freedom > 0.0 { squares / freedom } else { 0.0 };
        Some(Self { mean, count, noise: Variance { value, freedom } })
    }
}

/// Returns for each p-value whether it is significant by Benjamini and Hochberg's method: of the differences that are
/// reported, at most `rate` are expected to be due to chance alone.
pub(crate) fn benjamini_hochberg(p_values: &[f64], rate: f64) -> Vec<bool> {
    let mut sorted = p_values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len() as f64;
    let largest = sorted.iter().enumerate().rev().find(|(at, p)| **p <= rate * (*at as f64 + 1.0) / count);
    let limit = largest.map_or(f64::NEG_INFINITY, |(_, p)| *p);
    p_values.iter().map(|p| *p <= limit).collect()
}

/// The difference of the mean logarithms of two samples, with the standard deviation of its estimate.
struct Difference {
    logarithm: f64,
    deviation: f64,
    freedom: f64,
}

impl Difference {
    /// The difference of two samples of equal noise, whose variance is moderated by the shared one; `None` where a sample has
    /// one value only, or a value that is not positive.
    fn of(x: &[f64], y: &[f64], shared: Option<SharedVariance>) -> Option<Self> {
        let (a, b) = (Logs::of(x)?, Logs::of(y)?);
        if a.count.min(b.count) < 2.0 {
            return None;
        }
        let own = pooled(&a, &b);
        let noise = shared.map_or(own, |shared| shared.moderate(own));
        let deviation = (noise.value * (a.count.recip() + b.count.recip())).sqrt().max(1e-9);
        Some(Self { logarithm: a.mean - b.mean, deviation, freedom: noise.freedom })
    }
}

/// Which of many pairs of samples differ, judged together.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Differences {
    /// For each pair, whether chance alone would not give its difference.
    pub(crate) differ: Vec<bool>,
    /// The factor by which the differences of most pairs exceed what the scatter within the samples gives; 1 where they do
    /// not. It comes from changes between the two sides that no repeat on one side shows.
    pub(crate) between_runs: f64,
}

/// Fewest pairs from which the noise between two runs can be told from changes of single pairs.
const PAIRS_MIN: usize = 10;

/// Judges many pairs of samples, before and after, together: by the variance that they share, widened by the noise between
/// the two sides, and corrected for their number. Pairs with one value on a side, or values that are not positive, do not
/// differ.
pub(crate) fn differences(pairs: &[[&[f64]; 2]]) -> Differences {
    let noise = |[x, y]: &[&[f64]; 2]| Some(pooled(&Logs::of(x)?, &Logs::of(y)?));
    let shared = SharedVariance::of(pairs.iter().filter_map(noise));
    let known: Vec<Option<Difference>> = pairs.iter().map(|[x, y]| Difference::of(x, y, shared)).collect();
    // Around the change of most pairs: a change of all of them alike is a change, and no noise.
    let mut all: Vec<f64> = known.iter().flatten().map(|pair| pair.logarithm).collect();
    let middle = median(&mut all);
    let mut excess: Vec<f64> = known
        .iter()
        .flatten()
        .map(|pair| (pair.logarithm - middle).abs() / pair.deviation / t_quantile(0.5, pair.freedom))
        .collect();
    let between_runs = if excess.len() < PAIRS_MIN { 1.0 } else { median(&mut excess).max(1.0) };
    let p_of = |pair: &Difference| p_of_t(pair.logarithm / pair.deviation / between_runs, pair.freedom);
    let p_values: Vec<f64> = known.iter().map(|pair| pair.as_ref().map_or(1.0, p_of)).collect();
    Differences { differ: benjamini_hochberg(&p_values, RESULTS_ALPHA), between_runs }
}

/// The median of some values, which are sorted; 0 without any.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        count => f64::midpoint(values[(count - 1) / 2], values[count / 2]),
    }
}

/// The variance of the logarithms within two samples.
fn pooled(a: &Logs, b: &Logs) -> Variance {
    let freedom = a.noise.freedom + b.noise.freedom;
    let squares = a.noise.value * a.noise.freedom + b.noise.value * b.noise.freedom;
    Variance { value: if freedom > 0.0 { squares / freedom } else { 0.0 }, freedom }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() <= 2e-4 * b.abs().max(1.0)
    }

    /// The ratio of two samples without neighbours.
    fn alone(x: &[f64], y: &[f64]) -> Option<LogRatio> {
        let [x, y] = [x, y].map(|values| Sample::beside(values.to_vec(), []));
        LogRatio::of(&x, &y)
    }

    #[test]
    fn a_ratio_has_an_interval_by_the_noise_of_both_sides() {
        let ratio = alone(&[98.0, 100.0, 102.0], &[49.0, 50.0, 51.0]).unwrap();
        let (low, high) = ratio.interval(ALPHA).unwrap();
        assert!(near(ratio.ratio(), 2.0) && low < 2.0 && high > 2.0 && low > 1.8 && high < 2.2, "{low} {high}");
        assert!(ratio.p().unwrap() < 1e-4);
        let (wide_low, wide_high) = ratio.interval(CLAIM_ALPHA).unwrap();
        assert!(wide_low < low && wide_high > high);
        // A single value has no noise that anything is known of; and there is no logarithm of zero.
        let single = alone(&[2.0], &[1.0, 1.1]).unwrap();
        assert_eq!((single.interval(ALPHA), single.p()), (None, None));
        assert_eq!(alone(&[0.0, 1.0], &[1.0]), None);
        assert_eq!(alone(&[], &[1.0]), None);
    }

    #[test]
    fn equal_values_differ_by_nothing_or_for_certain() {
        assert_eq!(alone(&[2.0, 2.0], &[2.0, 2.0]).unwrap().p(), Some(1.0));
        assert_eq!(alone(&[2.0, 2.0], &[4.0, 4.0]).unwrap().p(), Some(0.0));
    }

    #[test]
    fn a_geometric_mean_of_ratios_is_surer_than_each() {
        let one = alone(&[98.0, 102.0], &[49.0, 51.0]).unwrap();
        let mean = LogRatio::mean_of(&[one; 4]).unwrap();
        assert!(near(mean.ratio(), one.ratio()) && mean.p().unwrap() < one.p().unwrap());
        let [few, many] = [one, mean].map(|ratio| ratio.interval(ALPHA).unwrap());
        assert!(many.0 > few.0 && many.1 < few.1);
        assert_eq!(LogRatio::mean_of(&[]), None);
    }

    #[test]
    fn chance_alone_reports_a_difference_in_one_run_of_twenty_however_many_are_compared() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut runs = |count: usize| {
            let differ = |p_values: &[f64]| benjamini_hochberg(p_values, ALPHA).contains(&true);
            let p_values = |random: &mut fastrand::Rng| (0..count).map(|_| random.f64()).collect::<Vec<_>>();
            (0..2000).filter(|_| differ(&p_values(&mut random))).count()
        };
        for count in [1, 10, 100] {
            let by_chance = runs(count);
            assert!((60..150).contains(&by_chance), "{count}: {by_chance} of 2000");
        }
        assert_eq!(benjamini_hochberg(&[0.001, 0.04, 0.03, 0.9], 0.05), [true, false, false, false]);
        assert_eq!(benjamini_hochberg(&[0.001, 0.02, 0.03, 0.9], 0.05), [true, true, true, false]);
        assert!(benjamini_hochberg(&[], 0.05).is_empty());
    }

    #[test]
    fn a_change_of_single_pairs_is_found_and_noise_between_the_runs_is_not_a_change() {
        let mut random = fastrand::Rng::with_seed(3);
        let mut normal = move || (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
        let mut pairs = |shift: f64, changed: f64| -> Vec<[Vec<f64>; 2]> {
            let mut pair = |at: usize| {
                let (own, factor) = (shift * normal(), if at < 3 { changed } else { 1.0 });
                let before = vec![100.0 * (1.0 + 0.01 * normal()), 100.0 * (1.0 + 0.01 * normal())];
                let after = before.iter().map(|_| factor * 100.0 * (1.0 + own + 0.01 * normal())).collect();
                [before, after]
            };
            (0..60).map(&mut pair).collect()
        };
        let mut judged = |shift, changed| {
            let pairs = pairs(shift, changed);
            differences(&pairs.iter().map(|[x, y]| [&x[..], &y[..]]).collect::<Vec<_>>())
        };
        let changed = judged(0.0, 0.8);
        assert_eq!(changed.differ.iter().filter(|differs| **differs).count(), 3, "{changed:?}");
        assert!(changed.between_runs < 1.5, "{changed:?}");
        let noisy = judged(0.05, 1.0);
        assert!(!noisy.differ.contains(&true) && noisy.between_runs > 2.0, "{noisy:?}");
        assert!(differences(&[]).differ.is_empty());
        assert_eq!(differences(&[[&[1.0], &[9.0]]]).differ, [false], "one run");
    }

    #[test]
    fn two_repeats_tell_a_change_from_chance_by_the_noise_of_those_beside_them() {
        let mut random = fastrand::Rng::with_seed(2);
        let mut value = |rate: f64| rate * (1.0 + 0.01 * ((0..12).map(|_| random.f64()).sum::<f64>() - 6.0));
        let others: Vec<Vec<f64>> = (0..20).map(|_| vec![value(100.0), value(100.0)]).collect();
        let beside = |values: &[f64]| Sample::beside(values.to_vec(), others.iter().cloned().chain([values.to_vec()]));
        let p = |x: &[f64], y: &[f64]| {
            let (moderated, own) = (LogRatio::of(&beside(x), &beside(y)).unwrap(), alone(x, y).unwrap());
            assert_eq!(moderated.ratio(), own.ratio());
            [moderated, own].map(|ratio| ratio.p().unwrap())
        };
        // A change of a tenth at a scatter of a hundredth.
        let [moderated, own] = p(&[100.0, 101.0], &[90.0, 91.0]);
        assert!(moderated < 1e-3 && own > 5e-3, "{moderated} {own}");
        // Repeats that happen to be equal prove nothing.
        let [moderated, own] = p(&[100.0, 100.01], &[101.0, 101.01]);
        assert!(moderated > 0.1 && own < 1e-3, "{moderated} {own}");
        // One method is far noisier than all others.
        let [moderated, own] = p(&[70.0, 130.0], &[100.0, 101.0]);
        assert!(moderated > 0.5 && own > 0.5, "{moderated} {own}");
        // A single run still has no noise that is known.
        assert_eq!(LogRatio::of(&beside(&[100.0]), &beside(&[90.0, 91.0])).unwrap().p(), None);
    }

    #[test]
    fn ratios_of_one_place_share_what_is_known_of_their_noise() {
        let values = |at: usize| vec![100.0 + at as f64, 101.0 + 2.0 * at as f64];
        let all: Vec<Vec<f64>> = (0..4).map(values).collect();
        let sample = |at: usize| Sample::beside(values(at), all.iter().cloned());
        let ratios = [LogRatio::of(&sample(0), &sample(1)).unwrap(), LogRatio::of(&sample(2), &sample(3)).unwrap()];
        assert!(ratios.iter().all(|ratio| ratio.freedom <= 4.0), "{ratios:?}");
        let mean = LogRatio::mean_of(&[ratios, ratios, ratios].concat()).unwrap();
        assert!(mean.freedom <= 4.0, "{mean:?}");
    }
}
