//! The statistics of comparisons: ratios of repeated measurements with their confidence interval, and the correction for
//! many comparisons at once.
//!
//! Rates and times are positive and their noise is a factor, so everything is computed on logarithms. A ratio's interval
//! is Welch's: Student's t on the difference of the mean logarithms, without assuming that both sides are equally noisy.
//! Many p-values are corrected by Benjamini and Hochberg's method. Two whole results are compared with a variance that is
//! shared among their trials ([`SharedVariance`], after Smyth 2004), because two repeats alone say little about the noise.

use std::f64::consts::PI;

/// The probability, two-sided, that a ratio's interval misses the true ratio.
pub(crate) const ALPHA: f64 = 0.05;
/// The same for the comparison of two results, which must end without a difference in nineteen of twenty pairs of runs of
/// one build although real noise has heavier tails than the t distribution knows.
const RESULTS_ALPHA: f64 = 0.01;
/// The same for claims. Some thirty are decided from one run, and their intervals are wider instead of being corrected
/// for that: chance alone decides a claim in fewer than one run of three.
pub(crate) const CLAIM_ALPHA: f64 = 0.01;

/// The logarithm of a ratio, with the variance and the degrees of freedom of its estimate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LogRatio {
    pub(crate) mean: f64,
    pub(crate) variance: f64,
    /// Degrees of freedom; 0 where a side has one value only, so that nothing is known of its noise.
    pub(crate) freedom: f64,
}

impl LogRatio {
    /// The logarithm of the ratio of two samples' geometric means; `None` where a sample is empty or a value is not
    /// positive.
    pub(crate) fn of(x: &[f64], y: &[f64]) -> Option<Self> {
        let (x, y) = (Logs::of(x)?, Logs::of(y)?);
        let [a, b] = [&x, &y].map(|logs| logs.variance / logs.count);
        let freedom = match x.count.min(y.count) {
            ..2.0 => 0.0,
            // Both without any noise: as many degrees of freedom as for equal variances.
            _ if a + b <= 0.0 => x.count + y.count - 2.0,
            _ => (a + b).powi(2) / (a * a / (x.count - 1.0) + b * b / (y.count - 1.0)),
        };
        Some(Self { mean: x.mean - y.mean, variance: a + b, freedom })
    }

    /// The logarithm of the geometric mean of some ratios; `None` without any, and where one is not positive.
    pub(crate) fn of_one(ratios: &[f64]) -> Option<Self> {
        let logs = Logs::of(ratios)?;
        Some(Self { mean: logs.mean, variance: logs.variance / logs.count, freedom: logs.count - 1.0 })
    }

