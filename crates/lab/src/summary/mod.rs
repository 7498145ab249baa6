//! Trials grouped over their repeats, and the metrics computed from them. The one place that decides which trials
//! count, which are invalid, and how a metric is defined. Findings, tables, charts and comparisons all read from here.
//!
//! Rules: a trial with wrong data, failed operations or without operations has no figure, ever. A partial trial counts
//! only where no whole one exists. Every figure is a median with the smallest and the largest of its repeats.

mod conditions;
mod titles;

use std::collections::BTreeMap;
use std::rc::Rc;

use hdrhistogram::Histogram;

use crate::format::Unit;
use crate::methods::{self, Calls, Pages};
use crate::record::file::RecordFile;
use crate::record::{ExperimentId, MemoryMethod, Outcome, Trial, TrialSpec};

pub use crate::methods::{Family, Method};
pub use conditions::{Conditions, Property};
pub use titles::{is_plain, parameters, target_title};

/// The median of a figure over its repeats, with the smallest and the largest.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// The median of the repeats.
    pub median: f64,
    /// The smallest of the repeats.
    pub min: f64,
    /// The largest of the repeats.
    pub max: f64,
    /// Number of repeats.
    pub count: usize,
}

impl Spread {
    /// The spread of some values; `None` unless at least one is finite.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let middle = sorted.len() / 2;
        let median =
            if sorted.len() % 2 == 1 { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) };
        Some(Self { median, min, max, count: sorted.len() })
    }

    /// The figure times a plain number, such as the reciprocal of an expected value.
    pub fn times(&self, factor: f64) -> Self {
        Self { median: self.median * factor, min: self.min * factor, max: self.max * factor, count: self.count }
    }

    /// Formats the figure, `412 K/s (398 K/s to 420 K/s)`; without the brackets for a single value.
    pub fn show(&self, unit: Unit) -> String {
        if self.count < 2 {
            return unit.show(self.median);
        }
        format!("{} ({} to {})", unit.show(self.median), unit.show(self.min), unit.show(self.max))
    }
}

