//! Tests of the comparison of two results; among them that two runs of one build end without a difference, simulated from
//! the noise of a real run.
//!
//! `noise.txt` has a line for each of its trials: the logarithms of the repeats, less their mean. It was taken on a virtual
//! machine with two CPUs and other work, so that it is not the noise of a textbook: its trials scatter by a thousandth to
//! more than a half.

use nofault_sim::depth::sample;

use super::*;
use crate::record::{ExperimentId, Skip};

#[test]
fn a_method_that_fails_each_time_is_worse_and_one_that_was_not_planned_is_listed() {
    let rates = [("mmap-random", 1e4), ("pread-direct", 2e4)];
    let before = crate::report::verdict::tests::file(crate::experiments::random::ID, "", &rates);
    let mut after = crate::report::verdict::tests::file(crate::experiments::random::ID, "", &rates[..1]);
    let gone = compare(&before, &after, 0.05).unwrap();
    assert!(!gone.has_regression() && gone.only_before.len() == 1, "{gone:?}");
    let key = gone.only_before[0].clone();
    let skip = Skip::new(crate::experiments::random::ID, "file", "pread-direct", "the device went away");
    after.skips.push(skip.because(SkipCause::Failed(key.clone())));
    let failed = compare(&before, &after, 0.05).unwrap();
    assert!(failed.has_regression() && failed.spoilt == [key], "{failed:?}");
    assert!(failed.warnings.iter().any(|warning| warning.contains("went away")), "{failed:?}");
}

/// Creates a record file with one trial and one figure.
fn one(experiment: ExperimentId, variant: &str, figure: &str, value: f64) -> RecordFile {
    let mut file = crate::report::verdict::tests::file(experiment, variant, &[("shadow", 1e4)]);
    if experiment == crate::experiments::errors::ID {
        file.trials.truncate(1);
    }
    for trial in &mut file.trials {
        trial.outcome.figures.insert(figure.into(), value);
    }
    file
}

#[test]
fn the_outcome_of_a_fault_is_decided_by_one_run() {
    let detected = |value| one(crate::experiments::errors::ID, crate::experiments::errors::BIT_FLIP, "detected", value);
    for (before, after, verdict, exit) in [
        (1.0, 0.0, Verdict::Worse, 1),
        (0.0, 1.0, Verdict::Better, 0),
        (1.0, 1.0, Verdict::Same, 0),
        (0.0, 0.0, Verdict::Same, 0),
    ] {
        let compared = compare(&detected(before), &detected(after), 0.05).unwrap();
        let found: Vec<Verdict> = compared.rows.iter().map(|row| row.verdict).collect();
        assert_eq!((found, compared.exit_code()), (vec![verdict], exit), "{before} {after}: {compared:?}");
        assert!(serde_json::to_string(&compared).is_ok());
    }
}

#[test]
fn a_commit_that_is_lost_is_a_regression_whatever_the_rate() {
    for figure in ["lost_commits", "torn_commits"] {
        let commits = |value| one(crate::experiments::safety::ID, "commits", figure, value);
        let worse = compare(&commits(0.0), &commits(1.0), 0.05).unwrap();
        assert!(worse.exit_code() == 1 && worse.spoilt.len() == 1, "{worse:?}");
        assert!(worse.warnings.iter().any(|warning| warning.contains("after a kill")), "{worse:?}");
        for (before, after) in [(0.0, 0.0), (2.0, 2.0), (2.0, 0.0)] {
            assert_eq!(compare(&commits(before), &commits(after), 0.05).unwrap().exit_code(), 0);
        }
    }
}

#[test]
fn results_without_a_trial_in_common_are_no_comparison() {
    let random = crate::report::verdict::tests::file(crate::experiments::random::ID, "", &[("mmap-random", 1e4)]);
    let scan = crate::report::verdict::tests::file(crate::experiments::scan::ID, "", &[("mmap-normal", 1e4)]);
    let refused = compare(&random, &scan, 0.05).unwrap_err();
    assert_eq!(refused.kind(), LabErrorKind::Usage);
    assert!(refused.to_string().contains("no trial in common"), "{refused}");
}

const NOISE: &str = include_str!("noise.txt");
/// Pairs of runs that are simulated.
const PAIRS: u32 = 100;

