//! The part of chance in comparisons within one run, simulated from the noise of a real run (`compare/noise.txt`).

use nofault_sim::depth::by_depth;

use super::statistics::CLAIM_ALPHA;
use super::*;
use crate::record::file::RecordFile;
use crate::report::compare::tests::{real_noise, run};
use crate::summary::Summary;

/// Number of methods in one comparison.
const METHODS: usize = 12;

/// A run of methods with these deviations, twelve at a place; the rates of the first three are changed by `factor`.
fn places(noise: &[f64], repeats: u32, factor: f64, random: &mut fastrand::Rng) -> RecordFile {
    let mut file = run(noise, repeats, (0.0, factor), random);
    for (at, trials) in file.trials.chunks_mut(repeats as usize).enumerate() {
        for trial in trials {
            trial.spec.variant = format!("place {}", at / METHODS);
            trial.spec.params.extra.insert("method".into(), at.to_string());
        }
    }
    file
}

/// The probabilities that each of `pairs`, of groups of one run, differs by chance alone: for `runs` runs.
fn p_values(
    (noise, repeats, factor): (&[f64], u32, f64),
    runs: u32,
    pairs: impl Iterator<Item = (usize, usize)> + Clone,
) -> Vec<f64> {
    let mut random = fastrand::Rng::with_seed(11);
    let mut all = Vec::new();
    for _ in 0..runs {
        let file = places(noise, repeats, factor, &mut random);
        let summary = Summary::of(&file);
        let p = |(a, b): (usize, usize)| compare(&summary.groups[a], &summary.groups[b], Metric::OpsPerS).unwrap().p;
        all.extend(pairs.clone().map(|pair| p(pair).unwrap()));
    }
    all
}

/// The share of these probabilities that count as a difference.
fn share(p_values: &[f64], alpha: f64) -> f64 {
    p_values.iter().filter(|p| **p < alpha).count() as f64 / p_values.len() as f64
}

#[test]
fn chance_decides_about_one_comparison_of_twenty_by_the_noise_of_a_real_run() {
    let noise = real_noise();
    for repeats in [2, 3] {
        let neighbours = (0..noise.len()).step_by(2).map(|at| (at, at + 1));
        let found = p_values((&noise, repeats, 1.0), by_depth(40, 100), neighbours);
        let [level, of_claims] = [ALPHA, CLAIM_ALPHA].map(|alpha| share(&found, alpha));
        assert!(level < 0.065 && of_claims < 0.02, "{repeats} repeats: {level} {of_claims}");
    }
}

#[test]
fn chance_decides_one_comparison_of_ten_at_most_where_half_of_the_methods_are_far_noisier() {
    let noise: Vec<f64> = (0..METHODS).map(|at| if at % 2 == 0 { 0.005 } else { 0.15 }).collect();
    for (kind, pair) in [("two quiet", (0, 2)), ("two noisy", (1, 3)), ("one of each", (0, 1))] {
        let level = share(&p_values((&noise, 2, 1.0), by_depth(250, 1000), [pair].into_iter()), ALPHA);
        assert!(level < 0.1, "{kind}: {level}");
    }
    // A single noisy method is the harder case, as its variance says little of the spread of all.
    let mut noise = [0.02; METHODS];
    noise[1] = 0.2;
    let level = share(&p_values((&noise, 2, 1.0), by_depth(250, 1000), [(0, 1)].into_iter()), ALPHA);
    assert!(level < 0.1, "{level}");
}

#[test]
fn a_change_beside_equal_noise_is_found_with_two_repeats_more_often_than_by_their_own_variance() {
    let mut random = fastrand::Rng::with_seed(13);
    let mut found = [Vec::new(), Vec::new()];
    for _ in 0..300 {
        let file = places(&[0.01; METHODS], 2, 1.05, &mut random);
        let summary = Summary::of(&file);
        let groups = [&summary.groups[0], &summary.groups[3]];
        let beside = groups.map(|group| sample(group, Metric::OpsPerS));
        let alone = groups.map(|group| Sample::beside(group.values(Metric::OpsPerS), []));
        for (found, [x, y]) in found.iter_mut().zip([&beside, &alone]) {
            found.push(LogRatio::of(x, y).unwrap().p().unwrap());
        }
    }
    let [moderated, own] = found.map(|p_values| share(&p_values, ALPHA));
    assert!(moderated > 0.7 && own < 0.5, "{moderated} {own}");
}

#[test]
fn chance_decides_about_one_curve_of_twenty_whose_points_share_what_is_known_of_their_noise() {
    let (noise, mut random) = (real_noise(), fastrand::Rng::with_seed(12));
    for repeats in [2, 3] {
        let mut found = Vec::new();
        for _ in 0..by_depth(40, 100) {
            let file = places(&noise, repeats, 1.0, &mut random);
            for place in Summary::of(&file).groups.chunks(METHODS) {
                let samples: Vec<Sample> = place.iter().map(|group| sample(group, Metric::OpsPerS)).collect();
                let points: Vec<_> = samples.chunks(2).map(|pair| LogRatio::of(&pair[0], &pair[1]).unwrap()).collect();
                found.push(LogRatio::mean_of(&points).unwrap().p().unwrap());
            }
        }
        let [level, of_claims] = [ALPHA, CLAIM_ALPHA].map(|alpha| share(&found, alpha));
        assert!(level < 0.065 && of_claims < 0.02, "{repeats} repeats: {level} {of_claims}");
    }
}
