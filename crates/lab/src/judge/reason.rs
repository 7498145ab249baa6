//! The verdict's rules as data, and the reasons that experiments give by them: evidence for or against a map, with the
//! figures. The folder of an experiment determines which of its records bear on a rule.

use serde::Serialize;

use super::bound::Bound;
use super::curve::{Curve, CurveRatio};
use super::paging::{Hint, valid_maps};
use super::places::{Records, explicit};
use super::{Comparison, Kind, Refusal, best, best_pair, compare, titles};
use crate::config::WorkloadConfig;
use crate::record::file::RecordFile;
use crate::record::{ExperimentId, TargetKind};
use crate::summary::{Family, Group, Metric, is_plain, target_title};

/// Gains that count for the map; a gain between this bound and [`WORSE`] is too small to matter for the choice.
const BETTER: Bound = Bound::at_least(1.2);
const WORSE: Bound = Bound::at_most(1.0 / 1.2);
/// Largest factor between two thread counts at which the results for one still apply to the other.
const NEAR: f64 = 2.0;
/// Shortest wait that counts as a stall, in seconds: no storage answers faster.
pub(crate) const STALL_S: f64 = 10e-6;

/// The end of a reason whose difference the repeats do not confirm.
const NOT_BORNE_OUT: &str = ", which the repeats do not bear out";
/// Name of the throughput rule where a map is compared with the engine's buffer pool, which caches, evicts and locks.
pub(crate) const POOL: &str = "throughput of a pool";
/// Name of the throughput rule ([`throughput`]) where databases with and without a map are compared.
pub(crate) const CHOICE: &str = "throughput of databases";

/// A decision rule of the paper. The rules are tried in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Rule 1 of the paper: updates that are safe in transactions.
    Updates,
    /// Rule 2 of the paper: no stalls on slow I/O.
    Stalls,
    /// Rule 4 of the paper: high throughput on fast storage.
    Throughput,
    /// Rule 3 of the paper: error handling, and right answers.
    Errors,
    /// Rule 2 of the paper for data that fits in memory: it may still be evicted, when a background load in the same
    /// memory reads through the page cache.
    StallsInMemory,
    /// Rule 5 of the paper, for data in memory: an access through a map against an access through a pool.
    InMemory,
}

impl Rule {
    pub(crate) const ALL: [Self; 6] =
        [Self::Updates, Self::Stalls, Self::Throughput, Self::Errors, Self::StallsInMemory, Self::InMemory];

    /// Returns whether the rule applies to a workload.
    pub(crate) fn applies(self, workload: &Workload) -> bool {
        let is = |value: Option<bool>| value == Some(true);
        match self {
            Self::Updates => !is(workload.read_only) && is(workload.needs_transactions),
            Self::Stalls => !is(workload.fits_in_memory) && is(workload.latency_matters),
            Self::Throughput => !is(workload.fits_in_memory),
            Self::Errors => true,
            Self::StallsInMemory => is(workload.fits_in_memory) && is(workload.latency_matters),
            Self::InMemory => is(workload.fits_in_memory),
        }
    }

    /// Returns the question that the rule answers, in words, and the flags with which a run measures it.
    pub(crate) fn question(self) -> (&'static str, &'static str) {
        match self {
            Self::Updates => ("what safe updates cost (rule: safe updates)", ""),
            Self::Stalls => ("how long accesses stall (rule: no stalls)", ""),
            Self::Throughput => ("how fast the storage is read either way (rule: throughput)", ""),
            Self::Errors => ("what a failed read or a flipped bit does (rule: errors)", ""),
            Self::StallsInMemory => (
                "how long an access stalls that should find its page in memory (rule: no stalls)",
                " --preset standard",
            ),
            Self::InMemory => ("what an access in memory costs either way (rule: in memory)", ""),
        }
    }
}