/// The standard deviation of each trial of the real run, as a logarithm.
pub(crate) fn real_noise() -> Vec<f64> {
    let of_line = |line: &str| {
        let logs: Vec<f64> = line.split(' ').map(|number| number.parse().unwrap()).collect();
        (logs.iter().map(|log| log * log).sum::<f64>() / (logs.len() as f64 - 1.0)).sqrt().max(1e-4)
    };
    NOISE.lines().map(of_line).collect()
}

/// A random number with the standard deviation 1: mostly normal, but one in twenty is three times as large, as when
/// something else ran for a moment.
fn scatter(random: &mut fastrand::Rng) -> f64 {
    let normal = (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
    normal * if random.u8(..20) == 0 { 3.0 } else { 1.0 } / 1.18
}

/// Makes a run with these deviations of its trials. `between` scatters each whole trial of the run, in units of the trial's
/// noise, and `factor` changes the first three trials.
pub(crate) fn run(
    noise: &[f64],
    repeats: u32,
    (between, factor): (f64, f64),
    random: &mut fastrand::Rng,
) -> RecordFile {
    let mut file = crate::report::verdict::tests::file(crate::experiments::random::ID, "", &[]);
    let made = crate::report::verdict::tests::file(crate::experiments::random::ID, "", &[("pread-direct", 1e6)]);
    for (at, deviation) in noise.iter().enumerate() {
        let own = between * deviation * scatter(random);
        for repeat in 0..repeats {
            let mut trial = made.trials[0].clone();
            trial.spec.variant = format!("trial {at}");
            trial.spec.repeat = repeat;
            let change = if at < 3 { factor } else { 1.0 };
            trial.outcome.ops = (1e7 * change * (own + deviation * scatter(random)).exp()) as u64;
            file.trials.push(trial);
        }
    }
    file
}

/// Number of pairs of runs in which a trial became better or worse.
fn different(repeats: u32, between: f64) -> u32 {
    let (noise, mut random) = (real_noise(), fastrand::Rng::with_seed(7));
    let mut pair = || {
        let mut made = || run(&noise, repeats, (between, 1.0), &mut random);
        let (a, b) = (made(), made());
        let compared = compare(&a, &b, 0.05).unwrap();
        compared.rows.iter().any(|row| matches!(row.verdict, Verdict::Better | Verdict::Worse))
    };
    (0..PAIRS).filter(|_| pair()).count() as u32
}

#[test]
fn two_runs_of_one_build_end_without_a_difference_in_nineteen_of_twenty_pairs() {
    for (repeats, between) in sample([(2, 0.0), (3, 0.0), (2, 0.7), (3, 0.7)], 3) {
        let found = different(repeats, between);
        assert!(found <= PAIRS / 20, "{repeats} repeats, {between}: {found} of {PAIRS}");
    }
}

#[test]
fn a_trial_that_lost_half_of_its_rate_is_found_beside_the_noise_of_all_others() {
    let (mut noise, mut random) = (real_noise(), fastrand::Rng::with_seed(8));
    noise[..3].fill(0.01);
    let mut found = 0;
    for _ in 0..20 {
        let mut made = |factor| run(&noise, 3, (0.0, factor), &mut random);
        let (a, b) = (made(1.0), made(0.5));
        let compared = compare(&a, &b, 0.05).unwrap();
        found += compared.rows[..3].iter().filter(|row| row.verdict == Verdict::Worse).count();
    }
    assert!(found >= 54, "{found} of 60");
}

#[test]
fn a_build_that_is_slower_in_every_trial_is_worse_and_its_slowness_no_noise() {
    let (noise, mut random) = (vec![0.01; 17], fastrand::Rng::with_seed(9));
    for factor in [0.8, 0.001] {
        let (a, mut b) = (run(&noise, 2, (0.0, 1.0), &mut random), run(&noise, 2, (0.0, 1.0), &mut random));
        b.trials.iter_mut().for_each(|trial| trial.outcome.ops = (trial.outcome.ops as f64 * factor) as u64);
        let compared = compare(&a, &b, 0.05).unwrap();
        let worse = compared.rows.iter().filter(|row| row.verdict == Verdict::Worse).count();
        assert!(worse >= 16, "{factor}: {worse} of 17: {:?}", compared.warnings);
    }
}
