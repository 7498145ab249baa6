//! Compares two results: which trials became better or worse, by more than their spread and a threshold.
//!
//! The rule: a change counts when it is larger than the threshold *and* chance alone would not give it. A ratio closer to 1
//! than the threshold is "same"; anything else is "inconclusive". A single run has no noise that is known, so it can be
//! "same" or "inconclusive", never better or worse.
//!
//! Chance is judged for all trials together (`judge::statistics`): the variances of their logarithms are
//! moderated by one another's, because two repeats alone say little about the noise; changes from run to run that all trials
//! show beyond that variance widen it; and the p-values are corrected by Benjamini and Hochberg's method. Two runs of one
//! build so end without a difference in at least nineteen of twenty pairs.
//!
//! The result of a fault, or of commits when a process was killed, is an outcome and not a rate: one run decides, and
//! any change counts.

use std::cmp::Ordering;

use serde::Serialize;

use crate::error::{LabError, LabErrorKind};
use crate::experiments;
use crate::format::Unit;
use crate::judge::bound::Bound;
use crate::judge::{self, statistics};
use crate::paths::shown;
use crate::record::file::RecordFile;
use crate::record::{RunInfo, SkipCause};
use crate::summary::{Group, Metric, Spread, Summary};

/// The verdict on one trial: its second result compared with its first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Better by more than threshold and spread.
    Better,
    /// Worse by more than threshold and spread; or it had a figure before and has none now.
    Worse,
    /// The medians differ by less than the threshold.
    Same,
    /// The two differ by more than the threshold, but by no more than chance gives among so many trials.
    Inconclusive,
}

impl Verdict {
    /// The verdict in one word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::Same => "same",
            Self::Inconclusive => "inconclusive",
        }
    }
}

/// A trial that both results have, with its verdict.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The trial's key: see [`crate::record::TrialSpec::key`].
    pub key: String,
    /// Whether a larger figure is the better one.
    pub more_is_better: bool,
    /// Unit of the figures.
    #[serde(skip)]
    pub unit: Unit,
    /// The figure in the first result.
    #[serde(serialize_with = "spread")]
    pub before: Spread,
    /// The figure in the second result.
    #[serde(serialize_with = "spread")]
    pub after: Spread,
    /// The second figure divided by the first; infinite where the first is 0 and the second is not.
    #[serde(serialize_with = "spread")]
    pub ratio: Spread,
    /// The verdict on the change.
    pub verdict: Verdict,
    /// The values of both results, before and after; empty where one run decides.
    #[serde(skip)]
    values: [Vec<f64>; 2],
}

fn spread<S: serde::Serializer>(value: &Spread, serializer: S) -> Result<S::Ok, S::Error> {
    (value.median, value.min, value.max).serialize(serializer)
}

/// The comparison of two results.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// The smallest change of a median that counts, as a fraction: 0.05 is five percent.
    pub threshold: f64,
    /// The trials that both results have, in the order of the first.
    pub rows: Vec<Row>,
    /// Keys of trials that only the first result has.
    pub only_before: Vec<String>,
    /// Keys of trials that only the second result has.
    pub only_after: Vec<String>,
    /// Keys of trials that had a figure and are invalid now, or that lost commits which they kept before: a regression
    /// as well.
    pub spoilt: Vec<String>,
    /// Reasons why the two results may not be comparable.
    pub warnings: Vec<String>,
}

impl Comparison {
    /// Whether any trial became worse or invalid, or lost its figure.
    pub fn has_regression(&self) -> bool {
        !self.spoilt.is_empty() || self.rows.iter().any(|row| row.verdict == Verdict::Worse)
    }

    /// The process's exit code: 0, or 1 for a regression.
    pub fn exit_code(&self) -> u8 {
        u8::from(self.has_regression())
    }
}