/// A quantity computed from a trial's outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Metric {
    /// Operations a second, after memory was full where it fills.
    OpsPerS,
    /// Bytes of work a second, after memory was full where it fills.
    BytesPerS,
    /// Wall time of a fixed amount of work.
    Seconds,
    /// Time of one operation on one thread, where operations follow one another without waiting.
    TimePerOp,
    /// CPU seconds of the process, its children and kswapd for one operation.
    CpuPerOp,
    /// CPU seconds for 10^9 bytes, of the same processes as [`Metric::CpuPerOp`].
    CpuPerGb,
    /// TLB shootdown interrupts a second.
    ShootdownsPerS,
    /// TLB shootdown interrupts for one evicted page of a file.
    ShootdownsPerEvicted,
    /// CPU of kswapd, in percent of one core.
    KswapdShare,
    /// System CPU for 10^9 bytes: of the process and of kswapd.
    SystemCpuPerGb,
    /// Pages of files evicted a second.
    EvictedPerS,
    /// Pages that reclaim scanned for each page that it evicted.
    ScannedPerEvicted,
    /// Percent of the time in which some task waited for memory (PSI): of the cgroup where there is one.
    MemoryPressure,
    /// Bytes that the device read for one byte of work.
    Amplification,
    /// Bytes that the process wrote to devices for one byte of work.
    WriteAmplification,
    /// Bytes of files for one byte of keys and values.
    SpaceRatio,
    /// A latency by its name and a percentile in per mille: `Latency("op", 990)`; 1000 is the largest latency.
    Latency(&'static str, u16),
    /// A counter of the process for one operation, by its name in [`Outcome::counters`].
    PerOp(&'static str),
    /// A figure that only this experiment has, by its name in [`Outcome::figures`].
    Figure(&'static str),
    /// A figure in bytes that only this experiment has, by its name in [`Outcome::figures`].
    Bytes(&'static str),
}

impl Metric {
    /// Computes the metric from an outcome; `None` where the kernel gives no value or no operation was done.
    pub fn of(self, outcome: &Outcome) -> Option<f64> {
        let (elapsed_s, ops, bytes) = match &outcome.steady {
            Some(window) => (window.elapsed_s, window.ops, window.bytes),
            None => (outcome.elapsed_s, outcome.ops, outcome.bytes),
        };
        let over = |value: f64, by: f64| (by > 0.0).then(|| value / by);
        match self {
            Self::OpsPerS => Some(outcome.ops_per_s()),
            Self::BytesPerS => Some(outcome.bytes_per_s()),
            Self::Seconds => Some(outcome.elapsed_s),
            Self::TimePerOp => outcome.figures.get(TIME_PER_OP).copied(),
            Self::CpuPerOp => over(cpu_s(outcome)?, ops as f64),
            Self::CpuPerGb => over(cpu_s(outcome)?, bytes as f64 / 1e9),
            Self::ShootdownsPerS => over(outcome.counter("tlb_shootdowns")?, elapsed_s),
            Self::ShootdownsPerEvicted => {
                let evicted = evicted_pages(outcome)?;
                (evicted >= 1000.0).then_some(outcome.counter("tlb_shootdowns")? / evicted)
            }
            Self::KswapdShare => over(outcome.counter("kswapd_cpu_s")? * 100.0, elapsed_s),
            Self::SystemCpuPerGb => {
                let kswapd = outcome.counter("kswapd_cpu_s").unwrap_or(0.0);
                over(outcome.counter("own_cpu_system_s")? + kswapd, bytes as f64 / 1e9)
            }
            Self::EvictedPerS => over(evicted_pages(outcome)?, elapsed_s),
            Self::ScannedPerEvicted => {
                let scanned = outcome.counter("pgscan_file").or_else(|| outcome.counter("cgroup_pgscan"))?;
                over(scanned, evicted_pages(outcome)?)
            }
            Self::MemoryPressure => {
                let waited = outcome.counter("cgroup_psi_memory_some_us");
                over(waited.or_else(|| outcome.counter("psi_memory_some_us"))? / 1e4, elapsed_s)
            }
            Self::Amplification => over(outcome.counter("device_read_bytes")?, bytes as f64),
            Self::WriteAmplification => over(outcome.counter("own_device_write_bytes")?, bytes as f64),
            Self::PerOp(name) => over(outcome.counter(name)?, ops as f64),
            Self::Figure(name) | Self::Bytes(name) => outcome.figures.get(name).copied(),
            Self::SpaceRatio => outcome.figures.get("space_ratio").copied(),
            Self::Latency(name, per_mille) => {
                let latency = outcome.latency.get(name).filter(|latency| latency.count > 0)?;
                let ns = match per_mille {
                    500 => latency.p50_ns,
                    900 => latency.p90_ns,
                    990 => latency.p99_ns,
                    999 => latency.p999_ns,
                    _ => latency.max_ns,
                };
                Some(ns as f64 / 1e9)
            }
        }
    }

    /// The unit of the metric.
    pub fn unit(self) -> Unit {
        match self {
            Self::OpsPerS | Self::ShootdownsPerS | Self::EvictedPerS => Unit::PerSecond,
            Self::BytesPerS => Unit::BytesPerSecond,
            Self::SystemCpuPerGb => Unit::Seconds,
            Self::Seconds | Self::TimePerOp | Self::CpuPerOp | Self::CpuPerGb | Self::Latency(..) => Unit::Seconds,
            Self::ShootdownsPerEvicted | Self::ScannedPerEvicted | Self::PerOp(_) | Self::Figure(_) => Unit::Count,
            Self::KswapdShare | Self::MemoryPressure => Unit::Percent,
            Self::Bytes(_) => Unit::Bytes,
            Self::Amplification | Self::WriteAmplification | Self::SpaceRatio => Unit::Ratio,
        }
    }

    /// Whether a larger value is the better one.
    pub fn more_is_better(self) -> bool {
        matches!(self, Self::OpsPerS | Self::BytesPerS | Self::Figure("detected"))
    }
}

fn cpu_s(outcome: &Outcome) -> Option<f64> {
    let own = outcome.counter("own_cpu_user_s")? + outcome.counter("own_cpu_system_s")?;
    let others = ["children_cpu_user_s", "children_cpu_system_s", "kswapd_cpu_s"];
    Some(own + others.iter().filter_map(|name| outcome.counter(name)).sum::<f64>())
}

fn evicted_pages(outcome: &Outcome) -> Option<f64> {
    outcome.counter("pgsteal_file").or_else(|| outcome.counter("cgroup_pgsteal"))
}

/// Name of the figure with the time of one operation on one thread, in seconds.
pub const TIME_PER_OP: &str = "time_per_op_s";

/// The columns about paging that are meaningful for a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Paging {
    /// No columns: everything is in memory, or the trial is not about reads.
    None,
    /// Columns for faults and shootdowns.
    Faults,
    /// Columns for faults and shootdowns, and for the work of reclaim.
    Reclaim,
}

/// How the figures of a trial are to be read. Set by the trial's experiment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Basis {
    /// The metric by which the trial is judged.
    pub metric: Metric,
    /// Whether the trial is to read more than memory holds, without writes: full memory and the bytes that the device
    /// read then prove that it did.
    pub out_of_core: bool,
    /// The columns about paging that are meaningful for the trial.
    pub paging: Paging,
    /// The pages of the trial's data, where they are others than the method usually has and the trial's parameters do not
    /// say.
    pub pages: Option<Pages>,
    /// How many requests a call of the trial answers, where that is another number than the method usually has.
    pub calls: Option<Calls>,
}

impl Basis {
    /// Judges a trial by this metric; the trial causes no paging.
    pub const fn by(metric: Metric) -> Self {
        Self { metric, out_of_core: false, paging: Paging::None, pages: None, calls: None }
    }

    /// Creates the rule that judges a trial by this metric, for a trial that loads and evicts pages.
    pub const fn paging(metric: Metric) -> Self {
        Self { paging: Paging::Faults, ..Self::by(metric) }
    }
}

/// The trials of one key: the repeats of one measurement.
#[derive(Debug, Clone)]
pub struct Group<'a> {
    /// The key of the trials: see [`TrialSpec::key`].
    pub key: String,
    /// The specification of the first repeat.
    pub spec: &'a TrialSpec,
    /// How the group's figures are to be read.
    pub basis: Basis,
    /// The method that was measured; `None` for a method of a newer nofault.
    pub method: Option<&'static Method>,
    /// The trials that count: valid, and not cut short where whole ones exist.
    pub good: Vec<&'a Trial>,
    /// Trials without a figure: the number of the repeat, and the reason.
    pub worthless: Vec<(u32, String)>,
    /// Number of trials that were cut short, whether they count or not.
    pub partial: usize,
    /// The trials that count of each group that stands next to this one, this one included: of the same experiment, variant, target and
    /// cache, judged by the same metric, and with full memory where they need it. Their noise is of one kind.
    beside: Rc<[Vec<&'a Trial>]>,
}

impl<'a> Group<'a> {
    /// The spread of a metric over the repeats that count.
    pub fn spread(&self, metric: Metric) -> Option<Spread> {
        Spread::of(self.values(metric))
    }

    /// The values of a metric in the repeats that count, in order.
    pub fn values(&self, metric: Metric) -> Vec<f64> {
        values(&self.good, metric)
    }

    /// The values of a metric in each group that stands next to this one, this one included.
    pub fn values_beside(&self, metric: Metric) -> impl Iterator<Item = Vec<f64>> {
        self.beside.iter().map(move |trials| values(trials, metric))
    }

    /// The spread of the metric by which the group's experiment is judged.
    pub fn primary(&self) -> Option<Spread> {
        self.spread(self.basis.metric)
    }

    /// How the group's method reaches its data.
    pub fn family(&self) -> Family {
        self.method.map_or(Family::Other, |method| method.family)
    }

    /// The conditions of the group's trials, which every comparison requires to be equal.
    pub fn conditions(&self) -> Conditions {
        Conditions::of(self.method, self.spec, self.basis.pages, self.basis.calls)
    }

    /// The method's name for people.
    pub fn title(&self) -> String {
        methods::title(self.method, &self.spec.method)
    }

    /// Whether memory never filled although the trial was to read more than memory holds: its figures then do not show
    /// paging.
    pub fn never_filled(&self) -> bool {
        let fills = matches!(self.family(), Family::Mapped | Family::Buffered);
        let limited = self.spec.memory.method != MemoryMethod::None;
        fills && limited && self.basis.out_of_core && self.good.iter().any(|trial| trial.outcome.full_at_s.is_none())
    }

    /// Whether the method reads through a map and its figures show paging wherever they are meant to.
    pub fn pages_through_a_map(&self) -> bool {
        self.family() == Family::Mapped && !self.never_filled()
    }

    /// Whether the method waits for absent pages outside of the timed access (`op`): it asks for a page first and
    /// serves other requests until it is there. The tail of `op` then covers resident pages only, and cannot be
    /// compared with the tail of a thread that waits within its accesses.
    pub fn waits_apart(&self) -> bool {
        let timed =
            |trial: &Trial, name: &str| trial.outcome.latency.get(name).is_some_and(|latency| latency.count > 0);
        self.good.iter().any(|trial| timed(trial, "wait") || timed(trial, "probe"))
    }

    /// Whether operations were started at a given rate, so that their number is no result.
    pub fn has_given_rate(&self) -> bool {
        self.good.iter().any(|trial| trial.outcome.latency.contains_key("open_loop"))
    }

    /// The repeat with the (lower) median of the primary metric, which time series show.
    pub fn typical(&self) -> Option<&'a Trial> {
        let metric = self.basis.metric;
        let mut trials: Vec<_> =
            self.good.iter().filter_map(|trial| metric.of(&trial.outcome).map(|value| (value, *trial))).collect();
        trials.sort_by(|a, b| a.0.total_cmp(&b.0));
        trials.get(trials.len().saturating_sub(1) / 2).map(|(_, trial)| *trial)
    }

    /// The histogram of a latency over all repeats that count; `None` where no histogram can be read.
    pub fn histogram(&self, name: &str) -> Option<Histogram<u64>> {
        let mut merged: Option<Histogram<u64>> = None;
        for latency in self.good.iter().filter_map(|trial| trial.outcome.latency.get(name)) {
            let Some(histogram) = latency.histogram() else { continue };
            match &mut merged {
                Some(all) => {
                    all.auto(true);
                    // With resizing on, adding fails only when memory runs out; the histogram so far stands.
                    let _ = all.add(histogram);
                }
                None => merged = Some(histogram),
            }
        }
        merged.filter(|histogram| !histogram.is_empty())
    }

    /// The method and its distinguishing parameters, for people.
    pub fn label(&self) -> String {
        let mut label = self.title();
        let parameters = parameters(&self.spec.params);
        if !parameters.is_empty() {
            label.push_str(" · ");
            label.push_str(&parameters);
        }
        label
    }
}