    /// The mean of several logarithms: the logarithm of the ratios' geometric mean. `None` without any.
    pub(crate) fn mean_of(all: &[Self]) -> Option<Self> {
        let count = all.len() as f64;
        let mean = all.iter().map(|one| one.mean).sum::<f64>() / count;
        let variance = all.iter().map(|one| one.variance).sum::<f64>() / (count * count);
        let parts: f64 = all.iter().map(|one| (one.variance / (count * count)).powi(2) / one.freedom.max(1e-9)).sum();
        let least = all.iter().map(|one| one.freedom).fold(f64::INFINITY, f64::min);
        let freedom = if least <= 0.0 || parts <= 0.0 { least } else { variance * variance / parts };
        (!all.is_empty()).then_some(Self { mean, variance, freedom })
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

/// Mean, variance and number of the logarithms of some values.
struct Logs {
    mean: f64,
    variance: f64,
    count: f64,
}

impl Logs {
    fn of(values: &[f64]) -> Option<Self> {
        if values.is_empty() || values.iter().any(|value| !(*value > 0.0 && value.is_finite())) {
            return None;
        }
        let count = values.len() as f64;
        let mean = values.iter().map(|value| value.ln()).sum::<f64>() / count;
        let squares: f64 = values.iter().map(|value| (value.ln() - mean).powi(2)).sum();
        Some(Self { mean, variance: if count > 1.0 { squares / (count - 1.0) } else { 0.0 }, count })
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

/// The variance of logarithms that the trials of two results share, and how much each trial's own variance counts beside
/// it: Smyth's moderated t (2004), whose prior is estimated from all trials by their mean and spread.
#[derive(Debug, Clone, Copy, PartialEq)]
struct SharedVariance {
    /// The shared variance.
    variance: f64,
    /// The degrees of freedom of the shared variance; infinite where the trials do not differ in their noise.
    freedom: f64,
}

impl SharedVariance {
    /// Estimates the shared variance from pairs of samples. `None` where no pair has two values on a side.
    fn of<'v>(pairs: impl IntoIterator<Item = (&'v [f64], &'v [f64])>) -> Option<Self> {
        let own: Vec<(f64, f64)> = pairs.into_iter().filter_map(|(x, y)| pooled(x, y)).collect();
        let counted: Vec<(f64, f64)> = own.into_iter().filter(|(_, freedom)| *freedom > 0.0).collect();
        if counted.is_empty() {
            return None;
        }
        // A clock tick's resolution: without a floor, two equal values would have the logarithm of zero.
        let log = |variance: f64| variance.max(1e-10).ln();
        let terms: Vec<f64> = counted
            .iter()
            .map(|(variance, freedom)| log(*variance) - digamma(freedom / 2.0) + (freedom / 2.0).ln())
            .collect();
        let count = terms.len() as f64;
        let mean = terms.iter().sum::<f64>() / count;
        let spread = terms.iter().map(|term| (term - mean).powi(2)).sum::<f64>() / (count - 1.0).max(1.0);
        let expected = counted.iter().map(|(_, freedom)| trigamma(freedom / 2.0)).sum::<f64>() / count;
        let excess = spread - expected;
        let freedom = if excess > 0.0 { 2.0 * inverse_trigamma(excess) } else { f64::INFINITY };
        let shift = if freedom.is_finite() { digamma(freedom / 2.0) - (freedom / 2.0).ln() } else { 0.0 };
        Some(Self { variance: (mean + shift).exp(), freedom })
    }

    /// The difference of two samples' logarithms; `None` where a sample is empty or a value is not positive.
    fn difference(&self, x: &[f64], y: &[f64]) -> Option<Difference> {
        let (a, b) = (Logs::of(x)?, Logs::of(y)?);
        let (own, freedom) = pooled(x, y)?;
        let (variance, freedom) = match self.freedom.is_finite() {
            true => {
                let all = self.freedom + freedom;
                ((self.freedom * self.variance + freedom * own) / all, all)
            }
            false => (self.variance, 1e6),
        };
        let deviation = (variance * (a.count.recip() + b.count.recip())).sqrt().max(1e-9);
        Some(Difference { logarithm: a.mean - b.mean, deviation, freedom })
    }
}

/// The difference of the mean logarithms of two samples, with the standard deviation of its estimate.
struct Difference {
    logarithm: f64,
    deviation: f64,
    freedom: f64,
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
    let shared = SharedVariance::of(pairs.iter().map(|[x, y]| (*x, *y)));
    let known: Vec<Option<Difference>> =
        pairs.iter().map(|[x, y]| shared.as_ref().filter(|_| x.len().min(y.len()) > 1)?.difference(x, y)).collect();
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

/// The variance of the logarithms within two samples, and its degrees of freedom.
fn pooled(x: &[f64], y: &[f64]) -> Option<(f64, f64)> {
    let (a, b) = (Logs::of(x)?, Logs::of(y)?);
    let freedom = a.count + b.count - 2.0;
    let squares = a.variance * (a.count - 1.0) + b.variance * (b.count - 1.0);
    Some((if freedom > 0.0 { squares / freedom } else { 0.0 }, freedom))
}

/// The two-sided p-value of Student's t.
fn p_of_t(t: f64, freedom: f64) -> f64 {
    if t.is_infinite() {
        return 0.0;
    }
    incomplete_beta(freedom / 2.0, 0.5, freedom / (freedom + t * t))
}

/// The t that is exceeded, in either direction, with probability `alpha`: by bisection.
fn t_quantile(alpha: f64, freedom: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1e9);
    for _ in 0..200 {
        let middle = f64::midpoint(low, high);
        if p_of_t(middle, freedom) > alpha { low = middle } else { high = middle }
    }
    f64::midpoint(low, high)
}

/// The regularised incomplete beta function, by its continued fraction (Lentz's method).
fn incomplete_beta(a: f64, b: f64, x: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return x.clamp(0.0, 1.0);
    }
    let front = (ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * (1.0 - x).ln()).exp();
    if x < (a + 1.0) / (a + b + 2.0) {
        front * beta_fraction(a, b, x) / a
    } else {
        1.0 - front * beta_fraction(b, a, 1.0 - x) / b
    }
}

fn beta_fraction(a: f64, b: f64, x: f64) -> f64 {
    let tiny = 1e-300;
    let safe = |value: f64| if value.abs() < tiny { tiny } else { value };
    let (mut c, mut d) = (1.0, safe(1.0 - (a + b) * x / (a + 1.0)).recip());
    let mut result = d;
    for step in 1..=500 {
        let m = f64::from(step);
        for term in [
            m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0)),
        ] {
            d = safe(1.0 + term * d).recip();
            c = safe(1.0 + term / c);
            result *= d * c;
        }
        if (d * c - 1.0).abs() < 1e-14 {
            break;
        }
    }
    result
}

/// The logarithm of the gamma function, by Stirling's series, shifted up to where the series is exact.
fn ln_gamma(x: f64) -> f64 {
    if x < 10.0 {
        return ln_gamma(x + 1.0) - x.ln();
    }
    let inverse = x.recip();
    let square = inverse * inverse;
    let series = inverse * (1.0 / 12.0 - square * (1.0 / 360.0 - square * (1.0 / 1260.0 - square / 1680.0)));
    (x - 0.5) * x.ln() - x + 0.5 * (2.0 * PI).ln() + series
}

