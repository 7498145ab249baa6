//! The distributions of Student's t and of F, and the functions of gamma's family behind them.

use std::f64::consts::PI;

/// The two-sided p-value of Student's t.
pub(super) fn p_of_t(t: f64, freedom: f64) -> f64 {
    if t.is_infinite() {
        return 0.0;
    }
    incomplete_beta(freedom / 2.0, 0.5, freedom / (freedom + t * t))
}

/// The probability of an F at least as large, with `above` degrees of freedom of the numerator and `below` of the denominator.
pub(super) fn p_of_f(f: f64, above: f64, below: f64) -> f64 {
    // The denominator of so many degrees is a constant.
    let below = below.min(1e6);
    incomplete_beta(below / 2.0, above / 2.0, below / (below + above * f))
}

/// The t that is exceeded, in either direction, with probability `alpha`: by bisection.
pub(super) fn t_quantile(alpha: f64, freedom: f64) -> f64 {
    let (a, b) = (freedom / 2.0, 0.5);
    let ln_complete = ln_beta(a, b);
    let is_below = |t: f64| regularized_beta(ln_complete, a, b, freedom / (freedom + t * t)) > alpha;
    let (mut low, mut high) = (0.0, 1e9);
    loop {
        let middle = f64::midpoint(low, high);
        if middle == low || middle == high {
            return middle;
        }
        if is_below(middle) { low = middle } else { high = middle }
    }
}

/// The regularised incomplete beta function, by its continued fraction (Lentz's method).
fn incomplete_beta(a: f64, b: f64, x: f64) -> f64 {
    regularized_beta(ln_beta(a, b), a, b, x)
}

/// As [`incomplete_beta`]; `ln_complete` is [`ln_beta`] of `a` and `b`, which most of the time goes into.
fn regularized_beta(ln_complete: f64, a: f64, b: f64, x: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return x.clamp(0.0, 1.0);
    }
    let front = (a * x.ln() + b * (1.0 - x).ln() - ln_complete).exp();
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

/// The logarithm of the beta function.
fn ln_beta(a: f64, b: f64) -> f64 {
    ln_gamma(a) + ln_gamma(b) - ln_gamma(a + b)
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
pub(super) fn digamma(x: f64) -> f64 {
    if x < 10.0 {
        return digamma(x + 1.0) - x.recip();
    }
    let square = (x * x).recip();
    x.ln() - 0.5 / x - square * (1.0 / 12.0 - square * (1.0 / 120.0 - square / 252.0))
}

/// The derivative of [`digamma`].
pub(super) fn trigamma(x: f64) -> f64 {
    if x < 10.0 {
        return trigamma(x + 1.0) + (x * x).recip();
    }
    let square = (x * x).recip();
    x.recip() + 0.5 * square + square / x * (1.0 / 6.0 - square * (1.0 / 30.0 - square / 42.0))
}

/// The x at which [`trigamma`], which falls, has a positive value: by bisection.
pub(super) fn inverse_trigamma(value: f64) -> f64 {
    let (mut low, mut high) = (1e-6, 1e6);
    loop {
        let middle = f64::sqrt(low * high);
        if middle <= low || middle >= high {
            return middle;
        }
        if trigamma(middle) > value { low = middle } else { high = middle }
    }
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
        for (f, above, below, p) in [
            (4.965, 1.0, 10.0, 0.05),
            (5.143, 2.0, 6.0, 0.05),
            (10.925, 2.0, 6.0, 0.01),
            (3.841, 1.0, f64::INFINITY, 0.05),
        ] {
            assert!(near(p_of_f(f, above, below), p), "{f} {above} {below}: {}", p_of_f(f, above, below));
        }
        assert_eq!(p_of_f(0.0, 1.0, 1.0), 1.0);
        assert!(near(ln_gamma(0.5), PI.sqrt().ln()) && near(ln_gamma(5.0), 24.0_f64.ln()));
        assert!(near(digamma(1.0), -0.577_215_66) && near(trigamma(1.0), PI * PI / 6.0));
        assert!(near(trigamma(inverse_trigamma(0.7)), 0.7));
    }
}