/// The connection between an experiment's records and a rule.
pub(crate) struct Evidence {
    /// The rule that the records bear on.
    pub(crate) rule: Rule,
    /// Finds the reasons for or against a map that the records give.
    pub(crate) find: fn(&Records<'_>, &Workload) -> Vec<Reason>,
    /// Whether these reasons count only where no other experiment gives a reason by the same rule.
    pub(crate) second_best: bool,
}

impl Evidence {
    /// Creates evidence that always counts.
    pub(crate) const fn of(rule: Rule, find: fn(&Records<'_>, &Workload) -> Vec<Reason>) -> Self {
        Self { rule, find, second_best: false }
    }

    /// Creates evidence that counts only where no other experiment gives a reason by the same rule.
    pub(crate) const fn second_best(rule: Rule, find: fn(&Records<'_>, &Workload) -> Vec<Reason>) -> Self {
        Self { rule, find, second_best: true }
    }
}

/// The user's description of the workload; `None` for a question without an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Workload {
    /// Whether the database is only read.
    pub read_only: Option<bool>,
    /// Whether the data in use fits in memory.
    pub fits_in_memory: Option<bool>,
    /// Number of threads using the database at the same time.
    pub threads: Option<u32>,
    /// Whether an occasional slow answer is a problem.
    pub latency_matters: Option<bool>,
    /// Whether several changes must happen together or not happen, and survive a crash.
    pub needs_transactions: Option<bool>,
}

impl From<WorkloadConfig> for Workload {
    fn from(stated: WorkloadConfig) -> Self {
        Self {
            read_only: stated.read_only.answer(),
            fits_in_memory: stated.fits_in_memory.answer(),
            threads: Some(stated.threads).filter(|count| *count > 0),
            latency_matters: stated.latency_matters.answer(),
            needs_transactions: stated.needs_transactions.answer(),
        }
    }
}

impl Workload {
    /// The description that the user gave at the start of the run.
    pub fn of_run(file: &RecordFile) -> Self {
        file.run.config.workload.into()
    }

    /// Fills unanswered questions with the usual case: larger than memory, updated in transactions, latency matters.
    pub(crate) fn assumed(self) -> Self {
        let read_only = self.read_only.unwrap_or(false);
        Self {
            read_only: Some(read_only),
            fits_in_memory: Some(self.fits_in_memory.unwrap_or(false)),
            threads: self.threads,
            latency_matters: Some(self.latency_matters.unwrap_or(true)),
            needs_transactions: Some(self.needs_transactions.unwrap_or(!read_only)),
        }
    }

    /// The description in words.
    pub fn words(&self) -> String {
        let stated = |value: Option<bool>, yes: &str, no: &str| match value {
            Some(true) => Some(yes.to_owned()),
            Some(false) => Some(no.to_owned()),
            None => None,
        };
        let parts = [
            stated(self.fits_in_memory, "fits in memory", "larger than memory"),
            stated(self.read_only, "only read", "updated"),
            stated(self.needs_transactions, "in transactions", "without transactions"),
            stated(self.latency_matters, "slow answers matter", "slow answers do not matter"),
            self.threads.map(|count| if count == 1 { "one thread".to_owned() } else { format!("{count} threads") }),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    pub(crate) fn is_whole(&self) -> bool {
        [self.read_only, self.fits_in_memory].iter().all(Option::is_some)
    }
}

/// The side that a rule's evidence supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// Evidence against mmap.
    Against,
    /// Evidence in favour of mmap.
    For,
    /// The evidence supports neither side: no difference that matters, or none that the repeats confirm.
    Neither,
}

impl Side {
    /// The side in words, for people.
    pub fn words(self) -> &'static str {
        match self {
            Self::Against => "against mmap",
            Self::For => "for mmap",
            Self::Neither => "for neither",
        }
    }
}

/// The evidence for a rule: a measured sentence and the side that it supports.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Reason {
    /// The paper's rule, in short: `safe updates`.
    pub rule: &'static str,
    /// The side that the reason supports.
    pub side: Side,
    /// The figures with their spread.
    pub text: String,
    /// Keys of the trials behind the reason.
    #[serde(rename = "cells")]
    pub trials: Vec<String>,
    /// For a comparison: the probability of such a difference by chance.
    #[serde(skip)]
    pub(crate) p: Option<f64>,
    /// Smallest number of repeats behind the reason; a proof (bytes found on the disk) counts as enough.
    #[serde(skip)]
    pub(crate) repeats: usize,
    /// Whether the figures were measured on the user's storage, not only on a RAM-backed device.
    #[serde(skip)]
    pub(crate) at_home: bool,
    /// The thread counts of the measurement, if they are far from the user's number.
    #[serde(skip)]
    pub(crate) far: Option<String>,
    /// Whether the comparison was refused because its sides were measured under unequal conditions: the text is then why,
    /// and the reason is none.
    #[serde(skip)]
    pub(crate) refused: bool,
}

impl Reason {
    /// Notes in the reason that the map was measured with a number of threads far from `wanted`, or the other side with
    /// one far from the map's.
    pub(crate) fn at_thread_counts(self, wanted: Option<u32>, counts: [u32; 2], what: &str, a: &Group<'_>) -> Self {
        let [map, other] = counts;
        let far = wanted.is_some_and(|wanted| factor(map, wanted).max(factor(other, map)) > NEAR);
        if far { self.far_from(counts, what, a) } else { self }
    }