/// The derivative of [`ln_gamma`].
fn digamma(x: f64) -> f64 {
    if x < 10.0 {
        return digamma(x + 1.0) - x.recip();
    }
    let square = (x * x).recip();
    x.ln() - 0.5 / x - square * (1.0 / 12.0 - square * (1.0 / 120.0 - square / 252.0))
}

/// The derivative of [`digamma`].
fn trigamma(x: f64) -> f64 {
    if x < 10.0 {
        return trigamma(x + 1.0) + (x * x).recip();
    }
    let square = (x * x).recip();
    x.recip() + 0.5 * square + square / x * (1.0 / 6.0 - square * (1.0 / 30.0 - square / 42.0))
}

/// The x at which [`trigamma`], which falls, has a positive value: by bisection.
fn inverse_trigamma(value: f64) -> f64 {
    let (mut low, mut high) = (1e-6, 1e6);
    for _ in 0..200 {
        let middle = f64::sqrt(low * high);
        if trigamma(middle) > value { low = middle } else { high = middle }
    }
    f64::sqrt(low * high)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() <= 2e-4 * b.abs().max(1.0)
    }

    #[test]
    fn the_distributions_have_the_values_of_published_tables() {
        for (alpha, freedom, t) in
            [(0.05, 1.0, 12.706), (0.05, 2.0, 4.303), (0.05, 10.0, 2.228), (0.01, 4.0, 4.604), (0.05, 1e6, 1.960)]
        {
            let found = t_quantile(alpha, freedom);
            assert!((found - t).abs() < 1e-3, "{alpha} {freedom}: {found}");
            assert!(near(p_of_t(found, freedom), alpha));
        }
        assert!(near(ln_gamma(0.5), PI.sqrt().ln()) && near(ln_gamma(5.0), 24.0_f64.ln()));
        assert!(near(digamma(1.0), -0.577_215_66) && near(trigamma(1.0), PI * PI / 6.0));
        assert!(near(trigamma(inverse_trigamma(0.7)), 0.7));
    }

    #[test]
    fn a_ratio_has_an_interval_by_the_noise_of_both_sides() {
        let ratio = LogRatio::of(&[98.0, 100.0, 102.0], &[49.0, 50.0, 51.0]).unwrap();
        let (low, high) = ratio.interval(ALPHA).unwrap();
        assert!(near(ratio.ratio(), 2.0) && low < 2.0 && high > 2.0 && low > 1.8 && high < 2.2, "{low} {high}");
        assert!(ratio.p().unwrap() < 1e-4);
        let (wide_low, wide_high) = ratio.interval(CLAIM_ALPHA).unwrap();
        assert!(wide_low < low && wide_high > high);
        // A single value has no noise that anything is known of; and there is no logarithm of zero.
        let single = LogRatio::of(&[2.0], &[1.0, 1.1]).unwrap();
        assert_eq!((single.interval(ALPHA), single.p()), (None, None));
        assert_eq!(LogRatio::of(&[0.0, 1.0], &[1.0]), None);
        assert_eq!(LogRatio::of(&[], &[1.0]), None);
    }

    #[test]
    fn equal_values_differ_by_nothing_or_for_certain() {
        assert_eq!(LogRatio::of(&[2.0, 2.0], &[2.0, 2.0]).unwrap().p(), Some(1.0));
        assert_eq!(LogRatio::of(&[2.0, 2.0], &[4.0, 4.0]).unwrap().p(), Some(0.0));
    }

    #[test]
    fn a_geometric_mean_of_ratios_is_surer_than_each() {
        let one = LogRatio::of(&[98.0, 102.0], &[49.0, 51.0]).unwrap();
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
    fn a_shared_variance_finds_a_change_that_two_repeats_alone_cannot_prove() {
        let mut random = fastrand::Rng::with_seed(2);
        let mut value = |rate: f64| rate * (1.0 + 0.01 * ((0..12).map(|_| random.f64()).sum::<f64>() - 6.0));
        let samples: Vec<[[f64; 2]; 2]> =
            (0..60).map(|_| [[value(100.0), value(100.0)], [value(100.0), value(100.0)]]).collect();
        let shared = SharedVariance::of(samples.iter().map(|[x, y]| (&x[..], &y[..]))).unwrap();
        assert!((shared.variance.sqrt() - 0.01).abs() < 0.004, "{shared:?}");
        let (before, after) = ([100.0, 101.0], [90.0, 91.0]);
        let alone = LogRatio::of(&before, &after).unwrap().p().unwrap();
        let found = shared.difference(&before, &after).unwrap();
        let p = p_of_t(found.logarithm / found.deviation, found.freedom);
        assert!(p < 1e-4 && p < alone / 10.0, "{p} {alone}");
        assert!(SharedVariance::of([(&[1.0][..], &[1.0][..])]).is_none());
    }
}
