//! The trials of a run in their order, their planned times, and the plan shown before anything starts.

use std::time::Duration;

use serde::Serialize;

use super::prepare::RunResources;
use super::{seconds, show_limit};
use crate::config::Config;
use crate::error::Result;
use crate::experiment::{Available, LimitedTrials};
use crate::experiments;
use crate::format;
use crate::machine::system::meminfo_bytes;
use crate::progress::wrapped;
use crate::record::{MemoryLimit, MemoryMethod, Skip, TargetKind, TrialSpec};

/// Planned time of a trial besides its measurement, in seconds: a process, cold caches, a memory limit.
const OVERHEAD_S: f64 = 0.15;
/// Planned speed of locking memory for a ballast, in bytes a second: much of the memory was never touched before.
const BALLAST_BYTES_PER_S: f64 = 600e6;

/// The plan of a run. In JSON: its time, its trials, and the skipped measurements with their reasons.
#[derive(Debug, Serialize)]
pub struct Plan {
    /// Planned time of the run in seconds, including the time to make the data.
    pub time_s: f64,
    /// Every trial, in the order in which it will be measured.
    #[serde(rename = "cells")]
    pub trials: Vec<TrialSpec>,
    /// The measurements left out, and why.
    pub left_out: Vec<Skip>,
    /// The plan in words: the heading and the text of each line.
    #[serde(skip)]
    pub(super) lines: Vec<(&'static str, String)>,
}

impl Plan {
    /// The plan in few lines: the trials and their time, the disk, the memory, and the number of measurements left out.
    pub(super) fn brief(&self) -> Vec<(&'static str, String)> {
        let mut names: Vec<&str> = Vec::new();
        for spec in &self.trials {
            if !names.contains(&spec.experiment.name()) {
                names.push(spec.experiment.name());
            }
        }
        let time = format::duration(self.time_s);
        let mut lines = vec![("plan", format!("{} trials of {}: about {time}", self.trials.len(), names.join(", ")))];
        lines.extend(self.lines.iter().filter(|(what, _)| ["disk", "memory", "ram"].contains(what)).cloned());
        if !self.left_out.is_empty() {
            lines.push(("left out", format!("{} measurements; --plan and the report name them", self.left_out.len())));
        }
        lines
    }

    /// Formats the plan in lines of at most `width` columns; ends with a line break.
    pub fn text(&self, width: usize) -> String {
        let lines = self.lines.iter().flat_map(|(what, text)| wrapped(&head_of(what), text, width));
        lines.map(|line| line + "\n").collect()
    }
}

/// Pads the heading of a line of the plan to a fixed width.
pub(super) fn head_of(what: &str) -> String {
    format!("{what:<11}")
}

/// All trials of a run, in order, and the measurements left out.
#[derive(Debug)]
pub(super) struct Schedule {
    pub(super) trials: Vec<TrialSpec>,
    pub(super) skips: Vec<Skip>,
}

impl Schedule {
    /// Plans one experiment after another. Within an experiment, methods alternate and every second round is reversed:
    /// A B C, C B A, …, so that a drift of the machine affects all methods and none always follows the same other.
    /// Trials needing a ballast come last in their experiment, so that the ballast is made once. Where memory cannot
    /// be limited (`no_limit` gives the reason), the experiments needing a limit are left out.
    pub(super) fn of(config: &Config, available: &Available, no_limit: Option<&str>) -> Self {
        let mut schedule = Self { trials: Vec::new(), skips: Vec::new() };
        for id in &config.experiments {
            let Some(experiment) = experiments::find(*id) else { continue };
            if let Some(reason) = no_limit.filter(|_| experiment.needs(config).limited == LimitedTrials::All) {
                schedule.skips.push(Skip::new(*id, "", "", reason));
                continue;
            }
            let plan = experiment.plan(config, available);
            // Each reason is listed once, even when a plan has several targets of one name.
            for skip in plan.skips {
                if !schedule.skips.contains(&skip) {
                    schedule.skips.push(skip);
                }
            }
            schedule.trials.extend(plan.once);
            let (heavy, light): (Vec<_>, Vec<_>) = plan.trials.into_iter().partition(needs_ballast);
            for trials in [light, heavy] {
                for repeat in 0..plan.repeats.unwrap_or(config.repeats) {
                    let mut round: Vec<&[TrialSpec]> = trials
                        .chunk_by(|a, b| plan.together && (&a.method, &a.target) == (&b.method, &b.target))
                        .collect();
                    if repeat % 2 == 1 {
                        round.reverse();
                    }
                    let round = round.into_iter().flatten().map(|spec| TrialSpec { repeat, ..spec.clone() });
                    schedule.trials.extend(round);
                }
            }
        }
        schedule
    }