/// Finds the outside baseline for one of the lab's own direct methods: the same calls with the same parameters.
pub fn fio_of<'g, 'a>(own: &Group<'_>, groups: &[&'g Group<'a>]) -> Option<&'g Group<'a>> {
    own.family().is_explicit().then_some(())?;
    let stands_beside = |fio: &&Group<'a>| fio.method.and_then(|method| method.baseline_of) == Some(own.family());
    groups.iter().copied().filter(stands_beside).find(|fio| fio.spec.params == own.spec.params)
}

/// Whether groups have operations of different sizes, so that their latencies do not compare.
pub fn sizes_differ(groups: &[&Group<'_>]) -> bool {
    groups.iter().any(|group| group.spec.params.block_bytes != groups[0].spec.params.block_bytes)
}

/// All trials of a record file in groups, in the order in which they were first measured.
#[derive(Debug, Clone)]
pub struct Summary<'a> {
    /// The groups, in the order in which they were first measured.
    pub groups: Vec<Group<'a>>,
}

impl<'a> Summary<'a> {
    /// Groups a file's trials. `known` returns, for a trial, how its figures are to be read, and its method.
    pub fn judged(file: &'a RecordFile, known: impl Fn(&TrialSpec) -> (Basis, Option<&'static Method>)) -> Self {
        let mut at: BTreeMap<String, usize> = BTreeMap::new();
        let mut all: Vec<(String, Vec<&Trial>)> = Vec::new();
        for trial in &file.trials {
            let key = trial.spec.key();
            let index = *at.entry(key.clone()).or_insert_with(|| {
                all.push((key, Vec::new()));
                all.len() - 1
            });
            all[index].1.push(trial);
        }
        let mut groups: Vec<_> =
            all.into_iter().map(|(key, trials)| group(key, &trials, known(&trials[0].spec))).collect();
        stand_beside(&mut groups);
        Self { groups }
    }

    /// The groups of one experiment.
    pub fn of_experiment(&self, experiment: ExperimentId) -> impl Iterator<Item = &Group<'a>> {
        self.groups.iter().filter(move |group| group.spec.experiment == experiment)
    }

    /// Pairs of variant and target label of one experiment, in the order in which they were measured.
    pub fn places(&self, experiment: ExperimentId) -> Vec<(&'a str, &'a str)> {
        let mut places = Vec::new();
        for group in self.of_experiment(experiment) {
            let place = (group.spec.variant.as_str(), group.spec.target.label.as_str());
            if !places.contains(&place) {
                places.push(place);
            }
        }
        places
    }

    /// The groups of one experiment, variant and target.
    pub fn at(&self, experiment: ExperimentId, variant: &str, target: &str) -> Vec<&Group<'a>> {
        self.of_experiment(experiment)
            .filter(|group| group.spec.variant == variant && group.spec.target.label == target)
            .collect()
    }
}

