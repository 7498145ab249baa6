//! The noise of a run, which lowers the confidence in whatever was measured in it, by one model for all experiments: others
//! on the CPUs, a hypervisor that takes CPU time, other readers of the device, and a drift from the first to the last
//! repeat. The trials carry the first three as warnings ([`WarningKind`]); the drift is computed here, from the figures.

use super::statistics::{ALPHA, LogRatio};
use crate::record::{ExperimentId, Warning, WarningKind};
use crate::summary::{Group, Metric, Summary};

/// The kinds of warning that are noise, each with its words.
const KINDS: [(WarningKind, &str); 4] = [
    (WarningKind::OtherLoad, "others worked"),
    (WarningKind::Steal, "the hypervisor took CPU time"),
    (WarningKind::ForeignReads, "others read from the device"),
    (WarningKind::DeviceTraffic, "the device moved other amounts than were asked for"),
];
/// The noise is loud when more than one trial in this many shows it.
const ONE_IN: usize = 4;
/// Smallest drift, as a factor, that is mentioned.
const DRIFT_MIN: f64 = 1.05;

/// Number of trials that show each kind of noise.
pub(crate) struct Noise {
    trials: usize,
    any: usize,
    counts: [usize; KINDS.len()],
}

impl Noise {
    /// Counts the noise in the trials of the groups that `wanted` selects.
    pub(crate) fn of(summary: &Summary<'_>, wanted: impl Fn(&Group<'_>) -> bool) -> Self {
        let mut noise = Self { trials: 0, any: 0, counts: [0; KINDS.len()] };
        for trial in summary.groups.iter().filter(|group| wanted(group)).flat_map(|group| &group.good) {
            let warnings: &[Warning] = &trial.outcome.warnings;
            noise.trials += 1;
            noise.any += usize::from(KINDS.iter().any(|(kind, _)| kind.is_among(warnings)));
            for (count, (kind, _)) in noise.counts.iter_mut().zip(KINDS) {
                *count += usize::from(kind.is_among(warnings));
            }
        }
        noise
    }

    /// Whether so many trials were disturbed that no figure is sure.
    pub(crate) fn is_loud(&self) -> bool {
        self.any * ONE_IN > self.trials
    }

    /// The noise in words: `others worked during 40 of 120 trials`.
    pub(crate) fn words(&self) -> String {
        let told = KINDS.iter().zip(self.counts).filter(|(_, count)| *count > 0);
        let parts = told.map(|((_, words), count)| format!("{words} during {count} of {} trials", self.trials));
        parts.collect::<Vec<_>>().join("; ")
    }
}

/// Most drifts that a sentence names.
const DRIFTS_NAMED: usize = 2;

/// A change of one experiment's figures from the first repeat to the last, of all its methods together.
pub(crate) struct Drift {
    pub(crate) experiment: ExperimentId,
    /// The figures of the last repeat over the first's, in the direction in which more is better.
    factor: f64,
}

impl Drift {
    /// The drifts in words, as one phrase: the largest ones, and the number of the others.
    pub(crate) fn words(all: &[Self]) -> String {
        let mut by_size: Vec<&Self> = all.iter().collect();
        by_size.sort_by(|a, b| b.factor.ln().abs().total_cmp(&a.factor.ln().abs()));
        let change = |drift: &Self| {
            let percent = (drift.factor - 1.0) * 100.0;
            let direction = if percent > 0.0 { "better" } else { "worse" };
            format!("{} {:.0} % {direction}", drift.experiment, percent.abs())
        };
        let (named, others) = by_size.split_at(by_size.len().min(DRIFTS_NAMED));
        let changes: Vec<String> = named.iter().map(|drift| change(drift)).collect();
        let others = if others.is_empty() { String::new() } else { format!(", and {} more", others.len()) };
        format!("figures changed from the first repeat to the last: {}{others}", changes.join(", "))
    }
}

/// The drifts of a run: for each experiment whose methods together changed from the first repeat to the last, by more than
/// five percent and by more than chance gives.
pub(crate) fn drifts(summary: &Summary<'_>) -> Vec<Drift> {
    let mut experiments: Vec<ExperimentId> = Vec::new();
    for group in &summary.groups {
        if !experiments.contains(&group.spec.experiment) {
            experiments.push(group.spec.experiment);
        }
    }
    experiments.into_iter().filter_map(|experiment| drift_of(summary, experiment)).collect()
}

fn drift_of(summary: &Summary<'_>, experiment: ExperimentId) -> Option<Drift> {
    let mut factors = Vec::new();
    for group in summary.of_experiment(experiment) {
        let metric = group.basis.metric;
        // The outcome of a fault is not subject to drift.
        if matches!(metric, Metric::Figure(_)) {
            continue;
        }
        let values = group.values(metric);
        let (Some(first), Some(last)) = (values.first(), values.last()) else { continue };
        if values.len() > 1 && *first > 0.0 && *last > 0.0 {
            factors.push(if metric.more_is_better() { last / first } else { first / last });
        }
    }
    // Each method is one observation of the drift; against a constant there is no noise.
    let drift = LogRatio::of_one(&factors)?;
    let factor = drift.ratio();
    let large = factor.max(1.0 / factor) > DRIFT_MIN;
    (large && drift.p().is_some_and(|p| p < ALPHA)).then_some(Drift { experiment, factor })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::file::RecordFile;

    fn records() -> RecordFile {
        let rates = [("mmap-random", 1e4), ("pread-direct", 2e4), ("uring-direct", 3e4), ("pool", 2e4)];
        crate::report::verdict::tests::file(crate::experiments::random::ID, "", &rates)
    }

    #[test]
    fn each_kind_of_noise_is_counted_and_a_quarter_of_the_trials_is_loud() {
        let mut file = records();
        assert!(!Noise::of(&Summary::of(&file), |_| true).is_loud());
        let texts = [WarningKind::Steal, WarningKind::ForeignReads, WarningKind::OtherLoad, WarningKind::OtherLoad];
        for (trial, kind) in file.trials.iter_mut().zip(texts) {
            trial.outcome.warnings = vec![kind.warning("noise".into())];
        }
        let noise = Noise::of(&Summary::of(&file), |_| true);
        assert!(noise.is_loud(), "4 of 12");
        let words = noise.words();
        assert!(
            words.contains("others worked during 2 of 12 trials") && words.contains("took CPU time during 1"),
            "{words}"
        );
        let map = |group: &Group<'_>| group.spec.method == "mmap-random";
        assert!(Noise::of(&Summary::of(&file), map).is_loud() && !Noise::of(&Summary::of(&file), |_| false).is_loud());
    }

    #[test]
    fn a_drift_of_all_methods_is_told_and_the_scatter_of_single_ones_is_not() {
        let with = |change: &dyn Fn(usize, u32) -> f64| {
            let mut file = records();
            for (at, trial) in file.trials.iter_mut().enumerate() {
                trial.outcome.ops = (1e6 * change(at / 3, trial.spec.repeat)) as u64;
            }
            drifts(&Summary::of(&file))
                .iter()
                .map(|drift| Drift::words(std::slice::from_ref(drift)))
                .collect::<Vec<_>>()
        };
        let falling = with(&|method, repeat| 1.0 - (0.1 + 0.01 * method as f64) * f64::from(repeat));
        assert!(falling.len() == 1 && falling[0].contains("random 2") && falling[0].contains("worse"), "{falling:?}");
        let scatter = with(&|method, repeat| if (method + repeat as usize).is_multiple_of(2) { 1.1 } else { 0.9 });
        assert!(scatter.is_empty(), "{scatter:?}");
    }
}