    /// Planned time of all trials together.
    pub(super) fn time(&self) -> Duration {
        self.times().map(|(_, time)| time).sum()
    }

    /// Each trial with its planned time; the first that needs a ballast includes the time to make it.
    fn times(&self) -> impl Iterator<Item = (&TrialSpec, Duration)> {
        let ballast_s = meminfo_bytes("MemTotal").unwrap_or(0) as f64 / BALLAST_BYTES_PER_S;
        let mut had = false;
        self.trials.iter().map(move |spec| {
            let (before, now) = (std::mem::replace(&mut had, needs_ballast(spec)), needs_ballast(spec));
            let making_s = if now && !before { ballast_s } else { 0.0 };
            (spec, time_of(spec) + seconds(making_s))
        })
    }

    /// Makes the plan of the run: trials, time, bytes, limits, omissions. Also checks that the bytes fit.
    ///
    /// # Errors
    /// `NoSpace` when disk or memory are too small for it.
    pub(super) fn plan(&self, config: &Config, prepared: &RunResources) -> Result<Plan> {
        let mut lines = Vec::new();
        let mut line = |what, value| lines.push((what, value));
        for id in &config.experiments {
            let trials = self.times().filter(|(spec, _)| spec.experiment == *id);
            let (count, time) = trials.fold((0, Duration::ZERO), |(count, sum), (_, time)| (count + 1, sum + time));
            line(id.name(), format!("{count} trials, {}", format::duration(time.as_secs_f64())));
        }
        let total = self.time() + seconds(prepared.making_s(config));
        line("time", format!("about {}", format::duration(total.as_secs_f64())));
        line("disk", prepared.show_space(config)?);
        for (what, limit) in self.limits() {
            line(
                "memory",
                if what.is_empty() { show_limit(&limit) } else { format!("{what}: {}", show_limit(&limit)) },
            );
        }
        if let Some(device) = prepared.show_ram(config) {
            line("ram", device);
        }
        for id in experiments::ids() {
            for skip in self.skips.iter().filter(|skip| skip.experiment == id) {
                let what = [id.name(), &skip.target, &skip.method];
                let what: Vec<&str> = what.into_iter().filter(|part| !part.is_empty()).collect();
                line("left out", format!("{}: {}", what.join(" "), skip.reason));
            }
        }
        Ok(Plan { time_s: total.as_secs_f64(), trials: self.trials.clone(), left_out: self.skips.clone(), lines })
    }

