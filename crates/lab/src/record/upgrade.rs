//! Gives records of earlier schemas the fields that this schema has.
//!
//! Up to schema 2 some methods had their data in huge pages; now it lies in small pages, like the data of the map that
//! they are compared with. Such trials get the parameter that says so, and are compared with nothing in small pages.
//!
//! In schema 1 the cause of a skip, the kind of a warning, the settings of a store and the costs of the machine stood in texts only, and the lab
//! searched these texts. They are searched here once, when such a file is read; everything else acts on the fields. The texts are those that the
//! earlier builds wrote: they must not change with the words of today's messages. Later builds of schema 1 wrote the fields as well; a field that
//! is there stays as it is.

use super::{MachineInfo, Outcome, Skip, SkipCause, Trial, Warning, WarningKind};

/// Methods whose data lay in huge pages up to schema 2.
const HUGE_UP_TO_2: [&str; 5] = ["pool", "pool-tasks", "pool-get-many", "pool-frames", "check-every-load"];

/// Marks the trials of schema 1 and 2 whose data lay in huge pages.
pub(super) fn from_schema_2(trials: &mut [Trial]) {
    for spec in trials.iter_mut().map(|trial| &mut trial.spec) {
        if HUGE_UP_TO_2.contains(&spec.method.as_str()) {
            spec.params.extra.insert("buffers".into(), "huge".into());
        }
    }
}

/// Fills in the fields of schema 2 from the texts of an older run.
pub(super) fn from_schema_1(machine: &mut MachineInfo, trials: &mut [Trial], skips: &mut [Skip]) {
    for (name, text) in &machine.facts {
        if let Some(cost_ns) = text.strip_suffix(" ns").and_then(|number| number.trim().parse().ok()) {
            machine.costs_ns.entry(name.clone()).or_insert(cost_ns);
        }
    }
    skips.iter_mut().for_each(skip);
    trials.iter_mut().for_each(|trial| outcome(&mut trial.outcome));
}

fn skip(skip: &mut Skip) {
    if skip.cause.is_none() {
        skip.cause = not_built(&skip.reason)
            .or_else(|| failed(&skip.reason))
            .or_else(|| skip.reason.contains("from --preset standard on").then_some(SkipCause::LargerPreset));
    }
}

/// `not built: --features peers (…)`.
fn not_built(reason: &str) -> Option<SkipCause> {
    let feature = reason.strip_prefix("not built: --features ")?.split(' ').next()?;
    Some(SkipCause::NotBuilt(feature.to_owned()))
}

/// `<key of the trial> (repeat 0): <error>`.
fn failed(reason: &str) -> Option<SkipCause> {
    let (key, rest) = reason.split_once(" (repeat ")?;
    let (repeat, _) = rest.split_once("): ")?;
    repeat.parse::<u32>().is_ok().then(|| SkipCause::Failed(key.to_owned()))
}

fn outcome(outcome: &mut Outcome) {
    for (name, text) in &outcome.texts {
        if let Some(setting) = name.strip_prefix("set: ") {
            outcome.settings.entry(setting.to_owned()).or_insert_with(|| text.clone());
        }
    }
    outcome.warnings.iter_mut().for_each(warning);
}

fn warning(warning: &mut Warning) {
    let words = [
        ("others used", WarningKind::OtherLoad),
        ("the device moved", WarningKind::DeviceTraffic),
        ("could not be kept", WarningKind::RateNotKept),
    ];
    let found = words.into_iter().find(|(words, _)| warning.text.contains(words));
    warning.kind = warning.kind.or(found.map(|(_, kind)| kind));
}