fn group<'a>(key: String, trials: &[&'a Trial], (basis, method): (Basis, Option<&'static Method>)) -> Group<'a> {
    let mut whole = Vec::new();
    let mut cut = Vec::new();
    let mut worthless = Vec::new();
    for trial in trials {
        match why_worthless(&trial.outcome) {
            Some(why) => worthless.push((trial.spec.repeat, why)),
            None if trial.outcome.partial => cut.push(*trial),
            None => whole.push(*trial),
        }
    }
    let partial = trials.iter().filter(|trial| trial.outcome.partial).count();
    let good = if whole.is_empty() { cut } else { whole };
    Group { key, spec: &trials[0].spec, basis, method, good, worthless, partial, beside: Rc::default() }
}

fn values(trials: &[&Trial], metric: Metric) -> Vec<f64> {
    trials.iter().filter_map(|trial| metric.of(&trial.outcome)).collect()
}

/// Gives each group the trials of its neighbours.
fn stand_beside<'a>(groups: &mut [Group<'a>]) {
    let place = |group: &Group<'a>| {
        let spec = group.spec;
        (spec.experiment, spec.variant.as_str(), spec.target.label.as_str(), spec.cache, group.basis.metric)
    };
    let mut places: Vec<(_, Rc<[Vec<&'a Trial>]>)> = Vec::new();
    for at in 0..groups.len() {
        let own = place(&groups[at]);
        let known = places.iter().find(|(other, _)| *other == own).map(|(_, beside)| Rc::clone(beside));
        groups[at].beside = known.unwrap_or_else(|| {
            let there = groups.iter().filter(|group| place(group) == own && !group.never_filled());
            let beside: Rc<[_]> = there.map(|group| group.good.clone()).collect();
            places.push((own, Rc::clone(&beside)));
            beside
        });
    }
}

/// The reason why a trial has no figure; `None` for a trial that counts.
pub fn why_worthless(outcome: &Outcome) -> Option<String> {
    let checks = &outcome.checks;
    if checks.wrong > 0 {
        return Some(format!(
            "{} of {} checked blocks held wrong data",
            checks.wrong,
            checks.verified.max(checks.wrong)
        ));
    }
    if checks.failed > 0 {
        return Some(format!("{} operations failed", checks.failed));
    }
    if outcome.ops == 0 {
        return Some("no operation finished".into());
    }
    let elapsed_s = outcome.steady.as_ref().map_or(outcome.elapsed_s, |window| window.elapsed_s);
    (!elapsed_s.is_finite() || elapsed_s <= 0.0).then(|| "it took no time".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_its_median_and_is_scaled_as_a_whole() {
        let a = Spread::of([3.0, 1.0, f64::NAN, 2.0]).unwrap();
        assert_eq!((a.median, a.min, a.max, a.count), (2.0, 1.0, 3.0, 3));
        assert_eq!(Spread::of([4.0, 6.0]).unwrap().median, 5.0);
        assert_eq!(a.times(2.0), Spread { median: 4.0, min: 2.0, max: 6.0, count: 3 });
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn a_group_stands_beside_those_of_its_place_that_show_one_kind_of_figure() {
        let rates = [("mmap-random", 1e4), ("pread-direct", 2e4), ("uring-direct", 3e4)];
        let mut file = crate::report::verdict::tests::file(crate::experiments::random::ID, "", &rates);
        let far = crate::report::verdict::tests::file(crate::experiments::random::ID, "elsewhere", &rates[..1]);
        file.trials.extend(far.trials);
        file.trials.extend(crate::report::verdict::tests::file(crate::experiments::scan::ID, "", &rates[..1]).trials);
        let by = |spec: &TrialSpec| match spec.method.as_str() {
            "uring-direct" => (Basis::by(Metric::Latency("op", 990)), None),
            _ => (Basis::by(Metric::OpsPerS), None),
        };
        let summary = Summary::judged(&file, by);
        let beside: Vec<usize> =
            summary.groups.iter().map(|group| group.values_beside(Metric::OpsPerS).count()).collect();
        assert_eq!(beside, [2, 2, 1, 1, 1]);
        let values: Vec<_> = summary.groups[0].values_beside(Metric::OpsPerS).collect();
        assert_eq!(values, [summary.groups[0].values(Metric::OpsPerS), summary.groups[1].values(Metric::OpsPerS)]);
    }
}