    /// The memory limits of the trials that are not on RAM-backed devices, the commonest first; each with the names of
    /// its experiments where there are several limits. Without a limit, one entry that limits nothing.
    fn limits(&self) -> Vec<(String, MemoryLimit)> {
        let mut limits: Vec<(MemoryLimit, usize, Vec<&'static str>)> = Vec::new();
        for spec in self
            .trials
            .iter()
            .filter(|spec| spec.memory.method != MemoryMethod::None && spec.target.kind() != TargetKind::Ram)
        {
            let at = limits.iter().position(|(limit, ..)| *limit == spec.memory).unwrap_or_else(|| {
                limits.push((spec.memory, 0, Vec::new()));
                limits.len() - 1
            });
            limits[at].1 += 1;
            if !limits[at].2.contains(&spec.experiment.name()) {
                limits[at].2.push(spec.experiment.name());
            }
        }
        limits.sort_by_key(|(_, count, _)| std::cmp::Reverse(*count));
        let several = limits.len() > 1;
        let named = |names: Vec<&str>| if several { names.join(", ") } else { String::new() };
        let limits: Vec<_> = limits.into_iter().map(|(limit, _, names)| (named(names), limit)).collect();
        if limits.is_empty() { vec![(String::new(), MemoryLimit::default())] } else { limits }
    }
}

/// Whether the trial needs a ballast: nearly all memory locked while it runs.
fn needs_ballast(spec: &TrialSpec) -> bool {
    spec.memory.method == MemoryMethod::Ballast
}

/// Planned time of a trial: preparation and measurement.
pub(super) fn time_of(spec: &TrialSpec) -> Duration {
    seconds(spec.duration_s + preparation_s(spec) + OVERHEAD_S)
}

/// Planned time before the clock of a trial starts, in seconds.
pub(super) fn preparation_s(spec: &TrialSpec) -> f64 {
    experiments::find(spec.experiment).map_or(0.0, |experiment| experiment.preparation_s(spec))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_memory_limit_experiments_that_need_one_are_skipped_with_the_reason() {
        let config = Config::default();
        let schedule = Schedule::of(&config, &Available::default(), Some("no rights"));
        assert!(!schedule.trials.is_empty());
        let limited = |id| experiments::find(id).unwrap().needs(&config).limited == LimitedTrials::All;
        assert!(schedule.trials.iter().all(|trial| !limited(trial.experiment)));
        for id in config.experiments.iter().copied().filter(|id| limited(*id)) {
            assert!(schedule.skips.iter().any(|skip| skip.experiment == id && skip.reason == "no rights"), "{id}");
        }
    }

    #[test]
    fn methods_are_interleaved_over_the_repeats() {
        let config = Config { experiments: vec![experiments::async_hazard::ID], ..Config::default() };
        let schedule = Schedule::of(&config, &Available::default(), None);
        let repeats: Vec<u32> = schedule.trials.iter().map(|trial| trial.repeat).collect();
        assert!(repeats.is_sorted() && repeats.last() == Some(&2));
        let round = |number| {
            let trials = schedule.trials.iter().filter(move |trial| trial.repeat == number);
            trials.map(|trial| (&trial.method, &trial.variant, trial.cache)).collect::<Vec<_>>()
        };
        assert!(round(0).len() > 2 && round(1).into_iter().rev().eq(round(0)), "every other round goes backwards");
    }

    #[test]
    fn a_ballast_is_made_once_for_all_repeats_of_an_experiment() {
        let config = Config { experiments: vec![experiments::eviction::ID], repeats: 3, ..Config::default() };
        let reclaim = |by: &'static str, method| crate::experiment::Reclaim {
            on_ram: false,
            by,
            limit: Ok(MemoryLimit { method, bytes: 1 << 30 }),
        };
        let reclaim = vec![reclaim("kswapd", MemoryMethod::Ballast), reclaim("cgroup", MemoryMethod::CgroupV1)];
        let schedule = Schedule::of(&config, &Available { reclaim, ..Available::default() }, None);
        let heavy: Vec<bool> = schedule.trials.iter().map(needs_ballast).collect();
        assert!(heavy.is_sorted() && heavy.contains(&true) && heavy.contains(&false), "{heavy:?}");
        for of in [false, true] {
            let trials = schedule.trials.iter().filter(|spec| needs_ballast(spec) == of);
            let repeats: Vec<u32> = trials.map(|spec| spec.repeat).collect();
            assert!(repeats.is_sorted() && repeats.last() == Some(&2), "{repeats:?}");
        }
        let alone: Duration = schedule.trials.iter().map(time_of).sum();
        let ballast_s = meminfo_bytes("MemTotal").unwrap() as f64 / BALLAST_BYTES_PER_S;
        assert_eq!(schedule.time(), alone + seconds(ballast_s), "once, and in the plan");
    }

    #[test]
    fn trials_that_build_on_each_other_keep_their_order_in_every_round() {
        let config = Config { experiments: vec![experiments::engines::ID], ..Config::default() };
        let schedule = Schedule::of(&config, &Available::default(), None);
        let first: Vec<_> =
            schedule.trials.iter().filter(|trial| trial.repeat == 0).map(|trial| &trial.variant).collect();
        let own = |repeat| {
            let trials =
                schedule.trials.iter().filter(move |trial| trial.repeat == repeat && trial.method == "nofault");
            trials.map(|trial| trial.variant.as_str()).collect::<Vec<_>>()
        };
        assert_eq!(first[0], "load");
        assert!(own(0).len() > 5 && own(0) == own(1));
    }
}