/// Compares two results, `a` before and `b` after. `threshold` is the smallest change that counts, as a fraction (0.05
/// is five percent; negative numbers and NaN count as 0).
///
/// # Errors
/// `Usage` where the two have no trial in common: an empty comparison would look like a success.
pub fn compare(a: &RecordFile, b: &RecordFile, threshold: f64) -> crate::error::Result<Comparison> {
    let threshold = if threshold.is_finite() { threshold.max(0.0) } else { 0.0 };
    let (before, after) = (Summary::of(a), Summary::of(b));
    let mut comparison = Comparison {
        threshold,
        rows: Vec::new(),
        only_before: Vec::new(),
        only_after: Vec::new(),
        spoilt: Vec::new(),
        warnings: differences(&a.run, &b.run),
    };
    for (name, file) in [("first", a), ("second", b)] {
        if !file.is_complete() {
            comparison.warnings.push(format!("the {name} result is not complete: {}", file.incomplete_reason()));
        }
    }
    let mut common = 0;
    for old in &before.groups {
        match after.groups.iter().find(|group| group.key == old.key) {
            Some(new) => {
                common += 1;
                comparison.add(old, new);
            }
            None => comparison.gone(old, b),
        }
    }
    if common == 0 && comparison.spoilt.is_empty() {
        let message = format!(
            "{} and {} have no trial in common, so that nothing can be compared: name two results of the same experiments with the same \
             parameters ('nofault lab list' shows them)",
            shown(&a.path),
            shown(&b.path)
        );
        return Err(LabError::new(LabErrorKind::Usage, message));
    }
    comparison.judge_by_chance();
    let known = |key: &String| before.groups.iter().any(|group| group.key == *key);
    comparison.only_after = after.groups.into_iter().map(|group| group.key).filter(|key| !known(key)).collect();
    Ok(comparison)
}

impl Comparison {
    /// Records a trial that the second result lacks: it was not planned, or it failed each time it was tried.
    fn gone(&mut self, old: &Group<'_>, b: &RecordFile) {
        let failed = SkipCause::Failed(old.key.clone());
        match b.skips.iter().find(|skip| skip.cause.as_ref() == Some(&failed)) {
            Some(skip) if old.spread(old.basis.metric).is_some() => {
                self.warnings.push(format!("{}: had a figure before and has none now: {}", old.key, skip.reason));
                self.spoilt.push(old.key.clone());
            }
            _ => self.only_before.push(old.key.clone()),
        }
    }

    fn add(&mut self, old: &Group<'_>, new: &Group<'_>) {
        let metric = old.basis.metric;
        if let Some(warning) = conditions(old, new) {
            self.warnings.push(warning);
        }
        let most = |group: &Group<'_>, name| group.spread(Metric::Figure(name)).map_or(0.0, |spread| spread.max);
        let losses =
            experiments::find(old.spec.experiment).map_or(&[][..], |experiment| experiment.description().losses);
        let lost: Vec<_> = losses.iter().map(|(name, words)| (most(old, name), most(new, name), words)).collect();
        for (before, after, words) in lost.iter().filter(|(before, after, _)| after > before) {
            self.warnings.push(format!("{}: {after} {words} after a kill, {before} before", old.key));
        }
        if lost.iter().any(|(before, after, _)| after > before) {
            self.spoilt.push(old.key.clone());
            return;
        }
        let (before, after) = match (old.spread(metric), new.spread(metric)) {
            (Some(before), Some(after)) => (before, after),
            (Some(_), None) => {
                let why = new.worthless.first().map_or("no figure", |(_, why)| why.as_str());
                self.warnings.push(format!("{}: had a figure before and is worthless now: {why}", old.key));
                self.spoilt.push(old.key.clone());
                return;
            }
            (None, _) => {
                self.warnings.push(format!("{}: worthless in the first result, not compared", old.key));
                return;
            }
        };
        let more_is_better = metric.more_is_better();
        let (ratio, verdict) = match (metric, judge::ratio(new, old, metric, &[])) {
            (Metric::Figure(_), _) => outcome(&before, &after, more_is_better),
            // By its size alone: whether it is due to chance is judged for all trials together.
            (_, Ok(ratio)) => (ratio, verdict(ratio.median, more_is_better, self.threshold)),
            (_, Err(_)) => {
                self.warnings.push(format!("{}: zero in the first result, not compared", old.key));
                return;
            }
        };
        self.rows.push(Row {
            key: old.key.clone(),
            more_is_better,
            unit: metric.unit(),
            before,
            after,
            ratio,
            verdict,
            values: match metric {
                Metric::Figure(_) => Default::default(),
                _ => [old.values(metric), new.values(metric)],
            },
        });
    }