    /// Notes in the reason that either side was measured with far more threads than `wanted`.
    pub(crate) fn beyond(self, wanted: Option<u32>, counts: [u32; 2], what: &str, a: &Group<'_>) -> Self {
        let far = wanted.is_some_and(|wanted| counts.iter().any(|count| f64::from(*count) > NEAR * f64::from(wanted)));
        if far { self.far_from(counts, what, a) } else { self }
    }

    fn far_from(self, [map, other]: [u32; 2], what: &str, a: &Group<'_>) -> Self {
        let counts = if map == other { map.to_string() } else { format!("{map} and {other}") };
        Self { far: Some(format!("{what}, {} ({counts})", target_title(&a.spec.target.label))), ..self }
    }
}

/// Whether a group was measured on the storage in question, not on a RAM-backed device.
pub(crate) fn is_home(group: &Group<'_>) -> bool {
    !group.spec.target.kind().is_ram_backed()
}

/// Makes a reason from the comparison of `a`, the map, with `b`. It supports the better side when the repeats confirm
/// the difference and it matters, otherwise neither.
pub(crate) fn reason(rule: &'static str, a: &Group<'_>, b: &Group<'_>, metric: Metric, what: &str) -> Option<Reason> {
    let comparison = match compare(a, b, metric) {
        Ok(comparison) => comparison,
        Err(refusal) => return refused(rule, a, b, what, &refusal),
    };
    Some(Reason {
        rule,
        side: side_of(comparison.kind, comparison.ratio.median, metric),
        p: comparison.p,
        text: sentence(a, b, metric, what, &comparison),
        trials: vec![a.key.clone(), b.key.clone()],
        repeats: comparison.ratio.count,
        at_home: is_home(a),
        far: None,
        refused: false,
    })
}

/// The side that a ratio of a map to something else supports, by a metric: none where the repeats do not confirm the
/// difference, or where it is too small to matter.
fn side_of(kind: Kind, ratio: f64, metric: Metric) -> Side {
    let gain = if metric.more_is_better() { ratio } else { 1.0 / ratio };
    match kind {
        Kind::Difference if WORSE.contains(gain) => Side::Against,
        Kind::Difference if BETTER.contains(gain) => Side::For,
        _ => Side::Neither,
    }
}

/// Notes a comparison refused for unequal conditions; `None` where there was no figure.
fn refused(rule: &'static str, a: &Group<'_>, b: &Group<'_>, what: &str, refusal: &Refusal) -> Option<Reason> {
    let text = format!("{what}, {}: {}", target_title(&a.spec.target.label), refusal.reason()?);
    let trials = vec![a.key.clone(), b.key.clone()];
    Some(Reason {
        rule,
        side: Side::Neither,
        text,
        trials,
        p: None,
        repeats: 0,
        at_home: is_home(a),
        far: None,
        refused: true,
    })
}

fn sentence(a: &Group<'_>, b: &Group<'_>, metric: Metric, what: &str, comparison: &Comparison<'_>) -> String {
    let unit = metric.unit();
    let place = target_title(&a.spec.target.label);
    let caveat = match comparison.kind {
        Kind::Difference => "",
        _ => NOT_BORNE_OUT,
    };
    format!(
        "{what}, {place}: {} through {}, {} with {}: {}{caveat}.",
        unit.show(comparison.a.median),
        a.label(),
        unit.show(comparison.b.median),
        b.label(),
        comparison.show()
    )
}

/// Creates a reason from a proof or a count, without a comparison.
pub(crate) fn proof(rule: &'static str, side: Side, text: String, group: &Group<'_>) -> Reason {
    let (trials, at_home) = (vec![group.key.clone()], is_home(group));
    Reason { rule, side, text, trials, p: None, repeats: usize::MAX, at_home, far: None, refused: false }
}

/// The number of threads of a group's trials.
pub(crate) fn threads(group: &Group<'_>) -> u32 {
    group.spec.params.threads.max(1)
}

/// Number of requests that a group has in flight at once: its threads, if each waits for its own request, or the depth
/// of its ring. Either number of requests serves as many concurrent users.
fn in_flight(group: &Group<'_>) -> u32 {
    threads(group).saturating_mul(group.spec.params.depth.max(1))
}

/// The factor between two counts: 2 for twice as many and for half.
fn factor(a: u32, b: u32) -> f64 {
    let (a, b) = (f64::from(a.max(1)), f64::from(b.max(1)));
    (a / b).max(b / a)
}

/// Returns the groups whose count is nearest to `wanted`; all groups if `wanted` is `None`.
pub(crate) fn nearest<'g, 'a>(
    groups: Vec<&'g Group<'a>>,
    wanted: Option<u32>,
    count: fn(&Group<'_>) -> u32,
) -> Vec<&'g Group<'a>> {
    let Some(wanted) = wanted else { return groups };
    let off = |group: &&Group<'_>| factor(count(group), wanted);
    let least = groups.iter().map(off).fold(f64::INFINITY, f64::min);
    groups.into_iter().filter(|group| off(group) <= least).collect()
}

/// Returns the groups with no more threads than `wanted`, and the groups with the nearest number.
fn up_to<'g, 'a>(groups: Vec<&'g Group<'a>>, wanted: Option<u32>) -> Vec<&'g Group<'a>> {
    let fewer = |group: &&&Group<'_>| wanted.is_none_or(|wanted| threads(group) <= wanted);
    let mut found: Vec<&Group<'_>> = groups.iter().filter(fewer).copied().collect();
    found.extend(nearest(groups, wanted, threads));
    found
}

/// The throughput metrics of an experiment reading data larger than memory.
pub(crate) struct Reading {
    /// The experiment that the metrics belong to.
    pub(crate) experiment: ExperimentId,
    /// The metric for the rate of reads.
    pub(crate) rate: Metric,
    /// The metric for the CPU cost of reads.
    pub(crate) cpu: Metric,
    /// Words for the rate and for the CPU cost in sentences.
    pub(crate) words: [&'static str; 2],
    /// Selects the maps whose hint fits the work: no other map stands in for them.
    pub(crate) hint: Hint,
    /// Whether the program knows the order of its reads ahead: the depth of the queue and the number of threads are
    /// then its own choice.
    pub(crate) sequential: bool,
}

/// Compares the curve of a map over requests in flight with the curves of the two `sides`, explicit I/O and the engine's pool:
/// where the user does not say how many requests there are, the whole curve counts.
fn by_curves<'s>(maps: &[&'s Group<'s>], sides: &[Vec<&'s Group<'s>>; 2], reading: &Reading) -> Vec<Reason> {
    let Reading { rate, cpu, words: [what, per], .. } = *reading;
    let map = Curve::of(maps.iter().copied(), rate);
    let [calls, pool] = sides;
    let mut reasons = Vec::new();
    for (rule, side, metric, what) in
        [("throughput", calls, rate, what), (POOL, pool, rate, what), ("throughput", calls, cpu, per)]
    {
        let other = Curve::of(side.iter().copied().filter(|group| is_plain(&group.spec.params)), rate);
        match map.over(&other, metric) {
            // A curve of one point is a pair, with the figures of both.
            Ok(found) if found.pairs.len() == 1 => {
                let (a, b) = found.pairs[0];
                reasons.extend(reason(rule, a, b, metric, what));
            }
            Ok(found) => reasons.push(whole_curve(rule, &found, metric, what)),
            Err(refusal) => {
                let bests = map.best(rate).zip(other.best(rate));
                reasons.extend(bests.and_then(|(a, b)| refused(rule, a, b, what, &refusal)));
            }
        }
    }
    reasons
}

/// Makes a reason from the ratio of a map's curve to another.
pub(crate) fn whole_curve(rule: &'static str, found: &CurveRatio<'_, '_>, metric: Metric, what: &str) -> Reason {
    let (map, _) = found.pairs[0];
    let others: Vec<&Group<'_>> = found.pairs.iter().map(|(_, other)| *other).collect();
    Reason {
        rule,
        side: side_of(found.kind(), found.ratio.median, metric),
        text: format!(
            "{what}, {}, {}: {} through {} over {}{}.",
            target_title(&map.spec.target.label),
            found.words(),
            found.show(),
            map.title(),
            titles(&others),
            if found.kind() == Kind::Difference { "" } else { NOT_BORNE_OUT },
        ),
        trials: found.keys(),
        p: found.p,
        repeats: found.ratio.count,
        at_home: is_home(map),
        far: None,
        refused: false,
    }
}

/// Finds the reasons of rule 4, high throughput on fast storage: compares the rates, and the CPU time for them, which a
/// slow device hides in the rates.
pub(crate) fn throughput<'s>(records: &Records<'s>, workload: &Workload, reading: &Reading) -> Vec<Reason> {
    let mut reasons = Vec::new();
    let Reading { experiment: id, rate, cpu, words: [what, per], hint, sequential: scans } = *reading;
    let whole = |(variant, target): &(&str, &str)| variant.is_empty() && TargetKind::of(target).part().is_none();
    let places = records.summary.places(id).into_iter().filter(whole);
    let wanted = workload.threads;
    let count: fn(&Group<'_>) -> u32 = if scans { threads } else { in_flight };
    for (variant, target) in places {
        let groups = records.summary.at(id, variant, target);
        let maps = valid_maps(&groups, hint);
        let maps = if scans { up_to(maps, wanted) } else { nearest(maps, wanted, count) };
        let own: Vec<&Group<'_>> = groups.iter().copied().filter(|group| group.family() == Family::Pool).collect();
        // Both sides are taken under equal conditions; without such a pair the refusal is shown.
        let pair = |others: &[&'s Group<'s>]| {
            let best_of = |groups: &[&'s Group<'s>]| best(groups.iter().copied(), rate);
            best_pair(&maps, others, rate, &[]).or_else(|| best_of(&maps).zip(best_of(others)))
        };
        if !scans && wanted.is_none() {
            let side = [explicit(&groups), own];
            reasons.extend(by_curves(&maps, &side, reading));
            continue;
        }
        let (calls, pool) = (pair(&explicit(&groups)), pair(&own));
        for (rule, pair, metric, what) in
            [("throughput", calls, rate, what), (POOL, pool, rate, what), ("throughput", calls, cpu, per)]
        {
            let Some((map, other)) = pair else { continue };
            let counts = [count(map), count(other)];
            let Some(found) = reason(rule, map, other, metric, what) else { continue };
            reasons.push(match scans {
                true => found.beyond(wanted, counts, id.name(), map),
                false => found.at_thread_counts(wanted, counts, id.name(), map),
            });
        }
    }
    reasons
}