    /// Makes each change inconclusive that chance alone may have given.
    fn judge_by_chance(&mut self) {
        let by_chance = |row: &&mut Row| !row.values[0].is_empty();
        let mut rows: Vec<&mut Row> = self.rows.iter_mut().filter(by_chance).collect();
        let samples: Vec<[&[f64]; 2]> = rows.iter().map(|row| [&row.values[0][..], &row.values[1][..]]).collect();
        let found = statistics::differences(&samples);
        if found.between_runs > BETWEEN_RUNS {
            self.warnings.push(format!(
                "the two results differ by {:.1} times what their own repeats scatter, in most trials and in either direction: this counts as noise",
                found.between_runs
            ));
        }
        for (row, differs) in rows.iter_mut().zip(found.differ) {
            if !differs && row.verdict != Verdict::Same {
                row.verdict = Verdict::Inconclusive;
            }
        }
    }
}

/// Factor between the differences of two results and the scatter of each one's repeats from which on it is mentioned.
const BETWEEN_RUNS: f64 = 1.5;

fn verdict(ratio: f64, more_is_better: bool, threshold: f64) -> Verdict {
    if Bound::between(-threshold, threshold).contains(ratio - 1.0) {
        return Verdict::Same;
    }
    if (ratio > 1.0) == more_is_better { Verdict::Better } else { Verdict::Worse }
}

/// The change of a figure that is an outcome and not a rate: the worst repeats are compared.
fn outcome(before: &Spread, after: &Spread, more_is_better: bool) -> (Spread, Verdict) {
    let worst = |spread: &Spread| if more_is_better { spread.min } else { spread.max };
    let (old, new) = (worst(before), worst(after));
    let (ratio, verdict) = match new.total_cmp(&old) {
        Ordering::Equal => (1.0, Verdict::Same),
        order if order.is_gt() == more_is_better => (new / old, Verdict::Better),
        _ => (new / old, Verdict::Worse),
    };
    (Spread { median: ratio, min: ratio, max: ratio, count: before.count.min(after.count) }, verdict)
}

/// Names the differences between the conditions under which one trial was measured in the two results; `None` without
/// any.
fn conditions(old: &Group<'_>, new: &Group<'_>) -> Option<String> {
    let (a, b) = (old.spec, new.spec);
    let mut differing = Vec::new();
    if a.target.data_bytes != b.target.data_bytes {
        differing.push("size of the data");
    }
    if a.memory != b.memory {
        differing.push("memory limit");
    }
    if (a.duration_s - b.duration_s).abs() > f64::EPSILON {
        differing.push("duration");
    }
    (!differing.is_empty()).then(|| format!("{}: measured with another {}", old.key, differing.join(", ")))
}

/// Names the differences in machine, kernel and configuration, with both values.
fn differences(a: &RunInfo, b: &RunInfo) -> Vec<String> {
    let (x, y) = (&a.machine, &b.machine);
    let fields = [
        ("CPU", x.cpu.clone(), y.cpu.clone()),
        ("CPU count", x.cpu_count.to_string(), y.cpu_count.to_string()),
        ("RAM in bytes", x.memory_bytes.to_string(), y.memory_bytes.to_string()),
        ("kernel", x.kernel.clone(), y.kernel.clone()),
        ("virtualization", x.virtualization.clone(), y.virtualization.clone()),
        ("file system", x.file_system.clone(), y.file_system.clone()),
        ("device", x.device.clone(), y.device.clone()),
        ("read-ahead in KiB", format!("{:?}", x.read_ahead_kb), format!("{:?}", y.read_ahead_kb)),
        ("root", x.root.to_string(), y.root.to_string()),
        ("version of nofault", a.tool_version.clone(), b.tool_version.clone()),
    ];
    let mut warnings: Vec<String> = fields
        .into_iter()
        .filter(|(_, a, b)| a != b)
        .map(|(name, a, b)| format!("different {name}: {a} before, {b} after"))
        .collect();
    // The folder and the description of the workload are no conditions of a measurement; everything else in the
    // configuration is.
    let mut config = b.config.clone();
    config.dir.clone_from(&a.config.dir);
    config.workload = a.config.workload;
    // An experiment that only one of the two builds has cannot be compared, so its parameters are no difference.
    let mut before = a.config.clone();
    before.sections.keep_common(&config.sections);
    config.sections.keep_common(&before.sections);
    if config != before {
        warnings.push("different settings: see the configuration in each result".into());
    }
    warnings
}

#[cfg(test)]
pub(crate) mod tests;
